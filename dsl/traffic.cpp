#include "dsl/traffic.h"

#include <algorithm>

#include "rowjit/coord.h"

namespace rowjit {
namespace {

class Traffic {
  public:
    Traffic(const GraphData& graph, const RowExtents& rows)
        : graph_(graph), rows_(rows), read_(static_cast<std::size_t>(graph.size()), 0) {}

    std::int64_t total() {
        for (const NodeId id : graph_.live_nodes()) add_reads_of(graph_.node(id));
        std::int64_t bytes = 0;
        for (const OutputInfo& output : graph_.outputs()) {
            add_read(output.node, elements(graph_.node(output.node).axes));
            bytes += (output.accumulate ? 2 : 1) * bytes_of(output.node, elements(graph_.node(output.node).axes));
        }
        for (NodeId id = 0; id < graph_.size(); ++id) bytes += bytes_of(id, read_[static_cast<std::size_t>(id)]);
        return bytes;
    }

    std::int64_t held() const {
        std::int64_t bytes = 0;
        for (const NodeId id : graph_.live_nodes()) {
            const Node& node = graph_.node(id);
            if (node.kind == NodeKind::kInput) bytes += bytes_of(id, elements(node.axes));
        }
        for (const OutputInfo& output : graph_.outputs())
            bytes += bytes_of(output.node, elements(graph_.node(output.node).axes));
        return bytes;
    }

  private:
    std::int64_t extent(AxisId axis) const { return extent_of(graph_, axis, rows_); }

    std::int64_t elements(const std::vector<AxisId>& axes) const {
        std::int64_t count = 1;
        for (const AxisId axis : axes) count *= extent(axis);
        return count;
    }

    std::int64_t bytes_of(NodeId id, std::int64_t count) const {
        return count * static_cast<std::int64_t>(size_bytes(graph_.node(id).dtype));
    }

    // Reads of different elements add up; the tensor itself is the most that can be read.
    void add_read(NodeId id, std::int64_t count) {
        const Node& node = graph_.node(id);
        if (node.kind != NodeKind::kInput) return;
        std::int64_t& so_far = read_[static_cast<std::size_t>(id)];
        so_far = std::min(so_far + count, elements(node.axes));
    }

    // A coordinate's range, where it is known, bounds the elements along its axis.
    std::int64_t gathered(const Node& index) const {
        std::int64_t in_range = 1;
        const std::vector<AxisId>& source = graph_.node(index.args[0]).axes;
        for (std::size_t i = 0; i < source.size(); ++i) {
            std::int64_t low = 0;
            std::int64_t high = 0;
            const bool known = index.coords[i].bounds([&](Axis axis) { return extent(axis.id); }, &low, &high);
            const std::int64_t width = known ? std::max<std::int64_t>(high - low + 1, 0) : extent(source[i]);
            in_range *= std::min(width, extent(source[i]));
        }
        return std::min(in_range, elements(index.axes));
    }

    void add_reads_of(const Node& user) {
        for (std::size_t i = 0; i < user.args.size(); ++i) {
            const bool is_source = user.kind == NodeKind::kIndex && i == 0;
            add_read(user.args[i], is_source ? gathered(user) : elements(graph_.node(user.args[i]).axes));
        }
    }

    const GraphData& graph_;
    const RowExtents& rows_;
    std::vector<std::int64_t> read_;  // elements, by node
};

}  // namespace

std::int64_t least_bytes(const GraphData& graph, const RowExtents& rows) { return Traffic(graph, rows).total(); }

std::int64_t held_bytes(const GraphData& graph, const RowExtents& rows) { return Traffic(graph, rows).held(); }

}  // namespace rowjit
