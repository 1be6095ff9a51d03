#include "compiler/schedule/turns.h"

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace rowjit {
namespace {

class Turns {
  public:
    explicit Turns(const GraphData& graph) : graph_(graph) {}

    std::map<NodeId, Turn> run() {
        const std::vector<NodeId> live = graph_.live_nodes();
        for (const NodeId id : live) {
            const Node& node = graph_.node(id);
            if (is_computed(node)) known_.emplace(key(node, node.args), id);
        }
        for (const NodeId id : live) {  // operands before users
            if (const auto turn = find(graph_.node(id))) turns_[id] = *turn;
        }
        return std::move(turns_);
    }

  private:
    static bool is_computed(const Node& node) { return node.kind == NodeKind::kMap || node.kind == NodeKind::kCast; }

    // What tells one computation from another.
    using Key = std::tuple<NodeKind, Op, Dtype, std::vector<NodeId>>;
    static Key key(const Node& node, std::vector<NodeId> args) {
        return {node.kind, node.op, node.dtype, std::move(args)};
    }

    std::optional<Turn> find(const Node& node) const {
        if (node.state >= 0 || graph_.column_axes(node).size() != 1) return std::nullopt;
        if (node.kind == NodeKind::kIndex) return of_index(node);
        return is_computed(node) ? of_operands(node) : std::nullopt;
    }

    std::optional<Turn> of_index(const Node& node) const {
        const Node& input = graph_.node(node.args[0]);
        const std::vector<AxisId> columns = graph_.column_axes(input);
        if (input.kind != NodeKind::kInput || columns != graph_.column_axes(node)) return std::nullopt;
        std::int64_t by = 0;
        for (std::size_t i = 0; i < node.coords.size(); ++i) {
            const Coord& coord = node.coords[i];
            if (input.axes[i] == columns[0]) {
                by = step(coord, columns[0]);
            } else if (!coord.is_axis(Axis{input.axes[i]})) {
                return std::nullopt;
            }
        }
        return by > 0 ? std::optional(Turn{node.args[0], by}) : std::nullopt;
    }

    // How far the coordinate turns the axis; 0 where it does anything else. Columns are few enough to look at each.
    std::int64_t step(const Coord& coord, AxisId axis) const {
        const std::vector<Axis> mentioned = coord.axes();
        if (mentioned.size() != 1 || mentioned[0].id != axis || !coord.data_nodes().empty()) return 0;
        const std::int64_t columns = graph_.axis(axis).extent;
        const auto at = [&](std::int64_t column) {
            return coord.evaluate([=](Axis) { return column; }, [](std::int32_t) -> std::int64_t { return 0; });
        };
        const std::int64_t by = at(0);
        for (std::int64_t column = 0; column < columns; ++column) {
            if (at(column) != (column + by) % columns) return 0;
        }
        return by;
    }

    std::optional<Turn> of_operands(const Node& node) const {
        std::int64_t by = 0;
        std::vector<NodeId> own;
        for (const NodeId arg : node.args) {
            if (graph_.column_axes(graph_.node(arg)).empty()) {
                own.push_back(arg);
                continue;
            }
            const auto turn = turns_.find(arg);
            if (turn == turns_.end() || (by > 0 && turn->second.columns != by)) return std::nullopt;
            by = turn->second.columns;
            own.push_back(turn->second.own);
        }
        const auto found = known_.find(key(node, std::move(own)));
        return found == known_.end() ? std::nullopt : std::optional(Turn{found->second, by});
    }

    const GraphData& graph_;
    std::map<Key, NodeId> known_;
    std::map<NodeId, Turn> turns_;
};

}  // namespace

std::map<NodeId, Turn> find_turns(const GraphData& graph) { return Turns(graph).run(); }

}  // namespace rowjit
