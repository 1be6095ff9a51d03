// What an f32 value may lose where a rounding to bf16 or f16, or the sum of a row, hides it. A GPU's special functions
// and a product that is not rounded before it is added save half of the arithmetic of a softmax and a quarter of a
// norm's backward, and at two bytes an element arithmetic takes as long as memory does; on a CPU exponentials take
// three quarters of their time. f32 results are computed as written.
#include "compiler/passes/passes.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/dtype.h"

namespace rowjit {
namespace {

bool is_f32_map(const Inst& inst, Op op) {
    return inst.kind == InstKind::kMap && inst.op == op && inst.dtype == Dtype::kF32;
}

// Where values go: the maps, sums, slots and tensors that they end up in.
class Uses {
  public:
    Uses(const Kernel& kernel, bool is_gpu) : kernel_(kernel), is_gpu_(is_gpu) {
        each_inst(kernel, [&](const Inst& inst) {
            for (const ValueId operand : inst.operands) uses_[operand].push_back(&inst);
            if (inst.id >= 0) made_by_[inst.id] = &inst;
            if (inst.kind == InstKind::kKept) kept_[inst.index].push_back(inst.id);
            if (inst.kind == InstKind::kKeep) keeps_[inst.index] = inst.operands[0];
            if (inst.kind == InstKind::kAccumulate) terms_[inst.index] = inst.operands[0];
        });
        add_results(kernel.body);
        add_results(kernel.after);
    }

    // Whether a relative error of the value stays one until it is lost in a rounding: the value, and the sums it goes
    // into, are only multiplied, divided, kept and stored. The logarithm of a sum makes an absolute error of it, which
    // is below what an f32 sum of so many terms loses by itself.
    bool only_scale(ValueId value) {
        return all_of(value, only_scale_, [&](const Inst& use) {
            if (use.kind != InstKind::kMap) return ends_narrow(use, [&](ValueId next) { return only_scale(next); });
            if (use.op == Op::kLog) return is_plain_result(value);
            return keeps_part(use) && is_rounded(use.id);
        });
    }

    // Whether the exponential is that of a logistic function's divisor, of which an error is the less the smaller it is
    // beside 1, or a factor, as in the derivative of one, and what comes of either hides it.
    bool is_logistic(const Inst& exponential) { return is_logistic(exponential.id, exponential); }

    // Whether a quotient by 1 + e^x hides what it is off by.
    bool is_logistic_quotient(const Inst& quotient) {
        const Inst* exponential = exponential_beside_one(quotient.operands[1]);
        return exponential != nullptr && hides_logistic(quotient.id, *exponential);
    }

    // Whether it is a sum of a constant of at least 1 and what is not negative.
    bool is_one_or_more(ValueId value) {
        const Inst* sum = maker(value);
        if (sum == nullptr || !is_f32_map(*sum, Op::kAdd)) return false;
        const auto is = [&](ValueId constant, ValueId other) {
            return is_constant(constant) && maker(constant)->value >= 1 && is_not_negative(other);
        };
        return is(sum->operands[0], sum->operands[1]) || is(sum->operands[1], sum->operands[0]);
    }

    // Whether 1 is added to it wherever it is used, and the sum rounded before anything magnifies its error. Numbers of
    // 11 bits come too near a zero of what such a sum is added to.
    bool is_beside_one(const Inst& erf) {
        return all_of(erf.id, is_beside_one_, [&](const Inst& sum) {
            return is_f32_map(sum, Op::kAdd) && (is_constant(sum.operands[0], 1) || is_constant(sum.operands[1], 1)) &&
                   (is_scaled(sum.id) || (!reads_f16() && is_rounded(sum.id)));
        });
    }

    // Whether it is scaled and rounded, or added on its way to what none of its argument's numbers are in, which it has
    // no reason to cancel: where it does by chance, eager's error shows as well. Numbers of 11 bits show it sooner. An
    // exponential makes a part of itself of the 2^-21 that it is off by, as often as it is in the exponent.
    bool is_of_its_own(const Inst& tanh) {
        constexpr double kMostInExponent = 256;
        if (is_scaled(tanh.id)) return true;
        return !reads_f16() && is_apart(tanh.id, tanh, kMany) && ends_in_rounding(tanh.id) &&
               times_in_exponent(tanh.id) <= kMostInExponent;
    }

    // Whether an exponential is one of x − max x, at most 1, so that narrow it is off by less than 2^-25, and is only a
    // weight of what f32 sums over columns add up, or compared with 0, or rounded, as where a softmax's sum is saved.
    bool is_weight_in_sums(const Inst& exponential) {
        return is_below_maximum(exponential.operands[0]) && is_as_summed(exponential) && is_only_summed(exponential.id);
    }

    // Whether an exponential is one of x − max x, and goes into nothing but f32 sums over columns, of which one of
    // these weights, 1, is a term: what it is off by, below 2^-22 of it, is less than what eager's logarithm of such a
    // weight is, and below 2^-126 it may as well be 0. Neither a difference, whose size is added up, nor a mixture's
    // logarithm makes more of that. A CPU's weights are exact to the last unit, so that there any sum will do.
    bool only_weighs(const Inst& exponential) {
        return is_below_maximum(exponential.operands[0]) && is_only_in_sums(exponential.id);
    }

    // Whether its maximum was known before it was summed, so that the sum is of the weights as this has them. A sum
    // that was carried with its maximum is of others, which were scaled on their way.
    bool is_as_summed(const Inst& exponential) const {
        const Inst* difference = maker(exponential.operands[0]);
        const auto maximum = maxima_.find(difference->operands[1]);
        return kernel_.accumulators[static_cast<std::size_t>(maximum->second)].monoid == Monoid::kMax;
    }

    bool is_gpu() const { return is_gpu_; }

    // Whether a quotient is one of such a weight.
    bool divides_weight(const Inst& quotient) { return weight_of(quotient.operands[0]) != nullptr; }

    // Whether it is the sum of a row's weights: one of them is 1, and each at most that, so that its reciprocal is a
    // normal number, or NaN where the sum is.
    bool is_sum_of_weights(ValueId value) {
        const auto is = [&](const auto& sum) { return sum.second.result == value; };
        const auto term = terms_of_.find(value);
        if (term == terms_of_.end() || std::none_of(sums_.begin(), sums_.end(), is)) return false;
        const Inst* exponential = maker(term->second);
        return exponential != nullptr && is_f32_map(*exponential, Op::kExp) &&
               is_below_maximum(exponential->operands[0]);
    }

    // Whether a logarithm is one of a sum of such weights, and is multiplied by one of them wherever it is used: where
    // the sum is 0 so is the weight.
    bool is_log_of_weights(const Inst& logarithm) {
        std::map<ValueId, bool> known;
        const std::set<const Inst*>& weights = weights_of(logarithm.operands[0]);
        return !weights.empty() && is_weighted(logarithm.id, weights, &known);
    }

    // Whether it is the logarithm of one of such weights less that of a sum of them.
    bool is_log_of_share(const Inst& difference) {
        const Inst* logarithm = maker(difference.operands[1]);
        if (logarithm == nullptr || !is_f32_map(*logarithm, Op::kLog) || !is_log_of_weights(*logarithm)) return false;
        const std::set<const Inst*>& weights = weights_of(logarithm->operands[0]);
        return std::any_of(weights.begin(), weights.end(),
                           [&](const Inst* weight) { return are_same(difference.operands[0], weight->operands[0]); });
    }

    // Whether it is that difference but 0 where the weight is 0, and is only multiplied by the weight: a weight of 0
    // makes 0 of any number, and of the difference too where that is not infinite.
    bool is_log_of_share_or_nothing(const Inst& choice) {
        if (!is_f32_map(choice, Op::kSelect) || !is_constant(choice.operands[1], 0)) return false;
        const Inst* asked = maker(choice.operands[0]);
        const Inst* share = maker(choice.operands[2]);
        const bool asks = asked != nullptr && asked->kind == InstKind::kMap && asked->op == Op::kEq &&
                          is_constant(asked->operands[1], 0);
        if (!asks || share == nullptr || !is_f32_map(*share, Op::kSub) || !is_log_of_share(*share)) return false;
        const ValueId weight = asked->operands[0];
        const Inst* exponential = maker(weight);
        const bool is_its_own = exponential != nullptr && is_f32_map(*exponential, Op::kExp) &&
                                are_same(exponential->operands[0], share->operands[0]);
        const auto uses = uses_.find(choice.id);
        return is_its_own && uses != uses_.end() && std::ranges::all_of(uses->second, [&](const Inst* use) {
                   return is_f32_map(*use, Op::kMul) && use->operands[use->operands[0] == choice.id ? 1 : 0] == weight;
               });
    }

    // Whether an error of a few units in the last place is lost: the value is only multiplied and divided before it is
    // rounded, or added to what keeps away from it, or it is a term of an f32 sum over columns or rows, whose own
    // roundings move it by as much.
    bool is_scaled_or_summed(ValueId value) {
        return all_of(value, is_scaled_or_summed_, [&](const Inst& use) {
            if (use.kind == InstKind::kMap)
                return (keeps_part(use) || hardly_cancels(use)) && is_scaled_or_summed(use.id);
            return ends_summed(use, [&](ValueId next) { return is_scaled_or_summed(next); });
        });
    }

    // Likewise of what an exponential is off by, in which all terms of a sum may be alike: what comes of the sum is
    // rounded as well.
    bool is_summed_and_rounded(ValueId value) {
        return all_of(value, is_summed_and_rounded_, [&](const Inst& use) {
            if (use.kind == InstKind::kMap)
                return (keeps_part(use) || hardly_cancels(use)) && is_summed_and_rounded(use.id);
            if (use.kind == InstKind::kAccumulate) return adds_up(use) && ends_in_rounding(sums_.at(use.index).result);
            return ends_narrow(use, [&](ValueId next) { return is_summed_and_rounded(next); });
        });
    }

    // Whether every way from the value ends in a rounding or in a sum as above, whatever arithmetic is between: what is
    // rounded once less on its way there is only nearer to the exact result.
    bool ends_in_rounding(ValueId value) {
        return all_of(value, ends_in_rounding_, [&](const Inst& use) {
            if (is_f32_map(use, Op::kLog)) return is_log_of_weights(use);
            if (is_f32_map(use, Op::kExp)) return is_rounded(use.id);
            if (use.kind == InstKind::kMap) return keeps_error(use.op) && ends_in_rounding(use.id);
            if (const auto greatest = greatest_of(use)) return ends_in_rounding(*greatest);
            return ends_summed(use, [&](ValueId next) { return ends_in_rounding(next); });
        });
    }

    // Whether the value is a product of two given numbers, a quotient of one, or a sum that such a product goes into.
    bool adds_given_product(ValueId value) {
        if (is_product_of_given(value)) return true;
        const Inst* inst = maker(value);
        if (inst == nullptr) return false;
        if (is_f32_map(*inst, Op::kDiv)) return adds_given_product(inst->operands[0]);
        return is_signed_sum(*inst) &&
               any_operand(*inst, 0, adds_given_product_, [&](ValueId next) { return adds_given_product(next); });
    }

    bool is_product_of_given(ValueId value) {
        const Inst* inst = maker(value);
        return inst != nullptr && is_f32_map(*inst, Op::kMul) && is_given(inst->operands[0]) &&
               is_given(inst->operands[1]);
    }

    // Whether it is x / c, as plan/inverse writes the quotient by a constant, of which a product would be within a unit
    // in the last place, and that is lost.
    bool is_roughly_product(const Inst& sum) {
        if (!is_f32_map(sum, Op::kFma) || !is_constant(sum.operands[1])) return false;
        const Inst* low = maker(sum.operands[2]);
        if (low == nullptr || !is_f32_map(*low, Op::kMul) || !is_constant(low->operands[1])) return false;
        const double part = maker(low->operands[1])->value / maker(sum.operands[1])->value;
        if (low->operands[0] != sum.operands[0] || std::fabs(part) > std::numeric_limits<float>::epsilon())
            return false;
        return is_scaled_or_summed(sum.id) || all_of(sum.id, is_argument_, [&](const Inst& use) {
                   return is_f32_map(use, Op::kTanh) && is_of_its_own(use);
               });
    }

    int count(ValueId value) const {
        const auto uses = uses_.find(value);
        return uses == uses_.end() ? 0 : static_cast<int>(uses->second.size());
    }

    // A term of a sum over rows, or of one over columns that is in f32 alone.
    bool adds_up(const Inst& use) const {
        if (use.kind == InstKind::kCarry) return true;
        const auto sum = use.kind == InstKind::kAccumulate ? sums_.find(use.index) : sums_.end();
        return sum != sums_.end() && sum->second.plain;
    }

  private:
    struct Sum {
        ValueId result = -1;
        bool plain = false;  // in f32 alone
    };

    void add_results(const Block& block) {
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
                result += static_cast<std::size_t>(accumulator.components());
            }
        }
    }

    // How often a value is in an exponent, at most: what it is multiplied by on its way there.
    double times_in_exponent(ValueId value) {
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
    double factor_of(const Inst& use, ValueId operand) const {
        if (use.kind != InstKind::kMap || (use.op != Op::kMul && use.op != Op::kDiv && use.op != Op::kFma)) return 1;
        if (use.op == Op::kFma && operand != use.operands[0] && operand != use.operands[1]) return 1;
        const ValueId other = use.operands[operand == use.operands[0] ? 1 : 0];
        if (!is_constant(other) || other == operand) return std::numeric_limits<double>::infinity();
        const double number = std::fabs(maker(other)->value);
        return use.op == Op::kDiv ? 1 / number : number;
    }

    // The maximum of a row that a column's value may be.
    std::optional<ValueId> greatest_of(const Inst& use) const {
        const auto found = use.kind == InstKind::kAccumulate ? greatest_.find(use.index) : greatest_.end();
        return found == greatest_.end() ? std::nullopt : std::optional(found->second);
    }

    // Arithmetic whose result has an operand's error or a multiple of it.
    static bool keeps_error(Op op) { return is_smooth(op) || op == Op::kMax || op == Op::kMin; }

    // Arithmetic without steps, which would make one of a difference in the last place.
    static bool is_smooth(Op op) {
        return op == Op::kAdd || op == Op::kSub || op == Op::kMul || op == Op::kDiv || op == Op::kFma || op == Op::kNeg;
    }

    // A value as a product: how often each of its factors is in it, less than 0 for what it is divided by. Constants
    // are none, and what is loaded, narrow, the row's, a sum or a function's result is one.
    using Factors = std::map<ValueId, int>;

    const Factors& factors(ValueId value) {
        const auto [known, is_new] = factors_.try_emplace(value);
        if (is_new) known->second = find_factors(value);
        return known->second;
    }

    // What of a product is not in the other of a sum's terms as well.
    static Factors without_common(const Factors& term, const Factors& other) {
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

    static Factors product(Factors left, const Factors& right, int times) {
        for (const auto& [factor, count] : right) left[factor] += times * count;
        std::erase_if(left, [](const auto& factor) { return factor.second == 0; });
        return left;
    }

    // What the factors are made of, of what is loaded, narrow or the row's.
    std::set<ValueId> numbers(const Factors& of) const {
        std::set<ValueId> all;
        for (const auto& [factor, times] : of) {
            const auto made_of = numbers_.find(factor);
            if (made_of == numbers_.end()) all.insert(factor);
            if (made_of != numbers_.end()) all.insert(made_of->second.begin(), made_of->second.end());
        }
        return all;
    }

    Factors find_factors(ValueId value) {
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
        std::set<ValueId>& made_of = numbers_[inst->id];
        for (std::size_t i = 0; i < inst->operands.size(); ++i) made_of.merge(numbers(of(i)));
        return {{inst->id, 1}};
    }

    static bool is_sum(const Inst& inst) {
        return is_f32_map(inst, Op::kAdd) || is_f32_map(inst, Op::kSub) || is_f32_map(inst, Op::kFma);
    }

    std::pair<Factors, Factors> terms(const Inst& sum) {
        const auto of = [&](std::size_t operand) { return factors(sum.operands[operand]); };
        if (sum.op == Op::kFma) return {product(of(0), of(1), 1), of(2)};
        return {of(0), of(1)};
    }

    // A sum is a factor beside those that both terms have.
    Factors sum(ValueId id, const Factors& a, const Factors& b) {
        const Factors rest_of_a = without_common(a, b);
        const Factors rest_of_b = without_common(b, a);
        Factors both = product(a, rest_of_a, -1);
        if (rest_of_a.empty() && rest_of_b.empty()) return both;
        std::set<ValueId> made_of = numbers(rest_of_a);
        made_of.merge(numbers(rest_of_b));
        numbers_[id] = std::move(made_of);
        ++both[id];
        return both;
    }

    // Whether a sum is, but for what both of its terms are multiplied by, a function of one narrow number, as the
    // derivative of x / (1 + e^-x) is. It is near 0 where that number is near a zero of the function, and numbers of 8
    // or 11 bits come near it by some 2^-11, which leaves f32 the bits that the rounding needs. Not where a term is a
    // constant: e^x - 1 has its zero where numbers are dense.
    bool hardly_cancels(const Inst& use) {
        if (!is_sum(use)) return false;
        const auto [a, b] = terms(use);
        if (a.empty() || b.empty()) return false;
        std::set<ValueId> inner = numbers(without_common(a, b));
        inner.merge(numbers(without_common(b, a)));
        return inner.size() <= 1 && std::all_of(inner.begin(), inner.end(), [&](ValueId number) {
                   const Inst* made = maker(number);
                   return made != nullptr && is_narrow(made->dtype);
               });
    }

    // The exponential of 1 + e^x.
    const Inst* exponential_beside_one(ValueId value) const {
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
    bool is_bounded(ValueId product, const Inst& exponential) {
        const Factors& of = factors(product);
        return std::any_of(of.begin(), of.end(), [&](const auto& factor) {
            return factor.second < 0 && adds_one(factor.first, exponential);
        });
    }

    // Whether it is 1 and this exponential.
    bool adds_one(ValueId sum, const Inst& exponential) const {
        const Inst* beside = exponential_beside_one(sum);
        return beside != nullptr && beside->id == exponential.id;
    }

    // Whether what is computed from the value is rounded to bf16 or f16 before anything could magnify its error, as the
    // difference of two probabilities does. What most columns have nothing of, as a class's own term, is no difference.
    bool is_rounded(ValueId value) {
        return all_of(value, is_rounded_, [&](const Inst& use) {
            if (use.kind != InstKind::kMap) return ends_narrow(use, [&](ValueId next) { return is_rounded(next); });
            const bool other_is_rare = use.op == Op::kAdd && is_rare(use.operands[use.operands[0] == value ? 1 : 0]);
            return (keeps_part(use) || other_is_rare || hardly_cancels(use)) && is_rounded(use.id);
        });
    }

    // Whether it is only multiplied and divided before it is rounded to bf16 or f16.
    bool is_scaled(ValueId value) {
        return all_of(value, is_scaled_, [&](const Inst& use) {
            if (use.kind == InstKind::kMap) return keeps_part(use) && is_scaled(use.id);
            return ends_narrow(use, [&](ValueId next) { return is_scaled(next); });
        });
    }

    bool is_logistic(ValueId value, const Inst& exponential) {
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
    bool hides_logistic(ValueId part, const Inst& exponential) {
        return is_scaled_or_summed(part) ||
               (!reads_f16() && is_apart(part, exponential, kFewUnits) && ends_in_rounding(part));
    }

    // Whether no sum on the value's way to where it is rounded has another term that the function, or a number in it,
    // is in otherwise than as a factor of both: of what is off by many units, until it is kept; of what is off by few,
    // but for sums that hardly cancel, and none may be with a constant, which a function may come near by itself.
    enum Loss { kMany, kFewUnits };
    bool is_apart(ValueId value, const Inst& function, Loss loss) {
        return all_of(value, is_apart_[{function.id, loss}], [&](const Inst& use) {
            if (use.kind == InstKind::kKeep && loss == kFewUnits)
                return kept_ends(use, [&](ValueId kept) { return is_apart(kept, function, loss); });
            if (use.kind != InstKind::kMap) return true;
            const bool may_share = !is_sum(use) || (loss == kFewUnits && hardly_cancels(use));
            return (may_share || adds_apart(use, value, function, loss)) && is_apart(use.id, function, loss);
        });
    }

    // Whether the term that a sum adds to the value has nothing of the function but what both have as a factor.
    bool adds_apart(const Inst& sum, ValueId value, const Inst& function, Loss loss) {
        auto [term, other] = terms(sum);
        if (value == sum.operands.back()) std::swap(term, other);
        if (loss == kFewUnits && other.empty()) return false;
        Factors rest = without_common(other, term);
        std::erase_if(rest, [&](const auto& factor) { return !other.contains(factor.first); });  // term's denominator
        const std::set<ValueId> inner = numbers({{function.id, 1}});
        const std::set<ValueId> others = numbers(rest);
        const auto is_other = [&](ValueId number) { return others.contains(number); };
        return !rest.contains(function.id) && std::none_of(inner.begin(), inner.end(), is_other);
    }

    bool reads_f16() const {
        return std::any_of(kernel_.tensors.begin(), kernel_.tensors.end(),
                           [](const KernelTensor& tensor) { return tensor.dtype == Dtype::kF16; });
    }

    bool is_only_summed(ValueId value) {
        return all_of(value, is_only_summed_, [&](const Inst& use) {
            if (use.kind == InstKind::kAccumulate) return adds_up(use);
            if (use.kind != InstKind::kMap) return ends_narrow(use, [&](ValueId next) { return is_only_summed(next); });
            if (use.op == Op::kEq) return is_constant(use.operands[0], 0) || is_constant(use.operands[1], 0);
            return (scales(use) || use.op == Op::kSelect) && is_only_summed(use.id);
        });
    }

    bool is_only_in_sums(ValueId value) {
        return all_of(value, is_only_in_sums_, [&](const Inst& use) {
            if (use.kind == InstKind::kAccumulate) return adds_up(use) || (!is_gpu_ && sums_.contains(use.index));
            if (use.kind == InstKind::kKeep) return kept_ends(use, [&](ValueId next) { return is_only_in_sums(next); });
            if (use.kind != InstKind::kMap) return false;
            if (use.op == Op::kEq) return is_constant(use.operands[0], 0) || is_constant(use.operands[1], 0);
            const bool passes = is_smooth(use.op) || use.op == Op::kSelect || use.op == Op::kAbs;
            return (passes || is_f32_map(use, Op::kLog)) && is_only_in_sums(use.id);
        });
    }

    // The exponential, a weight, that a value is a multiple of.
    const Inst* weight_of(ValueId value) {
        const auto [known, is_new] = weight_of_.try_emplace(value, nullptr);
        if (!is_new) return known->second;
        const Inst* inst = maker(value);
        if (inst == nullptr || inst->kind != InstKind::kMap) return nullptr;
        const Inst* weight = nullptr;
        if (is_f32_map(*inst, Op::kExp)) weight = only_weighs(*inst) ? inst : nullptr;
        if (scales(*inst)) weight = weight_of(inst->operands[0]);
        if (weight == nullptr && inst->op == Op::kMul) weight = weight_of(inst->operands[1]);
        return weight_of_[value] = weight;
    }

    // The weights that a value is a sum of multiples of; none where something else is in it.
    const std::set<const Inst*>& weights_of(ValueId value) {
        const auto [known, is_new] = weights_of_.try_emplace(value);
        if (!is_new) return known->second;
        const Inst* inst = maker(value);
        std::set<const Inst*> all;
        if (inst != nullptr && is_f32_map(*inst, Op::kAdd)) {
            const std::set<const Inst*>& first = weights_of(inst->operands[0]);
            const std::set<const Inst*>& second = weights_of(inst->operands[1]);
            if (!first.empty() && !second.empty())
                std::set_union(first.begin(), first.end(), second.begin(), second.end(), std::inserter(all, all.end()));
        } else if (const Inst* weight = weight_of(value); weight != nullptr) {
            all.insert(weight);
        }
        return weights_of_[value] = std::move(all);
    }

    // Whether what the value goes into, by sums and choices, is multiplied by one of the weights and then added up.
    bool is_weighted(ValueId value, const std::set<const Inst*>& weights, std::map<ValueId, bool>* known) {
        if (!uses_.contains(value)) return false;
        return all_of(value, *known, [&](const Inst& use) {
            if (use.kind != InstKind::kMap) return false;
            if (use.op == Op::kAdd || use.op == Op::kSub || use.op == Op::kSelect)
                return is_weighted(use.id, weights, known);
            if (use.op != Op::kMul) return false;
            const Inst* weight = weight_of(use.operands[use.operands[0] == value ? 1 : 0]);
            return weights.contains(weight) && is_only_in_sums(use.id);
        });
    }

    bool is_below_maximum(ValueId value) {
        const Inst* difference = maker(value);
        if (difference == nullptr || difference->kind != InstKind::kMap || difference->op != Op::kSub) return false;
        const auto maximum = maxima_.find(difference->operands[1]);
        return maximum != maxima_.end() && are_same(difference->operands[0], terms_.at(maximum->second));
    }

    // What made a value of a column, where a loop read it back.
    const Inst* maker(ValueId value) const {
        const auto made = made_by_.find(value);
        if (made == made_by_.end()) return nullptr;
        const Inst* inst = made->second;
        return inst->kind == InstKind::kKept ? maker(keeps_.at(inst->index)) : inst;
    }

    // Whether two loops made the same value of a column.
    bool are_same(ValueId a, ValueId b) {
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
                std::equal(first->operands.begin(), first->operands.end(), second->operands.begin(),
                           second->operands.end(), [&](ValueId one, ValueId other) { return are_same(one, other); });
        }
        return known->second;
    }

    // As it is in memory, its negative, chosen of such, or a sum or a quotient of such: no function has bounded it.
    bool is_given(ValueId value) {
        const Inst* inst = maker(value);
        if (inst == nullptr || inst->kind == InstKind::kLoad) return inst != nullptr;
        if (inst->kind == InstKind::kCast || is_f32_map(*inst, Op::kDiv)) return is_given(inst->operands[0]);
        const bool chooses = inst->kind == InstKind::kMap && inst->op == Op::kSelect;
        return (chooses || is_signed_sum(*inst)) &&
               any_operand(*inst, chooses ? 1 : 0, is_given_, [&](ValueId next) { return is_given(next); });
    }

    static bool is_signed_sum(const Inst& inst) {
        return inst.kind == InstKind::kMap && (inst.op == Op::kAdd || inst.op == Op::kSub || inst.op == Op::kNeg);
    }

    // Whether `holds` of any operand from the first that counts.
    template <class Holds>
    static bool any_operand(const Inst& inst, std::ptrdiff_t first, std::map<ValueId, bool>& known,
                            const Holds& holds) {
        const auto found = known.find(inst.id);
        if (found != known.end()) return found->second;
        return known[inst.id] = std::any_of(inst.operands.begin() + first, inst.operands.end(), holds);
    }

    // Whether an operand's error is no larger a part of the result: of a product, a quotient, or a sum of what is not
    // negative.
    bool keeps_part(const Inst& use) {
        const auto is_kept = [&](ValueId term) { return is_not_negative(term); };
        return scales(use) || (use.op == Op::kAdd && std::ranges::all_of(use.operands, is_kept));
    }

    // Whether a value is known not to be negative.
    bool is_not_negative(ValueId value) {
        const auto [known, is_new] = is_not_negative_.try_emplace(value, false);
        if (is_new) known->second = find_not_negative(value);
        return known->second;
    }

    bool find_not_negative(ValueId value) {
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
            case Op::kMul: return inst->operands[0] == inst->operands[1] || (is(0) && is(1));
            case Op::kAdd:
            case Op::kDiv:
            case Op::kMin: return is(0) && is(1);
            case Op::kMax: return is(0) || is(1);
            case Op::kSelect: return is(1) && is(2);
            default: return false;
        }
    }

    static bool scales(const Inst& use) { return use.op == Op::kMul || use.op == Op::kDiv || use.op == Op::kNeg; }

    bool is_rare(ValueId value) const {
        const auto made = made_by_.find(value);
        return made != made_by_.end() && made->second->kind == InstKind::kMap && made->second->op == Op::kSelect &&
               is_constant(made->second->operands[2], 0);
    }

    bool is_constant(ValueId value) const {
        const Inst* made = maker(value);
        return made != nullptr && made->kind == InstKind::kConst;
    }

    bool is_constant(ValueId value, double number) const { return is_constant(value) && maker(value)->value == number; }

    // Whether `holds` of every use. A value may be reached in 2^n ways, so what is known of it is kept.
    template <class Holds>
    bool all_of(ValueId value, std::map<ValueId, bool>& known, const Holds& holds) const {
        const auto found = known.find(value);
        if (found != known.end()) return found->second;
        const auto uses = uses_.find(value);
        const bool all = uses == uses_.end() || std::all_of(uses->second.begin(), uses->second.end(),
                                                            [&](const Inst* use) { return holds(*use); });
        known[value] = all;
        return all;
    }

    // Of what is no map: that it is narrow, or that `holds` of the values that it is read back as.
    template <class Holds>
    bool ends_narrow(const Inst& use, const Holds& holds) const {
        switch (use.kind) {
            case InstKind::kCast: return is_narrow(use.dtype);
            case InstKind::kStore: return is_narrow(kernel_.tensors[static_cast<std::size_t>(use.index)].dtype);
            case InstKind::kAccumulate: {
                const auto sum = sums_.find(use.index);
                return sum != sums_.end() && holds(sum->second.result);
            }
            case InstKind::kKeep: return kept_ends(use, holds);
            default: return false;
        }
    }

    template <class Holds>
    bool kept_ends(const Inst& keep, const Holds& holds) const {
        const auto kept = kept_.find(keep.index);
        return kept == kept_.end() || std::all_of(kept->second.begin(), kept->second.end(), holds);
    }

    // Likewise, where a sum is an end too, if one in f32 alone.
    template <class Holds>
    bool ends_summed(const Inst& use, const Holds& holds) const {
        const bool sums = use.kind == InstKind::kCarry || use.kind == InstKind::kAccumulate;
        return sums ? adds_up(use) : ends_narrow(use, holds);
    }

    bool is_plain_result(ValueId value) const {
        return std::any_of(sums_.begin(), sums_.end(),
                           [&](const auto& sum) { return sum.second.plain && sum.second.result == value; });
    }

    const Kernel& kernel_;
    const bool is_gpu_;
    std::map<ValueId, std::vector<const Inst*>> uses_;
    std::map<ValueId, const Inst*> made_by_;
    std::map<int, std::vector<ValueId>> kept_;  // by slot
    std::map<int, Sum> sums_;                   // by accumulator
    std::map<int, ValueId> greatest_;           // by accumulator: the maximum of a row
    std::map<int, ValueId> keeps_;              // by slot: what is kept
    std::map<int, ValueId> terms_;              // by accumulator: what it takes of a column
    std::map<ValueId, ValueId> terms_of_;       // by the result of a sum or an extremum: what it takes of a column
    std::map<ValueId, int> maxima_;             // the accumulators that rows' maxima come from

    std::map<ValueId, Factors> factors_;
    std::map<ValueId, std::set<ValueId>> numbers_;  // that a factor is made of, if it is none itself
    std::map<std::pair<ValueId, ValueId>, bool> are_same_;
    std::map<ValueId, bool> adds_given_product_;
    std::map<ValueId, bool> is_given_;
    std::map<ValueId, bool> is_not_negative_;
    std::map<ValueId, bool> only_scale_;
    std::map<ValueId, bool> is_rounded_;
    std::map<ValueId, bool> is_scaled_;
    std::map<ValueId, bool> is_logistic_;
    std::map<ValueId, bool> is_beside_one_;
    std::map<ValueId, bool> is_argument_;
    std::map<ValueId, bool> is_only_summed_;
    std::map<ValueId, bool> is_only_in_sums_;
    std::map<ValueId, const Inst*> weight_of_;
    std::map<ValueId, std::set<const Inst*>> weights_of_;
    std::map<std::pair<ValueId, Loss>, std::map<ValueId, bool>> is_apart_;  // by the function
    std::map<ValueId, bool> is_scaled_or_summed_;
    std::map<ValueId, bool> is_summed_and_rounded_;
    std::map<ValueId, bool> ends_in_rounding_;
    std::map<ValueId, double> times_in_exponent_;
};

// The products of a loop's body that are only added to something else there.
class Products {
  public:
    Products(std::vector<Inst>& body, Uses& uses) : body_(body), uses_(uses) {
        for (std::size_t i = 0; i < body.size(); ++i) {
            if (is_f32_map(body[i], Op::kMul) && uses.count(body[i].id) == 1) products_[body[i].id] = i;
        }
    }

    void join() {
        for (Inst& inst : body_) {
            if (is_f32_map(inst, Op::kAdd) && uses_.ends_in_rounding(inst.id)) add(inst);
            if (uses_.adds_up(inst) && inst.dtype == Dtype::kF32)
                take(inst.operands[0], [&](const std::vector<ValueId>& factors) { inst.operands = factors; });
        }
        std::erase_if(body_, [&](const Inst& inst) { return joined_.contains(inst.id); });
    }

  private:
    // Not a product of what may have any size beside another: one of them would be rounded, and overflow, alone. Where
    // they cancel, or both overflow, the sum would be what neither rounding both nor neither gives. This costs an
    // instruction where rows are rotated and streams are mixed, which wait for memory; what a norm or an activation
    // adds up has been scaled by a statistic or bounded by a function.
    void add(Inst& inst) {
        for (const auto& [product, other] :
             {std::pair(inst.operands[0], inst.operands[1]), {inst.operands[1], inst.operands[0]}}) {
            if (uses_.is_product_of_given(product) && uses_.adds_given_product(other)) continue;
            const bool taken = take(product, [&, addend = other](const std::vector<ValueId>& factors) {
                inst.op = Op::kFma;
                inst.narrow = true;  // a target without the instruction may round twice
                inst.operands = {factors[0], factors[1], addend};
            });
            if (taken) return;
        }
    }

    template <class Use>
    bool take(ValueId product, const Use& use) {
        const auto found = products_.find(product);
        if (found == products_.end()) return false;
        use(body_[found->second].operands);
        joined_.insert(product);
        products_.erase(found);
        return true;
    }

    std::vector<Inst>& body_;
    Uses& uses_;
    std::map<ValueId, std::size_t> products_;  // where they stand
    std::set<ValueId> joined_;
};

// `inside`: what the loop has made before it. A divisor of the row is divided by through its reciprocal, another only
// where it is known to have one.
bool may_be_narrow(const Inst& inst, const std::set<ValueId>& inside, Uses& uses) {
    if (is_f32_map(inst, Op::kExp))
        return (inst.weighs && uses.is_gpu()) || uses.only_scale(inst.id) || uses.is_logistic(inst) ||
               uses.is_weight_in_sums(inst) || uses.is_summed_and_rounded(inst.id);
    if (is_f32_map(inst, Op::kErf)) return uses.is_beside_one(inst);
    if (is_f32_map(inst, Op::kTanh)) return uses.is_of_its_own(inst);
    if (is_f32_map(inst, Op::kLog)) return uses.is_log_of_weights(inst);
    if (is_f32_map(inst, Op::kSub)) return uses.is_log_of_share(inst);
    if (is_f32_map(inst, Op::kDiv) && uses.divides_weight(inst)) return !inside.contains(inst.operands[1]);
    if (!is_f32_map(inst, Op::kDiv)) return false;
    return inside.contains(inst.operands[1]) ? uses.is_logistic_quotient(inst) : uses.is_scaled_or_summed(inst.id);
}

// x / s of a row's sum of weights is x (1 / s) where what a narrow quotient is off by is lost. One of any number scales
// it twice, since its reciprocal may be none: tvd of 128256 bf16 columns has two instructions of 33 a pair less, and 60
// a row.
void multiply_by_reciprocals(Kernel* kernel, Uses& uses) {
    std::map<ValueId, ValueId> reciprocals;
    Block body;
    for (Stmt& stmt : kernel->body) {
        auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        for (std::size_t i = 0; loop != nullptr && i < loop->body.size(); ++i) {
            Inst& quotient = loop->body[i];
            if (!is_f32_map(quotient, Op::kDiv) || !uses.is_sum_of_weights(quotient.operands[1])) continue;
            if (!may_be_narrow(quotient, {}, uses)) continue;
            const auto [known, is_new] = reciprocals.try_emplace(quotient.operands[1], kernel->value_count + 1);
            if (is_new) {
                Inst one{.kind = InstKind::kConst, .id = kernel->value_count++};
                one.value = 1;
                Inst inverse{.kind = InstKind::kMap, .id = kernel->value_count++};
                inverse.op = Op::kDiv;
                inverse.operands = {one.id, quotient.operands[1]};
                inverse.comment = "of a sum of weights";
                body.push_back({std::move(one)});
                body.push_back({std::move(inverse)});
            }
            quotient.op = Op::kMul;
            quotient.operands[1] = known->second;
        }
        body.push_back(std::move(stmt));
    }
    kernel->body = std::move(body);
}

// Whether a loop behind a meeting of the row's threads loads what the row has of a tensor.
bool loads_late(const Kernel& kernel) {
    bool late = false;
    for (const Stmt& stmt : kernel.body) {
        late = late || meets(stmt);
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (!late || loop == nullptr) continue;
        const auto loads = [&](const Inst& inst) { return inst.kind == InstKind::kLoad && kernel.by_row(inst); };
        if (std::any_of(loop->body.begin(), loop->body.end(), loads)) return true;
    }
    return false;
}

// x / 2^n of a row's numbers, as means come: 2^-n is exact, so the product rounds as the quotient does, and IEEE
// division is nine instructions and a call that nothing is moved over. Where nothing is loaded behind it that border
// is worth more: what is computed then begins sooner, in registers that the row's own loads would have. H200: with
// products a layer norm's backward of bf16 takes 0.112 ms in place of 0.108, an added one's, which loads another
// tensor then, 0.095 in place of 0.107; a norm of each of eight states 0.099 in place of 0.102. What makes plans of the
// quotient is done with it (plan/cheaper has those of columns).
constexpr std::size_t kFewQuotients = 2;

void divide_by_powers(Kernel* kernel) {
    constexpr int kMostPower = std::numeric_limits<float>::max_exponent - 2;
    std::map<ValueId, double> constants;
    std::vector<Inst*> quotients;
    for (Stmt& stmt : kernel->body) {
        auto* inst = std::get_if<Inst>(&stmt.node);
        if (inst == nullptr) continue;
        if (inst->kind == InstKind::kConst) constants[inst->id] = inst->value;
        if (!is_f32_map(*inst, Op::kDiv)) continue;
        const auto divisor = constants.find(inst->operands[1]);
        int power = 0;
        if (divisor == constants.end() || std::fabs(std::frexp(divisor->second, &power)) != 0.5) continue;
        if (std::abs(power) <= kMostPower) quotients.push_back(inst);
    }
    if (quotients.size() <= kFewQuotients && !loads_late(*kernel)) return;
    Block inverses;
    for (Inst* quotient : quotients) {
        Inst inverse{.kind = InstKind::kConst, .id = kernel->value_count++};
        inverse.value = 1 / constants.at(quotient->operands[1]);
        quotient->op = Op::kMul;
        quotient->operands[1] = inverse.id;
        inverses.push_back({std::move(inverse)});
    }
    kernel->body.insert(kernel->body.begin(), std::make_move_iterator(inverses.begin()),
                        std::make_move_iterator(inverses.end()));
}

}  // namespace

Kernel spend_precision(Kernel kernel, const Target& target) {
    divide_by_powers(&kernel);
    const auto opens = [](const Stmt& stmt) { return std::holds_alternative<OpenSteps>(stmt.node); };
    if (std::any_of(kernel.body.begin(), kernel.body.end(), opens)) return kernel;
    const Kernel written = kernel;
    Uses uses(written, target.is_gpu());
    if (target.is_gpu()) multiply_by_reciprocals(&kernel, uses);
    Block constants;
    const auto least = [&] {
        if (constants.empty()) {
            Inst number{.kind = InstKind::kConst, .id = kernel.value_count++};
            number.value = std::numeric_limits<float>::lowest();
            constants.push_back({std::move(number)});
        }
        return std::get<Inst>(constants.front().node).id;
    };
    for (Stmt& stmt : kernel.body) {
        auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        std::set<ValueId> inside;
        std::set<ValueId> rest;  // of quotients that are products now
        for (Inst& inst : loop->body) {
            inst.weighs = is_f32_map(inst, Op::kExp) && uses.only_weighs(inst);
            inst.narrow = may_be_narrow(inst, inside, uses);
            inst.by_one_up = is_f32_map(inst, Op::kDiv) && uses.is_one_or_more(inst.operands[1]);
            // One instruction in place of a comparison and a choice.
            if (target.is_gpu() && uses.is_log_of_share_or_nothing(inst)) {
                inst.op = Op::kMax;
                inst.operands = {inst.operands[2], least()};
            }
            if (uses.is_roughly_product(inst)) {
                rest.insert(inst.operands.back());
                inst.op = Op::kMul;
                inst.operands.pop_back();
            }
            inside.insert(inst.id);
        }
        std::erase_if(loop->body, [&](const Inst& inst) { return rest.contains(inst.id) && uses.count(inst.id) == 1; });
        Products(loop->body, uses).join();
    }
    kernel.body.insert(kernel.body.begin(), std::make_move_iterator(constants.begin()),
                       std::make_move_iterator(constants.end()));
    return kernel;
}

}  // namespace rowjit
