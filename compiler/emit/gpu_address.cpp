// Where an access of a GPU kernel meets memory, and how it reads there: coordinates, the address of a loop's position,
// and the loads and stores at it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "compiler/emit/gpu_scope.h"
#include "compiler/passes/passes.h"

namespace rowjit {
namespace {

constexpr std::int64_t kInt32Limit = std::int64_t{1} << 31;

}  // namespace

// ---- coordinates and addresses --------------------------------------------------------------------------------------

std::string GpuScope::column_axis(const ColumnLoop& loop, AxisId axis, const std::string& position) const {
    std::int64_t inner = 1;
    for (std::size_t i = loop.axes.size(); i-- > 0;) {
        const std::int64_t extent = kernel_.axis(loop.axes[i]).extent;
        if (loop.axes[i] != axis) {
            inner *= extent;
            continue;
        }
        const std::string outer = inner == 1 ? position : fmt::format("({} / {})", position, inner);
        return i == 0 ? outer : fmt::format("({} % {})", outer, extent);
    }
    RJ_CHECK(false, "emit gpu: {}: axis {} in a loop over [{}]", kernel_.name, kernel_.axis(axis).label(),
             axis_list(loop.axes));
}

CoordNames GpuScope::coord_names(const GpuLoop& loop, const std::string& position) const {
    const auto axis_name = [this, &loop, position](Axis axis) {
        if (const auto found = axis_text_.find(axis.id); found != axis_text_.end()) return found->second;
        RJ_CHECK(loop.columns != nullptr, "emit gpu: {}: axis {} outside its loop", kernel_.name,
                 kernel_.axis(axis.id).label());
        return column_axis(*loop.columns, axis.id, position);
    };
    return {axis_name, [this](std::int32_t id) { return value(id); }};
}

std::string GpuScope::coordinate(const Inst& inst, const GpuLoop& loop, const std::string& position) const {
    return gpu_converted(inst.dtype, coord_names(loop, position).axis(Axis{inst.axis}));
}

std::string GpuScope::stride(const Inst& inst, std::size_t axis) const {
    const KernelTensor& t = tensor(inst);
    if (kernel_.axis(t.axes[axis]).is_row) return argument(KernelArgument::Kind::kStride, inst.index, t.axes[axis]);
    return std::to_string(t.column_strides[axis - (t.axes.size() - t.column_strides.size())]);
}

// Whether the loop's part of the offset fits 32 bits.
bool GpuScope::fits_int32(const Inst& inst, const GpuLoop& loop) const {
    const auto extent_of = [&](Axis axis) { return kernel_.axis(axis.id).extent; };
    std::int64_t reach = 0;
    for (std::size_t i = 0; i < inst.coords.size(); ++i) {
        if (!loop.varies(inst.coords[i])) continue;
        std::int64_t low = 0;
        std::int64_t high = 0;
        const bool run_time = kernel_.axis(tensor(inst).axes[i]).is_row;
        if (run_time || !inst.coords[i].bounds(extent_of, &low, &high)) return false;
        reach += std::max(std::abs(low), std::abs(high)) * std::abs(std::stoll(stride(inst, i)));
    }
    return reach < kInt32Limit;
}

// Whether what is alike for all rows of a block is loaded only where a row's columns have not ended, or are aligned.
// What is held stands before the rows, with the same conditions.
bool GpuScope::is_loaded_behind_condition(const Inst& inst, const ColumnLoop& loop) const {
    const bool stays = kernel_.schedule.blocks_per_sm > 0;
    const bool is_table = inst.kind == InstKind::kLoad && inst.held < 0 && kernel_.is_read_only(tensor(inst));
    return stays && is_table && (loop.tail == ColumnLoop::Tail::kVector || loop.is_peeled());
}

// Terms of the row and terms of the loop's position apart: the first become a 64-bit pointer, declared once, the second
// stay in 32 bits.
GpuAddress GpuScope::address(const Inst& inst, const GpuLoop& loop, const std::string& position) {
    const KernelTensor& t = tensor(inst);
    const CoordNames names = coord_names(loop, position);
    const bool narrow_offset = loop.columns == nullptr || fits_int32(inst, loop);
    std::vector<std::string> row_terms;
    std::vector<std::string> loop_terms;
    std::vector<std::string> row_inside;
    std::vector<std::string> loop_inside;
    std::int64_t step = 1;
    // Heads and their columns are put together again by nobody else: c / 128 * 128 + c % 128 took two registers more.
    const bool in_order = loop.columns != nullptr && takes_columns_in_order(kernel_, inst, *loop.columns);
    if (in_order) loop_terms.push_back(narrow_offset ? position : fmt::format("static_cast<long long>({})", position));
    for (std::size_t i = 0; i < inst.coords.size(); ++i) {
        const Coord& coord = inst.coords[i];
        const bool in_loop = loop.varies(coord);
        if (in_order && in_loop) continue;
        std::string at = gpu_coord(coord, names);
        if (!coord.data_nodes().empty()) {
            (in_loop ? loop_inside : row_inside).push_back(fmt::format("rj_inside({}, {})", at, extent(t.axes[i])));
            if (loop.columns == nullptr || !is_near_row(coord))
                at = fmt::format("rj_clamp({}, {})", at, extent(t.axes[i]));
        } else if (in_loop && !narrow_offset) {
            at = fmt::format("static_cast<long long>({})", at);
        }
        if (!in_loop && kernel_.is_in_tiles(t)) continue;  // the row's own
        const std::string term = gpu_scaled(at, stride(inst, i));
        if (in_loop && at == position && !kernel_.axis(t.axes[i]).is_row) step = std::stoll(stride(inst, i));
        if (term != "0") (in_loop ? loop_terms : row_terms).push_back(term);
    }
    GpuAddress result;
    result.base = kernel_.is_in_tiles(t) ? "tile_row" : argument(KernelArgument::Kind::kPointer, inst.index, -1);
    if (loop.columns == nullptr) {
        // Nothing is hoisted by hand outside column loops: the compiler does it where that is possible.
        row_terms.insert(row_terms.end(), loop_terms.begin(), loop_terms.end());
        row_inside.insert(row_inside.end(), loop_inside.begin(), loop_inside.end());
        return {result.base, gpu_joined(row_terms, " + "), gpu_joined(row_inside, " && ")};
    }
    if (!row_terms.empty()) {
        const std::string type = fmt::format("{}{}*", t.written ? "" : "const ", gpu_storage_type(t.dtype));
        std::string row = result.base + " + " + gpu_joined(row_terms, " + ");
        if (!loop.columns->is_resident() && kernel_.is_read_only(t)) row = fmt::format("rj_address({})", row);
        result.base = row_name(t.name + "_row", type, row);
    }
    if (row_terms.empty() && is_loaded_behind_condition(inst, *loop.columns)) {
        const std::string type = fmt::format("const {}*", gpu_storage_type(t.dtype));
        result.base = row_name(t.name + "_here", type, fmt::format("rj_address_here({})", result.base));
    }
    if (!row_inside.empty()) {
        loop_inside.insert(loop_inside.begin(),
                           row_name(t.name + "_inside", "const bool", gpu_joined(row_inside, " && ")));
    }
    result.offset = gpu_joined(loop_terms, " + ");
    if (loop_terms.size() == 1) result.step = step;
    const bool shifts = loop.columns->part == ColumnLoop::Part::kWhole && inst.access.kind == Access::Kind::kVector;
    if (shifts && inst.index != kernel_.peeled_by->index)
        result.aligned = row_name(t.name + "_aligned", "const bool",
                                  fmt::format("rj_is_aligned<{}>({} + {})", loop.columns->vector, result.base, head()));
    result.inside = gpu_joined(loop_inside, " && ");
    return result;
}

void GpuScope::declare_head(const std::string& first_row) {
    const AxisId rows = kernel_.row_axes.front();
    bind_axis(rows, kernel_.last_first ? fmt::format("(rows - 1 - {})", first_row) : first_row);
    head_ = head();
    forget_axes({rows});
}

std::string GpuScope::head() {
    if (!head_.empty()) return head_;
    const KernelTensor& t = tensor(*kernel_.peeled_by);
    const ColumnLoop row{.axes = {t.axes.back()}};
    const GpuAddress first = address(*kernel_.peeled_by, {.columns = &row, .axes = {t.axes.back()}}, "0");
    return row_name("head", "const int", fmt::format("rj_peeled_head<{}>({})", kernel_.schedule.vector, first.base));
}

// ---- memory ---------------------------------------------------------------------------------------------------------

std::string GpuScope::load(const Inst& inst, const GpuAddress& at, int lanes) const {
    const KernelTensor& t = tensor(inst);
    const std::string_view suffix = kernel_.is_read_only(t) ? "_readonly" : "";
    std::string load = at.aligned.empty()
                           ? fmt::format("rj_load{}<{}>({})", suffix, lanes, at.text())
                           : fmt::format("rj_load_peeled{}<{}>({}, {})", suffix, lanes, at.text(), at.aligned);
    if (at.inside.empty()) return load;
    return fmt::format("{} ? {} : rj_zeros<{}, {}>()", at.inside, load, gpu_storage_type(t.dtype), lanes);
}

std::string GpuScope::load_one(const Inst& inst, const GpuAddress& at) const {
    const KernelTensor& t = tensor(inst);
    const std::string load = fmt::format("rj_load_one{}({})", kernel_.is_read_only(t) ? "_readonly" : "", at.text());
    return at.inside.empty() ? load : fmt::format("{} ? {} : {}", at.inside, load, gpu_literal(inst.dtype, 0));
}

void GpuScope::ask(const Inst& load) {
    const bool waits = std::any_of(load.coords.begin(), load.coords.end(),
                                   [](const Coord& coord) { return !coord.data_nodes().empty(); });
    if (!waits && kernel_.lanes_axis < 0) asked_.push_back(value(load.id));
}

void GpuScope::store_one(const Inst& inst, const GpuAddress& at, std::vector<std::string> conditions) {
    if (!at.inside.empty()) conditions.push_back(at.inside);
    std::string stored = value(inst.operands[0]);
    if (inst.accumulate) stored = gpu_operation(inst.op, fmt::format("rj_load_one({})", at.text()), stored);
    const std::string store = fmt::format("rj_store_one({}, {});", at.text(), stored);
    out_.line(conditions.empty() ? store : fmt::format("if ({}) {}", gpu_joined(conditions, " && "), store),
              inst.comment);
}

}  // namespace rowjit
