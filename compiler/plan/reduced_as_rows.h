// Reductions of columns that lie apart in memory, as of a sequence's steps for each of its features, or of a batch's
// pixels for each channel that comes last. A row of such columns, read by the lanes of a warp or of a vector register,
// takes one element of every line; results that lie side by side take lines whole. So the columns become rows that are
// summed over, which threads divide among them for neighbouring results.
#pragma once

#include <optional>
#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// The column axis of a group that is to be a row axis, where all of the group's reductions are over it and what they
// read lies further apart along it than along the innermost row axis, which is one of columns. Nothing where a group
// has other columns, reads them again behind a reduction or stores them, and where they are few.
std::optional<AxisId> reduced_as_rows(const GraphData& group, const std::vector<AxisId>& row_axes);

}  // namespace rowjit
