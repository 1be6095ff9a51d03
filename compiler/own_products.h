// Products whose results one kernel reads, each row from the same row: that kernel makes the product itself, in tiles,
// and computes its rows on them while the next tiles are multiplied (templates/prelude_product.h). Nothing then stores
// the result and reads it again.
//
// The kernel may be any that reduces nothing, or the one of numbers of each tile's rows (plan/tile_sums.h), where tiles
// make the product (plan/tile_product.h). Of the others only products of chunks are taken: they fill a device with
// tiles whatever the rows of a launch, which are not known here, where for a few rows a library has smaller tiles.
#pragma once

#include <string>

#include "base/target.h"
#include "compiler/compile.h"

namespace rowjit {

// Takes those products out of the program's order and gives their kernels to the steps that read them. Notes say which,
// or of a product in a loop why not.
void take_own_products(Program* program, const Target& target);

// Whether a kernel that makes the tensor `in_tiles` runs the group, whose rows are of tiles.
bool runs_in_tiles(const Group& group, const std::string& in_tiles, const Target& target);

}  // namespace rowjit
