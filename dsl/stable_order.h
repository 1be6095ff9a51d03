// The stable order of integers along a row axis, by merging: what the gradient of gathered rows needs, so that equal
// ids stand together. Nothing is written at data coordinates; every place finds what belongs there.
#pragma once

#include "rowjit/graph.h"

namespace rowjit {

struct StableOrder {
    Value order;    // {places}, i64: the position of the id that comes at each place
    Value offsets;  // {ends}, i64: how many ids stand before those of each row, and before the end
};

// Of `ids`, i32 or i64 along one row axis, by what they hold. `places` has as many positions as they, `ends` one more
// than `rows`; ids below 0 come first, and those past the last row last. n ids take n log² n steps in two kernels, two
// more beyond 128 of them, and two more for each factor of eight beyond 2048; where n is given at launch, a launch does
// without the others.
StableOrder stable_order(const Value& ids, Axis places, Axis rows, Axis ends);

}  // namespace rowjit
