// Rows as small whole numbers and a scale. The scale is a row reduction and the codes are a map of it, so that a
// planner puts both behind whatever made the row.
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/operands.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

constexpr double kLargestCode = 127;

// To the nearest whole number, halves to even, as torch.round; NaN stays NaN.
Value round_half_even(Value v) {
    const Value up = floor(v + 0.5);
    const Value is_odd = floor(up * 0.5) * 2.0 != up;
    return select((up - v == 0.5) && is_odd, up - 1.0, up);
}

}  // namespace

Quantized quantize(Value x, QuantizeOptions options) {
    require_columns("quantize", x);
    if (options.codes == boolean || options.codes == i64) {
        fail(ErrorCode::kInvalidGraph, "quantize({}): codes of {}; give i32 or a float dtype", x.description(),
             name(options.codes));
    }
    const Value h = widen(x);
    const Value largest = options.blocks ? max(abs(h), x.axes().back()) : max(abs(h));
    const Value scale = (largest.named("largest") / kLargestCode).named("scale");
    const Value code = round_half_even(h / scale);
    // A row of zeros has scale 0: 0/0 is no code.
    const Value zero = Graph(x.graph()).constant(code.dtype(), 0.0);
    return {cast(select(scale == 0.0, zero, code), options.codes), scale};
}

Value dequantize(Value codes, Value scale, Dtype dtype) {
    require_float("dequantize", "scale", scale);
    require_within("dequantize", "scale", scale, codes);
    return cast(cast(codes, scale.dtype()) * scale, dtype);
}

}  // namespace rowjit
