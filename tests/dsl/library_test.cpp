// What the composites compute, by the oracle: against values of PyTorch eager, formulas in double, and each other.
#include "rowjit/library.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "base/dtype.h"
#include "dsl/accuracy.h"
#include "dsl/interpret.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "tests/support/coverage.h"

using namespace rowjit;

namespace {

using Doubles = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Values of bf16, so that nothing is rounded on the way in.
const Doubles kX = {0.8125, -2.3125, 1.0703125, 0.2041015625, -0.671875, 3.140625, -0.00897216796875, 1.4453125};
const Doubles kW = {0.9140625, 1.1171875, 0.8515625, 1.0390625, -0.4921875, 1.34375, 0.7109375, 1.0078125};
const Doubles kCos = {0.5390625, -0.416015625, 0.98828125, 0.70703125};
const Doubles kSin = {0.84375, 0.91015625, 0.1552734375, -0.70703125};

Doubles doubled(const Doubles& values, bool each) {
    Doubles result = values;
    result.insert(result.end(), values.begin(), values.end());
    if (!each) return result;
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = values[i / 2];
    return result;
}

// The canonical graph of an op on one row of kX and kW, in bf16 and eager rounding.
Doubles eager(std::string_view op, const OptionMap& options) {
    const Graph g = make_graph(op, {.columns = 8, .dtype = bf16, .options = options});
    Bindings bindings;
    bindings.rows = {{"tokens", 1}};
    for (const char* name : {"x", "gate"}) bindings.tensors[name] = {bf16, {1, 8}, kX};
    bindings.tensors["weight"] = {bf16, {8}, kW};
    bindings.tensors["up"] = {bf16, {1, 8}, kW};
    return interpret(*g.data(), bindings, Rounding::kEager).at("y").values;
}

Doubles eager_rope(RopePairing pairing, bool half_table) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const int width = half_table ? 4 : 8;
    const Value cos = g.input("cos", bf16, {tokens, width});
    const Value sin = g.input("sin", bf16, {tokens, width});
    g.output("y", rope(g.input("x", bf16, {tokens, 8}), cos, sin, {.pairing = pairing}));
    const bool each = pairing == RopePairing::kInterleaved;
    Bindings bindings;
    bindings.rows = {{"tokens", 1}};
    bindings.tensors["x"] = {bf16, {1, 8}, kX};
    bindings.tensors["cos"] = {bf16, {1, width}, half_table ? kCos : doubled(kCos, each)};
    bindings.tensors["sin"] = {bf16, {1, width}, half_table ? kSin : doubled(kSin, each)};
    return interpret(*g.data(), bindings, Rounding::kEager).at("y").values;
}

// An op's canonical f32 graph with `x` as its rows.
Doubles rows_of(std::string_view op, std::int64_t columns, const Doubles& x, Rounding rounding = Rounding::kEager) {
    const Graph g = make_graph(op, {.columns = columns, .dtype = f32, .options = {}});
    const auto rows = static_cast<std::int64_t>(x.size()) / columns;
    return interpret(*g.data(), {{{"x", {f32, {rows, columns}, x}}}, {}, {{"tokens", rows}}}, rounding).at("y").values;
}

// Cross-entropy of f32 logits {rows, 4}; the outputs "loss" and "lse".
Tensors cross_entropy_of(const Doubles& logits, const Doubles& target, CrossEntropyOptions options) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const CrossEntropy ce =
        cross_entropy(g.input("logits", f32, {tokens, 4}), g.input("target", i64, {tokens}), options);
    g.output("loss", ce.loss);
    g.output("lse", ce.lse);
    const auto rows = static_cast<std::int64_t>(target.size());
    const Tensors tensors = {{"logits", {f32, {rows, 4}, logits}}, {"target", {i64, {rows}, target}}};
    return interpret(*g.data(), {tensors, {}, {{"tokens", rows}}}, Rounding::kExact);
}

double lse_of(const Doubles& row) {
    double sum = 0;
    for (const double x : row) sum += std::exp(x);
    return std::log(sum);
}

const Doubles kFirst = {1, 2, -1, 0.5};
const Doubles kSecond = {0, -3, 4, 1};
const Doubles kThird = {2, 2, 2, 2};

Doubles three_rows() {
    Doubles all = kFirst;
    all.insert(all.end(), kSecond.begin(), kSecond.end());
    all.insert(all.end(), kThird.begin(), kThird.end());
    return all;
}

}  // namespace

// The expected values below were printed by torch 2.13 on a CPU, running the named modules on the same bf16 tensors.

TEST_CASE("rms_norm with llama casting has LlamaRMSNorm's bits") {
    CHECK(eager("rms_norm", {}) == Doubles{0.474609375, -1.6484375, 0.58203125, 0.1357421875, 0.2119140625, 2.6875,
                                           -0.00408935546875, 0.9296875});
}

TEST_CASE("rms_norm with gemma casting has Gemma2RMSNorm's bits") {
    CHECK(eager("rms_norm", {{"casting", "gemma"}, {"offset", "1"}}) ==
          Doubles{0.9921875, -3.125, 1.265625, 0.265625, -0.2177734375, 4.6875, -0.00982666015625, 1.8515625});
}

// From 64 equal rows: on fewer, torch's CPU rsqrt takes a scalar path that rounds the square root to bf16 as well.
TEST_CASE("rms_norm without casting has the bits of the same lines run in bf16") {
    CHECK(eager("rms_norm", {{"casting", "none"}}) ==
          Doubles{0.470703125, -1.640625, 0.578125, 0.134765625, 0.2109375, 2.6875, -0.004058837890625, 0.9296875});
}

TEST_CASE("layer_norm has torch's bits") {
    CHECK(eager("layer_norm", {{"bias", "false"}}) ==
          Doubles{0.2158203125, -2.0625, 0.34765625, -0.177734375, 0.373046875, 2.40625, -0.22265625, 0.6640625});
}

TEST_CASE("softmax has torch's bits") {
    CHECK(eager("softmax", {}) == Doubles{0.06396484375, 0.0028076171875, 0.08251953125, 0.03466796875,
                                          0.01446533203125, 0.65234375, 0.028076171875, 0.1201171875});
}

TEST_CASE("swiglu rounds the SiLU before the product, as LlamaMLP does") {
    CHECK(eager("swiglu", {}) ==
          Doubles{0.515625, -0.232421875, 0.6796875, 0.11669921875, 0.11181640625, 4.0625, -0.003173828125, 1.1796875});
}

TEST_CASE("both forms of geglu have the bits of torch's gelu times up") {
    CHECK(eager("geglu", {{"form", "tanh"}}) ==
          Doubles{0.58984375, -0.0264892578125, 0.78125, 0.123046875, 0.0830078125, 4.21875, -0.003173828125, 1.34375});
    CHECK(eager("geglu", {{"form", "erf"}}) ==
          Doubles{0.58984375, -0.02685546875, 0.78125, 0.123046875, 0.0830078125, 4.21875, -0.003173828125, 1.34375});
}

TEST_CASE("both pairings of rope have the bits of transformers' rotation, from full and half tables") {
    const Doubles half = {1, -1.8984375, 1.0546875, 1.171875, 0.326171875, -3.40625, 0.1572265625, 0.87890625};
    const Doubles interleaved = {2.390625, -0.5625, -0.6328125, 0.88671875, -1.15625, 3, 1.015625, 1.03125};
    for (const bool half_table : {false, true}) {
        CHECK(eager_rope(RopePairing::kHalf, half_table) == half);
        CHECK(eager_rope(RopePairing::kInterleaved, half_table) == interleaved);
    }
}

TEST_CASE("the pairings of rope agree once a head's elements are permuted") {
    Doubles permuted(8);
    for (std::size_t i = 0; i < 8; ++i) permuted[i] = kX[i / 2 + (i % 2) * 4];
    const Graph half = make_graph("rope", {8, f32, {{"heads", "1"}, {"table", "half"}}});
    const Graph inter = make_graph("rope", {8, f32, {{"heads", "1"}, {"table", "half"}, {"pairing", "interleaved"}}});
    Tensors tensors = {{"cos", {f32, {1, 4}, kCos}}, {"sin", {f32, {1, 4}, kSin}}, {"x", {f32, {1, 1, 8}, kX}}};
    const Doubles a = interpret(*half.data(), {tensors, {}, {{"tokens", 1}}}, Rounding::kEager).at("y").values;
    tensors["x"].values = permuted;
    const Doubles b = interpret(*inter.data(), {tensors, {}, {{"tokens", 1}}}, Rounding::kEager).at("y").values;
    for (std::size_t i = 0; i < 8; ++i) CHECK(b[i] == a[i / 2 + (i % 2) * 4]);
}

TEST_CASE("partial rope leaves the elements past the rotary width as they are") {
    const OptionMap options = {{"heads", "1"}, {"rotary", "4"}, {"table", "half"}};
    const Graph g = make_graph("rope", {8, f32, options});
    const Tensors tensors = {
        {"cos", {f32, {1, 2}, {0, 0}}}, {"sin", {f32, {1, 2}, {1, 1}}}, {"x", {f32, {1, 1, 8}, kX}}};
    const Doubles y = interpret(*g.data(), {tensors, {}, {{"tokens", 1}}}, Rounding::kExact).at("y").values;
    CHECK(y == Doubles{-kX[2], -kX[3], kX[0], kX[1], kX[4], kX[5], kX[6], kX[7]});
}

TEST_CASE("add_rms_norm's sum is the rounded sum, and its norm is that of the sum") {
    const Graph g = make_graph("add_rms_norm", {8, bf16, {}});
    const Tensors tensors = {{"x", {bf16, {1, 8}, kX}}, {"residual", {bf16, {1, 8}, kW}}, {"weight", {bf16, {8}, kW}}};
    const Tensors out = interpret(*g.data(), {tensors, {}, {{"tokens", 1}}}, Rounding::kEager);
    for (std::size_t i = 0; i < 8; ++i) CHECK(out.at("sum").values[i] == round_to(bf16, kX[i] + kW[i]));
    const Graph norm = make_graph("rms_norm", {8, bf16, {}});
    const Tensors normed = interpret(
        *norm.data(), {{{"x", {bf16, {1, 8}, out.at("sum").values}}, {"weight", {bf16, {8}, kW}}}, {}, {{"tokens", 1}}},
        Rounding::kEager);
    CHECK(out.at("y").values == normed.at("y").values);
}

TEST_CASE("layer_norm without rounding has mean 0 and variance 1") {
    const Graph g = make_graph("layer_norm", {8, f64, {{"weight", "none"}, {"bias", "false"}, {"eps", "0"}}});
    const Doubles y =
        interpret(*g.data(), {{{"x", {f64, {1, 8}, kX}}}, {}, {{"tokens", 1}}}, Rounding::kExact).at("y").values;
    CHECK(std::accumulate(y.begin(), y.end(), 0.0) == doctest::Approx(0).epsilon(1e-12));
    CHECK(std::inner_product(y.begin(), y.end(), y.begin(), 0.0) == doctest::Approx(8));
}

TEST_CASE("a packed gate-up input gives what its two halves give") {
    Doubles packed = kX;
    packed.insert(packed.end(), kW.begin(), kW.end());
    for (const char* op : {"swiglu", "geglu"}) {
        const Graph g = make_graph(op, {8, bf16, {{"packed", "true"}}});
        const Bindings bindings = {{{"gate_up", {bf16, {1, 16}, packed}}}, {}, {{"tokens", 1}}};
        CHECK(interpret(*g.data(), bindings, Rounding::kEager).at("y").values == eager(op, {}));
    }
}

TEST_CASE("softmax rows sum to one and log_softmax is its logarithm") {
    const Doubles p = rows_of("softmax", 4, three_rows(), Rounding::kExact);
    const Doubles logs = rows_of("log_softmax", 4, three_rows(), Rounding::kExact);
    for (std::size_t row = 0; row < 3; ++row)
        CHECK(p[4 * row] + p[4 * row + 1] + p[4 * row + 2] + p[4 * row + 3] == doctest::Approx(1));
    for (std::size_t i = 0; i < p.size(); ++i) CHECK(std::log(p[i]) == doctest::Approx(logs[i]));
}

TEST_CASE("a row of minus infinities is NaN under softmax and log_softmax, and minus infinity under logsumexp") {
    const Doubles row(4, -kInfinity);
    for (const double y : rows_of("softmax", 4, row)) CHECK(std::isnan(y));
    for (const double y : rows_of("log_softmax", 4, row)) CHECK(std::isnan(y));
    CHECK(rows_of("logsumexp", 4, row) == Doubles{-kInfinity});
}

TEST_CASE("logsumexp of a row that holds plus infinity is plus infinity, and NaN wins over it") {
    CHECK(rows_of("logsumexp", 4, {1, kInfinity, 2, -kInfinity}) == Doubles{kInfinity});
    CHECK(std::isnan(rows_of("logsumexp", 4, {1, kInfinity, std::nan(""), 2})[0]));
}

TEST_CASE("temperature divides the logits and softcap bounds them first") {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("tokens"), 4});
    g.output("y", logsumexp(x, {.temperature = 2, .softcap = 3}));
    const Bindings bindings = {{{"x", {f32, {1, 4}, kFirst}}}, {}, {{"tokens", 1}}};
    Doubles capped;
    for (const double v : kFirst) capped.push_back(3 * std::tanh(v / 3) / 2);
    CHECK(interpret(*g.data(), bindings, Rounding::kExact).at("y").values[0] == doctest::Approx(lse_of(capped)));
}

TEST_CASE("relu2 squares what is positive, and NaN stays NaN") {
    const Doubles y = rows_of("relu2", 4, {-2, 0, 3, std::nan("")});
    CHECK(y[0] == 0);
    CHECK(y[2] == 9);
    CHECK(std::isnan(y[3]));
}

TEST_CASE("cross_entropy is lse minus the target's logit") {
    const Tensors out = cross_entropy_of(three_rows(), {1, 2, 0}, {.reduction = Reduction::kNone});
    CHECK(out.at("loss").values[0] == doctest::Approx(lse_of(kFirst) - 2));
    CHECK(out.at("loss").values[1] == doctest::Approx(lse_of(kSecond) - 4));
    CHECK(out.at("loss").values[2] == doctest::Approx(std::log(4.0)));
    CHECK(out.at("lse").values[0] == doctest::Approx(lse_of(kFirst)));
}

TEST_CASE("an ignored row adds nothing to the sum and is not counted by the mean") {
    const double first = lse_of(kFirst) - 2;
    const double third = std::log(4.0);
    const Doubles target = {1, -100, 0};
    CHECK(cross_entropy_of(three_rows(), target, {.reduction = Reduction::kNone}).at("loss").values[1] == 0);
    CHECK(cross_entropy_of(three_rows(), target, {.reduction = Reduction::kSum}).at("loss").values[0] ==
          doctest::Approx(first + third));
    CHECK(cross_entropy_of(three_rows(), target, {}).at("loss").values[0] == doctest::Approx((first + third) / 2));
}

TEST_CASE("an ignored row of NaN logits does not reach the loss") {
    Doubles logits = three_rows();
    logits[5] = std::nan("");
    CHECK(std::isfinite(cross_entropy_of(logits, {1, -100, 0}, {}).at("loss").values[0]));
}

TEST_CASE("the mean over no counted row is NaN and the sum is zero") {
    const Doubles ignored(3, -100);
    CHECK(std::isnan(cross_entropy_of(three_rows(), ignored, {}).at("loss").values[0]));
    CHECK(cross_entropy_of(three_rows(), ignored, {.reduction = Reduction::kSum}).at("loss").values[0] == 0);
    CHECK(std::isnan(cross_entropy_of({}, {}, {}).at("loss").values[0]));
}

TEST_CASE("a target inside the vocabulary can be the one that is ignored") {
    const Tensors out = cross_entropy_of(three_rows(), {1, 2, 0}, {.ignore_index = 2, .reduction = Reduction::kNone});
    CHECK(out.at("loss").values[1] == 0);
    CHECK(out.at("loss").values[0] == doctest::Approx(lse_of(kFirst) - 2));
}

TEST_CASE("a target outside the vocabulary makes its row's loss NaN, and no other's") {
    for (const double target : {4.0, -1.0, 1e9}) {
        const Doubles loss =
            cross_entropy_of(three_rows(), {1, target, 0}, {.reduction = Reduction::kNone}).at("loss").values;
        CHECK(std::isfinite(loss[0]));
        CHECK(std::isnan(loss[1]));
        CHECK(std::isfinite(loss[2]));
    }
}

TEST_CASE("every op in every dtype and at odd widths errs by no more than its dtype's rounding") {
    Coverage coverage("library_test", "the oracle's rounding against its exact mode", "oracle");
    for (const CompositeInfo& row : composites()) {
        for (const Dtype dtype : {bf16, f16, f32, f64}) {
            for (const std::int64_t columns : {2, 34, 128}) {
                CAPTURE(row.name);
                CAPTURE(name(dtype));
                CAPTURE(columns);
                const OpRequest request{.columns = columns, .dtype = dtype};
                coverage.add(row.name, request);
                const Graph g = make_graph(row.name, request);
                // Ratios of probabilities under logits of 64 standard normal products are of any size.
                const double scale_of_inputs = row.name == "fused_linear_policy_loss" ? 0.25 : 1;
                const Bindings bindings = random_inputs(*g.data(), {{"tokens", 3}}, {.scale = scale_of_inputs});
                const Tensors exact = interpret(*g.data(), bindings, Rounding::kExact);
                const Tensors eager = interpret(*g.data(), bindings, Rounding::kEager);
                // The angle of position 99 and a frequency of 3 is rounded by 2e-5 in f32.
                const double angles = row.name == "rope_positions" ? 1e-4 : 0;
                for (const auto& [output, tensor] : exact) {
                    double scale = 0;
                    for (const double v : tensor.values) scale = std::max(scale, std::abs(v));
                    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
                        // The ops have at most eight roundings one after another.
                        CHECK(std::abs(eager.at(output).values[i] - tensor.values[i]) <=
                              8 * ulp(dtype, scale) + 1e-6 + angles);
                    }
                }
            }
        }
    }
    CHECK(coverage.difference() == "");
}

TEST_CASE("every op takes zero rows") {
    for (const CompositeInfo& row : composites()) {
        CAPTURE(row.name);
        const Graph g = make_graph(row.name, {.columns = 8, .dtype = bf16, .options = {}});
        const Tensors out = interpret(*g.data(), random_inputs(*g.data(), {{"tokens", 0}}), Rounding::kEager);
        CHECK(out.size() >= 1);
        for (const auto& [output, tensor] : out)
            CHECK(tensor.values.size() == (output == "loss" || output == "norm" ? 1U : 0U));
    }
}
