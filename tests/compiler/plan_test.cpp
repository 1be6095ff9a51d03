// Plans and derivatives of graphs in which a value is reached in 2^40 ways: a walk that goes each of them never
// returns. And what the planner refuses.
#include "compiler/plan/plan.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "compiler/compile.h"
#include "compiler/plan/canonicalize.h"
#include "compiler/plan/cutter.h"
#include "compiler/plan/live_numbers.h"
#include "compiler/plan/partial_sums.h"
#include "dsl/library/registry.h"
#include "rowjit/coord.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

Value squared_forty_times(Value v) {
    for (int i = 0; i < 40; ++i) v = v * v;
    return v;
}

std::size_t kernels(const Graph& graph) { return compile(*graph.data(), find_target("sm_90a")).steps.size(); }

// Each half of a head turns by itself, over vectors that do not divide it.
Graph turned_within_heads() {
    return Graph::parse(
        "rows tokens\ncolumns heads = 16\ncolumns d = 80\ninput x: bf16[tokens, heads, d]\n"
        "output y = x + index(x, tokens, heads, (d + 20) % 40 + (d / 40) * 40)\n");
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

TEST_CASE("1 + tanh is an exponential and a division where the tangent is used for nothing else") {
    for (const bool elsewhere : {false, true}) {
        Graph g;
        const Value x = g.input("x", f32, {g.rows("tokens"), 64});
        const Value tangent = tanh(x);
        g.output("y", x * (tangent + 1.0));
        if (elsewhere) g.output("slope", 1.0 - tangent * tangent);
        const Plan plan = plan_graph(*g.data(), find_target("sm_90a"));
        REQUIRE(plan.groups.size() == 1);
        const GraphData& planned = *plan.groups[0].graph;
        const std::vector<NodeId> live = planned.live_nodes();
        const auto count = [&](Op op) {
            return std::count_if(live.begin(), live.end(), [&](NodeId id) {
                return planned.node(id).kind == NodeKind::kMap && planned.node(id).op == op;
            });
        };
        CHECK(count(Op::kTanh) == (elsewhere ? 1 : 0));
        CHECK(count(Op::kExp) == (elsewhere ? 0 : 1));
        CHECK(count(Op::kDiv) == (elsewhere ? 0 : 1));
    }
}

TEST_CASE("a derivative that lacks an axis is spread over it by nothing that a kernel computes") {
    for (const std::string op : {"group_norm", "hyper_post"}) {
        const Graph backward = differentiate(make_graph(op, {4096, bf16, {}})).backward;
        REQUIRE(backward.print().find("iota(") != std::string::npos);  // the condition, always true, that has the axis
        for (const Group& group : plan_graph(*backward.data(), find_target("sm_90a")).groups) {
            const std::string text = Graph(std::make_shared<GraphData>(*group.graph)).print();
            CHECK_MESSAGE(text.find("iota(") == std::string::npos, text);
        }
    }
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

TEST_CASE("a sum of what is zero but at one position is what stands there") {
    Graph g;
    const Axis places = g.columns("places", 4);
    const Value x = g.input("x", bf16, {g.rows("tokens"), places});
    const Value wide = g.input("w", bf16, {g.rows("tokens"), 4096});
    const auto at = [&](double place) {
        return sum(select(g.iota(places) == g.constant(i32, place), x, g.constant(bf16, 0)));
    };
    g.output("y", wide * at(2) + at(5));  // which no position is: zero
    const Plan plan = plan_graph(*g.data(), find_target("sm_90a"));
    REQUIRE(plan.groups.size() == 1);
    const GraphData& planned = *plan.groups[0].graph;
    const std::vector<NodeId> live = planned.live_nodes();
    const auto count = [&](NodeKind kind) {
        return std::count_if(live.begin(), live.end(), [&](NodeId id) { return planned.node(id).kind == kind; });
    };
    CHECK(count(NodeKind::kIndex) == 1);
    CHECK(count(NodeKind::kReduce) == 1);
}

TEST_CASE("columns that are reduced and lie apart are rows, unless they are few, read again, or neighbours") {
    const auto sums_rows = [](std::string_view columns, std::string_view result) {
        const Graph g = Graph::parse(fmt::format("rows batch\n{}\ninput x: f32[batch, a, b]\n{}\n", columns, result));
        const Plan plan = plan_graph(*g.data(), find_target("sm_90a"));
        return std::ranges::any_of(plan.groups, [](const Group& group) { return group.reduces_rows; });
    };
    constexpr std::string_view kMany = "columns a = 100\ncolumns b = 64";
    CHECK(sums_rows(kMany, "output y = sum(x * x, a)"));
    CHECK(sums_rows(kMany, "output y = max(x, a)\noutput z = sum(x, a)"));
    CHECK(sums_rows(kMany, "k = iota(a)\noutput y = sum(select(k < 7, x, 0), a)"));
    CHECK_FALSE(sums_rows(kMany, "output y = sum(x, b)"));
    CHECK_FALSE(sums_rows(kMany, "output y = sum(x)"));
    CHECK_FALSE(sums_rows(kMany, "e = exp(x - max(x, a))\noutput y = sum(e, a)"));
    CHECK_FALSE(sums_rows(kMany, "output y = sum(x, a)\noutput z = x / sum(x, a)"));
    CHECK_FALSE(sums_rows(kMany, "output y = welford(x, a)"));
    CHECK_FALSE(sums_rows("columns a = 8\ncolumns b = 64", "output y = sum(x, a)"));
}

TEST_CASE("heads that are read at one place of each are held by a thread, not gathered") {
    const Graph g = Graph::parse(
        "rows tokens\ncolumns heads = 16\ncolumns d = 192\ncolumns r = 64\ninput x: bf16[tokens, heads, d]\n"
        "output y = sum(cast(index(x, tokens, heads, r + 128), f32), heads)\n");
    for (const Group& group : plan_graph(*g.data(), find_target("sm_90a")).groups) {
        for (const NodeId id : group.graph->live_nodes()) CHECK(group.graph->node(id).kind != NodeKind::kReduce);
    }
}

TEST_CASE("a row put together of two is held whole by what waits for a sum of it") {
    const std::string head =
        "rows tokens\ncolumns half = 1024\ncolumns c = 2048\ninput x: bf16[tokens, half]\ninput z: bf16[tokens, half]\n"
        "k = iota(c)\nh = cast(select(k < 1024, index(x, tokens, c % 1024), index(z, tokens, c % 1024)), f32)\n";
    const auto pieces = [&](const char* result) {
        const Graph g = Graph::parse(head + result);
        return plan_graph(*g.data(), find_target("sm_90a")).groups[0].graph->outputs().size();
    };
    CHECK(pieces("output y = cast(h * rsqrt(mean(h * h) + 1e-6), bf16)\n") == 1);
    CHECK(pieces("output y = cast(h / (1 + exp(-h)), bf16)\n") == 2);
}

TEST_CASE("vectors are as short as lie whole where a group of columns turns within itself") {
    const Graph g = turned_within_heads();
    CHECK(compile(*g.data(), find_target("sm_90a")).steps[0].kernel.schedule.vector == 4);
    // A table that heads share is not worth it.
    const Graph rope = make_graph("rope_complex", {.columns = 128, .dtype = f32});
    CHECK(compile(*rope.data(), find_target("sm_90a")).steps[0].kernel.schedule.vector == 4);
    // Nor are the ends of rows that begin anywhere, beside which vectors are whole.
    const Graph softmax = make_graph("softmax", {.columns = 30522, .dtype = bf16});
    CHECK(compile(*softmax.data(), find_target("sm_90a")).steps[0].kernel.schedule.peel);
}

TEST_CASE("the first of a kernel's legal schedules is the one that compile takes") {
    for (const char* name : {"sm_90a", "gfx942", "x86-64-v3"}) {
        const Target target = find_target(name);
        for (const Graph& graph : {turned_within_heads(), make_graph("rope_complex", {.columns = 128, .dtype = f32}),
                                   make_graph("layer_norm", {.columns = 4096})}) {
            const Step step = compile(*graph.data(), target).steps.at(0);
            CAPTURE(name);
            CHECK(print(legal_schedules(step.group, target).at(0)) == print(step.kernel.schedule));
        }
    }
}

TEST_CASE(
    "in a fraction of a warp a row has few threads: of numbers with several vectors, none of them idle of others") {
    const auto threads = [](const char* op, std::int64_t columns, Dtype dtype) {
        const Graph g = make_graph(op, {.columns = columns, .dtype = dtype});
        return compile(*g.data(), find_target("sm_90a")).steps[0].kernel.schedule.threads_per_row;
    };
    CHECK(threads("logsumexp", 80, bf16) == 4);
    CHECK(threads("logsumexp", 256, bf16) == 16);
    CHECK(threads("cross_entropy", 80, bf16) == 2);
    CHECK(threads("cross_entropy", 40, bf16) == 1);
    CHECK(threads("cross_entropy", 4096, bf16) >= 32);
    CHECK(threads("kl_div", 80, bf16) == 4);
    CHECK(threads("softmax", 40, bf16) == 4);
    CHECK(threads("softmax", 64, bf16) == 8);
    CHECK(threads("softmax", 80, f32) == 16);
    CHECK(threads("add_rms_norm", 72, bf16) == 8);
}

TEST_CASE("a difference of sums that other rows ask for is stored, not its sums") {
    OpRequest request = {4096, f32, {}};
    request.options["loss"] = "aot";  // which has the differences of all sequences in order
    const Plan plan = plan_graph(*make_graph("dpo", request).data(), find_target("sm_90a"));
    const GraphData& sums = *plan.groups.front().graph;
    CHECK(sums.outputs().size() == 2);
    for (const OutputInfo& output : sums.outputs()) {
        const Node& number = sums.node(output.node);
        CHECK(number.kind == NodeKind::kMap);
        CHECK(number.op == Op::kSub);
    }
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

namespace {

bool reads(const Step& step, std::string_view tensor) {
    const std::vector<KernelTensor>& tensors = step.kernel.tensors;
    return std::any_of(tensors.begin(), tensors.end(), [&](const KernelTensor& t) { return t.name == tensor; });
}

std::string kernel_text(const Graph& graph) {
    const Plan plan = plan_graph(*graph.data(), find_target("sm_90a"));
    REQUIRE(plan.groups.size() == 1);
    return Graph(std::make_shared<GraphData>(*plan.groups[0].graph)).print();
}

}  // namespace

TEST_CASE("the derivative of a quotient by a row's number uses the quotient that its sum needs") {
    Graph g;
    g.output("y", softmax(g.input("x", bf16, {g.rows("tokens"), 64})));
    const std::string text = kernel_text(differentiate(g, {"x"}).backward);
    std::size_t divisions = 0;
    for (std::size_t at = text.find(" / "); at != std::string::npos; at = text.find(" / ", at + 1)) ++divisions;
    CHECK_MESSAGE(divisions == 1, text);
}

TEST_CASE("twice a product with a row's number is made by doubling the number") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value product = g.input("u", f32, {tokens}) * g.input("x", f32, {tokens, 64});
    g.output("y", product + product);
    const std::string text = kernel_text(g);
    CHECK_MESSAGE(text.find("= u + u") != std::string::npos, text);
}

TEST_CASE("sums whose terms differ by numbers of the row are one sum, whatever the order that inputs come in") {
    const auto sums = [](bool x_first) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Value first = g.input(x_first ? "x" : "dy", f32, {tokens, 64});
        const Value second = g.input(x_first ? "dy" : "x", f32, {tokens, 64});
        const Value& x = x_first ? first : second;
        const Value& dy = x_first ? second : first;
        const Value r = g.input("r", f32, {tokens});
        g.output("weight", sum(dy * (x * r)));
        g.output("statistic", sum(dy * g.scalar("scale", f32, 1) * x));
        return kernel_text(g);
    };
    const std::string text = sums(true);
    const std::size_t first = text.find("sum(");
    REQUIRE_MESSAGE(first != std::string::npos, text);
    CHECK_MESSAGE(text.find("sum(", first + 1) == std::string::npos, text);
    CHECK_MESSAGE(text.find("v1 = dy * x") != std::string::npos, text);
    CHECK_MESSAGE(sums(false).find("v1 = dy * x") != std::string::npos, sums(false));
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

TEST_CASE("data that would give a pushed computation's operands two orders of axes is refused as unsupported") {
    const Graph g = Graph::parse(
        "rows t\nrows u\ncolumns c = 1\ninput x: bf16[t, u, c]\ninput cut: bf16[u, c]\ninput place: i32[t, u]\n"
        "v = cut * x\ny = index(v, t, u, place)\noutput y\n");
    const auto plan = [&] { plan_graph(*g.data(), find_target("sm_90a")); };
    CHECK(mentions(refusal(ErrorCode::kUnsupported, plan), "data along [t, u]"));
}

TEST_CASE("a kernel that stores pieces of a tensor is tuned as a graph of its own") {
    const Graph graph = make_graph("group_norm", {4096, bf16, {}});
    const Plan plan = plan_graph(*gradient(graph, {"x", "weight"}).data(), find_target("sm_90a"));
    const auto stores_pieces = [](const Group& group) {
        return std::any_of(group.graph->outputs().begin(), group.graph->outputs().end(),
                           [](const OutputInfo& output) { return output.piece.has_value(); });
    };
    REQUIRE(std::any_of(plan.groups.begin(), plan.groups.end(), stores_pieces));
    for (const Group& group : plan.groups) CHECK_NOTHROW(with_whole_sums(*group.graph));
}

TEST_CASE("a kernel that sums columns too many for parts is tuned as a graph of its own") {
    const Graph graph = make_graph("layer_norm", {262144, bf16, {}});
    const Target& target = find_target("sm_90a");
    const Plan plan = plan_graph(*gradient(graph, {"x", "weight", "bias"}).data(), target);
    const auto sums = std::find_if(plan.groups.begin(), plan.groups.end(),
                                   [](const Group& group) { return group.reduces_rows && !adds_parts(*group.graph); });
    REQUIRE(sums != plan.groups.end());
    const Plan again = plan_graph(*with_whole_sums(*sums->graph), target);
    REQUIRE(again.groups.size() == 1);
    CHECK(again.groups[0].reduces_rows);
    CHECK(group_bytes(*again.groups[0].graph, 8192) == group_bytes(*sums->graph, 8192));
    CHECK(legal_schedules(again.groups[0], target) == legal_schedules(*sums, target));
}

TEST_CASE("results have the fewer threads the more of them there are, as parts of wide sums are few") {
    const auto threads_of = [](std::int64_t columns) {
        const Graph graph = make_graph("rms_norm", {columns, bf16, {}});
        const Plan plan = plan_graph(*gradient(graph, {"x", "weight"}).data(), find_target("sm_90a"));
        REQUIRE(adds_parts(*plan.groups.back().graph));
        return legal_schedules(plan.groups.back(), find_target("sm_90a"))[0].threads_per_row;
    };
    CHECK(threads_of(4096) == 32);
    CHECK(threads_of(32768) == 8);
    CHECK(threads_of(262144) == 1);
}

TEST_CASE("sums of a group that no block holds are sums of its channels' on a GPU, and its rows are read elementwise") {
    const auto backward_of = [](std::int64_t spatial) {
        const Graph graph = make_graph("group_norm", {spatial, bf16, {{"groups", "32"}, {"channels", "16"}}});
        return differentiate(graph, trained_inputs("group_norm", graph)).backward;
    };
    const auto waiting = [](const Graph& graph, const char* target) {
        const Plan plan = plan_graph(*graph.data(), find_target(target));
        return std::count_if(plan.groups.begin(), plan.groups.end(), [](const Group& group) {
            const std::vector<NodeId> live = group.graph->live_nodes();
            return std::any_of(live.begin(), live.end(), [&](NodeId id) {
                const Node& node = group.graph->node(id);
                return node.kind == NodeKind::kReduce && node.reduced.size() > 1;
            });
        });
    };
    CHECK(waiting(backward_of(4096), "sm_90a") == 0);
    CHECK(waiting(backward_of(4096), "gfx942") == 0);
    CHECK(waiting(backward_of(4096), "x86-64-v3") == 1);
    CHECK(waiting(backward_of(1024), "sm_90a") == 1);
}

TEST_CASE("sums over rows of what other sums over rows are needed for read the rows again, and store no row") {
    const Graph graph = Graph::parse(R"(
rows tokens
input x: bf16[tokens, 1536]
input w: f32[1536]
input b: f32[1536]
n = extent(tokens, f32)
mean = sum(cast(x, f32), tokens) / n
d = cast(x, f32) - mean
var = sum(d * d, tokens) / n
output y = cast(d * rsqrt(var + 1e-5) * w + b, bf16)
output mean
output var
)");
    for (const Graph& one : {graph, differentiate(graph).backward}) {
        const Plan plan = plan_graph(*one.data(), find_target("sm_90a"));
        const auto is_of_rows = [&](AxisId axis) {
            return plan.graph->axis(axis).is_row && !plan.graph->axis(axis).is_slots;
        };
        for (const Temporary& stored : plan.temporaries)
            CHECK_FALSE(std::any_of(stored.axes.begin(), stored.axes.end(), is_of_rows));
        // Nor are parts of a sum added up for each row.
        for (const Group& group : plan.groups) {
            if (adds_parts(*group.graph)) CHECK(group_bytes(*group.graph, 8192) < 8192 * 1536);
        }
    }
}

TEST_CASE("of a row's numbers no kernel for a GPU has more at once than a thread's registers hold") {
    const Graph graph = make_graph("hyper_pre", {4096, bf16, {}});
    const Graph backward = differentiate(graph, trained_inputs("hyper_pre", graph)).backward;
    const Plan plan = plan_graph(*backward.data(), find_target("sm_90a"));
    CHECK(plan.groups.size() > 3);
    for (const Group& group : plan.groups) {
        CAPTURE(group.name);
        CHECK(values_that_part(*group.graph, group.graph->live_nodes()).empty());
    }
    // Registers run over into a processor's first cache, which is as good as a kernel more.
    CHECK(plan_graph(*backward.data(), find_target("x86-64-v3")).groups.size() <= 4);
}

TEST_CASE("of many steps' numbers what the first half makes is stored once, and neither half waits for rows") {
    const auto reads = [](const Group& group, std::string_view stem) {
        return std::ranges::any_of(group.graph->live_nodes(), [&](NodeId id) {
            return group.graph->node(id).kind == NodeKind::kInput && group.graph->node(id).name.starts_with(stem);
        });
    };
    for (const std::int64_t columns : {1024, 4096}) {
        const Graph graph = make_graph("hyper_pre", {columns, bf16, {}});
        const Graph backward = differentiate(graph, trained_inputs("hyper_pre", graph)).backward;
        const std::vector<Group> groups = plan_graph(*backward.data(), find_target("sm_90a")).groups;
        REQUIRE(groups.size() == 5);  // steps, their derivative, rows, what their sums make, sums of parts
        CHECK(!reads(groups[0], "tmp"));
        CHECK(reads(groups[1], "tmp"));
        for (const std::size_t numbers : {0, 1}) CHECK(!reads(groups[numbers], "x"));
        CHECK(reads(groups[2], "x"));
        CHECK(!reads(groups[2], "tmp"));
        // Where no kernel begins before the one before it has ended, there is nothing to run beside.
        CHECK(plan_graph(*backward.data(), find_target("sm_80")).groups.size() == 4);
    }
}

TEST_CASE("sums of what is known to be zero at some places of a concatenation need none of what others are made of") {
    const Graph graph = Graph::parse(R"(
        rows tokens
        columns both = 2
        input a: f32[tokens]
        input b: f32[tokens]
        i = iota(both)
        first = select(i < 1, 0.0, a) + select(i < 1, 0.0, b)
        second = select(i < 1, a + 1.0, 0.0)
        output y = first + second)");
    const GraphData& data = *graph.data();
    const AxisId both = data.node(data.outputs()[0].node).axes[1];
    const std::shared_ptr<const GraphData> unrolled = canonicalize(data, {both});
    REQUIRE(unrolled->outputs().size() == 2);
    const std::vector<bool> needed = planning::needs(*unrolled, {unrolled->outputs()[0].node});
    CHECK(needed[static_cast<std::size_t>(*unrolled->find_input("a"))]);
    CHECK(!needed[static_cast<std::size_t>(*unrolled->find_input("b"))]);
}

TEST_CASE(
    "eight streams' coefficients have a plan that runs, whose stored numbers share tensors and whose sums are few") {
    const Graph graph = make_graph("hyper_pre", {64, bf16, {{"streams", "8"}, {"iterations", "2"}}});
    const Graph backward = differentiate(graph, trained_inputs("hyper_pre", graph)).backward;
    const Program program = compile(*backward.data(), find_target("sm_90a"));
    CHECK(program.tensors.size() <= kMostTensors);
    const auto packed = std::count_if(program.axes.begin(), program.axes.end(), [](const AxisInfo& axis) {
        return axis.name.starts_with("rj_numbers_") && axis.extent > 1;
    });
    CHECK(packed > 0);
    for (const Step& step : program.steps) {
        CAPTURE(step.kernel.name);
        const GraphData& planned = *step.group.graph;
        const std::vector<NodeId> live = planned.live_nodes();
        CHECK(values_that_part(planned, live).empty());
        const auto sums = std::count_if(live.begin(), live.end(), [&](NodeId id) {
            const Node& node = planned.node(id);
            return node.kind == NodeKind::kReduce && planned.axis(node.reduced[0]).is_row;
        });
        const auto parts = std::count_if(planned.outputs().begin(), planned.outputs().end(),
                                         [](const OutputInfo& output) { return output.slots >= 0; });
        CHECK(sums + parts <= 32);
    }
}

TEST_CASE(
    "a sum over rows stores the last sum of a head's columns below it, and reads the head once with what is first") {
    const Graph graph = Graph::parse(R"(
        rows tokens
        columns heads = 8
        columns keys = 1024
        input scores: bf16[tokens, heads, keys]
        input temperature: f32[heads]
        h = cast(scores, f32) * temperature
        e = exp(h - max(h, keys))
        output p = cast(e / sum(e, keys), bf16))");
    const Graph backward = differentiate(graph).backward;
    const Program program = compile(*backward.data(), find_target("sm_90a"));
    CHECK(std::ranges::count_if(program.steps, [](const Step& step) { return reads(step, "scores"); }) == 1);
    CHECK(program.steps.size() == 3);
}

TEST_CASE("what columns make of a number of a head is summed over them first, in the kernel that has the row") {
    const auto plan_of = [](const std::string& terms) {
        const Graph graph = Graph::parse(R"(
            rows heads = 16
            rows tokens
            columns keys = 4096
            input x: bf16[heads, tokens, keys]
            input slope: f32[heads]
            )" + terms);
        return plan_graph(*differentiate(graph).backward.data(), find_target("sm_90a"));
    };
    const auto bytes = [](const Plan& plan) {
        double all = 0;
        for (const Group& group : plan.groups) all += group_bytes(*group.graph, 4096);
        return all;
    };
    const double row = 16.0 * 4096 * 4096 * 2;  // of each tensor of a head's rows
    const Plan linear = plan_of("output y = cast(cast(x, f32) + slope * cast(iota(keys), f32), bf16)");
    CHECK(bytes(linear) < 2.01 * row);
    const Plan softmax = plan_of(R"(s = cast(x, f32) + slope * cast(iota(keys), f32)
            e = exp(s - max(s))
            output p = cast(e / sum(e), bf16))");
    CHECK(softmax.groups.size() == 2);
    CHECK(bytes(softmax) < 3.01 * row);
}

TEST_CASE("sums over the rows of each batch are made where those rows are, if anything else is made of them") {
    const std::string rows = R"(
        rows batch
        rows tokens
        columns c = 1152
        input x: bf16[batch, tokens, c]
        h = cast(x, f32)
    )";
    const auto plan_of = [&](const std::string& rest, bool backward) {
        const Graph graph = Graph::parse(rows + rest);
        return plan_graph(backward ? *differentiate(graph).backward.data() : *graph.data(), find_target("sm_90a"));
    };
    const std::string norm = R"(input scale: bf16[batch, c]
        input shift: bf16[batch, c]
        d = h - mean(h)
        output y = cast(d * rsqrt(mean(d * d) + 1e-6) * (1 + cast(scale, f32)) + cast(shift, f32), bf16)
    )";
    const Plan adaptive = plan_of(norm, true);
    REQUIRE(adaptive.groups.size() == 2);
    CHECK(makes_parts(*adaptive.groups[0].graph));
    CHECK(adds_parts(*adaptive.groups[1].graph));
    // The group by itself, as the tuner has it, is planned as it was.
    const Plan again = plan_graph(*with_whole_sums(*adaptive.groups[0].graph), find_target("sm_90a"));
    REQUIRE(again.groups.size() == 2);
    CHECK(makes_parts(*again.groups[0].graph));
    CHECK(group_bytes(*again.groups[0].graph, 8192) == group_bytes(*adaptive.groups[0].graph, 8192));
    // Two inputs and a gradient of each row, of 8192; of a batch, as many, a scale, two gradients and parts of them.
    const double row_bytes = 3 * 1152 * 2 + 2 * 4;
    const double batch_bytes = 1152 * (2 + 2 * 4);
    CHECK(group_bytes(*adaptive.groups[0].graph, 8192) == doctest::Approx(8192 * (row_bytes + batch_bytes)));
    // A sum by itself is one kernel's, unless that has a reduction's result to read the row again for.
    CHECK(plan_of("output total = cast(sum(h, tokens), bf16)", false).groups.size() == 1);
    const std::string pooled = "sum(h * rsqrt(mean(h * h) + 1e-6), tokens)";
    CHECK(makes_parts(*plan_of("output total = cast(" + pooled + ", bf16)", false).groups[0].graph));
    // What is seen in f32 is added up as exactly as it was.
    CHECK(!makes_parts(*plan_of("output total = " + pooled, false).groups[0].graph));
    // Rows of a batch's own, of which there are few, have their sums as they had.
    const Graph few = Graph::parse(R"(
        rows tokens
        rows group = 8
        columns c = 128
        input x: bf16[tokens, group, c]
        h = cast(x, f32)
        output y = cast(h * rsqrt(mean(h * h) + 1e-6), bf16)
        output total = cast(sum(h, group), bf16))");
    for (const Group& group : plan_graph(*few.data(), find_target("sm_90a")).groups) CHECK(!makes_parts(*group.graph));
}

TEST_CASE("as many blocks have parts of each batch as take the rows of all batches in the fewest turns") {
    const Graph graph = Graph::parse(R"(
        rows batch
        rows tokens
        columns c = 1152
        input x: bf16[batch, tokens, c]
        input scale: bf16[batch, c]
        h = cast(x, f32)
        output y = cast(h * rsqrt(mean(h * h) + 1e-6) * cast(scale, f32), bf16))");
    const Program program = compile(*differentiate(graph).backward.data(), find_target("sm_90a"));
    const Kernel& kernel = program.steps[0].kernel;
    REQUIRE(!kernel.outer.empty());
    const std::int64_t at_once = kernel.most_row_blocks;
    const std::int64_t together = kernel.schedule.rows_per_block;
    const auto slots = [&](std::int64_t batch, std::int64_t tokens) { return slots_of(kernel, {batch, tokens}); };
    CHECK(slots(1, 100000) == at_once);
    CHECK(slots(1, 3 * together) == 3);
    CHECK(slots(5, 0) == 0);
    CHECK(slots(0, 5) >= 0);
    CHECK(slots(20000, 16) == 1);
    CHECK(grid_blocks(kernel, {20000, 16}) == 20000);
    CHECK(grid_blocks(kernel, {5, 0}) == 0);
    CHECK(grid_blocks(kernel, {0, 5}) == 0);
    CHECK(grid_blocks(kernel, {std::int64_t{1} << 40, 1}) == (std::int64_t{1} << 31) - 1);
    for (const std::int64_t batch : {2, 8, 64, 100, 133, 265, 600}) {
        const std::int64_t each = slots(batch, 4096);
        const std::int64_t turns = (batch * each + at_once - 1) / at_once;
        const std::int64_t rows = (4096 + each * together - 1) / (each * together) * together;
        CAPTURE(batch);
        CHECK(static_cast<double>(turns * rows * at_once) < 1.25 * static_cast<double>(batch * 4096));
    }
}

TEST_CASE("a sum over rows of numbers of a row's parts leaves those with what else is made of the part") {
    const Graph graph = Graph::parse(R"(
        rows images
        columns channels = 32
        columns pixels = 1024
        input x: bf16[images, channels, pixels]
        input w: f32[channels]
        h = cast(x, f32)
        d = h - mean(h, pixels)
        output y = cast(d * rsqrt(mean(d * d, pixels) + 1e-5) * w, bf16))");
    const Program program = compile(*differentiate(graph).backward.data(), find_target("sm_90a"));
    CHECK(std::ranges::count_if(program.steps, [](const Step& step) { return reads(step, "x"); }) == 1);
}

namespace {

Program batch_norm(bool backward) {
    const Graph graph = Graph::parse(R"(
        rows tokens
        input x: bf16[tokens, 1536]
        input w: f32[1536]
        input b: f32[1536]
        h = cast(x, f32)
        n = extent(tokens, f32)
        mu = sum(h, tokens) / n
        d = h - mu
        v = sum(d * d, tokens) / n
        output y = cast(d * rsqrt(v + 1e-5) * w + b, bf16)
        output mean = mu
        output var = v)");
    return compile(backward ? *differentiate(graph).backward.data() : *graph.data(), find_target("sm_90a"));
}

}  // namespace

TEST_CASE("sums over rows are made where others read those rows, not beside a row that is stored; roots apart, once") {
    const Program program = batch_norm(true);
    const auto readers =
        std::count_if(program.steps.begin(), program.steps.end(), [](const Step& step) { return reads(step, "x"); });
    CHECK(readers == 2);  // the sums, and the gradient of x, which does not add up the weight's
    CHECK(!makes_parts(*program.steps.back().group.graph));
    for (const Step& step : program.steps) {
        if (!reads(step, "x")) continue;
        each_inst(step.kernel, [](const Inst& inst) { CHECK(inst.op != Op::kRsqrt); });
    }
}

TEST_CASE("rows that read more of tables than of their own are a staying block's, whose threads have equal shares") {
    const Program program = batch_norm(false);
    for (const Step& step : program.steps) {
        if (!reads(step, "x")) continue;
        const Schedule& schedule = step.kernel.schedule;
        CHECK(schedule.blocks_per_sm > 0);
        CHECK(1536 % (schedule.threads_per_row * schedule.vector) == 0);
    }
    CHECK(compile(*make_graph("dynamic_tanh", {4096, bf16, {}}).data(), find_target("sm_90a"))
              .steps.back()
              .kernel.schedule.blocks_per_sm == 0);
}

TEST_CASE("for AMD no schedule unrolls more sines than clang does, which would leave a loop's vectors in memory") {
    const Graph graph = make_graph("rope_positions", {128, bf16, {}});
    const auto most_columns = [&](const char* name) {
        const Target target = find_target(name);
        const Plan plan = plan_graph(*graph.data(), target);
        std::int64_t most = 0;
        for (const Schedule& schedule : legal_schedules(plan.groups.at(0), target)) {
            const auto kernel = build_kernel(plan.groups.at(0), schedule, target);
            for (const Stmt& stmt : kernel->body) {
                const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
                if (loop != nullptr && loop->unrolled) most = std::max(most, loop->vector * loop->iterations);
            }
        }
        return most;
    };
    CHECK(most_columns("gfx942") == 16);  // of 32 the vectors were 272 bytes of memory a thread
    CHECK(most_columns("sm_90a") > 16);
}

namespace {

Group norms_backward(std::string_view op, std::int64_t columns, Dtype dtype, const Target& target) {
    const Graph graph = make_graph(op, {columns, dtype, {}});
    return plan_graph(*differentiate(graph, trained_inputs(op, graph)).backward.data(), target).groups.at(0);
}

// The static choice for the first kernel of a graph, or of an operation's forward.
Schedule first_of(const Graph& graph) {
    const Target& target = find_target("sm_90a");
    return legal_schedules(plan_graph(*graph.data(), target).groups.at(0), target).at(0);
}

Schedule first_of(std::string_view op, std::int64_t columns, Dtype dtype) {
    return first_of(make_graph(op, {columns, dtype, {}}));
}

// What part of the lanes have columns in the rounds that a row takes.
double share_at_work(const Schedule& s, std::int64_t columns) {
    const std::int64_t lanes = s.column_blocks * s.threads_per_row * s.vector;
    const std::int64_t rounds = (columns + lanes - 1) / lanes;
    return static_cast<double>(columns) / static_cast<double>(rounds * lanes);
}

}  // namespace

TEST_CASE("beside sums of rows the static rule keeps lanes at work at the widths that models have") {
    const Target target = find_target("sm_90a");
    for (const char* op : {"rms_norm", "layer_norm"}) {
        for (const std::int64_t columns :
             {192,  384,  576,  768,  896,   1152,  1280,  1536,  2304,  2560,  2880,  3072, 3584,
              5120, 6144, 7168, 9216, 10240, 12288, 13824, 18432, 20480, 24576, 28672, 49152}) {
            const Group group = norms_backward(op, columns, bf16, target);
            const Schedule first = legal_schedules(group, target).at(0);
            CHECK_MESSAGE(share_at_work(first, columns) >= 0.875, op, " ", columns, ": ", print(first));
        }
    }
}

TEST_CASE("three tensors' narrow rows beside sums stay in the stages of sixteen warps, where those are the faster") {
    const Target target = find_target("sm_90a");
    const auto first_of_backward = [&](std::string_view op, std::int64_t columns, Dtype dtype) {
        return legal_schedules(norms_backward(op, columns, dtype, target), target).at(0);
    };
    const auto is_of_sixteen = [](const Schedule& s) {
        return s.residency == Residency::kStages && s.column_blocks == 1 && s.threads_per_row * s.blocks_per_sm == 512;
    };
    for (const std::int64_t columns : {2176, 2816, 3072, 4608, 5632, 6144}) {
        for (const char* op : {"add_rms_norm", "add_layer_norm"}) {
            CAPTURE(columns);
            CHECK_MESSAGE(is_of_sixteen(first_of_backward(op, columns, bf16)), op, ": ",
                          print(first_of_backward(op, columns, bf16)));
            CHECK(!is_of_sixteen(first_of_backward(op, columns, f32)));
        }
    }
    CHECK(is_of_sixteen(first_of_backward("gated_rms_norm", 2048, bf16)));
    for (const std::int64_t columns : {3328, 3840}) {
        CHECK(!is_of_sixteen(first_of_backward("add_layer_norm", columns, bf16)));
        CHECK(!is_of_sixteen(first_of_backward("gated_rms_norm", columns, bf16)));
    }
}

TEST_CASE("rows of even widths are peeled, but in twos where two tensors' are stored as well") {
    const Target target = find_target("sm_90a");
    for (const std::int64_t columns : {1026, 5122, 30522}) {
        CAPTURE(columns);
        const Graph forward = make_graph("softmax", {columns, bf16, {}});
        CHECK(first_of(forward).peel);
        const Graph backward = differentiate(forward, trained_inputs("softmax", forward)).backward;
        const std::vector<Schedule> legal = legal_schedules(plan_graph(*backward.data(), target).groups.at(0), target);
        CHECK(!legal.at(0).peel);
        CHECK(legal.at(0).vector == 2);
        CHECK(std::ranges::any_of(legal, &Schedule::peel));
    }
    const Graph odd = make_graph("softmax", {50257, bf16, {}});
    const Graph backward = differentiate(odd, trained_inputs("softmax", odd)).backward;
    CHECK(first_of(backward).peel);
}

TEST_CASE("losses that are added up have several vectors of a row in each thread, and f32 rows read once") {
    for (const char* op : {"cross_entropy", "kl_div", "jsd", "tvd"}) {
        for (const std::int64_t columns : {1792, 1920, 3584, 3840}) {
            const Schedule first = first_of(op, columns, bf16);
            CAPTURE(op);
            CAPTURE(columns);
            CAPTURE(print(first));
            const bool is_of_warp = first.threads_per_row <= 32;
            CHECK((is_of_warp || columns > std::int64_t{first.threads_per_row} * first.vector));
            CHECK(share_at_work(first, columns) >= 0.75);
        }
    }
    for (const std::int64_t columns : {4608, 6144, 7680}) {
        CHECK(first_of("cross_entropy", columns, f32).residency == Residency::kReload);
        CHECK(first_of("orpo", columns, f32).residency == Residency::kReload);
        CHECK(first_of("kl_div", columns, f32).residency == Residency::kRegisters);
    }
    CHECK(first_of("top_k", 256, bf16).residency == Residency::kRegisters);
    CHECK(first_of("top_k", 512, bf16).residency == Residency::kReload);
}

TEST_CASE("a loss with its gradient has wide rows in the shared memory of few blocks, whose threads are at work") {
    const Target target = find_target("sm_90a");
    for (const std::int64_t columns :
         {24576, 30522, 32000, 50257, 64000, 100352, 119547, 128256, 151936, 201088, 256000}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Value logits = g.input("logits", bf16, {tokens, columns});
        g.output("loss", cross_entropy(logits, g.input("target", i64, {tokens}), {}).loss);
        const Graph step = gradient(g, {"logits"}, {.joint = true, .unit_cotangent = true});
        for (const Group& group : plan_graph(*step.data(), target).groups) {
            if (group.graph->find_input("logits") == std::nullopt) continue;
            const Schedule first = legal_schedules(group, target).at(0);
            CAPTURE(print(first));
            CHECK(first.residency == Residency::kShared);
            CHECK(first.column_blocks >= 2);
            CHECK(share_at_work(first, columns) >= 0.9);
        }
    }
}

TEST_CASE("rows beside weights that no block shares a multiprocessor with are in clusters that end or fetch ahead") {
    for (const Dtype dtype : {bf16, f32}) {
        for (const std::int64_t columns : {24576, 36864, 40960, 53248, 65536, 100352, 200064, 262144}) {
            for (const char* op : {"rms_norm", "add_rms_norm"}) {
                const Schedule first = first_of(op, columns, dtype);
                CAPTURE(op);
                CAPTURE(columns);
                CAPTURE(print(first));
                CHECK(first.residency == Residency::kRegisters);
                CHECK(first.column_blocks >= 2);
                CHECK(!first.skew);
                // Of two tensors' rows none stay; of one, those whose threads have the same whole vectors.
                const bool whole = columns % (first.column_blocks * first.threads_per_row * first.vector) == 0;
                if (first.blocks_per_sm > 0) CHECK((first.prefetch && whole && std::string_view(op) == "rms_norm"));
            }
        }
    }
    CHECK(first_of("rms_norm", 20480, bf16).column_blocks == 1);
    // A function of each column while rows are stored: as it was, where a block has the row.
    CHECK(first_of("gated_rms_norm", 26624, bf16).column_blocks == 1);
    CHECK(first_of("gated_rms_norm", 49152, bf16).column_blocks > 1);
}

TEST_CASE("a table beside rows gives them no more threads than their own columns want") {
    const Target target = find_target("sm_90a");
    const auto schedule_of = [&](std::int64_t columns, const char* weights, bool backward) {
        const Graph graph = Graph::parse(fmt::format(R"(
rows tokens
input x: bf16[tokens, {0}]
input w: {1}[{0}]
h = cast(x, f32)
output y = cast(h * rsqrt(mean(h * h) + 1e-6) * cast(w, f32), bf16)
)",
                                                     columns, weights));
        const Graph planned = backward ? differentiate(graph).backward : graph;
        return legal_schedules(plan_graph(*planned.data(), target).groups.at(0), target).at(0);
    };
    for (const std::int64_t columns : {128, 1024, 4096, 8192}) {
        CAPTURE(columns);
        const Schedule wide = schedule_of(columns, "f32", false);
        CHECK(wide == schedule_of(columns, "bf16", false));
        CHECK(wide.threads_per_row * wide.vector <= columns);
    }
    CHECK(schedule_of(8192, "f32", true).column_blocks == 1);
}

TEST_CASE("threads of a row are a part of a warp, or any number of whole warps") {
    const auto schedule =
        parse_schedule("row_reduction keep=registers threads=96 vector=8 blocks_per_sm=4 min_blocks=4");
    REQUIRE(schedule);
    CHECK(!parse_schedule("row_reduction keep=registers threads=48 vector=8"));
    CHECK(!parse_schedule("row_reduction keep=registers threads=1056 vector=8"));
    const Target nvidia = find_target("sm_90a");
    CHECK(build_kernel(norms_backward("layer_norm", 2304, bf16, nvidia), *schedule, nvidia));
    const Target amd = find_target("gfx942");  // of waves of 64
    const auto declined = build_kernel(norms_backward("layer_norm", 2304, bf16, amd), *schedule, amd);
    REQUIRE(!declined);
    CHECK(declined.reason() == "96 threads on a row are no whole warps of 64");
}

TEST_CASE("every width has a schedule where the tensors of a row leave few registers") {
    const Target target = find_target("sm_90a");
    for (std::int64_t columns = 128; columns <= 8192; columns += 128) {
        const Group group = norms_backward("gated_rms_norm", columns, bf16, target);
        CHECK_MESSAGE(!legal_schedules(group, target).empty(), columns);
    }
}

// 18 warps are five on two of the schedulers, and registers are dealt out eight at a time.
TEST_CASE("a thread has the registers that its scheduler has for it") {
    const Target target = find_target("sm_90a");
    const Group group = norms_backward("layer_norm", 9216, bf16, target);
    const auto schedule =
        parse_schedule("row_reduction keep=registers threads=288 vector=8 stages=2 blocks_per_sm=2 min_blocks=2");
    const auto kernel = build_kernel(group, schedule.value(), target);
    REQUIRE(!kernel);
    CHECK(kernel.reason().find("blocks of 288 threads have 96") != std::string::npos);
}

namespace {

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
