// The statements of a kernel: a loop for each that is planned, what its reductions come to, the steps of a fixpoint,
// and the loops of a reduction over rows.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "compiler/plan/partial_reductions.h"
#include "compiler/schedule/lower.h"
#include "compiler/schedule/lowering.h"

namespace rowjit::lowering {
namespace {

int largest_power_of_two_up_to(std::int64_t n, int limit) {
    int power = 1;
    while (power * 2 <= limit && power * 2 <= n) power *= 2;
    return power;
}

}  // namespace

void Lowering::lower_phases() {
    load_numbers(NodeKind::kInput);
    for (int phase = 0; phase < phases_; ++phase) {
        Reductions of_row;
        for (const LoopPlan& loop : loops_[static_cast<std::size_t>(phase)]) {
            std::vector<int> accumulated;
            lower_loop(loop, &accumulated);
            for (std::size_t i = 0; i < accumulated.size(); ++i) {
                if (sums_of_block_.contains(loop.reduces[i])) {
                    add_to_block(loop.reduces[i], accumulated[i]);
                    continue;
                }
                of_row.accumulated.push_back(accumulated[i]);
                of_row.reduces.push_back(loop.reduces[i]);
            }
        }
        if (phase == 0 && !schedule().prefetch) load_numbers(NodeKind::kIndex);
        store_row_scalars(phase);
        all_reduce(of_row.accumulated, of_row.reduces);
        for (const StepPlan& step : steps_[static_cast<std::size_t>(phase)]) lower_steps(step);
    }
}

// A row's own numbers that later phases take: its target, and the logit there. Loaded where they are needed, each
// row would wait for one after the other while nothing else of it is in flight. What lies at its own place comes
// with its columns; what data says the place of, behind them, so that they need not wait for that data. (Not where
// registers fetch the next row ahead, whose loads such a load then waits for: a multiprocessor tells few loads in
// flight apart. Cross-entropy with its gradient of 32000 bf16 classes took 0.441 ms so, 0.330 without.)
void Lowering::load_numbers(NodeKind kind) {
    if (!target_.is_gpu() || phases_ == 1) return;
    std::set<NodeId> wanted;
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        if (node.kind == kind && kind == NodeKind::kIndex) wanted.insert(id);
        if (node.kind == NodeKind::kIndex || node.state >= 0) continue;
        for (const NodeId arg : node.args) {
            if (graph_.node(arg).kind == kind) wanted.insert(arg);
        }
    }
    for (const NodeId id : wanted) {
        if (phase_[id] == 0 && graph_.node(id).state < 0 && !per_lane(id)) value(id);
    }
}

void Lowering::lower_steps(const StepPlan& plan) {
    const Node& fix = graph_.node(plan.fix);
    const Node& state = graph_.node(fix.args[0]);
    OpenSteps open{.start = value(state.args[0]), .dtype = fix.dtype, .most_steps = fix.most_steps};
    open.state = kernel_.value_count++;
    open.label = unique_label(label_of(state, "state"));
    value_labels_[open.state] = open.label;
    const std::map<NodeId, ValueId> outside = row_values_;
    row_values_[fix.args[0]] = open.state;
    const std::size_t opened = kernel_.body.size();
    kernel_.body.push_back({std::move(open)});
    std::vector<int> of_steps;
    for (const auto& loops : plan.loops) {
        std::vector<int> accumulated;
        std::vector<NodeId> reduces;
        for (const LoopPlan& loop : loops) {
            lower_loop(loop, &accumulated);
            reduces.insert(reduces.end(), loop.reduces.begin(), loop.reduces.end());
        }
        all_reduce(accumulated, reduces);
        of_steps.insert(of_steps.end(), accumulated.begin(), accumulated.end());
    }
    CloseSteps close{.next = value(fix.args[1])};
    std::vector<NodeId> lasts;
    for (const auto& [last, of_step] : of_last_step_) {
        if (of_step.fix != plan.fix) continue;
        lasts.push_back(last);
        const Node& node = graph_.node(last);
        close.of_last.push_back({value(of_step.reduce), -1, node.dtype, unique_label(label_of(node, "last"))});
    }
    std::get<OpenSteps>(kernel_.body[opened].node).accumulators = std::move(of_steps);
    // Values first computed in a step end with it, also those that are the same in each.
    row_values_ = outside;
    row_values_[plan.fix] = close.result = kernel_.value_count++;
    value_labels_[close.result] = std::get<OpenSteps>(kernel_.body[opened].node).label;
    for (std::size_t i = 0; i < lasts.size(); ++i) {
        CloseSteps::OfLast& last = close.of_last[i];
        row_values_[lasts[i]] = last.result = kernel_.value_count++;
        value_labels_[last.result] = last.label;
    }
    kernel_.body.push_back({std::move(close)});
}

ColumnLoop Lowering::column_loop(const std::vector<AxisId>& axes, ColumnLoop::Part part) const {
    ColumnLoop loop;
    loop.axes = axes;
    loop.part = part;
    for (const AxisId axis : axes) loop.columns *= graph_.axis(axis).extent;
    shape(&loop);
    return loop;
}

// Of a peeled row the same twice: of its whole vectors, and of its ends into the same accumulators.
void Lowering::lower_loop(const LoopPlan& plan, std::vector<int>* accumulated) {
    std::vector<int> of_row;
    if (is_peeled(plan.axes)) {
        lower_part(plan, ColumnLoop::Part::kWhole, &of_row);
        lower_part(plan, ColumnLoop::Part::kEnds, &of_row);
    } else {
        lower_part(plan, ColumnLoop::Part::kRow, &of_row);
    }
    accumulated->insert(accumulated->end(), of_row.begin(), of_row.end());
}

void Lowering::lower_part(const LoopPlan& plan, ColumnLoop::Part part, std::vector<int>* accumulated) {
    ColumnLoop loop = column_loop(plan.axes, part);
    // What a row's last loop read last lies in the first-level cache still.
    loop.backward = target_.is_gpu() && !loop.is_resident() && serial_loops_++ % 2 == 1;
    loop_columns_ = {plan.axes, part};
    lane_values_.clear();
    loop_body_ = &loop.body;
    for (std::size_t i = 0; i < plan.reduces.size(); ++i) {
        const Node& node = graph_.node(plan.reduces[i]);
        std::vector<ValueId> terms;
        for (const NodeId arg : node.args) terms.push_back(value(arg));
        if (i == accumulated->size()) accumulated->push_back(declare_accumulator(node));
        accumulate(node, std::move(terms), (*accumulated)[i]);
    }
    std::vector<ValueId> stored;
    for (const std::size_t output : plan.outputs) stored.push_back(value(graph_.outputs()[output].node));
    for (const NodeId kept : plan.keeps) {
        value(kept);
        keep(kept);
    }
    // Stores come last: an in-place output must not overwrite what the same lane has still to load.
    for (std::size_t i = 0; i < stored.size(); ++i) store(plan.outputs[i], stored[i]);
    loop_body_ = nullptr;
    kernel_.body.push_back({std::move(loop)});
}

void Lowering::shape(ColumnLoop* loop) const {
    if (loop->part == ColumnLoop::Part::kWhole) {
        loop->vector = schedule().vector;
    } else if (target_.is_gpu()) {
        loop->vector = loop->part == ColumnLoop::Part::kEnds ? 1 : vector_dividing(loop->columns, schedule().vector);
    } else {
        loop->vector = largest_power_of_two_up_to(loop->columns, schedule().vector);
    }
    const std::int64_t step = std::int64_t{loop->vector} * schedule().threads_per_row * schedule().column_blocks;
    const std::int64_t places = target_.is_gpu() ? kernel_.places(*loop) : loop->columns;
    loop->iterations = (places + step - 1) / step;
    loop->unrolled = schedule().unrolls() && target_.is_gpu();
    const bool covers =
        loop->is_peeled() ? kernel_.whole_iterations(*loop) == loop->iterations : loop->iterations * step == places;
    if (!covers) {
        loop->tail = target_.is_gpu() ? ColumnLoop::Tail::kVector : ColumnLoop::Tail::kScalar;
    }
}

// Folds this phase's accumulators together, then gives every component that the graph uses its value.
void Lowering::all_reduce(const std::vector<int>& accumulated, const std::vector<NodeId>& reduces) {
    if (accumulated.empty()) return;
    AllReduce statement;
    statement.accumulators = accumulated;
    std::map<std::pair<std::size_t, int>, ValueId> results;
    for (std::size_t i = 0; i < accumulated.size(); ++i) {
        const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(accumulated[i])];
        for (int component = 0; component < accumulator.components(); ++component) {
            statement.results.push_back(kernel_.value_count);
            results[{i, component}] = kernel_.value_count++;
        }
    }
    block_->push_back({std::move(statement)});
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        if (node.kind != NodeKind::kReduce) continue;
        for (std::size_t i = 0; i < reduces.size(); ++i) {
            const Node& first = graph_.node(reduces[i]);
            if (first.monoid != node.monoid || !same_terms(first, node)) continue;
            ValueId result = results.at({i, node.component});
            if (accumulator_dtype(node.dtype) != node.dtype) {
                Inst inst{.kind = InstKind::kCast, .dtype = node.dtype, .operands = {result}};
                result = emit(std::move(inst), node);
            }
            row_values_[id] = result;
        }
    }
}

void Lowering::store_row_scalars(int phase) {
    for (std::size_t i = 0; i < graph_.outputs().size(); ++i) {
        const OutputInfo& output = graph_.outputs()[i];
        if (columnar(output.node) || sums_of_block_.contains(output.node)) continue;
        if (store_phase(output) == phase) store(i, value(output.node));
    }
}

// Where a thread takes neighbouring results, those lie along the innermost row axis.
std::optional<Declined> Lowering::lanes_conflict() {
    const Schedule& s = schedule();
    if (!target_.is_gpu()) return std::nullopt;
    const std::vector<NodeId> nodes = graph_.live_nodes();
    const bool segmented = std::any_of(nodes.begin(), nodes.end(), [&](NodeId id) {
        return graph_.node(id).is_segmented() || adds_parts_of_each(graph_, graph_.node(id));
    });
    if (s.shares > 0 && (!segmented || s.threads_per_row > 1 || s.across))
        return Declined{"threads share the rows of segments, of which each has one of its own"};
    if (s.vector == 1 && s.shares == 0) return std::nullopt;
    if (!s.across && s.threads_per_row > 1)
        return Declined{"a thread has neighbouring results where the threads of a row lie across rows"};
    const AxisInfo* innermost = kernel_.row_axes.empty() ? nullptr : &graph_.axis(kernel_.row_axes.back());
    if (innermost == nullptr || !innermost->is_promoted || innermost->extent % s.vector != 0)
        return Declined{fmt::format("results are not known to lie side by side in vectors of {}", s.vector)};
    kernel_.lanes_axis = kernel_.row_axes.back();
    return std::nullopt;
}

// One row loop per range, then the fold, then what follows from it.
void Lowering::lower_rows_reduction() {
    std::map<Range, std::vector<NodeId>> by_range;
    std::set<std::tuple<Monoid, NodeId, Range>> seen;
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        if (node.kind != NodeKind::kReduce) continue;
        if (seen.insert({node.monoid, node.args[0], range_of(node)}).second) by_range[range_of(node)].push_back(id);
    }
    std::vector<int> accumulated;
    std::vector<NodeId> reduces;
    for (const auto& [range, nodes] : by_range) {
        RowsLoop loop;
        loop.axes = range.axes;
        if (range.segments >= 0) bound_by_offsets(range.segments, range.offsets, &loop);
        open_range(range);
        loop_body_ = &loop.body;
        for (const NodeId id : nodes) {
            const Node& node = graph_.node(id);
            const ValueId term = value(node.args[0]);
            accumulated.push_back(declare_accumulator(node));
            accumulate(node, {term}, accumulated.back());
            reduces.push_back(id);
        }
        loop_body_ = nullptr;
        kernel_.body.push_back({std::move(loop)});
    }
    open_range({});
    all_reduce(accumulated, reduces);
    for (std::size_t i = 0; i < graph_.outputs().size(); ++i) store(i, value(graph_.outputs()[i].node));
}

// A row is a segment, so that what its positions find by their offsets is known before them. Of 1,048,576 tokens in as
// many groups a sum of squared distances from the mean of a token's group searched for that group in a chain of twenty
// loads, eight times in each of 32 threads, for one token: such an advantage took 3.3 ms in all, a copy 0.012 (H100).
void Lowering::open_range(const Range& range) {
    open_range_ = range;
    lane_values_.clear();
    segment_values_.clear();
    of_segment_.clear();
    if (range.segments < 0) return;
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        if (finds_open_segment(node) || (per_lane(id) && is_of_segment(node))) of_segment_.insert(id);
    }
}

// Whether it differs along the open loop's rows by their segment alone.
bool Lowering::is_of_segment(const Node& node) const {
    const bool computes = node.kind == NodeKind::kMap || node.kind == NodeKind::kCast;
    const bool finds = node.reads_from_memory(0);
    if (!computes && !finds) return false;
    const bool at_position = std::ranges::any_of(node.coords, [&](const Coord& coord) {
        return std::ranges::any_of(coord.axes(), [&](Axis axis) { return axis.id == open_range_.axes[0]; });
    });
    if (at_position) return false;
    for (std::size_t i = 0; i < node.args.size(); ++i) {
        if (!node.reads_from_memory(i) && per_lane(node.args[i])) return false;
    }
    return true;
}

// Offsets are the caller's: what they give outside the axis is cut off.
void Lowering::bound_by_offsets(AxisId segments, NodeId offsets, RowsLoop* loop) {
    const Coord segment{Axis{segments}};
    Inst zero{.kind = InstKind::kConst, .dtype = Dtype::kI64};
    Inst extent{.kind = InstKind::kExtent, .dtype = Dtype::kI64};
    extent.axis = loop->axes[0];
    const ValueId low = emit(std::move(zero), Node{});
    const ValueId high = emit(std::move(extent), Node{.label = "positions"});
    const auto bound = [&](const Coord& coord, std::string_view label, Op op, ValueId by) {
        Node named{.label = std::string(label)};
        ValueId offset = load(offsets, {coord}, &named);
        if (graph_.node(offsets).dtype != Dtype::kI64) {
            Inst widened{.kind = InstKind::kCast, .dtype = Dtype::kI64, .operands = {offset}};
            offset = emit(std::move(widened), named);
        }
        Inst inside{.kind = InstKind::kMap, .dtype = Dtype::kI64, .operands = {offset, by}};
        inside.op = op;
        return emit(std::move(inside), named);
    };
    loop->segments = segments;
    loop->begin = bound(segment, "segment_begin", Op::kMax, low);
    loop->end = bound(segment + 1, "segment_end", Op::kMin, high);
}

}  // namespace rowjit::lowering
