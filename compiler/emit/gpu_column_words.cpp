// Lanes that are computed two a word: the statements on words, what all lanes share as a word, and the loops over the
// two lanes of a pair between them. In which order they stand is gpu_pairs.cpp's.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/emit/gpu_column_emitter.h"
#include "compiler/emit/gpu_column_place.h"
#include "compiler/emit/gpu_pairs.h"

namespace rowjit::gpu_emit {

// Words of what all lanes share stand before the loop too.
void ColumnEmitter::declare_splats() {
    for (const Inst& inst : loop_.body) {
        if (inst.packing != Packing::kComputed) continue;
        for (const ValueId operand : inst.operands) {
            if (scope_.dtype(operand) == inst.dtype) declare_splat(operand);
        }
    }
}

void ColumnEmitter::declare_splat(ValueId value) {
    const Inst* made = made_here(value);
    const Dtype dtype = scope_.dtype(value);
    if (made == nullptr) made = constant(value);
    if (made != nullptr && made->kind == InstKind::kConst) {
        words_[value] = gpu_pair_literal(dtype, made->value);
    } else if (made == nullptr || made->kind == InstKind::kScalar || !inside_.values.contains(value)) {
        if (made != nullptr) scope_.bind_inline(*made);
        const std::string& one = scope_.value(value);
        words_[value] = scope_.row_name(is_identifier(one) ? one + "_both" : "both", "const unsigned",
                                        fmt::format("rj_pack_{0}({1}, {1})", name(dtype), one));
    }
}

// The constant of that value, wherever it stands in the kernel.
const Inst* ColumnEmitter::constant(ValueId value) const {
    const Inst* found = nullptr;
    each_inst(scope_.kernel(), [&](const Inst& inst) {
        if (inst.id == value && inst.kind == InstKind::kConst) found = &inst;
    });
    return found;
}

bool ColumnEmitter::packs_lanes() const {
    return std::any_of(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) {
        return inst.packing != Packing::kNone || packed_outs_.contains(&inst);
    });
}

bool ColumnEmitter::has_pairs() const { return std::ranges::any_of(loop_.body, &Inst::paired); }

void ColumnEmitter::pairs() {
    const PairOrder order = order_pairs(loop_, [&](const Inst& inst) { return form(inst); });
    out_.line("#pragma unroll");
    out_.open(fmt::format("for (int pair = 0; pair < {}; ++pair)", loop_.vector / 2));
    names_pair_ = false;
    for (const PairTurn& turn : order.turns) {
        for (const Inst* inst : turn.words) word_inst(*inst);
        if (!turn.lanes.empty()) lanes_of_pair(turn.lanes, order.crossing);
    }
    out_.close();
}

PairForm ColumnEmitter::form(const Inst& inst) const {
    if (before_lanes_.contains(&inst)) return PairForm::kBefore;
    if (inst.packing == Packing::kComputed || packed_outs_.contains(&inst)) return PairForm::kOnWords;
    switch (inst.kind) {
        case InstKind::kLoad:
            if (is_uniform(inst)) return PairForm::kBefore;
            return vectors_.contains(&inst) && !is_condition(inst) ? PairForm::kAnywhere : PairForm::kLanes;
        case InstKind::kKept:
            return is_condition(inst) || slot(inst).is_divisor ? PairForm::kLanes : PairForm::kAnywhere;
        case InstKind::kKeep:
            if (slot(inst).is_divisor) return PairForm::kLanes;
            [[fallthrough]];
        case InstKind::kAccumulate: return arrays_.contains(&inst) ? PairForm::kLanes : PairForm::kBefore;
        case InstKind::kCast: {
            const bool widens = inst.dtype == Dtype::kF32 && is_narrow(scope_.dtype(inst.operands[0]));
            return widens ? PairForm::kAnywhere : PairForm::kLanes;
        }
        case InstKind::kConst:
        case InstKind::kScalar:
        case InstKind::kExtent:
        case InstKind::kCoord: return PairForm::kAnywhere;
        default: return PairForm::kLanes;
    }
}

void ColumnEmitter::word_inst(const Inst& inst) {
    if (const auto packed = packed_outs_.find(&inst); packed != packed_outs_.end())
        return out_.line(fmt::format("{}.words[pair] = {};", packed->second, word(inst.operands[0])), inst.comment);
    const auto operand = [&](std::size_t i) {
        if (i >= inst.operands.size()) return std::string();
        const ValueId id = inst.operands[i];
        return scope_.dtype(id) == inst.dtype ? word(id) : conditions_of_pair(id);
    };
    words_[inst.id] = scope_.names().fresh(inst.label);
    out_.line(fmt::format("const unsigned {} = {};", words_.at(inst.id),
                          fmt::format(fmt::runtime(info(inst.op).packed), operand(0), operand(1), operand(2),
                                      name(inst.dtype))),
              inst.comment);
}

// Both lanes of a value, by elements of its vector or by the name of its word.
std::string ColumnEmitter::word(ValueId value) const {
    if (const auto named = words_.find(value); named != words_.end()) return named->second;
    const Inst* made = made_here(value);
    RJ_CHECK(made != nullptr && vectors_.contains(made), "emit gpu: {}: %{} is in no word", scope_.kernel().name,
             value);
    const std::string& vec = vectors_.at(made);
    if (made->kind == InstKind::kLoad && lanes_of(*made, loop_) == 1) return fmt::format("rj_both({}.words[0])", vec);
    const std::vector<int>& order = made->access.lanes;
    if (order.empty()) return vec + ".words[pair]";
    if (!flips(order)) return fmt::format("rj_two({0}, {1}[2 * pair], {1}[2 * pair + 1])", vec, orders_.at(made));
    const std::string there =
        order[0] > 1 ? fmt::format("{}.words[pair ^ {}]", vec, order[0] / 2) : vec + ".words[pair]";
    return order[0] % 2 == 0 ? there : fmt::format("rj_swapped({})", there);
}

std::string ColumnEmitter::conditions_of_pair(ValueId condition) {
    if (const Inst* made = made_here(condition); made != nullptr && form(*made) == PairForm::kAnywhere)
        RJ_CHECK(scope_.bind_inline(*made), "emit gpu: {}: {} is in no place", scope_.kernel().name, made->label);
    const auto each = crossing_.find(condition);
    return each == crossing_.end() ? scope_.value(condition) : fmt::format("{0}[0], {0}[1]", each->second);
}

// The statements of one turn, once for what both lanes have alike and then for each of the two, and the words of what
// they round.
void ColumnEmitter::lanes_of_pair(const std::vector<const Inst*>& all, const std::set<ValueId>& crossing) {
    in_lanes_.clear();
    lane_divisors_.clear();
    std::vector<const Inst*> lanes;
    for (const Inst* inst : all) {
        if (!inst->paired) {
            lanes.push_back(inst);
            continue;
        }
        if (!std::exchange(names_pair_, true)) out_.line("const int l = 2 * pair;", "of what both lanes have alike");
        name_operands(*inst);
        lane_inst(*inst);
        if (inst->packing == Packing::kRounded) round_word(*inst, scope_.value(inst->id), scope_.value(inst->id));
    }
    if (lanes.empty()) return;
    std::map<const Inst*, std::string> rounded;
    for (const Inst* inst : lanes) {
        const bool rounds = inst->packing == Packing::kRounded;
        if (!rounds && !crossing.contains(inst->id)) continue;
        const std::string array = scope_.names().fresh(inst->label + "_pair");
        out_.line(fmt::format("{} {}[2];", gpu_value_type(inst->dtype), array));
        scope_.set_place(inst->id, array + "[l % 2]");
        (rounds ? rounded[inst] : crossing_[inst->id]) = array;
    }
    out_.line("#pragma unroll");
    out_.open("for (int l = 2 * pair; l < 2 * pair + 2; ++l)");
    for (const Inst* inst : lanes) {
        name_operands(*inst);
        lane_inst(*inst);
    }
    out_.close();
    for (const Inst* inst : lanes) {
        if (inst->packing != Packing::kRounded) continue;
        round_word(*inst, rounded.at(inst) + "[0]", rounded.at(inst) + "[1]");
    }
}

void ColumnEmitter::round_word(const Inst& inst, const std::string& first, const std::string& second) {
    words_[inst.id] = scope_.names().fresh(inst.label);
    out_.line(
        fmt::format("const unsigned {} = rj_pack_{}({}, {});", words_.at(inst.id), name(inst.dtype), first, second));
}

// Before a lane's statement, what it reads of words, vectors and coordinates, unless this turn has it already.
void ColumnEmitter::name_operands(const Inst& inst) {
    each_use(inst, [&](ValueId value) { name_operand(value); });
}

void ColumnEmitter::name_operand(ValueId value) {
    const Inst* made = made_here(value);
    if (made == nullptr || !in_lanes_.insert(value).second) return;
    if (made->packing != Packing::kNone) {
        const std::string lane_name = scope_.names().fresh(made->label + "_lane");
        out_.line(fmt::format("const float {} = rj_half<{}>({}, l % 2);", lane_name, gpu_storage_type(made->dtype),
                              words_.at(value)));
        return scope_.bind(value, lane_name);
    }
    if (form(*made) != PairForm::kAnywhere) return;
    name_operands(*made);
    lane_inst(*made);
}

}  // namespace rowjit::gpu_emit
