// What a program's kernels owe to those before them: which may begin while the one before ends, and which take their
// rows from the last to the first.
#pragma once

#include "compiler/compile.h"

namespace rowjit {

// Whether a kernel's rows may come in either order: not where each waits for those before it, nor where a thread stays
// at one place along some of their axes.
bool may_go_back(const Kernel& kernel);

// Sets Kernel::last_first: a kernel goes back over rows that the last one to have them took from the first to the last,
// of which the cache that all multiprocessors or cores share has the end.
void choose_directions(Program* program);

// Sets Kernel::neighbours, for a target with dependent launches.
void chain_kernels(Program* program);

}  // namespace rowjit
