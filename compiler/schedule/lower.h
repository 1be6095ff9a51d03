// From a group and a schedule to loops. Every schedule family lowers through here: a schedule says how the loops run,
// the group says what they compute.
//
// The body of a kernel is a sequence of phases. Crossing a column reduction starts a new phase: phase p has one column
// loop for every set of columns that something of depth p runs over, an all-reduce of what those loops accumulated, and
// the per-row scalars that follow from it. Values that a later phase needs again are kept on chip or computed again,
// whichever a minimum cut finds cheaper.
#pragma once

#include <set>

#include "base/declined.h"
#include "base/target.h"
#include "compiler/kernel.h"
#include "compiler/plan/plan.h"

namespace rowjit {

// Declines when the schedule does not fit the group: too much shared memory, a family for other reductions, an in-place
// output whose input is read at other coordinates.
Offer<Kernel> lower(const Group& group, const Schedule& schedule, const Target& target);

// Likewise of a group that puts ids in order: of what order.cpp offers, so that it declines nothing.
Kernel lower_order(const Group& group, const Schedule& schedule, const Target& target);

// Column phases of a group: 1 + the number of column reductions on its longest path; what a row that does not stay on
// chip is read that often for.
int phase_count(const GraphData& group);

// Outputs' sums over rows of a sum over columns that nothing else of the row wants, as the gradient of one weight for
// all columns. Where sums are in registers each thread sums what it has of all rows, and a block's threads meet over it
// once, not once a row.
std::set<NodeId> sums_of_block(const GraphData& group);

// Whether the rows of a CPU's group that are lanes of its vectors (Schedule::across) have columns that follow each
// other (Kernel::in_tiles), and are no numbers alone, nor apart from each other.
bool rows_are_tiles(const Group& group);

// Operations of a dozen instructions and more: roots, exponentials, divisions.
bool is_special(Op op);

}  // namespace rowjit
