// Rows of any width beside sums of rows: how many blocks a row is divided over, how many vectors of it a thread has,
// and how many warps share a multiprocessor, ranked by what was measured of each.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "compiler/kernel.h"
#include "compiler/schedule/row_schedules.h"

namespace rowjit::reduced_rows {
namespace {

// Where a thread has three vectors and a half, the half costs more than what seven would save: layer_norm's backward of
// 896 bf16 columns runs at 72 % of copy with 32 threads a row, at 78 with 64; of 3584 at 85 with 128, at 92 with 160.
constexpr double kLeastAtWork = 8.0 / 9;

// What part of its places a multiprocessor's schedulers fill, of which each has a quarter of the warps.
double share_of_schedulers(std::int64_t warps) {
    const std::int64_t places = (warps + 3) / 4 * 4;
    return static_cast<double>(warps) / static_cast<double>(places);
}

// By vectors of a thread: what a row costs besides its columns, two sums' shuffles, addresses and copies, is as much as
// a vector's; past three of them registers leave less room to fetch ahead.
constexpr std::array kWorthOfVectors = {0.0, 0.0, 0.9, 1.0, 0.98, 0.98, 0.93};

// Warps of a multiprocessor, which have 255, 168 or 128 registers a thread, and how many vectors of each tensor those
// are for. Few threads of many columns are the faster: layer_norm's backward of 3072 bf16 columns runs at 93 % of copy
// in two blocks of 128 threads (H200), at 89 in three, at 85 in four; of 24576 over eight blocks at 78, 76 and 73.
struct WarpsSm {
    std::int64_t warps;
    std::size_t least_vectors;
    std::size_t most_vectors;
    std::size_t most_in_cluster;
    double worth;
};
constexpr std::array kWarpsBesideSums = {WarpsSm{8, 3, 6, 6, 1.0}, WarpsSm{12, 2, 4, 3, 0.92},
                                         WarpsSm{16, 2, 2, 0, 0.85}};

// A cluster meets in twice the time, and a block alone on its multiprocessor has nothing to do meanwhile: rms_norm's
// backward of 24576 bf16 columns runs at 88 % of copy in two blocks of 128 threads, at 81 in one of 256.
constexpr double kWorthOfCluster = 0.93;
constexpr double kWorthOfWidest = 0.92;  // of sixteen blocks, which are few a card, besides
constexpr double kWorthAlone = 0.92;

// Where one row is in flight ahead, in registers, vectors of each tensor that all of a multiprocessor's warps have
// together: of fewer memory waits. rms_norm's backward of 24576 columns: 48 run at 88 % of copy, 36 at 85, 24 at 76.
constexpr double kVectorsAhead = 44;

bool fetches_in_registers(const GroupFacts& facts) { return facts.sums_of_columns == 1 || facts.widest_bytes >= 4; }

constexpr std::size_t kMostEven = 5;

struct EvenSchedule {
    double worth;          // a share of what memory would allow, by which schedules of one row are compared
    std::int64_t vectors;  // of a thread
    Schedule schedule;
};

// Of short rows of narrow columns two vectors a thread in twelve warps are the best: rms_norm's backward of 256, 512,
// 960 and 1024 bf16 columns takes 0.0142, 0.0197, 0.0303 and 0.0318 ms so, 0.0155, 0.0215, 0.0321 and 0.0325 with four
// vectors in eight warps; of 2048 0.0584 and 0.0573 (H200).
constexpr std::int64_t kShortRowBytes = 2048;

bool is_best_of_short(std::int64_t vectors, const WarpsSm& sm, const GroupFacts& facts) {
    return facts.widest_bytes < 4 && row_bytes(facts) <= kShortRowBytes && vectors == 2 && sm.warps == 12;
}

double worth_of(const Schedule& s, std::int64_t vectors, const WarpsSm& sm, std::int64_t warps,
                const GroupFacts& facts) {
    double worth = std::sqrt(share_at_work(s, facts)) * std::pow(share_of_schedulers(warps), 0.75);
    if (!is_best_of_short(vectors, sm, facts)) worth *= kWorthOfVectors[static_cast<std::size_t>(vectors)] * sm.worth;
    if (s.column_blocks == 1) return worth;
    if (s.blocks_per_sm == 1) worth *= kWorthAlone;
    if (s.column_blocks == kMostClusterBlocks) worth *= kWorthOfWidest;
    if (fetches_in_registers(facts))
        worth *= std::pow(std::min(1.0, static_cast<double>(vectors * warps) / kVectorsAhead), 0.3);
    return worth * kWorthOfCluster;
}

// One for each number of a row's blocks, of a thread's vectors and of a multiprocessor's warps that go together, the
// most promising first: what the numbers above come to is within 3 % of the fastest schedule that was timed, in the
// mean of 67 norms' backwards (docs/experiments/gpu-rows.md).
std::vector<EvenSchedule> even_schedules(const GroupFacts& facts, const Target& target, int vector) {
    std::vector<EvenSchedule> all;
    const std::int64_t vectors = facts.columns / vector;
    for (std::int64_t blocks = 1; blocks <= (target.clusters ? kMostClusterBlocks : 1); blocks *= 2) {
        if (row_bytes(facts) > blocks * kPartBesideSums) continue;
        for (std::size_t each = 2; each < kWorthOfVectors.size(); ++each) {
            const auto most = static_cast<std::int64_t>(each);
            if (most * vector * facts.widest_bytes > kMaxBytesPerThread) break;
            const std::int64_t threads = threads_for((vectors + blocks - 1) / blocks, most, target.warp_size);
            if (threads > 1024 || (blocks > 1 && threads < kBlockThreads)) continue;
            if (vectors <= blocks * threads * (most - 1)) continue;  // no thread has so many
            Schedule s = row_schedule(Residency::kRegisters, static_cast<int>(threads), vector);
            s.column_blocks = blocks;
            if (share_at_work(s, facts) < kLeastAtWork) continue;
            const std::int64_t warps = s.threads_per_row * s.rows_per_block / target.warp_size;
            for (const WarpsSm& sm : kWarpsBesideSums) {
                const std::int64_t resident = sm.warps / std::max<std::int64_t>(1, warps);
                const bool holds =
                    each >= sm.least_vectors && each <= (blocks > 1 ? sm.most_in_cluster : sm.most_vectors);
                if (!holds || 4 * resident * warps < 3 * sm.warps) continue;
                const Schedule staying = staying_apart(s, resident);
                all.push_back({worth_of(staying, most, sm, resident * warps, facts), most, staying});
            }
        }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const EvenSchedule& a, const EvenSchedule& b) { return a.worth > b.worth; });
    all.resize(std::min(all.size(), kMostEven));
    return all;
}

// In a block, up to four vectors of a thread and more.
constexpr std::array kFewVectors = {kTwoStages, kInTwoStages, kRegisters, Ahead{}};
constexpr std::array kManyVectors = {kInTwoStages, kTwoStages, kRegisters, Ahead{}};
// In a cluster, with two sums of narrow columns, likewise; and with one sum, or of f32, where a row ahead in registers
// is enough in flight and where it is not: of 28672 bf16 columns, 28 vectors a lane, 80 % of copy with stages, 77
// without; of 15360, 32 vectors, 71 with stages and 86 without, of 15360 f32 columns of a layer_norm 65 and 79.
constexpr std::array kFewInCluster = {kSkewedStages, kTwoStages, kSkewedInStages, kInTwoStages};
constexpr std::array kManyInCluster = {kSkewedInStages, kInTwoStages, kRegisters, Ahead{}};
constexpr std::array kAheadInCluster = {kRegisters, kSkewedStages, kSkewedInStages, kTwoStages};
constexpr std::array kLittleAhead = {kSkewedStages, kTwoStages, kRegisters, kSkewedInStages};
// Of two tensors' narrow columns over two blocks a row in registers is enough all the same: rms_norm's backward of
// 13824 bf16 columns takes 0.0951 ms so, 0.103 with stages, of 14336 0.0983 and 0.105; over four, of 28672, 0.102 and
// 0.0988.
constexpr std::array kLittleNarrowAhead = {kRegisters, kSkewedStages, kTwoStages, kSkewedInStages};
// Three tensors' rows that are skewed stay in their stages where functions, two sums and a last vector that some
// threads lack, or eight blocks take what registers there are: add_layer_norm's backward of 13824 bf16 columns 0.0879
// ms so and 0.0999 in registers, but of 14336, which all threads have four vectors of, 0.0898 and 0.0867; of 28672 f32
// columns 0.0878 and 0.0958, add_rms_norm's 0.0837 and 0.0895, but of 13824, over four blocks, 0.0810 and 0.0766;
// gated_rms_norm's of 13824 f32 columns 0.0816 and 0.0882.
constexpr std::array kThreeInCluster = {kSkewedInStages, kTwoStages, kInTwoStages, kSkewedStages};
bool three_stay(const Schedule& s, const GroupFacts& facts) {
    constexpr std::int64_t kManyBlocks = 8;
    const bool narrow = facts.widest_bytes < 4;
    const bool guarded = share_at_work(s, facts) < 1;
    if (facts.streams != 3 || s.blocks_per_sm > 1) return false;
    if (facts.functions > 0 || (narrow && facts.sums_of_columns > 1)) return guarded;
    return !narrow && s.column_blocks >= kManyBlocks;
}
constexpr std::int64_t kEnoughAhead = 30;
constexpr std::int64_t kFew = 4;

std::span<const Ahead> kinds_of_even(const EvenSchedule& even, const GroupFacts& facts) {
    const bool few = even.vectors <= kFew;
    if (even.schedule.column_blocks == 1) return few ? kFewVectors : kManyVectors;
    const std::int64_t warps = std::int64_t{even.schedule.threads_per_row} * even.schedule.blocks_per_sm / kWarpThreads;
    const bool enough_ahead = even.vectors * warps >= kEnoughAhead;
    if (fetches_in_registers(facts) && enough_ahead) return kAheadInCluster;
    if (three_stay(even.schedule, facts)) return kThreeInCluster;
    if (fetches_in_registers(facts)) {
        const bool narrow_pair = facts.widest_bytes < 4 && facts.streams == 2 && even.schedule.column_blocks == 2;
        return narrow_pair ? kLittleNarrowAhead : kLittleAhead;
    }
    return few ? std::span<const Ahead>(kFewInCluster) : kManyInCluster;
}

}  // namespace

std::int64_t vectors_of_thread(const Schedule& s, const GroupFacts& facts) {
    const std::int64_t lanes = s.column_blocks * s.threads_per_row * s.vector;
    return (facts.columns + lanes - 1) / lanes;
}

double share_at_work(const Schedule& s, const GroupFacts& facts) {
    const std::int64_t places = vectors_of_thread(s, facts) * s.column_blocks * s.threads_per_row * s.vector;
    return static_cast<double>(facts.columns) / static_cast<double>(places);
}

std::vector<Schedule> summing_evenly(const GroupFacts& facts, const Target& target, int vector) {
    std::vector<Schedule> schedules;
    const bool sums = facts.sums_of_columns > 0 && facts.meets && facts.streams < kManyTensors;
    if (target.backend != Backend::kCuda || !sums || vector == 1 || facts.columns / vector < kWarpThreads / 2)
        return schedules;
    for (const EvenSchedule& even : even_schedules(facts, target, vector))
        append(ahead_of(even.schedule, kinds_of_even(even, facts), target), &schedules);
    return schedules;
}

}  // namespace rowjit::reduced_rows
