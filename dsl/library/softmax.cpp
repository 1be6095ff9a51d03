// Softmax, its logarithms, sparsemax and the greatest elements of a row.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/logits.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

// With one more logit in every row's maximum and sum.
RowExponentials with_sink(std::string_view op, const Value& x, const Value& z, const Value& sink) {
    require_float(op, "sink", sink);
    require_within(op, "sink", sink, max(x));
    const Value wide_sink = widen(sink);
    const Value row_max = detach(maximum(max(z), wide_sink).named("row_max"));
    const Value shifted = z - row_max;
    const Value e = exp(shifted).named("e");
    return {row_max, shifted, e, (sum(e) + exp(wide_sink - row_max)).named("row_sum")};
}

RowExponentials exponentials_of(std::string_view op, const Value& x, const SoftmaxOptions& options,
                                const SoftmaxOperands& operands) {
    require_columns(op, x);
    const Value z = masked_logits(op, x, options, operands);
    return operands.sink ? with_sink(op, x, z, *operands.sink) : row_exponentials(z);
}

// Whether a column stands at or before its row.
Value causal_mask(std::string_view op, const Value& x, std::int64_t offset) {
    const GraphData& data = *x.graph();
    const Node& node = data.node(x.id());
    const std::vector<AxisId> rows = data.row_axes(node);
    const std::vector<AxisId> columns = data.column_axes(node);
    if (rows.empty() || columns.size() != 1) {
        fail(ErrorCode::kInvalidGraph, "{}({}): a causal mask needs a row axis and one column axis", op,
             data.describe(x.id()));
    }
    Graph graph(x.graph());
    const Value last =
        graph.iota(Axis{rows.back()}, i64) + graph.scalar("causal_offset", i64, static_cast<double>(offset));
    return cast(graph.iota(Axis{columns.front()}), i64) <= last;
}

Value rounded(const Value& wide_value, const Value& x, const SoftmaxOptions& options) {
    return cast(wide_value, options.result.value_or(x.dtype()));
}

}  // namespace

LogitTransform::LogitTransform(std::string_view op, const Value& x, std::optional<double> softcap,
                               std::optional<double> temperature) {
    const Dtype dtype = wide(x.dtype());
    if (softcap) softcap_ = positive_scalar(op, x, "softcap", dtype, *softcap);
    if (temperature) temperature_ = positive_scalar(op, x, "temperature", dtype, *temperature);
}

Value LogitTransform::operator()(const Value& x) const {
    Value z = widen(x);
    if (softcap_) z = tanh(z / *softcap_) * *softcap_;
    if (temperature_) z = z / *temperature_;
    return z;
}

RowExponentials row_exponentials(const Value& z) {
    // No result depends on the maximum but for rounding, and what would flow through it is a sum that cancels.
    const Value row_max = detach(max(z).named("row_max"));
    const Value shifted = z - row_max;
    const Value e = exp(shifted).named("e");
    return {row_max, shifted, e, sum(e).named("row_sum")};
}

Value masked_logits(std::string_view op, const Value& x, const SoftmaxOptions& options,
                    const SoftmaxOperands& operands) {
    Value z = LogitTransform(op, x, options.softcap, options.temperature)(x);
    if (operands.bias) {
        require_float(op, "bias", *operands.bias);
        require_within(op, "bias", *operands.bias, x);
        z = z + cast(*operands.bias, z.dtype());
    }
    const Value nothing = Graph(x.graph()).constant(z.dtype(), -std::numeric_limits<double>::infinity());
    if (operands.mask) {
        require_within(op, "mask", *operands.mask, x);
        if (operands.mask->dtype() != boolean)
            fail(ErrorCode::kInvalidGraph, "{}: mask {} must be bool", op, operands.mask->description());
        z = select(*operands.mask, z, nothing);
    }
    if (options.causal_offset) z = select(causal_mask(op, x, *options.causal_offset), z, nothing);
    return z;
}

Value log_sum_exp(const RowExponentials& row) {
    const Value finite = row.row_max + log(row.row_sum).named("log_sum");
    const Value is_infinite = abs(row.row_max) == std::numeric_limits<double>::infinity();
    return select(is_infinite, row.row_max, finite);
}

Value softmax(Value x, SoftmaxOptions options, SoftmaxOperands operands) {
    const RowExponentials row = exponentials_of("softmax", x, options, operands);
    return rounded(row.exp / row.row_sum, x, options);
}

Value log_softmax(Value x, SoftmaxOptions options, SoftmaxOperands operands) {
    const RowExponentials row = exponentials_of("log_softmax", x, options, operands);
    return rounded(row.shifted - log(row.row_sum).named("log_sum"), x, options);
}

Value logsumexp(Value x, SoftmaxOptions options, SoftmaxOperands operands) {
    return rounded(log_sum_exp(exponentials_of("logsumexp", x, options, operands)), x, options);
}

namespace {

// Newton's step towards the root of Σ max(z − τ, 0) = 1: where the elements above τ would sum to 1 if they were all.
Value newton_step(const Value& z, const Value& threshold) {
    const Value zero = Graph(z.graph()).constant(z.dtype(), 0.0);
    const Value above = (z > threshold).named("above");
    const Value total = sum(select(above, z, zero)).named("above_sum");
    return (total - 1.0) / sum(select(above, zero + 1.0, zero)).named("above_count");
}

}  // namespace

Value sparsemax(Value x) {
    require_columns("sparsemax", x);
    const Value wide_x = widen(x);
    const Value row_max = detach(max(wide_x).named("row_max"));
    const Value z = (wide_x - row_max).named("shifted");
    // The largest element is 0 now and takes at most 1, so −1 is below τ; NaN in rows without a largest number.
    const Value start = (row_max * 0.0 - 1.0).named("start");
    const auto rise = [&](const Value& state) { return maximum(state.named("threshold"), newton_step(z, state)); };
    // Σ above − 1 times the number above falls to a quarter at least in each step of a convex function's Newton (Radzik
    // 1992), from n² at most: after 48 it is below 2^-52 for a million columns. Rows take three to six.
    const Value below = fixpoint(start, rise, 48).named("below");
    // Once more, differentiably: the support no longer changes, and given that τ is what it is.
    const Value tau = newton_step(z, below).named("tau");
    const Value zero = Graph(x.graph()).constant(z.dtype(), 0.0);
    const Value over = z - tau;
    return cast(select(over <= 0.0, zero, over), x.dtype());
}

TopK top_k(Value x, std::int64_t count) {
    constexpr std::string_view kOp = "top_k";
    require_columns(kOp, x);
    const Axis columns = x.axes().back();
    Graph graph(x.graph());
    const std::int64_t width = graph.extent(columns);
    const GraphData& data = *x.graph();
    if (data.column_axes(data.node(x.id())).size() != 1 || count < 1 || count > std::min<std::int64_t>(64, width)) {
        fail(ErrorCode::kInvalidGraph, "{}({}): {} elements; give one column axis, and a count from 1 to its {}, or 64",
             kOp, x.description(), count, width);
    }
    const Axis places = graph.columns(fmt::format("top_{}", count), count);
    const Value column = graph.iota(columns);
    const Value least = graph.constant(x.dtype(), -std::numeric_limits<double>::infinity());
    const auto is_nan = [](const Value& v) { return v != v; };
    std::optional<Value> greatest;  // of those taken, the last
    std::optional<Value> at;
    TopK result;
    for (std::int64_t i = 0; i < count; ++i) {
        std::optional<Value> rest;  // whether an element comes after it
        if (greatest) {
            const Value later = column > *at;
            rest = x < *greatest || (x == *greatest && later) || (is_nan(*greatest) && (!is_nan(x) || later));
        }
        greatest = detach(max(rest ? select(*rest, x, least) : x));
        const Value equal = x == *greatest || (is_nan(*greatest) && is_nan(x));
        const Value taken = rest ? *rest && equal : equal;
        at = min(select(taken, column, graph.constant(i32, static_cast<double>(width))));
        const Value here = graph.iota(places) == graph.constant(i32, static_cast<double>(i));
        const Value value = index(x, columns, Coord(*at));
        result.values = select(here, value, i == 0 ? graph.constant(x.dtype(), 0) : result.values);
        result.indices = select(here, *at, i == 0 ? graph.constant(i32, 0) : result.indices);
    }
    return {result.values.named("values"), result.indices.named("indices")};
}

}  // namespace rowjit
