// The primitive operations as data: the rows of ops.def, and what is derived from them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "rowjit/dtype.h"

namespace rowjit {

enum class Op : std::uint8_t {
#define ROWJIT_OP(enumerator, name, arity, types, reference, gpu, packed, cpu, ...) enumerator,
#include "dsl/ops.def"
#undef ROWJIT_OP
};

enum class OpTypes : std::uint8_t { kFloat, kNumber, kWhole, kCompare, kLogic, kSelect, kRandom };

struct OpInfo {
    Op op;
    std::string_view name;
    int arity;
    OpTypes types;
    std::string_view gpu;     // fmt pattern over the operands
    std::string_view packed;  // likewise over words of two, "" where there is none
    double (*reference)(double a, double b, double c);
};

const OpInfo& info(Op op);
std::span<const OpInfo> all_ops();
std::optional<Op> find_op(std::string_view name);

// The associative operations a Reduce folds with. The last two carry pairs, so that a row that does not fit on chip is
// read once; the planner introduces them (compiler/plan/online.h), and a Reduce node picks one component.
enum class Monoid : std::uint8_t {
    kSum,
    kMax,  // NaN if any element is NaN
    kMin,
    kMaxSumExp,  // over x: component 0 is max x, component 1 is Σ exp(x − max x)
    kWelford,    // over x: component 0 is the mean, component 1 is Σ (x − mean)²
    // Over x beside y, by the planner alone: max x, Σ exp(x − max x), max y, Σ exp(y − max y), and
    // Σ exp(x − max x)·((x − max x) − (y − max y)), to which columns without weight add 0.
    kDivergence,
    // Likewise, with Σ exp(x − max x)·(y − max y).
    kCrossEntropy,
    // Of x beside weights w, by the planner alone: max x, Σ exp(x − max x), Σ w and Σ w·(x − max x).
    kWeighted,
    // Over x, by the planner alone: max x, Σ exp(x − max x) and Σ exp(x − max x)·(x − max x), to which columns without
    // weight add 0.
    kEntropy,
    // Of x beside i32 places, by the planner alone: component r is the place of the element that comes r-th, the
    // greatest first, NaN before all numbers, and of equal ones the one of the least place first.
    kGreatest,
    // Over rows, by the planner alone: Σ x, Σ (x − mean)² and how many x there are.
    kMoments,
    // Of f32, by the planner alone: Σ x to which terms of full width lose nothing, and what rounding that to f32 lost.
    kExactSum,
};

std::string_view name(Monoid monoid);
// Whether one of its components is Σ exp(x − max x).
bool sums_exponentials(Monoid monoid);
// What folds two values into one, of a sum, a maximum or a minimum, and the float that it folds into any to give that.
Op operation(Monoid monoid);
double neutral(Op operation);
// The comparison of b with a that comes to what this one of a with b does.
Op exchanged(Op comparison);
std::optional<Monoid> find_monoid(std::string_view name);
// Values a reduction yields: 1, 2 for the pairs and an exact sum, 5 for a divergence, of the greatest as many as are
// asked for, at most these.
int components(Monoid monoid);

// What a sum of such values is carried in: f32 for the narrow floats, whose total is rounded once.
constexpr Dtype accumulator_dtype(Dtype dtype) { return is_narrow(dtype) ? Dtype::kF32 : dtype; }

}  // namespace rowjit
