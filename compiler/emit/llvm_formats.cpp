// Numbers as memory has them and as they are carried: bf16, f16 and the formats of eight bits, their roundings, and
// casts.
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/emit/llvm_lanes.h"
#include "compiler/emit/llvm_math.h"

namespace rowjit {
namespace {

using namespace cpu_lanes;

constexpr std::int64_t kUpperHalf = 0xFFFF0000;

// The bits of a number whose upper half is that of the nearest one with zeros below, to even.
Value* carried_into_upper_half(Builder& b, Value* bits) {
    Value* odd = b.CreateAnd(b.CreateLShr(bits, integer(bits, 16)), integer(bits, 1));
    return b.CreateAdd(bits, b.CreateAdd(odd, integer(bits, 0x7FFF)));
}

// The f32 nearest to x whose lower half is zeros, to even.
Value* rounded_to_upper_half(Builder& b, Value* x) {
    Value* bits = bits_of(b, x);
    Value* rounded = carried_into_upper_half(b, bits);
    Value* quiet = b.CreateOr(bits, integer(bits, 0x400000));
    Value* chosen = b.CreateSelect(is_nan(b, x), quiet, rounded);
    return float_of(b, b.CreateAnd(chosen, integer(bits, kUpperHalf)));
}

// The same of what is no NaN but bf16's.
Value* numbers_to_upper_half(Builder& b, Value* x) {
    Value* rounded = carried_into_upper_half(b, bits_of(b, x));
    return float_of(b, b.CreateAnd(rounded, integer(rounded, kUpperHalf)));
}

// The same behind a branch that asks of two registers at once whether a lane is no number: five instructions a register
// of AVX2 are left of eight.
Value* rounded_numbers_to_upper_half(Builder& b, llvm::Function* function) {
    Value* x = function->getArg(0);
    llvm::BasicBlock* rare = llvm::BasicBlock::Create(b.getContext(), "no_number", function);
    llvm::BasicBlock* usual = llvm::BasicBlock::Create(b.getContext(), "numbers", function);
    const unsigned half = width(x) / 2;
    Value* unordered = b.CreateFCmpUNO(lanes_of(b, x, 0, half), lanes_of(b, x, half, half));
    b.CreateCondBr(any_lane(b, unordered), rare, usual, llvm::MDBuilder(b.getContext()).createUnlikelyBranchWeights());

    b.SetInsertPoint(rare);
    b.CreateRet(rounded_to_upper_half(b, x));

    b.SetInsertPoint(usual);
    return numbers_to_upper_half(b, x);
}

// The upper 16 bits of each lane: one permutation of words, where shifting and truncating are three instructions.
Value* upper_halves(Builder& b, Value* bits) {
    Value* words = b.CreateBitCast(bits, llvm::FixedVectorType::get(b.getInt16Ty(), 2 * width(bits)));
    std::vector<int> odd;
    for (unsigned lane = 0; lane < width(bits); ++lane) odd.push_back(static_cast<int>(2 * lane + 1));
    return b.CreateShuffleVector(words, odd);
}

// 32 words, each behind 16 zeros, as 32 lanes: a permutation for each half of them, whose mask makes the zeros. On Zen
// 4 it has two pipes to choose from, where widening and shifting are two instructions, and a permutation of two
// registers, one of them zeros, waits for the multipliers' ports: quick_gelu took 46 cycles with those and takes 43. Of
// lanes it knew the optimiser would make such a one.
Value* words_to_upper_halves(Builder& b, Value* words) {
    Value* upper = opaque(b, b.getInt32(0xAAAAAAAA));
    upper = b.CreateBitCast(upper, llvm::FixedVectorType::get(b.getInt1Ty(), width(words)));
    const auto half = [&](unsigned from) {
        std::vector<std::uint16_t> lanes(width(words));
        for (unsigned word = 0; word < width(words); ++word) lanes[word] = static_cast<std::uint16_t>(from + word / 2);
        Value* indices = opaque(b, llvm::ConstantDataVector::get(b.getContext(), lanes));
        Value* spread = b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_permvar_hi_512, {}, {words, indices});
        Value* bits = b.CreateSelect(upper, spread, llvm::Constant::getNullValue(words->getType()));
        return b.CreateBitCast(bits, llvm::FixedVectorType::get(b.getFloatTy(), kZmmLanes));
    };
    return joined(b, half(0), half(kZmmLanes));
}

bool takes_pairs(const Builder& b, const Value* v) { return b.in_pairs && width(v) > kYmmLanes; }

Value* bf16_of_pairs(Builder& b, Value* stored) {
    Value* pairs = b.CreateBitCast(stored, llvm::FixedVectorType::get(b.getInt32Ty(), width(stored) / 2));
    Value* even = b.CreateShl(pairs, integer(pairs, 16));
    return float_of(b, joined(b, even, b.CreateAnd(pairs, integer(pairs, kUpperHalf))));
}

Value* pairs_of_bf16(Builder& b, Value* carried) {
    Value* bits = bits_of(b, carried);
    const unsigned half = width(bits) / 2;
    Value* even = lanes_of(b, bits, 0, half);
    Value* pairs = b.CreateOr(b.CreateLShr(even, integer(even, 16)), lanes_of(b, bits, half, half));
    return b.CreateBitCast(pairs, shaped(b.getInt16Ty(), carried));
}

Value* bf16_value(Builder& b, Value* stored) {
    if (takes_pairs(b, stored)) return bf16_of_pairs(b, stored);
    constexpr unsigned kWords = 2 * kZmmLanes;
    if (b.cpu.word_permutes && width(stored) == kWords) return words_to_upper_halves(b, stored);
    if (b.cpu.word_permutes && width(stored) > kWords) {
        const unsigned half = width(stored) / 2;
        return joined(b, bf16_value(b, lanes_of(b, stored, 0, half)), bf16_value(b, lanes_of(b, stored, half, half)));
    }
    Value* bits = b.CreateZExt(stored, shaped(b.getInt32Ty(), stored));
    return float_of(b, b.CreateShl(bits, integer(bits, 16)));
}

// The bits of x as bf16 by the instruction, for which a denormal is zero: two vectors into one.
Value* bf16_by_instruction(Builder& b, Value* x) {
    const unsigned lanes = width(x);
    llvm::Type* words = shaped(b.getInt16Ty(), x);
    if (lanes == kZmmLanes) {
        return b.CreateBitCast(b.CreateIntrinsic(llvm::Intrinsic::x86_avx512bf16_cvtneps2bf16_512, {}, {x}), words);
    }
    Value* low = lanes_of(b, x, 0, lanes / 2);
    Value* high = lanes_of(b, x, lanes / 2, lanes / 2);
    if (lanes > 2 * kZmmLanes) return joined(b, bf16_by_instruction(b, low), bf16_by_instruction(b, high));
    Value* both = b.CreateIntrinsic(llvm::Intrinsic::x86_avx512bf16_cvtne2ps2bf16_512, {}, {high, low});
    return b.CreateBitCast(both, words);
}

Value* any_denormal(Builder& b, Value* x) {
    constexpr std::uint32_t kDenormal = 0x20;
    Value* any = nullptr;
    for (unsigned from = 0; from < width(x); from += kZmmLanes) {
        Value* lanes = b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_fpclass_ps_512, {},
                                         {lanes_of(b, x, from, kZmmLanes), b.getInt32(kDenormal)});
        any = any == nullptr ? lanes : b.CreateOr(any, lanes);
    }
    return b.CreateOrReduce(any);
}

// Both by a branch around the integers' rounding: of 32 lanes 3 cycles on Zen 4, where that takes 9. A denormal becomes
// a zero, so that one test of the words tells of most vectors that they have none, and only where there are zeros are
// the lanes asked: the tests, like the multiplications, have two of the four pipes.
Value* bf16_bits(Builder& b, llvm::Function* function) {
    Value* x = function->getArg(0);
    llvm::LLVMContext& context = b.getContext();
    llvm::BasicBlock* zeros = llvm::BasicBlock::Create(context, "zeros", function);
    llvm::BasicBlock* denormals = llvm::BasicBlock::Create(context, "denormals", function);
    llvm::BasicBlock* usual = llvm::BasicBlock::Create(context, "usual", function);
    llvm::MDNode* unlikely = llvm::MDBuilder(context).createUnlikelyBranchWeights();
    Value* words = bf16_by_instruction(b, x);
    Value* sizes = b.CreateAnd(words, function->getArg(1));
    Value* some = nullptr;  // of registers one by one: of masks of 64 lanes the optimiser would join two of 32 first
    constexpr unsigned kWords = 2 * kZmmLanes;
    for (unsigned from = 0; from < width(x); from += kWords) {
        Value* part = lanes_of(b, sizes, from, std::min(kWords, width(x)));
        Value* nothing = b.CreateICmpEQ(part, integer(part, 0));
        some = some == nullptr ? nothing : b.CreateOr(some, nothing);
    }
    b.CreateCondBr(b.CreateOrReduce(some), zeros, usual, unlikely);

    b.SetInsertPoint(zeros);
    b.CreateCondBr(any_denormal(b, x), denormals, usual, unlikely);

    b.SetInsertPoint(denormals);
    b.CreateRet(upper_halves(b, bits_of(b, rounded_to_upper_half(b, x))));

    b.SetInsertPoint(usual);
    return words;
}

Value* round_bf16(Builder& b, Value* x) {
    if (fills_ymm(b, x) && b.nans_are_narrow) return numbers_to_upper_half(b, x);
    if (fills_ymm(b, x) && width(x) > kYmmLanes)
        return call_shared(b, "bf16", x->getType(), {x}, rounded_numbers_to_upper_half);
    if (!b.cpu.bf16_rounding || width(x) < kZmmLanes) return rounded_to_upper_half(b, x);
    // Of a mask it knew the optimiser would make a comparison of bf16, which is done lane by lane.
    Value* size = opaque(b, llvm::ConstantInt::get(shaped(b.getInt16Ty(), x), 0x7FFF));
    return widen(b, Dtype::kBf16, call_shared(b, "bf16", shaped(b.getInt16Ty(), x), {x, size}, bf16_bits));
}

// f32 bits that are a representable f16, or need rounding to one, as i16; without F16C.
Value* f16_bits(Builder& b, Value* x) {
    Value* bits = bits_of(b, x);
    Value* sign = b.CreateAnd(b.CreateLShr(bits, integer(bits, 16)), integer(bits, 0x8000));
    Value* magnitude = b.CreateAnd(bits, integer(bits, 0x7FFFFFFF));
    // Normal results: rebias the exponent by −112 and round away 13 bits, to even.
    Value* odd = b.CreateAnd(b.CreateLShr(magnitude, integer(bits, 13)), integer(bits, 1));
    Value* normal = b.CreateAdd(b.CreateSub(magnitude, integer(bits, std::int64_t{112} << 23)),
                                b.CreateAdd(odd, integer(bits, 0xFFF)));
    normal = b.CreateLShr(normal, integer(bits, 13));
    // Subnormal ones: adding 0.5 aligns the mantissa so that the FPU rounds at 2^-24.
    Value* aligned = b.CreateFAdd(float_of(b, magnitude), constant(x, 0.5));
    Value* subnormal = b.CreateSub(bits_of(b, aligned), integer(bits, 0x3F000000));
    Value* result =
        b.CreateSelect(b.CreateICmpULT(magnitude, integer(bits, std::int64_t{113} << 23)), subnormal, normal);
    // Above the largest finite f16 plus half its spacing: infinity, or a quiet NaN.
    result = b.CreateSelect(b.CreateICmpUGE(magnitude, integer(bits, 0x477FF000)), integer(bits, 0x7C00), result);
    result = b.CreateSelect(b.CreateICmpUGT(magnitude, integer(bits, 0x7F800000)), integer(bits, 0x7E00), result);
    return b.CreateTrunc(b.CreateOr(result, sign), shaped(b.getInt16Ty(), x));
}

Value* f16_value(Builder& b, Value* stored) {
    Value* bits = b.CreateZExt(stored, shaped(b.getInt32Ty(), stored));
    Value* sign = b.CreateShl(b.CreateAnd(bits, integer(bits, 0x8000)), integer(bits, 16));
    Value* magnitude = b.CreateShl(b.CreateAnd(bits, integer(bits, 0x7FFF)), integer(bits, 13));
    // Multiplying by 2^112 rebiases normal and subnormal numbers exactly; infinity and NaN get the top exponent.
    Value* scaled = bits_of(b, b.CreateFMul(float_of(b, magnitude), constant(float_of(b, magnitude), 0x1p112)));
    Value* top = b.CreateICmpUGE(magnitude, integer(bits, 0x0F800000));
    scaled = b.CreateSelect(top, b.CreateOr(magnitude, integer(bits, 0x7F800000)), scaled);
    return float_of(b, b.CreateOr(scaled, sign));
}

// f64 to f32 by rounding to odd: the sticky last bit lets a second rounding to a narrower format be the only one.
Value* truncate_to_odd(Builder& b, Value* x) {
    Value* near = b.CreateFPTrunc(x, shaped(b.getFloatTy(), x));
    Value* back = b.CreateFPExt(near, x->getType());
    Value* inexact = b.CreateFCmpONE(back, x);
    Value* too_far = b.CreateFCmpOGT(absolute(b, back), absolute(b, x));
    Value* bits = bits_of(b, near);
    Value* toward_zero = b.CreateSub(bits, b.CreateZExt(too_far, bits->getType()));
    return float_of(b, b.CreateSelect(inexact, b.CreateOr(toward_zero, integer(bits, 1)), bits));
}

// The bits of an f32, representable or not, in a format of eight bits: those of prelude_elements.h's rj_rounded_f8.
struct Format8 {
    int mantissa_bits;
    int bias;
    float smallest;       // normal number
    std::int64_t beyond;  // bits of the f32 from which on what it rounds to is no finite number
    std::int64_t what_is_beyond;
};

constexpr Format8 kE4m3Format = {3, 7, 0x1p-6F, 0x43E80001, 0x7F};
constexpr Format8 kE5m2Format = {2, 15, 0x1p-14F, 0x47700000, 0x7C};

const Format8& format8(Dtype dtype) { return dtype == Dtype::kE4m3 ? kE4m3Format : kE5m2Format; }

Value* f8_bits(Builder& b, const Format8& format, Value* x) {
    const int dropped = 23 - format.mantissa_bits;
    Value* bits = bits_of(b, x);
    Value* sign = b.CreateAnd(b.CreateLShr(bits, integer(bits, 24)), integer(bits, 0x80));
    Value* magnitude = b.CreateAnd(bits, integer(bits, 0x7FFFFFFF));
    Value* odd = b.CreateAnd(b.CreateLShr(magnitude, integer(bits, dropped)), integer(bits, 1));
    Value* normal = b.CreateAdd(magnitude, b.CreateAdd(odd, integer(bits, (std::int64_t{1} << (dropped - 1)) - 1)));
    normal = b.CreateSub(b.CreateLShr(normal, integer(bits, dropped)),
                         integer(bits, std::int64_t{127 - format.bias} << format.mantissa_bits));
    const float aligning = format.smallest * static_cast<float>(1 << dropped);
    Value* aligned = b.CreateFAdd(float_of(b, magnitude), constant(x, aligning));
    Value* subnormal = b.CreateSub(bits_of(b, aligned), integer(bits, std::bit_cast<std::uint32_t>(aligning)));
    Value* small = b.CreateICmpULT(magnitude, integer(bits, std::bit_cast<std::uint32_t>(format.smallest)));
    Value* result = b.CreateSelect(small, subnormal, normal);
    result = b.CreateSelect(b.CreateICmpUGE(magnitude, integer(bits, format.beyond)),
                            integer(bits, format.what_is_beyond), result);
    // Where what is beyond is no number, neither is what is none.
    if (format.what_is_beyond != 0x7F)
        result = b.CreateSelect(b.CreateICmpUGT(magnitude, integer(bits, 0x7F800000)), integer(bits, 0x7F), result);
    return b.CreateTrunc(b.CreateOr(result, sign), shaped(b.getInt8Ty(), x));
}

Value* f8_value(Builder& b, Dtype dtype, Value* stored) {
    const Format8& format = format8(dtype);
    Value* bits = b.CreateZExt(stored, shaped(b.getInt32Ty(), stored));
    Value* sign = b.CreateShl(b.CreateAnd(bits, integer(bits, 0x80)), integer(bits, 24));
    Value* byte = b.CreateAnd(bits, integer(bits, 0x7F));
    // As a small f32, normal or subnormal, whose exponent a product puts right.
    Value* magnitude = float_of(b, b.CreateShl(byte, integer(bits, 23 - format.mantissa_bits)));
    Value* scaled = bits_of(b, b.CreateFMul(magnitude, constant(magnitude, std::ldexp(1.0, 127 - format.bias))));
    if (dtype == Dtype::kE5m2) {
        Value* infinite = b.CreateICmpEQ(byte, integer(bits, 0x7C));
        scaled = b.CreateSelect(infinite, integer(bits, 0x7F800000), scaled);
    }
    Value* none = b.CreateICmpUGT(byte, integer(bits, dtype == Dtype::kE5m2 ? 0x7C : 0x7E));
    scaled = b.CreateSelect(none, integer(bits, 0x7FC00000), scaled);
    return float_of(b, b.CreateOr(scaled, sign));
}

// To an integer, towards zero, saturated, NaN to 0. Of a vector by comparisons: llvm.fptosi.sat is done lane by lane,
// with which a quantization took 3.3 times as long on Zen 4, and a rotary embedding's backward 2.2 times.
Value* truncated(Builder& b, Value* x, llvm::Type* type) {
    if (!is_vector(x)) return b.CreateIntrinsic(llvm::Intrinsic::fptosi_sat, {type, x->getType()}, {x});
    const unsigned bits = type->getScalarSizeInBits();
    Value* limit = constant(x, std::ldexp(1.0, static_cast<int>(bits) - 1));
    Value* above = b.CreateFCmpOGE(x, limit);
    Value* below = b.CreateFCmpOLT(x, b.CreateFNeg(limit));
    Value* outside = b.CreateOr(b.CreateOr(above, below), is_nan(b, x));
    Value* result = b.CreateFPToSI(b.CreateSelect(outside, constant(x, 0), x), type);
    result = b.CreateSelect(above, llvm::ConstantInt::get(type, llvm::APInt::getSignedMaxValue(bits)), result);
    return b.CreateSelect(below, llvm::ConstantInt::get(type, llvm::APInt::getSignedMinValue(bits)), result);
}

}  // namespace

llvm::Type* carried_type(Builder& b, Dtype dtype) {
    switch (dtype) {
        case Dtype::kBool: return b.getInt1Ty();
        case Dtype::kI8:
        case Dtype::kI32: return b.getInt32Ty();
        case Dtype::kI64: return b.getInt64Ty();
        case Dtype::kBf16:
        case Dtype::kF16:
        case Dtype::kE4m3:
        case Dtype::kE5m2:
        case Dtype::kF32: return b.getFloatTy();
        case Dtype::kF64: return b.getDoubleTy();
    }
    RJ_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

llvm::Type* stored_type(Builder& b, Dtype dtype) {
    if (size_bytes(dtype) == 1) return b.getInt8Ty();
    if (is_narrow(dtype)) return b.getInt16Ty();
    return carried_type(b, dtype);
}

Value* widen(Builder& b, Dtype dtype, Value* stored) {
    switch (dtype) {
        case Dtype::kBool: return b.CreateICmpNE(stored, integer(stored, 0));
        case Dtype::kI8: return b.CreateSExt(stored, shaped(b.getInt32Ty(), stored));
        case Dtype::kE4m3:
        case Dtype::kE5m2: return f8_value(b, dtype, stored);
        case Dtype::kBf16: {
            Value* carried = bf16_value(b, stored);
            b.stored[{carried, dtype}] = stored;
            return carried;
        }
        case Dtype::kF16:
            if (!b.cpu.f16_conversion) return f16_value(b, stored);
            return b.CreateFPExt(b.CreateBitCast(stored, shaped(b.getHalfTy(), stored)),
                                 shaped(b.getFloatTy(), stored));
        default: return stored;
    }
}

Value* narrow(Builder& b, Dtype dtype, Value* carried) {
    if (const auto known = b.stored.find({carried, dtype}); known != b.stored.end()) return known->second;
    llvm::Type* stored = shaped(stored_type(b, dtype), carried);
    switch (dtype) {
        case Dtype::kBool: return b.CreateZExt(carried, stored);
        case Dtype::kI8: return b.CreateTrunc(carried, stored);
        case Dtype::kE4m3:
        case Dtype::kE5m2: return f8_bits(b, format8(dtype), carried);
        case Dtype::kBf16: {
            if (takes_pairs(b, carried)) return pairs_of_bf16(b, carried);
            Value* bits = bits_of(b, carried);
            if (b.cpu.word_permutes && width(carried) >= 16) return upper_halves(b, bits);
            return b.CreateTrunc(b.CreateLShr(bits, integer(bits, 16)), stored);
        }
        case Dtype::kF16:
            if (!b.cpu.f16_conversion) return f16_bits(b, carried);
            return b.CreateBitCast(b.CreateFPTrunc(carried, shaped(b.getHalfTy(), carried)), stored);
        default: return carried;
    }
}

Value* round_carried(Builder& b, Dtype dtype, Value* value) {
    if (dtype == Dtype::kBf16) return round_bf16(b, value);
    if (!rounds_from_f32(dtype)) return value;
    Value* stored = narrow(b, dtype, value);
    Value* rounded = widen(b, dtype, stored);
    b.stored[{rounded, dtype}] = stored;  // unlike what is loaded, whose NaN may be another than a store makes
    return rounded;
}

Value* convert(Builder& b, Dtype from, Dtype to, Value* value) {
    if (from == to) return value;
    if (from == Dtype::kI8) return convert(b, Dtype::kI32, to, value);
    if (to == Dtype::kI8 && is_fp(value)) {
        // Bounded before it becomes an integer, which then fits.
        Value* bounded = at_most(b, at_least(b, value, -128), 127);
        bounded = b.CreateSelect(is_nan(b, value), constant(value, 0), bounded);
        return b.CreateFPToSI(bounded, shaped(b.getInt32Ty(), value));
    }
    if (to == Dtype::kI8) {
        value = convert(b, from, Dtype::kI32, value);
        value = b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, value, integer(value, -128));
        return b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, value, integer(value, 127));
    }
    llvm::Type* type = shaped(carried_type(b, to), value);
    const bool to_narrow = rounds_from_f32(to);
    if (from == Dtype::kBool) return type->isFPOrFPVectorTy() ? b.CreateUIToFP(value, type) : b.CreateZExt(value, type);
    if (to == Dtype::kBool) {
        return is_fp(value) ? b.CreateFCmpUNE(value, constant(value, 0)) : b.CreateICmpNE(value, integer(value, 0));
    }
    if (is_integer(from) && is_integer(to)) {
        if (to == Dtype::kI64) return b.CreateSExt(value, type);
        value = b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, value,
                                        integer(value, std::numeric_limits<std::int32_t>::min()));
        value = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, value,
                                        integer(value, std::numeric_limits<std::int32_t>::max()));
        return b.CreateTrunc(value, type);
    }
    if (is_integer(to)) return truncated(b, value, type);
    if (is_integer(from)) {
        // Through f64, so that a narrow float is rounded once.
        if (!to_narrow) return b.CreateSIToFP(value, type);
        value = b.CreateSIToFP(value, shaped(b.getDoubleTy(), value));
        return round_carried(b, to, truncate_to_odd(b, value));
    }
    if (from == Dtype::kF64) {
        if (to_narrow) return round_carried(b, to, truncate_to_odd(b, value));
        return b.CreateFPTrunc(value, type);
    }
    if (to == Dtype::kF64) return b.CreateFPExt(value, type);
    return round_carried(b, to, value);
}

}  // namespace rowjit
