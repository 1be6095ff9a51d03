// Rows that no whole vector divides. Beside sums of its columns a thread has the same columns of every row: of an odd
// number, which begin anywhere, it loads each by itself, so that narrow ones take as many registers as wide ones do; of
// twice and four times one it loads words of four and eight bytes, of which as many as fill a whole vector take four
// and two times the instructions. Rows of f32 words that are read alone are here too.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/floor_div.h"
#include "compiler/schedule/row_schedules.h"

namespace rowjit::reduced_rows {

// H200, derivatives with those of their weights, in ms as they were taken before and so: rms_norm of 1537 bf16 columns
// 0.151 and 0.102, of 4097 0.235 and 0.144, of 6001 0.218 and 0.0976, of 12345 0.273 and 0.123, of 50257 0.333 and
// 0.180 (in blocks of 512 threads 0.221), of 4097 f32 columns 0.165 and 0.102; layer_norm of 4097 bf16 columns 0.416
// and 0.142, of 50257 0.353 and 0.184 (of 256 threads 0.203), of 4097 f32 columns 0.229 and 0.129; dynamic_tanh of 4097
// bf16 columns 0.714 and 0.138, of f32 0.351 and 0.124.
std::vector<Schedule> summed_singly(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kLeast = 1024;
    constexpr std::int64_t kShort = 2048;
    constexpr std::int64_t kHalves = 4224;
    constexpr std::int64_t kMostOfBlock = 6400;
    constexpr std::int64_t kColumnsInCluster = 13;  // of a thread
    constexpr std::int64_t kManyParts = 8;
    if (target.backend != Backend::kCuda || vector > 1 || facts.sums_of_columns == 0 || facts.columns < kLeast)
        return {};
    const auto staying = [&](int threads, std::int64_t parts, int blocks, std::span<const Ahead> ways) {
        Schedule s = row_schedule(Residency::kRegisters, threads, 1);
        s.column_blocks = parts;
        return ahead_of(staying_apart(s, blocks), ways, target);
    };
    constexpr std::array kRegistersFirst = {kRegisters, Ahead{}};
    constexpr std::array kAtOnce = {Ahead{}};
    if (facts.columns <= kShort) return staying(128, 1, 4, kRegistersFirst);
    const bool in_parts = facts.widest_bytes >= 4 && target.clusters;
    if (facts.columns <= kMostOfBlock && in_parts) {
        const bool meets_over_both = facts.meets && facts.sums_of_columns > 1;
        return meets_over_both ? staying(kThreadsAlone, 1, 1, kRegistersFirst)
                               : staying(128, facts.columns <= kHalves ? 2 : 4, 4, kAtOnce);
    }
    if (facts.columns <= kMostOfBlock) return staying(256, 1, 2, kRegistersFirst);
    if (!target.clusters) return {};
    std::int64_t parts = 2;
    while (parts < kMostClusterBlocks && ceil_div(facts.columns, parts * kThreadsAlone) > kColumnsInCluster) parts *= 2;
    const bool in_halves = parts >= kManyParts && parts < kMostClusterBlocks && facts.sums_of_columns == 1;
    return in_halves ? staying(kThreadsAlone / 2, 2 * parts, 2, std::array{kSkewed, Ahead{}})
                     : staying(kThreadsAlone, parts, 1, std::array{kSkewed, Ahead{}});
}

namespace {

// Whether an access has fewer bytes than whole vectors have, and yet several columns.
bool are_words(const GroupFacts& facts, int vector) { return vector > 1 && vector < facts.access_columns(); }

// How rows are taken whose columns are words: the bytes of a row that a thread has, at most, the threads of a block and
// the blocks of a row, and what is ahead of a row in one block and in several. Whole vectors' rules counted a word as a
// vector, so that threads had a fourth or half of the columns and a cluster took what a block has room for. H200,
// derivatives with those of weights, ms as those rules had them and so: rms_norm of 1002, 2050, 6002, 12290, 20004 and
// 50258 bf16 columns 0.182, 0.178, 0.102, 0.282, 0.0814 and 0.134, and 0.106, 0.117, 0.0850, 0.0914, 0.0663 and 0.103;
// layer_norm's 0.195, 0.250, 0.265, 0.402, 0.107 and 0.108, and 0.132, 0.135, 0.0945, 0.0969, 0.0779 and 0.119; of 3330
// and 12290 f32 columns rms_norm's 0.0946 and 0.173, and 0.0908 and 0.0926, layer_norm's 0.128 and 0.250, and 0.0883
// and 0.0984; dynamic_tanh's, whose threads never meet, of 12290 and 30006 bf16 columns 0.310 and 0.278, and 0.0958 and
// 0.137. Copies of four bytes are dear: one sum of such words waits for its loads in more blocks rather.
struct InWords {
    int access_bytes;
    int column_bytes;
    int sums;  // of each column, 2 for more than one; kNeverMeet where a row's threads do not meet
    std::int64_t most_bytes;
    int block_threads;
    int most_blocks;
    Ahead in_block;
    Ahead in_cluster;
};
constexpr int kNeverMeet = 0;
constexpr int kAnyBlocks = static_cast<int>(kMostClusterBlocks);

constexpr std::array kInWords = {
    InWords{4, 2, 1, 48, 64, 1, kRegisters, kRegisters},
    InWords{4, 2, 1, 48, 256, kAnyBlocks, Ahead{}, kRegisters},
    InWords{8, 2, 1, 48, 256, kAnyBlocks, kTwoStages, kTwoStages},
    InWords{8, 4, 1, 60, 256, 8, kTwoStages, kTwoStages},
    InWords{8, 4, 1, 60, 256, kAnyBlocks, kTwoStages, kSkewedInStages},
    InWords{4, 2, 2, 25, 512, 2, kRegisters, kRegisters},
    InWords{4, 2, 2, 60, 128, kAnyBlocks, kInTwoStages, kInTwoStages},
    InWords{8, 2, 2, 60, 128, kAnyBlocks, kInTwoStages, kSkewedInStages},
    InWords{8, 4, 2, 80, 256, kAnyBlocks, kInTwoStages, kInTwoStages},
    InWords{4, 2, kNeverMeet, 30, 512, kAnyBlocks, kTwoStages, kSkewedStages},
    InWords{8, 2, kNeverMeet, 30, 512, kAnyBlocks, kTwoStages, kSkewedStages},
    InWords{8, 4, kNeverMeet, 40, 512, kAnyBlocks, kTwoStages, kSkewedStages},
};

// A power of two of threads in blocks as `row` has them, or larger ones where those would be more than a cluster has;
// none where that is not room enough.
std::optional<Schedule> in_words(const InWords& row, const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kMostOfThree = 48;
    const std::int64_t most = facts.streams > 2 ? std::min(row.most_bytes, kMostOfThree) : row.most_bytes;
    std::int64_t threads = target.warp_size;
    while (row_bytes(facts) > threads * most) threads *= 2;
    std::int64_t each = std::min<std::int64_t>(threads, row.block_threads);
    while (row.most_blocks == kAnyBlocks && threads > each * kMostClusterBlocks && each < kThreadsAlone) each *= 2;
    if (threads > each * row.most_blocks || (threads > each && !target.clusters)) return std::nullopt;
    Schedule s = row_schedule(Residency::kRegisters, static_cast<int>(each), vector);
    s.column_blocks = threads / each;
    return staying_apart(s, kThreadsAlone / (each * s.rows_per_block));
}

}  // namespace

std::vector<Schedule> summed_in_words(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kLeast = 512;
    if (target.backend != Backend::kCuda || !are_words(facts, vector) || facts.sums_of_columns == 0 ||
        facts.streams >= kManyTensors || facts.columns < kLeast)
        return {};
    const int sums = facts.meets ? std::min(facts.sums_of_columns, 2) : kNeverMeet;
    std::vector<Schedule> schedules;
    for (const InWords& row : kInWords) {
        if (row.access_bytes != vector * facts.widest_bytes || row.column_bytes != facts.widest_bytes ||
            row.sums != sums)
            continue;
        const std::optional<Schedule> s = in_words(row, facts, target, vector);
        if (!s) continue;
        const Ahead first = s->column_blocks > 1 ? row.in_cluster : row.in_block;
        append(ahead_of(*s, std::array{first, kTwoStages, kInTwoStages}, target), &schedules);
    }
    return schedules;
}

// In registers of up to 512 threads, the next row of one tensor in registers too, of several in shared memory as long
// as that has room. Read once more from memory in words of eight bytes too few are on their way. H200, ms so and in
// 1024 threads or as they were: cross_entropy of 5002 f32 classes 0.0985 and 0.121, of 12290 0.124 and 0.130, of 14002
// 0.134 and 0.0798; kl_div of 8194 0.106 and 0.125, of 12290 0.140 and 0.175.
std::vector<Schedule> read_in_words(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kMostBytes = 100;  // of a row, that a thread has
    constexpr std::int64_t kMostCopied = 72;
    constexpr std::int64_t kThreads = 256;
    if (target.backend != Backend::kCuda || !target.clusters || !are_words(facts, vector) || facts.widest_bytes < 4 ||
        facts.greatest > 0 || row_bytes(facts) > kThreadsAlone * kMostBytes)
        return {};
    std::int64_t threads = kBlockThreads;
    while (row_bytes(facts) > threads * kMostBytes) threads *= 2;
    const std::int64_t each = std::min(threads, kThreads);
    Schedule s = row_schedule(Residency::kRegisters, static_cast<int>(each), vector);
    s.column_blocks = threads / each;
    const bool copies = facts.streams > 1 && row_bytes(facts) <= threads * kMostCopied;
    const Ahead first = copies ? kTwoStages : facts.streams > 1 ? Ahead{} : kRegisters;
    return ahead_of(staying_apart(s, kThreadsAlone / each), std::array{first, Ahead{}}, target);
}

}  // namespace rowjit::reduced_rows
