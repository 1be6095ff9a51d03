#include "compiler/emit/gpu.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/fail.h"
#include "compiler/emit/gpu_text.h"
#include "embedded/prelude.h"
#include "embedded/prelude_cuda.h"
#include "embedded/prelude_divide.h"
#include "embedded/prelude_hip.h"
#include "embedded/prelude_math.h"
#include "embedded/prelude_trig.h"

namespace rowjit {
namespace {

// Bytes of loads that a thread of a serial column loop issues before it computes on them. With 1024 threads on an SM
// 64 bytes a thread are 64 KB in flight; about 46 KB saturate an H100's memory.
constexpr std::int64_t kBytesInFlightPerThread = 64;
constexpr std::int64_t kMaxGroup = 4;

constexpr std::int64_t kInt32Limit = std::int64_t{1} << 31;

bool is_narrow(Dtype dtype) { return dtype == Dtype::kBf16 || dtype == Dtype::kF16; }

// Maps whose result is one of their operands, or exact: representable operands give a representable result.
bool exact_on_narrow(Op op) {
    return op == Op::kNeg || op == Op::kAbs || op == Op::kMin || op == Op::kMax || op == Op::kSelect ||
           op == Op::kFloor;
}

std::string_view state_type(Monoid monoid) {
    switch (monoid) {
        case Monoid::kSum: return "rj_sum";
        case Monoid::kMax: return "rj_maximum";
        case Monoid::kMin: return "rj_minimum";
        case Monoid::kMaxSumExp: return "rj_max_sum_exp";
        case Monoid::kWelford: return "rj_welford";
    }
    RJ_CHECK(false, "emit gpu: monoid {}", static_cast<int>(monoid));
}

// A state's accessors and what the names of their values end in, by component.
struct Component {
    std::string_view accessor;
    std::string_view suffix;
};

std::vector<Component> state_components(Monoid monoid) {
    switch (monoid) {
        case Monoid::kSum:
        case Monoid::kMax:
        case Monoid::kMin: return {{"result", ""}};
        case Monoid::kMaxSumExp: return {{"max", "_max"}, {"sum", "_sum"}};
        case Monoid::kWelford: return {{"mean", "_mean"}, {"squared_deviations", "_squares"}};
    }
    RJ_CHECK(false, "emit gpu: monoid {}", static_cast<int>(monoid));
}

// Where an access of a loop meets memory: a pointer that is the same for the whole row, what the lane adds, and the
// condition under which there is anything to read (a data coordinate inside its extent).
struct Address {
    std::string base;
    std::string offset;
    std::string inside;

    std::string text() const { return offset.empty() ? base : fmt::format("{} + {}", base, offset); }
};

// A vector that an iteration holds: loaded at its start, or kept from an earlier loop.
struct Raw {
    std::string name;
    int lanes = 1;
};

class BodyEmitter {
  public:
    BodyEmitter(const Kernel& kernel, const Target& target)
        : kernel_(kernel),
          target_(target),
          threads_(kernel.schedule.threads_per_row),
          rows_(kernel.schedule.rows_per_block) {}

    std::string run() {
        check();
        find_uses();
        signature();
        row_loop();
        out_.close();
        return out_.take();
    }

  private:
    // ---- what is known before the first line -----------------------------------------------------------------------

    void check() const {
        RJ_CHECK(std::has_single_bit(static_cast<unsigned>(threads_)), "emit gpu: {}: {} threads per row", kernel_.name,
                 threads_);
        for (const KernelTensor& tensor : kernel_.tensors) refuse_f64(tensor.dtype, tensor.name);
        for (const KernelScalar& scalar : kernel_.scalars) refuse_f64(scalar.dtype, scalar.name);
        for (const Accumulator& accumulator : kernel_.accumulators) refuse_f64(accumulator.dtype, accumulator.label);
        each_inst([&](const Inst& inst) { refuse_f64(inst.dtype, inst.label); });
    }

    void refuse_f64(Dtype dtype, const std::string& what) const {
        if (dtype != Dtype::kF64) return;
        fail(ErrorCode::kUnsupported, "kernel {}: '{}' is f64, which {} kernels do not compute in; cast it to f32",
             kernel_.name, what, name(target_.backend));
    }

    template <class Visit>
    void each_inst(const Visit& visit) const {
        for (const Stmt& stmt : kernel_.body) {
            if (const auto* inst = std::get_if<Inst>(&stmt.node)) visit(*inst);
            if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) {
                for (const Inst& inst : loop->body) visit(inst);
            }
            if (const auto* rows = std::get_if<RowsLoop>(&stmt.node)) {
                for (const Inst& inst : rows->body) visit(inst);
            }
        }
    }

    // A narrow value that is only stored or kept in its own format need not be rounded before: packing rounds it.
    void find_uses() {
        dtypes_.resize(static_cast<std::size_t>(kernel_.value_count), Dtype::kF32);
        text_.resize(static_cast<std::size_t>(kernel_.value_count));
        each_inst([&](const Inst& inst) {
            if (inst.id >= 0) dtypes_[static_cast<std::size_t>(inst.id)] = inst.dtype;
            for (const ValueId operand : inst.operands) {
                const bool packs =
                    (inst.kind == InstKind::kStore && !inst.accumulate && tensor(inst).dtype == dtype(operand)) ||
                    (inst.kind == InstKind::kKeep && slot(inst).dtype == dtype(operand));
                if (!packs) rounded_.insert(operand);
            }
            for (const Coord& coord : inst.coords) {
                for (const Axis axis : coord.axes()) axes_used_.insert(axis.id);
            }
            if (inst.kind == InstKind::kCoord) axes_used_.insert(inst.axis);
        });
        for (const Stmt& stmt : kernel_.body) {
            const auto* reduce = std::get_if<AllReduce>(&stmt.node);
            if (reduce == nullptr) continue;
            std::size_t result = 0;
            for (const int index : reduce->accumulators) {
                const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
                for (int k = 0; k < components(accumulator.monoid); ++k)
                    dtypes_[static_cast<std::size_t>(reduce->results[result++])] = accumulator.dtype;
            }
        }
    }

    // ---- lookups ---------------------------------------------------------------------------------------------------

    const KernelTensor& tensor(const Inst& inst) const { return kernel_.tensors[static_cast<std::size_t>(inst.index)]; }
    const Slot& slot(const Inst& inst) const { return kernel_.slots[static_cast<std::size_t>(inst.index)]; }
    const Accumulator& accumulator(const Inst& inst) const {
        return kernel_.accumulators[static_cast<std::size_t>(inst.index)];
    }
    Dtype dtype(ValueId id) const { return dtypes_[static_cast<std::size_t>(id)]; }
    const std::string& value(ValueId id) const { return text_[static_cast<std::size_t>(id)]; }

    const std::string& argument(KernelArgument::Kind kind, int index, AxisId axis) const {
        for (std::size_t i = 0; i < kernel_.arguments.size(); ++i) {
            const KernelArgument& a = kernel_.arguments[i];
            const bool same_axis =
                a.axis == axis || kind == KernelArgument::Kind::kPointer || kind == KernelArgument::Kind::kScalar;
            const bool same_index = a.index == index || kind == KernelArgument::Kind::kExtent;
            if (a.kind == kind && same_axis && same_index) return parameters_[i];
        }
        RJ_CHECK(false, "emit gpu: {}: no argument of kind {} for {} along axis {}", kernel_.name,
                 static_cast<int>(kind), index, axis);
    }

    std::string extent(AxisId axis) const {
        const std::int64_t known = kernel_.axis(axis).extent;
        return known == kRuntimeExtent ? argument(KernelArgument::Kind::kExtent, -1, axis) : std::to_string(known);
    }

    std::string axis_list(const std::vector<AxisId>& axes) const {
        std::vector<std::string> labels;
        for (const AxisId axis : axes) labels.push_back(kernel_.axis(axis).label());
        return fmt::format("{}", fmt::join(labels, ", "));
    }

    // ---- the kernel's outside --------------------------------------------------------------------------------------

    void signature() {
        out_.line(fmt::format("// {}: {}", kernel_.name, print(kernel_.schedule)));
        out_.line(fmt::format("// for {}; a row for each of [{}]", target_.name, axis_list(kernel_.row_axes)));
        const int blocks = kernel_.schedule.min_blocks_per_sm;
        const std::string bounds = blocks > 0 ? fmt::format("{}, {}", kernel_.block_threads(), blocks)
                                              : std::to_string(kernel_.block_threads());
        out_.line(fmt::format("RJ_KERNEL({})", bounds));
        std::vector<std::string> declarations;
        for (const KernelArgument& argument : kernel_.arguments) {
            parameters_.push_back(names_.fresh(argument.name));
            declarations.push_back(parameter_type(argument) + " " + parameters_.back());
        }
        out_.open(fmt::format("{}({})", kernel_.name, fmt::join(declarations, ",\n    ")));
    }

    std::string parameter_type(const KernelArgument& argument) const {
        switch (argument.kind) {
            case KernelArgument::Kind::kStride:
            case KernelArgument::Kind::kExtent: return "long long";
            case KernelArgument::Kind::kScalar:
                return std::string(gpu_value_type(kernel_.scalars[static_cast<std::size_t>(argument.index)].dtype));
            case KernelArgument::Kind::kPointer: break;
        }
        const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(argument.index)];
        return fmt::format("{}{}*{}", tensor.written ? "" : "const ", gpu_storage_type(tensor.dtype),
                           tensor.aliased ? "" : " RJ_RESTRICT");
    }

    void row_loop() {
        const std::int64_t column_blocks = kernel_.schedule.column_blocks;
        if (threads_ > 1) {
            out_.line(
                rows_ > 1 ? fmt::format("const int t = rj_thread() % {};", threads_) : "const int t = rj_thread();",
                "thread of the row");
        }
        if (rows_ > 1) out_.line(fmt::format("const int row_in_block = rj_thread() / {};", threads_));
        if (rows_ > 1 && kernel_.shared_bytes_per_row > 0) {
            out_.line(fmt::format("const int row_shared = row_in_block * {};", kernel_.shared_bytes_per_row),
                      "byte offset of the row's shared memory");
        }
        std::string first = "rj_block()";
        std::string step = fmt::format("rj_grid({})", kernel_.block_threads());
        if (column_blocks > 1) {
            out_.line(fmt::format("const int column_block = rj_block() % {};", column_blocks));
            first += fmt::format(" / {}", column_blocks);
            step += fmt::format(" / {}", column_blocks);
        }
        std::vector<std::string> extents;
        for (const AxisId axis : kernel_.row_axes) extents.push_back(extent(axis));
        out_.line(fmt::format("const long long rows = {};",
                              extents.empty() ? "1" : fmt::format("{}", fmt::join(extents, " * "))));
        if (rows_ == 1) {
            out_.open(fmt::format("for (long long row = {}; row < rows; row += {})", first, step));
        } else {
            out_.open(fmt::format("for (long long row_block = {}; row_block * {} < rows; row_block += {})", first,
                                  rows_, step));
            out_.line(fmt::format("const bool live = row_block * {} + row_in_block < rows;", rows_),
                      "the last block may have fewer rows; its other threads follow the last row and store nothing");
            out_.line(fmt::format("const long long row = live ? row_block * {} + row_in_block : rows - 1;", rows_));
        }
        decompose("row", kernel_.row_axes);
        declare_states();
        for (const Stmt& stmt : kernel_.body) statement(stmt);
        out_.close();
    }

    // Declares the coordinates along `axes` of a 64-bit position, innermost fastest.
    void decompose(const std::string& position, const std::vector<AxisId>& axes) {
        std::string rest = position;
        for (std::size_t i = axes.size(); i-- > 0;) {
            const AxisId axis = axes[i];
            if (i == 0) {
                axis_text_[axis] = rest;
                return;
            }
            const std::string label = names_.fresh(kernel_.axis(axis).name.empty() ? "at" : kernel_.axis(axis).name);
            const std::string outer = names_.fresh(fmt::format("{}_outer", label));
            out_.line(fmt::format("const long long {} = rj_quotient({}, {});", outer, rest, extent(axis)));
            if (axes_used_.contains(axis))
                out_.line(fmt::format("const long long {} = {} - {} * {};", label, rest, outer, extent(axis)));
            axis_text_[axis] = label;
            rest = outer;
        }
    }

    void declare_states() {
        for (const Accumulator& accumulator : kernel_.accumulators) {
            states_.push_back(names_.fresh(accumulator.label));
            out_.line(fmt::format("{}<{}> {};", state_type(accumulator.monoid), gpu_value_type(accumulator.dtype),
                                  states_.back()));
        }
    }

    void statement(const Stmt& stmt) {
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) return row_inst(*inst);
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) return column_loop(*loop);
        if (const auto* rows = std::get_if<RowsLoop>(&stmt.node)) return rows_loop(*rows);
        if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) return all_reduce(*reduce);
        out_.line("rj_barrier();");
    }

    // ---- addresses -------------------------------------------------------------------------------------------------

    std::string column_axis(AxisId axis, const std::string& position) const {
        std::int64_t inner = 1;
        for (std::size_t i = loop_->axes.size(); i-- > 0;) {
            const std::int64_t extent = kernel_.axis(loop_->axes[i]).extent;
            if (loop_->axes[i] != axis) {
                inner *= extent;
                continue;
            }
            const std::string outer = inner == 1 ? position : fmt::format("({} / {})", position, inner);
            return i == 0 ? outer : fmt::format("({} % {})", outer, extent);
        }
        RJ_CHECK(false, "emit gpu: {}: axis {} in a loop over [{}]", kernel_.name, kernel_.axis(axis).label(),
                 axis_list(loop_->axes));
    }

    // `position` is the column that coordinates of the loop's axes are taken at.
    CoordNames coord_names(const std::string& position) const {
        return {[this, position](Axis axis) {
                    if (const auto found = axis_text_.find(axis.id); found != axis_text_.end()) return found->second;
                    RJ_CHECK(loop_ != nullptr, "emit gpu: {}: axis {} outside its loop", kernel_.name,
                             kernel_.axis(axis.id).label());
                    return column_axis(axis.id, position);
                },
                [this](std::int32_t id) { return value(id); }};
    }

    // Whether a coordinate differs between the positions of the open loop.
    bool varies(const Coord& coord) const {
        const std::vector<Axis> axes = coord.axes();
        const std::vector<std::int32_t> data = coord.data_nodes();
        return std::any_of(axes.begin(), axes.end(), [&](Axis axis) { return loop_axes_.contains(axis.id); }) ||
               std::any_of(data.begin(), data.end(), [&](std::int32_t id) { return loop_values_.contains(id); });
    }

    std::string stride(const Inst& inst, std::size_t i) const {
        const KernelTensor& t = tensor(inst);
        if (kernel_.axis(t.axes[i]).is_row) return argument(KernelArgument::Kind::kStride, inst.index, t.axes[i]);
        return std::to_string(t.column_strides[i - (t.axes.size() - t.column_strides.size())]);
    }

    // Whether the loop's part of the offset fits 32 bits.
    bool fits_int32(const Inst& inst) const {
        const auto extent_of = [&](Axis axis) { return kernel_.axis(axis.id).extent; };
        std::int64_t reach = 0;
        for (std::size_t i = 0; i < inst.coords.size(); ++i) {
            if (!varies(inst.coords[i])) continue;
            std::int64_t low = 0;
            std::int64_t high = 0;
            if (kernel_.axis(tensor(inst).axes[i]).is_row || !inst.coords[i].bounds(extent_of, &low, &high))
                return false;
            const std::int64_t step = std::abs(std::stoll(stride(inst, i)));
            reach += std::max(std::abs(low), std::abs(high)) * step;
        }
        return reach < kInt32Limit;
    }

    static std::string scaled(const std::string& coordinate, const std::string& stride) {
        if (stride == "1") return coordinate;
        return coordinate == "0" || stride == "0" ? "0" : fmt::format("{} * {}", coordinate, stride);
    }

    Address address(const Inst& inst, const std::string& position) {
        const KernelTensor& t = tensor(inst);
        const CoordNames names = coord_names(position);
        const bool narrow_offset = loop_ == nullptr || fits_int32(inst);
        std::vector<std::string> row_terms;
        std::vector<std::string> loop_terms;
        std::vector<std::string> row_inside;
        std::vector<std::string> loop_inside;
        for (std::size_t i = 0; i < inst.coords.size(); ++i) {
            const Coord& coord = inst.coords[i];
            const bool in_loop = varies(coord);
            std::string at = gpu_coord(coord, names);
            if (!coord.data_nodes().empty()) {
                (in_loop ? loop_inside : row_inside).push_back(fmt::format("rj_inside({}, {})", at, extent(t.axes[i])));
                at = fmt::format("rj_clamp({}, {})", at, extent(t.axes[i]));
            } else if (in_loop && !narrow_offset) {
                at = fmt::format("static_cast<long long>({})", at);
            }
            const std::string term = scaled(at, stride(inst, i));
            if (term != "0") (in_loop ? loop_terms : row_terms).push_back(term);
        }
        Address result;
        result.base = argument(KernelArgument::Kind::kPointer, inst.index, -1);
        result.offset = fmt::format("{}", fmt::join(loop_terms, " + "));
        if (loop_ == nullptr) {
            // Outside column loops nothing is hoisted by hand: the compiler does it where that is possible.
            if (!row_terms.empty()) result.base += fmt::format(" + {}", fmt::join(row_terms, " + "));
            row_inside.insert(row_inside.end(), loop_inside.begin(), loop_inside.end());
            result.inside = fmt::format("{}", fmt::join(row_inside, " && "));
            return result;
        }
        if (!row_terms.empty()) result.base = row_pointer(inst, fmt::format("{}", fmt::join(row_terms, " + ")));
        if (!row_inside.empty())
            loop_inside.insert(loop_inside.begin(),
                               row_condition(t.name, fmt::format("{}", fmt::join(row_inside, " && "))));
        result.inside = fmt::format("{}", fmt::join(loop_inside, " && "));
        return result;
    }

    // A pointer to the row's part of a tensor, declared before the first loop that needs it.
    std::string row_pointer(const Inst& inst, const std::string& offset) {
        const KernelTensor& t = tensor(inst);
        const std::string& base = argument(KernelArgument::Kind::kPointer, inst.index, -1);
        const auto [found, added] = row_names_.try_emplace(fmt::format("{} + {}", base, offset));
        if (added) {
            found->second = names_.fresh(fmt::format("{}_row", t.name));
            out_.line(fmt::format("{}{}* {} = {} + {};", t.written ? "" : "const ", gpu_storage_type(t.dtype),
                                  found->second, base, offset));
        }
        return found->second;
    }

    std::string row_condition(const std::string& tensor_name, const std::string& condition) {
        const auto [found, added] = row_names_.try_emplace(condition);
        if (added) {
            found->second = names_.fresh(fmt::format("{}_inside", tensor_name));
            out_.line(fmt::format("const bool {} = {};", found->second, condition));
        }
        return found->second;
    }

    std::string_view load_suffix(const Inst& inst) const {
        const KernelTensor& t = tensor(inst);
        return t.written || t.aliased ? "" : "_readonly";
    }

    std::string load_one(const Inst& inst, const Address& at) const {
        const std::string load = fmt::format("rj_load_one{}({})", load_suffix(inst), at.text());
        if (at.inside.empty()) return load;
        return fmt::format("{} ? {} : {}", at.inside, load, gpu_literal(inst.dtype, 0));
    }

    // ---- values ----------------------------------------------------------------------------------------------------

    void define(const Inst& inst, const std::string& expression) {
        const std::string name = names_.fresh(inst.label.empty() ? fmt::format("v{}", inst.id) : inst.label);
        out_.line(fmt::format("const {} {} = {};", gpu_value_type(inst.dtype), name, expression), inst.comment);
        text_[static_cast<std::size_t>(inst.id)] = name;
    }

    // Constants and scalars read better in place than behind a name.
    bool is_inline(const Inst& inst) {
        if (inst.kind == InstKind::kConst) {
            text_[static_cast<std::size_t>(inst.id)] = gpu_literal(inst.dtype, inst.value);
            return true;
        }
        if (inst.kind == InstKind::kScalar) {
            text_[static_cast<std::size_t>(inst.id)] = argument(KernelArgument::Kind::kScalar, inst.index, -1);
            return true;
        }
        return false;
    }

    std::string rounded(const Inst& inst, std::string expression) const {
        if (!is_narrow(inst.dtype) || !rounded_.contains(inst.id)) return expression;
        return fmt::format("rj_round_{}({})", name(inst.dtype), expression);
    }

    std::string map(const Inst& inst) const {
        if (const auto divisor = divisors_.find(&inst); divisor != divisors_.end())
            return rounded(inst, fmt::format("rj_div({}, {})", value(inst.operands[0]), divisor->second));
        const auto operand = [&](std::size_t i) { return i < inst.operands.size() ? value(inst.operands[i]) : ""; };
        std::string text = fmt::format(fmt::runtime(info(inst.op).gpu), operand(0), operand(1), operand(2));
        return exact_on_narrow(inst.op) ? text : rounded(inst, std::move(text));
    }

    std::string cast(const Inst& inst) const {
        const Dtype from = dtype(inst.operands[0]);
        const std::string& operand = value(inst.operands[0]);
        const std::string_view zero = is_float(from) ? "0.0f" : "0";
        if (from == inst.dtype) return operand;
        switch (inst.dtype) {
            case Dtype::kBool: return fmt::format("{} != {}", operand, zero);
            case Dtype::kI32:
                return from == Dtype::kBool ? fmt::format("{} ? 1 : 0", operand)
                                            : fmt::format("rj_to_i32({})", operand);
            case Dtype::kI64:
                if (is_float(from)) return fmt::format("rj_to_i64({})", operand);
                return fmt::format("static_cast<long long>({})", operand);
            default: break;
        }
        if (from == Dtype::kBool) return fmt::format("{} ? 1.0f : 0.0f", operand);
        if (is_float(from)) return rounded(inst, operand);
        return rounded(inst, fmt::format("static_cast<float>({})", operand));
    }

    std::string as_type(Dtype dtype, const std::string& text) const {
        return fmt::format("static_cast<{}>({})", gpu_value_type(dtype), text);
    }

    // What is the same at every scope; loads, kept values and coordinates of loops are the scope's own.
    std::string computed(const Inst& inst) const {
        switch (inst.kind) {
            case InstKind::kMap: return map(inst);
            case InstKind::kCast: return cast(inst);
            case InstKind::kExtent: return rounded(inst, as_type(inst.dtype, extent(inst.axis)));
            default: break;
        }
        RJ_CHECK(false, "emit gpu: {}: instruction kind {} in this scope", kernel_.name, static_cast<int>(inst.kind));
    }

    // ---- row scope -------------------------------------------------------------------------------------------------

    void row_inst(const Inst& inst) {
        if (is_inline(inst)) return;
        switch (inst.kind) {
            case InstKind::kLoad: return define(inst, load_one(inst, address(inst, "")));
            case InstKind::kCoord: return define(inst, as_type(inst.dtype, axis_text_.at(inst.axis)));
            case InstKind::kStore: return row_store(inst);
            default: return define(inst, computed(inst));
        }
    }

    // Every thread of the row has the value; one stores it.
    void row_store(const Inst& inst) {
        std::vector<std::string> conditions;
        if (threads_ > 1) conditions.emplace_back("t == 0");
        if (rows_ > 1) conditions.emplace_back("live");
        if (kernel_.schedule.column_blocks > 1) conditions.emplace_back("column_block == 0");
        store_one(inst, address(inst, ""), conditions);
    }

    void store_one(const Inst& inst, const Address& at, std::vector<std::string> conditions) {
        if (!at.inside.empty()) conditions.push_back(at.inside);
        std::string stored = value(inst.operands[0]);
        if (inst.accumulate) stored = fmt::format("rj_load_one({}) + {}", at.text(), stored);
        const std::string store = fmt::format("rj_store_one({}, {});", at.text(), stored);
        out_.line(conditions.empty() ? store : fmt::format("if ({}) {}", fmt::join(conditions, " && "), store),
                  inst.comment);
    }

    void all_reduce(const AllReduce& reduce) {
        std::vector<std::string> states;
        for (const int index : reduce.accumulators) states.push_back(states_[static_cast<std::size_t>(index)]);
        out_.blank();
        if (threads_ > 1) {
            out_.line(fmt::format("rj_all_reduce<{}>(t, {}, {});", threads_, scratch_offset(reduce),
                                  fmt::join(states, ", ")));
        }
        std::size_t result = 0;
        for (std::size_t i = 0; i < states.size(); ++i) {
            const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(reduce.accumulators[i])];
            std::string_view label = accumulator.label;
            if (label.ends_with("_part")) label.remove_suffix(5);
            for (const Component& component : state_components(accumulator.monoid)) {
                const std::string name = names_.fresh(fmt::format("{}{}", label, component.suffix));
                out_.line(fmt::format("const {} {} = {}.{}();", gpu_value_type(accumulator.dtype), name, states[i],
                                      component.accessor));
                text_[static_cast<std::size_t>(reduce.results[result++])] = name;
            }
        }
    }

    // passes/barriers gives every region the same size and every row the same part of it.
    std::string scratch_offset(const AllReduce& reduce) const {
        if (threads_ <= target_.warp_size) return "0";
        const std::int64_t slots = kernel_.shared_bytes_per_row * rows_;
        RJ_CHECK(kernel_.scratch_regions > reduce.scratch, "emit gpu: {}: scratch region {} of {}", kernel_.name,
                 reduce.scratch, kernel_.scratch_regions);
        const std::int64_t region = (kernel_.shared_bytes - slots) / kernel_.scratch_regions;
        const std::int64_t offset = slots + region * reduce.scratch;
        if (rows_ == 1) return std::to_string(offset);
        const std::string row = fmt::format("row_in_block * {}", region / rows_);
        return offset == 0 ? row : fmt::format("{} + {}", offset, row);
    }

    // ---- loops over reduced rows -----------------------------------------------------------------------------------

    void rows_loop(const RowsLoop& loop) {
        std::vector<std::string> extents;
        for (const AxisId axis : loop.axes) {
            extents.push_back(extent(axis));
            loop_axes_.insert(axis);
        }
        out_.blank();
        const std::string positions = names_.fresh("positions");
        out_.line(fmt::format("const long long {} = {};", positions, fmt::join(extents, " * ")));
        out_.line("#pragma unroll 4");
        out_.open(
            fmt::format("for (long long p = {}; p < {}; p += {})", threads_ > 1 ? "t" : "0", positions, threads_));
        decompose("p", loop.axes);
        for (const Inst& inst : loop.body) rows_loop_inst(inst);
        out_.close();
        for (const AxisId axis : loop.axes) axis_text_.erase(axis);
        loop_axes_.clear();
        loop_values_.clear();
    }

    void rows_loop_inst(const Inst& inst) {
        if (inst.id >= 0) loop_values_.insert(inst.id);
        if (is_inline(inst)) return;
        switch (inst.kind) {
            case InstKind::kLoad: return define(inst, load_one(inst, address(inst, "")));
            case InstKind::kCoord: return define(inst, as_type(inst.dtype, axis_text_.at(inst.axis)));
            case InstKind::kStore:
                return store_one(inst, address(inst, ""),
                                 rows_ > 1 ? std::vector<std::string>{"live"} : std::vector<std::string>{});
            case InstKind::kAccumulate:
                out_.line(fmt::format("{}.add_one({});", states_[static_cast<std::size_t>(inst.index)],
                                      value(inst.operands[0])),
                          inst.comment);
                return;
            default: return define(inst, computed(inst));
        }
    }

    // ---- column loops ----------------------------------------------------------------------------------------------

    // A column loop runs in groups of iterations: all loads of a group are issued, then computed on. A resident loop is
    // one group.
    struct ColumnPlan {
        std::int64_t group = 1;
        bool resident = true;
        std::map<const Inst*, Address> addresses;
        std::vector<const Inst*> front;  // loads of whole vectors whose addresses no lane's value decides
    };

    void column_loop(const ColumnLoop& loop) {
        loop_ = &loop;
        loop_axes_.insert(loop.axes.begin(), loop.axes.end());
        for (const Inst& inst : loop.body) {
            if (inst.id >= 0 && inst.access.kind != Access::Kind::kUniform) loop_values_.insert(inst.id);
        }
        out_.blank();
        const ColumnPlan plan = plan_columns(loop);
        declare_divisors(loop);
        declare_kept(loop, plan);
        if (plan.resident) {
            groups(plan);
        } else {
            out_.open(fmt::format("for (int first = 0; first < {}; first += {})", loop.iterations, plan.group));
            groups(plan);
            out_.close();
        }
        raw_.clear();
        loop_axes_.clear();
        loop_values_.clear();
        loop_ = nullptr;
    }

    ColumnPlan plan_columns(const ColumnLoop& loop) {
        ColumnPlan plan;
        std::int64_t bytes = 0;
        for (const Inst& inst : loop.body) {
            const bool memory = inst.kind == InstKind::kLoad || inst.kind == InstKind::kStore;
            if (!memory) continue;
            RJ_CHECK(inst.access.kind != Access::Kind::kUnknown, "emit gpu: {}: the access of {} is not decided",
                     kernel_.name, tensor(inst).name);
            const bool vector = inst.access.kind == Access::Kind::kVector || inst.access.kind == Access::Kind::kSplat;
            if (inst.kind == InstKind::kLoad && inst.access.kind == Access::Kind::kUniform) {
                define(inst, uniform_load(inst));
                continue;
            }
            plan.addresses[&inst] = address(inst, vector ? column(inst.access.anchor) : lane_column());
            const bool reads = inst.kind == InstKind::kLoad || inst.accumulate;
            if (!(vector && reads) && !is_single_load(inst)) continue;
            plan.front.push_back(&inst);
            bytes += static_cast<std::int64_t>(size_bytes(inst.dtype)) *
                     (inst.access.kind == Access::Kind::kVector ? loop.vector : 1);
        }
        plan.resident = loop.unrolled || loop.iterations == 1;
        plan.group = plan.resident ? loop.iterations
                                   : std::clamp(kBytesInFlightPerThread / std::max<std::int64_t>(bytes, 1),
                                                std::int64_t{1}, std::min(kMaxGroup, loop.iterations));
        return plan;
    }

    // With one column per thread a gather is as good as a vector, unless a lane's value decides its address.
    bool is_single_load(const Inst& inst) const {
        if (inst.kind != InstKind::kLoad || loop_->vector != 1) return false;
        return std::none_of(inst.coords.begin(), inst.coords.end(), [&](const Coord& coord) {
            const std::vector<std::int32_t> data = coord.data_nodes();
            return std::any_of(data.begin(), data.end(), [&](std::int32_t id) { return loop_values_.contains(id); });
        });
    }

    // Divisions by a value of the row: what can be done once for all of them stands before the loop.
    void declare_divisors(const ColumnLoop& loop) {
        for (const Inst& inst : loop.body) {
            if (inst.kind != InstKind::kMap || inst.op != Op::kDiv || loop_values_.contains(inst.operands[1])) continue;
            const std::string& divisor = value(inst.operands[1]);
            const auto [found, added] = row_names_.try_emplace(fmt::format("rj_divisor_of({})", divisor));
            if (added) {
                found->second = names_.fresh(is_identifier(divisor) ? divisor + "_divisor" : "divisor");
                out_.line(fmt::format("const rj_divisor {} = {};", found->second, found->first));
            }
            divisors_[&inst] = found->second;
        }
    }

    // The same address for the whole loop, so a load before it.
    std::string uniform_load(const Inst& inst) {
        const ColumnLoop* const loop = loop_;
        loop_ = nullptr;
        std::string text = load_one(inst, address(inst, ""));
        loop_ = loop;
        return text;
    }

    std::string lane() const { return loop_->vector == 1 ? "0" : "l"; }
    std::string lane_column() const { return loop_->vector == 1 ? "c" : "(c + l)"; }
    static std::string column(int lane) { return lane == 0 ? "c" : fmt::format("(c + {})", lane); }

    // "[i]" where a group holds several iterations' vectors.
    static std::string entry(std::int64_t iterations) { return iterations > 1 ? "[i]" : ""; }
    static std::string entries(std::int64_t iterations) {
        return iterations > 1 ? fmt::format("[{}]", iterations) : "";
    }

    // A kept value that is a load's own vector stays as it was loaded: still packed, and never rounded again.
    const Inst* kept_load(const ColumnLoop& loop, const ColumnPlan& plan, const Inst& keep) const {
        for (const Inst* load : plan.front) {
            const bool whole =
                load->access.kind == Access::Kind::kVector ? load->access.lanes.empty() : loop.vector == 1;
            if (load->id == keep.operands[0] && whole && load->dtype == slot(keep).dtype) return load;
        }
        return nullptr;
    }

    // Names the vectors of this loop's loads and kept values. What a later loop reads from registers is declared here,
    // outside the loop.
    void declare_kept(const ColumnLoop& loop, const ColumnPlan& plan) {
        std::set<const Inst*> declared;
        for (const Inst& inst : loop.body) {
            if (inst.kind != InstKind::kKeep) continue;
            const Inst* load = kept_load(loop, plan, inst);
            if (slot(inst).residency == Residency::kShared) continue;
            RJ_CHECK(plan.resident, "emit gpu: {}: {} is kept in registers over a loop that is not unrolled",
                     kernel_.name, slot(inst).label);
            RJ_CHECK(slot(inst).residency == Residency::kRegisters, "emit gpu: {}: slot {} is kept nowhere",
                     kernel_.name, slot(inst).label);
            const std::string name =
                names_.fresh(load != nullptr ? fmt::format("{}_vec", tensor(*load).name) : slot(inst).label);
            out_.line(fmt::format("rj_vec<{}, {}> {}{};", gpu_storage_type(slot(inst).dtype), loop.vector, name,
                                  entries(loop.iterations)),
                      "kept in registers");
            kept_[inst.index] = {name + entry(loop.iterations), loop.vector};
            if (load != nullptr && declared.insert(load).second) raw_[load] = kept_[inst.index];
        }
        for (const Inst* load : plan.front) {
            if (raw_.contains(load)) continue;
            const std::string wanted = fmt::format("{}_{}", tensor(*load).name, load->accumulate ? "old" : "vec");
            raw_[load] = {names_.fresh(wanted) + entry(plan.group),
                          load->access.kind == Access::Kind::kVector ? loop.vector : 1};
        }
    }

    void groups(const ColumnPlan& plan) {
        std::set<std::string> outside;
        for (const auto& [index, kept] : kept_) outside.insert(kept.name);
        for (const Inst* load : plan.front) {
            const Raw& raw = raw_.at(load);
            if (outside.contains(raw.name) || plan.group == 1) continue;
            out_.line(fmt::format("rj_vec<{}, {}> {}{};", gpu_storage_type(load->dtype), raw.lanes,
                                  raw.name.substr(0, raw.name.size() - entry(plan.group).size()), entries(plan.group)));
        }
        if (plan.group == 1) {
            out_.open("");
            declare_column(plan);
            const bool guarded = open_guard(plan);
            loads(plan, &outside);
            compute(plan);
            if (guarded) out_.close();
            out_.close();
            return;
        }
        if (!plan.front.empty()) {
            open_iterations(plan, true);
            const bool guarded = open_guard(plan);
            loads(plan, nullptr);
            if (guarded) out_.close();
            out_.close();
        }
        open_iterations(plan, computing_needs_column());
        const bool guarded = open_guard(plan);
        compute(plan);
        if (guarded) out_.close();
        out_.close();
    }

    void open_iterations(const ColumnPlan& plan, bool needs_column) {
        out_.line("#pragma unroll");
        out_.open(fmt::format("for (int i = 0; i < {}; ++i)", plan.group));
        if (needs_column) declare_column(plan);
    }

    // Whether anything but the loads at the front asks where in the row it is.
    bool computing_needs_column() const {
        return loop_->tail != ColumnLoop::Tail::kNone ||
               std::any_of(loop_->body.begin(), loop_->body.end(), [&](const Inst& inst) {
                   const bool keeps = inst.kind == InstKind::kKeep || inst.kind == InstKind::kKept;
                   if (keeps) return slot(inst).residency == Residency::kShared;
                   if (inst.kind == InstKind::kLoad)
                       return inst.access.kind == Access::Kind::kGather && !raw_.contains(&inst);
                   return inst.kind == InstKind::kStore || inst.kind == InstKind::kCoord;
               });
    }

    // column = ((column_block * iterations + iteration) * threads + t) * vector
    void declare_column(const ColumnPlan& plan) {
        const std::int64_t column_blocks = kernel_.schedule.column_blocks;
        std::string iteration = plan.group == 1 ? "0" : "i";
        if (!plan.resident) iteration = plan.group == 1 ? "first" : "(first + i)";
        if (column_blocks > 1) {
            const std::string block =
                loop_->iterations == 1 ? "column_block" : fmt::format("column_block * {}", loop_->iterations);
            iteration = iteration == "0" ? block : fmt::format("{} + {}", block, iteration);
            if (loop_->iterations > 1) iteration = "(" + iteration + ")";
        }
        std::string text = iteration;
        if (threads_ > 1) text = iteration == "0" ? "t" : fmt::format("{} * {} + t", iteration, threads_);
        if (loop_->vector > 1) {
            if (text.find(' ') != std::string::npos) text = "(" + text + ")";
            text = text == "0" ? text : fmt::format("{} * {}", text, loop_->vector);
        }
        out_.line(fmt::format("const int c = {};", text));
    }

    bool open_guard(const ColumnPlan& plan) {
        RJ_CHECK(loop_->tail != ColumnLoop::Tail::kScalar, "emit gpu: {}: a scalar tail", kernel_.name);
        const bool ragged = !plan.resident && loop_->iterations % plan.group != 0;
        std::vector<std::string> conditions;
        if (ragged) conditions.push_back(fmt::format("first + i < {}", loop_->iterations));
        if (loop_->tail == ColumnLoop::Tail::kVector) conditions.push_back(fmt::format("c < {}", loop_->columns));
        if (conditions.empty()) return false;
        out_.open(fmt::format("if ({})", fmt::join(conditions, " && ")));
        return true;
    }

    // With `outside`, vectors that are not declared yet are declared here.
    void loads(const ColumnPlan& plan, const std::set<std::string>* outside) {
        for (const Inst* load : plan.front) {
            const Raw& raw = raw_.at(load);
            const Address& at = plan.addresses.at(load);
            const std::string type = fmt::format("rj_vec<{}, {}>", gpu_storage_type(load->dtype), raw.lanes);
            std::string text = fmt::format("rj_load{}<{}>({})", load_suffix(*load), raw.lanes, at.text());
            if (!at.inside.empty()) {
                text = fmt::format("{} ? {} : rj_zeros<{}, {}>()", at.inside, text, gpu_storage_type(load->dtype),
                                   raw.lanes);
            }
            const bool declare = outside != nullptr && !outside->contains(raw.name);
            out_.line(fmt::format("{}{} = {};", declare ? "const " + type + " " : "", raw.name, text), load->comment);
        }
    }

    // Lanes that go to memory, to a slot or into an accumulator are gathered in an array and leave as one vector.
    struct LaneArray {
        std::string name;
        Dtype dtype;
    };

    void compute(const ColumnPlan& plan) {
        std::map<const Inst*, std::string> arrays;
        for (const Inst& inst : loop_->body) {
            const auto [wanted, dtype] = lane_array(inst, plan);
            if (wanted.empty()) continue;
            arrays[&inst] = names_.fresh(wanted);
            out_.line(fmt::format("{} {}[{}];", gpu_value_type(dtype), arrays[&inst], loop_->vector));
        }
        declare_permutations();
        load_shared_slots();
        if (loop_->vector > 1) {
            out_.line("#pragma unroll");
            out_.open(fmt::format("for (int l = 0; l < {}; ++l)", loop_->vector));
        }
        for (const Inst& inst : loop_->body) lane_inst(inst, plan, arrays);
        if (loop_->vector > 1) out_.close();
        for (const Inst& inst : loop_->body) leave(inst, plan, arrays);
    }

    // The array an instruction's lanes are gathered in; no name when it needs none.
    LaneArray lane_array(const Inst& inst, const ColumnPlan& plan) const {
        if (inst.kind == InstKind::kAccumulate)
            return {fmt::format("{}_lanes", accumulator(inst).label), accumulator(inst).dtype};
        if (inst.kind == InstKind::kStore && inst.access.kind == Access::Kind::kVector)
            return {fmt::format("{}_lanes", tensor(inst).name), inst.dtype};
        if (inst.kind == InstKind::kKeep && kept_load(*loop_, plan, inst) == nullptr)
            return {fmt::format("{}_lanes", slot(inst).label), slot(inst).dtype};
        return {"", inst.dtype};
    }

    // Lane l of an access is element lanes[l] of its vector.
    void declare_permutations() {
        permutations_.clear();
        for (const Inst& inst : loop_->body) {
            const std::vector<int>& lanes = inst.access.lanes;
            if (inst.access.kind != Access::Kind::kVector || lanes.empty()) continue;
            const int flip = lanes[0];
            bool flips = true;
            for (std::size_t l = 0; l < lanes.size(); ++l) flips = flips && lanes[l] == (static_cast<int>(l) ^ flip);
            if (flips) {
                permutations_[&inst] = fmt::format("(l ^ {})", flip);
                continue;
            }
            const std::string name = names_.fresh(fmt::format("{}_order", tensor(inst).name));
            out_.line(fmt::format("constexpr int {}[{}] = {{{}}};", name, lanes.size(), fmt::join(lanes, ", ")));
            permutations_[&inst] = fmt::format("{}[l]", name);
        }
    }

    std::string element(const Inst& inst) const {
        const auto found = permutations_.find(&inst);
        return found == permutations_.end() ? lane() : found->second;
    }

    std::string shared_offset(const Slot& slot) const {
        RJ_CHECK(kernel_.schedule.column_blocks == 1, "emit gpu: {}: slot {} of a row divided over blocks",
                 kernel_.name, slot.label);
        std::string text = fmt::format("c * {}", size_bytes(slot.dtype));
        if (slot.shared_offset_bytes > 0) text = fmt::format("{} + {}", slot.shared_offset_bytes, text);
        return rows_ > 1 ? "row_shared + " + text : text;
    }

    void load_shared_slots() {
        for (const Inst& inst : loop_->body) {
            if (inst.kind != InstKind::kKept || slot(inst).residency != Residency::kShared) continue;
            const std::string name = names_.fresh(slot(inst).label);
            const std::string type = fmt::format("rj_vec<{}, {}>", gpu_storage_type(slot(inst).dtype), loop_->vector);
            out_.line(
                fmt::format("const {} {} = rj_shared_load<{}>({});", type, name, type, shared_offset(slot(inst))));
            shared_[&inst] = name;
        }
    }

    void lane_inst(const Inst& inst, const ColumnPlan& plan, const std::map<const Inst*, std::string>& arrays) {
        if (is_inline(inst)) return;
        switch (inst.kind) {
            case InstKind::kLoad: return lane_load(inst, plan);
            case InstKind::kKept: {
                const std::string& vec =
                    slot(inst).residency == Residency::kShared ? shared_.at(&inst) : kept_.at(inst.index).name;
                return define(inst, fmt::format("rj_get({}, {})", vec, lane()));
            }
            case InstKind::kCoord:
                return define(inst, as_type(inst.dtype, coord_names(lane_column()).axis(Axis{inst.axis})));
            case InstKind::kStore:
                if (!arrays.contains(&inst)) {
                    return store_one(inst, plan.addresses.at(&inst),
                                     rows_ > 1 ? std::vector<std::string>{"live"} : std::vector<std::string>{});
                }
                return gather_store(inst, arrays.at(&inst));
            case InstKind::kKeep:
            case InstKind::kAccumulate:
                if (arrays.contains(&inst)) {
                    out_.line(fmt::format("{}[{}] = {};", arrays.at(&inst), lane(), value(inst.operands[0])),
                              inst.comment);
                }
                return;
            default: return define(inst, computed(inst));
        }
    }

    void lane_load(const Inst& inst, const ColumnPlan& plan) {
        if (inst.access.kind == Access::Kind::kUniform) return;  // before the loop
        const auto raw = raw_.find(&inst);
        if (raw == raw_.end()) return define(inst, load_one(inst, plan.addresses.at(&inst)));
        const std::string at = raw->second.lanes == 1 ? "0" : element(inst);
        Inst unpacked = inst;
        unpacked.comment.clear();  // stands at the load
        define(unpacked, fmt::format("rj_get({}, {})", raw->second.name, at));
    }

    void gather_store(const Inst& inst, const std::string& array) {
        std::string stored = value(inst.operands[0]);
        if (inst.accumulate) stored = fmt::format("rj_get({}, {}) + {}", raw_.at(&inst).name, element(inst), stored);
        out_.line(fmt::format("{}[{}] = {};", array, element(inst), stored), inst.comment);
    }

    // After the lanes: what leaves as a vector.
    void leave(const Inst& inst, const ColumnPlan& plan, const std::map<const Inst*, std::string>& arrays) {
        if (inst.kind == InstKind::kAccumulate) {
            out_.line(fmt::format("{}.add({});", states_[static_cast<std::size_t>(inst.index)], arrays.at(&inst)));
        } else if (inst.kind == InstKind::kStore && arrays.contains(&inst)) {
            out_.line(fmt::format("{}rj_store({}, rj_pack<{}>({}));", rows_ > 1 ? "if (live) " : "",
                                  plan.addresses.at(&inst).text(), gpu_storage_type(inst.dtype), arrays.at(&inst)));
        } else if (inst.kind == InstKind::kKeep) {
            keep(inst, plan, arrays);
        }
    }

    void keep(const Inst& inst, const ColumnPlan& plan, const std::map<const Inst*, std::string>& arrays) {
        const Inst* load = kept_load(*loop_, plan, inst);
        const bool in_registers = slot(inst).residency == Residency::kRegisters;
        if (load != nullptr && in_registers) return;  // the loaded vector itself
        const std::string vec =
            load != nullptr ? raw_.at(load).name
                            : fmt::format("rj_pack<{}>({})", gpu_storage_type(slot(inst).dtype), arrays.at(&inst));
        if (in_registers) {
            out_.line(fmt::format("{} = {};", kept_.at(inst.index).name, vec));
        } else {
            out_.line(fmt::format("rj_shared_store({}, {});", shared_offset(slot(inst)), vec));
        }
    }

    const Kernel& kernel_;
    const Target& target_;
    const int threads_;
    const int rows_;
    NameTable names_;
    SourceWriter out_;

    std::vector<Dtype> dtypes_;            // by value
    std::vector<std::string> text_;        // by value: a name or a literal
    std::set<ValueId> rounded_;            // values used for more than being packed
    std::set<AxisId> axes_used_;           // whose coordinate something needs
    std::vector<std::string> parameters_;  // by argument
    std::vector<std::string> states_;      // by accumulator

    std::map<AxisId, std::string> axis_text_;       // coordinates of row axes, and of an open loop over rows
    std::map<std::string, std::string> row_names_;  // row pointers and conditions, by what they stand for
    std::map<int, Raw> kept_;                       // by slot: vectors kept in registers

    // Of the open loop.
    const ColumnLoop* loop_ = nullptr;
    std::set<AxisId> loop_axes_;
    std::set<ValueId> loop_values_;
    std::map<const Inst*, Raw> raw_;
    std::map<const Inst*, std::string> shared_;
    std::map<const Inst*, std::string> permutations_;
    std::map<const Inst*, std::string> divisors_;
};

}  // namespace

std::string gpu_prelude(const Target& target) {
    RJ_CHECK(target.is_gpu(), "emit gpu: {} is no GPU", target.name);
    std::string text = fmt::format("#define RJ_WARP_SIZE {}\n\n", target.warp_size);
    const bool cuda = target.backend == Backend::kCuda;
    for (const std::string_view part :
         {cuda ? embedded::prelude_cuda : embedded::prelude_hip, cuda ? std::string_view() : embedded::prelude_math,
          embedded::prelude_trig, embedded::prelude_divide, embedded::prelude}) {
        if (!part.empty()) text.append(part).append("\n");
    }
    return text;
}

std::string emit_gpu_body(const Kernel& kernel, const Target& target) { return BodyEmitter(kernel, target).run(); }

Source emit_gpu(const Kernel& kernel, const Target& target) {
    return {gpu_prelude(target) + emit_gpu_body(kernel, target), {kernel.name}};
}

}  // namespace rowjit
