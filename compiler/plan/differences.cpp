#include "compiler/plan/differences.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "base/check.h"
#include "compiler/plan/rewrite.h"

namespace rowjit {
namespace {

class Differences {
  public:
    explicit Differences(const GraphData& from)
        : from_(from), may_carry_(at(from.size()), false), is_wanted_(at(from.size()), false) {
        const std::vector<NodeId> live = from_.live_nodes();  // operands before users
        for (const NodeId id : live) may_carry_[at(id)] = is_sum(id) || is_made_of_sums(id);
        for (auto id = live.rbegin(); id != live.rend(); ++id) {
            if (!carries(*id)) continue;
            for (const NodeId arg : from_.node(*id).args) is_wanted_[at(arg)] = may_carry_[at(arg)];
        }
    }

    Lost lost(NodeId id) const {
        return is_wanted_[at(id)] ? Lost::kHandedOn : carries(id) ? Lost::kTakenIn : Lost::kNothing;
    }

    bool applies() const { return std::find(is_wanted_.begin(), is_wanted_.end(), true) != is_wanted_.end(); }

    std::shared_ptr<const GraphData> run() {
        return rewritten(from_, [&](GraphData& to, NodeId id, const ToHere& to_here) {
            if (is_sum(id)) return is_wanted_[at(id)] ? exact(to, id, to_here) : to.add_copy(from_.node(id), to_here);
            return carries(id) ? carried(to, id, to_here) : to.add_copy(from_.node(id), to_here);
        });
    }

  private:
    // What a number of the row was rounded to, and what that lost: none of what nothing is known of.
    struct Parts {
        NodeId rounded = -1;
        std::optional<NodeId> lost;
    };

    static std::size_t at(NodeId id) { return static_cast<std::size_t>(id); }

    bool is_number(const Node& node) const {
        return node.dtype == Dtype::kF32 && node.state < 0 && from_.column_axes(node).empty();
    }

    bool is_sum(NodeId id) const {
        const Node& node = from_.node(id);
        return is_number(node) && node.kind == NodeKind::kReduce && node.monoid == Monoid::kSum;
    }

    // By arithmetic whose rounding is known exactly. Not by products: what weighs sums was rounded itself, as the
    // probabilities in a softmax's derivative were, and a difference of such is no more exact for it.
    bool is_made_of_sums(NodeId id) const {
        const Node& node = from_.node(id);
        if (!is_number(node) || node.kind != NodeKind::kMap) return false;
        switch (node.op) {
            case Op::kAdd:
            case Op::kSub:
            case Op::kDiv:
            case Op::kNeg:
                return std::any_of(node.args.begin(), node.args.end(), [&](NodeId arg) { return may_carry_[at(arg)]; });
            default: return false;
        }
    }

    // Whether it is such a difference, or on the way to one.
    bool carries(NodeId id) const {
        const Node& node = from_.node(id);
        if (node.kind != NodeKind::kMap || !may_carry_[at(id)]) return false;
        const auto may_carry = [&](NodeId arg) { return may_carry_[at(arg)]; };
        return is_wanted_[at(id)] ||
               (node.op == Op::kSub && std::all_of(node.args.begin(), node.args.end(), may_carry));
    }

    NodeId exact(GraphData& to, NodeId id, const ToHere& to_here) {
        const NodeId sum = to.add_copy(from_.node(id), to_here);
        const Parts parts = {to.add_exact_sum(sum, 0), to.add_exact_sum(sum, 1)};
        to.set_label(parts.rounded, from_.node(id).label);
        parts_[id] = parts;
        return parts.rounded;
    }

    // Both parts in one, or where the lost one is no number, as beside what overflowed, the other.
    NodeId carried(GraphData& to, NodeId id, const ToHere& to_here) {
        const Node& node = from_.node(id);
        std::vector<Parts> operands;
        std::vector<NodeId> rounded;
        for (const NodeId arg : node.args) {
            const auto parts = parts_.find(arg);
            operands.push_back(parts == parts_.end() ? Parts{to_here(arg), {}} : parts->second);
            rounded.push_back(operands.back().rounded);
        }
        const NodeId result = to.add_map(node.op, rounded);
        const NodeId lost = lost_by(to, node.op, result, operands);
        parts_[id] = {result, lost};
        to.set_label(lost, "lost");
        const NodeId infinity = to.add_const(Dtype::kF32, std::numeric_limits<double>::infinity());
        const NodeId is_finite = to.add_map(Op::kLt, {to.add_map(Op::kAbs, {lost}), infinity});
        const NodeId whole = to.add_map(Op::kSelect, {is_finite, to.add_map(Op::kAdd, {result, lost}), result});
        to.set_label(whole, node.label);
        return whole;
    }

    // What the result lost itself, with what its operands had lost before.
    static NodeId lost_by(GraphData& to, Op op, NodeId result, const std::vector<Parts>& operands) {
        const Parts& a = operands[0];
        const auto negative = [&](NodeId x) { return to.add_map(Op::kNeg, {x}); };
        const auto with = [&](Op by, NodeId lost, const Parts& operand) {
            return operand.lost ? to.add_map(by, {lost, *operand.lost}) : lost;
        };
        if (op == Op::kNeg) return negative(*a.lost);
        const Parts& b = operands[1];
        switch (op) {
            case Op::kAdd: return with(Op::kAdd, with(Op::kAdd, lost_by_sum(to, result, a.rounded, b.rounded), a), b);
            case Op::kSub:
                return with(Op::kSub, with(Op::kAdd, lost_by_sum(to, result, a.rounded, negative(b.rounded)), a), b);
            case Op::kDiv: {
                const NodeId quotient = negative(result);
                NodeId rest = with(Op::kAdd, to.add_map(Op::kFma, {quotient, b.rounded, a.rounded}), a);
                if (b.lost) rest = to.add_map(Op::kFma, {quotient, *b.lost, rest});
                return to.add_map(Op::kDiv, {rest, b.rounded});
            }
            default: break;
        }
        RJ_CHECK(false, "differences: {}", info(op).name);
    }

    const GraphData& from_;
    std::vector<bool> may_carry_;  // by node: it is a sum, or made of sums
    std::vector<bool> is_wanted_;  // by node: a difference is made of it
    std::map<NodeId, Parts> parts_;
};

}  // namespace

std::shared_ptr<const GraphData> carry_lost(const std::shared_ptr<const GraphData>& group) {
    Differences differences(*group);
    return differences.applies() ? differences.run() : group;
}

std::vector<Lost> lost_by_node(const GraphData& graph) {
    const Differences differences(graph);
    std::vector<Lost> found(static_cast<std::size_t>(graph.size()), Lost::kNothing);
    for (const NodeId id : graph.live_nodes()) found[static_cast<std::size_t>(id)] = differences.lost(id);
    return found;
}

// Knuth's, exact whichever is larger.
NodeId lost_by_sum(GraphData& graph, NodeId sum, NodeId a, NodeId b) {
    const NodeId of_b = graph.add_map(Op::kSub, {sum, a});
    const NodeId of_a = graph.add_map(Op::kSub, {sum, of_b});
    return graph.add_map(Op::kAdd, {graph.add_map(Op::kSub, {a, of_a}), graph.add_map(Op::kSub, {b, of_b})});
}

}  // namespace rowjit
