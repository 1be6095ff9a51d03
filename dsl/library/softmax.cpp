// Softmax and its logarithms over a row.
#include <limits>

#include "dsl/library/logits.h"
#include "dsl/library/operands.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

RowExponentials exponentials_of(std::string_view op, const Value& x, const SoftmaxOptions& options) {
    require_columns(op, x);
    return row_exponentials(LogitTransform(op, x, options.softcap, options.temperature)(x));
}

Value rounded(const Value& wide_value, const Value& x, const SoftmaxOptions& options) {
    return cast(wide_value, options.result.value_or(x.dtype()));
}

}  // namespace

LogitTransform::LogitTransform(std::string_view op, const Value& x, std::optional<double> softcap,
                               std::optional<double> temperature) {
    const Dtype dtype = wide(x.dtype());
    if (softcap) softcap_ = positive_scalar(op, x, "softcap", dtype, *softcap);
    if (temperature) temperature_ = positive_scalar(op, x, "temperature", dtype, *temperature);
}

Value LogitTransform::operator()(const Value& x) const {
    Value z = widen(x);
    if (softcap_) z = tanh(z / *softcap_) * *softcap_;
    if (temperature_) z = z / *temperature_;
    return z;
}

RowExponentials row_exponentials(const Value& z) {
    // No result depends on the maximum but for rounding, and what would flow through it is a sum that cancels.
    const Value row_max = detach(max(z).named("row_max"));
    const Value shifted = z - row_max;
    const Value e = exp(shifted).named("e");
    return {row_max, shifted, e, sum(e).named("row_sum")};
}

Value softmax(Value x, SoftmaxOptions options) {
    const RowExponentials row = exponentials_of("softmax", x, options);
    return rounded(row.exp / row.row_sum, x, options);
}

Value log_softmax(Value x, SoftmaxOptions options) {
    const RowExponentials row = exponentials_of("log_softmax", x, options);
    return rounded(row.shifted - log(row.row_sum).named("log_sum"), x, options);
}

Value logsumexp(Value x, SoftmaxOptions options) {
    const RowExponentials row = exponentials_of("logsumexp", x, options);
    const Value finite = row.row_max + log(row.row_sum).named("log_sum");
    const Value is_infinite = abs(row.row_max) == std::numeric_limits<double>::infinity();
    return rounded(select(is_infinite, row.row_max, finite), x, options);
}

}  // namespace rowjit
