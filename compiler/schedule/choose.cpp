#include "compiler/schedule/choose.h"

#include <algorithm>
#include <bit>
#include <set>

#include "compiler/plan/digit_orders.h"
#include "compiler/plan/online.h"
#include "compiler/plan/partial_reductions.h"
#include "compiler/plan/strides.h"
#include "compiler/schedule/lower.h"
#include "dsl/coordinate_value.h"
#include "dsl/moments.h"

namespace rowjit {

namespace {

// Inputs that nodes of one kind alone read, where they find the place themselves: the number of their columns is that
// of no loop.
std::set<NodeId> found_by(NodeKind kind, const GraphData& graph) {
    std::set<NodeId> found;
    std::set<NodeId> otherwise;
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        for (std::size_t i = 0; i < node.args.size(); ++i)
            (node.kind == kind && node.reads_from_memory(i) ? found : otherwise).insert(node.args[i]);
    }
    std::erase_if(found, [&](NodeId id) { return otherwise.contains(id); });
    return found;
}

// Whether a tensor's columns have a loop of their own, which is short beside another's: what that one's vectors are
// does not go by it.
bool lies_aside(const GraphData& graph, const Node& tensor) {
    constexpr std::int64_t kShort = 16;
    const std::vector<AxisId> columns = graph.column_axes(tensor);
    return std::any_of(graph.outputs().begin(), graph.outputs().end(), [&](const OutputInfo& other) {
        const Node& wide = graph.node(other.node);
        const auto in_wide = [&](AxisId axis) { return contains(wide.axes, axis); };
        return other.slots < 0 && graph.column_count(tensor) * kShort <= graph.column_count(wide) &&
               std::ranges::none_of(columns, in_wide);
    });
}

// Whether each column is read at a place of its own in a row of several sectors of memory, which data give.
bool is_read_at_places(const GraphData& graph, const Node& node) {
    constexpr std::int64_t kLeastBytes = 1024;
    if (node.kind != NodeKind::kIndex) return false;
    const Node& source = graph.node(node.args[0]);
    const std::int64_t bytes = graph.column_count(source) * static_cast<std::int64_t>(size_bytes(source.dtype));
    if (graph.row_axes(source).empty() || bytes < kLeastBytes) return false;
    for (std::size_t i = 0; i < source.axes.size(); ++i) {
        if (graph.axis(source.axes[i]).is_row) continue;
        for (const std::int32_t data : node.coords[i].data_nodes()) {
            if (!graph.column_axes(graph.node(data)).empty()) return true;
        }
    }
    return false;
}

// Whether a thread holds the positions of an axis, at each of which an input is then read in a part of its columns.
bool holds_positions(const GraphData& graph) {
    const auto unrolled = [](const AxisInfo& axis) { return axis.is_unrolled; };
    return std::any_of(graph.axes().begin(), graph.axes().end(), unrolled);
}

// Whether a value has places of its own, as a list of the row's greatest elements: along columns that no input has, and
// made of numbers of the row and of places alone.
bool is_list(const GraphData& graph, NodeId id) {
    const std::vector<AxisId> columns = graph.column_axes(graph.node(id));
    const std::vector<NodeId> live = graph.live_nodes();
    const auto lies_along = [&](NodeId other) {
        return graph.node(other).kind == NodeKind::kInput && graph.column_axes(graph.node(other)) == columns;
    };
    const auto has_columns = [&](NodeId other) {
        return graph.node(other).kind == NodeKind::kInput && !graph.column_axes(graph.node(other)).empty();
    };
    if (columns.empty() || std::any_of(live.begin(), live.end(), lies_along)) return false;
    if (std::none_of(live.begin(), live.end(), has_columns)) return false;
    std::set<NodeId> seen;
    std::vector<NodeId> work = {id};
    while (!work.empty()) {
        const NodeId next = work.back();
        work.pop_back();
        const Node& node = graph.node(next);
        if (graph.column_axes(node).empty() || !seen.insert(next).second) continue;
        if (node.kind == NodeKind::kInput || node.kind == NodeKind::kIndex) return false;
        work.insert(work.end(), node.args.begin(), node.args.end());
    }
    return true;
}

// Whether what takes long to compute of a column, of what is read or `behind` a reduction, is reduced, and wanted again
// with what that comes to: its f32 is kept, but an exponential, of which the logit may be (schedule/lower).
bool holds_computed(const GraphData& graph, bool behind) {
    std::vector<int> phases(static_cast<std::size_t>(graph.size()), 0);  // reductions one above the other
    std::vector<int> dear(static_cast<std::size_t>(graph.size()), -1);   // of which phase what takes long is in it
    bool reduced = false;
    bool again = false;
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        const bool reduces = node.kind == NodeKind::kReduce;
        int phase = 0;
        int below = -1;
        for (const NodeId arg : node.args) {
            phase = std::max(phase, phases[static_cast<std::size_t>(arg)]);
            below = std::max(below, dear[static_cast<std::size_t>(arg)]);
        }
        phase += reduces ? 1 : 0;
        phases[static_cast<std::size_t>(id)] = phase;
        reduced = reduced || (below >= 0 && reduces);
        again = again || (below >= 0 && below < phase && !reduces);
        const bool special = node.kind == NodeKind::kMap && is_special(node.op) && node.op != Op::kExp;
        const bool is_dear = (special && (phase > 0) == behind) || below == phase;
        if (is_dear && !reduces && !graph.column_axes(node).empty()) dear[static_cast<std::size_t>(id)] = phase;
    }
    return reduced && again;
}

// Two rules of a family may lead to one schedule.
void keep_first_of_equal(std::vector<Schedule>* schedules) {
    std::vector<Schedule> distinct;
    for (const Schedule& s : *schedules) {
        if (std::find(distinct.begin(), distinct.end(), s) == distinct.end()) distinct.push_back(s);
    }
    *schedules = std::move(distinct);
}

constexpr int kAccessBytes = 16;

// A block's rows are at positions of their own of those that sums are not over.
void take_rows_side_by_side(const GroupFacts& facts, const Target& target, std::vector<Schedule>* schedules) {
    for (Schedule& s : *schedules) {
        const int rows = rows_side_by_side(facts.positions_apart, s.threads_per_row, target.warp_size);
        if (rows == 0) continue;  // which is declined
        s.blocks_per_sm = s.blocks_per_sm * s.rows_per_block / rows;
        s.min_blocks_per_sm = s.min_blocks_per_sm * s.rows_per_block / rows;
        s.rows_per_block = rows;
    }
}

// Where all columns are summed and nothing is reduced besides, threads have whole vectors, as many rows of them as fill
// two warps: by tables of heads of 128 columns in bf16 0.110 ms so, 0.115 in fours with the next row's loads on their
// way; by tables in f32 that a batch shares 0.114 and 0.125. Not of 64 columns: by three tables 0.0963 and 0.0892.
//
// Where there are many, in blocks of 256: by tables that a batch and its heads share 0.121, and in fours 0.133.
std::vector<Schedule> blocks_of_whole_vectors(const GroupFacts& facts, bool are_few,
                                              const std::vector<Schedule>& schedules) {
    constexpr int kThreads = 64;
    constexpr int kThreadsOfMany = 256;
    constexpr int kTogether = 1024;  // on a multiprocessor
    constexpr std::int64_t kLeastOfRow = 16;
    const int vector = vector_dividing(facts.columns, facts.access_columns());
    const std::int64_t threads = facts.columns / vector;
    const bool divides = threads >= kLeastOfRow && threads <= kThreads / 2 && kThreads % threads == 0;
    const bool is_whole = facts.fewest_summed == facts.columns && divides;
    if (!is_whole || schedules.empty() || schedules.front().family != Family::kElementwise) return {};
    Schedule s;
    s.family = Family::kElementwise;
    s.residency = Residency::kRegisters;
    s.vector = vector;
    s.threads_per_row = static_cast<int>(threads);
    const int of_block = are_few ? kThreads : kThreadsOfMany;
    s.rows_per_block = of_block / s.threads_per_row;
    s.blocks_per_sm = kTogether / of_block;
    return {s};
}

// Where each position of outer axes has a few rows only, whose sums a block joins before it comes to the next: blocks
// of a warp or two, in which few rows join. Rows' next loads are on their way meanwhile, as far as those are short.
// H200, derivatives of rotary embeddings with those of their tables, in ms with blocks of 256 threads and of so few: 16
// heads of 192 columns 0.277 and 0.0736, 32 of 96 0.213 and 0.0913, 32 of 128 and a norm in blocks of 128 and 32 0.190
// and 0.131.
void add_small_blocks(const GroupFacts& facts, const Target& target, std::vector<Schedule>* schedules) {
    constexpr std::int64_t kFewRows = 64;
    constexpr std::size_t kTried = 6;
    constexpr int kMostBlocks = 32;  // on a multiprocessor
    constexpr int kShortAccess = 8;  // bytes
    if (!target.is_gpu() || facts.rows_of_each == 0) return;
    const bool are_few = facts.rows_of_each <= kFewRows;
    std::vector<Schedule> small = blocks_of_whole_vectors(facts, are_few, *schedules);
    const std::size_t tried = are_few ? std::min(kTried, schedules->size()) : 0;
    for (std::size_t i = 0; i < tried; ++i) {
        const Schedule& given = (*schedules)[i];
        const int whole = given.threads_per_row * given.rows_per_block;
        const int fewest = std::max(target.warp_size, 2 * given.threads_per_row);
        for (const int threads : {fewest, 2 * fewest}) {
            if (threads >= whole) continue;
            const int most = std::min(kMostBlocks, target.max_threads_per_sm / threads);
            Schedule s = given;
            s.rows_per_block = threads / s.threads_per_row;
            s.blocks_per_sm = std::min(most, given.blocks_per_sm * whole / threads);
            s.min_blocks_per_sm = std::min(most, given.min_blocks_per_sm * whole / threads);
            const bool is_short = s.vector * facts.narrowest_bytes <= kShortAccess;
            for (const bool ahead : {is_short, !is_short}) {
                s.prefetch = given.prefetch || (ahead && given.stages == 0);
                small.push_back(s);
            }
        }
    }
    schedules->insert(schedules->begin(), small.begin(), small.end());
}

// What a random number is as much as: ten rounds of Philox.
constexpr int kFunctionsOfRandom = 4;

// Whether a value of columns is read of a row that lies so many away along the innermost row axis.
bool reads_beside(const Group& group, const Node& node) {
    const GraphData& graph = *group.graph;
    if (node.kind != NodeKind::kIndex || group.row_axes.empty() || graph.column_axes(node).empty()) return false;
    return std::any_of(node.coords.begin(), node.coords.end(), [&](const Coord& coord) {
        return places_beyond(graph, group.row_axes.back(), coord).has_value();
    });
}

// The most positions of rows that a result is reduced over; 0 where a launch says how many.
std::int64_t reduced_positions(const GraphData& graph) {
    std::int64_t most = 1;
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        if (node.kind != NodeKind::kReduce || !graph.axis(node.reduced[0]).is_row) continue;
        const std::int64_t positions = graph.positions(node.reduced, 0);
        if (positions == 0) return 0;
        most = std::max(most, positions);
    }
    return most;
}

// Whether every reduction over rows is over the innermost of them, as of a head's queries over all batches.
bool reduces_along(const GraphData& graph) {
    bool any = false;
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        if (node.kind != NodeKind::kReduce || !graph.axis(node.reduced[0]).is_row) continue;
        if (node.is_segmented() || !contains(node.reduced, graph.node(node.args[0]).axes.back())) return false;
        any = true;
    }
    return any;
}

// Whether so many rows of results are reduced, as a launch says or the graph, that there are threads enough for all.
bool is_of_batches(const Group& group) {
    constexpr std::int64_t kManyResults = 32768;
    std::int64_t results = 1;
    for (const AxisId axis : group.row_axes) {
        const std::int64_t extent = group.graph->axis(axis).extent;
        if (extent == kRuntimeExtent) return true;
        results *= extent;
    }
    const bool promoted = !group.row_axes.empty() && group.graph->axis(group.row_axes.back()).is_promoted;
    return promoted && group.row_axes.size() > 1 && results >= kManyResults;
}

// What lies along the innermost row axis, where that is one of columns.
void note_promoted(const Group& group, GroupFacts* facts) {
    const GraphData& graph = *group.graph;
    if (group.row_axes.empty() || !graph.axis(group.row_axes.back()).is_promoted) return;
    const AxisId innermost = group.row_axes.back();
    facts->promoted_columns = graph.axis(innermost).extent;
    facts->promoted_read_bytes = 1;
    const auto widest = [&](const Node& node, int bytes) {
        return contains(node.axes, innermost) ? std::max(bytes, static_cast<int>(size_bytes(node.dtype))) : bytes;
    };
    for (const NodeId id : graph.live_nodes()) {
        if (graph.node(id).kind == NodeKind::kInput)
            facts->promoted_read_bytes = widest(graph.node(id), facts->promoted_read_bytes);
    }
    facts->promoted_bytes = facts->promoted_read_bytes;
    for (const OutputInfo& output : graph.outputs())
        facts->promoted_bytes = widest(graph.node(output.node), facts->promoted_bytes);
}

// Whether rows share it along an axis whose extent a launch gives, as the tokens of a sequence do what belongs to the
// sequence: it comes from a cache. To rows that are reduced it is no tensor of theirs: what flows back through an RMS
// norm of 2048 bf16 columns behind places that all sequences have takes 0.054 ms with those, 0.075 with a third
// tensor's schedule (H200). But of rows that only store what they share 768 columns take 0.137 ms as theirs, 0.168 as
// no stream.
bool is_shared_along(const Group& group, const Node& node) {
    const auto is_elsewhere = [&](AxisId axis) { return !contains(group.row_axes, axis); };
    if (std::ranges::any_of(group.graph->row_axes(node), is_elsewhere)) return false;
    return std::ranges::any_of(group.row_axes, [&](AxisId axis) {
        return group.graph->axis(axis).extent == kRuntimeExtent && !contains(node.axes, axis);
    });
}

// Whether rows along the innermost axis, which were columns, read the same columns, as each of a row's quantiles is
// compared with all others.
bool shares_columns(const Group& group) {
    const GraphData& graph = *group.graph;
    if (group.row_axes.empty() || !graph.axis(group.row_axes.back()).is_promoted) return false;
    bool any = false;
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        const bool loads = node.kind == NodeKind::kInput || node.kind == NodeKind::kIndex;
        if (!loads || graph.column_axes(node).empty()) continue;
        if (contains(node.axes, group.row_axes.back())) return false;
        any = true;
    }
    return any;
}

// Whether a term of a sum is computed, not only read, chosen and widened.
bool is_computed(const GraphData& graph, NodeId id) {
    const Node& node = graph.node(id);
    if (node.kind == NodeKind::kCast) return is_computed(graph, node.args[0]);
    if (node.kind != NodeKind::kMap) return false;
    return node.op != Op::kSelect || is_computed(graph, node.args[1]) || is_computed(graph, node.args[2]);
}

// Whether what is read is of other rows than the group's, or of fewer axes than they have: an index of columns that
// data or neighbouring rows choose, or a number of each of an outer axis.
bool reads_elsewhere(const Group& group, const Node& node) {
    const GraphData& graph = *group.graph;
    const auto is_walked = [&](AxisId axis) { return contains(group.row_axes, axis); };
    if (node.kind == NodeKind::kInput) {
        const std::vector<AxisId> rows = graph.row_axes(node);
        return rows.size() < group.row_axes.size() && std::ranges::any_of(rows, is_walked);
    }
    if (node.kind != NodeKind::kIndex || graph.column_axes(node).empty()) return false;
    const Node& source = graph.node(node.args[0]);
    for (std::size_t i = 0; i < source.axes.size(); ++i) {
        const bool is_row = graph.axis(source.axes[i]).is_row;
        const bool is_own = node.coords[i].is_axis(Axis{source.axes[i]}) && is_walked(source.axes[i]);
        if (is_row ? !is_own : !node.coords[i].data_nodes().empty()) return true;
    }
    return false;
}

// The inputs that what reduces columns first is made of.
std::set<NodeId> reduced_first(const GraphData& graph) {
    std::vector<bool> behind(static_cast<std::size_t>(graph.size()), false);  // a reduction
    std::vector<NodeId> work;
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        const bool reduces = node.kind == NodeKind::kReduce && !graph.axis(node.reduced[0]).is_row;
        const bool follows =
            std::ranges::any_of(node.args, [&](NodeId arg) { return behind[static_cast<std::size_t>(arg)]; });
        behind[static_cast<std::size_t>(id)] = reduces || follows;
        if (reduces && !follows) work.push_back(node.args[0]);
    }
    std::set<NodeId> seen;
    while (!work.empty()) {
        const NodeId id = work.back();
        work.pop_back();
        if (!seen.insert(id).second) continue;
        work.insert(work.end(), graph.node(id).args.begin(), graph.node(id).args.end());
    }
    std::erase_if(seen, [&](NodeId id) { return graph.node(id).kind != NodeKind::kInput; });
    return seen;
}

// How many vectors a row's columns are: of sixteen lanes, and of the powers of two that are left.
std::int64_t vectors_of_row(std::int64_t columns) {
    constexpr std::int64_t kLanes = 16;
    return columns / kLanes + std::popcount(static_cast<std::uint64_t>(columns % kLanes));
}

// Whether functions of a row that nothing reduces take so many vectors for so few columns that memory waits for them.
// Rows as lanes and as they were, ms: f32 gelu of 8 columns 3.55 and 6.04, of 18 1.97 and 3.02, of 16 3.91 and 2.75;
// swiglu, of three tensors, of 6 1.88 and 5.78, of 8 2.30 and 2.24, of 20 3.84 and 2.83; of bf16 of 12 2.17 and 3.54,
// of 20 4.90 and 4.23.
bool functions_fill_few_lanes(const GroupFacts& facts) {
    constexpr std::int64_t kBytesOfVector = 80;  // that memory moves meanwhile
    const std::int64_t vectors = vectors_of_row(facts.columns);
    const std::int64_t columns_of_vector = facts.column_inputs == 1 ? 10 : 9;
    return facts.functions > 0 && vectors * columns_of_vector >= facts.columns &&
           (facts.widest_bytes < 4 || vectors * kBytesOfVector >= facts.columns * facts.streamed_bytes);
}

// Whether rows are better the lanes of vectors than in vectors themselves. Two threads of an Intel server, ms so and as
// they were: softmax of 8 f32 columns 4.59 and 13.0, of 28 4.93 and 6.62, of 32 6.21 and 5.25, its derivative, without
// functions, of 12 1.77 and 3.47, of 16 2.61 and 2.22; rms_norm of 28 bf16 columns 3.50 and 5.92, of 32 4.65 and 3.28.
// Beside sums of columns over rows a norm's derivative of 8 f32 columns 1.94 and 1.70, of bf16 3.30 and 6.70, of
// 16 3.86 and 3.47. x + z of 3 bf16 columns 1.37 and 4.01, of 5 1.89 and 3.13, of 8 1.50 and 1.35, of f32 as it was. Of
// narrower registers, and of rows elsewhere, whose lanes are loaded one by one, nothing was measured.
bool are_better_as_lanes(const GroupFacts& facts, const Target& target) {
    constexpr int kLanesOfAvx512 = 16;
    if (target.vector_lanes < kLanesOfAvx512 || facts.reads_elsewhere) return false;
    constexpr std::int64_t kFew = 8;
    constexpr std::int64_t kHalf = 16;
    constexpr std::int64_t kMost = 32;
    const bool is_narrow = facts.widest_bytes < 4;
    if (facts.sums_of_columns > 0) return facts.columns < (is_narrow ? kHalf : kFew);
    if (facts.phases > 1) return facts.columns < (facts.functions == 0 && facts.streams > 1 ? kHalf : kMost);
    return facts.columns < kMost && ((is_narrow && facts.columns < kFew) || functions_fill_few_lanes(facts));
}

// On a CPU; lower declines those that are no tile's.
void add_narrow_rows(const GroupFacts& facts, const Target& target, std::vector<FamilyOffer>* all) {
    constexpr int kRows = 256;  // of a block
    constexpr std::int64_t kMostOffered = 64;
    if (facts.columns > kMostOffered || (facts.column_inputs == 0 && !facts.stores_columns)) return;
    for (FamilyOffer& offer : *all) {
        const bool has_rows = offer.family == Family::kElementwise || offer.family == Family::kRowReduction;
        if (!has_rows || offer.schedules.empty() || offer.schedules.front().across) continue;
        Schedule s;
        s.family = offer.family;
        s.residency = facts.phases > 1 ? Residency::kRegisters : Residency::kReload;
        s.rows_per_block = facts.sums_rows() ? 1 : kRows;
        s.across = true;
        offer.schedules.insert(are_better_as_lanes(facts, target) ? offer.schedules.begin() : offer.schedules.end(), s);
    }
}

}  // namespace

int GroupFacts::access_columns() const {
    return std::max(1, kAccessBytes / (stored_bytes > 0 ? stored_bytes : narrowest_bytes));
}

bool GroupFacts::begins_anywhere() const {
    const int whole = access_columns();
    return columns >= kLeastPeeled && whole > 2 * vector_dividing(columns, whole);
}

bool GroupFacts::peels() const {
    if (sums_of_columns > 0) return false;
    if (begins_anywhere()) return true;
    constexpr std::int64_t kLeastColumns = 128;
    constexpr std::int64_t kLeastVectors = 16;
    const int whole = access_columns();
    return columns >= std::max(kLeastColumns, kLeastVectors * whole) && whole > 2 && columns % 2 != 0;
}

// Whether it is a function of tables, which all rows have alike.
bool is_table_function(const GraphData& graph, const Node& node) {
    return is_special(node.op) && graph.row_axes(node).empty();
}

// Whether it divides rows by a number of each column.
bool divides_by_table(const GraphData& graph, const Node& node) {
    if (node.op != Op::kDiv || node.dtype != Dtype::kF32 || graph.row_axes(node).empty()) return false;
    const Node& divisor = graph.node(node.args[1]);
    return graph.row_axes(divisor).empty() && !graph.column_axes(divisor).empty();
}

// Of each position of outer axes. How many a launch has is taken to be few where they are along an axis outside of
// those, as a batch is, and to be many inside, as a sequence.
std::int64_t rows_of_each(const GraphData& graph, std::vector<AxisId> rows, const std::vector<AxisId>& outer) {
    constexpr std::int64_t kOfBatch = 16;
    if (outer.empty()) return 0;
    const bool is_outside = !contains(outer, rows.front());
    std::erase_if(rows, [&](AxisId axis) { return contains(outer, axis); });
    return graph.positions(rows, is_outside ? kOfBatch : 0);
}

GroupFacts facts_of(const Group& group, const Target& target) {
    const GraphData& graph = *group.graph;
    GroupFacts facts;
    facts.phases = phase_count(graph);
    const auto online = rewrite_online(group.graph, target);
    facts.online_phases = phase_count(*online);
    for (const NodeId id : online->live_nodes()) {
        const Node& node = online->node(id);
        facts.sums_exponentials |=
            node.kind == NodeKind::kReduce && sums_exponentials(node.monoid) && !online->axis(node.reduced[0]).is_row;
        facts.carries_entropy |= node.kind == NodeKind::kReduce && node.monoid == Monoid::kEntropy;
        if (node.kind == NodeKind::kReduce && node.monoid == Monoid::kGreatest)
            facts.greatest = std::max(facts.greatest, node.component + 1);
    }
    facts.reduces_rows = group.reduces_rows;
    facts.adds_parts = adds_parts(graph);
    facts.scalar_rows = group.row_axes.empty();
    facts.promoted = std::any_of(group.row_axes.begin(), group.row_axes.end(),
                                 [&](AxisId axis) { return graph.axis(axis).is_promoted; });
    facts.columns_shared = shares_columns(group);
    facts.of_batches = is_of_batches(group);
    facts.reduced_positions = reduced_positions(graph);
    facts.results = graph.positions(group.row_axes, 0);
    facts.reduces_along = reduces_along(graph);
    const auto sums_where = [&](NodeId id) { return graph.node(id).kind == NodeKind::kSumWhere; };
    facts.columns_apart =
        !group.reduces_rows && columns_lie_apart(graph, group.row_axes) &&
        std::ranges::none_of(graph.live_nodes(), sums_where);  // which a warp's lanes look for together
    facts.neighbours = facts.columns_apart ? neighbouring_rows(graph, group.row_axes) : 1;
    note_promoted(group, &facts);
    facts.widest_bytes = 1;
    facts.narrowest_bytes = 8;
    int widest_table = 1;
    const auto loop_over = [&](const Node& node) {
        std::int64_t columns = graph.column_count(node);
        for (const AxisId axis : graph.column_axes(node)) {
            if (graph.axis(axis).is_unrolled) columns /= graph.axis(axis).extent;
        }
        facts.columns = std::max(facts.columns, columns);
    };
    // Beside an output of its own such a tensor is of that one's loop.
    const bool stores_aside = std::ranges::any_of(
        graph.outputs(), [&](const OutputInfo& output) { return lies_aside(graph, graph.node(output.node)); });
    const auto is_aside = [&](const Node& node) { return stores_aside && lies_aside(graph, node); };
    const std::set<NodeId> at_positions = found_by(NodeKind::kIndex, graph);
    const std::set<NodeId> of_sums_where = found_by(NodeKind::kSumWhere, graph);  // which lanes do not load
    const auto tensor = [&](NodeId id) {
        const Node& node = graph.node(id);
        if (graph.column_axes(node).empty()) return;
        const int bytes = static_cast<int>(size_bytes(node.dtype));
        const bool is_table = node.kind == NodeKind::kInput && graph.row_axes(node).empty();
        if (!is_table && !at_positions.contains(id)) loop_over(node);
        if (!is_table && is_aside(node)) return;
        int& widest = is_table ? widest_table : facts.widest_bytes;
        widest = std::max(widest, bytes);
        facts.narrowest_bytes = std::min(facts.narrowest_bytes, bytes);
    };
    facts.holds_positions = holds_positions(graph);
    const std::set<NodeId> in_part = facts.holds_positions ? at_positions : std::set<NodeId>();
    const std::set<NodeId> of_block = sums_of_block(graph);
    for (const OutputInfo& output : graph.outputs()) loop_over(graph.node(output.node));  // an input may be one
    const std::set<NodeId> of_first = reduced_first(graph);
    std::set<NodeId> read;  // inputs that are read in order, or position by position
    for (const NodeId id : graph.live_nodes()) {
        const Node& node = graph.node(id);
        if (of_sums_where.contains(id)) continue;
        for (const NodeId arg : node.args) {
            if (of_sums_where.contains(arg) || graph.node(arg).kind != NodeKind::kInput ||
                graph.column_axes(graph.node(arg)).empty())
                continue;
            const bool at_position = node.kind == NodeKind::kIndex;
            const bool elsewhere = at_position && !in_part.contains(arg);
            const bool is_first = !elsewhere && read.insert(arg).second;
            const bool aside = is_aside(graph.node(arg)) || is_aside(node);
            facts.loads += !aside && (elsewhere || is_first) ? 1 : 0;
            // Neighbours along a group have one element of what each group has one of.
            const auto has_own = [&] { return is_first && contains(graph.node(arg).axes, node.axes.back()); };
            facts.vectors += !aside && !graph.column_axes(node).empty() && (at_position || has_own()) ? 1 : 0;
            // A table that is read elsewhere has the columns that it is read at: one tap of a convolution's weights.
            if (!at_position) loop_over(graph.node(arg));
        }
        // A loop runs over the columns of what it computes, which may be more than any tensor has (an outer product).
        facts.columns = std::max(facts.columns, node.kind == NodeKind::kInput ? 1 : graph.column_count(node));
        if (node.kind == NodeKind::kReduce)
            facts.reduced_columns = std::max(facts.reduced_columns, graph.column_count(graph.node(node.args[0])));
        if (is_read_at_places(graph, node)) facts.at_places = std::max(facts.at_places, graph.column_count(node));
        facts.rows_beside += reads_beside(group, node) ? 1 : 0;
        facts.reads_elsewhere = facts.reads_elsewhere || reads_elsewhere(group, node);
        facts.finds_places = facts.finds_places || (node.kind == NodeKind::kSumWhere && !node.reduced.empty());
        facts.segmented = facts.segmented || node.is_segmented() || adds_parts_of_each(graph, node);
        facts.computes_terms = facts.computes_terms || (node.is_segmented() && is_computed(graph, node.args[0]));
        facts.steps = facts.steps || node.kind == NodeKind::kFix;
        const bool of_column = node.kind == NodeKind::kMap && !graph.column_axes(node).empty();
        const bool of_number = node.kind == NodeKind::kMap && !of_column;
        facts.row_maps += of_number ? 1 : 0;
        facts.row_functions += of_number && is_special(node.op) ? 1 : 0;
        facts.maps += of_column ? 1 : 0;
        facts.table_quotients += of_column && divides_by_table(graph, node) ? 1 : 0;
        facts.table_functions += of_column && is_table_function(graph, node) ? 1 : 0;
        if (of_column) facts.functions += node.op == Op::kUniform ? kFunctionsOfRandom : is_special(node.op) ? 1 : 0;
        const bool divides = of_column && node.op == Op::kDiv;
        facts.quotients += divides && graph.column_axes(graph.node(node.args[1])).empty() ? 1 : 0;
        facts.reduces_moments |= node.kind == NodeKind::kReduce && node.monoid == Monoid::kMoments;
        facts.row_results += node.kind == NodeKind::kReduce && graph.axis(node.reduced[0]).is_row ? 1 : 0;
        facts.meets = facts.meets || (node.kind == NodeKind::kReduce && !of_block.contains(id));
        const bool part = node.kind == NodeKind::kIndex && in_part.contains(node.args[0]);
        if (!part && (node.kind != NodeKind::kInput || in_part.contains(id))) continue;
        tensor(id);
        const bool of_row = graph.column_axes(node).empty();
        facts.reads_numbers = facts.reads_numbers || (of_row && !graph.row_axes(node).empty());
        if (of_row || is_aside(node)) continue;
        ++facts.column_inputs;
        facts.read_columns = std::max(facts.read_columns, graph.column_count(node));
        const bool shared = graph.row_axes(node).empty();
        const bool streams = !shared && !(facts.phases > 1 && is_shared_along(group, node));
        facts.streams += streams ? 1 : 0;
        (shared ? facts.table_bytes : facts.read_bytes) += static_cast<int>(size_bytes(node.dtype));
        facts.shares_columns = facts.shares_columns || shared;
        facts.reduces_tables = facts.reduces_tables || (shared && of_first.contains(id));
    }
    std::set<std::vector<AxisId>> stored;
    for (const OutputInfo& output : graph.outputs()) {
        const Node& node = graph.node(output.node);
        if (output.slots < 0 && is_list(graph, output.node)) continue;
        const bool has_columns = !graph.column_axes(node).empty();
        facts.stores_columns = facts.stores_columns || has_columns;
        if (output.slots >= 0) {
            // How many rows there are all columns know alike.
            const bool is_count = output.parts_monoid == Monoid::kMoments && output.parts_component == kMomentCount;
            ++facts.sums_of_rows;
            facts.sums_of_columns += has_columns && !is_count ? 1 : 0;
            facts.fewest_summed = std::min(facts.fewest_summed, graph.column_count(node));
            facts.carries_pairs |= has_columns && output.parts_monoid == Monoid::kMaxSumExp;
            facts.positions_apart = graph.positions(output.apart, 1);
            facts.rows_of_each = rows_of_each(graph, group.row_axes, output.outer);
            continue;
        }
        tensor(output.node);
        if (!has_columns) continue;
        stored.insert(graph.column_axes(node));
        const int bytes = static_cast<int>(size_bytes(node.dtype));
        if (!is_aside(node)) facts.stored_bytes = std::max(facts.stored_bytes, bytes);
        facts.streamed_bytes += bytes;
    }
    facts.streamed_bytes += facts.read_bytes;
    facts.stored_loops = std::max<int>(1, static_cast<int>(stored.size()));
    facts.of_groups = std::ranges::any_of(graph.live_nodes(),
                                          [&](NodeId id) { return graph.column_axes(graph.node(id)).size() > 1; });
    if (facts.streams == 0 && !facts.stores_columns) facts.widest_bytes = widest_table;
    if (facts.narrowest_bytes > facts.widest_bytes) facts.narrowest_bytes = facts.widest_bytes = 4;
    const int computed = holds_computed(graph, false) ? static_cast<int>(size_bytes(Dtype::kF32)) : 0;
    facts.held_bytes = std::max(facts.widest_bytes, computed);
    facts.holds_late = holds_computed(graph, true);
    return facts;
}

std::vector<FamilyOffer> offers(const Group& group, const Target& target) {
    if (orders_ids(*group.graph)) return {offer_order(target)};
    const GroupFacts facts = facts_of(group, target);
    std::vector<FamilyOffer> all = {offer_elementwise(facts, target), offer_row_reduction(facts, target),
                                    offer_rows_reduction(facts, target)};
    if (!target.is_gpu()) add_narrow_rows(facts, target, &all);
    for (FamilyOffer& offer : all) {
        if (target.is_gpu() && facts.positions_apart > 1) take_rows_side_by_side(facts, target, &offer.schedules);
        add_small_blocks(facts, target, &offer.schedules);
        keep_first_of_equal(&offer.schedules);
    }
    return all;
}

}  // namespace rowjit
