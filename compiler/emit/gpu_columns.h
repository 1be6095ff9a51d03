// Column loops in GPU source: a vector per thread and iteration, all loads of a group of iterations issued before any
// is computed on, values kept between loops in registers or shared memory.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/emit/gpu_scope.h"

namespace rowjit {

// Vectors kept in registers from one column loop to later ones of the row, by slot.
using GpuKept = std::map<int, std::string>;

// Writes the loop; adds to `kept` what it keeps in registers.
void emit_column_loop(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept);

// The loads of a resident loop that a schedule with prefetch issues a row ahead: the vectors that hold them until the
// row comes, and the loads, inside a function of the row.
class ColumnFetch {
  public:
    ColumnFetch(const ColumnLoop& loop, GpuScope& scope) : loop_(loop), scope_(scope) {}
    void declare();
    void load();

  private:
    const ColumnLoop& loop_;
    GpuScope& scope_;
    std::vector<const Inst*> loads_;
};

}  // namespace rowjit
