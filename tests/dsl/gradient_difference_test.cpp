// Derivatives against finite differences, in double with roundings off: every primitive, every composite and random
// graphs.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "dsl/graph.h"
#include "dsl/interpret.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/coord.h"
#include "rowjit/gradient.h"
#include "tests/support/coverage.h"
#include "tests/support/random_graph.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

// Σ over the float outputs of output · cotangent: what the backward differentiates.
double objective(const GraphData& graph, const Bindings& bindings, const Tensors& cotangents) {
    double total = 0;
    for (const auto& [name, tensor] : interpret(graph, bindings, Rounding::kExact)) {
        const auto weight = cotangents.find("d_" + name);
        if (weight == cotangents.end()) continue;
        for (std::size_t i = 0; i < tensor.values.size(); ++i) total += tensor.values[i] * weight->second.values[i];
    }
    return total;
}

// What the backward of `graph` gives, in `rounding`.
Tensors backward_of(const Graph& graph, const Bindings& bindings, Tensors* cotangents) {
    const Graph backward = gradient(graph);
    Bindings given = random_inputs(*backward.data(), bindings.rows, {.seed = 17});
    for (auto& [name, tensor] : given.tensors) {
        if (const auto found = bindings.tensors.find(name); found != bindings.tensors.end()) {
            tensor = found->second;
        } else {
            (*cotangents)[name] = tensor;
        }
    }
    given.scalars = bindings.scalars;
    return interpret(*backward.data(), given, Rounding::kExact);
}

// Ratios of probabilities under logits of 64 standard normal products would overflow.
double scale_of(const GraphData& graph) {
    const std::vector<NodeId> live = graph.live_nodes();
    const bool multiplies =
        std::any_of(live.begin(), live.end(), [&](NodeId id) { return graph.node(id).kind == NodeKind::kMatmul; });
    return multiplies ? 0.25 : 1;
}

// The largest disagreement of the backward with central differences in random directions, relative to the size of what
// is compared; an element of every input at a time would take as many forwards as there are elements.
double disagreement(const Graph& graph, std::int64_t rows, std::uint64_t seed, int directions = 4) {
    const GraphData& data = *graph.data();
    Bindings bindings = random_inputs(data, all_rows(data, rows), {.seed = seed, .scale = scale_of(data)});
    // Off the grid of the narrow dtypes, where comparisons and extrema meet equal values.
    for (const auto& [name, noise] : random_inputs(data, bindings.rows, {.seed = seed + 50}).tensors) {
        Tensor& tensor = bindings.tensors.at(name);
        for (std::size_t i = 0; is_float(tensor.dtype) && i < tensor.values.size(); ++i)
            tensor.values[i] += 0.001 * noise.values[i];
    }
    Tensors cotangents;
    const Tensors gradients = backward_of(graph, bindings, &cotangents);
    double worst = 0;
    for (const auto& [name, gradient] : gradients) {
        const std::string input = name.substr(2);
        for (int direction = 0; direction < directions; ++direction) {
            Bindings along =
                random_inputs(data, bindings.rows, {.seed = seed + 100 + static_cast<std::uint64_t>(direction)});
            const std::vector<double>& step = along.tensors.at(input).values;
            // Steps small enough that few kinks are crossed; in double the difference keeps half its digits.
            constexpr double kStep = 1e-7;
            const auto at = [&](double length) {
                Bindings moved = bindings;
                std::vector<double>& values = moved.tensors.at(input).values;
                for (std::size_t i = 0; i < values.size(); ++i) values[i] += length * step[i];
                return objective(data, moved, cotangents);
            };
            const double numeric = (at(kStep) - at(-kStep)) / (2 * kStep);
            double analytic = 0;
            double size = 1;
            for (std::size_t i = 0; i < step.size(); ++i) {
                analytic += gradient.values[i] * step[i];
                size += std::abs(gradient.values[i] * step[i]);
            }
            const double error = std::abs(numeric - analytic) / size;
            worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
        }
    }
    return worst;
}

constexpr double kTolerance = 1e-6;

// The derivatives of one op at (a, b, c) for the cotangent 1, and its value.
struct AtPoint {
    double value;
    std::vector<double> derivatives;
};

AtPoint at_point(Op op, const std::vector<double>& point) {
    Graph g;
    const OpInfo& row = info(op);
    std::vector<NodeId> args;
    Bindings bindings;
    for (int i = 0; i < row.arity; ++i) {
        const std::string name(1, static_cast<char>('a' + i));
        const bool condition = row.types == OpTypes::kSelect && i == 0;
        args.push_back(g.input(name, condition ? boolean : f64, {1}).id());
        bindings.tensors[name] = {condition ? boolean : f64, {1}, {point[static_cast<std::size_t>(i)]}};
    }
    const NodeId y = g.data()->add_map(op, args);
    g.output("y", Value(g.data(), y));
    AtPoint result;
    result.value = interpret(*g.data(), bindings, Rounding::kExact).at("y").values[0];
    Bindings given = bindings;
    given.tensors["d_y"] = {f64, {1}, {1}};
    const Tensors gradients = interpret(*gradient(g).data(), given, Rounding::kExact);
    for (int i = 0; i < row.arity; ++i) {
        const auto found = gradients.find("d_" + std::string(1, static_cast<char>('a' + i)));
        result.derivatives.push_back(found == gradients.end() ? 0 : found->second.values[0]);
    }
    return result;
}

}  // namespace

TEST_CASE("the derivative of every primitive is its finite difference") {
    const std::vector<std::vector<double>> points = {
        {0.7, 1.3, -0.4}, {1.9, 0.6, 2.2}, {1.05, 0.31, 0.77}, {0.2, 2.5, 1.1}};
    for (const OpInfo& row : all_ops()) {
        const bool steps =
            row.types == OpTypes::kCompare || row.types == OpTypes::kLogic || row.types == OpTypes::kWhole;
        if (steps || row.types == OpTypes::kRandom || row.op == Op::kDetach) continue;
        CAPTURE(row.name);
        for (const std::vector<double>& point : points) {
            const AtPoint here = at_point(row.op, point);
            for (int i = row.types == OpTypes::kSelect ? 1 : 0; i < row.arity; ++i) {
                constexpr double kStep = 1e-6;
                std::vector<double> above = point;
                std::vector<double> below = point;
                above[static_cast<std::size_t>(i)] += kStep;
                below[static_cast<std::size_t>(i)] -= kStep;
                const double numeric =
                    (row.reference(above[0], above[1], above[2]) - row.reference(below[0], below[1], below[2])) /
                    (2 * kStep);
                CHECK(here.derivatives[static_cast<std::size_t>(i)] == doctest::Approx(numeric).epsilon(1e-6));
            }
        }
    }
}

TEST_CASE("the gradient of every composite is its finite difference at several widths") {
    Coverage coverage("gradient_test", "the derived backward against finite differences", "oracle");
    for (const CompositeInfo& row : composites()) {
        for (const std::int64_t columns : {2, 6, 32, 64}) {
            CAPTURE(row.name);
            CAPTURE(columns);
            const OpRequest request{.columns = columns, .dtype = f32};
            const Graph graph = make_graph(row.name, request);
            if (trained_inputs(row.name, graph).empty()) continue;
            coverage.add(row.name, request);
            CHECK(disagreement(graph, 3, 1) < kTolerance);
        }
    }
    CHECK(coverage.difference() == "");
}

TEST_CASE("the gradient of every option of every composite is its finite difference") {
    Coverage coverage("gradient_test options", "the derived backward against finite differences", "oracle");
    for (const CompositeInfo& row : composites()) {
        for (const OptionInfo& option : row.options) {
            std::string word;
            for (const char c :
                 std::string(option.choices) + (option.type == OptionType::kFlag ? "true false " : " ")) {
                if (c != ' ') {
                    word += c;
                    continue;
                }
                if (word.empty()) continue;
                const std::string value = std::exchange(word, "");
                CAPTURE(row.name);
                CAPTURE(option.name);
                CAPTURE(value);
                // What detach stops has differences and no derivative; preference_test.cpp and loss_test.cpp have these
                // in closed form.
                // The logarithm of a masked class is −∞ and has no difference.
                const bool stopped = value == "cispo" || value == "vespo" || option.name == "old" ||
                                     option.name == "token_scaling" ||
                                     (row.name.ends_with("kto") && option.name == "kl");
                const bool infinite = row.name == "log_softmax" && (option.name == "causal" || value == "mask");
                if (stopped || infinite) continue;
                OptionMap options = {{std::string(option.name), value}};
                if (row.name.ends_with("layer_norm") && value == "none") options["bias"] = "false";
                const Graph graph = make_graph(row.name, {12, f32, options});
                if (trained_inputs(row.name, graph).empty()) continue;
                coverage.add(row.name, {12, f32, options});
                CHECK(disagreement(graph, 3, 2) < kTolerance);
            }
        }
    }
    CHECK(coverage.difference() == "");
}

TEST_CASE("the gradient of options that are numbers is its finite difference") {
    const std::vector<std::pair<std::string_view, OptionMap>> graphs = {
        {"cross_entropy", {{"label_smoothing", "0.1"}}},
        {"cross_entropy", {{"label_smoothing", "0.1"}, {"weights", "both"}, {"z_loss", "0.1"}, {"logp", "true"}}},
        {"cross_entropy", {{"label_smoothing", "0.1"}, {"weights", "both"}, {"target", "probabilities"}}},
        {"cross_entropy", {{"softcap", "5"}, {"temperature", "0.7"}, {"z_loss", "0.1"}, {"reduction", "none"}}},
        {"softmax", {{"with", "sink"}, {"causal", "true"}, {"causal_offset", "9"}, {"softcap", "5"}}},
        {"jsd", {{"beta", "0"}, {"temperature", "2"}}},
        {"jsd", {{"beta", "1"}, {"target", "true"}}},
        {"dpo", {{"label_smoothing", "0.1"}, {"nll", "0.5"}, {"beta", "1"}}},
        {"cpo", {{"loss", "simpo"}, {"label_smoothing", "0.1"}, {"nll", "0.5"}, {"beta", "2"}}},
        {"orpo", {{"nll", "1"}, {"beta", "1"}}},
        {"policy_loss", {{"delta", "1.5"}, {"importance", "sequence"}, {"loss", "dapo"}, {"items", "40"}}},
    };
    for (const auto& [op, options] : graphs) {
        CAPTURE(op);
        CHECK(disagreement(make_graph(op, {12, f32, options}), 3, 3) < kTolerance);
    }
}

// As people write them, with nothing detached: maxima that are subtracted, means in variances, scales of extrema.
TEST_CASE("the gradient of what is written by hand is its finite difference") {
    constexpr std::string_view kHead = "rows tokens\ninput x: f32[tokens, 12]\ninput b: f32[tokens]\n";
    constexpr std::string_view kWritten[] = {
        "m = max(x)\ne = exp(x - m)\noutput y = e / sum(e)\n",
        "h = x / 0.7\nm = max(h)\ne = exp(h - m)\noutput y = m + log(sum(e))\noutput z = sum(e * h) / sum(e)\n",
        "m = maximum(max(x), b)\ne = exp(x - m)\noutput y = e / (sum(e) + exp(b - m))\n",
        "m = min(x)\ns = sum(exp(-2 * (x - m)))\noutput y = log(s) / 2 - m\noutput z = rsqrt(s) * exp(m)\n",
        "m = max(x)\ne = select(x > b, exp(x - m), 0)\noutput y = log(sum(e) + exp(b - m)) - (b - m)\n",
        // Which do depend on it.
        "m = max(x)\ne = exp(x - m)\noutput y = e / sum(e)\noutput z = m * b\n",
        "m = max(x)\noutput y = exp(x - m)\n",
        "m = max(x)\ns = sum(exp(x - m))\noutput y = m + 2 * log(s)\noutput z = s / (1 + s)\n",
        "m = max(x)\noutput y = sum(x - m)\n",
        "h = x * b\na = max(abs(h)) / 127\noutput y = a\noutput z = tanh(h / a)\n",
        // Means and what is left of a row without them.
        "d = x - mean(x)\nv = mean(d * d)\noutput y = d * rsqrt(v + 0.1) * b\n",
        "d = x - mean(x)\noutput y = d * d * d + d * b\noutput z = sum(d * d)\n",
        "d = x - sum(x) / 11\noutput y = d * rsqrt(sum(d * d) / 12 + 0.1)\n",
        "d = x - sum(x, tokens) / -1\noutput y = sum(d * d, tokens)\n",
        "n = extent(tokens, f32)\nd = x - sum(x, tokens) / n\noutput y = d * rsqrt(sum(d * d, tokens) / n + 0.1)\n",
    };
    for (const std::string_view written : kWritten) {
        CAPTURE(written);
        CHECK(disagreement(Graph::parse(std::string(kHead) + std::string(written)), 5, 3) < 1e-4);
    }
}

TEST_CASE("the gradient of rows at data along their own axis is its finite difference") {
    constexpr std::string_view kHead =
        "rows tokens\ncolumns d = 6\ninput x: f32[tokens, d]\ninput b: f32[tokens]\ninput order: i64[tokens]\n";
    constexpr std::string_view kWritten[] = {
        // Neighbours: what lies outside is 0.
        "at = iota(tokens, i64) - 2\noutput y = exp(index(x, at, d)) * x\n",
        "at = 1 + cast(iota(tokens, i64) + 1, i32)\noutput y = tanh(index(x * b, at, d) - x) * b\n",
        "before = iota(tokens, i64) - 1\noutput y = x * b + index(x, before, d) * index(b, before)\n",
        "output y = exp(index(x, iota(tokens, i64) + 1, d)) * index(b, iota(tokens, i64) - 2)\n",
        // Any order, of which one row may be taken twice.
        "at = 3 - iota(tokens, i64)\noutput y = index(x, at, d) * x\n",
        "output y = index(x * b, order, d) * x\n",
        "output y = index(x, order, d) * index(b, order) + index(x * x, order, d)\n",
        // Of what an extremum over rows and one over columns leave.
        "least = min(x * x, tokens)\nfar = max(x * x - least)\noutput y = index(far, order) * b\n",
    };
    for (const std::string_view written : kWritten) {
        CAPTURE(written);
        CHECK(disagreement(Graph::parse(std::string(kHead) + std::string(written)), 5, 3) < kTolerance);
    }
    // A shift is undone by a shift, and orders nothing.
    const Graph shifted = Graph::parse(std::string(kHead) + std::string(kWritten[0]));
    const Graph backward = gradient(shifted, {"x"});
    for (const NodeId id : backward.data()->live_nodes()) CHECK(backward.data()->node(id).kind != NodeKind::kSearch);
}

TEST_CASE("the gradient of rows that several lists or columns of ids take is its finite difference, of one order") {
    constexpr std::string_view kHead =
        "rows tokens\nrows slots = 11\ncolumns k = 3\ncolumns d = 4\ninput h: f32[slots, d]\ninput b: f32[slots]\n"
        "input w: f32[tokens, k]\ninput x: f32[tokens, d]\ninput ids: i64[tokens, k]\ninput others: i32[tokens]\n"
        "input few: i64[k]\ni0 = index(ids, tokens, 0)\ni1 = index(ids, tokens, 1)\ni2 = index(ids, tokens, 2)\n"
        "w0 = index(w, tokens, 0)\nw1 = index(w, tokens, 1)\n";
    constexpr std::string_view kGraphs[] = {
        // Ids along columns, with tokens in front of them and without.
        "output y = sum(exp(index(h, ids, d)) * w, k)\n",
        "output y = sum(index(h, ids, d) * index(b, ids), k) * x\n",
        "output y = x * sum(index(h, few, d), k)\n",
        "output y = max(index(h * b, (ids + cast(iota(k), i64) * 2) / 3, d) * w, k)\n",
        // Several lists: columns that follow each other, every second one, and lists that have nothing in common.
        "output y = index(h, i0, d) * w0 + index(h, i1, d) * w1 + index(h, i2, d) * index(w, tokens, 2)\n",
        "output y = index(h, i0, d) * x + tanh(index(h, i2, d))\n",
        "output y = sum((index(h, others, d) - index(h, i1, d)) * x)\n",
        "output y = index(h, others, d) + index(h, i2, d) + index(h, i0, d)\n",
    };
    for (const std::string_view written : kGraphs) {
        CAPTURE(written);
        const Graph graph = Graph::parse(std::string(kHead) + std::string(written));
        CHECK(disagreement(graph, 5, 3) < kTolerance);
        const Graph backward = gradient(graph, {"h"});
        const auto orders = std::ranges::count_if(backward.data()->live_nodes(), [&](NodeId id) {
            return backward.data()->node(id).kind == NodeKind::kOrder;
        });
        CHECK(orders == 1);
    }
}

TEST_CASE("the gradient of windows and of a column of each head is its finite difference") {
    constexpr std::string_view kGraphs[] = {
        // Windows over columns and over rows, some of whose elements no window has.
        "rows tokens\ncolumns w = 26\ncolumns o = 5\ncolumns k = 8\ninput x: f32[tokens, w]\n"
        "output y = sum(exp(index(x, tokens, o * 4 + k)), k)\n",
        "rows tokens\ncolumns w = 23\ncolumns o = 5\ncolumns k = 7\ninput x: f32[tokens, w]\ninput a: f32[k]\n"
        "output y = sum(tanh(index(x, tokens, o * 3 + k)) * a, k)\n",
        "rows batch\nrows t = 22\nrows o = 6\ncolumns c = 3\ncolumns k = 7\ninput x: f32[batch, t, c]\n"
        "output y = max(index(x, batch, o * 3 + k, c) * 2, k)\n",
        // A class of each of a token's heads, whose axis stands in front of the class's.
        "rows tokens\ncolumns h = 3\ncolumns v = 7\ninput x: f32[tokens, h, v]\ninput y: i64[tokens, h]\n"
        "output z = index(tanh(x), tokens, h, y)\n",
    };
    for (const std::string_view written : kGraphs) {
        CAPTURE(written);
        CHECK(disagreement(Graph::parse(written), 3, 3) < kTolerance);
    }
}

TEST_CASE("the gradient of runs of rows is its finite difference, and nothing is put in order") {
    constexpr std::string_view kHead =
        "rows batch\nrows t\nrows o\ncolumns c = 3\ncolumns k = 5\ncolumns l = 19\ninput x: f32[batch, t, c]\n"
        "input w: f32[k]\ni = iota(o, i64)\nj = cast(iota(k), i64)\n";
    constexpr std::string_view kWritten[] = {
        "output y = sum(exp(index(x, batch, i * 5 + j, c)), k)\n",
        "output y = sum(tanh(index(x, batch, 2 * i + j - 3, c)) * w, k)\n",
        "output y = index(x, batch, j + 3 * (i + 1), c) * w\n",
        "output y = max(index(x, batch, i + j, c), k)\n",
        // Of one row each, and of runs of which nine have a row.
        "output y = exp(index(x, batch, 3 * i - -1, c))\n",
        "output y = exp(index(x, batch, i * 7, c))\n",
        "output y = sum(sin(index(x, batch, i * 2 + cast(iota(l), i64), c)), l)\n",
        // Counted down, some apart, and from the end.
        "output y = sum(exp(index(x, batch, i - j, c)) * w, k)\n",
        "output y = sum(exp(index(x, batch, 3 * i - j + 2, c)) * w, k)\n",
        "output y = sum(exp(index(x, batch, 3 * i - j, c)), k)\n",
        "output y = sum(exp(index(x, batch, i + 2 * j - 4, c)) * w, k)\n",
        "output y = exp(index(x, batch, extent(t, i64) - 1 - i, c))\n",
        "output y = exp(index(x, batch, i * 2 + extent(t, i64) - 9, c))\n",
        // What flows back is one for all runs, or for all of a run.
        "output y = sum(index(x, batch, i * 2 + j, c), o)\n",
        "output y = sum(index(x, batch, i * 2 + j, c) * w, k)\n",
    };
    for (const std::string_view written : kWritten) {
        CAPTURE(written);
        const Graph graph = Graph::parse(std::string(kHead) + std::string(written));
        CHECK(disagreement(graph, 9, 3) < kTolerance);
        const Graph backward = gradient(graph, {"x"});
        for (const NodeId id : backward.data()->live_nodes()) CHECK(backward.data()->node(id).kind != NodeKind::kOrder);
    }
    // A convolution's steps are of the axis that they are along.
    constexpr std::string_view kSteps =
        "rows batch\nrows t\ncolumns k = 4\ncolumns c = 3\ninput x: f32[batch, t, c]\ninput w: f32[k, c]\n"
        "output y = sum(index(x, batch, iota(t, i64) + cast(iota(k), i64) - 3, c) * w, k)\n";
    CHECK(disagreement(Graph::parse(kSteps), 6, 3) < kTolerance);
    // Columns that the source has are read at rows of their own, and solved by nothing.
    const Graph skewed = Graph::parse(
        "rows t\ncolumns k = 4\ninput x: f32[t, k]\n"
        "output y = index(x, iota(t, i64) + cast(iota(k), i64), k)\n");
    CHECK(mentions(refusal(ErrorCode::kUnsupported, [&] { gradient(skewed); }), "rows of t are read at a data"));
    // Of two axes, in nine written runs and in 35 that are summed over.
    for (const std::string_view sizes : {"columns k = 3\ncolumns l = 3\n", "columns k = 5\ncolumns l = 7\n"}) {
        const std::string picture =
            "rows batch\nrows h\nrows v\n" + std::string(sizes) +
            "columns c = 2\ninput x: f32[batch, h, v, c]\ninput w: f32[k, l, c]\n"
            "at = iota(h, i64) + cast(iota(k), i64) - 1\nbeside = iota(v, i64) + cast(iota(l), i64) - 1\n"
            "output y = sum(sum(exp(index(x, batch, at, beside, c)) * w, l), k)\n";
        CHECK(disagreement(Graph::parse(picture), 4, 3) < kTolerance);
    }
}

// A choice by the place passes nothing back to what it does not choose there.
TEST_CASE("the gradient of what is chosen by a column's place is its finite difference") {
    constexpr std::string_view kHead =
        "rows tokens\ncolumns d = 12\ncolumns r = 6\ninput x: f32[tokens, d]\ninput w: f32[tokens, r]\nk = iota(d)\n";
    constexpr std::string_view kPartner = "p = index(x, tokens, (d + 3) % 6)\n";
    const auto written = [&](std::string_view outputs) {
        return std::string(kHead) + std::string(kPartner) + std::string(outputs);
    };
    const std::string graphs[] = {
        written("output y = select(k < 6, x * index(w, tokens, d % 6) + p * p, x)\n"),
        written("output y = select(k < 5, x * p, x)\n"),
        written("output y = select(k < 6, p * x, 0)\noutput z = select(k < 8, p, x)\n"),
        written("output y = sum(select(k >= 6, 0, p * p)) * x\n"),
        written("output y = select(k < 6, p, 0) * select(k >= 3, p, x)\n"),
        written("q = index(x, tokens, (d - 3) % 6 + 6)\noutput y = select(k >= 6, x * q, tanh(q) * p)\n"),
        written("output y = select(k < 9 && 2 < k, index(w, tokens, d % 6), 0) * x\n"),
        written("output y = select(k < 9 || k == 11, exp(index(w, tokens, d / 2)), x)\n"),
        written("output y = select(k < 0, p, x)\n"),
        written("output y = select(cast(k, f32) < 5.5, index(x, tokens, 5 - d % 6), p)\n"),
        written("output y = select(k < 6, index(p * x, tokens, (d + 1) % 6), p)\n"),
        // As a circulant's rows.
        written("output y = index(x * x, tokens, (d + tokens) % 12) * x\n"),
        written("output y = select(k < 6, index(x, tokens, (d - tokens) % 6), p) * x\n"),
    };
    for (const std::string& graph : graphs) {
        CAPTURE(graph);
        CHECK(disagreement(Graph::parse(graph), 3, 3) < kTolerance);
    }
    // Nothing is added up over places of which one adds something.
    const Graph rotated = gradient(make_graph("rope", {64, f32, {{"heads", "1"}, {"rotary", "4"}}}), {"x"});
    for (const NodeId id : rotated.data()->live_nodes()) CHECK(rotated.data()->node(id).kind != NodeKind::kReduce);
}

TEST_CASE("the gradient of a random graph is its finite difference") {
    const char* first = std::getenv("ROWJIT_FUZZ_FIRST");
    const char* count = std::getenv("ROWJIT_FUZZ_SEEDS");
    const std::uint64_t start = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
    const std::uint64_t seeds = count == nullptr ? 150 : std::strtoull(count, nullptr, 10);
    std::uint64_t unsupported = 0;
    for (std::uint64_t seed = start; seed < start + seeds; ++seed) {
        const Graph graph = random_graph(seed);
        try {
            const double error = disagreement(graph, 3, seed, 1);
            CHECK_MESSAGE(error < 1e-5, "seed ", seed, ": ", error, "\n", graph.print());
        } catch (const Error& error) {
            if (error.code() != ErrorCode::kUnsupported)
                FAIL_CHECK("seed " << seed << ": " << std::string(error.what()) << "\n" << graph.print());
            ++unsupported;
        }
    }
    CHECK(unsupported * 20 <= seeds);
}
