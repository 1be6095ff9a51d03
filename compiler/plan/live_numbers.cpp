#include "compiler/plan/live_numbers.h"

#include <algorithm>
#include <map>
#include <set>

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
                if (made == place.end()) continue;
                last_use_[made->second] = at;
                uses_[at].push_back(made->second);
            }
            const Node& node = graph_.node(nodes_[at]);
            if (node.kind != NodeKind::kMap || node.op != Op::kDiv) continue;
            if (const auto divisor = place.find(node.args[1]); divisor != place.end()) ++divides_[divisor->second];
        }
    }

    std::vector<NodeId> values_that_part() const {
        const std::size_t peak = fullest();
        return peak == nodes_.size() ? std::vector<NodeId>() : held_after(turn(peak), peak);
    }

  private:
    // In a register, and no constant.
    bool is_number(std::size_t at) const {
        const Node& node = graph_.node(nodes_[at]);
        const bool computed = node.kind == NodeKind::kMap || node.kind == NodeKind::kCast ||
                              node.kind == NodeKind::kReduce || node.kind == NodeKind::kIndex;
        return computed && graph_.column_axes(node).empty();
    }

    std::size_t registers(const std::set<std::size_t>& live) const {
        const auto divisors =
            std::count_if(live.begin(), live.end(), [&](std::size_t value) { return divides_[value] > 1; });
        return live.size() + kBesideDivisor * static_cast<std::size_t>(divisors);
    }

    // Where most numbers are live; past the end where registers suffice.
    std::size_t fullest() const {
        std::set<std::size_t> live;
        std::size_t most = kMostLive;
        std::size_t found = nodes_.size();
        for (std::size_t at = 0; at < nodes_.size(); ++at) {
            drop_used(at, &live);
            if (is_number(at)) live.insert(at);
            if (registers(live) <= most) continue;
            most = registers(live);
            found = at;
        }
        return found;
    }

    void drop_used(std::size_t at, std::set<std::size_t>* live) const {
        std::erase_if(*live, [&](std::size_t value) { return last_use_[value] <= at; });
    }

    // From the peak on as far as registers suffice for what is made and for what it takes of before, which is computed
    // for it anew; in the second half of that where the fewest numbers go on.
    std::size_t turn(std::size_t peak) const {
        std::set<std::size_t> before;
        std::set<std::size_t> made;
        std::vector<std::size_t> go_on;  // by node behind the peak
        for (std::size_t at = peak + 1; at + 1 < nodes_.size(); ++at) {
            for (const std::size_t used : uses(at)) {
                if (used <= peak && is_number(used)) before.insert(used);
            }
            drop_used(at, &made);
            if (is_number(at)) made.insert(at);
            if (registers(before) + registers(made) > kMostLive) break;
            go_on.push_back(made.size());
        }
        std::size_t best = go_on.size() / 2;
        for (std::size_t i = best; i < go_on.size(); ++i) best = go_on[i] <= go_on[best] ? i : best;
        return peak + 1 + best;
    }

    // What is computed behind the peak up to `end` and used later. What is only loaded, or compares, is had again.
    std::vector<NodeId> held_after(std::size_t end, std::size_t peak) const {
        std::vector<NodeId> held;
        for (std::size_t at = peak + 1; at <= std::min(end, nodes_.size() - 1); ++at) {
            if (last_use_[at] > end && is_number(at) && is_computed(nodes_[at])) held.push_back(nodes_[at]);
        }
        return held;
    }

    bool is_computed(NodeId id) const {
        const Node& node = graph_.node(id);
        if (node.kind == NodeKind::kCast) return is_computed(node.args[0]);
        return is_float(node.dtype) && (node.kind == NodeKind::kMap || node.kind == NodeKind::kReduce);
    }

    const std::vector<std::size_t>& uses(std::size_t at) const {
        static const std::vector<std::size_t> none;
        const auto found = uses_.find(at);
        return found == uses_.end() ? none : found->second;
    }

    const GraphData& graph_;
    const std::vector<NodeId>& nodes_;
    std::vector<std::size_t> last_use_;                     // by node: the place of its last user
    std::vector<int> divides_;                              // by node: how many it is the divisor of
    std::map<std::size_t, std::vector<std::size_t>> uses_;  // by node: the places of its operands
};

}  // namespace

std::vector<NodeId> values_that_part(const GraphData& graph, const std::vector<NodeId>& nodes) {
    return LiveNumbers(graph, nodes).values_that_part();
}

}  // namespace rowjit
