// Plans and derivatives of graphs in which a value is reached in 2^40 ways: a walk that goes each of them never
// returns. And what the planner refuses.
#include "compiler/plan/plan.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compiler/compile.h"
#include "compiler/plan/canonicalize.h"
#include "dsl/library/registry.h"
#include "rowjit/coord.h"
#include "rowjit/gradient.h"
#include "tests/support/groups_of_columns.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

Value squared_forty_times(Value v) {
    for (int i = 0; i < 40; ++i) v = v * v;
    return v;
}

std::size_t kernels(const Graph& graph) { return compile(*graph.data(), find_target("sm_90a")).steps.size(); }

std::size_t nodes_of(const Plan& plan) {
    std::size_t nodes = 0;
    for (const Group& group : plan.groups) nodes += group.graph->live_nodes().size();
    return nodes;
}

// Each value is the one before beside itself, so many columns further on.
Graph added_to_itself(const std::vector<int>& shifts) {
    std::string text = "rows tokens\ncolumns d = 4096\ninput x: f32[tokens, d]\nv0 = x\n";
    for (std::size_t i = 0; i < shifts.size(); ++i)
        text += fmt::format("v{} = index(v{}, tokens, (d + {}) % 4096) + v{}\n", i + 1, i, shifts[i], i);
    return Graph::parse(text + fmt::format("output y = v{}", shifts.size()), "shifts");
}

}  // namespace

TEST_CASE("a deep value below a sum over rows is planned at once") {
    Graph g;
    const Axis tokens = g.rows("tokens", 128);
    const Value deep = squared_forty_times(g.input("x", f32, {tokens, 64}));
    g.output("y", sum(deep, tokens));
    g.output("z", sum(deep * max(deep), tokens));
    CHECK(kernels(g) > 1);
}

TEST_CASE("sums over rows that share a kernel's result are planned at once, deep as their terms are") {
    Graph g;
    const Axis tokens = g.rows("tokens", 128);
    const Value x = g.input("x", f32, {tokens, 64});
    g.output("y", sum(x, tokens) + sum(squared_forty_times(x), tokens));
    CHECK(kernels(g) >= 1);
}

TEST_CASE("what a deep value's precision is spent on is known at once") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = cast(g.input("x", bf16, {tokens, 64}), f32);
    const Value deep = squared_forty_times(exp(x) / g.input("u", f32, {tokens}));
    g.output("y", cast(deep, bf16));
    g.output("z", sum(deep));
    CHECK(kernels(g) == 1);
}

TEST_CASE("whether two deep values are the same is known at once") {
    Graph g;
    const Value x = cast(g.input("x", bf16, {g.rows("tokens"), std::int64_t{1} << 20}), f32);
    const Value deep = squared_forty_times(x);
    g.output("y", sum(exp(deep - max(deep))));
    CHECK(kernels(g) == 1);
}

TEST_CASE("what a deep value weighs is known at once") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = cast(g.input("x", bf16, {tokens, 4096}), f32);
    const Value weight = exp(x - max(x));
    Value mixture = squared_forty_times(weight);
    for (int i = 0; i < 40; ++i) mixture = mixture + mixture;
    Value factor = log(mixture);
    for (int i = 0; i < 40; ++i) factor = factor + factor;
    g.output("y", sum(weight * factor));
    CHECK(kernels(g) == 1);
}

TEST_CASE("an index is pushed through a deep value at once") {
    Graph g;
    const Axis columns = g.columns(64);
    const Value deep = squared_forty_times(g.input("x", f32, {g.rows("tokens"), columns}));
    g.output("y", index(deep, columns, Coord(columns) * -1 + 63));
    const Plan plan = plan_graph(*g.data(), find_target("sm_90a"));
    REQUIRE(plan.groups.size() == 1);
    CHECK(plan.groups[0].graph->live_nodes().size() == 42);  // the input, the index of it and its squares
}

TEST_CASE("a deep value that is saved for the backward is told from one below a reduction at once") {
    for (const bool reduces : {false, true}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Value x = g.input("x", f32, {tokens, 64}) + g.input("z", f32, {tokens, 64});
        const Value deep = squared_forty_times(reduces ? x - max(x) : x);
        g.output("y", cast(deep, bf16) * g.input("w", bf16, {tokens, 64}));
        const Differentiated both = differentiate(g, {"w"});
        REQUIRE(both.saved.size() == 1);
        CHECK(both.saved[0].why ==
              (reduces ? "computing it again would reduce again" : "fewer bytes than what it is computed from"));
        CHECK(kernels(both.forward) == 1);
        CHECK(kernels(both.backward) == 1);
    }
}

TEST_CASE("the derivative of a deep value is found at once") {
    Graph g;
    g.output("y", squared_forty_times(g.input("x", f32, {g.rows("tokens"), 64})));
    const Differentiated both = differentiate(g);
    CHECK(kernels(both.backward) == 1);
    CHECK(both.backward.print().size() < 10000);
}

TEST_CASE("factors that sums differ by are found at once, deep as their terms are") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = g.input("x", f32, {tokens, 64});
    const Value r = g.input("r", f32, {tokens});
    g.output("a", sum(squared_forty_times(x * r)));
    g.output("b", sum(squared_forty_times(x * r) * x));
    CHECK(kernels(g) == 1);
}

TEST_CASE("what data would give a pushed computation's operands two orders of axes of is stored") {
    const Graph g = Graph::parse(
        "rows t\nrows u\ncolumns c = 1\ninput x: bf16[t, u, c]\ninput cut: bf16[u, c]\ninput place: i32[t, u]\n"
        "v = cut * x\ny = index(v, t, u, place)\noutput y\n");
    CHECK(kernels(g) == 2);
}

TEST_CASE("a matrix's gradient in the packed coefficients that it is made of is pushed into sums over both its sides") {
    const Graph g = make_graph("hyper_pre", {.columns = 64, .dtype = f32, .options = {{"iterations", "2"}}});
    const Graph joint = gradient(g, trained_inputs("hyper_pre", g), {.joint = true, .unit_cotangent = true});
    CHECK(kernels(joint) == 3);
}

TEST_CASE("columns that a kernel would take as rows in two orders are refused as unsupported") {
    const Graph g = Graph::parse(
        "rows t\ncolumns g = 5\ncolumns c = 31\ncolumns half = 2\ninput x: f32[t, g, c]\ninput turned: f32[t, c, g]\n"
        "y = index(x, t, half, c)\noutput y\noutput z = select(y > 0.25, x, 0.75)\noutput w = turned * turned\n");
    const auto kernels_of = [&](std::vector<std::string> inputs) {
        const Graph backward = gradient(g, std::move(inputs));
        return plan_graph(*backward.data(), find_target("sm_90a")).groups.size();
    };
    CHECK(kernels_of({"x"}) > 0);  // in one order
    CHECK(mentions(refusal(ErrorCode::kUnsupported, [&] { kernels_of({"x", "turned"}); }), "no kernel gives d_x"));
}

TEST_CASE("a chain of values added to themselves further on has no node for each way through it") {
    std::vector<int> doubled;
    std::vector<int> by_one_more;
    for (int i = 0; i < 12; ++i) doubled.push_back(1 << i);
    for (int i = 1; i < 30; ++i) by_one_more.push_back(i);
    // Of 4096 and of 2^29 ways, some tens are of one kernel each.
    for (const char* target : {"sm_90a", "x86-64-v3"}) {
        CHECK(nodes_of(plan_graph(*added_to_itself(doubled).data(), find_target(target))) < 500);
        CHECK(nodes_of(plan_graph(*added_to_itself(by_one_more).data(), find_target(target))) < 2000);
    }
    const Graph few = added_to_itself({1, 2, 4});
    CHECK(plan_graph(*few.data(), find_target("sm_90a")).groups.size() == 1);
}

TEST_CASE("numbers between two products that are reached in 2^40 ways are found at once") {
    const std::string text = [] {
        std::string lines =
            "rows tokens\ncolumns e = 256\ncolumns k = 128\ninput x: bf16[tokens, k]\ninput u: bf16[e, k]\n"
            "input v: bf16[e, k]\ninput w: f32[e]\np = cast(matmul(x, u, k), f32)\nq = cast(matmul(x, v, k), f32)\n"
            "n = rsqrt(mean(p * p))\nv0 = w * n\nv1 = w + n\n";
        for (int i = 2; i < 60; ++i) lines += fmt::format("v{} = tanh(v{}) * v{}\n", i, i - 1, i - 2);
        return lines + "output y = q + v59";
    }();
    CHECK(plan_graph(*Graph::parse(text, "products").data(), find_target("sm_90a")).products.size() == 2);
}

TEST_CASE("groups that no block has room for together are joined as far as they run, and few joins are tried") {
    // A step of an optimiser over ten tensors, with the ratio of norms that each has.
    std::string text = "rows r\nnorm0 = const(0, f32)\n";
    constexpr int kTensors = 10;
    for (int i = 0; i < kTensors; ++i) {
        for (const char* name : {"p", "g", "m", "v"}) text += fmt::format("input {}{}: f32[r, 1024]\n", name, i);
        text += fmt::format("norm{} = norm{} + sum(sum(g{} * g{}), r)\n", i + 1, i, i, i);
    }
    text += fmt::format("scale = minimum(1.0 / (sqrt(norm{}) + 1e-6), 1.0)\n", kTensors);
    for (int i = 0; i < kTensors; ++i) {
        text += fmt::format(
            "s{0} = g{0} * scale\nm1{0} = m{0} * 0.9 + s{0} * 0.1\nv1{0} = v{0} * 0.99 + s{0} * s{0} * 0.01\n"
            "u{0} = m1{0} / (sqrt(v1{0}) + 1e-8)\n"
            "ratio{0} = sqrt(sum(sum(p{0} * p{0}), r)) / sqrt(sum(sum(u{0} * u{0}), r))\n"
            "output po{0} = p{0} - u{0} * (1e-3 * ratio{0})\noutput mo{0} = m1{0}\noutput vo{0} = v1{0}\n",
            i);
    }
    const Graph graph = Graph::parse(text, "step");
    const Target target = find_target("sm_90a");
    const Program program = compile(*graph.data(), target);  // refused where groups are joined without a look
    CHECK(program.steps.size() > 3);
    CHECK(program.steps.size() < 40);
    int tried = 0;
    const Runs runs = [&](const Group& group) {
        ++tried;
        return group.graph->outputs().size() <= 4;
    };
    const Plan plan = make_plan(canonicalize(*graph.data()), target, Repeated::kWithRows, kTemporaryStem, runs);
    for (const Group& group : plan.groups) CHECK(group.graph->outputs().size() <= 4);
    CHECK(tried < 300);  // of some 50 pieces' 1000 pairs
}

TEST_CASE("what a convolution's taps each read at a row of their own is computed once, where that takes long") {
    const std::string taps = "rows t\ncolumns d = 4096\ninput x: bf16[t, d]\ninput w: f32[d]\nh = cast(x, f32) * w\n";
    const auto kernels = [](const std::string& text) {
        return compile(*Graph::parse(text).data(), find_target("x86-64-v4")).steps.size();
    };
    const auto of_two_rows = [](const std::string& value) {
        return "v = " + value + "\noutput y = index(v, iota(t, i64) + 1, d) + index(v, iota(t, i64) + 2, d)\n";
    };
    CHECK(kernels(taps + of_two_rows("sin(exp(tanh(log(h))) / (1 + exp(-h))) / exp(h)")) == 2);
    CHECK(kernels(taps + of_two_rows("h + w")) == 1);
    CHECK(kernels(taps + "v = sin(exp(tanh(log(h))) / (1 + exp(-h))) / exp(h)\n"
                         "output y = index(v, iota(t, i64) + 1, d)\n") == 1);
}

TEST_CASE("of several small axes a thread holds the positions of no more than leave neighbours side by side") {
    constexpr std::ptrdiff_t kMostInstructions = 500;  // of all 128 positions there are more than a thousand
    const Graph graph = Graph::parse(R"(
        rows n
        columns k = 8
        columns d = 16
        input mu: f32[n, k, d]
        input scale: f32[n, k, d]
        input y: f32[n, d]
        q = (y - mu) * exp(-scale)
        e = sum(-0.5 * q * q - scale, d)
        m = max(e, k)
        output nll = -(m + log(sum(exp(e - m), k))))");
    for (const char* name : {"sm_90a", "x86-64-v4"}) {
        for (const Graph& of : {graph, differentiate(graph).backward}) {
            for (const Step& step : compile(*of.data(), find_target(name)).steps) {
                std::ptrdiff_t instructions = 0;
                each_inst(step.kernel, [&](const Inst&) { ++instructions; });
                CHECK_MESSAGE(instructions <= kMostInstructions, name, " ", step.kernel.name);
            }
        }
    }
}

TEST_CASE("what groups of columns come to is found once for each group, not for each of its columns") {
    for (const char* name : {"sm_90a", "x86-64-v4"}) {
        for (const NamedGraph& of : grouped_columns(32, 128)) {
            const auto groups_of = [&](const Graph& graph) {
                return plan_graph(*graph.data(), find_target(name)).groups;
            };
            std::vector<Group> groups = groups_of(of.graph);
            for (Group& group : groups_of(differentiate(of.graph).backward)) groups.push_back(std::move(group));
            for (const Group& group : groups) {
                for (const NodeId id : group.graph->live_nodes()) {
                    const Node& node = group.graph->node(id);
                    const bool reduces = node.kind == NodeKind::kReduce && !group.graph->axis(node.reduced[0]).is_row;
                    if (!reduces) continue;
                    std::int64_t times = 1;
                    for (const AxisId axis : node.axes)
                        times *= std::max<std::int64_t>(group.graph->axis(axis).extent, 1);
                    CHECK_MESSAGE(times <= 128, of.what, " ", name, " ", group.graph->describe(id));
                }
            }
        }
    }
}

TEST_CASE("a norm of groups that overwrites what it reads stores the groups' numbers first") {
    const Graph graph = Graph::parse(
        "rows t\ncolumns b = 32\ncolumns e = 128\ncolumns d = 4096\ninput x: f32[t, d]\n"
        "g = index(x, t, b * 128 + e)\noutput y = x * index(rsqrt(mean(g * g, e)), t, d / 128) alias(x)\n");
    CHECK(kernels(graph) == 2);
}

// Seed 920157 of the random graphs, as far as its derivative needs: numbers of two dtypes that are too many at once.
TEST_CASE("numbers of two dtypes that are stored at once wait for each other in no ring") {
    const Graph graph = Graph::parse(
        "rows t\ncolumns g = 5\ncolumns c = 7\ninput x: bf16[t, g, c]\ninput place: i64[]\n"
        "v1 = index(x, t, g, place)\nv2 = index(v1, t, g * -1 + 4)\nv3 = min(x, t)\nv4 = v3 + v1\n"
        "v7 = tanh(sin(v1) + v3)\ny1 = sum(v7, t) * v2 * 0.015625\n"
        "at = ((const(2002, i64) + iota(t)) * 1001 + iota(g, i64)) * 1001 + iota(c, i64)\n"
        "v18 = select(uniform(13, 3, at) >= 0.5, v4, 0)\ny2 = select(iota(g) < 3, v18, 0)\n"
        "y0 = min(tanh(fma(y2, v4, y2)))\noutput y0\noutput y1\noutput y2\n");
    CHECK(compile(*differentiate(graph).backward.data(), find_target("sm_90a")).steps.size() > 1);
}
