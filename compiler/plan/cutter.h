// Which computed values are stored between kernels. Private to the planner; which of the kernels are joined is
// planner.h's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "base/dtype.h"
#include "base/target.h"
#include "compiler/plan/plan.h"
#include "dsl/graph.h"

namespace rowjit::planning {

inline constexpr std::size_t kMostSums = 32;  // over rows in one kernel: a thread has some seven registers for each
// Of sums of a row's columns, which are each thread's own until its last row.
inline constexpr std::size_t kMostOwnSums = 40;

bool reduces_rows(const GraphData& graph, const Node& node);

bool reduces_columns(const GraphData& graph, const Node& node);

// The node whose elements a root's kernel computes: of a partial sum, what it sums.
const Node& computed(const GraphData& graph, NodeId root);

// By node: whether a root is computed from it, or is it.
std::vector<bool> needs(const GraphData& graph, const std::vector<NodeId>& roots);

// What one root's kernel would contain: found by walking from the root to inputs and to values cut before.
struct Reach {
    std::vector<NodeId> nodes;  // operands before users
    bool reduces_rows = false;
    std::set<AxisId> promoted;  // column axes that become row axes
};

// Decides which computed values must be stored between kernels. Each rule cuts where the value is narrow already.
class Cutter {
  public:
    Cutter(const GraphData& graph, const Target& target, Repeated repeated, const std::set<NodeId>& stored);

    // The values to compute in kernels of their own: outputs and cuts.
    std::set<NodeId> run();

    // Values that one kernel stores for the next, of what would be too many numbers for one, by kernel: by their row
    // space and dtype, how often numbers were stored before them, and how many such kernels and other cuts they wait
    // for, so that none of them waits for itself.
    using KernelOfNumbers = std::tuple<std::vector<AxisId>, Dtype, int, int>;
    std::map<KernelOfNumbers, std::vector<NodeId>> stored_numbers() const;

    // A number of a row that a kernel may also compute which needs it, and then stores it.
    bool is_repeated_number(NodeId id) const { return repeated_.contains(id); }

    // Whether what these roots are made of is more of a row than numbers.
    bool has_columns(const std::vector<NodeId>& roots) const;

    // Whether it is numbers of a row in so many steps, one after the other in few warps, that their kernel takes its
    // time whatever it moves, and others may run beside it (Neighbours::beside).
    bool is_long(const std::vector<NodeId>& roots) const;

    const Reach& reach(NodeId root) const;

    Reach walk(NodeId root) const;

    // What a kernel of these roots computes or loads.
    std::set<NodeId> reach_with_loads(const std::vector<NodeId>& roots) const;

    // Whether a kernel of these roots would sum columns over segments of several lists of rows, as of the rows of each
    // of a token's experts, which are to be kernels of their own.
    bool sum_several_lists(std::span<const NodeId> roots) const;

    // The output in which a value lies that later steps read, or that a product or an order is: what makes it writes
    // there, and nothing is stored twice. None where what the output stores is not the value, as it is, in its own
    // order.
    const OutputInfo* home(NodeId id) const;

  private:
    // Where kernels must end (cutter.cpp).
    void settle();
    bool is_read(NodeId id) const;
    void note_reduction(const Node& node, Reach* reach) const;
    void cut(NodeId id);
    bool cut_below(NodeId root);
    bool cut_below_part(NodeId root, const Reach& found);
    bool stores_rows_of(const std::set<AxisId>& promoted) const;
    bool adds_apart(const Reach& found, const Node& summand, const std::vector<AxisId>& apart) const;
    bool sums_segments(NodeId id) const;
    bool has_several_lists() const;
    bool cut_between_lists(NodeId root, const Reach& found);
    bool cut_of_fewer_rows(NodeId root, const Reach& found);
    bool cut_between_products(const Reach& found);
    bool collect_numbers(NodeId id, std::set<NodeId>* seen, std::set<NodeId>* numbers) const;
    bool cut_for_rows_reduction(NodeId root, NodeId id, const Reach& found);
    NodeId narrowest(NodeId id) const;
    bool is_partial(const Node& reduce) const;
    bool cut_column_reduction(NodeId root, NodeId id, const Reach& found);
    NodeId reduction_below(NodeId from) const;
    bool under_reduction(const Reach& found, NodeId target) const;

    // What is stored all the same (cut_values.cpp).
    bool cut_repeated_numbers();
    void cut_columns_of_sums();
    void cut_summed_numbers();
    void cut_sums_beside_steps();
    void cut_many_sums();
    void cut_sums_of_sums();
    void cut_sums_of_positions();
    bool stores_beside(NodeId value) const;
    std::int64_t widest_row_bytes(NodeId value) const;
    void cut_product(NodeId id);
    void cut_searches();
    void cut_extents();
    void cut_numbers();
    void cut_broadcast();
    int cuts_behind(NodeId root) const;
    std::vector<NodeId> reach_of_all(const std::vector<NodeId>& roots) const;
    std::map<NodeId, std::vector<NodeId>> kernels_of_numbers() const;
    bool cut_live_numbers();

    const GraphData& graph_;
    const Target& target_;
    const bool is_gpu_;
    const bool runs_beside_;        // whether a kernel may run beside the one before it
    const bool stores_summands_;    // Repeated::kNotInSums
    const bool has_several_lists_;  // whether sum_several_lists may hold of anything
    std::set<NodeId> roots_;
    std::set<NodeId> cuts_;
    std::set<NodeId> repeated_;             // of them
    std::map<NodeId, int> stored_numbers_;  // of what would be too many for one kernel: the how many-th time
    int times_stored_ = 0;
    std::set<NodeId> few_numbers_;  // roots whose kernels have few enough live at once
    bool has_products_ = false;
    std::vector<bool> is_cut_;                     // by node: whether it is one of them
    std::map<NodeId, std::vector<NodeId>> fixes_;  // by state
    mutable std::map<NodeId, Reach> reaches_;      // of roots, as the cuts are
    mutable std::map<NodeId, int> cuts_behind_;    // of roots, when all cuts are made
    std::set<NodeId> settled_;                     // roots that need no further cut, as the cuts are

    friend class Planner;
};

}  // namespace rowjit::planning
