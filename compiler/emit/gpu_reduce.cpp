// Where the threads of a row meet: the calls that fold their states, in a warp, a block or a cluster of blocks, the
// shared memory they meet in, and the values of the row that come of it. Which regions there are, passes/barriers says.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "compiler/emit/gpu_emitter.h"
#include "compiler/passes/passes.h"

namespace rowjit::gpu_emit {
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
        case Monoid::kMoments: return {{"sum", "_sum"}, {"squared_deviations", "_squares"}, {"counted", "_count"}};
        case Monoid::kDivergence:
        case Monoid::kCrossEntropy:
            return {{"max", "_max"},
                    {"sum", "_sum"},
                    {"other_max", "_other_max"},
                    {"other_sum", "_other_sum"},
                    {"between", "_between"}};
        case Monoid::kWeighted:
            return {{"max", "_max"}, {"sum", "_sum"}, {"weights", "_weights"}, {"logarithms", "_logarithms"}};
        case Monoid::kEntropy: return {{"max", "_max"}, {"sum", "_sum"}, {"logarithms", "_logarithms"}};
        case Monoid::kGreatest: return greatest_components(accumulator.greatest);
        case Monoid::kExactSum: return {{"result", ""}, {"rest", "_rest"}};
    }
    RJ_CHECK(false, "emit gpu: monoid {}", static_cast<int>(accumulator.monoid));
}

}  // namespace

// Rows of one place join each other: the threads of all places are one row's then.
void KernelEmitter::join_rows(const JoinRows& join) {
    const std::int64_t rows = kernel_.rows_of_place();
    const std::int64_t threads = kernel_.block_threads() / rows;
    std::string row = "row_in_block";
    std::string thread = scope_.threads() > 1 ? "t" : "0";
    if (!kernel_.apart.empty()) {
        const std::string place = fmt::format("row_in_block % {}", kernel_.positions_apart());
        row = fmt::format("row_in_block / {}", kernel_.positions_apart());
        thread = scope_.threads() > 1 ? fmt::format("({}) * {} + t", place, scope_.threads()) : place;
    }
    for (const int index : join.carried) {
        const Carried& carried = kernel_.carried[static_cast<std::size_t>(index)];
        if (carried.monoid == Monoid::kMoments) {
            out_.line(fmt::format("rj_join_moments<{}, {}>({}, {}, {}, {});", rows, threads, row, thread,
                                  scope_.carried(index), scope_.counted(index)));
            continue;
        }
        const std::string both = carried.is_pair()
                                     ? "a.combine(b); return a"
                                     : fmt::format("return {}", gpu_operation(operation(carried.monoid), "a", "b"));
        out_.line(fmt::format("rj_join_rows<{}, {}>({}, {}, {}, [](auto a, auto b) {{ {}; }});", rows, threads, row,
                              thread, scope_.carried(index), both));
    }
}

void KernelEmitter::all_reduce(const AllReduce& reduce) {
    out_.blank();
    if (scope_.threads() > 1 && !reduce.of_thread) {
        for (const std::string& call : folds(reduce)) out_.line(call);
    }
    declare_results(reduce);
}

// The values of the row that come of a reduction's states.
void KernelEmitter::declare_results(const AllReduce& reduce) {
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
std::vector<std::string> KernelEmitter::folds(const AllReduce& reduce) {
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
        calls.push_back(fmt::format("rj_all_reduce_across<{}, {}>(t, row_in_block, {}, {});", threads, scope_.rows(),
                                    scratch_begin(reduce), others));
    } else {
        calls.push_back(fmt::format("rj_all_reduce<{}>(t, {}, {});", threads, scratch_offset(reduce, before), others));
    }
    return calls;
}

// Of a thread each.
std::string KernelEmitter::states(const AllReduce& reduce) const {
    std::vector<std::string> states;
    for (const int index : reduce.accumulators) {
        if (kernel_.accumulators[static_cast<std::size_t>(index)].monoid == Monoid::kGreatest) continue;
        for (int lane = 0; lane < kernel_.row_lanes(); ++lane)
            states.push_back(scope_.lane_state(index, std::to_string(lane)));
    }
    return fmt::format("{}", fmt::join(states, ", "));
}

KernelEmitter::Meeting KernelEmitter::meeting(const AllReduce& reduce, std::string_view turn) const {
    Meeting at{std::to_string(scratch_begin(reduce)),
               std::to_string(kernel_.mailbox_offset_bytes + reduce.scratch * kTransactionBarrierBytes),
               fmt::format("{} & 1", turn)};
    if (!takes_turns()) return at;
    at.region = fmt::format("{} + ({} & 1) * {}", at.region, turn, kernel_.scratch_region_bytes);
    at.mailbox = fmt::format("{} + ({} & 1) * {}", at.mailbox, turn, kTransactionBarrierBytes);
    at.parity = fmt::format("{} >> 1 & 1", turn);
    return at;
}

std::string KernelEmitter::fold_in_cluster(const AllReduce& reduce, const std::string& states) {
    if (reduce.scratch == 0) {
        const char* first = open_steps_ == nullptr ? "turn == 0" : "turn == 0 && step == 0";
        out_.line(fmt::format("if ({}) rj_cluster_wait();", first), "all blocks have begun");
    }
    const Meeting at = meeting(reduce, open_steps_ == nullptr ? "turn" : turns_of_steps_.at(open_steps_->state));
    return fmt::format("rj_all_reduce_cluster<{}, {}>(t, column_block, {}, {}, {}, {});", scope_.threads(),
                       kernel_.cluster_blocks(), at.region, at.mailbox, at.parity, states);
}

std::string KernelEmitter::send(const AllReduce& reduce, std::string_view turn, const std::string& states) const {
    const Meeting at = meeting(reduce, turn);
    return fmt::format("rj_send_to_cluster<{}, {}>(t, column_block, {}, {}, {});", scope_.threads(),
                       kernel_.cluster_blocks(), at.region, at.mailbox, states);
}

std::string KernelEmitter::take(const AllReduce& reduce, const std::string& states) const {
    const Meeting at = meeting(reduce, "turn");
    return fmt::format("rj_take_from_cluster<{}, {}>(t, {}, {}, {}, {});", scope_.threads(), kernel_.cluster_blocks(),
                       at.region, at.mailbox, at.parity, states);
}

// Whether an all-reduce has two regions, since its threads meet nowhere else before they come back to it.
bool KernelEmitter::takes_turns() const {
    if (open_steps_ != nullptr) return meetings_here(*open_steps_) == 1;
    const auto reduces = [](const Stmt& stmt) { return std::holds_alternative<AllReduce>(stmt.node); };
    return std::count_if(kernel_.body.begin(), kernel_.body.end(), reduces) == 1;
}

std::int64_t KernelEmitter::scratch_begin(const AllReduce& reduce) const {
    RJ_CHECK(kernel_.scratch_regions > reduce.scratch, "emit gpu: {}: scratch region {} of {}", kernel_.name,
             reduce.scratch, kernel_.scratch_regions);
    return kernel_.shared_bytes_per_row * scope_.rows() + kernel_.scratch_region_bytes * reduce.scratch;
}

// passes/barriers gives every region the same size and every row the same part of it, of which other states have
// the bytes `before`.
std::string KernelEmitter::scratch_offset(const AllReduce& reduce, std::int64_t before) const {
    if (scope_.threads() <= scope_.target().warp_size) return "0";
    const int rows = scope_.rows();
    const std::int64_t offset = scratch_begin(reduce) + before;
    if (rows == 1) return std::to_string(offset);
    const std::string row = fmt::format("row_in_block * {}", kernel_.scratch_region_bytes / rows);
    return offset == 0 ? row : fmt::format("{} + {}", offset, row);
}

}  // namespace rowjit::gpu_emit
