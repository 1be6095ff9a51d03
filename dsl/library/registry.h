// The composite operations by name, a row each: what the command line lists and measures, what a .rj file may call, and
// what docs/ops.md is made of. The operations themselves are in rowjit/library.h; this file only names their operands
// and options.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/library/options.h"
#include "rowjit/graph.h"

namespace rowjit {

// Which graph of an op to make.
struct OpRequest {
    std::int64_t columns = 4096;  // what a row is wide: hidden size, head width, vocabulary, as the op's row says
    Dtype dtype = Dtype::kBf16;   // of x and of what has no dtype of its own
    OptionMap options = {};       // those that are not at their defaults
};

struct OperandInfo {
    std::string_view name;
    std::string_view shape;  // "{tokens, columns}"
    std::string_view dtype;  // "dtype" for the request's
    bool required;
    bool constant = false;  // training has no gradient for it: cosines, masks, targets, an optimizer's state
};

struct CompositeInfo {
    std::string_view name;
    std::string_view summary;  // one line
    std::string_view formula;
    std::string_view columns;           // what OpRequest::columns is
    std::vector<OperandInfo> operands;  // in the order of a call; optional ones last
    std::vector<std::string_view> results;
    std::vector<OptionInfo> options;

    // Declares the operands of the canonical graph; those left out by an option are left out at the end.
    std::vector<Value> (*declare)(Graph& graph, const OpRequest& request, const OptionValues& options);
    // The operation on `operands`; results in the order of `results`. One that an option leaves out is an empty Value,
    // or is not there at the end.
    std::vector<Value> (*apply)(std::span<const Value> operands, const OptionValues& options);
    // The operands that the results overwrite in the canonical graph, in the order of `results`; empty: none.
    std::vector<std::string_view> in_place = {};
};

std::span<const CompositeInfo> composites();

// The row of that name; throws Error(kInvalidArgument) naming the known ones.
const CompositeInfo& find_composite(std::string_view name);

// The canonical graph of an op: operands and results under the names of its row, one run-time row axis "tokens".
Graph make_graph(std::string_view op, const OpRequest& request);

// The inputs of the op's canonical graph that training wants gradients of: the float ones that are no constants. None
// when the op has no backward.
std::vector<std::string> trained_inputs(std::string_view op, const Graph& graph);

// The operation on values of a graph, as a .rj file calls it. Throws Error(kInvalidArgument) for an unknown op or
// option and Error(kInvalidGraph) for a wrong number of operands or operands that do not fit.
std::vector<Value> call_composite(std::string_view op, std::span<const Value> operands, const OptionMap& options);

// docs/ops.md, made from the rows.
std::string ops_markdown();

}  // namespace rowjit
