// Rotary position embedding. The partner of an element is a coordinate, so nothing is sliced or concatenated and one
// loop over a head reads each pair where it lies.
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

// How far the head's elements rotate, R.
std::int64_t rotary_width(const Value& x, std::int64_t head_width, std::int64_t asked) {
    const std::int64_t width = asked == 0 ? head_width : asked;
    if (width < 0 || width > head_width || width % 2 != 0) {
        fail(ErrorCode::kInvalidGraph, "rope({}): the rotary width is {}; give an even number up to the head's {}",
             x.graph()->describe(x.id()), width, head_width);
    }
    return width;
}

// cos or sin at each element of a head. Elements past R read some value of the table, which is then not used.
Value angle(std::string_view role, const Value& table, const Value& x, Axis d, std::int64_t width,
            RopePairing pairing) {
    require_float("rope", role, table);
    const std::vector<Axis> axes = table.axes();
    const Axis last = axes.empty() ? Axis{} : axes.back();
    const GraphData& graph = *x.graph();
    const std::int64_t extent = axes.empty() ? 0 : graph.axis(last.id).extent;
    if (table.dtype() != x.dtype() || (extent != width && extent != width / 2)) {
        fail(ErrorCode::kInvalidGraph,
             "rope({}): {} {} must have x's dtype and {} or {} as its last extent; cast or declare it so",
             graph.describe(x.id()), role, table.graph()->describe(table.id()), width, width / 2);
    }
    Coord at = Coord(d) % width;
    if (extent == width / 2) at = pairing == RopePairing::kHalf ? Coord(d) % (width / 2) : at / 2;
    const bool own_axis = last.id == d.id && extent == width && width == graph.axis(d.id).extent;
    const Value read = own_axis ? table : index(table, last, at);
    require_within("rope", role, read, x);
    return read;
}

// Whether a column is the first of its pair.
Value is_first(const Value& column, std::int64_t width, RopePairing pairing) {
    const std::int64_t half_width = width / 2;
    if (pairing == RopePairing::kHalf) return column < static_cast<double>(half_width);
    return floor_div(column, 2) * 2.0 == column;
}

}  // namespace

Value rope(Value x, Value cos, Value sin, RopeOptions options) {
    require_columns("rope", x);
    const GraphData& graph = *x.graph();
    const Axis d = x.axes().back();
    const std::int64_t head_width = graph.axis(d.id).extent;
    const std::int64_t width = rotary_width(x, head_width, options.rotary);
    const bool half = options.pairing == RopePairing::kHalf;

    // d + R/2 within the rotary part, or d with its last bit flipped.
    const Coord partner_at = half ? (Coord(d) + width / 2) % width : (Coord(d) / 2) * 2 + (Coord(d) + Coord(1)) % 2;
    const Value partner = index(x, d, partner_at).named("partner");
    const Value column = Graph(x.graph()).iota(d);
    const Value turned = select(is_first(column, width, options.pairing), -partner, partner);

    const Value rotated =
        x * angle("cos", cos, x, d, width, options.pairing) + turned * angle("sin", sin, x, d, width, options.pairing);
    return width == head_width ? rotated : select(column < static_cast<double>(width), rotated, x);
}

RopeTables rope_tables(Value positions, Value inverse_frequencies, Dtype dtype, double scaling) {
    require_float("rope_tables", "inverse_frequencies", inverse_frequencies);
    const Dtype wide_dtype = inverse_frequencies.dtype();
    const Value factor = non_negative_scalar("rope_tables", positions, "scaling", wide_dtype, scaling);
    const Value angles = cast(positions, wide_dtype) * inverse_frequencies;
    return {cast(rowjit::cos(angles) * factor, dtype).named("cos"),
            cast(rowjit::sin(angles) * factor, dtype).named("sin")};
}

Value mrope_table(Value table, Axis streams, bool both_halves, MropeOptions options) {
    require_columns("mrope_table", table);
    Graph graph(table.graph());
    const Axis d = table.axes().back();
    const auto& [first, second, third] = options.sections;
    const std::int64_t pairs = graph.extent(d) / (both_halves ? 2 : 1);
    if (graph.extent(streams) != 3 || first < 0 || second < 0 || third < 0 || first + second + third != pairs) {
        fail(ErrorCode::kInvalidGraph,
             "mrope_table({}): sections {} + {} + {} must be the {} pairs of the table, and the streams three",
             table.description(), first, second, third, pairs);
    }
    const auto stream = [&](int which) {
        std::vector<Coord> at;
        for (const Axis axis : table.axes()) at.push_back(axis.id == streams.id ? Coord(which) : Coord(axis));
        return index(table, at);
    };
    Value pair = cast(graph.iota(d), f32);  // exact: a head is far narrower than 2^24
    if (both_halves) pair = select(pair < static_cast<double>(pairs), pair, pair - static_cast<double>(pairs));
    const auto below = [&](std::int64_t bound) { return pair < static_cast<double>(bound); };
    if (options.layout == MropeLayout::kSections) {
        return select(below(first), stream(0), select(below(first + second), stream(1), stream(2)));
    }
    const Value turn = pair - floor(pair / 3.0) * 3.0;
    return select(turn == 1.0 && below(3 * second), stream(1),
                  select(turn == 2.0 && below(3 * third), stream(2), stream(0)));
}

Value rope_complex(Value x, Value rotations) {
    require_columns("rope_complex", x);
    require_within("rope_complex", "rotations", rotations, x);
    const Axis d = x.axes().back();
    const std::int64_t width = x.graph()->axis(d.id).extent;
    if (rotations.axes().back().id != d.id || rotations.dtype() != wide(x.dtype()) || width % 2 != 0) {
        fail(ErrorCode::kInvalidGraph,
             "rope_complex({}): rotations {} must be f32 (f64 of f64) over x's last axis, of an even extent",
             x.description(), rotations.description());
    }
    const Coord real = Coord(d) / 2 * 2;
    const Value h = widen(x);
    const Value partner = widen(index(x, d, real + (Coord(d) + Coord(1)) % 2)).named("partner");
    const Value is_real = is_first(Graph(x.graph()).iota(d), width, RopePairing::kInterleaved);
    const Value turned = select(is_real, -partner, partner);
    return cast(h * index(rotations, d, real) + turned * index(rotations, d, real + Coord(1)), x.dtype());
}

}  // namespace rowjit
