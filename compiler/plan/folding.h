// What of a graph is known before it runs: maps and casts of constants, and choices whose condition comes to the same
// wherever it is asked.
#pragma once

#include <cstdint>
#include <optional>

#include "dsl/graph.h"

namespace rowjit {

// What a whole number may be, of arithmetic of coordinates and constants; nothing where that is not known, as of what
// is read.
struct Places {
    std::int64_t least = 0;
    std::int64_t greatest = 0;
};
std::optional<Places> places(const GraphData& graph, NodeId id);

// The node, or what it comes to. A map or cast of constants is a constant, rounded as the operation would have rounded
// it; a map of known choices is one of what they choose, where that has the same axes.
NodeId folded(GraphData& graph, NodeId id);

}  // namespace rowjit
