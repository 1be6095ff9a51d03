// Spans of a loop's columns along which conditions of a column's place are known: whether it lies before or behind a
// number, as those of a concatenation's parts and of what is padded do. In each the loop has only what is chosen there;
// the gradient of a packed row, of which one half is the gate's and the other the value's, computes each for its half.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/kernel.h"

namespace rowjit {

struct ColumnSpan {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    ColumnLoop loop;  // its known conditions are constants, and what only the choices that are not taken need is gone
};

// In order, from whole vectors to whole vectors; the last ends with the row. Empty where nothing is to be gained.
std::vector<ColumnSpan> spans_of(const Kernel& kernel, const ColumnLoop& loop);

}  // namespace rowjit
