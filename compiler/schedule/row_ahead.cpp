// Which rows a block that stays has in flight while it works on another, and how.
#include <array>
#include <span>

#include "base/floor_div.h"
#include "compiler/schedule/row_schedules.h"

namespace rowjit::reduced_rows {
namespace {

// The most promising first, by what H200 said. Sums over rows leave registers for less: rms_norm's backward of 16384
// bf16 columns (a cluster of two) takes 0.423 ms with registers, 0.427 with stages.
constexpr std::array kSumsInCluster = {kRegisters, kSkewedStages,   kTwoStages,   kSkewed,       kSkewedRegisters,
                                       Ahead{},    kSkewedInStages, kInTwoStages, kInThreeStages};
// bf16 rows that wait for many blocks: of 131072 columns over 16 blocks 0.507 ms skewed with stages, 0.576 with
// registers.
constexpr std::array kNarrowSumsInWideCluster = {kSkewedStages,    kRegisters, kTwoStages,      kSkewed,
                                                 kSkewedRegisters, Ahead{},    kSkewedInStages, kInTwoStages};
// layer_norm's backward has two sums, beside which few registers have room for a row: of 65536 bf16 columns 0.593 ms
// where rows stay in their stages, 0.595 skewed in registers, 0.695 with stages besides, which leaves none for weights.
constexpr std::array kSeveralSums = {kRegisters, kSkewedInStages, kInTwoStages,  kTwoStages,      kSkewed,
                                     Ahead{},    kInThreeStages,  kSkewedStages, kSkewedRegisters};
// The same over sixteen blocks, of narrow rows: with 288 threads of 100352 bf16 columns 0.139 ms with stages, 0.154
// where rows stay in them; of 131072 0.093 with stages and 0.111 over eight blocks, where rows stay (H100).
constexpr std::array kSeveralNarrowSumsInWideCluster = {kTwoStages,     kSkewedInStages, kInTwoStages,
                                                        kRegisters,     kSkewed,         Ahead{},
                                                        kInThreeStages, kSkewedStages,   kSkewedRegisters};
// Larger parts of a row: three stages leave no room for a first-level cache, which has the weights. Of 131072 columns
// over 8 blocks 0.671 ms with two, 0.712 with three and skewed; of 262144 over 16 0.837, 0.903.
constexpr std::array kSumsOfLargeParts = {kInTwoStages,  kSkewedInStages, kInThreeStages, kRegisters,
                                          kSkewedStages, kTwoStages,      Ahead{},        kInOneStage};
// Two sums' of sixteen blocks: of layer_norm's 262144 bf16 columns 0.132 ms skewed, 0.177 with two stages.
constexpr std::array kSeveralSumsOfLargeParts = {kSkewedInStages, kInTwoStages, kInThreeStages, kRegisters,
                                                 kSkewedStages,   kTwoStages,   Ahead{},        kInOneStage};
// rms_norm of 131072 f32 columns: 0.271 ms skewed, 0.298 with registers, 0.317 with neither.
constexpr std::array kInCluster = {kSkewedRegisters, kSkewed, kRegisters, kSkewedStages, kTwoStages, Ahead{}};
// Of those that stay, softmax's backward of 65536 bf16 columns was the fastest with stages.
constexpr std::array kSeveralNarrow = {kTwoStages, kRegisters, Ahead{}, kSkewedStages, kSkewedRegisters, kSkewed};
// Pairs take more registers than a sum: softmax of 262144 bf16 columns 0.627 ms with the next row in registers, 0.696
// with stages, 0.712 skewed as well.
constexpr std::array kPairsInCluster = {kRegisters, kTwoStages, kSkewedStages, kSkewedRegisters, kSkewed, Ahead{}};
// Where rows cannot be skewed. One block: layer_norm's backward at 8192 bf16 columns 0.266 ms with stages, else 0.284;
// add_rms_norm's at 4096 f32 columns 0.345 with registers, 0.396 with stages. A cluster that meets twice a row:
// layer_norm of 131072 bf16 columns 0.331 ms with registers, 0.344 with stages; cross-entropy with its gradient, in
// small parts, 0.322 at 32000 with registers, 0.334 with stages.
constexpr std::array kStagesFirst = {kTwoStages, kRegisters, Ahead{}};
constexpr std::array kRegistersFirst = {kRegisters, kTwoStages, Ahead{}};
// A block on a row, two vectors of each tensor a thread. One sum of rows of two tensors leaves them where they were
// copied to: rms_norm's backward of 4096 bf16 columns takes 0.106 ms so, 0.116 with registers, of f32 0.103 and 0.118,
// of 8192 bf16 columns 0.113 and 0.122. Two sums, or a third tensor that only the last phase reads, which is then
// copied ahead too, gain little or lose: add_layer_norm's of f32 takes 0.099 and 0.101, of bf16 0.109, 0.107 with
// stages.
constexpr std::array kSumOfPair = {kInTwoStages, kRegisters, kTwoStages, kInThreeStages, Ahead{}};
constexpr std::array kSumsStagesFirst = {kTwoStages, kRegisters, Ahead{}, kInTwoStages, kInThreeStages};
constexpr std::array kSumsRegistersFirst = {kRegisters, kTwoStages, Ahead{}, kInTwoStages, kInThreeStages};

// One sum of rows of up to two tensors that are met over again and again, as where a norm is quantised, whose copies
// would be waited for each time: the derivatives of such rows of 7168 bf16 columns take 0.118 ms in 512 threads with
// registers, 0.146 with stages, 0.156 where they stay there; in 224 0.110, 0.120 and 0.141 (H100).
bool meets_again(const GroupFacts& facts) {
    return facts.sums_of_columns == 1 && facts.streams <= 2 && facts.phases > 2;
}

// How often the threads of a row meet.
int meetings(const Schedule& s, const GroupFacts& facts) { return (s.online ? facts.online_phases : facts.phases) - 1; }

std::span<const Ahead> kinds_with_sums(const Schedule& s, const GroupFacts& facts) {
    const bool narrow = facts.widest_bytes < 4;
    if (row_bytes(facts) > s.column_blocks * kSmallPartBytes) {
        const bool in_many = s.column_blocks == kMostClusterBlocks && facts.sums_of_columns > 1;
        return in_many ? kSeveralSumsOfLargeParts : kSumsOfLargeParts;
    }
    if (facts.sums_of_columns > 1) {
        if (s.column_blocks == kMostClusterBlocks && narrow) return kSeveralNarrowSumsInWideCluster;
        return kSeveralSums;
    }
    if (s.column_blocks > kMostClusterBlocks / 4 && narrow) return kNarrowSumsInWideCluster;
    return kSumsInCluster;
}

// A row in one block. bf16 sums: rows are copied ahead but for one sum of columns in blocks that share a multiprocessor
// and whose warps meet. H200: rms_norm's backward of 4096 columns takes 0.117 ms with registers, 0.120 with stages,
// add_rms_norm's 0.0928, 0.0945; of 8192, a block alone, 0.239 and 0.212.
bool stages_first(const Schedule& s, const GroupFacts& facts) {
    const bool shares = s.min_blocks_per_sm > 1 && s.threads_per_row > kWarpThreads;
    return facts.sums_rows() && facts.widest_bytes < 4 && !(facts.sums_of_columns == 1 && shares);
}

// Threads that never meet over a row, and only sum numbers, wait for nothing that a row fetched ahead would hide. H200,
// a gradient's norm of 4096 bf16 columns: 0.0365 ms, 0.0454 with stages. Those that store columns besides wait: xIELU's
// derivatives of 8192 bf16 columns, with those of its two numbers, take 0.0982 ms with stages, 0.125 without; a gate's
// that is one number 0.0718 and 0.0740.
constexpr std::array kNothingFirst = {Ahead{}, kRegisters, kTwoStages};

// Nor do a few threads, some of which lack a vector, of columns that are read beside their partners, as where a head is
// normed and rotated. H200, its derivatives, ms and with stages, f32 with registers: of 24 bf16 columns 0.0675 and
// 0.0743, of 80 0.0468 and 0.0559, of 96 0.0485 and 0.0466; of 24 f32 columns 0.0454 and 0.0681, of 40 0.0438 and
// 0.0537. But of 64 bf16 columns, of which all threads have one, 0.0594 and 0.0499, and norms alone are slower without
// stages at all those widths, by 14 to 30 %.
bool reads_partners_unevenly(const Schedule& s, const GroupFacts& facts) {
    constexpr int kFewThreads = 8;
    return facts.sums_of_columns > 0 && facts.loads > facts.column_inputs && s.threads_per_row <= kFewThreads &&
           facts.columns % (std::int64_t{s.threads_per_row} * s.vector) != 0;
}

// Rows of which only numbers are summed, in fractions of a warp or where some threads lack a vector: copies into shared
// memory, there one by one, are waited for by what little else there is to do, and large ones leave no first-level
// cache. H100, ms with stages and with neither, where registers leave no room for the next row's: kl_div of 56 bf16
// columns 0.116 and 0.0810, of 3000 0.0812 and 0.0695, of 6000 f32 columns 0.0832 and 0.0710, dpo of 80 bf16 classes
// 0.0840 and 0.0737; with it in registers cosine_distance of 3000 0.0738 and 0.0680, a cross-entropy 0.0725 and 0.0703,
// of 80 0.0401 and 0.0358. But of 4096 f32 columns, which threads share evenly, kl_div 0.0901 and 0.0945; and wide rows
// of f32 that meet thrice are slower so, jsd of 1152 0.0707 and 0.0751.
//
// Copied ahead all the same is what meets over exponentials where that leaves the first-level cache room and a lane
// reads its own bank. H200, kl_div likewise: of 1800 bf16 columns 0.0424 and 0.0444, of 2304 0.0444 and 0.0508, of 3584
// 0.0633 and 0.0781, of 1800 f32 columns 0.0713 and 0.0831, of 4608 0.0457 and 0.0547; but of 3000, whose stages are
// 192 KiB, 0.0624 and 0.0574, and dpo of 2304 bf16 columns, sixteen of which are an access, 0.0555 and 0.0484.
constexpr std::array kNumbersFirst = {kRegisters, Ahead{}, kTwoStages};

bool sums_numbers_apart(const Schedule& s, const GroupFacts& facts) {
    constexpr std::int64_t kMostInStages = 160 * 1024;  // of a multiprocessor
    constexpr int kAccessBytes = 16;
    if (!facts.sums_rows() || facts.sums_of_columns > 0) return false;
    const bool whole = facts.columns % (std::int64_t{s.threads_per_row} * s.vector) == 0;
    const bool meets_thrice = facts.phases > 3 && facts.widest_bytes >= 4;
    const std::int64_t in_stages = 2 * row_bytes(facts) * facts.streams * s.rows_per_block * s.blocks_per_sm;
    const bool in_small_stages = facts.sums_exponentials && facts.phases > 2 && in_stages <= kMostInStages &&
                                 s.vector * facts.widest_bytes <= kAccessBytes;
    return s.threads_per_row < kWarpThreads || (!whole && !meets_thrice && !in_small_stages);
}

// Of blocks that leave half of a multiprocessor's registers unused.
constexpr std::array kOfFewThreads = {kTwoStages, kRegisters, kInTwoStages};

std::span<const Ahead> kinds_in_block(const Schedule& s, const GroupFacts& facts) {
    const bool waits_for_nothing = !facts.meets && facts.sums_of_columns == 0 && !facts.stores_columns;
    if (waits_for_nothing || reads_partners_unevenly(s, facts)) return kNothingFirst;
    if (sums_numbers_apart(s, facts)) return kNumbersFirst;
    const bool stages = stages_first(s, facts) && !meets_again(facts);
    const bool may_stay = facts.sums_of_columns > 0 && facts.meets && s.rows_per_block == 1 &&
                          bytes_per_thread(s, facts) <= kStayingBytesPerThread;
    if (!may_stay) return stages ? kStagesFirst : kRegistersFirst;
    if (facts.sums_of_columns == 1 && facts.streams <= 2 && !meets_again(facts)) return kSumOfPair;
    // With one vector of each of many tensors a thread has room for the next: a residual with a layer's scale and its
    // norm, of 768 bf16 columns, 0.0962 ms with registers, 0.110 with stages.
    const bool one_each = facts.columns <= std::int64_t{s.threads_per_row} * s.vector && facts.streams >= 4;
    return stages && !one_each ? std::span<const Ahead>(kSumsStagesFirst) : kSumsRegistersFirst;
}

std::span<const Ahead> kinds_ahead(const Schedule& s, const GroupFacts& facts) {
    if (s.column_blocks == 1) return kinds_in_block(s, facts);
    if (meetings(s, facts) != 1) {
        return facts.sums_of_columns == 0 ? kRegistersFirst : kStagesFirst;
    }
    if (facts.sums_of_columns > 0) return kinds_with_sums(s, facts);
    if (s.online) return kPairsInCluster;
    if (in_small_parts(facts) && reads_several_narrow(facts)) return kSeveralNarrow;
    return kInCluster;
}

}  // namespace

std::vector<Schedule> ahead_of(const Schedule& s, std::span<const Ahead> ways, const Target& target) {
    if (s.residency != Residency::kRegisters || target.backend != Backend::kCuda) return {s};
    std::vector<Schedule> kinds;
    for (const Ahead& ahead : ways) {
        kinds.push_back(s);
        kinds.back().prefetch = ahead.prefetch;
        kinds.back().stages = ahead.stages;
        kinds.back().skew = ahead.skew;
        if (ahead.in_stages) kinds.back().residency = Residency::kStages;
    }
    return kinds;
}

std::vector<Schedule> staying(Schedule s, int threads_per_sm, const GroupFacts& facts, const Target& target) {
    s = sharing(s, threads_per_sm);
    s.blocks_per_sm = s.min_blocks_per_sm;
    return ahead_of(s, kinds_ahead(s, facts), target);
}

std::vector<Schedule> all_staying(const std::vector<Schedule>& schedules, const GroupFacts& facts,
                                  const Target& target) {
    std::vector<Schedule> all;
    for (const Schedule& s : schedules) {
        std::vector<Schedule> of_one;
        for (const int per_sm : kResidentThreadsPerSm) append(staying(s, per_sm, facts, target), &of_one);
        if (of_one.front().fetches_ahead() && !sums_numbers_apart(of_one.front(), facts))
            std::ranges::stable_partition(of_one, &Schedule::fetches_ahead);
        append(of_one, &all);
    }
    return all;
}

// Two vectors and more a thread of rows in one block; two of eight states spilled.
std::vector<Schedule> staying_in_few_threads(const GroupFacts& facts, const Target& target, int vector) {
    constexpr int kFewThreads = 256;
    constexpr std::int64_t kMostVectors = 4;
    std::vector<Schedule> few;
    if (target.backend != Backend::kCuda || facts.sums_of_columns == 0 || !facts.meets || facts.streams >= kManyTensors)
        return few;
    for (const int threads : {kFewThreads, kFewThreads / 2}) {
        const std::int64_t vectors = ceil_div(facts.columns, std::int64_t{threads} * vector);
        if (vectors < 2 || vectors > kMostVectors) continue;
        Schedule s = row_schedule(Residency::kRegisters, threads, vector);
        s.rows_per_block = 1;
        append(ahead_of(staying_apart(s, kFewThreads / threads), kOfFewThreads, target), &few);
    }
    return few;
}

// Rows that a maximum and a sum of exponentials over rows are carried of, an exponential of each column: as many warps
// as have registers for four vectors of both. H200, ms so and as rows with two sums are taken: log-sum-exps of both
// rows and columns of 1024 bf16 columns 0.359 and 0.426, of 4096 0.253 and 0.342; of 1024 f32 columns a step of
// Sinkhorn's 0.137 and 0.192; softmaxes of rows and columns of 256 bf16 columns 0.104 and 0.112.
std::vector<Schedule> carrying_pairs(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kEach = 4;
    constexpr std::int64_t kMostOfRow = 128;
    if (target.backend != Backend::kCuda || !facts.carries_pairs || vector == 1) return {};
    const std::int64_t warps = facts.widest_bytes < 4 ? 12 : 16;
    const std::int64_t threads = threads_for(facts.columns / vector, kEach, target.warp_size);
    if (threads > kMostOfRow) return {};
    const Schedule s = row_schedule(Residency::kRegisters, static_cast<int>(threads), vector);
    const std::int64_t blocks = warps * target.warp_size / (std::int64_t{s.threads_per_row} * s.rows_per_block);
    return ahead_of(staying_apart(s, blocks), std::array{kTwoStages, kRegisters}, target);
}

// Nobody waits in a row whose threads never meet, and a cluster gains it nothing: it has the fewest blocks whose
// threads hold it in three vectors each, or four of f32 where nearly all of a block's threads have those; narrow
// columns have as many threads as there are. H200, dynamic_tanh's derivatives: of 8960 bf16 columns 0.127 ms in a block
// of 384 threads, 0.144 in two blocks of 512; of 14336 in two blocks 0.107 with 448 threads, 0.112 with 320; of 12288
// f32 columns 0.096 in two of 512, 0.115 in four; of 13824 0.106 in two of 448, 0.115 in four of 288; but of 6656 0.104
// in two of 288, 0.109 in two of 416 and 0.112 in one.
std::vector<Schedule> alone_in_long_parts(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kEach = 3;
    constexpr std::int64_t kMostEach = 4;
    constexpr std::int64_t kNearlyAll = kThreadsAlone * 7 / 8;
    constexpr std::int64_t kShort = 2 * kThreadsAlone;  // vectors of a row that has one block anyway
    const std::int64_t vectors = facts.columns / vector;
    if (target.backend != Backend::kCuda || facts.meets || facts.sums_of_columns == 0 || vectors <= kShort) return {};
    const auto has_room = [&](std::int64_t blocks) {
        const std::int64_t of_block = ceil_div(vectors, blocks);
        if (of_block <= kEach * kThreadsAlone) return true;
        const bool fills = threads_for(of_block, kMostEach, target.warp_size) >= kNearlyAll;
        return facts.widest_bytes >= 4 && of_block <= kMostEach * kThreadsAlone && fills;
    };
    std::int64_t blocks = 1;
    while (!has_room(blocks)) blocks *= 2;
    if (blocks > (target.clusters ? kMostClusterBlocks : 1)) return {};
    const std::int64_t of_block = ceil_div(vectors, blocks);
    const std::int64_t least = facts.widest_bytes < 4 ? 1 : kEach;
    const std::int64_t each = std::max(least, ceil_div(of_block, kThreadsAlone));
    const std::int64_t threads = threads_for(of_block, each, target.warp_size);
    Schedule s = row_schedule(Residency::kRegisters, static_cast<int>(threads), vector);
    s.column_blocks = blocks;
    return ahead_of(staying_apart(s, 1), std::array{kInTwoStages, kTwoStages, kRegisters}, target);
}

// What takes long to compute of a row that sums are taken of, and is kept between its reductions: in few threads of
// many registers, which have room for the next row besides. H200, derivatives of a norm, a silu and a norm of bf16
// rows, ms so and as they were taken before: of 2048 columns 0.163 and 0.221, of 4096 0.175 and 0.257, of 6144 0.127
// and 0.142.
std::vector<Schedule> computed_in_few_threads(const GroupFacts& facts, const Target& target, int vector) {
    constexpr int kThreads = 256;  // of a multiprocessor
    constexpr int kLeastOfBlock = 64;
    constexpr std::int64_t kMostVectors = 3;
    if (target.backend != Backend::kCuda || facts.sums_of_columns == 0 || !facts.holds_late ||
        facts.held_bytes <= facts.widest_bytes || facts.streams >= kManyTensors)
        return {};
    const std::int64_t vectors = facts.columns / vector;
    const std::int64_t wanted = threads_for(vectors, 2, target.warp_size);
    const std::int64_t threads = std::min<std::int64_t>(wanted, kThreads);
    if (threads < kLeastOfBlock || ceil_div(vectors, threads) > kMostVectors) return {};
    Schedule s = row_schedule(Residency::kRegisters, static_cast<int>(threads), vector);
    s.rows_per_block = 1;
    return ahead_of(staying_apart(s, kThreads / threads), std::array{kRegisters}, target);
}

namespace {

// Of rows whose vectors are shorter nothing was measured, and they have rules of their own (row_words.cpp).
bool has_whole_accesses(const GroupFacts& facts, int vector) {
    constexpr int kLeastBytes = 8;
    return vector * facts.widest_bytes >= kLeastBytes;
}

}  // namespace

// A block that stays makes once what quotients by a number of each column take, three registers of a column. H200, rows
// over each channel's scale, quantised, ms so and as they were taken before: with sixteen columns a thread, of 1024
// bf16 columns 0.115 and 0.131, 2048 0.105 and 0.129, 4096 0.111 and 0.129, 8192 0.119 and 0.141. Not where such
// threads do not fill a multiprocessor's share: of 5120 0.102, and 0.096 in blocks that end.
//
// Beside sums of them rows stay in the stages that they were copied to, and few threads have 24 or 32: derivatives of
// those of 1024 columns 0.102 and 0.107, 2048 0.097 and 0.146, 4096 0.109 and 0.146, 5120 0.169 and 0.178, 8192 0.118
// and 0.160.
std::vector<Schedule> dividing_by_tables(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kLeastColumns = 512;
    constexpr int kMostOfAccess = 8;
    constexpr std::int64_t kColumns = 16;
    constexpr std::int64_t kThreadsBesideSums = 256;
    if (target.backend != Backend::kCuda || facts.table_quotients == 0 || facts.columns < kLeastColumns ||
        !has_whole_accesses(facts, vector))
        return {};
    const int of_access = std::min(vector, kMostOfAccess);
    const auto in_threads_of = [&](std::int64_t each) {
        const std::int64_t threads = threads_for(facts.columns / of_access, each, target.warp_size);
        return row_schedule(Residency::kRegisters, static_cast<int>(threads), of_access);
    };
    const auto blocks_of = [](const Schedule& s, std::int64_t threads) {
        return threads / (std::int64_t{s.threads_per_row} * s.rows_per_block);
    };
    const auto at_work = [&](const Schedule& s, std::int64_t threads) {
        return blocks_of(s, threads) * s.threads_per_row * s.rows_per_block;
    };
    if (facts.sums_of_columns == 0) {
        const Schedule s = in_threads_of(ceil_div(kColumns, of_access));
        if (at_work(s, kThreadsAlone) < kThreadsAlone) return {};
        return ahead_of(staying_apart(s, blocks_of(s, kThreadsAlone)), std::array{kTwoStages, kInTwoStages, kRegisters},
                        target);
    }
    const Schedule of_four = in_threads_of(4);
    const Schedule of_three = in_threads_of(3);
    const bool more = at_work(of_three, kThreadsBesideSums) > at_work(of_four, kThreadsBesideSums);
    const Schedule& best = more ? of_three : of_four;
    if (blocks_of(best, kThreadsBesideSums) == 0) return {};
    return ahead_of(staying_apart(best, blocks_of(best, kThreadsBesideSums)),
                    std::array{kInTwoStages, kRegisters, kTwoStages}, target);
}

// Exponentials of one tensor's rows beside a sum of what they come to, as the mean of a router's probabilities: a
// thread has 64 bytes of a row, and sixteen warps share a multiprocessor; of f32 rows that nothing else is stored of
// twelve where blocks are small, eight where those are of many rows. H200, ms so and as rows beside sums are taken
// elsewhere: of 64 f32 columns 0.069 and 0.073, 128 0.067 and 0.077, 512 0.067 and 0.071, 4096 0.076 and 0.087; of 128
// bf16 columns 0.081 and 0.097, 1024 0.082 and 0.113, with log-sum-exps besides 64 0.096 and 0.109; with probabilities
// that are stored too, of 256 f32 columns, 0.105 and 0.144; of two groups of 320 bf16 columns, each by itself, 0.146
// and 0.284.
std::vector<Schedule> exponentials_beside_sums(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kBytesOfThread = 64;
    constexpr std::int64_t kFewThreads = 8;  // of a row
    if (target.backend != Backend::kCuda || facts.streams != 1 || !facts.sums_exponentials || !facts.meets ||
        facts.sums_of_columns == 0 || facts.carries_pairs || !has_whole_accesses(facts, vector))
        return {};
    const std::int64_t columns = kBytesOfThread / (facts.widest_bytes * facts.sums_of_columns);
    const std::int64_t each = std::max<std::int64_t>(1, columns / vector);
    const std::int64_t threads = threads_for(facts.columns / vector, each, target.warp_size);
    if (threads > kThreadsAlone) return {};
    const Schedule s = row_schedule(Residency::kRegisters, static_cast<int>(threads), vector);
    const std::int64_t of_block = threads * s.rows_per_block;
    const bool shares = facts.widest_bytes >= 4 && of_block <= kBlockThreads && facts.stored_bytes == 0;
    const std::int64_t together = !shares                 ? kThreadsAlone
                                  : threads < kFewThreads ? kThreadsAlone / 2
                                                          : 3 * kBlockThreads;
    return ahead_of(staying_apart(s, together / of_block), std::array{kTwoStages, kRegisters}, target);
}

}  // namespace rowjit::reduced_rows
