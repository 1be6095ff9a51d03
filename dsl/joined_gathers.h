// Gathers that take rows of one source by several lists of ids, as one gather by all of them: what flows back to the
// source is then a sum over segments of one order. A mixture of four experts that is written out, one
// `index(h, index(place, tokens, 0), d)` for each, had four orders and 42 kernels backward, and has 13.
#pragma once

#include <memory>
#include <vector>

#include "dsl/gathered_rows.h"

namespace rowjit {

// What flows back to a gather, along all of its axes.
struct TakenRows {
    RowGather gather;
    Value whole;
};

// That of several gathers of one source's rows by ids along the same axes, which stand along the row axis `along`, of
// as many positions as there are gathers, behind those.
TakenRows joined(const std::shared_ptr<GraphData>& graph, const std::vector<TakenRows>& gathers, Axis along);

}  // namespace rowjit
