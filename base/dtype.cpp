#include "base/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/fail.h"

namespace rowjit {
namespace {

struct DtypeRow {
    Dtype dtype;
    std::string_view name;
    std::size_t size_bytes;
    int mantissa_bits;  // explicit ones; 0 for non-floats
    int min_exponent;   // of the smallest normal number
    double max_finite;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr std::array<DtypeRow, 10> kDtypes = {{
    {Dtype::kBool, "bool", 1, 0, 0, 1},
    {Dtype::kI32, "i32", 4, 0, 0, 2147483647.0},
    {Dtype::kI64, "i64", 8, 0, 0, 9223372036854775807.0},
    {Dtype::kBf16, "bf16", 2, 7, -126, 0x1.FEp127},
    {Dtype::kF16, "f16", 2, 10, -14, 65504.0},
    {Dtype::kF32, "f32", 4, 23, -126, 0x1.FFFFFEp127},
    {Dtype::kF64, "f64", 8, 52, -1022, std::numeric_limits<double>::max()},
    {Dtype::kI8, "i8", 1, 0, 0, 127},
    {Dtype::kE4m3, "e4m3", 1, 3, -6, 448},
    {Dtype::kE5m2, "e5m2", 1, 2, -14, 57344},
}};

const DtypeRow& row(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)]; }

// The spacing of `r`'s numbers around `value`.
double spacing(const DtypeRow& r, double value) {
    int exponent = r.min_exponent;
    if (value != 0) exponent = std::max(std::ilogb(value), r.min_exponent);
    return std::ldexp(1.0, exponent - r.mantissa_bits);
}

// What is greater than every finite number of `r` after rounding: of the sign, where there is an infinity.
double beyond(const DtypeRow& r, double value) {
    return r.dtype == Dtype::kE4m3 ? std::numeric_limits<double>::quiet_NaN() : std::copysign(kInfinity, value);
}

double round_float(const DtypeRow& r, double value) {
    if (std::isnan(value) || value == 0) return value;
    if (std::isinf(value)) return beyond(r, value);
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const int exponent = static_cast<int>((bits >> 52) & 0x7FF) - 1023;
    if (exponent >= r.min_exponent) {
        // A carry out of the mantissa moves on to the exponent, which is the next power of two. The oracle rounds by
        // the ten million, hence no ilogb here.
        const int dropped = 52 - r.mantissa_bits;
        const std::uint64_t half = (std::uint64_t{1} << dropped) >> 1;
        const std::uint64_t odd = (bits >> dropped) & 1;
        const std::uint64_t carried = bits + (half - 1) + odd;
        const double nearest = std::bit_cast<double>(carried >> dropped << dropped);
        if (std::abs(nearest) > r.max_finite) return beyond(r, value);
        return nearest;
    }
    const double step = spacing(r, value);
    // The quotient is exact (a power of two) and nearbyint rounds to even, so this rounds exactly once.
    return std::nearbyint(value / step) * step;
}

double truncate_saturating(double value, double low, double high) {
    if (std::isnan(value)) return 0;
    return std::trunc(std::min(std::max(value, low), high));
}

template <class T>
T read(const void* address) {
    T value;
    std::memcpy(&value, address, sizeof value);
    return value;
}

template <class T>
void write(void* address, T value) {
    std::memcpy(address, &value, sizeof value);
}

}  // namespace

std::string_view name(Dtype dtype) { return row(dtype).name; }
std::size_t size_bytes(Dtype dtype) { return row(dtype).size_bytes; }
bool is_float(Dtype dtype) { return row(dtype).mantissa_bits > 0 && !is_storage(dtype); }
bool is_integer(Dtype dtype) { return dtype == Dtype::kI32 || dtype == Dtype::kI64; }
bool is_storage(Dtype dtype) { return dtype == Dtype::kI8 || dtype == Dtype::kE4m3 || dtype == Dtype::kE5m2; }

Dtype parse_dtype(std::string_view text) {
    std::string known;
    for (const DtypeRow& r : kDtypes) {
        if (r.name == text) return r.dtype;
        known += known.empty() ? "" : ", ";
        known += r.name;
    }
    fail(ErrorCode::kParse, "unknown dtype '{}'; use one of {}", text, known);
}

// The exponent's bias is 1 − min_exponent, and its field stands above the mantissa's.
float f8_to_f32(Dtype dtype, std::uint8_t bits) {
    const DtypeRow& r = row(dtype);
    const int magnitude = bits & 0x7F;
    const int exponent = magnitude >> r.mantissa_bits;
    const int mantissa = magnitude & ((1 << r.mantissa_bits) - 1);
    const float sign = (bits & 0x80) != 0 ? -1.0F : 1.0F;
    if (dtype == Dtype::kE4m3 && magnitude == 0x7F) return std::numeric_limits<float>::quiet_NaN();
    if (dtype == Dtype::kE5m2 && exponent == 0x1F)
        return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
    const int whole = exponent == 0 ? mantissa : mantissa | 1 << r.mantissa_bits;
    return sign * std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - 1 + r.min_exponent - r.mantissa_bits);
}

std::uint8_t f32_to_f8(Dtype dtype, float value) {
    const DtypeRow& r = row(dtype);
    const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
    const double magnitude = std::abs(round_float(r, value));
    if (std::isnan(magnitude)) return sign | 0x7F;
    if (std::isinf(magnitude)) return sign | 0x7C;
    if (magnitude == 0) return sign;
    const int exponent = std::max(std::ilogb(magnitude), r.min_exponent);
    // With the implicit bit, which is 1 of the exponent's field but in subnormal numbers.
    const int mantissa = static_cast<int>(std::ldexp(magnitude, r.mantissa_bits - exponent));
    return static_cast<std::uint8_t>(sign | (((exponent - r.min_exponent) << r.mantissa_bits) + mantissa));
}

double round_to(Dtype dtype, double value) {
    switch (dtype) {
        case Dtype::kBool: return value != 0 ? 1 : 0;
        case Dtype::kI32: return truncate_saturating(value, -2147483648.0, 2147483647.0);
        // 2^63 itself is not representable in i64; the largest double below it is.
        case Dtype::kI64: return truncate_saturating(value, -0x1p63, 0x1.FFFFFFFFFFFFFp62);
        case Dtype::kF32: return static_cast<float>(value);
        case Dtype::kF64: return value;
        case Dtype::kI8: return truncate_saturating(value, -128, 127);
        case Dtype::kBf16:
        case Dtype::kF16:
        case Dtype::kE4m3:
        case Dtype::kE5m2: return round_float(row(dtype), value);
    }
    RJ_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

double load_element(Dtype dtype, const void* address) {
    switch (dtype) {
        case Dtype::kBool: return read<std::uint8_t>(address) != 0 ? 1 : 0;
        case Dtype::kI32: return read<std::int32_t>(address);
        case Dtype::kI64: return static_cast<double>(read<std::int64_t>(address));
        case Dtype::kBf16: return bf16_to_f32(read<std::uint16_t>(address));
        case Dtype::kF16: return f16_to_f32(read<std::uint16_t>(address));
        case Dtype::kF32: return read<float>(address);
        case Dtype::kF64: return read<double>(address);
        case Dtype::kI8: return read<std::int8_t>(address);
        case Dtype::kE4m3:
        case Dtype::kE5m2: return f8_to_f32(dtype, read<std::uint8_t>(address));
    }
    RJ_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

void store_element(Dtype dtype, void* address, double value) {
    const double rounded = round_to(dtype, value);
    switch (dtype) {
        case Dtype::kBool: return write(address, static_cast<std::uint8_t>(rounded));
        case Dtype::kI32: return write(address, static_cast<std::int32_t>(rounded));
        case Dtype::kI64: return write(address, static_cast<std::int64_t>(rounded));
        // The value is representable by now, so going through f32 rounds no second time.
        case Dtype::kBf16: return write(address, f32_to_bf16(static_cast<float>(rounded)));
        case Dtype::kF16: return write(address, f32_to_f16(static_cast<float>(rounded)));
        case Dtype::kF32: return write(address, static_cast<float>(rounded));
        case Dtype::kF64: return write(address, rounded);
        case Dtype::kI8: return write(address, static_cast<std::int8_t>(rounded));
        case Dtype::kE4m3:
        case Dtype::kE5m2: return write(address, f32_to_f8(dtype, static_cast<float>(rounded)));
    }
}

double ulp(Dtype dtype, double value) {
    if (row(dtype).mantissa_bits == 0) return 1;
    if (!std::isfinite(value)) return 0;
    const double rounded = round_to(dtype, value);
    return spacing(row(dtype), std::isinf(rounded) ? row(dtype).max_finite : rounded);
}

}  // namespace rowjit
