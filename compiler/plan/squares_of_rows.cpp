#include "compiler/plan/squares_of_rows.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "compiler/plan/cutter.h"
#include "compiler/plan/nested_sums.h"
#include "compiler/plan/partial_reductions.h"
#include "compiler/plan/rewrite.h"
#include "dsl/factors.h"
#include "dsl/moments.h"

namespace rowjit {
namespace {

// A sum of (x − μ)², and what it is of.
struct Squares {
    NodeId x = -1;
    NodeId mean = -1;
};

using Summed = std::pair<NodeId, std::vector<AxisId>>;  // and over which rows

class SquaresOfRows {
  public:
    SquaresOfRows(const GraphData& from, const Target& target) : from_(from), on_gpu_(target.is_gpu()) {
        std::vector<NodeId> sums = from_.live_nodes();
        std::erase_if(sums, [&](NodeId id) { return !is_f32_sum_of_rows(id); });
        std::set<Summed> apart;  // of which a GPU's blocks have no parts
        for (const NodeId id : sums) {
            const Node& node = from_.node(id);
            if (on_gpu_ && !has_moments_of_rows(from_, id, target)) apart.emplace(node.args[0], node.reduced);
        }
        for (const NodeId id : sums) {
            const Node& node = from_.node(id);
            const Squares squares = squares_of(node);
            if (squares.x < 0 || apart.contains({node.args[0], node.reduced}) ||
                apart.contains({squares.x, node.reduced}))
                continue;
            squares_.emplace(id, squares);
            summed_.emplace(squares.x, node.reduced);
        }
    }

    bool applies() const { return !squares_.empty(); }

    std::shared_ptr<const GraphData> run() const {
        return rewritten(from_, [&](GraphData& to, NodeId id, const ToHere& to_here) {
            const Node& node = from_.node(id);
            const auto squares = squares_.find(id);
            const bool is_beside = is_f32_sum_of_rows(id) && summed_.contains({node.args[0], node.reduced});
            if (squares == squares_.end() && !is_beside) return to.add_copy(node, to_here);
            const NodeId sum = squares != squares_.end() ? of_squares(to, node, squares->second, to_here)
                                                         : beside_squares(to, to_here(node.args[0]), node.reduced);
            to.set_label(sum, node.label);
            return sum;
        });
    }

  private:
    bool is_f32_sum_of_rows(NodeId id) const {
        return from_.node(id).dtype == Dtype::kF32 && is_sum_of_rows(from_, from_.node(id));
    }

    bool is_f32_map(NodeId id, Op op) const {
        const Node& node = from_.node(id);
        return node.kind == NodeKind::kMap && node.op == op && node.dtype == Dtype::kF32;
    }

    Squares squares_of(const Node& sum) const {
        const NodeId square = sum.args[0];
        if (!is_f32_map(square, Op::kMul) || from_.node(square).args[0] != from_.node(square).args[1]) return {};
        const NodeId difference = from_.node(square).args[0];
        if (!is_f32_map(difference, Op::kSub)) return {};
        const std::vector<NodeId>& terms = from_.node(difference).args;
        for (const auto& [x, mean] : {std::pair(terms[0], terms[1]), {terms[1], terms[0]}}) {
            const bool has_all =
                std::ranges::all_of(sum.reduced, [&](AxisId axis) { return varies(from_, x, {axis}); });
            if (has_all && !varies(from_, mean, sum.reduced) && waits_for(mean, sum.reduced)) return {x, mean};
        }
        return {};
    }

    // Whether some reduction over those rows is below a value.
    bool waits_for(NodeId value, const std::vector<AxisId>& rows) const {
        const std::vector<bool> below = planning::needs(from_, {value});
        return std::ranges::any_of(from_.live_nodes(), [&](NodeId id) {
            const Node& node = from_.node(id);
            return below[static_cast<std::size_t>(id)] && node.kind == NodeKind::kReduce && node.reduced == rows;
        });
    }

    static NodeId wide_sum(GraphData& to, NodeId x, const std::vector<AxisId>& rows) {
        return to.add_reduce(Monoid::kSum, to.add_cast(x, Dtype::kF64), rows);
    }

    NodeId beside_squares(GraphData& to, NodeId x, const std::vector<AxisId>& rows) const {
        return on_gpu_ ? to.add_moments(x, rows, kMomentSum) : to.add_cast(wide_sum(to, x, rows), Dtype::kF32);
    }

    NodeId of_squares(GraphData& to, const Node& node, const Squares& of, const ToHere& to_here) const {
        return on_gpu_ ? of_moments(to, node, of, to_here) : sum_at_once(to, node, of, to_here);
    }

    // Of no rows there is no mean, and no square.
    NodeId of_moments(GraphData& to, const Node& node, const Squares& of, const ToHere& to_here) const {
        const auto map = [&](Op op, NodeId a, NodeId b) { return to.add_map(op, {a, b}); };
        const auto moment = [&](Moment component) { return to.add_moments(to_here(of.x), node.reduced, component); };
        const NodeId count = moment(kMomentCount);
        const NodeId apart = map(Op::kSub, map(Op::kDiv, moment(kMomentSum), count), to_here(of.mean));
        const NodeId squares = map(Op::kAdd, moment(kMomentSquares), map(Op::kMul, count, map(Op::kMul, apart, apart)));
        const NodeId zero = to.add_const(Dtype::kF32, 0);
        return to.add_map(Op::kSelect, {map(Op::kGt, count, zero), squares, zero});
    }

    // Never below 0, whatever was lost, and 0 of no rows. Where μ overflowed, of numbers none of which is infinite, so
    // do the squares.
    NodeId sum_at_once(GraphData& to, const Node& node, const Squares& of, const ToHere& to_here) const {
        const auto map = [&](Op op, NodeId a, NodeId b) { return to.add_map(op, {a, b}); };
        const NodeId mean = to_here(of.mean);
        const NodeId wide_mean = to.add_cast(mean, Dtype::kF64);
        const NodeId wide = to.add_cast(to_here(of.x), Dtype::kF64);
        const NodeId sum = wide_sum(to, to_here(of.x), node.reduced);
        const NodeId squares = to.add_reduce(Monoid::kSum, map(Op::kMul, wide, wide), node.reduced);
        NodeId count = to.add_const(Dtype::kF64, 1);
        for (const AxisId axis : node.reduced) count = map(Op::kMul, count, to.add_extent(axis, Dtype::kF64));
        const NodeId twice = map(Op::kSub, map(Op::kAdd, sum, sum), map(Op::kMul, wide_mean, count));
        const NodeId whole = map(Op::kSub, squares, map(Op::kMul, wide_mean, twice));
        const NodeId positive = map(Op::kMax, to.add_cast(whole, Dtype::kF32), to.add_const(Dtype::kF32, 0));
        const NodeId zero_or_nan = to.add_cast(map(Op::kSub, squares, squares), Dtype::kF32);
        const NodeId beyond = map(Op::kAdd, map(Op::kMul, mean, mean), zero_or_nan);
        const NodeId infinity = to.add_const(Dtype::kF32, std::numeric_limits<double>::infinity());
        const NodeId is_finite = map(Op::kLt, to.add_map(Op::kAbs, {mean}), infinity);
        const NodeId any = map(Op::kGt, count, to.add_const(Dtype::kF64, 0));
        const NodeId of_rows = to.add_map(Op::kSelect, {is_finite, positive, beyond});
        return to.add_map(Op::kSelect, {any, of_rows, to.add_const(Dtype::kF32, 0)});
    }

    const GraphData& from_;
    bool on_gpu_;
    std::map<NodeId, Squares> squares_;  // by sum
    std::set<Summed> summed_;            // what is summed with them anyway
};

}  // namespace

std::shared_ptr<const GraphData> square_rows_at_once(const std::shared_ptr<const GraphData>& graph,
                                                     const Target& target) {
    const SquaresOfRows squares(*graph, target);
    return squares.applies() ? squares.run() : graph;
}

}  // namespace rowjit
