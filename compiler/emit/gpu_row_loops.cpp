// The loops over a block's rows that are not one row after the other: runs of rows that read rows before them, and rows
// of a cluster of which two are at work at once. Rows that are segments of others are gpu_segments.cpp's, the plain
// loop is gpu.cpp's.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "compiler/emit/gpu_columns.h"
#include "compiler/emit/gpu_emitter.h"
#include "compiler/passes/passes.h"

namespace rowjit::gpu_emit {

// Each of the block's rows is the first of a run, as long as the others'. The rows before it that fill the windows
// are the same text without what is stored or summed. Windows in registers move on with each row, and stand still
// where as many rows are unrolled as they hold: H200, a convolution of four rows and SiLU of 4096 bf16 columns
// 0.166 ms with each row by itself, 0.142 with two unrolled, 0.140 with four.
void KernelEmitter::walked_rows() {
    constexpr int kUnrolledRows = 4;
    const Walk& walk = *kernel_.walk;
    const bool copies = kernel_.shared_bytes_per_row > 0;
    const auto declare = [&](std::string_view wanted, const std::string& value) {
        const std::string name = scope_.names().fresh(wanted);
        out_.line(fmt::format("const long long {} = {};", name, value));
        return name;
    };
    const int together = scope_.rows();
    const std::string of_block = together > 1 ? fmt::format(" * {}", together) : "";
    const std::string runs = declare("runs", fmt::format("static_cast<long long>({}){}", row_step(kernel_), of_block));
    const std::string length = declare("run_rows", fmt::format("rj_quotient(rows + {0} - 1, {0})", runs));
    const std::string place =
        together > 1 ? fmt::format("{}{} + row_in_block", first_row_block(), of_block) : first_row_block();
    const std::string first = declare("run_first", fmt::format("({}) * {}", place, length));
    const std::string end = declare("run_end", fmt::format("rj_min({} + {}, rows)", first, length));
    for (const Stmt& stmt : kernel_.body) {
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) declare_windows(*loop, scope_, kept_);
    }
    if (copies) out_.line("int walked = 0;", "rows, and those before them");
    const std::string begin = scope_.names().fresh("begin");
    const std::string stop = scope_.names().fresh("stop");
    out_.open(fmt::format("for (long long {0} = {1}, {2} = 0; {0} < {3}; {0} = {2})", begin, first, stop, end));
    const std::string row = place_in_sequence(begin, stop, end);
    const std::string take = scope_.names().fresh("take");
    out_.open(fmt::format("const auto {} = [&](long long row, auto live)", take));
    scope_.set_live("live");
    scope_.bind_axis(walk.axis, row);
    for (const Stmt& stmt : kernel_.body) statement(stmt);
    move_windows(scope_, kept_);
    if (copies) out_.line("++walked;");
    out_.close(";");
    out_.line("RJ_ROLLED");
    out_.line(fmt::format("for (long long row = {0} - {1}; row < {0}; ++row) {2}(row, rj_constant<false>());", begin,
                          walk.warm_rows, take));
    out_.line(fmt::format("#pragma unroll {}", kUnrolledRows));
    out_.line(
        fmt::format("for (long long row = {}; row < {}; ++row) {}(row, rj_constant<true>());", begin, stop, take));
    out_.close();
    if (copies) {
        out_.line("rj_wait_for_copies<0>();");
        if (together > 1) out_.line("rj_barrier();", "no row reads its window any more");
    }
    scope_.set_live("");
    scope_.forget_axes(kernel_.inner_axes());
}

// Ends a part of a run where the innermost row axis does: those rows' coordinates along the others, and the text of
// that along itself.
std::string KernelEmitter::place_in_sequence(const std::string& begin, const std::string& stop,
                                             const std::string& end) {
    const std::vector<AxisId> outer(kernel_.row_axes.begin(), std::prev(kernel_.row_axes.end()));
    if (outer.empty()) {
        out_.line(fmt::format("{} = {};", stop, end));
        return "row";
    }
    const std::string rows = scope_.extent(kernel_.walk->axis);
    const std::string sequence = scope_.names().fresh("sequence");
    const std::string origin = scope_.names().fresh("origin");
    out_.line(fmt::format("const long long {} = rj_quotient({}, {});", sequence, begin, rows));
    out_.line(fmt::format("const long long {} = {} * {};", origin, sequence, rows));
    out_.line(fmt::format("{} = rj_min({}, {} + {});", stop, end, origin, rows));
    scope_.declare_coordinates(sequence, outer);
    return fmt::format("(row - {})", origin);
}

std::string KernelEmitter::first_phase_of(const std::string& row, const std::string& stage) const {
    return stays_in_stage() ? fmt::format("first_phase({}, {});", row, stage) : fmt::format("first_phase({});", row);
}

// The first phase of each row, up to what it sends to its cluster, comes before the last phase of the row before:
// what a row sends is on its way while its block works on two others.
void KernelEmitter::skewed_rows() {
    const auto is_reduce = [](const Stmt& stmt) { return std::holds_alternative<AllReduce>(stmt.node); };
    const auto reduce = std::find_if(kernel_.body.begin(), kernel_.body.end(), is_reduce);
    const std::span first_phase(kernel_.body.begin(), reduce);
    const std::span last_phase(std::next(reduce), kernel_.body.end());
    const auto& all_reduce = std::get<AllReduce>(reduce->node);
    scope_.declare_states(false);
    std::vector<Left> left = declare_left(first_phase, last_phase);
    first_phase_function(first_phase, left);
    const std::string sent = states(all_reduce);
    const std::string first = first_row_block();
    out_.open(fmt::format("if ({} < rows)", first));
    out_.line(first_phase_of(first, "stage"));
    out_.line("rj_cluster_wait();", "all blocks have begun");
    out_.line(send(all_reduce, "0", sent));
    out_.close();
    scope_.set_row_names(outside_);

    open_row_loop();
    for (const Left& one : left) take_left(one);
    const std::string next = fmt::format("row + {}", row_step(kernel_));
    out_.line(fmt::format("const bool more = {} < rows;", next));
    out_.line(fmt::format("if (more) {}", first_phase_of(next, scope_.next_stage())));
    scope_.declare_coming();
    scope_.declare_row();
    scope_.declare_states(false);
    out_.line(take(all_reduce, states(all_reduce)));
    out_.line(fmt::format("if (more) {}", send(all_reduce, "(turn + 1)", sent)), "all have taken what lay there");
    declare_results(all_reduce);
    for (const Stmt& stmt : last_phase) statement(stmt);
    if (stays_in_stage()) scope_.fetch_ahead();
    close_row();
}

// Declares, before the rows, what the first phase leaves; from here on the first phase keeps in it.
std::vector<KernelEmitter::Left> KernelEmitter::declare_left(std::span<const Stmt> first_phase,
                                                             std::span<const Stmt> last_phase) {
    const std::set<ValueId> used = values_read_by(last_phase);
    for (const Stmt& stmt : first_phase) {
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) declare_kept(*loop, scope_, kept_);
    }
    std::vector<Left> left;
    for (const Stmt& stmt : first_phase) {
        const auto* inst = std::get_if<Inst>(&stmt.node);
        if (inst == nullptr || !used.contains(inst->id) || stands_anywhere(*inst)) continue;
        const std::string name = scope_.names().fresh(inst->label + "_left");
        left.push_back(
            {std::string(gpu_value_type(inst->dtype)), name, scope_.names().fresh(inst->label), 1, inst->id});
        out_.line(fmt::format("{} {};", left.back().type, name));
    }
    return left;
}

void KernelEmitter::first_phase_function(std::span<const Stmt> first_phase, std::vector<Left>& left) {
    out_.open(fmt::format("const auto first_phase = [&](long long row{})", stays_in_stage() ? ", int stage" : ""),
              "what comes of a row before its cluster meets");
    wait_for_copies();
    scope_.declare_row();
    scope_.reset_states();
    for (const Stmt& stmt : first_phase) statement(stmt);
    for (const Left& one : left) out_.line(fmt::format("{} = {};", one.ahead, scope_.value(one.value)));
    out_.close(";");
    scope_.take_asked();
    scope_.forget_axes(kernel_.inner_axes());
    for (const Left& one : left) scope_.bind(one.value, one.now);
    for (const Stmt& stmt : first_phase) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        for (const Inst& inst : loop->body) {
            if (inst.kind != InstKind::kKeep || !kept_.contains(inst.index)) continue;
            const Slot& slot = scope_.slot(inst);
            std::string& kept = kept_.at(inst.index);
            left.push_back(
                {gpu_vec_type(slot.dtype, loop->vector), kept, scope_.names().fresh(slot.label), loop->iterations});
            kept = left.back().now;
        }
    }
}

void KernelEmitter::take_left(const Left& left) {
    if (left.entries == 1) return out_.line(fmt::format("const {} {} = {};", left.type, left.now, left.ahead));
    out_.line(fmt::format("{} {}[{}];", left.type, left.now, left.entries));
    out_.line("#pragma unroll");
    out_.line(fmt::format("for (int i = 0; i < {}; ++i) {}[i] = {}[i];", left.entries, left.now, left.ahead));
}

std::set<ValueId> KernelEmitter::values_read_by(std::span<const Stmt> block) {
    std::set<ValueId> used;
    for (const Stmt& stmt : block) each_use(stmt, [&](ValueId value) { used.insert(value); });
    return used;
}

// What reads the same wherever it stands in a kernel: it has no name.
bool KernelEmitter::stands_anywhere(const Inst& inst) {
    return inst.kind == InstKind::kConst || inst.kind == InstKind::kScalar || inst.kind == InstKind::kExtent;
}

}  // namespace rowjit::gpu_emit
