// Reductions over row axes: the threads of a block share the reduced rows and fold in a fixed order, so the result does
// not depend on how the device schedules blocks.
#include <algorithm>

#include "compiler/kernel.h"
#include "compiler/schedule/choose.h"

namespace rowjit {
namespace {

constexpr int kRun = 32;  // results that neighbouring threads take: a 128-byte line of f32, or more in vectors
constexpr int kAccessBytes = 16;
constexpr int kLeastThreads = 256;  // of a block whose threads take neighbouring results
constexpr int kRunThreads = 128;    // of a block whose threads take runs of segments
constexpr int kSharedRun = 16;      // results that the threads of a part of a block take, of up to 32 bytes each
constexpr int kThreadsPerSm = 768;  // with 80 registers, which sums of f32 in pairs do with

bool contains(const std::vector<Schedule>& schedules, const Schedule& schedule) {
    return std::find(schedules.begin(), schedules.end(), schedule) != schedules.end();
}

// Of results that lie side by side, those of an access.
int access_results(const GroupFacts& facts) {
    return vector_dividing(facts.promoted_columns, std::max(1, kAccessBytes / facts.promoted_bytes));
}

// Segments that a thread takes: one where results are known to be too few for runs, which a launch else is what says.
std::vector<int> runs_of(const GroupFacts& facts, const Schedule& s) {
    if (s.rows_per_block > kRunThreads) return {1};
    const bool few = facts.results > 0 && facts.results < 2 * Kernel{.schedule = s}.rows_for_run() * s.vector;
    return few ? std::vector<int>{1, kMostOfRun} : std::vector<int>{kMostOfRun, 1};
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
        // How long segments are, no compiler knows: of a few rows each a warp's lanes have none, and reading those that
        // are there again for them takes as many instructions. A tuner that is given their number finds which it is.
        Schedule few = s;
        few.threads_per_row = 8;
        few.rows_per_block = 16;
        s.threads_per_row = 32;
        s.rows_per_block = 4;
        return {s, few};
    }
    constexpr int kLeastShared = 4;
    // Narrow terms are not added in pairs, and results in f32 have few lanes: that takes 64 registers without a bound,
    // and 74 with this one. H200, 125000 rows of 1024 bf16 columns into as many sums in f32: 0.298 ms and 0.355. Terms
    // that are computed find no room within it: of 31250 rows of 2048 bf16 columns with a factor each, of which four
    // are added up, 0.211 and 0.253, of 125000 of 256 f32 columns 0.221 and 0.240.
    const bool is_light = facts.promoted_read_bytes < facts.promoted_bytes || facts.computes_terms;
    s.rows_per_block = 256;
    const Schedule alone = s;
    const int whole = access_results(facts);
    const int twice = vector_dividing(facts.promoted_columns, 2 * whole);
    // Two results of 16 columns each leave no shared memory for six blocks, and the launch bound is for nothing: the
    // gradients of a packed norm's shift and scale take 0.0988 ms in 168 registers, 0.0795 of eight columns in 80
    // (H100).
    constexpr int kMostOfThread = 16;
    const bool fits = twice * facts.row_results <= kMostOfThread;
    std::vector<Schedule> schedules;
    for (const int rows : {128, 256}) {
        s.rows_per_block = rows;
        s.shares = rows / kSharedRun;
        for (const int vector : {fits ? twice : whole, fits ? whole : twice}) {
            s.vector = vector;
            const int wanted = kThreadsPerSm / rows;
            for (const int blocks : {is_light ? 0 : wanted, is_light ? wanted : 0}) {
                s.min_blocks_per_sm = blocks;
                for (const int run : runs_of(facts, s)) {
                    s.run = run;
                    if (!contains(schedules, s)) schedules.push_back(s);
                }
            }
        }
    }
    if (twice < kLeastShared) schedules.insert(schedules.begin(), alone);
    return schedules;
}

// Threads on each of so many results, which give the GPU what it can have in flight.
int threads_on(std::int64_t results, std::int64_t threads, int most) {
    while (most > 1 && results * most > threads) most /= 2;
    return most;
}

// Threads on each vector of a batch's results, which are many: as few as have the positions in a few turns, which then
// meet the less. H100, sums of bf16 in per cent of copy with 2, 4, 8 and 16 threads on each eight: of 32 positions 86,
// 71, 54, 27; of 128 89, 90, 83, 64; of 1024 57, 82, 81, 86; of 4096 15, 30, 56, 76. With 32 threads on each result, as
// parts of sums have, 3 to 42.
int threads_on_batches(const GroupFacts& facts) {
    constexpr std::int64_t kPositionsEach = 48;
    constexpr int kMost = 16;
    if (facts.reduced_positions == 0) return kMost;
    // Moments take longer to meet: of 1024 positions of 512 bf16 columns 0.0895 ms with 16, 0.0766 with 8 (H200).
    const std::int64_t each = facts.reduces_moments ? 2 * kPositionsEach : kPositionsEach;
    int threads = kMost;
    while (threads > 2 && threads * each > facts.reduced_positions) threads /= 2;
    return threads;
}

// Results that lie side by side in memory, and so does what they are made of: a warp reads a run of them.
//
// Parts of sums over rows are the fewer the wider a row is, as more blocks share it: clusters of sixteen leave eight or
// nine. Of more threads most have nothing: with 32 on each result layer_norm's backward of 65536 bf16 columns, of which
// its parts are in 16 blocks, took 0.126 ms, 0.092 with 4; of 200064 0.268, and 0.173 with one; rms_norm's of 262144
// 0.135 and 0.093 (H100).
//
// Where so many columns are summed that blocks leave no parts, what is read is whole rows, and a thread takes a vector:
// two sums of 262144 bf16 columns take 0.050 ms with 4 threads on each eight, 0.104 with one on each; of f32 0.050 with
// 2 on each four, 0.063 (H100, 128 and 64 rows).
std::vector<Schedule> of_results(const GroupFacts& facts) {
    constexpr std::int64_t kThreadsOfParts = 262144;
    constexpr std::int64_t kThreadsOfRows = 131072;
    constexpr int kMostInVectors = 8;  // 32 threads, of which 1024 have 64 registers each, spilled
    const std::int64_t columns = facts.promoted_columns;
    const int vector = access_results(facts);
    const int of_parts = threads_on(columns, kThreadsOfParts, 32);
    const int of_rows = threads_on(columns / vector, kThreadsOfRows, kMostInVectors);
    std::vector<Schedule> schedules;
    const auto offer = [&](int threads, int results) {
        Schedule s;
        s.family = Family::kRowsReduction;
        s.across = true;
        s.threads_per_row = threads;
        s.rows_per_block = std::max(kRun, kLeastThreads / threads);
        s.vector = results;
        if (!contains(schedules, s)) schedules.push_back(s);
    };
    if (!facts.adds_parts && facts.of_batches) offer(threads_on_batches(facts), vector);
    if (!facts.adds_parts && of_rows < kMostInVectors) offer(of_rows, vector);
    offer(of_parts, 1);
    offer(32, 1);
    offer(8, 1);
    offer(kMostInVectors, vector);
    return schedules;
}

// Results that lie apart, of positions that lie side by side, as of each head over all of its queries: neighbouring
// threads take neighbouring positions. Few results have a block's threads each, as one alone has.
std::vector<Schedule> of_results_apart(const GroupFacts& facts) {
    constexpr std::int64_t kFewResults = 256;
    constexpr std::int64_t kPositionsEach = 16;
    constexpr int kMost = 1024;
    constexpr int kMostOfMany = 128;
    const bool is_few = facts.results > 0 && facts.results <= kFewResults;
    int wanted = is_few ? kMost : kMostOfMany;
    while (facts.reduced_positions > 0 && wanted > 1 && wanted * kPositionsEach > facts.reduced_positions) wanted /= 2;
    std::vector<Schedule> schedules;
    for (const int threads : {wanted, 32, kMostOfMany, kMost}) {
        Schedule s;
        s.family = Family::kRowsReduction;
        s.threads_per_row = threads;
        s.rows_per_block = std::max(1, kMostOfMany / threads);
        if (!contains(schedules, s)) schedules.push_back(s);
    }
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
    if (facts.reduces_along && !facts.scalar_rows) offer.schedules = of_results_apart(facts);
    if (facts.segmented && !facts.scalar_rows) offer.schedules = of_segments(facts);
    if (!facts.scalar_rows) {
        const std::vector<Schedule> schedules = of_results(facts);
        offer.schedules.insert(offer.schedules.end(), schedules.begin(), schedules.end());
    }
    // A single result has the whole block at its rows; few results keep a warp on each.
    const std::vector<int> widths = facts.scalar_rows ? std::vector<int>{1024, 256} : std::vector<int>{32, 128};
    for (const int threads : widths) {
        s.threads_per_row = threads;
        s.rows_per_block = threads >= 128 ? 1 : 128 / threads;
        if (!contains(offer.schedules, s)) offer.schedules.push_back(s);
    }
    return offer;
}

}  // namespace rowjit
