#include "runtime/cpu/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "base/environment.h"
#include "base/fail.h"
#include "compiler/toolchain/orc.h"
#include "runtime/gemm/cpu.h"

namespace rowjit {
namespace {

// A cache line, and the widest vector (AVX-512).
constexpr std::size_t kAlignmentBytes = 64;
// What tensors of some size are asked to lie in: a core that finds its pages in tables of 4 KiB reads at two thirds of
// the rate, and a virtual machine has two tables to look in.
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kWorthHugePagesBytes = 2 * kHugePageBytes;

int chosen_threads() {
    const auto processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    return environment_integer("ROWJIT_CPU_THREADS").value_or(processors);
}

std::string processor_name() {
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line);) {
        const std::size_t colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
    }
    return "unnamed processor";
}

class CpuModule final : public Module {
  public:
    explicit CpuModule(const Artifact& artifact) : code_(load_cpu_object(artifact)) {
        for (const FunctionInfo& info : artifact.functions) functions_.push_back({code_->symbol(info.name)});
    }
    std::span<const Function> functions() const override { return functions_; }

  private:
    std::unique_ptr<CpuCode> code_;
    std::vector<Function> functions_;
};

// A launch in flight, as the thread pool's context.
struct CpuLaunch {
    CpuKernel kernel;
    void* const* arguments;
    std::int64_t blocks;
    bool last_first;
};

void run_range(void* context, std::int64_t begin, std::int64_t end) noexcept {
    const auto& launch = *static_cast<const CpuLaunch*>(context);
    if (launch.last_first) {
        launch.kernel(launch.arguments, launch.blocks - end, launch.blocks - begin);
    } else {
        launch.kernel(launch.arguments, begin, end);
    }
}

constexpr std::size_t kCopyBlockBytes = std::size_t{1} << 20;

class CpuDevice final : public DeviceImpl {
  public:
    explicit CpuDevice(int threads)
        : pool_(threads), target_(has_cpu_toolchain() ? host_cpu_target() : find_target("native")) {
        target_.sm_count = pool_.threads();
    }

    void set_parallel_for(const ParallelFor& parallel_for) { parallel_for_ = parallel_for; }

    const Target& target() const override { return target_; }
    std::string description() const override {
        return fmt::format("cpu {}, {} thread{}", processor_name(), pool_.threads(), pool_.threads() == 1 ? "" : "s");
    }

    void* allocate(std::size_t bytes) override {
        if (bytes == 0) return nullptr;
        const bool huge = bytes >= kWorthHugePagesBytes;
        const std::size_t alignment = huge ? kHugePageBytes : kAlignmentBytes;
        // aligned_alloc wants whole alignments; kernels may then also read a whole vector at the end.
        const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
        void* address = rounded < bytes ? nullptr : std::aligned_alloc(alignment, rounded);
#ifdef MADV_HUGEPAGE
        if (huge && address != nullptr) madvise(address, rounded, MADV_HUGEPAGE);  // a wish: without it pages are small
#endif
        if (address != nullptr) return address;
        const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        fail(ErrorCode::kEnvironment, "{}: cannot allocate {} bytes, {} of {} are free; use fewer rows at a time",
             description(), bytes, page_bytes * static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)),
             page_bytes * static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)));
    }

    void release(void* address) noexcept override { std::free(address); }

    void copy_to_device(void* destination, const void* source, std::size_t bytes) override {
        if (bytes > 0) std::memmove(destination, source, bytes);
    }
    void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
        if (bytes > 0) std::memmove(destination, source, bytes);
    }
    // By all threads: this is the copy that kernels are measured against.
    void copy_on_device(void* destination, const void* source, std::size_t bytes, StreamHandle /*stream*/) override {
        struct Copy {
            std::byte* to;
            const std::byte* from;
            std::size_t bytes;
        } copy{static_cast<std::byte*>(destination), static_cast<const std::byte*>(source), bytes};
        const auto blocks = static_cast<std::int64_t>((bytes + kCopyBlockBytes - 1) / kCopyBlockBytes);
        const RangeBody body = [](void* context, std::int64_t begin, std::int64_t end) noexcept {
            const Copy& part = *static_cast<const Copy*>(context);
            const std::size_t first = static_cast<std::size_t>(begin) * kCopyBlockBytes;
            const std::size_t last = std::min(static_cast<std::size_t>(end) * kCopyBlockBytes, part.bytes);
            if (last > first) std::memcpy(part.to + first, part.from + first, last - first);
        };
        pool_.run(blocks, body, &copy);
    }
    void fill(void* destination, std::uint8_t byte, std::size_t bytes, StreamHandle /*stream*/) override {
        if (bytes > 0) std::memset(destination, byte, bytes);
    }

    std::unique_ptr<Module> load(const Artifact& artifact, StreamHandle /*stream*/) override {
        return std::make_unique<CpuModule>(artifact);
    }

    std::shared_ptr<const Gemm> make_gemm(const GemmType& type, const GemmShape& /*typical*/,
                                          StreamHandle /*stream*/) override {
        const auto run = [](void* context, std::int64_t count, RangeBody body, void* body_context) {
            static_cast<CpuDevice*>(context)->run(count, body, body_context);
        };
        return make_cpu_gemm(type, {{run, this}, pool_.threads()});
    }

    const char* launch(Function function, const LaunchGeometry& geometry, StreamHandle /*stream*/,
                       void** arguments) noexcept override {
        CpuLaunch launch = {reinterpret_cast<CpuKernel>(function.handle), arguments, geometry.grid,
                            geometry.last_first};
        run(geometry.grid, run_range, &launch);
        return nullptr;
    }

    // A launch has finished when it returns, so there is one stream and nothing to wait for.
    StreamHandle create_stream() override { return nullptr; }
    void destroy_stream(StreamHandle /*stream*/) noexcept override {}
    void synchronize(StreamHandle /*stream*/) override {}

    std::vector<double> time_ms(StreamHandle /*stream*/, int repetitions, const TimedWork& work) override {
        std::vector<double> times_ms;
        times_ms.reserve(static_cast<std::size_t>(repetitions));
        for (int i = 0; i < repetitions; ++i) {
            const auto start = std::chrono::steady_clock::now();
            work.queue(i);
            const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
            times_ms.push_back(elapsed.count());
        }
        return times_ms;
    }

  private:
    void run(std::int64_t count, RangeBody body, void* context) noexcept {
        if (count > 0 && parallel_for_.run != nullptr) {
            parallel_for_.run(parallel_for_.context, count, body, context);
        } else {
            pool_.run(count, body, context);
        }
    }

    ThreadPool pool_;
    ParallelFor parallel_for_;
    Target target_;
};

}  // namespace

std::shared_ptr<DeviceImpl> open_cpu() { return std::make_shared<CpuDevice>(chosen_threads()); }

void set_parallel_for(DeviceImpl& device, const ParallelFor& parallel_for) {
    auto* cpu = dynamic_cast<CpuDevice*>(&device);
    if (cpu == nullptr) {
        fail(ErrorCode::kInvalidArgument, "a thread pool was set for {}; only the device 'cpu' runs on threads",
             device.description());
    }
    cpu->set_parallel_for(parallel_for);
}

}  // namespace rowjit
