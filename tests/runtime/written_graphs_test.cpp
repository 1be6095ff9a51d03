// Graphs as people write them, none of them an operation of the library: the texts that benchmarks/graphs and
// examples/graphs have, forward and derived backward, on the CPU against the oracle.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "dsl/random_inputs.h"
#include "dsl/tensor.h"
#include "rowjit/engine.h"
#include "rowjit/gradient.h"
#include "runtime/device.h"
#include "runtime/verify.h"
#include "tests/support/launches.h"
#include "tests/support/written_graphs.h"

using namespace rowjit;

namespace {

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kFewestElements = 256;  // of fewer, eager's largest error is luck

template <typename Inputs>
void check(const Engine& engine, const Executable& executable, const GraphData& graph, const RowExtents& rows,
           const Inputs& inputs) {
    const auto outputs =
        verify(engine.device(), executable, graph, launches(graph, rows, kFewestElements, inputs), {.row_padding = 16});
    CHECK_MESSAGE(within_bar(outputs), describe(outputs));
}

}  // namespace

TEST_CASE("graphs that are written as texts meet the bar, and so do their backwards") {
    Engine engine(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
    const std::vector<std::filesystem::path> files = written_graphs();
    REQUIRE(files.size() > 20);
    for (const std::filesystem::path& file : files) {
        CAPTURE(file.filename().string());
        const Graph graph = Graph::parse(text_of(file), file.filename().string());
        RowExtents rows = all_rows(*graph.data(), kRows);
        check(engine, engine.compile(graph), *graph.data(), rows,
              [&](std::uint64_t seed) { return random_inputs(*graph.data(), rows, {.seed = seed}); });
        if (!has_gradient(file)) {
            CHECK_THROWS_AS(differentiate(graph), Error);
            continue;
        }
        const Differentiated both = differentiate(graph);
        rows.merge(all_rows(*both.backward.data(), kRows));
        check(engine, engine.compile(both.backward), *both.backward.data(), rows,
              [&](std::uint64_t seed) { return random_inputs(both, rows, {.seed = seed}); });
    }
}

TEST_CASE("an output may overwrite an input that nothing reads") {
    Engine engine(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
    const Graph graph = Graph::parse(
        "rows r\ninput p: bf16[r, 64]\ninput master: f32[r, 64]\ninput g: f32[r, 64]\n"
        "w = master - 0.1 * g\noutput new_master = w alias(master)\noutput new_p = cast(w, bf16) alias(p)\n",
        "a step of a copy");
    const RowExtents rows = all_rows(*graph.data(), kRows);
    check(engine, engine.compile(graph), *graph.data(), rows,
          [&](std::uint64_t seed) { return random_inputs(*graph.data(), rows, {.seed = seed}); });
}

// The norm's kernel has the inner columns among its rows, and stores its rows where the product reads them.
TEST_CASE("a product reads what a norm over outer columns stores") {
    Engine engine(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
    const Graph graph = Graph::parse(R"(rows tokens
columns a = 100
columns b = 32
columns o = 16
input x: bf16[tokens, a, b]
input weight: bf16[o, b]
h = cast(x, f32)
n = cast(h * rsqrt(mean(h * h, a) + 1e-5), bf16)
output y = matmul(n, weight, b)
)",
                                     "norm and product");
    const RowExtents rows = all_rows(*graph.data(), kRows);
    check(engine, engine.compile(graph), *graph.data(), rows,
          [&](std::uint64_t seed) { return random_inputs(*graph.data(), rows, {.seed = seed}); });
}

// A Hadamard transform: what reads many places is stored between kernels, and its cotangents likewise.
TEST_CASE("a value added to itself at other columns again and again is what the oracle says, and so is its gradient") {
    Engine engine(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
    std::string text = "rows tokens\ncolumns d = 256\ninput x: bf16[tokens, d]\nv0 = cast(x, f32)\n";
    for (int i = 0; i < 8; ++i)
        text += fmt::format("v{} = (index(v{}, tokens, (d + {}) % 256) + v{} * 0.5) * 0.7\n", i + 1, i, 1 << i, i);
    const Graph graph = Graph::parse(text + "output y = cast(v8 * rsqrt(mean(v8 * v8) + 1e-6), bf16)\n", "transform");
    RowExtents rows = all_rows(*graph.data(), kRows);
    check(engine, engine.compile(graph), *graph.data(), rows,
          [&](std::uint64_t seed) { return random_inputs(*graph.data(), rows, {.seed = seed}); });
    const Differentiated both = differentiate(graph);
    rows.merge(all_rows(*both.backward.data(), kRows));
    check(engine, engine.compile(both.backward), *both.backward.data(), rows,
          [&](std::uint64_t seed) { return random_inputs(both, rows, {.seed = seed}); });
}

// Rows of 2816 columns beside rows of heads: the kept values of all have room for the longest loop on the CPU's stack.
TEST_CASE("four layers' norms and activations have a backward that runs on the CPU") {
    Engine engine(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
    std::string text = "rows tokens\ninput x: bf16[tokens, 1024]\nx0 = x\n";
    for (int i = 0; i < 4; ++i) {
        for (const char* input : {"a{}: bf16[tokens, 1024]", "up{}: bf16[tokens, 2816]", "gate{}: bf16[tokens, 2816]",
                                  "down{}: bf16[tokens, 1024]", "w{}: bf16[1024]"})
            text += fmt::format("input {}\n", fmt::format(fmt::runtime(input), i));
        text += fmt::format(
            "y{0} = x{0} + a{0}\noutput n{0} = rms_norm(y{0}, w{0}, eps=1e-5, casting=\"llama\")\n"
            "output act{0} = swiglu(gate{0}, up{0})\nx{1} = y{0} + down{0}\n",
            i, i + 1);
    }
    const Graph graph = Graph::parse(text + "output y = x4\n", "layers");
    const Differentiated both = differentiate(graph);
    RowExtents rows = all_rows(*both.backward.data(), kRows);
    rows.merge(all_rows(*graph.data(), kRows));
    check(engine, engine.compile(both.backward), *both.backward.data(), rows,
          [&](std::uint64_t seed) { return random_inputs(both, rows, {.seed = seed}); });
}
