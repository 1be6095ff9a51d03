// Sums over columns whose terms differ by factors that do not vary along those columns are one sum, times each one's
// factors. So come the gradient of a weight for all columns, Σ dy·(x·r), and that of a row's statistic, Σ (dy·w)·x:
// a polynomial norm's backward summed six products a column where there are three.
#pragma once

#include <memory>

#include "dsl/graph.h"

namespace rowjit {

// `graph` where there are none. Of sums in f32 or wider: a product taken out of such a sum rounds once where each term
// did.
std::shared_ptr<const GraphData> share_sums(const std::shared_ptr<const GraphData>& graph);

}  // namespace rowjit
