// What several families of rows declare alike.
#include "dsl/library/rows.h"

namespace rowjit {

std::optional<Value> operand(Operands operands, std::size_t position) {
    if (position < operands.size()) return operands[position];
    return std::nullopt;
}

Value rows_by_columns(Graph& graph, std::string_view name, const OpRequest& request) {
    return graph.input(name, request.dtype, {graph.rows("tokens"), request.columns});
}

Results declare_x(Graph& graph, const OpRequest& request, const OptionValues&) {
    return {rows_by_columns(graph, "x", request)};
}

void declare_weight(Graph& graph, const OpRequest& request, const OptionValues& options, Results& operands) {
    const std::string_view weight = options.choice("weight");
    if (weight == "none") return;
    operands.push_back(graph.input("weight", weight == "f32" ? f32 : request.dtype, {request.columns}));
}

Reduction reduction_of(const OptionValues& options) {
    const std::string_view reduction = options.choice("reduction");
    return reduction == "none" ? Reduction::kNone : reduction == "sum" ? Reduction::kSum : Reduction::kMean;
}

}  // namespace rowjit
