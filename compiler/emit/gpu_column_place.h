// Where a thread's vectors of a column loop are: which columns an iteration has, what of an address its number adds,
// and under which condition there is such a vector. Private to emit/gpu_column*.cpp; what is done with the columns is
// theirs.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/emit/gpu_scope.h"

namespace rowjit::gpu_emit {

inline bool is_vector(const Inst& inst) { return inst.access.kind == Access::Kind::kVector; }
inline bool is_uniform(const Inst& inst) { return inst.access.kind == Access::Kind::kUniform; }

inline bool lies_in_run(const Inst& inst) { return inst.access.run > 0; }

// Elements of a load.
inline int lanes_of(const Inst& load, const ColumnLoop& loop) {
    return is_vector(load) ? loop.vector : lies_in_run(load) ? load.access.run : 1;
}

// "[2]" where a thread has as many vectors of a resident loop.
std::string all_entries(const ColumnLoop& loop);

bool takes_remainder(const GpuAddress& address);

// Whether lane l is element l ^ k.
bool flips(const std::vector<int>& order);

// The vector of so many rows back.
std::string window_entry(const std::string& window, int rows_back);

// Where in shared memory the thread's vector of a row of a window is that lies there.
std::string place_in_ring(const Slot& window, const ColumnLoop& loop, const GpuScope& scope, const std::string& row);

inline std::string column(int lane) { return lane == 0 ? "c" : fmt::format("(c + {})", lane); }

std::string in_parentheses(const std::string& text);

// Which of the vectors side by side is a thread's: round * threads + t, no round being the only one.
std::string vector_of(const GpuScope& scope, const std::string& round);

std::string first_lane(const ColumnLoop& loop, const std::string& vector);

// A group of a loop's iterations, by its first, and one of them.
inline constexpr const char* kGroup = "first";

inline constexpr const char* kOfGroup = "first + i";

// Columns from a thread's vector to its next.
std::int64_t step_of(const ColumnLoop& loop, const GpuScope& scope);

std::string column_of(const ColumnLoop& loop, GpuScope& scope, const std::string& iteration);

// The address of an iteration, whose part of it stands by itself where the compiler makes a constant of it.
GpuAddress by_iteration(GpuAddress address, const ColumnLoop& loop, GpuScope& scope, const std::string& iteration);

// Under which an iteration has a vector of the row.
std::string inside_row(const ColumnLoop& loop, const GpuScope& scope, const std::string& unrolled_iteration);

std::string guard(const std::string& condition);

// Opens all iterations of a resident loop, with the column and its guard.
void open_resident(const ColumnLoop& loop, GpuScope& scope);

void close_resident(const ColumnLoop& loop, GpuScope& scope);

}  // namespace rowjit::gpu_emit
