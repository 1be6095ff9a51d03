#include "compiler/plan/cheaper.h"

#include <cmath>
#include <optional>
#include <utility>

#include "compiler/plan/inverse.h"

namespace rowjit {
namespace {

bool is_map(const Node& node, Op op) { return node.kind == NodeKind::kMap && node.op == op; }

bool is_number_of_row(const GraphData& graph, NodeId id) { return graph.column_axes(graph.node(id)).empty(); }

// Twice a number of the row, or one of two numbers, as where a derivative has a value at all columns.
std::optional<NodeId> twice(GraphData& graph, NodeId id) {
    if (is_number_of_row(graph, id)) return graph.add_map(Op::kAdd, {id, id});
    const Node choice = graph.node(id);
    if (!is_map(choice, Op::kSelect)) return std::nullopt;
    if (!is_number_of_row(graph, choice.args[1]) || !is_number_of_row(graph, choice.args[2])) return std::nullopt;
    const auto doubled = [&](NodeId number) {
        const Node node = graph.node(number);
        return node.kind == NodeKind::kConst ? graph.add_const(node.dtype, 2 * node.value)
                                             : graph.add_map(Op::kAdd, {number, number});
    };
    return graph.add_map(Op::kSelect, {choice.args[0], doubled(choice.args[1]), doubled(choice.args[2])});
}

// u·v + u·v with u such a number, as the derivative of a square comes: 2u is exact, and made once a row.
NodeId double_number(GraphData& graph, NodeId id) {
    const Node sum = graph.node(id);  // copies: adding nodes moves the originals
    if (!is_map(sum, Op::kAdd) || sum.args[0] != sum.args[1] || is_number_of_row(graph, id)) return id;
    const Node product = graph.node(sum.args[0]);
    if (!is_map(product, Op::kMul)) return id;
    for (const auto& [number, other] :
         {std::pair(product.args[0], product.args[1]), {product.args[1], product.args[0]}}) {
        if (const auto doubled = twice(graph, number)) return graph.add_map(Op::kMul, {*doubled, other});
    }
    return id;
}

// (a/u + b/u)·e where e/u is computed anyway, as in the derivative of e/u for a number u of the row: (a + b)·(e/u).
NodeId share_quotient(GraphData& graph, NodeId id) {
    const Node product = graph.node(id);
    if (!is_map(product, Op::kMul)) return id;
    for (const auto& [quotients, factor] :
         {std::pair(product.args[0], product.args[1]), {product.args[1], product.args[0]}}) {
        const Node sum = graph.node(quotients);
        if (!is_map(sum, Op::kAdd)) continue;
        const Node a = graph.node(sum.args[0]);
        const Node b = graph.node(sum.args[1]);
        if (!is_map(a, Op::kDiv) || !is_map(b, Op::kDiv) || a.args[1] != b.args[1]) continue;
        if (!is_number_of_row(graph, a.args[1])) continue;
        const NodeId next = graph.size();
        const NodeId shared = graph.add_map(Op::kDiv, {factor, a.args[1]});
        if (shared == next) continue;  // a new one: nobody else wants it
        return graph.add_map(Op::kMul, {graph.add_map(Op::kAdd, {a.args[0], b.args[0]}), shared});
    }
    return id;
}

// x / 2^n: 2^-n is exact, and so the product rounds as the quotient does. f16 has the fewest powers on either side. Of
// a row's numbers a quotient costs nothing, and a mean is known by it (plan/online).
NodeId divide_by_power(GraphData& graph, NodeId id) {
    constexpr int kMostPower = 14;
    const Node quotient = graph.node(id);
    if (!is_map(quotient, Op::kDiv) || is_number_of_row(graph, id)) return id;
    const Node& divisor = graph.node(quotient.args[1]);
    int power = 0;
    if (divisor.kind != NodeKind::kConst || std::fabs(std::frexp(divisor.value, &power)) != 0.5) return id;
    if (power - 1 > kMostPower || power - 1 < -kMostPower) return id;
    const NodeId inverse = graph.add_const(quotient.dtype, 1 / graph.node(quotient.args[1]).value);
    const NodeId product = graph.add_map(Op::kMul, {quotient.args[0], inverse});
    graph.set_label(product, quotient.label);
    return product;
}

// x / c for another number c, as a temperature or a cap is: two instructions where a quotient whose divisor is known
// takes nine, and the same bits. Not what is rounded further, where less will do (passes/precision).
NodeId divide_by_constant(GraphData& graph, NodeId id) {
    const Node quotient = graph.node(id);
    if (!is_map(quotient, Op::kDiv) || quotient.dtype != Dtype::kF32 || is_number_of_row(graph, id)) return id;
    const Node& divisor = graph.node(quotient.args[1]);
    if (divisor.kind != NodeKind::kConst) return id;
    const std::optional<Inverse> inverse = inverse_of(static_cast<float>(divisor.value));
    if (!inverse) return id;
    const NodeId x = quotient.args[0];
    const NodeId low = graph.add_map(Op::kMul, {x, graph.add_const(Dtype::kF32, inverse->low)});
    const NodeId product = graph.add_map(Op::kFma, {x, graph.add_const(Dtype::kF32, inverse->high), low});
    graph.set_label(product, quotient.label);
    return product;
}

}  // namespace

NodeId cheaper(GraphData& graph, NodeId id) {
    return share_quotient(graph, double_number(graph, divide_by_constant(graph, divide_by_power(graph, id))));
}

}  // namespace rowjit
