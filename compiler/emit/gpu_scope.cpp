#include "compiler/emit/gpu_scope.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/dtype.h"
#include "base/fail.h"
#include "compiler/passes/passes.h"
#include "dsl/moments.h"

namespace rowjit {
namespace {

std::string_view state_template(const Accumulator& accumulator) {
    const bool compensated = accumulator.compensated;
    switch (accumulator.monoid) {
        case Monoid::kSum: return compensated ? "rj_compensated_sum" : "rj_sum";
        case Monoid::kMax: return "rj_maximum";
        case Monoid::kMin: return "rj_minimum";
        case Monoid::kMaxSumExp: return compensated ? "rj_compensated_max_sum_exp" : "rj_max_sum_exp";
        case Monoid::kWelford: return compensated ? "rj_compensated_welford" : "rj_welford";
        case Monoid::kMoments: return "rj_moments_of_rows";
        case Monoid::kDivergence: return compensated ? "rj_compensated_divergence" : "rj_divergence";
        case Monoid::kCrossEntropy: return compensated ? "rj_compensated_cross_entropy" : "rj_cross_entropy";
        case Monoid::kWeighted: return compensated ? "rj_compensated_weighted" : "rj_weighted";
        case Monoid::kEntropy: return compensated ? "rj_compensated_entropy" : "rj_entropy";
        case Monoid::kGreatest: return "rj_greatest";
        case Monoid::kExactSum: return compensated ? "rj_exact_sum" : "rj_exact_narrow_sum";
    }
    RJ_CHECK(false, "emit gpu: monoid {}", static_cast<int>(accumulator.monoid));
}

std::string_view carried_type(const Carried& carried) {
    if (carried.monoid == Monoid::kMoments) return "rj_deviations_of_rows";
    if (!carried.is_pair()) return gpu_value_type(carried.dtype);
    return carried.compensated ? "rj_rescaled_of_rows<rj_compensated>" : "rj_rescaled_of_rows<rj_plain>";
}

void refuse_f64(const Kernel& kernel, const Target& target) {
    const auto refuse = [&](Dtype dtype, const std::string& what) {
        if (dtype != Dtype::kF64) return;
        fail(ErrorCode::kUnsupported, "kernel {}: '{}' is f64, which {} kernels do not compute in; cast it to f32",
             kernel.name, what, name(target.backend));
    };
    for (const KernelTensor& tensor : kernel.tensors) refuse(tensor.dtype, tensor.name);
    for (const KernelScalar& scalar : kernel.scalars) refuse(scalar.dtype, scalar.name);
    for (const Accumulator& accumulator : kernel.accumulators) refuse(accumulator.dtype, accumulator.label);
    each_inst(kernel, [&](const Inst& inst) { refuse(inst.dtype, inst.label); });
}

}  // namespace

bool GpuLoop::varies(const Coord& coord) const {
    const std::vector<Axis> mentioned = coord.axes();
    const std::vector<std::int32_t> data = coord.data_nodes();
    return std::any_of(mentioned.begin(), mentioned.end(), [&](Axis axis) { return axes.contains(axis.id); }) ||
           std::any_of(data.begin(), data.end(), [&](std::int32_t id) { return values.contains(id); });
}

GpuScope::GpuScope(const Kernel& kernel, const Target& target)
    : kernel_(kernel),
      target_(target),
      dtypes_(static_cast<std::size_t>(kernel.value_count), Dtype::kF32),
      text_(static_cast<std::size_t>(kernel.value_count)) {
    refuse_f64(kernel, target);
    find_uses();
}

// A narrow value that is only stored or kept in its own format need not be rounded before: packing rounds it. Nor one
// that is rounded in its pair.
void GpuScope::find_uses() {
    std::vector<ValueId> in_pairs;
    each_inst(kernel_, [&](const Inst& inst) {
        if (inst.id >= 0) dtypes_[static_cast<std::size_t>(inst.id)] = inst.dtype;
        if (inst.packing == Packing::kRounded) in_pairs.push_back(inst.id);
        for (const ValueId operand : inst.operands) {
            const bool stored =
                inst.kind == InstKind::kStore && !inst.accumulate && tensor(inst).dtype == dtype(operand);
            const bool kept = inst.kind == InstKind::kKeep && slot(inst).dtype == dtype(operand);
            if (!stored && !kept) rounded_.insert(operand);
        }
        for (const Coord& coord : inst.coords) {
            for (const Axis axis : coord.axes()) axes_used_.insert(axis.id);
        }
        if (inst.kind == InstKind::kCoord) axes_used_.insert(inst.axis);
        if (inst.kind == InstKind::kSumWhere) {
            for (const int tensor : {inst.index, inst.places}) {
                const std::vector<AxisId>& axes = kernel_.tensors[static_cast<std::size_t>(tensor)].axes;
                axes_used_.insert(axes.begin(), axes.end());
            }
        }
        note_near_row(inst);
    });
    for (const ValueId value : in_pairs) rounded_.erase(value);
    Dtype steps = Dtype::kF32;
    for (const Stmt& stmt : kernel_.body) {
        if (const auto* open = std::get_if<OpenSteps>(&stmt.node)) {
            steps = dtypes_[static_cast<std::size_t>(open->state)] = open->dtype;
            rounded_.insert(open->start);
        }
        if (const auto* close = std::get_if<CloseSteps>(&stmt.node)) {
            dtypes_[static_cast<std::size_t>(close->result)] = steps;
            rounded_.insert(close->next);
            for (const CloseSteps::OfLast& last : close->of_last) {
                dtypes_[static_cast<std::size_t>(last.result)] = last.dtype;
                rounded_.insert(last.value);
            }
        }
        if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) note_results(*reduce);
    }
    for (const Stmt& stmt : kernel_.after) {
        if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) note_results(*reduce);
    }
}

// Where blocks take rows one after the other, the coordinates of rows that are a constant number away from each. A
// pointer to such a row is what it was of the row before and a stride, which compilers make it where nothing chooses
// between it and another: eight instructions of each access and row.
void GpuScope::note_near_row(const Inst& inst) {
    const auto is_near = [&](ValueId value) { return near_rows_.contains(value); };
    const bool moved =
        inst.kind == InstKind::kMap && inst.op == Op::kAdd && std::ranges::any_of(inst.operands, is_near);
    const bool here = kernel_.walk && inst.kind == InstKind::kCoord && inst.axis == kernel_.walk->axis;
    if (inst.dtype == Dtype::kI64 && (here || moved)) near_rows_.insert(inst.id);
}

bool GpuScope::is_near_row(const Coord& coord) const {
    return coord.kind() == Coord::Kind::kData && near_rows_.contains(coord.data());
}

void GpuScope::note_results(const AllReduce& reduce) {
    std::size_t result = 0;
    for (const int index : reduce.accumulators) {
        const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
        for (int k = 0; k < accumulator.components(); ++k)
            dtypes_[static_cast<std::size_t>(reduce.results[result++])] = accumulator.result();
    }
}

// ---- lookups --------------------------------------------------------------------------------------------------------

const KernelTensor& GpuScope::tensor(const Inst& inst) const {
    return kernel_.tensors[static_cast<std::size_t>(inst.index)];
}

const Slot& GpuScope::slot(const Inst& inst) const { return kernel_.slots[static_cast<std::size_t>(inst.index)]; }

const Accumulator& GpuScope::accumulator(const Inst& inst) const {
    return kernel_.accumulators[static_cast<std::size_t>(inst.index)];
}

const std::string& GpuScope::argument(KernelArgument::Kind kind, int index, AxisId axis) const {
    using Kind = KernelArgument::Kind;
    for (std::size_t i = 0; i < kernel_.arguments.size(); ++i) {
        const KernelArgument& argument = kernel_.arguments[i];
        const bool same_axis = argument.axis == axis || kind == Kind::kPointer || kind == Kind::kScalar;
        const bool same_index = argument.index == index || kind == Kind::kExtent;
        if (argument.kind == kind && same_axis && same_index) return parameters_[i];
    }
    RJ_CHECK(false, "emit gpu: {}: no argument of kind {} for {} along axis {}", kernel_.name, static_cast<int>(kind),
             index, axis);
}

std::string GpuScope::extent(AxisId axis) const {
    const std::int64_t known = kernel_.axis(axis).extent;
    return known == kRuntimeExtent ? argument(KernelArgument::Kind::kExtent, -1, axis) : std::to_string(known);
}

std::string GpuScope::positions(const std::vector<AxisId>& axes) const {
    std::vector<std::string> extents;
    for (const AxisId axis : axes) extents.push_back(extent(axis));
    return extents.empty() ? "1" : gpu_joined(extents, " * ");
}

std::string GpuScope::axis_list(const std::vector<AxisId>& axes) const {
    std::vector<std::string> labels;
    for (const AxisId axis : axes) labels.push_back(kernel_.axis(axis).label());
    return gpu_joined(labels, ", ");
}

// ---- declarations ---------------------------------------------------------------------------------------------------

std::vector<std::string> GpuScope::declare_parameters() {
    std::vector<std::string> declarations;
    for (const KernelArgument& argument : kernel_.arguments) {
        parameters_.push_back(names_.fresh(argument.name));
        declarations.push_back(parameter_type(argument) + " " + parameters_.back());
    }
    return declarations;
}

std::string GpuScope::parameter_type(const KernelArgument& argument) const {
    switch (argument.kind) {
        case KernelArgument::Kind::kStride:
        case KernelArgument::Kind::kExtent:
        case KernelArgument::Kind::kSide: return "long long";
        case KernelArgument::Kind::kMatrix: return "RJ_TENSOR_MAP";
        case KernelArgument::Kind::kScalar:
            return std::string(gpu_value_type(kernel_.scalars[static_cast<std::size_t>(argument.index)].dtype));
        case KernelArgument::Kind::kPointer: break;
    }
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(argument.index)];
    const bool alone = tensor.written ? !tensor.aliased : kernel_.is_read_only(tensor);
    return fmt::format("{}{}*{}", tensor.written ? "" : "const ", gpu_storage_type(tensor.dtype),
                       alone ? " RJ_RESTRICT" : "");
}

void GpuScope::declare_states(bool of_block) {
    states_.resize(kernel_.accumulators.size());
    for (std::size_t i = 0; i < states_.size(); ++i) {
        if (kernel_.accumulators[i].of_block != of_block) continue;
        states_[i] = names_.fresh(kernel_.accumulators[i].label);
        out_.line(fmt::format("{} {}{};", state_type(static_cast<int>(i)), states_[i], all_lanes()),
                  of_block ? "of all rows of the block" : "");
    }
}

void GpuScope::reset_states() {
    for (std::size_t i = 0; i < states_.size(); ++i) {
        const auto index = static_cast<int>(i);
        each_lane(fmt::format("{} = {}();", lane_state(index, "l"), state_type(index)));
    }
}

std::string GpuScope::all_lanes() const {
    return kernel_.lanes_axis < 0 ? "" : fmt::format("[{}]", kernel_.row_lanes());
}

std::string GpuScope::lane_state(int accumulator, std::string_view lane) const {
    return kernel_.lanes_axis < 0 ? state(accumulator) : fmt::format("{}[{}]", state(accumulator), lane);
}

void GpuScope::each_lane(const std::string& line) {
    if (kernel_.lanes_axis < 0) return out_.line(line);
    out_.line("#pragma unroll");
    out_.line(fmt::format("for (int l = 0; l < {}; ++l) {}", kernel_.row_lanes(), line));
}

std::string GpuScope::state_type(int index) const {
    const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
    if (accumulator.monoid == Monoid::kGreatest && threads() < target_.warp_size)
        return fmt::format("rj_few_greatest<{}, {}>", accumulator.greatest, accumulator.narrow);
    if (accumulator.monoid == Monoid::kGreatest)
        return fmt::format("{}<{}>", state_template(accumulator), accumulator.greatest);
    if (accumulator.monoid == Monoid::kMoments) return std::string(state_template(accumulator));
    return fmt::format("{}<{}>", state_template(accumulator), gpu_value_type(accumulator.dtype));
}

void GpuScope::declare_carried() {
    for (std::size_t i = 0; i < kernel_.carried.size(); ++i) {
        const Carried& carried = kernel_.carried[i];
        carried_.push_back(names_.fresh(carried.label));
        const bool sums = carried.monoid == Monoid::kSum;
        out_.line(fmt::format("{} {}[{}]{};", carried_type(carried), carried_.back(),
                              carried_lanes(kernel_, static_cast<int>(i)), sums ? " = {}" : ""),
                  "of all rows of the block");
        const bool counts = carried.monoid == Monoid::kMoments;
        counted_.push_back(counts ? names_.fresh(carried_.back() + "_rows") : "");
        if (counts) out_.line(fmt::format("rj_counted_rows {};", counted_.back()));
        if (!sums && !carried.is_pair()) {
            const std::string start = gpu_literal(carried.dtype, neutral(operation(carried.monoid)));
            out_.line(fmt::format("rj_fill({}, {});", carried_.back(), start));
        }
    }
}

std::string row_step(const Kernel& kernel) { return kernel.outer.empty() ? grid_step(kernel) : "part_blocks"; }

std::string grid_step(const Kernel& kernel) {
    std::string step = fmt::format("rj_grid({})", kernel.block_threads());
    if (kernel.schedule.column_blocks > 1) step += fmt::format(" / {}", kernel.schedule.column_blocks);
    return step;
}

void GpuScope::fetch_ahead() {
    const int stages = kernel_.schedule.stages;
    if (stages == 0 && fetches_always()) return fetch_always(block_ahead());
    if (refills_.empty()) {
        fetch(block_ahead(), "ahead");
    } else if (leaves_rest_) {
        out_.line("if (comes) fetch_rest(coming, stage);");
    }
    if (stages == 0) return;
    out_.line("rj_copies_issued();");
    if (stages == 1) return;
    out_.line(fmt::format("stage = {};", next_stage()));
}

std::string GpuScope::block_ahead() const {
    const int stages = kernel_.schedule.stages;
    const std::string step = row_step(kernel_);
    const std::string rows_ahead = stages > 1 ? fmt::format("{} * {}", stages, step) : step;
    return fmt::format("{} + {}", rows() == 1 ? "row" : "row_block", rows_ahead);
}

void GpuScope::declare_coming() {
    if (refills_.empty()) return;
    const RowAhead ahead = row_ahead(block_ahead(), "ahead");
    out_.line(fmt::format("const bool comes = {};", ahead.condition), "a row to this one's place");
    out_.line(fmt::format("const long long coming = {};", ahead.row));
}

void GpuScope::refill(const ColumnLoop& loop, const std::string& iteration, const std::vector<std::string>& read) {
    out_.line(
        fmt::format("if (comes) {}(coming, stage, {}, {});", refills_.at(&loop), iteration, fmt::join(read, ", ")));
}

// Under a condition the loads are a block of their own, which ptxas puts behind all that needs nothing of it, up to
// where threads meet: dynamic_tanh's backward fetched the next row when it had stored the one before, of 4096 f32
// columns at 81 % of copy where it is at 87 now, a gated norm's of 512 bf16 columns at 83 and 87; others of one block a
// row are up to 2 % faster. Clusters of four and more lose by it: rms_norm's backward of 16384 f32 columns 90 and 60
// (H200).
bool GpuScope::fetches_always() const {
    return kernel_.schedule.column_blocks == 1 || std::ranges::none_of(kernel_.body, meets);
}

// A row that exists, where there is no next one.
void GpuScope::fetch_always(const std::string& block) {
    if (rows() == 1) {
        out_.line(fmt::format("fetch({0} < rows ? {0} : row);", block));
        return;
    }
    out_.line(fmt::format("const long long ahead = ({}) * {} + row_in_block;", block, rows()));
    out_.line("fetch(ahead < rows ? ahead : rows - 1);");
}

std::string GpuScope::next_stage() const {
    return fmt::format("stage == {} ? {} : stage + {}", stage_begin(kernel_.schedule.stages - 1), stage_begin(0),
                       kernel_.stage_bytes);
}

void GpuScope::fetch(const std::string& block, std::string_view row) {
    const std::string_view to = kernel_.schedule.stages > 0 ? ", stage" : "";
    const RowAhead ahead = row_ahead(block, row);
    out_.line(fmt::format("if ({}) fetch({}{});", ahead.condition, ahead.row, to));
}

GpuScope::RowAhead GpuScope::row_ahead(const std::string& block, std::string_view name) {
    if (rows() == 1) return {fmt::format("{} < rows", block), block};
    out_.line(fmt::format("const long long {} = ({}) * {} + row_in_block;", name, block, rows()));
    return {fmt::format("{} - row_in_block < rows", name), fmt::format("{0} < rows ? {0} : rows - 1", name)};
}

std::int64_t GpuScope::stage_begin(int stage) const {
    return kernel_.stages_offset_bytes + stage * kernel_.stage_bytes;
}

std::string GpuScope::staged(std::int64_t offset_bytes, std::string_view iteration, std::int64_t bytes) const {
    std::string place = "rj_thread()";
    if (!iteration.empty()) place = fmt::format("({} * {} + {})", iteration, kernel_.block_threads(), place);
    const std::string offset = offset_bytes > 0 ? fmt::format(" + {}", offset_bytes) : "";
    return fmt::format("stage{} + {} * {}", offset, place, bytes);
}

void GpuScope::carry(const Inst& inst, const std::string& place) {
    const std::string sum = fmt::format("{}[{}]", carried(inst.index), place);
    const std::string& summand = value(inst.operands[0]);
    const Carried& of = kernel_.carried[static_cast<std::size_t>(inst.index)];
    const std::string if_live = live_.empty() ? "" : fmt::format("if ({}) ", live_);
    if (inst.operands.size() == 2) {
        const std::string next = fmt::format("rj_fma({}, {}, {})", summand, value(inst.operands[1]), sum);
        out_.line(fmt::format("{}{} = {};", if_live, sum, next), inst.comment);
        return;
    }
    const auto added = [&] {
        if (of.monoid == Monoid::kMoments) return fmt::format("{}.add_one({}, {})", sum, summand, counted(inst.index));
        if (of.is_pair()) return fmt::format("{}.add_one({})", sum, summand);
        if (of.monoid == Monoid::kSum) return fmt::format("{} += {}", sum, summand);
        return fmt::format("{} = {}", sum, gpu_operation(operation(of.monoid), sum, summand));
    };
    out_.line(fmt::format("{}{};", if_live, added()), inst.comment);
}

void GpuScope::count_row(int index) {
    if (kernel_.carried[static_cast<std::size_t>(index)].monoid != Monoid::kMoments) return;
    out_.line(fmt::format("{}{}.next();", live_.empty() ? "" : fmt::format("if ({}) ", live_), counted(index)));
}

std::string GpuScope::carried_value(const Inst& inst, const std::string& place) const {
    std::string lane = fmt::format("{}[{}]", carried(inst.index), place);
    const Carried& of = kernel_.carried[static_cast<std::size_t>(inst.index)];
    if (of.monoid == Monoid::kMoments) {
        if (inst.component == kMomentCount) return counted(inst.index) + ".count";
        return lane + (inst.component == kMomentSum ? ".total" : ".squares");
    }
    if (!of.is_pair()) return lane;
    return fmt::format("{}.{}()", lane, inst.component == 0 ? "max" : "sum");
}

void GpuScope::declare_coordinates(const std::string& position, const std::vector<AxisId>& axes) {
    std::string rest = position;
    for (std::size_t i = axes.size(); i-- > 0;) {
        const AxisId axis = axes[i];
        const int lanes = axis == kernel_.lanes_axis ? kernel_.row_lanes() : 1;
        if (i == 0 && lanes == 1) {
            axis_text_[axis] = rest;
            return;
        }
        const std::string& axis_name = kernel_.axis(axis).name;
        const std::string label = names_.fresh(axis_name.empty() ? "at" : axis_name);
        if (i == 0) {
            out_.line(fmt::format("const long long {} = {} * {};", label, rest, lanes), "of the first lane");
            axis_text_[axis] = label;
            return;
        }
        const std::string places = lanes == 1 ? extent(axis) : std::to_string(kernel_.axis(axis).extent / lanes);
        const std::string outer = names_.fresh(label + "_outer");
        out_.line(fmt::format("const long long {} = rj_quotient({}, {});", outer, rest, places));
        const bool is_known = axis_text_.contains(axis);  // of all rows of the thread
        const std::string inner = fmt::format("{} - {} * {}", rest, outer, places);
        if (axes_used_.contains(axis) && !is_known) {
            out_.line(lanes == 1 ? fmt::format("const long long {} = {};", label, inner)
                                 : fmt::format("const long long {} = ({}) * {};", label, inner, lanes),
                      lanes == 1 ? "" : "of the first lane");
        }
        if (!is_known) axis_text_[axis] = label;
        rest = outer;
    }
}

void GpuScope::declare_row() {
    std::string place = "row";
    if (kernel_.last_first) {
        place = names_.fresh("back");
        out_.line(fmt::format("const long long {} = rows - 1 - row;", place), "the last rows are in the cache");
    }
    declare_coordinates(place, kernel_.inner_axes());
}

void GpuScope::declare_outer_row() {
    std::string place = "outer_row";
    if (kernel_.last_first) {
        place = names_.fresh("back_outer");
        out_.line(fmt::format("const long long {} = {} - 1 - outer_row;", place, positions(kernel_.outer)));
    }
    declare_coordinates(place, kernel_.outer);
}

void GpuScope::forget_axes(const std::vector<AxisId>& axes) {
    for (const AxisId axis : axes) {
        if (!contains(kernel_.apart, axis)) axis_text_.erase(axis);
    }
}

std::string GpuScope::row_name(std::string_view wanted, const std::string& type, const std::string& expression) {
    const auto [found, added] = row_names_.try_emplace(expression);
    if (added) {
        found->second = names_.fresh(wanted);
        out_.line(fmt::format("{} {} = {};", type, found->second, expression));
    }
    return found->second;
}

// A branch holds ptxas from working ahead on a row that is in registers: without those of its numbers a norm of 4096
// bf16 columns takes 72 for 47, a sum of three powers' norms of 14336 columns 243 for 80. Elsewhere a row would wait at
// each.
bool GpuScope::works_straight() const {
    const bool has_columns = std::ranges::any_of(
        kernel_.body, [](const Stmt& stmt) { return std::holds_alternative<ColumnLoop>(stmt.node); });
    return !kernel_.schedule.unrolls() || !has_columns;
}

std::string GpuScope::divisor(const std::string& value) {
    return row_name(is_identifier(value) ? value + "_divisor" : "divisor", "const rj_divisor", prepared(value));
}

std::string GpuScope::prepared(const std::string& value) { return fmt::format("rj_divisor_of({})", value); }

void GpuScope::set_divisor(const std::string& value, const std::string& name) { row_names_[prepared(value)] = name; }

// ---- values ---------------------------------------------------------------------------------------------------------

void GpuScope::define(const Inst& inst, const std::string& expression) {
    if (const auto place = places_.find(inst.id); place != places_.end()) {
        out_.line(fmt::format("{} = {};", place->second, expression), inst.comment);
        return bind(inst.id, place->second);
    }
    const std::string name = names_.fresh(inst.label.empty() ? fmt::format("v{}", inst.id) : inst.label);
    out_.line(fmt::format("const {} {} = {};", gpu_value_type(inst.dtype), name, expression), inst.comment);
    bind(inst.id, name);
}

bool GpuScope::bind_inline(const Inst& inst) {
    if (inst.kind == InstKind::kConst) {
        bind(inst.id, gpu_literal(inst.dtype, inst.value));
        return true;
    }
    if (inst.kind == InstKind::kScalar) {
        bind(inst.id, argument(KernelArgument::Kind::kScalar, inst.index, -1));
        return true;
    }
    // Widening, and rounding that the packing does.
    if (inst.kind == InstKind::kCast && !places_.contains(inst.id) && cast(inst) == value(inst.operands[0])) {
        bind(inst.id, value(inst.operands[0]));
        return true;
    }
    return false;
}

bool GpuScope::is_of_row(const Inst& inst) const {
    return std::ranges::any_of(kernel_.body, [&](const Stmt& stmt) {
        const auto* one = std::get_if<Inst>(&stmt.node);
        return one != nullptr && one->id == inst.id;
    });
}

std::string GpuScope::looked_through(const Inst& sum, const GpuLoop& loop) {
    std::vector<std::string> rows;
    for (const int index : {sum.places, sum.index}) {
        const std::vector<AxisId>& axes = kernel_.tensors[static_cast<std::size_t>(index)].axes;
        Inst first{.kind = InstKind::kLoad, .dtype = kernel_.tensors[static_cast<std::size_t>(index)].dtype};
        first.index = index;
        for (const AxisId axis : axes) first.coords.push_back(axis == sum.axis ? Coord(0) : Coord(Axis{axis}));
        rows.push_back(address(first, loop, "").text());
        const auto along = static_cast<std::size_t>(std::ranges::find(axes, sum.axis) - axes.begin());
        rows.push_back(stride(first, along));
    }
    rows.push_back(std::to_string(kernel_.axis(sum.axis).extent));
    return gpu_joined(rows, ", ");
}

std::string GpuScope::computed(const Inst& inst, const std::string& divisor) {
    switch (inst.kind) {
        case InstKind::kMap:
            if (kernel_.product && inst.id == kernel_.product->inside)
                return fmt::format("(whole || {})", map(inst, divisor));
            return map(inst, divisor);
        case InstKind::kCast: return cast(inst);
        case InstKind::kExtent: return rounded(inst, gpu_converted(inst.dtype, extent(inst.axis)));
        case InstKind::kSearch: {
            const AxisId axis = tensor(inst).axes[0];
            return fmt::format("rj_search<{}>({}, {}, {}, {})", is_of_row(inst) ? threads() : 1,
                               argument(KernelArgument::Kind::kPointer, inst.index, -1),
                               argument(KernelArgument::Kind::kStride, inst.index, axis), extent(axis),
                               gpu_converted(Dtype::kI64, value(inst.operands[0])));
        }
        case InstKind::kSumWhere:
            return fmt::format("rj_sum_where<{}>({}, {})", gpu_value_type(inst.dtype),
                               gpu_converted(Dtype::kI64, value(inst.operands[0])), looked_through(inst, {}));
        default: break;
    }
    RJ_CHECK(false, "emit gpu: {}: instruction kind {} in this scope", kernel_.name, static_cast<int>(inst.kind));
}

namespace {

const char* narrow_tanh(TanhPart part) {
    switch (part) {
        case TanhPart::kItself: return "rj_tanh_narrow";
        case TanhPart::kSlope: return "rj_tanh_slope_narrow";
        case TanhPart::kPlusOne: return "rj_tanh_plus_one_narrow";
    }
    return "";
}

}  // namespace

std::string GpuScope::map(const Inst& inst, const std::string& divisor) const {
    if (!divisor.empty()) {
        const char* function = inst.narrow ? "rj_div_narrow" : "rj_div";
        return rounded(inst, fmt::format("{}({}, {})", function, value(inst.operands[0]), divisor));
    }
    const auto operand = [&](std::size_t i) { return i < inst.operands.size() ? value(inst.operands[i]) : ""; };
    std::string text = fmt::format(fmt::runtime(info(inst.op).gpu), operand(0), operand(1), operand(2));
    if (inst.stored) text = fmt::format("rj_exp_stored({})", operand(0));
    if (inst.bounded)
        text = fmt::format("{}({})", inst.op == Op::kExp ? "rj_exp_bounded" : "rj_log_bounded", operand(0));
    if (inst.narrow && inst.op == Op::kExp)
        text = fmt::format("{}({})", inst.weighs ? "rj_exp_weight" : "rj_exp_narrow", operand(0));
    if (inst.of_two) text = fmt::format("rj_exp2_fast({})", operand(0));
    if (inst.narrow && inst.op == Op::kLog)
        text = fmt::format("{}({})", inst.weighs ? "rj_log_weight" : "rj_log_narrow", operand(0));
    if (inst.of_fraction) text = fmt::format("rj_log1p_of_fraction({})", operand(0));
    if (inst.narrow && inst.op == Op::kLog1p) text = fmt::format("rj_log1p_narrow({})", operand(0));
    if (inst.narrow && inst.op == Op::kSub) text = fmt::format("rj_log_share({}, {})", operand(0), operand(1));
    if (inst.narrow && inst.op == Op::kErf) text = fmt::format("rj_erf_narrow({})", operand(0));
    if (inst.narrow && inst.op == Op::kTanh) text = fmt::format("{}({})", narrow_tanh(inst.part), operand(0));
    if (inst.op == Op::kRsqrt && works_straight()) text = fmt::format("rj_rsqrt_straight({})", operand(0));
    if (inst.narrow && inst.op == Op::kSqrt) text = fmt::format("rj_sqrt_narrow({})", operand(0));
    if (inst.narrow && inst.op == Op::kRsqrt) text = fmt::format("rj_rsqrt_narrow({})", operand(0));
    if (inst.by_one_up) text = fmt::format("rj_div_one_up({}, {})", operand(0), operand(1));
    if (inst.narrow && inst.op == Op::kDiv)
        text =
            fmt::format("{}({}, {})", inst.by_one_up ? "rj_div_narrow" : "rj_quotient_narrow", operand(0), operand(1));
    return is_exact_on_narrow(inst.op) ? text : rounded(inst, std::move(text));
}

std::string GpuScope::cast(const Inst& inst) const {
    const Dtype from = dtype(inst.operands[0]);
    const std::string& operand = value(inst.operands[0]);
    if (from == inst.dtype) return operand;
    switch (inst.dtype) {
        case Dtype::kBool: return fmt::format("{} != {}", operand, gpu_literal(from, 0));
        case Dtype::kI32:
            if (from == Dtype::kBool) return fmt::format("{} ? 1 : 0", operand);
            return fmt::format("rj_to_i32({})", operand);
        case Dtype::kI8:
            if (from == Dtype::kBool) return fmt::format("{} ? 1 : 0", operand);
            return fmt::format("rj_to_i8(rj_to_i32({}))", operand);
        case Dtype::kI64:
            return gpu_value_type(from) == "float" ? fmt::format("rj_to_i64({})", operand)
                                                   : gpu_converted(inst.dtype, operand);
        default: break;
    }
    if (gpu_value_type(from) == "float") return rounded(inst, operand);
    return rounded(
        inst, from == Dtype::kBool ? fmt::format("{} ? 1.0f : 0.0f", operand) : gpu_converted(inst.dtype, operand));
}

std::string GpuScope::rounded(const Inst& inst, std::string expression) const {
    if (!rounds_from_f32(inst.dtype) || !rounded_.contains(inst.id)) return expression;
    return fmt::format("rj_round_{}({})", name(inst.dtype), expression);
}

}  // namespace rowjit
