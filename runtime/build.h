// From kernels to artifacts, through the cache: the one place that asks the cache and, on a miss, a toolchain. Needs no
// device, so kernels for a GPU elsewhere are built here too.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/target.h"
#include "cache/kernel_cache.h"
#include "compiler/compile.h"

namespace rowjit {

struct BuiltKernel {
    CacheKey key;
    std::shared_ptr<const Artifact> artifact;
    bool from_cache = false;  // memory, a bundle or the disk had it
};

// The cache of compiled kernels under that directory ("": in memory alone), behind those bundles.
std::unique_ptr<KernelCache> make_cache(const std::string& root, Bundles bundles);

// The target a name on the command line means: "native" is this process's CPU with its features filled in.
Target resolve_target(const std::string& name);

// The compiler for a target and its version, "nvrtc 13.0"; "" when there is none.
std::string toolchain_version(const Target& target);

// The source an artifact is compiled from, as people read it: CUDA, HIP, or LLVM IR.
std::string readable_source(const Kernel& kernel, const Target& target);

// Through no cache. Throws Error(kEnvironment) when no toolchain compiles for the target, Error(kCompile) when one
// refuses the source.
Artifact compile_kernel(const Kernel& kernel, const Target& target);

// Through the cache, where a bundle's kernel needs no toolchain; what it lacks comes from `make`, or where that is
// empty from compile_kernel(). Throws as these do.
BuiltKernel build(const Kernel& kernel, const Target& target, KernelCache& cache,
                  const KernelCache::Compile& make = {});

// Whether it keeps some of a thread's values in memory. A CPU has the stack for that.
bool spills(const BuiltKernel& kernel, const Target& target);

struct BuiltProgram {
    Program program;
    std::vector<BuiltKernel> kernels;  // of its steps
};

// Every step's kernel, as many at once as there are processors. The first failure is thrown once the others have ended.
BuiltProgram build_program(Program program, const Target& target, KernelCache& cache);

// Of a kernel's legal_schedules(), which are so many, the place of the static choice, which is taken where nobody has
// measured: the first, or where that spills the next that does not; the first where all that are tried do. Register
// needs are estimated before (compiler/passes) and known only of compiled kernels; `spills` says it of one.
std::size_t place_of_static_choice(std::size_t legal, const std::function<bool(std::size_t place)>& spills);

// The program of a graph as compile() makes it, built, but with the static choice at place_of_static_choice(). A
// schedule that `choice` gives stays.
BuiltProgram build_without_spills(const GraphData& graph, const Target& target, const ScheduleChoice& choice,
                                  KernelCache& cache, const ChunkOptions& chunks = {});

// Kernels of no program, as build_program builds those of one.
std::vector<BuiltKernel> build_all(const std::vector<const Kernel*>& kernels, const Target& target, KernelCache& cache);

}  // namespace rowjit
