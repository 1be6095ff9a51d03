// What the rows of the registry share: a file of rows for each family of operations, joined by registry.cpp.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dsl/library/registry.h"

namespace rowjit {

using Operands = std::span<const Value>;
using Results = std::vector<Value>;

std::vector<CompositeInfo> norm_rows();
std::vector<CompositeInfo> activation_rows();
std::vector<CompositeInfo> rotary_rows();
std::vector<CompositeInfo> residual_rows();
std::vector<CompositeInfo> quantize_rows();
std::vector<CompositeInfo> optimizer_rows();

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

}  // namespace rowjit
