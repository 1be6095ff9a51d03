// The choice among plans. Small axes in registers: a row of a few streams, or the layers below a layer, is a row of
// columns beside a small axis that is reduced on its own. The schedules reduce whole rows of columns, or over rows; so
// such an axis is unrolled: a thread holds a value for each of its positions, and the rest is rows and columns as ever.
// The plan with it and the plan without are both made, and where arithmetic would outlast the traffic, or neither of
// them runs, also a plan that computes on with a row's numbers in kernels of their own; the cheapest that runs is
// taken. Where none does, since so much is joined that a block has no room for it, groups are joined as far as they
// run.
#pragma once

#include "compiler/plan/plan.h"

namespace rowjit {

// The plan of `graph`, not canonical yet. `runs` says whether a schedule runs a group.
Plan cheapest_plan(const GraphData& graph, const Target& target, const Runs& runs,
                   std::string_view stem = kTemporaryStem);

}  // namespace rowjit
