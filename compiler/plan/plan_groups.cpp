// A piece as a group: a graph of its own, whose inputs and outputs are tensors of the program and temporaries; and a
// product as what a library is called with.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "compiler/plan/cutter.h"
#include "compiler/plan/group_names.h"
#include "compiler/plan/planner.h"
#include "compiler/plan/reduced_as_rows.h"
#include "rowjit/error.h"

namespace rowjit::planning {

// The piece as a graph of its own.
// The graph is right, so what a kernel of it cannot be is for the planner to say: with some columns as rows two values
// may have their axes in two orders, and no node exchanges them.
std::shared_ptr<const GraphData> Planner::subgraph(const Piece& piece) const {
    try {
        return written(piece);
    } catch (const Error& error) {
        if (error.code() != ErrorCode::kInvalidGraph) throw;
        fail(ErrorCode::kUnsupported,
             "no kernel gives {}: its reductions have it take [{}] as rows, where {}; or compute one of the two in a "
             "graph of its own",
             graph_->describe(piece.roots.front()),
             graph_->describe_axes({piece.promoted.begin(), piece.promoted.end()}), error.what());
    }
}

std::shared_ptr<const GraphData> Planner::written(const Piece& piece) const {
    std::vector<AxisInfo> axes = graph_->axes();
    for (const AxisId axis : piece.promoted) {
        axes[static_cast<std::size_t>(axis)].is_row = true;
        axes[static_cast<std::size_t>(axis)].is_promoted = true;
    }
    auto result = std::make_shared<GraphData>(std::move(axes));
    std::map<NodeId, NodeId> mapped;
    for (const NodeId root : piece.roots) {
        const Node& node = graph_->node(root);
        copy(piece, node.kind == NodeKind::kPartialReduce ? node.args[0] : root, result.get(), &mapped);
    }
    for (const NodeId root : piece.roots) add_outputs(piece, root, mapped, result.get());
    return result;
}

// Partial sums of one kernel have its blocks as their slots: they share the axis of the first of them.
AxisId Planner::shared_slots(AxisId slots) const {
    const auto along = [&](NodeId root) {
        return graph_->node(root).kind == NodeKind::kPartialReduce ? graph_->node(root).axis : -1;
    };
    for (const Piece& piece : pieces_) {
        if (std::ranges::none_of(piece.roots, [&](NodeId root) { return along(root) == slots; })) continue;
        for (const NodeId root : piece.roots) {
            if (along(root) >= 0) return along(root);
        }
    }
    return slots;
}

// The node along the slots its group shares; nothing where it has none.
std::optional<Node> Planner::with_shared_slots(NodeId id) const {
    Node moved = graph_->node(id);
    bool has_slots = false;
    const auto share = [&](AxisId& axis) {
        if (axis < 0 || !graph_->axis(axis).is_slots) return;
        has_slots = true;
        axis = shared_slots(axis);
    };
    std::ranges::for_each(moved.axes, share);
    std::ranges::for_each(moved.reduced, share);
    share(moved.axis);
    return has_slots ? std::optional(std::move(moved)) : std::nullopt;
}

NodeId Planner::copy(const Piece& piece, NodeId id, GraphData* into, std::map<NodeId, NodeId>* mapped) const {
    if (const auto found = mapped->find(id); found != mapped->end()) return found->second;
    const std::optional<Node> moved = with_shared_slots(id);
    const Node& node = moved ? *moved : graph_->node(id);
    const auto convert = [&]() -> NodeId {
        if (node.kind == NodeKind::kInput) return add_input(node, node.name, into);
        if ((!is_root(piece, id) || piece.copies) && cutter_.cuts_.contains(id)) {
            return packed_.contains(id) ? load_packed(id, into) : add_input(node, place_of(id), into);
        }
        for (const NodeId arg : node.args) copy(piece, arg, into, mapped);
        if (node.kind == NodeKind::kIndex) return copy_index(node, into, *mapped);
        // Coordinates of row axes are 64-bit; a promoted axis has few enough positions for the dtype it had.
        if (node.kind == NodeKind::kIota && into->axis(node.axis).is_row)
            return into->add_cast(into->add_iota(node.axis, Dtype::kI64), node.dtype);
        return into->add_copy(node, [&](NodeId arg) { return mapped->at(arg); });
    };
    const NodeId result = convert();
    mapped->emplace(id, result);
    return result;
}

// Promotion reorders an input's axes, and its coordinates with them.
NodeId Planner::copy_index(const Node& node, GraphData* into, const std::map<NodeId, NodeId>& mapped) const {
    const std::vector<AxisId>& declared = graph_->node(node.args[0]).axes;
    std::vector<Coord> coords;
    for (const AxisId axis : into->node(mapped.at(node.args[0])).axes) {
        const auto at = std::find(declared.begin(), declared.end(), axis) - declared.begin();
        coords.push_back(node.coords[static_cast<std::size_t>(at)].substitute(
            [](Axis a) { return Coord(a); }, [&](NodeId data) { return Coord::data_node(mapped.at(data)); }));
    }
    const NodeId result = into->add_index(mapped.at(node.args[0]), std::move(coords));
    into->set_label(result, node.label);
    return result;
}

// A tensor of the program, its axes reordered so that promoted ones stand among the row axes.
NodeId Planner::add_input(const Node& node, const std::string& name, GraphData* into) {
    Ordered ordered = order_axes(node.axes, node.column_strides, *into, node.promoted_strides);
    const NodeId input = into->add_input(name, node.dtype, std::move(ordered.axes), std::move(ordered.column_strides));
    into->set_promoted_strides(input, std::move(ordered.promoted_strides));
    return input;
}

// The axes of the tensor in which a packed number lies.
std::vector<AxisId> Planner::packed_axes(NodeId id) const {
    std::vector<AxisId> axes = {packed_.at(id).axis};
    const std::vector<AxisId>& rows = graph_->node(id).axes;
    axes.insert(axes.end(), rows.begin(), rows.end());
    return axes;
}

NodeId Planner::load_packed(NodeId id, GraphData* into) const {
    const Packed& packed = packed_.at(id);
    const Node& node = graph_->node(id);
    std::vector<Coord> coords = {Coord(packed.at)};
    for (const AxisId axis : node.axes) coords.emplace_back(Axis{axis});
    const std::string name = temporary_name(packed.first);
    const std::optional<NodeId> known = into->find_input(name);
    const NodeId tensor = known ? *known : into->add_input(name, node.dtype, packed_axes(id), {});
    const NodeId result = into->add_index(tensor, std::move(coords));
    into->set_label(result, node.label);
    return result;
}

OutputPiece Planner::piece_of_packed(NodeId id) const {
    const Packed& packed = packed_.at(id);
    OutputPiece piece{temporary_name(packed.first), packed_axes(id), {packed.at}};
    piece.at.resize(piece.axes.size(), -1);
    return piece;
}

// The tensor that a product reads.
std::string Planner::tensor_name(NodeId id) const {
    const Node& node = graph_->node(id);
    return node.kind == NodeKind::kInput ? node.name : place_of(id);
}

Product Planner::product(NodeId id) const {
    const Node& node = graph_->node(id);
    const OutputInfo* output = cutter_.home(id);
    Product result;
    result.name = node.label.empty() ? fmt::format("matmul_{}", id) : node.label;
    result.result = place_of(id);
    result.accumulate = output != nullptr && output->accumulate;
    result.contracted = node.reduced;
    for (const auto& [left, right] : {std::pair(node.args[0], node.args[1]), {node.args[1], node.args[0]}}) {
        std::vector<AxisId> axes;
        for (const NodeId arg : {left, right}) {
            for (const AxisId axis : graph_->node(arg).axes) {
                if (!contains(node.reduced, axis)) axes.push_back(axis);
            }
        }
        result.left = tensor_name(left);
        result.right = tensor_name(right);
        if (axes == node.axes) return result;
    }
    fail(ErrorCode::kUnsupported,
         "{}: the axes of its operands alternate; the result of a matmul has all axes of one operand before those "
         "of the other, so make the row axes of one of them column axes",
         graph_->describe(id));
}

void Planner::add_outputs(const Piece& piece, NodeId root, const std::map<NodeId, NodeId>& mapped,
                          GraphData* into) const {
    const Node& node = graph_->node(root);
    if (node.kind == NodeKind::kPartialReduce) {
        OutputInfo parts{
            temporary_name(root), mapped.at(node.args[0]), "", false, {}, shared_slots(node.axis), node.dtype};
        parts.parts_monoid = node.monoid;
        parts.parts_component = node.component;
        parts.parts_rounded = !shown_wide_[static_cast<std::size_t>(root)];
        const auto slots = std::find(node.axes.begin(), node.axes.end(), node.axis);
        parts.outer.assign(node.axes.begin(), slots);
        std::copy_if(std::next(slots), node.axes.end(), std::back_inserter(parts.apart),
                     [&](AxisId axis) { return into->axis(axis).is_row; });
        into->add_output(std::move(parts));
        return;
    }
    const NodeId copy = mapped.at(root);
    if (is_temporary(root) && !piece.copies) {
        OutputInfo stored{temporary_name(root), copy, "", false, strides_among_columns(root, *into)};
        if (packed_.contains(root)) {
            stored.piece = piece_of_packed(root);
        } else {
            stored.promoted_strides = order_axes(node.axes, {}, *into).promoted_strides;
        }
        if (const auto over = reused_.find(root); over != reused_.end()) {
            stored.alias = temporary_name(over->second);
            stored.column_strides = into->node(*into->find_input(stored.alias)).column_strides;
        }
        into->add_output(std::move(stored));
        if (piece.is_apart) return;  // outputs are copies of it
    }
    for (const OutputInfo& output : graph_->outputs()) {
        if (output.node != root) continue;
        OutputInfo moved = output;
        moved.node = copy;
        Ordered ordered = order_axes(output.piece ? output.piece->axes : graph_->node(root).axes, output.column_strides,
                                     *into, output.promoted_strides);
        moved.column_strides = std::move(ordered.column_strides);
        moved.promoted_strides = std::move(ordered.promoted_strides);
        if (output.piece) moved.piece = reordered(*output.piece, ordered.axes);
        // An input this group does not read cannot be disturbed by the group's own order of loads and stores.
        if (!moved.alias.empty() && !into->find_input(moved.alias)) moved.alias.clear();
        into->add_output(std::move(moved));
    }
}

// Of a temporary, where an axis that is among the rows here lies within its columns; none where it is contiguous.
std::vector<std::int64_t> Planner::strides_among_columns(NodeId root, const GraphData& group) const {
    const auto [axes, promoted, strides] = order_axes(graph_->node(root).axes, {}, group);
    std::int64_t contiguous = 1;
    for (std::size_t i = strides.size(); i-- > 0;) {
        if (strides[i] != contiguous) return strides;
        contiguous *= group.axis(axes[axes.size() - strides.size() + i]).extent;
    }
    return {};
}

OutputPiece Planner::reordered(const OutputPiece& piece, const std::vector<AxisId>& axes) {
    OutputPiece result{piece.tensor, axes, {}};
    for (const AxisId axis : axes) {
        const auto at = std::find(piece.axes.begin(), piece.axes.end(), axis) - piece.axes.begin();
        result.at.push_back(piece.at[static_cast<std::size_t>(at)]);
    }
    return result;
}

Group Planner::group(const Piece& piece) const {
    Group result;
    result.graph = subgraph(piece);
    result.row_axes = piece.row_axes;
    result.reduces_rows = piece.reduces_rows;
    if (const auto axis = reduced_as_rows(*result.graph, piece.row_axes)) {
        Piece across = piece;
        across.promoted.insert(*axis);
        result.graph = subgraph(across);
        result.reduces_rows = true;
    }
    result.name = group_name(*result.graph);
    return result;
}

Planner::Ordered Planner::order_axes(const std::vector<AxisId>& declared,
                                     const std::vector<std::int64_t>& declared_strides, const GraphData& graph,
                                     const std::vector<std::int64_t>& had) {
    // Strides were declared for the column axes before promotion: the last ones.
    std::int64_t contiguous = 1;
    std::vector<std::int64_t> all(declared.size(), 0);
    for (std::size_t i = declared.size(); i-- > 0;) {
        all[i] = contiguous;
        if (graph.axis(declared[i]).extent > 0) contiguous *= graph.axis(declared[i]).extent;
    }
    for (std::size_t i = 0; i < declared_strides.size(); ++i) {
        all[declared.size() - declared_strides.size() + i] = declared_strides[i];
    }
    Ordered ordered{declared, {}, {}};
    graph.order_by_space(&ordered.axes);
    for (const AxisId axis : ordered.axes) {
        const std::int64_t stride = all[static_cast<std::size_t>(std::ranges::find(declared, axis) - declared.begin())];
        if (graph.axis(axis).is_promoted) ordered.promoted_strides.push_back(stride);
        if (!graph.axis(axis).is_row) ordered.column_strides.push_back(stride);
    }
    if (had.size() == ordered.promoted_strides.size()) ordered.promoted_strides = had;
    return ordered;
}

}  // namespace rowjit::planning
