// Rows of an odd number of columns beside sums of them. A thread has the same columns of every row, which begin
// anywhere, and loads each by itself: narrow ones take as many registers as wide ones do.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/floor_div.h"
#include "compiler/schedule/row_schedules.h"

namespace rowjit::reduced_rows {

// H200, derivatives with those of their weights, in ms as they were taken before and so: rms_norm of 1537 bf16 columns
// 0.151 and 0.102, of 4097 0.235 and 0.144, of 6001 0.218 and 0.0976, of 12345 0.273 and 0.123, of 50257 0.333 and
// 0.180 (in blocks of 512 threads 0.221), of 4097 f32 columns 0.165 and 0.102; layer_norm of 4097 bf16 columns 0.416
// and 0.142, of 50257 0.353 and 0.184 (of 256 threads 0.203), of 4097 f32 columns 0.229 and 0.129; dynamic_tanh of 4097
// bf16 columns 0.714 and 0.138, of f32 0.351 and 0.124.
std::vector<Schedule> summed_singly(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kLeast = 1024;
    constexpr std::int64_t kShort = 2048;
    constexpr std::int64_t kHalves = 4224;
    constexpr std::int64_t kMostOfBlock = 6400;
    constexpr std::int64_t kColumnsInCluster = 13;  // of a thread
    constexpr std::int64_t kManyParts = 8;
    if (target.backend != Backend::kCuda || vector > 1 || facts.sums_of_columns == 0 || facts.columns < kLeast)
        return {};
    const auto staying = [&](int threads, std::int64_t parts, int blocks, std::span<const Ahead> ways) {
        Schedule s = row_schedule(Residency::kRegisters, threads, 1);
        s.column_blocks = parts;
        return ahead_of(staying_apart(s, blocks), ways, target);
    };
    constexpr std::array kRegistersFirst = {kRegisters, Ahead{}};
    constexpr std::array kAtOnce = {Ahead{}};
    if (facts.columns <= kShort) return staying(128, 1, 4, kRegistersFirst);
    const bool in_parts = facts.widest_bytes >= 4 && target.clusters;
    if (facts.columns <= kMostOfBlock && in_parts) {
        const bool meets_over_both = facts.meets && facts.sums_of_columns > 1;
        return meets_over_both ? staying(kThreadsAlone, 1, 1, kRegistersFirst)
                               : staying(128, facts.columns <= kHalves ? 2 : 4, 4, kAtOnce);
    }
    if (facts.columns <= kMostOfBlock) return staying(256, 1, 2, kRegistersFirst);
    if (!target.clusters) return {};
    std::int64_t parts = 2;
    while (parts < kMostClusterBlocks && ceil_div(facts.columns, parts * kThreadsAlone) > kColumnsInCluster) parts *= 2;
    const bool in_halves = parts >= kManyParts && parts < kMostClusterBlocks && facts.sums_of_columns == 1;
    return in_halves ? staying(kThreadsAlone / 2, 2 * parts, 2, std::array{kSkewed, Ahead{}})
                     : staying(kThreadsAlone, parts, 1, std::array{kSkewed, Ahead{}});
}

}  // namespace rowjit::reduced_rows
