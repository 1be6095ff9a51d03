#include "compiler/schedule/lower.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/dtype.h"
#include "base/min_cut.h"
#include "compiler/plan/differences.h"
#include "compiler/plan/online.h"
#include "compiler/plan/partial_sums.h"
#include "compiler/schedule/turns.h"
#include "compiler/schedule/walk.h"

namespace rowjit {
namespace {

// Cost of keeping a value against computing it again, in bytes per element. Registers are the scarce resource of a
// resident row; shared memory is counted double because each access costs an instruction and latency as well.
constexpr double kRegisterWeight = 1;
constexpr double kSharedWeight = 2;
constexpr double kStagedWeight = 0.2;  // what was copied ahead lies there anyway: a load, of a whole vector
constexpr double kSpecialCost = 6;     // exp, division …: a kept f32 (4 bytes) is cheaper than one of these
// Of rows of narrow floats, whose logits take half of the registers that their exponentials do: at most four
// instructions on a GPU (spend_precision). H200, cross-entropy with its gradient of 32000 bf16 classes, 32 columns a
// thread: 0.629 ms where exponentials are kept, 0.686 where logits are. A thread has no registers for more of them.
constexpr double kNarrowExpCost = 3;
constexpr std::int64_t kMostExpBytes = 128;
constexpr double kRoundCost = 0.5;  // a map or cast that rounds to bf16 or f16
constexpr double kPlainCost = 0.3;
constexpr double kAlreadyKept = 0.01;
constexpr double kTooMany = 1000;

// On the CPU a sum over rows is taken in this many parts whatever the number of threads, so that threads do not change
// its bits; enough for the threads of a large server.
constexpr std::int64_t kCpuParts = 64;

// Squares and rescaled sums of wider rows of narrow floats are carried as pairs on the CPU: in 64 plain chains f16
// layer norm met the bar at 65,536 columns and missed it at 128,256. A plain sum is of blocks (emit/llvm), of any
// width.
constexpr std::int64_t kCpuPlainColumns = 32768;

// Where rounding is arithmetic of its own beside the loads that a kept value spares: on Zen 4 an instruction, a test
// for what that takes for zero, and one to widen the result.
constexpr double kCpuRoundCost = 2.5;

double recompute_cost(const Node& node, bool narrow_exps, bool is_gpu) {
    if (node.kind == NodeKind::kSearch) return kSpecialCost;
    if (node.kind == NodeKind::kMap) {
        if (narrow_exps && node.op == Op::kExp && node.dtype == Dtype::kF32) return kNarrowExpCost;
        if (is_special(node.op) || node.op == Op::kUniform) return kSpecialCost;
    }
    const bool narrow = is_narrow(node.dtype);
    if (!narrow) return kPlainCost;
    const bool rounds = node.kind == NodeKind::kMap || node.kind == NodeKind::kCast;
    return rounds && !is_gpu ? kCpuRoundCost : kRoundCost;
}

int largest_power_of_two_up_to(std::int64_t n, int limit) {
    int power = 1;
    while (power * 2 <= limit && power * 2 <= n) power *= 2;
    return power;
}

// What one column loop computes: reductions of its columns and outputs stored from them.
struct LoopPlan {
    std::vector<AxisId> axes;
    std::vector<NodeId> reduces;       // component 0 stands for all
    std::vector<std::size_t> outputs;  // indices into the group's outputs
    std::vector<NodeId> keeps;         // values to keep for later loops over the same columns
};

// What loops have accumulated, and of which reductions.
struct Reductions {
    std::vector<int> accumulated;
    std::vector<NodeId> reduces;
};

// A fixpoint's step: the loops of its phases, counted from its state.
struct StepPlan {
    NodeId fix;
    std::vector<std::vector<LoopPlan>> loops;
};

class Lowering {
  public:
    Lowering(const Group& group, const Schedule& schedule, const Target& target)
        : group_(group),
          owned_graph_(carry_lost(schedule.online ? rewrite_online(group.graph, target) : group.graph)),
          graph_(*owned_graph_),
          target_(target) {
        kernel_.name = group.name;
        kernel_.schedule = schedule;
        kernel_.axes = graph_.axes();
        kernel_.row_axes = group.row_axes;
    }

    Offer<Kernel> run() {
        if (auto declined = alias_conflict()) return *declined;
        if (auto declined = bound_grid()) return *declined;
        declare_tensors();
        find_sums_of_block();
        find_last_of_steps();
        find_phases();
        if (group_.reduces_rows) {
            if (auto declined = lanes_conflict()) return *declined;
            lower_rows_reduction();
        } else {
            plan_loops();
            if (auto declined = steps_conflict()) return *declined;
            if (auto declined = greatest_conflict()) return *declined;
            if (auto declined = peel()) return *declined;
            plan_turns();
            plan_keeps();
            open_sums();
            lower_phases();
            close_sums();
        }
        if (auto declined = lay_out_shared()) return *declined;
        return std::move(kernel_);
    }

  private:
    const Schedule& schedule() const { return kernel_.schedule; }
    bool columnar(NodeId id) const {
        const std::vector<AxisId>& axes = graph_.node(id).axes;
        return std::any_of(axes.begin(), axes.end(), [&](AxisId axis) { return !graph_.axis(axis).is_row; });
    }

    // An output stored over an input must find every element read by the lane that overwrites it.
    std::optional<Declined> alias_conflict() const {
        for (const OutputInfo& output : graph_.outputs()) {
            if (output.alias.empty()) continue;
            for (const NodeId id : graph_.live_nodes()) {
                const Node& node = graph_.node(id);
                if (node.kind != NodeKind::kIndex || graph_.node(node.args[0]).name != output.alias) continue;
                return Declined{
                    fmt::format("output '{}' overwrites input '{}', which is also read at other coordinates",
                                output.name, output.alias)};
            }
            const NodeId input = *graph_.find_input(output.alias);
            if (graph_.node(input).axes != graph_.node(output.node).axes) {
                return Declined{
                    fmt::format("output '{}' overwrites input '{}' of other axes", output.name, output.alias)};
            }
        }
        return std::nullopt;
    }

    // How many blocks there may be. One that sums over rows has a part of the sum for each, so there must be few.
    std::optional<Declined> bound_grid() {
        for (const OutputInfo& output : graph_.outputs()) {
            if (output.slots < 0) continue;
            kernel_.slots_axis = output.slots;
            kernel_.outer = output.outer;
            kernel_.apart = output.apart;
        }
        const bool sums = kernel_.slots_axis >= 0;
        kernel_.most_row_blocks = std::int64_t{schedule().blocks_per_sm} * target_.sm_count / kernel_.cluster_blocks();
        // A thread that keeps rows back takes most of a multiprocessor's registers: no whole rows of blocks fit it.
        if (schedule().ahead > 0)
            kernel_.most_row_blocks = std::max<std::int64_t>(1, kernel_.most_row_blocks / schedule().column_blocks);
        if (!target_.is_gpu()) kernel_.most_row_blocks = sums ? kCpuParts : 0;
        if (sums && kernel_.most_row_blocks == 0) {
            return Declined{"a sum over rows needs a bounded number of blocks"};
        }
        if (sums && target_.is_gpu() && schedule().rows_per_block > 1 && !sums_in_registers()) {
            return Declined{
                fmt::format("{} rows of a block would add to one place in memory", schedule().rows_per_block)};
        }
        if (schedule().skew && !kernel_.outer.empty())
            return Declined{"rows of which each position along other axes has sums of its own are not skewed"};
        if (kernel_.apart.empty()) return std::nullopt;
        if (!sums_in_registers()) return Declined{"sums of rows apart are a thread's own, in registers"};
        if (kernel_.positions_apart() % schedule().rows_per_block != 0) {
            return Declined{fmt::format("{} rows of a block are not at the same of {} positions in each",
                                        schedule().rows_per_block, kernel_.positions_apart())};
        }
        return std::nullopt;
    }

    // Of columns, where loops are unrolled; numbers of a row are added up anywhere.
    bool sums_in_registers() const {
        return target_.is_gpu() &&
               (schedule().unrolls() || std::ranges::none_of(graph_.outputs(), [&](const auto& output) {
                    return output.slots >= 0 && columnar(output.node);
                }));
    }

    // ---- tensors, scalars, arguments -------------------------------------------------------------------------------

    void declare_tensors() {
        std::set<AxisId> runtime_axes(kernel_.row_axes.begin(), kernel_.row_axes.end());
        for (const NodeId id : graph_.live_nodes()) {
            const Node& node = graph_.node(id);
            if (node.kind == NodeKind::kInput) {
                tensor_of_input_[id] = static_cast<int>(kernel_.tensors.size());
                kernel_.tensors.push_back({node.name, node.dtype, node.axes, column_strides(node), true, false, false});
                kernel_.tensors.back().promoted_strides = node.promoted_strides;
            }
            if (node.kind == NodeKind::kScalar) {
                scalar_of_node_[id] = static_cast<int>(kernel_.scalars.size());
                kernel_.scalars.push_back({node.name, node.dtype});
            }
            if (node.kind == NodeKind::kExtent) runtime_axes.insert(node.axis);
            for (const AxisId axis : graph_.row_axes(node)) runtime_axes.insert(axis);
        }
        for (const OutputInfo& output : graph_.outputs()) {
            const Node& node = graph_.node(output.node);
            if (const int known = tensor_of_piece(output); known >= 0) {
                output_tensors_.push_back(known);
                continue;
            }
            KernelTensor tensor{
                output.tensor(), node.dtype, whole_axes(output), output.column_strides, output.accumulate, true, false};
            if (!output.piece) tensor.promoted_strides = output.promoted_strides;
            if (output.slots >= 0) {
                tensor.dtype = output.parts_dtype;
                tensor.axes = parts_axes(output);
                tensor.read = !sums_in_registers();
                runtime_axes.insert(output.slots);
            }
            if (tensor.column_strides.empty()) tensor.column_strides = contiguous_strides(tensor.axes);
            if (!output.alias.empty()) {
                tensor.aliased = true;
                kernel_.tensors[static_cast<std::size_t>(tensor_of_input_.at(*graph_.find_input(output.alias)))]
                    .aliased = true;
            }
            output_tensors_.push_back(static_cast<int>(kernel_.tensors.size()));
            kernel_.tensors.push_back(std::move(tensor));
        }
        using Kind = KernelArgument::Kind;
        for (std::size_t i = 0; i < kernel_.tensors.size(); ++i) {
            const int index = static_cast<int>(i);
            kernel_.arguments.push_back({Kind::kPointer, index, -1, kernel_.tensors[i].name});
            for (const AxisId axis : kernel_.tensors[i].axes) {
                if (!graph_.axis(axis).is_row) continue;
                kernel_.arguments.push_back({Kind::kStride, index, axis,
                                             fmt::format("{}_stride_{}", kernel_.tensors[i].name, axis_name(axis))});
            }
        }
        for (const AxisId axis : runtime_axes) {
            if (graph_.axis(axis).extent != kRuntimeExtent) continue;
            kernel_.arguments.push_back({Kind::kExtent, -1, axis, fmt::format("{}_extent", axis_name(axis))});
        }
        for (std::size_t i = 0; i < kernel_.scalars.size(); ++i) {
            kernel_.arguments.push_back({Kind::kScalar, static_cast<int>(i), -1, kernel_.scalars[i].name});
        }
        for (const KernelArgument& argument : kernel_.arguments) taken_labels_.insert(argument.name);
    }

    std::vector<AxisId> parts_axes(const OutputInfo& output) const {
        std::vector<AxisId> axes = output.outer;
        axes.push_back(output.slots);
        axes.insert(axes.end(), output.apart.begin(), output.apart.end());
        const std::vector<AxisId> columns = graph_.column_axes(graph_.node(output.node));
        axes.insert(axes.end(), columns.begin(), columns.end());
        return axes;
    }

    std::string axis_name(AxisId axis) const {
        const AxisInfo& info = graph_.axis(axis);
        return info.name.empty() ? fmt::format("c{}", info.extent) : info.name;
    }

    // The tensor that an earlier output is a piece of as well; -1 for none.
    int tensor_of_piece(const OutputInfo& output) const {
        for (std::size_t i = 0; output.piece && i < output_tensors_.size(); ++i) {
            if (graph_.outputs()[i].tensor() == output.tensor()) return output_tensors_[i];
        }
        return -1;
    }

    const std::vector<AxisId>& whole_axes(const OutputInfo& output) const {
        return output.piece ? output.piece->axes : graph_.node(output.node).axes;
    }

    std::vector<std::int64_t> contiguous_strides(const std::vector<AxisId>& axes) const {
        const std::vector<AxisId> columns = graph_.column_axes(Node{.axes = axes});
        std::vector<std::int64_t> strides(columns.size(), 1);
        for (std::size_t i = columns.size(); i-- > 1;) strides[i - 1] = strides[i] * graph_.axis(columns[i]).extent;
        return strides;
    }

    std::vector<std::int64_t> column_strides(const Node& node) const {
        return node.column_strides.empty() ? contiguous_strides(node.axes) : node.column_strides;
    }

    // ---- phases ----------------------------------------------------------------------------------------------------

    void find_sums_of_block() {
        if (sums_in_registers() && schedule().rows_per_block == 1 && kernel_.cluster_blocks() == 1)
            sums_of_block_ = sums_of_block(graph_);
    }

    // Reductions over columns behind a fixpoint that its last step has made already: the same as one of the step's, of
    // the state that it found. Equal nodes are one, so that what is written again is there already. A sparsemax's
    // threshold is what its last step summed, for which its row was met over once more.
    void find_last_of_steps() {
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
    void find_phases() {
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
    int store_phase(const OutputInfo& output) const {
        const int ready = phase_.at(output.node);
        return output.alias.empty() ? ready : phases_ - 1;
    }

    void plan_loops() {
        loops_.resize(static_cast<std::size_t>(phases_));
        steps_.resize(static_cast<std::size_t>(phases_));
        const auto loop_over = [&](std::vector<std::vector<LoopPlan>>* by_phase, int phase,
                                   const std::vector<AxisId>& axes) -> LoopPlan& {
            if (by_phase->size() <= static_cast<std::size_t>(phase))
                by_phase->resize(static_cast<std::size_t>(phase) + 1);
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
                loop_over(&loops_, store_phase(output), graph_.column_axes(graph_.node(output.node)))
                    .outputs.push_back(i);
            }
        }
    }

    // What a fixpoint's next state is computed from, as far as it depends on the state; operands before users.
    std::set<NodeId> step_nodes(NodeId fix) const {
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
    std::optional<Declined> steps_conflict() const {
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

    // A GPU's warp keeps the greatest of what its lanes have seen, and those of a row's warps meet in one block.
    std::optional<Declined> greatest_conflict() const {
        if (!target_.is_gpu()) return std::nullopt;
        if (kernel_.cluster_blocks() == 1 && schedule().threads_per_row >= target_.warp_size) return std::nullopt;
        for (const NodeId id : graph_.live_nodes()) {
            const Node& node = graph_.node(id);
            if (node.kind == NodeKind::kReduce && node.monoid == Monoid::kGreatest)
                return Declined{"the greatest of a row are kept by whole warps of one block"};
        }
        return std::nullopt;
    }

    std::vector<NodeId> roots(const LoopPlan& loop) const {
        std::vector<NodeId> found;
        for (const NodeId reduce : loop.reduces)
            found.insert(found.end(), graph_.node(reduce).args.begin(), graph_.node(reduce).args.end());
        for (const std::size_t output : loop.outputs) found.push_back(graph_.outputs()[output].node);
        return found;
    }

    // Per-lane nodes that evaluating `roots` visits, stopping at values in `kept`.
    std::set<NodeId> visited(const std::vector<NodeId>& roots, const std::set<NodeId>& kept) const {
        std::set<NodeId> seen;
        visit(roots, kept, &seen);
        return seen;
    }

    // Adds those that `seen` has not, to `added` too where that is given.
    void visit(const std::vector<NodeId>& roots, const std::set<NodeId>& kept, std::set<NodeId>* seen,
               std::vector<NodeId>* added = nullptr) const {
        std::vector<NodeId> work = roots;
        while (!work.empty()) {
            const NodeId id = work.back();
            work.pop_back();
            if (!columnar(id) || !seen->insert(id).second) continue;
            if (added != nullptr) added->push_back(id);
            if (kept.contains(id)) continue;
            if (graph_.node(id).kind == NodeKind::kInput) continue;
            for (const NodeId arg : operands(id)) {
                // An index loads its input itself; only its data coordinates are evaluated.
                const bool loads =
                    graph_.node(id).kind == NodeKind::kIndex || graph_.node(id).kind == NodeKind::kSearch;
                if (loads && arg == graph_.node(id).args[0] && !turns_.contains(id)) continue;
                work.push_back(arg);
            }
        }
    }

    // What a node's value is made of where loops need it.
    std::vector<NodeId> operands(NodeId id) const {
        const auto turn = turns_.find(id);
        return turn == turns_.end() ? graph_.node(id).args : std::vector<NodeId>{turn->second.own};
    }

    // Values that are others turned by whole vectors of each thread, which then has them in registers: a rotary
    // embedding's partner, with all that was computed of it. What is loaded is read of the vectors at hand; what is
    // computed a loop keeps before the first that reads it turned: the one before that, where it computes it anyway, or
    // one of its own. None stands before a row's first loop where that is fetched ahead.
    void plan_turns() {
        const bool steps = std::any_of(steps_.begin(), steps_.end(), [](const auto& plans) { return !plans.empty(); });
        if (!target_.is_gpu() || !schedule().unrolls() || schedule().column_blocks > 1 || steps || schedule().peel ||
            !one_axis())
            return;
        for (const auto& [id, turn] : find_turns(graph_)) {
            const ColumnLoop loop = column_loop(graph_.column_axes(graph_.node(id)));
            const std::int64_t vectors = std::int64_t{loop.vector} * schedule().threads_per_row;
            const bool whole = loop.tail == ColumnLoop::Tail::kNone && turn.columns % vectors == 0;
            const bool fetched = schedule().fetches_ahead() && phase_[id] == 0 && !is_input(turn.own);
            if (whole && !fetched) turns_[id] = {turn.own, turn.columns / vectors};
        }
        // What is made of turned values itself would be another loop's.
        for (auto turn = turns_.begin(); turn != turns_.end();) {
            const std::set<NodeId> made_of = visited({turn->second.own}, {});
            const bool again =
                std::any_of(made_of.begin(), made_of.end(), [&](NodeId id) { return turns_.contains(id); });
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

    bool is_input(NodeId id) const { return graph_.node(id).kind == NodeKind::kInput; }

    // Whether all loops run over the same columns, of one axis.
    bool one_axis() const {
        const std::vector<AxisId>* axes = nullptr;
        for (const std::vector<LoopPlan>& loops : loops_) {
            for (const LoopPlan& loop : loops) {
                if (loop.axes.size() != 1 || (axes != nullptr && *axes != loop.axes)) return false;
                axes = &loop.axes;
            }
        }
        return axes != nullptr;
    }

    // ---- rows that begin anywhere ----------------------------------------------------------------------------------

    // Finds the tensor whose rows say where whole vectors begin: of those with the most columns the one of most axes.
    // Vectors of the others begin there too where their rows are alike in memory, and are taken apart where they are
    // not.
    std::optional<Declined> peel() {
        if (!schedule().peel) return std::nullopt;
        if (!target_.is_gpu()) return Declined{"rows are peeled on GPUs, whose vectors are aligned"};
        if (schedule().stages > 0) return Declined{"rows that begin anywhere are not copied in 16 bytes"};
        // A thread's columns differ from row to row.
        for (const OutputInfo& output : graph_.outputs()) {
            if (output.slots >= 0 && columnar(output.node))
                return Declined{"sums over rows are of a thread's own columns"};
        }
        std::pair<std::int64_t, std::size_t> most;
        for (std::size_t i = 0; i < kernel_.tensors.size(); ++i) {
            const KernelTensor& tensor = kernel_.tensors[i];
            if (tensor.axes.size() < 2 || tensor.column_strides != std::vector<std::int64_t>{1}) continue;
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

    bool loops_over(AxisId axis) const {
        return std::any_of(loops_.begin(), loops_.end(), [&](const std::vector<LoopPlan>& loops) {
            return std::any_of(loops.begin(), loops.end(),
                               [&](const LoopPlan& loop) { return loop.axes == std::vector<AxisId>{axis}; });
        });
    }

    bool is_peeled(const LoopPlan& loop) const {
        if (!kernel_.peeled_by) return false;
        const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(kernel_.peeled_by->index)];
        return loop.axes == std::vector<AxisId>{tensor.axes.back()};
    }

    // For each set of columns, walks its loops in phase order and decides at each border what to carry over it.
    void plan_keeps() {
        if (schedule().residency == Residency::kReload) return;
        std::vector<LoopPlan*> all;
        std::set<const LoopPlan*> repeated;
        for (std::size_t phase = 0; phase < loops_.size(); ++phase) {
            for (LoopPlan& loop : loops_[phase]) all.push_back(&loop);
            for (StepPlan& step : steps_[phase]) {
                for (auto& loops : step.loops) {
                    for (LoopPlan& loop : loops) {
                        all.push_back(&loop);
                        repeated.insert(&loop);
                    }
                }
            }
        }
        std::set<std::vector<AxisId>> domains;
        for (const LoopPlan* loop : all) domains.insert(loop->axes);
        for (const std::vector<AxisId>& axes : domains) {
            std::vector<LoopPlan*> sequence;
            std::copy_if(all.begin(), all.end(), std::back_inserter(sequence),
                         [&](const LoopPlan* loop) { return loop->axes == axes; });
            std::set<NodeId> kept;
            if (schedule().residency == Residency::kStages && sequence.size() > 1) keep_copied(sequence, &kept);
            const std::map<NodeId, std::size_t> last_visits = last_visits_of(sequence);
            for (std::size_t next = 1; next < sequence.size(); ++next) {
                // What later loops need is kept before the steps, once: a step keeps nothing.
                if (repeated.contains(sequence[next - 1])) continue;
                kept.insert(sequence[next - 1]->keeps.begin(), sequence[next - 1]->keeps.end());
                std::vector<NodeId> needed;
                for (std::size_t later = next; later < sequence.size(); ++later) {
                    const std::vector<NodeId> more = roots(*sequence[later]);
                    needed.insert(needed.end(), more.begin(), more.end());
                }
                std::vector<NodeId> visited_later;
                for (const auto& [id, last] : last_visits) {
                    if (last >= next) visited_later.push_back(id);
                }
                const std::set<NodeId> available = visited(roots(*sequence[next - 1]), kept);
                for (const NodeId id : cheapest_border(needed, visited_later, available, kept)) {
                    if (kept.insert(id).second) sequence[next - 1]->keeps.push_back(id);
                }
            }
        }
    }

    // Of each value that loops visit, which keep nothing, the last that does.
    std::map<NodeId, std::size_t> last_visits_of(const std::vector<LoopPlan*>& sequence) const {
        std::map<NodeId, std::size_t> last;
        std::set<NodeId> seen;
        for (std::size_t at = sequence.size(); at-- > 0;) {
            std::vector<NodeId> added;
            visit(roots(*sequence[at]), {}, &seen, &added);
            for (const NodeId id : added) last[id] = at;
        }
        return last;
    }

    // What only later loops read of a row is copied ahead with the rest, by the first, and waits in its stage: it would
    // come late behind the meeting.
    void keep_copied(const std::vector<LoopPlan*>& sequence, std::set<NodeId>* kept) {
        const std::set<NodeId> at_first = visited(roots(*sequence[0]), {});
        for (std::size_t later = 1; later < sequence.size(); ++later) {
            for (const NodeId id : visited(roots(*sequence[later]), {})) {
                const bool copied =
                    graph_.node(id).kind == NodeKind::kInput && place_of(graph_.node(id)) == Residency::kStages;
                if (copied && !at_first.contains(id) && kept->insert(id).second) sequence[0]->keeps.push_back(id);
            }
        }
    }

    // Where a value waits for later loops. What is copied ahead are tensors that rows differ in (passes/stages).
    Residency place_of(const Node& node) const {
        if (schedule().residency != Residency::kStages) return schedule().residency;
        const bool copied = node.kind == NodeKind::kInput && !graph_.row_axes(node).empty();
        return copied ? Residency::kStages : Residency::kRegisters;
    }

    double keep_cost(const Node& node) const {
        const Residency place = place_of(node);
        if (schedule().residency == Residency::kStages && place == Residency::kRegisters && crowds(node))
            return kTooMany;
        const double weight = place == Residency::kShared   ? kSharedWeight
                              : place == Residency::kStages ? kStagedWeight
                                                            : kRegisterWeight;
        return weight * static_cast<double>(size_bytes(node.dtype));
    }

    // Whether a value's columns take more than half of the registers that a thread has, so many as there are at once.
    bool crowds(const Node& node) const {
        const Schedule& s = schedule();
        const std::int64_t columns = graph_.column_count(node) / (s.threads_per_row * s.column_blocks);
        const std::int64_t threads =
            std::int64_t{s.threads_per_row} * s.rows_per_block * std::max(1, s.min_blocks_per_sm);
        const std::int64_t bytes = target_.registers_per_sm / threads * static_cast<std::int64_t>(sizeof(float));
        return 2 * columns * static_cast<std::int64_t>(size_bytes(node.dtype)) > bytes;
    }

    // A GPU's resident row is read once, but for what all rows read where a block stays and holds it (passes/held); on
    // the CPU the second read is of the cache, as that of a kept value.
    bool read_once(NodeId id) const {
        if (!target_.is_gpu() || turns_.contains(id)) return false;
        const Node& node = graph_.node(id);
        const bool held =
            node.kind == NodeKind::kInput && schedule().blocks_per_sm > 0 && graph_.row_axes(node).empty();
        return (node.kind == NodeKind::kInput || node.kind == NodeKind::kIndex) && !held;
    }

    // Whether what is read at a row's columns is of narrow floats alone, and more than a thread holds in f32.
    bool reads_many_narrow() const {
        std::int64_t columns = 0;
        for (const NodeId id : graph_.live_nodes()) {
            const Node& node = graph_.node(id);
            if (node.kind != NodeKind::kInput || graph_.column_axes(node).empty()) continue;
            if (!is_narrow(node.dtype)) return false;
            if (!graph_.row_axes(node).empty()) columns += graph_.column_count(node);
        }
        const std::int64_t threads = schedule().threads_per_row * schedule().column_blocks;
        return columns * static_cast<std::int64_t>(sizeof(float)) > kMostExpBytes * threads;
    }

    // The values to carry so that `needed` can be computed: a minimum cut between what the previous loop evaluated
    // (`available`) and the later roots, which visit `later`. Each node is split into (in, out); cutting in→out keeps
    // it, being on the sink's side means computing it again.
    std::vector<NodeId> cheapest_border(const std::vector<NodeId>& needed, const std::vector<NodeId>& later,
                                        const std::set<NodeId>& available, const std::set<NodeId>& kept) const {
        std::map<NodeId, std::size_t> index;
        for (const NodeId id : later) index.emplace(id, index.size());
        const std::size_t source = 2 * index.size();
        const std::size_t sink = source + 1;
        MinCut cut(sink + 1);
        const bool narrow_exps = target_.is_gpu() && reads_many_narrow();
        for (const auto& [id, i] : index) {
            const Node& node = graph_.node(id);
            const bool at_hand = available.contains(id) || kept.contains(id);
            if (at_hand) {
                cut.add_edge(2 * i, 2 * i + 1, kept.contains(id) ? kAlreadyKept : keep_cost(node));
                cut.add_edge(source, 2 * i,
                             read_once(id) ? MinCut::kInfinite : recompute_cost(node, narrow_exps, target_.is_gpu()));
            } else {
                cut.add_edge(2 * i, 2 * i + 1, MinCut::kInfinite);  // does not exist yet
            }
            for (const NodeId arg : operands(id)) {
                if (const auto found = index.find(arg); found != index.end()) {
                    cut.add_edge(2 * found->second + 1, 2 * i, MinCut::kInfinite);
                }
            }
        }
        for (const NodeId id : needed) {
            if (const auto found = index.find(id); found != index.end()) {
                cut.add_edge(2 * found->second + 1, sink, MinCut::kInfinite);
            }
        }
        const std::vector<bool> side = cut.source_side(source, sink);
        std::vector<NodeId> border;
        for (const auto& [id, i] : index) {
            if (side[2 * i] && !side[2 * i + 1]) border.push_back(id);
        }
        return border;
    }

    // ---- emission --------------------------------------------------------------------------------------------------

    void lower_phases() {
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
    void load_numbers(NodeKind kind) {
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

    // What a thread's columns of this row come to, into its sum of all rows: a pair, as those are many.
    void add_to_block(NodeId reduce, int of_row) {
        const Dtype dtype = kernel_.accumulators[static_cast<std::size_t>(of_row)].dtype;
        const std::string label = kernel_.accumulators[static_cast<std::size_t>(of_row)].label;
        AllReduce own{.accumulators = {of_row}, .results = {kernel_.value_count++}, .of_thread = true};
        Inst add{.kind = InstKind::kAccumulate, .dtype = dtype, .operands = own.results};
        add.index = static_cast<int>(kernel_.accumulators.size());
        add.comment = "the thread's columns of this row";
        kernel_.accumulators.push_back({Monoid::kSum, dtype, unique_label(label), dtype == Dtype::kF32, true});
        of_block_.accumulated.push_back(add.index);
        of_block_.reduces.push_back(reduce);
        block_->push_back({std::move(own)});
        block_->push_back({std::move(add)});
    }

    void lower_steps(const StepPlan& plan) {
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

    // ---- sums over the kernel's rows -------------------------------------------------------------------------------

    // In memory a block's part begins at zero; in registers it needs no statement to.
    void open_sums() {
        for (std::size_t i = 0; i < graph_.outputs().size(); ++i) {
            const OutputInfo& output = graph_.outputs()[i];
            if (output.slots < 0 || sums_of_block_.contains(output.node)) continue;
            if (sums_in_registers()) {
                carried_of_output_[i] = static_cast<int>(kernel_.carried.size());
                kernel_.carried.push_back({output.parts_dtype, unique_label(output.name + "_part")});
                continue;
            }
            each_place_of_part(i, &kernel_.before, [&] {
                Inst zero{.kind = InstKind::kConst, .dtype = output.parts_dtype};
                store_part(i, emit(std::move(zero), Node{}), false);
            });
        }
    }

    void close_sums() {
        block_ = &kernel_.after;
        all_reduce(of_block_.accumulated, of_block_.reduces);
        for (std::size_t i = 0; i < graph_.outputs().size(); ++i) {
            const NodeId sum = graph_.outputs()[i].node;
            if (sums_of_block_.contains(sum)) store_part(i, row_values_.at(sum), false);
        }
        block_ = &kernel_.body;
        if (kernel_.carried.empty()) return;
        if (schedule().rows_per_block > 1 && kernel_.apart.empty()) {
            JoinRows join;
            for (std::size_t i = 0; i < kernel_.carried.size(); ++i) join.carried.push_back(static_cast<int>(i));
            kernel_.after.push_back({std::move(join)});
        }
        for (const auto& [output, carried] : carried_of_output_) {
            each_place_of_part(output, &kernel_.after, [&, output = output, carried = carried] {
                Inst part{.kind = InstKind::kCarried,
                          .dtype = kernel_.carried[static_cast<std::size_t>(carried)].dtype};
                part.index = carried;
                store_part(output, emit(std::move(part), Node{}), false);
            });
        }
    }

    // In a column loop over the part's columns in `block`, or straight in it when the part is one number.
    template <class Body>
    void each_place_of_part(std::size_t output, Block* block, const Body& body) {
        block_ = block;
        const std::vector<AxisId> axes = graph_.column_axes(graph_.node(graph_.outputs()[output].node));
        if (axes.empty()) {
            body();
        } else {
            ColumnLoop loop = column_loop(axes);
            loop_body_ = &loop.body;
            body();
            loop_body_ = nullptr;
            block->push_back({std::move(loop)});
        }
        block_ = &kernel_.body;
    }

    void store_part(std::size_t output, ValueId part, bool accumulate) {
        const OutputInfo& info = graph_.outputs()[output];
        Inst inst{.kind = InstKind::kStore, .dtype = info.parts_dtype, .operands = {part}};
        inst.index = output_tensors_[output];
        inst.coords = own_coords(parts_axes(info));
        inst.accumulate = accumulate;
        inst.comment = fmt::format("part of {}", info.name);
        current().push_back(std::move(inst));
    }

    // This row's summand into the block's part.
    void add_to_part(std::size_t output, ValueId summand) {
        const OutputInfo& info = graph_.outputs()[output];
        const Node& node = graph_.node(info.node);
        if (node.dtype != info.parts_dtype) {
            Inst widened{.kind = InstKind::kCast, .dtype = info.parts_dtype, .operands = {summand}};
            summand = emit(std::move(widened), node);
        }
        if (!sums_in_registers()) return store_part(output, summand, true);
        Inst inst{.kind = InstKind::kCarry, .dtype = info.parts_dtype, .operands = {summand}};
        inst.index = carried_of_output_.at(output);
        inst.comment = fmt::format("part of {}", info.name);
        current().push_back(std::move(inst));
    }

    ColumnLoop column_loop(const std::vector<AxisId>& axes, ColumnLoop::Part part = ColumnLoop::Part::kRow) const {
        ColumnLoop loop;
        loop.axes = axes;
        loop.part = part;
        for (const AxisId axis : axes) loop.columns *= graph_.axis(axis).extent;
        shape(&loop);
        return loop;
    }

    // Of a peeled row the same twice: of its whole vectors, and of its ends into the same accumulators.
    void lower_loop(const LoopPlan& plan, std::vector<int>* accumulated) {
        std::vector<int> of_row;
        if (is_peeled(plan)) {
            lower_part(plan, ColumnLoop::Part::kWhole, &of_row);
            lower_part(plan, ColumnLoop::Part::kEnds, &of_row);
        } else {
            lower_part(plan, ColumnLoop::Part::kRow, &of_row);
        }
        accumulated->insert(accumulated->end(), of_row.begin(), of_row.end());
    }

    void lower_part(const LoopPlan& plan, ColumnLoop::Part part, std::vector<int>* accumulated) {
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

    void shape(ColumnLoop* loop) const {
        if (loop->part == ColumnLoop::Part::kWhole) {
            loop->vector = schedule().vector;
        } else if (target_.is_gpu()) {
            loop->vector =
                loop->part == ColumnLoop::Part::kEnds ? 1 : vector_dividing(loop->columns, schedule().vector);
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

    // Whether a sum is carried as a pair: when every term comes from an f32 of its own in memory. A result as exact as
    // such data is not rounded to hide the order of its terms, and reading it leaves time for the arithmetic; narrow
    // data leaves little, and a result of its own dtype hides that order, except where a lane of the CPU adds up
    // thousands of terms in one chain, or where a number of the row is stored in f32: a norm's statistics, a loss.
    // Deviations that are squared before the row's mean is known lose more, and are always a pair on a GPU where a
    // thread takes its columns one vector after the other: where the bias of a layer norm cancels what it is added to,
    // one unit of the variance shows in bf16.
    bool compensated(const Node& reduce) const {
        const bool sums = reduce.monoid != Monoid::kMax && reduce.monoid != Monoid::kMin;
        if (!sums || reduce.dtype != Dtype::kF32) return false;
        if (target_.is_gpu() && reduce.monoid == Monoid::kWelford && !schedule().unrolls()) return true;
        const Node& terms = graph_.node(reduce.args[0]);
        const bool long_chain = reduce.monoid != Monoid::kSum && graph_.column_count(terms) > kCpuPlainColumns;
        if (!target_.is_gpu() && !group_.reduces_rows && long_chain) return true;
        if (!target_.is_gpu() && shows_in_f32(reduce)) return true;
        std::set<NodeId> seen;
        std::vector<NodeId> work = {reduce.args[0]};
        while (!work.empty()) {
            const NodeId id = work.back();
            work.pop_back();
            const Node& node = graph_.node(id);
            if (node.axes != terms.axes || !seen.insert(id).second) continue;
            const bool loads = node.kind == NodeKind::kInput || node.kind == NodeKind::kIndex;
            if (loads && node.dtype == Dtype::kF32) return true;
            work.insert(work.end(), node.args.begin(), node.args.end());
        }
        return false;
    }

    // Whether a number of the row that is stored in f32, or summed so over rows, depends on the sum.
    bool shows_in_f32(const Node& reduce) const {
        std::set<NodeId> seen;
        std::vector<NodeId> work;
        for (const OutputInfo& output : graph_.outputs()) {
            if (graph_.node(output.node).dtype == Dtype::kF32 && !columnar(output.node)) work.push_back(output.node);
        }
        while (!work.empty()) {
            const NodeId id = work.back();
            work.pop_back();
            const Node& node = graph_.node(id);
            if (!seen.insert(id).second) continue;
            if (node.kind == NodeKind::kReduce && node.monoid == reduce.monoid && node.args == reduce.args) return true;
            work.insert(work.end(), node.args.begin(), node.args.end());
        }
        return false;
    }

    // Whether no value of the node is below 0, as far as that shows.
    bool is_positive(NodeId id) {
        const auto [known, is_new] = is_positive_.try_emplace(id, false);
        if (is_new) known->second = find_positive(graph_.node(id));
        return known->second;
    }

    bool find_positive(const Node& node) {
        const auto operand = [&](std::size_t i) { return is_positive(node.args[i]); };
        if (node.kind == NodeKind::kConst) return node.value >= 0;
        if (node.kind == NodeKind::kCast) return operand(0);
        if (node.kind != NodeKind::kMap) return false;
        switch (node.op) {
            case Op::kExp:
            case Op::kAbs: return true;
            case Op::kMul: return node.args[0] == node.args[1] || (operand(0) && operand(1));
            case Op::kAdd:
            case Op::kDiv: return operand(0) && operand(1);
            case Op::kMax: return operand(0) || operand(1);
            case Op::kSelect: return operand(1) && operand(2);
            default: return false;
        }
    }

    int declare_accumulator(const Node& reduce) {
        const Dtype dtype = accumulator_dtype(graph_.node(reduce.args[0]).dtype);
        kernel_.accumulators.push_back(
            {reduce.monoid, dtype, unique_label(label_of(reduce, name(reduce.monoid)) + "_part"), compensated(reduce)});
        kernel_.accumulators.back().positive = is_positive(reduce.args[0]);
        kernel_.accumulators.back().greatest = greatest_of(reduce);
        return static_cast<int>(kernel_.accumulators.size()) - 1;
    }

    void accumulate(const Node& reduce, std::vector<ValueId> operands, int accumulator) {
        Inst inst{.kind = InstKind::kAccumulate};
        inst.dtype = kernel_.accumulators[static_cast<std::size_t>(accumulator)].dtype;
        inst.operands = std::move(operands);
        inst.index = accumulator;
        inst.comment = fmt::format("{} of {}", name(reduce.monoid), describe_value(reduce.args[0]));
        current().push_back(std::move(inst));
    }

    // How many of the greatest are asked for, where the reduction is of those.
    int greatest_of(const Node& reduce) const {
        int count = 0;
        if (reduce.monoid != Monoid::kGreatest) return count;
        for (const NodeId id : graph_.live_nodes()) {
            const Node& node = graph_.node(id);
            if (node.kind == NodeKind::kReduce && node.monoid == reduce.monoid && same_terms(node, reduce))
                count = std::max(count, node.component + 1);
        }
        return count;
    }

    // Folds this phase's accumulators together, then gives every component that the graph uses its value.
    void all_reduce(const std::vector<int>& accumulated, const std::vector<NodeId>& reduces) {
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

    void store_row_scalars(int phase) {
        for (std::size_t i = 0; i < graph_.outputs().size(); ++i) {
            const OutputInfo& output = graph_.outputs()[i];
            if (columnar(output.node) || sums_of_block_.contains(output.node)) continue;
            if (store_phase(output) == phase) store(i, value(output.node));
        }
    }

    static bool same_terms(const Node& a, const Node& b) {
        return a.args == b.args && a.reduced == b.reduced && a.axis == b.axis;
    }

    // Where a reduction's terms lie: the reduced axes, the axis of segments and their offsets.
    using Range = std::tuple<std::vector<AxisId>, AxisId, NodeId>;
    static Range range_of(const Node& node) {
        return {node.reduced, node.axis, node.is_segmented() ? node.args[1] : -1};
    }

    // Where a thread takes neighbouring results, those lie along the innermost row axis.
    std::optional<Declined> lanes_conflict() {
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
    void lower_rows_reduction() {
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
            loop.axes = std::get<0>(range);
            if (std::get<2>(range) >= 0) bound_by_offsets(std::get<1>(range), std::get<2>(range), &loop);
            lane_values_.clear();
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
        all_reduce(accumulated, reduces);
        for (std::size_t i = 0; i < graph_.outputs().size(); ++i) store(i, value(graph_.outputs()[i].node));
    }

    // Offsets are the caller's: what they give outside the axis is cut off.
    void bound_by_offsets(AxisId segments, NodeId offsets, RowsLoop* loop) {
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

    // Whether a value differs between the lanes (or reduced rows) of a loop.
    bool per_lane(NodeId id) const {
        if (columnar(id)) return true;
        const std::vector<AxisId>& rows = kernel_.row_axes;
        return std::any_of(graph_.node(id).axes.begin(), graph_.node(id).axes.end(),
                           [&](AxisId axis) { return std::find(rows.begin(), rows.end(), axis) == rows.end(); });
    }

    // The value of a node where it is needed: computed in the current loop when it differs per lane, else before it.
    ValueId value(NodeId id) {
        const bool lane = per_lane(id);
        RJ_CHECK(!lane || loop_body_ != nullptr, "lower: {} is needed outside a loop", graph_.describe(id));
        std::map<NodeId, ValueId>& values = lane ? lane_values_ : row_values_;
        if (const auto found = values.find(id); found != values.end()) return found->second;
        if (const auto slot = slots_.find({loop_columns_, id}); lane && slot != slots_.end()) {
            Inst inst{.kind = InstKind::kKept, .dtype = graph_.node(id).dtype};
            inst.index = slot->second;
            return values[id] = emit(std::move(inst), graph_.node(id), "kept");
        }
        if (const auto turn = turns_.find(id); lane && turn != turns_.end())
            return values[id] = turned(turn->second, graph_.node(id));
        std::vector<Inst>* const outer = loop_body_;
        if (!lane) loop_body_ = nullptr;  // row values stand before the loop
        const ValueId result = compute(id);
        loop_body_ = outer;
        return values[id] = result;
    }

    // Another value's vector of the same thread: kept, or loaded beside it.
    ValueId turned(const Turn& turn, const Node& node) {
        const auto slot = slots_.find({loop_columns_, turn.own});
        Inst inst{.kind = InstKind::kKept, .dtype = node.dtype, .turn = static_cast<int>(turn.columns)};
        if (slot != slots_.end()) {
            inst.index = slot->second;
        } else {
            value(turn.own);
            inst.kind = InstKind::kLoad;
            inst.index = tensor_of_input_.at(turn.own);
            inst.coords = own_coords(graph_.node(turn.own).axes);
        }
        return emit(std::move(inst), node);
    }

    // Whether a mask holds everywhere: reverse mode spreads a value along axes by one.
    bool holds_everywhere(NodeId mask) const {
        const Node& node = graph_.node(mask);
        if (node.kind != NodeKind::kMap) return false;
        if (node.op == Op::kAnd) return holds_everywhere(node.args[0]) && holds_everywhere(node.args[1]);
        if (node.op != Op::kGe || !is_coordinate(node.args[0])) return false;
        const Node& least = graph_.node(node.args[1]);
        return least.kind == NodeKind::kConst && least.value <= 0;
    }

    // Along an axis, in any integer that has all of its places.
    bool is_coordinate(NodeId id) const {
        const Node& node = graph_.node(id);
        if (node.kind == NodeKind::kIota) return true;
        if (node.kind != NodeKind::kCast || (node.dtype != Dtype::kI32 && node.dtype != Dtype::kI64)) return false;
        const Node& iota = graph_.node(node.args[0]);
        return iota.kind == NodeKind::kIota && graph_.axis(iota.axis).extent != kRuntimeExtent;
    }

    ValueId compute(NodeId id) {
        const Node& node = graph_.node(id);
        Inst inst{.dtype = node.dtype};
        switch (node.kind) {
            case NodeKind::kInput: return load(id, own_coords(node.axes));
            case NodeKind::kIndex: {
                std::vector<Coord> coords;
                for (const Coord& coord : node.coords) {
                    coords.push_back(coord.substitute([](Axis axis) { return Coord(axis); },
                                                      [&](NodeId data) { return Coord::data_node(value(data)); }));
                }
                return load(node.args[0], std::move(coords), &node);
            }
            case NodeKind::kSearch:
                inst.kind = InstKind::kSearch;
                inst.index = tensor_of_input_.at(node.args[0]);
                inst.operands = {value(node.args[1])};
                return emit(std::move(inst), node, fmt::format("search in {}", graph_.node(node.args[0]).name));
            case NodeKind::kScalar:
                inst.kind = InstKind::kScalar;
                inst.index = scalar_of_node_.at(id);
                return emit(std::move(inst), node);
            case NodeKind::kConst:
                inst.kind = InstKind::kConst;
                inst.value = node.value;
                return emit(std::move(inst), node);
            case NodeKind::kIota:
                inst.kind = InstKind::kCoord;
                inst.axis = node.axis;
                return emit(std::move(inst), node, fmt::format("coordinate along {}", graph_.axis(node.axis).label()));
            case NodeKind::kExtent:
                inst.kind = InstKind::kExtent;
                inst.axis = node.axis;
                return emit(std::move(inst), node, fmt::format("extent of {}", graph_.axis(node.axis).label()));
            case NodeKind::kMap:
                if (node.op == Op::kSelect && holds_everywhere(node.args[0])) return value(node.args[1]);
                [[fallthrough]];
            case NodeKind::kCast:
                inst.kind = node.kind == NodeKind::kMap ? InstKind::kMap : InstKind::kCast;
                inst.op = node.op;
                for (const NodeId arg : node.args) inst.operands.push_back(value(arg));
                return emit(std::move(inst), node, expression(node));
            case NodeKind::kReduce:
            case NodeKind::kState:
            case NodeKind::kFix:
            case NodeKind::kPartialSum:
            case NodeKind::kMatmul: break;
        }
        RJ_CHECK(false, "lower: {} is used before the phase that computes it", graph_.describe(id));
    }

    static std::vector<Coord> own_coords(const std::vector<AxisId>& axes) {
        std::vector<Coord> coords;
        for (const AxisId axis : axes) coords.emplace_back(Axis{axis});
        return coords;
    }

    ValueId load(NodeId input, std::vector<Coord> coords, const Node* index = nullptr) {
        const Node& tensor = graph_.node(input);
        Inst inst{.kind = InstKind::kLoad, .dtype = tensor.dtype};
        inst.index = tensor_of_input_.at(input);
        inst.coords = std::move(coords);
        Node named = index != nullptr ? *index : tensor;
        if (index == nullptr || named.label.empty()) named.label = tensor.name + (index == nullptr ? "_value" : "_at");
        return emit(std::move(inst), named);
    }

    void store(std::size_t output, ValueId operand) {
        const OutputInfo& info = graph_.outputs()[output];
        if (info.slots >= 0) return add_to_part(output, operand);
        Inst inst{.kind = InstKind::kStore, .dtype = graph_.node(info.node).dtype, .operands = {operand}};
        inst.index = output_tensors_[output];
        inst.coords = own_coords(whole_axes(info));
        for (std::size_t i = 0; info.piece && i < inst.coords.size(); ++i) {
            if (info.piece->at[i] >= 0) inst.coords[i] = Coord(info.piece->at[i]);
        }
        inst.accumulate = info.accumulate;
        inst.comment = fmt::format("output {}", info.name);
        current().push_back(std::move(inst));
    }

    void keep(NodeId id) {
        const Node& node = graph_.node(id);
        const auto found = lane_values_.find(id);
        RJ_CHECK(found != lane_values_.end(), "lower: {} is to be kept but was not computed", graph_.describe(id));
        Inst inst{.kind = InstKind::kKeep, .dtype = node.dtype, .operands = {found->second}};
        inst.index = static_cast<int>(kernel_.slots.size());
        slots_[{loop_columns_, id}] = inst.index;
        current().push_back(std::move(inst));
        kernel_.slots.push_back({node.dtype, place_of(node), 0, unique_label(label_of(node, "kept") + "_kept")});
    }

    ValueId emit(Inst inst, const Node& node, std::string comment = {}) {
        inst.id = kernel_.value_count++;
        inst.label = unique_label(label_of(node, name(node.kind)));
        inst.comment = std::move(comment);
        value_labels_[inst.id] = inst.label;
        current().push_back(std::move(inst));
        return kernel_.value_count - 1;
    }

    // Where instructions go now: the open loop's body, or the kernel's own, wrapped.
    class Sink {
      public:
        Sink(std::vector<Inst>* loop, Block* body) : loop_(loop), body_(body) {}
        void push_back(Inst inst) const {
            if (loop_ != nullptr) {
                loop_->push_back(std::move(inst));
            } else {
                body_->push_back({std::move(inst)});
            }
        }

      private:
        std::vector<Inst>* loop_;
        Block* body_;
    };
    Sink current() { return {loop_body_, block_}; }

    // ---- names -----------------------------------------------------------------------------------------------------

    static std::string label_of(const Node& node, std::string_view fallback) {
        return node.label.empty() ? std::string(fallback) : node.label;
    }

    std::string unique_label(const std::string& wanted) {
        std::string label = is_reserved_word(wanted) ? wanted + "_" : wanted;
        // Counted on from the last: an unrolled kernel has thousands of values without a name of their own.
        for (int& suffix = next_suffix_.try_emplace(wanted, 2).first->second; !taken_labels_.insert(label).second;)
            label = fmt::format("{}_{}", wanted, suffix++);
        return label;
    }

    std::string describe_value(NodeId id) const {
        const auto& values = per_lane(id) ? lane_values_ : row_values_;
        const auto found = values.find(id);
        if (found == values.end()) return graph_.describe(id);
        const auto label = value_labels_.find(found->second);
        return label == value_labels_.end() ? graph_.describe(id) : label->second;
    }

    std::string expression(const Node& node) const {
        std::vector<std::string> operands;
        for (const NodeId arg : node.args) operands.push_back(describe_value(arg));
        if (node.kind == NodeKind::kCast) return fmt::format("cast({}, {})", operands[0], rowjit::name(node.dtype));
        return fmt::format("{}({})", info(node.op).name, fmt::join(operands, ", "));
    }

    // ---- shared memory ---------------------------------------------------------------------------------------------

    std::optional<Declined> lay_out_shared() {
        std::map<int, std::int64_t> elements;  // of each slot, tail included
        std::int64_t longest = 0;              // of all loops
        for (const Stmt& stmt : kernel_.body) {
            const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
            if (loop == nullptr) continue;
            const std::int64_t places = loop->iterations * schedule().threads_per_row * loop->vector;
            longest = std::max(longest, places);
            for (const Inst& inst : loop->body) {
                if (inst.kind == InstKind::kKeep) elements[inst.index] = places;
            }
        }
        std::int64_t kept_bytes = 0;  // on the CPU's stack, where each slot has room for the longest loop
        for (std::size_t i = 0; i < kernel_.slots.size(); ++i) {
            Slot& slot = kernel_.slots[i];
            kept_bytes += longest * static_cast<std::int64_t>(size_bytes(slot.dtype));
            if (slot.residency != Residency::kShared) continue;
            slot.shared_offset_bytes = kernel_.shared_bytes_per_row;
            const std::int64_t bytes =
                elements.at(static_cast<int>(i)) * static_cast<std::int64_t>(size_bytes(slot.dtype));
            kernel_.shared_bytes_per_row += (bytes + 15) / 16 * 16;
        }
        if (!target_.is_gpu() && kept_bytes > kMaxCpuKeptBytes) {
            return Declined{fmt::format("{} bytes of a row kept; the CPU keeps {}", kept_bytes, kMaxCpuKeptBytes)};
        }
        const std::int64_t bytes = kernel_.shared_bytes_per_row * schedule().rows_per_block;
        if (bytes > target_.shared_bytes_per_block && target_.is_gpu()) {
            return Declined{fmt::format("{} bytes of shared memory a block; {} has {}", bytes, target_.name,
                                        target_.shared_bytes_per_block)};
        }
        return std::nullopt;
    }

    const Group& group_;
    const std::shared_ptr<const GraphData> owned_graph_;
    const GraphData& graph_;
    const Target& target_;
    Kernel kernel_;
    std::map<NodeId, int> tensor_of_input_;
    std::map<NodeId, int> scalar_of_node_;
    std::vector<int> output_tensors_;
    std::map<NodeId, int> phase_;
    int phases_ = 1;
    std::vector<std::vector<LoopPlan>> loops_;  // by phase
    std::vector<std::vector<StepPlan>> steps_;  // by phase: they stand behind its loops
    struct OfStep {
        NodeId fix = -1;
        NodeId reduce = -1;
    };
    std::map<NodeId, OfStep> of_last_step_;  // reductions that the last step of a fixpoint has made
    std::map<NodeId, Turn> turns_;           // by vectors of a thread
    using Columns = std::pair<std::vector<AxisId>, ColumnLoop::Part>;
    std::map<std::pair<Columns, NodeId>, int> slots_;  // of values kept from loops over those columns
    Columns loop_columns_;                             // of the open loop
    std::map<NodeId, ValueId> row_values_;
    std::map<NodeId, ValueId> lane_values_;  // of the open loop
    std::map<ValueId, std::string> value_labels_;
    std::vector<Inst>* loop_body_ = nullptr;
    int serial_loops_ = 0;
    Block* block_ = &kernel_.body;                  // where statements go that are in no loop
    std::map<std::size_t, int> carried_of_output_;  // of sums over the rows in registers
    std::set<NodeId> sums_of_block_;                // sums over columns of which only the block's sum is wanted
    std::map<NodeId, bool> is_positive_;            // what find_positive said
    Reductions of_block_;                           // those that loops have accumulated
    std::set<std::string> taken_labels_;
    std::map<std::string, int> next_suffix_;
};

}  // namespace

bool is_special(Op op) { return (op >= Op::kSqrt && op <= Op::kCos) || op == Op::kDiv; }

std::ptrdiff_t all_reduces(const Kernel& kernel) {
    return std::count_if(kernel.body.begin(), kernel.body.end(), [](const Stmt& stmt) { return meets(stmt); });
}

Offer<Kernel> lower(const Group& group, const Schedule& schedule, const Target& target) {
    if (group.reduces_rows != (schedule.family == Family::kRowsReduction)) {
        return Declined{fmt::format("{}: the group {} over rows", name(schedule.family),
                                    group.reduces_rows ? "reduces" : "does not reduce")};
    }
    if (schedule.fetches_ahead() && (schedule.blocks_per_sm == 0 || !schedule.unrolls())) {
        return Declined{"rows are fetched ahead by blocks that stay for many rows and keep each in registers"};
    }
    if (schedule.stages > 0 && target.backend != Backend::kCuda)
        return Declined{fmt::format("{} has no asynchronous copies into shared memory", target.name)};
    if (schedule.skew && (schedule.blocks_per_sm == 0 || !schedule.unrolls()))
        return Declined{"rows are skewed by blocks that stay for many and keep each in registers"};
    // Of skewed rows one waits in its stage while the next is used.
    if (schedule.residency == Residency::kStages && schedule.stages < (schedule.skew ? 2 : 1))
        return Declined{fmt::format("{} stages do not keep a row", schedule.stages)};
    if (schedule.across && !group.reduces_rows)
        return Declined{"threads lie across rows only in a reduction over rows"};
    if (schedule.across && schedule.threads_per_row > target.warp_size)
        return Declined{fmt::format("{} threads on a row do not fold in a warp", schedule.threads_per_row)};
    if (target.is_gpu() && !fills_warps(schedule.threads_per_row, target.warp_size))
        return Declined{
            fmt::format("{} threads on a row are no whole warps of {}", schedule.threads_per_row, target.warp_size)};
    if (schedule.column_blocks > 1 && phase_count(*group.graph) > 1) {
        if (!target.clusters) return Declined{fmt::format("{} has no clusters of blocks to share a row", target.name)};
        const std::vector<NodeId> nodes = group.graph->live_nodes();
        if (schedule.skew && std::any_of(nodes.begin(), nodes.end(),
                                         [&](NodeId id) { return group.graph->node(id).kind == NodeKind::kFix; }))
            return Declined{"a row whose cluster meets in steps is not skewed"};
        // The states of the cluster's warps are written by the lanes of each, one to a block.
        if (schedule.family != Family::kRowReduction || schedule.rows_per_block > 1 ||
            schedule.threads_per_row < target.warp_size || schedule.column_blocks > kMostClusterBlocks ||
            !std::has_single_bit(static_cast<std::uint64_t>(schedule.column_blocks))) {
            return Declined{
                fmt::format("a cluster is 2, 4, 8 or {} blocks of whole warps on one row", kMostClusterBlocks)};
        }
    }
    const bool walks = schedule.ahead > 0;
    if (walks && (!target.is_gpu() || schedule.family != Family::kElementwise || schedule.blocks_per_sm == 0))
        return Declined{"rows are taken as they follow each other by a GPU's blocks that stay and reduce none"};
    if (walks && schedule.fetches_ahead()) return Declined{"rows that follow each other are loaded ahead as they are"};
    Offer<Kernel> kernel = Lowering(group, schedule, target).run();
    if (kernel && walks) return walk_rows(std::move(*kernel), target);
    if (kernel && schedule.skew && (kernel->cluster_blocks() == 1 || all_reduces(*kernel) != 1))
        return Declined{"rows are skewed where a cluster of blocks reduces each once"};
    return kernel;
}

std::set<NodeId> sums_of_block(const GraphData& group) {
    std::map<NodeId, int> uses;
    std::map<NodeId, int> reductions;  // of a value: they are one accumulator, of the row or of the block
    for (const NodeId id : group.live_nodes()) {
        const Node& node = group.node(id);
        for (const NodeId arg : node.args) ++uses[arg];
        if (node.kind == NodeKind::kReduce) ++reductions[node.args[0]];
    }
    for (const OutputInfo& output : group.outputs()) uses[output.node] += output.slots < 0 ? 1 : 0;
    std::set<NodeId> sums;
    for (const OutputInfo& output : group.outputs()) {
        const Node& node = group.node(output.node);
        const bool is_sum = node.kind == NodeKind::kReduce && node.monoid == Monoid::kSum && node.state < 0;
        if (output.slots < 0 || !is_sum || node.dtype != output.parts_dtype) continue;
        const bool is_number = group.column_axes(node).empty();
        if (is_number && uses[output.node] == 0 && reductions[node.args[0]] == 1) sums.insert(output.node);
    }
    return sums;
}

int phase_count(const GraphData& group) {
    std::map<NodeId, int> phase;
    int count = 1;
    for (const NodeId id : group.live_nodes()) {
        const Node& node = group.node(id);
        for (const NodeId arg : node.args) phase[id] = std::max(phase[id], phase[arg]);
        if (node.kind == NodeKind::kReduce && !group.axis(node.reduced[0]).is_row) ++phase[id];
        count = std::max(count, phase[id] + 1);
    }
    return count;
}

}  // namespace rowjit
