// Residual streams: a token's hidden state as a few rows that are mixed with each other (hyper-connections), and the
// states of earlier layers weighed against each other (attention residuals). Both reduce a small axis beside the row;
// a planner that unrolls it (compiler/plan/choose_plan.h) reads each row once.
#include <algorithm>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

// `like` without its column axes, then `more`: the axes of a few numbers for each row.
void require_numbers(std::string_view op, std::string_view role, const Value& numbers, const Value& like,
                     const std::vector<Axis>& more) {
    require_float(op, role, numbers);
    const GraphData& graph = *like.graph();
    std::vector<AxisId> wanted = graph.row_axes(graph.node(like.id()));
    for (const Axis axis : more) wanted.push_back(axis.id);
    if (graph.node(numbers.id()).axes == wanted) return;
    fail(ErrorCode::kInvalidGraph, "{}: {} {} must have the axes [{}]", op, role, numbers.description(),
         graph.describe_axes(wanted));
}

// The axis of the streams of x {rows…, streams, columns}.
Axis streams_of(std::string_view op, const Value& x) {
    require_columns(op, x);
    const GraphData& graph = *x.graph();
    const std::vector<AxisId> columns = graph.column_axes(graph.node(x.id()));
    if (columns.size() == 2) return Axis{columns[0]};
    fail(ErrorCode::kInvalidGraph, "{}({}): give two column axes, the streams and their columns", op, x.description());
}

// Rows, then columns, of `matrix` made to sum to one, again and again (Sinkhorn and Knopp). It begins as a softmax of
// its rows. ε keeps a divisor from 0.
Value doubly_stochastic(const Value& logits, Axis to, Axis from, const Value& epsilon, std::int64_t iterations) {
    const auto divide = [&](const Value& matrix, Axis over) { return matrix / (sum(matrix, over) + epsilon); };
    const Value exponential = exp(logits - detach(max(logits, from)));
    Value matrix = divide(exponential / sum(exponential, from) + epsilon, to);
    for (std::int64_t i = 1; i < iterations; ++i) matrix = divide(divide(matrix, from), to);
    return matrix;
}

}  // namespace

HyperCoefficients hyper_coefficients(Value mix, const HyperScales& scales, Value bias, Axis streams, Axis to,
                                     HyperOptions options) {
    constexpr std::string_view kOp = "hyper_coefficients";
    require_columns(kOp, mix);
    const GraphData& graph = *mix.graph();
    const std::int64_t n = graph.axis(streams.id).extent;
    const std::vector<AxisId> columns = graph.column_axes(graph.node(mix.id()));
    const bool square = n == graph.axis(to.id).extent && !graph.axis(streams.id).is_row && !graph.axis(to.id).is_row;
    if (!square || streams.id == to.id || columns.size() != 1 || graph.axis(columns[0]).extent != n * (n + 2)) {
        fail(ErrorCode::kInvalidGraph,
             "{}({}): of n streams it has n·(n + 2) columns, and the streams two column axes of n; they are {} and {}",
             kOp, mix.description(), graph.axis(streams.id).label(), graph.axis(to.id).label());
    }
    if (options.iterations < 1 || options.iterations > 64) {
        fail(ErrorCode::kInvalidGraph, "{}: {} iterations; give 1 … 64", kOp, options.iterations);
    }
    require_within(kOp, "bias", bias, mix);
    for (const auto& [role, scale] : {std::pair("scales.pre", scales.pre), std::pair("scales.post", scales.post),
                                      std::pair("scales.residual", scales.residual)})
        require_within(kOp, role, scale, mix);
    const Value h = widen(mix);
    const Value b = cast(bias, h.dtype());
    const Axis column{columns[0]};
    const auto part = [&](const Value& scale, const Coord& coord) {
        return index(h, column, coord) * cast(scale, h.dtype()) + index(b, column, coord);
    };
    const auto scalar = [&](std::string_view name, double value) {
        return non_negative_scalar(kOp, mix, name, h.dtype(), value);
    };
    const Value pre = sigmoid(part(scales.pre, streams)) + scalar("pre_eps", options.pre_eps);
    const Value post = sigmoid(part(scales.post, Coord(to) + n)) * scalar("post_scale", options.post_scale);
    const Value logits = part(scales.residual, Coord(to) * n + streams + 2 * n);
    const Value epsilon = scalar("sinkhorn_eps", options.sinkhorn_eps);
    return {pre.named("pre"), post.named("post"),
            doubly_stochastic(logits, to, streams, epsilon, options.iterations).named("mixing")};
}

Value hyper_pre(Value x, Value pre) {
    const Axis streams = streams_of("hyper_pre", x);
    require_numbers("hyper_pre", "pre", pre, x, {streams});
    const Value h = widen(x);
    return cast(sum(h * cast(pre, h.dtype()), streams), x.dtype());
}

Value hyper_post(Value x, Value branch, Value post, Value mixing) {
    constexpr std::string_view kOp = "hyper_post";
    const Axis from = streams_of(kOp, x);
    require_float(kOp, "post", post);
    const Axis to = post.axes().empty() ? from : post.axes().back();
    require_numbers(kOp, "post", post, x, {to});
    require_numbers(kOp, "mixing", mixing, x, {to, from});
    require_numbers(kOp, "branch", branch, x, {x.axes().back()});
    const Value h = widen(x);
    const Value mixed = sum(cast(mixing, h.dtype()) * h, from);
    return cast(mixed + cast(post, h.dtype()) * cast(branch, h.dtype()), x.dtype());
}

AttentionResidual attention_residual(Value states, Value query, const std::optional<Value>& weight,
                                     RmsNormOptions options) {
    constexpr std::string_view kOp = "attention_residual";
    require_columns(kOp, states);
    const GraphData& graph = *states.graph();
    const Axis depth = states.axes().front();
    if (!graph.axis(depth.id).is_row || graph.axis(depth.id).extent == kRuntimeExtent) {
        fail(ErrorCode::kInvalidGraph, "{}({}): the first axis, the layers, must be a row axis of static extent", kOp,
             states.description());
    }
    require_float(kOp, "query", query);
    require_within(kOp, "query", query, states);
    const Value h = widen(states);
    const Value keys = cast(rms_norm(states, weight, options), h.dtype());
    const Value scores = sum(keys * cast(query, h.dtype())).named("scores");
    const Value exponential = exp(scores - detach(max(scores, depth)));
    const Value weights = (exponential / sum(exponential, depth)).named("weights");
    return {cast(sum(h * weights, depth), states.dtype()), weights};
}

}  // namespace rowjit
