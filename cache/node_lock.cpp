#include "cache/node_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "base/log.h"

namespace rowjit {

namespace {

constexpr const char* kFileName = "compiling";

// Memory-backed and of this node on every Linux that has them; a cluster may mount /tmp over the network, so it is
// last.
IoResult<Directory> node_directory() {
    const std::string own = fmt::format("/rowjit-{}", geteuid());
    IoResult<Directory> directory = Directory::create("/dev/shm" + own);
    if (directory) return directory;
    if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/')
        if (IoResult<Directory> second = Directory::create(runtime + own)) return second;
    return Directory::create("/tmp" + own);
}

// The byte that stands for the subject: two subjects share one by a chance of 2^-62, and then only wait for each other.
off_t lock_byte(std::string_view root, const Digest& subject) {
    const Digest mixed = FieldHasher().add("root", root).add("subject", subject.hex()).finish();
    std::uint64_t word = 0;
    std::memcpy(&word, mixed.bytes.data(), sizeof word);
    return static_cast<off_t>(word >> 2);
}

bool try_lock(int file, off_t byte) {
    struct flock range{};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = byte;
    range.l_len = 1;
    return ::fcntl(file, F_OFD_SETLK, &range) == 0;
}

}  // namespace

std::optional<NodeLock> NodeLock::acquire(std::string_view root, const Digest& subject,
                                          std::chrono::milliseconds bound) {
    const IoResult<Directory> directory = node_directory();
    IoResult<FileDescriptor> file = directory ? directory->open_shared(kFileName) : directory.failure();
    if (!file) {
        log_once("node lock", LogLevel::kInfo, "{}; processes of this node may compile the same kernel",
                 file.failure().message());
        return std::nullopt;
    }
    const off_t byte = lock_byte(root, subject);
    const auto deadline = std::chrono::steady_clock::now() + bound;
    // The kernel's own waiting call has no bound, so the lock is asked for again: soon at first, as many kernels
    // compile in milliseconds, and then at a pace that costs nothing and still notices a killed holder well within a
    // second.
    std::chrono::milliseconds pause{1};
    bool waited = false;
    while (!try_lock(file->number(), byte)) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) return std::nullopt;
        if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
        waited = true;
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, std::chrono::milliseconds{50});
    }
    return NodeLock(std::move(*file), waited);
}

}  // namespace rowjit
