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
Value gelu_erf(Value h) { return h * 0.5 * (erf(h * std::numbers::sqrt2 / 2.0) + 1.0); }

// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
Value gelu_tanh(Value h) {
    const double scale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
    const Value inner = scale * (h + 0.044715 * (h * h * h));
    return 0.5 * h * (tanh(inner) + 1.0);
}

Value gate_with(std::string_view op, const Value& gate, const Value& up) {
    require_float(op, "gate", gate);
    require_alike(op, "up", up, gate);
    return up;
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

std::pair<Value, Value> packed_halves(Value packed) {
    require_columns("packed_halves", packed);
    const Axis both = packed.axes().back();
    Graph graph(packed.graph());
    const std::int64_t extent = graph.extent(both);
    if (extent % 2 != 0) {
        fail(ErrorCode::kInvalidGraph, "packed_halves({}): the last axis has {} columns; an even number is needed",
             packed.graph()->describe(packed.id()), extent);
    }
    const Axis half = graph.columns(extent / 2);
    return {index(packed, both, Coord(half)).named("gate"), index(packed, both, Coord(half) + extent / 2).named("up")};
}

}  // namespace rowjit
