#include "dsl/joined_gathers.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "rowjit/coord.h"

namespace rowjit {
namespace {

// Values that stand along an axis, one at each of its positions. What they have in common is made once: w₀·g, w₁·g, …
// are g times the weights along the axis, and columns that follow each other are those columns along it.
class Stacked {
  public:
    Stacked(const std::shared_ptr<GraphData>& graph, Axis along) : graph_(graph), data_(*graph), along_(along) {}

    Value of(const std::vector<Value>& values) {
        std::vector<NodeId> nodes;
        for (const Value& value : values) nodes.push_back(value.id());
        return {graph_, stack(nodes)};
    }

  private:
    NodeId stack(const std::vector<NodeId>& nodes) {
        const auto known = known_.find(nodes);
        if (known != known_.end()) return known->second;
        const NodeId found = stacked(nodes);
        known_.emplace(nodes, found);
        return found;
    }

    NodeId stacked(const std::vector<NodeId>& nodes) {
        const Node first = data_.node(nodes[0]);  // a copy: adding nodes moves the original
        const auto all = [&](const auto& like) {
            return std::ranges::all_of(nodes, [&](NodeId id) { return like(data_.node(id)); });
        };
        if (std::ranges::all_of(nodes, [&](NodeId id) { return id == nodes[0]; })) return nodes[0];
        if (first.kind == NodeKind::kMap &&
            all([&](const Node& n) { return n.kind == NodeKind::kMap && n.op == first.op; })) {
            std::vector<NodeId> args;
            for (std::size_t i = 0; i < first.args.size(); ++i) args.push_back(stack(arguments(nodes, i)));
            return data_.add_map(first.op, std::move(args));
        }
        if (first.kind == NodeKind::kCast &&
            all([&](const Node& n) { return n.kind == NodeKind::kCast && n.dtype == first.dtype; }))
            return data_.add_cast(stack(arguments(nodes, 0)), first.dtype);
        if (const auto coords = coordinates(nodes)) return data_.add_index(first.args[0], *coords);
        return chosen(nodes);
    }

    std::vector<NodeId> arguments(const std::vector<NodeId>& nodes, std::size_t which) const {
        std::vector<NodeId> args;
        for (const NodeId id : nodes) args.push_back(data_.node(id).args[which]);
        return args;
    }

    NodeId chosen(const std::vector<NodeId>& nodes) {
        Graph graph(graph_);
        Value value(graph_, nodes.back());
        for (std::size_t k = nodes.size() - 1; k-- > 0;)
            value = select(graph.iota(along_, i64) == static_cast<double>(k), Value(graph_, nodes[k]), value);
        return value.id();
    }

    struct Place {
        Coord from;
        std::int64_t further;
    };

    static Place place(const Coord& coord) {
        if (coord.kind() == Coord::Kind::kConst) return {Coord(0), coord.constant()};
        if (coord.kind() == Coord::Kind::kAdd && coord.right().kind() == Coord::Kind::kConst)
            return {coord.left(), coord.right().constant()};
        return {coord, 0};
    }

    // Of reads of one tensor, each as far behind the one before as that is behind its own: where all of them read.
    std::optional<std::vector<Coord>> coordinates(const std::vector<NodeId>& nodes) const {
        const Node& first = data_.node(nodes[0]);
        if (first.kind != NodeKind::kIndex) return std::nullopt;
        std::vector<Coord> all;
        for (std::size_t i = 0; i < first.coords.size(); ++i) {
            const Place begin = place(first.coords[i]);
            std::optional<std::int64_t> step;
            for (std::size_t k = 1; k < nodes.size(); ++k) {
                const Node& n = data_.node(nodes[k]);
                if (n.kind != NodeKind::kIndex || n.args[0] != first.args[0]) return std::nullopt;
                const Place here = place(n.coords[i]);
                if (!step) step = here.further - begin.further;
                const bool follows = here.further == begin.further + static_cast<std::int64_t>(k) * *step;
                if (!(here.from == begin.from) || !follows) return std::nullopt;
            }
            all.push_back(*step == 0 ? first.coords[i] : begin.from + Coord(along_) * *step + Coord(begin.further));
        }
        return all;
    }

    std::shared_ptr<GraphData> graph_;
    GraphData& data_;
    Axis along_;
    std::map<std::vector<NodeId>, NodeId> known_;
};

}  // namespace

TakenRows joined(const std::shared_ptr<GraphData>& graph, const std::vector<TakenRows>& gathers, Axis along) {
    std::vector<Value> ids;
    std::vector<Value> wholes;
    for (const TakenRows& taken : gathers) {
        ids.push_back(cast(taken.gather.ids, i64));
        wholes.push_back(taken.whole);
    }
    Stacked stacked(graph, along);
    TakenRows all = gathers[0];
    all.gather.ids = stacked.of(ids);
    all.gather.positions.push_back(along);
    all.whole = stacked.of(wholes);
    return all;
}

}  // namespace rowjit
