// Numbers of a row that cancel: what is left of sums of thousands of terms.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "dsl/graph.h"
#include "dsl/tensor.h"
#include "rowjit/graph.h"

namespace rowjit {

// Of sums, of means over other counts, and of sums of which some were added before, and one beside its terms.
inline Graph differences_of_sums(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const auto total = [&](const char* name) { return sum(cast(g.input(name, dtype, {tokens, columns}), f32)); };
    const Value a = total("a");
    const Value b = total("b");
    const Value c = total("c");
    g.output("difference", a - b);
    g.output("of_means", a / 7.0 - b / 9.0);
    g.output("of_three", (a - b) - (-c));
    g.output("sum", a);
    return g;
}

// Each to the last unit, whatever cancelled.
inline void check_differences(const Tensors& got, const Tensors& exact) {
    for (const auto& [name, tensor] : exact) {
        for (std::size_t i = 0; i < tensor.values.size(); ++i) {
            const double error = std::abs(got.at(name).values[i] - tensor.values[i]);
            CHECK_MESSAGE(error <= ulp(f32, tensor.values[i]), name, " ", i, ": ", tensor.values[i]);
        }
    }
}

}  // namespace rowjit
