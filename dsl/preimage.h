// Which elements of an Index's result were read from one element of its source: its coordinates, solved for the axes of
// the result. Reverse mode reads the result's cotangent there.
#pragma once

#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// low ≤ value ≤ high; where low equals high, value = low.
struct Bounded {
    Coord value;
    Coord low;
    Coord high;
};

// The element of the result at `coords`, over the axes of the source and `summed`, has read the source's element if and
// only if all of `conditions` hold and no data coordinate leaves its axis; every such element appears once. Coordinates
// without data stay inside the result even where a condition fails.
struct Preimage {
    std::vector<Coord> coords;        // one per axis of the Index
    std::vector<Bounded> conditions;  // those that are not always true
    std::vector<AxisId> summed;       // axes along which one source element is read more than once
    bool empty = false;               // no element of the source is read at all
};

// The preimage of an Index node of `graph`, which gains column axes where one source element is read more than once.
// Throws Error(kUnsupported) for coordinates that it cannot solve: row axes at data coordinates.
Preimage preimage_of(GraphData& graph, const Node& index);

}  // namespace rowjit
