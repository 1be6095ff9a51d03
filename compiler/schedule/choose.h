// Which schedules a group can have, and which is best without measuring.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/target.h"
#include "compiler/plan/plan.h"
#include "compiler/schedule/schedule.h"

namespace rowjit {

// What the families look at; derived once per group.
struct GroupFacts {
    std::int64_t columns = 1;          // of the widest column loop
    std::int64_t reduced_columns = 0;  // of the widest that columns are reduced in
    // Of the tensors with columns that rows differ in; of tables, which stay in the caches, where there are no others.
    // H200, rms_norm's backward of 8192 bf16 columns with an f32 weight: 70 % of copy as an f32 row's, 95 as a bf16
    // one's.
    int widest_bytes = 4;
    int narrowest_bytes = 4;
    int held_bytes = 4;       // of a column between phases: that, or an f32 that took long to compute
    bool holds_late = false;  // such an f32 is computed behind a reduction, as a mixture's logarithm
    int stored_bytes = 0;     // of the widest output with columns; 0 where none is stored
    int column_inputs = 0;    // tensors with columns that are read
    int streams = 0;          // those of them that have columns of their own for each row
    int table_bytes = 0;      // of a column, in the others of them, which are the same for all rows
    int read_bytes = 0;       // of a column, in those that have columns of their own for each row
    int streamed_bytes = 0;   // likewise, and in what is stored
    int loads = 0;            // places where any of them is read for a column
    int vectors = 0;          // that a loop loads for its columns: of such a tensor one of each position it is read at
    bool holds_positions = false;  // a thread has the row's columns at all positions of an axis
    bool of_groups = false;        // a row's columns have several axes: heads, or groups
    int phases = 1;
    bool sums_exponentials = false;  // a pair of maximum and rescaled sum is among the reductions of online_phases
    int online_phases = 1;           // once reductions that can carry pairs do
    bool carries_entropy = false;    // likewise an entropy
    int greatest = 0;                // likewise a row's greatest elements and their places: how many
    int stored_loops = 1;            // over the columns of outputs, one after the other
    bool stores_columns = false;     // some output has columns of the row's, not places of its own
    bool shares_columns = false;     // some tensor with columns is one for all rows: weights
    bool reduces_tables = false;     // such tensors are among what rows are reduced of from the first
    bool reads_numbers = false;      // some tensor that is read has a number for each row, as a target's class
    std::int64_t at_places = 0;      // columns that are read of a wide row, each at a place that its data give
    bool finds_places = false;       // a column is found among places of a list, which whole warps look through
    int rows_beside = 0;             // values of columns that are read of another row, a constant number away
    int sums_of_rows = 0;            // outputs that are parts of sums over the group's rows
    int sums_of_columns = 0;         // those of them that have columns, each of which a thread holds a register for
    // Of the columns that one is of, the fewest.
    std::int64_t fewest_summed = std::numeric_limits<std::int64_t>::max();
    bool carries_pairs = false;        // of them a maximum with a rescaled sum: an exponential of each column
    std::int64_t positions_apart = 1;  // of the row axes that those sums are not over
    std::int64_t rows_of_each = 0;  // of each position of outer ones; 0 where there are none or a launch says how many
    int functions = 0;              // of each column, a random number as several
    int quotients = 0;              // those of them that are quotients by a number of the row
    int maps = 0;                   // what is computed of each column, casts left out
    int table_functions = 0;        // those of tables alone, which a block that stays computes once
    int table_quotients = 0;        // by tables, of which it makes once what they take
    std::int64_t read_columns = 0;  // of the input that has the most
    bool reduces_moments = false;   // over rows (Monoid::kMoments)
    int row_maps = 0;               // what is computed of a row's numbers, by each of its threads
    int row_functions = 0;          // those of them that are functions
    bool steps = false;             // a row meets in steps of a fixpoint, some number of times
    bool meets = false;             // the threads of a row do, over what is wanted of that row
    bool reduces_rows = false;
    int row_results = 0;      // its reductions over rows
    bool adds_parts = false;  // what it reduces over rows is parts of sums, as blocks have left them
    bool segmented = false;   // some of those reductions are of segments, or of parts that each position has some of
    bool computes_terms = false;  // what segments add up is computed of what is read, not only chosen and widened
    bool promoted = false;        // columns lie among the group's row axes
    // Of the innermost of them, along which results lie side by side; the widest element that is read or stored there.
    std::int64_t promoted_columns = 1;
    int promoted_bytes = 4;
    int promoted_read_bytes = 4;  // of those that are read
    bool scalar_rows = false;     // one row in all: no run-time row axis
    bool of_batches = false;      // a launch says how many rows of promoted columns there are results of, or many are
    // Of the most that one result is reduced over; 0 where a launch says how many those are.
    std::int64_t reduced_positions = 1;
    std::int64_t results = 1;      // of those reductions, likewise
    bool reduces_along = false;    // what they are over lies side by side, and results apart
    bool columns_shared = false;   // neighbouring rows, which were columns, read the same ones
    bool columns_apart = false;    // rows lie side by side in memory, and the columns of each apart
    std::int64_t neighbours = 1;   // so many of them
    bool reads_elsewhere = false;  // columns of other rows, or of tensors that lack some of the rows' axes

    bool sums_rows() const { return sums_of_rows > 0; }
    // Columns of an access: 16 bytes of what is stored, so that neighbouring threads fill whole sectors of memory in
    // one instruction; what is read may be wider, as the first-level cache has the rest of a sector. H200: from 1 byte
    // to 4, 16 columns a thread ran at 38 % of copy.
    int access_columns() const;
    // Whether rows are wide ones of an odd number of columns, or of twice as many where that is no half of a vector.
    static constexpr std::int64_t kLeastPeeled = 512;  // narrower rows are no more than some vectors beside their ends
    bool begins_anywhere() const;
    // Whether they are best peeled (Schedule::peel), or narrower ones of an odd number of columns: taken two bytes at a
    // time they have too little in flight. H200, % of copy of 50257 bf16 columns, peeled and one by one: softmax 98 and
    // 64, cross-entropy 93 and 33, logsumexp 95 and 55; of 30522, which are taken in twos else, softmax 96 and 79,
    // cross-entropy 91 and 51; rms_norm of 515 98. Of 129, 257 and 511: softmax 88, 86, 100 and 57, 69, 78,
    // cross-entropy 88, 89, 90 and 52, 49, 74, gelu 78, 74, 98 and 29, 32, 55, kl_div's backward 69, 82, 87 and 33, 19,
    // 23.
    bool peels() const;
};

GroupFacts facts_of(const Group& group, const Target& target);

// Bytes of an access: smaller ones are too many to copy into shared memory.
inline constexpr std::int64_t kLeastCopied = 8;

// Of a row, each of which all its threads compute: as many take longer than the row's columns.
inline constexpr int kManyNumbers = 16;

// Columns of a CPU's vector that are also offered where columns have groups: 40 of a half head of 80 are whole vectors
// of 8, and no partner in them is read lane by lane.
inline constexpr std::array kCpuGroupVectors = {8, 4};

// A family's answer: schedules from most to least promising by its static rule, or why it does not apply.
struct FamilyOffer {
    Family family = Family::kElementwise;
    std::vector<Schedule> schedules;
    std::string declined;  // the reason when there are none
};

// One row per family that computes, in targets' terms; see elementwise.cpp, row_reduction.cpp, rows_reduction.cpp.
FamilyOffer offer_elementwise(const GroupFacts& facts, const Target& target);
FamilyOffer offer_row_reduction(const GroupFacts& facts, const Target& target);
FamilyOffer offer_rows_reduction(const GroupFacts& facts, const Target& target);

// Of a group that puts ids in order; see order.cpp.
FamilyOffer offer_order(const Target& target);

// Every family's offer; of ids in order the one that there is.
std::vector<FamilyOffer> offers(const Group& group, const Target& target);

}  // namespace rowjit
