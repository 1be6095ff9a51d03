// HIP source to a code object through hipRTC, opened at run time. It knows the architectures of its own ROCm release
// only; clang (clang.h) covers the rest.
#pragma once

#include <string>
#include <vector>

#include "base/declined.h"
#include "base/target.h"
#include "compiler/toolchain/artifact.h"
#include "compiler/toolchain/toolchain.h"

namespace rowjit {

// The files tried, in order: $ROWJIT_HIPRTC alone when it is set, else beside rowjit, ROCm's folders, and last the
// loader's own search.
std::vector<std::string> hiprtc_candidates();

Offer<Toolchain> find_hiprtc(const Target& target);
std::vector<std::string> hiprtc_options(const Toolchain& toolchain, const Target& target);

// The code object. Needs that find_hiprtc offered for this target: with any other, hipRTC 5.2 aborts the process.
std::string compile_with_hiprtc(const Source& source, const Target& target, const std::vector<std::string>& options);

}  // namespace rowjit
