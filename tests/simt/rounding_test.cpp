// What emitted kernels compute less exactly, or exactly, against the oracle where it shows: sums that overflow or
// cancel, weights of extreme rows, and the mean error of many.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "dsl/interpret.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/gradient.h"
#include "runtime/verify.h"
#include "tests/simt/cases.h"
#include "tests/simt/simt_device.h"
#include "tests/support/differences.h"

using namespace rowjit;

TEST_CASE("sums of two products overflow and cancel on GPUs as eager's do") {
    const Target target = simt::target("sm_90a");
    const Device device = simt::device(target);
    std::vector<Graph> graphs;
    for (const char* op : {"rope", "rope_complex", "mrope", "hyper_post"})
        graphs.push_back(make_graph(op, {64, bf16, {}}));
    graphs.push_back(differentiate(graphs[1], trained_inputs("rope_complex", graphs[1])).backward);
    graphs.push_back(differentiate(graphs[3], trained_inputs("hyper_post", graphs[3])).backward);
    std::vector<Program> programs;
    for (const Graph& graph : graphs) programs.push_back(compile(*graph.data(), target));
    const std::vector<Executable> executables = simt::build(std::move(programs), target, device);
    for (std::size_t i = 0; i < graphs.size(); ++i) {
        CAPTURE(i);
        for (const double huge : {3e38, -3e38, 1e30}) {
            Bindings bindings = random_inputs(*graphs[i].data(), all_rows(*graphs[i].data(), 6), {.seed = 5});
            for (auto& [name, tensor] : bindings.tensors) {
                if (!is_float(tensor.dtype)) continue;
                // Neighbours that are equal, opposite, and beside numbers of common size.
                for (std::size_t at = 0; at < tensor.values.size(); ++at) {
                    const double signs[] = {1, 1, -1, 1, 0};
                    const double value = huge * signs[at * 7 / 3 % std::size(signs)];
                    if (value != 0) tensor.values[at] = round_to(tensor.dtype, value);
                }
            }
            const auto outputs = verify(device, executables[i], *graphs[i].data(), bindings);
            CHECK_MESSAGE(within_bar(outputs), huge, describe(outputs));
        }
    }
}

TEST_CASE("weights of narrow rows are the oracle's wherever the greatest of a row lies, and whatever multiplies them") {
    const Target target = simt::target("sm_90a");
    constexpr std::int64_t kColumns = 264;
    // Where a greatest is multiplied, where it is no more, and where its product would overflow.
    const double greatest[] = {0,    -0.3,  88,     -700, 5000,  1.1e6,     1.3e8,    1.4e8,
                               1e12, -1e12, 1.6e38, 3e38, -3e38, -INFINITY, INFINITY, 20};
    const double factors[] = {1, -1e-6, 0, 1e-30, -1e-33, 1e-37, 1e30, 0.5};
    std::vector<Case> cases;
    for (const Dtype dtype : {bf16, f16}) {
        add_cases("softmax", make_graph("softmax", {kColumns, dtype, {}}), target, &cases);
        add_cases("logsumexp", make_graph("logsumexp", {8 * kColumns, dtype, {}}), target, &cases);  // in one pass too
    }
    add_cases("scaled",
              Graph::parse("rows t\ninput x: bf16[t, 264]\ninput k: f32[t]\nh = cast(x, f32)\n"
                           "output y = cast(k * exp(h - max(h)), bf16)\n"),
              target, &cases);
    each_built(cases, target, [&](std::size_t i, const Device& device, const Executable& executable) {
        CAPTURE(cases[i].name);
        const GraphData& graph = *cases[i].graph.data();
        const auto rows = static_cast<std::int64_t>(std::size(greatest));
        Bindings bindings = random_inputs(graph, all_rows(graph, rows), {.seed = i});
        for (auto& [name, tensor] : bindings.tensors) {
            const std::size_t each = tensor.values.size() / std::size(greatest);
            for (std::size_t at = 0; at < tensor.values.size(); ++at) {
                const std::size_t row = at / each;
                // From the greatest down to what weighs less than the least denormal, with a gap.
                const double below = at % 5 == 0 ? 0.0 : static_cast<double>(at % each) * 0.6;
                const double value = each == 1 ? factors[row % std::size(factors)] : greatest[row] - below;
                tensor.values[at] = round_to(tensor.dtype, value);
            }
        }
        const auto outputs = verify(device, executable, graph, bindings);
        CHECK_MESSAGE(within_bar(outputs), describe(outputs));
    });
}

TEST_CASE("functions of every bf16 and f16 are the oracle's, less exact ones and their derivatives too") {
    constexpr std::int64_t kColumns = 1024;
    const char* functions[] = {
        "log(a)",
        "log1p(a)",
        "sqrt(a)",
        "b * rsqrt(a)",
        "b / a",
        "maximum(a, 0) + log1p(exp(-abs(a)))",
        "a * tanh(maximum(a, 0) + log1p(exp(-abs(a))))",
        "0.5 * a * (1 + tanh(0.7978845608 * (a + 0.044715 * a * a * a)))",
        "30 * tanh(a / 30) * b",
        "select(a > 0, a, exp(minimum(a, 0)) - 1)",
        "exp(a) - exp(-a)",
        "a - tanh(a)",
        "sin(a)",
    };
    for (const std::string name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const char* dtype : {"bf16", "f16", "f32"}) {
            for (const char* function : functions) {
                const Graph graph =
                    Graph::parse(fmt::format("rows t\ninput x: {0}[t, {1}]\ninput z: {0}[t, {1}]\na = cast(x, f32)\n"
                                             "b = cast(z, f32)\noutput y = cast({2}, {0})\n",
                                             dtype, kColumns, function));
                const std::string of = fmt::format("{} of {}", function, dtype);
                cases.push_back({of, graph, compile(*graph.data(), target)});
                const Graph backward = differentiate(graph, {"x"}).backward;
                cases.push_back({of + ", backward", backward, compile(*backward.data(), target)});
            }
        }
        each_built(cases, target, [&](std::size_t i, const Device& device, const Executable& executable) {
            CAPTURE(name);
            CAPTURE(cases[i].name);
            const GraphData& graph = *cases[i].graph.data();
            Bindings bindings = random_inputs(graph, all_rows(graph, 65536 / kColumns), {.seed = i});
            for (auto& [input, x] : bindings.tensors) {  // of a backward perhaps the function's value alone
                for (std::size_t at = 0; input == "x" && at < x.values.size(); ++at) {
                    const auto bits = static_cast<std::uint16_t>(at);
                    x.values[at] = load_element(x.dtype == f16 ? f16 : bf16, &bits);
                }
            }
            const auto outputs = verify(device, executable, graph, bindings);
            CHECK_MESSAGE(within_bar(outputs), describe(outputs));
        });
    }
}

TEST_CASE("what is left of sums that cancel is exact to the last unit under every schedule, and overflows as eager's") {
    const Target target = simt::target("sm_90a");
    std::vector<Case> cases;
    for (const Dtype dtype : {bf16, f32}) {
        for (const Graph& graph : differences_of_sums(1000, dtype)) add_cases("differences", graph, target, &cases);
    }
    each_built(cases, target, [&](std::size_t i, const Device& device, const Executable& executable) {
        CAPTURE(cases[i].name);
        const GraphData& graph = *cases[i].graph.data();
        const auto inputs = [&](bool extremes) {
            return random_inputs(graph, all_rows(graph, 5), {.seed = 9, .extremes = extremes});
        };
        check_differences(run(device, executable, graph, inputs(false)),
                          interpret(graph, inputs(false), Rounding::kExact));
        CHECK(within_bar(verify(device, executable, graph, inputs(true))));
    });
}

TEST_CASE("a divergence of mixtures errs to neither side, of distributions that are alike too") {
    const Target target = simt::target("sm_90a");
    const Device device = simt::device(target);
    for (const auto& [dtype, temperature] :
         {std::pair<Dtype, std::string_view>(bf16, "1"), {f16, "1"}, {bf16, "5"}, {f32, "5"}}) {
        const Graph graph = make_graph("jsd", {4096, dtype, {{"temperature", std::string(temperature)}}});
        std::vector<Program> programs;
        programs.push_back(compile(*graph.data(), target));
        const Executable executable = simt::build(std::move(programs), target, device)[0];
        double units = 0;
        constexpr int kLaunches = 6;
        for (std::uint64_t seed = 1; seed <= kLaunches; ++seed) {
            const Bindings bindings = random_inputs(*graph.data(), all_rows(*graph.data(), 4), {.seed = seed});
            const double got =
                run(device, executable, *graph.data(), bindings, {.guard_bytes = 0}).at("loss").values[0];
            const double exact = interpret(*graph.data(), bindings, Rounding::kExact).at("loss").values[0];
            units += (got - exact) / ulp(f32, exact) / kLaunches;
        }
        // The rounding of log2 e was 2.5 units of it, and exponentials that truncate ten of what 5 divides.
        CHECK_MESSAGE(std::fabs(units) < 1, name(dtype), " at a temperature of ", temperature, ": ", units);
    }
}
