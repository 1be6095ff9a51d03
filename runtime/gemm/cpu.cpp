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
#include "runtime/gemm/convert.h"
#include "runtime/gemm/onednn.h"

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

struct Cblas {
    std::optional<DynamicLibrary> library;
    std::string missing;  // why there is none
    Multiply<float> sgemm = multiply_plainly<float>;
    Multiply<double> dgemm = multiply_plainly<double>;
};

Cblas open_cblas() {
    std::vector<std::string> names = {"libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libblas.so.3"};
    if (const auto chosen = environment_text("ROWJIT_CBLAS")) names = {*chosen};
    Cblas cblas;
    for (const std::string& name : names) {
        Offer<DynamicLibrary> library = DynamicLibrary::open(name);
        if (!library) {
            if (cblas.missing.empty()) cblas.missing = library.reason();
            continue;
        }
        Multiply<float> sgemm = nullptr;
        Multiply<double> dgemm = nullptr;
        if (!library->find("cblas_sgemm", sgemm) || !library->find("cblas_dgemm", dgemm)) continue;
        cblas.sgemm = sgemm;
        cblas.dgemm = dgemm;
        cblas.library = std::move(*library);
        break;
    }
    return cblas;
}

const Cblas& cblas() {
    static const Cblas opened = open_cblas();
    return opened;
}

template <class T>
Multiply<T> multiply() {
    if constexpr (std::is_same_v<T, double>) {
        return cblas().dgemm;
    } else {
        return cblas().sgemm;
    }
}

struct Sides {
    std::int64_t m;
    std::int64_t n;
    std::int64_t k;
};

// Of the blocks that are multiplied at a time: where an operand is converted, so that each of its elements takes part
// in some thousand products and lies in the caches until then; where sums are rounded alone, so that they do.
constexpr Sides kConvertedBlock = {512, 1024, 1024};
constexpr Sides kRoundedBlock = {1024, 2048, std::numeric_limits<int>::max()};

template <class T>
class CpuGemm final : public Gemm {
  public:
    explicit CpuGemm(const GemmType& type) : type_(type), multiply_(multiply<T>()) {}

    std::size_t workspace_bytes(const GemmShape& shape) const noexcept override {
        const Sides block = block_of(shape);
        const std::int64_t left = converts(type_.left, shape) ? block.m * block.k : 0;
        const std::int64_t right = converts(type_.right, shape) ? block.k * block.n : 0;
        const std::int64_t sums = rounds() ? block.m * block.n : 0;
        return static_cast<std::size_t>(left + right + sums) * sizeof(T);
    }

    const char* queue(const GemmShape& shape, const GemmCall& call, StreamHandle /*stream*/) const noexcept override {
        if (workspace_bytes(shape) > 0 &&
            reinterpret_cast<std::uintptr_t>(call.workspace) % kGemmWorkspaceAlignment != 0)
            return "its workspace is not aligned to 256 bytes";
        const Sides block = block_of(shape);
        for (std::int64_t m = 0; m < shape.m; m += block.m) {
            for (std::int64_t n = 0; n < shape.n; n += block.n) {
                multiply_block(shape, call, block, m, n);
            }
        }
        return nullptr;
    }

  private:
    static constexpr Dtype kSums = std::is_same_v<T, double> ? Dtype::kF64 : Dtype::kF32;

    // A block of an operand, as the library takes it.
    struct Operand {
        const T* data;
        std::int64_t stride;
    };

    bool rounds() const noexcept { return type_.result != kSums; }

    // Whether an operand is given to the library by the block: a CBLAS takes the sums' dtype, and sides and strides of
    // 32 bits.
    static bool converts(Dtype operand, const GemmShape& shape) noexcept {
        return operand != kSums || std::max({shape.m, shape.n, shape.k, shape.left_stride, shape.right_stride,
                                             shape.result_stride}) > std::numeric_limits<int>::max();
    }

    Sides block_of(const GemmShape& shape) const noexcept {
        Sides most = {shape.m, shape.n, shape.k};
        if (rounds()) most = kRoundedBlock;
        if (converts(type_.left, shape) || converts(type_.right, shape)) most = kConvertedBlock;
        return {std::min(shape.m, most.m), std::min(shape.n, most.n), std::min(shape.k, most.k)};
    }

    void call_library(const Sides& sides, const Operand& left, const Operand& right, bool add, T* result,
                      std::int64_t result_stride) const noexcept {
        const auto [m, n, k] = sides;
        // A library may refuse a stride below the width also where there is one row.
        const auto stride = [](std::int64_t given, std::int64_t width) {
            return static_cast<int>(std::max(given, width));
        };
        multiply_(kRowMajor, type_.left_transposed ? kTranspose : kNoTranspose,
                  type_.right_transposed ? kTranspose : kNoTranspose, static_cast<int>(m), static_cast<int>(n),
                  static_cast<int>(k), T(1), left.data, stride(left.stride, type_.left_transposed ? m : k), right.data,
                  stride(right.stride, type_.right_transposed ? k : n), T(add ? 1 : 0), result,
                  stride(result_stride, n));
    }

    // The block of the result that begins at [m, n].
    void multiply_block(const GemmShape& shape, const GemmCall& call, const Sides& block, std::int64_t m,
                        std::int64_t n) const noexcept {
        T* left_block = static_cast<T*>(call.workspace);
        T* right_block = left_block + (converts(type_.left, shape) ? block.m * block.k : 0);
        T* sums = right_block + (converts(type_.right, shape) ? block.k * block.n : 0);
        std::int64_t sums_stride = block.n;
        std::byte* result =
            static_cast<std::byte*>(call.result) + (m * shape.result_stride + n) * element_bytes(type_.result);
        if (!rounds()) {
            sums = reinterpret_cast<T*>(result);
            sums_stride = shape.result_stride;
        }
        const std::int64_t rows = std::min(block.m, shape.m - m);
        const std::int64_t columns = std::min(block.n, shape.n - n);
        for (std::int64_t k = 0; k < shape.k; k += block.k) {
            const std::int64_t depth = std::min(block.k, shape.k - k);
            const Operand left = operand(type_.left, type_.left_transposed, call.left, shape.left_stride, m, rows, k,
                                         depth, converts(type_.left, shape) ? left_block : nullptr);
            const Operand right = operand(type_.right, type_.right_transposed, call.right, shape.right_stride, k, depth,
                                          n, columns, converts(type_.right, shape) ? right_block : nullptr);
            const bool add = k > 0 || (call.add && !rounds());
            call_library({rows, columns, depth}, left, right, add, sums, sums_stride);
        }
        if (!rounds()) return;
        for (std::int64_t row = 0; row < rows; ++row) {
            round_sums(type_.result, sums + row * sums_stride, columns, call.add,
                       result + row * shape.result_stride * element_bytes(type_.result));
        }
    }

    // The block [first_row, +rows) × [first_column, +columns) of a matrix as it lies in memory: there, or in
    // `converted`.
    static Operand operand(Dtype dtype, bool transposed, const void* matrix, std::int64_t stride,
                           std::int64_t first_row, std::int64_t rows, std::int64_t first_column, std::int64_t columns,
                           T* converted) noexcept {
        if (transposed) {
            std::swap(first_row, first_column);
            std::swap(rows, columns);
        }
        const std::int64_t bytes = element_bytes(dtype);
        const std::byte* from = static_cast<const std::byte*>(matrix) + (first_row * stride + first_column) * bytes;
        if (converted == nullptr) return {reinterpret_cast<const T*>(from), stride};
        for (std::int64_t row = 0; row < rows; ++row) {
            widen(dtype, from + row * stride * bytes, columns, converted + row * columns);
        }
        return {converted, columns};
    }

    const GemmType type_;
    const Multiply<T> multiply_;
};

}  // namespace

std::unique_ptr<Gemm> make_cpu_gemm(const GemmType& type, const CpuWorkers& workers) {
    if (std::unique_ptr<Gemm> gemm = make_onednn_gemm(type, workers)) return gemm;
    if (type.left == Dtype::kF64) return std::make_unique<CpuGemm<double>>(type);
    return std::make_unique<CpuGemm<float>>(type);
}

std::vector<CpuGemmLibrary> cpu_gemm_libraries() {
    CpuGemmLibrary plain = {"f32, f64", static_cast<bool>(cblas().library), ""};
    plain.what = plain.found ? cblas().library->path()
                             : fmt::format(
                                   "plain loops: {}; install libopenblas0-pthread, or set ROWJIT_CBLAS to a "
                                   "library's path",
                                   cblas().missing);
    const Offer<std::string> onednn = onednn_path();
    CpuGemmLibrary bf16 = {"bf16", static_cast<bool>(onednn), ""};
    bf16.what = bf16.found ? *onednn
                           : fmt::format(
                                 "converted to f32: {}; install libdnnl3 (Debian 12: libdnnl2), or set "
                                 "ROWJIT_ONEDNN to the library's path",
                                 onednn.reason());
    return {plain, bf16};
}

}  // namespace rowjit
