// Reductions over row axes: the threads of a block share the reduced rows and fold in a fixed order, so the result does
// not depend on how the device schedules blocks.
#include <algorithm>

#include "compiler/schedule/choose.h"

namespace rowjit {
namespace {

constexpr int kRun = 32;  // results that neighbouring threads take: a 128-byte line of f32, or more in vectors
constexpr int kAccessBytes = 16;
constexpr int kSharedRun = 16;      // results that the threads of a part of a block take, of up to 32 bytes each
constexpr int kThreadsPerSm = 768;  // with 80 registers, which sums of f32 in pairs do with

bool contains(const std::vector<Schedule>& schedules, const Schedule& schedule) {
    return std::find(schedules.begin(), schedules.end(), schedule) != schedules.end();
}

// Of results that lie side by side, those of an access.
int access_results(const GroupFacts& facts) {
    return vector_dividing(facts.promoted_columns, std::max(1, kAccessBytes / facts.promoted_bytes));
}

// Of a segment of rows with columns a thread takes two accesses' columns, and the threads of a block share those that
// have many rows. H200, 16384 gathered rows of 4096 bf16 columns in 1000 segments of random lengths: 0.098 ms with 16
// columns a thread, 0.152 with 8; 0.074 and 0.096 in blocks of 128 threads; of f32 0.148 with 8, 0.191 with 4. Segments
// of a row each, 15625 of 1024 bf16 columns: 0.060 ms with 8, 0.085 with 4, 0.133 with 2, and 0.116 with one of a
// thread that shares none. Of one number a row, a warp takes a segment, whose rows are what lies side by side.
std::vector<Schedule> of_segments(const GroupFacts& facts) {
    Schedule s;
    s.family = Family::kRowsReduction;
    if (!facts.promoted) {
        s.threads_per_row = 32;
        s.rows_per_block = 4;
        return {s};
    }
    constexpr int kLeastShared = 4;
    // Narrow terms are not added in pairs, and results in f32 have few lanes: that takes 64 registers without a bound,
    // and 74 with this one. H200, 125000 rows of 1024 bf16 columns into as many sums in f32: 0.298 ms and 0.355.
    const bool is_light = facts.promoted_read_bytes < facts.promoted_bytes;
    s.rows_per_block = 256;
    const Schedule alone = s;
    const int whole = access_results(facts);
    const int twice = vector_dividing(facts.promoted_columns, 2 * whole);
    std::vector<Schedule> schedules;
    for (const int rows : {128, 256}) {
        s.rows_per_block = rows;
        s.shares = rows / kSharedRun;
        for (const int vector : {twice, whole}) {
            s.vector = vector;
            const int wanted = kThreadsPerSm / rows;
            for (const int blocks : {is_light ? 0 : wanted, is_light ? wanted : 0}) {
                s.min_blocks_per_sm = blocks;
                if (!contains(schedules, s)) schedules.push_back(s);
            }
        }
    }
    if (twice < kLeastShared) schedules.insert(schedules.begin(), alone);
    return schedules;
}

}  // namespace

FamilyOffer offer_rows_reduction(const GroupFacts& facts, const Target& target) {
    FamilyOffer offer{Family::kRowsReduction, {}, ""};
    if (!facts.reduces_rows) {
        offer.declined = "no reduction over rows";
        return offer;
    }
    Schedule s;
    s.family = Family::kRowsReduction;
    if (!target.is_gpu()) {
        // Lanes are neighbouring results. A block is at least a cache line of them, so that no two threads write one
        // line and ranges of blocks begin at whole vectors.
        s.rows_per_block = facts.scalar_rows ? 1 : 64;
        for (const int vector : {32, 16}) {
            s.vector = vector;
            offer.schedules.push_back(s);
        }
        return offer;
    }
    if (facts.segmented && !facts.scalar_rows) offer.schedules = of_segments(facts);
    // Results lie side by side in memory, and so do what they are made of: a warp reads a run of them.
    if (!facts.scalar_rows) {
        s.across = true;
        s.rows_per_block = kRun;
        for (const int threads : {32, 8}) {
            s.threads_per_row = threads;
            offer.schedules.push_back(s);
        }
        s.across = false;
    }
    // A single result has the whole block at its rows; few results keep a warp on each.
    const std::vector<int> widths = facts.scalar_rows ? std::vector<int>{1024, 256} : std::vector<int>{32, 128};
    for (const int threads : widths) {
        s.threads_per_row = threads;
        s.rows_per_block = threads >= 128 ? 1 : 128 / threads;
        if (!contains(offer.schedules, s)) offer.schedules.push_back(s);
    }
    // Of many results a thread may take a vector; 32 threads on each, of which 1024 have 64 registers, spilled.
    s.across = true;
    s.threads_per_row = 8;
    s.rows_per_block = kRun;
    s.vector = access_results(facts);
    if (!contains(offer.schedules, s)) offer.schedules.push_back(s);
    return offer;
}

}  // namespace rowjit
