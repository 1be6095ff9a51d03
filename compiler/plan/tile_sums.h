// Numbers of the rows of a product, where nothing else is wanted of it: a loss's forward, or log-probabilities of a
// head's logits. The kernel that makes the product reduces the columns of each of its tiles while they are in shared
// memory (templates/prelude_product.h), and another puts the parts of a row together. Nobody stores the logits or reads
// them again. Of parts p of the columns
//
//     max x               →  max_p max x
//     Σ f                 →  Σ_p Σ f
//     Σ exp(x − max x)·f  →  Σ_p exp(m_p − max x)·Σ exp(x − m_p)·f,  m_p = max x of the part
//
// (Milakov and Gimelshein, arXiv 1805.02867, for the last). Of a part whose x are all −inf such a sum is 0.
#pragma once

#include <functional>
#include <string>

#include "base/target.h"
#include "compiler/plan/plan.h"

namespace rowjit {

// Whether a kernel that makes a product runs the group, which reads the product under that name.
using RunsInTiles = std::function<bool(const Group&, const std::string& in_tiles)>;

// The plan with every such kernel parted, where tiles make the product that it reads and all its reductions over the
// product's columns are of these. Notes say which, or of a kernel behind such a product why not.
Plan part_row_sums(Plan plan, const Target& target, const Runs& runs, const RunsInTiles& runs_in_tiles);

// Whether each product that nobody stores is still followed by the kernel of its tiles, once there are loops.
bool tiles_are_read_at_once(const Plan& plan);

}  // namespace rowjit
