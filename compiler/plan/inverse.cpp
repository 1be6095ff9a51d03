#include "compiler/plan/inverse.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace rowjit {
namespace {

constexpr int kDigits = 24;
constexpr std::int64_t kLeast = std::int64_t{1} << (kDigits - 1);  // mantissas as whole numbers: kLeast … 2·kLeast − 1

// high + low is within three halves of 2^-46 of 1/c, relatively, and x · low is rounded to within 2^-47 of x/c: the sum
// is rounded to another float than x/c only where a midpoint m of two floats lies within 2^-45 of that. With X and C
// the mantissas and M that of m, of one more bit and odd, C·M is then as near to 2^k·X.
constexpr std::int64_t kNear = 16;  // 2^-45 · X · 2^k, at most

// The number whose product with the odd `a` is 1 modulo 2^64.
std::uint64_t odd_inverse(std::uint64_t a) {
    std::uint64_t inverse = a;
    for (int bits = 3; bits < 64; bits *= 2) inverse *= 2 - a * inverse;
    return inverse;
}

bool divides(float x, float c, const Inverse& inverse) { return std::fma(x, inverse.high, x * inverse.low) == x / c; }

// Whether all x with 2^k·X − C·M = d for an odd M are divided correctly; k says which side of c's mantissa X is on.
bool divides_at(float c, std::int64_t mantissa, int k, std::int64_t d, const Inverse& inverse) {
    const int zeros = std::countr_zero(static_cast<std::uint64_t>(mantissa));
    if (d == 0 || d % (std::int64_t{1} << zeros) != 0) return true;  // no X at all
    const std::uint64_t step = std::uint64_t{1} << (k - zeros);
    const auto rest = static_cast<std::uint64_t>(-(d / (std::int64_t{1} << zeros)));
    const std::uint64_t first = rest * odd_inverse(static_cast<std::uint64_t>(mantissa >> zeros)) % step;
    for (std::uint64_t m = first; m < 4 * kLeast; m += step) {
        if (m < 2 * kLeast || m % 2 == 0) continue;
        const std::int64_t x = (mantissa * static_cast<std::int64_t>(m) + d) >> k;
        if (x < kLeast || x >= 2 * kLeast) continue;
        if (!divides(static_cast<float>(x), c, inverse)) return false;
    }
    return true;
}

bool divides_all(float c, std::int64_t mantissa, const Inverse& inverse) {
    for (const int k : {kDigits, kDigits + 1}) {
        for (std::int64_t d = -kNear; d <= kNear; ++d) {
            if (!divides_at(c, mantissa, k, d, inverse)) return false;
        }
    }
    return true;
}

}  // namespace

std::optional<Inverse> inverse_of(float c) {
    int exponent = 0;
    const float fraction = std::frexp(std::fabs(c), &exponent);
    if (!std::isfinite(c) || fraction == 0 || fraction == 0.5F || exponent < -63 || exponent > 64) return std::nullopt;
    const double exact = 1 / static_cast<double>(c);
    auto high = static_cast<float>(exact);
    if (std::fabs(static_cast<double>(high)) > std::fabs(exact)) high = std::nextafter(high, 0.0F);
    // Of one sign, so that infinities stay what they are. Of 0.7 one mantissa of all is divided correctly only by the
    // next lower number.
    const auto low = static_cast<float>(exact - static_cast<double>(high));
    const auto mantissa = static_cast<std::int64_t>(std::ldexp(fraction, kDigits));
    for (const float near : {low, std::nextafter(low, 0.0F), std::nextafter(low, 2 * low)}) {
        if (divides_all(c, mantissa, {high, near})) return Inverse{high, near};
    }
    return std::nullopt;
}

}  // namespace rowjit
