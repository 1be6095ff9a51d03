// Divergences, entropies and cross-entropies of softmaxes as people write them, Σ p (log p − log q), Σ p log p, Σ p log
// q and Σ w log q with p and q from their logits: each class asks for the rows' sums, so that a row is read three
// times. Σ e (x − y), Σ e x, Σ e y and Σ w x below the maxima need none, and the sums come to them behind: reductions
// that one pass carries together (compiler/plan/online.h).
#pragma once

#include <memory>

#include "dsl/graph.h"

namespace rowjit {

// Null where there are none. Of softmaxes as dsl/softmaxes.h knows them, times numbers of the row. A class of p = 0
// adds 0, where written out −∞ logits of both rows would add NaN.
std::shared_ptr<const GraphData> write_divergences(const GraphData& graph);

}  // namespace rowjit
