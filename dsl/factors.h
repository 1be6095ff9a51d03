// Products taken apart: which factors are the same all along the axes that a sum is over.
#pragma once

#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// Whether a value has any of those axes.
bool varies(const GraphData& graph, NodeId id, const std::vector<AxisId>& along);

// Those that are the same for all positions along some axes, and the others, which are sorted by id.
struct Factors {
    std::vector<NodeId> numbers = {};
    std::vector<NodeId> varying = {};
};

// Of a product in f32 or wider. Of very many, as of a power that was made by squaring, some are products themselves.
Factors factors_of(const GraphData& graph, NodeId product, const std::vector<AxisId>& along);

}  // namespace rowjit
