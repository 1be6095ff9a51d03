// Reductions of columns that lie apart in memory: of a sequence's steps for each feature.
#pragma once

#include <fmt/format.h>

#include "base/dtype.h"
#include "rowjit/graph.h"

namespace rowjit {

// A masked mean of the steps and the greatest of them, with a term that turns with the step; features behind a fixed
// one are left out.
inline Graph pooled_steps(std::int64_t steps, std::int64_t features, Dtype dtype) {
    return Graph::parse(fmt::format(R"(rows batch
columns steps = {}
columns features = {}
columns wide = {}
input x: {}[batch, steps, wide]
input mask: f32[batch, steps]
input weight: f32[steps]
h = cast(index(x, batch, steps, features + 8), f32)
place = cast(iota(steps) - floor_div(iota(steps), 3) * 3, f32)
output mean = cast(sum(h * mask * weight + place, steps) / maximum(sum(mask), 1), {})
output greatest = max(h * mask, steps)
)",
                                    steps, features, features + 8, name(dtype), name(dtype)),
                        "pooled_steps");
}

}  // namespace rowjit
