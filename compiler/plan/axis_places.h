// One order of all axes that every value of a graph has its own in. Where a few positions of an axis become values, or
// columns become rows, products are made of operands that share no axis, and of what is read in another order: what is
// made of them again is to have its axes as the graph has them, as no node exchanges two.
#pragma once

#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// The graph's axes with their places in that order; as they are where there is none, as two values have two axes in two
// orders. And with how many are beside each other, by which the planner guesses the extents that a launch gives: of a
// batch of sequences both have a share in the number of its tokens.
std::vector<AxisInfo> with_places(const GraphData& graph);

}  // namespace rowjit
