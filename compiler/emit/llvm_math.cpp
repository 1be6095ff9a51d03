// Coefficients come from llvm_math_fit.py. Multiplications followed by additions go through llvm.fmuladd, which the
// target fuses when it can: the polynomials keep their bound either way, and nothing else in a kernel is ever fused.
#include "compiler/emit/llvm_math.h"

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/philox.h"

namespace rowjit {
namespace {

using Builder = LaneBuilder;
using llvm::Value;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A number for each value of four bits, which a permutation looks up.
using Table16 = std::array<double, 16>;

// e^r = 1 + r + r² q(r) for |r| ≤ ln 2 / 2, to 28 bits.
constexpr std::array<double, 5> kExp = {0x1.fffffcp-2, 0x1.555492p-3, 0x1.5558b6p-5, 0x1.1239ap-7, 0x1.6a472p-10};
// The same for |r| ≤ ln 2 / 32, to 29 bits.
constexpr std::array<double, 2> kExpSixteenth = {0x1.00022p-1, 0x1.55561cp-3};
// 2^f = 1 + f q(f) for |f| ≤ 1/32, to 29 bits.
constexpr std::array<double, 3> kExp2Sixteenth = {0x1.62e43p-1, 0x1.ebfff6p-3, 0x1.c6aceep-5};
// 2^f = 1 + f q(f) for 0 ≤ f < 1, to 23 bits.
constexpr std::array<double, 5> kExp2 = {0x1.62e4bap-1, 0x1.ebdb6ap-3, 0x1.c91c0ep-5, 0x1.277c3p-7, 0x1.e968bp-10};
// The same to 28 bits.
constexpr std::array<double, 6> kExp2Long = {0x1.62e42cp-1, 0x1.ebfd3ap-3,  0x1.c68af6p-5,
                                             0x1.3cfd82p-7, 0x1.47373ap-10, 0x1.c4456ep-13};
// log((1 + s) / (1 − s)) = 2s + s z q(z), z = s², to 35 bits.
constexpr std::array<double, 4> kLog = {0x1.555554p-1, 0x1.999c26p-2, 0x1.23d3c8p-2, 0x1.f142fap-3};
// log m = −log rᵢ + log(1 + f), f = m rᵢ − 1, m in [¾, 1½) and i the four bits below its first. Row 0 has the rᵢ,
// chosen so that −log rᵢ, in row 1, is an f32 to 37 bits; beside 1 both are exact.
constexpr std::array<Table16, 2> kLogTables = {{
    {1, 0x1.d40f4ep-1, 0x1.badefep-1, 0x1.a42dbp-1, 0x1.8f9708p-1, 0x1.7cf1b6p-1, 0x1.6c138p-1, 0x1.5caeb8p-1,
     0x1.4e5f7ep+0, 0x1.41525ap+0, 0x1.352496p+0, 0x1.29e368p+0, 0x1.1f81eep+0, 0x1.159aaep+0, 0x1.0cadccp+0, 1},
    {0, 0x1.6f874p-4, 0x1.290ddap-3, 0x1.94c6f2p-3, 0x1.fbab7ep-3, 0x1.2ec494p-2, 0x1.5d2504p-2, 0x1.8961fep-2,
     -0x1.117d5ap-2, -0x1.d1707ap-3, -0x1.824e78p-3, -0x1.365b36p-3, -0x1.db6deep-4, -0x1.4bda8ep-4, -0x1.8bff52p-5, 0},
}};
// log(1 + f) = f + f² q(f) for −1/32 ≤ f ≤ 1/16, to 28 bits.
constexpr std::array<double, 3> kLogNearOne = {-0x1.0001bcp-1, 0x1.556ceap-2, -0x1.e423dep-3};
// tanh x = x + x³ q(x²) up to the split, to 27 bits.
constexpr double kTanhSplit = 0.625;
constexpr std::array<double, 5> kTanh = {-0x1.555532p-2, 0x1.1107p-3, -0x1.b837e2p-5, 0x1.520c42p-6, -0x1.7575b2p-8};
// The same to 21 bits.
constexpr double kTanhNarrowSplit = 0.25;
constexpr std::array<double, 2> kTanhNarrow = {-0x1.553e5ep-2, 0x1.07b5a2p-3};
// erf x = x + x q(x²) up to the split, to 25 bits; 1 − e^(−t − t q(t)) beyond, to 30.
constexpr double kErfSplit = 0.9375;
constexpr std::array<double, 6> kErfSmall = {0x1.06eba6p-3,  -0x1.8126dcp-2, 0x1.ce185ep-4,
                                             -0x1.b66a52p-6, 0x1.466fccp-8,  -0x1.36c076p-11};
constexpr std::array<double, 7> kErfLarge = {0x1.077e2p-3,  0x1.452d3cp-1,   0x1.b36b7ap-4, -0x1.864186p-6,
                                             0x1.e0f558p-9, -0x1.5968eap-12, 0x1.8eeb3p-17};
// erf x = erf xᵢ + t q(t), t = x − xᵢ, i = round(kErfPerOne · x), to 25 bits and more; of i = 0, where xᵢ is 0, it is
// t + t q(t). Row 0 has the xᵢ, chosen so that erf xᵢ, in row 1, is an f32 to 37 bits and more where it is not close to
// 1; the other rows q's coefficients.
constexpr double kErfPerOne = 3.9;
constexpr double kErfEnd = 3.97;
constexpr std::array<Table16, 7> kErfTables = {{
    {0, 0x1.06a038p-2, 0x1.06a172p-1, 0x1.89d8aep-1, 0x1.06a4cep+0, 0x1.4834e6p+0, 0x1.89d03cp+0, 0x1.cb869p+0,
     0x1.06a1f4p+1, 0x1.274fap+1, 0x1.48254cp+1, 0x1.69023p+1, 0x1.89d6d2p+1, 0x1.aa933ap+1, 0x1.cb9428p+1,
     0x1.ec3754p+1},
    {0, 0x1.21f864p-2, 0x1.1048f2p-1, 0x1.7259dep-1, 0x1.b4d63p-1, 0x1.dc4114p-1, 0x1.f0d98cp-1, 0x1.fa4cfap-1,
     0x1.fe198cp-1, 0x1.ff6f62p-1, 0x1.ffda34p-1, 0x1.fff74ap-1, 0x1.fffe3ap-1, 0x1.ffffaep-1, 0x1.fffff4p-1,
     0x1.fffffep-1},
    {0x1.06eba8p-3, 0x1.0e79cep+0, 0x1.bc12aap-1, 0x1.3fb3c8p-1, 0x1.934c54p-2, 0x1.bea14cp-3, 0x1.b194a8p-4,
     0x1.708e3ap-5, 0x1.127b8ep-6, 0x1.68cedcp-8, 0x1.9db87ap-10, 0x1.9f60ap-12, 0x1.6e195cp-14, 0x1.1c48eap-16,
     0x1.7d995p-19, 0x1.ca6f02p-22},
    {0, -0x1.1578b2p-2, -0x1.c791aap-2, -0x1.ebd8dcp-2, -0x1.9dc3fp-2, -0x1.1e4e22p-2, -0x1.4d800cp-3, -0x1.4ac93ep-4,
     -0x1.1997f6p-5, -0x1.a0338ep-7, -0x1.09234ap-8, -0x1.24d6b2p-10, -0x1.198a9ep-12, -0x1.d985fp-15, -0x1.565512p-17,
     -0x1.b85c82p-20},
    {-0x1.812664p-2, -0x1.393778p-2, -0x1.188d6ep-3, 0x1.38b47p-5, 0x1.2920bcp-3, 0x1.5487e8p-3, 0x1.0dc27cp-3,
     0x1.4e6bf2p-4, 0x1.5371dcp-5, 0x1.2204ccp-6, 0x1.a2b06cp-8, 0x1.0203ep-9, 0x1.1185fcp-11, 0x1.f661d8p-14,
     0x1.89da92p-16, 0x1.10b698p-18},
    {0, 0x1.07645ap-3, 0x1.755c4cp-3, 0x1.28b186p-3, 0x1.eef882p-5, -0x1.a66e0cp-7, -0x1.7deb6ep-5, -0x1.7a6cd8p-5,
     -0x1.fcf72ep-6, -0x1.0a584cp-6, -0x1.c422cap-8, -0x1.3f2476p-9, -0x1.7c8fb8p-11, -0x1.83fd02p-13, -0x1.4e8774p-15,
     -0x1.f904eep-18},
    {0x1.cb9e22p-4, 0x1.456448p-4, 0x1.259354p-8, -0x1.c66362p-5, -0x1.15a7aep-4, -0x1.5ffaaep-5, -0x1.610e3cp-7,
     0x1.1a5a6cp-7, 0x1.a911eep-7, 0x1.3b1e2ep-7, 0x1.4f76b2p-8, 0x1.18738cp-9, 0x1.7f5284p-11, 0x1.b65f9ep-13,
     0x1.a206f2p-15, 0x1.58b9bap-17},
}};
// sin r = r + r z q(z), to 32 bits; cos r = 1 − z/2 + z² q(z), to 33; z = r², |r| ≤ π/4.
constexpr std::array<double, 4> kSin = {-0x1.555556p-3, 0x1.111174p-7, -0x1.a05968p-13, 0x1.7c367ap-19};
constexpr std::array<double, 3> kCos = {0x1.55554ap-5, -0x1.6c0c28p-10, 0x1.99e816p-16};

// ln 2 and π/2 split so that the product of the high part with any exponent or quotient in range is exact.
constexpr double kLn2High = 0x1.62e4p-1;
constexpr double kLn2Low = 0x1.7f7d1cp-20;
constexpr double kHalfPiHigh = 0x1.921fb544p+0;
constexpr double kHalfPiLow = 0x1.0b4611a626331p-34;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

// Adding 1.5 · 2^(mantissa bits) leaves the nearest integer in the low mantissa bits.
constexpr double kRoundF32 = 0x1.8p23;
constexpr double kRoundF64 = 0x1.8p52;

unsigned width(const Value* v) {
    const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
    return type != nullptr ? type->getNumElements() : 1;
}

bool is_vector(const Value* v) { return v->getType()->isVectorTy(); }
bool is_fp(const Value* v) { return v->getType()->isFPOrFPVectorTy(); }
bool is_f64(const Value* v) { return v->getType()->getScalarType()->isDoubleTy(); }

// `element` with as many lanes as `like`.
llvm::Type* shaped(llvm::Type* element, const Value* like) {
    return is_vector(like) ? llvm::FixedVectorType::get(element, width(like)) : element;
}

Value* constant(const Value* like, double value) { return llvm::ConstantFP::get(like->getType(), value); }
Value* integer(const Value* like, std::int64_t value) {
    return llvm::ConstantInt::get(like->getType(), static_cast<std::uint64_t>(value), true);
}

Value* bits_of(Builder& b, Value* v) {
    return b.CreateBitCast(v, shaped(b.getIntNTy(v->getType()->getScalarSizeInBits()), v));
}
Value* float_of(Builder& b, Value* bits) { return b.CreateBitCast(bits, shaped(b.getFloatTy(), bits)); }

Value* absolute(Builder& b, Value* v) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v); }
Value* with_sign(Builder& b, Value* magnitude, Value* sign) {
    return b.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, magnitude, sign);
}
Value* is_nan(Builder& b, Value* v) { return b.CreateFCmpUNO(v, v); }

// Bounds that let NaN through: an ordered comparison with it is false.
Value* at_least(Builder& b, Value* v, double low) {
    Value* bound = constant(v, low);
    return b.CreateSelect(b.CreateFCmpOGT(bound, v), bound, v);
}
Value* at_most(Builder& b, Value* v, double high) {
    Value* bound = constant(v, high);
    return b.CreateSelect(b.CreateFCmpOLT(bound, v), bound, v);
}

// The constant as a value that the optimiser knows nothing of, read where the function begins.
Value* opaque(Builder& b, llvm::Constant* constant) {
    llvm::BasicBlock& entry = b.GetInsertBlock()->getParent()->getEntryBlock();
    Value*& known = b.opaque[{&entry, constant}];
    if (known == nullptr) {
        auto* place = new llvm::GlobalVariable(*b.GetInsertBlock()->getModule(), constant->getType(), true,
                                               llvm::GlobalValue::PrivateLinkage, constant);
        known = llvm::IRBuilder<>(&entry, entry.begin()).CreateLoad(constant->getType(), place, true);
    }
    return known;
}

// What all lanes are, where that is a constant other than zero and NaN.
std::optional<double> known_number(const Value* v) {
    const auto* constant = llvm::dyn_cast<llvm::Constant>(v);
    if (constant != nullptr && v->getType()->isVectorTy()) constant = constant->getSplatValue();
    const auto* number = llvm::dyn_cast_or_null<llvm::ConstantFP>(constant);
    if (number == nullptr || number->isZero() || number->isNaN()) return std::nullopt;
    return number->getType()->isDoubleTy() ? number->getValueAPF().convertToDouble()
                                           : static_cast<double>(number->getValueAPF().convertToFloat());
}

// a·b + c, fused when the target has the instruction.
Value* multiply_add(Builder& b, Value* a, Value* m, Value* c) {
    return b.CreateIntrinsic(llvm::Intrinsic::fmuladd, {a->getType()}, {a, m, c});
}

Value* horner(Builder& b, Value* x, std::span<const double> coefficients) {
    Value* sum = constant(x, coefficients.back());
    for (std::size_t i = coefficients.size() - 1; i-- > 0;) {
        sum = multiply_add(b, sum, x, constant(x, coefficients[i]));
    }
    return sum;
}

// The function rj.NAME.TYPE of the builder's module, made by `define` when it is first asked for, called on
// `arguments`; its name is by the type of the first of them. A call keeps the printed module short, and gives functions
// with branches their own blocks; the optimiser inlines it.
Value* call_shared(Builder& b, const std::string& name, llvm::Type* type, llvm::ArrayRef<Value*> arguments,
                   const std::function<Value*(Builder&, llvm::Function*)>& define) {
    llvm::Module& module = *b.GetInsertBlock()->getModule();
    const std::string element = is_f64(arguments[0]) ? ".f64x" : is_fp(arguments[0]) ? ".f32x" : ".i64x";
    const std::string symbol = "rj." + name + element + std::to_string(width(arguments[0]));
    llvm::Function* function = module.getFunction(symbol);
    if (function == nullptr) {
        std::vector<llvm::Type*> parameters;
        for (Value* argument : arguments) parameters.push_back(argument->getType());
        function = llvm::Function::Create(llvm::FunctionType::get(type, parameters, false),
                                          llvm::Function::InternalLinkage, symbol, module);
        function->addFnAttr(llvm::Attribute::AlwaysInline);
        function->addFnAttr(llvm::Attribute::NoUnwind);
        function->addFnAttr(llvm::Attribute::WillReturn);
        function->setMemoryEffects(llvm::MemoryEffects::none());  // so that of two calls alike one is left
        Builder body(llvm::BasicBlock::Create(b.getContext(), "entry", function), b.cpu);
        Value* result = define(body, function);
        body.CreateRet(result);
    }
    return b.CreateCall(function, arguments);
}

using Lanewise = const std::function<Value*(Builder&, Value*)>&;
Value* call_shared(Builder& b, const std::string& name, Value* x, Lanewise define) {
    return call_shared(b, name, x->getType(), {x},
                       [&](Builder& body, llvm::Function* f) { return define(body, f->getArg(0)); });
}

// libm's double function on every lane.
Value* call_libm(Builder& b, const std::string& name, Value* x) {
    llvm::Module& module = *b.GetInsertBlock()->getModule();
    llvm::FunctionCallee callee = module.getOrInsertFunction(name, b.getDoubleTy(), b.getDoubleTy());
    auto* function = llvm::cast<llvm::Function>(callee.getCallee());
    function->addFnAttr(llvm::Attribute::NoUnwind);
    function->setMemoryEffects(llvm::MemoryEffects::none());
    if (!is_vector(x)) return b.CreateCall(callee, {x});
    Value* result = llvm::PoisonValue::get(x->getType());
    for (unsigned lane = 0; lane < width(x); ++lane) {
        result = b.CreateInsertElement(result, b.CreateCall(callee, {b.CreateExtractElement(x, lane)}), lane);
    }
    return result;
}

// x = k ln 2 + r with |r| ≤ ln 2 / 2 (and a little), for |x| ≤ 150 ln 2; `lost` is what rounding r took from it.
struct Reduced {
    Value* k_integer;
    Value* k;
    Value* r;
    Value* lost;
};

Reduced reduce_by_ln2(Builder& b, Value* x) {
    Value* magic = constant(x, kRoundF32);
    Value* shifted = multiply_add(b, x, constant(x, 1 / M_LN2), magic);
    Value* k = b.CreateFSub(shifted, magic);
    Value* k_integer = b.CreateSub(bits_of(b, shifted), bits_of(b, magic));
    Value* high = multiply_add(b, k, constant(x, -kLn2High), x);
    Value* r = multiply_add(b, k, constant(x, -kLn2Low), high);
    return {k_integer, k, r, multiply_add(b, k, constant(x, -kLn2Low), b.CreateFSub(high, r))};
}

// 2^k as f32, −126 ≤ k ≤ 127.
Value* power_of_two(Builder& b, Value* k) {
    return float_of(b, b.CreateShl(b.CreateAdd(k, integer(k, 127)), integer(k, 23)));
}

// e^r of a reduced argument, within a unit; at full width within ⅔ of one, since what is lost on the way to 1 + r is
// added at the end. Where exponentials are summed and subtracted, as in a divergence of distributions, a kernel is then
// as far from the exact result as eager arithmetic is.
Value* exp_reduced(Builder& b, const Reduced& reduced, bool full_width) {
    Value* r = reduced.r;
    Value* square = b.CreateFMul(r, r);
    Value* one = constant(r, 1);
    if (!full_width) return b.CreateFAdd(multiply_add(b, square, horner(b, r, kExp), r), one);
    Value* above = b.CreateFAdd(r, one);
    Value* rest = b.CreateFAdd(b.CreateFAdd(b.CreateFSub(one, above), r), reduced.lost);
    return b.CreateFAdd(above, multiply_add(b, square, horner(b, r, kExp), rest));
}

constexpr unsigned kZmmLanes = 16;  // of f32

// Lanes [from, from + count).
Value* lanes_of(Builder& b, Value* v, unsigned from, unsigned count) {
    std::vector<int> mask(count);
    std::iota(mask.begin(), mask.end(), static_cast<int>(from));
    return b.CreateShuffleVector(v, mask);
}

// The lanes of two vectors of one width, one after the other.
Value* joined(Builder& b, Value* low, Value* high) {
    std::vector<int> mask(std::size_t{2} * width(low));
    std::iota(mask.begin(), mask.end(), 0);
    return b.CreateShuffleVector(low, high, mask);
}

// An instruction of AVX-512 as LLVM has it: one intrinsic a register width, with a mask for its lanes, and how to round
// for 512 bits.
struct Masked {
    llvm::Intrinsic::ID of_512;
    llvm::Intrinsic::ID of_256;
    llvm::Intrinsic::ID of_128;
};

constexpr Masked kScale = {llvm::Intrinsic::x86_avx512_mask_scalef_ps_512,
                           llvm::Intrinsic::x86_avx512_mask_scalef_ps_256,
                           llvm::Intrinsic::x86_avx512_mask_scalef_ps_128};
constexpr Masked kExponent = {llvm::Intrinsic::x86_avx512_mask_getexp_ps_512,
                              llvm::Intrinsic::x86_avx512_mask_getexp_ps_256,
                              llvm::Intrinsic::x86_avx512_mask_getexp_ps_128};
constexpr Masked kMantissa = {llvm::Intrinsic::x86_avx512_mask_getmant_ps_512,
                              llvm::Intrinsic::x86_avx512_mask_getmant_ps_256,
                              llvm::Intrinsic::x86_avx512_mask_getmant_ps_128};
constexpr Masked kReduce = {llvm::Intrinsic::x86_avx512_mask_reduce_ps_512,
                            llvm::Intrinsic::x86_avx512_mask_reduce_ps_256,
                            llvm::Intrinsic::x86_avx512_mask_reduce_ps_128};

// On all lanes, 16, 8 or 4 at a time: `x`, and `second`, a vector as wide, a number or none.
Value* by_instruction(Builder& b, const Masked& instruction, Value* x, Value* second = nullptr) {
    constexpr std::uint64_t kCurrentRounding = 4;
    const unsigned lanes = width(x);
    if (lanes > kZmmLanes) {
        const auto half = [&](unsigned from) {
            const bool has_lanes = second != nullptr && is_vector(second);
            Value* part = has_lanes ? lanes_of(b, second, from, lanes / 2) : second;
            return by_instruction(b, instruction, lanes_of(b, x, from, lanes / 2), part);
        };
        return joined(b, half(0), half(lanes / 2));
    }
    const auto id = lanes == 16 ? instruction.of_512 : lanes == 8 ? instruction.of_256 : instruction.of_128;
    Value* all = lanes == 16 ? b.getInt16(0xFFFF) : static_cast<Value*>(b.getInt8(0xFF));
    std::vector<Value*> arguments = {x};
    if (second != nullptr) arguments.push_back(second);
    arguments.push_back(llvm::PoisonValue::get(x->getType()));
    arguments.push_back(all);
    if (lanes == 16) arguments.push_back(b.getInt32(kCurrentRounding));
    return b.CreateIntrinsic(id, {}, arguments);
}

// Whether it has lanes for them.
bool has_instructions(const Builder& b, const Value* x) { return b.cpu.scalef && width(x) >= 4; }

// x · 2^⌊k⌋.
Value* scale_by_instruction(Builder& b, Value* x, Value* k) { return by_instruction(b, kScale, x, k); }

// x · 2^k, rounded once, for k of either sign up to 150.
Value* scale(Builder& b, Value* x, const Reduced& reduced) {
    if (has_instructions(b, x)) return scale_by_instruction(b, x, reduced.k);
    // In two factors: each is a normal number, so only the last product rounds, into a denormal or to infinity.
    Value* half = b.CreateAShr(reduced.k_integer, integer(reduced.k_integer, 1));
    Value* rest = b.CreateSub(reduced.k_integer, half);
    return b.CreateFMul(b.CreateFMul(x, power_of_two(b, half)), power_of_two(b, rest));
}

// Whether x fills registers of AVX-512, whose permutations look up 16 numbers.
bool looks_up(const Builder& b, const Value* x) { return b.cpu.scalef && width(x) % kZmmLanes == 0; }

// Of each lane the entry that its lowest four bits choose.
Value* look_up(Builder& b, const Table16& table, Value* indices) {
    const unsigned lanes = width(indices);
    if (lanes > kZmmLanes) {
        return joined(b, look_up(b, table, lanes_of(b, indices, 0, lanes / 2)),
                      look_up(b, table, lanes_of(b, indices, lanes / 2, lanes / 2)));
    }
    const std::vector<float> entries(table.begin(), table.end());
    llvm::Constant* all = llvm::ConstantDataVector::get(b.getContext(), entries);
    return b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_permvar_sf_512, {}, {all, indices});
}

// 1 / y of y ≥ 1, infinity or NaN, within a unit and a half: where that is quicker than to divide, by an estimate of 14
// bits and a step of Newton's. Of infinity the estimate is 0 and what is left no number, for which the bound is taken.
// Intel's servers divide 16 lanes in 10.5 cycles, and do this in 3; Zen 4 divides in 6, and a silu was a quarter
// slower.
Value* reciprocal(Builder& b, Value* y) {
    if (!b.cpu.divides_slowly || !looks_up(b, y)) return b.CreateFDiv(constant(y, 1), y);
    if (width(y) > kZmmLanes) {
        const unsigned half = width(y) / 2;
        return joined(b, reciprocal(b, lanes_of(b, y, 0, half)), reciprocal(b, lanes_of(b, y, half, half)));
    }
    Value* estimate = b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_rcp14_ps_512, {},
                                        {y, llvm::PoisonValue::get(y->getType()), b.getInt16(0xFFFF)});
    Value* one = constant(y, 1);
    Value* rest = multiply_add(b, b.CreateFNeg(estimate), y, one);
    return multiply_add(b, b.CreateSelect(b.CreateFCmpOLT(rest, one), rest, one), estimate, estimate);
}

// 2^(i/16) as f32, and what it lacks relative to that: without, two roundings would be in the result instead of one,
// and a sigmoid's product with a norm would err by three units.
struct PowersBySixteenths {
    Table16 power;
    Table16 lost;
};

PowersBySixteenths powers_by_sixteenths() {
    PowersBySixteenths powers;
    for (std::size_t i = 0; i < powers.power.size(); ++i) {
        const double exact = std::exp2(static_cast<double>(i) / 16);
        powers.power[i] = static_cast<float>(exact);
        powers.lost[i] = (exact - powers.power[i]) / powers.power[i];
    }
    return powers;
}

// x = k ln 2 + r, k in sixteenths: e^x = 2^floor(k) · 2^(k − floor(k)) · e^r, the second from a table. Two
// multiplications fewer than a polynomial of |r| ≤ ln 2 / 2, which are what Zen 4 does one at a time.
Value* exp_by_table(Builder& b, Value* x, bool full_width) {
    Value* magic = constant(x, kRoundF32 / 16);
    Value* shifted = multiply_add(b, x, constant(x, 1 / M_LN2), magic);
    Value* k = b.CreateFSub(shifted, magic);
    const PowersBySixteenths powers = powers_by_sixteenths();
    Value* sixteenth = bits_of(b, shifted);
    if (!full_width) {
        Value* fraction = multiply_add(b, x, constant(x, 1 / M_LN2), b.CreateFNeg(k));
        Value* power = look_up(b, powers.power, sixteenth);
        Value* scaled = b.CreateFMul(power, fraction);
        return scale_by_instruction(b, multiply_add(b, scaled, horner(b, fraction, kExp2Sixteenth), power), k);
    }
    Value* r = multiply_add(b, k, constant(x, -kLn2High), x);
    r = multiply_add(b, k, constant(x, -kLn2Low), r);
    Value* above_one = b.CreateFAdd(r, look_up(b, powers.lost, sixteenth));
    above_one = multiply_add(b, b.CreateFMul(r, r), horner(b, r, kExpSixteenth), above_one);
    Value* power = look_up(b, powers.power, sixteenth);
    return scale_by_instruction(b, multiply_add(b, power, above_one, power), k);
}

constexpr double kLeastWeight = -86;  // as an exponent of e: 2^-124

// e^x of x ≤ 0, within ⅔ of a unit, and of what is below kLeastWeight the least weight. The entries of the table are
// scaled as they are looked up, by adding the exponent to their bits, so that of Zen 4's four pipes the two that add
// have no more to do than the two that multiply: 13 instructions for 16 lanes, where the one above takes 16, one of
// which is two. logsumexp of 4096 bf16 columns in cache 8.5 GB/s, then 9.3.
Value* weight_by_table(Builder& b, Value* x) {
    constexpr double kLog2E = 0x1.715476p+0;
    constexpr double kLog2ERest = 0x1.4ae0cp-26;
    constexpr int kBitsOfSixteenth = 4;
    x = at_least(b, x, kLeastWeight);
    Value* magic = constant(x, kRoundF32 / 16);
    Value* shifted = multiply_add(b, x, constant(x, kLog2E), magic);
    Value* k = b.CreateFSub(shifted, magic);
    Value* fraction = multiply_add(b, x, constant(x, kLog2E), b.CreateFNeg(k));
    fraction = multiply_add(b, x, constant(x, kLog2ERest), fraction);
    // Without what shifting the sixteenths with the exponent adds to them.
    Table16 powers = powers_by_sixteenths().power;
    for (std::size_t i = 0; i < powers.size(); ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(powers[i]));
        powers[i] = std::bit_cast<float>(bits - static_cast<std::uint32_t>(i << (23 - kBitsOfSixteenth)));
    }
    Value* sixteenth = bits_of(b, shifted);
    Value* exponent = b.CreateShl(sixteenth, integer(sixteenth, 23 - kBitsOfSixteenth));
    Value* power = float_of(b, b.CreateAdd(bits_of(b, look_up(b, powers, sixteenth)), exponent));
    return multiply_add(b, b.CreateFMul(power, fraction), horner(b, fraction, kExp2Sixteenth), power);
}

// e^x = 2^⌊t⌋ · 2^(t − ⌊t⌋), t = x log2 e rounded, which is off by |x| 2^-24 at most: 2^-23 of it near 1, 2^-17 where
// the result is hardly a normal number. Both instructions take any t as it should be taken, infinities too, so nothing
// is bounded first: 6 cycles of the multipliers on Zen 4, 5 of the adders, where the exact one takes 7 and 7.
Value* exp2_by_instruction(Builder& b, Value* t, std::span<const double> coefficients) {
    constexpr std::uint32_t kRoundDown = 1;
    Value* fraction = by_instruction(b, kReduce, t, b.getInt32(kRoundDown));
    Value* power = multiply_add(b, horner(b, fraction, coefficients), fraction, constant(t, 1));
    return scale_by_instruction(b, power, t);
}

Value* exp_by_instruction(Builder& b, Value* x, std::span<const double> coefficients) {
    return exp2_by_instruction(b, b.CreateFMul(x, constant(x, 1 / M_LN2)), coefficients);
}

Value* exp_narrow(Builder& b, Value* x) { return exp_by_instruction(b, x, kExp2); }

Value* exp_f32(Builder& b, Value* x, bool full_width) {
    // Beyond these bounds the result is 0 or infinity, and the exponent arithmetic would wrap.
    x = at_most(b, at_least(b, x, -104), 89);
    if (looks_up(b, x)) return exp_by_table(b, x, full_width);
    const Reduced reduced = reduce_by_ln2(b, x);
    return scale(b, exp_reduced(b, reduced, full_width), reduced);
}

// x = 2^k (1 + f) with 1 + f in [√½, √2); x positive and normal.
struct Mantissa {
    Value* k;
    Value* f;
};

Mantissa split_mantissa(Builder& b, Value* x) {
    constexpr std::int64_t kOne = 0x3F800000;
    constexpr std::int64_t kRootHalf = 0x3F3504F3;
    Value* bits = bits_of(b, x);
    Value* above = b.CreateAdd(bits, integer(bits, kOne - kRootHalf));
    Value* exponent = b.CreateSub(b.CreateLShr(above, integer(above, 23)), integer(above, 127));
    Value* fraction = b.CreateAdd(b.CreateAnd(above, integer(above, 0x7FFFFF)), integer(above, kRootHalf));
    return {b.CreateSIToFP(exponent, x->getType()), b.CreateFSub(float_of(b, fraction), constant(x, 1))};
}

// log(2^k (1 + f)) + correction: with s = f/(2+f), log(1+f) = f − f²/2 + s (f²/2 + z q(z)). k·ln2High is exact, and
// what adding f to it loses is added with the rest: the logarithm of a row's sum is rounded once, as eager's is.
Value* log_parts(Builder& b, const Mantissa& m, Value* correction) {
    Value* s = b.CreateFDiv(m.f, b.CreateFAdd(m.f, constant(m.f, 2)));
    Value* z = b.CreateFMul(s, s);
    Value* half_square = b.CreateFMul(b.CreateFMul(m.f, m.f), constant(m.f, 0.5));
    Value* tail = multiply_add(b, z, horner(b, z, kLog), half_square);
    Value* low = multiply_add(b, m.k, constant(m.f, kLn2Low), correction);
    Value* sum = b.CreateFSub(multiply_add(b, s, tail, low), half_square);
    Value* whole = b.CreateFMul(m.k, constant(m.f, kLn2High));
    Value* high = b.CreateFAdd(whole, m.f);
    Value* lost = b.CreateFSub(m.f, b.CreateFSub(high, whole));
    return b.CreateFAdd(high, b.CreateFAdd(sum, lost));
}

// `result` where x is an ordinary argument; at zero −∞, below it NaN, and +∞ and NaN as they are.
Value* log_specials(Builder& b, Value* result, Value* x) {
    result = b.CreateSelect(b.CreateFCmpOEQ(x, constant(x, 0)), constant(x, -kInfinity), result);
    result = b.CreateSelect(b.CreateFCmpOLT(x, constant(x, 0)), constant(x, kNan), result);
    return b.CreateSelect(b.CreateFCmpUEQ(x, constant(x, kInfinity)), x, result);
}

// Of sums of weights, absolutely to 2^-25 and 2^-24 of the result: the instructions that take a number apart know
// denormals, zero, infinity and NaN, and what is made of those is right without a question. 7 cycles for 16 lanes on
// Zen 4, where log_f32 takes 25.
Value* log_narrow(Builder& b, Value* x) {
    constexpr std::uint32_t kFromThreeQuarters = 3;
    constexpr std::uint32_t kNanBelowZero = 2 << 2;
    Value* m = by_instruction(b, kMantissa, x, b.getInt32(kFromThreeQuarters | kNanBelowZero));
    Value* k = b.CreateFSub(by_instruction(b, kExponent, x), by_instruction(b, kExponent, m));
    Value* index = b.CreateLShr(bits_of(b, m), integer(bits_of(b, m), 19));
    Value* f = multiply_add(b, m, look_up(b, kLogTables[0], index), constant(x, -1));
    Value* above = multiply_add(b, b.CreateFMul(f, f), horner(b, f, kLogNearOne), f);
    Value* low = multiply_add(b, k, constant(x, kLn2Low), look_up(b, kLogTables[1], index));
    return multiply_add(b, k, constant(x, kLn2High), b.CreateFAdd(above, low));
}

Value* log_f32(Builder& b, Value* x) {
    Value* denormal = b.CreateFCmpOLT(x, constant(x, 0x1p-126));
    Mantissa m = split_mantissa(b, b.CreateSelect(denormal, b.CreateFMul(x, constant(x, 0x1p23)), x));
    m.k = b.CreateFSub(m.k, b.CreateSelect(denormal, constant(x, 23), constant(x, 0)));
    return log_specials(b, log_parts(b, m, constant(x, 0)), x);
}

Value* log1p_f32(Builder& b, Value* x) {
    Value* sum = b.CreateFAdd(x, constant(x, 1));
    Mantissa m = split_mantissa(b, sum);
    // What rounding 1 + x lost: the larger of the two is subtracted first, which is exact. Where no exponent was split
    // off, x itself is f and nothing was lost.
    Value* one = constant(x, 1);
    Value* lost = b.CreateSelect(b.CreateFCmpOGT(x, one), b.CreateFSub(one, b.CreateFSub(sum, x)),
                                 b.CreateFSub(x, b.CreateFSub(sum, one)));
    Value* whole = b.CreateFCmpOEQ(m.k, constant(x, 0));
    m.f = b.CreateSelect(whole, x, m.f);
    Value* correction = b.CreateSelect(whole, constant(x, 0), b.CreateFDiv(lost, sum));
    Value* result = with_sign(b, log_parts(b, m, correction), x);
    result = b.CreateSelect(b.CreateFCmpOEQ(x, constant(x, -1)), constant(x, -kInfinity), result);
    result = b.CreateSelect(b.CreateFCmpOLT(x, constant(x, -1)), constant(x, kNan), result);
    return b.CreateSelect(b.CreateFCmpUEQ(x, constant(x, kInfinity)), x, result);
}

// 1 − 2 / (e^2a + 1), which cancels nothing beyond the split. GELU adds 1 to it where it is near −1, which makes five
// units of one unit of error: so at full width the divisor is kept in two parts and the quotient's remainder is taken
// off, for a quarter of GELU's time.
Value* tanh_f32(Builder& b, Value* x, bool full_width) {
    Value* one = constant(x, 1);
    Value* a = absolute(b, x);
    const Reduced reduced = reduce_by_ln2(b, at_most(b, b.CreateFMul(a, constant(x, 2)), 20));  // rounds to 1 there
    Value* above_one = multiply_add(b, b.CreateFMul(reduced.r, reduced.r), horner(b, reduced.r, kExp), reduced.r);
    Value* mantissa = b.CreateFAdd(above_one, one);
    Value* exponent = power_of_two(b, reduced.k_integer);
    Value* power = b.CreateFMul(mantissa, exponent);
    Value* divisor = b.CreateFAdd(power, one);
    Value* quotient = b.CreateFDiv(constant(x, 2), divisor);
    Value* large = b.CreateFSub(one, quotient);
    if (full_width) {
        Value* lost = b.CreateFSub(above_one, b.CreateFSub(mantissa, one));
        lost = multiply_add(b, lost, exponent, b.CreateFSub(one, b.CreateFSub(divisor, power)));
        Value* minus_quotient = b.CreateFNeg(quotient);
        Value* remainder = multiply_add(b, minus_quotient, divisor, constant(x, 2));
        remainder = multiply_add(b, minus_quotient, lost, remainder);
        Value* correction = b.CreateFMul(remainder, b.CreateFMul(quotient, constant(x, 0.5)));
        Value* rest = b.CreateFSub(b.CreateFSub(one, large), quotient);
        large = b.CreateFAdd(large, b.CreateFSub(rest, correction));
    }
    Value* square = b.CreateFMul(x, x);
    Value* small = multiply_add(b, b.CreateFMul(a, square), horner(b, square, kTanh), a);
    return with_sign(b, b.CreateSelect(b.CreateFCmpOGT(a, constant(x, kTanhSplit)), large, small), x);
}

// The same by a narrow exponential, where every result is rounded to 16 bits: an error of 2^-25 where it is near 1, as
// its rounding is, and a polynomial of 21 bits where 1 − … would cancel.
Value* tanh_narrow(Builder& b, Value* x) {
    Value* a = absolute(b, x);
    Value* power = exp2_by_instruction(b, b.CreateFMul(a, constant(x, 2 / M_LN2)), kExp2);
    Value* one = constant(x, 1);
    Value* large = multiply_add(b, reciprocal(b, b.CreateFAdd(power, one)), constant(x, -2), one);
    Value* square = b.CreateFMul(x, x);
    Value* small = multiply_add(b, b.CreateFMul(a, square), horner(b, square, kTanhNarrow), a);
    return with_sign(b, b.CreateSelect(b.CreateFCmpOGT(a, constant(x, kTanhNarrowSplit)), large, small), x);
}

Value* erf_by_table(Builder& b, Value* x) {
    Value* a = at_most(b, absolute(b, x), kErfEnd);
    Value* indices = bits_of(b, multiply_add(b, a, constant(x, kErfPerOne), constant(x, kRoundF32)));
    Value* t = b.CreateFSub(a, look_up(b, kErfTables[0], indices));
    Value* slope = look_up(b, kErfTables.back(), indices);
    for (std::size_t i = kErfTables.size() - 1; i-- > 2;) {
        slope = multiply_add(b, slope, t, look_up(b, kErfTables[i], indices));
    }
    Value* near_zero = b.CreateICmpEQ(b.CreateAnd(indices, integer(indices, 15)), integer(indices, 0));
    Value* start = b.CreateSelect(near_zero, t, look_up(b, kErfTables[1], indices));
    return with_sign(b, multiply_add(b, slope, t, start), x);
}

// By tables in half the instructions of the rest, half of which permute while the other half multiply.
Value* erf_f32(Builder& b, Value* x) {
    if (looks_up(b, x)) return erf_by_table(b, x);
    Value* t = at_most(b, absolute(b, x), 4);  // beyond which erf rounds to 1
    Value* large = multiply_add(b, t, horner(b, t, kErfLarge), t);
    large = b.CreateFSub(constant(x, 1), exp_f32(b, b.CreateFNeg(large), false));
    Value* small = multiply_add(b, t, horner(b, b.CreateFMul(t, t), kErfSmall), t);
    return with_sign(b, b.CreateSelect(b.CreateFCmpOGT(t, constant(x, kErfSplit)), large, small), x);
}

// sin (quadrant 0) or cos (quadrant 1): both are a sine or cosine polynomial of the same reduced argument.
Value* sin_or_cos_near(Builder& b, Value* x, std::int64_t quadrant) {
    // In f64 two parts of π/2 leave an absolute error below 2^-70 up to 2^20 quadrants; f32 would need four.
    Value* wide = b.CreateFPExt(x, shaped(b.getDoubleTy(), x));
    Value* magic = constant(wide, kRoundF64);
    Value* shifted = multiply_add(b, wide, constant(wide, kTwoOverPi), magic);
    Value* k = b.CreateFSub(shifted, magic);
    wide = multiply_add(b, k, constant(wide, -kHalfPiHigh), wide);
    wide = multiply_add(b, k, constant(wide, -kHalfPiLow), wide);
    Value* r = b.CreateFPTrunc(wide, x->getType());
    Value* turns = b.CreateTrunc(bits_of(b, shifted), shaped(b.getInt32Ty(), x));
    turns = b.CreateAdd(turns, integer(turns, quadrant));

    Value* z = b.CreateFMul(r, r);
    Value* sine = multiply_add(b, b.CreateFMul(r, z), horner(b, z, kSin), r);
    Value* cosine = multiply_add(b, z, constant(x, -0.5), constant(x, 1));
    cosine = multiply_add(b, b.CreateFMul(z, z), horner(b, z, kCos), cosine);
    Value* odd = b.CreateICmpNE(b.CreateAnd(turns, integer(turns, 1)), integer(turns, 0));
    Value* result = b.CreateSelect(odd, cosine, sine);
    Value* sign = b.CreateShl(b.CreateAnd(turns, integer(turns, 2)), integer(turns, 30));
    return float_of(b, b.CreateXor(bits_of(b, result), sign));
}

// Arguments past 2^20 quadrants are rare (no position encoding reaches them), so libm takes the whole vector then.
Value* sin_or_cos_f32(Builder& b, llvm::Function* function, const std::string& libm, std::int64_t quadrant) {
    Value* x = function->getArg(0);
    Value* far = b.CreateFCmpOGE(absolute(b, x), constant(x, 0x1p20));
    if (is_vector(x)) far = b.CreateOrReduce(far);
    llvm::BasicBlock* fast = llvm::BasicBlock::Create(b.getContext(), "near", function);
    llvm::BasicBlock* slow = llvm::BasicBlock::Create(b.getContext(), "far", function);
    llvm::BasicBlock* done = llvm::BasicBlock::Create(b.getContext(), "done", function);
    b.CreateCondBr(far, slow, fast);

    b.SetInsertPoint(fast);
    Value* near_result = sin_or_cos_near(b, x, quadrant);
    b.CreateBr(done);

    b.SetInsertPoint(slow);
    Value* wide = call_libm(b, libm, b.CreateFPExt(x, shaped(b.getDoubleTy(), x)));
    Value* far_result = b.CreateFPTrunc(wide, x->getType());
    b.CreateBr(done);

    b.SetInsertPoint(done);
    llvm::PHINode* result = b.CreatePHI(x->getType(), 2);
    result->addIncoming(near_result, fast);
    result->addIncoming(far_result, slow);
    return result;
}

// The f32 nearest to x whose lower half is zeros, to even.
Value* rounded_to_upper_half(Builder& b, Value* x) {
    Value* bits = bits_of(b, x);
    Value* odd = b.CreateAnd(b.CreateLShr(bits, integer(bits, 16)), integer(bits, 1));
    Value* rounded = b.CreateAdd(bits, b.CreateAdd(odd, integer(bits, 0x7FFF)));
    Value* quiet = b.CreateOr(bits, integer(bits, 0x400000));
    Value* chosen = b.CreateSelect(is_nan(b, x), quiet, rounded);
    return float_of(b, b.CreateAnd(chosen, integer(bits, 0xFFFF0000)));
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

Value* bf16_value(Builder& b, Value* stored) {
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

// The bits of an f32, representable or not, in a format of eight bits: those of prelude.h's rj_rounded_f8.
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

// x / y of one y for all lanes: by its reciprocal, and the remainder of the quotient so found, which is as good as the
// division to within a thousandth of a unit (Markstein); where the remainder is a denormal, within a unit. On Zen 4
// that takes 3 cycles of the multipliers for 16 lanes, a division 6.
Value* quotient_by_reciprocal(Builder& b, llvm::Function* function, bool narrow) {
    Value* x = function->getArg(0);
    Value* y = function->getArg(1);
    llvm::BasicBlock* usual = llvm::BasicBlock::Create(b.getContext(), "usual", function);
    llvm::BasicBlock* rare = llvm::BasicBlock::Create(b.getContext(), "extreme", function);
    // Where y and its reciprocal are normal numbers.
    Value* size = absolute(b, y);
    Value* ordinary =
        b.CreateAnd(b.CreateFCmpOGE(size, constant(y, 0x1p-126)), b.CreateFCmpOLE(size, constant(y, 0x1p126)));
    Value* divisor = b.CreateVectorSplat(width(x), y);
    b.CreateCondBr(ordinary, usual, rare, llvm::MDBuilder(b.getContext()).createLikelyBranchWeights());

    b.SetInsertPoint(rare);
    b.CreateRet(b.CreateFDiv(x, divisor));

    b.SetInsertPoint(usual);
    Value* reciprocal = b.CreateVectorSplat(width(x), b.CreateFDiv(constant(y, 1), y));
    Value* quotient = b.CreateFMul(x, reciprocal);
    if (narrow) return quotient;
    Value* remainder = multiply_add(b, b.CreateFNeg(quotient), divisor, x);
    Value* better = multiply_add(b, remainder, reciprocal, quotient);
    // Of an infinite quotient the remainder is none.
    return b.CreateSelect(is_nan(b, better), quotient, better);
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
            b.stored_bf16[carried] = stored;
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
    llvm::Type* stored = shaped(stored_type(b, dtype), carried);
    switch (dtype) {
        case Dtype::kBool: return b.CreateZExt(carried, stored);
        case Dtype::kI8: return b.CreateTrunc(carried, stored);
        case Dtype::kE4m3:
        case Dtype::kE5m2: return f8_bits(b, format8(dtype), carried);
        case Dtype::kBf16: {
            if (const auto known = b.stored_bf16.find(carried); known != b.stored_bf16.end()) return known->second;
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
    if (rounds_from_f32(dtype)) return widen(b, dtype, narrow(b, dtype, value));
    return value;
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

// By a power of two the optimiser multiplies.
Value* divide_by_one(Builder& b, Value* x, Value* y) {
    const auto* known = llvm::dyn_cast<llvm::ConstantFP>(y);
    const bool by_power_of_two = known != nullptr && known->getValueAPF().getExactInverse(nullptr);
    if (by_power_of_two || !b.cpu.multiply_add || is_f64(x)) {
        return b.CreateFDiv(x, b.CreateVectorSplat(width(x), y));
    }
    const bool narrow = b.narrow;
    return call_shared(b, narrow ? "quotient_narrow" : "quotient", x->getType(), {x, y},
                       [&](Builder& body, llvm::Function* f) { return quotient_by_reciprocal(body, f, narrow); });
}

Value* multiplied_by_reciprocal(Builder& b, Value* x, Value* y) { return b.CreateFMul(x, reciprocal(b, y)); }

Value* exp_in_sum(Builder& b, Value* x) {
    if (is_f64(x) || !has_instructions(b, x)) return least_weight_or_exp(b, x);
    return call_shared(b, "exp_in_sum", x,
                       [](Builder& body, Value* lanes) { return exp_by_instruction(body, lanes, kExp2Long); });
}

Value* least_weight_or_exp(Builder& b, Value* x) {
    if (is_f64(x)) return call_libm(b, "exp", x);
    return call_shared(b, "exp_of_weight", x, [](Builder& body, Value* lanes) {
        return looks_up(body, lanes) ? weight_by_table(body, lanes) : exp_f32(body, lanes, true);
    });
}

Value* exp_weight(Builder& b, Value* x) {
    Value* weight = least_weight_or_exp(b, x);
    return looks_up(b, x) && !is_f64(x) ? b.CreateSelect(weighs_nothing(b, x), constant(x, 0), weight) : weight;
}

Value* weighs_nothing(Builder& b, Value* x) { return b.CreateFCmpOLT(x, constant(x, kLeastWeight)); }

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
// each step of a row's maximum waits for. llvm.minimum would order signed zeros as well, at three more instructions.
Value* nan_where(Builder& b, Value* condition, Value* v) {
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
    return b.narrow && b.cpu.divides_slowly && looks_up(b, y) ? multiplied_by_reciprocal(b, x, y) : b.CreateFDiv(x, y);
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
    if (b.narrow && has_instructions(b, x)) return call_shared(b, "exp_narrow", x, exp_narrow);
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
    if (!b.full_width && has_instructions(b, x)) return call_shared(b, "tanh_narrow", x, tanh_narrow);
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
ROWJIT_TERNARY(select) { return b.CreateSelect(x, y, z); }
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
