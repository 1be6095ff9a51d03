// Values that are another value's, turned: at column c what the other has at (c + n) modulo the columns, as of a rotary
// embedding's partner what was computed of the column itself. Graphs write both out down to their loads, since an index
// reads an input. Where a thread holds the columns of both, the second is the first, of another of its vectors.
#pragma once

#include <cstdint>
#include <map>

#include "dsl/graph.h"

namespace rowjit {

struct Turn {
    NodeId own = -1;           // what it is of other columns
    std::int64_t columns = 0;  // how many further on, positive
};

// Nodes of one column axis that are another live node turned along it.
std::map<NodeId, Turn> find_turns(const GraphData& graph);

}  // namespace rowjit
