// CUDA source to a cubin through libnvrtc, opened at run time. A cubin, not PTX: the driver then compiles nothing at
// load, and a cubin of a newer 13.x compiler loads on an older 13.y driver, which its PTX does not.
#pragma once

#include <string>
#include <vector>

#include "base/declined.h"
#include "base/target.h"
#include "compiler/toolchain/artifact.h"
#include "compiler/toolchain/toolchain.h"

namespace rowjit {

// The files tried, in order: $ROWJIT_NVRTC alone when it is set, else beside rowjit, CUDA toolkits, the NVIDIA wheels
// of Python installations, and last the loader's own search.
std::vector<std::string> nvrtc_candidates();

Offer<Toolchain> find_nvrtc(const Target& target);
std::vector<std::string> nvrtc_options(const Toolchain& toolchain, const Target& target);

// The cubin. Needs that find_nvrtc offered.
std::string compile_with_nvrtc(const Source& source, const Target& target, const std::vector<std::string>& options);

}  // namespace rowjit
