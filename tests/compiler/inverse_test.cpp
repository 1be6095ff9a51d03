#include "compiler/plan/inverse.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

using namespace rowjit;

namespace {

float product(float x, const Inverse& inverse) { return std::fma(x, inverse.high, x * inverse.low); }

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

}  // namespace

TEST_CASE("a quotient by a constant is two instructions and the same bits") {
    for (const float c : {0.7F, 30.0F, 127.0F, -3.0F}) {
        CAPTURE(c);
        const auto inverse = inverse_of(c);
        REQUIRE(inverse);
        std::uint32_t different = 0;
        for (std::uint32_t mantissa = 0; mantissa < 1U << 23; ++mantissa) {
            const auto x = std::bit_cast<float>(bits(1.0F) + mantissa);
            different += bits(product(x, *inverse)) != bits(x / c) ? 1 : 0;
        }
        CHECK(different == 0);
    }
    std::mt19937 random(7);
    const auto between = [&](std::uint32_t least, std::uint32_t count) {
        const auto sign = static_cast<std::uint32_t>(random()) & 0x80000000U;
        return std::bit_cast<float>(static_cast<std::uint32_t>(least + random() % count) | sign);
    };
    int without = 0;
    for (int i = 0; i < 2000; ++i) {
        const float c = between(bits(0.5F), 1U << 24);
        const auto inverse = inverse_of(c);
        if (!inverse) {
            ++without;
            continue;
        }
        for (int j = 0; j < 2000; ++j) {
            const float x = between(bits(0x1p-63F), 0x40000000U);
            REQUIRE(bits(product(x, *inverse)) == bits(x / c));
        }
    }
    CHECK(without < 200);
}

TEST_CASE("infinities, zeros and what overflows divide as they do") {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const float c : {0.7F, -50.0F}) {
        CAPTURE(c);
        const Inverse inverse = inverse_of(c).value();
        for (const float x : {kInfinity, -kInfinity, 0.0F, -0.0F, std::numeric_limits<float>::max()})
            CHECK(bits(product(x, inverse)) == bits(x / c));
        CHECK(std::isnan(product(std::nanf(""), inverse)));
    }
    for (const float c : {0.0F, 2.0F, -0.25F, kInfinity, 3e30F, 1e-30F, std::nanf("")}) CHECK_FALSE(inverse_of(c));
}
