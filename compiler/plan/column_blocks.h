// Gradients of a head's weight in little memory: a product over the rows, d_weight[v, h] = Σ_t d_logits[t, v]·hidden[t,
// h], whose operand is computed from another product's result along v, logits. In chunks of rows it has to be added up
// over the chunks, in an f32 accumulator as large as twice the gradient or with a rounding after each. Here it is made
// some columns v at a time instead, over all rows at once, and rounded once: v becomes a row axis of blocks, which a
// loop goes through, and a column axis within a block. Along it the operand is computed again from a product made
// again, and what a whole row is needed for (a maximum, a sum of exponentials) is stored by the kernels that have whole
// rows. So whatever reduces a row may: only what lies along v has to be elementwise.
//
// The last block may have columns beyond the last of v. Kernels compute them, of whatever the memory holds; no product
// reads or writes them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/declined.h"
#include "compiler/plan/plan.h"

namespace rowjit {

struct ColumnBlocks {
    // Everything but those gradients, and what they need of whole rows as further outputs; then the gradients. Both
    // have the same axes.
    std::shared_ptr<const GraphData> whole;
    std::shared_ptr<const GraphData> parts;
    ColumnDivision division;
    std::vector<Temporary> stored;  // outputs of `whole` that are inputs of `parts`
    std::vector<Temporary> views;   // of `parts`: tensors of the original graph, seen in blocks
};

// `graph` with every such gradient among its outputs made in blocks of `block_columns`, or why there is none.
Offer<ColumnBlocks> divide_into_column_blocks(const GraphData& graph, std::int64_t block_columns);

// The plans of both as one, to be divided into chunks.
Plan join_plans(Plan whole, const Plan& parts, const ColumnBlocks& blocks);

}  // namespace rowjit
