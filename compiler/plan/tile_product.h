// Which products a kernel makes itself, in tiles of shared memory (templates/prelude_product.h): of bf16 or f16, of two
// operands whose innermost axis is the contracted one.
#pragma once

#include <string>
#include <vector>

#include "compiler/plan/plan.h"

namespace rowjit {

// Columns of an access to a tile's row: 16 bytes.
inline constexpr int kTileAccess = 8;

struct TileOperand {
    std::string name;
    Dtype dtype = Dtype::kF32;
    std::vector<AxisId> axes;
    bool is_temporary = false;
};

struct TileProduct {
    TileOperand left;
    TileOperand right;
    TileOperand result;
    std::vector<AxisId> contracted;
};

// Why tiles do not make the product; "" where they do.
std::string no_tiles_reason(const TileProduct& product, const std::vector<AxisInfo>& axes,
                            const ColumnDivision& division);

}  // namespace rowjit
