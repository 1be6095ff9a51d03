// The operations of dsl/ops.def one by one, and random numbers. Functions are llvm_functions.cpp's, roundings and casts
// llvm_formats.cpp's.
#include "compiler/emit/llvm_math.h"

#include <llvm/IR/Module.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/philox.h"
#include "compiler/emit/llvm_functions.h"
#include "compiler/emit/llvm_lanes.h"

namespace rowjit {
namespace {

using namespace cpu_functions;
using namespace cpu_lanes;

// The words of blocks of Philox4x32-10 (base/philox.h), in the lower halves of lanes of 64 bits; what is above them
// means nothing, as an instruction that multiplies 32 bits of each lane does not read it.
std::array<Value*, 4> philox_words(Builder& b, Value* seed, Value* offset, Value* block) {
    const auto low = [&](Value* v) { return b.CreateAnd(v, integer(v, 0xFFFFFFFF)); };
    const auto high = [&](Value* v) { return b.CreateLShr(v, integer(v, 32)); };
    std::array<Value*, 4> words = {block, high(block), offset, high(offset)};
    std::array<Value*, 2> key = {seed, high(seed)};
    for (int round = 0; round < Philox::kRounds; ++round) {
        Value* first = b.CreateMul(low(words[0]), integer(seed, Philox::kMultipliers[0]));
        Value* second = b.CreateMul(low(words[2]), integer(seed, Philox::kMultipliers[1]));
        words = {b.CreateXor(b.CreateXor(high(second), words[1]), key[0]), second,
                 b.CreateXor(b.CreateXor(high(first), words[3]), key[1]), first};
        for (std::size_t half = 0; half < key.size(); ++half)
            key[half] = b.CreateAdd(key[half], integer(seed, Philox::kKeySteps[half]));
    }
    return words;
}

Value* uniform_of_word(Builder& b, Value* word) {
    Value* upper = b.CreateLShr(word, integer(word, 8));
    Value* number = b.CreateSIToFP(upper, shaped(b.getFloatTy(), word));
    return b.CreateFMul(number, constant(number, 0x1p-24));
}

// Each lane its block, and a word of that.
Value* uniform_by_lane(Builder& b, Value* seed, Value* offset, Value* position) {
    const std::array<Value*, 4> words = philox_words(b, seed, offset, b.CreateLShr(position, integer(position, 2)));
    const auto bit = [&](std::int64_t mask) {
        return b.CreateICmpNE(b.CreateAnd(position, integer(position, mask)), integer(position, 0));
    };
    Value* odd = bit(1);
    Value* word =
        b.CreateSelect(bit(2), b.CreateSelect(odd, words[3], words[2]), b.CreateSelect(odd, words[1], words[0]));
    return uniform_of_word(b, b.CreateTrunc(word, shaped(b.getInt32Ty(), position)));
}

// Where four neighbours are those of a block, a lane computes them all: a quarter of the multiplications. Of the blocks
// of a register the first half has the even lanes, so that pairs of words from two registers come out in order.
Value* uniform_by_block(Builder& b, Value* seed, Value* offset, Value* first, unsigned lanes) {
    constexpr unsigned kBlocksOfRegister = 8;
    const unsigned blocks = lanes / 4;
    const unsigned group = std::min(blocks, kBlocksOfRegister);
    std::vector<std::uint64_t> block_of_lane(blocks);
    std::vector<int> pairs(std::size_t{2} * blocks);
    for (unsigned block = 0; block < blocks; ++block) {
        const unsigned half = std::max(1U, group / 2);
        const unsigned lane = block / group * group + block % half * 2 + block % group / half;
        block_of_lane[lane] = block;
        pairs[std::size_t{2} * block] = static_cast<int>(lane);
        pairs[std::size_t{2} * block + 1] = static_cast<int>(blocks + lane);
    }
    const auto all = [&](Value* v) { return b.CreateVectorSplat(blocks, v); };
    Value* block = b.CreateAdd(all(b.CreateLShr(first, integer(first, 2))),
                               llvm::ConstantDataVector::get(b.getContext(), block_of_lane));
    const std::array<Value*, 4> words = philox_words(b, all(seed), all(offset), block);
    const auto pair = [&](Value* low, Value* high) {
        return b.CreateOr(b.CreateAnd(low, integer(low, 0xFFFFFFFF)), b.CreateShl(high, integer(high, 32)));
    };
    Value* in_order = b.CreateShuffleVector(pair(words[0], words[1]), pair(words[2], words[3]), pairs);
    return uniform_of_word(b, b.CreateBitCast(in_order, llvm::FixedVectorType::get(b.getInt32Ty(), lanes)));
}

}  // namespace

Value* uniform_run(Builder& b, Value* seed, Value* offset, Value* first, int lanes) {
    llvm::Type* type = llvm::FixedVectorType::get(b.getFloatTy(), static_cast<unsigned>(lanes));
    const auto define = [&](Builder& body, llvm::Function* function) -> Value* {
        std::array<Value*, 3> arguments = {function->getArg(0), function->getArg(1), function->getArg(2)};
        llvm::BasicBlock* in_blocks = llvm::BasicBlock::Create(b.getContext(), "in_blocks", function);
        llvm::BasicBlock* across = llvm::BasicBlock::Create(b.getContext(), "across_blocks", function);
        Value* rest = body.CreateAnd(arguments[2], body.getInt64(3));
        body.CreateCondBr(body.CreateICmpEQ(rest, body.getInt64(0)), in_blocks, across);
        body.SetInsertPoint(across);
        for (Value*& argument : arguments) argument = body.CreateVectorSplat(static_cast<unsigned>(lanes), argument);
        Value* position = body.CreateAdd(arguments[2], body.CreateStepVector(arguments[2]->getType()));
        body.CreateRet(uniform_by_lane(body, arguments[0], arguments[1], position));
        body.SetInsertPoint(in_blocks);
        return uniform_by_block(body, function->getArg(0), function->getArg(1), function->getArg(2),
                                static_cast<unsigned>(lanes));
    };
    return call_shared(b, "uniform_run" + std::to_string(lanes), type, {seed, offset, first}, define);
}

Value* apply(Builder& b, Op op, Value* x, Value* y, Value* z) {
    switch (op) {
#define ROWJIT_OP(enumerator, name, arity, types, reference, gpu, packed, cpu, ...) \
    case Op::enumerator: return llvm_math::cpu(b, x, y, z);
#include "dsl/ops.def"
#undef ROWJIT_OP
    }
    RJ_CHECK(false, "operation {}", static_cast<int>(op));
}

namespace llvm_math {

// `v`, and a NaN where `condition`: the end of minima and maxima. v is what minps and maxps give, the second operand
// when either is NaN, and this adds the first one's. By bits: two selects would become one of two comparisons, which
// each step of a row's maximum waits for; not on AVX2, which joins comparisons of one register (extreme_of) and may
// count on bf16's NaNs. llvm.minimum would order signed zeros as well, at three more instructions.
Value* nan_where(Builder& b, Value* condition, Value* v) {
    if (b.cpu.avx2_alone) return b.CreateSelect(condition, constant(v, kNan), v);
    Value* bits = bits_of(b, v);
    return b.CreateBitCast(b.CreateOr(bits, b.CreateSExt(condition, bits->getType())), v->getType());
}

#define ROWJIT_UNARY(name) Value* name(Builder& b, Value* x, Value*, Value*)
#define ROWJIT_BINARY(name) Value* name(Builder& b, Value* x, Value* y, Value*)
#define ROWJIT_TERNARY(name) Value* name(Builder& b, Value* x, Value* y, Value* z)

ROWJIT_BINARY(add) { return is_fp(x) ? b.CreateFAdd(x, y) : b.CreateAdd(x, y); }
ROWJIT_BINARY(sub) { return is_fp(x) ? b.CreateFSub(x, y) : b.CreateSub(x, y); }
ROWJIT_BINARY(mul) { return is_fp(x) ? b.CreateFMul(x, y) : b.CreateMul(x, y); }
// Narrow divisors that are vectors are at least 1 (passes/precision).
ROWJIT_BINARY(div) {
    const bool by_estimate = b.narrow && (b.cpu.divides_slowly || b.rough) && looks_up(b, y);
    return by_estimate ? multiplied_by_reciprocal(b, x, y) : b.CreateFDiv(x, y);
}
ROWJIT_TERNARY(fma) {
    const auto id = b.narrow && !b.cpu.multiply_add ? llvm::Intrinsic::fmuladd : llvm::Intrinsic::fma;
    return b.CreateIntrinsic(id, {x->getType()}, {x, y, z});
}
ROWJIT_UNARY(neg) { return is_fp(x) ? b.CreateFNeg(x) : b.CreateNeg(x); }

ROWJIT_UNARY(abs) {
    if (is_fp(x)) return absolute(b, x);
    return b.CreateBinaryIntrinsic(llvm::Intrinsic::abs, x, b.getFalse());
}

// Of a number that is known and no zero, which is no NaN either, a bound does.
ROWJIT_BINARY(minimum) {
    if (!is_fp(x)) return b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, x, y);
    if (const auto known = known_number(y)) return at_most(b, x, *known);
    return nan_where(b, is_nan(b, x), b.CreateSelect(b.CreateFCmpOLT(x, y), x, y));
}

ROWJIT_BINARY(maximum) {
    if (!is_fp(x)) return b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, x, y);
    if (const auto known = known_number(y)) return at_least(b, x, *known);
    return nan_where(b, is_nan(b, x), b.CreateSelect(b.CreateFCmpOGT(x, y), x, y));
}

ROWJIT_UNARY(sqrt) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x); }
// A norm takes it once a row, and a whole row of f32 inherits its error: correctly rounded, through f64.
ROWJIT_UNARY(rsqrt) {
    Value* wide = is_f64(x) ? x : b.CreateFPExt(x, shaped(b.getDoubleTy(), x));
    Value* root = b.CreateFDiv(constant(wide, 1), b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, wide));
    return is_f64(x) ? root : b.CreateFPTrunc(root, x->getType());
}
ROWJIT_UNARY(exp) {
    if (is_f64(x)) return call_libm(b, "exp", x);
    if (b.narrow && (has_instructions(b, x) || fills_ymm(b, x))) {
        const bool rough = b.rough;
        return call_shared(b, rough ? "exp_rough" : "exp_narrow", x,
                           [&](Builder& body, Value* lanes) { return exp_narrow(body, lanes, rough); });
    }
    return call_shared(b, "exp", x, [&](Builder& body, Value* lanes) { return exp_f32(body, lanes, b.full_width); });
}
ROWJIT_UNARY(log) {
    if (is_f64(x)) return call_libm(b, "log", x);
    if (b.narrow && looks_up(b, x)) return call_shared(b, "log_narrow", x, log_narrow);
    return call_shared(b, "log", x, log_f32);
}
ROWJIT_UNARY(log1p) { return is_f64(x) ? call_libm(b, "log1p", x) : call_shared(b, "log1p", x, log1p_f32); }
ROWJIT_UNARY(tanh) {
    if (is_f64(x)) return call_libm(b, "tanh", x);
    if (!b.full_width && (has_instructions(b, x) || fills_ymm(b, x)))
        return call_shared(b, "tanh_narrow", x, tanh_narrow);
    return call_shared(b, "tanh", x, [&](Builder& body, Value* lanes) { return tanh_f32(body, lanes, b.full_width); });
}
ROWJIT_UNARY(erf) { return is_f64(x) ? call_libm(b, "erf", x) : call_shared(b, "erf", x, erf_f32); }

ROWJIT_UNARY(sin) {
    if (is_f64(x)) return call_libm(b, "sin", x);
    return call_shared(b, "sin", x->getType(), {x},
                       [](Builder& body, llvm::Function* f) { return sin_or_cos_f32(body, f, "sin", 0); });
}

ROWJIT_UNARY(cos) {
    if (is_f64(x)) return call_libm(b, "cos", x);
    return call_shared(b, "cos", x->getType(), {x},
                       [](Builder& body, llvm::Function* f) { return sin_or_cos_f32(body, f, "cos", 1); });
}

ROWJIT_UNARY(floor) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::floor, x); }
ROWJIT_UNARY(round) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, x); }
ROWJIT_BINARY(floor_div) {
    llvm::Constant* zero = llvm::Constant::getNullValue(x->getType());
    Value* positive = b.CreateICmpSGT(y, zero);
    Value* divisor = b.CreateSelect(positive, y, llvm::ConstantInt::get(x->getType(), 1));
    Value* quotient = b.CreateSDiv(x, divisor);
    Value* above = b.CreateICmpSGT(b.CreateMul(quotient, divisor), x);
    return b.CreateSelect(positive, b.CreateSub(quotient, b.CreateZExt(above, x->getType())), zero);
}
ROWJIT_BINARY(lt) { return is_fp(x) ? b.CreateFCmpOLT(x, y) : b.CreateICmpSLT(x, y); }
ROWJIT_BINARY(le) { return is_fp(x) ? b.CreateFCmpOLE(x, y) : b.CreateICmpSLE(x, y); }
ROWJIT_BINARY(gt) { return is_fp(x) ? b.CreateFCmpOGT(x, y) : b.CreateICmpSGT(x, y); }
ROWJIT_BINARY(ge) { return is_fp(x) ? b.CreateFCmpOGE(x, y) : b.CreateICmpSGE(x, y); }
ROWJIT_BINARY(eq) { return is_fp(x) ? b.CreateFCmpOEQ(x, y) : b.CreateICmpEQ(x, y); }
ROWJIT_BINARY(ne) { return is_fp(x) ? b.CreateFCmpUNE(x, y) : b.CreateICmpNE(x, y); }
ROWJIT_BINARY(logical_and) { return b.CreateAnd(x, y); }
ROWJIT_BINARY(logical_or) { return b.CreateOr(x, y); }
// Gone before a kernel is made; the identity.
Value* detach(Builder& /*b*/, Value* x, Value* /*y*/, Value* /*z*/) { return x; }
ROWJIT_UNARY(logical_not) { return b.CreateNot(x); }
// A condition of columns that are known here, as of one half of a head, leaves what it chooses a constant or alone.
ROWJIT_TERNARY(select) {
    const auto* known = llvm::dyn_cast<llvm::Constant>(x);
    if (known != nullptr && known->isAllOnesValue()) return y;
    if (known != nullptr && known->isNullValue()) return z;
    return b.CreateSelect(x, y, z);
}
ROWJIT_TERNARY(uniform) {
    return call_shared(b, "uniform", shaped(b.getFloatTy(), x), {x, y, z}, [](Builder& body, llvm::Function* f) {
        return uniform_by_lane(body, f->getArg(0), f->getArg(1), f->getArg(2));
    });
}

#undef ROWJIT_UNARY
#undef ROWJIT_BINARY
#undef ROWJIT_TERNARY

}  // namespace llvm_math

}  // namespace rowjit
