// One kernel while its GPU source is written: the text so far, what its values, axes and tensors are called, and how an
// instruction's result (gpu_scope.cpp) or an access's address (gpu_address.cpp) reads. What is the same wherever an
// instruction stands is here; the shape of loops is gpu.cpp's and gpu_columns.cpp's.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/target.h"
#include "compiler/emit/gpu_text.h"
#include "compiler/kernel.h"

namespace rowjit {

// Where an access meets memory: a pointer, what the lane adds to it, and the condition under which there is anything
// to read (data coordinates inside their extents); empty when there always is.
struct GpuAddress {
    std::string base;
    std::string offset;
    std::string inside;
    std::int64_t step = 1;     // where the offset is a column's place alone, times so many elements
    std::string aligned = {};  // of a peeled row's vectors: whether each is one access; "" where it is sure to be

    std::string text() const { return offset.empty() ? base : base + " + " + offset; }
};

// What differs between the positions of the loop that an instruction stands in; nothing does outside loops.
struct GpuLoop {
    const ColumnLoop* columns = nullptr;
    std::set<AxisId> axes = {};
    std::set<ValueId> values = {};

    bool varies(const Coord& coord) const;
};

// What a block's row, or block of rows, grows by from one turn of its loop to the next.
std::string row_step(const Kernel& kernel);

// How many blocks there are along the rows, or along the units of rows that have parts of sums.
std::string grid_step(const Kernel& kernel);

class GpuScope {
  public:
    // Throws Error(kUnsupported) when anything of the kernel is f64.
    GpuScope(const Kernel& kernel, const Target& target);

    const Kernel& kernel() const { return kernel_; }
    const Target& target() const { return target_; }
    int threads() const { return kernel_.schedule.threads_per_row; }
    int rows() const { return kernel_.schedule.rows_per_block; }
    SourceWriter& out() { return out_; }
    NameTable& names() { return names_; }

    const KernelTensor& tensor(const Inst& inst) const;
    const Slot& slot(const Inst& inst) const;
    const Accumulator& accumulator(const Inst& inst) const;

    // Names the parameters, in order, and gives their declarations.
    std::vector<std::string> declare_parameters();
    // Declares the state of every accumulator of a row, or of all rows of the block, at its identity; their states are
    // these from here on.
    void declare_states(bool of_block);
    // Gives the states declared before their identities again.
    void reset_states();
    // "[8]" where a row is as many results, each with states of its own; "" where it is one.
    std::string all_lanes() const;
    // `line` in a loop over the row's results, of which it names the l-th; alone where the row is one.
    void each_lane(const std::string& line);
    // Declares the sums that the block carries over its rows, at zero.
    void declare_carried();
    // Declares the coordinates along `axes` of a 64-bit position, innermost fastest, until forget_axes.
    void declare_coordinates(const std::string& position, const std::vector<AxisId>& axes);
    // Those of `row`, the how manyth it is of the block's, and of a unit's `outer_row`.
    void declare_row();
    void declare_outer_row();
    void forget_axes(const std::vector<AxisId>& axes);
    void bind_axis(AxisId axis, std::string text) { axis_text_[axis] = std::move(text); }
    const std::string& axis_text(AxisId axis) const { return axis_text_.at(axis); }

    std::string extent(AxisId axis) const;
    // As the kernel was given them: of a tensor its pointer, and its stride along a row axis.
    const std::string& pointer(int tensor) const { return argument(KernelArgument::Kind::kPointer, tensor, -1); }
    const std::string& row_stride(int tensor, AxisId axis) const {
        return argument(KernelArgument::Kind::kStride, tensor, axis);
    }
    std::string positions(const std::vector<AxisId>& axes) const;  // the product of their extents
    std::string axis_list(const std::vector<AxisId>& axes) const;  // for comments
    const std::string& state(int accumulator) const { return states_[static_cast<std::size_t>(accumulator)]; }
    std::string lane_state(int accumulator, std::string_view lane) const;  // of that of the row's results
    std::string state_type(int accumulator) const;
    const std::string& carried(int index) const { return carried_[static_cast<std::size_t>(index)]; }
    // Of carried moments, how many rows the thread has come to.
    const std::string& counted(int index) const { return counted_[static_cast<std::size_t>(index)]; }
    // Another one, before the first loop that carries it.
    void count_row(int index);
    // kCarried, of the lane at that place.
    std::string carried_value(const Inst& inst, const std::string& place) const;
    // Adds the instruction's operand to the sum that register `place` carries, unless the row is not live.
    void carry(const Inst& inst, const std::string& place);
    Dtype dtype(ValueId id) const { return dtypes_[static_cast<std::size_t>(id)]; }
    const std::string& value(ValueId id) const { return text_[static_cast<std::size_t>(id)]; }
    // A name that stands for `expression` in the rest of the row, declared here when the row has none yet.
    std::string row_name(std::string_view wanted, const std::string& type, const std::string& expression);
    // Whether quotients and roots of the row's numbers are computed without branches.
    bool works_straight() const;
    // A value of the row to divide by, prepared once for all quotients in the rest of the row.
    std::string divisor(const std::string& value);
    static std::string prepared(const std::string& value);
    // Where it is prepared already.
    void set_divisor(const std::string& value, const std::string& name);
    // The names that row_name gave out, to go back to when the braces they were declared in close.
    using RowNames = std::map<std::string, std::string>;
    const RowNames& row_names() const { return row_names_; }
    void set_row_names(RowNames names) { row_names_ = std::move(names); }
    // The condition under which the threads of a row store: "" where they always do.
    const std::string& live() const { return live_; }
    void set_live(std::string condition) { live_ = std::move(condition); }

    // Where define is to put a value that is declared already, instead of giving it a name.
    void set_place(ValueId id, std::string place) { places_[id] = std::move(place); }
    // Gives an instruction's value a name, and a line that computes it.
    void define(const Inst& inst, const std::string& expression);
    void bind(ValueId id, std::string text) { text_[static_cast<std::size_t>(id)] = std::move(text); }
    // Handles what reads better in place than behind a name: constants, scalars, casts that change nothing.
    bool bind_inline(const Inst& inst);
    // Maps, casts and extents; `divisor` stands for the second operand of a division where it is prepared.
    std::string computed(const Inst& inst, const std::string& divisor = {});
    std::string coordinate(const Inst& inst, const GpuLoop& loop, const std::string& position) const;

    // The address of a load or store at the column `position` of the loop. Declares the row's pointer before a column
    // loop, so this comes before the loop's first line.
    // Of a kSumWhere: where its places and its terms begin and how far one is from the next, and how many there are.
    std::string looked_through(const Inst& sum, const GpuLoop& loop);
    GpuAddress address(const Inst& inst, const GpuLoop& loop, const std::string& position);
    // How many columns of a peeled row come before its whole vectors; declared like a row's pointer, or once where all
    // rows of the block have as many (Kernel::rows_alike).
    std::string head();
    void declare_head(const std::string& first_row);
    std::string load(const Inst& inst, const GpuAddress& at, int lanes) const;  // an rj_vec of that many elements
    std::string load_one(const Inst& inst, const GpuAddress& at) const;         // a value
    void store_one(const Inst& inst, const GpuAddress& at, std::vector<std::string> conditions);

    // Notes a number of the row that is loaded from an address which waits for no other load: what the next loop loads
    // is awaited with it, or nothing is once the braces that its name was declared in close.
    void ask(const Inst& load);
    std::vector<std::string> take_asked() { return std::exchange(asked_, {}); }

    // Loads that are issued before the block comes to their row, and where their values are until then: in registers,
    // by name, or in shared memory, which an expression reads.
    void set_fetched(const Inst& load, std::string name) { fetched_[&load] = std::move(name); }
    bool is_fetched(const Inst& inst) const { return fetched_.contains(&inst); }
    const std::string& fetched(const Inst& load) const { return fetched_.at(&load); }
    bool fetches() const { return !fetched_.empty(); }
    // Loads that the block made before its rows, and the arrays that hold their vectors.
    void set_held(const Inst& load, std::string name) { held_[load.held] = std::move(name); }
    bool is_held(const Inst& load) const { return held_.contains(load.held); }
    const std::string& held(const Inst& load) const { return held_.at(load.held); }
    // Comparisons in steps of which one side is known before them, and the arrays that hold it, an entry a vector.
    void set_tested(const Inst& asked, std::string name) { tested_[&asked] = std::move(name); }
    bool is_tested(const Inst& asked) const { return tested_.contains(&asked); }
    const std::string& tested(const Inst& asked) const { return tested_.at(&asked); }
    // Issues the loads of the next row, or with stages of the one that the stage just read has room for; the values of
    // this row have been copied before.
    void fetch_ahead();
    // Issues the loads of the row `block` where there is one. Of several rows a block, of this thread's row of them,
    // which is called `row`; the last block's other threads follow the last row.
    void fetch(const std::string& block, std::string_view row);
    // Likewise without a condition, and whether the next row is fetched so.
    bool fetches_always() const;
    void fetch_always(const std::string& block);
    // The functions that copy vectors of a row to come to the places that an iteration of a loop has read last; and
    // that `fetch_rest` copies what they leave of it, behind this row.
    void set_refill(const ColumnLoop& loop, std::string function) { refills_[&loop] = std::move(function); }
    bool refills(const ColumnLoop& loop) const { return refills_.contains(&loop); }
    void leave_rest() { leaves_rest_ = true; }
    // Where loops fill this row's stage again: declares which row comes there, and whether one does.
    void declare_coming();
    // Copies to the places, where such a row comes, whose vectors of an iteration are `read`.
    void refill(const ColumnLoop& loop, const std::string& iteration, const std::vector<std::string>& read);
    std::int64_t stage_begin(int stage) const;
    // The stage after the row's own.
    std::string next_stage() const;
    // Where in shared memory this thread's `bytes` of what lies at an offset in the row's stage are, in an iteration of
    // its loop if it has several.
    std::string staged(std::int64_t offset_bytes, std::string_view iteration, std::int64_t bytes) const;

  private:
    // A row to come, and whether there is one.
    struct RowAhead {
        std::string condition;
        std::string row;
    };
    RowAhead row_ahead(const std::string& block, std::string_view name);
    std::string block_ahead() const;

    void find_uses();
    void note_results(const AllReduce& reduce);
    void note_near_row(const Inst& inst);
    bool is_near_row(const Coord& coord) const;
    std::string parameter_type(const KernelArgument& argument) const;
    const std::string& argument(KernelArgument::Kind kind, int index, AxisId axis) const;
    // Whether it stands outside all loops, where the threads of a row have the same.
    bool is_of_row(const Inst& inst) const;
    CoordNames coord_names(const GpuLoop& loop, const std::string& position) const;
    std::string column_axis(const ColumnLoop& loop, AxisId axis, const std::string& position) const;
    std::string stride(const Inst& inst, std::size_t axis) const;
    bool fits_int32(const Inst& inst, const GpuLoop& loop) const;
    bool is_loaded_behind_condition(const Inst& inst, const ColumnLoop& loop) const;
    std::string map(const Inst& inst, const std::string& divisor) const;
    std::string cast(const Inst& inst) const;
    std::string rounded(const Inst& inst, std::string expression) const;

    const Kernel& kernel_;
    const Target& target_;
    SourceWriter out_;
    NameTable names_;
    std::vector<Dtype> dtypes_;       // by value
    std::vector<std::string> text_;   // by value: a name or a literal
    std::vector<std::string> asked_;  // names
    std::map<ValueId, std::string> places_;
    std::set<ValueId> rounded_;  // values used for more than being packed
    std::set<ValueId> near_rows_;
    std::set<AxisId> axes_used_;           // axes whose coordinate something needs
    std::vector<std::string> parameters_;  // by argument
    std::vector<std::string> states_;      // by accumulator
    std::map<AxisId, std::string> axis_text_;
    std::vector<std::string> carried_;  // by carried sum
    std::vector<std::string> counted_;  // likewise, "" but of moments
    std::map<const Inst*, std::string> fetched_;
    std::map<const ColumnLoop*, std::string> refills_;
    bool leaves_rest_ = false;
    std::map<int, std::string> held_;  // by Inst::held
    std::map<const Inst*, std::string> tested_;
    RowNames row_names_;  // by expression
    std::string head_;    // declared for all rows
    std::string live_;
};

}  // namespace rowjit
