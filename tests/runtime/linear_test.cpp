// Fused linear losses on the CPU: divided into chunks in every way, against the oracle and against one another.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "compiler/compile.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/engine.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "runtime/engine_impl.h"
#include "runtime/verify.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

const EngineOptions kOptions = {.cache_directory = "off", .use_tuning = false};

Graph loss_graph(std::int64_t vocabulary, std::int64_t hidden, Dtype dtype, OptionMap options = {}) {
    options["hidden"] = std::to_string(hidden);
    return make_graph("fused_linear_cross_entropy", {.columns = vocabulary, .dtype = dtype, .options = options});
}

// The loss and its gradients in one pass.
Graph step_graph(const Graph& loss) {
    return gradient(loss, trained_inputs("fused_linear_cross_entropy", loss), {.joint = true, .unit_cotangent = true});
}

Bindings inputs_of(const Graph& graph, std::int64_t tokens) {
    return random_inputs(*graph.data(), {{"tokens", tokens}}, {.seed = 7, .scale = 0.5});
}

Tensors run_chunked(Engine& engine, const Graph& graph, const Bindings& bindings, const ChunkOptions& chunks) {
    return run(engine.device(), engine.compile(graph, nullptr, chunks), *graph.data(), bindings);
}

std::vector<Verification> check(Engine& engine, const Graph& graph, const Bindings& bindings,
                                const ChunkOptions& chunks) {
    return verify(engine.device(), engine.compile(graph, nullptr, chunks), *graph.data(), bindings);
}

}  // namespace

TEST_CASE("a matrix product alone is the oracle's, for every pair of layouts and dtype") {
    Engine engine(Device("cpu"), kOptions);
    for (const Dtype dtype : {bf16, f16, f32, f64}) {
        for (const bool left_turned : {false, true}) {
            for (const bool right_turned : {false, true}) {
                Graph g;
                const Axis m = g.rows("m");
                const Axis n = g.columns("n", 37);
                const Axis k = g.columns("k", 19);
                const Axis rows_k = g.rows("rows_k");
                const Axis inner = left_turned ? rows_k : k;
                // A row axis stands first, so turning the left operand contracts rows.
                const Value a =
                    left_turned ? g.input("a", dtype, {rows_k, g.columns("mc", 23)}) : g.input("a", dtype, {m, k});
                const Value b = right_turned
                                    ? (left_turned ? g.input("b", dtype, {rows_k, n}) : g.input("b", dtype, {n, k}))
                                    : (left_turned ? g.input("b", dtype, {rows_k}) : g.input("b", dtype, {k, n}));
                g.output("y", matmul(a, b, {inner}));
                const Bindings bindings = random_inputs(*g.data(), all_rows(*g.data(), 11));
                const auto outputs = check(engine, g, bindings, {});
                // Of f64 the oracle's sums are exact but for one rounding, which no library's are.
                const double allowed = dtype == f64 ? 1e-14 : 0;
                CHECK_MESSAGE((within_bar(outputs) || outputs[0].report.most_off < allowed), describe(outputs));
            }
        }
    }
}

TEST_CASE("a fused linear cross-entropy and its gradients are the oracle's") {
    Engine engine(Device("cpu"), kOptions);
    for (const Dtype dtype : {bf16, f32}) {
        for (const std::int64_t tokens : {0, 1, 13}) {
            const Graph step = step_graph(loss_graph(509, 33, dtype));
            for (const std::int64_t rows : {0, 1, 2, 7, 13}) {
                CAPTURE(rows);
                CAPTURE(tokens);
                const auto outputs = check(engine, step, inputs_of(step, tokens), {.chunk_rows = rows});
                CHECK_MESSAGE(within_bar(outputs), describe(outputs));
            }
        }
    }
}

TEST_CASE("chunks of any size give the same rows, and gradients that differ in the order of their sums alone") {
    Engine engine(Device("cpu"), kOptions);
    const Graph step = step_graph(loss_graph(131, 33, bf16));
    const Bindings bindings = inputs_of(step, 14);
    const Tensors whole = run_chunked(engine, step, bindings, {.chunk_rows = 14});
    for (const std::int64_t rows : {7, 5, 2, 1}) {
        const Tensors parts = run_chunked(engine, step, bindings, {.chunk_rows = rows});
        CHECK(parts.at("d_hidden").values == whole.at("d_hidden").values);
        const Tensors again = run_chunked(engine, step, bindings, {.chunk_rows = rows});
        CHECK(again.at("d_weight").values == parts.at("d_weight").values);
        CHECK(again.at("loss").values == parts.at("loss").values);
    }
}

TEST_CASE("products find an aligned workspace wherever the caller's block lies, and write nothing past its end") {
    constexpr std::size_t kGuardBytes = 64;
    Engine engine(Device("cpu"), kOptions);
    const Graph loss = loss_graph(37, 24, bf16);
    const Executable executable = engine.compile(loss);
    const Bindings bindings = inputs_of(loss, 5);
    const Tensors expected = run(engine.device(), executable, *loss.data(), bindings);
    Arguments arguments = executable.arguments();
    arguments.rows("tokens", 5);
    std::map<std::string, std::vector<std::byte>> held;
    const auto give = [&](const std::string& name, const Layout& layout) {
        std::vector<std::byte>& bytes = held[name];
        bytes.resize(static_cast<std::size_t>(buffer_elements(layout)) * size_bytes(layout.dtype));
        arguments.tensor(name, bytes.data());
        return bytes.data();
    };
    for (const auto& [name, tensor] : bindings.tensors) {
        const Layout layout = input_layout(*loss.data(), name, bindings.rows);
        write_tensor(layout, tensor, give(name, layout));
    }
    for (const OutputInfo& output : loss.data()->outputs())
        give(output.name, output_layout(*loss.data(), output.name, bindings.rows));
    const std::size_t bytes = executable.workspace_bytes(arguments);
    std::vector<std::byte> block(bytes + 512 + kGuardBytes);
    auto* const first = block.data() + (0 - reinterpret_cast<std::uintptr_t>(block.data())) % 256;
    for (const std::size_t offset : {0, 64, 128, 192}) {
        std::fill(block.begin(), block.end(), std::byte{0x5A});
        arguments.workspace(first + offset, bytes);
        executable.launch(nullptr, arguments).or_throw();
        CHECK(std::all_of(first + offset + bytes, first + offset + bytes + kGuardBytes,
                          [](std::byte byte) { return byte == std::byte{0x5A}; }));
        const Layout layout = output_layout(*loss.data(), "loss", bindings.rows);
        CHECK(read_tensor(layout, held.at("loss").data()).values == expected.at("loss").values);
    }
}
