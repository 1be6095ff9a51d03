// The prelude's elementary functions, compiled for the host and swept over f32 against double. A GPU computes the same
// bits: they are made of operations that IEEE 754 defines, and of nothing else.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include "base/dtype.h"

// What the vendor's half of the prelude would supply.
#define RJ_DEVICE inline

namespace {

RJ_DEVICE unsigned rj_bits(float value) {
    unsigned bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
RJ_DEVICE float rj_float(unsigned bits) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
RJ_DEVICE float rj_fma(float a, float b, float c) { return std::fma(a, b, c); }
RJ_DEVICE float rj_abs(float a) { return std::fabs(a); }
RJ_DEVICE float rj_div(float a, float b) { return a / b; }
RJ_DEVICE float rj_either(bool condition, float a, float b) { return condition ? a : b; }
// As bad as AMD's may be: one unit off, either way, and zero for denormals.
RJ_DEVICE float rj_sqrt_fast(float a) {
    if (a < 0x1p-126F) return a >= 0 ? 0 : std::sqrt(a);
    const float root = std::sqrt(a);
    return std::isinf(root) || rj_bits(a) % 3 == 0 ? root : rj_float(rj_bits(root) + rj_bits(a) % 3 * 2 - 3);
}
// As bad as AMD's may be: two units off, either way, and infinite for denormals.
RJ_DEVICE float rj_rsqrt_fast(float a) {
    const float root = 1 / std::sqrt(std::fabs(a) < 0x1p-126F ? 0 * a : a);
    if (!std::isfinite(root) || root == 0) return root;
    return rj_float(rj_bits(root) + rj_bits(a) % 5 - 2);
}

RJ_DEVICE float rj_max(float a, float b) { return a != a || b != b ? a + b : std::fmax(a, b); }
RJ_DEVICE float rj_min(float a, float b) { return a != a || b != b ? a + b : std::fmin(a, b); }
// As bad as NVIDIA's may be: two units off, either way, and zero for denormals.
RJ_DEVICE float rj_exp2_fast(float a) {
    const float power = std::exp2(a);
    return power < 0x1p-126F || std::isinf(power) ? (power < 1 ? 0 : power)
                                                  : rj_float(rj_bits(power) + rj_bits(a) % 5 - 2);
}

constexpr float rj_exp2_bias = 0;  // to either side as often

// Likewise, by a unit.
RJ_DEVICE float rj_reciprocal_fast(float a) {
    const float reciprocal = 1 / a;
    if (!std::isfinite(reciprocal) || std::fabs(reciprocal) < 0x1p-126F)
        return std::isfinite(reciprocal) ? std::copysign(0.0F, a) : reciprocal;
    return rj_float(rj_bits(reciprocal) + rj_bits(a) % 3 - 1);
}

// Within 2^-22 from 1/2 to 2, elsewhere within that part of it; infinite for denormals.
RJ_DEVICE float rj_log2_fast(float a) {
    const float logarithm = std::log2(std::fabs(a) < 0x1p-126F ? 0 * a : a);
    if (a > 0.5F && a < 2) return std::trunc(logarithm * 0x1p22F) * 0x1p-22F;
    return std::isfinite(logarithm) ? rj_float(rj_bits(logarithm) + rj_bits(a) % 5 - 2) : logarithm;
}

// clang-format off: in their order
#include "templates/prelude_exp.h"
#include "templates/prelude_math.h"
#include "templates/prelude_trig.h"
#include "templates/prelude_narrow.h"
#include "templates/prelude_weights.h"
#include "templates/prelude_divide.h"
// clang-format on

constexpr double kUlps = 2;
constexpr std::uint64_t kStep = 4099;  // of the bit patterns: a million values, of every exponent and both signs

double ulp_of(double value) {
    const float size = std::min(std::fabs(static_cast<float>(value)), 3.4e38F);
    return static_cast<double>(std::nextafterf(size, std::numeric_limits<float>::infinity())) - size;
}

std::string mismatch(float x, float got, double want) {
    char text[128];
    std::snprintf(text, sizeof text, "at %a: %a, not %a", x, got, want);
    return text;
}

void sweep(float (*function)(float), double (*reference)(double), double ulps = kUlps) {
    for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += kStep) {
        const float x = rj_float(static_cast<unsigned>(bits));
        const float got = function(x);
        const double want = reference(x);
        if (std::isnan(want)) {
            REQUIRE_MESSAGE(std::isnan(got), mismatch(x, got, want));
        } else if (std::isinf(static_cast<float>(want))) {
            REQUIRE_MESSAGE(got == static_cast<float>(want), mismatch(x, got, want));
        } else {
            REQUIRE_MESSAGE(std::fabs(got - want) <= ulps * ulp_of(want), mismatch(x, got, want));
        }
    }
}

}  // namespace

TEST_CASE("the prelude's exp is within 2 ulp") { sweep(rj_exp, std::exp); }
TEST_CASE("the prelude's exp of what is stored is within 0.9 ulp") { sweep(rj_exp_stored, std::exp, 0.9); }
TEST_CASE("the prelude's log is within 2 ulp") { sweep(rj_log, std::log); }
TEST_CASE("the prelude's log1p is within 2 ulp") { sweep(rj_log1p, std::log1p); }
TEST_CASE("the prelude's tanh is within 1 ulp") { sweep(rj_tanh, std::tanh, 1); }
TEST_CASE("of a vector's lanes the prelude has each tanh as alone, whether all are near zero, some or none") {
    const float infinity = std::numeric_limits<float>::infinity();
    const auto check = [](const float(&of)[4]) {
        float exact[4];
        float slopes[4];
        for (int l = 0; l < 4; ++l) exact[l] = slopes[l] = of[l];
        rj_mostly_near_zero<rj_tanh_near_zero, rj_tanh>(exact);
        rj_mostly_near_zero<rj_tanh_slope_near_zero, rj_tanh_slope_narrow>(slopes);
        for (int l = 0; l < 4; ++l) {
            const double tanh = std::tanh(static_cast<double>(of[l]));
            if (std::isnan(of[l])) {
                CHECK((std::isnan(exact[l]) && std::isnan(slopes[l])));
                continue;
            }
            CHECK_MESSAGE(rj_bits(exact[l]) == rj_bits(rj_tanh(of[l])), mismatch(of[l], exact[l], tanh));
            const double slope = 1 / std::pow(std::cosh(static_cast<double>(of[l])), 2);
            CHECK_MESSAGE(std::fabs(slopes[l] - slope) <= 0x1p-17 * slope + 0x1p-124,
                          mismatch(of[l], slopes[l], slope));
        }
    };
    check({0.25F, -0.875F, 0, -0.0F});
    check({-0.25F, 0.9F, 1e-30F, -0.89999998F});
    check({3, -20, infinity, -infinity});
    check({0.5F, std::nanf(""), -0.125F, 8});
    for (std::uint64_t bits = 0x3a800000; bits <= 0x41200000; bits += kStep / 16) {
        const float x = rj_float(static_cast<unsigned>(bits));
        check({x, -0.0F, 0.1F, -x});
    }
}
TEST_CASE("the prelude's log1p of a fraction is within 1.2 ulp") {
    for (std::uint64_t bits = 0; bits <= 0x3f800000U; bits += kStep / 16) {
        const float x = rj_float(static_cast<unsigned>(bits));
        const double want = std::log1p(static_cast<double>(x));
        const float got = rj_log1p_of_fraction(x);
        REQUIRE_MESSAGE(std::fabs(got - want) <= 1.2 * ulp_of(want), mismatch(x, got, want));
    }
    CHECK(rj_log1p_of_fraction(1) == std::log(2.0F));
    CHECK(std::isnan(rj_log1p_of_fraction(std::nanf(""))));
}
TEST_CASE("the prelude's erf is within 2 ulp") { sweep(rj_erf, std::erf); }
TEST_CASE("1 and the prelude's narrow erf are within 2^-20, and nearer below 0 than a rounding of the sum shows") {
    for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += kStep) {
        const float x = rj_float(static_cast<unsigned>(bits));
        const float got = 1.0F + rj_erf_narrow(x);
        if (std::isnan(x)) {
            REQUIRE(std::isnan(got));
            continue;
        }
        const double want = std::erfc(-static_cast<double>(x));
        const double allowed = std::min(0x1p-20, 0x1p-14 * want + 0x1p-24);
        REQUIRE_MESSAGE(std::fabs(got - want) <= allowed, mismatch(x, got, want));
    }
}
TEST_CASE("the prelude's logarithm of weights is within 2^-24 or a unit") {
    for (std::uint64_t bits = 0x00800000; bits <= 0x40000000; bits += kStep) {
        const float x = rj_float(static_cast<unsigned>(bits));
        const double want = std::log(static_cast<double>(x));
        const double error = rj_log_weight(x) - want;
        REQUIRE_MESSAGE(std::fabs(error) <= 0x1p-24 + std::fabs(want) * 0x1p-23, mismatch(x, rj_log_weight(x), want));
    }
    CHECK(std::isfinite(rj_log_weight(0)));
    CHECK(std::isnan(rj_log_weight(-1)));
    CHECK(std::isnan(rj_log_weight(std::nanf(""))));
}
TEST_CASE("the prelude's logarithm of a weight's share errs to neither side of what the weight came out as") {
    // Of the weights of a vocabulary's words, whose divergence is about 0.2, and mixtures of half to twice as much.
    double total = 0;
    double mixture = 0.5;
    int count = 0;
    for (float a = -12; a < -2; a += 0x1.2p-14F, ++count) {
        const double weight = std::exp2(static_cast<double>(a * 1.44269504F));
        const float mixed = static_cast<float>(weight * mixture);
        total += rj_log_share(a, rj_log_weight(mixed)) - std::log(weight / static_cast<double>(mixed));
        mixture = mixture > 2 ? 0.5 : mixture + 0x1.9e377p-1 * 0.01;
    }
    const double mean = total / count;
    CHECK_MESSAGE(std::fabs(mean) < 0x1p-28, mean);
    CHECK(rj_log_share(-std::numeric_limits<float>::infinity(), -1) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("the prelude's exponential and logarithm of what is bounded err to neither side near 1") {
    for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += kStep) {
        const float x = rj_float(static_cast<unsigned>(bits));
        if (std::isnan(x)) REQUIRE((std::isnan(rj_exp_bounded(x)) && std::isnan(rj_log_bounded(x))));
        const double exponential = std::exp(static_cast<double>(x));
        if (std::fabs(x) <= 87)
            REQUIRE_MESSAGE(std::fabs(rj_exp_bounded(x) - exponential) <= 0.9 * ulp_of(exponential),
                            mismatch(x, rj_exp_bounded(x), exponential));
        const double logarithm = std::log(static_cast<double>(x));
        if (std::isnormal(x) && x > 0)
            REQUIRE_MESSAGE(std::fabs(rj_log_bounded(x) - logarithm) <= ulp_of(logarithm),
                            mismatch(x, rj_log_bounded(x), logarithm));
    }
    CHECK(std::isnan(rj_log_bounded(-1)));
    double exponentials = 0;
    double logarithms = 0;
    int count = 0;
    for (float d = -0.5; d < 0.5; d += 0x1.2p-18F, ++count) {
        const double weight = std::exp(static_cast<double>(d));
        exponentials += (rj_exp_bounded(d) - weight) / weight;
        const float mixture = rj_fma(0.5F, static_cast<float>(weight), 0.5F);
        logarithms += rj_log_bounded(mixture) - std::log(static_cast<double>(mixture));
    }
    CHECK_MESSAGE(std::fabs(exponentials) < 0x1p-31 * count, exponentials);
    CHECK_MESSAGE(std::fabs(logarithms) < 0x1p-31 * count, logarithms);
}

TEST_CASE("the prelude's narrow tanh is within 2^-21.5, and of itself within 2^-17.5") {
    for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += kStep) {
        const float x = rj_float(static_cast<unsigned>(bits));
        const float got = rj_tanh_narrow(x);
        if (std::isnan(x)) {
            REQUIRE(std::isnan(got));
            continue;
        }
        const double want = std::tanh(static_cast<double>(x));
        const double allowed = std::min(std::exp2(-21.5), std::exp2(-17.5) * std::fabs(want));
        REQUIRE_MESSAGE(std::fabs(got - want) <= allowed, mismatch(x, got, want));
    }
    CHECK(rj_tanh_narrow(std::numeric_limits<float>::infinity()) == 1);
    CHECK(std::signbit(rj_tanh_narrow(-0.0F)));
}

TEST_CASE("of every bf16 and f16 the narrow tanh, rounded, is the nearest or as near as a hundredth of a unit") {
    for (const rowjit::Dtype dtype : {rowjit::Dtype::kBf16, rowjit::Dtype::kF16}) {
        for (unsigned bits = 0; bits <= 0xffffU; ++bits) {
            const auto element = static_cast<std::uint16_t>(bits);
            const double x = rowjit::load_element(dtype, &element);
            if (std::isnan(x)) continue;
            const double want = std::tanh(x);
            std::uint16_t rounded = 0;
            rowjit::store_element(dtype, &rounded, rj_tanh_narrow(static_cast<float>(x)));
            const double off = std::fabs(rowjit::load_element(dtype, &rounded) - want);
            REQUIRE_MESSAGE(off <= 0.51 * rowjit::ulp(dtype, want), mismatch(static_cast<float>(x), off, want));
        }
    }
}
TEST_CASE("the prelude's narrow 1 - tanh^2 and 1 + tanh are within 2^-17.5 of themselves, where tanh is near 1 too") {
    for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += kStep) {
        const float x = rj_float(static_cast<unsigned>(bits));
        const float got = rj_tanh_slope_narrow(x);
        const float above = rj_tanh_plus_one_narrow(x);
        if (std::isnan(x)) {
            REQUIRE(std::isnan(got));
            REQUIRE(std::isnan(above));
            continue;
        }
        const double one = 2 / (1 + std::exp(-2 * static_cast<double>(x)));
        REQUIRE_MESSAGE(std::fabs(above - one) <= std::max(std::exp2(-17.5) * one, 0x1p-124), mismatch(x, above, one));
        const double root = 1 / std::cosh(static_cast<double>(x));
        const double want = root * root;
        REQUIRE_MESSAGE(std::fabs(got - want) <= std::max(std::exp2(-17.5) * want, 0x1p-124), mismatch(x, got, want));
    }
}
TEST_CASE("the prelude's narrow logarithms and roots are within a part of themselves, of denormals too") {
    const auto check = [](float (*function)(float), double (*reference)(double), double part) {
        for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += kStep) {
            const float x = rj_float(static_cast<unsigned>(bits));
            const float got = function(x);
            const double want = reference(x);
            if (std::isnan(want)) {
                REQUIRE_MESSAGE(std::isnan(got), mismatch(x, got, want));
            } else if (std::isinf(want) || want == 0) {
                REQUIRE_MESSAGE((got == want && std::signbit(got) == std::signbit(want)), mismatch(x, got, want));
            } else {
                REQUIRE_MESSAGE(std::fabs(got - want) <= std::max(part * std::fabs(want), 0x1p-149),
                                mismatch(x, got, want));
            }
        }
    };
    check(rj_log_narrow, std::log, std::exp2(-17.5));
    check(rj_log1p_narrow, std::log1p, std::exp2(-17.5));
    check(rj_sqrt_narrow, std::sqrt, 0x1p-20);
    check(rj_rsqrt_narrow, [](double a) { return 1 / std::sqrt(a); }, 0x1p-20);
    for (float x = 0.875F; x < 1.125F; x = std::nextafter(x, 2.0F)) {
        const double want = std::log(static_cast<double>(x));
        REQUIRE_MESSAGE(std::fabs(rj_log_narrow(x) - want) <= std::exp2(-17.5) * std::fabs(want),
                        mismatch(x, rj_log_narrow(x), want));
    }
}
TEST_CASE("the prelude's narrow quotient of any two is within 2^-20 of it, and special values are IEEE's") {
    std::uint32_t state = 1;
    const auto next = [&] { return rj_float(state = state * 1664525U + 1013904223U); };
    const auto check = [](float a, float b) {
        const float want = a / b;
        const float got = rj_quotient_narrow(a, b);
        if (std::isnan(want)) {
            REQUIRE(std::isnan(got));
        } else if (std::isinf(want) || want == 0 || std::isinf(got)) {
            const bool overflows = std::isinf(got) && std::fabs(want) >= 0x1.ffffep127F;
            REQUIRE_MESSAGE((rj_bits(got) == rj_bits(want) || overflows), a << " / " << b << " is not " << got);
        } else {
            const double most = std::max(std::fabs(static_cast<double>(want)) * 0x1p-20, 0x1p-148);
            REQUIRE_MESSAGE(std::fabs(static_cast<double>(got) - want) <= most, a << " / " << b << " is not " << got);
        }
    };
    for (int i = 0; i < 2000000; ++i) {
        const float a = next();
        check(a, next());
    }
    const float infinity = std::numeric_limits<float>::infinity();
    const float values[] = {0.0F, -0.0F, 1.0F, -3.0F, 1e-40F, -1e-44F, 3e38F, infinity, -infinity, std::nanf("")};
    for (const float a : values) {
        for (const float b : values) check(a, b);
    }
}
TEST_CASE("the prelude's sin is within 2 ulp, large arguments included") { sweep(rj_sin, std::sin); }
TEST_CASE("the prelude's cos is within 2 ulp, large arguments included") { sweep(rj_cos, std::cos); }

TEST_CASE("the prelude's sqrt is correctly rounded whatever the instruction below it does within an ulp") {
    for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += kStep) {
        const float x = rj_float(static_cast<unsigned>(bits));
        const float want = std::sqrt(x);
        REQUIRE_MESSAGE((std::isnan(want) ? std::isnan(rj_sqrt(x)) : rj_sqrt(x) == want),
                        mismatch(x, rj_sqrt(x), want));
    }
}

TEST_CASE("the prelude's rsqrt is rounded once whatever the instruction below it does within two ulp") {
    for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += kStep) {
        const float x = rj_float(static_cast<unsigned>(bits));
        const double want = 1 / std::sqrt(static_cast<double>(x));
        const float got = rj_rsqrt_straight(x);
        const bool special = std::isnan(want) || std::isinf(want) || want == 0;
        const bool same = std::isnan(want) ? std::isnan(got) : got == want;
        const bool close = std::fabs(got - want) <= 0.501 * ulp_of(want);
        REQUIRE_MESSAGE((special ? same : close), mismatch(x, got, want));
    }
}

TEST_CASE("the prelude's bf16 rounding is the host's") {
    for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += kStep) {
        const float x = rj_float(static_cast<unsigned>(bits));
        const unsigned want = rowjit::f32_to_bf16(x);
        const unsigned packed = rj_pack_bf16(x, -x);
        if (std::isnan(x)) {
            REQUIRE(std::isnan(rj_float(packed << 16)));
            REQUIRE(std::isnan(rj_float(packed & 0xffff0000U)));
        } else {
            REQUIRE_MESSAGE(packed == (want | (want ^ 0x8000U) << 16), mismatch(x, rj_float(packed << 16), x));
        }
    }
}

TEST_CASE("special values of the prelude's functions") {
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(rj_exp(-infinity) == 0);
    CHECK(rj_exp(infinity) == infinity);
    CHECK(rj_log(0.0F) == -infinity);
    CHECK(rj_log(infinity) == infinity);
    CHECK(std::isnan(rj_log(-1.0F)));
    CHECK(rj_log1p(-1.0F) == -infinity);
    CHECK(rj_tanh(-infinity) == -1);
    CHECK(rj_erf(infinity) == 1);
    CHECK(std::isnan(rj_sin(infinity)));
    CHECK(std::signbit(rj_tanh(-0.0F)));
    CHECK(std::signbit(rj_sin(-0.0F)));
    CHECK(std::signbit(rj_log1p(-0.0F)));
    CHECK(rj_cos(0.0F) == 1);
}

TEST_CASE(
    "division by a row's divisor is IEEE division in its range, within an ulp near the middle of two and elsewhere, "
    "narrow within two") {
    std::uint32_t state = 1;
    int unlike = 0;
    const auto next = [&] { return rj_float(state = state * 1664525U + 1013904223U); };
    for (int i = 0; i < 2000000; ++i) {
        const float a = next();
        const float b = next();
        const float want = a / b;
        const float got = rj_div(a, rj_divisor_of(b));
        if (std::isnan(want)) {
            REQUIRE(std::isnan(got));
            continue;
        }
        const auto above = [](float x, double limit) { return std::fabs(static_cast<double>(x)) >= limit; };
        const bool exact = above(a, 0x1p-100) && above(b, 0x1p-126) && above(want, 0x1p-100) && !above(a, 0x1p119) &&
                           !above(b, 0x1p119) && !above(want, 0x1p119);
        const std::int64_t apart = std::int64_t{rj_bits(got)} - std::int64_t{rj_bits(want)};
        REQUIRE_MESSAGE(std::abs(apart) <= 1, a << " / " << b << " = " << want << ", not " << got);
        unlike += exact && apart != 0;
        const float narrow = rj_div_narrow(a, rj_divisor_of(b));
        const std::int64_t off = std::int64_t{rj_bits(narrow)} - std::int64_t{rj_bits(want)};
        REQUIRE_MESSAGE(std::abs(off) <= 2, a << " / " << b << " = " << want << ", narrow " << narrow);
    }
    CHECK(unlike <= 2);
}

TEST_CASE("division by a row's divisor is exact where the quotient is a number, and of few bits by few") {
    std::uint32_t state = 1;
    const auto next = [&] { return state = state * 1664525U + 1013904223U; };
    for (int i = 0; i < 1000000; ++i) {
        const float a = rj_float(0x3f800000U + (next() >> 20 << 12));  // 12 bits, as the divisor: 24 of the product
        const float b = rj_float(0x3f800000U + (next() >> 20 << 12));
        REQUIRE(rj_div(a * b, rj_divisor_of(b)) == a);
        const float narrow = rj_float(0x3f800000U + (next() >> 25 << 16));
        REQUIRE(rj_div(narrow, rj_divisor_of(b)) == narrow / b);
    }
}

TEST_CASE(
    "division by at least 1 is IEEE division, within an ulp near the middle of two and of denormals, narrow two") {
    std::uint32_t state = 1;
    const auto next = [&] { return rj_float(state = state * 1664525U + 1013904223U); };
    int apart = 0;
    for (int i = 0; i < 2000000; ++i) {
        const float a = next();
        const float b = rj_float((rj_bits(next()) & 0x3fffffffU) + 0x3f800000U);  // 1 and all above
        const float want = a / b;
        const float got = rj_div_one_up(a, b);
        const float narrow = rj_div_narrow(a, b);
        if (std::isnan(want)) {
            REQUIRE((std::isnan(got) && std::isnan(narrow)));
            continue;
        }
        const std::int64_t off = std::abs(std::int64_t{rj_bits(got)} - std::int64_t{rj_bits(want)});
        REQUIRE_MESSAGE(off <= 1, a << " / " << b << " = " << want << ", not " << got);
        if (std::fabs(want) >= 0x1p-100F) apart += off != 0;
        const double most = std::max(std::fabs(static_cast<double>(want)) * 0x1p-21, 0x1p-148);
        if (!std::isinf(want))
            REQUIRE_MESSAGE(std::fabs(double{narrow} - want) <= most,
                            a << " / " << b << " = " << want << ", " << narrow);
    }
    CHECK(apart <= 4);
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float a : {0.0F, -0.0F, 1.0F, -3e38F, 1e-40F, infinity, -infinity}) {
        for (const float b : {1.0F, 3.0F, 3e38F, infinity}) {
            const float want = a / b;
            for (const float got : {rj_div_one_up(a, b), rj_div_narrow(a, b)}) {
                if (std::isnan(want)) {
                    CHECK(std::isnan(got));
                } else if (std::isinf(want) || want == 0) {
                    CHECK(rj_bits(got) == rj_bits(want));
                }
            }
        }
    }
}

TEST_CASE("division by a row's divisor of zero, infinity or NaN gives what IEEE division does") {
    const float infinity = std::numeric_limits<float>::infinity();
    const float values[] = {0.0F, -0.0F, 1.0F, -3.0F, 1e-40F, 3e38F, infinity, -infinity, std::nanf("")};
    for (const float a : values) {
        for (const float b : {0.0F, -0.0F, infinity, -infinity, std::nanf("")}) {
            const float want = a / b;
            const float got = rj_div(a, rj_divisor_of(b));
            CHECK((std::isnan(want) ? std::isnan(got) : rj_bits(got) == rj_bits(want)));
            const float narrow = rj_div_narrow(a, rj_divisor_of(b));
            CHECK((std::isnan(want) ? std::isnan(narrow) : rj_bits(narrow) == rj_bits(want)));
        }
    }
}
