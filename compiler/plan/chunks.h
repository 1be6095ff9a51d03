// Products whose operands or results are too large to be held for all rows: the steps that touch them become a loop
// over blocks of rows, in which a product over those rows is added up (fused linear losses: logits, their loss and
// gradient, the gradients of hidden states and weight, a chunk at a time).
//
// Legal where every step inside is local in the axis that is divided, apart from sums over it, which no other step
// inside may read. What needs the whole batch first must therefore be computed outside.
#pragma once

#include "compiler/plan/plan.h"
#include "rowjit/chunk_options.h"

namespace rowjit {

// The plan with its loops, and notes that say which, or why there is none. A plan with columns in blocks has a loop
// over those besides.
Plan divide_into_chunks(Plan plan, const ChunkOptions& options);

}  // namespace rowjit
