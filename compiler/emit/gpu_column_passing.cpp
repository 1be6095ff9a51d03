// What a column loop leaves out of most of its vectors: all of a step that few columns pass (which they are, passing.h
// says), and of a loss the comparison with the one column that is the target.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "compiler/emit/gpu_column_emitter.h"
#include "compiler/emit/gpu_column_place.h"
#include "compiler/emit/passing.h"

namespace rowjit::gpu_emit {

void ColumnEmitter::declare_tested() {
    const std::vector<const Inst*> test = few_pass();
    const Inst* element = rises_with(test);
    resident_ = loop_.is_resident();
    if (element == nullptr || element->kind != InstKind::kKept || !in_registers(*element) || !resident_) return;
    for (std::size_t i = 1; i + 1 < test.size(); ++i) {
        if (test[i]->operands.size() > 1 && scope_.value(test[i]->operands[1]).empty()) return;
    }
    const std::string name = scope_.names().fresh("tested");
    out_.line(fmt::format("float {}{};", name, all_entries(loop_)), "of each vector, for all steps");
    open_resident(loop_, scope_);
    vectors_[element] = fmt::format("{}{}", kept_.at(element->index), loop_.iterations > 1 ? "[i]" : "");
    out_.line(fmt::format("{}{} = {};", name, loop_.iterations > 1 ? "[i]" : "", tested_of(test)));
    close_resident(loop_, scope_);
    scope_.set_tested(*test.back(), name);
}

// None of rows that share a block, which are too narrow for their columns to be few.
std::vector<const Inst*> ColumnEmitter::few_pass() const {
    if (loop_.vector == 1 || scope_.kernel().schedule.rows_per_block > 1) return {};
    return passing_test(scope_.kernel(), loop_);
}

// The vector of which what is tested rises with each element, where it is of one: then whether any lane passes is
// whether the greatest element does, or the least.
const Inst* ColumnEmitter::rises_with(const std::vector<const Inst*>& test) const {
    if (test.empty()) return nullptr;
    const Inst& element = *test.front();
    const bool is_vector_of_lanes =
        element.kind == InstKind::kKept || (element.kind == InstKind::kLoad && lanes_of(element, loop_) > 1);
    // What is compared of f32 in registers takes the registers of the elements, in all steps, and a comparison a
    // lane is as good: sparsemax of 4096 f32 columns takes 0.144 ms so, 0.151 with the greatest of four (H200).
    const bool f32_elsewhere =
        element.dtype == Dtype::kF32 && element.kind == InstKind::kKept && !in_registers(element);
    if (!is_vector_of_lanes || !(is_narrow(element.dtype) || f32_elsewhere)) return nullptr;
    for (std::size_t i = 1; i < test.size(); ++i) {
        const Inst& inst = *test[i];
        const bool moves = inst.kind == InstKind::kMap && (inst.op == Op::kAdd || inst.op == Op::kSub);
        const bool rises = inst.kind == InstKind::kCast || moves || i + 1 == test.size();
        const bool alone = inst.operands.size() < 2 || !inside_.values.contains(inst.operands[1]);
        if (!rises || !alone || !is_float(scope_.dtype(inst.operands[0])) || inst.operands[0] != test[i - 1]->id)
            return nullptr;
    }
    return &element;
}

// What is compared of the vector's greatest element, or its least.
std::string ColumnEmitter::tested_of(const std::vector<const Inst*>& test) {
    const Inst& element = *test.front();
    const bool greatest = asks_the_greatest(*test.back());
    const std::string name = scope_.names().fresh(element.label + (greatest ? "_greatest" : "_least"));
    out_.line(fmt::format("const float {} = {}({});", name, greatest ? "rj_greatest_of" : "rj_least_of",
                          vectors_.at(&element)));
    scope_.bind(element.id, name);
    for (std::size_t i = 1; i + 1 < test.size(); ++i) lane_inst(*test[i]);
    return scope_.value(test.back()->operands[0]);
}

// Whether one of the lanes passes; a NaN, which would hide another element, does.
std::string ColumnEmitter::one_passes(const Inst& asked, const std::string& tested) const {
    constexpr auto kFails = [](Op op) {
        return op == Op::kGt ? "<=" : op == Op::kGe ? "<" : op == Op::kLt ? ">=" : ">";
    };
    return fmt::format("!({} {} {})", tested, kFails(asked.op), scope_.value(asked.operands[1]));
}

void ColumnEmitter::open_passing(const std::vector<const Inst*>& test) {
    if (const Inst* element = rises_with(test); element != nullptr && vectors_.contains(element)) {
        const std::string tested =
            scope_.is_tested(*test.back()) ? scope_.tested(*test.back()) + resident_entry() : tested_of(test);
        out_.open(fmt::format("if ({})", one_passes(*test.back(), tested)), "one of the vector's columns");
        const std::string inside = scope_.names().fresh(element->label + "_looked_into");
        out_.line(fmt::format("const auto {} = rj_looked_into({});", inside, vectors_.at(element)));
        vectors_[element] = inside;
        return;
    }
    const std::string passes = scope_.names().fresh("passes");
    out_.line(fmt::format("bool {} = false;", passes));
    open_lanes();
    for (const Inst* inst : test) lane_inst(*inst);
    out_.line(fmt::format("{} |= {};", passes, scope_.value(test.back()->id)));
    close_lanes();
    out_.open(fmt::format("if ({})", passes), "one of the vector's columns");
}

// Where an instruction asks whether a lane's column is a number of the row, as a loss asks for its target: which of
// its operands is the column. One vector of a row has that column; in all others a lane saves the comparison and
// what it selects, three of ten instructions of a cross-entropy's gradient.
std::optional<std::size_t> ColumnEmitter::compared_column(const Inst& inst) const {
    if (loop_.vector == 1 || inst.kind != InstKind::kMap || inst.op != Op::kEq) return std::nullopt;
    for (const std::size_t column : {0, 1}) {
        const Inst* made = made_here(inst.operands[column]);
        if (made == nullptr || made->kind != InstKind::kCoord || lane_step(made->id) != 1) continue;
        if (!inside_.values.contains(inst.operands[1 - column])) return column;
    }
    return std::nullopt;
}

// Of a sum of what is zero but where such a comparison holds, as the target's logit: a vector that has no such lane
// adds nothing. A sum of zeros is +0, to which +0 adds nothing.
bool ColumnEmitter::adds_match(const Inst& inst) const {
    if (inst.kind != InstKind::kAccumulate || !arrays_.contains(&inst)) return false;
    const Inst* asked = chooses_or_zero(scope_.kernel(), loop_, inst);
    return asked != nullptr && compared_column(*asked);
}

// For each of those whether a lane of this vector is it.
std::vector<std::string> ColumnEmitter::lane_matches() const {
    std::vector<std::string> matches;
    for (const Inst& inst : loop_.body) {
        const std::optional<std::size_t> column = compared_column(inst);
        if (!column) continue;
        const std::string first = scope_.coordinate(*made_here(inst.operands[*column]), inside_, "c");
        const std::string match = fmt::format("static_cast<unsigned>({}) - static_cast<unsigned>({}) < {}u",
                                              scope_.value(inst.operands[1 - *column]), first, loop_.vector);
        if (std::find(matches.begin(), matches.end(), match) == matches.end()) matches.push_back(match);
    }
    return matches;
}

}  // namespace rowjit::gpu_emit
