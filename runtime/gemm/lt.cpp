#include "runtime/gemm/lt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
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
};

constexpr Constants kCuda = {"cuBLASLt", 68, 70, 1, 0, 3, 4, 2, 3, 4, 1, 3, 5, 64};
constexpr Constants kHip = {"hipBLASLt", 2, 3, 112, 111, 0, 1, 4, 5, 6, 1, -1, -1, 24};

// Where a sum over k is divided among blocks, its parts are f32 in the workspace and are added in a fixed order; the
// other schemes round the parts to the result's dtype, or add them as they come.
constexpr std::uint32_t kReductionOfF32Parts = 2;
// What NVIDIA advises for Hopper.
constexpr std::size_t kMostWorkspaceBytes = std::size_t{32} << 20;
constexpr int kMostBits = 18;  // powers of two of a side that comes at launch
// Layouts change with every launch: as many launches at a time as there are sets of them.
constexpr std::size_t kLayoutSets = 16;
constexpr std::int64_t kWarmSide = 256;

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

    const char* queue(const GemmShape& shape, const GemmCall& call, StreamHandle stream) const noexcept override {
        const Found& algorithm = algorithms_[bucket(shape)];
        Layouts& set = take_layouts();
        const char* refused = multiply(set, shape, call, algorithm, algorithm.workspace_bytes(constants()), stream);
        set.taken.clear(std::memory_order_release);
        return refused;
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
        for (std::size_t i = 0; i < algorithms_.size(); ++i) {
            const bool again = i > 0 && algorithms_[i].bytes == algorithms_[i - 1].bytes;
            if (!again) multiply(set, shape, call, algorithms_[i], kMostWorkspaceBytes, stream);
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

    const char* multiply(Layouts& set, const GemmShape& shape, const GemmCall& call, const Found& algorithm,
                         std::size_t workspace_bytes, StreamHandle stream) const noexcept {
        const double factors_f64[2] = {1, call.add ? 1.0 : 0.0};
        const float factors_f32[2] = {1, call.add ? 1.0F : 0.0F};
        const bool is_double = type_.result == Dtype::kF64;
        const void* alpha = is_double ? static_cast<const void*>(&factors_f64[0]) : &factors_f32[0];
        const void* beta = is_double ? static_cast<const void*>(&factors_f64[1]) : &factors_f32[1];
        int status = lay_out(set, shape);
        if (status == 0) {
            status = entries().multiply(library_->handle(), product_, alpha, call.right, set.a, call.left, set.b, beta,
                                        call.result, set.d, call.result, set.d, algorithm.bytes.data(), call.workspace,
                                        workspace_bytes, stream);
        }
        return status == 0 ? nullptr : status_text(status);
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

    void find_algorithms() {
        void* preference = nullptr;
        library_->require(entries().preference_create(&preference), "stating preferences");
        int status = entries().preference_set(preference, constants().most_workspace, &kMostWorkspaceBytes,
                                              sizeof(kMostWorkspaceBytes));
        const auto set = [&](int attribute, std::uint32_t value) {
            if (attribute >= 0 && status == 0)
                status = entries().preference_set(preference, attribute, &value, sizeof(value));
        };
        set(constants().reduction_schemes, kReductionOfF32Parts);
        if (constants().alignment_a >= 0) {
            set(constants().alignment_a, static_cast<std::uint32_t>(type_.right_alignment_bytes));
            set(constants().alignment_a + 1, static_cast<std::uint32_t>(type_.left_alignment_bytes));
            set(constants().alignment_a + 2, static_cast<std::uint32_t>(type_.result_alignment_bytes));
            set(constants().alignment_a + 3, static_cast<std::uint32_t>(type_.result_alignment_bytes));
        }
        const bool open = typical_.m == 0 || typical_.n == 0 || typical_.k == 0;
        std::vector<bool> known;
        for (int bits = 0; status == 0 && bits < (open ? kMostBits : 1); ++bits) {
            algorithms_.emplace_back();
            known.push_back(find_algorithm(preference, std::int64_t{1} << bits, &algorithms_.back()));
        }
        entries().preference_destroy(preference);
        library_->require(status, "stating preferences");
        fill_gaps(known);
    }

    bool find_algorithm(void* preference, std::int64_t side, Found* found) const {
        const GemmShape shape = with_side(typical_, side, type_);
        Layouts& set = layouts_[0];
        library_->require(lay_out(set, shape), "describing a matrix");
        int count = 0;
        const int status = entries().find_algorithms(library_->handle(), product_, set.a, set.b, set.d, set.d,
                                                     preference, 1, found->bytes.data(), &count);
        return status == 0 && count > 0 && found->status(constants()) == 0;
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
