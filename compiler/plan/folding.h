// What of a graph is known before it runs: maps and casts of constants, and choices whose condition comes to the same
// wherever it is asked.
#pragma once

#include "dsl/graph.h"

namespace rowjit {

// The node, or what it comes to. A map or cast of constants is a constant, rounded as the operation would have rounded
// it; a map of known choices is one of what they choose, where that has the same axes.
NodeId folded(GraphData& graph, NodeId id);

}  // namespace rowjit
