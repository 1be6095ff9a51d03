#include "runtime/cpu/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "base/fork_mutex.h"

namespace rowjit {
namespace {

// In participants_: workers may still join the job.
constexpr std::uint32_t kOpen = 0x80000000;

// Several ranges per thread, so that one thread held up by the system does not hold up the job.
constexpr std::int64_t kRangesPerThread = 4;

// The first row block of a range, when `count` row blocks are dealt out evenly.
std::int64_t range_begin(std::int64_t range, std::int64_t ranges, std::int64_t count) {
    return count / ranges * range + std::min(range, count % ranges);
}

}  // namespace

ThreadPool::ThreadPool(int threads) : fork_generation_(fork_generation()) {
    workers_.reserve(static_cast<std::size_t>(std::max(0, threads - 1)));
    try {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { wait_for_jobs(); });
    } catch (const std::system_error&) {
        return;  // the ones that did start are enough: results do not depend on their number
    }
}

ThreadPool::~ThreadPool() {
    if (fork_generation() != fork_generation_) {
        for (std::thread& worker : workers_) worker.detach();  // they stayed behind in the parent
        return;
    }
    stopping_.store(true, std::memory_order_relaxed);
    jobs_.fetch_add(1, std::memory_order_release);
    jobs_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(std::int64_t count, RangeBody body, void* context) noexcept {
    if (count <= 0) return;
    if (count == 1 || workers_.empty() || busy_.test_and_set(std::memory_order_acquire)) {
        body(context, 0, count);
        return;
    }
    body_ = body;
    context_ = context;
    count_ = count;
    ranges_ = std::min(count, threads() * kRangesPerThread);
    next_range_.store(0, std::memory_order_relaxed);
    participants_.store(kOpen, std::memory_order_release);
    jobs_.fetch_add(1, std::memory_order_release);
    jobs_.notify_all();

    do_ranges();
    // Every range has been claimed; whoever still works on one is counted.
    participants_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (;;) {
        const std::uint32_t remaining = participants_.load(std::memory_order_acquire);
        if (remaining == 0) break;
        participants_.wait(remaining, std::memory_order_acquire);
    }
    busy_.clear(std::memory_order_release);
}

void ThreadPool::wait_for_jobs() noexcept {
    std::uint32_t seen = 0;
    for (;;) {
        jobs_.wait(seen, std::memory_order_acquire);
        seen = jobs_.load(std::memory_order_acquire);
        if (stopping_.load(std::memory_order_relaxed)) return;
        if (!join_job()) continue;
        do_ranges();
        leave_job();
    }
}

// A worker that wakes late finds the job closed, or a later job open, which it may as well join.
bool ThreadPool::join_job() noexcept {
    std::uint32_t participants = participants_.load(std::memory_order_relaxed);
    while ((participants & kOpen) != 0) {
        if (participants_.compare_exchange_weak(participants, participants + 1, std::memory_order_acquire)) return true;
    }
    return false;
}

void ThreadPool::leave_job() noexcept {
    if (participants_.fetch_sub(1, std::memory_order_release) == 1) participants_.notify_one();
}

void ThreadPool::do_ranges() noexcept {
    for (;;) {
        const std::int64_t range = next_range_.fetch_add(1, std::memory_order_relaxed);
        if (range >= ranges_) return;
        body_(context_, range_begin(range, ranges_, count_), range_begin(range + 1, ranges_, count_));
    }
}

}  // namespace rowjit
