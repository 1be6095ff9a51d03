// What a row has one of lies in a register of each of its threads from where it is computed to where it is last used.
// A derivative of many steps uses last what the first step made: of twenty Sinkhorn steps a thread would hold seven
// hundred numbers, where it has at most 255 registers, and the toolchain takes a minute over it. Such a kernel is
// parted where the derivative has come back some steps: the few numbers that it has made by then are stored, and the
// next kernel computes the steps that it still needs once more, since arithmetic on a row's numbers costs next to
// nothing.
//
// Storing what the first steps made instead, for one kernel that loads each number where it is used, is a kernel that
// NVRTC has not compiled in four minutes: it loads all of them first.
#pragma once

#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// The values to store so that what is computed before them has few enough numbers live at once, and what comes after
// is the less; none where all of `nodes`, which one kernel computes, have few enough, or no value parts them. `nodes`
// has operands before users.
std::vector<NodeId> values_that_part(const GraphData& graph, const std::vector<NodeId>& nodes);

}  // namespace rowjit
