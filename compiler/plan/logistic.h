// A rewriting of canonical graphs.
#pragma once

#include <memory>

#include "dsl/graph.h"

namespace rowjit {

// 1 + tanh u, as a GELU is written, becomes 2 / (1 + e^(−2u)): an exponential and a division, where a tangent is those
// and a polynomial, and exact where 1 + tanh u cancels. Only where the tangent is used for nothing else: its derivative
// is nearer with it. The graph itself where there is none.
std::shared_ptr<const GraphData> write_logistic(const std::shared_ptr<const GraphData>& graph);

}  // namespace rowjit
