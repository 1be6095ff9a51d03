// Rewritings that save arithmetic of columns and lose no exactness, of what reverse mode leaves.
#pragma once

#include "dsl/graph.h"

namespace rowjit {

// The node, or one of the same value that costs a column less.
NodeId cheaper(GraphData& graph, NodeId id);

}  // namespace rowjit
