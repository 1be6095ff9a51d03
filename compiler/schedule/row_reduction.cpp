// Reductions over columns: a fraction of a warp, a warp, a block or a cluster on each row, the row kept in registers or
// shared memory between the phases, or read again when it does not fit. The static rule, which ranks what the other
// files of row_schedules.h offer.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/floor_div.h"
#include "compiler/kernel.h"
#include "compiler/schedule/choose.h"
#include "compiler/schedule/row_schedules.h"

namespace rowjit {
namespace {

using namespace reduced_rows;

constexpr std::int64_t kCpuCacheBytes = 512 * 1024;  // half a second-level cache of today's servers
constexpr std::int64_t kCpuKeptColumns = 32768;      // of f32 in half a first- or a quarter of a second-level cache

// Rows that end have blocks of 80 registers a thread as well: layer_norm of 16384 bf16 columns runs at 95 % of copy so,
// at 92 in 128 registers; but of 4096 f32 columns, a thread's 128 bytes, at 96 and 99 (H200).
constexpr std::array kSharingThreadsPerSm = {1024, 768, 512};
constexpr std::int64_t kManyBytesPerThread = 64;

// A row that fills a block leaves no room for another: its block stays and fetches the next one. H200: layer_norm of
// 32768 bf16 columns runs at 90 % of copy so, at 79 % otherwise.
std::vector<Schedule> staying_schedules(const GroupFacts& facts, const Target& target, int vector) {
    std::vector<Schedule> schedules;
    const bool fills = row_bytes(facts) > kBlockRowBytes / 2;
    if (!fills || wider_than_block(facts, target) || facts.sums_rows() || target.backend != Backend::kCuda)
        return schedules;
    for (const int threads : {512, 1024}) {
        if ((facts.columns + threads - 1) / threads * facts.widest_bytes > kMaxBytesPerThread) continue;
        const Schedule s = row_schedule(Residency::kRegisters, threads, vector);
        // Two blocks that end share a multiprocessor where a thread's six vectors fit 64 registers: layer_norm of 24576
        // bf16 columns runs at 91 % of copy so, at 88 where one stays; of 12288 f32 columns at 91 and 90.
        // Nor do f32 columns of one tensor alone need more of them, though they are counted: a layer norm of 13824
        // takes 0.0590 ms in two such blocks, 0.0636 in one that stays, of 16384 0.0697 and 0.0740.
        const bool wide = bytes_per_thread(s, facts) >= kWideBytesPerThread;
        const bool spare = facts.streams == 1 && facts.functions == 0 && facts.widest_bytes >= 4;
        if (wide && threads == kThreadsAlone) schedules.push_back(sharing(s, kResidentThreadsPerSm.front()));
        if (wide && threads == kThreadsAlone && spare) schedules.push_back(s);
        append(staying(s, kResidentThreadsPerSm.back(), facts, target), &schedules);
        schedules.push_back(sharing(s, kResidentThreadsPerSm.back()));
        append(merging_pairs(s, facts, target), &schedules);
    }
    return schedules;
}

// Narrower rows take their greatest elements one after the other, in fractions of a warp. H100, four of 16384 bf16
// rows, ms so and in one reduction: of 256 columns 0.0231 and 0.0253, of 512 0.0463 and 0.0265, of 1024 0.0909 and
// 0.0335.
constexpr std::int64_t kLeastOfGreatest = 512;

// Where those come: behind schedules of powers of two that were timed against them and are no slower. One sum of two
// tensors' narrow rows in one block has registers for 16 warps of two vectors, of which idle warps cost nothing: of
// 7168 columns 94 % of copy with 512 threads, 84 with 224. Of rows that halves divide, only of two sums those of narrow
// columns in clusters and those of f32 in a block are slower so: layer_norm's backward of 32768 bf16 columns runs at 57
// where it is at 68 over eight blocks of 128 threads; of 4096 at 85, and 81 in such blocks. Of one sum nothing is
// gained in clusters of sixteen: of 131072 columns 57, and 51. Of two of narrow columns 100352 take 0.139 ms in sixteen
// blocks of 288 threads, 0.162 of 512, 0.189 in eight (H100); but of a third tensor 0.223, and 0.161.
constexpr std::int64_t kNarrowRowBytes = 4096;

std::vector<Schedule>::iterator behind_timed(const GroupFacts& facts, const Target& target,
                                             std::vector<Schedule>* schedules) {
    const bool wide = wider_than_block(facts, target);
    const bool narrow = facts.widest_bytes < 4;
    const bool several_narrow = narrow && facts.sums_of_columns > 1 && facts.streams <= 2;
    if (row_bytes(facts) > kMostClusterBlocks / 2 * kPartBesideSums && !several_narrow) return schedules->end();
    if (row_bytes(facts) > kMostClusterBlocks * kSmallPartBytes) return schedules->end();
    if (std::has_single_bit(static_cast<std::uint64_t>(facts.columns))) {
        // Narrow ones leave registers for few threads of many columns: of 2048 bf16 columns layer_norm's backward takes
        // 0.0608 ms in two blocks of 128 threads, four vectors each, 0.0637 in four of two; rms_norm's 0.0573 and
        // 0.0592.
        const bool small = narrow && row_bytes(facts) <= kNarrowRowBytes;
        const bool first = small || (facts.sums_of_columns > 1 && wide == narrow);
        return first && facts.streams <= 2 ? schedules->begin() : schedules->end();
    }
    const bool of_numbers = facts.sums_of_columns == 0 && facts.meets;
    if (of_numbers || facts.sums_of_columns > 1 || facts.streams > 2 || !narrow || wide) return schedules->begin();
    return std::stable_partition(schedules->begin(), schedules->end(), [&](const Schedule& s) {
        const bool few = s.unrolls() && s.column_blocks == 1 && bytes_per_thread(s, facts) <= kStayingBytesPerThread;
        return few && s.threads_per_row >= kMostThreads && vectors_of_thread(s, facts) > 1 &&
               share_at_work(s, facts) >= 7.0 / 8;
    });
}

// Whether narrow rows that are each read once and met over once have sums of their columns beside them.
bool sums_narrow_rows(const GroupFacts& facts, const Target& target, int vector) {
    return target.backend == Backend::kCuda && facts.widest_bytes < 4 && facts.sums_of_columns > 0 && facts.meets &&
           facts.phases <= 2 && facts.loads <= facts.column_inputs && vector >= 8;
}

// Three tensors' narrow rows beside their sums stay in the stages they were copied to, in sixteen warps: registers for
// three tensors leave room for fewer, of more vectors each. H200, backwards of bf16 rows, ms so and with those: of
// add_rms_norm 2176 columns 0.0494 and 0.0573, 2816 0.0642 and 0.0778, 4096 0.0897 and 0.0949, 5632 0.0622 and 0.0690;
// of add_layer_norm 2816 columns 0.0639 and 0.0681, 4864 0.0650 and 0.0686, 5888 0.0708 and 0.0800. Not where a block
// of eight or twelve warps has a row in whole vectors of two and three, in between: of 3840 columns 0.0473 and 0.0463,
// 0.0560 and 0.0490, and with two sums of 4352 0.0637 and 0.0628, of 2048 0.0542 and 0.0524; nor beside functions past
// half a block's columns: gated_rms_norm of 2048 0.0469 and 0.0550, of 4096 0.0503 and 0.0468; nor where threads meet
// twice, as of points on a sphere of 2560 columns 0.0691 and 0.0602, or a row is put together of others, of 2048 0.0713
// and 0.0624.
std::vector<Schedule> of_three_tensors(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kMostOfHalf = 3072;
    constexpr std::int64_t kMost = 6144;
    const bool sums_one = facts.sums_of_columns == 1;
    const std::int64_t least_of_half = sums_one ? 2048 : 2176;
    const std::int64_t least_of_whole = sums_one ? 4096 : 4608;
    const bool of_half = facts.columns >= least_of_half && facts.columns <= kMostOfHalf;
    const bool of_whole = facts.columns >= least_of_whole && facts.columns <= kMost && facts.functions == 0;
    if (!sums_narrow_rows(facts, target, vector) || facts.streams != 3 || (!of_half && !of_whole)) return {};
    const int threads = of_half ? kThreadsAlone / 2 : kThreadsAlone;
    const Schedule s = row_schedule(Residency::kRegisters, threads, vector);
    return ahead_of(staying_apart(s, kThreadsAlone / threads), std::array{kInTwoStages}, target);
}

// Of four and five there is less room still: few threads, of 16 to 20 columns each, whose rows stay in their stages.
// H200, backwards of bf16 rows, ms so and as they were taken before: of a gated sum and its norm 1024 columns 0.103 and
// 0.109, 2048 0.104 and 0.116, 3072 0.0829 and 0.110, 5120 0.131 and 0.133; of a norm behind a dropout 1024 columns
// 0.106 and 0.124, 2560 0.147 and 0.242, 5120 0.141 and 0.158.
std::vector<Schedule> of_four_or_five_tensors(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kLeast = 768;
    constexpr std::int64_t kShort = 2048;
    constexpr std::int64_t kMost = 5120;
    constexpr int kThreadsOfShort = 256;  // of a multiprocessor
    if (!sums_narrow_rows(facts, target, vector) || facts.streams < 4 || facts.streams > 5 || facts.columns < kLeast ||
        facts.columns > kMost)
        return {};
    if (facts.columns <= kShort) {
        const auto threads = static_cast<int>(threads_for(facts.columns / vector, 2, target.warp_size));
        const Schedule s = row_schedule(Residency::kRegisters, threads, vector);
        return ahead_of(staying_apart(s, kThreadsOfShort / (threads * s.rows_per_block)), std::array{kInTwoStages},
                        target);
    }
    Schedule best = row_schedule(Residency::kRegisters, kMostThreads, vector / 2);
    for (const int threads : {224, 192, 160, 128}) {
        const Schedule s = row_schedule(Residency::kRegisters, threads, vector / 2);
        if (share_at_work(s, facts) > share_at_work(best, facts)) best = s;
    }
    return ahead_of(staying_apart(best, kThreadsAlone / best.threads_per_row), std::array{kInTwoStages}, target);
}

// Before a schedule of whose threads' places many are without a vector, the same of as few warps as have no such
// places. H200, % of copy before and so: derivatives of four mixed streams (hyper_post) of 2880 bf16 columns 81 and 98;
// kl_div of 6656 f32 columns 58 and 71. Not of norms, which choose among numbers of warps themselves; nor of columns
// that are stored beside sums of numbers: poly_norm's derivatives of 5376 bf16 columns 84 and 69. Functions want all
// threads at work too, but not in clusters: H100, quotients by numbers of 5120 columns, quantised, 62 and 88; a gate of
// 11008, quantised, over four blocks 91 and 86.
void put_evened_first(const GroupFacts& facts, const Target& target, std::vector<Schedule>* schedules) {
    constexpr double kLeastAtWork = 0.85;
    const bool of_numbers =
        facts.sums_rows() && facts.sums_of_columns == 0 && !facts.stores_columns && facts.phases <= 3;
    const bool of_many = facts.streams >= kManyTensors && !facts.sums_rows();
    const bool of_functions = facts.functions > 0 && !facts.sums_rows();
    if (target.backend != Backend::kCuda || !has_columns(facts) || !(of_numbers || of_many || of_functions)) return;
    std::vector<Schedule> all;
    for (const Schedule& s : *schedules) {
        Schedule evened = s;
        const std::int64_t vectors = ceil_div(ceil_div(facts.columns, s.vector), s.column_blocks);
        evened.threads_per_row = static_cast<int>(threads_for(vectors, vectors_of_thread(s, facts), target.warp_size));
        const bool may_gain = of_numbers || of_many || s.column_blocks == 1;
        const bool helps = may_gain && s.unrolls() && s.threads_per_row > 2 * target.warp_size && !s.fetches_ahead() &&
                           share_at_work(s, facts) < kLeastAtWork && evened.threads_per_row < s.threads_per_row;
        if (helps) {
            if (s.min_blocks_per_sm > 0)
                evened.min_blocks_per_sm = s.min_blocks_per_sm * s.threads_per_row / evened.threads_per_row;
            all.push_back(evened);
        }
        all.push_back(s);
    }
    *schedules = all;
}

// Beside sums over rows, threads of several warps that meet over a row have two vectors of narrow columns at least, and
// most as many as the others: what a row costs besides its columns is as much as a vector's. H100, ms, with one vector
// a thread and as it is chosen now: cross-entropy of 1920 bf16 columns 0.0568 (256 threads) and 0.0306 (32), tvd 0.0728
// and 0.0545, poly_norm's backward 0.105 and 0.0742, group_norm's of 7680 0.203 (two blocks of 512) and 0.146. Where
// threads do not meet, as for dynamic_tanh's backward, one vector is the faster: of 1920 columns 0.0763 and 0.0819. So
// it is of f32: kto of 1920 columns 0.0960 and 0.0990.
constexpr double kMostAtWork = 3.0 / 4;

void put_single_vectors_last(const GroupFacts& facts, std::vector<Schedule>* schedules) {
    if (!facts.meets) return;
    const auto end = std::ranges::find_if_not(*schedules, &Schedule::unrolls);
    std::stable_partition(schedules->begin(), end, [&](const Schedule& s) {
        const bool is_of_warp = s.column_blocks == 1 && s.threads_per_row <= kWarpThreads;
        const bool of_several = vectors_of_thread(s, facts) > 1 || facts.widest_bytes >= 4;
        return is_of_warp || (of_several && share_at_work(s, facts) >= kMostAtWork);
    });
}

// Whether blocks of threads with so many columns may have 80 registers a thread: not those of 128 bytes of f32.
bool shares_between(std::int64_t columns, const GroupFacts& facts, const Target& target) {
    const bool room = facts.widest_bytes < 4 || columns * facts.widest_bytes <= kWideBytesPerThread;
    return target.backend == Backend::kCuda && room;
}

// Of so many narrow tensors rows divided evenly are faster than those of many_beside_sums; of more, where that has
// none.
constexpr int kFewOfMany = 6;

// What few columns are reduced to, stored for many, as a pooled sequence's gradient for each of its tokens: nothing of
// the many is kept. H200, of 128 tokens of 768 bf16 columns 0.0754 ms so, 0.172 in a cluster that could hold them.
std::vector<Schedule> stored_for_many(const GroupFacts& facts, int vector) {
    constexpr std::int64_t kMany = 8;
    if (facts.sums_rows() || facts.columns < kMany * facts.reduced_columns || facts.columns < kMostThreads * vector)
        return {};
    Schedule s = row_schedule(Residency::kReload, kMostThreads, vector);
    s.online = true;
    return {s};
}

// Rows whose neighbours read the same few columns have four threads each: as warps, every row has its numbers and its
// meeting for a column of each lane. Not one, which would add up all of them one after the other: of 32 columns 2.4
// units off where eager's is 1.2.
std::vector<Schedule> of_same_columns(const GroupFacts& facts, int vector) {
    constexpr int kThreads = 4;
    constexpr std::int64_t kMostColumns = 64;
    if (!facts.columns_shared || facts.columns > kMostColumns || facts.stores_columns || facts.sums_rows()) return {};
    return {row_schedule(Residency::kRegisters, kThreads, vector)};
}

// Narrow rows of which a few of the greatest are taken have few threads, of which each keeps its own: to keep one more
// element costs a thread less than to meet once more. H200, eight of 256 columns, ms: of bf16 0.153 with four threads,
// 0.181 with eight, 0.244 with sixteen, 0.880 in a warp, 1.19 one after the other; of f32 0.169, 0.198, 0.260, 0.429
// and 0.567. A warp finds few in a wide row that pass the least of those it has, and offers of f32 cost twice those of
// bf16. Lanes that have a row each lie the further apart: two of 64 f32 columns 0.131 ms so, 0.089 with two threads.
std::vector<Schedule> of_few_greatest(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kColumnsOfThread = 64;
    constexpr std::int64_t kBytesOfLane = 128;
    const std::int64_t wide = kLeastOfGreatest * (facts.widest_bytes < 4 ? 4 : 1);
    if (facts.greatest < 2 || facts.greatest > kMostGreatestOfThread || facts.columns >= wide || facts.sums_rows())
        return {};
    const std::int64_t shares = ceil_div(facts.columns, kColumnsOfThread);
    const std::int64_t least = row_bytes(facts) > kBytesOfLane ? 2 : 1;
    const auto wanted = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::max(shares, least))));
    std::vector<Schedule> schedules;
    for (const int threads : {wanted, wanted * 2, wanted / 2}) {
        if (threads < 1 || threads >= target.warp_size) continue;
        schedules.push_back(row_schedule(Residency::kReload, threads, vector));
        schedules.back().online = true;
    }
    return schedules;
}

// Rows of many tensors beside sums are rather copied once than read again, and rather read again than divided over
// blocks that wait for each other. H200, derivatives of eight states, ms: of 2304 bf16 columns 0.160 read again and
// 0.157 in shared memory, of 5120 0.192 and 0.177, of 2304 f32 columns 0.181 and 0.139, of 3584 0.125 and 0.128, in two
// blocks 0.251.
void put_single_blocks_first(std::vector<Schedule>* schedules) {
    std::ranges::stable_partition(*schedules, [](const Schedule& s) { return s.column_blocks == 1; });
    const auto first = std::ranges::find(*schedules, Residency::kReload, &Schedule::residency);
    std::stable_partition(first, schedules->end(), [](const Schedule& s) { return s.residency == Residency::kShared; });
}

std::vector<Schedule> gpu_schedules(const GroupFacts& facts, const Target& target, int vector) {
    std::vector<Schedule> schedules;
    const int preferred = preferred_threads(facts, vector);
    const auto elements = [&](int threads) { return (facts.columns + threads - 1) / threads; };

    std::vector<Schedule> crowded;
    std::vector<int> widths = {preferred};
    if (const int of_six = threads_of_six(facts, target, vector); of_six > 0) widths.insert(widths.begin(), of_six);
    // Eight times as many where a few tensors' rows leave no registers for less: a gated norm's backward of 1792
    // columns has room in 256 threads, and in no other number of a block's.
    const int most = facts.streams < kManyTensors ? preferred * 8 : preferred * 4;
    for (const int threads : {preferred * 2, preferred / 2, preferred * 4, most, 512, 1024}) {
        const bool half_idle = threads / 2 * std::int64_t{vector} >= facts.columns;
        const bool known = std::find(widths.begin(), widths.end(), threads) != widths.end();
        if (threads >= 1 && threads <= 1024 && !half_idle && !known) widths.push_back(threads);
    }
    for (const int threads : widths) {
        if (elements(threads) * facts.held_bytes > kMaxBytesPerThread) continue;
        Schedule s = row_schedule(Residency::kRegisters, threads, vector);
        const bool many = elements(threads) * facts.held_bytes >= kManyBytesPerThread;
        // Softmax's backward of 4096 bf16 columns: 0.100 ms with the registers it wants, 0.113 with a share. So is what
        // takes long to compute: a capped softmax of 8192 columns 0.256, 0.307 with a share of 128.
        const bool alone_first = reads_several_narrow(facts) || facts.held_bytes > facts.widest_bytes;
        if (crowds(threads, facts)) {
            crowded.push_back(s);
            continue;
        }
        if (alone_first) append(lightly_sharing(s, elements(threads), facts), &schedules);
        for (const int per_sm : kSharingThreadsPerSm) {
            const bool shares = threads >= kBlockThreads && per_sm > threads;
            const bool between = per_sm == kSharingThreadsPerSm[1];
            if (between && !shares_between(elements(threads), facts, target)) continue;
            if (many && shares && !facts.sums_rows()) schedules.push_back(sharing(s, per_sm));
        }
        if (!alone_first) schedules.push_back(s);
    }
    std::vector<Schedule> shared;
    for (const int threads : threads_of_shared(facts, target)) {
        if (elements(threads) > 8) shared.push_back(row_schedule(Residency::kShared, threads, vector));
    }
    append(crowded, &shared);
    const bool fills_shared = fills_shared_memory(facts, target);
    std::vector<Schedule> reloads;
    for (const int threads : threads_of_reloaded(facts, target, vector)) {
        if (facts.columns < std::int64_t{threads} * vector) continue;
        reloads.push_back(row_schedule(Residency::kReload, threads, vector));
        reloads.back().online = true;  // each pass saved is a read of the row from memory saved
    }
    // With one pass and no columns to store nothing is read twice, so keeping the row would only cost registers:
    // cross-entropy over 32768 classes ran at 99 % of copy this way, 56 % with the row in registers (H200).
    // So it is with two passes where a cluster would have to meet: a Jensen-Shannon divergence over 128256 classes took
    // 1.9 ms, 4.1 in a cluster. And a row that a cluster has no room to keep in small parts, and waits for besides.
    // What meets once needs no cluster either: of 4608 f32 classes cross-entropy runs at 101 % of copy so, at 33 in two
    // blocks, orpo at 100 and 90; but kl_div, which has two pairs of a maximum and a sum, at 88 and 99 (H100).
    // With a place or an entropy besides, two passes over a row that stays on chip are as good for twice as many: a
    // cross-entropy with its entropy of 8192 bf16 classes 0.0685 ms so and 0.084 in one, of 32000 0.0861 and 0.0806.
    const bool carries_more = facts.sums_exponentials && (facts.carries_entropy || facts.greatest == 1);
    const std::int64_t least = carries_more         ? 2 * kStreamedColumns
                               : facts.greatest > 0 ? kLeastOfGreatest
                                                    : kStreamedColumns;
    const bool is_wide = facts.columns >= least;
    const bool in_cluster = wider_than_block(facts, target);
    const bool meets_once = facts.online_phases == 2;
    const bool has_pairs = facts.sums_exponentials && facts.streams > 1;
    // One that takes several of its greatest is read once more for what is stored of it: in registers it would take
    // them one after the other, 20 of 32000 bf16 columns in 3.64 ms where a copy of the row takes 0.065 (H200).
    const bool read_once = (!facts.stores_columns || facts.greatest > 1) &&
                           (is_wide ? meets_once || in_cluster : meets_once && in_cluster && !has_pairs);
    const std::vector<Schedule> words = read_once ? read_in_words(facts, target, vector) : std::vector<Schedule>{};
    const bool streams = read_once && words.empty();
    const bool too_wide =
        waits_alone(facts) && facts.widest_bytes < 4 && row_bytes(facts) > kMostClusterBlocks * kSmallPartBytes * 3 / 4;
    // What takes long to compute of a column is computed again at each meeting so, where registers have it, unless
    // there are many: logits with penalties and a temperature, of 128256 bf16 columns, 0.131 ms in one stage and 0.0752
    // in the registers of sixteen blocks, but their derivatives, which meet four times, 0.247 read again and 0.337
    // (H200).
    constexpr int kManyPhases = 4;
    const bool keeps_columns = facts.held_bytes <= facts.widest_bytes || facts.online_phases > kManyPhases;
    const bool one_pass = streams || (too_wide && keeps_columns && waits_for_numbers(facts));
    std::vector<Schedule> first = of_few_greatest(facts, target, vector);
    if (one_pass) append(std::exchange(reloads, {}), &first);
    // Round after round they take ten times as long, and registers for a condition of each column besides.
    const bool in_rounds_else = one_pass && facts.greatest > 0;
    if (in_rounds_else && !facts.sums_rows()) return first;
    append(fills_shared ? reloads : shared, &schedules);
    put_first(staying_schedules(facts, target, vector), &schedules);
    const std::vector<Schedule> clusters = cluster_schedules(facts, target, vector);
    schedules.insert(wider_than_block(facts, target) ? schedules.begin() : schedules.end(), clusters.begin(),
                     clusters.end());
    put_first(ending_in_cluster(facts, target, vector), &schedules);
    put_first(first, &schedules);
    append(alone_in_one_stage(facts, target, vector), &schedules);
    append(fills_shared ? shared : reloads, &schedules);
    // A row that fills a block with what a thread would hold of it, and waits for its numbers besides.
    if (waits_for_numbers(facts) && facts.stores_columns && facts.widest_bytes < 4 &&
        row_bytes(facts) > kBlockRowBytes / 2)
        put_first(in_one_stage(facts, target, vector, 1), &schedules);
    // Where it is read once at all, nothing is to be kept.
    if (too_wide && keeps_columns && (facts.stores_columns || facts.online_phases > 2))
        put_first(in_shared_of_cluster(facts, target, vector), &schedules);
    const std::vector<Schedule> parts = in_few_parts(facts, target, vector);
    // Softmax of 131072 bf16 columns takes 0.137 ms in eight such blocks, 0.151 in the registers of sixteen; of 65536,
    // which registers of eight blocks hold, it is slower so, and of 200064, four of whose parts share a multiprocessor,
    // 0.0650 and 0.0604 (H200).
    const bool spares_blocks = !parts.empty() && parts.front().column_blocks < kMostClusterBlocks &&
                               row_bytes(facts) > kMostClusterBlocks / 2 * kSmallPartBytes &&
                               resident_blocks(facts, target, parts.front().column_blocks) >= kPartsOfMany;
    const bool parts_first = !in_rounds_else && (waits_for_numbers(facts) || spares_blocks);
    schedules.insert(parts_first ? schedules.begin() : schedules.end(), parts.begin(), parts.end());
    put_first(of_functions(facts, target, vector), &schedules);
    put_first(beside_gates(facts, target, vector), &schedules);
    put_first(stored_in_bytes(facts, target, vector), &schedules);
    put_first(many_in_rounds(facts, target, vector), &schedules);
    put_first(many_waiting(facts, target, vector), &schedules);
    put_first(many_in_registers(facts, target, vector), &schedules);
    if (schedules.empty()) {
        schedules.push_back(row_schedule(Residency::kReload, preferred, vector));
        if (facts.sums_rows()) schedules.back().rows_per_block = 1;
    }
    put_evened_first(facts, target, &schedules);
    if (facts.sums_rows()) {
        schedules = all_staying(schedules, facts, target);
        put_single_vectors_last(facts, &schedules);
        const std::vector<Schedule> even = summing_evenly(facts, target, vector);
        schedules.insert(behind_timed(facts, target, &schedules), even.begin(), even.end());
        const std::vector<Schedule> evenly = many_summed_evenly(facts, target, vector);
        const bool few_narrow = facts.streams <= kFewOfMany && facts.widest_bytes < 4;
        if (!few_narrow && schedules.front().column_blocks == 1) put_first(evenly, &schedules);
        const bool of_many = facts.sums_of_columns > 0 && facts.streams > kFewOfMany;
        if (of_many) put_single_blocks_first(&schedules);
        put_first(of_three_tensors(facts, target, vector), &schedules);
        put_first(of_four_or_five_tensors(facts, target, vector), &schedules);
        put_first(computed_in_few_threads(facts, target, vector), &schedules);
        put_first(alone_in_long_parts(facts, target, vector), &schedules);
        put_first(many_beside_sums(facts, target, vector), &schedules);
        if (few_narrow) put_first(evenly, &schedules);
        put_first(carrying_pairs(facts, target, vector), &schedules);
        put_first(rows_beside_sums(facts, target, vector), &schedules);
        put_first(summed_singly(facts, target, vector), &schedules);
        put_first(summed_in_words(facts, target, vector), &schedules);
        // What is copied into shared memory without being ahead of anything: a gated norm's backward of 8192 bf16
        // columns takes 0.0797 ms so, 0.0536 in the registers of a cluster (H200).
        const auto is_ahead = [](const Schedule& s) { return s.residency != Residency::kShared; };
        if (facts.sums_of_columns > 0 && !of_many) std::ranges::stable_partition(schedules, is_ahead);
        append(staying_in_few_threads(facts, target, vector), &schedules);
        add_many_beside_numbers(facts, target, vector, &schedules);
    }
    put_first(words, &schedules);
    put_first(waiting_in_steps(facts, target, vector), &schedules);
    put_first(waiting_in_stages(facts, target, vector), &schedules);
    put_first(holding_in_stages(facts, target, vector), &schedules);
    if (facts.widest_bytes >= 4 && !takes_logarithms(facts))
        put_first(distributions_in_registers(facts, target, vector), &schedules);
    put_first(exponentials_beside_sums(facts, target, vector), &schedules);
    put_first(dividing_by_tables(facts, target, vector), &schedules);
    put_first(stored_for_many(facts, vector), &schedules);
    put_first(of_same_columns(facts, vector), &schedules);
    return schedules;
}

// The same of rows that begin anywhere, which are not copied ahead in 16 bytes.
//
// The widest of several tensors that are stored have no registers for the next row: softmax's derivative of 151643 bf16
// columns takes 0.109 ms with it and 0.0816 in blocks that end, of 100001, of half as many threads, 0.114 and 0.121.
Schedule peeled(Schedule s, const GroupFacts& facts) {
    s.peel = true;
    if (s.stages == 0) return s;
    const bool is_widest = s.column_blocks == kMostClusterBlocks && s.threads_per_row == kThreadsAlone;
    if (is_widest && facts.streams > 1 && facts.stores_columns && s.residency == Residency::kRegisters) {
        s.stages = s.blocks_per_sm = s.min_blocks_per_sm = 0;
        return s;
    }
    s.prefetch = s.residency == Residency::kRegisters;
    if (s.residency == Residency::kStages) {
        s.residency = Residency::kShared;
        s.blocks_per_sm = 0;
        s.skew = false;
    }
    s.stages = 0;
    return s;
}

// Rows of few vectors of many tensors, as heads that a thread has all of: of a whole vector of each there may be more
// than registers hold, and no other number of threads has less. Parts of one are offered too, and first where it is so
// many narrow columns. H200, the derivatives of a norm and a rotation of eight heads of 128 bf16 columns, the tables'
// among them: 0.283 ms in four kernels, as no schedule had room, 0.145 in two; by copies of four bytes into shared
// memory 0.261. Sixteen groups of 64 columns weighted and added up: 0.153 ms in fours, 0.252 in eights.
constexpr std::int64_t kMostHeldAtOnce = 96;

void add_parts_of_vectors(const GroupFacts& facts, const Target& target, int whole, std::vector<Schedule>* schedules) {
    const bool are_short = facts.columns <= std::int64_t{kWarpThreads} * whole;
    if (!facts.holds_positions || facts.streams < kManyTensors || !are_short) return;
    std::vector<Schedule> parts;
    for (const int part : {whole / 2, whole / 4}) {
        if (part == 0) continue;
        std::vector<Schedule> of_part = gpu_schedules(facts, target, part);
        if (part * std::int64_t{facts.widest_bytes} < kLeastCopied)
            std::ranges::stable_partition(of_part, [](const Schedule& s) { return s.stages == 0; });
        append(of_part, &parts);
    }
    const bool holds_too_many = facts.widest_bytes < 4 && std::int64_t{facts.streams} * whole > kMostHeldAtOnce;
    schedules->insert(holds_too_many ? schedules->begin() : schedules->end(), parts.begin(), parts.end());
}

// Distributions that begin anywhere are not copied ahead, and a cluster that waits for them is rather not: they are
// read twice. H200, 100277 bf16 classes, ms so and in eight blocks' shared memory: kl_div 0.139 and 0.172, tvd 0.216
// and 0.354; of 50257 0.139 and 0.179, 0.213 and 0.241. But those of f32 that registers hold wait there, as whole ones
// do, and so do narrow ones that logarithms are taken of: jsd 0.280 and 0.414, of 50257 0.254 and 0.283.
void put_distributions_first(const GroupFacts& facts, const Target& target, std::vector<Schedule>* schedules) {
    const bool narrow = facts.widest_bytes < 4;
    if (narrow != takes_logarithms(facts)) {
        std::ranges::stable_partition(*schedules, [](const Schedule& s) { return s.residency == Residency::kReload; });
        return;
    }
    if (!narrow) return;
    std::vector<Schedule> first = distributions_in_registers(facts, target, facts.access_columns());
    for (Schedule& s : first) s = peeled(s, facts);
    put_first(first, schedules);
}

// Of the widest rows, in accesses of four bytes, the next is rather fetched into registers than copied in as many
// pieces: softmax's derivative of 151646 bf16 columns takes 0.0719 ms so, 0.106 with copies (H200).
void put_copied_words_last(const GroupFacts& facts, int vector, std::vector<Schedule>* schedules) {
    if (facts.sums_rows() || vector == 1 || vector * facts.widest_bytes >= kLeastCopied) return;
    std::ranges::stable_partition(
        *schedules, [](const Schedule& s) { return s.stages == 0 || s.column_blocks < kMostClusterBlocks; });
}

// Whether rows beside sums of their columns are the better peeled. H200, % of copy one by one or in words, and peeled:
// rms_norm's backward of 1001, 2049, 4097 and 5001 bf16 columns 52, 58, 68, 72 and 74, 92, 92, 93, layer_norm's of f32
// 65, 58, 75, 76 and 83, 91, 91, 88; but dynamic_tanh's of 5001, whose 625 vectors 512 threads have, 67 and 59, and of
// three f32 tensors add_rms_norm's of 3001 and 6003 88, 87 and 81, 82. Words are slower where there are two tensors
// (rms_norm's of 3330 bf16 columns 73 and 86, layer_norm's of 7002 62 and 77), but not of three (add_layer_norm's 74
// and 47), nor in rows of a few vectors (rms_norm's of 602 88 and 56) or of many (of 12290 81 and 65).
bool is_peeled_beside_sums(const Schedule& s, const GroupFacts& facts, int whole) {
    constexpr std::int64_t kLeastInWords = 1024;
    constexpr std::int64_t kMostInWords = 8192;
    constexpr std::int64_t kLeastWide = 2560;
    constexpr std::int64_t kMostWide = 12288;
    const std::int64_t vectors = facts.columns / s.vector;
    const std::int64_t threads = s.threads_per_row * s.column_blocks;
    if (4 * ceil_div(vectors, threads) * threads > 5 * vectors) return false;
    if (whole > 1) {
        return s.column_blocks == 1 && facts.streams <= 2 && facts.functions == 0 && facts.columns >= kLeastInWords &&
               facts.columns <= kMostInWords;
    }
    if (facts.widest_bytes == 4 && facts.streams > 2 && facts.columns >= kLeastWide && facts.columns <= kMostWide)
        return false;
    if (s.column_blocks == 1) return true;
    // Of clusters as many run at once as are a multiple of a vector's columns, of eight blocks 8 where 15 have room:
    // rms_norm's of 20003 bf16 columns in clusters of four 41 and 61, of 50257 in those of eight 43 and 28. More
    // threads wait there (layer_norm's of 9001 f32 columns in four blocks of 192 71 and 58, of 20003 in eight of 128 60
    // and 75), and functions are in each other's way (dynamic_tanh's of 20003 40 and 34).
    constexpr std::int64_t kMostOfClusters = 32;  // columns of a vector of each block
    constexpr int kMostThreads = 128;
    return s.column_blocks * s.vector <= kMostOfClusters && s.threads_per_row <= kMostThreads && facts.functions == 0;
}

std::vector<Schedule> gpu_schedules(const GroupFacts& facts, const Target& target) {
    constexpr std::int64_t kLeastOfTables = 3072;
    constexpr std::int64_t kMostOfTables = 16384;
    if (!has_columns(facts)) return gpu_schedules(facts, target, 1);
    const int whole = vector_dividing(facts.columns, facts.access_columns());
    std::vector<Schedule> schedules = gpu_schedules(facts, target, whole);
    add_parts_of_vectors(facts, target, whole, &schedules);
    put_copied_words_last(facts, whole, &schedules);
    if (!facts.begins_anywhere() && !facts.peels()) return schedules;
    GroupFacts of_vectors = facts;
    if (facts.sums_of_columns > 0) of_vectors.columns -= facts.columns % facts.access_columns();
    std::vector<Schedule> of_peeled;
    for (const Schedule& s : gpu_schedules(of_vectors, target, facts.access_columns()))
        of_peeled.push_back(peeled(s, facts));
    if (facts.sums_of_columns > 0) {
        const auto last = std::ranges::stable_partition(
            of_peeled, [&](const Schedule& s) { return is_peeled_beside_sums(s, facts, whole); });
        schedules.insert(schedules.end(), last.begin(), last.end());
        schedules.insert(schedules.begin(), of_peeled.begin(), last.begin());
        return schedules;
    }
    if (compares_distributions(facts, target)) put_distributions_first(facts, target, &of_peeled);
    // Two tensors' rows that are stored as well have as much in flight in twos, and no ends. H200, % of copy, peeled
    // and in twos: softmax's backward of 1026 bf16 columns 98 and 105, of 30522 95 and 104.
    //
    // Nor has a tensor beside several tables, each vector of which is put together of columns one by one: layer_norm of
    // 4097 bf16 columns 0.0822 ms one by one and 0.0918 peeled, of 12345 0.124 and 0.143; but of 50257, in a cluster,
    // 0.205 and 0.193, and with a residual 0.0827 and 0.0717.
    const bool of_tables = facts.streams == 1 && facts.table_bytes > facts.widest_bytes &&
                           facts.columns >= kLeastOfTables && facts.columns <= kMostOfTables;
    // Nor have those that are compared, of up to some thousand columns: kl_div of 514, 1002, 2050 and 3002 bf16 classes
    // 0.105, 0.0868, 0.107 and 0.141 ms peeled, 0.0863, 0.0745, 0.0847 and 0.111 in twos; of 129 and 511 f32 classes 68
    // and 65 % of copy peeled, 83 and 83 one by one. But four tensors, stored ones among them, are the faster peeled
    // (is_peeled_of_many).
    constexpr std::int64_t kMostCompared = 4096;
    const bool compares = facts.streams > 1 && !facts.stores_columns;
    const bool stores_one = facts.stores_columns && facts.streamed_bytes < 4 * facts.widest_bytes;
    const bool compares_few = compares && facts.columns <= kMostCompared;
    const bool of_several = whole > 1 && facts.streams > 1 && (stores_one || compares_few);
    const bool compares_fewest = compares && facts.columns < GroupFacts::kLeastPeeled;
    const bool singly_first = of_several || of_tables || compares_fewest;
    schedules.insert(singly_first ? schedules.end() : schedules.begin(), of_peeled.begin(), of_peeled.end());
    return schedules;
}

// A pair of maximum and sum moves its origin past the first vector, past half of the second ones and ends in a further
// move: three exponentials that wait for a maximum, and branches that are missed. Of as many columns as this two passes
// through the first-level cache take less. An Intel server in cache, GB/s with pairs and without: logsumexp of 128 bf16
// columns 2.1 and 5.1, of 512 5.2 and 11.5, of 1024 7.9 and 11.8, cross_entropy's 7.5 and 8.5, of 2048 9.8 and 9.4.
constexpr std::int64_t kCpuTwoPassColumns = 1024;

// On the CPU a kept value lies on the stack, in cache, which saves an exponential computed twice; loads are not kept. A
// row that fits the core's own cache is read again; past it, a pass saved is memory traffic saved.
std::vector<Schedule> cpu_schedules(const GroupFacts& facts) {
    std::vector<Schedule> schedules;
    const bool fits = facts.columns * facts.widest_bytes * std::max(1, facts.column_inputs) <= kCpuCacheBytes;
    // A pair costs one exponential a column, and the row is read once; so it is where its greatest are kept.
    const bool pairs_pay = facts.sums_exponentials && facts.columns > kCpuTwoPassColumns;
    const bool pairs_alone = facts.greatest > 0 || (pairs_pay && facts.online_phases == 2 && !facts.stores_columns);
    if (facts.columns <= kCpuKeptColumns && !pairs_alone) {
        std::vector<int> vectors = {32, 16};
        if (facts.of_groups) vectors.insert(vectors.end(), kCpuGroupVectors.begin(), kCpuGroupVectors.end());
        for (const int vector : vectors) {
            schedules.push_back(row_schedule(Residency::kRegisters, 1, vector));
            schedules.back().rows_per_block = 1;
        }
    }
    const bool online_first = !fits || pairs_pay || facts.greatest > 0;
    for (const bool online : {online_first, !online_first}) {
        for (const int vector : {32, 16, 64}) {
            Schedule s = row_schedule(Residency::kReload, 1, vector);
            s.rows_per_block = 1;
            s.online = online;
            schedules.push_back(s);
        }
    }
    return schedules;
}

}  // namespace

FamilyOffer offer_row_reduction(const GroupFacts& facts, const Target& target) {
    FamilyOffer offer{Family::kRowReduction, {}, ""};
    if (facts.phases == 1) {
        offer.declined = "no reduction over columns";
        return offer;
    }
    offer.schedules = rows_across(facts, target);
    if (!offer.schedules.empty()) return offer;
    if (!target.is_gpu()) {
        offer.schedules = cpu_schedules(facts);
        return offer;
    }
    offer.schedules = gpu_schedules(facts, target);
    return offer;
}

}  // namespace rowjit
