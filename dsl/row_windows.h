// The gradient of an Index that takes runs of its source's rows, so many rows apart, as frames of a recording, blocks
// of tokens that lie over each other, the steps of a convolution and rows in reverse do: each row is read back by the
// runs that have it, at its place in them. Nothing is put in order and nothing added at data coordinates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// Row step·i + stride·j + first of the source's `rows` is read at position i along `positions` and j along `columns`.
struct RowWindows {
    Axis rows;
    Axis positions;
    std::int64_t step = 1;        // above 0; or −1, where a run is one row
    std::optional<Axis> columns;  // none where a run is one row
    std::int64_t stride = 1;      // 1 or −1 where the step is above 1
    std::int64_t first = 0;       // beside what a launch gives
    std::optional<Value> given;   // i64, as a number of rows is
};

// The windows along each row axis that an Index reads so, where all others are as they are. None for an Index that
// reads otherwise, nor where each position takes one row and the next the row behind it.
std::vector<RowWindows> row_windows(const std::shared_ptr<GraphData>& graph, const Node& index);

// What flows back to the source where `cotangent`, along the windows' positions and others of the Index's axes, flows
// to its result.
Value row_windows_gradient(const std::shared_ptr<GraphData>& graph, const std::vector<RowWindows>& windows,
                           const Value& cotangent);

}  // namespace rowjit
