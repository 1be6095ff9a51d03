// What the composites check and share: each op's operands are held against x before any node is made, so that a message
// names the op and not a primitive inside it.
#pragma once

#include <optional>
#include <string_view>

#include "rowjit/graph.h"
#include "rowjit/library.h"

namespace rowjit {

// x is a float tensor with at least one column axis, else Error(kInvalidGraph) naming `op`.
void require_columns(std::string_view op, const Value& x);

// x is a float tensor, else Error(kInvalidGraph).
void require_float(std::string_view op, std::string_view role, const Value& x);

// Every axis of `operand` is one of x's, so that nothing grows by a product of axes.
void require_within(std::string_view op, std::string_view role, const Value& operand, const Value& x);

// Equal dtypes and axes.
void require_alike(std::string_view op, std::string_view role, const Value& operand, const Value& x);

// The sigmoid 1 / (1 + exp(−x)) in x's dtype.
Value sigmoid(const Value& x);

// f64 for f64, else f32: where statistics and transcendental functions are computed.
Dtype wide(Dtype dtype);
Value widen(const Value& x);

// target is of i32 or i64, over the row axes of the logits.
void require_classes(std::string_view op, const Value& target, const Value& logits);

// Whether a row's target, checked so, is not `ignore_index`, a run-time scalar.
Value counted_rows(std::string_view op, const Value& logits, const Value& target, std::int64_t ignore_index);

// The rows of x, as a number of the dtype.
Value number_of_rows(const Value& x, Dtype dtype);

// Σ over all row axes of a value without column axes.
Value sum_over_rows(const Value& a);

// What a loss for every row comes to over all of them: itself, its sum, or its sum divided by `count`, {}.
Value reduced(const Value& row_loss, const Value& count, Reduction reduction);

// The run-time scalar of `x`'s graph, named `name`, in `dtype`. NaN and infinities are refused, and what is below zero,
// or zero itself where `positive`.
Value non_negative_scalar(std::string_view op, const Value& x, std::string_view name, Dtype dtype, double value);
Value positive_scalar(std::string_view op, const Value& x, std::string_view name, Dtype dtype, double value);

}  // namespace rowjit
