// Which values outputs do not depend on but for rounding: an extremum that is subtracted so that exponentials stay
// finite, as the maximum in a softmax or a log-sum-exp. Nothing flows back to it, whatever an expression makes of it.
#pragma once

#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// By node: minima and maxima, of columns, of rows or of two values, that each of the values `of` is the same for, were
// it any other number: f(x, m) = f(x, m + c).
//
// Known by what each value is as a function of such an m, for all m: some g + k·m, as x − m is; some g · e^(k·m), as an
// exponential of it is, a sum of those, a product; or neither, which is never the same. k is a number of the graph.
std::vector<bool> find_invariant(const GraphData& graph, const std::vector<NodeId>& of);

}  // namespace rowjit
