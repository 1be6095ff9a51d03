#include "compiler/schedule/choose.h"

#include <algorithm>

#include "compiler/plan/online.h"
#include "compiler/schedule/lower.h"

namespace rowjit {

GroupFacts facts_of(const Group& group) {
    const GraphData& graph = *group.graph;
    GroupFacts facts;
    facts.phases = phase_count(graph);
    facts.online_phases = phase_count(*rewrite_online(group.graph));
    facts.reduces_rows = group.reduces_rows;
    facts.scalar_rows = group.row_axes.empty();
    facts.promoted = std::any_of(group.row_axes.begin(), group.row_axes.end(),
                                 [&](AxisId axis) { return graph.axis(axis).is_promoted; });
    facts.widest_bytes = 1;
    facts.narrowest_bytes = 8;
    const auto tensor = [&](const Node& node) {
        if (graph.column_axes(node).empty()) return;
        facts.columns = std::max(facts.columns, graph.column_count(node));
        const int bytes = static_cast<int>(size_bytes(node.dtype));
        facts.widest_bytes = std::max(facts.widest_bytes, bytes);
        facts.narrowest_bytes = std::min(facts.narrowest_bytes, bytes);
    };
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        // A loop runs over the columns of what it computes, which may be more than any tensor has (an outer product).
        facts.columns = std::max(facts.columns, node.kind == NodeKind::kInput ? 1 : graph.column_count(node));
        facts.segmented = facts.segmented || node.is_segmented();
        if (node.kind != NodeKind::kInput) continue;
        tensor(node);
        if (graph.column_axes(node).empty()) continue;
        ++facts.column_inputs;
        facts.shares_columns = facts.shares_columns || graph.row_axes(node).empty();
    }
    for (const OutputInfo& output : graph.outputs()) {
        if (output.slots < 0) tensor(graph.node(output.node));
        facts.sums_rows = facts.sums_rows || output.slots >= 0;
        facts.stores_columns = facts.stores_columns || !graph.column_axes(graph.node(output.node)).empty();
    }
    if (facts.narrowest_bytes > facts.widest_bytes) facts.narrowest_bytes = facts.widest_bytes = 4;
    return facts;
}

std::vector<FamilyOffer> offers(const Group& group, const Target& target) {
    const GroupFacts facts = facts_of(group);
    return {offer_elementwise(facts, target), offer_row_reduction(facts, target), offer_rows_reduction(facts, target)};
}

}  // namespace rowjit
