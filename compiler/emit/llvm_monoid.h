// The monoids of dsl/ops.h as LLVM IR: what an accumulator carries, and how it takes in an element, another accumulator
// and its end. All of it works on scalars and on vectors, lane by lane.
#pragma once

#include <vector>

#include "compiler/emit/llvm_math.h"

namespace rowjit {

// One value per part; the first components(monoid) of them are the result.
using FoldState = std::vector<llvm::Value*>;

int fold_parts(Monoid monoid);

FoldState fold_identity(Monoid monoid, llvm::Type* type);
FoldState fold_include(LaneBuilder& builder, Monoid monoid, const FoldState& state, llvm::Value* x);
FoldState fold_merge(LaneBuilder& builder, Monoid monoid, const FoldState& left, const FoldState& right);

// The components of a complete fold.
std::vector<llvm::Value*> fold_finish(LaneBuilder& builder, Monoid monoid, const FoldState& state);

}  // namespace rowjit
