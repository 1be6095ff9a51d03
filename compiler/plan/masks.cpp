#include "compiler/plan/masks.h"

#include "base/dtype.h"

namespace rowjit {

AxisId coordinate_axis(const GraphData& graph, NodeId id) {
    const Node& node = graph.node(id);
    if (node.kind == NodeKind::kIota) return node.axis;
    if (node.kind != NodeKind::kCast || (node.dtype != Dtype::kI32 && node.dtype != Dtype::kI64)) return -1;
    const Node& iota = graph.node(node.args[0]);
    const bool fits = iota.kind == NodeKind::kIota && graph.axis(iota.axis).extent != kRuntimeExtent;
    return fits ? iota.axis : -1;
}

bool holds_everywhere(const GraphData& graph, NodeId mask) {
    const Node& node = graph.node(mask);
    if (node.kind != NodeKind::kMap) return false;
    if (node.op == Op::kAnd) return holds_everywhere(graph, node.args[0]) && holds_everywhere(graph, node.args[1]);
    if (node.op != Op::kGe || coordinate_axis(graph, node.args[0]) < 0) return false;
    const Node& least = graph.node(node.args[1]);
    return least.kind == NodeKind::kConst && least.value <= 0;
}

}  // namespace rowjit
