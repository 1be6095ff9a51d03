// Fixpoints of rows against the oracle, and that kernels are caught whose steps do not wait for each other.
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "dsl/library/registry.h"
#include "tests/simt/cases.h"
#include "tests/simt/simt_device.h"
#include "tests/support/fixpoints.h"

using namespace rowjit;

// Rows of one block that take different numbers of steps, from one to a dozen, on a fraction of a warp, a warp,
// several.
TEST_CASE("fixpoints of rows that stand still at different times are the oracle's under every schedule") {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("tokens"), 96});
    const Value limit = min(x);
    const auto halve = [&](const Value& state) {
        return maximum(state * 0.5, sum(select(x > state, x, x * 0.0)) * 0.0 + limit);
    };
    g.output("y", x - fixpoint(max(abs(x)) * 1000.0, halve, 40));
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("halving", g, target, &cases);
        add_cases("sparsemax 160 f32", make_graph("sparsemax", {160, f32, {}}), target, &cases);
        add_cases("sums of the last step", sums_of_last_step(), target, &cases);
        check_cases(cases, target, 37);
    }
}

TEST_CASE("fixpoints of rows that a cluster shares are the oracle's, and steps that meet in one place are caught") {
    const Target target = simt::target("sm_90a");
    const Graph graph = make_graph("sparsemax", {2048, f32, {}});
    std::vector<Case> cases;
    for (const auto& [residency, blocks, threads, stages] :
         {std::tuple(Residency::kRegisters, 2, 32, 0), std::tuple(Residency::kRegisters, 8, 128, 2),
          std::tuple(Residency::kShared, 4, 64, 0), std::tuple(Residency::kStages, 4, 64, 1),
          std::tuple(Residency::kReload, 16, 32, 0)}) {
        Schedule schedule = block_schedule(4);
        schedule.residency = residency;
        schedule.column_blocks = blocks;
        schedule.threads_per_row = threads;
        schedule.stages = stages;
        schedule.blocks_per_sm = stages > 0 ? 2 * blocks : 0;
        const auto choose = [&](const Group& group) { return if_main(group, schedule, target, "sparsemax"); };
        cases.push_back({print(schedule), graph, compile(*graph.data(), target, choose)});
    }
    check_cases(cases, target, 5, false);
    Schedule schedule = block_schedule(4);
    schedule.column_blocks = 2;
    const std::string one_place = outcome_of(graph, schedule, target, [](std::string text) {
        const std::string_view turns = " + (threshold_turn & 1) * ";
        const std::size_t at = text.find(turns);
        REQUIRE(at != std::string::npos);
        return text.replace(at, turns.size(), " + 0 * ");
    });
    CHECK_MESSAGE(one_place.find("race") != std::string::npos, one_place);
}

TEST_CASE("a step whose barrier is deleted is caught") {
    const Graph graph = make_graph("sparsemax", {2048, f32, {}});
    const Target target = simt::target("sm_90a");
    const Schedule schedule = block_schedule(4);
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string outcome = outcome_of(graph, schedule, target, [](std::string text) {
        const std::size_t end = text.find("_stands_still) {");  // the step's close
        REQUIRE(end != std::string::npos);
        const std::size_t at = text.rfind("rj_barrier();", end);
        REQUIRE(at != std::string::npos);
        return text.erase(at, std::string_view("rj_barrier();").size());
    });
    CHECK_MESSAGE(outcome.find("race") != std::string::npos, outcome);
}

TEST_CASE("rows of a warp that do not wait for each other's steps are caught") {
    const Graph graph = make_graph("sparsemax", {64, f32, {}});
    const Target target = simt::target("sm_90a");
    Schedule schedule = block_schedule(4);
    schedule.threads_per_row = 8;
    schedule.rows_per_block = 16;
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string outcome = outcome_of(graph, schedule, target, [](std::string text) {
        const std::size_t at = text.find("rj_all_rows<8, 32>");
        REQUIRE(at != std::string::npos);
        return text.erase(at, std::string_view("rj_all_rows<8, 32>").size());
    });
    CHECK_MESSAGE(outcome != "", "a warp whose lanes left the steps at different times went unnoticed");
}
