// Activations, alone and gating a second tensor.
#include <numbers>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

// The order of torch's kernels, which the bits depend on: x·0.5·(1 + erf(x/√2)).
Value gelu_erf(Value h) { return h * 0.5 * (erf(h * (std::numbers::sqrt2 / 2.0)) + 1.0); }

// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
Value gelu_tanh(Value h) {
    const double scale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
    const Value inner = scale * (h + 0.044715 * (h * h * h));
    return 0.5 * h * (tanh(inner) + 1.0);
}

// Computed wide and rounded, as torch.sigmoid.
Value rounded_sigmoid(Value x) { return cast(sigmoid(widen(x)), x.dtype()); }

Value gate_with(std::string_view op, const Value& gate, const Value& up) {
    require_float(op, "gate", gate);
    require_alike(op, "up", up, gate);
    return up;
}

// A packed tensor's last axis, and the axis of each of the two.
struct Packed {
    Axis both;
    Axis one;
    std::int64_t extent;  // of one
};

Packed packed_columns(std::string_view op, const Value& packed) {
    require_columns(op, packed);
    const Axis both = packed.axes().back();
    Graph graph(packed.graph());
    const std::int64_t extent = graph.extent(both);
    if (extent % 2 != 0) {
        fail(ErrorCode::kInvalidGraph, "{}({}): the last axis has {} columns; an even number is needed", op,
             packed.graph()->describe(packed.id()), extent);
    }
    return {both, graph.columns(extent / 2), extent / 2};
}

}  // namespace

Value silu(Value x) {
    require_float("silu", "x", x);
    const Value h = widen(x);
    return cast(h / (exp(-h) + 1.0), x.dtype());
}

Value gelu(Value x, Gelu form) {
    require_float("gelu", "x", x);
    const Value h = widen(x);
    return cast(form == Gelu::kTanh ? gelu_tanh(h) : gelu_erf(h), x.dtype());
}

Value relu(Value x) {
    require_float("relu", "x", x);
    return select(x <= 0.0, Graph(x.graph()).constant(x.dtype(), 0.0), x);
}

Value quick_gelu(Value x) {
    require_float("quick_gelu", "x", x);
    return x * rounded_sigmoid(x * 1.702);
}

Value relu2(Value x) {
    require_float("relu2", "x", x);
    const Value positive = maximum(x, 0.0);
    return positive * positive;
}

Value swiglu(Value gate, Value up) {
    const Value checked = gate_with("swiglu", gate, up);
    return silu(gate).named("activated") * checked;
}

Value geglu(Value gate, Value up, Gelu form) {
    const Value checked = gate_with("geglu", gate, up);
    return gelu(gate, form).named("activated") * checked;
}

Value reglu(Value gate, Value up) {
    const Value checked = gate_with("reglu", gate, up);
    return relu(gate).named("activated") * checked;
}

Value glu(Value value, Value gate) {
    require_float("glu", "gate", gate);
    require_alike("glu", "value", value, gate);
    return cast(widen(value) * sigmoid(widen(gate)), value.dtype());
}

Value clipped_swiglu(Value gate, Value up, ClippedSwigluOptions options) {
    constexpr std::string_view kOp = "clipped_swiglu";
    const Value checked = gate_with(kOp, gate, up);
    const Dtype dtype = gate.dtype();
    const Value limit = positive_scalar(kOp, gate, "limit", dtype, options.limit);
    const Value alpha = non_negative_scalar(kOp, gate, "alpha", dtype, options.alpha);
    // Selects, not minimum and maximum: those give half of the gradient where the operand is the limit.
    const Value g = select(gate > limit, limit, gate);
    const Value below = select(checked > limit, limit, checked);
    const Value u = select(below < -limit, -limit, below);
    return (u + 1.0) * (g * rounded_sigmoid(g * alpha)).named("activated");
}

std::pair<Value, Value> packed_halves(Value packed) {
    const Packed of = packed_columns("packed_halves", packed);
    return {index(packed, of.both, Coord(of.one)).named("gate"),
            index(packed, of.both, Coord(of.one) + of.extent).named("up")};
}

std::pair<Value, Value> packed_pairs(Value packed) {
    const Packed of = packed_columns("packed_pairs", packed);
    return {index(packed, of.both, Coord(of.one) * 2).named("gate"),
            index(packed, of.both, Coord(of.one) * 2 + Coord(1)).named("up")};
}

}  // namespace rowjit
