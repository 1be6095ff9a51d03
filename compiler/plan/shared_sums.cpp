#include "compiler/plan/shared_sums.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "compiler/plan/nested_sums.h"
#include "compiler/plan/rewrite.h"
#include "dsl/factors.h"

namespace rowjit {
namespace {

class SharedSums {
  public:
    explicit SharedSums(const GraphData& from) : from_(from) {
        for (const NodeId id : from_.live_nodes()) {
            const Node& node = from_.node(id);
            if (!is_sum_of_columns(from_, node)) continue;
            Factors factors = factors_of(node);
            if (!covers(factors.varying, from_.node(node.args[0]).axes)) continue;
            ++sharing_.try_emplace(key(node, factors), Sharing{factors.varying}).first->second.sums;
            factors_.emplace(id, std::move(factors));
        }
        std::erase_if(factors_, [&](const auto& sum) { return sharing(sum.first, sum.second).sums < 2; });
    }

    bool applies() const { return !factors_.empty(); }

    std::shared_ptr<const GraphData> run() const {
        return rewritten(from_, [&](GraphData& to, NodeId id, const ToHere& to_here) {
            const auto sum = factors_.find(id);
            return sum == factors_.end() ? to.add_copy(from_.node(id), to_here) : shared(to, id, sum->second, to_here);
        });
    }

  private:
    struct Factors {
        std::vector<NodeId> varying = {};
        std::vector<NodeId> numbers = {};  // the same for all that is summed
    };
    // Sums of the same factors that vary. Their product is made in the order of the first: the ids of inputs are an
    // accident of how the graph was built, and equal graphs are to have equal kernels.
    struct Sharing {
        std::vector<NodeId> varying;
        int sums = 0;
    };
    using Key = std::pair<std::vector<AxisId>, std::vector<NodeId>>;

    static Key key(const Node& sum, Factors factors) {
        std::sort(factors.varying.begin(), factors.varying.end());
        return {sum.reduced, std::move(factors.varying)};
    }

    const Sharing& sharing(NodeId sum, const Factors& factors) const {
        return sharing_.at(key(from_.node(sum), factors));
    }

    bool is_product(NodeId id) const {
        const Node& node = from_.node(id);
        return node.kind == NodeKind::kMap && node.op == Op::kMul && !is_narrow(node.dtype);
    }

    // Products that have a factor that is the same for all that is summed. Found once for all sums along those axes:
    // terms are deep.
    const std::set<NodeId>& with_numbers(const std::vector<AxisId>& along) {
        const auto [known, is_new] = with_numbers_.try_emplace(along);
        if (!is_new) return known->second;
        for (const NodeId id : from_.live_nodes()) {  // operands before users
            const std::vector<NodeId>& args = from_.node(id).args;
            const auto has_number = [&](NodeId arg) {
                return !varies(from_, arg, along) || known->second.contains(arg);
            };
            if (is_product(id) && std::any_of(args.begin(), args.end(), has_number)) known->second.insert(id);
        }
        return known->second;
    }

    // None where there are many, as of a power that was made by squaring.
    Factors factors_of(const Node& sum) {
        constexpr std::size_t kMostFactors = 16;
        const std::set<NodeId>& numbered = with_numbers(sum.reduced);
        Factors factors;
        std::vector<NodeId> work = {sum.args[0]};
        while (!work.empty()) {
            const NodeId id = work.back();
            work.pop_back();
            const std::vector<NodeId>& args = from_.node(id).args;
            if (!varies(from_, id, sum.reduced)) {
                factors.numbers.push_back(id);
            } else if (id == sum.args[0] ? is_product(id) : numbered.contains(id)) {
                work.insert(work.end(), args.rbegin(), args.rend());
            } else {
                factors.varying.push_back(id);
            }
            if (factors.varying.size() + factors.numbers.size() + work.size() > kMostFactors) return {};
        }
        return factors;
    }

    // Whether what varies has all axes of the sum's terms, so that it is a sum of as many, for the same rows.
    bool covers(const std::vector<NodeId>& varying, const std::vector<AxisId>& axes) const {
        return std::all_of(axes.begin(), axes.end(), [&](AxisId axis) {
            return std::any_of(varying.begin(), varying.end(), [&](NodeId id) { return varies(from_, id, {axis}); });
        });
    }

    NodeId shared(GraphData& to, NodeId id, const Factors& factors, const ToHere& to_here) const {
        const Node& sum = from_.node(id);
        const std::vector<NodeId>& varying = sharing(id, factors).varying;
        NodeId terms = to_here(varying[0]);
        for (std::size_t i = 1; i < varying.size(); ++i) terms = to.add_map(Op::kMul, {terms, to_here(varying[i])});
        NodeId result = to.add_reduce(Monoid::kSum, terms, sum.reduced);
        for (const NodeId number : factors.numbers) result = to.add_map(Op::kMul, {result, to_here(number)});
        to.set_label(result, sum.label);
        return result;
    }

    const GraphData& from_;
    std::map<std::vector<AxisId>, std::set<NodeId>> with_numbers_;  // by what is summed along
    std::map<Key, Sharing> sharing_;
    std::map<NodeId, Factors> factors_;
};

}  // namespace

std::shared_ptr<const GraphData> share_sums(const std::shared_ptr<const GraphData>& graph) {
    const SharedSums sums(*graph);
    return sums.applies() ? sums.run() : graph;
}

}  // namespace rowjit
