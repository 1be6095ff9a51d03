#include "compiler/plan/columns_first.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "compiler/plan/nested_sums.h"
#include "compiler/plan/rewrite.h"
#include "dsl/factors.h"

namespace rowjit {
namespace {

// A sum over columns, and the factors of its terms: one that is a sum over rows, and the others.
struct Swapped {
    NodeId of_rows = -1;
    std::vector<NodeId> others = {};
};

class ColumnsFirst {
  public:
    explicit ColumnsFirst(const GraphData& from) : from_(from), uses_(uses_of(from)) {
        for (const NodeId id : from_.live_nodes()) {
            if (!is_sum_of_columns(from_, from_.node(id))) continue;
            Swapped swapped;
            find_factors(from_.node(id).args[0], from_.node(id).reduced, &swapped);
            if (can_swap(swapped)) swapped_.emplace(id, std::move(swapped));
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
    bool is_used_once(NodeId id) const { return uses_[static_cast<std::size_t>(id)] == 1; }

    // A sum over rows, in f32 or wider and for nobody else, that varies along all of those columns.
    bool is_own_sum_of_rows(NodeId id, const std::vector<AxisId>& columns) {
        return is_sum_of_rows(from_, from_.node(id)) && is_used_once(id) &&
               std::all_of(columns.begin(), columns.end(), [&](AxisId column) { return varies(from_, id, {column}); });
    }

    void find_factors(NodeId id, const std::vector<AxisId>& columns, Swapped* swapped) {
        const Node& node = from_.node(id);
        if (swapped->of_rows < 0 && is_own_sum_of_rows(id, columns)) {
            swapped->of_rows = id;
        } else if (node.kind == NodeKind::kMap && node.op == Op::kMul && is_used_once(id) && !is_narrow(node.dtype)) {
            for (const NodeId arg : node.args) find_factors(arg, columns, swapped);
        } else {
            swapped->others.push_back(id);
        }
    }

    bool can_swap(const Swapped& swapped) const {
        if (swapped.of_rows < 0) return false;
        const std::vector<AxisId>& rows = from_.node(swapped.of_rows).reduced;
        return std::none_of(swapped.others.begin(), swapped.others.end(),
                            [&](NodeId factor) { return varies(from_, factor, rows); });
    }

    NodeId swap(GraphData& to, const Node& sum, const Swapped& swapped, const ToHere& to_here) const {
        const Node& of_rows = from_.node(swapped.of_rows);
        NodeId result = to_here(of_rows.args[0]);
        for (const NodeId factor : swapped.others) {
            if (varies(from_, factor, sum.reduced)) result = to.add_map(Op::kMul, {result, to_here(factor)});
        }
        result = to.add_reduce(Monoid::kSum, result, sum.reduced);
        result = to.add_reduce(Monoid::kSum, result, of_rows.reduced);
        for (const NodeId factor : swapped.others) {
            if (!varies(from_, factor, sum.reduced)) result = to.add_map(Op::kMul, {result, to_here(factor)});
        }
        to.set_label(result, sum.label);
        return result;
    }

    const GraphData& from_;
    const std::vector<int> uses_;
    std::map<NodeId, Swapped> swapped_;
};

}  // namespace

std::shared_ptr<const GraphData> sum_columns_first(const std::shared_ptr<const GraphData>& graph) {
    const ColumnsFirst sums(*graph);
    return sums.applies() ? sums.run() : graph;
}

}  // namespace rowjit
