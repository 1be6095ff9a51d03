// Losses over a row of logits.
#include <limits>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/logits.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

Value sum_over_rows(const Value& a) {
    GraphData& graph = *a.graph();
    return {a.graph(), graph.add_reduce(Monoid::kSum, a.id(), graph.row_axes(graph.node(a.id())))};
}

// The vocabulary axis, after the checks of both operands.
Axis vocabulary_of(const Value& logits, const Value& target) {
    require_columns("cross_entropy", logits);
    require_within("cross_entropy", "target", target, logits);
    const GraphData& graph = *logits.graph();
    const Node& x = graph.node(logits.id());
    const Node& labels = graph.node(target.id());
    if (graph.column_axes(x).size() != 1) {
        fail(ErrorCode::kInvalidGraph,
             "cross_entropy({}): the logits need one column axis, the vocabulary; "
             "make the others row axes",
             graph.describe(logits.id()));
    }
    if (!is_integer(labels.dtype) || labels.axes != graph.row_axes(x)) {
        fail(ErrorCode::kInvalidGraph,
             "cross_entropy({}): target {} must be i32 or i64 over the row axes of the logits",
             graph.describe(logits.id()), graph.describe(target.id()));
    }
    return Axis{x.axes.back()};
}

Value ignore_index_scalar(const Value& target, std::int64_t ignore_index) {
    if (target.dtype() == i32 && ignore_index != static_cast<std::int32_t>(ignore_index)) {
        fail(ErrorCode::kInvalidGraph, "cross_entropy: ignore_index {} does not fit the i32 target; use i64",
             ignore_index);
    }
    return Graph(target.graph()).scalar("ignore_index", target.dtype(), static_cast<double>(ignore_index));
}

}  // namespace

CrossEntropy cross_entropy(Value logits, Value target, CrossEntropyOptions options) {
    const Axis vocabulary = vocabulary_of(logits, target);
    const auto vocabulary_size = static_cast<double>(logits.graph()->axis(vocabulary.id).extent);
    const LogitTransform transform("cross_entropy", logits, options.softcap, options.temperature);
    const Value z = transform(logits);
    const RowExponentials row = row_exponentials(z);
    const Value log_sum = log(row.row_sum).named("log_sum");
    const Value lse = (row.row_max + log_sum).named("lse");

    // Of z, not of the logits, so that the gradients of both meet before they are rounded, as in torch. The planner reads
    // the target's logit from the tensor and transforms it again, so the row need not stay on chip for it.
    const Value picked = index(z, vocabulary, Coord(target)).named("target_logit");
    const Value negative_log_likelihood = log_sum - (picked - row.row_max);

    Graph graph(logits.graph());
    const Dtype dtype = negative_log_likelihood.dtype();
    const Value counted = (target != ignore_index_scalar(target, options.ignore_index)).named("counted");
    const Value known = target >= 0.0 && target < vocabulary_size;
    const Value faulty = graph.constant(dtype, std::numeric_limits<double>::quiet_NaN());
    const Value row_loss = select(counted, select(known, negative_log_likelihood, faulty), graph.constant(dtype, 0.0));

    if (options.reduction == Reduction::kNone) return {row_loss, lse};
    const Value total = sum_over_rows(row_loss.named("row_loss"));
    if (options.reduction == Reduction::kSum) return {total, lse};
    const Value one = graph.constant(dtype, 1.0);
    const Value count = sum_over_rows(select(counted, one, graph.constant(dtype, 0.0))).named("count");
    return {total.named("total") / count, lse};
}

}  // namespace rowjit
