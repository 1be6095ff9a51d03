// Functions for every GPU that are less exact than f32 where a rounding to bf16 or f16 hides it (passes/precision says
// where), of a vendor's instructions for powers of two and reciprocals. Needs rj_fma, rj_min, rj_abs, rj_exp2_fast,
// rj_reciprocal_fast, rj_bits and rj_float of the vendor's half.

// erf where 1 is added to it, as a GELU's is: 13 instructions in place of 30. 1 - 2^p(|a|) with the sign of a. The
// polynomial is log2 of erfc on [0, 4], beyond which erf rounds to 1, fitted to the least weighted error (Lawson's
// iteration; the test of it sweeps what comes of it): 1 + erf a is within 2^-20, where a sum that nearly cancels needs
// it, and below 0 within 2^-14 of itself or what the rounding of 1 - 2^p leaves, which is what f32 leaves of 1 + erf a
// in any case.
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

// tanh within 2^-21.5 and 2^-17.5 of itself, where the vendor's instructions are as bad as they may be: 11 instructions
// in place of the 16 of CUDA's, which from 0.55 on errs as much. 1 - 2 / (1 + e^2|a|) loses what is small beside 1;
// below 1/16 a (1 + c a^2) loses less. c is -1/3 and what makes up for the terms that are left out.
RJ_DEVICE float rj_tanh_narrow(float a) {
    const float size = rj_abs(a);
    const float inner = a * rj_fma(a * a, -0.3329f, 1.0f);
    const float outer = rj_fma(rj_reciprocal_fast(rj_exp2_fast(size * 2.88539008f) + 1.0f), -2.0f, 1.0f);
    return size < 0.0625f ? inner : rj_float(rj_bits(outer) | (rj_bits(a) & 0x80000000u));
}
