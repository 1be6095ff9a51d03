// The cache's directory on disk, as the kernel store and the tuning database share it: opened late, opened again when
// someone removed it, trusted only when it is this user's alone, and given up with one warning when it cannot be used.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/fork_mutex.h"

namespace rowjit {

// Folders of v1 that both of its users know.
inline constexpr const char* kTemporaryFolder = "tmp";
inline constexpr const char* kQuarantineFolder = "quarantine";

// $ROWJIT_CACHE_DIR, else $XDG_CACHE_HOME/rowjit, else $HOME/.cache/rowjit; "" when that is off or none of them is set:
// then nothing is kept on disk. Throws Error(kParse) for a relative ROWJIT_CACHE_DIR.
std::string default_cache_directory();

class CacheDirectory {
  public:
    // Touches nothing yet. "" keeps nothing on disk.
    explicit CacheDirectory(std::string root) : root_(std::move(root)) {}

    const std::string& root() const { return root_; }
    bool enabled() const { return !root_.empty(); }

    // Opens v1/<folder>, names separated by '/'. A folder that is not there is a failure that is absent().
    IoResult<Directory> open(std::string_view folder) const;

    // What a file of v1/<folder> holds; nullopt when it is not there, when the disk is at fault (one warning), or when
    // something that no cache wrote stands in its place (which is set aside).
    std::optional<FileContents> fetch(std::string_view folder, const std::string& name, std::int64_t max_bytes) const;

    // Stores it through v1/tmp, making what directories are missing.
    IoResult<bool> publish(std::string_view folder, const std::string& name, std::string_view bytes, Publish how) const;

    // Moves a file that cannot be trusted to v1/quarantine, where a later one of the same name replaces it, and logs
    // one line with the reason.
    void quarantine(std::string_view folder, const std::string& name, std::string_view reason) const;

    // Says once per process and directory that the cache does without its disk, and counts.
    void warn(const IoFailure& failure) const;
    std::int64_t failures() const { return failures_.load(std::memory_order_relaxed); }
    std::int64_t quarantined() const { return quarantined_.load(std::memory_order_relaxed); }

    // The time by the file system's clock, which need not be this machine's.
    IoResult<std::int64_t> now_s() const;

    // Removes temporary files that no writer can still be at work on: older than `age`. Returns how many.
    IoResult<std::int64_t> sweep_temporaries(std::chrono::seconds age) const;

  private:
    enum class Missing { kFail, kCreate };
    IoResult<std::shared_ptr<const Directory>> version(Missing missing) const;
    void forget_version() const;
    IoResult<Directory> walk(std::string_view folder, Missing missing) const;
    IoResult<bool> publish_once(std::string_view folder, const std::string& name, std::string_view bytes,
                                Publish how) const;

    std::string root_;
    mutable ForkMutex mutex_;
    mutable std::shared_ptr<const Directory> version_;  // v1, kept open: a get then resolves two names, not the path
    mutable std::atomic<std::int64_t> failures_{0};
    mutable std::atomic<std::int64_t> quarantined_{0};
};

}  // namespace rowjit
