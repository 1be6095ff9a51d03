// The first pass: a graph in the form the planner and the schedules assume.
//
// Later passes may assume: every Index reads an Input (indices of computed values have been pushed to the inputs and
// the computation repeated at the new coordinates, so no kernel ever reads another lane's computed value) or a
// reduction over rows at other rows, which the planner puts in memory before it is read; maps of constants are
// constants; no dead nodes. Casts stand where they stood: they are rounding points.
#pragma once

#include <memory>

#include "dsl/graph.h"

namespace rowjit {

std::shared_ptr<const GraphData> canonicalize(const GraphData& graph);

}  // namespace rowjit
