// Rows that lie side by side in memory, and the columns of each apart: a layer norm over the channels of a picture
// whose pixels come last, a softmax over the steps of a sequence for each of its features. A warp whose lanes shared a
// row would take one element of every sector; so neighbouring threads take neighbouring rows, and a row's threads meet
// in shared memory. H100, % of copy with lanes along the columns and so: a layer norm of 96 bf16 channels of 3136
// pixels 65 and 94, of 1024 pixels of 64 channels 7 and 83, of 196 pixels of 768 channels 97; a softmax over 64 f32
// slots of 1024 places 34 and 98, over 1024 steps of 512 bf16 features 7 and 80.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/floor_div.h"
#include "compiler/schedule/row_schedules.h"

namespace rowjit::reduced_rows {
namespace {

constexpr std::int64_t kSectorBytes = 32;
constexpr std::int64_t kLeastLanes = 4;  // of a CPU's vector, along the innermost row axis alone
// Of a thread in registers, of all tensors together. H100, ms of the layer norms above with 24, 48, 96 columns each:
// 0.112, 0.109, 0.182 (shared memory 0.125); with 25, 49 0.107, 0.107; a softmax over 64 slots with 16, 32, 64 0.175,
// 0.177, 0.182; cross-entropy of 19 classes in one thread 0.137, in two 0.194, in four 0.229.
constexpr std::int64_t kColumnsEach = 52;
// Of one tensor's rows that would take sixteen threads so, where eight have room for twice as many rows beside each
// other: an instance norm of 784 bf16 pixels takes an H200 0.126 ms with eight, 0.140 with sixteen; but the derivative
// of a norm of 384 f32 channels 0.144 and 0.115.
constexpr std::int64_t kColumnsOfEight = 104;
// Of sixteen threads of one tensor, and of all tensors. H200, a softmax over 2048 steps, 128 each, 0.272 ms, in shared
// memory 0.227; but its derivative over 1024, 64 each of two tensors, 0.171, and 0.223.
constexpr std::int64_t kMostColumnsEach = 64;
constexpr std::int64_t kMostOfAll = 128;

constexpr int kMostOnRow = 16;  // threads that share a row in registers, but where nothing else has room for it

Schedule across(Residency residency, int threads, int rows) {
    Schedule s = row_schedule(residency, threads, 1);
    s.rows_per_block = rows;
    s.across = true;
    return s;
}

int threads_on(const GroupFacts& facts) {
    const bool is_one = facts.streams <= 1;
    if (is_one && facts.columns > kMostOnRow / 2 * kColumnsEach && facts.columns <= kMostOnRow / 2 * kColumnsOfEight)
        return kMostOnRow / 2;
    int threads = 1;
    while (threads < kMostOnRow && threads * kColumnsEach < facts.columns * std::max(1, facts.streams)) threads *= 2;
    return threads;
}

// Rows of a block: as many as 128 threads have, of which neighbours fill sectors. Where a row takes sixteen threads a
// block of half as many rows leaves room for another.
int rows_of(int threads) { return std::max(threads < kMostOnRow ? 32 : 16, kBlockThreads / threads); }

// On the CPU whole runs of neighbours, or equal parts of one that are whole vectors, so that a row's lane is the same
// whichever thread takes it.
int rows_of_block(std::int64_t neighbours) {
    constexpr std::int64_t kMost = 1024;
    if (neighbours <= kMost) return static_cast<int>(kMost / neighbours * neighbours);
    std::int64_t part = kMost;
    while (part > kMostLanesAcross && neighbours % part != 0) part -= kMostLanesAcross;
    return static_cast<int>(neighbours % part == 0 ? part : neighbours);
}

}  // namespace

std::vector<Schedule> rows_across(const GroupFacts& facts, const Target& target) {
    const bool is_run = facts.neighbours * facts.promoted_read_bytes >= kSectorBytes;
    if (!facts.columns_apart || !is_run || facts.sums_rows() || facts.steps || facts.greatest > 0) return {};
    if (!target.is_gpu()) {
        if (facts.promoted_columns < kLeastLanes) return {};
        const int rows = rows_of_block(facts.promoted_columns);
        return {across(Residency::kRegisters, 1, rows), across(Residency::kReload, 1, rows)};
    }
    const std::int64_t of_all = facts.columns * std::max(1, facts.streams);
    const int threads = threads_on(facts);
    std::vector<Schedule> schedules;
    const auto offer = [&](Residency residency, int on_row, int rows) {
        if (on_row <= facts.columns) schedules.push_back(across(residency, on_row, rows));
    };
    const auto offer_both = [&](Residency residency, int rows, int or_else) {
        offer(residency, kWarpThreads, rows);
        offer(residency, kWarpThreads, or_else);
    };
    const auto in_registers = [&](int on_row, int rows) {
        const std::int64_t each = ceil_div(facts.columns, on_row);
        const bool fits = each <= kMostColumnsEach || (on_row < kMostOnRow && each <= kColumnsOfEight);
        if (fits && ceil_div(of_all, on_row) <= kMostOfAll) offer(Residency::kRegisters, on_row, rows);
    };
    in_registers(threads, rows_of(threads));
    in_registers(threads, 2 * rows_of(threads));
    if (threads > 1) in_registers(threads / 2, rows_of(threads / 2));
    if (threads < kMostOnRow) in_registers(threads * 2, rows_of(threads * 2));
    // What registers have no room for lies in shared memory: a softmax over 4096 bf16 steps takes 0.341 ms so, 0.430
    // read again (H100); several tensors leave room for too few rows there: its derivative over 2048 0.340, and 0.273
    // (H200). On as many threads as meet in a warp: a thread adds up its columns one after the other, and the sum of 75
    // exponentials in one thread was 3.2 units off where eager's is 1.8.
    const bool reads_again = facts.streams > 1;
    if (!reads_again) offer_both(Residency::kShared, 16, 32);
    offer_both(Residency::kReload, 32, 16);
    if (reads_again) offer_both(Residency::kShared, 16, 32);
    in_registers(threads * 2, rows_of(threads * 2));
    offer(Residency::kReload, threads, rows_of(threads));
    return schedules;
}

// Beside sums over rows blocks stay, and a thread has all of a row's few columns. H200, the derivatives of tables that
// sixteen heads of 128 bf16 columns are rotated by, and of their norm's weight: 0.0764 ms so, 0.113 with two threads on
// a row.
std::vector<Schedule> rows_beside_sums(const GroupFacts& facts, const Target& target, int vector) {
    constexpr std::int64_t kMostOfThread = 32;
    constexpr int kAtOnce = 4;
    const bool is_run = facts.neighbours * facts.promoted_read_bytes >= kSectorBytes;
    const bool are_few = facts.columns <= kMostOfThread;
    if (target.backend != Backend::kCuda || !facts.columns_apart || !is_run || !facts.sums_rows() || !are_few)
        return {};
    Schedule s = row_schedule(Residency::kRegisters, 1, std::min(vector, kAtOnce));
    return {staying_apart(s, kThreadsAlone / s.rows_per_block)};
}

}  // namespace rowjit::reduced_rows
