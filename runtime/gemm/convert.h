// Elements of products' operands and results, by the row: loops that compilers vectorise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"

namespace rowjit {

inline std::int64_t element_bytes(Dtype dtype) noexcept { return static_cast<std::int64_t>(size_bytes(dtype)); }

template <class T>
void widen(Dtype dtype, const std::byte* from, std::int64_t count, T* to) {
    const auto each = [&](const auto* source, const auto& value_of) {
        for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(value_of(source[i]));
    };
    switch (dtype) {
        case Dtype::kBf16: return each(reinterpret_cast<const std::uint16_t*>(from), bf16_to_f32);
        case Dtype::kF16: return each(reinterpret_cast<const std::uint16_t*>(from), f16_to_f32);
        case Dtype::kF64: return each(reinterpret_cast<const double*>(from), [](double value) { return value; });
        default: return each(reinterpret_cast<const float*>(from), [](float value) { return value; });
    }
}

// Sums of f32 or f64, or with `add` these and what is there, rounded once.
template <class T>
void round_sums(Dtype dtype, const T* sums, std::int64_t count, bool add, std::byte* to) {
    const auto each = [&](auto* result, const auto& value_of, const auto& rounded) {
        if (add) {
            for (std::int64_t i = 0; i < count; ++i) result[i] = rounded(sums[i] + static_cast<T>(value_of(result[i])));
        } else {
            for (std::int64_t i = 0; i < count; ++i) result[i] = rounded(sums[i]);
        }
    };
    if constexpr (std::is_same_v<T, float>) {
        if (dtype == Dtype::kBf16) return each(reinterpret_cast<std::uint16_t*>(to), bf16_to_f32, f32_to_bf16);
        if (dtype == Dtype::kF16) return each(reinterpret_cast<std::uint16_t*>(to), f16_to_f32, f32_to_f16);
    }
    const std::size_t bytes = size_bytes(dtype);
    for (std::int64_t i = 0; i < count; ++i, to += bytes) {
        const T before = add ? static_cast<T>(load_element(dtype, to)) : T(0);
        store_element(dtype, to, static_cast<double>(sums[i] + before));
    }
}

}  // namespace rowjit
