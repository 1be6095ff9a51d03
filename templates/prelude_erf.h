// erf for every GPU where 1 is added to it and the sum is rounded to bf16 or f16, as a GELU's is: 13 instructions in
// place of 30. Needs rj_min, rj_abs, rj_exp2_fast, rj_bits and rj_float of the vendor's half.

// 1 - 2^p(|a|) with the sign of a. The polynomial is log2 of erfc on [0, 4], beyond which erf rounds to 1, fitted to
// the least weighted error (Lawson's iteration; the test of it sweeps what comes of it): 1 + erf a is within 2^-20,
// where a sum that nearly cancels needs it, and below 0 within 2^-14 of itself or what the rounding of 1 - 2^p leaves,
// which is what f32 leaves of 1 + erf a in any case.
RJ_DEVICE float rj_erf_narrow(float a) {
    const float size = rj_min(rj_abs(a), 4.0f);
    float p = -7.68126847e-6f;
    p = rj_fma(p, size, 8.93547112e-5f);
    p = rj_fma(p, size, -1.39338663e-4f);
    p = rj_fma(p, size, -3.40284011e-3f);
    p = rj_fma(p, size, 3.10424026e-2f);
    p = rj_fma(p, size, -1.50052637e-1f);
    p = rj_fma(p, size, -9.17999625e-1f);
    p = rj_fma(p, size, -1.62794566f);
    const float erf = 1.0f - rj_exp2_fast(p * size);
    return rj_float(rj_bits(erf) | (rj_bits(a) & 0x80000000u));
}
