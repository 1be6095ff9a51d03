#include "compiler/emit/gpu.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <ranges>
#include <set>
#include <span>

#include "base/check.h"
#include "compiler/emit/gpu_columns.h"
#include "compiler/emit/gpu_rows.h"
#include "compiler/emit/gpu_scope.h"
#include "compiler/passes/passes.h"
#include "compiler/passes/rounds.h"
#include "embedded/prelude.h"
#include "embedded/prelude_cluster.h"
#include "embedded/prelude_cuda.h"
#include "embedded/prelude_divide.h"
#include "embedded/prelude_hip.h"
#include "embedded/prelude_math.h"
#include "embedded/prelude_narrow.h"
#include "embedded/prelude_trig.h"
#include "embedded/prelude_weights.h"

namespace rowjit {
namespace gpu_emit {
namespace {

// A state's accessors and what the names of their values end in, by component.
struct Component {
    std::string accessor;
    std::string suffix;
};

std::vector<Component> greatest_components(int count) {
    std::vector<Component> places;
    for (int r = 0; r < count; ++r) places.push_back({fmt::format("place<{}>", r), fmt::format("_{}", r)});
    return places;
}

std::vector<Component> state_components(const Accumulator& accumulator) {
    switch (accumulator.monoid) {
        case Monoid::kSum:
        case Monoid::kMax:
        case Monoid::kMin: return {{"result", ""}};
        case Monoid::kMaxSumExp: return {{"max", "_max"}, {"sum", "_sum"}};
        case Monoid::kWelford: return {{"mean", "_mean"}, {"squared_deviations", "_squares"}};
        case Monoid::kDivergence:
            return {{"max", "_max"},
                    {"sum", "_sum"},
                    {"other_max", "_other_max"},
                    {"other_sum", "_other_sum"},
                    {"between", "_between"}};
        case Monoid::kGreatest: return greatest_components(accumulator.greatest);
        case Monoid::kExactSum: return {{"result", ""}, {"rest", "_rest"}};
    }
    RJ_CHECK(false, "emit gpu: monoid {}", static_cast<int>(accumulator.monoid));
}

class KernelEmitter {
  public:
    KernelEmitter(const Kernel& kernel, const Target& target)
        : kernel_(kernel), scope_(kernel, target), out_(scope_.out()), rows_(scope_) {}

    std::string run() {
        RJ_CHECK(fills_warps(scope_.threads(), scope_.target().warp_size), "emit gpu: {}: {} threads per row",
                 kernel_.name, scope_.threads());
        signature();
        geometry();
        scope_.declare_carried();
        scope_.declare_states(true);
        if (scope_.rows() > 1) scope_.set_live("row_in_block == 0");
        for (const Stmt& stmt : kernel_.before) statement(stmt);
        for (const Stmt& stmt : kernel_.body) {
            if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) emit_held_loads(*loop, scope_);
        }
        outside_ = scope_.row_names();
        if (kernel_.schedule.fetches_ahead()) declare_fetch();
        scope_.set_row_names(outside_);
        if (kernel_.schedule.skew) {
            skewed_rows();
        } else if (kernel_.schedule.shares > 0) {
            shared_rows();
        } else if (kernel_.walk) {
            walked_rows();
        } else {
            rows();
        }
        if (waits_late_) wait_for_last("where there was no row, too");
        scope_.set_row_names(outside_);
        if (scope_.rows() > 1) scope_.set_live(kernel_.apart.empty() ? "row_in_block == 0" : "");
        for (const Stmt& stmt : kernel_.after) statement(stmt);
        if (!kernel_.outer.empty()) close_units();
        out_.close();
        return out_.take();
    }

  private:
    void rows() {
        open_row_loop();
        wait_for_copies();
        scope_.declare_coordinates("row", kernel_.inner_axes());
        scope_.declare_states(false);
        const auto is_loop = [](const Stmt& stmt) { return std::holds_alternative<ColumnLoop>(stmt.node); };
        const auto last = std::find_if(kernel_.body.rbegin(), kernel_.body.rend(), is_loop);
        const auto behind_loops = static_cast<std::size_t>(last.base() - kernel_.body.begin());
        const std::size_t needs_wait = waits_late_ ? first_that_waits() : kernel_.body.size();
        const std::optional<Rounds> found = find_rounds(kernel_.body);
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

    // Each of the block's rows is the first of a run, as long as the others'. The rows before it that fill the windows
    // are the same text without what is stored or summed. Windows in registers move on with each row, and stand still
    // where as many rows are unrolled as they hold: H200, a convolution of four rows and SiLU of 4096 bf16 columns
    // 0.166 ms with each row by itself, 0.142 with two unrolled, 0.140 with four.
    void walked_rows() {
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
        const std::string runs =
            declare("runs", fmt::format("static_cast<long long>({}){}", row_step(kernel_), of_block));
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
        out_.line(fmt::format("for (long long row = {0} - {1}; row < {0}; ++row) {2}(row, rj_constant<false>());",
                              begin, walk.warm_rows, take));
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
    std::string place_in_sequence(const std::string& begin, const std::string& stop, const std::string& end) {
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

    void wait_for_copies() {
        if (kernel_.schedule.stages == 0) return;
        // While a skewed row comes, the one before is still in its stage.
        const int later = kernel_.schedule.stages - (kernel_.schedule.skew && stays_in_stage() ? 2 : 1);
        out_.line(fmt::format("rj_wait_for_copies<{}>();", later), "this row's have come");
    }

    // Whether a row's stage is free for another only after the row.
    bool stays_in_stage() const { return kernel_.schedule.residency == Residency::kStages; }

    void close_row() {
        if (kernel_.cluster_blocks() > 1) out_.line("++turn;");
        out_.close();
    }

    std::string first_phase_of(const std::string& row, const std::string& stage) const {
        return stays_in_stage() ? fmt::format("first_phase({}, {});", row, stage)
                                : fmt::format("first_phase({});", row);
    }

    // What a row's first phase leaves for its last: the values and the vectors that both know, by the names they have
    // until the row comes and from then on.
    struct Left {
        std::string type;
        std::string ahead;
        std::string now;
        std::int64_t entries = 1;
        ValueId value = -1;  // of the row; none for vectors
    };

    // The first phase of each row, up to what it sends to its cluster, comes before the last phase of the row before:
    // what a row sends is on its way while its block works on two others.
    void skewed_rows() {
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
        scope_.declare_coordinates("row", kernel_.inner_axes());
        scope_.declare_states(false);
        out_.line(take(all_reduce, states(all_reduce)));
        out_.line(fmt::format("if (more) {}", send(all_reduce, "(turn + 1)", sent)), "all have taken what lay there");
        declare_results(all_reduce);
        for (const Stmt& stmt : last_phase) statement(stmt);
        if (stays_in_stage()) scope_.fetch_ahead();
        close_row();
    }

    // Each thread has a row of its own, of which it adds up what is no long segment. Then the threads of the block take
    // the rows of each part of them that has long ones, as many side by side as others share them with, and each its
    // batches of the segment. Neighbouring blocks have neighbouring rows, so that one long segment of many columns
    // keeps many blocks at work, and a block's other rows are of segments elsewhere.
    void shared_rows() {
        const Schedule& s = kernel_.schedule;
        const int together = s.rows_per_block / s.shares;
        const auto is_reduce = [](const Stmt& stmt) { return std::holds_alternative<AllReduce>(stmt.node); };
        const auto reduce = std::find_if(kernel_.body.begin(), kernel_.body.end(), is_reduce);
        const std::span summed(kernel_.body.begin(), reduce);
        const std::span behind(std::next(reduce), kernel_.body.end());
        const auto& all_reduce = std::get<AllReduce>(reduce->node);
        out_.line(fmt::format("const int part = rj_thread() / {};", together));
        out_.line(fmt::format("const int beside = rj_thread() % {};", together));
        const std::string step = row_step(kernel_);
        out_.line(fmt::format("const long long row_blocks = rj_max((rows + {}) / {}, static_cast<long long>({}));",
                              s.rows_per_block - 1, s.rows_per_block, step));
        out_.open(fmt::format("for (long long row_block = rj_block(); row_block < row_blocks; row_block += {})", step));
        scope_.declare_states(false);
        std::vector<std::string> own;
        for (const int index : all_reduce.accumulators) {
            own.push_back(scope_.names().fresh(scope_.state(index) + "_own"));
            out_.line(fmt::format("{} {}{};", scope_.state_type(index), own.back(), scope_.all_lanes()));
        }
        out_.line("int waiting = 0;", "a bit for each part that has a long segment");
        out_.line("RJ_ROLLED");
        out_.open("for (int shared = -1;;)", "the thread's own row, then those of parts");
        out_.line("const bool alone = shared < 0;");
        declare_row("(alone ? part : shared)", together);
        add_rows(summed);
        out_.open("if (alone)");
        keep_own(all_reduce, own);
        find_waiting(all_reduce, together);
        out_.close();
        out_.open("else");
        share(all_reduce, own, together);
        out_.close();
        out_.line("if (waiting == 0) break;");
        out_.line("do ++shared;");
        out_.line("while ((waiting >> shared & 1) == 0);");
        out_.line("waiting -= 1 << shared;");
        out_.close();
        scope_.forget_axes(kernel_.inner_axes());
        for (std::size_t i = 0; i < own.size(); ++i)
            scope_.each_lane(fmt::format("{} = {}[l];", scope_.lane_state(all_reduce.accumulators[i], "l"), own[i]));
        declare_row("part", together);
        scope_.set_live("live");
        scope_.declare_coordinates("row", kernel_.inner_axes());
        for (const Inst* inst : needed_behind(summed, behind)) row_inst(*inst);
        declare_results(all_reduce);
        for (const Stmt& stmt : behind) statement(stmt);
        close_row();
    }

    // The row beside which the thread is in a part of the block's.
    void declare_row(std::string_view part, int together) {
        const std::string place = scope_.names().fresh("row_place");
        out_.line(
            fmt::format("const long long {} = ({} * row_blocks + row_block) * {} + beside;", place, part, together));
        out_.line(fmt::format("const bool live = {} < rows;", place),
                  "the others have nothing to add, and store nothing");
        out_.line(fmt::format("const long long row = live ? {} : rows - 1;", place));
    }

    // Adds up the row's segments that are short where the thread is alone with it, and else its part of those that are
    // long.
    void add_rows(std::span<const Stmt> summed) {
        scope_.declare_coordinates("row", kernel_.inner_axes());
        scope_.reset_states();
        out_.line("bool waits = false;", "whether there are long ones");
        for (const Stmt& stmt : summed) {
            if (const auto* inst = std::get_if<Inst>(&stmt.node)) row_inst(*inst);
            const auto* loop = std::get_if<RowsLoop>(&stmt.node);
            if (loop == nullptr) continue;
            out_.blank();
            const auto declare = [&](std::string_view wanted, const std::string& type, const std::string& value) {
                const std::string name = scope_.names().fresh(wanted);
                out_.line(fmt::format("const {} {} = {};", type, name, value));
                return name;
            };
            const int batch = rows_.batch(*loop);
            const std::string begin = declare("begin", "long long", loop->begin < 0 ? "0" : scope_.value(loop->begin));
            const std::string whole = loop->begin < 0 ? scope_.positions(loop->axes) : scope_.value(loop->end);
            const std::string end = declare("end", "long long", fmt::format("live ? {} : {}", whole, begin));
            const std::string is_long = declare("is_long", "bool", fmt::format("{} - {} > {}", end, begin, kAloneRows));
            out_.line(fmt::format("waits = waits || {};", is_long));
            const std::string from =
                declare("from", "long long", fmt::format("alone ? {0} : {0} + part * {1}", begin, batch));
            const std::string to =
                declare("to", "long long", fmt::format("alone == {} ? {} : {}", is_long, begin, end));
            const std::string step = fmt::format("alone ? {} : {}", batch, batch * kernel_.schedule.shares);
            rows_.lanes_loop(*loop, {from, to, 1, step});
            scope_.forget_axes(loop->axes);
        }
    }

    void keep_own(const AllReduce& reduce, const std::vector<std::string>& own) {
        for (std::size_t i = 0; i < own.size(); ++i)
            scope_.each_lane(fmt::format("{}[l] = {};", own[i], scope_.lane_state(reduce.accumulators[i], "l")));
    }

    void find_waiting(const AllReduce& reduce, int together) {
        out_.line("rj_maximum<int> here;");
        out_.line("here.add_one(waits ? 1 : 0);");
        out_.line(fmt::format("rj_all_reduce<{}>(beside, 0, here);", together), "of the part");
        out_.line("rj_sum<int> bits;");
        out_.line("bits.add_one(beside == 0 && here.result() > 0 ? 1 << part : 0);");
        out_.line(fmt::format("rj_all_reduce<{}>(rj_thread(), {}, bits);", kernel_.schedule.rows_per_block,
                              scratch_begin(reduce)));
        out_.line("waiting = bits.result();");
    }

    void share(const AllReduce& reduce, const std::vector<std::string>& own, int together) {
        out_.line(fmt::format("rj_all_reduce_across<{}, {}>(part, beside, {}, {});", kernel_.schedule.shares, together,
                              scratch_begin(reduce) + vote_bytes(kernel_, scope_.target()), states(reduce)));
        out_.open("if (shared == part)");
        for (std::size_t i = 0; i < own.size(); ++i) {
            const std::string state = scope_.lane_state(reduce.accumulators[i], "l");
            scope_.each_lane(fmt::format("{}[l].combine({});", own[i], state));
        }
        out_.close();
    }

    // The instructions of a row's first statements that others behind them read the values of.
    static std::vector<const Inst*> needed_behind(std::span<const Stmt> first, std::span<const Stmt> behind) {
        std::set<ValueId> read = values_read_by(behind);
        std::vector<const Inst*> needed;
        for (const Stmt& stmt : std::views::reverse(first)) {
            const auto* inst = std::get_if<Inst>(&stmt.node);
            if (inst == nullptr || !read.contains(inst->id)) continue;
            needed.push_back(inst);
            each_use(*inst, [&](ValueId id) { read.insert(id); });
        }
        std::ranges::reverse(needed);
        return needed;
    }

    // Declares, before the rows, what the first phase leaves; from here on the first phase keeps in it.
    std::vector<Left> declare_left(std::span<const Stmt> first_phase, std::span<const Stmt> last_phase) {
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

    void first_phase_function(std::span<const Stmt> first_phase, std::vector<Left>& left) {
        out_.open(fmt::format("const auto first_phase = [&](long long row{})", stays_in_stage() ? ", int stage" : ""),
                  "what comes of a row before its cluster meets");
        wait_for_copies();
        scope_.declare_coordinates("row", kernel_.inner_axes());
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

    void take_left(const Left& left) {
        if (left.entries == 1) return out_.line(fmt::format("const {} {} = {};", left.type, left.now, left.ahead));
        out_.line(fmt::format("{} {}[{}];", left.type, left.now, left.entries));
        out_.line("#pragma unroll");
        out_.line(fmt::format("for (int i = 0; i < {}; ++i) {}[i] = {}[i];", left.entries, left.now, left.ahead));
    }

    static std::set<ValueId> values_read_by(std::span<const Stmt> block) {
        std::set<ValueId> used;
        for (const Stmt& stmt : block) each_use(stmt, [&](ValueId value) { used.insert(value); });
        return used;
    }

    // What reads the same wherever it stands in a kernel: it has no name.
    static bool stands_anywhere(const Inst& inst) {
        return inst.kind == InstKind::kConst || inst.kind == InstKind::kScalar || inst.kind == InstKind::kExtent;
    }

    void signature() {
        out_.line(fmt::format("// {}: {}", kernel_.name, print(kernel_.schedule)));
        out_.line(
            fmt::format("// for {}; a row for each of [{}]", scope_.target().name, scope_.axis_list(kernel_.row_axes)));
        const int blocks = kernel_.schedule.min_blocks_per_sm;
        out_.line(blocks > 0 ? fmt::format("RJ_KERNEL({}, {})", kernel_.block_threads(), blocks)
                             : fmt::format("RJ_KERNEL({})", kernel_.block_threads()));
        out_.open(fmt::format("{}({})", kernel_.name, fmt::join(scope_.declare_parameters(), ",\n    ")));
    }

    // Where this thread stands in its block.
    void geometry() {
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
        if (rows > 1 && kernel_.shared_bytes_per_row > 0 && !kernel_.walk) {
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
        if (kernel_.neighbours.waits && !waits_late_) wait_for_last("what the kernel before wrote is there");
        if (in_units) open_units();
    }

    void declare_rows() {
        const std::string of_row = kernel_.row_lanes() > 1 ? fmt::format(" / {}", kernel_.row_lanes()) : "";
        out_.line(fmt::format("const long long rows = {}{};", scope_.positions(kernel_.inner_axes()), of_row));
    }

    void place_of_part() {
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
    void open_units() {
        const std::int64_t of_part = kernel_.blocks_of_part();
        const std::string of_each = of_part > 1 ? fmt::format(" * {}", of_part) : "";
        out_.line(fmt::format("const long long part_blocks = {}{};", scope_.extent(kernel_.slots_axis), of_each),
                  fmt::format("that share the rows of each [{}]", scope_.axis_list(kernel_.outer)));
        out_.line(fmt::format("const long long units = {} * part_blocks;", scope_.positions(kernel_.outer)));
        out_.open(
            fmt::format("for (long long unit = {}; unit < units; unit += {})", first_cluster(), grid_step(kernel_)));
        out_.line("const long long outer_row = rj_quotient(unit, part_blocks);");
        out_.line("const long long part_block = unit - outer_row * part_blocks;");
        scope_.declare_coordinates("outer_row", kernel_.outer);
        place_of_part();
        declare_rows();
    }

    // What a block shares of one unit, it may write for the next.
    void close_units() {
        if (kernel_.shared_bytes > 0) out_.line("rj_barrier();", "all have done with what lies in shared memory");
        out_.close();
    }

    void wait_for_last(const std::string& comment) { out_.line("rj_wait_for_last();", comment); }

    // Whether a row may begin before the kernel before has ended: up to its first statement that needs what that one
    // wrote, or writes what it may read. Not where what comes before the rows may need it.
    bool waits_late() const {
        const auto is_early = [&](const Inst& inst) {
            return (inst.held >= 0 || kernel_.schedule.fetches_ahead()) && kernel_.reads_made(inst);
        };
        bool early = !kernel_.before.empty() || !kernel_.outer.empty() || kernel_.walk || kernel_.schedule.skew ||
                     kernel_.schedule.shares > 0 || find_rounds(kernel_.body).has_value();
        each_inst(kernel_, [&](const Inst& inst) { early = early || is_early(inst); });
        return kernel_.neighbours.waits && !early;
    }

    // Of a peeled row the loads of its ends stand before the loop over its whole vectors.
    std::size_t first_that_waits() const {
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
    void place_apart() {
        const std::string place = fmt::format("{} % {}", first_row_block(), kernel_.blocks_of_part());
        out_.line(scope_.rows() > 1
                      ? fmt::format("const long long place = ({}) * {} + row_in_block;", place, scope_.rows())
                      : fmt::format("const long long place = {};", place),
                  "of all of the thread's rows");
        scope_.declare_coordinates("place", kernel_.apart);
    }

    // Rows take different numbers of steps, so those count their own turns.
    void declare_turns_of_steps() {
        for (const Stmt& stmt : kernel_.body) {
            const auto* open = std::get_if<OpenSteps>(&stmt.node);
            if (open == nullptr) continue;
            turns_of_steps_[open->state] = scope_.names().fresh(open->label + "_turn");
            out_.line(fmt::format("int {} = 0;", turns_of_steps_[open->state]), "steps of this cluster that are done");
        }
    }

    std::string first_row_block() const { return kernel_.outer.empty() ? first_cluster() : "part_block"; }

    std::string first_cluster() const {
        if (kernel_.schedule.column_blocks == 1) return "rj_block()";
        return fmt::format("rj_block() / {}", kernel_.schedule.column_blocks);
    }

    // The loads of a row's first phase as a function of the row, called for the first rows here and for later ones
    // while the block works on the one before: over the barrier where a row's threads meet, memory is busy with the
    // next.
    void declare_fetch() {
        const auto is_loop = [](const Stmt& stmt) { return std::holds_alternative<ColumnLoop>(stmt.node); };
        const auto first = std::find_if(kernel_.body.begin(), kernel_.body.end(), is_loop);
        if (first == kernel_.body.end()) return;
        ColumnFetch columns(std::get<ColumnLoop>(first->node), scope_);
        columns.declare("next");
        if (const ColumnLoop* ends = ends_behind(*first)) {
            fetched_ends_.emplace(*ends, scope_);
            fetched_ends_->declare("next");
        }
        if (!scope_.fetches()) return;
        const bool staged = kernel_.schedule.stages > 0;
        std::vector<const Inst*> scalars;
        std::for_each(kernel_.body.begin(), first, [&](const Stmt& before) {
            const auto* inst = std::get_if<Inst>(&before.node);
            if (inst == nullptr || (staged ? inst->stage_offset_bytes < 0 : !kernel_.can_fetch(*inst))) return;
            scalars.push_back(inst);
            declare_fetched(*inst);
        });
        out_.open(fmt::format("const auto fetch = [&](long long row{})", staged ? ", int stage" : ""),
                  "the loads of a row, to be used when the block comes to it");
        scope_.declare_coordinates("row", kernel_.inner_axes());
        for (const Inst* load : scalars) {
            const GpuAddress at = scope_.address(*load, {}, "");
            out_.line(staged
                          ? fmt::format("rj_copy_ahead<{0}>({1}, {2});", size_bytes(load->dtype),
                                        scope_.staged(load->stage_offset_bytes, "", size_bytes(load->dtype)), at.text())
                          : fmt::format("{} = {};", scope_.fetched(*load), scope_.load_one(*load, at)));
        }
        columns.load();
        if (fetched_ends_) fetched_ends_->load();
        out_.close(";");
        scope_.forget_axes(kernel_.inner_axes());
        if (staged) return fill_stages();
        scope_.fetch(first_row_block(), "first");
    }

    // What holds a row's own value until the row comes.
    void declare_fetched(const Inst& load) {
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
    void fill_stages() {
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
    void open_row_loop() {
        const std::string first = first_row_block();
        const std::string step = row_step(kernel_);
        const int rows = scope_.rows();
        if (rows == 1) {
            out_.open(fmt::format("for (long long row = {}; row < rows; row += {})", first, step));
            return;
        }
        out_.open(
            fmt::format("for (long long row_block = {}; row_block * {} < rows; row_block += {})", first, rows, step));
        out_.line("// The last block may have fewer rows; its other threads follow the last one and store nothing.");
        out_.line(fmt::format("const bool live = row_block * {} + row_in_block < rows;", rows));
        out_.line(fmt::format("const long long row = live ? row_block * {} + row_in_block : rows - 1;", rows));
        scope_.set_live("live");
    }

    // The number of times that a step's threads meet, where one is open.
    int meetings_here(const OpenSteps& open) const { return meetings_of_steps(position_of(open)); }

    Block::const_iterator position_of(const OpenSteps& open) const {
        return std::find_if(kernel_.body.begin(), kernel_.body.end(),
                            [&](const Stmt& stmt) { return std::get_if<OpenSteps>(&stmt.node) == &open; });
    }

    void statement(const Stmt& stmt) {
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) return row_inst(*inst);
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) return column_loop(stmt, *loop);
        if (const auto* rows = std::get_if<RowsLoop>(&stmt.node)) return rows_.loop(*rows);
        if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) return all_reduce(*reduce);
        if (const auto* join = std::get_if<JoinRows>(&stmt.node)) return join_rows(*join);
        if (const auto* open = std::get_if<OpenSteps>(&stmt.node)) return open_steps(*open);
        if (const auto* close = std::get_if<CloseSteps>(&stmt.node)) return close_steps(*close);
        out_.line("rj_barrier();");
    }

    void column_loop(const Stmt& stmt, const ColumnLoop& loop) {
        if (const ColumnLoop* ends = ends_behind(stmt)) load_ends(*ends);
        emit_column_loop(loop, scope_, kept_);
    }

    // Of a peeled row the loop over its ends, where the statement is that over its whole vectors.
    static const ColumnLoop* ends_behind(const Stmt& stmt) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr || loop->part != ColumnLoop::Part::kWhole) return nullptr;
        return &std::get<ColumnLoop>(std::next(&stmt)->node);
    }

    // Few threads have any of a row's ends, and all of the row's would wait for them: they are on their way with the
    // rest.
    void load_ends(const ColumnLoop& ends) {
        if (fetched_ends_) {
            fetched_ends_->take("ends");
            fetched_ends_.reset();
            return;
        }
        ColumnFetch fetch(ends, scope_);
        fetch.declare("ends");
        fetch.load();
    }

    // A loop whose text is the last round, and variables for what a round reads of those before it.
    void rounds(const Rounds& rounds) {
        const auto last = static_cast<std::ptrdiff_t>(rounds.count) - 1;
        const auto inst = [&](std::ptrdiff_t round, std::size_t place) {
            return std::get_if<Inst>(&kernel_.body[static_cast<std::size_t>(rounds.at(round, place))].node);
        };
        struct Past {
            std::size_t place;
            std::ptrdiff_t age;
            std::string name;
            std::string divisor;  // that it is prepared as, if several are divided by it
        };
        std::vector<Past> pasts;  // of a place the oldest first
        out_.blank();
        for (std::size_t place = 0; place < rounds.length; ++place) {
            const Inst& made = *inst(last, place);
            bool divides = false;
            for (auto age = static_cast<std::ptrdiff_t>(rounds.ages[place]); age > 0; --age)
                divides = divides || rows_.divides_several(inst(last - age, place)->id);
            for (auto age = static_cast<std::ptrdiff_t>(rounds.ages[place]); age > 0; --age) {
                const Inst* before = rounds.at(-age, place) < 0 ? nullptr : inst(-age, place);
                const bool known = before != nullptr && before->id >= 0 && before->dtype == made.dtype;
                pasts.push_back({place, age, scope_.names().fresh(made.label + "_before"), ""});
                Past& past = pasts.back();
                out_.line(fmt::format("{} {} = {};", gpu_value_type(made.dtype), past.name,
                                      known ? scope_.value(before->id) : gpu_literal(made.dtype, 0)));
                if (!divides) continue;
                past.divisor = scope_.names().fresh(past.name + "_divisor");
                out_.line(fmt::format("rj_divisor {} = {};", past.divisor, scope_.prepared(past.name)));
                scope_.set_divisor(past.name, past.divisor);
            }
        }
        const GpuScope::RowNames before_rounds = scope_.row_names();
        out_.line("RJ_ROLLED");
        out_.open(fmt::format("for (int round = 0; round < {}; ++round)", rounds.count));
        for (const Past& past : pasts) scope_.bind(inst(last - past.age, past.place)->id, past.name);
        for (std::size_t place = 0; place < rounds.length; ++place) row_inst(*inst(last, place));
        for (std::size_t i = 0; i < pasts.size(); ++i) {
            const std::string& next =
                pasts[i].age > 1 ? pasts[i + 1].name : scope_.value(inst(last, pasts[i].place)->id);
            if (!pasts[i].divisor.empty()) {
                out_.line(fmt::format("{} = {};", pasts[i].divisor,
                                      pasts[i].age > 1 ? pasts[i + 1].divisor : scope_.divisor(next)));
            }
            out_.line(fmt::format("{} = {};", pasts[i].name, next));
        }
        out_.close();
        scope_.take_asked();
        scope_.set_row_names(before_rounds);
        for (const Past& past : pasts) scope_.bind(inst(last + 1 - past.age, past.place)->id, past.name);
    }

    void open_steps(const OpenSteps& steps) {
        out_.blank();
        const std::string state = scope_.names().fresh(steps.label);
        still_ = scope_.names().fresh(state + "_stands_still");
        out_.line(fmt::format("{} {} = {};", gpu_value_type(steps.dtype), state, scope_.value(steps.start)));
        out_.line(fmt::format("bool {} = false;", still_));
        scope_.bind(steps.state, state);
        auto stmt = position_of(steps);
        for (; !std::holds_alternative<CloseSteps>(stmt->node); ++stmt) {
            if (const auto* loop = std::get_if<ColumnLoop>(&stmt->node)) emit_tested(*loop, scope_, kept_);
        }
        of_last_.clear();
        for (const CloseSteps::OfLast& last : std::get<CloseSteps>(stmt->node).of_last) {
            of_last_.push_back(scope_.names().fresh(last.label));
            out_.line(fmt::format("{} {} = 0;", gpu_value_type(last.dtype), of_last_.back()), "of the last step");
        }
        outside_steps_ = scope_.row_names();
        out_.line("RJ_ROLLED");
        out_.open(fmt::format("for (int step = 0; step <= {}; ++step)", steps.most_steps));
        for (const int index : steps.accumulators)
            out_.line(fmt::format("{} = {}();", scope_.state(index), scope_.state_type(index)));
        state_ = state;
        open_steps_ = &steps;
    }

    // A row that stands still waits for those it shares a warp with. What is wanted of the last state is this step's
    // once that was its own: also of NaN, and of the state that no step is left to change.
    void close_steps(const CloseSteps& steps) {
        const std::string& next = scope_.value(steps.next);
        if (kernel_.cluster_blocks() > 1) out_.line(fmt::format("++{};", turns_of_steps_.at(open_steps_->state)));
        for (std::size_t i = 0; i < of_last_.size(); ++i)
            out_.line(fmt::format("{} = {};", of_last_[i], scope_.value(steps.of_last[i].value)));
        out_.open(fmt::format("if (!{})", still_));
        out_.line(fmt::format("{0} = {1} == {2} || {2} != {2} || step == {3};", still_, next, state_,
                              open_steps_->most_steps));
        out_.line(fmt::format("if (!{}) {} = {};", still_, state_, next));
        out_.close();
        open_steps_ = nullptr;
        const int lanes = std::min(scope_.target().warp_size, kernel_.block_threads());
        const bool alone = scope_.rows() == 1 || scope_.threads() >= lanes;
        out_.line(alone ? fmt::format("if ({}) break;", still_)
                        : fmt::format("if (rj_all_rows<{}, {}>({})) break;", scope_.threads(), lanes, still_));
        out_.close();
        scope_.take_asked();
        scope_.set_row_names(outside_steps_);
        scope_.bind(steps.result, state_);
        for (std::size_t i = 0; i < of_last_.size(); ++i) scope_.bind(steps.of_last[i].result, of_last_[i]);
    }

    void join_rows(const JoinRows& join) {
        for (const int index : join.carried) {
            out_.line(fmt::format("rj_join_rows<{}, {}>(row_in_block, {}, {});", scope_.rows(), scope_.threads(),
                                  scope_.threads() > 1 ? "t" : "0", scope_.carried(index)));
        }
    }

    // Every thread of the row has the value; one stores it.
    void row_inst(const Inst& inst) {
        std::vector<std::string> one;
        if (scope_.threads() > 1) one.emplace_back("t == 0");
        if (!scope_.live().empty()) one.push_back(scope_.live());
        if (kernel_.schedule.column_blocks > 1) one.emplace_back("column_block == 0");
        rows_.inst(inst, one);
    }

    void all_reduce(const AllReduce& reduce) {
        out_.blank();
        if (scope_.threads() > 1 && !reduce.of_thread) {
            for (const std::string& call : folds(reduce)) out_.line(call);
        }
        declare_results(reduce);
    }

    // The values of the row that come of a reduction's states.
    void declare_results(const AllReduce& reduce) {
        std::size_t result = 0;
        for (const int index : reduce.accumulators) {
            const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
            std::string_view label = accumulator.label;
            if (label.ends_with("_part")) label.remove_suffix(5);  // of the threads' parts, the whole
            for (const Component& component : state_components(accumulator)) {
                const std::string name = scope_.names().fresh(fmt::format("{}{}", label, component.suffix));
                const std::string_view type = gpu_value_type(accumulator.result());
                const std::string value = fmt::format("{}.{}();", scope_.lane_state(index, "l"), component.accessor);
                if (kernel_.lanes_axis < 0) {
                    out_.line(fmt::format("const {} {} = {}", type, name, value));
                } else {
                    out_.line(fmt::format("{} {}{};", type, name, scope_.all_lanes()));
                    scope_.each_lane(fmt::format("{}[l] = {}", name, value));
                }
                scope_.bind(reduce.results[result++], kernel_.lanes_axis < 0 ? name : name + "[l]");
            }
        }
    }

    // The calls that fold the states of a row's threads: of those that a warp shares one each, and one of all others.
    std::vector<std::string> folds(const AllReduce& reduce) {
        const int threads = scope_.threads();
        std::vector<std::string> calls;
        std::int64_t before = 0;  // bytes of scratch
        for (const int index : reduce.accumulators) {
            const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
            if (accumulator.monoid != Monoid::kGreatest) continue;
            calls.push_back(fmt::format("rj_meet_greatest<{}>(t, {}, {});", threads, scratch_offset(reduce, before),
                                        scope_.state(index)));
            before += std::int64_t{state_bytes(accumulator)} * (threads / scope_.target().warp_size);
        }
        const std::string others = states(reduce);
        if (others.empty()) return calls;
        if (kernel_.cluster_blocks() > 1) {
            calls.push_back(fold_in_cluster(reduce, others));
        } else if (kernel_.schedule.across) {
            calls.push_back(fmt::format("rj_all_reduce_across<{}, {}>(t, row_in_block, {}, {});", threads,
                                        scope_.rows(), scratch_begin(reduce), others));
        } else {
            calls.push_back(
                fmt::format("rj_all_reduce<{}>(t, {}, {});", threads, scratch_offset(reduce, before), others));
        }
        return calls;
    }

    // Of a thread each.
    std::string states(const AllReduce& reduce) const {
        std::vector<std::string> states;
        for (const int index : reduce.accumulators) {
            if (kernel_.accumulators[static_cast<std::size_t>(index)].monoid == Monoid::kGreatest) continue;
            for (int lane = 0; lane < kernel_.row_lanes(); ++lane)
                states.push_back(scope_.lane_state(index, std::to_string(lane)));
        }
        return fmt::format("{}", fmt::join(states, ", "));
    }

    // Where the states of a turn meet: a place in shared memory and its transaction barrier, whose parity is another
    // each time it is used. A region is used every row, or by rows in turn when it is one of two for one all-reduce.
    struct Meeting {
        std::string region;
        std::string mailbox;
        std::string parity;
    };

    Meeting meeting(const AllReduce& reduce, std::string_view turn) const {
        Meeting at{std::to_string(scratch_begin(reduce)),
                   std::to_string(kernel_.mailbox_offset_bytes + reduce.scratch * kTransactionBarrierBytes),
                   fmt::format("{} & 1", turn)};
        if (!takes_turns()) return at;
        at.region = fmt::format("{} + ({} & 1) * {}", at.region, turn, kernel_.scratch_region_bytes);
        at.mailbox = fmt::format("{} + ({} & 1) * {}", at.mailbox, turn, kTransactionBarrierBytes);
        at.parity = fmt::format("{} >> 1 & 1", turn);
        return at;
    }

    std::string fold_in_cluster(const AllReduce& reduce, const std::string& states) {
        if (reduce.scratch == 0) {
            const char* first = open_steps_ == nullptr ? "turn == 0" : "turn == 0 && step == 0";
            out_.line(fmt::format("if ({}) rj_cluster_wait();", first), "all blocks have begun");
        }
        const Meeting at = meeting(reduce, open_steps_ == nullptr ? "turn" : turns_of_steps_.at(open_steps_->state));
        return fmt::format("rj_all_reduce_cluster<{}, {}>(t, column_block, {}, {}, {}, {});", scope_.threads(),
                           kernel_.cluster_blocks(), at.region, at.mailbox, at.parity, states);
    }

    std::string send(const AllReduce& reduce, std::string_view turn, const std::string& states) const {
        const Meeting at = meeting(reduce, turn);
        return fmt::format("rj_send_to_cluster<{}, {}>(t, column_block, {}, {}, {});", scope_.threads(),
                           kernel_.cluster_blocks(), at.region, at.mailbox, states);
    }

    std::string take(const AllReduce& reduce, const std::string& states) const {
        const Meeting at = meeting(reduce, "turn");
        return fmt::format("rj_take_from_cluster<{}, {}>(t, {}, {}, {}, {});", scope_.threads(),
                           kernel_.cluster_blocks(), at.region, at.mailbox, at.parity, states);
    }

    // Whether an all-reduce has two regions, since its threads meet nowhere else before they come back to it.
    bool takes_turns() const {
        if (open_steps_ != nullptr) return meetings_here(*open_steps_) == 1;
        const auto reduces = [](const Stmt& stmt) { return std::holds_alternative<AllReduce>(stmt.node); };
        return std::count_if(kernel_.body.begin(), kernel_.body.end(), reduces) == 1;
    }

    std::int64_t scratch_begin(const AllReduce& reduce) const {
        RJ_CHECK(kernel_.scratch_regions > reduce.scratch, "emit gpu: {}: scratch region {} of {}", kernel_.name,
                 reduce.scratch, kernel_.scratch_regions);
        return kernel_.shared_bytes_per_row * scope_.rows() + kernel_.scratch_region_bytes * reduce.scratch;
    }

    // passes/barriers gives every region the same size and every row the same part of it, of which other states have
    // the bytes `before`.
    std::string scratch_offset(const AllReduce& reduce, std::int64_t before) const {
        if (scope_.threads() <= scope_.target().warp_size) return "0";
        const int rows = scope_.rows();
        const std::int64_t offset = scratch_begin(reduce) + before;
        if (rows == 1) return std::to_string(offset);
        const std::string row = fmt::format("row_in_block * {}", kernel_.scratch_region_bytes / rows);
        return offset == 0 ? row : fmt::format("{} + {}", offset, row);
    }

    const Kernel& kernel_;
    const bool waits_late_ = waits_late();
    GpuScope scope_;
    SourceWriter& out_;
    RowsEmitter rows_;
    GpuKept kept_;
    GpuScope::RowNames outside_;  // names that hold for all rows
    std::optional<ColumnFetch> fetched_ends_;
    // Of the steps that are open.
    std::string state_;
    std::string still_;
    const OpenSteps* open_steps_ = nullptr;
    std::vector<std::string> of_last_;               // names of what is wanted of their last
    std::map<ValueId, std::string> turns_of_steps_;  // of a cluster, by state
    GpuScope::RowNames outside_steps_;
};

}  // namespace
}  // namespace gpu_emit

std::vector<std::string_view> gpu_prelude_parts(const Target& target) {
    RJ_CHECK(target.is_gpu(), "emit gpu: {} is no GPU", target.name);
    std::vector<std::string_view> parts = {embedded::prelude_cuda};
    if (target.backend == Backend::kHip) parts = {embedded::prelude_hip, embedded::prelude_math};
    parts.insert(parts.end(), {embedded::prelude_trig, embedded::prelude_narrow, embedded::prelude_weights,
                               embedded::prelude_divide, embedded::prelude});
    if (target.clusters) parts.push_back(embedded::prelude_cluster);
    return parts;
}

std::string gpu_prelude(const Target& target) {
    std::string text = fmt::format("#define RJ_WARP_SIZE {}\n\n", target.warp_size);
    for (const std::string_view part : gpu_prelude_parts(target)) text.append(part).append("\n");
    return text;
}

std::string emit_gpu_body(const Kernel& kernel, const Target& target) {
    return gpu_emit::KernelEmitter(kernel, target).run();
}

Source emit_gpu(const Kernel& kernel, const Target& target) {
    return {gpu_prelude(target) + emit_gpu_body(kernel, target), {kernel.name}};
}

}  // namespace rowjit
