// Which elements of an Index's result were read from one element of its source: its coordinates, solved for the axes of
// the result. Reverse mode reads the result's cotangent there.
#pragma once

#include <vector>

#include "dsl/graph.h"
#include "dsl/support.h"

namespace rowjit {

// low ≤ value ≤ high; where low equals high, value = low.
struct Bounded {
    Coord value;
    Coord low;
    Coord high;
};

// The element of the result at `coords`, over the axes of the source and `summed`, is of the support and has read the
// source's element if and only if all of `conditions` hold and no data coordinate leaves its axis; every such element
// appears once. Coordinates without data stay inside the result even where a condition fails.
struct Preimage {
    std::vector<Coord> coords;        // one per axis of the Index
    std::vector<Bounded> conditions;  // those that are not always true
    std::vector<AxisId> summed;       // axes along which one source element is read more than once
    bool empty = false;               // no element of the source is read at all, from within the support
};

// The preimage of an Index node of `graph`, which gains column axes where one source element is read more than once.
// Elements of the result outside the support are left out, at least where an axis is read from another place than its
// own and nothing is at data. Throws Error(kUnsupported) for coordinates that it cannot solve: row axes at data
// coordinates.
Preimage preimage_of(GraphData& graph, const Node& index, const Support& support = {});

}  // namespace rowjit
