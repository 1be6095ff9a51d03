// Reverse mode: the backward of a graph is a graph again, printed, planned and tuned like any other.
//
//     Executable f = engine.compile(g);
//     Executable b = engine.compile(gradient(g, {"x", "weight"}));
//
// A backward has an input "d_<output>" of the output's dtype and axes for every output that is differentiated, the
// inputs of the forward that it still reads, and an output "d_<input>" of the input's dtype and axes for every input
// asked for. Derivatives are PyTorch's where a function has none, and round where autograd's kernels do;
// docs/gradient.md says how.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rowjit/graph.h"

namespace rowjit {

struct GradientOptions {
    std::vector<std::string> of;         // the outputs that are differentiated; empty: every float one
    std::vector<std::string> save;       // labels of values that the forward saves, if the backward reads them
    std::vector<std::string> recompute;  // labels of values that the backward computes again
    bool joint = false;                  // gradient(): the forward's outputs too, from one graph
    // Inputs that their gradient overwrites, as a training step does with logits, or values that the forward saves.
    // Where the backward's kernels cannot read everything before they write, Engine::compile refuses and names the
    // remedy.
    std::vector<std::string> in_place;
    bool unit_cotangent = false;  // d_<output> is the constant 1 and no input: the gradient of a loss
    // Integer inputs by which rows are gathered (the ids of an embedding), whose stable order the caller gives the
    // backward, as inputs "<ids>_order" and "<ids>_offsets" (row_order). Of others the backward finds it itself
    // (order), in some six kernels more.
    std::vector<std::string> sorted;
    // Inputs whose gradient is added to what its buffer holds, f32 (f64 of f64) and not rounded, as a trainer's main
    // gradients are.
    std::vector<std::string> accumulate;
};

// The positions of `ids` in the stable order of what they hold, and where in that order each of the rows 0 … rows − 1
// begins; offsets[rows] is where the last ends. Those outside belong to none.
struct RowOrder {
    std::vector<std::int64_t> order;    // as many as there are ids
    std::vector<std::int64_t> offsets;  // rows + 1
};
RowOrder row_order(std::span<const std::int64_t> ids, std::int64_t rows);

// A value that the forward stores for the backward.
struct SavedValue {
    std::string name;                // of the forward's output and the backward's input
    std::string description;         // "f32[tokens]"
    std::int64_t bytes_per_row = 0;  // of the tensor, divided by the run-time row extents it has
    bool is_output = false;          // an output of the original graph, which costs no further store
    std::string why;
};

struct RecomputedValue {
    std::string label;
    std::string why;
};

struct Differentiated {
    Graph forward;   // the original outputs, and those of `saved` that are not among them as "saved_<label>"
    Graph backward;  // inputs d_<output>, the saved values and some of the original inputs; outputs d_<input>
    std::vector<SavedValue> saved;
    std::vector<RecomputedValue> recomputed;  // labelled values of the forward that the backward computes again
};

// Forward and backward of `graph` for the gradients of `inputs`, float inputs or scalars by name, or values by their
// label; empty: every float input tensor. What is saved is a minimum cut, in bytes moved: results of reductions are
// saved, and of the rest what makes the fewest bytes beside the inputs that the backward reads. Throws
// Error(kInvalidArgument) for a name or label that is not there, naming those that are, and Error(kUnsupported) for
// what has no backward yet, or where the forward overwrites in place an input that the backward reads.
Differentiated differentiate(const Graph& graph, std::vector<std::string> inputs = {},
                             const GradientOptions& options = {});

// The backward that needs nothing saved: everything is computed again from the inputs. With `joint` the outputs of the
// forward stand before the gradients: a loss and its gradient in one pass.
Graph gradient(const Graph& graph, std::vector<std::string> inputs = {}, const GradientOptions& options = {});

}  // namespace rowjit
