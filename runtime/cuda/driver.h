// NVIDIA's driver library, libcuda.so.1 (or the file ROWJIT_CUDA_DRIVER names).
#pragma once

#include <memory>

#include "base/declined.h"
#include "runtime/gpu/driver.h"

namespace rowjit {

// Opens and initialises the driver. Declines with what is missing and the remedy.
Offer<std::shared_ptr<const GpuDriver>> load_cuda_driver();

}  // namespace rowjit
