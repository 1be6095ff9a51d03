#include "compiler/plan/rewrite.h"

#include <cstddef>
#include <unordered_map>
#include <utility>

namespace rowjit {

std::vector<int> uses_of(const GraphData& graph) {
    std::vector<int> uses(static_cast<std::size_t>(graph.size()), 0);
    for (const NodeId id : graph.live_nodes()) {
        for (const NodeId arg : graph.node(id).args) ++uses[static_cast<std::size_t>(arg)];
    }
    for (const OutputInfo& output : graph.outputs()) ++uses[static_cast<std::size_t>(output.node)];
    return uses;
}

std::shared_ptr<const GraphData> rewritten(
    const GraphData& from, const std::function<NodeId(GraphData& to, NodeId id, const ToHere& to_here)>& convert) {
    auto to = std::make_shared<GraphData>(from.axes());
    std::unordered_map<NodeId, NodeId> mapped;
    const ToHere to_here = [&](NodeId id) { return mapped.at(id); };
    for (const NodeId id : from.live_nodes()) mapped[id] = convert(*to, id, to_here);
    for (OutputInfo output : from.outputs()) {
        output.node = mapped.at(output.node);
        to->add_output(std::move(output));
    }
    return to;
}

NodeId add_reduced_by_turns(GraphData& to, const Node& node, NodeId operand, std::vector<AxisId> inner,
                            std::vector<AxisId> outer) {
    const Dtype wide = node.monoid == Monoid::kSum ? accumulator_dtype(node.dtype) : node.dtype;
    const NodeId parts = to.add_reduce(node.monoid, to.add_cast(operand, wide), std::move(inner));
    const NodeId result = to.add_cast(to.add_reduce(node.monoid, parts, std::move(outer)), node.dtype);
    to.set_label(result, node.label);
    return result;
}

}  // namespace rowjit
