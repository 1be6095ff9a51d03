// A coordinate as a value: what an index of an iota reads, and what masks compare.
#pragma once

#include "dsl/graph.h"

namespace rowjit {

// The value of `coord` at every position, an integer `dtype` over the axes that it mentions. There are no integer
// divisions among the primitives: a quotient is taken in f32, exactly below 2^24. Throws Error(kUnsupported) for / and
// % beyond that, or of data.
NodeId add_coordinate_value(GraphData& graph, const Coord& coord, Dtype dtype);

}  // namespace rowjit
