// The CPU as a device: memory of this process, kernels run by a pool of threads in the calling thread's turn.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/cpu/thread_pool.h"
#include "runtime/device.h"

namespace rowjit {

// A compiled CPU kernel: does row blocks [row_block_begin, row_block_end). LaunchGeometry::grid is the number of row
// blocks; the other fields do not apply. `arguments` points at each argument's value, as for a GPU.
using CpuKernel = void (*)(void* const* arguments, std::int64_t row_block_begin, std::int64_t row_block_end);

// ROWJIT_CPU_THREADS threads, or one per hardware thread this process may use.
std::shared_ptr<DeviceImpl> open_cpu();

// Launches of `device` go through `parallel_for` from now on; one without `run` restores rowjit's own threads. Not to
// be called during a launch. Throws Error(kInvalidArgument) when the device is not a CPU.
void set_parallel_for(DeviceImpl& device, const ParallelFor& parallel_for);

}  // namespace rowjit
