#include "runtime/cuda/driver.h"

#include <charconv>
#include <cstdint>
#include <utility>

#include "base/fail.h"

namespace rowjit {
namespace {

// cuda.h's CUdevice_attribute, CUfunction_attribute and CUlaunchAttributeID.
constexpr int kWarpSize = 10;
constexpr int kMultiprocessorCount = 16;
constexpr int kMemoryClockKhz = 36;
constexpr int kMemoryBusBits = 37;
constexpr int kL2Bytes = 38;
constexpr int kMaxThreadsPerMultiprocessor = 39;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;
constexpr int kSharedBytesPerMultiprocessor = 81;
constexpr int kRegistersPerMultiprocessor = 82;
constexpr int kSharedBytesPerBlockOptIn = 97;

constexpr int kFunctionStaticSharedBytes = 1;
constexpr int kFunctionMaxDynamicSharedBytes = 8;
constexpr int kFunctionNonPortableClusters = 14;

// CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion.
constexpr int kTensorMapF16 = 6;
constexpr int kTensorMapBf16 = 9;
constexpr int kTensorMapSwizzle128 = 3;
constexpr int kTensorMapPromote128 = 2;

constexpr unsigned kLaunchClusterDimension = 4;
constexpr unsigned kLaunchProgrammaticSerialization = 6;
constexpr int kCapturesOverlaps = 12030;  // the first driver that captures such launches into graphs

// Double data rate, and the share of clock × bus width that a large copy reached on an H200: 4.28 of 4.92 TB/s.
constexpr double kTransfersPerClock = 2;
constexpr double kReachableBandwidth = 0.87;

// cuda.h's CUlaunchAttribute and CUlaunchConfig, as CUDA 11.8 introduced them.
struct LaunchAttribute {
    unsigned id;
    unsigned padding;
    unsigned value[3];    // a cluster's dimensions, or whether the launch overlaps
    unsigned unused[13];  // the value is a union of 64 bytes
};
static_assert(sizeof(LaunchAttribute) == 72);

struct LaunchConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    void* stream;
    LaunchAttribute* attributes;
    unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56);

// What HIP has no like-named entry for.
struct CudaEntries {
    DriverResult (*error_name)(DriverResult result, const char** text);
    DriverResult (*error_text)(DriverResult result, const char** text);
    DriverResult (*primary_context_retain)(void** context, int device);
    DriverResult (*primary_context_release)(int device);
    DriverResult (*context_get_current)(void** context);
    DriverResult (*context_set_current)(void* context);
    DriverResult (*function_get_attribute)(int* value, int attribute, void* function);
    DriverResult (*function_set_attribute)(void* function, int attribute, int value);

    // Null in drivers before 12.0.
    DriverResult (*encode_tiled)(void* map, int type, std::uint32_t rank, void* address, const std::uint64_t* extents,
                                 const std::uint64_t* strides_bytes, const std::uint32_t* box,
                                 const std::uint32_t* element_strides, int interleave, int swizzle, int l2_promotion,
                                 int fill);
    // Null in drivers before 11.8 (these two) and 12.0 (the library entries).
    DriverResult (*launch_extended)(const LaunchConfig* config, void* function, void** arguments, void** extra);
    DriverResult (*most_clusters)(int* clusters, void* function, const LaunchConfig* config);
    DriverResult (*library_load)(void** library, const void* code, void* jit_options, void* jit_values,
                                 unsigned jit_count, void* library_options, void* library_values,
                                 unsigned library_count);
    DriverResult (*library_unload)(void* library);
    DriverResult (*library_kernel)(void** kernel, void* library, const char* name);
    DriverResult (*kernel_function)(void** function, void* kernel);
};

// The compute capability of a targets.def row's name, as 10 × major + minor. Code for a row with the suffix 'a' runs on
// that capability only; other code runs on later minor versions of its major version too.
struct Architecture {
    int number = 0;
    bool exact = false;
};

Architecture architecture(const Target& row) {
    Architecture result;
    const char* end = row.name.data() + row.name.size();
    const auto [rest, error] = std::from_chars(row.name.data() + 3, end, result.number);  // after "sm_"
    result.exact = rest != end;
    return result;
}

bool runs_on(const Architecture& code, int major, int minor) {
    if (code.exact) return code.number == 10 * major + minor;
    return code.number / 10 == major && code.number % 10 <= minor;
}

// Null when no row's code runs on that compute capability.
const Target* newest_compatible_target(int major, int minor) {
    const Target* best = nullptr;
    for (const Target& row : all_targets()) {
        if (row.backend != Backend::kCuda || !runs_on(architecture(row), major, minor)) continue;
        if (best == nullptr || architecture(row).number > architecture(*best).number) best = &row;
    }
    return best;
}

class CudaDriver final : public GpuDriver {
  public:
    CudaDriver(DynamicLibrary library, const DriverEntries& entries, const CudaEntries& cuda)
        : GpuDriver(std::move(library), entries),
          cuda_(cuda),
          overlaps_(cuda.launch_extended != nullptr && driver_version() >= kCapturesOverlaps) {}

    Backend backend() const override { return Backend::kCuda; }

    std::string version() const override {
        const int version = driver_version();
        return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
    }

    std::string error_name_and_text(DriverResult result) const override {
        const char* name = nullptr;
        cuda_.error_name(result, &name);
        return fmt::format("{} ({})", name == nullptr ? fmt::format("CUresult {}", result) : name, error_text(result));
    }

    const char* error_text(DriverResult result) const noexcept override {
        const char* text = nullptr;
        cuda_.error_text(result, &text);
        return text == nullptr ? "an error this driver has no text for" : text;
    }

    Target describe(int device) const override {
        const int major = attribute(kComputeCapabilityMajor, device);
        const int minor = attribute(kComputeCapabilityMinor, device);
        const Target* row = newest_compatible_target(major, minor);
        if (row == nullptr) fail_uncovered(device, fmt::format("compute capability {}.{}", major, minor));
        Target target = *row;
        target.label = device_name(device);
        take(target.warp_size, kWarpSize, device);
        take(target.sm_count, kMultiprocessorCount, device);
        take(target.shared_bytes_per_block, kSharedBytesPerBlockOptIn, device);
        take(target.shared_bytes_per_sm, kSharedBytesPerMultiprocessor, device);
        take(target.registers_per_sm, kRegistersPerMultiprocessor, device);
        take(target.max_threads_per_sm, kMaxThreadsPerMultiprocessor, device);
        take(target.l2_bytes, kL2Bytes, device);
        const double clock_hz = attribute(kMemoryClockKhz, device) * 1e3;
        const double bus_bytes = attribute(kMemoryBusBits, device) / 8.0;
        const double bandwidth_gbps = clock_hz * kTransfersPerClock * bus_bytes * kReachableBandwidth / 1e9;
        if (bandwidth_gbps > 0) target.bandwidth_gbps = bandwidth_gbps;
        return target;
    }

    // The primary context is the one the CUDA runtime, and so every framework, uses.
    DriverResult retain_context(Context* context, int device) const override {
        void* handle = nullptr;
        const DriverResult result = cuda_.primary_context_retain(&handle, device);
        *context = reinterpret_cast<Context>(handle);
        return result;
    }

    void release_context(int device) const noexcept override { cuda_.primary_context_release(device); }

    DriverResult current_context(Context* context) const noexcept override {
        void* handle = nullptr;
        const DriverResult result = cuda_.context_get_current(&handle);
        *context = reinterpret_cast<Context>(handle);
        return result;
    }

    DriverResult set_current_context(Context context) const noexcept override {
        return cuda_.context_set_current(reinterpret_cast<void*>(context));
    }

    bool is_no_context(Context context) const noexcept override { return context == 0; }

    DriverResult load(void** module, const void* image) const override {
        if (!has_libraries()) return entries().module_load(module, image);
        return cuda_.library_load(module, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    }

    // Asking a kernel for its function loads it now: the driver's default is to load at the first launch, which would
    // synchronise there and break a graph capture.
    DriverResult find_function(void** function, void* module, const char* name) const override {
        if (!has_libraries()) return entries().module_function(function, module, name);
        void* kernel = nullptr;
        const DriverResult result = cuda_.library_kernel(&kernel, module, name);
        return result != 0 ? result : cuda_.kernel_function(function, kernel);
    }

    void unload(void* module) const noexcept override {
        has_libraries() ? cuda_.library_unload(module) : entries().module_unload(module);
    }

    DriverResult lift_limits(void* function, const Target& target) const override {
        int static_bytes = 0;
        DriverResult result = cuda_.function_get_attribute(&static_bytes, kFunctionStaticSharedBytes, function);
        if (result != 0) return result;
        const auto dynamic_bytes = static_cast<int>(target.shared_bytes_per_block) - static_bytes;
        result = cuda_.function_set_attribute(function, kFunctionMaxDynamicSharedBytes, dynamic_bytes);
        if (result != 0 || !target.clusters) return result;
        return cuda_.function_set_attribute(function, kFunctionNonPortableClusters, 1);
    }

    bool overlaps_launches() const noexcept override { return overlaps_; }

    DriverResult launch_extended(void* function, const LaunchGeometry& geometry, StreamHandle stream,
                                 void** arguments) const noexcept override {
        constexpr DriverResult kNotSupported = 801;
        if (cuda_.launch_extended == nullptr) return kNotSupported;
        LaunchAttribute attributes[kMostAttributes];
        const LaunchConfig config = config_of(geometry, stream, attributes);
        return cuda_.launch_extended(&config, function, arguments, nullptr);
    }

    // Boxes of rows of 128 bytes, swizzled as wgmma reads them; what lies outside the matrix is zero.
    const char* map_matrix(const MatrixInMemory& matrix, TensorMap* map) const noexcept override {
        if (cuda_.encode_tiled == nullptr) return "the driver is too old to copy boxes of tensors; 12.0 or later does";
        const auto element_bytes = static_cast<std::uint64_t>(size_bytes(matrix.dtype));
        const std::uint64_t extents[] = {static_cast<std::uint64_t>(matrix.columns),
                                         static_cast<std::uint64_t>(matrix.rows)};
        const std::uint64_t strides_bytes[] = {static_cast<std::uint64_t>(matrix.row_stride) * element_bytes};
        const std::uint32_t box[] = {static_cast<std::uint32_t>(matrix.box_columns),
                                     static_cast<std::uint32_t>(matrix.box_rows)};
        const std::uint32_t element_strides[] = {1, 1};
        const DriverResult result = cuda_.encode_tiled(
            map, matrix.dtype == Dtype::kBf16 ? kTensorMapBf16 : kTensorMapF16, 2, const_cast<void*>(matrix.address),
            extents, strides_bytes, box, element_strides, 0, kTensorMapSwizzle128, kTensorMapPromote128, 0);
        return result == 0 ? nullptr : error_text(result);
    }

    int clusters_at_once(void* function, const LaunchGeometry& geometry) const noexcept override {
        if (cuda_.most_clusters == nullptr) return 0;
        LaunchGeometry alone = geometry;
        alone.overlaps = false;
        LaunchAttribute attributes[kMostAttributes];
        const LaunchConfig config = config_of(alone, nullptr, attributes);
        int clusters = 0;
        return cuda_.most_clusters(&clusters, function, &config) == 0 ? clusters : 0;
    }

  private:
    static constexpr int kMostAttributes = 2;

    static LaunchConfig config_of(const LaunchGeometry& geometry, StreamHandle stream, LaunchAttribute* attributes) {
        unsigned count = 0;
        if (geometry.cluster > 1) attributes[count++] = {kLaunchClusterDimension, 0, {geometry.cluster, 1, 1}, {}};
        if (geometry.overlaps) attributes[count++] = {kLaunchProgrammaticSerialization, 0, {1, 0, 0}, {}};
        return {{geometry.grid, 1, 1}, {geometry.block, 1, 1}, geometry.shared_bytes, stream, attributes, count};
    }

    int driver_version() const {
        int version = 0;
        entries().driver_version(&version);
        return version;
    }

    bool has_libraries() const { return cuda_.library_load != nullptr; }

    const CudaEntries cuda_;
    const bool overlaps_;
};

Offer<CudaEntries> find_cuda_entries(const DynamicLibrary& library) {
    CudaEntries entries = {};
    const bool complete = library.find("cuGetErrorName", entries.error_name) &&
                          library.find("cuGetErrorString", entries.error_text) &&
                          library.find("cuDevicePrimaryCtxRetain", entries.primary_context_retain) &&
                          library.find("cuDevicePrimaryCtxRelease_v2", entries.primary_context_release) &&
                          library.find("cuCtxGetCurrent", entries.context_get_current) &&
                          library.find("cuCtxSetCurrent", entries.context_set_current) &&
                          library.find("cuFuncGetAttribute", entries.function_get_attribute) &&
                          library.find("cuFuncSetAttribute", entries.function_set_attribute);
    if (!complete) return Declined{library.path() + " is too old; install an NVIDIA driver of version 11.0 or later"};
    library.find("cuTensorMapEncodeTiled", entries.encode_tiled);
    library.find("cuLaunchKernelEx", entries.launch_extended);
    library.find("cuOccupancyMaxActiveClusters", entries.most_clusters);
    const bool libraries = library.find("cuLibraryLoadData", entries.library_load) &&
                           library.find("cuLibraryUnload", entries.library_unload) &&
                           library.find("cuLibraryGetKernel", entries.library_kernel) &&
                           library.find("cuKernelGetFunction", entries.kernel_function);
    if (!libraries) entries.library_load = nullptr;
    return entries;
}

}  // namespace

Offer<std::shared_ptr<const GpuDriver>> load_cuda_driver() {
    Offer<DynamicLibrary> library = open_driver_library(
        {Backend::kCuda, "ROWJIT_CUDA_DRIVER", {"libcuda.so.1"}, "install the NVIDIA driver (it ships libcuda.so.1)"});
    if (!library) return Declined{library.reason()};
    const Offer<DriverEntries> entries = find_driver_entries(*library, Backend::kCuda);
    if (!entries) return Declined{entries.reason()};
    const Offer<CudaEntries> cuda = find_cuda_entries(*library);
    if (!cuda) return Declined{cuda.reason()};

    auto driver = std::make_shared<const CudaDriver>(std::move(*library), *entries, *cuda);
    const DriverResult result = driver->entries().init(0);
    if (result == 0) return std::shared_ptr<const GpuDriver>(std::move(driver));
    return Declined{fmt::format("cuInit of {}: {}; check that nvidia-smi lists a device", driver->path(),
                                driver->error_name_and_text(result))};
}

}  // namespace rowjit
