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

constexpr std::size_t kWorkspaceAlignment = 64;  // of the caller's block: every device allocator gives it
constexpr std::int64_t kAccessBytes = 16;        // the widest single access of emitted code

LaunchGeometry geometry_of(const Kernel& kernel) {
    LaunchGeometry geometry;
    geometry.block = static_cast<std::uint32_t>(kernel.block_threads());
    geometry.shared_bytes = static_cast<std::uint32_t>(kernel.shared_bytes);
    geometry.cluster = static_cast<std::uint32_t>(kernel.cluster_blocks());
    geometry.overlaps = kernel.neighbours.waits;
    return geometry;
}

std::size_t align_up(std::size_t bytes) { return (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment; }

// A launch must not allocate, so its message lives in a buffer of the thread.
template <class... Args>
Status refuse(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) noexcept {
    static thread_local std::array<char, 1280> buffer;
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

bool is_axis_of_tensor(const Program& program, AxisId axis) {
    return std::any_of(program.tensors.begin(), program.tensors.end(),
                       [&](const ProgramTensor& tensor) { return contains(tensor.axes, axis); });
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
        if (axis.follows >= 0) following_.push_back({i, place_of(axis.follows), axis.more});
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
    for (std::size_t i = 0; i < loaded_.size(); ++i) keep_to_device(loaded_[i].function, &program_.steps[i].kernel);
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

// Clusters that stay for many rows are as many as run at the same time: one too many would wait for all others to end.
// How many that are depends on which multiprocessors a device has left, of which its description says nothing.
void LaunchPlan::keep_to_device(Function function, Kernel* kernel) const {
    if (kernel->most_row_blocks == 0 || kernel->cluster_blocks() == 1) return;
    LaunchGeometry geometry = geometry_of(*kernel);
    geometry.grid = static_cast<std::uint32_t>(kernel->most_row_blocks) * geometry.cluster;
    const std::int64_t at_once = device_->clusters_at_once(function, geometry);
    if (at_once > 0) kernel->most_row_blocks = std::min(kernel->most_row_blocks, at_once);
}

LaunchPlan::Launch LaunchPlan::make_launch(const Step& step, const LoadedStep& loaded) const {
    Launch launch;
    launch.function = loaded.function;
    launch.kernel = &step.kernel;
    launch.geometry = geometry_of(step.kernel);
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

namespace {

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
    launch.to_result = device_->make_gemm(type, typical, stream);
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

std::int64_t LaunchPlan::row_extent(const TensorFacts& tensor, std::size_t axis, const Resolved& resolved) noexcept {
    const int place = tensor.extent_places[axis];
    return place < 0 ? tensor.extents[axis] : resolved.extents[place];
}

RowCounts LaunchPlan::rows_of(const Launch& launch, const Resolved& resolved, std::int64_t positions) const noexcept {
    const int divided = launch.loop < 0 || positions < 0 ? -1 : loop_places_[static_cast<std::size_t>(launch.loop)];
    RowCounts rows;
    for (const RowAxis& axis : launch.row_axes) {
        const std::int64_t extent = axis.place < 0 ? axis.extent : resolved.extents[axis.place];
        (axis.outer ? rows.outer : rows.inner) *= axis.place >= 0 && axis.place == divided ? positions : extent;
    }
    return rows;
}

std::int64_t LaunchPlan::tensor_extent(std::size_t tensor, std::size_t axis, const Resolved& resolved) const noexcept {
    const TensorFacts& facts = tensors_[tensor];
    return facts.holds_chunk_along(axis) ? resolved.loops[facts.within].positions : row_extent(facts, axis, resolved);
}

// Parts of sums over rows, of as many rows as the kernel has, but in a loop for those of the divided axis: `positions`
// of it.
std::int64_t LaunchPlan::parts_of(const Launch& launch, const Resolved& resolved,
                                  std::int64_t positions) const noexcept {
    return slots_of(*launch.kernel, rows_of(launch, resolved, positions));
}

// What the caller set, then the slots of kernels that sum over their rows: as many as they have blocks along the rows,
// of all chunks.
void LaunchPlan::resolve_extents(const Arguments& arguments, Resolved* resolved) const noexcept {
    for (std::size_t i = 0; i < argument_extents_; ++i) resolved->extents[i] = arguments.extents_[i];
    for (const Following& axis : following_) {
        resolved->extents[axis.place] = resolved->extents[axis.followed] + axis.more;
    }
    for (std::size_t i = 0; i < argument_extents_; ++i) {
        const std::int64_t blocks = program_.axes[static_cast<std::size_t>(extent_axes_[i])].blocks;
        if (blocks > 0) resolved->extents[i] = blocks;
    }
    divide(resolved);
    for (const Launch& launch : launches_) {
        if (launch.slots_place < 0) continue;
        std::int64_t& slots = resolved->extents[launch.slots_place];
        if (launch.loop < 0) {
            slots = parts_of(launch, *resolved, -1);
            continue;
        }
        const auto loop = static_cast<std::size_t>(launch.loop);
        const ChunkChoice& share = resolved->loops[loop];
        const std::int64_t before = share.chunks - 1;
        const std::int64_t rest = resolved->extents[loop_places_[loop]] - before * share.positions;
        slots = before * parts_of(launch, *resolved, share.positions) + parts_of(launch, *resolved, rest);
    }
}

void LaunchPlan::divide(Resolved* resolved) const noexcept {
    ChunkBytes bytes[kMaxLoops];
    std::int64_t others = 0;
    for (std::size_t i = argument_tensors_; i < tensors_.size(); ++i) {
        const TensorFacts& facts = tensors_[i];
        if (facts.over >= 0) continue;
        std::int64_t rows = 1;
        bool slots = false;
        for (std::size_t axis = 0; axis < facts.row_axes.size(); ++axis) {
            if (facts.holds_chunk_along(axis)) continue;
            slots = slots || facts.extent_places[axis] >= static_cast<int>(argument_extents_);
            if (!slots) rows *= row_extent(facts, axis, *resolved);
        }
        if (slots) continue;
        const std::int64_t taken = rows * facts.column_span * static_cast<std::int64_t>(facts.element_bytes);
        if (facts.within >= 0) {
            ChunkBytes& chunk = bytes[facts.within];
            chunk.position_rows = std::max(chunk.position_rows, rows);
            (facts.beside ? chunk.beside_position : chunk.of_position) += taken;
        } else {
            (facts.accumulator ? bytes[0].accumulators : others) += taken;
            bytes[0].shared += facts.shared_bytes;
        }
    }
    for (std::size_t i = 0; i < program_.loops.size(); ++i) {
        const ProgramLoop& loop = program_.loops[i];
        bytes[i].others = others;
        if (!loop.writes_lender) bytes[i].lent = lent_bytes(program_, loop);
        bytes[i].lent_to_several = loop.lender_is_rounded;
        if (loop.axis == program_.division.blocks)
            bytes[i].position_rows = program_.axes[static_cast<std::size_t>(program_.division.within)].extent;
        resolved->loops[i] = loop.costs.divide(resolved->extents[loop_places_[i]], bytes[i]);
        resolved->position_bytes[i] = bytes[i].of_position;
    }
}

// Addresses and strides of every tensor; returns the workspace bytes the temporaries and the products take.
std::size_t LaunchPlan::resolve(const Arguments& arguments, Resolved* resolved) const noexcept {
    resolve_extents(arguments, resolved);
    std::size_t workspace = 0;
    auto* const block = static_cast<std::byte*>(arguments.workspace_);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        const TensorFacts& facts = tensors_[i];
        const bool temporary = i >= argument_tensors_;
        const bool strided = !temporary && arguments.tensors_[i].strided;
        const std::int64_t elements = lay_out(i, strided ? arguments.tensors_[i].row_strides : nullptr, resolved);
        if (!temporary) {
            resolved->data[i] = arguments.tensors_[i].data;
            continue;
        }
        resolved->data[i] = block + workspace;
        const bool unused = facts.accumulator && resolved->loops[0].chunks == 1;
        if (facts.over >= 0 || facts.within >= 0 || unused) continue;
        const std::int64_t shared = facts.accumulator && resolved->loops[0].shared ? facts.shared_bytes : 0;
        workspace +=
            align_up(static_cast<std::size_t>(elements) * facts.element_bytes - static_cast<std::size_t>(shared));
    }
    place_chunks(block, resolved, &workspace);
    for (std::size_t i = argument_tensors_; i < tensors_.size(); ++i) {
        if (tensors_[i].over >= 0) resolved->data[i] = resolved->data[tensors_[i].over];
    }
    for (const Launch& launch : launches_) {  // in their order: one stays what another has stayed
        if (is_needed(launch, *resolved)) continue;
        for (const Step::Stay& stay : launch.stays) resolved->data[stay.stored] = resolved->data[stay.otherwise];
    }
    const std::size_t product_bytes = products_.empty() ? 0 : gemm_workspace_bytes(*resolved);
    if (product_bytes == 0) {
        resolved->gemm_workspace = nullptr;
        return workspace;
    }
    // The caller's block is less aligned than a product's workspace has to be: wherever it lies, there is room.
    const auto address = reinterpret_cast<std::uintptr_t>(block) + workspace;
    resolved->gemm_workspace = block + workspace + (0 - address) % kGemmWorkspaceAlignment;
    return workspace + align_up(product_bytes) + kGemmWorkspaceAlignment - kWorkspaceAlignment;
}

bool LaunchPlan::is_needed(const Launch& launch, const Resolved& resolved) noexcept {
    return launch.needed_place < 0 || resolved.extents[launch.needed_place] > launch.needed_above;
}

// A tensor's row strides, contiguous where none are given; returns the elements it spans.
std::int64_t LaunchPlan::lay_out(std::size_t tensor, const std::int64_t* given, Resolved* resolved) const noexcept {
    const TensorFacts& facts = tensors_[tensor];
    std::int64_t inside = facts.column_span;
    for (std::size_t axis = facts.row_axes.size(); axis-- > 0;) {
        const std::int64_t stride = given != nullptr ? given[axis] : inside;
        resolved->row_strides[tensor][axis] = stride;
        inside = std::max(inside, inside + (tensor_extent(tensor, axis, *resolved) - 1) * stride);
    }
    return inside;
}

// What is of one chunk: of every loop in the same memory, or in that of an output which is written later.
void LaunchPlan::place_chunks(std::byte* block, Resolved* resolved, std::size_t* workspace) const noexcept {
    std::size_t most = 0;
    for (std::size_t loop = 0; loop < program_.loops.size(); ++loop) {
        auto* const lent = resolved->loops[loop].lent ? resolved->data[program_.loops[loop].lender] : nullptr;
        most = std::max(most, place_chunk(loop, block + *workspace, static_cast<std::byte*>(lent), resolved));
    }
    resolved->chunk_place = block + *workspace;
    *workspace += most;
}

// The temporaries of one chunk of as many positions as the loop has, large ones where memory is lent; returns the bytes
// that they take of `place`.
std::size_t LaunchPlan::place_chunk(std::size_t loop, std::byte* place, std::byte* lent,
                                    Resolved* resolved) const noexcept {
    std::size_t taken = 0;
    std::size_t borrowed = 0;
    for (std::size_t i = argument_tensors_; i < tensors_.size(); ++i) {
        if (tensors_[i].within != static_cast<int>(loop)) continue;
        const std::int64_t elements = lay_out(i, nullptr, resolved);
        if (tensors_[i].over >= 0) continue;
        const bool borrows = lent != nullptr && !tensors_[i].beside;
        std::size_t& offset = borrows ? borrowed : taken;
        resolved->data[i] = (borrows ? lent : place) + offset;
        offset += align_up(static_cast<std::size_t>(elements) * tensors_[i].element_bytes);
    }
    for (std::size_t i = argument_tensors_; i < tensors_.size(); ++i) {
        const TensorFacts& facts = tensors_[i];
        if (facts.within == static_cast<int>(loop) && facts.over >= 0) resolved->data[i] = resolved->data[facts.over];
    }
    return taken;
}

std::size_t LaunchPlan::workspace_bytes(const Arguments& arguments) const {
    if (tensors_.size() == argument_tensors_ && products_.empty()) return 0;
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
        // Of a planner's group by itself: columns of the program that it is of, whose stride was declared there.
        if (program_.axes[static_cast<std::size_t>(facts.row_axes[axis])].is_promoted) continue;
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

// As the model wants it where an output's part that is not written yet has room, else as the workspace has.
LaunchPlan::Chunk LaunchPlan::chunk_at(std::size_t loop, std::int64_t start, const Resolved& whole) const noexcept {
    const ProgramLoop& facts = program_.loops[loop];
    const std::int64_t left = whole.extents[loop_places_[loop]] - start;
    Chunk chunk{start, whole.loops[loop].positions};
    if (facts.writes_lender && whole.position_bytes[loop] > 0) {
        const std::int64_t block = program_.axes[static_cast<std::size_t>(program_.division.within)].extent;
        const std::int64_t written_bytes = block_bytes(loop);
        const std::int64_t fitting = (lent_bytes(program_, facts) - 2 * kPlaceAlignment - start * written_bytes) /
                                     (written_bytes + whole.position_bytes[loop]);
        const std::int64_t positions = facts.costs.choose_blocks(fitting, left, block, whole.position_bytes[loop]);
        if (positions >= chunk.positions) chunk = {start, positions, true};
    }
    chunk.positions = std::min(chunk.positions, left);
    return chunk;
}

// Of the output that a loop over blocks of columns writes: of a block.
std::int64_t LaunchPlan::block_bytes(std::size_t loop) const noexcept {
    const ProgramTensor& lender = program_.tensors[static_cast<std::size_t>(program_.loops[loop].lender)];
    const auto extent = [&](AxisId id) { return program_.axes[static_cast<std::size_t>(id)].extent; };
    return lender.column_strides[0] * extent(program_.division.within) *
           static_cast<std::int64_t>(size_bytes(lender.dtype));
}

// Each chunk sees its own positions of every tensor along the divided axis, and its own blocks' parts of sums.
void LaunchPlan::see_chunk(std::size_t loop, const Chunk& chunk, const Resolved& whole, Resolved* part) const noexcept {
    part->extents[loop_places_[loop]] = chunk.positions;
    if (program_.loops[loop].axis == program_.division.blocks) {
        const auto extent = [&](AxisId id) { return program_.axes[static_cast<std::size_t>(id)].extent; };
        const std::int64_t end = (chunk.start + chunk.positions) * extent(program_.division.within);
        part->columns_short = std::max<std::int64_t>(0, end - extent(program_.division.whole));
    }
    const auto at = [&](std::size_t tensor, std::int64_t elements) {
        return static_cast<std::byte*>(whole.data[tensor]) +
               elements * static_cast<std::int64_t>(tensors_[tensor].element_bytes);
    };
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        if (tensors_[i].is_divided_by(loop))
            part->data[i] = at(i, chunk.start * whole.row_strides[i][tensors_[i].loop_axes[loop]]);
    }
    if (program_.loops[loop].writes_lender) place_behind_written(loop, chunk, whole, part);
    for (const Launch& launch : launches_) {
        if (launch.loop != static_cast<int>(loop) || launch.slots_place < 0) continue;
        part->extents[launch.slots_place] = parts_of(launch, whole, chunk.positions);
        const std::int64_t each = whole.loops[loop].positions;
        const std::int64_t done = chunk.start / each * parts_of(launch, whole, each);
        for (const int tensor : launch.parts) {
            const auto i = static_cast<std::size_t>(tensor);
            part->data[i] = at(i, done * whole.row_strides[i][0]);
        }
    }
}

// At the end of the output, or in the workspace.
void LaunchPlan::place_behind_written(std::size_t loop, const Chunk& chunk, const Resolved& whole,
                                      Resolved* part) const noexcept {
    part->loops[loop].positions = chunk.in_rest ? chunk.positions : whole.loops[loop].positions;
    auto* const lender = static_cast<std::byte*>(whole.data[program_.loops[loop].lender]);
    const std::int64_t bytes = chunk.positions * whole.position_bytes[loop];
    std::byte* const place = lender + (lent_bytes(program_, program_.loops[loop]) - kPlaceAlignment - bytes);
    const auto past = reinterpret_cast<std::uintptr_t>(place) % kPlaceAlignment;
    place_chunk(loop, chunk.in_rest ? place - past : part->chunk_place, nullptr, part);
}

Status LaunchPlan::launch_kernel(const Launch& launch, const Resolved& resolved, const Arguments& arguments,
                                 StreamHandle stream) const noexcept {
    const RowCounts rows = rows_of(launch, resolved);
    if (rows.outer * rows.inner == 0 || !is_needed(launch, resolved)) return {};
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
            case Parameter::From::kScalar: values[i] = scalar_value(parameter.dtype, arguments.scalars_[index]); break;
        }
        pointers[i] = &values[i];
    }
    LaunchGeometry geometry = launch.geometry;
    geometry.grid = static_cast<std::uint32_t>(grid_blocks(*launch.kernel, rows));
    if (const char* refused = device_->launch(launch.function, geometry, stream, pointers.data())) {
        return refuse(ErrorCode::kLaunch, "kernel {}: {}", launch.kernel->name, refused);
    }
    return {};
}

// ---- Products ------------------------------------------------------------------------------------------------------

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
