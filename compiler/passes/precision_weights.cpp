// The weights of a row: exponentials of what is less its maximum, at most 1, the sums they go into, and logarithms and
// quotients of both.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/dtype.h"
#include "compiler/passes/precision_uses.h"

namespace rowjit::precision {

bool Uses::is_weight_in_sums(const Inst& exponential) {
    return is_below_maximum(exponential.operands[0]) && is_as_summed(exponential) && is_only_summed(exponential.id);
}

bool Uses::only_weighs(const Inst& exponential) { return is_weight_that_ends(exponential, kShares); }

bool Uses::is_as_summed(const Inst& exponential) const {
    const Inst* difference = maker(exponential.operands[0]);
    const auto maximum = maxima_.find(difference->operands[1]);
    return kernel_.accumulators[static_cast<std::size_t>(maximum->second)].monoid == Monoid::kMax;
}

bool Uses::is_sum_of_weights(ValueId value) {
    const auto is = [&](const auto& sum) { return sum.second.result == value; };
    const auto term = terms_of_.find(value);
    if (term == terms_of_.end() || std::none_of(sums_.begin(), sums_.end(), is)) return false;
    const Inst* exponential = maker(term->second);
    return exponential != nullptr && is_f32_map(*exponential, Op::kExp) && is_below_maximum(exponential->operands[0]);
}

bool Uses::is_log_of_weights(const Inst& logarithm) {
    const std::set<const Inst*>& weights = weights_of(logarithm.operands[0]);
    return !weights.empty() && is_weighted(logarithm.id, weights) &&
           std::ranges::all_of(weights, [&](const Inst* weight) { return is_share_or_factor(*weight); });
}

bool Uses::is_share_or_factor(const Inst& exponential) { return is_weight_that_ends(exponential, kAlsoFactors); }

bool Uses::is_weight_that_ends(const Inst& exponential, Ends ends) {
    if (!is_below_maximum(exponential.operands[0])) return false;
    return is_only_in_sums(exponential.id) || (is_gpu_ && is_in_shares(exponential.id, ends));
}

bool Uses::is_log_of_share(const Inst& difference) {
    const Inst* logarithm = maker(difference.operands[1]);
    if (logarithm == nullptr || !is_f32_map(*logarithm, Op::kLog) || !is_log_of_weights(*logarithm)) return false;
    const std::set<const Inst*>& weights = weights_of(logarithm->operands[0]);
    return std::any_of(weights.begin(), weights.end(),
                       [&](const Inst* weight) { return are_same(difference.operands[0], weight->operands[0]); });
}

bool Uses::is_log_of_share_or_nothing(const Inst& choice) {
    if (!is_f32_map(choice, Op::kSelect) || !is_constant(choice.operands[1], 0)) return false;
    const Inst* asked = maker(choice.operands[0]);
    const Inst* share = maker(choice.operands[2]);
    const bool asks =
        asked != nullptr && asked->kind == InstKind::kMap && asked->op == Op::kEq && is_constant(asked->operands[1], 0);
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

const Inst* Uses::exponential_of_mixture(const Inst& logarithm) {
    if (!is_times_exponentials(logarithm.id)) return nullptr;
    const Inst* sum = made_as(Op::kAdd, logarithm.operands[0]);
    const auto columns_of = [&](const Inst* of_two) {
        const auto is_columns = [&](std::size_t i) { return in_columns_.contains(of_two->operands[i]); };
        return of_two != nullptr && is_columns(0) != is_columns(1) ? of_two->operands[is_columns(0) ? 0 : 1] : -1;
    };
    const ValueId part = columns_of(sum);
    const Inst* product = made_as(Op::kMul, part);
    return made_as(Op::kExp, product == nullptr ? part : columns_of(product));
}

// Whether the value, a difference from it, or a multiple by a number of the row is multiplied by exponentials.
bool Uses::is_times_exponentials(ValueId value) {
    return all_of(value, is_times_exponentials_, [&](const Inst& use) {
        if (use.kind == InstKind::kKeep)
            return kept_ends(use, [&](ValueId next) { return is_times_exponentials(next); });
        if (use.kind != InstKind::kMap) return false;
        if (is_signed_sum(use)) return is_times_exponentials(use.id);
        if (use.op != Op::kMul) return false;
        const ValueId other = use.operands[use.operands[0] == value ? 1 : 0];
        if (!in_columns_.contains(other)) return is_times_exponentials(use.id);
        const Inst* made = maker(other);
        return made != nullptr && is_f32_map(*made, Op::kExp);
    });
}

bool Uses::is_only_summed(ValueId value) {
    return all_of(value, is_only_summed_, [&](const Inst& use) {
        if (use.kind == InstKind::kAccumulate) return adds_up(use);
        if (use.kind != InstKind::kMap) return ends_narrow(use, [&](ValueId next) { return is_only_summed(next); });
        if (use.op == Op::kEq) return is_constant(use.operands[0], 0) || is_constant(use.operands[1], 0);
        return (scales(use) || use.op == Op::kSelect) && is_only_summed(use.id);
    });
}

bool Uses::is_only_in_sums(ValueId value) {
    return all_of(value, is_only_in_sums_, [&](const Inst& use) {
        if (use.kind == InstKind::kAccumulate) return adds_up(use) || (!is_gpu_ && sums_.contains(use.index));
        if (use.kind == InstKind::kKeep) return kept_ends(use, [&](ValueId next) { return is_only_in_sums(next); });
        if (use.kind != InstKind::kMap) return false;
        if (use.op == Op::kEq) return is_constant(use.operands[0], 0) || is_constant(use.operands[1], 0);
        const bool passes = is_smooth(use.op) || use.op == Op::kSelect || use.op == Op::kAbs;
        return (passes || is_f32_map(use, Op::kLog)) && is_only_in_sums(use.id);
    });
}

// Whether the value is a multiple or a sum of weights that goes into sums, as above, and into logarithms that are
// weighted; or, of a factor, into a product that is rounded, of which it is a part.
bool Uses::is_in_shares(ValueId value, Ends ends) {
    return all_of(value, is_in_shares_[ends], [&](const Inst& use) {
        if (use.kind == InstKind::kAccumulate) return adds_up(use);
        if (use.kind != InstKind::kMap) return false;
        if (use.op == Op::kEq) return is_constant(use.operands[0], 0) || is_constant(use.operands[1], 0);
        if (is_f32_map(use, Op::kLog)) return is_weighted(use.id, weights_of(use.operands[0]));
        if (ends == kAlsoFactors && scales(use) && is_scaled(use.id)) return true;
        return is_only_in_sums(use.id) || ((scales(use) || is_f32_map(use, Op::kAdd)) && is_in_shares(use.id, ends));
    });
}

// The exponential, a weight, that a value is a multiple of.
const Inst* Uses::weight_of(ValueId value) {
    const auto [known, is_new] = weight_of_.try_emplace(value, nullptr);
    if (!is_new) return known->second;
    const Inst* inst = maker(value);
    if (inst == nullptr || inst->kind != InstKind::kMap) return nullptr;
    const Inst* weight = nullptr;
    if (is_f32_map(*inst, Op::kExp)) weight = is_below_maximum(inst->operands[0]) ? inst : nullptr;
    if (scales(*inst)) weight = weight_of(inst->operands[0]);
    if (weight == nullptr && inst->op == Op::kMul) weight = weight_of(inst->operands[1]);
    return weight_of_[value] = weight;
}

// The weights that a value is a sum of multiples of; none where something else is in it.
const std::set<const Inst*>& Uses::weights_of(ValueId value) {
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

// Whether what the value goes into, by sums and choices, is multiplied by one of the weights and then added up, or, of
// a GPU's, scaled and rounded.
bool Uses::is_weighted(ValueId value, const std::set<const Inst*>& weights) {
    if (!uses_.contains(value)) return false;
    return all_of(value, is_weighted_[weights], [&](const Inst& use) {
        if (use.kind == InstKind::kKeep)
            return is_gpu_ && kept_ends(use, [&](ValueId next) { return is_weighted(next, weights); });
        if (use.kind != InstKind::kMap) return false;
        if (use.op == Op::kAdd || use.op == Op::kSub || use.op == Op::kSelect) return is_weighted(use.id, weights);
        if (use.op != Op::kMul) return false;
        const ValueId other = use.operands[use.operands[0] == value ? 1 : 0];
        if (is_gpu_ && !in_columns_.contains(other)) return is_weighted(use.id, weights);
        const Inst* weight = weight_of(other);
        const bool is_one = std::ranges::any_of(weights, [&](const Inst* one) {
            return one == weight || (is_gpu_ && weight != nullptr && are_same(one->id, weight->id));
        });
        return is_one && (is_only_in_sums(use.id) || (is_gpu_ && is_scaled(use.id)));
    });
}

bool Uses::is_below_maximum(ValueId value) { return is_below(value, maxima_); }

bool Uses::is_below_greatest(ValueId difference) { return is_below(difference, peaks_); }

bool Uses::is_below(ValueId value, const std::map<ValueId, int>& maxima) {
    const Inst* difference = maker(value);
    if (difference == nullptr || difference->kind != InstKind::kMap || difference->op != Op::kSub) return false;
    const auto maximum = maxima.find(difference->operands[1]);
    return maximum != maxima.end() && are_same(difference->operands[0], terms_.at(maximum->second));
}

}  // namespace rowjit::precision
