#include "compiler/emit/passing.h"

#include <algorithm>
#include <ranges>
#include <set>

namespace rowjit {
namespace {

const Inst* made_in(const ColumnLoop& loop, ValueId value) {
    const auto found =
        std::find_if(loop.body.begin(), loop.body.end(), [&](const Inst& inst) { return inst.id == value; });
    return found == loop.body.end() ? nullptr : &*found;
}

// Whether it is a number of the column: what is loaded at one place is the row's.
bool varies(const ColumnLoop& loop, ValueId value) {
    const Inst* made = made_in(loop, value);
    return made != nullptr && !(made->kind == InstKind::kLoad && made->access.kind == Access::Kind::kUniform);
}

bool is_zero(const Kernel& kernel, ValueId value) {
    bool zero = false;
    each_inst(kernel, [&](const Inst& inst) {
        if (inst.id == value && inst.kind == InstKind::kConst) zero = inst.value == 0;
    });
    return zero;
}

bool compares_with_row(const ColumnLoop& loop, const Inst& inst) {
    const bool compares = inst.kind == InstKind::kMap &&
                          (inst.op == Op::kGt || inst.op == Op::kGe || inst.op == Op::kLt || inst.op == Op::kLe);
    return compares && varies(loop, inst.operands[0]) && !varies(loop, inst.operands[1]);
}

}  // namespace

const Inst* chooses_or_zero(const Kernel& kernel, const ColumnLoop& loop, const Inst& accumulate) {
    const Accumulator& accumulator = kernel.accumulators[static_cast<std::size_t>(accumulate.index)];
    const bool sums = accumulator.monoid == Monoid::kSum && accumulate.operands.size() == 1;
    const Inst* chosen = sums ? made_in(loop, accumulate.operands[0]) : nullptr;
    if (chosen == nullptr || chosen->kind != InstKind::kMap || chosen->op != Op::kSelect) return nullptr;
    return is_zero(kernel, chosen->operands[2]) ? made_in(loop, chosen->operands[0]) : nullptr;
}

std::vector<const Inst*> passing_test(const Kernel& kernel, const ColumnLoop& loop) {
    const Inst* test = nullptr;
    for (const Inst& inst : loop.body) {
        const bool leaves = inst.kind == InstKind::kStore || inst.kind == InstKind::kKeep ||
                            inst.kind == InstKind::kCarry || inst.packing != Packing::kNone;
        if (leaves) return {};
        if (inst.kind != InstKind::kAccumulate) continue;
        const Inst* asked = chooses_or_zero(kernel, loop, inst);
        if (asked == nullptr || (test != nullptr && asked != test) || !compares_with_row(loop, *asked)) return {};
        test = asked;
    }
    if (test == nullptr) return {};
    std::set<ValueId> needed = {test->id};
    std::vector<const Inst*> made;
    for (const Inst& inst : std::views::reverse(loop.body)) {
        if (!needed.contains(inst.id)) continue;
        made.push_back(&inst);
        each_use(inst, [&](ValueId value) { needed.insert(value); });
    }
    std::ranges::reverse(made);
    return made;
}

}  // namespace rowjit
