// Loads of which each vector needs one, as its place says (Inst::chooses of passes/conditions): one load, at an address
// that is chosen. A rotary embedding of three position streams had sixteen loads in flight for two vectors, waited for
// in seven turns for want of registers, where it needs eight. The load itself is gpu_columns.cpp's, as any other.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <ranges>
#include <set>
#include <string>
#include <vector>

#include "compiler/emit/gpu_column_emitter.h"
#include "compiler/emit/gpu_column_place.h"

namespace rowjit::gpu_emit {

void ColumnEmitter::find_chosen() {
    std::set<ValueId> within;
    for (const Inst& inst : std::views::reverse(loop_.body)) {
        if (!inst.chooses || within.contains(inst.id)) continue;
        std::vector<const Inst*> loads;
        if (!may_choose(inst, &loads)) continue;
        note_chosen(inst, &within);
        const Inst* first = loads.front();
        for (const Inst* load : loads) {
            if (load == first) continue;
            chosen_as_[load] = first;
            std::erase(front_, load);
        }
        chosen_by_[first] = &inst;
    }
}

// Of one type, each at the front and wherever its vector is, so that all have one guard.
bool ColumnEmitter::may_choose(const Inst& choice, std::vector<const Inst*>* loads) const {
    for (const std::size_t side : {1, 2}) {
        const Inst* made = made_here(choice.operands[side]);
        if (made->kind == InstKind::kMap) {
            if (!may_choose(*made, loads)) return false;
            continue;
        }
        const auto address = addresses_.find(made);
        const bool at_front = std::find(front_.begin(), front_.end(), made) != front_.end();
        if (!at_front || address == addresses_.end() || address->second.offset.empty()) return false;
        if (!address->second.inside.empty() || !address->second.aligned.empty()) return false;
        if (made->stage_offset_bytes >= 0 || scope_.is_fetched(*made) || copied_to(*made) != nullptr) return false;
        const auto is_read_only = [&](const Inst* load) { return scope_.kernel().is_read_only(tensor(*load)); };
        loads->push_back(made);
        if (is_read_only(made) != is_read_only(loads->front())) return false;
    }
    return true;
}

// Choices between choices are of the outermost.
void ColumnEmitter::note_chosen(const Inst& choice, std::set<ValueId>* within) const {
    for (const std::size_t side : {1, 2}) {
        const Inst* made = made_here(choice.operands[side]);
        if (made->kind != InstKind::kMap) continue;
        within->insert(made->id);
        note_chosen(*made, within);
    }
}

// What the conditions are made of, as the vector's first lane has it.
void ColumnEmitter::conditions_of_chosen() {
    std::set<ValueId> wanted;
    const auto want = [&](const auto& self, const Inst& select) -> void {
        wanted.insert(select.operands[0]);
        for (const std::size_t side : {1, 2}) {
            const Inst* made = made_here(select.operands[side]);
            if (made->kind == InstKind::kMap) self(self, *made);
        }
    };
    for (const auto& [load, choice] : chosen_by_) want(want, *choice);
    std::vector<const Inst*> before;
    for (const Inst& inst : std::views::reverse(loop_.body)) {
        if (!wanted.contains(inst.id)) continue;
        before.push_back(&inst);
        wanted.insert(inst.operands.begin(), inst.operands.end());
    }
    for (const Inst* inst : std::views::reverse(before)) define_for_vector(*inst);
}

// Rows are chosen between before the column is added, where it is the same of all: once in 64 bits, not of each.
GpuAddress ColumnEmitter::chosen_address(const Inst& choice) const {
    const auto side = [&](std::size_t operand) {
        const Inst* made = made_here(choice.operands[operand]);
        if (made->kind == InstKind::kMap) return chosen_address(*made);
        return by_iteration(addresses_.at(made), loop_, scope_, iteration());
    };
    const GpuAddress a = side(1);
    const GpuAddress b = side(2);
    const std::string& condition = scope_.value(choice.operands[0]);
    if (a.offset != b.offset)
        return {
            .base = fmt::format("rj_chosen({}, {}, {})", condition, a.text(), b.text()), .offset = {}, .inside = {}};
    return {.base = fmt::format("rj_chosen({}, {}, {})", condition, a.base, b.base), .offset = a.offset, .inside = {}};
}

}  // namespace rowjit::gpu_emit
