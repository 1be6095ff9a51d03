#include "compiler/plan/logistic.h"

#include <algorithm>
#include <set>
#include <vector>

#include "compiler/plan/rewrite.h"

namespace rowjit {
namespace {

class Logistic {
  public:
    explicit Logistic(const GraphData& from) : from_(from), live_(from.live_nodes()) {
        for (const NodeId id : live_) {
            for (const NodeId arg : from_.node(id).args) {
                if (is_tanh(arg) && !is_one_plus(id, arg)) kept_.insert(arg);
            }
        }
        for (const OutputInfo& output : from_.outputs()) kept_.insert(output.node);
    }

    bool applies() const {
        return std::any_of(live_.begin(), live_.end(), [&](NodeId id) { return goes(id); });
    }

    std::shared_ptr<const GraphData> run() const {
        return rewritten(from_, [&](GraphData& to, NodeId id, const ToHere& to_here) {
            const Node& node = from_.node(id);
            if (goes(id)) return quotient(to, to_here(node.args[0]), node.dtype);
            const auto tangent =
                std::find_if(node.args.begin(), node.args.end(), [&](NodeId arg) { return goes(arg); });
            return tangent != node.args.end() ? to_here(*tangent) : to.add_copy(node, to_here);  // the first is 1 + it
        });
    }

  private:
    bool is_map(NodeId id, Op op) const { return from_.node(id).kind == NodeKind::kMap && from_.node(id).op == op; }

    bool is_one(NodeId id) const { return from_.node(id).kind == NodeKind::kConst && from_.node(id).value == 1; }

    // Narrow floats round the tangent.
    bool is_tanh(NodeId id) const {
        return is_map(id, Op::kTanh) && (from_.node(id).dtype == Dtype::kF32 || from_.node(id).dtype == Dtype::kF64);
    }

    bool is_one_plus(NodeId id, NodeId tangent) const {
        const std::vector<NodeId>& args = from_.node(id).args;
        return is_map(id, Op::kAdd) && is_one(args[args[0] == tangent ? 1 : 0]);
    }

    bool goes(NodeId tangent) const { return is_tanh(tangent) && !kept_.contains(tangent); }

    static NodeId quotient(GraphData& to, NodeId u, Dtype dtype) {
        const NodeId power = to.add_map(Op::kExp, {to.add_map(Op::kMul, {to.add_const(dtype, -2), u})});
        const NodeId divisor = to.add_map(Op::kAdd, {power, to.add_const(dtype, 1)});
        return to.add_map(Op::kDiv, {to.add_const(dtype, 2), divisor});
    }

    const GraphData& from_;
    const std::vector<NodeId> live_;
    std::set<NodeId> kept_;  // tangents that something else needs
};

}  // namespace

std::shared_ptr<const GraphData> write_logistic(const std::shared_ptr<const GraphData>& graph) {
    const Logistic logistic(*graph);
    return logistic.applies() ? logistic.run() : graph;
}

}  // namespace rowjit
