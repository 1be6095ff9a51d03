// Whole numbers divided by a positive one and rounded down, as coordinates are: C++ rounds toward zero.
#pragma once

#include <cstdint>

namespace rowjit {

constexpr std::int64_t floor_div(std::int64_t dividend, std::int64_t divisor) {
    return dividend / divisor - (dividend % divisor < 0 ? 1 : 0);
}

constexpr std::int64_t floor_mod(std::int64_t dividend, std::int64_t divisor) {
    return dividend - floor_div(dividend, divisor) * divisor;
}

}  // namespace rowjit
