#include "dsl/tensor.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "base/dtype.h"
#include "base/fail.h"

namespace rowjit {
namespace {

Layout layout(const GraphData& graph, std::string_view what, Dtype dtype, const std::vector<AxisId>& axes,
              const std::vector<std::int64_t>& column_strides, const std::vector<std::int64_t>& promoted_strides,
              const RowExtents& rows, const std::vector<std::int64_t>& row_strides) {
    Layout result{.dtype = dtype};
    std::size_t row_axes = 0;
    for (const AxisId axis : axes) {
        result.extents.push_back(extent_of(graph, axis, rows));
        row_axes += graph.axis(axis).is_row ? 1 : 0;
    }
    if (!row_strides.empty() && row_strides.size() != row_axes) {
        fail(ErrorCode::kInvalidArgument, "{}: {} row strides for {} row axes", what, row_strides.size(), row_axes);
    }
    // From the innermost axis out: declared strides where there are some, else just past what lies inside.
    result.strides.resize(axes.size());
    std::int64_t inside = 1;
    std::size_t promoted = promoted_strides.size();
    for (std::size_t i = axes.size(); i-- > 0;) {
        std::int64_t stride = inside;
        if (graph.axis(axes[i]).is_promoted && promoted > 0) stride = promoted_strides[--promoted];
        if (i >= row_axes && !column_strides.empty()) stride = column_strides[i - row_axes];
        if (i < row_axes && !row_strides.empty()) stride = row_strides[i];
        result.strides[i] = stride;
        inside = std::max(inside, inside + (result.extents[i] - 1) * stride);
    }
    return result;
}

// `visit` with each element's position in the buffer, in row-major order.
template <class Visit>
void for_each_position(const Layout& layout, Visit visit) {
    const std::int64_t count = element_count(layout.extents);
    std::vector<std::int64_t> coordinate(layout.extents.size(), 0);
    std::int64_t position = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        visit(i, position);
        for (std::size_t axis = coordinate.size(); axis-- > 0;) {
            position += layout.strides[axis];
            if (++coordinate[axis] < layout.extents[axis]) break;
            position -= layout.strides[axis] * layout.extents[axis];
            coordinate[axis] = 0;
        }
    }
}

}  // namespace

RowExtents all_rows(const GraphData& graph, std::int64_t extent) {
    RowExtents rows;
    for (const AxisInfo& axis : graph.axes()) {
        if (axis.is_given()) rows[axis.name] = extent;
    }
    return rows;
}

std::optional<std::int64_t> common_extent(const RowExtents& rows) {
    if (rows.empty()) return std::nullopt;
    const std::int64_t first = rows.begin()->second;
    const bool alike = std::ranges::all_of(rows, [&](const auto& row) { return row.second == first; });
    return alike ? std::optional(first) : std::nullopt;
}

std::int64_t extent_of(const GraphData& graph, AxisId axis, const RowExtents& rows) {
    const AxisInfo& info = graph.axis(axis);
    if (info.extent != kRuntimeExtent) return info.extent;
    if (!info.follows.empty()) {
        std::int64_t extent = 1;
        for (const AxisId followed : info.follows) {
            if (__builtin_mul_overflow(extent, extent_of(graph, followed, rows), &extent))
                fail(ErrorCode::kInvalidArgument, "row axis '{}' has 2^63 positions or more; give fewer rows",
                     info.name);
        }
        return extent + info.more;
    }
    const auto found = rows.find(info.name);
    if (found == rows.end()) {
        fail(ErrorCode::kInvalidArgument, "row axis '{}' has no extent; give the number of its rows", info.name);
    }
    if (found->second < 0) {
        fail(ErrorCode::kInvalidArgument, "row axis '{}': the extent {} is negative", info.name, found->second);
    }
    return found->second;
}

Layout input_layout(const GraphData& graph, std::string_view input, const RowExtents& rows,
                    const std::vector<std::int64_t>& row_strides) {
    const auto id = graph.find_input(input);
    if (!id) fail(ErrorCode::kInvalidArgument, "the graph has no input '{}'", input);
    const Node& node = graph.node(*id);
    return layout(graph, input, node.dtype, node.axes, node.column_strides, node.promoted_strides, rows, row_strides);
}

Layout output_layout(const GraphData& graph, std::string_view output, const RowExtents& rows,
                     const std::vector<std::int64_t>& row_strides) {
    for (const OutputInfo& found : graph.outputs()) {
        if (found.name != output) continue;
        const Node& node = graph.node(found.node);
        return layout(graph, output, node.dtype, node.axes, found.column_strides, found.promoted_strides, rows,
                      row_strides);
    }
    fail(ErrorCode::kInvalidArgument, "the graph has no output '{}'", output);
}

std::vector<std::int64_t> promoted_row_strides(const GraphData& graph, const std::vector<AxisId>& axes,
                                               const Layout& layout) {
    if (std::ranges::none_of(axes, [&](AxisId axis) { return graph.axis(axis).is_promoted; })) return {};
    const auto rows = std::ranges::count_if(axes, [&](AxisId axis) { return graph.axis(axis).is_row; });
    return {layout.strides.begin(), layout.strides.begin() + rows};
}

std::int64_t element_count(const std::vector<std::int64_t>& extents) {
    std::int64_t count = 1;
    for (const std::int64_t extent : extents) count *= extent;
    return count;
}

std::int64_t buffer_elements(const Layout& layout) {
    std::int64_t last = 0;
    for (std::size_t i = 0; i < layout.extents.size(); ++i) {
        if (layout.extents[i] == 0) return 0;
        last += (layout.extents[i] - 1) * layout.strides[i];
    }
    return last + 1;
}

Tensor read_tensor(const Layout& layout, const void* data) {
    Tensor tensor{layout.dtype, layout.extents, {}};
    tensor.values.resize(static_cast<std::size_t>(element_count(layout.extents)));
    const auto* bytes = static_cast<const std::byte*>(data);
    const auto element_bytes = static_cast<std::int64_t>(size_bytes(layout.dtype));
    for_each_position(layout, [&](std::int64_t index, std::int64_t position) {
        tensor.values[static_cast<std::size_t>(index)] = load_element(layout.dtype, bytes + position * element_bytes);
    });
    return tensor;
}

void write_tensor(const Layout& layout, const Tensor& tensor, void* data) {
    RJ_CHECK(tensor.extents == layout.extents, "a tensor of {} values written to a layout of {}", tensor.values.size(),
             element_count(layout.extents));
    auto* bytes = static_cast<std::byte*>(data);
    const auto element_bytes = static_cast<std::int64_t>(size_bytes(layout.dtype));
    for_each_position(layout, [&](std::int64_t index, std::int64_t position) {
        store_element(layout.dtype, bytes + position * element_bytes, tensor.values[static_cast<std::size_t>(index)]);
    });
}

}  // namespace rowjit
