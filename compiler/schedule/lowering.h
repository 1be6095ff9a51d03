// Lowering: one group on its way to a Kernel under one schedule. Private to schedule/lower*.cpp, which share it by what
// they decide or write, in the order in which run() takes them; the interface is schedule/lower.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/declined.h"
#include "base/dtype.h"
#include "base/target.h"
#include "compiler/kernel.h"
#include "compiler/plan/plan.h"
#include "compiler/schedule/schedule.h"
#include "compiler/schedule/turns.h"
#include "dsl/graph.h"

namespace rowjit::lowering {

// What one column loop computes: reductions of its columns and outputs stored from them.
struct LoopPlan {
    std::vector<AxisId> axes;
    std::vector<NodeId> reduces;       // component 0 stands for all
    std::vector<std::size_t> outputs;  // indices into the group's outputs
    std::vector<NodeId> keeps;         // values to keep for later loops over the same columns
};

// What loops have accumulated, and of which reductions.
struct Reductions {
    std::vector<int> accumulated;
    std::vector<NodeId> reduces;
};

// A fixpoint's step: the loops of its phases, counted from its state.
struct StepPlan {
    NodeId fix;
    std::vector<std::vector<LoopPlan>> loops;
};

class Lowering {
  public:
    Lowering(const Group& group, const Schedule& schedule, const Target& target);

    // Declines where the schedule does not fit the group (lower.h).
    Offer<Kernel> run();

  private:
    const Schedule& schedule() const { return kernel_.schedule; }
    bool columnar(NodeId id) const {
        const std::vector<AxisId>& axes = graph_.node(id).axes;
        return std::any_of(axes.begin(), axes.end(), [&](AxisId axis) { return !graph_.axis(axis).is_row; });
    }

    const std::vector<AxisId>& whole_axes(const OutputInfo& output) const {
        return output.piece ? output.piece->axes : graph_.node(output.node).axes;
    }

    std::vector<std::int64_t> column_strides(const Node& node) const {
        return node.column_strides.empty() ? contiguous_strides(node.axes) : node.column_strides;
    }

    bool is_input(NodeId id) const { return graph_.node(id).kind == NodeKind::kInput; }

    static bool same_terms(const Node& a, const Node& b) {
        return a.args == b.args && a.reduced == b.reduced && a.axis == b.axis;
    }

    static std::string label_of(const Node& node, std::string_view fallback) {
        return node.label.empty() ? std::string(fallback) : node.label;
    }

    // Where a reduction's terms lie: the reduced axes and, of segments, their axis and offsets.
    struct Range {
        std::vector<AxisId> axes = {};
        AxisId segments = -1;
        NodeId offsets = -1;
        auto operator<=>(const Range&) const = default;
    };
    static Range range_of(const Node& node) {
        return {node.reduced, node.axis, node.is_segmented() ? node.args[1] : -1};
    }

    // Where instructions go now: the open loop's body, or the kernel's own, wrapped.
    class Sink {
      public:
        Sink(std::vector<Inst>* loop, Block* body) : loop_(loop), body_(body) {}
        void push_back(Inst inst) const {
            if (loop_ != nullptr) {
                loop_->push_back(std::move(inst));
            } else {
                body_->push_back({std::move(inst)});
            }
        }

      private:
        std::vector<Inst>* loop_;
        Block* body_;
    };
    Sink current() { return {loop_body_, block_}; }

    // What is asked of a group, tensors, arguments and shared memory (lower.cpp).
    std::optional<Declined> alias_conflict() const;
    std::optional<Declined> bound_grid();
    bool sums_in_registers() const;
    void declare_tensors();
    std::vector<AxisId> parts_axes(const OutputInfo& output) const;
    std::string axis_name(AxisId axis) const;
    int tensor_of_piece(const OutputInfo& output) const;
    std::vector<std::int64_t> contiguous_strides(const std::vector<AxisId>& axes) const;
    std::optional<Declined> lay_out_shared();

    // Which loops there are (lower_phases.cpp).
    void find_sums_of_block();
    void find_last_of_steps();
    void find_phases();
    int store_phase(const OutputInfo& output) const;
    void plan_loops();
    std::set<NodeId> step_nodes(NodeId fix) const;
    std::optional<Declined> steps_conflict() const;
    std::optional<Declined> greatest_conflict() const;
    std::vector<NodeId> roots(const LoopPlan& loop) const;
    std::set<NodeId> visited(const std::vector<NodeId>& roots, const std::set<NodeId>& kept) const;
    void visit(const std::vector<NodeId>& roots, const std::set<NodeId>& kept, std::set<NodeId>* seen,
               std::vector<NodeId>* added = nullptr) const;
    std::vector<NodeId> operands(NodeId id) const;
    void plan_turns();
    bool one_axis() const;
    std::optional<Declined> peel();
    bool has_kernels_rows(const KernelTensor& tensor) const;
    bool loops_over(AxisId axis) const;
    bool is_peeled(const std::vector<AxisId>& axes) const;

    // What they keep (lower_keeps.cpp).
    void plan_keeps();
    std::map<NodeId, std::size_t> last_visits_of(const std::vector<LoopPlan*>& sequence) const;
    void keep_copied(const std::vector<LoopPlan*>& sequence, std::set<NodeId>* kept);
    Residency place_of(const Node& node) const;
    double keep_cost(const Node& node) const;
    bool crowds(const Node& node) const;
    bool read_once(NodeId id) const;
    bool reads_many_narrow() const;
    std::vector<NodeId> cheapest_border(const std::vector<NodeId>& needed, const std::vector<NodeId>& later,
                                        const std::set<NodeId>& available, const std::set<NodeId>& kept) const;

    // Statements (lower_loops.cpp).
    void lower_phases();
    void load_numbers(NodeKind kind);
    void lower_steps(const StepPlan& plan);
    ColumnLoop column_loop(const std::vector<AxisId>& axes, ColumnLoop::Part part = ColumnLoop::Part::kRow) const;
    void lower_loop(const LoopPlan& plan, std::vector<int>* accumulated);
    void lower_part(const LoopPlan& plan, ColumnLoop::Part part, std::vector<int>* accumulated);
    void shape(ColumnLoop* loop) const;
    void all_reduce(const std::vector<int>& accumulated, const std::vector<NodeId>& reduces);
    void store_row_scalars(int phase);
    std::optional<Declined> lanes_conflict();
    void lower_rows_reduction();
    void bound_by_offsets(AxisId segments, NodeId offsets, RowsLoop* loop);
    void open_range(const Range& range);
    bool is_of_segment(const Node& node) const;

    // How sums are carried (lower_sums.cpp).
    void add_to_block(NodeId reduce, int of_row);
    void open_sums();
    void carry_output(std::size_t i);
    void close_sums();
    template <class Body>
    void each_place_of_part(std::size_t output, Block* block, const Body& body);
    void store_part(std::size_t output, ValueId part, bool accumulate);
    void add_to_part(std::size_t output, ValueId summand);
    bool compensated(const Node& reduce) const;
    bool shows_in_f32(const Node& reduce) const;
    bool is_positive(NodeId id);
    bool find_positive(const Node& node);
    int declare_accumulator(const Node& reduce);
    void accumulate(const Node& reduce, std::vector<ValueId> operands, int accumulator);
    int greatest_of(const Node& reduce) const;

    // Values (lower_values.cpp).
    bool per_lane(NodeId id) const;
    std::optional<ValueId> known_value(NodeId id) const;
    ValueId value(NodeId id);
    ValueId turned(const Turn& turn, const Node& node);
    bool finds_open_segment(const Node& node) const;
    ValueId compute(NodeId id);
    static std::vector<Coord> own_coords(const std::vector<AxisId>& axes);
    ValueId load(NodeId input, std::vector<Coord> coords, const Node* index = nullptr);
    void store(std::size_t output, ValueId operand);
    void keep(NodeId id);
    ValueId emit(Inst inst, const Node& node, std::string comment = {});
    std::string unique_label(const std::string& wanted);
    std::string describe_value(NodeId id) const;
    std::string expression(const Node& node) const;

    const Group& group_;
    const std::shared_ptr<const GraphData> owned_graph_;
    const GraphData& graph_;
    const Target& target_;
    Kernel kernel_;
    std::map<NodeId, int> tensor_of_input_;
    std::map<NodeId, int> scalar_of_node_;
    std::vector<int> output_tensors_;
    std::map<NodeId, int> phase_;
    int phases_ = 1;
    std::vector<std::vector<LoopPlan>> loops_;  // by phase
    std::vector<std::vector<StepPlan>> steps_;  // by phase: they stand behind its loops
    struct OfStep {
        NodeId fix = -1;
        NodeId reduce = -1;
    };
    std::map<NodeId, OfStep> of_last_step_;  // reductions that the last step of a fixpoint has made
    std::map<NodeId, Turn> turns_;           // by vectors of a thread
    using Columns = std::pair<std::vector<AxisId>, ColumnLoop::Part>;
    std::map<std::pair<Columns, NodeId>, int> slots_;  // of values kept from loops over those columns
    Columns loop_columns_;                             // of the open loop
    std::map<NodeId, ValueId> row_values_;
    std::map<NodeId, ValueId> lane_values_;  // of the open loop
    Range open_range_;                       // of the open loop over rows
    std::set<NodeId> of_segment_;            // one for all of its positions, since those are of one segment
    std::map<NodeId, ValueId> segment_values_;
    std::map<ValueId, std::string> value_labels_;
    std::vector<Inst>* loop_body_ = nullptr;
    int serial_loops_ = 0;
    Block* block_ = &kernel_.body;                  // where statements go that are in no loop
    std::map<std::size_t, int> carried_of_output_;  // of sums over the rows in registers
    std::set<NodeId> sums_of_block_;                // sums over columns of which only the block's sum is wanted
    std::map<NodeId, bool> is_positive_;            // what find_positive said
    Reductions of_block_;                           // those that loops have accumulated
    std::set<std::string> taken_labels_;
    std::map<std::string, int> next_suffix_;
};

}  // namespace rowjit::lowering
