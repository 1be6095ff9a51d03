#include "runtime/gemm/lt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/dynamic_library.h"
#include "base/fail.h"
#include "compiler/toolchain/library_search.h"

namespace rowjit {
namespace {

struct Entries {
#define ROWJIT_ENTRY(name, cuda_symbol, hip_symbol, parameters) int(*name) parameters = nullptr;
#include "runtime/gemm/lt.def"
#undef ROWJIT_ENTRY
};

// cublasLt.h's and hipblaslt.h's enumerators. Dtypes have the same numbers in both.
struct Constants {
    std::string_view name;
    int compute_f32;
    int compute_f64;
    int transpose;
    int no_transpose;
    int product_transpose_a;
    int product_transpose_b;
    int layout_rows;
    int layout_columns;
    int layout_stride;
    int most_workspace;
    int reduction_schemes;  // -1: the library has no such preference
    int alignment_a;        // b, c and d follow; -1 likewise
    std::size_t algorithm_bytes;
    std::size_t found_bytes;  // of an algorithm and what the library says of it
    bool most_waves;          // the rule of kManyWaves has been measured
};

constexpr Constants kCuda = {"cuBLASLt", 68, 70, 1, 0, 3, 4, 2, 3, 4, 1, 3, 5, 64, 96, true};
constexpr Constants kHip = {"hipBLASLt", 2, 3, 112, 111, 0, 1, 4, 5, 6, 1, -1, -1, 24, 56, false};

// Where a sum over k is divided among blocks, its parts are f32 in the workspace and are added in a fixed order; the
// other schemes round the parts to the result's dtype, or add them as they come.
constexpr std::uint32_t kReductionOfF32Parts = 2;
// What NVIDIA advises for Hopper.
constexpr std::size_t kMostWorkspaceBytes = std::size_t{32} << 20;
constexpr int kMostBits = 18;  // powers of two of a side that comes at launch
// Layouts change with every launch: as many launches at a time as there are sets of them.
constexpr std::size_t kLayoutSets = 16;
constexpr std::int64_t kWarmSide = 256;
// The most a library makes use of, and what it assumes where it is told nothing.
constexpr std::uint32_t kMostAlignment = 256;
// Algorithms that a library is asked for: its first proposal is not always taken.
constexpr int kProposals = 8;
// A large product takes the proposal with the most waves, that of the smallest tiles: the end of a tile, which stores
// it, hides behind the products of another. With few waves it is the last one that counts. The three products of a
// head on an H200, 32768 × 4096 × 128256 in chunks of 2048 rows added up in f32, take 150.7 ms so and 159.8 by the
// library's first proposals, in one chunk 153.7 and 154.9 (linear_bench): there it is power that sets the clock.
constexpr float kManyWaves = 4;

int number_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::kF32: return 0;
        case Dtype::kF64: return 1;
        case Dtype::kF16: return 2;
        case Dtype::kBf16: return 14;
        default: fail(ErrorCode::kUnsupported, "matmul of {}: give floats", name(dtype));
    }
}

const char* status_text(int status) {
    switch (status) {
        case 1: return "the library is not initialised";
        case 3: return "an allocation failed";
        case 7: return "an invalid value";
        case 8: return "the device lacks a feature";
        case 13: return "the execution failed";
        case 14: return "an internal error";
        case 15: return "the combination is not supported";
        default: return "the library refused a product";
    }
}

// A shape or an address that an algorithm does not serve; another one may.
bool is_refusal(int status) { return status == 7 || status == 15; }

std::uint32_t alignment_of(const void* address, std::int64_t stride, Dtype dtype) {
    const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(address) |
                               static_cast<std::uint64_t>(stride) * size_bytes(dtype) | kMostAlignment;
    return static_cast<std::uint32_t>(bits & (~bits + 1));
}

}  // namespace

class LtLibrary {
  public:
    LtLibrary(DynamicLibrary library, const Entries& entries, const Constants& constants, void* handle)
        : library_(std::move(library)), entries_(entries), constants_(constants), handle_(handle) {}
    LtLibrary(const LtLibrary&) = delete;
    LtLibrary& operator=(const LtLibrary&) = delete;
    // The handle stays: whoever drops the last reference may not have the device current, and may be at exit.
    ~LtLibrary() = default;

    const Entries& entries() const { return entries_; }
    const Constants& constants() const { return constants_; }
    void* handle() const { return handle_; }
    const std::string& path() const { return library_.path(); }

    void require(int status, std::string_view what) const {
        if (status == 0) return;
        fail(ErrorCode::kEnvironment, "{}: {} failed with status {} ({}); install another version of {}", path(), what,
             status, status_text(status), constants_.name);
    }

  private:
    DynamicLibrary library_;
    const Entries entries_;
    const Constants& constants_;
    void* handle_;
};

namespace {

// cublasLtMatmulHeuristicResult_t and hipBLASLt's, whose algorithms differ in size.
struct Found {
    std::array<std::byte, 128> bytes = {};
    std::size_t workspace_bytes(const Constants& c) const { return read<std::size_t>(c.algorithm_bytes); }
    int status(const Constants& c) const { return read<int>(c.algorithm_bytes + sizeof(std::size_t)); }
    // Tiles over as many as the device works on at once.
    float waves(const Constants& c) const { return read<float>(c.algorithm_bytes + sizeof(std::size_t) + sizeof(int)); }

  private:
    template <class T>
    T read(std::size_t offset) const {
        T value;
        std::memcpy(&value, bytes.data() + offset, sizeof(T));
        return value;
    }
};

class LtGemm final : public Gemm {
  public:
    LtGemm(std::shared_ptr<const LtLibrary> library, const GemmType& type, const GemmShape& typical)
        : library_(std::move(library)), type_(type), typical_(typical) {
        if (type.left != type.right) {
            fail(ErrorCode::kUnsupported, "matmul of {} and {}: {} multiplies equal dtypes; cast one operand",
                 name(type.left), name(type.right), constants().name);
        }
        if (type.result != type.left && type.result != Dtype::kF32) {
            fail(ErrorCode::kUnsupported, "matmul of {} to {}: {} gives the operands' dtype or f32; cast the result",
                 name(type.left), name(type.result), constants().name);
        }
        try {
            make_product();
            for (Layouts& set : layouts_) make_layouts(&set);
            find_algorithms();
        } catch (...) {
            destroy();
            throw;
        }
    }
    LtGemm(const LtGemm&) = delete;
    LtGemm& operator=(const LtGemm&) = delete;
    ~LtGemm() override { destroy(); }

    std::size_t workspace_bytes(const GemmShape& shape) const noexcept override {
        return algorithms_[bucket(shape)].workspace_bytes(constants());
    }

    // A refused algorithm is refused before anything is queued, so another one may follow it, in a capture too.
    const char* queue(const GemmShape& shape, const GemmCall& call, StreamHandle stream) const noexcept override {
        const Found& usual = algorithms_[bucket(shape)];
        const Problem problem = {shape, alignments_of(shape, call)};
        Layouts& set = take_layouts();
        int tried = 1;
        Found own;
        int status = lay_out(set, shape);
        if (status == 0) {
            status = multiply(set, call, recall(problem, &own) ? own : usual, workspace_bytes(shape), stream);
            if (is_refusal(status)) status = multiply_otherwise(set, problem, call, stream, status, &tried);
        }
        set.taken.clear(std::memory_order_release);
        return status == 0 ? nullptr : describe_refusal(status, shape, call, usual, tried);
    }

    std::size_t warm_bytes() const noexcept override {
        return kMostWorkspaceBytes + 3 * kWarmSide * kWarmSide * sizeof(double);
    }

    // Each algorithm on a small product, which its kernel serves too. One that refuses it is loaded by the first
    // launch.
    void warm(void* scratch, StreamHandle stream) const noexcept override {
        auto* block = static_cast<std::byte*>(scratch) + kMostWorkspaceBytes;
        constexpr std::size_t kMatrixBytes = kWarmSide * kWarmSide * sizeof(double);
        const GemmShape shape = {kWarmSide, kWarmSide, kWarmSide, kWarmSide, kWarmSide, kWarmSide};
        const GemmCall call = {block, block + kMatrixBytes, block + 2 * kMatrixBytes, false, scratch};
        Layouts& set = take_layouts();
        const bool laid_out = lay_out(set, shape) == 0;
        for (std::size_t i = 0; laid_out && i < algorithms_.size(); ++i) {
            const bool again = i > 0 && algorithms_[i].bytes == algorithms_[i - 1].bytes;
            if (!again) multiply(set, call, algorithms_[i], kMostWorkspaceBytes, stream);
        }
        set.taken.clear(std::memory_order_release);
    }

  private:
    struct Layouts {
        void* a = nullptr;
        void* b = nullptr;
        void* d = nullptr;
        std::atomic_flag taken;
    };

    struct Alignments {
        std::uint32_t left_bytes;
        std::uint32_t right_bytes;
        std::uint32_t result_bytes;
        auto operator<=>(const Alignments&) const = default;
    };

    // What an algorithm may depend on.
    struct Problem {
        GemmShape shape;
        Alignments alignments;
        auto operator<=>(const Problem&) const = default;
    };

    const Entries& entries() const { return library_->entries(); }
    const Constants& constants() const { return library_->constants(); }

    // The library counts columns first: its a is our right operand, its b our left one, and the result is turned
    // likewise.
    void make_product() {
        const bool is_double = type_.result == Dtype::kF64;
        library_->require(
            entries().product_create(&product_, is_double ? constants().compute_f64 : constants().compute_f32,
                                     number_of(is_double ? Dtype::kF64 : Dtype::kF32)),
            "describing a product");
        const auto set = [&](int attribute, bool transposed) {
            const int value = transposed ? constants().transpose : constants().no_transpose;
            library_->require(entries().product_set(product_, attribute, &value, sizeof(value)),
                              "describing a product");
        };
        set(constants().product_transpose_a, type_.right_transposed);
        set(constants().product_transpose_b, type_.left_transposed);
    }

    void make_layouts(Layouts* set) const {
        const auto make = [&](void** layout, Dtype dtype) {
            library_->require(entries().layout_create(layout, number_of(dtype), 1, 1, 1), "describing a matrix");
        };
        make(&set->a, type_.right);
        make(&set->b, type_.left);
        make(&set->d, type_.result);
    }

    void destroy() {
        for (Layouts& set : layouts_) {
            for (void* layout : {set.a, set.b, set.d}) {
                if (layout != nullptr) entries().layout_destroy(layout);
            }
        }
        if (product_ != nullptr) entries().product_destroy(product_);
    }

    Layouts& take_layouts() const noexcept {
        for (std::size_t i = 0;; i = (i + 1) % kLayoutSets) {
            if (!layouts_[i].taken.test_and_set(std::memory_order_acquire)) return layouts_[i];
        }
    }

    int lay_out(Layouts& set, const GemmShape& shape) const noexcept {
        const auto one = [&](void* layout, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
            const auto height = static_cast<std::uint64_t>(rows);
            const auto width = static_cast<std::uint64_t>(columns);
            // A stride below the height, of a single column, would be refused.
            const std::int64_t step = std::max(stride, rows);
            int status = entries().layout_set(layout, constants().layout_rows, &height, sizeof(height));
            if (status == 0) status = entries().layout_set(layout, constants().layout_columns, &width, sizeof(width));
            if (status == 0) status = entries().layout_set(layout, constants().layout_stride, &step, sizeof(step));
            return status;
        };
        int status = type_.right_transposed ? one(set.a, shape.k, shape.n, shape.right_stride)
                                            : one(set.a, shape.n, shape.k, shape.right_stride);
        if (status != 0) return status;
        status = type_.left_transposed ? one(set.b, shape.m, shape.k, shape.left_stride)
                                       : one(set.b, shape.k, shape.m, shape.left_stride);
        if (status != 0) return status;
        return one(set.d, shape.n, shape.m, shape.result_stride);
    }

    int multiply(Layouts& set, const GemmCall& call, const Found& algorithm, std::size_t workspace_bytes,
                 StreamHandle stream) const noexcept {
        const double factors_f64[2] = {1, call.add ? 1.0 : 0.0};
        const float factors_f32[2] = {1, call.add ? 1.0F : 0.0F};
        const bool is_double = type_.result == Dtype::kF64;
        const void* alpha = is_double ? static_cast<const void*>(&factors_f64[0]) : &factors_f32[0];
        const void* beta = is_double ? static_cast<const void*>(&factors_f64[1]) : &factors_f32[1];
        return entries().multiply(library_->handle(), product_, alpha, call.right, set.a, call.left, set.b, beta,
                                  call.result, set.d, call.result, set.d, algorithm.bytes.data(), call.workspace,
                                  workspace_bytes, stream);
    }

    // ---- Refusals ------------------------------------------------------------------------------------------------

    // Algorithms for this very problem, in the workspace that the usual one was given; the first that is taken is
    // remembered.
    int multiply_otherwise(Layouts& set, const Problem& problem, const GemmCall& call, StreamHandle stream, int status,
                           int* tried) const noexcept {
        try {
            const std::size_t bytes = workspace_bytes(problem.shape);
            for (const Found& found : find_candidates(set, problem, bytes)) {
                if (found.workspace_bytes(constants()) > bytes) continue;
                ++*tried;
                status = multiply(set, call, found, bytes, stream);
                if (is_refusal(status)) continue;
                if (status == 0) {
                    const std::lock_guard<std::mutex> lock(remembering_);
                    remembered_.insert_or_assign(problem, found);
                    has_remembered_.store(true, std::memory_order_release);
                }
                return status;
            }
        } catch (...) {
            return status;  // no memory to remember with
        }
        return status;
    }

    std::vector<Found> find_candidates(Layouts& set, const Problem& problem, std::size_t workspace_bytes) const {
        void* preference = make_preference(problem.alignments, workspace_bytes);
        std::vector<Found> found = proposals(set, preference);
        entries().preference_destroy(preference);
        return found;
    }

    bool recall(const Problem& problem, Found* found) const noexcept {
        if (!has_remembered_.load(std::memory_order_acquire)) return false;
        const std::lock_guard<std::mutex> lock(remembering_);
        const auto known = remembered_.find(problem);
        if (known == remembered_.end()) return false;
        *found = known->second;
        return true;
    }

    Alignments alignments_of(const GemmShape& shape, const GemmCall& call) const noexcept {
        return {alignment_of(call.left, shape.left_stride, type_.left),
                alignment_of(call.right, shape.right_stride, type_.right),
                alignment_of(call.result, shape.result_stride, type_.result)};
    }

    // Every number that the library saw.
    const char* describe_refusal(int status, const GemmShape& shape, const GemmCall& call, const Found& algorithm,
                                 int tried) const noexcept {
        static thread_local std::array<char, 1024> buffer;
        const Alignments given = alignments_of(shape, call);
        const auto matrix = [](Dtype dtype, bool transposed, std::int64_t stride, std::uint32_t alignment,
                               std::int64_t promised) {
            return fmt::format("{}{} stride {} aligned to {} (promised {})", name(dtype),
                               transposed ? " transposed" : "", stride, alignment, promised);
        };
        try {
            std::string words;
            for (std::size_t i = 0; i < constants().algorithm_bytes; i += sizeof(std::uint64_t)) {
                std::uint64_t word = 0;
                std::memcpy(&word, algorithm.bytes.data() + i, sizeof(word));
                words += fmt::format(" {:x}", word);
            }
            const auto end = fmt::format_to_n(
                buffer.data(), buffer.size() - 1,
                "{} (status {}, {} algorithms tried): m {}, n {}, k {}; left {}; right {}; result {}{}; workspace of "
                "{} bytes at {}; algorithm{}, typical m {}, n {}, k {}; {}",
                status_text(status), status, tried, shape.m, shape.n, shape.k,
                matrix(type_.left, type_.left_transposed, shape.left_stride, given.left_bytes,
                       type_.left_alignment_bytes),
                matrix(type_.right, type_.right_transposed, shape.right_stride, given.right_bytes,
                       type_.right_alignment_bytes),
                matrix(type_.result, false, shape.result_stride, given.result_bytes, type_.result_alignment_bytes),
                call.add ? ", added to" : "", algorithm.workspace_bytes(constants()), call.workspace, words, typical_.m,
                typical_.n, typical_.k, library_->path());
            *end.out = '\0';
            return buffer.data();
        } catch (...) {
            return status_text(status);
        }
    }

    // ---- Algorithms ----------------------------------------------------------------------------------------------

    // Which algorithm a shape takes: by the power of two that its side given at launch comes up to.
    std::size_t bucket(const GemmShape& shape) const noexcept {
        const std::int64_t side = typical_.m == 0 ? shape.m : typical_.n == 0 ? shape.n : typical_.k == 0 ? shape.k : 1;
        const auto bits =
            static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(1, side) - 1)));
        return std::min(bits, algorithms_.size() - 1);
    }

    static GemmShape with_side(GemmShape shape, std::int64_t side, const GemmType& type) {
        for (std::int64_t* open : {&shape.m, &shape.n, &shape.k}) {
            if (*open == 0) *open = side;
        }
        // Contiguous, where the caller gave no stride.
        if (shape.left_stride == 0) shape.left_stride = type.left_transposed ? shape.m : shape.k;
        if (shape.right_stride == 0) shape.right_stride = type.right_transposed ? shape.k : shape.n;
        if (shape.result_stride == 0) shape.result_stride = shape.n;
        return shape;
    }

    void* make_preference(const Alignments& alignments, std::size_t workspace_bytes) const {
        void* preference = nullptr;
        library_->require(entries().preference_create(&preference), "stating preferences");
        int status =
            entries().preference_set(preference, constants().most_workspace, &workspace_bytes, sizeof(workspace_bytes));
        const auto set = [&](int attribute, std::uint32_t value) {
            if (attribute >= 0 && status == 0)
                status = entries().preference_set(preference, attribute, &value, sizeof(value));
        };
        set(constants().reduction_schemes, kReductionOfF32Parts);
        if (constants().alignment_a >= 0) {
            set(constants().alignment_a, alignments.right_bytes);
            set(constants().alignment_a + 1, alignments.left_bytes);
            set(constants().alignment_a + 2, alignments.result_bytes);
            set(constants().alignment_a + 3, alignments.result_bytes);
        }
        if (status != 0) entries().preference_destroy(preference);
        library_->require(status, "stating preferences");
        return preference;
    }

    void find_algorithms() {
        void* preference = make_preference({static_cast<std::uint32_t>(type_.left_alignment_bytes),
                                            static_cast<std::uint32_t>(type_.right_alignment_bytes),
                                            static_cast<std::uint32_t>(type_.result_alignment_bytes)},
                                           kMostWorkspaceBytes);
        const bool open = typical_.m == 0 || typical_.n == 0 || typical_.k == 0;
        std::vector<bool> known;
        for (int bits = 0; bits < (open ? kMostBits : 1); ++bits) {
            algorithms_.emplace_back();
            known.push_back(find_algorithm(preference, std::int64_t{1} << bits, &algorithms_.back()));
        }
        entries().preference_destroy(preference);
        fill_gaps(known);
    }

    bool find_algorithm(void* preference, std::int64_t side, Found* found) const {
        Layouts& set = layouts_[0];
        if (lay_out(set, with_side(typical_, side, type_)) != 0) return false;
        const std::vector<Found> proposed = proposals(set, preference);
        if (!proposed.empty()) *found = preferred(proposed);
        return !proposed.empty();
    }

    // What the library proposes for the shapes of `set`, its own choice first.
    std::vector<Found> proposals(const Layouts& set, void* preference) const {
        std::vector<std::byte> results(constants().found_bytes * kProposals);
        int count = 0;
        const int status = entries().find_algorithms(library_->handle(), product_, set.a, set.b, set.d, set.d,
                                                     preference, kProposals, results.data(), &count);
        std::vector<Found> proposed;
        for (int i = 0; status == 0 && i < count; ++i) {
            Found& one = proposed.emplace_back();
            std::memcpy(one.bytes.data(), results.data() + static_cast<std::size_t>(i) * constants().found_bytes,
                        constants().found_bytes);
            if (one.status(constants()) != 0) proposed.pop_back();
        }
        return proposed;
    }

    const Found& preferred(const std::vector<Found>& proposed) const {
        const Found* best = &proposed.front();
        if (type_.first_proposal || !constants().most_waves || best->waves(constants()) < kManyWaves) return *best;
        // Some count their tiles in a few bytes; those that divide a sum take megabytes.
        const std::size_t bytes = std::max(best->workspace_bytes(constants()), kGemmWorkspaceAlignment);
        for (const Found& one : proposed) {
            if (one.workspace_bytes(constants()) <= bytes && one.waves(constants()) > best->waves(constants()))
                best = &one;
        }
        return *best;
    }

    // A shape without an algorithm of its own takes the nearest larger one's, else the nearest smaller one's.
    void fill_gaps(const std::vector<bool>& known) {
        const auto first = std::find(known.begin(), known.end(), true);
        if (first == known.end()) {
            fail(ErrorCode::kEnvironment, "{}: no algorithm multiplies {} by {} to {}; install another version of {}",
                 library_->path(), name(type_.left), name(type_.right), name(type_.result), constants().name);
        }
        for (std::size_t i = 0; i < known.size(); ++i) {
            if (known[i]) continue;
            const auto larger = std::find(known.begin() + static_cast<std::ptrdiff_t>(i), known.end(), true);
            const auto from = larger != known.end() ? larger - known.begin() : static_cast<std::ptrdiff_t>(i) - 1;
            algorithms_[i] = algorithms_[static_cast<std::size_t>(from)];
        }
    }

    std::shared_ptr<const LtLibrary> library_;
    const GemmType type_;
    const GemmShape typical_;
    void* product_ = nullptr;
    mutable std::array<Layouts, kLayoutSets> layouts_;
    std::vector<Found> algorithms_;  // by the bits of the side given at launch; one where none is
    // Of problems that the algorithm of their bits was refused for.
    mutable std::mutex remembering_;
    mutable std::map<Problem, Found> remembered_;
    mutable std::atomic<bool> has_remembered_ = false;
};

std::vector<std::string> candidates(Backend backend) {
    const bool cuda = backend == Backend::kCuda;
    const std::vector<std::string> stems =
        cuda ? std::vector<std::string>{"libcublasLt.so"} : std::vector<std::string>{"libhipblaslt.so"};
    if (const auto chosen = chosen_libraries(cuda ? "ROWJIT_CUBLASLT" : "ROWJIT_HIPBLASLT", stems)) return *chosen;
    std::vector<std::string> found;
    const auto add = [&](const std::vector<std::filesystem::path>& folders) {
        const std::vector<std::string> libraries = libraries_in(folders, stems);
        found.insert(found.end(), libraries.begin(), libraries.end());
    };
    add(folders_beside_rowjit());
    if (!cuda) {
        for (const char* name : {"libhipblaslt.so", "libhipblaslt.so.1", "libhipblaslt.so.0"}) found.emplace_back(name);
        add({"/opt/rocm/lib"});
        return found;
    }
    add(cuda_toolkit_folders());
    add(python_wheel_folders({"nvidia/cu13/lib", "nvidia/cublas/lib"}));
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) found.emplace_back(name);
    return found;
}

Offer<Entries> find_entries(const DynamicLibrary& library, Backend backend) {
    Entries entries;
    const bool cuda = backend == Backend::kCuda;
#define ROWJIT_ENTRY(name, cuda_symbol, hip_symbol, parameters)                                      \
    if (const char* symbol = cuda ? #cuda_symbol : #hip_symbol; !library.find(symbol, entries.name)) \
        return Declined{fmt::format("{} has no {}", library.path(), symbol)};
#include "runtime/gemm/lt.def"
#undef ROWJIT_ENTRY
    return entries;
}

}  // namespace

Offer<std::shared_ptr<const LtLibrary>> open_lt(Backend backend) {
    const Constants& constants = backend == Backend::kCuda ? kCuda : kHip;
    std::string reasons;
    for (const std::string& candidate : candidates(backend)) {
        Offer<DynamicLibrary> library = DynamicLibrary::open(candidate);
        if (!library) {
            reasons += "\n  " + library.reason();
            continue;
        }
        const Offer<Entries> entries = find_entries(*library, backend);
        if (!entries) {
            reasons += "\n  " + entries.reason();
            continue;
        }
        void* handle = nullptr;
        const int status = entries->create(&handle);
        if (status == 0) return std::make_shared<const LtLibrary>(std::move(*library), *entries, constants, handle);
        reasons += fmt::format("\n  {}: status {} ({})", library->path(), status, status_text(status));
    }
    return Declined{
        fmt::format("no {}; install it with the toolkit of the driver's vendor, or set {} to its path. Tried:{}",
                    constants.name, backend == Backend::kCuda ? "ROWJIT_CUBLASLT" : "ROWJIT_HIPBLASLT", reasons)};
}

std::unique_ptr<Gemm> make_lt_gemm(std::shared_ptr<const LtLibrary> library, const GemmType& type,
                                   const GemmShape& typical) {
    return std::make_unique<LtGemm>(std::move(library), type, typical);
}

}  // namespace rowjit
