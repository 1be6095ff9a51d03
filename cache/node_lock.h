// One compiler per kernel and machine: when many processes of a node miss the same key at once, the first takes this
// lock and the others wait for what it stores. Only work is saved by it, never correctness: whoever cannot have the
// lock in time, or at all, compiles for itself.
//
// The lock is a byte of a file in memory-backed storage of this node, held through an open file description. The kernel
// releases it when its holder is killed, there is no lock file to be left behind, and no network file system's idea of
// a lock is relied upon.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

#include "base/digest.h"
#include "base/files.h"

namespace rowjit {

class NodeLock {
  public:
    // Waits at most `bound` for the lock on `subject` (a key's digest) among users of the cache at `root`. nullopt when
    // the bound has passed or this node offers no place for the lock.
    static std::optional<NodeLock> acquire(std::string_view root, const Digest& subject,
                                           std::chrono::milliseconds bound);

    bool waited() const { return waited_; }  // another process held it meanwhile

  private:
    NodeLock(FileDescriptor file, bool waited) : file_(std::move(file)), waited_(waited) {}

    FileDescriptor file_;  // closing it releases the lock
    bool waited_;
};

}  // namespace rowjit
