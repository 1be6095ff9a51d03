#include "dsl/softmaxes.h"

#include <cstddef>
#include <vector>

#include "base/dtype.h"

namespace rowjit {
namespace {

bool is_map(const GraphData& graph, NodeId id, Op op) {
    return graph.node(id).kind == NodeKind::kMap && graph.node(id).op == op;
}

bool reduces_by(const Node& node, Monoid monoid) {
    return node.kind == NodeKind::kReduce && node.monoid == monoid && !node.is_segmented() && !is_narrow(node.dtype);
}

std::optional<Softmax> of_column_total(const GraphData& graph, NodeId id) {
    const auto found = softmax_of_total(graph, id);
    return found && !graph.axis(graph.node(id).reduced[0]).is_row ? found : std::nullopt;
}

std::optional<Softmax> of_logarithm_of_total(const GraphData& graph, NodeId id) {
    return is_map(graph, id, Op::kLog) ? of_column_total(graph, graph.node(id).args[0]) : std::nullopt;
}

}  // namespace

std::optional<Softmax> softmax_of_total(const GraphData& graph, NodeId id) {
    const Node& total = graph.node(id);
    if (!reduces_by(total, Monoid::kSum) || !is_map(graph, total.args[0], Op::kExp)) return std::nullopt;
    const NodeId below = graph.node(total.args[0]).args[0];
    if (!is_map(graph, below, Op::kSub)) return std::nullopt;
    const std::vector<NodeId>& args = graph.node(below).args;
    const Node& maximum = graph.node(is_map(graph, args[1], Op::kDetach) ? graph.node(args[1]).args[0] : args[1]);
    const bool is_below =
        reduces_by(maximum, Monoid::kMax) && maximum.args[0] == args[0] && maximum.reduced == total.reduced;
    return is_below ? std::optional(Softmax{below, total.args[0], id}) : std::nullopt;
}

std::optional<Softmax> softmax_of_probability(const GraphData& graph, NodeId id) {
    const std::vector<NodeId>& args = graph.node(id).args;
    if (is_map(graph, id, Op::kExp)) return softmax_of_logarithm(graph, args[0]);
    if (!is_map(graph, id, Op::kDiv)) return std::nullopt;
    const auto found = of_column_total(graph, args[1]);
    return found && found->exponential == args[0] ? found : std::nullopt;
}

std::optional<Softmax> softmax_of_logarithm(const GraphData& graph, NodeId id) {
    const std::vector<NodeId>& args = graph.node(id).args;
    if (is_map(graph, id, Op::kLog)) return softmax_of_probability(graph, args[0]);
    if (!is_map(graph, id, Op::kSub)) return std::nullopt;
    if (const auto found = of_logarithm_of_total(graph, args[1]); found && found->below == args[0]) return found;
    if (!is_map(graph, args[1], Op::kAdd)) return std::nullopt;
    const std::vector<NodeId>& terms = graph.node(args[1]).args;
    for (const std::size_t i : {0, 1}) {
        const auto found = of_logarithm_of_total(graph, terms[i]);
        if (found && graph.node(found->below).args == std::vector<NodeId>{args[0], terms[1 - i]}) return found;
    }
    return std::nullopt;
}

}  // namespace rowjit
