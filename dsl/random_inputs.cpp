#include "dsl/random_inputs.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

#include "base/dtype.h"
#include "base/parallel.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

struct Range {
    std::int64_t low = std::numeric_limits<std::int64_t>::min();
    std::int64_t high = std::numeric_limits<std::int64_t>::max();

    void narrow(const Range& other) {
        low = std::max(low, other.low);
        high = std::min(high, other.high);
    }
    bool bounded() const {
        return low != std::numeric_limits<std::int64_t>::min() && high != std::numeric_limits<std::int64_t>::max();
    }
};

// A stateless generator: SplitMix64 (Steele, Lea, Flood 2014) of stream and counter.
class Stream {
  public:
    Stream(std::uint64_t seed, std::string_view name) : key_(mix(seed)) {
        for (const char c : name) key_ = mix(key_ ^ static_cast<unsigned char>(c));
    }

    std::uint64_t bits(std::int64_t element, std::uint64_t draw) const {
        return mix(key_ + (static_cast<std::uint64_t>(element) * 4 + draw) * 0x9E3779B97F4A7C15U);
    }

    // Mean 0, deviation 1, from the sum of eight 16-bit uniforms: whole-number arithmetic, where Box and Muller's
    // logarithm and cosine would differ from one libm to another.
    double bell(std::int64_t element) const {
        std::int64_t total = 0;
        for (std::uint64_t draw = 0; draw < 2; ++draw) {
            for (std::uint64_t word = bits(element, draw); word != 0; word >>= 16) {
                total += static_cast<std::int64_t>(word & 0xFFFF);
            }
        }
        constexpr double kDeviation = 53509.6767;  // 2^16 · √(8/12)
        return static_cast<double>(total - 4 * 65535) / kDeviation;
    }

    std::int64_t uniform(std::int64_t element, const Range& range) const {
        const std::uint64_t count = static_cast<std::uint64_t>(range.high) - static_cast<std::uint64_t>(range.low) + 1;
        return range.low + static_cast<std::int64_t>(bits(element, 0) % count);
    }

  private:
    static std::uint64_t mix(std::uint64_t z) {
        z += 0x9E3779B97F4A7C15U;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
        return z ^ (z >> 31);
    }

    std::uint64_t key_;
};

// Which values each node may take for every coordinate it reaches to stay inside.
class Ranges {
  public:
    Ranges(const GraphData& graph, const RowExtents& rows)
        : graph_(graph), rows_(rows), ranges_(static_cast<std::size_t>(graph.size())) {
        // Users before operands, so that a node's range is final before it is passed on.
        for (NodeId id = graph.size() - 1; id >= 0; --id) visit(id);
    }

    const Range& of(NodeId id) const { return ranges_[static_cast<std::size_t>(id)]; }
    bool is_sorted(NodeId id) const { return sorted_.contains(id); }

  private:
    Range& of(NodeId id) { return ranges_[static_cast<std::size_t>(id)]; }

    void visit(NodeId id) {
        const Node& node = graph_.node(id);
        if (node.kind == NodeKind::kCast && is_integer(graph_.node(node.args[0]).dtype))
            of(node.args[0]).narrow(of(id));
        if (node.is_segmented()) {
            sorted_.insert(node.args[1]);
            of(node.args[1]).narrow({0, extent_of(graph_, node.reduced[0], rows_)});
        }
        if (node.kind == NodeKind::kSearch) {
            sorted_.insert(node.args[0]);
            const Node& key = graph_.node(node.args[1]);
            if (key.kind == NodeKind::kIota) of(node.args[0]).narrow({0, extent_of(graph_, key.axis, rows_)});
        }
        // Past both ends of the rows too.
        if (node.kind == NodeKind::kOrder) of(node.args[0]).narrow({-1, extent_of(graph_, node.axis, rows_)});
        if (node.kind == NodeKind::kIndex) {
            const std::vector<AxisId>& axes = graph_.node(node.args[0]).axes;
            for (std::size_t i = 0; i < axes.size(); ++i) {
                reach(node.coords[i], {0, extent_of(graph_, axes[i], rows_) - 1});
            }
            of(node.args[0]).narrow(of(id));
        }
        if (node.kind != NodeKind::kMap) return;
        switch (info(node.op).types) {
            case OpTypes::kSelect:
                of(node.args[1]).narrow(of(id));
                of(node.args[2]).narrow(of(id));
                break;
            case OpTypes::kCompare:
                matches(node.args[0], node.args[1]);
                matches(node.args[1], node.args[0]);
                break;
            default:
                if (node.op == Op::kMin || node.op == Op::kMax) {
                    for (const NodeId arg : node.args) of(arg).narrow(of(id));
                }
        }
    }

    // A value compared with an axis's coordinate is meant to meet it.
    void matches(NodeId value, NodeId iota) {
        while (graph_.node(iota).kind == NodeKind::kCast) iota = graph_.node(iota).args[0];
        if (graph_.node(iota).kind != NodeKind::kIota || !is_integer(graph_.node(value).dtype)) return;
        of(value).narrow({0, extent_of(graph_, graph_.node(iota).axis, rows_) - 1});
    }

    // The data in `coord` such that the coordinate lies in `range`.
    void reach(const Coord& coord, Range range) {
        if (coord.data_nodes().empty()) return;
        switch (coord.kind()) {
            case Coord::Kind::kData: of(coord.data()).narrow(range); return;
            case Coord::Kind::kAdd: {
                const bool left_has_data = !coord.left().data_nodes().empty();
                const Coord& data = left_has_data ? coord.left() : coord.right();
                const Coord& rest = left_has_data ? coord.right() : coord.left();
                std::int64_t low = 0;
                std::int64_t high = 0;
                if (!rest.bounds([&](Axis axis) { return extent_of(graph_, axis.id, rows_); }, &low, &high)) return;
                return reach(data, {range.low - low, range.high - high});
            }
            case Coord::Kind::kMul:
                if (coord.constant() < 0) return;
                return reach(coord.left(),
                             {(range.low + coord.constant() - 1) / coord.constant(), range.high / coord.constant()});
            case Coord::Kind::kDiv:
                return reach(coord.left(),
                             {range.low * coord.constant(), range.high * coord.constant() + coord.constant() - 1});
            case Coord::Kind::kMod: return reach(coord.left(), {0, coord.constant() - 1});
            case Coord::Kind::kConst:
            case Coord::Kind::kAxis: return;
        }
    }

    const GraphData& graph_;
    const RowExtents& rows_;
    std::vector<Range> ranges_;
    std::set<NodeId> sorted_;  // offsets, and what is searched
};

// Huge values in a sum over rows, over a few streams or over the columns of a narrow row cancel, overflow or swallow
// the others by the order they are added in: such a graph gets one sign, and sizes whose sum is finite. A wide row has
// an infinity or a NaN anyway; exponentials are of one sign.
bool sums_by_order(const GraphData& graph) {
    constexpr std::int64_t kNarrow = 512;
    const std::vector<NodeId> live = graph.live_nodes();
    return std::any_of(live.begin(), live.end(), [&](NodeId id) {
        const Node& node = graph.node(id);
        if (node.kind != NodeKind::kReduce || node.monoid != Monoid::kSum) return false;
        if (graph.axis(node.reduced[0]).is_row || graph.reduces_few(node)) return true;
        const Node& terms = graph.node(node.args[0]);
        const bool is_exponential = terms.kind == NodeKind::kMap && terms.op == Op::kExp;
        return !is_exponential && graph.column_count(terms) <= kNarrow;
    });
}

double extreme(Dtype dtype, std::uint64_t bits, bool by_order) {
    const double infinity = std::numeric_limits<double>::infinity();
    double huge = dtype == Dtype::kF16 ? 6e4 : dtype == Dtype::kF64 ? 1e300 : 3e38;
    if (by_order) huge *= 1e-3;
    const double tiny = dtype == Dtype::kF16 ? 6e-8 : dtype == Dtype::kF64 ? 5e-324 : 1e-39;
    const std::array<double, 8> kinds = {
        infinity, -infinity, std::numeric_limits<double>::quiet_NaN(), 0.0, -0.0, huge, by_order ? huge : -huge, tiny};
    return kinds[bits % kinds.size()];
}

// A value a data coordinate may hold that reads nothing.
std::int64_t outside(const Range& range, std::uint64_t bits) {
    if (bits % 2 == 0 && range.low > -100) return -100;
    return range.high + 1 + static_cast<std::int64_t>(bits / 2 % 3);
}

Tensor random_tensor(const Layout& layout, const Stream& stream, Range range, const RandomOptions& options,
                     bool by_order) {
    Tensor tensor{layout.dtype, layout.extents, {}};
    const bool is_i8 = layout.dtype == Dtype::kI8;
    tensor.values.resize(static_cast<std::size_t>(element_count(layout.extents)));
    const bool is_coordinate = range.bounded();
    if (!is_coordinate) range = {0, 99};
    if (range.high < range.low) range = {0, 0};  // nothing stays inside, as with no rows; zero reads nothing then
    const auto value_of = [&](std::int64_t element) -> double {
        const std::uint64_t choice = stream.bits(element, 2);
        const std::uint64_t detail = stream.bits(element, 3);
        if (layout.dtype == Dtype::kBool) return static_cast<double>(choice & 1);
        if (is_i8) return static_cast<double>(stream.uniform(element, {-128, 127}));
        if (is_integer(layout.dtype)) {
            const bool leaves = options.out_of_range && is_coordinate && choice % 8 == 0;
            return static_cast<double>(leaves ? outside(range, detail) : stream.uniform(element, range));
        }
        if (options.extremes && choice % 16 == 0)
            return round_to(layout.dtype, extreme(layout.dtype, detail, by_order));
        return round_to(layout.dtype, stream.bell(element) * options.scale);
    };
    in_parallel_pieces(tensor.values.size(), [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) tensor.values[i] = value_of(static_cast<std::int64_t>(i));
    });
    return tensor;
}

// What every input of a graph is made of.
class RandomInputs {
  public:
    RandomInputs(const GraphData& graph, const RowExtents& rows, const RandomOptions& options, bool by_order)
        : graph_(graph), rows_(rows), options_(options), ranges_(graph, rows), by_order_(by_order) {}

    Bindings all() const {
        Bindings bindings{.tensors = {}, .scalars = {}, .rows = rows_};
        for (NodeId id = 0; id < graph_.size(); ++id) {
            const Node& node = graph_.node(id);
            if (node.kind == NodeKind::kInput) bindings.tensors[node.name] = input(id);
        }
        for (const OutputInfo& output : graph_.outputs()) {
            if (output.accumulate && output.alias.empty()) bindings.tensors[output.name] = accumulated(output.name);
        }
        return bindings;
    }

    Tensor input(NodeId id) const {
        const Node& node = graph_.node(id);
        Tensor tensor = make(node.name, input_layout(graph_, node.name, rows_), ranges_.of(id));
        if (ranges_.is_sorted(id)) std::sort(tensor.values.begin(), tensor.values.end());
        return tensor;
    }

    Tensor accumulated(const std::string& output) const {
        return make(output, output_layout(graph_, output, rows_), {});
    }

  private:
    Tensor make(const std::string& name, const Layout& layout, const Range& range) const {
        return random_tensor(layout, Stream(options_.seed, name), range, options_, by_order_);
    }

    const GraphData& graph_;
    const RowExtents& rows_;
    const RandomOptions& options_;
    const Ranges ranges_;
    const bool by_order_;
};

}  // namespace

Bindings random_inputs(const GraphData& graph, const RowExtents& rows, const RandomOptions& options) {
    return RandomInputs(graph, rows, options, sums_by_order(graph)).all();
}

Tensor random_input(const GraphData& graph, NodeId input, const RowExtents& rows, const RandomOptions& options) {
    return RandomInputs(graph, rows, options, sums_by_order(graph)).input(input);
}

// What the forward is given is in the backward's sums too: a weight's gradient is one over rows where the forward has
// none.
Bindings random_inputs(const Differentiated& differentiated, const RowExtents& rows, const RandomOptions& options) {
    const GraphData& forward_graph = *differentiated.forward.data();
    const GraphData& backward_graph = *differentiated.backward.data();
    const bool by_order = sums_by_order(forward_graph) || sums_by_order(backward_graph);
    Bindings backward = RandomInputs(backward_graph, rows, options, by_order).all();
    const Bindings forward = RandomInputs(forward_graph, rows, options, by_order).all();
    for (auto& [name, tensor] : backward.tensors) {
        if (const auto input = forward.tensors.find(name); input != forward.tensors.end()) tensor = input->second;
    }
    const Tensors results = interpret(forward_graph, forward, Rounding::kEager);
    for (const SavedValue& saved : differentiated.saved) {
        if (const auto bound = backward.tensors.find(saved.name); bound != backward.tensors.end()) {
            bound->second = results.at(saved.name);
        }
    }
    return backward;
}

}  // namespace rowjit
