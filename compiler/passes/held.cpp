// Loads that are the same for every row, of weights: a block that stays for many rows makes them once and holds them in
// registers, as far as registers reach. Left in the loop they are answered by a cache, but each row waits for them
// between its own values and its reduction.
#include <algorithm>

#include "compiler/passes/passes.h"

namespace rowjit {
namespace {

// What a block holds: a load of every loop over those axes that reads there.
struct Held {
    std::vector<AxisId> axes;
    ColumnLoop::Part part;
    int tensor;
    std::vector<Coord> coords;

    bool operator==(const Held&) const = default;
};

}  // namespace

bool is_same_for_all_rows(const Kernel& kernel, const Inst& inst) {
    if (inst.kind != InstKind::kLoad || inst.turn > 0 || kernel.by_row(inst)) return false;
    const KernelTensor& tensor = kernel.tensors[static_cast<std::size_t>(inst.index)];
    const bool whole = inst.access.kind == Access::Kind::kVector || inst.access.kind == Access::Kind::kSplat;
    return whole && !tensor.written && !tensor.aliased;
}

Kernel hold_shared_loads(Kernel kernel, const Target& target) {
    if (!target.is_gpu() || kernel.schedule.blocks_per_sm == 0) return kernel;
    std::vector<Held> held;
    for (Stmt& stmt : kernel.body) {
        auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr || !loop->is_resident()) continue;
        for (Inst& inst : loop->body) {
            if (!is_same_for_all_rows(kernel, inst)) continue;
            const Held place{loop->axes, loop->part, inst.index, inst.coords};
            const auto known = std::find(held.begin(), held.end(), place);
            inst.held = static_cast<int>(known - held.begin());
            if (known != held.end()) continue;
            if (spare_registers(kernel, target) >= kHeldMargin) {
                held.push_back(place);
            } else {
                inst.held = -1;
            }
        }
    }
    return kernel;
}

}  // namespace rowjit
