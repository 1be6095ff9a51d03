#include "compiler/plan/reduced_as_rows.h"

#include <algorithm>
#include <cstdint>

#include "compiler/plan/strides.h"

namespace rowjit {
namespace {

// Elements between what a load reads at neighbours along `axis`; nothing where it reads the same.
std::optional<std::int64_t> step(const GraphData& group, const Node& load, AxisId axis) {
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

// The one axis of columns that there is, where every reduction over it is of what is read, and nothing else is made of
// what is reduced along it.
std::optional<AxisId> reduced_axis(const GraphData& group) {
    std::optional<AxisId> over;
    std::vector<bool> reduced(static_cast<std::size_t>(group.size()));
    for (const NodeId id : group.live_nodes()) {
        const Node& node = group.node(id);
        if (node.kind == NodeKind::kInput) continue;  // of which an index may take a part
        const bool is_reduction = node.kind == NodeKind::kReduce;
        for (const AxisId axis : group.column_axes(is_reduction ? group.node(node.args[0]) : node)) {
            if (group.axis(axis).is_unrolled || over.value_or(axis) != axis) return std::nullopt;
            over = axis;
        }
        const bool of_reduced =
            std::ranges::any_of(node.args, [&](NodeId arg) { return reduced[static_cast<std::size_t>(arg)]; });
        if (of_reduced && (is_reduction || !group.column_axes(node).empty())) return std::nullopt;
        reduced[static_cast<std::size_t>(id)] = of_reduced || is_reduction;
        const bool folds = node.monoid == Monoid::kSum || node.monoid == Monoid::kMax || node.monoid == Monoid::kMin;
        if (is_reduction && (!folds || node.is_segmented() || group.axis(node.reduced[0]).is_row)) return std::nullopt;
        if (node.kind == NodeKind::kState || node.kind == NodeKind::kPartialReduce || node.kind == NodeKind::kMatmul)
            return std::nullopt;
    }
    const auto stores_columns = [&](const OutputInfo& output) {
        return !group.column_axes(group.node(output.node)).empty();
    };
    return std::ranges::any_of(group.outputs(), stores_columns) ? std::nullopt : over;
}

}  // namespace

std::optional<AxisId> reduced_as_rows(const GraphData& group, const std::vector<AxisId>& row_axes) {
    constexpr std::int64_t kFew = 16;  // which a thread holds
    if (row_axes.empty() || !group.axis(row_axes.back()).is_promoted) return std::nullopt;
    const std::optional<AxisId> over = reduced_axis(group);
    if (!over || group.axis(*over).extent <= kFew) return std::nullopt;
    bool any = false;
    for (const NodeId id : group.live_nodes()) {
        const Node& node = group.node(id);
        const bool is_index = node.kind == NodeKind::kIndex && group.node(node.args[0]).kind == NodeKind::kInput;
        if ((node.kind != NodeKind::kInput && !is_index) || !contains(node.axes, *over)) continue;
        const std::optional<std::int64_t> beside = step(group, node, row_axes.back());
        if (!beside) continue;
        if (*beside >= step(group, node, *over).value_or(0)) return std::nullopt;
        any = true;
    }
    return any ? over : std::nullopt;
}

}  // namespace rowjit
