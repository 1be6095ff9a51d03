#include "dsl/stable_order.h"

#include "rowjit/coord.h"

namespace rowjit {

StableOrder stable_order(const Value& ids, Axis places, Axis rows, Axis ends) {
    Graph graph(ids.graph());
    const Value by_row = order(ids, places, rows);
    // What the ids are clamped to, in order: of a row, those before it end where the last below it is.
    const Value id = cast(index(ids, {Coord(by_row)}), i64);
    const Value in_order = minimum(maximum(id, graph.constant(i64, -1)), graph.extent_of(rows, i64));
    return {by_row, search(in_order, graph.iota(ends, i64) - 1.0) + 1.0};
}

}  // namespace rowjit
