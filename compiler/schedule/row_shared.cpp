// Rows that wait in shared memory, a block's or a cluster's, so that several share a multiprocessor and one is loaded
// while another meets.
#include <algorithm>
#include <cstdint>

#include "base/floor_div.h"
#include "compiler/kernel.h"
#include "compiler/schedule/row_schedules.h"

namespace rowjit::reduced_rows {

namespace {

constexpr std::int64_t kScratchBytes = 4096;  // where threads meet

// Whether a multiprocessor has no room for two rows of all tensors, with so much beside each.
bool two_rows_exceed(const GroupFacts& facts, const Target& target, std::int64_t beside) {
    return 2 * (row_bytes(facts) * facts.streams + beside + kSystemSharedBytes) > target.shared_bytes_per_sm;
}

}  // namespace

// One block's rows leave no shared memory for another's. Eight f32 states: 0.153 ms read again, of which the
// second-level cache has most, 0.174 in shared memory; their backward 0.177 and 0.203; group_norm's of four channels
// 0.137 and 0.144, a hyper-connection's 0.144 either way.
bool fills_shared_memory(const GroupFacts& facts, const Target& target) {
    return facts.streams >= kManyTensors && two_rows_exceed(facts, target, 0);
}

bool holds_one_row(const GroupFacts& facts, const Target& target) {
    return two_rows_exceed(facts, target, kScratchBytes);
}

// How many blocks' parts of a row a multiprocessor's shared memory has room for.
std::int64_t resident_blocks(const GroupFacts& facts, const Target& target, std::int64_t column_blocks) {
    const std::int64_t bytes = (row_bytes(facts) + column_blocks - 1) / column_blocks * facts.column_inputs;
    return target.shared_bytes_per_sm / (bytes + kScratchBytes + kSystemSharedBytes);
}

// Wide rows that meet over one tensor and then pass another through a function, as a gate: of those in registers few
// warps have room, which wait for the gate as they did for the row. H200, gated_rms_norm, ms so and in registers: of
// 5120 bf16 columns (128 threads) 0.0610 and 0.0658, 8192 (256; of 128 0.104) 0.0941 and 0.102, 11008 0.0663 and
// 0.0811, 13824 0.0818 and 0.0982, 20480 (512) 0.0618 and 0.0748; of 8192 f32 columns (512) 0.0933 and 0.0953, 13824
// 0.0820 and 0.0851; of 7168 no faster.
std::vector<Schedule> beside_gates(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kLeastNarrow = 5120;
    constexpr std::int64_t kMostOfBlock = 5120;
    constexpr std::int64_t kMostOfTwice = 13824;
    constexpr std::int64_t kLeastWide = 8192;
    constexpr std::int64_t kMostBytes = 64 * 1024;
    const bool narrow = facts.widest_bytes < 4;
    const bool gates = facts.streams == 2 && !facts.reads_numbers && facts.functions > facts.quotients &&
                       facts.phases == 2 && facts.stores_columns && !facts.sums_rows() && !facts.sums_exponentials &&
                       facts.held_bytes <= facts.widest_bytes;
    if (target.backend != Backend::kCuda || !gates || facts.peels() || row_bytes(facts) > kMostBytes ||
        facts.columns < (narrow ? kLeastNarrow : kLeastWide))
        return {};
    int threads = kThreadsAlone;
    if (narrow && facts.columns <= kMostOfTwice) threads = 2 * kBlockThreads;
    if (narrow && facts.columns <= kMostOfBlock) threads = kBlockThreads;
    return {row_schedule(Residency::kShared, threads, vector)};
}

// Rows that stay in the one stage that they are copied to: all of a row is in flight at once, in no registers, while
// the multiprocessor's other blocks compute. H200, bf16, cross-entropy with its gradient of 32000 classes: 0.283 ms in
// two blocks of 512 threads, 0.292 in three of 256, 0.307 in the registers of a cluster, fetched ahead. kl_div of
// 128256 over 8 blocks 0.344, stored to shared memory 0.385.
std::vector<Schedule> in_one_stage(const GroupFacts& facts, const Target& target, int vector,
                                   std::int64_t column_blocks) {
    const std::int64_t resident = resident_blocks(facts, target, column_blocks);
    if (target.backend != Backend::kCuda || facts.sums_rows() || resident < 2) return {};
    Schedule s = row_schedule(Residency::kStages, resident >= 3 ? 256 : 512, vector);
    s.column_blocks = column_blocks;
    s.stages = 1;
    std::vector<Schedule> schedules = {staying_apart(s, resident)};
    if (resident >= 3 && column_blocks == 1) {
        s.threads_per_row = 512;
        schedules.insert(schedules.begin(), staying_apart(s, 2));
    }
    return schedules;
}

// Rows of narrow floats of which nothing is stored and that threads meet over more than once, as two distributions
// before they are compared: they wait in their stage, divided over as few blocks as leave room for several parts on a
// multiprocessor, of which one is loaded while another is computed. H200, 128256 bf16 columns of two tensors: a kl_div
// that met twice took 0.205 ms in three blocks of 256 threads, 0.262 in two of 512, 0.286 over sixteen blocks, 0.224
// read twice from memory. f32 rows, in twice as many blocks, take twice as long as read twice; where one block has a
// row, it meets at once.
std::vector<Schedule> waiting_in_stages(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kParts = 3;
    constexpr int kThreads = 256;
    const bool met_again = !facts.stores_columns && facts.online_phases > 2 && facts.sums_of_columns == 0;
    if (target.backend != Backend::kCuda || !met_again || facts.columns < kStreamedColumns) return {};
    std::int64_t blocks = 1;
    while (resident_blocks(facts, target, blocks) < kParts) blocks *= 2;
    const bool narrow = facts.widest_bytes < 4;
    if (blocks > 1 && (blocks > kMostClusterBlocks || !narrow || !target.clusters)) return {};
    std::vector<Schedule> schedules;
    for (const int threads : {kThreads, 2 * kThreads}) {
        const std::int64_t resident =
            std::min<std::int64_t>(resident_blocks(facts, target, blocks), kResidentThreadsPerSm.front() / threads);
        Schedule s = row_schedule(Residency::kStages, threads, vector);
        s.column_blocks = blocks;
        s.stages = 1;
        schedules.push_back(staying_apart(s, resident));
    }
    return schedules;
}

// Wide rows of narrow floats of which something that takes long is computed behind a meeting, and is wanted again with
// what it comes to, as a mixture's logarithm: rows in their stage, and that in half of the registers of threads that
// have up to 64 columns, 128 of a block where eight such have a row. H100, jsd with its gradient, ms so and in the
// schedules that others of its kind have: of 32000 bf16 columns 0.207 (four blocks of 128 threads, four of which share
// a multiprocessor) and 0.230, of 50304 0.170 (eight, five) and 0.215, of 151936 0.290 (sixteen of 256, three) and
// 0.355; of 128256, whose logarithm was exact then, 0.277 (eight of 256, two) and 0.307 where three compute it again.
std::vector<Schedule> holding_in_stages(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kMostHeld = 64;
    constexpr std::int64_t kLeastColumns = 2 * kBlockThreads * kMostHeld;
    if (target.backend != Backend::kCuda || !target.clusters || !facts.holds_late || facts.sums_rows() ||
        !facts.stores_columns || facts.steps || facts.widest_bytes >= 4 || facts.columns <= kLeastColumns)
        return {};
    int threads = kBlockThreads;
    std::int64_t blocks = 1;
    const auto held = [&] { return ceil_div(facts.columns, blocks * threads); };
    while (blocks < kMostClusterBlocks / 2 && held() > kMostHeld) blocks *= 2;
    if (held() > kMostHeld) threads = kMostThreads;
    if (held() > kMostHeld) blocks = kMostClusterBlocks;
    const std::int64_t holding = target.registers_per_sm / (2 * held() * threads);
    const std::int64_t resident = std::min(resident_blocks(facts, target, blocks), holding);
    if (held() > kMostHeld || resident == 0) return {};
    Schedule s = row_schedule(Residency::kStages, threads, vector);
    s.column_blocks = blocks;
    s.stages = 1;
    return {staying_apart(s, resident)};
}

// Rows of narrow floats that a cluster's registers have no room for, in its shared memory: as many blocks share a
// multiprocessor as it has room for, and one loads while another meets or stores. H200, bf16, cross-entropy with its
// gradient of 128256 classes: 0.279 ms with five blocks of 256 threads, 0.301 with four, 0.319 with six, which leave 40
// registers; 0.355 where rows are read twice, 0.387 in registers and fetched ahead. Of several tensors' rows fewer have
// room, and one stage is faster.
std::vector<Schedule> in_shared_of_cluster(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kMany = 4;
    constexpr int kMostWorthwhile = 5;
    std::vector<Schedule> schedules;
    if (!target.clusters || facts.sums_rows()) return schedules;
    const bool alone = facts.column_inputs == 1;
    for (const std::int64_t blocks : {kMostClusterBlocks / 2, kMostClusterBlocks}) {
        const std::int64_t resident = resident_blocks(facts, target, blocks);
        if (resident < (alone ? kMany : 2)) continue;
        if (resident < kMany && facts.stores_columns) append(in_one_stage(facts, target, vector, blocks), &schedules);
        Schedule s = row_schedule(Residency::kShared, resident < kMany ? 512 : 256, vector);
        s.column_blocks = blocks;
        s.online = facts.online_phases == 2;
        if (resident > kMany) schedules.push_back(sharing(s, kMostWorthwhile * s.threads_per_row));
        schedules.push_back(sharing(s, kResidentThreadsPerSm.front()));
    }
    return schedules;
}

// Stored rows of which the shared memory of sixteen multiprocessors has room for one: it stays in its stage, to which
// the next comes while it is stored.
std::vector<Schedule> alone_in_one_stage(const GroupFacts& facts, const Target& target, int vector) {
    if (target.backend != Backend::kCuda || !target.clusters || facts.sums_rows() || !facts.stores_columns ||
        facts.streams >= kManyTensors || resident_blocks(facts, target, kMostClusterBlocks) != 1)
        return {};
    Schedule s = row_schedule(Residency::kStages, kThreadsAlone, vector);
    s.column_blocks = kMostClusterBlocks;
    s.stages = 1;
    return {staying_apart(s, 1)};
}

namespace {

// Threads of whole warps that have a block's vectors in eight rounds, ten or eleven, which are groups of four or five
// loads each, those first of which the most are at work. Nine take 0.158 and 0.373 ms of 64000 and 128256 columns, as
// below, where eight take 0.141 and 0.283.
std::vector<int> threads_of_rounds(std::int64_t vectors) {
    constexpr int kMostOfRounds = 320;
    std::vector<int> found;
    const auto rounds = [&](int threads) { return (vectors + threads - 1) / threads; };
    for (int threads = kBlockThreads; threads <= kMostOfRounds; threads += kWarpThreads) {
        const std::int64_t each = rounds(threads);
        if (each == 8 || each == 10 || each == 11) found.push_back(threads);
    }
    std::ranges::stable_sort(found, {}, [&](int threads) { return threads * rounds(threads); });
    return found;
}

}  // namespace

// Narrow rows of one tensor that are stored again, in the shared memory of as few blocks as leave room for five of
// their parts on a multiprocessor, or of eight where four have room: the fewer blocks meet, the less one waits for
// another. H200, cross-entropy with its gradient of bf16 classes, ms: 32000 in two blocks of 256 threads 0.262, in one
// of 512 0.280; 64000 in four 0.141, in the registers of eight 0.165; 100352 in eight blocks of 160 threads, ten
// rounds, 0.116, of 256, seven, 0.141, for which 48 registers are too few; 50257 in four of 160 0.114, in one of 512
// 0.133; 151936 in eight of 224 0.343, of 256 where five share a multiprocessor 0.399, four 0.340; 201088 in eight of
// 288 0.232, in sixteen of 160 0.240.
std::vector<Schedule> in_few_parts(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kPartsOfEight = 4;
    // Rows that are peeled find no room in 56 registers: 119547 classes in eight blocks of 192 threads, six of which
    // share a multiprocessor, ran at 68 % of copy, where five do 0.144 ms and of 256 threads 0.157.
    const int threads_per_sm = facts.columns % vector == 0 ? 1280 : 1024;
    const bool narrow = facts.widest_bytes < 4 && facts.column_inputs == 1 && !facts.sums_rows();
    if (!target.clusters || !narrow || !facts.stores_columns || facts.online_phases != 2) return {};
    std::int64_t blocks = 1;
    const auto has_room = [&] {
        return resident_blocks(facts, target, blocks) >=
               (blocks == kMostClusterBlocks / 2 ? kPartsOfEight : kPartsOfMany);
    };
    while (blocks <= kMostClusterBlocks && !has_room()) blocks *= 2;
    if (blocks == 1 || blocks > kMostClusterBlocks) return {};
    const std::int64_t resident = resident_blocks(facts, target, blocks);
    std::vector<Schedule> schedules;
    for (const int threads : threads_of_rounds((facts.columns / vector + blocks - 1) / blocks)) {
        Schedule s = row_schedule(Residency::kShared, threads, vector);
        s.column_blocks = blocks;
        s.online = true;
        s.min_blocks_per_sm = static_cast<int>(std::min<std::int64_t>(resident, threads_per_sm / threads));
        schedules.push_back(s);
    }
    return schedules;
}

// Rows that meet in steps wait most of their time for the blocks and the warps of their cluster, so of the fewer the
// better: four blocks of four warps where those have 128 columns a thread at most, else eight, else sixteen. H100,
// sparsemax, ms so and as it was taken before: of 32000 f32 columns 0.190 and 0.242, of 50304 bf16 columns 0.167 and
// 0.195 (eight blocks), of 128256 0.217 and 0.250 (eight of 256 threads), of f32 0.258 and 0.306 (shared memory), of
// 151936 bf16 columns 0.139 and 0.180.
std::vector<Schedule> waiting_in_steps(const GroupFacts& facts, const Target& target, int vector) {
    constexpr int kThreads = 128;
    constexpr std::int64_t kLeastColumns = 16384;
    constexpr std::int64_t kMostColumns = 128;
    constexpr std::int64_t kMostNarrow = 160;
    if (!target.clusters || !facts.steps || facts.sums_rows() || facts.columns <= kLeastColumns) return {};
    const std::int64_t most = facts.widest_bytes < 4 ? kMostNarrow : kMostColumns;
    const auto held = [&](std::int64_t blocks) { return ceil_div(facts.columns, blocks * kThreads); };
    Schedule s = row_schedule(Residency::kRegisters, kThreads, vector);
    s.column_blocks = held(4) <= kMostColumns ? 4 : held(8) <= most ? 8 : kMostClusterBlocks;
    return {s};
}

}  // namespace rowjit::reduced_rows
