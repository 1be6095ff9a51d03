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

// The group of so many columns that the place along an axis, or one so far beyond it, is in.
struct PlaceOfGroup {
    std::int64_t columns = 1;
    std::int64_t beyond = 0;
};

// The value as such a place; nothing where it is none.
std::optional<PlaceOfGroup> place_of_group(const GraphData& graph, NodeId value, AxisId axis) {
    const Node& node = graph.node(value);
    if (node.kind == NodeKind::kIota && node.axes[0] == axis) return PlaceOfGroup{};
    if (node.kind == NodeKind::kCast && is_integer(node.dtype)) return place_of_group(graph, node.args[0], axis);
    if (node.kind != NodeKind::kMap || (node.op != Op::kAdd && node.op != Op::kFloorDiv)) return std::nullopt;
    auto place = place_of_group(graph, node.args[0], axis);
    const Node& number = graph.node(node.args[1]);
    if (!place || number.kind != NodeKind::kConst) return std::nullopt;
    const auto value_of_number = static_cast<std::int64_t>(number.value);
    if (node.op == Op::kAdd) {
        place->beyond += value_of_number * place->columns;
    } else if (value_of_number > 0) {
        place->columns *= value_of_number;
    } else {
        return std::nullopt;
    }
    return place;
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
        const auto place = place_of_group(graph, node.args[0], axis);
        const Node& limit = graph.node(node.args[1]);
        if (!place || limit.kind != NodeKind::kConst) return;
        const std::int64_t end = static_cast<std::int64_t>(limit.value) + (behind ? 1 : 0);
        divisor = std::gcd(divisor, end * place->columns - place->beyond);
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

// Adds what the place along the axis, or one beyond it, is divided by where the coordinate is made of it: the columns
// of a group, of which the quotient is the group's place and the remainder the column's.
void add_divisors(const Coord& coord, AxisId axis, std::set<std::int64_t>* divisors) {
    switch (coord.kind()) {
        case Coord::Kind::kConst:
        case Coord::Kind::kAxis:
        case Coord::Kind::kData: return;
        case Coord::Kind::kAdd: add_divisors(coord.right(), axis, divisors); break;
        case Coord::Kind::kMul: break;
        case Coord::Kind::kDiv:
        case Coord::Kind::kMod: {
            const Coord& of = coord.left();
            const bool is_beyond = of.kind() == Coord::Kind::kAdd && of.right().kind() == Coord::Kind::kConst;
            if ((is_beyond ? of.left() : of).is_axis(Axis{axis})) divisors->insert(coord.constant());
        }
    }
    add_divisors(coord.left(), axis, divisors);
}

// Groups of columns that lie one after the other, and the columns of one.
struct Groups {
    AxisId groups = -1;
    AxisId within = -1;
};

// What a value at a place along the axis, of which a span has so many columns, is made of along two axes that divide
// the span, where something is reduced that the value reads by groups.
std::optional<Groups> groups_read(const GraphData& graph, NodeId value, AxisId axis, std::int64_t span) {
    std::set<std::int64_t> divisors;
    each_below(graph, value, [&](const Node& node) {
        if (node.kind != NodeKind::kIndex) return;
        for (const Coord& coord : node.coords) add_divisors(coord, axis, &divisors);
    });
    std::optional<Groups> found;
    each_below(graph, value, [&](const Node& node) {
        if (node.kind != NodeKind::kReduce || graph.axis(node.reduced[0]).is_row) return;
        const std::vector<AxisId> columns = graph.column_axes(graph.node(node.args[0]));
        for (std::size_t i = 1; i < columns.size(); ++i) {
            const std::int64_t width = graph.axis(columns[i]).extent;
            const bool divides = graph.axis(columns[i - 1]).extent * width == span && divisors.contains(width);
            const bool is_whole = contains(node.reduced, columns[i - 1]) && contains(node.reduced, columns[i]);
            if (divides && !is_whole && width > 1 && width < span) found = Groups{columns[i - 1], columns[i]};
        }
    });
    return found;
}

// How an output's last axis is divided: so many columns a span, 0 where it is not; along this axis, -1 for a new one,
// or in groups along two.
struct Division {
    std::int64_t columns = 0;
    AxisId within = -1;
    AxisId groups = -1;
};

Division division_of(const GraphData& graph, const OutputInfo& output, const Target& target) {
    const Node& node = graph.node(output.node);
    if (!output.alias.empty() || graph.column_axes(node).empty()) return {};
    const AxisId whole = node.axes.back();
    const std::int64_t columns = graph.axis(whole).extent;
    const std::int64_t span = std::gcd(columns, common_divisor_of_ends(graph, output.node, whole));
    if (columns / span > kMostSpans) return {};
    if (const auto groups = groups_read(graph, output.node, whole, span)) {
        if (contains(node.axes, groups->groups) || contains(node.axes, groups->within)) return {};
        return {span, groups->within, groups->groups};
    }
    if (span == columns) return {};
    // A CPU stores whole lines past its caches; of others it takes a few groups at once (Access::in_periods).
    if (!target.is_gpu() && span * static_cast<std::int64_t>(size_bytes(node.dtype)) % kLineBytes != 0) return {};
    const AxisId within = axis_of(graph, span);
    const bool makes_axis = !target.is_gpu() && size_bytes(node.dtype) < 4;
    if (contains(node.axes, within) || (within < 0 && !makes_axis)) return {};
    if (target.is_gpu() && reduces(graph, output.node, whole)) return {};
    return {span, within};
}

// Makes the output, whose node is the divided graph's, what its last axis is divided into.
void divide(const Division& division, DividedOutputs* divided, OutputInfo* output) {
    GraphData& to = divided->graph;
    const std::vector<AxisId> axes = to.node(output->node).axes;  // a copy: adding nodes moves the originals
    const AxisId within = division.within < 0 ? to.add_column_axis("", division.columns) : division.within;
    Coord place = Axis{within};
    std::vector<std::int64_t> apart;  // places along the axis between neighbours along each new one but `within`
    if (division.groups >= 0) {
        apart.push_back(to.axis(within).extent);
        place = Coord(Axis{division.groups}) * apart.back() + place;
    }
    const std::int64_t count = to.axis(axes.back()).extent / division.columns;
    if (count > 1) {
        const AxisId spans = to.add_column_axis(fmt::format("rj_spans_{}", count), count);
        divided->spans.insert(spans);
        apart.insert(apart.begin(), division.columns);
        place = Coord(Axis{spans}) * division.columns + place;
    }
    std::vector<Coord> coords;
    for (const AxisId axis : axes) coords.emplace_back(Axis{axis});
    coords.back() = place;
    output->node = to.add_index(output->node, std::move(coords));
    std::vector<std::int64_t>& strides = output->column_strides;
    if (strides.empty()) return;
    for (std::int64_t& places : apart) places *= strides.back();
    strides.insert(strides.end() - 1, apart.begin(), apart.end());
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
        output.node = copies.at(output.node);
        if (divisions[i].columns > 0) divide(divisions[i], &divided, &output);
        to.add_output(std::move(output));
    }
    return divided;
}

}  // namespace rowjit
