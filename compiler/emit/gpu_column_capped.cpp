// tanh of a quotient by a number of the row, as softly capped logits are. Their size is mostly below the cap's, where a
// polynomial is all of it, so that the lanes of a vector have theirs together, in front of the others' instructions,
// and one branch to what large ones need. A cross-entropy of capped bf16 logits was bound by three slow instructions
// and 27 others for each of them (docs/experiments/gpu-arithmetic.md).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "compiler/emit/gpu_column_emitter.h"

namespace rowjit::gpu_emit {

namespace {

// What a number is scaled by that is a cap's: tanh(0.8 x) of a GELU is as often beyond as near.
constexpr double kMostOfCap = 0.25;

std::string_view functions_of(const Inst& tanh) {
    if (!tanh.narrow) return "rj_tanh_near_zero, rj_tanh";
    return tanh.part == TanhPart::kSlope ? "rj_tanh_slope_near_zero, rj_tanh_slope_narrow"
                                         : "rj_tanh_near_zero, rj_tanh_narrow";
}

}  // namespace

// x / c of a number of the row, or of a constant as plan/inverse and passes/precision write it.
bool ColumnEmitter::is_below_cap(ValueId value) const {
    const Inst* made = made_here(value);
    if (made == nullptr || made->kind != InstKind::kMap || made->dtype != Dtype::kF32) return false;
    if (made->op == Op::kDiv) return !inside_.values.contains(made->operands[1]);
    if (made->op != Op::kMul && made->op != Op::kFma) return false;
    return std::any_of(made->operands.begin(), made->operands.begin() + 2, [&](ValueId factor) {
        const Inst* scale = constant(factor);
        return scale != nullptr && std::fabs(scale->value) <= kMostOfCap;
    });
}

// Whether an instruction may stand in front of the lanes as well, which have it again: the compiler computes it once.
// Not what has arrays of its own, as random numbers and another tanh have.
bool ColumnEmitter::may_stand_before(const Inst& inst) const {
    switch (inst.kind) {
        case InstKind::kConst:
        case InstKind::kScalar:
        case InstKind::kCast: return true;
        case InstKind::kMap: return inst.dtype == Dtype::kF32 && inst.op != Op::kUniform && inst.op != Op::kTanh;
        default: return is_uniform(inst) || vectors_.contains(&inst);
    }
}

// Adds what a value of the column is made of here. Whether all of it may stand in front of the lanes.
bool ColumnEmitter::find_parts(ValueId value, std::set<const Inst*>* parts) const {
    const Inst* made = made_here(value);
    if (made == nullptr || !parts->insert(made).second) return true;
    return may_stand_before(*made) &&
           std::ranges::all_of(made->operands, [&](ValueId operand) { return find_parts(operand, parts); });
}

// In front of the lanes: of each such tanh its argument, lane by lane, and then the tanh.
void ColumnEmitter::capped() {
    if (by_pairs()) return;
    std::set<const Inst*> parts;
    for (const Inst& inst : loop_.body) {
        if (inst.kind != InstKind::kMap || inst.op != Op::kTanh || inst.dtype != Dtype::kF32) continue;
        std::set<const Inst*> own;
        if (inst.part == TanhPart::kPlusOne || !is_below_cap(inst.operands[0]) || !find_parts(inst.operands[0], &own))
            continue;
        parts.merge(own);
        capped_[&inst] = lane_array(inst.label, inst.dtype);
    }
    if (capped_.empty()) return;
    open_lanes();
    for (const Inst& inst : loop_.body) {
        if (parts.contains(&inst)) lane_inst(inst);
        if (const auto lanes = capped_.find(&inst); lanes != capped_.end())
            out_.line(fmt::format("{}[{}] = {};", lanes->second, lane(), scope_.value(inst.operands[0])));
    }
    close_lanes();
    for (const auto& [inst, lanes] : capped_)
        out_.line(fmt::format("rj_mostly_near_zero<{}>({});", functions_of(*inst), lanes), inst->comment);
}

}  // namespace rowjit::gpu_emit
