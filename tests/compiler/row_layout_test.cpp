// Which columns are rows or a thread's own, and which of a row's numbers are stored or parted over kernels.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/compile.h"
#include "compiler/plan/live_numbers.h"
#include "compiler/plan/plan.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"

using namespace rowjit;

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
