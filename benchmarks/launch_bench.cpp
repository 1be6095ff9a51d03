// What a hot launch costs its caller: host time of Executable::launch on arguments that are already set, queued back to
// back, and of setting a tensor by place. JSON on standard output.
//
//     launch_bench [DEVICE]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "dsl/library/registry.h"
#include "rowjit/engine.h"

using namespace rowjit;

namespace {

constexpr int kLaunches = 200;  // fewer than a driver queues before it blocks
constexpr int kRounds = 50;
constexpr std::int64_t kRows = 8;
constexpr std::int64_t kColumns = 1024;

double microseconds(std::chrono::steady_clock::duration elapsed) {
    return std::chrono::duration<double, std::micro>(elapsed).count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
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
    std::vector<double> launch_us;
    std::vector<double> set_us;
    for (int round = 0; round < kRounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kLaunches; ++i) executable.launch(nullptr, arguments).or_throw();
        launch_us.push_back(microseconds(std::chrono::steady_clock::now() - start) / kLaunches);
        device.synchronize(nullptr);
        const auto set_start = std::chrono::steady_clock::now();
        for (int i = 0; i < kLaunches; ++i) arguments.tensor(place, x);
        set_us.push_back(microseconds(std::chrono::steady_clock::now() - set_start) / kLaunches);
    }
    fmt::print(
        "{{\"device\": \"{}\", \"rows\": {}, \"columns\": {}, \"launch_us\": {:.3f}, \"set_tensor_us\": {:.4f}}}\n",
        device.description(), kRows, kColumns, median(launch_us), median(set_us));
    for (void* address : {x, weight, y}) device.release(address);
    return 0;
}
