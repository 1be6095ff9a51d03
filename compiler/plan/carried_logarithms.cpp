#include "compiler/plan/carried_logarithms.h"

#include <set>
#include <utility>
#include <vector>

#include "base/dtype.h"

namespace rowjit {
namespace {

class Reader {
  public:
    Reader(const GraphData& graph, NodeId sum) : graph_(graph), sum_(sum) {}

    std::optional<CarriedLogarithms> run() const {
        if (!is_reduce(sum_, Monoid::kSum)) return std::nullopt;
        if (const auto term = of_shares(args(sum_)[0])) {
            if (auto found = weighed_by_shares(*term)) return with_components(std::move(*found));
        }
        if (auto found = weighed(args(sum_)[0])) return with_components(std::move(*found));
        return std::nullopt;
    }

  private:
    struct Term {
        NodeId weight;
        NodeId logarithm;
    };

    bool is_map(NodeId id, Op op) const { return graph_.node(id).kind == NodeKind::kMap && graph_.node(id).op == op; }
    const std::vector<NodeId>& args(NodeId id) const { return graph_.node(id).args; }
    bool is_zero(NodeId id) const { return graph_.node(id).kind == NodeKind::kConst && graph_.node(id).value == 0; }

    // Over the columns that the sum is over.
    bool is_reduce(NodeId id, Monoid monoid) const {
        const Node& node = graph_.node(id);
        return node.kind == NodeKind::kReduce && node.monoid == monoid && !node.is_segmented() &&
               !graph_.axis(node.reduced[0]).is_row && !is_narrow(node.dtype) &&
               node.reduced == graph_.node(sum_).reduced;
    }

    // x − max x: x, where it is that.
    std::optional<NodeId> below_maximum(NodeId id) const {
        if (!is_map(id, Op::kSub) || !is_reduce(args(id)[1], Monoid::kMax)) return std::nullopt;
        return args(args(id)[1])[0] == args(id)[0] ? std::optional(args(id)[0]) : std::nullopt;
    }

    std::vector<std::pair<NodeId, NodeId>> both_ways(NodeId map) const {
        return {{args(map)[0], args(map)[1]}, {args(map)[1], args(map)[0]}};
    }

    // e · (e = 0 ? 0 : logarithm) or e > 0 ? e · logarithm : 0 of an exponential e.
    std::optional<Term> of_shares(NodeId id) const {
        const bool chooses = is_map(id, Op::kSelect);
        if (chooses && !is_zero(args(id)[2])) return std::nullopt;
        const NodeId product = chooses ? args(id)[1] : id;
        if (!is_map(product, Op::kMul)) return std::nullopt;
        for (const auto& [weight, other] : both_ways(product)) {
            if (!is_map(weight, Op::kExp)) continue;
            if (chooses && is_above_zero(args(id)[0], weight)) return Term{weight, other};
            if (!chooses && is_map(other, Op::kSelect) && is_none(args(other)[0], weight) && is_zero(args(other)[1]))
                return Term{weight, args(other)[2]};
        }
        return std::nullopt;
    }

    bool is_above_zero(NodeId condition, NodeId weight) const {
        return is_map(condition, Op::kGt) && args(condition)[0] == weight && is_zero(args(condition)[1]);
    }

    bool is_none(NodeId condition, NodeId weight) const {
        if (!is_map(condition, Op::kEq)) return false;
        const std::vector<NodeId>& asked = args(condition);
        return (asked[0] == weight && is_zero(asked[1])) || (asked[1] == weight && is_zero(asked[0]));
    }

    // Of weights exp(x − max x) the logarithms x − max x, those of y, or their difference.
    std::optional<CarriedLogarithms> weighed_by_shares(const Term& term) const {
        const NodeId own = args(term.weight)[0];
        const auto x = below_maximum(own);
        if (!x) return std::nullopt;
        if (term.logarithm == own) return CarriedLogarithms{Monoid::kEntropy, *x};
        const bool is_ratio = is_map(term.logarithm, Op::kSub) && args(term.logarithm)[0] == own;
        const auto y = below_maximum(is_ratio ? args(term.logarithm)[1] : term.logarithm);
        if (!y || graph_.node(*x).axes != graph_.node(*y).axes) return std::nullopt;
        return CarriedLogarithms{is_ratio ? Monoid::kDivergence : Monoid::kCrossEntropy, *x, *y};
    }

    // Of weights that are given.
    std::optional<CarriedLogarithms> weighed(NodeId term) const {
        if (!is_map(term, Op::kMul)) return std::nullopt;
        for (const auto& [weight, logarithm] : both_ways(term)) {
            const auto x = below_maximum(logarithm);
            if (x && graph_.node(*x).axes == graph_.node(weight).axes && is_known_in_pass(graph_, weight))
                return CarriedLogarithms{Monoid::kWeighted, *x, weight};
        }
        return std::nullopt;
    }

    CarriedLogarithms with_components(CarriedLogarithms found) const {
        found.components[sum_] = components(found.monoid) - 1;
        const bool has_two = found.monoid == Monoid::kDivergence || found.monoid == Monoid::kCrossEntropy;
        for (const NodeId id : graph_.live_nodes()) {
            const Node& reduce = graph_.node(id);
            if (is_reduce(id, Monoid::kMax)) {
                if (reduce.args[0] == found.x) found.components[id] = 0;
                if (has_two && reduce.args[0] == found.beside) found.components[id] = 2;
            } else if (is_reduce(id, Monoid::kSum)) {
                const auto below =
                    is_map(reduce.args[0], Op::kExp) ? below_maximum(args(reduce.args[0])[0]) : std::nullopt;
                if (below == found.x) found.components[id] = 1;
                if (has_two && below == found.beside) found.components[id] = 3;
                if (!has_two && reduce.args[0] == found.beside) found.components[id] = 2;
            }
        }
        return found;
    }

    const GraphData& graph_;
    NodeId sum_;
};

}  // namespace

std::optional<CarriedLogarithms> carried_logarithms(const GraphData& graph, NodeId sum) {
    return Reader(graph, sum).run();
}

bool is_known_in_pass(const GraphData& graph, NodeId id) {
    std::set<NodeId> seen = {id};
    std::vector<NodeId> work = {id};
    while (!work.empty()) {
        const Node& node = graph.node(work.back());
        work.pop_back();
        if (node.kind == NodeKind::kReduce && !graph.axis(node.reduced[0]).is_row) return false;
        for (const NodeId arg : node.args) {
            if (seen.insert(arg).second) work.push_back(arg);
        }
    }
    return true;
}

}  // namespace rowjit
