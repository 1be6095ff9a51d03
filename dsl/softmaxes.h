// Softmaxes as expressions write them, with no node of their own: from a probability or its logarithm to the logits.
#pragma once

#include <optional>

#include "dsl/graph.h"

namespace rowjit {

// Of logits x: x − max x, its exponential, and the sum of those, over the same columns, in f32 or wider.
struct Softmax {
    NodeId below = -1;
    NodeId exponential = -1;
    NodeId total = -1;

    bool operator==(const Softmax&) const = default;
};

// Of Σ exp(x − max x), over columns or over rows; the maximum detached or not.
std::optional<Softmax> softmax_of_total(const GraphData& graph, NodeId id);

// Known are exp(x − m) / s and exp of a logarithm, of m = max x and s = Σ exp(x − m); and of logarithms x − (m + log
// s), (x − m) − log s and log of a probability. Over columns; nothing of others.
std::optional<Softmax> softmax_of_probability(const GraphData& graph, NodeId id);
std::optional<Softmax> softmax_of_logarithm(const GraphData& graph, NodeId id);

}  // namespace rowjit
