// Rows that follow each other in registers, and their columns: what has a row's neighbours in its lanes is of rows that
// lie one behind the other in memory, of any number of columns.
#pragma once

#include <vector>

#include "compiler/emit/llvm_math.h"

namespace rowjit {

// Of n vectors of a power of two of lanes, which one after the other are as many rows of n elements: the vectors of
// their columns, a row in each lane. And back.
std::vector<llvm::Value*> columns_of_rows(LaneBuilder& builder, std::vector<llvm::Value*> rows);
std::vector<llvm::Value*> rows_of_columns(LaneBuilder& builder, std::vector<llvm::Value*> columns);

}  // namespace rowjit
