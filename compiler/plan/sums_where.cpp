#include "compiler/plan/sums_where.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "compiler/plan/masks.h"
#include "compiler/plan/rewrite.h"
#include "dsl/ops.h"

namespace rowjit {
namespace {

struct SumWhere {
    NodeId terms = -1;
    NodeId places = -1;
    NodeId place = -1;
};

bool is_column(const GraphData& graph, NodeId id) {
    const AxisId axis = coordinate_axis(graph, id);
    return axis >= 0 && !graph.axis(axis).is_row && !graph.axis(axis).is_unrolled;
}

// What a value is where a mask that always holds chooses it.
NodeId unmasked(const GraphData& graph, NodeId id) {
    const Node& node = graph.node(id);
    const bool is_masked = node.kind == NodeKind::kMap && node.op == Op::kSelect;
    return is_masked && holds_everywhere(graph, node.args[0]) ? node.args[1] : id;
}

// Whether a row has one for each position along the axis, and nothing else, and its rows stand as the sum's do.
bool lies_along(const GraphData& graph, NodeId id, AxisId axis, const Node& sum) {
    const Node& node = graph.node(id);
    if (graph.column_axes(node) != std::vector<AxisId>{axis}) return false;
    auto next = sum.axes.begin();
    return std::ranges::all_of(graph.row_axes(node), [&](AxisId row) {
        next = std::find(next, sum.axes.end(), row);
        return next != sum.axes.end();
    });
}

bool is_zero(const Node& node) { return node.kind == NodeKind::kConst && node.value == 0; }

std::optional<SumWhere> sum_where(const GraphData& graph, const Node& node) {
    if (node.kind != NodeKind::kReduce || node.monoid != Monoid::kSum || node.is_segmented() || node.state >= 0)
        return std::nullopt;
    if (node.reduced.size() != 1 || graph.axis(node.reduced[0]).is_row || graph.axis(node.reduced[0]).is_unrolled)
        return std::nullopt;
    const Node& terms = graph.node(node.args[0]);
    if (terms.kind != NodeKind::kMap || terms.op != Op::kSelect || !is_zero(graph.node(terms.args[2])))
        return std::nullopt;
    const Node& condition = graph.node(terms.args[0]);
    if (condition.kind != NodeKind::kMap || condition.op != Op::kEq) return std::nullopt;
    const bool place_first = is_column(graph, condition.args[0]);
    const SumWhere found{unmasked(graph, terms.args[1]), condition.args[place_first ? 1 : 0],
                         condition.args[place_first ? 0 : 1]};
    const AxisId along = node.reduced[0];
    if (!is_column(graph, found.place) || !is_integer(graph.node(found.places).dtype)) return std::nullopt;
    if (!lies_along(graph, found.places, along, node) || !lies_along(graph, found.terms, along, node))
        return std::nullopt;
    // A mask may spread the sum along axes that neither has, and the place may be the position itself.
    const AxisId column = coordinate_axis(graph, found.place);
    const bool is_whole = std::ranges::all_of(node.axes, [&](AxisId axis) {
        return axis == column || contains(graph.node(found.places).axes, axis) ||
               contains(graph.node(found.terms).axes, axis);
    });
    if (!is_whole || column == along) return std::nullopt;
    if (size_bytes(accumulator_dtype(node.dtype)) < 4 || node.dtype == Dtype::kBool) return std::nullopt;
    return found;
}

}  // namespace

std::shared_ptr<const GraphData> sum_where_placed(const std::shared_ptr<const GraphData>& graph) {
    const std::vector<NodeId> live = graph->live_nodes();
    const auto applies = [&](NodeId id) { return sum_where(*graph, graph->node(id)).has_value(); };
    if (std::none_of(live.begin(), live.end(), applies)) return graph;
    return rewritten(*graph, [&](GraphData& to, NodeId id, const ToHere& to_here) {
        const Node& node = graph->node(id);
        const std::optional<SumWhere> sum = sum_where(*graph, node);
        if (!sum) return to.add_copy(node, to_here);
        const NodeId wide =
            to.add_sum_where(to_here(sum->terms), to_here(sum->places), to_here(sum->place), node.reduced[0]);
        const NodeId result = node.dtype == to.node(wide).dtype ? wide : to.add_cast(wide, node.dtype);
        to.set_label(result, node.label);
        return result;
    });
}

}  // namespace rowjit
