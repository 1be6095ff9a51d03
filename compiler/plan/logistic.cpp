#include "compiler/plan/logistic.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

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

    std::shared_ptr<const GraphData> run() {
        to_ = std::make_shared<GraphData>(from_.axes());
        for (const NodeId id : live_) mapped_[id] = convert(id);
        for (OutputInfo output : from_.outputs()) {
            output.node = mapped_.at(output.node);
            to_->add_output(std::move(output));
        }
        return to_;
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

    NodeId convert(NodeId id) {
        const Node& node = from_.node(id);
        if (goes(id)) return quotient(mapped_.at(node.args[0]), node.dtype);
        for (const NodeId arg : node.args) {
            if (goes(arg)) return mapped_.at(arg);  // this is 1 + it
        }
        return to_->add_copy(node, [&](NodeId arg) { return mapped_.at(arg); });
    }

    NodeId quotient(NodeId u, Dtype dtype) {
        const NodeId power = to_->add_map(Op::kExp, {to_->add_map(Op::kMul, {to_->add_const(dtype, -2), u})});
        const NodeId divisor = to_->add_map(Op::kAdd, {power, to_->add_const(dtype, 1)});
        return to_->add_map(Op::kDiv, {to_->add_const(dtype, 2), divisor});
    }

    const GraphData& from_;
    const std::vector<NodeId> live_;
    std::set<NodeId> kept_;  // tangents that something else needs
    std::shared_ptr<GraphData> to_;
    std::map<NodeId, NodeId> mapped_;
};

}  // namespace

std::shared_ptr<const GraphData> write_logistic(const std::shared_ptr<const GraphData>& graph) {
    Logistic logistic(*graph);
    return logistic.applies() ? logistic.run() : graph;
}

}  // namespace rowjit
