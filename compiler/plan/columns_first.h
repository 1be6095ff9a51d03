// A sum over columns of a product with a sum over rows as a sum over rows of a sum over columns. What is broadcast over
// rows is a product of a number and of columns, as a head's slope by the distance of each key: its derivative is
// summed over rows first, for every column, and then over those. The other way round, a row comes to a number while it
// is there, in the kernel that makes the rest of it.
#pragma once

#include <memory>

#include "dsl/graph.h"

namespace rowjit {

// `graph` where there is none, or where the sum over rows is wanted besides.
std::shared_ptr<const GraphData> sum_columns_first(const std::shared_ptr<const GraphData>& graph);

}  // namespace rowjit
