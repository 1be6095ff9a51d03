#include "dsl/row_windows.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/floor_div.h"
#include "dsl/coordinate_value.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

// A whole number as places along axes, so many times each, a constant, and numbers that a launch gives.
struct Places {
    std::vector<std::pair<AxisId, std::int64_t>> times = {};
    std::int64_t constant = 0;
    std::vector<std::pair<NodeId, std::int64_t>> given = {};
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
    switch (node.kind) {
        case NodeKind::kIota: places->times.emplace_back(node.axis, times); return true;
        case NodeKind::kExtent: places->given.emplace_back(id, times); return true;
        case NodeKind::kCast: return add_places(graph, node.args[0], times, places);
        case NodeKind::kMap: break;
        default: return false;
    }
    switch (node.op) {
        case Op::kNeg: return add_places(graph, node.args[0], -times, places);
        case Op::kAdd:
        case Op::kSub:
            return add_places(graph, node.args[0], times, places) &&
                   add_places(graph, node.args[1], node.op == Op::kSub ? -times : times, places);
        case Op::kMul:
            for (const auto& [factor, other] :
                 {std::pair(node.args[0], node.args[1]), std::pair(node.args[1], node.args[0])}) {
                if (const auto constant = constant_of(graph.node(factor)))
                    return add_places(graph, other, times * *constant, places);
            }
            return false;
        default: return false;
    }
}

std::optional<RowWindows> windows_along(const std::shared_ptr<GraphData>& graph, AxisId rows, const Coord& coord) {
    Places places;
    if (!add_places(*graph, add_coordinate_value(*graph, coord, Dtype::kI64), 1, &places)) return std::nullopt;
    RowWindows found{.rows = {rows}, .positions = {}, .first = places.constant};
    int positions = 0;
    for (const auto& [axis, times] : places.times) {
        if (graph->axis(axis).is_row) {
            found.positions = {axis};
            found.step = times;
            ++positions;
        } else {
            if (found.columns || times == 0) return std::nullopt;
            found.columns = Axis{axis};
            found.stride = times;
        }
    }
    for (const auto& [number, times] : places.given) {
        const Value term = cast(Value(graph, number), i64) * static_cast<double>(times);
        found.given = found.given ? *found.given + term : term;
    }
    const bool is_reversed = found.step == -1 && !found.columns;
    const bool is_known = found.step == 1 || is_reversed || (found.step > 1 && std::abs(found.stride) == 1);
    return positions == 1 && is_known ? std::optional(found) : std::nullopt;
}

// Of the runs that have a row of one such axis, so many before the last, or so many columns further on.
class Runs {
  public:
    Runs(const std::shared_ptr<GraphData>& graph, const RowWindows& windows)
        : graph_(graph),
          windows_(windows),
          length_(windows.columns ? graph->axis(windows.columns->id).extent : 1),
          row_(Graph(graph).iota(windows.rows, i64) - static_cast<double>(first())) {
        if (windows.given) row_ = row_ - *windows.given;
        if (windows.step > 1) last_ = floor_div(row_, windows.step);
    }

    std::int64_t count() const { return windows_.step > 1 ? ceil_div(length_, windows_.step) : length_; }

    struct Read {
        Value position;
        Coord column;
        std::optional<Value> holds;  // where not all runs have it
    };

    Read read_by(const Coord& run) const {
        const Value number = cast(Value(graph_, add_coordinate_value(*graph_, run, Dtype::kI32)), i64);
        if (!last_) {
            const Value there = windows_.step < 0 ? -row_ : row_;
            return {there - number * static_cast<double>(windows_.stride), run, std::nullopt};
        }
        const Value position = *last_ - number;
        const Value place = cast(row_ - position * static_cast<double>(windows_.step), i32);
        const Value column = windows_.stride > 0 ? place : static_cast<double>(length_ - 1) - place;
        Read read{position, Coord(column), std::nullopt};
        if (length_ % windows_.step != 0) read.holds = place < static_cast<double>(length_);
        return read;
    }

  private:
    // Of columns that count down the last one has the first row.
    std::int64_t first() const {
        return windows_.step > 1 && windows_.stride < 0 ? windows_.first - (length_ - 1) : windows_.first;
    }

    std::shared_ptr<GraphData> graph_;
    RowWindows windows_;
    std::int64_t length_;  // rows of a run
    Value row_;
    std::optional<Value> last_;  // the last run that has the row, where the step is above 1
};

class WindowsGradient {
  public:
    WindowsGradient(const std::shared_ptr<GraphData>& graph, const std::vector<RowWindows>& windows,
                    const Value& cotangent)
        : graph_(graph), windows_(windows), cotangent_(cotangent) {
        for (const RowWindows& along : windows) runs_.emplace_back(graph, along);
    }

    Value run() {
        constexpr std::int64_t kMostWritten = 16;  // runs that have a row; more are summed over
        std::int64_t count = 1;
        for (const Runs& runs : runs_) count *= runs.count();
        if (count > kMostWritten) return summed();
        std::optional<Value> total;
        for (std::int64_t i = 0; i < count; ++i) {
            std::vector<Coord> of_each;
            std::int64_t rest = i;
            for (const Runs& runs : runs_) {
                of_each.emplace_back(rest % runs.count());
                rest /= runs.count();
            }
            const Value one = read_by(of_each);
            const Value term = count == 1 ? one : widen(one);
            total = total ? *total + term : term;
        }
        return cast(*total, cotangent_.dtype());
    }

  private:
    Value summed() {
        std::vector<Coord> of_each;
        std::vector<AxisId> over;
        for (const Runs& runs : runs_) {
            if (runs.count() == 1) {
                of_each.emplace_back(0);
                continue;
            }
            const Axis axis = Graph(graph_).columns(graph_->unused_axis_name("before"), runs.count());
            of_each.emplace_back(axis);
            over.push_back(axis.id);
        }
        const Value each = widen(read_by(of_each));
        return cast(Value(graph_, graph_->add_reduce(Monoid::kSum, each.id(), over)), cotangent_.dtype());
    }

    Value read_by(const std::vector<Coord>& of_each) const {
        std::vector<Runs::Read> reads;
        for (std::size_t i = 0; i < runs_.size(); ++i) reads.push_back(runs_[i].read_by(of_each[i]));
        std::vector<Coord> coords;
        std::set<AxisId> columns;
        for (const Axis axis : cotangent_.axes()) {
            coords.emplace_back(axis);
            for (std::size_t i = 0; i < reads.size(); ++i) {
                if (axis.id == windows_[i].positions.id) coords.back() = Coord(reads[i].position);
                if (!windows_[i].columns || axis.id != windows_[i].columns->id) continue;
                coords.back() = reads[i].column;
                columns.insert(axis.id);
            }
        }
        Value there = index(cotangent_, std::move(coords));
        for (std::size_t i = 0; i < reads.size(); ++i) {
            const bool asks = !windows_[i].columns || !columns.contains(windows_[i].columns->id);
            if (asks && reads[i].holds)
                there = select(*reads[i].holds, there, Graph(graph_).constant(there.dtype(), 0.0));
        }
        return there;
    }

    std::shared_ptr<GraphData> graph_;
    const std::vector<RowWindows>& windows_;
    Value cotangent_;
    std::vector<Runs> runs_;
};

}  // namespace

std::vector<RowWindows> row_windows(const std::shared_ptr<GraphData>& graph, const Node& index) {
    const std::vector<AxisId> source = graph->node(index.args[0]).axes;
    std::vector<RowWindows> found;
    std::set<AxisId> used;
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (index.coords[i].is_axis(Axis{source[i]})) continue;
        if (!graph->axis(source[i]).is_row || index.coords[i].data_nodes().empty()) return {};
        const auto along = windows_along(graph, source[i], index.coords[i]);
        if (!along) return {};
        const AxisId positions = along->positions.id;
        const bool is_other = positions != source[i] && contains(source, positions);
        if (is_other || !used.insert(positions).second) return {};
        // Columns that the source has too are read each at a row of its own.
        const bool is_of_source = along->columns && contains(source, along->columns->id);
        if (is_of_source || (along->columns && !used.insert(along->columns->id).second)) return {};
        found.push_back(*along);
    }
    const bool is_shift = found.size() == 1 && found[0].step == 1 && !found[0].columns && !found[0].given.has_value();
    return is_shift ? std::vector<RowWindows>() : found;
}

Value row_windows_gradient(const std::shared_ptr<GraphData>& graph, const std::vector<RowWindows>& windows,
                           const Value& cotangent) {
    return WindowsGradient(graph, windows, cotangent).run();
}

}  // namespace rowjit
