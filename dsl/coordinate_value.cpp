#include "dsl/coordinate_value.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/fail.h"

namespace rowjit {
namespace {

NodeId quotient(GraphData& graph, const Coord& dividend, std::int64_t divisor, Dtype dtype) {
    const Dtype whole = dtype == Dtype::kI32 ? Dtype::kI32 : Dtype::kI64;
    const NodeId number = add_coordinate_value(graph, dividend, whole);
    const NodeId by = graph.add_const(whole, static_cast<double>(divisor));
    return graph.add_cast(graph.add_map(Op::kFloorDiv, {number, by}), dtype);
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
