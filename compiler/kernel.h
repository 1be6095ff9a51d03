// The loop IR: one kernel as a short tree of structured loops. Schedules build it (compiler/schedule), passes annotate
// it (compiler/passes), and two emitters print it: CUDA/HIP text and LLVM IR.
//
// A kernel runs `body` once for every position of its row space. The loops above the body are its geometry: a grid of
// blocks, `rows_per_block` rows in each, `threads_per_row` threads on each row, and `column_blocks` blocks side by side
// on one row when a row is divided over the grid; where such a row is reduced, they are a cluster. On the CPU the grid
// becomes tasks, a row has one thread, and the lanes of a column loop become SIMD lanes.
//
//     for each row (grid × rows_per_block)            values here are uniform over the row's threads
//       column loop: i, thread, lane                  values here are one per lane
//         load, map, cast, keep, accumulate, store
//       all-reduce accumulators over the row's threads
//       map …                                         per-row scalars
//       steps … close                                 repeated until the row's state stands still
//       column loop: …                                reads kept values or loads again
//
// There may be two more blocks, run once by every block of the grid: `before`, which makes the parts of sums over rows
// zero where they lie in memory, and computes what all rows have (passes/table_functions), and `after`, which stores
// those sums where they lie in registers.
//
// Values are SSA: an instruction's id is its value, defined once, used in its own loop or, when defined outside any
// loop, anywhere after it. bf16 and f16 values are carried as f32 holding a representable number, so a Map of such a
// dtype and a Cast to it round and everything else is exact. On a GPU two lanes of a column loop may share a word
// instead (Packing).
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/target.h"
#include "compiler/schedule/schedule.h"
#include "dsl/graph.h"

namespace rowjit {

using ValueId = std::int32_t;

// A tensor the kernel reads or writes. Row strides are arguments, column strides are static.
struct KernelTensor {
    std::string name;  // an identifier, unique in the kernel
    Dtype dtype = Dtype::kF32;
    std::vector<AxisId> axes = {};                  // row axes first
    std::vector<std::int64_t> column_strides = {};  // elements, one per column axis
    bool read = false;
    bool written = false;
    bool aliased = false;  // may share memory with another tensor of this kernel: no restrict, no read-only loads
    int alignment = 1;     // elements: base address and row strides must be multiples of it (passes/index)
    // Elements, one per promoted axis, whose stride is an argument all the same; empty where they are not known.
    std::vector<std::int64_t> promoted_strides = {};
};

struct KernelScalar {
    std::string name;
    Dtype dtype = Dtype::kF32;
};

// The entry point's parameters, in order.
struct KernelArgument {
    enum class Kind : std::uint8_t {
        kPointer,  // of tensors[index]
        kStride,   // i64, elements: of tensors[index] along its row axis `axis`
        kExtent,   // i64: positions along row axis `axis`
        kScalar,   // scalars[index], in its own dtype (bf16 and f16 as f32)
        kMatrix,   // a CUtensorMap of the product's left operand (index 0) or right one (1)
        kSide,     // i64: positions along the product's rows (index 0), columns (1), contracted axis (2)
    };
    Kind kind = Kind::kPointer;
    int index = 0;
    AxisId axis = -1;
    std::string name = {};  // as emitted
};

// How a load or store of a column loop meets memory, decided by passes/index.
struct Access {
    enum class Kind : std::uint8_t {
        kUnknown,
        kUniform,  // the same address for every lane and iteration: no column coordinate takes part
        kSplat,    // one address for all lanes of a vector
        kVector,   // lanes are of `vector` consecutive elements, aligned on a GPU and each of them once; on a CPU a
                   // load's lanes may be of some twice and of others never
        kGather,   // an address per lane
    };
    Kind kind = Kind::kUnknown;
    int anchor = 0;               // kVector: the lane that reads the vector's first element, lane 0 where none does
    std::vector<int> lanes = {};  // kVector: lane l is element lanes[l]; empty for the identity
    // kGather, of a load whose lanes all lie in one run of so many elements, as every second column does: the run, of
    // which lane l is element lanes[l]; 0 where they do not. On a GPU it is aligned.
    int run = 0;
    // kGather, on a CPU: in each of the loop's periods the lanes lie alike, those of a vector in a few vectors of the
    // row, as those of a head whose half no vector divides.
    bool in_periods = false;
    // kGather, on a CPU, of a load: by values that say where, each of a vector's lanes is at the place behind the one
    // before, as a score's bias is by how far a key is from its query.
    bool in_a_row = false;

    static constexpr int kMostVectors = 4;  // as which the lanes of one are loaded or stored
};

enum class InstKind : std::uint8_t {
    kConst,       // `value`
    kScalar,      // scalars[index]
    kExtent,      // positions along row axis `axis`
    kCoord,       // the coordinate along `axis` (row or column)
    kMap,         // `op` on operands
    kCast,        // operands[0] rounded to dtype
    kLoad,        // tensors[index] at `coords`; a data coordinate outside the extent gives 0
    kStore,       // operands[0] to tensors[index] at `coords`; where it is to `accumulate`, `op` of what is there and
                  // it, rounded once
    kAccumulate,  // operands[0], the product of two, or what two are to the monoid, into accumulators[index]
    kKeep,        // operands[0] into slots[index] at this lane's place
    kKept,        // slots[index] at this lane's place
    kCarry,       // carried[index] at this lane's place, or outside loops the row's own, takes operands[0], or the
                  // product of two
    kSearch,      // the last position of tensors[index], sorted, whose element is at most operands[0]; −1 for none
    kSumWhere,    // the sum of tensors[index] over `axis` where tensors[places] is operands[0]; both lie along it
    kCarried,     // `component` of carried[index] at this lane's place, of all the block's rows; only in Kernel::after
};

// How two lanes of a bf16 or f16 value share a word, decided by passes/packed.
enum class Packing : std::uint8_t {
    kNone,      // not at all, or as they lie in a loaded or a kept vector
    kRounded,   // each lane is computed in f32, and both are rounded together
    kComputed,  // kMap: computed on the operands' words
};

// What of t = tanh u a narrow map of u is, decided by passes/precision.
enum class TanhPart : std::uint8_t {
    kItself,
    kSlope,    // 1 - t^2
    kPlusOne,  // 1 + t
};

struct Inst {
    InstKind kind = InstKind::kConst;
    ValueId id = -1;  // -1 for kStore, kAccumulate, kKeep
    Dtype dtype = Dtype::kF32;
    std::vector<ValueId> operands = {};
    Op op = Op::kAdd;
    int index = -1;
    AxisId axis = -1;
    int places = -1;    // kSumWhere: a tensor of integers
    int component = 0;  // kCarried
    double value = 0;
    std::vector<Coord> coords = {};  // kLoad, kStore: one per axis of the tensor, over axes and ValueIds as data
    bool accumulate = false;
    Access access = {};
    std::int64_t stage_offset_bytes = -1;  // kLoad: ≥ 0 where it lies in a stage, copied ahead (passes/stages)
    int held = -1;                         // kLoad: ≥ 0 of what a block loads once for all its rows (passes/held)
    int turn = 0;                          // kLoad, kKept: of the thread's vector so many further on, behind the last
                                           // the first; in unrolled loops, of a load beside the same one not turned
    int rows_back = 0;                     // kKept: what was kept so many rows before, of a slot that has them
    bool narrow = false;                   // kMap: may be less exact than f32 (passes/precision)
    bool rough = false;                    // kMap: narrow, and only of 12 bits (passes/precision)
    bool of_sum = false;                   // kCast: to f64 for what adds it up alone: terms may meet in f32 first
    bool stored = false;                   // kExp: as it is, in f32 (passes/precision)
    bool bounded = false;                  // kExp: stored, of -87 to 87; kLog: of such and a number (passes/precision)
    bool weighs = false;                   // kExp: of at most 0, and below 2^-126 may be 0; kLog: of a sum of such
                                           // (passes/precision)
    bool of_two = false;                   // kExp: 2^operand, and below 2^-126 may be 0 (passes/precision)
    TanhPart part = TanhPart::kItself;     // kTanh: what of it this is (passes/precision)
    bool by_one_up = false;                // kDiv: by at least 1 (passes/precision)
    bool of_fraction = false;              // kLog1p: of 0 to 1 (passes/precision)
    Packing packing = Packing::kNone;      // of a column loop's bf16 and f16 values
    bool alike = false;                    // kMap: a condition that all lanes of a vector share (passes/conditions)
    bool chooses = false;                  // kMap: a select of loads by such a condition (passes/conditions)
    bool paired = false;                   // the same in both lanes of a pair, 0 and 1, 2 and 3 (passes/conditions)
    // kMap: in which lanes a condition holds, bit by bit, where that is so in every vector (passes/conditions).
    std::optional<std::uint64_t> in_lanes = {};
    std::string label = {};    // the graph's name for the value, unique and an identifier
    std::string comment = {};  // the expression it stands for
};

// Of a row's greatest elements, that a thread keeps by itself: the prelude's rj_few_greatest has no more.
inline constexpr int kMostGreatestOfThread = 8;

struct Accumulator {
    Monoid monoid = Monoid::kSum;
    Dtype dtype = Dtype::kF32;  // what it folds in: f32 for narrow floats
    std::string label = {};  // of one thread's part; what the all-reduce gives is called so without a trailing "_part"
    // f32 sums, also those of the pairs: carries what the roundings of the sum lost, and is as exact in any order.
    // Exact sums always do; here that their terms are of full width.
    bool compensated = false;
    bool of_block = false;  // of all rows of the block: its threads meet over it once, after the last
    bool positive = false;  // no term of a sum is below 0, so that none cancels another
    int greatest = 0;       // how many of the greatest are asked for,
    bool narrow = false;    // and that they are of bf16 or f16

    int components() const { return monoid == Monoid::kGreatest ? greatest : rowjit::components(monoid); }
    Dtype result() const { return monoid == Monoid::kGreatest ? Dtype::kI32 : dtype; }
};

// A value kept on chip from one column loop to a later one over the same columns. Each thread reads back only what it
// wrote, so a shared slot needs no barrier.
struct Slot {
    Dtype dtype = Dtype::kF32;
    Residency residency = Residency::kRegisters;
    std::int64_t shared_offset_bytes = 0;  // within the row's part of dynamic shared memory, or within its stage
    std::string label = {};
    // > 0: a window of the rows so many back too, each a vector: in registers, or where they were copied ahead
    // (kStages), each row in the place of one that nothing wants any more.
    int rows_back = 0;
    // What all rows are divided by: kept as what their quotients take (the prelude's rj_divisor), which is what reads
    // it. In registers.
    bool is_divisor = false;

    std::int64_t ring_rows() const {
        return static_cast<std::int64_t>(std::bit_ceil(static_cast<unsigned>(rows_back) + 1));
    }
};

// What the rows that a block takes come to, in registers from its first row to its last: a value for each lane
// of the column loops that add to it, or one for the row. GPU only; on the CPU, and where registers do not suffice,
// rows are added up in the tensor itself.
struct Carried {
    Dtype dtype = Dtype::kF32;
    std::string label = {};
    Monoid monoid = Monoid::kSum;  // a sum, a maximum, a minimum, kMaxSumExp or kMoments
    bool compensated = false;      // of a pair: what the exponentials of are of full width

    bool is_pair() const { return components(monoid) > 1; }
};

// On the CPU the slots of a row lie on the stack, and may take this much of it together.
inline constexpr std::int64_t kMaxCpuKeptBytes = std::int64_t{256} << 10;

struct Stmt;
using Block = std::vector<Stmt>;

// for i < iterations, thread t < threads_per_row, lane l < vector:
//     place = ((column_block · iterations + i) · threads_per_row + t) · vector + l
//
// A place is a column of the row. Where rows begin anywhere in memory, as those of an odd number of columns, a row is
// peeled: `head` of its columns come before the first that a whole aligned access begins at. The whole vectors from
// there on are one loop, whose column is head + place; what is before and behind them, fewer columns than two vectors
// have, is the next, one by one.
struct ColumnLoop {
    enum class Part : std::uint8_t {
        kRow,    // all columns
        kWhole,  // GPU: of a peeled row its whole vectors; the statement behind it is its ends
        kEnds,
    };
    enum class Tail : std::uint8_t {
        kNone,    // threads × vector × iterations × column_blocks covers the columns exactly
        kVector,  // whole vectors are in or out: guard once a vector
        kScalar,  // CPU: whole vectors, then one column at a time
    };
    std::vector<AxisId> axes = {};  // outermost first; their extents multiply to `columns`
    std::int64_t columns = 1;       // of the row, whichever part of it this is
    Part part = Part::kRow;
    int vector = 1;
    std::int64_t iterations = 1;
    bool unrolled = false;  // registers hold an array entry per iteration; loads of all iterations are issued first
    Tail tail = Tail::kNone;
    bool backward = false;  // GPU, serial: from the last columns to the first, which the caches have of the loop before
    // Places in the row's stage, by their offset, that an iteration has read last: where the kernel refills, what is to
    // come there is copied as soon as it has (passes/refills).
    std::vector<std::int64_t> refills = {};
    // CPU: so many columns, a few vectors of a few groups or the row, are taken at once, with accesses in_periods; 0
    // where there are none.
    std::int64_t period = 0;
    std::vector<Inst> body = {};

    // Whether nothing of it loops: there is one iteration, or all are unrolled.
    bool is_resident() const { return unrolled || iterations == 1; }
    bool is_peeled() const { return part != Part::kRow; }
};

// Positions of reduced row axes, divided over the row's threads: thread t takes t, t + threads_per_row, … Of the one
// axis of a segment only positions [begin, end), i64 values of the row, which lie inside it. Where threads share long
// segments (Schedule::shares), those of more positions than kAloneRows are.
struct RowsLoop {
    std::vector<AxisId> axes = {};
    AxisId segments = -1;  // ≥ 0: begin and end differ along this axis
    ValueId begin = -1;
    ValueId end = -1;
    std::vector<Inst> body = {};
};

// Folds accumulators over the row's threads, which may be those of a cluster of blocks; every thread gets the result.
// `results` holds one value per component of each accumulator, in order.
struct AllReduce {
    std::vector<int> accumulators = {};
    std::vector<ValueId> results = {};
    int scratch = 0;         // which region of shared scratch, when more than a warp takes part (passes/barriers)
    bool of_thread = false;  // the threads do not meet: each has the result of its own columns
};

// Brings the rows of a block together, in order, for each of `carried`: the first row's threads then hold what all come
// to.
struct JoinRows {
    std::vector<int> carried = {};
};

// All threads of the block have finished reading shared scratch before anyone writes it again (passes/barriers).
struct Barrier {};

// The statements up to the next CloseSteps are repeated until they give the row's state again, or NaN, and at most
// `most_steps` times; no other OpenSteps stands among them. Values defined between the two end there, but for those
// that are wanted of the last state: the statements are repeated once more where that was made and not yet given. All
// threads that meet in these statements repeat them until the last of their rows stands still, which changes no other's
// state.
struct OpenSteps {
    ValueId state = -1;  // defined here
    ValueId start = -1;
    Dtype dtype = Dtype::kF32;
    int most_steps = 1;
    std::vector<int> accumulators = {};  // of the statements: each step begins with their identities
    std::string label = {};
};

struct CloseSteps {
    struct OfLast {
        ValueId value = -1;   // of a step
        ValueId result = -1;  // defined here: the same of the last state
        Dtype dtype = Dtype::kF32;
        std::string label = {};
    };
    ValueId next = -1;    // what the step made of the state
    ValueId result = -1;  // defined here: the last state
    std::vector<OfLast> of_last = {};
};

struct Stmt {
    std::variant<Inst, ColumnLoop, RowsLoop, AllReduce, JoinRows, Barrier, OpenSteps, CloseSteps> node;
};

// Whether the threads of a row meet in the statement.
inline bool meets(const Stmt& stmt) {
    const auto* reduce = std::get_if<AllReduce>(&stmt.node);
    return reduce != nullptr && !reduce->of_thread;
}

// Launches of kernels that follow each other in a program, on targets that have dependent launches: the second begins
// while the first ends, and waits until all that the first wrote is there. The kernel before the first is then done
// too.
struct Neighbours {
    bool waits = false;               // for the kernel before it
    bool beside = false;              // likewise, with its last block alone: it needs nothing of those before it
    bool leads = false;               // lets the one behind it begin
    std::set<std::string> made = {};  // tensors that kernels of the program write, if it waits
};

// How a block takes rows that follow each other: a run of them at most one of which is at the end of the innermost row
// axis, so that slots which reach rows back have them of the same run. They are filled by rows before the run's first,
// which store nothing, and some of which may be before the axis's: all that is read has coordinates of data.
struct Walk {
    AxisId axis = -1;
    int warm_rows = 0;
};

inline constexpr std::int64_t kTransactionBarrierBytes = 8;
inline constexpr std::int64_t kSystemSharedBytes = 1024;  // of every block, CUDA

// Positions that a thread adds up by itself, in a few turns of loads: to share them, a block's threads meet thrice.
inline constexpr std::int64_t kAloneRows = 32;

// Which loads of a row are all issued before one of them is used, of those of one loop: none, of the vectors that all
// threads have, of all vectors, where those that some threads lack are zero first, or with these the row's numbers.
enum class LoadsTogether : std::uint8_t { kNot, kWhole, kAll, kAllAndNumbers };

// A matrix product of bf16 or f16 that the kernel makes itself, a tile at a time (templates/prelude_product.h). Its
// rows are those of tiles, computed by some of a block's threads while others multiply.
struct OwnProduct {
    static constexpr int kTileRows = kProductTileRows;
    static constexpr int kTileColumns = kProductTileColumns;
    static constexpr int kRowThreads = 96;  // of a block: those that have the rows
    static constexpr int kBlockThreads = 384;
    static constexpr int kClusterBlocks = 2;  // with two tiles side by side along the rows
    static constexpr std::int64_t kSharedBytes = 216176;

    int tensor = -1;         // of the kernel: the product's result
    bool in_blocks = false;  // tiles lie along the innermost row axis; else along a row's columns, as its column blocks
    ValueId inside = -1;     // a condition of columns that all but those of the last tile meet
};

// A pass of the order of ids, or the counts of their digits: a body of its own, which is no loops over columns
// (templates/prelude_order.h, emit/llvm_order.cpp). Indices are of the kernel's tensors.
struct OrderPass {
    int ids = -1;
    std::int64_t offset = 0;  // elements, of the first id
    int before = -1;          // the order by the digits below; none of the lowest
    int counts = -1;          // GPU: ids of each digit in each block
    int result = -1;          // the order; none of a kernel that counts
    AxisId rows = -1;         // of which the ids are
    Digit digit;
};

struct Kernel {
    std::string name;  // the entry point
    Schedule schedule;
    std::vector<AxisInfo> axes;    // of the group's graph; AxisIds index it
    std::vector<AxisId> row_axes;  // the row space, outermost first; empty: one row
    std::vector<KernelTensor> tensors;
    std::vector<KernelScalar> scalars;
    std::vector<KernelArgument> arguments;
    std::vector<Accumulator> accumulators;
    std::vector<Slot> slots;
    std::vector<Carried> carried;
    // GPU: ≥ 0: the innermost row axis, of which a thread takes schedule.vector neighbouring positions; a row of the
    // kernel is as many.
    AxisId lanes_axis = -1;
    // CPU: neighbouring rows are lanes (Schedule::across) though their columns follow each other, a few of each.
    bool in_tiles = false;
    AxisId slots_axis = -1;  // ≥ 0: the block's own coordinate along this axis; it stores parts of sums over rows
    // Row axes, if any, that those sums are not over: the outermost, or all that they leave. Slots are those of one
    // position along them, and so are the rows that a block takes until it has stored its part.
    std::vector<AxisId> outer;
    // Of each position along those, where a part is of so many at most, or fewer than there may be parts: a sum in f32
    // that is seen so. 0: of any number.
    std::int64_t most_rows_of_part = 0;
    // On a GPU the innermost row axes, if any, that those sums are not over. A thread takes rows at one position along
    // them, and the blocks of as many rows as there are positions have one part together. A CPU's block takes rows of
    // every position, each of which has a place in its part.
    std::vector<AxisId> apart;
    std::optional<Walk> walk;  // Schedule::ahead
    std::optional<OwnProduct> product;
    std::optional<OrderPass> order;
    std::optional<Inst> peeled_by;  // Schedule::peel: the access by whose rows' addresses the heads are counted
    // Rows that are a multiple of so many apart have as long a head. More than 1 where sums over rows are carried of a
    // peeled row's columns: a thread's rows are so far apart, and its columns are the same ones of each.
    int rows_alike = 1;
    Block before;  // once a part, before its rows
    Block body;
    Block after;                                         // once a part, after them; only where there is a slots axis
    Neighbours neighbours;                               // compile() sets them: a group alone has none
    bool last_first = false;                             // rows are taken so, on a CPU blocks of them; likewise
    LoadsTogether loads_together = LoadsTogether::kNot;  // GPU; runtime/build chooses it
    bool refills = false;  // whether loops do (passes/refills); runtime/build chooses where one way spills
    int value_count = 0;
    std::int64_t most_row_blocks = 0;  // blocks along the rows, of clusters if fewer run at once; 0: all there are

    int scratch_regions = 0;                   // passes/barriers
    std::int64_t scratch_region_bytes = 0;     // likewise, of all the block's rows
    std::int64_t shared_bytes_per_row = 0;     // slots
    std::int64_t sums_where_offset_bytes = 0;  // of a vector of each thread (passes/barriers)
    std::int64_t mailbox_offset_bytes = 0;  // clusters: of the scratch regions' transaction barriers (passes/barriers)
    std::int64_t stages_offset_bytes = 0;   // of the first stage in shared memory (passes/stages)
    std::int64_t stage_bytes = 0;           // likewise, of each
    std::int64_t shared_bytes = 0;          // dynamic shared memory of a block, scratch and stages included

    const AxisInfo& axis(AxisId id) const { return axes[static_cast<std::size_t>(id)]; }
    // Whether nothing writes the tensor while the kernel runs, which begins before what it waits for is there:
    // read-only loads may pass a wait.
    bool is_read_only(const KernelTensor& tensor) const {
        return !tensor.written && !tensor.aliased && !neighbours.made.contains(tensor.name) && !is_in_tiles(tensor);
    }
    // Whether it lies in shared memory alone, being made there.
    bool is_in_tiles(const KernelTensor& tensor) const {
        return product && &tensor == &tensors[static_cast<std::size_t>(product->tensor)];
    }
    // Whether the instruction asks a tensor that a kernel writes, this one or one that it waits for.
    bool reads_made(const Inst& inst) const {
        const auto is_made = [&](int tensor) { return !is_read_only(tensors[static_cast<std::size_t>(tensor)]); };
        if (inst.kind == InstKind::kSumWhere) return is_made(inst.index) || is_made(inst.places);
        return (inst.kind == InstKind::kLoad || inst.kind == InstKind::kSearch) && is_made(inst.index);
    }
    // Whether a thread's rows load from, or store to, different places.
    bool by_row(const Inst& access) const;
    // What a stride's argument is wherever the tensor lies, along a column axis that the planner promoted; nothing
    // where a launch says.
    std::optional<std::int64_t> known_stride(const KernelArgument& stride) const;
    // The row axes along which a block comes from row to row: all but the outer ones.
    std::vector<AxisId> inner_axes() const;
    // Of the innermost row axes that sums over rows leave.
    std::int64_t positions_apart() const;
    // How many blocks along the rows have a part of a sum over them together.
    std::int64_t blocks_of_part() const;
    // How many rows of a block are at one position of those, whose sums they join.
    std::int64_t rows_of_place() const;
    // Whether a load's address is known as soon as its row is, and differs from row to row, and no row stores there.
    bool can_fetch(const Inst& inst) const;
    // Whether the blocks of a cluster take each round of the loop's columns together, so that none waits for another
    // that has more of them. Cross-entropy with its gradient of 151936 bf16 classes over eight blocks takes 0.352 ms
    // so, 0.365 with the last block's columns less than half of the others'; but softmax of 50257, whose columns are
    // loaded one by one and rounds short, 0.195 and 0.166 (H200).
    bool shares_rounds(const ColumnLoop& loop) const;
    // How many places the loop must cover.
    std::int64_t places(const ColumnLoop& loop) const;
    // Of the loop's iterations the first so many lie within the row for every thread, whichever block it is in.
    std::int64_t whole_iterations(const ColumnLoop& loop) const;
    // That have rows: all of a block's, but where the kernel has a product.
    int block_threads() const { return schedule.threads_per_row * schedule.rows_per_block; }
    int launched_threads() const { return product ? OwnProduct::kBlockThreads : block_threads(); }
    // Positions of the row space that a row of the kernel is.
    int row_lanes() const { return lanes_axis < 0 ? 1 : schedule.vector; }
    // Rows of a launch for each segment of a thread's run (Schedule::run): as many blocks of them fill a device some
    // times over. H200, embeddings of 1000 rows of 4096 columns: of bf16, two blocks a row, 0.112 ms with a segment
    // each and 0.126 with two, of f32, four, 0.156, 0.121 with two and 0.130 with four; of 31250 rows of 2048 bf16
    // columns, a block each, 0.137 with one, 0.106, 0.088 and 0.080 with two, four and eight.
    std::int64_t rows_for_run() const;
    // The values of a row that differ along one of its axes; those of rows beside it, between those.
    std::set<ValueId> values_along(AxisId axis) const;
    std::set<ValueId> lane_values() const { return values_along(lanes_axis); }
    bool differs_by_lane(const Inst& inst, const std::set<ValueId>& lane_values) const;
    // Whether it has loops that fill a row's stage again where `refills` says so.
    bool may_refill() const;
    // Blocks that run together and reach into each other's shared memory; 1 where none do.
    int cluster_blocks() const {
        return schedule.family == Family::kRowReduction ? static_cast<int>(schedule.column_blocks) : 1;
    }
    int launched_cluster() const { return product ? OwnProduct::kClusterBlocks : cluster_blocks(); }
};

// Columns of a tensor's row, where narrow rows are lanes (Kernel::in_tiles).
inline constexpr std::int64_t kMostTileColumns = 64;

// On a CPU, of a kernel whose rows lie side by side (Schedule::across): how many of them are the lanes of a vector, a
// cache line of the narrowest element that is read or stored, of f32 at least, or fewer where fewer lie there.
int lanes_across(const Kernel& kernel);

// Calls visit(inst) for every instruction, in order.
template <class Visit>
void each_inst(const Kernel& kernel, const Visit& visit) {
    for (const Block* block : {&kernel.before, &kernel.body, &kernel.after}) {
        for (const Stmt& stmt : *block) {
            if (const auto* inst = std::get_if<Inst>(&stmt.node)) visit(*inst);
            if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) {
                for (const Inst& inst : loop->body) visit(inst);
            }
            if (const auto* rows = std::get_if<RowsLoop>(&stmt.node)) {
                for (const Inst& inst : rows->body) visit(inst);
            }
        }
    }
}

// Calls visit(value) for every value that the instruction or statement reads, in loops too.
template <class Visit>
void each_use(const Inst& inst, const Visit& visit) {
    for (const ValueId operand : inst.operands) visit(operand);
    for (const Coord& coord : inst.coords) {
        for (const ValueId data : coord.data_nodes()) visit(data);
    }
}

template <class Visit>
void each_use(const Stmt& stmt, const Visit& visit) {
    if (const auto* inst = std::get_if<Inst>(&stmt.node)) each_use(*inst, visit);
    if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) {
        for (const Inst& inst : loop->body) each_use(inst, visit);
    }
    if (const auto* rows = std::get_if<RowsLoop>(&stmt.node)) {
        for (const Inst& inst : rows->body) each_use(inst, visit);
        if (rows->begin >= 0) visit(rows->begin);
        if (rows->end >= 0) visit(rows->end);
    }
    if (const auto* open = std::get_if<OpenSteps>(&stmt.node)) visit(open->start);
    if (const auto* close = std::get_if<CloseSteps>(&stmt.node)) {
        visit(close->next);
        for (const CloseSteps::OfLast& last : close->of_last) visit(last.value);
    }
}

// The kernel as text, for `explain`, messages and tests.
std::string print(const Kernel& kernel);

// Whether emitted code already means something by this word: a C++ keyword or a name the emitters use for themselves.
// Labels never are.
bool is_reserved_word(std::string_view text);

}  // namespace rowjit
