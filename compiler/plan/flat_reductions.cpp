#include "compiler/plan/flat_reductions.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <ranges>
#include <vector>

#include "compiler/plan/nested_sums.h"
#include "compiler/plan/rewrite.h"
#include "dsl/factors.h"

namespace rowjit {
namespace {

// The reduction that another is over alone, and what stands between the two, the outermost first.
struct Nested {
    NodeId inner = -1;
    std::vector<NodeId> scaled;
};

class FlatReductions {
  public:
    explicit FlatReductions(const GraphData& from) : from_(from), uses_(uses_of(from)) {
        for (const NodeId id : from_.live_nodes()) {
            if (auto nested = nested_in(from_.node(id))) nested_.emplace(id, std::move(*nested));
        }
    }

    bool applies() const { return !nested_.empty(); }

    std::shared_ptr<const GraphData> run() const {
        return rewritten(from_, [&](GraphData& to, NodeId id, const ToHere& to_here) {
            return nested_.contains(id) ? flat(to, id, to_here) : to.add_copy(from_.node(id), to_here);
        });
    }

  private:
    bool folds(const Node& node) const {
        const bool is_extremum = node.kind == NodeKind::kReduce && node.state < 0 && !node.is_segmented() &&
                                 (node.monoid == Monoid::kMax || node.monoid == Monoid::kMin);
        return is_extremum || is_sum_of_columns(from_, node) || is_sum_of_rows(from_, node);
    }

    bool is_of_rows(const Node& fold) const { return from_.axis(fold.reduced[0]).is_row; }

    // Which operand is multiplied or divided by a number that is one for all that is reduced; nothing where none is.
    std::optional<std::size_t> scaled_operand(const Node& node, const std::vector<AxisId>& reduced) const {
        if (node.kind != NodeKind::kMap || (node.op != Op::kMul && node.op != Op::kDiv)) return std::nullopt;
        if (!varies(from_, node.args[1], reduced)) return 0;
        return node.op == Op::kMul && !varies(from_, node.args[0], reduced) ? std::optional(1) : std::nullopt;
    }

    std::optional<Nested> nested_in(const Node& outer) const {
        if (!folds(outer)) return std::nullopt;
        Nested nested;
        for (NodeId id = outer.args[0];;) {
            const Node& node = from_.node(id);
            if (uses_[static_cast<std::size_t>(id)] > 1) return std::nullopt;
            if (folds(node) && node.monoid == outer.monoid && node.dtype == outer.dtype &&
                is_of_rows(node) == is_of_rows(outer)) {
                nested.inner = id;
                return nested;
            }
            const auto scaled = scaled_operand(node, outer.reduced);
            if (outer.monoid != Monoid::kSum || !scaled) return std::nullopt;
            nested.scaled.push_back(id);
            id = node.args[*scaled];
        }
    }

    // Inner reductions that hold others are no longer there: all are found from the outermost.
    NodeId flat(GraphData& to, NodeId id, const ToHere& to_here) const {
        const Node& outer = from_.node(id);
        std::vector<AxisId> reduced = outer.reduced;
        std::vector<NodeId> scaled;
        for (auto found = nested_.find(id); found != nested_.end(); found = nested_.find(id)) {
            const auto is_one_for_all = [&](NodeId scale) {
                return scaled_operand(from_.node(scale), reduced).has_value();
            };
            if (!std::ranges::all_of(found->second.scaled, is_one_for_all)) break;
            id = found->second.inner;
            scaled.insert(scaled.end(), found->second.scaled.begin(), found->second.scaled.end());
            const std::vector<AxisId>& more = from_.node(id).reduced;
            reduced.insert(reduced.end(), more.begin(), more.end());
        }
        const NodeId terms = from_.node(id).args[0];
        const std::vector<AxisId>& axes = from_.node(terms).axes;
        std::ranges::sort(reduced, {}, [&](AxisId axis) { return std::ranges::find(axes, axis) - axes.begin(); });
        NodeId result = to.add_reduce(outer.monoid, to_here(terms), reduced);
        for (const NodeId scale : scaled | std::views::reverse) {
            const Node& by = from_.node(scale);
            result = to.add_map(by.op, {result, to_here(by.args[1 - *scaled_operand(by, outer.reduced)])});
        }
        to.set_label(result, outer.label);
        return result;
    }

    const GraphData& from_;
    const std::vector<int> uses_;
    std::map<NodeId, Nested> nested_;
};

}  // namespace

std::shared_ptr<const GraphData> flatten_reductions(const GraphData& graph) {
    const FlatReductions reductions(graph);
    return reductions.applies() ? reductions.run() : nullptr;
}

}  // namespace rowjit
