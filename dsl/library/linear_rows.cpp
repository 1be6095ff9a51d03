// The registry's rows of losses over a head's logits: each is a row loss of another family, whose rows of the registry
// it takes its options and its formula from, behind the products that make its operands.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/fail.h"
#include "dsl/library/operands.h"
#include "dsl/library/rows.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

// ---- What the rows have alike --------------------------------------------------------------------------------------

constexpr OptionInfo kHidden = {"hidden", OptionType::kInteger, "64", "", true, "the width of a hidden state"};
constexpr OptionInfo kBias = {"bias", OptionType::kFlag, "false", "", false, "whether each head has a bias"};
constexpr OptionInfo kLength = {"length", OptionType::kInteger, "4", "", true, "tokens of a sequence"};

constexpr OperandInfo kWeightRow = {"weight", "{columns, hidden}", "dtype", true};

// Operands one after the other, of which options say which are there.
class Given {
  public:
    explicit Given(Operands operands) : operands_(operands) {}
    Value take(std::string_view name) {
        if (const auto found = operand(operands_, next_++)) return *found;
        fail(ErrorCode::kInvalidGraph, "operand {} is not given, which the options say is there", name);
    }
    std::optional<Value> take_if(bool there, std::string_view name) {
        return there ? std::optional(take(name)) : std::nullopt;
    }

  private:
    Operands operands_;
    std::size_t next_ = 0;
};

const CompositeInfo& row_named(const std::vector<CompositeInfo>& rows, std::string_view name) {
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](const CompositeInfo& row) { return row.name == name; });
    RJ_CHECK(found != rows.end(), "no row {}", name);
    return *found;
}

bool has_option(std::string_view op, std::string_view option) {
    const std::vector<OptionInfo>& options = find_composite(op).options;
    return std::any_of(options.begin(), options.end(), [&](const OptionInfo& one) { return one.name == option; });
}

// A row loss's options for a call whose operands options tell apart: none is of the graph alone.
void append_options(const CompositeInfo& base, std::string_view without, std::vector<OptionInfo>* options) {
    for (OptionInfo option : base.options) {
        // Behind a head tokens are rows of one length.
        if (option.name == without || option.name == "ragged") continue;
        option.of_graph = false;
        options->push_back(option);
    }
}

Axis width_axis(Graph& graph, std::string_view name, const OptionValues& options, std::string_view option) {
    return graph.columns(name, options.integer(option));
}

Value declare_weight(Graph& graph, std::string_view name, const OpRequest& request, Axis width) {
    return graph.input(name, request.dtype, {graph.columns("vocabulary", request.columns), width});
}

Value declare_bias(Graph& graph, std::string_view name, const OpRequest& request) {
    return graph.input(name, request.dtype, {graph.columns("vocabulary", request.columns)});
}

// ---- Cross-entropy and log-probability -----------------------------------------------------------------------------

// hidden, weight and target.
Results declare_head(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Axis width = width_axis(graph, "width", options, "hidden");
    const Axis tokens = graph.rows("tokens");
    return {graph.input("hidden", request.dtype, {tokens, width}), declare_weight(graph, "weight", request, width),
            graph.input("target", i64, {tokens})};
}

Results declare_biased_head(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = declare_head(graph, request, options);
    if (options.flag("bias")) operands.push_back(declare_bias(graph, "bias", request));
    return operands;
}

Results declare_cross_entropy(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = declare_biased_head(graph, request, options);
    const std::string_view weights = options.choice("weights");
    if (weights == "classes" || weights == "both") {
        operands.push_back(graph.input("class_weight", f32, {graph.columns("vocabulary", request.columns)}));
    }
    if (weights == "tokens" || weights == "both")
        operands.push_back(graph.input("token_weight", f32, {graph.rows("tokens")}));
    return operands;
}

Results apply_cross_entropy(Operands in, const OptionValues& options) {
    Given given(in.subspan(3));
    const std::optional<Value> bias = given.take_if(options.flag("bias"), "bias");
    const std::string_view weighted = options.choice("weights");
    CrossEntropyWeights weights;
    weights.classes = given.take_if(weighted == "classes" || weighted == "both", "class_weight");
    weights.tokens = given.take_if(weighted == "tokens" || weighted == "both", "token_weight");
    return cross_entropy_results(
        fused_linear_cross_entropy(in[0], in[1], in[2], bias, cross_entropy_options(options), weights), options);
}

CrossEntropyOptions token_options(const OptionValues& options) {
    return {.ignore_index = options.integer("ignore_index"), .temperature = options.optional_number("temperature")};
}

Results apply_log_probability(Operands in, const OptionValues& options) {
    const FusedLogProbability result =
        fused_linear_log_probability({in[0], in[1], operand(in, 3)}, in[2], std::nullopt, token_options(options));
    return {result.logp, options.flag("entropy") ? result.entropy : Value()};
}

constexpr OptionInfo kEntropy = {
    "entropy", OptionType::kFlag, "false", "", false, "whether the tokens' entropy is a result"};
constexpr OptionInfo kLogp = {
    "logp", OptionType::kFlag, "false", "", false, "whether the tokens' log-probabilities are"};
const std::vector<OperandInfo> kHeadOperands = {{"hidden", "{tokens, hidden}", "dtype", true},
                                                kWeightRow,
                                                {"target", "{tokens}", "i64 or i32", true, true},
                                                {"bias", "{columns}", "dtype", false}};

CompositeInfo cross_entropy_row() {
    std::vector<OptionInfo> options = {kHidden, kBias};
    for (const OptionInfo& option : cross_entropy_option_rows()) options.push_back(option);
    std::vector<OperandInfo> operands = kHeadOperands;
    operands.push_back({"class_weight", "{columns}", "any float", false, true});
    operands.push_back({"token_weight", "{tokens}", "any float", false, true});
    return {"fused_linear_cross_entropy",
            "cross-entropy of a head's logits, which are never held whole",
            "loss = log Σ exp(x) − x[target], x = weight·hidden + bias",
            "vocabulary",
            std::move(operands),
            cross_entropy_result_names(),
            std::move(options),
            declare_cross_entropy,
            apply_cross_entropy};
}

CompositeInfo log_probability_row() {
    return {"fused_linear_log_probability",
            "log-probability of one class of each row under a head, whose logits are never held whole",
            "logp = x[target] − log Σ exp(x), x = weight·hidden + bias",
            "vocabulary",
            kHeadOperands,
            {"logp", "entropy"},
            {kHidden, kBias, kIgnoreIndex, kTemperature, kEntropy},
            declare_biased_head,
            apply_log_probability};
}

// ---- Distances of two heads ----------------------------------------------------------------------------------------

struct Distance {
    std::string_view name;
    std::string_view base;
};

constexpr Distance kDistances[] = {{"fused_linear_kl_div", "kl_div"},
                                   {"fused_linear_reverse_kl", "reverse_kl"},
                                   {"fused_linear_jsd", "jsd"},
                                   {"fused_linear_tvd", "tvd"},
                                   {"fused_linear_cosine_distance", "cosine_distance"}};

bool has_teacher_head(const OptionValues& options) { return options.choice("with") == "teacher_hidden"; }

Results declare_distance(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Axis tokens = graph.rows("tokens");
    const Axis width = width_axis(graph, "width", options, "hidden");
    Results operands = {graph.input("hidden", request.dtype, {tokens, width}),
                        declare_weight(graph, "weight", request, width)};
    if (has_teacher_head(options)) {
        const Axis teacher_width = width_axis(graph, "teacher_width", options, "teacher_width");
        operands.push_back(graph.input("teacher_hidden", request.dtype, {tokens, teacher_width}));
        operands.push_back(declare_weight(graph, "teacher_weight", request, teacher_width));
    } else {
        operands.push_back(
            graph.input("teacher", request.dtype, {tokens, graph.columns("vocabulary", request.columns)}));
    }
    if (options.flag("target")) operands.push_back(graph.input("target", i64, {tokens}));
    if (!options.flag("bias")) return operands;
    operands.push_back(declare_bias(graph, "bias", request));
    if (has_teacher_head(options)) operands.push_back(declare_bias(graph, "teacher_bias", request));
    return operands;
}

// Of what the loss compares: logits, or their log-probabilities.
template <std::size_t kRow>
Results apply_distance(Operands in, const OptionValues& options) {
    constexpr std::string_view kBase = kDistances[kRow].base;
    const bool of_head = has_teacher_head(options);
    Given given(in);
    const Value hidden = given.take("hidden");
    const Value weight = given.take("weight");
    const Value teacher = given.take("teacher");
    const std::optional<Value> teacher_weight = given.take_if(of_head, "teacher_weight");
    const std::optional<Value> target = given.take_if(options.flag("target"), "target");
    const std::optional<Value> bias = given.take_if(options.flag("bias"), "bias");
    const std::optional<Value> teacher_bias = given.take_if(of_head && options.flag("bias"), "teacher_bias");
    const bool of_log = has_option(kBase, "of") && options.choice("of") == "log_probabilities";
    const auto compared = [&](const Value& logits) { return of_log ? log_softmax(widen(logits)) : logits; };
    Results operands = {compared(linear(hidden, weight, bias)),
                        of_head ? compared(linear(teacher, *teacher_weight, teacher_bias)) : teacher};
    if (target) operands.push_back(*target);
    return find_composite(kBase).apply(operands, options);
}

template <std::size_t kRow>
CompositeInfo distance_row(const std::vector<CompositeInfo>& bases) {
    const CompositeInfo& base = row_named(bases, kDistances[kRow].base);
    std::vector<OptionInfo> options = {
        kHidden,
        {"teacher_width", OptionType::kInteger, "64", "", true, "the width of a hidden state of the teacher"},
        {"with", OptionType::kChoice, "teacher_hidden", "teacher_hidden teacher", false,
         "whether the teacher is hidden states and a weight, or given as what the loss compares"},
        kBias};
    append_options(base, "", &options);
    return {kDistances[kRow].name,
            base.summary,
            base.formula,
            "vocabulary",
            {{"hidden", "{tokens, hidden}", "dtype", true},
             kWeightRow,
             {"teacher or teacher_hidden", "teacher {tokens, columns}; teacher_hidden {tokens, teacher_width}", "dtype",
              false, true},
             {"teacher_weight", "{columns, teacher_width}", "dtype", false, true},
             {"target", "{tokens}", "i64 or i32", false, true},
             {"bias", "{columns}", "dtype", false},
             {"teacher_bias", "{columns}", "dtype", false, true}},
            base.results,
            std::move(options),
            declare_distance,
            apply_distance<kRow>};
}

// ---- Losses of sequences under a policy's head and a reference's
// -----------------------------------------------------

constexpr std::string_view kPairLosses[][2] = {
    {"fused_linear_dpo", "dpo"}, {"fused_linear_cpo", "cpo"}, {"fused_linear_orpo", "orpo"}};

// The row axes of a batch: of pairs the chosen half stands first.
struct Batch {
    std::vector<Axis> axes;  // the last is the tokens of a sequence
    Axis sequences;
};

Batch declare_batch(Graph& graph, const OptionValues& options, bool of_pairs) {
    Batch batch;
    if (of_pairs) batch.axes.push_back(graph.rows("half", 2));
    batch.sequences = graph.rows("tokens");
    batch.axes.push_back(batch.sequences);
    batch.axes.push_back(graph.rows("length", options.integer("length")));
    return batch;
}

Value declare_of_batch(Graph& graph, std::string_view name, Dtype dtype, const Batch& batch,
                       const std::optional<Axis>& width = std::nullopt) {
    std::vector<Dim> dims(batch.axes.begin(), batch.axes.end());
    if (width) dims.emplace_back(*width);
    return graph.input(name, dtype, dims);
}

Dtype statistics_dtype(const OpRequest& request) { return request.dtype == f64 ? f64 : f32; }

Results declare_policy_head(Graph& graph, const OpRequest& request, const OptionValues& options, const Batch& batch) {
    const Axis width = width_axis(graph, "width", options, "hidden");
    return {declare_of_batch(graph, "hidden", request.dtype, batch, width),
            declare_weight(graph, "weight", request, width), declare_of_batch(graph, "target", i64, batch)};
}

// Behind the loss's own operands: the policy's bias, and the reference.
void declare_reference(Graph& graph, const OpRequest& request, const OptionValues& options, std::string_view reference,
                       const Batch& batch, Results* operands) {
    if (options.flag("bias")) operands->push_back(declare_bias(graph, "bias", request));
    if (reference == "reference")
        operands->push_back(declare_of_batch(graph, "reference", statistics_dtype(request), batch));
    if (reference != "reference_hidden") return;
    const Axis width = width_axis(graph, "reference_width", options, "reference_width");
    operands->push_back(declare_of_batch(graph, "reference_hidden", request.dtype, batch, width));
    operands->push_back(declare_weight(graph, "reference_weight", request, width));
    if (options.flag("bias")) operands->push_back(declare_bias(graph, "reference_bias", request));
}

// The tokens under the policy's head and under the reference, if that is not given. `behind` are the operands behind
// the loss's own.
FusedLogProbability score(Operands in, Given* behind, std::string_view reference, const OptionValues& options) {
    const Head policy = {in[0], in[1], behind->take_if(options.flag("bias"), "bias")};
    if (reference != "reference_hidden") {
        FusedLogProbability scored = fused_linear_log_probability(policy, in[2], std::nullopt, token_options(options));
        scored.reference = behind->take_if(reference == "reference", "reference");
        return scored;
    }
    Head other;
    other.hidden = behind->take("reference_hidden");
    other.weight = behind->take("reference_weight");
    other.bias = behind->take_if(options.flag("bias"), "reference_bias");
    return fused_linear_log_probability(policy, in[2], other, token_options(options));
}

// The row loss's results, and the tokens' own.
Results with_tokens(Results results, std::size_t count, const FusedLogProbability& tokens,
                    const OptionValues& options) {
    results.resize(count);
    results.push_back(options.flag("logp") ? tokens.logp : Value());
    results.push_back(options.flag("entropy") ? tokens.entropy : Value());
    return results;
}

template <std::size_t kRow>
constexpr bool kHasReference = kPairLosses[kRow][1] == "dpo";

template <std::size_t kRow>
std::string_view pair_reference(const OptionValues& options) {
    return kHasReference<kRow> ? options.choice("with") : "none";
}

template <std::size_t kRow>
Results declare_pairs(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Batch batch = declare_batch(graph, options, true);
    Results operands = declare_policy_head(graph, request, options, batch);
    declare_reference(graph, request, options, pair_reference<kRow>(options), batch, &operands);
    return operands;
}

template <std::size_t kRow>
Results apply_pairs(Operands in, const OptionValues& options) {
    Given behind(in.subspan(3));
    const FusedLogProbability tokens = score(in, &behind, pair_reference<kRow>(options), options);
    const Axis half = in[2].axes().front();
    Results operands;
    const auto add_halves = [&](const Value& x) {
        for (const int i : {0, 1}) operands.push_back(index(x, half, i));
    };
    add_halves(tokens.logp);
    add_halves(tokens.counted);
    if (tokens.reference) add_halves(*tokens.reference);
    const CompositeInfo& row = find_composite(kPairLosses[kRow][1]);
    return with_tokens(row.apply(operands, options), row.results.size(), tokens, options);
}

Results declare_kto(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Batch batch = declare_batch(graph, options, false);
    Results operands = declare_policy_head(graph, request, options, batch);
    operands.push_back(graph.input("desirable", boolean, {batch.sequences}));
    if (options.flag("kl")) operands.push_back(graph.input("kl", f32, {batch.sequences}));
    declare_reference(graph, request, options, options.choice("with"), batch, &operands);
    return operands;
}

Results apply_kto(Operands in, const OptionValues& options) {
    Given behind(in.subspan(4));
    const std::optional<Value> kl = behind.take_if(options.flag("kl"), "kl");
    const FusedLogProbability tokens = score(in, &behind, options.choice("with"), options);
    Results operands = {tokens.logp, *tokens.reference, tokens.counted, in[3]};
    if (kl) operands.push_back(*kl);
    const CompositeInfo& row = find_composite("kto");
    return with_tokens(row.apply(operands, options), row.results.size(), tokens, options);
}

Results declare_policy(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Batch batch = declare_batch(graph, options, false);
    Results operands = declare_policy_head(graph, request, options, batch);
    operands.push_back(graph.input("advantage", f32, {batch.sequences}));
    if (options.flag("old")) operands.push_back(declare_of_batch(graph, "old", statistics_dtype(request), batch));
    declare_reference(graph, request, options, options.choice("with"), batch, &operands);
    return operands;
}

Results apply_policy(Operands in, const OptionValues& options) {
    Given behind(in.subspan(4));
    const std::optional<Value> old = behind.take_if(options.flag("old"), "old");
    const FusedLogProbability tokens = score(in, &behind, options.choice("with"), options);
    Results operands = {tokens.logp, old ? *old : detach(tokens.logp), in[3], tokens.counted};
    if (tokens.reference) operands.push_back(*tokens.reference);
    const CompositeInfo& row = find_composite("policy_loss");
    return with_tokens(row.apply(operands, options), row.results.size(), tokens, options);
}

// ---- Their rows ----------------------------------------------------------------------------------------------------

std::vector<OptionInfo> sequence_options(const CompositeInfo& base, std::string_view references) {
    std::vector<OptionInfo> options = {kHidden, kLength};
    if (!references.empty()) {
        options.push_back(
            {"reference_width", OptionType::kInteger, "64", "", true, "the width of a hidden state of the reference"});
        options.push_back({"with", OptionType::kChoice, "reference_hidden", references, false,
                           "whether the reference is hidden states and a weight, or its log-probabilities are given"});
    }
    for (const OptionInfo& option : {kBias, kIgnoreIndex, kTemperature, kEntropy, kLogp}) options.push_back(option);
    append_options(base, "reference", &options);
    return options;
}

// `more` are the loss's own operands, behind the target.
CompositeInfo sequence_row(std::string_view name, const CompositeInfo& base, std::string_view references,
                           const std::vector<OperandInfo>& more, bool of_pairs) {
    const std::string_view states = of_pairs ? "{2, sequences, length, hidden}" : "{sequences, length, hidden}";
    const std::string_view tokens = of_pairs ? "{2, sequences, length}" : "{sequences, length}";
    std::vector<OperandInfo> operands = {
        {"hidden", states, "dtype", true}, kWeightRow, {"target", tokens, "i64 or i32", true, true}};
    operands.insert(operands.end(), more.begin(), more.end());
    operands.push_back({"bias", "{columns}", "dtype", false});
    if (!references.empty()) {
        operands.push_back({"reference or reference_hidden",
                            of_pairs ? "reference {2, sequences, length}; reference_hidden {2, sequences, length, "
                                       "reference_width}"
                                     : "reference {sequences, length}; reference_hidden {sequences, length, "
                                       "reference_width}",
                            "dtype; reference f32 (f64)", false, true});
        operands.push_back({"reference_weight", "{columns, reference_width}", "dtype", false, true});
        operands.push_back({"reference_bias", "{columns}", "dtype", false, true});
    }
    std::vector<std::string_view> results = base.results;
    for (const std::string_view result : {"logp", "entropy"}) results.push_back(result);
    return {name,
            base.summary,
            base.formula,
            "vocabulary",
            std::move(operands),
            std::move(results),
            sequence_options(base, references),
            nullptr,
            nullptr};
}

template <std::size_t kRow>
CompositeInfo pair_row(const std::vector<CompositeInfo>& bases) {
    const auto [name, base] = kPairLosses[kRow];
    CompositeInfo row = sequence_row(name, row_named(bases, base),
                                     kHasReference<kRow> ? "reference_hidden reference none" : "", {}, true);
    row.declare = declare_pairs<kRow>;
    row.apply = apply_pairs<kRow>;
    return row;
}

CompositeInfo kto_row(const std::vector<CompositeInfo>& bases) {
    CompositeInfo row = sequence_row(
        "fused_linear_kto", row_named(bases, "kto"), "reference_hidden reference",
        {{"desirable", "{sequences}", "bool", true, true}, {"kl", "{sequences}", "any float", false, true}}, false);
    row.declare = declare_kto;
    row.apply = apply_kto;
    return row;
}

CompositeInfo policy_row(const std::vector<CompositeInfo>& bases) {
    CompositeInfo row =
        sequence_row("fused_linear_policy_loss", row_named(bases, "policy_loss"), "reference_hidden reference none",
                     {{"advantage", "{sequences}", "any float", true, true},
                      {"old", "{sequences, length}", "f32 (f64)", false, true}},
                     false);
    row.options.push_back(
        {"old", OptionType::kFlag, "true", "", false,
         "whether the sampling policy's log-probabilities are given; else they are the policy's own"});
    row.declare = declare_policy;
    row.apply = apply_policy;
    return row;
}

template <std::size_t... kRow>
void add_distances(std::vector<CompositeInfo>* rows, std::index_sequence<kRow...>) {
    const std::vector<CompositeInfo> bases = distillation_rows();
    (rows->push_back(distance_row<kRow>(bases)), ...);
}

template <std::size_t... kRow>
void add_pair_losses(std::vector<CompositeInfo>* rows, const std::vector<CompositeInfo>& bases,
                     std::index_sequence<kRow...>) {
    (rows->push_back(pair_row<kRow>(bases)), ...);
}

}  // namespace

std::vector<CompositeInfo> linear_rows() {
    std::vector<CompositeInfo> rows = {cross_entropy_row(), log_probability_row()};
    add_distances(&rows, std::make_index_sequence<std::size(kDistances)>());
    const std::vector<CompositeInfo> bases = preference_rows();
    add_pair_losses(&rows, bases, std::make_index_sequence<std::size(kPairLosses)>());
    rows.push_back(kto_row(bases));
    rows.push_back(policy_row(bases));
    return rows;
}

}  // namespace rowjit
