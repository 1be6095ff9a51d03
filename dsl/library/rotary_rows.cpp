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

Results declare_rope_positions(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Axis heads = graph.columns("heads", head_count("heads", options));
    const std::int64_t rotary = options.integer("rotary") == 0 ? request.columns : options.integer("rotary");
    return {graph.input("x", request.dtype, {graph.rows("tokens"), heads, request.columns}),
            graph.input("positions", i64, {graph.rows("tokens")}),
            graph.input("inverse_frequencies", request.dtype == f64 ? f64 : f32, {(rotary + 1) / 2})};
}

Results declare_mrope(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Axis heads = graph.columns("heads", head_count("heads", options));
    const Axis streams = graph.rows("streams", 3);
    Results operands = {graph.input("x", request.dtype, {graph.rows("tokens"), heads, request.columns})};
    const std::int64_t width = options.choice("table") == "half" ? request.columns / 2 : request.columns;
    for (const std::string_view name : {"cos", "sin"}) {
        operands.push_back(graph.input(name, request.dtype, {streams, graph.rows("tokens"), width}));
    }
    return operands;
}

Results declare_rope_complex(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Axis heads = graph.columns("heads", head_count("heads", options));
    return {graph.input("x", request.dtype, {graph.rows("tokens"), heads, request.columns}),
            graph.input("rotations", request.dtype == f64 ? f64 : f32, {graph.rows("tokens"), request.columns})};
}

Results apply_rope_positions(Operands in, const OptionValues& options) {
    const RopeTables tables = rope_tables(in[1], in[2], in[0].dtype(), options.number("scaling"));
    return {rope(in[0], tables.cos, tables.sin, rope_options(options))};
}

// Sections of −1 share the pairs as Qwen2-VL's 16, 24, 24 share 64.
Results apply_mrope(Operands in, const OptionValues& options) {
    const GraphData& graph = *in[0].graph();
    const std::int64_t pairs = graph.axis(in[0].axes().back().id).extent / 2;
    MropeOptions mrope;
    const std::int64_t height = options.integer("height") < 0 ? pairs * 3 / 8 : options.integer("height");
    const std::int64_t width = options.integer("width") < 0 ? pairs * 3 / 8 : options.integer("width");
    mrope.sections = {pairs - height - width, height, width};
    mrope.layout = options.choice("layout") == "interleaved" ? MropeLayout::kInterleaved : MropeLayout::kSections;
    const Axis streams = in[1].axes().front();
    const bool both = graph.axis(in[1].axes().back().id).extent == 2 * pairs;
    return {rope(in[0], mrope_table(in[1], streams, both, mrope), mrope_table(in[2], streams, both, mrope))};
}

Results apply_rope_complex(Operands in, const OptionValues&) { return {rope_complex(in[0], in[1])}; }

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
        {"rope_positions",
         "rotary position embedding by positions and inverse frequencies",
         "y = x·cos(p·f) + partner(x)·sin(p·f)",
         "head width",
         {{"x", "{tokens, heads, columns}", "dtype", true},
          {"positions", "{tokens}", "i64", true},
          {"inverse_frequencies", "{R/2}", "f32", true, true}},
         {"y"},
         {{"scaling", OptionType::kNumber, "1", "", false, "of cosines and sines"}, kPairing, kRotary, kHeads},
         declare_rope_positions,
         apply_rope_positions},
        {"mrope",
         "rotary position embedding by three streams of positions",
         "y = x·cos[stream] + partner(x)·sin[stream], the stream of each column by its section",
         "head width",
         {{"x", "{tokens, heads, columns}", "dtype", true},
          {"cos", "{3, tokens, columns or columns/2}", "dtype", true, true},
          {"sin", "{3, tokens, columns or columns/2}", "dtype", true, true}},
         {"y"},
         {{"height", OptionType::kInteger, "-1", "", false, "pairs of the second stream; -1 for three in eight"},
          {"width", OptionType::kInteger, "-1", "", false, "pairs of the third stream; -1 for three in eight"},
          {"layout", OptionType::kChoice, "sections", "sections interleaved", false, "Qwen2-VL's or Qwen3-VL's"},
          kTable,
          kHeads},
         declare_mrope,
         apply_mrope},
        {"rope_complex",
         "Llama 4's rotary position embedding: pairs as complex numbers",
         "y₂ᵢ + i·y₂ᵢ₊₁ = (x₂ᵢ + i·x₂ᵢ₊₁)·rotation",
         "head width",
         {{"x", "{tokens, heads, columns}", "dtype", true}, {"rotations", "{tokens, columns}", "f32", true, true}},
         {"y"},
         {kHeads},
         declare_rope_complex,
         apply_rope_complex},
    };
}

}  // namespace rowjit
