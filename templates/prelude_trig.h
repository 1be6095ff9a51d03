// Sine and cosine for every GPU: within 2 units in the last place for all of f32, so that rotary angles of long
// contexts are right. NVIDIA's own functions keep a table in local memory for large arguments; this one keeps none. And
// tanh, within a unit, or 1.3 by an exponential as inexact as NVIDIA's, whose own tanh errs by 2: in f32 more than what
// eager's error leaves room for. Needs rj_fma, rj_max, rj_abs, rj_either, rj_bits, rj_float and rj_reciprocal_fast of
// the vendor's half.

// Bits 32k … 32k+31 of 1 / (2 pi), most significant first.
RJ_DEVICE unsigned rj_inverse_two_pi(int k) {
    return k == 0   ? 0x28be60dbu
           : k == 1 ? 0x9391054au
           : k == 2 ? 0x7f09d5f4u
           : k == 3 ? 0x7d4d3770u
           : k == 4 ? 0x36d8a566u
           : k == 5 ? 0x4f10e410u
                    : 0u;
}

// Payne and Hanek: a = quadrant * pi / 2 + remainder for |a| >= 1, from the 96 bits of 2 / pi that matter.
RJ_DEVICE float rj_reduce_large(float a, int* quadrant) {
    const unsigned mantissa = (rj_bits(a) << 8) | 0x80000000u;
    const int exponent = static_cast<int>(rj_bits(a) >> 23 & 0xffu) - 126;
    const int word = exponent >> 5;
    const int shift = exponent & 31;
    unsigned high = word > 0 ? rj_inverse_two_pi(word - 1) : 0u;
    unsigned middle = rj_inverse_two_pi(word);
    unsigned low = rj_inverse_two_pi(word + 1);
    if (shift > 0) {
        high = high << shift | middle >> (32 - shift);
        middle = middle << shift | low >> (32 - shift);
        low = low << shift | rj_inverse_two_pi(word + 2) >> (32 - shift);
    }
    // The product as a 2.62 fixed-point count of quadrants; whole turns have fallen off its top.
    unsigned long long product = static_cast<unsigned long long>(mantissa) * low;
    product = static_cast<unsigned long long>(mantissa) * middle + (product >> 32);
    product += static_cast<unsigned long long>(mantissa * high) << 32;
    const unsigned long long rounded = product + 0x2000000000000000ull;
    const int turns = static_cast<int>(rounded >> 62);
    const long long rest = static_cast<long long>(product - (rounded & 0xc000000000000000ull));
    const bool negative = rj_bits(a) >> 31 != 0;
    *quadrant = negative ? -turns : turns;
    const float remainder = static_cast<float>(static_cast<double>(rest) * 3.4061215800304169e-19);  // pi / 2 * 2^-62
    return negative ? -remainder : remainder;
}

// a = quadrant * pi / 2 + remainder. Below 48039 the three parts of pi / 2 keep the remainder exact to 2^-26.
RJ_DEVICE float rj_reduce(float a, int* quadrant) {
    if (!(rj_abs(a) <= 48039.0f)) {
        if (a - a != 0.0f) {  // infinity and NaN
            *quadrant = 0;
            return a - a;
        }
        return rj_reduce_large(a, quadrant);
    }
    const float n = rj_fma(a, 0.636619747f, 12582912.0f) - 12582912.0f;
    *quadrant = static_cast<int>(n);
    float remainder = rj_fma(n, -1.57079601e+0f, a);
    remainder = rj_fma(n, -3.13916473e-7f, remainder);
    return rj_fma(n, -5.39030253e-15f, remainder);
}

// The sine of quadrant * pi / 2 + remainder, |remainder| <= pi / 4.
RJ_DEVICE float rj_sine_of(float remainder, int quadrant) {
    const float s = remainder * remainder;
    float sine = rj_fma(2.86567956e-6f, s, -1.98559923e-4f);
    sine = rj_fma(sine, s, 8.33338592e-3f);
    sine = rj_fma(sine, s, -1.66666672e-1f);
    sine = rj_either(s == 0.0f, remainder, rj_fma(sine, remainder * s, remainder));  // the sum would make -0 positive
    float cosine = rj_fma(2.44677067e-5f, s, -1.38877297e-3f);
    cosine = rj_fma(cosine, s, 4.16666567e-2f);
    cosine = rj_fma(cosine, s, -0.5f);
    cosine = rj_fma(cosine, s, 1.0f);
    const float magnitude = rj_either((quadrant & 1) != 0, cosine, sine);
    return rj_float(rj_bits(magnitude) ^ (static_cast<unsigned>(quadrant) & 2u) << 30);
}

RJ_DEVICE float rj_sin(float a) {
    int quadrant;
    const float remainder = rj_reduce(a, &quadrant);
    return rj_sine_of(remainder, quadrant);
}
RJ_DEVICE float rj_cos(float a) {
    int quadrant;
    const float remainder = rj_reduce(a, &quadrant);
    return rj_sine_of(remainder, quadrant + 1);
}

// tanh near zero, which is below rj_near_zero: odd, fitted to tanh(a) / a. Its last sum loses the sign of -0.
constexpr float rj_near_zero = 0.9f;
RJ_DEVICE float rj_tanh_near_zero(float a) {
    const float s = a * a;
    float inner = -4.53165970e-4f;
    inner = rj_fma(inner, s, 2.57618749e-3f);
    inner = rj_fma(inner, s, -8.25737305e-3f);
    inner = rj_fma(inner, s, 2.16596294e-2f);
    inner = rj_fma(inner, s, -5.39282188e-2f);
    inner = rj_fma(inner, s, 0.133329645f);
    inner = rj_fma(inner, s, -0.333333224f);
    return rj_float(rj_bits(rj_fma(inner * s, a, a)) | (rj_bits(a) & 0x80000000u));
}

// Beyond, 1 - 2 / (exp(2a) + 1). A GELU's 1 + tanh(a) cancels for negative a, which multiplies tanh's error. From 10 on
// the result rounds to 1.
RJ_DEVICE float rj_tanh(float a) {
    const float size = rj_abs(a);
    const float divisor = rj_exp(2.0f * (size > 10.0f ? 10.0f : size)) + 1.0f;
    const float fast = rj_reciprocal_fast(divisor);
    const float reciprocal = rj_fma(rj_fma(-divisor, fast, 1.0f), fast, fast);
    const float outer = rj_fma(-2.0f, reciprocal, 1.0f);
    const float magnitude = rj_either(size < rj_near_zero, rj_abs(rj_tanh_near_zero(a)), outer);
    return rj_float(rj_bits(magnitude) | (rj_bits(a) & 0x80000000u));
}

// A function of all lanes of a vector that is one thing near zero and another beyond, where logits that are softly
// capped seldom are: the second, with its exponential and its reciprocal, stands behind a branch.
template <float (*kNear)(float), float (*kBeyond)(float), int N>
RJ_DEVICE void rj_mostly_near_zero(float (&lanes)[N]) {
    float near[N];
    float greatest = 0.0f;
#pragma unroll
    for (int l = 0; l < N; ++l) {
        near[l] = kNear(lanes[l]);
        greatest = rj_max(greatest, rj_abs(lanes[l]));
    }
    if (!(greatest < rj_near_zero)) {
#pragma unroll
        for (int l = 0; l < N; ++l) near[l] = rj_abs(lanes[l]) < rj_near_zero ? near[l] : kBeyond(lanes[l]);
    }
#pragma unroll
    for (int l = 0; l < N; ++l) lanes[l] = near[l];
}
