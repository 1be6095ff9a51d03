// A GPU vendor's driver library, opened at run time: the entry points both vendors share as a table, and the few steps
// in which they differ as virtual functions (cuda/driver.cpp, hip/driver.cpp). gpu/device.cpp makes a device of it.
//
// rowjit declares what it calls itself, so that no vendor header is needed to build it. Handles and device addresses
// are void* throughout: a CUdeviceptr is a 64-bit integer, which both ABIs pass as they pass a pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/declined.h"
#include "base/dynamic_library.h"
#include "base/target.h"
#include "rowjit/error.h"
#include "runtime/device.h"

namespace rowjit {

using DriverResult = int;  // CUresult or hipError_t; 0 is success in both

struct DriverEntries {
#define ROWJIT_ENTRY(name, cuda_symbol, hip_symbol, parameters) DriverResult(*name) parameters = nullptr;
#include "runtime/gpu/driver.def"
#undef ROWJIT_ENTRY
};

class GpuDriver {
  public:
    // What makes a device current in a thread: a CUcontext, or a HIP device number.
    using Context = std::intptr_t;

    virtual ~GpuDriver() = default;

    const DriverEntries& entries() const { return entries_; }
    const std::string& path() const { return library_.path(); }

    virtual Backend backend() const = 0;
    virtual std::string version() const = 0;  // "13.0"
    // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
    virtual std::string error_name_and_text(DriverResult result) const = 0;
    // Static storage, for the launch path.
    virtual const char* error_text(DriverResult result) const noexcept = 0;

    // The targets.def row this device can run, with the device's own numbers. Needs no context. Throws
    // Error(kUnsupported) naming the supported architectures.
    virtual Target describe(int device) const = 0;

    virtual DriverResult retain_context(Context* context, int device) const = 0;
    virtual void release_context(int device) const noexcept = 0;
    virtual DriverResult current_context(Context* context) const noexcept = 0;
    virtual DriverResult set_current_context(Context context) const noexcept = 0;
    // True for what current_context gives in a thread that has chosen no device.
    virtual bool is_no_context(Context context) const noexcept = 0;

    virtual DriverResult load(void** module, const void* image) const = 0;
    virtual DriverResult find_function(void** function, void* module, const char* name) const = 0;
    virtual void unload(void* module) const noexcept = 0;
    // Lifts the limits a launch would otherwise meet: dynamic shared memory up to `target`'s, the largest clusters.
    virtual DriverResult lift_limits(void* function, const Target& target) const = 0;
    // Whether a launch may overlap the one before it, in a stream that is being captured too.
    virtual bool overlaps_launches() const noexcept { return false; }
    // Of clusters, or one that overlaps.
    virtual DriverResult launch_extended(void* function, const LaunchGeometry& geometry, StreamHandle stream,
                                         void** arguments) const noexcept = 0;
    // DeviceImpl::map_matrix.
    virtual const char* map_matrix(const MatrixInMemory& /*matrix*/, TensorMap* /*map*/) const noexcept {
        return "the driver does not copy boxes of tensors";
    }
    // Clusters of that geometry that run at the same time; 0 where the driver does not say.
    virtual int clusters_at_once(void* /*function*/, const LaunchGeometry& /*geometry*/) const noexcept { return 0; }

    int device_count() const;
    std::string device_name(int device) const;
    int attribute(int attribute, int device) const;  // 0 when the driver does not know it
    // Throws Error(code): "{what}: {the driver's error}; {remedy}".
    void require(DriverResult result, ErrorCode code, const std::string& what, const std::string& remedy) const;

  protected:
    // Throws Error(kUnsupported) naming this vendor's targets.
    [[noreturn]] void fail_uncovered(int device, const std::string& architecture) const;

    GpuDriver(DynamicLibrary library, const DriverEntries& entries);

    // Replaces a number from targets.def by the device's own, where the driver knows it.
    template <class T>
    void take(T& value, int attribute_id, int device) const {
        const int reported = attribute(attribute_id, device);
        if (reported > 0) value = static_cast<T>(reported);
    }

  private:
    const DynamicLibrary library_;
    const DriverEntries entries_;
};

// How a vendor's driver library is found.
struct DriverLibrary {
    Backend backend;
    const char* path_variable;       // an environment variable that names the library's file
    std::vector<std::string> names;  // sonames and paths, tried in order
    const char* remedy;
};

// Opens the library. Declines with what was looked for and the remedy.
Offer<DynamicLibrary> open_driver_library(const DriverLibrary& wanted);
// Every row of driver.def in that library. Declines naming the first symbol it lacks.
Offer<DriverEntries> find_driver_entries(const DynamicLibrary& library, Backend backend);

}  // namespace rowjit
