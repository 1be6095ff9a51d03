// Where a value goes: whether every way from it ends in a rounding or a sum that hides what it is off by, and what made
// it. The rest of Uses is in precision_functions.cpp (logistic functions, erf and tanh) and precision_weights.cpp (the
// exponentials of a softmax).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <variant>

#include "base/dtype.h"
#include "compiler/passes/precision_uses.h"
#include "dsl/ops.h"

namespace rowjit::precision {

Uses::Uses(const Kernel& kernel, bool is_gpu) : kernel_(kernel), is_gpu_(is_gpu) {
    each_inst(kernel, [&](const Inst& inst) {
        for (const ValueId operand : inst.operands) uses_[operand].push_back(&inst);
        if (inst.id >= 0) made_by_[inst.id] = &inst;
        if (inst.kind == InstKind::kKept) kept_[inst.index].push_back(inst.id);
        if (inst.kind == InstKind::kKeep) keeps_[inst.index] = inst.operands[0];
        if (inst.kind == InstKind::kAccumulate) terms_[inst.index] = inst.operands[0];
        const bool stores = inst.kind == InstKind::kStore;
        stores_f32_ =
            stores_f32_ || (stores && kernel.tensors[static_cast<std::size_t>(inst.index)].dtype == Dtype::kF32);
    });
    for (const Stmt& stmt : kernel.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        has_one_column_ = has_one_column_ && loop->columns == 1;
        for (const Inst& inst : loop->body) in_columns_.insert(inst.id);
    }
    add_results(kernel.body);
    add_results(kernel.after);
}

bool Uses::only_scale(ValueId value) {
    return all_of(value, only_scale_, [&](const Inst& use) {
        if (use.kind != InstKind::kMap) return ends_narrow(use, [&](ValueId next) { return only_scale(next); });
        if (use.op == Op::kLog) return is_plain_result(value);
        return keeps_part(use) && is_rounded(use.id);
    });
}

bool Uses::is_scaled_or_summed(ValueId value) {
    return all_of(value, is_scaled_or_summed_, [&](const Inst& use) {
        if (use.kind == InstKind::kMap) return (keeps_part(use) || hardly_cancels(use)) && is_scaled_or_summed(use.id);
        return ends_summed(use, [&](ValueId next) { return is_scaled_or_summed(next); });
    });
}

bool Uses::is_scaled_to_bf16(ValueId value) {
    return all_of(value, is_scaled_to_bf16_, [&](const Inst& use) {
        const auto holds = [&](ValueId next) { return is_scaled_to_bf16(next); };
        switch (use.kind) {
            case InstKind::kCast: return use.dtype == Dtype::kBf16;
            case InstKind::kKeep: return kept_ends(use, holds);
            case InstKind::kAccumulate: {
                const auto sum = sums_.find(use.index);
                return sum != sums_.end() && use.operands.size() == 1 && is_not_negative(value) &&
                       holds(sum->second.result);
            }
            case InstKind::kMap: {
                const bool squares = use.operands.size() == 2 && use.operands[0] == use.operands[1];
                return !squares && is_f32_map(use, use.op) && keeps_part(use) && holds(use.id);
            }
            default: return false;
        }
    });
}

bool Uses::is_summed_and_rounded(ValueId value) {
    return all_of(value, is_summed_and_rounded_, [&](const Inst& use) {
        if (use.kind == InstKind::kMap)
            return (keeps_part(use) || hardly_cancels(use)) && is_summed_and_rounded(use.id);
        if (use.kind == InstKind::kAccumulate) return adds_up(use) && ends_in_rounding(sums_.at(use.index).result);
        return ends_narrow(use, [&](ValueId next) { return is_summed_and_rounded(next); });
    });
}

bool Uses::ends_in_rounding(ValueId value) {
    return all_of(value, ends_in_rounding_, [&](const Inst& use) {
        if (is_f32_map(use, Op::kLog)) return is_log_of_weights(use) || exponential_of_mixture(use) != nullptr;
        if (is_f32_map(use, Op::kExp)) return is_rounded(use.id);
        if (use.kind == InstKind::kMap) return keeps_error(use.op) && ends_in_rounding(use.id);
        if (const auto greatest = greatest_of(use)) return ends_in_rounding(*greatest);
        return ends_summed(use, [&](ValueId next) { return ends_in_rounding(next); });
    });
}

bool Uses::adds_given_product(ValueId value) {
    if (is_product_of_given(value)) return true;
    const Inst* inst = maker(value);
    if (inst == nullptr) return false;
    if (is_f32_map(*inst, Op::kDiv)) return adds_given_product(inst->operands[0]);
    return is_signed_sum(*inst) &&
           any_operand(*inst, 0, adds_given_product_, [&](ValueId next) { return adds_given_product(next); });
}

bool Uses::is_product_of_given(ValueId value) {
    const Inst* inst = maker(value);
    return inst != nullptr && is_f32_map(*inst, Op::kMul) && is_given(inst->operands[0]) && is_given(inst->operands[1]);
}

bool Uses::may_be_all_of(ValueId product, ValueId other) {
    if (has_one_column_) return true;
    const std::vector<ValueId> factors = factors_of_columns(product);
    std::map<ValueId, bool> known;
    return !factors.empty() && !in_columns_.contains(other) && comes_of_sum(other, factors, &known);
}

bool Uses::may_cancel_factor(const Inst& sum, ValueId product, ValueId other) {
    if (is_factor(product, other)) return false;
    const std::vector<ValueId> first = factors_of_columns(product);
    const std::vector<ValueId> second = factors_of_columns(other);
    const std::vector<ValueId>& fewer = first.size() < second.size() ? first : second;
    const std::vector<ValueId>& more = first.size() < second.size() ? second : first;
    const auto is_shared = [&](ValueId factor) {
        return std::ranges::any_of(more, [&](ValueId other) { return are_same(factor, other); });
    };
    return !fewer.empty() && fewer.size() < more.size() && std::ranges::all_of(fewer, is_shared) &&
           !hardly_cancels(sum);
}

// Whether `other` is one of the two that are multiplied, or its negative.
bool Uses::is_factor(ValueId product, ValueId other) {
    const Inst* multiplied = maker(product);
    if (multiplied == nullptr || !is_f32_map(*multiplied, Op::kMul)) return false;
    const Inst* negative = maker(other);
    if (negative != nullptr && is_f32_map(*negative, Op::kNeg)) other = negative->operands[0];
    return std::ranges::any_of(multiplied->operands, [&](ValueId factor) { return are_same(factor, other); });
}

// Those factors of a value that a column has one of, where it is not 0 by choice.
std::vector<ValueId> Uses::factors_of_columns(ValueId value) const {
    std::vector<ValueId> all;
    std::set<ValueId> seen;
    std::vector<ValueId> next = {value};
    while (!next.empty()) {
        const ValueId factor = next.back();
        next.pop_back();
        if (!in_columns_.contains(factor) || !seen.insert(factor).second) continue;
        const Inst* inst = maker(factor);
        const bool is_map = inst != nullptr && inst->kind == InstKind::kMap;
        if (is_map && scales(*inst)) {
            next.insert(next.end(), inst->operands.begin(), inst->operands.end());
        } else if (is_map && inst->op == Op::kSelect && is_constant(inst->operands[1], 0)) {
            next.push_back(inst->operands[2]);
        } else {
            all.push_back(factor);
        }
    }
    return all;
}

// Whether a multiple of a sum over columns is in the value, of products with any of these.
bool Uses::comes_of_sum(ValueId value, const std::vector<ValueId>& of, std::map<ValueId, bool>* known) {
    if (divergences_.contains(value)) return true;
    if (const auto term = terms_of_.find(value); term != terms_of_.end()) {
        const std::vector<ValueId> summed = factors_of_columns(term->second);
        return std::ranges::any_of(of, [&](ValueId factor) {
            return std::ranges::any_of(summed, [&](ValueId other) { return are_same(factor, other); });
        });
    }
    const Inst* inst = maker(value);
    if (inst == nullptr) return false;
    const bool chooses = inst->kind == InstKind::kMap && inst->op == Op::kSelect;
    const bool passes =
        inst->kind == InstKind::kCast || chooses || (inst->kind == InstKind::kMap && is_smooth(inst->op));
    return passes &&
           any_operand(*inst, chooses ? 1 : 0, *known, [&](ValueId next) { return comes_of_sum(next, of, known); });
}

bool Uses::is_roughly_product(const Inst& sum) {
    if (!is_f32_map(sum, Op::kFma) || !is_constant(sum.operands[1])) return false;
    const Inst* low = maker(sum.operands[2]);
    if (low == nullptr || !is_f32_map(*low, Op::kMul) || !is_constant(low->operands[1])) return false;
    const double part = maker(low->operands[1])->value / maker(sum.operands[1])->value;
    if (low->operands[0] != sum.operands[0] || std::fabs(part) > std::numeric_limits<float>::epsilon()) return false;
    return is_scaled_or_summed(sum.id) || is_tanh_argument(sum.id);
}

bool Uses::adds_up(const Inst& use) const {
    if (use.kind == InstKind::kCarry)
        return kernel_.carried[static_cast<std::size_t>(use.index)].monoid == Monoid::kSum;
    const auto sum = use.kind == InstKind::kAccumulate ? sums_.find(use.index) : sums_.end();
    return sum != sums_.end() && sum->second.plain;
}

void Uses::add_results(const Block& block) {
    for (const Stmt& stmt : block) {
        const auto* reduce = std::get_if<AllReduce>(&stmt.node);
        if (reduce == nullptr) continue;
        std::size_t result = 0;
        for (const int index : reduce->accumulators) {
            const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
            if (accumulator.monoid == Monoid::kSum)
                sums_[index] = Sum{reduce->results[result], !accumulator.compensated};
            if (accumulator.monoid == Monoid::kMax) greatest_[index] = reduce->results[result];
            if (accumulator.components() == 1 && terms_.contains(index))
                terms_of_[reduce->results[result]] = terms_.at(index);
            // Of pairs only where weights are exact: where a mixture's parts are not what their sums are of, its
            // logarithm is off by as much.
            const bool both = accumulator.monoid == Monoid::kDivergence && !is_gpu_;
            const bool pairs = accumulator.monoid == Monoid::kMaxSumExp && !is_gpu_;
            if (accumulator.monoid == Monoid::kMax || pairs || both) maxima_[reduce->results[result]] = index;
            if (both) maxima_[reduce->results[result + 2]] = index;
            const bool of_one_row = accumulator.monoid == Monoid::kMaxSumExp ||
                                    accumulator.monoid == Monoid::kWeighted || accumulator.monoid == Monoid::kEntropy;
            if (accumulator.monoid == Monoid::kMax || of_one_row) peaks_[reduce->results[result]] = index;
            const auto parts = static_cast<std::size_t>(accumulator.components());
            if (sums_exponentials(accumulator.monoid) && accumulator.monoid != Monoid::kMaxSumExp)
                divergences_.insert(reduce->results[result + parts - 1]);
            result += parts;
        }
    }
}

// The maximum of a row that a column's value may be.
std::optional<ValueId> Uses::greatest_of(const Inst& use) const {
    const auto found = use.kind == InstKind::kAccumulate ? greatest_.find(use.index) : greatest_.end();
    return found == greatest_.end() ? std::nullopt : std::optional(found->second);
}

bool Uses::is_rounded(ValueId value) {
    return all_of(value, is_rounded_, [&](const Inst& use) {
        if (use.kind != InstKind::kMap) return ends_narrow(use, [&](ValueId next) { return is_rounded(next); });
        const bool other_is_rare = use.op == Op::kAdd && is_rare(use.operands[use.operands[0] == value ? 1 : 0]);
        return (keeps_part(use) || other_is_rare || hardly_cancels(use)) && is_rounded(use.id);
    });
}

// Whether it is only multiplied and divided before it is rounded to bf16 or f16.
bool Uses::is_scaled(ValueId value) {
    return all_of(value, is_scaled_, [&](const Inst& use) {
        if (use.kind == InstKind::kMap) return keeps_part(use) && is_scaled(use.id);
        return ends_narrow(use, [&](ValueId next) { return is_scaled(next); });
    });
}

// What made a value of a column, where a loop read it back.
const Inst* Uses::maker(ValueId value) const {
    const auto made = made_by_.find(value);
    if (made == made_by_.end()) return nullptr;
    const Inst* inst = made->second;
    return inst->kind == InstKind::kKept ? maker(keeps_.at(inst->index)) : inst;
}

// Whether two loops made the same value of a column.
bool Uses::are_same(ValueId a, ValueId b) {
    const Inst* first = maker(a);
    const Inst* second = maker(b);
    if (first == second) return first != nullptr || a == b;
    if (first == nullptr || second == nullptr || first->kind != second->kind || first->op != second->op ||
        first->dtype != second->dtype || first->index != second->index || first->axis != second->axis ||
        first->value != second->value || first->coords != second->coords)
        return false;
    const auto [known, is_new] = are_same_.try_emplace({a, b}, true);
    if (is_new) {
        known->second =
            std::equal(first->operands.begin(), first->operands.end(), second->operands.begin(), second->operands.end(),
                       [&](ValueId one, ValueId other) { return are_same(one, other); });
    }
    return known->second;
}

// As it is in memory, its negative, chosen of such, or a sum or a quotient of such: no function has bounded it.
bool Uses::is_given(ValueId value) {
    const Inst* inst = maker(value);
    if (inst == nullptr || inst->kind == InstKind::kLoad) return inst != nullptr;
    if (inst->kind == InstKind::kCast || is_f32_map(*inst, Op::kDiv)) return is_given(inst->operands[0]);
    const bool chooses = inst->kind == InstKind::kMap && inst->op == Op::kSelect;
    return (chooses || is_signed_sum(*inst)) &&
           any_operand(*inst, chooses ? 1 : 0, is_given_, [&](ValueId next) { return is_given(next); });
}

bool Uses::is_signed_sum(const Inst& inst) {
    return inst.kind == InstKind::kMap && (inst.op == Op::kAdd || inst.op == Op::kSub || inst.op == Op::kNeg);
}

// Whether an operand's error is no larger a part of the result: of a product, a quotient, a choice or a bound (where an
// error crosses it, it is about as large as the operand), a function that bends less than a line through 0, or a sum of
// what is not negative.
bool Uses::keeps_part(const Inst& use) {
    const auto is_kept = [&](ValueId term) { return is_not_negative(term); };
    switch (use.op) {
        case Op::kAbs:
        case Op::kMax:
        case Op::kMin:
        case Op::kSelect:
        case Op::kSqrt:
        case Op::kRsqrt: return true;
        case Op::kTanh: return use.part == TanhPart::kItself;
        case Op::kAdd:
        case Op::kLog1p: return std::ranges::all_of(use.operands, is_kept);
        default: return scales(use);
    }
}

// Whether a value is known not to be negative.
bool Uses::is_not_negative(ValueId value) {
    const auto [known, is_new] = is_not_negative_.try_emplace(value, false);
    if (is_new) known->second = find_not_negative(value);
    return known->second;
}

bool Uses::find_not_negative(ValueId value) {
    if (const auto sum = terms_of_.find(value); sum != terms_of_.end()) return is_not_negative(sum->second);
    const Inst* inst = maker(value);
    if (inst == nullptr) return false;
    if (inst->kind == InstKind::kConst) return inst->value >= 0;
    if (inst->kind == InstKind::kCast) return is_not_negative(inst->operands[0]);
    if (inst->kind != InstKind::kMap) return false;
    const auto is = [&](std::size_t operand) { return is_not_negative(inst->operands[operand]); };
    switch (inst->op) {
        case Op::kExp:
        case Op::kAbs:
        case Op::kSqrt:
        case Op::kRsqrt: return true;
        case Op::kLog1p: return is(0);
        case Op::kTanh: return inst->part != TanhPart::kItself || is(0);
        case Op::kMul: return inst->operands[0] == inst->operands[1] || (is(0) && is(1));
        case Op::kAdd:
        case Op::kDiv:
        case Op::kMin: return is(0) && is(1);
        case Op::kMax: return is(0) || is(1);
        case Op::kSelect: return is(1) && is(2);
        default: return false;
    }
}

// Whether a value is known not to be positive, as what is not negative is where its sign is turned.
bool Uses::is_not_positive(ValueId value) {
    const Inst* inst = maker(value);
    if (inst == nullptr) return false;
    if (inst->kind == InstKind::kConst) return inst->value <= 0;
    if (inst->kind != InstKind::kMap) return false;
    const auto below = [&](std::size_t operand) { return is_not_positive(inst->operands[operand]); };
    const auto above = [&](std::size_t operand) { return is_not_negative(inst->operands[operand]); };
    switch (inst->op) {
        case Op::kNeg: return above(0);
        case Op::kSub: return below(0) && above(1);
        case Op::kMul: return (below(0) && above(1)) || (above(0) && below(1));
        case Op::kMin: return below(0) || below(1);
        default: return false;
    }
}

bool Uses::is_rare(ValueId value) const {
    const auto made = made_by_.find(value);
    return made != made_by_.end() && made->second->kind == InstKind::kMap && made->second->op == Op::kSelect &&
           is_constant(made->second->operands[2], 0);
}

bool Uses::is_plain_result(ValueId value) const {
    return std::any_of(sums_.begin(), sums_.end(),
                       [&](const auto& sum) { return sum.second.plain && sum.second.result == value; });
}

}  // namespace rowjit::precision
