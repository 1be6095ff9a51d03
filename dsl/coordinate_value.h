// A coordinate as a value: what an index of an iota reads, and what masks compare.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// The value of `coord` at every position, an integer `dtype` over the axes that it mentions; of rows, which are 64-bit,
// it is computed in i64.
NodeId add_coordinate_value(GraphData& graph, const Coord& coord, Dtype dtype);

// The coordinate with the column axis that its data add or subtract the place along as an axis: of data that are
// iota(k) − iota(q) + 511, k and what is left of the data. As it is where nothing is left, or there are several.
Coord with_column_apart(GraphData& graph, const Coord& coord);

// What a coordinate, or a whole number, of data exceeds the position along an axis by, if that is the same everywhere.
std::optional<std::int64_t> places_beyond(const GraphData& graph, AxisId axis, const Coord& coord);
std::optional<std::int64_t> places_beyond(const GraphData& graph, AxisId axis, NodeId number);

// A mask of a data coordinate and what it masks have the axes they share in one order, or Error(kUnsupported) naming
// the source that `what` indexes.
void require_one_order(const GraphData& graph, std::string_view what, NodeId source, const std::vector<AxisId>& mask,
                       const std::vector<AxisId>& masked);

}  // namespace rowjit
