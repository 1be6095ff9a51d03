// Registers, local and shared memory and parameters of a cubin's kernels, from the attributes the CUDA assembler leaves
// in it. `explain`, spill pruning and the tests read them without a driver.
#pragma once

#include <string_view>
#include <vector>

#include "base/declined.h"
#include "compiler/toolchain/artifact.h"

namespace rowjit {

// In the order of the symbol table. Declines when the bytes are no cubin; never reads past them.
Offer<std::vector<FunctionInfo>> cubin_info(std::string_view cubin);

}  // namespace rowjit
