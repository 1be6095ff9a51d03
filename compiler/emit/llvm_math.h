// Elementwise arithmetic as LLVM IR: every row of dsl/ops.def, the roundings of bf16 and f16, and casts. Functions work
// on scalars and on fixed vectors alike. Where the value is known to fit no special case is emitted; the rest (layout,
// loops, memory) is emit/llvm_emitter.h's.
//
// f32 functions are within 2 ulp of the exact result for every input, denormals, infinities and NaN included
// (tests/compiler/llvm_math_test.cpp sweeps them), and inlined as polynomials; exponentials, logarithms, tanh and erf
// where registers are 512 bits wide with tables that a permutation looks up. f64 functions call libm lane by lane: they
// serve checking, not speed.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include <map>
#include <utility>

#include "compiler/emit/cpu_features.h"
#include "dsl/ops.h"
#include "rowjit/dtype.h"

namespace rowjit {

// An IRBuilder that knows the instruction set it builds for.
class LaneBuilder : public llvm::IRBuilder<> {
  public:
    LaneBuilder(llvm::LLVMContext& context, CpuFeatures cpu) : llvm::IRBuilder<>(context), cpu(cpu) {}
    LaneBuilder(llvm::BasicBlock* end, CpuFeatures cpu) : llvm::IRBuilder<>(end), cpu(cpu) {}
    const CpuFeatures cpu;
    bool full_width = true;  // whether a result keeps all of f32, or every one is rounded to bf16
    bool narrow = false;     // what is built now may be less exact than f32 (passes/precision)
    bool rough = false;      // … and of 12 bits alone
    // Vectors have the words of even places of memory first, then those of odd ones: bf16 is made of pairs of words by
    // a shift and a mask, and pairs of it, where in order every eight lanes are widened, shifted, packed and permuted.
    bool in_pairs = false;
    // Every NaN is one of bf16, with zeros in its lower half: the addition that rounds to bf16 carries none of them
    // into another number.
    bool nans_are_narrow = false;
    // Of carried values that were made of what memory holds in that dtype.
    std::map<std::pair<llvm::Value*, Dtype>, llvm::Value*> stored;
    std::map<std::pair<llvm::BasicBlock*, llvm::Constant*>, llvm::Value*> opaque;  // by a function's entry
};

// Values of bf16 and f16 are carried as f32.
llvm::Type* carried_type(LaneBuilder& builder, Dtype dtype);
// In memory: bf16 and f16 as i16, bool as i8.
llvm::Type* stored_type(LaneBuilder& builder, Dtype dtype);

// A carried value of what was loaded, and back. `narrow` takes a value that is already representable.
llvm::Value* widen(LaneBuilder& builder, Dtype dtype, llvm::Value* stored);
llvm::Value* narrow(LaneBuilder& builder, Dtype dtype, llvm::Value* carried);

// An f32 value rounded to bf16 or f16, to nearest even, NaN staying NaN; other dtypes unchanged.
llvm::Value* round_carried(LaneBuilder& builder, Dtype dtype, llvm::Value* value);

// As round_to of base/dtype.h: rounds once, whatever the two dtypes; to an integer it truncates and saturates, NaN to
// 0.
llvm::Value* convert(LaneBuilder& builder, Dtype from, Dtype to, llvm::Value* value);

// The operation on carried operands of one LLVM type each, unrounded: for bf16 and f16 the result is f32's.
llvm::Value* apply(LaneBuilder& builder, Op op, llvm::Value* a, llvm::Value* b, llvm::Value* c);

// A floating-point vector over one divisor of all its lanes, by multiplications: as exact as the division unless
// vector or quotient is tiny (below 2^-100, a denormal), then within a unit and a half.
llvm::Value* divide_by_one(LaneBuilder& builder, llvm::Value* vector, llvm::Value* divisor);

// x / y of divisors that are at least 1, within a unit and a half: their reciprocals are one value for all of a loop.
llvm::Value* multiplied_by_reciprocal(LaneBuilder& builder, llvm::Value* x, llvm::Value* y);

// e^x for x ≤ 0 or NaN, at full width. What is below 2^-124 is that beside a sum of which another term is 1, as
// least_weight_or_exp has it, and 0 as exp_weight does.
llvm::Value* least_weight_or_exp(LaneBuilder& builder, llvm::Value* x);
llvm::Value* exp_weight(LaneBuilder& builder, llvm::Value* x);
// The same for a sum of many terms whose greatest is 1, of which a term may be off by 2^-23 and x log2 e is rounded: of
// so many either cancels out, and 1 is exact. A divergence has differences of such sums, where it showed: kl_div of f32
// rows erred by 2.4 units where with exact weights it does by 1.6.
llvm::Value* exp_in_sum(LaneBuilder& builder, llvm::Value* x);
// e^x of f32 for |x| ≤ 87 or NaN, at full width.
llvm::Value* exp_bounded(LaneBuilder& builder, llvm::Value* x);
// Where a weight's exponent is so low.
llvm::Value* weighs_nothing(LaneBuilder& builder, llvm::Value* x);

// uniform() of `lanes` positions from `first` on, all three of them numbers; a multiple of four lanes.
llvm::Value* uniform_run(LaneBuilder& builder, llvm::Value* seed, llvm::Value* offset, llvm::Value* first, int lanes);

// The functions the `cpu` column of ops.def names.
namespace llvm_math {
#define ROWJIT_OP(enumerator, name, arity, types, reference, gpu, packed, cpu, ...) \
    llvm::Value* cpu(LaneBuilder& builder, llvm::Value* a, llvm::Value* b, llvm::Value* c);
#include "dsl/ops.def"
#undef ROWJIT_OP
llvm::Value* nan_where(LaneBuilder& builder, llvm::Value* condition, llvm::Value* v);
}  // namespace llvm_math

}  // namespace rowjit
