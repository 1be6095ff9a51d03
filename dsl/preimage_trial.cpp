#include "dsl/preimage_trial.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

bool has_data(const Coord& coord) { return !coord.data_nodes().empty(); }

// Walks the positions of a box; false once it is through.
class Box {
  public:
    Box(std::vector<Axis> axes, std::vector<std::int64_t> extents)
        : axes_(std::move(axes)), extents_(std::move(extents)), at_(axes_.size(), 0) {}

    std::int64_t operator()(Axis axis) const {
        for (std::size_t i = 0; i < axes_.size(); ++i) {
            if (axes_[i].id == axis.id) return at_[i];
        }
        RJ_CHECK(false, "axis {} is not in the box", axis.id);
    }

    bool varies(const Coord& coord) const {
        const std::vector<Axis> axes = coord.axes();
        return std::any_of(axes.begin(), axes.end(), [&](Axis axis) {
            return std::any_of(axes_.begin(), axes_.end(), [&](Axis a) { return a.id == axis.id; });
        });
    }

    bool next() {
        for (std::size_t i = at_.size(); i-- > 0;) {
            if (++at_[i] < extents_[i]) return true;
            at_[i] = 0;
        }
        return false;
    }

  private:
    std::vector<Axis> axes_;
    std::vector<std::int64_t> extents_;
    std::vector<std::int64_t> at_;
};

// The positions of every axis that the coordinates mention; nothing where there are too many to try.
std::optional<Box> box_of(const GraphData& graph, const std::vector<Coord>& coords) {
    std::vector<Axis> axes;
    std::vector<std::int64_t> extents;
    std::int64_t count = 1;
    for (const Coord& coord : coords) {
        for (const Axis axis : coord.axes()) {
            if (std::any_of(axes.begin(), axes.end(), [&](Axis a) { return a.id == axis.id; })) continue;
            axes.push_back(axis);
            extents.push_back(graph.axis(axis.id).extent);
            if (extents.back() == kRuntimeExtent || extents.back() > kMostTried / count) return std::nullopt;
            count *= extents.back();
        }
    }
    return Box(std::move(axes), std::move(extents));
}

bool holds_at(const Bounded& condition, const Box& box) {
    const auto no_data = [](NodeId) -> std::int64_t { RJ_CHECK(false, "a condition on data"); };
    const std::int64_t value = condition.value.evaluate(box, no_data);
    return condition.low.evaluate(box, no_data) <= value && value <= condition.high.evaluate(box, no_data);
}

bool constants_bound(const GraphData& graph, const Bounded& condition) {
    if (condition.low.kind() != Coord::Kind::kConst || condition.high.kind() != Coord::Kind::kConst) return false;
    std::int64_t low = 0;
    std::int64_t high = 0;
    return condition.value.bounds([&](Axis axis) { return graph.axis(axis.id).extent; }, &low, &high) &&
           low >= condition.low.constant() && high <= condition.high.constant();
}

}  // namespace

std::optional<bool> decide(const GraphData& graph, const Bounded& condition) {
    const Coord gap_below = condition.value - condition.low;
    const Coord gap_above = condition.high - condition.value;
    if (has_data(gap_below)) return std::nullopt;
    if (condition.value == condition.low && condition.value == condition.high) return true;
    if (constants_bound(graph, condition)) return true;
    std::optional<Box> box = box_of(graph, {gap_below, gap_above});
    if (!box) return std::nullopt;
    bool always = true;
    bool never = true;
    do {
        const bool holds = holds_at(condition, *box);
        always = always && holds;
        never = never && !holds;
    } while (box->next() && (always || never));
    if (always) return true;
    if (never) return false;
    return std::nullopt;
}

void check_preimage(const GraphData& graph, const Node& index, const Support& support, const Preimage& preimage) {
    if (preimage.empty) return;
    const std::vector<AxisId>& source = graph.node(index.args[0]).axes;
    std::vector<Coord> varied;
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (has_data(index.coords[i])) return;
        if (index.coords[i].is_axis(Axis{source[i]})) continue;
        varied.emplace_back(Axis{source[i]});
        // Another axis may turn it, as the row does a circulant's columns, and itself be read in order.
        for (const Axis axis : index.coords[i].axes()) {
            const auto at = std::ranges::find(index.axes, axis.id) - index.axes.begin();
            varied.push_back(preimage.coords[static_cast<std::size_t>(at)]);
        }
    }
    for (const AxisId axis : preimage.summed) varied.emplace_back(Axis{axis});
    for (const Bounded& condition : preimage.conditions) {
        varied.insert(varied.end(), {condition.value, condition.low, condition.high});
    }
    std::optional<Box> box = box_of(graph, varied);
    if (!box) return;
    std::int64_t expected = 1;
    for (std::size_t i = 0; i < index.axes.size(); ++i) {
        if (!box->varies(preimage.coords[i])) continue;
        const auto narrowed = support.find(index.axes[i]);
        expected *=
            narrowed == support.end() ? graph.axis(index.axes[i]).extent : narrowed->second.high - narrowed->second.low;
    }
    const auto no_data = [](NodeId) -> std::int64_t { RJ_CHECK(false, "a condition on data"); };
    std::int64_t found = 0;
    do {
        const bool holds = std::all_of(preimage.conditions.begin(), preimage.conditions.end(),
                                       [&](const Bounded& condition) { return holds_at(condition, *box); });
        if (!holds) continue;
        ++found;
        const auto result_at = [&](Axis axis) {
            const auto at = std::find(index.axes.begin(), index.axes.end(), axis.id) - index.axes.begin();
            return preimage.coords[static_cast<std::size_t>(at)].evaluate(*box, no_data);
        };
        for (const auto& [axis, range] : support) {
            const std::int64_t at = result_at(Axis{axis});
            RJ_CHECK(range.low <= at && at < range.high, "gradient of index({}): an element at {} of {} … {}",
                     graph.describe(index.args[0]), at, range.low, range.high - 1);
        }
        for (std::size_t i = 0; i < source.size(); ++i) {
            if (index.coords[i].is_axis(Axis{source[i]})) continue;
            RJ_CHECK(index.coords[i].evaluate(result_at, no_data) == (*box)(Axis{source[i]}),
                     "gradient of index({}): the inverse does not invert", graph.describe(index.args[0]));
        }
    } while (box->next());
    RJ_CHECK(found == expected, "gradient of index({}): {} of {} elements found", graph.describe(index.args[0]), found,
             expected);
}

}  // namespace rowjit
