// What emitted kernels have to compute to the last bit: formats of eight bits, words of two lanes, random numbers.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/philox.h"
#include "dsl/interpret.h"
#include "runtime/verify.h"
#include "tests/simt/cases.h"
#include "tests/simt/simt_device.h"

using namespace rowjit;

namespace {

// Every exponent of f32, around each format's smallest numbers, its ties and its greatest.
Tensor numbers_around_eight_bits(std::int64_t rows, std::int64_t columns) {
    std::mt19937 random(5);
    Tensor x{f32, {rows, columns}, {}};
    const double infinity = std::numeric_limits<double>::infinity();
    x.values = {infinity,  -infinity, std::nan(""), 0,         -0.0,  448,   464,
                464.00003, -480,      57344,        61439.996, 61440, 127.9, -129};
    while (std::ssize(x.values) < rows * columns) {
        const double step = std::ldexp(1.0, static_cast<int>(random() % 40) - 20);
        const double near = (static_cast<int>(random() % 65) - 32) * 0.25;
        x.values.push_back(static_cast<float>(step * (near + (random() % 3 - 1.0) * 0x1p-20)));
    }
    return x;
}

// Launches the graph under every legal schedule, and visits what came of each.
void each_schedule(const Graph& g, std::string_view target_name, const Bindings& bindings,
                   const std::function<void(const Tensors&)>& visit) {
    const Target target = simt::target(target_name);
    std::vector<Case> cases;
    add_cases("graph", g, target, &cases);
    std::vector<Program> programs;
    for (Case& one : cases) programs.push_back(std::move(one.program));
    const Device device = simt::device(target);
    for (const Executable& executable : simt::build(std::move(programs), target, device))
        visit(run(device, executable, *g.data(), bindings));
}

// Everything that two lanes share words for, from and to lanes.
Graph pairs_of_lanes(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis n = g.columns(columns);
    const Value x = g.input("x", dtype, {tokens, n});
    const Value y = g.input("y", dtype, {tokens, n});
    const Value product = x * y;
    const Value column = g.iota(n);
    g.output("sum", x + y);
    g.output("difference", x - y);
    g.output("product", product);
    g.output("negated", -product);
    g.output("magnitude", abs(x - y));
    g.output("least", minimum(x, y));
    g.output("greatest", maximum(x, y));
    g.output("of_row", product * g.input("of_row_in", dtype, {tokens}) + g.scalar("scale", dtype, 1.5));
    g.output("halved", 0.5 * x);
    const auto half = columns / 2;
    g.output("first_half", select(column < half, product, x));
    g.output("every_second", select(floor_div(column, 2) * 2 == column, product, x));
    g.output("by_value", select(x < y, x + y, y));
    g.output("masked", select(g.input("mask", boolean, {tokens, n}), product, y));
    g.output("widened", cast(product, f32) * 2.0);
    g.output("rounded", cast(cast(x, f32) * 0.7, dtype) * y);
    return g;
}

// Two of every 16 bits are a number: of all magnitudes, infinities and NaN.
Tensor numbers_of_bits(std::int64_t rows, std::int64_t columns, Dtype dtype, unsigned seed) {
    std::mt19937 random(seed);
    Tensor numbers{dtype, {rows, columns}, {}};
    for (std::int64_t i = 0; i < rows * columns; ++i) {
        auto bits = static_cast<std::uint16_t>(random());
        // Every fourth near 1, so that sums round.
        if (i % 4 == 0) bits = static_cast<std::uint16_t>((dtype == bf16 ? 0x3f00 : 0x3a00) + (bits & 0x81ffU));
        numbers.values.push_back(load_element(dtype, &bits));
    }
    return numbers;
}

bool is_same_number(double a, double b) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && (a == 0 || std::signbit(a) == std::signbit(b)));
}

// As if two lanes could not share a word.
Program unpacked(Program program) {
    for (Step& step : program.steps) {
        for (Block* block : {&step.kernel.before, &step.kernel.body, &step.kernel.after}) {
            for (Stmt& stmt : *block) {
                auto* loop = std::get_if<ColumnLoop>(&stmt.node);
                if (loop == nullptr) continue;
                for (Inst& inst : loop->body) inst.packing = Packing::kNone, inst.alike = false;
            }
        }
    }
    return program;
}

}  // namespace

TEST_CASE("formats of eight bits are packed and read as base/dtype.h does") {
    constexpr std::int64_t kRows = 40;
    for (const std::int64_t columns : {7, 96}) {
        Graph g;
        const Value x = g.input("x", f32, {g.rows("tokens"), columns});
        for (const Dtype dtype : {i8, e4m3, e5m2}) {
            g.output(fmt::format("{}_codes", name(dtype)), cast(x, dtype));
            g.output(fmt::format("{}_values", name(dtype)), cast(cast(x, dtype), f32));
        }
        g.output("nearest", cast(minimum(maximum(round(x), -127.0), 127.0), i8));
        g.output("bounded", cast(maximum(minimum(round(x), 100.0), -3.0), i8));
        g.output("above", cast(maximum(round(x), 2.0), i8));  // a NaN's bound is not its conversion's
        const Bindings bindings = {{{"x", numbers_around_eight_bits(kRows, columns)}}, {}, {{"tokens", kRows}}};
        const Tensors expected = interpret(*g.data(), bindings, Rounding::kEager);
        for (const std::string_view target_name : {"sm_90a", "gfx942"}) {
            each_schedule(g, target_name, bindings, [&](const Tensors& outputs) {
                for (const auto& [output, got] : outputs) {
                    const Tensor& wanted = expected.at(output);
                    for (std::size_t i = 0; i < got.values.size(); ++i) {
                        const bool none = std::isnan(got.values[i]) && std::isnan(wanted.values[i]);
                        REQUIRE_MESSAGE((none || got.values[i] == wanted.values[i]), output, " of ",
                                        bindings.tensors.at("x").values[i], ": ", got.values[i]);
                    }
                }
            });
        }
    }
}

TEST_CASE("what is computed on words of two lanes is the oracle's bits, whatever the bits of its operands") {
    constexpr std::int64_t kRows = 60;
    const std::pair<std::string_view, Dtype> packing[] = {{"sm_90a", bf16}, {"sm_90a", f16}, {"gfx942", f16}};
    for (const auto& [target_name, dtype] : packing) {
        for (const std::int64_t columns : {7, 36, 192}) {
            const Graph g = pairs_of_lanes(columns, dtype);
            Bindings bindings = {{{"x", numbers_of_bits(kRows, columns, dtype, 1)},
                                  {"y", numbers_of_bits(kRows, columns, dtype, 2)},
                                  {"of_row_in", numbers_of_bits(kRows, 1, dtype, 3)},
                                  {"mask", numbers_of_bits(kRows, columns, dtype, 4)}},
                                 {},
                                 {{"tokens", kRows}}};
            bindings.tensors["of_row_in"].extents = {kRows};
            Tensor& mask = bindings.tensors["mask"];
            mask.dtype = boolean;
            for (double& value : mask.values) value = value > 0.5 ? 1 : 0;
            const Tensors expected = interpret(*g.data(), bindings, Rounding::kEager);
            each_schedule(g, target_name, bindings,
                          [&, dtype = dtype, target_name = target_name](const Tensors& outputs) {
                              for (const auto& [output, got] : outputs) {
                                  const Tensor& wanted = expected.at(output);
                                  for (std::size_t i = 0; i < got.values.size(); ++i) {
                                      REQUIRE_MESSAGE(is_same_number(got.values[i], wanted.values[i]), target_name, " ",
                                                      name(dtype), " ", columns, ": ", output, " ", i, ": ",
                                                      got.values[i], " for ", wanted.values[i]);
                                  }
                              }
                          });
        }
    }
}

TEST_CASE("packed lanes change no bit of what operations give") {
    const Target target = simt::target("sm_90a");
    const Device device = simt::device(target);
    std::mt19937 random(7);
    struct Packed {
        const char* op;
        std::int64_t columns = 96;
    };
    // Of eight columns a rotary embedding's halves are every second run of four elements.
    for (const auto& [op, columns] : std::vector<Packed>{{"rope"},
                                                         {"mrope"},
                                                         {"rope_positions"},
                                                         {"rope_positions", 8},
                                                         {"qk_norm_rope"},
                                                         {"rms_norm"},
                                                         {"add_rms_norm"},
                                                         {"layer_norm"},
                                                         {"modulated_rms_norm"},
                                                         {"swiglu"},
                                                         {"geglu"},
                                                         {"scale_add"},
                                                         {"dropout_add"},
                                                         {"relu2"}}) {
        for (const bool backward : {false, true}) {
            std::vector<Case> cases;
            for (const Dtype dtype : {bf16, f16}) add_request({op, {columns, dtype, {}}, backward}, target, &cases);
            std::shuffle(cases.begin(), cases.end(), random);
            cases.resize(std::min<std::size_t>(cases.size(), 6));
            std::vector<Program> programs;
            for (const Case& one : cases) {
                programs.push_back(one.program);
                programs.push_back(unpacked(one.program));
            }
            const std::vector<Executable> executables = simt::build(std::move(programs), target, device);
            for (std::size_t i = 0; i < cases.size(); ++i) {
                const GraphData& graph = *cases[i].graph.data();
                RowExtents extents = all_rows(graph, 5);
                if (cases[i].differentiated) extents.merge(all_rows(*cases[i].differentiated->forward.data(), 5));
                const Bindings bindings = inputs_of(cases[i], extents, {.seed = i});
                const Tensors packed = run(device, executables[2 * i], graph, bindings);
                for (const auto& [output, alone] : run(device, executables[2 * i + 1], graph, bindings)) {
                    const Tensor& got = packed.at(output);
                    for (std::size_t at = 0; at < got.values.size(); ++at) {
                        REQUIRE_MESSAGE(is_same_number(got.values[at], alone.values[at]), cases[i].name, ": ", output,
                                        " ", at, ": ", got.values[at], " for ", alone.values[at]);
                    }
                }
            }
        }
    }
}

TEST_CASE("random numbers are the reference's bits under every schedule, wherever rows begin") {
    for (const std::int64_t columns : {1, 7, 64, 130}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Axis n = g.columns(columns);
        const Value position = g.iota(tokens, i64) * static_cast<double>(columns) + g.iota(n, i64) + 8589934590.0;
        g.output("u", uniform(g.scalar("seed", i64, -5e15), g.scalar("offset", i64, 4294967299.0), position));
        for (const std::string_view name : {"sm_90a", "gfx942"}) {
            each_schedule(g, name, {{}, {}, {{"tokens", 5}}}, [](const Tensors& outputs) {
                const std::vector<double>& u = outputs.at("u").values;
                for (std::size_t i = 0; i < u.size(); ++i) {
                    REQUIRE(u[i] ==
                            philox_uniform(-5000000000000000, 4294967299, 8589934590 + static_cast<std::int64_t>(i)));
                }
            });
        }
    }
}

TEST_CASE("random numbers that stay words are what they would be as fractions, whatever they are compared with") {
    constexpr std::int64_t kColumns = 64;
    for (const double limit : {-1.0, 0.0, 0.1, 0.25, 0x1p-24, 0x1.8p-24, 1 - 0x1p-24, 1.0, 1e30,
                               std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Axis n = g.columns(kColumns);
        const Value position = g.iota(tokens, i64) * static_cast<double>(kColumns) + g.iota(n, i64);
        const Value u = uniform(g.scalar("seed", i64, 7), g.scalar("offset", i64, 0), position);
        const Value p = g.scalar("p", f32, limit);
        g.output("ge", cast(u >= p, i32));
        g.output("gt", cast(u > p, i32));
        g.output("le", cast(u <= p, i32));
        g.output("lt", cast(u < p, i32));
        g.output("turned", cast(p >= u, i32));
        each_schedule(g, "sm_90a", {{}, {}, {{"tokens", 5}}}, [&](const Tensors& outputs) {
            const auto bound = static_cast<float>(limit);
            for (std::size_t i = 0; i < outputs.at("ge").values.size(); ++i) {
                const float number = philox_uniform(7, 0, static_cast<std::int64_t>(i));
                REQUIRE(outputs.at("ge").values[i] == (number >= bound ? 1 : 0));
                REQUIRE(outputs.at("gt").values[i] == (number > bound ? 1 : 0));
                REQUIRE(outputs.at("le").values[i] == (number <= bound ? 1 : 0));
                REQUIRE(outputs.at("lt").values[i] == (number < bound ? 1 : 0));
                REQUIRE(outputs.at("turned").values[i] == (bound >= number ? 1 : 0));
            }
        });
    }
}
