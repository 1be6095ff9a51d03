// Reductions over columns: a fraction of a warp, a warp or a block on each row, the row kept in registers or shared
// memory between the phases, or read again when it does not fit.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <utility>

#include "compiler/kernel.h"
#include "compiler/schedule/choose.h"
#include "compiler/schedule/row_schedules.h"

namespace rowjit {
namespace {

using namespace reduced_rows;

constexpr int kThreadsAlone = 512;  // with as many registers each as leave no room for another block
constexpr std::int64_t kStreamedColumns = 8192;
constexpr std::int64_t kCpuCacheBytes = 512 * 1024;  // half a second-level cache of today's servers
constexpr std::int64_t kCpuKeptColumns = 32768;      // of f32 in half a first- or a quarter of a second-level cache

// Threads on a row by its width in bf16 columns, measured on Hopper for norms and softmax (docs/performance.md). A
// wider element counts as more columns: what matters is the bytes a thread has in flight.
struct ThreadsRow {
    std::int64_t columns;
    int threads;
};
constexpr std::array kThreads = {ThreadsRow{64, 8}, ThreadsRow{128, 16}, ThreadsRow{3072, 32}, ThreadsRow{16384, 128}};
constexpr int kMostThreads = 256;

int static_threads(std::int64_t columns) {
    for (const ThreadsRow& row : kThreads) {
        if (columns <= row.columns) return row.threads;
    }
    return kMostThreads;
}

// Threads that hold sums and never wait for each other have few columns, and registers left to load ahead:
// dynamic_tanh's backward of 4096 bf16 columns takes 0.115 ms with 512 threads on a row, 0.129 with 256; of f32 as many
// take 0.113, 1024 0.116.
constexpr std::int64_t kColumnsAlone = 8;
constexpr int kMostThreadsAlone = 512;

int alone_threads(const GroupFacts& facts) {
    int threads = 1;
    while (threads < kMostThreadsAlone && threads * kColumnsAlone < facts.columns) threads *= 2;
    return threads;
}

// Rows that end have blocks of 80 registers a thread as well: layer_norm of 16384 bf16 columns runs at 95 % of copy so,
// at 92 in 128 registers; but of 4096 f32 columns, a thread's 128 bytes, at 96 and 99 (H200).
constexpr std::array kSharingThreadsPerSm = {1024, 768, 512};
constexpr std::int64_t kManyBytesPerThread = 64;

// A number of the row is a load of its own, and what it is the index of another: a block that ends has nothing else in
// flight meanwhile. H200, cross-entropy with its gradient of 32000 bf16 classes: 0.322 ms in clusters that stay and
// fetch ahead, 0.397 in those that end; of 65536 0.348, 0.426.
bool waits_for_numbers(const GroupFacts& facts) { return facts.reads_numbers && facts.phases > 2; }

// Nor do many blocks of several tensors' rows share a multiprocessor, so that one loads while another meets: kl_div
// with its gradient of 128256 bf16 classes takes 1.54 ms in clusters that stay and fetch ahead, 1.74 in those that end.
bool waits_alone(const GroupFacts& facts) {
    return waits_for_numbers(facts) || (in_small_parts(facts) && facts.phases > 2 && facts.column_inputs > 1);
}

// Columns of a thread that leave registers to fetch the next row's: cross-entropy with its gradient of 32000 bf16
// classes takes 0.61 to 0.64 ms with 31 columns a thread and the next row fetched ahead, 0.75 with 62 and none.
constexpr std::int64_t kColumnsFetchedAhead = 32;

// A thread of many columns of several tensors, where four blocks leave it too few registers with a third more: left
// alone ptxas took 255 for tvd's backward of 64 columns a thread, which ran at 40 % of copy, at 52 in 168;
// log_softmax's has room in 128, and runs at 91 and 98 % so, at 79 and 90 in 168 (H200, 128256 and 32000 columns of
// bf16). Registers hold whole vectors: 128256 columns over 16 blocks are as many as 131072.
constexpr int kLightlySharedThreadsPerSm = 384;
constexpr std::int64_t kColumnsOfManyRegisters = 64;

std::vector<Schedule> lightly_sharing(const Schedule& s, std::int64_t columns_per_thread, const GroupFacts& facts) {
    const bool fits = s.threads_per_row >= kBlockThreads && s.threads_per_row < kLightlySharedThreadsPerSm;
    const std::int64_t held = (columns_per_thread + s.vector - 1) / s.vector * s.vector;
    const bool many = in_small_parts(facts) && reads_several_narrow(facts) && held >= kColumnsOfManyRegisters;
    if (!fits || !many) return {s};
    return {sharing(s, kResidentThreadsPerSm.back()), sharing(s, kLightlySharedThreadsPerSm), s};
}

// A row of more bytes of its widest tensor than a block takes is divided over a cluster; a row that is also summed
// over, whose registers hold the sums as well, sooner, and one that reads nothing but itself. H200, bf16: rms_norm of
// 131072 columns runs at 94 % of copy over 8 blocks, at 52 % when it is read twice; softmax over 16 blocks of 128
// threads at 78 %, over 8 of 256 at 67 %; rms_norm's backward of 65536 columns over 8 blocks of 512 threads takes 0.473
// ms, over 16 of 256 0.498.
constexpr std::int64_t kBlockRowBytes = 64 * 1024;
constexpr std::int64_t kClusterPartColumns = 16 * 1024;
bool wider_than_block(const GroupFacts& facts, const Target& target) {
    // A row whose sums are numbers alone leaves registers to itself where it is stored again.
    const bool sums = facts.sums_of_columns > 0 || (facts.sums_rows() && !facts.stores_columns);
    const bool small = sums || (in_small_parts(facts) && target.clusters);
    return row_bytes(facts) > (small ? kSmallPartBytes : kBlockRowBytes);
}

// What a cluster's block takes of a row.
std::int64_t part_bytes(const GroupFacts& facts) {
    if (facts.sums_of_columns > 0) return kSmallPartBytes;
    // Of as many columns as a thread of 128 holds what is computed of: softmax's backward of 32768 bf16 columns runs at
    // 99 % of copy over eight blocks of 128 threads, at 88 over four of 256 (H200).
    if (in_small_parts(facts)) return kSmallPartBytes * facts.widest_bytes / facts.held_bytes;
    return kClusterPartColumns * facts.widest_bytes;
}

// Clusters a row may be divided over, the most promising first.
std::vector<std::int64_t> cluster_sizes(const GroupFacts& facts, const Target& target) {
    const std::int64_t bytes = row_bytes(facts);
    const std::int64_t part = part_bytes(facts);
    if (!target.clusters || bytes <= part / 2) return {};
    std::int64_t wanted = 1;
    while (wanted < kMostClusterBlocks && bytes > part * wanted) wanted *= 2;
    // layer_norm's backward of 131072 bf16 columns takes 0.671 ms over 8 blocks, in stages, 0.708 over 16.
    if (facts.sums_of_columns > 1 && wanted == kMostClusterBlocks && bytes <= part * wanted) wanted /= 2;
    std::vector<std::int64_t> sizes;
    for (const std::int64_t size : {wanted, wanted / 2, wanted * 2}) {
        if (size > 1 && size <= kMostClusterBlocks) sizes.push_back(size);
    }
    return sizes;
}

// Bytes that a thread has of a row at six vectors.
constexpr std::int64_t kWideBytesPerThread = 96;

// Whether two blocks of clusters are the better on a multiprocessor, one of which meets while the other computes: of
// one tensor, and where threads that meet once have room to fetch the next row of narrow columns (of f32, 12288 ran at
// 80 so, at 90 in one block). H200, rms_norm of 49152 bf16 columns, six vectors a thread: 95 % of copy, in one block of
// 512 threads 86; layer_norm 81 and 70, of 131072 81 and 77.
bool shares_in_cluster(const GroupFacts& facts, std::int64_t blocks) {
    constexpr std::int64_t kThreads = 256;
    const bool room = facts.widest_bytes < 4 && row_bytes(facts) <= blocks * kThreads * kWideBytesPerThread;
    return !facts.sums_rows() && facts.streams == 1 && (facts.phases > 2 || room);
}

// Threads of a cluster's blocks, the most promising first.
std::array<int, 3> cluster_threads(const GroupFacts& facts, std::int64_t blocks) {
    if (in_small_parts(facts)) return {128, 256, 512};
    // A row that waits twice for many blocks leaves its multiprocessors to another: layer_norm of 262144 bf16 columns
    // takes 0.375 ms in blocks of 256 threads, 0.456 in those of 512.
    const bool apart = shares_in_cluster(facts, blocks) || (facts.phases > 2 && blocks == kMostClusterBlocks);
    if (apart) return {256, 512, 128};
    return {512, 256, 128};
}

// The same where threads meet once over pairs, not twice over what those are made of. Rows of an odd number of columns,
// which are guarded one by one, spilled.
std::vector<Schedule> merging_pairs(Schedule s, const GroupFacts& facts, const Target& target) {
    if (facts.sums_rows() || facts.phases == 2 || facts.online_phases != 2 || s.vector == 1) return {};
    s.online = true;
    return staying(s, kResidentThreadsPerSm.back(), facts, target);
}

// A row in the registers of a cluster's blocks.
std::vector<Schedule> cluster_schedules(const GroupFacts& facts, const Target& target, int vector) {
    std::vector<Schedule> schedules;
    for (const std::int64_t blocks : cluster_sizes(facts, target)) {
        const std::int64_t columns = (facts.columns + blocks - 1) / blocks;
        std::vector<Schedule> ending;  // after all that stay, where those come first
        for (const int threads : cluster_threads(facts, blocks)) {
            const std::int64_t elements = (columns + threads - 1) / threads;
            if (elements * facts.held_bytes > kMaxBytesPerThread || elements < vector) continue;
            if (waits_alone(facts) && elements > kColumnsFetchedAhead) continue;
            Schedule s = row_schedule(Residency::kRegisters, threads, vector);
            s.column_blocks = blocks;
            // Softmax's backward of 32768 bf16 columns takes 0.395 ms in blocks of 128 threads that end, 0.452 in those
            // that stay; of 65536 0.418, 0.448; but of 131072, whose sixteen blocks have 256 threads, 0.131 and 0.117,
            // tvd's backward of 128256 0.222 and 0.203; of eight such blocks a distillation's of 49152 0.172 in those
            // that end, 0.326 (H200).
            const bool widest = blocks == kMostClusterBlocks && threads > kBlockThreads && facts.widest_bytes < 4;
            const bool ends_first = facts.sums_rows() || (in_small_parts(facts) && !waits_alone(facts) && !widest);
            const std::vector<Schedule> pairs = merging_pairs(s, facts, target);
            // Narrow rows that wait twice for sixteen blocks have the next in registers: 256 softmax rows of 262144
            // bf16 columns take 0.077 ms so, 0.109 where pairs meet once, whose 178 registers a thread leave room for
            // one block of the two; of 129280 0.073, and 0.078 in blocks that end. Those of f32 end where 256 threads
            // hold a part: softmax of 131072 columns runs at 95 % of copy so, at 90 where pairs meet once; past them
            // pairs are the faster, log_softmax of 262144 at 89, 84 in blocks that end.
            const bool pairs_first = ends_first && columns * facts.widest_bytes > 2 * kSmallPartBytes;
            const bool waits = facts.phases > 2 && blocks == kMostClusterBlocks && facts.widest_bytes < 4;
            if (waits && !facts.sums_rows())
                append(staying(s, kResidentThreadsPerSm.back(), facts, target), &schedules);
            // Of f32, in all of a thread's registers, pairs whose next row is in a stage: layer_norm of 200064 columns
            // runs at 73 % of copy so, at 55 with that in registers; of 262144 at 74 and 71.
            if (facts.phases > 2 && blocks == kMostClusterBlocks && facts.widest_bytes >= 4 && !in_small_parts(facts))
                std::ranges::copy_if(pairs, std::back_inserter(schedules),
                                     [](const Schedule& pair) { return pair.stages > 0 && !pair.skew; });
            if (pairs_first) append(pairs, &schedules);
            if (ends_first) append(lightly_sharing(s, elements, facts), &schedules);
            if (facts.sums_rows()) continue;
            append(staying(s, kResidentThreadsPerSm.back(), facts, target), &schedules);
            std::vector<Schedule>& last = ends_first ? schedules : ending;
            if (!ends_first) last.push_back(s);
            last.push_back(sharing(s, kResidentThreadsPerSm.back()));
            if (!pairs_first) append(pairs, &last);
        }
        append(ending, &schedules);
    }
    return schedules;
}

// Whether a row beside weights is the faster in blocks of a cluster that end: one leaves room for others, which load
// meanwhile, where one that stays waits for its cluster each time. H200, % of copy, ending and as such rows are taken
// otherwise: rms_norm of 32768 bf16 columns 95 and 93, of 53248 96 and 86, of 262144 90 and 69, of 65536 f32 columns 90
// and 82; add_rms_norm of 53248 bf16 columns 94 and 88, of f32 92 and 89, but of 200064 87 and 92; add_layer_norm,
// which meets twice, of 53248 89 and 82, f32 88 and 73, but of 262144 bf16 columns 78 and 87. What a function is
// computed of while rows are stored leaves fewer blocks room: a gated norm of 26624 bf16 columns 79 and 88, of 49152,
// which no block holds, 80 and 68; of f32 86 and 91.
bool ends_in_cluster(const GroupFacts& facts) {
    const bool narrow = facts.widest_bytes < 4;
    const std::int64_t bytes = row_bytes(facts);
    if (facts.streams <= 1) return facts.phases == 2;
    if (facts.streams >= kManyTensors) return false;
    if (facts.phases > 2 && narrow && bytes > kMostClusterBlocks / 2 * kMostThreads * kMaxBytesPerThread) return false;
    return !facts.computes_functions || (narrow && bytes >= kBlockRowBytes);
}

// In as few blocks of 256 threads as have registers for its columns, up to eight, and past them of 512. Threads that
// have the same whole vectors of one tensor, and registers left for the next row's, fetch those first: of 40960 f32
// columns 95 % of copy, 87 where they end. One block has what is narrower: of 20480 bf16 columns 97, in two 94.
std::vector<Schedule> ending_in_cluster(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kRowOfOneBlock = 40 * 1024;
    const std::int64_t bytes = row_bytes(facts);
    if (!target.clusters || facts.sums_rows() || in_small_parts(facts) || waits_alone(facts) ||
        !ends_in_cluster(facts) || bytes <= kRowOfOneBlock)
        return {};
    const bool few = bytes <= kMostClusterBlocks / 2 * kMostThreads * kMaxBytesPerThread;
    const int threads = few ? kMostThreads : kThreadsAlone;
    const std::int64_t part = threads * kMaxBytesPerThread;
    const auto blocks = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>((bytes + part - 1) / part)));
    const std::int64_t columns = (facts.columns + blocks - 1) / blocks;
    const std::int64_t held = (columns + threads - 1) / threads * facts.held_bytes;
    if (blocks > kMostClusterBlocks || held > kMaxBytesPerThread) return {};
    Schedule s = row_schedule(Residency::kRegisters, threads, vector);
    s.column_blocks = blocks;
    std::vector<Schedule> schedules = {s};
    const bool whole = facts.columns % (blocks * threads * vector) == 0;
    if (whole && bytes < blocks * part && facts.streams == 1) {
        const Schedule staying = staying_apart(s, kThreadsAlone / threads);
        const std::vector<Schedule> ahead = ahead_of(staying, std::array{kRegisters}, target);
        schedules.insert(schedules.begin(), ahead.begin(), ahead.end());
    }
    return schedules;
}

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
        const bool wide = bytes_per_thread(s, facts) >= kWideBytesPerThread;
        if (wide && threads == kThreadsAlone) schedules.push_back(sharing(s, kResidentThreadsPerSm.front()));
        append(staying(s, kResidentThreadsPerSm.back(), facts, target), &schedules);
        schedules.push_back(sharing(s, kResidentThreadsPerSm.back()));
        append(merging_pairs(s, facts, target), &schedules);
    }
    return schedules;
}

// How many blocks' parts of a row a multiprocessor's shared memory has room for.
std::int64_t resident_blocks(const GroupFacts& facts, const Target& target, std::int64_t column_blocks) {
    constexpr std::int64_t kScratchBytes = 4096;
    const std::int64_t bytes = (row_bytes(facts) + column_blocks - 1) / column_blocks * facts.column_inputs;
    return target.shared_bytes_per_sm / (bytes + kScratchBytes + kSystemSharedBytes);
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

constexpr std::int64_t kPartsOfMany = 5;  // of a row, on a multiprocessor

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

// Rows that meet in steps wait most of their time for the blocks of their cluster, so of the fewer the better. H200,
// sparsemax of 128256 bf16 columns: 0.253 ms in the registers of 8 blocks of 256 threads, 0.301 of 16 of 128; of f32
// 0.318 in the shared memory of 8, 0.419 in registers of 16.
std::vector<Schedule> waiting_in_steps(const GroupFacts& facts, const Target& target, int vector) {
    constexpr int kThreads = 256;
    constexpr std::int64_t kBlocks = kMostClusterBlocks / 2;
    const std::vector<std::int64_t> sizes = cluster_sizes(facts, target);
    if (!facts.steps || facts.sums_rows() || sizes.empty() || sizes.front() <= kBlocks) return {};
    const std::int64_t columns = (facts.columns + kBlocks - 1) / kBlocks;
    const bool fits = (columns + kThreads - 1) / kThreads * facts.widest_bytes <= kMaxBytesPerThread;
    Schedule s = row_schedule(fits ? Residency::kRegisters : Residency::kShared, kThreads, vector);
    s.column_blocks = kBlocks;
    if (fits) return {s};
    const std::int64_t resident =
        std::min<std::int64_t>(resident_blocks(facts, target, kBlocks), kResidentThreadsPerSm.front() / kThreads);
    if (resident < 2) return {};
    return {sharing(s, static_cast<int>(resident) * kThreads)};
}

// A thread's registers have room for them, but then there are few threads to meet over a row twice: an attention
// residual of eight bf16 states of 4096 columns takes 0.123 ms in 214 registers and 0.137 in 127 of one block of 512
// threads, 0.100 in shared memory (H200).
constexpr std::int64_t kCrowdedBytes = 192;

std::int64_t thread_bytes(int threads, const GroupFacts& facts) {
    return (facts.columns + threads - 1) / threads * facts.widest_bytes * facts.streams;
}

// Nor has it for all that a row's loop loads where many vectors are met over once, and nothing of them is needed again.
// H200, the backward of four f32 streams' hyper-connection, nine vectors of four columns in each of four rounds: 0.132
// ms round by round, 0.145 unrolled; of bf16, in two rounds of eight columns, 0.126 and 0.115.
constexpr std::int64_t kMostLoadedBytes = 512;

bool overflows(int threads, const GroupFacts& facts) {
    const std::int64_t bytes = (facts.columns + threads - 1) / threads * facts.widest_bytes * facts.vectors;
    return facts.phases == 2 && !facts.sums_rows() && facts.vectors >= 2 * kManyTensors && bytes > kMostLoadedBytes;
}

bool crowds(int threads, const GroupFacts& facts) {
    if (overflows(threads, facts)) return true;
    return facts.streams >= kManyTensors && facts.phases > 2 && !facts.sums_rows() &&
           (threads >= kThreadsAlone || thread_bytes(threads, facts) > kCrowdedBytes);
}

// A narrow row that reads tables besides has two vectors a thread, and as many bytes in flight. H200, of 128 bf16
// columns: a head's norm and rotation 0.0793 ms, 0.0992 with one; a gated norm 0.0925, 0.0949; but a norm of a weight
// alone 0.1244, 0.1239. Beside sums of rows a thread has registers for so many columns: the derivative of a head's norm
// and rotation takes 0.114 ms of f32 with two vectors of four, 0.119 with one; of bf16 0.119 with two of eight, 0.112
// with one.
constexpr std::int64_t kColumnsBesideSums = 8;

int threads_of_narrow(int threads, const GroupFacts& facts, int vector) {
    const bool one_each = threads <= kWarpThreads && std::int64_t{threads} * vector >= facts.columns;
    const bool room = !facts.sums_rows() || 2 * vector <= kColumnsBesideSums;
    return one_each && room && facts.column_inputs > 2 ? std::max(1, threads / 2) : threads;
}

// Met over once they are divided among more threads, where half as many would be alone as well: a group norm's backward
// of four channels of 4096 bf16 columns takes 0.138 ms with 512 threads of 106 registers, 0.170 with 256 of 168.
int threads_of_many(int threads, const GroupFacts& facts) {
    const bool many = facts.streams >= kManyTensors && facts.phases == 2 && !facts.sums_rows();
    return many && thread_bytes(kThreadsAlone / 2, facts) > kCrowdedBytes ? kThreadsAlone : threads;
}

// Whether any column is in memory.
bool has_columns(const GroupFacts& facts) { return facts.column_inputs > 0 || facts.stores_columns; }

// Of a row that a block's threads would have seven vectors of, the last of them not all, six in as many warps as that
// takes, and 0 of others: layer_norm of 13824 bf16 columns runs at 97 % of copy in blocks of 288 threads, at 82 in
// those of 256.
int threads_of_six(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kSix = 6;
    const std::int64_t vectors = facts.columns / vector;
    const bool seven = vectors > kSix * kMostThreads && vectors < (kSix + 1) * kMostThreads;
    if (target.backend != Backend::kCuda || !seven || vector == 1 || facts.sums_rows() || facts.streams != 1 ||
        !has_columns(facts))
        return 0;
    return static_cast<int>(threads_for(vectors, kSix, target.warp_size));
}

// One block's rows leave no shared memory for another's. Eight f32 states: 0.153 ms read again, of which the
// second-level cache has most, 0.174 in shared memory; their backward 0.177 and 0.203; group_norm's of four channels
// 0.137 and 0.144, a hyper-connection's 0.144 either way.
bool fills_shared_memory(const GroupFacts& facts, const Target& target) {
    return facts.streams >= kManyTensors &&
           2 * (row_bytes(facts) * facts.streams + kSystemSharedBytes) > target.shared_bytes_per_sm;
}

// Narrower rows take their greatest elements one after the other, in fractions of a warp.
constexpr std::int64_t kLeastOfGreatest = 2048;

// Of a row's greatest elements each warp takes its own, about as many whatever its part of the row, so that fewer warps
// take fewer; but more have more in flight. H200, four of bf16 columns, % of copy: 16384 columns 94 with 32 threads on
// a row, 61 with 128; 262144 97 with 256, 91 with 128; of 50257, which are read one by one, 42 with 128, 35 with 64.
std::array<int, 3> threads_of_greatest(const GroupFacts& facts, int vector) {
    const std::uint64_t columns_of_thread = vector == 1 ? 512 : 1024;
    const auto wanted = std::bit_ceil(static_cast<std::uint64_t>(facts.columns) / columns_of_thread);
    const int threads = static_cast<int>(std::clamp<std::uint64_t>(wanted, kWarpThreads, kMostThreads));
    return {threads, threads * 2, threads * 4};
}

int preferred_threads(const GroupFacts& facts, int vector) {
    if (!facts.meets && facts.sums_of_columns > 0) return alone_threads(facts);
    if (has_columns(facts)) {
        const int by_columns = threads_of_many(static_threads(facts.columns * facts.held_bytes / 2), facts);
        // No more than have columns: a row's widest tensor may be a table that is loaded in several accesses a vector.
        const auto vectors = static_cast<std::uint64_t>((facts.columns + vector - 1) / vector);
        return threads_of_narrow(std::min(by_columns, static_cast<int>(std::bit_ceil(vectors))), facts, vector);
    }
    // There is nothing to have in flight, and a thread for each column does most at once: searches for 16 places, one
    // behind the other in four threads, took the sort of 16384 ids 22 us a kernel (H200). No more than meet in a warp.
    return static_cast<int>(
        std::bit_ceil(static_cast<std::uint64_t>(std::min<std::int64_t>(facts.columns, kWarpThreads))));
}

// Where those come: behind schedules of powers of two that were timed against them and are no slower. One sum of two
// tensors' narrow rows in one block has registers for 16 warps of two vectors, of which idle warps cost nothing: of
// 7168 columns 94 % of copy with 512 threads, 84 with 224. Of rows that halves divide, only of two sums those of narrow
// columns in clusters and those of f32 in a block are slower so: layer_norm's backward of 32768 bf16 columns runs at 57
// where it is at 68 over eight blocks of 128 threads; of 4096 at 85, and 81 in such blocks. Nor is anything gained in
// clusters of sixteen: of 131072 columns 57, and 51.
constexpr std::int64_t kNarrowRowBytes = 4096;

std::vector<Schedule>::iterator behind_timed(const GroupFacts& facts, const Target& target,
                                             std::vector<Schedule>* schedules) {
    const bool wide = wider_than_block(facts, target);
    const bool narrow = facts.widest_bytes < 4;
    if (row_bytes(facts) > kMostClusterBlocks / 2 * kPartBesideSums) return schedules->end();
    if (std::has_single_bit(static_cast<std::uint64_t>(facts.columns))) {
        // Narrow ones leave registers for few threads of many columns: of 2048 bf16 columns layer_norm's backward takes
        // 0.0608 ms in two blocks of 128 threads, four vectors each, 0.0637 in four of two; rms_norm's 0.0573 and
        // 0.0592.
        const bool small = narrow && row_bytes(facts) <= kNarrowRowBytes;
        const bool first = small || (facts.sums_of_columns > 1 && wide == narrow);
        return first && facts.streams <= 2 ? schedules->begin() : schedules->end();
    }
    if (facts.sums_of_columns > 1 || facts.streams > 2 || !narrow || wide) return schedules->begin();
    return std::stable_partition(schedules->begin(), schedules->end(), [&](const Schedule& s) {
        const bool few = s.unrolls() && s.column_blocks == 1 && bytes_per_thread(s, facts) <= kStayingBytesPerThread;
        return few && s.threads_per_row >= kMostThreads && share_at_work(s, facts) >= 7.0 / 8;
    });
}

// Whether blocks of threads with so many columns may have 80 registers a thread: not those of 128 bytes of f32.
bool shares_between(std::int64_t columns, const GroupFacts& facts, const Target& target) {
    const bool room = facts.widest_bytes < 4 || columns * facts.widest_bytes <= kWideBytesPerThread;
    return target.backend == Backend::kCuda && room;
}

// Threads on a row that is read again, or once, from memory, the most promising first.
//
// What is read twice is the sooner found in the caches the fewer rows are read at once: cross-entropy with its gradient
// of 128256 bf16 classes takes 0.745 ms with 512 threads on a row, 0.774 with 1024, 0.812 with 256. Where sums take
// registers too, only small blocks share a multiprocessor: eight states' backward takes 0.177 ms with 256, 0.219 with
// 512.
//
// Rows that are long for 512 threads too are fewer at once so, and the last of them leave less of the device idle: a
// part of a vocabulary of 128256 f32 columns, of which 1024 rows are a little more than blocks of 256 threads have at
// once, takes 0.127 ms in blocks of 512, 0.159 of 256. Blocks that stay are the slower the larger they are, and the
// fewer warps a row has the fewer meet over it: kl_div of 32000 bf16 columns 0.212 ms in two of 512 threads, 0.164 in
// four of 256, 0.159 in eight of 128; of 128256 f32 columns, of which 512 rows are no more than blocks of 256, 0.151
// and 0.169 (H200).
constexpr std::int64_t kLongForThreads = 16;  // accesses of each of 512
constexpr std::int64_t kColumnsOfFewWarps = 65536;
// The widest are few in a launch, which then has threads for all of them only in large blocks: 128 rows of kl_div's
// 262144 f32 columns 0.080 ms in two of 512, 0.113 in four of 256, of 201088 0.074 and 0.104; 512 rows of 200064 0.224
// and 0.221. 256 rows of cross-entropy's 201088 0.0571 and 0.0662.
constexpr std::int64_t kBytesOfFewRows = 576 * 1024;

std::array<int, 3> threads_of_reloaded(const GroupFacts& facts, const Target& target, int vector) {
    if (facts.keeps_greatest) return threads_of_greatest(facts, vector);
    const bool sums_of_many = fills_shared_memory(facts, target) && facts.sums_rows();
    const bool is_long = !facts.sums_rows() && facts.columns >= kLongForThreads * vector * 512;
    if ((facts.stores_columns && !sums_of_many) || is_long) return {512, 1024, 256};
    const bool sums_alone = facts.sums_rows() && !facts.stores_columns;
    if (sums_alone && row_bytes(facts) > kBytesOfFewRows) return {512, 256, 1024};
    const bool few_warps = sums_alone && facts.columns <= kColumnsOfFewWarps;
    return few_warps ? std::array{128, 256, 512} : std::array{256, 512, 1024};
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
    for (const int threads : {256, 512, 1024}) {
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
    const std::int64_t least = facts.keeps_greatest ? kLeastOfGreatest : kStreamedColumns;
    const bool streams = !facts.stores_columns && facts.columns >= least &&
                         (facts.online_phases == 2 || wider_than_block(facts, target));
    const bool too_wide =
        waits_alone(facts) && facts.widest_bytes < 4 && row_bytes(facts) > kMostClusterBlocks * kSmallPartBytes * 3 / 4;
    const bool one_pass = streams || (too_wide && waits_for_numbers(facts));
    std::vector<Schedule> first = one_pass ? std::exchange(reloads, {}) : std::vector<Schedule>();
    // Round after round they take ten times as long, and registers for a condition of each column besides.
    if (one_pass && facts.keeps_greatest && !facts.sums_rows()) return first;
    append(fills_shared ? reloads : shared, &schedules);
    const std::vector<Schedule> staying = staying_schedules(facts, target, vector);
    schedules.insert(schedules.begin(), staying.begin(), staying.end());
    const std::vector<Schedule> clusters = cluster_schedules(facts, target, vector);
    schedules.insert(wider_than_block(facts, target) ? schedules.begin() : schedules.end(), clusters.begin(),
                     clusters.end());
    const std::vector<Schedule> ending = ending_in_cluster(facts, target, vector);
    schedules.insert(schedules.begin(), ending.begin(), ending.end());
    schedules.insert(schedules.begin(), first.begin(), first.end());
    append(fills_shared ? shared : reloads, &schedules);
    // A row that fills a block with what a thread would hold of it, and waits for its numbers besides.
    if (waits_for_numbers(facts) && facts.stores_columns && facts.widest_bytes < 4 &&
        row_bytes(facts) > kBlockRowBytes / 2) {
        const std::vector<Schedule> staged = in_one_stage(facts, target, vector, 1);
        schedules.insert(schedules.begin(), staged.begin(), staged.end());
    }
    // Where it is read once at all, nothing is to be kept.
    if (too_wide && (facts.stores_columns || facts.online_phases > 2)) {
        const std::vector<Schedule> of_cluster = in_shared_of_cluster(facts, target, vector);
        schedules.insert(schedules.begin(), of_cluster.begin(), of_cluster.end());
    }
    const std::vector<Schedule> parts = in_few_parts(facts, target, vector);
    // Softmax of 131072 bf16 columns takes 0.137 ms in eight such blocks, 0.151 in the registers of sixteen; of 65536,
    // which registers of eight blocks hold, it is slower so, and of 200064, four of whose parts share a multiprocessor,
    // 0.0650 and 0.0604 (H200).
    const bool spares_blocks = !parts.empty() && parts.front().column_blocks < kMostClusterBlocks &&
                               row_bytes(facts) > kMostClusterBlocks / 2 * kSmallPartBytes &&
                               resident_blocks(facts, target, parts.front().column_blocks) >= kPartsOfMany;
    const bool parts_first = waits_for_numbers(facts) || spares_blocks;
    schedules.insert(parts_first ? schedules.begin() : schedules.end(), parts.begin(), parts.end());
    if (schedules.empty()) {
        schedules.push_back(row_schedule(Residency::kReload, preferred, vector));
        if (facts.sums_rows()) schedules.back().rows_per_block = 1;
    }
    if (facts.sums_rows()) {
        schedules = all_staying(schedules, facts, target);
        const std::vector<Schedule> even = summing_evenly(facts, target, vector);
        schedules.insert(behind_timed(facts, target, &schedules), even.begin(), even.end());
    }
    const std::vector<Schedule> steps = waiting_in_steps(facts, target, vector);
    schedules.insert(schedules.begin(), steps.begin(), steps.end());
    const std::vector<Schedule> waiting = waiting_in_stages(facts, target, vector);
    schedules.insert(schedules.begin(), waiting.begin(), waiting.end());
    return schedules;
}

// The same of rows that begin anywhere, which are not copied ahead in 16 bytes.
Schedule peeled(Schedule s) {
    s.peel = true;
    if (s.stages == 0) return s;
    s.prefetch = s.residency == Residency::kRegisters;
    if (s.residency == Residency::kStages) {
        s.residency = Residency::kShared;
        s.blocks_per_sm = 0;
        s.skew = false;
    }
    s.stages = 0;
    return s;
}

std::vector<Schedule> gpu_schedules(const GroupFacts& facts, const Target& target) {
    if (!has_columns(facts)) return gpu_schedules(facts, target, 1);
    std::vector<Schedule> schedules;
    if (facts.peels()) {
        for (const Schedule& s : gpu_schedules(facts, target, facts.access_columns())) schedules.push_back(peeled(s));
    }
    append(gpu_schedules(facts, target, vector_dividing(facts.columns, facts.access_columns())), &schedules);
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
    const bool pairs_alone = facts.keeps_greatest || (pairs_pay && facts.online_phases == 2 && !facts.stores_columns);
    if (facts.columns <= kCpuKeptColumns && !pairs_alone) {
        for (const int vector : {32, 16}) {
            schedules.push_back(row_schedule(Residency::kRegisters, 1, vector));
            schedules.back().rows_per_block = 1;
        }
    }
    const bool online_first = !fits || pairs_pay || facts.keeps_greatest;
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
    if (!target.is_gpu()) {
        offer.schedules = cpu_schedules(facts);
        return offer;
    }
    offer.schedules = gpu_schedules(facts, target);
    return offer;
}

}  // namespace rowjit
