// KernelEmitter: one kernel on its way to an LLVM function. Private to emit/llvm*.cpp, which share it by the parts of
// the loop IR they take; its interface is emit/llvm.h.
#pragma once

#include <llvm/IR/Module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/emit/llvm_greatest.h"
#include "compiler/emit/llvm_math.h"
#include "compiler/emit/llvm_monoid.h"
#include "compiler/emit/spans.h"
#include "compiler/kernel.h"
#include "rowjit/coord.h"

namespace rowjit::cpu_emit {

using llvm::Value;  // not the graph's

inline constexpr std::int64_t kLineBytes = 64;  // a cache line

// A kernel that reduces rows takes this many of its results at a time: consecutive positions along its innermost row
// axis, a page's worth of each reduced row. Their accumulators stay in the first-level cache.
inline constexpr std::int64_t kResultLanes = 1024;
// Reduced rows are folded by sixteens, sixteens of those and so on, so that a sum is about as exact as a pairwise one:
// added row by row, the sum of 16,384 rows would be 30 units off where eager is 1.
inline constexpr std::int64_t kReducedBlock = 16;
inline constexpr int kReducedLevels = 4;

// What the lanes of one copy of a loop body stand for.
// Of a loop that has periods (ColumnLoop::period), that in which lanes are, and how far lane 0 is in it.
struct Period {
    Value* begin = nullptr;
    std::int64_t columns = 0;
    std::int64_t place = 0;
};

struct Lanes {
    const std::vector<AxisId>* axes = nullptr;  // the columns, outermost first; or the innermost row axis; null: none
    int vector = 1;                             // of the loop: what its accesses were classified for
    Value* column = nullptr;                    // of lane 0 along `axes`, i64
    Value* place = nullptr;                     // of lane 0 within kept slots or accumulators, i64
    int width = 1;
    int chain = 0;  // which accumulator chain this copy feeds
    Period period = {};
    Value* last = nullptr;  // in tiles: the last position that is a row, i64; lanes behind it stand for none
};

// Where lanes lie that are known to lie among a few vectors: lane l at places[l], and all elements from `least` to
// `greatest` are there to be loaded. Empty where they are not known.
struct PlacesOfLanes {
    Value* zero = nullptr;  // the address of place 0
    std::vector<std::int64_t> places = {};
    std::int64_t least = 0;
    std::int64_t greatest = 0;
};

// Whether all lanes of a vector read one number.
inline bool is_one_number(Access::Kind kind) { return kind == Access::Kind::kUniform || kind == Access::Kind::kSplat; }

// How the lanes of an access meet memory.
enum class Reach { kOneAddress, kVector, kEachLane };

// An accumulator's state over the columns of a row: `chains` independent copies of `width` lanes, so that consecutive
// vectors do not wait for each other; one where the vectors of a turn are folded together before they meet the state.
// Parts are stack slots, which the optimiser turns into registers.
struct Running {
    int width = 1;
    int chains = 1;
    std::int64_t columns = 0;                           // that it is of
    std::vector<std::vector<llvm::AllocaInst*>> parts;  // [chain][part]
    llvm::AllocaInst* blocks = nullptr;                 // of a sum in blocks: those before this one, in f64
    llvm::AllocaInst* keys = nullptr;                   // of the greatest, in place of parts, …
    llvm::AllocaInst* last = nullptr;                   // … and the last of them
};

// Plain sums of more columns than this are of blocks of so many: each in f32 lanes as narrower rows are, added to the
// others in f64. A lane's chain is then no longer than eager's, in a row of any width: of 4096 bf16 columns, 64
// additions a lane, a layer norm's mean was off by what showed as 9 units in an element near 0, and a group norm's
// backward by 3.6 where eager is 1.4 off. An addition of f64 for each vector instead cost a third of such rows' speed
// in cache, and one for eight of them none that was measured.
inline constexpr std::int64_t kSumBlock = 512;
// Likewise where lanes are rows, each of which has all the columns.
inline constexpr std::int64_t kAcrossBlock = 32;

// Lanes of a state that vectors are folded into together: a register of AVX-512, two of AVX2. Wider vectors are taken
// in parts, which only makes a state's chain shorter beside what is folded.
inline constexpr int kStateLanes = 16;
// Of AVX2 a register alone, as two would be four of f64: with four rows abreast all there are.
inline constexpr int kStateLanesOfF64 = 4;

// An accumulator's state over reduced rows, an array of kResultLanes for each part. Level 0 is of the current block of
// rows, level l of the current block of 16^(l+1) rows, the last of all.
struct RunningRows {
    std::vector<std::vector<llvm::AllocaInst*>> levels;  // [level][part]
    const std::vector<llvm::AllocaInst*>& total() const { return levels.back(); }
};

// What is a row's own while it is emitted beside others.
struct RowState {
    std::vector<Value*> axis;                // by axis: its coordinates
    std::vector<Value*> values;              // by ValueId
    std::vector<Dtype> dtypes;               // by ValueId
    std::vector<Running> running;            // by accumulator
    std::map<int, std::vector<Term>> terms;  // by accumulator
    std::vector<llvm::AllocaInst*> slots;    // by slot
};

// Rows of a kernel that sums over its rows which are taken together: their terms are added in registers, and the sums'
// places in memory read and written once for all of them.
inline constexpr int kRowsAbreast = 4;

// What rows abreast have added to one place so far.
struct PlacedSum {
    const Inst* store = nullptr;
    Value* address = nullptr;
    std::vector<Term> terms;
};

// Rows that are taken together where they are narrow (llvm_strips.cpp), and what each of them has: a number in a lane,
// the states of accumulators one after the other.
inline constexpr int kStripRows = 16;
struct Strip {
    std::map<AxisId, llvm::AllocaInst*> axes;              // coordinates, where rows have several
    std::map<ValueId, llvm::AllocaInst*> numbers;          // all that were made so far
    std::map<int, std::vector<llvm::AllocaInst*>> states;  // by accumulator: its parts
    Value* row = nullptr;                                  // the one that is emitted, i64
    bool of_numbers = false;                               // all of them are, a lane each
};

// What a loop asks for before it is read: of the next row, or so far on.
struct Fetches {
    std::vector<const Inst*> loads;
    std::int64_t row_bytes = 0;  // that they read of a row
    bool next_row = false;
};
inline constexpr std::int64_t kFetchedAheadBytes = 4096;

// Steps that are open: where they begin again, and the state and the number of those taken, on the stack.
struct Steps {
    Dtype dtype = Dtype::kF32;
    int most = 0;
    llvm::AllocaInst* state = nullptr;
    llvm::AllocaInst* taken = nullptr;
    llvm::BasicBlock* head = nullptr;
};

// Of a tensor whose rows are lanes though their columns follow each other (llvm_tiles.cpp): a vector of the lanes for
// each element of its row, and the rows as they lie in memory, where they lie otherwise there.
struct Tile {
    std::int64_t columns = 1;
    bool is_read = false;
    bool is_stored = false;
    bool words = false;         // two columns of bf16 are transposed as one word, which a shift and a mask take apart
    bool is_as_stored = false;  // elements are not widened on the way
    llvm::Type* element = nullptr;
    llvm::AllocaInst* place = nullptr;
    llvm::AllocaInst* rows = nullptr;
    Value* follow = nullptr;   // i1: the tensor's rows do, each other
    Value* streams = nullptr;  // i1: whole groups pass the caches; null where none may
};

// The rows of a group.
struct TileRows {
    Value* first = nullptr;      // i64
    Value* count = nullptr;      // i64
    Value* are_whole = nullptr;  // i1: as many as there are lanes
};

class KernelEmitter {
  public:
    KernelEmitter(const Kernel& kernel, const CpuFeatures& features, llvm::LLVMContext& context)
        : kernel_(kernel),
          module_(std::make_unique<llvm::Module>(kernel.name, context)),
          b_(context, features),
          axis_(kernel.axes.size(), nullptr),
          extent_(kernel.axes.size(), nullptr),
          values_(static_cast<std::size_t>(kernel.value_count), nullptr),
          dtypes_(static_cast<std::size_t>(kernel.value_count), Dtype::kF32),
          makers_(static_cast<std::size_t>(kernel.value_count), nullptr) {}

    std::unique_ptr<llvm::Module> emit();

  private:
    // Frame.
    void check_shape();
    void find_nans();
    Value* with_narrow_nan(Dtype dtype, Value* number);
    void load_arguments();
    void make_alias_scopes();
    void make_running();
    std::vector<Running> make_running(int lanes);
    int lanes_of_state(const Accumulator& accumulator);
    void make_slots();
    void find_streams();
    Value* bytes_of_rows();
    void find_fetches();
    bool is_light(const ColumnLoop& loop) const;
    const ColumnLoop* loop_that_fetches(const std::vector<const ColumnLoop*>& alike) const;
    Fetches fetches_of(const ColumnLoop& loop) const;
    void fetch(const ColumnLoop& loop, const Lanes& lanes);
    void fetch_line(Value* place);
    void fetch_lines(const Inst& load, Value* from, int elements);
    bool streams(const Inst& inst, const ColumnLoop& loop) const;
    bool stores_lines_across(const Inst& store) const;
    void emit_blocks();
    bool adds_to_all_rows(const Inst& inst) const;
    bool adds_to_all_rows(const ColumnLoop& loop) const;
    void clear_part();
    void emit_summing_blocks(Value* rows, Value* begin, Value* end);
    void emit_rows(Value* first, Value* last);
    void emit_row(Value* row);
    void emit_rows_abreast(Value* row);
    void make_rows_abreast();
    void in_row(std::size_t row, const std::function<void()>& body);
    void in_each_row(const std::function<void()>& body);
    void set_mixed_radix(Value* position, const std::vector<AxisId>& axes);
    Value* positions_of(const std::vector<AxisId>& axes);
    void loop_while_below(Value* from, Value* to, const char* name, const std::function<Value*(Value*)>& body);
    void count(Value* from, Value* to, Value* step, const char* name, const std::function<void(Value*)>& body);

    // Orders of ids.
    void order_ids();

    // Narrow rows.
    bool takes_strips() const;
    void emit_strips(Value* first, Value* last);
    void place_rows(Value* begin, Value* rows);
    void emit_row_by_row(Value* begin, Value* rows, const std::vector<const Stmt*>& part);
    void emit_numbers(const std::vector<const Stmt*>& part);
    llvm::AllocaInst* place_of_numbers(llvm::Type* type, const std::string& label);
    Value* element_of(llvm::AllocaInst* place, Value* row);
    void place_number(ValueId id, Value* row = nullptr);
    Value* number_at(ValueId id, Value* row);
    void place_states(int index, Value* row);
    FoldState folded_states(int index);

    // Statements.
    void emit_block(const Block& block);
    void emit_column_loop(const ColumnLoop& loop);
    void emit_rows_apart(const ColumnLoop& loop);
    bool branches_often(const ColumnLoop& loop) const;
    int unroll_of(const ColumnLoop& loop) const;
    void emit_copy(const ColumnLoop& loop, const Lanes& lanes);
    bool takes_pairs(const ColumnLoop& loop) const;
    void find_pairs();
    void emit_spans(const ColumnLoop& loop, std::int64_t whole);
    void emit_side_by_side(const ColumnLoop& loop, const std::vector<Lanes>& turn);
    void emit_whole_columns(const ColumnLoop& loop, Value* from, Value* to, Value* first_column);
    void emit_columns(const ColumnLoop& loop, Value* from, Value* to, Value* first_column);
    void emit_column_tail(const ColumnLoop& loop, Value* from, Value* first_column);
    void emit_all_reduce(const AllReduce& reduce);
    void open_steps(const OpenSteps& steps);
    void close_steps(const CloseSteps& steps);
    void clear_running(std::size_t accumulator);
    void emit_body(const std::vector<Inst>& body, const Lanes& lanes);
    void hoist_uniform_loads(const ColumnLoop& loop);

    // Reductions over rows.
    void emit_row_reductions(Value* first, Value* last);
    void emit_result_chunk(Value* first, Value* lanes);
    void emit_rows_loop(std::size_t statement, const RowsLoop& loop, Value* lanes, Value* whole);
    void fetch_next_row(const RowsLoop& loop, Value* position, Value* end, const Lanes& lanes);
    void branch(Value* condition, const std::function<void()>& taken, const std::function<void()>& other);
    void for_lanes(Value* lanes, Value* whole, const std::function<void(const Lanes&)>& body);
    void emit_row_values(std::size_t statements, const Lanes& lanes, bool stores);
    Value* unit_strides();
    bool bounds_differ_by_lane() const;
    int result_vector() const;
    Reach reach_of_rows(const Inst& inst) const;
    FoldState read_rows(const std::vector<llvm::AllocaInst*>& arrays, const Lanes& lanes);
    void write_rows(const std::vector<llvm::AllocaInst*>& arrays, const Lanes& lanes, const FoldState& state);

    // Rows side by side.
    void emit_rows_across(Value* first, Value* last);
    void emit_lanes_across(Value* position, int width, bool streams = false);
    void emit_statements_across(const Lanes& lanes, bool streams = false);
    void emit_columns_across(const ColumnLoop& loop, const Lanes& lanes, bool fetches);

    // Narrow rows as lanes.
    bool is_at_its_row(const Inst& inst) const;
    bool lies_in_tile(const Inst& inst) const;
    void find_tiles();
    void make_tile(int index, Tile* tile);
    const Tile* tile_of(const Inst& inst) const;
    Value* place_in_tile(const Tile& tile, const Inst& inst, const Lanes& lanes);
    Value* from_element(const Tile& tile, Dtype dtype, Value* element);
    const Tile* tile_to_choose_from(const Inst& inst) const;
    Value* choose_from_tile(const Tile& tile, const Inst& inst, const Lanes& lanes);
    Value* load_from_tile(const Tile& tile, const Inst& inst, const Lanes& lanes);
    void store_to_tile(const Tile& tile, const Inst& inst, Value* stored, const Lanes& lanes);
    void emit_tiles(Value* first, Value* last);
    Value* begin_of_row(int index, Value* row);
    void copy_rows(int index, const Tile& tile, const TileRows& rows, bool to_tensor);
    unsigned lanes_of_register(const Tile& tile) const;
    void load_tile(int index, const Tile& tile, const TileRows& rows);
    Value* with_lanes(Value* first, Value* more);
    void store_tile(int index, const Tile& tile, const TileRows& rows);
    Value* sum_of_lanes(const Inst& store, Value* terms, const Lanes& lanes);
    Value* is_row(const Lanes& lanes, int lane);
    bool is_written_out(const ColumnLoop& loop) const;

    // Instructions.
    void emit_inst(const Inst& inst, const Lanes& lanes);
    Value* emit_map(const Inst& inst, const Lanes& lanes);
    bool adds_zero(const Inst& inst) const;
    std::optional<std::int64_t> lane_step(ValueId id, const Lanes& lanes) const;
    Value* emit_search(const Inst& inst);
    Value* search(const Inst& inst, Value* key);
    Value* emit_sum_where(const Inst& inst, const Lanes& lanes);
    Value* sums_of_run(const Inst& inst, const Lanes& lanes, Value* places);
    Value* sum_where(const Inst& inst, const Lanes& lanes, int lane, Value* place);
    Value* position_of(const Inst& sum, int tensor, const Lanes& lanes, int lane, Value* position, int width);
    Value* emit_coord(AxisId axis, const Lanes& lanes, Dtype dtype);
    Value* emit_load(const Inst& inst, const Lanes& lanes);
    Value* load_each_lane(const Inst& inst, const Lanes& lanes);
    Value* load_in_a_row(const Inst& inst, const Lanes& lanes);
    PlacesOfLanes places_of_lanes(const Inst& inst, const Lanes& lanes, Value* outside);
    Value* load_places(const Inst& inst, const PlacesOfLanes& lie);
    void store_places(const Inst& inst, const PlacesOfLanes& lie, Value* stored);
    void emit_store(const Inst& inst, const Lanes& lanes);
    void emit_accumulate(const Inst& inst, const Lanes& lanes);
    void fold_terms();
    void emit_where_some_pass(const std::vector<const Inst*>& test, const std::vector<Lanes>& turn,
                              const std::function<void()>& body);
    void emit_where_any(Value* condition, const char* name, const std::function<void()>& body);
    void offer_terms(const Accumulator& accumulator, const Running& running, const std::vector<Term>& terms);
    bool sums_in_blocks(const Inst& inst, const ColumnLoop& loop) const;
    void end_block(const ColumnLoop& loop);
    Value* sum_of_blocks(const Running& running);
    Value* total_of(const PlacedSum& placed);
    void store_placed_sums();

    // Coordinates and memory.
    Value* coordinate(const Coord& coord, const Lanes& lanes, int lane);
    Value* axis_coordinate(AxisId axis, const Lanes& lanes, int lane);
    Value* divide_floor(Value* value, std::int64_t divisor, bool remainder, bool nonnegative);
    Value* data_coordinate(ValueId id, int lane);
    bool never_negative(const Coord& coord) const;
    Value* address(const Inst& inst, const Lanes& lanes, int lane, Value* outside);
    Value* extent(AxisId axis);
    Value* load_memory(const Inst& inst, Value* address, int width);
    void store_memory(const Inst& inst, Value* address, Value* carried);
    void annotate(llvm::Instruction* access, int tensor);
    Reach reach(const Inst& inst, const Lanes& lanes);
    bool differs_by_row(const Inst& inst) const;
    bool can_hoist(const Inst& inst) const;

    Value* kept_place(const Inst& inst, const Lanes& lanes);
    FoldState read(const Running& running, int chain);

    // Values.
    llvm::Type* carried(Dtype dtype, int width) {
        llvm::Type* type = carried_type(b_, dtype);
        return width > 1 ? llvm::FixedVectorType::get(type, static_cast<unsigned>(width)) : type;
    }
    Value* i64(std::int64_t value) { return b_.getInt64(static_cast<std::uint64_t>(value)); }
    Value* spread(Value* value, int width);
    Value* number(Dtype dtype, double value, int width = 1);
    Value* value(ValueId id) const;
    Dtype dtype(ValueId id) const { return dtypes_[static_cast<std::size_t>(id)]; }
    void define(ValueId id, Dtype dtype, Value* value, const std::string& label = {});
    llvm::AllocaInst* stack(llvm::Type* type, const llvm::Twine& name, std::uint64_t align = 64);
    Value* lane_of(Value* value, int lane) {
        return value->getType()->isVectorTy() ? b_.CreateExtractElement(value, static_cast<std::uint64_t>(lane))
                                              : value;
    }

    const Kernel& kernel_;
    std::unique_ptr<llvm::Module> module_;
    LaneBuilder b_;
    llvm::Function* function_ = nullptr;
    llvm::BasicBlock* entry_ = nullptr;

    std::vector<Value*> pointers_;                      // by tensor
    std::map<std::pair<int, AxisId>, Value*> strides_;  // by tensor and row axis, elements
    std::vector<Value*> scalars_;                       // by scalar
    std::vector<Value*> axis_;                          // the current row's coordinates, i64
    std::vector<Value*> extent_;                        // of run-time axes, i64
    std::vector<llvm::MDNode*> scopes_;                 // by tensor
    std::vector<llvm::MDNode*> other_scopes_;           // by tensor
    std::vector<Running> running_;                      // by accumulator
    std::map<int, std::vector<Term>> terms_;            // by accumulator: of this turn, not yet folded
    std::vector<RowState> rows_;                        // of those abreast, but for the one that is emitted
    bool grouped_ = false;                              // rows are taken together, …
    bool abreast_ = false;                              // … and a loop of all of them is emitted side by side
    std::vector<PlacedSum> placed_;                     // of the vectors being emitted
    std::map<Value*, Value*> widened_;                  // f64 of f32: what it was made of
    bool reduces_rows_ = false;
    bool lanes_are_rows_ = false;                     // likewise, or rows lie side by side (Schedule::across)
    std::vector<Running> running_of_one_;             // by accumulator, of one row of those
    std::vector<RunningRows> running_rows_;           // by accumulator
    int row_level_ = 0;                               // of them, into which rows go
    std::vector<AxisId> result_axis_;                 // the innermost row axis, when lanes are rows
    Value* chunk_first_ = nullptr;                    // of the lanes' results, i64 along result_axis_
    std::vector<llvm::AllocaInst*> slots_;            // by slot
    llvm::AllocaInst* outside_ = nullptr;             // what a load outside the extent reads: zeros
    llvm::AllocaInst* discarded_ = nullptr;           // where a store outside the extent goes
    Value* stream_ = nullptr;                         // i1: large outputs pass the caches; null when no store could
    const ColumnLoop* streaming_loop_ = nullptr;      // the loop being emitted with streaming stores
    bool keeps_pairs_ = false;                        // loops that keep values for each other have bf16 in pairs
    std::map<const ColumnLoop*, Fetches> fetches_;    // of the loops that ask for lines ahead
    Value* column_block_ = nullptr;                   // i64; null when rows are whole
    std::vector<std::unique_ptr<ColumnSpan>> spans_;  // of the loops emitted so far, which makers_ are of
    Steps steps_;
    Strip strip_;
    std::map<int, Tile> tiles_;         // by tensor
    std::vector<AxisId> tile_rows_;     // of which lanes are positions, outermost first
    std::int64_t kept_places_ = 0;      // of a row in its slots
    std::vector<Value*> values_;        // by ValueId
    std::vector<Dtype> dtypes_;         // by ValueId
    std::vector<const Inst*> makers_;   // by ValueId; null for what is no instruction's
    std::map<ValueId, int> quotients_;  // how many are divided by a value
};

// How many of a loop's instructions are many of the processor's.
std::ptrdiff_t special_functions(const Kernel& kernel, const ColumnLoop& loop);

// Whether a column loop rounds to bf16 on the way, so that it is not light.
bool rounds_often(const ColumnLoop& loop);

inline constexpr std::size_t kLightInsts = 12;  // of a loop that does little

}  // namespace rowjit::cpu_emit
