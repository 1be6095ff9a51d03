// What the rows of the registry share: a file of rows for each family of operations, joined by registry.cpp.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dsl/library/registry.h"
#include "rowjit/library.h"

namespace rowjit {

using Operands = std::span<const Value>;
using Results = std::vector<Value>;

std::vector<CompositeInfo> norm_rows();
std::vector<CompositeInfo> activation_rows();
std::vector<CompositeInfo> rotary_rows();
std::vector<CompositeInfo> residual_rows();
std::vector<CompositeInfo> stream_rows();
std::vector<CompositeInfo> quantize_rows();
std::vector<CompositeInfo> optimizer_rows();
std::vector<CompositeInfo> softmax_and_loss_rows();
std::vector<CompositeInfo> distillation_rows();
std::vector<CompositeInfo> preference_rows();
std::vector<CompositeInfo> linear_rows();

constexpr std::string_view kRow = "{tokens, columns}";
constexpr OperandInfo kX = {"x", kRow, "dtype", true};
constexpr OperandInfo kWeight = {"weight", "{columns}", "dtype or f32", false};

// The operand at `position`, where the call has so many.
std::optional<Value> operand(Operands operands, std::size_t position);

// An input {tokens, columns} of the request's dtype.
Value rows_by_columns(Graph& graph, std::string_view name, const OpRequest& request);

// That input alone, named x.
Results declare_x(Graph& graph, const OpRequest& request, const OptionValues& options);

// The weight {columns} that the option "weight" asks for.
void declare_weight(Graph& graph, const OpRequest& request, const OptionValues& options, Results& operands);

// What several losses have alike.
inline constexpr OptionInfo kTemperature = {"temperature", OptionType::kNumber, "", "", false, "divides the logits"};
inline constexpr OptionInfo kReduction = {
    "reduction", OptionType::kChoice, "mean", "mean sum none", false, "over the rows that are not ignored"};
inline constexpr OptionInfo kIgnoreIndex = {
    "ignore_index", OptionType::kInteger, "-100", "", false, "rows of this target contribute nothing"};
Reduction reduction_of(const OptionValues& options);

// What cross-entropy of logits and of a head have alike.
CrossEntropyOptions cross_entropy_options(const OptionValues& options);
Results cross_entropy_results(const CrossEntropy& result, const OptionValues& options);
std::vector<std::string_view> cross_entropy_result_names();
std::vector<OptionInfo> cross_entropy_option_rows();

}  // namespace rowjit
