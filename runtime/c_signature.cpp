#include "runtime/c_signature.h"

#include <algorithm>
#include <span>

#include "base/fail.h"
#include "compiler/compile.h"

namespace rowjit {
namespace {

static_assert(ROWJIT_DTYPE_BOOL == static_cast<int>(Dtype::kBool) &&
              ROWJIT_DTYPE_I32 == static_cast<int>(Dtype::kI32) && ROWJIT_DTYPE_I64 == static_cast<int>(Dtype::kI64) &&
              ROWJIT_DTYPE_BF16 == static_cast<int>(Dtype::kBf16) &&
              ROWJIT_DTYPE_F16 == static_cast<int>(Dtype::kF16) && ROWJIT_DTYPE_F32 == static_cast<int>(Dtype::kF32) &&
              ROWJIT_DTYPE_F64 == static_cast<int>(Dtype::kF64) && ROWJIT_DTYPE_I8 == static_cast<int>(Dtype::kI8) &&
              ROWJIT_DTYPE_E4M3 == static_cast<int>(Dtype::kE4m3) &&
              ROWJIT_DTYPE_E5M2 == static_cast<int>(Dtype::kE5m2));
static_assert(ROWJIT_RUNTIME_EXTENT == kRuntimeExtent);

rowjit_tensor_info describe_tensor(const GraphData& graph, const std::string& name, const Node& node,
                                   const std::vector<std::int64_t>& column_strides) {
    if (node.axes.size() > ROWJIT_MAX_AXES) {
        fail(ErrorCode::kUnsupported, "tensor '{}' has {} axes; the C interface carries {}", name, node.axes.size(),
             ROWJIT_MAX_AXES);
    }
    rowjit_tensor_info info{};
    info.size = sizeof info;
    info.name = name.c_str();
    info.dtype = static_cast<std::int32_t>(node.dtype);
    info.axes = static_cast<std::int32_t>(node.axes.size());
    std::vector<std::int64_t> column_extents;
    for (std::size_t i = 0; i < node.axes.size(); ++i) {
        const AxisInfo& axis = graph.axis(node.axes[i]);
        info.axis_names[i] = axis.name.c_str();
        info.extents[i] = axis.extent;
        info.row_axes += axis.is_row ? 1 : 0;
        if (!axis.is_row) column_extents.push_back(axis.extent);
    }
    const std::vector<std::int64_t> strides =
        column_strides.empty() ? contiguous_strides(column_extents) : column_strides;
    std::copy(strides.begin(), strides.end(), info.column_strides + info.row_axes);
    return info;
}

}  // namespace

Signature make_signature(const GraphData& graph) {
    Signature signature;
    std::vector<RowPlace> place_of_axis(graph.axes().size());
    for (std::size_t i = 0; i < place_of_axis.size(); ++i) {
        const AxisInfo& axis = graph.axes()[i];
        RowPlace& place = place_of_axis[i];
        place.more = axis.more;
        // The axes that another follows stand before it.
        for (const AxisId followed : axis.follows) {
            const RowPlace& of = place_of_axis[static_cast<std::size_t>(followed)];
            place.places.insert(place.places.end(), of.places.begin(), of.places.end());
            if (graph.axis(followed).extent != kRuntimeExtent) place.times *= graph.axis(followed).extent;
            place.is_known = place.is_known && of.is_known && (of.more == 0 || axis.follows.size() == 1);
        }
        if (axis.is_given()) {
            place.places = {static_cast<int>(signature.row_axes.size())};
            signature.row_axes.push_back(axis.name.c_str());
        }
    }
    const auto add = [&](const rowjit_tensor_info& info, const Node& node) {
        std::vector<RowPlace> places;
        for (std::size_t i = 0; i < static_cast<std::size_t>(info.row_axes); ++i)
            places.push_back(place_of_axis[static_cast<std::size_t>(node.axes[i])]);
        signature.tensors.push_back(info);
        signature.row_places.push_back(std::move(places));
    };
    for (NodeId id = 0; id < graph.size(); ++id) {
        const Node& node = graph.node(id);
        if (node.kind == NodeKind::kInput) add(describe_tensor(graph, node.name, node, node.column_strides), node);
        if (node.kind == NodeKind::kScalar) {
            signature.scalars.push_back(
                {sizeof(rowjit_scalar_info), node.name.c_str(), node.value, static_cast<std::int32_t>(node.dtype), 0});
        }
    }
    signature.inputs = static_cast<std::int32_t>(signature.tensors.size());
    for (const OutputInfo& output : graph.outputs()) {
        const Node& node = graph.node(output.node);
        rowjit_tensor_info info = describe_tensor(graph, output.name, node, output.column_strides);
        info.is_output = 1;
        info.accumulates = output.accumulate ? 1 : 0;
        info.alias = output.alias.empty() ? nullptr : output.alias.c_str();
        add(info, node);
    }
    return signature;
}

void check_fits(const rowjit_tensor_info& declared, const rowjit_tensor& value) {
    const char* const tensor = declared.name;
    if (value.dtype != declared.dtype) {
        fail(ErrorCode::kInvalidArgument, "tensor '{}' has dtype {} (ROWJIT_DTYPE_…); {} is declared", tensor,
             value.dtype, name(static_cast<Dtype>(declared.dtype)));
    }
    if (value.dimensions != declared.axes) {
        fail(ErrorCode::kInvalidArgument, "tensor '{}' has {} dimensions; {} are declared", tensor, value.dimensions,
             declared.axes);
    }
    if (value.dimensions > 0 && value.shape == nullptr)
        fail(ErrorCode::kInvalidArgument, "tensor '{}': shape is NULL", tensor);
    std::int64_t contiguous = 1;
    for (int i = declared.axes; i-- > 0;) {
        const std::int64_t extent = value.shape[i];
        const bool free = declared.extents[i] == kRuntimeExtent;
        if (free ? extent < 0 : extent != declared.extents[i]) {
            fail(ErrorCode::kInvalidArgument, "tensor '{}' has {} elements along axis {}; {} declared", tensor, extent,
                 i, free ? std::string("none below 0 is") : fmt::format("{} are", declared.extents[i]));
        }
        const std::int64_t stride = value.strides == nullptr ? contiguous : value.strides[i];
        if (i >= declared.row_axes && extent > 1 && stride != declared.column_strides[i]) {
            fail(ErrorCode::kInvalidArgument,
                 "tensor '{}' has stride {} along its column axis {}; {} is declared, and part of the kernel: copy the "
                 "tensor, or declare its strides in the graph",
                 tensor, stride, i, declared.column_strides[i]);
        }
        contiguous *= extent;
    }
}

}  // namespace rowjit
