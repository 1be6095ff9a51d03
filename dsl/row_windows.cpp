#include "dsl/row_windows.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/floor_div.h"
#include "dsl/coordinate_value.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

// A whole number as places along axes, so many times each, and a constant.
struct Places {
    std::vector<std::pair<AxisId, std::int64_t>> times;
    std::int64_t constant = 0;
};

std::optional<std::int64_t> constant_of(const Node& node) {
    if (node.kind != NodeKind::kConst) return std::nullopt;
    return static_cast<std::int64_t>(node.value);
}

// False where it is made of anything else.
bool add_places(const GraphData& graph, NodeId id, std::int64_t times, Places* places) {
    const Node& node = graph.node(id);
    if (node.dtype != Dtype::kI32 && node.dtype != Dtype::kI64) return false;
    if (const auto constant = constant_of(node)) {
        places->constant += times * *constant;
        return true;
    }
    if (node.kind == NodeKind::kIota) {
        places->times.emplace_back(node.axis, times);
        return true;
    }
    if (node.kind == NodeKind::kCast) return add_places(graph, node.args[0], times, places);
    if (node.kind != NodeKind::kMap) return false;
    switch (node.op) {
        case Op::kNeg: return add_places(graph, node.args[0], -times, places);
        case Op::kAdd:
        case Op::kSub:
            return add_places(graph, node.args[0], times, places) &&
                   add_places(graph, node.args[1], node.op == Op::kSub ? -times : times, places);
        case Op::kMul:
            for (const auto& [factor, other] : {std::pair(0, 1), std::pair(1, 0)}) {
                if (const auto constant = constant_of(graph.node(node.args[static_cast<std::size_t>(factor)])))
                    return add_places(graph, node.args[static_cast<std::size_t>(other)], times * *constant, places);
            }
            return false;
        default: return false;
    }
}

// The rows' coordinate, where all others are as they are.
std::optional<std::size_t> place_of_rows(const GraphData& graph, const Node& index) {
    const std::vector<AxisId>& source = graph.node(index.args[0]).axes;
    std::optional<std::size_t> found;
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (index.coords[i].is_axis(Axis{source[i]})) continue;
        if (found || !graph.axis(source[i]).is_row || index.coords[i].data_nodes().empty()) return std::nullopt;
        found = i;
    }
    return found;
}

}  // namespace

std::optional<RowWindows> row_windows(const std::shared_ptr<GraphData>& graph, const Node& index) {
    const std::optional<std::size_t> at = place_of_rows(*graph, index);
    if (!at) return std::nullopt;
    Places places;
    if (!add_places(*graph, add_coordinate_value(*graph, index.coords[*at], Dtype::kI64), 1, &places))
        return std::nullopt;
    RowWindows found{.rows = {graph->node(index.args[0]).axes[*at]}, .positions = {}, .first = places.constant};
    int positions = 0;
    for (const auto& [axis, times] : places.times) {
        if (graph->axis(axis).is_row) {
            found.positions = {axis};
            found.step = times;
            ++positions;
        } else {
            if (found.columns || times != 1) return std::nullopt;
            found.columns = Axis{axis};
        }
    }
    if (positions != 1 || found.step < 1 || (found.step == 1 && !found.columns)) return std::nullopt;
    return found;
}

Value row_windows_gradient(const std::shared_ptr<GraphData>& graph, const RowWindows& windows, const Value& cotangent) {
    constexpr std::int64_t kMostWritten = 8;  // runs that have a row; more are summed over
    Graph g(graph);
    const std::int64_t length = windows.columns ? graph->axis(windows.columns->id).extent : 1;
    const std::int64_t runs = ceil_div(length, windows.step);
    const Value row = g.iota(windows.rows, i64) - static_cast<double>(windows.first);
    const bool apart = windows.step > 1;  // so that a row's place in its runs is known by its number alone
    const Value last = apart ? floor_div(row, windows.step) : row;
    // Of the runs that have the row, so many before the last.
    const auto read_by = [&](const Coord& before) {
        const Value runs_before = cast(Value(graph, add_coordinate_value(*graph, before, Dtype::kI32)), i64);
        const Value place = row - (last - runs_before) * static_cast<double>(windows.step);
        const Value column = cast(place, i32);
        std::vector<Coord> coords;
        bool has_column = false;
        for (const Axis axis : cotangent.axes()) {
            const bool is_column = windows.columns && axis.id == windows.columns->id;
            has_column = has_column || is_column;
            const bool is_position = axis.id == windows.positions.id;
            const Coord in_run = apart ? Coord(column) : before;
            coords.push_back(is_position ? Coord(last - runs_before) : is_column ? in_run : Coord(axis));
        }
        const Value there = index(cotangent, std::move(coords));
        const bool all_have_it = has_column || length % windows.step == 0;
        return all_have_it ? there
                           : select(column < static_cast<double>(length), there, g.constant(there.dtype(), 0.0));
    };
    if (runs > kMostWritten) {
        const Axis before = g.columns(graph->unused_axis_name("before"), runs);
        return sum(read_by(Coord(before)), before);
    }
    Value total = read_by(Coord(0));
    if (runs == 1) return total;
    total = widen(total);
    for (std::int64_t before = 1; before < runs; ++before) total = total + widen(read_by(Coord(before)));
    return cast(total, cotangent.dtype());
}

}  // namespace rowjit
