// What arithmetic on lanes is built of: constants and bits as wide as a vector, functions that a module has once,
// instructions of AVX-512 and AVX2. Private to emit/llvm_math.cpp, llvm_functions.cpp and llvm_formats.cpp, whose
// results these are parts of.
#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "compiler/emit/llvm_math.h"

namespace rowjit::cpu_lanes {

using Builder = LaneBuilder;
using llvm::Value;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A number for each value of four bits, which a permutation looks up.
using Table16 = std::array<double, 16>;

// Adding 1.5 · 2^(mantissa bits) leaves the nearest integer in the low mantissa bits.
inline constexpr double kRoundF32 = 0x1.8p23;

inline constexpr double kRoundF64 = 0x1.8p52;

unsigned width(const Value* v);

inline bool is_vector(const Value* v) { return v->getType()->isVectorTy(); }
inline bool is_fp(const Value* v) { return v->getType()->isFPOrFPVectorTy(); }
inline bool is_f64(const Value* v) { return v->getType()->getScalarType()->isDoubleTy(); }

// `element` with as many lanes as `like`.
llvm::Type* shaped(llvm::Type* element, const Value* like);

inline Value* constant(const Value* like, double value) { return llvm::ConstantFP::get(like->getType(), value); }
Value* integer(const Value* like, std::int64_t value);

Value* bits_of(Builder& b, Value* v);
inline Value* float_of(Builder& b, Value* bits) { return b.CreateBitCast(bits, shaped(b.getFloatTy(), bits)); }

inline Value* absolute(Builder& b, Value* v) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v); }
Value* with_sign(Builder& b, Value* magnitude, Value* sign);
inline Value* is_nan(Builder& b, Value* v) { return b.CreateFCmpUNO(v, v); }

// Bounds that let NaN through: an ordered comparison with it is false.
Value* at_least(Builder& b, Value* v, double low);

Value* at_most(Builder& b, Value* v, double high);

// The constant as a value that the optimiser knows nothing of, read where the function begins.
Value* opaque(Builder& b, llvm::Constant* constant);

// What all lanes are, where that is a constant other than zero and NaN.
std::optional<double> known_number(const Value* v);

// a·b + c, fused when the target has the instruction.
Value* multiply_add(Builder& b, Value* a, Value* m, Value* c);

Value* horner(Builder& b, Value* x, std::span<const double> coefficients);

// The function rj.NAME.TYPE of the builder's module, made by `define` when it is first asked for, called on
// `arguments`; its name is by the type of the first of them. A call keeps the printed module short, and gives functions
// with branches their own blocks; the optimiser inlines it.
Value* call_shared(Builder& b, const std::string& name, llvm::Type* type, llvm::ArrayRef<Value*> arguments,
                   const std::function<Value*(Builder&, llvm::Function*)>& define);

using Lanewise = const std::function<Value*(Builder&, Value*)>&;
Value* call_shared(Builder& b, const std::string& name, Value* x, Lanewise define);

// libm's double function on every lane.
Value* call_libm(Builder& b, const std::string& name, Value* x);

inline constexpr unsigned kZmmLanes = 16;  // of f32
inline constexpr unsigned kYmmLanes = 8;

// Lanes [from, from + count).
Value* lanes_of(Builder& b, Value* v, unsigned from, unsigned count);

// The lanes of two vectors of one width, one after the other.
Value* joined(Builder& b, Value* low, Value* high);

// An instruction of AVX-512 as LLVM has it: one intrinsic a register width, with a mask for its lanes, and how to round
// for 512 bits.
struct Masked {
    llvm::Intrinsic::ID of_512;
    llvm::Intrinsic::ID of_256;
    llvm::Intrinsic::ID of_128;
};

inline constexpr Masked kScale = {llvm::Intrinsic::x86_avx512_mask_scalef_ps_512,
                                  llvm::Intrinsic::x86_avx512_mask_scalef_ps_256,
                                  llvm::Intrinsic::x86_avx512_mask_scalef_ps_128};

inline constexpr Masked kExponent = {llvm::Intrinsic::x86_avx512_mask_getexp_ps_512,
                                     llvm::Intrinsic::x86_avx512_mask_getexp_ps_256,
                                     llvm::Intrinsic::x86_avx512_mask_getexp_ps_128};

inline constexpr Masked kMantissa = {llvm::Intrinsic::x86_avx512_mask_getmant_ps_512,
                                     llvm::Intrinsic::x86_avx512_mask_getmant_ps_256,
                                     llvm::Intrinsic::x86_avx512_mask_getmant_ps_128};

inline constexpr Masked kReduce = {llvm::Intrinsic::x86_avx512_mask_reduce_ps_512,
                                   llvm::Intrinsic::x86_avx512_mask_reduce_ps_256,
                                   llvm::Intrinsic::x86_avx512_mask_reduce_ps_128};

// On all lanes, 16, 8 or 4 at a time: `x`, and `second`, a vector as wide, a number or none. Where `where` is given and
// does not hold a lane is 0, and nothing is computed for it.
Value* by_instruction(Builder& b, const Masked& instruction, Value* x, Value* second = nullptr, Value* where = nullptr);

// Whether it has lanes for them.
inline bool has_instructions(const Builder& b, const Value* x) { return b.cpu.scalef && width(x) >= 4; }

// Powers of two by which what is below 2 comes to less than half of the smallest denormal.
inline constexpr double kLeastPower = -152;

// x · 2^⌊k⌋, for k below `least` 0 where a processor takes long over results that are no normal numbers.
Value* scale_by_instruction(Builder& b, Value* x, Value* k, double least = kLeastPower);

// Whether x fills registers of AVX-512, whose permutations look up 16 numbers.
inline bool looks_up(const Builder& b, const Value* x) { return b.cpu.scalef && width(x) % kZmmLanes == 0; }

// Whether x fills registers of AVX2, whose permutation looks up 8 numbers.
inline bool fills_ymm(const Builder& b, const Value* x) { return b.cpu.avx2_alone && width(x) % kYmmLanes == 0; }

// Of each lane the entry that its lowest bits choose: of 16 where x looks_up, of 8 where it fills_ymm.
Value* look_up(Builder& b, std::span<const double> table, Value* indices);

// Whether `mask` has a lane: registers are joined first, of which LLVM would ask one by one.
Value* any_lane(Builder& b, Value* mask);

}  // namespace rowjit::cpu_lanes
