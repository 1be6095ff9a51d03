// Where a cotangent can be anything but zero.
#include "dsl/support.h"

#include <doctest/doctest.h>

#include "rowjit/graph.h"

using namespace rowjit;

namespace {

struct Columns {
    Graph g;
    Axis d = g.columns("d", 128);
    Value column = g.iota(d);

    Support of(const Value& condition, bool holds = true, const Support& within = {}) const {
        return where(*g.data(), within, condition.id(), holds);
    }
    Support range(std::int64_t low, std::int64_t high) const { return {{d.id, {low, high}}}; }
};

}  // namespace

TEST_CASE("comparisons of a column's place narrow where a choice passes something back") {
    const Columns c;
    CHECK(c.of(c.column < 64.0) == c.range(0, 64));
    CHECK(c.of(c.column < 64.0, false) == c.range(64, 128));
    CHECK(c.of(c.column <= 64.0) == c.range(0, 65));
    CHECK(c.of(c.column > 63.0) == c.range(64, 128));
    CHECK(c.of(c.column >= 96.0, false) == c.range(0, 96));
    CHECK(c.of(c.column == 5.0) == c.range(5, 6));
    CHECK(c.of(c.column == 5.0, false) == c.range(0, 128));
    CHECK(c.of(c.column < 0.0) == c.range(0, 0));
    CHECK(c.of(c.column < 500.0) == c.range(0, 128));
    CHECK(c.of(cast(c.column, f32) < 63.5) == c.range(0, 64));
    CHECK(c.of(cast(c.column, f32) <= 63.5) == c.range(0, 64));
    CHECK(c.of(cast(c.column, f32) == 63.5) == c.range(64, 64));
    const Value bound = Graph(c.g).constant(i32, 64);
    CHECK(c.of(bound > c.column) == c.range(0, 64));
    CHECK(c.of(bound <= c.column) == c.range(64, 128));
}

TEST_CASE("conditions join as what they are said of does") {
    const Columns c;
    const Value past = c.column >= 32.0;
    const Value before = c.column < 96.0;
    CHECK(c.of(past && before) == c.range(32, 96));
    CHECK(c.of(past && before, false) == c.range(0, 128));
    CHECK(c.of(c.column < 16.0 || c.column < 48.0) == c.range(0, 48));
    CHECK(c.of(c.column < 16.0 || c.column < 48.0, false) == c.range(48, 128));
    CHECK(c.of(!past) == c.range(0, 32));
    CHECK(c.of(past, true, c.range(0, 40)) == c.range(32, 40));
    CHECK(either(c.range(0, 8), c.range(20, 24)) == c.range(0, 24));
    CHECK(either(c.range(0, 8), {}).empty());
}

TEST_CASE("of other conditions nothing is said: of rows, of data, of places that a type rounds") {
    Columns c;
    const Axis t = c.g.rows("t");
    const Value x = c.g.input("x", f32, {t, c.d});
    CHECK(c.of(x < 1.0).empty());
    CHECK(c.of(c.g.iota(t, i64) < 3.0).empty());
    CHECK(c.of(cast(c.column, bf16) < 100.0).empty());
    CHECK(c.of(floor_div(c.column, 2) < 3.0).empty());
}
