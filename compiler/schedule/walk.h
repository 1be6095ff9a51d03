// Rows that read rows beside them, as a token shift and a causal convolution do: index(x, iota(rows) - k, columns). A
// block that takes rows as they follow each other has read what lies k rows back, and has computed what was computed of
// it: a thread keeps both in registers, a window of rows that moves on by one with each. Each row is then read once,
// and what a gradient takes of the rows behind it, which graphs write out down to their loads, is computed once.
#pragma once

#include "base/declined.h"
#include "base/target.h"
#include "compiler/kernel.h"

namespace rowjit {

// A thread keeps no more rows back than these, which are registers.
inline constexpr std::int64_t kMostRowsBack = 16;

// The kernel, lowered for blocks that take rows one after the other (Schedule::ahead), with its windows.
Offer<Kernel> walk_rows(Kernel kernel, const Target& target);

}  // namespace rowjit
