// The stable order of integers along a row axis, and where those of each row begin in it: what the gradient of gathered
// rows needs, so that equal ids stand together. Nothing is then added at data coordinates.
#pragma once

#include "rowjit/graph.h"

namespace rowjit {

struct StableOrder {
    Value order;    // {places}, i64: the position of the id that comes at each place
    Value offsets;  // {ends}, i64: how many ids stand before those of each row, and before the end
};

// Of `ids`, i32 or i64 along one row axis, by what they hold. `places` has as many positions as they, `ends` one more
// than `rows`; ids below 0 come first, and those past the last row last.
StableOrder stable_order(const Value& ids, Axis places, Axis rows, Axis ends);

}  // namespace rowjit
