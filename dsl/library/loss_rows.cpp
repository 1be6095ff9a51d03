// The registry's rows of softmax and of the losses over logits and targets.
#include <algorithm>
#include <string>

#include "dsl/graph.h"
#include "dsl/library/rows.h"

namespace rowjit {
namespace {

// ---- Words to options --------------------------------------------------------------------------------------------

bool has_word(const OptionValues& options, std::string_view option, std::string_view word) {
    return options.choice(option) == word;
}

SoftmaxOptions softmax_options(const OptionValues& options) {
    SoftmaxOptions chosen = {.temperature = options.optional_number("temperature"),
                             .softcap = options.optional_number("softcap"),
                             .result = options.optional_dtype("result")};
    if (options.flag("causal")) chosen.causal_offset = options.integer("causal_offset");
    return chosen;
}

// Which operand beside x the call has.
SoftmaxOperands softmax_operands(Operands in, const OptionValues& options) {
    SoftmaxOperands operands;
    if (has_word(options, "with", "bias")) operands.bias = operand(in, 1);
    if (has_word(options, "with", "mask")) operands.mask = operand(in, 1);
    if (has_word(options, "with", "sink")) operands.sink = operand(in, 1);
    return operands;
}

CrossEntropyWeights cross_entropy_weights(Operands in, const OptionValues& options) {
    CrossEntropyWeights weights;
    if (has_word(options, "weights", "classes")) weights.classes = operand(in, 2);
    if (has_word(options, "weights", "tokens")) weights.tokens = operand(in, 2);
    if (!has_word(options, "weights", "both")) return weights;
    return {operand(in, 2), operand(in, 3)};
}

// ---- Canonical operands ------------------------------------------------------------------------------------------

Results declare_softmax(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = declare_x(graph, request, options);
    if (has_word(options, "with", "bias")) operands.push_back(rows_by_columns(graph, "bias", request));
    if (has_word(options, "with", "mask")) {
        operands.push_back(graph.input("mask", boolean, {graph.rows("tokens"), request.columns}));
    }
    if (has_word(options, "with", "sink")) {
        operands.push_back(graph.input("sink", request.dtype, {graph.rows("tokens")}));
    }
    return operands;
}

Results declare_logits_and_target(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Value logits = rows_by_columns(graph, "logits", request);
    if (has_word(options, "target", "probabilities")) return {logits, rows_by_columns(graph, "target", request)};
    return {logits, graph.input("target", parse_dtype(options.choice("target")), {graph.rows("tokens")})};
}

Results declare_cross_entropy(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = declare_logits_and_target(graph, request, options);
    const bool both = has_word(options, "weights", "both");
    if (both || has_word(options, "weights", "classes")) {
        operands.push_back(graph.input("class_weight", f32, {request.columns}));
    }
    if (both || has_word(options, "weights", "tokens")) {
        operands.push_back(graph.input("token_weight", f32, {graph.rows("tokens")}));
    }
    return operands;
}

Results declare_combine(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Dtype dtype = request.dtype == f64 ? f64 : f32;
    const Axis tokens = graph.rows("tokens");
    const auto parts = [&](std::string_view name) { return graph.input(name, dtype, {tokens, request.columns}); };
    Results operands = {parts("lse"), parts("target_logit"), graph.input("target", i64, {tokens})};
    if (options.optional_number("label_smoothing")) operands.push_back(parts("logit_sum"));
    if (options.flag("entropy")) operands.push_back(parts("entropy"));
    return operands;
}

// ---- Calls -------------------------------------------------------------------------------------------------------

Results apply_softmax(Operands in, const OptionValues& options) {
    return {softmax(in[0], softmax_options(options), softmax_operands(in, options))};
}

Results apply_sparsemax(Operands in, const OptionValues&) { return {sparsemax(in[0])}; }

Results apply_top_k(Operands in, const OptionValues& options) {
    const GraphData& graph = *in[0].graph();
    const TopK top = top_k(in[0], std::min(options.integer("count"), graph.column_count(graph.node(in[0].id()))));
    return {top.values, top.indices};
}

Results apply_log_softmax(Operands in, const OptionValues& options) {
    return {log_softmax(in[0], softmax_options(options), softmax_operands(in, options))};
}

Results apply_logsumexp(Operands in, const OptionValues& options) {
    return {logsumexp(in[0], softmax_options(options), softmax_operands(in, options))};
}

Results apply_cross_entropy(Operands in, const OptionValues& options) {
    CrossEntropyOptions chosen = cross_entropy_options(options);
    chosen.in_place = options.flag("in_place");
    return cross_entropy_results(cross_entropy(in[0], in[1], chosen, cross_entropy_weights(in, options)), options);
}

Results apply_selective(Operands in, const OptionValues& options) {
    const SelectiveLogProbability result = selective_log_probability(
        in[0], in[1],
        {.ignore_index = options.integer("ignore_index"), .temperature = options.optional_number("temperature")});
    return {result.logp, options.flag("entropy") ? result.entropy : Value()};
}

// What the option asks for, else nothing.
Value asked(const OptionValues& options, std::string_view flag, const std::optional<Value>& value) {
    return options.flag(flag) ? value.value_or(Value()) : Value();
}

Results apply_part(Operands in, const OptionValues& options) {
    const VocabularyPart part = vocabulary_part(
        in[0], in[1], options.integer("first_class"),
        {.temperature = options.optional_number("temperature"), .softcap = options.optional_number("softcap")});
    return {part.lse, part.target_logit, asked(options, "logit_sum", part.logit_sum),
            asked(options, "entropy", part.entropy)};
}

Results apply_combine(Operands in, const OptionValues& options) {
    const std::optional<double> smoothing = options.optional_number("label_smoothing");
    VocabularyParts parts{in[0], in[1]};
    if (smoothing) parts.logit_sum = operand(in, 3);
    if (options.flag("entropy")) parts.entropy = operand(in, smoothing ? 4 : 3);
    const CombinedVocabulary whole =
        combine_vocabulary(parts, in[0].axes().back(), in[2], options.integer("vocabulary"),
                           {.ignore_index = options.integer("ignore_index"),
                            .reduction = reduction_of(options),
                            .label_smoothing = smoothing,
                            .z_loss = options.optional_number("z_loss")});
    return {whole.loss, whole.lse, whole.z_loss.value_or(Value()), whole.entropy.value_or(Value())};
}

// ---- The rows ----------------------------------------------------------------------------------------------------

constexpr OptionInfo kSoftcap = {
    "softcap", OptionType::kNumber, "", "", false, "c: the logits become c·tanh(x/c), before the temperature"};
constexpr OptionInfo kLabelSmoothing = {
    "label_smoothing", OptionType::kNumber, "", "", false, "what of the target is spread over all classes"};
constexpr OptionInfo kZLoss = {
    "z_loss", OptionType::kNumber, "", "", false, "λ: λ·lse² is added, and is a result of its own"};
constexpr OptionInfo kTargetDtype = {"target", OptionType::kChoice, "i64", "i64 i32", true, "the target's dtype"};
constexpr OperandInfo kLogits = {"logits", kRow, "dtype", true};
constexpr OperandInfo kTarget = {"target", "{tokens}", "i64 or i32", true, true};

OptionInfo extra(std::string_view name, std::string_view meaning) {
    return {name, OptionType::kFlag, "false", "", false, meaning};
}

CompositeInfo softmax_row(std::string_view name, std::string_view summary, std::string_view formula,
                          std::vector<Value> (*apply)(Operands, const OptionValues&)) {
    return {name,
            summary,
            formula,
            "classes",
            {kX, {"bias, mask or sink", "over tokens, columns or both; sink {tokens}", "dtype; mask bool", false}},
            {"y"},
            {kTemperature,
             kSoftcap,
             {"result", OptionType::kChoice, "", "bf16 f16 f32 f64", false, "the result's dtype instead of x's"},
             {"causal", OptionType::kFlag, "false", "", false, "whether columns past row + causal_offset are left out"},
             {"causal_offset", OptionType::kInteger, "0", "", false, "columns that the first row sees before its own"},
             {"with", OptionType::kChoice, "none", "none bias mask sink", false,
              "the second operand: added to the logits, a mask that is true where they are kept, or one more logit"}},
            declare_softmax,
            apply};
}

CompositeInfo cross_entropy_row() {
    std::vector<OptionInfo> options = cross_entropy_option_rows();
    options.push_back(extra("in_place", "whether the gradient of a joint graph is to overwrite the logits"));
    options.push_back({"target", OptionType::kChoice, "i64", "i64 i32 probabilities", true, "what the target is"});
    return {"cross_entropy",
            "cross-entropy of logits and target classes or probabilities",
            "loss = log Σ exp(x) − x[target]",
            "vocabulary",
            {kLogits,
             {"target", "{tokens}; probabilities {tokens, columns}", "i64, i32; probabilities dtype", true, true},
             {"class_weight", "{columns}", "any float", false, true},
             {"token_weight", "{tokens}", "any float", false, true}},
            cross_entropy_result_names(),
            std::move(options),
            declare_cross_entropy,
            apply_cross_entropy};
}

}  // namespace

CrossEntropyOptions cross_entropy_options(const OptionValues& options) {
    return {.ignore_index = options.integer("ignore_index"),
            .reduction = reduction_of(options),
            .temperature = options.optional_number("temperature"),
            .softcap = options.optional_number("softcap"),
            .label_smoothing = options.optional_number("label_smoothing"),
            .z_loss = options.optional_number("z_loss"),
            .token_scaling = options.flag("token_scaling")};
}

Results cross_entropy_results(const CrossEntropy& result, const OptionValues& options) {
    return {result.loss,
            asked(options, "lse", result.lse),
            result.z_loss.value_or(Value()),
            asked(options, "logp", result.logp),
            asked(options, "entropy", result.entropy),
            asked(options, "argmax", result.argmax),
            asked(options, "accuracy", result.accuracy)};
}

std::vector<std::string_view> cross_entropy_result_names() {
    return {"loss", "lse", "z_loss", "logp", "entropy", "argmax", "accuracy"};
}

std::vector<OptionInfo> cross_entropy_option_rows() {
    return {
        kReduction,
        kIgnoreIndex,
        kTemperature,
        kSoftcap,
        kLabelSmoothing,
        kZLoss,
        extra("token_scaling", "whether a row's loss is multiplied by its target's probability, without a gradient"),
        {"weights", OptionType::kChoice, "none", "none classes tokens both", false, "which weights are operands"},
        extra("lse", "whether the rows' log Σ exp is a result"),
        extra("logp", "whether the target's log-probability is"),
        extra("entropy", "whether the rows' entropy is"),
        extra("argmax", "whether the rows' first greatest class is"),
        extra("accuracy", "whether the part of rows whose argmax is the target is")};
}

std::vector<CompositeInfo> softmax_and_loss_rows() {
    return {
        softmax_row("softmax", "softmax of a row", "y = exp(x − max x) / Σ exp(x − max x)", apply_softmax),
        softmax_row("log_softmax", "logarithm of the softmax of a row", "y = x − max x − log Σ exp(x − max x)",
                    apply_log_softmax),
        softmax_row("logsumexp", "logarithm of the sum of exponentials of a row", "y = max x + log Σ exp(x − max x)",
                    apply_logsumexp),
        {"sparsemax",
         "projection of a row onto the probabilities",
         "y = max(x − τ, 0), Σ y = 1",
         "vocabulary",
         {kX},
         {"y"},
         {},
         declare_x,
         apply_sparsemax},
        {"top_k",
         "the greatest elements of a row and their columns",
         "values = the `count` greatest of x, the greatest first; indices = where they are",
         "vocabulary",
         {kX},
         {"values", "indices"},
         {{"count", OptionType::kInteger, "4", "", false, "how many, at most the columns"}},
         declare_x,
         apply_top_k},
        cross_entropy_row(),
        {"selective_log_probability",
         "log-probability of one class of each row",
         "logp = x[target] − log Σ exp(x)",
         "vocabulary",
         {kLogits, kTarget},
         {"logp", "entropy"},
         {kIgnoreIndex, kTemperature, extra("entropy", "whether the rows' entropy is a second result"), kTargetDtype},
         declare_logits_and_target,
         apply_selective},
        {"vocabulary_part",
         "one rank's part of a cross-entropy whose vocabulary is divided over ranks",
         "lse = log Σ exp(x); target_logit = x[target − first_class], or 0",
         "vocabulary",
         {kLogits, kTarget},
         {"lse", "target_logit", "logit_sum", "entropy"},
         {{"first_class", OptionType::kInteger, "0", "", false, "the class of this rank's first column"},
          kTemperature,
          kSoftcap,
          extra("logit_sum", "whether the sum of the logits is a result, for label smoothing"),
          extra("entropy", "whether the entropy of the softmax over these columns is"),
          kTargetDtype},
         declare_logits_and_target,
         apply_part},
        {"combine_vocabulary",
         "the cross-entropy of rows out of the parts of all ranks",
         "loss = log Σ exp(lse) − Σ target_logit",
         "ranks",
         {{"lse", kRow, "f32 (f64)", true},
          {"target_logit", kRow, "f32 (f64)", true},
          kTarget,
          {"logit_sum", kRow, "f32 (f64)", false},
          {"entropy", kRow, "f32 (f64)", false}},
         {"loss", "total_lse", "z_loss", "total_entropy"},
         {kIgnoreIndex,
          {"vocabulary", OptionType::kInteger, "128256", "", false, "classes of all ranks together"},
          kReduction,
          kLabelSmoothing,
          kZLoss,
          {"entropy", OptionType::kFlag, "false", "", false,
           "whether the parts' entropies are given, and the whole is a result"}},
         declare_combine,
         apply_combine},
    };
}

}  // namespace rowjit
