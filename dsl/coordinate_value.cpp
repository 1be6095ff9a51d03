#include "dsl/coordinate_value.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "base/check.h"
#include "base/fail.h"

namespace rowjit {
namespace {

// Below this a quotient's distance to the next whole number is more than half an ulp, so no rounding reaches it.
constexpr std::int64_t kExactQuotients = std::int64_t{1} << 24;

// floor(dividend / divisor). A power of two is multiplied by its exact inverse.
NodeId quotient(GraphData& graph, const Coord& dividend, std::int64_t divisor, Dtype dtype) {
    std::int64_t low = 0;
    std::int64_t high = 0;
    const bool known = dividend.bounds([&](Axis axis) { return graph.axis(axis.id).extent; }, &low, &high);
    if (!known || low <= -kExactQuotients || high >= kExactQuotients || divisor >= kExactQuotients) {
        fail(
            ErrorCode::kUnsupported,
            "a coordinate with / or % has a value only where it is known to stay below 2^24; index the tensors that it "
            "selects instead");
    }
    const NodeId number = graph.add_cast(add_coordinate_value(graph, dividend, dtype), Dtype::kF32);
    const auto by = static_cast<double>(divisor);
    const NodeId exact = std::has_single_bit(static_cast<std::uint64_t>(divisor))
                             ? graph.add_map(Op::kMul, {number, graph.add_const(Dtype::kF32, 1 / by)})
                             : graph.add_map(Op::kDiv, {number, graph.add_const(Dtype::kF32, by)});
    return graph.add_cast(graph.add_map(Op::kFloor, {exact}), dtype);
}

NodeId times(GraphData& graph, NodeId value, std::int64_t factor, Dtype dtype) {
    return graph.add_map(Op::kMul, {value, graph.add_const(dtype, static_cast<double>(factor))});
}

}  // namespace

NodeId add_coordinate_value(GraphData& graph, const Coord& coord, Dtype dtype) {
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
