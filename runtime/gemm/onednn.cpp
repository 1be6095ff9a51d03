#include "runtime/gemm/onednn.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "base/dynamic_library.h"
#include "base/environment.h"
#include "runtime/gemm/convert.h"

namespace rowjit {
namespace {

// A product of bf16 with sums of f32, row-major, which versions 2 and 3 export beside dnnl_sgemm and declare for their
// own tests. Returns dnnl_status_t, 0 for success.
using Multiply = int (*)(char transpose_a, char transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
                         float alpha, const std::uint16_t* a, std::int64_t a_stride, const std::uint16_t* b,
                         std::int64_t b_stride, float beta, float* c, std::int64_t c_stride);

struct OneDnn {
    std::optional<DynamicLibrary> library;
    std::string missing;  // why there is none
    Multiply multiply = nullptr;
    // OpenMP's, of the threads that the calling thread divides its work among; null where the library was built with
    // another runtime.
    void (*set_threads)(int) = nullptr;
    int (*threads)() = nullptr;
};

// Without such instructions products of f32 are faster.
bool processor_multiplies_bf16() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16") != 0;
#else
    return false;
#endif
}

// What keeps the library from being used; "" for nothing.
std::string find_functions(OneDnn& onednn) {
    const DynamicLibrary& library = *onednn.library;
    if (!library.find("dnnl_gemm_bf16bf16f32", onednn.multiply))
        return fmt::format("{} has no dnnl_gemm_bf16bf16f32", library.path());
    const std::array<std::uint16_t, 2> ones = {f32_to_bf16(1), f32_to_bf16(1)};
    float sum = 0;
    const int status = onednn.multiply('N', 'N', 1, 1, 2, 1, ones.data(), 2, ones.data(), 1, 0, &sum, 1);
    if (status != 0 || sum != 2) return fmt::format("{} returns {} for a product of bf16", library.path(), status);
    library.find("omp_set_num_threads", onednn.set_threads);
    library.find("omp_get_max_threads", onednn.threads);
    return "";
}

OneDnn open_onednn() {
    if (!processor_multiplies_bf16()) return {.missing = "this processor has no instructions for products of bf16"};
    std::vector<std::string> names = {"libdnnl.so.3", "libdnnl.so.2"};
    if (const auto chosen = environment_text("ROWJIT_ONEDNN")) names = {*chosen};
    std::string missing;
    for (const std::string& name : names) {
        OneDnn onednn;
        Offer<DynamicLibrary> library = DynamicLibrary::open(name);
        if (library) onednn.library = std::move(*library);
        const std::string wrong = library ? find_functions(onednn) : library.reason();
        if (wrong.empty()) return onednn;
        if (missing.empty()) missing = wrong;
    }
    return {.missing = missing};
}

const OneDnn& onednn() {
    static const OneDnn opened = open_onednn();
    return opened;
}

// The calling thread's products are made by it alone. Threads of OpenMP's wait for each other by spinning: where
// another program held one of two cores, a product by both took six times as long; and these are not
// ROWJIT_CPU_THREADS.
class AloneInThread {
  public:
    AloneInThread() {
        if (onednn().set_threads == nullptr || onednn().threads == nullptr) return;
        before_ = onednn().threads();
        onednn().set_threads(1);
    }
    AloneInThread(const AloneInThread&) = delete;
    AloneInThread& operator=(const AloneInThread&) = delete;
    ~AloneInThread() {
        if (before_ > 0) onednn().set_threads(before_);
    }

  private:
    int before_ = 0;
};

// Sides of the blocks of a result that workers take: 0.85 of the rate of a whole product, on one core.
constexpr std::int64_t kMostSide = 512;
constexpr std::int64_t kLeastSide = 128;
// Smaller blocks of a small result, so that many workers have some: as many whatever their number, as the order of a
// sum may depend on a block's sides.
constexpr std::int64_t kEnoughBlocks = 32;
// So that a worker that is held up does not hold up the product; each has room for one block's sums.
constexpr int kPiecesPerWorker = 2;

std::int64_t blocks_along(std::int64_t side, std::int64_t block) { return (side + block - 1) / block; }

struct BlockSides {
    std::int64_t m = kMostSide;
    std::int64_t n = kMostSide;

    std::int64_t blocks(const GemmShape& shape) const { return blocks_along(shape.m, m) * blocks_along(shape.n, n); }
};

BlockSides block_sides(const GemmShape& shape) {
    BlockSides block = {std::clamp<std::int64_t>(shape.m, 1, kMostSide),
                        std::clamp<std::int64_t>(shape.n, 1, kMostSide)};
    while (block.blocks(shape) < kEnoughBlocks && std::max(block.m, block.n) >= 2 * kLeastSide) {
        std::int64_t& longer = block.n >= block.m ? block.n : block.m;
        longer /= 2;
    }
    return block;
}

class OneDnnGemm final : public Gemm {
  public:
    OneDnnGemm(const GemmType& type, const CpuWorkers& workers) : type_(type), workers_(workers) {}

    std::size_t workspace_bytes(const GemmShape& shape) const noexcept override {
        return rounds() ? static_cast<std::size_t>(pieces() * sums_of_block(block_sides(shape))) * sizeof(float) : 0;
    }

    const char* queue(const GemmShape& shape, const GemmCall& call, StreamHandle /*stream*/) const noexcept override {
        if (rounds() && reinterpret_cast<std::uintptr_t>(call.workspace) % kGemmWorkspaceAlignment != 0)
            return "its workspace is not aligned to 256 bytes";
        Job job = {*this, shape, call, block_sides(shape)};
        const RangeBody body = [](void* context, std::int64_t begin, std::int64_t end) noexcept {
            static_cast<Job*>(context)->do_pieces(begin, end);
        };
        if (workers_.parallel_for.run != nullptr) {
            workers_.parallel_for.run(workers_.parallel_for.context, pieces(), body, &job);
        } else {
            body(&job, 0, pieces());
        }
        return job.refused.load() ? "oneDNN refused a product of bf16" : nullptr;
    }

  private:
    // A product in flight.
    struct Job {
        const OneDnnGemm& gemm;
        const GemmShape& shape;
        const GemmCall& call;
        BlockSides block;
        std::atomic<std::int64_t> next_block = 0;
        std::atomic<bool> refused = false;

        // Pieces take blocks until there are none; each has sums of its own.
        void do_pieces(std::int64_t begin, std::int64_t end) noexcept {
            const AloneInThread alone;
            const std::int64_t along_n = blocks_along(shape.n, block.n);
            for (std::int64_t piece = begin; piece < end; ++piece) {
                float* sums = static_cast<float*>(call.workspace) + piece * sums_of_block(block);
                for (std::int64_t i = next_block++; i < block.blocks(shape); i = next_block++) {
                    if (!gemm.multiply_block(shape, call, block, i / along_n * block.m, i % along_n * block.n, sums))
                        refused = true;
                }
            }
        }
    };

    bool rounds() const noexcept { return type_.result != Dtype::kF32; }
    std::int64_t pieces() const noexcept { return std::int64_t{kPiecesPerWorker} * workers_.count; }

    // Whole vectors, so that pieces share no line.
    static std::int64_t sums_of_block(const BlockSides& block) noexcept { return (block.m * block.n + 63) / 64 * 64; }

    // The block of the result that begins at [m, n].
    bool multiply_block(const GemmShape& shape, const GemmCall& call, const BlockSides& block, std::int64_t m,
                        std::int64_t n, float* sums) const noexcept {
        const std::int64_t rows = std::min(block.m, shape.m - m);
        const std::int64_t columns = std::min(block.n, shape.n - n);
        const auto* left =
            static_cast<const std::uint16_t*>(call.left) + (type_.left_transposed ? m : m * shape.left_stride);
        const auto* right =
            static_cast<const std::uint16_t*>(call.right) + (type_.right_transposed ? n * shape.right_stride : n);
        const std::int64_t row_bytes = shape.result_stride * element_bytes(type_.result);
        std::byte* result = static_cast<std::byte*>(call.result) + m * row_bytes + n * element_bytes(type_.result);
        std::int64_t sums_stride = columns;
        if (!rounds()) {
            sums = reinterpret_cast<float*>(result);
            sums_stride = std::max(shape.result_stride, columns);
        }
        // The library refuses a stride below the width also where there is one row.
        const std::int64_t left_stride = std::max(shape.left_stride, type_.left_transposed ? rows : shape.k);
        const std::int64_t right_stride = std::max(shape.right_stride, type_.right_transposed ? shape.k : columns);
        const float before = call.add && !rounds() ? 1 : 0;
        if (onednn().multiply(type_.left_transposed ? 'T' : 'N', type_.right_transposed ? 'T' : 'N', rows, columns,
                              shape.k, 1, left, left_stride, right, right_stride, before, sums, sums_stride) != 0)
            return false;
        if (!rounds()) return true;
        for (std::int64_t row = 0; row < rows; ++row) {
            round_sums(type_.result, sums + row * sums_stride, columns, call.add, result + row * row_bytes);
        }
        return true;
    }

    const GemmType type_;
    const CpuWorkers workers_;
};

}  // namespace

std::unique_ptr<Gemm> make_onednn_gemm(const GemmType& type, const CpuWorkers& workers) {
    const bool multiplies = type.left == Dtype::kBf16 && type.right == Dtype::kBf16 && onednn().multiply != nullptr;
    return multiplies ? std::make_unique<OneDnnGemm>(type, workers) : nullptr;
}

Offer<std::string> onednn_path() {
    if (onednn().library) return onednn().library->path();
    return Declined{onednn().missing};
}

}  // namespace rowjit
