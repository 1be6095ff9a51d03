#include "dsl/traffic.h"

#include <doctest/doctest.h>

#include "dsl/library/registry.h"
#include "rowjit/coord.h"

using namespace rowjit;

namespace {

std::int64_t bytes(std::string_view op, std::int64_t columns, std::int64_t tokens, const OptionMap& options = {}) {
    return least_bytes(*make_graph(op, {columns, bf16, options}).data(), {{"tokens", tokens}});
}

}  // namespace

TEST_CASE("each input is read once and each output written once") {
    CHECK(bytes("silu", 64, 10) == 2 * (2 * 10 * 64));
    CHECK(bytes("rms_norm", 64, 10) == 2 * (2 * 10 * 64 + 64));
    CHECK(bytes("add_rms_norm", 64, 10) == 2 * (4 * 10 * 64 + 64));
}

TEST_CASE("the halves of a packed input are two parts of it, and rotary partners are not read twice") {
    CHECK(bytes("swiglu", 64, 10, {{"packed", "true"}}) == bytes("swiglu", 64, 10));
    CHECK(bytes("rope", 128, 10, {{"heads", "4"}}) == 2 * (2 * 10 * 4 * 128 + 2 * 10 * 128));
    CHECK(bytes("rope", 128, 10, {{"heads", "4"}, {"table", "half"}}) == 2 * (2 * 10 * 4 * 128 + 2 * 10 * 64));
}

TEST_CASE("a logit gathered from a row that is read anyway costs nothing more") {
    CHECK(bytes("cross_entropy", 1000, 10) == 2 * 10 * 1000 + 8 * 10 + 4);
    CHECK(bytes("cross_entropy", 1000, 10, {{"reduction", "none"}}) == 2 * 10 * 1000 + 8 * 10 + 4 * 10);
}

TEST_CASE("a table that is only gathered counts what is gathered, up to the whole table") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis vocabulary = g.columns("vocabulary", 1000);
    const Value table = g.input("table", bf16, {vocabulary, 64});
    g.output("y", index(table, vocabulary, Coord(g.input("token", i32, {tokens}))));
    CHECK(least_bytes(*g.data(), {{"tokens", 10}}) == 2 * 10 * 64 + 4 * 10 + 2 * 10 * 64);
    CHECK(least_bytes(*g.data(), {{"tokens", 5000}}) == 2 * 1000 * 64 + 4 * 5000 + 2 * 5000 * 64);
}

TEST_CASE("what is held counts whole tensors, however little of them moves") {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis s = g.rows("s");
    const Value x = g.input("x", bf16, {batch, s, 64});
    g.output("y", index(x, {Coord(batch), Coord(g.input("last", i64, {batch})), Coord(x.axes()[2])}));
    const RowExtents rows = {{"batch", 3}, {"s", 1000}};
    CHECK(least_bytes(*g.data(), rows) == 2 * 3 * 64 + 8 * 3 + 2 * 3 * 64);
    CHECK(held_bytes(*g.data(), rows) == 2 * 3 * 1000 * 64 + 8 * 3 + 2 * 3 * 64);
}

TEST_CASE("an accumulating output is read and written, and a dead input is not read") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = g.input("x", f32, {tokens, 8});
    g.input("dead", f32, {tokens, 8});
    g.output("y", x * 2.0, {.alias = "", .accumulate = true, .column_strides = {}});
    CHECK(least_bytes(*g.data(), {{"tokens", 3}}) == 4 * 3 * 8 * 3);
}

TEST_CASE("zero rows move no row") { CHECK(bytes("rms_norm", 64, 0) == 2 * 64); }
