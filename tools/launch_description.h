// A kernel's launch in JSON: what a program that has only the code object needs in order to run it.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include "compiler/compile.h"
#include "compiler/toolchain/artifact.h"

namespace rowjit {

// Entry point, block, how the grid follows from the rows, shared memory, and the parameters in order with kinds and
// sizes. Documented in docs/command-line.md.
nlohmann::json launch_description(const Program& program, const Step& step, const Target& target,
                                  const Artifact& artifact);

// The source as the toolchain gets it, prelude included.
std::string full_source(const Kernel& kernel, const Target& target);

}  // namespace rowjit
