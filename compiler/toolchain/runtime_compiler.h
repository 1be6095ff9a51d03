// NVRTC and hipRTC have one C interface under two prefixes, result codes included. This is that interface and the one
// way rowjit uses it: a program per compile, so that threads share nothing.
#pragma once

#include <string>
#include <vector>

#include "base/dynamic_library.h"
#include "base/target.h"
#include "compiler/toolchain/artifact.h"

namespace rowjit {

// Declared here so that no vendor header is needed to build rowjit.
struct RuntimeCompiler {
    using Program = struct OpaqueProgram*;
    static constexpr int kSuccess = 0;
    static constexpr int kInvalidOption = 5;
    static constexpr int kCompilationFailed = 6;

    int (*version)(int* major, int* minor) = nullptr;
    int (*create)(Program*, const char* source, const char* name, int, const char* const*,
                  const char* const*) = nullptr;
    int (*destroy)(Program*) = nullptr;
    int (*compile)(Program, int option_count, const char* const* options) = nullptr;
    int (*code_size)(Program, std::size_t*) = nullptr;
    int (*code)(Program, char*) = nullptr;
    int (*log_size)(Program, std::size_t*) = nullptr;
    int (*log)(Program, char*) = nullptr;
    const char* (*error_text)(int) = nullptr;

    std::string label;      // "nvrtc 13.0", for messages
    std::string file_name;  // by which diagnostics name the source
};

// Fills the functions from `library`, where they are called e.g. "nvrtcGet" + "CUBIN" + "Size". Returns "", or the name
// of the first that is missing.
std::string resolve(RuntimeCompiler& compiler, const DynamicLibrary& library, const std::string& prefix,
                    const std::string& code);

// The compiled code. Throws Error(kCompile) when the source is refused, Error(kEnvironment) when the compiler fails.
std::string run_compiler(const RuntimeCompiler& compiler, const Source& source, const Target& target,
                         const std::vector<std::string>& options);

}  // namespace rowjit
