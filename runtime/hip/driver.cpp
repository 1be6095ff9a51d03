#include "runtime/hip/driver.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/fail.h"

namespace rowjit {
namespace {

// hip_runtime_api.h's hipDeviceAttribute_t; these values are the same from ROCm 5.0 on.
constexpr int kL2Bytes = 19;
constexpr int kMaxThreadsPerMultiprocessor = 57;
constexpr int kMultiprocessorCount = 63;
constexpr int kSharedBytesPerBlock = 74;
constexpr int kWarpSize = 87;
constexpr int kSharedBytesPerMultiprocessor = 10002;

// What CUDA has no like-named entry for.
struct HipEntries {
    const char* (*error_name)(DriverResult result);
    const char* (*error_text)(DriverResult result);
    DriverResult (*get_device)(int* device);
    DriverResult (*set_device)(int device);
    DriverResult (*device_properties)(void* properties, int device);
};

// The architecture's name ("gfx942:sramecc+:xnack-") stands only in hipDeviceProp_t, whose layout changed with ROCm 6:
// the name moved from byte 396 to byte 1160. It is looked for instead of declaring both layouts. Both begin with the
// device's marketing name in 256 bytes, which may itself contain "gfx".
std::string find_architecture(std::string_view properties) {
    constexpr std::size_t kNameBytes = 256;
    const std::size_t begin = properties.find("gfx", kNameBytes);
    if (begin == std::string_view::npos) return "no architecture name";
    const std::string_view rest = properties.substr(begin);
    return std::string(rest.substr(0, rest.find('\0')));
}

class HipDriver final : public GpuDriver {
  public:
    HipDriver(DynamicLibrary library, const DriverEntries& entries, const HipEntries& hip)
        : GpuDriver(std::move(library), entries), hip_(hip) {}

    Backend backend() const override { return Backend::kHip; }

    std::string version() const override {
        int version = 0;
        entries().driver_version(&version);
        return fmt::format("{}.{}", version / 10000000, version / 100000 % 100);
    }

    std::string error_name_and_text(DriverResult result) const override {
        return fmt::format("{} ({})", hip_.error_name(result), hip_.error_text(result));
    }

    const char* error_text(DriverResult result) const noexcept override { return hip_.error_text(result); }

    // The bandwidth stays the table's: the driver reports the memory controller's clock, and how many transfers a clock
    // makes (2 for HBM2e, 4 for HBM3, 16 for GDDR6) it does not say.
    Target describe(int device) const override {
        std::array<char, 8192> properties = {};  // the largest layout so far has 1472 bytes
        require(hip_.device_properties(properties.data(), device), ErrorCode::kEnvironment,
                fmt::format("hipGetDeviceProperties of hip:{}", device), "check that rocminfo lists the device");
        const std::string architecture = find_architecture({properties.data(), properties.size()});
        const bool covered = std::ranges::any_of(all_targets(), [&](const Target& row) {
            return row.backend == Backend::kHip && row.name == architecture.substr(0, architecture.find(':'));
        });
        if (!covered) fail_uncovered(device, architecture);
        Target target = find_target(architecture);
        target.label = device_name(device);
        take(target.warp_size, kWarpSize, device);
        take(target.sm_count, kMultiprocessorCount, device);
        take(target.shared_bytes_per_block, kSharedBytesPerBlock, device);
        take(target.shared_bytes_per_sm, kSharedBytesPerMultiprocessor, device);
        take(target.max_threads_per_sm, kMaxThreadsPerMultiprocessor, device);
        take(target.l2_bytes, kL2Bytes, device);
        return target;
    }

    // HIP keeps one context per device and names it by the device's number.
    DriverResult retain_context(Context* context, int device) const override {
        *context = device;
        return 0;
    }

    void release_context(int /*device*/) const noexcept override {}

    DriverResult current_context(Context* context) const noexcept override {
        int device = 0;
        const DriverResult result = hip_.get_device(&device);
        *context = device;
        return result;
    }

    DriverResult set_current_context(Context context) const noexcept override {
        return hip_.set_device(static_cast<int>(context));
    }

    bool is_no_context(Context /*context*/) const noexcept override { return false; }

    DriverResult load(void** module, const void* image) const override { return entries().module_load(module, image); }

    DriverResult find_function(void** function, void* module, const char* name) const override {
        return entries().module_function(function, module, name);
    }

    void unload(void* module) const noexcept override { entries().module_unload(module); }

    // Every byte of LDS is available to a launch without asking.
    DriverResult lift_limits(void* /*function*/, const Target& /*target*/) const override { return 0; }

    DriverResult launch_extended(void* /*function*/, const LaunchGeometry& /*geometry*/, StreamHandle /*stream*/,
                                 void** /*arguments*/) const noexcept override {
        constexpr DriverResult kNotSupported = 801;
        return kNotSupported;
    }

  private:
    const HipEntries hip_;
};

Offer<HipEntries> find_hip_entries(const DynamicLibrary& library) {
    HipEntries entries = {};
    const bool complete =
        library.find("hipGetErrorName", entries.error_name) && library.find("hipGetErrorString", entries.error_text) &&
        library.find("hipGetDevice", entries.get_device) && library.find("hipSetDevice", entries.set_device) &&
        (library.find("hipGetDevicePropertiesR0600", entries.device_properties) ||
         library.find("hipGetDeviceProperties", entries.device_properties));
    if (!complete) return Declined{library.path() + " is too old; install ROCm 5.0 or later"};
    return entries;
}

}  // namespace

Offer<std::shared_ptr<const GpuDriver>> load_hip_driver() {
    Offer<DynamicLibrary> library = open_driver_library(
        {Backend::kHip,
         "ROWJIT_HIP_DRIVER",
         {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "/opt/rocm/lib/libamdhip64.so"},
         "install ROCm (it ships libamdhip64.so)"});
    if (!library) return Declined{library.reason()};
    const Offer<DriverEntries> entries = find_driver_entries(*library, Backend::kHip);
    if (!entries) return Declined{entries.reason()};
    const Offer<HipEntries> hip = find_hip_entries(*library);
    if (!hip) return Declined{hip.reason()};

    auto driver = std::make_shared<const HipDriver>(std::move(*library), *entries, *hip);
    const DriverResult result = driver->entries().init(0);
    if (result == 0) return std::shared_ptr<const GpuDriver>(std::move(driver));
    return Declined{fmt::format("hipInit of {}: {}; check that rocminfo lists a GPU", driver->path(),
                                driver->error_name_and_text(result))};
}

}  // namespace rowjit
