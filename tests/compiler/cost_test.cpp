// The model of what a schedule costs: that each of its terms counts what it is named after. How far its sums are off is
// measured by benchmarks/fit_cost.py.
#include "compiler/cost.h"

#include <doctest/doctest.h>

#include "compiler/compile.h"
#include "dsl/library/registry.h"

using namespace rowjit;

namespace {

constexpr std::int64_t kRows = 8192;

Plan plan_of(std::string_view op, std::int64_t columns, const Target& target) {
    return plan_graph(*make_graph(op, {.columns = columns}).data(), target);
}

// Of a softmax of so many bf16 columns on an H200.
CostTerms softmax_terms(const std::string& schedule, std::int64_t columns = 32768, std::int64_t rows = kRows) {
    const Target target = find_target("sm_90a");
    const Plan plan = plan_of("softmax", columns, target);
    const auto kernel = build_kernel(plan.groups.at(0), parse_schedule(schedule).value(), target);
    REQUIRE(kernel);
    return cost_terms(*kernel, target, rows);
}

double copy_us(std::int64_t columns) {
    return 2.0 * 2 * static_cast<double>(columns * kRows) / (find_target("sm_90a").bandwidth_gbps * 1e3);
}

}  // namespace

TEST_CASE("a row that is kept moves as many bytes as a copy, and one that is not kept is read again") {
    const CostTerms kept = softmax_terms("row_reduction keep=registers threads=512 vector=8 column_blocks=2");
    CHECK(kept.memory_us == doctest::Approx(copy_us(32768)));
    CHECK(kept.again_us == 0);
    const CostTerms again = softmax_terms("row_reduction keep=reload threads=1024 vector=8");
    CHECK(again.memory_us + again.again_us == doctest::Approx(2 * copy_us(32768)));  // three reads and a store
    CHECK(predicted_us(again) > predicted_us(kept));
}

TEST_CASE("narrow rows that are read again are in a cache, wide ones are not") {
    const CostTerms narrow = softmax_terms("row_reduction keep=reload threads=256 vector=8", 4096);
    CHECK(narrow.memory_us == doctest::Approx(copy_us(4096)));
    CHECK(narrow.again_us > 0);
    const CostTerms wide = softmax_terms("row_reduction keep=reload threads=1024 vector=8", 262144);
    CHECK(wide.memory_us > 1.5 * copy_us(262144));
}

TEST_CASE("meetings are counted by what meets, and a warp's cost nothing") {
    CHECK(softmax_terms("row_reduction keep=registers threads=32 rows=4 vector=8", 1024).block_meetings == 0);
    CHECK(softmax_terms("row_reduction keep=registers threads=128 vector=8", 4096).block_meetings == 2);
    const CostTerms cluster = softmax_terms("row_reduction keep=registers threads=256 vector=8 column_blocks=8");
    CHECK(cluster.block_meetings == 0);
    CHECK(cluster.cluster_meetings == 6);  // two, each of eight blocks
}

TEST_CASE("rows that are fetched ahead wait for no load, and are predicted to be faster") {
    const std::string stays =
        "row_reduction keep=registers threads=512 vector=8 column_blocks=2 blocks_per_sm=1 min_blocks=1";
    const CostTerms bare = softmax_terms(stays);
    const CostTerms ahead = softmax_terms(stays + " prefetch=1");
    CHECK(bare.loads == 1);
    CHECK(ahead.loads == 0);
    CHECK(ahead.turns == bare.turns);
    CHECK(predicted_us(ahead) < predicted_us(bare));
}

TEST_CASE("what all heads share of a position is moved once") {
    const Target target = find_target("sm_90a");
    const Plan plan = plan_of("rope", 128, target);
    const Group& group = plan.groups.at(0);
    const auto kernel = build_kernel(group, legal_schedules(group, target).at(0), target);
    REQUIRE(kernel);
    const double least_us = group_bytes(*group.graph, kRows) / (target.bandwidth_gbps * 1e3);
    CHECK(cost_terms(*kernel, target, kRows).memory_us == doctest::Approx(least_us).epsilon(0.02));
}

TEST_CASE("of a tensor that a loop reads at several positions, each is moved") {
    const Target target = find_target("sm_90a");
    const Plan plan = plan_of("hyper_post", 4096, target);
    REQUIRE(plan.groups.size() == 1);
    const Group& group = plan.groups[0];
    const auto kernel = build_kernel(group, legal_schedules(group, target).at(0), target);
    REQUIRE(kernel);
    const double all_us = group_bytes(*group.graph, kRows) / (target.bandwidth_gbps * 1e3);
    CHECK(cost_terms(*kernel, target, kRows).memory_us == doctest::Approx(all_us).epsilon(0.01));
}

TEST_CASE("of a CPU's schedules, and of no rows, it says nothing") {
    const Target cpu = find_target("x86-64-v3");
    const Plan plan = plan_of("softmax", 1024, cpu);
    const auto kernel = build_kernel(plan.groups.at(0), legal_schedules(plan.groups.at(0), cpu).at(0), cpu);
    REQUIRE(kernel);
    CHECK(predicted_us(cost_terms(*kernel, cpu, kRows)) == 0);
    CHECK(predicted_us(softmax_terms("row_reduction keep=registers threads=128 vector=8", 4096, 0)) == 0);
}
