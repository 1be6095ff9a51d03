// Functions in plain arithmetic, for GPUs that have no instruction for them and whose toolchain brings no device
// library (AMD's, without ROCm's). The elementary ones are within 2 units in the last place over all of f32, denormals
// and infinities included; tests/compiler/prelude_math_test.cpp sweeps them against double on the CPU. Needs rj_fma,
// rj_abs, rj_bits, rj_float, rj_div and rj_sqrt_fast of the vendor's half, prelude_exp.h, and no contraction of
// products into sums.

// To nearest even in integers, since gfx942 and older have no instruction for it: half a unit, less one when the kept
// part is even, carries into it. NaN keeps its sign and is made quiet, or the carry could turn it into infinity.
RJ_DEVICE unsigned rj_bf16_bits(float value) {
    const unsigned bits = rj_bits(value);
    const unsigned rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return (value != value ? bits | 0x400000u : rounded) >> 16;
}
RJ_DEVICE unsigned rj_pack_bf16(float low, float high) { return rj_bf16_bits(low) | rj_bf16_bits(high) << 16; }

// The fast root is within one unit in the last place and takes denormals for zero. The remainders against the
// neighbours on either side tell which of the three is nearest.
RJ_DEVICE float rj_sqrt(float a) {
    const bool tiny = a < 1.26217745e-29f;  // 2^-96
    const float scaled = tiny ? a * 4294967296.0f : a;
    float root = rj_sqrt_fast(scaled);
    const float below = rj_float(rj_bits(root) - 1u);
    const float above = rj_float(rj_bits(root) + 1u);
    const float over = rj_fma(-below, root, scaled);
    const float under = rj_fma(-above, root, scaled);
    root = over <= 0.0f ? below : under > 0.0f ? above : root;
    root = tiny ? root * 1.52587891e-5f : root;  // 2^-16
    const bool itself = a == 0.0f || a == rj_float(0x7f800000u);
    return itself ? a : root;
}

// prelude_divide.h
RJ_DEVICE float rj_rsqrt_straight(float a);
RJ_DEVICE float rj_rsqrt(float a) { return rj_rsqrt_straight(a); }

RJ_DEVICE float rj_with_sign(float magnitude, float sign) {
    return rj_float((rj_bits(magnitude) & 0x7fffffffu) | (rj_bits(sign) & 0x80000000u));
}

RJ_DEVICE float rj_exp(float a) { return rj_exp_stored(a); }
RJ_DEVICE float rj_exp_narrow(float a) { return rj_exp(a); }

// log(a) = e * ln(2) + log1p(m) with m in [-1/3, 1/3].
RJ_DEVICE float rj_log(float a) {
    const bool denormal = a < 1.17549435e-38f;
    const float normal = denormal ? a * 8388608.0f : a;
    const unsigned exponent = rj_log_exponent(normal);
    const float e = static_cast<float>(static_cast<int>(exponent) >> 23) - (denormal ? 23.0f : 0.0f);
    const float m = rj_log_fraction(normal, exponent);
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
    r = rj_fma(r, s, m);
    r = rj_fma(e, 0.693147182f, r);
    if (a > 0.0f && a < rj_float(0x7f800000u)) return r;
    if (a == 0.0f) return rj_float(0xff800000u);
    return a < 0.0f ? rj_float(0x7fc00000u) : a;  // infinity and NaN are their own logarithms
}

// With u = 1 + a rounded, log1p(a) = log(u) + (a - (u - 1)) / u to first order in the rounding error.
RJ_DEVICE float rj_log1p(float a) {
    const float u = 1.0f + a;
    if (!(u > 0.0f && u < rj_float(0x7f800000u))) return rj_log(u);
    return a == 0.0f ? a : rj_log(u) + rj_div(a - (u - 1.0f), u);
}

// Near zero a polynomial; beyond, 1 - exp(-polynomial).
RJ_DEVICE float rj_erf(float a) {
    const float t = rj_abs(a);
    const float s = a * a;
    float inner = -5.96761703e-4f;
    inner = rj_fma(inner, s, 4.99119423e-3f);
    inner = rj_fma(inner, s, -2.67681349e-2f);
    inner = rj_fma(inner, s, 1.12819925e-1f);
    inner = rj_fma(inner, s, -3.76125336e-1f);
    inner = rj_fma(inner, s, 1.28379166e-1f);
    inner = rj_fma(inner, a, a);
    // From 4 on the result rounds to 1; the polynomial is fitted up to there.
    const float u = t > 4.0f ? 4.0f : t;
    const float v = u * u;
    float outer = rj_fma(-1.72853470e-5f, u, 3.83197126e-4f);
    outer = rj_fma(outer, v, rj_fma(-3.88396438e-3f, u, 2.42546219e-2f));
    outer = rj_fma(outer, u, -1.06777877e-1f);
    outer = rj_fma(outer, u, -6.34846687e-1f);
    outer = rj_fma(outer, u, -1.28717512e-1f);
    outer = rj_fma(outer, u, -u);
    outer = rj_with_sign(1.0f - rj_exp(outer), a);
    return t > 0.927734375f ? outer : a != a ? a : inner;
}
