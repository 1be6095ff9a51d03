// A GPU of either vendor as a DeviceImpl: memory, streams, modules and launches over a GpuDriver.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/gpu/driver.h"

namespace rowjit {

// Throws Error(kEnvironment) when the driver has no such device, Error(kUnsupported) when no target fits it.
std::shared_ptr<DeviceImpl> open_gpu(std::shared_ptr<const GpuDriver> driver, int device);

// The numbers of the devices that open_gpu accepts. Makes no context.
std::vector<int> usable_gpus(const GpuDriver& driver);

}  // namespace rowjit
