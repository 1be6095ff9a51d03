#include "compiler/plan/reduced_as_rows.h"

#include <algorithm>
#include <cstdint>

#include "compiler/plan/strides.h"

namespace rowjit {
namespace {

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
    const std::optional<AxisId> over = reduced_axis(group);
    if (!over || group.axis(*over).extent <= kFew || !columns_lie_apart(group, row_axes)) return std::nullopt;
    return over;
}

}  // namespace rowjit
