// Numbers of a row that cancel: what is left of sums of thousands of terms.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "dsl/graph.h"
#include "dsl/tensor.h"
#include "rowjit/graph.h"

namespace rowjit {

// Of sums, of means over other counts, and of sums of which some were added before; beside one of the sums.
inline std::vector<Graph> differences_of_sums(std::int64_t columns, Dtype dtype) {
    const auto made = [&](const auto& difference) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const auto total = [&](const char* name) { return sum(cast(g.input(name, dtype, {tokens, columns}), f32)); };
        const Value a = total("a");
        g.output("difference", difference(a, total));
        g.output("sum", a);
        return g;
    };
    return {made([](const Value& a, const auto& total) { return a - total("b"); }),
            made([](const Value& a, const auto& total) { return a / 7.0 - total("b") / 9.0; }),
            made([](const Value& a, const auto& total) { return (a - total("b")) - (-total("c")); })};
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
