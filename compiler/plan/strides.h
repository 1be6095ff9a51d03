// How far apart a group's inputs have what lies along one of their axes, as far as the planner knows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsl/graph.h"

namespace rowjit {

// What is taken for what lies between two rows, which a launch says: much.
inline constexpr std::int64_t kStrideOfRows = std::int64_t{1} << 32;

// Elements between neighbours along the input's axis of that index: a column's, a promoted one's or a row's.
std::int64_t stride_of(const GraphData& group, const Node& input, std::size_t axis);

}  // namespace rowjit
