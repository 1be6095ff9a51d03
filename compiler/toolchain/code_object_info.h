// Registers, spills, LDS and arguments of an AMD code object's kernels, from its metadata note. `explain`, spill
// pruning, the launch and the tests read them without a driver.
#pragma once

#include <string_view>
#include <vector>

#include "base/declined.h"
#include "compiler/toolchain/artifact.h"

namespace rowjit {

// In the metadata's order. Declines when the bytes are no code object of version 3 or later; never reads past them.
Offer<std::vector<FunctionInfo>> code_object_info(std::string_view code_object);

}  // namespace rowjit
