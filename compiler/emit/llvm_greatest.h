// The greatest elements of a row and their places on the CPU (Monoid::kGreatest): a list in memory of as many keys as
// are asked for, in order, as of a GPU's warps (templates/prelude_greatest.h). An element and its place are one key, no
// two of which are equal: the element's bits in the order of numbers, NaN before them all, above its place from behind.
// Few elements of a row in no order pass the last of the list, so that most vectors cost a comparison.
#pragma once

#include "compiler/emit/llvm_math.h"

namespace rowjit {

// Keys of a row as it begins, and the element below which none is taken.
llvm::Type* greatest_type(LaneBuilder& builder, int count);
llvm::Constant* lowest_element(LaneBuilder& builder);

// Takes in those of `elements`, f32 lanes, that pass, which are at `places`, i32 lanes; gives the last element then.
llvm::Value* offer_elements(LaneBuilder& builder, llvm::Value* keys, int count, llvm::Value* elements,
                            llvm::Value* places);

llvm::Value* place_of(LaneBuilder& builder, llvm::Value* keys, int count, int rank);

}  // namespace rowjit
