// Arguments and Executable: thin faces of the launch plan.
#include <algorithm>

#include "base/fail.h"
#include "runtime/launch_plan.h"

namespace rowjit {

Arguments::Arguments(std::shared_ptr<const LaunchPlan> plan)
    : plan_(std::move(plan)),
      tensors_(plan_->argument_tensors()),
      extents_(plan_->run_time_axes(), -1),
      scalars_(plan_->default_scalars()) {}

Arguments& Arguments::tensor(std::string_view name, void* data, std::span<const std::int64_t> row_strides) {
    return tensor(plan_->tensor_place(name), data, row_strides);
}

Arguments& Arguments::tensor(std::string_view name, const void* data, std::span<const std::int64_t> row_strides) {
    const int place = plan_->tensor_place(name);
    const ProgramTensor& declared = plan_->program().tensors[static_cast<std::size_t>(place)];
    if (declared.place == ProgramTensor::Place::kOutput) {
        fail(ErrorCode::kInvalidArgument, "output '{}' is written; pass an address that is not const", name);
    }
    return tensor(place, const_cast<void*>(data), row_strides);  // inputs are only read
}

Arguments& Arguments::tensor(int place, void* data, std::span<const std::int64_t> row_strides) {
    if (place < 0 || static_cast<std::size_t>(place) >= tensors_.size()) {
        fail(ErrorCode::kInvalidArgument, "tensor place {} is not in 0 … {}", place,
             static_cast<std::int64_t>(tensors_.size()) - 1);
    }
    const std::size_t wanted = plan_->row_axis_count(place);
    if (!row_strides.empty() && row_strides.size() != wanted) {
        fail(ErrorCode::kInvalidArgument, "tensor '{}': {} row strides for {} row axes",
             plan_->program().tensors[static_cast<std::size_t>(place)].name, row_strides.size(), wanted);
    }
    TensorArgument& argument = tensors_[static_cast<std::size_t>(place)];
    argument.data = data;
    argument.set = true;
    argument.strided = !row_strides.empty();
    std::copy(row_strides.begin(), row_strides.end(), std::begin(argument.row_strides));
    return *this;
}

Arguments& Arguments::rows(std::string_view axis, std::int64_t extent) {
    if (extent < 0) fail(ErrorCode::kInvalidArgument, "row axis '{}': the extent {} is negative", axis, extent);
    extents_[static_cast<std::size_t>(plan_->extent_place(axis))] = extent;
    return *this;
}

Arguments& Arguments::scalar(std::string_view name, double value) {
    scalars_[static_cast<std::size_t>(plan_->scalar_place(name))] = value;
    return *this;
}

Arguments& Arguments::workspace(void* block, std::size_t bytes) {
    workspace_ = block;
    workspace_bytes_ = bytes;
    return *this;
}

Arguments Executable::arguments() const { return Arguments(plan_); }
int Executable::tensor_place(std::string_view name) const { return plan_->tensor_place(name); }
std::size_t Executable::workspace_bytes(const Arguments& arguments) const { return plan_->workspace_bytes(arguments); }
Status Executable::launch(Stream stream, const Arguments& arguments) const noexcept {
    return plan_->launch(stream, arguments);
}
int Executable::kernel_count() const { return static_cast<int>(plan_->program().steps.size()); }

}  // namespace rowjit
