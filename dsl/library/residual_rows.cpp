// Scaled residual sums, dropout and embeddings as rows of the registry.
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/rows.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

Results declare_scale_add(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = {rows_by_columns(graph, "x", request), rows_by_columns(graph, "residual", request)};
    if (options.flag("per_column")) operands.push_back(graph.input("scales", request.dtype, {request.columns}));
    return operands;
}

Results declare_embedding(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const std::int64_t vocabulary = options.integer("vocabulary");
    if (vocabulary < 1) {
        fail(ErrorCode::kInvalidArgument, "embedding: a vocabulary of {}; give a positive number", vocabulary);
    }
    return {graph.input("table", request.dtype, {graph.rows("vocabulary", vocabulary), request.columns}),
            graph.input("ids", parse_dtype(options.choice("ids")), {graph.rows("tokens")})};
}

Results apply_scale_add(Operands in, const OptionValues& options) {
    if (in.size() > 2) return {scale_add(in[0], in[1], in[2])};
    return {scale_add(in[0], in[1], options.number("scale"))};
}

Results declare_dropout_add(Graph& graph, const OpRequest& request, const OptionValues&) {
    return {rows_by_columns(graph, "x", request), rows_by_columns(graph, "residual", request)};
}

DropoutOptions dropout_options(const OptionValues& options) {
    return {.p = options.number("p"), .seed = options.integer("seed"), .offset = options.integer("offset")};
}

Results apply_dropout(Operands in, const OptionValues& options) { return {dropout(in[0], dropout_options(options))}; }

Results apply_dropout_add(Operands in, const OptionValues& options) {
    return {dropout_add(in[0], in[1], dropout_options(options))};
}

Results apply_embedding(Operands in, const OptionValues&) { return {embedding(in[0], in[1])}; }

// Of the dropout operations.
std::vector<OptionInfo> dropout_rows() {
    return {
        {"p", OptionType::kNumber, "0.1", "", false, "the share of elements that become 0"},
        {"seed", OptionType::kInteger, "0", "", false, "the generator's key"},
        {"offset", OptionType::kInteger, "0", "", false, "which of the seed's masks: a step's or layer's number"},
    };
}

}  // namespace

std::vector<CompositeInfo> residual_rows() {
    return {
        {"scale_add",
         "residual sum of a scaled branch",
         "y = residual + x·scale",
         "hidden size",
         {kX, {"residual", kRow, "dtype", true}, {"scales", "{columns}", "dtype", false}},
         {"y"},
         {{"scale", OptionType::kNumber, "1", "", false, "of every element, where there is no scale of each column"},
          {"per_column", OptionType::kFlag, "false", "", true, "whether every column has its scale"}},
         declare_scale_add,
         apply_scale_add},
        {"dropout",
         "dropout by a counter: the same mask for the same seed and offset on every device, computed again in the "
         "backward",
         "y = x / (1 − p) where uniform(seed, offset, position) ≥ p, else 0",
         "hidden size",
         {kX},
         {"y"},
         dropout_rows(),
         declare_x,
         apply_dropout},
        {"dropout_add",
         "residual sum of a branch under dropout",
         "y = residual + dropout(x)",
         "hidden size",
         {kX, {"residual", kRow, "dtype", true}},
         {"y"},
         dropout_rows(),
         declare_dropout_add,
         apply_dropout_add},
        {"embedding",
         "rows of a table by index",
         "y = table[ids]",
         "hidden size",
         {{"table", "{vocabulary, columns}", "dtype", true}, {"ids", "{tokens}", "i64 or i32", true}},
         {"y"},
         {{"vocabulary", OptionType::kInteger, "1000", "", true, "rows of the table"},
          {"ids", OptionType::kChoice, "i64", "i64 i32", true, "the indices' dtype"}},
         declare_embedding,
         apply_embedding},
    };
}

}  // namespace rowjit
