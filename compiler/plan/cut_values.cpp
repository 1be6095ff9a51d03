// Values that are stored because it is cheaper than to compute them again, or because a kernel would hold too many:
// each rule finds where the value is narrow.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "compiler/plan/cutter.h"
#include "compiler/plan/differences.h"
#include "compiler/plan/group_costs.h"
#include "compiler/plan/live_numbers.h"

namespace rowjit::planning {
namespace {

constexpr std::int64_t kWideRowBytes = 16 * 1024;
// Of which a number is worth storing, beside reducing them again.
constexpr std::int64_t kReducedBytes = 512;

}  // namespace

std::map<Cutter::KernelOfNumbers, std::vector<NodeId>> Cutter::stored_numbers() const {
    std::map<KernelOfNumbers, std::vector<NodeId>> found;
    for (const auto& [id, times] : stored_numbers_) {
        const Node& node = graph_.node(id);
        found[{node.axes, node.dtype, times, cuts_behind(id)}].push_back(id);
    }
    return found;
}

bool Cutter::has_columns(const std::vector<NodeId>& roots) const {
    return std::ranges::any_of(reach_of_all(roots), [&](NodeId id) {
        const Node& node = graph_.node(id);
        return node.kind != NodeKind::kInput && !graph_.column_axes(node).empty();
    });
}

bool Cutter::is_long(const std::vector<NodeId>& roots) const {
    constexpr std::ptrdiff_t kManySteps = 256;
    const auto is_step = [&](NodeId id) { return graph_.node(id).kind == NodeKind::kMap; };
    return runs_beside_ && !has_columns(roots) && std::ranges::count_if(reach_of_all(roots), is_step) >= kManySteps;
}

// A kernel that waits for one which has read the same rows, as a gradient of logits waits for its sequence's
// log-probabilities, takes what those rows come to from memory: it reads wide ones once less, and need not meet over
// the others.
bool Cutter::cut_repeated_numbers() {
    for (const NodeId later : roots_) {
        std::vector<NodeId> numbers;
        for (const NodeId id : reach(later).nodes) {
            const Node& node = graph_.node(id);
            const bool is_number = reduces_columns(graph_, node) && graph_.column_axes(node).empty();
            if (is_number && id != later && widest_row_bytes(id) >= kReducedBytes) numbers.push_back(id);
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

// What sums over rows come to is a number of each column. What takes long to make of those, a mean or a root, is
// made where they are added up, and not for each row again; so is what takes long to make of other numbers of the
// columns, and is wanted there too. Likewise of some rows, as an image's pixels, where many have such a sum together:
// H200, a response norm of 196 pixels of 384 bf16 channels, each by its root and their mean, 0.128 ms so, 0.197 with a
// root and a quotient for each element.
void Cutter::cut_columns_of_sums() {
    constexpr std::int64_t kManyRows = 16;
    const std::vector<NodeId> live = graph_.live_nodes();
    const auto is_given = [&](AxisId axis) { return graph_.axis(axis).is_given(); };
    const auto many_share = [&](const Node& shared, std::vector<AxisId> rows) {
        std::erase_if(rows, [&](AxisId axis) { return contains(shared.axes, axis); });
        return graph_.positions(rows, kManyRows) >= kManyRows;
    };
    std::vector<bool> with_sums(static_cast<std::size_t>(graph_.size()), false);
    std::vector<bool> dear(static_cast<std::size_t>(graph_.size()), false);
    std::vector<NodeId> wanted;  // by rows, of what is dear
    for (const NodeId id : live) {
        const Node& node = graph_.node(id);
        const auto any = [&](const std::vector<bool>& is) {
            return std::any_of(node.args.begin(), node.args.end(),
                               [&](NodeId arg) { return is[static_cast<std::size_t>(arg)]; });
        };
        const bool is_map = node.kind == NodeKind::kMap || node.kind == NodeKind::kCast;
        for (const NodeId arg : node.args) {
            const Node& shared = graph_.node(arg);
            if (is_map && dear[static_cast<std::size_t>(arg)] && !graph_.column_axes(shared).empty() &&
                many_share(shared, graph_.row_axes(node)))
                wanted.push_back(arg);
        }
        if (planning::reduces_rows(graph_, node)) {
            with_sums[static_cast<std::size_t>(id)] = true;
            continue;
        }
        // A quotient alone is no dearer than the register that whoever sums would take for it: H200, what flows back
        // through a softmax over 1024 steps 0.207 ms, 0.217 with one stored that each element divides by again.
        const bool divides = node.op == Op::kDiv && std::ranges::any_of(graph_.row_axes(node), is_given);
        const bool special = node.kind == NodeKind::kMap && specials_of(node.op) >= 1 && !divides;
        dear[static_cast<std::size_t>(id)] = special || reduces_columns(graph_, node) || any(dear);
        with_sums[static_cast<std::size_t>(id)] = any(with_sums);
    }
    for (const NodeId id : std::views::reverse(live)) {
        const bool of_all_rows = std::ranges::none_of(graph_.row_axes(graph_.node(id)), is_given);
        if (!with_sums[static_cast<std::size_t>(id)] || !of_all_rows) continue;
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
void Cutter::cut_summed_numbers() {
    for (const NodeId id : graph_.live_nodes()) {
        if (graph_.node(id).kind != NodeKind::kPartialReduce) continue;
        const NodeId summand = graph_.node(id).args[0];
        if (!graph_.column_axes(graph_.node(summand)).empty()) continue;
        if (widest_row_bytes(summand) > kWideRowBytes && stores_beside(summand)) cut(summand);
    }
}

// Nor do blocks stay that may run beside a kernel of many steps, which leaves some of them no room: what their rows
// come to is stored, and summed behind them.
void Cutter::cut_sums_beside_steps() {
    if (std::ranges::none_of(roots_, [&](NodeId root) { return is_long({root}); })) return;
    for (const NodeId id : graph_.live_nodes()) {
        if (graph_.node(id).kind != NodeKind::kPartialReduce) continue;
        for (const NodeId below : std::vector<NodeId>(reach(graph_.node(id).args[0]).nodes)) {
            const Node& node = graph_.node(below);
            if (reduces_columns(graph_, node) && graph_.column_axes(node).empty() && node.state < 0) cut(below);
        }
    }
}

// A block has each sum of rows' numbers in a register from its first row to its last, beside all that a row takes.
// Where those are many the numbers are stored, and summed by kernels that do nothing else.
void Cutter::cut_many_sums() {
    std::map<std::vector<AxisId>, std::set<NodeId>> summands;
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        if (node.kind != NodeKind::kPartialReduce || !graph_.column_axes(graph_.node(node.args[0])).empty()) continue;
        summands[graph_.node(node.args[0]).axes].insert(node.args[0]);
    }
    for (const auto& [rows, numbers] : summands) {
        const auto is_own = [&](NodeId id) { return reduces_columns(graph_, graph_.node(id)); };
        if (numbers.size() <= (std::ranges::all_of(numbers, is_own) ? kMostOwnSums : kMostSums)) continue;
        for (const NodeId id : numbers) {
            if (graph_.node(id).kind == NodeKind::kInput || graph_.node(id).state >= 0) continue;
            cut(id);
            stored_numbers_[id] = 0;
        }
    }
}

// Few sums of wide rows add up to a number, as a group's channels do: whoever reads the rows again with it would
// have all threads of a row wait for a few.
void Cutter::cut_sums_of_sums() {
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
        // A number that the whole row comes to is no term of its own: what columns are divided by, as their softmax is.
        columns = graph_.column_axes(node).empty() ? 0 : terms;
    }
}

// The kernel that makes the terms of a row's positions has them at hand: what the row comes to over the same positions,
// and those terms are not made of, is made there too, so that the threads of a wide row, which have the columns, need
// not meet over a few positions.
void Cutter::cut_sums_of_positions() {
    std::set<AxisId> positions;
    std::vector<NodeId> terms;
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        if (node.kind != NodeKind::kSumWhere || graph_.node(node.args[0]).kind == NodeKind::kInput) continue;
        positions.insert(node.reduced[0]);
        terms.push_back(node.args[0]);
    }
    if (terms.empty()) return;
    const std::vector<bool> makes_terms = needs(graph_, terms);
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        const bool of_positions = reduces_columns(graph_, node) && node.reduced.size() == 1 &&
                                  positions.contains(node.reduced[0]) && graph_.column_axes(node).empty();
        if (of_positions && node.state < 0 && !makes_terms[static_cast<std::size_t>(id)]) cut(id);
    }
}

// Whether a row that is stored comes from a reduction that the value comes from.
bool Cutter::stores_beside(NodeId value) const {
    const std::vector<NodeId>& below = reach(value).nodes;
    return std::any_of(roots_.begin(), roots_.end(), [&](NodeId root) {
        if (graph_.column_axes(graph_.node(root)).empty() || graph_.row_axes(graph_.node(root)).empty()) return false;
        const std::vector<NodeId>& beside = reach(root).nodes;
        return std::any_of(below.begin(), below.end(), [&](NodeId id) {
            return reduces_columns(graph_, graph_.node(id)) && std::binary_search(beside.begin(), beside.end(), id);
        });
    });
}

// Of the rows whose columns are reduced to a value.
std::int64_t Cutter::widest_row_bytes(NodeId value) const {
    std::int64_t widest = 0;
    for (const NodeId id : reach(value).nodes) {
        const Node& node = graph_.node(id);
        if (!reduces_columns(graph_, node)) continue;
        const Node& terms = graph_.node(node.args[0]);
        widest = std::max(widest, graph_.column_count(terms) * static_cast<std::int64_t>(size_bytes(terms.dtype)));
    }
    return widest;
}

void Cutter::cut_product(NodeId id) {
    for (const NodeId arg : graph_.node(id).args) {
        if (graph_.node(arg).kind != NodeKind::kInput) cut(arg);
    }
    if (is_read(id) || home(id) == nullptr) cut(id);
    if (std::exchange(has_products_, true)) return;
    cut_extents();
    cut_searches();
}

// The segment of a row is a matter of its position in the batch, not in a chunk.
void Cutter::cut_searches() {
    for (const NodeId id : graph_.live_nodes()) {
        if (graph_.node(id).kind == NodeKind::kSearch) cut(id);
    }
}

// Numbers of rows, and what is computed from them alone, are the batch's also where kernels see a chunk of it.
void Cutter::cut_extents() {
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

// Every thread of a row computes what the row has one of. Where nothing of it flows back into columns, the
// reductions it starts from are the place to go on in a kernel that has a thread for each row; where the difference
// of two is taken, that is, since what their roundings lost is not stored.
void Cutter::cut_numbers() {
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

// What takes sines and cosines, where many elements share it. And what takes functions of any kind where it is of some
// of a row's columns, and very many others share it, as the numbers of a token's heads do, unless others are reduced to
// each of those: the kernel that does so has it as a number of its rows.
void Cutter::cut_broadcast() {
    constexpr double kMany = 4;
    constexpr double kVeryMany = 64;
    struct Below {
        bool angles = false;
        bool functions = false;
        bool reductions = false;
    };
    std::vector<Below> below(static_cast<std::size_t>(graph_.size()));
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        Below& own = below[static_cast<std::size_t>(id)];
        own.reductions = reduces_columns(graph_, node) && !graph_.column_axes(node).empty();
        if (node.kind == NodeKind::kMap) own.angles = is_trigonometric(node.op);
        if (node.kind == NodeKind::kMap) own.functions = specials_of(node.op) >= 1;
        if (node.kind != NodeKind::kMap && node.kind != NodeKind::kCast) continue;
        for (const NodeId arg : node.args) {
            const Node& shared = graph_.node(arg);
            const Below& of = below[static_cast<std::size_t>(arg)];
            const double sharers = elements(graph_, node, kPlanningRows) / elements(graph_, shared, kPlanningRows);
            const bool of_some_columns =
                !graph_.column_axes(shared).empty() && graph_.row_axes(shared) == graph_.row_axes(node);
            if ((of.angles && sharers >= kMany) ||
                (of.functions && !of.reductions && of_some_columns && sharers >= kVeryMany)) {
                cut(arg);
                continue;
            }
            own.angles = own.angles || of.angles;
            own.functions = own.functions || of.functions;
            own.reductions = own.reductions || of.reductions;
        }
    }
}

// Kernels on the longest way from the inputs to the root's own.
int Cutter::cuts_behind(NodeId root) const {
    const auto [found, first] = cuts_behind_.try_emplace(root, 0);
    if (!first) return found->second;
    const auto with = stored_numbers_.find(root);
    int most = 0;
    for (const NodeId id : reach(root).nodes) {
        for (const NodeId arg : graph_.node(id).args) {
            if (arg == root || !is_cut_[static_cast<std::size_t>(arg)]) continue;
            const auto beside = stored_numbers_.find(arg);
            const bool alike =
                graph_.node(root).axes == graph_.node(arg).axes && graph_.node(root).dtype == graph_.node(arg).dtype;
            const bool together = alike && with != stored_numbers_.end() && beside != stored_numbers_.end() &&
                                  with->second == beside->second;
            most = std::max(most, cuts_behind(arg) + (together ? 0 : 1));
        }
    }
    return cuts_behind_[root] = most;
}

// Operands before users.
std::vector<NodeId> Cutter::reach_of_all(const std::vector<NodeId>& roots) const {
    std::vector<NodeId> all;
    for (const NodeId root : roots) {
        std::vector<NodeId> with_root;
        std::ranges::set_union(all, reach(root).nodes, std::back_inserter(with_root));
        all = std::move(with_root);
    }
    return all;
}

// The roots that share a kernel whatever is joined later.
std::map<NodeId, std::vector<NodeId>> Cutter::kernels_of_numbers() const {
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
bool Cutter::cut_live_numbers() {
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

}  // namespace rowjit::planning
