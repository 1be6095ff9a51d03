// Shared scratch and the barriers that protect it.
//
// An all-reduce over more than a warp writes one state per warp to shared scratch, waits, and reads them all. The wait
// inside it orders its own writes before its own reads; nothing orders its reads before the next writes to the same
// region. With two or more all-reduces in a row of the loop, giving each its own region is enough: between two uses of
// a region every thread passes another all-reduce's wait. With a single one, the loop over rows comes back to the same
// region with no wait between, so a barrier closes the row; and likewise a step, which is repeated, with one
// all-reduce.
//
// In a cluster every warp sends its states to all blocks, and a block's region is complete when its transaction barrier
// has counted them all: no fence, which would wait for the stores of the row before as well. A warp sends to a region
// again when all others have sent to another in between, so when they have read the first; a single all-reduce
// therefore has two regions, which rows take in turn, and the single one of a step two that steps take in turn.
#include <algorithm>
#include <bit>
#include <iterator>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/passes/passes.h"

namespace rowjit {

int state_bytes(const Accumulator& accumulator) {
    const int value = static_cast<int>(size_bytes(accumulator.dtype));
    const int lost = accumulator.compensated ? value : 0;
    switch (accumulator.monoid) {
        case Monoid::kSum: return value + lost;
        case Monoid::kMax:
        case Monoid::kMin: return value;
        case Monoid::kMaxSumExp: return 2 * value + lost;
        case Monoid::kWelford: return 4 * value + 2 * lost;  // count, average, both sums
        case Monoid::kDivergence:
        case Monoid::kCrossEntropy: return 5 * value + 3 * lost;  // both maxima, three sums
        case Monoid::kWeighted: return 4 * value + 3 * lost;      // a maximum, three sums
        case Monoid::kEntropy: return 3 * value + 2 * lost;       // a maximum, two sums
        case Monoid::kGreatest: return 8 * accumulator.greatest;  // of a warp: an element and its place each
        case Monoid::kMoments: return 3 * value;
        case Monoid::kExactSum: return 2 * value;
    }
    RJ_CHECK(false, "monoid {}", static_cast<int>(accumulator.monoid));
}

namespace {

bool closes_steps(const Stmt& stmt) { return std::holds_alternative<CloseSteps>(stmt.node); }

// Rows join one carried sum after the other in the same place, after the last row: of half of the rows at least one
// lane, and of a row all lanes if that is more (the prelude's rj_join_rows).
std::int64_t join_bytes(const Kernel& kernel) {
    std::int64_t most = 0;
    for (const Stmt& stmt : kernel.after) {
        const auto* join = std::get_if<JoinRows>(&stmt.node);
        if (join == nullptr) continue;
        for (const int index : join->carried) {
            const Carried& carried = kernel.carried[static_cast<std::size_t>(index)];
            const auto bytes = static_cast<std::int64_t>(size_bytes(carried.dtype)) * components(carried.monoid);
            const std::int64_t rows = kernel.rows_of_place();
            const auto half = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows))) / 2;
            const std::int64_t lanes = std::max(carried_lanes(kernel, index), half);
            most = std::max(most, lanes * kernel.block_threads() / rows * bytes);
        }
    }
    return most;
}

void close_steps(Block* body) {
    Block closed;
    for (auto stmt = body->begin(); stmt != body->end(); ++stmt) {
        if (std::holds_alternative<OpenSteps>(stmt->node) && meetings_of_steps(stmt) == 1) {
            const auto close = std::find_if(stmt, body->end(), closes_steps);
            std::move(stmt, close, std::back_inserter(closed));
            closed.push_back({Barrier{}});
            stmt = close;
        }
        closed.push_back(std::move(*stmt));
    }
    *body = std::move(closed);
}

void add_regions(Block* block, Kernel* kernel, const Target& target) {
    int meetings = 0;  // of the steps that are open
    for (auto stmt = block->begin(); stmt != block->end(); ++stmt) {
        if (std::holds_alternative<OpenSteps>(stmt->node)) meetings = meetings_of_steps(stmt);
        if (closes_steps(*stmt)) meetings = 0;
        auto* reduce = std::get_if<AllReduce>(&stmt->node);
        if (!meets(*stmt)) continue;
        reduce->scratch = kernel->scratch_regions++;
        if (meetings == 1 && kernel->cluster_blocks() > 1) ++kernel->scratch_regions;
        // Of each warp, once its lanes have met. Threads that lie across rows change places first: one of each thread,
        // and one of each row for what comes of them (the prelude's rj_all_reduce_across).
        const Schedule& schedule = kernel->schedule;
        const auto of_across = [](std::int64_t threads, std::int64_t rows) { return threads * (rows | 1) + rows; };
        const std::int64_t states = schedule.across ? of_across(schedule.threads_per_row, schedule.rows_per_block)
                                    : schedule.shares > 0
                                        ? of_across(schedule.shares, schedule.rows_per_block / schedule.shares)
                                        : kernel->block_threads() / target.warp_size;
        std::int64_t region = schedule.shares > 0 ? vote_bytes(*kernel, target) : 0;
        for (const int index : reduce->accumulators) {
            // Each begins aligned, whatever the mix of dtypes; of a row's results a state each, side by side.
            const int bytes = state_bytes(kernel->accumulators[static_cast<std::size_t>(index)]);
            const std::int64_t together = kernel->lanes_axis < 0 ? 1 : states * kernel->row_lanes();
            region += (bytes * together + 15) / 16 * 16 * (states * kernel->row_lanes() / together);
        }
        region *= kernel->cluster_blocks();
        kernel->scratch_region_bytes = std::max(kernel->scratch_region_bytes, region);
    }
}

// What a block's rows come to meets in a region of its own.
void add_scratch(Kernel* kernel, const Target& target) {
    add_regions(&kernel->body, kernel, target);
    const int of_rows = kernel->scratch_regions;
    add_regions(&kernel->after, kernel, target);
    const bool cluster = kernel->cluster_blocks() > 1;
    if (!cluster) close_steps(&kernel->body);
    if (cluster) kernel->scratch_regions = std::max(kernel->scratch_regions, 2);
    kernel->shared_bytes += kernel->scratch_regions * kernel->scratch_region_bytes;
    if (cluster) {
        kernel->mailbox_offset_bytes = kernel->shared_bytes;
        kernel->shared_bytes += kernel->scratch_regions * kTransactionBarrierBytes;
    } else if (of_rows == 1) {
        kernel->body.push_back({Barrier{}});
    }
}

// Where the lanes of a warp add up what they look through together.
std::int64_t sums_where_bytes(const Kernel& kernel) {
    std::int64_t most = 0;
    for (const Stmt& stmt : kernel.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        for (const Inst& inst : loop->body) {
            if (inst.kind != InstKind::kSumWhere) continue;
            most = std::max(most, loop->vector * static_cast<std::int64_t>(size_bytes(inst.dtype)));
        }
    }
    return most * kernel.block_threads();
}

}  // namespace

int meetings_of_steps(Block::const_iterator open) {
    int meetings = 0;
    for (; !closes_steps(*open); ++open) meetings += meets(*open) ? 1 : 0;
    return meetings;
}

std::int64_t carried_lanes(const Kernel& kernel, int carried) {
    std::int64_t lanes = 0;
    for (const Stmt& stmt : kernel.after) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr || (lanes > 0 && loop->part != ColumnLoop::Part::kEnds)) continue;
        const bool has_it = std::ranges::any_of(
            loop->body, [&](const Inst& inst) { return inst.kind == InstKind::kCarried && inst.index == carried; });
        if (has_it) lanes += loop->iterations * loop->vector;
    }
    return std::max<std::int64_t>(1, lanes);
}

std::int64_t vote_bytes(const Kernel& kernel, const Target& target) {
    const std::int64_t bytes = kernel.block_threads() / target.warp_size * std::int64_t{sizeof(std::int32_t)};
    return (bytes + 15) / 16 * 16;
}

Kernel place_barriers(Kernel kernel, const Target& target) {
    kernel.shared_bytes = kernel.shared_bytes_per_row * kernel.schedule.rows_per_block;
    if (!target.is_gpu()) return kernel;
    const Schedule& schedule = kernel.schedule;
    const int alone = schedule.across ? 1 : target.warp_size;  // threads that need no shared memory to meet
    if (schedule.threads_per_row > alone || schedule.shares > 0 || kernel.cluster_blocks() > 1)
        add_scratch(&kernel, target);
    kernel.shared_bytes = std::max(kernel.shared_bytes, join_bytes(kernel));
    if (const std::int64_t bytes = sums_where_bytes(kernel); bytes > 0) {
        kernel.sums_where_offset_bytes = (kernel.shared_bytes + 15) / 16 * 16;
        kernel.shared_bytes = kernel.sums_where_offset_bytes + bytes;
    }
    return kernel;
}

}  // namespace rowjit
