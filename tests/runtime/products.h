// Matrix products of operands that every library multiplies alike.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "runtime/gemm/gemm.h"

namespace rowjit {

inline std::vector<std::byte> filled(Dtype dtype, std::int64_t count, int seed) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_bytes(dtype));
    for (std::int64_t i = 0; i < count; ++i) {
        const double value = static_cast<double>((i * 37 + seed * 11) % 17 - 8) / 4;  // exact in every dtype
        store_element(dtype, bytes.data() + static_cast<std::size_t>(i) * size_bytes(dtype), value);
    }
    return bytes;
}

// As aligned as products ask.
class Workspace {
  public:
    explicit Workspace(std::size_t bytes) : bytes_(bytes + kGemmWorkspaceAlignment) {}
    std::byte* data() {
        const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
        return bytes_.data() + (0 - address) % kGemmWorkspaceAlignment;
    }

  private:
    std::vector<std::byte> bytes_;
};

// Of operands, and of a result to add to, that are small quarters: every order of the sums gives the same bits.
inline std::vector<std::byte> multiply(const Gemm& gemm, const GemmType& type, const GemmShape& shape, bool add) {
    const auto left = filled(type.left, (type.left_transposed ? shape.k : shape.m) * shape.left_stride, 1);
    const auto right = filled(type.right, (type.right_transposed ? shape.n : shape.k) * shape.right_stride, 2);
    auto result = filled(type.result, shape.m * shape.result_stride, 3);
    Workspace workspace(gemm.workspace_bytes(shape));
    const GemmCall call = {left.data(), right.data(), result.data(), add, workspace.data()};
    CHECK(gemm.queue(shape, call, nullptr) == nullptr);
    return result;
}

}  // namespace rowjit
