// Weights beside 1 in a row's f32 sums, e^a of a at most 0, and the logarithm of a sum of such weights, which is
// multiplied by one of them: what is below 2^-126 of 1 is nothing (compiler/passes/precision). Needs rj_fma,
// rj_exp2_fast, rj_bits and rj_float of the vendor's half.

// The rounding of the product moves e^a by at most |a| e^a 2^-24, which is most where a is -1.
RJ_DEVICE float rj_exp_weight(float a) { return rj_exp2_fast(a * 1.44269504f); }

// Within 2^-24 or a unit in the last place: f + f^2 p(f) of 1 + f in [2/3, 4/3], p fitted to the least error (Lawson's
// iteration), whose sign alternates. NVIDIA's own logarithm to base 2 errs to one side, which a sum of 128256 columns
// shows: a Jensen-Shannon divergence of bf16 rows was 6 units off by it, where eager is by one (H200).
RJ_DEVICE float rj_log_weight(float a) {
    const unsigned bits = rj_bits(a);  // of 0 and denormals f is small, and the exponent finite
    const unsigned exponent = (bits - 0x3f2aaaabu) & 0xff800000u;
    const float f = rj_float(bits - exponent) - 1.0f;
    float p = -0.15918617f;
    p = rj_fma(p, f, 0.171943009f);
    p = rj_fma(p, f, -0.163074508f);
    p = rj_fma(p, f, 0.197843462f);
    p = rj_fma(p, f, -0.250143409f);
    p = rj_fma(p, f, 0.33338043f);
    p = rj_fma(p, f, -0.499998331f);
    // ln 2 in two parts: the first alone is 2 10^-9 more, at the 2^-17 of a vocabulary's weights a bias of 3 10^-8.
    const float powers = static_cast<float>(static_cast<int>(exponent));
    const float logarithm = rj_fma(powers, 8.2629583e-8f, rj_fma(p, f * f, rj_fma(powers, -2.27052475e-16f, f)));
    return bits < 0x7f800000u ? logarithm : rj_float(0x7fc00000u);  // neither negative nor NaN
}
