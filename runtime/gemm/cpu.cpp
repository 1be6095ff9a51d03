#include "runtime/gemm/cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/dtype.h"
#include "base/dynamic_library.h"
#include "base/environment.h"

namespace rowjit {
namespace {

// cblas.h's CBLAS_ORDER and CBLAS_TRANSPOSE.
constexpr int kRowMajor = 101;
constexpr int kNoTranspose = 111;
constexpr int kTranspose = 112;

// cblas_sgemm and cblas_dgemm with 32-bit integers.
template <class T>
using Multiply = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, T alpha, const T* a,
                          int a_stride, const T* b, int b_stride, T beta, T* c, int c_stride);

// The same without a library: rows of b are added to a row of c, which compilers vectorise.
template <class T>
void multiply_plainly(int /*order*/, int transpose_a, int transpose_b, int m, int n, int k, T alpha, const T* a,
                      int a_stride, const T* b, int b_stride, T beta, T* c, int c_stride) {
    const auto at = [](const T* data, bool transposed, int stride, int row, int column) {
        const std::int64_t i = transposed ? column : row;
        const std::int64_t j = transposed ? row : column;
        return data[i * stride + j];
    };
    for (int row = 0; row < m; ++row) {
        T* out = c + static_cast<std::int64_t>(row) * c_stride;
        for (int column = 0; column < n; ++column) out[column] = beta == T(0) ? T(0) : beta * out[column];
        for (int inner = 0; inner < k; ++inner) {
            const T factor = alpha * at(a, transpose_a == kTranspose, a_stride, row, inner);
            for (int column = 0; column < n; ++column)
                out[column] += factor * at(b, transpose_b == kTranspose, b_stride, inner, column);
        }
    }
}

struct Blas {
    std::optional<DynamicLibrary> library;
    std::string missing;  // why there is none
    Multiply<float> sgemm = multiply_plainly<float>;
    Multiply<double> dgemm = multiply_plainly<double>;
};

Blas open_blas() {
    std::vector<std::string> names = {"libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libblas.so.3"};
    if (const auto chosen = environment_text("ROWJIT_CBLAS")) names = {*chosen};
    Blas blas;
    for (const std::string& name : names) {
        Offer<DynamicLibrary> library = DynamicLibrary::open(name);
        if (!library) {
            if (blas.missing.empty()) blas.missing = library.reason();
            continue;
        }
        Multiply<float> sgemm = nullptr;
        Multiply<double> dgemm = nullptr;
        if (!library->find("cblas_sgemm", sgemm) || !library->find("cblas_dgemm", dgemm)) continue;
        blas.sgemm = sgemm;
        blas.dgemm = dgemm;
        blas.library = std::move(*library);
        break;
    }
    return blas;
}

const Blas& blas() {
    static const Blas opened = open_blas();
    return opened;
}

template <class T>
Multiply<T> multiply() {
    if constexpr (std::is_same_v<T, double>) {
        return blas().dgemm;
    } else {
        return blas().sgemm;
    }
}

// A block of each, in the dtype of the sums. Each element that is converted takes part in some thousand products.
struct Blocks {
    std::int64_t m;
    std::int64_t n;
    std::int64_t k;
};

Blocks blocks_of(const GemmShape& shape) {
    return {std::min<std::int64_t>(shape.m, 512), std::min<std::int64_t>(shape.n, 1024),
            std::min<std::int64_t>(shape.k, 1024)};
}

template <class T>
class CpuGemm final : public Gemm {
  public:
    explicit CpuGemm(const GemmType& type) : type_(type), multiply_(multiply<T>()) {}

    std::size_t workspace_bytes(const GemmShape& shape) const noexcept override {
        if (is_direct(shape)) return 0;
        const Blocks block = blocks_of(shape);
        return static_cast<std::size_t>(block.m * block.k + block.k * block.n + block.m * block.n) * sizeof(T);
    }

    const char* queue(const GemmShape& shape, const GemmCall& call, StreamHandle /*stream*/) const noexcept override {
        if (is_direct(shape)) {
            call_library(shape.m, shape.n, shape.k, static_cast<const T*>(call.left), shape.left_stride,
                         static_cast<const T*>(call.right), shape.right_stride, call.add, static_cast<T*>(call.result),
                         shape.result_stride);
            return nullptr;
        }
        if (reinterpret_cast<std::uintptr_t>(call.workspace) % kGemmWorkspaceAlignment != 0) {
            return "its workspace is not aligned to 256 bytes";
        }
        const Blocks block = blocks_of(shape);
        for (std::int64_t m = 0; m < shape.m; m += block.m) {
            for (std::int64_t n = 0; n < shape.n; n += block.n) {
                add_block(shape, call, block, m, n);
            }
        }
        return nullptr;
    }

  private:
    static constexpr Dtype kDtype = std::is_same_v<T, double> ? Dtype::kF64 : Dtype::kF32;

    bool is_direct(const GemmShape& shape) const noexcept {
        constexpr std::int64_t kMost = std::numeric_limits<int>::max();
        const bool small =
            std::max({shape.m, shape.n, shape.k, shape.left_stride, shape.right_stride, shape.result_stride}) <= kMost;
        return small && type_.left == kDtype && type_.right == kDtype && type_.result == kDtype;
    }

    void call_library(std::int64_t m, std::int64_t n, std::int64_t k, const T* left, std::int64_t left_stride,
                      const T* right, std::int64_t right_stride, bool add, T* result,
                      std::int64_t result_stride) const noexcept {
        // A library may refuse a stride below the width also where there is one row.
        const auto stride = [](std::int64_t given, std::int64_t width) {
            return static_cast<int>(std::max(given, width));
        };
        multiply_(kRowMajor, type_.left_transposed ? kTranspose : kNoTranspose,
                  type_.right_transposed ? kTranspose : kNoTranspose, static_cast<int>(m), static_cast<int>(n),
                  static_cast<int>(k), T(1), left, stride(left_stride, type_.left_transposed ? m : k), right,
                  stride(right_stride, type_.right_transposed ? k : n), T(add ? 1 : 0), result,
                  stride(result_stride, n));
    }

    // One block of the result, its sum over k kept in the workspace and rounded once.
    void add_block(const GemmShape& shape, const GemmCall& call, const Blocks& block, std::int64_t m,
                   std::int64_t n) const noexcept {
        T* left = static_cast<T*>(call.workspace);
        T* right = left + block.m * block.k;
        T* sums = right + block.k * block.n;
        const std::int64_t rows = std::min(block.m, shape.m - m);
        const std::int64_t columns = std::min(block.n, shape.n - n);
        for (std::int64_t k = 0; k < shape.k; k += block.k) {
            const std::int64_t depth = std::min(block.k, shape.k - k);
            const std::int64_t left_width =
                widen(type_.left, call.left, shape.left_stride, type_.left_transposed, m, rows, k, depth, left);
            const std::int64_t right_width =
                widen(type_.right, call.right, shape.right_stride, type_.right_transposed, k, depth, n, columns, right);
            call_library(rows, columns, depth, left, left_width, right, right_width, k > 0, sums, columns);
        }
        round(shape, call, m, rows, n, columns, sums);
    }

    // The block [first_row, +rows) × [first_column, +columns) of a matrix, as it lies in memory; returns its width
    // there.
    static std::int64_t widen(Dtype dtype, const void* from, std::int64_t stride, bool transposed,
                              std::int64_t first_row, std::int64_t rows, std::int64_t first_column,
                              std::int64_t columns, T* to) noexcept {
        if (transposed) {
            std::swap(first_row, first_column);
            std::swap(rows, columns);
        }
        for (std::int64_t row = 0; row < rows; ++row) {
            widen_row(dtype, from, (first_row + row) * stride + first_column, columns, to + row * columns);
        }
        return columns;
    }

    static void widen_row(Dtype dtype, const void* from, std::int64_t first, std::int64_t count, T* to) noexcept {
        switch (dtype) {
            case Dtype::kBf16: {
                const auto* source = static_cast<const std::uint16_t*>(from) + first;
                for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(bf16_to_f32(source[i]));
                return;
            }
            case Dtype::kF16: {
                const auto* source = static_cast<const std::uint16_t*>(from) + first;
                for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(f16_to_f32(source[i]));
                return;
            }
            case Dtype::kF64: std::copy_n(static_cast<const double*>(from) + first, count, to); return;
            default: std::copy_n(static_cast<const float*>(from) + first, count, to); return;
        }
    }

    void round(const GemmShape& shape, const GemmCall& call, std::int64_t m, std::int64_t rows, std::int64_t n,
               std::int64_t columns, const T* sums) const noexcept {
        const std::size_t bytes = size_bytes(type_.result);
        for (std::int64_t row = 0; row < rows; ++row) {
            auto* out = static_cast<std::byte*>(call.result) +
                        static_cast<std::size_t>((m + row) * shape.result_stride + n) * bytes;
            for (std::int64_t column = 0; column < columns; ++column, out += bytes) {
                const T sum = sums[row * columns + column];
                const double before = call.add ? load_element(type_.result, out) : 0;
                store_element(type_.result, out, static_cast<double>(static_cast<T>(sum + static_cast<T>(before))));
            }
        }
    }

    const GemmType type_;
    const Multiply<T> multiply_;
};

}  // namespace

std::unique_ptr<Gemm> make_cpu_gemm(const GemmType& type) {
    if (type.left == Dtype::kF64) return std::make_unique<CpuGemm<double>>(type);
    return std::make_unique<CpuGemm<float>>(type);
}

std::string cpu_gemm_description() {
    if (blas().library) return blas().library->path();
    return fmt::format("plain loops: {}; install libopenblas0-pthread, or set ROWJIT_CBLAS to a library's path",
                       blas().missing);
}

}  // namespace rowjit
