// Distances between the distributions of a student and of its teacher.
#include <functional>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/logits.h"
#include "dsl/library/operands.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

// A distribution over a row, in the wide dtype: p = weight / sum, and log p = log_weight − log sum. The sum lies
// outside of what is taken over the row, which so waits for no other sum. Log-probabilities have none, and need not add
// up to 1.
struct Distribution {
    Value log_weight;
    Value weight;
    std::optional<Value> sum;

    Value p() const { return sum ? weight / *sum : weight; }
};

Distribution distribution_of(const Value& x, const LogitTransform& transform, const DistillationOptions& options) {
    const Value z = transform(x);
    if (options.log_probabilities) return {z, exp(z), std::nullopt};
    const RowExponentials row = row_exponentials(z);
    return {row.shifted, row.exp, row.row_sum};
}

// Σ p (log p − log q): a class of p = 0 adds 0, and so has no part in the gradient. Where p adds up to 1 nothing flows
// through log p, as Σ p d(log p) = d Σ p = 0: computed, it would be a difference of what is nearly the same. Of two
// sums the logarithm of the quotient is exact where theirs lose what the divergence is made of. What is chosen is the
// factor, so that the product may be added without a rounding of its own.
Value divergence(const Distribution& p, const Distribution& q) {
    const Value zero = Graph(p.weight.graph()).constant(p.weight.dtype(), 0.0);
    const Value log_ratio = (p.sum ? detach(p.log_weight) : p.log_weight) - q.log_weight;
    const Value total = sum(p.weight * select(p.weight == 0.0, zero, log_ratio));
    return p.sum ? total / *p.sum + log(*q.sum / detach(*p.sum)) : total;
}

struct Pair {
    Distribution student;
    Distribution teacher;
};

// log(q/p), within what f32's exponentials can tell from nothing, also where neither has a class. What both sums are
// off by moves all of it alike, and a divergence from a mixture by no more than the part of it that they are off by.
Value log_ratio(const Distribution& q, const Distribution& p) {
    constexpr double kLeastWeight = -60;
    constexpr double kMost = 80;
    const auto number = [&](double value) { return Graph(p.weight.graph()).constant(p.weight.dtype(), value); };
    Value ratio = q.log_weight - maximum(p.log_weight, number(kLeastWeight));
    if (p.sum) ratio = ratio + log(*p.sum / *q.sum);
    return minimum(maximum(ratio, number(-kMost)), number(kMost));
}

// β Σ p log(p/m) + (1 − β) Σ q log(q/m) of m = β·p + (1 − β)·q. One logarithm has both, that of m/p, which is 1 and a
// little of distributions that are alike: log m itself would be off by a part of log m, and that of a weight that m is
// made of by all that its exponential is off by, where the divergence is the square of their difference. Nothing flows
// through either: in both together it is Σ m d(log m), and Σ p d(log p).
Value row_sum_of_jsd(const Pair& pair, double beta) {
    if (beta == 0) return divergence(pair.teacher, pair.student);
    if (beta == 1) return divergence(pair.student, pair.teacher);
    const auto& [q, p] = pair;
    const Value b = Graph(p.weight.graph()).scalar("beta", p.weight.dtype(), beta);
    const Value rest = 1.0 - b;
    const Value ratio = detach(log_ratio(q, p)).named("log_ratio");
    // 1 − (1 − β) is what adds up to 1 with 1 − β: β itself may lack 2^-25 of that, and m would where p = q.
    const Value mixture = detach(log((1.0 - rest) + rest * exp(ratio))).named("log_mixture");
    const Value of_p = sum(p.weight * mixture);
    const Value of_q = sum(q.weight * (ratio - mixture));
    return p.sum ? rest * (of_q / *q.sum) - b * (of_p / *p.sum) : rest * of_q - b * of_p;
}

void require_pair(std::string_view op, const Value& student, const Value& teacher) {
    require_columns(op, student);
    require_float(op, "teacher", teacher);
    require_within(op, "teacher", teacher, student);
    require_within(op, "student", student, teacher);
}

Value over_rows(std::string_view op, const Value& row_loss, const Value& student, const std::optional<Value>& target,
                const DistillationOptions& options) {
    const Dtype dtype = row_loss.dtype();
    if (!target) return reduced(row_loss, number_of_rows(student, dtype), options.reduction);
    const Value counted = counted_rows(op, student, *target, options.ignore_index);
    Graph graph(row_loss.graph());
    const Value zero = graph.constant(dtype, 0.0);
    const Value count = sum_over_rows(select(counted, graph.constant(dtype, 1.0), zero)).named("count");
    return reduced(select(counted, row_loss, zero).named("row_loss"), count, options.reduction);
}

// The loss of `row_loss` of the two distributions.
Value distance(std::string_view op, const Value& student, const Value& teacher, const std::optional<Value>& target,
               const DistillationOptions& options, const std::function<Value(const Pair&)>& row_loss) {
    require_pair(op, student, teacher);
    if (options.log_probabilities && options.temperature) {
        fail(ErrorCode::kInvalidGraph, "{}: a temperature divides logits; give none with log_probabilities", op);
    }
    const Dtype dtype = wide(student.dtype()) == f64 || wide(teacher.dtype()) == f64 ? f64 : f32;
    const LogitTransform transform(op, cast(student, dtype), std::nullopt, options.temperature);
    const Pair pair = {distribution_of(cast(student, dtype), transform, options),
                       distribution_of(cast(teacher, dtype), transform, options)};
    return over_rows(op, row_loss(pair), student, target, options);
}

}  // namespace

Value kl_div(Value student, Value teacher, const std::optional<Value>& target, DistillationOptions options) {
    return distance("kl_div", student, teacher, target, options,
                    [](const Pair& pair) { return divergence(pair.teacher, pair.student); });
}

Value reverse_kl(Value student, Value teacher, const std::optional<Value>& target, DistillationOptions options) {
    return distance("reverse_kl", student, teacher, target, options,
                    [](const Pair& pair) { return divergence(pair.student, pair.teacher); });
}

Value jsd(Value student, Value teacher, const std::optional<Value>& target, double beta, DistillationOptions options) {
    if (!(beta >= 0 && beta <= 1)) {
        fail(ErrorCode::kInvalidGraph, "jsd: beta is {}; give a number from 0 to 1", beta);
    }
    return distance("jsd", student, teacher, target, options,
                    [&](const Pair& pair) { return row_sum_of_jsd(pair, beta); });
}

Value tvd(Value student, Value teacher, const std::optional<Value>& target, DistillationOptions options) {
    return distance("tvd", student, teacher, target, options,
                    [](const Pair& pair) { return 0.5 * sum(abs(pair.teacher.p() - pair.student.p())); });
}

Value cosine_distance(Value student, Value teacher, const std::optional<Value>& target, DistillationOptions options) {
    constexpr std::string_view kOp = "cosine_distance";
    require_pair(kOp, student, teacher);
    const Value s = widen(student);
    const Value t = cast(teacher, s.dtype());
    const Value product = maximum(sqrt(sum(s * s)), 1e-12) * maximum(sqrt(sum(t * t)), 1e-12);
    return over_rows(kOp, 1.0 - sum(s * t) / product, student, target, options);
}

}  // namespace rowjit
