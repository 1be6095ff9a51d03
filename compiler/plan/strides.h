// How far apart a group's inputs have what lies along one of their axes, as far as the planner knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// What is taken for what lies between two rows, which a launch says: much.
inline constexpr std::int64_t kStrideOfRows = std::int64_t{1} << 32;

// Elements between neighbours along the input's axis of that index: a column's, a promoted one's or a row's.
std::int64_t stride_of(const GraphData& group, const Node& input, std::size_t axis);

// Elements between what a load, an input or an index into one, reads at neighbours along `axis`; nothing where it reads
// the same.
std::optional<std::int64_t> step_along(const GraphData& group, const Node& load, AxisId axis);

// Whether all that is read along columns lies further apart along each of their axes than along the innermost row axis,
// which is one of columns that the planner promoted.
bool columns_lie_apart(const GraphData& group, const std::vector<AxisId>& row_axes);

// How many rows follow each other without a gap in all that is read along columns: positions of the innermost promoted
// row axes, as a picture's lines and their pixels.
std::int64_t neighbouring_rows(const GraphData& group, const std::vector<AxisId>& row_axes);

}  // namespace rowjit
