#include "compiler/plan/strides.h"

#include <algorithm>

namespace rowjit {

std::int64_t stride_of(const GraphData& group, const Node& input, std::size_t axis) {
    const auto is_promoted = [&](AxisId id) { return group.axis(id).is_promoted; };
    const std::size_t first_column = input.axes.size() - group.column_axes(input).size();
    if (axis >= first_column) return input.column_strides.empty() ? 1 : input.column_strides[axis - first_column];
    const auto begin = input.axes.begin();
    const auto before =
        static_cast<std::size_t>(std::count_if(begin, begin + static_cast<std::ptrdiff_t>(axis), is_promoted));
    const bool is_known = is_promoted(input.axes[axis]) && before < input.promoted_strides.size();
    return is_known ? input.promoted_strides[before] : kStrideOfRows;
}

}  // namespace rowjit
