// Conditions on coordinates, of which reverse mode leaves some that always hold.
#pragma once

#include "dsl/graph.h"

namespace rowjit {

// Whether a mask holds everywhere: reverse mode spreads a value along axes by one.
bool holds_everywhere(const GraphData& graph, NodeId mask);

// The axis along which the value is the coordinate, in any integer that has all of its places; -1 where it is none.
AxisId coordinate_axis(const GraphData& graph, NodeId id);

}  // namespace rowjit
