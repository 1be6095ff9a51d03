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

    // Numbers that are live, by place, and the registers that they take. Each enters once and leaves once: of the
    // thousands that a derivative of many steps has none is looked at where another comes or goes.
    class Live {
      public:
        explicit Live(const LiveNumbers& numbers) : numbers_(numbers), is_live_(numbers.nodes_.size(), false) {}

        void insert(std::size_t value) {
            if (is_live_[value]) return;
            is_live_[value] = true;
            count_ += 1;
            registers_ += registers_of(value);
        }

        // What is last used at this place, or, never used, was made right before it.
        void drop_used(std::size_t at) {
            for (const std::size_t used : numbers_.uses(at)) drop(used, at);
            if (at > 0) drop(at - 1, at);
        }

        std::size_t count() const { return count_; }
        std::size_t registers() const { return registers_; }

      private:
        void drop(std::size_t value, std::size_t at) {
            if (!is_live_[value] || numbers_.last_use_[value] > at) return;
            is_live_[value] = false;
            count_ -= 1;
            registers_ -= registers_of(value);
        }

        std::size_t registers_of(std::size_t value) const {
            return 1 + (numbers_.divides_[value] > 1 ? kBesideDivisor : 0);
        }

        const LiveNumbers& numbers_;
        std::vector<bool> is_live_;
        std::size_t count_ = 0;
        std::size_t registers_ = 0;
    };

    // Where most numbers are live; past the end where registers suffice.
    std::size_t fullest() const {
        Live live(*this);
        std::size_t most = kMostLive;
        std::size_t found = nodes_.size();
        for (std::size_t at = 0; at < nodes_.size(); ++at) {
            live.drop_used(at);
            if (is_number(at)) live.insert(at);
            if (live.registers() <= most) continue;
            most = live.registers();
            found = at;
        }
        return found;
    }

    // From the peak on as far as registers suffice for what is made and for what it takes of before, which is computed
    // for it anew; in the second half of that where the fewest numbers go on.
    std::size_t turn(std::size_t peak) const {
        Live before(*this);
        Live made(*this);
        std::vector<std::size_t> go_on;  // by node behind the peak
        for (std::size_t at = peak + 1; at + 1 < nodes_.size(); ++at) {
            for (const std::size_t used : uses(at)) {
                if (used <= peak && is_number(used)) before.insert(used);
            }
            made.drop_used(at);
            if (is_number(at)) made.insert(at);
            if (before.registers() + made.registers() > kMostLive) break;
            go_on.push_back(made.count());
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
