// Preference and policy losses against their published formulas in plain double arithmetic.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "dsl/interpret.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"

using namespace rowjit;

namespace {

using Doubles = std::vector<double>;

constexpr std::int64_t kRows = 2;
constexpr std::int64_t kTokens = 3;

const Doubles kChosen = {-0.5, -1.25, -2, -0.25, -1, -3};
const Doubles kRejected = {-1, -0.75, -1.5, -2, -0.5, -0.25};
const Doubles kReferenceChosen = {-0.75, -1, -1.75, -0.5, -1.25, -1};
const Doubles kReferenceRejected = {-0.5, -1, -2, -1, -0.5, -0.75};
const Doubles kChosenMask = {1, 1, 0, 1, 1, 1};
const Doubles kRejectedMask = {1, 1, 1, 0, 1, 1};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double log_sigmoid(double x) { return std::log(sigmoid(x)); }

Tensor tokens(const Doubles& values) { return {f64, {kRows, kTokens}, values}; }
Tensor mask(const Doubles& values) { return {boolean, {kRows, kTokens}, values}; }

Tensors pair_inputs(bool reference) {
    Tensors tensors = {{"chosen", tokens(kChosen)},
                       {"rejected", tokens(kRejected)},
                       {"chosen_mask", mask(kChosenMask)},
                       {"rejected_mask", mask(kRejectedMask)}};
    if (!reference) return tensors;
    tensors["reference_chosen"] = tokens(kReferenceChosen);
    tensors["reference_rejected"] = tokens(kReferenceRejected);
    return tensors;
}

Tensors run(std::string_view op, const OptionMap& options, const Tensors& tensors) {
    const Graph g = make_graph(op, {.columns = kTokens, .dtype = f64, .options = options});
    return interpret(*g.data(), {tensors, {}, {{"tokens", kRows}}}, Rounding::kExact);
}

double loss_of(std::string_view op, const OptionMap& options, const Tensors& tensors) {
    return run(op, options, tensors).at("loss").values.at(0);
}

double count(const Doubles& kept, std::size_t row) { return kept[3 * row] + kept[3 * row + 1] + kept[3 * row + 2]; }

double sum(const Doubles& values, const Doubles& kept, std::size_t row) {
    double total = 0;
    for (std::size_t t = 3 * row; t < 3 * row + 3; ++t) total += kept[t] * values[t];
    return total;
}

double mean(const Doubles& values, const Doubles& kept, std::size_t row) {
    return sum(values, kept, row) / count(kept, row);
}

// The mean over both pairs of f(c, r), the policy's log-probabilities less the reference's.
double of_ratios(const std::function<double(double, double)>& f) {
    double total = 0;
    for (std::size_t row = 0; row < 2; ++row) {
        total += f(sum(kChosen, kChosenMask, row) - sum(kReferenceChosen, kChosenMask, row),
                   sum(kRejected, kRejectedMask, row) - sum(kReferenceRejected, kRejectedMask, row));
    }
    return total / 2;
}

// The mean over both sequences of f(row), with the policy's inputs of kChosen and its reference's as the old ones.
const Doubles kAdvantage = {1.5, -0.5};

Tensors policy_inputs(bool reference) {
    Tensors tensors = {{"logp", tokens(kChosen)},
                       {"old", tokens(kReferenceChosen)},
                       {"advantage", {f32, {kRows}, kAdvantage}},
                       {"mask", mask(kChosenMask)}};
    if (reference) tensors["reference"] = tokens(kRejected);
    return tensors;
}

double ratio(std::size_t i) { return std::exp(kChosen[i] - kReferenceChosen[i]); }

double clipped_loss(double rho, double advantage) {
    return -std::min(rho * advantage, std::clamp(rho, 0.8, 1.2) * advantage);
}

double k3(std::size_t i) {
    const double d = kRejected[i] - kChosen[i];
    return std::exp(d) - d - 1;
}

// Sums of f(i) over the tokens that count, for each sequence.
Doubles sums(const std::function<double(std::size_t)>& f) {
    Doubles totals(2);
    for (std::size_t i = 0; i < 6; ++i) totals[i / 3] += kChosenMask[i] * f(i);
    return totals;
}

}  // namespace

TEST_CASE("every DPO loss is its paper's function of the two log-ratios") {
    constexpr double kBeta = 0.5;
    const std::vector<std::pair<std::string, std::function<double(double, double)>>> losses = {
        {"sigmoid",
         [](double c, double r) { return -0.9 * log_sigmoid(kBeta * (c - r)) - 0.1 * log_sigmoid(-kBeta * (c - r)); }},
        {"hinge", [](double c, double r) { return std::max(0.0, 1 - kBeta * (c - r)); }},
        {"exo_pair",
         [](double c, double r) {
             const double p = sigmoid(kBeta * (c - r));
             return p * std::log(p / 0.9) + (1 - p) * std::log((1 - p) / 0.1);
         }},
        {"nca_pair",
         [](double c, double r) {
             return -log_sigmoid(kBeta * c) - log_sigmoid(-kBeta * c) / 2 - log_sigmoid(-kBeta * r) / 2;
         }},
        {"robust",
         [](double c, double r) {
             return (-0.9 * log_sigmoid(kBeta * (c - r)) + 0.1 * log_sigmoid(-kBeta * (c - r))) / 0.8;
         }},
        {"bco_pair",
         [](double c, double r) { return -log_sigmoid(kBeta * c - 0.25) - log_sigmoid(-(kBeta * r - 0.25)); }},
        {"sppo_hard", [](double c, double r) { return std::pow(c - 1, 2) + std::pow(r + 1, 2); }},
        {"apo_zero", [](double c, double r) { return 1 - sigmoid(kBeta * c) + sigmoid(kBeta * r); }},
        {"apo_down", [](double c, double r) { return sigmoid(kBeta * c) + 1 - sigmoid(kBeta * (c - r)); }},
        {"discopop", [](double c, double r) {
             const double u = kBeta * (c - r);
             const double modulation = sigmoid(u / 0.05);
             return -log_sigmoid(u) * (1 - modulation) + std::exp(-u) * modulation;
         }}};
    for (const auto& [name, f] : losses) {
        CAPTURE(name);
        const OptionMap options = {{"loss", name}, {"beta", "0.5"}, {"label_smoothing", "0.1"}, {"delta", "0.25"}};
        CHECK(loss_of("dpo", options, pair_inputs(true)) == doctest::Approx(of_ratios(f)));
    }
}

TEST_CASE("IPO is of log-probabilities averaged over the tokens") {
    double expected = 0;
    for (std::size_t row = 0; row < 2; ++row) {
        const double l = mean(kChosen, kChosenMask, row) - mean(kReferenceChosen, kChosenMask, row) -
                         mean(kRejected, kRejectedMask, row) + mean(kReferenceRejected, kRejectedMask, row);
        expected += std::pow(l - 1, 2) / 2;
    }
    CHECK(loss_of("dpo", {{"loss", "ipo"}, {"beta", "0.5"}}, pair_inputs(true)) == doctest::Approx(expected));
}

TEST_CASE("f-divergences change the logit, and rewards are beta times the ratios") {
    const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
    CHECK(loss_of("dpo", {{"divergence", "js"}}, pair_inputs(true)) ==
          doctest::Approx(
              of_ratios([&](double c, double r) { return -log_sigmoid(0.1 * (c - r - softplus(c) + softplus(r))); })));
    CHECK(loss_of("dpo", {{"divergence", "alpha"}, {"alpha", "0.5"}}, pair_inputs(true)) ==
          doctest::Approx(of_ratios(
              [](double c, double r) { return -log_sigmoid(0.1 * (std::exp(-0.5 * r) - std::exp(-0.5 * c)) / 0.5); })));
    const Tensors results = run("dpo", {{"rewards", "true"}}, pair_inputs(true));
    const Doubles rewards = results.at("chosen_reward").values;
    CHECK((rewards[0] + rewards[1]) / 2 == doctest::Approx(of_ratios([](double c, double) { return 0.1 * c; })));
}

TEST_CASE("without a reference the policy's log-probabilities stand alone, and the NLL is of the chosen tokens") {
    double expected = 0;
    double nll = 0;
    for (std::size_t row = 0; row < 2; ++row) {
        expected -= log_sigmoid(0.1 * (sum(kChosen, kChosenMask, row) - sum(kRejected, kRejectedMask, row))) / 2;
        nll -= sum(kChosen, kChosenMask, row) / 5;
    }
    CHECK(loss_of("dpo", {{"reference", "false"}}, pair_inputs(false)) == doctest::Approx(expected));
    CHECK(loss_of("cpo", {{"nll", "0.5"}}, pair_inputs(false)) == doctest::Approx(expected + 0.5 * nll));
}

TEST_CASE("SimPO is of averages with a margin, and ORPO of their odds") {
    double simpo = 0;
    double orpo = 0;
    for (std::size_t row = 0; row < 2; ++row) {
        const double c = mean(kChosen, kChosenMask, row);
        const double r = mean(kRejected, kRejectedMask, row);
        simpo -= log_sigmoid(2 * (c - r) - 0.5) / 2;
        const auto odds = [](double x) { return std::exp(x) / (1 - std::exp(x)); };
        orpo -= 0.1 * log_sigmoid(std::log(odds(c) / odds(r))) / 2;
    }
    CHECK(loss_of("cpo", {{"loss", "simpo"}, {"beta", "2"}}, pair_inputs(false)) == doctest::Approx(simpo));
    CHECK(loss_of("orpo", {}, pair_inputs(false)) == doctest::Approx(orpo));
}

TEST_CASE("KTO weighs desirable and other sequences against a divergence that has no gradient") {
    const Tensors tensors = {{"logp", tokens(kChosen)},
                             {"reference", tokens(kReferenceChosen)},
                             {"mask", mask(kChosenMask)},
                             {"desirable", {boolean, {kRows}, {1, 0}}},
                             {"kl", {f32, {kRows}, {0.75, 0.25}}}};
    const auto x = [](std::size_t row) {
        return sum(kChosen, kChosenMask, row) - sum(kReferenceChosen, kChosenMask, row);
    };
    const double expected = (2 * (1 - sigmoid(0.1 * (x(0) - 0.5))) + 3 * (1 - sigmoid(0.1 * (0.5 - x(1))))) / 2;
    const OptionMap options = {{"kl", "true"}, {"desirable_weight", "2"}, {"undesirable_weight", "3"}};
    CHECK(loss_of("kto", options, tensors) == doctest::Approx(expected));

    const Graph g = make_graph("kto", {.columns = kTokens, .dtype = f64, .options = options});
    const Graph backward = gradient(g, {"logp", "kl"}, {.unit_cotangent = true});
    const Tensors gradients = interpret(*backward.data(), {tensors, {}, {{"tokens", kRows}}}, Rounding::kExact);
    CHECK(gradients.at("d_kl").values == Doubles{0, 0});
    const double s = sigmoid(0.1 * (x(0) - 0.5));
    CHECK(gradients.at("d_logp").values[0] == doctest::Approx(-0.1 * s * (1 - s)));
    CHECK(gradients.at("d_logp").values[2] == 0);
}

TEST_CASE("the GRPO family differs in what the tokens' sum is divided by") {
    const Doubles totals = sums([](std::size_t i) { return clipped_loss(ratio(i), kAdvantage[i / 3]) + 0.04 * k3(i); });
    const double total = totals[0] + totals[1];
    const auto loss = [](const OptionMap& options) { return loss_of("policy_loss", options, policy_inputs(true)); };
    CHECK(loss({}) == doctest::Approx((totals[0] / 2 + totals[1] / 3) / 2));
    CHECK(loss({{"loss", "bnpo"}}) == doctest::Approx(total / 5));
    CHECK(loss({{"loss", "dr_grpo"}}) == doctest::Approx(total / (2 * 3)));
    CHECK(loss({{"loss", "dr_grpo"}, {"max_length", "10"}}) == doctest::Approx(total / (2 * 10)));
    CHECK(loss({{"loss", "dapo"}, {"items", "7"}}) == doctest::Approx(total / 7));
    const Doubles divergence = sums(k3);
    CHECK(run("policy_loss", {{"kl", "true"}}, policy_inputs(true)).at("kl").values[0] ==
          doctest::Approx((divergence[0] + divergence[1]) / 5));
}

TEST_CASE("GSPO has one ratio a sequence, delta bounds the unclipped one, SAPO has no clip") {
    double gspo = 0;
    for (std::size_t row = 0; row < 2; ++row) {
        const double rho = std::exp(mean(kChosen, kChosenMask, row) - mean(kReferenceChosen, kChosenMask, row));
        gspo += clipped_loss(rho, kAdvantage[row]) / 2;
    }
    const auto loss = [](OptionMap options) {
        options["reference"] = "false";
        return loss_of("policy_loss", options, policy_inputs(false));
    };
    CHECK(loss({{"importance", "sequence"}}) == doctest::Approx(gspo));
    const Doubles bounded = sums([](std::size_t i) {
        const double a = kAdvantage[i / 3];
        return -std::min(std::min(ratio(i), 1.1) * a, std::clamp(ratio(i), 0.8, 1.2) * a);
    });
    CHECK(loss({{"delta", "1.1"}}) == doctest::Approx((bounded[0] / 2 + bounded[1] / 3) / 2));
    const Doubles soft = sums([](std::size_t i) {
        const double a = kAdvantage[i / 3];
        const double tau = a > 0 ? 1 : 1.05;
        return -4 / tau * sigmoid(tau * (ratio(i) - 1)) * a;
    });
    CHECK(loss({{"loss", "sapo"}}) == doctest::Approx((soft[0] / 2 + soft[1] / 3) / 2));
}

TEST_CASE("CISPO's ratio is bounded above and only weighs the log-probability's gradient") {
    const OptionMap options = {{"loss", "cispo"}, {"clip_high", "1.1"}, {"reference", "false"}};
    const Doubles totals =
        sums([](std::size_t i) { return -std::min(ratio(i), 1.1) * kAdvantage[i / 3] * kChosen[i]; });
    CHECK(loss_of("policy_loss", options, policy_inputs(false)) == doctest::Approx((totals[0] + totals[1]) / 5));
    const Graph g = make_graph("policy_loss", {.columns = kTokens, .dtype = f64, .options = options});
    const Graph backward = gradient(g, {"logp"}, {.unit_cotangent = true});
    const Doubles d = interpret(*backward.data(), {policy_inputs(false), {}, {{"tokens", kRows}}}, Rounding::kExact)
                          .at("d_logp")
                          .values;
    for (std::size_t i = 0; i < 6; ++i)
        CHECK(d[i] == doctest::Approx(-kChosenMask[i] * std::min(ratio(i), 1.1) * kAdvantage[i / 3] / 5));
}

TEST_CASE("LUSPO adds up a sequence's tokens, and VESPO weighs a sequence by its whole ratio without a gradient") {
    const Doubles clipped = sums([](std::size_t i) { return clipped_loss(ratio(i), kAdvantage[i / 3]); });
    const OptionMap luspo = {{"loss", "luspo"}, {"reference", "false"}};
    CHECK(loss_of("policy_loss", luspo, policy_inputs(false)) == doctest::Approx((clipped[0] + clipped[1]) / 2));

    const OptionMap vespo = {{"loss", "vespo"}, {"reference", "false"}};
    Doubles weight;
    for (std::size_t row = 0; row < 2; ++row) {
        const double log_w = sum(kChosen, kChosenMask, row) - sum(kReferenceChosen, kChosenMask, row);
        const double k = kAdvantage[row] >= 0 ? 2 : 3;
        const double lambda = kAdvantage[row] >= 0 ? 3 : 2;
        weight.push_back(std::exp(lambda + k * log_w - lambda * std::exp(log_w)));
    }
    const Doubles totals = sums([&](std::size_t i) { return -weight[i / 3] * kAdvantage[i / 3] * kChosen[i]; });
    CHECK(loss_of("policy_loss", vespo, policy_inputs(false)) == doctest::Approx((totals[0] + totals[1]) / 5));
    const Graph g = make_graph("policy_loss", {.columns = kTokens, .dtype = f64, .options = vespo});
    const Doubles d = interpret(*gradient(g, {"logp"}, {.unit_cotangent = true}).data(),
                                {policy_inputs(false), {}, {{"tokens", kRows}}}, Rounding::kExact)
                          .at("d_logp")
                          .values;
    for (std::size_t i = 0; i < 6; ++i)
        CHECK(d[i] == doctest::Approx(-kChosenMask[i] * weight[i / 3] * kAdvantage[i / 3] / 5));
}

TEST_CASE("policy losses of sequences one after the other are those of padded ones, and so are their gradients") {
    const std::vector<PolicyOptions> all = {{},
                                            {.loss = PolicyLoss::kBnpo},
                                            {.loss = PolicyLoss::kDrGrpo, .max_length = 3},
                                            {.importance = Importance::kSequence},
                                            {.loss = PolicyLoss::kLuspo, .importance = Importance::kSequence},
                                            {.loss = PolicyLoss::kVespo},
                                            {.loss = PolicyLoss::kSapo}};
    for (const PolicyOptions& options : all) {
        CAPTURE(static_cast<int>(options.loss));
        Graph padded;
        const Axis rows = padded.rows("sequences");
        const auto of_tokens = [&](std::string_view name) { return padded.input(name, f64, {rows, kTokens}); };
        padded.output("loss", policy_loss(of_tokens("logp"), of_tokens("old"), padded.input("advantage", f32, {rows}),
                                          padded.input("mask", boolean, {rows, kTokens}), std::nullopt, options)
                                  .loss);
        Graph ragged;
        const Axis tokens = ragged.rows("tokens");
        const Axis sequences = ragged.rows("sequences");
        const Segments segments = {sequences, ragged.input("offsets", i32, {ragged.rows("ends", sequences, 1)})};
        ragged.output("loss", policy_loss(ragged.input("logp", f64, {tokens}), ragged.input("old", f64, {tokens}),
                                          ragged.input("advantage", f32, {sequences}),
                                          ragged.input("mask", boolean, {tokens}), std::nullopt, options, segments)
                                  .loss);
        // The first sequence is shorter: its last token, which the mask left out, is not there.
        Tensors inputs = policy_inputs(false);
        const Bindings of_padded = {inputs, {}, {{"sequences", kRows}}};
        for (const std::string name : {"logp", "old", "mask"}) {
            Tensor& tensor = inputs.at(name);
            tensor.extents = {5};
            tensor.values.erase(tensor.values.begin() + 2);
        }
        inputs["offsets"] = {i32, {3}, {0, 2, 5}};
        const Bindings of_ragged = {inputs, {}, {{"tokens", 5}, {"sequences", kRows}}};
        const GradientOptions joint = {.joint = true, .unit_cotangent = true};
        const Tensors wanted = interpret(*gradient(padded, {"logp"}, joint).data(), of_padded, Rounding::kExact);
        const Tensors got = interpret(*gradient(ragged, {"logp"}, joint).data(), of_ragged, Rounding::kExact);
        CHECK(got.at("loss").values[0] == doctest::Approx(wanted.at("loss").values[0]));
        Doubles d = wanted.at("d_logp").values;
        d.erase(d.begin() + 2);
        for (std::size_t i = 0; i < 5; ++i) CHECK(got.at("d_logp").values[i] == doctest::Approx(d[i]));
    }
}

TEST_CASE("where policy and old policy are equal the gradient is the advantage's, undivided by the clip") {
    Tensors inputs = policy_inputs(false);
    inputs["old"] = inputs["logp"];
    const Graph g = make_graph(
        "policy_loss", {.columns = kTokens, .dtype = f64, .options = {{"reference", "false"}, {"loss", "bnpo"}}});
    const Doubles d = interpret(*gradient(g, {"logp"}, {.unit_cotangent = true}).data(),
                                {inputs, {}, {{"tokens", kRows}}}, Rounding::kExact)
                          .at("d_logp")
                          .values;
    for (std::size_t i = 0; i < 6; ++i) CHECK(d[i] == doctest::Approx(-kChosenMask[i] * kAdvantage[i / 3] / 5));
}

TEST_CASE("a batch of the chosen half and the rejected half is two inputs") {
    Graph g;
    const Axis half = g.rows("half", 2);
    const Axis pairs = g.rows("pairs");
    const Value logp = g.input("logp", f64, {half, pairs, kTokens});
    const Value kept = g.input("mask", boolean, {half, pairs, kTokens});
    const auto [chosen, rejected] = preference_halves(sequence_log_probability(logp, kept));
    g.output("loss", dpo({chosen, rejected}, std::nullopt).loss);
    Doubles both = kChosen;
    both.insert(both.end(), kRejected.begin(), kRejected.end());
    Doubles masks = kChosenMask;
    masks.insert(masks.end(), kRejectedMask.begin(), kRejectedMask.end());
    const Bindings bindings = {
        {{"logp", {f64, {2, kRows, kTokens}, both}}, {"mask", {boolean, {2, kRows, kTokens}, masks}}},
        {},
        {{"pairs", kRows}}};
    CHECK(interpret(*g.data(), bindings, Rounding::kExact).at("loss").values[0] ==
          doctest::Approx(loss_of("dpo", {{"reference", "false"}}, pair_inputs(false))));
    const Doubles d = interpret(*gradient(g, {"logp"}, {.unit_cotangent = true}).data(), bindings, Rounding::kExact)
                          .at("d_logp")
                          .values;
    CHECK(d[0] < 0);
    CHECK(d[6] == doctest::Approx(-d[0]));
}

namespace {

Doubles ascending(Doubles values) {
    std::sort(values.begin(), values.end());
    return values;
}

Doubles less(const Doubles& a, const Doubles& b) {
    Doubles result;
    for (std::size_t i = 0; i < a.size(); ++i) result.push_back(a[i] - b[i]);
    return result;
}

const Doubles kPolicyChosen = {-1, -4, -2, -2, 0.5};
const Doubles kPolicyRejected = {-3, 0.25, -5, -5, -1};
const Doubles kGivenChosen = {-2, -3.5, -2, -1, 0};
const Doubles kGivenRejected = {-1, -1, -4.5, -6, -2};

// dpo of five pairs, and its gradient by the policy's chosen log-probabilities.
Tensors transported(DpoLoss loss) {
    Graph g;
    const Axis pairs = g.rows("pairs");
    const auto input = [&](std::string_view name) { return g.input(name, f64, {pairs}); };
    const PreferencePair policy = {input("chosen"), input("rejected")};
    const PreferencePair reference = {input("reference_chosen"), input("reference_rejected")};
    g.output("loss", dpo(policy, reference, {.loss = loss, .beta = 0.5, .label_smoothing = 0.1}).loss);
    const Graph both = gradient(g, {"chosen"}, {.joint = true, .unit_cotangent = true});
    const auto numbers = [](const Doubles& values) { return Tensor{f64, {5}, values}; };
    return interpret(*both.data(),
                     {{{"chosen", numbers(kPolicyChosen)},
                       {"rejected", numbers(kPolicyRejected)},
                       {"reference_chosen", numbers(kGivenChosen)},
                       {"reference_rejected", numbers(kGivenRejected)}},
                      {},
                      {{"pairs", 5}}},
                     Rounding::kExact);
}

double transport_loss(const Doubles& a, const Doubles& b) {
    double total = 0;
    for (const double l : less(ascending(a), ascending(b)))
        total -= 0.9 * log_sigmoid(0.5 * l) + 0.1 * log_sigmoid(-0.5 * l);
    return total / static_cast<double>(a.size());
}

}  // namespace

TEST_CASE("optimal transport pairs what stands at one place of both orders, equal ones too") {
    const Doubles chosen = less(kPolicyChosen, kGivenChosen);
    const Doubles rejected = less(kPolicyRejected, kGivenRejected);
    CHECK(transported(DpoLoss::kAotPair).at("loss").values[0] == doctest::Approx(transport_loss(chosen, rejected)));
    CHECK(transported(DpoLoss::kAot).at("loss").values[0] ==
          doctest::Approx(transport_loss(less(kPolicyChosen, kPolicyRejected), less(kGivenChosen, kGivenRejected))));
}

TEST_CASE("the gradient of optimal transport goes back to where each number came from") {
    // c = {1, -0.5, 0, -1, 0.5} against r in order {-2, -0.5, 1, 1, 1.25}.
    const Doubles places = {4, 1, 2, 0, 3};
    const Doubles c = less(kPolicyChosen, kGivenChosen);
    const Doubles r = ascending(less(kPolicyRejected, kGivenRejected));
    const Doubles d_chosen = transported(DpoLoss::kAotPair).at("d_chosen").values;
    for (std::size_t i = 0; i < 5; ++i) {
        const double u = 0.5 * (c[i] - r[static_cast<std::size_t>(places[i])]);
        CHECK(d_chosen[i] == doctest::Approx(0.5 / 5 * (0.1 * sigmoid(u) - 0.9 * sigmoid(-u))));
    }
}
