// Column loops in GPU source: a vector per thread and iteration, all loads of a group of iterations issued before any
// is computed on, values kept between loops in registers or shared memory.
#pragma once

#include <map>
#include <string>

#include "compiler/emit/gpu_scope.h"

namespace rowjit {

// Vectors kept in registers from one column loop to later ones of the row, by slot.
using GpuKept = std::map<int, std::string>;

// Writes the loop; adds to `kept` what it keeps in registers.
void emit_column_loop(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept);

}  // namespace rowjit
