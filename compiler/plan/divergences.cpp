#include "compiler/plan/divergences.h"

#include <map>
#include <optional>
#include <vector>

#include "compiler/plan/nested_sums.h"
#include "compiler/plan/rewrite.h"

namespace rowjit {
namespace {

// Of logits x: x − max x, its exponential, and the sum of those.
struct Softmax {
    NodeId below = -1;
    NodeId exponential = -1;
    NodeId total = -1;

    bool operator==(const Softmax&) const = default;
};

struct Divergence {
    Softmax p;
    Softmax q;
    bool is_negative = false;
    std::vector<NodeId> numbers = {};  // of the row, that it is multiplied by
};

class Divergences {
  public:
    explicit Divergences(const GraphData& from) : from_(from) {
        for (const NodeId id : from_.live_nodes()) {
            if (auto found = divergence(from_.node(id))) divergences_.emplace(id, std::move(*found));
        }
    }

    bool applies() const { return !divergences_.empty(); }

    std::shared_ptr<const GraphData> run() const {
        return rewritten(from_, [&](GraphData& to, NodeId id, const ToHere& to_here) {
            const auto found = divergences_.find(id);
            return found == divergences_.end() ? to.add_copy(from_.node(id), to_here)
                                               : written(to, id, found->second, to_here);
        });
    }

  private:
    bool is_map(NodeId id, Op op) const { return from_.node(id).kind == NodeKind::kMap && from_.node(id).op == op; }
    const std::vector<NodeId>& args(NodeId id) const { return from_.node(id).args; }

    // Σ exp(x − max x) over the same columns.
    std::optional<Softmax> of_total(NodeId id) const {
        const Node& total = from_.node(id);
        if (!is_sum_of_columns(from_, total) || !is_map(total.args[0], Op::kExp)) return std::nullopt;
        const NodeId below = args(total.args[0])[0];
        if (!is_map(below, Op::kSub)) return std::nullopt;
        const Node& maximum = from_.node(args(below)[1]);
        const bool is_below = maximum.kind == NodeKind::kReduce && maximum.monoid == Monoid::kMax &&
                              maximum.args[0] == args(below)[0] && maximum.reduced == total.reduced;
        return is_below ? std::optional(Softmax{below, total.args[0], id}) : std::nullopt;
    }

    std::optional<Softmax> of_logarithm_of_total(NodeId id) const {
        return is_map(id, Op::kLog) ? of_total(args(id)[0]) : std::nullopt;
    }

    std::optional<Softmax> of_probability(NodeId id) const {
        if (is_map(id, Op::kExp)) return of_logarithm(args(id)[0]);
        if (!is_map(id, Op::kDiv)) return std::nullopt;
        const auto found = of_total(args(id)[1]);
        return found && found->exponential == args(id)[0] ? found : std::nullopt;
    }

    std::optional<Softmax> of_logarithm(NodeId id) const {
        if (is_map(id, Op::kLog)) return of_probability(args(id)[0]);
        if (!is_map(id, Op::kSub)) return std::nullopt;
        const NodeId of = args(id)[0];
        const NodeId less = args(id)[1];
        if (const auto found = of_logarithm_of_total(less); found && found->below == of) return found;
        if (!is_map(less, Op::kAdd)) return std::nullopt;
        for (const std::size_t i : {0, 1}) {
            const auto found = of_logarithm_of_total(args(less)[i]);
            if (found && args(found->below) == std::vector<NodeId>{of, args(less)[1 - i]}) return found;
        }
        return std::nullopt;
    }

    // The factors of a product.
    void add_factors(NodeId id, std::vector<NodeId>* factors) const {
        if (!is_map(id, Op::kMul)) return factors->push_back(id);
        for (const NodeId arg : args(id)) add_factors(arg, factors);
    }

    std::optional<Divergence> divergence(const Node& sum) const {
        if (!is_sum_of_columns(from_, sum)) return std::nullopt;
        std::vector<NodeId> factors;
        add_factors(sum.args[0], &factors);
        Divergence found;
        std::optional<Softmax> weight;
        NodeId difference = -1;
        for (const NodeId factor : factors) {
            const auto probability = of_probability(factor);
            if (probability && !weight) {
                weight = probability;
            } else if (is_map(factor, Op::kSub) && difference < 0 && varies(from_, factor, sum.reduced)) {
                difference = factor;
            } else if (!varies(from_, factor, sum.reduced)) {
                found.numbers.push_back(factor);
            } else {
                return std::nullopt;
            }
        }
        if (!weight || difference < 0) return std::nullopt;
        const auto first = of_logarithm(args(difference)[0]);
        const auto second = of_logarithm(args(difference)[1]);
        if (!first || !second || (*first == *weight) == (*second == *weight)) return std::nullopt;
        found.p = *weight;
        found.is_negative = *second == *weight;
        found.q = found.is_negative ? *first : *second;
        const auto is_alike = [&](const Softmax& softmax) {
            return from_.node(softmax.total).reduced == sum.reduced &&
                   from_.node(softmax.below).axes == from_.node(sum.args[0]).axes;
        };
        return is_alike(found.p) && is_alike(found.q) ? std::optional(found) : std::nullopt;
    }

    // Σ e (x − y) / s + log(s of q / s).
    NodeId written(GraphData& to, NodeId id, const Divergence& found, const ToHere& to_here) const {
        const Node& sum = from_.node(id);
        const NodeId weight = to_here(found.p.exponential);
        const NodeId zero = to.add_const(sum.dtype, 0);
        const NodeId apart = to.add_map(Op::kSub, {to_here(found.p.below), to_here(found.q.below)});
        const NodeId is_none = to.add_map(Op::kEq, {weight, zero});
        const NodeId term = to.add_map(Op::kMul, {weight, to.add_map(Op::kSelect, {is_none, zero, apart})});
        const NodeId total = to.add_reduce(Monoid::kSum, term, sum.reduced);
        const NodeId of_p = to_here(found.p.total);
        const NodeId ratio = to.add_map(Op::kLog, {to.add_map(Op::kDiv, {to_here(found.q.total), of_p})});
        NodeId result = to.add_map(Op::kAdd, {to.add_map(Op::kDiv, {total, of_p}), ratio});
        if (found.is_negative) result = to.add_map(Op::kNeg, {result});
        for (const NodeId number : found.numbers) result = to.add_map(Op::kMul, {result, to_here(number)});
        to.set_label(result, sum.label);
        return result;
    }

    const GraphData& from_;
    std::map<NodeId, Divergence> divergences_;
};

}  // namespace

std::shared_ptr<const GraphData> write_divergences(const GraphData& graph) {
    const Divergences divergences(graph);
    return divergences.applies() ? divergences.run() : nullptr;
}

}  // namespace rowjit
