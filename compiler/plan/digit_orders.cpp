#include "compiler/plan/digit_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "compiler/plan/rewrite.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

// Of a digit at most. Counts of more do not fit the shared memory that a block of eight warps has without asking, a
// count of each for each warp, nor a processor's first-level cache beside the ids.
constexpr int kMostBitsOnGpu = 10;
constexpr int kMostBitsOnCpu = 11;

// Of a kind of id where a launch says how many rows there are: those of more rows than these bits number take up more
// memory than there is.
constexpr int kBitsOfAnyRow = 40;
constexpr int kBitsOfI32 = 32;

// Kinds are numbered from 0, those before the first row, to as many as there are rows and one.
int bits_of_kinds(const GraphData& graph, const Node& order) {
    const std::int64_t rows = graph.axis(order.axis).extent;
    const int bits = rows == kRuntimeExtent ? kBitsOfAnyRow : std::bit_width(static_cast<std::uint64_t>(rows) + 1);
    return graph.node(order.args[0]).dtype == Dtype::kI32 ? std::min(bits, kBitsOfI32) : bits;
}

// Digits that are alike where all are needed; as long as they may be where a launch may do without the last.
std::vector<Digit> digits_of(const GraphData& graph, const Node& order, const Target& target) {
    const int most = target.is_gpu() ? kMostBitsOnGpu : kMostBitsOnCpu;
    const int bits = bits_of_kinds(graph, order);
    const int count = (bits + most - 1) / most;
    const int each = graph.axis(order.axis).extent == kRuntimeExtent ? most : (bits + count - 1) / count;
    std::vector<Digit> digits;
    for (int shift = 0; shift < bits; shift += each) digits.push_back({shift, std::min(each, bits - shift)});
    return digits;
}

std::int64_t most_blocks(const GraphData& graph, const Node& order) {
    const std::int64_t ids = graph.axis(order.axes[0]).extent;
    if (ids == kRuntimeExtent) return kMostOrderBlocks;
    return std::clamp<std::int64_t>((ids + kIdsOfOrderBlock - 1) / kIdsOfOrderBlock, 1, kMostOrderBlocks);
}

AxisId count_axis(GraphData& graph, std::string_view of, std::int64_t extent) {
    return graph.add_column_axis(fmt::format("rj_{}_{}", of, extent), extent);
}

NodeId passes(GraphData& to, const Node& order, NodeId ids, const std::string& label, const Target& target) {
    std::vector<NodeId> operands = {ids};
    NodeId result = -1;
    for (const Digit digit : digits_of(to, order, target)) {
        std::vector<NodeId> of_pass = operands;
        if (target.is_gpu()) {
            const AxisId blocks = count_axis(to, "order_blocks", most_blocks(to, order));
            const AxisId kinds = count_axis(to, "digit_kinds", digit.kinds());
            of_pass.push_back(to.add_digit_counts(operands, blocks, kinds, order.axis, digit));
            to.set_label(of_pass.back(), "counts");
        }
        result = to.add_order_by_digit(std::move(of_pass), order.axes[0], order.axis, digit);
        operands = {ids, result};
    }
    to.set_label(result, label);
    return result;
}

}  // namespace

std::shared_ptr<const GraphData> order_by_digits(const std::shared_ptr<const GraphData>& graph, const Target& target) {
    const auto is_whole = [&](NodeId id) {
        return graph->node(id).kind == NodeKind::kOrder && graph->node(id).digit == Digit{};
    };
    if (std::ranges::none_of(graph->live_nodes(), is_whole)) return graph;
    return rewritten(*graph, [&](GraphData& to, NodeId id, const ToHere& to_here) {
        const Node& node = graph->node(id);
        if (!is_whole(id)) return to.add_copy(node, to_here);
        return passes(to, node, to_here(node.args[0]), node.label, target);
    });
}

std::optional<IdsInMemory> ids_in_memory(const GraphData& graph, NodeId ids) {
    const Node& node = graph.node(ids);
    if (node.kind == NodeKind::kInput) return IdsInMemory{ids};
    if (node.kind != NodeKind::kIndex || graph.node(node.args[0]).kind != NodeKind::kInput) return std::nullopt;
    const Node& source = graph.node(node.args[0]);
    IdsInMemory found{node.args[0]};
    for (std::size_t i = 0; i < source.axes.size(); ++i) {
        const Coord& at = node.coords[i];
        if (graph.axis(source.axes[i]).is_row) {
            if (!at.is_axis(Axis{source.axes[i]})) return std::nullopt;
        } else {
            if (at.kind() != Coord::Kind::kConst) return std::nullopt;
            found.columns.push_back(at.constant());
        }
    }
    return found;
}

bool orders_ids(const GraphData& group) {
    return std::ranges::any_of(group.outputs(),
                               [&](const OutputInfo& output) { return group.node(output.node).orders(); });
}

}  // namespace rowjit
