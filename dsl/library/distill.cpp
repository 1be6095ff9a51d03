// Distances between the distributions of a student and of its teacher.
#include <functional>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/logits.h"
#include "dsl/library/operands.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

// A distribution over a row: p and log p, in the wide dtype.
struct Distribution {
    Value log_p;
    Value p;
};

Distribution distribution_of(const Value& x, const LogitTransform& transform, const DistillationOptions& options) {
    const Value z = transform(x);
    if (options.log_probabilities) return {z, exp(z)};
    const RowExponentials row = row_exponentials(z);
    return {row.shifted - log(row.row_sum).named("log_sum"), row.exp / row.row_sum};
}

// Σ p (log p − log q): a class of p = 0 adds 0, and so has no part in the gradient.
Value divergence(const Distribution& p, const Value& log_q) {
    const Value zero = Graph(p.p.graph()).constant(p.p.dtype(), 0.0);
    return sum(select(p.p == 0.0, zero, p.p * (p.log_p - log_q)));
}

struct Pair {
    Distribution student;
    Distribution teacher;
};

Value row_sum_of_jsd(const Pair& pair, double beta) {
    if (beta == 0) return divergence(pair.teacher, pair.student.log_p);
    if (beta == 1) return divergence(pair.student, pair.teacher.log_p);
    const Value b = Graph(pair.student.p.graph()).scalar("beta", pair.student.p.dtype(), beta);
    const Value rest = 1.0 - b;
    const Value log_m = log(b * pair.teacher.p + rest * pair.student.p).named("log_mixture");
    return b * divergence(pair.teacher, log_m) + rest * divergence(pair.student, log_m);
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

Value kl_div(Value student, Value teacher, std::optional<Value> target, DistillationOptions options) {
    return distance("kl_div", student, teacher, target, options,
                    [](const Pair& pair) { return divergence(pair.teacher, pair.student.log_p); });
}

Value reverse_kl(Value student, Value teacher, std::optional<Value> target, DistillationOptions options) {
    return distance("reverse_kl", student, teacher, target, options,
                    [](const Pair& pair) { return divergence(pair.student, pair.teacher.log_p); });
}

Value jsd(Value student, Value teacher, std::optional<Value> target, double beta, DistillationOptions options) {
    if (!(beta >= 0 && beta <= 1)) {
        fail(ErrorCode::kInvalidGraph, "jsd: beta is {}; give a number from 0 to 1", beta);
    }
    return distance("jsd", student, teacher, target, options,
                    [&](const Pair& pair) { return row_sum_of_jsd(pair, beta); });
}

Value tvd(Value student, Value teacher, std::optional<Value> target, DistillationOptions options) {
    return distance("tvd", student, teacher, target, options,
                    [](const Pair& pair) { return 0.5 * sum(abs(pair.teacher.p - pair.student.p)); });
}

Value cosine_distance(Value student, Value teacher, std::optional<Value> target, DistillationOptions options) {
    constexpr std::string_view kOp = "cosine_distance";
    require_pair(kOp, student, teacher);
    const Value s = widen(student);
    const Value t = cast(teacher, s.dtype());
    const Value product = maximum(sqrt(sum(s * s)), 1e-12) * maximum(sqrt(sum(t * t)), 1e-12);
    return over_rows(kOp, 1.0 - sum(s * t) / product, student, target, options);
}

}  // namespace rowjit
