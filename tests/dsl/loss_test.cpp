// Losses over logits against their published formulas in plain double arithmetic.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/fail.h"
#include "dsl/interpret.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"

using namespace rowjit;

namespace {

using Doubles = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kRows = 3;
constexpr std::int64_t kClasses = 4;

const Doubles kLogits = {0.5, -1.25, 2, 0.25, 3, 1, -2, 0.75, -0.5, 0, 1.5, -3};
const Doubles kTeacher = {1, 0.5, -0.25, 2, -1, 0, 1, 0.5, 2, -2, 0.25, 0};
const Doubles kTarget = {2, -100, 1};

Doubles row(const Doubles& values, std::int64_t r) {
    return {values.begin() + r * kClasses, values.begin() + (r + 1) * kClasses};
}

Doubles softmax_of(const Doubles& z) {
    Doubles p;
    double total = 0;
    for (const double x : z) total += std::exp(x);
    for (const double x : z) p.push_back(std::exp(x) / total);
    return p;
}

double lse_of(const Doubles& z) {
    double total = 0;
    for (const double x : z) total += std::exp(x);
    return std::log(total);
}

double kl(const Doubles& p, const Doubles& q) {
    double total = 0;
    for (std::size_t i = 0; i < p.size(); ++i) total += p[i] == 0 ? 0 : p[i] * std::log(p[i] / q[i]);
    return total;
}

// The canonical f64 graph of an op with these inputs, exactly.
Tensors run(std::string_view op, const OptionMap& options, const Tensors& tensors, std::int64_t columns = kClasses) {
    const Graph g = make_graph(op, {.columns = columns, .dtype = f64, .options = options});
    return interpret(*g.data(), {tensors, {}, {{"tokens", kRows}}}, Rounding::kExact);
}

Tensor rows(const Doubles& values) { return {f64, {kRows, kClasses}, values}; }

Tensors logits_and_target(const Doubles& target = kTarget) {
    return {{"logits", rows(kLogits)}, {"target", {i64, {kRows}, target}}};
}

double loss_of(const Tensors& results) { return results.at("loss").values.at(0); }

}  // namespace

TEST_CASE("label smoothing spreads its part over all classes, and the mean is over the rows counted") {
    double expected = 0;
    for (const std::int64_t r : {0, 2}) {
        const Doubles p = softmax_of(row(kLogits, r));
        const auto target = static_cast<std::size_t>(kTarget[static_cast<std::size_t>(r)]);
        for (std::size_t c = 0; c < 4; ++c) expected -= ((c == target ? 0.9 : 0) + 0.1 / 4) * std::log(p[c]) / 2;
    }
    CHECK(loss_of(run("cross_entropy", {{"label_smoothing", "0.1"}}, logits_and_target())) ==
          doctest::Approx(expected));
}

TEST_CASE("class weights weigh each class's part, and the mean is over the weights of the targets") {
    const Doubles weight = {0.5, 2, 3, 0.25};
    Tensors tensors = logits_and_target();
    tensors["class_weight"] = {f32, {kClasses}, weight};
    double plain = 0;
    double smooth = 0;
    double divisor = 0;
    for (const std::int64_t r : {0, 2}) {
        const Doubles p = softmax_of(row(kLogits, r));
        const auto target = static_cast<std::size_t>(kTarget[static_cast<std::size_t>(r)]);
        plain -= weight[target] * std::log(p[target]);
        divisor += weight[target];
        for (std::size_t c = 0; c < 4; ++c) smooth -= weight[c] * std::log(p[c]) / 4;
    }
    const OptionMap options = {{"weights", "classes"}, {"label_smoothing", "0.2"}};
    CHECK(loss_of(run("cross_entropy", options, tensors)) == doctest::Approx((0.8 * plain + 0.2 * smooth) / divisor));
}

TEST_CASE("token weights multiply the rows and divide the mean") {
    Tensors tensors = logits_and_target();
    tensors["token_weight"] = {f32, {kRows}, {3, 5, 0.5}};
    const double first = 3 * (lse_of(row(kLogits, 0)) - 2);
    const double third = 0.5 * lse_of(row(kLogits, 2));
    CHECK(loss_of(run("cross_entropy", {{"weights", "tokens"}}, tensors)) == doctest::Approx((first + third) / 3.5));
}

TEST_CASE("the z-loss is a part of the loss and is given apart") {
    const double first = lse_of(row(kLogits, 0));
    const double third = lse_of(row(kLogits, 2));
    const double z_loss = 0.01 * (first * first + third * third) / 2;
    const Tensors results = run("cross_entropy", {{"z_loss", "0.01"}}, logits_and_target());
    CHECK(results.at("z_loss").values[0] == doctest::Approx(z_loss));
    CHECK(loss_of(results) == doctest::Approx(((first - 2) + third) / 2 + z_loss));
}

TEST_CASE(
    "token scaling multiplies the loss and its gradient by the target's probability, and not what the mean counts") {
    const OptionMap options = {{"token_scaling", "true"}, {"z_loss", "0.01"}};
    Tensors tensors = logits_and_target();
    // An ignored row whose logits' exponentials overflow what they are computed in.
    for (std::size_t c = 4; c < 8; ++c) tensors["logits"].values[c] = -1000;
    const Graph g = make_graph("cross_entropy", {.columns = kClasses, .dtype = f64, .options = options});
    const Graph joint = gradient(g, {"logits"}, {.of = {"loss"}, .joint = true, .unit_cotangent = true});
    const Tensors results = interpret(*joint.data(), {tensors, {}, {{"tokens", kRows}}}, Rounding::kExact);

    double expected = 0;
    Doubles d_logits(12, 0.0);
    for (const std::size_t r : {0, 2}) {
        const Doubles z = row(kLogits, static_cast<std::int64_t>(r));
        const Doubles p = softmax_of(z);
        const auto target = static_cast<std::size_t>(kTarget[r]);
        const double lse = lse_of(z);
        expected += p[target] * (lse - z[target] + 0.01 * lse * lse) / 2;
        for (std::size_t c = 0; c < 4; ++c) {
            d_logits[4 * r + c] = p[target] * (p[c] * (1 + 0.02 * lse) - (c == target ? 1 : 0)) / 2;
        }
    }
    CHECK(loss_of(results) == doctest::Approx(expected));
    for (std::size_t i = 0; i < 12; ++i) CHECK(results.at("d_logits").values[i] == doctest::Approx(d_logits[i]));
}

TEST_CASE("token scaling needs classes as targets") {
    CHECK_THROWS_AS(run("cross_entropy", {{"token_scaling", "true"}, {"target", "probabilities"}},
                        {{"logits", rows(kLogits)}, {"target", rows(kTeacher)}}),
                    Error);
}

TEST_CASE("probabilities as targets, smoothed, are torch's soft cross-entropy") {
    Doubles q;
    for (std::int64_t r = 0; r < kRows; ++r) {
        for (const double p : softmax_of(row(kTeacher, r))) q.push_back(p);
    }
    double expected = 0;
    for (std::size_t i = 0; i < q.size(); ++i) {
        const double p = softmax_of(row(kLogits, static_cast<std::int64_t>(i) / 4))[i % 4];
        expected -= (0.9 * q[i] + 0.1 / 4) * std::log(p) / 3;
    }
    const OptionMap options = {{"target", "probabilities"}, {"label_smoothing", "0.1"}};
    CHECK(loss_of(run("cross_entropy", options, {{"logits", rows(kLogits)}, {"target", rows(q)}})) ==
          doctest::Approx(expected));
}

TEST_CASE("entropy, argmax and accuracy are those of the rows") {
    const Tensors results =
        run("cross_entropy", {{"entropy", "true"}, {"argmax", "true"}, {"accuracy", "true"}}, logits_and_target());
    for (std::int64_t r = 0; r < kRows; ++r) {
        double entropy = 0;
        for (const double p : softmax_of(row(kLogits, r))) entropy -= p * std::log(p);
        CHECK(results.at("entropy").values[static_cast<std::size_t>(r)] == doctest::Approx(entropy));
    }
    CHECK(results.at("argmax").values == Doubles{2, 0, 2});
    CHECK(results.at("accuracy").values == Doubles{0.5});
}

TEST_CASE("argmax is the first of equal logits, and a NaN comes before any number") {
    const Doubles logits = {1, 3, 3, 0, 5, 6, std::nan(""), 7, -kInfinity, -kInfinity, -kInfinity, -kInfinity};
    const Tensors results =
        run("cross_entropy", {{"argmax", "true"}}, {{"logits", rows(logits)}, {"target", {i64, {kRows}, kTarget}}});
    CHECK(results.at("argmax").values == Doubles{1, 2, 0});
}

TEST_CASE("a masked class adds nothing to the entropy") {
    Doubles logits = kLogits;
    logits[1] = -kInfinity;
    const Tensors results = run("selective_log_probability", {{"entropy", "true"}},
                                {{"logits", rows(logits)}, {"target", {i64, {kRows}, kTarget}}});
    double entropy = 0;
    for (const double p : softmax_of({0.5, 2, 0.25})) entropy -= p * std::log(p);
    CHECK(results.at("entropy").values[0] == doctest::Approx(entropy));
    CHECK(results.at("logp").values[0] == doctest::Approx(2 - lse_of({0.5, 2, 0.25})));
    CHECK(results.at("logp").values[1] == 0);
}

TEST_CASE("the parts of a divided vocabulary combine to the loss, z-loss and entropy of the whole") {
    Tensors parts = {{"target", {i64, {kRows}, kTarget}}};
    for (const std::string name : {"lse", "target_logit", "logit_sum", "entropy"})
        parts[name] = {f64, {kRows, 2}, Doubles(6)};
    for (std::size_t rank = 0; rank < 2; ++rank) {
        Doubles shard;
        for (std::size_t r = 0; r < 3; ++r) {
            shard.push_back(kLogits[4 * r + 2 * rank]);
            shard.push_back(kLogits[4 * r + 2 * rank + 1]);
        }
        const Tensors part =
            run("vocabulary_part",
                {{"first_class", rank == 0 ? "0" : "2"}, {"softcap", "2"}, {"logit_sum", "true"}, {"entropy", "true"}},
                {{"logits", {f64, {kRows, 2}, shard}}, {"target", {i64, {kRows}, kTarget}}}, 2);
        for (const auto& [name, values] : part) {
            for (std::size_t r = 0; r < 3; ++r) parts[name].values[2 * r + rank] = values.values[r];
        }
    }
    for (const std::string reduction : {"none", "mean", "sum"}) {
        const OptionMap shared = {
            {"reduction", reduction}, {"label_smoothing", "0.2"}, {"z_loss", "0.1"}, {"entropy", "true"}};
        OptionMap of_whole = shared;
        of_whole.insert({{"lse", "true"}, {"softcap", "2"}});
        OptionMap of_parts = shared;
        of_parts.insert({"vocabulary", "4"});
        const Tensors whole = run("cross_entropy", of_whole, logits_and_target());
        const Tensors combined = run("combine_vocabulary", of_parts, parts, 2);
        for (const auto& [in_whole, in_parts] :
             {std::pair("loss", "loss"), std::pair("lse", "total_lse"), std::pair("z_loss", "z_loss"),
              std::pair("entropy", "total_entropy")}) {
            const Doubles& expected = whole.at(in_whole).values;
            const Doubles& got = combined.at(in_parts).values;
            REQUIRE(got.size() == expected.size());
            for (std::size_t i = 0; i < got.size(); ++i)
                CHECK_MESSAGE(got[i] == doctest::Approx(expected[i]), in_parts);
        }
    }
}

TEST_CASE("the gradients of a divided vocabulary's parts are the columns of the whole's gradient") {
    const auto loss_of = [](const std::vector<Value>& parts, Axis ranks, const Value& target) {
        VocabularyParts all{parts[0], parts[1], parts[2]};
        return combine_vocabulary(all, ranks, target, 4,
                                  {.reduction = Reduction::kMean, .label_smoothing = 0.2, .z_loss = 0.1})
            .loss;
    };
    // What gathering does, as one graph: number `which` of both ranks, side by side.
    Graph g;
    const Axis tokens = g.rows("tokens", kRows);
    const Axis ranks = g.columns("ranks", 2);
    const Value target = g.input("target", i64, {tokens});
    std::vector<Value> gathered;
    for (int rank = 0; rank < 2; ++rank) {
        const Value logits = g.input(rank == 0 ? "first" : "second", f64, {tokens, g.columns(2)});
        const VocabularyPart part = vocabulary_part(logits, target, 2 * rank);
        const std::vector<Value> numbers = {part.lse, part.target_logit, part.logit_sum};
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            const Value here = g.iota(ranks) == g.constant(i32, rank);
            const Value none = g.constant(f64, 0.0);
            const Value placed = select(here, numbers[i], none);
            if (rank == 0)
                gathered.push_back(placed);
            else
                gathered[i] = gathered[i] + placed;
        }
    }
    g.output("loss", loss_of(gathered, ranks, target));
    const Graph backward = gradient(g, {"first", "second"}, {.unit_cotangent = true});
    Bindings bindings{.tensors = {{"target", {i64, {kRows}, kTarget}}}, .scalars = {}, .rows = {}};
    for (std::size_t rank = 0; rank < 2; ++rank) {
        Tensor& shard = bindings.tensors[rank == 0 ? "first" : "second"] = {f64, {kRows, 2}, {}};
        for (std::size_t r = 0; r < 3; ++r)
            shard.values.insert(shard.values.end(), {kLogits[4 * r + 2 * rank], kLogits[4 * r + 2 * rank + 1]});
    }
    const Tensors of_parts = interpret(*backward.data(), bindings, Rounding::kExact);

    Graph h;
    const Axis rows_of_whole = h.rows("tokens", kRows);
    const Value logits = h.input("logits", f64, {rows_of_whole, 4});
    const CrossEntropy whole =
        cross_entropy(logits, h.input("target", i64, {rows_of_whole}), {.label_smoothing = 0.2, .z_loss = 0.1});
    h.output("loss", whole.loss);
    const Graph whole_backward = gradient(h, {"logits"}, {.unit_cotangent = true});
    const Tensors of_whole =
        interpret(*whole_backward.data(),
                  {.tensors = {{"logits", {f64, {kRows, 4}, kLogits}}, {"target", {i64, {kRows}, kTarget}}},
                   .scalars = {},
                   .rows = {}},
                  Rounding::kExact);
    for (std::size_t i = 0; i < 12; ++i) {
        const Tensor& part = of_parts.at(i % 4 < 2 ? "d_first" : "d_second");
        CHECK(part.values[2 * (i / 4) + i % 2] == doctest::Approx(of_whole.at("d_logits").values[i]));
    }
}

TEST_CASE("divergences are their sums over the classes, from logits and from log-probabilities") {
    Doubles expected(5);
    Doubles log_q;
    Doubles log_p;
    for (std::int64_t r = 0; r < kRows; ++r) {
        const Doubles q = softmax_of(row(kLogits, r));
        const Doubles p = softmax_of(row(kTeacher, r));
        Doubles m;
        for (std::size_t c = 0; c < 4; ++c) {
            m.push_back(0.3 * p[c] + 0.7 * q[c]);
            log_q.push_back(std::log(q[c]));
            log_p.push_back(std::log(p[c]));
            expected[3] += std::abs(p[c] - q[c]) / 2 / 3;
        }
        expected[0] += kl(p, q) / 3;
        expected[1] += kl(q, p) / 3;
        expected[2] += (0.3 * kl(p, m) + 0.7 * kl(q, m)) / 3;
    }
    const Tensors logits = {{"student", rows(kLogits)}, {"teacher", rows(kTeacher)}};
    const Tensors logs = {{"student", rows(log_q)}, {"teacher", rows(log_p)}};
    const OptionMap of_logs = {{"of", "log_probabilities"}};
    CHECK(loss_of(run("kl_div", {}, logits)) == doctest::Approx(expected[0]));
    CHECK(loss_of(run("kl_div", of_logs, logs)) == doctest::Approx(expected[0]));
    CHECK(loss_of(run("reverse_kl", {}, logits)) == doctest::Approx(expected[1]));
    CHECK(loss_of(run("jsd", {{"beta", "0.3"}}, logits)) == doctest::Approx(expected[2]));
    CHECK(loss_of(run("jsd", {{"beta", "0"}}, logits)) == doctest::Approx(expected[0]));
    CHECK(loss_of(run("jsd", {{"beta", "1"}}, logits)) == doctest::Approx(expected[1]));
    CHECK(loss_of(run("tvd", {}, logits)) == doctest::Approx(expected[3]));
    CHECK(loss_of(run("tvd", of_logs, logs)) == doctest::Approx(expected[3]));
}

TEST_CASE("a temperature divides both rows of logits, and an ignored row is not counted") {
    const auto halved = [](Doubles z) {
        for (double& x : z) x /= 2;
        return softmax_of(z);
    };
    const double expected = (kl(halved(row(kTeacher, 0)), halved(row(kLogits, 0))) +
                             kl(halved(row(kTeacher, 2)), halved(row(kLogits, 2)))) /
                            2;
    const OptionMap options = {{"temperature", "2"}, {"target", "true"}};
    CHECK(
        loss_of(run("kl_div", options,
                    {{"student", rows(kLogits)}, {"teacher", rows(kTeacher)}, {"target", {i64, {kRows}, kTarget}}})) ==
        doctest::Approx(expected));
}

TEST_CASE("a class that the teacher excludes adds nothing, and one that the student excludes is infinitely far") {
    Doubles masked = kTeacher;
    masked[1] = -kInfinity;
    CHECK(std::isfinite(loss_of(run("kl_div", {}, {{"student", rows(kLogits)}, {"teacher", rows(masked)}}))));
    CHECK(loss_of(run("reverse_kl", {}, {{"student", rows(kLogits)}, {"teacher", rows(masked)}})) == kInfinity);
}

TEST_CASE("a mixture has the classes that either excludes, and none that both do") {
    Doubles student = kLogits;
    Doubles teacher = kTeacher;
    student[0] = teacher[1] = student[2] = teacher[2] = -kInfinity;
    double expected = 0;
    for (std::int64_t r = 0; r < kRows; ++r) {
        const Doubles q = softmax_of(row(student, r));
        const Doubles p = softmax_of(row(teacher, r));
        const auto to_mixture = [&](const Doubles& of) {
            double distance = 0;
            for (std::size_t c = 0; c < of.size(); ++c)
                distance += of[c] > 0 ? of[c] * std::log(of[c] / (0.3 * p[c] + 0.7 * q[c])) : 0;
            return distance;
        };
        expected += (0.3 * to_mixture(p) + 0.7 * to_mixture(q)) / 3;
    }
    const Tensors logits = {{"student", rows(student)}, {"teacher", rows(teacher)}};
    CHECK(loss_of(run("jsd", {{"beta", "0.3"}}, logits)) == doctest::Approx(expected));
}

TEST_CASE("the cosine distance is one minus the cosine") {
    double expected = 0;
    for (std::int64_t r = 0; r < kRows; ++r) {
        const Doubles s = row(kLogits, r);
        const Doubles t = row(kTeacher, r);
        const auto dot = [](const Doubles& a, const Doubles& b) {
            return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
        };
        expected += (1 - dot(s, t) / std::sqrt(dot(s, s) * dot(t, t))) / 3;
    }
    CHECK(loss_of(run("cosine_distance", {}, {{"student", rows(kLogits)}, {"teacher", rows(kTeacher)}})) ==
          doctest::Approx(expected));
}

TEST_CASE("a causal mask keeps the columns up to the row, and a sink takes part in the sum alone") {
    const Doubles causal = run("softmax", {{"causal", "true"}}, {{"x", rows(kLogits)}}).at("y").values;
    CHECK(row(causal, 0) == Doubles{1, 0, 0, 0});
    const Doubles two = softmax_of({3, 1});
    CHECK(causal[4] == doctest::Approx(two[0]));
    CHECK(causal[5] == doctest::Approx(two[1]));
    CHECK(causal[6] == 0);

    const Doubles sinks = {1.5, -kInfinity, 100};
    const Tensors with_sink = {{"x", rows(kLogits)}, {"sink", {f64, {kRows}, sinks}}};
    const Doubles y = run("softmax", {{"with", "sink"}}, with_sink).at("y").values;
    for (std::size_t i = 0; i < y.size(); ++i) {
        Doubles longer = row(kLogits, static_cast<std::int64_t>(i / 4));
        longer.push_back(sinks[i / 4]);
        CHECK(y[i] == doctest::Approx(softmax_of(longer)[i % 4]));
    }
}

TEST_CASE("a bias is added and a mask leaves out") {
    const Doubles bias = {1, 0, -kInfinity, 2, 0, 0, 0, 0, 0, 0, 0, -1};
    const Doubles biased =
        run("softmax", {{"with", "bias"}}, {{"x", rows(kLogits)}, {"bias", rows(bias)}}).at("y").values;
    CHECK(biased[0] == doctest::Approx(softmax_of({1.5, -1.25, 2.25})[0]));
    CHECK(biased[2] == 0);
    const Tensor mask = {boolean, {kRows, kClasses}, {1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
    const Doubles masked = run("softmax", {{"with", "mask"}}, {{"x", rows(kLogits)}, {"mask", mask}}).at("y").values;
    CHECK(masked[0] == doctest::Approx(softmax_of({0.5, -1.25, 0.25})[0]));
    CHECK(masked[2] == 0);
}
