// What an exponential, an error function or a hyperbolic tangent may be off by: whether a sum on its way has another
// term that could cancel it, by the factors of both.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

#include "base/dtype.h"
#include "compiler/passes/precision_uses.h"
#include "dsl/ops.h"

namespace rowjit::precision {

bool Uses::is_logistic_quotient(const Inst& quotient) {
    const Inst* exponential = exponential_beside_one(quotient.operands[1]);
    return exponential != nullptr && hides_logistic(quotient.id, *exponential);
}

bool Uses::is_one_or_more(ValueId value) {
    const Inst* sum = maker(value);
    if (sum == nullptr || !is_f32_map(*sum, Op::kAdd)) return false;
    const auto is = [&](ValueId constant, ValueId other) {
        return is_constant(constant) && maker(constant)->value >= 1 && is_not_negative(other);
    };
    return is(sum->operands[0], sum->operands[1]) || is(sum->operands[1], sum->operands[0]);
}

bool Uses::is_fraction(ValueId value) {
    const Inst* exponential = maker(value);
    return exponential != nullptr && is_f32_map(*exponential, Op::kExp) && is_not_positive(exponential->operands[0]);
}

bool Uses::is_beside_one(const Inst& erf) {
    return all_of(erf.id, is_beside_one_, [&](const Inst& sum) {
        return is_f32_map(sum, Op::kAdd) && (is_constant(sum.operands[0], 1) || is_constant(sum.operands[1], 1)) &&
               (is_scaled(sum.id) || (!reads_f16() && is_rounded(sum.id)));
    });
}

bool Uses::is_of_its_own(const Inst& tanh) {
    constexpr double kMostInExponent = 256;
    return is_scaled(tanh.id) || (!reads_f16() && is_rounded(tanh.id)) ||
           (is_lost_apart(tanh.id, tanh, kMany) && times_in_exponent(tanh.id) <= kMostInExponent);
}

bool Uses::is_tanh_argument(ValueId value) {
    return all_of(value, is_tanh_argument_, [&](const Inst& use) {
        return is_f32_map(use, Op::kTanh) &&
               (use.part != TanhPart::kItself || is_of_its_own(use) || is_lost_apart(use.id, use, kFewUnits));
    });
}

std::pair<TanhPart, const Inst*> Uses::part_of_tanh(const Inst& sum) {
    const Inst* tanh = nullptr;
    TanhPart part = TanhPart::kItself;
    if (is_f32_map(sum, Op::kSub) && is_constant(sum.operands[0], 1)) {
        const Inst* square = made_as(Op::kMul, sum.operands[1]);
        const bool squares = square != nullptr && square->operands[0] == square->operands[1];
        tanh = squares ? made_as(Op::kTanh, square->operands[0]) : nullptr;
        part = TanhPart::kSlope;
    } else if (is_f32_map(sum, Op::kAdd)) {
        for (const std::size_t one : {0, 1}) {
            if (is_constant(sum.operands[one], 1)) tanh = made_as(Op::kTanh, sum.operands[1 - one]);
        }
        part = TanhPart::kPlusOne;
    }
    return {part, tanh != nullptr && hides_part(sum) ? tanh : nullptr};
}

// What made the value, if that is such a map and no loop read it back.
const Inst* Uses::made_as(Op op, ValueId value) const {
    const auto made = made_by_.find(value);
    return made != made_by_.end() && is_f32_map(*made->second, op) ? made->second : nullptr;
}

// Whether a few units in the last place are lost, or added to what the part has no reason to cancel.
bool Uses::hides_part(const Inst& part) { return is_rounded(part.id) || is_lost_apart(part.id, part, kFewUnits); }

bool Uses::is_beside_constant(const Inst& exponential) {
    const auto uses = uses_.find(exponential.id);
    if (!is_f32_map(exponential, Op::kExp) || uses == uses_.end() || !stores_f32_) return false;
    return std::ranges::any_of(uses->second, [&](const Inst* use) {
        if (!is_f32_map(*use, Op::kSub) && !is_f32_map(*use, Op::kAdd)) return false;
        const Inst* other = maker(use->operands[use->operands[0] == exponential.id ? 1 : 0]);
        return other != nullptr && other->kind == InstKind::kConst && (use->op == Op::kSub || other->value < 0) &&
               !ends_in_rounding(use->id);
    });
}

bool Uses::is_within(ValueId value, double most) const {
    const auto [least, greatest] = bounds(value);
    return -most <= least && greatest <= most;
}

std::pair<double, double> Uses::bounds(ValueId value) const {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const Inst* inst = maker(value);
    if (inst != nullptr && inst->kind == InstKind::kConst) return {inst->value, inst->value};
    if (inst == nullptr || !(is_f32_map(*inst, Op::kMax) || is_f32_map(*inst, Op::kMin)))
        return {-kInfinity, kInfinity};
    const auto [a, b] = bounds(inst->operands[0]);
    const auto [c, d] = bounds(inst->operands[1]);
    if (inst->op == Op::kMax) return {std::max(a, c), std::max(b, d)};
    return {std::min(a, c), std::min(b, d)};
}

// How often a value is in an exponent, at most: what it is multiplied by on its way there.
double Uses::times_in_exponent(ValueId value) {
    const auto [known, is_new] = times_in_exponent_.try_emplace(value, 0);
    if (!is_new) return known->second;
    double most = 0;
    const auto uses = uses_.find(value);
    if (uses == uses_.end()) return 0;
    for (const Inst* use : uses->second) {
        double times = use->kind == InstKind::kMap ? times_in_exponent(use->id) : 0;
        if (is_f32_map(*use, Op::kExp)) times = 1;
        if (use->kind == InstKind::kKeep && kept_.contains(use->index)) {
            for (const ValueId kept : kept_.at(use->index)) times = std::max(times, times_in_exponent(kept));
        }
        if (const auto greatest = greatest_of(*use)) times = times_in_exponent(*greatest);
        if (times > 0) times *= factor_of(*use, value);
        most = std::max(most, times);
    }
    return times_in_exponent_[value] = most;
}

// What a map multiplies an operand by, at most.
double Uses::factor_of(const Inst& use, ValueId operand) const {
    if (use.kind != InstKind::kMap || (use.op != Op::kMul && use.op != Op::kDiv && use.op != Op::kFma)) return 1;
    if (use.op == Op::kFma && operand != use.operands[0] && operand != use.operands[1]) return 1;
    const ValueId other = use.operands[operand == use.operands[0] ? 1 : 0];
    if (!is_constant(other) || other == operand) return std::numeric_limits<double>::infinity();
    const double number = std::fabs(maker(other)->value);
    return use.op == Op::kDiv ? 1 / number : number;
}

const Uses::Factors& Uses::factors(ValueId value) {
    const auto [known, is_new] = factors_.try_emplace(value);
    if (is_new) known->second = find_factors(value);
    return known->second;
}

// What of a product is not in the other of a sum's terms as well.
Uses::Factors Uses::without_common(const Factors& term, const Factors& other) {
    Factors rest;
    const auto times = [](const Factors& in, ValueId factor) {
        const auto found = in.find(factor);
        return found == in.end() ? 0 : found->second;
    };
    for (const Factors* one : {&term, &other}) {
        for (const auto& [factor, count] : *one) {
            const int least = std::min(times(term, factor), times(other, factor));
            if (times(term, factor) != least) rest[factor] = times(term, factor) - least;
        }
    }
    return rest;
}

Uses::Factors Uses::product(Factors left, const Factors& right, int times) {
    for (const auto& [factor, count] : right) left[factor] += times * count;
    std::erase_if(left, [](const auto& factor) { return factor.second == 0; });
    return left;
}

// What the factors are made of, of what is loaded, narrow or the row's.
std::set<ValueId> Uses::numbers(const Factors& of) const {
    std::set<ValueId> all;
    for (const auto& [factor, times] : of) {
        const auto made_of = numbers_.find(factor);
        if (made_of == numbers_.end()) all.insert(factor);
        if (made_of != numbers_.end()) all.insert(made_of->second.begin(), made_of->second.end());
    }
    return all;
}

Uses::Factors Uses::find_factors(ValueId value) {
    const Inst* inst = maker(value);
    if (inst == nullptr) return {{value, 1}};
    if (inst->kind == InstKind::kConst || inst->kind == InstKind::kScalar) return {};
    const bool is_made = inst->kind == InstKind::kMap || inst->kind == InstKind::kCast;
    if (!is_made || is_narrow(inst->dtype)) return {{inst->id, 1}};
    const bool is_f32 = inst->dtype == Dtype::kF32;
    if (is_f32 && (inst->kind == InstKind::kCast || inst->op == Op::kNeg)) return factors(inst->operands[0]);
    const auto of = [&](std::size_t operand) { return factors(inst->operands[operand]); };
    if (is_f32_map(*inst, Op::kMul)) return product(of(0), of(1), 1);
    if (is_f32_map(*inst, Op::kDiv)) return product(of(0), of(1), -1);
    if (is_sum(*inst)) {
        const auto [a, b] = terms(*inst);
        return sum(inst->id, a, b);
    }
    if (is_f32_map(*inst, Op::kSelect)) return choice(*inst);
    std::set<ValueId>& made_of = numbers_[inst->id];
    for (std::size_t i = 0; i < inst->operands.size(); ++i) made_of.merge(numbers(of(i)));
    return {{inst->id, 1}};
}

std::pair<Uses::Factors, Uses::Factors> Uses::terms(const Inst& sum) {
    const auto of = [&](std::size_t operand) { return factors(sum.operands[operand]); };
    if (sum.op == Op::kFma) return {product(of(0), of(1), 1), of(2)};
    return {of(0), of(1)};
}

// A sum is a factor beside those that both terms have.
Uses::Factors Uses::sum(ValueId id, const Factors& a, const Factors& b) { return a == b ? a : joined(id, a, b, {}); }

// Of what is chosen of two, a 0 is a multiple of anything. What the condition is of is in it too.
Uses::Factors Uses::choice(const Inst& select) {
    const bool first_is_zero = is_constant(select.operands[1], 0);
    const bool second_is_zero = is_constant(select.operands[2], 0);
    const Factors& first = factors(select.operands[first_is_zero ? 2 : 1]);
    const Factors& second = factors(select.operands[second_is_zero ? 1 : 2]);
    return joined(select.id, first, second, numbers(factors(select.operands[0])));
}

// What is made of two, and of numbers besides: a factor beside those that both have.
Uses::Factors Uses::joined(ValueId id, const Factors& a, const Factors& b, std::set<ValueId> made_of) {
    const Factors rest_of_a = without_common(a, b);
    Factors both = product(a, rest_of_a, -1);
    made_of.merge(numbers(rest_of_a));
    made_of.merge(numbers(without_common(b, a)));
    numbers_[id] = std::move(made_of);
    ++both[id];
    return both;
}

// Whether a sum is, but for what both of its terms are multiplied by, a function of one narrow number, as the
// derivative of x / (1 + e^-x) is. It is near 0 where that number is near a zero of the function, and numbers of 8
// or 11 bits come near it by some 2^-11, which leaves f32 the bits that the rounding needs. Not where a term is a
// constant, or where that zero is 0, as that of e^x - e^-x is: there numbers are dense.
bool Uses::hardly_cancels(const Inst& use) {
    if (!is_sum(use)) return false;
    const auto [known, is_new] = hardly_cancels_.try_emplace(use.id, false);
    if (!is_new) return known->second;
    const auto [a, b] = terms(use);
    if (a.empty() || b.empty()) return false;
    std::set<ValueId> inner = numbers(without_common(a, b));
    inner.merge(numbers(without_common(b, a)));
    const bool holds = inner.size() <= 1 && std::all_of(inner.begin(), inner.end(), [&](ValueId number) {
                           const Inst* made = maker(number);
                           return made != nullptr && is_narrow(made->dtype) && !has_zero_at_zero(use, number);
                       });
    return hardly_cancels_[use.id] = holds;
}

// Whether the terms of a sum cancel where a number in them is near 0, and what else is given 1.
bool Uses::has_zero_at_zero(const Inst& sum, ValueId number) const {
    std::map<ValueId, double> known;
    const auto of = [&](std::size_t operand) { return value_at(sum.operands[operand], number, 0x1p-20, &known); };
    const double first = sum.op == Op::kFma ? of(0) * of(1) : of(0);
    const double second = sum.op == Op::kSub ? -of(1) : of(sum.operands.size() - 1);
    return !(std::fabs(first + second) >= 0x1p-8 * std::max(std::fabs(first), std::fabs(second)));
}

// A value where a number is `at`, and what else it is made of 1.
double Uses::value_at(ValueId value, ValueId number, double at, std::map<ValueId, double>* known) const {
    const Inst* inst = maker(value);
    if (inst == nullptr) return 1;
    if (inst->id == number) return at;
    if (inst->kind == InstKind::kConst) return inst->value;
    if (inst->kind == InstKind::kCast) return value_at(inst->operands[0], number, at, known);
    if (inst->kind != InstKind::kMap) return 1;
    const auto [found, is_new] = known->try_emplace(inst->id, 0);
    if (!is_new) return found->second;
    std::array<double, 3> operands = {};
    for (std::size_t i = 0; i < inst->operands.size(); ++i)
        operands[i] = value_at(inst->operands[i], number, at, known);
    const double result = info(inst->op).reference(operands[0], operands[1], operands[2]);
    const double part = inst->part == TanhPart::kSlope     ? 1 - result * result
                        : inst->part == TanhPart::kPlusOne ? 1 + result
                                                           : result;
    return (*known)[inst->id] = part;
}

// The exponential of 1 + e^x.
const Inst* Uses::exponential_beside_one(ValueId value) const {
    const Inst* sum = maker(value);
    if (sum == nullptr || !is_f32_map(*sum, Op::kAdd)) return nullptr;
    for (const auto& [term, other] :
         {std::pair(sum->operands[0], sum->operands[1]), {sum->operands[1], sum->operands[0]}}) {
        const Inst* inst = maker(term);
        if (inst != nullptr && is_f32_map(*inst, Op::kExp) && is_constant(other, 1)) return inst;
    }
    return nullptr;
}

// Whether a product with e^x in it is divided by 1 + e^x: where e^x is large, or has much of an error, a sum has
// terms beside it that are larger.
bool Uses::is_bounded(ValueId product, const Inst& exponential) {
    const Factors& of = factors(product);
    return std::any_of(of.begin(), of.end(),
                       [&](const auto& factor) { return factor.second < 0 && adds_one(factor.first, exponential); });
}

// Whether it is 1 and this exponential.
bool Uses::adds_one(ValueId sum, const Inst& exponential) const {
    const Inst* beside = exponential_beside_one(sum);
    return beside != nullptr && beside->id == exponential.id;
}

bool Uses::is_logistic(ValueId value, const Inst& exponential) {
    return all_of(value, is_logistic_, [&](const Inst& use) {
        if (use.kind == InstKind::kKeep)
            return kept_ends(use, [&](ValueId kept) { return is_logistic(kept, exponential); });
        if (use.kind != InstKind::kMap) return false;
        if (scales(use))
            return is_rounded(use.id) || (is_bounded(use.id, exponential) && hides_logistic(use.id, exponential));
        return adds_one(use.id, exponential) && all_of(use.id, is_logistic_, [&](const Inst& quotient) {
                   return is_f32_map(quotient, Op::kDiv) && quotient.operands[0] != use.id &&
                          (is_rounded(quotient.id) || hides_logistic(quotient.id, exponential));
               });
    });
}

// Whether what a part of a logistic function loses, a few units in the last place, is lost in a sum or a rounding,
// or added on its way there to what it has no reason to cancel. Nor has the rest of a row's norm, in whose backward
// a gate's derivative goes.
bool Uses::hides_logistic(ValueId part, const Inst& exponential) {
    return is_scaled_or_summed(part) || is_lost_apart(part, exponential, kFewUnits);
}

// Whether what a value has of a function's error ends in a rounding, beside nothing that it could cancel on its way.
// Numbers of 11 bits show it sooner.
bool Uses::is_lost_apart(ValueId value, const Inst& function, Loss loss) {
    return !reads_f16() && is_apart(value, function, loss) && ends_in_rounding(value);
}

// Whether no sum on the value's way to where it is rounded has another term that the function, or a number in it,
// is in otherwise than as a factor of both: of what is off by many units, until it is kept; of what is off by few,
// but for sums that hardly cancel, and none may be with a constant, which a function may come near by itself.
bool Uses::is_apart(ValueId value, const Inst& function, Loss loss) {
    return all_of(value, is_apart_[{function.id, loss}], [&](const Inst& use) {
        if (use.kind == InstKind::kKeep && loss == kFewUnits)
            return kept_ends(use, [&](ValueId kept) { return is_apart(kept, function, loss); });
        if (use.kind != InstKind::kMap) return true;
        const bool may_share = !is_sum(use) || (loss == kFewUnits && hardly_cancels(use));
        return (may_share || adds_apart(use, value, function, loss)) && is_apart(use.id, function, loss);
    });
}

// Whether the term that a sum adds to the value has nothing of the function but what both have as a factor.
bool Uses::adds_apart(const Inst& sum, ValueId value, const Inst& function, Loss loss) {
    const auto [first, second] = terms(sum);
    const bool is_second = value == sum.operands.back();
    const Factors& term = is_second ? second : first;
    const Factors& other = is_second ? first : second;
    if (loss == kFewUnits && other.empty()) return false;
    Factors rest = without_common(other, term);
    std::erase_if(rest, [&](const auto& factor) { return !other.contains(factor.first); });  // term's denominator
    const std::set<ValueId> inner = numbers({{function.id, 1}});
    const std::set<ValueId> others = numbers(rest);
    const auto is_other = [&](ValueId number) { return others.contains(number); };
    return !rest.contains(function.id) && std::none_of(inner.begin(), inner.end(), is_other);
}

bool Uses::reads_f16() const {
    return std::any_of(kernel_.tensors.begin(), kernel_.tensors.end(),
                       [](const KernelTensor& tensor) { return tensor.dtype == Dtype::kF16; });
}

}  // namespace rowjit::precision
