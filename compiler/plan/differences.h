// Differences of sums. Each sum of a row is right to half a unit in its last place, and where two cancel that is many
// units of what is left: a preference loss, of the differences of four sums of thousands of log-probabilities, was 3.6
// units in the last place off where eager was 2. Sums whose difference is taken are made exact ones, and the numbers of
// the row from them to the difference carry what their roundings lost, as one more number each. It is taken in where
// such a number is used for anything else. The columns of such sums cost more; no other kernel changes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// The group with every such sum and number rewritten; the same graph when there is none. What overflows, and what is
// no number, comes out as without.
std::shared_ptr<const GraphData> carry_lost(const std::shared_ptr<const GraphData>& group);

// What becomes of what a node's rounding loses.
enum class Lost : std::uint8_t {
    kNothing,   // it is lost
    kHandedOn,  // another number of the row carries it on
    kTakenIn,   // here it ends, with the difference
};

// By node, of a graph whole or divided. Kernels hand over what is stored alone: a plan is to divide behind the
// difference, not between it and its sums.
std::vector<Lost> lost_by_node(const GraphData& graph);

// a + b less their rounded sum, exactly.
NodeId lost_by_sum(GraphData& graph, NodeId sum, NodeId a, NodeId b);

}  // namespace rowjit
