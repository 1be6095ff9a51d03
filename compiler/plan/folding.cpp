#include "compiler/plan/folding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/dtype.h"
#include "base/floor_div.h"

namespace rowjit {
namespace {

constexpr std::int64_t kMostPlaces = std::int64_t{1} << 40;  // of rows; what a few operations make of them is in int64

std::optional<std::int64_t> known_integer(const Node& node) {
    if (node.kind != NodeKind::kConst || std::fabs(node.value) >= static_cast<double>(kMostPlaces)) return std::nullopt;
    return static_cast<std::int64_t>(node.value);
}

// A number of places so many times over, where that is exact in the dtype.
std::optional<Places> multiplied(const Places& places, std::int64_t factor, Dtype dtype) {
    const std::int64_t most = dtype == Dtype::kI32 ? std::numeric_limits<std::int32_t>::max() : kMostPlaces;
    std::int64_t ends[2] = {places.least, places.greatest};
    for (std::int64_t& end : ends) {
        if (__builtin_mul_overflow(end, factor, &end) || end > most || end < -most) return std::nullopt;
    }
    return Places{std::min(ends[0], ends[1]), std::max(ends[0], ends[1])};
}

// What is left of a whole number by a divisor above 0, where it is the same wherever it is asked, as of 2·c + 1 by 2.
std::optional<std::int64_t> residue(const GraphData& graph, NodeId id, std::int64_t divisor) {
    const Node& node = graph.node(id);
    const auto of_value = [&](std::int64_t value) { return value - floor_div(value, divisor) * divisor; };
    if (const auto value = known_integer(node)) return of_value(*value);
    const bool widens = node.kind == NodeKind::kCast && node.dtype == Dtype::kI64;  // to i32 it would saturate
    if (widens && is_integer(graph.node(node.args[0]).dtype)) return residue(graph, node.args[0], divisor);
    if (node.kind != NodeKind::kMap || node.args.size() != 2) return std::nullopt;
    if (node.op == Op::kMul) {
        for (const NodeId arg : node.args) {
            const auto factor = known_integer(graph.node(arg));
            if (factor && of_value(*factor) == 0) return 0;
        }
        return std::nullopt;
    }
    if (node.op != Op::kAdd && node.op != Op::kSub) return std::nullopt;
    const auto left = residue(graph, node.args[0], divisor);
    const auto right = left ? residue(graph, node.args[1], divisor) : std::nullopt;
    if (!right) return std::nullopt;
    return of_value(node.op == Op::kAdd ? *left + *right : *left - *right);
}

// x − floor(x / d)·d, which is how a coordinate's remainder is written: 0 … d − 1, and of x that all have one quotient
// what lies between their remainders.
std::optional<Places> remainder(const GraphData& graph, const Node& difference) {
    const Node& multiple = graph.node(difference.args[1]);
    if (multiple.kind != NodeKind::kMap || multiple.op != Op::kMul) return std::nullopt;
    const Node& quotient = graph.node(multiple.args[0]);
    if (quotient.kind != NodeKind::kMap || quotient.op != Op::kFloorDiv || quotient.args[0] != difference.args[0] ||
        quotient.args[1] != multiple.args[1])
        return std::nullopt;
    const auto divisor = known_integer(graph.node(quotient.args[1]));
    const auto dividend = places(graph, quotient.args[0]);
    if (!divisor || *divisor <= 0 || !dividend) return std::nullopt;
    if (const auto left = residue(graph, quotient.args[0], *divisor)) return Places{*left, *left};
    const std::int64_t least = floor_div(dividend->least, *divisor) * *divisor;
    const bool have_one_quotient = dividend->greatest - least < *divisor;
    return have_one_quotient ? Places{dividend->least - least, dividend->greatest - least} : Places{0, *divisor - 1};
}

}  // namespace

std::optional<Places> places(const GraphData& graph, NodeId id) {
    const Node& node = graph.node(id);
    if (!is_integer(node.dtype)) return std::nullopt;
    if (const auto value = known_integer(node)) return Places{*value, *value};
    if (node.kind == NodeKind::kIota || node.kind == NodeKind::kOrder) {
        const std::int64_t extent = graph.axis(node.axes[0]).extent;
        return Places{0, (extent == kRuntimeExtent ? kMostPlaces : extent) - 1};
    }
    if (node.kind == NodeKind::kCast) return places(graph, node.args[0]);
    if (node.kind != NodeKind::kMap || node.args.size() != 2) return std::nullopt;
    if (node.op == Op::kSub) {
        if (const auto of_remainder = remainder(graph, node)) return of_remainder;
    }
    const auto left = places(graph, node.args[0]);
    const auto right = places(graph, node.args[1]);
    if (!left || !right) return std::nullopt;
    switch (node.op) {
        case Op::kAdd: return Places{left->least + right->least, left->greatest + right->greatest};
        case Op::kSub: return Places{left->least - right->greatest, left->greatest - right->least};
        case Op::kMul:
            if (right->least == right->greatest) return multiplied(*left, right->least, node.dtype);
            return left->least == left->greatest ? multiplied(*right, left->least, node.dtype) : std::nullopt;
        case Op::kFloorDiv:
            if (right->least != right->greatest || right->least <= 0) return std::nullopt;
            return Places{floor_div(left->least, right->least), floor_div(left->greatest, right->least)};
        default: return std::nullopt;
    }
}

namespace {

// What a condition comes to wherever it is asked, as a comparison of the places of one span of columns with its end.
std::optional<bool> known_condition(const GraphData& graph, NodeId id) {
    const Node& node = graph.node(id);
    if (node.kind == NodeKind::kConst) return node.value != 0;
    if (node.kind != NodeKind::kMap || node.dtype != Dtype::kBool || node.args.size() != 2) return std::nullopt;
    if (node.op == Op::kAnd) {
        const auto left = known_condition(graph, node.args[0]);
        const auto right = known_condition(graph, node.args[1]);
        if ((left && !*left) || (right && !*right)) return false;
        return left && right ? std::optional(true) : std::nullopt;
    }
    const auto left = places(graph, node.args[0]);
    const auto right = places(graph, node.args[1]);
    if (!left || !right) return std::nullopt;
    const auto either = [](bool always, bool never) {
        return always ? std::optional(true) : never ? std::optional(false) : std::nullopt;
    };
    switch (node.op) {
        case Op::kLt: return either(left->greatest < right->least, left->least >= right->greatest);
        case Op::kLe: return either(left->greatest <= right->least, left->least > right->greatest);
        case Op::kGt: return either(left->least > right->greatest, left->greatest <= right->least);
        case Op::kGe: return either(left->least >= right->greatest, left->greatest < right->least);
        case Op::kEq:
            return either(left->least == right->greatest && left->greatest == right->least,
                          left->least > right->greatest || left->greatest < right->least);
        default: return std::nullopt;
    }
}

// What a choice whose condition is known chooses.
std::optional<NodeId> known_choice(const GraphData& graph, const Node& node) {
    if (node.kind != NodeKind::kMap || node.op != Op::kSelect) return std::nullopt;
    const auto condition = known_condition(graph, node.args[0]);
    return condition ? std::optional(node.args[*condition ? 1 : 2]) : std::nullopt;
}

// The map's value where all of its operands are constants.
std::optional<double> value_of(const GraphData& graph, const Node& node) {
    double operands[3] = {};
    for (std::size_t i = 0; i < node.args.size(); ++i) {
        const Node& arg = graph.node(node.args[i]);
        if (arg.kind != NodeKind::kConst) return std::nullopt;
        operands[i] = arg.value;
    }
    const double value =
        node.kind == NodeKind::kCast ? operands[0] : info(node.op).reference(operands[0], operands[1], operands[2]);
    return round_to(node.dtype, value);
}

// A map of known choices is one of what they choose, where it has the same axes. Of choices that all choose constants
// it is one of them, that chooses what those come to: a constant has no axes, and the next map sees through it.
NodeId with_known_choices(GraphData& graph, NodeId id) {
    const auto is_known = [&](NodeId arg) { return known_choice(graph, graph.node(arg)).has_value(); };
    const bool is_map = graph.node(id).kind == NodeKind::kMap;
    if (!is_map || std::ranges::none_of(graph.node(id).args, is_known)) return id;
    Node node = graph.node(id);
    const std::vector<NodeId> choices = node.args;
    for (NodeId& arg : node.args) arg = known_choice(graph, graph.node(arg)).value_or(arg);
    const auto has_all = [&](NodeId arg) { return graph.node(arg).axes == node.axes; };
    // Two that have other axes each, before the one that has all, would order them by themselves.
    const auto first = std::ranges::find_if(node.args, has_all);
    const bool orders = std::distance(node.args.begin(), first) == 2 &&
                        graph.node(node.args[0]).axes != graph.node(node.args[1]).axes &&
                        !graph.node(node.args[0]).axes.empty() && !graph.node(node.args[1]).axes.empty();
    if (first != node.args.end() && !orders) return graph.add_copy(node, [](NodeId arg) { return arg; });
    const auto value = is_storage(node.dtype) ? std::nullopt : value_of(graph, node);
    const auto choice = std::ranges::find_if(
        choices, [&](NodeId arg) { return is_known(arg) && has_all(arg) && graph.node(arg).dtype == node.dtype; });
    if (!value || choice == choices.end()) return id;
    Node known = graph.node(*choice);
    std::replace(known.args.begin() + 1, known.args.end(), *known_choice(graph, known),
                 graph.add_const(node.dtype, *value));
    return graph.add_copy(known, [](NodeId arg) { return arg; });
}

// x + −0 and x − 0 are x, to the sign of a zero; x + 0 is not, but of whole numbers.
NodeId fold_zero(const GraphData& graph, NodeId id) {
    const Node& node = graph.node(id);
    if (node.kind != NodeKind::kMap) return id;
    const auto is_zero = [&](NodeId arg, bool negative) {
        const Node& zero = graph.node(arg);
        const bool is_it = zero.kind == NodeKind::kConst && zero.value == 0;
        return is_it && (is_integer(node.dtype) || std::signbit(zero.value) == negative);
    };
    if (node.op == Op::kSub) return is_zero(node.args[1], false) ? node.args[0] : id;
    if (node.op != Op::kAdd) return id;
    if (is_zero(node.args[1], true)) return node.args[0];
    return is_zero(node.args[0], true) ? node.args[1] : id;
}

// A choice that is known, as at one position of an unrolled axis, is what is chosen, where that has all the axes.
NodeId fold_select(const GraphData& graph, NodeId id) {
    const auto chosen = known_choice(graph, graph.node(id));
    return chosen && graph.node(*chosen).axes == graph.node(id).axes ? *chosen : id;
}

}  // namespace

NodeId folded(GraphData& graph, NodeId id) {
    id = with_known_choices(graph, id);
    const Node& node = graph.node(id);
    if ((node.kind != NodeKind::kMap && node.kind != NodeKind::kCast) || is_storage(node.dtype)) return id;
    const auto value = value_of(graph, node);
    return value ? graph.add_const(node.dtype, *value) : fold_zero(graph, fold_select(graph, id));
}

}  // namespace rowjit
