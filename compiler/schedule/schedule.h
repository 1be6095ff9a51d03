// How a group of operations runs: which family of loops, how many threads on a row, where values live. A Schedule is
// small and has a text form, which the tuning database stores.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rowjit {

enum class Family : std::uint8_t {
    kElementwise,    // no reduction over columns: a row may be divided over blocks
    kRowReduction,   // reductions over columns, all threads of a row in one block or one cluster of blocks
    kRowsReduction,  // reductions over row axes
    kOrder,          // a pass of the order of ids, or the counts that it goes by
};

enum class Residency : std::uint8_t {
    kRegisters,  // values needed again stay in registers
    kShared,     // … in shared memory, each thread its own
    kReload,     // … are read from memory and computed again
    kStages,     // … stay in the stage that they were copied into, or in registers if they were computed
};

std::string_view name(Family family);
std::string_view name(Residency residency);

// Of Hopper and Blackwell; more than 8 where the driver allows it.
inline constexpr std::int64_t kMostClusterBlocks = 16;

// Rows in flight to shared memory; more take its space and no time.
inline constexpr int kMostStages = 4;

// Of a matrix product that a kernel makes itself.
inline constexpr int kProductTileRows = 128;
inline constexpr int kProductTileColumns = 256;

// Rows that follow each other, in flight to the block that takes them.
inline constexpr int kMostRowsAhead = 8;

// Segments of rows that one thread takes.
inline constexpr int kMostOfRun = 8;

// Rows side by side that are the lanes of a CPU's vector: of bytes, a cache line.
inline constexpr int kMostLanesAcross = 64;

struct Schedule {
    Family family = Family::kElementwise;
    Residency residency = Residency::kReload;
    int threads_per_row = 1;
    int rows_per_block = 1;
    int vector = 1;                  // columns per thread and access; of kRowsReduction results side by side
    bool peel = false;               // rows that begin anywhere: aligned whole vectors, and the ends one by one
    std::int64_t column_blocks = 1;  // blocks side by side on one row; a cluster where the row is reduced
    bool online = false;             // reductions that would read the row twice carry a pair instead (plan/online)
    int blocks_per_sm = 0;           // > 0: no more blocks than so many on each multiprocessor, looping over rows
    bool prefetch = false;           // a row's loads are issued while the block works on the row before (blocks_per_sm)
    int stages = 0;                  // > 0: so many rows are copied ahead into shared memory (blocks_per_sm)
    int ahead = 0;              // > 0: rows that follow each other are a block's, loaded so many ahead (blocks_per_sm)
    bool skew = false;          // a cluster meets over a row's first phase behind the next row's (blocks_per_sm)
    bool across = false;        // neighbouring threads take neighbouring rows, not parts of one (kRowsReduction;
                                // kRowReduction where rows lie side by side and their columns apart; on a CPU
                                // kElementwise of rows without columns, and either of a few)
    int shares = 0;             // > 0: so many threads share a long segment of rows; each has some too (kRowsReduction)
    int run = 1;                // up to so many short segments that follow each other are a thread's run (shares)
    int min_blocks_per_sm = 0;  // register cap through launch bounds; 0 leaves it to the compiler

    bool operator==(const Schedule&) const = default;
    // Whether a thread's columns are unrolled, as what it has in registers for each of them needs.
    bool unrolls() const { return residency == Residency::kRegisters || residency == Residency::kStages; }
    // Whether a row's first loads are issued before the block comes to the row.
    bool fetches_ahead() const { return prefetch || stages > 0; }
};

// Whether the threads of a row can meet: a part of a warp whose lanes fold in halves, or any number of whole warps.
bool fills_warps(int threads, int warp_size);

// Whether a row may have the schedule's threads: any number where they never meet, else such as can.
bool may_share_row(const Schedule& schedule, int warp_size);

// How many rows of so many threads share a block where each is at its own of some positions that blocks take in turn:
// as many as a block of 128 threads has room for that divide the positions and fill whole warps, or as many as have
// all positions some times; 0 where none do.
int rows_side_by_side(std::int64_t positions, int threads_per_row, int warp_size);

// The largest power of two, at most `limit`, that divides `columns`: columns of an access where none may be a part of
// one.
int vector_dividing(std::int64_t columns, int limit);

// "row_reduction keep=registers threads=128 rows=1 vector=8"; fields at their default are left out.
std::string print(const Schedule& schedule);

// The schedule of that text; nothing when it is not one (a stale tuning entry is a miss, not an error).
std::optional<Schedule> parse_schedule(std::string_view text);

}  // namespace rowjit
