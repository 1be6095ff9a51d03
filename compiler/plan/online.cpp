#include "compiler/plan/online.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/dtype.h"
#include "compiler/plan/carried_logarithms.h"
#include "compiler/plan/rewrite.h"
#include "dsl/softmaxes.h"

namespace rowjit {
namespace {

// A reduction that can be read off a pair: which monoid over which value, and which of its components.
struct Match {
    Monoid monoid;
    NodeId over;
    int component;
    NodeId beside = -1;  // another row, weights or the places of the greatest
};

class Rewriter {
  public:
    Rewriter(const GraphData& from, bool over_rows) : from_(from), over_rows_(over_rows) {}

    bool find(bool on_gpu) {
        const bool stores = stores_columns();
        for (const NodeId id : from_.live_nodes()) {
            if (const auto found = carried_logarithms(from_, id)) {
                if (on_gpu || (found->monoid == Monoid::kDivergence && !stores)) add_carried(id, *found);
            }
            find_greatest(id);
        }
        for (const NodeId id : from_.live_nodes()) {
            if (matches_.contains(id)) continue;
            if (const auto match = match_sum_exp(id)) add(id, *match);
            if (const auto match = match_squares(id)) add(id, *match);
        }
        return !matches_.empty();
    }

    // A sum over rows is of f32, as its parts are, and of more than a thread reads at once.
    bool find_of_rows() {
        for (const NodeId id : from_.live_nodes()) {
            const Node& sum = from_.node(id);
            if (sum.dtype != Dtype::kF32 || from_.reduces_few(sum)) continue;
            if (const auto match = match_sum_exp(id)) add(id, *match);
        }
        return !matches_.empty();
    }

    std::shared_ptr<const GraphData> run() const {
        std::map<NodeId, NodeId> made;
        return rewritten(from_,
                         [&](GraphData& to, NodeId id, const ToHere& /*to_here*/) { return convert(to, id, &made); });
    }

  private:
    // What a pair is over may come after the first of the reductions that it replaces, and is then made before.
    NodeId convert(GraphData& to, NodeId id, std::map<NodeId, NodeId>* made) const {
        if (const auto known = made->find(id); known != made->end()) return known->second;
        const auto here = [&](NodeId other) { return convert(to, other, made); };
        const auto match = matches_.find(id);
        const NodeId result =
            match == matches_.end() ? to.add_copy(from_.node(id), here) : add_pair(to, id, match->second, here);
        made->emplace(id, result);
        return result;
    }

    NodeId add_pair(GraphData& to, NodeId id, const Match& match, const ToHere& here) const {
        const std::vector<AxisId>& reduced = from_.node(reduce_of_.at(id)).reduced;
        const NodeId over = here(match.over);
        const auto add = [&] {
            switch (match.monoid) {
                case Monoid::kGreatest: return to.add_greatest(over, here(match.beside), reduced, match.component);
                case Monoid::kWelford: return to.add_reduce(match.monoid, over, reduced, match.component);
                default: break;
            }
            std::vector<NodeId> args = {over};
            if (match.beside >= 0) args.push_back(here(match.beside));
            return to.add_carried(match.monoid, std::move(args), reduced, match.component);
        };
        const NodeId pair = add();
        to.set_label(pair, from_.node(id).label);
        return over_rows_ && match.component == 1 ? or_nothing(to, pair, reduced) : pair;
    }

    // The sum of no rows, whose maximum is infinite, is 0.
    NodeId or_nothing(GraphData& to, NodeId sum, const std::vector<AxisId>& rows) const {
        for (const AxisId axis : rows) {
            if (to.axis(axis).extent != kRuntimeExtent) continue;
            const NodeId some = to.add_map(Op::kGt, {to.add_extent(axis, Dtype::kI64), to.add_const(Dtype::kI64, 0)});
            sum = to.add_map(Op::kSelect, {some, sum, to.add_const(Dtype::kF32, 0)});
        }
        return sum;
    }

    bool stores_columns() const {
        return std::any_of(from_.outputs().begin(), from_.outputs().end(), [&](const OutputInfo& output) {
            return !from_.column_axes(from_.node(output.node)).empty();
        });
    }

    bool is_map(NodeId id, Op op) const { return from_.node(id).kind == NodeKind::kMap && from_.node(id).op == op; }

    bool is_reduce(NodeId id, Monoid monoid) const {
        const Node& node = from_.node(id);
        return node.kind == NodeKind::kReduce && node.monoid == monoid && !node.is_segmented() &&
               from_.axis(node.reduced[0]).is_row == over_rows_ && wide(node.dtype);
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

    void add_carried(NodeId sum, const CarriedLogarithms& found) {
        for (const auto& [id, component] : found.components) {
            matches_.emplace(id, Match{found.monoid, found.x, component, found.beside});
            reduce_of_.emplace(id, sum);
        }
    }

    // max x, and from it round after round. Keys are of f32.
    void find_greatest(NodeId id) {
        const Node& maximum = from_.node(id);
        if (maximum.kind != NodeKind::kReduce || maximum.monoid != Monoid::kMax || !is_float(maximum.dtype) ||
            maximum.dtype == Dtype::kF64)
            return;
        const NodeId x = maximum.args[0];
        if (from_.column_axes(from_.node(x)) != maximum.reduced || maximum.reduced.size() != 1 || !has_places()) return;
        GraphData written = from_;
        NodeId greatest = id;
        std::optional<NodeId> rest;
        for (int r = 0; r < components(Monoid::kGreatest); ++r) {
            const NodeId place = written_place(&written, x, greatest, rest);
            if (place >= from_.size()) return;
            matches_.emplace(place, Match{Monoid::kGreatest, x, r, written.add_iota(maximum.reduced[0], Dtype::kI32)});
            reduce_of_.emplace(place, place);
            rest = written_rest(&written, x, greatest, place);
            const NodeId least = written.add_const(maximum.dtype, -std::numeric_limits<double>::infinity());
            greatest =
                written.add_reduce(Monoid::kMax, written.add_map(Op::kSelect, {*rest, x, least}), maximum.reduced);
        }
    }

    // Whether the first of some columns is asked for at all.
    bool has_places() const {
        const std::vector<NodeId> live = from_.live_nodes();
        return std::any_of(live.begin(), live.end(), [&](NodeId id) {
            const Node& node = from_.node(id);
            return node.kind == NodeKind::kReduce && node.monoid == Monoid::kMin && node.dtype == Dtype::kI32;
        });
    }

    // The first column where an element equals the greatest of the rest, as the library writes it: equal nodes are one,
    // so that what is written again is there already.
    static NodeId written_place(GraphData* graph, NodeId x, NodeId greatest, std::optional<NodeId> rest) {
        const AxisId axis = graph->node(greatest).reduced[0];
        const NodeId is_nan = graph->add_map(Op::kNe, {greatest, greatest});
        const NodeId both_nan = graph->add_map(Op::kAnd, {is_nan, graph->add_map(Op::kNe, {x, x})});
        const NodeId equal = graph->add_map(Op::kOr, {graph->add_map(Op::kEq, {x, greatest}), both_nan});
        const NodeId taken = rest ? graph->add_map(Op::kAnd, {*rest, equal}) : equal;
        const NodeId none = graph->add_const(Dtype::kI32, static_cast<double>(graph->axis(axis).extent));
        const NodeId column = graph->add_iota(axis, Dtype::kI32);
        return graph->add_reduce(Monoid::kMin, graph->add_map(Op::kSelect, {taken, column, none}), {axis});
    }

    // Whether an element comes after that one.
    static NodeId written_rest(GraphData* graph, NodeId x, NodeId greatest, NodeId place) {
        const auto both = [&](Op op, NodeId a, NodeId b) { return graph->add_map(op, {a, b}); };
        const AxisId axis = graph->node(greatest).reduced[0];
        const NodeId later = both(Op::kGt, graph->add_iota(axis, Dtype::kI32), place);
        const NodeId equal_later = both(Op::kAnd, both(Op::kEq, x, greatest), later);
        const NodeId less = both(Op::kOr, both(Op::kLt, x, greatest), equal_later);
        const NodeId is_number = graph->add_map(Op::kNot, {both(Op::kNe, x, x)});
        const NodeId after_nan = both(Op::kAnd, both(Op::kNe, greatest, greatest), both(Op::kOr, is_number, later));
        return both(Op::kOr, less, after_nan);
    }

    // Σ exp(x − max x)
    std::optional<Match> match_sum_exp(NodeId id) const {
        const auto softmax = is_reduce(id, Monoid::kSum) ? softmax_of_total(from_, id) : std::nullopt;
        if (!softmax) return std::nullopt;
        return Match{Monoid::kMaxSumExp, from_.node(softmax->below).args[0], 1};
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
    bool over_rows_;
    std::map<NodeId, Match> matches_;
    std::map<NodeId, NodeId> reduce_of_;  // the reduction whose axes a matched value shares
};

}  // namespace

std::shared_ptr<const GraphData> rewrite_online(const std::shared_ptr<const GraphData>& group, const Target& target) {
    Rewriter rewriter(*group, false);
    return rewriter.find(target.is_gpu()) ? rewriter.run() : group;
}

std::shared_ptr<const GraphData> rewrite_online_rows(const std::shared_ptr<const GraphData>& graph,
                                                     const Target& target) {
    Rewriter rewriter(*graph, true);
    return target.is_gpu() && rewriter.find_of_rows() ? rewriter.run() : graph;
}

}  // namespace rowjit
