// The steps of one launch in turn: kernels, loops over chunks, and what each kernel's parameters are.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/launch_plan.h"
#include "runtime/launch_refusal.h"

namespace rowjit {
namespace {

// A kernel parameter's value, at the size its type has.
union ParameterValue {
    void* pointer;
    std::int64_t i64;
    std::int32_t i32;
    float f32;
    double f64;
};

ParameterValue scalar_value(Dtype dtype, double value) {
    ParameterValue result{};
    switch (dtype) {
        case Dtype::kF64: result.f64 = value; break;
        case Dtype::kI64: result.i64 = static_cast<std::int64_t>(value); break;
        case Dtype::kI32:
        case Dtype::kBool: result.i32 = static_cast<std::int32_t>(value); break;
        case Dtype::kBf16:
        case Dtype::kF16:
        case Dtype::kF32: result.f32 = static_cast<float>(value); break;
        case Dtype::kI8:
        case Dtype::kE4m3:
        case Dtype::kE5m2: break;  // no scalars have them
    }
    return result;
}

}  // namespace

bool LaunchPlan::is_needed(const Launch& launch, const Resolved& resolved) noexcept {
    return launch.needed_place < 0 || resolved.extents[launch.needed_place] > launch.needed_above;
}

Status LaunchPlan::launch(StreamHandle stream, const Arguments& arguments) const noexcept {
    for (std::size_t i = 0; i < argument_extents_; ++i) {
        if (arguments.extents_[i] >= 0 || !is_given(i)) continue;
        return refuse(ErrorCode::kInvalidArgument, "the extent of row axis '{}' is not set; call Arguments::rows",
                      program_.axes[static_cast<std::size_t>(extent_axes_[i])].name);
    }
    Resolved resolved;
    const std::size_t workspace = resolve(arguments, &resolved);
    const bool aligned = reinterpret_cast<std::uintptr_t>(arguments.workspace_) % kWorkspaceAlignment == 0;
    if (workspace > 0 && (workspace > arguments.workspace_bytes_ || !aligned)) {
        return refuse(ErrorCode::kInvalidArgument, "workspace of {} bytes at {}; {} bytes aligned to {} are needed",
                      arguments.workspace_bytes_, arguments.workspace_, workspace, kWorkspaceAlignment);
    }
    Status status = check(arguments, resolved);
    if (!status.ok()) return status;
    std::size_t done = 0;
    for (std::size_t loop = 0; loop < program_.loops.size(); ++loop) {
        for (; done < program_.loops[loop].first && status.ok(); ++done)
            status = run(program_.order[done], resolved, arguments, 0, stream);
        if (status.ok()) status = run_loop(loop, resolved, arguments, stream);
        done = program_.loops[loop].end;
    }
    for (; done < program_.order.size() && status.ok(); ++done)
        status = run(program_.order[done], resolved, arguments, 0, stream);
    return status;
}

Status LaunchPlan::run(const PlanStep& step, const Resolved& resolved, const Arguments& arguments, std::int64_t start,
                       StreamHandle stream) const noexcept {
    if (step.kind == PlanStep::Kind::kProduct) return multiply(products_[step.index], resolved, start, stream);
    if (!step.rounds) return launch_kernel(launches_[step.index], resolved, arguments, stream);
    if (resolved.loops[0].chunks == 1) return {};
    return round(products_[*step.rounds], launches_[step.index], resolved, arguments, stream);
}

// Of an accumulator that lies partly in the result's memory, the rows there first and in their order, as many at a time
// as have room before those that are not rounded yet.
Status LaunchPlan::round(const ProductLaunch& product, const Launch& launch, const Resolved& whole,
                         const Arguments& arguments, StreamHandle stream) const noexcept {
    const SharedRows& shared = product.shared;
    if (!whole.loops[0].shared || shared.rows == 0) return launch_kernel(launch, whole, arguments, stream);
    const auto row_bytes = [&](int tensor) {
        return whole.row_strides[tensor][0] *
               static_cast<std::int64_t>(tensors_[static_cast<std::size_t>(tensor)].element_bytes);
    };
    const std::int64_t sum_bytes = row_bytes(product.rounded_sum);
    const std::int64_t result_bytes = row_bytes(product.rounded_result);
    auto* const sums = static_cast<std::byte*>(whole.data[product.step->accumulator]);
    auto* const result = static_cast<std::byte*>(whole.data[product.step->result]);
    const std::int64_t all = whole.extents[product.rounded_place];
    Resolved part = whole;
    Status status;
    std::int64_t& rows = part.extents[product.rounded_place];
    for (std::int64_t first = 0; first < all && status.ok(); first += rows) {
        const bool is_shared = first < shared.rows;
        const std::int64_t offset = shared.offset_bytes + first * sum_bytes;
        rows = is_shared ? std::min(offset / result_bytes, shared.rows) - first : all - first;
        part.data[product.rounded_sum] = is_shared ? result + offset : sums + (first - shared.rows) * sum_bytes;
        part.data[product.rounded_result] = result + first * result_bytes;
        status = launch_kernel(launch, part, arguments, stream);
    }
    return status;
}

Status LaunchPlan::run_loop(std::size_t loop, const Resolved& whole, const Arguments& arguments,
                            StreamHandle stream) const noexcept {
    Resolved part = whole;
    Status status;
    Chunk chunk;
    do {
        chunk = chunk_at(loop, chunk.start + chunk.positions, whole);
        see_chunk(loop, chunk, whole, &part);
        for (std::size_t i = program_.loops[loop].first; i < program_.loops[loop].end && status.ok(); ++i)
            status = run(program_.order[i], part, arguments, chunk.start, stream);
    } while (status.ok() && chunk.start + chunk.positions < whole.extents[loop_places_[loop]]);
    return status;
}

Status LaunchPlan::launch_kernel(const Launch& launch, const Resolved& resolved, const Arguments& arguments,
                                 StreamHandle stream) const noexcept {
    const RowCounts rows = rows_of(launch, resolved);
    if (rows.outer * rows.inner == 0 || !is_needed(launch, resolved)) return {};
    OwnSides own;  // of a kernel without a product nothing, and no time is spent on it
    if (launch.product >= 0) {
        if (Status status = find_own_sides(launch, resolved, &own); !status.ok()) return status;
    }
    std::array<ParameterValue, kMaxParameters> values;
    std::array<void*, kMaxParameters> pointers;
    for (std::size_t i = 0; i < launch.parameters.size(); ++i) {
        const Parameter& parameter = launch.parameters[i];
        const auto index = static_cast<std::size_t>(parameter.index);
        pointers[i] = &values[i];
        switch (parameter.from) {
            case Parameter::From::kTensor: values[i].pointer = resolved.data[index]; break;
            case Parameter::From::kRowStride:
                values[i].i64 = resolved.row_strides[index][static_cast<std::size_t>(parameter.axis)];
                break;
            case Parameter::From::kColumnStride: values[i].i64 = parameter.value; break;
            case Parameter::From::kExtent: values[i].i64 = resolved.extents[index]; break;
            case Parameter::From::kScalar: values[i] = scalar_value(parameter.dtype, arguments.scalars_[index]); break;
            case Parameter::From::kMatrix: pointers[i] = &own.operands[index]; break;
            case Parameter::From::kSide: values[i].i64 = own.extents[index]; break;
        }
    }
    LaunchGeometry geometry = launch.geometry;
    geometry.grid = launch.product >= 0 ? own.blocks : static_cast<std::uint32_t>(grid_blocks(*launch.kernel, rows));
    if (const char* refused = device_->launch(launch.function, geometry, stream, pointers.data())) {
        return refuse(ErrorCode::kLaunch, "kernel {}: {}", launch.kernel->name, refused);
    }
    return {};
}

}  // namespace rowjit
