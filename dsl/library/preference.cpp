// Preference and policy losses, from the log-probabilities of tokens.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

// log σ(x). The derivative at 0 is ½: half of the minimum's, and 0 of abs.
Value log_sigmoid(const Value& x) { return minimum(x, 0.0) - log1p(exp(-abs(x))); }

Value softplus(const Value& x) { return -log_sigmoid(-x); }

// σ(x), whose derivative stays finite where exp(−x) is not.
Value logistic(const Value& x) { return tanh(x * 0.5) * 0.5 + 0.5; }

Value squared(const Value& x) { return x * x; }

Value positive(std::string_view op, const Value& x, std::string_view name, double value) {
    return positive_scalar(op, x, name, x.dtype(), value);
}

Value smoothing(std::string_view op, const Value& x, double value, double limit) {
    if (!(value >= 0 && value < limit)) {
        fail(ErrorCode::kInvalidGraph, "{}: label_smoothing is {}; give a number from 0 to below {}", op, value, limit);
    }
    return Graph(x.graph()).scalar("label_smoothing", x.dtype(), value);
}

// Where the tokens of sequences lie: along an axis of each sequence's own, or one sequence after the other.
struct Tokens {
    Axis axis;
    std::optional<Segments> sequences = std::nullopt;
};

Tokens token_axis(std::string_view op, const Value& logp, const Value& mask,
                  const std::optional<Segments>& sequences = std::nullopt) {
    require_float(op, "logp", logp);
    require_within(op, "mask", mask, logp);
    if (logp.axes().empty() || mask.dtype() != boolean || mask.axes().size() != logp.axes().size()) {
        fail(ErrorCode::kInvalidGraph, "{}({}): mask {} must be bool and have the same axes", op, logp.description(),
             mask.description());
    }
    if (sequences && logp.axes().size() != 1) {
        fail(ErrorCode::kInvalidGraph, "{}({}): sequences that stand one after the other have one axis, the tokens'",
             op, logp.description());
    }
    return {logp.axes().back(), sequences};
}

Value zero_of(const Value& x) { return Graph(x.graph()).constant(x.dtype(), 0.0); }
Value one_of(const Value& x) { return Graph(x.graph()).constant(x.dtype(), 1.0); }

// Of the tokens that count.
Value masked_sum(const Value& x, const Value& mask, const Tokens& tokens) {
    const Value kept = select(mask, x, zero_of(x));
    return tokens.sequences ? sum(kept, tokens.axis, *tokens.sequences) : sum(kept, tokens.axis);
}

Value token_count(const Value& like, const Value& mask, const Tokens& tokens) {
    return masked_sum(one_of(like), mask, tokens).named("tokens_counted");
}

// A number of each sequence, where its tokens are.
Value at_tokens(const Value& x, const Tokens& tokens) {
    return tokens.sequences ? spread(x, tokens.axis, *tokens.sequences) : x;
}

Value over_sequences(const Value& loss, Reduction reduction) {
    return reduced(loss.named("sequence_loss"), number_of_rows(loss, loss.dtype()), reduction);
}

void require_sequences(std::string_view op, std::string_view role, const Value& x) {
    require_float(op, role, x);
    const GraphData& graph = *x.graph();
    if (!graph.column_axes(graph.node(x.id())).empty()) {
        fail(ErrorCode::kInvalidGraph, "{}: {} {} must be one number a sequence; take sequence_log_probability", op,
             role, x.description());
    }
}

PreferencePair checked(std::string_view op, const PreferencePair& pair) {
    require_sequences(op, "chosen", pair.chosen);
    require_alike(op, "rejected", pair.rejected, pair.chosen);
    return {widen(pair.chosen), widen(pair.rejected)};
}

// −(1 − ε)·log σ(x) − ε·log σ(−x)
Value smoothed_sigmoid_loss(const Value& x, const Value& epsilon) {
    return -log_sigmoid(x) * (1.0 - epsilon) - log_sigmoid(-x) * epsilon;
}

// What a DPO loss is a function of.
struct Contrast {
    Value chosen;    // c
    Value rejected;  // r
    Value logit;     // l
    Value beta;
};

Value logit_of(const PreferencePair& ratios, const DpoOptions& options) {
    const Value& c = ratios.chosen;
    const Value& r = ratios.rejected;
    if (options.divergence == DpoDivergence::kJs) return (c - r) - (softplus(c) - softplus(r));
    if (options.divergence == DpoDivergence::kReverseKl) return c - r;
    const Value alpha = positive("dpo", c, "alpha", options.alpha);
    return (exp(-(r * alpha)) - exp(-(c * alpha))) / alpha;
}

Value dpo_sigmoid(const Contrast& x, const DpoOptions& options) {
    return smoothed_sigmoid_loss(x.beta * x.logit, smoothing("dpo", x.logit, options.label_smoothing, 1));
}

Value dpo_hinge(const Contrast& x, const DpoOptions&) { return maximum(1.0 - x.beta * x.logit, 0.0); }

Value dpo_ipo(const Contrast& x, const DpoOptions&) { return squared(x.logit - 0.5 / x.beta); }

Value dpo_exo_pair(const Contrast& x, const DpoOptions& options) {
    const double given = options.label_smoothing == 0 ? 1e-3 : options.label_smoothing;
    const Value epsilon = smoothing("dpo", x.logit, given, 1);
    const Value u = x.beta * x.logit;
    return logistic(u) * (log_sigmoid(u) - log1p(-epsilon)) + logistic(-u) * (log_sigmoid(-u) - log(epsilon));
}

Value dpo_nca_pair(const Contrast& x, const DpoOptions&) {
    const Value c = x.beta * x.chosen;
    const Value r = x.beta * x.rejected;
    return -log_sigmoid(c) - 0.5 * log_sigmoid(-c) - 0.5 * log_sigmoid(-r);
}

Value dpo_robust(const Contrast& x, const DpoOptions& options) {
    const Value epsilon = smoothing("dpo", x.logit, options.label_smoothing, 0.5);
    const Value u = x.beta * x.logit;
    return (log_sigmoid(-u) * epsilon - log_sigmoid(u) * (1.0 - epsilon)) / (1.0 - 2.0 * epsilon);
}

Value dpo_bco_pair(const Contrast& x, const DpoOptions& options) {
    if (!std::isfinite(options.delta)) fail(ErrorCode::kInvalidGraph, "dpo: delta is {}; give a number", options.delta);
    const Value delta = Graph(x.logit.graph()).scalar("delta", x.logit.dtype(), options.delta);
    return -log_sigmoid(x.beta * x.chosen - delta) - log_sigmoid(delta - x.beta * x.rejected);
}

Value dpo_sppo_hard(const Contrast& x, const DpoOptions&) {
    return squared(x.chosen - 0.5 / x.beta) + squared(x.rejected + 0.5 / x.beta);
}

Value dpo_apo_zero(const Contrast& x, const DpoOptions&) {
    return (1.0 - logistic(x.beta * x.chosen)) + logistic(x.beta * x.rejected);
}

Value dpo_apo_down(const Contrast& x, const DpoOptions&) {
    return logistic(x.beta * x.chosen) + (1.0 - logistic(x.beta * (x.chosen - x.rejected)));
}

Value dpo_discopop(const Contrast& x, const DpoOptions& options) {
    const Value u = x.beta * (x.chosen - x.rejected);
    const Value modulation = logistic(u / positive("dpo", u, "tau", options.tau));
    return -log_sigmoid(u) * (1.0 - modulation) + exp(-u) * modulation;
}

// The rows of v in ascending order, by counting: a row stands where as many are before it as are less, or equal and
// earlier. No atomics and no order of execution shows.
Value ascending(const Value& v) {
    if (v.axes().size() != 1) {
        fail(ErrorCode::kInvalidGraph, "dpo: {}: pairs are put in order along one row axis; give the batch one",
             v.description());
    }
    Graph graph(v.graph());
    const Axis place = v.axes()[0];
    std::string name = graph.data()->axis(place.id).label() + "_in_order";
    const auto taken = [&](const AxisInfo& axis) { return axis.name == name; };
    while (std::any_of(graph.data()->axes().begin(), graph.data()->axes().end(), taken)) name += "_";
    const Axis row = graph.rows(name, place, 0);
    const Value moved = index(v, place, Coord(row));
    const Value here = graph.iota(place, i64);
    const Value before = v < moved || (v == moved && here < graph.iota(row, i64));
    const Value rank = sum(select(before, graph.constant(i64, 1), graph.constant(i64, 0)), place).named("rank");
    return sum(select(rank == here, moved, zero_of(v)), row).named("in_order");
}

// l of optimal transport: of the policy's and the reference's differences, or of both log-ratios.
Value transported(const PreferencePair& policy, const std::optional<PreferencePair>& reference, DpoLoss loss) {
    if (loss == DpoLoss::kAotPair) {
        if (!reference) return ascending(policy.chosen) - ascending(policy.rejected);
        return ascending(policy.chosen - reference->chosen) - ascending(policy.rejected - reference->rejected);
    }
    const Value of_policy = ascending(policy.chosen - policy.rejected);
    return reference ? of_policy - ascending(reference->chosen - reference->rejected) : of_policy;
}

using DpoFunction = Value (*)(const Contrast&, const DpoOptions&);

// In the order of DpoLoss.
constexpr DpoFunction kDpoLosses[] = {dpo_sigmoid,  dpo_hinge,    dpo_ipo,       dpo_exo_pair, dpo_nca_pair,
                                      dpo_robust,   dpo_bco_pair, dpo_sppo_hard, dpo_apo_zero, dpo_apo_down,
                                      dpo_discopop, dpo_sigmoid,  dpo_sigmoid};

// The logarithm of exp(x) / (1 − exp(x)), x held where it is finite. 1 − exp(x) is −tanh(x/2)·(1 + exp(x)), which does
// not cancel near 0.
Value log_odds(const Value& x) {
    const Value held = minimum(x, -1e-6);
    return held - log(-tanh(held * 0.5) * (exp(held) + 1.0));
}

// exp of log ρ: of each token, or the same for those of a sequence.
Value importance_ratio(const Value& log_ratio, const Value& mask, const Tokens& tokens, Importance importance) {
    if (importance == Importance::kToken) return exp(log_ratio);
    const Value counted = maximum(token_count(log_ratio, mask, tokens), 1.0);
    return at_tokens(exp(masked_sum(log_ratio, mask, tokens) / counted), tokens);
}

// φ of VESPO: the density of a gamma distribution at w, 1 at w = 1.
Value gamma_weight(const Value& log_ratio, const Value& advantage, const Value& mask, const Tokens& tokens,
                   const PolicyOptions& options) {
    const auto scalar = [&](std::string_view name, double value) {
        return positive("policy_loss", log_ratio, name, value);
    };
    const Value held = minimum(maximum(log_ratio, -20.0), 20.0);
    const Value total = minimum(maximum(masked_sum(held, mask, tokens), std::log(1e-8)), 20.0);
    const Value log_w = at_tokens(total, tokens);
    const Value is_positive = advantage >= 0.0;
    const Value k =
        select(is_positive, scalar("k_positive", options.k_positive), scalar("k_negative", options.k_negative));
    const Value lambda = select(is_positive, scalar("lambda_positive", options.lambda_positive),
                                scalar("lambda_negative", options.lambda_negative));
    return detach(exp(lambda + k * log_w - lambda * exp(log_w))).named("gamma_weight");
}

Value token_policy_loss(const Value& logp, const Value& log_ratio, const Value& advantage, const Value& mask,
                        const Tokens& tokens, const PolicyOptions& options) {
    constexpr std::string_view kOp = "policy_loss";
    if (options.loss == PolicyLoss::kVespo)
        return -gamma_weight(log_ratio, advantage, mask, tokens, options) * advantage * logp;
    const Value ratio = importance_ratio(log_ratio, mask, tokens, options.importance).named("ratio");
    const auto scalar = [&](std::string_view name, double value) {
        return non_negative_scalar(kOp, logp, name, logp.dtype(), value);
    };
    if (options.loss == PolicyLoss::kSapo) {
        const Value temperature = select(advantage > 0.0, one_of(logp), one_of(logp) * 1.05);
        return -(logistic(temperature * (ratio - 1.0)) * 4.0 / temperature) * advantage;
    }
    const Value high = scalar("clip_high", options.clip_high);
    if (options.loss == PolicyLoss::kCispo) return -detach(minimum(ratio, high)) * advantage * logp;
    const Value clipped = minimum(maximum(ratio, 1.0 - scalar("clip_low", options.clip_low)), 1.0 + high);
    const Value held = options.delta ? minimum(ratio, positive(kOp, logp, "delta", *options.delta)) : ratio;
    return -minimum(held * advantage, clipped * advantage);
}

// The tokens' losses, over the batch as the paper has it.
Value over_tokens(const Value& loss, const Value& mask, const Tokens& tokens, const PolicyOptions& options) {
    constexpr std::string_view kOp = "policy_loss";
    const Value of_sequence = masked_sum(loss, mask, tokens);
    const Value counted = token_count(loss, mask, tokens);
    const Value sequences = number_of_rows(of_sequence, loss.dtype());
    switch (options.loss) {
        case PolicyLoss::kGrpo:
        case PolicyLoss::kSapo: return sum_over_rows(of_sequence / maximum(counted, 1.0)) / sequences;
        case PolicyLoss::kLuspo: return sum_over_rows(of_sequence) / sequences;
        case PolicyLoss::kDrGrpo: {
            if (tokens.sequences && !options.max_length)
                fail(ErrorCode::kInvalidGraph, "{}: sequences of any lengths have no longest; give max_length", kOp);
            const Value length = options.max_length ? positive(kOp, loss, "max_length", *options.max_length)
                                                    : Graph(loss.graph()).extent_of(tokens.axis, loss.dtype());
            return sum_over_rows(of_sequence) / (sequences * length);
        }
        case PolicyLoss::kDapo:
        case PolicyLoss::kCispo:
        case PolicyLoss::kVespo:
            if (options.items) return sum_over_rows(of_sequence) / positive(kOp, loss, "items", *options.items);
            [[fallthrough]];
        case PolicyLoss::kBnpo: break;
    }
    return sum_over_rows(of_sequence) / maximum(sum_over_rows(counted), 1.0);
}

}  // namespace

namespace {

Value sequence_log_probability_of(const Value& logp, const Value& mask, const Tokens& tokens, bool average) {
    const Value wide_logp = widen(logp);
    const Value total = masked_sum(wide_logp, mask, tokens);
    return average ? total / maximum(token_count(wide_logp, mask, tokens), 1.0) : total;
}

}  // namespace

Value sequence_log_probability(Value logp, Value mask, bool average) {
    return sequence_log_probability_of(logp, mask, token_axis("sequence_log_probability", logp, mask), average);
}

Value sequence_log_probability(Value logp, Value mask, const Segments& sequences, bool average) {
    const Tokens tokens = token_axis("sequence_log_probability", logp, mask, sequences);
    return sequence_log_probability_of(logp, mask, tokens, average);
}

Value token_nll(Value logp, Value mask) {
    const Tokens tokens = token_axis("token_nll", logp, mask);
    const Value wide_logp = widen(logp);
    // Tokens of sequences that stand one after the other are rows themselves.
    const auto total = [](const Value& sum) { return sum.axes().empty() ? sum : sum_over_rows(sum); };
    return -total(masked_sum(wide_logp, mask, tokens)) / total(token_count(wide_logp, mask, tokens));
}

PreferencePair preference_halves(Value stacked) {
    require_float("preference_halves", "stacked", stacked);
    const GraphData& graph = *stacked.graph();
    const std::vector<AxisId>& axes = graph.node(stacked.id()).axes;
    if (axes.empty() || !graph.axis(axes.front()).is_row || graph.axis(axes.front()).extent != 2) {
        fail(ErrorCode::kInvalidGraph, "preference_halves({}): its first axis must be a row axis of extent 2",
             stacked.description());
    }
    const Axis half{axes.front()};
    return {index(stacked, half, 0), index(stacked, half, 1)};
}

PreferenceLoss dpo(const PreferencePair& policy, const std::optional<PreferencePair>& reference, DpoOptions options) {
    const PreferencePair wide_policy = checked("dpo", policy);
    std::optional<PreferencePair> wide_reference;
    PreferencePair ratios = wide_policy;
    if (reference) {
        require_alike("dpo", "the reference's chosen", reference->chosen, policy.chosen);
        wide_reference = checked("dpo", *reference);
        ratios = {ratios.chosen - wide_reference->chosen, ratios.rejected - wide_reference->rejected};
    }
    const Value beta = positive("dpo", ratios.chosen, "beta", options.beta);
    const bool transports = options.loss == DpoLoss::kAot || options.loss == DpoLoss::kAotPair;
    const Value logit = transports ? transported(wide_policy, wide_reference, options.loss) : logit_of(ratios, options);
    const Contrast contrast = {ratios.chosen, ratios.rejected, logit, beta};
    const Value loss = kDpoLosses[static_cast<std::size_t>(options.loss)](contrast, options);
    return {over_sequences(loss, options.reduction), beta * ratios.chosen, beta * ratios.rejected};
}

PreferenceLoss cpo(const PreferencePair& policy, CpoOptions options) {
    const PreferencePair pair = checked("cpo", policy);
    const Value beta = positive("cpo", pair.chosen, "beta", options.beta);
    const Value logit = pair.chosen - pair.rejected;
    const auto loss = [&]() -> Value {
        if (options.loss == CpoLoss::kHinge) return maximum(1.0 - beta * logit, 0.0);
        if (options.loss == CpoLoss::kIpo) return squared(logit - 0.5 / beta);
        const Value epsilon = smoothing("cpo", logit, options.label_smoothing, 1);
        if (options.loss == CpoLoss::kSigmoid) return smoothed_sigmoid_loss(beta * logit, epsilon);
        const Value gamma = non_negative_scalar("cpo", logit, "gamma", logit.dtype(), options.gamma);
        return smoothed_sigmoid_loss(beta * (logit - gamma / beta), epsilon);
    };
    return {over_sequences(loss(), options.reduction), beta * pair.chosen, beta * pair.rejected};
}

PreferenceLoss orpo(const PreferencePair& policy, double beta, Reduction reduction) {
    const PreferencePair pair = checked("orpo", policy);
    const Value b = positive("orpo", pair.chosen, "beta", beta);
    const Value loss = -b * log_sigmoid(log_odds(pair.chosen) - log_odds(pair.rejected));
    return {over_sequences(loss, reduction), b * pair.chosen, b * pair.rejected};
}

Value kto(Value policy, Value reference, Value desirable, const std::optional<Value>& kl, KtoOptions options) {
    require_sequences("kto", "policy", policy);
    require_alike("kto", "reference", reference, policy);
    require_within("kto", "desirable", desirable, policy);
    if (desirable.dtype() != boolean)
        fail(ErrorCode::kInvalidGraph, "kto: desirable {} must be bool", desirable.description());
    const Value ratio = widen(policy) - widen(reference);
    const Dtype dtype = ratio.dtype();
    const Value beta = positive("kto", ratio, "beta", options.beta);
    Value z = zero_of(ratio);
    if (kl) {
        require_sequences("kto", "kl", *kl);
        require_within("kto", "kl", *kl, policy);
        const Value mean_kl = sum_over_rows(cast(*kl, dtype)) / number_of_rows(*kl, dtype);
        z = detach(maximum(mean_kl, 0.0)).named("kl");
    }
    const Value desired = non_negative_scalar("kto", ratio, "desirable_weight", dtype, options.desirable_weight);
    const Value undesired = non_negative_scalar("kto", ratio, "undesirable_weight", dtype, options.undesirable_weight);
    const Value loss = select(desirable, desired * (1.0 - logistic(beta * (ratio - z))),
                              undesired * (1.0 - logistic(beta * (z - ratio))));
    return over_sequences(loss, options.reduction);
}

PolicyLossResult policy_loss(Value logp, Value old, Value advantage, Value mask, const std::optional<Value>& reference,
                             PolicyOptions options, const std::optional<Segments>& sequences) {
    constexpr std::string_view kOp = "policy_loss";
    const Tokens tokens = token_axis(kOp, logp, mask, sequences);
    require_alike(kOp, "old", old, logp);
    require_float(kOp, "advantage", advantage);
    if (!sequences) {
        require_within(kOp, "advantage", advantage, logp);
    } else if (advantage.axes().size() != 1 || advantage.axes()[0].id != sequences->axis.id) {
        fail(ErrorCode::kInvalidGraph, "{}: advantage {} must be one number a sequence", kOp, advantage.description());
    }
    const Value policy = widen(logp);
    const Value given = at_tokens(cast(advantage, policy.dtype()), tokens);
    Value loss = token_policy_loss(policy, policy - widen(old), given, mask, tokens, options);
    PolicyLossResult result;
    if (reference) {
        require_alike(kOp, "reference", *reference, logp);
        const Value distance = widen(*reference) - policy;
        const Value kl = (exp(distance) - distance - 1.0).named("token_kl");
        loss = loss + non_negative_scalar(kOp, policy, "beta", policy.dtype(), options.beta) * kl;
        result.kl = sum_over_rows(masked_sum(kl, mask, tokens)) / sum_over_rows(token_count(kl, mask, tokens));
    }
    result.loss = over_tokens(loss, mask, tokens, options);
    return result;
}

}  // namespace rowjit
