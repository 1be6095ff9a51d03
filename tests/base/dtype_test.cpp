#include "base/dtype.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "rowjit/error.h"

using namespace rowjit;

namespace {

bool is_same(double a, double b) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

}  // namespace

TEST_CASE("every f16 and bf16 pattern survives a round trip through f32") {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto pattern = static_cast<std::uint16_t>(bits);
        const float half = f16_to_f32(pattern);
        if (!std::isnan(half)) CHECK(f32_to_f16(half) == pattern);
        const float brain = bf16_to_f32(pattern);
        if (!std::isnan(brain)) CHECK(f32_to_bf16(brain) == pattern);
    }
}

TEST_CASE("rounding to a narrow type goes to even, overflows to infinity and keeps NaN") {
    CHECK(round_to(bf16, 1.0 + 0x1p-8) == 1.0);           // halfway, down to even
    CHECK(round_to(bf16, 1.0 + 0x3p-8) == 1.0 + 0x1p-6);  // halfway, up to even
    CHECK(round_to(f16, 65519.0) == 65504.0);
    CHECK(std::isinf(round_to(f16, 65520.0)));
    CHECK(round_to(f16, 0x1p-25) == 0.0);  // halfway below the least subnormal
    CHECK(round_to(f16, 0x1.8p-25) == 0x1p-24);
    CHECK(std::isnan(round_to(bf16, std::nan(""))));
    CHECK(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7F800001U)))));
}

TEST_CASE("rounding in double and rounding the f32 bits agree for bf16") {
    for (std::uint32_t i = 0; i < 1U << 16; ++i) {
        const auto value = std::bit_cast<float>(i * 65521U);
        if (!std::isfinite(value)) continue;
        CHECK(static_cast<float>(round_to(bf16, value)) == bf16_to_f32(f32_to_bf16(value)));
    }
}

TEST_CASE("f16 is what its bits say, and rounding to it agrees with rounding in double") {
    for (std::uint32_t bits = 0; bits < 0x8000; ++bits) {
        const auto pattern = static_cast<std::uint16_t>(bits);
        const int exponent = static_cast<int>(bits >> 10);
        const int mantissa = static_cast<int>(bits & 0x3FF);
        double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa | 0x400, exponent - 25);
        if (exponent == 31) value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
        CHECK(is_same(f16_to_f32(pattern), value));
        CHECK(is_same(f16_to_f32(pattern | 0x8000U), -value));
    }
    for (std::uint32_t i = 0; i < 1U << 20; ++i) {
        const auto value = std::bit_cast<float>(i * 4093U);
        CHECK(is_same(f16_to_f32(f32_to_f16(value)), round_to(f16, value)));
    }
}

TEST_CASE("every pattern of a format of eight bits survives a round trip") {
    for (const Dtype dtype : {e4m3, e5m2, i8}) {
        for (int pattern = 0; pattern < 256; ++pattern) {
            const auto byte = static_cast<std::uint8_t>(pattern);
            const double value = load_element(dtype, &byte);
            std::uint8_t again = 0;
            store_element(dtype, &again, value);
            if (!std::isnan(value)) CHECK(again == byte);
        }
    }
}

// Of torch.tensor(x).to(torch.float8_…): 464 is halfway to what would be 480, 61440 to what would be 65536.
TEST_CASE("floats of eight bits round to even, and beyond their range to NaN or infinity") {
    CHECK(round_to(e4m3, 1.0625) == 1.0);
    CHECK(round_to(e4m3, 1.1875) == 1.25);
    CHECK(round_to(e4m3, 464.0) == 448.0);
    CHECK(std::isnan(round_to(e4m3, 464.01)));
    CHECK(std::isnan(round_to(e4m3, std::numeric_limits<double>::infinity())));
    CHECK(round_to(e4m3, 0x1p-10) == 0.0);
    CHECK(round_to(e4m3, 0x1.8p-10) == 0x1p-9);
    CHECK(round_to(e5m2, 61439.0) == 57344.0);
    CHECK(std::isinf(round_to(e5m2, 61440.0)));
    CHECK(round_to(e5m2, -0x1.8p-17) == -0x1p-16);
    CHECK(f8_to_f32(e4m3, 0x7E) == 448);
    CHECK(f8_to_f32(e5m2, 0x7B) == 57344);
    CHECK(f32_to_f8(e4m3, 1.0F) == 0x38);
    CHECK(f32_to_f8(e5m2, 1.0F) == 0x3C);
}

TEST_CASE("integer conversion truncates, saturates and maps NaN to zero") {
    CHECK(round_to(i32, -2.9) == -2);
    CHECK(round_to(i32, 1e10) == 2147483647.0);
    CHECK(round_to(i64, std::nan("")) == 0);
    CHECK(round_to(i8, 300.0) == 127);
    CHECK(round_to(i8, -128.9) == -128);
}

TEST_CASE("one unit in the last place is the spacing at the value's magnitude") {
    CHECK(ulp(bf16, 1.0) == 0x1p-7);
    CHECK(ulp(f32, -3.0) == 0x1p-22);
    CHECK(ulp(f16, 0.0) == 0x1p-24);
    CHECK(ulp(e4m3, 448.0) == 32);
}

TEST_CASE("an unknown dtype is refused with the known ones") {
    CHECK_THROWS_WITH_AS(parse_dtype("float"), doctest::Contains("bf16"), Error);
}
