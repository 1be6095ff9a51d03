// What stands between the layers: scaled residual sums, dropout and the gather of embeddings.
#include <cmath>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

constexpr std::int64_t kMostExact = std::int64_t{1} << 53;

// The index of each element of x in row-major order of its axes.
Value position_of(const Value& x) {
    Graph graph(x.graph());
    Value position = graph.constant(i64, 0);
    bool first = true;
    for (const Axis axis : x.axes()) {
        const Value along = graph.iota(axis, i64);
        position = first ? along : position * graph.extent_of(axis, i64) + along;
        first = false;
    }
    return position.named("position");
}

Value counter_scalar(const Value& x, std::string_view name, std::int64_t value) {
    if (value < -kMostExact || value > kMostExact)
        fail(ErrorCode::kInvalidGraph, "dropout: {} is {}; give a number in ±2^53", name, value);
    return Graph(x.graph()).scalar(name, i64, static_cast<double>(value));
}

}  // namespace

Value dropout(Value x, DropoutOptions options) {
    require_float("dropout", "x", x);
    if (!(options.p >= 0 && options.p <= 1))
        fail(ErrorCode::kInvalidGraph, "dropout: p is {}; give a number in [0, 1]", options.p);
    // The f32 nearest p, so that every precision compares with the same number.
    const Value p = Graph(x.graph()).scalar("dropout_p", wide(x.dtype()), static_cast<float>(options.p));
    const Value seed = counter_scalar(x, "dropout_seed", options.seed);
    return dropout(x, p, seed, counter_scalar(x, "dropout_offset", options.offset));
}

Value dropout(Value x, Value p, Value seed, Value offset) {
    require_float("dropout", "x", x);
    const Dtype dtype = wide(x.dtype());
    for (const Value& operand : {p, seed, offset}) require_within("dropout", "p, seed or offset", operand, x);
    const Value kept = (cast(uniform(seed, offset, position_of(x)), dtype) >= p).named("kept");
    const Value zero = Graph(x.graph()).constant(dtype, 0.0);
    // For p 1 no element is kept, and an infinite scale would make NaN of the zeros in the backward.
    const Value scale = select(p < 1.0, 1.0 / (1.0 - p), zero).named("scale");
    return cast(select(kept, widen(x) * scale, zero), x.dtype());
}

Value dropout_add(Value x, Value residual, DropoutOptions options) {
    require_float("dropout_add", "x", x);
    require_alike("dropout_add", "residual", residual, x);
    return residual + dropout(x, options).named("dropped");
}

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
