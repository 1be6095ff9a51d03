// Which column loops a row has: the phases that reductions part, the steps of fixpoints, values that are turned and
// rows that are peeled. What these loops compute is lower_loops.cpp's.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "compiler/schedule/lower.h"
#include "compiler/schedule/lowering.h"
#include "compiler/schedule/turns.h"

namespace rowjit::lowering {

void Lowering::find_sums_of_block() {
    if (sums_in_registers() && schedule().rows_per_block == 1 && kernel_.cluster_blocks() == 1)
        sums_of_block_ = sums_of_block(graph_);
}

// Reductions over columns behind a fixpoint that its last step has made already: the same as one of the step's, of
// the state that it found. Equal nodes are one, so that what is written again is there already. A sparsemax's
// threshold is what its last step summed, for which its row was met over once more.
void Lowering::find_last_of_steps() {
    for (const NodeId fix : graph_.live_nodes()) {
        if (graph_.node(fix).kind != NodeKind::kFix) continue;
        GraphData written = graph_;
        std::map<NodeId, NodeId> found = {{graph_.node(fix).args[0], fix}};
        const auto of_last = [&](NodeId id) { return found.contains(id) ? found.at(id) : id; };
        for (const NodeId id : step_nodes(fix)) {
            if (found.contains(id)) continue;
            const NodeId last = found[id] = written.add_copy(graph_.node(id), of_last);
            if (graph_.node(id).kind == NodeKind::kReduce && last < graph_.size()) of_last_step_[last] = {fix, id};
        }
    }
}

// Within a step phases count from the state. A fixpoint is there a phase after the last value its step is given.
void Lowering::find_phases() {
    std::map<NodeId, int> given;  // by state
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        int phase = 0;
        for (const NodeId arg : node.args) {
            const bool from_outside = node.state >= 0 && graph_.node(arg).state < 0;
            int& latest = from_outside ? given[node.state] : phase;
            latest = std::max(latest, phase_[arg]);
        }
        if (node.kind == NodeKind::kFix) phase = given[node.args[0]] + 1;
        if (node.kind == NodeKind::kReduce && !sums_of_block_.contains(id)) ++phase;
        if (const auto last = of_last_step_.find(id); last != of_last_step_.end()) phase = phase_[last->second.fix];
        phase_[id] = phase;
        if (node.state < 0) phases_ = std::max(phases_, phase + 1);
    }
}

// The phase an output is stored in: as early as it can be, unless it overwrites an input that later phases read
// again.
int Lowering::store_phase(const OutputInfo& output) const {
    const int ready = phase_.at(output.node);
    return output.alias.empty() ? ready : phases_ - 1;
}

void Lowering::plan_loops() {
    loops_.resize(static_cast<std::size_t>(phases_));
    steps_.resize(static_cast<std::size_t>(phases_));
    const auto loop_over = [&](std::vector<std::vector<LoopPlan>>* by_phase, int phase,
                               const std::vector<AxisId>& axes) -> LoopPlan& {
        if (by_phase->size() <= static_cast<std::size_t>(phase)) by_phase->resize(static_cast<std::size_t>(phase) + 1);
        std::vector<LoopPlan>& loops = (*by_phase)[static_cast<std::size_t>(phase)];
        for (LoopPlan& loop : loops) {
            if (loop.axes == axes) return loop;
        }
        loops.push_back({axes, {}, {}, {}});
        return loops.back();
    };
    std::set<std::pair<Monoid, std::vector<NodeId>>> seen;
    const auto add_reduce = [&](std::vector<std::vector<LoopPlan>>* by_phase, NodeId id) {
        const Node& node = graph_.node(id);
        if (node.kind != NodeKind::kReduce || of_last_step_.contains(id)) return;
        if (!seen.insert({node.monoid, node.args}).second) return;
        int phase = 0;
        for (const NodeId arg : node.args) phase = std::max(phase, phase_[arg]);
        loop_over(by_phase, phase, graph_.column_axes(graph_.node(node.args[0]))).reduces.push_back(id);
    };
    for (const NodeId id : graph_.live_nodes()) {
        if (graph_.node(id).state < 0) add_reduce(&loops_, id);
        if (graph_.node(id).kind != NodeKind::kFix) continue;
        seen.clear();  // fixpoints that share a state share nothing else
        StepPlan plan{id, {}};
        for (const NodeId of_step : step_nodes(id)) add_reduce(&plan.loops, of_step);
        steps_[static_cast<std::size_t>(phase_[id] - 1)].push_back(std::move(plan));
    }
    for (std::size_t i = 0; i < graph_.outputs().size(); ++i) {
        const OutputInfo& output = graph_.outputs()[i];
        if (columnar(output.node)) {
            loop_over(&loops_, store_phase(output), graph_.column_axes(graph_.node(output.node))).outputs.push_back(i);
        }
    }
}

// What a fixpoint's next state is computed from, as far as it depends on the state; operands before users.
std::set<NodeId> Lowering::step_nodes(NodeId fix) const {
    std::set<NodeId> found;
    std::vector<NodeId> work = {graph_.node(fix).args[1]};
    while (!work.empty()) {
        const NodeId id = work.back();
        work.pop_back();
        if (graph_.node(id).state < 0 || !found.insert(id).second) continue;
        work.insert(work.end(), graph_.node(id).args.begin(), graph_.node(id).args.end());
    }
    return found;
}

// Threads that meet must take the same number of steps. Rows within a warp vote; those of several warps meet at
// barriers of the block, where no vote is.
std::optional<Declined> Lowering::steps_conflict() const {
    std::size_t first = steps_.size();
    for (std::size_t phase = steps_.size(); phase-- > 0;) first = steps_[phase].empty() ? first : phase;
    if (first == steps_.size() || !target_.is_gpu()) return std::nullopt;
    const int rows = schedule().rows_per_block;
    if (rows > 1 && schedule().threads_per_row > target_.warp_size) {
        return Declined{"rows of several warps that share a block would wait for each other's steps"};
    }
    if (rows > 1 && !std::has_single_bit(static_cast<unsigned>(rows))) {
        return Declined{fmt::format("{} rows of a block do not fill warps that vote on their steps", rows)};
    }
    const bool loop_before = std::any_of(loops_.begin(), loops_.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                                         [](const auto& loops) { return !loops.empty(); });
    if (schedule().fetches_ahead() && !loop_before) {
        return Declined{"the first loop of a row is a step, which would fetch the next row several times"};
    }
    return std::nullopt;
}

// A GPU's warp keeps the greatest of what its lanes have seen, and those of a row's warps meet in one block. A thread
// of fewer keeps its own, a few of so many columns.
std::optional<Declined> Lowering::greatest_conflict() const {
    constexpr std::int64_t kMostColumns = 8192;
    if (!target_.is_gpu()) return std::nullopt;
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        if (node.kind != NodeKind::kReduce || node.monoid != Monoid::kGreatest) continue;
        const bool by_thread = schedule().threads_per_row < target_.warp_size;
        const bool are_few =
            node.component < kMostGreatestOfThread && graph_.column_count(graph_.node(node.args[0])) <= kMostColumns;
        if (kernel_.cluster_blocks() > 1 || (by_thread && !are_few))
            return Declined{"the greatest of a row are kept by whole warps of one block, or a few by each thread"};
    }
    return std::nullopt;
}

std::vector<NodeId> Lowering::roots(const LoopPlan& loop) const {
    std::vector<NodeId> found;
    for (const NodeId reduce : loop.reduces)
        found.insert(found.end(), graph_.node(reduce).args.begin(), graph_.node(reduce).args.end());
    for (const std::size_t output : loop.outputs) found.push_back(graph_.outputs()[output].node);
    return found;
}

// Per-lane nodes that evaluating `roots` visits, stopping at values in `kept`.
std::set<NodeId> Lowering::visited(const std::vector<NodeId>& roots, const std::set<NodeId>& kept) const {
    std::set<NodeId> seen;
    visit(roots, kept, &seen);
    return seen;
}

// Adds those that `seen` has not, to `added` too where that is given.
void Lowering::visit(const std::vector<NodeId>& roots, const std::set<NodeId>& kept, std::set<NodeId>* seen,
                     std::vector<NodeId>* added) const {
    std::vector<NodeId> work = roots;
    while (!work.empty()) {
        const NodeId id = work.back();
        work.pop_back();
        if (!columnar(id) || !seen->insert(id).second) continue;
        if (added != nullptr) added->push_back(id);
        if (kept.contains(id)) continue;
        if (graph_.node(id).kind == NodeKind::kInput) continue;
        // An index loads its input itself; only its data coordinates are evaluated.
        const std::vector<NodeId> args = operands(id);
        for (std::size_t i = 0; i < args.size(); ++i) {
            if (turns_.contains(id) || !graph_.node(id).reads_from_memory(i)) work.push_back(args[i]);
        }
    }
}

// What a node's value is made of where loops need it.
std::vector<NodeId> Lowering::operands(NodeId id) const {
    const auto turn = turns_.find(id);
    return turn == turns_.end() ? graph_.node(id).args : std::vector<NodeId>{turn->second.own};
}

// Values that are others turned by whole vectors of each thread, which then has them in registers: a rotary
// embedding's partner, with all that was computed of it. What is loaded is read of the vectors at hand; what is
// computed a loop keeps before the first that reads it turned: the one before that, where it computes it anyway, or
// one of its own. None stands before a row's first loop where that is fetched ahead.
void Lowering::plan_turns() {
    const bool steps = std::any_of(steps_.begin(), steps_.end(), [](const auto& plans) { return !plans.empty(); });
    if (!target_.is_gpu() || !schedule().unrolls() || schedule().column_blocks > 1 || steps || schedule().peel ||
        !one_axis())
        return;
    for (const auto& [id, turn] : find_turns(graph_)) {
        const ColumnLoop loop = column_loop(graph_.column_axes(graph_.node(id)));
        const std::int64_t vectors = std::int64_t{loop.vector} * schedule().threads_per_row;
        const bool whole = loop.tail == ColumnLoop::Tail::kNone && turn.columns % vectors == 0;
        const bool fetched = schedule().fetches_ahead() && phase_[id] == 0 && !is_input(turn.own);
        // What is loaded column by column is in no vector that could be turned.
        const bool apart = is_input(turn.own) && column_strides(graph_.node(turn.own)).back() != 1;
        if (whole && !fetched && !apart) turns_[id] = {turn.own, turn.columns / vectors};
    }
    // What is made of turned values itself would be another loop's.
    for (auto turn = turns_.begin(); turn != turns_.end();) {
        const std::set<NodeId> made_of = visited({turn->second.own}, {});
        const bool again = std::any_of(made_of.begin(), made_of.end(), [&](NodeId id) { return turns_.contains(id); });
        turn = again ? turns_.erase(turn) : std::next(turn);
    }
    std::set<NodeId> kept;
    std::set<NodeId> available;  // of the loop before
    LoopPlan* before = nullptr;
    for (std::vector<LoopPlan>& loops : loops_) {
        std::vector<LoopPlan> planned;
        planned.reserve(2 * loops.size());
        for (LoopPlan& loop : loops) {
            std::set<NodeId> computed = visited(roots(loop), {});
            std::set<NodeId> own;
            for (const NodeId id : computed) {
                const auto turn = turns_.find(id);
                if (turn != turns_.end() && !is_input(turn->second.own) && !kept.contains(turn->second.own))
                    own.insert(turn->second.own);
            }
            const bool at_hand = std::includes(available.begin(), available.end(), own.begin(), own.end());
            if (!at_hand) before = &planned.emplace_back(LoopPlan{.axes = loop.axes});
            if (!own.empty()) before->keeps.insert(before->keeps.end(), own.begin(), own.end());
            kept.insert(own.begin(), own.end());
            available = std::move(computed);
            before = &planned.emplace_back(std::move(loop));
        }
        loops = std::move(planned);
    }
}

// Whether all loops run over the same columns, of one axis.
bool Lowering::one_axis() const {
    const std::vector<AxisId>* axes = nullptr;
    for (const std::vector<LoopPlan>& loops : loops_) {
        for (const LoopPlan& loop : loops) {
            if (loop.axes.size() != 1 || (axes != nullptr && *axes != loop.axes)) return false;
            axes = &loop.axes;
        }
    }
    return axes != nullptr;
}

// Finds the tensor whose rows say where whole vectors begin: of those with the most columns the one of most axes. A
// table whose rows are gathered has rows of its own, of which the kernel's has none.
// Vectors of the others begin there too where their rows are alike in memory, and are taken apart where they are
// not.
std::optional<Declined> Lowering::peel() {
    if (!schedule().peel) return std::nullopt;
    if (!target_.is_gpu()) return Declined{"rows are peeled on GPUs, whose vectors are aligned"};
    if (schedule().stages > 0) return Declined{"rows that begin anywhere are not copied in 16 bytes"};
    const bool sums_columns = std::ranges::any_of(
        graph_.outputs(), [&](const OutputInfo& output) { return output.slots >= 0 && columnar(output.node); });
    if (sums_columns) {
        // Of rows along one axis as many as a vector has columns are whole vectors, wherever each begins.
        if (kernel_.row_axes.size() > 1 || schedule().rows_per_block > 1 || !sums_in_registers())
            return Declined{"sums over rows are of a thread's own columns, which differ from row to row"};
        kernel_.rows_alike = schedule().vector;
    }
    std::pair<std::int64_t, std::size_t> most;
    for (std::size_t i = 0; i < kernel_.tensors.size(); ++i) {
        const KernelTensor& tensor = kernel_.tensors[i];
        if (tensor.axes.size() < 2 || tensor.column_strides != std::vector<std::int64_t>{1}) continue;
        if (!has_kernels_rows(tensor)) continue;
        const std::pair here(graph_.axis(tensor.axes.back()).extent, tensor.axes.size());
        if (here <= most || !loops_over(tensor.axes.back())) continue;
        most = here;
        kernel_.peeled_by = Inst{.kind = InstKind::kLoad, .dtype = tensor.dtype};
        kernel_.peeled_by->index = static_cast<int>(i);
        kernel_.peeled_by->coords = own_coords(tensor.axes);
    }
    const std::int64_t columns = most.first;
    if (columns == 0) return Declined{"no tensor has rows of a loop's columns, one behind the other"};
    if (columns % schedule().vector == 0) return Declined{fmt::format("{} columns are whole vectors", columns)};
    if (columns < 2 * schedule().vector) return Declined{fmt::format("{} columns are hardly a vector", columns)};
    return std::nullopt;
}

bool Lowering::has_kernels_rows(const KernelTensor& tensor) const {
    return std::all_of(tensor.axes.begin(), tensor.axes.end(), [&](AxisId axis) {
        return !graph_.axis(axis).is_row ||
               std::find(kernel_.row_axes.begin(), kernel_.row_axes.end(), axis) != kernel_.row_axes.end();
    });
}

bool Lowering::loops_over(AxisId axis) const {
    return std::any_of(loops_.begin(), loops_.end(), [&](const std::vector<LoopPlan>& loops) {
        return std::any_of(loops.begin(), loops.end(),
                           [&](const LoopPlan& loop) { return loop.axes == std::vector<AxisId>{axis}; });
    });
}

bool Lowering::is_peeled(const std::vector<AxisId>& axes) const {
    if (!kernel_.peeled_by) return false;
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(kernel_.peeled_by->index)];
    return axes == std::vector<AxisId>{tensor.axes.back()};
}

}  // namespace rowjit::lowering
