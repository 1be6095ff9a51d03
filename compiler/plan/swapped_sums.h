// Sums over rows and columns in the other order. Both are the same numbers in f32 or wider, but not the same kernels.
#pragma once

#include <memory>

#include "dsl/graph.h"

namespace rowjit {

// A sum over columns of a product with a sum over rows as a sum over rows of a sum over columns. What is broadcast over
// rows is a product of a number and of columns, as a head's slope by the distance of each key: its derivative is
// summed over rows first, for every column, and then over those. The other way round, a row comes to a number while it
// is there, in the kernel that makes the rest of it. `graph` where there is none, or where the sum over rows is wanted
// besides.
std::shared_ptr<const GraphData> sum_columns_first(const std::shared_ptr<const GraphData>& graph);

// A sum over some rows of a sum over some of the columns, as over each picture's pixels of a group of channels, as the
// sum of what each of those columns' own sums over rows are: a row is then all columns, which lie side by side, where
// it had been a few for each of the others. Nothing where there is none.
std::shared_ptr<const GraphData> sum_rows_first(const GraphData& graph);

}  // namespace rowjit
