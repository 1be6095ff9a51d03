// What the compiler knows of a machine: numbers, never a device. Everything up to a compiled artifact works from a
// Target, so kernels can be compiled for a GPU that is not here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rowjit {

enum class Backend : std::uint8_t { kCpu, kCuda, kHip };

std::string_view name(Backend backend);  // "cpu", "cuda", "hip"

struct Target {
    std::string name;  // "sm_90a", "gfx942", "x86-64-v3", or "native" for the CPU this process runs on
    Backend backend = Backend::kCpu;
    int warp_size = 1;  // lanes per warp (NVIDIA) or wave (AMD)
    int sm_count = 1;   // multiprocessors, compute units, or CPU threads
    std::int64_t shared_bytes_per_block = 0;
    std::int64_t shared_bytes_per_sm = 0;
    std::int64_t registers_per_sm = 0;  // 32-bit ones
    int assembler_registers = 0;  // of a thread's, what the assembler takes beyond the estimate of compiler/passes
    int max_threads_per_sm = 1;
    std::int64_t l2_bytes = 0;
    double bandwidth_gbps = 0;      // what a large copy reaches, bytes read plus bytes written
    bool clusters = false;          // thread-block clusters with distributed shared memory
    bool dependent_launch = false;  // a kernel may begin while the one before it ends
    bool packed_bf16 = false;       // an instruction computes on two bf16, or rounds two f32 to them
    // Four warps multiply matrices in shared memory together, and boxes of tensors are copied there (Hopper's own).
    bool warpgroup_products = false;
    int vector_lanes = 1;  // f32 of a CPU's vector register
    std::string label;
    std::string cpu_features;  // CPU only: LLVM's feature string, "" for the named baseline's own

    bool is_gpu() const { return backend != Backend::kCpu; }
};

// The target of that name. A suffix after ':' (gfx942:xnack-) is kept in `name`. "native" is the CPU of this process,
// its features as LLVM names them being filled in by the CPU toolchain. Throws Error(kUnsupported) naming the known
// targets.
Target find_target(std::string_view name);

// Every row of targets.def, in order.
const std::vector<Target>& all_targets();

}  // namespace rowjit
