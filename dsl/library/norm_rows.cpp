// The norms as rows of the registry.
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/rows.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

RmsNormOptions rms_norm_options(const OptionValues& options) {
    const std::string_view casting = options.choice("casting");
    return {.eps = options.number("eps"),
            .offset = options.number("offset"),
            .casting = casting == "gemma"  ? Casting::kGemma
                       : casting == "none" ? Casting::kNone
                                           : Casting::kLlama};
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

Results declare_add_layer_norm(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = declare_layer_norm(graph, request, options);
    operands.insert(operands.begin() + 1, rows_by_columns(graph, "residual", request));
    return operands;
}

// Channels of a group along one column axis, space along the other.
Results declare_group_norm(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const std::int64_t groups = options.integer("groups");
    const std::int64_t channels = options.integer("channels");
    if (groups < 1 || channels < 1) {
        fail(ErrorCode::kInvalidArgument, "group_norm: {} groups of {} channels; give positive numbers", groups,
             channels);
    }
    const Axis group = graph.rows("groups", groups);
    const Axis channel = graph.columns("channels", channels);
    const Axis space = graph.columns("spatial", request.columns);
    return {graph.input("x", request.dtype, {graph.rows("tokens"), group, channel, space}),
            graph.input("weight", request.dtype, {group, channel}),
            graph.input("bias", request.dtype, {group, channel})};
}

Results declare_modulated(Graph& graph, const OpRequest& request, const OptionValues& options) {
    constexpr std::int64_t kBatch = 2;
    const std::string_view modulation = options.choice("modulation");
    std::vector<Dim> x = {graph.rows("tokens"), request.columns};
    std::vector<Dim> of = x;
    if (modulation == "column") of = {request.columns};
    if (modulation == "batch") {
        const Axis batch = graph.rows("batch", kBatch);
        x.insert(x.begin(), batch);
        of = {batch, request.columns};
    }
    return {graph.input("x", request.dtype, x), graph.input("scale", request.dtype, of),
            graph.input("shift", request.dtype, of)};
}

Results declare_gated_rms_norm(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = {rows_by_columns(graph, "x", request), rows_by_columns(graph, "gate", request)};
    declare_weight(graph, request, options, operands);
    return operands;
}

Results declare_poly_norm(Graph& graph, const OpRequest& request, const OptionValues&) {
    return {rows_by_columns(graph, "x", request), graph.input("weight", request.dtype, {graph.columns("powers", 3)}),
            graph.input("bias", request.dtype, {})};
}

Results declare_dynamic_tanh(Graph& graph, const OpRequest& request, const OptionValues&) {
    return {rows_by_columns(graph, "x", request), graph.input("alpha", request.dtype, {}),
            graph.input("weight", request.dtype, {request.columns}),
            graph.input("bias", request.dtype, {request.columns})};
}

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

Results apply_add_layer_norm(Operands in, const OptionValues& options) {
    const AddLayerNorm result =
        add_layer_norm(in[0], in[1], operand(in, 2), operand(in, 3), {.eps = options.number("eps")});
    return {result.sum, result.y};
}

Results apply_group_norm(Operands in, const OptionValues& options) {
    return {group_norm(in[0], operand(in, 1), operand(in, 2), {.eps = options.number("eps")})};
}

Results apply_modulated_rms_norm(Operands in, const OptionValues& options) {
    return {modulated_rms_norm(in[0], in[1], in[2], {.eps = options.number("eps")})};
}

Results apply_modulated_layer_norm(Operands in, const OptionValues& options) {
    return {modulated_layer_norm(in[0], in[1], in[2], {.eps = options.number("eps")})};
}

Results apply_gated_rms_norm(Operands in, const OptionValues& options) {
    const GateOrder order = options.choice("order") == "gate" ? GateOrder::kGateFirst : GateOrder::kNormFirst;
    return {gated_rms_norm(in[0], in[1], operand(in, 2), {.eps = options.number("eps"), .order = order})};
}

Results apply_l2_norm(Operands in, const OptionValues& options) {
    const L2Form form = options.choice("form") == "clamp" ? L2Form::kClamp : L2Form::kRsqrt;
    return {l2_norm(in[0], {.eps = options.number("eps"), .form = form})};
}

Results apply_poly_norm(Operands in, const OptionValues& options) {
    return {poly_norm(in[0], in[1], in[2], {.eps = options.number("eps")})};
}

Results apply_dynamic_tanh(Operands in, const OptionValues&) { return {dynamic_tanh(in[0], in[1], in[2], in[3])}; }

constexpr OperandInfo kResidual = {"residual", kRow, "dtype", true};
constexpr OperandInfo kBias = {"bias", "{columns}", "dtype or f32", false};
constexpr OperandInfo kScale = {"scale", "{columns}, {batch, columns} or {tokens, columns}", "dtype", true};
constexpr OperandInfo kShift = {"shift", "as scale", "dtype", true};

constexpr OptionInfo kModulation = {
    "modulation", OptionType::kChoice, "row", "column batch row", true, "what has a scale and shift of its own"};
constexpr OptionInfo kBiasInput = {"bias", OptionType::kFlag, "true", "", true, "whether there is a bias"};
constexpr OptionInfo kEps6 = {"eps", OptionType::kNumber, "1e-6", "", false, "added to the mean square"};
constexpr OptionInfo kEps5 = {"eps", OptionType::kNumber, "1e-5", "", false, "added to the variance"};
constexpr OptionInfo kOffset = {"offset", OptionType::kNumber, "0", "", false, "added to the weight"};
constexpr OptionInfo kCasting = {
    "casting", OptionType::kChoice,
    "llama",   "llama gemma none",
    false,     "where it rounds: the normed row before the weight, once at the end, or every step in dtype"};
constexpr OptionInfo kWeightInput = {
    "weight", OptionType::kChoice, "same", "same f32 none", true, "the weight's dtype, or no weight"};

}  // namespace

std::vector<CompositeInfo> norm_rows() {
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
         {kX, kResidual, kWeight},
         {"sum", "y"},
         {kEps6, kOffset, kCasting, kWeightInput},
         declare_add_rms_norm,
         apply_add_rms_norm},
        {"layer_norm",
         "layer norm with f32 statistics, rounded once",
         "y = (x − mean(x))·rsqrt(var(x) + eps)·weight + bias",
         "hidden size",
         {kX, kWeight, kBias},
         {"y"},
         {kEps5, kWeightInput, kBiasInput},
         declare_layer_norm,
         apply_layer_norm},
        {"add_layer_norm",
         "residual add and layer norm of the rounded sum",
         "sum = x + residual; y = layer_norm(sum)",
         "hidden size",
         {kX, kResidual, kWeight, kBias},
         {"sum", "y"},
         {kEps5, kWeightInput, kBiasInput},
         declare_add_layer_norm,
         apply_add_layer_norm},
        {"group_norm",
         "layer norm of each group of channels over its channels and space",
         "y = (x − mean(x))·rsqrt(var(x) + eps)·weight + bias",
         "spatial positions",
         {{"x", "{tokens, groups, channels, columns}", "dtype", true},
          {"weight", "{groups, channels}", "dtype", false},
          {"bias", "{groups, channels}", "dtype", false}},
         {"y"},
         {kEps5,
          {"groups", OptionType::kInteger, "32", "", true, "groups of channels"},
          {"channels", OptionType::kInteger, "4", "", true, "channels of a group"}},
         declare_group_norm,
         apply_group_norm},
        {"modulated_rms_norm",
         "RMS norm, scaled and shifted by what a condition gives",
         "y = x·rsqrt(mean(x²) + eps)·(1 + scale) + shift",
         "hidden size",
         {kX, kScale, kShift},
         {"y"},
         {kEps6, kModulation},
         declare_modulated,
         apply_modulated_rms_norm},
        {"modulated_layer_norm",
         "layer norm, scaled and shifted by what a condition gives",
         "y = (x − mean(x))·rsqrt(var(x) + eps)·(1 + scale) + shift",
         "hidden size",
         {kX, kScale, kShift},
         {"y"},
         {{"eps", OptionType::kNumber, "1e-6", "", false, "added to the variance"}, kModulation},
         declare_modulated,
         apply_modulated_layer_norm},
        {"gated_rms_norm",
         "RMS norm times the SiLU of a gate",
         "y = x·rsqrt(mean(x²) + eps)·weight·silu(gate)",
         "head width",
         {kX, {"gate", kRow, "dtype", true}, kWeight},
         {"y"},
         {kEps6,
          {"order", OptionType::kChoice, "norm", "norm gate", false, "which comes first; gate: rms_norm(x·silu(gate))"},
          kWeightInput},
         declare_gated_rms_norm,
         apply_gated_rms_norm},
        {"l2_norm",
         "a row divided by its Euclidean norm",
         "y = x·rsqrt(Σ x² + eps), or x / max(√Σ x², eps)",
         "head width",
         {kX},
         {"y"},
         {{"eps", OptionType::kNumber, "1e-6", "", false, "added to the sum of squares, or the least length"},
          {"form", OptionType::kChoice, "rsqrt", "rsqrt clamp", false, "flash-linear-attention's or torch's"}},
         declare_x,
         apply_l2_norm},
        {"poly_norm",
         "weighted sum of the normed cube, square and value",
         "y = w₀·n(x³) + w₁·n(x²) + w₂·n(x) + bias, n(u) = u·rsqrt(mean(u²) + eps)",
         "intermediate size",
         {kX, {"weight", "{3}", "dtype", true}, {"bias", "{}", "dtype", true}},
         {"y"},
         {kEps6},
         declare_poly_norm,
         apply_poly_norm},
        {"dynamic_tanh",
         "dynamic tanh, a norm without statistics",
         "y = tanh(alpha·x)·weight + bias",
         "hidden size",
         {kX,
          {"alpha", "{}", "dtype", true},
          {"weight", "{columns}", "dtype", true},
          {"bias", "{columns}", "dtype", true}},
         {"y"},
         {},
         declare_dynamic_tanh,
         apply_dynamic_tanh},
    };
}

}  // namespace rowjit
