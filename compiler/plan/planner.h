// Planner: one graph on its way to a Plan. Private to plan/plan*.cpp, which share it by what they decide; the interface
// is plan.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/target.h"
#include "compiler/plan/cutter.h"
#include "compiler/plan/plan.h"
#include "dsl/graph.h"

namespace rowjit::planning {

// A kernel to be: the roots it computes.
struct Piece {
    std::vector<NodeId> roots;
    std::vector<AxisId> row_axes;
    std::set<AxisId> promoted;
    bool reduces_rows = false;
    bool is_product = false;  // of the one root, a Matmul, which no kernel computes
    bool is_apart = false;    // likewise, or of a root that a kernel makes and nothing else, an order
    bool copies = false;      // the one root, what such a step has made in memory, to an output
    bool is_long = false;     // Cutter::is_long
    std::vector<bool> needs;  // by node: whether a root is computed from it
    double cost_us = 0;       // of a kernel for it alone
    int id = 0;
};

// Where a number of a row lies that is stored with others: in the tensor that is named after the first of them.
struct Packed {
    NodeId first = -1;
    AxisId axis = -1;
    std::int64_t at = 0;
};

class Planner {
  public:
    Planner(std::shared_ptr<const GraphData> graph, const Target& target, Repeated repeated, std::string_view stem,
            const Runs& runs, const std::set<NodeId>& stored);

    Plan run();

    // Of the plan, once it is made: slots of sums over rows that leave the outermost axes, whose kernel makes their
    // parts and nothing else, of no reduction. One that makes each sum whole reads as much.
    std::vector<AxisId> slots_for_nothing() const;

    // Of the plan, once it is made: of each kernel that no schedule runs the value to store so that two do half of it
    // each. Even a single output may be so much, as the derivative of a chain of sixteen norms, which keeps what each
    // of them has made of the row.
    std::vector<NodeId> values_that_part_what_does_not_run() const;

  private:
    static bool is_root(const Piece& piece, NodeId id) {
        return std::find(piece.roots.begin(), piece.roots.end(), id) != piece.roots.end();
    }

    // Whether it is cut and lies in the workspace.
    bool is_temporary(NodeId id) const { return cutter_.cuts_.contains(id) && cutter_.home(id) == nullptr; }

    // Pieces, their order and names (plan.cpp).
    NodeId middle_of(const std::vector<NodeId>& nodes, const Piece& piece) const;
    void add_apart(NodeId root);
    bool is_output(NodeId id) const;
    Piece piece(std::vector<NodeId> roots);
    std::vector<std::string> parts_of() const;
    void pack(const std::vector<NodeId>& numbers);
    void start(std::set<NodeId> roots);
    void order();
    std::size_t readers_of(NodeId product) const;
    std::string temporary_name(NodeId id) const;
    std::string place_of(NodeId id) const;
    std::string describe(const Piece& piece) const;

    // Which are joined (plan_joins.cpp).
    std::size_t sums(std::span<const NodeId> roots) const;
    std::size_t most_sums(const Piece& a, const Piece& b) const;
    bool depends(const Piece& a, const Piece& b) const;
    bool waits_for(const Piece& a, const Piece& b) const;
    void join();
    bool is_full(const Piece& piece) const;
    bool searches_apart(const Piece& piece) const;
    std::set<NodeId> products_read(const Piece& piece) const;
    bool needs_through_others(std::size_t from, std::size_t to) const;
    double joined_saving_us(const Piece& a, const Piece& b);
    bool makes_parts_alone(const Piece& piece) const;
    bool divides_rows(const Piece& parts, const Piece& whole) const;
    bool sum_alike(const Piece& a, const Piece& b) const;
    bool holds_too_many(const std::vector<NodeId>& roots) const;
    bool sums_few_of_many(const Piece& parts, const Piece& whole) const;
    bool waits_for_more_rows(const Piece& a, const Piece& b) const;

    // Groups and products (plan_groups.cpp).
    std::shared_ptr<const GraphData> subgraph(const Piece& piece) const;
    std::shared_ptr<const GraphData> written(const Piece& piece) const;
    AxisId shared_slots(AxisId slots) const;
    std::optional<Node> with_shared_slots(NodeId id) const;
    NodeId copy(const Piece& piece, NodeId id, GraphData* into, std::map<NodeId, NodeId>* mapped) const;
    NodeId copy_index(const Node& node, GraphData* into, const std::map<NodeId, NodeId>& mapped) const;
    static NodeId add_input(const Node& node, const std::string& name, GraphData* into);
    std::vector<AxisId> packed_axes(NodeId id) const;
    NodeId load_packed(NodeId id, GraphData* into) const;
    OutputPiece piece_of_packed(NodeId id) const;
    std::string tensor_name(NodeId id) const;
    Product product(NodeId id) const;
    void add_outputs(const Piece& piece, NodeId root, const std::map<NodeId, NodeId>& mapped, GraphData* into) const;
    std::vector<std::int64_t> strides_among_columns(NodeId root, const GraphData& group) const;
    static OutputPiece reordered(const OutputPiece& piece, const std::vector<AxisId>& axes);
    Group group(const Piece& piece) const;

    // Declared axes split into row axes, then column axes, with the strides of those that were declared as columns
    // (contiguous where none are given). What a launch gives as a promoted axis's stride is of the same declaration.
    struct Ordered {
        std::vector<AxisId> axes = {};
        std::vector<std::int64_t> promoted_strides = {};
        std::vector<std::int64_t> column_strides = {};
    };
    // A graph that is a group already knows those that it `had`.
    static Ordered order_axes(const std::vector<AxisId>& declared, const std::vector<std::int64_t>& declared_strides,
                              const GraphData& graph, const std::vector<std::int64_t>& had = {});

    // Whose memory values lie in (plan_memory.cpp).
    void reuse_memory();
    void reuse_apart();
    std::size_t last_read(NodeId id) const;
    NodeId memory_of(NodeId id) const;
    NodeId dying_operand(std::size_t reader, NodeId root, const std::set<NodeId>& taken) const;
    bool reads(const Piece& piece, NodeId id) const;
    bool reads_elsewhere(const Piece& piece, NodeId id) const;
    void check_aliases(const Plan& plan) const;
    static bool reads(const Plan& plan, const PlanStep& step, const std::string& tensor);

    const std::shared_ptr<const GraphData> given_;
    std::shared_ptr<const GraphData> graph_;  // the given one and the axes of what is packed
    const Target& target_;
    const std::string_view stem_;
    const Runs& runs_;
    const std::vector<bool> shown_wide_;  // by node
    std::vector<int> numbers_;            // by node: how many are computed before it
    Cutter cutter_;
    std::vector<Piece> pieces_;
    std::map<NodeId, Packed> packed_;
    std::map<NodeId, NodeId> reused_;                // what a kernel stores: the operand in whose place
    std::map<NodeId, NodeId> lies_over_;             // likewise, made apart: the first of those that share its memory
    std::map<std::pair<int, int>, double> savings_;  // by the ids of two pieces
    std::map<int, int> refusals_;                    // by a piece's id: joins with it that nothing runs
    int next_id_ = 0;
    std::vector<std::string> notes_;
};

}  // namespace rowjit::planning
