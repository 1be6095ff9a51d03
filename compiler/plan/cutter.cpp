// Where kernels must end: what a root's kernel would contain, and the values below it that no kernel can compute and
// use as well. What is stored although one could is cut_values.cpp's.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <ranges>
#include <set>
#include <vector>

#include "compiler/plan/cutter.h"
#include "compiler/plan/digit_orders.h"
#include "compiler/plan/partial_reductions.h"
#include "compiler/plan/plan.h"

namespace rowjit::planning {

bool reduces_rows(const GraphData& graph, const Node& node) {
    return node.kind == NodeKind::kReduce && graph.axis(node.reduced[0]).is_row;
}

bool reduces_columns(const GraphData& graph, const Node& node) {
    return node.kind == NodeKind::kReduce && !graph.axis(node.reduced[0]).is_row;
}

const Node& computed(const GraphData& graph, NodeId root) {
    const Node& node = graph.node(root);
    return node.kind == NodeKind::kPartialReduce ? graph.node(node.args[0]) : node;
}

std::vector<bool> needs(const GraphData& graph, const std::vector<NodeId>& roots) {
    std::vector<bool> found(static_cast<std::size_t>(graph.size()), false);
    for (const NodeId root : roots) found[static_cast<std::size_t>(root)] = true;
    for (NodeId id = graph.size() - 1; id >= 0; --id) {
        if (!found[static_cast<std::size_t>(id)]) continue;
        for (const NodeId arg : graph.node(id).args) found[static_cast<std::size_t>(arg)] = true;
    }
    return found;
}

Cutter::Cutter(const GraphData& graph, const Target& target, Repeated repeated, const std::set<NodeId>& stored)
    : graph_(graph),
      target_(target),
      is_gpu_(target.is_gpu()),
      runs_beside_(target.dependent_launch),
      stores_summands_(repeated == Repeated::kNotInSums),
      has_several_lists_(has_several_lists()),
      is_cut_(static_cast<std::size_t>(graph.size()), false) {
    for (const OutputInfo& output : graph.outputs()) roots_.insert(output.node);
    for (const NodeId id : stored) cut(id);
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        if (node.kind == NodeKind::kPartialReduce) cut(id);
        if (node.kind == NodeKind::kMatmul) cut_product(id);
        if (node.orders() && (is_read(id) || home(id) == nullptr)) cut(id);
        if (node.kind == NodeKind::kFix) fixes_[node.args[0]].push_back(id);
        for (std::size_t i = 0; i < node.args.size(); ++i) {
            const bool lies_there = graph.node(node.args[i]).kind == NodeKind::kInput ||
                                    (node.orders() && ids_in_memory(graph, node.args[i]));
            if (node.reads_from_memory(i) && !lies_there) cut(node.args[i]);
        }
    }
    cut_columns_of_sums();
    if (is_gpu_) cut_summed_numbers();
    if (runs_beside_) cut_sums_beside_steps();
    if (is_gpu_) cut_many_sums();
    if (is_gpu_) cut_sums_of_sums();
    if (is_gpu_) cut_sums_of_positions();
    if (repeated == Repeated::kApart) {
        cut_numbers();
        cut_broadcast();
    }
}

std::set<NodeId> Cutter::run() {
    settle();
    if (cut_repeated_numbers()) settle();
    while (is_gpu_ && cut_live_numbers()) settle();
    return roots_;
}

const Reach& Cutter::reach(NodeId root) const {
    const auto [found, first] = reaches_.try_emplace(root);
    if (first) found->second = walk(root);
    return found->second;
}

Reach Cutter::walk(NodeId root) const {
    std::vector<bool> inside(static_cast<std::size_t>(graph_.size()), false);
    inside[static_cast<std::size_t>(root)] = true;
    Reach reach;
    for (NodeId id = root; id >= 0; --id) {  // operands have smaller numbers
        if (!inside[static_cast<std::size_t>(id)]) continue;
        reach.nodes.push_back(id);
        const Node& node = graph_.node(id);
        if (node.kind == NodeKind::kMatmul) continue;
        note_reduction(node, &reach);
        // Outputs that are intermediate values of another output are computed again there, unless a rule cut them.
        for (const NodeId arg : node.args)
            if (!is_cut_[static_cast<std::size_t>(arg)]) inside[static_cast<std::size_t>(arg)] = true;
    }
    std::reverse(reach.nodes.begin(), reach.nodes.end());
    if (reach.reduces_rows) {
        for (const NodeId id : reach.nodes) {
            for (const AxisId axis : graph_.column_axes(graph_.node(id))) reach.promoted.insert(axis);
        }
    }
    return reach;
}

std::set<NodeId> Cutter::reach_with_loads(const std::vector<NodeId>& roots) const {
    std::set<NodeId> found;
    for (const NodeId root : roots) {
        for (const NodeId id : reach(root).nodes) {
            found.insert(id);
            const std::vector<NodeId>& args = graph_.node(id).args;
            found.insert(args.begin(), args.end());
        }
    }
    return found;
}

const OutputInfo* Cutter::home(NodeId id) const {
    const OutputInfo* found = nullptr;
    const bool is_product = graph_.node(id).kind == NodeKind::kMatmul;
    for (const OutputInfo& output : graph_.outputs()) {
        if (output.node != id) continue;
        if (found != nullptr || output.piece || !output.column_strides.empty()) return nullptr;
        if ((is_product || graph_.node(id).orders()) && !output.alias.empty()) return nullptr;
        if (output.accumulate && (!is_product || is_read(id))) return nullptr;
        found = &output;
    }
    return found;
}

void Cutter::settle() {
    for (bool any = true; any;) {
        any = false;
        for (const NodeId root : std::set<NodeId>(roots_)) {
            if (graph_.node(root).kind == NodeKind::kMatmul || settled_.contains(root)) continue;
            if (cut_below(root)) {
                any = true;  // which adds no root where an output was cut
            } else {
                settled_.insert(root);
            }
        }
    }
}

bool Cutter::is_read(NodeId id) const {
    const std::vector<NodeId> live = graph_.live_nodes();
    return std::any_of(live.begin(), live.end(), [&](NodeId user) { return contains(graph_.node(user).args, id); });
}

void Cutter::note_reduction(const Node& node, Reach* reach) const {
    if (node.kind == NodeKind::kPartialReduce) {
        for (const AxisId axis : node.reduced) {
            if (!graph_.axis(axis).is_row) reach->promoted.insert(axis);
        }
    }
    if (planning::reduces_rows(graph_, node)) reach->reduces_rows = true;
    if (!reduces_columns(graph_, node)) return;
    for (const AxisId axis : graph_.column_axes(graph_.node(node.args[0]))) {
        if (!contains(node.reduced, axis)) reach->promoted.insert(axis);
    }
}

// Of a fixpoint's step nothing is stored but what it comes to.
void Cutter::cut(NodeId id) {
    if (const auto fixes = fixes_.find(graph_.node(id).state); fixes != fixes_.end()) {
        for (const NodeId fix : fixes->second) cut(fix);
        return;
    }
    cuts_.insert(id);
    roots_.insert(id);
    is_cut_[static_cast<std::size_t>(id)] = true;
    // What was found through it no longer holds.
    for (auto found = reaches_.begin(); found != reaches_.end();) {
        const std::vector<NodeId>& nodes = found->second.nodes;
        const bool through = found->first != id && std::binary_search(nodes.begin(), nodes.end(), id);
        if (through) settled_.erase(found->first);
        found = through ? reaches_.erase(found) : std::next(found);
    }
}

// Whether a value below the root was cut, for the first reason there is.
bool Cutter::cut_below(NodeId root) {
    const Reach found = reach(root);
    if (has_products_ && cut_between_products(found)) return true;
    if (cut_between_lists(root, found)) return true;
    if (cut_of_fewer_rows(root, found)) return true;
    for (const NodeId id : found.nodes) {
        if (cut_for_rows_reduction(root, id, found)) return true;
    }
    // A block that adds up its rows has them whole: what sums other rows for each of them is stored first.
    if (graph_.node(root).kind == NodeKind::kPartialReduce && found.reduces_rows) {
        cut(graph_.node(root).args[0]);
        return true;
    }
    for (const NodeId id : found.nodes) {
        if (id != root && reduces_columns(graph_, graph_.node(id)) && cut_column_reduction(root, id, found))
            return true;
    }
    // What the root's own reduction promotes, nothing below it may reduce.
    for (const NodeId id : found.nodes) {
        const Node& node = graph_.node(id);
        const bool reduces_promoted = std::any_of(node.reduced.begin(), node.reduced.end(),
                                                  [&](AxisId axis) { return found.promoted.contains(axis); });
        if (id != root && reduces_columns(graph_, node) && reduces_promoted) {
            cut(id);
            return true;
        }
    }
    return graph_.node(root).kind == NodeKind::kPartialReduce && cut_below_part(root, found);
}

// A block's part of a sum over rows has a place for each column that became a row where those lie apart; elsewhere no
// column may become a row that it is not over. What it adds up is stored then where that is a number of each, else the
// last such reduction, so that those below stay with what else is made of them.
bool Cutter::cut_below_part(NodeId root, const Reach& found) {
    const NodeId summand = graph_.node(root).args[0];
    std::vector<AxisId> apart(found.promoted.begin(), found.promoted.end());
    std::erase_if(apart, [&](AxisId axis) { return contains(graph_.node(root).reduced, axis); });
    if (apart.empty()) return false;
    const std::vector<AxisId> left = graph_.column_axes(graph_.node(summand));
    const bool is_number = std::ranges::all_of(left, [&](AxisId axis) { return found.promoted.contains(axis); });
    // What else is made of those columns computes it, where they are so many that it would read them again.
    constexpr std::int64_t kManyColumns = 64;
    const auto is_of_many = [&](NodeId id) {
        const Node& node = graph_.node(id);
        return reduces_columns(graph_, node) && graph_.positions(node.reduced, 1) >= kManyColumns;
    };
    // A number beside many columns that are stored costs less than blocks that stay for it. H200, derivatives of norms:
    // of an image's channels, of 1024 columns, 0.1034 ms so and 0.1071 in such blocks; of heads of 32 0.300 and 0.120.
    const bool stores_number =
        is_number && stores_rows_of(found.promoted) && std::ranges::any_of(found.nodes, is_of_many);
    if (!stores_number && adds_apart(found, graph_.node(summand), apart)) return false;
    for (const NodeId id : std::views::reverse(found.nodes)) {
        if (!reduces_columns(graph_, graph_.node(id)) || !is_partial(graph_.node(id))) continue;
        const NodeId stored = is_number ? summand : id;
        if (is_of_many(stored)) repeated_.insert(stored);
        cut(stored);
        return true;
    }
    return false;
}

// Whether rows are stored that those columns, among others, have become.
bool Cutter::stores_rows_of(const std::set<AxisId>& promoted) const {
    return std::ranges::any_of(roots_, [&](NodeId root) {
        const std::vector<AxisId> columns = graph_.column_axes(graph_.node(root));
        const auto is_row = [&](AxisId axis) { return promoted.contains(axis); };
        return !graph_.row_axes(graph_.node(root)).empty() && !std::ranges::all_of(columns, is_row) &&
               reach(root).promoted == promoted;
    });
}

// Whether a block has a place for each position of those axes of what it adds up: the outermost of its columns, and of
// all that is reduced to it, so that a row's columns lie together in memory.
bool Cutter::adds_apart(const Reach& found, const Node& summand, const std::vector<AxisId>& apart) const {
    const auto leads = [&](const Node& node) {
        const std::vector<AxisId> columns = graph_.column_axes(node);
        return columns.size() >= apart.size() && std::equal(apart.begin(), apart.end(), columns.begin());
    };
    const auto reduces_behind = [&](NodeId id) {
        const Node& node = graph_.node(id);
        return !reduces_columns(graph_, node) || leads(graph_.node(node.args[0]));
    };
    return leads(summand) && std::ranges::all_of(found.nodes, reduces_behind) &&
           can_lie_apart(graph_, summand, apart, target_);
}

// Whether a node sums columns over segments of rows.
bool Cutter::sums_segments(NodeId id) const {
    return graph_.node(id).is_segmented() && !graph_.column_axes(graph_.node(id)).empty();
}

// On a GPU alone: a thread comes to the rows of one list when it has those of the one before, each behind two loads of
// where they are, with sums for all in its registers. The gradient of four experts' rows of 2048 bf16 columns took an
// H200 1.9 ms in one kernel, of 234 registers.
bool Cutter::has_several_lists() const {
    std::set<NodeId> lists;
    for (const NodeId id : graph_.live_nodes()) {
        if (sums_segments(id)) lists.insert(graph_.node(id).args[1]);
    }
    return is_gpu_ && lists.size() > 1;
}

bool Cutter::sum_several_lists(std::span<const NodeId> roots) const {
    if (!has_several_lists_) return false;
    std::set<NodeId> lists;
    for (const NodeId root : roots) {
        for (const NodeId id : reach(root).nodes) {
            if (sums_segments(id)) lists.insert(graph_.node(id).args[1]);
        }
    }
    return lists.size() > 1;
}

// The sums of each list are stored.
bool Cutter::cut_between_lists(NodeId root, const Reach& found) {
    if (!sum_several_lists({&root, 1})) return false;
    for (const NodeId id : found.nodes) {
        if (sums_segments(id) && id != root) cut(id);
    }
    return true;
}

// A number that many rows share, as the mean of an image's channels for each of its pixels, is found once, not by each:
// a response norm of 196 pixels of 768 bf16 channels took an H200 0.22 ms, of which 0.09 for its traffic.
bool Cutter::cut_of_fewer_rows(NodeId root, const Reach& found) {
    constexpr std::int64_t kManyColumns = 128;
    constexpr std::int64_t kManyRows = 16;
    const std::vector<AxisId> rows = graph_.row_axes(computed(graph_, root));
    bool any = false;
    for (const NodeId id : found.nodes) {
        const Node& node = graph_.node(id);
        const bool is_number = reduces_columns(graph_, node) && graph_.column_axes(node).empty() && node.state < 0;
        if (!is_number || id == root || graph_.column_count(graph_.node(node.args[0])) < kManyColumns) continue;
        const std::vector<AxisId> own = graph_.row_axes(node);  // none of a table, which a launch has once
        const bool are_fewer = std::ranges::all_of(own, [&](AxisId axis) { return contains(rows, axis); });
        std::vector<AxisId> beside = rows;
        std::erase_if(beside, [&](AxisId axis) { return contains(own, axis); });
        if (own.empty() || !are_fewer || graph_.positions(beside, kManyRows) < kManyRows) continue;
        cut(id);
        any = true;
    }
    return any;
}

// Of two products' results, which are large, one need not be in memory where a kernel uses the other if numbers of
// a row are all that it takes of the first: those are stored.
bool Cutter::cut_between_products(const Reach& found) {
    std::map<NodeId, std::set<NodeId>> products;
    const auto under = [&](NodeId id) {
        return graph_.node(id).kind == NodeKind::kMatmul ? std::set<NodeId>{id} : products[id];
    };
    std::set<NodeId> all;
    for (const NodeId id : found.nodes) {
        for (const NodeId arg : graph_.node(id).args) products[id].merge(under(arg));
        all.insert(products[id].begin(), products[id].end());
    }
    bool any = false;
    for (const NodeId product : all) {
        std::set<NodeId> numbers;
        std::set<NodeId> seen;
        bool apart = true;
        for (const NodeId id : found.nodes) {
            if (products[id].size() < 2) continue;
            for (const NodeId arg : graph_.node(id).args) {
                if (under(arg) == std::set<NodeId>{product}) apart = apart && collect_numbers(arg, &seen, &numbers);
            }
        }
        if (!apart || numbers.empty()) continue;
        for (const NodeId id : numbers) cut(id);
        any = true;
    }
    return any;
}

// The numbers of a row that `id` is made of; false where it is made of the columns of a product itself. What was
// seen before, and let pass, is not walked again.
bool Cutter::collect_numbers(NodeId id, std::set<NodeId>* seen, std::set<NodeId>* numbers) const {
    const Node& node = graph_.node(id);
    if (node.kind == NodeKind::kMatmul) return false;
    if (!seen->insert(id).second) return true;
    if (node.kind == NodeKind::kInput || cuts_.contains(id)) return true;
    if (!graph_.column_axes(node).empty())
        return std::all_of(node.args.begin(), node.args.end(),
                           [&](NodeId arg) { return collect_numbers(arg, seen, numbers); });
    if (node.kind != NodeKind::kConst && node.kind != NodeKind::kScalar) numbers->insert(id);
    return true;
}

// A reduction over rows ends its kernel, and starts from values without reductions.
bool Cutter::cut_for_rows_reduction(NodeId root, NodeId id, const Reach& found) {
    const Node& node = graph_.node(id);
    if (!planning::reduces_rows(graph_, node)) return false;
    // Its consumers may stay only where they have its own row space: elsewhere it is broadcast back over rows.
    const bool same_rows = graph_.row_axes(node) == graph_.row_axes(computed(graph_, root));
    if (id != root && (!same_rows || under_reduction(found, id))) {
        cut(id);
        return true;
    }
    const NodeId inner = reduction_below(node.args[0]);
    if (inner < 0) return false;
    // A value of one number per row of the reduction's result is the narrowest place; else that result is.
    const Node& operand = graph_.node(node.args[0]);
    const bool narrow = graph_.column_axes(operand).empty() &&
                        std::all_of(operand.axes.begin(), operand.axes.end(),
                                    [&](AxisId axis) { return contains(graph_.node(inner).axes, axis); });
    const NodeId summand = narrowest(node.args[0]);
    const bool stores_summand = stores_summands_ && graph_.node(summand).kind != NodeKind::kReduce;
    const NodeId stored = narrow ? node.args[0] : stores_summand ? summand : inner;
    // What also needs it, and has those rows, computes it: a bias that a batch's scores share takes their softmax's
    // sums from the kernel of what flows back to the scores.
    if (graph_.column_axes(graph_.node(stored)).empty()) repeated_.insert(stored);
    cut(stored);
    return true;
}

// The value, or what of fewer bytes it is, but for its dtype.
NodeId Cutter::narrowest(NodeId id) const {
    const auto bytes = [&](NodeId of) { return size_bytes(graph_.node(of).dtype); };
    while (graph_.node(id).kind == NodeKind::kCast && bytes(graph_.node(id).args[0]) < bytes(id))
        id = graph_.node(id).args[0];
    return id;
}

// Whether a column reduction leaves some columns of its operand.
bool Cutter::is_partial(const Node& reduce) const {
    return reduce.reduced.size() != graph_.column_axes(graph_.node(reduce.args[0])).size();
}

bool Cutter::cut_column_reduction(NodeId root, NodeId id, const Reach& found) {
    const bool partial = is_partial(graph_.node(id));
    // A promoted axis is part of the row space, so the root must have it and nothing may reduce over it.
    const auto promoted = [&](AxisId axis) { return found.promoted.contains(axis); };
    const bool root_lacks = std::any_of(found.promoted.begin(), found.promoted.end(),
                                        [&](AxisId axis) { return !contains(computed(graph_, root).axes, axis); });
    const bool reduced_again = std::any_of(found.nodes.begin(), found.nodes.end(), [&](NodeId other) {
        const Node& user = graph_.node(other);
        return reduces_columns(graph_, user) && std::any_of(user.reduced.begin(), user.reduced.end(), promoted);
    });
    if (!found.reduces_rows && !(partial && (root_lacks || reduced_again))) return false;
    // What else is made of those columns computes it: the sum of exponentials that a maximum is for, of each of a
    // token's heads of logits.
    if (!found.reduces_rows) repeated_.insert(id);
    cut(id);
    return true;
}

// Some reduction (not itself cut) that `from`'s computation contains: the first, depth first; -1 for none.
NodeId Cutter::reduction_below(NodeId from) const {
    std::set<NodeId> seen;
    std::vector<NodeId> work = {from};
    while (!work.empty()) {
        const NodeId id = work.back();
        work.pop_back();
        if (cuts_.contains(id) || !seen.insert(id).second) continue;
        const Node& node = graph_.node(id);
        if (node.kind == NodeKind::kReduce || node.kind == NodeKind::kFix) return id;
        work.insert(work.end(), node.args.rbegin(), node.args.rend());
    }
    return -1;
}

// Whether `found`, what the root's kernel would contain, computes a reduction from the target.
bool Cutter::under_reduction(const Reach& found, NodeId target) const {
    std::set<NodeId> computed_from_it = {target};
    for (const NodeId id : found.nodes) {  // operands before users
        const Node& node = graph_.node(id);
        const bool uses =
            std::any_of(node.args.begin(), node.args.end(), [&](NodeId arg) { return computed_from_it.contains(arg); });
        if (!uses) continue;
        if (node.kind == NodeKind::kReduce) return true;
        computed_from_it.insert(id);
    }
    return false;
}

}  // namespace rowjit::planning
