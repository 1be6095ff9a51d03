// Cutting the graph where a kernel must end (cutter.h), then joining the pieces that are cheaper together
// (plan_joins.cpp), in an order that they can run in, and in as little memory (plan_memory.cpp); each is then a graph
// of its own (plan_groups.cpp).
#include "compiler/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "compiler/plan/cutter.h"
#include "compiler/plan/digit_orders.h"
#include "compiler/plan/group_costs.h"
#include "compiler/plan/online.h"
#include "compiler/plan/partial_reductions.h"
#include "compiler/plan/planner.h"
#include "compiler/plan/squares_of_rows.h"

namespace rowjit {
namespace planning {

Planner::Planner(std::shared_ptr<const GraphData> graph, const Target& target, Repeated repeated, std::string_view stem,
                 const Runs& runs, const std::set<NodeId>& stored)
    : given_(std::move(graph)),
      graph_(given_),
      target_(target),
      stem_(stem),
      runs_(runs),
      shown_wide_(shown_wide(*given_)),
      cutter_(*given_, target_, repeated, stored) {
    int number = 0;
    for (NodeId id = 0; id < graph_->size(); ++id) {
        numbers_.push_back(number);
        const NodeKind kind = graph_->node(id).kind;
        const bool is_leaf = kind == NodeKind::kInput || kind == NodeKind::kScalar || kind == NodeKind::kConst ||
                             kind == NodeKind::kIota || kind == NodeKind::kExtent;
        number += is_leaf ? 0 : 1;
    }
}

Plan Planner::run() {
    start(cutter_.run());
    join();
    order();
    reuse_memory();
    reuse_apart();
    Plan plan;
    plan.graph = graph_;
    for (const NodeId id : cutter_.cuts_) {
        if (!is_temporary(id)) continue;
        if (const auto packed = packed_.find(id); packed != packed_.end()) {
            if (packed->second.first == id)
                plan.temporaries.push_back({temporary_name(id), graph_->node(id).dtype, packed_axes(id)});
            continue;
        }
        const Node node = with_shared_slots(id).value_or(graph_->node(id));
        const NodeId over = memory_of(id);
        plan.temporaries.push_back({temporary_name(id), node.dtype, node.axes, over == id ? "" : temporary_name(over)});
    }
    for (const Piece& piece : pieces_) {
        if (piece.is_product) {
            plan.steps.push_back({PlanStep::Kind::kProduct, plan.products.size()});
            plan.products.push_back(product(piece.roots[0]));
        } else {
            plan.steps.push_back({PlanStep::Kind::kKernel, plan.groups.size()});
            plan.groups.push_back(group(piece));
        }
    }
    plan.notes = notes_;
    check_aliases(plan);
    return plan;
}

std::vector<AxisId> Planner::slots_for_nothing() const {
    std::vector<AxisId> slots;
    for (const Piece& piece : pieces_) {
        if (piece.is_product || !makes_parts_alone(piece)) continue;
        const std::vector<NodeId> below = cutter_.reach_of_all(piece.roots);
        if (std::ranges::any_of(below, [&](NodeId id) { return reduces_columns(*graph_, graph_->node(id)); })) continue;
        for (const NodeId root : piece.roots) {
            const Node& node = graph_->node(root);
            if (node.axes[0] != node.axis) slots.push_back(node.axis);
        }
    }
    return slots;
}

std::vector<NodeId> Planner::values_that_part_what_does_not_run() const {
    std::vector<NodeId> found;
    for (const Piece& piece : pieces_) {
        if (piece.is_product || piece.copies || runs_(group(piece))) continue;
        if (const NodeId middle = middle_of(cutter_.reach_of_all(piece.roots), piece); middle >= 0)
            found.push_back(middle);
    }
    return found;
}

// Of a row's columns that the kernel computes, those of which about half of it is made; -1 where there is nothing
// to store.
NodeId Planner::middle_of(const std::vector<NodeId>& nodes, const Piece& piece) const {
    NodeId best = -1;
    std::size_t least = nodes.size();
    for (const NodeId id : nodes) {
        const Node& node = graph_->node(id);
        const bool computed = node.kind == NodeKind::kMap || node.kind == NodeKind::kCast;
        if (!computed || !is_float(node.dtype) || node.state >= 0 || is_root(piece, id)) continue;
        if (cutter_.cuts_.contains(id) || graph_->column_axes(node).empty()) continue;
        const std::vector<bool> below = needs(*graph_, {id});
        const auto made_of = static_cast<std::size_t>(
            std::ranges::count_if(nodes, [&](NodeId other) { return below[static_cast<std::size_t>(other)]; }));
        const std::size_t larger = std::max(made_of, nodes.size() - made_of);
        if (larger >= least) continue;
        least = larger;
        best = id;
    }
    return best;
}

// What is made apart, a product or an order, and what copies it to outputs that cannot be its home.
void Planner::add_apart(NodeId root) {
    Piece one = piece({root});
    one.is_product = graph_->node(root).kind == NodeKind::kMatmul;
    one.is_apart = true;
    pieces_.push_back(one);
    if (cutter_.home(root) != nullptr || !is_output(root)) return;
    one.is_product = false;
    one.is_apart = false;
    one.copies = true;
    pieces_.push_back(one);
}

bool Planner::is_output(NodeId id) const {
    return std::any_of(graph_->outputs().begin(), graph_->outputs().end(),
                       [&](const OutputInfo& output) { return output.node == id; });
}

Piece Planner::piece(std::vector<NodeId> roots) {
    Piece result{std::move(roots), {}, {}};
    for (const NodeId root : result.roots) {
        const Reach& reach = cutter_.reach(root);
        result.reduces_rows = result.reduces_rows || reach.reduces_rows;
        result.promoted.insert(reach.promoted.begin(), reach.promoted.end());
    }
    for (const AxisId axis : computed(*graph_, result.roots[0]).axes) {
        if (graph_->axis(axis).is_row || result.promoted.contains(axis)) result.row_axes.push_back(axis);
    }
    result.is_long = cutter_.is_long(result.roots);
    result.needs = needs(*graph_, result.roots);
    if (graph_->node(result.roots[0]).kind != NodeKind::kMatmul)
        result.cost_us = predicted_us(*subgraph(result), target_, kPlanningRows);
    result.id = next_id_++;
    return result;
}

// By node: the output in pieces that it, and what sums over rows it is parts of, is for; "" for several and others.
std::vector<std::string> Planner::parts_of() const {
    std::vector<std::string> found(static_cast<std::size_t>(graph_->size()));
    std::set<NodeId> shared;
    const auto mark = [&](NodeId id, const std::string& whole) {
        std::string& known = found[static_cast<std::size_t>(id)];
        if (!known.empty() && known != whole) shared.insert(id);
        known = whole;
    };
    for (const OutputInfo& output : graph_->outputs()) {
        if (!output.piece) shared.insert(output.node);
        if (output.piece) mark(output.node, output.tensor());
    }
    for (NodeId id = graph_->size() - 1; id >= 0; --id) {
        const Node& node = graph_->node(id);
        const bool of_numbers = node.kind == NodeKind::kMap && node.axes.empty();
        const bool of_parts = node.kind == NodeKind::kCast || of_numbers || reduces_rows(*graph_, node);
        const std::string whole = shared.contains(id) ? "" : found[static_cast<std::size_t>(id)];
        found[static_cast<std::size_t>(id)] = whole;
        for (const NodeId arg : node.args) {
            if (of_parts && !whole.empty()) {
                mark(arg, whole);
            } else {
                shared.insert(arg);
            }
        }
    }
    return found;
}

// Numbers that one kernel stores for the next lie in one tensor, each for all rows in turn, so that threads, which
// have a row each, meet in memory.
void Planner::pack(const std::vector<NodeId>& numbers) {
    const auto count = std::count_if(numbers.begin(), numbers.end(), [&](NodeId id) { return is_temporary(id); });
    if (count == 0) return;
    auto with_axis = std::make_shared<GraphData>(*graph_);
    const AxisId axis = with_axis->add_row_axis(fmt::format("rj_numbers_{}", count), count);
    graph_ = with_axis;
    NodeId first = -1;
    std::int64_t at = 0;
    for (const NodeId id : numbers) {
        if (!is_temporary(id)) continue;
        if (first < 0) first = id;
        packed_[id] = {first, axis, at++};
    }
}

// A piece for each root, but one for all that one output is stored from in like ways, one for the parts of a pair, and
// one for numbers that are stored being too many.
void Planner::start(std::set<NodeId> roots) {
    for (const auto& [kernel, together] : cutter_.stored_numbers()) {
        pack(together);
        pieces_.push_back(piece(together));
        for (const NodeId root : together) roots.erase(root);
    }
    const std::vector<std::string> parts = parts_of();
    std::map<AxisId, std::vector<NodeId>> pairs;
    for (const NodeId root : roots) {
        const Node& node = graph_->node(root);
        if (node.kind == NodeKind::kPartialReduce && components(node.monoid) > 1) pairs[node.axis].push_back(root);
    }
    for (const auto& [slots, pair] : pairs) {
        pieces_.push_back(piece(pair));
        for (const NodeId root : pair) roots.erase(root);
    }
    std::map<std::tuple<std::string, NodeKind, bool, bool>, std::vector<NodeId>> together;
    for (const NodeId root : roots) {
        const std::string& whole = parts[static_cast<std::size_t>(root)];
        if (graph_->node(root).kind == NodeKind::kMatmul || graph_->node(root).orders()) {
            add_apart(root);
        } else if (whole.empty()) {
            pieces_.push_back(piece({root}));
        } else {
            together[{whole, graph_->node(root).kind, cutter_.reach(root).reduces_rows, cutter_.is_long({root})}]
                .push_back(root);
        }
    }
    for (const auto& [way, of_whole] : together) {
        for (std::size_t first = 0; first < of_whole.size();) {
            std::size_t end = first + 1;
            while (end < of_whole.size() && sums({&of_whole[first], end - first + 1}) <= kMostSums) ++end;
            pieces_.push_back(piece({&of_whole[first], &of_whole[first] + (end - first)}));
            first = end;
        }
    }
}

// Producers before consumers; among the ready, kernels that the next may run beside, other kernels, then products of
// fewer readers, whose memory is free again the sooner; else graph order.
void Planner::order() {
    std::vector<Piece> ordered;
    while (!pieces_.empty()) {
        auto next = pieces_.end();
        std::size_t least = 0;
        for (auto piece = pieces_.begin(); piece != pieces_.end(); ++piece) {
            const bool ready = std::none_of(pieces_.begin(), pieces_.end(), [&](const Piece& other) {
                return &other != &*piece && depends(*piece, other);
            });
            if (!ready) continue;
            const std::size_t rank = piece->is_product ? 2 + readers_of(piece->roots[0]) : piece->is_long ? 0 : 1;
            if (next != pieces_.end() && rank >= least) continue;
            next = piece;
            least = rank;
        }
        RJ_CHECK(next != pieces_.end(), "plan: groups depend on each other in a cycle");
        ordered.push_back(*next);
        pieces_.erase(next);
    }
    pieces_ = std::move(ordered);
}

std::size_t Planner::readers_of(NodeId product) const {
    return static_cast<std::size_t>(std::count_if(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
        return piece.copies ? piece.roots[0] == product : reads(piece, product);
    }));
}

// Numbered by what is computed before it: where constants stand among the nodes is an accident of how the graph was
// built, and equal graphs are to have equal kernels. A group that is planned again has the temporaries of its first
// plan as inputs and outputs.
std::string Planner::temporary_name(NodeId id) const {
    std::string name = fmt::format("{}_{}", stem_, numbers_[static_cast<std::size_t>(id)]);
    const auto taken = [&] {
        return graph_->find_input(name).has_value() ||
               std::any_of(graph_->outputs().begin(), graph_->outputs().end(),
                           [&](const OutputInfo& output) { return output.name == name; });
    };
    while (taken()) name += "_";
    return name;
}

// The tensor in which what is cut lies.
std::string Planner::place_of(NodeId id) const {
    const OutputInfo* output = cutter_.home(id);
    return output != nullptr ? output->name : temporary_name(id);
}

std::string Planner::describe(const Piece& piece) const {
    std::vector<std::pair<std::string, int>> values;  // and how many are described alike, as parts of one are
    for (const NodeId root : piece.roots) {
        const std::string text = graph_->describe(root);
        if (values.empty() || values.back().first != text) values.emplace_back(text, 0);
        ++values.back().second;
    }
    std::string text;
    for (const auto& [value, count] : values) {
        text += text.empty() ? "{" : ", ";
        text += count > 1 ? fmt::format("{} × {}", count, value) : value;
    }
    return text + "}";
}

}  // namespace planning

const Temporary* find_temporary(const Plan& plan, std::string_view name) {
    const auto found = std::ranges::find_if(plan.temporaries, [&](const Temporary& one) { return one.name == name; });
    return found == plan.temporaries.end() ? nullptr : &*found;
}

Node declared_tensor(const Plan& plan, const std::string& name) {
    if (const Temporary* one = find_temporary(plan, name)) return {.dtype = one->dtype, .axes = one->axes};
    if (const auto input = plan.graph->find_input(name)) return plan.graph->node(*input);
    for (const OutputInfo& output : plan.graph->outputs()) {
        if (output.name != name) continue;
        const Node& node = plan.graph->node(output.node);
        return {.dtype = node.dtype, .axes = node.axes, .column_strides = output.column_strides};
    }
    RJ_CHECK(false, "plan: no tensor {}", name);
}

Plan make_plan(const std::shared_ptr<const GraphData>& graph, const Target& target, Repeated repeated,
               std::string_view stem, const Runs& runs) {
    constexpr int kMostPartings = 6;  // each halves what does not run
    std::set<NodeId> whole;
    std::set<NodeId> stored;
    const std::shared_ptr<const GraphData> with_passes = reduce_by_turns(
        rewrite_online_rows(square_rows_at_once(order_by_digits(graph, target), target), target), target);
    for (int partings = 0;;) {
        const PartialReductions sums = split_row_reductions(with_passes, target, whole);
        planning::Planner planner(sums.graph, target, repeated, stem, runs, stored);
        Plan plan = planner.run();
        if (const std::vector<AxisId> slots = planner.slots_for_nothing(); !slots.empty()) {
            for (const AxisId axis : slots) {
                const std::set<NodeId>& of_parts = sums.of_slots.at(axis);
                whole.insert(of_parts.begin(), of_parts.end());
            }
            stored.clear();  // which are nodes of the graph with those sums' parts
            continue;
        }
        if (!runs || ++partings > kMostPartings) return plan;
        const std::vector<NodeId> values = planner.values_that_part_what_does_not_run();
        if (values.empty()) return plan;
        stored.insert(values.begin(), values.end());
    }
}

}  // namespace rowjit
