// Places in shared memory for the loads that a schedule with stages copies ahead: those of the row's first column loop
// and of the row itself before it.
//
// Each thread copies what it will read itself, so no barrier stands between a copy and its use: only the wait for the
// thread's own copies. A copy moves 4, 8 or 16 bytes; a load of another size stays where it is. Loads that go through
// registers a row ahead (Schedule::prefetch) hold one row in flight and as many registers as it has; stages hold
// several, and none.
#include <algorithm>

#include "compiler/passes/passes.h"

namespace rowjit {
namespace {

constexpr std::int64_t kStageAlignmentBytes = 16;

bool is_copied(std::int64_t bytes) { return bytes == 4 || bytes == 8 || bytes == 16; }

// A thread's bytes of a load, in each iteration of its loop; 0 where it is not one vector or element of them.
std::int64_t bytes_of(const Inst& load, const ColumnLoop& loop) {
    const auto element = static_cast<std::int64_t>(size_bytes(load.dtype));
    switch (load.access.kind) {
        case Access::Kind::kVector: return element * loop.vector;
        case Access::Kind::kSplat: return element;
        case Access::Kind::kGather: return loop.vector == 1 ? element : 0;
        case Access::Kind::kUniform:
        case Access::Kind::kUnknown: return 0;
    }
    return 0;
}

// Whether a stage has an element for each column, in its order.
bool is_copied_whole(const Inst& load, const ColumnLoop& loop) {
    const bool whole = load.access.kind == Access::Kind::kVector || loop.vector == 1;
    return load.stage_offset_bytes >= 0 && whole && load.access.lanes.empty();
}

class Stages {
  public:
    explicit Stages(Kernel* kernel) : kernel_(*kernel) {}

    void run() {
        copy_ahead();
        leave_in_stages();
    }

  private:
    void copy_ahead() {
        const auto is_loop = [](const Stmt& stmt) { return std::holds_alternative<ColumnLoop>(stmt.node); };
        const auto first = std::find_if(kernel_.body.begin(), kernel_.body.end(), is_loop);
        if (first == kernel_.body.end()) return;
        auto& loop = std::get<ColumnLoop>(first->node);
        if (!loop.is_resident()) return;
        for (Inst& inst : loop.body) place(&inst, bytes_of(inst, loop), loop.iterations);
        if (kernel_.stage_bytes == 0) return;
        std::for_each(kernel_.body.begin(), first, [&](Stmt& before) {
            auto* inst = std::get_if<Inst>(&before.node);
            if (inst != nullptr) place(inst, static_cast<std::int64_t>(size_bytes(inst->dtype)), 1);
        });
        kernel_.stages_offset_bytes =
            (kernel_.shared_bytes + kStageAlignmentBytes - 1) / kStageAlignmentBytes * kStageAlignmentBytes;
        kernel_.shared_bytes = kernel_.stages_offset_bytes + kernel_.schedule.stages * kernel_.stage_bytes;
    }

    // A slot that keeps what a copy brought lies in its stage; what no copy brought is kept in registers.
    void leave_in_stages() {
        for (const Stmt& stmt : kernel_.body) {
            const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
            if (loop == nullptr) continue;
            for (const Inst& keep : loop->body) {
                if (keep.kind != InstKind::kKeep) continue;
                Slot& slot = kernel_.slots[static_cast<std::size_t>(keep.index)];
                if (slot.residency != Residency::kStages) continue;
                const auto load = std::find_if(loop->body.begin(), loop->body.end(),
                                               [&](const Inst& inst) { return inst.id == keep.operands[0]; });
                if (is_copied_whole(*load, *loop)) {
                    slot.shared_offset_bytes = load->stage_offset_bytes;
                } else {
                    slot.residency = Residency::kRegisters;
                }
            }
        }
    }

    void place(Inst* inst, std::int64_t bytes, std::int64_t iterations) {
        if (!is_copied(bytes) || !kernel_.can_fetch(*inst)) return;
        inst->stage_offset_bytes = kernel_.stage_bytes;
        const std::int64_t all = iterations * kernel_.block_threads() * bytes;
        kernel_.stage_bytes += (all + kStageAlignmentBytes - 1) / kStageAlignmentBytes * kStageAlignmentBytes;
    }

    Kernel& kernel_;
};

}  // namespace

std::int64_t place_in_stage(const Kernel& kernel, const Inst& inst) {
    if (inst.kind != InstKind::kKept) return inst.stage_offset_bytes;
    const Slot& slot = kernel.slots[static_cast<std::size_t>(inst.index)];
    return slot.residency == Residency::kStages ? slot.shared_offset_bytes : -1;
}

Kernel place_stages(Kernel kernel, const Target& /*target*/) {
    if (kernel.schedule.stages > 0) Stages(&kernel).run();
    return kernel;
}

}  // namespace rowjit
