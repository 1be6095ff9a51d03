// Which exponentials a GPU may take in one instruction. Left to others: what the instruction is (templates/).
#pragma once

#include <set>

#include "compiler/kernel.h"

namespace rowjit {

// The f32 exponentials of a kernel that stores only bf16 and f16, where nothing but products and quotients stands
// between them and what is stored: a relative error of 2^-17 is then lost in the rounding. A difference could magnify
// it.
std::set<ValueId> narrow_exponentials(const Kernel& kernel);

}  // namespace rowjit
