// Σ (x − μ)² over rows, of a μ that those rows come to, as a batch norm's variance is: whoever takes the differences
// reads the rows once for μ and again for the squares. Σ x² − μ (2 Σ x − n μ) is the same, of sums that one reading
// gives. They cancel, so they are in f64: x² is exact there, and where μ is 2^12 deviations from 0 what is lost is less
// than what rounding x − μ to f32 loses. On CPUs alone: GPUs convert a sixteenth as many numbers to f64 as they add,
// and a batch norm of 1536 bf16 columns takes an H200 0.247 ms so, 0.213 with its rows read once more.
#pragma once

#include <memory>

#include "base/target.h"
#include "dsl/graph.h"

namespace rowjit {

// `graph` where there is no such sum in f32, or the target is a GPU.
std::shared_ptr<const GraphData> square_rows_at_once(const std::shared_ptr<const GraphData>& graph,
                                                     const Target& target);

}  // namespace rowjit
