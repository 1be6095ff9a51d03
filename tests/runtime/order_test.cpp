// The order of ids: the node against std::stable_sort in the oracle and compiled for the CPU, its passes and which of
// them a launch does without, and the gradient of gathered rows, which asks for it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/compile.h"
#include "dsl/interpret.h"
#include "dsl/random_inputs.h"
#include "rowjit/coord.h"
#include "rowjit/engine.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "runtime/verify.h"

using namespace rowjit;

namespace {

Engine& engine() {
    static Engine instance(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
    return instance;
}

// Ids of so many rows, given by a launch or declared, and their order.
Graph order_graph(Dtype dtype, std::int64_t declared_rows = -1, std::int64_t declared_ids = -1) {
    Graph g;
    const Axis tokens = declared_ids < 0 ? g.rows("tokens") : g.rows("tokens", declared_ids);
    const Axis rows = declared_rows < 0 ? g.rows("rows") : g.rows("rows", declared_rows);
    g.output("y", order(g.input("ids", dtype, {tokens}), g.rows("places", tokens, 0), rows));
    return g;
}

Bindings bindings_of(Dtype dtype, const std::vector<std::int64_t>& ids, std::int64_t rows) {
    const auto count = static_cast<std::int64_t>(ids.size());
    return {.tensors = {{"ids", {dtype, {count}, {ids.begin(), ids.end()}}}},
            .scalars = {},
            .rows = {{"tokens", count}, {"rows", rows}}};
}

std::vector<double> sorted_positions(const std::vector<std::int64_t>& ids, std::int64_t rows) {
    std::vector<double> positions(ids.size());
    std::iota(positions.begin(), positions.end(), 0.0);
    const auto row = [&](double at) { return std::clamp<std::int64_t>(ids[static_cast<std::size_t>(at)], -1, rows); };
    std::ranges::stable_sort(positions, [&](double a, double b) { return row(a) < row(b); });
    return positions;
}

// A few of each kind, those outside the rows at both ends among them.
std::vector<std::int64_t> scattered_ids(std::int64_t count, std::int64_t rows) {
    std::vector<std::int64_t> ids;
    std::uint64_t state = 1;
    for (std::int64_t i = 0; i < count; ++i) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        ids.push_back(static_cast<std::int64_t>((state >> 33U) % static_cast<std::uint64_t>(rows + 4)) - 2);
    }
    return ids;
}

std::vector<double> compiled(const Graph& graph, Bindings bindings) {
    std::erase_if(bindings.rows, [&](const auto& axis) {
        return std::ranges::any_of(graph.data()->axes(), [&](const AxisInfo& declared) {
            return declared.name == axis.first && declared.extent != kRuntimeExtent;
        });
    });
    return run(engine().device(), engine().compile(graph), *graph.data(), bindings).at("y").values;
}

std::vector<double> interpreted(const Graph& graph, const Bindings& bindings) {
    return interpret(*graph.data(), bindings, Rounding::kExact).at("y").values;
}

// Of a program's kernels, those that a launch of so many rows needs.
std::ptrdiff_t launched(const Program& program, std::int64_t rows) {
    return std::ranges::count_if(program.steps,
                                 [&](const Step& step) { return !step.needed || rows > step.needed->above; });
}

std::ptrdiff_t kernels_that_order(const Program& program) {
    return std::ranges::count_if(program.steps, [](const Step& step) { return step.kernel.order.has_value(); });
}

}  // namespace

TEST_CASE("ids come in their stable order, of any number and any number of rows, given at launch or declared") {
    for (const Dtype dtype : {i32, i64}) {
        const Graph at_launch = order_graph(dtype);
        for (const std::int64_t rows : {0, 1, 9, 1022, 1023, 2046, 2047, 70000, 5000000}) {
            for (const std::int64_t count : {0, 1, 2, 31, 127, 1025, 5000}) {
                const std::vector<std::int64_t> ids = scattered_ids(count, rows);
                const Bindings bindings = bindings_of(dtype, ids, rows);
                const std::vector<double> wanted = sorted_positions(ids, rows);
                const std::string name = fmt::format("{} ids of {} rows", count, rows);
                CHECK_MESSAGE(interpreted(at_launch, bindings) == wanted, name);
                CHECK_MESSAGE(compiled(at_launch, bindings) == wanted, name);
                if (rows == 0 || count != 1025) continue;
                CHECK_MESSAGE(compiled(order_graph(dtype, rows), bindings) == wanted, name);
                CHECK_MESSAGE(compiled(order_graph(dtype, rows, count), bindings) == wanted, name);
            }
        }
    }
}

TEST_CASE("equal ids, ids far outside the rows and more than 2^16 of them come in their stable order") {
    constexpr std::int64_t kRows = 128256;
    const std::int64_t farthest = std::int64_t{1} << 52;  // which the oracle's doubles hold
    const std::vector<std::vector<std::int64_t>> cases = {
        std::vector<std::int64_t>(300, 7),
        std::vector<std::int64_t>(300, -5),
        {farthest, 5, -farthest, kRows, kRows - 1, kRows + 1, 0, -1, farthest, -2, 5},
        scattered_ids(70000, kRows)};
    for (const std::vector<std::int64_t>& ids : cases) {
        for (const Graph& graph : {order_graph(i64), order_graph(i64, kRows)})
            CHECK(compiled(graph, bindings_of(i64, ids, kRows)) == sorted_positions(ids, kRows));
    }
}

TEST_CASE("an order is within its bounds between strided ids and a strided result") {
    const Graph graph = order_graph(i32);
    const Bindings bindings = bindings_of(i32, scattered_ids(900, 5000), 5000);
    const auto outputs =
        verify(engine().device(), engine().compile(graph), *graph.data(), bindings, {.row_padding = 3});
    CHECK_MESSAGE(within_bar(outputs), describe(outputs));
}

TEST_CASE("ids are read where they lie, as one of a row's columns, and an order may be stored twice and read") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis rows = g.rows("rows");
    const Axis choices = g.columns("choices", 4);
    const Value place = g.input("place", i64, {tokens, choices});
    const Value found = order(index(place, choices, 2), g.rows("places", tokens, 0), rows);
    g.output("y", found);
    g.output("again", found);
    g.output("first", index(place, {Coord(found), 0}));
    const Program program = compile(*g.data(), find_target("sm_90a"));
    CHECK(program.steps[0].kernel.order.has_value());
    CHECK(program.steps[0].kernel.order->offset == 2);
    const Bindings bindings = random_inputs(*g.data(), {{"tokens", 700}, {"rows", 90}}, {.out_of_range = true});
    const auto outputs = verify(engine().device(), engine().compile(g), *g.data(), bindings, {.row_padding = 2});
    CHECK_MESSAGE(within_bar(outputs), describe(outputs));
}

TEST_CASE("an order takes two kernels for each ten bits of its rows on a GPU, and one for eleven on a processor") {
    const auto kernels = [](std::int64_t rows, const char* target, Dtype dtype = i64) {
        return kernels_that_order(compile(*order_graph(dtype, rows).data(), find_target(target)));
    };
    CHECK(kernels(1022, "sm_90a") == 2);  // 1024 kinds
    CHECK(kernels(1023, "sm_90a") == 4);
    CHECK(kernels(128256, "gfx942") == 4);
    CHECK(kernels((1 << 20) - 2, "sm_90a") == 4);
    CHECK(kernels(2046, "x86-64-v3") == 1);
    CHECK(kernels(2047, "x86-64-v3") == 2);
    CHECK(kernels(-1, "sm_90a", i32) == 8);
}

TEST_CASE("a launch does without the passes of an order that it has too few rows for") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value table = g.input("table", f32, {g.rows("vocabulary"), 3});
    g.output("y", embedding(table, g.input("ids", i64, {tokens})));
    const Program program = compile(*gradient(g, {"table"}).data(), find_target("sm_90a"));
    CHECK(launched(program, 0) == 5);  // two of the lowest digit, what is searched for the offsets, they, and the sum
    CHECK(launched(program, 1022) == 5);
    CHECK(launched(program, 1023) == 7);
    CHECK(launched(program, (1 << 20) - 2) == 7);
    CHECK(launched(program, (1 << 20) - 1) == 9);
    // Who gives where the order lies gets it there.
    CHECK(launched(compile(*order_graph(i64).data(), find_target("sm_90a")), 0) == 4);
    // What begins while the kernel before it ends has one before it in every launch.
    bool begun = false;
    for (const Step& step : program.steps) {
        CHECK((begun || !step.kernel.neighbours.waits));
        begun = begun || !step.needed;
    }
}

TEST_CASE("the passes of an order have their counts in one place, and no two an order") {
    const Program program = compile(*order_graph(i64).data(), find_target("sm_90a"));
    std::ptrdiff_t own = 0;
    for (const ProgramTensor& tensor : program.tensors) own += tensor.dtype == i32 && tensor.over < 0 ? 1 : 0;
    CHECK(own == 1);
    CHECK(std::ranges::none_of(program.tensors,
                               [](const ProgramTensor& tensor) { return tensor.dtype == i64 && tensor.over >= 0; }));
}

TEST_CASE("the order that a backward finds is that which a caller gives, bit for bit") {
    for (const std::int64_t rows : {1, 40, 1023, 3000}) {
        for (const std::int64_t count : {0, 1, 129, 5000}) {
            Graph g;
            const Value table = g.input("table", f32, {g.rows("rows"), 3});
            g.output("y", embedding(table, g.input("ids", i64, {g.rows("tokens")})));
            const Graph finding = gradient(g, {"table"});
            Bindings bindings =
                random_inputs(*finding.data(), {{"tokens", count}, {"rows", rows}}, {.seed = 4, .out_of_range = true});
            const auto gradient_of = [&](const Graph& graph) {
                return run(engine().device(), engine().compile(graph), *graph.data(), bindings).at("d_table").values;
            };
            const std::vector<double> found = gradient_of(finding);
            std::vector<std::int64_t> ids;
            for (const double id : bindings.tensors.at("ids").values) ids.push_back(static_cast<std::int64_t>(id));
            const RowOrder given = row_order(ids, rows);
            bindings.tensors.erase("ids");
            bindings.tensors["ids_order"] = {i64, {count}, {given.order.begin(), given.order.end()}};
            bindings.tensors["ids_offsets"] = {i64, {rows + 1}, {given.offsets.begin(), given.offsets.end()}};
            CHECK_MESSAGE(gradient_of(gradient(g, {"table"}, {.sorted = {"ids"}})) == found,
                          fmt::format("{} ids of {} rows", count, rows));
        }
    }
}

TEST_CASE("an order has a text form") {
    const std::string text =
        "rows tokens\n"
        "rows vocabulary\n"
        "rows places = tokens + 0\n"
        "input ids: i32[tokens]\n"
        "input place: i64[tokens, 4]\n"
        "first = order(ids, places, vocabulary)\n"
        "output first\n"
        "output y = order(index(place, tokens, 1), places, vocabulary)\n";
    const Graph graph = Graph::parse(text);
    CHECK(Graph::parse(graph.print()).print() == graph.print());
    CHECK(graph.print().find("first = order(ids, places, vocabulary)") != std::string::npos);
}

TEST_CASE("orders that do not fit are refused") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis rows = g.rows("rows");
    const Axis places = g.rows("places", tokens, 0);
    const Value ids = g.input("ids", i64, {tokens});
    CHECK_THROWS_AS(order(g.input("x", f32, {tokens}), places, rows), Error);
    CHECK_THROWS_AS(order(g.input("pairs", i64, {tokens, 2}), places, rows), Error);
    CHECK_THROWS_AS(order(ids, rows, rows), Error);
    CHECK_THROWS_AS(order(ids, g.rows("ends", tokens, 1), rows), Error);
    CHECK_THROWS_AS(order(ids, places, g.columns(4)), Error);
    CHECK_NOTHROW(order(ids, tokens, rows));
}
