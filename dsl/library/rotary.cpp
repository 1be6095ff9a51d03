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
    const Value pair = cast(column, f32) * 0.5;  // exact: a head is far narrower than 2^24
    return floor(pair) == pair;
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

}  // namespace rowjit
