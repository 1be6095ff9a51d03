// How many threads share a row: by its width, by what they load of it at once, and by what they keep.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "base/floor_div.h"
#include "compiler/schedule/row_schedules.h"

namespace rowjit::reduced_rows {
namespace {

// Threads on a row by its width in bf16 columns, measured on Hopper for norms and softmax (docs/performance.md). A
// wider element counts as more columns: what matters is the bytes a thread has in flight.
struct ThreadsRow {
    std::int64_t columns;
    int threads;
};
constexpr std::array kThreads = {ThreadsRow{64, 8}, ThreadsRow{128, 16}, ThreadsRow{3072, 32}, ThreadsRow{16384, 128}};

// What is computed of each column takes registers of as many: a softmax with distances to a diagonal, of 2048 bf16
// columns, takes 0.143 ms with 128 threads, 0.159 with 64, 0.178 with 32, whose 168 registers leave room for few
// (H200); derivatives of logits divided by their length, of 1000, 0.140 with 128 and 0.110 with 64.
constexpr std::array kThreadsOfLong = {ThreadsRow{64, 8}, ThreadsRow{128, 16}, ThreadsRow{1024, 32},
                                       ThreadsRow{2048, 64}, ThreadsRow{16384, 128}};

int static_threads(std::int64_t columns, const GroupFacts& facts) {
    const std::span<const ThreadsRow> rows =
        computes_long(facts) ? std::span<const ThreadsRow>(kThreadsOfLong) : kThreads;
    const auto row = std::ranges::find_if(rows, [&](const ThreadsRow& one) { return columns <= one.columns; });
    return row == rows.end() ? kMostThreads : row->threads;
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

}  // namespace

bool crowds(int threads, const GroupFacts& facts) {
    if (overflows(threads, facts)) return true;
    return facts.streams >= kManyTensors && facts.phases > 2 && !facts.sums_rows() &&
           (threads >= kThreadsAlone || thread_bytes(threads, facts) > kCrowdedBytes);
}

namespace {

// A narrow row that reads tables besides, or meets more than twice, has two vectors a thread, and as many bytes in
// flight: a softmax of 128 f32 columns, its squares' sum and a biased maximum take 0.138 ms so, 0.193 with one (H200).
// H200, of 128 bf16 columns: a head's norm and rotation 0.0793 ms, 0.0992 with one; a gated norm 0.0925, 0.0949; but a
// norm of a weight alone 0.1244, 0.1239. Beside sums of rows a thread has registers for so many columns: the derivative
// of a head's norm and rotation takes 0.114 ms of f32 with two vectors of four, 0.119 with one; of bf16 0.119 with two
// of eight, 0.112 with one.
//
// So does a narrow row whose columns are stored in f32, of which a vector is half an access: probabilities of 64 bf16
// columns take 0.101 ms so, 0.131 with one (H200).
//
// And one that is only summed, by columns too, when it has met twice: the mean of 64 bf16 experts' probabilities with
// each token's log-sum-exp takes 0.0592 ms with two vectors a thread, 0.0800 with one (H200). So do up to 64 columns
// whose functions take numbers that each thread loads, and divides: its derivative 0.0873 and 0.104; tvd's of 64 bf16
// columns 0.152 and 0.158, of f32 0.134 and 0.146; but of blocks of 128 columns that are quantised 0.0991 and 0.0867
// (H100).
//
// Wider rows of narrow floats that a function is computed of, with numbers, have two vectors a thread or three: H200,
// softmaxes at a temperature of each head, ms so and with one: of 128 bf16 columns 0.0914 and 0.109, 192 0.0376 and
// 0.0470, 256 0.0488 and 0.0587, 320 0.0643 and 0.0876, 384 0.0705 and 0.0889; their derivatives, with two launches
// more, 0.0475 and 0.0607, 0.0678 and 0.0854, 0.0834 and 0.111, 0.127 and 0.156, 0.0408 and 0.0492. Not of several
// functions: a gate's that is quantised by blocks of 128 0.0784 and 0.0714.
constexpr std::int64_t kColumnsBesideSums = 8;
constexpr std::int64_t kMostSharingNumbers = 64;
constexpr std::int64_t kMostOfWarpSharing = 512;

bool shares_numbers_of_function(const GroupFacts& facts, int vector) {
    const int functions = facts.functions - facts.quotients;
    return facts.meets && facts.reads_numbers && functions > 0 && functions <= facts.streams && facts.functions > 1 &&
           facts.widest_bytes < 4 && facts.stored_bytes > 1 && !facts.sums_rows() && vector > 1 &&
           facts.columns > kMostSharingNumbers && facts.columns <= kMostOfWarpSharing;
}

int threads_of_narrow(int threads, const GroupFacts& facts, int vector) {
    if (shares_numbers_of_function(facts, vector)) {
        const auto pairs = static_cast<std::uint64_t>(facts.columns / vector / 2);
        return std::min(threads, static_cast<int>(std::bit_floor(pairs)));
    }
    const bool one_each = threads <= kWarpThreads && std::int64_t{threads} * vector >= facts.columns;
    const bool room = !facts.sums_rows() || 2 * vector <= kColumnsBesideSums;
    const bool meets_often = facts.stores_columns && facts.phases > 3;
    const bool loads_half = facts.meets && facts.stored_bytes > facts.narrowest_bytes;
    const bool shares_numbers =
        facts.meets && facts.reads_numbers && facts.functions > 1 && facts.columns <= kMostSharingNumbers;
    const bool two_with_room = room && (facts.column_inputs > 2 || meets_often || loads_half || shares_numbers);
    const bool sums_alone = facts.sums_of_columns > 0 && facts.stored_bytes == 0 && facts.phases > 2;
    return one_each && (two_with_room || sums_alone) ? std::max(1, threads / 2) : threads;
}

// The share of a row's threads that have a vector of it, round after round.
double share_with_vectors(int threads, std::uint64_t vectors) {
    const auto at_once = static_cast<std::uint64_t>(threads);
    const std::uint64_t rounds = (vectors + at_once - 1) / at_once;
    return static_cast<double>(vectors) / static_cast<double>(rounds * at_once);
}

// A power of two of threads, none of which has more than so many.
int of_at_most(std::uint64_t vectors, std::uint64_t each) {
    return static_cast<int>(std::bit_ceil((vectors + each - 1) / each));
}

// A power of two of threads, each of which has so many and more.
int of_at_least(std::uint64_t vectors, std::uint64_t each) {
    return static_cast<int>(std::bit_floor(std::max<std::uint64_t>(1, vectors / each)));
}

// Of a row whose numbers take longer than its columns.
constexpr std::int64_t kMostOfNumbers = 256;

int of_columns(std::int64_t columns) {
    constexpr std::uint64_t kEach = 32;
    return of_at_most(static_cast<std::uint64_t>(columns), kEach);
}

// In a fraction of a warp every thread does what a row costs besides its columns: meets, and computes with its numbers.
// So it has several vectors of a row that numbers are made of: so many at most or at least.
struct ShareOfFraction {
    bool (*is_for)(const GroupFacts&, int vector);
    int (*threads)(std::uint64_t vectors, std::uint64_t each);
    std::uint64_t each;
    int fewest_threads = 1;
};

bool is_read_alone(const GroupFacts& facts) { return !facts.stores_columns && facts.sums_of_columns == 0; }

// The first that a row is of; milliseconds of each.
constexpr std::array kSharesOfFraction = {
    // Single columns of f32, of an H200: of 33 logsumexp 0.0902 with eight and 0.0826, jsd 0.174 and 0.139, of 65
    // cross-entropy 0.110 and 0.0817; but of bf16 0.131 and 0.144.
    ShareOfFraction{[](const GroupFacts& facts, int vector) {
                        return is_read_alone(facts) && vector == 1 && facts.widest_bytes >= 4;
                    },
                    of_at_most, 20},
    // Where one or two columns are an access, with four and so (H200): of 9 bf16 columns logsumexp 0.0443 and 0.0285,
    // kl_div 0.0772 and 0.0516, cross-entropy 0.0570 and 0.0359, of 18 logsumexp 0.0860 and 0.0389, of 33 0.163 and
    // 0.108, of 50 0.0949 and 0.0569; but sums of squares of 50 f32 columns 0.0537 and 0.0634.
    ShareOfFraction{[](const GroupFacts& facts, int vector) {
                        const bool in_pairs = vector == 2 && (facts.functions > 0 || facts.widest_bytes < 4);
                        return is_read_alone(facts) && (vector == 1 || in_pairs);
                    },
                    of_at_least, 8},
    // What meets thrice: tvd of 80 bf16 columns runs at 94 % of copy so, at 82 with two and a half, jsd of 40 f32
    // columns at 87 and 72 (H100); of 96, three each, tvd at 97, with six at 89. A mixture's likelihood of ten f32
    // components takes 0.0888 ms with five each and 0.109 with two and a half (H200).
    ShareOfFraction{[](const GroupFacts& facts, int) { return is_read_alone(facts) && facts.phases > 3; }, of_at_most,
                    5},
    // Numbers that are summed too, and others, with a vector each and so (H100): of 80 bf16 columns logsumexp 0.0505
    // and 0.0315, kl_div 0.0512 and 0.0336, cross-entropy 0.0828 and 0.0358; of 256 0.0533 and 0.0457, 0.0500 and
    // 0.0494, 0.0778 and 0.0502.
    ShareOfFraction{
        [](const GroupFacts& facts, int) { return is_read_alone(facts) && facts.sums_rows() && facts.streams == 1; },
        of_at_least, 4},
    ShareOfFraction{[](const GroupFacts& facts, int) { return is_read_alone(facts); }, of_at_least, 2},
    // Single columns that are stored too (H200): of 9 of f32 softmax 0.205 in eight threads, 0.198 in two and 0.134 so,
    // layer_norm 0.268, 0.165 and 0.159, of 33 0.133 in sixteen and 0.0967, 0.173 and 0.105.
    ShareOfFraction{[](const GroupFacts& facts, int vector) {
                        constexpr std::int64_t kFew = 8;
                        return facts.stores_columns && facts.sums_of_columns == 0 && vector == 1 &&
                               facts.columns > kFew;
                    },
                    of_at_most, 5, 4},
};

// Half as many where some had no vector of a row that is stored: of 40 bf16 columns softmax 0.0331 and 0.0313, its
// backward 0.0512 and 0.0447, of 80 f32 columns 0.0401 and 0.0311, layer_norm 0.0343 and 0.0320, a head's norm and
// rotation of 40 0.0567 and 0.0441. But not beside sums of few vectors of columns, as layer_norm's backward of 40,
// 0.0628 and 0.0664 (of 80 0.0627 and 0.0573); nor where tables have halved them already, of two tensors' rows, as
// add_rms_norm of 72, 0.0292 and 0.0331, or as many stay without: a head's norm and rotation of 100 f32 columns 0.0718
// and 0.0826; nor a thread alone, layer_norm of 24, 101 and 90 % of copy.
int halved(int threads, bool before, std::uint64_t vectors, const GroupFacts& facts) {
    constexpr std::uint64_t kFewVectors = 8;
    if (facts.sums_of_columns > 0 && vectors < kFewVectors) return threads;
    const int half = std::max(1, threads / 2);
    const bool helps =
        half > 1 && facts.streams != 2 && share_with_vectors(half, vectors) > share_with_vectors(threads, vectors);
    return !before || helps ? half : threads;
}

// Of many numbers of a row that is more than its columns are: a policy's loss of 18 f32 logits 0.0909 ms in one thread,
// 0.122 in two, 0.187 in four; the derivatives of hues and saturations of three channels 0.0844 in one, 0.183 in two;
// of a ranking of 128 scores 0.0616 in four, 0.0687 in eight; of keys and values of 128, to bytes, 0.0685 in four and
// 0.0897 in sixteen; but of 512 columns whose cosine is taken 0.0665 in 16 and 0.0656 in 32 (H200).
int threads_of_fraction(int by_columns, const GroupFacts& facts, int vector) {
    const auto vectors = static_cast<std::uint64_t>((facts.columns + vector - 1) / vector);
    // No more than have columns: a row's widest tensor may be a table that is loaded in several accesses a vector.
    const int with_columns = static_cast<int>(std::bit_ceil(vectors));
    const int of_row = std::min(by_columns, with_columns);
    const int threads = threads_of_narrow(of_row, facts, vector);
    if (threads > kWarpThreads || facts.greatest > 0 || !facts.meets) return threads;
    if (facts.row_maps >= kManyNumbers && facts.sums_of_columns == 0 && facts.columns <= kMostOfNumbers)
        return std::min(threads, of_columns(facts.columns));
    const auto* share =
        std::ranges::find_if(kSharesOfFraction, [&](const ShareOfFraction& one) { return one.is_for(facts, vector); });
    if (share != kSharesOfFraction.end())
        return std::min(threads, std::max(share->fewest_threads, share->threads(vectors, share->each)));
    const bool some_idle = by_columns >= with_columns && !std::has_single_bit(vectors);
    return some_idle ? halved(threads, threads != of_row, vectors, facts) : threads;
}

// Met over once they are divided among more threads, where half as many would be alone as well: a group norm's backward
// of four channels of 4096 bf16 columns takes 0.138 ms with 512 threads of 106 registers, 0.170 with 256 of 168.
int threads_of_many(int threads, const GroupFacts& facts) {
    const bool many = facts.streams >= kManyTensors && facts.phases == 2 && !facts.sums_rows();
    return many && thread_bytes(kThreadsAlone / 2, facts) > kCrowdedBytes ? kThreadsAlone : threads;
}

}  // namespace

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

// Rows of several tensors that are stored in bytes, of vectors of sixteen columns, of which parts in a cluster's blocks
// are a vector and a little more of a thread: in one block, two vectors each. H200, gated and quantised rows of bf16,
// ms so and over four blocks: of 8960 columns 0.0852 and 0.103, 11008 0.0553 and 0.0617, 13824 0.0678 and 0.0737.
std::vector<Schedule> stored_in_bytes(const GroupFacts& facts, const Target& target, int vector) {
    constexpr int kColumns = 16;
    constexpr std::int64_t kOfBlock = 2 * kThreadsAlone;  // vectors
    if (target.backend != Backend::kCuda || !in_small_parts(facts) || facts.stored_bytes != 1 || facts.streams < 2 ||
        facts.streams >= kManyTensors || facts.phases != 2 || vector != kColumns ||
        row_bytes(facts) <= kSmallPartBytes || facts.columns / vector > kOfBlock)
        return {};
    const std::int64_t threads = threads_for(facts.columns / vector, 2, target.warp_size);
    return {row_schedule(Residency::kRegisters, static_cast<int>(threads), vector)};
}

namespace {

// Of a row's greatest elements each warp takes its own, about as many whatever its part of the row, so that fewer warps
// take fewer; but more have more in flight. H200, four of bf16 columns, % of copy: 16384 columns 94 with 32 threads on
// a row, 61 with 128; 262144 97 with 256, 91 with 128; of 50257, which are read one by one, 42 with 128, 35 with 64. Of
// more the fewer the better: of 100352 eight 93 with 64 and 63 with 128, fifty 33 with 32 and 18 with 128; and beside
// exponentials, for which there is the less time, a cross-entropy's greatest class of 100352 96 with 64, 80 with 128.
constexpr int kFewGreatest = 4;

std::array<int, 3> threads_of_greatest(const GroupFacts& facts, int vector) {
    const int of_few = (vector == 1 ? 512 : 1024) * (facts.sums_exponentials ? 2 : 1);
    const int columns_of_thread = of_few * std::max(facts.greatest, kFewGreatest) / kFewGreatest;
    const auto wanted = std::bit_ceil(static_cast<std::uint64_t>(facts.columns / columns_of_thread));
    const int threads = static_cast<int>(std::clamp<std::uint64_t>(wanted, kWarpThreads, kMostThreads));
    return {threads, threads * 2, threads > kWarpThreads ? threads / 2 : threads * 4};
}

}  // namespace

int preferred_threads(const GroupFacts& facts, int vector) {
    if (!facts.meets && facts.sums_of_columns > 0) return alone_threads(facts);
    if (has_columns(facts)) {
        const int by_columns = threads_of_many(static_threads(facts.columns * facts.held_bytes / 2, facts), facts);
        return threads_of_fraction(by_columns, facts, vector);
    }
    // There is nothing to have in flight, and a thread for each column does most at once: searches for 16 places, one
    // behind the other in four threads, took the sort of 16384 ids 22 us a kernel (H200). No more than meet in a warp.
    return static_cast<int>(
        std::bit_ceil(static_cast<std::uint64_t>(std::min<std::int64_t>(facts.columns, kWarpThreads))));
}

namespace {

// Threads on a row that is read again, or once, from memory, the most promising first.
//
// What is read twice is the sooner found in the caches the fewer rows are read at once: cross-entropy with its gradient
// of 128256 bf16 classes takes 0.745 ms with 512 threads on a row, 0.774 with 1024, 0.812 with 256. Where sums take
// registers too, only small blocks share a multiprocessor: eight states' backward takes 0.177 ms with 256, 0.219 with
// 512. But of 128 KiB a row and more two of them on each multiprocessor are more than that cache has, up to where one
// is: eight states' of 7168 f32 columns 0.141 and 0.132, a group norm's of four channels 0.126 and 0.111, of 4096 0.123
// and 0.114, of 13824 0.136 and 0.128.
//
// Rows that are long for 512 threads too are fewer at once so, and the last of them leave less of the device idle: a
// part of a vocabulary of 128256 f32 columns, of which 1024 rows are a little more than blocks of 256 threads have at
// once, takes 0.127 ms in blocks of 512, 0.159 of 256. Blocks that stay are the slower the larger they are, and the
// fewer warps a row has the fewer meet over it: kl_div of 32000 bf16 columns 0.212 ms in two of 512 threads, 0.164 in
// four of 256, 0.159 in eight of 128; of 128256 f32 columns, of which 512 rows are no more than blocks of 256, 0.151
// and 0.169 (H200).
constexpr std::int64_t kLongForThreads = 16;  // accesses of each of 512
// But 65536 f32 columns 0.0721 ms in four of 256, 0.0803 in eight of 128.
constexpr std::int64_t kBytesOfFewWarps = 256 * 1024;
// The widest are few in a launch, which then has threads for all of them only in large blocks: 128 rows of kl_div's
// 262144 f32 columns 0.080 ms in two of 512, 0.113 in four of 256, of 201088 0.074 and 0.104; 512 rows of 200064 0.224
// and 0.221. 256 rows of cross-entropy's 201088 0.0571 and 0.0662.
constexpr std::int64_t kBytesOfFewRows = 576 * 1024;
constexpr std::int64_t kBytesOfTwoRows = 128 * 1024;
constexpr std::int64_t kBytesOfOneRow = 448 * 1024;

// A row beside sums of numbers, as a polynomial's of a norm, leaves two thirds of the first-level cache to what waits
// there besides: as many blocks share a multiprocessor as have room in this, and together they have 1024 threads. H200,
// poly_norm's derivatives, ms so and in four blocks of 256: of 13824 bf16 columns, two rows, 0.104 and 0.123, of f32,
// one row, 0.0928 and 0.104, of 7168 f32 columns, two, 0.0900 and 0.102; of 8192 bf16 columns four rows are the best.
// But of 28672 bf16 columns, one row, 0.127 and 0.117.
constexpr std::int64_t kBytesOfSharedRows = 128 * 1024;
constexpr std::int64_t kMostSharedRows = 4;

}  // namespace

std::array<int, 3> threads_of_shared(const GroupFacts& facts, const Target& target) {
    constexpr std::array kSmallFirst = {256, 512, 1024};
    constexpr std::array kAlone = {512, 256, 1024};
    if (!facts.sums_rows()) return kSmallFirst;
    // Where shared memory has room for one block it has as many threads as would share a multiprocessor else: eight
    // states' derivatives of 7168 bf16 columns 0.130 ms so, 0.145 in 256; but of 5120 0.190 and 0.174 (H200).
    if (facts.streams >= kManyTensors) return holds_one_row(facts, target) ? kAlone : kSmallFirst;
    if (facts.sums_of_columns > 0 || !facts.stores_columns) return kSmallFirst;
    const std::int64_t rows = kBytesOfSharedRows / (row_bytes(facts) * std::max(1, facts.streams));
    if (rows >= kMostSharedRows || (rows <= 1 && facts.widest_bytes < 4)) return kSmallFirst;
    return rows == 1 ? std::array{1024, 512, 256} : kAlone;
}

std::array<int, 3> threads_of_reloaded(const GroupFacts& facts, const Target& target, int vector) {
    if (facts.greatest > 0) return threads_of_greatest(facts, vector);
    const bool sums_of_many = fills_shared_memory(facts, target) && facts.sums_rows();
    const bool is_long = !facts.sums_rows() && facts.columns >= kLongForThreads * vector * 512;
    // Of 49 rows of add_layer_norm's 262144 f32 columns 0.187 ms, 0.272 with 512 (H100). So it is of f32 distributions
    // of any width: kl_div with its gradient of 50257 classes 0.141 and 0.155, jsd of 100277 0.206 and 0.235 (H200).
    const bool compares = facts.sums_exponentials && facts.widest_bytes >= 4 && !facts.sums_rows();
    if (facts.stores_columns && facts.streams > 1 && (compares || row_bytes(facts) > kBytesOfFewRows))
        return {1024, 512, 256};
    if ((facts.stores_columns && !sums_of_many) || is_long) return {512, 1024, 256};
    const bool sums_alone = facts.sums_rows() && !facts.stores_columns;
    if (sums_alone && row_bytes(facts) > kBytesOfFewRows) return {512, 256, 1024};
    // What is read a second time is in the second-level cache where few rows are on their way: tvd of 32000 f32 columns
    // 0.118 ms in two blocks of 512, 0.123 in eight of 128, of 128256 0.120, and 0.139 in four of 256 (H200).
    if (sums_alone && facts.online_phases > 2) return {512, 1024, 256};
    const std::int64_t bytes = row_bytes(facts) * facts.streams;
    if (sums_of_many && facts.stores_columns && bytes >= kBytesOfTwoRows && bytes <= kBytesOfOneRow)
        return {512, 256, 1024};
    const bool few_warps = sums_alone && row_bytes(facts) < kBytesOfFewWarps;
    return few_warps ? std::array{128, 256, 512} : std::array{256, 512, 1024};
}

}  // namespace rowjit::reduced_rows
