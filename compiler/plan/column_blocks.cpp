#include "compiler/plan/column_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "rowjit/coord.h"

namespace rowjit {
namespace {

// A product over rows whose result lies along the columns of its operand.
struct Gradient {
    std::size_t output;  // of the graph
    NodeId wide;         // the operand with the columns
    NodeId other;
    AxisId columns;
};

class Rewriting {
  public:
    Rewriting(const GraphData& from, std::int64_t block_columns) : from_(from), block_columns_(block_columns) {
        for (NodeId id = 0; id < from_.size(); ++id) {
            const Node& node = from_.node(id);
            const auto any_of = [&](const std::vector<bool>& known) {
                return std::any_of(node.args.begin(), node.args.end(),
                                   [&](NodeId arg) { return known[static_cast<std::size_t>(arg)]; });
            };
            of_product_.push_back(node.kind == NodeKind::kMatmul || any_of(of_product_));
            of_many_.push_back(is_of_many(node) || any_of(of_many_));
        }
    }

    Offer<ColumnBlocks> run() {
        for (std::size_t i = 0; i < from_.outputs().size(); ++i) {
            const auto gradient = gradient_of(i);
            if (!gradient) continue;
            if (!gradients_.empty() && gradients_[0].columns != gradient->columns)
                return Declined{"its gradients lie along different column axes"};
            gradients_.push_back(*gradient);
        }
        if (gradients_.empty()) return Declined{"no output is a product over rows of what another product makes"};
        add_axes();
        for (const NodeId id : from_.live_nodes())
            copies_[id] = whole_->add_copy(from_.node(id), [&](NodeId arg) { return copies_.at(arg); });
        for (std::size_t i = 0; i < from_.outputs().size(); ++i) {
            OutputInfo output = from_.outputs()[i];
            if (std::any_of(gradients_.begin(), gradients_.end(), [&](const Gradient& one) { return one.output == i; }))
                continue;
            output.node = copies_.at(output.node);
            whole_->add_output(std::move(output));
        }
        column_ = add_columns();
        for (const Gradient& gradient : gradients_) {
            rows_ = from_.row_axes(from_.node(gradient.wide));
            const NodeId wide = in_parts(gradient.wide);
            if (wide < 0) return Declined{std::move(reason_)};
            const OutputInfo& output = from_.outputs()[gradient.output];
            const Node& node = from_.node(output.node);
            const NodeId product = parts_->add_matmul(wide, in_memory(gradient.other), node.reduced, node.dtype);
            parts_->add_output({view(output.name, parts_->node(product)), product, "", false, {}});
        }
        return ColumnBlocks{std::move(whole_), std::move(parts_), division_, std::move(stored_), std::move(views_)};
    }

  private:
    const AxisInfo& axis(AxisId id) const { return from_.axis(id); }

    // What a kernel of parts does not compute for itself.
    static bool is_of_many(const Node& node) {
        switch (node.kind) {
            case NodeKind::kInput:
            case NodeKind::kScalar:
            case NodeKind::kConst:
            case NodeKind::kIota:
            case NodeKind::kExtent:
            case NodeKind::kMap:
            case NodeKind::kCast: return false;
            default: return true;
        }
    }

    std::optional<Gradient> gradient_of(std::size_t index) const {
        const OutputInfo& output = from_.outputs()[index];
        const Node& product = from_.node(output.node);
        if (product.kind != NodeKind::kMatmul || output.accumulate || !output.alias.empty()) return std::nullopt;
        if (!output.column_strides.empty() || is_used(output, index)) return std::nullopt;
        for (const std::size_t which : {0, 1}) {
            const NodeId wide = product.args[which];
            const std::vector<AxisId> columns = from_.column_axes(from_.node(wide));
            if (columns.size() != 1 || product.axes[0] != columns[0]) continue;
            if (!of_product_[static_cast<std::size_t>(wide)]) continue;
            if (product.reduced == from_.row_axes(from_.node(wide)))
                return Gradient{index, wide, product.args[1 - which], columns[0]};
        }
        return std::nullopt;
    }

    // By anything but the output.
    bool is_used(const OutputInfo& output, std::size_t index) const {
        for (std::size_t i = 0; i < from_.outputs().size(); ++i) {
            if (i != index && from_.outputs()[i].node == output.node) return true;
        }
        const std::vector<NodeId> live = from_.live_nodes();
        return std::any_of(live.begin(), live.end(),
                           [&](NodeId id) { return contains(from_.node(id).args, output.node); });
    }

    void add_axes() {
        division_.whole = gradients_[0].columns;
        const std::int64_t columns = axis(division_.whole).extent;
        const std::int64_t block = std::min(block_columns_, columns);
        whole_ = std::make_shared<GraphData>(from_.axes());
        division_.blocks = whole_->add_blocks_axis(fresh_axis("blocks"), (columns + block - 1) / block);
        division_.within = whole_->add_column_axis(fresh_axis("block"), block);
        parts_ = std::make_shared<GraphData>(whole_->axes());
    }

    std::string fresh_axis(std::string_view what) const {
        std::string name = fmt::format("{}_{}", axis(division_.whole).label(), what);
        if (!is_identifier(name)) name = fmt::format("columns_{}", name);
        return whole_->unused_axis_name(std::move(name));
    }

    // The column of each block and place in it. A kernel that sees some blocks is told which they are.
    Value add_columns() {
        const auto block = static_cast<double>(parts_->axis(division_.within).extent);
        const Value first = Graph(whole_).iota(Axis{division_.blocks}, i64) * block;
        first_column_ = Value(parts_, store(first.id(), "first_column"));
        return cast(first_column_, i32) + Graph(parts_).iota(Axis{division_.within});
    }

    // ---- From whole rows to parts --------------------------------------------------------------------------------

    // A value of the whole graph as an input of the parts.
    NodeId store(NodeId id, const std::string& wanted) {
        const Node node = whole_->node(id);
        const std::string name = fresh_tensor(wanted);
        whole_->add_output({name, id, "", false, {}});
        stored_.push_back({name, node.dtype, node.axes});
        return parts_->add_input(name, node.dtype, node.axes, {});
    }

    // A value without the divided columns.
    NodeId of_rows(NodeId id) {
        if (const auto known = in_parts_.find(id); known != in_parts_.end()) return known->second;
        const Node& node = from_.node(id);
        const bool is_stored = of_many_[static_cast<std::size_t>(id)];
        const NodeId result = is_stored ? store(copies_.at(id), (node.label.empty() ? "value" : node.label) + "_of_row")
                                        : parts_->add_copy(node, [&](NodeId arg) { return of_rows(arg); });
        in_parts_[id] = result;
        return result;
    }

    // An operand of a product.
    NodeId in_memory(NodeId id) {
        const bool is_tensor = from_.node(id).kind == NodeKind::kInput || of_many_[static_cast<std::size_t>(id)];
        if (is_tensor) return of_rows(id);
        const auto [known, first] = operands_.try_emplace(id, -1);
        if (first) known->second = store(copies_.at(id), "operand");
        return known->second;
    }

    std::string fresh_tensor(std::string name) const {
        const auto taken = [&] {
            const auto is_named = [&](const auto& one) { return one.name == name; };
            return from_.find_input(name).has_value() ||
                   std::any_of(from_.outputs().begin(), from_.outputs().end(), is_named) ||
                   std::any_of(stored_.begin(), stored_.end(), is_named) ||
                   std::any_of(views_.begin(), views_.end(), is_named);
        };
        while (taken()) name += "_";
        return name;
    }

    // The name of a tensor of the original graph with the axes of the node.
    std::string view(const std::string& tensor, const Node& node) {
        const std::string name = fresh_tensor(tensor + "_in_blocks");
        views_.push_back({name, node.dtype, node.axes, tensor});
        return name;
    }

    // ---- Values along the columns --------------------------------------------------------------------------------

    bool is_along(NodeId id) const { return contains(from_.node(id).axes, division_.whole); }

    // The value at the columns of the blocks; -1 where it cannot be, for reason_.
    NodeId in_parts(NodeId id) {
        if (!is_along(id)) return of_rows(id);
        if (const auto known = in_parts_.find(id); known != in_parts_.end()) return known->second;
        const NodeId result = convert(from_.node(id), id);
        in_parts_[id] = result;
        return result;
    }

    NodeId convert(const Node& node, NodeId id) {
        switch (node.kind) {
            case NodeKind::kInput: return input(node, id);
            case NodeKind::kIota: return cast(along_rows(column_), node.dtype).id();
            case NodeKind::kMatmul: return product(node, id);
            case NodeKind::kMap:
                if (const NodeId place = place_comparison(node); place >= 0) return place;
                [[fallthrough]];
            case NodeKind::kCast:
                for (const NodeId arg : node.args) {
                    if (in_parts(arg) < 0) return -1;
                }
                return parts_->add_copy(node, [&](NodeId arg) { return in_parts(arg); });
            default: return refuse("{} is not elementwise along {}", id);
        }
    }

    // A column compared with an i64 of the row, as a class with its target: the place in the block is, with what the
    // number is beyond the block's first column, so that what is known of a coordinate's comparisons holds
    // (canonicalize, gpu_columns). −1 for anything else.
    NodeId place_comparison(const Node& node) {
        if (node.op != Op::kEq) return -1;
        for (const std::size_t which : {0, 1}) {
            const Node& compared = from_.node(node.args[which]);
            const Node& column = compared.kind == NodeKind::kCast ? from_.node(compared.args[0]) : compared;
            const NodeId number = node.args[1 - which];
            if (column.kind != NodeKind::kIota || compared.dtype != i64 || !is_along(node.args[which])) continue;
            if (is_along(number)) continue;
            const Value beyond = along_rows(Value(parts_, of_rows(number)) - first_column_);
            return (Graph(parts_).iota(Axis{division_.within}, i64) == beyond).id();
        }
        return -1;
    }

    NodeId refuse(fmt::format_string<std::string, std::string> why, NodeId id) {
        reason_ = fmt::format(why, from_.describe(id), axis(division_.whole).label());
        return -1;
    }

    // Read at the columns that the whole has; 0 beyond.
    NodeId input(const Node& node, NodeId id) {
        std::vector<Coord> coords;
        for (const AxisId each : node.axes)
            coords.push_back(each == division_.whole ? Coord(column_) : Coord(Axis{each}));
        const NodeId tensor = parts_->add_copy(from_.node(id), [](NodeId arg) { return arg; });
        return along_rows({parts_, parts_->add_index(tensor, std::move(coords))}).id();
    }

    // With all row axes, in their order: two values that lack different ones would meet in an order of their own.
    Value along_rows(const Value& value) const {
        std::optional<Value> everywhere;
        for (const AxisId row : rows_) {
            const Value here = Graph(parts_).iota(Axis{row}, i64) >= 0.0;
            everywhere = everywhere ? *everywhere && here : here;
        }
        return select(*everywhere, value, Graph(parts_).constant(value.dtype(), 0.0));
    }

    // Of rows and a weight along the columns, which is seen in blocks.
    NodeId product(const Node& node, NodeId id) {
        const std::size_t which = is_along(node.args[0]) ? 0 : 1;
        const NodeId weight = node.args[which];
        const Node& tensor = from_.node(weight);
        const bool dense = tensor.kind == NodeKind::kInput && tensor.column_strides.empty() &&
                           tensor.axes[0] == division_.whole && is_along(node.args[0]) != is_along(node.args[1]);
        if (!dense) return refuse("{} is no product with an input that lies along {} first, contiguous", id);
        std::vector<AxisId> axes = {division_.blocks, division_.within};
        axes.insert(axes.end(), tensor.axes.begin() + 1, tensor.axes.end());
        const auto [known, first] = weights_.try_emplace(weight, -1);
        if (first) {
            const std::string name = view(tensor.name, Node{.dtype = tensor.dtype, .axes = axes});
            known->second = parts_->add_input(name, tensor.dtype, axes, {});
        }
        return parts_->add_matmul(in_memory(node.args[1 - which]), known->second, node.reduced, node.dtype);
    }

    const GraphData& from_;
    const std::int64_t block_columns_;
    std::vector<bool> of_product_;  // by node: whether it is computed from a product
    std::vector<bool> of_many_;     // likewise, from what is no matter of one element
    std::vector<Gradient> gradients_;
    ColumnDivision division_;
    std::shared_ptr<GraphData> whole_;
    std::shared_ptr<GraphData> parts_;
    Value first_column_;  // of each block
    Value column_;        // of each block and place in it
    std::vector<AxisId> rows_;
    std::map<NodeId, NodeId> copies_;    // in the whole
    std::map<NodeId, NodeId> in_parts_;  // with the blocks instead of the columns
    std::map<NodeId, NodeId> operands_;  // of products, stored
    std::map<NodeId, NodeId> weights_;   // in blocks
    std::vector<Temporary> stored_;
    std::vector<Temporary> views_;
    std::string reason_;
};

}  // namespace

Offer<ColumnBlocks> divide_into_column_blocks(const GraphData& graph, std::int64_t block_columns) {
    return Rewriting(graph, block_columns).run();
}

Plan join_plans(Plan whole, const Plan& parts, const ColumnBlocks& blocks) {
    for (PlanStep step : parts.steps) {
        step.index += step.kind == PlanStep::Kind::kKernel ? whole.groups.size() : whole.products.size();
        whole.steps.push_back(step);
    }
    const auto append = [](auto* to, const auto& from) { to->insert(to->end(), from.begin(), from.end()); };
    append(&whole.groups, parts.groups);
    append(&whole.products, parts.products);
    append(&whole.notes, parts.notes);
    append(&whole.temporaries, blocks.stored);
    append(&whole.temporaries, parts.temporaries);
    append(&whole.temporaries, blocks.views);
    whole.division = blocks.division;
    return whole;
}

}  // namespace rowjit
