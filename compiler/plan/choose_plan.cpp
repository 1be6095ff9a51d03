#include "compiler/plan/choose_plan.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "compiler/plan/canonicalize.h"
#include "compiler/plan/column_spans.h"
#include "compiler/plan/divergences.h"
#include "compiler/plan/flat_reductions.h"
#include "compiler/plan/group_costs.h"
#include "compiler/plan/nested_sums.h"
#include "compiler/plan/strides.h"
#include "compiler/plan/swapped_sums.h"

namespace rowjit {
namespace {

constexpr double kPlanningRows = 8192;
// A warp whose lanes read a column of a tensor each uses a part of what comes with it: the rest of each sector.
constexpr double kStridedCost = 4;
// A row that is divided over a cluster runs at the pace of its slowest block: norms of 65536 columns reach 7 to 9
// tenths of what those of 4096 do on an H200, where there are no clusters they are read twice.
constexpr std::int64_t kMostBlockColumns = 32768;
constexpr double kWideCost = 1.25;
// What stores the same in spans of columns reads no more, and computes less.
constexpr double kSameTraffic = 1.001;
// Positions of one value that a thread holds: registers, and source text. Of numbers of a row the planner stores what
// is too much at once (compiler/plan/live_numbers.h).
constexpr std::int64_t kMostPositions = 64;
constexpr std::int64_t kMostNumbers = 128;

// Axes along which values with axes of `found` are read somewhere else, as the columns that a gradient is put together
// along.
void add_read_along(const GraphData& graph, const Node& index, std::set<AxisId>* found) {
    const std::vector<AxisId>& source = graph.node(index.args[0]).axes;
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (!found->contains(source[i])) continue;
        for (const Axis axis : index.coords[i].axes()) {
            const std::int64_t extent = graph.axis(axis.id).extent;
            if (extent != kRuntimeExtent && extent <= kMostNumbers) found->insert(axis.id);
        }
    }
}

// Whether a node or an operand of it has one of the axes.
bool has(const GraphData& graph, NodeId id, const std::set<AxisId>& axes) {
    const auto any_of = [&](const Node& node) {
        return std::any_of(node.axes.begin(), node.axes.end(), [&](AxisId axis) { return axes.contains(axis); });
    };
    const std::vector<NodeId>& args = graph.node(id).args;
    return any_of(graph.node(id)) ||
           std::any_of(args.begin(), args.end(), [&](NodeId arg) { return any_of(graph.node(arg)); });
}

// Axes of at most `most` columns that one reduction leaves and another is over together with more, as the channels of a
// group's norm: the sums of each channel add up to the group's.
void add_reduced_and_left(const GraphData& graph, std::int64_t most, std::set<AxisId>* found) {
    std::set<AxisId> left;
    std::set<AxisId> reduced;
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        if (node.kind != NodeKind::kReduce || graph.axis(node.reduced[0]).is_row) continue;
        if (node.reduced.size() > 1) reduced.insert(node.reduced.begin(), node.reduced.end());
        const std::vector<AxisId> columns = graph.column_axes(node);
        left.insert(columns.begin(), columns.end());
    }
    for (const AxisId axis : left) {
        if (reduced.contains(axis) && graph.axis(axis).extent <= most) found->insert(axis);
    }
}

// Axes of at most `most` columns that outputs have, of which something is asked whether a place is one of them, as the
// gradient of a cell's gates is put together of one for each: every gate would compute them all.
void add_put_together(const GraphData& graph, std::int64_t most, std::set<AxisId>* found) {
    std::set<AxisId> stored;
    for (const OutputInfo& output : graph.outputs()) {
        const std::vector<AxisId> columns = graph.column_axes(graph.node(output.node));
        if (columns.size() > 1) stored.insert(columns.begin(), columns.end());
    }
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        if (node.kind != NodeKind::kMap || node.op != Op::kEq) continue;
        const Node& place = graph.node(node.args[0]);
        if (place.kind != NodeKind::kIota || graph.node(node.args[1]).kind != NodeKind::kConst) continue;
        if (stored.contains(place.axis) && graph.axis(place.axis).extent <= most) found->insert(place.axis);
    }
}

// Column axes whose positions read rows of their own, as the steps of a convolution do.
std::set<AxisId> read_rows_apart(const GraphData& graph, const Node& index) {
    std::set<AxisId> found;
    const std::vector<AxisId>& source = graph.node(index.args[0]).axes;
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (!graph.axis(source[i]).is_row) continue;
        for (const NodeId data : index.coords[i].data_nodes()) {
            const std::vector<AxisId> columns = graph.column_axes(graph.node(data));
            found.insert(columns.begin(), columns.end());
        }
    }
    return found;
}

// The small axes of reductions over a few positions, those of a few positions that such a reduction leaves, that an
// output is put together along or that read rows of their own, and those along which they are read.
std::set<AxisId> small_axes(const GraphData& graph, const Target& target) {
    constexpr std::int64_t kFewLeft = 8;
    constexpr std::int64_t kFewAddedUp = 20;  // which a GPU's block has room for
    std::set<AxisId> found;
    add_put_together(graph, kFewLeft, &found);
    const std::vector<NodeId> live = graph.live_nodes();
    for (const NodeId id : live) {
        const Node& node = graph.node(id);
        if (!graph.reduces_few(node)) continue;
        found.insert(node.reduced.begin(), node.reduced.end());
        for (const AxisId axis : graph.node(node.args[0]).axes) {
            const std::int64_t extent = graph.axis(axis).extent;
            if (extent != kRuntimeExtent && extent <= kFewLeft) found.insert(axis);
        }
    }
    add_reduced_and_left(graph, target.is_gpu() ? kFewAddedUp : kFewLeft, &found);
    for (const NodeId id : live) {
        if (graph.node(id).kind != NodeKind::kIndex) continue;
        for (const AxisId axis : read_rows_apart(graph, graph.node(id))) {
            if (graph.axis(axis).extent <= kFewLeft) found.insert(axis);
        }
    }
    for (const NodeId id : live) {
        if (graph.node(id).kind == NodeKind::kIndex) add_read_along(graph, graph.node(id), &found);
    }
    return found;
}

// Whether values of a thread's own may stand for the positions along those axes, as far as it holds them.
bool can_unroll(const GraphData& graph, const std::set<AxisId>& axes) {
    const std::vector<NodeId> live = graph.live_nodes();
    const auto positions = [&](NodeId id) {
        std::int64_t count = 1;
        for (const AxisId axis : graph.node(id).axes) count *= axes.contains(axis) ? graph.axis(axis).extent : 1;
        return count;
    };
    const auto too_many = [&](NodeId id) {
        const std::vector<AxisId> columns = graph.column_axes(graph.node(id));
        const bool number =
            std::all_of(columns.begin(), columns.end(), [&](AxisId axis) { return axes.contains(axis); });
        return positions(id) > (number ? kMostNumbers : kMostPositions);
    };
    const auto kept_whole = [&](NodeId id) {
        const Node& node = graph.node(id);
        return (node.kind == NodeKind::kMatmul || node.is_segmented()) && has(graph, id, axes);
    };
    const auto overwrites = [&](const OutputInfo& output) {
        return !output.alias.empty() && positions(output.node) > 1;
    };
    return std::ranges::none_of(live, too_many) && std::ranges::none_of(live, kept_whole) &&
           std::ranges::none_of(graph.outputs(), overwrites);
}

AxisId widest_of(const GraphData& graph, const std::set<AxisId>& axes) {
    return *std::ranges::max_element(axes, {}, [&](AxisId axis) { return graph.axis(axis).extent; });
}

bool is_elementwise(const Node& node) { return node.kind == NodeKind::kMap || node.kind == NodeKind::kCast; }

bool reads_other_rows(const GraphData& graph, const Node& index) {
    const Node& source = graph.node(index.args[0]);
    for (std::size_t i = 0; i < source.axes.size(); ++i) {
        if (graph.axis(source.axes[i]).is_row && !index.coords[i].is_axis(Axis{source.axes[i]})) return true;
    }
    return false;
}

// Values of columns with functions that several rows read, each of which would compute them again: as what flows back
// to a convolution's sum, which each of its taps reads at a row of its own. Of those that make each other, the last.
std::set<NodeId> read_by_several_rows(const GraphData& graph) {
    const std::vector<NodeId> live = graph.live_nodes();
    std::map<NodeId, bool> has_functions;
    for (const NodeId id : live) {
        const Node& node = graph.node(id);
        bool& has = has_functions[id];
        has = node.kind == NodeKind::kMap && specials_of(node.op) >= 1;
        if (!is_elementwise(node)) continue;
        for (const NodeId arg : node.args) has = has || has_functions[arg];
    }
    // Calls goes_on(node, index) for what is read at other rows and, where it says so, for what that is computed from.
    const auto each_read = [&](const auto& goes_on) {
        for (const NodeId id : live) {
            const Node& index = graph.node(id);
            if (index.kind != NodeKind::kIndex || !reads_other_rows(graph, index)) continue;
            std::vector<NodeId> work = {index.args[0]};
            while (!work.empty()) {
                const NodeId next = work.back();
                work.pop_back();
                const Node& node = graph.node(next);
                const bool may_stay = is_elementwise(node) && has_functions[next] && !graph.column_axes(node).empty();
                if (may_stay && goes_on(next, index)) work.insert(work.end(), node.args.begin(), node.args.end());
            }
        }
    };
    std::map<NodeId, const std::vector<Coord>*> first_read;
    std::set<NodeId> of_several;
    each_read([&](NodeId id, const Node& index) {
        const auto [first, is_first] = first_read.emplace(id, &index.coords);
        // What several read, or one a second time, is read so too in what it is computed from.
        return is_first || (*first->second != index.coords && of_several.insert(id).second);
    });
    std::set<NodeId> found;
    std::set<NodeId> passed;
    each_read([&](NodeId id, const Node&) {
        const bool is_of_several = of_several.contains(id);
        if (is_of_several) found.insert(id);
        return !is_of_several && passed.insert(id).second;
    });
    return found;
}

// What is reduced of groups of columns and read at more columns than there are groups, each of which would reduce it
// again.
std::set<NodeId> reductions_read_often(const GraphData& graph) {
    std::set<NodeId> found;
    for (const NodeId id : graph.live_nodes()) {
        const Node& index = graph.node(id);
        if (index.kind != NodeKind::kIndex) continue;
        const std::int64_t readers = graph.column_count(index);
        std::set<NodeId> seen;
        std::vector<NodeId> work = {index.args[0]};
        while (!work.empty()) {
            const NodeId next = work.back();
            work.pop_back();
            const Node& node = graph.node(next);
            if (!seen.insert(next).second || graph.column_axes(node).empty()) continue;
            const bool reduces = node.kind == NodeKind::kReduce && !graph.axis(node.reduced[0]).is_row;
            if (reduces && readers > graph.column_count(node)) found.insert(next);
            if (is_elementwise(node) || node.kind == NodeKind::kIndex)
                work.insert(work.end(), node.args.begin(), node.args.end());
        }
    }
    return found;
}

// Sums over some of a graph's rows, such as leave others, of what is made of numbers that their columns are reduced to.
struct SumsOfReduced {
    bool any = false;
    // Of what they add up, the values that they take at other rows, as the rows of a table take what flows back to
    // them: for each they would ask all that it is made of.
    std::set<NodeId> at_other_rows;
};

SumsOfReduced sums_of_reduced(const GraphData& graph) {
    SumsOfReduced found;
    std::map<NodeId, bool> has_reductions;         // of columns, below what is elementwise
    std::map<NodeId, std::set<NodeId>> elsewhere;  // likewise, values with such that it takes at other rows
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        const bool of_rows = node.kind == NodeKind::kReduce && graph.axis(node.reduced[0]).is_row;
        if (of_rows && (node.is_segmented() || !graph.row_axes(node).empty())) {
            const std::set<NodeId>& taken = elsewhere[node.args[0]];
            found.any = found.any || !taken.empty() || has_reductions[node.args[0]];
            found.at_other_rows.insert(taken.begin(), taken.end());
        }
        if (node.kind == NodeKind::kReduce) has_reductions[id] = !of_rows;
        if (node.kind == NodeKind::kIndex && has_reductions[node.args[0]]) {
            if (reads_other_rows(graph, node) && is_elementwise(graph.node(node.args[0])))
                elsewhere[id].insert(node.args[0]);
        }
        if (!is_elementwise(node)) continue;
        for (const NodeId arg : node.args) {
            has_reductions[id] = has_reductions[id] || has_reductions[arg];
            elsewhere[id].insert(elsewhere[arg].begin(), elsewhere[arg].end());
        }
    }
    return found;
}

bool is_strided(const std::vector<std::int64_t>& column_strides, std::int64_t most_together = 1) {
    return !column_strides.empty() && *std::min_element(column_strides.begin(), column_strides.end()) > most_together;
}

// How far apart neighbours along an axis are by the coordinate, at least: by its factors; 0 where it is not by the
// axis.
std::int64_t step(const Coord& coord, Axis axis) {
    switch (coord.kind()) {
        case Coord::Kind::kConst:
        case Coord::Kind::kData: return 0;
        case Coord::Kind::kAxis: return coord.is_axis(axis) ? 1 : 0;
        case Coord::Kind::kAdd: {
            const std::int64_t left = step(coord.left(), axis);
            const std::int64_t right = step(coord.right(), axis);
            return left == 0 || right == 0 ? left + right : std::min(left, right);
        }
        case Coord::Kind::kMul: return step(coord.left(), axis) * std::abs(coord.constant());
        case Coord::Kind::kDiv: return std::min<std::int64_t>(step(coord.left(), axis), 1);
        case Coord::Kind::kMod: return step(coord.left(), axis);
    }
    return 0;
}

// Whether neighbours along the columns that read lie apart in what they read, as heads do of which a row has one place.
bool is_strided(const GraphData& graph, const Node& index, std::int64_t most_together) {
    const Node& source = graph.node(index.args[0]);
    std::vector<std::int64_t> strides;
    for (std::size_t i = 0; i < source.axes.size(); ++i) {
        for (const Axis axis : index.coords[i].axes()) {
            if (!graph.axis(axis.id).is_row)
                strides.push_back(stride_of(graph, source, i) * step(index.coords[i], axis));
        }
    }
    return is_strided(strides, most_together);
}

// Whether neighbours are rows, as nothing has columns, and lie apart by more than a line in what is read at known
// places: a mixture of 8 Gaussians in 16 dimensions, each of whose 128 columns was a number of the row, took a CPU 49
// ms in place of 7.
bool reads_long_rows_by_places(const GraphData& graph) {
    constexpr std::int64_t kLongRow = 32;
    const std::vector<NodeId> live = graph.live_nodes();
    const auto has_columns = [&](NodeId id) {
        return graph.node(id).kind != NodeKind::kInput && !graph.column_axes(graph.node(id)).empty();
    };
    const auto is_long = [&](NodeId id) {
        const Node& node = graph.node(id);
        return node.kind == NodeKind::kIndex && graph.column_count(graph.node(node.args[0])) >= kLongRow;
    };
    return std::ranges::none_of(live, has_columns) && std::ranges::any_of(live, is_long);
}

bool has_strided(const GraphData& graph, const Target& target) {
    if (reads_long_rows_by_places(graph)) return true;
    constexpr std::int64_t kMostVectors = 4;  // as Access::kMostVectors, of which a CPU's loads take their lanes
    const std::int64_t most_together = target.is_gpu() ? 1 : kMostVectors;
    std::set<NodeId> read_in_order;
    const std::vector<NodeId> live = graph.live_nodes();
    for (const NodeId id : live) {
        const Node& node = graph.node(id);
        if (node.kind != NodeKind::kIndex) read_in_order.insert(node.args.begin(), node.args.end());
    }
    const auto reads_apart = [&](NodeId id) {
        const Node& node = graph.node(id);
        if (target.is_gpu() && node.kind == NodeKind::kIndex && !read_rows_apart(graph, node).empty()) return true;
        if (node.kind == NodeKind::kInput)
            return read_in_order.contains(id) && is_strided(node.column_strides, most_together);
        return node.kind == NodeKind::kIndex && graph.node(node.args[0]).kind == NodeKind::kInput &&
               is_strided(graph, node, most_together);
    };
    const auto stores_apart = [](const OutputInfo& output) { return is_strided(output.column_strides); };
    return std::ranges::any_of(live, reads_apart) || std::ranges::any_of(graph.outputs(), stores_apart);
}

// Whether a GPU's row waits for sums of more columns than a block holds.
bool waits_for_wide_sums(const GraphData& graph) {
    const std::vector<NodeId> live = graph.live_nodes();
    return std::any_of(live.begin(), live.end(), [&](NodeId id) {
        const Node& node = graph.node(id);
        if (node.kind != NodeKind::kReduce || graph.axis(node.reduced[0]).is_row) return false;
        std::int64_t columns = 1;
        for (const AxisId axis : node.reduced) columns *= graph.axis(axis).extent;
        return columns > kMostBlockColumns;
    });
}

// Whether a CPU's rows, with which it is done one after the other, have fewer columns than a vector.
bool has_narrow_rows(const GraphData& graph, const Target& target) {
    constexpr std::int64_t kFewColumns = 8;
    std::int64_t columns = 1;
    for (const NodeId id : graph.live_nodes()) columns = std::max(columns, graph.column_count(graph.node(id)));
    return !target.is_gpu() && columns > 1 && columns < kFewColumns;
}

double cost_us(const Plan& plan, const Target& target) {
    double total_us = 0;
    for (const Group& group : plan.groups) {
        const double us = predicted_us(*group.graph, target, kPlanningRows);
        const bool apart = has_strided(*group.graph, target) || has_narrow_rows(*group.graph, target);
        total_us += us * (apart ? kStridedCost : 1);
    }
    return total_us;
}

// The canonical graph with sums over rows before those over columns: of the graph as it is given where it has them the
// other way round, as a quotient by a number of columns is still one there, else of the canonical one, which may.
std::shared_ptr<const GraphData> with_rows_first(const GraphData& given, const GraphData& canonical) {
    const std::shared_ptr<const GraphData> swapped = sum_rows_first(given);
    return swapped ? canonicalize(*swapped, {}, {}, SumOrder::kAsGiven) : sum_rows_first(canonical);
}

// What a group computes beyond the time that its traffic takes.
bool computes_long(const Plan& plan, const Target& target) {
    constexpr double kLongUs = 20;
    return std::any_of(plan.groups.begin(), plan.groups.end(), [&](const Group& group) {
        const double memory_us = group_bytes(*group.graph, kPlanningRows) / (target.bandwidth_gbps * 1e3);
        return predicted_us(*group.graph, target, kPlanningRows) - memory_us > kLongUs;
    });
}

}  // namespace

Plan cheapest_plan(const GraphData& given, const Target& target, const Runs& runs, std::string_view stem) {
    const std::shared_ptr<const GraphData> flat = flatten_reductions(given);
    const GraphData& of_flat = flat ? *flat : given;
    const std::shared_ptr<const GraphData> with_divergences = write_divergences(of_flat);
    const GraphData& graph = with_divergences ? *with_divergences : of_flat;
    const std::shared_ptr<const GraphData> plain = canonicalize(graph);
    std::shared_ptr<const GraphData> canonical = plain;  // or as the best plan so far has it
    Plan best = make_plan(canonical, target, Repeated::kWithRows, stem);
    double best_us = cost_us(best, target);
    const auto all_run = [&](const Plan& plan) { return std::all_of(plan.groups.begin(), plan.groups.end(), runs); };
    bool best_runs = all_run(best);
    const auto consider = [&](Plan plan, double worth = 1) {
        const double plan_us = cost_us(plan, target);
        if ((plan_us >= worth * best_us && best_runs) || !all_run(plan)) return false;
        best = std::move(plan);
        best_us = plan_us;
        best_runs = true;
        return true;
    };
    const auto try_canonical = [&](std::shared_ptr<const GraphData> other, double worth) {
        const bool taken = consider(make_plan(other, target, Repeated::kWithRows, stem), worth);
        if (taken || !best_runs) canonical = std::move(other);
    };
    // All small axes, or some of them where that is cheaper: 8 Gaussians of 16 dimensions are 128 numbers of a row, or
    // 8 of each dimension.
    for (std::set<AxisId> axes = small_axes(graph, target); !axes.empty(); axes.erase(widest_of(graph, axes))) {
        if (can_unroll(graph, axes)) try_canonical(canonicalize(graph, axes), 1);
    }
    if (const auto divided = divide_outputs(graph, target))
        try_canonical(canonicalize(divided->graph, divided->spans), kSameTraffic);
    if (const std::set<NodeId> often = reductions_read_often(graph); !often.empty())
        try_canonical(canonicalize(graph, {}, often), 1);
    // A GPU has the functions for nothing beside memory: what flows back through a convolution of four taps and SiLU
    // took 0.167 ms of 4096 bf16 columns and 0.308 with what its taps share stored between two kernels (H200).
    if (!target.is_gpu() && computes_long(best, target)) {
        constexpr double kStored = 0.8;  // the share of the time that storing what rows share must leave
        const std::set<NodeId> shared = read_by_several_rows(graph);
        if (!shared.empty()) try_canonical(canonicalize(graph, {}, shared), kStored);
    }
    const auto waits = [](const Group& group) { return waits_for_wide_sums(*group.graph); };
    if (target.is_gpu() && std::any_of(best.groups.begin(), best.groups.end(), waits)) {
        const std::shared_ptr<const GraphData> nested = nest_sums(canonical);
        if (nested != canonical && consider(make_plan(nested, target, Repeated::kWithRows, stem), kWideCost))
            canonical = nested;
    }
    if (const std::shared_ptr<const GraphData> nested = nest_row_sums(canonical); nested != canonical)
        consider(make_plan(nested, target, Repeated::kWithRows, stem));
    if (target.is_gpu()) {
        if (const std::shared_ptr<const GraphData> swapped = with_rows_first(graph, *canonical))
            try_canonical(swapped, 1);
    }
    const SumsOfReduced sums = sums_of_reduced(graph);
    if (sums.any) consider(make_plan(canonical, target, Repeated::kNotInSums, stem));
    if (!sums.at_other_rows.empty())
        consider(make_plan(canonicalize(graph, {}, sums.at_other_rows), target, Repeated::kNotInSums, stem));
    if (computes_long(best, target) || !best_runs) consider(make_plan(canonical, target, Repeated::kApart, stem));
    const auto consider_as_far_as_it_runs = [&](const std::shared_ptr<const GraphData>& of) {
        for (const Repeated repeated : {Repeated::kWithRows, Repeated::kApart}) {
            if (!best_runs) consider(make_plan(of, target, repeated, stem, runs));
        }
    };
    consider_as_far_as_it_runs(plain);
    if (canonical != plain) consider_as_far_as_it_runs(canonical);
    return best;
}

}  // namespace rowjit
