// Exponentials, logarithms, tanh, erf, sines and quotients of lanes. Coefficients come from llvm_math_fit.py.
// Multiplications followed by additions go through llvm.fmuladd, which the target fuses when it can: the polynomials
// keep their bound either way, and nothing else in a kernel is ever fused.
#include "compiler/emit/llvm_functions.h"

#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compiler/emit/llvm_lanes.h"
#include "compiler/emit/llvm_math.h"

namespace rowjit {

using namespace cpu_lanes;

namespace {

// e^r = 1 + r + r² q(r) for |r| ≤ ln 2 / 2, to 28 bits.
constexpr std::array<double, 5> kExp = {0x1.fffffcp-2, 0x1.555492p-3, 0x1.5558b6p-5, 0x1.1239ap-7, 0x1.6a472p-10};

// The same for |r| ≤ ln 2 / 32, to 28 bits, and in the mean to 36: what all of a divergence's columns are off by it
// shows.
constexpr std::array<double, 2> kExpSixteenth = {0x1.000188p-1, 0x1.55561cp-3};

// 2^f = 1 + f q(f) for |f| ≤ 1/32, to 29 bits; and to 28, but in the mean to 40.
constexpr std::array<double, 3> kExp2Sixteenth = {0x1.62e43p-1, 0x1.ebfff6p-3, 0x1.c6aceep-5};
constexpr std::array<double, 3> kExp2SixteenthInMean = {0x1.62e43p-1, 0x1.ebfed4p-3, 0x1.c6aceep-5};

// 2^f = 1 + f q(f) for 0 ≤ f < 1, to 23 bits.
constexpr std::array<double, 5> kExp2 = {0x1.62e4bap-1, 0x1.ebdb6ap-3, 0x1.c91c0ep-5, 0x1.277c3p-7, 0x1.e968bp-10};

// The same to 13 bits.
constexpr std::array<double, 3> kExp2Rough = {0x1.63e65cp-1, 0x1.d2376ap-3, 0x1.3baacep-4};

// The same for |f| ≤ 1/2, to 23 and to 18 bits (of a term less it has no more than 13.3), and for |f| ≤ 1/16, to 32.
constexpr std::array<double, 5> kExp2Half = {0x1.62e42ap-1, 0x1.ebf9bep-3, 0x1.c6b6c8p-5, 0x1.3cea1ap-7,
                                             0x1.5be4bcp-10};

constexpr std::array<double, 4> kExp2HalfRough = {0x1.62e12ap-1, 0x1.ec0382p-3, 0x1.c9fdd2p-5, 0x1.3a015ep-7};

constexpr std::array<double, 4> kExp2Eighth = {0x1.62e43p-1, 0x1.ebfbep-3, 0x1.c6b8c2p-5, 0x1.3b2b86p-7};

// log((1 + s) / (1 − s)) = 2s + s z q(z), z = s², to 35 bits.
constexpr std::array<double, 4> kLog = {0x1.555554p-1, 0x1.999c26p-2, 0x1.23d3c8p-2, 0x1.f142fap-3};

// log m = −log rᵢ + log(1 + f), f = m rᵢ − 1, m in [¾, 1½) and i the four bits below its first. Row 0 has the rᵢ, of so
// few bits that f is exact, beside 1 they are 1; row 1 −log rᵢ, which rows 2 and 3 add up to: what 17 bits behind the
// point have of it, and the rest.
constexpr std::array<Table16, 4> kLogTables = {{
    {1, 0x1.dp-1, 0x1.cp-1, 0x1.ap-1, 0x1.9p-1, 0x1.8p-1, 0x1.7p-1, 0x1.6p-1, 0x1.5p+0, 0x1.4p+0, 0x1.3p+0, 0x1.3p+0,
     0x1.2p+0, 0x1.1p+0, 0x1.1p+0, 1},
    {0, 0x1.9335e6p-4, 0x1.1178e8p-3, 0x1.a93ed4p-3, 0x1.f991c6p-3, 0x1.269622p-2, 0x1.522aep-2, 0x1.7fafa4p-2,
     -0x1.1675cap-2, -0x1.c8ff7cp-3, -0x1.5ff308p-3, -0x1.5ff308p-3, -0x1.e27076p-4, -0x1.f0a30cp-5, -0x1.f0a30cp-5, 0},
    {0, 0x1.9338p-4, 0x1.1178p-3, 0x1.a94p-3, 0x1.f99p-3, 0x1.2696p-2, 0x1.522ap-2, 0x1.7fbp-2, -0x1.1676p-2,
     -0x1.c9p-3, -0x1.5ff4p-3, -0x1.5ff4p-3, -0x1.e27p-4, -0x1.f0ap-5, -0x1.f0ap-5, 0},
    {0, -0x1.0d1536p-19, 0x1.d044fcp-20, -0x1.2c3752p-19, 0x1.c6cb3cp-19, 0x1.089a6ep-21, 0x1.c0e714p-19,
     -0x1.7109fap-20, 0x1.aa2a2cp-21, 0x1.070cacp-20, 0x1.f1eb0ep-20, 0x1.f1eb0ep-20, -0x1.db8abcp-22, -0x1.86008cp-20,
     -0x1.86008cp-20, 0},
}};

// log(1 + f) = f + f² q(f) for −1/26 ≤ f ≤ 1/16, absolutely to 27 bits, and relatively to 28.
constexpr std::array<double, 3> kLogNearOne = {-0x1.0001c4p-1, 0x1.5591a4p-2, -0x1.e8e512p-3};

constexpr std::array<double, 4> kLogNearOneExact = {-0x1.fffffap-2, 0x1.55587p-2, -0x1.00403ep-2, 0x1.86ed7cp-3};

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

// Tables of erf and tanh, of 16 points xᵢ: f x = f xᵢ + t q(t), t = x − xᵢ, and of i = 0, where xᵢ is 0, t + t q(t).
// Row 0 has the xᵢ, chosen so that f xᵢ, in row 1, is an f32 to 37 bits and more where it is not close to 1; the other
// rows q's coefficients.

// Of tanh i is the two last bits of the exponent of 1 + x, and the first two behind its point; to 27 bits and more.
constexpr double kTanhEnd = 9.5;

constexpr std::array<Table16, 8> kTanhTables = {{
    {0, 0x1.80169p-2, 0x1.400dfap-1, 0x1.c0129cp-1, 0x1.3fed1ep+0, 0x1.bff09ap+0, 0x1.1ff226p+1, 0x1.5ff05ep+1,
     0x1.c01338p+1, 0x1.2004d2p+2, 0x1.6005f2p+2, 0x1.9fef28p+2, 0x1.fe2804p+2, 0x1.154246p+3, 0, 0},
    {0, 0x1.6f08e8p-2, 0x1.1bfe2cp-1, 0x1.686fb4p-1, 0x1.b247a4p-1, 0x1.e1f878p-1, 0x1.f4bd6ep-1, 0x1.fbd406p-1,
     0x1.ff1174p-1, 0x1.ffdfacp-1, 0x1.fffbap-1, 0x1.ffff68p-1, 0x1.fffff8p-1, 0x1.fffffep-1, 0, 0},
    {0x1.d2dc3cp-28, 0x1.be38aep-1, 0x1.627a08p-1, 0x1.0242d2p-1, 0x1.1f48fcp-2, 0x1.d26162p-4, 0x1.645bfp-5,
     0x1.09e80ep-6, 0x1.dcab24p-9, 0x1.029936p-11, 0x1.180058p-14, 0x1.30017cp-17, 0x1.006184p-21, 0x1.ffe902p-24, 0,
     0},
    {-0x1.c1085ep-20, -0x1.3fe168p-2, -0x1.893cd6p-2, -0x1.6b9eaap-2, -0x1.e75a3p-3, -0x1.b706ccp-4, -0x1.5c859cp-5,
     -0x1.07bd64p-6, -0x1.dbcc5cp-9, -0x1.02888cp-11, -0x1.17fd9ap-14, -0x1.300092p-17, -0x1.000e3cp-21,
     -0x1.fef9f6p-24, 0, 0},
    {-0x1.55415p-2, -0x1.6da44ap-3, -0x1.2359ccp-6, 0x1.4f3bc8p-4, 0x1.bbc34p-4, 0x1.01d822p-4, 0x1.bc25a2p-6,
     0x1.59e59p-7, 0x1.3bbf36p-9, 0x1.582e46p-12, 0x1.74e65cp-15, 0x1.94e6f4p-18, 0x1.4f3ccep-22, 0x1.508248p-24, 0, 0},
    {-0x1.5684c6p-10, 0x1.58569ep-3, 0x1.1a553cp-3, 0x1.f1b9eap-5, -0x1.9b79c6p-7, -0x1.817f8cp-6, -0x1.9414d8p-7,
     -0x1.4e874ep-8, -0x1.397fc2p-10, -0x1.57e1dcp-13, -0x1.74e3b6p-16, -0x1.94fb0ep-19, -0x1.536486p-23,
     -0x1.3d1a2ep-25, 0, 0},
    {0x1.260dbap-3, 0x1.30efaap-6, -0x1.bb8fb8p-5, -0x1.e16beap-5, -0x1.43054p-6, 0x1.c82a1cp-9, 0x1.04c634p-8,
     0x1.f6a394p-10, 0x1.00bfacp-11, 0x1.1e3ecep-14, 0x1.3711dcp-17, 0x1.51e8bep-20, 0x1.41440ep-24, 0x1.96a232p-27, 0,
     0},
    {-0x1.34e07p-5, -0x1.1e355ap-4, -0x1.82a39ep-6, 0x1.a2948cp-7, 0x1.eeda9ep-7, 0x1.1376c2p-9, -0x1.776dbep-11,
     -0x1.1e606p-11, -0x1.4aa84cp-13, -0x1.7b5b72p-16, -0x1.9ddf7ap-19, -0x1.c0a522p-22, -0x1.925c7ep-26,
     -0x1.0be4f4p-29, 0, 0},
}};

// Of erf i = round(kErfPerOne · x); to 25 bits and more.
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

// sin r = r − r z q(z), to 32 bits; cos r = 1 − z/2 + z² q(z), to 33; z = r², |r| ≤ π/4.
constexpr std::array<double, 4> kSin = {0x1.555556p-3, -0x1.111174p-7, 0x1.a05968p-13, -0x1.7c367ap-19};

constexpr std::array<double, 3> kCos = {0x1.55554ap-5, -0x1.6c0c28p-10, 0x1.99e816p-16};

// ln 2 and π/2 split so that the product of the high part with any exponent or quotient in range is exact.
constexpr double kLn2High = 0x1.62e4p-1;

constexpr double kLn2Low = 0x1.7f7d1cp-20;
constexpr double kHalfPiHigh = 0x1.921fb544p+0;
constexpr double kHalfPiLow = 0x1.0b4611a626331p-34;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
// π/2 as three f32 above 0, to 71 bits behind the point.
constexpr std::array<double, 3> kHalfPiF32 = {0x1.921fb4p+0, 0x1.4442dp-24, 0x1.846988p-48};

// x = k ln 2 + r with |r| ≤ ln 2 / 2 (and a little), for |x| ≤ 153 ln 2; `lost` is what rounding r took from it.
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

// Beyond these arguments e^x is 0 or infinity, and the exponent's arithmetic would wrap.
constexpr double kLeastExponent = -106;
static_assert(kLeastExponent / M_LN2 < kLeastPower - 0.5, "what is bounded shall be masked where underflows take long");
constexpr double kGreatestExponent = 89;

// 2^k as f32, −126 ≤ k ≤ 127.
Value* power_of_two(Builder& b, Value* k) {
    return float_of(b, b.CreateShl(b.CreateAdd(k, integer(k, 127)), integer(k, 23)));
}

// What is added to e^r, so that 1 + r + r²/2 of an r half-way between two f32, as 2^-24 is, is rounded up: of r + r²/2
// the square is below its last place, and 1 + r alone would be rounded to even. The gradient of a total variation
// distance asks which of two exponentials is larger, and eager's e^(2^-24) is not 1.
constexpr double kBeyondHalf = 0x1p-47;

// e^r of a reduced argument, within a unit; at full width within ⅔ of one, since what is lost on the way to 1 + r is
// added at the end. Where exponentials are summed and subtracted, as in a divergence of distributions, a kernel is then
// as far from the exact result as eager arithmetic is. Of numbers of 11 bits near 0, as f16's subnormal ones are, it is
// the f32 that is nearest: kBeyondHalf says why.
Value* exp_reduced(Builder& b, const Reduced& reduced, bool full_width) {
    Value* r = reduced.r;
    Value* one = constant(r, 1);
    if (!full_width) return b.CreateFAdd(multiply_add(b, b.CreateFMul(r, r), horner(b, r, kExp), r), one);
    Value* square = multiply_add(b, r, r, constant(r, 2 * kBeyondHalf));  // of which e^r has half
    Value* above = b.CreateFAdd(r, one);
    Value* rest = b.CreateFAdd(b.CreateFAdd(b.CreateFSub(one, above), r), reduced.lost);
    return b.CreateFAdd(above, multiply_add(b, square, horner(b, r, kExp), rest));
}

// x · 2^k, rounded once, for k of either sign up to 153.
Value* scale(Builder& b, Value* x, const Reduced& reduced) {
    if (has_instructions(b, x)) return scale_by_instruction(b, x, reduced.k);
    // In two factors: each is a normal number, so only the last product rounds, into a denormal or to infinity.
    Value* half = b.CreateAShr(reduced.k_integer, integer(reduced.k_integer, 1));
    Value* rest = b.CreateSub(reduced.k_integer, half);
    return b.CreateFMul(b.CreateFMul(x, power_of_two(b, half)), power_of_two(b, rest));
}

// The lanes as far as they are below 1, and 1 for others, NaN among them.
Value* below_one(Builder& b, Value* v) {
    Value* one = constant(v, 1);
    return b.CreateSelect(b.CreateFCmpOLT(v, one), v, one);
}

// 1 / y of y ≥ 1, infinity or NaN, within a unit and a half: where that is quicker than to divide, by an estimate of 14
// bits and a step of Newton's; the estimate alone where that is enough. Of infinity the estimate is 0 and what is left
// no number, for which the bound is taken. Intel's servers divide 16 lanes in 10.5 cycles, and do this in 3; Zen 4
// divides in 6, and a silu was a quarter slower.
Value* reciprocal(Builder& b, Value* y) {
    if (!looks_up(b, y) || !(b.cpu.divides_slowly || b.rough)) return b.CreateFDiv(constant(y, 1), y);
    if (width(y) > kZmmLanes) {
        const unsigned half = width(y) / 2;
        return joined(b, reciprocal(b, lanes_of(b, y, 0, half)), reciprocal(b, lanes_of(b, y, half, half)));
    }
    Value* estimate = b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_rcp14_ps_512, {},
                                        {y, llvm::PoisonValue::get(y->getType()), b.getInt16(0xFFFF)});
    if (b.rough) return estimate;
    Value* one = constant(y, 1);
    Value* rest = multiply_add(b, b.CreateFNeg(estimate), y, one);
    return multiply_add(b, below_one(b, rest), estimate, estimate);
}

// 2^(i/parts) as f32, and what it lacks relative to that: without, two roundings would be in the result instead of one,
// and a sigmoid's product with a norm would err by three units.
struct PowersByParts {
    std::vector<double> power;
    std::vector<double> lost;
};

PowersByParts powers_by(std::size_t parts) {
    PowersByParts powers;
    for (std::size_t i = 0; i < parts; ++i) {
        const double exact = std::exp2(static_cast<double>(i) / static_cast<double>(parts));
        powers.power.push_back(static_cast<float>(exact));
        powers.lost.push_back((exact - powers.power[i]) / powers.power[i]);
    }
    powers.lost[0] = kBeyondHalf;
    return powers;
}

// x = k ln 2 + r, k in sixteenths: e^x = 2^floor(k) · 2^(k − floor(k)) · e^r, the second from a table. Two
// multiplications fewer than a polynomial of |r| ≤ ln 2 / 2, which are what Zen 4 does one at a time.
Value* exp_by_table(Builder& b, Value* x, bool full_width) {
    Value* magic = constant(x, kRoundF32 / 16);
    Value* shifted = multiply_add(b, x, constant(x, 1 / M_LN2), magic);
    Value* k = b.CreateFSub(shifted, magic);
    const PowersByParts powers = powers_by(16);
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

// e^x of x whose result is a normal number: by tables of 16 entries, or of 8. They are scaled as they are looked up, by
// adding the exponent to their bits, so that of Zen 4's four pipes the two that add have no more to do than the two
// that multiply: 13 instructions for 16 lanes, where exp_by_table takes 16, one of which is two. logsumexp of 4096 bf16
// columns in cache 8.5 GB/s, then 9.3. Within a unit; within ⅔ of one at full width, with what the entries lack.
Value* exp_by_scaled_table(Builder& b, Value* x, bool full_width) {
    constexpr double kLog2E = 0x1.715476p+0;
    constexpr double kLog2ERest = 0x1.4ae0cp-26;
    const bool sixteenths = looks_up(b, x);
    const std::span<const double> of_sixteenths = full_width ? kExp2SixteenthInMean : kExp2Sixteenth;
    const std::span<const double> coefficients = sixteenths ? of_sixteenths : kExp2Eighth;
    const std::size_t parts = sixteenths ? 16 : 8;
    const int bits_of_part = std::countr_zero(parts);
    Value* magic = constant(x, kRoundF32 / static_cast<double>(parts));
    Value* shifted = multiply_add(b, x, constant(x, kLog2E), magic);
    Value* k = b.CreateFSub(shifted, magic);
    Value* fraction = multiply_add(b, x, constant(x, kLog2E), b.CreateFNeg(k));
    fraction = multiply_add(b, x, constant(x, kLog2ERest), fraction);
    PowersByParts powers = powers_by(parts);
    // Without what shifting the parts with the exponent adds to them.
    for (std::size_t i = 0; i < parts; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(powers.power[i]));
        powers.power[i] = std::bit_cast<float>(bits - static_cast<std::uint32_t>(i << (23 - bits_of_part)));
    }
    Value* part = bits_of(b, shifted);
    Value* exponent = b.CreateShl(part, integer(part, 23 - bits_of_part));
    Value* power = float_of(b, b.CreateAdd(bits_of(b, look_up(b, powers.power, part)), exponent));
    Value* slope = horner(b, fraction, coefficients);
    if (!full_width) return multiply_add(b, b.CreateFMul(power, fraction), slope, power);
    return multiply_add(b, power, multiply_add(b, fraction, slope, look_up(b, powers.lost, part)), power);
}

constexpr double kLeastWeight = -86;  // as an exponent of e: 2^-124

// e^x of x ≤ 0, and of what is below kLeastWeight the least weight.
Value* weight_by_table(Builder& b, Value* x, bool full_width) {
    return exp_by_scaled_table(b, at_least(b, x, kLeastWeight), full_width);
}

bool has_weights(const Builder& b, const Value* x) { return looks_up(b, x) || fills_ymm(b, x); }

// e^x = 2^k · 2^(x log2 e − k), of a result that is a normal number, without instructions of AVX-512: the exponent is
// added to the polynomial's bits.
Value* exp_by_bits(Builder& b, Value* x, std::span<const double> coefficients) {
    Value* log2e = constant(x, 1 / M_LN2);
    Value* magic = constant(x, kRoundF32);
    Value* shifted = multiply_add(b, x, log2e, magic);
    Value* fraction = multiply_add(b, x, log2e, b.CreateFSub(magic, shifted));
    Value* power = multiply_add(b, horner(b, fraction, coefficients), fraction, constant(x, 1));
    Value* exponent = b.CreateShl(bits_of(b, shifted), integer(bits_of(b, shifted), 23));
    return float_of(b, b.CreateAdd(bits_of(b, power), exponent));
}

// `usual` of x whose e^x are all normal numbers; of any others, infinities and NaN too, what takes those.
Value* exp_by_range(Builder& b, llvm::Function* function, Lanewise usual) {
    constexpr float kUsual = 87;
    Value* x = function->getArg(0);
    llvm::BasicBlock* rare = llvm::BasicBlock::Create(b.getContext(), "extreme", function);
    llvm::BasicBlock* normal = llvm::BasicBlock::Create(b.getContext(), "normal", function);
    // As integers, of which NaN's are greater than any number's.
    Value* size = b.CreateAnd(bits_of(b, x), integer(bits_of(b, x), 0x7FFFFFFF));
    while (width(size) > kYmmLanes) {
        const unsigned half = width(size) / 2;
        size =
            b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, lanes_of(b, size, 0, half), lanes_of(b, size, half, half));
    }
    Value* beyond = b.CreateICmpSGT(size, integer(size, std::bit_cast<std::int32_t>(kUsual)));
    b.CreateCondBr(b.CreateOrReduce(beyond), rare, normal,
                   llvm::MDBuilder(b.getContext()).createUnlikelyBranchWeights());

    b.SetInsertPoint(rare);
    Value* bounded = at_most(b, at_least(b, x, kLeastExponent), kGreatestExponent);
    const Reduced reduced = reduce_by_ln2(b, bounded);
    b.CreateRet(scale(b, exp_reduced(b, reduced, true), reduced));

    b.SetInsertPoint(normal);
    return usual(b, x);
}

// e^x = 2^⌊t⌋ · 2^(t − ⌊t⌋), t = x log2 e rounded, which is off by |x| 2^-24 at most: 2^-23 of it near 1, 2^-17 where
// the result is hardly a normal number. Both instructions take any t as it should be taken, infinities too, so nothing
// is bounded first: 6 cycles of the multipliers on Zen 4, 5 of the adders, where the exact one takes 7 and 7.
Value* exp2_by_instruction(Builder& b, Value* t, std::span<const double> coefficients, double least) {
    constexpr std::uint32_t kRoundDown = 1;
    Value* fraction = by_instruction(b, kReduce, t, b.getInt32(kRoundDown));
    Value* power = multiply_add(b, horner(b, fraction, coefficients), fraction, constant(t, 1));
    return scale_by_instruction(b, power, t, least);
}

Value* exp_by_instruction(Builder& b, Value* x, std::span<const double> coefficients, double least = kLeastPower) {
    return exp2_by_instruction(b, b.CreateFMul(x, constant(x, 1 / M_LN2)), coefficients, least);
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

// Of an odd function's `tables` the value at x, whose size is `a` and whose point `indices` choose.
Value* odd_by_table(Builder& b, Value* x, Value* a, Value* indices, std::span<const Table16> tables) {
    Value* t = b.CreateFSub(a, look_up(b, tables[0], indices));
    Value* slope = look_up(b, tables.back(), indices);
    for (std::size_t i = tables.size() - 1; i-- > 2;) slope = multiply_add(b, slope, t, look_up(b, tables[i], indices));
    Value* near_zero = b.CreateICmpEQ(b.CreateAnd(indices, integer(indices, 15)), integer(indices, 0));
    Value* start = b.CreateSelect(near_zero, t, look_up(b, tables[1], indices));
    return with_sign(b, multiply_add(b, slope, t, start), x);
}

Value* erf_by_table(Builder& b, Value* x) {
    Value* a = at_most(b, absolute(b, x), kErfEnd);
    Value* indices = bits_of(b, multiply_add(b, a, constant(x, kErfPerOne), constant(x, kRoundF32)));
    return odd_by_table(b, x, a, indices, kErfTables);
}

Value* tanh_by_table(Builder& b, Value* x) {
    constexpr int kBelowQuarters = 21;
    constexpr std::int64_t kOne = 0x3F800000 >> kBelowQuarters;
    Value* a = at_most(b, absolute(b, x), kTanhEnd);
    Value* quarters = bits_of(b, b.CreateFAdd(a, constant(x, 1)));
    quarters = b.CreateLShr(quarters, integer(quarters, kBelowQuarters));
    return odd_by_table(b, x, a, b.CreateSub(quarters, integer(quarters, kOne)), kTanhTables);
}

// x = 2^k m, m in [¾, 1½), by the instructions that take a number apart: they know denormals, of infinity and 0 k is
// that and −∞, and of what is below 0 m is NaN. m is split by kLogTables.
struct MantissaByTable {
    Value* k;
    Value* index;
    Value* inverse;  // rᵢ
    Value* f;        // m rᵢ − 1, exactly
};

MantissaByTable split_by_table(Builder& b, Value* x) {
    constexpr std::uint32_t kFromThreeQuarters = 3;
    constexpr std::uint32_t kNanBelowZero = 2 << 2;
    Value* m = by_instruction(b, kMantissa, x, b.getInt32(kFromThreeQuarters | kNanBelowZero));
    Value* k = b.CreateFSub(by_instruction(b, kExponent, x), by_instruction(b, kExponent, m));
    Value* index = b.CreateLShr(bits_of(b, m), integer(bits_of(b, m), 19));
    Value* inverse = look_up(b, kLogTables[0], index);
    return {k, index, inverse, multiply_add(b, m, inverse, constant(x, -1))};
}

// The logarithm of what was split, and of `lost` more, relative to 2^k / rᵢ, or nothing. k ln 2 and −log rᵢ are in two
// parts, of which the higher ones' sum is exact; what adding f to it loses is added with the lower ones, so that the
// logarithm of a row's sum is rounded once, as eager's is. Where the higher parts are infinite what is lost is
// NaN, of which 1 is made, more than it ever is.
Value* log_by_table(Builder& b, const MantissaByTable& split, Value* lost) {
    Value* high = multiply_add(b, split.k, constant(split.k, kLn2High), look_up(b, kLogTables[2], split.index));
    Value* sum = b.CreateFAdd(high, split.f);
    Value* rest = below_one(b, b.CreateFSub(split.f, b.CreateFSub(sum, high)));
    Value* f = split.f;
    if (lost != nullptr) {
        lost = below_one(b, lost);
        rest = b.CreateFAdd(rest, lost);
        f = b.CreateFAdd(f, lost);
    }
    Value* low = multiply_add(b, split.k, constant(f, kLn2Low), look_up(b, kLogTables[3], split.index));
    low = multiply_add(b, b.CreateFMul(f, f), horner(b, f, kLogNearOneExact), b.CreateFAdd(low, rest));
    return b.CreateFAdd(sum, low);
}

// x = k π/2 + r − lost, |r| ≤ π/4 and a little, where r is an f32 and lost little; `turns` is k in its last two bits.
// Of −0 r is −0 and lost 0, so that a sine is −0 too: whatever is taken from r then has r's sign, or is 0 taken from
// −0.
struct Turned {
    Value* r;
    Value* lost;
    Value* turns;
};

// In f32, of few quadrants: the first part is taken off exactly, the second with one rounding of r.
Turned turn_in_f32(Builder& b, Value* x) {
    Value* magic = constant(x, kRoundF32);
    Value* shifted = multiply_add(b, x, constant(x, kTwoOverPi), magic);
    Value* k = b.CreateFSub(shifted, magic);
    Value* r = multiply_add(b, k, constant(x, -kHalfPiF32[0]), x);
    r = multiply_add(b, k, constant(x, -kHalfPiF32[1]), r);
    return {r, b.CreateFMul(k, constant(x, kHalfPiF32[2])), bits_of(b, shifted)};
}

// In f64 two parts of π/2 leave an absolute error below 2^-70 up to 2^20 quadrants; f32 would need four.
Turned turn_in_f64(Builder& b, Value* x) {
    Value* wide = b.CreateFPExt(x, shaped(b.getDoubleTy(), x));
    Value* magic = constant(wide, kRoundF64);
    Value* shifted = multiply_add(b, wide, constant(wide, kTwoOverPi), magic);
    Value* k = b.CreateFSub(shifted, magic);
    wide = multiply_add(b, k, constant(wide, -kHalfPiHigh), wide);
    wide = multiply_add(b, k, constant(wide, -kHalfPiLow), wide);
    Value* r = b.CreateFPTrunc(wide, x->getType());
    return {r, constant(r, 0.0), b.CreateTrunc(bits_of(b, shifted), shaped(b.getInt32Ty(), x))};
}

// sin (quadrant 0) or cos (quadrant 1): both are a sine or cosine polynomial of the same reduced argument.
Value* sin_or_cos_of(Builder& b, const Turned& turned, std::int64_t quadrant) {
    Value* r = turned.r;
    Value* turns = b.CreateAdd(turned.turns, integer(turned.turns, quadrant));
    Value* z = b.CreateFMul(r, r);
    Value* sine = b.CreateFSub(r, multiply_add(b, b.CreateFMul(r, z), horner(b, z, kSin), turned.lost));
    Value* cosine = multiply_add(b, z, constant(r, -0.5), constant(r, 1));
    cosine = multiply_add(b, b.CreateFMul(z, z), horner(b, z, kCos), cosine);
    Value* odd = b.CreateICmpNE(b.CreateAnd(turns, integer(turns, 1)), integer(turns, 0));
    Value* result = b.CreateSelect(odd, cosine, sine);
    Value* sign = b.CreateShl(b.CreateAnd(turns, integer(turns, 2)), integer(turns, 30));
    return float_of(b, b.CreateXor(bits_of(b, result), sign));
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
    // Of an infinite quotient the remainder is none, and the sum would make −0 positive.
    return b.CreateSelect(b.CreateFCmpONE(better, constant(better, 0)), better, quotient);
}

}  // namespace

namespace cpu_functions {

Value* exp_narrow(Builder& b, Value* x, bool rough) {
    if (has_instructions(b, x)) return exp_by_instruction(b, x, rough ? std::span<const double>(kExp2Rough) : kExp2);
    return call_shared(
        b, rough ? "exp_rough_by_bits" : "exp_by_bits", x->getType(), {x}, [&](Builder& body, llvm::Function* f) {
            return exp_by_range(body, f, [&](Builder& inner, Value* lanes) {
                return exp_by_bits(inner, lanes, rough ? std::span<const double>(kExp2HalfRough) : kExp2Half);
            });
        });
}

Value* exp_f32(Builder& b, Value* x, bool full_width) {
    if (fills_ymm(b, x)) {
        return call_shared(b, "exp_by_scaled_table", x->getType(), {x}, [](Builder& body, llvm::Function* f) {
            return exp_by_range(body, f,
                                [](Builder& inner, Value* lanes) { return exp_by_scaled_table(inner, lanes, true); });
        });
    }
    x = at_most(b, at_least(b, x, kLeastExponent), kGreatestExponent);
    if (looks_up(b, x)) return exp_by_table(b, x, full_width);
    const Reduced reduced = reduce_by_ln2(b, x);
    return scale(b, exp_reduced(b, reduced, full_width), reduced);
}

Value* log_narrow(Builder& b, Value* x) {
    const MantissaByTable split = split_by_table(b, x);
    Value* above = multiply_add(b, b.CreateFMul(split.f, split.f), horner(b, split.f, kLogNearOne), split.f);
    Value* low = multiply_add(b, split.k, constant(x, kLn2Low), look_up(b, kLogTables[1], split.index));
    return multiply_add(b, split.k, constant(x, kLn2High), b.CreateFAdd(above, low));
}

Value* log_f32(Builder& b, Value* x) {
    if (looks_up(b, x)) return log_by_table(b, split_by_table(b, x), nullptr);
    Value* denormal = b.CreateFCmpOLT(x, constant(x, 0x1p-126));
    Mantissa m = split_mantissa(b, b.CreateSelect(denormal, b.CreateFMul(x, constant(x, 0x1p23)), x));
    m.k = b.CreateFSub(m.k, b.CreateSelect(denormal, constant(x, 23), constant(x, 0)));
    return log_specials(b, log_parts(b, m, constant(x, 0)), x);
}

Value* log1p_f32(Builder& b, Value* x) {
    Value* one = constant(x, 1);
    Value* sum = b.CreateFAdd(x, one);
    // What rounding 1 + x lost: the larger of the two is subtracted first, which is exact.
    Value* larger = at_least(b, x, 1);
    Value* lost = b.CreateFSub(at_most(b, x, 1), b.CreateFSub(sum, larger));
    if (looks_up(b, x)) {
        const MantissaByTable split = split_by_table(b, sum);
        Value* in_units = by_instruction(b, kScale, lost, b.CreateFNeg(split.k));
        return with_sign(b, log_by_table(b, split, b.CreateFMul(in_units, split.inverse)), x);
    }
    Mantissa m = split_mantissa(b, sum);
    // Where no exponent was split off, x itself is f and nothing was lost.
    Value* whole = b.CreateFCmpOEQ(m.k, constant(x, 0));
    m.f = b.CreateSelect(whole, x, m.f);
    Value* correction = b.CreateSelect(whole, constant(x, 0), b.CreateFDiv(lost, sum));
    Value* result = with_sign(b, log_parts(b, m, correction), x);
    result = b.CreateSelect(b.CreateFCmpOEQ(x, constant(x, -1)), constant(x, -kInfinity), result);
    result = b.CreateSelect(b.CreateFCmpOLT(x, constant(x, -1)), constant(x, kNan), result);
    return b.CreateSelect(b.CreateFCmpUEQ(x, constant(x, kInfinity)), x, result);
}

Value* tanh_f32(Builder& b, Value* x, bool full_width) {
    if (looks_up(b, x)) return tanh_by_table(b, x);
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

Value* tanh_narrow(Builder& b, Value* x) {
    Value* a = absolute(b, x);
    // Past 10 it rounds to 1.
    Value* power = has_instructions(b, x)
                       ? exp2_by_instruction(b, b.CreateFMul(a, constant(x, 2 / M_LN2)), kExp2, -kInfinity)
                       : exp_by_bits(b, at_most(b, b.CreateFMul(a, constant(x, 2)), 20), kExp2Half);
    Value* one = constant(x, 1);
    Value* large = multiply_add(b, reciprocal(b, b.CreateFAdd(power, one)), constant(x, -2), one);
    Value* square = b.CreateFMul(x, x);
    Value* small = multiply_add(b, b.CreateFMul(a, square), horner(b, square, kTanhNarrow), a);
    return with_sign(b, b.CreateSelect(b.CreateFCmpOGT(a, constant(x, kTanhNarrowSplit)), large, small), x);
}

Value* erf_f32(Builder& b, Value* x) {
    if (looks_up(b, x)) return erf_by_table(b, x);
    Value* t = at_most(b, absolute(b, x), 4);  // beyond which erf rounds to 1
    Value* large = multiply_add(b, t, horner(b, t, kErfLarge), t);
    large = b.CreateFNeg(large);
    large =
        b.CreateFSub(constant(x, 1), fills_ymm(b, x) ? exp_by_scaled_table(b, large, false) : exp_f32(b, large, false));
    Value* small = multiply_add(b, t, horner(b, b.CreateFMul(t, t), kErfSmall), t);
    return with_sign(b, b.CreateSelect(b.CreateFCmpOGT(t, constant(x, kErfSplit)), large, small), x);
}

Value* sin_or_cos_f32(Builder& b, llvm::Function* function, const std::string& libm, std::int64_t quadrant) {
    Value* x = function->getArg(0);
    const auto block = [&](const char* name) { return llvm::BasicBlock::Create(b.getContext(), name, function); };
    llvm::BasicBlock* further = block("further");
    llvm::BasicBlock* far = block("far");
    const auto turn_off = [&](double beyond, llvm::BasicBlock* there, const char* here) {
        Value* is_beyond = b.CreateFCmpOGE(absolute(b, x), constant(x, beyond));
        if (is_vector(x)) is_beyond = b.CreateOrReduce(is_beyond);
        llvm::BasicBlock* stays = block(here);
        b.CreateCondBr(is_beyond, there, stays);
        b.SetInsertPoint(stays);
    };
    if (b.cpu.multiply_add) {
        turn_off(0x1p16, further, "near");
        b.CreateRet(sin_or_cos_of(b, turn_in_f32(b, x), quadrant));
    } else {
        b.CreateBr(further);
    }
    b.SetInsertPoint(further);
    turn_off(0x1p20, far, "in_f64");
    b.CreateRet(sin_or_cos_of(b, turn_in_f64(b, x), quadrant));

    b.SetInsertPoint(far);
    Value* wide = call_libm(b, libm, b.CreateFPExt(x, shaped(b.getDoubleTy(), x)));
    return b.CreateFPTrunc(wide, x->getType());
}

}  // namespace cpu_functions

using namespace cpu_functions;

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
    constexpr double kLeastNormalPower = -125;
    return call_shared(b, "exp_in_sum", x, [](Builder& body, Value* lanes) {
        return exp_by_instruction(body, lanes, kExp2, kLeastNormalPower);
    });
}

Value* least_weight_or_exp(Builder& b, Value* x) {
    if (is_f64(x)) return call_libm(b, "exp", x);
    return call_shared(b, "exp_of_weight", x, [](Builder& body, Value* lanes) {
        return has_weights(body, lanes) ? weight_by_table(body, lanes, false) : exp_f32(body, lanes, true);
    });
}

// AVX-512's are stored as they are summed; those of a table of eight entries with what the entries lack.
Value* exp_weight(Builder& b, Value* x) {
    if (is_f64(x) || !has_weights(b, x)) return least_weight_or_exp(b, x);
    Value* weight = b.full_width && fills_ymm(b, x)
                        ? call_shared(b, "exp_of_stored_weight", x,
                                      [](Builder& body, Value* lanes) { return weight_by_table(body, lanes, true); })
                        : least_weight_or_exp(b, x);
    return b.CreateSelect(weighs_nothing(b, x), constant(x, 0), weight);
}

Value* exp_bounded(Builder& b, Value* x) {
    return call_shared(b, "exp_bounded", x, [](Builder& body, Value* lanes) {
        return has_weights(body, lanes) ? exp_by_scaled_table(body, lanes, true) : exp_f32(body, lanes, true);
    });
}

Value* weighs_nothing(Builder& b, Value* x) { return b.CreateFCmpOLT(x, constant(x, kLeastWeight)); }

}  // namespace rowjit
