// Compiled kernels on disk, one self-contained file each: v1/obj/ab/<digest>.rjk under the cache directory. What
// several processes, hosts and versions of rowjit may do to it at once needs no lock: a file appears whole or not at
// all, is never rewritten, and is checked against its checksum and its key each time it is read.
//
// get and put never throw and never fail the caller: a directory that cannot be used costs one warning. The functions
// for the command line throw Error(kIo) instead, since there the directory is what was asked about.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/directory.h"
#include "cache/entry.h"
#include "cache/key.h"

namespace rowjit {

struct StoreLimits {
    std::int64_t max_bytes = std::int64_t{10} << 30;
    std::int64_t max_files = 100'000;
    std::chrono::seconds young{3600};          // an entry used this recently is not evicted
    std::chrono::seconds temporary_age{3600};  // no writer takes this long: what is older was left by a killed one
    std::chrono::seconds quarantine_age{7 * 24 * 3600};
};

struct StoredFile {
    Digest digest;
    std::int64_t bytes = 0;
    std::int64_t used_s = 0;  // last use, to the hour, in seconds since 1970
};

struct StoreSize {
    std::int64_t files = 0;
    std::int64_t bytes = 0;
    std::int64_t quarantined = 0;
    std::int64_t temporaries = 0;
    std::int64_t foreign = 0;  // in our folders, not ours: left alone
};

struct Removed {
    std::int64_t files = 0;
    std::int64_t bytes = 0;
    std::int64_t temporaries = 0;
    std::int64_t quarantined = 0;
};

struct Verified {
    std::int64_t good = 0;
    std::vector<std::pair<Digest, std::string>> bad;  // and why; they are in quarantine now
};

class KernelStore {
  public:
    // Nothing is touched until the first get or put. An empty root keeps nothing.
    explicit KernelStore(std::string root, StoreLimits limits = {});

    const std::string& root() const { return directory_.root(); }
    bool enabled() const { return directory_.enabled(); }

    // The artifact stored under this very key, verified. A damaged or foreign file in its place is set aside, logged,
    // counted and is a miss.
    std::optional<Artifact> get(const CacheKey& key);

    // True when the entry is on disk afterwards, whoever wrote it.
    bool put(const CacheKey& key, const Artifact& artifact);
    bool put(const Entry& entry);  // one that came from elsewhere

    // Sets the entry aside: what was stored in good order but a driver refuses to load.
    void reject(const CacheKey& key, std::string_view reason);

    std::int64_t quarantined() const { return directory_.quarantined(); }
    std::int64_t failures() const { return directory_.failures(); }

    std::vector<StoredFile> list() const;  // most recently used first
    StoreSize size() const;
    // The entry whose digest begins with those hexadecimal digits. Throws Error(kMiss) when none or several do.
    Entry show(std::string_view digest_prefix) const;
    Verified verify();  // reads every entry
    Removed collect();  // brings the store within its limits; sweeps temporaries and old quarantine
    Removed clear();    // removes every file that the store wrote, and no other

  private:
    Offer<Entry> load(const Digest& digest) const;
    void set_aside(const Digest& digest, std::string_view reason);
    void tidy(const Digest& stored);
    IoResult<Removed> evict(const std::vector<StoredFile>& files, std::int64_t max_files, std::int64_t max_bytes) const;
    IoResult<Removed> evict_from_shard(int shard) const;
    IoStatus remove(const StoredFile& file) const;
    std::int64_t remove_quarantined(std::chrono::seconds age) const;

    CacheDirectory directory_;
    StoreLimits limits_;
    std::atomic<bool> swept_{false};
};

}  // namespace rowjit
