// A graph of masks that compare columns with numbers of the row, in 64 bits as coordinates of rows are.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "rowjit/graph.h"

namespace rowjit {

// Causal, in a window, padded, by positions that are read, by bounds beyond all columns and beyond 32 bits, and one
// column of each row taken out; and how far columns lie from places that f32 does not hold.
inline Graph compared_places(std::int64_t columns) {
    return Graph::parse(fmt::format(R"(
        rows q
        columns k = {}
        input x: f32[q, k]
        input at: i64[q]
        scalar far: i64 = 4000000000000000000
        scalar below: i64 = -4000000000000000000
        i = iota(q, i64)
        j = cast(iota(k), i64)
        sees = i >= j && i - j < 7
        shifted = j + 3 <= i || 5 - j > i + 1
        bounded = j < far && j > below && far >= j && j != far
        read = j <= at && at + 4 != j && at > j
        wide = iota(k, i64) == i || iota(k, i64) < 3
        output seen = select(sees, x, 0)
        output moved = select(shifted, x, 1)
        output all = select(bounded, x, 2)
        output some = select(read, x, 3)
        output own = select(wide, x, 4)
        output most = max(select(i >= j, x, -inf))
        n = i * 50331649 + 16777215
        output before = cast(cast(j - n, f32), i64)
        output behind = cast(cast(n - j, f32), i64)
        output beside = cast(cast(n + j, f32), i64)
        output near = cast(i - j, f32) * x)",
                                    columns));
}

}  // namespace rowjit
