// Rows that are sums over segments of other rows (Schedule::shares). A thread adds up its segments by itself where they
// are short, one after the other as one run of positions, so that it waits for where they lie once a run, and not once
// a segment. The long ones are left to all threads of the block, which share the positions of each.
//
// A block's threads are `shares` parts, whose places lie far apart: neighbouring blocks have neighbouring places, so
// that a long segment of many columns keeps many blocks at work, while the rest of each block's is elsewhere.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "compiler/emit/gpu_emitter.h"
#include "compiler/passes/passes.h"

namespace rowjit::gpu_emit {
namespace {

bool is_barrier(const Stmt& stmt) { return std::holds_alternative<Barrier>(stmt.node); }

// The row's own instructions among some statements.
std::vector<const Inst*> insts_of(std::span<const Stmt> stmts) {
    std::vector<const Inst*> insts;
    for (const Stmt& stmt : stmts) {
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) insts.push_back(inst);
    }
    return insts;
}

// Of those, the ones that the values `wanted` are made of.
std::vector<const Inst*> made_of(const std::vector<const Inst*>& insts, std::set<ValueId> wanted) {
    std::vector<const Inst*> needed;
    for (const Inst* inst : std::views::reverse(insts)) {
        if (!wanted.contains(inst->id)) continue;
        needed.push_back(inst);
        each_use(*inst, [&](ValueId id) { wanted.insert(id); });
    }
    std::ranges::reverse(needed);
    return needed;
}

}  // namespace

// A kernel's statements before and behind where its threads meet, and of a run its one loop and what differs from one
// segment of it to the next.
struct KernelEmitter::Segments {
    std::vector<const Inst*> insts;
    std::vector<const RowsLoop*> loops;
    const AllReduce& reduce;
    std::span<const Stmt> behind;
    std::set<ValueId> along = {};
    std::vector<const Inst*> bounds = {};  // what a run's begin and end are made of

    bool is_along(const Inst& inst) const { return along.contains(inst.id); }
    // Of a place on a run, whichever segment of it: what bounds need is there already.
    bool is_of_place(const Inst* inst) const {
        return !is_along(*inst) && std::ranges::find(bounds, inst) == bounds.end();
    }
};

KernelEmitter::Segments KernelEmitter::segments() const {
    const auto is_reduce = [](const Stmt& stmt) { return std::holds_alternative<AllReduce>(stmt.node); };
    const auto reduce = std::ranges::find_if(kernel_.body, is_reduce);
    const std::span summed(kernel_.body.begin(), reduce);
    Segments segments{
        insts_of(summed), {}, std::get<AllReduce>(reduce->node), std::span(std::next(reduce), kernel_.body.end())};
    for (const Stmt& stmt : summed) {
        if (const auto* loop = std::get_if<RowsLoop>(&stmt.node)) segments.loops.push_back(loop);
    }
    if (kernel_.schedule.run == 1) return segments;
    const RowsLoop& loop = *segments.loops[0];
    segments.along = kernel_.values_along(loop.segments);
    segments.bounds = made_of(segments.insts, {loop.begin, loop.end});
    return segments;
}

void KernelEmitter::shared_rows() {
    const Schedule& s = kernel_.schedule;
    const Segments segments = this->segments();
    const int together = s.rows_per_block / s.shares;
    out_.line(fmt::format("const int part = rj_thread() / {};", together));
    out_.line(fmt::format("const int beside = rj_thread() % {};", together));
    if (s.run > 1) {
        declare_run(segments);
    } else {
        out_.line("const long long places = rows;");
    }
    const std::string step = row_step(kernel_);
    out_.line(fmt::format("const long long row_blocks = rj_max((places + {}) / {}, static_cast<long long>({}));",
                          s.rows_per_block - 1, s.rows_per_block, step));
    out_.open(fmt::format("for (long long row_block = rj_block(); row_block < row_blocks; row_block += {})", step));
    scope_.declare_states(false);
    open_place(segments, "part");
    out_.open("if (live && !waits)");
    s.run > 1 ? add_run(segments) : add_alone(segments);
    out_.close();
    find_waiting(segments);
    out_.line("RJ_ROLLED");
    out_.open("for (int shared = 0; waiting != 0; ++shared)", "parts with long segments");
    out_.line("if ((waiting >> shared & 1) == 0) continue;");
    out_.line("waiting -= 1 << shared;");
    open_place(segments, "shared");
    share(segments);
    out_.close();
    scope_.forget_axes(kernel_.inner_axes());
    if (std::ranges::any_of(segments.behind, is_barrier)) out_.line("rj_barrier();");
    close_row();
}

// Before the rows: how many places there are, each a run at some results of a segment, and where segments lie.
void KernelEmitter::declare_run(const Segments& segments) {
    const RowsLoop& loop = *segments.loops[0];
    const std::string all = scope_.extent(loop.segments);
    out_.line(fmt::format("const long long run_places = {} / {};", scope_.positions(results_of_segment(loop)),
                          kernel_.row_lanes()));
    out_.line(fmt::format("const long long run = rj_max(rj_min(rows / {}, {}ll), 1ll);", kernel_.rows_for_run(),
                          kernel_.schedule.run),
              "segments of a run");
    out_.line(fmt::format("const long long places = rj_quotient({} + run - 1, run) * run_places;", all));
    for (const Inst* inst : segments.bounds) {
        if (!segments.is_along(*inst)) row_inst(*inst);
    }
    const auto bound = [&](std::string_view name, ValueId value) {
        scope_.bind_axis(loop.segments, "segment");
        out_.open(fmt::format("const auto {} = [&](long long segment)", name));
        for (const Inst* inst : made_of(segments.insts, {value})) {
            if (segments.is_along(*inst)) row_inst(*inst);
        }
        out_.line(fmt::format("return {};", scope_.value(value)));
        out_.close(";");
        scope_.take_asked();
    };
    bound("begin_of", loop.begin);
    bound("end_of", loop.end);
    scope_.forget_axes({loop.segments});
    outside_ = scope_.row_names();
}

std::vector<AxisId> KernelEmitter::results_of_segment(const RowsLoop& loop) const {
    std::vector<AxisId> axes = kernel_.inner_axes();
    std::erase(axes, loop.segments);
    return axes;
}

// Declares where the threads of a part are, and what they have there; of another part, in braces of its own.
void KernelEmitter::open_place(const Segments& segments, std::string_view part) {
    const int together = kernel_.schedule.rows_per_block / kernel_.schedule.shares;
    scope_.forget_axes(kernel_.inner_axes());
    scope_.set_row_names(outside_);
    out_.line(fmt::format("long long place = ({} * row_blocks + row_block) * {} + beside;", part, together));
    out_.line("const bool live = place < places;", "the others have nothing to add, and store nothing");
    out_.line("if (!live) place = places - 1;");
    if (kernel_.schedule.run == 1) {
        scope_.declare_coordinates("place", kernel_.inner_axes());
        for (const Inst* inst : segments.insts) row_inst(*inst);
        std::vector<std::string> are_long;
        for (const RowsLoop* loop : segments.loops)
            are_long.push_back(fmt::format("{} - {} > {}", end_of(*loop), begin_of(*loop), kAloneRows));
        out_.line(fmt::format("const bool waits = live && ({});", fmt::join(are_long, " || ")));
        return;
    }
    const RowsLoop& loop = *segments.loops[0];
    out_.line("const long long run_index = rj_quotient(place, run_places);");
    out_.line("const long long run_place = place - run_index * run_places;");
    scope_.declare_coordinates("run_place", results_of_segment(loop));
    out_.line("const long long first_segment = run_index * run;");
    out_.line(fmt::format("const long long last_segment = rj_min(first_segment + run, static_cast<long long>({})) - 1;",
                          scope_.extent(loop.segments)));
    for (const Inst* inst : segments.insts) {
        if (segments.is_of_place(inst)) row_inst(*inst);
    }
    out_.line("const long long first_position = begin_of(first_segment);");
    out_.line("const long long end_position = end_of(last_segment);");
    out_.line(fmt::format("const bool waits = live && end_position - first_position > run * {};", kAloneRows));
}

std::string KernelEmitter::begin_of(const RowsLoop& loop) const {
    return loop.begin < 0 ? "0" : scope_.value(loop.begin);
}

std::string KernelEmitter::end_of(const RowsLoop& loop) const {
    return loop.begin < 0 ? fmt::format("({})", scope_.positions(loop.axes)) : scope_.value(loop.end);
}

void KernelEmitter::add_alone(const Segments& segments) {
    for (const RowsLoop* loop : segments.loops) {
        out_.blank();
        rows_.lanes_loop(*loop, {begin_of(*loop), end_of(*loop), 1, std::to_string(rows_.batch(*loop))});
        scope_.forget_axes(loop->axes);
    }
    store_segment(segments);
}

// What stands behind the positions: results, and what is made of them. Threads that are at other segments pass no
// barrier with these: it closes the row.
void KernelEmitter::store_segment(const Segments& segments) {
    const GpuScope::RowNames names = scope_.row_names();
    scope_.set_live("");
    declare_results(segments.reduce);
    for (const Stmt& stmt : segments.behind) {
        if (!is_barrier(stmt)) statement(stmt);
    }
    scope_.set_row_names(names);
}

// A lambda that stores what a segment of the place's run comes to, and begins with the next.
void KernelEmitter::declare_finish(const Segments& segments) {
    const RowsLoop& loop = *segments.loops[0];
    scope_.bind_axis(loop.segments, "segment");
    out_.open("const auto finish = [&](long long segment)");
    for (const Inst* inst : made_of(segments.insts, values_read_by(segments.behind))) {
        if (segments.is_along(*inst)) row_inst(*inst);
    }
    store_segment(segments);
    scope_.reset_states();
    out_.close(";");
    scope_.take_asked();
    scope_.forget_axes({loop.segments});
}

void KernelEmitter::add_run(const Segments& segments) {
    const RowsLoop& loop = *segments.loops[0];
    declare_finish(segments);
    out_.line("long long segment = first_segment;");
    out_.line("long long segment_stop = end_of(segment);");
    rows_.lanes_loop(
        loop,
        {"first_position", "end_position", 1, std::to_string(rows_.batch(loop)),
         "for (; p >= segment_stop && segment < last_segment; segment_stop = end_of(++segment)) finish(segment);"});
    scope_.forget_axes(loop.axes);
    out_.line("for (; segment <= last_segment; ++segment) finish(segment);");
}

// A bit for each part of which a thread has long segments.
void KernelEmitter::find_waiting(const Segments& segments) {
    const int together = kernel_.schedule.rows_per_block / kernel_.schedule.shares;
    out_.line("rj_maximum<int> here;");
    out_.line("here.add_one(waits ? 1 : 0);");
    out_.line(fmt::format("rj_all_reduce<{}>(beside, 0, here);", together), "of the part");
    out_.line("rj_sum<int> bits;");
    out_.line("bits.add_one(beside == 0 && here.result() > 0 ? 1 << part : 0);");
    out_.line(fmt::format("rj_all_reduce<{}>(rj_thread(), {}, bits);", kernel_.schedule.rows_per_block,
                          scratch_begin(segments.reduce)));
    out_.line("int waiting = bits.result();");
}

// All threads add up what those of a part that waits have, one segment of theirs after the other.
void KernelEmitter::share(const Segments& segments) {
    const Schedule& s = kernel_.schedule;
    if (s.run > 1) {
        declare_finish(segments);
        out_.line("RJ_ROLLED");
        out_.open("for (long long segment = first_segment; segment < first_segment + run; ++segment)");
        out_.line("const bool adds = waits && segment <= last_segment;");
    }
    scope_.reset_states();
    for (const RowsLoop* loop : segments.loops) {
        out_.blank();
        const int batch = rows_.batch(*loop);
        const std::string from = scope_.names().fresh("from");
        const std::string to = scope_.names().fresh("to");
        const std::string begin = s.run > 1 ? "adds ? begin_of(segment) : 0" : begin_of(*loop);
        const std::string end = s.run > 1 ? "adds ? end_of(segment) : 0" : fmt::format("waits ? {} : 0", end_of(*loop));
        out_.line(fmt::format("const long long {} = ({}) + part * {};", from, begin, batch));
        out_.line(fmt::format("const long long {} = {};", to, end));
        rows_.lanes_loop(*loop, {from, to, 1, std::to_string(batch * s.shares)});
        scope_.forget_axes(loop->axes);
    }
    out_.line(fmt::format("rj_all_reduce_across<{}, {}>(part, beside, {}, {});", s.shares, s.rows_per_block / s.shares,
                          scratch_begin(segments.reduce) + vote_bytes(kernel_, scope_.target()),
                          states(segments.reduce)));
    if (s.run > 1) {
        out_.line("if (shared == part && adds) finish(segment);");
        out_.close();
    } else {
        out_.open("if (shared == part && waits)");
        store_segment(segments);
        out_.close();
    }
}

}  // namespace rowjit::gpu_emit
