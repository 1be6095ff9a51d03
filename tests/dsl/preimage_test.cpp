// Coordinates read backwards. The solver tries each of its solutions over all columns, so that these cases are about
// the form it finds.
#include "dsl/preimage.h"

#include <doctest/doctest.h>

#include <string>

#include "rowjit/coord.h"

using namespace rowjit;

namespace {

struct Solved {
    std::vector<std::string> coords;
    std::size_t conditions;
    std::size_t summed;
    std::vector<std::int64_t> parts;  // positions along each axis that is summed over
};

Solved solved(const Graph& g, const Value& read, const Support& support = {}) {
    GraphData& data = *g.data();
    const Preimage preimage = preimage_of(data, Node(data.node(read.id())), support);
    Solved result{{}, preimage.conditions.size(), preimage.summed.size(), {}};
    for (const AxisId axis : preimage.summed) result.parts.push_back(data.axis(axis).extent);
    for (const Coord& coord : preimage.coords) {
        result.coords.push_back(coord.print([&](Axis axis) { return data.axis(axis.id).label(); },
                                            [&](NodeId id) { return data.describe(id); }));
    }
    return result;
}

}  // namespace

TEST_CASE("the rotary partners, half-split and interleaved, are their own inverse") {
    Graph g;
    const Axis d = g.columns("d", 128);
    const Value x = g.input("x", f32, {g.rows("t"), d});
    const Solved half = solved(g, index(x, d, (Coord(d) + 64) % 128));
    CHECK(half.coords == std::vector<std::string>{"t", "((d + 64) % 128)"});
    CHECK(half.conditions == 0);
    const Solved neighbour = solved(g, index(x, d, (Coord(d) / 2) * 2 + (Coord(d) + Coord(1)) % 2));
    CHECK(neighbour.conditions == 0);
    CHECK(neighbour.summed == 0);
}

TEST_CASE("a rotation by less than half turns back") {
    Graph g;
    const Axis d = g.columns("d", 128);
    const Value x = g.input("x", f32, {d});
    const Solved turned = solved(g, index(x, d, (Coord(d) + 5) % 128));
    CHECK(turned.coords == std::vector<std::string>{"((d - 5) % 128)"});
    CHECK(turned.conditions == 0);
}

TEST_CASE("a packed half is read where it lies") {
    Graph g;
    const Axis half = g.columns("half", 64);
    const Axis both = g.columns("both", 128);
    const Value x = g.input("x", f32, {both});
    const Solved second = solved(g, index(x, both, Coord(half) + 64));
    CHECK(second.coords == std::vector<std::string>{"((both - 64) % 64)"});
    CHECK(second.conditions == 1);
}

TEST_CASE("columns that share a value are summed, and those of a stride are told from the others") {
    Graph g;
    const Axis d = g.columns("d", 128);
    const Axis half = g.columns("half", 64);
    const Solved shared = solved(g, index(g.input("x", f32, {half}), half, Coord(d) / 2));
    CHECK(shared.coords == std::vector<std::string>{"half * 2 + part_1"});
    CHECK(shared.summed == 1);
    const Solved strided = solved(g, index(g.input("y", f32, {d}), d, Coord(half) * 2));
    CHECK(strided.coords == std::vector<std::string>{"(d / 2)"});
    CHECK(strided.conditions == 1);
    // The others are where those are, so that what is computed of a pair is computed once.
    const Solved others = solved(g, index(g.input("z", f32, {d}), d, Coord(half) * 2 + 1));
    CHECK(others.coords == strided.coords);
    CHECK(others.conditions == 1);
}

TEST_CASE("a column split into groups is put together, and groups laid flat are taken apart") {
    Graph g;
    const Axis c = g.columns("c", 128);
    const Axis group = g.columns("group", 4);
    const Axis d = g.columns("d", 32);
    const Solved split = solved(g, index(g.input("x", f32, {group, d}), {Coord(c) / 32, Coord(c) % 32}));
    CHECK(split.coords == std::vector<std::string>{"group * 32 + d"});
    CHECK(split.conditions == 0);
    CHECK(split.summed == 0);
    const Solved flat = solved(g, index(g.input("y", f32, {c}), c, Coord(group) * 32 + Coord(d)));
    CHECK(flat.coords == std::vector<std::string>{"(c / 32)", "(c % 32)"});
    CHECK(flat.conditions == 0);
}

TEST_CASE("a window is summed over the positions that read it") {
    Graph g;
    const Axis wide = g.columns("wide", 12);
    const Axis i = g.columns("i", 10);
    const Axis j = g.columns("j", 3);
    const Solved window = solved(g, index(g.input("x", f32, {wide}), wide, Coord(i) + Coord(j)));
    CHECK(window.summed == 1);
    CHECK(window.conditions == 1);
}

TEST_CASE("of windows that lie over each other an element is summed over those that have its place in a step") {
    Graph g;
    const Axis wide = g.columns("wide", 44);
    const Axis o = g.columns("o", 10);
    const Axis whole = g.columns("whole", 8);
    const Solved twice = solved(g, index(g.input("x", f32, {wide}), wide, Coord(o) * 4 + Coord(whole)));
    CHECK(twice.summed == 1);
    CHECK(twice.parts == std::vector<std::int64_t>{2});
    // Of seven, three steps' windows, the last of which lacks places.
    const Axis uneven = g.columns("uneven", 7);
    const Solved thrice = solved(g, index(g.input("y", f32, {wide}), wide, Coord(o) * 3 + Coord(uneven)));
    CHECK(thrice.parts == std::vector<std::int64_t>{3});
    // Where there are fewer windows than steps of one, they are what is summed over.
    const Axis two = g.columns("two", 2);
    const Axis long_window = g.columns("long_window", 40);
    const Solved few = solved(g, index(g.input("z", f32, {wide}), wide, Coord(two) * 4 + Coord(long_window)));
    CHECK(few.parts == std::vector<std::int64_t>{2});
}

TEST_CASE("a column at a data coordinate is told by comparison, and rows at one are refused") {
    Graph g;
    const Axis t = g.rows("t");
    const Axis c = g.columns("c", 128);
    const Value target = g.input("target", i64, {t});
    const Solved picked = solved(g, index(g.input("x", f32, {t, c}), c, Coord(target)));
    CHECK(picked.coords == std::vector<std::string>{"t"});
    CHECK(picked.conditions == 1);
    CHECK(picked.summed == 0);
    const Axis v = g.rows("v");
    const Value gathered = index(g.input("table", f32, {v, c}), v, Coord(target));
    CHECK_THROWS_AS(solved(g, gathered), Error);
}

TEST_CASE("partners within the rotated part of a head are each other's, wherever in the head it is") {
    Graph g;
    const Axis d = g.columns("d", 128);
    const Value x = g.input("x", f32, {g.rows("t"), d});
    const Value first = index(x, d, (Coord(d) + 32) % 64);
    CHECK(solved(g, first).summed == 1);  // of a whole head each is read twice
    const Solved part = solved(g, first, {{d.id, {0, 64}}});
    CHECK(part.coords == std::vector<std::string>{"t", "((d + 32) % 64)"});
    CHECK(part.conditions == 1);
    CHECK(part.summed == 0);
    const Value last = index(x, d, (Coord(d) - 80) % 32 + 96);
    CHECK(solved(g, last, {{d.id, {96, 128}}}).summed == 0);
}

TEST_CASE("of columns that only a range asks for, a table's read by remainder is read once") {
    Graph g;
    const Axis d = g.columns("d", 128);
    const Axis angle = g.columns("angle", 32);
    const Value table = index(g.input("cos", f32, {angle}), angle, Coord(d) % 32);
    CHECK(solved(g, table).summed == 1);
    const Solved once = solved(g, table, {{d.id, {32, 64}}});
    CHECK(once.summed == 0);
    CHECK(once.conditions == 0);
    CHECK(once.coords == std::vector<std::string>{"angle + 32"});
    const Solved twice = solved(g, table, {{d.id, {16, 80}}});
    CHECK(twice.summed == 1);
    GraphData& data = *g.data();
    CHECK(preimage_of(data, Node(data.node(table.id())), {{d.id, {7, 7}}}).empty);
}

TEST_CASE("a range of an axis that one coordinate reads at its own place and another elsewhere is a condition") {
    Graph g;
    const Axis a = g.columns("a", 8);
    const Axis b = g.columns("b", 8);
    const Value diagonal = index(g.input("x", f32, {a, b}), {Coord(a), Coord(a) / 2});
    CHECK(solved(g, diagonal).conditions == 1);
    CHECK(solved(g, diagonal, {{a.id, {2, 5}}}).conditions == 2);
}

TEST_CASE("parts of a column that several coordinates read are solved together, and never by themselves") {
    Graph g;
    const Axis y = g.columns("y", 28);
    const Axis x = g.columns("x", 28);
    const Axis c = g.columns("c", 768);
    const Axis channels = g.columns(192);
    const Axis tall = g.columns("tall", 56);
    const Axis wide = g.columns("wide", 56);
    // Four neighbours of a picture side by side: the second half of the columns is of the next place along x.
    const Value picture = g.input("t", f32, {tall, wide, channels});
    const Solved merged =
        solved(g, index(picture, {Coord(y) * 2 + (Coord(c) / 192) % 2, Coord(x) * 2 + Coord(c) / 384, Coord(c) % 192}));
    CHECK(merged.summed == 0);
    CHECK(merged.conditions == 0);
}
