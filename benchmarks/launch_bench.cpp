// What a hot launch costs its caller: host time of Executable::launch on arguments that are already set, queued back to
// back; of the same number of an empty kernel without parameters, which is the driver's own share (GPUs); and of
// setting a tensor by place. JSON on standard output.
//
//     launch_bench [DEVICE]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "compiler/emit/gpu.h"
#include "compiler/toolchain/toolchain.h"
#include "dsl/library/registry.h"
#include "rowjit/engine.h"
#include "runtime/device.h"

using namespace rowjit;

namespace {

constexpr int kLaunches = 200;  // fewer than a driver queues before it blocks
constexpr int kRounds = 50;
constexpr std::int64_t kRows = 8;
constexpr std::int64_t kColumns = 1024;

// The median over rounds of what each of the round's calls takes. `settle` is not timed.
template <class Call, class Settle>
double median_us(const Call& call, const Settle& settle) {
    std::vector<double> rounds_us;
    for (int round = 0; round < kRounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kLaunches; ++i) call();
        const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
        rounds_us.push_back(elapsed.count() / kLaunches);
        settle();
    }
    std::sort(rounds_us.begin(), rounds_us.end());
    return rounds_us[rounds_us.size() / 2];
}

std::unique_ptr<Module> empty_kernel(DeviceImpl& device) {
    const Target& target = device.target();
    return device.load(compile_source({gpu_prelude(target) + "\nRJ_KERNEL(32) empty() {}\n", {"empty"}}, target));
}

}  // namespace

int main(int argc, char** argv) {
    const Device device = argc > 1 ? Device(argv[1]) : Device::best();
    Engine engine(device, {.cache_directory = "off"});
    const Executable executable = engine.compile(make_graph("rms_norm", {kColumns, bf16, {}}));
    void* x = device.allocate(kRows * kColumns * 2);
    void* weight = device.allocate(kColumns * 2);
    void* y = device.allocate(kRows * kColumns * 2);
    Arguments arguments = executable.arguments();
    arguments.rows("tokens", kRows).tensor("x", x).tensor("weight", weight).tensor("y", y);
    const int place = executable.tensor_place("x");
    for (const bool own_stream : {false, true}) {
        const Stream stream = own_stream ? device.create_stream() : nullptr;
        const auto finish = [&] { device.synchronize(stream); };
        const double launch_us = median_us([&] { executable.launch(stream, arguments).or_throw(); }, finish);
        const double set_us = median_us([&] { arguments.tensor(place, x); }, [] {});
        fmt::print(R"({{"device": "{}", "stream": "{}", "rows": {}, "columns": {}, "launch_us": {:.3f}, )",
                   device.description(), own_stream ? "own" : "default", kRows, kColumns, launch_us);
        if (DeviceImpl& impl = device.impl(); impl.target().is_gpu()) {
            const std::unique_ptr<Module> module = empty_kernel(impl);
            const Function empty = module->functions().front();
            const auto launch = [&] { impl.launch(empty, {.block = 32}, stream, nullptr); };
            fmt::print(R"("empty_kernel_us": {:.3f}, )", median_us(launch, finish));
        }
        fmt::print("\"set_tensor_us\": {:.4f}}}\n", set_us);
        if (own_stream) device.destroy_stream(stream);
    }
    for (void* address : {x, weight, y}) device.release(address);
    return 0;
}
