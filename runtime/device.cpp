#include "runtime/device.h"

#include <charconv>
#include <string_view>

#include "base/fail.h"
#include "runtime/cpu/device.h"
#include "runtime/cuda/driver.h"
#include "runtime/gpu/device.h"
#include "runtime/hip/driver.h"

namespace rowjit {
namespace {

struct GpuVendor {
    Backend backend;
    Offer<std::shared_ptr<const GpuDriver>> (*load_driver)();
};

// Best first.
constexpr GpuVendor kGpuVendors[] = {
    {Backend::kCuda, load_cuda_driver},
    {Backend::kHip, load_hip_driver},
};

// The number in "cuda:N" when `vendor` is cuda; -1 when `text` is no such name.
int device_number(std::string_view text, std::string_view vendor) {
    if (!text.starts_with(vendor) || text.substr(vendor.size(), 1) != ":") return -1;
    const std::string_view digits = text.substr(vendor.size() + 1);
    int number = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    const bool whole = error == std::errc() && end == digits.data() + digits.size();
    return whole ? number : -1;
}

}  // namespace

std::shared_ptr<DeviceImpl> open_device(const std::string& name) {
    if (name == "cpu") return open_cpu();
    for (const GpuVendor& vendor : kGpuVendors) {
        const int number = device_number(name, rowjit::name(vendor.backend));
        if (number < 0) continue;
        Offer<std::shared_ptr<const GpuDriver>> driver = vendor.load_driver();
        if (!driver) fail(ErrorCode::kEnvironment, "{} cannot be opened: {}", name, driver.reason());
        return open_gpu(*driver, number);
    }
    fail(ErrorCode::kInvalidArgument, "unknown device '{}'; use cuda:N, hip:N or cpu", name);
}

std::vector<std::string> available_devices() {
    std::vector<std::string> names;
    for (const GpuVendor& vendor : kGpuVendors) {
        const Offer<std::shared_ptr<const GpuDriver>> driver = vendor.load_driver();
        if (!driver) continue;
        for (const int number : usable_gpus(**driver))
            names.push_back(fmt::format("{}:{}", name(vendor.backend), number));
    }
    names.emplace_back("cpu");
    return names;
}

}  // namespace rowjit
