// Accuracy of the CPU's math functions, in units in the last place against libm in double, over sweeps of f32's bit
// patterns; and the roundings of bf16 and f16, exhaustively enough, against base/dtype.h.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "dsl/ops.h"
#include "tests/compiler/cpu_kernel.h"

namespace rowjit {
namespace {

constexpr std::int64_t kColumns = 4096;

// y = op(x) on rows of 4096 columns.
Kernel unary_kernel(Op op, Dtype dtype, bool narrow = false, bool weighs = false, bool rough = false,
                    bool bounded = false) {
    KernelWriter w("unary", kColumns, 16);
    const int x = w.tensor("x", dtype, {w.rows(), w.columns()});
    const int y = w.tensor("y", dtype, {w.rows(), w.columns()}, true);
    w.open_loop();
    w.store(y, w.map(op, {w.load(x)}, dtype));
    for (Inst& inst : w.loop().body) {
        inst.narrow = narrow && inst.kind == InstKind::kMap;
        inst.weighs = weighs && inst.kind == InstKind::kMap;
        inst.rough = rough && inst.kind == InstKind::kMap;
        inst.bounded = bounded && inst.kind == InstKind::kMap;
    }
    w.close_loop();
    return w.kernel();
}

Kernel cast_kernel(Dtype from, Dtype to, int vector = 16) {
    KernelWriter w("convert", kColumns, vector);
    const int x = w.tensor("x", from, {w.rows(), w.columns()});
    const int y = w.tensor("y", to, {w.rows(), w.columns()}, true);
    w.open_loop();
    w.store(y, w.cast(w.load(x), to));
    w.close_loop();
    return w.kernel();
}

// Those of the levels that this machine can run.
std::vector<std::string> runnable(std::vector<std::string> levels) {
    if (!__builtin_cpu_supports("x86-64-v4")) std::erase(levels, "x86-64-v4");
    return levels;
}

template <class In, class Out>
void run(const Kernel& kernel, const Target& target, std::vector<In>& x, std::vector<Out>* y) {
    x.resize((x.size() + kColumns - 1) / kColumns * kColumns, In{});
    y->assign(x.size(), Out{});
    CpuRun run(kernel, target);
    const auto rows = static_cast<std::int64_t>(x.size()) / kColumns;
    run.bind("x", x.data());
    run.bind("y", y->data());
    run.bind_rows(rows, kColumns);
    run(0, rows);
}

// Every 997th bit pattern of f32 (4.3 million, both signs, denormals and NaN), and what functions are special at.
std::vector<float> sweep() {
    std::vector<float> values;
    for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 997) {
        values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    }
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const float special :
         {0.0F,      -0.0F,       1.0F,      -1.0F,      kInfinity,   -kInfinity,  std::nanf(""), 0x1p-149F,
          0x1p-126F, 88.72283F,   88.72284F, -87.33655F, -103.97208F, -103.97209F, -104.0F,       3.4028235e38F,
          0.9375F,   0.93750006F, 3.92F,     4.0F,       9.01F,       10.0F,       1048575.9F,    1048576.0F}) {
        values.push_back(special);
        values.push_back(-special);
    }
    // Where the functions bend: a dense sample of the ordinary range.
    std::mt19937 random(7);
    std::uniform_real_distribution<float> ordinary(-20, 20);
    for (int i = 0; i < 1'000'000; ++i) values.push_back(ordinary(random));
    std::uniform_real_distribution<float> angles(-2e6F, 2e6F);
    for (int i = 0; i < 300'000; ++i) values.push_back(angles(random));
    // What is left of them by quadrants is the least.
    for (int quadrants = 1; quadrants < 100'000; ++quadrants)
        values.push_back(static_cast<float>(quadrants * std::numbers::pi / 2));
    std::uniform_real_distribution<float> around_one(0.5F, 2.0F);
    for (int i = 0; i < 300'000; ++i) values.push_back(around_one(random));
    return values;
}

// Distance of `got` from `exact` in f32's units, infinite where one is NaN and the other is not, and between the zeros.
double error_ulp(float got, double exact) {
    const auto rounded = static_cast<float>(exact);
    if (std::isnan(exact) || std::isnan(got)) {
        return std::isnan(exact) == std::isnan(got) ? 0 : std::numeric_limits<double>::infinity();
    }
    if (std::isinf(rounded) || std::isinf(got)) {
        // An exact result just below the overflow threshold may round either way.
        return rounded == got ? 0 : std::abs(std::nextafter(got, 0.0F) - exact) / 0x1p104;
    }
    if (exact == 0 && got == 0 && std::signbit(exact) != std::signbit(got))
        return std::numeric_limits<double>::infinity();
    return std::abs(got - exact) / ulp(Dtype::kF32, exact);
}

}  // namespace

TEST_CASE("f32 functions are within 2 ulp, most of them within one, over all of f32, on every x86-64 level") {
    struct Bound {
        Op op;
        double units;
    };
    constexpr std::array kBounds = {
        Bound{Op::kExp, 1}, Bound{Op::kLog, 1}, Bound{Op::kLog1p, 1},  Bound{Op::kTanh, 1},      Bound{Op::kErf, 1.5},
        Bound{Op::kSin, 2}, Bound{Op::kCos, 2}, Bound{Op::kSqrt, 0.5}, Bound{Op::kRsqrt, 0.501}, Bound{Op::kFloor, 0}};
    std::vector<float> x = sweep();
    std::vector<float> y;
    for (const std::string& level : runnable({"x86-64-v2", "x86-64-v3", "native"})) {
        for (const auto& [op, units] : kBounds) {
            run(unary_kernel(op, Dtype::kF32), find_target(level), x, &y);
            double worst = 0;
            float worst_at = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                const double error = error_ulp(y[i], info(op).reference(x[i], 0, 0));
                if (!(error <= worst)) {
                    worst = error;
                    worst_at = x[i];
                }
            }
            MESSAGE(level, " ", info(op).name, ": ", worst, " ulp at ", worst_at);
            CHECK_MESSAGE(worst <= units, level, " ", info(op).name, " at ", worst_at);
        }
    }
}

TEST_CASE("e^x of what f16 has near 0 is the nearest f32, also where 1 + x is half-way between two") {
    constexpr float kSubnormal = 0x1p-24F;
    for (const std::string& level : runnable({"x86-64-v2", "x86-64-v3", "x86-64-v4", "native"})) {
        std::vector<float> x = {0, -0.0F};
        for (int times = 1; times < 2048; ++times) {
            x.push_back(static_cast<float>(times) * kSubnormal);
            x.push_back(static_cast<float>(-times) * kSubnormal);
        }
        std::vector<float> y;
        run(unary_kernel(Op::kExp, Dtype::kF32), find_target(level), x, &y);
        int wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) wrong += y[i] == static_cast<float>(std::exp(double{x[i]})) ? 0 : 1;
        CHECK_MESSAGE(wrong == 0, level);
    }
}

TEST_CASE("a narrow exponential errs by its argument's size, and takes every f32") {
    std::vector<float> x = sweep();
    std::vector<float> y;
    for (const std::string& level : runnable({"x86-64-v3", "x86-64-v4", "native"})) {
        run(unary_kernel(Op::kExp, Dtype::kF32, true), find_target(level), x, &y);
        int wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double units = 3 + 2 * std::min(150.0, std::abs(double{x[i]}));
            if (!(error_ulp(y[i], std::exp(double{x[i]})) <= units)) ++wrong;
        }
        CHECK_MESSAGE(wrong == 0, level);
        std::vector<float> ends = {0, -0.0F, std::numeric_limits<float>::infinity(),
                                   -std::numeric_limits<float>::infinity(), std::nanf("")};
        run(unary_kernel(Op::kExp, Dtype::kF32, true), find_target(level), ends, &y);
        CHECK(y[0] == 1);
        CHECK(y[1] == 1);
        CHECK(std::isinf(y[2]));
        CHECK(y[3] == 0);
        CHECK(std::isnan(y[4]));
    }
}

TEST_CASE("a rough exponential has 13 bits, and takes every f32") {
    std::vector<float> x = sweep();
    std::vector<float> y;
    for (const std::string& level : runnable({"x86-64-v3", "x86-64-v4", "native"})) {
        run(unary_kernel(Op::kExp, Dtype::kF32, true, false, true), find_target(level), x, &y);
        int wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double exact = std::exp(double{x[i]});
            const bool ordinary = std::isfinite(static_cast<float>(exact)) && std::isfinite(y[i]);
            const double bound = exact * 0x1.8p-14 + 0x1p-149;
            if (!(ordinary ? std::abs(y[i] - exact) <= bound : error_ulp(y[i], exact) == 0)) ++wrong;
        }
        CHECK_MESSAGE(wrong == 0, level);
        std::vector<float> ends = {0, -0.0F, -std::numeric_limits<float>::infinity()};
        run(unary_kernel(Op::kExp, Dtype::kF32, true, false, true), find_target(level), ends, &y);
        CHECK(y[0] == 1);
        CHECK(y[1] == 1);
        CHECK(y[2] == 0);
    }
}

TEST_CASE("a weight is within a unit of e^x down to e^-86, and 0 or no more than that below") {
    std::vector<float> x = sweep();
    std::erase_if(x, [](float v) { return v > 0; });
    std::vector<float> y;
    for (const std::string& level : runnable({"x86-64-v3", "x86-64-v4", "native"})) {
        run(unary_kernel(Op::kExp, Dtype::kF32, false, true), find_target(level), x, &y);
        int wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double exact = std::exp(double{x[i]});
            const bool nothing = x[i] < -86 && y[i] >= 0 && y[i] <= exact * 1.01 + 0x1p-149;
            if (!nothing && !(error_ulp(y[i], exact) <= 1)) ++wrong;
        }
        CHECK_MESSAGE(wrong == 0, level);
        std::vector<float> ends = {0, -0.0F, -std::numeric_limits<float>::infinity(), std::nanf("")};
        run(unary_kernel(Op::kExp, Dtype::kF32, false, true), find_target(level), ends, &y);
        CHECK(y[0] == 1);
        CHECK(y[1] == 1);
        CHECK(y[2] == 0);
        CHECK(std::isnan(y[3]));
    }
}

TEST_CASE("an exponential of what is bounded is within two thirds of a unit, and errs to neither side near 1") {
    std::vector<float> x = sweep();
    std::erase_if(x, [](float v) { return std::fabs(v) > 87; });  // which NaN is not
    const std::size_t swept = x.size();
    for (float d = -0.5F; d < 0.5F; d += 0x1.2p-19F) x.push_back(d);
    const std::size_t near_one = x.size() - swept;
    std::vector<float> y;
    for (const std::string& level : runnable({"x86-64-v2", "x86-64-v3", "x86-64-v4", "native"})) {
        run(unary_kernel(Op::kExp, Dtype::kF32, false, false, false, true), find_target(level), x, &y);
        int wrong = 0;
        double mean = 0;
        for (std::size_t i = 0; i < swept + near_one; ++i) {
            const double exact = std::exp(double{x[i]});
            if (!(error_ulp(y[i], exact) <= 0.75)) ++wrong;
            if (i >= swept) mean += (y[i] / exact - 1) / static_cast<double>(near_one);
        }
        CHECK_MESSAGE(wrong == 0, level);
        CHECK_MESSAGE(std::fabs(mean) < 0x1p-31, level, ": ", mean);
    }
}

TEST_CASE("powers of two that come to nothing are masked where a processor takes long over them") {
    const std::string intel =
        print_assembly(unary_kernel(Op::kExp, Dtype::kF32, true, false), find_target("x86-64-v4"));
    CHECK(intel.find("vscalefps") != std::string::npos);
    CHECK(intel.find("{z}") != std::string::npos);
}

TEST_CASE("a narrow logarithm errs by 2^-25 and a unit, and takes every f32") {
    std::vector<float> x = sweep();
    std::vector<float> y;
    for (const std::string& level : runnable({"x86-64-v3", "x86-64-v4", "native"})) {
        run(unary_kernel(Op::kLog, Dtype::kF32, true), find_target(level), x, &y);
        int wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double exact = std::log(double{x[i]});
            if (std::isfinite(exact) ? std::abs(y[i] - exact) > 0x1p-25 + ulp(Dtype::kF32, exact)
                                     : !(error_ulp(y[i], exact) == 0))
                ++wrong;
        }
        CHECK_MESSAGE(wrong == 0, level);
    }
}

TEST_CASE("tanh of every bf16 is within a unit of bf16, and odd") {
    std::vector<std::uint16_t> x(65536);
    std::iota(x.begin(), x.end(), 0);
    std::vector<std::uint16_t> y;
    for (const std::string& level : runnable({"x86-64-v3", "x86-64-v4", "native"})) {
        run(unary_kernel(Op::kTanh, Dtype::kBf16), find_target(level), x, &y);
        int wrong = 0;
        for (std::size_t i = 0; i < 32768; ++i) {
            const float in = bf16_to_f32(x[i]);
            const float out = bf16_to_f32(y[i]);
            if (std::isnan(in)
                    ? !std::isnan(out)
                    : std::abs(out - std::tanh(double{in})) > ulp(Dtype::kBf16, std::tanh(double{in})) * 0.51)
                ++wrong;
            if (!std::isnan(in) && y[i + 32768] != (y[i] | 0x8000)) ++wrong;
        }
        CHECK_MESSAGE(wrong == 0, level);
    }
}

TEST_CASE("zero keeps its sign through odd functions") {
    std::vector<float> x = {-0.0F, 0.0F};
    std::vector<float> y;
    for (const Op op : {Op::kTanh, Op::kErf, Op::kSqrt, Op::kLog1p}) {
        run(unary_kernel(op, Dtype::kF32), find_target("native"), x, &y);
        CHECK_MESSAGE(std::signbit(y[0]), info(op).name);
        CHECK_MESSAGE(!std::signbit(y[1]), info(op).name);
    }
}

TEST_CASE("f64 functions are libm's") {
    std::vector<double> x;
    for (int i = -2000; i < 2096; ++i) x.push_back(i * 0.01);
    std::vector<double> y;
    for (const Op op : {Op::kExp, Op::kLog, Op::kLog1p, Op::kTanh, Op::kErf, Op::kSin, Op::kCos}) {
        run(unary_kernel(op, Dtype::kF64), find_target("native"), x, &y);
        int wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double exact = info(op).reference(x[i], 0, 0);
            if (exact != y[i] && !(std::isnan(exact) && std::isnan(y[i]))) ++wrong;
        }
        CHECK_MESSAGE(wrong == 0, info(op).name);
    }
}

TEST_CASE("f32 rounds to bf16 and f16 as base/dtype.h does, with and without the instructions, in each width") {
    std::vector<float> x = sweep();
    std::vector<std::uint16_t> y;
    const std::array<std::pair<std::string, int>, 4> kinds = {
        {{"x86-64-v2", 16}, {"native", 16}, {"native", 32}, {"native", 64}}};
    for (const auto& [level, vector] : kinds) {
        for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
            run(cast_kernel(Dtype::kF32, dtype, vector), find_target(level), x, &y);
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                const std::uint16_t expected = dtype == Dtype::kBf16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
                const bool both_nan = std::isnan(x[i]) && std::isnan(load_element(dtype, &y[i]));
                if (y[i] != expected && !both_nan) ++wrong;
            }
            CHECK_MESSAGE(wrong == 0, level, " ", vector, " ", name(dtype));
        }
    }
}

TEST_CASE("a row over one number is as exact as by division, but where the remainder is a denormal") {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::vector<float> x = sweep();
    x.resize(x.size() / kColumns * kColumns);
    std::vector<float> y(x.size());
    const std::array tried = {1.0F,  3.0F,      -0.7F,    1.9999999F, 65537.0F,  0x1.2p-127F, 0x1p-149F, 0x1.fp126F,
                              -0.0F, kInfinity, 1.1e-38F, 3.4e38F,    8191.999F, 1e-20F,      1e20F,     std::nanf("")};
    for (const float divisor : tried) {
        std::vector<float> divisors(x.size() / kColumns, divisor);
        KernelWriter w("over_one", kColumns, 32);
        const int from = w.tensor("x", Dtype::kF32, {w.rows(), w.columns()});
        const int by = w.tensor("divisor", Dtype::kF32, {w.rows()});
        const int to = w.tensor("y", Dtype::kF32, {w.rows(), w.columns()}, true);
        w.open_loop();
        w.store(to, w.map(Op::kDiv, {w.load(from), w.load(by, {Access::Kind::kUniform})}, Dtype::kF32));
        w.close_loop();
        CpuRun run(w.kernel(), find_target("native"));
        const auto rows = static_cast<std::int64_t>(divisors.size());
        run.bind("x", x.data());
        run.bind("divisor", divisors.data());
        run.bind("y", y.data());
        run.bind_rows(rows, kColumns);
        run.bind("divisor_rows_stride", std::int64_t{1});
        run(0, rows);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double exact = double{x[i]} / divisor;
            // The remainder of a tiny number is a denormal, or zero.
            const bool tiny = std::abs(x[i]) < 0x1p-100F || std::abs(exact) < 0x1p-126;
            if (!(error_ulp(y[i], exact) <= (tiny ? 1.5 : 0.501))) ++wrong;
        }
        CHECK_MESSAGE(wrong == 0, divisor);
    }
}

TEST_CASE(
    "a quotient by numbers from 1 on has 23 bits where it is narrow, 13 where it is rough, and takes infinity and "
    "NaN") {
    std::vector<float> divisors = sweep();
    std::erase_if(divisors, [](float v) { return v < 1; });
    divisors.resize(divisors.size() / kColumns * kColumns);
    std::mt19937 random(3);
    std::uniform_real_distribution<float> sizes(-2, 2);
    std::vector<float> x(divisors.size());
    for (float& v : x) v = sizes(random);
    const auto wrong_of = [&](const std::string& level, bool rough) {
        KernelWriter w("narrow_quotient", kColumns, 32);
        const int from = w.tensor("x", Dtype::kF32, {w.rows(), w.columns()});
        const int by = w.tensor("divisor", Dtype::kF32, {w.rows(), w.columns()});
        const int to = w.tensor("y", Dtype::kF32, {w.rows(), w.columns()}, true);
        w.open_loop();
        w.store(to, w.map(Op::kDiv, {w.load(from), w.load(by)}, Dtype::kF32));
        for (Inst& inst : w.loop().body) {
            inst.narrow = inst.kind == InstKind::kMap;
            inst.rough = rough && inst.narrow;
        }
        w.close_loop();
        std::vector<float> y(x.size());
        CpuRun run(w.kernel(), find_target(level));
        const auto rows = static_cast<std::int64_t>(x.size()) / kColumns;
        run.bind("x", x.data());
        run.bind("divisor", divisors.data());
        run.bind("y", y.data());
        run.bind_rows(rows, kColumns);
        run(0, rows);
        int wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double exact = double{x[i]} / divisors[i];
            const double error = std::isnan(exact) == std::isnan(y[i]) ? std::abs(y[i] - exact) : 1;
            // Where the reciprocal is a denormal it has fewer bits.
            const double units = rough ? std::abs(exact) * 0x1.4p-14 + 0x1p-149 : 1.5 * ulp(Dtype::kF32, exact);
            const double bound = divisors[i] > 0x1p125F ? std::max(units, 0x1p-145) : units;
            if (!std::isnan(exact) && !(error <= bound)) ++wrong;
            if (std::isnan(exact) != std::isnan(y[i])) ++wrong;
        }
        return wrong;
    };
    for (const std::string& level : runnable({"x86-64-v3", "x86-64-v4", "native"})) {
        CHECK_MESSAGE(wrong_of(level, false) == 0, level);
        CHECK_MESSAGE(wrong_of(level, true) == 0, level);
    }
}

TEST_CASE("every bf16 and f16 survives a round trip through f32 and an exact operation") {
    std::vector<std::uint16_t> x;
    for (int bits = 0; bits < 65536; ++bits) x.push_back(static_cast<std::uint16_t>(bits));
    std::vector<float> wide;
    std::vector<std::uint16_t> y;
    for (const std::string& level : runnable({"x86-64-v2", "native"})) {
        for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
            run(cast_kernel(dtype, Dtype::kF32), find_target(level), x, &wide);
            run(unary_kernel(Op::kNeg, dtype), find_target(level), x, &y);
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                const double exact = load_element(dtype, &x[i]);
                if (std::isnan(exact)) {
                    if (!std::isnan(wide[i]) || !std::isnan(load_element(dtype, &y[i]))) ++wrong;
                } else if (wide[i] != exact || y[i] != (x[i] ^ 0x8000)) {
                    ++wrong;
                }
            }
            CHECK_MESSAGE(wrong == 0, level, " ", name(dtype));
        }
    }
}

TEST_CASE("f32 is converted to formats of eight bits, and each of their patterns back, as base/dtype.h does") {
    std::vector<float> x = sweep();
    std::vector<std::uint8_t> patterns(256);
    std::iota(patterns.begin(), patterns.end(), 0);
    std::vector<std::uint8_t> narrow;
    std::vector<float> wide;
    for (const Dtype dtype : {i8, e4m3, e5m2}) {
        run(cast_kernel(Dtype::kF32, dtype), find_target("native"), x, &narrow);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            std::uint8_t expected = 0;
            store_element(dtype, &expected, x[i]);
            // The sign of what is no number means nothing.
            if (narrow[i] != expected && !(std::isnan(load_element(dtype, &expected)) && (narrow[i] & 0x7F) == 0x7F))
                ++wrong;
        }
        run(cast_kernel(dtype, Dtype::kF32), find_target("native"), patterns, &wide);
        for (std::size_t i = 0; i < 256; ++i) {
            const double exact = load_element(dtype, &patterns[i]);
            if (wide[i] != exact && !(std::isnan(wide[i]) && std::isnan(exact))) ++wrong;
        }
        CHECK_MESSAGE(wrong == 0, name(dtype));
    }
}

TEST_CASE("f64 rounds to bf16 and f16 once, not through f32") {
    std::vector<double> x;
    std::mt19937_64 random(11);
    for (int i = 0; i < 200'000; ++i) {
        const double wide = std::bit_cast<double>(random());
        x.push_back(wide);
        // Near the middle of two neighbours, where a second rounding would show.
        const auto middle = std::bit_cast<float>((static_cast<std::uint32_t>(random()) & 0xBFFF0000U) | 0x8000U);
        x.push_back(middle * (1 + 0x1p-40));
        x.push_back(middle * (1 - 0x1p-40));
        const double half_way = 1 + (2 * static_cast<double>(random() % 1024) + 1) * 0x1p-11;
        x.push_back(half_way * (1 + 0x1p-40));
        x.push_back(half_way * (1 - 0x1p-40));
    }
    std::vector<std::uint16_t> y;
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
        run(cast_kernel(Dtype::kF64, dtype), find_target("native"), x, &y);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            std::uint16_t expected = 0;
            store_element(dtype, &expected, x[i]);
            if (y[i] != expected && !std::isnan(x[i])) ++wrong;
        }
        CHECK_MESSAGE(wrong == 0, name(dtype));
    }
}

TEST_CASE("floats truncate and saturate to integers, NaN becoming 0") {
    std::vector<float> x = {
        0.9F, -0.9F, 2.5F, -7.99F, 3e9F, -3e9F, 1e30F, std::nanf(""), -std::numeric_limits<float>::infinity()};
    const std::size_t count = x.size();
    std::vector<std::int32_t> y;
    run(cast_kernel(Dtype::kF32, Dtype::kI32), find_target("native"), x, &y);
    for (std::size_t i = 0; i < count; ++i) CHECK(y[i] == round_to(Dtype::kI32, x[i]));
}

}  // namespace rowjit
