#include "cache/kernel_cache.h"

#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "cache/node_lock.h"

namespace rowjit {

// One kernel that a thread has undertaken to fetch or compile.
struct KernelCache::Flight {
    std::thread::id leader = std::this_thread::get_id();
    std::uint64_t generation = fork_generation();
    std::promise<std::shared_ptr<const Artifact>> promise;
    std::shared_future<std::shared_ptr<const Artifact>> result = promise.get_future().share();
};

struct KernelCache::Made {
    std::shared_ptr<const Artifact> artifact;
    std::optional<NodeLock> lock;  // held until the artifact is stored, so that who waits for it finds it there
    bool compiled = false;
};

KernelCache::KernelCache(std::shared_ptr<KernelStore> store, Bundles bundles, std::chrono::milliseconds process_wait)
    : store_(std::move(store)), process_wait_(process_wait), bundles_(std::move(bundles)) {}

std::optional<BundledKernel> KernelCache::find_bundled(const KeyFields& fields) {
    for (const std::shared_ptr<const Bundle>& bundle : bundles_) {
        for (const CompiledBy& compiler : bundle->compilers()) {
            if (compiler.architecture != fields.architecture || compiler.cpu_features != fields.cpu_features) continue;
            CacheKey key(with_compiler(fields, compiler));
            std::unique_lock lock(mutex_);
            if (refused_.contains(key.digest())) continue;
            if (const auto found = artifacts_.find(key.digest()); found != artifacts_.end()) {
                ++counts_.memory_hits;
                return BundledKernel{std::move(key), found->second};
            }
            lock.unlock();
            std::optional<Artifact> artifact = bundle->kernel(key);
            if (!artifact) continue;
            lock.lock();
            ++counts_.bundle_hits;
            auto& kept = artifacts_[key.digest()];
            if (kept == nullptr) kept = std::make_shared<const Artifact>(std::move(*artifact));
            return BundledKernel{std::move(key), kept};
        }
    }
    return std::nullopt;
}

std::shared_ptr<const Artifact> KernelCache::find(const CacheKey& key) {
    {
        const std::lock_guard lock(mutex_);
        if (const auto found = artifacts_.find(key.digest()); found != artifacts_.end()) {
            ++counts_.memory_hits;
            return found->second;
        }
    }
    std::shared_ptr<const Artifact> artifact = from_disk(key);
    if (artifact == nullptr) return nullptr;
    const std::lock_guard lock(mutex_);
    return artifacts_.try_emplace(key.digest(), std::move(artifact)).first->second;
}

std::shared_ptr<const Artifact> KernelCache::get_or_compile(const CacheKey& key, const Compile& compile) {
    std::unique_lock lock(mutex_);
    if (const auto found = artifacts_.find(key.digest()); found != artifacts_.end()) {
        ++counts_.memory_hits;
        return found->second;
    }
    std::shared_ptr<Flight>& slot = flights_[key.digest()];
    // After a fork the thread that undertook it is in another process, and this one has to do the work itself.
    if (slot != nullptr && slot->generation == fork_generation()) {
        const std::shared_ptr<Flight> flight = slot;
        RJ_CHECK(flight->leader != std::this_thread::get_id(), "compiling key {} asks for that very key",
                 key.digest().hex());
        ++counts_.memory_hits;
        lock.unlock();
        return flight->result.get();
    }
    const std::shared_ptr<Flight> flight = std::make_shared<Flight>();
    slot = flight;
    lock.unlock();

    Made made;
    try {
        made = make(key, compile);
    } catch (...) {
        land(key, *flight, nullptr);
        flight->promise.set_exception(std::current_exception());
        throw;
    }
    land(key, *flight, made.artifact);
    flight->promise.set_value(made.artifact);  // before the store: this process's threads need not wait for the disk
    if (made.compiled && store_ != nullptr) store_->put(key, *made.artifact);
    return made.artifact;
}

KernelCache::Made KernelCache::make(const CacheKey& key, const Compile& compile) {
    if (std::shared_ptr<const Artifact> stored = from_disk(key)) return {std::move(stored), std::nullopt, false};
    std::optional<NodeLock> lock;
    if (store_ != nullptr && store_->enabled()) {
        lock = NodeLock::acquire(store_->root(), key.digest(), process_wait_);
        // Another process of this node may have stored it between the look-up and the lock.
        if (std::shared_ptr<const Artifact> stored = from_disk(key)) return {std::move(stored), std::nullopt, false};
    }
    auto artifact = std::make_shared<const Artifact>(compile());
    const std::lock_guard counting(mutex_);
    ++counts_.compiled;
    counts_.compile_ms += artifact->compile_ms;
    return {std::move(artifact), std::move(lock), true};
}

std::shared_ptr<const Artifact> KernelCache::from_disk(const CacheKey& key) {
    if (store_ == nullptr) return nullptr;
    std::optional<Artifact> stored = store_->get(key);
    if (!stored) return nullptr;
    const std::lock_guard lock(mutex_);
    ++counts_.disk_hits;
    return std::make_shared<const Artifact>(std::move(*stored));
}

// Ends the flight: later callers find the artifact, or start anew where there is none.
void KernelCache::land(const CacheKey& key, const Flight& flight, std::shared_ptr<const Artifact> artifact) {
    const std::lock_guard lock(mutex_);
    if (artifact != nullptr) artifacts_.insert_or_assign(key.digest(), std::move(artifact));
    if (const auto slot = flights_.find(key.digest()); slot != flights_.end() && slot->second.get() == &flight)
        flights_.erase(slot);
}

void KernelCache::reject(const CacheKey& key, std::string_view reason) {
    {
        const std::lock_guard lock(mutex_);
        artifacts_.erase(key.digest());
        refused_.insert(key.digest());
    }
    if (store_ != nullptr) store_->reject(key, reason);
}

CacheStatistics KernelCache::statistics() const {
    const std::lock_guard lock(mutex_);
    CacheStatistics statistics = counts_;
    if (store_ != nullptr) {
        statistics.quarantined = store_->quarantined();
        statistics.store_failures = store_->failures();
    }
    return statistics;
}

}  // namespace rowjit
