// The registry's rows of preference and policy losses. Their canonical graphs have a sequence in each row and its
// tokens in the columns; the reduction of a sequence is part of them.
#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/rows.h"

namespace rowjit {
namespace {

// The position of the option's value among `words`, which stand in the order of the enumerators of E.
template <class E, std::size_t N>
E enumerator(const OptionValues& options, std::string_view option, const std::string_view (&words)[N]) {
    const auto found = std::find(std::begin(words), std::end(words), options.choice(option));
    RJ_CHECK(found != std::end(words), "option {} is {}", option, options.choice(option));
    return static_cast<E>(found - std::begin(words));
}

constexpr std::string_view kDpoWords[] = {"sigmoid",  "hinge",    "ipo",       "exo_pair", "nca_pair",
                                          "robust",   "bco_pair", "sppo_hard", "apo_zero", "apo_down",
                                          "discopop", "aot",      "aot_pair"};
constexpr std::string_view kDivergenceWords[] = {"reverse_kl", "js", "alpha"};
constexpr std::string_view kCpoWords[] = {"sigmoid", "hinge", "ipo", "simpo"};
constexpr std::string_view kPolicyWords[] = {"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo", "vespo", "sapo"};

DpoOptions dpo_options(const OptionValues& options) {
    return {.loss = enumerator<DpoLoss>(options, "loss", kDpoWords),
            .divergence = enumerator<DpoDivergence>(options, "divergence", kDivergenceWords),
            .beta = options.number("beta"),
            .label_smoothing = options.number("label_smoothing"),
            .alpha = options.number("alpha"),
            .delta = options.number("delta"),
            .tau = options.number("tau"),
            .reduction = reduction_of(options)};
}

CpoOptions cpo_options(const OptionValues& options) {
    return {.loss = enumerator<CpoLoss>(options, "loss", kCpoWords),
            .beta = options.number("beta"),
            .label_smoothing = options.number("label_smoothing"),
            .gamma = options.number("gamma"),
            .reduction = reduction_of(options)};
}

PolicyOptions policy_options(const OptionValues& options) {
    return {.loss = enumerator<PolicyLoss>(options, "loss", kPolicyWords),
            .importance = options.choice("importance") == "sequence" ? Importance::kSequence : Importance::kToken,
            .clip_low = options.number("clip_low"),
            .clip_high = options.number("clip_high"),
            .delta = options.optional_number("delta"),
            .beta = options.number("beta"),
            .max_length = options.optional_number("max_length"),
            .items = options.optional_number("items")};
}

// ---- Canonical operands ------------------------------------------------------------------------------------------

bool is_ragged(const OptionValues& options) { return options.flag("ragged"); }

// The tokens of a sequence in each row, or those of all sequences, one after the other, along `batch`.
Value tokens_input(Graph& graph, std::string_view name, Dtype dtype, const OpRequest& request,
                   const OptionValues& options, std::string_view batch = "tokens") {
    if (is_ragged(options)) return graph.input(name, dtype, {graph.rows(batch)});
    return graph.input(name, dtype, {graph.rows("tokens"), request.columns});
}

// A number of each sequence.
Value numbers_input(Graph& graph, std::string_view name, Dtype dtype, const OptionValues& options) {
    return graph.input(name, dtype, {graph.rows(is_ragged(options) ? "sequences" : "tokens")});
}

void declare_offsets(Graph& graph, const OptionValues& options, std::initializer_list<std::string_view> names,
                     Results& operands) {
    if (!is_ragged(options)) return;
    const Axis ends = graph.rows("ends", graph.rows("sequences"), 1);
    for (const std::string_view name : names) operands.push_back(graph.input(name, i64, {ends}));
}

Results declare_pair_tokens(Graph& graph, const OpRequest& request, const OptionValues& options, bool reference) {
    constexpr std::string_view kRejected = "rejected_tokens";
    const auto input = [&](std::string_view name, Dtype dtype, std::string_view batch = "tokens") {
        return tokens_input(graph, name, dtype, request, options, batch);
    };
    Results operands = {input("chosen", request.dtype), input("rejected", request.dtype, kRejected),
                        input("chosen_mask", boolean), input("rejected_mask", boolean, kRejected)};
    if (reference) {
        operands.push_back(input("reference_chosen", request.dtype));
        operands.push_back(input("reference_rejected", request.dtype, kRejected));
    }
    declare_offsets(graph, options, {"chosen_offsets", "rejected_offsets"}, operands);
    return operands;
}

Results declare_pair(Graph& graph, const OpRequest& request, const OptionValues& options) {
    return declare_pair_tokens(graph, request, options, false);
}

Results declare_dpo(Graph& graph, const OpRequest& request, const OptionValues& options) {
    return declare_pair_tokens(graph, request, options, options.flag("reference"));
}

Results declare_kto(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = {tokens_input(graph, "logp", request.dtype, request, options),
                        tokens_input(graph, "reference", request.dtype, request, options),
                        tokens_input(graph, "mask", boolean, request, options),
                        numbers_input(graph, "desirable", boolean, options)};
    if (options.flag("kl")) operands.push_back(numbers_input(graph, "kl", f32, options));
    declare_offsets(graph, options, {"offsets"}, operands);
    return operands;
}

Results declare_policy(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = {tokens_input(graph, "logp", request.dtype, request, options),
                        tokens_input(graph, "old", request.dtype, request, options),
                        numbers_input(graph, "advantage", f32, options),
                        tokens_input(graph, "mask", boolean, request, options)};
    if (options.flag("reference"))
        operands.push_back(tokens_input(graph, "reference", request.dtype, request, options));
    declare_offsets(graph, options, {"offsets"}, operands);
    return operands;
}

Results declare_sequence(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = {tokens_input(graph, "logp", request.dtype, request, options),
                        tokens_input(graph, "mask", boolean, request, options)};
    declare_offsets(graph, options, {"offsets"}, operands);
    return operands;
}

// ---- Calls -------------------------------------------------------------------------------------------------------

// A reference's log-probabilities may be of sequences already.
Value of_sequences(const Value& logp, const Value& mask, bool average) {
    return logp.axes().size() < mask.axes().size() ? logp : sequence_log_probability(logp, mask, average);
}

// A call's operands without the offsets at their end, by which it is told that sequences are ragged.
struct Batch {
    Operands in;
    std::vector<Segments> sequences;

    explicit Batch(Operands all) : in(all) {
        while (is_offsets(in.back())) in = in.first(in.size() - 1);
        for (const Value& offsets : all.subspan(in.size())) sequences.push_back(segments_of(offsets));
    }

    std::optional<Segments> segments() const {
        return sequences.empty() ? std::nullopt : std::optional(sequences.front());
    }

    // Of tokens at one position among the operands with the mask at another; `which` of two offsets is theirs.
    Value log_probability(std::size_t logp, std::size_t mask, bool average = false, std::size_t which = 0) const {
        const Value& x = in[logp];
        if (sequences.empty()) return of_sequences(x, in[mask], average);
        const Segments& segments = sequences.at(std::min(which, sequences.size() - 1));
        const bool is_number = x.axes().size() == 1 && x.axes()[0].id == segments.axis.id;
        return is_number ? x : sequence_log_probability(x, in[mask], segments, average);
    }

    // Of the operands from `first`, with the masks of the policy's.
    PreferencePair pair(std::size_t first, bool average) const {
        return {log_probability(first, 2, average), log_probability(first + 1, 3, average, 1)};
    }

  private:
    static bool is_offsets(const Value& operand) { return is_integer(operand.dtype()); }

    // The segments are an axis one shorter than their offsets.
    static Segments segments_of(const Value& offsets) {
        const GraphData& graph = *offsets.graph();
        const std::vector<Axis> axes = offsets.axes();
        const AxisInfo& ends = graph.axis(axes.empty() ? 0 : axes[0].id);
        if (axes.size() != 1 || ends.follows.size() != 1 || ends.more != 1) {
            fail(ErrorCode::kInvalidGraph, "offsets {}: declare them along Graph::rows(name, sequences, 1)",
                 offsets.description());
        }
        return {Axis{ends.follows[0]}, offsets};
    }
};

// The loss with the NLL term that the option asks for, and the rewards.
Results with_nll(Operands in, PreferenceLoss result, const OptionValues& options) {
    if (const auto weight = options.optional_number("nll")) {
        const Value scale = Graph(in[0].graph()).scalar("nll", result.loss.dtype(), *weight);
        result.loss = result.loss + scale * token_nll(in[0], in[2]);
    }
    if (!options.flag("rewards")) return {result.loss};
    return {result.loss, result.chosen_reward, result.rejected_reward};
}

Results apply_dpo(Operands in, const OptionValues& options) {
    const DpoOptions chosen = dpo_options(options);
    const bool average = chosen.loss == DpoLoss::kIpo;
    const Batch batch(in);
    std::optional<PreferencePair> reference;
    if (batch.in.size() == 6) reference = batch.pair(4, average);
    return with_nll(in, dpo(batch.pair(0, average), reference, chosen), options);
}

Results apply_cpo(Operands in, const OptionValues& options) {
    const CpoOptions chosen = cpo_options(options);
    const bool average = chosen.loss == CpoLoss::kSimpo;
    return with_nll(in, cpo(Batch(in).pair(0, average), chosen), options);
}

Results apply_orpo(Operands in, const OptionValues& options) {
    return with_nll(in, orpo(Batch(in).pair(0, true), options.number("beta"), reduction_of(options)), options);
}

Results apply_kto(Operands in, const OptionValues& options) {
    const Batch batch(in);
    return {kto(batch.log_probability(0, 2), batch.log_probability(1, 2), in[3], operand(batch.in, 4),
                {.beta = options.number("beta"),
                 .desirable_weight = options.number("desirable_weight"),
                 .undesirable_weight = options.number("undesirable_weight"),
                 .reduction = reduction_of(options)})};
}

Results apply_policy(Operands in, const OptionValues& options) {
    const Batch batch(in);
    const PolicyLossResult result =
        policy_loss(in[0], in[1], in[2], in[3], operand(batch.in, 4), policy_options(options), batch.segments());
    return {result.loss, options.flag("kl") ? result.kl.value_or(Value()) : Value()};
}

Results apply_sequence(Operands in, const OptionValues& options) {
    return {Batch(in).log_probability(0, 1, options.flag("average"))};
}

// ---- The rows ----------------------------------------------------------------------------------------------------

constexpr std::string_view kLength = "tokens of a sequence";
constexpr std::string_view kSequences = "{sequences, columns}";
constexpr std::string_view kEnds = "{sequences + 1}";
constexpr OperandInfo kMask = {"mask", kSequences, "bool", true, true};
constexpr OperandInfo kOffsets = {"offsets", kEnds, "i32 or i64", false, true};

OptionInfo number(std::string_view name, std::string_view default_value, std::string_view meaning) {
    return {name, OptionType::kNumber, default_value, "", false, meaning};
}

OptionInfo flag(std::string_view name, std::string_view default_value, bool of_graph, std::string_view meaning) {
    return {name, OptionType::kFlag, default_value, "", of_graph, meaning};
}

std::vector<OperandInfo> pair_operands(bool with_reference) {
    std::vector<OperandInfo> operands = {{"chosen", kSequences, "dtype", true},
                                         {"rejected", kSequences, "dtype", true},
                                         {"chosen_mask", kSequences, "bool", true, true},
                                         {"rejected_mask", kSequences, "bool", true, true}};
    if (with_reference) {
        operands.push_back({"reference_chosen", "{sequences, columns} or {sequences}", "dtype", false, true});
        operands.push_back({"reference_rejected", "{sequences, columns} or {sequences}", "dtype", false, true});
    }
    operands.push_back({"chosen_offsets", kEnds, "i32 or i64", false, true});
    operands.push_back({"rejected_offsets", kEnds, "i32 or i64", false, true});
    return operands;
}

OptionInfo ragged() {
    return flag("ragged", "false", true, "whether sequences of any lengths stand one after the other, by offsets");
}

std::vector<OptionInfo> pair_options(std::vector<OptionInfo> own) {
    const std::vector<OptionInfo> shared = {
        number("beta", "0.1", "β: the scale of the rewards"),
        {"reduction", OptionType::kChoice, "mean", "mean sum none", false, "over the pairs"},
        number("nll", "", "the weight of the chosen tokens' negative log-likelihood, which is added"),
        flag("rewards", "false", false, "whether the pairs' rewards are results"),
        ragged()};
    own.insert(own.end(), shared.begin(), shared.end());
    return own;
}

const std::vector<std::string_view> kPairResults = {"loss", "chosen_reward", "rejected_reward"};

CompositeInfo dpo_row() {
    return {
        "dpo",
        "direct preference optimisation and its kin, of policy and reference; c and r are the logarithms of their "
        "ratios",
        "loss = −log σ(β·(c − r)), c = Σ chosen − Σ reference_chosen, r = Σ rejected − Σ reference_rejected",
        kLength,
        pair_operands(true),
        kPairResults,
        pair_options(
            {{"loss", OptionType::kChoice, "sigmoid",
              "sigmoid hinge ipo exo_pair nca_pair robust bco_pair sppo_hard apo_zero apo_down discopop aot aot_pair",
              false, "the function of c and r"},
             {"divergence", OptionType::kChoice, "reverse_kl", "reverse_kl js alpha", false, "what c − r is of"},
             number("label_smoothing", "0", "ε: the part of the labels that is wrong"),
             number("alpha", "1", "α of the alpha divergence"),
             number("delta", "0", "δ of bco_pair"),
             number("tau", "0.05", "τ of discopop"),
             flag("reference", "true", true, "whether there is a reference")}),
        declare_dpo,
        apply_dpo};
}

CompositeInfo cpo_row() {
    return {"cpo",
            "contrastive preference optimisation and SimPO, without a reference",
            "loss = −log σ(β·(Σ chosen − Σ rejected)); simpo: −log σ(β·(mean chosen − mean rejected) − γ)",
            kLength,
            pair_operands(false),
            kPairResults,
            pair_options({{"loss", OptionType::kChoice, "sigmoid", "sigmoid hinge ipo simpo", false,
                           "the function of the difference"},
                          number("label_smoothing", "0", "ε: the part of the labels that is wrong"),
                          number("gamma", "0.5", "γ: the margin of simpo")}),
            declare_pair,
            apply_cpo};
}

CompositeInfo policy_row() {
    return {
        "policy_loss",
        "policy losses of the GRPO family",
        "loss = −min(ρ·A, clip(ρ)·A) + β·(exp(d) − d − 1), ρ = exp(logp − old), d = reference − logp",
        kLength,
        {{"logp", kSequences, "dtype", true},
         {"old", kSequences, "dtype", true, true},
         {"advantage", "{sequences}", "any float", true, true},
         kMask,
         {"reference", kSequences, "dtype", false, true},
         kOffsets},
        {"loss", "kl"},
        {{"loss", OptionType::kChoice, "grpo", "grpo bnpo dr_grpo dapo cispo luspo vespo sapo", false,
          "the tokens' loss and the mean over them"},
         {"importance", OptionType::kChoice, "token", "token sequence", false, "what has a ratio; sequence is GSPO"},
         number("clip_low", "0.2", "the ratio is clipped at 1 − clip_low"),
         number("clip_high", "0.2", "and at 1 + clip_high; of cispo at clip_high"),
         number("delta", "", "two-sided clipping: the unclipped ratio's bound"),
         number("beta", "0.04", "β: the weight of the divergence from the reference"),
         number("max_length", "", "tokens that dr_grpo divides a sequence by, instead of columns"),
         number("items", "", "tokens that dapo, cispo and vespo divide by, instead of the batch's own"),
         flag("kl", "false", false, "whether the mean divergence of a token is a second result"),
         flag("reference", "true", true, "whether there is a reference"),
         ragged()},
        declare_policy,
        apply_policy};
}

}  // namespace

std::vector<CompositeInfo> preference_rows() {
    return {
        {"sequence_log_probability",
         "log-probability of each sequence out of its tokens'",
         "y = Σ logp, over the tokens that the mask keeps",
         kLength,
         {{"logp", kSequences, "dtype", true}, kMask, kOffsets},
         {"y"},
         {flag("average", "false", false, "whether it is divided by the number of tokens"), ragged()},
         declare_sequence,
         apply_sequence},
        dpo_row(),
        cpo_row(),
        {"orpo", "odds-ratio preference optimisation, of the sequences' mean log-probabilities",
         "loss = −β·log σ(log odds(chosen) − log odds(rejected)), odds(x) = exp(x) / (1 − exp(x))", kLength,
         pair_operands(false), kPairResults, pair_options({}), declare_pair, apply_orpo},
        {"kto",
         "Kahneman-Tversky optimisation, of single sequences",
         "loss = 1 − σ(β·(x − z)), of what is not desirable 1 − σ(β·(z − x)); x = Σ logp − Σ reference, z = max(mean "
         "kl, 0)",
         kLength,
         {{"logp", kSequences, "dtype", true},
          {"reference", "{sequences, columns} or {sequences}", "dtype", true, true},
          kMask,
          {"desirable", "{sequences}", "bool", true, true},
          {"kl", "{sequences}", "any float", false, true},
          kOffsets},
         {"loss"},
         {number("beta", "0.1", "β: the scale of the rewards"), number("desirable_weight", "1", "of desirable ones"),
          number("undesirable_weight", "1", "of the others"), kReduction,
          flag("kl", "false", true, "whether there is an estimate of the divergence"), ragged()},
         declare_kto,
         apply_kto},
        policy_row(),
    };
}

}  // namespace rowjit
