#include "dsl/with_axes.h"

#include <algorithm>
#include <optional>

namespace rowjit {

Value with_axes(const Value& v, const std::vector<AxisId>& axes) {
    if (v.graph()->node(v.id()).axes == axes) return v;
    Graph graph(v.graph());
    std::optional<Value> everywhere;
    for (const AxisId axis : axes) {
        const Dtype dtype = v.graph()->axis(axis).is_row ? i64 : i32;
        const Value here = graph.iota({axis}, dtype) >= 0.0;
        everywhere = everywhere ? *everywhere && here : here;
    }
    return select(*everywhere, v, graph.constant(v.dtype(), 0.0));
}

bool is_true_everywhere(const GraphData& graph, NodeId condition) {
    const Node& n = graph.node(condition);
    if (n.kind != NodeKind::kMap) return false;
    if (n.op == Op::kAnd)
        return std::ranges::all_of(n.args, [&](NodeId arg) { return is_true_everywhere(graph, arg); });
    const bool is_comparison = n.op == Op::kGe && graph.node(n.args[0]).kind == NodeKind::kIota;
    return is_comparison && graph.node(n.args[1]).kind == NodeKind::kConst && graph.node(n.args[1]).value == 0;
}

}  // namespace rowjit
