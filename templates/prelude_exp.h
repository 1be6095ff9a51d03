// An exponential that is stored as it is, as the rate of a decay, of which a table has few: within nine tenths of a
// unit in the last place over all of f32, denormals and infinities included, where CUDA's expf is up to 1.7 off. An
// exponential and a logarithm of what is bounded, for mixtures of distributions, and log(1 + a) of a fraction. Needs
// rj_fma, rj_float, rj_bits and rj_either of the vendor's half, and no contraction of products into sums;
// tests/compiler/prelude_math_test.cpp sweeps them.

// value * 2^exponent for |exponent| <= 252, in two exact steps and one that may round to a denormal.
RJ_DEVICE float rj_scale(float value, int exponent) {
    const int half = exponent / 2;
    return value * rj_float(static_cast<unsigned>(half + 127) << 23) *
           rj_float(static_cast<unsigned>(exponent - half + 127) << 23);
}

// exp(a) = 2^n * exp(f) with |f| <= ln(2) / 2. n and 1.5 * 2^23: adding that rounds to an integer.
RJ_DEVICE float rj_exp_shifted(float a) { return rj_fma(a, 1.44269502f, 12582912.0f); }
// exp(f). ln(2) is subtracted in two parts, so f is exact to 2^-40.
RJ_DEVICE float rj_exp_of_fraction(float a, float shifted) {
    const float n = shifted - 12582912.0f;
    float f = rj_fma(n, -6.93145752e-1f, a);
    f = rj_fma(n, -1.42860677e-6f, f);
    float r = 1.37805939e-3f;
    r = rj_fma(r, f, 8.37312452e-3f);
    r = rj_fma(r, f, 4.16695364e-2f);
    r = rj_fma(r, f, 1.66664720e-1f);
    r = rj_fma(r, f, 4.99999851e-1f);
    r = rj_fma(r, f, 1.0f);
    return rj_fma(r, f, 1.0f);
}

RJ_DEVICE float rj_exp_stored(float a) {
    // Outside the clamp the result is 0 or infinity either way.
    const float clamped = a < -104.0f ? -104.0f : a > 89.0f ? 89.0f : a;
    const float shifted = rj_exp_shifted(clamped);
    const float scaled = rj_scale(rj_exp_of_fraction(clamped, shifted), static_cast<int>(shifted - 12582912.0f));
    return rj_either(a != a, a, scaled);
}

// A divergence of distributions that are alike is a sum of squares of what exponentials are off 1 by, and has the whole
// of any error that they have in the mean: 10^-8 of jsd's mixtures are ten units of a loss of 0.01. So these two err to
// neither side where e^a, and what the logarithm is of, is near 1. NVIDIA's instruction for 2^a truncates, and expf
// with it, 3 10^-8 in the mean.

// The exponential that is stored, of |a| <= 87, whose result is a normal number, or NaN: 14 instructions where that
// takes 23.
RJ_DEVICE float rj_exp_bounded(float a) {
    const float shifted = rj_exp_shifted(a);
    return rj_exp_of_fraction(a, shifted) * rj_float((rj_bits(shifted) << 23) + 0x3f800000u);
}

// log(a) = e * ln(2) + log(1 + f) with 1 + f in [2/3, 4/3]: e at its place among a's bits, f, and both logarithms' sum,
// NaN of what is negative or NaN. Of 0 and denormals f is small, and e finite.
RJ_DEVICE unsigned rj_log_exponent(float a) { return (rj_bits(a) - 0x3f2aaaabu) & 0xff800000u; }
RJ_DEVICE float rj_log_fraction(float a, unsigned exponent) { return rj_float(rj_bits(a) - exponent) - 1.0f; }
RJ_DEVICE float rj_log_sum(float a, unsigned exponent, float of_fraction) {
    const float logarithm = rj_fma(static_cast<float>(static_cast<int>(exponent)), 8.2629583e-8f, of_fraction);
    return rj_bits(a) < 0x7f800000u ? logarithm : rj_float(0x7fc00000u);
}

// log(a) of a normal number, within a unit in the last place, and of 0 what it is of the least: f - f^2 / 2 + f^3 q(f)
// of 1 + f in [2/3, 4/3], q fitted to the least error beside |f|^1.5 (Lawson's iteration), which leaves nothing in the
// mean of f's of any size. 18 instructions; CUDA's takes any number, in 24.
RJ_DEVICE float rj_log_bounded(float a) {
    const unsigned exponent = rj_log_exponent(a);
    const float f = rj_log_fraction(a, exponent);
    float q = -0.12643644f;
    q = rj_fma(q, f, 0.13876508f);
    q = rj_fma(q, f, -0.12240884f);
    q = rj_fma(q, f, 0.14029133f);
    q = rj_fma(q, f, -0.1667646f);
    q = rj_fma(q, f, 0.20008887f);
    q = rj_fma(q, f, -0.24999884f);
    q = rj_fma(q, f, 0.33333245f);
    q = rj_fma(q, f, -0.5f);
    return rj_log_sum(a, exponent, rj_fma(q, f * f, f));
}

// log(1 + a) of 0 to 1, as a softplus has, within 1.2 units in the last place: a + a^2 q(a), q fitted to the least
// error (Lawson's iteration), its coefficients rounded one after the other. 11 instructions; CUDA's takes any number,
// in 34 and a branch for each element.
RJ_DEVICE float rj_log1p_of_fraction(float a) {
    float q = 0.00207295036f;
    q = rj_fma(q, a, -0.0136314947f);
    q = rj_fma(q, a, 0.0419813916f);
    q = rj_fma(q, a, -0.0830741003f);
    q = rj_fma(q, a, 0.124671236f);
    q = rj_fma(q, a, -0.161293343f);
    q = rj_fma(q, a, 0.198979288f);
    q = rj_fma(q, a, -0.249885768f);
    q = rj_fma(q, a, 0.333326906f);
    q = rj_fma(q, a, -0.499999881f);
    return rj_fma(a * a, q, a);
}
