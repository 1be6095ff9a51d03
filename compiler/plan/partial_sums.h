// Sums over all rows, in two steps: every block of a kernel sums the rows it takes, and a second kernel adds the blocks'
// parts in their order. The first step then shares a kernel with whatever else runs over those rows (a weight's gradient
// with its activation's), and the result depends on the number of blocks alone, never on when they ran.
#pragma once

#include <memory>

#include "base/target.h"
#include "dsl/graph.h"

namespace rowjit {

// Every sum of floats over all row axes of its operand becomes a sum over the slots axis of a PartialSum, each with a
// slots axis of its own. What has too many columns for a part in each block stays. The same graph when there is none.
std::shared_ptr<const GraphData> split_row_sums(const std::shared_ptr<const GraphData>& graph, const Target& target);

}  // namespace rowjit
