// Uses: what spend_precision asks of a kernel's values. Private to passes/precision*.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "compiler/kernel.h"

namespace rowjit::precision {

inline bool is_f32_map(const Inst& inst, Op op) {
    return inst.kind == InstKind::kMap && inst.op == op && inst.dtype == Dtype::kF32;
}

// Where values go: the maps, sums, slots and tensors that they end up in.
class Uses {
  public:
    Uses(const Kernel& kernel, bool is_gpu);

    // Whether a relative error of the value stays one until it is lost in a rounding: the value, and the sums it goes
    // into, are only multiplied, divided, kept and stored. The logarithm of a sum makes an absolute error of it, which
    // is below what an f32 sum of so many terms loses by itself.
    bool only_scale(ValueId value);

    // Whether the exponential is that of a logistic function's divisor, of which an error is the less the smaller it is
    // beside 1, or a factor, as in the derivative of one, and what comes of either hides it.
    bool is_logistic(const Inst& exponential) { return is_logistic(exponential.id, exponential); }

    // Whether a quotient by 1 + e^x hides what it is off by.
    bool is_logistic_quotient(const Inst& quotient);

    // Whether it is a sum of a constant of at least 1 and what is not negative.
    bool is_one_or_more(ValueId value);

    // Whether it is from 0 to 1: an exponential of what is not positive, as a softplus adds 1 to.
    bool is_fraction(ValueId value);

    // Whether 1 is added to it wherever it is used, and the sum rounded before anything magnifies its error. Numbers of
    // 11 bits come too near a zero of what such a sum is added to.
    bool is_beside_one(const Inst& erf);

    // Whether it is scaled and rounded, or added on its way to what none of its argument's numbers are in, which it has
    // no reason to cancel: where it does by chance, eager's error shows as well. Numbers of 11 bits show it sooner. So
    // it is where is_rounded holds. An exponential makes a part of itself of the 2^-21 that it is off by, as often as
    // it is in the exponent.
    bool is_of_its_own(const Inst& tanh);

    // Whether it is the argument of nothing but a tanh, which bends less than a line, where a few units in the last
    // place of that are hidden.
    bool is_tanh_argument(ValueId value);

    // What of a tanh a sum or a difference is, and that tanh, where a few units in the last place of it are hidden.
    std::pair<TanhPart, const Inst*> part_of_tanh(const Inst& sum);

    // Whether what is computed from the value is rounded to bf16 or f16 before anything could magnify its error, as the
    // difference of two probabilities does. What most columns have nothing of, as a class's own term, is no difference.
    bool is_rounded(ValueId value);

    // Whether an exponential is added to a constant that it may cancel, and nothing hides what the sum shows of its
    // error: e^x - 1 has its zero where numbers are dense.
    bool is_beside_constant(const Inst& exponential);

    // The exponential of a logarithm of it and a number, each multiplied or not, that exponentials are multiplied by,
    // as distributions are by the logarithm of their mixture's share: what both are off by in the mean the divergence
    // is off by, however small it is. Nothing of other logarithms.
    const Inst* exponential_of_mixture(const Inst& logarithm);

    // Whether constants bound the size of a value.
    bool is_within(ValueId value, double most) const;

    // Whether an exponential is one of x − max x, at most 1, so that narrow it is off by less than 2^-25, and is only a
    // weight of what f32 sums over columns add up, or compared with 0, or rounded, as where a softmax's sum is saved.
    bool is_weight_in_sums(const Inst& exponential);

    // Whether an exponential is one of x − max x, and goes into nothing but f32 sums over columns, of which one of
    // these weights, 1, is a term: what it is off by, below 2^-22 of it, is less than what eager's logarithm of such a
    // weight is, and below 2^-126 it may as well be 0. Neither a difference, whose size is added up, nor a mixture's
    // logarithm makes more of that. A CPU's weights are exact to the last unit, so that there any sum will do.
    bool only_weighs(const Inst& exponential);

    // Whether a difference is one of x − max x, however the maximum was found.
    bool is_below_greatest(ValueId difference);

    // Whether its maximum was known before it was summed, so that the sum is of the weights as this has them. A sum
    // that was carried with its maximum is of others, which were scaled on their way.
    bool is_as_summed(const Inst& exponential) const;

    bool is_gpu() const { return is_gpu_; }

    // Whether a quotient is one of such a weight.
    bool divides_weight(const Inst& quotient) {
        const Inst* weight = weight_of(quotient.operands[0]);
        return weight != nullptr && only_weighs(*weight);
    }

    // Whether it is the sum of a row's weights: one of them is 1, and each at most that, so that its reciprocal is a
    // normal number, or NaN where the sum is.
    bool is_sum_of_weights(ValueId value);

    // Whether a logarithm is one of a sum of such weights, and is multiplied by one of them wherever it is used: where
    // the sum is 0 so is the weight.
    bool is_log_of_weights(const Inst& logarithm);

    // Whether an exponential is one of x − max x that goes into f32 sums and into such logarithms, or is, by itself or
    // multiplied, a factor of what is rounded to bf16 or f16, as in the gradient of a divergence. A logarithm of
    // weights as inexact as these is off by about what its own rounding takes, and by nothing beside the logarithm of
    // one of them, of which it has the error too.
    bool is_share_or_factor(const Inst& exponential);

    // Whether it is the logarithm of one of such weights less that of a sum of them.
    bool is_log_of_share(const Inst& difference);

    // Whether it is that difference but 0 where the weight is 0, and is only multiplied by the weight: a weight of 0
    // makes 0 of any number, and of the difference too where that is not infinite.
    bool is_log_of_share_or_nothing(const Inst& choice);

    // Whether an error of a few units in the last place is lost: the value is only multiplied and divided before it is
    // rounded, or added to what keeps away from it, or it is a term of an f32 sum over columns or rows, whose own
    // roundings move it by as much.
    bool is_scaled_or_summed(ValueId value);

    // Whether an error of 2^-12 of it is lost: the value is only multiplied, divided and added to what is not negative
    // either before it is rounded to bf16, or is a term of such a sum of the row. That is at most a sixteenth of a unit
    // in the last place of what that rounding alone may be half a unit off.
    bool is_scaled_to_bf16(ValueId value);

    // Likewise of what an exponential is off by, in which all terms of a sum may be alike: what comes of the sum is
    // rounded as well.
    bool is_summed_and_rounded(ValueId value);

    // Whether every way from the value ends in a rounding or in a sum as above, whatever arithmetic is between: what is
    // rounded once less on its way there is only nearer to the exact result.
    bool ends_in_rounding(ValueId value);

    // Whether the value is a product of two given numbers, a quotient of one, or a sum that such a product goes into.
    bool adds_given_product(ValueId value);

    bool is_product_of_given(ValueId value);

    // Whether a product of a column's value may be all of what `other`, which the row has one of, takes from it: the
    // sum of that value over columns, of which one may have all the weight, as in a distribution whose logits are far
    // apart. The difference is 0 where both are rounded alike, and otherwise what the rounding of one has lost. In rows
    // of one column any number of the row may be such a sum, also one that a kernel before this has stored.
    bool may_be_all_of(ValueId product, ValueId other);

    // Whether a product and what is added to it are, but for numbers of the row, x·y and x of columns, and so cancel
    // where y is what takes x away, as a difference of two bf16 logarithms is that is -1. Not where their sum is a
    // function of one narrow number, which hardly cancels, nor where x is added as it is multiplied: that has no
    // rounding to show.
    bool may_cancel_factor(const Inst& sum, ValueId product, ValueId other);

    // Whether it is x / c, as plan/inverse writes the quotient by a constant, of which a product would be within a unit
    // in the last place, and that is lost.
    bool is_roughly_product(const Inst& sum);

    int count(ValueId value) const {
        const auto uses = uses_.find(value);
        return uses == uses_.end() ? 0 : static_cast<int>(uses->second.size());
    }

    // A term of a sum over rows, or of one over columns that is in f32 alone.
    bool adds_up(const Inst& use) const;

  private:
    struct Sum {
        ValueId result = -1;
        bool plain = false;  // in f32 alone
    };

    // A value as a product: how often each of its factors is in it, less than 0 for what it is divided by. Constants
    // are none, and what is loaded, narrow, the row's, a sum or a function's result is one.
    using Factors = std::map<ValueId, int>;

    // Where a weight may go besides sums: into logarithms of weights, or also, as a factor, into what is rounded.
    enum Ends { kShares, kAlsoFactors };

    // By how many units a function's result may be off.
    enum Loss { kMany, kFewUnits };

    // Arithmetic whose result has an operand's error or a multiple of it, and the choice of an operand.
    static bool keeps_error(Op op) { return is_smooth(op) || op == Op::kMax || op == Op::kMin || op == Op::kSelect; }

    // Arithmetic without steps, which would make one of a difference in the last place.
    static bool is_smooth(Op op) {
        return op == Op::kAdd || op == Op::kSub || op == Op::kMul || op == Op::kDiv || op == Op::kFma || op == Op::kNeg;
    }

    static bool is_sum(const Inst& inst) {
        return is_f32_map(inst, Op::kAdd) || is_f32_map(inst, Op::kSub) || is_f32_map(inst, Op::kFma);
    }

    static bool scales(const Inst& use) { return use.op == Op::kMul || use.op == Op::kDiv || use.op == Op::kNeg; }

    bool is_constant(ValueId value) const {
        const Inst* made = maker(value);
        return made != nullptr && made->kind == InstKind::kConst;
    }

    bool is_constant(ValueId value, double number) const { return is_constant(value) && maker(value)->value == number; }

    // Ways to a rounding or a sum (precision_uses.cpp).
    void add_results(const Block& block);
    std::optional<ValueId> greatest_of(const Inst& use) const;
    bool is_scaled(ValueId value);
    const Inst* maker(ValueId value) const;
    bool are_same(ValueId a, ValueId b);
    bool is_given(ValueId value);
    static bool is_signed_sum(const Inst& inst);
    bool keeps_part(const Inst& use);
    bool is_not_negative(ValueId value);
    bool find_not_negative(ValueId value);
    bool is_not_positive(ValueId value);
    bool is_rare(ValueId value) const;
    bool is_factor(ValueId product, ValueId other);
    std::vector<ValueId> factors_of_columns(ValueId value) const;
    bool comes_of_sum(ValueId value, const std::vector<ValueId>& of, std::map<ValueId, bool>* known);
    bool is_plain_result(ValueId value) const;

    // Functions and factors (precision_functions.cpp).
    std::pair<double, double> bounds(ValueId value) const;
    double times_in_exponent(ValueId value);
    double factor_of(const Inst& use, ValueId operand) const;
    const Factors& factors(ValueId value);
    static Factors without_common(const Factors& term, const Factors& other);
    static Factors product(Factors left, const Factors& right, int times);
    std::set<ValueId> numbers(const Factors& of) const;
    Factors find_factors(ValueId value);
    std::pair<Factors, Factors> terms(const Inst& sum);
    Factors sum(ValueId id, const Factors& a, const Factors& b);
    Factors choice(const Inst& select);
    Factors joined(ValueId id, const Factors& a, const Factors& b, std::set<ValueId> made_of);
    bool hardly_cancels(const Inst& use);
    const Inst* exponential_beside_one(ValueId value) const;
    bool is_bounded(ValueId product, const Inst& exponential);
    bool adds_one(ValueId sum, const Inst& exponential) const;
    bool is_logistic(ValueId value, const Inst& exponential);
    bool hides_logistic(ValueId part, const Inst& exponential);
    const Inst* made_as(Op op, ValueId value) const;
    bool is_lost_apart(ValueId value, const Inst& function, Loss loss);
    bool hides_part(const Inst& part);
    double value_at(ValueId value, ValueId number, double at, std::map<ValueId, double>* known) const;
    bool has_zero_at_zero(const Inst& sum, ValueId number) const;
    bool is_apart(ValueId value, const Inst& function, Loss loss);
    bool adds_apart(const Inst& sum, ValueId value, const Inst& function, Loss loss);
    bool reads_f16() const;

    // Weights (precision_weights.cpp).
    bool is_only_summed(ValueId value);
    bool is_only_in_sums(ValueId value);
    const Inst* weight_of(ValueId value);
    const std::set<const Inst*>& weights_of(ValueId value);
    bool is_weight_that_ends(const Inst& exponential, Ends ends);
    bool is_in_shares(ValueId value, Ends ends);
    bool is_weighted(ValueId value, const std::set<const Inst*>& weights);
    bool is_times_exponentials(ValueId value);
    bool is_below_maximum(ValueId value);
    bool is_below(ValueId value, const std::map<ValueId, int>& maxima);

    // Whether `holds` of any operand from the first that counts.
    template <class Holds>
    static bool any_operand(const Inst& inst, std::ptrdiff_t first, std::map<ValueId, bool>& known,
                            const Holds& holds) {
        const auto found = known.find(inst.id);
        if (found != known.end()) return found->second;
        return known[inst.id] = std::any_of(inst.operands.begin() + first, inst.operands.end(), holds);
    }

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

    const Kernel& kernel_;
    const bool is_gpu_;
    std::map<ValueId, std::vector<const Inst*>> uses_;
    std::map<ValueId, const Inst*> made_by_;
    std::set<ValueId> in_columns_;   // that a column has one of
    std::set<ValueId> divergences_;  // sums of logarithms, by weights, as divergences are
    bool has_one_column_ = true;
    bool stores_f32_ = false;
    std::map<int, std::vector<ValueId>> kept_;  // by slot
    std::map<int, Sum> sums_;                   // by accumulator
    std::map<int, ValueId> greatest_;           // by accumulator: the maximum of a row
    std::map<int, ValueId> keeps_;              // by slot: what is kept
    std::map<int, ValueId> terms_;              // by accumulator: what it takes of a column
    std::map<ValueId, ValueId> terms_of_;       // by the result of a sum or an extremum: what it takes of a column
    std::map<ValueId, int> maxima_;             // the accumulators that rows' maxima come from
    std::map<ValueId, int> peaks_;              // likewise, of maxima that are found beside a sum of weights too

    std::map<ValueId, Factors> factors_;
    std::map<ValueId, std::set<ValueId>> numbers_;  // that a factor is made of, if it is none itself
    std::map<std::pair<ValueId, ValueId>, bool> are_same_;
    std::map<ValueId, bool> hardly_cancels_;
    std::map<ValueId, bool> adds_given_product_;
    std::map<ValueId, bool> is_given_;
    std::map<ValueId, bool> is_not_negative_;
    std::map<ValueId, bool> only_scale_;
    std::map<ValueId, bool> is_rounded_;
    std::map<ValueId, bool> is_scaled_;
    std::map<ValueId, bool> is_logistic_;
    std::map<ValueId, bool> is_beside_one_;
    std::map<ValueId, bool> is_tanh_argument_;
    std::map<ValueId, bool> is_only_summed_;
    std::map<ValueId, bool> is_only_in_sums_;
    std::map<Ends, std::map<ValueId, bool>> is_in_shares_;
    std::map<std::set<const Inst*>, std::map<ValueId, bool>> is_weighted_;
    std::map<ValueId, bool> is_times_exponentials_;
    std::map<ValueId, const Inst*> weight_of_;
    std::map<ValueId, std::set<const Inst*>> weights_of_;
    std::map<std::pair<ValueId, Loss>, std::map<ValueId, bool>> is_apart_;  // by the function
    std::map<ValueId, bool> is_scaled_or_summed_;
    std::map<ValueId, bool> is_scaled_to_bf16_;
    std::map<ValueId, bool> is_summed_and_rounded_;
    std::map<ValueId, bool> ends_in_rounding_;
    std::map<ValueId, double> times_in_exponent_;
};

// Makes x z (y / y) of (x y) z / y, where y is a number of the row and what the roundings lose is lost: y / y is 1, or
// NaN as the quotient is (precision_scales.cpp).
void cancel_scales(Kernel* kernel, Uses& uses);

// Makes exponentials below a row's maximum that a number of the row multiplies powers of two (precision_powers.cpp).
void take_powers(Kernel* kernel, Uses& uses);

}  // namespace rowjit::precision
