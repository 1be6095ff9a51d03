// Divisions and products in GPU text: which are exact, which lose nothing that shows, and which are none at all.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "compiler/compile.h"
#include "compiler/emit/gpu.h"
#include "rowjit/library.h"
#include "tests/compiler/gpu_kernel.h"

using namespace rowjit;

TEST_CASE("a division by a value of the row is prepared once before the loop") {
    const auto wide = [](Graph& g, std::int64_t columns) {
        g.output("y", softmax(g.input("x", f32, {g.rows("tokens"), columns})));
    };
    const std::string body = body_of(wide, 1024);
    CHECK(contains(body, "const rj_divisor row_sum_divisor = rj_divisor_of(row_sum);"));
    CHECK(contains(body, ", row_sum_divisor);"));
}

TEST_CASE("a product added to itself is one of its number doubled, also of one that a condition spreads") {
    Graph g;
    const Axis rows = g.rows("rows");
    const Axis columns = g.columns("columns", 1024);
    const Value x = g.input("x", f32, {rows, columns});
    const Value number = select(g.iota(columns, i64) >= 0, g.input("a", f32, {rows}), g.constant(f32, 0.0));
    g.output("y", number * x + number * x);
    const Target target = find_target("sm_90a");
    const std::string body = emit_gpu_body(compile(*g.data(), target).steps[0].kernel, target);
    CHECK(contains(body, " = a_value + a_value;"));
}

TEST_CASE("what several of a row's numbers are divided by is prepared once, but where a row is in registers") {
    const auto body = [](bool holds_row) {
        Graph g;
        const Axis rows = g.rows("rows");
        const Axis columns = g.columns("columns", 1024);
        const Value a = g.input("a", f32, {rows});
        const Value b = g.input("b", f32, {rows});
        g.output("p", a / (a + b));
        g.output("q", b / (a + b));
        const Value x = g.input("x", f32, {rows, columns});
        if (holds_row) g.output("y", x * (a / (a + b) * rsqrt(mean(x * x, columns))));
        const Target target = find_target("sm_90a");
        return emit_gpu_body(compile(*g.data(), target).steps[0].kernel, target);
    };
    CHECK(count(body(false), "rj_divisor_of(") == 1);
    CHECK(count(body(false), "_divisor);") == 2);
    CHECK(!contains(body(true), "rj_divisor_of("));
    CHECK(contains(body(true), "rj_rsqrt("));
}

TEST_CASE("a narrow quotient by a sum of weights, of which one is 1, is a product with its reciprocal") {
    const auto scaled = [](bool weights) {
        return [=](Graph& g, std::int64_t columns) {
            const Value x = cast(g.input("x", bf16, {g.rows("tokens"), columns}), f32);
            const Value e = exp(x - max(x));
            g.output("y", cast(x / sum(weights ? e : e * 0.5), bf16));
        };
    };
    const std::string body = body_of(scaled(true), 1024);
    CHECK(count(body, "rj_div(1.0f, ") == 1);
    CHECK(!contains(body, "rj_divisor"));
    // Another sum may have no reciprocal.
    CHECK(contains(body_of(scaled(false), 1024), "rj_div_narrow("));
}

TEST_CASE("a quotient need not be exact where a rounding or the sum of a row loses its error") {
    const auto scaled = [](Dtype dtype) {
        return [=](Graph& g, std::int64_t columns) {
            const Value x = g.input("x", dtype, {g.rows("tokens"), columns});
            g.output("y", cast(cast(x, f32) / max(cast(abs(x), f32)), dtype));
        };
    };
    CHECK(contains(body_of(scaled(bf16), 1024), "rj_div_narrow("));
    const auto wide = scaled(f32);
    CHECK(!contains(body_of(wide, 1024), "rj_div_narrow("));
    // The sum hides an error of its terms; the difference would not.
    const auto difference = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
        const Value quotient = x / g.input("u", f32, {tokens});
        g.output("y", cast(quotient - sum(quotient), bf16));
    };
    CHECK(!contains(body_of(difference, 1024), "rj_div_narrow("));
}

TEST_CASE("a product is not rounded before it is added, where what becomes of it is rounded or summed") {
    const std::string norm = body_of(build_rms_norm, 1024);
    CHECK(contains(norm, ".add_products("));
    const auto affine = [](Dtype dtype) {
        return [dtype](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = cast(g.input("x", dtype, {tokens, columns}), f32);
            g.output("y", cast(x * g.input("scale", f32, {tokens}) + g.input("shift", f32, {tokens}), dtype));
        };
    };
    CHECK(contains(body_of(affine(bf16), 1024), "rj_fma("));
    CHECK(!contains(body_of(affine(f32), 1024), "rj_fma("));
}

TEST_CASE(
    "of two products of what is in memory none is added unrounded, which overflowing alone or cancelling would show") {
    const auto mixed = [](bool scaled) {
        return [scaled](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const auto row = [&](const char* name) { return cast(g.input(name, bf16, {tokens, columns}), f32); };
            const Value a = row("a");
            const Value b = row("b");
            const Value first = (scaled ? tanh(a) : a) * g.input("cos", f32, {tokens});
            g.output("y", cast(first + -b * g.input("sin", f32, {tokens}) + a * b, bf16));
        };
    };
    CHECK(!contains(body_of(mixed(false), 1024), "rj_fma("));
    CHECK(contains(body_of(mixed(true), 1024), "rj_fma("));
    // A row whose weight is all one column's: the two products are equal, and eager's difference zero.
    const auto of_row = [](bool bounded) {
        return [bounded](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const auto row = [&](const char* name) { return cast(g.input(name, bf16, {tokens, columns}), f32); };
            const auto number = [&](const char* name) { return g.input(name, f32, {tokens}); };
            const Value total = number("total");
            const Value weights = number("weights");
            const Value scale = total / weights;
            const Value difference = row("a") - row("b");
            const Value shift = -(total * number("saved")) / weights;
            g.output("y", cast((bounded ? tanh(difference) : difference) * scale + shift, bf16));
        };
    };
    CHECK(!contains(body_of(of_row(false), 1024), "rj_fma("));
    CHECK(contains(body_of(of_row(true), 1024), "rj_fma("));
}

TEST_CASE(
    "a product is rounded before what the row's weights make of its factor is taken away, which may be all of it") {
    const auto centred = [](bool of_others) {
        return [of_others](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
            const Value y = cast(g.input("y", bf16, {tokens, columns}), f32);
            const Value weight = exp(x - max(x));
            const Value value = tanh(y);
            const Value scale = g.input("scale", f32, {tokens}) / sum(weight);
            const Value total = sum(weight * (of_others ? x : value)) / sum(weight);
            g.output("z", cast((value * scale + -(scale * total)) * weight, bf16));
        };
    };
    CHECK(!contains(body_of(centred(false), 1024), "= rj_fma("));
    CHECK(contains(body_of(centred(true), 1024), "= rj_fma("));
    CHECK(!contains(body_of(centred(true), 1), "= rj_fma("));  // where every sum is its term
}

TEST_CASE("a product is rounded before a product of its factor is added, which may be its negative") {
    const auto scaled = [](const auto& term) {
        return [=](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
            const Value y = cast(g.input("y", bf16, {tokens, columns}), f32);
            const Value weight = exp(x);
            const Value scale = g.input("scale", f32, {tokens});
            g.output("z", cast((scale * (x - y)) * weight + term(x, weight, scale), bf16));
        };
    };
    const auto fuses = [](const Build& build) { return contains(body_of(build, 1024), "= rj_fma("); };
    CHECK(!fuses(scaled([](const Value&, const Value& weight, const Value& scale) { return scale * weight; })));
    CHECK(fuses(scaled([](const Value& x, const Value&, const Value& scale) { return scale * tanh(x); })));
    CHECK(fuses(scaled([](const Value&, const Value& weight, const Value&) { return -weight; })));
}

TEST_CASE("a division by a power of two is a product, by another constant two") {
    const auto divided = [](double by) {
        return [by](Graph& g, std::int64_t columns) {
            g.output("y", g.input("x", f32, {g.rows("tokens"), columns}) / by);
        };
    };
    CHECK(contains(body_of(divided(-8.0), 1024), "* (-0.125f)"));
    CHECK(contains(body_of(divided(3.0), 1024), "rj_fma("));
    CHECK_FALSE(contains(body_of(divided(3.0), 1024), "rj_div("));
    CHECK(contains(body_of(divided(1e30), 1024), "rj_div("));
}

TEST_CASE("a row's number over a power of two is a product where the row is loaded again behind it, or many are") {
    const auto quotient = [](bool again, std::int64_t columns) {
        Graph g;
        const auto x = g.input("x", f32, {g.rows("tokens"), columns});
        const auto other = g.input("other", f32, {x.axes()[0], columns});
        const auto scaled = x * mean(x);
        g.output("y", again ? scaled + other : scaled);
        return g;
    };
    const auto text = [&](bool again, std::int64_t columns) {
        return body_of([&](Graph& g, std::int64_t n) { g = quotient(again, n); }, columns);
    };
    CHECK(contains(text(true, 1024), "* 0.0009765625f"));
    CHECK(contains(text(false, 1024), "rj_div("));
    CHECK(contains(text(true, 1000), "rj_div("));
}
