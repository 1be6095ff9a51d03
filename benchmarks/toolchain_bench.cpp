// How long a GPU kernel takes to compile: for each target whose toolchain is here, the first compile of the process and
// the median of the next, on the kernels of an RMS norm and of a softmax. JSON on standard output.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "compiler/compile.h"
#include "compiler/emit/gpu.h"
#include "compiler/toolchain/toolchain.h"
#include "dsl/graph.h"
#include "rowjit/library.h"

using namespace rowjit;

namespace {

constexpr int kRepeats = 11;
constexpr int kConcurrent = 16;

double milliseconds(const auto& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// Processor time of this process and of the compilers it ran: what a machine busy with other things does not change.
double cpu_ms() {
    double total_ms = 0;
    for (const int whose : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
        rusage usage = {};
        getrusage(whose, &usage);
        for (const timeval& part : {usage.ru_utime, usage.ru_stime})
            total_ms += static_cast<double>(part.tv_sec) * 1e3 + static_cast<double>(part.tv_usec) * 1e-3;
    }
    return total_ms;
}

Graph rms_norm_graph() {
    Graph g;
    const Value x = g.input("x", bf16, {g.rows("tokens"), 4096});
    g.output("y", rms_norm(x, g.input("weight", bf16, {4096})));
    return g;
}

Graph softmax_graph() {
    Graph g;
    g.output("y", softmax(g.input("x", bf16, {g.rows("tokens"), 32768})));
    return g;
}

// Sources of equal cost that no cache can take for one another.
std::vector<Source> variants(const Source& source) {
    std::vector<Source> sources(kConcurrent, source);
    for (int i = 0; i < kConcurrent; ++i) sources[i].text += fmt::format("// {}\n", i);
    return sources;
}

// Compiles a second on every processor, one thread each.
double concurrent_per_s(const Source& source, const Target& target, unsigned thread_count) {
    const std::vector<Source> sources = variants(source);
    std::atomic<std::size_t> next = 0;
    const double ms = milliseconds([&] {
        std::vector<std::jthread> threads;
        for (unsigned i = 0; i < thread_count; ++i) {
            threads.emplace_back([&] {
                for (std::size_t at = next++; at < sources.size(); at = next++) compile_source(sources[at], target);
            });
        }
    });
    return kConcurrent * 1000.0 / ms;
}

nlohmann::json measure(const Graph& graph, const char* op, const Target& target) {
    const Program program = compile(*graph.data(), target);
    const Source source = emit_gpu(program.steps.front().kernel, target);
    Artifact artifact;
    const double first_ms = milliseconds([&] { artifact = compile_source(source, target); });
    std::vector<double> samples_ms;
    const double cpu_before_ms = cpu_ms();
    for (int i = 0; i < kRepeats; ++i) samples_ms.push_back(compile_source(source, target).compile_ms);
    const double cpu_each_ms = (cpu_ms() - cpu_before_ms) / kRepeats;
    std::sort(samples_ms.begin(), samples_ms.end());
    const unsigned threads = std::max(1U, std::thread::hardware_concurrency());
    return {{"op", op},
            {"target", target.name},
            {"toolchain", artifact.toolchain},
            {"first_ms", first_ms},
            {"median_ms", samples_ms[kRepeats / 2]},
            {"cpu_ms", cpu_each_ms},
            {"threads", threads},
            {"concurrent_per_s", concurrent_per_s(source, target, threads)},
            {"source_bytes", source.text.size()},
            {"binary_bytes", artifact.binary.size()},
            {"registers", artifact.functions.front().registers},
            {"spill_bytes", artifact.functions.front().spill_bytes}};
}

}  // namespace

int main() {
    nlohmann::json rows = nlohmann::json::array();
    for (const Target& target : all_targets()) {
        if (!target.is_gpu()) continue;
        bool found = false;
        const double find_ms = milliseconds([&] { found = static_cast<bool>(find_toolchain(target)); });
        if (!found) {
            rows.push_back({{"target", target.name}, {"skipped", find_toolchain(target).reason()}});
            continue;
        }
        rows.push_back(measure(rms_norm_graph(), "rms_norm", target));
        rows.back()["find_ms"] = find_ms;
        rows.push_back(measure(softmax_graph(), "softmax", target));
    }
    fmt::print("{}\n", rows.dump(2));
}
