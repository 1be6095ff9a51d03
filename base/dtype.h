// Conversions between the storage formats and f32/f64, rounding to nearest even exactly once, as IEEE 754 and the
// frameworks do. These are the reference for the emitters' own conversions.
#pragma once

#include <bit>
#include <cstdint>

#include "rowjit/dtype.h"

namespace rowjit {

// The floats that frameworks compute on in f32 and round again.
constexpr bool is_narrow(Dtype dtype) { return dtype == Dtype::kBf16 || dtype == Dtype::kF16; }

// What kernels carry in f32 and round when they store it.
constexpr bool rounds_from_f32(Dtype dtype) {
    return is_narrow(dtype) || dtype == Dtype::kE4m3 || dtype == Dtype::kE5m2;
}

// Those of 16 bits choose, and do not branch: loops over them are vectorised, as matrix products on the CPU need.
inline float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline float f16_to_f32(std::uint16_t bits) {
    const std::uint32_t magnitude = bits & 0x7FFFU;
    const std::uint32_t bias = magnitude >= 0x7C00 ? 0xE0U : 0x70U;  // of f32's exponents over f16's; infinity and NaN
    const std::uint32_t normal = (magnitude << 13) + (bias << 23);
    const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;
    const std::uint32_t widened = magnitude < 0x400 ? std::bit_cast<std::uint32_t>(subnormal) : normal;
    return std::bit_cast<float>(widened | (bits & 0x8000U) << 16);
}

// NaN stays NaN (quiet).
inline std::uint16_t f32_to_bf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
    const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    return static_cast<std::uint16_t>((is_nan ? bits | 0x400000U : rounded) >> 16);
}

// Overflows to infinity, keeps subnormals.
inline std::uint16_t f32_to_f16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t normal = (magnitude - (0x70U << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    // A unit of 0.5's is f16's least subnormal.
    const float beside_half = std::bit_cast<float>(magnitude) + 0.5F;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(beside_half) - std::bit_cast<std::uint32_t>(0.5F);
    std::uint32_t rounded = magnitude < 0x38800000U ? subnormal : normal;  // 2^-14
    rounded = magnitude >= 0x477FF000U ? 0x7C00U : rounded;                // 65520, halfway to what would be 65536
    rounded = magnitude > 0x7F800000U ? 0x7E00U : rounded;
    return static_cast<std::uint16_t>(rounded | (bits >> 16 & 0x8000U));
}

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
