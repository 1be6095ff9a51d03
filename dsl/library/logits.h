// A row of logits made ready for an exponential: what softmax and the losses share.
#pragma once

#include <optional>
#include <string_view>

#include "rowjit/graph.h"
#include "rowjit/library.h"

namespace rowjit {

// z = (softcap·tanh(x̂/softcap))/temperature, each step only where asked for. A value that is one of the row's logits
// goes through the same steps, so the scalars are made once and kept here.
class LogitTransform {
  public:
    LogitTransform(std::string_view op, const Value& x, std::optional<double> softcap,
                   std::optional<double> temperature);
    Value operator()(const Value& x) const;

  private:
    std::optional<Value> softcap_;
    std::optional<Value> temperature_;
};

// The statistics of a row of z over its columns. They are written the way the planner recognises them when a row is to
// be read once: max z, and the sum of exp(z − max z).
struct RowExponentials {
    Value row_max;
    Value shifted;  // z − max z
    Value exp;      // exp(z − max z)
    Value row_sum;  // Σ exp(z − max z)
};

RowExponentials row_exponentials(const Value& z);

// z of a softmax: transformed, biased and masked.
Value masked_logits(std::string_view op, const Value& x, const SoftmaxOptions& options,
                    const SoftmaxOperands& operands);

// max z + log Σ exp(z − max z), and max z itself where that is infinite.
Value log_sum_exp(const RowExponentials& row);

// selective_log_probability of rows whose counting and transform are made already: `in_place` as for
// CrossEntropyOptions.
SelectiveLogProbability log_probability_of(std::string_view op, const Value& logits, const Value& target,
                                           const Value& counted, const LogitTransform& transform, bool in_place);

}  // namespace rowjit
