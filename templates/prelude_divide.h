// Division by what is known: a number that a whole row shares, or one of at least 1. An IEEE division tests for rare
// operands and calls a function for them, once per element in the text and in the registers it needs, and nothing is
// moved over the call. With the divisor known three multiplications do: quotient, remainder, correction (Markstein
// 1990). Needs rj_abs, rj_fma, rj_bits, rj_float and rj_reciprocal_fast of the vendor's half.

// ---- by a row's number --------------------------------------------------------------------------------------------
// A power of two brings the divisor to [1/2, 2) first, applied to the dividend before where it enlarges and to the
// quotient after where it shrinks, so that nothing is lost between. rj_div: correctly rounded for dividends of at least
// 2^-100, quotients and divisors that are no denormals, and all below 2^119; else within a unit in the last place.

// 1 / a by the instruction and a step of Newton's, which rounds once; zeros, infinities and NaN as IEEE has them.
RJ_DEVICE float rj_reciprocal(float a) {
    const float fast = rj_reciprocal_fast(a);
    const float off = rj_fma(-a, fast, 1.0f);
    return off == off ? rj_fma(fast, off, fast) : fast;
}

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
    divisor.reciprocal = rj_reciprocal(divisor.scaled);
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

// ---- by a number of at least 1 ------------------------------------------------------------------------------------
// As 1 + e^x is, the divisor of a logistic function. Through the reciprocal of a quarter of it, since that of 2^126 and
// more is a denormal, which the instruction may make zero. Several quotients by one number share it.
RJ_DEVICE float rj_reciprocal_of_one_up(float b) { return rj_reciprocal_fast(b * 0.25f) * 0.25f; }

// Correctly rounded but where the quotient is within 2^-20 of a unit of the middle of two numbers, or a denormal: there
// within a unit. Where dividend or divisor is infinite there is no remainder, and a zero keeps its sign.
RJ_DEVICE float rj_div_one_up(float a, float b) {
    const float reciprocal = rj_reciprocal_of_one_up(b);
    const float quotient = a * reciprocal;
    const float remainder = rj_fma(-b, quotient, a);
    return rj_abs(remainder) > 0.0f ? rj_fma(remainder, reciprocal, quotient) : quotient;
}

// Within 2^-21 of the quotient, or 2^-148: for what is rounded to bf16 or f16.
RJ_DEVICE float rj_div_narrow(float a, float b) { return a * rj_reciprocal_of_one_up(b); }
