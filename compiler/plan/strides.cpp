#include "compiler/plan/strides.h"

#include <algorithm>
#include <ranges>
#include <set>

namespace rowjit {

std::int64_t stride_of(const GraphData& group, const Node& input, std::size_t axis) {
    const auto is_promoted = [&](AxisId id) { return group.axis(id).is_promoted; };
    const std::size_t first_column = input.axes.size() - group.column_axes(input).size();
    if (axis >= first_column) return input.column_strides.empty() ? 1 : input.column_strides[axis - first_column];
    const auto begin = input.axes.begin();
    const auto before =
        static_cast<std::size_t>(std::count_if(begin, begin + static_cast<std::ptrdiff_t>(axis), is_promoted));
    const bool is_known = is_promoted(input.axes[axis]) && before < input.promoted_strides.size();
    return is_known ? input.promoted_strides[before] : kStrideOfRows;
}

std::optional<std::int64_t> step_along(const GraphData& group, const Node& load, AxisId axis) {
    const bool is_index = load.kind == NodeKind::kIndex;
    const Node& input = is_index ? group.node(load.args[0]) : load;
    std::optional<std::int64_t> least;
    for (std::size_t i = 0; i < input.axes.size(); ++i) {
        const std::vector<Axis> along = is_index ? load.coords[i].axes() : std::vector<Axis>{{input.axes[i]}};
        if (std::ranges::none_of(along, [&](Axis a) { return a.id == axis; })) continue;
        least = std::min(least.value_or(kStrideOfRows), stride_of(group, input, i));
    }
    return least;
}

namespace {

// The inputs that are read in order, and the indices into others.
std::set<NodeId> loads(const GraphData& group) {
    std::set<NodeId> result;
    for (const NodeId id : group.live_nodes()) {
        const Node& node = group.node(id);
        for (std::size_t i = 0; i < node.args.size(); ++i) {
            if (group.node(node.args[i]).kind != NodeKind::kInput) continue;
            if (!node.reads_from_memory(i)) result.insert(node.args[i]);
            if (node.kind == NodeKind::kIndex) result.insert(id);
        }
    }
    return result;
}

}  // namespace

bool columns_lie_apart(const GraphData& group, const std::vector<AxisId>& row_axes) {
    if (row_axes.empty() || !group.axis(row_axes.back()).is_promoted) return false;
    bool any = false;
    for (const NodeId id : loads(group)) {
        const Node& node = group.node(id);
        const std::optional<std::int64_t> beside = step_along(group, node, row_axes.back());
        if (!beside) continue;
        for (const AxisId axis : group.column_axes(node)) {
            if (*beside >= step_along(group, node, axis).value_or(kStrideOfRows)) return false;
            any = true;
        }
    }
    return any;
}

std::int64_t neighbouring_rows(const GraphData& group, const std::vector<AxisId>& row_axes) {
    if (row_axes.empty()) return 1;
    const std::set<NodeId> read = loads(group);
    std::int64_t rows = 1;
    for (const AxisId axis : row_axes | std::views::reverse) {
        const auto follows = [&](NodeId id) {
            const Node& node = group.node(id);
            const std::optional<std::int64_t> beside = step_along(group, node, row_axes.back());
            return group.column_axes(node).empty() || !beside || step_along(group, node, axis) == *beside * rows;
        };
        if (!group.axis(axis).is_promoted || !std::ranges::all_of(read, follows)) break;
        rows *= group.axis(axis).extent;
    }
    return rows;
}

}  // namespace rowjit
