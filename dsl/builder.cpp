// The public expression functions: each turns operands into nodes of one graph. Validation lives in GraphData.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "dsl/graph.h"
#include "rowjit/coord.h"
#include "rowjit/graph.h"

namespace rowjit {
namespace {

GraphData& graph_of(const Value& value, std::string_view what) {
    if (!value.graph())
        fail(ErrorCode::kInvalidGraph, "{}: an empty Value; take one from Graph::input or an operation", what);
    return *value.graph();
}

Value map(Op op, std::initializer_list<Value> operands) {
    GraphData& graph = graph_of(*operands.begin(), info(op).name);
    std::vector<NodeId> args;
    for (const Value& operand : operands) {
        if (&graph_of(operand, info(op).name) != &graph) {
            fail(ErrorCode::kInvalidGraph, "{}: the operands belong to different graphs", info(op).name);
        }
        args.push_back(operand.id());
    }
    return {operands.begin()->graph(), graph.add_map(op, std::move(args))};
}

// A bare number beside `like`: a constant of its dtype.
Value number(const Value& like, double value) {
    GraphData& graph = graph_of(like, "constant");
    if (like.dtype() == Dtype::kBool) {
        fail(ErrorCode::kInvalidGraph, "constant {} beside a bool; use select or !", value);
    }
    return {like.graph(), graph.add_const(like.dtype(), value)};
}

Value reduce(Monoid monoid, const Value& a, std::vector<AxisId> axes) {
    return {a.graph(), graph_of(a, name(monoid)).add_reduce(monoid, a.id(), std::move(axes))};
}

Value reduce_columns(Monoid monoid, const Value& a) {
    const GraphData& graph = graph_of(a, name(monoid));
    return reduce(monoid, a, graph.column_axes(graph.node(a.id())));
}

Value reduce(Monoid monoid, const Value& a, Axis axis, const Segments& segments) {
    GraphData& graph = graph_of(a, name(monoid));
    if (&graph_of(segments.offsets, "offsets") != &graph) {
        fail(ErrorCode::kInvalidGraph, "{}: the operand and the offsets belong to different graphs", name(monoid));
    }
    return {a.graph(), graph.add_segment_reduce(monoid, a.id(), axis.id, segments.offsets.id(), segments.axis.id)};
}

std::vector<AxisId> axis_ids(GraphData& graph, const std::vector<Dim>& dims) {
    std::vector<AxisId> ids;
    for (const Dim& dim : dims) ids.push_back(dim.is_axis() ? dim.axis().id : graph.add_column_axis("", dim.extent()));
    return ids;
}

}  // namespace

Dtype Value::dtype() const { return graph_of(*this, "dtype").node(id_).dtype; }

std::vector<Axis> Value::axes() const {
    std::vector<Axis> found;
    for (const AxisId id : graph_of(*this, "axes").node(id_).axes) found.push_back(Axis{id});
    return found;
}

std::string Value::description() const {
    const GraphData& graph = graph_of(*this, "description");
    const Node& node = graph.node(id_);
    return fmt::format("{}[{}]", name(node.dtype), graph.describe_axes(node.axes));
}

Value Value::named(std::string_view label) const {
    graph_of(*this, "named").set_label(id_, label);
    return *this;
}

Graph::Graph() : data_(std::make_shared<GraphData>()) {}

Axis Graph::rows(std::string_view name) { return {data_->add_row_axis(name, kRuntimeExtent)}; }

Axis Graph::rows(std::string_view name, std::int64_t extent) {
    if (extent < 0)
        fail(ErrorCode::kInvalidGraph, "row axis '{}': a static extent must be positive, not {}", name, extent);
    return {data_->add_row_axis(name, extent)};
}

Axis Graph::rows(std::string_view name, Axis like, std::int64_t more) { return rows(name, {like}, more); }

Axis Graph::rows(std::string_view name, std::initializer_list<Axis> product, std::int64_t more) {
    std::vector<AxisId> like;
    for (const Axis axis : product) like.push_back(axis.id);
    return {data_->add_row_axis_like(name, std::move(like), more)};
}

Axis Graph::columns(std::string_view name, std::int64_t extent) {
    if (!is_identifier(name)) fail(ErrorCode::kInvalidGraph, "column axis '{}': the name must be an identifier", name);
    return {data_->add_column_axis(name, extent)};
}

Axis Graph::columns(std::int64_t extent) { return {data_->add_column_axis("", extent)}; }
std::int64_t Graph::extent(Axis axis) const { return data_->axis(axis.id).extent; }

Value Graph::input(std::string_view name, Dtype dtype, const std::vector<Dim>& dims, InputOptions options) {
    return {data_, data_->add_input(name, dtype, axis_ids(*data_, dims), std::move(options.column_strides))};
}

Value Graph::scalar(std::string_view name, Dtype dtype, double default_value) {
    std::string unique(name);
    for (int suffix = 1; data_->find_input(unique); ++suffix) unique = fmt::format("{}_{}", name, suffix);
    return {data_, data_->add_scalar(unique, dtype, default_value)};
}

Value Graph::constant(Dtype dtype, double value) { return {data_, data_->add_const(dtype, value)}; }
Value Graph::iota(Axis axis, Dtype dtype) { return {data_, data_->add_iota(axis.id, dtype)}; }
Value Graph::extent_of(Axis axis, Dtype dtype) { return {data_, data_->add_extent(axis.id, dtype)}; }

void Graph::output(std::string_view name, Value value, OutputOptions options) {
    if (value.graph() != data_) fail(ErrorCode::kInvalidGraph, "output '{}': the value belongs to another graph", name);
    data_->add_output({std::string(name), value.id(), std::move(options.alias), options.accumulate,
                       std::move(options.column_strides)});
}

#define ROWJIT_BINARY(function, op)                                  \
    Value function(Value a, Value b) { return map(Op::op, {a, b}); } \
    Value function(Value a, double b) { return map(Op::op, {a, number(a, b)}); }
ROWJIT_BINARY(operator+, kAdd)
ROWJIT_BINARY(operator-, kSub)
ROWJIT_BINARY(operator*, kMul)
ROWJIT_BINARY(operator/, kDiv)
ROWJIT_BINARY(operator<, kLt)
ROWJIT_BINARY(operator<=, kLe)
ROWJIT_BINARY(operator>, kGt)
ROWJIT_BINARY(operator>=, kGe)
ROWJIT_BINARY(operator==, kEq)
ROWJIT_BINARY(operator!=, kNe)
ROWJIT_BINARY(minimum, kMin)
ROWJIT_BINARY(maximum, kMax)
#undef ROWJIT_BINARY

Value operator+(double a, Value b) { return map(Op::kAdd, {number(b, a), b}); }
Value operator-(double a, Value b) { return map(Op::kSub, {number(b, a), b}); }
Value operator*(double a, Value b) { return map(Op::kMul, {number(b, a), b}); }
Value operator/(double a, Value b) { return map(Op::kDiv, {number(b, a), b}); }
Value operator-(Value a) { return map(Op::kNeg, {a}); }
Value operator&&(Value a, Value b) { return map(Op::kAnd, {a, b}); }
Value operator||(Value a, Value b) { return map(Op::kOr, {a, b}); }
Value operator!(Value a) { return map(Op::kNot, {a}); }
Value fma(Value a, Value b, Value c) { return map(Op::kFma, {a, b, c}); }
Value abs(Value a) { return map(Op::kAbs, {a}); }
Value sqrt(Value a) { return map(Op::kSqrt, {a}); }
Value rsqrt(Value a) { return map(Op::kRsqrt, {a}); }
Value exp(Value a) { return map(Op::kExp, {a}); }
Value log(Value a) { return map(Op::kLog, {a}); }
Value log1p(Value a) { return map(Op::kLog1p, {a}); }
Value tanh(Value a) { return map(Op::kTanh, {a}); }
Value erf(Value a) { return map(Op::kErf, {a}); }
Value sin(Value a) { return map(Op::kSin, {a}); }
Value cos(Value a) { return map(Op::kCos, {a}); }
Value floor(Value a) { return map(Op::kFloor, {a}); }
Value floor_div(Value a, std::int64_t divisor) {
    return map(Op::kFloorDiv, {a, number(a, static_cast<double>(divisor))});
}
Value floor_div(Value a, Value divisor) { return map(Op::kFloorDiv, {a, divisor}); }
Value round(Value a) { return map(Op::kRound, {a}); }

Value detach(Value a) { return map(Op::kDetach, {a}); }
Value uniform(Value seed, Value offset, Value position) { return map(Op::kUniform, {seed, offset, position}); }

Value fixpoint(Value start, const std::function<Value(Value)>& step, int most_steps) {
    GraphData& graph = graph_of(start, "fixpoint");
    const Value state(start.graph(), graph.add_state(start.id()));
    const Value next = step(state);
    if (&graph_of(next, "fixpoint") != &graph) {
        fail(ErrorCode::kInvalidGraph, "fixpoint: the step's result belongs to another graph");
    }
    return {start.graph(), graph.add_fix(state.id(), next.id(), most_steps)};
}

Value select(Value condition, Value if_true, Value if_false) {
    return map(Op::kSelect, {condition, if_true, if_false});
}

Value cast(Value a, Dtype dtype) { return {a.graph(), graph_of(a, "cast").add_cast(a.id(), dtype)}; }

Value sum(Value a) { return reduce_columns(Monoid::kSum, a); }
Value sum(Value a, Axis axis) { return reduce(Monoid::kSum, a, {axis.id}); }
Value max(Value a) { return reduce_columns(Monoid::kMax, a); }
Value max(Value a, Axis axis) { return reduce(Monoid::kMax, a, {axis.id}); }
Value min(Value a) { return reduce_columns(Monoid::kMin, a); }
Value min(Value a, Axis axis) { return reduce(Monoid::kMin, a, {axis.id}); }

Value sum(Value a, Axis axis, const Segments& segments) { return reduce(Monoid::kSum, a, axis, segments); }
Value max(Value a, Axis axis, const Segments& segments) { return reduce(Monoid::kMax, a, axis, segments); }
Value min(Value a, Axis axis, const Segments& segments) { return reduce(Monoid::kMin, a, axis, segments); }

Value search(Value sorted, Value key) {
    GraphData& graph = graph_of(sorted, "search");
    if (&graph_of(key, "search") != &graph)
        fail(ErrorCode::kInvalidGraph, "search: the operands belong to different graphs");
    return {sorted.graph(), graph.add_search(sorted.id(), key.id())};
}

Value order(Value ids, Axis places, Axis rows) {
    return {ids.graph(), graph_of(ids, "order").add_order(ids.id(), places.id, rows.id)};
}

Value segment_of(Axis axis, const Segments& segments) {
    GraphData& graph = graph_of(segments.offsets, "segment_of");
    return search(segments.offsets, {segments.offsets.graph(), graph.add_iota(axis.id, Dtype::kI64)});
}

Value segment_lengths(const Segments& segments) {
    GraphData& graph = graph_of(segments.offsets, "segment_lengths");
    const Value segment(segments.offsets.graph(), graph.add_iota(segments.axis.id, Dtype::kI64));
    return index(segments.offsets, {Coord(segment) + 1}) - index(segments.offsets, {Coord(segment)});
}

Value spread(Value a, Axis axis, const Segments& segments) {
    return index(a, segments.axis, Coord(segment_of(axis, segments)));
}

Value mean(Value a) {
    const GraphData& graph = graph_of(a, "mean");
    return sum(a) / static_cast<double>(graph.column_count(graph.node(a.id())));
}

Value mean(Value a, Axis axis) {
    const Value total = sum(a, axis);
    return total / Value(a.graph(), graph_of(a, "mean").add_extent(axis.id, a.dtype()));
}

Value matmul(Value a, Value b, const std::vector<Axis>& contracted, Dtype dtype) {
    GraphData& graph = graph_of(a, "matmul");
    if (&graph_of(b, "matmul") != &graph) {
        fail(ErrorCode::kInvalidGraph, "matmul: the operands belong to different graphs");
    }
    std::vector<AxisId> axes;
    for (const Axis axis : contracted) axes.push_back(axis.id);
    return {a.graph(), graph.add_matmul(a.id(), b.id(), std::move(axes), dtype)};
}
Value matmul(Value a, Value b, const std::vector<Axis>& contracted) { return matmul(a, b, contracted, a.dtype()); }

Value index(Value source, std::vector<Coord> coords) {
    return {source.graph(), graph_of(source, "index").add_index(source.id(), std::move(coords))};
}

Value index(Value source, Axis axis, Coord coord) {
    const GraphData& graph = graph_of(source, "index");
    const std::vector<AxisId>& axes = graph.node(source.id()).axes;
    if (std::find(axes.begin(), axes.end(), axis.id) == axes.end()) {
        fail(ErrorCode::kInvalidGraph, "index({}): it has no axis {}", graph.describe(source.id()),
             graph.axis(axis.id).label());
    }
    std::vector<Coord> coords;
    for (const AxisId id : axes) coords.push_back(id == axis.id ? coord : Coord(Axis{id}));
    return index(source, std::move(coords));
}

}  // namespace rowjit
