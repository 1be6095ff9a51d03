// Whole numbers divided by a positive one and rounded down, as coordinates are, or up, as what a number of some size
// makes: C++ rounds toward zero.
#pragma once

#include <cstdint>

namespace rowjit {

constexpr std::int64_t floor_div(std::int64_t dividend, std::int64_t divisor) {
    return dividend / divisor - (dividend % divisor < 0 ? 1 : 0);
}

// Of dividends of 0 and more.
constexpr std::int64_t ceil_div(std::int64_t dividend, std::int64_t divisor) {
    return (dividend + divisor - 1) / divisor;
}

constexpr std::int64_t floor_mod(std::int64_t dividend, std::int64_t divisor) {
    return dividend - floor_div(dividend, divisor) * divisor;
}

}  // namespace rowjit
