// What one loop over a row's columns keeps for later ones, and what they compute again: a minimum cut at each border
// between two loops, and what keeping and computing cost.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "base/dtype.h"
#include "base/min_cut.h"
#include "compiler/schedule/lower.h"
#include "compiler/schedule/lowering.h"

namespace rowjit::lowering {
namespace {

// Cost of keeping a value against computing it again, in bytes per element. Registers are the scarce resource of a
// resident row; shared memory is counted double because each access costs an instruction and latency as well.
constexpr double kRegisterWeight = 1;

constexpr double kSharedWeight = 2;
constexpr double kStagedWeight = 0.2;  // what was copied ahead lies there anyway: a load, of a whole vector
constexpr double kSpecialCost = 6;     // exp, division …: a kept f32 (4 bytes) is cheaper than one of these

// Of rows of narrow floats, whose logits take half of the registers that their exponentials do: at most four
// instructions on a GPU (spend_precision). H200, cross-entropy with its gradient of 32000 bf16 classes, 32 columns a
// thread: 0.629 ms where exponentials are kept, 0.686 where logits are. A thread has no registers for more of them.
constexpr double kNarrowExpCost = 3;

constexpr std::int64_t kMostExpBytes = 128;
constexpr double kRoundCost = 0.5;  // a map or cast that rounds to bf16 or f16
constexpr double kPlainCost = 0.3;
constexpr double kAlreadyKept = 0.01;
constexpr double kTooMany = 1000;

// Where rounding is arithmetic of its own beside the loads that a kept value spares: on Zen 4 an instruction, a test
// for what that takes for zero, and one to widen the result.
constexpr double kCpuRoundCost = 2.5;

double recompute_cost(const Node& node, bool narrow_exps, bool is_gpu) {
    if (node.kind == NodeKind::kSearch || node.kind == NodeKind::kSumWhere) return kSpecialCost;
    if (node.kind == NodeKind::kMap) {
        if (narrow_exps && node.op == Op::kExp && node.dtype == Dtype::kF32) return kNarrowExpCost;
        if (is_special(node.op) || node.op == Op::kUniform) return kSpecialCost;
    }
    const bool narrow = is_narrow(node.dtype);
    if (!narrow) return kPlainCost;
    const bool rounds = node.kind == NodeKind::kMap || node.kind == NodeKind::kCast;
    return rounds && !is_gpu ? kCpuRoundCost : kRoundCost;
}

}  // namespace

// For each set of columns, walks its loops in phase order and decides at each border what to carry over it.
void Lowering::plan_keeps() {
    if (schedule().residency == Residency::kReload) return;
    std::vector<LoopPlan*> all;
    std::set<const LoopPlan*> repeated;
    for (std::size_t phase = 0; phase < loops_.size(); ++phase) {
        for (LoopPlan& loop : loops_[phase]) all.push_back(&loop);
        for (StepPlan& step : steps_[phase]) {
            for (auto& loops : step.loops) {
                for (LoopPlan& loop : loops) {
                    all.push_back(&loop);
                    repeated.insert(&loop);
                }
            }
        }
    }
    std::set<std::vector<AxisId>> domains;
    for (const LoopPlan* loop : all) domains.insert(loop->axes);
    for (const std::vector<AxisId>& axes : domains) {
        std::vector<LoopPlan*> sequence;
        std::copy_if(all.begin(), all.end(), std::back_inserter(sequence),
                     [&](const LoopPlan* loop) { return loop->axes == axes; });
        std::set<NodeId> kept;
        if (schedule().residency == Residency::kStages && sequence.size() > 1) keep_copied(sequence, &kept);
        const std::map<NodeId, std::size_t> last_visits = last_visits_of(sequence);
        for (std::size_t next = 1; next < sequence.size(); ++next) {
            // What later loops need is kept before the steps, once: a step keeps nothing.
            if (repeated.contains(sequence[next - 1])) continue;
            kept.insert(sequence[next - 1]->keeps.begin(), sequence[next - 1]->keeps.end());
            std::vector<NodeId> needed;
            for (std::size_t later = next; later < sequence.size(); ++later) {
                const std::vector<NodeId> more = roots(*sequence[later]);
                needed.insert(needed.end(), more.begin(), more.end());
            }
            std::vector<NodeId> visited_later;
            for (const auto& [id, last] : last_visits) {
                if (last >= next) visited_later.push_back(id);
            }
            const std::set<NodeId> available = visited(roots(*sequence[next - 1]), kept);
            for (const NodeId id : cheapest_border(needed, visited_later, available, kept)) {
                if (kept.insert(id).second) sequence[next - 1]->keeps.push_back(id);
            }
        }
    }
}

// Of each value that loops visit, which keep nothing, the last that does.
std::map<NodeId, std::size_t> Lowering::last_visits_of(const std::vector<LoopPlan*>& sequence) const {
    std::map<NodeId, std::size_t> last;
    std::set<NodeId> seen;
    for (std::size_t at = sequence.size(); at-- > 0;) {
        std::vector<NodeId> added;
        visit(roots(*sequence[at]), {}, &seen, &added);
        for (const NodeId id : added) last[id] = at;
    }
    return last;
}

// What only later loops read of a row is copied ahead with the rest, by the first, and waits in its stage: it would
// come late behind the meeting.
void Lowering::keep_copied(const std::vector<LoopPlan*>& sequence, std::set<NodeId>* kept) {
    const std::set<NodeId> at_first = visited(roots(*sequence[0]), {});
    for (std::size_t later = 1; later < sequence.size(); ++later) {
        for (const NodeId id : visited(roots(*sequence[later]), {})) {
            const bool copied = place_of(graph_.node(id)) == Residency::kStages;
            if (copied && !at_first.contains(id) && kept->insert(id).second) sequence[0]->keeps.push_back(id);
        }
    }
}

// Where a value waits for later loops. What is copied ahead are tensors that rows differ in (passes/stages).
Residency Lowering::place_of(const Node& node) const {
    if (schedule().residency != Residency::kStages) return schedule().residency;
    const Node& read = node.kind == NodeKind::kIndex ? graph_.node(node.args[0]) : node;
    const bool copied = read.kind == NodeKind::kInput && !graph_.row_axes(read).empty();
    return copied ? Residency::kStages : Residency::kRegisters;
}

double Lowering::keep_cost(const Node& node) const {
    const Residency place = place_of(node);
    if (schedule().residency == Residency::kStages && place == Residency::kRegisters && crowds(node)) return kTooMany;
    const double weight = place == Residency::kShared   ? kSharedWeight
                          : place == Residency::kStages ? kStagedWeight
                                                        : kRegisterWeight;
    return weight * static_cast<double>(size_bytes(node.dtype));
}

// Whether a value's columns take more than half of the registers that a thread has, so many as there are at once.
bool Lowering::crowds(const Node& node) const {
    const Schedule& s = schedule();
    const std::int64_t columns = graph_.column_count(node) / (s.threads_per_row * s.column_blocks);
    const std::int64_t threads = std::int64_t{s.threads_per_row} * s.rows_per_block * std::max(1, s.min_blocks_per_sm);
    const std::int64_t bytes = target_.registers_per_sm / threads * static_cast<std::int64_t>(sizeof(float));
    return 2 * columns * static_cast<std::int64_t>(size_bytes(node.dtype)) > bytes;
}

// A GPU's resident row is read once, but for what all rows read where a block stays and holds it (passes/held); on
// the CPU the second read is of the cache, as that of a kept value.
bool Lowering::read_once(NodeId id) const {
    if (!target_.is_gpu() || turns_.contains(id)) return false;
    const Node& node = graph_.node(id);
    const bool held = node.kind == NodeKind::kInput && schedule().blocks_per_sm > 0 && graph_.row_axes(node).empty();
    return (node.kind == NodeKind::kInput || node.kind == NodeKind::kIndex) && !held;
}

// Whether what is read at a row's columns is of narrow floats alone, and more than a thread holds in f32.
bool Lowering::reads_many_narrow() const {
    std::int64_t columns = 0;
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        if (node.kind != NodeKind::kInput || graph_.column_axes(node).empty()) continue;
        if (!is_narrow(node.dtype)) return false;
        if (!graph_.row_axes(node).empty()) columns += graph_.column_count(node);
    }
    const std::int64_t threads = schedule().threads_per_row * schedule().column_blocks;
    return columns * static_cast<std::int64_t>(sizeof(float)) > kMostExpBytes * threads;
}

// The values to carry so that `needed` can be computed: a minimum cut between what the previous loop evaluated
// (`available`) and the later roots, which visit `later`. Each node is split into (in, out); cutting in→out keeps
// it, being on the sink's side means computing it again.
std::vector<NodeId> Lowering::cheapest_border(const std::vector<NodeId>& needed, const std::vector<NodeId>& later,
                                              const std::set<NodeId>& available, const std::set<NodeId>& kept) const {
    std::map<NodeId, std::size_t> index;
    for (const NodeId id : later) index.emplace(id, index.size());
    const std::size_t source = 2 * index.size();
    const std::size_t sink = source + 1;
    MinCut cut(sink + 1);
    const bool narrow_exps = target_.is_gpu() && reads_many_narrow();
    for (const auto& [id, i] : index) {
        const Node& node = graph_.node(id);
        const bool at_hand = available.contains(id) || kept.contains(id);
        if (at_hand) {
            cut.add_edge(2 * i, 2 * i + 1, kept.contains(id) ? kAlreadyKept : keep_cost(node));
            cut.add_edge(source, 2 * i,
                         read_once(id) ? MinCut::kInfinite : recompute_cost(node, narrow_exps, target_.is_gpu()));
        } else {
            cut.add_edge(2 * i, 2 * i + 1, MinCut::kInfinite);  // does not exist yet
        }
        for (const NodeId arg : operands(id)) {
            if (const auto found = index.find(arg); found != index.end()) {
                cut.add_edge(2 * found->second + 1, 2 * i, MinCut::kInfinite);
            }
        }
    }
    for (const NodeId id : needed) {
        if (const auto found = index.find(id); found != index.end()) {
            cut.add_edge(2 * found->second + 1, sink, MinCut::kInfinite);
        }
    }
    const std::vector<bool> side = cut.source_side(source, sink);
    std::vector<NodeId> border;
    for (const auto& [id, i] : index) {
        if (side[2 * i] && !side[2 * i + 1]) border.push_back(id);
    }
    return border;
}

}  // namespace rowjit::lowering
