// Activations, alone and gated, as rows of the registry.
#include "dsl/graph.h"
#include "dsl/library/rows.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

Gelu gelu_form(const OptionValues& options) { return options.choice("form") == "tanh" ? Gelu::kTanh : Gelu::kErf; }

Results declare_gated(Graph& graph, const OpRequest& request, const OptionValues& options) {
    if (options.flag("packed")) {
        return {graph.input("gate_up", request.dtype, {graph.rows("tokens"), 2 * request.columns})};
    }
    return {rows_by_columns(graph, "gate", request), rows_by_columns(graph, "up", request)};
}

Results declare_glu(Graph& graph, const OpRequest& request, const OptionValues& options) {
    if (options.flag("packed")) return declare_gated(graph, request, options);
    return {rows_by_columns(graph, "value", request), rows_by_columns(graph, "gate", request)};
}

Results declare_plain(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = declare_x(graph, request, options);
    if (options.flag("bias")) operands.push_back(graph.input("bias", request.dtype, {request.columns}));
    return operands;
}

// With a bias {columns} as the second operand it is added first, and the sum rounded.
Value biased(Operands in) { return in.size() > 1 ? in[0] + in[1] : in[0]; }

std::pair<Value, Value> gate_and_up(Operands in) {
    return in.size() == 1 ? packed_halves(in[0]) : std::pair{in[0], in[1]};
}

Results apply_geglu(Operands in, const OptionValues& options) {
    const auto [gate, up] = gate_and_up(in);
    return {geglu(gate, up, gelu_form(options))};
}

Results apply_gelu(Operands in, const OptionValues& options) { return {gelu(biased(in), gelu_form(options))}; }

template <Value (*kFunction)(Value)>
Results apply_plain(Operands in, const OptionValues&) {
    return {kFunction(biased(in))};
}

template <Value (*kFunction)(Value, Value)>
Results apply_gated(Operands in, const OptionValues&) {
    const auto [gate, up] = gate_and_up(in);
    return {kFunction(gate, up)};
}

Results apply_clipped_swiglu(Operands in, const OptionValues& options) {
    const ClippedSwigluOptions clip = {.alpha = options.number("alpha"), .limit = options.number("limit")};
    const auto [gate, up] = in.size() > 1 ? std::pair{in[0], in[1]} : packed_pairs(in[0]);
    return {clipped_swiglu(gate, up, clip)};
}

constexpr OperandInfo kGate = {"gate", kRow, "dtype", true};
constexpr OperandInfo kUp = {"up", kRow, "dtype", false};

constexpr OperandInfo kPlainBias = {"bias", "{columns}", "dtype", false};
constexpr OptionInfo kPlainBiasInput = {
    "bias", OptionType::kFlag, "false", "", true, "whether a bias {columns} is added to x first"};

constexpr OptionInfo kPacked = {
    "packed", OptionType::kFlag, "false", "", true, "one input gate_up {tokens, 2·columns}, the gate first"};

OptionInfo form(std::string_view default_form) {
    return {"form", OptionType::kChoice, default_form, "tanh erf", false, "the tanh approximation or the exact form"};
}

}  // namespace

std::vector<CompositeInfo> activation_rows() {
    return {
        {"silu",
         "sigmoid-weighted linear unit",
         "y = x / (1 + exp(−x))",
         "intermediate size",
         {kX, kPlainBias},
         {"y"},
         {kPlainBiasInput},
         declare_plain,
         apply_plain<silu>},
        {"gelu",
         "Gaussian error linear unit",
         "y = x/2·(1 + erf(x/√2)), or its tanh approximation",
         "intermediate size",
         {kX, kPlainBias},
         {"y"},
         {form("erf"), kPlainBiasInput},
         declare_plain,
         apply_gelu},
        {"relu",
         "rectified linear unit",
         "y = max(x, 0)",
         "intermediate size",
         {kX, kPlainBias},
         {"y"},
         {kPlainBiasInput},
         declare_plain,
         apply_plain<relu>},
        {"relu2",
         "squared ReLU",
         "y = max(x, 0)²",
         "intermediate size",
         {kX, kPlainBias},
         {"y"},
         {kPlainBiasInput},
         declare_plain,
         apply_plain<relu2>},
        {"quick_gelu",
         "GELU by a sigmoid",
         "y = x / (1 + exp(−1.702·x))",
         "intermediate size",
         {kX, kPlainBias},
         {"y"},
         {kPlainBiasInput},
         declare_plain,
         apply_plain<quick_gelu>},
        {"swiglu",
         "SiLU of the gate times up, the SiLU rounded first",
         "y = silu(gate)·up",
         "intermediate size",
         {kGate, kUp},
         {"y"},
         {kPacked},
         declare_gated,
         apply_gated<swiglu>},
        {"geglu",
         "GELU of the gate times up, the GELU rounded first",
         "y = gelu(gate)·up",
         "intermediate size",
         {kGate, kUp},
         {"y"},
         {form("tanh"), kPacked},
         declare_gated,
         apply_geglu},
        {"reglu",
         "ReLU of the gate times up",
         "y = max(gate, 0)·up",
         "intermediate size",
         {kGate, kUp},
         {"y"},
         {kPacked},
         declare_gated,
         apply_gated<reglu>},
        {"glu",
         "a value times the sigmoid of its gate",
         "y = value / (1 + exp(−gate))",
         "intermediate size",
         {{"value", kRow, "dtype", true}, {"gate", kRow, "dtype", false}},
         {"y"},
         {{"packed", OptionType::kFlag, "false", "", true, "one input gate_up {tokens, 2·columns}, the value first"}},
         declare_glu,
         apply_gated<glu>},
        {"clipped_swiglu",
         "gpt-oss's gated activation, both halves clipped",
         "y = (clamp(up, ±limit) + 1)·g / (1 + exp(−alpha·g)), g = min(gate, limit)",
         "intermediate size",
         {kGate, kUp},
         {"y"},
         {{"alpha", OptionType::kNumber, "1.702", "", false, "scales the gate under the sigmoid"},
          {"limit", OptionType::kNumber, "7", "", false, "the bound of gate and up"},
          {"packed", OptionType::kFlag, "false", "", true,
           "one input gate_up {tokens, 2·columns}, the gate in the even columns"}},
         declare_gated,
         apply_clipped_swiglu},
    };
}

}  // namespace rowjit
