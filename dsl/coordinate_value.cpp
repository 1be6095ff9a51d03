#include "dsl/coordinate_value.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/dtype.h"
#include "base/fail.h"

namespace rowjit {
namespace {

NodeId quotient(GraphData& graph, const Coord& dividend, std::int64_t divisor, Dtype dtype) {
    const Dtype whole = dtype == Dtype::kI32 ? Dtype::kI32 : Dtype::kI64;
    const NodeId number = add_coordinate_value(graph, dividend, whole);
    const NodeId by = graph.add_const(whole, static_cast<double>(divisor));
    return graph.add_cast(graph.add_map(Op::kFloorDiv, {number, by}), dtype);
}

// A whole number as places along column axes and the rest of it.
struct Parts {
    std::vector<std::pair<AxisId, int>> columns = {};  // and their signs
    std::optional<NodeId> rest = {};
};

void add_parts(GraphData& graph, NodeId id, int sign, Parts* parts) {
    constexpr std::size_t kMostColumns = 4;
    const Node n = graph.node(id);
    const bool is_full = parts->columns.size() == kMostColumns;
    if (n.kind == NodeKind::kIota && !graph.axis(n.axis).is_row && !is_full) {
        parts->columns.emplace_back(n.axis, sign);
    } else if (n.kind == NodeKind::kCast && is_integer(graph.node(n.args[0]).dtype) && !is_full) {
        add_parts(graph, n.args[0], sign, parts);
    } else if (n.kind == NodeKind::kMap && (n.op == Op::kAdd || n.op == Op::kSub) && !is_full) {
        add_parts(graph, n.args[0], sign, parts);
        add_parts(graph, n.args[1], n.op == Op::kSub ? -sign : sign, parts);
    } else {
        const NodeId whole = graph.add_cast(id, Dtype::kI64);
        const NodeId signed_whole = sign < 0 ? graph.add_map(Op::kNeg, {whole}) : whole;
        parts->rest = parts->rest ? graph.add_map(Op::kAdd, {*parts->rest, signed_whole}) : signed_whole;
    }
}

NodeId times(GraphData& graph, NodeId value, std::int64_t factor, Dtype dtype) {
    return graph.add_map(Op::kMul, {value, graph.add_const(dtype, static_cast<double>(factor))});
}

}  // namespace

NodeId add_coordinate_value(GraphData& graph, const Coord& coord, Dtype dtype) {
    const auto is_row = [&](Axis axis) { return graph.axis(axis.id).is_row; };
    if (dtype == Dtype::kI32 && std::ranges::any_of(coord.axes(), is_row))
        return graph.add_cast(add_coordinate_value(graph, coord, Dtype::kI64), dtype);
    switch (coord.kind()) {
        case Coord::Kind::kConst: return graph.add_const(dtype, static_cast<double>(coord.constant()));
        case Coord::Kind::kAxis: return graph.add_iota(coord.axis().id, dtype);
        case Coord::Kind::kData: return graph.add_cast(coord.data(), dtype);
        case Coord::Kind::kAdd:
            return graph.add_map(Op::kAdd, {add_coordinate_value(graph, coord.left(), dtype),
                                            add_coordinate_value(graph, coord.right(), dtype)});
        case Coord::Kind::kMul:
            return times(graph, add_coordinate_value(graph, coord.left(), dtype), coord.constant(), dtype);
        case Coord::Kind::kDiv: return quotient(graph, coord.left(), coord.constant(), dtype);
        case Coord::Kind::kMod: {
            const NodeId whole =
                times(graph, quotient(graph, coord.left(), coord.constant(), dtype), coord.constant(), dtype);
            return graph.add_map(Op::kSub, {add_coordinate_value(graph, coord.left(), dtype), whole});
        }
    }
    RJ_CHECK(false, "coordinate kind {}", static_cast<int>(coord.kind()));
}

Coord with_column_apart(GraphData& graph, const Coord& coord) {
    if (!coord.axes().empty() || coord.kind() == Coord::Kind::kDiv || coord.kind() == Coord::Kind::kMod) return coord;
    std::vector<AxisId> of_rest;
    std::vector<AxisId> columns;
    const auto parted = [&](NodeId data) {
        Parts parts;
        add_parts(graph, data, 1, &parts);
        Coord sum = 0;
        if (parts.rest) {
            sum = Coord::data_node(*parts.rest);
            const std::vector<AxisId>& axes = graph.node(*parts.rest).axes;
            of_rest.insert(of_rest.end(), axes.begin(), axes.end());
        }
        for (const auto& [axis, sign] : parts.columns) {
            columns.push_back(axis);
            sum = Coord(Axis{axis}) * sign + sum;
        }
        return sum;
    };
    const Coord apart = coord.substitute([](Axis axis) { return Coord(axis); }, parted);
    const bool is_apart = columns.size() == 1 && !of_rest.empty() && !contains(of_rest, columns[0]);
    return is_apart ? apart : coord;
}

namespace {

// What a coordinate is everywhere: a constant, as also one of an unrolled axis.
std::optional<std::int64_t> known_place(const GraphData& graph, const Coord& coord) {
    if (coord.kind() == Coord::Kind::kConst) return coord.constant();
    if (coord.kind() != Coord::Kind::kData || graph.node(coord.data()).kind != NodeKind::kConst) return std::nullopt;
    return static_cast<std::int64_t>(graph.node(coord.data()).value);
}

}  // namespace

std::optional<std::int64_t> places_beyond(const GraphData& graph, AxisId axis, const Coord& coord) {
    if (coord.kind() == Coord::Kind::kData) return places_beyond(graph, axis, coord.data());
    if (coord.kind() != Coord::Kind::kAdd) return std::nullopt;
    for (const auto& [part, other] : {std::pair(coord.left(), coord.right()), std::pair(coord.right(), coord.left())}) {
        const auto further = known_place(graph, other);
        const auto before = further ? places_beyond(graph, axis, part) : std::nullopt;
        if (before) return *before + *further;
    }
    return std::nullopt;
}

std::optional<std::int64_t> places_beyond(const GraphData& graph, AxisId axis, NodeId id) {
    const Node& number = graph.node(id);
    if (number.kind == NodeKind::kIota) return number.axis == axis ? std::optional<std::int64_t>(0) : std::nullopt;
    const auto constant = [&](NodeId arg) {
        const Node& c = graph.node(arg);
        return c.kind == NodeKind::kConst ? std::optional(static_cast<std::int64_t>(c.value)) : std::nullopt;
    };
    if (number.dtype != Dtype::kI32 && number.dtype != Dtype::kI64) return std::nullopt;
    if (number.kind == NodeKind::kCast) return places_beyond(graph, axis, number.args[0]);
    if (number.kind != NodeKind::kMap || (number.op != Op::kAdd && number.op != Op::kSub)) return std::nullopt;
    for (const std::size_t other : {std::size_t{1}, std::size_t{0}}) {
        const std::optional<std::int64_t> c = constant(number.args[other]);
        if (!c || (number.op == Op::kSub && other == 0)) continue;
        const std::optional<std::int64_t> before = places_beyond(graph, axis, number.args[1 - other]);
        if (before) return number.op == Op::kAdd ? *before + *c : *before - *c;
    }
    return std::nullopt;
}

void require_one_order(const GraphData& graph, std::string_view what, NodeId source, const std::vector<AxisId>& mask,
                       const std::vector<AxisId>& masked) {
    const auto shared = [](const std::vector<AxisId>& of, const std::vector<AxisId>& with) {
        std::vector<AxisId> found;
        std::copy_if(of.begin(), of.end(), std::back_inserter(found),
                     [&](AxisId id) { return std::find(with.begin(), with.end(), id) != with.end(); });
        return found;
    };
    if (shared(mask, masked) == shared(masked, mask)) return;
    fail(ErrorCode::kUnsupported,
         "{}({}): the data coordinate has axes [{}] and the result [{}]; declare them in one order", what,
         graph.describe(source), graph.describe_axes(mask), graph.describe_axes(masked));
}

}  // namespace rowjit
