// A reduction of what columns were reduced to, over more of them, is one reduction over them all: a mean over a
// picture's lines of the mean of each, or the largest of a block's rows. Two that follow each other are two kernels,
// with numbers in memory between them, and what they are wanted for reads the row again.
#pragma once

#include <memory>

#include "dsl/graph.h"

namespace rowjit {

// Null where there are none. Of sums in f32 or wider, and of extrema, which round nothing; a number that the inner sum
// is multiplied or divided by is taken out of the outer.
std::shared_ptr<const GraphData> flatten_reductions(const GraphData& graph);

}  // namespace rowjit
