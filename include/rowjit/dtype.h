// The element types of tensors and of intermediate values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rowjit {

enum class Dtype : std::uint8_t {
    kBool,  // stored as one byte, 0 or 1
    kI32,
    kI64,
    kBf16,
    kF16,
    kF32,
    kF64,  // CPU and oracle only
};

// Short names for graph-building code: `g.input("x", bf16, …)`.
inline constexpr Dtype bf16 = Dtype::kBf16;
inline constexpr Dtype f16 = Dtype::kF16;
inline constexpr Dtype f32 = Dtype::kF32;
inline constexpr Dtype f64 = Dtype::kF64;
inline constexpr Dtype i32 = Dtype::kI32;
inline constexpr Dtype i64 = Dtype::kI64;
inline constexpr Dtype boolean = Dtype::kBool;

std::string_view name(Dtype dtype);  // "bf16", "f32", "bool", …
std::size_t size_bytes(Dtype dtype);
bool is_float(Dtype dtype);
bool is_integer(Dtype dtype);  // i32 and i64

// The dtype of that name; throws Error(kParse) naming the known ones.
Dtype parse_dtype(std::string_view text);

}  // namespace rowjit
