// No reduction over columns: each element stands alone, so a row may be divided over blocks.
//
// The static rule puts 16 bytes of what is stored in each access and about four accesses in flight per thread; a block
// is 256 threads, on several rows when they are short, on a part of one when it is long.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "base/floor_div.h"
#include "compiler/schedule/choose.h"

namespace rowjit {
namespace {

constexpr int kBlockThreads = 256;
constexpr int kWalkingThreads = 128;
constexpr int kThreadsPerSm = 2048;
constexpr int kRowsAcross = 256;  // of a CPU's block, each a number of a few tensors
constexpr int kMostColumns = 16;  // of an access, or registers spill where bytes become f32
// Vectors in flight per thread, of what comes from memory, and of all: weights come from a cache, but take registers
// too, and of three tensors one each is enough. H200, with two and with one: dynamic_tanh of 4096 bf16 columns 0.0735
// ms and 0.0717, x w + b 0.1263 and 0.1231, r + x g 0.0928 and 0.0920.
constexpr std::int64_t kStreamedVectors = 4;
constexpr std::int64_t kVectors = 6;
constexpr int kTensorsOfOne = 3;
// Of narrow columns that functions are computed of, which takes as long as memory does: dropout of 4096 bf16 columns
// 0.087 ms with two vectors a thread, 0.093 with four. Not where a row's numbers are read besides: an entropy's
// backward of 50304 takes 0.103 ms with four, 0.122 with two.
constexpr std::int64_t kVectorsOfFunctions = 2;

// Of narrow rows whose numbers each thread computes first: derivatives of a policy's loss of 18 f32 logits 0.205 ms
// with three, 0.258 with two, 0.328 with one (H200).
constexpr std::int64_t kVectorsOfNumbers = 3;

// Of wider ones of bf16 too where those are functions: xIELU of 8192 columns, whose two slopes are softplus, 0.0660 ms
// with four vectors a thread, 0.0790 with one; derivatives of 128256 logits 0.0926 and 0.0985 (kl_div), 0.0980 and
// 0.1028 (orpo), but 0.0973 and 0.0959 (dpo); of f32 they are 2 % slower so (H200).
constexpr int kManyFunctions = 4;

int power_of_two_at_least(std::int64_t n, int limit) {
    int power = 1;
    while (power < n && power < limit) power *= 2;
    return power;
}

// Blocks on a multiprocessor that stay for many rows: full occupancy, or half of it. Where each has a part of a sum
// over rows there must be few; elsewhere the tuner may find that starting blocks is what a short row's time goes to.
constexpr std::array kStayingBlocksPerSm = {8, 4};

// Rows of long arithmetic on numbers that a thread has each to itself are a warp's in each block: thousands of them are
// then on all multiprocessors, where blocks of 256 threads are on as many as there are thousands, eight warps waiting
// for each other's turn on one.
constexpr int kLongArithmetic = 256;

int block_threads(const GroupFacts& facts, const Target& target) {
    return facts.columns == 1 && facts.row_maps >= kLongArithmetic ? target.warp_size : kBlockThreads;
}

// Whether a block that stays makes once what each of its rows would of tables: functions, and what quotients by them
// take, of rows that are long enough. H200, ms so and with each row's own: 4096 bf16 columns quantised by scales 0.0964
// and 0.119; x + sin^2(a x) / a of 1024 0.131 and 0.147, its derivatives 0.142 and 0.164; but codes of levels of 256
// columns 0.109 and 0.105.
//
// Not where rows store so much more than they read that nothing waits for arithmetic: a softplus and a decay in f32 of
// 1024 bf16 columns 0.087 ms in blocks that end, 0.093 in blocks that stay, of 5120 0.105 and 0.114.
bool makes_of_tables(const GroupFacts& facts) {
    constexpr std::int64_t kLeastDivided = 512;
    const bool stores_more = !facts.sums_rows() && facts.streams > 0 && facts.streamed_bytes > 4 * facts.read_bytes;
    if (stores_more) return false;
    return facts.table_functions > 0 || (facts.table_quotients > 0 && facts.columns >= kLeastDivided);
}

// Wide rows made of their numbers alone, or of a few columns that each is compared with, as what flows back to the
// greatest of a row: a thread loads those for several vectors, half as long ones where rows begin anywhere, whose ends
// are compared column by column. H200, four of a row's columns, ms so and in blocks that stay: of 32000 bf16 columns
// 0.0597 and 0.0717, 50257 0.107 and 0.167, 129280 0.0597 and 0.0644; of 100277 f32 columns 0.108 and 0.171; but of
// 4097 bf16 columns 0.0935 and 0.0848.
bool makes_of_numbers(const GroupFacts& facts) {
    constexpr std::int64_t kOfColumn = 64;
    return facts.reads_numbers && facts.table_bytes == 0 && !facts.sums_rows() &&
           facts.read_columns <= facts.columns / kOfColumn &&
           facts.columns >= kStreamedVectors * kBlockThreads * facts.access_columns();
}

// What reads its tensors at several places waits for many loads, of which a block that stays has two rows' in flight.
// H200, a rotary embedding of three positions a token, whose tables each vector reads thrice: 0.0844 ms in bf16 and
// 0.0878 in f32 with two vectors a thread in blocks that stay, 0.0905 and 0.103 with one in blocks that end. Not what
// each of several outputs takes its own columns of, one after the other: queries, keys and values of a packed
// projection 0.0948 in blocks that end, 0.106 in blocks that stay.
bool reads_at_many_places(const GroupFacts& facts) {
    return !makes_of_numbers(facts) && facts.loads > 2 * facts.column_inputs * facts.stored_loops &&
           facts.columns >= kBlockThreads;
}
constexpr std::int64_t kVectorsOfManyPlaces = 2;

// Tables of which a row reads more than twice what it reads and stores of its own are held by blocks that stay: each
// row would have them from the second-level cache, whose bandwidth is not twice the memory's. H200, a batch norm's last
// kernel, 62500 rows of 1536 bf16 columns with four tables of f32: 0.156 ms in blocks that end, 0.115 in blocks that
// stay.
bool holds_tables(const GroupFacts& facts) {
    return !facts.sums_rows() && facts.streams > 0 && facts.table_bytes > 2 * facts.streamed_bytes;
}

// Rows of one function of a number and a table, whose number each thread loads for several vectors. H200, radial bases
// of a distance, of 300 bf16 columns: 0.0946 ms with 25 threads of three vectors, 0.210 with 128 of one. Not tables of
// angles, whose cosines and sines are some hundred instructions: 0.0716 with one vector, 0.0723 with three.
bool is_of_numbers_and_tables(const GroupFacts& facts) {
    return facts.streams == 0 && facts.reads_numbers && facts.table_bytes > 0 && facts.functions == 1 &&
           !makes_of_tables(facts) && !facts.sums_rows() && !facts.scalar_rows;
}

// Columns of an access, and whether those are whole vectors of peeled rows.
struct Columns {
    int vector;
    bool peels;
};

// A thread's columns where it holds tables or sums of each in registers: as many as leave room for others beside it,
// and as every thread of the row has. H200, rows of 1536 bf16 columns, milliseconds by columns a thread, of which eight
// leave a quarter of the threads idle: four tables 0.115 (8), 0.100 (12), 0.106 (24); five tables 0.078 (8), 0.104
// (24); two tables and two sums 0.062 (8), 0.057 (12), 0.070 (16, likewise uneven).
struct Share {
    int vector = 0;
    std::int64_t vectors = 0;
};
constexpr std::int64_t kHeldRegisters = 48;

std::optional<Share> even_share(const GroupFacts& facts, std::int64_t most_columns, std::int64_t most_held) {
    const std::int64_t held = facts.table_bytes / 4 + facts.sums_of_columns;
    const int widest = facts.access_columns();
    std::optional<Share> best;
    for (const int vector : {widest, widest / 2}) {
        for (std::int64_t each = 1; vector > 0 && each <= kStreamedVectors; ++each) {
            const std::int64_t threads = facts.columns / (vector * each);
            const bool even = threads * vector * each == facts.columns && threads <= kBlockThreads &&
                              std::has_single_bit(static_cast<std::uint64_t>(threads));
            const std::int64_t columns = vector * each;
            if (!even || columns * held > most_held || columns > most_columns) continue;
            if (!best || columns > best->vector * best->vectors) best = {vector, each};
        }
    }
    return best;
}

// Threads on a row, and blocks side by side on it, where a thread has about so many vectors of it.
struct Divided {
    int threads;
    std::int64_t blocks;
};

std::int64_t places_of(const Divided& divided, std::int64_t per_thread) {
    return divided.threads * divided.blocks * per_thread;
}

// Powers of two, of which some may have nothing: a row's accesses then fill whole lines, and sums over rows fold.
Divided divide_in_halves_of(std::int64_t vectors, std::int64_t per_thread, int most_threads) {
    const int threads = power_of_two_at_least(ceil_div(vectors, per_thread), most_threads);
    return {threads, ceil_div(vectors, threads * per_thread)};
}

Divided divide_in_halves(std::int64_t vectors, std::int64_t per_thread) {
    return divide_in_halves_of(vectors, per_thread, kBlockThreads);
}

// Whether threads that hold sums have different numbers of vectors.
bool is_uneven(const GroupFacts& facts, const Columns& access, std::int64_t per_thread) {
    const Divided divided = divide_in_halves(ceil_div(facts.columns, access.vector), per_thread);
    return facts.sums_rows() && facts.columns % (std::int64_t{divided.threads} * access.vector) != 0;
}

constexpr std::int64_t kWarp = 32;

// Whether nearly all lanes of a block's warps are threads of it.
bool fills_warps(std::int64_t threads) { return 20 * threads >= 19 * ceil_div(threads, kWarp) * kWarp; }

// As many as leave the fewest without a vector, which may be any number, as they never meet; whole warps where some
// number of blocks has them.
Divided divide_evenly(std::int64_t vectors, std::int64_t per_thread) {
    const std::int64_t blocks = ceil_div(vectors, kBlockThreads * per_thread);
    if (blocks > 1) {
        const std::int64_t threads = ceil_div(vectors, blocks * per_thread);
        const bool is_whole = vectors % (blocks * per_thread) == 0;  // which no condition guards
        if (is_whole && fills_warps(threads)) return {static_cast<int>(threads), blocks};
        for (std::int64_t more = blocks; more < 2 * blocks; ++more) {
            if (vectors % (more * per_thread * kWarp) == 0)
                return {static_cast<int>(vectors / (more * per_thread)), more};
        }
        return {static_cast<int>(is_whole ? threads : ceil_div(threads, kWarp) * kWarp), blocks};
    }
    const auto places = [&](std::int64_t each) { return ceil_div(vectors, each) * each; };
    std::int64_t best = per_thread;
    for (std::int64_t each = per_thread; each > per_thread / 2; --each) {
        if (places(each) < places(best) && ceil_div(vectors, each) <= kBlockThreads) best = each;
    }
    return {static_cast<int>(ceil_div(vectors, best)), 1};
}

using Division = Divided (*)(std::int64_t, std::int64_t);

// Whether instructions take as long as memory does: of functions, more where numbers of the row, which each thread
// loads, are not among what they are computed of, and none of f32; or of addresses, as beside a column's partner. A
// quotient by such a number is three multiplications: the derivative of a divergence at a temperature, of 32000 bf16
// columns, takes 0.111 ms where it counts and 0.0939 where it does not (H200).
bool computes_much(const GroupFacts& facts) {
    constexpr int kFunctions = 4;
    const int functions = facts.functions - facts.quotients;
    if (is_of_numbers_and_tables(facts)) return true;
    const bool of_functions = facts.reads_numbers ? functions > 1 : functions >= kFunctions && facts.widest_bytes < 4;
    return facts.loads > facts.column_inputs || of_functions;
}

constexpr std::int64_t kMostVectorsOfNarrow = 96;

// Rows of a few vectors, which no power of two divides: neighbouring rows' lie side by side. Not where each thread
// loads numbers of its row for vectors that take no longer than they do: the backward of a cross-entropy of 80 bf16
// classes 0.0677 ms so, 0.0613 in four threads (H100).
bool is_narrow(const GroupFacts& facts, int vector) {
    const auto vectors = static_cast<std::uint64_t>(ceil_div(facts.columns, vector));
    const bool few = vectors <= kMostVectorsOfNarrow && !std::has_single_bit(vectors);
    return !facts.sums_rows() && few && (computes_much(facts) || !facts.reads_numbers);
}

// Narrow rows each of whose threads computes several functions of its numbers first. H200, a guided step of a
// diffusion, rows of 320 bf16 columns with four roots: 0.0412 ms with twenty threads of two vectors, 0.0527 with 64 of
// one.
constexpr std::int64_t kVectorsBesideFunctions = 2;

bool computes_numbers(const GroupFacts& facts, int vector) {
    const std::int64_t vectors = ceil_div(facts.columns, vector);
    return facts.row_functions >= kManyFunctions && facts.widest_bytes < 4 && !facts.sums_rows() && vectors > kWarp &&
           vectors <= kMostVectorsOfNarrow;
}

// Narrow rows of f32 each of whose threads divides by its numbers or takes their logarithms first: as few threads as
// all of which have three or four vectors. H200, derivatives of a policy's gain and its entropy, ms of 14 logits with
// two threads 0.111 and with four 0.141, of 18 with three 0.137 and with four 0.166, of 21 with seven 0.179 and with
// eight 0.199, of 25 with nine 0.112 and with eight 0.112.
bool divides_by_numbers(const GroupFacts& facts, int vector) {
    constexpr int kSeveral = 2;
    return facts.row_functions >= kSeveral && facts.widest_bytes >= 4 && !facts.sums_rows() &&
           ceil_div(facts.columns, vector) <= kWarp;
}

// Of such a row a thread has one vector, so that a warp's accesses are one run; but two where it loads numbers of the
// row for narrow columns: kl_div's backward of 80 bf16 columns 0.0878 ms so, 0.0916 with one; of 24, three vectors,
// 0.0618 and 0.0595, of 80 f32 columns 0.0880 and 0.0877 (H100).
bool takes_one(const GroupFacts& facts, int vector) {
    constexpr std::int64_t kFewest = 4;
    const bool shares_numbers =
        facts.reads_numbers && facts.widest_bytes < 4 && facts.columns > kFewest * std::int64_t{vector};
    return is_narrow(facts, vector) && !shares_numbers;
}

// Whether an even division has all of a row's vectors in whole warps, where halves would leave a tenth of their
// threads' places without one.
bool is_whole_evenly(std::int64_t columns, int vector, std::int64_t per_thread) {
    const std::int64_t vectors = ceil_div(columns, vector);
    const Divided even = divide_evenly(vectors, per_thread);
    const std::int64_t of_halves = places_of(divide_in_halves(vectors, per_thread), per_thread);
    return places_of(even, per_thread) == vectors && even.threads % kWarp == 0 && 10 * of_halves > 11 * vectors;
}

// Whether powers of two would leave a fifth of the places without a vector that an even division of a row over several
// blocks has: most of a last block starts for nothing. H200, derivatives of 2304 f32 columns, ms with 256 threads in
// two blocks and with 144: gelu 0.0677 and 0.0612, cosine_distance 0.0677 and 0.0583, orpo 0.0689 and 0.0533; of 2050,
// with 256 and with 160: kto 0.115 and 0.0939, kl_div 0.103 and 0.0932.
bool fills_blocks_evenly(std::int64_t columns, int vector, std::int64_t per_thread) {
    const std::int64_t vectors = ceil_div(columns, vector);
    const Divided even = divide_evenly(vectors, per_thread);
    const Divided halves = divide_in_halves(vectors, per_thread);
    return halves.blocks > 1 && 4 * places_of(halves, per_thread) > 5 * places_of(even, per_thread);
}

// Vectors of a thread where instructions take long, of rows that have blocks to themselves: one more or less than
// wanted, if only so warps are filled.
std::int64_t filling_warps(const GroupFacts& facts, int vector, std::int64_t wanted) {
    const std::int64_t vectors = ceil_div(facts.columns, vector);
    const bool shares_block = ceil_div(vectors, wanted) <= kBlockThreads / 2;
    if (facts.functions == 0 || !computes_much(facts) || facts.sums_rows() || shares_block) return wanted;
    for (const std::int64_t each : {wanted, wanted + 1, wanted - 1}) {
        if (each > 0 && vectors % each == 0 && fills_warps(divide_evenly(vectors, each).threads)) return each;
    }
    return wanted;
}

// A thread has all of a row of a few columns, which no vector divides: pixels of three bf16 channels normalised 0.0231
// ms so and 0.0458 with one each, their derivatives 0.0454 and 0.0663 (H200).
constexpr std::int64_t kColumnsAlone = 4;

Divided divide_alone(std::int64_t /*vectors*/, std::int64_t /*per_thread*/) { return {1, 1}; }

constexpr std::int64_t kShortPeeled = 4096;

// Peeled rows of narrow columns that take many functions each, or one and numbers of the row, short enough for several
// rows to share a block: an access is two whole vectors, beside whose ends and conditions one is little. H200, of 2050
// bf16 columns, ms with one and with two: dropout 0.106 and 0.0750, derivatives of kl_div 0.132 and 0.0992, of a
// policy's loss 0.101 and 0.0819; but silu 0.0668 and 0.0753.
bool takes_two_vectors(const GroupFacts& facts) {
    const bool computes = facts.functions >= kManyFunctions || (facts.functions > 0 && facts.reads_numbers);
    return facts.peels() && computes && facts.widest_bytes < 4 && facts.stored_bytes == 2 && facts.table_bytes == 0 &&
           facts.columns <= kShortPeeled;
}

// The most promising first. H100, % of copy by powers of two and evenly: of 80 bf16 columns dropout 82 and 102, a
// head's rotation 96 and 105, of 40 74 and 93, kl_div's backward of 1152 92 and 101, relu of 24 83 and 104; but with
// several vectors a thread, of which each access of neighbours then lies in other lines, silu of 40 f32 columns 104 and
// 58, of 576 105 and 101.
//
// Functions want all threads at work, in whole warps: x + sin^2(a x) / a of 1536 bf16 columns takes 0.161 ms with 96
// threads on a row, 0.181 with 128, of which a quarter has one vector of two (H200).
//
// Lanes that look through a list together are those of whole warps: the gradient of 64 of 32000 bf16 columns takes
// 0.731 ms in blocks of 250 threads, each of which asks all places, 0.105 in those of 256 (H200).
//
// Nor are peeled rows of a few vectors divided evenly: dropout of 2050 bf16 columns takes 0.0750 ms with 64 threads,
// 0.0787 with 43.
std::vector<Division> divisions(const GroupFacts& facts, const Columns& access, std::int64_t per_thread) {
    const int vector = access.vector;
    if (vector == 1 && facts.columns > 1 && facts.columns <= kColumnsAlone) return {divide_alone, divide_in_halves};
    if (facts.sums_rows() || facts.finds_places) return {divide_in_halves};
    if (access.peels && takes_two_vectors(facts)) return {divide_in_halves, divide_evenly};
    const bool evens_out = facts.functions > 0 && is_whole_evenly(facts.columns, vector, per_thread);
    if (computes_much(facts) || is_narrow(facts, vector) || evens_out || computes_numbers(facts, vector) ||
        divides_by_numbers(facts, vector) || fills_blocks_evenly(facts.columns, vector, per_thread))
        return {divide_evenly, divide_in_halves};
    return {divide_in_halves, divide_evenly};
}

Schedule in_registers(int vector) {
    Schedule s;
    s.family = Family::kElementwise;
    s.residency = Residency::kRegisters;
    s.vector = vector;
    return s;
}

void add_gpu(const GroupFacts& facts, const Target& target, const Columns& access, std::int64_t per_thread,
             Division divide, std::vector<Schedule>* schedules) {
    const Divided divided = divide(ceil_div(facts.columns, access.vector), per_thread);
    Schedule s = in_registers(access.vector);
    s.peel = access.peels;
    s.threads_per_row = divided.threads;
    s.rows_per_block = block_threads(facts, target) / s.threads_per_row;
    s.column_blocks = divided.blocks;
    const bool stays_first = reads_at_many_places(facts) || holds_tables(facts);
    const Schedule ending = s;
    if (!facts.sums_rows() && !stays_first) schedules->push_back(ending);
    // Half as many blocks leave half as many parts of sums to add up, and where nothing else is stored and each has
    // much in flight they are no slower: 0.054 and 0.059 ms of 1536 columns.
    const bool few = facts.sums_rows() && facts.stored_bytes == 0 && per_thread > 1;
    for (const int blocks : {kStayingBlocksPerSm[few ? 1 : 0], kStayingBlocksPerSm[few ? 0 : 1]}) {
        s.blocks_per_sm = blocks;
        schedules->push_back(s);
    }
    if (!facts.sums_rows() && stays_first) schedules->push_back(ending);
}

bool takes_long(const GroupFacts& facts) {
    constexpr int kLongMaps = 16;
    return facts.maps >= kLongMaps;
}

// Blocks that stay, of up to 1024 threads, which have a whole row, or the same part of every one, `each` columns a
// thread. What takes long to compute of a column is the faster the longer that part is: the derivatives of a bias and a
// gelu take, in ms, of 8192 bf16 columns in blocks of 1024 threads that have a row 0.133, in four times as many of 256
// 0.148; of 5120 in blocks of 640 0.168, of 320 0.184 (H200).
Schedule in_long_parts(const GroupFacts& facts, int each) {
    constexpr std::int64_t kMostThreads = 1024;
    Schedule s = in_registers(each);
    const std::int64_t vectors = facts.columns / each;
    const std::int64_t fewest = ceil_div(vectors, kMostThreads);
    std::int64_t threads = ceil_div(ceil_div(vectors, fewest), kWarp) * kWarp;
    s.column_blocks = fewest;
    for (std::int64_t blocks = fewest; blocks < 2 * fewest; ++blocks) {
        if (vectors % blocks != 0) continue;
        threads = vectors / blocks;
        s.column_blocks = blocks;
        break;
    }
    s.threads_per_row = static_cast<int>(threads);
    s.rows_per_block = 1;
    s.blocks_per_sm = kThreadsPerSm / s.threads_per_row;
    return s;
}

// Blocks that stay, of several rows.
Schedule staying(int vector, const Divided& divided) {
    Schedule s = in_registers(vector);
    s.threads_per_row = divided.threads;
    s.column_blocks = divided.blocks;
    s.rows_per_block = kBlockThreads / s.threads_per_row;
    s.blocks_per_sm = kStayingBlocksPerSm.front();
    return s;
}

// The same of several rows at once, which is the faster for what memory bounds: derivatives of a bias and a gate of
// 4096 bf16 columns 0.0856 ms in four rows of 256 columns, 0.0912 in a row of 1024; of a slope of 2048 columns 0.0983
// and 0.106 (H200).
//
// Where that leaves a fifth of the threads without a vector that more vectors a thread would not, they have those: of
// the softplus and the decay of 80 f32 columns 0.0911 ms with eight threads of three vectors, 0.106 with sixteen of
// two, 0.117 in a warp.
Schedule in_short_parts(const GroupFacts& facts, int each) {
    constexpr int kThreads = 64;
    constexpr std::int64_t kMostColumns = 12;  // of a thread, each with its sums
    const std::int64_t vectors = facts.columns / each;
    const auto divided = [&](std::int64_t of_thread) { return divide_in_halves_of(vectors, of_thread, kThreads); };
    const auto places = [&](std::int64_t of_thread) { return places_of(divided(of_thread), of_thread); };
    std::int64_t best = 1;
    for (std::int64_t more = 2; takes_long(facts) && more * each <= kMostColumns; ++more) {
        if (5 * places(more) <= 4 * places(best)) best = more;
    }
    return staying(each, divided(best));
}

// Rows that begin anywhere, beside sums of their columns: a block's begin alike, so that a thread has the same columns
// of each, and whole vectors of them. H200, ms one by one or in twos, and so: the derivatives of a bias and a SiLU of
// 2049 bf16 columns 0.199 and 0.116, of f32 0.132 and 0.116, of 12290 bf16 0.0977 and 0.0823; of a scale of 2049 0.180
// and 0.105.
std::vector<Schedule> peeled_beside_sums(const GroupFacts& facts, const Target& target) {
    std::vector<Schedule> schedules;
    if (facts.sums_of_columns == 0 || !facts.begins_anywhere()) return schedules;
    Schedule s = in_registers(facts.access_columns());
    s.peel = true;
    for (const std::int64_t per_thread : {1, 2}) {
        const Divided divided = divide_evenly(ceil_div(facts.columns, s.vector), per_thread);
        s.threads_per_row = static_cast<int>(ceil_div(divided.threads, target.warp_size)) * target.warp_size;
        s.column_blocks = divided.blocks;
        s.blocks_per_sm = kThreadsPerSm / s.threads_per_row;
        schedules.push_back(s);
    }
    return schedules;
}

// Columns beside sums of them that are stored narrow: a thread has as many as it has registers for sums of. Not where
// each part of a row loads its numbers again: what flows back to tokens that were pooled by their scores, of 1024 bf16
// columns, 0.128 ms in four parts, 0.076 in one (H200).
std::vector<Schedule> beside_sums(const GroupFacts& facts) {
    constexpr int kSums = 8;  // of a thread
    constexpr std::int64_t kShortRow = 2048;
    if (facts.sums_of_columns == 0 || facts.stored_bytes != 2) return {};
    const int each = takes_long(facts) ? kSums / std::min(2, facts.sums_of_columns) : kSums / 2;
    if (vector_dividing(facts.columns, each) != each) return {};
    if (takes_long(facts) && facts.columns > kShortRow) return {in_long_parts(facts, each)};
    const Schedule parts = in_short_parts(facts, each);
    if (facts.reads_numbers && parts.column_blocks > 1) return {};
    return {parts};
}

// What is made of tables alone a block that stays makes once. H200, a decay and a gate of f32 columns, whose
// decay is an exponential of its own: of 4096 0.129 ms in blocks of 1024 threads that stay, 0.154 in blocks of 256 that
// end; of bf16 0.172 and 0.192. Where each thread has a row's numbers to compute with too, it has four vectors of it:
// the derivative of log-sum-exps of both rows and columns of 4096 bf16 columns 0.205 ms so, 0.300 with one; of 1024
// 0.153.
std::vector<Schedule> holding_functions(const GroupFacts& facts) {
    constexpr int kEach = 4;
    constexpr std::int64_t kLeastColumns = 1024;
    const bool whole = facts.columns >= kLeastColumns && vector_dividing(facts.columns, kEach) == kEach;
    if (!makes_of_tables(facts) || facts.streams == 0 || facts.sums_rows() || !whole) return {};
    if (!facts.reads_numbers) return {in_long_parts(facts, kEach)};
    return {staying(kEach, divide_in_halves(facts.columns / kEach, kStreamedVectors))};
}

// So it does where rows come of numbers and tables alone, however narrow. H200, cosines and sines of times at 64
// frequencies that are exponentials: in bf16 0.224 ms with four vectors a thread in blocks that stay, 0.344 with one in
// blocks that end; at 384 of f32 0.084 and 0.132.
std::vector<Schedule> holding_functions_alone(const GroupFacts& facts) {
    if (!makes_of_tables(facts) || facts.streams > 0 || facts.scalar_rows || facts.sums_rows()) return {};
    const int each = vector_dividing(facts.columns, facts.access_columns());
    return {staying(each, divide_evenly(facts.columns / each, kStreamedVectors))};
}

// Whether blocks whose threads have four vectors each have hardly a thread without.
bool fills_whole_blocks(const GroupFacts& facts, int vector) {
    constexpr std::int64_t kOfBlock = kStreamedVectors * kBlockThreads;
    const std::int64_t vectors = ceil_div(facts.columns, vector);
    return ceil_div(vectors, kOfBlock) * kOfBlock * 10 <= vectors * 11;
}

// Rows that begin anywhere beside tables, whose vectors are put together of columns one by one, have four short vectors
// a thread. H200, dynamic_tanh of 4097 bf16 columns 0.0837 ms with four of four, 0.0891 with two of eight, 0.0963 with
// one; of 12345 0.114, 0.128 and 0.138.
bool gathers_tables(const GroupFacts& facts) {
    return facts.peels() && facts.widest_bytes < 4 && facts.table_bytes > facts.widest_bytes;
}

// Vectors of a row that a thread takes at once.
std::int64_t vectors_in_flight(const GroupFacts& facts, int vector) {
    if (makes_of_numbers(facts)) return kStreamedVectors;
    if (is_of_numbers_and_tables(facts)) return kVectorsOfNumbers;
    if (reads_at_many_places(facts)) return kVectorsOfManyPlaces;
    if (gathers_tables(facts)) return kStreamedVectors;
    if (facts.row_maps >= kManyNumbers && is_narrow(facts, vector)) return kVectorsOfNumbers;
    const bool is_wide = facts.widest_bytes >= 4;
    if (facts.row_functions >= kManyFunctions && !is_wide && fills_whole_blocks(facts, vector)) return kStreamedVectors;
    if (computes_numbers(facts, vector)) return kVectorsBesideFunctions;
    if (holds_tables(facts) || takes_one(facts, vector)) return 1;
    // Where nothing streams there is nothing to have in flight, and threads are worth more: tables of angles.
    const bool computes_long = facts.functions > 0 && !is_wide && !facts.reads_numbers;
    const std::int64_t most = computes_long ? kVectorsOfFunctions : kStreamedVectors;
    const std::int64_t streamed = facts.streams == 0 ? 1 : std::min(most, kStreamedVectors / facts.streams);
    // A bias, a gelu, dropout and a residual of 3072 bf16 columns: 0.113 ms with two, 0.129 with one (H200).
    const bool draws = computes_long && facts.functions > kManyFunctions && facts.column_inputs == kTensorsOfOne;
    if (draws) return kVectorsOfFunctions;
    const std::int64_t of_all = facts.column_inputs < kTensorsOfOne ? kVectors / std::max(1, facts.column_inputs) : 1;
    return std::max<std::int64_t>(1, std::min(streamed, of_all));
}

// Accesses of half the bytes that were wanted have half as much in flight, so that a thread has twice as many; and the
// narrow columns of a peeled row share its ends, so that a thread has four vectors. H200, ms as whole vectors are taken
// and so: derivatives of 2050 f32 columns, kl_div 0.113 and 0.0931, orpo 0.178 and 0.107, gelu 0.117 and 0.102;
// dynamic_tanh of 6002 0.127 and 0.101; gelu of 4100 bf16 columns 0.0768 and 0.0703. Peeled, dropout of 12290 0.142 and
// 0.108, of 50258 0.143 and 0.119, derivatives of kl_div of 12290 0.0941 and 0.0793, of orpo 0.0924 and 0.0801; but of
// three tensors without numbers, swiglu's of 7002, 0.0685 and 0.0709.
std::int64_t in_flight_of(const GroupFacts& facts, const Columns& access, int wanted) {
    constexpr std::int64_t kLeastColumns = 512;
    const std::int64_t whole = vectors_in_flight(facts, access.vector);
    const bool waits_for_rows = facts.streams > 0 && !reads_at_many_places(facts) && !holds_tables(facts);
    if (facts.sums_rows() || facts.finds_places || !waits_for_rows || facts.columns < kLeastColumns) return whole;
    const bool is_long = (facts.columns > kShortPeeled && facts.streams < kTensorsOfOne) || facts.reads_numbers;
    const bool shares_ends = takes_two_vectors(facts) || (facts.widest_bytes < 4 && is_long);
    if (access.peels) return shares_ends ? std::max(whole, kStreamedVectors) : whole;
    return 2 * access.vector == wanted ? std::max(whole, std::min(2 * whole, kStreamedVectors)) : whole;
}

// Blocks that stay, whose rows are copied into shared memory one ahead: what they hold for all rows leaves registers
// for few threads, which so have as much in flight as twice as many. H200, ms so and as rows were taken before: a batch
// norm by given moments of 1024 bf16 columns 0.0687 and 0.0826, its derivatives 0.102 and 0.115; of 1536 columns what a
// batch norm's derivatives are summed of 0.0561 and 0.0688; sums alone of 256 columns 0.0314 and 0.0430, of 2048 0.0663
// and 0.0702.
constexpr std::array kCopyingThreadsPerSm = {768, 512};

// Columns of such a thread, and as many threads as have all.
struct Copies {
    int vector = 1;
    Divided divided = {};
};

Copies copies_of(const GroupFacts& facts, Division divide, int vector, std::int64_t each) {
    return {vector, divide(ceil_div(facts.columns, vector), std::max<std::int64_t>(1, each / vector))};
}

// Threads have eight columns beside tables, in fours: by given moments, which are four numbers of a column, 0.0695 ms
// of 1024 bf16 columns so, 0.0687 in eights, 0.0716 with sixteen; of 512 0.0387 and in eights 0.0441. Beside small
// tables rather sixteen than a row in two blocks: a decay and a gate of 2560 columns 0.0787, and 0.0865.
Copies copies_beside_tables(const GroupFacts& facts) {
    constexpr int kFour = 4;
    constexpr std::int64_t kEight = 8;
    constexpr int kSmallTables = 8;  // bytes of a column
    const int vector = vector_dividing(facts.columns, std::min(kFour, facts.access_columns()));
    const bool more = facts.table_bytes <= kSmallTables && facts.columns > kEight * kBlockThreads;
    return copies_of(facts, divide_evenly, vector, more ? 2 * kEight : kEight);
}

// Where each thread loads numbers of its row besides, a warp has a row: with eight of 1024 columns pooled by their
// scores 0.185 ms, with 32 0.0700, and 0.0838 as they were; with twelve of 384 normalised by an image's responses
// 0.0852 and 0.111; but packed heads of 128, four each, 0.250 and 0.217.
std::optional<Copies> copies_of_warp(const GroupFacts& facts) {
    constexpr std::int64_t kLeast = 12;
    constexpr std::int64_t kMost = 32;
    const std::int64_t each = facts.columns / kWarp;
    if (each < kLeast || facts.columns % kWarp != 0 || each * facts.sums_of_columns > kMost) return std::nullopt;
    return Copies{vector_dividing(each, facts.access_columns()), {static_cast<int>(kWarp), 1}};
}

// Threads have about a dozen columns that are stored beside sums of them, fewer of several sums, and then two blocks of
// 256 are the faster: of 1024 columns beside one sum 0.0979 ms with eight and 0.104 with sixteen, 0.104 in three
// blocks. Longer rows are no faster so (4096 columns 0.105 and 0.0986), but for those of three tensors or of several
// sums: the derivatives of a packed projection with its bias, of 6144, 0.103 and 0.111; by given moments, of 4096,
// 0.105 and 0.116. Nor are rows of a few columns.
std::optional<Copies> copies_beside_sums(const GroupFacts& facts) {
    constexpr std::int64_t kLeastColumns = 128;
    constexpr std::int64_t kHeld = 96;
    constexpr std::int64_t kSummed = 16;
    constexpr std::int64_t kStored = 12;
    constexpr std::int64_t kFewest = 4;
    constexpr std::int64_t kSums = 24;  // of a thread
    constexpr int kManyStreams = 3;
    if (facts.columns < kLeastColumns) return std::nullopt;
    const bool stores = facts.stored_bytes > 0;
    const std::int64_t most = stores ? std::clamp(kSums / facts.sums_of_columns, kFewest, kStored) : kSummed;
    if (const auto share = even_share(facts, most, kHeld))
        return copies_of(facts, divide_in_halves, share->vector, share->vector * share->vectors);
    const bool of_many = facts.streams >= kManyStreams || facts.sums_of_columns > 1;
    if (stores && (!of_many || facts.stored_bytes > 2)) return std::nullopt;
    return copies_of(facts, divide_in_halves, vector_dividing(facts.columns, facts.access_columns()),
                     std::max(kFewest, kSummed / facts.sums_of_columns));
}

std::optional<Copies> copies(const GroupFacts& facts) {
    if (facts.sums_of_columns == 0) return copies_beside_tables(facts);
    return facts.reads_numbers ? copies_of_warp(facts) : copies_beside_sums(facts);
}

std::vector<Schedule> copied_ahead(const GroupFacts& facts, const Target& target) {
    const bool sums = facts.sums_of_columns > 0;
    const bool tables = !facts.reads_numbers && (holds_tables(facts) || makes_of_tables(facts));
    // Which waits for nothing: derivatives of x + sin^2(a x) / a of 1024 columns 0.1668 ms so, 0.1636 as they are.
    const bool computes_long = sums && facts.stored_bytes == 2 && takes_long(facts);
    if (target.backend != Backend::kCuda || !(sums || tables) || facts.streams == 0 || facts.finds_places ||
        facts.rows_beside > 0 || facts.positions_apart > 1 || computes_long || reads_at_many_places(facts))
        return {};
    const std::optional<Copies> found = copies(facts);
    const std::int64_t copied = facts.streams == 1 ? facts.streamed_bytes : facts.narrowest_bytes;
    if (!found || found->vector * copied < kLeastCopied) return {};
    Schedule s = in_registers(found->vector);
    s.threads_per_row = found->divided.threads;
    s.column_blocks = found->divided.blocks;
    s.rows_per_block = kBlockThreads / s.threads_per_row;
    s.stages = 2;
    std::vector<Schedule> schedules;
    for (const int threads : kCopyingThreadsPerSm) {
        s.blocks_per_sm = s.min_blocks_per_sm = std::max(1, threads / (s.threads_per_row * s.rows_per_block));
        schedules.push_back(s);
    }
    // Prepared divisors take three registers of each column, which is less than functions of tables are worth:
    // quantised by scales 0.0964 ms with them in two blocks, 0.105 in three; normalised by a given deviation 0.0780 and
    // 0.0736.
    const bool prepares = facts.table_quotients > 0 && facts.table_functions == 0;
    if ((sums && facts.stored_bytes > 0) || prepares) std::ranges::reverse(schedules);
    return schedules;
}

// Long peeled rows of narrow columns that are read of rows elsewhere, which begin at another place than what is stored:
// taken by their numbers, of 12290 bf16 columns 0.0845 ms in fours and 0.115 in eights, of 5001 0.119 and 0.142, of
// 2050 0.0923 and 0.0856 (H200).
bool begins_elsewhere(const GroupFacts& facts) {
    return facts.peels() && facts.reads_elsewhere && facts.widest_bytes < 4 && facts.columns > kShortPeeled;
}

// Columns of an access, the most promising first: 16 bytes of what is stored. Half of them where those are many loads
// of wider elements: eight partial outputs of f32 and their weights, of heads of 128 columns stored in bf16, take
// 0.0698 ms in fours, 0.0906 in eights (H200).
std::array<int, 3> access_widths(const GroupFacts& facts) {
    constexpr int kMostLoadedBytes = 192;
    const int stored = facts.access_columns();
    const int twice = std::min(stored * 2, kMostColumns);
    const int half = std::max(1, stored / 2);
    const bool loads_many = facts.stored_bytes > 0 && facts.widest_bytes > facts.stored_bytes &&
                            facts.vectors * stored * facts.widest_bytes > kMostLoadedBytes;
    const bool shorter =
        loads_many || gathers_tables(facts) || begins_elsewhere(facts) || (makes_of_numbers(facts) && facts.peels());
    if (takes_two_vectors(facts)) return {twice, stored, half};
    return shorter ? std::array{half, stored, twice} : std::array{stored, twice, half};
}

// Where each column is a load of a sector of its own, as many threads of a row as have one each, or the most that a
// block has: few rows are on their way then, whose sectors lie in pages of memory that are open. H200, ms of threads
// that had a vector of 16 bytes of what is stored, and of these: 128 of 8192 bf16 columns 1.67 and 0.90, of f32 0.76
// and 0.58; 512 1.08 and 0.51, 0.53 and 0.40; 8 of 256 f32 columns 0.166 and 0.116; 4096 bf16 columns in another order
// 0.247 and 0.199.
Schedule one_place_each(const GroupFacts& facts) {
    constexpr std::int64_t kMostOfThread = 16;
    Schedule s = in_registers(1);
    s.threads_per_row = power_of_two_at_least(facts.columns, kBlockThreads);
    s.rows_per_block = kBlockThreads / s.threads_per_row;
    s.column_blocks = ceil_div(facts.columns, s.threads_per_row * kMostOfThread);
    return s;
}

// Of rows that hold sums of their columns or tables, what was found faster than divisions of all rows; none of others.
std::vector<Schedule> timed_first(const GroupFacts& facts, const Target& target, const Columns& access) {
    std::vector<Schedule> schedules;
    const bool tables = holds_tables(facts);
    if (!tables && facts.functions > 0) schedules = facts.sums_rows() ? beside_sums(facts) : holding_functions(facts);
    if (schedules.empty()) schedules = holding_functions_alone(facts);
    if (!schedules.empty()) return schedules;
    if (tables || is_uneven(facts, access, vectors_in_flight(facts, access.vector))) {
        if (const auto share = even_share(facts, facts.columns, kHeldRegisters))
            add_gpu(facts, target, {share->vector, false}, share->vectors, divide_in_halves, &schedules);
    }
    return schedules.empty() && !tables ? beside_sums(facts) : schedules;
}

// Rows that read rows beside them, taken as they follow each other: a vector a thread, and as many blocks as have room
// for the registers that rows back take, which their launch bounds see to. H200, a convolution of four rows of 4096
// bf16 columns: 0.137 ms with loads two rows ahead in five blocks, 0.147 with four ahead, 0.149 with twice as many
// blocks of half the threads. Blocks are of as many threads as none of which is idle.
std::vector<Schedule> walking(const GroupFacts& facts) {
    constexpr int kFewestThreads = 32;
    constexpr std::array kBlocksPerSm = {8, 6, 5, 4, 3, 2};
    std::vector<Schedule> schedules;
    const int stored = facts.access_columns();
    for (const int wanted : {stored, std::max(1, stored / 2)}) {
        Schedule s = in_registers(vector_dividing(facts.columns, wanted));
        const std::int64_t vectors = facts.columns / s.vector;
        int threads = kWalkingThreads;
        while (threads > kFewestThreads && vectors > threads && vectors % threads != 0) threads /= 2;
        if (vectors % threads != 0) threads = kWalkingThreads;
        s.threads_per_row = power_of_two_at_least(vectors, threads);
        s.rows_per_block = threads / s.threads_per_row;
        s.column_blocks = ceil_div(vectors, s.threads_per_row);
        for (const int ahead : {2, 4}) {
            s.ahead = ahead;
            for (const int blocks : kBlocksPerSm) {
                s.blocks_per_sm = s.min_blocks_per_sm = blocks;
                schedules.push_back(s);
            }
        }
    }
    return schedules;
}

}  // namespace

FamilyOffer offer_elementwise(const GroupFacts& facts, const Target& target) {
    FamilyOffer offer{Family::kElementwise, {}, ""};
    if (facts.phases > 1) {
        offer.declined = fmt::format("{} reductions over columns on the longest path", facts.phases - 1);
        return offer;
    }
    if (facts.reduces_rows) {
        offer.declined = "the group reduces over rows";
        return offer;
    }
    if (!target.is_gpu()) {
        Schedule s;
        // Rows that are numbers alone are the lanes.
        if (facts.column_inputs == 0 && !facts.stores_columns) {
            Schedule across = s;
            across.across = true;
            across.rows_per_block = kRowsAcross;
            offer.schedules.push_back(across);
        }
        // Four registers of f32 side by side, which neither the core nor the optimiser has to look for: with 16 lanes a
        // register dropout of 4096 bf16 columns in cache 5.9 and 7.2 GB/s, geglu 14.5 and 15.4. Not of many tensors: of
        // hyper_post's five 1.03 and 1.64 ms. Of eight registers of AVX2 the values of functions spill: on two threads
        // of Zen 3, 64 MiB, silu of f32 2.0 and 1.7 ms, gelu 4.1 and 3.7; bf16 the same.
        const int four_registers = std::max(16, 4 * target.vector_lanes);
        const bool whole = facts.columns % four_registers == 0 && facts.column_inputs <= 2;
        std::vector<int> vectors = {32, 16, 64};
        if (whole) std::ranges::rotate(vectors, std::ranges::find(vectors, four_registers));
        if (facts.of_groups) vectors.insert(vectors.end(), kCpuGroupVectors.begin(), kCpuGroupVectors.end());
        for (const int vector : vectors) {
            s.vector = vector;
            offer.schedules.push_back(s);
        }
        return offer;
    }
    const std::array widths = access_widths(facts);
    std::vector<Columns> accesses;
    if (facts.peels()) {
        for (const int wanted : widths) accesses.push_back({wanted, true});
    }
    for (const int wanted : widths) accesses.push_back({vector_dividing(facts.columns, wanted), false});
    if (!facts.peels()) {
        offer.schedules = peeled_beside_sums(facts, target);
        const std::vector<Schedule> copied = copied_ahead(facts, target);
        offer.schedules.insert(offer.schedules.end(), copied.begin(), copied.end());
        const std::vector<Schedule> timed = timed_first(facts, target, accesses.front());
        offer.schedules.insert(offer.schedules.end(), timed.begin(), timed.end());
    }
    if (facts.at_places == facts.columns && !facts.sums_rows())
        offer.schedules.insert(offer.schedules.begin(), one_place_each(facts));
    for (const Columns& access : accesses) {
        const std::int64_t in_flight = filling_warps(facts, access.vector, in_flight_of(facts, access, widths.front()));
        for (const Division divide : divisions(facts, access, in_flight)) {
            const std::int64_t fewer = std::max<std::int64_t>(1, in_flight / 2);
            for (const std::int64_t per_thread : {in_flight, fewer, std::int64_t{1}, std::int64_t{2}, std::int64_t{4}})
                add_gpu(facts, target, access, per_thread, divide, &offer.schedules);
        }
    }
    if (facts.rows_beside == 0) return offer;
    // A row that is read twice is in a cache the second time: a token shift takes 0.088 ms so, 0.091 by blocks that
    // walk.
    const std::vector<Schedule> along = walking(facts);
    const bool first = facts.rows_beside > 1 && !facts.peels();
    offer.schedules.insert(first ? offer.schedules.begin() : offer.schedules.end(), along.begin(), along.end());
    return offer;
}

}  // namespace rowjit
