// What a look-up costs where nothing is compiled: a kernel in memory, one on disk read and verified, and a durable
// store. JSON on standard output. The directory is the argument (default: the system's temporary directory), because a
// durable store is as fast as its disk.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/kernel_cache.h"

using namespace rowjit;

namespace {

constexpr int kKernels = 64;
constexpr std::size_t kBinaryBytes = 16 << 10;

KeyFields fields_of(int kernel) {
    KeyFields fields;
    fields.source = {fmt::format("kernel {}", kernel), {"kernel"}};
    fields.architecture = "sm_90a";
    fields.toolchain = "nvrtc";
    fields.toolchain_version = "13.0";
    return fields;
}

template <class Work>
double once_us(Work work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

double percentile(std::vector<double> samples, double fraction) {
    std::sort(samples.begin(), samples.end());
    return samples[static_cast<std::size_t>(fraction * static_cast<double>(samples.size() - 1))];
}

}  // namespace

int main(int count, char** arguments) {
    const std::filesystem::path parent = count > 1 ? arguments[1] : std::filesystem::temp_directory_path();
    std::string root = (parent / "rowjit-bench-XXXXXX").string();
    if (mkdtemp(root.data()) == nullptr) return 7;

    std::vector<CacheKey> keys;
    for (int kernel = 0; kernel < kKernels; ++kernel) keys.emplace_back(fields_of(kernel));
    FunctionInfo function;
    function.name = "kernel";
    const Artifact artifact{"sm_90a", "cubin", std::string(kBinaryBytes, 'b'), "nvrtc 13.0", {function}, 120};
    const auto store = std::make_shared<KernelStore>(root);

    std::vector<double> store_us, disk_us;
    for (const CacheKey& key : keys) store_us.push_back(once_us([&] { store->put(key, artifact); }));
    std::size_t bytes_read = 0;
    for (int round = 0; round < 200; ++round)
        for (const CacheKey& key : keys)
            disk_us.push_back(once_us([&] { bytes_read += store->get(key)->binary.size(); }));

    KernelCache cache(store);
    for (const CacheKey& key : keys) cache.find(key);
    std::vector<double> memory_us;  // a look-up of each key, too short to be timed alone
    for (int round = 0; round < 20'000; ++round)
        memory_us.push_back(once_us([&] {
            for (const CacheKey& key : keys) bytes_read += cache.find(key)->binary.size();
        }));

    const nlohmann::ordered_json result = {{"memory_get_ns", 1000 * percentile(memory_us, 0.5) / kKernels},
                                           {"disk_get_16k_p50_us", percentile(disk_us, 0.5)},
                                           {"disk_get_16k_p99_us", percentile(disk_us, 0.99)},
                                           {"durable_store_median_us", percentile(store_us, 0.5)},
                                           {"bytes_read", bytes_read}};
    fmt::print("{}\n", result.dump(2));
    std::filesystem::remove_all(root);
}
