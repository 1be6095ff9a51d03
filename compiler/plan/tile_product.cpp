#include "compiler/plan/tile_product.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/dtype.h"

namespace rowjit {
namespace {

constexpr std::int64_t kRowBytes = 16;  // what a matrix's address and rows are multiples of, as boxes are copied of it

std::vector<AxisId> kept_axes(const TileProduct& product) {
    std::vector<AxisId> kept;
    for (const TileOperand* operand : {&product.left, &product.right}) {
        for (const AxisId axis : operand->axes) {
            if (!contains(product.contracted, axis)) kept.push_back(axis);
        }
    }
    return kept;
}

}  // namespace

std::string no_tiles_reason(const TileProduct& product, const std::vector<AxisInfo>& axes,
                            const ColumnDivision& division) {
    const auto& [left, right, result, contracted] = product;
    const auto axis = [&](AxisId id) -> const AxisInfo& { return axes[static_cast<std::size_t>(id)]; };
    if (!result.is_temporary) return fmt::format("{} is no temporary", result.name);
    const bool narrow = result.dtype == Dtype::kBf16 || result.dtype == Dtype::kF16;
    if (!narrow || left.dtype != result.dtype || right.dtype != result.dtype)
        return "tiles are of bf16 or f16, as both operands";
    const AxisId depth = contracted.front();
    if (contracted.size() != 1 || left.axes.back() != depth || right.axes.back() != depth || axis(depth).is_row)
        return "tiles are of operands whose innermost axis is the contracted one, of columns";
    if (axis(depth).extent * static_cast<std::int64_t>(size_bytes(result.dtype)) % kRowBytes != 0)
        return fmt::format("rows of {} elements are no multiple of {} bytes", axis(depth).extent, kRowBytes);
    // One stride from row to row, whatever a launch gives.
    if (left.axes.size() != 2 && !left.is_temporary)
        return fmt::format("the rows of {} need not follow each other", left.name);
    const bool in_blocks = right.axes.size() == 3 && right.axes[0] == division.blocks &&
                           right.axes[1] == division.within && axis(right.axes[1]).extent == kProductTileColumns;
    const bool plain = right.axes.size() == 2 && !axis(right.axes[0]).is_row;
    if (!plain && !in_blocks) return fmt::format("the columns of {} are of several axes", right.name);
    return kept_axes(product) == result.axes ? "" : fmt::format("the axes of {} have another order", result.name);
}

}  // namespace rowjit
