// Online rewriting: two reductions that would read a row twice become one that carries a pair, for rows that do not
// stay on chip, and for those whose threads are many blocks and would meet twice. The table of rewrites is closed:
//
//     m = max x,  s = Σ exp(x − m)              →  max_sum_exp x      (Milakov and Gimelshein, arXiv 1805.02867)
//     μ = (Σ x) / n,  v = Σ (x − μ)²            →  welford x          (Chan, Golub and LeVeque's pairwise form)
//     both of x and y,  Σ p ln(p / q) of p = exp(x − max x), q = exp(y − max y)  →  divergence x y
//     likewise,  Σ p ln q  →  cross_logarithms x y,  Σ p ln p  →  own_logarithms x
//     and of weights w,  Σ w ln p  →  weighted_logarithms x w
//
// A divergence is of rows of two tensors read once, as those of max_sum_exp are, with a third sum whose terms move by
// the maxima's steps (carried_logarithms); on the CPU only where a row stores no columns, as one whose logarithm is
// near the sum shows its last bits: reverse_kl with its gradient erred by 5.3 units where eager does by 1.3. The last
// three are a GPU's: a CPU has a row in its caches when it reads it again.
// And of the rounds that take a row's greatest elements one after the other, two reductions each, all become one that
// carries as many:
//
//     greatest_r = max of what is left of x,  place_r = the first column where it stands  →  greatest x, r = 0, 1, …
//
// Over rows, as a softmax of tokens for each slot has them, the first is read off a pair as well, in a pass over all of
// the graph: kernels end at what rows come to, so that no group has both reductions. Its blocks' pairs are joined by
// plain nodes (partial_reductions).
//
// Infinities and NaN come out as the two-pass form gives them: a row whose maximum is infinite has a NaN sum.
#pragma once

#include <memory>

#include "base/target.h"
#include "dsl/graph.h"

namespace rowjit {

// The group with every such pair rewritten; the same graph when there is none.
std::shared_ptr<const GraphData> rewrite_online(const std::shared_ptr<const GraphData>& group, const Target& target);

// The graph with every maximum of f32 over rows, and the sum of exponentials over those rows below it, read off a pair;
// on a GPU.
std::shared_ptr<const GraphData> rewrite_online_rows(const std::shared_ptr<const GraphData>& graph,
                                                     const Target& target);

}  // namespace rowjit
