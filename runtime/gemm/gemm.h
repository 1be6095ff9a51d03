// Matrix products of one type, by whatever library the device has: cpu.cpp (a CBLAS, else plain loops) and lt.cpp
// (cuBLASLt, hipBLASLt). Everything that takes time, choosing an algorithm above all, is done when a Gemm is made;
// queueing one neither allocates nor synchronises.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "rowjit/dtype.h"
#include "runtime/device.h"

namespace rowjit {

// result[m, n] = Σ_k left[m, k]·right[k, n], added to the result where a call says so: accumulated in f32 (f64 of f64),
// rounded once to the result's dtype. All are row-major; a transposed one lies in memory with its two sides exchanged.
struct GemmType {
    Dtype left = Dtype::kF32;
    Dtype right = Dtype::kF32;
    Dtype result = Dtype::kF32;
    bool left_transposed = false;
    bool right_transposed = false;
    // What addresses and strides are multiples of, at least.
    std::int64_t left_alignment_bytes = 1;
    std::int64_t right_alignment_bytes = 1;
    std::int64_t result_alignment_bytes = 1;
    // By the algorithm that a library takes when nothing is asked of it, for what others are measured against.
    bool first_proposal = false;

    auto operator<=>(const GemmType&) const = default;
};

struct GemmShape {
    std::int64_t m = 0;
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::int64_t left_stride = 0;  // elements from one row to the next, as they lie in memory
    std::int64_t right_stride = 0;
    std::int64_t result_stride = 0;

    auto operator<=>(const GemmShape&) const = default;
};

// Of a product's workspace: cublasLtMatmul answers CUBLAS_STATUS_INVALID_VALUE to an address that is not.
constexpr std::size_t kGemmWorkspaceAlignment = 256;

struct GemmCall {
    const void* left = nullptr;
    const void* right = nullptr;
    void* result = nullptr;
    bool add = false;           // to what the result holds
    void* workspace = nullptr;  // as many bytes as workspace_bytes says, aligned as above
};

class Gemm {
  public:
    virtual ~Gemm() = default;
    // Depends on the sides that were left open (0) when the product was made, on no other.
    virtual std::size_t workspace_bytes(const GemmShape& shape) const noexcept = 0;
    // Loads what the launches will run, where a library does that at its first product, and a capture would break of
    // it. `scratch` has warm_bytes.
    virtual void warm(void* /*scratch*/, StreamHandle /*stream*/) const noexcept {}
    virtual std::size_t warm_bytes() const noexcept { return 0; }
    // m, n and k at least 1. Returns nullptr, or what was refused, in a buffer of the thread.
    virtual const char* queue(const GemmShape& shape, const GemmCall& call, StreamHandle stream) const noexcept = 0;
};

}  // namespace rowjit
