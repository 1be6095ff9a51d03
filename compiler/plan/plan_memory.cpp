// Whose memory a value may lie in: an operand's that is read for the last time, another product's, an input's that an
// output overwrites.
#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "base/fail.h"
#include "compiler/plan/cutter.h"
#include "compiler/plan/planner.h"

namespace rowjit::planning {

// What a kernel computes from a product's result of the same dtype and axes, and reads last, lies in its memory:
// the gradient of logits in that of the logits.
void Planner::reuse_memory() {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        if (pieces_[i].is_apart || pieces_[i].copies) continue;
        std::set<NodeId> taken;
        for (const NodeId root : pieces_[i].roots) {
            if (!is_temporary(root) || graph_->node(root).kind == NodeKind::kPartialReduce) continue;
            const NodeId dying = dying_operand(i, root, taken);
            if (dying < 0) continue;
            taken.insert(dying);
            reused_[root] = dying;
        }
    }
}

// A product's result lies in the memory of an earlier one that nothing reads any more: a reference's logits, then
// the policy's. So do the counts of one pass of an order in that of another's.
void Planner::reuse_apart() {
    struct Block {
        NodeId first;
        std::size_t last_read;
    };
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        const NodeId result = pieces_[i].roots[0];
        const Node& node = graph_->node(result);
        const bool may_lie_over = pieces_[i].is_product || node.kind == NodeKind::kDigitCounts;
        if (!may_lie_over || !is_temporary(result)) continue;
        const auto free = std::find_if(blocks.begin(), blocks.end(), [&](const Block& block) {
            const Node& other = graph_->node(block.first);
            return block.last_read < i && other.dtype == node.dtype && other.axes == node.axes;
        });
        if (free == blocks.end()) {
            blocks.push_back({result, last_read(result)});
        } else {
            lies_over_[result] = free->first;
            free->last_read = last_read(result);
        }
    }
}

// Also of what a kernel stores in its memory.
std::size_t Planner::last_read(NodeId id) const {
    std::size_t last = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        if (pieces_[i].copies ? pieces_[i].roots[0] == id : reads(pieces_[i], id)) last = i;
    }
    for (const auto& [stored, over] : reused_) {
        if (over == id) last = std::max(last, last_read(stored));
    }
    return last;
}

// The temporary whose memory it is: itself, or the first that was there.
NodeId Planner::memory_of(NodeId id) const {
    if (const auto over = reused_.find(id); over != reused_.end()) return memory_of(over->second);
    const auto over = lies_over_.find(id);
    return over == lies_over_.end() ? id : over->second;
}

NodeId Planner::dying_operand(std::size_t reader, NodeId root, const std::set<NodeId>& taken) const {
    const Node& wanted = graph_->node(root);
    for (const NodeId id : products_read(pieces_[reader])) {
        const Node& node = graph_->node(id);
        if (!is_temporary(id) || taken.contains(id)) continue;
        if (node.dtype != wanted.dtype || node.axes != wanted.axes) continue;
        const bool read_later =
            std::any_of(pieces_.begin() + static_cast<std::ptrdiff_t>(reader) + 1, pieces_.end(),
                        [&](const Piece& later) { return later.copies ? later.roots[0] == id : reads(later, id); });
        if (!read_later && !reads_elsewhere(pieces_[reader], id)) return id;
    }
    return -1;
}

bool Planner::reads(const Piece& piece, NodeId id) const {
    if (piece.is_product) {
        const std::vector<NodeId>& args = graph_->node(piece.roots[0]).args;
        return std::find(args.begin(), args.end(), id) != args.end();
    }
    return cutter_.reach_with_loads(piece.roots).contains(id) && !is_root(piece, id);
}

// At places other than a kernel's own.
bool Planner::reads_elsewhere(const Piece& piece, NodeId id) const {
    const std::set<NodeId> nodes = cutter_.reach_with_loads(piece.roots);
    return std::any_of(nodes.begin(), nodes.end(), [&](NodeId user) {
        const Node& node = graph_->node(user);
        for (std::size_t i = 0; i < node.args.size(); ++i) {
            if (node.args[i] == id && node.reads_from_memory(i)) return true;
        }
        return false;
    });
}

// An output that overwrites an input must be stored by the last step that reads that input.
void Planner::check_aliases(const Plan& plan) const {
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
        if (plan.steps[i].kind == PlanStep::Kind::kProduct) continue;
        for (const OutputInfo& output : plan.groups[plan.steps[i].index].graph->outputs()) {
            if (output.alias.empty()) continue;
            for (std::size_t later = i + 1; later < plan.steps.size(); ++later) {
                if (!reads(plan, plan.steps[later], output.alias)) continue;
                fail(ErrorCode::kUnsupported,
                     "output '{}' overwrites input '{}', which a later kernel still reads; give the output a "
                     "buffer of its own",
                     output.name, output.alias);
            }
        }
    }
}

bool Planner::reads(const Plan& plan, const PlanStep& step, const std::string& tensor) {
    if (step.kind == PlanStep::Kind::kKernel) return plan.groups[step.index].graph->find_input(tensor).has_value();
    const Product& product = plan.products[step.index];
    return product.left == tensor || product.right == tensor;
}

}  // namespace rowjit::planning
