// Functions of f32 lanes as the module has them once, each called by its name (call_shared). How exact they are,
// llvm_math.h says.
#pragma once

#include <llvm/IR/Function.h>

#include <cstdint>
#include <string>

#include "compiler/emit/llvm_math.h"

namespace rowjit::cpu_functions {

using Builder = LaneBuilder;
using llvm::Value;

// To 23 bits, or to 13, beside what rounding x log2 e takes.
Value* exp_narrow(Builder& b, Value* x, bool rough);

Value* exp_f32(Builder& b, Value* x, bool full_width);

// Of sums of weights, absolutely to 2^-25 and 2^-24 of the result: the instructions that take a number apart know
// denormals, zero, infinity and NaN, and what is made of those is right without a question. 7 cycles for 16 lanes on
// Zen 4, where log_f32 takes 25.
Value* log_narrow(Builder& b, Value* x);

// By the same tables, with what each step loses: of 16 lanes 11 cycles, and no division, of which the others take one
// and log1p two.
Value* log_f32(Builder& b, Value* x);

Value* log1p_f32(Builder& b, Value* x);

// 1 − 2 / (e^2a + 1), which cancels nothing beyond the split. GELU adds 1 to it where it is near −1, which makes five
// units of one unit of error: so at full width the divisor is kept in two parts and the quotient's remainder is taken
// off, for a quarter of GELU's time. By tables where permutations look them up: dynamic_tanh of 4096 f32 columns takes
// half of its time.
Value* tanh_f32(Builder& b, Value* x, bool full_width);

// The same by a narrow exponential, where every result is rounded to 16 bits: an error of 2^-25 where it is near 1, as
// its rounding is, and a polynomial of 21 bits where 1 − … would cancel.
Value* tanh_narrow(Builder& b, Value* x);

// By tables in half the instructions of the rest, half of which permute while the other half multiply.
Value* erf_f32(Builder& b, Value* x);

// Arguments past 2^16, which no position encoding but the longest reaches, are reduced in f64, and past 2^20 libm takes
// the whole vector.
Value* sin_or_cos_f32(Builder& b, llvm::Function* function, const std::string& libm, std::int64_t quadrant);

}  // namespace rowjit::cpu_functions
