// Column loops in GPU source: a vector per thread and iteration, all loads of a group of iterations issued before any
// is computed on, values kept between loops in registers or shared memory. What is computed stands lane by lane, or
// pair by pair where lanes are packed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compiler/emit/gpu_scope.h"

namespace rowjit::gpu_emit {

// Vectors kept in registers from one column loop to later ones of the row, by slot.
using GpuKept = std::map<int, std::string>;

// Writes, before the block's rows, the loads of a loop that it holds for all of them.
void emit_held_loads(const ColumnLoop& loop, GpuScope& scope);

// Declares the vectors that a loop keeps in registers, outside of the braces it will stand in; adds them to `kept`.
void declare_kept(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept);

// Declares, before all rows, the vectors that a loop keeps of rows back; adds them to `kept`.
void declare_windows(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept);

// Behind a row: the vectors of each window are those of a row further back.
void move_windows(GpuScope& scope, const GpuKept& kept);

// Writes the loop; what is not in `kept` already it declares; adds to `kept` what it keeps in registers.
void emit_column_loop(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept);

// Writes, before the steps that the loop is one of, what is the same in all of them of the test by which it leaves
// vectors out.
void emit_tested(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept);

// The loads of a resident loop that are issued before it: before the block comes to their row, or of a peeled row's
// ends before its whole vectors. The vectors or the places in shared memory that hold them until then, and the loads,
// which may stand inside a function of the row.
class ColumnFetch {
  public:
    ColumnFetch(const ColumnLoop& loop, GpuScope& scope) : loop_(loop), scope_(scope) {}
    void declare(std::string_view suffix);
    void load();
    // Leaves the names declared before to the next row, and gives this one's values others.
    void take(std::string_view suffix);
    // Without the loads that go to these places of a stage.
    void leave_out(const std::vector<std::int64_t>& places);
    bool is_empty() const { return loads_.empty(); }

  private:
    bool fits_registers(const Inst& inst) const;

    const ColumnLoop& loop_;
    GpuScope& scope_;
    std::vector<const Inst*> loads_;
};

// Declares, before all rows, the copies of a row to come into the places that an iteration of the loop has read last.
void declare_refill(const ColumnLoop& loop, GpuScope& scope);

}  // namespace rowjit::gpu_emit
