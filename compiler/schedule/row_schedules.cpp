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

bool in_small_parts(const GroupFacts& facts) { return !facts.sums_rows() && !facts.shares_columns; }

bool reads_several_narrow(const GroupFacts& facts) {
    return facts.phases == 2 && facts.column_inputs > 1 && facts.widest_bytes < 4;
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

}  // namespace rowjit::reduced_rows
