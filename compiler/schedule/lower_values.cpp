// A node's value where a statement needs it: kept, turned, loaded or computed, in the open loop or before it; and what
// values are called.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/plan/masks.h"
#include "compiler/schedule/lowering.h"

namespace rowjit::lowering {

// Whether a value differs between the lanes (or reduced rows) of a loop.
bool Lowering::per_lane(NodeId id) const {
    if (of_segment_.contains(id)) return false;
    if (columnar(id)) return true;
    const std::vector<AxisId>& rows = kernel_.row_axes;
    return std::any_of(graph_.node(id).axes.begin(), graph_.node(id).axes.end(),
                       [&](AxisId axis) { return std::find(rows.begin(), rows.end(), axis) == rows.end(); });
}

std::optional<ValueId> Lowering::known_value(NodeId id) const {
    for (const auto* values : {&row_values_, &segment_values_, &lane_values_}) {
        if (const auto found = values->find(id); found != values->end()) return found->second;
    }
    return std::nullopt;
}

// The value of a node where it is needed: computed in the current loop when it differs per lane, else before it.
ValueId Lowering::value(NodeId id) {
    const bool lane = per_lane(id);
    RJ_CHECK(!lane || loop_body_ != nullptr, "lower: {} is needed outside a loop", graph_.describe(id));
    if (const std::optional<ValueId> known = known_value(id)) return *known;
    std::map<NodeId, ValueId>& values =
        lane ? lane_values_ : (of_segment_.contains(id) ? segment_values_ : row_values_);
    if (const auto slot = slots_.find({loop_columns_, id}); lane && slot != slots_.end()) {
        Inst inst{.kind = InstKind::kKept, .dtype = graph_.node(id).dtype};
        inst.index = slot->second;
        return values[id] = emit(std::move(inst), graph_.node(id), "kept");
    }
    if (const auto turn = turns_.find(id); lane && turn != turns_.end())
        return values[id] = turned(turn->second, graph_.node(id));
    std::vector<Inst>* const outer = loop_body_;
    if (!lane) loop_body_ = nullptr;  // row values stand before the loop
    const ValueId result = compute(id);
    loop_body_ = outer;
    return values[id] = result;
}

// Another value's vector of the same thread: kept, or loaded beside it.
ValueId Lowering::turned(const Turn& turn, const Node& node) {
    const auto slot = slots_.find({loop_columns_, turn.own});
    Inst inst{.kind = InstKind::kKept, .dtype = node.dtype, .turn = static_cast<int>(turn.columns)};
    if (slot != slots_.end()) {
        inst.index = slot->second;
    } else {
        value(turn.own);
        inst.kind = InstKind::kLoad;
        inst.index = tensor_of_input_.at(turn.own);
        inst.coords = own_coords(graph_.node(turn.own).axes);
    }
    return emit(std::move(inst), node);
}

// Offsets do not decrease: what lies from one of them up to the next is found at the first, also where others before
// it are equal to it, and the bounds of the axis only take positions away.
bool Lowering::finds_open_segment(const Node& node) const {
    if (node.kind != NodeKind::kSearch || open_range_.segments < 0 || node.args[0] != open_range_.offsets) return false;
    const Node& key = graph_.node(node.args[1]);
    return key.kind == NodeKind::kIota && key.axis == open_range_.axes[0];
}

ValueId Lowering::compute(NodeId id) {
    const Node& node = graph_.node(id);
    Inst inst{.dtype = node.dtype};
    switch (node.kind) {
        case NodeKind::kInput: return load(id, own_coords(node.axes));
        case NodeKind::kIndex: {
            std::vector<Coord> coords;
            for (const Coord& coord : node.coords) {
                coords.push_back(coord.substitute([](Axis axis) { return Coord(axis); },
                                                  [&](NodeId data) { return Coord::data_node(value(data)); }));
            }
            return load(node.args[0], std::move(coords), &node);
        }
        case NodeKind::kSearch:
            if (finds_open_segment(node)) {
                inst.kind = InstKind::kCoord;
                inst.axis = open_range_.segments;
                return emit(std::move(inst), node, "the segment, of which all positions are");
            }
            inst.kind = InstKind::kSearch;
            inst.index = tensor_of_input_.at(node.args[0]);
            inst.operands = {value(node.args[1])};
            return emit(std::move(inst), node, fmt::format("search in {}", graph_.node(node.args[0]).name));
        case NodeKind::kSumWhere:
            inst.kind = InstKind::kSumWhere;
            inst.index = tensor_of_input_.at(node.args[0]);
            inst.places = tensor_of_input_.at(node.args[1]);
            inst.axis = node.reduced[0];
            inst.operands = {value(node.args[2])};
            return emit(std::move(inst), node,
                        fmt::format("sum of {} where {} is {}", graph_.node(node.args[0]).name,
                                    graph_.node(node.args[1]).name, describe_value(node.args[2])));
        case NodeKind::kScalar:
            inst.kind = InstKind::kScalar;
            inst.index = scalar_of_node_.at(id);
            return emit(std::move(inst), node);
        case NodeKind::kConst:
            inst.kind = InstKind::kConst;
            inst.value = node.value;
            return emit(std::move(inst), node);
        case NodeKind::kIota:
            inst.kind = InstKind::kCoord;
            inst.axis = node.axis;
            return emit(std::move(inst), node, fmt::format("coordinate along {}", graph_.axis(node.axis).label()));
        case NodeKind::kExtent:
            inst.kind = InstKind::kExtent;
            inst.axis = node.axis;
            return emit(std::move(inst), node, fmt::format("extent of {}", graph_.axis(node.axis).label()));
        case NodeKind::kMap:
            if (node.op == Op::kSelect && holds_everywhere(graph_, node.args[0])) return value(node.args[1]);
            [[fallthrough]];
        case NodeKind::kCast:
            inst.kind = node.kind == NodeKind::kMap ? InstKind::kMap : InstKind::kCast;
            inst.op = node.op;
            for (const NodeId arg : node.args) inst.operands.push_back(value(arg));
            return emit(std::move(inst), node, expression(node));
        case NodeKind::kReduce:
        case NodeKind::kState:
        case NodeKind::kFix:
        case NodeKind::kOrder:
        case NodeKind::kDigitCounts:
        case NodeKind::kPartialReduce:
        case NodeKind::kMatmul: break;
    }
    RJ_CHECK(false, "lower: {} is used before the phase that computes it", graph_.describe(id));
}

std::vector<Coord> Lowering::own_coords(const std::vector<AxisId>& axes) {
    std::vector<Coord> coords;
    for (const AxisId axis : axes) coords.emplace_back(Axis{axis});
    return coords;
}

ValueId Lowering::load(NodeId input, std::vector<Coord> coords, const Node* index) {
    const Node& tensor = graph_.node(input);
    Inst inst{.kind = InstKind::kLoad, .dtype = tensor.dtype};
    inst.index = tensor_of_input_.at(input);
    inst.coords = std::move(coords);
    Node named = index != nullptr ? *index : tensor;
    if (index == nullptr || named.label.empty()) named.label = tensor.name + (index == nullptr ? "_value" : "_at");
    return emit(std::move(inst), named);
}

void Lowering::store(std::size_t output, ValueId operand) {
    const OutputInfo& info = graph_.outputs()[output];
    if (info.slots >= 0) return add_to_part(output, operand);
    Inst inst{.kind = InstKind::kStore, .dtype = graph_.node(info.node).dtype, .operands = {operand}};
    inst.index = output_tensors_[output];
    inst.coords = own_coords(whole_axes(info));
    for (std::size_t i = 0; info.piece && i < inst.coords.size(); ++i) {
        if (info.piece->at[i] >= 0) inst.coords[i] = Coord(info.piece->at[i]);
    }
    inst.accumulate = info.accumulate;
    inst.comment = fmt::format("output {}", info.name);
    current().push_back(std::move(inst));
}

void Lowering::keep(NodeId id) {
    const Node& node = graph_.node(id);
    const auto found = lane_values_.find(id);
    RJ_CHECK(found != lane_values_.end(), "lower: {} is to be kept but was not computed", graph_.describe(id));
    Inst inst{.kind = InstKind::kKeep, .dtype = node.dtype, .operands = {found->second}};
    inst.index = static_cast<int>(kernel_.slots.size());
    slots_[{loop_columns_, id}] = inst.index;
    current().push_back(std::move(inst));
    kernel_.slots.push_back({node.dtype, place_of(node), 0, unique_label(label_of(node, "kept") + "_kept")});
}

ValueId Lowering::emit(Inst inst, const Node& node, std::string comment) {
    inst.id = kernel_.value_count++;
    inst.label = unique_label(label_of(node, name(node.kind)));
    inst.comment = std::move(comment);
    value_labels_[inst.id] = inst.label;
    current().push_back(std::move(inst));
    return kernel_.value_count - 1;
}

std::string Lowering::unique_label(const std::string& wanted) {
    std::string label = is_reserved_word(wanted) ? wanted + "_" : wanted;
    // Counted on from the last: an unrolled kernel has thousands of values without a name of their own.
    for (int& suffix = next_suffix_.try_emplace(wanted, 2).first->second; !taken_labels_.insert(label).second;)
        label = fmt::format("{}_{}", wanted, suffix++);
    return label;
}

std::string Lowering::describe_value(NodeId id) const {
    const std::optional<ValueId> known = known_value(id);
    if (!known) return graph_.describe(id);
    const auto label = value_labels_.find(*known);
    return label == value_labels_.end() ? graph_.describe(id) : label->second;
}

std::string Lowering::expression(const Node& node) const {
    std::vector<std::string> operands;
    for (const NodeId arg : node.args) operands.push_back(describe_value(arg));
    if (node.kind == NodeKind::kCast) return fmt::format("cast({}, {})", operands[0], rowjit::name(node.dtype));
    return fmt::format("{}({})", info(node.op).name, fmt::join(operands, ", "));
}

}  // namespace rowjit::lowering
