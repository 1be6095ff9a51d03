// What the schedules of reduced rows are made of, for the files of that family: row_reduction.cpp, which has the static
// rule, and of the threads that share a row (row_threads.cpp), rows over a cluster (row_cluster.cpp), rows that wait in
// shared memory (row_shared.cpp), rows of many tensors (row_many.cpp), rows that a block which stays has in flight
// (row_ahead.cpp), rows that lie side by side (row_across.cpp), rows of any width beside sums of rows (row_even.cpp)
// and rows that no whole vector divides (row_words.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "compiler/schedule/choose.h"

namespace rowjit::reduced_rows {

// A thread's part of a row in registers: past it the work values in f32 spill.
inline constexpr std::int64_t kMaxBytesPerThread = 128;
inline constexpr int kBlockThreads = 128;  // when a row takes less: this many threads share a block
inline constexpr int kWarpThreads = 32;    // that meet without shared memory
inline constexpr int kManyTensors = 4;     // whose rows a block holds at once

// Threads of so many registers that this many of them share a multiprocessor: 64 registers each, or 128. Where rows are
// only read and stored, one is loaded while another is reduced and a third stored; where they are summed as well, the
// fewer columns a thread has, the more loads are in flight. Left alone, compilers take what registers there are.
inline constexpr std::array kResidentThreadsPerSm = {1024, 512};

// What a block of a cluster has of a row that shares a multiprocessor with others.
inline constexpr std::int64_t kSmallPartBytes = 16 * 1024;
// Of a row that is summed over, in threads of one to six vectors each (row_even.cpp): layer_norm's backward of 9216
// bf16 columns takes 0.0705 ms in a block of 384 threads, 0.0790 in two of 256; rms_norm's 0.0664 and 0.0690.
inline constexpr std::int64_t kPartBesideSums = 20 * 1024;
// Of a row that stays in the stage that it was copied to.
inline constexpr std::int64_t kStayingBytesPerThread = 32;

inline constexpr int kMostThreads = 256;   // that share a row by the static rule
inline constexpr int kThreadsAlone = 512;  // with as many registers each as leave no room for another block
inline constexpr std::int64_t kStreamedColumns = 8192;  // a row of so many need not stay on chip
// Bytes that a thread has of a row at six vectors.
inline constexpr std::int64_t kWideBytesPerThread = 96;

Schedule row_schedule(Residency residency, int threads, int vector);

// With blocks whose registers let `threads_per_sm` threads share a multiprocessor.
Schedule sharing(Schedule s, int threads_per_sm);

// The same blocks staying, as many on a multiprocessor.
Schedule staying_apart(Schedule s, std::int64_t blocks_per_sm);

// A row that reads nothing but itself loses nothing in small blocks, and more of them share a multiprocessor; nor does
// one that is reduced with tables, which every phase reads again.
bool in_small_parts(const GroupFacts& facts);

// Narrow rows of several tensors that are met over once.
bool reads_several_narrow(const GroupFacts& facts);

// Whether a block has nothing else in flight while its row waits: for a number of the row, or for that and others.
bool waits_for_numbers(const GroupFacts& facts);
bool waits_alone(const GroupFacts& facts);

// Whether any column is in memory.
bool has_columns(const GroupFacts& facts);

// Whether what is computed of each column of one tensor takes as long as its memory, and registers besides.
bool computes_long(const GroupFacts& facts);

std::int64_t row_bytes(const GroupFacts& facts);

std::int64_t bytes_per_thread(const Schedule& s, const GroupFacts& facts);

// Lanes of a warp, or whole warps, of which each thread has at most so many of a row's vectors.
std::int64_t threads_for(std::int64_t vectors, std::int64_t each, int warp_size);

void append(const std::vector<Schedule>& more, std::vector<Schedule>* schedules);
void put_first(const std::vector<Schedule>& more, std::vector<Schedule>* schedules);

// With the registers that the compiler wants, or in few blocks before, where many columns of several tensors want many.
std::vector<Schedule> lightly_sharing(const Schedule& s, std::int64_t columns_per_thread, const GroupFacts& facts);

// Rows in flight while a block that stays works on another: fetched through registers or through shared memory, and, in
// a cluster that meets once a row, with the meeting behind the next row's first phase. clang keeps what is fetched
// ahead beside all that the row itself unrolls to, and spills: CUDA only.
struct Ahead {
    bool prefetch = false;
    int stages = 0;
    bool skew = false;
    bool in_stages = false;  // where a row also stays, which leaves registers to its sums
};

inline constexpr Ahead kRegisters{.prefetch = true};
inline constexpr Ahead kTwoStages{.stages = 2};
inline constexpr Ahead kSkewedRegisters{.prefetch = true, .skew = true};
inline constexpr Ahead kSkewedStages{.stages = 2, .skew = true};
inline constexpr Ahead kSkewed{.skew = true};
inline constexpr Ahead kInOneStage{.stages = 1, .in_stages = true};
inline constexpr Ahead kInTwoStages{.stages = 2, .in_stages = true};
inline constexpr Ahead kInThreeStages{.stages = 3, .in_stages = true};
inline constexpr Ahead kSkewedInStages{.stages = 3, .skew = true, .in_stages = true};

// ---- row_threads.cpp ------------------------------------------------------------------------------------------------

// Of the static rule, a power of two.
int preferred_threads(const GroupFacts& facts, int vector);

// Of a row that a block's threads would have seven vectors of, the last of them not all, six in as many warps as that
// takes, and 0 of others.
int threads_of_six(const GroupFacts& facts, const Target& target, int vector);

// Rows of several tensors that are stored in bytes, in one block; none of others.
std::vector<Schedule> stored_in_bytes(const GroupFacts& facts, const Target& target, int vector);

// Threads on a row that is read again, or once, from memory, the most promising first.
std::array<int, 3> threads_of_reloaded(const GroupFacts& facts, const Target& target, int vector);

// Threads on a row that waits in shared memory, likewise.
std::array<int, 3> threads_of_shared(const GroupFacts& facts, const Target& target);

// Whether registers have room for a thread's part of the rows, and yet they are better elsewhere.
bool crowds(int threads, const GroupFacts& facts);

// ---- row_cluster.cpp ------------------------------------------------------------------------------------------------

// A row of more bytes of its widest tensor than a block takes is divided over a cluster; a row that is also summed
// over, whose registers hold the sums as well, sooner, and one that reads nothing but itself. H200, bf16: rms_norm of
// 131072 columns runs at 94 % of copy over 8 blocks, at 52 % when it is read twice; softmax over 16 blocks of 128
// threads at 78 %, over 8 of 256 at 67 %; rms_norm's backward of 65536 columns over 8 blocks of 512 threads takes 0.473
// ms, over 16 of 256 0.498.
inline constexpr std::int64_t kBlockRowBytes = 64 * 1024;
bool wider_than_block(const GroupFacts& facts, const Target& target);

// Blocks of the clusters that a row may be divided over, the most promising first; none of a row that one block has.
std::vector<std::int64_t> cluster_sizes(const GroupFacts& facts, const Target& target);

// The same where threads meet once over pairs, not twice over what those are made of.
std::vector<Schedule> merging_pairs(Schedule s, const GroupFacts& facts, const Target& target);

// A row in the registers of a cluster's blocks.
std::vector<Schedule> cluster_schedules(const GroupFacts& facts, const Target& target, int vector);

// A row beside weights where it is the faster in blocks of a cluster that end; none of others.
std::vector<Schedule> ending_in_cluster(const GroupFacts& facts, const Target& target, int vector);

// Whether wide rows of a few distributions are compared, and of one something is stored; and whether more than an
// exponential is taken of their columns.
bool compares_distributions(const GroupFacts& facts, const Target& target);
bool takes_logarithms(const GroupFacts& facts);
// Those in a cluster's registers, of blocks that end; none of others.
std::vector<Schedule> distributions_in_registers(const GroupFacts& facts, const Target& target, int vector);

// Rows that functions are computed of where they are the faster in a cluster that stays; none of others.
std::vector<Schedule> of_functions(const GroupFacts& facts, const Target& target, int vector);

// ---- row_shared.cpp -------------------------------------------------------------------------------------------------

inline constexpr std::int64_t kPartsOfMany = 5;  // of a row, on a multiprocessor

// Whether one block's rows leave no shared memory for another's.
bool fills_shared_memory(const GroupFacts& facts, const Target& target);
// Whether a multiprocessor has no room for two rows of all tensors, with what their threads meet in.
bool holds_one_row(const GroupFacts& facts, const Target& target);

// How many blocks' parts of a row a multiprocessor's shared memory has room for.
std::int64_t resident_blocks(const GroupFacts& facts, const Target& target, std::int64_t column_blocks);

// Rows that stay in the one stage that they are copied to; that wait there, several to a multiprocessor, to be met over
// again; in the shared memory of a cluster whose registers have no room; of as few blocks as leave room for several
// parts on a multiprocessor; and of few blocks that meet in steps. Each has none for rows that it is not for.
std::vector<Schedule> beside_gates(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> in_one_stage(const GroupFacts& facts, const Target& target, int vector,
                                   std::int64_t column_blocks);
std::vector<Schedule> waiting_in_stages(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> holding_in_stages(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> alone_in_one_stage(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> in_shared_of_cluster(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> in_few_parts(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> waiting_in_steps(const GroupFacts& facts, const Target& target, int vector);

// ---- row_many.cpp ---------------------------------------------------------------------------------------------------

// Rows of many tensors: in registers, in stages or shared memory, in rounds, in a cluster beside sums over rows, and as
// evenly divided beside those as their width allows. Each has none for rows that it is not for.
std::vector<Schedule> many_in_registers(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> many_waiting(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> many_in_rounds(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> many_beside_sums(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> many_summed_evenly(const GroupFacts& facts, const Target& target, int vector);
void add_many_beside_numbers(const GroupFacts& facts, const Target& target, int vector,
                             std::vector<Schedule>* schedules);

// ---- row_words.cpp --------------------------------------------------------------------------------------------------

// Rows beside sums of their columns, which are loaded one by one, or by accesses of four or eight bytes; none of
// others.
std::vector<Schedule> summed_singly(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> summed_in_words(const GroupFacts& facts, const Target& target, int vector);

// Rows of f32 by accesses of eight bytes, of those that are read once and not stored; none of others.
std::vector<Schedule> read_in_words(const GroupFacts& facts, const Target& target, int vector);

// ---- row_ahead.cpp --------------------------------------------------------------------------------------------------

// The same blocks staying, with rows in flight in each of those ways.
std::vector<Schedule> ahead_of(const Schedule& s, std::span<const Ahead> ways, const Target& target);

// The same blocks staying for many rows.
std::vector<Schedule> staying(Schedule s, int threads_per_sm, const GroupFacts& facts, const Target& target);

// A block that sums over its rows stays on its multiprocessor, to keep what it sums.
std::vector<Schedule> all_staying(const std::vector<Schedule>& schedules, const GroupFacts& facts,
                                  const Target& target);

// Rows beside sums in blocks that leave a multiprocessor half of the threads that the static rule takes, for `tune` to
// try. On an H100 they are 3 to 10 % faster (layer_norm's backward of 4096 bf16 columns 0.146 ms with 256 threads a
// multiprocessor, 0.163 with 512), and the choices that come with rowjit take them there. An H200, whose rows come in
// two thirds of the time, waits for the one that is on its way while another is computed.
std::vector<Schedule> staying_in_few_threads(const GroupFacts& facts, const Target& target, int vector);

// Wide rows beside sums of their columns whose threads never meet; none of others.
std::vector<Schedule> alone_in_long_parts(const GroupFacts& facts, const Target& target, int vector);

// Rows beside sums that keep what is computed behind a reduction; rows of exponentials beside sums; and rows that are
// divided by numbers of their columns. Each has none for rows that it is not for.
std::vector<Schedule> computed_in_few_threads(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> exponentials_beside_sums(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> dividing_by_tables(const GroupFacts& facts, const Target& target, int vector);

// ---- row_across.cpp -------------------------------------------------------------------------------------------------

// Rows that lie side by side, with the columns of each apart, and such rows of few columns beside sums over rows; none
// of others.
std::vector<Schedule> rows_across(const GroupFacts& facts, const Target& target);
std::vector<Schedule> rows_beside_sums(const GroupFacts& facts, const Target& target, int vector);

// ---- row_even.cpp ---------------------------------------------------------------------------------------------------

// Vectors of a row's first thread, and what part of the lanes have columns where each takes as many.
std::int64_t vectors_of_thread(const Schedule& s, const GroupFacts& facts);
double share_at_work(const Schedule& s, const GroupFacts& facts);

// Schedules of rows that are summed over columns' places as well, in any number of whole warps, the most promising
// first; none of other rows.
std::vector<Schedule> summing_evenly(const GroupFacts& facts, const Target& target, int vector);
std::vector<Schedule> carrying_pairs(const GroupFacts& facts, const Target& target, int vector);

}  // namespace rowjit::reduced_rows
