#include "dsl/support.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace rowjit {
namespace {

// The column axis whose place the number is, converted or not.
std::optional<AxisId> place_along(const GraphData& graph, NodeId id) {
    const Node& number = graph.node(id);
    if (number.kind == NodeKind::kIota && !graph.axis(number.axis).is_row) return number.axis;
    // Places past what the type counts exactly would compare otherwise.
    const bool is_exact = number.dtype == Dtype::kI32 || number.dtype == Dtype::kI64 || number.dtype == Dtype::kF32;
    return number.kind == NodeKind::kCast && is_exact ? place_along(graph, number.args[0]) : std::nullopt;
}

Op negated(Op comparison) {
    switch (comparison) {
        case Op::kLt: return Op::kGe;
        case Op::kLe: return Op::kGt;
        case Op::kGt: return Op::kLe;
        case Op::kGe: return Op::kLt;
        case Op::kEq: return Op::kNe;
        default: return Op::kEq;
    }
}

// The columns of `range` that compare so with `bound`.
ColumnRange compared(ColumnRange range, Op comparison, double bound) {
    const auto clamped = [&](double column) {
        return static_cast<std::int64_t>(
            std::clamp(column, static_cast<double>(range.low), static_cast<double>(range.high)));
    };
    const std::int64_t from = clamped(std::ceil(bound));       // the first that is not below
    const std::int64_t past = clamped(std::floor(bound) + 1);  // the first that is above
    switch (comparison) {
        case Op::kLt: return {range.low, from};
        case Op::kLe: return {range.low, past};
        case Op::kGt: return {past, range.high};
        case Op::kGe: return {from, range.high};
        case Op::kEq: return {from, past};
        default: return range;
    }
}

constexpr std::int64_t kMostExact = std::int64_t{1} << 24;  // of f32

}  // namespace

Support either(const Support& a, const Support& b) {
    Support both;
    for (const auto& [axis, range] : a) {
        const auto other = b.find(axis);
        if (other == b.end()) continue;
        both[axis] = {std::min(range.low, other->second.low), std::max(range.high, other->second.high)};
    }
    return both;
}

Support where(const GraphData& graph, Support support, NodeId condition, bool holds) {
    const Node& node = graph.node(condition);
    if (node.kind != NodeKind::kMap || node.dtype != Dtype::kBool) return support;
    if (node.op == Op::kNot) return where(graph, std::move(support), node.args[0], !holds);
    if (node.op == Op::kAnd || node.op == Op::kOr) {
        const bool both = holds == (node.op == Op::kAnd);
        Support left = where(graph, support, node.args[0], holds);
        if (both) return where(graph, std::move(left), node.args[1], holds);
        return either(left, where(graph, std::move(support), node.args[1], holds));
    }
    if (info(node.op).types != OpTypes::kCompare) return support;
    for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
        const auto axis = place_along(graph, node.args[which]);
        const Node& bound = graph.node(node.args[1 - which]);
        if (!axis || bound.kind != NodeKind::kConst || std::isnan(bound.value)) continue;
        const std::int64_t extent = graph.axis(*axis).extent;
        if (extent > kMostExact) continue;
        const Op comparison = which == 0 ? node.op : exchanged(node.op);
        const ColumnRange range = support.emplace(*axis, ColumnRange{0, extent}).first->second;
        support[*axis] = compared(range, holds ? comparison : negated(comparison), bound.value);
    }
    return support;
}

}  // namespace rowjit
