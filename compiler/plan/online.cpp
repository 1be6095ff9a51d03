#include "compiler/plan/online.h"

#include <map>
#include <optional>

#include "compiler/plan/rewrite.h"

namespace rowjit {
namespace {

// A reduction that can be read off a pair: which monoid over which value, and which of its components.
struct Match {
    Monoid monoid;
    NodeId over;
    int component;
};

class Rewriter {
  public:
    explicit Rewriter(const GraphData& from) : from_(from) {}

    bool find() {
        for (const NodeId id : from_.live_nodes()) {
            if (const auto match = match_sum_exp(id)) add(id, *match);
            if (const auto match = match_squares(id)) add(id, *match);
        }
        return !matches_.empty();
    }

    std::shared_ptr<const GraphData> run() const {
        return rewritten(from_, [&](GraphData& to, NodeId id, const ToHere& to_here) {
            const Node& node = from_.node(id);
            const auto match = matches_.find(id);
            if (match == matches_.end()) return to.add_copy(node, to_here);
            const auto& [monoid, over, component] = match->second;
            const NodeId pair = to.add_reduce(monoid, to_here(over), from_.node(reduce_of_.at(id)).reduced, component);
            to.set_label(pair, node.label);
            return pair;
        });
    }

  private:
    bool is_map(NodeId id, Op op) const { return from_.node(id).kind == NodeKind::kMap && from_.node(id).op == op; }

    bool is_reduce(NodeId id, Monoid monoid) const {
        return from_.node(id).kind == NodeKind::kReduce && from_.node(id).monoid == monoid &&
               !from_.axis(from_.node(id).reduced[0]).is_row && wide(from_.node(id).dtype);
    }

    // Narrow floats round the maximum and each difference; the pair carries f32 and would not.
    static bool wide(Dtype dtype) { return dtype == Dtype::kF32 || dtype == Dtype::kF64; }

    void add(NodeId id, const Match& match) {
        matches_.emplace(id, match);
        reduce_of_.emplace(id, id);
        if (match.monoid == Monoid::kMaxSumExp) {
            const NodeId maximum = from_.node(from_.node(from_.node(id).args[0]).args[0]).args[1];
            matches_.emplace(maximum, Match{match.monoid, match.over, 0});
            reduce_of_.emplace(maximum, id);
        } else {
            const NodeId mean = from_.node(from_.node(from_.node(id).args[0]).args[0]).args[1];
            matches_.emplace(mean, Match{match.monoid, match.over, 0});
            reduce_of_.emplace(mean, id);
        }
    }

    // Σ exp(x − max x)
    std::optional<Match> match_sum_exp(NodeId id) const {
        if (!is_reduce(id, Monoid::kSum)) return std::nullopt;
        const NodeId exponential = from_.node(id).args[0];
        if (!is_map(exponential, Op::kExp)) return std::nullopt;
        const NodeId difference = from_.node(exponential).args[0];
        if (!is_map(difference, Op::kSub)) return std::nullopt;
        const NodeId x = from_.node(difference).args[0];
        const NodeId maximum = from_.node(difference).args[1];
        if (!is_reduce(maximum, Monoid::kMax) || from_.node(maximum).args[0] != x) return std::nullopt;
        return Match{Monoid::kMaxSumExp, x, 1};
    }

    // Σ (x − μ)·(x − μ) with μ = (Σ x) / n
    std::optional<Match> match_squares(NodeId id) const {
        if (!is_reduce(id, Monoid::kSum)) return std::nullopt;
        const NodeId square = from_.node(id).args[0];
        if (!is_map(square, Op::kMul) || from_.node(square).args[0] != from_.node(square).args[1]) return std::nullopt;
        const NodeId difference = from_.node(square).args[0];
        if (!is_map(difference, Op::kSub)) return std::nullopt;
        const NodeId x = from_.node(difference).args[0];
        const NodeId mean = from_.node(difference).args[1];
        if (!is_map(mean, Op::kDiv)) return std::nullopt;
        const NodeId total = from_.node(mean).args[0];
        const Node& count = from_.node(from_.node(mean).args[1]);
        if (!is_reduce(total, Monoid::kSum) || from_.node(total).args[0] != x || count.kind != NodeKind::kConst)
            return std::nullopt;
        if (count.value != static_cast<double>(from_.column_count(from_.node(x)))) return std::nullopt;
        return Match{Monoid::kWelford, x, 1};
    }

    const GraphData& from_;
    std::map<NodeId, Match> matches_;
    std::map<NodeId, NodeId> reduce_of_;  // the reduction whose axes a matched value shares
};

}  // namespace

std::shared_ptr<const GraphData> rewrite_online(const std::shared_ptr<const GraphData>& group) {
    Rewriter rewriter(*group);
    return rewriter.find() ? rewriter.run() : group;
}

}  // namespace rowjit
