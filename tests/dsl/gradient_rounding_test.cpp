// Where a backward rounds: derived graphs in eager rounding against autograd's sequence of kernels, written out by
// hand.
//
// The sequences are PyTorch 2's: each elementwise formula of tools/autograd/derivatives.yaml is a kernel that computes
// in f32 and rounds its result; sums accumulate in f32 (dsl/interpret.h says in which order).
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "dsl/interpret.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/gradient.h"

using namespace rowjit;

namespace {

using Row = std::vector<double>;

constexpr std::int64_t kColumns = 8;  // sums of up to 16 are in order

double f(double x) { return round_to(f32, x); }
double b(double x) { return round_to(bf16, f(x)); }

Row each(const std::function<double(std::size_t)>& element) {
    Row row(kColumns);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = element(i);
    return row;
}

double sum(const Row& row) {
    float total = 0;
    for (const double x : row) total += static_cast<float>(x);
    return total;
}

// What the backward of an op gives on one row, and the inputs it got.
struct OneRow {
    Bindings in;
    Tensors out;
    const Row& given(const std::string& name) const { return in.tensors.at(name).values; }
};

OneRow run(std::string_view op, const OptionMap& options = {}, std::int64_t rows = 1) {
    const Graph backward = gradient(make_graph(op, {.columns = kColumns, .dtype = bf16, .options = options}));
    Bindings in = random_inputs(*backward.data(), {{"tokens", rows}}, {.seed = 5});
    Tensors out = interpret(*backward.data(), in, Rounding::kEager);
    return {std::move(in), std::move(out)};
}

}  // namespace

// transformers' LlamaRMSNorm: x.float(); pow(2).mean; x·rsqrt(· + eps); weight · to(bf16).
TEST_CASE("rms_norm rounds its backward where LlamaRMSNorm's autograd does") {
    const OneRow r = run("rms_norm");
    const Row& x = r.given("x");
    const Row& w = r.given("weight");
    const Row& g = r.given("d_y");
    const double mean = f(sum(each([&](std::size_t i) { return f(x[i] * x[i]); })) / kColumns);
    const double rstd = f(1 / std::sqrt(f(mean + f(1e-6))));
    const Row normed = each([&](std::size_t i) { return b(f(x[i] * rstd)); });
    CHECK(r.out.at("d_weight").values == each([&](std::size_t i) { return b(g[i] * normed[i]); }));
    const Row d_normed = each([&](std::size_t i) { return b(g[i] * w[i]); });
    const double d_rstd = sum(each([&](std::size_t i) { return f(d_normed[i] * x[i]); }));
    // rsqrt_backward: −0.5·grad·result³; mean's: grad / n; pow's: grad·(2·x).
    const double d_mean = f(f(f(-0.5 * d_rstd) * f(f(rstd * rstd) * rstd)) / kColumns);
    CHECK(r.out.at("d_x").values ==
          each([&](std::size_t i) { return b(f(f(d_normed[i] * rstd) + f(d_mean * f(2 * x[i])))); }));
}

// LlamaMLP's act_fn(gate)·up; silu_backward computes in f32 and rounds once: grad·σ·(1 + x·(1 − σ)).
TEST_CASE("swiglu rounds the gradients of both operands once each") {
    const OneRow r = run("swiglu");
    const Row& x = r.given("gate");
    const Row& up = r.given("up");
    const Row& g = r.given("d_y");
    const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    CHECK(r.out.at("d_up").values == each([&](std::size_t i) { return b(g[i] * b(x[i] * sigmoid(x[i]))); }));
    const Row d_gate = each([&](std::size_t i) {
        const double s = sigmoid(x[i]);
        return b(b(g[i] * up[i]) * s * (1 + x[i] * (1 - s)));
    });
    CHECK(r.out.at("d_gate").values == d_gate);
}

// apply_rotary_pos_emb: x·cos + rotate_half(x)·sin in bf16; rotate_half's backward exchanges the halves and negates.
TEST_CASE("rope turns its cotangent back with a rounding for each product and one for their sum") {
    const OneRow r = run("rope", {{"heads", "1"}});
    const Row& g = r.given("d_y");
    const Row& cos = r.given("cos");
    const Row& sin = r.given("sin");
    CHECK(r.out.at("d_x").values == each([&](std::size_t i) {
              const std::size_t partner = (i + kColumns / 2) % kColumns;
              const double turned = b(g[partner] * sin[partner]);
              return b(b(g[i] * cos[i]) + (i < kColumns / 2 ? turned : -turned));
          }));
}

// _softmax_backward_data in f32, rounded once: (grad − Σ grad·y)·y.
TEST_CASE("softmax's backward rounds once, from f32") {
    const OneRow r = run("softmax");
    const Row& x = r.given("x");
    const Row& g = r.given("d_y");
    double total = 0;
    for (const double v : x) total += std::exp(v);
    const Row y = each([&](std::size_t i) { return std::exp(x[i]) / total; });
    double dot = 0;
    for (std::size_t i = 0; i < y.size(); ++i) dot += g[i] * y[i];
    CHECK(r.out.at("d_x").values == each([&](std::size_t i) { return b((g[i] - dot) * y[i]); }));
}

// native_layer_norm_backward in f32, rounded once: rstd·(g·w − mean(g·w) − x̂·mean(g·w·x̂)).
TEST_CASE("layer_norm's backward rounds once, from f32") {
    const OneRow r = run("layer_norm", {}, 2);
    const Row& w = r.given("weight");
    const Row& g = r.given("d_y");
    Row d_weight(kColumns, 0);
    Row d_bias(kColumns, 0);
    for (std::size_t row = 0; row < 2; ++row) {
        const std::size_t at = row * kColumns;
        const Row x = each([&](std::size_t i) { return r.given("x")[at + i]; });
        double mean = 0;
        double variance = 0;
        for (const double v : x) mean += v / kColumns;
        for (const double v : x) variance += (v - mean) * (v - mean) / kColumns;
        const double rstd = 1 / std::sqrt(variance + 1e-5);
        double sum_g = 0;
        double sum_gx = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double normed = (x[i] - mean) * rstd;
            d_weight[i] += g[at + i] * normed;
            d_bias[i] += g[at + i];
            sum_g += g[at + i] * w[i] / kColumns;
            sum_gx += g[at + i] * w[i] * normed / kColumns;
        }
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double d = rstd * (g[at + i] * w[i] - sum_g - (x[i] - mean) * rstd * sum_gx);
            CHECK(r.out.at("d_x").values[at + i] == b(d));
        }
    }
    CHECK(r.out.at("d_weight").values == each([&](std::size_t i) { return b(d_weight[i]); }));
    CHECK(r.out.at("d_bias").values == each([&](std::size_t i) { return b(d_bias[i]); }));
}

// log_softmax of logits.float(), nll_loss: (softmax − onehot)·grad / count, rounded once to the logits' bf16.
TEST_CASE("cross_entropy's backward rounds once, from f32") {
    const OneRow r = run("cross_entropy", {}, 2);
    const double g = r.given("d_loss")[0];
    for (std::size_t row = 0; row < 2; ++row) {
        const Row x = each([&](std::size_t i) { return r.given("logits")[row * kColumns + i]; });
        double total = 0;
        for (const double v : x) total += std::exp(v);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double hot = static_cast<double>(i) == r.given("target")[row] ? 1 : 0;
            CHECK(r.out.at("d_logits").values[row * kColumns + i] == b((std::exp(x[i]) / total - hot) * g / 2));
        }
    }
}
