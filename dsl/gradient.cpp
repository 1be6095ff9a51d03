// Forward and backward out of the joint graph: what is saved between them, and the two graphs.
#include "rowjit/gradient.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/fail.h"
#include "base/min_cut.h"
#include "dsl/reverse.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

constexpr double kPlanningRows = 8192;  // what is saved depends on no launch's row count; a training step's is typical

bool contains(const std::vector<std::string>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// ---- Arguments ---------------------------------------------------------------------------------------------------

std::vector<std::string> checked_inputs(const GraphData& graph, std::vector<std::string> asked) {
    std::vector<std::string> tensors;
    for (NodeId id = 0; id < graph.size(); ++id) {
        if (graph.node(id).kind == NodeKind::kInput && is_float(graph.node(id).dtype))
            tensors.push_back(graph.node(id).name);
    }
    if (asked.empty()) asked = tensors;
    if (asked.empty()) fail(ErrorCode::kInvalidArgument, "gradient: the graph has no float input");
    for (std::size_t i = 0; i < asked.size(); ++i) {
        const NodeId id = find_named(graph, asked[i]);
        if (id < 0) {
            fail(ErrorCode::kInvalidArgument,
                 "gradient: '{}' is no input, and no value alone has it as its label; the float inputs are {}",
                 asked[i], fmt::join(tensors, ", "));
        }
        if (!is_float(graph.node(id).dtype)) {
            fail(ErrorCode::kInvalidArgument, "gradient: input {} has no gradient; only floats have",
                 graph.describe(id));
        }
        if (std::count(asked.begin(), asked.end(), asked[i]) > 1)
            fail(ErrorCode::kInvalidArgument, "gradient: input '{}' is named twice", asked[i]);
    }
    return asked;
}

std::vector<std::string> checked_outputs(const GraphData& graph, const std::vector<std::string>& asked) {
    std::vector<std::string> floats;
    for (const OutputInfo& output : graph.outputs()) {
        if (is_float(graph.node(output.node).dtype)) floats.push_back(output.name);
    }
    for (const std::string& name : asked) {
        if (contains(floats, name)) continue;
        fail(ErrorCode::kInvalidArgument, "gradient of '{}': it is no float output; those are {}", name,
             fmt::join(floats, ", "));
    }
    if (floats.empty()) fail(ErrorCode::kInvalidArgument, "gradient: the graph has no float output");
    return asked.empty() ? floats : asked;
}

OutputInfo& gradient_of(Joint& joint, const std::string& name, std::string_view purpose) {
    const auto found = std::find_if(joint.gradients.begin(), joint.gradients.end(),
                                    [&](const OutputInfo& gradient) { return gradient.name == "d_" + name; });
    if (found != joint.gradients.end()) return *found;
    fail(ErrorCode::kInvalidArgument, "gradient: '{}' is to be {} and is no input of the gradients", name, purpose);
}

// The value, in the dtype of accumulators: a product or a sum that was only rounded is not.
NodeId unrounded(GraphData& graph, NodeId id) {
    const Node node = graph.node(id);
    const Dtype dtype = accumulator_dtype(node.dtype);
    if (node.dtype == dtype) return id;
    if (node.kind == NodeKind::kReduce && node.monoid == Monoid::kSum && !node.is_segmented())
        return graph.add_reduce(Monoid::kSum, graph.add_cast(node.args[0], dtype), node.reduced);
    if (node.kind == NodeKind::kMatmul) return graph.add_matmul(node.args[0], node.args[1], node.reduced, dtype);
    if (node.kind == NodeKind::kCast && graph.node(node.args[0]).dtype == dtype) return node.args[0];
    return graph.add_cast(id, dtype);
}

Joint joint_of(const Graph& graph, std::vector<std::string> inputs, const GradientOptions& options) {
    const GraphData& data = *graph.data();
    Joint joint = reverse_mode(data, checked_inputs(data, std::move(inputs)), checked_outputs(data, options.of),
                               options.unit_cotangent, options.sorted);
    for (const std::string& name : options.in_place) gradient_of(joint, name, "overwritten").alias = name;
    for (const std::string& name : options.accumulate) {
        OutputInfo& found = gradient_of(joint, name, "added to");
        found.node = unrounded(*joint.graph, found.node);
        found.accumulate = true;
    }
    return joint;
}

// ---- Part of the joint graph as a graph of its own -----------------------------------------------------------------

// Copies what some outputs need, with the axes that those nodes have, and values of `given` as inputs of that name.
class Extraction {
  public:
    Extraction(const GraphData& from, std::map<NodeId, std::string> given)
        : from_(from), given_(std::move(given)), to_(std::make_shared<GraphData>()) {}

    Graph run(const std::vector<OutputInfo>& outputs) {
        std::vector<bool> live(static_cast<std::size_t>(from_.size()), false);
        for (const OutputInfo& output : outputs) live[static_cast<std::size_t>(output.node)] = true;
        for (NodeId id = from_.size() - 1; id >= 0; --id) {
            if (!live[static_cast<std::size_t>(id)] || given_.contains(id)) continue;
            for (const NodeId arg : from_.node(id).args) live[static_cast<std::size_t>(arg)] = true;
        }
        declare_axes(live);
        for (NodeId id = 0; id < from_.size(); ++id) {
            if (live[static_cast<std::size_t>(id)]) nodes_[id] = copy(id);
        }
        for (OutputInfo output : outputs) {
            output.node = nodes_.at(output.node);
            if (!to_->find_input(output.alias)) output.alias.clear();
            to_->add_output(std::move(output));
        }
        return Graph(to_);
    }

  private:
    // In the order of the joint graph.
    void declare_axes(const std::vector<bool>& live) {
        std::set<AxisId> used;
        for (NodeId id = 0; id < from_.size(); ++id) {
            const Node& node = from_.node(id);
            if (!live[static_cast<std::size_t>(id)]) continue;
            used.insert(node.axes.begin(), node.axes.end());
            if (node.kind == NodeKind::kExtent || node.kind == NodeKind::kOrder) used.insert(node.axis);
            used.insert(node.reduced.begin(), node.reduced.end());
        }
        // One that is followed may follow others, and stands before.
        for (auto id = used.rbegin(); id != used.rend(); ++id)
            used.insert(from_.axis(*id).follows.begin(), from_.axis(*id).follows.end());
        for (const AxisId id : used) {
            const AxisInfo& axis = from_.axis(id);
            if (!axis.follows.empty()) {
                axes_[id] = to_->add_row_axis_like(axis.name, axes(axis.follows), axis.more);
                continue;
            }
            axes_[id] =
                axis.is_row ? to_->add_row_axis(axis.name, axis.extent) : to_->add_column_axis(axis.name, axis.extent);
        }
    }

    std::vector<AxisId> axes(const std::vector<AxisId>& from) const {
        std::vector<AxisId> moved;
        for (const AxisId axis : from) moved.push_back(axes_.at(axis));
        return moved;
    }

    NodeId copy(NodeId id) {
        Node node = from_.node(id);
        if (const auto found = given_.find(id); found != given_.end()) {
            return to_->add_input(found->second, node.dtype, axes(node.axes), {});
        }
        node.axes = axes(node.axes);
        node.reduced = axes(node.reduced);
        if (node.axis >= 0) node.axis = axes_.at(node.axis);
        for (Coord& coord : node.coords) {
            coord = coord.substitute([&](Axis axis) { return Coord(Axis{axes_.at(axis.id)}); },
                                     [](NodeId data) { return Coord::data_node(data); });
        }
        return to_->add_copy(node, [&](NodeId arg) { return nodes_.at(arg); });
    }

    const GraphData& from_;
    std::map<NodeId, std::string> given_;
    std::shared_ptr<GraphData> to_;
    std::map<AxisId, AxisId> axes_;
    std::map<NodeId, NodeId> nodes_;
};

// ---- What to save ------------------------------------------------------------------------------------------------

class Saving {
  public:
    Saving(const Joint& joint, const GradientOptions& options)
        : joint_(joint), graph_(*joint.graph), size_(static_cast<std::size_t>(joint.forward_size)) {
        require_labels(options.save);
        require_labels(options.recompute);
        for (NodeId id = 0; id < joint.forward_size; ++id) {
            const std::string& label = graph_.node(id).label;
            const bool keep = contains(options.save, label);
            const bool again = contains(options.recompute, label);
            if (keep && again) {
                fail(ErrorCode::kInvalidArgument, "gradient: '{}' is both to be saved and to be computed again", label);
            }
            forced_.push_back(is_leaf(id) ? Forced::kNo
                              : keep      ? Forced::kSave
                              : again     ? Forced::kRecompute
                                          : Forced::kNo);
        }
        for (const OutputInfo& output : joint.forward) {
            if (!output.accumulate) output_of_.emplace(output.node, output.name);
        }
        keep_extrema_equal();
        find_read();
        find_below_reduction();
    }

    // The forward's values that the backward takes as given: inputs it reads, and what is saved.
    std::vector<NodeId> run() const {
        // Nearest the backward, so that as little as possible is computed again: the cut's source is the backward. Node
        // 2i leads into value i as the forward computes it, 2i + 1 out of it.
        const std::size_t inputs = 2 * size_;
        const std::size_t backward = inputs + 1;
        MinCut cut(inputs + 2);
        for (NodeId id = 0; id < joint_.forward_size; ++id) {
            const Node& node = graph_.node(id);
            if (is_free(node)) continue;
            const std::size_t into = 2 * static_cast<std::size_t>(id);
            cut.add_edge(into + 1, into, cost(id));
            if (must_be_given(id)) cut.add_edge(into, inputs, MinCut::kInfinite);
            if (read_[static_cast<std::size_t>(id)]) cut.add_edge(backward, into + 1, MinCut::kInfinite);
            if (must_be_given(id)) continue;
            for (const NodeId arg : node.args) {
                if (!is_free(graph_.node(arg)))
                    cut.add_edge(into, 2 * static_cast<std::size_t>(arg) + 1, MinCut::kInfinite);
            }
        }
        const std::vector<bool> side = cut.source_side(backward, inputs);
        std::vector<NodeId> given;
        for (NodeId id = 0; id < joint_.forward_size; ++id) {
            const std::size_t into = 2 * static_cast<std::size_t>(id);
            if (side[into + 1] && !side[into]) given.push_back(id);
        }
        return given;
    }

    bool is_output(NodeId id) const { return output_of_.contains(id); }

    SavedValue describe(NodeId id, std::set<std::string>* taken) const {
        const Node& node = graph_.node(id);
        SavedValue saved;
        saved.is_output = is_output(id);
        saved.name = saved.is_output ? output_of_.at(id) : saved_name(node, taken);
        saved.description = Value(joint_.graph, id).description();
        saved.bytes_per_row = static_cast<std::int64_t>(bytes(node, 1));
        saved.why = why_saved(id);
        return saved;
    }

  private:
    enum class Forced : std::uint8_t { kNo, kSave, kRecompute };

    bool is_leaf(NodeId id) const { return graph_.node(id).args.empty(); }

    void require_labels(const std::vector<std::string>& asked) const {
        std::set<std::string> labels;
        for (NodeId id = 0; id < joint_.forward_size; ++id) {
            if (!is_leaf(id) && !graph_.node(id).label.empty()) labels.insert(graph_.node(id).label);
        }
        for (const std::string& label : asked) {
            if (labels.contains(label)) continue;
            fail(ErrorCode::kInvalidArgument, "gradient: no value is labelled '{}'; the labels are {}", label,
                 fmt::join(labels, ", "));
        }
    }

    // The share of a minimum or maximum goes to the elements that are equal to it, which those computed again are only
    // to what is computed again of them, by the same instructions: not to what another kernel stored, in an f32.
    void keep_extrema_equal() {
        std::vector<bool> rounds;
        for (NodeId id = 0; id < joint_.forward_size; ++id) {
            const Node& node = graph_.node(id);
            const bool below = std::any_of(node.args.begin(), node.args.end(),
                                           [&](NodeId arg) { return rounds[static_cast<std::size_t>(arg)]; });
            rounds.push_back(below || !is_exact(node));
        }
        for (const NodeId extremum : joint_.compared) {
            const NodeId elements = graph_.node(extremum).args[0];
            if (!rounds[static_cast<std::size_t>(elements)]) continue;
            Forced& forced = forced_[static_cast<std::size_t>(extremum)];
            if (forced == Forced::kSave) {
                forced_[static_cast<std::size_t>(elements)] = Forced::kSave;
            } else {
                forced = Forced::kRecompute;
            }
        }
    }

    // Whether the result is some operand, or its sign or place changed, in no fewer bits.
    bool is_exact(const Node& node) const {
        switch (node.kind) {
            case NodeKind::kCast: return size_bytes(node.dtype) > size_bytes(graph_.node(node.args[0]).dtype);
            case NodeKind::kReduce: return node.monoid == Monoid::kMax || node.monoid == Monoid::kMin;
            case NodeKind::kMap:
                return node.op == Op::kNeg || node.op == Op::kAbs || node.op == Op::kMin || node.op == Op::kMax ||
                       node.op == Op::kSelect || node.op == Op::kDetach;
            case NodeKind::kMatmul:
            case NodeKind::kFix:
            case NodeKind::kState: return false;
            default: return true;
        }
    }

    // Values of the forward that nodes of the backward take as operands.
    void find_read() {
        read_.assign(size_, false);
        std::vector<bool> live(static_cast<std::size_t>(graph_.size()), false);
        const auto visit = [&](NodeId id) {
            if (id < joint_.forward_size) {
                read_[static_cast<std::size_t>(id)] = true;
            } else {
                live[static_cast<std::size_t>(id)] = true;
            }
        };
        for (const OutputInfo& output : joint_.gradients) visit(output.node);
        for (NodeId id = graph_.size() - 1; id >= joint_.forward_size; --id) {
            if (!live[static_cast<std::size_t>(id)]) continue;
            for (const NodeId arg : graph_.node(id).args) visit(arg);
        }
    }

    // Numbers, coordinates and launch scalars are there without memory traffic.
    static bool is_free(const Node& node) { return node.args.empty() && node.kind != NodeKind::kInput; }

    // A pass over the row.
    bool reduces(const Node& node) const {
        if (node.kind == NodeKind::kReduce) return !graph_.reduces_few(node);
        return node.kind == NodeKind::kFix;
    }

    // What the backward does not compute: inputs; reductions, which would cost it another pass over the row.
    bool must_be_given(NodeId id) const {
        const Node& node = graph_.node(id);
        const Forced forced = forced_[static_cast<std::size_t>(id)];
        if (forced == Forced::kSave) return true;
        return node.kind == NodeKind::kInput || (reduces(node) && forced != Forced::kRecompute);
    }

    double bytes(const Node& node, double rows) const {
        auto total = static_cast<double>(size_bytes(node.dtype));
        for (const AxisId axis : node.axes) {
            const std::int64_t extent = graph_.axis(axis).extent;
            total *= extent == kRuntimeExtent ? rows : static_cast<double>(extent);
        }
        return total;
    }

    // Bytes for each row: what is stored and read again, or only read.
    double cost(NodeId id) const {
        const Node& node = graph_.node(id);
        const Forced forced = forced_[static_cast<std::size_t>(id)];
        // A detached value is its operand, and is stored under its operand's name.
        const bool detached = node.kind == NodeKind::kMap && node.op == Op::kDetach;
        if (forced == Forced::kRecompute || detached) return MinCut::kInfinite;
        if (forced == Forced::kSave) return 0;
        const bool only_read = node.kind == NodeKind::kInput || is_output(id);
        return bytes(node, kPlanningRows) / kPlanningRows * (only_read ? 1 : 2);
    }

    static std::string saved_name(const Node& node, std::set<std::string>* taken) {
        const std::string stem = node.label.empty() ? std::string("saved") : "saved_" + node.label;
        std::string name = stem;
        for (int suffix = 1; !taken->insert(name).second; ++suffix) name = fmt::format("{}_{}", stem, suffix);
        return name;
    }

    std::string why_saved(NodeId id) const {
        if (forced_[static_cast<std::size_t>(id)] == Forced::kSave) return "asked for";
        if (is_output(id)) return "an output of the forward already";
        if (below_reduction_[static_cast<std::size_t>(id)]) return "computing it again would reduce again";
        return "fewer bytes than what it is computed from";
    }

    void find_below_reduction() {
        for (NodeId id = 0; id < joint_.forward_size; ++id) {
            const Node& node = graph_.node(id);
            const bool below = std::any_of(node.args.begin(), node.args.end(),
                                           [&](NodeId arg) { return below_reduction_[static_cast<std::size_t>(arg)]; });
            below_reduction_.push_back(below || reduces(node));
        }
    }

    const Joint& joint_;
    const GraphData& graph_;
    std::size_t size_;
    std::vector<Forced> forced_;               // by forward node
    std::vector<bool> read_;                   // likewise
    std::vector<bool> below_reduction_;        // likewise: those computed from a reduction, and reductions
    std::map<NodeId, std::string> output_of_;  // the output that already stores a value
};

std::set<std::string> names_of(const Joint& joint) {
    std::set<std::string> names;
    for (NodeId id = 0; id < joint.graph->size(); ++id) names.insert(joint.graph->node(id).name);
    for (const OutputInfo& output : joint.forward) names.insert(output.name);
    for (const OutputInfo& output : joint.gradients) names.insert(output.name);
    return names;
}

void require_intact(const Joint& joint, const Node& input) {
    for (const OutputInfo& output : joint.forward) {
        if (output.alias != input.name) continue;
        fail(ErrorCode::kUnsupported,
             "gradient: output '{}' overwrites input '{}', which the backward reads; give the output a buffer of its "
             "own",
             output.name, input.name);
    }
}

// The gradients, each that overwrites a value overwriting the input as which the backward has it.
std::vector<OutputInfo> in_place_of_saved(const Joint& joint, const std::map<NodeId, std::string>& given) {
    std::vector<OutputInfo> gradients = joint.gradients;
    for (OutputInfo& gradient : gradients) {
        if (gradient.alias.empty() || joint.graph->find_input(gradient.alias)) continue;
        const auto saved = given.find(find_named(*joint.graph, gradient.alias));
        if (saved == given.end()) {
            fail(ErrorCode::kInvalidArgument,
                 "gradient: '{}' is to be overwritten, and the backward is not given it; differentiate() with it saved",
                 gradient.alias);
        }
        gradient.alias = saved->second;
    }
    return gradients;
}

std::vector<RecomputedValue> recomputed_values(const Joint& joint, const std::map<NodeId, std::string>& given) {
    const GraphData& graph = *joint.graph;
    std::vector<bool> live(static_cast<std::size_t>(graph.size()), false);
    for (const OutputInfo& output : joint.gradients) live[static_cast<std::size_t>(output.node)] = true;
    std::vector<RecomputedValue> found;
    for (NodeId id = graph.size() - 1; id >= 0; --id) {
        if (!live[static_cast<std::size_t>(id)] || given.contains(id)) continue;
        const Node& node = graph.node(id);
        std::vector<std::string> from;
        for (const NodeId arg : node.args) {
            live[static_cast<std::size_t>(arg)] = true;
            if (!graph.node(arg).label.empty()) from.push_back(graph.node(arg).label);
        }
        if (id >= joint.forward_size || node.args.empty() || node.label.empty()) continue;
        found.push_back({node.label, from.empty()
                                         ? "from what the backward reads"
                                         : fmt::format("from {}, which the backward has", fmt::join(from, " and "))});
    }
    std::reverse(found.begin(), found.end());
    return found;
}

}  // namespace

RowOrder row_order(std::span<const std::int64_t> ids, std::int64_t rows) {
    RowOrder found;
    found.order.resize(ids.size());
    std::iota(found.order.begin(), found.order.end(), 0);
    const auto id = [&](std::int64_t position) { return ids[static_cast<std::size_t>(position)]; };
    std::stable_sort(found.order.begin(), found.order.end(),
                     [&](std::int64_t a, std::int64_t b) { return id(a) < id(b); });
    std::int64_t first = 0;
    for (std::int64_t row = 0; row <= rows; ++row) {
        while (first < std::ssize(ids) && id(found.order[static_cast<std::size_t>(first)]) < row) ++first;
        found.offsets.push_back(first);
    }
    return found;
}

Graph gradient(const Graph& graph, std::vector<std::string> inputs, const GradientOptions& options) {
    const Joint joint = joint_of(graph, std::move(inputs), options);
    std::vector<OutputInfo> outputs;
    if (options.joint) outputs = joint.forward;
    const std::vector<OutputInfo> gradients = in_place_of_saved(joint, {});
    outputs.insert(outputs.end(), gradients.begin(), gradients.end());
    return Extraction(*joint.graph, {}).run(outputs);
}

Differentiated differentiate(const Graph& graph, std::vector<std::string> inputs, const GradientOptions& options) {
    const Joint joint = joint_of(graph, std::move(inputs), options);
    const Saving saving(joint, options);
    Differentiated result;
    std::vector<OutputInfo> forward = joint.forward;
    std::map<NodeId, std::string> given;
    std::set<std::string> taken = names_of(joint);
    for (const NodeId id : saving.run()) {
        const Node& node = joint.graph->node(id);
        if (node.kind == NodeKind::kInput) {
            require_intact(joint, node);
            continue;
        }
        SavedValue saved = saving.describe(id, &taken);
        given[id] = saved.name;
        if (!saved.is_output) forward.push_back({saved.name, id, "", false, {}});
        result.saved.push_back(std::move(saved));
    }
    result.forward = Extraction(*joint.graph, {}).run(forward);
    result.backward = Extraction(*joint.graph, given).run(in_place_of_saved(joint, given));
    result.recomputed = recomputed_values(joint, given);
    return result;
}

}  // namespace rowjit
