// The frame of a kernel (signature, where a thread stands, the loop over rows), its statements in turn, and the loads
// of rows to come. The rest of KernelEmitter is in gpu_row_loops.cpp (other orders of rows), gpu_reduce.cpp (where
// threads meet) and gpu_steps.cpp (fixpoints and rounds); column loops are gpu_columns.h's, loops over reduced rows
// gpu_rows.h's, orders of ids gpu_order.cpp's. What stands before the kernel is in gpu_prelude.cpp.
#include "compiler/emit/gpu.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "compiler/emit/gpu_columns.h"
#include "compiler/emit/gpu_emitter.h"
#include "compiler/passes/passes.h"
#include "compiler/passes/rounds.h"
#include "compiler/schedule/lower.h"
#include "embedded/prelude_order.h"
#include "embedded/prelude_product.h"

namespace rowjit {
namespace gpu_emit {

namespace {

bool is_loop(const Stmt& stmt) { return std::holds_alternative<ColumnLoop>(stmt.node); }

}  // namespace

std::string KernelEmitter::run() {
    RJ_CHECK(may_share_row(kernel_.schedule, scope_.target().warp_size), "emit gpu: {}: {} threads per row",
             kernel_.name, scope_.threads());
    signature();
    if (kernel_.order) {
        order_ids();
        out_.close();
        return out_.take();
    }
    geometry();
    if (kernel_.rows_alike > 1) scope_.declare_head(first_row_block());
    scope_.declare_carried();
    scope_.declare_states(true);
    if (scope_.rows() > 1) scope_.set_live("row_in_block == 0");
    for (const Stmt& stmt : kernel_.before) statement(stmt);
    for (const Stmt& stmt : kernel_.body) {
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) emit_held_loads(*loop, scope_);
    }
    outside_ = scope_.row_names();
    if (kernel_.schedule.fetches_ahead()) declare_fetch();
    if (kernel_.product) {
        tile_rows();
    } else if (kernel_.schedule.skew) {
        skewed_rows();
    } else if (kernel_.schedule.shares > 0) {
        shared_rows();
    } else if (kernel_.walk) {
        walked_rows();
    } else {
        rows();
    }
    if (waits_late_) wait_for_last("where there was no row, too");
    if (kernel_.neighbours.beside) end_behind_last();
    scope_.set_row_names(outside_);
    if (scope_.rows() > 1) scope_.set_live(first_of_place());
    for (const Stmt& stmt : kernel_.after) statement(stmt);
    if (!kernel_.outer.empty()) close_units();
    out_.close();
    return out_.take();
}

void KernelEmitter::rows() {
    open_row_loop();
    wait_for_copies();
    scope_.declare_coming();
    scope_.declare_row();
    scope_.declare_states(false);
    const auto last = std::find_if(kernel_.body.rbegin(), kernel_.body.rend(), is_loop);
    const auto behind_loops = static_cast<std::size_t>(last.base() - kernel_.body.begin());
    const std::size_t needs_wait = waits_late_ ? first_that_waits() : kernel_.body.size();
    load_before_numbers();
    const std::optional<Rounds> found = find_rounds(kernel_);
    for (std::size_t at = 0;;) {
        // A thread has read of its stage what it copied there; the next row comes while this one's threads meet.
        if (at == behind_loops && stays_in_stage()) scope_.fetch_ahead();
        if (at == kernel_.body.size()) break;
        if (at == needs_wait) wait_for_last("what the kernel before wrote is there");
        if (found && at == found->first) {
            rounds(*found);
            at = found->end();
        } else {
            statement(kernel_.body[at++]);
        }
    }
    close_row();
}

void KernelEmitter::wait_for_copies() {
    if (kernel_.schedule.stages == 0) return;
    // While a skewed row comes, the one before is still in its stage.
    const int later = kernel_.schedule.stages - (kernel_.schedule.skew && stays_in_stage() ? 2 : 1);
    out_.line(fmt::format("rj_wait_for_copies<{}>();", later), "this row's have come");
}

void KernelEmitter::close_row() {
    if (kernel_.cluster_blocks() > 1) out_.line("++turn;");
    out_.close();
}

void KernelEmitter::signature() {
    out_.line(fmt::format("// {}: {}", kernel_.name, print(kernel_.schedule)));
    out_.line(
        fmt::format("// for {}; a row for each of [{}]", scope_.target().name, scope_.axis_list(kernel_.row_axes)));
    const int blocks = kernel_.schedule.min_blocks_per_sm;
    out_.line(blocks > 0 ? fmt::format("RJ_KERNEL({}, {})", kernel_.launched_threads(), blocks)
                         : fmt::format("RJ_KERNEL({})", kernel_.launched_threads()));
    out_.open(fmt::format("{}({})", kernel_.name, fmt::join(scope_.declare_parameters(), ",\n    ")));
}

// Where this thread stands in its block.
void KernelEmitter::geometry() {
    if (kernel_.product) return product_geometry();
    const int threads = scope_.threads();
    const int rows = scope_.rows();
    const bool across = kernel_.schedule.across;
    if (threads > 1) {
        const std::string part = across ? fmt::format(" / {}", rows) : fmt::format(" % {}", threads);
        out_.line(fmt::format("const int t = rj_thread(){};", rows > 1 ? part : ""), "thread of the row");
    }
    if (rows > 1 && kernel_.schedule.shares == 0) {
        const std::string part = across ? fmt::format("% {}", rows) : fmt::format("/ {}", threads);
        out_.line(fmt::format("const int row_in_block = rj_thread() {};", part));
    }
    if (rows > 1 && kernel_.shared_bytes_per_row > 0 && !kernel_.walk && !across) {
        out_.line(fmt::format("const int row_shared = row_in_block * {};", kernel_.shared_bytes_per_row),
                  "byte offset of the row's shared memory");
    }
    if (kernel_.schedule.column_blocks > 1)
        out_.line(fmt::format("const int column_block = rj_block() % {};", kernel_.schedule.column_blocks));
    const bool in_units = !kernel_.outer.empty();
    if (!in_units) place_of_part();
    if (kernel_.cluster_blocks() > 1) {
        out_.line(fmt::format("rj_cluster_open<{}>({});", kernel_.scratch_regions, kernel_.mailbox_offset_bytes));
        out_.line("int turn = 0;", "rows of this cluster that are done");
        declare_turns_of_steps();
    }
    if (!in_units) declare_rows();
    if (kernel_.neighbours.leads) out_.line("rj_let_next_begin();");
    if (kernel_.neighbours.waits && !kernel_.neighbours.beside && !waits_late_)
        wait_for_last("what the kernel before wrote is there");
    if (in_units) open_units();
}

void KernelEmitter::declare_rows() {
    const std::string of_row = kernel_.row_lanes() > 1 ? fmt::format(" / {}", kernel_.row_lanes()) : "";
    out_.line(fmt::format("const long long rows = {}{};", scope_.positions(kernel_.inner_axes()), of_row));
}

void KernelEmitter::place_of_part() {
    if (kernel_.slots_axis < 0) return;
    const std::int64_t of_part = kernel_.blocks_of_part();
    const std::string first = first_row_block();
    const std::string slot = of_part > 1 ? fmt::format("{} / {}", first, of_part) : first;
    out_.line(fmt::format("const long long slot = {};", slot), "this block's place among the parts of sums");
    scope_.bind_axis(kernel_.slots_axis, "slot");
    if (!kernel_.apart.empty()) place_apart();
}

// Where sums are not over the outer row axes, what else is a whole kernel's is that of the rows of one position
// along these: as many blocks as its sums have parts share them, and a block comes to the next such share with sums
// that begin again.
void KernelEmitter::open_units() {
    const std::int64_t of_part = kernel_.blocks_of_part();
    const std::string of_each = of_part > 1 ? fmt::format(" * {}", of_part) : "";
    out_.line(fmt::format("const long long part_blocks = {}{};", scope_.extent(kernel_.slots_axis), of_each),
              fmt::format("that share the rows of each [{}]", scope_.axis_list(kernel_.outer)));
    out_.line(fmt::format("const long long units = {} * part_blocks;", scope_.positions(kernel_.outer)));
    out_.open(fmt::format("for (long long unit = {}; unit < units; unit += {})", first_cluster(), grid_step(kernel_)));
    out_.line("const long long outer_row = rj_quotient(unit, part_blocks);");
    out_.line("const long long part_block = unit - outer_row * part_blocks;");
    scope_.declare_outer_row();
    place_of_part();
    declare_rows();
}

// What a block shares of one unit, it may write for the next.
void KernelEmitter::close_units() {
    if (kernel_.shared_bytes > 0) out_.line("rj_barrier();", "all have done with what lies in shared memory");
    out_.close();
}

// Whether a row may begin before the kernel before has ended: up to its first statement that needs what that one
// wrote, or writes what it may read. Not where what comes before the rows may need it.
bool KernelEmitter::waits_late() const {
    const auto is_early = [&](const Inst& inst) {
        return (inst.held >= 0 || kernel_.schedule.fetches_ahead()) && kernel_.reads_made(inst);
    };
    bool early = !kernel_.before.empty() || !kernel_.outer.empty() || kernel_.walk || kernel_.schedule.skew ||
                 kernel_.schedule.shares > 0 || find_rounds(kernel_).has_value();
    each_inst(kernel_, [&](const Inst& inst) { early = early || is_early(inst); });
    return kernel_.neighbours.waits && !kernel_.neighbours.beside && !early;
}

// A kernel that waits for this one, which needed nothing of those before it, finds done what they did. The block that
// comes last keeps this one from ending sooner; others that waited would have the places of those behind them.
void KernelEmitter::end_behind_last() {
    out_.line(fmt::format("if (rj_block() == rj_grid({}) - 1) rj_wait_for_last();", kernel_.block_threads()),
              "nor ends before them");
}

// Of a peeled row the loads of its ends stand before the loop over its whole vectors.
std::size_t KernelEmitter::first_that_waits() const {
    const auto needs = [&](const Stmt& stmt) {
        bool found = false;
        const auto ask = [&](const Inst& inst) {
            found = found || inst.kind == InstKind::kStore || kernel_.reads_made(inst);
        };
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) ask(*inst);
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) std::ranges::for_each(loop->body, ask);
        if (const auto* loop = std::get_if<RowsLoop>(&stmt.node)) std::ranges::for_each(loop->body, ask);
        return found;
    };
    for (std::size_t at = 0; at < kernel_.body.size(); ++at) {
        const ColumnLoop* ends = ends_behind(kernel_.body[at]);
        if (needs(kernel_.body[at]) || (ends != nullptr && needs(kernel_.body[at + 1]))) return at;
    }
    return kernel_.body.size();
}

// Where all rows of the thread are along the axes that sums are not over.
void KernelEmitter::place_apart() {
    const std::string place = fmt::format("{} % {}", first_row_block(), kernel_.blocks_of_part());
    std::string text = place;
    if (kernel_.rows_of_place() > 1) {
        text = fmt::format("row_in_block % {}", kernel_.positions_apart());
    } else if (scope_.rows() > 1) {
        text = fmt::format("({}) * {} + row_in_block", place, scope_.rows());
    }
    out_.line(fmt::format("const long long place = {};", text), "of all of the thread's rows");
    scope_.declare_coordinates("place", kernel_.apart);
}

// Of the rows of a block at one place those that have its sums once they have joined them; "" where each has its own.
std::string KernelEmitter::first_of_place() const {
    if (kernel_.rows_of_place() == 1) return "";
    return kernel_.apart.empty() ? "row_in_block == 0" : fmt::format("row_in_block < {}", kernel_.positions_apart());
}

std::string KernelEmitter::first_cluster() const {
    if (kernel_.schedule.column_blocks == 1) return "rj_block()";
    return fmt::format("rj_block() / {}", kernel_.schedule.column_blocks);
}

// The loads of a row's first phase as a function of the row, called for the first rows here and for later ones
// while the block works on the one before: over the barrier where a row's threads meet, memory is busy with the
// next.
void KernelEmitter::declare_fetch() {
    const auto first = std::find_if(kernel_.body.begin(), kernel_.body.end(), is_loop);
    if (first == kernel_.body.end()) return;
    const bool staged = kernel_.schedule.stages > 0;
    const auto in_stage = [](const Inst& inst) { return inst.stage_offset_bytes >= 0; };
    RowLoads loads;
    for (auto at = first; at != kernel_.body.end() && is_loop(*at); ++at) {
        const auto& loop = std::get<ColumnLoop>(at->node);
        if (at != first && !(staged && std::ranges::any_of(loop.body, in_stage))) break;
        loads.columns.emplace_back(loop, scope_).declare("next");
    }
    if (const ColumnLoop* ends = ends_behind(*first)) {
        fetched_ends_.emplace(*ends, scope_);
        fetched_ends_->declare("next");
    }
    if (!scope_.fetches()) return;
    std::for_each(kernel_.body.begin(), first, [&](const Stmt& before) {
        const auto* inst = std::get_if<Inst>(&before.node);
        if (inst == nullptr || (staged ? inst->stage_offset_bytes < 0 : !kernel_.can_fetch(*inst))) return;
        loads.numbers.push_back(inst);
        declare_fetched(*inst);
    });
    declare_loads("fetch", "the loads of a row, to be used when the block comes to it", &loads);
    if (!staged) return scope_.fetch(first_row_block(), "first");
    if (kernel_.refills) declare_refills(std::move(loads));
    fill_stages();
}

void KernelEmitter::declare_loads(std::string_view function, const std::string& comment, RowLoads* loads) {
    const bool staged = kernel_.schedule.stages > 0;
    out_.open(fmt::format("const auto {} = [&](long long row{})", function, staged ? ", int stage" : ""), comment);
    scope_.declare_row();
    for (const Inst* load : loads->numbers) {
        const GpuAddress at = scope_.address(*load, {}, "");
        out_.line(staged ? fmt::format("rj_copy_ahead<{0}>({1}, {2});", size_bytes(load->dtype),
                                       scope_.staged(load->stage_offset_bytes, "", size_bytes(load->dtype)), at.text())
                         : fmt::format("{} = {};", scope_.fetched(*load), scope_.load_one(*load, at)));
    }
    for (ColumnFetch& columns : loads->columns) columns.load();
    if (fetched_ends_) fetched_ends_->load();
    out_.close(";");
    scope_.forget_axes(kernel_.inner_axes());
    scope_.set_row_names(outside_);
}

// What loops copy of a row to come, vector by vector, and what is left to copy behind the row.
void KernelEmitter::declare_refills(RowLoads loads) {
    for (const Stmt& stmt : kernel_.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr || loop->refills.empty()) continue;
        declare_refill(*loop, scope_);
        scope_.set_row_names(outside_);
        for (ColumnFetch& columns : loads.columns) columns.leave_out(loop->refills);
    }
    if (loads.numbers.empty() && std::ranges::all_of(loads.columns, &ColumnFetch::is_empty)) return;
    declare_loads("fetch_rest", "what of a row no loop copies", &loads);
    scope_.leave_rest();
}

// Where a row's numbers take long, the loads of its columns stand before them: they would stay behind the branch of a
// division, and the numbers wait for loads of their own. H100, the derivatives of a clipped policy's loss from 32000
// bf16 logits, fifty numbers of a row: 0.100 ms so, 0.128 where they stood behind. Not of several rows a block, whose
// numbers are most of the work, nor of rows that meet, for both of which the registers are worth more: orpo's of 1152
// columns 0.181 and 0.167, hyper_pre's 0.143 and 0.134.
void KernelEmitter::load_before_numbers() {
    constexpr std::ptrdiff_t kLong = 5;  // functions and divisions; of kl_div's four 0.0802 ms and 0.0779
    const auto first = std::ranges::find_if(kernel_.body, is_loop);
    const Schedule& schedule = kernel_.schedule;
    if (first == kernel_.body.end() || schedule.family != Family::kElementwise || schedule.fetches_ahead()) return;
    const auto& loop = std::get<ColumnLoop>(first->node);
    const auto takes_long = [](const Stmt& stmt) {
        const auto* inst = std::get_if<Inst>(&stmt.node);
        return inst != nullptr && inst->kind == InstKind::kMap && is_special(inst->op);
    };
    const auto waits = [&](const Inst& inst) { return kernel_.reads_made(inst); };
    const bool is_long = std::count_if(kernel_.body.begin(), first, takes_long) >= kLong;
    if (!is_long || scope_.rows() > 1 || loop.is_peeled()) return;
    if (waits_late_ && std::ranges::any_of(loop.body, waits)) return;
    ColumnFetch columns(loop, scope_);
    columns.declare("ahead");
    columns.load();
}

// What holds a row's own value until the row comes.
void KernelEmitter::declare_fetched(const Inst& load) {
    if (kernel_.schedule.stages > 0) {
        const std::string type = gpu_vec_type(load.dtype, 1);
        return scope_.set_fetched(load,
                                  fmt::format("rj_get(rj_shared_load_vec<{}>({}), 0)", type,
                                              scope_.staged(load.stage_offset_bytes, "", size_bytes(load.dtype))));
    }
    scope_.set_fetched(load, scope_.names().fresh(scope_.tensor(load).name + "_next"));
    out_.line(fmt::format("{} {};", gpu_value_type(load.dtype), scope_.fetched(load)));
}

// A stage has its turn of copies, if of nothing, so that a row's are always the same number of turns old.
void KernelEmitter::fill_stages() {
    const int stages = kernel_.schedule.stages;
    out_.line(fmt::format("int stage = {};", scope_.stage_begin(0)), "the row's place in shared memory");
    if (stages == 1) {
        scope_.fetch(first_row_block(), "first");
        out_.line("rj_copies_issued();");
        return;
    }
    out_.open(fmt::format("for (int ahead = 0; ahead < {}; ++ahead)", stages));
    scope_.fetch(fmt::format("{} + ahead * {}", first_row_block(), row_step(kernel_)), "first");
    out_.line("rj_copies_issued();");
    out_.line(fmt::format("stage += {};", kernel_.stage_bytes));
    out_.close();
    out_.line(fmt::format("stage = {};", scope_.stage_begin(0)));
}

// All threads of a block run the same iterations, since they meet at barriers and in shuffles.
void KernelEmitter::open_row_loop() {
    const std::string first = first_row_block();
    const std::string step = row_step(kernel_);
    const int rows = scope_.rows();
    if (rows == 1) {
        out_.open(fmt::format("for (long long row = {}; row < rows; row += {})", first, step));
        return;
    }
    out_.open(fmt::format("for (long long row_block = {}; row_block * {} < rows; row_block += {})", first, rows, step));
    out_.line("// The last block may have fewer rows; its other threads follow the last one and store nothing.");
    out_.line(fmt::format("const bool live = row_block * {} + row_in_block < rows;", rows));
    out_.line(fmt::format("const long long row = live ? row_block * {} + row_in_block : rows - 1;", rows));
    scope_.set_live("live");
}

void KernelEmitter::statement(const Stmt& stmt) {
    if (const auto* inst = std::get_if<Inst>(&stmt.node)) return row_inst(*inst);
    if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) return column_loop(stmt, *loop);
    if (const auto* rows = std::get_if<RowsLoop>(&stmt.node)) return rows_.loop(*rows);
    if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) return all_reduce(*reduce);
    if (const auto* join = std::get_if<JoinRows>(&stmt.node)) return join_rows(*join);
    if (const auto* open = std::get_if<OpenSteps>(&stmt.node)) return open_steps(*open);
    if (const auto* close = std::get_if<CloseSteps>(&stmt.node)) return close_steps(*close);
    out_.line("rj_barrier();");
}

void KernelEmitter::column_loop(const Stmt& stmt, const ColumnLoop& loop) {
    if (const ColumnLoop* ends = ends_behind(stmt)) load_ends(*ends);
    emit_column_loop(loop, scope_, kept_);
}

// Of a peeled row the loop over its ends, where the statement is that over its whole vectors.
const ColumnLoop* KernelEmitter::ends_behind(const Stmt& stmt) {
    const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
    if (loop == nullptr || loop->part != ColumnLoop::Part::kWhole) return nullptr;
    return &std::get<ColumnLoop>(std::next(&stmt)->node);
}

// Few threads have any of a row's ends, and all of the row's would wait for them: they are on their way with the
// rest.
void KernelEmitter::load_ends(const ColumnLoop& ends) {
    if (fetched_ends_) {
        fetched_ends_->take("ends");
        fetched_ends_.reset();
        return;
    }
    ColumnFetch fetch(ends, scope_);
    fetch.declare("ends");
    fetch.load();
}

// Every thread of the row has the value; one stores it.
void KernelEmitter::row_inst(const Inst& inst) {
    std::vector<std::string> one;
    if (scope_.threads() > 1) one.emplace_back("t == 0");
    if (!scope_.live().empty()) one.push_back(scope_.live());
    if (kernel_.schedule.column_blocks > 1) one.emplace_back("column_block == 0");
    rows_.inst(inst, one);
}

}  // namespace gpu_emit

std::string emit_gpu_body(const Kernel& kernel, const Target& target) {
    return gpu_emit::KernelEmitter(kernel, target).run();
}

Source emit_gpu(const Kernel& kernel, const Target& target) {
    std::string prelude = gpu_prelude(target);
    if (kernel.product) prelude.append(embedded::prelude_product).append("\n");
    if (kernel.order) prelude.append(embedded::prelude_order).append("\n");
    return {std::move(prelude) + emit_gpu_body(kernel, target), {kernel.name}};
}

}  // namespace rowjit
