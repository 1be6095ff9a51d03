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
    // Formats of eight bits, for storage: a value is cast from or to one, and computed on in another dtype.
    kI8,
    kE4m3,  // OCP's e4m3: no infinities, 448 the greatest; torch.float8_e4m3fn
    kE5m2,  // OCP's e5m2; torch.float8_e5m2
};

// Short names for graph-building code: `g.input("x", bf16, …)`.
inline constexpr Dtype bf16 = Dtype::kBf16;
inline constexpr Dtype f16 = Dtype::kF16;
inline constexpr Dtype f32 = Dtype::kF32;
inline constexpr Dtype f64 = Dtype::kF64;
inline constexpr Dtype i32 = Dtype::kI32;
inline constexpr Dtype i64 = Dtype::kI64;
inline constexpr Dtype boolean = Dtype::kBool;
inline constexpr Dtype i8 = Dtype::kI8;
inline constexpr Dtype e4m3 = Dtype::kE4m3;
inline constexpr Dtype e5m2 = Dtype::kE5m2;

std::string_view name(Dtype dtype);  // "bf16", "f32", "bool", …
std::size_t size_bytes(Dtype dtype);
// What is computed in: neither holds of bool, and of the dtypes of storage only is_storage does.
bool is_float(Dtype dtype);    // bf16, f16, f32 and f64
bool is_integer(Dtype dtype);  // i32 and i64
bool is_storage(Dtype dtype);  // i8, e4m3 and e5m2

// The dtype of that name; throws Error(kParse) naming the known ones.
Dtype parse_dtype(std::string_view text);

}  // namespace rowjit
