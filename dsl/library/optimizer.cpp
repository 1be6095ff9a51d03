// Optimizer steps: one pass over a parameter, its gradient and its state, written to overwrite what they replace.
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/operands.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

// The gradient has the parameter's dtype and axes; a state its axes and the wide dtype.
void require_step(std::string_view op, const Value& parameter, const Value& gradient,
                  std::initializer_list<Value> states) {
    require_float(op, "parameter", parameter);
    require_alike(op, "gradient", gradient, parameter);
    for (const Value& state : states) {
        require_within(op, "state", state, parameter);
        if (state.dtype() == wide(parameter.dtype()) && state.axes().size() == parameter.axes().size()) continue;
        fail(ErrorCode::kInvalidGraph, "{}({}): the state {} must be f32 (f64 of f64) over the parameter's axes", op,
             parameter.description(), state.description());
    }
}

// Makes an option of a step a launch scalar, wide as the step computes.
auto numbers_of(std::string_view op, const Value& parameter) {
    return [op, parameter](std::string_view name, double value) {
        return non_negative_scalar(op, parameter, name, wide(parameter.dtype()), value);
    };
}

}  // namespace

SgdStep sgd_step(Value parameter, Value gradient, Value momentum, SgdOptions options) {
    constexpr std::string_view kOp = "sgd_step";
    require_step(kOp, parameter, gradient, {momentum});
    const auto number = numbers_of(kOp, parameter);
    const Value rate = number("learning_rate", options.learning_rate);
    const Value decay = number("weight_decay", options.weight_decay);
    const Value factor = number("momentum_factor", options.momentum_factor);
    const Value p = widen(parameter);
    const Value g = widen(gradient) + decay * p;
    const Value moved = (factor * momentum + g).named("moved");
    const Value step = options.nesterov ? g + factor * moved : moved;
    return {cast(p - rate * step, parameter.dtype()), moved};
}

AdamWStep adamw_step(Value parameter, Value gradient, Value first_moment, Value second_moment, AdamWOptions options) {
    constexpr std::string_view kOp = "adamw_step";
    require_step(kOp, parameter, gradient, {first_moment, second_moment});
    const Dtype dtype = wide(parameter.dtype());
    const auto number = numbers_of(kOp, parameter);
    const Value rate = number("learning_rate", options.learning_rate);
    const Value beta1 = number("beta1", options.beta1);
    const Value beta2 = number("beta2", options.beta2);
    const Value eps = number("eps", options.eps);
    const Value decay = number("weight_decay", options.weight_decay);
    const Value correction1 = positive_scalar(kOp, parameter, "correction1", dtype, options.correction1);
    const Value correction2 = positive_scalar(kOp, parameter, "correction2", dtype, options.correction2);
    const Value g = widen(gradient);
    const Value p = widen(parameter) * (1.0 - rate * decay);
    const Value m = (first_moment + (1.0 - beta1) * (g - first_moment)).named("m");
    // A mean of squares has no sign: one that came out as −0 or below must not end in a NaN parameter.
    const Value v = (beta2 * abs(second_moment) + (1.0 - beta2) * (g * g)).named("v");
    const Value denominator = sqrt(v) / sqrt(correction2) + eps;
    return {cast(p - rate / correction1 * (m / denominator), parameter.dtype()), m, v};
}

LionStep lion_step(Value parameter, Value gradient, Value momentum, LionOptions options) {
    constexpr std::string_view kOp = "lion_step";
    require_step(kOp, parameter, gradient, {momentum});
    const Dtype dtype = wide(parameter.dtype());
    const auto number = numbers_of(kOp, parameter);
    const Value rate = number("learning_rate", options.learning_rate);
    const Value beta1 = number("beta1", options.beta1);
    const Value beta2 = number("beta2", options.beta2);
    const Value decay = number("weight_decay", options.weight_decay);
    const Value g = widen(gradient);
    const Value mixed = beta1 * momentum + (1.0 - beta1) * g;
    const Value zero = Graph(parameter.graph()).constant(dtype, 0.0);
    const Value turned = widen(parameter) * (1.0 - rate * decay);
    const Value step = select(mixed > 0.0, rate, select(mixed < 0.0, -rate, zero));
    return {cast(turned - step, parameter.dtype()), beta2 * momentum + (1.0 - beta2) * g};
}

Value gradient_norm(Value gradient) {
    require_columns("gradient_norm", gradient);
    const Value x = widen(gradient);
    return sqrt(sum_over_rows(sum(x * x))).named("norm");
}

Value clip_gradient(Value gradient, Value norm, double max_norm) {
    constexpr std::string_view kOp = "clip_gradient";
    constexpr double kEps = 1e-6;  // PyTorch's
    require_float(kOp, "gradient", gradient);
    require_float(kOp, "norm", norm);
    if (!norm.axes().empty()) {
        fail(ErrorCode::kInvalidGraph, "{}: the norm {} must be one number", kOp, norm.description());
    }
    const Value x = widen(gradient);
    const Value most = non_negative_scalar(kOp, gradient, "max_norm", x.dtype(), max_norm);
    const Value factor = minimum(most / (cast(norm, x.dtype()) + kEps), 1.0).named("factor");
    return cast(x * factor, gradient.dtype());
}

}  // namespace rowjit
