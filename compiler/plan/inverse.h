// Division by a number that is known beforehand, without a division, to the last bit (Brisebarre, Muller and Raina,
// "Accelerating Correctly Rounded Floating-Point Division when the Divisor Is Known in Advance", 2004).
#pragma once

#include <optional>

namespace rowjit {

struct Inverse {
    float high;  // 1/c rounded towards zero
    float low;   // what is left of it
};

// With x / c = fma(x, high, x · low), correctly rounded, for every x whose quotient is at least 2^-100; below the last
// bit may differ. None for the few c of which that does not hold, for powers of two, which need no second number, and
// for |c| outside of 2^-64 … 2^64.
std::optional<Inverse> inverse_of(float c);

}  // namespace rowjit
