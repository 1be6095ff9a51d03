// Sums of logarithms that are carried with the maxima and the sums of exponentials which the logarithms are made of
// (compiler/plan/online.h): of a row's shares, weighed by the shares themselves, by another row's or by what is given.
#pragma once

#include <map>
#include <optional>

#include "dsl/graph.h"

namespace rowjit {

// A monoid over x, and for two rows, or a row and its weights, over what lies beside x; and which of its components the
// graph's reductions are.
struct CarriedLogarithms {
    Monoid monoid;
    NodeId x = -1;
    NodeId beside = -1;
    std::map<NodeId, int> components = {};
};

// Of a sum over columns in f32 or wider; none of other sums.
std::optional<CarriedLogarithms> carried_logarithms(const GraphData& graph, NodeId sum);

// Whether a value is made without reductions of columns, so that a pass has it for each column as it goes.
bool is_known_in_pass(const GraphData& graph, NodeId id);

}  // namespace rowjit
