#include "compiler/neighbours.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace rowjit {
namespace {

bool is_column_loop(const Stmt& stmt) { return std::holds_alternative<ColumnLoop>(stmt.node); }

// Whether a kernel is of numbers alone: one of each row, or sums of those that one block adds up.
bool is_of_numbers(const Kernel& kernel) {
    const bool adds_rows = std::any_of(kernel.body.begin(), kernel.body.end(),
                                       [](const Stmt& stmt) { return std::holds_alternative<RowsLoop>(stmt.node); });
    return std::none_of(kernel.body.begin(), kernel.body.end(), is_column_loop) &&
           (!adds_rows || kernel.row_axes.empty());
}

// Numbers of a row that come of what kernels before have made, and that its first loop over columns does without, come
// behind that loop: until then the kernel need not wait. So a loss's rows are on their way while the rows that count
// are counted.
void take_made_late(Kernel* kernel) {
    const auto first = std::find_if(kernel->body.begin(), kernel->body.end(), is_column_loop);
    const auto behind = std::find_if_not(first, kernel->body.end(), is_column_loop);
    std::set<ValueId> late;
    const auto comes_late = [&](const Stmt& stmt) {
        const auto* inst = std::get_if<Inst>(&stmt.node);
        if (inst == nullptr) return false;
        // What the loop itself may write is read before it.
        bool made = kernel->reads_made(*inst) && !kernel->tensors[static_cast<std::size_t>(inst->index)].aliased;
        each_use(*inst, [&](ValueId value) { made = made || late.contains(value); });
        if (made) late.insert(inst->id);
        return made;
    };
    bool is_used = false;
    std::for_each(kernel->body.begin(), behind, [&](const Stmt& stmt) {
        if (comes_late(stmt)) return;
        each_use(stmt, [&](ValueId value) { is_used = is_used || late.contains(value); });
    });
    if (is_used || late.empty() || first == kernel->body.end()) return;
    const auto at_once = [&](const Stmt& stmt) { return !comes_late(stmt); };
    const auto late_ones = std::stable_partition(kernel->body.begin(), first, at_once);
    std::rotate(late_ones, first, behind);
}

// The tensor whose memory one lies in.
int memory_of(const Program& program, int tensor) {
    const ProgramTensor& one = program.tensors[static_cast<std::size_t>(tensor)];
    if (one.over >= 0) return memory_of(program, one.over);
    return one.alias.empty() ? tensor : find_tensor(program, one.alias);
}

// Whether one of two steps writes what the other reads or writes.
bool share_what_is_written(const Program& program, const Step& a, const Step& b) {
    for (std::size_t i = 0; i < a.tensors.size(); ++i) {
        for (std::size_t j = 0; j < b.tensors.size(); ++j) {
            if (!a.kernel.tensors[i].written && !b.kernel.tensors[j].written) continue;
            if (memory_of(program, a.tensors[i]) == memory_of(program, b.tensors[j])) return true;
        }
    }
    return false;
}

// Whether the kernel at a place moves rows beside kernels of numbers, those from `first` on, of which it needs nothing.
// They are long chains of arithmetic in few warps: behind the 40 us of hyper_pre's the rows had waited (H100).
bool runs_beside(const Program& program, std::size_t first, std::size_t place) {
    const auto step_at = [&](std::size_t at) -> const Step& { return program.steps[program.order[at].index]; };
    const Step& step = step_at(place);
    if (is_of_numbers(step.kernel) || step.kernel.schedule.blocks_per_sm > 0) return false;
    for (std::size_t at = first; at < place; ++at) {
        if (!is_of_numbers(step_at(at).kernel) || share_what_is_written(program, step_at(at), step)) return false;
    }
    return true;
}

// Whether it is of whole rows: along the kernel's outermost axis, and along another that its rows are not of.
bool is_of_rows(const Kernel& kernel, const KernelTensor& tensor) {
    return contains(tensor.axes, kernel.row_axes.front()) &&
           std::ranges::any_of(tensor.axes, [&](AxisId axis) { return !contains(kernel.row_axes, axis); });
}

// Whether the kernel reads rows that another has read or written.
bool reads_rows_of(const Program& program, const Step& step, const Step& other) {
    for (std::size_t i = 0; i < step.tensors.size(); ++i) {
        const KernelTensor& tensor = step.kernel.tensors[i];
        if (!tensor.read || !is_of_rows(step.kernel, tensor)) continue;
        const int memory = memory_of(program, step.tensors[i]);
        if (std::ranges::any_of(other.tensors, [&](int index) { return memory_of(program, index) == memory; }))
            return true;
    }
    return false;
}

}  // namespace

bool may_go_back(const Kernel& kernel) {
    return !kernel.row_axes.empty() && !kernel.walk && !kernel.product && !kernel.order && kernel.apart.empty() &&
           kernel.schedule.shares == 0;
}

void choose_directions(Program* program) {
    std::vector<const Step*> before;
    for (const PlanStep& planned : program->order) {
        if (planned.kind != PlanStep::Kind::kKernel) {
            before.clear();
            continue;
        }
        Step& step = program->steps[planned.index];
        if (may_go_back(step.kernel)) {
            const auto last = std::find_if(before.rbegin(), before.rend(),
                                           [&](const Step* other) { return reads_rows_of(*program, step, *other); });
            step.kernel.last_first = last != before.rend() && !(*last)->kernel.last_first &&
                                     !(*last)->kernel.row_axes.empty() &&
                                     (*last)->kernel.row_axes.front() == step.kernel.row_axes.front();
        }
        before.push_back(&step);
    }
}

// A kernel right behind another begins while that one ends. Not where a loop begins or has ended: what was launched
// before may be of either. Nor where its blocks stay, each with as many rows as the others: they would come to the
// multiprocessors as these have room beside the kernel before, to some twice as many as to others. H200, the norms and
// rotary embeddings of queries and keys, backward: kernels that stay took 0.180 ms one beginning in the other, 0.157
// one behind the other. Kernels of numbers are short, and leave room or need little.
void chain_kernels(Program* program) {
    const auto at_loop = [&](std::size_t place) {
        return std::any_of(program->loops.begin(), program->loops.end(),
                           [&](const ProgramLoop& loop) { return place == loop.first || place == loop.end; });
    };
    const auto step_at = [&](std::size_t place) -> Step* {
        const PlanStep& step = program->order[place];
        const bool chains = step.kind == PlanStep::Kind::kKernel && !program->steps[step.index].product;
        return chains ? &program->steps[step.index] : nullptr;
    };
    // What the caller gives and no kernel overwrites was there before the first of them.
    const auto is_given = [&](int index) {
        const ProgramTensor& tensor = program->tensors[static_cast<std::size_t>(index)];
        return tensor.place == ProgramTensor::Place::kInput &&
               std::none_of(program->tensors.begin(), program->tensors.end(),
                            [&](const ProgramTensor& other) { return other.alias == tensor.name; });
    };
    // Whether every launch has a kernel before the place: not the caller's, who may have let it begin.
    bool begun = false;
    std::size_t first = 0;  // of the kernels that begin one in the other: all before it have ended
    for (std::size_t place = 1; place < program->order.size(); ++place) {
        Step* before = step_at(place - 1);
        Step* step = step_at(place);
        begun = begun || (before != nullptr && !before->needed);
        const std::size_t behind = std::exchange(first, place);
        if (before == nullptr || step == nullptr || at_loop(place) || !begun) continue;
        const bool is_short = is_of_numbers(step->kernel) || is_of_numbers(before->kernel);
        if (step->kernel.schedule.blocks_per_sm > 0 && !is_short) continue;
        first = behind;
        before->kernel.neighbours.leads = true;
        step->kernel.neighbours.waits = true;
        step->kernel.neighbours.beside = runs_beside(*program, first, place);
        for (std::size_t i = 0; i < step->tensors.size(); ++i) {
            if (!is_given(step->tensors[i])) step->kernel.neighbours.made.insert(step->kernel.tensors[i].name);
        }
        take_made_late(&step->kernel);
    }
}

}  // namespace rowjit
