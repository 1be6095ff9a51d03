// The monoids of dsl/ops.h as LLVM IR: what an accumulator carries, and how it takes in an element, another accumulator
// and its end. All of it works on scalars and on vectors, lane by lane.
#pragma once

#include <vector>

#include "compiler/emit/llvm_math.h"
#include "compiler/kernel.h"

namespace rowjit {

// One value per part; the first components(monoid) of them are the result, to which a compensated sum adds its last
// part.
using FoldState = std::vector<llvm::Value*>;

int fold_parts(const Accumulator& accumulator);
// Of each part, where `carried` is the type of the elements.
llvm::Type* fold_type(const Accumulator& accumulator, llvm::Type* carried);

FoldState fold_identity(const Accumulator& accumulator, llvm::Type* type);
FoldState fold_include(LaneBuilder& builder, const Accumulator& accumulator, const FoldState& state, llvm::Value* x);
FoldState fold_merge(LaneBuilder& builder, const Accumulator& accumulator, const FoldState& left,
                     const FoldState& right);

// Whether several elements are taken in together for less than one by one: all but Welford's, whose mean moves with
// each.
bool folds_together(Monoid monoid);

// Takes in each of `terms`, all as wide as the state; or, of a sum, the products of pairs of them. The state's lanes
// then mean nothing one by one. Of a pair of so many that what each weight is off by cancels out, weights are of fewer
// instructions.
struct Term {
    llvm::Value* x;
    llvm::Value* factor = nullptr;
};
llvm::Value* sum_of(LaneBuilder& builder, const std::vector<Term>& terms);
FoldState fold_include_all(LaneBuilder& builder, const Accumulator& accumulator, const FoldState& state,
                           const std::vector<Term>& terms, bool of_many = false);

// One accumulator's states on vectors, brought to one origin across their lanes: once each, for less work and less
// error than at every step of a fold. fold_merge_level merges such states.
void fold_level(LaneBuilder& builder, const Accumulator& accumulator, std::vector<FoldState>* states);
FoldState fold_merge_level(LaneBuilder& builder, const Accumulator& accumulator, const FoldState& left,
                           const FoldState& right);

// The components of a complete fold.
std::vector<llvm::Value*> fold_finish(LaneBuilder& builder, const Accumulator& accumulator, const FoldState& state);

}  // namespace rowjit
