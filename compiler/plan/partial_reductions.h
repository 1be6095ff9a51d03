// Sums, maxima and minima over all rows, in two steps: every block of a kernel reduces the rows it takes, and a second
// kernel the blocks' parts in their order. The first step then shares a kernel with whatever else runs over those rows
// (a weight's gradient with its activation's), and the result depends on the number of blocks alone, never on when they
// ran.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/target.h"
#include "dsl/graph.h"

namespace rowjit {

struct PartialReductions {
    std::shared_ptr<const GraphData> graph;
    // By the slots of parts: the nodes of the given graph that they are of, both of a pair.
    std::map<AxisId, std::set<NodeId>> of_slots;
};

// Every sum, maximum or minimum of floats over all row axes of its operand, or all but the innermost (can_lie_apart),
// or over many rows with columns of each position of the others, becomes one over the slots axis of a PartialReduce,
// each with a slots axis of its own; a like reduction over some columns below it becomes part of it. What has too many
// columns for a part in each block stays, and so do the nodes `whole`. The same graph when there is none.
PartialReductions split_row_reductions(const std::shared_ptr<const GraphData>& graph, const Target& target,
                                       const std::set<NodeId>& whole);

// Whether a GPU's blocks would have parts of that sum over rows, and of what it is of the moments.
bool has_moments_of_rows(const GraphData& graph, NodeId sum, const Target& target);

// On a GPU a reduction over several axes whose extents a launch gives, for few results of which blocks have no parts,
// is one over the last of them and then one over the others: many blocks have results of the first, which may be made
// where its rows are. 60,000 rows of 12 heads in front of their tokens came to the gradients of two weights of 768 in
// 1.4 ms, twelve blocks' time (H200). `graph` where there is none.
std::shared_ptr<const GraphData> reduce_by_turns(const std::shared_ptr<const GraphData>& graph, const Target& target);

// Whether parts of sums over rows may have places for each position of these row axes of their operand, or of its
// columns that become row axes, as of a weight for each group of columns. A GPU's thread then takes rows that are at
// one position of them; a CPU's block adds each row to its own place.
bool can_lie_apart(const GraphData& graph, const Node& operand, const std::vector<AxisId>& apart, const Target& target);

// Whether a group stores parts of sums over its rows, or adds up such parts.
bool makes_parts(const GraphData& group);
bool adds_parts(const GraphData& group);

// Whether a node adds up the parts of each position of outer row axes: few where the positions are many.
bool adds_parts_of_each(const GraphData& group, const Node& node);

// By node: whether something is stored of its value that no narrow dtype was rounded to on the way.
std::vector<bool> shown_wide(const GraphData& graph);

// A group as a graph that stands alone: what it stores in parts is the sum itself, or where no more is shown of it, the
// sum rounded. Planned again, it gives the group and the kernel that adds its parts.
std::shared_ptr<const GraphData> with_whole_sums(const GraphData& group);

}  // namespace rowjit
