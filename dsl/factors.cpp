#include "dsl/factors.h"

#include <algorithm>
#include <cstddef>

#include "base/dtype.h"

namespace rowjit {

bool varies(const GraphData& graph, NodeId id, const std::vector<AxisId>& along) {
    return std::ranges::any_of(along, [&](AxisId axis) { return contains(graph.node(id).axes, axis); });
}

Factors factors_of(const GraphData& graph, NodeId product, const std::vector<AxisId>& along) {
    constexpr std::size_t kMost = 16;
    Factors factors;
    std::vector<NodeId> work = {product};
    while (!work.empty()) {
        const NodeId next = work.back();
        work.pop_back();
        const Node& n = graph.node(next);
        const bool is_product = n.kind == NodeKind::kMap && n.op == Op::kMul && !is_narrow(n.dtype);
        if (!varies(graph, next, along)) {
            factors.numbers.push_back(next);
        } else if (is_product && work.size() + factors.varying.size() < kMost) {
            work.insert(work.end(), n.args.begin(), n.args.end());
        } else {
            factors.varying.push_back(next);
        }
    }
    std::ranges::sort(factors.varying);
    return factors;
}

}  // namespace rowjit
