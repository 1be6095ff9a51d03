// Losses over a row of logits and what it is meant to be: cross-entropy in all its forms, the log-probability of one
// class, and cross-entropy of a vocabulary that is divided over ranks.
#include <cmath>
#include <limits>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/logits.h"
#include "dsl/library/operands.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

// The vocabulary axis of the logits.
Axis vocabulary_of(std::string_view op, const Value& logits) {
    require_columns(op, logits);
    const GraphData& graph = *logits.graph();
    const Node& x = graph.node(logits.id());
    if (graph.column_axes(x).size() != 1) {
        fail(ErrorCode::kInvalidGraph,
             "{}({}): the logits need one column axis, the vocabulary; make the others row axes", op,
             graph.describe(logits.id()));
    }
    return Axis{x.axes.back()};
}

// `value` of the rows that count: 0 for the others, and NaN where the target is no class.
Value of_counted_rows(const Value& value, const Value& counted, const Value& target, std::int64_t vocabulary) {
    Graph graph(value.graph());
    const Value known = target >= 0.0 && target < static_cast<double>(vocabulary);
    const Value faulty = graph.constant(value.dtype(), std::numeric_limits<double>::quiet_NaN());
    return select(counted, select(known, value, faulty), graph.constant(value.dtype(), 0.0));
}

// A row of z and what all losses over it are made of.
struct LossRow {
    Axis vocabulary;
    std::int64_t classes;
    Value z;
    RowExponentials row;
    Value log_sum;

    Value entropy() const {
        // Where e is 0, z − max z may be −∞, and 0 is what the class adds.
        const Value zero = Graph(z.graph()).constant(z.dtype(), 0.0);
        const Value weighted = select(row.exp > 0.0, row.exp * row.shifted, zero);
        return log_sum - sum(weighted) / row.row_sum;
    }

    Value argmax() const {
        Graph graph(z.graph());
        // As top_k writes the first place, which the planner knows.
        const Value greatest = z == row.row_max || (row.row_max != row.row_max && z != z);
        return min(select(greatest, graph.iota(vocabulary), graph.constant(i32, static_cast<double>(classes))));
    }

    // lse − z[target]. Of z, not of the logits, so that the gradients of both meet before they are rounded, as in
    // torch.
    Value negative_log_likelihood(const Value& target, bool in_place) const {
        const Value picked = in_place ? picked_in_pass(target) : index(z, vocabulary, Coord(target));
        return log_sum - (picked.named("target_logit") - row.row_max);
    }

    // Else the planner reads the target's logit from the tensor and transforms it again, so the row need not stay on
    // chip; and then no thread may overwrite the row before that read.
    Value picked_in_pass(const Value& target) const {
        Graph graph(z.graph());
        const Value is_target = cast(graph.iota(vocabulary), target.dtype()) == target;
        return sum(select(is_target, z, graph.constant(z.dtype(), 0.0)));
    }
};

LossRow loss_row(std::string_view op, const Value& logits, const LogitTransform& transform) {
    const Axis vocabulary = vocabulary_of(op, logits);
    const Value z = transform(logits);
    const RowExponentials row = row_exponentials(z);
    return {vocabulary, logits.graph()->axis(vocabulary.id).extent, z, row, log(row.row_sum).named("log_sum")};
}

LossRow loss_row(std::string_view op, const Value& logits, const CrossEntropyOptions& options) {
    return loss_row(op, logits, LogitTransform(op, logits, options.softcap, options.temperature));
}

constexpr std::string_view kCrossEntropy = "cross_entropy";

// ε as a run-time scalar, beside values like `x`.
std::optional<Value> smoothing_scalar(std::string_view op, const Value& x, std::optional<double> label_smoothing) {
    if (!label_smoothing) return std::nullopt;
    if (!(*label_smoothing >= 0 && *label_smoothing <= 1))
        fail(ErrorCode::kInvalidGraph, "{}: label_smoothing is {}; give a number from 0 to 1", op, *label_smoothing);
    return Graph(x.graph()).scalar("label_smoothing", x.dtype(), *label_smoothing);
}

// λ·lse².
Value z_loss_of(std::string_view op, const Value& lse, double z_loss) {
    return non_negative_scalar(op, lse, "z_loss_scale", lse.dtype(), z_loss) * lse * lse;
}

// The weights, checked and widened to the loss's dtype.
CrossEntropyWeights widened(const Value& logits, CrossEntropyWeights weights, Dtype dtype) {
    const GraphData& graph = *logits.graph();
    const Node& x = graph.node(logits.id());
    const auto checked = [&](std::optional<Value>& weight, std::string_view role, const std::vector<AxisId>& axes) {
        if (!weight) return;
        require_float(kCrossEntropy, role, *weight);
        require_within(kCrossEntropy, role, *weight, logits);
        if (graph.node(weight->id()).axes != axes) {
            fail(ErrorCode::kInvalidGraph, "{}({}): {} {} must have the axes {}", kCrossEntropy,
                 graph.describe(logits.id()), role, weight->description(), graph.describe_axes(axes));
        }
        weight = cast(*weight, dtype);
    };
    checked(weights.classes, "class weight", graph.column_axes(x));
    checked(weights.tokens, "token weight", graph.row_axes(x));
    return weights;
}

// Σ_c w_c·q_c·(lse − z_c) from two sums over the row, so that it is read once; w or q may be left out for 1.
Value expected_loss(const LossRow& x, const std::optional<Value>& weight, const std::optional<Value>& probability) {
    if (!weight && !probability) {
        return static_cast<double>(x.classes) * (x.log_sum - (mean(x.z) - x.row.row_max));
    }
    const Value share = weight && probability ? *weight * *probability : weight ? *weight : *probability;
    return sum(share) * (x.row.row_max + x.log_sum) - sum(share * x.z);
}

// A row's loss without weights of tokens, and what the row counts in the mean; nothing for a row that counts 1.
struct RowLoss {
    Value loss;
    std::optional<Value> share;
};

RowLoss loss_of_classes(const LossRow& x, const Value& target, const CrossEntropyOptions& options,
                        const std::optional<Value>& class_weight) {
    RowLoss result{x.negative_log_likelihood(target, options.in_place), std::nullopt};
    if (class_weight) {
        result.share = index(*class_weight, x.vocabulary, Coord(target)).named("class_weight");
        result.loss = result.loss * *result.share;
    }
    if (const auto smoothing = smoothing_scalar(kCrossEntropy, x.z, options.label_smoothing)) {
        const Value spread = expected_loss(x, class_weight, std::nullopt);
        result.loss = (1.0 - *smoothing) * result.loss + (*smoothing / static_cast<double>(x.classes)) * spread;
    }
    return result;
}

RowLoss loss_of_probabilities(const LossRow& x, const Value& logits, const Value& target,
                              const CrossEntropyOptions& options, const std::optional<Value>& class_weight) {
    require_within(kCrossEntropy, "target", target, logits);
    if (target.graph()->node(target.id()).axes != logits.graph()->node(logits.id()).axes) {
        fail(ErrorCode::kInvalidGraph, "cross_entropy({}): target {} must have the axes of the logits",
             logits.graph()->describe(logits.id()), target.graph()->describe(target.id()));
    }
    Value probability = cast(target, x.z.dtype());
    if (const auto smoothing = smoothing_scalar(kCrossEntropy, x.z, options.label_smoothing)) {
        probability = (1.0 - *smoothing) * probability + *smoothing / static_cast<double>(x.classes);
    }
    return {expected_loss(x, class_weight, probability), std::nullopt};
}

std::optional<Value> product(const std::optional<Value>& a, const std::optional<Value>& b) {
    if (a && b) return *a * *b;
    return a ? a : b;
}

void require_token_scaling_of(bool classes) {
    if (classes) return;
    fail(ErrorCode::kInvalidGraph, "{}: token_scaling is by the probability of the target's class; give classes",
         kCrossEntropy);
}

}  // namespace

CrossEntropy cross_entropy(Value logits, Value target, CrossEntropyOptions options, CrossEntropyWeights weights) {
    const LossRow x = loss_row(kCrossEntropy, logits, options);
    const Dtype dtype = x.z.dtype();
    weights = widened(logits, weights, dtype);
    Graph graph(logits.graph());
    const Value zero = graph.constant(dtype, 0.0);

    const bool classes = target.graph() && !is_float(target.dtype());
    std::optional<Value> counted;
    if (classes) counted = counted_rows(kCrossEntropy, logits, target, options.ignore_index);
    // An ignored row's values may be anything; a select, not a product with 0, leaves them out.
    const auto kept = [&](const Value& value) {
        return counted ? of_counted_rows(value, *counted, target, x.classes) : value;
    };
    const auto logp = [&] { return kept(-x.negative_log_likelihood(target, options.in_place)); };
    // How many rows there are, or what they weigh.
    const auto count = [&](const std::optional<Value>& share) {
        const Value one = share ? *share : graph.constant(dtype, 1.0);
        if (counted) return sum_over_rows(select(*counted, one, zero)).named("count");
        return share ? sum_over_rows(one).named("count") : number_of_rows(logits, dtype);
    };

    const RowLoss row = classes ? loss_of_classes(x, target, options, weights.classes)
                                : loss_of_probabilities(x, logits, target, options, weights.classes);
    CrossEntropy result;
    result.lse = (x.row.row_max + x.log_sum).named("lse");
    std::optional<Value> factor = weights.tokens;
    if (options.token_scaling) {
        require_token_scaling_of(classes);
        // An ignored row's log-probability is 0, so that no infinity meets the 0 that the row's gradient is.
        factor = product(factor, detach(exp(logp())).named("target_probability"));
    }
    const Value row_loss = factor ? row.loss * *factor : row.loss;
    result.loss =
        reduced(kept(row_loss).named("row_loss"), count(product(row.share, weights.tokens)), options.reduction);
    if (options.z_loss) {
        const Value row_z_loss = z_loss_of(kCrossEntropy, result.lse, *options.z_loss);
        const Value weighted = factor ? row_z_loss * *factor : row_z_loss;
        result.z_loss = reduced(kept(weighted), count(weights.tokens), options.reduction);
        result.loss = result.loss + *result.z_loss;
    }
    result.entropy = x.entropy();
    result.argmax = x.argmax();
    if (!classes) return result;
    result.logp = logp();
    const Value hit = *counted && cast(result.argmax, target.dtype()) == target;
    const Value one = graph.constant(dtype, 1.0);
    result.accuracy = sum_over_rows(select(hit, one, zero)) / count(std::nullopt);
    return result;
}

SelectiveLogProbability log_probability_of(std::string_view op, const Value& logits, const Value& target,
                                           const Value& counted, const LogitTransform& transform, bool in_place) {
    const LossRow x = loss_row(op, logits, transform);
    return {of_counted_rows(-x.negative_log_likelihood(target, in_place), counted, target, x.classes), x.entropy()};
}

SelectiveLogProbability selective_log_probability(Value logits, Value target, CrossEntropyOptions options) {
    constexpr std::string_view kOp = "selective_log_probability";
    const LogitTransform transform(kOp, logits, options.softcap, options.temperature);
    const Value counted = counted_rows(kOp, logits, target, options.ignore_index);
    return log_probability_of(kOp, logits, target, counted, transform, options.in_place);
}

VocabularyPart vocabulary_part(Value logits, Value target, std::int64_t first_class, SoftmaxOptions options) {
    constexpr std::string_view kOp = "vocabulary_part";
    const LossRow x = loss_row(kOp, logits, LogitTransform(kOp, logits, options.softcap, options.temperature));
    require_classes(kOp, target, logits);
    Graph graph(logits.graph());
    const Value first = graph.scalar("first_class", target.dtype(), static_cast<double>(first_class));
    // A coordinate outside the row reads nothing and gives 0, and nothing flows back.
    const Value target_logit = index(x.z, x.vocabulary, Coord(target - first)).named("target_logit");
    return {log_sum_exp(x.row), target_logit, sum(x.z).named("logit_sum"), x.entropy()};
}

CombinedVocabulary combine_vocabulary(const VocabularyParts& parts, Axis ranks, Value target, std::int64_t vocabulary,
                                      CombineOptions options) {
    constexpr std::string_view kOp = "combine_vocabulary";
    require_float(kOp, "lse", parts.lse);
    require_alike(kOp, "target_logit", parts.target_logit, parts.lse);
    if (parts.logit_sum) require_alike(kOp, "logit_sum", *parts.logit_sum, parts.lse);
    if (parts.entropy) require_alike(kOp, "entropy", *parts.entropy, parts.lse);
    require_within(kOp, "target", target, parts.lse);
    const Dtype dtype = parts.lse.dtype();
    Graph graph(parts.lse.graph());
    const Value zero = graph.constant(dtype, 0.0);

    CombinedVocabulary result;
    const Value row_max = detach(max(parts.lse, ranks).named("row_max"));
    const Value log_sum = log(sum(exp(parts.lse - row_max), ranks)).named("log_sum");
    result.lse = (row_max + log_sum).named("total_lse");
    const Value counted = counted_rows(kOp, result.lse, target, options.ignore_index);
    const auto reduce = [&](const Value& row_loss) {
        const Value count = sum_over_rows(select(counted, graph.constant(dtype, 1.0), zero)).named("count");
        return reduced(of_counted_rows(row_loss, counted, target, vocabulary), count, options.reduction);
    };
    Value row_loss =
        log_sum - (sum(parts.target_logit, ranks) - row_max);  // of terms no larger than it, as a row's own
    if (const auto smoothing = smoothing_scalar(kOp, result.lse, options.label_smoothing)) {
        if (!parts.logit_sum)
            fail(ErrorCode::kInvalidGraph, "{}: label_smoothing needs the parts' logit_sum; give it", kOp);
        const Value mean_logit = sum(*parts.logit_sum, ranks) / static_cast<double>(vocabulary);
        row_loss = (1.0 - *smoothing) * row_loss + *smoothing * (log_sum - (mean_logit - row_max));
    }
    result.loss = reduce(row_loss);
    if (options.z_loss) {
        result.z_loss = reduce(z_loss_of(kOp, result.lse, *options.z_loss));
        result.loss = result.loss + *result.z_loss;
    }
    if (parts.entropy) {
        // The chain rule of entropy: that of the ranks' shares, and each rank's own by its share.
        const Value log_share = parts.lse - result.lse;
        const Value share = exp(log_share);
        result.entropy = sum(select(share > 0.0, share * (*parts.entropy - log_share), zero), ranks);
    }
    return result;
}

}  // namespace rowjit
