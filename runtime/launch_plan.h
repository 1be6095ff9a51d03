// A Program made ready to launch: modules loaded, functions resolved, and for every kernel parameter the place its
// value comes from. A launch reads Arguments, fills arrays on the stack and hands them to the device.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "compiler/compile.h"
#include "rowjit/engine.h"
#include "runtime/device.h"
#include "runtime/gemm/gemm.h"

namespace rowjit {

// One step's loaded code; modules are shared between executables that use the same kernel.
struct LoadedStep {
    std::shared_ptr<Module> module;
    Function function;
    int registers = 0;  // a thread's; 0 where nobody says
};

class LaunchPlan {
  public:
    // `loaded` has one entry per kernel of the program; its products are made here, for which `stream` is the one about
    // to be launched on. Throws Error(kUnsupported) for a kernel with more parameters than a launch carries, and what
    // DeviceImpl::make_gemm throws.
    LaunchPlan(Program program, std::vector<LoadedStep> loaded, std::shared_ptr<DeviceImpl> device,
               StreamHandle stream = nullptr);

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
    static constexpr std::size_t kMaxExtents = 64;
    static constexpr std::size_t kMaxLoops = 2;
    static constexpr int kOutside = -1;                     // of all loops
    static constexpr std::size_t kWorkspaceAlignment = 64;  // of the caller's block: every device allocator gives it

    // A tensor's layout, as far as it is known before the row extents are.
    struct TensorFacts {
        std::vector<AxisId> row_axes;
        std::vector<int> extent_places;     // of each row axis; -1 for a static extent
        std::vector<std::int64_t> extents;  // of each row axis; for run-time ones, a placeholder
        std::int64_t column_span = 1;       // elements from a row's first to one past its last
        std::size_t element_bytes = 4;
        std::int64_t alignment_bytes = 1;  // of the address and of row strides
        int alias = -1;                    // the tensor it may share memory with
        int over = -1;                     // a temporary: the one in whose memory it lies
        bool output = false;
        bool in_tiles = false;                            // it takes no memory
        std::array<int, kMaxLoops> loop_axes = {-1, -1};  // the divided axis's position among row_axes, by loop
        int within = kOutside;                            // the loop of which it holds one chunk
        bool beside = false;                              // and that in the workspace, whatever is lent to the loop
        bool accumulator = false;                         // there where the first loop has several chunks
        std::int64_t shared_bytes = 0;                    // of an accumulator: SharedRows's

        // Whether each chunk of a loop has its own part of it.
        bool is_divided_by(std::size_t loop) const { return loop_axes[loop] >= 0 && within != static_cast<int>(loop); }
        bool holds_chunk_along(std::size_t axis) const {
            return within >= 0 && loop_axes[static_cast<std::size_t>(within)] == static_cast<int>(axis);
        }
    };

    // Where one kernel parameter's value comes from.
    struct Parameter {
        enum class From : std::uint8_t { kTensor, kRowStride, kColumnStride, kExtent, kScalar, kMatrix, kSide };
        From from = From::kTensor;
        int index = 0;           // tensor, extent place or scalar; of the kernel's product operand or side
        int axis = 0;            // kRowStride: position among the tensor's row axes
        std::int64_t value = 0;  // kColumnStride: a promoted axis's stride
        Dtype dtype = Dtype::kF32;
    };

    struct RowAxis {
        int place = -1;  // of its extent at launch; -1: it is `extent`
        std::int64_t extent = 1;
        bool outer = false;  // of Kernel::outer
    };

    struct Launch {
        Function function;
        LaunchGeometry geometry;
        const Kernel* kernel = nullptr;
        std::vector<Parameter> parameters;
        std::vector<RowAxis> row_axes;  // of the kernel's row space
        int slots_place = -1;           // the run-time axis whose extent is the number of parts of its sums over rows
        int loop = kOutside;
        int product = -1;        // of products_, which the kernel makes itself
        std::vector<int> parts;  // tensors along the slots, their outermost axis
        int needed_place = -1;   // of the extent that says whether it is launched; -1 where it always is
        std::int64_t needed_above = 0;
        std::vector<Step::Stay> stays = {};  // where it is not
    };

    // An axis of a product: its extent, and where its stride in two of the tensors comes from.
    struct ProductAxis {
        struct Stride {
            int row = -1;              // position among the tensor's row axes
            std::int64_t columns = 0;  // else a declared one
        };
        int extent_place = -1;
        std::int64_t extent = 1;
        bool is_blocks = false;  // of columns; the last may have fewer than the others
        Stride first;            // of a side of the left operand and the result: in these; and so on
        Stride second;
    };

    struct ProductLaunch {
        const ProductStep* step = nullptr;
        std::shared_ptr<const Gemm> to_result;
        std::shared_ptr<const Gemm> to_accumulator;
        bool left_transposed = false;
        bool right_transposed = false;
        std::vector<ProductAxis> m;  // in left and result, outermost first
        std::vector<ProductAxis> n;  // in right and result
        std::vector<ProductAxis> k;  // in left and right
        int loop = kOutside;
        bool sums_chunks = false;
        SharedRows shared;  // of the accumulator
        // Accumulator and result as the kernel sees them that rounds some rows at a time, and the place of their axis.
        int rounded_sum = -1;
        int rounded_result = -1;
        int rounded_place = -1;
    };

    // A side of a product at a launch: axes that follow each other without gaps are one.
    struct Side {
        struct Outer {
            std::int64_t extent;
            std::int64_t first;
            std::int64_t second;
        };
        std::int64_t extent = 1;
        std::int64_t first = 0;  // strides of the innermost
        std::int64_t second = 0;
        Outer outer[Arguments::kMaxRowAxes];
        int outer_count = 0;
        bool empty = false;
    };

    // A product that a kernel makes itself, at a launch.
    struct OwnSides {
        std::int64_t extents[3];  // of its rows, its columns and what is contracted
        TensorMap operands[2];
        std::uint32_t blocks;  // to launch
    };

    // A run-time axis whose extent is a product of others', `times` what does not change, and `more`.
    struct Following {
        std::size_t place = 0;  // among the extents
        std::vector<std::size_t> followed = {};
        std::int64_t times = 1;
        std::int64_t more = 0;
    };

    // Extents of the run-time axes, and row strides and address of every tensor, for one launch.
    struct Resolved {
        std::int64_t extents[kMaxExtents];
        void* data[kMostTensors];
        std::int64_t row_strides[kMostTensors][Arguments::kMaxRowAxes];
        ChunkChoice loops[kMaxLoops];
        std::int64_t position_bytes[kMaxLoops];  // of a position of the divided axis, in what is of one chunk
        std::int64_t columns_short = 0;          // of a chunk of blocks of columns: what the last block lacks
        std::byte* chunk_place;                  // in the workspace, of what is of one chunk
        void* gemm_workspace;
    };

    // A run of positions of a divided axis.
    struct Chunk {
        std::int64_t start = 0;
        std::int64_t positions = 0;
        bool in_rest = false;  // lies behind what the loop has written of an output
    };

    bool is_given(std::size_t extent_place) const noexcept {
        return program_.axes[static_cast<std::size_t>(extent_axes_[extent_place])].is_given();
    }
    void find_tensor_facts();
    void keep_to_device(const LoadedStep& loaded, Kernel* kernel) const;
    Launch make_launch(const Step& step, const LoadedStep& loaded) const;
    Parameter make_parameter(const Step& step, const KernelArgument& argument) const;
    ProductLaunch make_product(const ProductStep& step, StreamHandle stream);
    ProductAxis make_axis(AxisId axis, int first, int second) const;
    std::int64_t promoted_stride(const Step& step, const KernelArgument& argument, int tensor) const;
    ProductAxis::Stride stride_in(AxisId axis, int tensor) const;
    std::int64_t typical_blocks() const;
    void note_alignment(int tensor, std::int64_t alignment_bytes);
    std::size_t resolve(const Arguments& arguments, Resolved* resolved) const noexcept;
    void divide(Resolved* resolved) const noexcept;
    static bool is_needed(const Launch& launch, const Resolved& resolved) noexcept;
    void place_chunks(std::byte* block, Resolved* resolved, std::size_t* workspace) const noexcept;
    std::int64_t lay_out(std::size_t tensor, const std::int64_t* given, Resolved* resolved) const noexcept;
    std::size_t place_chunk(std::size_t loop, std::byte* place, std::byte* lent, Resolved* resolved) const noexcept;
    std::int64_t block_bytes(std::size_t loop) const noexcept;
    void place_behind_written(std::size_t loop, const Chunk& chunk, const Resolved& whole,
                              Resolved* part) const noexcept;
    Chunk chunk_at(std::size_t loop, std::int64_t start, const Resolved& whole) const noexcept;
    void see_chunk(std::size_t loop, const Chunk& chunk, const Resolved& whole, Resolved* part) const noexcept;
    std::int64_t parts_of(const Launch& launch, const Resolved& resolved, std::int64_t positions) const noexcept;
    std::int64_t tensor_extent(std::size_t tensor, std::size_t axis, const Resolved& resolved) const noexcept;
    std::size_t gemm_workspace_bytes(const Resolved& resolved) const noexcept;
    Side side_of(const std::vector<ProductAxis>& axes, int first, int second, const Resolved& resolved) const noexcept;
    Status run(const PlanStep& step, const Resolved& resolved, const Arguments& arguments, std::int64_t start,
               StreamHandle stream) const noexcept;
    Status round(const ProductLaunch& product, const Launch& launch, const Resolved& whole, const Arguments& arguments,
                 StreamHandle stream) const noexcept;
    Status run_loop(std::size_t loop, const Resolved& resolved, const Arguments& arguments,
                    StreamHandle stream) const noexcept;
    Status launch_kernel(const Launch& launch, const Resolved& resolved, const Arguments& arguments,
                         StreamHandle stream) const noexcept;
    Status multiply(const ProductLaunch& product, const Resolved& resolved, std::int64_t start,
                    StreamHandle stream) const noexcept;
    Status find_own_sides(const Launch& launch, const Resolved& resolved, OwnSides* sides) const noexcept;
    const char* queue(const Gemm& gemm, const GemmShape& shape, const GemmCall& call, std::size_t element_bytes,
                      StreamHandle stream) const noexcept;
    const char* clear(void* result, std::size_t element_bytes, const GemmShape& shape,
                      StreamHandle stream) const noexcept;
    Status check(const Arguments& arguments, const Resolved& resolved) const noexcept;
    Status check_tensor(std::size_t index, const Arguments& arguments, const Resolved& resolved) const noexcept;
    void resolve_extents(const Arguments& arguments, Resolved* resolved) const noexcept;
    // Where a loop's `positions` are given, of that many along the axis that it divides.
    RowCounts rows_of(const Launch& launch, const Resolved& resolved, std::int64_t positions = -1) const noexcept;
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
    std::vector<ProductLaunch> products_;
    std::array<int, kMaxLoops> loop_places_ = {-1, -1};  // of the divided axes among the extents
};

}  // namespace rowjit
