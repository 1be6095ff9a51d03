// Optimizer steps as rows of the registry. Their results overwrite what they replace.
#include "dsl/graph.h"
#include "dsl/library/rows.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

Dtype state_dtype(Dtype dtype) { return dtype == f64 ? f64 : f32; }

// parameter, gradient and the states of the op's row.
template <int kStates>
Results declare_step(Graph& graph, const OpRequest& request, const OptionValues&) {
    Results operands = {rows_by_columns(graph, "parameter", request), rows_by_columns(graph, "gradient", request)};
    const OpRequest state = {request.columns, state_dtype(request.dtype), {}};
    if (kStates == 1) operands.push_back(rows_by_columns(graph, "momentum", state));
    if (kStates == 2) {
        operands.push_back(rows_by_columns(graph, "first_moment", state));
        operands.push_back(rows_by_columns(graph, "second_moment", state));
    }
    return operands;
}

Results apply_sgd_step(Operands in, const OptionValues& options) {
    const SgdStep step = sgd_step(in[0], in[1], in[2],
                                  {.learning_rate = options.number("learning_rate"),
                                   .momentum_factor = options.number("momentum_factor"),
                                   .weight_decay = options.number("weight_decay"),
                                   .nesterov = options.flag("nesterov")});
    return {step.parameter, step.momentum};
}

Results apply_adamw_step(Operands in, const OptionValues& options) {
    const AdamWStep step = adamw_step(in[0], in[1], in[2], in[3],
                                      {.learning_rate = options.number("learning_rate"),
                                       .beta1 = options.number("beta1"),
                                       .beta2 = options.number("beta2"),
                                       .eps = options.number("eps"),
                                       .weight_decay = options.number("weight_decay"),
                                       .correction1 = options.number("correction1"),
                                       .correction2 = options.number("correction2")});
    return {step.parameter, step.first_moment, step.second_moment};
}

Results apply_lion_step(Operands in, const OptionValues& options) {
    const LionStep step = lion_step(in[0], in[1], in[2],
                                    {.learning_rate = options.number("learning_rate"),
                                     .beta1 = options.number("beta1"),
                                     .beta2 = options.number("beta2"),
                                     .weight_decay = options.number("weight_decay")});
    return {step.parameter, step.momentum};
}

Results apply_gradient_norm(Operands in, const OptionValues&) { return {gradient_norm(in[0])}; }

Results declare_gradient(Graph& graph, const OpRequest& request, const OptionValues&) {
    return {rows_by_columns(graph, "gradient", request)};
}

Results declare_clip_gradient(Graph& graph, const OpRequest& request, const OptionValues&) {
    return {rows_by_columns(graph, "gradient", request), graph.input("norm", state_dtype(request.dtype), {})};
}

Results apply_clip_gradient(Operands in, const OptionValues& options) {
    return {clip_gradient(in[0], in[1], options.number("max_norm"))};
}

constexpr OperandInfo kParameter = {"parameter", kRow, "dtype", true, true};
constexpr OperandInfo kGradient = {"gradient", kRow, "dtype", true, true};
constexpr OperandInfo kMomentum = {"momentum", kRow, "f32", true, true};

OptionInfo number(std::string_view name, std::string_view value, std::string_view meaning) {
    return {name, OptionType::kNumber, value, "", false, meaning};
}

}  // namespace

std::vector<CompositeInfo> optimizer_rows() {
    const OptionInfo decay = number("weight_decay", "0", "pulls the parameter to zero");
    return {
        {"sgd_step",
         "stochastic gradient descent with momentum",
         "m = μ·momentum + gradient + λ·parameter; parameter − η·m, or with Nesterov's look-ahead",
         "hidden size",
         {kParameter, kGradient, kMomentum},
         {"new_parameter", "new_momentum"},
         {number("learning_rate", "1e-3", "η"),
          number("momentum_factor", "0.9", "μ"),
          decay,
          {"nesterov", OptionType::kFlag, "false", "", false, "Nesterov's look-ahead"}},
         declare_step<1>,
         apply_sgd_step,
         {"parameter", "momentum"}},
        {"adamw_step",
         "Adam with decoupled weight decay",
         "parameter·(1 − η·λ) − η/c₁·m / (√v/√c₂ + eps), m and v the running means of the gradient and its square",
         "hidden size",
         {kParameter, kGradient, {"first_moment", kRow, "f32", true, true}, {"second_moment", kRow, "f32", true, true}},
         {"new_parameter", "new_first_moment", "new_second_moment"},
         {number("learning_rate", "1e-3", "η"), number("beta1", "0.9", "how much of m remains"),
          number("beta2", "0.999", "how much of v remains"), number("eps", "1e-8", "added to the root"),
          number("weight_decay", "1e-2", "λ"), number("correction1", "0.1", "c₁ = 1 − beta1^step, of a launch"),
          number("correction2", "1e-3", "c₂ = 1 − beta2^step, of a launch")},
         declare_step<2>,
         apply_adamw_step,
         {"parameter", "first_moment", "second_moment"}},
        {"lion_step",
         "Lion: the sign of an interpolated momentum",
         "parameter·(1 − η·λ) − η·sign(β₁·m + (1 − β₁)·gradient); m' = β₂·m + (1 − β₂)·gradient",
         "hidden size",
         {kParameter, kGradient, kMomentum},
         {"new_parameter", "new_momentum"},
         {number("learning_rate", "1e-4", "η"), number("beta1", "0.9", "of the step"),
          number("beta2", "0.99", "of what remains"), decay},
         declare_step<1>,
         apply_lion_step,
         {"parameter", "momentum"}},
        {"gradient_norm",
         "the Euclidean norm of a gradient",
         "norm = √Σ gradient² over all elements",
         "hidden size",
         {kGradient},
         {"norm"},
         {},
         declare_gradient,
         apply_gradient_norm},
        {"clip_gradient",
         "a gradient scaled so that the norm of all is at most max_norm",
         "y = gradient·min(max_norm / (norm + 1e-6), 1)",
         "hidden size",
         {kGradient, {"norm", "{}", "f32", true, true}},
         {"y"},
         {number("max_norm", "1", "the greatest norm")},
         declare_clip_gradient,
         apply_clip_gradient,
         {"gradient"}},
    };
}

}  // namespace rowjit
