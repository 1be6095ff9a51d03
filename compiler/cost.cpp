#include "compiler/cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/floor_div.h"
#include "compiler/passes/passes.h"
#include "compiler/schedule/lower.h"

namespace rowjit {
namespace {

// Fitted by benchmarks/fit_cost.py to the 401 candidates of benchmarks/results/2026-11-21-h200-tune-{llama3-8b,
// llama3-8b-backward,wide-forward,wide-backward}.json, of which it is off by a factor of 1.16 in the geometric mean and
// 1.89 at worst. launch_us was measured by itself.
struct Constants {
    double launch_us = 2.5;
    double memory = 1.23;  // of memory_us: few kernels are as good as the copy
    double again = 0.26;   // of again_us
    double issue = 1.16;
    double special = 0.37;
    double load_us = 0.1;      // until a row's first bytes are there, beyond what its block's own share of memory takes
    double fetched_us = 1.68;  // that a row which is fetched ahead takes at least
    double bare_us = 2.32;     // until a cluster that stays has begun with its next row
    double block_us = 0.81;    // a reduction over a block
    double cluster_us = 0.59;  // over a cluster, each time its blocks double
    double serial = 0.37;      // of what a block would take alone
    double overlap = 2.82;     // infinite where the three limits hide behind each other, 1 where they add up
};
constexpr Constants kFitted;

constexpr double kLanesPerClock = 128;  // of a multiprocessor
constexpr double kSpecialLanesPerClock = 16;
constexpr double kClocksPerUs = 1.7e3;
constexpr std::int64_t kMostBlocksAtOnce = 32;
constexpr std::int64_t kLoadsAhead = 4;  // iterations of a serial loop whose loads a compiler issues together

// The estimate is made to be safe. Where nothing asked it to, NVRTC 13 took from 0.57 to 1 of it, 0.7 for most
// softmaxes and RMS norms of 1024 to 131072 columns, and 1.3 where moments are combined; with a limit it takes what
// that leaves.
std::int64_t likely_registers(const Kernel& kernel, const Target& target) {
    const std::int64_t estimate = estimated_registers(kernel, target);
    if (kernel.schedule.min_blocks_per_sm > 0) return estimate;
    return std::max<std::int64_t>(32, estimate * 7 / 10);
}

// What a row of a block meets of a tensor at most: all heads of a position share one line of cosines.
double most_bytes(const Kernel& kernel, const KernelTensor& tensor) {
    const auto positions = [&](const std::vector<AxisId>& axes) {
        double product = 1;
        for (const AxisId id : axes) {
            const std::int64_t extent = kernel.axis(id).extent;
            if (extent != kRuntimeExtent) product *= static_cast<double>(extent);
        }
        return product;
    };
    const double rows = positions(kernel.row_axes) * static_cast<double>(kernel.schedule.column_blocks);
    return positions(tensor.axes) / rows * static_cast<double>(size_bytes(tensor.dtype));
}

std::int64_t blocks_at_once(const Kernel& kernel, const Target& target, std::int64_t registers) {
    const std::int64_t threads = ceil_div(kernel.block_threads(), target.warp_size) * target.warp_size;
    std::int64_t blocks = std::min(kMostBlocksAtOnce, target.max_threads_per_sm / threads);
    blocks = std::min(blocks, target.shared_bytes_per_sm / (kernel.shared_bytes + kSystemSharedBytes));
    blocks = std::min(blocks, std::max<std::int64_t>(kernel.schedule.min_blocks_per_sm,
                                                     target.registers_per_sm / (registers * threads)));
    if (kernel.schedule.blocks_per_sm > 0) blocks = std::min<std::int64_t>(blocks, kernel.schedule.blocks_per_sm);
    return std::max<std::int64_t>(1, blocks);
}

// What one row of one block comes to.
struct RowCount {
    double bytes = 0;  // of tensors, each once
    double again = 0;
    double operations = 0;  // lanes' instructions
    double specials = 0;
    double loads = 0;
    double block_meetings = 0;
    double cluster_meetings = 0;
};

// Loads of one loop from one tensor are of the same memory, as a rotary embedding's of both halves, unless a row has
// more of it: a load of each of several positions.
void count_loop(const Kernel& kernel, const ColumnLoop& loop, bool fetched, std::set<int>* read, RowCount* count) {
    if (loop.part == ColumnLoop::Part::kEnds) return;  // a handful of columns, beside the others in every respect
    const double lanes = static_cast<double>(loop.columns) / static_cast<double>(kernel.schedule.column_blocks);
    std::map<int, double> here;  // by tensor, the bytes of a row that the loop reads
    for (const Inst& inst : loop.body) {
        const bool moves = inst.kind == InstKind::kLoad || inst.kind == InstKind::kStore;
        if (inst.kind == InstKind::kMap && is_special(inst.op)) count->specials += lanes;
        if (inst.held < 0) count->operations += moves ? lanes / loop.vector : lanes;
        if (!moves || inst.held >= 0 || !kernel.by_row(inst)) continue;
        const bool uniform = inst.access.kind == Access::Kind::kUniform;
        const double accessed = (uniform ? 1 : lanes) * static_cast<double>(size_bytes(inst.dtype));
        const double most = most_bytes(kernel, kernel.tensors[static_cast<std::size_t>(inst.index)]);
        if (inst.kind == InstKind::kStore) {
            count->bytes += std::min(accessed, most);
        } else {
            here[inst.index] = std::min(here[inst.index] + accessed, most);
        }
    }
    for (const auto& [tensor, bytes] : here) (read->insert(tensor).second ? count->bytes : count->again) += bytes;
    const double batches = loop.is_resident() ? 1 : static_cast<double>(ceil_div(loop.iterations, kLoadsAhead));
    if (!here.empty() && !fetched) count->loads += batches;
}

RowCount count_row(const Kernel& kernel) {
    RowCount count;
    std::set<int> read;
    bool fetched =
        kernel.schedule.fetches_ahead() || kernel.walk;  // the first loop's loads are there when the row's turn comes
    for (const Stmt& stmt : kernel.body) {
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) {
            count_loop(kernel, *loop, fetched, &read, &count);
            fetched = false;
        }
        if (!meets(stmt)) continue;
        const bool in_cluster = kernel.cluster_blocks() > 1;
        const bool hidden = in_cluster && kernel.schedule.skew;
        if (in_cluster && !hidden) count.cluster_meetings += std::log2(kernel.cluster_blocks());
        if (!in_cluster && kernel.schedule.threads_per_row > 32) count.block_meetings += 1;
    }
    return count;
}

}  // namespace

CostTerms cost_terms(const Kernel& kernel, const Target& target, std::int64_t extent) {
    if (!target.is_gpu() || kernel.schedule.family == Family::kRowsReduction || extent <= 0) return {};
    const RowCount row = count_row(kernel);
    auto all = static_cast<double>(kernel.schedule.column_blocks);  // rows of blocks
    for (const AxisId axis : kernel.row_axes) {
        const AxisInfo& info = kernel.axis(axis);
        const std::int64_t at_run_time = info.blocks > 0 ? info.blocks : extent;
        all *= static_cast<double>(info.extent == kRuntimeExtent ? at_run_time : info.extent);
    }
    const double clocks = target.sm_count * kClocksPerUs;
    CostTerms terms;
    terms.issue_us = all * row.operations / (clocks * kLanesPerClock);
    terms.special_us = all * row.specials / (clocks * kSpecialLanesPerClock);
    terms.registers = likely_registers(kernel, target);
    terms.blocks_at_once = blocks_at_once(kernel, target, terms.registers);
    const double places = static_cast<double>(terms.blocks_at_once * target.sm_count);
    const double blocks = all / kernel.schedule.rows_per_block;
    const double in_flight = std::min(places, blocks) * kernel.schedule.rows_per_block * (row.bytes + row.again);
    const double lost = std::clamp(1 - static_cast<double>(target.l2_bytes) / in_flight, 0.0, 1.0);
    terms.memory_us = all * (row.bytes + lost * row.again) / (target.bandwidth_gbps * 1e3);
    terms.again_us = all * (1 - lost) * row.again / (target.bandwidth_gbps * 1e3);
    // Blocks that stay have their rows dealt out beforehand; the others come as places become free.
    terms.turns = kernel.schedule.blocks_per_sm > 0 ? std::ceil(blocks / places) : std::max(1.0, blocks / places + 0.5);
    terms.loads = row.loads;
    const bool ahead = kernel.schedule.fetches_ahead() || kernel.schedule.skew || kernel.walk.has_value();
    terms.fetched = ahead ? 1 : 0;
    terms.bare_turns = kernel.cluster_blocks() > 1 && kernel.schedule.blocks_per_sm > 0 && !ahead ? 1 : 0;
    terms.block_meetings = row.block_meetings;
    terms.cluster_meetings = row.cluster_meetings;
    return terms;
}

double predicted_us(const CostTerms& terms) {
    if (terms.turns == 0) return 0;
    const Constants& c = kFitted;
    const double memory_us = c.memory * terms.memory_us + c.again * terms.again_us;
    const double issue_us = c.issue * terms.issue_us + c.special * terms.special_us;
    const double turn_us = c.load_us * terms.loads + c.fetched_us * terms.fetched + c.bare_us * terms.bare_turns +
                           c.block_us * terms.block_meetings + c.cluster_us * terms.cluster_meetings;
    // A block by itself: it waits for its loads, and computes then. Others that share its multiprocessor do meanwhile.
    const double own_us = (memory_us * (1 - terms.fetched) + issue_us) / static_cast<double>(terms.blocks_at_once);
    const double serial_us = terms.turns * turn_us + c.serial * own_us;
    const double limits =
        std::pow(memory_us, c.overlap) + std::pow(issue_us, c.overlap) + std::pow(serial_us, c.overlap);
    return c.launch_us + std::pow(limits, 1 / c.overlap);
}

}  // namespace rowjit
