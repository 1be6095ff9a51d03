// The gradient of an Index that takes whole rows of its source at ids. A row may be taken many times, and what is added
// up must come in one order: the ids are put in their stable order, in which those of a row stand together, so that the
// gradient is a sum over segments. Nothing is added at data coordinates.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dsl/graph.h"
#include "dsl/stable_order.h"

namespace rowjit {

struct RowGather {
    Axis rows;                    // of the source, read at the ids
    std::vector<Axis> positions;  // axes that the ids lie along; rows that the source has are read as they are
    Value ids;
};

// Nothing for an Index that reads otherwise: several axes at data, column axes, or ids along the source's own columns.
std::optional<RowGather> row_gather(const std::shared_ptr<GraphData>& graph, const Node& index);

// Whether the ids are put in order for its gradient: not those whose rows have their positions known otherwise, nor the
// inputs named in `sorted`, whose orders are inputs themselves.
bool is_put_in_order(const std::shared_ptr<GraphData>& graph, NodeId source, const RowGather& gather,
                     const std::vector<std::string>& sorted);

// Ids in order, and the rows that take segments of them.
struct OrderedIds {
    Axis rows;     // the source's, or the product of those that positions share with it and of its own
    Axis ordered;  // as many as positions
    StableOrder found;
};

// By the ids, the source's rows and the axes that positions share with it: what several gathers take at the same ids is
// put in order once.
using RowOrders = std::map<std::tuple<NodeId, AxisId, std::vector<AxisId>>, OrderedIds>;

// What flows back to the source where `whole`, along all axes of the Index, flows to its result. The stable orders of
// the inputs named in `sorted` are inputs themselves: NAME_order, along as many positions as ids, and NAME_offsets.
// `orders` are those that the graph has.
Value gathered_rows_gradient(const std::shared_ptr<GraphData>& graph, NodeId source, const RowGather& gather,
                             const Value& whole, const std::vector<std::string>& sorted, RowOrders* orders);

}  // namespace rowjit
