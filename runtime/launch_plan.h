// A Program made ready to launch: modules loaded, functions resolved, and for every kernel parameter the place its
// value comes from. A launch reads Arguments, fills arrays on the stack and hands them to the device.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "compiler/compile.h"
#include "rowjit/engine.h"
#include "runtime/device.h"

namespace rowjit {

// One step's loaded code; modules are shared between executables that use the same kernel.
struct LoadedStep {
    std::shared_ptr<Module> module;
    Function function;
};

class LaunchPlan {
  public:
    // `loaded` has one entry per step of the program. Throws Error(kUnsupported) for a kernel with more parameters than
    // a launch carries.
    LaunchPlan(Program program, std::vector<LoadedStep> loaded, std::shared_ptr<DeviceImpl> device);

    const Program& program() const { return program_; }

    int tensor_place(std::string_view name) const;
    int extent_place(std::string_view axis) const;
    int scalar_place(std::string_view name) const;
    std::size_t row_axis_count(int tensor) const { return tensors_[static_cast<std::size_t>(tensor)].row_axes.size(); }
    std::size_t argument_tensors() const { return argument_tensors_; }
    std::size_t run_time_axes() const { return argument_extents_; }
    std::vector<double> default_scalars() const;

    std::size_t workspace_bytes(
        const Arguments& arguments) const;  // throws Error(kInvalidArgument) for an unset extent
    Status launch(StreamHandle stream, const Arguments& arguments) const noexcept;

  private:
    static constexpr std::size_t kMaxParameters = 256;
    static constexpr std::size_t kMaxTensors = 64;
    static constexpr std::size_t kMaxExtents = 64;

    // A tensor's layout, as far as it is known before the row extents are.
    struct TensorFacts {
        std::vector<AxisId> row_axes;
        std::vector<int> extent_places;     // of each row axis; -1 for a static extent
        std::vector<std::int64_t> extents;  // of each row axis; for run-time ones, a placeholder
        std::int64_t column_span = 1;       // elements from a row's first to one past its last
        std::size_t element_bytes = 4;
        std::int64_t alignment_bytes = 1;  // of the address and of row strides
        int alias = -1;                    // the tensor it may share memory with
        bool output = false;
    };

    // Where one kernel parameter's value comes from.
    struct Parameter {
        enum class From : std::uint8_t { kTensor, kRowStride, kColumnStride, kExtent, kScalar };
        From from = From::kTensor;
        int index = 0;           // tensor, extent place or scalar
        int axis = 0;            // kRowStride: position among the tensor's row axes
        std::int64_t value = 0;  // kColumnStride: a promoted axis's stride
        Dtype dtype = Dtype::kF32;
    };

    struct Launch {
        Function function;
        LaunchGeometry geometry;
        const Kernel* kernel = nullptr;
        std::vector<Parameter> parameters;
        std::vector<int> row_extent_places;  // run-time axes of the kernel's row space
        std::int64_t static_rows = 1;        // product of the static ones
        int slots_place = -1;                // the run-time axis whose extent is this kernel's number of row blocks
    };

    // A run-time axis whose extent is another's and `more`: places among the extents.
    struct Following {
        std::size_t place;
        std::size_t followed;
        std::int64_t more;
    };

    // Extents of the run-time axes, and row strides and address of every tensor, for one launch.
    struct Resolved {
        std::int64_t extents[kMaxExtents];
        void* data[kMaxTensors];
        std::int64_t row_strides[kMaxTensors][Arguments::kMaxRowAxes];
    };

    bool is_given(std::size_t extent_place) const noexcept {
        return program_.axes[static_cast<std::size_t>(extent_axes_[extent_place])].is_given();
    }
    void find_tensor_facts();
    Launch make_launch(const Step& step, const LoadedStep& loaded) const;
    Parameter make_parameter(const Step& step, const KernelArgument& argument) const;
    std::size_t resolve(const Arguments& arguments, Resolved* resolved) const noexcept;
    Status check(const Arguments& arguments, const Resolved& resolved) const noexcept;
    Status check_tensor(std::size_t index, const Arguments& arguments, const Resolved& resolved) const noexcept;
    void resolve_extents(const Arguments& arguments, Resolved* resolved) const noexcept;
    std::int64_t rows_of(const Launch& launch, const Resolved& resolved) const noexcept;
    static std::int64_t row_extent(const TensorFacts& tensor, std::size_t axis, const Resolved& resolved) noexcept;

    Program program_;
    std::vector<LoadedStep> loaded_;
    std::shared_ptr<DeviceImpl> device_;
    std::vector<AxisId> extent_axes_;  // run-time row axes: those of the arguments, in declaration order, then slots
    std::size_t argument_extents_ = 0;
    std::vector<Following> following_;
    std::vector<TensorFacts> tensors_;
    std::size_t argument_tensors_ = 0;  // inputs and outputs; temporaries follow
    std::vector<Launch> launches_;
};

}  // namespace rowjit
