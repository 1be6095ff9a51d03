// A value along axes that it does not have, in their order. There is no node for it: a choice by a mask that is always
// true, of all axes, has them.
#pragma once

#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// `v` along all of `axes`, in that order; itself where it has them so.
Value with_axes(const Value& v, const std::vector<AxisId>& axes);

// Whether it is such a mask.
bool is_true_everywhere(const GraphData& graph, NodeId condition);

}  // namespace rowjit
