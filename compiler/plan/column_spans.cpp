#include "compiler/plan/column_spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/dtype.h"

namespace rowjit {
namespace {

// Each is stored from a value of its own, which a thread holds.
constexpr std::int64_t kMostSpans = 4;
constexpr std::int64_t kLineBytes = 64;

// What the value is beyond the place along the axis; nothing where it is no such sum.
std::optional<std::int64_t> beyond_place(const GraphData& graph, NodeId value, AxisId axis) {
    const Node& node = graph.node(value);
    if (node.kind == NodeKind::kIota && node.axes[0] == axis) return 0;
    if (node.kind == NodeKind::kCast && is_integer(node.dtype)) return beyond_place(graph, node.args[0], axis);
    if (node.kind != NodeKind::kMap || node.op != Op::kAdd) return std::nullopt;
    const auto place = beyond_place(graph, node.args[0], axis);
    const Node& more = graph.node(node.args[1]);
    if (!place || more.kind != NodeKind::kConst) return std::nullopt;
    return *place + static_cast<std::int64_t>(more.value);
}

// Calls visit(node) for the value and all that it is computed from, once each.
template <class Visit>
void each_below(const GraphData& graph, NodeId value, const Visit& visit) {
    std::set<NodeId> seen;
    std::vector<NodeId> work = {value};
    while (!work.empty()) {
        const NodeId id = work.back();
        work.pop_back();
        if (!seen.insert(id).second) continue;
        const Node& node = graph.node(id);
        work.insert(work.end(), node.args.begin(), node.args.end());
        visit(node);
    }
}

// What divides all columns at which conditions on the place along the axis, which the value is computed from, change; 0
// where there are none.
std::int64_t common_divisor_of_ends(const GraphData& graph, NodeId value, AxisId axis) {
    std::int64_t divisor = 0;
    each_below(graph, value, [&](const Node& node) {
        const bool before = node.kind == NodeKind::kMap && (node.op == Op::kLt || node.op == Op::kGe);
        const bool behind = node.kind == NodeKind::kMap && (node.op == Op::kLe || node.op == Op::kGt);
        if (!before && !behind) return;
        const auto beyond = beyond_place(graph, node.args[0], axis);
        const Node& limit = graph.node(node.args[1]);
        if (!beyond || limit.kind != NodeKind::kConst) return;
        divisor = std::gcd(divisor, static_cast<std::int64_t>(limit.value) - *beyond + (behind ? 1 : 0));
    });
    return divisor;
}

// An axis of so many columns that the graph has columns along; -1 for none.
AxisId axis_of(const GraphData& graph, std::int64_t columns) {
    for (const NodeId id : graph.live_nodes()) {
        for (const AxisId axis : graph.column_axes(graph.node(id))) {
            if (graph.axis(axis).extent == columns) return axis;
        }
    }
    return -1;
}

// Whether the value waits for a reduction over the axis: a GPU's threads hold the row along it, and would read it again
// along its spans (H100, an RMS norm of two rows put together, of 1024 bf16 columns each: 72 % of copy so).
bool reduces(const GraphData& graph, NodeId value, AxisId axis) {
    bool found = false;
    each_below(graph, value, [&](const Node& node) {
        found = found || (node.kind == NodeKind::kReduce && contains(node.reduced, axis));
    });
    return found;
}

// How an output's last axis is divided: so many columns a span, 0 where it is not; along this axis, -1 for a new one.
struct Division {
    std::int64_t columns = 0;
    AxisId within = -1;
};

Division division_of(const GraphData& graph, const OutputInfo& output, const Target& target) {
    const Node& node = graph.node(output.node);
    if (!output.alias.empty() || graph.column_axes(node).empty()) return {};
    const AxisId whole = node.axes.back();
    const std::int64_t columns = graph.axis(whole).extent;
    const std::int64_t span = std::gcd(columns, common_divisor_of_ends(graph, output.node, whole));
    if (span == columns || columns / span > kMostSpans) return {};
    // A CPU stores whole lines past its caches; of others it takes a few groups at once (Access::in_periods).
    if (!target.is_gpu() && span * static_cast<std::int64_t>(size_bytes(node.dtype)) % kLineBytes != 0) return {};
    const AxisId within = axis_of(graph, span);
    const bool makes_axis = !target.is_gpu() && size_bytes(node.dtype) < 4;
    if (contains(node.axes, within) || (within < 0 && !makes_axis)) return {};
    if (target.is_gpu() && reduces(graph, output.node, whole)) return {};
    return {span, within};
}

}  // namespace

std::optional<DividedOutputs> divide_outputs(const GraphData& graph, const Target& target) {
    std::vector<Division> divisions;
    for (const OutputInfo& output : graph.outputs()) divisions.push_back(division_of(graph, output, target));
    if (std::ranges::all_of(divisions, [](const Division& division) { return division.columns == 0; }))
        return std::nullopt;
    DividedOutputs divided{GraphData(graph.axes()), {}};
    GraphData& to = divided.graph;
    std::unordered_map<NodeId, NodeId> copies;
    for (const NodeId id : graph.live_nodes())
        copies[id] = to.add_copy(graph.node(id), [&](NodeId arg) { return copies.at(arg); });
    for (std::size_t i = 0; i < divisions.size(); ++i) {
        OutputInfo output = graph.outputs()[i];
        const std::vector<AxisId>& axes = graph.node(output.node).axes;
        output.node = copies.at(output.node);
        if (const auto [columns, known] = divisions[i]; columns > 0) {
            const AxisId within = known < 0 ? to.add_column_axis("", columns) : known;
            const std::int64_t count = graph.axis(axes.back()).extent / columns;
            const AxisId spans = to.add_column_axis(fmt::format("rj_spans_{}", count), count);
            divided.spans.insert(spans);
            std::vector<Coord> coords;
            for (const AxisId axis : axes) coords.emplace_back(Axis{axis});
            coords.back() = Coord(Axis{spans}) * columns + Coord(Axis{within});
            output.node = to.add_index(output.node, std::move(coords));
            std::vector<std::int64_t>& strides = output.column_strides;
            if (!strides.empty()) strides.insert(strides.end() - 1, strides.back() * columns);
        }
        to.add_output(std::move(output));
    }
    return divided;
}

}  // namespace rowjit
