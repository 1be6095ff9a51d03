// Rows that are divided over clusters of blocks, and rows that are copied ahead into shared memory, against the oracle;
// and that kernels are caught that do not wait for messages or copies.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/plan/partial_reductions.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "tests/simt/cases.h"
#include "tests/simt/simt_device.h"

using namespace rowjit;

namespace {

template <class Add>
void each_reduction(const Add& add) {
    for (const std::int64_t columns : {100, 1000, 2048}) {
        for (const char* op : {"rms_norm", "layer_norm", "softmax", "cross_entropy"})
            add(fmt::format("{} {}", op, columns), make_graph(op, {columns, bf16, {}}));
        add(fmt::format("layer_norm {} f32", columns), make_graph("layer_norm", {columns, f32, {}}));
        add(fmt::format("norm_backward {}", columns), norm_backward(columns, bf16));
    }
}

}  // namespace

TEST_CASE("rows divided over clusters of blocks agree with the oracle") {
    const Target target = simt::target("sm_90a");
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, const Graph& graph) {
        for (const auto& [blocks, threads, residency, online, skew] :
             {std::tuple(2, 32, Residency::kRegisters, false, false),
              std::tuple(8, 128, Residency::kRegisters, true, false),
              std::tuple(4, 64, Residency::kRegisters, true, true), std::tuple(4, 64, Residency::kShared, false, false),
              std::tuple(8, 64, Residency::kShared, true, false),
              std::tuple(16, 32, Residency::kReload, true, false)}) {
            Schedule schedule = block_schedule(4);
            schedule.threads_per_row = threads;
            schedule.column_blocks = blocks;
            schedule.residency = residency;
            schedule.online = online;
            const auto choose = [&](const Group& group) {
                Schedule chosen = schedule;
                if (makes_parts(*group.graph) || skew) chosen.blocks_per_sm = 2 * blocks;
                chosen.skew = skew;
                if (chosen.blocks_per_sm > 0 && residency == Residency::kRegisters) chosen.prefetch = true;
                return if_main(group, chosen, target, name);
            };
            Program program = compile(*graph.data(), target, choose);
            const Kernel& kernel = main_kernel(program);
            REQUIRE_MESSAGE(kernel.cluster_blocks() == blocks, name, ": ", print(kernel));
            cases.push_back({fmt::format("{}: {}", name, print(schedule)), graph, std::move(program)});
            if (name == "norm_backward 1000") cases.push_back(turned(cases.back()));
        }
    };
    each_reduction(add);
    check_cases(cases, target, 5, false);
}

TEST_CASE("rows copied ahead into shared memory agree with the oracle") {
    const Target target = simt::target("sm_90a");
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, const Graph& graph) {
        constexpr Residency kRegisters = Residency::kRegisters;
        constexpr Residency kStages = Residency::kStages;
        for (const auto& [residency, stages, threads, rows, blocks, skew] :
             {std::tuple(kRegisters, 1, 64, 2, 1, false), std::tuple(kRegisters, 2, 128, 1, 1, false),
              std::tuple(kRegisters, 3, 256, 1, 1, false), std::tuple(kRegisters, 2, 64, 1, 2, false),
              std::tuple(kRegisters, 2, 64, 1, 2, true), std::tuple(kStages, 1, 64, 1, 1, false),
              std::tuple(kStages, 3, 64, 2, 1, false), std::tuple(kStages, 2, 64, 1, 2, true),
              std::tuple(kStages, 3, 32, 1, 4, true)}) {
            Schedule schedule = block_schedule(4);
            schedule.residency = residency;
            schedule.threads_per_row = threads;
            schedule.rows_per_block = rows;
            schedule.column_blocks = blocks;
            schedule.stages = stages;
            schedule.blocks_per_sm = 2 * blocks;
            schedule.skew = skew;
            schedule.online = skew;
            const auto choose = [&](const Group& group) { return if_main(group, schedule, target, name); };
            Program program = compile(*graph.data(), target, choose);
            REQUIRE_MESSAGE(main_kernel(program).stage_bytes > 0, name);
            cases.push_back({fmt::format("{}: {}", name, print(schedule)), graph, std::move(program)});
            if (main_kernel(cases.back().program).may_refill()) cases.push_back(refilled(cases.back()));
            if (name == "norm_backward 1000") cases.push_back(turned(cases.back()));
        }
    };
    each_reduction(add);
    check_cases(cases, target, 7, false);
}

TEST_CASE("sums over rows that stay in the one stage of a cluster's blocks agree with the oracle") {
    const Target target = simt::target("sm_90a");
    std::vector<Case> cases;
    for (const auto& [op, columns] : {std::pair("rms_norm", 2048), std::pair("rms_norm", 1000),
                                      std::pair("layer_norm", 2048), std::pair("add_rms_norm", 1540)}) {
        const Graph forward = make_graph(op, {columns, f32, {}});
        const Graph graph = differentiate(forward, trained_inputs(op, forward)).backward;
        for (const auto& [blocks, threads] : {std::pair(2, 128), std::pair(4, 64)}) {
            Schedule schedule = block_schedule(4);
            schedule.residency = Residency::kStages;
            schedule.threads_per_row = threads;
            schedule.column_blocks = blocks;
            schedule.stages = 1;
            schedule.blocks_per_sm = 2 * blocks;
            const std::string name = fmt::format("{} {}: {}", op, columns, print(schedule));
            const auto choose = [&](const Group& group) { return if_main(group, schedule, target, name); };
            Program program = compile(*graph.data(), target, choose);
            REQUIRE_MESSAGE(main_kernel(program).may_refill(), name);
            cases.push_back({name, graph, std::move(program)});
            cases.push_back(refilled(cases.back()));
        }
    }
    check_cases(cases, target, 7, false);
}

TEST_CASE("a kernel that does not wait for its copies is caught") {
    const Graph graph = make_graph("rms_norm", {2048, f32, {}});
    const Target target = simt::target("sm_90a");
    Schedule schedule = block_schedule(4);
    schedule.stages = 2;
    schedule.blocks_per_sm = 1;
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string outcome = outcome_of(
        graph, schedule, target, [](std::string text) { return without(std::move(text), "rj_wait_for_copies<1>();"); });
    CHECK_MESSAGE(outcome.find("before it is written") != std::string::npos, outcome);
}

TEST_CASE("a row to come that takes the place of a vector before it was read is caught") {
    const Graph graph = make_graph("l2_norm", {81920, f32, {}});
    const Target target = simt::target("sm_90a");
    Schedule schedule = block_schedule(4);
    schedule.residency = Residency::kStages;
    schedule.column_blocks = 2;
    schedule.stages = 1;
    schedule.blocks_per_sm = 1;
    CHECK(outcome_of(graph, schedule, target, {}, 3) == "");
    const std::string outcome =
        outcome_of(graph, schedule, target, replacing("refill(coming, stage, i,", "refill(coming, stage, 39 - i,"), 3);
    CHECK_MESSAGE(outcome.find("before it is written") != std::string::npos, outcome);
}

TEST_CASE("a kernel whose cluster does not wait for its messages, or has one place for all of them, is caught") {
    const Graph graph = make_graph("rms_norm", {2048, f32, {}});
    const Target target = simt::target("sm_90a");
    Schedule schedule = block_schedule(4);
    schedule.column_blocks = 2;
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string one_place = outcome_of(graph, schedule, target, replacing("0 + (turn & 1) * ", "0 + 0 * "));
    CHECK_MESSAGE(one_place.find("race") != std::string::npos, one_place);
    const std::string other_turn = outcome_of(graph, schedule, target, replacing("turn >> 1 & 1", "~turn >> 1 & 1"));
    CHECK_MESSAGE(other_turn.find("never reach") != std::string::npos, other_turn);
    const std::string not_begun =
        outcome_of(graph, schedule, target, replacing("if (turn == 0) rj_cluster_wait();", ""));
    CHECK_MESSAGE(not_begun.find("have begun") != std::string::npos, not_begun);
    schedule.blocks_per_sm = 1;
    schedule.skew = true;
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string same_place =
        outcome_of(graph, schedule, target, replacing("((turn + 1) & 1) * ", "(turn & 1) * "));
    CHECK_MESSAGE(same_place != "", same_place);
}
