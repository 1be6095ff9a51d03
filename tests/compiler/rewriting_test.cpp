// What the planner writes in the place of a graph's nodes: fewer divisions, sums and reductions that come to the same.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "compiler/compile.h"
#include "compiler/plan/canonicalize.h"
#include "compiler/plan/carried_logarithms.h"
#include "compiler/plan/cutter.h"
#include "compiler/plan/plan.h"
#include "compiler/schedule/choose.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "tests/support/compared_places.h"

using namespace rowjit;

namespace {

std::string kernel_text(const Graph& graph) {
    const Plan plan = plan_graph(*graph.data(), find_target("sm_90a"));
    REQUIRE(plan.groups.size() == 1);
    return Graph(std::make_shared<GraphData>(*plan.groups[0].graph)).print();
}

}  // namespace

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

TEST_CASE("a learned number given as a row of one is read, not summed") {
    const Graph graph = Graph::parse(R"(
        rows tokens
        columns one = 1
        input x: bf16[tokens, 4096]
        input f: bf16[tokens, 4096]
        input alpha: f32[one]
        input least: f32[tokens, one]
        output y = cast(maximum(cast(x, f32) + tanh(sum(alpha)) * cast(f, f32), max(least)), bf16))");
    const Program program = compile(*graph.data(), find_target("sm_90a"));
    REQUIRE(program.steps.size() == 1);
    CHECK(program.steps[0].kernel.schedule.family == Family::kElementwise);
}

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

TEST_CASE("a reduction of what columns were reduced to is one reduction over them all") {
    const auto reductions = [](const std::string& output) {
        const Graph graph = Graph::parse(
            "rows n\ncolumns h = 24\ncolumns w = 40\ninput x: f32[n, h, w]\ninput b: bf16[n, h, w]\n" + output);
        const Plan plan = plan_graph(*graph.data(), find_target("sm_90a"));
        std::ptrdiff_t count = 0;
        for (const Group& group : plan.groups) {
            const std::vector<NodeId> live = group.graph->live_nodes();
            count +=
                std::ranges::count_if(live, [&](NodeId id) { return group.graph->node(id).kind == NodeKind::kReduce; });
        }
        return count;
    };
    CHECK(reductions("output y = max(max(abs(x), w), h)\n") == 1);
    CHECK(reductions("output y = max(max(b, w), h)\n") == 1);
    CHECK(reductions("output y = mean(mean(x, w), h)\n") == 1);
    CHECK(reductions("output y = max(sum(x, w), h)\n") == 2);
    CHECK(reductions("output y = sum(sum(b, w), h)\n") == 2);  // each rounds
    CHECK(reductions("a = sum(x, w)\noutput a\noutput y = sum(a, h)\n") == 2);
}

TEST_CASE("a divergence of softmaxes is read once, however it is written") {
    const std::string logits =
        "rows n\ninput s: bf16[n, 32000]\ninput t: bf16[n, 32000]\nx = cast(t, f32) / 2\ny = cast(s, f32) / 2\n"
        "mx = max(x)\nmy = max(y)\nsx = sum(exp(x - mx))\nsy = sum(exp(y - my))\n";
    for (const char* loss : {
             "sum(exp(x - mx) / sx * ((x - (mx + log(sx))) - (y - (log(sy) + my))))",
             "4 * sum(exp(x - (mx + log(sx))) * (((x - mx) - log(sx)) - (y - (my + log(sy)))))",
             "sum((log(exp(x - mx) / sx) - log(exp(y - my) / sy)) * (exp(x - mx) / sx))",
             "sum(exp(x - mx) / sx * ((y - (my + log(sy))) - (x - (mx + log(sx)))))",
         }) {
        const Graph graph = Graph::parse(logits + "output loss = " + loss + "\n");
        const Plan plan = plan_graph(*graph.data(), find_target("sm_90a"));
        REQUIRE(plan.groups.size() == 1);
        CHECK_MESSAGE(facts_of(plan.groups[0], find_target("sm_90a")).online_phases == 2, loss);
    }
    const Graph other = Graph::parse(logits + "output loss = sum(exp(x - mx) / sx * ((x - mx) - (y - my)))\n");
    CHECK(facts_of(plan_graph(*other.data(), find_target("sm_90a")).groups[0], find_target("sm_90a")).online_phases >
          2);
}

TEST_CASE("an entropy and a cross-entropy of softmaxes are read once on a GPU, however they are written") {
    const std::string logits =
        "rows n\ninput s: bf16[n, 32000]\ninput t: bf16[n, 32000]\nx = cast(s, f32)\np = softmax(x)\ny = cast(t, "
        "f32)\n";
    const auto phases = [&](const std::string& loss, std::string_view target) {
        const Graph graph = Graph::parse(logits + "output loss = " + loss + "\n");
        const Plan plan = plan_graph(*graph.data(), find_target(target));
        REQUIRE(plan.groups.size() == 1);
        return facts_of(plan.groups[0], find_target(target)).online_phases;
    };
    for (const std::string loss : {
             "-sum(p * log(p))",
             "-2 * sum(log_softmax(x) * p)",
             "-sum(exp(log_softmax(x)) * log_softmax(x))",
             "log(sum(exp(x - max(x)))) - sum(exp(x - max(x)) * select(exp(x - max(x)) == 0, 0.0, x - max(x)))",
             "-sum(p * log_softmax(y))",
             "-3 * sum(log(softmax(y)) * p)",
             "-sum(y * log(p))",
             "sum(log_softmax(x) * (y * y)) * 2",
         }) {
        for (const std::string_view target : {"sm_90a", "gfx942"}) CHECK_MESSAGE(phases(loss, target) == 2, loss);
    }
    // Weights that are known no sooner than the row's numbers are.
    for (const std::string loss :
         {"sum(p * p)", "sum(p * log(softmax(x * x)) * y)", "sum((y - mean(y)) * log_softmax(x))"})
        CHECK_MESSAGE(phases(loss, "sm_90a") > 2, loss);
}

TEST_CASE("maxima over other columns than a sum of logarithms are no part of what is carried with it") {
    const Graph graph = Graph::parse(
        "rows n\ncolumns h = 8\ncolumns w = 512\ninput x: f32[n, h, w]\nm = max(x, h, w)\n"
        "e = exp(x - m)\noutput entropy = sum(e * select(e == 0, 0.0, x - m), h, w)\noutput lines = max(x, w)\n");
    const GraphData& data = *graph.data();
    bool found_any = false;
    for (const NodeId id : data.live_nodes()) {
        const auto found = carried_logarithms(data, id);
        if (!found) continue;
        found_any = true;
        for (const auto& [part, component] : found->components) CHECK(data.node(part).reduced == data.node(id).reduced);
    }
    CHECK(found_any);
}

TEST_CASE("the greatest class beside a loss is found as the row is read") {
    for (const char* option : {"argmax", "accuracy", "entropy"}) {
        const Graph graph = make_graph("cross_entropy", {32000, bf16, {{option, "true"}}});
        const Plan plan = plan_graph(*graph.data(), find_target("sm_90a"));
        CHECK_MESSAGE(facts_of(plan.groups[0], find_target("sm_90a")).online_phases == 2, option);
    }
}

TEST_CASE("the gradient of a cell's gates is computed by the threads that have their columns, each gate once") {
    const Graph graph = Graph::parse(
        "rows n\ncolumns h = 64\ncolumns gates = 3\ninput z: bf16[n, gates, h]\n"
        "a = cast(index(z, n, 0, h), f32)\nb = cast(index(z, n, 1, h), f32)\nc = cast(index(z, n, 2, h), f32)\n"
        "output y = cast(tanh(a) * exp(-b) + tanh(c) * a, bf16)\n");
    const Graph backward = gradient(graph, {"z"});
    const Plan plan = plan_graph(*backward.data(), find_target("sm_90a"));
    REQUIRE(plan.groups.size() == 1);
    const GraphData& group = *plan.groups[0].graph;
    CHECK(group.outputs().size() == 3);  // pieces of one tensor
    const std::vector<NodeId> live = group.live_nodes();
    CHECK(std::ranges::count_if(live, [&](NodeId id) {
              return group.node(id).kind == NodeKind::kMap && group.node(id).op == Op::kTanh;
          }) == 2);
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

TEST_CASE("the gradient of columns that a row reads at many positions is looked up, beside no reduction over them") {
    const Graph forward = Graph::parse(
        "rows tokens\ncolumns k = 64\ninput x: bf16[tokens, 50304]\ninput ids: i64[tokens, k]\n"
        "input q: f32[tokens, k]\nh = cast(x, f32)\nm = max(h)\nl = m + log(sum(exp(h - m)))\n"
        "output loss = sum(exp(q) * (q - (cast(index(x, tokens, ids), f32) - l)))\n");
    const Graph backward = differentiate(forward, {"x"}).backward;
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Plan plan = plan_graph(*backward.data(), find_target(name));
        REQUIRE(plan.groups.size() == 2);
        const GraphData& wide = *plan.groups[1].graph;
        const auto count = [&](NodeKind kind) {
            const std::vector<NodeId> live = wide.live_nodes();
            return std::ranges::count_if(live, [&](NodeId id) { return wide.node(id).kind == kind; });
        };
        CHECK(count(NodeKind::kSumWhere) == 1);
        CHECK(count(NodeKind::kReduce) == 0);
    }
}

TEST_CASE("columns are compared with numbers of their row in 32 bits") {
    const Graph graph = compared_places(256);
    for (const char* target : {"sm_90a", "x86-64-v4"}) {
        for (const Step& step : compile(*graph.data(), find_target(target)).steps) {
            std::map<ValueId, Dtype> dtypes;
            each_inst(step.kernel, [&](const Inst& inst) { dtypes[inst.id] = inst.dtype; });
            int compared = 0;
            for (const Stmt& stmt : step.kernel.body) {
                const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
                if (loop == nullptr) continue;
                for (const Inst& inst : loop->body) {
                    if (inst.kind != InstKind::kMap || inst.dtype != Dtype::kBool) continue;
                    for (const ValueId operand : inst.operands) CHECK(dtypes.at(operand) != Dtype::kI64);
                    ++compared;
                }
            }
            CHECK(compared > 10);
        }
    }
}

TEST_CASE("which of a pair a column is is known where the column is twice another, or one more") {
    const Graph graph = Graph::parse(R"(
        rows tokens
        columns heads = 8
        columns d = 128
        input x: f32[tokens, heads, d]
        input s: f32[tokens, 64]
        even = index(x, tokens, heads, d / 2 * 2)
        odd = index(x, tokens, heads, d / 2 * 2 + 1)
        is_even = iota(d) - floor_div(iota(d), 2) * 2 == 0
        output y = select(is_even, even, odd) * index(s, tokens, d / 2))");
    const Program program = compile(*differentiate(graph, {"s"}).backward.data(), find_target("sm_90a"));
    REQUIRE(program.steps.size() == 1);
    each_inst(program.steps[0].kernel, [](const Inst& inst) {
        CHECK_MESSAGE((inst.kind != InstKind::kMap || inst.op != Op::kEq), "a condition is left");
    });
}

TEST_CASE("few positions of a row's softmax are summed in its kernel: its sum is one number, not one of each") {
    const Graph router = Graph::parse(
        "rows tokens\ncolumns experts = 128\ncolumns k = 8\ninput x: f32[tokens, experts]\n"
        "input ids: i64[tokens, k]\ne = exp(x - max(x, experts))\n"
        "w = index(e / sum(e, experts), tokens, ids)\noutput gates = w / sum(w, k)\n");
    CHECK(plan_graph(*router.data(), find_target("sm_90a")).groups.size() == 1);
}

TEST_CASE("sums over positions that no vector of columns could look up stay reductions") {
    const std::vector<std::pair<std::string, std::string>> graphs = {
        {"the position itself", "output y = sum(select(iota(k) == ids, x, 0), k)\n"},
        {"a term for each column", "output y = sum(select(iota(d, i64) == ids, z, 0), k)\n"},
        {"another axis", "output y = sum(select(iota(d, i64) == table, select(iota(t) >= 0, u, 0), 0), k)\n"},
    };
    for (const auto& [what, text] : graphs) {
        CAPTURE(what);
        const Graph graph =
            Graph::parse("rows t\ncolumns d = 24\ncolumns k = 40\ninput x: f32[t, k]\ninput ids: " +
                         std::string(what == "the position itself" ? "i32" : "i64") +
                         "[t, k]\ninput table: i64[k]\ninput u: f32[k]\ninput z: f32[t, d, k]\n" + text);
        const Plan plan = plan_graph(*graph.data(), find_target("sm_90a"));
        for (const Group& group : plan.groups) {
            for (const NodeId id : group.graph->live_nodes()) CHECK(group.graph->node(id).kind != NodeKind::kSumWhere);
        }
        CHECK(compile(*graph.data(), find_target("sm_90a")).steps.size() >= 1);
    }
}
