// Loops of which few vectors have anything to add, for both emitters.
#pragma once

#include <vector>

#include "compiler/kernel.h"

namespace rowjit {

// Sums of what passes a number of the row, and nothing else, as a sparsemax's support: few columns of a row do, and
// a vector of which none does adds nothing but +0. What says whether a lane's does, operands first; none where that
// is not all the loop is for.
std::vector<const Inst*> passing_test(const Kernel& kernel, const ColumnLoop& loop);

// Of a sum of what is zero but where a condition holds, what makes that condition, in the loop too; null of others.
const Inst* chooses_or_zero(const Kernel& kernel, const ColumnLoop& loop, const Inst& accumulate);

}  // namespace rowjit
