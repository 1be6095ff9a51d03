// The first pass: a graph in the form the planner and the schedules assume.
//
// Later passes may assume: every Index reads an Input (indices of computed values have been pushed to the inputs and
// the computation repeated at the new coordinates, so no kernel ever reads another lane's computed value), or at other
// rows a reduction over rows or a number that columns were reduced to, which the planner puts in memory before it is
// read; maps of constants are constants; no dead nodes. Casts stand where they stood: they are rounding points.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "dsl/graph.h"

namespace rowjit {

// The positions of `unrolled` axes become values of their own: nothing has such an axis any more but inputs, which are
// read at each position, and outputs, which are stored in pieces. A reduction over one is the fold of its terms.
// Values of the given graph that are `kept` are not computed again for other rows, but read where their row is stored.
// Sums over columns of sums over rows are swapped (sum_columns_first), or left as they are given.
enum class SumOrder : std::uint8_t { kColumnsFirst, kAsGiven };
std::shared_ptr<const GraphData> canonicalize(const GraphData& graph, const std::set<AxisId>& unrolled = {},
                                              const std::set<NodeId>& kept = {},
                                              SumOrder order = SumOrder::kColumnsFirst);

}  // namespace rowjit
