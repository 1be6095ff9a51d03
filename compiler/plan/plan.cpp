// Cutting the graph where a kernel must end, then joining the pieces that are cheaper together.
#include "compiler/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/fail.h"
#include "compiler/plan/differences.h"
#include "compiler/plan/live_numbers.h"
#include "compiler/plan/partial_sums.h"

namespace rowjit {
namespace {

constexpr double kPlanningRows =
    8192;                          // plans do not depend on the row count of a launch; a training step's is typical
constexpr double kLaunchUs = 2.5;  // H200, kernel to kernel on one stream
constexpr double kCpuLaunchUs = 5;
constexpr double kPlanningParts = 256;  // of a sum over rows: about a block or two on each multiprocessor
// Ten rounds of Philox for four neighbours are twenty wide multiplications, at half the rate of plain ones.
constexpr double kUniformSpecials = 2;
// Angles are reduced exactly: rope_positions of 32 heads of 128 bf16 columns took 0.183 ms (H200), of which memory
// 0.064.
constexpr double kTrigonometricSpecials = 5;
constexpr std::size_t kMaxNameLength = 60;
constexpr std::int64_t kWideRowBytes = 16 * 1024;
constexpr std::size_t kMostSums = 32;  // over rows in one kernel: a thread has some seven registers for each

// Rows of a tensor: the run-time part of its extent, for a program of `rows` rows.
double elements(const GraphData& graph, const Node& node, double rows) {
    double count = 1;
    bool runtime = false;
    for (const AxisId id : node.axes) {
        const std::int64_t extent = graph.axis(id).extent;
        if (graph.axis(id).is_slots) {
            count *= std::max(1.0, kPlanningParts / (count * (runtime ? rows : 1)));  // of each outer position
        } else if (graph.axis(id).blocks > 0) {
            count *= static_cast<double>(graph.axis(id).blocks);
        } else if (extent == kRuntimeExtent) {
            runtime = true;
        } else {
            count *= static_cast<double>(extent);
        }
    }
    return count * (runtime ? rows : 1);
}

bool is_trigonometric(Op op) { return op == Op::kSin || op == Op::kCos; }

// What an element of an operation takes of the throughput that runs out first on narrow data, in exponentials.
double specials_of(Op op) {
    if (is_trigonometric(op)) return kTrigonometricSpecials;
    if (op == Op::kUniform) return kUniformSpecials;
    return op == Op::kDiv || (op >= Op::kSqrt && op <= Op::kCos) ? 1 : 0.1;
}

bool reduces_rows(const GraphData& graph, const Node& node) {
    return node.kind == NodeKind::kReduce && graph.axis(node.reduced[0]).is_row;
}

bool reduces_columns(const GraphData& graph, const Node& node) {
    return node.kind == NodeKind::kReduce && !graph.axis(node.reduced[0]).is_row;
}

// The node whose elements a root's kernel computes: of a partial sum, what it sums.
const Node& computed(const GraphData& graph, NodeId root) {
    const Node& node = graph.node(root);
    return node.kind == NodeKind::kPartialSum ? graph.node(node.args[0]) : node;
}

// By node: whether a root is computed from it, or is it.
std::vector<bool> needs(const GraphData& graph, const std::vector<NodeId>& roots) {
    std::vector<bool> found(static_cast<std::size_t>(graph.size()), false);
    for (const NodeId root : roots) found[static_cast<std::size_t>(root)] = true;
    for (NodeId id = graph.size() - 1; id >= 0; --id) {
        if (!found[static_cast<std::size_t>(id)]) continue;
        for (const NodeId arg : graph.node(id).args) found[static_cast<std::size_t>(arg)] = true;
    }
    return found;
}

// What one root's kernel would contain: found by walking from the root to inputs and to values cut before.
struct Reach {
    std::vector<NodeId> nodes;  // operands before users
    bool reduces_rows = false;
    std::set<AxisId> promoted;  // column axes that become row axes
};

// Decides which computed values must be stored between kernels. Each rule cuts where the value is narrow already.
class Cutter {
  public:
    Cutter(const GraphData& graph, const Target& target, Repeated repeated, const std::set<NodeId>& stored)
        : graph_(graph), is_gpu_(target.is_gpu()), is_cut_(static_cast<std::size_t>(graph.size()), false) {
        for (const OutputInfo& output : graph.outputs()) roots_.insert(output.node);
        for (const NodeId id : stored) cut(id);
        for (const NodeId id : graph.live_nodes()) {
            const Node& node = graph.node(id);
            if (node.kind == NodeKind::kPartialSum) cut(id);
            if (node.kind == NodeKind::kMatmul) cut_product(id);
            if (node.kind == NodeKind::kFix) fixes_[node.args[0]].push_back(id);
            for (std::size_t i = 0; i < node.args.size(); ++i) {
                if (node.reads_from_memory(i) && graph.node(node.args[i]).kind != NodeKind::kInput) cut(node.args[i]);
            }
        }
        cut_choices();
        cut_columns_of_sums();
        if (is_gpu_) cut_summed_numbers();
        if (is_gpu_) cut_many_sums();
        if (is_gpu_) cut_sums_of_sums();
        if (repeated == Repeated::kApart) {
            cut_numbers();
            cut_broadcast();
        }
    }

    // The values to compute in kernels of their own: outputs and cuts.
    std::set<NodeId> run() {
        settle();
        if (cut_repeated_numbers()) settle();
        while (is_gpu_ && cut_live_numbers()) settle();
        return roots_;
    }

    // Values that one kernel stores for the next, of what would be too many numbers for one, by kernel: by their row
    // space and dtype, how often numbers were stored before them, and how many such kernels and other cuts they wait
    // for, so that none of them waits for itself.
    using KernelOfNumbers = std::tuple<std::vector<AxisId>, Dtype, int, int>;
    std::map<KernelOfNumbers, std::vector<NodeId>> stored_numbers() const {
        std::map<KernelOfNumbers, std::vector<NodeId>> found;
        for (const auto& [id, times] : stored_numbers_) {
            const Node& node = graph_.node(id);
            found[{node.axes, node.dtype, times, cuts_behind(id)}].push_back(id);
        }
        return found;
    }

    // A number of a row that a kernel may also compute which needs it, and then stores it.
    bool is_repeated_number(NodeId id) const { return repeated_.contains(id); }

    const Reach& reach(NodeId root) const {
        const auto [found, first] = reaches_.try_emplace(root);
        if (first) found->second = walk(root);
        return found->second;
    }

    Reach walk(NodeId root) const {
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

    // What a kernel of these roots computes or loads.
    std::set<NodeId> reach_with_loads(const std::vector<NodeId>& roots) const {
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

    // The output in which a value lies that later steps read, or that a product makes: a library writes there, and
    // nothing is stored twice. None where what the output stores is not the value, as it is, in its own order.
    const OutputInfo* home(NodeId id) const {
        const OutputInfo* found = nullptr;
        const bool is_product = graph_.node(id).kind == NodeKind::kMatmul;
        for (const OutputInfo& output : graph_.outputs()) {
            if (output.node != id) continue;
            if (found != nullptr || output.piece || !output.column_strides.empty()) return nullptr;
            if (is_product && !output.alias.empty()) return nullptr;
            if (output.accumulate && (!is_product || is_read(id))) return nullptr;
            found = &output;
        }
        return found;
    }

  private:
    void settle() {
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

    // A kernel that waits for one which has read the same wide rows, as a gradient of logits waits for its sequence's
    // log-probabilities, takes what those rows come to from memory: it reads them once less.
    bool cut_repeated_numbers() {
        for (const NodeId later : roots_) {
            std::vector<NodeId> numbers;
            for (const NodeId id : reach(later).nodes) {
                const Node& node = graph_.node(id);
                const bool is_number = reduces_columns(graph_, node) && graph_.column_axes(node).empty();
                if (is_number && id != later && widest_row_bytes(id) > kWideRowBytes) numbers.push_back(id);
            }
            if (numbers.empty()) continue;
            const std::vector<bool> needed = needs(graph_, {later});
            for (const NodeId first : cuts_) {
                if (first == later || !needed[static_cast<std::size_t>(first)]) continue;
                const std::vector<NodeId>& known = reach(first).nodes;
                for (const NodeId id : numbers) {
                    if (std::binary_search(known.begin(), known.end(), id)) repeated_.insert(id);
                }
            }
        }
        for (const NodeId id : repeated_) cut(id);
        return !repeated_.empty();
    }

    bool is_read(NodeId id) const {
        const std::vector<NodeId> live = graph_.live_nodes();
        return std::any_of(live.begin(), live.end(), [&](NodeId user) { return contains(graph_.node(user).args, id); });
    }

    // A choice by an extent between what is reduced and what is stored is stored too, not made by all that read it:
    // where it falls on what is stored, a launch does without the kernel (compiler/needless).
    void cut_choices() {
        for (const NodeId id : graph_.live_nodes()) {
            const Node& node = graph_.node(id);
            if (node.kind != NodeKind::kMap || node.op != Op::kSelect) continue;
            const Node& condition = graph_.node(node.args[0]);
            const bool of_extent = condition.kind == NodeKind::kMap && condition.axes.empty() &&
                                   graph_.node(condition.args[0]).kind == NodeKind::kExtent;
            const bool reduces = graph_.node(node.args[1]).kind == NodeKind::kReduce;
            if (of_extent && reduces && is_cut_[static_cast<std::size_t>(node.args[2])]) cut(id);
        }
    }

    // What sums over rows come to is a number of each column. What takes long to make of those, a mean or a root, is
    // made where they are added up, and not for each row again; so is what takes long to make of other numbers of the
    // columns, and is wanted there too.
    void cut_columns_of_sums() {
        const std::vector<NodeId> live = graph_.live_nodes();
        std::vector<bool> with_sums(static_cast<std::size_t>(graph_.size()), false);
        std::vector<bool> dear(static_cast<std::size_t>(graph_.size()), false);
        std::vector<NodeId> wanted;  // by rows, of what is dear
        for (const NodeId id : live) {
            const Node& node = graph_.node(id);
            const auto any = [&](const std::vector<bool>& is) {
                return std::any_of(node.args.begin(), node.args.end(),
                                   [&](NodeId arg) { return is[static_cast<std::size_t>(arg)]; });
            };
            const std::vector<AxisId> rows = graph_.row_axes(node);
            if (std::any_of(rows.begin(), rows.end(), [&](AxisId axis) { return graph_.axis(axis).is_given(); })) {
                for (const NodeId arg : node.args) {
                    if (dear[static_cast<std::size_t>(arg)] && !graph_.column_axes(graph_.node(arg)).empty())
                        wanted.push_back(arg);
                }
                continue;
            }
            const bool special = node.kind == NodeKind::kMap && specials_of(node.op) >= 1;
            dear[static_cast<std::size_t>(id)] = special || any(dear);
            with_sums[static_cast<std::size_t>(id)] = any(with_sums) || rowjit::reduces_rows(graph_, node);
        }
        for (const NodeId id : std::views::reverse(live)) {
            if (!with_sums[static_cast<std::size_t>(id)]) continue;
            for (const NodeId arg : graph_.node(id).args) {
                if (dear[static_cast<std::size_t>(arg)]) with_sums[static_cast<std::size_t>(arg)] = true;
            }
        }
        for (const NodeId id : wanted) {
            if (with_sums[static_cast<std::size_t>(id)]) cut(id);
        }
    }

    // Blocks that keep parts of sums over rows stay on their multiprocessors and come to their rows one after the
    // other. Where such a block stores a wide row besides, this is dear: what rows come to is then stored, and summed
    // by a kernel of its own. H200, cross-entropy and its gradient of 8192 rows of 128256 bf16 classes: 4.5 ms, or 1.6.
    void cut_summed_numbers() {
        for (const NodeId id : graph_.live_nodes()) {
            if (graph_.node(id).kind != NodeKind::kPartialSum) continue;
            const NodeId summand = graph_.node(id).args[0];
            if (!graph_.column_axes(graph_.node(summand)).empty()) continue;
            if (widest_row_bytes(summand) > kWideRowBytes && stores_beside(summand)) cut(summand);
        }
    }

    // A block has each sum of rows' numbers in a register from its first row to its last, beside all that a row takes.
    // Where those are many the numbers are stored, and summed by kernels that do nothing else.
    void cut_many_sums() {
        std::map<std::vector<AxisId>, std::set<NodeId>> summands;
        for (const NodeId id : graph_.live_nodes()) {
            const Node& node = graph_.node(id);
            if (node.kind != NodeKind::kPartialSum || !graph_.column_axes(graph_.node(node.args[0])).empty()) continue;
            summands[graph_.node(node.args[0]).axes].insert(node.args[0]);
        }
        for (const auto& [rows, numbers] : summands) {
            if (numbers.size() <= kMostSums) continue;
            for (const NodeId id : numbers) {
                if (graph_.node(id).kind == NodeKind::kInput || graph_.node(id).state >= 0) continue;
                cut(id);
                stored_numbers_[id] = 0;
            }
        }
    }

    // Few sums of wide rows add up to a number, as a group's channels do: whoever reads the rows again with it would
    // have all threads of a row wait for a few.
    void cut_sums_of_sums() {
        constexpr std::int64_t kFew = 16;                                              // times as many columns in each
        std::vector<std::int64_t> summed(static_cast<std::size_t>(graph_.size()), 0);  // columns of a term, by node
        for (const NodeId id : graph_.live_nodes()) {
            const Node& node = graph_.node(id);
            std::int64_t& columns = summed[static_cast<std::size_t>(id)];
            if (node.kind == NodeKind::kMap || node.kind == NodeKind::kCast || reduces_columns(graph_, node)) {
                for (const NodeId arg : node.args) columns = std::max(columns, summed[static_cast<std::size_t>(arg)]);
            }
            if (!reduces_columns(graph_, node)) continue;
            const std::int64_t terms = graph_.column_count(graph_.node(node.args[0]));
            if (terms > 1 && columns >= kFew * terms && node.state < 0) cut(id);
            columns = terms;
        }
    }

    // Whether a row that is stored comes from a reduction that the value comes from.
    bool stores_beside(NodeId value) const {
        const std::vector<NodeId>& below = reach(value).nodes;
        return std::any_of(roots_.begin(), roots_.end(), [&](NodeId root) {
            if (graph_.column_axes(graph_.node(root)).empty() || graph_.row_axes(graph_.node(root)).empty())
                return false;
            const std::vector<NodeId>& beside = reach(root).nodes;
            return std::any_of(below.begin(), below.end(), [&](NodeId id) {
                return reduces_columns(graph_, graph_.node(id)) && std::binary_search(beside.begin(), beside.end(), id);
            });
        });
    }

    // Of the rows whose columns are reduced to a value.
    std::int64_t widest_row_bytes(NodeId value) const {
        std::int64_t widest = 0;
        for (const NodeId id : reach(value).nodes) {
            const Node& node = graph_.node(id);
            if (!reduces_columns(graph_, node)) continue;
            const Node& terms = graph_.node(node.args[0]);
            widest = std::max(widest, graph_.column_count(terms) * static_cast<std::int64_t>(size_bytes(terms.dtype)));
        }
        return widest;
    }

    void cut_product(NodeId id) {
        for (const NodeId arg : graph_.node(id).args) {
            if (graph_.node(arg).kind != NodeKind::kInput) cut(arg);
        }
        if (is_read(id) || home(id) == nullptr) cut(id);
        if (std::exchange(has_products_, true)) return;
        cut_extents();
        cut_searches();
    }

    // The segment of a row is a matter of its position in the batch, not in a chunk.
    void cut_searches() {
        for (const NodeId id : graph_.live_nodes()) {
            if (graph_.node(id).kind == NodeKind::kSearch) cut(id);
        }
    }

    // Numbers of rows, and what is computed from them alone, are the batch's also where kernels see a chunk of it.
    void cut_extents() {
        std::vector<bool> of_extents(static_cast<std::size_t>(graph_.size()), false);
        for (const NodeId id : graph_.live_nodes()) {
            const Node& node = graph_.node(id);
            const auto is_number = [&](NodeId arg) { return graph_.node(arg).axes.empty(); };
            const auto counts = [&](NodeId arg) { return of_extents[static_cast<std::size_t>(arg)]; };
            const bool any = std::any_of(node.args.begin(), node.args.end(), counts);
            const bool all = std::all_of(node.args.begin(), node.args.end(), is_number);
            const bool computes = node.kind == NodeKind::kMap || node.kind == NodeKind::kCast;
            of_extents[static_cast<std::size_t>(id)] = node.kind == NodeKind::kExtent || (any && all && computes);
            if (!any || of_extents[static_cast<std::size_t>(id)]) continue;
            for (const NodeId arg : node.args) {
                if (counts(arg)) cut(arg);
            }
        }
    }

    void note_reduction(const Node& node, Reach* reach) const {
        if (node.kind == NodeKind::kPartialSum) {
            for (const AxisId axis : node.reduced) {
                if (!graph_.axis(axis).is_row) reach->promoted.insert(axis);
            }
        }
        if (rowjit::reduces_rows(graph_, node)) reach->reduces_rows = true;
        if (!reduces_columns(graph_, node)) return;
        for (const AxisId axis : graph_.column_axes(graph_.node(node.args[0]))) {
            if (!contains(node.reduced, axis)) reach->promoted.insert(axis);
        }
    }

    // Every thread of a row computes what the row has one of. Where nothing of it flows back into columns, the
    // reductions it starts from are the place to go on in a kernel that has a thread for each row; where the difference
    // of two is taken, that is, since what their roundings lost is not stored.
    void cut_numbers() {
        const std::vector<NodeId> live = graph_.live_nodes();
        std::vector<bool> widened(static_cast<std::size_t>(graph_.size()), false);  // flows into something with columns
        std::vector<bool> mapped(static_cast<std::size_t>(graph_.size()), false);
        const std::vector<Lost> lost = lost_by_node(graph_);
        for (const NodeId id : std::views::reverse(live)) {
            const Node& node = graph_.node(id);
            const bool wide = widened[static_cast<std::size_t>(id)] || !graph_.column_axes(node).empty();
            for (const NodeId arg : node.args) {
                if (wide) widened[static_cast<std::size_t>(arg)] = true;
                if (node.kind == NodeKind::kMap) mapped[static_cast<std::size_t>(arg)] = true;
            }
            const bool is_sum = reduces_columns(graph_, node) && lost[static_cast<std::size_t>(id)] != Lost::kHandedOn;
            const bool is_number = is_sum || lost[static_cast<std::size_t>(id)] == Lost::kTakenIn;
            if (is_number && graph_.column_axes(node).empty() && !wide && mapped[static_cast<std::size_t>(id)]) cut(id);
        }
    }

    // What takes sines and cosines, where many elements share it.
    void cut_broadcast() {
        constexpr double kMany = 4;
        std::vector<bool> dear(static_cast<std::size_t>(graph_.size()), false);
        for (const NodeId id : graph_.live_nodes()) {
            const Node& node = graph_.node(id);
            if (node.kind == NodeKind::kMap) dear[static_cast<std::size_t>(id)] = is_trigonometric(node.op);
            if (node.kind != NodeKind::kMap && node.kind != NodeKind::kCast) continue;
            for (const NodeId arg : node.args) {
                if (!dear[static_cast<std::size_t>(arg)]) continue;
                const bool shared =
                    elements(graph_, node, kPlanningRows) >= kMany * elements(graph_, graph_.node(arg), kPlanningRows);
                if (shared) cut(arg);
                if (!shared) dear[static_cast<std::size_t>(id)] = true;
            }
        }
    }

    // Kernels on the longest way from the inputs to the root's own.
    int cuts_behind(NodeId root) const {
        const auto [found, first] = cuts_behind_.try_emplace(root, 0);
        if (!first) return found->second;
        const auto with = stored_numbers_.find(root);
        int most = 0;
        for (const NodeId id : reach(root).nodes) {
            for (const NodeId arg : graph_.node(id).args) {
                if (arg == root || !is_cut_[static_cast<std::size_t>(arg)]) continue;
                const auto beside = stored_numbers_.find(arg);
                const bool together =
                    with != stored_numbers_.end() && beside != stored_numbers_.end() && with->second == beside->second;
                most = std::max(most, cuts_behind(arg) + (together ? 0 : 1));
            }
        }
        return cuts_behind_[root] = most;
    }

    // Operands before users.
    std::vector<NodeId> reach_of_all(const std::vector<NodeId>& roots) const {
        std::vector<NodeId> all;
        for (const NodeId root : roots) {
            std::vector<NodeId> with_root;
            std::ranges::set_union(all, reach(root).nodes, std::back_inserter(with_root));
            all = std::move(with_root);
        }
        return all;
    }

    // The roots that share a kernel whatever is joined later.
    std::map<NodeId, std::vector<NodeId>> kernels_of_numbers() const {
        std::map<int, std::vector<NodeId>> stored;
        for (const auto& [id, times] : stored_numbers_) stored[times].push_back(id);
        std::map<NodeId, std::vector<NodeId>> found;  // by the first of them
        for (const auto& [times, roots] : stored) found[roots[0]] = roots;
        for (const NodeId root : roots_) {
            if (graph_.node(root).kind != NodeKind::kMatmul && !stored_numbers_.contains(root)) found[root] = {root};
        }
        return found;
    }

    // A processor's registers run over into its first cache.
    bool cut_live_numbers() {
        for (const auto& [first, roots] : kernels_of_numbers()) {
            if (few_numbers_.contains(first)) continue;
            std::vector<NodeId> values = values_that_part(graph_, reach_of_all(roots));
            std::erase_if(values, [&](NodeId id) { return is_cut_[static_cast<std::size_t>(id)]; });
            if (values.empty()) few_numbers_.insert(first);
            if (values.empty()) continue;
            const int times = ++times_stored_;
            for (const NodeId id : values) cut(id);
            for (const NodeId id : values) stored_numbers_[id] = times;
            return true;
        }
        return false;
    }

    // Of a fixpoint's step nothing is stored but what it comes to.
    void cut(NodeId id) {
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
    bool cut_below(NodeId root) {
        const Reach found = reach(root);
        if (has_products_ && cut_between_products(found)) return true;
        for (const NodeId id : found.nodes) {
            if (cut_for_rows_reduction(root, id, found)) return true;
        }
        // A block that adds up its rows has them whole: what sums other rows for each of them is stored first.
        if (graph_.node(root).kind == NodeKind::kPartialSum && found.reduces_rows) {
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
        if (graph_.node(root).kind != NodeKind::kPartialSum) return false;
        // A block's part of a sum over rows has one place a column: no column may become a row that it is not over.
        // What it adds up is stored where that is a number of each, else the last such reduction, so that those below
        // stay with what else is made of them.
        const std::vector<AxisId>& over = graph_.node(root).reduced;
        const bool summed = std::all_of(found.promoted.begin(), found.promoted.end(),
                                        [&](AxisId axis) { return contains(over, axis); });
        if (summed) return false;
        const NodeId summand = graph_.node(root).args[0];
        const std::vector<AxisId> left = graph_.column_axes(graph_.node(summand));
        const bool is_number =
            std::all_of(left.begin(), left.end(), [&](AxisId axis) { return found.promoted.contains(axis); });
        for (const NodeId id : std::views::reverse(found.nodes)) {
            if (!reduces_columns(graph_, graph_.node(id)) || !is_partial(graph_.node(id))) continue;
            cut(is_number ? summand : id);
            return true;
        }
        return false;
    }

    // Of two products' results, which are large, one need not be in memory where a kernel uses the other if numbers of
    // a row are all that it takes of the first: those are stored.
    bool cut_between_products(const Reach& found) {
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
    bool collect_numbers(NodeId id, std::set<NodeId>* seen, std::set<NodeId>* numbers) const {
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
    bool cut_for_rows_reduction(NodeId root, NodeId id, const Reach& found) {
        const Node& node = graph_.node(id);
        if (!rowjit::reduces_rows(graph_, node)) return false;
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
        cut(narrow ? node.args[0] : inner);
        return true;
    }

    // Whether a column reduction leaves some columns of its operand.
    bool is_partial(const Node& reduce) const {
        return reduce.reduced.size() != graph_.column_axes(graph_.node(reduce.args[0])).size();
    }

    bool cut_column_reduction(NodeId root, NodeId id, const Reach& found) {
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
        cut(id);
        return true;
    }

    // Some reduction (not itself cut) that `from`'s computation contains: the first, depth first; -1 for none.
    NodeId reduction_below(NodeId from) const {
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
    bool under_reduction(const Reach& found, NodeId target) const {
        std::set<NodeId> computed_from_it = {target};
        for (const NodeId id : found.nodes) {  // operands before users
            const Node& node = graph_.node(id);
            const bool uses = std::any_of(node.args.begin(), node.args.end(),
                                          [&](NodeId arg) { return computed_from_it.contains(arg); });
            if (!uses) continue;
            if (node.kind == NodeKind::kReduce) return true;
            computed_from_it.insert(id);
        }
        return false;
    }

    const GraphData& graph_;
    const bool is_gpu_;
    std::set<NodeId> roots_;
    std::set<NodeId> cuts_;
    std::set<NodeId> repeated_;             // of them
    std::map<NodeId, int> stored_numbers_;  // of what would be too many for one kernel: the how many-th time
    int times_stored_ = 0;
    std::set<NodeId> few_numbers_;  // roots whose kernels have few enough live at once
    bool has_products_ = false;
    std::vector<bool> is_cut_;                     // by node: whether it is one of them
    std::map<NodeId, std::vector<NodeId>> fixes_;  // by state
    mutable std::map<NodeId, Reach> reaches_;      // of roots, as the cuts are
    mutable std::map<NodeId, int> cuts_behind_;    // of roots, when all cuts are made
    std::set<NodeId> settled_;                     // roots that need no further cut, as the cuts are

    friend class Planner;
};

// A kernel to be: the roots it computes.
struct Piece {
    std::vector<NodeId> roots;
    std::vector<AxisId> row_axes;
    std::set<AxisId> promoted;
    bool reduces_rows = false;
    bool is_product = false;  // of the one root, a Matmul, which no kernel computes
    bool copies = false;      // the one root, a Matmul's result that is in memory, to an output
    std::vector<bool> needs;  // by node: whether a root is computed from it
    double cost_us = 0;       // of a kernel for it alone
    int id = 0;
};

// Where a number of a row lies that is stored with others: in the tensor that is named after the first of them.
struct Packed {
    NodeId first = -1;
    AxisId axis = -1;
    std::int64_t at = 0;
};

class Planner {
  public:
    Planner(std::shared_ptr<const GraphData> graph, const Target& target, Repeated repeated, std::string_view stem,
            const Runs& runs, const std::set<NodeId>& stored)
        : given_(std::move(graph)),
          graph_(given_),
          target_(target),
          stem_(stem),
          runs_(runs),
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

    Plan run() {
        start(cutter_.run());
        join();
        order();
        reuse_memory();
        reuse_products();
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
            plan.temporaries.push_back(
                {temporary_name(id), node.dtype, node.axes, over == id ? "" : temporary_name(over)});
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

    // Of the plan, once it is made: slots of sums over rows that leave the outermost axes, whose kernel makes their
    // parts and nothing else, of no reduction. One that makes each sum whole reads as much.
    std::vector<AxisId> slots_for_nothing() const {
        std::vector<AxisId> slots;
        for (const Piece& piece : pieces_) {
            if (piece.is_product || !makes_parts_alone(piece)) continue;
            const std::vector<NodeId> below = cutter_.reach_of_all(piece.roots);
            if (std::ranges::any_of(below, [&](NodeId id) { return reduces_columns(*graph_, graph_->node(id)); }))
                continue;
            for (const NodeId root : piece.roots) {
                const Node& node = graph_->node(root);
                if (node.axes[0] != node.axis) slots.push_back(node.axis);
            }
        }
        return slots;
    }

    // Of the plan, once it is made: of each kernel that no schedule runs the value to store so that two do half of it
    // each. Even a single output may be so much, as the derivative of a chain of sixteen norms, which keeps what each
    // of them has made of the row.
    std::vector<NodeId> values_that_part_what_does_not_run() const {
        std::vector<NodeId> found;
        for (const Piece& piece : pieces_) {
            if (piece.is_product || piece.copies || runs_(group(piece))) continue;
            if (const NodeId middle = middle_of(cutter_.reach_of_all(piece.roots), piece); middle >= 0)
                found.push_back(middle);
        }
        return found;
    }

  private:
    // Of a row's columns that the kernel computes, those of which about half of it is made; -1 where there is nothing
    // to store.
    NodeId middle_of(const std::vector<NodeId>& nodes, const Piece& piece) const {
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

    // A product, and what copies its result to outputs that cannot be its home.
    void add_product(NodeId root) {
        Piece one = piece({root});
        one.is_product = true;
        pieces_.push_back(one);
        if (cutter_.home(root) != nullptr || !is_output(root)) return;
        one.is_product = false;
        one.copies = true;
        pieces_.push_back(one);
    }

    bool is_output(NodeId id) const {
        return std::any_of(graph_->outputs().begin(), graph_->outputs().end(),
                           [&](const OutputInfo& output) { return output.node == id; });
    }

    Piece piece(std::vector<NodeId> roots) {
        Piece result{std::move(roots), {}, {}};
        for (const NodeId root : result.roots) {
            const Reach& reach = cutter_.reach(root);
            result.reduces_rows = result.reduces_rows || reach.reduces_rows;
            result.promoted.insert(reach.promoted.begin(), reach.promoted.end());
        }
        for (const AxisId axis : computed(*graph_, result.roots[0]).axes) {
            if (graph_->axis(axis).is_row || result.promoted.contains(axis)) result.row_axes.push_back(axis);
        }
        result.needs = needs(*graph_, result.roots);
        if (graph_->node(result.roots[0]).kind != NodeKind::kMatmul)
            result.cost_us = predicted_us(*subgraph(result), target_, kPlanningRows);
        result.id = next_id_++;
        return result;
    }

    // By node: the output in pieces that it, and what sums over rows it is parts of, is for; "" for several and others.
    std::vector<std::string> parts_of() const {
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
    void pack(const std::vector<NodeId>& numbers) {
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

    // A piece for each root, but one for all that one output is stored from in like ways, and one for numbers that are
    // stored being too many.
    void start(std::set<NodeId> roots) {
        for (const auto& [kernel, together] : cutter_.stored_numbers()) {
            pack(together);
            pieces_.push_back(piece(together));
            for (const NodeId root : together) roots.erase(root);
        }
        const std::vector<std::string> parts = parts_of();
        std::map<std::tuple<std::string, NodeKind, bool>, std::vector<NodeId>> together;
        for (const NodeId root : roots) {
            const std::string& whole = parts[static_cast<std::size_t>(root)];
            if (graph_->node(root).kind == NodeKind::kMatmul) {
                add_product(root);
            } else if (whole.empty()) {
                pieces_.push_back(piece({root}));
            } else {
                together[{whole, graph_->node(root).kind, cutter_.reach(root).reduces_rows}].push_back(root);
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

    // How many sums over rows a kernel of these roots has in a thread's registers.
    std::size_t sums(std::span<const NodeId> roots) const {
        std::set<NodeId> found;
        for (const NodeId root : roots) {
            const bool is_part = graph_->node(root).kind == NodeKind::kPartialSum;
            if (is_part && graph_->column_axes(computed(*graph_, root)).empty()) found.insert(root);
            if (!cutter_.reach(root).reduces_rows) continue;
            for (const NodeId id : cutter_.reach(root).nodes) {
                if (reduces_rows(*graph_, graph_->node(id))) found.insert(id);
            }
        }
        return found.size();
    }

    // Whether `a` needs a value that `b` stores, directly or through other pieces.
    bool depends(const Piece& a, const Piece& b) const {
        if (a.copies && b.is_product && a.roots == b.roots) return true;
        if (b.copies) return false;
        return std::any_of(b.roots.begin(), b.roots.end(), [&](NodeId id) {
            return a.needs[static_cast<std::size_t>(id)] && cutter_.cuts_.contains(id) && !is_root(a, id);
        });
    }

    // Whether it depends on it for more than numbers that it could compute itself.
    bool waits_for(const Piece& a, const Piece& b) const {
        if (!depends(a, b)) return false;
        return b.copies || b.is_product || std::any_of(b.roots.begin(), b.roots.end(), [&](NodeId id) {
                   return a.needs[static_cast<std::size_t>(id)] && !is_root(a, id) && !cutter_.is_repeated_number(id);
               });
    }

    static bool is_root(const Piece& piece, NodeId id) {
        return std::find(piece.roots.begin(), piece.roots.end(), id) != piece.roots.end();
    }

    // Joins two pieces at a time, the pair that saves most first, until none saves. Pieces are few, so this is
    // exhaustive in practice; ties keep graph order, so plans are deterministic.
    void join() {
        while (true) {
            double best_saving = 0;
            std::size_t best_a = 0;
            std::size_t best_b = 0;
            for (std::size_t a = 0; a < pieces_.size(); ++a) {
                for (std::size_t b = a + 1; b < pieces_.size(); ++b) {
                    // One kernel for both costs no less than the dearer of the two.
                    if (std::min(pieces_[a].cost_us, pieces_[b].cost_us) <= best_saving) continue;
                    const double saving = joined_saving_us(pieces_[a], pieces_[b]);
                    if (saving > best_saving && !needs_through_others(a, b) && !needs_through_others(b, a)) {
                        best_saving = saving;
                        best_a = a;
                        best_b = b;
                    }
                }
            }
            if (best_saving <= 0) return;
            const Piece a = pieces_[best_a];
            const Piece b = pieces_[best_b];
            std::vector<NodeId> roots = a.roots;
            roots.insert(roots.end(), b.roots.begin(), b.roots.end());
            std::sort(roots.begin(), roots.end());
            pieces_[best_a] = piece(std::move(roots));
            pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(best_b));
            if (runs_ && !runs_(group(pieces_[best_a]))) {
                pieces_[best_a] = a;
                pieces_.insert(pieces_.begin() + static_cast<std::ptrdiff_t>(best_b), b);
                savings_[{a.id, b.id}] = 0;
                ++refusals_[a.id];
                ++refusals_[b.id];
                continue;
            }
            notes_.push_back(fmt::format("joined {} and {}: saves {:.1f} us at {} rows", describe(a), describe(b),
                                         best_saving, kPlanningRows));
        }
    }

    // Whether so many joins with it have been tried that it is as large as it will be: no trial of each pair.
    bool is_full(const Piece& piece) const {
        constexpr int kMostRefusals = 3;
        const auto refused = refusals_.find(piece.id);
        return refused != refusals_.end() && refused->second >= kMostRefusals;
    }

    // Whether it is of the positions of rows that others may see a chunk of.
    bool searches_apart(const Piece& piece) const {
        return cutter_.has_products_ && std::any_of(piece.roots.begin(), piece.roots.end(), [&](NodeId root) {
                   return graph_->node(root).kind == NodeKind::kSearch;
               });
    }

    std::set<NodeId> products_read(const Piece& piece) const {
        std::set<NodeId> found;
        if (!cutter_.has_products_) return found;
        for (const NodeId id : cutter_.reach_with_loads(piece.roots)) {
            if (graph_->node(id).kind == NodeKind::kMatmul) found.insert(id);
        }
        return found;
    }

    // Whether one piece needs another's values by way of others: both in one kernel would wait for themselves.
    bool needs_through_others(std::size_t from, std::size_t to) const {
        std::vector<bool> seen(pieces_.size(), false);
        std::vector<std::size_t> work = {from};
        seen[from] = true;
        while (!work.empty()) {
            const std::size_t at = work.back();
            work.pop_back();
            for (std::size_t next = 0; next < pieces_.size(); ++next) {
                if (seen[next] || (at == from && next == to) || !depends(pieces_[at], pieces_[next])) continue;
                if (next == to) return true;
                seen[next] = true;
                work.push_back(next);
            }
        }
        return false;
    }

    // Microseconds saved by one kernel for both; negative or zero where they cannot or should not be joined.
    double joined_saving_us(const Piece& a, const Piece& b) {
        if (a.is_product || b.is_product || a.copies || b.copies) return 0;
        if (a.reduces_rows != b.reduces_rows) return 0;
        if (is_full(a) || is_full(b)) return 0;
        if (a.row_axes != b.row_axes && !divides_rows(a, b) && !divides_rows(b, a)) return 0;
        if (a.promoted != b.promoted && !(a.promoted.empty() || b.promoted.empty())) return 0;
        if (waits_for(a, b) || waits_for(b, a)) return 0;
        if (searches_apart(a) != searches_apart(b)) return 0;
        if (sums(a.roots) + sums(b.roots) > kMostSums) return 0;
        // Products' results are large: a kernel that need not have two of them in memory at once shall not.
        const std::set<NodeId> of_a = products_read(a);
        const std::set<NodeId> of_b = products_read(b);
        if (!of_a.empty() && !of_b.empty() && of_a != of_b) return 0;
        const auto [saving, first] = savings_.try_emplace({a.id, b.id}, 0.0);
        if (!first) return saving->second;
        if (!sum_alike(a, b)) return 0;
        std::vector<NodeId> roots = a.roots;
        roots.insert(roots.end(), b.roots.begin(), b.roots.end());
        std::sort(roots.begin(), roots.end());
        if (holds_too_many(roots)) return 0;
        const Piece both = piece(std::move(roots));
        if (both.row_axes != a.row_axes && both.row_axes != b.row_axes) return saving->second;
        saving->second = a.cost_us + b.cost_us - both.cost_us;
        // What adds up their parts is then one kernel too, and a row that is stored is not its staying blocks' as well:
        // a batch norm's weight has its gradient with the sums that its rows' gradient waits for.
        if (makes_parts_alone(a) && makes_parts_alone(b)) saving->second += kLaunchUs;
        return saving->second;
    }

    bool makes_parts_alone(const Piece& piece) const {
        return std::ranges::all_of(piece.roots,
                                   [&](NodeId root) { return graph_->node(root).kind == NodeKind::kPartialSum; });
    }

    // Whether a row of `whole` is some rows of `parts`, along axes that this reduces parts of its columns apart for:
    // nothing of `whole` needs more than one of those at a time, and its sums over rows may be one for each. They are
    // the outermost of its columns, so that what is left lies together in memory.
    bool divides_rows(const Piece& parts, const Piece& whole) const {
        std::vector<AxisId> rows = whole.row_axes;
        rows.insert(rows.end(), parts.promoted.begin(), parts.promoted.end());
        if (rows != parts.row_axes || !whole.promoted.empty()) return false;
        const std::vector<AxisId> apart(parts.promoted.begin(), parts.promoted.end());
        return std::ranges::all_of(whole.roots, [&](NodeId root) {
            const Node& node = computed(*graph_, root);
            const std::vector<AxisId> columns = graph_->column_axes(node);
            const bool has_all =
                columns.size() >= apart.size() && std::equal(apart.begin(), apart.end(), columns.begin());
            const bool sums = graph_->node(root).kind == NodeKind::kPartialSum;
            return has_all && (!sums || can_lie_apart(*graph_, node, apart, target_)) &&
                   std::ranges::none_of(cutter_.reach(root).nodes,
                                        [&](NodeId id) { return reduces_columns(*graph_, graph_->node(id)); });
        });
    }

    // Whether sums over rows of both leave the same row axes, so that a block has a part of each.
    bool sum_alike(const Piece& a, const Piece& b) const {
        std::set<std::vector<AxisId>> left;
        for (const Piece* piece : {&a, &b}) {
            for (const NodeId root : piece->roots) {
                if (graph_->node(root).kind != NodeKind::kPartialSum) continue;
                std::vector<AxisId> axes = graph_->node(root).axes;
                std::erase_if(axes, [&](AxisId axis) {
                    const bool is_row = graph_->axis(axis).is_row && !graph_->axis(axis).is_slots;
                    return !is_row && !a.promoted.contains(axis) && !b.promoted.contains(axis);
                });
                left.insert(std::move(axes));
            }
        }
        return left.size() <= 1;
    }

    // Of a row's numbers, in one kernel of these roots.
    bool holds_too_many(const std::vector<NodeId>& roots) const {
        return target_.is_gpu() && !values_that_part(*graph_, cutter_.reach_of_all(roots)).empty();
    }

    // Producers before consumers; among the ready, kernels before products, then products of fewer readers, whose
    // memory is free again the sooner; else graph order.
    void order() {
        std::vector<Piece> ordered;
        while (!pieces_.empty()) {
            auto next = pieces_.end();
            std::size_t least = 0;
            for (auto piece = pieces_.begin(); piece != pieces_.end(); ++piece) {
                const bool ready = std::none_of(pieces_.begin(), pieces_.end(), [&](const Piece& other) {
                    return &other != &*piece && depends(*piece, other);
                });
                if (!ready) continue;
                const std::size_t readers = piece->is_product ? 1 + readers_of(piece->roots[0]) : 0;
                if (next != pieces_.end() && readers >= least) continue;
                next = piece;
                least = readers;
            }
            RJ_CHECK(next != pieces_.end(), "plan: groups depend on each other in a cycle");
            ordered.push_back(*next);
            pieces_.erase(next);
        }
        pieces_ = std::move(ordered);
    }

    std::size_t readers_of(NodeId product) const {
        return static_cast<std::size_t>(std::count_if(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
            return piece.copies ? piece.roots[0] == product : reads(piece, product);
        }));
    }

    // Numbered by what is computed before it: where constants stand among the nodes is an accident of how the graph was
    // built, and equal graphs are to have equal kernels. A group that is planned again has the temporaries of its first
    // plan as inputs and outputs.
    std::string temporary_name(NodeId id) const {
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
    std::string place_of(NodeId id) const {
        const OutputInfo* output = cutter_.home(id);
        return output != nullptr ? output->name : temporary_name(id);
    }

    // Whether it is cut and lies in the workspace.
    bool is_temporary(NodeId id) const { return cutter_.cuts_.contains(id) && cutter_.home(id) == nullptr; }

    std::string describe(const Piece& piece) const {
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

    // The piece as a graph of its own.
    std::shared_ptr<const GraphData> subgraph(const Piece& piece) const {
        std::vector<AxisInfo> axes = graph_->axes();
        for (const AxisId axis : piece.promoted) {
            axes[static_cast<std::size_t>(axis)].is_row = true;
            axes[static_cast<std::size_t>(axis)].is_promoted = true;
        }
        auto result = std::make_shared<GraphData>(std::move(axes));
        std::map<NodeId, NodeId> mapped;
        for (const NodeId root : piece.roots) {
            const Node& node = graph_->node(root);
            copy(piece, node.kind == NodeKind::kPartialSum ? node.args[0] : root, result.get(), &mapped);
        }
        for (const NodeId root : piece.roots) add_outputs(piece, root, mapped, result.get());
        return result;
    }

    // Partial sums of one kernel have its blocks as their slots: they share the axis of the first of them.
    AxisId shared_slots(NodeId partial) const {
        for (const Piece& piece : pieces_) {
            if (!is_root(piece, partial)) continue;
            for (const NodeId root : piece.roots) {
                if (graph_->node(root).kind == NodeKind::kPartialSum) return graph_->node(root).axis;
            }
        }
        return graph_->node(partial).axis;
    }

    // The node along the slots its group shares; nothing where it has none.
    std::optional<Node> with_shared_slots(NodeId id) const {
        const Node& node = graph_->node(id);
        const bool adds_parts =
            node.kind == NodeKind::kReduce && graph_->node(node.args[0]).kind == NodeKind::kPartialSum;
        if (node.kind != NodeKind::kPartialSum && !adds_parts) return std::nullopt;
        Node moved = node;
        if (adds_parts) {
            moved.reduced = {shared_slots(node.args[0])};
        } else {
            std::replace(moved.axes.begin(), moved.axes.end(), node.axis, shared_slots(id));
            moved.axis = shared_slots(id);
        }
        return moved;
    }

    NodeId copy(const Piece& piece, NodeId id, GraphData* into, std::map<NodeId, NodeId>* mapped) const {
        if (const auto found = mapped->find(id); found != mapped->end()) return found->second;
        const std::optional<Node> moved = with_shared_slots(id);
        const Node& node = moved ? *moved : graph_->node(id);
        const auto convert = [&]() -> NodeId {
            if (node.kind == NodeKind::kInput) return add_input(node, node.name, into);
            if ((!is_root(piece, id) || piece.copies) && cutter_.cuts_.contains(id)) {
                return packed_.contains(id) ? load_packed(id, into) : add_input(node, place_of(id), into);
            }
            for (const NodeId arg : node.args) copy(piece, arg, into, mapped);
            if (node.kind == NodeKind::kIndex) return copy_index(node, into, *mapped);
            // Coordinates of row axes are 64-bit; a promoted axis has few enough positions for the dtype it had.
            if (node.kind == NodeKind::kIota && into->axis(node.axis).is_row)
                return into->add_cast(into->add_iota(node.axis, Dtype::kI64), node.dtype);
            return into->add_copy(node, [&](NodeId arg) { return mapped->at(arg); });
        };
        const NodeId result = convert();
        mapped->emplace(id, result);
        return result;
    }

    // Promotion reorders an input's axes, and its coordinates with them.
    NodeId copy_index(const Node& node, GraphData* into, const std::map<NodeId, NodeId>& mapped) const {
        const std::vector<AxisId>& declared = graph_->node(node.args[0]).axes;
        std::vector<Coord> coords;
        for (const AxisId axis : into->node(mapped.at(node.args[0])).axes) {
            const auto at = std::find(declared.begin(), declared.end(), axis) - declared.begin();
            coords.push_back(node.coords[static_cast<std::size_t>(at)].substitute(
                [](Axis a) { return Coord(a); }, [&](NodeId data) { return Coord::data_node(mapped.at(data)); }));
        }
        const NodeId result = into->add_index(mapped.at(node.args[0]), std::move(coords));
        into->set_label(result, node.label);
        return result;
    }

    // A tensor of the program, its axes reordered so that promoted ones stand among the row axes.
    static NodeId add_input(const Node& node, const std::string& name, GraphData* into) {
        Ordered ordered = order_axes(node.axes, node.column_strides, *into);
        const NodeId input =
            into->add_input(name, node.dtype, std::move(ordered.axes), std::move(ordered.column_strides));
        into->set_promoted_strides(input, std::move(ordered.promoted_strides));
        return input;
    }

    // The axes of the tensor in which a packed number lies.
    std::vector<AxisId> packed_axes(NodeId id) const {
        std::vector<AxisId> axes = {packed_.at(id).axis};
        const std::vector<AxisId>& rows = graph_->node(id).axes;
        axes.insert(axes.end(), rows.begin(), rows.end());
        return axes;
    }

    NodeId load_packed(NodeId id, GraphData* into) const {
        const Packed& packed = packed_.at(id);
        const Node& node = graph_->node(id);
        std::vector<Coord> coords = {Coord(packed.at)};
        for (const AxisId axis : node.axes) coords.emplace_back(Axis{axis});
        const std::string name = temporary_name(packed.first);
        const std::optional<NodeId> known = into->find_input(name);
        const NodeId tensor = known ? *known : into->add_input(name, node.dtype, packed_axes(id), {});
        const NodeId result = into->add_index(tensor, std::move(coords));
        into->set_label(result, node.label);
        return result;
    }

    OutputPiece piece_of_packed(NodeId id) const {
        const Packed& packed = packed_.at(id);
        OutputPiece piece{temporary_name(packed.first), packed_axes(id), {packed.at}};
        piece.at.resize(piece.axes.size(), -1);
        return piece;
    }

    // Declared axes split into row axes, then column axes, with the strides of those that were declared as columns
    // (contiguous where none are given). What a launch gives as a promoted axis's stride is of the same declaration.
    struct Ordered {
        std::vector<AxisId> axes = {};
        std::vector<std::int64_t> promoted_strides = {};
        std::vector<std::int64_t> column_strides = {};
    };
    static Ordered order_axes(const std::vector<AxisId>& declared, const std::vector<std::int64_t>& declared_strides,
                              const GraphData& graph);

    // The tensor that a product reads.
    std::string tensor_name(NodeId id) const {
        const Node& node = graph_->node(id);
        return node.kind == NodeKind::kInput ? node.name : place_of(id);
    }

    Product product(NodeId id) const {
        const Node& node = graph_->node(id);
        const OutputInfo* output = cutter_.home(id);
        Product result;
        result.name = node.label.empty() ? fmt::format("matmul_{}", id) : node.label;
        result.result = place_of(id);
        result.accumulate = output != nullptr && output->accumulate;
        result.contracted = node.reduced;
        for (const auto& [left, right] : {std::pair(node.args[0], node.args[1]), {node.args[1], node.args[0]}}) {
            std::vector<AxisId> axes;
            for (const NodeId arg : {left, right}) {
                for (const AxisId axis : graph_->node(arg).axes) {
                    if (!contains(node.reduced, axis)) axes.push_back(axis);
                }
            }
            result.left = tensor_name(left);
            result.right = tensor_name(right);
            if (axes == node.axes) return result;
        }
        fail(ErrorCode::kUnsupported,
             "{}: the axes of its operands alternate; the result of a matmul has all axes of one operand before those "
             "of the other, so make the row axes of one of them column axes",
             graph_->describe(id));
    }

    // What a kernel computes from a product's result of the same dtype and axes, and reads last, lies in its memory:
    // the gradient of logits in that of the logits.
    void reuse_memory() {
        for (std::size_t i = 0; i < pieces_.size(); ++i) {
            if (pieces_[i].is_product || pieces_[i].copies) continue;
            std::set<NodeId> taken;
            for (const NodeId root : pieces_[i].roots) {
                if (!is_temporary(root) || graph_->node(root).kind == NodeKind::kPartialSum) continue;
                const NodeId dying = dying_operand(i, root, taken);
                if (dying < 0) continue;
                taken.insert(dying);
                reused_[root] = dying;
            }
        }
    }

    // A product's result lies in the memory of an earlier one that nothing reads any more: a reference's logits, then
    // the policy's.
    void reuse_products() {
        struct Block {
            NodeId first;
            std::size_t last_read;
        };
        std::vector<Block> blocks;
        for (std::size_t i = 0; i < pieces_.size(); ++i) {
            const NodeId result = pieces_[i].roots[0];
            if (!pieces_[i].is_product || !is_temporary(result)) continue;
            const Node& node = graph_->node(result);
            const auto free = std::find_if(blocks.begin(), blocks.end(), [&](const Block& block) {
                const Node& other = graph_->node(block.first);
                return block.last_read < i && other.dtype == node.dtype && other.axes == node.axes;
            });
            if (free == blocks.end()) {
                blocks.push_back({result, last_read(result)});
            } else {
                lies_over_[result] = free->first;
                free->last_read = last_read(result);
            }
        }
    }

    // Also of what a kernel stores in its memory.
    std::size_t last_read(NodeId id) const {
        std::size_t last = 0;
        for (std::size_t i = 0; i < pieces_.size(); ++i) {
            if (pieces_[i].copies ? pieces_[i].roots[0] == id : reads(pieces_[i], id)) last = i;
        }
        for (const auto& [stored, over] : reused_) {
            if (over == id) last = std::max(last, last_read(stored));
        }
        return last;
    }

    // The temporary whose memory it is: itself, or the first that was there.
    NodeId memory_of(NodeId id) const {
        if (const auto over = reused_.find(id); over != reused_.end()) return memory_of(over->second);
        const auto over = lies_over_.find(id);
        return over == lies_over_.end() ? id : over->second;
    }

    NodeId dying_operand(std::size_t reader, NodeId root, const std::set<NodeId>& taken) const {
        const Node& wanted = graph_->node(root);
        for (const NodeId id : products_read(pieces_[reader])) {
            const Node& node = graph_->node(id);
            if (!is_temporary(id) || taken.contains(id)) continue;
            if (node.dtype != wanted.dtype || node.axes != wanted.axes) continue;
            const bool read_later =
                std::any_of(pieces_.begin() + static_cast<std::ptrdiff_t>(reader) + 1, pieces_.end(),
                            [&](const Piece& later) { return later.copies ? later.roots[0] == id : reads(later, id); });
            if (!read_later && !reads_elsewhere(pieces_[reader], id)) return id;
        }
        return -1;
    }

    bool reads(const Piece& piece, NodeId id) const {
        if (piece.is_product) {
            const std::vector<NodeId>& args = graph_->node(piece.roots[0]).args;
            return std::find(args.begin(), args.end(), id) != args.end();
        }
        return cutter_.reach_with_loads(piece.roots).contains(id) && !is_root(piece, id);
    }

    // At places other than a kernel's own.
    bool reads_elsewhere(const Piece& piece, NodeId id) const {
        const std::set<NodeId> nodes = cutter_.reach_with_loads(piece.roots);
        return std::any_of(nodes.begin(), nodes.end(), [&](NodeId user) {
            const Node& node = graph_->node(user);
            for (std::size_t i = 0; i < node.args.size(); ++i) {
                if (node.args[i] == id && node.reads_from_memory(i)) return true;
            }
            return false;
        });
    }

    void add_outputs(const Piece& piece, NodeId root, const std::map<NodeId, NodeId>& mapped, GraphData* into) const {
        const Node& node = graph_->node(root);
        if (node.kind == NodeKind::kPartialSum) {
            OutputInfo parts{
                temporary_name(root), mapped.at(node.args[0]), "", false, {}, shared_slots(root), node.dtype};
            const auto slots = std::find(node.axes.begin(), node.axes.end(), node.axis);
            parts.outer.assign(node.axes.begin(), slots);
            std::copy_if(std::next(slots), node.axes.end(), std::back_inserter(parts.apart),
                         [&](AxisId axis) { return into->axis(axis).is_row; });
            into->add_output(std::move(parts));
            return;
        }
        const NodeId copy = mapped.at(root);
        if (is_temporary(root) && !piece.copies) {
            OutputInfo stored{temporary_name(root), copy, "", false, strides_among_columns(root, *into)};
            stored.promoted_strides = order_axes(node.axes, {}, *into).promoted_strides;
            if (const auto packed = packed_.find(root); packed != packed_.end()) stored.piece = piece_of_packed(root);
            if (const auto over = reused_.find(root); over != reused_.end()) {
                stored.alias = temporary_name(over->second);
                stored.column_strides = into->node(*into->find_input(stored.alias)).column_strides;
            }
            into->add_output(std::move(stored));
        }
        for (const OutputInfo& output : graph_->outputs()) {
            if (output.node != root) continue;
            OutputInfo moved = output;
            moved.node = copy;
            Ordered ordered =
                order_axes(output.piece ? output.piece->axes : graph_->node(root).axes, output.column_strides, *into);
            moved.column_strides = std::move(ordered.column_strides);
            moved.promoted_strides = std::move(ordered.promoted_strides);
            if (output.piece) moved.piece = reordered(*output.piece, ordered.axes);
            // An input this group does not read cannot be disturbed by the group's own order of loads and stores.
            if (!moved.alias.empty() && !into->find_input(moved.alias)) moved.alias.clear();
            into->add_output(std::move(moved));
        }
    }

    // Of a temporary, where an axis that is among the rows here lies within its columns; none where it is contiguous.
    std::vector<std::int64_t> strides_among_columns(NodeId root, const GraphData& group) const {
        const auto [axes, promoted, strides] = order_axes(graph_->node(root).axes, {}, group);
        std::int64_t contiguous = 1;
        for (std::size_t i = strides.size(); i-- > 0;) {
            if (strides[i] != contiguous) return strides;
            contiguous *= group.axis(axes[axes.size() - strides.size() + i]).extent;
        }
        return {};
    }

    static OutputPiece reordered(const OutputPiece& piece, const std::vector<AxisId>& axes) {
        OutputPiece result{piece.tensor, axes, {}};
        for (const AxisId axis : axes) {
            const auto at = std::find(piece.axes.begin(), piece.axes.end(), axis) - piece.axes.begin();
            result.at.push_back(piece.at[static_cast<std::size_t>(at)]);
        }
        return result;
    }

    Group group(const Piece& piece) const {
        Group result;
        result.graph = subgraph(piece);
        result.row_axes = piece.row_axes;
        result.reduces_rows = piece.reduces_rows;
        // Named after what it computes, not after its place, so that equal groups of different graphs are the same
        // kernel.
        result.name = "rj";
        std::set<std::string> named;
        for (const OutputInfo& output : result.graph->outputs()) {
            if (named.insert(output.tensor()).second) result.name += "_" + output.tensor();
        }
        result.name.resize(std::min(result.name.size(), kMaxNameLength));
        return result;
    }

    // An output that overwrites an input must be stored by the last step that reads that input.
    void check_aliases(const Plan& plan) const {
        for (std::size_t i = 0; i < plan.steps.size(); ++i) {
            if (plan.steps[i].kind == PlanStep::Kind::kProduct) continue;
            for (const OutputInfo& output : plan.groups[plan.steps[i].index].graph->outputs()) {
                if (output.alias.empty()) continue;
                for (std::size_t later = i + 1; later < plan.steps.size(); ++later) {
                    if (!reads(plan, plan.steps[later], output.alias)) continue;
                    fail(ErrorCode::kUnsupported,
                         "output '{}' overwrites input '{}', which a later kernel still reads; give the output a "
                         "buffer of its own",
                         output.name, output.alias);
                }
            }
        }
    }

    static bool reads(const Plan& plan, const PlanStep& step, const std::string& tensor) {
        if (step.kind == PlanStep::Kind::kKernel) return plan.groups[step.index].graph->find_input(tensor).has_value();
        const Product& product = plan.products[step.index];
        return product.left == tensor || product.right == tensor;
    }

    const std::shared_ptr<const GraphData> given_;
    std::shared_ptr<const GraphData> graph_;  // the given one and the axes of what is packed
    const Target& target_;
    const std::string_view stem_;
    const Runs& runs_;
    std::vector<int> numbers_;  // by node: how many are computed before it
    Cutter cutter_;
    std::vector<Piece> pieces_;
    std::map<NodeId, Packed> packed_;
    std::map<NodeId, NodeId> reused_;                // what a kernel stores: the operand in whose place
    std::map<NodeId, NodeId> lies_over_;             // a product's result: the first of those that share its memory
    std::map<std::pair<int, int>, double> savings_;  // by the ids of two pieces
    std::map<int, int> refusals_;                    // by a piece's id: joins with it that nothing runs
    int next_id_ = 0;
    std::vector<std::string> notes_;
};

Planner::Ordered Planner::order_axes(const std::vector<AxisId>& declared,
                                     const std::vector<std::int64_t>& declared_strides, const GraphData& graph) {
    Ordered ordered;
    for (const AxisId axis : declared) {
        if (graph.axis(axis).is_row) ordered.axes.push_back(axis);
    }
    // Strides were declared for the column axes before promotion: the last ones.
    std::int64_t contiguous = 1;
    std::vector<std::int64_t> all(declared.size(), 0);
    for (std::size_t i = declared.size(); i-- > 0;) {
        all[i] = contiguous;
        if (graph.axis(declared[i]).extent > 0) contiguous *= graph.axis(declared[i]).extent;
    }
    for (std::size_t i = 0; i < declared_strides.size(); ++i) {
        all[declared.size() - declared_strides.size() + i] = declared_strides[i];
    }
    for (std::size_t i = 0; i < declared.size(); ++i) {
        if (graph.axis(declared[i]).is_promoted) ordered.promoted_strides.push_back(all[i]);
        if (graph.axis(declared[i]).is_row) continue;
        ordered.axes.push_back(declared[i]);
        ordered.column_strides.push_back(all[i]);
    }
    return ordered;
}

}  // namespace

Plan make_plan(const std::shared_ptr<const GraphData>& graph, const Target& target, Repeated repeated,
               std::string_view stem, const Runs& runs) {
    constexpr int kMostPartings = 6;  // each halves what does not run
    std::set<NodeId> whole;
    std::set<NodeId> stored;
    for (int partings = 0;;) {
        const PartialSums sums = split_row_sums(graph, target, whole);
        Planner planner(sums.graph, target, repeated, stem, runs, stored);
        Plan plan = planner.run();
        if (const std::vector<AxisId> slots = planner.slots_for_nothing(); !slots.empty()) {
            for (const AxisId axis : slots) whole.insert(sums.of_slots.at(axis));
            stored.clear();  // which are nodes of the graph with those sums' parts
            continue;
        }
        if (!runs || ++partings > kMostPartings) return plan;
        const std::vector<NodeId> values = planner.values_that_part_what_does_not_run();
        if (values.empty()) return plan;
        stored.insert(values.begin(), values.end());
    }
}

double group_bytes(const GraphData& group, double rows) {
    double bytes = 0;
    std::map<std::string, double> read;  // an input gathered from counts what is gathered, at most the whole
    for (const NodeId id : group.live_nodes()) {
        const Node& node = group.node(id);
        const double size = elements(group, node, rows) * static_cast<double>(size_bytes(node.dtype));
        if (node.kind == NodeKind::kInput) read.try_emplace(node.name, 0);
        if (node.kind == NodeKind::kIndex) {
            const Node& source = group.node(node.args[0]);
            const double whole = elements(group, source, rows) * static_cast<double>(size_bytes(source.dtype));
            read[source.name] = std::min(whole, read[source.name] + size);
        }
        for (const NodeId arg : node.args) {
            const Node& source = group.node(arg);
            const bool indexed = node.kind == NodeKind::kIndex && arg == node.args[0];
            if (source.kind != NodeKind::kInput || indexed) continue;
            read[source.name] = elements(group, source, rows) * static_cast<double>(size_bytes(source.dtype));
        }
    }
    for (const OutputInfo& output : group.outputs()) {
        const Node& node = group.node(output.node);
        const double size = elements(group, node, rows) * static_cast<double>(size_bytes(node.dtype));
        if (node.kind == NodeKind::kInput) read[node.name] = size;
        if (output.slots >= 0) {
            Node parts{.axes = output.outer};
            parts.axes.push_back(output.slots);
            bytes += elements(group, parts, rows) * static_cast<double>(group.column_count(node)) *
                     static_cast<double>(size_bytes(output.parts_dtype));
        } else {
            bytes += output.accumulate ? 2 * size : size;
        }
    }
    for (const auto& [name, size] : read) bytes += size;
    return bytes;
}

namespace {

// By node: the elements that a kernel computes of it. A value with columns that several others share is computed for
// each.
std::vector<double> elements_computed(const GraphData& group, double rows) {
    std::vector<double> count(static_cast<std::size_t>(group.size()), 0);
    for (const NodeId id : std::views::reverse(group.live_nodes())) {
        const Node& node = group.node(id);
        double& own = count[static_cast<std::size_t>(id)];
        own = std::max(own, elements(group, node, rows));
        if (node.kind != NodeKind::kMap && node.kind != NodeKind::kCast) continue;
        for (const NodeId arg : node.args) {
            double& shared = count[static_cast<std::size_t>(arg)];
            if (!group.column_axes(group.node(arg)).empty()) shared = std::max(shared, own);
        }
    }
    return count;
}

// What a row has one of, each thread of the row computes.
double threads_of_row(const GraphData& group) {
    constexpr std::int64_t kColumnsPerThread = 16;
    std::int64_t columns = 1;
    for (const NodeId id : group.live_nodes()) {
        if (group.node(id).kind != NodeKind::kInput) columns = std::max(columns, group.column_count(group.node(id)));
    }
    return static_cast<double>(std::clamp<std::int64_t>(columns / kColumnsPerThread, 1, 256));
}

// A search for each column of a row is a chain of loads, each lane's of lines of its own, and takes as long as so many
// specials: of 16384 rows and 16 columns 7 us (H200). Two results of one search are so one kernel, where one of them
// and another search, which only looked as cheap, had been.
constexpr double kSearchSpecials = 64;

}  // namespace

double predicted_us(const GraphData& group, const Target& target, double rows) {
    double specials = 0;  // exp, log, division …: the throughput that runs out first on narrow data
    double of_rows = 0;   // likewise, of what all threads of a row compute, and wait for
    const std::vector<double> computed_elements = elements_computed(group, rows);
    const double row_threads = target.is_gpu() ? threads_of_row(group) : 1;
    for (const NodeId id : group.live_nodes()) {
        const Node& node = group.node(id);
        if (node.kind == NodeKind::kSearch && !group.column_axes(node).empty())
            specials += computed_elements[static_cast<std::size_t>(id)] * kSearchSpecials;
        if (node.kind != NodeKind::kMap) continue;
        const double once = computed_elements[static_cast<std::size_t>(id)] * specials_of(node.op);
        const bool repeated = row_threads > 1 && group.column_axes(node).empty();
        (repeated ? of_rows : specials) += once * (repeated ? row_threads : 1);
    }
    const double memory_us = group_bytes(group, rows) / (target.bandwidth_gbps * 1e3);
    // 16 special-function lanes per multiprocessor at about 1.7 GHz; a CPU core does about one vectorised result a
    // nanosecond.
    const double per_us = target.is_gpu() ? target.sm_count * 16 * 1.7e3 : target.sm_count * 1e3;
    const double launch_us = target.is_gpu() ? kLaunchUs : kCpuLaunchUs;
    return launch_us + std::max(memory_us, specials / per_us) + of_rows / per_us;
}

}  // namespace rowjit
