#include "compiler/plan/live_numbers.h"

#include <algorithm>
#include <map>
#include <vector>

namespace rowjit {
namespace {

// Of 255 registers, addresses and what is being computed take the rest. What several numbers are divided by is prepared
// for them, in two registers more.
constexpr std::size_t kMostLive = 216;
constexpr std::size_t kBesideDivisor = 2;

class LiveNumbers {
  public:
    LiveNumbers(const GraphData& graph, const std::vector<NodeId>& nodes)
        : graph_(graph), nodes_(nodes), last_use_(nodes.size()), divides_(nodes.size()) {
        std::map<NodeId, std::size_t> place;
        for (std::size_t at = 0; at < nodes_.size(); ++at) {
            place[nodes_[at]] = last_use_[at] = at;
            for (const NodeId arg : graph_.node(nodes_[at]).args) {
                const auto made = place.find(arg);
                if (made != place.end()) last_use_[made->second] = at;
            }
            const Node& node = graph_.node(nodes_[at]);
            if (node.kind != NodeKind::kMap || node.op != Op::kDiv) continue;
            if (const auto divisor = place.find(node.args[1]); divisor != place.end()) ++divides_[divisor->second];
        }
    }

    std::vector<NodeId> values_that_part() const {
        const std::size_t peak = fullest();
        return peak == nodes_.size() ? std::vector<NodeId>() : held_over(peak);
    }

  private:
    // In a register, and no constant.
    bool is_number(std::size_t at) const {
        const Node& node = graph_.node(nodes_[at]);
        const bool computed = node.kind == NodeKind::kMap || node.kind == NodeKind::kCast ||
                              node.kind == NodeKind::kReduce || node.kind == NodeKind::kIndex;
        return computed && graph_.column_axes(node).empty();
    }

    std::size_t registers_of(std::size_t value) const { return 1 + (divides_[value] > 1 ? kBesideDivisor : 0); }

    // Where most numbers are live; past the end where registers suffice.
    std::size_t fullest() const {
        // By place: of what is last used there, or, never used, was made right before it.
        std::vector<std::size_t> freed(nodes_.size() + 1, 0);
        for (std::size_t at = 0; at < nodes_.size(); ++at) {
            if (is_number(at)) freed[std::max(last_use_[at], at + 1)] += registers_of(at);
        }
        std::size_t live = 0;
        std::size_t most = kMostLive;
        std::size_t found = nodes_.size();
        for (std::size_t at = 0; at < nodes_.size(); ++at) {
            live -= freed[at];
            if (is_number(at)) live += registers_of(at);
            if (live <= most) continue;
            most = live;
            found = at;
        }
        return found;
    }

    // What is computed up to the peak and used behind it. What is only loaded, or compares, is had again.
    std::vector<NodeId> held_over(std::size_t peak) const {
        std::vector<NodeId> held;
        for (std::size_t at = 0; at <= peak; ++at) {
            if (last_use_[at] > peak && is_number(at) && is_computed(nodes_[at])) held.push_back(nodes_[at]);
        }
        return held;
    }

    bool is_computed(NodeId id) const {
        const Node& node = graph_.node(id);
        if (node.kind == NodeKind::kCast) return is_computed(node.args[0]);
        return is_float(node.dtype) && (node.kind == NodeKind::kMap || node.kind == NodeKind::kReduce);
    }

    const GraphData& graph_;
    const std::vector<NodeId>& nodes_;
    std::vector<std::size_t> last_use_;  // by node: the place of its last user
    std::vector<int> divides_;           // by node: how many it is the divisor of
};

}  // namespace

std::vector<NodeId> values_that_part(const GraphData& graph, const std::vector<NodeId>& nodes) {
    return LiveNumbers(graph, nodes).values_that_part();
}

}  // namespace rowjit
