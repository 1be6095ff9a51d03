// Kernel → machine code of a CPU through LLVM, and loading it into this process. Compiling needs no CPU of the target;
// loading a cached object compiles nothing.
#pragma once

#include <memory>
#include <string>

#include "base/target.h"
#include "compiler/kernel.h"
#include "compiler/toolchain/artifact.h"

namespace rowjit {

// Whether this build has LLVM. Without it the functions below throw Error(kEnvironment) that says how to get it.
bool has_cpu_toolchain();

// "LLVM 19.1.7": part of every cache key.
std::string cpu_toolchain_version();

// find_target("native") with what LLVM knows of this CPU: its name in `label`, its features in `cpu_features`.
Target host_cpu_target();

// What the compiled object depends on, as text: LLVM's version, the CPU and features, and the module before
// optimisation. Costs a small part of compiling.
std::string cpu_key_text(const Kernel& kernel, const Target& target);

// Optimises and compiles for `target`: "native" (as host_cpu_target gives it) or a named x86-64 level. The artifact's
// format is "object", an ELF file with one entry point, Kernel::name; see emit/llvm.h for its signature. Safe from many
// threads at once. Throws Error(kUnsupported) for a target that is no CPU, Error(kCompile) when LLVM refuses the
// module.
Artifact compile_cpu(const Kernel& kernel, const Target& target);

// The module before optimisation, and the assembly after it, for people.
std::string print_llvm(const Kernel& kernel, const Target& target);
std::string print_assembly(const Kernel& kernel, const Target& target);

// An object linked into this process; its code lives as long as it does. Nothing here is virtual: files that see LLVM
// are compiled without run-time type information, as LLVM is, and the sanitizers ask every virtual call for it.
class CpuCode {
  public:
    struct Linked;
    explicit CpuCode(std::unique_ptr<Linked> linked);
    ~CpuCode();
    void* symbol(const std::string& name);  // nullptr when the object has no such symbol

  private:
    std::unique_ptr<Linked> linked_;
};

// Throws Error(kEnvironment) when the bytes are no object that can be linked here.
std::unique_ptr<CpuCode> load_cpu_object(const Artifact& artifact);

}  // namespace rowjit
