// AMD's HIP runtime, libamdhip64.so (or the file ROWJIT_HIP_DRIVER names).
#pragma once

#include <memory>

#include "base/declined.h"
#include "runtime/gpu/driver.h"

namespace rowjit {

// Opens and initialises the runtime. Declines with what is missing and the remedy.
Offer<std::shared_ptr<const GpuDriver>> load_hip_driver();

}  // namespace rowjit
