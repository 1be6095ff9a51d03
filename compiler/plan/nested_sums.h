// A sum over several axes as a sum of sums, where sums over some of those axes are wanted anyway: the gradient of a
// group's norm adds up each channel for its weight, and the channels' sums, times their weights, are the group's. What
// is left of the group are numbers, so that its rows need not be read and held until they are summed. Likewise of rows:
// the gradient of what all tokens of a sequence share is a sum for each sequence, and those of a norm's weight, over
// all tokens, are added up of one kernel's sums for each.
#pragma once

#include <memory>
#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// Of what rounds in f32 or wider: a product with what does not vary is then taken out of a sum for less than the sum
// itself loses.
bool is_sum_of_columns(const GraphData& graph, const Node& node);
// Likewise over all rows, or some row axes; not over segments.
bool is_sum_of_rows(const GraphData& graph, const Node& node);

// Of columns, and of rows; `graph` where there are none.
std::shared_ptr<const GraphData> nest_sums(const std::shared_ptr<const GraphData>& graph);
std::shared_ptr<const GraphData> nest_row_sums(const std::shared_ptr<const GraphData>& graph);

}  // namespace rowjit
