#include "base/fork_mutex.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace rowjit {

namespace {

struct ForkRegistry {
    std::mutex mutex;
    std::vector<ForkMutex*> members;
    std::atomic<std::uint64_t> generation{0};

    ForkRegistry();
};

ForkRegistry& registry() {
    static ForkRegistry* const only = new ForkRegistry;  // outlives every static ForkMutex
    return *only;
}

// The threads of this process take the members in orders of their own, so waiting for one while holding another could
// deadlock: on the first refusal all are let go and tried again.
bool try_lock_members(const std::vector<ForkMutex*>& members) {
    for (std::size_t locked = 0; locked < members.size(); ++locked) {
        if (members[locked]->try_lock()) continue;
        while (locked > 0) members[--locked]->unlock();
        return false;
    }
    return true;
}

void before_fork() {
    ForkRegistry& all = registry();
    all.mutex.lock();
    while (!try_lock_members(all.members)) sched_yield();
}

void after_fork_in_parent() {
    ForkRegistry& all = registry();
    for (ForkMutex* member : all.members) member->unlock();
    all.mutex.unlock();
}

void after_fork_in_child() {
    registry().generation.fetch_add(1, std::memory_order_relaxed);
    after_fork_in_parent();
}

ForkRegistry::ForkRegistry() { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

}  // namespace

ForkMutex::ForkMutex() {
    const std::lock_guard lock(registry().mutex);
    registry().members.push_back(this);
}

ForkMutex::~ForkMutex() {
    const std::lock_guard lock(registry().mutex);
    std::erase(registry().members, this);
}

std::uint64_t fork_generation() { return registry().generation.load(std::memory_order_relaxed); }

}  // namespace rowjit
