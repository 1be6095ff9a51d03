// Outputs that are put together of spans of columns, as the gradient of a row that holds a gate and what it gates is:
// a choice by the column's place, so that each column computes what every span needs. Stored a span at a time instead,
// a column of each by one thread, they are computed with the columns that they are made of, which are read once.
//
// And outputs along one axis of groups of columns whose numbers, as each group's norm, were found along two: a column
// asks for what its place divided by the columns of a group says, and would find it anew, once a column. Along the two
// axes it is one of the group's own columns.
#pragma once

#include <optional>
#include <set>

#include "base/target.h"
#include "dsl/graph.h"

namespace rowjit {

// The graph with such outputs along more column axes in the place of one: the span, the group, and a column of it.
struct DividedOutputs {
    GraphData graph;
    std::set<AxisId> spans;  // to be unrolled (canonicalize)
};

// Nothing where there are none. Where no other tensor has columns of a span's, only narrow outputs on a CPU: there
// rope_qk of bf16 takes 1.25 ms a half at a time, 1.85 with the partner of each column found, mrope 1.04 and 2.18;
// f32 gains nothing (one core of an Intel server). A GPU's rotary embeddings wait for memory.
std::optional<DividedOutputs> divide_outputs(const GraphData& graph, const Target& target);

}  // namespace rowjit
