// Rotary embeddings as rows of the registry.
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/rows.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

RopeOptions rope_options(const OptionValues& options) {
    return {.pairing = options.choice("pairing") == "interleaved" ? RopePairing::kInterleaved : RopePairing::kHalf,
            .rotary = options.integer("rotary")};
}

// The option of that name, a number of heads.
std::int64_t head_count(std::string_view option, const OptionValues& options) {
    const std::int64_t heads = options.integer(option);
    if (heads < 1) fail(ErrorCode::kInvalidArgument, "rope: option {} is {}; give a positive number", option, heads);
    return heads;
}

// cos and sin.
void declare_angles(Graph& graph, const OpRequest& request, const OptionValues& options, Results& operands) {
    const std::int64_t rotary = options.integer("rotary") == 0 ? request.columns : options.integer("rotary");
    const std::int64_t width = options.choice("table") == "half" ? rotary / 2 : rotary;
    for (const std::string_view name : {"cos", "sin"}) {
        operands.push_back(graph.input(name, request.dtype, {graph.rows("tokens"), width}));
    }
}

Results declare_rope(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Axis heads = graph.rows("heads", head_count("heads", options));
    Results operands = {graph.input("x", request.dtype, {graph.rows("tokens"), heads, request.columns})};
    declare_angles(graph, request, options, operands);
    return operands;
}

// Heads are column axes here: queries and keys then have the same rows, whatever their numbers of heads, and one kernel
// reads cos and sin once for both.
Results declare_rope_qk(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Axis heads = graph.columns("heads", head_count("heads", options));
    const Axis kv_heads = graph.columns("kv_heads", head_count("kv_heads", options));
    Results operands = {graph.input("q", request.dtype, {graph.rows("tokens"), heads, request.columns}),
                        graph.input("k", request.dtype, {graph.rows("tokens"), kv_heads, request.columns})};
    declare_angles(graph, request, options, operands);
    return operands;
}

// Each operand of rope_qk and after the queries and keys the weights {columns} of their norms.
Results declare_qk_norm_rope(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = declare_rope_qk(graph, request, options);
    for (const auto& [name, at] : {std::pair{"q_weight", 2}, std::pair{"k_weight", 3}}) {
        operands.insert(operands.begin() + at, graph.input(name, request.dtype, {request.columns}));
    }
    return operands;
}

Results apply_rope(Operands in, const OptionValues& options) {
    return {rope(in[0], in[1], in[2], rope_options(options))};
}

Results apply_rope_qk(Operands in, const OptionValues& options) {
    const RopeOptions rotation = rope_options(options);
    return {rope(in[0], in[2], in[3], rotation), rope(in[1], in[2], in[3], rotation)};
}

Results apply_qk_norm_rope(Operands in, const OptionValues& options) {
    const QueriesAndKeys result =
        qk_norm_rope(in[0], in[1], in[2], in[3], in[4], in[5],
                     {.eps = options.number("eps"), .offset = options.number("offset")}, rope_options(options));
    return {result.q, result.k};
}

constexpr OptionInfo kPairing = {"pairing", OptionType::kChoice,
                                 "half",    "half interleaved",
                                 false,     "which elements turn together: d and d + R/2, or 2i and 2i + 1"};
constexpr OptionInfo kRotary = {
    "rotary", OptionType::kInteger, "0", "", false, "R: the first R elements of a head turn; 0 for all"};
constexpr OptionInfo kTable = {
    "table", OptionType::kChoice, "full", "full half", true, "cos and sin of extent R, or R/2 with one value per pair"};
constexpr OptionInfo kHeads = {"heads", OptionType::kInteger, "32", "", true, "query heads"};
constexpr OptionInfo kKvHeads = {"kv_heads", OptionType::kInteger, "8", "", true, "key heads"};

}  // namespace

std::vector<CompositeInfo> rotary_rows() {
    return {
        {"rope",
         "rotary position embedding of one tensor",
         "y = x·cos + partner(x)·sin",
         "head width",
         {{"x", "{tokens, heads, columns}", "dtype", true},
          {"cos", "{tokens, R or R/2}", "dtype", true, true},
          {"sin", "{tokens, R or R/2}", "dtype", true, true}},
         {"y"},
         {kPairing, kRotary, kTable, kHeads},
         declare_rope,
         apply_rope},
        {"rope_qk",
         "rotary position embedding of queries and keys",
         "q_out = q·cos + partner(q)·sin; k_out = k·cos + partner(k)·sin",
         "head width",
         {{"q", "{tokens, heads, columns}", "dtype", true},
          {"k", "{tokens, kv_heads, columns}", "dtype", true},
          {"cos", "{tokens, R or R/2}", "dtype", true, true},
          {"sin", "{tokens, R or R/2}", "dtype", true, true}},
         {"q_out", "k_out"},
         {kPairing, kRotary, kTable, kHeads, kKvHeads},
         declare_rope_qk,
         apply_rope_qk},
        {"qk_norm_rope",
         "RMS norm of every head of queries and keys, then rotary position embedding",
         "q_out = rope(rms_norm(q)); k_out = rope(rms_norm(k))",
         "head width",
         {{"q", "{tokens, heads, columns}", "dtype", true},
          {"k", "{tokens, kv_heads, columns}", "dtype", true},
          {"q_weight", "{columns}", "dtype", true},
          {"k_weight", "{columns}", "dtype", true},
          {"cos", "{tokens, R or R/2}", "dtype", true, true},
          {"sin", "{tokens, R or R/2}", "dtype", true, true}},
         {"q_out", "k_out"},
         {{"eps", OptionType::kNumber, "1e-6", "", false, "added to the mean square"},
          {"offset", OptionType::kNumber, "0", "", false, "added to the weights"},
          kPairing,
          kRotary,
          kTable,
          kHeads,
          kKvHeads},
         declare_qk_norm_rope,
         apply_qk_norm_rope},
    };
}

}  // namespace rowjit
