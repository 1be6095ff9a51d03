// Rows that read rows beside them, which a block takes one after the other, against the oracle.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/schedule/choose.h"
#include "tests/simt/cases.h"
#include "tests/simt/simt_device.h"

using namespace rowjit;

namespace {

// A convolution of each column over four rows, each sequence's own, and a logistic function of what comes of it.
Graph convolution(std::int64_t columns, Dtype dtype, bool batched) {
    const std::string sequence = batched ? "batch, " : "";
    return Graph::parse(fmt::format(R"({0}rows tokens
columns d = {1}
columns taps = 4
input x: {2}[{3}tokens, d]
input w: {2}[taps, d]
h0 = cast(x, f32) * cast(index(w, 3, d), f32)
h1 = cast(index(x, {3}iota(tokens, i64) - 1, d), f32) * cast(index(w, 2, d), f32)
h2 = cast(index(x, {3}iota(tokens, i64) - 2, d), f32) * cast(index(w, 1, d), f32)
h3 = cast(index(x, {3}iota(tokens, i64) - 3, d), f32) * cast(index(w, 0, d), f32)
h = h3 + h2 + h1 + h0
output y = cast(h / (1 + exp(-h)), {2})
)",
                                    batched ? "rows batch\n" : "", columns, name(dtype), sequence),
                        "convolution");
}

// The same as a sum over its steps, whose places are coordinates.
Graph summed_steps(std::int64_t columns) {
    return Graph::parse(fmt::format(R"(rows batch
rows tokens
columns taps = 4
columns d = {}
input x: bf16[batch, tokens, d]
input w: f32[taps, d]
output y = cast(sum(cast(index(x, batch, iota(tokens, i64) + cast(iota(taps), i64) - 3, d), f32) * w, taps), bf16)
)",
                                    columns),
                        "summed steps");
}

// Two tensors' rows before and behind, what a dear function makes of them, a number of each such row, whether there is
// one, and rows of a table that ids beside say.
Graph neighbours(std::int64_t columns, Dtype dtype) {
    return Graph::parse(fmt::format(R"(rows tokens
rows words
columns d = {0}
input x: {1}[tokens, d]
input z: f32[tokens, d]
input scale: f32[tokens]
input ids: i32[tokens]
input table: {1}[words, d]
two_back = iota(tokens, i64) - 2
one_back = iota(tokens, i64) - 1
one_on = iota(tokens, i64) + 1
before = exp(-abs(cast(index(x, two_back, d), f32))) * index(scale, two_back)
here = exp(-abs(cast(x, f32))) * scale
behind = exp(-abs(cast(index(x, one_on, d), f32))) * index(scale, one_on)
word = cast(index(table, index(ids, one_back), d), f32)
last = select(one_on < extent(tokens, i64), index(z, one_on, d), -1)
output y = cast(before + here - behind + word, {1})
output mixed = index(z, two_back + 1, d) * here - last
)",
                                    columns, name(dtype)),
                        "neighbours");
}

}  // namespace

// On a few multiprocessors, so that a block has many rows of some that are few, and none of others.
TEST_CASE("rows taken one after the other are the oracle's, wherever a sequence begins") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        Target target = simt::target(name);
        target.sm_count = 3;
        std::vector<Case> all;
        for (const bool batched : {false, true}) {
            for (const auto& [columns, dtype] : std::vector<std::pair<int, Dtype>>{{8, bf16}, {72, bf16}, {40, f32}}) {
                const Graph graph = convolution(columns, dtype, batched);
                const std::string called = fmt::format("convolution {}{}", columns, batched ? " batched" : "");
                add_cases(called, graph, target, &all);
                add_backward_cases(called, graph, {"x", "w"}, target, &all);
            }
        }
        add_cases("summed steps", summed_steps(40), target, &all);
        add_cases("neighbours 1032", neighbours(1032, bf16), target, &all);
        add_cases("neighbours 30", neighbours(30, f32), target, &all);
        add_backward_cases("neighbours 24", neighbours(24, f16), {"x", "z", "scale"}, target, &all);
        std::vector<Case> cases;
        std::map<std::string, int> walked;
        for (Case& one : all) {
            const std::vector<Step>& steps = one.program.steps;
            const bool walks =
                std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.kernel.walk.has_value(); });
            const std::string graph = one.name.substr(0, one.name.find(':'));
            if (walks && walked[graph]++ % 11 == 0) cases.push_back(std::move(one));
        }
        CHECK(walked.size() >= 15);
        for (const std::int64_t rows : {1, 13}) check_cases(cases, target, rows, false);
    }
}

TEST_CASE("a window that stands still, or is not filled before its run, is caught") {
    Target target = simt::target("sm_90a");
    target.sm_count = 1;
    const Graph graph = convolution(64, bf16, false);
    const Plan plan = plan_graph(*graph.data(), target);
    const std::vector<Schedule> legal = legal_schedules(plan.groups[0], target);
    const auto schedule = std::find_if(legal.begin(), legal.end(), [](const Schedule& s) { return s.ahead > 0; });
    REQUIRE(schedule != legal.end());
    const auto outcome = [&](const simt::Sabotage& sabotage) {
        return outcome_of(graph, *schedule, target, sabotage, 40);
    };
    CHECK(outcome({}) == "");
    CHECK(outcome(replacing("[back] = cast_window[back - 1]", "[back] = cast_window[back]")) != "");
    CHECK(outcome(replacing("++walked;", "")) != "");
    CHECK(outcome(replacing("rj_wait_for_copies<2>();", "")) != "");
    CHECK(outcome(replacing("row = begin - ", "row = begin + 0 * ")) != "");
}
