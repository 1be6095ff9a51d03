// Passes of an order that a launch of few rows does without: where no row has a digit of a pass, and a launch says how
// many rows there are, what the pass would copy is read in its place. Every kernel orders by its digit all the same, so
// that it is right to launch them all.
#pragma once

#include "compiler/compile.h"

namespace rowjit {

// Sets Step::needed and Step::stays.
void find_needless(Program* program);

}  // namespace rowjit
