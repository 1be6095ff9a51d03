// The matrix products of one launch: axes that follow each other without gaps are one for the library, which is called
// for each position along those that do not.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/launch_plan.h"
#include "runtime/launch_refusal.h"

namespace rowjit {

LaunchPlan::Side LaunchPlan::side_of(const std::vector<ProductAxis>& axes, int first, int second,
                                     const Resolved& resolved) const noexcept {
    Side side;
    const auto stride = [&](const ProductAxis::Stride& from, int tensor) {
        return from.row >= 0 ? resolved.row_strides[tensor][from.row] : from.columns;
    };
    for (std::size_t i = axes.size(); i-- > 0;) {
        const ProductAxis& axis = axes[i];
        const std::int64_t extent = axis.extent_place >= 0 ? resolved.extents[axis.extent_place] : axis.extent;
        const std::int64_t step = stride(axis.first, first);
        const std::int64_t other = stride(axis.second, second);
        if (extent == 0) side.empty = true;
        if (side.extent == 1) {
            if (extent == 1 && i > 0) continue;
            side = {extent, step, other, {}, 0, side.empty};
        } else if (extent != 1) {
            if (step == side.first * side.extent && other == side.second * side.extent && side.outer_count == 0) {
                side.extent *= extent;
            } else {
                side.outer[side.outer_count++] = {extent, step, other};
            }
        }
    }
    // Blocks and the columns within are one side.
    const auto is_blocks = [](const ProductAxis& axis) { return axis.is_blocks; };
    if (std::any_of(axes.begin(), axes.end(), is_blocks)) side.extent -= resolved.columns_short;
    return side;
}

// Of a loop the chunks before the last have as many positions as each other; only those in blocks of columns may
// differ, and blocks are no open side of a product.
std::size_t LaunchPlan::gemm_workspace_bytes(const Resolved& whole) const noexcept {
    std::size_t most = 0;
    const auto add = [&](int loop, const Resolved& resolved) {
        for (const ProductLaunch& product : products_) {
            if (product.loop != loop) continue;
            const ProductStep& step = *product.step;
            const GemmShape shape = {side_of(product.m, step.left, step.result, resolved).extent,
                                     side_of(product.n, step.right, step.result, resolved).extent,
                                     side_of(product.k, step.left, step.right, resolved).extent};
            for (const Gemm* gemm : {product.to_result.get(), product.to_accumulator.get()}) {
                if (gemm != nullptr) most = std::max(most, gemm->workspace_bytes(shape));
            }
        }
    };
    add(kOutside, whole);
    for (std::size_t loop = 0; loop < program_.loops.size(); ++loop) {
        Resolved part = whole;
        const std::int64_t all = whole.extents[loop_places_[loop]];
        const std::int64_t each = std::min(all, whole.loops[loop].positions);
        for (const std::int64_t positions : {each, all - (whole.loops[loop].chunks - 1) * each}) {
            part.extents[loop_places_[loop]] = positions;
            add(static_cast<int>(loop), part);
        }
    }
    return most;
}

Status LaunchPlan::multiply(const ProductLaunch& product, const Resolved& resolved, std::int64_t start,
                            StreamHandle stream) const noexcept {
    const ProductStep& step = *product.step;
    const bool several = product.sums_chunks && resolved.loops[product.loop].chunks > 1;
    const bool accumulates = several && step.accumulator >= 0;
    const int target = accumulates ? step.accumulator : step.result;
    const Gemm& gemm = accumulates ? *product.to_accumulator : *product.to_result;
    const Side m = side_of(product.m, step.left, target, resolved);
    const Side n = side_of(product.n, step.right, target, resolved);
    const Side k = side_of(product.k, step.left, step.right, resolved);
    if (m.empty || n.empty) return {};
    const bool dense = (product.left_transposed ? m.extent == 1 || m.first == 1 : k.extent == 1 || k.first == 1) &&
                       (product.right_transposed ? k.extent == 1 || k.second == 1 : n.extent == 1 || n.first == 1) &&
                       (n.extent == 1 || n.second == 1);
    if (!dense) {
        return refuse(ErrorCode::kInvalidArgument,
                      "matmul {}: the innermost axes of '{}' and '{}' must be contiguous; copy the one that is not",
                      step.name, program_.tensors[static_cast<std::size_t>(step.left)].name,
                      program_.tensors[static_cast<std::size_t>(step.right)].name);
    }
    GemmShape shape = {m.extent,
                       n.extent,
                       k.empty ? 0 : k.extent,
                       product.left_transposed ? k.first : m.first,
                       product.right_transposed ? n.first : k.second,
                       m.second};
    // Rows of an accumulator in the result's memory are a product of their own.
    const std::int64_t shared = accumulates && resolved.loops[product.loop].shared ? product.shared.rows : 0;
    GemmShape in_result_shape = shape;
    in_result_shape.m = shared;
    shape.m -= shared;
    const bool adds = (several && start > 0) || (step.accumulate && !accumulates);
    const auto bytes_of = [&](int tensor) {
        return static_cast<std::int64_t>(tensors_[static_cast<std::size_t>(tensor)].element_bytes);
    };
    std::int64_t at[3][Arguments::kMaxRowAxes] = {};  // of the outer axes of m, n and k
    const Side* const sides[3] = {&m, &n, &k};
    while (true) {
        std::int64_t left = 0;
        std::int64_t right = 0;
        std::int64_t result = 0;
        bool first_term = true;
        for (int i = 0; i < m.outer_count; ++i) {
            left += at[0][i] * m.outer[i].first;
            result += at[0][i] * m.outer[i].second;
        }
        for (int i = 0; i < n.outer_count; ++i) {
            right += at[1][i] * n.outer[i].first;
            result += at[1][i] * n.outer[i].second;
        }
        for (int i = 0; i < k.outer_count; ++i) {
            left += at[2][i] * k.outer[i].first;
            right += at[2][i] * k.outer[i].second;
            first_term = first_term && at[2][i] == 0;
        }
        GemmCall call;
        call.left = static_cast<const std::byte*>(resolved.data[step.left]) + left * bytes_of(step.left);
        call.right = static_cast<const std::byte*>(resolved.data[step.right]) + right * bytes_of(step.right);
        call.result = static_cast<std::byte*>(resolved.data[target]) + result * bytes_of(target);
        call.add = adds || !first_term;
        call.workspace = resolved.gemm_workspace;
        const auto element_bytes = static_cast<std::size_t>(bytes_of(target));
        const char* refused = nullptr;
        if (shared > 0) {
            GemmCall in_result = call;
            in_result.result = static_cast<std::byte*>(resolved.data[step.result]) + product.shared.offset_bytes +
                               result * bytes_of(target);
            refused = queue(gemm, in_result_shape, in_result, element_bytes, stream);
            call.left = static_cast<const std::byte*>(call.left) + shared * m.first * bytes_of(step.left);
        }
        if (refused == nullptr) refused = queue(gemm, shape, call, element_bytes, stream);
        if (refused != nullptr) return refuse(ErrorCode::kLaunch, "matmul {}: {}", step.name, refused);
        // The next place of the outer axes, those of k first.
        int side = 2;
        int axis = 0;
        while (side >= 0) {
            if (axis == sides[side]->outer_count) {
                --side;
                axis = 0;
                continue;
            }
            if (++at[side][axis] < sides[side]->outer[axis].extent) break;
            at[side][axis++] = 0;
        }
        if (side < 0) return {};
    }
}

Status LaunchPlan::find_own_sides(const Launch& launch, const Resolved& resolved, OwnSides* own) const noexcept {
    constexpr int kBoxColumns = 64;  // rows of 128 bytes, as prelude_product.h has them
    const ProductLaunch& product = products_[static_cast<std::size_t>(launch.product)];
    const ProductStep& step = *product.step;
    const Side rows = side_of(product.m, step.left, step.result, resolved);
    const Side columns = side_of(product.n, step.right, step.result, resolved);
    const Side depth = side_of(product.k, step.left, step.right, resolved);
    const bool dense = rows.outer_count + columns.outer_count == 0 && depth.first == 1 && depth.second == 1;
    if (!dense) {
        return refuse(ErrorCode::kInvalidArgument,
                      "matmul {}: the rows of '{}' and '{}' must each be contiguous; copy the one whose are not",
                      step.name, program_.tensors[static_cast<std::size_t>(step.left)].name,
                      program_.tensors[static_cast<std::size_t>(step.right)].name);
    }
    own->extents[0] = rows.extent;
    own->extents[1] = columns.extent;
    own->extents[2] = depth.extent;
    const auto map = [&](int tensor, const Side& side, int box_rows, TensorMap* operand) {
        return device_->map_matrix({.address = resolved.data[tensor],
                                    .rows = side.extent,
                                    .columns = depth.extent,
                                    .row_stride = side.extent == 1 ? depth.extent : side.first,
                                    .box_rows = box_rows,
                                    .box_columns = kBoxColumns,
                                    .dtype = program_.tensors[static_cast<std::size_t>(tensor)].dtype},
                                   operand);
    };
    const char* refused = map(step.left, rows, OwnProduct::kTileRows, &own->operands[0]);
    // Of a tile's columns each block of a cluster copies half.
    if (refused == nullptr)
        refused = map(step.right, columns, OwnProduct::kTileColumns / OwnProduct::kClusterBlocks, &own->operands[1]);
    if (refused != nullptr) return refuse(ErrorCode::kLaunch, "matmul {}: {}", step.name, refused);
    const auto tiles = [](std::int64_t extent, std::int64_t of) { return (extent + of - 1) / of; };
    const std::int64_t clusters =
        std::min(launch.kernel->most_row_blocks,
                 tiles(rows.extent, std::int64_t{OwnProduct::kTileRows} * OwnProduct::kClusterBlocks) *
                     tiles(columns.extent, OwnProduct::kTileColumns));
    own->blocks = static_cast<std::uint32_t>(clusters * OwnProduct::kClusterBlocks);
    return {};
}

const char* LaunchPlan::queue(const Gemm& gemm, const GemmShape& shape, const GemmCall& call, std::size_t element_bytes,
                              StreamHandle stream) const noexcept {
    if (shape.k > 0) return gemm.queue(shape, call, stream);
    return call.add ? nullptr : clear(call.result, element_bytes, shape, stream);
}

// A sum over no rows.
const char* LaunchPlan::clear(void* result, std::size_t element_bytes, const GemmShape& shape,
                              StreamHandle stream) const noexcept {
    try {
        const bool dense = shape.m == 1 || shape.result_stride == shape.n;
        const std::int64_t rows = dense ? 1 : shape.m;
        const std::int64_t columns = dense ? shape.m * shape.n : shape.n;
        for (std::int64_t row = 0; row < rows; ++row) {
            auto* at =
                static_cast<std::byte*>(result) + row * shape.result_stride * static_cast<std::int64_t>(element_bytes);
            device_->fill(at, 0, static_cast<std::size_t>(columns) * element_bytes, stream);
        }
        return nullptr;
    } catch (const std::exception&) {
        return "the device refused to write zeros";
    }
}

}  // namespace rowjit
