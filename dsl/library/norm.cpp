// The norms over the columns of a row: RMS norm with the frameworks' rounding points, and layer norm.
#include "dsl/library/operands.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

// round(a·b) in `dtype`, the product taken in the wider of the operands' dtypes, as the frameworks promote.
Value product(Value a, Value b, Dtype dtype) {
    if (a.dtype() == b.dtype()) return cast(a * b, dtype);
    const Dtype both = wide(a.dtype()) == f64 || wide(b.dtype()) == f64 ? f64 : f32;
    return cast(cast(a, both) * cast(b, both), dtype);
}

Value shifted(Value weight, double offset) { return offset == 0 ? weight : weight + offset; }

// r in the wide dtype, from x̂.
Value wide_rsqrt_mean_square(std::string_view op, Value h, double eps) {
    const Value mean_square = mean(h * h).named("mean_square");
    return rsqrt(mean_square + non_negative_scalar(op, h, "eps", h.dtype(), eps)).named("r");
}

// r in x's dtype, each step rounded; eps is added wide, as a framework adds a Python number to a narrow tensor.
Value narrow_rsqrt_mean_square(std::string_view op, Value x, double eps) {
    const Value mean_square = cast(mean(widen(x * x)), x.dtype()).named("mean_square");
    const Value wide_eps = non_negative_scalar(op, x, "eps", wide(x.dtype()), eps);
    return rsqrt(cast(widen(mean_square) + wide_eps, x.dtype())).named("r");
}

Value rms_norm_as(std::string_view op, Value x, const std::optional<Value>& weight, const RmsNormOptions& options) {
    require_columns(op, x);
    if (weight) {
        require_within(op, "weight", *weight, x);
        require_float(op, "weight", *weight);
    }
    const Dtype dtype = x.dtype();
    if (options.casting == Casting::kNone) {
        const Value normed = (x * narrow_rsqrt_mean_square(op, x, options.eps)).named("normed");
        return weight ? product(normed, shifted(*weight, options.offset), dtype) : normed;
    }
    const Value h = widen(x);
    const Value normed = h * wide_rsqrt_mean_square(op, h, options.eps);
    if (!weight) return cast(normed, dtype);
    if (options.casting == Casting::kGemma) {
        return cast(normed * shifted(cast(*weight, h.dtype()), options.offset), dtype);
    }
    return product(cast(normed, dtype).named("normed"), shifted(*weight, options.offset), dtype);
}

}  // namespace

Value rms_norm(Value x, const std::optional<Value>& weight, RmsNormOptions options) {
    return rms_norm_as("rms_norm", x, weight, options);
}

AddRmsNorm add_rms_norm(Value x, Value residual, const std::optional<Value>& weight, RmsNormOptions options) {
    require_columns("add_rms_norm", x);
    require_alike("add_rms_norm", "residual", residual, x);
    const Value sum = (x + residual).named("sum");
    return {sum, rms_norm_as("add_rms_norm", sum, weight, options)};
}

Value layer_norm(Value x, const std::optional<Value>& weight, const std::optional<Value>& bias,
                 LayerNormOptions options) {
    require_columns("layer_norm", x);
    for (const auto& [role, operand] : {std::pair{"weight", weight}, std::pair{"bias", bias}}) {
        if (!operand) continue;
        require_within("layer_norm", role, *operand, x);
        require_float("layer_norm", role, *operand);
    }
    const Value h = widen(x);
    const Value row_mean = mean(h).named("mean");
    const Value centered = (h - row_mean).named("centered");
    // The variance does not depend on the mean to first order: with the mean detached, the backward's two sums need no
    // pass of their own each.
    const Value deviation = h - detach(row_mean);
    const Value variance = mean(deviation * deviation).named("variance");
    const Value eps = non_negative_scalar("layer_norm", x, "eps", h.dtype(), options.eps);
    Value y = centered * rsqrt(variance + eps).named("rstd");
    if (weight) y = y * cast(*weight, h.dtype());
    if (bias) y = y + cast(*bias, h.dtype());
    return cast(y, x.dtype());
}

}  // namespace rowjit
