// Reductions over row axes: the threads of a block share the reduced rows and fold in a fixed order, so the result does
// not depend on how the device schedules blocks.
#include <algorithm>

#include "compiler/schedule/choose.h"

namespace rowjit {
namespace {

constexpr int kRun = 32;  // results that neighbouring threads take: a 128-byte line of f32, or more in vectors
constexpr int kAccessBytes = 16;

bool contains(const std::vector<Schedule>& schedules, const Schedule& schedule) {
    return std::find(schedules.begin(), schedules.end(), schedule) != schedules.end();
}

}  // namespace

FamilyOffer offer_rows_reduction(const GroupFacts& facts, const Target& target) {
    FamilyOffer offer{Family::kRowsReduction, {}, ""};
    if (!facts.reduces_rows) {
        offer.declined = "no reduction over rows";
        return offer;
    }
    Schedule s;
    s.family = Family::kRowsReduction;
    if (!target.is_gpu()) {
        // Lanes are neighbouring results. A block is at least a cache line of them, so that no two threads write one
        // line and ranges of blocks begin at whole vectors.
        s.rows_per_block = facts.scalar_rows ? 1 : 64;
        for (const int vector : {32, 16}) {
            s.vector = vector;
            offer.schedules.push_back(s);
        }
        return offer;
    }
    const int whole = vector_dividing(facts.promoted_columns, std::max(1, kAccessBytes / facts.promoted_bytes));
    // A segment of rows with columns: most have few rows, of which a thread takes a vector of columns; the threads of a
    // block share those that have many. Of one number a row, a warp takes a segment, whose rows are what lies side by
    // side.
    if (facts.segmented && !facts.scalar_rows) {
        s.threads_per_row = facts.promoted ? 1 : 32;
        for (const int rows : facts.promoted ? std::vector<int>{256, 512, 128} : std::vector<int>{4}) {
            s.rows_per_block = rows;
            s.shares = facts.promoted ? rows / kRun : 0;
            for (const int vector : {whole, whole > 1 ? whole / 2 : 1, whole * 2}) {
                if (facts.promoted_columns % vector != 0) continue;
                s.vector = vector;
                if (!contains(offer.schedules, s)) offer.schedules.push_back(s);
                if (facts.promoted && !facts.finds_rows && vector <= whole) {
                    s.min_blocks_per_sm = 1024 / rows;
                    if (!contains(offer.schedules, s)) offer.schedules.push_back(s);
                    s.min_blocks_per_sm = 0;
                }
            }
        }
        s.vector = 1;
        s.shares = 0;
    }
    // Sums of some of the row axes: there are many results, of which a thread takes a vector.
    if (facts.many_rows && whole > 1) {
        s.across = true;
        s.rows_per_block = kRun;
        s.vector = whole;
        for (const int threads : {8, 32}) {
            s.threads_per_row = threads;
            offer.schedules.push_back(s);
        }
        s.across = false;
        s.vector = 1;
    }
    // Results lie side by side in memory, and so do what they are made of: a warp reads a run of them.
    if (!facts.scalar_rows) {
        s.across = true;
        s.rows_per_block = kRun;
        for (const int threads : {32, 8}) {
            s.threads_per_row = threads;
            offer.schedules.push_back(s);
        }
        s.across = false;
    }
    // A single result has the whole block at its rows; few results keep a warp on each.
    const std::vector<int> widths = facts.scalar_rows ? std::vector<int>{1024, 256} : std::vector<int>{32, 128};
    for (const int threads : widths) {
        s.threads_per_row = threads;
        s.rows_per_block = threads >= 128 ? 1 : 128 / threads;
        if (!contains(offer.schedules, s)) offer.schedules.push_back(s);
    }
    return offer;
}

}  // namespace rowjit
