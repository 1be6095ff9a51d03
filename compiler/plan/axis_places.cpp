#include "compiler/plan/axis_places.h"

#include <algorithm>
#include <cstddef>
#include <set>

namespace rowjit {
namespace {

void count_beside(const GraphData& graph, std::vector<AxisInfo>* axes) {
    for (const NodeId id : graph.live_nodes()) {
        std::vector<AxisId> given = graph.node(id).axes;
        std::erase_if(given, [&](AxisId axis) { return !graph.axis(axis).is_given(); });
        for (const AxisId axis : given) {
            int& beside = (*axes)[static_cast<std::size_t>(axis)].beside;
            beside = std::max(beside, static_cast<int>(given.size()));
        }
    }
}

using AxisSets = std::vector<std::set<AxisId>>;  // by axis

// Those that some value has in front of an axis.
AxisSets in_front(const GraphData& graph) {
    AxisSets before(graph.axes().size());
    for (const NodeId id : graph.live_nodes()) {
        const std::vector<AxisId>& axes = graph.node(id).axes;
        for (std::size_t i = 1; i < axes.size(); ++i) before[static_cast<std::size_t>(axes[i])].insert(axes[i - 1]);
    }
    return before;
}

// Those that had better be in front of an axis: where an index asks for it in the place of one of a computed value's,
// what that value is computed of has it there among the others, as in m[c / 4, c % 4] the sums over m's rows and those
// over its columns have.
AxisSets better_in_front(const GraphData& graph) {
    AxisSets before(graph.axes().size());
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        if (node.kind != NodeKind::kIndex || graph.node(node.args[0]).kind == NodeKind::kInput) continue;
        const std::vector<AxisId>& source = graph.node(node.args[0]).axes;
        for (std::size_t i = 0; i < source.size(); ++i) {
            for (const Axis asked : node.coords[i].axes()) {
                if (contains(source, asked.id)) continue;
                if (i > 0) before[static_cast<std::size_t>(asked.id)].insert(source[i - 1]);
                if (i + 1 < source.size()) before[static_cast<std::size_t>(source[i + 1])].insert(asked.id);
            }
        }
    }
    return before;
}

}  // namespace

std::vector<AxisInfo> with_places(const GraphData& graph) {
    const AxisSets before = in_front(graph);
    const AxisSets better = better_in_front(graph);
    std::vector<AxisInfo> counted = graph.axes();
    count_beside(graph, &counted);
    std::vector<AxisInfo> placed = counted;
    for (AxisInfo& axis : placed) axis.place = 0;
    const auto is_placed = [&](AxisId id) { return placed[static_cast<std::size_t>(id)].place > 0; };
    const auto may_be_next = [&](std::size_t axis, const AxisSets& behind) {
        return placed[axis].place == 0 && std::ranges::all_of(behind[axis], is_placed);
    };
    const auto next_axis = [&](bool at_best) {
        std::size_t axis = 0;
        while (axis < placed.size() && !(may_be_next(axis, before) && (!at_best || may_be_next(axis, better)))) ++axis;
        return axis;
    };
    for (int place = 1; place <= static_cast<int>(placed.size()); ++place) {
        std::size_t next = next_axis(true);
        if (next == placed.size()) next = next_axis(false);
        if (next == placed.size()) return counted;
        placed[next].place = place;
    }
    return placed;
}

}  // namespace rowjit
