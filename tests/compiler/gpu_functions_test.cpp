// Exponentials, logarithms, erf, tanh and logistic functions in GPU text: exact, or less so where nothing shows it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "compiler/compile.h"
#include "compiler/emit/gpu.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "tests/compiler/gpu_kernel.h"

using namespace rowjit;

namespace {

// Of the first kernel.
std::string text_of(const Graph& g) {
    const Target& target = find_target("sm_90a");
    return emit_gpu_body(compile(*g.data(), target).steps[0].kernel, target);
}

// y of a = x in f32 and b = z in f32, of inputs of one dtype and rounded to it.
Graph graph_of(std::string_view dtype, std::string_view y) {
    return Graph::parse(
        fmt::format("rows t\ninput x: {0}[t, 1024]\ninput z: {0}[t, 1024]\na = cast(x, f32)\nb = cast(z, f32)\n"
                    "output y = cast({1}, {0})\n",
                    dtype, y));
}

// A row in f32, and the exponentials of it and of another less the greatest of each.
struct TwoWeights {
    Value x;
    Value p;
    Value q;
};
TwoWeights weights_of_two(Graph& g, std::int64_t columns, Dtype dtype) {
    const Axis tokens = g.rows("tokens");
    const Value x = cast(g.input("x", dtype, {tokens, columns}), f32);
    const Value y = cast(g.input("y", dtype, {tokens, columns}), f32);
    const Value p = exp(x - max(x));
    const Value q = exp(y - max(y));
    return {x, p, q};
}

}  // namespace

TEST_CASE(
    "an exponential that is stored in f32 as it is, multiplied or added has all of its bits, and beside a constant it "
    "may cancel") {
    const auto body = [](std::string_view outputs) {
        return text_of(Graph::parse(fmt::format("rows t\ninput x: f32[t, 64]\ne = exp(x)\n{}\n", outputs)));
    };
    CHECK(contains(body("output y = select(x > 0, 2 * x, 2 * e)"), "rj_exp_stored("));
    CHECK(contains(body("p = x * e\noutput y = select(x > 0, x, 0) + select(x < 0, p, 2 * p)"), "rj_exp_stored("));
    CHECK(contains(body("output y = x - e"), "rj_exp_stored("));
    CHECK(!contains(body("output y = 2 * e\noutput z = sum(e)"), "rj_exp_stored("));
    CHECK(contains(body("output y = e - 1"), "rj_exp_stored("));
    CHECK(contains(body("output y = select(x > 0, x, e + -1)"), "rj_exp_stored("));
    CHECK(!contains(body("output y = e + 1"), "rj_exp_stored("));
    CHECK(!contains(body("output y = cast(e - 1, bf16)"), "rj_exp_stored("));
    CHECK(contains(body("output y = e"), "rj_exp_stored("));
    CHECK(!contains(body("output y = 1 / (1 + e)"), "rj_exp_stored("));
    CHECK(!contains(body("output y = cast(e, bf16)"), "rj_exp_stored("));
    CHECK(!contains(body("output y = e\noutput z = sum(e)"), "rj_exp_stored("));
}

TEST_CASE("functions of tables alone are computed before the rows of a block that stays") {
    const std::string body =
        text_of(Graph::parse("rows t\ninput x: bf16[t, 1024]\ninput m: f32[1024]\ninput v: f32[1024]\n"
                             "output y = cast((cast(x, f32) - m) * rsqrt(v + 1e-5), bf16)\n"));
    const std::size_t rows = body.find("for (long long row");
    REQUIRE(rows != std::string::npos);
    CHECK(body.find("rj_rsqrt") < rows);
    CHECK(body.find("rj_rsqrt", rows) == std::string::npos);
    CHECK(body.find("(v + ", rows) == std::string::npos);  // nor what they are of read again
    CHECK(body.find("m_held", rows) != std::string::npos);
    // What says where columns are read is a table too, and none of a function's.
    const std::string at_places =
        text_of(Graph::parse("rows t\ncolumns d = 1024\ninput x: bf16[t, d]\ninput z: bf16[t, d]\ninput p: i64[d]\n"
                             "input v: f32[d]\noutput y = cast(cast(index(x, t, p) * z, f32) * rsqrt(v + 1e-5), bf16)\n"
                             "output s = sum(cast(z, f32) * exp(v), t)\n"));
    CHECK(at_places.find("rj_rsqrt") < at_places.find("for (long long row"));
    CHECK(contains(at_places, "p_held"));
}

TEST_CASE("what rows are divided by, a number for each column, is prepared before those of a block that stays") {
    const std::string body =
        text_of(Graph::parse("rows t\ninput x: bf16[t, 1024]\ninput s: f32[1024]\nh = cast(x, f32)\nq = h / s\n"
                             "output y = q - floor(q) * s\n"));
    const std::size_t rows = body.find("for (long long row");
    REQUIRE(rows != std::string::npos);
    CHECK(contains(body.substr(0, rows), "rj_divisor_of("));
    CHECK(!contains(body.substr(rows), "rj_divisor_of("));
    CHECK(contains(body.substr(rows), "rj_div(x_value, s_value_divisor["));
    CHECK(contains(body.substr(rows), "s_held["));  // multiplied by as it is
}

TEST_CASE("an exponential is one instruction where a rounding or a logarithm of sums loses its error") {
    const std::string quotient = body_of(build_softmax, 1024);
    CHECK(contains(quotient, "rj_exp_narrow("));
    CHECK(!contains(quotient, "rj_exp("));
    CHECK(contains(body_of(build_cross_entropy, 1024), "rj_exp_weight("));
    const auto difference = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value student = softmax(g.input("student", bf16, {tokens, columns}));
        g.output("y", student - softmax(g.input("teacher", bf16, {tokens, columns})));
    };
    // Probabilities of bf16 are rounded before they are subtracted; those that are not would show the error.
    CHECK(contains(body_of(difference, 1024), "rj_exp2_fast("));
    CHECK(!contains(body_of(difference, 1024), "rj_exp("));
    const auto wide_difference = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value student = softmax(cast(g.input("student", bf16, {tokens, columns}), f32));
        g.output("y", cast(student - softmax(cast(g.input("teacher", bf16, {tokens, columns}), f32)), bf16));
    };
    CHECK(contains(body_of(wide_difference, 1024), "rj_exp("));
}

TEST_CASE("an exponential below a row's maximum that a number of the row multiplies is a power of a multiply-add") {
    const auto body = [](std::string_view output) {
        return text_of(
            Graph::parse(fmt::format("rows t\ninput x: bf16[t, 1024]\ninput k: f32[t]\ninput b: f32[1024]\n"
                                     "h = cast(x, f32)\ne = exp(h - max(h))\noutput y = {}\n",
                                     output)));
    };
    const std::string scaled = body("cast(k * e, bf16)");
    CHECK(contains(scaled, "= rj_exp2_fast("));
    CHECK(!contains(scaled, "rj_exp_narrow("));
    CHECK(contains(scaled, " < 134217730.0f"));  // past which a maximum is not multiplied
    // Each of its products has another factor, a column's, or two: what a row takes back is in none of those.
    CHECK(contains(body("cast(k * e * b, bf16)"), "= rj_exp2_fast("));
    CHECK(contains(body("cast(e * b, bf16)"), "rj_exp_narrow("));
    CHECK(contains(body("cast(k * e, bf16)\noutput z = cast(2.5 * k * e * e, bf16)"), "rj_exp_narrow("));
    CHECK(contains(body("k * e"), "rj_exp_stored("));  // of f32 it is as exact as it is
}

TEST_CASE("an exponential that only weighs the terms of sums is one instruction where it is at most 1") {
    // Σ w·(x − y) of w = e^(x − bound): all that is stored is f32, and no logarithm follows.
    const auto weighted = [](const auto& bound) {
        return [bound](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
            const Value y = cast(g.input("y", bf16, {tokens, columns}), f32);
            const Value weight = exp(x - bound(x, y));
            const Value zero = g.constant(f32, 0.0);
            g.output("z", sum(select(weight == 0.0, zero, weight * (x - y))));
        };
    };
    const std::string below = body_of(weighted([](const Value& x, const Value&) { return max(x); }), 1024);
    CHECK(contains(below, "rj_exp_weight("));
    CHECK(!contains(below, "rj_exp("));
    const std::string above = body_of(weighted([](const Value&, const Value& y) { return max(y); }), 1024);
    CHECK(contains(above, "rj_exp("));
    // So where a softmax's f32 sum is stored for its backward.
    const auto saving = [](Graph& g, std::int64_t columns) {
        const Value x = cast(g.input("x", bf16, {g.rows("tokens"), columns}), f32);
        const Value weight = exp(x - max(x));
        const Value total = sum(weight);
        g.output("y", cast(weight / total, bf16));
        g.output("total", total);
    };
    CHECK(contains(body_of(saving, 1024), "rj_exp_narrow("));
    CHECK(!contains(body_of(saving, 1024), "rj_exp("));
}

TEST_CASE("of weights at most 1 a sum of differences and of logarithms of their mixtures loses nothing that it shows") {
    const auto divergence = [](Dtype dtype, bool logarithm_alone) {
        return [=](Graph& g, std::int64_t columns) {
            const auto [x, p, q] = weights_of_two(g, columns, dtype);
            const Value logarithm = log(p + 0.5 * q);
            g.output("distance", sum(abs(p / sum(p) - q / sum(q))));
            g.output("mixed", sum(logarithm_alone ? logarithm : p * (x - max(x) - logarithm)));
        };
    };
    const std::string narrow = body_of(divergence(bf16, false), 1024);
    CHECK(contains(narrow, "rj_exp_weight("));
    CHECK(contains(narrow, "rj_log_weight("));
    CHECK(contains(narrow, "rj_log_share("));  // of the weight as it came out, which is 2^t of a rounded t
    CHECK(!contains(narrow, "rj_divisor"));
    for (const char* exact : {"rj_exp(", "rj_log("}) CHECK(!contains(narrow, exact));
    // Of weights that are all 0 the logarithm is not what the narrow one says, and nothing takes that away.
    CHECK(contains(body_of(divergence(bf16, true), 1024), "rj_log("));
    const std::string wide = body_of(divergence(f32, false), 1024);
    for (const char* spent : {"rj_exp_weight(", "rj_log_weight(", "rj_log_share(", "rj_div_narrow("})
        CHECK(!contains(wide, spent));
}

TEST_CASE("the logarithm of a mixture that distributions are multiplied by errs to neither side") {
    // Σ p log(m/p) of m = β p + (1 − β) q, d = log(q/p).
    const auto body = [](std::string_view mixture, std::string_view loss) {
        return text_of(
            Graph::parse(fmt::format("rows t\ninput x: f32[t, 1024]\ninput d: f32[t, 1024]\n"
                                     "scalar b: f32 = 0.25\np = exp(x - max(x))\n"
                                     "bounded = minimum(maximum(d, -80), 80)\nl = log({})\n{}\n",
                                     mixture, loss)));
    };
    const std::string weighed = body("b + (1 - b) * exp(bounded)", "output y = sum(p * (bounded - l))");
    CHECK(contains(weighed, "rj_exp_bounded("));
    CHECK(contains(weighed, "rj_fma("));
    CHECK(contains(weighed, "rj_log_bounded("));
    CHECK(contains(body("exp(bounded) + b", "output y = sum(2 * l * p)"), "rj_log_bounded("));
    // Of what may be anything both are as they are, of which the exponential is the one that is stored.
    const std::string unbounded = body("b + (1 - b) * exp(d)", "output y = sum(p * (d - l))");
    CHECK(contains(unbounded, "rj_exp_stored("));
    CHECK(!contains(unbounded, "_bounded("));
    // By itself a logarithm's own rounding hides what it is off by.
    for (const char* alone : {"output y = sum(l)", "output y = sum(d * l)", "output y = sum(p * l)\noutput z = l"})
        CHECK(!contains(body("b + (1 - b) * exp(bounded)", alone), "_bounded("));
}

TEST_CASE("a share's logarithm that a weight multiplies before both are rounded loses nothing that they show") {
    const auto gradient = [](Dtype dtype, bool weighted) {
        return [=](Graph& g, std::int64_t columns) {
            const auto [x, p, q] = weights_of_two(g, columns, dtype);
            const Value share = x - max(x) - log(p + 0.5 * q);
            const Value rest = 0.25 * share - sum(p * share) / sum(p);
            g.output("d", cast(weighted ? p * rest : rest, dtype));
        };
    };
    const std::string narrow = body_of(gradient(bf16, true), 1024);
    for (const char* spent : {"rj_log_weight(", "rj_log_share("}) CHECK(contains(narrow, spent));
    for (const char* exact : {"rj_exp(", "rj_log("}) CHECK(!contains(narrow, exact));
    // By itself it is near 0 where weights are alike, and shows what it is off by.
    CHECK(contains(body_of(gradient(bf16, false), 1024), "rj_log("));
    CHECK(contains(body_of(gradient(f32, true), 1024), "rj_log("));
    // The difference of two weights shows their errors, though each is only multiplied and rounded.
    const auto difference = [](Graph& g, std::int64_t columns) {
        const auto [x, p, q] = weights_of_two(g, columns, bf16);
        g.output("d", cast(p / sum(p) - q / sum(q), bf16));
    };
    CHECK(count(body_of(difference, 1024), "rj_exp(") == 2);
}

TEST_CASE("the logarithm of a weight's share is bounded, not chosen, where it is only multiplied by the weight") {
    const auto mixed = [](Dtype dtype, bool alone) {
        return [=](Graph& g, std::int64_t columns) {
            const auto [x, p, q] = weights_of_two(g, columns, dtype);
            const Value share = select(p == 0.0, g.constant(f32, 0), x - max(x) - log(p * sum(q) + q * sum(p)));
            g.output("mixed", sum(p * share));
            if (alone) g.output("weighted", sum(q * share));
        };
    };
    const auto bounds = [](const std::string& body) { return count(body, ", (-3.4028235e+38f))"); };
    CHECK(bounds(body_of(mixed(bf16, false), 1024)) == 1);
    CHECK(bounds(body_of(mixed(bf16, true), 1024)) == 0);  // another weight is none where this one is
    CHECK(bounds(body_of(mixed(f32, false), 1024)) == 0);
}

TEST_CASE("a logistic function that is rounded is two instructions for its functions") {
    const auto gated = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        g.output("y", swiglu(g.input("gate", bf16, {tokens, columns}), g.input("up", bf16, {tokens, columns})));
    };
    const std::string narrow = body_of(gated, 1024);
    CHECK(contains(narrow, "rj_exp_narrow("));
    CHECK(contains(narrow, "rj_div_narrow("));
    const auto small_divisor = [](Graph& g, std::int64_t columns) {
        const Value x = cast(g.input("x", bf16, {g.rows("tokens"), columns}), f32);
        g.output("y", cast(x / (exp(x) + 0.5), bf16));
    };
    CHECK(!contains(body_of(small_divisor, 1024), "rj_div_narrow("));
}

TEST_CASE("erf is less exact where 1 is added to it and a rounding follows") {
    const auto activated = [](Dtype dtype, const auto& make) {
        return [dtype, make](Graph& g, std::int64_t columns) {
            g.output("y", make(g.input("x", dtype, {g.rows("tokens"), columns})));
        };
    };
    const auto gelu_erf = [](const Value& x) { return gelu(x, Gelu::kErf); };
    CHECK(contains(body_of(activated(bf16, gelu_erf), 1024), "rj_erf_narrow("));
    CHECK(contains(body_of(activated(f16, gelu_erf), 1024), "rj_erf_narrow("));
    CHECK(contains(body_of(activated(f32, gelu_erf), 1024), "rj_erf("));
    // By itself its relative error near 0 would show, and so would the sum's where another is taken from it.
    const auto alone = [](const Value& x) { return cast(erf(cast(x, f32)), bf16); };
    CHECK(contains(body_of(activated(bf16, alone), 1024), "rj_erf("));
    const auto difference = [](const Value& x) { return cast(erf(cast(x, f32)) + 1.0 - cast(x, f32), bf16); };
    CHECK(contains(body_of(activated(f16, difference), 1024), "rj_erf("));
}

TEST_CASE("tanh is less exact where it is rounded, or added to what has nothing of its argument and then rounded") {
    const auto bent = [](Dtype dtype, const auto& make) {
        return [dtype, make](Graph& g, std::int64_t columns) {
            const auto h = cast(g.input("x", dtype, {g.rows("tokens"), columns}), f32);
            const auto bias = cast(g.input("bias", dtype, {columns}), f32);
            g.output("y", cast(make(h, bias), dtype));
        };
    };
    const auto alone = [](const Value& h, const Value& bias) { return tanh(h * bias); };
    CHECK(contains(body_of(bent(bf16, alone), 1024), "rj_tanh_narrow("));
    CHECK(contains(body_of(bent(f16, alone), 1024), "rj_tanh_narrow("));
    CHECK(contains(body_of(bent(f32, alone), 1024), "rj_tanh("));
    const auto shifted = [](const Value& h, const Value& bias) { return tanh(h) * 0.5 + bias; };
    CHECK(contains(body_of(bent(bf16, shifted), 1024), "rj_tanh_narrow("));
    CHECK(contains(body_of(bent(f16, shifted), 1024), "rj_tanh("));
    const auto difference = [](const Value& h, const Value& bias) { return tanh(h) * bias - h; };
    CHECK(contains(body_of(bent(bf16, difference), 1024), "rj_tanh("));
}

TEST_CASE("a softmax of capped scores, with a number of the row in its sum, is made of what is less exact") {
    const auto capped = [](double cap, Dtype result) {
        return [=](Graph& g, std::int64_t columns) {
            const auto tokens = g.rows("tokens");
            const auto h = cap * tanh(cast(g.input("x", bf16, {tokens, columns}), f32) / cap);
            const auto sink = g.input("sink", f32, {tokens});
            const auto m = maximum(max(h), sink);
            const auto e = exp(h - m);
            g.output("p", cast(e / (sum(e) + exp(sink - m)), result));
        };
    };
    const std::string narrow = body_of(capped(50, bf16), 1024);
    const std::string narrow_lanes = "rj_mostly_near_zero<rj_tanh_near_zero, rj_tanh_narrow>(";
    CHECK(contains(narrow, narrow_lanes));
    CHECK(contains(narrow, "rj_exp_narrow("));
    CHECK(contains(narrow, "* 0.02f"));  // a quotient by the cap, likewise
    // A choice between it and what has no part in the row keeps that error as it is.
    const auto masked = [&](Graph& to, std::int64_t columns) {
        const Axis tokens = to.rows("tokens");
        const Value x = cast(to.input("x", bf16, {tokens, columns}), f32);
        const Value kept = to.input("mask", Dtype::kBool, {tokens, columns});
        const Value z = select(kept, 50 * tanh(x / 50), to.constant(f32, -std::numeric_limits<double>::infinity()));
        const Value e = exp(z - max(z));
        to.output("y", cast(e / sum(e), bf16));
    };
    CHECK(contains(body_of(masked, 1024), narrow_lanes));
    // As often as it is in the exponent an error of tanh is in the result.
    const char* exact_lanes = "rj_mostly_near_zero<rj_tanh_near_zero, rj_tanh>(";
    CHECK(contains(body_of(capped(500, bf16), 1024), exact_lanes));
    for (const char* exact : {exact_lanes, "= rj_exp(map"}) CHECK(contains(body_of(capped(50, f32), 1024), exact));
}

TEST_CASE("a tanh below a cap is computed for a vector together, of what is as often beyond a lane at a time") {
    const auto bent = [](const auto& argument) {
        return [argument](Graph& g, std::int64_t columns) {
            const Value x = cast(g.input("x", bf16, {g.rows("tokens"), columns}), f32);
            g.output("y", cast(tanh(argument(x, g.scalar("by", f32, 30))), bf16));
        };
    };
    const auto has = [&](const auto& argument) {
        const std::string body = body_of(bent(argument), 1024);
        return contains(body, "rj_mostly_near_zero<rj_tanh_near_zero, rj_tanh_narrow>(");
    };
    CHECK(has([](const Value& x, const Value& cap) { return x / cap; }));
    CHECK(has([](const Value& x, const Value& cap) { return (x * 2 + cap) / cap; }));
    CHECK(has([](const Value& x, const Value&) { return x / 15; }));
    CHECK(has([](const Value& x, const Value&) { return x * 0.02; }));
    CHECK(!has([](const Value& x, const Value& alpha) { return x * alpha; }));
    CHECK(!has([](const Value& x, const Value&) { return x * 0.8; }));
    CHECK(has([](const Value& x, const Value& cap) { return exp(x) / cap; }));
    CHECK(!has([](const Value& x, const Value& cap) { return tanh(x * cap) / cap; }));
    CHECK(!has([](const Value& x, const Value&) { return x; }));
}

TEST_CASE("a number of the row that a product is made of and divided by again leaves 1, or NaN, where that is lost") {
    const auto scaled = [](Dtype dtype) {
        return [dtype](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = cast(g.input("x", dtype, {tokens, columns}), f32);
            const Value h = cast(g.input("h", dtype, {tokens, columns}), f32);
            const Value by = g.input("by", f32, {tokens});
            g.output("y", cast(x * by * exp(h) / by, dtype));
        };
    };
    CHECK(!contains(body_of(scaled(bf16), 1024), "rj_div_narrow("));
    CHECK(contains(body_of(scaled(bf16), 1024), "rj_div(by_value, by_value)"));
    CHECK(!contains(body_of(scaled(f32), 1024), "rj_div(by_value, by_value)"));
    const auto twice = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
        const Value by = g.input("by", f32, {tokens});
        const Value product = x * by;
        g.output("y", cast(product * exp(x) / by, bf16));
        g.output("z", cast(product, bf16));
    };
    CHECK(contains(body_of(twice, 1024), "rj_div_narrow("));
}

TEST_CASE("a logistic function's parts are less exact in a product with others, and in the derivative of one") {
    Graph g;
    const Value x = g.input("x", bf16, {g.rows("tokens"), 1024});
    const Value gate = g.input("gate", bf16, {x.axes()[0], 1024});
    const Value z = cast(gate, f32);
    const Value bent = 30 * tanh(cast(x, f32) * cast(g.input("w", bf16, {1024}), f32) / 30);
    g.output("y", cast(bent * z / (1 + exp(-z)), bf16));
    const Graph backward = differentiate(g, {"x", "gate", "w"}).backward;
    const auto text = [&] { return body_of([&](Graph& to, std::int64_t) { to = backward; }, 1024); };
    CHECK(contains(text(), "rj_exp_narrow("));
    CHECK(contains(text(), "rj_div_narrow("));
    CHECK(contains(text(), "rj_mostly_near_zero<rj_tanh_near_zero, rj_tanh_narrow>("));
    CHECK(!contains(text(), "rj_exp("));
    CHECK(!contains(text(), "rj_div("));
    CHECK(contains(text(), "* 0.03333333f"));
    // 1 less a logistic function is small where e^x is, and shows what the quotient loses.
    const auto complement = [](Graph& to, std::int64_t columns) {
        const Value h = cast(to.input("x", bf16, {to.rows("tokens"), columns}), f32);
        to.output("y", cast(1 - 1 / (1 + exp(-h)), bf16));
    };
    CHECK(contains(body_of(complement, 1024), "rj_div_one_up("));
}

TEST_CASE("a gate's parts are less exact in a norm's backward, which adds what has nothing of the gate") {
    const auto backward = [](Dtype dtype, bool adds_gate) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Value x = cast(g.input("x", dtype, {tokens, 1024}), f32);
        const Value z = cast(g.input("gate", dtype, {tokens, 1024}), f32);
        const Value gated = x * rsqrt(mean(x * x) + 1e-5) / (1 + exp(-z));
        g.output("y", cast(adds_gate ? gated + x * z : gated, dtype));
        const Graph backward = differentiate(g, {"x"}).backward;
        return body_of([&](Graph& to, std::int64_t) { to = backward; }, 1024);
    };
    const std::string narrow = backward(bf16, false);
    CHECK(contains(narrow, "rj_exp_narrow("));
    CHECK(contains(narrow, "rj_div_narrow("));
    // What may cancel it has the gate as well; 11 bits show it sooner; f32 is as written.
    for (const std::string& exact : {backward(bf16, true), backward(f16, false), backward(f32, false)}) {
        CHECK(contains(exact, "rj_exp("));
        CHECK(contains(exact, "rj_div_one_up("));
    }
}

TEST_CASE("logarithms, roots and quotients are less exact where only products follow before a rounding") {
    const auto text = [](std::string_view dtype, std::string_view y) { return text_of(graph_of(dtype, y)); };
    for (const std::string_view narrow : {"bf16", "f16"}) {
        CHECK(contains(text(narrow, "b * log(a)"), "rj_log_narrow("));
        CHECK(contains(text(narrow, "log1p(a) / b"), "rj_log1p_narrow("));
        CHECK(contains(text(narrow, "sqrt(a)"), "rj_sqrt_narrow("));
        CHECK(contains(text(narrow, "a * rsqrt(abs(b))"), "rj_rsqrt_narrow("));
        CHECK(contains(text(narrow, "a / b"), "rj_quotient_narrow("));
        // A softplus adds up what is not negative, and what bends less than a line through 0 follows.
        const std::string bent = text(narrow, "a * tanh(maximum(a, 0) + log1p(exp(-abs(a))))");
        for (const char* function : {"rj_exp_narrow(", "rj_log1p_narrow(", "rj_tanh_narrow("})
            CHECK(contains(bent, function));
        // Nor does a bound make an error a larger part.
        CHECK(contains(text(narrow, "minimum(maximum(select(a > 20, a, log1p(exp(a))), 0.001), 100)"),
                       "rj_log1p_narrow("));
    }
    // Of f32, in a difference that may be near 0, in an exponent, and in a sum of the row that is stored.
    CHECK(contains(text("f32", "b * log(a)"), "rj_log("));
    CHECK(contains(text("f32", "a / b"), "rj_div("));
    CHECK(contains(text("bf16", "log(a) - b"), "rj_log("));
    CHECK(contains(text("bf16", "a / b - 1"), "rj_div("));
    CHECK(contains(text("bf16", "exp(b * log(a))"), "rj_log("));
    const Graph summed = Graph::parse("rows t\ninput x: bf16[t, 1024]\noutput y = sum(log(cast(x, f32)))\n");
    CHECK(contains(text_of(summed), "rj_log("));
}

TEST_CASE("a function of one narrow number is exact where it cancels at 0, where numbers are dense") {
    const auto text = [](std::string_view y) { return text_of(graph_of("bf16", y)); };
    CHECK(contains(text("exp(a) - exp(-a)"), "rj_exp("));
    CHECK(contains(text("log1p(a) - a"), "rj_log1p("));
    CHECK(contains(text("a - tanh(a)"), "rj_tanh("));
    // Elsewhere such numbers come no nearer to a zero than by some 2^-11.
    CHECK(contains(text("exp(a) - 3 * exp(-a)"), "rj_exp_narrow("));
    CHECK(contains(text("log1p(a) + 2 * sqrt(a)"), "rj_log1p_narrow("));
}

TEST_CASE("1 - tanh² and 1 + tanh are functions of their own where a rounding hides a few units") {
    const auto backward = [](std::string_view dtype, std::string_view y) {
        return text_of(differentiate(graph_of(dtype, y), {"x"}).backward);
    };
    const std::string gelu = backward("bf16", "b * (0.5 * a * (1 + tanh(0.8 * (a + 0.04 * a * a * a))))");
    CHECK(contains(gelu, "rj_tanh_slope_narrow("));
    CHECK(contains(gelu, "rj_tanh_plus_one_narrow("));
    CHECK(!contains(gelu, "rj_tanh("));
    CHECK(!contains(gelu, "rj_tanh_narrow("));
    CHECK(contains(backward("bf16", "tanh(a)"), "rj_tanh_slope_narrow("));
    CHECK(!contains(backward("f32", "tanh(a)"), "narrow("));
}

TEST_CASE("log1p of a fraction has no branch for other numbers") {
    const auto text = [](std::string_view y) { return text_of(graph_of("f32", y)); };
    CHECK(contains(text("log1p(exp(-abs(a)))"), "rj_log1p_of_fraction("));
    CHECK(contains(text("log1p(exp(-2 * abs(a - b)))"), "rj_log1p_of_fraction("));
    CHECK(contains(text("log1p(exp(minimum(a, 0) - abs(b)))"), "rj_log1p_of_fraction("));
    for (const std::string_view other :
         {"log1p(exp(abs(a)))", "log1p(exp(a))", "log1p(exp(2 * abs(a)))", "log1p(abs(a))"})
        CHECK(!contains(text(other), "rj_log1p_of_fraction("));
}
