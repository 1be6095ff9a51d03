// Which pieces share a kernel: two at a time, the pair that saves most first, as far as one kernel can be both.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "compiler/plan/cutter.h"
#include "compiler/plan/group_costs.h"
#include "compiler/plan/live_numbers.h"
#include "compiler/plan/partial_reductions.h"
#include "compiler/plan/planner.h"

namespace rowjit::planning {

// How many sums over rows a kernel of these roots has in a thread's registers.
std::size_t Planner::sums(std::span<const NodeId> roots) const {
    std::set<NodeId> found;
    for (const NodeId root : roots) {
        const bool is_part = graph_->node(root).kind == NodeKind::kPartialReduce;
        if (is_part && graph_->column_axes(computed(*graph_, root)).empty()) found.insert(root);
        if (!cutter_.reach(root).reduces_rows) continue;
        for (const NodeId id : cutter_.reach(root).nodes) {
            if (reduces_rows(*graph_, graph_->node(id))) found.insert(id);
        }
    }
    return found.size();
}

// How many sums over rows a kernel of both may have.
std::size_t Planner::most_sums(const Piece& a, const Piece& b) const {
    const auto is_own = [&](NodeId root) {
        const Node& node = graph_->node(root);
        return node.kind != NodeKind::kPartialReduce || reduces_columns(*graph_, computed(*graph_, root));
    };
    const bool are_own = std::ranges::all_of(a.roots, is_own) && std::ranges::all_of(b.roots, is_own);
    return are_own && !a.reduces_rows ? kMostOwnSums : kMostSums;
}

// Whether `a` needs a value that `b` stores, directly or through other pieces.
bool Planner::depends(const Piece& a, const Piece& b) const {
    if (a.copies && b.is_apart && a.roots == b.roots) return true;
    if (b.copies) return false;
    return std::any_of(b.roots.begin(), b.roots.end(), [&](NodeId id) {
        return a.needs[static_cast<std::size_t>(id)] && cutter_.cuts_.contains(id) && !is_root(a, id);
    });
}

// Whether it depends on it for more than numbers that it could compute itself.
bool Planner::waits_for(const Piece& a, const Piece& b) const {
    if (!depends(a, b)) return false;
    // Blocks that have parts of what groups of a row's columns come to would stay for all their rows.
    const bool has_parts = makes_parts_alone(a);
    const auto computes = [&](NodeId id) {
        return cutter_.is_repeated_number(id) && !(has_parts && !graph_->column_axes(graph_->node(id)).empty());
    };
    return b.copies || b.is_product || std::any_of(b.roots.begin(), b.roots.end(), [&](NodeId id) {
               return a.needs[static_cast<std::size_t>(id)] && !is_root(a, id) && !computes(id);
           });
}

// Joins two pieces at a time, the pair that saves most first, until none saves. Pieces are few, so this is
// exhaustive in practice; ties keep graph order, so plans are deterministic.
void Planner::join() {
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
bool Planner::is_full(const Piece& piece) const {
    constexpr int kMostRefusals = 3;
    const auto refused = refusals_.find(piece.id);
    return refused != refusals_.end() && refused->second >= kMostRefusals;
}

// Whether it is of the positions of rows that others may see a chunk of.
bool Planner::searches_apart(const Piece& piece) const {
    return cutter_.has_products_ && std::any_of(piece.roots.begin(), piece.roots.end(), [&](NodeId root) {
               return graph_->node(root).kind == NodeKind::kSearch;
           });
}

std::set<NodeId> Planner::products_read(const Piece& piece) const {
    std::set<NodeId> found;
    if (!cutter_.has_products_) return found;
    for (const NodeId id : cutter_.reach_with_loads(piece.roots)) {
        if (graph_->node(id).kind == NodeKind::kMatmul) found.insert(id);
    }
    return found;
}

// Whether one piece needs another's values by way of others: both in one kernel would wait for themselves.
bool Planner::needs_through_others(std::size_t from, std::size_t to) const {
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
double Planner::joined_saving_us(const Piece& a, const Piece& b) {
    if (a.is_apart || b.is_apart || a.copies || b.copies) return 0;
    if (a.reduces_rows != b.reduces_rows) return 0;
    if (is_full(a) || is_full(b)) return 0;
    if (a.row_axes != b.row_axes && !divides_rows(a, b) && !divides_rows(b, a)) return 0;
    if (a.promoted != b.promoted && !(a.promoted.empty() || b.promoted.empty())) return 0;
    if (waits_for(a, b) || waits_for(b, a)) return 0;
    if (searches_apart(a) != searches_apart(b)) return 0;
    if (sums_few_of_many(a, b) || sums_few_of_many(b, a)) return 0;
    if (sums(a.roots) + sums(b.roots) > most_sums(a, b)) return 0;
    if ((a.is_long && waits_for_more_rows(b, a)) || (b.is_long && waits_for_more_rows(a, b))) return 0;
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
    if (cutter_.sum_several_lists(roots) || holds_too_many(roots)) return 0;
    const Piece both = piece(std::move(roots));
    if (both.row_axes != a.row_axes && both.row_axes != b.row_axes) return saving->second;
    saving->second = a.cost_us + b.cost_us - both.cost_us;
    // What adds up their parts is then one kernel too, and a row that is stored is not its staying blocks' as well:
    // a batch norm's weight has its gradient with the sums that its rows' gradient waits for.
    if (makes_parts_alone(a) && makes_parts_alone(b)) saving->second += kLaunchUs;
    return saving->second;
}

// Whether `parts` are of a row's columns each of which `whole` stores for many, as a norm of a pooled sequence whose
// gradient all of its tokens have: its blocks would stay, with the sums' registers beside so many columns. H200, of 196
// steps of 768 bf16 columns 0.362 ms in one kernel, 0.131 in two.
bool Planner::sums_few_of_many(const Piece& parts, const Piece& whole) const {
    constexpr std::int64_t kLeast = 64;
    constexpr std::int64_t kMany = 8;
    const auto columns = [&](NodeId root) { return graph_->column_count(computed(*graph_, root)); };
    const auto is_of_columns = [&](NodeId root) {
        return graph_->node(root).kind == NodeKind::kPartialReduce && columns(root) >= kLeast;
    };
    return std::ranges::any_of(parts.roots, [&](NodeId part) {
        return is_of_columns(part) && std::ranges::any_of(whole.roots, [&](NodeId root) {
                   return graph_->node(root).kind != NodeKind::kPartialReduce && columns(root) >= kMany * columns(part);
               });
    });
}

// Whether `a` waits for rows that `b` does without.
bool Planner::waits_for_more_rows(const Piece& a, const Piece& b) const {
    return std::ranges::any_of(pieces_, [&](const Piece& rows) {
        const bool apart = rows.id != a.id && rows.id != b.id && depends(a, rows) && !depends(b, rows);
        return apart && cutter_.has_columns(rows.roots);
    });
}

bool Planner::makes_parts_alone(const Piece& piece) const {
    return std::ranges::all_of(piece.roots,
                               [&](NodeId root) { return graph_->node(root).kind == NodeKind::kPartialReduce; });
}

// Whether a row of `whole` is some rows of `parts`, along axes that this reduces parts of its columns apart for:
// nothing of `whole` needs more than one of those at a time, and its sums over rows may be one for each. They are
// the outermost of its columns, so that what is left lies together in memory.
bool Planner::divides_rows(const Piece& parts, const Piece& whole) const {
    std::vector<AxisId> rows = whole.row_axes;
    rows.insert(rows.end(), parts.promoted.begin(), parts.promoted.end());
    if (rows != parts.row_axes || !whole.promoted.empty()) return false;
    const std::vector<AxisId> apart(parts.promoted.begin(), parts.promoted.end());
    return std::ranges::all_of(whole.roots, [&](NodeId root) {
        const Node& node = computed(*graph_, root);
        const std::vector<AxisId> columns = graph_->column_axes(node);
        const bool has_all = columns.size() >= apart.size() && std::equal(apart.begin(), apart.end(), columns.begin());
        const bool sums = graph_->node(root).kind == NodeKind::kPartialReduce;
        return has_all && (!sums || can_lie_apart(*graph_, node, apart, target_)) &&
               std::ranges::none_of(cutter_.reach(root).nodes,
                                    [&](NodeId id) { return reduces_columns(*graph_, graph_->node(id)); });
    });
}

// Whether sums over rows of both leave the same row axes, so that a block has a part of each.
bool Planner::sum_alike(const Piece& a, const Piece& b) const {
    std::set<std::vector<AxisId>> left;
    for (const Piece* piece : {&a, &b}) {
        for (const NodeId root : piece->roots) {
            if (graph_->node(root).kind != NodeKind::kPartialReduce) continue;
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
bool Planner::holds_too_many(const std::vector<NodeId>& roots) const {
    return target_.is_gpu() && !values_that_part(*graph_, cutter_.reach_of_all(roots)).empty();
}

}  // namespace rowjit::planning
