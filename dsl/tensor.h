// Tensors on the host, as the oracle reads and makes them, and their conversion from and to raw strided buffers, so
// that every backend's tests and the tuner's checks share one idea of a layout.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/graph.h"
#include "rowjit/dtype.h"

namespace rowjit {

using RowExtents = std::map<std::string, std::int64_t, std::less<>>;  // by the row axis's name

// Contiguous, row-major in the order the axes are declared. Values are widened: i64 beyond 2^53 is not representable.
struct Tensor {
    Dtype dtype = Dtype::kF32;
    std::vector<std::int64_t> extents = {};
    std::vector<double> values = {};
    // Of eager's outputs that are rounded to a narrow float once, at last: the f32 before that. Else empty.
    std::vector<double> unrounded = {};
};

using Tensors = std::map<std::string, Tensor, std::less<>>;

// Where the elements of a tensor lie in a buffer.
struct Layout {
    Dtype dtype = Dtype::kF32;
    std::vector<std::int64_t> extents = {};
    std::vector<std::int64_t> strides = {};  // in elements, one per axis
};

// Every row axis whose extent comes at run time, `extent` long.
RowExtents all_rows(const GraphData& graph, std::int64_t extent);

// The extent that all of them are; none where they differ or there are none.
std::optional<std::int64_t> common_extent(const RowExtents& rows);

// The extent of `axis`, taken from `rows` for a run-time one; throws Error(kInvalidArgument) naming a missing or
// negative one.
std::int64_t extent_of(const GraphData& graph, AxisId axis, const RowExtents& rows);

// The layout of an input or output with its declared column strides and the given row strides, one per row axis; empty
// means that rows follow each other without padding, those of an axis that was one of columns as they did there. Throws
// Error(kInvalidArgument) for an unknown name.
Layout input_layout(const GraphData& graph, std::string_view input, const RowExtents& rows,
                    const std::vector<std::int64_t>& row_strides = {});
Layout output_layout(const GraphData& graph, std::string_view output, const RowExtents& rows,
                     const std::vector<std::int64_t>& row_strides = {});

// The strides that a launch has to be given for a tensor of a group which lies so: one per row axis where some of those
// were axes of columns, since a row then lies among others and not behind them; else none.
std::vector<std::int64_t> promoted_row_strides(const GraphData& graph, const std::vector<AxisId>& axes,
                                               const Layout& layout);

std::int64_t element_count(const std::vector<std::int64_t>& extents);
std::int64_t buffer_elements(const Layout& layout);  // from the first element to one past the last: what a buffer holds

Tensor read_tensor(const Layout& layout, const void* data);
void write_tensor(const Layout& layout, const Tensor& tensor, void* data);  // rounds as round_to; padding is untouched

}  // namespace rowjit
