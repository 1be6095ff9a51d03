#include "compiler/plan/divergences.h"

#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include "compiler/plan/carried_logarithms.h"
#include "compiler/plan/nested_sums.h"
#include "compiler/plan/rewrite.h"
#include "dsl/factors.h"
#include "dsl/softmaxes.h"

namespace rowjit {
namespace {

// A sum over columns of logarithms of shares, each times a weight.
struct WeighedLogarithms {
    std::vector<NodeId> weights;  // p's exponential, or what else weighs: factors
    std::optional<Softmax> p;     // of which the weights are
    Softmax of;                   // whose logarithms they weigh
    std::optional<Softmax> less;  // another's, which are subtracted
    bool is_negative = false;
    std::vector<NodeId> numbers = {};  // of the row, that it is multiplied by
};

class Divergences {
  public:
    explicit Divergences(const GraphData& from) : from_(from) {
        for (const NodeId id : from_.live_nodes()) {
            if (auto found = weighed_logarithms(from_.node(id))) divergences_.emplace(id, std::move(*found));
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

    std::optional<WeighedLogarithms> weighed_logarithms(const Node& sum) const {
        if (!is_sum_of_columns(from_, sum)) return std::nullopt;
        const Factors factors = factors_of(from_, sum.args[0], sum.reduced);
        auto found = weighed_by_shares(factors.varying);
        if (!found) found = weighed(factors.varying, sum);
        if (!found || !is_over(found->of, sum) || (found->less && !is_over(*found->less, sum)) ||
            (found->p && !is_over(*found->p, sum)))
            return std::nullopt;
        found->numbers = factors.numbers;
        return found;
    }

    // p times log p, log q, log p − log q or log q − log p.
    std::optional<WeighedLogarithms> weighed_by_shares(const std::vector<NodeId>& factors) const {
        if (factors.size() != 2) return std::nullopt;
        for (const std::size_t i : {0, 1}) {
            const auto p = softmax_of_probability(from_, factors[i]);
            if (!p) continue;
            const NodeId logarithm = factors[1 - i];
            if (const auto of = softmax_of_logarithm(from_, logarithm))
                return WeighedLogarithms{{p->exponential}, p, *of, {}};
            if (!is_map(logarithm, Op::kSub)) continue;
            const auto first = softmax_of_logarithm(from_, args(logarithm)[0]);
            const auto second = softmax_of_logarithm(from_, args(logarithm)[1]);
            if (!first || !second || (*first == *p) == (*second == *p)) continue;
            const bool is_negative = *second == *p;
            return WeighedLogarithms{{p->exponential}, p, *p, is_negative ? first : second, is_negative};
        }
        return std::nullopt;
    }

    // Logarithms times what is given for each column.
    std::optional<WeighedLogarithms> weighed(std::vector<NodeId> factors, const Node& sum) const {
        const auto is_logarithm = [&](NodeId id) { return softmax_of_logarithm(from_, id).has_value(); };
        const auto logarithm = std::ranges::find_if(factors, is_logarithm);
        if (logarithm == factors.end() || factors.size() < 2) return std::nullopt;
        const Softmax of = *softmax_of_logarithm(from_, *logarithm);
        factors.erase(logarithm);
        const std::vector<AxisId>& axes = from_.node(sum.args[0]).axes;
        const auto is_given = [&](NodeId id) { return from_.node(id).axes == axes && is_known_in_pass(from_, id); };
        if (!std::ranges::all_of(factors, is_given)) return std::nullopt;
        return WeighedLogarithms{std::move(factors), {}, of, {}};
    }

    bool is_over(const Softmax& softmax, const Node& sum) const {
        return from_.node(softmax.total).reduced == sum.reduced &&
               from_.node(softmax.below).axes == from_.node(sum.args[0]).axes;
    }

    // Σ e (x − y) / s + log(s of y / s), Σ e x / s − log(s of x) or Σ w x − log(s of x) Σ w.
    NodeId written(GraphData& to, NodeId id, const WeighedLogarithms& found, const ToHere& to_here) const {
        const Node& sum = from_.node(id);
        const auto map = [&](Op op, NodeId a, NodeId b) { return to.add_map(op, {a, b}); };
        NodeId weight = to_here(found.weights[0]);
        for (const NodeId factor : found.weights | std::views::drop(1)) weight = map(Op::kMul, weight, to_here(factor));
        const NodeId of_total = to_here(found.of.total);
        NodeId term = to_here(found.of.below);
        if (found.less) term = map(Op::kSub, term, to_here(found.less->below));
        if (found.p) {
            const NodeId zero = to.add_const(sum.dtype, 0);
            term = to.add_map(Op::kSelect, {map(Op::kEq, weight, zero), zero, term});
        }
        NodeId result = to.add_reduce(Monoid::kSum, map(Op::kMul, weight, term), sum.reduced);
        if (found.p) result = map(Op::kDiv, result, to_here(found.p->total));
        if (found.less) {
            const NodeId ratio = map(Op::kDiv, to_here(found.less->total), of_total);
            result = map(Op::kAdd, result, to.add_map(Op::kLog, {ratio}));
        } else {
            NodeId logarithm = to.add_map(Op::kLog, {of_total});
            if (!found.p) logarithm = map(Op::kMul, logarithm, to.add_reduce(Monoid::kSum, weight, sum.reduced));
            result = map(Op::kSub, result, logarithm);
        }
        if (found.is_negative) result = to.add_map(Op::kNeg, {result});
        for (const NodeId number : found.numbers) result = to.add_map(Op::kMul, {result, to_here(number)});
        to.set_label(result, sum.label);
        return result;
    }

    const GraphData& from_;
    std::map<NodeId, WeighedLogarithms> divergences_;
};

}  // namespace

std::shared_ptr<const GraphData> write_divergences(const GraphData& graph) {
    const Divergences divergences(graph);
    return divergences.applies() ? divergences.run() : nullptr;
}

}  // namespace rowjit
