// Quantisation as rows of the registry.
#include <string_view>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/rows.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

Dtype scale_dtype(Dtype dtype) { return dtype == f64 ? f64 : f32; }

// The axes of a row, and of its scales: one for a row, or one for every `block` columns.
struct QuantizedAxes {
    std::vector<Dim> row;
    std::vector<Dim> scales;
};

QuantizedAxes axes_of(Graph& graph, const OpRequest& request, const OptionValues& options, std::string_view op) {
    const std::int64_t block = options.integer("block");
    const Axis tokens = graph.rows("tokens");
    if (block == 0) return {{tokens, request.columns}, {tokens}};
    if (block < 0 || request.columns % block != 0) {
        fail(ErrorCode::kInvalidArgument, "{}: blocks of {} in {} columns; give a divisor of them, or 0", op, block,
             request.columns);
    }
    const Axis blocks = graph.columns("blocks", request.columns / block);
    return {{tokens, blocks, graph.columns("within", block)}, {tokens, blocks}};
}

Dtype code_dtype(const OptionValues& options) { return parse_dtype(options.choice("codes")); }

Results declare_quantize(Graph& graph, const OpRequest& request, const OptionValues& options) {
    return {graph.input("x", request.dtype, axes_of(graph, request, options, "quantize").row)};
}

Results declare_dequantize(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const QuantizedAxes axes = axes_of(graph, request, options, "dequantize");
    return {graph.input("codes", code_dtype(options), axes.row),
            graph.input("scale", scale_dtype(request.dtype), axes.scales)};
}

// With more than one column axis the last is a block's.
Results apply_quantize(Operands in, const OptionValues& options) {
    const GraphData& graph = *in[0].graph();
    const bool blocks = graph.column_axes(graph.node(in[0].id())).size() > 1;
    const Quantized result = quantize(in[0], {.codes = code_dtype(options), .blocks = blocks});
    return {result.codes, result.scale};
}

Results apply_dequantize(Operands in, const OptionValues& options) {
    return {dequantize(in[0], in[1], options.optional_dtype("result").value_or(in[1].dtype()))};
}

constexpr OptionInfo kBlock = {
    "block", OptionType::kInteger, "0", "", true, "columns that share a scale; 0 for the row"};

}  // namespace

std::vector<CompositeInfo> quantize_rows() {
    return {
        {"quantize",
         "codes of eight bits and a scale by the largest magnitude",
         "scale = max |x| / greatest code; codes = x / scale, rounded to the codes' dtype",
         "hidden size",
         {{"x", kRow, "dtype", true, true}},
         {"codes", "scale"},
         {kBlock, {"codes", OptionType::kChoice, "i8", "i8 e4m3 e5m2", false, "what the codes are stored in"}},
         declare_quantize,
         apply_quantize},
        {"dequantize",
         "values of codes and their scale",
         "y = codes·scale",
         "hidden size",
         {{"codes", kRow, "i8, e4m3 or e5m2", true, true}, {"scale", "{tokens}", "f32", true, true}},
         {"y"},
         {kBlock,
          {"codes", OptionType::kChoice, "i8", "i8 e4m3 e5m2", true, "what the codes are stored in"},
          {"result", OptionType::kChoice, "", "bf16 f16 f32 f64", false, "the result's dtype instead of the scale's"}},
         declare_dequantize,
         apply_dequantize},
    };
}

}  // namespace rowjit
