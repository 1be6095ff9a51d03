// Rows of a kernel that makes its own product (Kernel::product): those of half a tile at a time, in the order in which
// tiles are made (templates/prelude_product.h). What a row reads of the product it reads from the tile.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "compiler/emit/gpu_emitter.h"

namespace rowjit::gpu_emit {

void KernelEmitter::product_geometry() {
    out_.line(fmt::format("const int t = rj_thread() % {};", scope_.threads()), "thread of the row");
    out_.line(fmt::format("const int row_in_block = rj_product_thread() / {};", scope_.threads()));
    const KernelTensor& result = kernel_.tensors[static_cast<std::size_t>(kernel_.product->tensor)];
    out_.line(fmt::format("rj_product<{}> product(product_left, product_right, product_rows, product_columns, "
                          "product_depth);",
                          gpu_storage_type(result.dtype)),
              "all of it, in the warps that have no rows");
    out_.line(fmt::format("static_assert(product.kBytes <= {});", OwnProduct::kSharedBytes));
}

// The threads of a warp have four rows side by side and come round as often as each other: they meet in shuffles.
void KernelEmitter::tile_rows() {
    out_.open("for (auto tile = product.first(); product.take(tile); product.give_back(tile))");
    out_.open(fmt::format("for (int row_of_half = row_in_block; row_of_half < rj_half_rows; row_of_half += {})",
                          scope_.rows()));
    out_.line("const bool live = tile.row + row_of_half < product_rows;");
    out_.line("const long long row = live ? tile.row + row_of_half : product_rows - 1;", "of the product");
    std::string tile_row = "product.row(tile, row_of_half)";
    std::vector<AxisId> rows = kernel_.row_axes;
    if (kernel_.product->in_blocks) {
        scope_.bind_axis(rows.back(), "tile.tile_column");
        rows.pop_back();
    } else {
        out_.line("const int column_block = static_cast<int>(tile.tile_column);");
        tile_row += fmt::format(" - column_block * {}", OwnProduct::kTileColumns);
    }
    const KernelTensor& result = kernel_.tensors[static_cast<std::size_t>(kernel_.product->tensor)];
    out_.line(fmt::format("const {}* const tile_row = {};", gpu_storage_type(result.dtype), tile_row));
    scope_.set_live("live");
    scope_.declare_coordinates("row", rows);
    const bool asks = kernel_.product->inside >= 0;
    if (asks)
        out_.open("const auto row_of_tile = [&](auto whole)", "a tile all of whose columns there are, or the last");
    scope_.declare_states(false);
    for (const Stmt& stmt : kernel_.body) statement(stmt);
    if (asks) {
        out_.close(";");
        out_.line(
            fmt::format("(tile.tile_column + 1) * {} <= product_columns ? row_of_tile(rj_constant<true>()) : "
                        "row_of_tile(rj_constant<false>());",
                        OwnProduct::kTileColumns));
    }
    out_.close();
    out_.close();
    out_.line("product.close();");
}

}  // namespace rowjit::gpu_emit
