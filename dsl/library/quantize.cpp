// Rows as small whole numbers and a scale. The scale is a row reduction and the codes are a map of it, so that a
// planner puts both behind whatever made the row.
#include <array>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/operands.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

struct CodeRow {
    Dtype dtype;
    double largest;
};

// −128 is left out, so that a code's negation is one.
constexpr std::array kCodes = {CodeRow{i8, 127}, CodeRow{e4m3, 448}, CodeRow{e5m2, 57344}};

double largest_code(Value x, Dtype codes) {
    for (const CodeRow& row : kCodes) {
        if (row.dtype == codes) return row.largest;
    }
    fail(ErrorCode::kInvalidGraph, "quantize({}): codes of {}; give i8, e4m3 or e5m2", x.description(), name(codes));
}

}  // namespace

Quantized quantize(Value x, QuantizeOptions options) {
    require_columns("quantize", x);
    const double greatest = largest_code(x, options.codes);
    const Value h = widen(x);
    const Value largest = options.blocks ? max(abs(h), x.axes().back()) : max(abs(h));
    const Value scale = (largest.named("largest") / greatest).named("scale");
    // A row of zeros has scale 0: 0/0 is no code. Where the scale is subnormal it is far from exact, hence the bounds.
    const Value zero = Graph(x.graph()).constant(h.dtype(), 0.0);
    const Value scaled = select(scale == 0.0, zero, h / scale);
    const Value code = minimum(maximum(options.codes == i8 ? round(scaled) : scaled, -greatest), greatest);
    return {cast(code, options.codes), scale};
}

Value dequantize(Value codes, Value scale, Dtype dtype) {
    require_float("dequantize", "scale", scale);
    require_within("dequantize", "scale", scale, codes);
    return cast(cast(codes, scale.dtype()) * scale, dtype);
}

}  // namespace rowjit
