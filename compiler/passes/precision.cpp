// What an f32 value may lose where a rounding to bf16 or f16, or the sum of a row, hides it. A GPU's special functions
// and a product that is not rounded before it is added save half of the arithmetic of a softmax and a quarter of a
// norm's backward, and at two bytes an element arithmetic takes as long as memory does; on a CPU exponentials take
// three quarters of their time. f32 results are computed as written.
#include "compiler/passes/passes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <ranges>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "compiler/passes/precision_uses.h"
#include "compiler/passes/row_numbers.h"

namespace rowjit {
namespace {

using precision::is_f32_map;
using precision::Uses;

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
    // adds up has been scaled by a statistic or bounded by a function. Nor one that what is added may be all of, or
    // take all of.
    void add(Inst& inst) {
        for (const auto& [product, other] :
             {std::pair(inst.operands[0], inst.operands[1]), {inst.operands[1], inst.operands[0]}}) {
            if (uses_.is_product_of_given(product) && uses_.adds_given_product(other)) continue;
            if (uses_.may_be_all_of(product, other) || uses_.may_cancel_factor(inst, product, other)) continue;
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

// e^x of a size of this is a normal number.
constexpr double kMostBounded = 87;

std::set<ValueId> exponentials_of_mixtures(const ColumnLoop& loop, Uses& uses) {
    std::set<ValueId> all;
    for (const Inst& inst : loop.body) {
        const Inst* mixed = is_f32_map(inst, Op::kLog) ? uses.exponential_of_mixture(inst) : nullptr;
        if (mixed != nullptr) all.insert(mixed->id);
    }
    return all;
}

// Whether constants bound what an exponential is of, or, on a GPU, that of a mixture whose logarithm it is.
bool is_bounded(const Inst& inst, Uses& uses) {
    const Inst* exponential = inst.stored ? &inst : nullptr;
    if (is_f32_map(inst, Op::kLog) && uses.is_gpu()) exponential = uses.exponential_of_mixture(inst);
    return exponential != nullptr && uses.is_within(exponential->operands[0], kMostBounded);
}

bool has_narrow_instruction(const Inst& inst) {
    const auto is = [&](Op op) { return is_f32_map(inst, op); };
    return is(Op::kLog) || is(Op::kLog1p) || is(Op::kSqrt) || is(Op::kRsqrt);
}

// `inside`: what the loop has made before it. A divisor of the row is divided by through its reciprocal, another only
// where it is known to have one.
bool may_be_narrow(const Inst& inst, const std::set<ValueId>& inside, Uses& uses) {
    if (is_f32_map(inst, Op::kExp))
        return (uses.is_gpu() && uses.is_share_or_factor(inst)) || uses.only_scale(inst.id) || uses.is_logistic(inst) ||
               uses.is_weight_in_sums(inst) || uses.is_summed_and_rounded(inst.id);
    if (is_f32_map(inst, Op::kErf)) return uses.is_beside_one(inst);
    if (is_f32_map(inst, Op::kTanh)) return inst.part != TanhPart::kItself || uses.is_of_its_own(inst);
    if (is_f32_map(inst, Op::kLog) && uses.is_log_of_weights(inst)) return true;
    if (has_narrow_instruction(inst)) return uses.is_gpu() && uses.is_rounded(inst.id);
    if (is_f32_map(inst, Op::kSub)) return uses.is_log_of_share(inst);
    if (is_f32_map(inst, Op::kDiv) && uses.divides_weight(inst)) return !inside.contains(inst.operands[1]);
    if (!is_f32_map(inst, Op::kDiv)) return false;
    if (!inside.contains(inst.operands[1])) return uses.is_scaled_or_summed(inst.id) || uses.is_tanh_argument(inst.id);
    return uses.is_logistic_quotient(inst) || (uses.is_gpu() && uses.is_rounded(inst.id));
}

// A CPU's exponential of half the bits takes two multiplications less of six, and an estimate of a reciprocal one
// cycle where a division takes six to ten. All quotients by a number share its reciprocal.
bool may_be_rough(const Inst& inst, const std::set<ValueId>& inside, Uses& uses) {
    if (uses.is_gpu() || !inst.narrow) return false;
    if (inst.op == Op::kExp) return uses.is_scaled_to_bf16(inst.id);
    return inst.op == Op::kDiv && inside.contains(inst.operands[1]) && uses.is_scaled_to_bf16(inst.operands[1]);
}

// x / s of a row's sum of weights is x (1 / s) where what a narrow quotient is off by is lost. One of any number scales
// it twice, since its reciprocal may be none: tvd of 128256 bf16 columns has two instructions of 33 a pair less, and 60
// a row.
void multiply_by_reciprocals(Kernel* kernel, Uses& uses) {
    std::map<ValueId, ValueId> reciprocals;
    change_loops(kernel, [&](ColumnLoop* loop, Block* before) {
        for (Inst& quotient : loop->body) {
            if (!is_f32_map(quotient, Op::kDiv) || !uses.is_sum_of_weights(quotient.operands[1])) continue;
            if (!may_be_narrow(quotient, {}, uses)) continue;
            const auto [known, is_new] = reciprocals.try_emplace(quotient.operands[1], kernel->value_count + 1);
            if (is_new) {
                const ValueId one = add_constant(kernel, before, 1);
                add_map(before, kernel->value_count++, Op::kDiv, {one, quotient.operands[1]}).comment =
                    "of a sum of weights";
            }
            quotient.op = Op::kMul;
            quotient.operands[1] = known->second;
        }
    });
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
        quotient->op = Op::kMul;
        quotient->operands[1] = add_constant(kernel, &inverses, 1 / constants.at(quotient->operands[1]));
    }
    kernel->body.insert(kernel->body.begin(), std::make_move_iterator(inverses.begin()),
                        std::make_move_iterator(inverses.end()));
}

// Nothing hides what an exponential is off by that is stored in f32, as it is or multiplied, or in a choice or a sum of
// values (is_beside_constant has the others).
void mark_stored(Kernel* kernel) {
    std::map<ValueId, int> uses;
    std::map<ValueId, int> stores;     // those of the uses that come to nothing but what is stored
    std::vector<const Inst*> passing;  // in their order
    std::set<ValueId> constants;
    const auto is_constant = [&](ValueId value) { return constants.contains(value); };
    const auto passes = [&](const Inst& inst) {
        if (is_f32_map(inst, Op::kMul) || is_f32_map(inst, Op::kSelect)) return true;
        const bool adds = is_f32_map(inst, Op::kAdd) || is_f32_map(inst, Op::kSub);
        return adds && std::ranges::none_of(inst.operands, is_constant);
    };
    each_inst(*kernel, [&](const Inst& inst) {
        if (inst.kind == InstKind::kConst) constants.insert(inst.id);
        each_use(inst, [&](ValueId value) { ++uses[value]; });
        if (passes(inst)) passing.push_back(&inst);
        if (inst.kind != InstKind::kStore) return;
        const Dtype dtype = kernel->tensors[static_cast<std::size_t>(inst.index)].dtype;
        if (dtype == Dtype::kF32) ++stores[inst.operands[0]];
    });
    const auto is_stored = [&](ValueId value) { return stores[value] > 0 && stores[value] == uses[value]; };
    for (const Inst* inst : std::views::reverse(passing)) {
        if (!is_stored(inst->id)) continue;
        for (const ValueId operand : inst->operands) ++stores[operand];
    }
    const auto mark = [&](Inst& inst) { inst.stored = is_f32_map(inst, Op::kExp) && is_stored(inst.id); };
    for (Stmt& stmt : kernel->body) {
        if (auto* inst = std::get_if<Inst>(&stmt.node)) mark(*inst);
        if (auto* loop = std::get_if<ColumnLoop>(&stmt.node)) std::ranges::for_each(loop->body, mark);
    }
}

// 1 - t^2 and 1 + t of t = tanh u are functions of u in their own right where a few units in the last place of them are
// lost. Of t they show an error that t itself need not have, where t is near 1 or -1, so that it would have to be
// exact: 27 instructions for t, where both parts take ten (tests/compiler/prelude_math_test.cpp has their errors).
void take_tanh_apart(Kernel* kernel) {
    bool has_tanh = false;
    each_inst(*kernel, [&](const Inst& inst) { has_tanh = has_tanh || is_f32_map(inst, Op::kTanh); });
    if (!has_tanh) return;
    const Kernel written = *kernel;
    Uses uses(written, true);
    for (Stmt& stmt : kernel->body) {
        auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        std::set<ValueId> taken;  // squares, and what they are of
        for (Inst& inst : loop->body) {
            const auto [part, tanh] = uses.part_of_tanh(inst);
            if (tanh == nullptr) continue;
            taken.insert(inst.operands.begin(), inst.operands.end());
            taken.insert(tanh->id);
            inst.op = Op::kTanh;
            inst.part = part;
            inst.operands = {tanh->operands[0]};
        }
        for (const Op unused : {Op::kMul, Op::kTanh}) {
            std::set<ValueId> used;
            each_inst(*kernel, [&](const Inst& inst) { each_use(inst, [&](ValueId value) { used.insert(value); }); });
            std::erase_if(loop->body, [&](const Inst& inst) {
                return is_f32_map(inst, unused) && taken.contains(inst.id) && !used.contains(inst.id);
            });
        }
    }
}

}  // namespace

Kernel spend_precision(Kernel kernel, const Target& target) {
    divide_by_powers(&kernel);
    mark_stored(&kernel);
    const auto opens = [](const Stmt& stmt) { return std::holds_alternative<OpenSteps>(stmt.node); };
    if (std::any_of(kernel.body.begin(), kernel.body.end(), opens)) return kernel;
    if (target.is_gpu()) take_tanh_apart(&kernel);
    const Kernel written = kernel;
    Uses uses(written, target.is_gpu());
    precision::cancel_scales(&kernel, uses);
    if (target.is_gpu()) multiply_by_reciprocals(&kernel, uses);
    Block constants;
    const auto least = [&] {
        if (constants.empty()) add_constant(&kernel, &constants, std::numeric_limits<float>::lowest());
        return std::get<Inst>(constants.front().node).id;
    };
    for (Stmt& stmt : kernel.body) {
        auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        std::set<ValueId> inside;
        std::set<ValueId> rest;  // of quotients that are products now
        const std::set<ValueId> of_mixtures = exponentials_of_mixtures(*loop, uses);
        for (Inst& inst : loop->body) {
            inst.weighs = (is_f32_map(inst, Op::kExp) && uses.only_weighs(inst)) ||
                          (is_f32_map(inst, Op::kLog) && uses.is_log_of_weights(inst));
            inst.narrow = may_be_narrow(inst, inside, uses);
            inst.stored = inst.stored || uses.is_beside_constant(inst) || of_mixtures.contains(inst.id);
            inst.bounded = is_bounded(inst, uses);
            inst.rough = may_be_rough(inst, inside, uses);
            inst.by_one_up = is_f32_map(inst, Op::kDiv) && uses.is_one_or_more(inst.operands[1]);
            inst.of_fraction = is_f32_map(inst, Op::kLog1p) && uses.is_fraction(inst.operands[0]);
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
    if (target.is_gpu()) precision::take_powers(&kernel, uses);
    kernel.body.insert(kernel.body.begin(), std::make_move_iterator(constants.begin()),
                       std::make_move_iterator(constants.end()));
    return kernel;
}

}  // namespace rowjit
