// The norms over the columns of a row: RMS norm with the frameworks' rounding points, and layer norm.
#include "base/fail.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"
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

// The mean over `over`, or over all column axes.
Value mean_over(Value h, std::optional<Axis> over) { return over ? mean(h, *over) : mean(h); }

// r in the wide dtype, from x̂.
Value wide_rsqrt_mean_square(std::string_view op, Value h, double eps, std::optional<Axis> over) {
    const Value mean_square = mean_over(h * h, over).named("mean_square");
    return rsqrt(mean_square + non_negative_scalar(op, h, "eps", h.dtype(), eps)).named("r");
}

// r in x's dtype, each step rounded; eps is added wide, as a framework adds a Python number to a narrow tensor.
Value narrow_rsqrt_mean_square(std::string_view op, Value x, double eps, std::optional<Axis> over) {
    const Value mean_square = cast(mean_over(widen(x * x), over), x.dtype()).named("mean_square");
    const Value wide_eps = non_negative_scalar(op, x, "eps", wide(x.dtype()), eps);
    return rsqrt(cast(widen(mean_square) + wide_eps, x.dtype())).named("r");
}

// The norm over `over`, or over all column axes.
Value rms_norm_as(std::string_view op, Value x, const std::optional<Value>& weight, const RmsNormOptions& options,
                  std::optional<Axis> over = std::nullopt) {
    require_columns(op, x);
    if (weight) {
        require_within(op, "weight", *weight, x);
        require_float(op, "weight", *weight);
    }
    const Dtype dtype = x.dtype();
    if (options.casting == Casting::kNone) {
        const Value normed = (x * narrow_rsqrt_mean_square(op, x, options.eps, over)).named("normed");
        return weight ? product(normed, shifted(*weight, options.offset), dtype) : normed;
    }
    const Value h = widen(x);
    const Value normed = h * wide_rsqrt_mean_square(op, h, options.eps, over);
    if (!weight) return cast(normed, dtype);
    if (options.casting == Casting::kGemma) {
        return cast(normed * shifted(cast(*weight, h.dtype()), options.offset), dtype);
    }
    return product(cast(normed, dtype).named("normed"), shifted(*weight, options.offset), dtype);
}

Value layer_norm_as(std::string_view op, Value x, const std::optional<Value>& weight, const std::optional<Value>& bias,
                    const LayerNormOptions& options) {
    require_columns(op, x);
    for (const auto& [role, operand] : {std::pair{"weight", weight}, std::pair{"bias", bias}}) {
        if (!operand) continue;
        require_within(op, role, *operand, x);
        require_float(op, role, *operand);
    }
    const Value h = widen(x);
    const Value row_mean = mean(h).named("mean");
    const Value centered = (h - row_mean).named("centered");
    // The variance does not depend on the mean to first order: with the mean detached, the backward's two sums need no
    // pass of their own each.
    const Value deviation = h - detach(row_mean);
    const Value variance = mean(deviation * deviation).named("variance");
    const Value eps = non_negative_scalar(op, x, "eps", h.dtype(), options.eps);
    Value y = centered * rsqrt(variance + eps).named("rstd");
    if (weight) y = y * cast(*weight, h.dtype());
    if (bias) y = y + cast(*bias, h.dtype());
    return cast(y, x.dtype());
}

// normed·(1 + scale) + shift in the dtype of all three.
Value modulated(std::string_view op, Value normed, Value scale, Value shift) {
    for (const auto& [role, operand] : {std::pair{"scale", scale}, std::pair{"shift", shift}}) {
        require_within(op, role, operand, normed);
        if (operand.dtype() == normed.dtype()) continue;
        fail(ErrorCode::kInvalidGraph, "{}({}): {} {} must have x's dtype; cast it", op, normed.description(), role,
             operand.description());
    }
    return normed.named("normed") * (scale + 1.0) + shift;
}

// u·rsqrt(mean u² + eps).
Value normed_power(Value u, Value eps) { return u * rsqrt(mean(u * u) + eps).named("r"); }

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
    return layer_norm_as("layer_norm", x, weight, bias, options);
}

AddLayerNorm add_layer_norm(Value x, Value residual, const std::optional<Value>& weight,
                            const std::optional<Value>& bias, LayerNormOptions options) {
    require_columns("add_layer_norm", x);
    require_alike("add_layer_norm", "residual", residual, x);
    const Value sum = (x + residual).named("sum");
    return {sum, layer_norm_as("add_layer_norm", sum, weight, bias, options)};
}

Value group_norm(Value x, const std::optional<Value>& weight, const std::optional<Value>& bias,
                 LayerNormOptions options) {
    return layer_norm_as("group_norm", x, weight, bias, options);
}

Value modulated_rms_norm(Value x, Value scale, Value shift, RmsNormOptions options) {
    return modulated("modulated_rms_norm", rms_norm_as("modulated_rms_norm", x, std::nullopt, options), scale, shift);
}

Value modulated_layer_norm(Value x, Value scale, Value shift, LayerNormOptions options) {
    const Value normed = layer_norm_as("modulated_layer_norm", x, std::nullopt, std::nullopt, options);
    return modulated("modulated_layer_norm", normed, scale, shift);
}

Value gated_rms_norm(Value x, Value gate, const std::optional<Value>& weight, GatedRmsNormOptions options) {
    constexpr std::string_view kOp = "gated_rms_norm";
    require_columns(kOp, x);
    require_alike(kOp, "gate", gate, x);
    if (weight) {
        require_within(kOp, "weight", *weight, x);
        require_float(kOp, "weight", *weight);
    }
    const Dtype dtype = x.dtype();
    const Value g = widen(gate);
    const Value activated = (g * sigmoid(g)).named("activated");
    const bool gate_first = options.order == GateOrder::kGateFirst;
    const Value h = gate_first ? widen(x) * activated : widen(x);
    const Value normed = cast(h * wide_rsqrt_mean_square(kOp, h, options.eps, std::nullopt), dtype).named("normed");
    const Value weighted = weight ? product(normed, *weight, dtype) : normed;
    return gate_first ? weighted : cast(widen(weighted) * activated, dtype);
}

Value l2_norm(Value x, L2NormOptions options) {
    require_columns("l2_norm", x);
    const Value h = widen(x);
    const Value square = sum(h * h).named("square");
    const Value eps = non_negative_scalar("l2_norm", x, "eps", h.dtype(), options.eps);
    if (options.form == L2Form::kRsqrt) return cast(h * rsqrt(square + eps).named("r"), x.dtype());
    // The clamp before the root, so that a row of zeros has the gradient that passes the clamp and not 0·∞.
    return cast(h / sqrt(maximum(square, eps * eps)).named("length"), x.dtype());
}

Value poly_norm(Value x, Value weight, Value bias, PolyNormOptions options) {
    require_columns("poly_norm", x);
    require_float("poly_norm", "weight", weight);
    require_float("poly_norm", "bias", bias);
    const std::vector<Axis> powers = weight.axes();
    if (powers.size() != 1 || Graph(weight.graph()).extent(powers[0]) != 3 || !bias.axes().empty()) {
        fail(ErrorCode::kInvalidGraph, "poly_norm({}): weight {} must be of extent 3 and bias {} of one element",
             x.description(), weight.description(), bias.description());
    }
    const Value h = widen(x);
    const Value eps = non_negative_scalar("poly_norm", x, "eps", h.dtype(), options.eps);
    const auto coefficient = [&](int i) { return cast(index(weight, powers[0], Coord(i)), h.dtype()); };
    const Value y = coefficient(0) * normed_power(h * h * h, eps) + coefficient(1) * normed_power(h * h, eps) +
                    coefficient(2) * normed_power(h, eps);
    return cast(y + cast(bias, h.dtype()), x.dtype());
}

Value dynamic_tanh(Value x, Value alpha, Value weight, Value bias) {
    require_columns("dynamic_tanh", x);
    for (const auto& [role, operand] :
         {std::pair{"alpha", alpha}, std::pair{"weight", weight}, std::pair{"bias", bias}}) {
        require_within("dynamic_tanh", role, operand, x);
        require_float("dynamic_tanh", role, operand);
    }
    const Value h = widen(x);
    const Value bent = tanh(cast(alpha, h.dtype()) * h).named("bent");
    return cast(bent * cast(weight, h.dtype()) + cast(bias, h.dtype()), x.dtype());
}

QueriesAndKeys qk_norm_rope(Value q, Value k, Value q_weight, Value k_weight, Value cos, Value sin, RmsNormOptions norm,
                            RopeOptions rotation) {
    constexpr std::string_view kOp = "qk_norm_rope";
    require_columns(kOp, q);
    require_columns(kOp, k);
    const Value q_normed = rms_norm_as(kOp, q, q_weight, norm, q.axes().back());
    const Value k_normed = rms_norm_as(kOp, k, k_weight, norm, k.axes().back());
    return {rope(q_normed.named("q_normed"), cos, sin, rotation), rope(k_normed.named("k_normed"), cos, sin, rotation)};
}

}  // namespace rowjit
