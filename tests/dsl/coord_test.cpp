#include "rowjit/coord.h"

#include <doctest/doctest.h>

#include <limits>
#include <set>

#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

const Axis kD{0};
const Axis kE{1};

std::string print(const Coord& coord) {
    return coord.print([](Axis axis) { return axis.id == 0 ? "d" : "e"; }, [](std::int32_t) { return "t"; });
}

std::int64_t value(const Coord& coord, std::int64_t d, std::int64_t e = 0) {
    return coord.evaluate([&](Axis axis) { return axis.id == 0 ? d : e; },
                          [](std::int32_t) { return std::int64_t{0}; });
}

struct Bounds {
    bool known;
    std::int64_t low = 0;
    std::int64_t high = 0;
};

Bounds bounds(const Coord& coord, std::int64_t d, std::int64_t e) {
    Bounds found{};
    found.known = coord.bounds([&](Axis axis) { return axis.id == 0 ? d : e; }, &found.low, &found.high);
    return found;
}

}  // namespace

TEST_CASE("a shift of a shift around a row is one shift, and its value is the same") {
    const Coord d = kD;
    CHECK(((d + 1) % 64 + 2) % 64 == (d + 3) % 64);
    CHECK(((d + 60) % 64 + 10) % 64 == (d + 6) % 64);
    CHECK(((d + 1) % 64 + 63) % 64 == d % 64);
    CHECK((Coord(kE) + (d + 5) % 128) % 64 == (Coord(kE) + d + 5) % 64);
    CHECK(((d + 1) % 64 + 2) % 48 != (d + 3) % 48);  // 48 does not divide 64
    for (std::int64_t at = 0; at < 64; ++at) CHECK(value(((d + 60) % 64 + 10) % 64, at) == (at + 6) % 64);
    // A sum with data may wrap behind 2^63, of which the remainder is another.
    const Coord data = Coord::data_node(3);
    CHECK(((data + 1) % 64 + 2) % 64 != (data + 3) % 64);
}

TEST_CASE("equal coordinates have equal hashes, and shifts have different ones") {
    const Coord d = kD;
    CHECK(((d + 1) % 64 + 2) % 64 == (d + 3) % 64);
    CHECK(((d + 1) % 64 + 2).hash() == ((d + 1) % 64 + 2).hash());
    std::set<std::size_t> hashes;
    for (int shift = 1; shift <= 64; ++shift) hashes.insert(((d + shift) % 128).hash());
    CHECK(hashes.size() == 64);
}

TEST_CASE("coordinates simplify as they are built") {
    const Coord d = kD;
    CHECK(print(d + 0) == "d");
    CHECK(print(3 + d + 4) == "d + 7");
    CHECK(print(d + 3 - 3) == "d");
    CHECK(print(d * 2 * 3) == "d * 6");
    CHECK(print((d + 1) * 2) == "d * 2 + 2");
    CHECK(print(d * 0 + 5) == "5");
    CHECK(print(d / 1 + d % 1) == "d");
    CHECK((d + 1 == Coord(1) + d));
}

TEST_CASE("sums of one order compare equal however they are bracketed") {
    const Coord d = kD;
    const Coord e = kE;
    CHECK((d + (e + d) == (d + e) + d));
    CHECK((d + (e + 5) == (d + 5) + e));
    CHECK(print(127 - d + e) == "d * -1 + e + 127");
}

TEST_CASE("division and remainder round toward minus infinity") {
    const Coord d = kD;
    CHECK(value((d - 5) / 4, 0) == -2);
    CHECK(value((d - 5) % 4, 0) == 3);
    CHECK(value((d + 64) % 128, 100) == 36);
    CHECK(value(d * 3 - Coord(kE), 2, 10) == -4);
}

TEST_CASE("bounds are exact for sums, products and one period of a remainder") {
    const Coord d = kD;
    const Bounds sum = bounds(d * 2 + kE, 4, 3);
    CHECK(sum.known);
    CHECK(sum.low == 0);
    CHECK(sum.high == 8);
    const Bounds reversed = bounds(7 - d, 8, 1);
    CHECK(reversed.low == 0);
    CHECK(reversed.high == 7);
    CHECK(bounds(d % 16, 8, 1).high == 7);
    CHECK(bounds((d + 4) % 8, 8, 1).high == 7);
    CHECK_FALSE(bounds(d + kE, 4, -1).known);
    CHECK(bounds(Coord(kE) % 4, 1, -1).high == 3);
}

TEST_CASE("quotients and remainders that the extents decide are left out") {
    const auto decided = [](const Coord& coord) {
        return print(coord.decided([](Axis axis) -> std::int64_t { return axis.id == 0 ? 64 : -1; }));
    };
    const Coord d = kD;
    CHECK(decided((d + 64 - 64) % 64) == "d");
    CHECK(decided((d - 64) % 64) == "d");
    CHECK(decided((d + 128) / 64) == "2");
    CHECK(decided((d - 1) / 64) == "((d - 1) / 64)");
    CHECK(decided((d + 1) % 64) == "((d + 1) % 64)");
    CHECK(decided((d % 64 + 64) / 128 + d) == "d");
    CHECK(decided(Coord(kE) % 64) == "(e % 64)");  // of any number of rows
    const Coord e = kE;
    CHECK(decided((e * 64 + d) / 64) == "e");
    CHECK(decided((e * 64 + d) % 64) == "d");
    CHECK(decided((e * 128 + d + 64) / 64) == "e * 2 + 1");
    CHECK(decided((e * 64 + d + 1) / 64) == "e + ((d + 1) / 64)");
    CHECK(decided((e * 32 + d) / 64) == "((e * 32 + d) / 64)");
}

TEST_CASE("substitution replaces axes and simplifies again") {
    const Coord d = kD;
    const Coord replaced =
        (d * 2 + 1).substitute([](Axis) { return Coord(kE) + 3; }, [](std::int32_t) { return Coord(0); });
    CHECK(print(replaced) == "e * 2 + 7");
}

TEST_CASE("constants that would overflow are refused and bounds beyond 64 bits are unknown") {
    const Coord d = kD;
    const std::int64_t greatest = std::numeric_limits<std::int64_t>::max();
    const auto refused = [](auto call) { return refusal(ErrorCode::kInvalidGraph, call); };
    CHECK(mentions(refused([&] { (void)Coord(greatest); }), "beyond 2^62"));
    CHECK(mentions(refused([&] { (void)(d * (std::int64_t{1} << 40) * (std::int64_t{1} << 40)); }), "beyond 2^62"));
    CHECK(mentions(refused([&] { (void)(d + (std::int64_t{1} << 62) + 1); }), "beyond 2^62"));
    CHECK_FALSE(bounds(d * (std::int64_t{1} << 61), 100, 1).known);
    CHECK(mentions(refused([&] { (void)(d / 0); }), "the divisor must be positive"));
    CHECK(mentions(refused([&] { (void)(d % -2); }), "the divisor must be positive"));
}
