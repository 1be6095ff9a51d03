#include "runtime/launch_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/fail.h"

namespace rowjit {
namespace {

constexpr std::size_t kWorkspaceAlignment = 64;  // more than any access needs; every device allocator gives it
constexpr std::int64_t kAccessBytes = 16;        // the widest single access of emitted code

std::size_t align_up(std::size_t bytes) {
    return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

// A launch must not allocate, so its message lives in a buffer of the thread.
template <class... Args>
Status refuse(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) noexcept {
    static thread_local std::array<char, 512> buffer;
    const auto end = fmt::format_to_n(buffer.data(), buffer.size() - 1, format, std::forward<Args>(args)...);
    *end.out = '\0';
    return {code, buffer.data()};
}

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

LaunchPlan::LaunchPlan(Program program, std::vector<LoadedStep> loaded, std::shared_ptr<DeviceImpl> device)
    : program_(std::move(program)), loaded_(std::move(loaded)), device_(std::move(device)) {
    RJ_CHECK(loaded_.size() == program_.steps.size(), "{} steps, {} loaded", program_.steps.size(), loaded_.size());
    for (std::size_t i = 0; i < program_.axes.size(); ++i) {
        if (program_.axes[i].extent != kRuntimeExtent) continue;
        RJ_CHECK(program_.axes[i].is_slots || argument_extents_ == extent_axes_.size(), "slots before declared axes");
        extent_axes_.push_back(static_cast<AxisId>(i));
        argument_extents_ += program_.axes[i].is_slots ? 0 : 1;
    }
    const auto place_of = [&](AxisId axis) {
        return static_cast<std::size_t>(std::find(extent_axes_.begin(), extent_axes_.end(), axis) -
                                        extent_axes_.begin());
    };
    for (std::size_t i = 0; i < argument_extents_; ++i) {
        const AxisInfo& axis = program_.axes[static_cast<std::size_t>(extent_axes_[i])];
        if (axis.follows >= 0) following_.push_back({i, place_of(axis.follows), axis.more});
    }
    if (extent_axes_.size() > kMaxExtents) {
        fail(ErrorCode::kUnsupported,
             "the graph has {} row axes of run-time extent and sums over rows; a launch carries {}; split the graph",
             extent_axes_.size(), kMaxExtents);
    }
    find_tensor_facts();
    for (std::size_t i = 0; i < loaded_.size(); ++i) launches_.push_back(make_launch(program_.steps[i], loaded_[i]));
}

void LaunchPlan::find_tensor_facts() {
    if (program_.tensors.size() > kMaxTensors) {
        fail(ErrorCode::kUnsupported,
             "the graph has {} inputs, outputs and temporaries; a launch carries {}; split the graph",
             program_.tensors.size(), kMaxTensors);
    }
    for (const ProgramTensor& tensor : program_.tensors) {
        TensorFacts facts;
        facts.element_bytes = size_bytes(tensor.dtype);
        facts.output = tensor.place == ProgramTensor::Place::kOutput;
        std::size_t column = 0;
        for (const AxisId axis : tensor.axes) {
            const AxisInfo& info = program_.axes[static_cast<std::size_t>(axis)];
            if (!info.is_row) {
                facts.column_span += (info.extent - 1) * std::max<std::int64_t>(0, tensor.column_strides[column++]);
                continue;
            }
            const auto place = std::find(extent_axes_.begin(), extent_axes_.end(), axis);
            facts.row_axes.push_back(axis);
            facts.extent_places.push_back(place == extent_axes_.end() ? -1
                                                                      : static_cast<int>(place - extent_axes_.begin()));
            facts.extents.push_back(info.extent);
        }
        if (facts.row_axes.size() > Arguments::kMaxRowAxes) {
            fail(ErrorCode::kUnsupported, "tensor '{}' has {} row axes; at most {} are supported", tensor.name,
                 facts.row_axes.size(), Arguments::kMaxRowAxes);
        }
        argument_tensors_ += tensor.place == ProgramTensor::Place::kTemporary ? 0 : 1;
        tensors_.push_back(std::move(facts));
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        for (std::size_t j = 0; j < tensors_.size(); ++j) {
            const bool named =
                !program_.tensors[i].alias.empty() && program_.tensors[i].alias == program_.tensors[j].name;
            if (named) tensors_[i].alias = static_cast<int>(j);
        }
    }
    if (!device_->target().is_gpu()) return;  // CPU code makes no assumption on alignment
    for (const Step& step : program_.steps) {
        for (std::size_t i = 0; i < step.tensors.size(); ++i) {
            TensorFacts& facts = tensors_[static_cast<std::size_t>(step.tensors[i])];
            const std::int64_t bytes =
                step.kernel.tensors[i].alignment * static_cast<std::int64_t>(facts.element_bytes);
            facts.alignment_bytes = std::max(facts.alignment_bytes, std::min(bytes, kAccessBytes));
        }
    }
}

LaunchPlan::Launch LaunchPlan::make_launch(const Step& step, const LoadedStep& loaded) const {
    Launch launch;
    launch.function = loaded.function;
    launch.kernel = &step.kernel;
    launch.geometry.block = static_cast<std::uint32_t>(step.kernel.block_threads());
    launch.geometry.shared_bytes = static_cast<std::uint32_t>(step.kernel.shared_bytes);
    launch.geometry.cluster = static_cast<std::uint32_t>(step.kernel.cluster_blocks());
    for (const AxisId axis : step.kernel.row_axes) {
        const std::int64_t extent = step.kernel.axis(axis).extent;
        if (extent != kRuntimeExtent) {
            launch.static_rows *= extent;
            continue;
        }
        const auto place = std::find(extent_axes_.begin(), extent_axes_.end(), axis);
        launch.row_extent_places.push_back(static_cast<int>(place - extent_axes_.begin()));
    }
    if (step.kernel.slots_axis >= 0) {
        const auto place = std::find(extent_axes_.begin(), extent_axes_.end(), step.kernel.slots_axis);
        launch.slots_place = static_cast<int>(place - extent_axes_.begin());
    }
    if (step.kernel.arguments.size() > kMaxParameters) {
        fail(ErrorCode::kUnsupported, "kernel {} has {} parameters; at most {} are supported; split the graph",
             step.kernel.name, step.kernel.arguments.size(), kMaxParameters);
    }
    for (const KernelArgument& argument : step.kernel.arguments)
        launch.parameters.push_back(make_parameter(step, argument));
    return launch;
}

LaunchPlan::Parameter LaunchPlan::make_parameter(const Step& step, const KernelArgument& argument) const {
    using From = Parameter::From;
    switch (argument.kind) {
        case KernelArgument::Kind::kPointer:
            return {From::kTensor, step.tensors[static_cast<std::size_t>(argument.index)]};
        case KernelArgument::Kind::kStride: {
            const int tensor = step.tensors[static_cast<std::size_t>(argument.index)];
            const TensorFacts& facts = tensors_[static_cast<std::size_t>(tensor)];
            const auto row = std::find(facts.row_axes.begin(), facts.row_axes.end(), argument.axis);
            if (row != facts.row_axes.end())
                return {From::kRowStride, tensor, static_cast<int>(row - facts.row_axes.begin())};
            // A column axis that the planner promoted: its stride was declared.
            const ProgramTensor& declared = program_.tensors[static_cast<std::size_t>(tensor)];
            const auto axis = std::find(declared.axes.begin(), declared.axes.end(), argument.axis);
            RJ_CHECK(axis != declared.axes.end(), "{}: no axis {}", declared.name, argument.axis);
            const auto column = static_cast<std::size_t>(axis - declared.axes.begin()) - facts.row_axes.size();
            return {From::kColumnStride, tensor, 0, declared.column_strides[column]};
        }
        case KernelArgument::Kind::kExtent: {
            const auto place = std::find(extent_axes_.begin(), extent_axes_.end(), argument.axis);
            RJ_CHECK(place != extent_axes_.end(), "{}: axis {} has no run-time extent", step.kernel.name,
                     argument.axis);
            return {From::kExtent, static_cast<int>(place - extent_axes_.begin())};
        }
        case KernelArgument::Kind::kScalar: {
            const int scalar = step.scalars[static_cast<std::size_t>(argument.index)];
            return {From::kScalar, scalar, 0, 0, program_.scalars[static_cast<std::size_t>(scalar)].dtype};
        }
    }
    RJ_CHECK(false, "argument kind {}", static_cast<int>(argument.kind));
}

int LaunchPlan::tensor_place(std::string_view name) const {
    std::vector<std::string_view> known;
    for (std::size_t i = 0; i < argument_tensors_; ++i) {
        if (program_.tensors[i].name == name) return static_cast<int>(i);
        known.push_back(program_.tensors[i].name);
    }
    fail(ErrorCode::kInvalidArgument, "no input or output '{}'; this executable has {}", name, fmt::join(known, ", "));
}

int LaunchPlan::extent_place(std::string_view axis) const {
    std::vector<std::string_view> known;
    for (std::size_t i = 0; i < argument_extents_; ++i) {
        if (!is_given(i)) continue;
        known.push_back(program_.axes[static_cast<std::size_t>(extent_axes_[i])].name);
        if (known.back() == axis) return static_cast<int>(i);
    }
    fail(ErrorCode::kInvalidArgument, "no row axis '{}' with a run-time extent; this executable has {}", axis,
         fmt::join(known, ", "));
}

int LaunchPlan::scalar_place(std::string_view name) const {
    std::vector<std::string_view> known;
    for (std::size_t i = 0; i < program_.scalars.size(); ++i) {
        known.push_back(program_.scalars[i].name);
        if (known.back() == name) return static_cast<int>(i);
    }
    fail(ErrorCode::kInvalidArgument, "no scalar '{}'; this executable has {}", name, fmt::join(known, ", "));
}

std::vector<double> LaunchPlan::default_scalars() const {
    std::vector<double> values;
    for (const ProgramScalar& scalar : program_.scalars) values.push_back(scalar.default_value);
    return values;
}

std::int64_t LaunchPlan::row_extent(const TensorFacts& tensor, std::size_t axis, const Resolved& resolved) noexcept {
    const int place = tensor.extent_places[axis];
    return place < 0 ? tensor.extents[axis] : resolved.extents[place];
}

std::int64_t LaunchPlan::rows_of(const Launch& launch, const Resolved& resolved) const noexcept {
    std::int64_t rows = launch.static_rows;
    for (const int place : launch.row_extent_places) rows *= resolved.extents[place];
    return rows;
}

// What the caller set, then the slots of kernels that sum over their rows: as many as they have blocks along the rows.
void LaunchPlan::resolve_extents(const Arguments& arguments, Resolved* resolved) const noexcept {
    for (std::size_t i = 0; i < argument_extents_; ++i) resolved->extents[i] = arguments.extents_[i];
    for (const Following& axis : following_) {
        resolved->extents[axis.place] = resolved->extents[axis.followed] + axis.more;
    }
    for (const Launch& launch : launches_) {
        if (launch.slots_place < 0) continue;
        const Kernel& kernel = *launch.kernel;
        resolved->extents[launch.slots_place] =
            grid_blocks(kernel, rows_of(launch, *resolved)) / kernel.schedule.column_blocks;
    }
}

// Addresses and strides of every tensor; returns the workspace bytes the temporaries take.
std::size_t LaunchPlan::resolve(const Arguments& arguments, Resolved* resolved) const noexcept {
    resolve_extents(arguments, resolved);
    std::size_t workspace = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        const TensorFacts& facts = tensors_[i];
        const bool temporary = i >= argument_tensors_;
        const bool strided = !temporary && arguments.tensors_[i].strided;
        std::int64_t inside = facts.column_span;
        for (std::size_t axis = facts.row_axes.size(); axis-- > 0;) {
            const std::int64_t stride = strided ? arguments.tensors_[i].row_strides[axis] : inside;
            resolved->row_strides[i][axis] = stride;
            inside = std::max(inside, inside + (row_extent(facts, axis, *resolved) - 1) * stride);
        }
        if (!temporary) {
            resolved->data[i] = arguments.tensors_[i].data;
            continue;
        }
        resolved->data[i] = static_cast<std::byte*>(arguments.workspace_) + workspace;
        workspace += align_up(static_cast<std::size_t>(inside) * facts.element_bytes);
    }
    return workspace;
}

std::size_t LaunchPlan::workspace_bytes(const Arguments& arguments) const {
    if (tensors_.size() == argument_tensors_) return 0;
    for (std::size_t i = 0; i < argument_extents_; ++i) {
        if (arguments.extents_[i] >= 0 || !is_given(i)) continue;
        fail(ErrorCode::kInvalidArgument, "workspace: the extent of row axis '{}' is not set; call rows() first",
             program_.axes[static_cast<std::size_t>(extent_axes_[i])].name);
    }
    Resolved resolved;
    return resolve(arguments, &resolved);
}

Status LaunchPlan::check(const Arguments& arguments, const Resolved& resolved) const noexcept {
    for (std::size_t i = 0; i < argument_tensors_; ++i) {
        Status status = check_tensor(i, arguments, resolved);
        if (!status.ok()) return status;
    }
    return {};
}

Status LaunchPlan::check_tensor(std::size_t index, const Arguments& arguments,
                                const Resolved& resolved) const noexcept {
    const TensorFacts& facts = tensors_[index];
    const std::string& name = program_.tensors[index].name;
    std::int64_t rows = 1;
    for (std::size_t axis = 0; axis < facts.row_axes.size(); ++axis) rows *= row_extent(facts, axis, resolved);
    if (rows == 0) return {};
    if (resolved.data[index] == nullptr) {
        return refuse(ErrorCode::kInvalidArgument, "tensor '{}' is {}; set it with Arguments::tensor", name,
                      arguments.tensors_[index].set ? "null" : "not set");
    }
    if (reinterpret_cast<std::uintptr_t>(resolved.data[index]) % static_cast<std::uintptr_t>(facts.alignment_bytes) !=
        0) {
        return refuse(ErrorCode::kInvalidArgument, "tensor '{}' is not aligned to {} bytes; allocate it so, or copy it",
                      name, facts.alignment_bytes);
    }
    for (std::size_t axis = 0; axis < facts.row_axes.size(); ++axis) {
        const std::int64_t bytes = resolved.row_strides[index][axis] * static_cast<std::int64_t>(facts.element_bytes);
        if (bytes % facts.alignment_bytes == 0 || row_extent(facts, axis, resolved) <= 1) continue;
        return refuse(
            ErrorCode::kInvalidArgument,
            "tensor '{}': row stride {} elements is not a multiple of {} bytes; pad the rows, or copy the tensor", name,
            resolved.row_strides[index][axis], facts.alignment_bytes);
    }
    if (!facts.output) return {};
    for (std::size_t other = 0; other < argument_tensors_; ++other) {
        if (other == index || resolved.data[other] != resolved.data[index] || facts.alias == static_cast<int>(other))
            continue;
        return refuse(
            ErrorCode::kInvalidArgument,
            "output '{}' has the address of '{}' but was not declared to overwrite it; set OutputOptions::alias", name,
            program_.tensors[other].name);
    }
    return {};
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
    for (const Launch& launch : launches_) {
        const std::int64_t rows = rows_of(launch, resolved);
        if (rows == 0) continue;
        std::array<ParameterValue, kMaxParameters> values;
        std::array<void*, kMaxParameters> pointers;
        for (std::size_t i = 0; i < launch.parameters.size(); ++i) {
            const Parameter& parameter = launch.parameters[i];
            const auto index = static_cast<std::size_t>(parameter.index);
            switch (parameter.from) {
                case Parameter::From::kTensor: values[i].pointer = resolved.data[index]; break;
                case Parameter::From::kRowStride:
                    values[i].i64 = resolved.row_strides[index][static_cast<std::size_t>(parameter.axis)];
                    break;
                case Parameter::From::kColumnStride: values[i].i64 = parameter.value; break;
                case Parameter::From::kExtent: values[i].i64 = resolved.extents[index]; break;
                case Parameter::From::kScalar:
                    values[i] = scalar_value(parameter.dtype, arguments.scalars_[index]);
                    break;
            }
            pointers[i] = &values[i];
        }
        LaunchGeometry geometry = launch.geometry;
        geometry.grid = static_cast<std::uint32_t>(grid_blocks(*launch.kernel, rows));
        if (const char* refused = device_->launch(launch.function, geometry, stream, pointers.data())) {
            return refuse(ErrorCode::kLaunch, "kernel {}: {}", launch.kernel->name, refused);
        }
    }
    return {};
}

}  // namespace rowjit
