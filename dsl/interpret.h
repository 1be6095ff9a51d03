// The oracle: a graph's meaning, computed on the host one node at a time. Slow and plain on purpose; every backend,
// schedule and rewrite is compared with it (dsl/accuracy.h), so it knows nothing of any of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "dsl/graph.h"
#include "dsl/tensor.h"

namespace rowjit {

enum class Rounding : std::uint8_t {
    // Everything in double; Cast to a float is the identity. What the expression would be without rounding.
    kExact,
    // Every node's result rounded to its dtype, as a framework that runs one kernel per node does:
    //   - bf16 and f16 operations are computed in f32 and rounded once more, and a constant or scalar beside them is
    //     held in f32, as PyTorch holds a Python number;
    //   - f32, bf16 and f16 sums accumulate in f32: pairwise, over blocks of 16 summed in order. PyTorch's CPU kernel
    //     cascades and its CUDA kernel sums a few elements a thread before a tree, which is about as exact.
    kEager,
};

struct Bindings {
    Tensors tensors;  // by input name; by output name, what the buffer of an accumulating output held before
    std::map<std::string, double, std::less<>> scalars;  // those that are not at their defaults
    RowExtents rows;                                     // every run-time row axis
};

// The outputs by name. An output that accumulates is added to the tensor bound to the input it aliases, else to the one
// bound under the output's own name. Throws Error(kInvalidArgument) naming the binding that is missing or does not fit.
//
// NaN and infinities come out as from the frameworks: max and min give NaN if any element is NaN, a softmax over a row
// of −∞ is NaN. A reduction over no rows gives the monoid's identity: 0, −∞ or +∞; the mean of none is NaN. An Index
// whose data coordinate lies outside the source gives 0.
Tensors interpret(const GraphData& graph, const Bindings& bindings, Rounding rounding);

}  // namespace rowjit
