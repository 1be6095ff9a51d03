#include "compiler/plan/nested_sums.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "compiler/plan/rewrite.h"

namespace rowjit {
namespace {

bool is_plain_sum(const Node& node) {
    return node.kind == NodeKind::kReduce && node.monoid == Monoid::kSum && !node.is_segmented() && node.state < 0;
}

// Of what rounds in f32 or wider: a product with what does not vary is then taken out of a sum for less than the sum
// itself loses.
bool is_wide(const Node& node) { return !is_narrow(node.dtype); }

class NestedSums {
  public:
    // Sums of columns, or of rows.
    NestedSums(const GraphData& from, bool of_rows) : from_(from), of_rows_(of_rows) {
        for (const NodeId id : from_.live_nodes()) {
            if (is_sum(from_.node(id))) sums_.push_back(id);
        }
    }

    bool applies() const {
        return std::any_of(sums_.begin(), sums_.end(), [&](NodeId id) { return inner_axes(from_.node(id)); });
    }

    std::shared_ptr<const GraphData> run() const {
        return rewritten(from_, [&](GraphData& to, NodeId id, const ToHere& to_here) {
            const Node& node = from_.node(id);
            const auto inner = is_sum(node) ? inner_axes(node) : std::nullopt;
            return inner ? nest(to, node, *inner, to_here) : to.add_copy(node, to_here);
        });
    }

  private:
    using Axes = std::set<AxisId>;

    bool is_sum(const Node& node) const { return is_plain_sum(node) && from_.axis(node.reduced[0]).is_row == of_rows_; }

    static Axes set_of(const std::vector<AxisId>& axes) { return {axes.begin(), axes.end()}; }

    // Those of the sum's axes that another is over alone, for all of the others' positions. Of sums over rows columns
    // may differ, as those of a weight and of a table that only half of a head is rotated by.
    std::optional<Axes> inner_axes(const Node& wide) const {
        if (!of_rows_ && !is_wide(wide)) return std::nullopt;
        const Axes reduced = set_of(wide.reduced);
        const Axes all = axes_of_terms(wide);
        for (const NodeId id : sums_) {
            const Node& sum = from_.node(id);
            Axes inner = set_of(sum.reduced);
            const bool within = inner.size() < reduced.size() &&
                                std::includes(reduced.begin(), reduced.end(), inner.begin(), inner.end());
            if (within && axes_of_terms(sum) == all) return inner;
        }
        return of_rows_ ? behind_rows_left(wide) : std::nullopt;
    }

    Axes axes_of_terms(const Node& sum) const {
        Axes axes = set_of(from_.node(sum.args[0]).axes);
        if (of_rows_) std::erase_if(axes, [&](AxisId axis) { return !from_.axis(axis).is_row; });
        return axes;
    }

    // The innermost rows of a sum where it leaves some that stand between those that it is over, as those of the heads
    // of a batch by tables that its sequences share.
    std::optional<Axes> behind_rows_left(const Node& wide) const {
        const std::vector<AxisId> rows = from_.row_axes(from_.node(wide.args[0]));
        const auto is_left = [&](AxisId axis) { return !contains(wide.reduced, axis); };
        const auto last_left = std::find_if(rows.rbegin(), rows.rend(), is_left);
        if (std::none_of(last_left, rows.rend(), [&](AxisId axis) { return !is_left(axis); })) return std::nullopt;
        const Axes inner(last_left.base(), rows.end());
        return inner.empty() ? std::nullopt : std::optional(inner);
    }

    void add_factors(NodeId id, std::vector<NodeId>* factors) const {
        const Node& node = from_.node(id);
        if (node.kind != NodeKind::kMap || node.op != Op::kMul) return factors->push_back(id);
        for (const NodeId arg : node.args) add_factors(arg, factors);
    }

    NodeId nest(GraphData& to, const Node& wide, const Axes& inner, const ToHere& to_here) const {
        // Of products that are each rounded no factor is taken out.
        if (!is_wide(wide))
            return add_reduced_by_turns(to, wide, to_here(wide.args[0]), {inner.begin(), inner.end()},
                                        others(wide, inner));
        std::vector<NodeId> factors;
        add_factors(wide.args[0], &factors);
        const auto varies = [&](NodeId factor) {
            const std::vector<AxisId>& axes = from_.node(factor).axes;
            return std::any_of(axes.begin(), axes.end(), [&](AxisId axis) { return inner.contains(axis); });
        };
        const auto first_outer = std::stable_partition(factors.begin(), factors.end(), varies);
        const auto product = [&](auto begin, auto end, NodeId result) {
            for (auto factor = begin; factor != end; ++factor)
                result = to.add_map(Op::kMul, {result, to_here(*factor)});
            return result;
        };
        const NodeId terms = product(factors.begin() + 1, first_outer, to_here(factors.front()));
        const NodeId inner_sum = to.add_reduce(Monoid::kSum, terms, {inner.begin(), inner.end()});
        const NodeId outer_terms = product(first_outer, factors.end(), inner_sum);
        const NodeId sum = to.add_reduce(Monoid::kSum, outer_terms, others(wide, inner));
        to.set_label(sum, wide.label);
        return sum;
    }

    static std::vector<AxisId> others(const Node& wide, const Axes& inner) {
        std::vector<AxisId> outer = wide.reduced;
        std::erase_if(outer, [&](AxisId axis) { return inner.contains(axis); });
        return outer;
    }

    const GraphData& from_;
    const bool of_rows_;
    std::vector<NodeId> sums_;
};

std::shared_ptr<const GraphData> nested(const std::shared_ptr<const GraphData>& graph, bool of_rows) {
    const NestedSums sums(*graph, of_rows);
    return sums.applies() ? sums.run() : graph;
}

}  // namespace

bool is_sum_of_columns(const GraphData& graph, const Node& node) {
    return is_plain_sum(node) && is_wide(node) && !graph.axis(node.reduced[0]).is_row;
}

bool is_sum_of_rows(const GraphData& graph, const Node& node) {
    return is_plain_sum(node) && is_wide(node) && graph.axis(node.reduced[0]).is_row;
}

std::shared_ptr<const GraphData> nest_sums(const std::shared_ptr<const GraphData>& graph) {
    return nested(graph, false);
}

std::shared_ptr<const GraphData> nest_row_sums(const std::shared_ptr<const GraphData>& graph) {
    return nested(graph, true);
}

}  // namespace rowjit
