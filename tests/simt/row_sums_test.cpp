// Sums over rows against the oracle: beside a reduction of each row, of weights that each group has, of each batch; and
// a packed row's gradient, which is stored a part at a time.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/library/registry.h"
#include "runtime/verify.h"
#include "tests/simt/cases.h"
#include "tests/simt/simt_device.h"
#include "tests/support/extrema_of_rows.h"
#include "tests/support/squares_of_rows.h"

using namespace rowjit;

namespace {

// A norm of each group of columns, with a weight for each column and a number for each group.
Graph weighted_groups(std::int64_t groups, std::int64_t width, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis group = g.columns("groups", groups);
    const Axis column = g.columns("width", width);
    const Value x = cast(g.input("x", dtype, {tokens, group, column}), f32);
    const Value gate = cast(g.input("gate", dtype, {tokens, group, column}), f32);
    const Value normed = cast(x * rsqrt(mean(x * x, column) + 1e-5), dtype) * g.input("weight", dtype, {group, column});
    g.output("y", cast(cast(normed, f32) * gate / (1 + exp(-gate)) * g.input("scale", f32, {group}), dtype));
    return g;
}

// Norms of groups of a head's columns, with weights of each: rows of two kinds, one of them declared.
Graph weighted_parts(std::int64_t heads, std::int64_t groups, std::int64_t width) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis head = g.rows("heads", heads);
    const Axis group = g.columns("groups", groups);
    const Axis column = g.columns("width", width);
    const Value x = g.input("x", bf16, {tokens, head, group, column});
    const Value h = cast(x, f32);
    const Value normed = cast(h * rsqrt(mean(h * h, column) + 1e-5), bf16);
    g.output("y", normed * g.input("weight", bf16, {head, group, column}));
    return g;
}

// A weight for each head, which are rows.
Graph weighted_heads(std::int64_t heads, std::int64_t width) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis head = g.rows("heads", heads);
    const Value x = g.input("x", bf16, {tokens, head, width});
    g.output("y", x * g.input("weight", bf16, {head, width}));
    return g;
}

// A head's norm, and a number beside it with a learned bias of each head: sums of numbers of a few positions.
Graph biased_numbers(std::int64_t heads, std::int64_t width) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis head = g.rows("heads", heads);
    const Value x = cast(g.input("x", bf16, {tokens, head, width}), f32);
    g.output("y", cast(x * rsqrt(mean(x * x) + 1e-5), bf16));
    g.output("decay", exp(-exp(cast(g.input("a", bf16, {tokens, head}), f32) + g.input("bias", f32, {head}))));
    return g;
}

// A norm with a scale and a shift of each batch, and of each frame of a batch where there are some.
Graph adaptive_norm(std::int64_t frames, std::int64_t columns, Dtype dtype) {
    Graph g;
    std::vector<Dim> outer = {g.rows("batch")};
    if (frames > 1) outer.emplace_back(g.rows("frames", frames));
    const Axis column = g.columns("c", columns);
    std::vector<Dim> rows = outer;
    rows.emplace_back(g.rows("tokens"));
    rows.emplace_back(column);
    outer.emplace_back(column);
    const Value x = cast(g.input("x", dtype, rows), f32);
    const Value normed = x * rsqrt(mean(x * x) + 1e-5);
    const Value scale = cast(g.input("scale", dtype, outer), f32);
    g.output("y", cast(normed * (1 + scale) + cast(g.input("shift", dtype, outer), f32), dtype));
    return g;
}

// A gate for each batch, and one for each head of a batch, beside no norm: of rows that nothing reduces.
Graph batch_gates(std::int64_t heads, std::int64_t width) {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis tokens = g.rows("tokens");
    const Axis column = g.columns("width", width);
    if (heads == 1) {
        g.output("y", g.input("x", bf16, {batch, tokens, column}) * g.input("gate", bf16, {batch, column}));
        return g;
    }
    const Axis head = g.rows("heads", heads);
    g.output("y", g.input("x", bf16, {batch, tokens, head, column}) * g.input("gate", bf16, {batch, head, column}));
    return g;
}

// Heads rotated by a token's tables, which they share: sums over a few rows of each token.
Graph rotated_heads(std::int64_t heads, std::int64_t width, Dtype tables) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis head = g.rows("heads", heads);
    const Axis column = g.columns("width", width);
    const Value read = g.input("x", bf16, {tokens, head, column});
    const std::int64_t half = width / 2;
    const Value partner = cast(index(read, column, (Coord(column) + half) % width), f32);
    const Value cosine = cast(g.input("cosine", tables, {tokens, column}), f32);
    const Value sine = cast(g.input("sine", tables, {tokens, column}), f32);
    const Value turned = select(g.iota(column) < g.constant(i32, static_cast<double>(half)), -partner, partner);
    g.output("y", cast(cast(read, f32) * cosine + turned * sine, bf16));
    return g;
}

// The mean of each batch's normed rows, which nothing stores.
Graph pooled_norm(std::int64_t columns) {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis tokens = g.rows("tokens", 20);
    const Value x = cast(g.input("x", bf16, {batch, tokens, columns}), f32);
    g.output("y", cast(mean(x * rsqrt(mean(x * x) + 1e-5), tokens), bf16));
    return g;
}

// A norm of rows to which places of a sequence are added, which a batch shares, with a weight or without.
Graph placed_norm(std::int64_t columns, Dtype places, bool has_weight) {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis tokens = g.rows("tokens");
    const Axis column = g.columns("width", columns);
    const Value x = cast(g.input("x", bf16, {batch, tokens, column}), f32);
    const Value h = x + cast(g.input("places", places, {tokens, column}), f32);
    const Value normed = h * rsqrt(mean(h * h) + 1e-5);
    g.output("y", cast(has_weight ? normed * cast(g.input("weight", bf16, {column}), f32) : normed, bf16));
    return g;
}

// Softmaxes of scores to which a mask that all heads share is added.
Graph masked_heads(std::int64_t heads, std::int64_t columns) {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis head = g.rows("heads", heads);
    const Axis query = g.rows("queries");
    const Axis key = g.columns("keys", columns);
    const Value score = cast(g.input("score", bf16, {batch, head, query, key}), f32);
    const Value x = score + g.input("mask", f32, {batch, query, key});
    const Value e = exp(x - max(x));
    g.output("y", cast(e / sum(e), bf16));
    return g;
}

// One number of all rows and columns, which takes several launches to judge. Of f32, whose sums are carried as pairs:
// a sum of narrow terms that cancel is as exact as its partial sums are, which the bar does not know.
Graph one_number(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    g.output("sum", sum(sum(cast(g.input("x", dtype, {tokens, columns}), f32)), tokens));
    return g;
}

}  // namespace

TEST_CASE("results that lie apart are reduced by threads that take neighbouring positions") {
    const Graph graph = Graph::parse(R"(
        rows batch = 2
        rows heads = 5
        rows q
        input x: f32[batch, heads, q]
        input y: bf16[batch, heads, q]
        output of_heads = sum(x, batch, q)
        output greatest = cast(max(y, batch, q), f32))");
    const Graph each = Graph::parse(R"(
        rows batch
        rows frames = 70
        input x: f32[batch, frames]
        output least = min(x, frames))");
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("heads", graph, target, &cases);
        add_cases("frames", each, target, &cases);
        check_cases(cases, target, 37);
    }
}

TEST_CASE("extrema over rows are found in parts, and so have the gradients what is theirs") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const NamedGraph& of : extrema_of_rows(72)) {
            add_cases(of.what, of.graph, target, &cases);
            if (target.warp_size == 32) add_backward_cases(of.what, of.graph, {}, target, &cases);
        }
        add_cases("a softmax of sequences", softmax_of_sequences(72), target, &cases);
        check_cases(cases, target, 37);
        check_cases({cases.front()}, target, 0);
    }
}

TEST_CASE("squared deviations of rows from their mean are as exact as those that are taken one by one") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const NamedGraph& of : squares_of_rows(72)) {
            // Of f32 a block's sums are exact to a few units, which show where they are stored.
            if (of.what == "a norm of channels" || (of.what == "a batch norm" && target.warp_size == 32))
                add_cases(of.what, of.graph, target, &cases);
        }
        each_built(cases, target, [&](std::size_t i, const Device& device, const Executable& executable) {
            for (const std::int64_t rows : {0, 1, 37, 400}) {
                const auto inputs = [&](std::uint64_t launch) {
                    return inputs_of(cases[i], extents_of(cases[i], rows), {.seed = i + launch * cases.size()});
                };
                const auto outputs = verify_several(device, executable, *cases[i].graph.data(), inputs, {});
                CHECK_MESSAGE(within_bar(outputs), cases[i].name, ", ", rows, " rows\n", describe(outputs));
            }
        });
    }
}

TEST_CASE("sums over rows beside a row reduction agree with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const std::int64_t columns : {7, 96, 1000}) {
            add_cases(fmt::format("norm_backward {}", columns), norm_backward(columns, bf16), target, &cases);
        }
        add_cases("norm_backward 256 f16", norm_backward(256, f16), target, &cases);
        for (const std::int64_t columns : {96, 1000})
            add_cases(fmt::format("one_number {} f32", columns), one_number(columns, f32), target, &cases);
        check_cases(cases, target, 19, false);
    }
}

TEST_CASE("functions of tables that a block computes once agree with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const auto& [columns, dtype] : {std::pair(3, "bf16"), {96, "bf16"}, {264, "f32"}}) {
            const Graph graph =
                Graph::parse(fmt::format("rows t\ncolumns d = {}\ninput x: {}[t, d]\ninput m: f32[d]\ninput v: f32[d]\n"
                                         "input w: f32[d]\nh = (cast(x, f32) - m) * rsqrt(v * v + 1e-5) / (1 + w * w)\n"
                                         "output y = cast(maximum(h, 0), {})\n",
                                         columns, dtype, dtype));
            add_cases(fmt::format("by moments {}", columns), graph, target, &cases);
            if (target.warp_size == 32) add_backward_cases("their gradients", graph, {"x", "w"}, target, &cases);
        }
        add_cases("by moments at places",
                  Graph::parse("rows t\ncolumns d = 96\ninput x: bf16[t, d]\ninput z: bf16[t, d]\ninput p: i64[d]\n"
                               "input v: f32[d]\nh = index(x, t, p) * z\n"
                               "output y = cast(cast(h, f32) * rsqrt(v * v + 1e-5), bf16)\n"
                               "output s = sum(cast(z, f32) * rsqrt(v * v + 1), t)\n"),
                  target, &cases);
        // The numbers are narrow: a sum of quotients by small ones is by chance a unit further off than eager's.
        const Graph codes = Graph::parse(
            "rows t\ncolumns d = 264\ninput z: bf16[t, d]\ninput half: bf16[d]\nk = cast(half, f32)\n"
            "b = tanh(cast(z, f32)) * k\nq = b + detach(floor(b + 0.5) - b)\noutput y = cast(q / k, bf16)\n");
        add_cases("codes of levels", codes, target, &cases);
        if (target.warp_size == 32) add_backward_cases("codes of levels", codes, {"z", "half"}, target, &cases);
        add_cases("by scales",
                  Graph::parse("rows t\ncolumns d = 96\ninput x: bf16[t, d]\ninput s: f32[d]\n"
                               "h = cast(x, f32) / s\na = maximum(max(abs(h)), 1e-8) / 127\n"
                               "output q = cast(round(h / a), i8)\noutput scale = a\n"),
                  target, &cases);
        const auto computes_before = [](const Case& one) { return !one.program.steps[0].kernel.before.empty(); };
        CHECK(std::ranges::count_if(cases, computes_before) > 10);
        check_cases(cases, target, 11, false);
    }
}

TEST_CASE("sums over rows of a weight for each group agree with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        const auto adds_apart = [&](std::size_t first) {
            return std::ranges::any_of(cases.at(first).program.steps,
                                       [](const Step& step) { return !step.kernel.apart.empty(); });
        };
        const auto add = [&](const std::string& what, const Graph& graph, const std::vector<std::string>& trained) {
            const std::size_t first = cases.size();
            add_backward_cases(what, graph, trained, target, &cases);
            return adds_apart(first);
        };
        const std::vector<std::string> trained = {"x", "gate", "weight", "scale"};
        CHECK(add("weighted_groups", weighted_groups(16, 64, bf16), trained));
        CHECK(add("weighted_heads", weighted_heads(16, 64), {"x", "weight"}));
        CHECK(add("weighted_parts", weighted_parts(3, 8, 64), {"x", "weight"}));
        // Rows of eight threads, twelve of which are no whole waves of 64; and rows of a warp or more.
        CHECK(add("weighted_groups of 12", weighted_groups(12, 64, bf16), trained));
        if (target.warp_size == 32) CHECK(add("weighted_groups f32", weighted_groups(3, 264, f32), trained));
        // Groups of a row's columns, of which each is reduced by itself.
        const std::size_t codes = cases.size();
        add_cases("uses of codes",
                  Graph::parse("rows t\ncolumns g = 2\ncolumns v = 72\ninput x: bf16[t, g, v]\nh = cast(x, f32)\n"
                               "e = exp(h - max(h, v))\noutput use = sum(e / sum(e, v), t)\n"),
                  target, &cases);
        CHECK(adds_apart(codes));
        const Graph scaled = Graph::parse(
            "rows t\ncolumns h = 16\ncolumns d = 32\ninput x: bf16[t, h, d]\ninput scale: f32[h]\nf = cast(x, f32)\n"
            "output y = cast(f * rsqrt(sum(f * f, d) + 1e-6) * exp(scale), bf16)\n");
        CHECK(add("scaled heads", scaled, {"x", "scale"}));
        // Fewer positions than a block has rows, each several times.
        for (const std::int64_t heads : {16, 5}) {
            const std::size_t first = cases.size();
            CHECK(add(fmt::format("biased_numbers of {}", heads), biased_numbers(heads, 64), {"x", "a", "bias"}));
            const std::vector<Step>& steps = cases.at(first).program.steps;
            CHECK(std::ranges::any_of(
                steps, [](const Step& step) { return !step.kernel.apart.empty() && step.kernel.rows_of_place() > 1; }));
        }
        check_cases(cases, target, 7, false);
    }
}

TEST_CASE("sums over rows of each batch share a kernel with the rows and agree with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        const auto has_outer = [&](std::size_t first) {
            const std::vector<Step>& steps = cases.at(first).program.steps;
            return steps.size() == 2 && !steps[0].kernel.outer.empty();
        };
        const auto add = [&](const std::string& what, const Graph& graph) {
            const std::size_t first = cases.size();
            add_backward_cases(what, graph, {}, target, &cases);
            return has_outer(first);
        };
        CHECK(add("adaptive_norm", adaptive_norm(1, 96, bf16)));
        CHECK(add("adaptive_norm f16", adaptive_norm(1, 515, f16)));
        CHECK(add("adaptive_norm of frames", adaptive_norm(3, 264, bf16)));
        CHECK(add("batch_gates", batch_gates(1, 264)));
        CHECK(add("batch_gates of heads", batch_gates(16, 64)));
        const std::size_t pooled = cases.size();
        add_cases("pooled_norm", pooled_norm(264), target, &cases);
        CHECK(has_outer(pooled));
        for (std::size_t i = cases.size(); i-- > pooled;) cases.push_back(turned(cases[i]));
        for (const std::int64_t rows : {3, 11}) check_cases(cases, target, rows, false);
    }
}

TEST_CASE("sums over a batch of each of its rows' places share a kernel with the rows, under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        const auto add = [&](const std::string& what, const Graph& graph, std::size_t outer) {
            const std::size_t first = cases.size();
            add_backward_cases(what, graph, {}, target, &cases);
            const Kernel& kernel = cases.at(first).program.steps[0].kernel;
            CHECK_MESSAGE(kernel.outer.size() == outer, what);
            CHECK(kernel.row_axes.size() == outer + 1);
        };
        if (target.warp_size == 32) {
            add("beside a weight's", placed_norm(24, bf16, true), 1);
            add("of a mask", masked_heads(24, 40), 2);
        } else {
            add("of places in f32", placed_norm(40, f32, false), 1);
        }
        cases.push_back(turned(cases.back()));
        check_cases(cases, target, 3, false);
    }
}

// Of many rows of one sign, which a thread adds up one after the other.
TEST_CASE("sums over a batch that are stored in f32 are as exact as eager's") {
    const Target target = simt::target("sm_90a");
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis tokens = g.rows("tokens");
    const Axis column = g.columns("width", 24);
    const Value x = cast(g.input("x", bf16, {batch, tokens, column}), f32);
    const Value normed = x * rsqrt(mean(x * x) + 1e-5);
    g.output("y", cast(normed, bf16));
    g.output("total", sum(normed * normed, batch));
    std::vector<Case> cases;
    add_cases("squares", g, target, &cases);
    CHECK(cases.at(0).program.steps[0].kernel.most_rows_of_part > 0);
    cases.erase(cases.begin() + 1, cases.end());
    check_cases(cases, target, 200, false);
}

// Tables are narrow: of f32 a sum of twenty terms is as exact as eager's in the mean, and by chance a unit more at
// worst.
TEST_CASE("sums over the few heads of a token agree with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        if (target.warp_size == 32) add_backward_cases("bf16", rotated_heads(20, 128, bf16), {}, target, &cases);
        add_backward_cases("f16", rotated_heads(20, 48, f16), {}, target, &cases);
        CHECK(std::ranges::any_of(cases, [&](const Case& one) {
            const Kernel& kernel = one.program.steps[0].kernel;
            return !kernel.outer.empty() && kernel.block_threads() <= 2 * target.warp_size;
        }));
        check_cases(cases, target, 2, false);
    }
}

TEST_CASE("the gradient of a packed row, stored a part at a time, agrees with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        const OptionMap packed = {{"packed", "true"}};
        for (const std::int64_t columns : {20, 264}) {
            add_backward_cases(fmt::format("packed swiglu {}", columns), make_graph("swiglu", {columns, bf16, packed}),
                               {"gate_up"}, target, &cases);
        }
        add_backward_cases("packed geglu f32", make_graph("geglu", {96, f32, packed}), {"gate_up"}, target, &cases);
        check_cases(cases, target, 5, false);
    }
}
