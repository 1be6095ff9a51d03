// Printing a graph in its text form: declarations, then one node a line, then the outputs. Constants, iotas and extents
// stand where they are used. Reading it back is parse.cpp's.
#include "dsl/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "dsl/graph.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

// The shortest text that reads back as the same double.
std::string number(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

bool is_argument(const Node& node) { return node.kind == NodeKind::kInput || node.kind == NodeKind::kScalar; }

class Printer {
  public:
    explicit Printer(const GraphData& graph) : graph_(graph), names_(static_cast<std::size_t>(graph.size())) {
        const std::vector<NodeId> live = graph.live_nodes();
        for (NodeId id = 0; id < graph.size(); ++id) {
            if (is_argument(graph.node(id))) take(id, graph.node(id).name);
        }
        for (const NodeId id : live) {
            if (!is_argument(graph.node(id)) && !is_inline(graph.node(id))) lines_.push_back(id);
        }
        // Labels before numbers, so that no number takes a later node's label.
        for (const NodeId id : lines_) {
            const std::string& label = graph.node(id).label;
            if (!label.empty() && !taken_.contains(label)) take(id, label);
        }
        // An output names a value that has none, as it does where it is read.
        for (const OutputInfo& output : graph.outputs()) {
            const Node& node = graph.node(output.node);
            const bool named = is_argument(node) || is_inline(node) || !name(output.node).empty();
            if (!named && !taken_.contains(output.name)) take(output.node, output.name);
        }
        int next = 1;
        for (const NodeId id : lines_) {
            if (!name(id).empty()) continue;
            const auto numbered = [&] { return fmt::format("{}{}", kNumbered, next); };
            while (taken_.contains(numbered())) ++next;
            take(id, numbered());
        }
    }

    std::string print() const {
        std::string text;
        for (const AxisInfo& axis : graph_.axes()) {
            if (!axis.name.empty()) text += declaration(axis) + "\n";
        }
        for (NodeId id = 0; id < graph_.size(); ++id) {
            if (is_argument(graph_.node(id))) text += declaration(graph_.node(id)) + "\n";
        }
        for (const NodeId id : lines_) text += fmt::format("{} = {}\n", name(id), expression(id));
        for (const OutputInfo& output : graph_.outputs()) text += statement(output) + "\n";
        return text;
    }

  private:
    const std::string& name(NodeId id) const { return names_[static_cast<std::size_t>(id)]; }

    void take(NodeId id, const std::string& name) {
        names_[static_cast<std::size_t>(id)] = name;
        taken_.insert(name);
    }

    static bool is_inline(const Node& node) {
        const bool leaf =
            node.kind == NodeKind::kConst || node.kind == NodeKind::kIota || node.kind == NodeKind::kExtent;
        return leaf && node.label.empty();
    }

    bool is_inline_const(NodeId id) const {
        return graph_.node(id).kind == NodeKind::kConst && is_inline(graph_.node(id));
    }

    std::string declaration(const AxisInfo& axis) const {
        const std::string_view space = axis.is_row ? "rows" : "columns";
        if (!axis.follows.empty())
            return fmt::format("{} {} = {} + {}", space, axis.name, graph_.label_of_product(axis.follows), axis.more);
        if (axis.extent == kRuntimeExtent) return fmt::format("{} {}", space, axis.name);
        return fmt::format("{} {} = {}", space, axis.name, axis.extent);
    }

    std::string declaration(const Node& node) const {
        const std::string_view dtype = rowjit::name(node.dtype);
        if (node.kind == NodeKind::kScalar) {
            return fmt::format("scalar {}: {} = {}", node.name, dtype, number(node.value));
        }
        return fmt::format("input {}: {}[{}]{}", node.name, dtype, graph_.describe_axes(node.axes),
                           strides(node.column_strides));
    }

    static std::string strides(const std::vector<std::int64_t>& strides) {
        return strides.empty() ? "" : fmt::format(" strides({})", fmt::join(strides, ", "));
    }

    std::string statement(const OutputInfo& output) const {
        std::string text = fmt::format("output {}", output.name);
        if (name(output.node) != output.name) text += " = " + operand(output.node);
        if (!output.alias.empty()) text += fmt::format(" alias({})", output.alias);
        if (output.accumulate) text += " accumulate";
        if (output.slots >= 0) {
            const bool sums = output.parts_monoid == Monoid::kSum;
            text += fmt::format(" partial({}{}, {}", sums ? "" : fmt::format("{} ", rowjit::name(output.parts_monoid)),
                                graph_.axis(output.slots).label(), rowjit::name(output.parts_dtype));
            if (output.parts_component != 0) text += fmt::format(", component={}", output.parts_component);
            for (const AxisId axis : output.apart) text += ", " + graph_.axis(axis).label();
            for (const AxisId axis : output.outer) text += ", each " + graph_.axis(axis).label();
            text += ")";
        }
        if (output.piece) {
            text += fmt::format(" piece({}[{}], {})", output.piece->tensor, graph_.describe_axes(output.piece->axes),
                                fmt::join(output.piece->at, ", "));
        }
        return text + strides(output.column_strides);
    }

    std::string operand(NodeId id) const { return name(id).empty() ? expression(id) : name(id); }

    std::string expression(NodeId id) const {
        const Node& node = graph_.node(id);
        const std::string_view dtype = rowjit::name(node.dtype);
        switch (node.kind) {
            case NodeKind::kConst: return fmt::format("const({}, {})", number(node.value), dtype);
            case NodeKind::kIota: return iota(node);
            case NodeKind::kExtent: return fmt::format("extent({}, {})", graph_.axis(node.axis).label(), dtype);
            case NodeKind::kMap: return map(node);
            case NodeKind::kCast: return fmt::format("cast({}, {})", operand(node.args[0]), dtype);
            case NodeKind::kIndex: return index(node);
            case NodeKind::kReduce: return reduce(node);
            case NodeKind::kState: return fmt::format("state({})", operand(node.args[0]));
            case NodeKind::kFix:
                return fmt::format("fix({}, {}, steps={})", operand(node.args[0]), operand(node.args[1]),
                                   node.most_steps);
            case NodeKind::kSearch: return fmt::format("search({}, {})", operand(node.args[0]), operand(node.args[1]));
            case NodeKind::kMatmul: return matmul(node);
            case NodeKind::kSumWhere:
                return fmt::format("sum_where({}, {} == {}, {})", operand(node.args[0]), operand(node.args[1]),
                                   operand(node.args[2]), graph_.axis(node.reduced[0]).label());
            case NodeKind::kPartialReduce:
                return fmt::format("partial_{}({}, {}{})", rowjit::name(node.monoid), operand(node.args[0]),
                                   graph_.axis(node.axis).label(),
                                   node.component != 0 ? fmt::format(", component={}", node.component) : "");
            case NodeKind::kOrder:
            case NodeKind::kDigitCounts: return order(node);
            case NodeKind::kInput:
            case NodeKind::kScalar: break;
        }
        return node.name;
    }

    std::string order(const Node& node) const {
        std::vector<std::string> parts;
        for (const NodeId arg : node.args) parts.push_back(operand(arg));
        for (const AxisId axis : node.axes) parts.push_back(graph_.axis(axis).label());
        parts.push_back(graph_.axis(node.axis).label());
        if (node.digit != Digit{})
            parts.push_back(fmt::format("bits={}…{}", node.digit.shift, node.digit.shift + node.digit.bits - 1));
        return fmt::format("{}({})", rowjit::name(node.kind), fmt::join(parts, ", "));
    }

    std::string iota(const Node& node) const {
        const AxisInfo& axis = graph_.axis(node.axis);
        if (axis.is_row || node.dtype == Dtype::kI32) return fmt::format("iota({})", axis.label());
        return fmt::format("iota({}, {})", axis.label(), rowjit::name(node.dtype));
    }

    std::string map(const Node& node) const {
        // A constant is a bare number where another operand tells its dtype.
        const std::size_t first = info(node.op).types == OpTypes::kSelect ? 1 : 0;
        const bool typed = std::any_of(node.args.begin() + static_cast<std::ptrdiff_t>(first), node.args.end(),
                                       [&](NodeId arg) { return !is_inline_const(arg); });
        std::vector<std::string> operands;
        for (std::size_t i = 0; i < node.args.size(); ++i) {
            const Node& arg = graph_.node(node.args[i]);
            const bool bare = typed && i >= first && is_inline_const(node.args[i]) && arg.dtype != Dtype::kBool;
            operands.push_back(bare ? number(arg.value) : operand(node.args[i]));
        }
        for (const Infix& infix : kInfix) {
            if (infix.op == node.op) return fmt::format("{} {} {}", operands[0], infix.symbol, operands[1]);
        }
        if (node.op == Op::kNeg) return "-" + operands[0];
        if (node.op == Op::kNot) return "!" + operands[0];
        return fmt::format("{}({})", info(node.op).name, fmt::join(operands, ", "));
    }

    std::string index(const Node& node) const {
        const auto axis_name = [&](Axis axis) {
            const std::string label = graph_.axis(axis.id).label();
            // '@' sets an extent apart from a number and an axis from a value of the same name.
            return graph_.axis(axis.id).name.empty() || taken_.contains(label) ? "@" + label : label;
        };
        std::vector<std::string> parts = {operand(node.args[0])};
        for (const Coord& coord : node.coords) {
            parts.push_back(coord.print(axis_name, [&](NodeId id) { return operand(id); }));
        }
        return fmt::format("index({})", fmt::join(parts, ", "));
    }

    std::string reduce(const Node& node) const {
        std::vector<std::string> parts = {operand(node.args[0])};
        if (node.reduced != graph_.column_axes(graph_.node(node.args[0]))) {
            for (const AxisId axis : node.reduced) parts.push_back(graph_.axis(axis).label());
        }
        if (node.is_segmented()) {
            parts.push_back("into=" + graph_.axis(node.axis).label());
            parts.push_back("offsets=" + operand(node.args[1]));
        }
        if (node.component != 0) parts.push_back(fmt::format("component={}", node.component));
        return fmt::format("{}({})", rowjit::name(node.monoid), fmt::join(parts, ", "));
    }

    std::string matmul(const Node& node) const {
        std::vector<std::string> parts = {operand(node.args[0]), operand(node.args[1])};
        for (const AxisId axis : node.reduced) parts.push_back(graph_.axis(axis).label());
        if (node.dtype != graph_.node(node.args[0]).dtype)
            parts.push_back(fmt::format("dtype={}", rowjit::name(node.dtype)));
        return fmt::format("matmul({})", fmt::join(parts, ", "));
    }

    const GraphData& graph_;
    std::vector<NodeId> lines_;       // the nodes that stand on a line of their own
    std::vector<std::string> names_;  // by node; "" for those printed where they are used
    std::set<std::string, std::less<>> taken_;
};

}  // namespace

std::string Graph::print() const { return Printer(*data_).print(); }

}  // namespace rowjit
