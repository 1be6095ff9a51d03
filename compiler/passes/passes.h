// Kernel → Kernel: what a lowered kernel still lacks before it can be emitted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "base/target.h"
#include "compiler/kernel.h"

namespace rowjit {

// Says what f32 arithmetic a rounding to bf16 or f16 makes room in: exponentials and quotients that may be less exact,
// and products that are added to something without being rounded first. Needs: lowered loops. Gives:
// Inst::narrow.
Kernel spend_precision(Kernel kernel, const Target& target);

// Takes the greatest and the least of what a constant scales before it is scaled. Needs: lowered loops, and nothing
// that knows a value of a row by what it is the greatest of.
Kernel scale_extrema(Kernel kernel, const Target& target);

// Decides how each load and store of a column loop, or of a row of several results, meets memory (Access), and what
// alignment that needs of each tensor.
// Needs: lowered loops. Gives: no Access of a load or store is kUnknown; KernelTensor::alignment is set.
Kernel index_accesses(Kernel kernel, const Target& target);

// Whether the tensor's columns are the loop's, one after the other, each read or written at its own coordinates.
bool takes_columns_in_order(const Kernel& kernel, const Inst& inst, const ColumnLoop& loop);

// Where in its row of a tensor an access along these column axes is at a column, in elements, as far as columns decide
// it; and how many elements such a row has.
std::int64_t place_in_row(const Kernel& kernel, const Inst& inst, const std::vector<AxisId>& axes, std::int64_t column);
std::int64_t elements_of_row(const Kernel& kernel, const KernelTensor& tensor);

// Gives every all-reduce that spans warps a region of shared scratch, puts a barrier where a region would be written
// while it may still be read, and sums the block's dynamic shared memory. Needs: lowered loops. Gives:
// AllReduce::scratch, Kernel::scratch_regions and Kernel::shared_bytes.
Kernel place_barriers(Kernel kernel, const Target& target);

// Gives the loads that a schedule with stages copies ahead their places in a stage. Needs: accesses, and the rest of
// the block's shared memory, which stages stand behind. Gives: Inst::stage_offset_bytes, Kernel::stages_offset_bytes
// and stage_bytes, and shared_bytes with them; no stage_bytes where there is nothing to copy.
Kernel place_stages(Kernel kernel, const Target& target);

// Where in its row's stage an instruction reads, as what was copied there or what stays there; -1 where it reads none.
std::int64_t place_in_stage(const Kernel& kernel, const Inst& inst);

// Takes apart the loops of rows that stay in their stages, of many tensors or pieces of them, by what is made of each.
// Needs: places in stages, of the loop that all of them were in. Gives: neighbouring loops over the same columns.
Kernel take_pieces_apart(Kernel kernel, const Target& target);

// Has the places of a row that stays in its stage filled again by the loop that reads them last. Needs: places in
// stages, and the loops that there will be. Gives: ColumnLoop::refills, and Kernel::refills where that pays.
Kernel refill_stages(Kernel kernel, const Target& target);

// Moves functions of what is the same for every row, of weights and of columns' places, before the rows of a block that
// stays, while registers suffice. GPU only. Needs: accesses and carried sums. Gives: Kernel::before, and slots.
Kernel keep_table_functions(Kernel kernel, const Target& target);

// Marks the loads that a staying block makes once for all its rows, while registers suffice. Needs: accesses and
// carried sums. Gives: Inst::held.
Kernel hold_shared_loads(Kernel kernel, const Target& target);

// Decides which bf16 and f16 values of a column loop two lanes share a word of. GPU only. Needs: accesses. Gives:
// Inst::packing.
Kernel pack_lanes(Kernel kernel, const Target& target);

// Finds the conditions of a column's place that all lanes of a vector share, and the selects by them of two loads; in
// kernels that pack lanes, asks by one comparison what one decides. GPU only. Needs: packed lanes. Gives:
// Inst::chooses, and Inst::alike where lanes are packed.
Kernel share_conditions(Kernel kernel, const Target& target);

// Maps whose result is one of their operands, or exact: representable operands give a representable result.
bool is_exact_on_narrow(Op op);

// Bytes of one thread's state of an accumulator when it crosses shared memory.
int state_bytes(const Accumulator& accumulator);

// Bytes of shared memory in which a block whose threads share long segments finds whether it has any.
std::int64_t vote_bytes(const Kernel& kernel, const Target& target);

// How often the threads of a row meet in each of the steps that open there.
int meetings_of_steps(Block::const_iterator open);

// Registers of one thread that hold a carried sum.
std::int64_t carried_lanes(const Kernel& kernel, int carried);

// Registers a thread is likely to need: what stays in registers over phases, a batch of each loop's other loads, and
// the working set of a phase. An estimate; the artifact tells the truth.
int estimated_registers(const Kernel& kernel, const Target& target);

// Registers that each of a kernel's threads may have where so many of its blocks share a multiprocessor.
std::int64_t registers_beside(const Kernel& kernel, const Target& target, std::int64_t blocks);
// The other way: how many blocks a multiprocessor has registers and places for, with so many registers a thread.
std::int64_t blocks_beside(const Kernel& kernel, const Target& target, int registers);

// Whether a thread may as well issue all loads of a loop, or of a turn of one, before it computes anything
// (Kernel::loads_together): rows that all threads of a block meet over are not done before the last of their loads.
bool loads_may_wait(const Kernel& kernel, const Target& target);

// What its threads have beyond those, with as many blocks on a multiprocessor as its schedule wants; negative where
// they lack some.
std::int64_t spare_registers(const Kernel& kernel, const Target& target);

// Whether a load's address is the same for all rows, differs by column, and nothing of the kernel writes there.
bool is_same_for_all_rows(const Kernel& kernel, const Inst& inst);

// Erases of a loop what may go and nothing behind it there uses.
template <class MayGo>
void drop_unused(ColumnLoop* loop, const MayGo& may_go) {
    std::set<ValueId> used;
    std::vector<Inst> kept;
    for (Inst& inst : std::views::reverse(loop->body)) {
        if (may_go(inst) && !used.contains(inst.id)) continue;
        each_use(inst, [&](ValueId value) { used.insert(value); });
        kept.push_back(std::move(inst));
    }
    std::ranges::reverse(kept);
    loop->body = std::move(kept);
}

// What is held through all rows is read all over the row: the estimate, right without it, is up to so many registers
// low with it.
inline constexpr int kHeldMargin = 8;

// Why the kernel would spill on `target`, "" where it need not: more registers are likely than its threads have with as
// many blocks on a multiprocessor as its schedule wants, or, for NVIDIA, no remedy of the toolchain's would do.
std::string lacks_registers(const Kernel& kernel, const Target& target);

// Throws InternalError where the kernel breaks the loop IR's rules (kernel.h): a value used before or outside its
// scope, an operand count or dtype that does not fit, an index out of its table. `after` names the pass that ran.
void verify(const Kernel& kernel, std::string_view after);

}  // namespace rowjit
