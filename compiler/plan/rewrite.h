// The walk of passes that make a graph of a graph, node by node, and keep its axes and outputs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// Where a node of the graph that is read has come to in the one that is made.
using ToHere = std::function<NodeId(NodeId)>;

// By node, how often live nodes and outputs read it.
std::vector<int> uses_of(const GraphData& graph);

// What `convert` makes of each live node in `to`, operands first, with the outputs of `from`. Of a node that stays as
// it is, convert returns to.add_copy(node, to_here).
std::shared_ptr<const GraphData> rewritten(
    const GraphData& from, const std::function<NodeId(GraphData& to, NodeId id, const ToHere& to_here)>& convert);

// The reduction `node`, of `operand`, over its axes `inner` first and then over `outer`, its others: a sum of what is
// narrow in f32 between them, and rounded once.
NodeId add_reduced_by_turns(GraphData& to, const Node& node, NodeId operand, std::vector<AxisId> inner,
                            std::vector<AxisId> outer);

}  // namespace rowjit
