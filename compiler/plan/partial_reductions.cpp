#include "compiler/plan/partial_reductions.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/plan/cutter.h"
#include "compiler/plan/rewrite.h"
#include "compiler/schedule/schedule.h"
#include "dsl/moments.h"

namespace rowjit {
namespace {

// A part takes this many f32 columns at most. Some hundred blocks then fill an H200's second-level cache, in which the
// parts are written and read; a wider sum has enough columns to divide among the blocks instead.
constexpr std::int64_t kMostColumns = 65536;

// Rows whose parts lie side by side are held by a block each.
constexpr std::int64_t kMostColumnsApart = 8192;

// On a CPU those parts lie in the second-level cache of the core that adds to them, in f64 where the sums are seen in
// f32.
constexpr std::int64_t kMostPlacesOfCore = 32768;

// Where a cluster shares a row, its shared memory holds a row of so many bytes of the widest tensor, and of two such
// tensors, and its registers so many columns of sums: more spilled (NVRTC 13; two sums of 262144 columns for sm_90a, of
// 200064 for sm_100a), and sums in memory have a part of that size for each block.
constexpr std::int64_t kMostClusterBytes = 1024 * 1024;
constexpr std::int64_t kClusterThreads = 16 * 512;
constexpr std::int64_t kSumsOfThread = 52;
// Where two narrow tensors' rows wait in two stages, of which each is half of what one of f32 is.
constexpr std::int64_t kSumsBesideNarrow = 64;

// Sums over rows that leave as many columns.
std::int64_t sums_of(const GraphData& graph, std::int64_t columns) {
    const std::vector<NodeId> live = graph.live_nodes();
    return std::count_if(live.begin(), live.end(), [&](NodeId id) {
        const Node& node = graph.node(id);
        return planning::reduces_rows(graph, node) && graph.column_count(node) == columns;
    });
}

bool fits_part(const GraphData& graph, const Node& operand, const Target& target) {
    const std::int64_t columns = graph.column_count(operand);
    if (!target.clusters || columns <= kMostColumns) return columns <= kMostColumns;
    std::size_t widest = 1;
    int rows = 0;
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        if (node.kind != NodeKind::kInput || graph.column_count(node) != columns) continue;
        widest = std::max(widest, size_bytes(node.dtype));
        rows += graph.row_axes(node).empty() ? 0 : 1;
    }
    const std::int64_t of_thread = widest < 4 && rows <= 2 ? kSumsBesideNarrow : kSumsOfThread;
    return columns * static_cast<std::int64_t>(widest) <= kMostClusterBytes &&
           columns * sums_of(graph, columns) <= kClusterThreads * (of_thread - target.assembler_registers);
}

// Whether sums over rows of one position along other axes are worth parts, which a kernel of their own does without: a
// part is to be few of the bytes that it is of, which numbers of rows are anyway. A loop of chunks has the parts of all
// its chunks along the slots, which are the outermost axis then.
bool is_worth_parts(const GraphData& graph, const Node& sum) {
    constexpr std::int64_t kManyRows = 12;
    const std::vector<NodeId> live = graph.live_nodes();
    const bool multiplies =
        std::any_of(live.begin(), live.end(), [&](NodeId id) { return graph.node(id).kind == NodeKind::kMatmul; });
    return graph.positions(sum.reduced, kManyRows) >= kManyRows && !graph.column_axes(sum).empty() && !multiplies;
}

// What is carried together is in registers, in which a block of no cluster has so many columns of all its numbers.
constexpr std::int64_t kMostColumnsTogether = 8192;

bool has_parts(const GraphData& graph, const Node& node, const Target& target) {
    if (node.monoid != Monoid::kMaxSumExp && node.monoid != Monoid::kMoments)
        return is_float(node.dtype) && components(node.monoid) == 1;
    const bool fits = target.clusters || graph.column_count(node) <= kMostColumnsTogether;
    return target.is_gpu() && node.dtype == Dtype::kF32 && fits;
}

// Of a reduction over rows that is made of parts, the row axes of whose positions each has parts of its own: those
// outside of what it is over, where what is inside of that can lie apart in each part, or else, on a GPU, all that it
// leaves: what a batch shares, as the places of a sequence. A kernel of its own for the gradient of those, of eight
// sequences, took four times as long as all that it is made of, whose rows it read again (H200). Nothing for one that
// is not made so.
std::optional<std::vector<AxisId>> outer_of_parts(const GraphData& graph, NodeId id, const Target& target) {
    const Node& node = graph.node(id);
    if (node.kind != NodeKind::kReduce || !has_parts(graph, node, target)) return std::nullopt;
    if (node.is_segmented()) return std::nullopt;
    const Node& operand = graph.node(node.args[0]);
    const auto is_row = [&](AxisId axis) { return graph.axis(axis).is_row; };
    const auto at_run_time = [&](AxisId axis) { return graph.axis(axis).extent == kRuntimeExtent; };
    std::vector<AxisId> rows = graph.row_axes(operand);
    if (!is_row(node.reduced[0]) || std::none_of(rows.begin(), rows.end(), at_run_time)) return std::nullopt;
    if (!fits_part(graph, operand, target)) return std::nullopt;
    const auto first = std::find(rows.begin(), rows.end(), node.reduced[0]);
    const auto [reduced, left] = std::mismatch(node.reduced.begin(), node.reduced.end(), first, rows.end());
    const bool in_a_run = reduced == node.reduced.end();
    if (in_a_run && can_lie_apart(graph, operand, {left, rows.end()}, target)) {
        const bool pays = first == rows.begin() ? std::any_of(node.reduced.begin(), node.reduced.end(), at_run_time)
                                                : is_worth_parts(graph, node);
        return pays ? std::optional<std::vector<AxisId>>({rows.begin(), first}) : std::nullopt;
    }
    std::erase_if(rows, [&](AxisId axis) { return contains(node.reduced, axis); });
    const bool has_own = target.is_gpu() && std::ranges::any_of(rows, at_run_time) && is_worth_parts(graph, node);
    return has_own ? std::optional(rows) : std::nullopt;
}

// Whether a reduction is over several axes whose extents a launch gives, for results that are few whatever those are,
// of which no block can have parts.
bool has_few_results(const GraphData& graph, NodeId id, const Target& target) {
    constexpr std::int64_t kFewResults = 16384;
    const Node& node = graph.node(id);
    if (!planning::reduces_rows(graph, node) || node.is_segmented() || components(node.monoid) > 1) return false;
    const auto is_given = [&](AxisId axis) { return graph.axis(axis).extent == kRuntimeExtent; };
    return std::ranges::count_if(node.reduced, is_given) > 1 && std::ranges::none_of(node.axes, is_given) &&
           graph.positions(node.axes, 1) <= kFewResults && !outer_of_parts(graph, id, target);
}

// A sum over rows of a sum over some columns, as over the heads that share a weight, is one sum with those columns as
// rows, and so is a maximum of maxima: the reduction that is its operand, if there is one. Not where that is rounded in
// between.
const Node* reduction_of_columns(const GraphData& graph, const Node& node) {
    const Node& inner = graph.node(node.args[0]);
    if (components(node.monoid) > 1) return nullptr;
    if (inner.kind != NodeKind::kReduce || inner.monoid != node.monoid || inner.is_segmented()) return nullptr;
    if (graph.axis(inner.reduced[0]).is_row || accumulator_dtype(inner.dtype) != inner.dtype) return nullptr;
    // Rows are outside of columns in memory too: the axes it is over stand before those that it leaves.
    const std::vector<AxisId> columns = graph.column_axes(graph.node(inner.args[0]));
    const auto reduced = [&](AxisId axis) { return contains(inner.reduced, axis); };
    const bool outermost = std::is_partitioned(columns.begin(), columns.end(), reduced);
    return outermost && !reduced(columns.back()) ? &inner : nullptr;
}

// A block adds its rows one after the other, which over some hundred rows costs f32 a few units. Where the sum is seen
// in f32 the CPU, whose parts lie in its cache, takes f64.
Dtype parts_dtype(const GraphData& graph, NodeId sum, const Target& target) {
    const Dtype dtype = graph.node(sum).dtype;
    const bool is_seen = graph.node(sum).monoid == Monoid::kSum && dtype == Dtype::kF32 &&
                         shown_wide(graph)[static_cast<std::size_t>(sum)];
    return is_seen && !target.is_gpu() ? Dtype::kF64 : accumulator_dtype(dtype);
}

// A block's squared deviations are from its own mean, and those from the mean of all are more by as many times the
// square of how far the two are apart as it has rows, if it has any.
template <class Parts>
NodeId joined_moments(GraphData& graph, const Node& node, AxisId slots, const Parts& parts) {
    if (node.component != kMomentSquares) return graph.add_reduce(Monoid::kSum, parts(node.component), {slots});
    const auto map = [&](Op op, NodeId a, NodeId b) { return graph.add_map(op, {a, b}); };
    const auto sum = [&](NodeId of_parts) { return graph.add_reduce(Monoid::kSum, of_parts, {slots}); };
    const NodeId total = parts(kMomentSum);
    const NodeId count = parts(kMomentCount);
    const NodeId apart = map(Op::kSub, map(Op::kDiv, total, count), map(Op::kDiv, sum(total), sum(count)));
    const NodeId squares = map(Op::kAdd, parts(kMomentSquares), map(Op::kMul, count, map(Op::kMul, apart, apart)));
    const NodeId zero = graph.add_const(node.dtype, 0);
    return sum(graph.add_map(Op::kSelect, {map(Op::kGt, count, zero), squares, zero}));
}

// What the parts of a reduction come to. A block's sum of exponentials is below its own maximum, and weighs by how far
// that is below the greatest; one that weighs nothing may be NaN, as it had -inf alone.
template <class Parts>
NodeId joined(GraphData& graph, const Node& node, AxisId slots, const Parts& parts) {
    if (node.monoid == Monoid::kMoments) return joined_moments(graph, node, slots, parts);
    if (node.monoid != Monoid::kMaxSumExp) return graph.add_reduce(node.monoid, parts(0), {slots});
    const NodeId greatest = graph.add_reduce(Monoid::kMax, parts(0), {slots});
    if (node.component == 0) return greatest;
    const NodeId weight = graph.add_map(Op::kExp, {graph.add_map(Op::kSub, {parts(0), greatest})});
    const NodeId zero = graph.add_const(node.dtype, 0);
    const NodeId weighs = graph.add_map(Op::kNe, {weight, zero});
    const NodeId weighed = graph.add_map(Op::kSelect, {weighs, graph.add_map(Op::kMul, {weight, parts(1)}), zero});
    return graph.add_reduce(Monoid::kSum, weighed, {slots});
}

bool reduces_slots(const GraphData& graph, const Node& node) {
    return node.kind == NodeKind::kReduce && graph.axis(node.reduced[0]).is_slots;
}

bool sums_rows(const GraphData& group) {
    const std::vector<NodeId> live = group.live_nodes();
    return std::any_of(live.begin(), live.end(),
                       [&](NodeId id) { return planning::reduces_rows(group, group.node(id)); });
}

// Columns that the planner made rows, as each has a sum over rows to itself, are columns again: as rows they would be
// parts' places, since it is of columns that a part may have too many.
void give_back_columns(std::vector<AxisInfo>* axes) {
    for (AxisInfo& axis : *axes) {
        axis.is_row = axis.is_row && !axis.is_promoted;
        axis.is_promoted = false;
    }
}

void give_back_strides(std::vector<std::int64_t>* promoted, std::vector<std::int64_t>* columns) {
    columns->insert(columns->begin(), promoted->begin(), promoted->end());
    promoted->clear();
}

}  // namespace

std::vector<bool> shown_wide(const GraphData& graph) {
    std::vector<bool> shown(static_cast<std::size_t>(graph.size()), false);
    for (const OutputInfo& output : graph.outputs()) shown[static_cast<std::size_t>(output.node)] = true;
    const std::vector<NodeId> live = graph.live_nodes();
    for (const NodeId id : std::views::reverse(live)) {  // users before operands
        const Node& node = graph.node(id);
        if (is_narrow(node.dtype)) shown[static_cast<std::size_t>(id)] = false;
        if (!shown[static_cast<std::size_t>(id)]) continue;
        for (const NodeId arg : node.args) shown[static_cast<std::size_t>(arg)] = true;
    }
    return shown;
}

bool can_lie_apart(const GraphData& graph, const Node& operand, const std::vector<AxisId>& apart,
                   const Target& target) {
    if (apart.empty()) return true;
    std::int64_t positions = 1;
    std::int64_t columns = 1;
    for (const AxisId axis : operand.axes) {
        const std::int64_t extent = graph.axis(axis).extent;
        const bool is_apart = contains(apart, axis);
        if (is_apart && extent == kRuntimeExtent) return false;
        if (is_apart) positions *= extent;
        if (!is_apart && !graph.axis(axis).is_row) columns *= extent;
    }
    if (!target.is_gpu()) return positions * columns <= kMostPlacesOfCore;
    // Where rows of so few threads, a vector of narrow floats each, fill warps, so do those of more.
    constexpr std::int64_t kColumnsPerThread = 8;
    const std::int64_t vectors = std::clamp<std::int64_t>(columns / kColumnsPerThread, 1, target.warp_size);
    const auto threads = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(vectors)));
    return columns <= kMostColumnsApart && rows_side_by_side(positions, threads, target.warp_size) > 0;
}

bool has_moments_of_rows(const GraphData& graph, NodeId sum, const Target& target) {
    Node moments = graph.node(sum);
    moments.monoid = Monoid::kMoments;
    return has_parts(graph, moments, target) && outer_of_parts(graph, sum, target).has_value();
}

std::shared_ptr<const GraphData> reduce_by_turns(const std::shared_ptr<const GraphData>& graph, const Target& target) {
    const std::vector<NodeId> live = graph->live_nodes();
    const auto is_parted = [&](NodeId id) { return target.is_gpu() && has_few_results(*graph, id, target); };
    if (std::ranges::none_of(live, is_parted)) return graph;
    return rewritten(*graph, [&](GraphData& to, NodeId id, const ToHere& to_here) {
        const Node& node = graph->node(id);
        if (!is_parted(id)) return to.add_copy(node, to_here);
        std::vector<AxisId> outer = node.reduced;
        std::erase_if(outer, [&](AxisId axis) { return graph->axis(axis).extent != kRuntimeExtent; });
        outer.pop_back();
        std::vector<AxisId> inner = node.reduced;
        std::erase_if(inner, [&](AxisId axis) { return contains(outer, axis); });
        return add_reduced_by_turns(to, node, to_here(node.args[0]), std::move(inner), std::move(outer));
    });
}

PartialReductions split_row_reductions(const std::shared_ptr<const GraphData>& graph, const Target& target,
                                       const std::set<NodeId>& whole) {
    auto result = std::make_shared<GraphData>(graph->axes());
    std::vector<NodeId> mapped(static_cast<std::size_t>(graph->size()), -1);
    const auto to_result = [&](NodeId id) { return mapped[static_cast<std::size_t>(id)]; };
    std::map<AxisId, std::set<NodeId>> of_slots;
    std::map<std::tuple<Monoid, NodeId, std::vector<AxisId>>, AxisId> slots_of;  // equal but for the component
    for (const NodeId id : graph->live_nodes()) {
        const Node& node = graph->node(id);
        NodeId& copy = mapped[static_cast<std::size_t>(id)];
        const auto outer = whole.contains(id) ? std::nullopt : outer_of_parts(*graph, id, target);
        if (!outer) {
            copy = result->add_copy(node, to_result);
            continue;
        }
        const auto [known, is_new] = slots_of.try_emplace({node.monoid, node.args[0], node.reduced});
        if (is_new) known->second = result->add_slots_axis(fmt::format("rj_slots_{}", slots_of.size()));
        const AxisId slots = known->second;
        of_slots[slots].insert(id);
        const Node* columns = reduction_of_columns(*graph, node);
        const NodeId operand = to_result(columns != nullptr ? columns->args[0] : node.args[0]);
        std::vector<AxisId> reduced = node.reduced;
        if (columns != nullptr) reduced.insert(reduced.end(), columns->reduced.begin(), columns->reduced.end());
        const auto parts = [&](int component) {
            return result->add_partial_reduce(node.monoid, operand, *outer, slots, parts_dtype(*graph, id, target),
                                              reduced, component);
        };
        copy = joined(*result, node, slots, parts);
        const NodeId own_parts = parts(node.component);
        result->set_label(own_parts, node.label.empty() ? "parts" : node.label + "_parts");
        result->set_label(copy, node.label);
        copy = result->add_cast(copy, node.dtype);
    }
    if (of_slots.empty()) return {graph, {}};
    for (OutputInfo output : graph->outputs()) {
        output.node = to_result(output.node);
        result->add_output(std::move(output));
    }
    return {result, std::move(of_slots)};
}

bool makes_parts(const GraphData& group) {
    return std::any_of(group.outputs().begin(), group.outputs().end(),
                       [](const OutputInfo& output) { return output.slots >= 0; });
}

bool adds_parts(const GraphData& group) {
    const std::vector<NodeId> live = group.live_nodes();
    return std::any_of(live.begin(), live.end(), [&](NodeId id) { return reduces_slots(group, group.node(id)); });
}

bool adds_parts_of_each(const GraphData& group, const Node& node) {
    return reduces_slots(group, node) && group.node(node.args[0]).axes[0] != node.reduced[0];
}

std::shared_ptr<const GraphData> with_whole_sums(const GraphData& group) {
    std::vector<AxisInfo> axes = group.axes();
    const bool has_whole_sums = !makes_parts(group) && sums_rows(group);
    if (has_whole_sums) give_back_columns(&axes);
    const std::vector<NodeId> live = group.live_nodes();
    const auto is_read = [&](AxisId axis) {
        return std::ranges::any_of(live, [&](NodeId id) { return contains(group.node(id).axes, axis); });
    };
    while (!axes.empty() && axes.back().is_slots && !is_read(static_cast<AxisId>(axes.size()) - 1)) axes.pop_back();
    // What sums were along is given parts by the same names again. Parts that are read are one.
    for (AxisInfo& axis : axes) {
        if (axis.is_slots) axis = {axis.name + "_whole", 1, true};
        axis.blocks = 0;  // of a column axis of which it sees some at a time it has rows
    }
    auto result = std::make_shared<GraphData>(std::move(axes));
    std::vector<NodeId> mapped(static_cast<std::size_t>(group.size()), -1);
    const auto to_result = [&](NodeId id) { return mapped[static_cast<std::size_t>(id)]; };
    for (const NodeId id : live) {
        Node node = group.node(id);
        if (has_whole_sums) give_back_strides(&node.promoted_strides, &node.column_strides);
        mapped[static_cast<std::size_t>(id)] = result->add_copy(node, to_result);
    }
    for (OutputInfo output : group.outputs()) {
        output.node = to_result(output.node);
        if (has_whole_sums) give_back_strides(&output.promoted_strides, &output.column_strides);
        if (output.slots >= 0) {
            const NodeId operand = output.node;
            std::vector<AxisId> reduced = result->row_axes(result->node(operand));
            std::erase_if(reduced,
                          [&](AxisId axis) { return contains(output.apart, axis) || contains(output.outer, axis); });
            output.node =
                output.parts_monoid == Monoid::kMoments
                    ? result->add_moments(operand, std::move(reduced), output.parts_component)
                    : result->add_reduce(output.parts_monoid, operand, std::move(reduced), output.parts_component);
            if (output.parts_monoid == Monoid::kSum && output.parts_rounded)
                output.node = result->add_cast(output.node, Dtype::kBf16);
            output.slots = -1;
            output.parts_monoid = Monoid::kSum;
            output.parts_component = 0;
            output.parts_rounded = false;
            output.apart.clear();
            output.outer.clear();
        }
        if (output.piece) output.column_strides.clear();  // those of the tensor that it was a piece of
        output.piece.reset();
        result->add_output(std::move(output));
    }
    return result;
}

}  // namespace rowjit
