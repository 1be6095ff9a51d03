#include "compiler/schedule/row_schedules.h"

#include <bit>

namespace rowjit::reduced_rows {

Schedule row_schedule(Residency residency, int threads, int vector) {
    Schedule s;
    s.family = Family::kRowReduction;
    s.residency = residency;
    s.threads_per_row = threads;
    s.rows_per_block = std::max(1, kBlockThreads / threads);
    s.vector = vector;
    return s;
}

Schedule sharing(Schedule s, int threads_per_sm) {
    s.min_blocks_per_sm = std::max(1, threads_per_sm / (s.threads_per_row * s.rows_per_block));
    return s;
}

Schedule staying_apart(Schedule s, std::int64_t blocks_per_sm) {
    s.min_blocks_per_sm = s.blocks_per_sm = static_cast<int>(blocks_per_sm);
    return s;
}

bool in_small_parts(const GroupFacts& facts) {
    const bool reads_again = facts.streams == 1 && facts.reduces_tables;
    return !facts.sums_rows() && (!facts.shares_columns || reads_again);
}

bool reads_several_narrow(const GroupFacts& facts) {
    return facts.phases == 2 && facts.column_inputs > 1 && facts.widest_bytes < 4;
}

// A number of the row is a load of its own, and what it is the index of another: a block that ends has nothing else in
// flight meanwhile. H200, cross-entropy with its gradient of 32000 bf16 classes: 0.322 ms in clusters that stay and
// fetch ahead, 0.397 in those that end; of 65536 0.348, 0.426.
bool waits_for_numbers(const GroupFacts& facts) { return facts.reads_numbers && facts.phases > 2; }

// Nor do many blocks of several tensors' rows share a multiprocessor, so that one loads while another meets: kl_div
// with its gradient of 128256 bf16 classes takes 1.54 ms in clusters that stay and fetch ahead, 1.74 in those that end.
bool waits_alone(const GroupFacts& facts) {
    const bool of_several = facts.column_inputs > 1 && !facts.shares_columns;
    return waits_for_numbers(facts) || (in_small_parts(facts) && facts.phases > 2 && of_several);
}

// Whether any column is in memory.
bool has_columns(const GroupFacts& facts) { return facts.column_inputs > 0 || facts.stores_columns; }

bool computes_long(const GroupFacts& facts) {
    constexpr int kLongMaps = 8;
    return facts.maps >= kLongMaps && facts.functions > 1 && facts.streams == 1 && in_small_parts(facts);
}

std::int64_t row_bytes(const GroupFacts& facts) { return facts.columns * facts.widest_bytes; }

std::int64_t bytes_per_thread(const Schedule& s, const GroupFacts& facts) {
    return row_bytes(facts) / (s.column_blocks * s.threads_per_row);
}

std::int64_t threads_for(std::int64_t vectors, std::int64_t each, int warp_size) {
    const std::int64_t threads = (vectors + each - 1) / each;
    if (threads > warp_size / 2) return (threads + warp_size - 1) / warp_size * warp_size;
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(threads)));
}

void append(const std::vector<Schedule>& more, std::vector<Schedule>* schedules) {
    schedules->insert(schedules->end(), more.begin(), more.end());
}

void put_first(const std::vector<Schedule>& more, std::vector<Schedule>* schedules) {
    schedules->insert(schedules->begin(), more.begin(), more.end());
}

namespace {

// A thread of many columns of several tensors, where four blocks leave it too few registers with a third more: left
// alone ptxas took 255 for tvd's backward of 64 columns a thread, which ran at 40 % of copy, at 52 in 168;
// log_softmax's has room in 128, and runs at 91 and 98 % so, at 79 and 90 in 168 (H200, 128256 and 32000 columns of
// bf16). Registers hold whole vectors: 128256 columns over 16 blocks are as many as 131072.
constexpr int kLightlySharedThreadsPerSm = 384;
constexpr std::int64_t kColumnsOfManyRegisters = 64;

}  // namespace

std::vector<Schedule> lightly_sharing(const Schedule& s, std::int64_t columns_per_thread, const GroupFacts& facts) {
    const bool fits = s.threads_per_row >= kBlockThreads && s.threads_per_row < kLightlySharedThreadsPerSm;
    const std::int64_t held = (columns_per_thread + s.vector - 1) / s.vector * s.vector;
    const bool many = in_small_parts(facts) && reads_several_narrow(facts) && held >= kColumnsOfManyRegisters;
    if (!fits || !many) return {s};
    return {sharing(s, kResidentThreadsPerSm.back()), sharing(s, kLightlySharedThreadsPerSm), s};
}

}  // namespace rowjit::reduced_rows
