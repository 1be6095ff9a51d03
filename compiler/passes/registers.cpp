// What a resident row costs in registers. Compared with NVRTC 13's counts for the library's operations on sm_90a: kept
// values are counted exactly, later phases' loads (weights) are issued in batches of so many registers a tensor, and
// kWorkingSet covers addresses, accumulators and a vector's lanes. A narrow value kept one column at a time takes a
// whole register. tests/compiler/compile_everything_test.cpp holds the estimate to what the toolchains make.
#include <algorithm>

#include "compiler/passes/passes.h"

namespace rowjit {
namespace {

constexpr std::int64_t kWorkingSet = 40;
constexpr std::int64_t kCudaBatch = 16;
// clang issues more of an unrolled loop's loads before their first use, each with a 64-bit address: gfx90a spilled a
// layer norm of 32 f32 columns a thread in the 128 registers that blocks of 1024 threads have.
constexpr std::int64_t kHipBatch = 32;
constexpr std::int64_t kMostRegisters = 255;
constexpr std::int64_t kRegisterBytes = 4;

std::int64_t registers_of(Dtype dtype, const ColumnLoop& loop) {
    const auto bytes = static_cast<std::int64_t>(size_bytes(dtype));
    const std::int64_t per_access = (loop.vector * bytes + kRegisterBytes - 1) / kRegisterBytes;
    return loop.iterations * per_access;
}

}  // namespace

int estimated_registers(const Kernel& kernel, const Target& target) {
    const std::int64_t batch = target.backend == Backend::kHip ? kHipBatch : kCudaBatch;
    std::int64_t kept = 0;
    for (std::size_t i = 0; i < kernel.carried.size(); ++i) kept += carried_lanes(kernel, static_cast<int>(i));
    std::int64_t most = kept;
    bool fetching = kernel.schedule.prefetch;  // the first loop's loads are held a row longer
    for (const Stmt& stmt : kernel.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr || !loop->unrolled) continue;
        std::int64_t batches = 0;
        std::int64_t shared = 0;  // of what all rows read
        for (const Inst& inst : loop->body) {
            const bool slot_in_registers =
                inst.kind == InstKind::kKeep &&
                kernel.slots[static_cast<std::size_t>(inst.index)].residency == Residency::kRegisters;
            if (slot_in_registers) kept += registers_of(inst.dtype, *loop);
            if (inst.kind == InstKind::kLoad)
                (kernel.by_row(inst) ? batches : shared) += std::min(batch, registers_of(inst.dtype, *loop));
            if (inst.kind == InstKind::kLoad && fetching) kept += registers_of(inst.dtype, *loop);
        }
        fetching = false;
        if (target.backend == Backend::kCuda) shared = std::min(shared, batch);
        most = std::max(most, kept + batches + shared);
    }
    return static_cast<int>(most + kWorkingSet);
}

int register_limit(const Kernel& kernel, const Target& target) {
    const std::int64_t blocks = std::max(1, kernel.schedule.min_blocks_per_sm);
    const std::int64_t waves = (kernel.block_threads() + target.warp_size - 1) / target.warp_size;
    return static_cast<int>(std::min(kMostRegisters, target.registers_per_sm / (waves * target.warp_size * blocks)));
}

}  // namespace rowjit
