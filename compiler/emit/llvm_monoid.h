// The monoids of dsl/ops.h as LLVM IR: what an accumulator carries, and how it takes in an element, another accumulator
// and its end. All of it works on scalars and on vectors, lane by lane.
#pragma once

#include <vector>

#include "dsl/ops.h"

namespace llvm {
class IRBuilderBase;
class Type;
class Value;
}  // namespace llvm

namespace rowjit {

// One value per part; the first components(monoid) of them are the result.
using FoldState = std::vector<llvm::Value*>;

int fold_parts(Monoid monoid);

FoldState fold_identity(Monoid monoid, llvm::Type* type);
FoldState fold_include(llvm::IRBuilderBase& builder, Monoid monoid, const FoldState& state, llvm::Value* x);
FoldState fold_merge(llvm::IRBuilderBase& builder, Monoid monoid, const FoldState& left, const FoldState& right);

// The components of a complete fold.
std::vector<llvm::Value*> fold_finish(llvm::IRBuilderBase& builder, Monoid monoid, const FoldState& state);

}  // namespace rowjit
