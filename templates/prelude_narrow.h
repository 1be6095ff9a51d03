// Functions for every GPU that are less exact than f32 where a rounding to bf16 or f16 hides it (passes/precision says
// where), of a vendor's instructions for powers of two, logarithms, roots and reciprocals. Needs rj_fma, rj_min,
// rj_abs, rj_either, rj_bits, rj_float and what ends in _fast of the vendor's half.

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

// 1 / (1 + e^2|a|), at most 1/2, of which tanh and its parts are made: beside each other they have it once.
RJ_DEVICE float rj_tanh_rest(float a) { return rj_reciprocal_fast(rj_exp2_fast(rj_abs(a) * 2.88539008f) + 1.0f); }

// tanh within 2^-21.5 and 2^-17.5 of itself, where the vendor's instructions are as bad as they may be: 11 instructions
// in place of the 16 of CUDA's, which from 0.55 on errs as much. 1 - 2 / (1 + e^2|a|) loses what is small beside 1;
// below 1/16 a (1 + c a^2) loses less. c is -1/3 and what makes up for the terms that are left out.
RJ_DEVICE float rj_tanh_narrow(float a) {
    const float size = rj_abs(a);
    const float inner = a * rj_fma(a * a, -0.3329f, 1.0f);
    const float outer = rj_fma(rj_tanh_rest(a), -2.0f, 1.0f);
    return size < 0.0625f ? inner : rj_float(rj_bits(outer) | (rj_bits(a) & 0x80000000u));
}

// 1 - tanh^2, of which tanh leaves nothing where it is near 1: 4 r (1 - r) of that rest, within 2^-17.5 of it or
// 2^-124.
RJ_DEVICE float rj_tanh_slope_narrow(float a) {
    const float four = 4.0f * rj_tanh_rest(a);
    return rj_fma(four * -0.25f, four, four);
}

// The same near zero, where tanh is at most 0.72.
RJ_DEVICE float rj_tanh_slope_near_zero(float a) {
    const float tanh = rj_tanh_near_zero(a);
    return rj_fma(-tanh, tanh, 1.0f);
}

// 1 + tanh, of which tanh leaves nothing where it is near -1: 2 r, or 2 - 2 r of what is not below 0, likewise.
RJ_DEVICE float rj_tanh_plus_one_narrow(float a) {
    const float two = 2.0f * rj_tanh_rest(a);
    return rj_either(a < 0.0f, two, 2.0f - two);
}

// log(1 + a) within 2^-17.5 of itself. Near zero a polynomial, since the instruction's last place is a fixed one there.
RJ_DEVICE float rj_log1p_near_zero(float a) {
    return a * rj_fma(rj_fma(rj_fma(a, -0.25f, 0.333333343f), a, -0.5f), a, 1.0f);
}
RJ_DEVICE float rj_log1p_narrow(float a) {
    return rj_either(rj_abs(a) < 0.0625f, rj_log1p_near_zero(a), rj_log2_fast(1.0f + a) * 0.693147182f);
}
RJ_DEVICE float rj_log_narrow(float a) {
    const float above = a - 1.0f;
    const bool tiny = a < 1.17549435e-38f;  // 2^-126
    const float powers = rj_log2_fast(rj_either(tiny, a * 16777216.0f, a)) - rj_either(tiny, 24.0f, 0.0f);
    return rj_either(rj_abs(above) < 0.0625f, rj_log1p_near_zero(above), powers * 0.693147182f);
}

// Roots and quotients within 2^-20 of themselves, or a quotient within 2^-148. What the instructions take for zero is
// scaled first.
RJ_DEVICE float rj_sqrt_narrow(float a) {
    const bool tiny = a < 1.17549435e-38f;  // 2^-126
    return rj_sqrt_fast(rj_either(tiny, a * 16777216.0f, a)) * rj_either(tiny, 2.44140625e-4f, 1.0f);
}
RJ_DEVICE float rj_rsqrt_narrow(float a) {
    const bool tiny = a < 1.17549435e-38f;
    return rj_rsqrt_fast(rj_either(tiny, a * 16777216.0f, a)) * rj_either(tiny, 4096.0f, 1.0f);
}
RJ_DEVICE float rj_quotient_narrow(float a, float b) {
    const float size = rj_abs(b);
    const float up = rj_either(size < 7.88860905e-31f, 1.84467441e+19f, 1.0f);   // 2^-100, 2^64
    const float scale = rj_either(size > 1.26765060e+30f, 5.42101086e-20f, up);  // 2^100, 2^-64
    return a * scale * rj_reciprocal_fast(b * scale);
}
