// From emitted GPU source to an Artifact. Each toolchain is a vendor library opened at run time (nvrtc, hiprtc) or a
// program (clang for AMD); none is needed to build rowjit, and a missing one is an Error only when its target is asked
// for.
#pragma once

#include <string>
#include <vector>

#include "base/declined.h"
#include "base/target.h"
#include "compiler/toolchain/artifact.h"

namespace rowjit {

struct Toolchain {
    std::string name;      // "nvrtc", "hiprtc", "clang"
    std::string version;   // part of every cache key
    std::string location;  // the library or program found, for `doctor`
};

// Options in order, as handed to the compiler for this target. They are part of the cache key.
std::vector<std::string> compile_options(const Toolchain& toolchain, const Target& target);

// The toolchain that compiles for `target`, found once per process: NVRTC for NVIDIA; for AMD hipRTC where it knows the
// architecture, else clang, or the one that ROWJIT_AMD_TOOLCHAIN names. Declines with what was looked for and what to
// install; an architecture the found library does not know is declined here, before any call (Debian's hipRTC 5.2
// aborts the process). Throws Error(kParse) when an environment variable cannot be read.
Offer<Toolchain> find_toolchain(const Target& target);

// Compiles. Safe from many threads at once. Throws Error(kEnvironment) when no toolchain is found, Error(kCompile) with
// the compiler's log and the numbered source lines it names when the source is refused.
Artifact compile_source(const Source& source, const Target& target);

}  // namespace rowjit
