// One device as the runtime sees it: memory, streams, events, loaded modules and launches, behind one seam with three
// implementations (cpu/, cuda/, hip/). Vendor libraries are opened at run time, so a process without a GPU still works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/target.h"
#include "compiler/toolchain/artifact.h"
#include "rowjit/dtype.h"

namespace rowjit {

// The caller's stream: cudaStream_t / CUstream, hipStream_t; null is the default stream. The CPU runs in the calling
// thread's turn.
using StreamHandle = void*;

class Gemm;  // runtime/gemm/gemm.h
struct GemmType;
struct GemmShape;

struct LaunchGeometry {
    std::uint32_t grid = 1;          // blocks, x only; on the CPU, row blocks; 0 launches nothing
    std::uint32_t block = 1;         // threads, x only
    std::uint32_t shared_bytes = 0;  // dynamic shared memory
    std::uint32_t cluster = 1;       // blocks per cluster
    bool overlaps = false;           // begins while the kernel before it ends, for which it waits itself
    bool last_first = false;         // on the CPU: row blocks are taken so; a GPU's kernels say it themselves
};

// A loaded entry point. Resolved when the module is loaded, never on the launch path.
struct Function {
    void* handle = nullptr;
};

// A loaded artifact; unloads on destruction. Functions in the order of Artifact::functions.
class Module {
  public:
    virtual ~Module() = default;
    virtual std::span<const Function> functions() const = 0;
};

// A matrix of rows of elements of two bytes, as a kernel copies boxes of it into shared memory.
struct MatrixInMemory {
    const void* address = nullptr;  // like the stride, a multiple of 16 bytes
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::int64_t row_stride = 0;  // elements
    int box_rows = 0;
    int box_columns = 0;
    Dtype dtype = Dtype::kBf16;
};

// A CUtensorMap.
struct alignas(64) TensorMap {
    std::byte bytes[128];
};

class DeviceImpl {
  public:
    virtual ~DeviceImpl() = default;

    virtual const Target& target() const = 0;     // with this device's own numbers
    virtual std::string description() const = 0;  // "cuda:0 NVIDIA H200, driver 13.0"

    // Null for 0 bytes; throws Error(kEnvironment) with the bytes asked and free. All memory goes with the device.
    virtual void* allocate(std::size_t bytes) = 0;
    virtual void release(void* address) noexcept = 0;  // nothing for null
    // The synchronous copies come after everything queued on the default stream and on streams from create_stream; a
    // caller's own non-blocking stream must be synchronised first.
    virtual void copy_to_device(void* destination, const void* source, std::size_t bytes) = 0;  // synchronous
    virtual void copy_to_host(void* destination, const void* source, std::size_t bytes) = 0;    // synchronous
    virtual void copy_on_device(void* destination, const void* source, std::size_t bytes, StreamHandle stream) = 0;
    virtual void fill(void* destination, std::uint8_t byte, std::size_t bytes, StreamHandle stream) = 0;

    // Loads and resolves every function; throws Error(kEnvironment) when the driver refuses the image, and
    // Error(kLaunch) when `stream`, the one about to be launched on, is being captured: loading would break the
    // capture.
    virtual std::unique_ptr<Module> load(const Artifact& artifact, StreamHandle stream = nullptr) = 0;

    // How many clusters of that geometry the device runs at the same time; 0 where it does not say.
    virtual std::int64_t clusters_at_once(Function /*function*/, const LaunchGeometry& /*geometry*/) const { return 0; }

    // What a kernel is given to copy boxes of that matrix by (KernelArgument::Kind::kMatrix). Returns nullptr, or what
    // was refused.
    virtual const char* map_matrix(const MatrixInMemory& /*matrix*/, TensorMap* /*map*/) const noexcept {
        return "the device does not copy boxes of tensors";
    }

    // A matrix product ready to queue; sides of `typical` that are 0 come at launch. Throws Error(kEnvironment) where
    // the device has no library for it, Error(kUnsupported) for dtypes it does not multiply, Error(kLaunch) as load.
    virtual std::shared_ptr<const Gemm> make_gemm(const GemmType& type, const GemmShape& typical,
                                                  StreamHandle stream) = 0;

    // Queues the function on the stream, from any thread, whatever device the thread has current. `arguments` points at
    // each argument's value. No allocation, no synchronisation (the CPU has finished when it returns). Returns nullptr,
    // or a static description of what the driver refused (a launch never throws).
    virtual const char* launch(Function function, const LaunchGeometry& geometry, StreamHandle stream,
                               void** arguments) noexcept = 0;

    virtual StreamHandle create_stream() = 0;
    virtual void destroy_stream(StreamHandle stream) noexcept = 0;
    virtual void synchronize(StreamHandle stream) = 0;  // throws Error(kLaunch) when queued work has failed

    // Milliseconds of device time for each repetition of `work`, which is queued `repetitions` times between event
    // pairs on `stream` (on the CPU: a steady clock around each call).
    virtual std::vector<double> time_ms(StreamHandle stream, int repetitions, const class TimedWork& work) = 0;
};

// What time_ms repeats; the index lets the work rotate among buffers so that the cache stays cold.
class TimedWork {
  public:
    virtual ~TimedWork() = default;
    virtual void queue(int repetition) const = 0;
};

// Opens "cpu", "cuda:N" or "hip:N". Throws Error(kEnvironment) naming what is missing (driver library, device N of M),
// Error(kUnsupported) when no target covers the device. ROWJIT_CUDA_DRIVER and ROWJIT_HIP_DRIVER name another driver
// library than the system's.
std::shared_ptr<DeviceImpl> open_device(const std::string& name);

// Every device this process can open, by name, best first (cuda, hip, cpu).
std::vector<std::string> available_devices();

}  // namespace rowjit
