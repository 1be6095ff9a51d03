// Kernel → LLVM module, for the CPU. The grid becomes the caller's range of row blocks, a row has one thread, and the
// lanes of a column loop are one LLVM vector, which code generation splits into registers. Barriers fall away.
//
// The entry point is
//
//     extern "C" void NAME(void* const* arguments, int64_t block_begin, int64_t block_end)
//
// arguments[i] points at the value of Kernel::arguments[i]. Blocks [block_begin, block_end) are run in order; block b
// holds rows_per_block rows from (b / column_blocks) · rows_per_block and the column block b % column_blocks. Ranges
// may run at the same time on other threads. Rows past the last are skipped.
//
// Floating point is exact to the letter: nothing is contracted or reassociated but what passes/precision says, a
// division of many lanes by one number, which emit/llvm_math.h has, and sums, whose terms are added to each other
// before they meet a state; a reduction folds its lanes in a fixed tree, so a result depends on the kernel alone, not
// on the range it was computed in. Optimisation and machine code are toolchain/orc's.
#pragma once

#include <memory>

#include "compiler/emit/cpu_features.h"
#include "compiler/kernel.h"

namespace llvm {
class LLVMContext;
class Module;
}  // namespace llvm

namespace rowjit {

// threads_per_row must be 1 and vectors powers of two; kept slots lie on the stack.
std::unique_ptr<llvm::Module> emit_llvm(const Kernel& kernel, const CpuFeatures& features, llvm::LLVMContext& context);

}  // namespace rowjit
