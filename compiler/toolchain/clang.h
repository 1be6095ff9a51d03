// HIP source to a code object through a clang program on this machine: for AMD architectures newer than the hipRTC at
// hand, and where there is none. Needs lld beside it, and neither ROCm nor its device library, since the emitted source
// uses compiler builtins only.
#pragma once

#include <string>
#include <vector>

#include "base/declined.h"
#include "base/target.h"
#include "compiler/toolchain/artifact.h"
#include "compiler/toolchain/toolchain.h"

namespace rowjit {

Offer<Toolchain> find_clang(const Target& target);
std::vector<std::string> clang_options(const Toolchain& toolchain, const Target& target);

// The code object. Needs that find_clang offered. Temporary files lie in a folder of this compile's own, which is gone
// when this returns or throws.
std::string compile_with_clang(const Source& source, const Target& target, const std::vector<std::string>& options);

}  // namespace rowjit
