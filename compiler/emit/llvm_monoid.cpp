#include "compiler/emit/llvm_monoid.h"

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/MDBuilder.h>

#include <utility>

#include "base/check.h"
#include "compiler/emit/llvm_lanes.h"

namespace rowjit {
namespace {

using Builder = LaneBuilder;

llvm::Value* zero_like(llvm::Value* v) { return llvm::Constant::getNullValue(v->getType()); }
llvm::Value* one_like(llvm::Value* v) { return llvm::ConstantFP::get(v->getType(), 1); }

// The value that every other is at least (or at most) equal to.
llvm::Value* extreme(llvm::Type* type, bool lowest) {
    if (type->isFPOrFPVectorTy()) return llvm::ConstantFP::getInfinity(type, lowest);
    const unsigned bits = type->getScalarSizeInBits();
    return llvm::ConstantInt::get(type,
                                  lowest ? llvm::APInt::getSignedMinValue(bits) : llvm::APInt::getSignedMaxValue(bits));
}

// e^(from − to), 1 where they are equal, be it at −∞.
llvm::Value* rescaling(Builder& b, llvm::Value* from, llvm::Value* to) {
    llvm::Value* distance = b.CreateSelect(b.CreateFCmpOEQ(from, to), zero_like(from), b.CreateFSub(from, to));
    return llvm_math::exp(b, distance, nullptr, nullptr);
}

// Terms that may cancel are summed in f64 where the sum is compensated: a conversion and an addition for each half of a
// vector, where what an addition of f32 loses takes six. Others lose nothing to be seen when a few of them are added
// before that: rms_norm of 4096 f32 columns 47 GB/s in f64, 62 so.
bool sums_in_f64(const Accumulator& accumulator) {
    if (accumulator.monoid == Monoid::kExactSum) return true;
    return accumulator.compensated && !accumulator.positive && accumulator.monoid == Monoid::kSum;
}

llvm::Value* widened(Builder& b, llvm::Value* x) {
    return b.CreateFPExt(x, x->getType()->getWithNewType(b.getDoubleTy()));
}

llvm::Value* narrowed(Builder& b, llvm::Value* x) {
    return b.CreateFPTrunc(x, x->getType()->getWithNewType(b.getFloatTy()));
}

std::size_t at(int part) { return static_cast<std::size_t>(part); }

// Parts of a state: a sum, and what its roundings lost where that is carried.
struct SumParts {
    std::size_t sum;
    std::size_t lost;
};

// A divergence is two pairs of maximum and sum, and the sum of the ratios' logarithms by the first one's weights.
constexpr std::size_t kOther = 2;  // the second pair's maximum
constexpr SumParts kWeights = {1, 5};
constexpr SumParts kOtherWeights = {3, 6};
constexpr SumParts kRatios = {4, 7};

std::vector<SumParts> sums_of(Monoid monoid) {
    switch (monoid) {
        case Monoid::kSum:
        case Monoid::kExactSum: return {{0, 1}};
        case Monoid::kMaxSumExp: return {{1, 2}};
        case Monoid::kWelford: return {{1, 3}};
        case Monoid::kDivergence: return {kWeights, kOtherWeights, kRatios};
        case Monoid::kMax:
        case Monoid::kMin:
        case Monoid::kCrossEntropy:
        case Monoid::kWeighted:
        case Monoid::kEntropy:
        case Monoid::kGreatest:
        case Monoid::kMoments: break;
    }
    return {};
}

// Adds to a sum of the state; the loss by Knuth's two-sum, exact whichever term is larger.
void add_to_sum(Builder& b, const Accumulator& accumulator, FoldState* state, llvm::Value* x, SumParts parts) {
    llvm::Value*& total = (*state)[parts.sum];
    if (sums_in_f64(accumulator)) {
        total = b.CreateFAdd(total, x->getType() == total->getType() ? x : widened(b, x));
        return;
    }
    if (!accumulator.compensated) {
        total = llvm_math::add(b, total, x, nullptr);
        return;
    }
    llvm::Value*& lost = (*state)[parts.lost];
    llvm::Value* sum = b.CreateFAdd(total, x);
    llvm::Value* part = b.CreateFSub(sum, total);
    llvm::Value* of_total = b.CreateFSub(total, b.CreateFSub(sum, part));
    lost = b.CreateFAdd(lost, b.CreateFAdd(of_total, b.CreateFSub(x, part)));
    total = sum;
}

// To the only sum.
void add_to_sum(Builder& b, const Accumulator& accumulator, FoldState* state, llvm::Value* x) {
    add_to_sum(b, accumulator, state, x, sums_of(accumulator.monoid).front());
}

void add_sums(Builder& b, const Accumulator& accumulator, FoldState* left, const FoldState& right) {
    for (const SumParts parts : sums_of(accumulator.monoid)) {
        add_to_sum(b, accumulator, left, right[parts.sum], parts);
        if (!accumulator.compensated || sums_in_f64(accumulator)) continue;
        llvm::Value*& lost = (*left)[parts.lost];
        lost = b.CreateFAdd(lost, right[parts.lost]);
    }
}

// The parts of a state that its weights are measured from.
std::vector<std::size_t> origins_of(Monoid monoid) {
    if (monoid == Monoid::kDivergence) return {0, kOther};
    return monoid == Monoid::kMaxSumExp ? std::vector<std::size_t>{0} : std::vector<std::size_t>();
}

// Of terms that are all −∞ the weights are 0 from any finite origin.
llvm::Value* finite_origin(Builder& b, llvm::Value* maximum) {
    llvm::Value* lowest = extreme(maximum->getType(), true);
    return b.CreateSelect(b.CreateFCmpOEQ(maximum, lowest), zero_like(maximum), maximum);
}

void scale_sum(Builder& b, const Accumulator& accumulator, FoldState* state, SumParts parts, llvm::Value* factor) {
    (*state)[parts.sum] = b.CreateFMul((*state)[parts.sum], factor);
    if (accumulator.compensated) (*state)[parts.lost] = b.CreateFMul((*state)[parts.lost], factor);
}

// The state with its origins moved to `to`. Of a divergence all ratios' logarithms move by as much as both origins do,
// before they weigh less; of what weighs nothing any more an infinite one is nothing too.
FoldState moved(Builder& b, const Accumulator& accumulator, const FoldState& state,
                const std::vector<llvm::Value*>& to) {
    llvm::Value* factor = rescaling(b, state[0], to[0]);
    FoldState result = state;
    result[0] = to[0];
    if (accumulator.monoid == Monoid::kDivergence) {
        const auto step = [&](std::size_t origin, llvm::Value* raised) {
            return b.CreateFSub(finite_origin(b, raised), finite_origin(b, state[origin]));
        };
        llvm::Value* weights = state[kWeights.sum];
        if (accumulator.compensated) weights = b.CreateFAdd(weights, state[kWeights.lost]);
        llvm::Value* further = b.CreateFSub(step(kOther, to[1]), step(0, to[0]));
        add_to_sum(b, accumulator, &result, b.CreateFMul(weights, further), kRatios);
        scale_sum(b, accumulator, &result, kRatios, factor);
        llvm::Value* nothing = b.CreateFCmpOEQ(factor, zero_like(factor));
        for (const std::size_t part : {kRatios.sum, kRatios.lost}) {
            if (part < result.size()) result[part] = b.CreateSelect(nothing, zero_like(factor), result[part]);
        }
        scale_sum(b, accumulator, &result, kOtherWeights, rescaling(b, state[kOther], to[1]));
        result[kOther] = to[1];
    }
    scale_sum(b, accumulator, &result, sums_of(accumulator.monoid).front(), factor);
    return result;
}

// The second where either is NaN: one instruction.
llvm::Value* plain_extreme(Builder& b, bool greatest, llvm::Value* x, llvm::Value* y) {
    return b.CreateSelect(greatest ? b.CreateFCmpOGT(x, y) : b.CreateFCmpOLT(x, y), x, y);
}

// NaN where any is; one comparison tells of two terms, beside which a row's maximum would take one each.
llvm::Value* extreme_of(Builder& b, bool greatest, llvm::Value* state, const std::vector<Term>& terms) {
    if (!state->getType()->isFPOrFPVectorTy()) {
        for (const Term& term : terms) {
            state = greatest ? llvm_math::maximum(b, term.x, state, nullptr)
                             : llvm_math::minimum(b, term.x, state, nullptr);
        }
        return state;
    }
    // A register of AVX2 at a time: what comparisons of several make LLVM packs into bytes before it joins them.
    const unsigned lanes = cpu_lanes::width(state);
    if (b.cpu.avx2_alone && lanes > cpu_lanes::kYmmLanes) {
        const auto half = [&](unsigned from) {
            std::vector<Term> part;
            for (const Term& term : terms) part.push_back({cpu_lanes::lanes_of(b, term.x, from, lanes / 2)});
            return extreme_of(b, greatest, cpu_lanes::lanes_of(b, state, from, lanes / 2), part);
        };
        return cpu_lanes::joined(b, half(0), half(lanes / 2));
    }
    llvm::Value* none = nullptr;
    llvm::Value* most = nullptr;
    for (std::size_t i = 0; i < terms.size(); i += 2) {
        llvm::Value* x = terms[i].x;
        llvm::Value* y = i + 1 < terms.size() ? terms[i + 1].x : x;
        llvm::Value* unordered = b.CreateFCmpUNO(x, y);
        llvm::Value* more = x == y ? x : plain_extreme(b, greatest, x, y);
        none = none == nullptr ? unordered : b.CreateOr(none, unordered);
        most = most == nullptr ? more : plain_extreme(b, greatest, most, more);
    }
    return llvm_math::nan_where(b, none, plain_extreme(b, greatest, most, state));
}

// The greatest of all lanes in each, NaN if any is.
llvm::Value* greatest_lane(Builder& b, llvm::Value* v) {
    const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
    const int width = type != nullptr ? static_cast<int>(type->getNumElements()) : 1;
    // Every lane with the one at a distance of half, a quarter …: then all of them have the greatest of all.
    for (int distance = width / 2; distance > 0; distance /= 2) {
        std::vector<int> partners;
        for (int lane = 0; lane < width; ++lane) partners.push_back(lane ^ distance);
        v = llvm_math::maximum(b, v, b.CreateShuffleVector(v, partners), nullptr);
    }
    return v;
}

// `before` with its origins moved to the greatest of `terms` where any passes them: for all lanes together, some ten
// times a row, so that a branch around that is hardly ever missed, and a term costs an exponential and no more.
FoldState moved_past(Builder& b, const Accumulator& accumulator, const FoldState& before,
                     const std::vector<std::vector<Term>>& terms) {
    const std::vector<std::size_t> origins = origins_of(accumulator.monoid);
    std::vector<llvm::Value*> most;
    llvm::Value* passes = nullptr;
    for (std::size_t i = 0; i < origins.size(); ++i) {
        most.push_back(extreme_of(b, true, before[origins[i]], terms[i]));
        llvm::Value* more = b.CreateFCmpUGT(most[i], before[origins[i]]);
        passes = passes == nullptr ? more : b.CreateOr(passes, more);
    }
    if (passes->getType()->isVectorTy()) passes = b.CreateOrReduce(passes);
    llvm::BasicBlock* from = b.GetInsertBlock();
    llvm::Function* function = from->getParent();
    auto* move = llvm::BasicBlock::Create(b.getContext(), "move_origin", function);
    auto* add = llvm::BasicBlock::Create(b.getContext(), "add_weights", function);
    b.CreateCondBr(passes, move, add, llvm::MDBuilder(b.getContext()).createUnlikelyBranchWeights());

    b.SetInsertPoint(move);
    for (llvm::Value*& origin : most) origin = greatest_lane(b, origin);
    const FoldState after = moved(b, accumulator, before, most);
    move = b.GetInsertBlock();
    b.CreateBr(add);

    b.SetInsertPoint(add);
    FoldState state;
    for (std::size_t part = 0; part < before.size(); ++part) {
        llvm::PHINode* either = b.CreatePHI(before[part]->getType(), 2);
        either->addIncoming(before[part], from);
        either->addIncoming(after[part], move);
        state.push_back(either);
    }
    return state;
}

// e^(x − origin) added to a pair's sum. Narrow exponentials would not do: of few terms, as of the ranks of a
// vocabulary, 23 bits show in the logarithm, and so does what rounds the argument; of many that cancels out.
FoldState include_weights(Builder& b, const Accumulator& accumulator, const FoldState& before,
                          const std::vector<Term>& terms, bool of_many) {
    FoldState state = moved_past(b, accumulator, before, {terms});
    llvm::Value* origin = finite_origin(b, state[0]);
    std::vector<Term> weights;
    for (const Term& term : terms) {
        llvm::Value* distance = b.CreateFSub(term.x, origin);
        weights.push_back({of_many ? exp_in_sum(b, distance) : least_weight_or_exp(b, distance)});
    }
    add_to_sum(b, accumulator, &state, sum_of(b, weights));
    return state;
}

// The same of each term and of its factor, which is another row's element, and the first one's weight times the
// logarithm of what the two weights' ratio is, which is 0 where there is no weight.
FoldState include_ratios(Builder& b, const Accumulator& accumulator, const FoldState& before,
                         const std::vector<Term>& terms) {
    std::vector<Term> others;
    for (const Term& term : terms) others.push_back({term.factor});
    FoldState state = moved_past(b, accumulator, before, {terms, others});
    llvm::Value* origin = finite_origin(b, state[0]);
    llvm::Value* other_origin = finite_origin(b, state[kOther]);
    std::vector<Term> weights;
    std::vector<Term> other_weights;
    std::vector<Term> products;
    for (const Term& term : terms) {
        llvm::Value* logarithm = b.CreateFSub(term.x, origin);
        llvm::Value* other_logarithm = b.CreateFSub(term.factor, other_origin);
        llvm::Value* weight = least_weight_or_exp(b, logarithm);
        llvm::Value* ratio = b.CreateFSub(logarithm, other_logarithm);
        weights.push_back({weight});
        other_weights.push_back({least_weight_or_exp(b, other_logarithm)});
        products.push_back({weight, b.CreateSelect(weighs_nothing(b, logarithm), zero_like(ratio), ratio)});
    }
    add_to_sum(b, accumulator, &state, sum_of(b, weights), kWeights);
    add_to_sum(b, accumulator, &state, sum_of(b, other_weights), kOtherWeights);
    add_to_sum(b, accumulator, &state, sum_of(b, products), kRatios);
    return state;
}

}  // namespace

// Welford's third part counts the elements of each lane; an exact sum is one number of f64; the greatest are a list.
int fold_parts(const Accumulator& accumulator) {
    if (accumulator.monoid == Monoid::kGreatest) return 0;
    if (accumulator.monoid == Monoid::kExactSum) return 1;
    const int parts = accumulator.monoid == Monoid::kWelford ? 3 : components(accumulator.monoid);
    const bool loses = accumulator.compensated && !sums_in_f64(accumulator);
    return parts + (loses ? static_cast<int>(sums_of(accumulator.monoid).size()) : 0);
}

llvm::Type* fold_type(const Accumulator& accumulator, llvm::Type* carried) {
    if (!sums_in_f64(accumulator)) return carried;
    return carried->getWithNewType(llvm::Type::getDoubleTy(carried->getContext()));
}

FoldState fold_identity(const Accumulator& accumulator, llvm::Type* type) {
    FoldState state(at(fold_parts(accumulator)), llvm::Constant::getNullValue(fold_type(accumulator, type)));
    for (const std::size_t origin : origins_of(accumulator.monoid)) state[origin] = extreme(type, true);
    const bool lowest = accumulator.monoid == Monoid::kMax;
    if (lowest || accumulator.monoid == Monoid::kMin) state[0] = extreme(type, lowest);
    return state;
}

FoldState fold_include(Builder& b, const Accumulator& accumulator, const FoldState& before, llvm::Value* x) {
    FoldState state = before;
    switch (accumulator.monoid) {
        case Monoid::kSum:
        case Monoid::kExactSum: add_to_sum(b, accumulator, &state, x); return state;
        case Monoid::kMax: return {llvm_math::maximum(b, x, state[0], nullptr)};
        case Monoid::kMin: return {llvm_math::minimum(b, x, state[0], nullptr)};
        case Monoid::kMaxSumExp: {
            // One exponential either way: of the old sum's rescaling when x is the new maximum, else of x's own term.
            llvm::Value* greater = b.CreateFCmpOGT(x, state[0]);
            llvm::Value* low = b.CreateSelect(greater, state[0], x);
            llvm::Value* high = b.CreateSelect(greater, x, state[0]);
            llvm::Value* factor = rescaling(b, low, high);
            llvm::Value* scale = b.CreateSelect(greater, factor, one_like(x));
            state[0] = llvm_math::maximum(b, x, state[0], nullptr);
            state[1] = b.CreateFMul(state[1], scale);
            if (accumulator.compensated) state[2] = b.CreateFMul(state[2], scale);
            add_to_sum(b, accumulator, &state, b.CreateSelect(greater, one_like(x), factor));
            return state;
        }
        case Monoid::kWelford: {
            llvm::Value* seen = b.CreateFAdd(state[2], one_like(x));
            llvm::Value* distance = b.CreateFSub(x, state[0]);
            llvm::Value* mean = b.CreateFAdd(state[0], b.CreateFDiv(distance, seen));
            state[0] = mean;
            state[2] = seen;
            add_to_sum(b, accumulator, &state, b.CreateFMul(distance, b.CreateFSub(x, mean)));
            return state;
        }
        case Monoid::kDivergence:    // of two rows' elements
        case Monoid::kCrossEntropy:  // a GPU's, as the next three
        case Monoid::kWeighted:
        case Monoid::kEntropy:
        case Monoid::kMoments:
        case Monoid::kGreatest: break;  // llvm_greatest's
    }
    RJ_CHECK(false, "monoid {}", static_cast<int>(accumulator.monoid));
}

// Neighbours first, so that no sum is of more roundings than it must be. Of a pair's weights, which are positive, what
// that loses is at most as much as each has lost already, where two-sums of each would take six additions.
llvm::Value* sum_of(Builder& b, const std::vector<Term>& terms) {
    llvm::Value* products = nullptr;
    std::vector<llvm::Value*> sums;
    for (const Term& term : terms) {
        if (term.factor == nullptr) {
            sums.push_back(term.x);
        } else if (products == nullptr) {
            products = b.CreateFMul(term.x, term.factor);
        } else {
            products =
                b.CreateIntrinsic(llvm::Intrinsic::fmuladd, {term.x->getType()}, {term.x, term.factor, products});
        }
    }
    if (products != nullptr) sums.push_back(products);
    while (sums.size() > 1) {
        std::vector<llvm::Value*> halved;
        for (std::size_t i = 0; i + 1 < sums.size(); i += 2)
            halved.push_back(llvm_math::add(b, sums[i], sums[i + 1], nullptr));
        if (sums.size() % 2 == 1) halved.push_back(sums.back());
        sums = std::move(halved);
    }
    return sums.front();
}

bool folds_together(Monoid monoid) { return monoid != Monoid::kWelford; }

FoldState fold_include_all(Builder& b, const Accumulator& accumulator, const FoldState& before,
                           const std::vector<Term>& terms, bool of_many) {
    switch (accumulator.monoid) {
        case Monoid::kSum:
        case Monoid::kExactSum: {
            FoldState state = before;
            if (!sums_in_f64(accumulator)) {
                add_to_sum(b, accumulator, &state, sum_of(b, terms));
                return state;
            }
            std::vector<Term> wide;
            for (const Term& term : terms) wide.push_back({widened(b, term.x)});
            add_to_sum(b, accumulator, &state, sum_of(b, wide));
            return state;
        }
        case Monoid::kMax:
        case Monoid::kMin: return {extreme_of(b, accumulator.monoid == Monoid::kMax, before[0], terms)};
        case Monoid::kMaxSumExp: return include_weights(b, accumulator, before, terms, of_many);
        case Monoid::kDivergence: return include_ratios(b, accumulator, before, terms);
        case Monoid::kWelford:
        case Monoid::kCrossEntropy:
        case Monoid::kWeighted:
        case Monoid::kEntropy:
        case Monoid::kMoments:
        case Monoid::kGreatest: break;
    }
    RJ_CHECK(false, "monoid {} takes elements one by one", static_cast<int>(accumulator.monoid));
}

FoldState fold_merge(Builder& b, const Accumulator& accumulator, const FoldState& left, const FoldState& right) {
    FoldState merged = left;
    switch (accumulator.monoid) {
        case Monoid::kMax:
        case Monoid::kMin: return fold_include(b, accumulator, left, right[0]);
        case Monoid::kSum:
        case Monoid::kExactSum: add_sums(b, accumulator, &merged, right); return merged;
        case Monoid::kMaxSumExp:
        case Monoid::kDivergence: {
            std::vector<llvm::Value*> greatest;
            for (const std::size_t origin : origins_of(accumulator.monoid))
                greatest.push_back(llvm_math::maximum(b, left[origin], right[origin], nullptr));
            merged = moved(b, accumulator, left, greatest);
            add_sums(b, accumulator, &merged, moved(b, accumulator, right, greatest));
            return merged;
        }
        case Monoid::kWelford: {
            // Chan, Golub and LeVeque; two sides that saw nothing give 0 / 0, which the select drops.
            llvm::Value* total = b.CreateFAdd(left[2], right[2]);
            llvm::Value* none = b.CreateFCmpOEQ(right[2], zero_like(total));
            llvm::Value* share = b.CreateSelect(none, zero_like(total), b.CreateFDiv(right[2], total));
            llvm::Value* distance = b.CreateFSub(right[0], left[0]);
            llvm::Value* between = b.CreateFMul(b.CreateFMul(distance, distance), b.CreateFMul(left[2], share));
            merged[0] = b.CreateFAdd(left[0], b.CreateFMul(distance, share));
            merged[2] = total;
            add_sums(b, accumulator, &merged, right);
            add_to_sum(b, accumulator, &merged, between);
            return merged;
        }
        case Monoid::kCrossEntropy:
        case Monoid::kWeighted:
        case Monoid::kEntropy:
        case Monoid::kMoments:
        case Monoid::kGreatest: break;
    }
    RJ_CHECK(false, "monoid {}", static_cast<int>(accumulator.monoid));
}

void fold_level(Builder& b, const Accumulator& accumulator, std::vector<FoldState>* states) {
    std::vector<llvm::Value*> origins;
    for (const std::size_t origin : origins_of(accumulator.monoid)) {
        llvm::Value* greatest = states->front()[origin];
        for (const FoldState& state : *states) greatest = llvm_math::maximum(b, greatest, state[origin], nullptr);
        origins.push_back(greatest_lane(b, greatest));
    }
    if (origins.empty()) return;
    for (FoldState& state : *states) state = moved(b, accumulator, state, origins);
}

FoldState fold_merge_level(Builder& b, const Accumulator& accumulator, const FoldState& left, const FoldState& right) {
    if (origins_of(accumulator.monoid).empty()) return fold_merge(b, accumulator, left, right);
    FoldState merged = left;
    add_sums(b, accumulator, &merged, right);
    return merged;
}

std::vector<llvm::Value*> fold_finish(Builder& b, const Accumulator& accumulator, const FoldState& state) {
    if (accumulator.monoid == Monoid::kExactSum) {
        llvm::Value* rounded = narrowed(b, state[0]);
        return {rounded, narrowed(b, b.CreateFSub(state[0], widened(b, rounded)))};
    }
    std::vector<llvm::Value*> results(state.begin(), state.begin() + components(accumulator.monoid));
    const auto finite = [&](llvm::Value* v) {
        llvm::Value* size = b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v);
        return b.CreateFCmpOLT(size, llvm::ConstantFP::getInfinity(size->getType()));
    };
    if (sums_in_f64(accumulator)) {
        results[0] = narrowed(b, results[0]);
    } else if (accumulator.compensated) {
        // Beyond the finite numbers what was lost is NaN.
        for (const SumParts parts : sums_of(accumulator.monoid)) {
            llvm::Value*& sum = results[parts.sum];
            sum = b.CreateSelect(finite(sum), b.CreateFAdd(sum, state[parts.lost]), sum);
        }
    }
    // Eager subtracts the maximum from every element, itself included, which no infinity survives.
    for (const std::size_t origin : origins_of(accumulator.monoid)) {
        const auto survives = [&](std::size_t part) {
            llvm::Value* none = llvm::ConstantFP::getNaN(state[origin]->getType());
            results[part] = b.CreateSelect(finite(state[origin]), results[part], none);
        };
        survives(origin + 1);
        if (accumulator.monoid == Monoid::kDivergence) survives(kRatios.sum);
    }
    return results;
}

}  // namespace rowjit
