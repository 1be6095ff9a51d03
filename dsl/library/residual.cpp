// What stands between the layers: scaled residual sums and the gather of embeddings.
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"

namespace rowjit {

Value scale_add(Value x, Value residual, Value scale) {
    require_float("scale_add", "x", x);
    require_alike("scale_add", "residual", residual, x);
    require_within("scale_add", "scale", scale, x);
    return residual + (x * scale).named("scaled");
}

Value scale_add(Value x, Value residual, double scale) {
    require_float("scale_add", "x", x);
    return scale_add(x, residual, Graph(x.graph()).scalar("scale", x.dtype(), scale));
}

Value embedding(Value table, Value ids) {
    require_columns("embedding", table);
    const std::vector<Axis> axes = table.axes();
    const GraphData& graph = *table.graph();
    if (!graph.axis(axes.front().id).is_row || !is_integer(ids.dtype())) {
        fail(ErrorCode::kInvalidGraph,
             "embedding({}): the table's first axis must be a row axis, the vocabulary, and ids {} of i32 or i64",
             table.description(), ids.description());
    }
    std::vector<Coord> at = {Coord(ids)};
    for (std::size_t i = 1; i < axes.size(); ++i) at.emplace_back(axes[i]);
    return index(table, at);
}

}  // namespace rowjit
