// The engine on the CPU: what a launch refuses, what is compiled again and what is not, outputs that share memory with
// inputs, and launches from many threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "runtime/engine_impl.h"
#include "runtime/verify.h"
#include "tests/cache/fixture.h"
#include "tests/support/far_rows.h"

using namespace rowjit;

namespace {

constexpr std::int64_t kColumns = 6;

EngineOptions no_cache() { return {.cache_directory = "off", .use_tuning = false}; }

// y = x · eps, on [t, 6].
Graph scaled() {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("t"), kColumns});
    g.output("y", x * g.scalar("factor", f32, 2));
    return g;
}

// The mean over rows, taken from each row: two kernels, with a temporary between them.
Graph centred() {
    Graph g;
    const Axis t = g.rows("t");
    const Value x = g.input("x", f32, {t, kColumns});
    g.output("y", x - mean(x, t));
    return g;
}

// Buffers for two rows of scaled() or centred(); y keeps its mark while nothing runs.
struct Two {
    alignas(64) std::array<float, 2 * kColumns> x{1, 2, 3};
    alignas(64) std::array<float, 2 * kColumns> y = marked();

    static std::array<float, 2 * kColumns> marked() {
        std::array<float, 2 * kColumns> values{};
        values.fill(-7);
        return values;
    }
    bool untouched() const { return y == marked(); }
};

void check_refused(const Executable& executable, const Arguments& arguments, const Two& two, std::string_view words) {
    const Status status = executable.launch(nullptr, arguments);
    CHECK_FALSE(status.ok());
    const std::string message = status.message();
    CHECK_MESSAGE(message.find(words) != std::string::npos, message);
    CHECK(two.untouched());
}

void check_within_bar(const Engine& engine, const Executable& executable, const Graph& graph, std::int64_t rows) {
    const Bindings bindings = random_inputs(*graph.data(), all_rows(*graph.data(), rows), {.seed = 1});
    const auto outputs = verify(engine.device(), executable, *graph.data(), bindings);
    CHECK_MESSAGE(within_bar(outputs), describe(outputs));
}

}  // namespace

TEST_CASE("a launch without a tensor names it and runs nothing") {
    Engine engine(Device("cpu"), no_cache());
    const Executable f = engine.compile(scaled());
    Two two;
    Arguments arguments = f.arguments();
    arguments.rows("t", 2).tensor("y", two.y.data());
    check_refused(f, arguments, two, "tensor 'x' is not set");
}

TEST_CASE("a launch with a null tensor names it and runs nothing") {
    Engine engine(Device("cpu"), no_cache());
    const Executable f = engine.compile(scaled());
    Two two;
    Arguments arguments = f.arguments();
    arguments.rows("t", 2).tensor("x", static_cast<const void*>(nullptr)).tensor("y", two.y.data());
    check_refused(f, arguments, two, "tensor 'x' is null");
}

TEST_CASE("a launch without a row extent names the axis and runs nothing") {
    Engine engine(Device("cpu"), no_cache());
    const Executable f = engine.compile(scaled());
    Two two;
    Arguments arguments = f.arguments();
    arguments.tensor("x", two.x.data()).tensor("y", two.y.data());
    check_refused(f, arguments, two, "row axis 't' is not set");
}

TEST_CASE("strides of the wrong number are refused where they are set") {
    Engine engine(Device("cpu"), no_cache());
    Two two;
    const std::array<std::int64_t, 2> strides = {12, 6};
    Arguments arguments = engine.compile(scaled()).arguments();
    CHECK_THROWS_WITH_AS(arguments.tensor("x", two.x.data(), strides), doctest::Contains("'x'"), Error);
}

TEST_CASE("an output at an input's address that was not declared is refused") {
    Engine engine(Device("cpu"), no_cache());
    const Executable f = engine.compile(scaled());
    Two two;
    Arguments arguments = f.arguments();
    arguments.rows("t", 2).tensor("x", two.y.data()).tensor("y", two.y.data());
    check_refused(f, arguments, two, "not declared to overwrite");
}

TEST_CASE("a workspace that is too small or misaligned is refused") {
    Engine engine(Device("cpu"), no_cache());
    const Executable f = engine.compile(centred());
    Two two;
    alignas(64) std::array<std::byte, 4096> block{};
    Arguments arguments = f.arguments();
    arguments.rows("t", 2).tensor("x", two.x.data()).tensor("y", two.y.data());
    const std::size_t needed = f.workspace_bytes(arguments);
    REQUIRE(needed > 0);
    REQUIRE(needed + 4 <= block.size());
    arguments.workspace(block.data(), needed - 1);
    check_refused(f, arguments, two, "workspace");
    arguments.workspace(block.data() + 4, needed);
    check_refused(f, arguments, two, "aligned to 64");
    arguments.workspace(block.data(), needed);
    CHECK(f.launch(nullptr, arguments).ok());
    CHECK_FALSE(two.untouched());
}

TEST_CASE("graphs that differ in a scalar's default share a kernel") {
    Engine engine(Device("cpu"), no_cache());
    for (const double factor : {2.0, 3.0}) {
        Graph g;
        g.output("y", g.input("x", f32, {g.rows("t"), kColumns}) * g.scalar("factor", f32, factor));
        const Executable f = engine.compile(g);
        Two two;
        Arguments arguments = f.arguments();
        arguments.rows("t", 2).tensor("x", two.x.data()).tensor("y", two.y.data());
        f.launch(nullptr, arguments).or_throw();
        CHECK(two.y[1] == 2 * factor);
    }
    CHECK(engine.statistics().compiled == 1);
}

TEST_CASE("one executable runs every row count, none included") {
    Engine engine(Device("cpu"), no_cache());
    const Graph graph = make_graph("rms_norm", {129, bf16, {}});
    const Executable f = engine.compile(graph);
    const std::int64_t compiled = engine.statistics().compiled;
    for (const std::int64_t rows : {0, 1, 5, 64}) check_within_bar(engine, f, graph, rows);
    CHECK(engine.statistics().compiled == compiled);
}

TEST_CASE("the statistics know the time of what was compiled ahead of a load") {
    Engine engine(Device("cpu"), no_cache());
    const Graph graph = make_graph("rms_norm", {129, bf16, {}});
    const Program program = compile(*graph.data(), engine.impl().target());
    build_all({&program.steps[0].kernel}, engine.impl().target(), engine.impl().cache());  // as the tuner does
    engine.compile(graph);
    CHECK(engine.statistics().compiled == 1);
    CHECK(engine.statistics().compile_ms > 0);
}

TEST_CASE("a second engine on the same cache compiles nothing") {
    const TemporaryDirectory directory;
    const Graph graph = make_graph("layer_norm", {64, f32, {}});
    {
        Engine first(Device("cpu"), {.cache_directory = directory.path()});
        first.compile(graph);
        CHECK(first.statistics().compiled > 0);
    }
    Engine second(Device("cpu"), {.cache_directory = directory.path()});
    check_within_bar(second, second.compile(graph), graph, 3);
    CHECK(second.statistics().compiled == 0);
    CHECK(second.statistics().compile_ms == 0);
    CHECK(second.statistics().disk_hits > 0);
}

TEST_CASE("a damaged cache entry is compiled again") {
    const TemporaryDirectory directory;
    const Graph graph = make_graph("layer_norm", {64, f32, {}});
    Engine(Device("cpu"), {.cache_directory = directory.path()}).compile(graph);
    int damaged = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
        // Kernels are the only files this large.
        if (!entry.is_regular_file() || entry.file_size() < 512) continue;
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
        file << "damage";
        ++damaged;
    }
    REQUIRE(damaged > 0);
    Engine engine(Device("cpu"), {.cache_directory = directory.path()});
    check_within_bar(engine, engine.compile(graph), graph, 3);
    CHECK(engine.statistics().compiled > 0);
}

TEST_CASE("an output may overwrite the input it was declared to") {
    Engine engine(Device("cpu"), no_cache());
    Graph graph;
    const Axis t = graph.rows("t");
    const Value x = graph.input("x", bf16, {t, 129});
    const Value sum_of = x + graph.input("residual", bf16, {t, 129});
    const Value h = cast(sum_of, f32);
    graph.output("sum", sum_of, {"residual", false, {}});
    graph.output("y", cast(h * rsqrt(mean(h * h) + 1e-6), bf16));
    check_within_bar(engine, engine.compile(graph), graph, 7);
}

TEST_CASE("an accumulating output adds to what its buffer holds") {
    Engine engine(Device("cpu"), no_cache());
    Graph g;
    const Axis t = g.rows("t");
    const Value x = g.input("x", f32, {t, kColumns});
    g.output("y", x * 2.0, {"", true, {}});
    const Executable f = engine.compile(g);
    Two two;
    Arguments arguments = f.arguments();
    arguments.rows("t", 2).tensor("x", two.x.data()).tensor("y", two.y.data());
    for (int launch = 0; launch < 2; ++launch) f.launch(nullptr, arguments).or_throw();
    CHECK(two.y[0] == -7 + 2 * 2 * 1);
    CHECK(two.y[2] == -7 + 2 * 2 * 3);
    CHECK(two.y[3] == -7);
}

TEST_CASE("eight threads launch one executable, each its own arguments") {
    Engine engine(Device("cpu"), no_cache());
    const Executable f = engine.compile(scaled());
    std::vector<int> wrong(8, 0);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < wrong.size(); ++i) {
        threads.emplace_back([&, i] {
            Two two;
            Arguments arguments = f.arguments();
            arguments.rows("t", 2).tensor("x", two.x.data()).tensor("y", two.y.data());
            for (int launch = 0; launch < 200; ++launch) {
                const double factor = static_cast<double>(i) + launch;
                arguments.scalar("factor", factor);
                if (!f.launch(nullptr, arguments).ok() || two.y[2] != 3 * factor) ++wrong[i];
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(std::count(wrong.begin(), wrong.end(), 0) == 8);
}

TEST_CASE("rows past 2^31 elements are computed where they lie") {
    Engine engine(Device("cpu"), no_cache());
    const Executable norm = engine.compile(make_graph("rms_norm", {96, f32, {}}));
    CHECK(norm_of_rows(norm, 96, kFarStride) == norm_of_rows(norm, 96, 96));
}
