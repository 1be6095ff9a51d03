// Emitted GPU kernels on the CPU: programs for a GPU target, compiled as C++ over the SIMT machine, as executables that
// runtime/verify can run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/target.h"
#include "compiler/compile.h"
#include "rowjit/engine.h"
#include "runtime/gemm/lt.h"

namespace rowjit::simt {

// Changes the emitted text of a kernel before it is compiled: how tests break kernels on purpose.
using Sabotage = std::function<std::string(std::string text)>;

// The architecture of that name with one multiprocessor, so that kernels whose grid is bounded loop over a few rows.
Target target(std::string_view name);

// Matrix products are `library`'s, or plain loops.
Device device(const Target& target, std::shared_ptr<const LtLibrary> library = nullptr);

// Compiles the kernels of all programs together, since the compiler's start and the prelude cost most. Throws
// std::runtime_error with the compiler's output.
std::vector<Executable> build(std::vector<Program> programs, const Target& target, const Device& device,
                              const Sabotage& sabotage = {});

}  // namespace rowjit::simt
