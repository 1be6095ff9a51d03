// Threads of one process. Several processes are in processes_test.cpp.
#include "cache/kernel_cache.h"

#include <doctest/doctest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>

#include "base/check.h"
#include "tests/cache/fixture.h"

using namespace rowjit;

namespace {

constexpr int kThreads = 64;

// Runs `work(thread)` on kThreads threads that start together.
template <class Work>
void on_threads(Work work) {
    std::latch start(kThreads);
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread)
        threads.emplace_back([&work, &start, thread] {
            start.arrive_and_wait();
            work(thread);
        });
}

}  // namespace

TEST_CASE("a kernel is compiled once, then found in memory, and on disk by the next process") {
    const TemporaryDirectory directory;
    const CacheKey key(example_fields());
    KernelCache first(std::make_shared<KernelStore>(directory.path()));
    CHECK(first.find(key) == nullptr);
    const auto compiled = first.get_or_compile(key, [] { return example_artifact(); });
    CHECK(first.find(key) == compiled);
    CHECK(first.statistics().compiled == 1);
    CHECK(first.statistics().memory_hits == 1);

    KernelCache second(std::make_shared<KernelStore>(directory.path()));
    CHECK(*second.get_or_compile(key, [] { return Artifact(); }) == example_artifact());
    CHECK(second.statistics().compiled == 0);
    CHECK(second.statistics().disk_hits == 1);
}

TEST_CASE("without a store kernels are kept in memory") {
    KernelCache cache(nullptr);
    const CacheKey key(example_fields());
    const auto artifact = cache.get_or_compile(key, [] { return example_artifact(); });
    CHECK(cache.get_or_compile(key, [] { return Artifact(); }) == artifact);
}

TEST_CASE("64 threads that ask for one key compile it once") {
    const TemporaryDirectory directory;
    KernelCache cache(std::make_shared<KernelStore>(directory.path()));
    const CacheKey key(example_fields());
    std::atomic<int> compilations{0}, wrong{0};
    on_threads([&](int) {
        const auto artifact = cache.get_or_compile(key, [&] {
            ++compilations;
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
            return example_artifact();
        });
        wrong += *artifact == example_artifact() ? 0 : 1;
    });
    CHECK(compilations == 1);
    CHECK(wrong == 0);
    CHECK(cache.statistics().memory_hits == kThreads - 1);
}

TEST_CASE("64 keys compile at the same time") {
    const TemporaryDirectory directory;
    KernelCache cache(std::make_shared<KernelStore>(directory.path()));
    std::latch all_compiling(kThreads);  // passed only when every compilation has begun and none has ended
    on_threads([&](int thread) {
        cache.get_or_compile(CacheKey(example_fields(thread)), [&] {
            all_compiling.arrive_and_wait();
            return example_artifact();
        });
    });
    CHECK(cache.statistics().compiled == kThreads);
}

TEST_CASE("a compilation that fails fails for all who wait, and is tried again by the next") {
    const TemporaryDirectory directory;
    KernelCache cache(std::make_shared<KernelStore>(directory.path()));
    const CacheKey key(example_fields());
    std::atomic<int> compilations{0}, failures{0};
    on_threads([&](int) {
        try {
            cache.get_or_compile(key, [&]() -> Artifact {
                ++compilations;
                std::this_thread::sleep_for(std::chrono::milliseconds(30));
                throw std::runtime_error("refused");
            });
        } catch (const std::runtime_error&) {
            ++failures;
        }
    });
    CHECK(failures == kThreads);
    CHECK(compilations < kThreads);
    CHECK(cache.find(key) == nullptr);
    CHECK(cache.get_or_compile(key, [] { return example_artifact(); }) != nullptr);
}

TEST_CASE("a compilation that asks for its own key is a bug that is told, not a deadlock") {
    KernelCache cache(nullptr);
    const CacheKey key(example_fields());
    CHECK_THROWS_AS(
        cache.get_or_compile(key, [&] { return *cache.get_or_compile(key, [] { return example_artifact(); }); }),
        InternalError);
}

TEST_CASE("a rejected kernel is compiled again, also by the next process") {
    const TemporaryDirectory directory;
    const CapturedLog log;
    const CacheKey key(example_fields());
    KernelCache cache(std::make_shared<KernelStore>(directory.path()));
    cache.get_or_compile(key, [] { return example_artifact("bad"); });
    cache.reject(key, "the driver refuses it");
    CHECK(KernelCache(std::make_shared<KernelStore>(directory.path())).find(key) == nullptr);
    CHECK(cache.get_or_compile(key, [] { return example_artifact("good"); })->binary == "good");
    CHECK(cache.statistics().quarantined == 1);
}
