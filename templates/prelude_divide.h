// Division by what several dividends share, and reciprocal roots without a branch.
//
// An IEEE division tests for rare operands and calls a function for them, once per element in the text and in the
// registers it needs, and what stands behind that branch waits for it: a hundred cycles, whatever else there is to
// compute. With the divisor known beforehand three multiplications do: quotient, remainder, correction (Markstein
// 1990). A power of two brings the divisor to [1/2, 2) first, and the dividend with it: an enlarged one stays below the
// quotient, a shrunk one below the dividend.
//
//   rj_div              correctly rounded for dividends and quotients of at least 2^-100, divisors that are no
//                       denormals, and all below 2^119; else within a unit in the last place
//   rj_rsqrt_straight   correctly rounded
//
// A divisor is prepared with a branch, or without one where a row's own numbers are what there is to compute.
// Needs rj_reciprocal_fast, rj_rsqrt_fast, rj_fma, rj_bits and rj_float of the vendor's half, and no contraction of
// products into sums.

struct rj_divisor {
    float scaled;      // its size
    float reciprocal;  // of that
    float scale;       // a power of two with the divisor's sign
};

RJ_DEVICE rj_divisor rj_scaled_divisor(float value) {
    const int size = static_cast<int>(rj_bits(value) & 0x7fffffffu);
    const int inverse = (size < 0x3f800000 ? 0x7e800000 : 0x7f000000) - (size & 0x7f800000);
    rj_divisor divisor;
    divisor.scale =
        rj_float((rj_bits(value) & 0x80000000u) | static_cast<unsigned>(inverse > 0x00400000 ? inverse : 0x00400000));
    divisor.scaled = value * divisor.scale;
    return divisor;
}

RJ_DEVICE rj_divisor rj_divisor_of(float value) {
    rj_divisor divisor = rj_scaled_divisor(value);
    divisor.reciprocal = rj_div(1.0f, divisor.scaled);
    return divisor;
}

// The fast reciprocal, off by a unit at most, is off by 2^-46 of itself when it is corrected; that of infinity or zero
// has no error.
RJ_DEVICE rj_divisor rj_divisor_straight(float value) {
    rj_divisor divisor = rj_scaled_divisor(value);
    const float fast = rj_reciprocal_fast(divisor.scaled);
    const float corrected = rj_fma(rj_fma(-divisor.scaled, fast, 1.0f), fast, fast);
    divisor.reciprocal = corrected == corrected ? corrected : fast;
    return divisor;
}

// What is left of infinity, or of a quotient that is one, is no number; of a zero it is of a sign that leaves the
// zero's.
RJ_DEVICE float rj_div(float dividend, const rj_divisor& divisor) {
    const float scaled = dividend * divisor.scale;
    const float quotient = scaled * divisor.reciprocal;
    const float excess = rj_fma(divisor.scaled, quotient, -scaled);
    const float corrected = rj_fma(-excess, divisor.reciprocal, quotient);
    return corrected == corrected ? corrected : quotient;
}

// Within 2^-22 of the quotient, or two units of denormals: for what is rounded to bf16 or f16, a third of the
// arithmetic.
RJ_DEVICE float rj_div_narrow(float dividend, const rj_divisor& divisor) {
    return dividend * divisor.scale * divisor.reciprocal;
}

// From the fast reciprocal root, which is within two units and takes denormals for zero, by one step of Newton's: what
// 1 - a root^2 leaves is taken with the product's own rounding error, so the last rounding is the only one that counts.
RJ_DEVICE float rj_rsqrt_straight(float a) {
    const bool tiny = a < 1.26217745e-29f;  // 2^-96
    const float scaled = tiny ? a * 4294967296.0f : a;
    const float root = rj_rsqrt_fast(scaled);
    const float product = scaled * root;
    const float rest = rj_fma(rj_fma(scaled, root, -product), -root, rj_fma(-product, root, 1.0f));
    const float refined = rj_fma(0.5f * root, rest, root);
    const float rounded = tiny ? refined * 65536.0f : refined;
    return rounded == rounded ? rounded : root;
}
