// What an engine asks for a compiled kernel: memory, then bundles, then disk, then the compiler, each kernel compiled
// once however many threads and processes of this node ask at the same time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/fork_mutex.h"
#include "cache/bundle.h"
#include "cache/key.h"
#include "cache/store.h"

namespace rowjit {

struct CacheStatistics {
    std::int64_t memory_hits = 0;  // threads that waited for another's compilation included
    std::int64_t disk_hits = 0;
    std::int64_t bundle_hits = 0;
    std::int64_t compiled = 0;
    double compile_ms = 0;            // summed over those
    std::int64_t quarantined = 0;     // entries set aside as damaged or refused
    std::int64_t store_failures = 0;  // times the disk could not be used
};

struct BundledKernel {
    CacheKey key;
    std::shared_ptr<const Artifact> artifact;
};

class KernelCache {
  public:
    using Compile = std::function<Artifact()>;

    // `store` null: memory alone. A process waits at most `process_wait` for another that compiles the same kernel.
    explicit KernelCache(std::shared_ptr<KernelStore> store, Bundles bundles = {},
                         std::chrono::milliseconds process_wait = std::chrono::seconds{60});

    // The kernel as a bundle has it, whichever compiler for the fields' architecture made it: nothing need be known of
    // a compiler here, nor be there.
    std::optional<BundledKernel> find_bundled(const KeyFields& fields);

    // The artifact in memory or on disk; nullptr when it is in neither.
    std::shared_ptr<const Artifact> find(const CacheKey& key);

    // The same, else what `compile` returns, which is then kept. One thread compiles a key at a time, the others wait
    // for it; what it throws, all of them throw, and nothing is kept. Different keys compile in parallel. `compile`
    // must not ask for the key it compiles (a check).
    std::shared_ptr<const Artifact> get_or_compile(const CacheKey& key, const Compile& compile);

    // Forgets the artifact, also a bundle's, and sets its file aside: a driver refused it.
    void reject(const CacheKey& key, std::string_view reason);

    CacheStatistics statistics() const;

  private:
    struct Flight;
    struct Made;

    std::shared_ptr<const Artifact> from_disk(const CacheKey& key);
    Made make(const CacheKey& key, const Compile& compile);
    void land(const CacheKey& key, const Flight& flight, std::shared_ptr<const Artifact> artifact);

    const std::shared_ptr<KernelStore> store_;
    const std::chrono::milliseconds process_wait_;
    const Bundles bundles_;
    mutable ForkMutex mutex_;  // guards all below
    std::unordered_map<Digest, std::shared_ptr<const Artifact>> artifacts_;
    std::unordered_map<Digest, std::shared_ptr<Flight>> flights_;  // under way
    std::unordered_set<Digest> refused_;                           // by a driver, of bundles, which nobody rewrites
    CacheStatistics counts_;
};

}  // namespace rowjit
