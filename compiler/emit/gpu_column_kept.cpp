// What column loops keep for each other: the vectors of a row in registers, in shared memory or in its stage, and those
// of rows before it in windows. Which values these are, the schedule has decided.
#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/emit/gpu_column_emitter.h"
#include "compiler/emit/gpu_column_place.h"
#include "compiler/emit/gpu_columns.h"

namespace rowjit::gpu_emit {

// What later loops read from registers is declared outside this one. A kept value that is a load's own vector stays
// as it was loaded: packed, and never rounded again.
void ColumnEmitter::declare_kept() {
    for (const Inst& inst : loop_.body) {
        if (inst.kind != InstKind::kKeep || !in_registers(inst)) continue;
        RJ_CHECK(resident_, "emit gpu: {}: {} is kept in registers over a serial loop", scope_.kernel().name,
                 slot(inst).label);
        if (slot(inst).is_divisor) {
            kept_[inst.index] = scope_.names().fresh(slot(inst).label);
            out_.line(fmt::format("rj_divisor {}[{}];", kept_[inst.index], loop_.iterations * loop_.vector),
                      "for quotients of all rows of the block");
            continue;
        }
        const Inst* load = kept_load(inst);
        if (load != nullptr && vectors_.contains(load)) {
            kept_[inst.index] = array_of(vectors_.at(load));
            continue;
        }
        if (!kept_.contains(inst.index)) {
            kept_[inst.index] = scope_.names().fresh(load != nullptr ? tensor(*load).name + "_vec" : slot(inst).label);
            out_.line(fmt::format("{} {}{}{};", gpu_vec_type(slot(inst).dtype, loop_.vector), kept_[inst.index],
                                  entries(), load != nullptr ? initial() : ""),
                      "kept in registers");
        }
        const std::string name = kept_here(inst);
        declared_.insert(name + entry());
        if (load != nullptr) vectors_[load] = name + entry();
    }
}

// What a slot's vector of this row is called, where it is one of a window of rows or not.
std::string ColumnEmitter::kept_here(const Inst& keep) const {
    const std::string& name = kept_.at(keep.index);
    return slot(keep).rows_back > 0 ? window_entry(name, 0) : name;
}

const Inst* ColumnEmitter::kept_load(const Inst& keep) const {
    for (const Inst* load : front_) {
        const bool whole = is_vector(*load) ? load->access.lanes.empty() : loop_.vector == 1;
        if (load->id == keep.operands[0] && whole && load->dtype == slot(keep).dtype) return load;
    }
    return nullptr;
}

std::string ColumnEmitter::shared_offset(const Slot& slot) const {
    // Each block keeps its own columns, one round behind the other.
    const bool own = scope_.kernel().schedule.column_blocks > 1 || loop_.is_peeled();
    const std::string column = own ? in_parentheses(first_lane(loop_, vector_of(scope_, own_iteration()))) : "c";
    // Rows that lie side by side have each column side by side, in as many banks.
    if (scope_.kernel().schedule.across) {
        const std::string places =
            scope_.rows() > 1 ? fmt::format("({} * {} + row_in_block)", column, scope_.rows()) : column;
        return fmt::format("{} + {} * {}", slot.shared_offset_bytes * scope_.rows(), places, size_bytes(slot.dtype));
    }
    std::string text = fmt::format("{} * {}", column, size_bytes(slot.dtype));
    if (slot.shared_offset_bytes > 0) text = fmt::format("{} + {}", slot.shared_offset_bytes, text);
    return scope_.rows() > 1 ? "row_shared + " + text : text;
}

void ColumnEmitter::take_kept() {
    for (const Inst& inst : loop_.body) {
        if (inst.kind != InstKind::kKept || slot(inst).is_divisor) continue;
        vectors_[&inst] = scope_.names().fresh(slot(inst).label);
        const std::string type = gpu_vec_type(slot(inst).dtype, loop_.vector);
        out_.line(fmt::format("const {} {} = {};", type, vectors_[&inst], kept_vector(inst, type)));
    }
}

// Where in shared memory the thread's vector of a row so many back is, of a window that lies there.
std::string ColumnEmitter::ring_place(const Slot& window, int rows_back) const {
    const std::string row = rows_back > 0 ? fmt::format("(walked - {})", rows_back) : "walked";
    return place_in_ring(window, loop_, scope_, fmt::format("({} & {})", row, window.ring_rows() - 1));
}

// The slot that a load goes to by an asynchronous copy, and to nothing else.
const Slot* ColumnEmitter::copied_to(const Inst& load) const {
    if (load.kind != InstKind::kLoad || !is_vector(load) || !load.access.lanes.empty()) return nullptr;
    for (const Inst& inst : loop_.body) {
        if (inst.kind == InstKind::kKeep && inst.operands[0] == load.id && is_ring(inst)) return &slot(inst);
    }
    return nullptr;
}

// Outside of its tensor a row is zeros.
void ColumnEmitter::copy(const Inst& load, const Slot& window) {
    const GpuAddress& at = addresses_.at(&load);
    const std::string place = ring_place(window, 0);
    const std::string copies =
        fmt::format("rj_copy_ahead<{}>({}, {});", loop_.vector * size_bytes(window.dtype), place, at.text());
    if (at.inside.empty()) return out_.line(copies);
    out_.line(fmt::format("if ({}) {}", at.inside, copies));
    out_.line(fmt::format("else rj_shared_store_vec({}, rj_zeros<{}, {}>());", place, gpu_storage_type(window.dtype),
                          loop_.vector));
}

std::string ColumnEmitter::kept_vector(const Inst& kept, const std::string& type) const {
    const Slot& from = slot(kept);
    if (is_ring(kept)) return fmt::format("rj_shared_load_vec<{}>({})", type, ring_place(from, kept.rows_back));
    switch (from.residency) {
        case Residency::kRegisters: {
            if (from.rows_back > 0) return window_entry(kept_.at(kept.index), kept.rows_back);
            const std::string entry = loop_.iterations > 1 ? fmt::format("[{}]", turned_iteration(kept)) : "";
            return fmt::format("rj_kept({}{})", kept_.at(kept.index), entry);
        }
        case Residency::kStages:
            return staged(from.shared_offset_bytes, turned_iteration(kept), from.dtype, loop_.vector);
        default: return fmt::format("rj_shared_load_vec<{}>({})", type, shared_offset(from));
    }
}

void ColumnEmitter::keep(const Inst& inst) {
    if (slot(inst).is_divisor) return;  // lane by lane
    const Inst* load = kept_load(inst);
    if (is_ring(inst)) {
        if (load == nullptr || copied_to(*load) == nullptr)
            out_.line(fmt::format("rj_shared_store_vec({}, {});", ring_place(slot(inst), 0),
                                  load != nullptr ? vectors_.at(load) : packed(inst)));
        return;
    }
    if (slot(inst).residency == Residency::kStages) return;
    if (load != nullptr && in_registers(inst)) return;  // the loaded vector itself
    const std::string vec = load != nullptr ? vectors_.at(load) : packed(inst);
    if (in_registers(inst)) {
        out_.line(fmt::format("{} = {};", kept_here(inst) + resident_entry(), vec));
    } else {
        out_.line(fmt::format("rj_shared_store_vec({}, {});", shared_offset(slot(inst)), vec));
    }
}

void declare_kept(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept) {
    for (const Inst& inst : loop.body) {
        if (inst.kind != InstKind::kKeep || kept.contains(inst.index)) continue;
        const Slot& slot = scope.slot(inst);
        if (slot.residency == Residency::kStages) continue;
        kept[inst.index] = scope.names().fresh(slot.label);
        scope.out().line(
            fmt::format("{} {}{};", gpu_vec_type(slot.dtype, loop.vector), kept[inst.index], all_entries(loop)));
    }
}

void declare_windows(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept) {
    for (const Inst& inst : loop.body) {
        if (inst.kind != InstKind::kKeep || scope.slot(inst).rows_back == 0) continue;
        const Slot& slot = scope.slot(inst);
        if (slot.residency != Residency::kRegisters) {
            // What rows before the first read of rows before them goes nowhere, and is written all the same.
            scope.out().line(fmt::format(
                "for (int back = 0; back < {}; ++back) rj_shared_store_vec({}, rj_zeros<{}, {}>());", slot.ring_rows(),
                place_in_ring(slot, loop, scope, "back"), gpu_storage_type(slot.dtype), loop.vector));
            continue;
        }
        kept[inst.index] = scope.names().fresh(slot.label);
        scope.out().line(fmt::format("{} {}[{}] = {{}};", gpu_vec_type(slot.dtype, loop.vector), kept[inst.index],
                                     slot.rows_back + 1),
                         "of this row and of those before it");
    }
}

void move_windows(GpuScope& scope, const GpuKept& kept) {
    for (const auto& [index, name] : kept) {
        const int rows_back = scope.kernel().slots[static_cast<std::size_t>(index)].rows_back;
        if (rows_back == 0) continue;
        scope.out().line("#pragma unroll");
        scope.out().line(
            fmt::format("for (int back = {0}; back > 0; --back) {1}[back] = {1}[back - 1];", rows_back, name));
    }
}

}  // namespace rowjit::gpu_emit
