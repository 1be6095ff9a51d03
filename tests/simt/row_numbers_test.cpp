// Kernels that compute much with the numbers of a row against the oracle: numbers that are parted over kernels, steps
// that a graph has written out, sums made of sums.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "compiler/emit/gpu.h"
#include "compiler/plan/partial_reductions.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "tests/simt/cases.h"
#include "tests/simt/simt_device.h"
#include "tests/support/compared_places.h"

using namespace rowjit;

namespace {

// Ninety steps from the row's greatest and its sum, each from the two before; the second and third last are stored too,
// and one of the first ones.
Graph written_out(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Value x = cast(g.input("x", dtype, {g.rows("tokens"), columns}), f32);
    std::vector<Value> steps = {max(x), sum(x * x)};
    const Value most = maximum(steps[0], 0.5);
    for (int i = 0; i < 90; ++i) {
        const Value& last = steps.back();
        steps.push_back(last * 0.5 + steps[steps.size() - 2] / (abs(last) + most));
    }
    g.output("y", cast(x * steps.back(), dtype));
    for (const std::size_t step : {5, 89, 90}) g.output(fmt::format("step_{}", step), steps[step]);
    return g;
}

// Of a tensor with so many axes.
bool reads_vectors(const Step& step, std::size_t axes) {
    bool reads = false;
    each_inst(step.kernel, [&](const Inst& inst) {
        const bool is_of_tensor = inst.kind == InstKind::kLoad && inst.coords.size() == axes;
        reads = reads || (is_of_tensor && inst.access.kind == Access::Kind::kVector);
    });
    return reads;
}

}  // namespace

TEST_CASE("columns are compared with numbers of their row, and lie from them, however far those are") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("compared places", compared_places(72), target, &cases);
        check_cases(cases, target, 19);
    }
}

// Of patches whose columns are not a whole number of vectors, too.
TEST_CASE("a picture put together of rows that are its windows' agrees with the oracle, and reads vectors") {
    const Graph graph = Graph::parse(R"(
        rows n
        rows a = 3
        rows b = 2
        rows i = 4
        columns j = 4
        columns c = 6
        columns h = 12
        columns w = 8
        input x: bf16[n, h, w, c]
        input z: f32[n, a, b, i, j, c]
        output windows = index(x, n, a * 4 + i, b * 4 + j, c)
        output picture = index(z, n, h / 4, w / 4, h % 4, w % 4, c))");
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("windows", graph, target, &cases);
        add_backward_cases("windows", graph, {"x"}, target, &cases);
        const auto reads_windows = [](const Case& one) {
            return std::ranges::any_of(one.program.steps, [](const Step& step) { return reads_vectors(step, 6); });
        };
        CHECK(std::ranges::any_of(cases, reads_windows));
        check_cases(cases, target, 5, false);
    }
}

// Of neighbours side by side, each of whose rows is one of a row's own two and of what a column adds to it.
TEST_CASE("neighbours that lie side by side in a row agree with the oracle, and so do what flows back to each") {
    const Graph graph = Graph::parse(R"(
        rows n
        rows y = 2
        rows x = 3
        rows yi = 4
        rows xi = 6
        columns c = 64
        input t: bf16[n, yi, xi, 16]
        input w: f32[c]
        h = cast(index(t, n, 2 * y + c / 16 % 2, 2 * x + c / 32, c % 16), f32)
        d = h - mean(h)
        output o = cast(d * rsqrt(mean(d * d) + 1e-5) * w, bf16))");
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("neighbours", graph, target, &cases);
        add_backward_cases("neighbours", graph, {"t", "w"}, target, &cases);
        CHECK(std::ranges::any_of(cases, [](const Case& one) { return reads_vectors(one.program.steps[0], 4); }));
        check_cases(cases, target, 5, false);
    }
}

TEST_CASE("numbers of a row that are parted, being more than a thread holds, agree with the oracle") {
    const Target target = simt::target("sm_90a");
    const auto differentiated = [](const char* streams, const char* iterations) {
        const Graph graph = make_graph("hyper_pre", {64, f32, {{"streams", streams}, {"iterations", iterations}}});
        return std::make_shared<const Differentiated>(differentiate(graph, trained_inputs("hyper_pre", graph)));
    };
    const auto both = differentiated("4", "8");
    const auto six = differentiated("6", "1");
    Program program = compile(*both->backward.data(), target);
    const auto loads_in_rounds = [&](const Step& step) {
        return emit_gpu_body(step.kernel, target).find(" = rj_load_one(tmp_20 + ((round * -") != std::string::npos;
    };
    REQUIRE(std::ranges::any_of(program.steps, loads_in_rounds));
    check_cases({{"hyper_pre backward", both->backward, std::move(program), both},
                 {"hyper_pre of six streams, backward", six->backward, compile(*six->backward.data(), target), six}},
                target);
}

TEST_CASE("derivatives that are too much for one kernel, and values that read many places, agree with the oracle") {
    std::string sums = "rows tokens\ninput x: bf16[tokens, 1024]\nh = cast(x, f32)\n";
    for (int i = 0; i < 24; ++i)
        sums += fmt::format("output o{0} = cast(h * {1}.5 + sum(h * {2}.25), bf16)\n", i, i + 1, i + 2);
    std::string shifts = "rows tokens\ncolumns d = 128\ninput x: f32[tokens, d]\nv0 = x\n";
    for (int i = 0; i < 7; ++i)
        shifts += fmt::format("v{} = (index(v{}, tokens, (d + {}) % 128) - v{}) * 0.7\n", i + 1, i, 1 << i, i);
    const Target& target = find_target("sm_90a");
    std::vector<Case> cases;
    for (const auto& [name, text] : {std::pair("sums", sums), {"shifts", shifts + "output y = v7\n"}}) {
        const Graph graph = Graph::parse(text, name);
        const auto both = std::make_shared<const Differentiated>(differentiate(graph));
        Program program = compile(*both->backward.data(), target);
        CHECK(program.steps.size() > 1);
        cases.push_back({fmt::format("{} backward", name), both->backward, std::move(program), both});
    }
    check_cases(cases, target, 3, false);
}

TEST_CASE("steps that a graph has written out agree with the oracle as the loop that they are emitted as") {
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("ninety steps", written_out(256, bf16), target, &cases);
        const Graph sinkhorn = make_graph("hyper_pre", {64, f32, {}});
        cases.push_back({"hyper_pre", sinkhorn, compile(*sinkhorn.data(), target)});
        for (const Case& one : cases) {
            const auto loops = [&](const Step& step) {
                return emit_gpu_body(step.kernel, target).find("for (int round = 0;") != std::string::npos;
            };
            CHECK_MESSAGE(std::any_of(one.program.steps.begin(), one.program.steps.end(), loops), one.name);
        }
        check_cases(cases, target);
    }
}

TEST_CASE("a group's sums made of its channels' agree with the oracle") {
    const Graph graph = make_graph("group_norm", {4096, bf16, {{"groups", "2"}, {"channels", "24"}}});
    const auto both = std::make_shared<const Differentiated>(differentiate(graph, trained_inputs("group_norm", graph)));
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        Program program = compile(*both->backward.data(), target);
        REQUIRE(program.steps.size() == 4);
        check_cases({{"group_norm backward", both->backward, std::move(program), both}}, target, 2);
    }
}

// Ten channels are apart in their stage (passes/pieces), eight are not. Of 5120 columns a thread has several vectors.
TEST_CASE("a group's channels that wait in their stage agree with the oracle in each of its schedules") {
    const Target target = simt::target("sm_90a");
    for (const auto& [columns, channels] :
         {std::pair(512, std::string("8")), std::pair(512, std::string("10")), std::pair(5120, std::string("4"))}) {
        CAPTURE(channels);
        const Graph graph = make_graph("group_norm", {columns, bf16, {{"groups", "2"}, {"channels", channels}}});
        const auto both =
            std::make_shared<const Differentiated>(differentiate(graph, trained_inputs("group_norm", graph)));
        const Plan plan = plan_graph(*both->backward.data(), find_target("sm_90a"));
        std::vector<Case> cases;
        for (const Schedule& schedule : legal_schedules(plan.groups[0], target)) {
            if (schedule.residency != Residency::kStages) continue;
            const auto choice = [&](const Group& group) {
                return adds_parts(*group.graph) ? std::nullopt : std::optional(schedule);
            };
            Program program = compile_plan(*both->backward.data(), plan, target, choice);
            REQUIRE(program.steps.size() == 2);
            const auto is_loop = [](const Stmt& stmt) { return std::holds_alternative<ColumnLoop>(stmt.node); };
            CHECK(std::ranges::count_if(program.steps[0].kernel.body, is_loop) == (channels == "10" ? 20 : 2));
            cases.push_back({fmt::format("group_norm of {} channels, {}", channels, print(schedule)), both->backward,
                             std::move(program), both});
            cases.push_back(refilled(cases.back()));
        }
        REQUIRE(!cases.empty());
        check_cases(cases, target, 5);
    }
}

// What the group's sums of f32 lose is summed too.
TEST_CASE("a group's channels of f32 that a block has room for agree with the oracle") {
    const Target target = simt::target("sm_90a");
    const Graph graph = make_graph("group_norm", {256, f32, {{"groups", "2"}, {"channels", "10"}}});
    const auto both = std::make_shared<const Differentiated>(differentiate(graph, trained_inputs("group_norm", graph)));
    Program program = compile(*both->backward.data(), target);
    check_cases({{"group_norm backward", both->backward, std::move(program), both}}, target, 5);
}
