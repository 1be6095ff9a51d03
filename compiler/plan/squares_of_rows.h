// Σ (x − μ)² over rows, of a μ that those rows come to, as a batch norm's variance is: whoever takes the differences
// reads the rows once for μ and again for the squares.
//
// On a CPU, Σ x² − μ (2 Σ x − n μ) is the same, of sums that one reading gives. They cancel, so they are in f64: x² is
// exact there, and where μ is 2^12 deviations from 0 what is lost is less than what rounding x − μ to f32 loses.
//
// On a GPU, which converts a sixteenth as many numbers to f64 as it adds, it is Σ (x − x̄)² + n (x̄ − μ)² of the rows'
// own mean x̄, where blocks carry parts of such moments (Monoid::kMoments; Chan, Golub and LeVeque 1979): a batch norm
// of 1536 bf16 columns takes an H200 0.168 ms so, 0.247 by sums in f64, 0.204 with its rows read once more.
#pragma once

#include <memory>

#include "base/target.h"
#include "dsl/graph.h"

namespace rowjit {

// `graph` where there is no such sum in f32.
std::shared_ptr<const GraphData> square_rows_at_once(const std::shared_ptr<const GraphData>& graph,
                                                     const Target& target);

}  // namespace rowjit
