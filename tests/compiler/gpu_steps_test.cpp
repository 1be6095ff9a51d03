// Fixpoints, and steps that a graph has written out, as the loops that GPU text has of them.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "compiler/compile.h"
#include "compiler/emit/gpu.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "tests/compiler/gpu_kernel.h"

using namespace rowjit;

TEST_CASE("a vector of which no column passes the row's number is left out of sums of those that do") {
    const auto build = [](Dtype dtype) {
        return [=](Graph& g, std::int64_t columns) {
            g.output("y", sparsemax(g.input("x", dtype, {g.rows("tokens"), columns})));
        };
    };
    const std::string narrow = body_of(build(bf16), 8192);
    CHECK(count(narrow, "_greatest = rj_greatest_of(") == 1);  // for all steps
    CHECK(narrow.find("tested[i] = ") < narrow.find("for (int step = 0;"));
    CHECK(count(narrow, "  // one of the vector's columns") == 1);
    CHECK(count(body_of(build(f32), 8192), "passes |= ") == 1);
    CHECK(count(body_of(build(bf16), 128), "of the vector's columns") == 0);  // several rows a block
}

TEST_CASE("what the last step of a fixpoint summed is not summed again, and what is not the same is") {
    const auto build = [](double weight) {
        return [=](Graph& g, std::int64_t columns) {
            const Value x = g.input("x", f32, {g.rows("tokens"), columns});
            const auto above = [&](const Value& state, double scale) {
                return sum(select(x > state, x * scale, x * 0.0));
            };
            const auto step = [&](const Value& state) { return maximum(state, above(state, 0.25)); };
            const Value last = fixpoint(max(x) * 0.5, step, 9);
            g.output("y", x * above(last, weight));
        };
    };
    const std::string same = body_of(build(0.25), 4096);
    CHECK(count(same, "rj_all_reduce<") == 2);
    CHECK(contains(same, "// of the last step"));
    CHECK(contains(same, "for (int step = 0; step <= 9; ++step)"));
    const std::string other = body_of(build(0.5), 4096);
    CHECK(count(other, "rj_all_reduce<") == 3);
    CHECK(!contains(other, "// of the last step"));
}

TEST_CASE("what does not rise with one element of a vector is asked of each lane") {
    const auto build = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
        const Value y = cast(g.input("y", bf16, {tokens, columns}), f32);
        const Value zero = g.constant(f32, 0);
        g.output("folded", sum(select(abs(x) > max(x), x, zero)));
        g.output("both", sum(select(x + y > max(y), x, zero)));
        g.output("least", sum(select(x - max(x) < min(x), x, zero)));
    };
    const std::string body = body_of(build, 8192);
    CHECK(!contains(body, "rj_greatest_of("));
}

TEST_CASE("steps that a graph has written out are a loop as far as nothing else reads them") {
    // Of three operations each, from `kept` of which everything is summed.
    const auto steps = [](int count, int kept) {
        return [=](Graph& g, std::int64_t columns) {
            const Value first = sum(g.input("x", f32, {g.rows("tokens"), columns}));
            Value step = first;
            Value total = first;
            for (int i = 0; i < count; ++i) {
                step = step * 0.5 + first / (step * step);
                if (i < kept) total = total + step;
            }
            g.output("y", step * total);
        };
    };
    const std::string all = body_of(steps(200, 0), 1024);
    CHECK(contains(all, "for (int round = 0; round < 199; ++round)"));
    CHECK(std::count(all.begin(), all.end(), '\n') < 60);
    CHECK(contains(body_of(steps(200, 20), 1024), "for (int round = 0; round < 179; ++round)"));
    CHECK(!contains(body_of(steps(50, 0), 1024), "int round"));  // too few to be worth it
}

TEST_CASE("steps whose numbers a kernel stores for the next are loops of both, each at its round's place") {
    const Graph graph = make_graph("hyper_pre", {64, f32, {}});
    const Graph backward = differentiate(graph, trained_inputs("hyper_pre", graph)).backward;
    const Target target = find_target("sm_90a");
    const Program program = compile(*backward.data(), target);
    const auto loop_of = [&](std::size_t step) {
        const std::string text = emit_gpu_body(program.steps[step].kernel, target);
        return text.substr(text.find("for (int round = 0; round < 3"));
    };
    CHECK(contains(loop_of(0), "if (live) rj_store_one(tmp_20 + ((round * 20) + "));
    CHECK(contains(loop_of(1), "= rj_load_one(tmp_20 + ((round * -20) + "));
}
