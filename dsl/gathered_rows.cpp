#include "dsl/gathered_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "dsl/coordinate_value.h"
#include "dsl/cotangent_sum.h"
#include "dsl/stable_order.h"
#include "dsl/with_axes.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

class GatheredRows {
  public:
    GatheredRows(const std::shared_ptr<GraphData>& graph, NodeId source, const RowGather& gather,
                 const std::vector<std::string>& sorted, RowOrders* orders)
        : graph_(graph),
          data_(*graph),
          sorted_(sorted),
          orders_(orders),
          gather_(gather),
          source_(data_.node(source).axes),
          ids_(data_.node(gather.ids.id())) {
        std::copy_if(gather.positions.begin(), gather.positions.end(), std::back_inserter(shared_),
                     [&](Axis axis) { return axis.id != gather.rows.id && contains(source_, axis.id); });
    }

    bool needs_order() const {
        return !takes_one_of_each() && !first_row() && !has_few_rows() && !is_sorted() && !is_given();
    }

    Value gradient(const Value& whole) {
        if (takes_one_of_each()) return one_of_each(whole);
        if (const std::optional<double> first = first_row()) {
            const Value position = graph_.iota(gather_.rows, i64) - *first;
            return index(whole, gather_.positions[0], Coord(position));
        }
        if (has_few_rows()) return sums_of_few(whole);
        if (is_sorted()) {
            const Value offsets(graph_.data(), ids_.args[0]);
            return sum(whole, gather_.positions[0], {gather_.rows, offsets});
        }
        const OrderedIds& ids = ordered_ids();
        const Value in_order = at(whole, gather_.positions, ids.found.order);
        const Value sums = sum(in_order, ids.ordered, {ids.rows, ids.found.offsets});
        return shared_.empty() ? sums
                               : index(sums, ids.rows, Coord(along_source_rows(place_among(with_rows(shared_), {}))));
    }

  private:
    bool takes_one_of_each() const { return shared_.size() == gather_.positions.size(); }

    // Of rows that each position along the source's own axes takes one of: it is all that this one flows back from.
    Value one_of_each(const Value& whole) {
        const Value id = along_source_rows(cast(gather_.ids, i64));
        return select(id == graph_.iota(gather_.rows, i64), whole, graph_.constant(whole.dtype(), 0.0));
    }

    // Of a table of so few rows each has very many positions, and is a sum over all of them of those that took it: what
    // one thread after the other adds up of a segment, all blocks add up. Of two kinds of 250,000 tokens of 768 columns
    // the segments took an H200 28 ms.
    static constexpr std::int64_t kFewRows = 8;

    bool has_few_rows() const {
        const std::int64_t extent = data_.axis(gather_.rows.id).extent;
        return shared_.empty() && !is_given() && extent != kRuntimeExtent && extent <= kFewRows;
    }

    Value sums_of_few(const Value& whole) {
        const Value is_taken = cast(gather_.ids, i64) == graph_.iota(gather_.rows, i64);
        const Value taken = select(is_taken, whole, graph_.constant(whole.dtype(), 0.0));
        return sum_to(taken, data_.node(taken.id()).axes, source_);
    }

    // A number of some of the source's rows, of all of them in their order.
    Value along_source_rows(const Value& number) const {
        std::vector<AxisId> rows;
        std::ranges::copy_if(source_, std::back_inserter(rows), [&](AxisId axis) { return is_row(axis); });
        return with_axes(number, rows);
    }

    // The row that the first position takes, where those behind it take the rows behind that, each one of its own: as
    // places of a sequence are taken. What is read beyond the positions is 0.
    std::optional<double> first_row() const {
        const auto counts = [&](const Node& node) {
            return node.kind == NodeKind::kIota && node.axis == gather_.positions[0].id;
        };
        if (gather_.positions.size() > 1 || !shared_.empty()) return std::nullopt;
        if (counts(ids_)) return 0;
        const bool is_moved = ids_.kind == NodeKind::kMap && ids_.op == Op::kAdd && counts(data_.node(ids_.args[0])) &&
                              data_.node(ids_.args[1]).kind == NodeKind::kConst;
        return is_moved ? std::optional(data_.node(ids_.args[1]).value) : std::nullopt;
    }

    // Whether each position takes the segment that it is in: they stand in order already.
    bool is_sorted() const {
        if (!along_one_row_axis() || ids_.kind != NodeKind::kSearch) return false;
        const AxisId ends = data_.node(ids_.args[0]).axes[0];
        const Node& key = data_.node(ids_.args[1]);
        return data_.is_longer(ends, gather_.rows.id, 1) && key.kind == NodeKind::kIota &&
               key.axis == gather_.positions[0].id;
    }

    bool is_given() const { return !ids_.name.empty() && std::ranges::find(sorted_, ids_.name) != sorted_.end(); }

    Value input(std::string_view what, Axis axis) {
        const std::string name = fmt::format("{}_{}", ids_.name, what);
        const auto found = data_.find_input(name);
        return found ? Value(graph_.data(), *found) : graph_.input(name, i64, {axis});
    }

    const OrderedIds& ordered_ids() {
        std::vector<AxisId> shared;
        for (const Axis axis : shared_) shared.push_back(axis.id);
        const auto [known, is_new] =
            orders_->try_emplace({gather_.ids.id(), gather_.rows.id, std::move(shared)}, OrderedIds{});
        if (is_new) known->second = new_order();
        return known->second;
    }

    OrderedIds new_order() {
        const std::string name = ids_.label.empty() ? "rows" : ids_.label;
        const Axis rows = shared_.empty() ? gather_.rows : product(name + "_rows", with_rows(shared_));
        const Axis places = along_one_row_axis() ? gather_.positions[0] : product(name + "_places", gather_.positions);
        const Axis ordered = graph_.rows(data_.unused_axis_name(name + "_ordered"), places, 0);
        const Axis ends = graph_.rows(data_.unused_axis_name(name + "_ends"), rows, 1);
        const StableOrder found = is_given() ? StableOrder{input("order", ordered), input("offsets", ends)}
                                             : stable_order(ids_along(places), ordered, rows, ends);
        return {rows, ordered, {found.order.named(name + "_order"), found.offsets.named(name + "_offsets")}};
    }

    bool along_one_row_axis() const { return gather_.positions.size() == 1 && is_row(gather_.positions[0].id); }

    bool is_row(AxisId axis) const { return data_.axis(axis).is_row; }

    // Ids of one axis, and of rows that all positions have in common.
    Value ids_along(Axis places) {
        if (shared_.empty() && along_one_row_axis()) return gather_.ids;
        Value id = cast(gather_.ids, i64);
        if (!shared_.empty()) {
            const Value flat = place_among(with_rows(shared_), id);
            id = select(id >= 0.0 && id < graph_.extent_of(gather_.rows, i64), flat, graph_.constant(i64, -1));
        }
        return along_one_row_axis() ? id : at(id, gather_.positions, graph_.iota(places, i64));
    }

    std::vector<Axis> with_rows(std::vector<Axis> axes) const {
        axes.push_back(gather_.rows);
        return axes;
    }

    // The place among all positions along `axes`, the last of which is at `last`, or where it is.
    Value place_among(const std::vector<Axis>& axes, std::optional<Value> last) {
        Value place = graph_.iota(axes[0], i64);
        for (std::size_t i = 1; i < axes.size(); ++i) {
            const bool given = last && i + 1 == axes.size();
            place = place * graph_.extent_of(axes[i], i64) + (given ? *last : graph_.iota(axes[i], i64));
        }
        return place;
    }

    // A value at the place that `place` is of all positions along `axes`.
    Value at(const Value& value, const std::vector<Axis>& axes, Value place) {
        std::vector<std::pair<AxisId, Coord>> parts;
        for (std::size_t i = axes.size(); i-- > 1;) {
            const Value extent = graph_.extent_of(axes[i], i64);
            const Value outer = floor_div(place, extent);
            parts.emplace_back(axes[i].id, Coord(place - outer * extent));
            place = outer;
        }
        parts.emplace_back(axes[0].id, Coord(place));
        std::vector<Coord> coords;
        for (const Axis axis : value.axes()) {
            const auto part = std::ranges::find(parts, axis.id, &std::pair<AxisId, Coord>::first);
            coords.push_back(part == parts.end() ? Coord(axis) : part->second);
        }
        return index(value, std::move(coords));
    }

    // A row axis of all positions along `axes`; columns count as as many rows.
    Axis product(const std::string& name, const std::vector<Axis>& axes) {
        std::vector<AxisId> like;
        for (const Axis axis : axes) {
            const std::string as_rows = data_.unused_axis_name(name + "_columns");
            like.push_back(is_row(axis.id) ? axis.id : data_.add_row_axis(as_rows, data_.axis(axis.id).extent));
        }
        return {data_.add_row_axis_like(data_.unused_axis_name(name), std::move(like), 0)};
    }

    Graph graph_;
    GraphData& data_;
    const std::vector<std::string>& sorted_;
    RowOrders* orders_;
    const RowGather& gather_;
    std::vector<AxisId> source_;
    Node ids_;
    std::vector<Axis> shared_;  // positions that the source has too
};

}  // namespace

std::optional<RowGather> row_gather(const std::shared_ptr<GraphData>& graph, const Node& index) {
    const std::vector<AxisId> source = graph->node(index.args[0]).axes;
    std::optional<RowGather> found;
    for (std::size_t i = 0; i < index.coords.size(); ++i) {
        const Coord& coord = index.coords[i];
        if (coord.is_axis(Axis{source[i]})) continue;
        if (found || coord.data_nodes().empty() || !graph->axis(source[i]).is_row) return std::nullopt;
        const bool is_data = coord.kind() == Coord::Kind::kData;
        const NodeId ids = is_data ? coord.data() : add_coordinate_value(*graph, coord, Dtype::kI64);
        found = RowGather{{source[i]}, {}, Value(graph, ids)};
        for (const AxisId along : graph->node(ids).axes) {
            if (!graph->axis(along).is_row && contains(source, along)) return std::nullopt;
            found->positions.push_back({along});
        }
        if (found->positions.empty()) return std::nullopt;
    }
    return found;
}

bool is_put_in_order(const std::shared_ptr<GraphData>& graph, NodeId source, const RowGather& gather,
                     const std::vector<std::string>& sorted) {
    return GatheredRows(graph, source, gather, sorted, nullptr).needs_order();
}

Value gathered_rows_gradient(const std::shared_ptr<GraphData>& graph, NodeId source, const RowGather& gather,
                             const Value& whole, const std::vector<std::string>& sorted, RowOrders* orders) {
    return GatheredRows(graph, source, gather, sorted, orders).gradient(whole);
}

}  // namespace rowjit
