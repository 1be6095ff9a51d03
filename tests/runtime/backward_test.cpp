// Backwards on the CPU: compiled like any other graph, and held against the oracle on what a training step gives them.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/target.h"
#include "compiler/compile.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/engine.h"
#include "rowjit/gradient.h"
#include "runtime/cpu/device.h"
#include "runtime/device.h"
#include "runtime/verify.h"
#include "tests/support/coverage.h"
#include "tests/support/launches.h"

using namespace rowjit;

namespace {

const EngineOptions kOptions = {.cache_directory = "off", .use_tuning = false};

Graph op_graph(const CompositeInfo& row, Dtype dtype) {
    return make_graph(row.name, {.columns = 64, .dtype = dtype, .options = {}});
}

// One block after the other, the last first: no number of threads has an order further from the usual one.
const ParallelFor kBackwards = {[](void* /*context*/, std::int64_t count, RangeBody body, void* body_context) noexcept {
                                    for (std::int64_t i = count; i-- > 0;) body(body_context, i, i + 1);
                                },
                                nullptr};

bool same_bits(const Tensor& a, const Tensor& b) {
    return std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(),
                      [](double x, double y) { return x == y || (x != x && y != y); });
}

// Of each output, over the launches of a comparison: of fewer, and where terms cancel, eager's largest error is luck.
constexpr std::int64_t kFewestElements = 256;

}  // namespace

TEST_CASE("the forward that saves and its backward are the oracle's, for every composite") {
    Engine engine(Device("cpu"), kOptions);
    Coverage coverage("engine_test", "the forward that saves and its derived backward against the oracle", "cpu");
    for (const CompositeInfo& row : composites()) {
        for (const Dtype dtype : {bf16, f32}) {
            CAPTURE(row.name);
            CAPTURE(std::string(name(dtype)));
            const Graph graph = op_graph(row, dtype);
            const std::vector<std::string> trained = trained_inputs(row.name, graph);
            if (trained.empty()) continue;
            coverage.add(row.name, {64, dtype, {}});
            const Differentiated both = differentiate(graph, trained);
            for (const std::int64_t rows : {0, 1, 5}) {
                const RowExtents extents = {{"tokens", rows}};
                const GraphData& forward = *both.forward.data();
                const GraphData& backward = *both.backward.data();
                const std::vector<Verification> saved = verify(
                    engine.device(), engine.compile(both.forward), forward,
                    launches(forward, extents, kFewestElements,
                             [&](std::uint64_t seed) { return random_inputs(forward, extents, {.seed = seed}); }));
                CHECK_MESSAGE(within_bar(saved), describe(saved));
                const std::vector<Verification> gradients =
                    verify(engine.device(), engine.compile(both.backward), backward,
                           launches(backward, extents, kFewestElements,
                                    [&](std::uint64_t seed) { return random_inputs(both, extents, {.seed = seed}); }),
                           {.row_padding = rows == 5 ? 16 : 0});
                CHECK_MESSAGE(within_bar(gradients), describe(gradients));
            }
        }
    }
    CHECK(coverage.difference() == "");
}

TEST_CASE("a loss and its gradient in one graph are the oracle's") {
    Engine engine(Device("cpu"), kOptions);
    const Graph loss = make_graph("cross_entropy", {.columns = 1000, .dtype = bf16, .options = {{"reduction", "sum"}}});
    const Graph joint = gradient(loss, {"logits"}, {.joint = true, .unit_cotangent = true});
    const Bindings bindings = random_inputs(*joint.data(), {{"tokens", 5}}, {.seed = 3, .out_of_range = true});
    const std::vector<Verification> outputs = verify(engine.device(), engine.compile(joint), *joint.data(), bindings);
    CHECK(outputs.size() == 2);
    CHECK_MESSAGE(within_bar(outputs), describe(outputs));
}

TEST_CASE("cross-entropy's gradient overwrites the logits, which are read once and written once") {
    const Graph loss = make_graph(
        "cross_entropy",
        {.columns = 4096,
         .dtype = bf16,
         .options = {{"label_smoothing", "0.1"}, {"z_loss", "1e-4"}, {"lse", "true"}, {"in_place", "true"}}});
    const GradientOptions options = {.of = {"loss"}, .joint = true, .in_place = {"logits"}, .unit_cotangent = true};
    const Graph joint = gradient(loss, {"logits"}, options);

    const Target target = find_target("sm_90a");
    const Program program = compile(*joint.data(), target);
    constexpr double kTokens = 8192;
    double bytes = 0;
    int over_the_logits = 0;
    for (const Step& step : program.steps) {
        bytes += group_bytes(*step.group.graph, kTokens);
        if (step.group.graph->find_input("logits")) ++over_the_logits;
    }
    CHECK(over_the_logits == 1);
    CHECK(program.steps.size() <= 4);
    const double logits_bytes = kTokens * 4096 * 2;
    CHECK(bytes < 2.02 * logits_bytes);

    Engine engine(Device("cpu"), kOptions);
    const RowExtents rows = {{"tokens", 5}};
    const std::vector<Verification> outputs =
        verify(engine.device(), engine.compile(joint), *joint.data(),
               launches(*joint.data(), rows, kFewestElements, [&](std::uint64_t seed) {
                   return random_inputs(*joint.data(), rows, {.seed = 3 + seed, .out_of_range = true});
               }));
    CHECK(outputs.size() == 4);
    CHECK_MESSAGE(within_bar(outputs), describe(outputs));
}

TEST_CASE("a weight's gradient has the same bits for any number of threads, and every time") {
    Engine engine(Device("cpu"), kOptions);
    for (const CompositeInfo& row : composites()) {
        const Graph graph = op_graph(row, f32);
        const std::vector<std::string> trained = trained_inputs(row.name, graph);
        // A library computes products, in an order that is its own.
        if (trained.empty() || row.name.starts_with("fused_linear_")) continue;
        CAPTURE(row.name);
        const Differentiated both = differentiate(graph, trained);
        const GraphData& backward = *both.backward.data();
        RowExtents rows = all_rows(*both.forward.data(), 200);
        rows.merge(all_rows(backward, 200));
        const Bindings bindings = random_inputs(both, rows);
        const Executable executable = engine.compile(both.backward);
        set_parallel_for(engine.device().impl(), {});
        const Tensors first = run(engine.device(), executable, backward, bindings);
        set_parallel_for(engine.device().impl(), kBackwards);
        const Tensors second = run(engine.device(), executable, backward, bindings);
        for (const auto& [name, tensor] : first) {
            CAPTURE(name);
            CHECK(same_bits(tensor, second.at(name)));
        }
    }
}

TEST_CASE("where every target is ignored, losses and their gradients are what eager gives") {
    Engine engine(Device("cpu"), kOptions);
    int losses = 0;
    for (const CompositeInfo& row : composites()) {
        const auto option = [&](std::string_view name) {
            const auto found = std::find_if(row.options.begin(), row.options.end(),
                                            [&](const OptionInfo& one) { return one.name == name; });
            return found == row.options.end() ? nullptr : &*found;
        };
        // tests/runtime/linear_test.cpp has those behind a head's product.
        if (option("ignore_index") == nullptr || row.name.starts_with("fused_linear_")) continue;
        CAPTURE(row.name);
        ++losses;
        const OptionInfo* target = option("target");
        const bool may_lack = target != nullptr && target->type == OptionType::kFlag;
        const OptionMap options = may_lack ? OptionMap{{"target", "true"}} : OptionMap{};
        const Graph graph = make_graph(row.name, {64, f32, options});
        const Graph both = gradient(graph, trained_inputs(row.name, graph), {.joint = true});
        Bindings bindings = random_inputs(*both.data(), all_rows(*both.data(), 5), {.seed = 4});
        for (auto& [name, tensor] : bindings.tensors) {
            if (is_integer(tensor.dtype)) std::fill(tensor.values.begin(), tensor.values.end(), -100);
        }
        const std::vector<Verification> outputs = verify(engine.device(), engine.compile(both), *both.data(), bindings);
        CHECK_MESSAGE(within_bar(outputs), describe(outputs));
    }
    CHECK(losses >= 4);
}
