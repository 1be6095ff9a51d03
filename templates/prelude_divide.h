// Division by what is known: a number that several dividends share, or one of at least 1, and reciprocal roots. An IEEE
// division tests for rare operands and calls a function for them, once per element in the text and in the registers it
// needs, and nothing is moved over the call: what stands behind it waits a hundred cycles, whatever else there is to
// compute. Needs rj_abs, rj_fma, rj_bits, rj_float, rj_reciprocal_fast and rj_rsqrt_fast of the vendor's half, and no
// contraction of products into sums.

// ---- by a row's number --------------------------------------------------------------------------------------------
// Through its reciprocal as the sum of two numbers (Brisebarre, Muller and Raina, IEEE Transactions on Computers 2004):
// three instructions, where quotient, remainder, correction and the infinities that have no remainder are six. A power
// of two brings the divisor to [1/2, 2) first, and the dividend with it: an enlarged one stays below the quotient, a
// shrunk one below the dividend.

struct rj_divisor {
    float scale;       // a power of two with the divisor's sign
    float reciprocal;  // of the divisor times that, rounded once
    float below;       // the same, but surely less
    float rest;        // which that leaves of it: above 0, so that infinity times both is infinity
};

RJ_DEVICE rj_divisor rj_divisor_of(float value) {
    const int size = static_cast<int>(rj_bits(value) & 0x7fffffffu);
    const int inverse = (size < 0x3f800000 ? 0x7e800000 : 0x7f000000) - (size & 0x7f800000);
    rj_divisor divisor;
    divisor.scale =
        rj_float((rj_bits(value) & 0x80000000u) | static_cast<unsigned>(inverse > 0x00400000 ? inverse : 0x00400000));
    const float scaled = value * divisor.scale;
    const float fast = rj_reciprocal_fast(scaled);
    const float fast_off = rj_fma(-scaled, fast, 1.0f);  // NaN of a divisor of 0 or infinity, as IEEE has those
    divisor.reciprocal = fast_off == fast_off ? rj_fma(fast, fast_off, fast) : fast;
    divisor.below = fast > 0.0f ? rj_float(rj_bits(fast) - 2u) : fast;
    const float off = rj_fma(-scaled, divisor.below, 1.0f);
    const float rest = divisor.below * off;
    divisor.rest = fast > 0.0f ? rj_fma(rest, off, rest) : fast;
    return divisor;
}

// Of dividends and quotients of at least 2^-100, divisors that are no denormals, and all below 2^119: correctly rounded
// but where the quotient is within 2^-20 of a unit of the middle of two numbers, as 11 in 200 million are. There and of
// others within a unit.
RJ_DEVICE float rj_div(float dividend, const rj_divisor& divisor) {
    const float scaled = dividend * divisor.scale;
    return rj_fma(scaled, divisor.below, scaled * divisor.rest);
}

// Within 2^-22 of the quotient, or two units of denormals: for what is rounded to bf16 or f16, two thirds of the
// arithmetic.
RJ_DEVICE float rj_div_narrow(float dividend, const rj_divisor& divisor) {
    return dividend * divisor.scale * divisor.reciprocal;
}

// ---- by a number of at least 1 ------------------------------------------------------------------------------------
// As 1 + e^x is, the divisor of a logistic function. Through the reciprocal of a quarter of it, since that of 2^126 and
// more is a denormal, which the instruction may make zero. Several quotients by one number share it.
RJ_DEVICE float rj_reciprocal_of_one_up(float b) { return rj_reciprocal_fast(b * 0.25f) * 0.25f; }

// Correctly rounded but where the quotient is within 2^-20 of a unit of the middle of two numbers, or a denormal: there
// within a unit. Where dividend or divisor is infinite there is no remainder, and a zero keeps its sign.
RJ_DEVICE float rj_div_one_up(float a, float b, float reciprocal) {
    const float quotient = a * reciprocal;
    const float remainder = rj_fma(-b, quotient, a);
    return rj_abs(remainder) > 0.0f ? rj_fma(remainder, reciprocal, quotient) : quotient;
}
RJ_DEVICE float rj_div_one_up(float a, float b) { return rj_div_one_up(a, b, rj_reciprocal_of_one_up(b)); }

// Within 2^-21 of the quotient, or 2^-148: for what is rounded to bf16 or f16.
RJ_DEVICE float rj_div_narrow(float a, float b) { return a * rj_reciprocal_of_one_up(b); }

// Such a number with its reciprocal, for several quotients: the compiler does not see that theirs is the same.
struct rj_one_up {
    float number;
    float reciprocal;
};
RJ_DEVICE rj_one_up rj_one_up_of(float b) { return {b, rj_reciprocal_of_one_up(b)}; }
RJ_DEVICE float rj_div(float a, const rj_one_up& b) { return rj_div_one_up(a, b.number, b.reciprocal); }
RJ_DEVICE float rj_div_narrow(float a, const rj_one_up& b) { return a * b.reciprocal; }

// ---- reciprocal roots ---------------------------------------------------------------------------------------------
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
