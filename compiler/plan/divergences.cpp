#include "compiler/plan/divergences.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/plan/nested_sums.h"
#include "compiler/plan/rewrite.h"
#include "dsl/factors.h"
#include "dsl/softmaxes.h"

namespace rowjit {
namespace {

struct Divergence {
    Softmax p;
    std::optional<Softmax> q;  // none of an entropy
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

    std::optional<Divergence> divergence(const Node& sum) const {
        if (!is_sum_of_columns(from_, sum)) return std::nullopt;
        const Factors factors = factors_of(from_, sum.args[0], sum.reduced);
        if (factors.varying.size() != 2) return std::nullopt;
        for (const std::size_t weight : {0, 1}) {
            const auto p = softmax_of_probability(from_, factors.varying[weight]);
            if (!p || !is_over(*p, sum)) continue;
            auto found = of_logarithms(*p, factors.varying[1 - weight]);
            if (!found || (found->q && !is_over(*found->q, sum))) continue;
            found->numbers = factors.numbers;
            return found;
        }
        return std::nullopt;
    }

    // log p, log p − log q or log q − log p.
    std::optional<Divergence> of_logarithms(const Softmax& p, NodeId id) const {
        if (softmax_of_logarithm(from_, id) == p) return Divergence{p, std::nullopt};
        if (!is_map(id, Op::kSub)) return std::nullopt;
        const auto first = softmax_of_logarithm(from_, args(id)[0]);
        const auto second = softmax_of_logarithm(from_, args(id)[1]);
        if (!first || !second || (*first == p) == (*second == p)) return std::nullopt;
        const bool is_negative = *second == p;
        return Divergence{p, is_negative ? *first : *second, is_negative};
    }

    bool is_over(const Softmax& softmax, const Node& sum) const {
        return from_.node(softmax.total).reduced == sum.reduced &&
               from_.node(softmax.below).axes == from_.node(sum.args[0]).axes;
    }

    // Σ e (x − y) / s + log(s of q / s), or Σ e x / s − log s.
    NodeId written(GraphData& to, NodeId id, const Divergence& found, const ToHere& to_here) const {
        const Node& sum = from_.node(id);
        const NodeId weight = to_here(found.p.exponential);
        const NodeId zero = to.add_const(sum.dtype, 0);
        NodeId term = to_here(found.p.below);
        if (found.q) term = to.add_map(Op::kSub, {term, to_here(found.q->below)});
        const NodeId is_none = to.add_map(Op::kEq, {weight, zero});
        term = to.add_map(Op::kMul, {weight, to.add_map(Op::kSelect, {is_none, zero, term})});
        const NodeId total = to.add_reduce(Monoid::kSum, term, sum.reduced);
        const NodeId of_p = to_here(found.p.total);
        const NodeId mean = to.add_map(Op::kDiv, {total, of_p});
        NodeId result;
        if (found.q) {
            const NodeId ratio = to.add_map(Op::kDiv, {to_here(found.q->total), of_p});
            result = to.add_map(Op::kAdd, {mean, to.add_map(Op::kLog, {ratio})});
        } else {
            result = to.add_map(Op::kSub, {mean, to.add_map(Op::kLog, {of_p})});
        }
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
