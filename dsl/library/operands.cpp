#include "dsl/library/operands.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "dsl/graph.h"

namespace rowjit {
namespace {

const Node& node_of(std::string_view op, std::string_view role, const Value& value) {
    if (!value.graph()) {
        fail(ErrorCode::kInvalidGraph, "{}: {} is an empty Value; take one from Graph::input or an operation", op,
             role);
    }
    return value.graph()->node(value.id());
}

std::string describe(const Value& value) { return value.graph()->describe(value.id()); }

void require_same_graph(std::string_view op, std::string_view role, const Value& operand, const Value& x) {
    if (operand.graph() != x.graph()) {
        fail(ErrorCode::kInvalidGraph, "{}: {} belongs to another graph than {}", op, role, describe(x));
    }
}

}  // namespace

void require_float(std::string_view op, std::string_view role, const Value& x) {
    if (!is_float(node_of(op, role, x).dtype)) {
        fail(ErrorCode::kInvalidGraph, "{}({}): {} must be of a float dtype; cast it", op, describe(x), role);
    }
}

void require_columns(std::string_view op, const Value& x) {
    require_float(op, "x", x);
    if (x.graph()->column_axes(node_of(op, "x", x)).empty()) {
        fail(ErrorCode::kInvalidGraph, "{}({}): x has no column axis to reduce over; declare one with Graph::columns",
             op, describe(x));
    }
}

void require_within(std::string_view op, std::string_view role, const Value& operand, const Value& x) {
    const std::vector<AxisId>& known = node_of(op, "x", x).axes;
    for (const AxisId axis : node_of(op, role, operand).axes) {
        require_same_graph(op, role, operand, x);
        if (std::find(known.begin(), known.end(), axis) == known.end()) {
            fail(ErrorCode::kInvalidGraph, "{}({}): {} {} has axis {}, which x lacks; declare it over x's axes", op,
                 describe(x), role, describe(operand), x.graph()->axis(axis).label());
        }
    }
    require_same_graph(op, role, operand, x);
}

void require_alike(std::string_view op, std::string_view role, const Value& operand, const Value& x) {
    const Node& a = node_of(op, role, operand);
    const Node& b = node_of(op, "x", x);
    require_same_graph(op, role, operand, x);
    if (a.dtype != b.dtype || a.axes != b.axes) {
        fail(ErrorCode::kInvalidGraph, "{}({}): {} {} must have the same dtype and axes", op, describe(x), role,
             describe(operand));
    }
}

Value sigmoid(const Value& x) { return 1.0 / (exp(-x) + 1.0); }

Dtype wide(Dtype dtype) { return dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32; }
Value widen(const Value& x) { return cast(x, wide(x.dtype())); }

void require_classes(std::string_view op, const Value& target, const Value& logits) {
    require_within(op, "target", target, logits);
    const GraphData& graph = *logits.graph();
    const Node& labels = graph.node(target.id());
    if (!is_integer(labels.dtype) || labels.axes != graph.row_axes(graph.node(logits.id()))) {
        fail(ErrorCode::kInvalidGraph, "{}({}): target {} must be i32 or i64 over the row axes of the logits", op,
             graph.describe(logits.id()), graph.describe(target.id()));
    }
}

Value counted_rows(std::string_view op, const Value& logits, const Value& target, std::int64_t ignore_index) {
    require_classes(op, target, logits);
    if (target.dtype() == i32 && ignore_index != static_cast<std::int32_t>(ignore_index)) {
        fail(ErrorCode::kInvalidGraph, "{}: ignore_index {} does not fit the i32 target; use i64", op, ignore_index);
    }
    Graph graph(target.graph());
    return (target != graph.scalar("ignore_index", target.dtype(), static_cast<double>(ignore_index))).named("counted");
}

Value number_of_rows(const Value& x, Dtype dtype) {
    Graph graph(x.graph());
    Value rows = graph.constant(dtype, 1.0);
    const GraphData& data = *x.graph();
    for (const AxisId axis : data.row_axes(data.node(x.id()))) rows = rows * graph.extent_of(Axis{axis}, dtype);
    return rows;
}

Value sum_over_rows(const Value& a) {
    GraphData& graph = *a.graph();
    return {a.graph(), graph.add_reduce(Monoid::kSum, a.id(), graph.row_axes(graph.node(a.id())))};
}

Value reduced(const Value& row_loss, const Value& count, Reduction reduction) {
    if (reduction == Reduction::kNone) return row_loss;
    const Value total = sum_over_rows(row_loss);
    return reduction == Reduction::kSum ? total : total.named("total") / count;
}

Value non_negative_scalar(std::string_view op, const Value& x, std::string_view name, Dtype dtype, double value) {
    if (!std::isfinite(value) || value < 0) {
        fail(ErrorCode::kInvalidGraph, "{}: {} is {}; give a finite number that is not negative", op, name, value);
    }
    return Graph(x.graph()).scalar(name, dtype, value);
}

Value positive_scalar(std::string_view op, const Value& x, std::string_view name, Dtype dtype, double value) {
    if (!std::isfinite(value) || value <= 0) {
        fail(ErrorCode::kInvalidGraph, "{}: {} is {}; give a finite number above zero, or none", op, name, value);
    }
    return Graph(x.graph()).scalar(name, dtype, value);
}

}  // namespace rowjit
