// Which exponentials a GPU may take in one instruction. Left to others: what the instruction is (templates/).
#pragma once

#include <set>

#include "compiler/kernel.h"

namespace rowjit {

// The f32 exponentials that are only multiplied, divided and added up before they are rounded to bf16 or f16, in which
// a relative error of 2^-17 is lost, or that go into the logarithm of a sum. A difference could magnify the error.
std::set<ValueId> narrow_exponentials(const Kernel& kernel);

}  // namespace rowjit
