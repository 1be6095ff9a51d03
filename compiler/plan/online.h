// Online rewriting: two reductions that would read a row twice become one that carries a pair, for rows that do not
// stay on chip, and for those whose threads are many blocks and would meet twice. The table of rewrites is closed:
//
//     m = max x,  s = Σ exp(x − m)              →  max_sum_exp x      (Milakov and Gimelshein, arXiv 1805.02867)
//     μ = (Σ x) / n,  v = Σ (x − μ)²            →  welford x          (Chan, Golub and LeVeque's pairwise form)
//
// Infinities and NaN come out as the two-pass form gives them: a row whose maximum is infinite has a NaN sum.
#pragma once

#include <memory>

#include "dsl/graph.h"

namespace rowjit {

// The group with every such pair rewritten; the same graph when there is none.
std::shared_ptr<const GraphData> rewrite_online(const std::shared_ptr<const GraphData>& group);

}  // namespace rowjit
