// An exponential that is stored as it is, as the rate of a decay, of which a table has few: within nine tenths of a
// unit in the last place over all of f32, denormals and infinities included, where CUDA's expf is up to 1.7 off. And
// logarithms near 0. Needs rj_fma, rj_float and rj_either of the vendor's half, and no contraction of products into
// sums; tests/compiler/prelude_math_test.cpp sweeps both.

// value * 2^exponent for |exponent| <= 252, in two exact steps and one that may round to a denormal.
RJ_DEVICE float rj_scale(float value, int exponent) {
    const int half = exponent / 2;
    return value * rj_float(static_cast<unsigned>(half + 127) << 23) *
           rj_float(static_cast<unsigned>(exponent - half + 127) << 23);
}

// exp(a) = 2^n * exp(f) with |f| <= ln(2) / 2. ln(2) is subtracted in two parts, so f is exact to 2^-40.
RJ_DEVICE float rj_exp_stored(float a) {
    // 1.5 * 2^23: adding it rounds to an integer. Outside the clamp the result is 0 or infinity either way.
    const float clamped = a < -104.0f ? -104.0f : a > 89.0f ? 89.0f : a;
    const float n = rj_fma(clamped, 1.44269502f, 12582912.0f) - 12582912.0f;
    float f = rj_fma(n, -6.93145752e-1f, clamped);
    f = rj_fma(n, -1.42860677e-6f, f);
    float r = 1.37805939e-3f;
    r = rj_fma(r, f, 8.37312452e-3f);
    r = rj_fma(r, f, 4.16695364e-2f);
    r = rj_fma(r, f, 1.66664720e-1f);
    r = rj_fma(r, f, 4.99999851e-1f);
    r = rj_fma(r, f, 1.0f);
    r = rj_fma(r, f, 1.0f);
    return rj_either(a != a, a, rj_scale(r, static_cast<int>(n)));
}

// log(1 + m) of m in [-1/3, 1/3].
RJ_DEVICE float rj_log_near_one(float m) {
    const float s = m * m;
    float r = -0.130310059f;
    float t = 0.140869141f;
    r = rj_fma(r, s, -0.121483512f);
    t = rj_fma(t, s, 0.139814854f);
    r = rj_fma(r, s, -0.166846126f);
    t = rj_fma(t, s, 0.200120345f);
    r = rj_fma(r, s, -0.249996200f);
    r = rj_fma(t, m, r);
    r = rj_fma(r, m, 0.333331972f);
    r = rj_fma(r, m, -0.5f);
    return rj_fma(r, s, m);
}

// log(1 + a) of 0 to 1, as a softplus has, within 1.5 units in the last place: of m = a or, of the upper two thirds,
// (1 + a) / 2 - 1. 16 instructions; CUDA's takes any number, in 34 and a branch for each element.
RJ_DEVICE float rj_log1p_of_fraction(float a) {
    const bool upper = a > 0.333333343f;
    const float m = rj_either(upper, rj_fma(a, 0.5f, -0.5f), a);
    return rj_log_near_one(m) + rj_either(upper, 0.693147182f, 0.0f);
}
