// Division by what a whole row shares. An IEEE division tests for rare operands and calls a function for them, once per
// element in the text and in the registers it needs. With the divisor known beforehand three multiplications do:
// quotient, remainder, correction (Markstein 1990). A power of two brings the divisor to [1/2, 2) first, applied to the
// dividend before where it enlarges and to the quotient after where it shrinks, so that nothing is lost between.
// rj_div: correctly rounded for dividends of at least 2^-100, quotients and divisors that are no denormals, and all
// below 2^119; else within a unit in the last place.

struct rj_divisor {
    float scaled;
    float reciprocal;
    float before;
    float after;
    unsigned span;  // of the dividends that are corrected; none where the divisor is no normal number
};

RJ_DEVICE rj_divisor rj_divisor_of(float value) {
    const unsigned exponent = rj_bits(value) >> 23 & 0xffu;
    const bool finite = exponent < 255u && value != 0.0f;
    rj_divisor divisor;
    divisor.before = !finite || exponent >= 127u ? 1.0f : rj_float((exponent == 0u ? 252u : 253u - exponent) << 23);
    divisor.after = !finite || exponent < 127u ? 1.0f
                    : exponent == 254u         ? rj_float(0x00400000u)
                                               : rj_float((254u - exponent) << 23);
    divisor.scaled = value * divisor.before * divisor.after;
    divisor.reciprocal = rj_div(1.0f, divisor.scaled);
    divisor.span = finite && exponent > 0u ? 220u << 23 : 0u;
    return divisor;
}

RJ_DEVICE float rj_div(float dividend, const rj_divisor& divisor) {
    const float scaled = dividend * divisor.before;
    const float quotient = scaled * divisor.reciprocal;
    const float remainder = rj_fma(-divisor.scaled, quotient, scaled);
    const float corrected = rj_fma(remainder, divisor.reciprocal, quotient);
    const bool ordinary = (rj_bits(scaled) & 0x7fffffffu) - (27u << 23) < divisor.span;
    return (ordinary ? corrected : quotient) * divisor.after;
}

// Within 2^-22 of the quotient, or two units of denormals: for what is rounded to bf16 or f16, a fifth of the
// arithmetic. Of the two powers of two one is 1.
RJ_DEVICE float rj_div_narrow(float dividend, const rj_divisor& divisor) {
    const bool enlarges = divisor.after == 1.0f;
    const float first = enlarges ? divisor.before : divisor.reciprocal;
    return dividend * first * (enlarges ? divisor.reciprocal : divisor.after);
}
