// Sums of cotangents over axes that a value lacks: what does not vary along them is taken out of the sum, and what
// comes to 0 over them, as the deviations from a mean do, is left out.
#pragma once

#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// Σ of `v`, a function of the axes `over`, along those that `kept` lacks: accumulated wide and rounded once.
Value sum_to(Value v, const std::vector<AxisId>& over, const std::vector<AxisId>& kept);

}  // namespace rowjit
