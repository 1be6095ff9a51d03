#include "compiler/plan/swapped_sums.h"

#include <algorithm>
#include <map>
#include <vector>

#include "compiler/plan/nested_sums.h"
#include "compiler/plan/rewrite.h"
#include "dsl/factors.h"

namespace rowjit {
namespace {

// The factors of a sum's terms, one of which is a sum along other axes, and what all terms are divided by.
struct Swapped {
    NodeId inner = -1;
    std::vector<NodeId> others = {};
    std::vector<NodeId> divisors = {};
};

class SwappedSums {
  public:
    // Sums over columns of sums over rows are swapped, or those over rows of sums over some columns.
    SwappedSums(const GraphData& from, bool over_columns)
        : from_(from), over_columns_(over_columns), uses_(uses_of(from)) {
        for (const NodeId id : from_.live_nodes()) {
            if (!is_outer(from_.node(id))) continue;
            Swapped swapped;
            find_factors(from_.node(id).args[0], from_.node(id).reduced, &swapped);
            if (can_swap(from_.node(id), swapped)) swapped_.emplace(id, std::move(swapped));
        }
    }

    bool applies() const { return !swapped_.empty(); }

    std::shared_ptr<const GraphData> run() const {
        return rewritten(from_, [&](GraphData& to, NodeId id, const ToHere& to_here) {
            const auto sum = swapped_.find(id);
            if (sum == swapped_.end()) return to.add_copy(from_.node(id), to_here);
            const NodeId result = swap(to, from_.node(id), sum->second, to_here);
            return to.node(result).axes == from_.node(id).axes ? result : to.add_copy(from_.node(id), to_here);
        });
    }

  private:
    // Rows that a sum is over may be of each position along the outermost, which it leaves then.
    bool is_outer(const Node& node) const {
        if (over_columns_) return is_sum_of_columns(from_, node);
        const auto leaves = [&](AxisId axis) { return from_.axis(axis).is_row && contains(node.axes, axis); };
        return is_sum_of_rows(from_, node) && leaves(from_.node(node.args[0]).axes.front());
    }

    bool is_inner(const Node& node) const {
        if (over_columns_) return is_sum_of_rows(from_, node);
        return is_sum_of_columns(from_, node) && !from_.column_axes(node).empty();
    }

    bool is_used_once(NodeId id) const { return uses_[static_cast<std::size_t>(id)] == 1; }

    // A sum, in f32 or wider and for nobody else, that varies along all axes of the outer one.
    bool is_own_inner(NodeId id, const std::vector<AxisId>& outer) const {
        return is_inner(from_.node(id)) && is_used_once(id) &&
               std::ranges::all_of(outer, [&](AxisId axis) { return varies(from_, id, {axis}); });
    }

    void find_factors(NodeId id, const std::vector<AxisId>& outer, Swapped* swapped) const {
        const Node& node = from_.node(id);
        const bool is_own_map = node.kind == NodeKind::kMap && is_used_once(id) && !is_narrow(node.dtype);
        if (swapped->inner < 0 && is_own_inner(id, outer)) {
            swapped->inner = id;
        } else if (is_own_map && node.op == Op::kMul) {
            for (const NodeId arg : node.args) find_factors(arg, outer, swapped);
        } else if (is_own_map && node.op == Op::kDiv && !over_columns_) {
            find_factors(node.args[0], outer, swapped);
            swapped->divisors.push_back(node.args[1]);
        } else {
            swapped->others.push_back(id);
        }
    }

    bool can_swap(const Node& outer, const Swapped& swapped) const {
        if (swapped.inner < 0) return false;
        const std::vector<AxisId>& inner = from_.node(swapped.inner).reduced;
        return std::ranges::none_of(swapped.others, [&](NodeId factor) { return varies(from_, factor, inner); }) &&
               std::ranges::none_of(swapped.divisors, [&](NodeId divisor) {
                   return varies(from_, divisor, inner) || varies(from_, divisor, outer.reduced);
               });
    }

    NodeId swap(GraphData& to, const Node& outer, const Swapped& swapped, const ToHere& to_here) const {
        const Node& inner = from_.node(swapped.inner);
        NodeId result = to_here(inner.args[0]);
        const auto apply = [&](Op op, NodeId other) { result = to.add_map(op, {result, to_here(other)}); };
        for (const NodeId factor : swapped.others) {
            if (varies(from_, factor, outer.reduced)) apply(Op::kMul, factor);
        }
        result = to.add_reduce(Monoid::kSum, result, outer.reduced);
        result = to.add_reduce(Monoid::kSum, result, inner.reduced);
        for (const NodeId factor : swapped.others) {
            if (!varies(from_, factor, outer.reduced)) apply(Op::kMul, factor);
        }
        for (const NodeId divisor : swapped.divisors) apply(Op::kDiv, divisor);
        to.set_label(result, outer.label);
        return result;
    }

    const GraphData& from_;
    const bool over_columns_;
    const std::vector<int> uses_;
    std::map<NodeId, Swapped> swapped_;
};

}  // namespace

std::shared_ptr<const GraphData> sum_columns_first(const std::shared_ptr<const GraphData>& graph) {
    const SwappedSums sums(*graph, true);
    return sums.applies() ? sums.run() : graph;
}

std::shared_ptr<const GraphData> sum_rows_first(const GraphData& graph) {
    const SwappedSums sums(graph, false);
    return sums.applies() ? sums.run() : nullptr;
}

}  // namespace rowjit
