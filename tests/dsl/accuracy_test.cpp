#include "dsl/accuracy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "dsl/random_inputs.h"
#include "rowjit/coord.h"
#include "rowjit/gradient.h"
#include "rowjit/graph.h"

using namespace rowjit;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor row(std::vector<double> values) { return {bf16, {std::ssize(values)}, std::move(values)}; }

bool within(const std::vector<double>& got, const std::vector<double>& exact, const std::vector<double>& eager) {
    return compare(row(got), row(exact), row(eager), bf16).within_bar;
}

}  // namespace

TEST_CASE("a result one ulp worse than eager passes and two ulps worse does not") {
    const double ulp_at_one = ulp(bf16, 1.0);
    CHECK(within({1 + ulp_at_one}, {1}, {1}));
    CHECK_FALSE(within({1 + 2 * ulp_at_one}, {1}, {1}));
}

TEST_CASE("what is NaN or infinite where the oracle is passes, and counts as not compared") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const Tensor none = row({nan, kInfinity, nan});
    const ErrorReport nothing = compare(none, none, none, bf16);
    CHECK(nothing.within_bar);
    CHECK(nothing.elements == 3);
    CHECK(nothing.compared == 0);
    const Tensor some = row({nan, 1, -kInfinity, 2});
    CHECK(compare(some, some, some, bf16).compared == 2);
    const Tensor indices{i32, {2}, {4, 5}};
    CHECK(compare(indices, indices, indices, i32).compared == 2);
    const Tensor empty = row({});
    CHECK(compare(empty, empty, empty, bf16).elements == 0);
}

TEST_CASE("small elements are held to their own ulp, not to that of large ones") {
    CHECK(within({1000, 1e-3}, {1000, 1e-3}, {1000, 1e-3}));
    CHECK_FALSE(within({1000, 1.1e-3}, {1000, 1e-3}, {1000, 1e-3}));
}

TEST_CASE("a bias that stays below the worst element's error fails by the mean") {
    const double bias = ulp(bf16, 1.0);
    std::vector<double> exact(1024, 1.0);
    std::vector<double> eager = exact;
    eager[0] += bias;
    std::vector<double> biased(1024, 1.0 + bias);
    const ErrorReport report = compare(row(biased), row(exact), row(eager), bf16);
    CHECK(report.max_error == report.eager_max_error);
    CHECK_FALSE(report.within_bar);
}

TEST_CASE("where eager loses an element to cancellation, as much may be lost and no more") {
    const std::vector<double> exact = {1, 1e-6};
    const std::vector<double> eager = {1, 1e-3};  // 1e-3 of noise
    CHECK(within({1, -1e-3}, exact, eager));
    CHECK_FALSE(within({1, 1e-2}, exact, eager));
}

TEST_CASE("what cancels is lost where eager's f32 loses it, though its rounding hides that") {
    const std::vector<double> exact = {1, 1e-6, 1e-5};
    Tensor eager = row({1, 1e-6, 1e-5});
    const Tensor got = row({1, 1.03e-6, 1e-5});
    CHECK_FALSE(compare(got, row(exact), eager, bf16).within_bar);
    eager.unrounded = {1, 1e-6, 1e-5 + 4e-8};  // half a unit of bf16 there, 4e4 of f32
    CHECK(compare(got, row(exact), eager, bf16).within_bar);
    CHECK_FALSE(compare(row({1, 1.06e-6, 1e-5}), row(exact), eager, bf16).within_bar);
    eager.unrounded = {1 + 4e-6, 1e-6, 1e-5};  // 34 units of f32, as a function of a large argument loses them
    CHECK_FALSE(compare(got, row(exact), eager, bf16).within_bar);
}

TEST_CASE("NaN and infinities must be where eager has them") {
    const double nan = std::nan("");
    CHECK(within({nan, kInfinity, -kInfinity}, {nan, 1e39, -kInfinity}, {nan, kInfinity, -kInfinity}));
    CHECK_FALSE(within({0}, {nan}, {nan}));
    CHECK_FALSE(within({nan}, {1}, {1}));
    CHECK_FALSE(within({kInfinity}, {-kInfinity}, {-kInfinity}));
    CHECK_FALSE(within({3e38}, {1e39}, {kInfinity}));
}

TEST_CASE("where eager overflowed on its way to a number, the number will do") {
    const double nan = std::nan("");
    CHECK(within({3e38, 1}, {3e38, 1}, {kInfinity, nan}));
    CHECK_FALSE(within({2}, {1}, {nan}));
}

TEST_CASE("integers equal eager's or the exact value") {
    const Tensor exact{i32, {2}, {3, 4}};
    const Tensor eager{i32, {2}, {3, 5}};
    CHECK(compare({i32, {2}, {3, 5}}, exact, eager, i32).within_bar);
    CHECK(compare({i32, {2}, {3, 4}}, exact, eager, i32).within_bar);
    CHECK_FALSE(compare({i32, {2}, {4, 4}}, exact, eager, i32).within_bar);
}

TEST_CASE("the report names the worst element") {
    const ErrorReport report = compare(row({1, 3, 2}), row({1, 2, 2}), row({1, 2, 2}), bf16);
    CHECK(report.worst_index == 1);
    CHECK(describe(report).find("worst at [1]: got 3, exact 2, eager 2") != std::string::npos);
}

TEST_CASE("no elements are within the bar") { CHECK(compare(row({}), row({}), row({}), bf16).within_bar); }

TEST_CASE("random floats have the deviation asked for, depend on the seed and are the same everywhere") {
    Graph g;
    g.input("x", f32, {10000});
    const auto values = [&](std::uint64_t seed) {
        return random_inputs(*g.data(), {}, {.seed = seed, .scale = 2}).tensors.at("x").values;
    };
    const std::vector<double> x = values(7);
    double sum = 0;
    double squares = 0;
    for (const double value : x) {
        sum += value;
        squares += value * value;
    }
    CHECK(std::abs(sum / 10000) < 0.1);
    CHECK(std::sqrt(squares / 10000) == doctest::Approx(2).epsilon(0.05));
    CHECK(values(7) == x);
    CHECK(values(8) != x);
}

TEST_CASE("random data coordinates stay inside what they index unless asked otherwise") {
    Graph g;
    const Axis n = g.rows("n");
    const Axis d = g.columns("d", 6);
    const Value x = g.input("x", f32, {n, d});
    const Value pair = g.input("pair", i32, {n});
    const Value target = g.input("target", i64, {n});
    const Value row = g.input("row", i64, {n});
    g.output("a", index(x, d, Coord(pair) * 2 + 1));
    g.output("b", sum(select(target == cast(g.iota(d), i64), x, x * 0)));
    g.output("c", index(x, {Coord(row), Coord(d)}));
    const auto extremes = [&](const char* name, bool out_of_range) {
        const Bindings bindings = random_inputs(*g.data(), {{"n", 1000}}, {.out_of_range = out_of_range});
        const std::vector<double>& values = bindings.tensors.at(name).values;
        const auto [low, high] = std::minmax_element(values.begin(), values.end());
        return std::pair<double, double>(*low, *high);
    };
    CHECK(extremes("pair", false) == std::pair<double, double>(0, 2));
    CHECK(extremes("target", false) == std::pair<double, double>(0, 5));
    CHECK(extremes("row", false).first >= 0);
    CHECK(extremes("row", false).second < 1000);
    CHECK(extremes("row", false).second > 900);
    CHECK(extremes("target", true) == std::pair<double, double>(-100, 8));
}

TEST_CASE("extreme inputs hold every kind of extreme") {
    Graph g;
    g.input("x", f16, {1000});
    const std::vector<double> x = random_inputs(*g.data(), {}, {.extremes = true}).tensors.at("x").values;
    const auto any = [&](auto predicate) { return std::any_of(x.begin(), x.end(), predicate); };
    CHECK(any([](double v) { return std::isnan(v); }));
    CHECK(any([](double v) { return v == kInfinity; }));
    CHECK(any([](double v) { return v == -kInfinity; }));
    CHECK(any([](double v) { return v > 5e4 && v < 7e4; }));
    CHECK(any([](double v) { return v > 0 && v < 1e-7; }));
}

// A token shift sums differences of x over rows where its forward has no sum: of huge x of both signs, that sum is
// finite, infinite or NaN by the order it is taken in, and no answer is right.
TEST_CASE(
    "huge inputs of a backward that sums over rows are of one sign, the forward's too, and no answer to them is "
    "spared") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis d = g.columns("d", 640);
    const Value x = g.input("x", bf16, {tokens, d});
    const Value before = index(x, {Coord(g.iota(tokens, i64) - 1.0), Coord(d)});
    g.output("y", x + (before - x) * g.input("mu", bf16, {d}));
    const Bindings inputs = random_inputs(differentiate(g, {"x", "mu"}), {{"tokens", 20}}, {.extremes = true});
    for (const auto& [name, tensor] : inputs.tensors) {
        CAPTURE(name);
        const auto any = [&](auto is) { return std::any_of(tensor.values.begin(), tensor.values.end(), is); };
        CHECK(any([](double v) { return v == -kInfinity; }));
        CHECK(any([](double v) { return std::isfinite(v) && v > 1e34; }));
        CHECK(!any([](double v) { return std::isfinite(v) && std::abs(v) > 1e36; }));
        CHECK(!any([](double v) { return std::isfinite(v) && v < -1e34; }));
    }
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    CHECK(within({-kInfinity}, {-kInfinity}, {-kInfinity}));
    CHECK(!within({kNan}, {-kInfinity}, {-kInfinity}));
    CHECK(!within({kInfinity}, {-kInfinity}, {-kInfinity}));
    CHECK(!within({3e38}, {-kInfinity}, {-kInfinity}));
}

TEST_CASE("of f64 a kernel may differ from the oracle by what the order of a sum makes, and by no more") {
    const auto within = [](double error) {
        const Tensor exact{f64, {2}, {1000.0, 0.25}};
        const Tensor got{f64, {2}, {1000.0, 0.25 + error}};
        return compare(got, exact, exact, f64).within_bar;
    };
    CHECK(within(1e-12));
    CHECK(!within(1e-9));
}

TEST_CASE("one result is as exact as another that is out of the bar where it is half a unit further at most") {
    const auto of = [](double units) {
        const Tensor exact{f32, {2}, {1.0, 2.0}};
        const Tensor got{f32, {2}, {1.0 + units * 0x1p-23, 2.0}};
        return compare(got, exact, exact, f32);
    };
    REQUIRE(!of(2.0).within_bar);
    CHECK(is_as_exact(of(2.0), of(2.0)));
    CHECK(is_as_exact(of(2.5), of(2.0)));
    CHECK(is_as_exact(of(0.0), of(2.0)));
    CHECK(!is_as_exact(of(2.75), of(2.0)));
    const ErrorReport nan = of(std::numeric_limits<double>::quiet_NaN());
    CHECK(!is_as_exact(nan, nan));
}
