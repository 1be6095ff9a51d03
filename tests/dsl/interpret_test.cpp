#include "dsl/interpret.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/dtype.h"
#include "rowjit/coord.h"
#include "rowjit/gradient.h"
#include "rowjit/graph.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

Tensor tensor(Dtype dtype, std::vector<std::int64_t> extents, std::vector<double> values) {
    return {dtype, std::move(extents), std::move(values)};
}

// The one output "y" of a graph.
std::vector<double> run(const Graph& g, const Bindings& bindings, Rounding rounding = Rounding::kEager) {
    return interpret(*g.data(), bindings, rounding).at("y").values;
}

std::string refused(const Graph& g, const Bindings& bindings) {
    return refusal(ErrorCode::kInvalidArgument, [&] { interpret(*g.data(), bindings, Rounding::kEager); });
}

// softmax(x) over rows of three, the sum through the pair monoid when `online`.
Graph softmax_graph(bool online) {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("n"), 3});
    const Value greatest = max(x);
    const Value e = exp(x - greatest);
    const NodeId pair = g.data()->add_reduce(Monoid::kMaxSumExp, x.id(), {g.columns(3).id}, 1);
    g.output("y", e / (online ? Value(g.data(), pair) : sum(e)));
    return g;
}

}  // namespace

TEST_CASE("rms norm of a row comes out as computed by hand") {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("n"), 2});
    g.output("y", x * rsqrt(mean(x * x) + 0.5));
    const auto y = run(g, {{{"x", tensor(f32, {2, 2}, {3, 4, 0, 0})}}, {}, {{"n", 2}}}, Rounding::kExact);
    CHECK(y[0] == doctest::Approx(3 / std::sqrt(13.0)));
    CHECK(y[1] == doctest::Approx(4 / std::sqrt(13.0)));
    CHECK(y[2] == 0);
}

TEST_CASE("products are sums of their terms in order, whatever tiles they are taken in") {
    constexpr std::int64_t kRows = 261, kColumns = 67, kTerms = 35;  // beside the tiles' edges
    Graph g;
    const Axis rows = g.rows("rows");
    const Axis columns = g.columns("columns", kColumns);
    const Axis terms = g.columns("terms", kTerms);
    g.output("y", matmul(g.input("a", f32, {rows, terms}), g.input("b", f32, {columns, terms}), {terms}));
    const auto values = [](std::int64_t count, double step) {
        std::vector<double> found;
        for (std::int64_t i = 0; i < count; ++i)
            found.push_back(round_to(f32, std::sin(static_cast<double>(i) * step)));
        return found;
    };
    const std::vector<double> a = values(kRows * kTerms, 0.7);
    const std::vector<double> b = values(kColumns * kTerms, 1.3);
    const Bindings bindings = {
        {{"a", tensor(f32, {kRows, kTerms}, a)}, {"b", tensor(f32, {kColumns, kTerms}, b)}}, {}, {{"rows", kRows}}};
    const std::vector<double> eager = run(g, bindings);
    const std::vector<double> exact = run(g, bindings, Rounding::kExact);
    for (std::size_t i = 0; i < eager.size(); ++i) {
        float narrow = 0;
        double wide = 0;
        for (std::size_t k = 0; k < kTerms; ++k) {
            const double x = a[i / kColumns * kTerms + k];
            const double y = b[i % kColumns * kTerms + k];
            narrow += static_cast<float>(x) * static_cast<float>(y);
            wide += x * y;
        }
        CHECK(eager[i] == narrow);
        CHECK(exact[i] == wide);
    }
}

TEST_CASE("exact mode ignores casts to floats and eager mode rounds at them") {
    Graph g;
    const Value x = g.input("x", f32, {3});
    g.output("y", cast(cast(x, bf16), f32) - x);
    const Bindings bindings{{{"x", tensor(f32, {3}, {1.0 + 0x1p-9, 2, -1.0 - 0x3p-9})}}, {}, {}};
    CHECK(run(g, bindings, Rounding::kExact) == std::vector<double>{0, 0, 0});
    CHECK(run(g, bindings, Rounding::kEager) == std::vector<double>{-0x1p-9, 0, -0x1p-9});
}

TEST_CASE("a cast to an integer truncates in both modes") {
    Graph g;
    g.output("y", cast(g.input("x", f32, {4}), i32));
    const Bindings bindings{{{"x", tensor(f32, {4}, {1.75, -1.75, 3e9, kNan})}}, {}, {}};
    const std::vector<double> expected = {1, -1, 2147483647.0, 0};
    CHECK(run(g, bindings, Rounding::kExact) == expected);
    CHECK(run(g, bindings, Rounding::kEager) == expected);
}

TEST_CASE("a quotient of whole numbers is rounded down, and 0 where the divisor is not positive") {
    Graph g;
    const Value a = g.input("a", i32, {6});
    g.output("y", floor_div(a, 4));
    CHECK(run(g, {{{"a", tensor(i32, {6}, {-8, -5, -1, 0, 3, 7})}}, {}, {}}) ==
          std::vector<double>{-2, -2, -1, 0, 0, 1});
    Graph by;
    const NodeId dividend = by.input("a", i64, {2}).id();
    const NodeId divisor = by.input("b", i64, {2}).id();
    by.output("y", Value(by.data(), by.data()->add_map(Op::kFloorDiv, {dividend, divisor})));
    const Bindings bindings{{{"a", tensor(i64, {2}, {7, 7})}, {"b", tensor(i64, {2}, {0, -2})}}, {}, {}};
    CHECK(run(by, bindings) == std::vector<double>{0, 0});
}

TEST_CASE("a bf16 sum accumulates in f32 and rounds once") {
    Graph g;
    g.output("y", sum(g.input("x", bf16, {300})));
    const Bindings bindings{{{"x", tensor(bf16, {300}, std::vector<double>(300, 1))}}, {}, {}};
    CHECK(run(g, bindings) == std::vector<double>{round_to(bf16, 300)});  // a bf16 accumulator would stop at 256
}

TEST_CASE("an f32 sum of a long row is far closer than adding in order") {
    Graph g;
    g.output("y", sum(g.input("x", f32, {262144})));
    const double tenth = round_to(f32, 0.1);
    const Bindings bindings{{{"x", tensor(f32, {262144}, std::vector<double>(262144, tenth))}}, {}, {}};
    CHECK(std::abs(run(g, bindings)[0] - 262144 * tenth) <= 2 * ulp(f32, 26214.4));
}

TEST_CASE("a constant beside bf16 is held in f32") {
    Graph g;
    g.output("y", g.input("x", bf16, {1}) * 0.1);
    const Bindings bindings{{{"x", tensor(bf16, {1}, {9})}}, {}, {}};
    CHECK(run(g, bindings)[0] == round_to(bf16, 9 * static_cast<double>(0.1F)));
    CHECK(run(g, bindings)[0] != round_to(bf16, 9 * round_to(bf16, 0.1)));
}

TEST_CASE("operands broadcast along the axes that they lack") {
    Graph g;
    const Axis n = g.rows("n");
    const Value x = g.input("x", f32, {n, 3});
    const Value per_row = g.input("r", f32, {n});
    const Value per_column = g.input("w", f32, {3});
    g.output("y", x * per_column + per_row);
    CHECK(run(g, {{{"x", tensor(f32, {2, 3}, {1, 2, 3, 4, 5, 6})},
                   {"r", tensor(f32, {2}, {10, 20})},
                   {"w", tensor(f32, {3}, {1, 0, -1})}},
                  {},
                  {{"n", 2}}}) == std::vector<double>{11, 10, 7, 24, 20, 14});
}

TEST_CASE("a reduction across rows and one over a middle axis fold the right elements") {
    Graph g;
    const Axis n = g.rows("n");
    const Axis a = g.columns("a", 2);
    const Value x = g.input("x", f32, {n, a, 3});
    g.output("y", sum(x, n));
    g.output("z", sum(x, a));
    std::vector<double> values(12);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
    const auto out = interpret(*g.data(), {{{"x", tensor(f32, {2, 2, 3}, values)}}, {}, {{"n", 2}}}, Rounding::kEager);
    CHECK(out.at("y").values == std::vector<double>{6, 8, 10, 12, 14, 16});
    CHECK(out.at("z").values == std::vector<double>{3, 5, 7, 15, 17, 19});
    CHECK(out.at("z").extents == std::vector<std::int64_t>{2, 3});
}

TEST_CASE("max and min give NaN where any element is NaN") {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("n"), 3});
    g.output("y", max(x));
    g.output("z", min(x));
    const auto out =
        interpret(*g.data(), {{{"x", tensor(f32, {2, 3}, {1, kNan, 2, -kInfinity, 5, kInfinity})}}, {}, {{"n", 2}}},
                  Rounding::kEager);
    CHECK(std::isnan(out.at("y").values[0]));
    CHECK(std::isnan(out.at("z").values[0]));
    CHECK(out.at("y").values[1] == kInfinity);
    CHECK(out.at("z").values[1] == -kInfinity);
}

TEST_CASE("softmax gives NaN for a row of minus infinity, plain and through the pair monoid") {
    const Bindings bindings{
        {{"x", tensor(f32, {3, 3}, {-kInfinity, -kInfinity, -kInfinity, 0, -kInfinity, 0, kInfinity, 0, 1})}},
        {},
        {{"n", 3}}};
    for (const bool online : {false, true}) {
        const auto y = run(softmax_graph(online), bindings);
        for (const std::size_t i : {0, 1, 2, 6, 7, 8}) CHECK(std::isnan(y[i]));
        CHECK(y[3] == 0.5);
        CHECK(y[4] == 0);
    }
}

TEST_CASE("the Welford pair is the mean and the sum of squared deviations") {
    Graph g;
    const Value x = g.input("x", f32, {4});
    const auto part = [&](int component) {
        return Value(g.data(), g.data()->add_reduce(Monoid::kWelford, x.id(), {g.columns(4).id}, component));
    };
    g.output("y", part(0));
    g.output("z", part(1));
    const auto out = interpret(*g.data(), {{{"x", tensor(f32, {4}, {1, 2, 3, 6})}}, {}, {}}, Rounding::kEager);
    CHECK(out.at("y").values[0] == 3);
    CHECK(out.at("z").values[0] == 14);
}

TEST_CASE("zero rows give empty outputs, and the identity where rows are reduced") {
    Graph g;
    const Axis n = g.rows("n");
    const Value x = g.input("x", f32, {n, 3});
    g.output("y", sum(x, n));
    g.output("greatest", max(x, n));
    g.output("average", mean(x, n));
    g.output("copy", x * 2);
    const auto out = interpret(*g.data(), {{{"x", tensor(f32, {0, 3}, {})}}, {}, {{"n", 0}}}, Rounding::kEager);
    CHECK(out.at("y").values == std::vector<double>{0, 0, 0});
    CHECK(out.at("greatest").values == std::vector<double>(3, -kInfinity));
    CHECK(std::isnan(out.at("average").values[0]));
    CHECK(out.at("copy").values.empty());
}

TEST_CASE("an affine index rotates a row by half") {
    Graph g;
    const Axis d = g.columns("d", 4);
    const Value x = g.input("x", f32, {g.rows("n"), d});
    g.output("y", index(x, d, (Coord(d) + 2) % 4));
    CHECK(run(g, {{{"x", tensor(f32, {2, 4}, {0, 1, 2, 3, 4, 5, 6, 7})}}, {}, {{"n", 2}}}) ==
          std::vector<double>{2, 3, 0, 1, 6, 7, 4, 5});
}

TEST_CASE("an index by data gathers one column a row, and zero where the column does not exist") {
    Graph g;
    const Axis n = g.rows("n");
    const Value x = g.input("x", f32, {n, 3});
    const Value target = g.input("t", i64, {n});
    g.output("y", index(x, g.columns(3), target));
    CHECK(run(g, {{{"x", tensor(f32, {4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})},
                   {"t", tensor(i64, {4}, {2, -100, 0, 3})}},
                  {},
                  {{"n", 4}}}) == std::vector<double>{3, 0, 7, 0});
}

TEST_CASE("an index by row data reads an embedding table's rows") {
    Graph g;
    const Axis n = g.rows("n");
    const Axis vocabulary = g.rows("vocabulary");
    const Value table = g.input("table", f32, {vocabulary, 2});
    const Value token = g.input("token", i64, {n});
    g.output("y", index(table, {Coord(token), Coord(g.columns(2))}));
    CHECK(run(g, {{{"table", tensor(f32, {3, 2}, {1, 2, 3, 4, 5, 6})}, {"token", tensor(i64, {2}, {2, 1})}},
                  {},
                  {{"n", 2}, {"vocabulary", 3}}}) == std::vector<double>{5, 6, 3, 4});
}

TEST_CASE("an index that swaps two axes transposes") {
    Graph g;
    const Axis a = g.columns("a", 2);
    const Axis b = g.columns("b", 2);
    const Value x = g.input("x", f32, {a, b});
    g.output("y", sum(index(x, {Coord(b), Coord(a)}), a));
    CHECK(run(g, {{{"x", tensor(f32, {2, 2}, {1, 2, 3, 4})}}, {}, {}}) == std::vector<double>{3, 7});
}

TEST_CASE("axes of an index stand as its coordinates have them, offsets where they lead a coordinate of their own") {
    // Pixels by fours side by side, and the other way; flows back with the source's axes in its order.
    const char* const apart =
        "rows n\ncolumns y = 2\ncolumns x = 2\ncolumns k = 8\ncolumns i = 4\ncolumns j = 4\ncolumns c = 2\n"
        "input v: f32[n, i, j, c]\noutput o = index(v, n, y * 2 + k / 4, x * 2 + k / 2 % 2, k % 2)\n";
    const char* const together =
        "rows n\ncolumns y = 4\ncolumns x = 4\ncolumns c = 2\ncolumns i = 2\ncolumns j = 2\ncolumns k = 8\n"
        "input v: f32[n, i, j, k]\noutput o = index(v, n, y / 2, x / 2, y % 2 * 4 + x % 2 * 2 + c)\n";
    std::vector<double> pixels(32);
    std::iota(pixels.begin(), pixels.end(), 0.0);
    const auto moved = [&](const Graph& g, const char* input, const std::vector<double>& values, auto... extents) {
        const Bindings bindings = {{{input, tensor(f32, {1, extents...}, values)}}, {}, {{"n", 1}}};
        return interpret(*g.data(), bindings, Rounding::kEager).begin()->second.values;
    };
    const std::vector<double> by_fours = moved(Graph::parse(apart), "v", pixels, 4, 4, 2);
    CHECK(std::vector<double>(by_fours.begin(), by_fours.begin() + 16) ==
          std::vector<double>{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15});
    CHECK(moved(Graph::parse(together), "v", by_fours, 2, 2, 8) == pixels);
    CHECK(moved(gradient(Graph::parse(apart)), "d_o", by_fours, 2, 2, 8) == pixels);
    CHECK(moved(gradient(Graph::parse(together)), "d_o", pixels, 4, 4, 2) == by_fours);
}

TEST_CASE("iota and extent give coordinates and counts") {
    Graph g;
    const Axis n = g.rows("n");
    const Value row = cast(g.iota(n, i64), f32);
    const Value column = cast(g.iota(g.columns(2)), f32);
    g.output("y", row * 10.0 + column + g.extent_of(n, f32) * 100.0);
    CHECK(run(g, {{}, {}, {{"n", 2}}}) == std::vector<double>{200, 201, 210, 211});
}

TEST_CASE("a scalar takes its default unless it is bound") {
    Graph g;
    g.output("y", g.input("x", f32, {1}) * g.scalar("temperature", f32, 2));
    Bindings bindings{{{"x", tensor(f32, {1}, {3})}}, {}, {}};
    CHECK(run(g, bindings)[0] == 6);
    bindings.scalars["temperature"] = 5;
    CHECK(run(g, bindings)[0] == 15);
}

TEST_CASE("an accumulating output adds to what its buffer held, rounding once") {
    Graph g;
    OutputOptions options;
    options.accumulate = true;
    g.output("y", g.input("x", bf16, {1}) * 1.0, options);
    const Bindings bindings{{{"x", tensor(bf16, {1}, {1})}, {"y", tensor(bf16, {1}, {256})}}, {}, {}};
    CHECK(run(g, bindings, Rounding::kEager)[0] == 256);
    CHECK(run(g, bindings, Rounding::kExact)[0] == 257);
}

TEST_CASE("an accumulating output that aliases an input adds to that input") {
    Graph g;
    OutputOptions options;
    options.accumulate = true;
    options.alias = "gradient";
    g.input("gradient", f32, {2});
    g.output("y", g.input("x", f32, {2}), options);
    CHECK(run(g, {{{"x", tensor(f32, {2}, {1, 2})}, {"gradient", tensor(f32, {2}, {10, 20})}}, {}, {}}) ==
          std::vector<double>{11, 22});
}

TEST_CASE("a missing or misshapen binding is refused by name") {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("tokens"), 2});
    OutputOptions options;
    options.accumulate = true;
    g.output("y", x * 2, options);
    const Tensor good = tensor(f32, {1, 2}, {1, 2});
    CHECK(mentions(refused(g, {{}, {}, {{"tokens", 1}}}), "input 'x' is not bound"));
    CHECK(mentions(refused(g, {{{"x", good}}, {}, {}}), "row axis 'tokens' has no extent"));
    CHECK(mentions(refused(g, {{{"x", good}}, {}, {{"tokens", -1}}}), "negative"));
    CHECK(mentions(refused(g, {{{"x", good}}, {}, {{"tokens", 2}}}), "input 'x': the tensor bound is [1, 2]"));
    CHECK(mentions(refused(g, {{{"x", tensor(f32, {1, 2}, {1})}}, {}, {{"tokens", 1}}}), "1 values"));
    CHECK(mentions(refused(g, {{{"x", tensor(bf16, {1, 2}, {1, 2})}}, {}, {{"tokens", 1}}}), "is bf16"));
    CHECK(mentions(refused(g, {{{"x", good}}, {}, {{"tokens", 1}}}), "accumulating output 'y'"));
}

TEST_CASE("a fixpoint repeats its step for each row until the row stands still, is NaN, or has had its steps") {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("n"), 2});
    // Halved while the row's least element is smaller; the logarithm makes NaN of what starts below zero.
    const auto step = [&](const Value& state) { return maximum(state * 0.5, min(x)) + (log(state) - log(state)); };
    g.output("y", fixpoint(max(x), step, 4));
    const Bindings bindings = {{{"x", tensor(f32, {4, 2}, {8, 3, 1, 1, 32, 1, -1, -2})}}, {}, {{"n", 4}}};
    const std::vector<double> y = run(g, bindings);
    CHECK(y[0] == 3);
    CHECK(y[1] == 1);
    CHECK(y[2] == 2);  // after four steps
    CHECK(std::isnan(y[3]));
}

TEST_CASE("eager keeps the f32 of an output that is rounded once, and not of one that is rounded on its way too") {
    Graph g;
    const Value x = g.input("x", bf16, {4});
    const Value third = cast(x, f32) * (1.0F / 3);
    g.output("once", cast(third, bf16));
    g.output("twice", cast(cast(cast(third, bf16), f32) + 1, bf16));
    g.output("narrow", x * x);
    g.output("wide", third);
    const Bindings bindings = {{{"x", tensor(bf16, {4}, {1, 2, 3, 4})}}, {}, {}};
    const Tensors eager = interpret(*g.data(), bindings, Rounding::kEager);
    CHECK(eager.at("once").unrounded == eager.at("wide").values);
    CHECK(eager.at("once").values != eager.at("wide").values);
    for (const char* output : {"twice", "narrow", "wide"}) CHECK(eager.at(output).unrounded.empty());
    CHECK(interpret(*g.data(), bindings, Rounding::kExact).at("once").unrounded.empty());
}
