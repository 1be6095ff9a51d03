// The bytes of a group and the time that the planner predicts for it.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <ranges>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "compiler/plan/group_costs.h"
#include "compiler/plan/plan.h"

namespace rowjit {
namespace {

constexpr double kCpuLaunchUs = 5;
constexpr double kPlanningParts = 256;  // of a sum over rows: about a block or two on each multiprocessor

// Ten rounds of Philox for four neighbours are twenty wide multiplications, at half the rate of plain ones.
constexpr double kUniformSpecials = 2;

// Angles are reduced exactly: rope_positions of 32 heads of 128 bf16 columns took 0.183 ms (H200), of which memory
// 0.064.
constexpr double kTrigonometricSpecials = 5;

}  // namespace

double elements(const GraphData& graph, const Node& node, double rows) {
    double count = 1;
    double shares = 0;  // of the rows, as the power that gives an axis's extent
    const auto positions = [&] { return count * (shares == 0 ? 1 : std::pow(rows, std::min(shares, 1.0))); };
    for (const AxisId id : node.axes) {
        const AxisInfo& axis = graph.axis(id);
        if (axis.is_slots) {
            count *= std::max(1.0, kPlanningParts / positions());  // of each outer position
        } else if (axis.blocks > 0) {
            count *= static_cast<double>(axis.blocks);
        } else if (axis.extent != kRuntimeExtent) {
            count *= static_cast<double>(axis.extent);
        } else if (axis.follows.empty()) {
            shares += 1.0 / axis.beside;
        } else {
            for (const AxisId followed : axis.follows) {
                const AxisInfo& of = graph.axis(followed);
                if (of.extent == kRuntimeExtent) {
                    shares += 1.0 / of.beside;
                } else {
                    count *= static_cast<double>(of.extent);
                }
            }
        }
    }
    return positions();
}

bool is_trigonometric(Op op) { return op == Op::kSin || op == Op::kCos; }

double specials_of(Op op) {
    if (is_trigonometric(op)) return kTrigonometricSpecials;
    if (op == Op::kUniform) return kUniformSpecials;
    return op == Op::kDiv || (op >= Op::kSqrt && op <= Op::kCos) ? 1 : 0.1;
}

namespace {

// By node: the elements that a kernel computes of it. A value with columns that several others share is computed for
// each.
std::vector<double> elements_computed(const GraphData& group, double rows) {
    std::vector<double> count(static_cast<std::size_t>(group.size()), 0);
    for (const NodeId id : std::views::reverse(group.live_nodes())) {
        const Node& node = group.node(id);
        double& own = count[static_cast<std::size_t>(id)];
        own = std::max(own, elements(group, node, rows));
        if (node.kind != NodeKind::kMap && node.kind != NodeKind::kCast) continue;
        for (const NodeId arg : node.args) {
            double& shared = count[static_cast<std::size_t>(arg)];
            if (!group.column_axes(group.node(arg)).empty()) shared = std::max(shared, own);
        }
    }
    return count;
}

// What a row has one of, each thread of the row computes.
double threads_of_row(const GraphData& group) {
    constexpr std::int64_t kColumnsPerThread = 16;
    std::int64_t columns = 1;
    for (const NodeId id : group.live_nodes()) {
        if (group.node(id).kind != NodeKind::kInput) columns = std::max(columns, group.column_count(group.node(id)));
    }
    return static_cast<double>(std::clamp<std::int64_t>(columns / kColumnsPerThread, 1, 256));
}

// A search for each column of a row is a chain of loads, each lane's of lines of its own, and takes as long as so many
// specials: of 16384 rows and 16 columns 7 us (H200). Two results of one search are so one kernel, where one of them
// and another search, which only looked as cheap, had been.
constexpr double kSearchSpecials = 64;

// A vector's lanes look through the positions of a sum together, a warp's lanes at one each: eight instructions for as
// many columns, of which sixteen are a special.
constexpr double kSumWhereSpecials = 1. / 256;

}  // namespace

double group_bytes(const GraphData& group, double rows) {
    double bytes = 0;
    std::map<std::string, double> read;  // an input gathered from counts what is gathered, at most the whole
    for (const NodeId id : group.live_nodes()) {
        const Node& node = group.node(id);
        const double size = elements(group, node, rows) * static_cast<double>(size_bytes(node.dtype));
        if (node.kind == NodeKind::kInput) read.try_emplace(node.name, 0);
        if (node.kind == NodeKind::kIndex) {
            const Node& source = group.node(node.args[0]);
            const double whole = elements(group, source, rows) * static_cast<double>(size_bytes(source.dtype));
            read[source.name] = std::min(whole, read[source.name] + size);
        }
        for (const NodeId arg : node.args) {
            const Node& source = group.node(arg);
            const bool indexed = node.kind == NodeKind::kIndex && arg == node.args[0];
            if (source.kind != NodeKind::kInput || indexed) continue;
            read[source.name] = elements(group, source, rows) * static_cast<double>(size_bytes(source.dtype));
        }
    }
    for (const OutputInfo& output : group.outputs()) {
        const Node& node = group.node(output.node);
        const double size = elements(group, node, rows) * static_cast<double>(size_bytes(node.dtype));
        if (node.kind == NodeKind::kInput) read[node.name] = size;
        if (output.slots >= 0) {
            Node parts{.axes = output.outer};
            parts.axes.push_back(output.slots);
            bytes += elements(group, parts, rows) * static_cast<double>(group.column_count(node)) *
                     static_cast<double>(size_bytes(output.parts_dtype));
        } else {
            bytes += output.accumulate ? 2 * size : size;
        }
    }
    for (const auto& [name, size] : read) bytes += size;
    return bytes;
}

double predicted_us(const GraphData& group, const Target& target, double rows) {
    double specials = 0;  // exp, log, division …: the throughput that runs out first on narrow data
    double of_rows = 0;   // likewise, of what all threads of a row compute, and wait for
    const std::vector<double> computed_elements = elements_computed(group, rows);
    const double row_threads = target.is_gpu() ? threads_of_row(group) : 1;
    for (const NodeId id : group.live_nodes()) {
        const Node& node = group.node(id);
        if (node.kind == NodeKind::kSearch && !group.column_axes(node).empty())
            specials += computed_elements[static_cast<std::size_t>(id)] * kSearchSpecials;
        if (node.kind == NodeKind::kSumWhere) {
            const auto positions = static_cast<double>(group.axis(node.reduced[0]).extent);
            specials += computed_elements[static_cast<std::size_t>(id)] * positions * kSumWhereSpecials;
        }
        if (node.kind != NodeKind::kMap) continue;
        const double once = computed_elements[static_cast<std::size_t>(id)] * specials_of(node.op);
        const bool repeated = row_threads > 1 && group.column_axes(node).empty();
        (repeated ? of_rows : specials) += once * (repeated ? row_threads : 1);
    }
    const double memory_us = group_bytes(group, rows) / (target.bandwidth_gbps * 1e3);
    // 16 special-function lanes per multiprocessor at about 1.7 GHz. A CPU core computes about four vectorised results
    // a nanosecond: silu of bf16, an exponential and a division, 4.6 elements in cache with AVX-512 and 3.2 with AVX2.
    const double per_us = target.is_gpu() ? target.sm_count * 16 * 1.7e3 : target.sm_count * 4e3;
    const double launch_us = target.is_gpu() ? kLaunchUs : kCpuLaunchUs;
    return launch_us + std::max(memory_us, specials / per_us) + of_rows / per_us;
}

}  // namespace rowjit
