// Compiling and running graphs.
//
//     Engine engine(Device::best());                       // cuda:0, else hip:0, else cpu
//     Executable f = engine.compile(graph);                // memory, bundles, disk, else the compiler
//     Arguments args = f.arguments();
//     args.rows("tokens", n).tensor("x", x).tensor("weight", w).tensor("y", y);
//     args.workspace(block, f.workspace_bytes(args));      // only where f needs one
//     f.launch(stream, args).or_throw();
//
// Compiling is the only slow call. A launch neither allocates, synchronises, compiles nor throws, and may be captured
// into a graph of the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rowjit/chunk_options.h"
#include "rowjit/graph.h"

namespace rowjit {

class DeviceImpl;  // runtime/device.h
class LaunchPlan;  // runtime/launch_plan.h

// cudaStream_t, CUstream or hipStream_t; null is the device's default stream. The CPU runs in the caller's turn.
using Stream = void*;

// "cpu", "cuda:0", "hip:1". Copies share the device.
class Device {
  public:
    static Device best();  // cuda:0, else hip:0, else cpu
    // Throws Error(kEnvironment) naming what is missing: the driver library, or device N of M.
    explicit Device(std::string_view name);
    explicit Device(std::shared_ptr<DeviceImpl> impl) : impl_(std::move(impl)) {}

    std::string description() const;  // "cuda:0 NVIDIA H200, driver 13.0"
    std::string target() const;       // the architecture kernels are compiled for: "sm_90a"

    void* allocate(std::size_t bytes) const;  // throws Error(kEnvironment)
    void release(void* address) const;
    void copy_to_device(void* destination, const void* source, std::size_t bytes) const;
    void copy_to_host(void* destination, const void* source, std::size_t bytes) const;
    Stream create_stream() const;
    void destroy_stream(Stream stream) const;
    void synchronize(Stream stream) const;

    DeviceImpl& impl() const { return *impl_; }
    const std::shared_ptr<DeviceImpl>& shared() const { return impl_; }

  private:
    std::shared_ptr<DeviceImpl> impl_;
};

// What a launch came to. The message stays valid until this thread's next launch.
class [[nodiscard]] Status {
  public:
    Status() = default;
    Status(ErrorCode code, const char* message) : code_(code), message_(message) {}
    bool ok() const { return message_ == nullptr; }
    ErrorCode code() const { return code_; }  // of a status that is not ok
    const char* message() const { return message_ == nullptr ? "ok" : message_; }
    void or_throw() const {
        if (!ok()) throw Error(code_, message_);
    }

  private:
    ErrorCode code_ = ErrorCode::kLaunch;
    const char* message_ = nullptr;
};

// The arguments of one executable, by place. Setting by name looks the name up; setting by the place that
// Executable::tensor_place gave does not. Reuse one and change what changes. Names that are unknown, or strides of the
// wrong number, throw Error(kInvalidArgument).
class Arguments {
  public:
    // The address of an input's or output's first element. Contiguous, or with one stride in elements per row axis, in
    // the declared order; they may be larger than the rows (padding) and of any sign.
    Arguments& tensor(std::string_view name, void* data, std::span<const std::int64_t> row_strides = {});
    Arguments& tensor(std::string_view name, const void* data, std::span<const std::int64_t> row_strides = {});
    Arguments& tensor(int place, void* data, std::span<const std::int64_t> row_strides = {});
    Arguments& rows(std::string_view axis, std::int64_t extent);
    Arguments& scalar(std::string_view name, double value);
    Arguments& workspace(void* block, std::size_t bytes);

  private:
    friend class LaunchPlan;
    friend class Executable;
    static constexpr std::size_t kMaxRowAxes = 8;

    struct TensorArgument {
        void* data = nullptr;
        bool set = false;
        bool strided = false;
        std::int64_t row_strides[kMaxRowAxes] = {};
    };

    explicit Arguments(std::shared_ptr<const LaunchPlan> plan);

    std::shared_ptr<const LaunchPlan> plan_;
    std::vector<TensorArgument> tensors_;  // inputs, then outputs
    std::vector<std::int64_t> extents_;    // by run-time row axis; -1 until set
    std::vector<double> scalars_;
    void* workspace_ = nullptr;
    std::size_t workspace_bytes_ = 0;
};

// A compiled graph on a device. Copies share the code. Safe to launch from several threads at once, each with Arguments
// of its own.
class Executable {
  public:
    explicit Executable(std::shared_ptr<const LaunchPlan> plan) : plan_(std::move(plan)) {}

    Arguments arguments() const;
    int tensor_place(std::string_view name) const;  // throws Error(kInvalidArgument) naming the known ones

    // Bytes the launch needs besides its tensors, for the row extents set in `arguments`; 0 for most graphs. The block
    // must be aligned to 64 bytes and is free to reuse once the launch has run.
    std::size_t workspace_bytes(const Arguments& arguments) const;

    // Queues the kernels on `stream`. Arguments are checked first: nothing is queued when one does not fit.
    Status launch(Stream stream, const Arguments& arguments) const noexcept;

    int kernel_count() const;

  private:
    std::shared_ptr<const LaunchPlan> plan_;
};

struct EngineOptions {
    // Where compiled kernels and tuning results are kept; empty: ROWJIT_CACHE_DIR, else XDG_CACHE_HOME/rowjit, else
    // ~/.cache/rowjit. "off" keeps nothing on disk.
    std::string cache_directory;
    bool use_tuning = true;  // take schedules the tuner chose earlier for this device
    // Bundles of compiled kernels and tuning results (`rowjit bundle export`), asked in this order before those of
    // ROWJIT_BUNDLE_PATH and before the directory. One that cannot be used costs a warning.
    std::vector<std::string> bundles;
};

struct EngineStatistics {
    std::int64_t compiled = 0;
    std::int64_t memory_hits = 0;
    std::int64_t disk_hits = 0;
    std::int64_t bundle_hits = 0;
    double compile_ms = 0;  // summed over the compiled; they compile in parallel, so it may exceed the time that passed
};

class Engine {
  public:
    explicit Engine(Device device, EngineOptions options = {});
    ~Engine();
    Engine(Engine&&) noexcept;
    Engine& operator=(Engine&&) noexcept;

    // Compiles and loads; kernels of one graph compile in parallel. Throws Error: kInvalidGraph, kUnsupported,
    // kCompile, kEnvironment (no toolchain for the device), and kLaunch when `stream`, the one that the caller is about
    // to launch on, is being captured and a kernel is not loaded yet: loading it would break the capture. A graph that
    // this engine has compiled before is ready, also during a capture.
    Executable compile(const Graph& graph, Stream stream = nullptr, const ChunkOptions& chunks = {});

    const Device& device() const;
    EngineStatistics statistics() const;

    class Impl;
    Impl& impl() const { return *impl_; }

  private:
    std::unique_ptr<Impl> impl_;
};

}  // namespace rowjit
