// A graph's reductions: those that an expression has, those that only the planner makes of them, and what of an operand
// each may be taken of.
#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/ops.h"

namespace rowjit {

NodeId GraphData::add_reduce(Monoid monoid, NodeId arg, std::vector<AxisId> reduced, int component) {
    const Node& from = node(arg);
    const std::string_view what = rowjit::name(monoid);
    if (from.dtype == Dtype::kBool)
        fail(ErrorCode::kInvalidGraph, "{}({}): cast the bools to a number first", what, describe(arg));
    if (is_storage(from.dtype))
        fail(ErrorCode::kInvalidGraph, "{}({}): cast it to a dtype to compute in first", what, describe(arg));
    if (reduced.empty()) {
        fail(ErrorCode::kInvalidGraph, "{}({}): there is no column axis to reduce; name the axis", what, describe(arg));
    }
    for (const AxisId id : reduced) {
        if (!contains(from.axes, id)) {
            fail(ErrorCode::kInvalidGraph, "{}({}): it has no axis {}", what, describe(arg), axis(id).label());
        }
        if (std::count(reduced.begin(), reduced.end(), id) > 1) {
            fail(ErrorCode::kInvalidGraph, "{}({}): axis {} is named twice", what, describe(arg), axis(id).label());
        }
        if (axis(id).is_row != axis(reduced[0]).is_row) {
            fail(ErrorCode::kInvalidGraph, "{}({}): reduce rows and columns in two steps", what, describe(arg));
        }
    }
    if (component < 0 || component >= components(monoid)) {
        fail(ErrorCode::kInvalidGraph, "{}({}): it has no component {}, the last is {}", what, describe(arg), component,
             components(monoid) - 1);
    }
    if ((sums_exponentials(monoid) && monoid != Monoid::kMaxSumExp) || monoid == Monoid::kMoments)
        fail(ErrorCode::kInvalidGraph, "{}({}): the planner's alone; write the sums", what, describe(arg));
    if (monoid == Monoid::kGreatest)
        fail(ErrorCode::kInvalidGraph, "{}({}): the planner's alone; write the rounds", what, describe(arg));
    if (monoid == Monoid::kExactSum)
        fail(ErrorCode::kInvalidGraph, "{}({}): the planner's alone; write the sum", what, describe(arg));
    if (components(monoid) > 1 && !is_float(from.dtype)) {
        fail(ErrorCode::kInvalidGraph, "{}({}): a float dtype is needed; cast the operand", what, describe(arg));
    }
    Node result{.kind = NodeKind::kReduce, .dtype = from.dtype, .axes = {}, .args = {arg}};
    for (const AxisId id : from.axes) {
        if (!contains(reduced, id)) result.axes.push_back(id);
    }
    result.monoid = monoid;
    result.component = component;
    result.reduced = std::move(reduced);
    return intern(std::move(result));
}

NodeId GraphData::add_carried(Monoid monoid, std::vector<NodeId> args, std::vector<AxisId> reduced, int component) {
    const bool is_alike =
        node(args[0]).axes == node(args.back()).axes && node(args[0]).dtype == node(args.back()).dtype;
    RJ_CHECK(sums_exponentials(monoid) && component < components(monoid) && is_alike,
             "graph: component {} of {} of {}, {}", component, name(monoid), describe(args[0]), describe(args.back()));
    Node result = node(add_reduce(Monoid::kMaxSumExp, args[0], std::move(reduced)));
    result.monoid = monoid;
    result.component = component;
    result.args = std::move(args);
    result.label.clear();
    return intern(std::move(result));
}

NodeId GraphData::add_greatest(NodeId x, NodeId places, std::vector<AxisId> reduced, int r) {
    RJ_CHECK(is_float(node(x).dtype) && node(places).dtype == Dtype::kI32 && r < components(Monoid::kGreatest),
             "graph: place {} of the greatest of {}, at {}", r, describe(x), describe(places));
    Node result = node(add_reduce(Monoid::kMax, x, std::move(reduced)));
    result.monoid = Monoid::kGreatest;
    result.component = r;
    result.dtype = Dtype::kI32;
    result.args = {x, places};
    result.label.clear();
    return intern(std::move(result));
}

NodeId GraphData::add_exact_sum(NodeId sum, int component) {
    Node result = node(sum);
    RJ_CHECK(result.kind == NodeKind::kReduce && result.monoid == Monoid::kSum && result.dtype == Dtype::kF32,
             "graph: exactly {}", describe(sum));
    result.monoid = Monoid::kExactSum;
    result.component = component;
    result.label.clear();
    return intern(std::move(result));
}

NodeId GraphData::add_moments(NodeId x, std::vector<AxisId> rows, int component) {
    Node result = node(add_reduce(Monoid::kSum, x, std::move(rows)));
    RJ_CHECK(result.dtype == Dtype::kF32 && axis(result.reduced[0]).is_row && component < components(Monoid::kMoments),
             "graph: component {} of the moments of {}", component, describe(x));
    result.monoid = Monoid::kMoments;
    result.component = component;
    result.label.clear();
    return intern(std::move(result));
}

NodeId GraphData::add_segment_reduce(Monoid monoid, NodeId arg, AxisId reduced, NodeId offsets, AxisId segments) {
    const std::string_view what = rowjit::name(monoid);
    require_places(what, offsets);
    if (components(monoid) > 1)
        fail(ErrorCode::kInvalidGraph, "{}({}): segments have sums, maxima and minima", what, describe(arg));
    if (!axis(segments).is_row || !is_longer(node(offsets).axes[0], segments, 1)) {
        fail(ErrorCode::kInvalidGraph,
             "{}({}): the axis of offsets {} must be one longer than {}, a row axis: rows(\"offsets\", {}, 1)", what,
             describe(arg), describe(offsets), axis(segments).label(), axis(segments).label());
    }
    const NodeId whole = add_reduce(monoid, arg, {reduced});
    if (!axis(reduced).is_row || contains(node(arg).axes, segments)) {
        fail(ErrorCode::kInvalidGraph, "{}({}): segments {} of {}: a row axis is reduced to one that is not there yet",
             what, describe(arg), axis(segments).label(), axis(reduced).label());
    }
    Node result = node(whole);
    result.axes = node(arg).axes;
    std::replace(result.axes.begin(), result.axes.end(), reduced, segments);
    result.args = {arg, offsets};
    result.axis = segments;
    result.label.clear();
    return intern(std::move(result));
}

NodeId GraphData::add_partial_reduce(Monoid monoid, NodeId arg, const std::vector<AxisId>& outer, AxisId slots,
                                     Dtype dtype, std::vector<AxisId> reduced, int component) {
    const Node& from = node(arg);
    RJ_CHECK(is_float(from.dtype) && axis(slots).is_slots, "parts of {} of {} by {}", name(monoid), describe(arg),
             axis(slots).label());
    const auto is_left = [&](AxisId id) { return !contains(reduced, id) && !contains(outer, id); };
    Node result{.kind = NodeKind::kPartialReduce, .dtype = dtype, .axes = outer, .args = {arg}};
    result.axes.push_back(slots);
    std::ranges::copy_if(from.axes, std::back_inserter(result.axes), is_left);
    result.monoid = monoid;
    result.component = component;
    result.reduced = std::move(reduced);
    result.axis = slots;
    return intern(std::move(result));
}

NodeId GraphData::add_sum_where(NodeId terms, NodeId places, NodeId place, AxisId reduced) {
    RJ_CHECK(is_integer(node(places).dtype) && node(place).dtype == node(places).dtype &&
                 contains(node(terms).axes, reduced) && contains(node(places).axes, reduced) &&
                 !contains(node(place).axes, reduced),
             "sums of {} where {} is {}", describe(terms), describe(places), describe(place));
    Node result{.kind = NodeKind::kSumWhere,
                .dtype = accumulator_dtype(node(terms).dtype),
                .axes = merge_axes("sum_where", {terms, places, place}),
                .args = {terms, places, place}};
    std::erase(result.axes, reduced);
    result.reduced = {reduced};
    return intern(std::move(result));
}

bool GraphData::reduces_few(const Node& node) const {
    constexpr std::int64_t kFew = 16;
    if (node.kind != NodeKind::kReduce || node.is_segmented()) return false;
    std::int64_t terms = 1;
    for (const AxisId id : node.reduced) {
        if (axis(id).extent == kRuntimeExtent || axis(id).extent > kFew) return false;
        terms *= axis(id).extent;
    }
    const bool some_columns = node.reduced.size() < column_axes(this->node(node.args[0])).size();
    return terms <= kFew && (axis(node.reduced[0]).is_row || some_columns);
}

}  // namespace rowjit
