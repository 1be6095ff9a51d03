// Rows divided over the blocks of a cluster, each block's part in its registers: how many blocks, how many threads they
// have, and whether they end with the row or stay for others.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>

#include "base/floor_div.h"
#include "compiler/schedule/row_schedules.h"

namespace rowjit::reduced_rows {
namespace {

constexpr std::int64_t kClusterPartColumns = 16 * 1024;

// What a cluster's block takes of a row.
std::int64_t part_bytes(const GroupFacts& facts) {
    if (facts.sums_of_columns > 0) return kSmallPartBytes;
    // Of as many columns as a thread of 128 holds what is computed of: softmax's backward of 32768 bf16 columns runs at
    // 99 % of copy over eight blocks of 128 threads, at 88 over four of 256 (H200).
    if (in_small_parts(facts)) return kSmallPartBytes * facts.widest_bytes / facts.held_bytes;
    const std::int64_t part = kClusterPartColumns * facts.widest_bytes;
    // f32 that waits twice has two blocks of 256 threads on a multiprocessor, over up to eight: layer_norm of 36864
    // columns takes 0.112 ms so and 0.118 over four of 512 threads, of 53248 0.083 and 0.087; but of 100352 0.085 over
    // sixteen and 0.081 over eight of 512 (H100).
    const bool of_two = part > kMaxBytesPerThread * 256 && facts.phases > 2 && facts.streams == 1;
    return of_two && row_bytes(facts) <= kMostClusterBlocks / 2 * part / 2 ? part / 2 : part;
}

}  // namespace

bool wider_than_block(const GroupFacts& facts, const Target& target) {
    // A row whose sums are numbers alone leaves registers to itself where it is stored again.
    const bool sums = facts.sums_of_columns > 0 || (facts.sums_rows() && !facts.stores_columns);
    const bool small = sums || (in_small_parts(facts) && target.clusters);
    // Tables that every phase reads take registers besides. H200, softmax of bf16 rows and a bias, ms in clusters and
    // as norms are taken: of 16384 columns 0.0914 and 0.0743; of 32000 with a bias of bf16 0.0705 and 0.0901, of f32
    // 0.0759 and 0.193, of 50304 0.135 and 0.246, of 128256 0.0969 and 0.153.
    const bool with_tables = !sums && facts.shares_columns;
    const std::int64_t of_small = with_tables ? kBlockRowBytes / 2 : kSmallPartBytes;
    return row_bytes(facts) > (small ? of_small : kBlockRowBytes);
}

// Clusters a row may be divided over, the most promising first.
std::vector<std::int64_t> cluster_sizes(const GroupFacts& facts, const Target& target) {
    const std::int64_t bytes = row_bytes(facts);
    const std::int64_t part = part_bytes(facts);
    if (!target.clusters || bytes <= part / 2) return {};
    std::int64_t wanted = 1;
    while (wanted < kMostClusterBlocks && bytes > part * wanted) wanted *= 2;
    // Two sums' rows are divided over sixteen blocks where those are nearly filled, of three tensors' a little more: ms
    // over eight and sixteen of layer_norm's backward 0.529 and 0.477 of 131072 bf16 columns, 1.05 and 0.76 of 100352;
    // of add_layer_norm's 0.592 and 0.634 of 100352, 0.587 and 0.616 of 49152 f32 columns, 0.790 and 0.737 of 65536
    // (H100).
    const std::int64_t sixteenths = facts.streams > 2 ? 13 : 12;
    const bool filled = bytes > part * wanted * sixteenths / 16;
    if (facts.sums_of_columns > 1 && wanted == kMostClusterBlocks && !filled) wanted /= 2;
    std::vector<std::int64_t> sizes;
    for (const std::int64_t size : {wanted, wanted / 2, wanted * 2}) {
        if (size > 1 && size <= kMostClusterBlocks) sizes.push_back(size);
    }
    return sizes;
}

namespace {

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

}  // namespace

// The same where threads meet once over pairs, not twice over what those are made of. Rows of an odd number of columns,
// which are guarded one by one, spilled.
std::vector<Schedule> merging_pairs(Schedule s, const GroupFacts& facts, const Target& target) {
    if (facts.sums_rows() || facts.phases == 2 || facts.online_phases != 2 || s.vector == 1) return {};
    s.online = true;
    return staying(s, kResidentThreadsPerSm.back(), facts, target);
}

namespace {

// Columns of a thread that leave registers to fetch the next row's: cross-entropy with its gradient of 32000 bf16
// classes takes 0.61 to 0.64 ms with 31 columns a thread and the next row fetched ahead, 0.75 with 62 and none.
constexpr std::int64_t kColumnsFetchedAhead = 32;

}  // namespace

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
            // What is kept of functions takes the registers that the next row's numbers would have: the derivatives of
            // a gate that is quantised by rows of 11008 columns 0.132 ms in blocks that end, 0.163 in those that stay.
            const bool computed = facts.held_bytes > facts.widest_bytes && !facts.sums_exponentials;
            // Nor do rows of several tensors that meet again and again wait alone where blocks of 128 threads hold
            // them, four of which share a multiprocessor: of 32000 f32 columns the derivatives of how far each class's
            // surprise is from the entropy 0.106 ms so, 0.158 in two blocks of 256 that stay; of bf16 a drafted
            // token's check 0.0891 and 0.103, its derivatives 0.133 and 0.187.
            const bool shares = facts.column_inputs > 1 && threads == kBlockThreads && blocks < kMostClusterBlocks;
            const bool waits_ahead = waits_alone(facts) && !computed && !shares;
            const bool ends_first = facts.sums_rows() || (in_small_parts(facts) && !waits_ahead && !widest);
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

namespace {

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
    return facts.functions == 0 || (narrow && bytes >= kBlockRowBytes);
}

}  // namespace

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
    // Threads whose registers a row fills have room for the next one all the same where it is of narrow floats over
    // four blocks and more: rms_norm of 65536 bf16 columns 0.133 ms so, 0.139 where blocks end, of 262144 0.138 and
    // 0.170, but of 32768 over two 0.138 and 0.130, of f32 0.133 and 0.129.
    constexpr std::int64_t kSeveral = 4;
    const bool wide = facts.widest_bytes < 4 && blocks >= kSeveral;
    if (whole && (bytes < blocks * part || wide) && facts.streams == 1) {
        const Schedule staying = staying_apart(s, kThreadsAlone / threads);
        put_first(ahead_of(staying, std::array{kRegisters}, target), &schedules);
    }
    return schedules;
}

// Past what blocks of 128 threads have in a smaller cluster, distributions of f32 wait in the registers of as few
// blocks of 256 as have up to 32 columns of each, which end: the other of the two that share a multiprocessor loads
// while one computes. H200, divergences with their gradients, ms so and in blocks that stay: kl_div of 50257 classes
// 0.106 and 0.168, of 100277 0.116 and 0.193, of 129280 0.125 and 0.161; tvd of 50257 0.122 and 0.274, of 129280 0.142
// and 0.186. Logarithms of each column take the registers of the second block: jsd of 100277 0.261, and 0.206 read
// twice.
bool compares_distributions(const GroupFacts& facts, const Target& target) {
    return !facts.sums_rows() && facts.sums_exponentials && facts.streams > 1 && facts.streams < kManyTensors &&
           facts.stores_columns && !facts.steps && wider_than_block(facts, target);
}

bool takes_logarithms(const GroupFacts& facts) { return facts.functions - facts.quotients > facts.streams; }

std::vector<Schedule> distributions_in_registers(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kColumns = 32;
    constexpr std::int64_t kMostOfSmallBlocks = kColumns * kBlockThreads * kMostClusterBlocks / 2;
    if (target.backend != Backend::kCuda || !target.clusters || !compares_distributions(facts, target) ||
        facts.columns <= kMostOfSmallBlocks)
        return {};
    const auto parts = static_cast<std::uint64_t>(ceil_div(facts.columns, kColumns * kMostThreads));
    Schedule s = row_schedule(Residency::kRegisters, kMostThreads, vector);
    s.column_blocks = static_cast<std::int64_t>(std::bit_ceil(parts));
    if (s.column_blocks > kMostClusterBlocks) return {};
    return {s};
}

// Rows of four narrow tensors and more, read and stored, that three functions and more are computed of fill a thread's
// registers soon: sixteen columns each leave room for the next row's, in two blocks of 256 threads on a multiprocessor.
// H200, the derivatives of two softmaxes' product of 8192 bf16 columns: 0.0819 ms so, 0.0900 where those blocks end,
// 0.0975 in one block (H100: 0.0643, 0.0584 and 0.0627); H100, of a symmetric divergence of 16384 0.106, 0.141 and
// 0.162 (in two). Of three tensors registers have room without: tvd's of 8192 0.0777 and 0.0720, of 12288 0.0852 and
// 0.0577. Sixteen blocks wait too long for each other: a distillation's of 49152 0.114 and 0.0955 in eight that end.
std::vector<Schedule> of_functions(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kColumns = 16;
    constexpr int kFourNarrow = 8;
    const std::int64_t part = kColumns * kMostThreads;
    const auto blocks =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(ceil_div(facts.columns, part))));
    if (!target.clusters || target.backend != Backend::kCuda || !in_small_parts(facts) || !facts.stores_columns ||
        facts.phases != 2 || facts.streams < 2 || facts.widest_bytes >= 4 || facts.functions < 3 ||
        facts.streamed_bytes < kFourNarrow || blocks < 2 || blocks >= kMostClusterBlocks ||
        facts.columns <= blocks * kMostThreads * vector)
        return {};
    Schedule s = row_schedule(Residency::kRegisters, kMostThreads, vector);
    s.column_blocks = blocks;
    return ahead_of(staying_apart(s, kThreadsAlone / kMostThreads), std::array{kRegisters}, target);
}

}  // namespace rowjit::reduced_rows
