// Rows of so many tensors that one row of each fills a multiprocessor's registers or shared memory: the states of
// earlier layers, streams that are mixed, the channels of a group.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/floor_div.h"
#include "compiler/schedule/row_schedules.h"

namespace rowjit::reduced_rows {
namespace {

// So many columns of all tensors that a block's threads would have 64 and more each, beside what is computed of them.
constexpr std::int64_t kManyColumns = 64 * kMostThreads;

bool is_many(const GroupFacts& facts, const Target& target) {
    return target.backend == Backend::kCuda && target.clusters && facts.streams >= kManyTensors && facts.meets &&
           facts.stores_columns && !facts.steps;
}

// Blocks of a cluster whose threads have `columns` of each tensor, all of them; 0 of a width that no such cluster has.
std::int64_t blocks_of(const GroupFacts& facts, int threads, std::int64_t columns) {
    const std::int64_t of_block = threads * columns;
    const std::int64_t blocks = facts.columns / of_block;
    const bool whole = facts.columns % of_block == 0 && std::has_single_bit(static_cast<std::uint64_t>(blocks));
    return whole && blocks <= kMostClusterBlocks / 2 ? blocks : 0;
}

constexpr std::int64_t kMostWhereAssemblersTakeMore = 16;  // columns of a thread; 32 spilled (sm_100a)

// Vectors of each tensor that a thread may have of rows that nothing is summed over.
std::int64_t most_vectors(const Target& target, int vector) {
    constexpr std::int64_t kVectors = 3;
    return target.assembler_registers > 0 ? std::min(kVectors, kMostWhereAssemblersTakeMore / vector) : kVectors;
}

bool meets_over_many(const GroupFacts& facts, const Target& target) {
    return is_many(facts, target) && !facts.sums_rows() && facts.phases != 2 &&
           facts.columns * facts.streams > kManyColumns;
}

}  // namespace

// Of which nothing is summed over rows and that meet more than once. Up to seven warps on a row meet over less than
// more would, and leave room for another block, so that a thread has up to three vectors of each tensor. H200, eight
// states, % of copy in registers, in two stages, and in the fastest of powers of two: of 2304 bf16 columns 74, 69, 68,
// of f32 82, 71, 62; of 3072 75, 83, 74, and 64, 80, 64; 3584 bf16 columns in five warps 54, in eight 69.
//
// In registers, where two blocks have room with some 170 of each thread, or three of narrow columns with 126.
std::vector<Schedule> many_in_registers(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kBytesOfThread = 384;  // of all tensors, beside which nothing spills
    constexpr int kThreadsOfTwo = 192;
    constexpr int kThreadsOfThree = 160;
    if (!meets_over_many(facts, target)) return {};
    const bool narrow = facts.widest_bytes < 4;
    const std::int64_t each = std::min<std::int64_t>(most_vectors(target, vector), narrow ? 2 : 3);
    const std::int64_t threads = threads_for(facts.columns / vector, each, target.warp_size);
    const bool has_registers = each * vector * facts.widest_bytes * facts.streams <= kBytesOfThread;
    if (!has_registers || threads > (narrow ? kThreadsOfThree : kThreadsOfTwo)) return {};
    return {row_schedule(Residency::kRegisters, static_cast<int>(threads), vector)};
}

// Accesses of four bytes are too many to copy: eight states of 2050 bf16 columns take 0.222 ms in stages, 0.145 in
// shared memory, 0.127 in the registers of threads of sixteen columns (H200).
int threads_of_words(const GroupFacts& facts) {
    constexpr std::int64_t kColumns = 16;
    const auto threads = static_cast<std::uint64_t>(std::max<std::int64_t>(1, facts.columns / kColumns));
    return std::clamp(static_cast<int>(std::bit_floor(threads)), kWarpThreads, kThreadsAlone);
}

// In the two stages that they are copied to, or in one where there is room for one row, of up to 128 KB. H100, % of
// copy: of 4096 f32 columns 89, and in shared memory or read again 66.
//
// What is wider waits in shared memory or is read again from the second-level cache, and so do narrow columns of which
// two stages have little room: their loads are many, and few registers leave room for threads. H200, eight states, ms
// so and in stages, of a cluster where no block had room: 4096 bf16 columns 0.094 and 0.123, 5120 0.132 and 0.157,
// 12288 0.103 and 0.110; f32 columns 5120 0.177 and 0.219, 7168 0.122 and 0.154, 12288 0.122 and 0.140, 16384 0.169 and
// 0.180. In one stage of 7168 and 8192 bf16 columns 0.108, 0.114 and 0.108; of 4096 f32 columns 0.111 and 0.126.
std::vector<Schedule> many_waiting(const GroupFacts& facts, const Target& target, int vector) {
    constexpr int kThreads = 384;  // of all of a multiprocessor's blocks, with some 170 registers each
    constexpr int kFewThreads = 224;
    constexpr std::int64_t kBesideRows = 8 * 1024;  // where threads meet, and the system's
    constexpr std::int64_t kMostOfOneStage = 128 * 1024;
    constexpr std::int64_t kManyNarrow = 56 * 1024;
    if (!meets_over_many(facts, target)) return {};
    const std::int64_t bytes = row_bytes(facts) * facts.streams;
    const std::int64_t room = target.shared_bytes_per_sm - kBesideRows;
    const bool has_two = 2 * bytes <= room;
    if (bytes > kMostOfOneStage || (has_two && bytes >= kManyNarrow && facts.widest_bytes < 4)) {
        Schedule again = row_schedule(Residency::kReload, kThreadsAlone, vector);
        again.online = true;
        return {row_schedule(Residency::kShared, kMostThreads, vector), again};
    }
    if (std::int64_t{vector} * facts.widest_bytes < kLeastCopied)
        return {row_schedule(Residency::kRegisters, threads_of_words(facts), vector)};
    const bool fills_alone = facts.columns == std::int64_t{kThreadsAlone} * vector;
    for (std::int64_t each = fills_alone ? 1 : most_vectors(target, vector); has_two && each > 0; --each) {
        const std::int64_t threads = threads_for(facts.columns / vector, each, target.warp_size);
        const std::int64_t blocks = std::max<std::int64_t>(1, std::min(room / (2 * bytes), kThreads / threads));
        if (each > 1 && blocks * threads < kFewThreads) continue;
        const Schedule s = row_schedule(Residency::kRegisters, static_cast<int>(threads), vector);
        return ahead_of(staying_apart(s, blocks), std::array{kInTwoStages}, target);
    }
    if (target.assembler_registers > 0 && facts.columns / kMostThreads > kMostWhereAssemblersTakeMore) return {};
    const Schedule s = row_schedule(Residency::kRegisters, kMostThreads, vector);
    return ahead_of(staying_apart(s, 1), std::array{kInOneStage}, target);
}

// Of which numbers alone are summed, once, and nothing is kept for what is stored: a block goes through such a row in
// rounds, of which a cluster's blocks would each have one and wait for each other. H200, derivatives of four mixed
// streams of 8960 bf16 columns: 0.129 ms so, 0.175 in four blocks.
std::vector<Schedule> many_in_rounds(const GroupFacts& facts, const Target& target, int vector) {
    if (!is_many(facts, target) || facts.phases != 2 || !wider_than_block(facts, target) ||
        !crowds(kMostThreads, facts))
        return {};
    return {row_schedule(Residency::kShared, kMostThreads, vector)};
}

// Beside sums over rows, in the registers of few threads in a cluster, eight columns of each tensor a thread, of up to
// five narrow ones sixteen; f32 in blocks of twice the threads. H100, derivatives, ms so and as they were taken before:
// of eight states of 1024 bf16 columns 0.129 and 0.271, of 2048 0.130 and 0.197, of 4096 0.144 and 0.178, of f32 0.143
// and 0.190; of four states of 4096 bf16 columns 0.130 and 0.173, of 2048 f32 columns 0.117 and 0.135; of a group
// norm's four channels of 4096 f32 columns 0.150 and 0.181, where numbers are summed alone, of which narrow rows lose
// nothing in a block. Only where all threads have as many columns: of eight states of 3072 bf16 columns over four
// blocks 0.331, and 0.230 before.
std::vector<Schedule> many_beside_sums(const GroupFacts& facts, const Target& target, int vector) {
    constexpr int kFew = 5;
    constexpr int kNarrowThreads = 128;
    constexpr std::int64_t kThreadsOfFew = 3 * kNarrowThreads;
    constexpr std::int64_t kMostOfNumbers = 2;  // of 8192 columns in four blocks 0.254, and 0.211 before
    const bool narrow = facts.widest_bytes < 4;
    const bool few = facts.streams <= kFew;
    const bool of_columns = facts.sums_of_columns > 0 && facts.phases > 2;
    const bool of_numbers = facts.sums_of_columns == 0 && facts.sums_rows() && !narrow;
    if (!is_many(facts, target) || !(of_columns || of_numbers)) return {};
    if (of_numbers && !fills_shared_memory(facts, target)) return {};
    const int threads = narrow || few ? kNarrowThreads : 2 * kNarrowThreads;
    Schedule s = row_schedule(Residency::kRegisters, threads, vector);
    s.column_blocks = blocks_of(facts, threads, narrow && few ? 16 : 8);
    if (s.column_blocks == 0 || (of_numbers && s.column_blocks > kMostOfNumbers)) return {};
    return {staying_apart(s, (!narrow && few ? kThreadsOfFew : 2 * kNarrowThreads) / threads)};
}

// Of any width, two vectors a thread, which leave its registers to the sums, and rows that stay in their stages. H200,
// derivatives of a modulated norm with sums for each image, of 1152 bf16 columns 0.132 ms, of 1536 0.0954, 0.217 and
// 0.139 where no schedule had room for three sums beside the rows; of 3072 0.0940, 0.134 in blocks of 512 threads.
// Where halves divide the row, one vector each: of 2048 columns 0.151 ms, 0.271 in many_beside_sums' blocks, of 4096
// 0.152 and 0.283 (H100).
std::vector<Schedule> many_summed_evenly(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kLeastColumns = 1024;
    constexpr std::int64_t kFewest = 224;  // threads
    if (!is_many(facts, target) || facts.sums_of_columns == 0 || facts.columns < kLeastColumns) return {};
    std::vector<Schedule> all;
    const auto offer = [&](std::int64_t vectors, std::int64_t warps, std::int64_t fewest_threads = 0) {
        const std::int64_t threads = threads_for(facts.columns / vector, vectors, target.warp_size);
        const Schedule s = row_schedule(Residency::kRegisters, static_cast<int>(threads), vector);
        const std::int64_t blocks = warps * target.warp_size / (threads * s.rows_per_block);
        if (threads > kThreadsAlone || blocks == 0 || blocks * threads * s.rows_per_block < fewest_threads) return;
        all.push_back(staying_apart(s, blocks));
    };
    // Threads that meet twice want registers: the derivatives of a norm, a residual and a norm of 3840 bf16 columns
    // take 0.0987 ms in one block of 256 threads, 0.110 in two; but of a scaled one of 1152 0.0738 in four of 96, and
    // 0.0710 in five (H200).
    constexpr std::int64_t kLongRow = 2048;
    if (facts.phases > 2 && facts.columns > kLongRow) offer(2, 12);
    offer(2, 16);
    if (std::has_single_bit(static_cast<std::uint64_t>(facts.columns))) offer(1, 16);
    // Of eight warps few may be left over. H200, derivatives of eight states, in ms: of 2880 f32 columns 0.130 in
    // twelve warps and 0.163 in shared memory, of 3072 0.0886 and 0.0925; of 2304 bf16 columns 0.169 in five warps and
    // 0.147 in nine.
    for (const std::int64_t vectors : {2, 1}) offer(vectors, 12);
    for (const std::int64_t vectors : {2, 1}) offer(vectors, 8, kFewest);
    // Fewer warps that have a row on its way before more that have none: of a modulated norm and its gate of 1152 bf16
    // columns 0.0708 ms in twelve warps, 0.0845 in fifteen, whose registers have no room for three sums and addresses.
    std::vector<Schedule> schedules;
    for (const Ahead& ahead : {kInTwoStages, Ahead{}}) {
        for (const Schedule& s : all) append(ahead_of(s, std::array{ahead}, target), &schedules);
    }
    return schedules;
}

// Beside sums of numbers alone, as a group norm's channels have, in the stage that they are copied to, a vector of each
// tensor a thread, or a few where a block's threads are not enough: one block with two rows on their way, or two with
// one, or one with one, or a cluster of two blocks where one has no room. More blocks wait for each other for longer
// than their threads have less to do.
//
// H200, derivatives of group norms, in ms as they were taken before and so: eight channels of 1024 bf16 columns 0.497
// and 0.194, of 4096 0.732 and 0.199; ten of 1024 0.264 and 0.124; sixteen of 512 0.503 and 0.207, of 1024 0.901 and
// 0.209, of 4096 0.313 and 0.253; four of 2880 0.205 and 0.140, but of 2048 0.192 and 0.196; of f32 sixteen of 1024
// 0.598 and 0.200, ten 0.367 and 0.133, but eight 0.201 and 0.217. With several vectors a thread, four channels of 5120
// bf16 columns 0.0744, in two blocks 0.0880, of 7168 0.0959 and 0.114; of 3584 f32 columns 0.0927, of 5120 0.0710,
// where 0.119 and 0.0853 were read again or kept in shared memory. Sixteen of 4096 bf16 columns over four blocks took
// 0.451.
void add_many_beside_numbers(const GroupFacts& facts, const Target& target, int vector,
                             std::vector<Schedule>* schedules) {
    constexpr int kLeast = 8;
    constexpr std::int64_t kMostOfTwoStages = 48 * 1024;
    constexpr std::int64_t kMostOfTwoBlocks = 72 * 1024;
    constexpr std::int64_t kMostInBlock = 208 * 1024;
    constexpr std::int64_t kLeastNarrow = 40 * 1024;
    constexpr std::int64_t kMostVectors = 4;
    constexpr std::int64_t kLeastOfF32 = 72 * 1024;
    const bool is_whole = vector == vector_dividing(facts.columns, facts.access_columns());
    const bool of_numbers = facts.sums_rows() && facts.sums_of_columns == 0 && facts.streams >= kLeast;
    if (!is_many(facts, target) || !of_numbers || !is_whole) return;
    const std::int64_t bytes = row_bytes(facts) * facts.streams;
    const bool narrow = facts.widest_bytes < 4;
    std::vector<Schedule> of_stages;
    for (const std::int64_t parts : {1, 2}) {
        const std::int64_t vectors = ceil_div(facts.columns, parts * vector);
        std::int64_t threads = threads_for(vectors, 1, target.warp_size);
        const std::int64_t most = parts == 1 && bytes <= kMostInBlock ? kMostVectors : 1;
        for (std::int64_t each = 2; threads > kThreadsAlone && each <= most; ++each)
            threads = threads_for(vectors, each, target.warp_size);
        if (threads > kThreadsAlone || (parts > 1 && (!narrow || threads < kBlockThreads))) continue;
        Schedule s = row_schedule(Residency::kRegisters, static_cast<int>(threads), vector);
        s.column_blocks = parts;
        const auto offer = [&](std::int64_t blocks, const Ahead& ahead) {
            append(ahead_of(staying_apart(s, blocks), std::array{ahead}, target), &of_stages);
        };
        const std::int64_t of_block = bytes * s.rows_per_block / parts;
        const bool in_two = of_block > kMostOfTwoStages && of_block <= kMostOfTwoBlocks && threads <= kMostThreads;
        if (in_two) offer(2, kInOneStage);
        if (2 * of_block <= kMostInBlock) offer(1, kInTwoStages);
        if (!in_two && of_block <= kMostOfTwoBlocks) offer(2, kInOneStage);
        offer(1, kInOneStage);
    }
    const bool first =
        facts.columns > kWarpThreads * facts.access_columns() && bytes >= (narrow ? kLeastNarrow : kLeastOfF32);
    schedules->insert(first ? schedules->begin() : schedules->end(), of_stages.begin(), of_stages.end());
}

}  // namespace rowjit::reduced_rows
