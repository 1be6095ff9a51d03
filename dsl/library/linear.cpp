// Losses of a head's logits: a matrix product and the loss's own expression. That the logits are never held whole is
// the compiler's doing, not written here.
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/logits.h"
#include "dsl/library/operands.h"
#include "rowjit/library.h"

namespace rowjit {

Value linear(Value hidden, Value weight, const std::optional<Value>& bias) {
    constexpr std::string_view kOp = "linear";
    require_columns(kOp, hidden);
    require_columns(kOp, weight);
    const GraphData& graph = *hidden.graph();
    const AxisId width = graph.node(hidden.id()).axes.back();
    const std::vector<AxisId> weight_columns = graph.column_axes(graph.node(weight.id()));
    if (weight_columns.size() != 2 || weight_columns[1] != width) {
        fail(ErrorCode::kInvalidGraph, "linear({}): weight {} must be {{outputs, {}}}, column axes both; declare it so",
             graph.describe(hidden.id()), weight.description(), graph.axis(width).label());
    }
    Value product = matmul(hidden, weight, {Axis{width}}).named("logits");
    if (!bias) return product;
    require_within(kOp, "bias", *bias, product);
    return (product + *bias).named("biased_logits");
}

CrossEntropy fused_linear_cross_entropy(Value hidden, Value weight, Value target, const std::optional<Value>& bias,
                                        CrossEntropyOptions options, CrossEntropyWeights weights) {
    options.in_place = true;  // the logits' gradient overwrites them
    return cross_entropy(linear(hidden, weight, bias), target, options, std::move(weights));
}

FusedLogProbability fused_linear_log_probability(const Head& policy, Value target, const std::optional<Head>& reference,
                                                 const CrossEntropyOptions& options) {
    constexpr std::string_view kOp = "fused_linear_log_probability";
    const Value logits = linear(policy.hidden, policy.weight, policy.bias);
    const LogitTransform transform(kOp, logits, options.softcap, options.temperature);
    FusedLogProbability result;
    result.counted = counted_rows(kOp, logits, target, options.ignore_index);
    const SelectiveLogProbability scored = log_probability_of(kOp, logits, target, result.counted, transform, true);
    result.logp = scored.logp;
    result.entropy = scored.entropy;
    if (!reference) return result;
    const Value others = linear(reference->hidden, reference->weight, reference->bias);
    result.reference = log_probability_of(kOp, others, target, result.counted, transform, true).logp;
    return result;
}

}  // namespace rowjit
#include <utility>
