// Sums over positions, of those that are a vector's columns: the lanes of a row that lie side by side in a warp look
// through the positions together, each at one of them, and take what is theirs in the positions' order.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "compiler/emit/gpu_column_emitter.h"

namespace rowjit::gpu_emit {

// What is looked through stands before the loop. Of a value that is one for all lanes, or whose lanes' places do not
// follow one another, each lane looks for itself.
void ColumnEmitter::find_sums_where() {
    for (const Inst& inst : loop_.body) {
        if (inst.kind == InstKind::kSumWhere && lane_step(inst.operands[0]) == 1)
            sums_where_[&inst] = {"", scope_.looked_through(inst, inside_)};
    }
}

void ColumnEmitter::declare_sums_where() {
    const Kernel& kernel = scope_.kernel();
    const int threads = kernel.schedule.threads_per_row;
    const int warp = scope_.target().warp_size;
    const bool side_by_side = loop_.axes.size() == 1 && loop_.part != ColumnLoop::Part::kEnds && !kernel.product;
    const bool even = std::has_single_bit(static_cast<unsigned>(threads)) || threads % warp == 0;
    const int team = side_by_side && even ? std::min(threads, warp) : 1;
    for (auto& [inst, sums] : sums_where_) {
        sums.name = scope_.names().fresh(inst->label + "_lanes");
        out_.line(
            fmt::format("rj_sums_where<{}, {}, {}> {};", gpu_value_type(inst->dtype), team, loop_.vector, sums.name));
    }
}

}  // namespace rowjit::gpu_emit
