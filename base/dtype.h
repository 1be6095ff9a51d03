// Conversions between the storage formats and f32/f64, rounding to nearest even exactly once, as IEEE 754 and the
// frameworks do. These are the reference for the emitters' own conversions.
#pragma once

#include <cstdint>

#include "rowjit/dtype.h"

namespace rowjit {

// The floats that frameworks compute on in f32 and round again.
constexpr bool is_narrow(Dtype dtype) { return dtype == Dtype::kBf16 || dtype == Dtype::kF16; }

// What kernels carry in f32 and round when they store it.
constexpr bool rounds_from_f32(Dtype dtype) {
    return is_narrow(dtype) || dtype == Dtype::kE4m3 || dtype == Dtype::kE5m2;
}

float bf16_to_f32(std::uint16_t bits);
float f16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_bf16(float value);            // NaN stays NaN (quiet)
std::uint16_t f32_to_f16(float value);             // overflows to infinity, keeps subnormals
float f8_to_f32(Dtype dtype, std::uint8_t bits);   // of e4m3 or e5m2
std::uint8_t f32_to_f8(Dtype dtype, float value);  // likewise

// `value` rounded once to `dtype` and widened again. Exact for f64; for integers, truncation toward zero, saturating as
// the GPU conversions do (NaN becomes 0). What is beyond a float's range becomes infinity, beyond e4m3's NaN: torch's
// conversions.
double round_to(Dtype dtype, double value);

// One element at `address`, widened; and stored, rounded as round_to.
double load_element(Dtype dtype, const void* address);
void store_element(Dtype dtype, void* address, double value);

// The distance from |value| (as rounded to dtype) to the next larger representable magnitude: "one unit in the last
// place". Beyond the dtype's range, that of its greatest finite number.
double ulp(Dtype dtype, double value);

}  // namespace rowjit
