// Steps that a launch of few positions does without. A graph may say of an extent alone that a value stays as it is,
// select(extent > 4096, merged, as_it_was): a pass of a sort for which there is one run. Where both are temporaries the
// kernel that would copy the one to the other is not launched, nor are those that only such kernels read from; whoever
// reads the value reads the other tensor. Every kernel still makes its choices, so that it is right to launch them all.
#pragma once

#include "compiler/compile.h"

namespace rowjit {

// Sets Step::needed and Step::stays. Of programs without loops.
void find_needless(Program* program);

}  // namespace rowjit
