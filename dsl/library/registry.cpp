#include "dsl/library/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/rows.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

std::vector<CompositeInfo> all_rows() {
    std::vector<CompositeInfo> all;
    for (const auto& family :
         {norm_rows, activation_rows, rotary_rows, residual_rows, stream_rows, quantize_rows, optimizer_rows,
          softmax_and_loss_rows, distillation_rows, preference_rows, linear_rows}) {
        for (CompositeInfo& row : family()) all.push_back(std::move(row));
    }
    return all;
}

// Whether an operand's names, as "bias, mask or sink", are or contain this one.
bool is_one_of(std::string_view name, std::string_view names) {
    const auto is_word = [](char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
    for (std::size_t at = names.find(name); at != std::string_view::npos; at = names.find(name, at + 1)) {
        const std::size_t end = at + name.size();
        if ((at == 0 || !is_word(names[at - 1])) && (end == names.size() || !is_word(names[end]))) return true;
    }
    return false;
}

std::vector<OptionInfo> options_of_a_call(const CompositeInfo& row) {
    std::vector<OptionInfo> found;
    std::copy_if(row.options.begin(), row.options.end(), std::back_inserter(found),
                 [](const OptionInfo& option) { return !option.of_graph; });
    return found;
}

}  // namespace

std::span<const CompositeInfo> composites() {
    static const std::vector<CompositeInfo> rows = all_rows();
    return rows;
}

const CompositeInfo& find_composite(std::string_view name) {
    std::vector<std::string_view> known;
    for (const CompositeInfo& row : composites()) {
        if (row.name == name) return row;
        known.push_back(row.name);
    }
    fail(ErrorCode::kInvalidArgument, "unknown op '{}'; known: {}", name, fmt::join(known, ", "));
}

Graph make_graph(std::string_view op, const OpRequest& request) {
    const CompositeInfo& row = find_composite(op);
    if (request.columns < 1) {
        fail(ErrorCode::kInvalidArgument, "{}: {} columns; give a positive number", op, request.columns);
    }
    if (!is_float(request.dtype)) {
        fail(ErrorCode::kInvalidArgument, "{}: dtype {}; give bf16, f16, f32 or f64", op, name(request.dtype));
    }
    const OptionValues options(op, row.options, request.options);
    Graph graph;
    const Results results = row.apply(row.declare(graph, request, options), options);
    RJ_CHECK(results.size() <= row.results.size(), "{} gave {} results for {} names", op, results.size(),
             row.results.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
        if (!results[i].graph()) continue;
        const std::string_view over = i < row.in_place.size() ? row.in_place[i] : "";
        graph.output(row.results[i], results[i],
                     {.alias = std::string(over), .accumulate = false, .column_strides = {}});
    }
    return graph;
}

std::vector<std::string> trained_inputs(std::string_view op, const Graph& graph) {
    const CompositeInfo& row = find_composite(op);
    const GraphData& data = *graph.data();
    std::vector<std::string> names;
    for (NodeId id = 0; id < data.size(); ++id) {
        const Node& node = data.node(id);
        if (node.kind != NodeKind::kInput || !is_float(node.dtype)) continue;
        const bool constant = std::any_of(row.operands.begin(), row.operands.end(), [&](const OperandInfo& operand) {
            return operand.constant && is_one_of(node.name, operand.name);
        });
        if (!constant) names.push_back(node.name);
    }
    return names;
}

std::vector<Value> call_composite(std::string_view op, std::span<const Value> operands, const OptionMap& options) {
    const CompositeInfo& row = find_composite(op);
    const auto required = static_cast<std::size_t>(
        std::count_if(row.operands.begin(), row.operands.end(), [](const OperandInfo& o) { return o.required; }));
    if (operands.size() < required || operands.size() > row.operands.size()) {
        std::vector<std::string_view> names;
        for (const OperandInfo& info : row.operands) names.push_back(info.name);
        fail(ErrorCode::kInvalidGraph, "{}: {} operands given; it takes {}, the first {} of them required", op,
             operands.size(), fmt::join(names, ", "), required);
    }
    Results results = row.apply(operands, OptionValues(op, options_of_a_call(row), options));
    std::erase_if(results, [](const Value& result) { return !result.graph(); });
    return results;
}

namespace {

// What the backward of an op's canonical graph is given.
std::string backward_markdown(const CompositeInfo& row) {
    const Graph graph = make_graph(row.name, {});
    const std::vector<std::string> trained = trained_inputs(row.name, graph);
    if (trained.empty()) return "It has no backward.";
    const Differentiated both = differentiate(graph, trained);
    std::vector<std::string> saved;
    for (const SavedValue& value : both.saved) saved.push_back(fmt::format("{} ({})", value.name, value.description));
    std::vector<std::string> read;
    const GraphData& backward = *both.backward.data();
    for (const OperandInfo& operand : row.operands) {
        if (backward.find_input(operand.name)) read.emplace_back(operand.name);
    }
    return fmt::format("For the backward: {} saved, {} read again.",
                       saved.empty() ? "nothing" : fmt::format("{}", fmt::join(saved, ", ")),
                       read.empty() ? "nothing" : fmt::format("{}", fmt::join(read, ", ")));
}

}  // namespace

std::string ops_markdown() {
    constexpr std::string_view kTypes[] = {"true, false", "integer", "number"};
    std::string text =
        "# Operations\n\n"
        "Generated from dsl/library/registry.cpp; a test compares the two. Each operation is an expression of "
        "primitives\n"
        "(include/rowjit/library.h says where it rounds); `rowjit bench --op NAME --columns N --option KEY=VALUE` "
        "runs\n"
        "one, and a `.rj` file calls it by name. Options marked * choose the inputs of that canonical graph; a call in "
        "a\n"
        "`.rj` file has its operands instead.\n";
    for (const CompositeInfo& row : composites()) {
        text += fmt::format("\n## {}\n\n{}: `{}`. Columns: {}.\n\n| operand | shape | dtype |\n|---|---|---|\n",
                            row.name, row.summary, row.formula, row.columns);
        for (const OperandInfo& info : row.operands) {
            text += fmt::format("| {}{} | {} | {} |\n", info.name, info.required ? "" : " (optional)", info.shape,
                                info.dtype);
        }
        text += fmt::format("\nResults: {}{}. {}\n", fmt::join(row.results, ", "),
                            row.in_place.empty() ? "" : fmt::format(", in place of {}", fmt::join(row.in_place, ", ")),
                            backward_markdown(row));
        if (row.options.empty()) continue;
        text += "\n| option | values | default | meaning |\n|---|---|---|---|\n";
        for (const OptionInfo& option : row.options) {
            const bool choice = option.type == OptionType::kChoice;
            text += fmt::format("| {}{} | {} | {} | {} |\n", option.name, option.of_graph ? "*" : "",
                                choice ? option.choices : kTypes[static_cast<std::size_t>(option.type)],
                                option.default_value.empty() ? "absent" : option.default_value, option.meaning);
        }
    }
    return text;
}

}  // namespace rowjit
