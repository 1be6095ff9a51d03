#include "tests/support/random_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "rowjit/coord.h"

namespace rowjit {
namespace {

constexpr double kLargest = 64;
constexpr std::int64_t kMostColumns = 3000;  // over all column axes of a value, so that the oracle stays quick

// SplitMix64 (Steele, Lea, Flood 2014): the standard library's distributions differ from one library to another.
class Dice {
  public:
    explicit Dice(std::uint64_t seed) : state_(seed * 0xD1342543DE82EF95U + 1) {}

    // In [0, sides).
    int roll(int sides) {
        state_ += 0x9E3779B97F4A7C15U;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
        return static_cast<int>((z ^ (z >> 31)) % static_cast<std::uint64_t>(sides));
    }
    bool one_in(int sides) { return roll(sides) == 0; }

    template <class T>
    const T& pick(const std::vector<T>& from) {
        return from[static_cast<std::size_t>(roll(static_cast<int>(from.size())))];
    }

  private:
    std::uint64_t state_;
};

struct Known {
    Value value;
    double bound;    // no element is larger
    bool exact;      // equal in eager and exact arithmetic: inputs and coordinates
    int reductions;  // nested below
};

class Generator {
  public:
    explicit Generator(std::uint64_t seed) : dice_(seed) {}

    Graph run() {
        declare_axes();
        const int inputs = 1 + dice_.roll(4);
        for (int i = 0; i < inputs; ++i) add_input(i);
        if (dice_.one_in(3)) known_.push_back({graph_.scalar("scale", f32, 0.75), 1, true, 0});
        const int operations = 10 + dice_.roll(20);
        for (int i = 0; i < operations; ++i) {
            // What the dice ask for may not be well-typed: axes in two orders, too many columns.
            try {
                std::optional<Known> made = operation();
                if (made && small_enough(made->value)) known_.push_back(tamed(*made));
            } catch (const Error&) {
            }
        }
        add_outputs();
        return graph_;
    }

  private:
    void declare_axes() {
        static const std::vector<std::int64_t> kWide = {1,  2,   3,   7,   8,   16,  31,  33,  64, 80,
                                                        96, 100, 127, 128, 130, 240, 255, 256, 300};
        static const std::vector<std::int64_t> kNarrow = {1, 2, 3, 4, 5, 8};
        if (!dice_.one_in(12)) axes_.push_back(graph_.rows("t"));
        if (dice_.one_in(5)) axes_.push_back(graph_.rows("u"));
        if (dice_.one_in(4)) axes_.push_back(graph_.rows("h", dice_.pick(kNarrow)));
        if (dice_.one_in(4)) axes_.push_back(graph_.columns("g", dice_.pick(kNarrow)));
        axes_.push_back(graph_.columns("c", dice_.pick(kWide)));
    }

    bool is_row(Axis axis) const { return graph_.data()->axis(axis.id).is_row; }

    bool small_enough(const Value& value) const {
        return graph_.data()->column_count(graph_.data()->node(value.id())) <= kMostColumns && value.axes().size() <= 6;
    }

    Dtype float_dtype() {
        const int side = dice_.roll(5);
        return side < 2 ? f32 : side < 4 ? bf16 : f16;
    }

    void add_input(int number) {
        std::vector<Dim> dims;
        std::vector<std::int64_t> strides;
        for (const Axis axis : axes_) {
            // The first input has every axis; others are broadcast along what they lack.
            if (number == 0 || !dice_.one_in(3)) dims.emplace_back(axis);
        }
        const bool one_column = !dims.empty() && std::count_if(dims.begin(), dims.end(), [&](const Dim& dim) {
                                                     return !is_row(dim.axis());
                                                 }) == 1;
        if (one_column && dice_.one_in(8)) strides = {2};
        const Value x = graph_.input(fmt::format("x{}", number), float_dtype(), dims, {strides});
        known_.push_back({x, 8, true, 0});
    }

    const Known& any() { return dice_.one_in(2) ? known_.back() : dice_.pick(known_); }

    // A value of that dtype: one at hand, else one cast to it.
    Known any_of(Dtype dtype) {
        for (int attempt = 0; attempt < 3; ++attempt) {
            const Known& found = dice_.pick(known_);
            if (found.value.dtype() == dtype) return found;
        }
        Known found = dice_.pick(known_);
        found.exact = found.exact && dtype == f32;
        found.value = cast(found.value, dtype);
        return found;
    }

    Known tamed(Known known) {
        if (known.bound <= kLargest) return known;
        if (dice_.one_in(2)) return {tanh(known.value), 1, false, known.reductions};
        // A power of two: scaling rounds nothing.
        const double factor = std::exp2(-std::ceil(std::log2(known.bound / 4)));
        return {known.value * factor, known.bound * factor, false, known.reductions};
    }

    std::optional<Known> operation() {
        if (dice_.one_in(16)) return dropped();
        if (dice_.one_in(16)) return threshold();
        if (dice_.one_in(20)) return over_segments();
        if (dice_.one_in(16)) return of_groups();
        switch (dice_.roll(12)) {
            case 0: return unary();
            case 1: return unary();
            case 2:
            case 3: return binary();
            case 4: return binary();
            case 5: return cast_of();
            case 6: return selection();
            case 7: return affine();
            case 8: return gather();
            case 9:
            case 10: return column_reduction();
            default: return row_reduction();
        }
    }

    // Some elements by a random number of where they stand.
    std::optional<Known> dropped() {
        Known a = any();
        Value position = graph_.constant(i64, dice_.roll(5));
        for (const Axis axis : a.value.axes()) position = position * 1001.0 + graph_.iota(axis, i64);
        const Value number = uniform(graph_.constant(i64, dice_.roll(100)), graph_.constant(i64, 3), position);
        a.value = select(number >= 0.5, a.value, graph_.constant(a.value.dtype(), 0.0));
        return a;
    }

    // Sparsemax's, of all columns: what lies above it sums to 1 more than as many times itself.
    std::optional<Known> threshold() {
        const Known a = any();
        if (a.reductions >= 1 || !column_of(a.value)) return std::nullopt;
        const Value x = cast(a.value, f32);
        const Value zero = graph_.constant(f32, 0.0);
        const auto newton = [&](const Value& state) {
            const Value above = x > state;
            return (sum(select(above, x, zero)) - 1.0) / sum(select(above, zero + 1.0, zero));
        };
        const auto rise = [&](const Value& state) { return maximum(state, newton(state)); };
        // Once more, so that it has a gradient.
        return Known{newton(fixpoint(max(x) - 1.0, rise, 40)), a.bound + 1, false, a.reductions + 2};
    }

    std::optional<Known> unary() {
        const Known a = any();
        const Value x = a.value;
        const int depth = a.reductions;
        switch (dice_.roll(13)) {
            case 0: return Known{tanh(x), 1, false, depth};
            case 1: return Known{exp(tanh(x)), 3, false, depth};
            case 2: return Known{exp(-abs(x)), 1, false, depth};
            case 3: return Known{log(abs(x) + 0.5), 5, false, depth};
            case 4: return Known{log1p(abs(x)), 5, false, depth};
            case 5: return Known{sqrt(abs(x) + 0.25), std::sqrt(a.bound + 1), false, depth};
            case 6: return Known{rsqrt(abs(x) + 0.25), 2, false, depth};
            case 7: return Known{erf(x), 1, false, depth};
            case 8: return Known{sin(x), 1, false, depth};
            case 9: return Known{cos(x), 1, false, depth};
            case 10: return Known{-x, a.bound, a.exact, depth};
            case 11: return Known{abs(x), a.bound, a.exact, depth};
            default:
                if (!a.exact) return std::nullopt;  // a step would turn a rounding error into a whole one
                return Known{floor(x), a.bound + 1, true, depth};
        }
    }

    std::optional<Known> binary() {
        const Known a = any();
        const Known b = any_of(a.value.dtype());
        const int depth = std::max(a.reductions, b.reductions);
        switch (dice_.roll(9)) {
            case 0: return Known{a.value + b.value, a.bound + b.bound, false, depth};
            case 1: return Known{a.value - b.value, a.bound + b.bound, false, depth};
            case 2: return Known{a.value * b.value, a.bound * b.bound, false, depth};
            case 3: return Known{a.value / (abs(b.value) + 1.0), a.bound, false, depth};
            case 4: return Known{minimum(a.value, b.value), std::max(a.bound, b.bound), false, depth};
            case 5: return Known{maximum(a.value, b.value), std::max(a.bound, b.bound), false, depth};
            case 6: return Known{fma(a.value, b.value, a.value), a.bound * (b.bound + 1), false, depth};
            case 7: return Known{a.value + 0.5, a.bound + 1, false, depth};
            default: return Known{1.5 * a.value, a.bound * 1.5, false, depth};
        }
    }

    std::optional<Known> cast_of() {
        Known a = any();
        const Dtype to = float_dtype();
        a.value = cast(a.value, to);
        a.exact = false;
        return a;
    }

    Value condition() {
        if (dice_.one_in(2)) {
            const Axis axis = dice_.pick(axes_);
            if (!is_row(axis)) return iota(axis) < static_cast<double>(graph_.extent(axis) / 2 + 1);
            return graph_.iota(axis, i64) != 1.0;
        }
        for (int attempt = 0; attempt < 8; ++attempt) {
            const Known& a = dice_.pick(known_);
            if (a.exact) return dice_.one_in(2) ? a.value > 0.25 : !(a.value <= -0.5);
        }
        return known_.front().value >= 0.0;
    }

    Value iota(Axis axis) { return graph_.iota(axis, i32); }

    std::optional<Known> selection() {
        const Known a = any();
        const Known b = any_of(a.value.dtype());
        Value which = condition();
        if (dice_.one_in(3)) which = dice_.one_in(2) ? which && condition() : which || condition();
        const Value other = dice_.one_in(3) ? graph_.constant(a.value.dtype(), 0.0) : b.value;
        return Known{select(which, a.value, other), std::max(a.bound, b.bound), false,
                     std::max(a.reductions, b.reductions)};
    }

    // A column axis of the value with more than one position.
    std::optional<Axis> column_of(const Value& value) {
        std::vector<Axis> columns;
        for (const Axis axis : value.axes()) {
            if (!is_row(axis) && graph_.extent(axis) > 1) columns.push_back(axis);
        }
        if (columns.empty()) return std::nullopt;
        return dice_.pick(columns);
    }

    // As the partners of several rotary embeddings in one head.
    Coord turned_in_groups(Axis axis) {
        const std::int64_t extent = graph_.extent(axis);
        std::int64_t group = std::min<std::int64_t>(extent, 2 + dice_.roll(39));
        while (extent % group != 0) ++group;
        const Coord within = (Coord(axis) + dice_.roll(static_cast<int>(group))) % group;
        return dice_.one_in(2) ? Coord(axis) / group * group + within : within;
    }

    // As a circulant's columns.
    Coord turned_by_row(const Value& value, Axis axis) {
        for (const Axis row : value.axes()) {
            if (is_row(row)) return (Coord(axis) + Coord(row)) % graph_.extent(axis);
        }
        return Coord(axis);
    }

    // As the heads of a flat row, one of each row along another axis.
    Value part_of_row(const Value& value, Axis axis) {
        for (const Axis row : value.axes()) {
            const std::int64_t parts = graph_.extent(row);
            if (!is_row(row) || parts < 2 || parts > graph_.extent(axis)) continue;
            const std::int64_t width = graph_.extent(axis) / parts;
            return index(value, axis, Coord(row) * width + Coord(graph_.columns(fmt::format("part_{}", width), width)));
        }
        return value;
    }

    // Something of each group of columns, or of those that have one place in theirs; read back at the columns that it
    // is of, or of another group.
    std::optional<Known> of_groups() {
        const Known a = any();
        const std::optional<Axis> axis = column_of(a.value);
        if (!axis) return std::nullopt;
        const std::int64_t extent = graph_.extent(*axis);
        std::int64_t width = 2 + dice_.roll(static_cast<int>(std::min<std::int64_t>(extent, 40)));
        while (width < extent && extent % width != 0) ++width;
        if (width >= extent) return std::nullopt;
        const std::int64_t count = extent / width;
        const Axis groups = graph_.columns(fmt::format("groups_{}_{}", count, width), count);
        const Axis within = graph_.columns(fmt::format("within_{}_{}", count, width), width);
        Known grouped = a;
        grouped.value = index(a.value, *axis, Coord(groups) * width + Coord(within));
        const bool each_group = !dice_.one_in(3);
        const std::optional<Known> made = reduced(grouped, each_group ? within : groups, false);
        if (!made) return std::nullopt;
        const int turn = dice_.one_in(4) ? dice_.roll(static_cast<int>(count)) : 0;
        const Coord group = (Coord(*axis) / width + turn) % (turn == 0 ? extent : count);
        Known back = *made;
        back.value = each_group ? index(back.value, groups, group) : index(back.value, within, Coord(*axis) % width);
        if (dice_.one_in(4) || back.value.dtype() != a.value.dtype()) return back;
        return Known{a.value * back.value, a.bound * back.bound, false, back.reductions};
    }

    std::optional<Known> affine() {
        Known a = any();
        const std::optional<Axis> axis = column_of(a.value);
        if (!axis) return std::nullopt;
        const std::int64_t extent = graph_.extent(*axis);
        const Axis half = graph_.columns(fmt::format("half_{}", graph_.data()->axis(axis->id).name), extent / 2);
        switch (dice_.roll(10)) {
            case 0: a.value = index(a.value, *axis, (Coord(*axis) + extent / 2) % extent); break;
            case 1: a.value = index(a.value, *axis, Coord(half)); break;
            case 2: a.value = index(a.value, *axis, Coord(half) + (extent - extent / 2)); break;
            case 3: a.value = index(a.value, *axis, Coord(half) * 2); break;
            case 4: a.value = index(a.value, *axis, Coord(*axis) / 2); break;
            case 5:
            case 6: a.value = index(a.value, *axis, turned_in_groups(*axis)); break;
            case 7: a.value = index(a.value, *axis, turned_by_row(a.value, *axis)); break;
            case 8: a.value = part_of_row(a.value, *axis); break;
            default: a.value = index(a.value, *axis, Coord(static_cast<std::int64_t>(extent - 1)) - Coord(*axis));
        }
        return a;
    }

    std::optional<Known> gather() {
        Known a = any();
        const std::optional<Axis> axis = column_of(a.value);
        if (!axis || places_ == 2) return std::nullopt;
        std::vector<Dim> dims;
        for (const Axis row : axes_) {
            if (is_row(row) && !dice_.one_in(3)) dims.emplace_back(row);
        }
        const Value place = graph_.input(fmt::format("place{}", places_++), dice_.one_in(2) ? i32 : i64, dims);
        a.value = index(a.value, *axis, Coord(place));
        return a;
    }

    std::optional<Known> reduced(const Known& a, Axis axis, bool all_columns) {
        if (a.reductions >= 2) return std::nullopt;
        const Value& x = a.value;
        const auto fold = [&](auto whole, auto along) { return all_columns ? whole(x) : along(x, axis); };
        switch (dice_.roll(4)) {
            case 0:
                return Known{
                    fold([](const Value& v) { return max(v); }, [](const Value& v, Axis w) { return max(v, w); }),
                    a.bound, false, a.reductions + 1};
            case 1:
                return Known{
                    fold([](const Value& v) { return min(v); }, [](const Value& v, Axis w) { return min(v, w); }),
                    a.bound, false, a.reductions + 1};
            case 2: {
                // Five rows or few columns: a plain sum stays small; wide ones are scaled down.
                const double terms = all_columns ? static_cast<double>(kMostColumns)
                                                 : static_cast<double>(std::max<std::int64_t>(graph_.extent(axis), 32));
                const Value sum_of =
                    fold([](const Value& v) { return sum(v); }, [](const Value& v, Axis w) { return sum(v, w); });
                if (x.dtype() == f16) return std::nullopt;  // may overflow before it is scaled
                return Known{sum_of, a.bound * terms, false, a.reductions + 1};
            }
            default:
                return Known{
                    fold([](const Value& v) { return mean(v); }, [](const Value& v, Axis w) { return mean(v, w); }),
                    a.bound, false, a.reductions + 1};
        }
    }

    std::optional<Known> column_reduction() {
        const Known a = any();
        const std::optional<Axis> axis = column_of(a.value);
        if (!axis) return std::nullopt;
        return reduced(a, *axis, !dice_.one_in(3));
    }

    std::optional<Known> row_reduction() {
        const Known a = any();
        std::vector<Axis> rows;
        for (const Axis axis : a.value.axes()) {
            if (is_row(axis)) rows.push_back(axis);
        }
        if (rows.empty()) return std::nullopt;
        return reduced(a, dice_.pick(rows), false);
    }

    // Over segments of rows, of any lengths, and back to the rows.
    std::optional<Known> over_segments() {
        const Known a = any();
        const Axis rows = axes_.front();
        const std::vector<Axis> axes = a.value.axes();
        const bool has_rows = !axes.empty() && axes.front().id == rows.id;
        if (a.reductions >= 2 || !has_rows || graph_.extent(rows) != kRuntimeExtent) return std::nullopt;
        if (!segments_) {
            const Axis s = graph_.rows("s");
            segments_ = Segments{s, graph_.input("offsets", dice_.one_in(2) ? i32 : i64, {graph_.rows("ends", s, 1)})};
        }
        const auto back = [&](const Value& whole) { return spread(whole, rows, *segments_); };
        const int depth = a.reductions + 1;
        if (dice_.one_in(3)) return Known{back(max(a.value, rows, *segments_)), a.bound, false, depth};
        if (dice_.one_in(2)) return Known{back(min(a.value, rows, *segments_)), a.bound, false, depth};
        if (a.value.dtype() == f16) return std::nullopt;  // may overflow before it is scaled
        return Known{back(sum(a.value, rows, *segments_)), a.bound * 32, false, depth};
    }

    void add_outputs() {
        const int outputs = 1 + dice_.roll(3);
        std::vector<std::int32_t> used;
        for (int i = 0; i < outputs; ++i) {
            const Known& chosen = i == 0 ? known_.back() : dice_.pick(known_);
            const std::int32_t id = chosen.value.id();
            const NodeKind kind = graph_.data()->node(id).kind;
            if (std::find(used.begin(), used.end(), id) != used.end() || kind == NodeKind::kScalar) continue;
            used.push_back(id);
            graph_.output(fmt::format("y{}", i), chosen.value, {"", dice_.one_in(6), {}});
        }
        if (used.empty()) graph_.output("y", known_.front().value);
    }

    Dice dice_;
    Graph graph_;
    std::vector<Axis> axes_;
    std::vector<Known> known_;
    std::optional<Segments> segments_;
    int places_ = 0;
};

// `graph` again, with other axes, without the outputs `keep` refuses, and with `replace` in the place of nodes it has
// an answer for. Unused inputs stay behind.
using Replacement =
    std::function<std::optional<NodeId>(NodeId id, GraphData* into, const std::map<NodeId, NodeId>& done)>;

std::optional<Graph> rebuilt(const GraphData& graph, std::vector<AxisInfo> axes, const Replacement& replace,
                             std::size_t without_output) {
    auto result = std::make_shared<GraphData>(std::move(axes));
    std::map<NodeId, NodeId> done;
    try {
        const std::function<NodeId(NodeId)> build = [&](NodeId id) -> NodeId {
            if (const auto found = done.find(id); found != done.end()) return found->second;
            std::optional<NodeId> made = replace(id, result.get(), done);
            if (!made) made = result->add_copy(graph.node(id), build);
            done.emplace(id, *made);
            return *made;
        };
        // Operands first and only what is live, so that the copies keep their order.
        for (const NodeId id : graph.live_nodes()) build(id);
        for (std::size_t i = 0; i < graph.outputs().size(); ++i) {
            if (i == without_output) continue;
            OutputInfo output = graph.outputs()[i];
            output.node = done.at(output.node);
            result->add_output(output);
        }
    } catch (const Error&) {
        return std::nullopt;
    }
    // Once more without what the replacement left dead.
    auto live = std::make_shared<GraphData>(result->axes());
    std::map<NodeId, NodeId> moved;
    for (const NodeId id : result->live_nodes())
        moved[id] = live->add_copy(result->node(id), [&](NodeId arg) { return moved.at(arg); });
    for (OutputInfo output : result->outputs()) {
        output.node = moved.at(output.node);
        live->add_output(output);
    }
    return Graph(live);
}

constexpr std::size_t kEveryOutput = static_cast<std::size_t>(-1);

}  // namespace

Graph random_graph(std::uint64_t seed) { return Generator(seed).run(); }

std::vector<Graph> simpler(const GraphData& graph) {
    std::vector<Graph> candidates;
    const auto add = [&](std::optional<Graph> candidate) {
        if (candidate) candidates.push_back(*candidate);
    };
    const Replacement nothing = [](NodeId, GraphData*, const std::map<NodeId, NodeId>&) { return std::nullopt; };
    for (std::size_t i = 0; i < graph.outputs().size() && graph.outputs().size() > 1; ++i)
        add(rebuilt(graph, graph.axes(), nothing, i));
    std::vector<NodeId> nodes = graph.live_nodes();
    std::reverse(nodes.begin(), nodes.end());
    for (const NodeId id : nodes) {
        const Node& node = graph.node(id);
        for (const NodeId arg : node.args) {
            if (graph.node(arg).dtype != node.dtype) continue;
            const Replacement operand = [=](NodeId at, GraphData*, const std::map<NodeId, NodeId>& done) {
                return at == id ? std::optional(done.at(arg)) : std::nullopt;
            };
            add(rebuilt(graph, graph.axes(), operand, kEveryOutput));
        }
        if (node.args.empty() || node.dtype == Dtype::kBool) continue;
        const Replacement input = [&graph, id](NodeId at, GraphData* into,
                                               const std::map<NodeId, NodeId>&) -> std::optional<NodeId> {
            if (at != id) return std::nullopt;
            const Node& cut = graph.node(id);
            return into->add_input(fmt::format("cut{}", id), cut.dtype, cut.axes, {});
        };
        add(rebuilt(graph, graph.axes(), input, kEveryOutput));
    }
    for (std::size_t i = 0; i < graph.axes().size(); ++i) {
        for (const std::int64_t extent : {std::int64_t{1}, graph.axes()[i].extent / 2, graph.axes()[i].extent - 1}) {
            if (extent < 1 || extent >= graph.axes()[i].extent) continue;
            std::vector<AxisInfo> axes = graph.axes();
            axes[i].extent = extent;
            add(rebuilt(graph, std::move(axes), nothing, kEveryOutput));
        }
    }
    return candidates;
}

}  // namespace rowjit
