// Every operation's emitted source against the oracle: a sample of schedules, on warps of 32 and of 64; and rows that
// begin past 2^31 elements.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "dsl/library/registry.h"
#include "tests/simt/cases.h"
#include "tests/simt/simt_device.h"
#include "tests/support/coverage.h"
#include "tests/support/far_rows.h"

using namespace rowjit;

namespace {

// Widths on both sides of what a vector, a sub-warp, a warp and a block hold, of operations of every structure; every
// operation besides at kCommonWidths.
struct Widths {
    std::string_view op;
    std::vector<std::int64_t> columns;
};
const std::vector<Widths> kWidths = {
    {"rms_norm", {1, 7, 128, 1000, 4096}},
    {"add_rms_norm", {3, 129, 2880}},
    {"layer_norm", {2, 1024}},
    {"softmax", {31, 127, 1500, 8192}},
    {"log_softmax", {1000}},
    {"logsumexp", {128}},
    {"swiglu", {7, 1000, 4096}},
    {"geglu", {128, 31}},
    {"cross_entropy", {1031, 4096}},
    {"sparsemax", {3, 1500, 4096}},
    {"dropout_add", {7, 128, 1000}},
};
constexpr std::array<std::int64_t, 2> kCommonWidths = {64, 100};
constexpr std::int64_t kWidestBackward = 1500;

std::vector<Request> all_requests(const Target& target) {
    std::vector<Request> requests;
    Coverage forwards("simt_test", "emitted source against the oracle's bar without a GPU, under every schedule",
                      target.name, "a sample");
    Coverage backwards("simt_test backward", "derived backwards likewise", target.name, "a sample");
    const auto add = [&](std::string_view op, std::int64_t columns) {
        for (const Dtype dtype : {bf16, f16, f32}) {
            const OpRequest made = {columns, dtype, {}};
            if (is_taken(op)) requests.push_back({op, made});
            forwards.add(op, made);
            if (columns > kWidestBackward || trained_inputs(op, make_graph(op, made)).empty()) continue;
            if (is_taken(op)) requests.push_back({op, made, true});
            backwards.add(op, made);
        }
    };
    for (const auto& [op, widths] : kWidths) {
        for (const std::int64_t columns : widths) add(op, columns);
    }
    for (const CompositeInfo& op : composites()) {
        for (const std::int64_t columns : kCommonWidths) add(op.name, columns);
    }
    CHECK(forwards.difference() == "");
    CHECK(backwards.difference() == "");
    return requests;
}

// CI runs a sample with a fixed seed, a schedule of each graph that it takes; ./dev fuzz, which sets
// ROWJIT_FUZZ_SEEDS, runs everything.
std::vector<Case> sampled_cases(const Target& target, std::size_t count) {
    const bool everything = takes_everything();
    std::vector<Request> requests = all_requests(target);
    std::mt19937 random(20241121);
    if (!everything) {
        std::shuffle(requests.begin(), requests.end(), random);
        requests.resize(std::min(count, requests.size()));
    }
    std::vector<Case> cases;
    for (const Request& request : requests) {
        std::vector<Case> found;
        add_request(request, target, &found);
        const std::size_t first = everything ? 0 : random() % found.size();
        const std::size_t last = everything ? found.size() : first + 1;
        std::move(found.begin() + static_cast<std::ptrdiff_t>(first), found.begin() + static_cast<std::ptrdiff_t>(last),
                  std::back_inserter(cases));
    }
    return cases;
}

}  // namespace

TEST_CASE("emitted kernels agree with the oracle on warps of 32") {
    const Target target = simt::target("sm_90a");
    check_cases(sampled_cases(target, 96), target);
}

TEST_CASE("emitted kernels agree with the oracle on waves of 64") {
    const Target target = simt::target("gfx942");
    check_cases(sampled_cases(target, 72), target);
}

TEST_CASE("emitted kernels compute rows past 2^31 elements where they lie") {
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Program> programs;
        programs.push_back(compile(*make_graph("rms_norm", {96, f32, {}}).data(), target));
        const Device device = simt::device(target);
        const std::vector<Executable> executables = simt::build(std::move(programs), target, device);
        CHECK(norm_of_rows(executables[0], 96, kFarStride) == norm_of_rows(executables[0], 96, 96));
    }
}

// What both columns of a pair are made of is computed once for them.
TEST_CASE("gradients of a gate and its value that lie side by side agree with the oracle under every schedule") {
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const Dtype dtype : {bf16, f16, f32}) {
            for (const std::int64_t columns : {40, 264})
                add_request({"clipped_swiglu", {columns, dtype, {{"packed", "true"}}}, true}, target, &cases);
        }
        const Graph biased = Graph::parse(
            "rows t\ncolumns d = 96\ninput x: bf16[t, 192]\ninput b: bf16[192]\n"
            "g = cast(index(x, t, 2 * d), f32) + cast(index(b, 2 * d), f32)\n"
            "u = cast(index(x, t, 2 * d + 1), f32) + cast(index(b, 2 * d + 1), f32)\n"
            "output y = cast(g / (1 + exp(-g)) * u, bf16)\n");
        add_backward_cases("biased pairs", biased, {"x", "b"}, target, &cases);
        // Angles that two columns share.
        add_cases("turned pairs",
                  Graph::parse("rows t\ncolumns d = 96\ninput x: bf16[t, d]\ninput a: f32[t, 48]\n"
                               "output y = cast(cast(x, f32) * cos(index(a, t, d / 2)), bf16)\n"),
                  target, &cases);
        check_cases(cases, target, 11, false);
    }
}

// Lanes of a warp are then of several rows, and the last lanes of a block of none.
TEST_CASE("threads of a row that never meet may be any number of them") {
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const std::int64_t columns : {24, 40, 72}) {
            for (const char* op : {"dropout", "rope"})
                add_request({op, {.columns = columns, .dtype = bf16}}, target, &cases);
            add_request({"kl_div", {.columns = columns, .dtype = f32}, true}, target, &cases);
        }
        std::erase_if(cases, [](const Case& one) {
            const Schedule& s = one.program.steps.at(0).kernel.schedule;
            return s.family != Family::kElementwise || std::has_single_bit(static_cast<unsigned>(s.threads_per_row));
        });
        CHECK(cases.size() > 20);
        check_cases(cases, target, 60);
    }
}
