// From a Kernel to CUDA or HIP source. One emitter for both: the vendors differ only in the half of the prelude that is
// put before the kernel (templates/prelude_cuda.h, prelude_hip.h), so the kernel's own text is, but for what an
// architecture packs, the same for every GPU and also compiles against the tests' SIMT shim.
//
// Needs: accesses, alignment and scratch regions decided (compiler/passes). How many blocks are launched is the
// caller's choice: the code is right for every positive multiple of the schedule's column blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/target.h"
#include "compiler/kernel.h"
#include "compiler/toolchain/artifact.h"

namespace rowjit {

// The prelude's texts in their order, the vendor's half first: each needs only those before it.
std::vector<std::string_view> gpu_prelude_parts(const Target& target);

// What stands before the kernel: the warp width and the prelude of the target's vendor.
std::string gpu_prelude(const Target& target);

// The kernel alone, in terms of the prelude's rj_ functions. Throws Error(kUnsupported) when it computes in f64.
std::string emit_gpu_body(const Kernel& kernel, const Target& target);

// Both, ready for a toolchain.
Source emit_gpu(const Kernel& kernel, const Target& target);

}  // namespace rowjit
