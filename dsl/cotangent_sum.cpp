#include "dsl/cotangent_sum.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <span>
#include <utility>

#include "dsl/factors.h"
#include "dsl/library/operands.h"
#include "dsl/softmaxes.h"
#include "dsl/with_axes.h"

namespace rowjit {
namespace {

std::vector<AxisId> axes_of(const Value& v) { return v.graph()->node(v.id()).axes; }

// Whether it is one number for all positions along those axes, though it may have them.
bool is_one_number(const GraphData& graph, NodeId id, const std::vector<AxisId>& along, int most_steps = 8) {
    if (!varies(graph, id, along)) return true;
    const Node& n = graph.node(id);
    if (most_steps == 0 || (n.kind != NodeKind::kMap && n.kind != NodeKind::kCast)) return false;
    const bool is_spread = n.kind == NodeKind::kMap && n.op == Op::kSelect && is_true_everywhere(graph, n.args[0]);
    const std::span<const NodeId> args = std::span(n.args).subspan(is_spread ? 1 : 0);
    return std::ranges::all_of(args, [&](NodeId arg) { return is_one_number(graph, arg, along, most_steps - 1); });
}

// What this is a multiple of, by one number for all positions along those axes: the operand of a product with such
// a number or a quotient by it, of a negation, of x + x; -1 for none.
NodeId multiplied(const GraphData& graph, const Node& n, const std::vector<AxisId>& along) {
    if (n.kind != NodeKind::kMap) return -1;
    const bool twice = n.op == Op::kAdd && n.args[0] == n.args[1];
    const bool over = (n.op == Op::kMul || n.op == Op::kDiv) && is_one_number(graph, n.args[1], along);
    if (n.op == Op::kNeg || twice || over) return n.args[0];
    return n.op == Op::kMul && is_one_number(graph, n.args[0], along) ? n.args[1] : -1;
}

// Whether the product of these is the number of positions along those axes.
bool count(const GraphData& graph, std::vector<NodeId> factors, std::vector<AxisId> along) {
    double positions = 1;
    while (!factors.empty()) {
        const Node& n = graph.node(factors.back());
        factors.pop_back();
        if (n.kind == NodeKind::kMap && n.op == Op::kMul) {
            factors.insert(factors.end(), n.args.begin(), n.args.end());
        } else if (n.kind == NodeKind::kExtent && contains(along, n.axis)) {
            std::erase(along, n.axis);
        } else if (n.kind == NodeKind::kConst) {
            positions *= n.value;
        } else {
            return false;
        }
    }
    for (const AxisId axis : along) {
        if (graph.axis(axis).extent == kRuntimeExtent) return false;
        positions /= static_cast<double>(graph.axis(axis).extent);
    }
    return positions == 1;
}

// Whether it is the mean of x over those axes, of all at once or of some after the others.
bool is_mean(const GraphData& graph, NodeId id, NodeId x, const std::vector<AxisId>& over) {
    std::vector<NodeId> divisors;
    std::vector<AxisId> reduced;
    while (id != x) {
        const Node& n = graph.node(id);
        if (n.kind == NodeKind::kMap && n.op == Op::kDiv) {
            divisors.push_back(n.args[1]);
        } else if (n.kind == NodeKind::kReduce && n.monoid == Monoid::kSum && !n.is_segmented()) {
            reduced.insert(reduced.end(), n.reduced.begin(), n.reduced.end());
        } else {
            return false;
        }
        id = n.args[0];
    }
    return std::ranges::is_permutation(reduced, over) && count(graph, std::move(divisors), over);
}

// Whether it is a multiple of x less the mean of x over those axes, whose sum is 0.
bool is_centred(const GraphData& graph, NodeId id, const std::vector<AxisId>& over) {
    for (NodeId of = multiplied(graph, graph.node(id), over); of >= 0; of = multiplied(graph, graph.node(of), over))
        id = of;
    if (graph.node(id).kind != NodeKind::kMap || graph.node(id).op != Op::kSub) return false;
    return is_mean(graph, graph.node(id).args[1], graph.node(id).args[0], over);
}

// The terms of a sum but those that come to 0 over these axes, if any is left.
std::optional<Value> uncentred(const Value& v, const std::vector<AxisId>& over) {
    const GraphData& graph = *v.graph();
    std::vector<NodeId> terms;  // the last first
    NodeId first = v.id();
    for (; graph.node(first).kind == NodeKind::kMap && graph.node(first).op == Op::kAdd;
         first = graph.node(first).args[0])
        terms.push_back(graph.node(first).args[1]);
    terms.push_back(first);
    if (std::erase_if(terms, [&](NodeId term) { return is_centred(graph, term, over); }) == 0) return v;
    std::optional<Value> total;
    for (const NodeId term : std::views::reverse(terms)) {
        const Value one(v.graph(), term);
        total = total ? *total + one : one;
    }
    return total;
}

// Σ of a product as a multiple of one that there is, of the same factors that vary, or of probabilities, which add up
// to 1: what flows back to a teacher's probabilities adds up to the divergence of the row and 1.
std::optional<Value> known_product(const Value& v, const std::vector<AxisId>& reduced) {
    GraphData& graph = *v.graph();
    const Factors own = factors_of(graph, v.id(), reduced);
    const auto times_numbers = [&](Value multiple) {
        for (const NodeId number : own.numbers) multiple = multiple * Value(v.graph(), number);
        return multiple;
    };
    if (own.varying.size() == 1) {
        const auto softmax = softmax_of_probability(graph, own.varying[0]);
        const bool is_whole = softmax && std::ranges::is_permutation(graph.node(softmax->total).reduced, reduced);
        return is_whole ? std::optional(times_numbers(Value(v.graph(), graph.add_const(v.dtype(), 1)))) : std::nullopt;
    }
    for (NodeId id = 0; id < graph.size(); ++id) {
        const Node& sum = graph.node(id);
        const bool is_sum = sum.kind == NodeKind::kReduce && sum.monoid == Monoid::kSum && !sum.is_segmented();
        const bool is_over = std::ranges::is_permutation(sum.reduced, reduced) && sum.dtype == v.dtype();
        if (!is_sum || !is_over || sum.state >= 0) continue;
        const Factors known = factors_of(graph, sum.args[0], reduced);
        if (!known.numbers.empty() || known.varying != own.varying) continue;
        Value multiple = times_numbers(Value(v.graph(), id));
        std::vector<AxisId> axes = axes_of(v);
        std::erase_if(axes, [&](AxisId axis) { return contains(reduced, axis); });
        if (axes_of(multiple) == axes) return multiple;
    }
    return std::nullopt;
}

// Σ over `reduced` where all of it is known: of at most so many terms, of which the same may be added again and again.
constexpr int kMostTerms = 8;

std::optional<Value> known_sum(const Value& v, const std::vector<AxisId>& reduced, int most_terms = kMostTerms) {
    const Node n = v.graph()->node(v.id());
    if (most_terms == 0 || n.kind != NodeKind::kMap || wide(n.dtype) != n.dtype) return std::nullopt;
    const auto known = [&](std::size_t i) { return known_sum(Value(v.graph(), n.args[i]), reduced, most_terms / 2); };
    if (n.op == Op::kNeg) {
        const auto operand = known(0);
        return operand ? std::optional(-*operand) : std::nullopt;
    }
    if (n.op != Op::kAdd && n.op != Op::kSub) return known_product(v, reduced);
    const auto left = known(0);
    const auto right = left ? known(1) : std::nullopt;
    if (!right) return std::nullopt;
    return n.op == Op::kAdd ? *left + *right : *left - *right;
}

// Σ over `reduced`, with what does not vary along it taken out of the sum: a row's divisor divides once. A variance
// adds multiples of the deviations to what flows back to them, of which nothing comes to the mean.
Value reduced_sum(const Value& given, const std::vector<AxisId>& reduced) {
    GraphData& graph = *given.graph();
    const auto value = [&](NodeId id) { return Value(given.graph(), id); };
    const std::optional<Value> left = wide(given.dtype()) == given.dtype() ? uncentred(given, reduced) : given;
    if (!left) return value(graph.add_const(given.dtype(), 0.0));
    const Value v = axes_of(*left) == axes_of(given) ? *left : given;
    const Node n = graph.node(v.id());
    if (const auto known = known_sum(v, reduced)) return *known;
    if (n.kind == NodeKind::kMap && wide(n.dtype) == n.dtype) {
        if (n.op == Op::kNeg) return -reduced_sum(value(n.args[0]), reduced);
        if (n.op == Op::kDiv && !varies(graph, n.args[1], reduced))
            return reduced_sum(value(n.args[0]), reduced) / value(n.args[1]);
        for (const std::size_t factor : {0, 1}) {
            if (n.op != Op::kMul || varies(graph, n.args[factor], reduced)) continue;
            return reduced_sum(value(n.args[1 - factor]), reduced) * value(n.args[factor]);
        }
    }
    return value(graph.add_reduce(Monoid::kSum, v.id(), reduced));
}

}  // namespace

Value sum_to(Value v, const std::vector<AxisId>& over, const std::vector<AxisId>& kept) {
    GraphData& graph = *v.graph();
    std::vector<AxisId> rows;
    std::vector<AxisId> columns;
    std::vector<AxisId> constant_along;
    for (const AxisId axis : over) {
        if (contains(kept, axis)) continue;
        (!contains(axes_of(v), axis) ? constant_along : graph.axis(axis).is_row ? rows : columns).push_back(axis);
    }
    const Dtype dtype = v.dtype();
    const int steps = int{!rows.empty()} + int{!columns.empty()} + int{!constant_along.empty()};
    if (steps > 1 || !constant_along.empty()) v = widen(v);
    for (const AxisId axis : constant_along) v = v * Value(v.graph(), graph.add_extent(axis, v.dtype()));
    for (const auto& reduced : {columns, rows}) {
        if (!reduced.empty()) v = reduced_sum(v, reduced);
    }
    return cast(v, dtype);
}

}  // namespace rowjit
