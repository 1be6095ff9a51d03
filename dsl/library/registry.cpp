#include "dsl/library/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "base/fail.h"
#include "dsl/graph.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

using Operands = std::span<const Value>;
using Results = std::vector<Value>;

// ---- Words to options --------------------------------------------------------------------------------------------

std::optional<Value> operand(Operands operands, std::size_t position) {
    if (position < operands.size()) return operands[position];
    return std::nullopt;
}

RmsNormOptions rms_norm_options(const OptionValues& options) {
    const std::string_view casting = options.choice("casting");
    return {.eps = options.number("eps"),
            .offset = options.number("offset"),
            .casting = casting == "gemma"  ? Casting::kGemma
                       : casting == "none" ? Casting::kNone
                                           : Casting::kLlama};
}

SoftmaxOptions softmax_options(const OptionValues& options) {
    return {.temperature = options.optional_number("temperature"),
            .softcap = options.optional_number("softcap"),
            .result = options.optional_dtype("result")};
}

CrossEntropyOptions cross_entropy_options(const OptionValues& options) {
    const std::string_view reduction = options.choice("reduction");
    return {.ignore_index = options.integer("ignore_index"),
            .reduction = reduction == "none"  ? Reduction::kNone
                         : reduction == "sum" ? Reduction::kSum
                                              : Reduction::kMean,
            .temperature = options.optional_number("temperature"),
            .softcap = options.optional_number("softcap")};
}

RopeOptions rope_options(const OptionValues& options) {
    return {.pairing = options.choice("pairing") == "interleaved" ? RopePairing::kInterleaved : RopePairing::kHalf,
            .rotary = options.integer("rotary")};
}

Gelu gelu_form(const OptionValues& options) { return options.choice("form") == "tanh" ? Gelu::kTanh : Gelu::kErf; }

// ---- Canonical operands ------------------------------------------------------------------------------------------

Value rows_by_columns(Graph& graph, std::string_view name, const OpRequest& request) {
    return graph.input(name, request.dtype, {graph.rows("tokens"), request.columns});
}

void declare_weight(Graph& graph, const OpRequest& request, const OptionValues& options, Results& operands) {
    const std::string_view weight = options.choice("weight");
    if (weight == "none") return;
    operands.push_back(graph.input("weight", weight == "f32" ? f32 : request.dtype, {request.columns}));
}

Results declare_x(Graph& graph, const OpRequest& request, const OptionValues&) {
    return {rows_by_columns(graph, "x", request)};
}

Results declare_rms_norm(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = {rows_by_columns(graph, "x", request)};
    declare_weight(graph, request, options, operands);
    return operands;
}

Results declare_add_rms_norm(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = {rows_by_columns(graph, "x", request), rows_by_columns(graph, "residual", request)};
    declare_weight(graph, request, options, operands);
    return operands;
}

Results declare_layer_norm(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = {rows_by_columns(graph, "x", request)};
    declare_weight(graph, request, options, operands);
    if (!options.flag("bias")) return operands;
    if (operands.size() == 1) {
        fail(ErrorCode::kInvalidArgument, "layer_norm: bias=true with weight=none; give bias=false as well");
    }
    operands.push_back(graph.input("bias", operands[1].dtype(), {request.columns}));
    return operands;
}

Results declare_gated(Graph& graph, const OpRequest& request, const OptionValues& options) {
    if (options.flag("packed")) {
        return {graph.input("gate_up", request.dtype, {graph.rows("tokens"), 2 * request.columns})};
    }
    return {rows_by_columns(graph, "gate", request), rows_by_columns(graph, "up", request)};
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

Results declare_cross_entropy(Graph& graph, const OpRequest& request, const OptionValues& options) {
    return {rows_by_columns(graph, "logits", request),
            graph.input("target", parse_dtype(options.choice("target")), {graph.rows("tokens")})};
}

// ---- Calls -------------------------------------------------------------------------------------------------------

Results apply_rms_norm(Operands in, const OptionValues& options) {
    return {rms_norm(in[0], operand(in, 1), rms_norm_options(options))};
}

Results apply_add_rms_norm(Operands in, const OptionValues& options) {
    const AddRmsNorm result = add_rms_norm(in[0], in[1], operand(in, 2), rms_norm_options(options));
    return {result.sum, result.y};
}

Results apply_layer_norm(Operands in, const OptionValues& options) {
    return {layer_norm(in[0], operand(in, 1), operand(in, 2), {.eps = options.number("eps")})};
}

Results apply_softmax(Operands in, const OptionValues& options) { return {softmax(in[0], softmax_options(options))}; }

Results apply_log_softmax(Operands in, const OptionValues& options) {
    return {log_softmax(in[0], softmax_options(options))};
}

Results apply_logsumexp(Operands in, const OptionValues& options) {
    return {logsumexp(in[0], softmax_options(options))};
}

std::pair<Value, Value> gate_and_up(Operands in) {
    return in.size() == 1 ? packed_halves(in[0]) : std::pair{in[0], in[1]};
}

Results apply_swiglu(Operands in, const OptionValues&) {
    const auto [gate, up] = gate_and_up(in);
    return {swiglu(gate, up)};
}

Results apply_geglu(Operands in, const OptionValues& options) {
    const auto [gate, up] = gate_and_up(in);
    return {geglu(gate, up, gelu_form(options))};
}

Results apply_silu(Operands in, const OptionValues&) { return {silu(in[0])}; }
Results apply_gelu(Operands in, const OptionValues& options) { return {gelu(in[0], gelu_form(options))}; }
Results apply_relu2(Operands in, const OptionValues&) { return {relu2(in[0])}; }

Results apply_rope(Operands in, const OptionValues& options) {
    return {rope(in[0], in[1], in[2], rope_options(options))};
}

Results apply_rope_qk(Operands in, const OptionValues& options) {
    const RopeOptions rotation = rope_options(options);
    return {rope(in[0], in[2], in[3], rotation), rope(in[1], in[2], in[3], rotation)};
}

Results apply_cross_entropy(Operands in, const OptionValues& options) {
    const CrossEntropy result = cross_entropy(in[0], in[1], cross_entropy_options(options));
    if (options.flag("lse")) return {result.loss, result.lse};
    return {result.loss};
}

// ---- The rows ----------------------------------------------------------------------------------------------------

constexpr std::string_view kRow = "{tokens, columns}";
constexpr OperandInfo kX = {"x", kRow, "dtype", true};
constexpr OperandInfo kWeight = {"weight", "{columns}", "dtype or f32", false};
constexpr OperandInfo kGate = {"gate", kRow, "dtype", true};
constexpr OperandInfo kUp = {"up", kRow, "dtype", false};

constexpr OptionInfo kEps6 = {"eps", OptionType::kNumber, "1e-6", "", false, "added to the mean square"};
constexpr OptionInfo kEps5 = {"eps", OptionType::kNumber, "1e-5", "", false, "added to the variance"};
constexpr OptionInfo kOffset = {"offset", OptionType::kNumber, "0", "", false, "added to the weight"};
constexpr OptionInfo kCasting = {
    "casting", OptionType::kChoice,
    "llama",   "llama gemma none",
    false,     "where it rounds: the normed row before the weight, once at the end, or every step in dtype"};
constexpr OptionInfo kWeightInput = {
    "weight", OptionType::kChoice, "same", "same f32 none", true, "the weight's dtype, or no weight"};
constexpr OptionInfo kTemperature = {"temperature", OptionType::kNumber, "", "", false, "divides the logits"};
constexpr OptionInfo kSoftcap = {
    "softcap", OptionType::kNumber, "", "", false, "c: the logits become c·tanh(x/c), before the temperature"};
constexpr OptionInfo kResult = {
    "result", OptionType::kChoice, "", "bf16 f16 f32 f64", false, "the result's dtype instead of x's"};
constexpr OptionInfo kPacked = {
    "packed", OptionType::kFlag, "false", "", true, "one input gate_up {tokens, 2·columns}, the gate first"};
constexpr OptionInfo kPairing = {"pairing", OptionType::kChoice,
                                 "half",    "half interleaved",
                                 false,     "which elements turn together: d and d + R/2, or 2i and 2i + 1"};
constexpr OptionInfo kRotary = {
    "rotary", OptionType::kInteger, "0", "", false, "R: the first R elements of a head turn; 0 for all"};
constexpr OptionInfo kTable = {
    "table", OptionType::kChoice, "full", "full half", true, "cos and sin of extent R, or R/2 with one value per pair"};
constexpr OptionInfo kHeads = {"heads", OptionType::kInteger, "32", "", true, "query heads"};
constexpr OptionInfo kKvHeads = {"kv_heads", OptionType::kInteger, "8", "", true, "key heads"};

OptionInfo form(std::string_view default_form) {
    return {"form", OptionType::kChoice, default_form, "tanh erf", false, "the tanh approximation or the exact form"};
}

std::vector<CompositeInfo> make_rows() {
    const std::vector<OptionInfo> softmax_row = {kTemperature, kSoftcap, kResult};
    return {
        {"rms_norm",
         "RMS norm with the frameworks' rounding points",
         "y = x·rsqrt(mean(x²) + eps)·(offset + weight)",
         "hidden size",
         {kX, kWeight},
         {"y"},
         {kEps6, kOffset, kCasting, kWeightInput},
         declare_rms_norm,
         apply_rms_norm},
        {"add_rms_norm",
         "residual add and RMS norm of the rounded sum",
         "sum = x + residual; y = rms_norm(sum)",
         "hidden size",
         {kX, {"residual", kRow, "dtype", true}, kWeight},
         {"sum", "y"},
         {kEps6, kOffset, kCasting, kWeightInput},
         declare_add_rms_norm,
         apply_add_rms_norm},
        {"layer_norm",
         "layer norm with f32 statistics, rounded once",
         "y = (x − mean(x))·rsqrt(var(x) + eps)·weight + bias",
         "hidden size",
         {kX, kWeight, {"bias", "{columns}", "dtype or f32", false}},
         {"y"},
         {kEps5, kWeightInput, {"bias", OptionType::kFlag, "true", "", true, "whether there is a bias"}},
         declare_layer_norm,
         apply_layer_norm},
        {"softmax",
         "softmax of a row",
         "y = exp(x − max x) / Σ exp(x − max x)",
         "classes",
         {kX},
         {"y"},
         softmax_row,
         declare_x,
         apply_softmax},
        {"log_softmax",
         "logarithm of the softmax of a row",
         "y = x − max x − log Σ exp(x − max x)",
         "classes",
         {kX},
         {"y"},
         softmax_row,
         declare_x,
         apply_log_softmax},
        {"logsumexp",
         "logarithm of the sum of exponentials of a row",
         "y = max x + log Σ exp(x − max x)",
         "classes",
         {kX},
         {"y"},
         softmax_row,
         declare_x,
         apply_logsumexp},
        {"silu",
         "sigmoid-weighted linear unit",
         "y = x / (1 + exp(−x))",
         "intermediate size",
         {kX},
         {"y"},
         {},
         declare_x,
         apply_silu},
        {"gelu",
         "Gaussian error linear unit",
         "y = x/2·(1 + erf(x/√2)), or its tanh approximation",
         "intermediate size",
         {kX},
         {"y"},
         {form("erf")},
         declare_x,
         apply_gelu},
        {"relu2", "squared ReLU", "y = max(x, 0)²", "intermediate size", {kX}, {"y"}, {}, declare_x, apply_relu2},
        {"swiglu",
         "SiLU of the gate times up, the SiLU rounded first",
         "y = silu(gate)·up",
         "intermediate size",
         {kGate, kUp},
         {"y"},
         {kPacked},
         declare_gated,
         apply_swiglu},
        {"geglu",
         "GELU of the gate times up, the GELU rounded first",
         "y = gelu(gate)·up",
         "intermediate size",
         {kGate, kUp},
         {"y"},
         {form("tanh"), kPacked},
         declare_gated,
         apply_geglu},
        {"rope",
         "rotary position embedding of one tensor",
         "y = x·cos + partner(x)·sin",
         "head width",
         {{"x", "{tokens, heads, columns}", "dtype", true},
          {"cos", "{tokens, R or R/2}", "dtype", true},
          {"sin", "{tokens, R or R/2}", "dtype", true}},
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
          {"cos", "{tokens, R or R/2}", "dtype", true},
          {"sin", "{tokens, R or R/2}", "dtype", true}},
         {"q_out", "k_out"},
         {kPairing, kRotary, kTable, kHeads, kKvHeads},
         declare_rope_qk,
         apply_rope_qk},
        {"cross_entropy",
         "cross-entropy of logits and target classes",
         "loss = log Σ exp(x) − x[target]",
         "vocabulary",
         {{"logits", kRow, "dtype", true}, {"target", "{tokens}", "i64 or i32", true}},
         {"loss", "lse"},
         {{"reduction", OptionType::kChoice, "mean", "mean sum none", false, "over the rows that are not ignored"},
          {"ignore_index", OptionType::kInteger, "-100", "", false, "rows of this target contribute nothing"},
          kTemperature,
          kSoftcap,
          {"lse", OptionType::kFlag, "false", "", false, "whether the rows' log Σ exp is a second result"},
          {"target", OptionType::kChoice, "i64", "i64 i32", true, "the target's dtype"}},
         declare_cross_entropy,
         apply_cross_entropy},
    };
}

std::vector<OptionInfo> options_of_a_call(const CompositeInfo& row) {
    std::vector<OptionInfo> found;
    std::copy_if(row.options.begin(), row.options.end(), std::back_inserter(found),
                 [](const OptionInfo& option) { return !option.of_graph; });
    return found;
}

}  // namespace

std::span<const CompositeInfo> composites() {
    static const std::vector<CompositeInfo> rows = make_rows();
    return rows;
}

const CompositeInfo& find_composite(std::string_view name) {
    std::vector<std::string_view> known;
    for (const CompositeInfo& row : composites()) {
        if (row.name == name) return row;
        known.push_back(row.name);
    }
    fail(ErrorCode::kInvalidArgument, "unknown op '{}'; known: {}", name, fmt::join(known, ", "));
}

Graph make_graph(std::string_view op, const OpRequest& request) {
    const CompositeInfo& row = find_composite(op);
    if (request.columns < 1) {
        fail(ErrorCode::kInvalidArgument, "{}: {} columns; give a positive number", op, request.columns);
    }
    if (!is_float(request.dtype)) {
        fail(ErrorCode::kInvalidArgument, "{}: dtype {}; give bf16, f16, f32 or f64", op, name(request.dtype));
    }
    const OptionValues options(op, row.options, request.options);
    Graph graph;
    const Results results = row.apply(row.declare(graph, request, options), options);
    RJ_CHECK(results.size() <= row.results.size(), "{} gave {} results for {} names", op, results.size(),
             row.results.size());
    for (std::size_t i = 0; i < results.size(); ++i) graph.output(row.results[i], results[i]);
    return graph;
}

std::vector<Value> call_composite(std::string_view op, std::span<const Value> operands, const OptionMap& options) {
    const CompositeInfo& row = find_composite(op);
    const auto required = static_cast<std::size_t>(
        std::count_if(row.operands.begin(), row.operands.end(), [](const OperandInfo& o) { return o.required; }));
    if (operands.size() < required || operands.size() > row.operands.size()) {
        std::vector<std::string_view> names;
        for (const OperandInfo& info : row.operands) names.push_back(info.name);
        fail(ErrorCode::kInvalidGraph, "{}: {} operands given; it takes {}, the first {} of them required", op,
             operands.size(), fmt::join(names, ", "), required);
    }
    return row.apply(operands, OptionValues(op, options_of_a_call(row), options));
}

namespace {

// What the backward of an op's canonical graph is given.
std::string backward_markdown(const CompositeInfo& row) {
    const Differentiated both = differentiate(make_graph(row.name, {}));
    std::vector<std::string> saved;
    for (const SavedValue& value : both.saved) saved.push_back(fmt::format("{} ({})", value.name, value.description));
    std::vector<std::string> read;
    const GraphData& backward = *both.backward.data();
    for (const OperandInfo& operand : row.operands) {
        if (backward.find_input(operand.name)) read.emplace_back(operand.name);
    }
    return fmt::format("For the backward: {} saved, {} read again.",
                       saved.empty() ? "nothing" : fmt::format("{}", fmt::join(saved, ", ")), fmt::join(read, ", "));
}

}  // namespace

std::string ops_markdown() {
    constexpr std::string_view kTypes[] = {"true, false", "integer", "number"};
    std::string text =
        "# Operations\n\n"
        "Generated from dsl/library/registry.cpp; a test compares the two. Each operation is an expression of "
        "primitives\n"
        "(include/rowjit/library.h says where it rounds); `rowjit bench --op NAME --columns N --option KEY=VALUE` "
        "runs\n"
        "one, and a `.rj` file calls it by name. Options marked * choose the inputs of that canonical graph; a call in "
        "a\n"
        "`.rj` file has its operands instead.\n";
    for (const CompositeInfo& row : composites()) {
        text += fmt::format("\n## {}\n\n{}: `{}`. Columns: {}.\n\n| operand | shape | dtype |\n|---|---|---|\n",
                            row.name, row.summary, row.formula, row.columns);
        for (const OperandInfo& info : row.operands) {
            text += fmt::format("| {}{} | {} | {} |\n", info.name, info.required ? "" : " (optional)", info.shape,
                                info.dtype);
        }
        text += fmt::format("\nResults: {}. {}\n", fmt::join(row.results, ", "), backward_markdown(row));
        if (row.options.empty()) continue;
        text += "\n| option | values | default | meaning |\n|---|---|---|---|\n";
        for (const OptionInfo& option : row.options) {
            const bool choice = option.type == OptionType::kChoice;
            text += fmt::format("| {}{} | {} | {} | {} |\n", option.name, option.of_graph ? "*" : "",
                                choice ? option.choices : kTypes[static_cast<std::size_t>(option.type)],
                                option.default_value.empty() ? "absent" : option.default_value, option.meaning);
        }
    }
    return text;
}

}  // namespace rowjit
