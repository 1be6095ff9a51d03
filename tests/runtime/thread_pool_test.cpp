#include "runtime/cpu/thread_pool.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

using namespace rowjit;

namespace {

// Counts how often each index was done.
struct Visits {
    explicit Visits(std::int64_t count) : times(static_cast<std::size_t>(count)) {}

    static void add(void* context, std::int64_t begin, std::int64_t end) noexcept {
        auto& visits = *static_cast<Visits*>(context);
        for (std::int64_t i = begin; i < end; ++i) visits.times[static_cast<std::size_t>(i)].fetch_add(1);
    }

    bool all_once() const {
        return std::ranges::all_of(times, [](const std::atomic<int>& n) { return n.load() == 1; });
    }

    std::vector<std::atomic<int>> times;
};

bool does_each_once(ThreadPool& pool, std::int64_t count) {
    Visits visits(count);
    pool.run(count, Visits::add, &visits);
    return visits.all_once();
}

// Starts a job on the same pool for every range it is given.
struct Nested {
    ThreadPool& pool;
    std::atomic<int> failures = 0;
    std::atomic<std::int64_t> done = 0;

    static void run(void* context, std::int64_t begin, std::int64_t end) noexcept {
        auto& nested = *static_cast<Nested*>(context);
        if (!does_each_once(nested.pool, 50)) ++nested.failures;
        nested.done += end - begin;
    }
};

// Blocks in its first range until another thread has done the others.
struct Stuck {
    std::int64_t count;
    std::atomic<std::int64_t> done = 0;

    static void run(void* context, std::int64_t begin, std::int64_t end) noexcept {
        auto& stuck = *static_cast<Stuck*>(context);
        while (begin == 0 && stuck.done.load() < stuck.count - end) std::this_thread::yield();
        stuck.done += end - begin;
    }
};

}  // namespace

TEST_CASE("a job does every index exactly once, for any count and number of threads") {
    for (const int threads : {1, 2, 3, 8}) {
        ThreadPool pool(threads);
        CHECK(pool.threads() == threads);
        for (const std::int64_t count : {1, 2, 3, 7, 8, 9, 31, 32, 33, 1000, 4097}) {
            CAPTURE(threads);
            CAPTURE(count);
            CHECK(does_each_once(pool, count));
        }
    }
}

TEST_CASE("a pool runs thousands of jobs in a row") {
    ThreadPool pool(4);
    int wrong = 0;
    for (int i = 0; i < 5000; ++i) wrong += does_each_once(pool, 1 + i % 40) ? 0 : 1;
    CHECK(wrong == 0);
}

TEST_CASE("a job of nothing calls nothing") {
    ThreadPool pool(2);
    Visits visits(1);
    pool.run(0, Visits::add, &visits);
    pool.run(-1, Visits::add, &visits);
    CHECK(visits.times[0] == 0);
}

TEST_CASE("other threads than the caller take part") {
    ThreadPool pool(2);
    Stuck stuck{64};
    pool.run(stuck.count, Stuck::run, &stuck);
    CHECK(stuck.done == 64);
}

TEST_CASE("a job started inside a job runs to its end there") {
    ThreadPool pool(4);
    Nested nested{pool};
    pool.run(40, Nested::run, &nested);
    CHECK(nested.failures == 0);
    CHECK(nested.done == 40);
}

TEST_CASE("callers from many threads share a pool without waiting for one another's places") {
    ThreadPool pool(3);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([&] {
            for (int i = 0; i < 500; ++i) wrong += does_each_once(pool, 1 + i % 60) ? 0 : 1;
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(wrong == 0);
}

TEST_CASE("a body that could throw does not convert to a job") {
    using Throwing = void (*)(void*, std::int64_t, std::int64_t);
    CHECK_FALSE(std::is_convertible_v<Throwing, RangeBody>);
}

TEST_CASE("the child of a fork runs jobs by itself and can drop the pool") {
    auto pool = std::make_unique<ThreadPool>(4);
    CHECK(does_each_once(*pool, 100));
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        alarm(20);  // a child that hangs fails the test instead of blocking it
        const bool right = does_each_once(*pool, 100) && does_each_once(*pool, 3);
        pool.reset();
        _exit(right ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(does_each_once(*pool, 100));
}
