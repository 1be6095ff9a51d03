// Random well-typed graphs from a seed, the same on every platform, and smaller versions of them: what the fuzz test
// compiles and shrinks. Comparing and running is the test's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dsl/graph.h"
#include "rowjit/graph.h"

namespace rowjit {

// One to four inputs, ten to thirty operations, one to three outputs. Values stay small (below about 64, zero rows
// aside), no operation is fed a value where it jumps or blows up, and comparisons see exact values alone: an infinity,
// a NaN or a flipped branch in a kernel is the kernel's doing.
Graph random_graph(std::uint64_t seed);

// Every graph one step simpler: without one output, with a value replaced by one of its operands or by a new input, or
// with a smaller axis. Those that would not be well-typed are left out.
std::vector<Graph> simpler(const GraphData& graph);

}  // namespace rowjit
