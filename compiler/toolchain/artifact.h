// What a toolchain makes of emitted source: bytes a driver (or the CPU loader) can load, and what the compiler reported
// about them. An Artifact is what the cache stores; it needs no device.
#pragma once

#include <string>
#include <vector>

#include "base/target.h"

namespace rowjit {

// One kernel as text: what the emitter gives and the toolchain takes.
struct Source {
    std::string text;
    std::vector<std::string> functions;  // extern "C" entry points, in launch order
};

// One parameter of an entry point as it lies in the launch's argument block.
struct ArgumentInfo {
    int offset_bytes = 0;
    int size_bytes = 0;
    std::string kind;  // AMD: "global_buffer", "by_value", "hidden_..."; NVIDIA does not tell: always "by_value"

    bool operator==(const ArgumentInfo&) const = default;
};

// Resources of one entry point, read from the binary's own metadata, not from a log. What a vendor does not record is
// 0.
struct FunctionInfo {
    std::string name;
    int registers = 0;          // per thread (NVIDIA), VGPRs (AMD); 0 on the CPU
    int scalar_registers = 0;   // SGPRs (AMD)
    int spill_bytes = 0;        // per thread: local (NVIDIA) or private (AMD) memory
    int spilled_registers = 0;  // AMD: VGPRs and SGPRs spilled; an SGPR may go to a VGPR's lanes and cost no memory
    int shared_bytes = 0;       // static shared memory the source declares
    int max_threads = 0;        // the launch bound it was compiled for, 0 when none
    int wave_size = 0;          // AMD: 32 or 64
    int kernarg_bytes = 0;      // the argument block, hidden arguments included
    int load_waits = 0;         // NVIDIA: load_waits.h, one after the other, of a thread going through the text once
    int bytes_in_flight = 0;    // NVIDIA: likewise, at most, of a thread
    std::vector<ArgumentInfo> arguments;  // by offset

    bool operator==(const FunctionInfo&) const = default;
};

struct Artifact {
    std::string target;  // Target::name it was compiled for
    std::string format;  // "cubin", "code-object", "object"
    std::string binary;
    std::string toolchain;  // library and version, e.g. "nvrtc 13.0"
    std::vector<FunctionInfo> functions;
    double compile_ms = 0;

    bool operator==(const Artifact&) const = default;
};

}  // namespace rowjit
