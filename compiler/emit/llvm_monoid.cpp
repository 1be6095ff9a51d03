#include "compiler/emit/llvm_monoid.h"

#include <llvm/IR/Intrinsics.h>

#include "base/check.h"

namespace rowjit {
namespace {

using Builder = LaneBuilder;
using llvm::Value;

Value* zero_like(Value* v) { return llvm::Constant::getNullValue(v->getType()); }
Value* one_like(Value* v) { return llvm::ConstantFP::get(v->getType(), 1); }

// The value that every other is at least (or at most) equal to.
Value* extreme(llvm::Type* type, bool lowest) {
    if (type->isFPOrFPVectorTy()) return llvm::ConstantFP::getInfinity(type, lowest);
    const unsigned bits = type->getScalarSizeInBits();
    return llvm::ConstantInt::get(type,
                                  lowest ? llvm::APInt::getSignedMinValue(bits) : llvm::APInt::getSignedMaxValue(bits));
}

// e^(from − to), 1 where they are equal, be it at −∞.
Value* rescaling(Builder& b, Value* from, Value* to) {
    Value* distance = b.CreateSelect(b.CreateFCmpOEQ(from, to), zero_like(from), b.CreateFSub(from, to));
    return llvm_math::exp(b, distance, nullptr, nullptr);
}

}  // namespace

// Welford's third part counts the elements of each lane.
int fold_parts(Monoid monoid) { return monoid == Monoid::kWelford ? 3 : components(monoid); }

FoldState fold_identity(Monoid monoid, llvm::Type* type) {
    Value* zero = llvm::Constant::getNullValue(type);
    switch (monoid) {
        case Monoid::kSum: return {zero};
        case Monoid::kMax: return {extreme(type, true)};
        case Monoid::kMin: return {extreme(type, false)};
        case Monoid::kMaxSumExp: return {extreme(type, true), zero};
        case Monoid::kWelford: return {zero, zero, zero};
    }
    RJ_CHECK(false, "monoid {}", static_cast<int>(monoid));
}

FoldState fold_include(Builder& b, Monoid monoid, const FoldState& state, Value* x) {
    switch (monoid) {
        case Monoid::kSum: return {llvm_math::add(b, state[0], x, nullptr)};
        case Monoid::kMax: return {llvm_math::maximum(b, x, state[0], nullptr)};
        case Monoid::kMin: return {llvm_math::minimum(b, x, state[0], nullptr)};
        case Monoid::kMaxSumExp: {
            // One exponential either way: of the old sum's rescaling when x is the new maximum, else of x's own term.
            Value* greater = b.CreateFCmpOGT(x, state[0]);
            Value* low = b.CreateSelect(greater, state[0], x);
            Value* high = b.CreateSelect(greater, x, state[0]);
            Value* factor = rescaling(b, low, high);
            Value* scaled = b.CreateSelect(greater, b.CreateFMul(state[1], factor), state[1]);
            Value* term = b.CreateSelect(greater, one_like(x), factor);
            return {llvm_math::maximum(b, x, state[0], nullptr), b.CreateFAdd(scaled, term)};
        }
        case Monoid::kWelford: {
            Value* seen = b.CreateFAdd(state[2], one_like(x));
            Value* distance = b.CreateFSub(x, state[0]);
            Value* mean = b.CreateFAdd(state[0], b.CreateFDiv(distance, seen));
            Value* squares = b.CreateFAdd(state[1], b.CreateFMul(distance, b.CreateFSub(x, mean)));
            return {mean, squares, seen};
        }
    }
    RJ_CHECK(false, "monoid {}", static_cast<int>(monoid));
}

FoldState fold_merge(Builder& b, Monoid monoid, const FoldState& left, const FoldState& right) {
    switch (monoid) {
        case Monoid::kSum:
        case Monoid::kMax:
        case Monoid::kMin: return fold_include(b, monoid, left, right[0]);
        case Monoid::kMaxSumExp: {
            Value* maximum = llvm_math::maximum(b, left[0], right[0], nullptr);
            return {maximum, b.CreateFAdd(b.CreateFMul(left[1], rescaling(b, left[0], maximum)),
                                          b.CreateFMul(right[1], rescaling(b, right[0], maximum)))};
        }
        case Monoid::kWelford: {
            // Chan, Golub and LeVeque; two sides that saw nothing give 0 / 0, which the select drops.
            Value* total = b.CreateFAdd(left[2], right[2]);
            Value* none = b.CreateFCmpOEQ(right[2], zero_like(total));
            Value* share = b.CreateSelect(none, zero_like(total), b.CreateFDiv(right[2], total));
            Value* distance = b.CreateFSub(right[0], left[0]);
            Value* mean = b.CreateFAdd(left[0], b.CreateFMul(distance, share));
            Value* between = b.CreateFMul(b.CreateFMul(distance, distance), b.CreateFMul(left[2], share));
            return {mean, b.CreateFAdd(b.CreateFAdd(left[1], right[1]), between), total};
        }
    }
    RJ_CHECK(false, "monoid {}", static_cast<int>(monoid));
}

std::vector<Value*> fold_finish(Builder& b, Monoid monoid, const FoldState& state) {
    std::vector<Value*> results(state.begin(), state.begin() + components(monoid));
    if (monoid == Monoid::kMaxSumExp) {
        // Eager subtracts the maximum from every element, itself included, which no infinity survives.
        Value* size = b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, state[0]);
        Value* finite = b.CreateFCmpOLT(size, llvm::ConstantFP::getInfinity(size->getType()));
        results[1] = b.CreateSelect(finite, state[1], llvm::ConstantFP::getNaN(size->getType()));
    }
    return results;
}

}  // namespace rowjit
