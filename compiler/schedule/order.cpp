// Passes of the order of ids (plan/digit_orders.h), and the counts that they go by. There is one schedule, since
// nothing of one can be divided otherwise: a kernel that counts and the one that orders by it must have the same ids in
// a block.
#include <fmt/format.h>

#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "compiler/plan/digit_orders.h"
#include "compiler/schedule/choose.h"
#include "compiler/schedule/lower.h"

namespace rowjit {
namespace {

// Of a block's eight warps each has counts of its own: of more they do not fit the shared memory that a kernel has
// without asking, and with fewer each would come round to more ids, one step after the other.
constexpr int kBlockThreads = 256;

class OrderLowering {
  public:
    OrderLowering(const Group& group, const Schedule& schedule, const Target& target)
        : graph_(*group.graph), root_(graph_.node(graph_.outputs().at(0).node)), is_gpu_(target.is_gpu()) {
        RJ_CHECK(graph_.outputs().size() == 1 && root_.orders(), "kernel {} does more than put ids in order",
                 group.name);
        kernel_.name = group.name;
        kernel_.schedule = schedule;
        kernel_.axes = graph_.axes();
    }

    Kernel run(const Target& target) {
        const IdsInMemory ids = ids_in_memory(graph_, root_.args[0]).value();
        pass_.ids = read(ids.input);
        const AxisId along = graph_.node(ids.input).axes[0];
        const std::vector<std::int64_t>& strides = graph_.node(ids.input).column_strides;
        RJ_CHECK(ids.columns.size() == strides.size(), "kernel {}: of {} columns {} have a stride", kernel_.name,
                 ids.columns.size(), strides.size());
        for (std::size_t i = 0; i < strides.size(); ++i) pass_.offset += ids.columns[i] * strides[i];
        std::size_t operand = 1;
        if (root_.digit.shift > 0) pass_.before = read(root_.args[operand++]);
        const bool is_order = root_.kind == NodeKind::kOrder;
        if (is_order && is_gpu_) pass_.counts = read(root_.args[operand++]);
        (is_order ? pass_.result : pass_.counts) = written();
        pass_.rows = root_.axis;
        pass_.digit = root_.digit;
        kernel_.row_axes = {along};
        kernel_.lanes_axis = along;
        kernel_.most_row_blocks = is_gpu_ ? most_blocks() : 1;
        if (is_gpu_) {
            const std::int64_t warps = kernel_.schedule.rows_per_block / target.warp_size;
            kernel_.shared_bytes = (warps * root_.digit.kinds() + warps) * std::int64_t{sizeof(std::uint32_t)};
        }
        declare_arguments();
        kernel_.order = pass_;
        return std::move(kernel_);
    }

  private:
    int read(NodeId input) {
        const Node& node = graph_.node(input);
        kernel_.tensors.push_back({node.name, node.dtype, node.axes, node.column_strides, true, false, false});
        return static_cast<int>(kernel_.tensors.size()) - 1;
    }

    int written() {
        kernel_.tensors.push_back({graph_.outputs()[0].name, root_.dtype, root_.axes, {}, false, true, false});
        return static_cast<int>(kernel_.tensors.size()) - 1;
    }

    // As many as there are counts of.
    std::int64_t most_blocks() const {
        const KernelTensor& counts = kernel_.tensors[static_cast<std::size_t>(pass_.counts)];
        return graph_.axis(counts.axes[0]).extent;
    }

    void declare_arguments() {
        using Kind = KernelArgument::Kind;
        std::set<AxisId> extents = {kernel_.row_axes[0], pass_.rows};
        for (std::size_t i = 0; i < kernel_.tensors.size(); ++i) {
            const KernelTensor& tensor = kernel_.tensors[i];
            kernel_.arguments.push_back({Kind::kPointer, static_cast<int>(i), -1, tensor.name});
            if (!graph_.axis(tensor.axes[0]).is_row) continue;
            kernel_.arguments.push_back(
                {Kind::kStride, static_cast<int>(i), tensor.axes[0], fmt::format("{}_stride", tensor.name)});
        }
        for (const AxisId axis : extents) {
            if (graph_.axis(axis).extent != kRuntimeExtent) continue;
            kernel_.arguments.push_back({Kind::kExtent, -1, axis, fmt::format("{}_extent", graph_.axis(axis).name)});
        }
    }

    const GraphData& graph_;
    const Node& root_;
    const bool is_gpu_;
    Kernel kernel_;
    OrderPass pass_;
};

}  // namespace

FamilyOffer offer_order(const Target& target) {
    Schedule schedule;
    schedule.family = Family::kOrder;
    if (target.is_gpu()) {
        schedule.rows_per_block = kBlockThreads;
        schedule.vector = static_cast<int>(kIdsOfOrderBlock / kBlockThreads);
    }
    return {Family::kOrder, {schedule}, ""};
}

Kernel lower_order(const Group& group, const Schedule& schedule, const Target& target) {
    return OrderLowering(group, schedule, target).run(target);
}

}  // namespace rowjit
