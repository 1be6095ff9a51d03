// What the planner weighs groups by, besides group_bytes and predicted_us of plan.h: elements of a value, and what an
// operation takes. A schedule is not known here; what a kernel takes with one, compiler/cost predicts.
#pragma once

#include "dsl/graph.h"

namespace rowjit {

inline constexpr double kPlanningRows =
    8192;  // plans do not depend on the row count of a launch; a training step's is typical
inline constexpr double kLaunchUs = 2.5;  // H200, kernel to kernel on one stream

// Elements of a value, of which a program of `rows` rows has as many where it has all row axes: of a batch of sequences
// each axis has the square root of them.
double elements(const GraphData& graph, const Node& node, double rows);

bool is_trigonometric(Op op);

// What an element of an operation takes of the throughput that runs out first on narrow data, in exponentials.
double specials_of(Op op);

}  // namespace rowjit
