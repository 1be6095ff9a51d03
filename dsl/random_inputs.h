// Inputs for any graph from a seed, the same on every platform: what verification, the tuner and the tests feed to the
// oracle and to kernels.
#pragma once

#include <cstdint>

#include "dsl/interpret.h"
#include "rowjit/gradient.h"

namespace rowjit {

struct RandomOptions {
    std::uint64_t seed = 0;
    double scale = 1;  // standard deviation of float inputs
    // One data coordinate in eight lies outside what it indexes, half of those −100, which PyTorch's losses ignore.
    bool out_of_range = false;
    // One float in sixteen is an infinity, NaN, a zero of either sign, a huge or a subnormal value.
    bool extremes = false;
};

// Bindings for every input and for what accumulating outputs held before; scalars stay at their defaults.
//
// Floats are bell-shaped with mean 0, rounded to the input's dtype. An integer input that reaches a coordinate of an
// Index, or is compared with an Iota, is uniform over the values that stay inside; other integers are uniform over
// 0 … 99. Each element depends on the seed, the input's name and its position alone.
Bindings random_inputs(const GraphData& graph, const RowExtents& rows, const RandomOptions& options = {});

// One of those inputs.
Tensor random_input(const GraphData& graph, NodeId input, const RowExtents& rows, const RandomOptions& options = {});

// Bindings of the backward as a training step gives them: what is saved is what the forward, run in eager rounding on
// such inputs, saves.
Bindings random_inputs(const Differentiated& differentiated, const RowExtents& rows, const RandomOptions& options = {});

}  // namespace rowjit
