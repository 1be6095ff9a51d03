// What a schedule asks of a group, the kernel's tensors, arguments and grid, and its shared memory. The rest of
// Lowering is in lower_phases.cpp (which loops a row has), lower_keeps.cpp (what loops keep for each other),
// lower_loops.cpp (the statements), lower_sums.cpp (accumulators, sums over rows) and lower_values.cpp (a value where
// it is needed).
#include "compiler/schedule/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "compiler/passes/passes.h"
#include "compiler/plan/differences.h"
#include "compiler/plan/digit_orders.h"
#include "compiler/plan/online.h"
#include "compiler/plan/partial_reductions.h"
#include "compiler/plan/strides.h"
#include "compiler/schedule/lowering.h"
#include "compiler/schedule/walk.h"

namespace rowjit {
namespace lowering {

namespace {

// On the CPU a sum over rows is taken in this many parts whatever the number of threads, so that threads do not change
// its bits; enough for the threads of a large server.
constexpr std::int64_t kCpuParts = 64;

}  // namespace

Lowering::Lowering(const Group& group, const Schedule& schedule, const Target& target)
    : group_(group),
      owned_graph_(carry_lost(schedule.online ? rewrite_online(group.graph, target) : group.graph)),
      graph_(*owned_graph_),
      target_(target) {
    kernel_.name = group.name;
    kernel_.schedule = schedule;
    kernel_.axes = graph_.axes();
    kernel_.row_axes = group.row_axes;
    kernel_.in_tiles = schedule.across && !target.is_gpu() && rows_are_tiles(group);
}

Offer<Kernel> Lowering::run() {
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

// An output stored over an input must find every element read by the lane that overwrites it.
std::optional<Declined> Lowering::alias_conflict() const {
    for (const OutputInfo& output : graph_.outputs()) {
        if (output.alias.empty()) continue;
        for (const NodeId id : graph_.live_nodes()) {
            const Node& node = graph_.node(id);
            bool elsewhere = false;
            for (std::size_t i = 0; i < node.args.size(); ++i)
                elsewhere |= node.reads_from_memory(i) && graph_.node(node.args[i]).name == output.alias;
            if (!elsewhere) continue;
            return Declined{fmt::format("output '{}' overwrites input '{}', which is also read at other coordinates",
                                        output.name, output.alias)};
        }
        const NodeId input = *graph_.find_input(output.alias);
        if (graph_.node(input).axes != graph_.node(output.node).axes) {
            return Declined{fmt::format("output '{}' overwrites input '{}' of other axes", output.name, output.alias)};
        }
    }
    return std::nullopt;
}

// How many blocks there may be. One that sums over rows has a part of the sum for each, so there must be few.
std::optional<Declined> Lowering::bound_grid() {
    // Of a thread, whose sum in f32 of so many rows, one after the other, is as exact as eager's.
    constexpr std::int64_t kRowsOfSeen = 64;
    for (const OutputInfo& output : graph_.outputs()) {
        if (output.slots < 0) continue;
        kernel_.slots_axis = output.slots;
        kernel_.outer = output.outer;
        if (!target_.is_gpu()) continue;
        kernel_.apart = output.apart;
        const bool is_seen = output.parts_monoid == Monoid::kSum && !output.parts_rounded;
        if (is_seen && !output.outer.empty()) kernel_.most_rows_of_part = kRowsOfSeen * kernel_.rows_of_place();
    }
    const bool sums = kernel_.slots_axis >= 0;
    // Blocks that share a row are so many of those on a multiprocessor, in a cluster or not.
    const std::int64_t staying = std::int64_t{schedule().blocks_per_sm} * target_.sm_count;
    kernel_.most_row_blocks = staying > 0 ? std::max<std::int64_t>(1, staying / schedule().column_blocks) : 0;
    if (!target_.is_gpu()) kernel_.most_row_blocks = sums ? kCpuParts : 0;
    if (sums && kernel_.most_row_blocks == 0) {
        return Declined{"a sum over rows needs a bounded number of blocks"};
    }
    const bool has_pairs = std::ranges::any_of(graph_.outputs(), [](const OutputInfo& output) {
        return output.slots >= 0 && components(output.parts_monoid) > 1;
    });
    if (has_pairs && !sums_in_registers()) return Declined{"what is carried together over rows is in registers"};
    if (sums && target_.is_gpu() && schedule().rows_per_block > 1 && !sums_in_registers()) {
        return Declined{fmt::format("{} rows of a block would add to one place in memory", schedule().rows_per_block)};
    }
    if (schedule().skew && !kernel_.outer.empty())
        return Declined{"rows of which each position along other axes has sums of its own are not skewed"};
    if (kernel_.apart.empty()) return std::nullopt;
    if (!sums_in_registers()) return Declined{"sums of rows apart are a thread's own, in registers"};
    const std::int64_t rows = schedule().rows_per_block;
    if (kernel_.positions_apart() % rows != 0 && rows % kernel_.positions_apart() != 0) {
        return Declined{fmt::format("{} rows of a block are not at the same of {} positions in each", rows,
                                    kernel_.positions_apart())};
    }
    return std::nullopt;
}

// Of columns, where loops are unrolled; numbers of a row are added up anywhere.
bool Lowering::sums_in_registers() const {
    return target_.is_gpu() && (schedule().unrolls() || std::ranges::none_of(graph_.outputs(), [&](const auto& output) {
                                    return output.slots >= 0 && columnar(output.node);
                                }));
}

void Lowering::declare_tensors() {
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
        tensor.promoted_strides = output.promoted_strides;
        if (output.slots >= 0) {
            tensor.dtype = output.parts_dtype;
            tensor.axes = parts_axes(output);
            tensor.read = !sums_in_registers();
            runtime_axes.insert(output.slots);
        }
        if (tensor.column_strides.empty()) tensor.column_strides = contiguous_strides(tensor.axes);
        if (!output.alias.empty()) {
            tensor.aliased = true;
            kernel_.tensors[static_cast<std::size_t>(tensor_of_input_.at(*graph_.find_input(output.alias)))].aliased =
                true;
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
            kernel_.arguments.push_back(
                {Kind::kStride, index, axis, fmt::format("{}_stride_{}", kernel_.tensors[i].name, axis_name(axis))});
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

std::vector<AxisId> Lowering::parts_axes(const OutputInfo& output) const {
    std::vector<AxisId> axes = output.outer;
    axes.push_back(output.slots);
    axes.insert(axes.end(), output.apart.begin(), output.apart.end());
    const std::vector<AxisId> columns = graph_.column_axes(graph_.node(output.node));
    axes.insert(axes.end(), columns.begin(), columns.end());
    return axes;
}

std::string Lowering::axis_name(AxisId axis) const {
    const AxisInfo& info = graph_.axis(axis);
    return info.name.empty() ? fmt::format("c{}", info.extent) : info.name;
}

// The tensor that an earlier output is a piece of as well; -1 for none.
int Lowering::tensor_of_piece(const OutputInfo& output) const {
    for (std::size_t i = 0; output.piece && i < output_tensors_.size(); ++i) {
        if (graph_.outputs()[i].tensor() == output.tensor()) return output_tensors_[i];
    }
    return -1;
}

std::vector<std::int64_t> Lowering::contiguous_strides(const std::vector<AxisId>& axes) const {
    const std::vector<AxisId> columns = graph_.column_axes(Node{.axes = axes});
    std::vector<std::int64_t> strides(columns.size(), 1);
    for (std::size_t i = columns.size(); i-- > 1;) strides[i - 1] = strides[i] * graph_.axis(columns[i]).extent;
    return strides;
}

std::optional<Declined> Lowering::lay_out_shared() {
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
        const std::int64_t bytes = elements.at(static_cast<int>(i)) * static_cast<std::int64_t>(size_bytes(slot.dtype));
        kernel_.shared_bytes_per_row += (bytes + 15) / 16 * 16;
    }
    if (!target_.is_gpu() && schedule().across) kept_bytes *= lanes_across(kernel_);
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

}  // namespace lowering

namespace {

// Why the rows of a block that are numbers alone cannot be lanes of a CPU's vectors.
std::optional<Declined> across_conflict_of_numbers(const Group& group, const Target& target) {
    constexpr std::int64_t kLeastLanes = 4;
    const GraphData& graph = *group.graph;
    if (target.is_gpu()) return Declined{"rows lie side by side where they are reduced"};
    for (const NodeId id : graph.live_nodes()) {
        if (!graph.column_axes(graph.node(id)).empty())
            return Declined{"rows of columns lie side by side where they are reduced"};
    }
    if (makes_parts(graph)) return Declined{"rows that are a vector's lanes are not summed over"};
    const std::int64_t neighbours = group.row_axes.empty() ? 1 : graph.axis(group.row_axes.back()).extent;
    if (neighbours != kRuntimeExtent && neighbours < kLeastLanes)
        return Declined{fmt::format("{} neighbours are no vector", neighbours)};
    return std::nullopt;
}

// Of all tensors' tiles: half a first-level cache.
constexpr std::int64_t kMostTileBytes = std::int64_t{24} << 10;

// Why narrow rows cannot be the lanes of a CPU's vectors.
std::optional<Declined> across_conflict_of_narrow(const Group& group, const Schedule& schedule) {
    const GraphData& graph = *group.graph;
    if (group.row_axes.empty()) return Declined{"one row has no neighbours"};
    if (schedule.online) return Declined{"rows that are a vector's lanes carry no pairs"};
    if (schedule.vector > 1 || schedule.peel || schedule.column_blocks > 1)
        return Declined{"rows that are a vector's lanes have their columns one by one"};
    if (makes_parts(graph) ? schedule.rows_per_block > 1 : schedule.rows_per_block % kMostLanesAcross != 0) {
        return Declined{fmt::format("{} rows are no block of {}", schedule.rows_per_block,
                                    makes_parts(graph) ? "those that are summed over" : "whole vectors")};
    }
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        if (node.kind == NodeKind::kFix || node.kind == NodeKind::kSumWhere || node.monoid == Monoid::kGreatest)
            return Declined{"what takes steps, a row's greatest or places is no vector of rows"};
    }
    return std::nullopt;
}

// Why what a kernel has of narrow rows is too much for the lanes of a CPU's vectors.
std::optional<Declined> tiles_conflict(const Kernel& kernel) {
    bool apart = false;
    each_inst(kernel, [&](const Inst& inst) {
        if (inst.kind != InstKind::kStore || !inst.accumulate || kernel.slots_axis < 0) return;
        const KernelTensor& tensor = kernel.tensors[static_cast<std::size_t>(inst.index)];
        const auto is_walked = [&](AxisId axis) { return contains(kernel.inner_axes(), axis); };
        apart = apart || std::ranges::any_of(tensor.axes, is_walked);
    });
    if (apart) return Declined{"the lanes of a vector add to one place, not to those that each row has"};
    std::int64_t columns = 0;
    for (const KernelTensor& tensor : kernel.tensors) {
        const bool of_rows =
            std::ranges::any_of(tensor.axes, [&](AxisId axis) { return contains(kernel.row_axes, axis); });
        if (!of_rows) continue;
        const std::int64_t row = elements_of_row(kernel, tensor);
        if (row > kMostTileColumns)
            return Declined{fmt::format("a row of {} columns is longer than the {} of a tile", row, kMostTileColumns)};
        columns += row;
    }
    const std::int64_t bytes = columns * lanes_across(kernel) * static_cast<std::int64_t>(size_bytes(Dtype::kF32));
    if (bytes <= kMostTileBytes) return std::nullopt;
    return Declined{
        fmt::format("{} rows of {} columns side by side are {} bytes; the first-level cache has room for {}",
                    lanes_across(kernel), columns, bytes, kMostTileBytes)};
}

// Why the rows of a block cannot lie beside each other, their columns apart.
std::optional<Declined> across_conflict(const Group& group, const Schedule& schedule, const Target& target) {
    if (!target.is_gpu() && rows_are_tiles(group)) return across_conflict_of_narrow(group, schedule);
    if (schedule.family == Family::kElementwise) return across_conflict_of_numbers(group, target);
    if (schedule.family != Family::kRowReduction) return Declined{"rows lie side by side where they are reduced"};
    if (!columns_lie_apart(*group.graph, group.row_axes))
        return Declined{"rows are not known to lie side by side, and their columns apart"};
    if (!target.is_gpu()) {
        if (schedule.online || makes_parts(*group.graph))
            return Declined{"rows that are a vector's lanes carry no pairs, and are not summed over"};
        const std::int64_t neighbours = group.graph->axis(group.row_axes.back()).extent;
        const bool is_part = neighbours % schedule.rows_per_block == 0;
        if (schedule.rows_per_block % (is_part ? kMostLanesAcross : neighbours) != 0 &&
            schedule.rows_per_block != neighbours)
            return Declined{fmt::format("a block of {} rows is no number of runs of {}, nor a part of one in vectors",
                                        schedule.rows_per_block, neighbours)};
    }
    if (schedule.vector > 1 || schedule.peel || schedule.column_blocks > 1)
        return Declined{"rows that lie side by side have their columns one by one, and all in a block"};
    if (schedule.blocks_per_sm > 0) return Declined{"rows that lie side by side are in blocks that end"};
    for (const NodeId id : group.graph->live_nodes()) {
        const Node& node = group.graph->node(id);
        if (node.kind == NodeKind::kFix || node.kind == NodeKind::kSumWhere || node.monoid == Monoid::kGreatest)
            return Declined{"threads that meet in steps, over a row's greatest or over places do not lie across rows"};
    }
    return std::nullopt;
}

}  // namespace

bool rows_are_tiles(const Group& group) {
    const GraphData& graph = *group.graph;
    const auto has_columns = [&](NodeId id) { return !graph.column_axes(graph.node(id)).empty(); };
    return !group.reduces_rows && !columns_lie_apart(graph, group.row_axes) &&
           std::ranges::any_of(graph.live_nodes(), has_columns);
}

bool is_special(Op op) { return (op >= Op::kSqrt && op <= Op::kCos) || op == Op::kDiv; }

// Why a thread's segments are no run of positions: they are the outermost of its rows' axes, and what is added of a
// position is the same whichever segment it is of.
std::optional<Declined> run_conflict(const Kernel& kernel) {
    std::vector<const RowsLoop*> loops;
    for (const Stmt& stmt : kernel.body) {
        if (const auto* loop = std::get_if<RowsLoop>(&stmt.node)) loops.push_back(loop);
    }
    if (loops.size() != 1 || loops[0]->segments < 0 || !kernel.outer.empty() ||
        kernel.inner_axes().front() != loops[0]->segments)
        return Declined{"segments follow each other along the outermost axis of the rows that are sums over them"};
    const auto simple = [](const Accumulator& sum) {
        return sum.monoid == Monoid::kSum || sum.monoid == Monoid::kMax || sum.monoid == Monoid::kMin;
    };
    if (!std::ranges::all_of(kernel.accumulators, simple))
        return Declined{"a run's segments are sums, maxima or minima"};
    const std::set<ValueId> along = kernel.values_along(loops[0]->segments);
    for (const Inst& inst : loops[0]->body) {
        bool differs = along.contains(inst.id);
        each_use(inst, [&](ValueId value) { differs = differs || along.contains(value); });
        if (differs) return Declined{"what is added of a position of a run is known by the position alone"};
    }
    return std::nullopt;
}

std::ptrdiff_t all_reduces(const Kernel& kernel) {
    return std::count_if(kernel.body.begin(), kernel.body.end(), [](const Stmt& stmt) { return meets(stmt); });
}

Offer<Kernel> lower(const Group& group, const Schedule& schedule, const Target& target) {
    if (orders_ids(*group.graph) != (schedule.family == Family::kOrder))
        return Declined{fmt::format("{}: ids are put in order by kernels of their own", name(schedule.family))};
    if (schedule.family == Family::kOrder) return lower_order(group, schedule, target);
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
    if (schedule.across && !group.reduces_rows) {
        if (auto declined = across_conflict(group, schedule, target)) return *declined;
    }
    if (schedule.across && schedule.threads_per_row > target.warp_size)
        return Declined{fmt::format("{} threads on a row do not fold in a warp", schedule.threads_per_row)};
    const bool fits = fills_warps(schedule.threads_per_row, target.warp_size) ||
                      (may_share_row(schedule, target.warp_size) && !makes_parts(*group.graph));
    if (target.is_gpu() && !fits)
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
    Offer<Kernel> kernel = lowering::Lowering(group, schedule, target).run();
    if (kernel && kernel->in_tiles) {
        if (auto declined = tiles_conflict(*kernel)) return *declined;
    }
    if (kernel && walks) return walk_rows(std::move(*kernel), target);
    if (kernel && schedule.run > 1) {
        if (auto declined = run_conflict(*kernel)) return *declined;
    }
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
        const bool is_alike = node.kind == NodeKind::kReduce && node.monoid == output.parts_monoid && node.state < 0;
        if (output.slots < 0 || !is_alike || node.dtype != output.parts_dtype) continue;
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
