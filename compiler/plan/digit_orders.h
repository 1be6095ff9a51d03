// The order of ids by their digits, one pass for each from the lowest on: every pass takes the ids in the order that
// the passes before it have come to, and leaves those of one digit as they are. A pass is a kernel of its own; on a GPU
// two, the first of which counts how many ids of each digit each block has, so that the second knows where its own go.
// Ids themselves stay where they are and are read again: what passes hand on is positions, of which any number of rows
// may be the ids.
//
// How many passes there are is a matter of the rows, of which there are so many and two more kinds: those before the
// first and past the last. Where a launch says how many rows there are, it does without the passes that so many have no
// digits for (compiler/needless.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/target.h"
#include "dsl/graph.h"

namespace rowjit {

// Blocks of a GPU's pass at most: every one reads the counts of all.
inline constexpr std::int64_t kMostOrderBlocks = 128;

// Ids of a block where there are fewer blocks than that.
inline constexpr std::int64_t kIdsOfOrderBlock = 1024;

// `graph` with a kOrder for each digit in the place of those that are by all of them.
std::shared_ptr<const GraphData> order_by_digits(const std::shared_ptr<const GraphData>& graph, const Target& target);

// Integers along the one row axis of an input, at a place of its columns.
struct IdsInMemory {
    NodeId input = -1;
    std::vector<std::int64_t> columns = {};  // of each column axis
};

// What an order's ids are in memory: an input, or a column of it; nothing for what is computed.
std::optional<IdsInMemory> ids_in_memory(const GraphData& graph, NodeId ids);

// Whether a group puts ids in order, or counts them.
bool orders_ids(const GraphData& group);

}  // namespace rowjit
