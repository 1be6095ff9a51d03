// KernelEmitter: one kernel while its GPU text is written. Private to emit/gpu*.cpp, which share it by what they write;
// its interface is emit/gpu.h.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/target.h"
#include "compiler/emit/gpu_columns.h"
#include "compiler/emit/gpu_rows.h"
#include "compiler/emit/gpu_scope.h"
#include "compiler/kernel.h"
#include "compiler/passes/rounds.h"

namespace rowjit::gpu_emit {

class KernelEmitter {
  public:
    KernelEmitter(const Kernel& kernel, const Target& target)
        : kernel_(kernel), scope_(kernel, target), out_(scope_.out()), rows_(scope_) {}

    // The kernel's text.
    std::string run();

  private:
    // What a row's first phase leaves for its last: the values and the vectors that both know, by the names they have
    // until the row comes and from then on.
    struct Left {
        std::string type;
        std::string ahead;
        std::string now;
        std::int64_t entries = 1;
        ValueId value = -1;  // of the row; none for vectors
    };

    // What is loaded of a row before the block comes to it.
    struct RowLoads {
        std::vector<const Inst*> numbers;
        std::vector<ColumnFetch> columns;  // of the first loop, or of its pieces (passes/pieces)
    };

    // Where the states of a turn meet: a place in shared memory and its transaction barrier, whose parity is another
    // each time it is used. A region is used every row, or by rows in turn when it is one of two for one all-reduce.
    struct Meeting {
        std::string region;
        std::string mailbox;
        std::string parity;
    };

    // Whether a row's stage is free for another only after the row.
    bool stays_in_stage() const { return kernel_.schedule.residency == Residency::kStages; }

    void wait_for_last(const std::string& comment) { out_.line("rj_wait_for_last();", comment); }

    std::string first_row_block() const { return kernel_.outer.empty() ? first_cluster() : "part_block"; }

    // The frame, the statements, and loads ahead (gpu.cpp).
    void rows();
    void wait_for_copies();
    void close_row();
    void signature();
    void geometry();
    void declare_rows();
    void place_of_part();
    void open_units();
    void close_units();
    bool waits_late() const;
    void end_behind_last();
    std::size_t first_that_waits() const;
    void place_apart();
    std::string first_of_place() const;
    std::string first_cluster() const;
    void declare_fetch();
    void declare_loads(std::string_view function, const std::string& comment, RowLoads* loads);
    void declare_refills(RowLoads loads);
    void load_before_numbers();
    void declare_fetched(const Inst& load);
    void fill_stages();
    void open_row_loop();
    void statement(const Stmt& stmt);
    void column_loop(const Stmt& stmt, const ColumnLoop& loop);
    static const ColumnLoop* ends_behind(const Stmt& stmt);
    void load_ends(const ColumnLoop& ends);
    void row_inst(const Inst& inst);

    // Rows of tiles of the kernel's own product (gpu_product.cpp).
    void product_geometry();
    void tile_rows();

    // Orders of ids (gpu_order.cpp).
    void order_ids();

    // Rows in other orders (gpu_row_loops.cpp).
    void walked_rows();
    std::string place_in_sequence(const std::string& begin, const std::string& stop, const std::string& end);
    std::string first_phase_of(const std::string& row, const std::string& stage) const;
    void skewed_rows();
    std::vector<Left> declare_left(std::span<const Stmt> first_phase, std::span<const Stmt> last_phase);
    void first_phase_function(std::span<const Stmt> first_phase, std::vector<Left>& left);
    void take_left(const Left& left);
    static std::set<ValueId> values_read_by(std::span<const Stmt> block);
    static bool stands_anywhere(const Inst& inst);

    // Rows that are segments of others (gpu_segments.cpp).
    struct Segments;
    Segments segments() const;
    void shared_rows();
    void declare_run(const Segments& segments);
    std::vector<AxisId> results_of_segment(const RowsLoop& loop) const;
    void open_place(const Segments& segments, std::string_view part);
    std::string begin_of(const RowsLoop& loop) const;
    std::string end_of(const RowsLoop& loop) const;
    void add_alone(const Segments& segments);
    void add_run(const Segments& segments);
    void store_segment(const Segments& segments);
    void declare_finish(const Segments& segments);
    void find_waiting(const Segments& segments);
    void share(const Segments& segments);

    // Where threads meet (gpu_reduce.cpp).
    void join_rows(const JoinRows& join);
    void all_reduce(const AllReduce& reduce);
    void declare_results(const AllReduce& reduce);
    std::vector<std::string> folds(const AllReduce& reduce);
    std::string states(const AllReduce& reduce) const;
    Meeting meeting(const AllReduce& reduce, std::string_view turn) const;
    std::string fold_in_cluster(const AllReduce& reduce, const std::string& states);
    std::string send(const AllReduce& reduce, std::string_view turn, const std::string& states) const;
    std::string take(const AllReduce& reduce, const std::string& states) const;
    bool takes_turns() const;
    std::int64_t scratch_begin(const AllReduce& reduce) const;
    std::string scratch_offset(const AllReduce& reduce, std::int64_t before) const;

    // Fixpoints and rounds (gpu_steps.cpp).
    void declare_turns_of_steps();
    int meetings_here(const OpenSteps& open) const;
    Block::const_iterator position_of(const OpenSteps& open) const;
    void rounds(const Rounds& rounds);
    void open_steps(const OpenSteps& steps);
    void close_steps(const CloseSteps& steps);

    const Kernel& kernel_;
    const bool waits_late_ = waits_late();
    GpuScope scope_;
    SourceWriter& out_;
    RowsEmitter rows_;
    GpuKept kept_;
    GpuScope::RowNames outside_;  // names that hold for all rows
    std::optional<ColumnFetch> fetched_ends_;
    // Of the steps that are open.
    std::string state_;
    std::string still_;
    const OpenSteps* open_steps_ = nullptr;
    std::vector<std::string> of_last_;               // names of what is wanted of their last
    std::map<ValueId, std::string> turns_of_steps_;  // of a cluster, by state
    GpuScope::RowNames outside_steps_;
};

}  // namespace rowjit::gpu_emit
