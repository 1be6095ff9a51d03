// The spine: Graph → Plan → Kernel → Source. Everything here works from a Target; no device, no cache.
//
// What comes out is a Program: kernels in launch order, each with its schedule, and where each of its tensors comes
// from. Turning a kernel into an Artifact (a toolchain) and an Artifact into a launch (a device) is runtime/engine's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/declined.h"
#include "base/target.h"
#include "compiler/kernel.h"
#include "compiler/plan/chunk_costs.h"
#include "compiler/plan/chunks.h"
#include "compiler/plan/plan.h"
#include "compiler/schedule/choose.h"

namespace rowjit {

// Changes whenever emitted code may change for the same graph and schedule; part of every cache and tuning key.
inline constexpr std::int64_t kCodegenVersion = 42;

struct ProgramTensor {
    enum class Place : std::uint8_t { kInput, kOutput, kTemporary };
    Place place = Place::kInput;
    std::string name;
    Dtype dtype = Dtype::kF32;
    std::vector<AxisId> axes = {};                  // as declared; row and column axes
    std::vector<std::int64_t> column_strides = {};  // elements, one per column axis as declared
    std::string alias = {};                         // kOutput: the input it may share memory with
    int over = -1;                                  // kTemporary: the tensor in whose memory it lies
    bool in_tiles = false;                          // kTemporary: it takes no memory (plan/tile_sums.h)
};

struct ProgramScalar {
    std::string name;
    Dtype dtype = Dtype::kF32;
    double default_value = 0;
};

// Launches in which a row axis has more than so many positions.
struct ExtentAbove {
    AxisId axis = -1;
    std::int64_t above = 0;
};

struct Step {
    // A tensor that it stores, and the one that holds the same where it is not needed.
    struct Stay {
        int stored = -1;
        int otherwise = -1;
    };
    Group group;
    Kernel kernel;
    std::vector<int> tensors;                 // Program::tensors index of each of the kernel's tensors
    std::vector<int> scalars;                 // Program::scalars index of each of the kernel's scalars
    std::optional<std::size_t> product = {};  // of Program::products, which the kernel makes itself (own_products.h)
    std::optional<ExtentAbove> needed = {};   // other launches do without it (compiler/needless.h)
    std::vector<Stay> stays = {};             // what those read instead
};

// A Product (compiler/plan/plan.h) with its tensors found: Program::tensors indices.
struct ProductStep {
    std::string name;
    int left = -1;
    int right = -1;
    int result = -1;
    std::vector<AxisId> contracted;
    bool accumulate = false;
    int accumulator = -1;
    AxisId rounded_rows = -1;
    bool by_kernel = false;  // a kernel makes it, no library
};

struct ProgramLoop {
    AxisId axis = -1;
    std::size_t first = 0;  // of Program::order, [first, end)
    std::size_t end = 0;
    std::vector<int> within = {};  // tensors that hold one chunk
    std::vector<int> beside = {};  // those of them that the lender has no room for
    int lender = -1;               // ChunkLoop's, of Program::tensors
    bool writes_lender = false;
    bool lender_is_rounded = false;
    ChunkCosts costs = {};
};

struct Program {
    std::vector<AxisInfo> axes;
    std::vector<ProgramTensor> tensors;  // inputs in declaration order, then outputs, then temporaries
    std::vector<ProgramScalar> scalars;
    std::vector<Step> steps;            // the kernels, in launch order
    std::vector<ProductStep> products;  // likewise
    std::vector<PlanStep> order;        // of both, but for products that a kernel makes
    std::vector<ProgramLoop> loops;     // in launch order
    ColumnDivision division;
    std::vector<std::string> notes;  // the planner's, for `explain`
};

// Where each of several tensors begins in memory that kernels and products use: with a block from a GPU's allocator no
// row of whole lines, of 128 bytes, lies across them.
inline constexpr std::int64_t kPlaceAlignment = 256;

// Of the program's tensors the one of that name.
int find_tensor(const Program& program, std::string_view name);

// Of the output that lends a loop its memory, for tensors placed with this alignment; 0 where none does. Its axes are
// columns.
std::int64_t lent_bytes(const Program& program, const ProgramLoop& loop);

// The first rows of a product's accumulator, which may lie in the memory of its result: at its end, so that rows which
// are rounded in their order, as many at a time as have room before the first that is not yet, need no other memory.
struct SharedRows {
    std::int64_t rows = 0;  // 0 where nothing may lie there
    std::int64_t bytes = 0;
    std::int64_t offset_bytes = 0;  // of the first in the result
};
SharedRows shared_rows(const Program& program, const ProductStep& product);

// Picks a group's schedule: a tuned choice, or nothing for the static one.
using ScheduleChoice = std::function<std::optional<Schedule>(const Group&)>;

// Compiles a graph to kernels for `target`. A choice that does not lower falls back to the static one. Throws
// Error(kInvalidGraph) for a graph without outputs and Error(kUnsupported) for what no schedule can run, with the
// reason each family gave.
Program compile(const GraphData& graph, const Target& target, const ScheduleChoice& choice = {},
                const ChunkOptions& chunks = {});

// The group's kernel as a step of the program, whose tensors and scalars it names.
Step make_step(const Program& program, Group group, Kernel kernel);

// One group with one schedule, through every pass.
Offer<Kernel> build_kernel(const Group& group, const Schedule& schedule, const Target& target);

// All schedules of all families that build: first the one that compile() takes where no choice is given, then the
// others in the order of the static rules.
std::vector<Schedule> legal_schedules(const Group& group, const Target& target);

// Canonicalised and planned, no schedules chosen: for the tuner and `explain`.
Plan plan_graph(const GraphData& graph, const Target& target, const ChunkOptions& chunks = {});

// compile() of a graph whose plan is known, as where one is compiled with many schedules.
Program compile_plan(const GraphData& graph, const Plan& plan, const Target& target, const ScheduleChoice& choice = {},
                     const ChunkOptions& chunks = {});

// Elements between neighbours along each axis of a contiguous tensor of these extents, innermost last.
std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& extents);

// The extents of a kernel's row space.
struct RowCounts {
    std::int64_t outer = 1;  // positions along Kernel::outer
    std::int64_t inner = 1;  // rows of each: positions along the others

    // Of a launch whose axes have the extents that extent_of(AxisId) says.
    template <class ExtentOf>
    static RowCounts of(const Kernel& kernel, const ExtentOf& extent_of) {
        RowCounts counts;
        for (const AxisId axis : kernel.row_axes)
            (contains(kernel.outer, axis) ? counts.outer : counts.inner) *= extent_of(axis);
        return counts;
    }
};

// Blocks to launch for so many rows: a positive multiple of the kernel's column blocks; 0 for no rows.
std::int64_t grid_blocks(const Kernel& kernel, const RowCounts& rows);

// How many parts a kernel that sums over so many rows makes of each sum; 0 for no rows.
std::int64_t slots_of(const Kernel& kernel, const RowCounts& rows);

}  // namespace rowjit
