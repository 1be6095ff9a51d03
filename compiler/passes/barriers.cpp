// Shared scratch and the barriers that protect it.
//
// An all-reduce over more than a warp writes one state per warp to shared scratch, waits, and reads them all. The wait
// inside it orders its own writes before its own reads; nothing orders its reads before the next writes to the same
// region. With two or more all-reduces in a row of the loop, giving each its own region is enough: between two uses of
// a region every thread passes another all-reduce's wait. With a single one, the loop over rows comes back to the same
// region with no wait between, so a barrier closes the row.
#include <algorithm>

#include "base/check.h"
#include "compiler/passes/passes.h"

namespace rowjit {

int state_bytes(const Accumulator& accumulator) {
    const int value = static_cast<int>(size_bytes(accumulator.dtype));
    switch (accumulator.monoid) {
        case Monoid::kSum:
        case Monoid::kMax:
        case Monoid::kMin: return value;
        case Monoid::kMaxSumExp: return 2 * value;
        case Monoid::kWelford: return 3 * value;  // count, mean, sum of squares
    }
    RJ_CHECK(false, "monoid {}", static_cast<int>(accumulator.monoid));
}

Kernel place_barriers(Kernel kernel, const Target& target) {
    kernel.shared_bytes = kernel.shared_bytes_per_row * kernel.schedule.rows_per_block;
    if (!target.is_gpu() || kernel.schedule.threads_per_row <= target.warp_size) return kernel;
    std::int64_t region_bytes = 0;
    for (Stmt& stmt : kernel.body) {
        auto* reduce = std::get_if<AllReduce>(&stmt.node);
        if (reduce == nullptr) continue;
        reduce->scratch = kernel.scratch_regions++;
        std::int64_t state = 0;
        for (const int index : reduce->accumulators) {
            const int bytes = state_bytes(kernel.accumulators[static_cast<std::size_t>(index)]);
            state += (bytes + 15) / 16 * 16;  // each state starts aligned, whatever the mix of dtypes
        }
        region_bytes = std::max(region_bytes, state * (kernel.block_threads() / target.warp_size));
    }
    if (kernel.scratch_regions == 1) kernel.body.push_back({Barrier{}});
    kernel.shared_bytes += kernel.scratch_regions * region_bytes;
    return kernel;
}

}  // namespace rowjit
