// The registry's rows of losses over a head's logits.
#include "dsl/library/rows.h"

namespace rowjit {
namespace {

struct Head {
    Axis width;
    Axis vocabulary;
};

// hidden, weight, target, and the bias that the option asks for.
Results declare_head(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Head head{graph.columns("width", options.integer("hidden")), graph.columns("vocabulary", request.columns)};
    const Axis tokens = graph.rows("tokens");
    Results operands = {graph.input("hidden", request.dtype, {tokens, head.width}),
                        graph.input("weight", request.dtype, {head.vocabulary, head.width}),
                        graph.input("target", i64, {tokens})};
    if (options.flag("bias")) operands.push_back(graph.input("bias", request.dtype, {head.vocabulary}));
    return operands;
}

Results declare_cross_entropy(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = declare_head(graph, request, options);
    const std::string_view weights = options.choice("weights");
    if (weights == "classes" || weights == "both") {
        operands.push_back(graph.input("class_weight", f32, {graph.columns("vocabulary", request.columns)}));
    }
    if (weights == "tokens" || weights == "both")
        operands.push_back(graph.input("token_weight", f32, {graph.rows("tokens")}));
    return operands;
}

Results apply_cross_entropy(Operands in, const OptionValues& options) {
    std::size_t next = 3;
    const auto take = [&](bool there) { return there ? operand(in, next++) : std::nullopt; };
    const std::optional<Value> bias = take(options.flag("bias"));
    const std::string_view given = options.choice("weights");
    CrossEntropyWeights weights;
    weights.classes = take(given == "classes" || given == "both");
    weights.tokens = take(given == "tokens" || given == "both");
    return cross_entropy_results(
        fused_linear_cross_entropy(in[0], in[1], in[2], bias, cross_entropy_options(options), weights), options);
}

constexpr OptionInfo kHidden = {"hidden", OptionType::kInteger, "64", "", true, "the width of a hidden state"};
constexpr OptionInfo kBias = {
    "bias", OptionType::kFlag, "false", "", false, "whether there is a bias behind the target"};

CompositeInfo cross_entropy_row() {
    std::vector<OptionInfo> options = {kHidden, kBias};
    for (const OptionInfo& option : cross_entropy_option_rows()) options.push_back(option);
    return {"fused_linear_cross_entropy",
            "cross-entropy of a head's logits, which are never held whole",
            "loss = log Σ exp(x) − x[target], x = weight·hidden + bias",
            "vocabulary",
            {{"hidden", "{tokens, hidden}", "dtype", true},
             {"weight", "{columns, hidden}", "dtype", true},
             {"target", "{tokens}", "i64 or i32", true, true},
             {"bias", "{columns}", "dtype", false},
             {"class_weight", "{columns}", "any float", false, true},
             {"token_weight", "{tokens}", "any float", false, true}},
            cross_entropy_result_names(),
            std::move(options),
            declare_cross_entropy,
            apply_cross_entropy};
}

}  // namespace

std::vector<CompositeInfo> linear_rows() { return {cross_entropy_row()}; }

}  // namespace rowjit
