#include "dsl/ops.h"

#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/dtype.h"
#include "base/philox.h"

namespace rowjit {
namespace {

double nan_min(double a, double b) { return std::isnan(a) || std::isnan(b) ? std::nan("") : std::fmin(a, b); }
double nan_max(double a, double b) { return std::isnan(a) || std::isnan(b) ? std::nan("") : std::fmax(a, b); }

// Seeds, offsets and positions up to 2^53 in size are exact here; a kernel's are 64-bit.
double uniform_at(double seed, double offset, double position) {
    const auto whole = [](double value) { return static_cast<std::int64_t>(round_to(Dtype::kI64, value)); };
    return philox_uniform(whole(seed), whole(offset), whole(position));
}

constexpr std::array kOps = {
#define ROWJIT_OP(enumerator, name, arity, types, reference, gpu, packed, cpu, ...)                        \
    OpInfo{Op::enumerator,                                                                                 \
           name,                                                                                           \
           arity,                                                                                          \
           OpTypes::types,                                                                                 \
           gpu,                                                                                            \
           packed,                                                                                         \
           []([[maybe_unused]] double a, [[maybe_unused]] double b, [[maybe_unused]] double c) -> double { \
               return reference;                                                                           \
           }},
#include "dsl/ops.def"
#undef ROWJIT_OP
};

struct MonoidRow {
    Monoid monoid;
    std::string_view name;
    int components;
    bool sums_exponentials = false;
};

constexpr std::array kMonoids = {
    MonoidRow{Monoid::kSum, "sum", 1},
    MonoidRow{Monoid::kMax, "max", 1},
    MonoidRow{Monoid::kMin, "min", 1},
    MonoidRow{Monoid::kMaxSumExp, "max_sum_exp", 2, true},
    MonoidRow{Monoid::kWelford, "welford", 2},
    MonoidRow{Monoid::kDivergence, "divergence", 5, true},
    MonoidRow{Monoid::kCrossEntropy, "cross_logarithms", 5, true},
    MonoidRow{Monoid::kWeighted, "weighted_logarithms", 4, true},
    MonoidRow{Monoid::kEntropy, "own_logarithms", 3, true},
    MonoidRow{Monoid::kGreatest, "greatest", 64},
    MonoidRow{Monoid::kMoments, "moments", 3},
    MonoidRow{Monoid::kExactSum, "exact_sum", 2},
};

}  // namespace

const OpInfo& info(Op op) { return kOps[static_cast<std::size_t>(op)]; }
std::span<const OpInfo> all_ops() { return kOps; }

std::optional<Op> find_op(std::string_view name) {
    for (const OpInfo& row : kOps) {
        if (row.name == name) return row.op;
    }
    return std::nullopt;
}

std::string_view name(Monoid monoid) { return kMonoids[static_cast<std::size_t>(monoid)].name; }
bool sums_exponentials(Monoid monoid) { return kMonoids[static_cast<std::size_t>(monoid)].sums_exponentials; }
int components(Monoid monoid) { return kMonoids[static_cast<std::size_t>(monoid)].components; }

Op operation(Monoid monoid) {
    switch (monoid) {
        case Monoid::kSum: return Op::kAdd;
        case Monoid::kMax: return Op::kMax;
        case Monoid::kMin: return Op::kMin;
        default: RJ_CHECK(false, "{} is no operation on two values", name(monoid));
    }
}

double neutral(Op operation) {
    switch (operation) {
        case Op::kAdd: return 0;
        case Op::kMax: return -std::numeric_limits<double>::infinity();
        case Op::kMin: return std::numeric_limits<double>::infinity();
        default: RJ_CHECK(false, "{} folds nothing", info(operation).name);
    }
}

Op exchanged(Op comparison) {
    switch (comparison) {
        case Op::kLt: return Op::kGt;
        case Op::kLe: return Op::kGe;
        case Op::kGt: return Op::kLt;
        case Op::kGe: return Op::kLe;
        default: return comparison;
    }
}

std::optional<Monoid> find_monoid(std::string_view name) {
    for (const MonoidRow& row : kMonoids) {
        if (row.name == name) return row.monoid;
    }
    return std::nullopt;
}

}  // namespace rowjit
