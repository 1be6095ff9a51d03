// The fewest bytes a graph must move: what a perfect kernel would read and write, the numerator of "percent of copy".
#pragma once

#include <cstdint>

#include "dsl/graph.h"
#include "dsl/tensor.h"

namespace rowjit {

// Every live input read once and every output written once, however often either is used; an input that is only
// gathered counts the elements gathered, and an accumulating output counts twice. Strides and cache lines are not
// considered, nor are run-time scalars. `rows` as in extent_of (dsl/tensor.h), which throws for a missing axis.
std::int64_t least_bytes(const GraphData& graph, const RowExtents& rows);

// What its inputs and outputs take where they lie, each whole: of one row of many that is taken, all the rows.
std::int64_t held_bytes(const GraphData& graph, const RowExtents& rows);

}  // namespace rowjit
