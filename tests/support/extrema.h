// Extrema of what constants scale, beside what is made of them.
#pragma once

#include "base/dtype.h"
#include "dsl/graph.h"
#include "rowjit/graph.h"

namespace rowjit {

inline Graph extrema_of_scaled(Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = cast(g.input("x", dtype, {tokens, 77}), f32);
    const Value cooled = x / 0.7;
    g.output("greatest", max(x * 0.3) - min(x * 3.0));
    g.output("turned", max(x * -0.3));
    g.output("least", min(cooled));
    g.output("log_sum", max(cooled) + log(sum(exp(cooled - max(cooled)))));
    g.output("above", cast(cooled - max(x * 0.3), dtype));
    return g;
}

}  // namespace rowjit
