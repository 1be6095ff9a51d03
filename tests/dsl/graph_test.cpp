#include "dsl/graph.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "dsl/interpret.h"
#include "rowjit/coord.h"
#include "rowjit/graph.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

template <class Call>
std::string refused(Call call) {
    return refusal(ErrorCode::kInvalidGraph, call);
}

OutputOptions aliasing(const char* input) {
    OutputOptions options;
    options.alias = input;
    return options;
}

}  // namespace

TEST_CASE("operands of different dtypes are refused by name") {
    Graph g;
    const Value x = g.input("x", bf16, {4});
    const Value y = g.input("y", f32, {4});
    CHECK(refused([&] { (void)(x + y); }) == "add(x: bf16[4], y: f32[4]): the dtypes differ; cast one operand");
    CHECK(mentions(refused([&] { (void)fma(y, y, x); }), "the dtypes differ"));
}

TEST_CASE("each primitive refuses dtypes outside its kind") {
    Graph g;
    const Value i = g.input("i", i32, {4});
    const Value b = g.input("b", boolean, {4});
    CHECK(mentions(refused([&] { (void)(i / i); }), "a float dtype is needed"));
    CHECK(mentions(refused([&] { (void)exp(i); }), "a float dtype is needed"));
    CHECK(mentions(refused([&] { (void)(b + b); }), "numbers are needed"));
    CHECK(mentions(refused([&] { (void)(i && i); }), "bools are needed"));
    CHECK(mentions(refused([&] { (void)select(i, i, i); }), "the condition must be bool"));
    CHECK(mentions(refused([&] { (void)(b == 1.0); }), "beside a bool"));
    CHECK(mentions(refused([&] { (void)sum(b); }), "cast the bools"));
}

TEST_CASE("a constant must be a value of its dtype") {
    Graph g;
    CHECK(mentions(refused([&] { g.constant(i32, 1.5); }), "constant 1.5: not a value of i32"));
    CHECK(mentions(refused([&] { g.constant(i32, 3e9); }), "not a value of i32"));
    CHECK(mentions(refused([&] { g.constant(i64, std::nan("")); }), "not a value of i64"));
    CHECK(mentions(refused([&] { g.constant(boolean, 2); }), "not a value of bool"));
    g.constant(bf16, 0.1);  // held in f32
}

TEST_CASE("an input refuses an axis named twice, and a row axis after a column axis") {
    Graph g;
    CHECK(mentions(refused([&] { g.input("x", f32, {4, 4}); }), "axis 4 appears twice"));
    CHECK(mentions(refused([&] { g.input("x", f32, {4, g.rows("n")}); }), "row axis n stands after a column axis"));
}

TEST_CASE("names are identifiers and are used once") {
    Graph g;
    const Value x = g.input("x", f32, {4});
    CHECK(mentions(refused([&] { g.input("x", f32, {4}); }), "an input of that name exists"));
    CHECK(mentions(refused([&] { g.output("x", x); }), "an input of that name exists"));
    CHECK(mentions(refused([&] { g.input("2x", f32, {4}); }), "must be an identifier"));
    CHECK(mentions(refused([&] { g.input("inf", f32, {4}); }), "must be an identifier"));
    g.output("y", x);
    CHECK(mentions(refused([&] { g.output("y", x); }), "an output of that name exists"));
    CHECK(mentions(refused([&] { g.input("y", f32, {4}); }), "an output of that name exists"));
    CHECK(g.scalar("eps", f32, 1).id() != g.scalar("eps", f32, 1).id());  // made unique by a suffix
}

TEST_CASE("an axis keeps its extent and space") {
    Graph g;
    const Axis n = g.rows("n");
    CHECK(g.rows("n").id == n.id);
    CHECK(mentions(refused([&] { g.rows("n", 3); }), "already declared differently"));
    CHECK(mentions(refused([&] { g.columns("n", 3); }), "already declared"));
    CHECK(mentions(refused([&] { g.columns("d", 0); }), "must be in 1"));
    CHECK(g.columns(7).id == g.columns(7).id);
    CHECK(g.columns(7).id != g.columns("seven", 7).id);
}

TEST_CASE("2^31 columns a row are refused wherever they would arise") {
    Graph g;
    const Axis a = g.columns("a", 1 << 16);
    const Axis b = g.columns("b", 1 << 16);
    const Axis c = g.columns("c", 1 << 30);
    CHECK(mentions(refused([&] { g.input("x", f32, {a, b, c}); }), "2^31 columns"));
    const Value x = g.input("x", f32, {a});
    const Value y = g.input("y", f32, {b});
    CHECK(mentions(refused([&] { (void)(x + y); }), "2^31 columns"));
    const Value table = g.input("table", f32, {g.columns("d", 1 << 17)});
    CHECK(mentions(refused([&] { index(table, {Coord(a) + Coord(b) % 2}); }), "2^31 columns"));
}

TEST_CASE("a broadcast puts each axis in front of the next shared one, rows before columns") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis heads = g.rows("heads", 4);
    const Axis d = g.columns("d", 8);
    const Axis e = g.columns("e", 2);
    const auto axes = [&](const Value& value) { return value.description(); };
    const Value table = g.input("table", f32, {tokens, d});
    const Value q = g.input("q", f32, {tokens, heads, d});
    const Value per_head = g.input("per_head", f32, {heads});
    const Value w = g.input("w", f32, {e});
    CHECK(axes(table + q) == "f32[tokens, heads, d]");
    CHECK(axes(q + table) == "f32[tokens, heads, d]");
    CHECK(axes(table + per_head) == "f32[tokens, heads, d]");
    CHECK(axes(table + w) == "f32[tokens, d, e]");
    CHECK(axes(w + table) == "f32[tokens, e, d]");
}

TEST_CASE("operands that order their axes differently are refused") {
    Graph g;
    const Axis a = g.columns("a", 2);
    const Axis b = g.columns("b", 2);
    const Axis c = g.columns("c", 2);
    const Value ab = g.input("ab", f32, {a, b});
    const Value ba = g.input("ba", f32, {b, a});
    const Value bca = g.input("bca", f32, {b, c, a});
    CHECK(mentions(refused([&] { (void)(ab + ba); }), "orders its axes differently"));
    CHECK(mentions(refused([&] { (void)(ab + bca); }), "orders its axes differently"));
}

TEST_CASE("equal expressions are one node, and a label does not tell them apart") {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("n"), 4});
    const Value first = (x + 1.0).named("first");
    const Value second = (x + 1.0).named("second");
    CHECK(first.id() == second.id());
    CHECK(g.data()->node(first.id()).label == "first");
    CHECK((1.0 + x).id() != first.id());
    CHECK((x + 0.0).id() != (x + -0.0).id());
    CHECK(index(x, g.columns(4), (Coord(g.columns(4)) + 2) % 4).id() ==
          index(x, g.columns(4), (Coord(g.columns(4)) + 2) % 4).id());
    CHECK(cast(x, f32).id() == x.id());
    CHECK(index(x, g.columns(4), Coord(g.columns(4))).id() == x.id());
}

TEST_CASE("an index that leaves its source is refused with the range it reaches") {
    Graph g;
    const Axis n = g.rows("n");
    const Axis d = g.columns("d", 8);
    const Value x = g.input("x", f32, {n, d});
    CHECK(mentions(refused([&] { index(x, d, Coord(d) + 1); }), "coordinate d + 1 along axis d reaches 1 … 8"));
    CHECK(mentions(refused([&] { index(x, d, Coord(d) - 1); }), "reaches -1 … 6"));
    CHECK(mentions(refused([&] { index(x, n, Coord(n) + 1); }), "cannot be proven to stay inside"));
    CHECK(mentions(refused([&] { index(x, n, Coord(0)); }), "cannot be proven to stay inside"));
    CHECK(mentions(refused([&] { index(x, {Coord(n)}); }), "1 coordinates for 2 axes"));
    CHECK(mentions(refused([&] { index(x, g.columns(9), 0); }), "it has no axis 9"));
    CHECK(mentions(refused([&] { index(x, d, Coord(x)); }), "must be i32 or i64"));
}

TEST_CASE("an index stays inside where its parts' ranges do not, and along rows that are longer") {
    Graph g;
    const Axis d = g.columns("d", 128);
    const Axis n = g.rows("n");
    const Value x = g.input("x", f32, {n, d});
    CHECK(index(x, d, Coord(d) + 1 - (Coord(d) % 2) * 2).id() > x.id());
    CHECK(mentions(refused([&] { index(x, d, Coord(d) + 1 - (Coord(d) % 4) * 2); }), "outside 0 … 127"));
    const Graph lengths = Graph::parse(R"(
        rows sequences
        rows ends = sequences + 1
        rows pairs = sequences + 0
        input offsets: i64[ends]
        output y = index(offsets, sequences + 1) - index(offsets, sequences)
        output z = index(offsets, pairs + 1))");
    CHECK(Graph::parse(lengths.print()).print() == lengths.print());
    const Tensor offsets{Dtype::kI64, {4}, {0, 3, 3, 10}};
    const Tensors out = interpret(*lengths.data(), {{{"offsets", offsets}}, {}, {{"sequences", 3}}}, Rounding::kExact);
    CHECK(out.at("y").values == std::vector<double>{3, 0, 7});
    CHECK(out.at("z").values == std::vector<double>{3, 3, 10});
    CHECK(
        mentions(refused([&] { Graph::parse("rows a\nrows b = a + 1\ninput x: f32[b]\noutput y = index(x, a + 2)"); }),
                 "cannot be proven to stay inside"));
}

TEST_CASE("a reduction refuses axes that it lacks, mixes or names twice") {
    Graph g;
    const Axis n = g.rows("n");
    const Axis d = g.columns("d", 8);
    const Value x = g.input("x", f32, {n, d});
    const auto reduce = [&](std::vector<AxisId> axes, int component = 0) {
        return refused([&] { g.data()->add_reduce(Monoid::kWelford, x.id(), std::move(axes), component); });
    };
    CHECK(mentions(reduce({g.columns(9).id}), "it has no axis 9"));
    CHECK(mentions(reduce({n.id, d.id}), "reduce rows and columns in two steps"));
    CHECK(mentions(reduce({d.id, d.id}), "axis d is named twice"));
    CHECK(mentions(reduce({d.id}, 2), "it has no component 2"));
    CHECK(reduce({d.id}, 1) == "no error");
    CHECK(mentions(refused([&] { sum(sum(x)); }), "there is no column axis to reduce"));
}

TEST_CASE("row coordinates are 64-bit") {
    Graph g;
    CHECK(mentions(refused([&] { g.iota(g.rows("n"), i32); }), "row coordinates are 64-bit"));
    CHECK(mentions(refused([&] { g.iota(g.columns(4), f32); }), "must be i32 or i64"));
}

TEST_CASE("an alias must fit its input and is given once") {
    Graph g;
    const Axis n = g.rows("n");
    InputOptions spread;
    spread.column_strides = {2};
    const Value x = g.input("x", f32, {n, 4});
    const Value b = g.input("b", bf16, {n, 4});
    g.input("s", f32, {n, 4}, spread);
    const Value eps = g.scalar("eps", f32, 1);
    CHECK(mentions(refused([&] { g.output("y", x, aliasing("z")); }), "'z' is not an input tensor"));
    CHECK(mentions(refused([&] { g.output("y", eps * 2, aliasing("eps")); }), "'eps' is not an input tensor"));
    CHECK(mentions(refused([&] { g.output("y", b, aliasing("x")); }), "cannot overwrite x: f32[n, 4] in place"));
    CHECK(mentions(refused([&] { g.output("y", sum(x), aliasing("x")); }), "cannot overwrite"));
    CHECK(mentions(refused([&] { g.output("y", x, aliasing("s")); }), "give it that input's column strides, [2]"));
    g.output("y", x * 2, aliasing("x"));
    CHECK(mentions(refused([&] { g.output("z", x, aliasing("x")); }), "output 'y' overwrites 'x' already"));
}

TEST_CASE("column strides match the axes and are within reason") {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("n"), 4});
    const auto output_strides = [&](std::vector<std::int64_t> strides) {
        OutputOptions options;
        options.column_strides = std::move(strides);
        return refused([&] { g.output("y", x, options); });
    };
    CHECK(mentions(output_strides({1, 1}), "2 column strides for 1 column axes"));
    CHECK(mentions(output_strides({0}), "column stride 0"));
    CHECK(mentions(refused([&] { g.input("z", f32, {4}, {{-1}}); }), "column stride -1"));
    g.input("repeated", f32, {4}, {{0}});
}

TEST_CASE("only floats accumulate") {
    Graph g;
    OutputOptions options;
    options.accumulate = true;
    const Value i = g.input("i", i32, {4});
    CHECK(mentions(refused([&] { g.output("y", i, options); }), "only floats accumulate"));
}

TEST_CASE("empty values and values of another graph are refused") {
    Graph g;
    Graph other;
    const Value x = g.input("x", f32, {4});
    const Value y = other.input("y", f32, {4});
    CHECK(mentions(refused([&] { (void)(x + y); }), "belong to different graphs"));
    CHECK(mentions(refused([&] { g.output("y", y); }), "belongs to another graph"));
    CHECK(mentions(refused([&] { (void)(Value() + x); }), "an empty Value"));
}

TEST_CASE("live nodes are those an output needs, operands first") {
    Graph g;
    const Value x = g.input("x", f32, {4});
    (void)exp(x);
    const Value y = x * 2;
    g.output("y", y);
    const auto live = g.data()->live_nodes();
    CHECK(live.size() == 3);  // x, 2, x * 2
    CHECK(live.back() == y.id());
}

TEST_CASE("random numbers are of i64 alone") {
    Graph g;
    const Value i = g.input("i", i32, {4});
    CHECK(
        mentions(refused([&] { (void)uniform(i, i, i); }), "uniform(i: i32[4], i: i32[4], i: i32[4]): i64 is needed"));
    const Value position = cast(i, i64);
    CHECK(uniform(g.constant(i64, 1), g.constant(i64, 2), position).description() == "f32[4]");
}

TEST_CASE("a state is a float of each row, and its next like it, from it, in one step at least") {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("n"), 4});
    Value start = max(x);
    const auto same = [](const Value& state) { return state * 0.5; };
    CHECK(fixpoint(start, same, 3).description() == "f32[n]");
    CHECK(mentions(refused([&] { fixpoint(x, same, 3); }), "a state is one number for each row"));
    CHECK(mentions(refused([&] { fixpoint(cast(start, i32), same, 3); }), "a float dtype is needed"));
    CHECK(mentions(refused([&] { fixpoint(start, same, 0); }), "0 steps"));
    CHECK(mentions(refused([&] { fixpoint(start, [&](const Value&) { return start; }, 3); }), "does not depend on"));
    CHECK(mentions(refused([&] { fixpoint(start, [&](const Value& s) { return s * x; }, 3); }), "other axes"));
}

TEST_CASE("what depends on a state stays in its step") {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("n"), 4});
    const auto half = [](const Value& state) { return state * 0.5; };
    Value leaked;
    fixpoint(max(x), [&](const Value& state) { return leaked = state * 0.5; }, 3);
    CHECK(mentions(refused([&] { g.output("y", leaked); }), "is part of a step; take the fixpoint"));
    const auto nested = [&](const Value& state) { return fixpoint(state, half, 3); };
    CHECK(mentions(refused([&] { fixpoint(max(x), nested, 3); }), "a fixpoint has no other inside"));
    const auto mixed = [&](const Value& state) { return state + leaked; };
    CHECK(mentions(refused([&] { fixpoint(min(x), mixed, 3); }), "the steps of two states"));
}
