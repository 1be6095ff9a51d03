// A mutex that a fork finds unlocked. An embedding program may fork (a data loader does) while threads compile; the
// child has only the forking thread, so a mutex another thread held would stay locked there for ever. Every mutex
// of rowjit that outlives a call is one of these.
#pragma once

#include <cstdint>
#include <mutex>

namespace rowjit {

// Lockable, for std::lock_guard and std::unique_lock.
class ForkMutex {
  public:
    ForkMutex();
    ~ForkMutex();
    ForkMutex(const ForkMutex&) = delete;
    ForkMutex& operator=(const ForkMutex&) = delete;

    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }
    bool try_lock() { return mutex_.try_lock(); }

  private:
    std::mutex mutex_;
};

// How many forks lie between this process and the one that first asked. Work begun by a thread under another count will
// never finish here: that thread was not copied.
std::uint64_t fork_generation();

}  // namespace rowjit
