// What of a launch is known before its arguments are: tensors' layouts, where each kernel parameter's value comes from,
// products as a library takes them. The rest of LaunchPlan is in launch_layout.cpp (extents, strides and addresses),
// launch.cpp (the steps) and launch_products.cpp (matrix products).
#include "runtime/launch_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/fail.h"
#include "compiler/passes/passes.h"

namespace rowjit {
namespace {

constexpr std::int64_t kAccessBytes = 16;  // the widest single access of emitted code

LaunchGeometry geometry_of(const Kernel& kernel) {
    LaunchGeometry geometry;
    geometry.block = static_cast<std::uint32_t>(kernel.launched_threads());
    geometry.shared_bytes = static_cast<std::uint32_t>(kernel.shared_bytes);
    geometry.cluster = static_cast<std::uint32_t>(kernel.launched_cluster());
    geometry.overlaps = kernel.neighbours.waits;
    geometry.last_first = kernel.last_first;
    return geometry;
}

bool is_axis_of_tensor(const Program& program, AxisId axis) {
    return std::any_of(program.tensors.begin(), program.tensors.end(),
                       [&](const ProgramTensor& tensor) { return contains(tensor.axes, axis); });
}

// What the address and the strides of a dense tensor are multiples of, up to what a library makes use of.
std::int64_t dense_alignment(const std::vector<AxisInfo>& axes, const ProgramTensor& tensor) {
    const auto bytes = static_cast<std::int64_t>(size_bytes(tensor.dtype));
    const AxisInfo& innermost = axes[static_cast<std::size_t>(tensor.axes.back())];
    if (innermost.is_row) return bytes;
    std::int64_t alignment = kAccessBytes;
    while (innermost.extent * bytes % alignment != 0) alignment /= 2;
    for (const std::int64_t stride : tensor.column_strides) {
        while (stride != 1 && stride * bytes % alignment != 0) alignment /= 2;
    }
    return alignment;
}

}  // namespace

LaunchPlan::LaunchPlan(Program program, std::vector<LoadedStep> loaded, std::shared_ptr<DeviceImpl> device,
                       StreamHandle stream)
    : program_(std::move(program)), loaded_(std::move(loaded)), device_(std::move(device)) {
    RJ_CHECK(loaded_.size() == program_.steps.size(), "{} steps, {} loaded", program_.steps.size(), loaded_.size());
    for (const bool slots : {false, true}) {
        for (std::size_t i = 0; i < program_.axes.size(); ++i) {
            if (program_.axes[i].extent != kRuntimeExtent || program_.axes[i].is_slots != slots) continue;
            // Sums that share a kernel have parts along the slots of the first of them.
            if (slots && !is_axis_of_tensor(program_, static_cast<AxisId>(i))) continue;
            extent_axes_.push_back(static_cast<AxisId>(i));
        }
        if (!slots) argument_extents_ = extent_axes_.size();
    }
    const auto place_of = [&](AxisId axis) {
        return static_cast<std::size_t>(std::find(extent_axes_.begin(), extent_axes_.end(), axis) -
                                        extent_axes_.begin());
    };
    for (std::size_t i = 0; i < argument_extents_; ++i) {
        const AxisInfo& axis = program_.axes[static_cast<std::size_t>(extent_axes_[i])];
        if (axis.follows.empty()) continue;
        Following following = {.place = i, .more = axis.more};
        for (const AxisId followed : axis.follows) {
            const AxisInfo& info = program_.axes[static_cast<std::size_t>(followed)];
            if (info.extent == kRuntimeExtent) {
                following.followed.push_back(place_of(followed));
            } else {
                following.times *= info.extent;
            }
        }
        following_.push_back(std::move(following));
    }
    if (extent_axes_.size() > kMaxExtents) {
        fail(ErrorCode::kUnsupported,
             "the graph has {} row axes of run-time extent and sums over rows; a launch carries {}; split the graph",
             extent_axes_.size(), kMaxExtents);
    }
    RJ_CHECK(program_.loops.size() <= kMaxLoops, "{} loops", program_.loops.size());
    for (std::size_t i = 0; i < program_.loops.size(); ++i)
        loop_places_[i] = static_cast<int>(place_of(program_.loops[i].axis));
    find_tensor_facts();
    for (std::size_t i = 0; i < loaded_.size(); ++i) keep_to_device(loaded_[i], &program_.steps[i].kernel);
    for (std::size_t i = 0; i < loaded_.size(); ++i) launches_.push_back(make_launch(program_.steps[i], loaded_[i]));
    for (const ProductStep& step : program_.products) products_.push_back(make_product(step, stream));
    for (const PlanStep& step : program_.order) {
        if (!step.rounds) continue;
        ProductLaunch& product = products_[*step.rounds];
        for (const int tensor : program_.steps[step.index].tensors) {
            const int over = tensors_[static_cast<std::size_t>(tensor)].over;
            if (over < 0) continue;
            (over == product.step->accumulator ? product.rounded_sum : product.rounded_result) = tensor;
        }
        if (product.step->rounded_rows >= 0)
            product.rounded_place = static_cast<int>(place_of(product.step->rounded_rows));
    }
    for (std::size_t loop = 0; loop < program_.loops.size(); ++loop) {
        if (program_.loops[loop].lender >= 0) note_alignment(program_.loops[loop].lender, kAccessBytes);
        for (std::size_t i = program_.loops[loop].first; i < program_.loops[loop].end; ++i) {
            const std::size_t index = program_.order[i].index;
            if (program_.order[i].kind == PlanStep::Kind::kKernel) {
                launches_[index].loop = static_cast<int>(loop);
                if (launches_[index].product >= 0)
                    products_[static_cast<std::size_t>(launches_[index].product)].loop = static_cast<int>(loop);
            } else {
                products_[index].loop = static_cast<int>(loop);
                products_[index].sums_chunks = contains(program_.products[index].contracted, program_.loops[loop].axis);
            }
        }
    }
}

void LaunchPlan::find_tensor_facts() {
    if (program_.tensors.size() > kMostTensors) {
        fail(ErrorCode::kUnsupported,
             "the graph has {} inputs, outputs and temporaries; a launch carries {}; split the graph",
             program_.tensors.size(), kMostTensors);
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
        facts.over = tensor.over;
        facts.in_tiles = tensor.in_tiles;
        for (std::size_t i = 0; i < program_.loops.size(); ++i) {
            const auto axis = std::find(facts.row_axes.begin(), facts.row_axes.end(), program_.loops[i].axis);
            if (axis != facts.row_axes.end()) facts.loop_axes[i] = static_cast<int>(axis - facts.row_axes.begin());
        }
        tensors_.push_back(std::move(facts));
    }
    for (std::size_t i = 0; i < program_.loops.size(); ++i) {
        for (const int tensor : program_.loops[i].within)
            tensors_[static_cast<std::size_t>(tensor)].within = static_cast<int>(i);
        for (const int tensor : program_.loops[i].beside) tensors_[static_cast<std::size_t>(tensor)].beside = true;
    }
    for (const ProductStep& product : program_.products) {
        if (product.accumulator < 0) continue;
        TensorFacts& facts = tensors_[static_cast<std::size_t>(product.accumulator)];
        facts.accumulator = true;
        facts.shared_bytes = shared_rows(program_, product).bytes;
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

// Clusters that stay for many rows, and blocks that sum over theirs, are as many as run at the same time: one too many
// would wait for all others to end. Of clusters the device has to say, as it depends on which multiprocessors it has
// left. H100, a snake activation's backward of 4096 f32 columns, of whose blocks in 40 registers six have room on a
// multiprocessor: 0.173 ms in eight, 0.156 in six. Without sums it is as well to end: mrope of 1920 f32 columns takes
// 0.0972 ms in eight, 0.103 in as many as have room.
void LaunchPlan::keep_to_device(const LoadedStep& loaded, Kernel* kernel) const {
    if (kernel->most_row_blocks == 0) return;
    const Target& target = device_->target();
    std::int64_t at_once = 0;
    if (kernel->launched_cluster() > 1) {
        LaunchGeometry geometry = geometry_of(*kernel);
        geometry.grid = static_cast<std::uint32_t>(kernel->most_row_blocks) * geometry.cluster;
        at_once = device_->clusters_at_once(loaded.function, geometry);
    } else if (target.backend == Backend::kCuda && kernel->slots_axis >= 0 && loaded.registers > 0) {
        const std::int64_t blocks = blocks_beside(*kernel, target, loaded.registers) * target.sm_count;
        at_once = std::max<std::int64_t>(1, blocks / kernel->schedule.column_blocks);
    }
    if (at_once > 0) kernel->most_row_blocks = std::min(kernel->most_row_blocks, at_once);
}

LaunchPlan::Launch LaunchPlan::make_launch(const Step& step, const LoadedStep& loaded) const {
    Launch launch;
    launch.function = loaded.function;
    launch.kernel = &step.kernel;
    launch.geometry = geometry_of(step.kernel);
    if (step.product) launch.product = static_cast<int>(*step.product);
    for (const AxisId axis : step.kernel.row_axes) {
        const auto place = std::find(extent_axes_.begin(), extent_axes_.end(), axis);
        const bool given = place != extent_axes_.end();
        launch.row_axes.push_back({given ? static_cast<int>(place - extent_axes_.begin()) : -1,
                                   step.kernel.axis(axis).extent, contains(step.kernel.outer, axis)});
    }
    if (step.kernel.slots_axis >= 0) {
        const auto place = std::find(extent_axes_.begin(), extent_axes_.end(), step.kernel.slots_axis);
        launch.slots_place = static_cast<int>(place - extent_axes_.begin());
    }
    for (std::size_t i = 0; launch.slots_place >= 0 && i < tensors_.size(); ++i) {
        const std::vector<int>& places = tensors_[i].extent_places;
        if (!places.empty() && places[0] == launch.slots_place) launch.parts.push_back(static_cast<int>(i));
    }
    if (step.kernel.arguments.size() > kMaxParameters) {
        fail(ErrorCode::kUnsupported, "kernel {} has {} parameters; at most {} are supported; split the graph",
             step.kernel.name, step.kernel.arguments.size(), kMaxParameters);
    }
    for (const KernelArgument& argument : step.kernel.arguments)
        launch.parameters.push_back(make_parameter(step, argument));
    if (step.needed) {
        const auto place = std::find(extent_axes_.begin(), extent_axes_.end(), step.needed->axis);
        launch.needed_place = static_cast<int>(place - extent_axes_.begin());
        launch.needed_above = step.needed->above;
        launch.stays = step.stays;
    }
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
            return {From::kColumnStride, tensor, 0, promoted_stride(step, argument, tensor)};
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
        case KernelArgument::Kind::kMatrix: return {From::kMatrix, argument.index};
        case KernelArgument::Kind::kSide: return {From::kSide, argument.index};
    }
    RJ_CHECK(false, "argument kind {}", static_cast<int>(argument.kind));
}

// Elements between neighbours along a column axis that the planner promoted: as it was declared, or as the planner says
// where it divided what was declared.
std::int64_t LaunchPlan::promoted_stride(const Step& step, const KernelArgument& argument, int tensor) const {
    const ProgramTensor& declared = program_.tensors[static_cast<std::size_t>(tensor)];
    if (contains(declared.axes, argument.axis)) return stride_in(argument.axis, tensor).columns;
    const auto known = step.kernel.known_stride(argument);
    RJ_CHECK(known, "{}: no axis {}", declared.name, argument.axis);
    return *known;
}

LaunchPlan::ProductAxis::Stride LaunchPlan::stride_in(AxisId axis, int tensor) const {
    const TensorFacts& facts = tensors_[static_cast<std::size_t>(tensor)];
    const ProgramTensor& declared = program_.tensors[static_cast<std::size_t>(tensor)];
    const auto row = std::find(facts.row_axes.begin(), facts.row_axes.end(), axis);
    if (row != facts.row_axes.end()) return {static_cast<int>(row - facts.row_axes.begin()), 0};
    const auto place = std::find(declared.axes.begin(), declared.axes.end(), axis) - declared.axes.begin();
    return {-1, declared.column_strides[static_cast<std::size_t>(place) - facts.row_axes.size()]};
}

LaunchPlan::ProductAxis LaunchPlan::make_axis(AxisId axis, int first, int second) const {
    ProductAxis result{.first = stride_in(axis, first), .second = stride_in(axis, second)};
    result.extent = program_.axes[static_cast<std::size_t>(axis)].extent;
    result.is_blocks = axis == program_.division.blocks;
    const auto place = std::find(extent_axes_.begin(), extent_axes_.end(), axis);
    if (place != extent_axes_.end()) result.extent_place = static_cast<int>(place - extent_axes_.begin());
    return result;
}

// In a chunk of a loop over them. What a launch gives is the rows, for every power of two of which a product has an
// algorithm; this is what it is chosen for beside.
std::int64_t LaunchPlan::typical_blocks() const {
    constexpr std::int64_t kTypicalColumns = 2048;
    const auto axis = [&](AxisId id) { return program_.axes[static_cast<std::size_t>(id)]; };
    return std::clamp<std::int64_t>(kTypicalColumns / axis(program_.division.within).extent, 1,
                                    axis(program_.division.blocks).blocks);
}

void LaunchPlan::note_alignment(int tensor, std::int64_t alignment_bytes) {
    std::int64_t& noted = tensors_[static_cast<std::size_t>(tensor)].alignment_bytes;
    if (device_->target().is_gpu()) noted = std::max(noted, alignment_bytes);
}

LaunchPlan::ProductLaunch LaunchPlan::make_product(const ProductStep& step, StreamHandle stream) {
    ProductLaunch launch;
    launch.step = &step;
    const auto tensor = [&](int index) -> const ProgramTensor& {
        return program_.tensors[static_cast<std::size_t>(index)];
    };
    const ProgramTensor& left = tensor(step.left);
    const ProgramTensor& right = tensor(step.right);
    launch.left_transposed = !contains(step.contracted, left.axes.back());
    launch.right_transposed = contains(step.contracted, right.axes.back());
    GemmShape typical{1, 1, 1};
    const auto add = [&](std::vector<ProductAxis>* side, std::int64_t* extent, AxisId axis, int first, int second) {
        side->push_back(make_axis(axis, first, second));
        *extent *= side->back().is_blocks ? typical_blocks() : std::max<std::int64_t>(0, side->back().extent);
    };
    for (const AxisId axis : left.axes) {
        if (!contains(step.contracted, axis)) add(&launch.m, &typical.m, axis, step.left, step.result);
    }
    for (const AxisId axis : right.axes) {
        if (!contains(step.contracted, axis)) add(&launch.n, &typical.n, axis, step.right, step.result);
    }
    for (const AxisId axis : step.contracted) add(&launch.k, &typical.k, axis, step.left, step.right);
    GemmType type{left.dtype,
                  right.dtype,
                  tensor(step.result).dtype,
                  launch.left_transposed,
                  launch.right_transposed,
                  dense_alignment(program_.axes, left),
                  dense_alignment(program_.axes, right),
                  dense_alignment(program_.axes, tensor(step.result))};
    note_alignment(step.left, type.left_alignment_bytes);
    note_alignment(step.right, type.right_alignment_bytes);
    note_alignment(step.result, type.result_alignment_bytes);
    if (!step.by_kernel) launch.to_result = device_->make_gemm(type, typical, stream);
    if (step.accumulator < 0) return launch;
    type.result = tensor(step.accumulator).dtype;
    type.result_alignment_bytes = dense_alignment(program_.axes, tensor(step.accumulator));
    launch.to_accumulator = device_->make_gemm(type, typical, stream);
    launch.shared = shared_rows(program_, step);
    if (launch.shared.rows > 0) note_alignment(step.result, kAccessBytes);
    return launch;
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

}  // namespace rowjit
