// A matrix library without a GPU: cuBLASLt's entry points (STUB_CUDA), or hipBLASLt's. Device memory is host memory, as
// in stub_driver.cpp; products are checked as the vendors document it, recorded, and computed column by column.
#include "tests/runtime/stub_lt.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/dtype.h"

#define STUB_EXPORT extern "C" __attribute__((visibility("default")))
#ifdef STUB_CUDA
#define STUB_ENTRY(cuda_symbol, hip_symbol) STUB_EXPORT int cuda_symbol
constexpr int kTranspose = 1;
constexpr int kTransposeA = 3;
constexpr int kTransposeB = 4;
constexpr int kRows = 2;
constexpr int kColumns = 3;
constexpr int kStride = 4;
constexpr std::size_t kAlgorithmBytes = 64;
constexpr std::size_t kFoundBytes = 96;
#else
#define STUB_ENTRY(cuda_symbol, hip_symbol) STUB_EXPORT int hip_symbol
constexpr int kTranspose = 112;
constexpr int kTransposeA = 0;
constexpr int kTransposeB = 1;
constexpr int kRows = 4;
constexpr int kColumns = 5;
constexpr int kStride = 6;
constexpr std::size_t kAlgorithmBytes = 24;
constexpr std::size_t kFoundBytes = 56;
#endif
constexpr int kInvalidValue = 7;
constexpr int kNotSupported = 15;
constexpr std::uintptr_t kWorkspaceAlignment = 256;

namespace {

struct Product {
    int scale_type = 0;
    std::array<int, 8> attributes = {};
};

struct Layout {
    int dtype = 0;
    std::uint64_t rows = 0;
    std::uint64_t columns = 0;
    std::int64_t stride = 0;
};

// What an algorithm was found for, in the bytes that callers carry about.
struct Algorithm {
    std::uint64_t shape = 0;
    std::uint32_t workspace_bytes = 0;
    std::uint16_t alignment_a = 1;
    std::uint16_t alignment_b = 1;
    std::uint16_t alignment_d = 1;
    std::uint8_t dtypes = 0;
    std::uint8_t transposes = 0;
    std::uint8_t proposal = 0;
};
static_assert(sizeof(Algorithm) <= kAlgorithmBytes);

StubLt& state() {
    static StubLt library;
    return library;
}

rowjit::Dtype dtype_of(int number) {
    switch (number) {
        case 1: return rowjit::Dtype::kF64;
        case 2: return rowjit::Dtype::kF16;
        case 14: return rowjit::Dtype::kBf16;
        default: return rowjit::Dtype::kF32;
    }
}

double element(const Layout& layout, const void* data, bool transposed, std::uint64_t row, std::uint64_t column) {
    const std::uint64_t i = transposed ? column : row;
    const std::uint64_t j = transposed ? row : column;
    const rowjit::Dtype dtype = dtype_of(layout.dtype);
    const std::size_t at = i + j * static_cast<std::uint64_t>(layout.stride);
    return rowjit::load_element(dtype, static_cast<const std::byte*>(data) + at * rowjit::size_bytes(dtype));
}

void compute(const StubProduct& p, const Layout& a, const Layout& b, const Layout& d) {
    const std::uint64_t depth = p.transpose_a ? a.rows : a.columns;
    const rowjit::Dtype dtype = dtype_of(d.dtype);
    for (std::uint64_t column = 0; column < d.columns; ++column) {
        for (std::uint64_t row = 0; row < d.rows; ++row) {
            double sum = 0;
            for (std::uint64_t k = 0; k < depth; ++k)
                sum += element(a, p.a, p.transpose_a, row, k) * element(b, p.b, p.transpose_b, k, column);
            const std::size_t at = row + column * static_cast<std::uint64_t>(d.stride);
            auto* out = static_cast<std::byte*>(p.d) + at * rowjit::size_bytes(dtype);
            const double before = p.beta != 0 ? p.beta * rowjit::load_element(dtype, out) : 0;
            rowjit::store_element(dtype, out, p.alpha * sum + before);
        }
    }
}

template <class T>
T& at(void* object) {
    return *static_cast<T*>(object);
}

// The sides and dtypes of a product; the rest of an algorithm is preferences.
Algorithm algorithm_for(const Product& product, const Layout& a, const Layout& d) {
    const bool transposed = product.attributes[kTransposeA] == kTranspose;
    Algorithm algorithm;
    algorithm.shape = d.rows * d.columns * (transposed ? a.rows : a.columns);
    algorithm.dtypes = static_cast<std::uint8_t>(a.dtype * 16 + d.dtype);
    algorithm.transposes =
        static_cast<std::uint8_t>(2 * int{transposed} + int{product.attributes[kTransposeB] == kTranspose});
    return algorithm;
}

int check_layouts(const StubProduct& p, const Layout& a, const Layout& b, const Layout& d) {
    for (const Layout* one : {&a, &b, &d}) {
        if (one->rows == 0 || one->columns == 0 || one->stride < static_cast<std::int64_t>(one->rows))
            return kInvalidValue;
    }
    const std::uint64_t depth = p.transpose_a ? a.rows : a.columns;
    const bool fits = (p.transpose_a ? a.columns : a.rows) == d.rows &&
                      (p.transpose_b ? b.rows : b.columns) == d.columns &&
                      (p.transpose_b ? b.columns : b.rows) == depth;
    if (!fits) return kInvalidValue;
    return a.dtype == b.dtype && (d.dtype == a.dtype || d.dtype == 0) ? 0 : kNotSupported;
}

bool is_aligned(const void* data, const Layout& layout, std::uint64_t bytes) {
    const std::uint64_t step = static_cast<std::uint64_t>(layout.stride) * rowjit::size_bytes(dtype_of(layout.dtype));
    return reinterpret_cast<std::uintptr_t>(data) % bytes == 0 && (layout.columns == 1 || step % bytes == 0);
}

int check(const StubProduct& p, const Algorithm& chosen, const Algorithm& needed, const Layout& a, const Layout& b,
          const Layout& d) {
    if (p.a == nullptr || p.b == nullptr || p.d == nullptr) return kInvalidValue;
    if (reinterpret_cast<std::uintptr_t>(p.workspace) % kWorkspaceAlignment != 0) return kInvalidValue;
    if (p.workspace_bytes < chosen.workspace_bytes || (p.workspace_bytes > 0 && p.workspace == nullptr))
        return kInvalidValue;
    if (chosen.dtypes != needed.dtypes || chosen.transposes != needed.transposes) return kInvalidValue;
    const bool aligned = is_aligned(p.a, a, chosen.alignment_a) && is_aligned(p.b, b, chosen.alignment_b) &&
                         is_aligned(p.d, d, chosen.alignment_d);
    if (!aligned || (state().only_exact && chosen.shape != needed.shape)) return kNotSupported;
    return check_layouts(p, a, b, d);
}

}  // namespace

STUB_EXPORT StubLt* stub_lt() { return &state(); }

STUB_ENTRY(cublasLtCreate, hipblasLtCreate)(void** handle) {
    *handle = &state();
    return 0;
}
STUB_ENTRY(cublasLtDestroy, hipblasLtDestroy)(void* /*handle*/) { return 0; }

STUB_ENTRY(cublasLtMatmulDescCreate, hipblasLtMatmulDescCreate)(void** product, int /*compute*/, int scale_type) {
    *product = new Product{scale_type, {}};
    return 0;
}
STUB_ENTRY(cublasLtMatmulDescSetAttribute, hipblasLtMatmulDescSetAttribute)(void* product, int attribute,
                                                                            const void* value, std::size_t bytes) {
    if (bytes != sizeof(int)) return 7;
    std::memcpy(&at<Product>(product).attributes.at(static_cast<std::size_t>(attribute)), value, bytes);
    return 0;
}
STUB_ENTRY(cublasLtMatmulDescDestroy, hipblasLtMatmulDescDestroy)(void* product) {
    delete static_cast<Product*>(product);
    return 0;
}

STUB_ENTRY(cublasLtMatrixLayoutCreate, hipblasLtMatrixLayoutCreate)(void** layout, int dtype, std::uint64_t rows,
                                                                    std::uint64_t columns, std::int64_t stride) {
    *layout = new Layout{dtype, rows, columns, stride};
    return 0;
}
STUB_ENTRY(cublasLtMatrixLayoutSetAttribute, hipblasLtMatrixLayoutSetAttribute)(void* layout, int attribute,
                                                                                const void* value, std::size_t bytes) {
    if (bytes != sizeof(std::int64_t)) return 7;
    auto& one = at<Layout>(layout);
    if (attribute == kRows) std::memcpy(&one.rows, value, bytes);
    if (attribute == kColumns) std::memcpy(&one.columns, value, bytes);
    if (attribute == kStride) std::memcpy(&one.stride, value, bytes);
    return 0;
}
STUB_ENTRY(cublasLtMatrixLayoutDestroy, hipblasLtMatrixLayoutDestroy)(void* layout) {
    delete static_cast<Layout*>(layout);
    return 0;
}

STUB_ENTRY(cublasLtMatmulPreferenceCreate, hipblasLtMatmulPreferenceCreate)(void** preference) {
    state().alignments.clear();
    *preference = &state();
    return 0;
}
STUB_ENTRY(cublasLtMatmulPreferenceSetAttribute,
           hipblasLtMatmulPreferenceSetAttribute)(void* /*preference*/, int attribute, const void* value,
                                                  std::size_t bytes) {
    if (attribute == 1) return bytes == sizeof(std::size_t) ? 0 : 7;
    if (bytes != sizeof(std::uint32_t)) return 7;
    std::uint32_t number = 0;
    std::memcpy(&number, value, bytes);
    attribute == 3 ? void(state().reduction_schemes = number) : state().alignments.push_back(number);
    return 0;
}
STUB_ENTRY(cublasLtMatmulPreferenceDestroy, hipblasLtMatmulPreferenceDestroy)(void* /*preference*/) { return 0; }

STUB_ENTRY(cublasLtMatmulAlgoGetHeuristic,
           hipblasLtMatmulAlgoGetHeuristic)(void* /*handle*/, void* product, void* a, void* /*b*/, void* /*c*/, void* d,
                                            void* /*preference*/, int wanted, void* found, int* count) {
    ++state().searches;
    const auto& layout = at<Layout>(d);
    *count = 0;
    if (std::min(layout.rows, layout.columns) < state().least_side) return kNotSupported;
    Algorithm algorithm = algorithm_for(at<Product>(product), at<Layout>(a), layout);
    if (state().alignments.size() == 4) {
        algorithm.alignment_a = static_cast<std::uint16_t>(state().alignments[0]);
        algorithm.alignment_b = static_cast<std::uint16_t>(state().alignments[1]);
        algorithm.alignment_d = static_cast<std::uint16_t>(state().alignments[3]);
    }
    auto* bytes = static_cast<std::byte*>(found);
    for (const StubProposal& proposal : state().proposals) {
        if (*count == wanted) break;
        algorithm.workspace_bytes = static_cast<std::uint32_t>(proposal.workspace_bytes);
        algorithm.proposal = static_cast<std::uint8_t>(*count);
        std::memset(bytes, 0, kFoundBytes);
        std::memcpy(bytes, &algorithm, sizeof(algorithm));
        std::byte* const result = bytes + kAlgorithmBytes;  // workspace, status, waves
        std::memcpy(result, &proposal.workspace_bytes, sizeof(std::size_t));
        std::memcpy(result + sizeof(std::size_t) + sizeof(int), &proposal.waves, sizeof(float));
        bytes += kFoundBytes;
        ++*count;
    }
    return 0;
}

STUB_ENTRY(cublasLtMatmul, hipblasLtMatmul)(void* /*handle*/, void* product, const void* alpha, const void* a,
                                            void* a_layout, const void* b, void* b_layout, const void* beta,
                                            const void* c, void* /*c_layout*/, void* d, void* d_layout,
                                            const void* algorithm, void* workspace, std::size_t workspace_bytes,
                                            void* stream) {
    const auto& how = at<Product>(product);
    const auto factor = [&](const void* value) {
        return how.scale_type == 1 ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
    };
    const auto& of_a = at<Layout>(a_layout);
    const auto& of_b = at<Layout>(b_layout);
    const auto& of_d = at<Layout>(d_layout);
    StubProduct p;
    p.transpose_a = how.attributes[kTransposeA] == kTranspose;
    p.transpose_b = how.attributes[kTransposeB] == kTranspose;
    p.a_rows = of_a.rows;
    p.a_columns = of_a.columns;
    p.b_rows = of_b.rows;
    p.b_columns = of_b.columns;
    p.d_rows = of_d.rows;
    p.d_columns = of_d.columns;
    p.a_stride = of_a.stride;
    p.b_stride = of_b.stride;
    p.d_stride = of_d.stride;
    p.a_dtype = of_a.dtype;
    p.d_dtype = of_d.dtype;
    p.alpha = factor(alpha);
    p.beta = factor(beta);
    p.a = a;
    p.b = b;
    p.d = d;
    p.workspace = workspace;
    p.workspace_bytes = workspace_bytes;
    Algorithm chosen;
    std::memcpy(&chosen, algorithm, sizeof(chosen));
    p.algorithm = chosen.shape;
    p.proposal = chosen.proposal;
    p.stream = stream;
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().products.push_back(p);
    if (state().multiply_status != 0) return state().multiply_status;
    if (c != d) return kInvalidValue;
    if (const int status = check(p, chosen, algorithm_for(how, of_a, of_d), of_a, of_b, of_d); status != 0)
        return status;
    if (state().computes) compute(p, of_a, of_b, of_d);
    return 0;
}
