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

// A layer norm over channels that a picture's lines of pixels lie behind, a softmax over them and the loss of a class
// for each pixel: rows that lie side by side, whose columns are read again with what they come to, weighted by tables
// of either axis.
inline Graph normed_channels(std::int64_t channels, std::int64_t lines, std::int64_t pixels, Dtype dtype) {
    return Graph::parse(fmt::format(R"(rows images
columns c = {0}
columns l = {1}
columns p = {2}
input x: {3}[images, c, l, p]
input shift: f32[images, l, p]
input w: f32[c]
input label: i64[images, l, p]
h = cast(x, f32)
d = h - mean(h, c)
n = d * rsqrt(mean(d * d, c) + 1e-5)
m = max(h, c)
s = log(sum(exp(h - m), c)) + m
output y = cast(n * w + shift * cast(iota(c) - iota(l) * 2 + iota(p), f32), {3})
output q = cast(exp(h - s), {3})
output loss = s - cast(index(x, images, label, l, p), f32)
)",
                                    channels, lines, pixels, name(dtype)),
                        "normed_channels");
}

}  // namespace rowjit
