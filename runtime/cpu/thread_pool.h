// Threads that run one job at a time over a range of row blocks. They live as long as the pool; a job allocates
// nothing.
//
// The calling thread takes part. A job that arrives while another is running, from another thread or from inside the
// running one, runs in its caller alone: nothing ever waits for a place in the pool. The caller also finishes a job by
// itself when no thread wakes up, so the child of a fork, which has none of the pool's threads, still gets its results.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace rowjit {

// Does the row blocks [begin, end). It cannot throw: an exception could not leave a worker.
using RangeBody = void (*)(void* context, std::int64_t begin, std::int64_t end) noexcept;

// An embedder's own thread pool: runs `body` over [0, count) in any number of ranges, in any threads, and returns when
// all are done.
struct ParallelFor {
    void (*run)(void* context, std::int64_t count, RangeBody body, void* body_context) = nullptr;
    void* context = nullptr;
};

// What a device's work is divided among; without `run`, the calling thread.
struct CpuWorkers {
    ParallelFor parallel_for;
    int count = 1;
};

class ThreadPool {
  public:
    // `threads` counts the caller: the pool starts one fewer. A system that refuses to start more gets fewer.
    explicit ThreadPool(int threads);
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;
    ~ThreadPool();

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(context, begin, end) for contiguous ranges that cover [0, count) once, and returns when all are done.
    // The ranges depend on count and threads() alone; which thread does which is not fixed.
    void run(std::int64_t count, RangeBody body, void* context) noexcept;

  private:
    void wait_for_jobs() noexcept;
    bool join_job() noexcept;
    void leave_job() noexcept;
    void do_ranges() noexcept;

    // The job. Written by the caller before it opens `participants_`, constant until it is closed and empty.
    RangeBody body_ = nullptr;
    void* context_ = nullptr;
    std::int64_t count_ = 0;
    std::int64_t ranges_ = 0;

    std::atomic_flag busy_;                        // a caller owns the job
    std::atomic<std::uint32_t> participants_ = 0;  // workers inside the job, and kOpen while more may join
    std::atomic<std::uint32_t> jobs_ = 0;          // what idle workers sleep on
    std::atomic<bool> stopping_ = false;
    alignas(64) std::atomic<std::int64_t> next_range_ = 0;

    std::vector<std::thread> workers_;
    std::uint64_t fork_generation_;  // of the process that has the workers
};

}  // namespace rowjit
