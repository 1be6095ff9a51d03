#include "base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <system_error>

namespace rowjit {

namespace {

constexpr mode_t kOthersMayWrite = S_IWGRP | S_IWOTH;
// O_NONBLOCK: opening a FIFO without a writer would otherwise wait for one.
constexpr int kReadFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
constexpr std::string_view kTemporarySuffix = ".tmp";

std::atomic<IoHook> io_hook{nullptr};

// Makes one system call, again when a signal interrupts it. -1 with errno set on failure, as the call itself.
template <class Call>
auto attempt(const char* operation, std::size_t bytes, Call call) -> decltype(call(bytes)) {
    for (;;) {
        IoCall announced{operation, bytes};
        const IoHook hook = io_hook.load(std::memory_order_relaxed);
        const int injected = hook == nullptr ? 0 : hook(announced);
        if (injected != 0) {
            errno = injected;
            return -1;
        }
        const auto result = call(announced.bytes);
        if (result != -1 || errno != EINTR) return result;
    }
}

template <class Call>
int attempt(const char* operation, Call call) {
    return attempt(operation, 0, [&call](std::size_t) { return call(); });
}

IoFailure refused(const std::string& path, std::string reason) { return {"use", path, EPERM, std::move(reason)}; }

enum class Owner { kThisUser, kThisUserOrRoot };

// Why `state` is not to be trusted, or "".
std::string distrust(const struct stat& state, mode_t kind, const char* kind_name, Owner owner = Owner::kThisUser) {
    if (S_ISLNK(state.st_mode)) return "it is a symbolic link";
    if ((state.st_mode & S_IFMT) != kind) return fmt::format("it is not a {}", kind_name);
    const bool of_root = owner == Owner::kThisUserOrRoot && state.st_uid == 0;
    if (state.st_uid != geteuid() && !of_root)
        return fmt::format("it is owned by user {}, not by user {}", state.st_uid, geteuid());
    if ((state.st_mode & kOthersMayWrite) != 0)
        return fmt::format("others may write to it (mode {:04o}); run chmod go-w on it", state.st_mode & 07777);
    return "";
}

std::string joined(const std::string& directory, const std::string& name) { return directory + "/" + name; }

// "link/" means the directory behind the link, also to O_NOFOLLOW.
std::string without_trailing_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

// Distinct among threads, processes and hosts that share the directory.
std::string temporary_name() {
    static std::atomic<unsigned> counter{0};
    std::random_device random;
    return fmt::format("{}-{}-{:08x}{:08x}{}", getpid(), counter.fetch_add(1), random(), random(), kTemporarySuffix);
}

IoStatus write_all(int descriptor, std::string_view bytes, const std::string& path) {
    while (!bytes.empty()) {
        const ssize_t written =
            attempt("write", bytes.size(), [&](std::size_t count) { return ::write(descriptor, bytes.data(), count); });
        if (written < 0) return IoFailure{"write", path, errno, ""};
        bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return Done{};
}

// Removes the temporary file, whatever became of it: once linked it is a second name, once renamed it is gone.
class Temporary {
  public:
    Temporary(int directory, std::string name) : directory_(directory), name_(std::move(name)) {}
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;
    ~Temporary() {
        attempt("unlink", [this] { return ::unlinkat(directory_, name_.c_str(), 0); });
    }

  private:
    int directory_;
    std::string name_;
};

bool lacks_hard_links(int error) { return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK; }

}  // namespace

std::string IoFailure::message() const {
    return fmt::format("cannot {} {}: {}", operation, path,
                       reason.empty() ? std::generic_category().message(error) : reason);
}

bool IoFailure::absent() const { return error == ENOENT; }

FileDescriptor::~FileDescriptor() {
    if (number_ >= 0) ::close(number_);
}

IoHook set_io_hook(IoHook hook) { return io_hook.exchange(hook); }

bool is_temporary_name(std::string_view name) { return name.ends_with(kTemporarySuffix); }

IoFailure Directory::failed(const char* operation, const std::string& name) const {
    return {operation, joined(path_, name), errno, ""};
}

IoResult<Directory> Directory::open_at(int parent, const std::string& name, std::string path) {
    constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    FileDescriptor descriptor(attempt("open", [&] { return ::openat(parent, name.c_str(), kFlags); }));
    struct stat state{};
    if (descriptor.number() < 0) {
        const int error = errno;
        // A link or a file in its place gives ENOTDIR, which would not tell the user what to look for.
        const bool seen =
            (error == ENOTDIR || error == ELOOP) && ::fstatat(parent, name.c_str(), &state, AT_SYMLINK_NOFOLLOW) == 0;
        const std::string reason = seen ? distrust(state, S_IFDIR, "directory") : "";
        return reason.empty() ? IoFailure{"open", path, error, ""} : refused(path, reason);
    }
    if (attempt("stat", [&] { return ::fstat(descriptor.number(), &state); }) < 0)
        return IoFailure{"stat", path, errno, ""};
    if (std::string reason = distrust(state, S_IFDIR, "directory"); !reason.empty()) return refused(path, reason);
    return Directory(std::move(descriptor), std::move(path));
}

IoResult<Directory> Directory::open(const std::string& path) {
    const std::string plain = without_trailing_slashes(path);
    return open_at(AT_FDCWD, plain, plain);
}

IoResult<Directory> Directory::create(const std::string& path_given) {
    const std::string path = without_trailing_slashes(path_given);
    if (IoResult<Directory> existing = open(path); existing || !existing.failure().absent()) return existing;
    for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
        const std::string parent = path.substr(0, end);
        if (attempt("mkdir", [&] { return ::mkdir(parent.c_str(), 0700); }) < 0 && errno != EEXIST) {
            const int error = errno;
            struct stat state{};
            // A read-only or foreign parent that exists is no obstacle: what lies below it may be writable.
            if (::stat(parent.c_str(), &state) != 0) return IoFailure{"create", parent, error, ""};
        }
        if (end == std::string::npos) return open(path);
    }
}

IoResult<Directory> Directory::open_child(const std::string& name) const {
    return open_at(descriptor_.number(), name, joined(path_, name));
}

IoResult<Directory> Directory::create_child(const std::string& name) const {
    if (IoResult<Directory> existing = open_child(name); existing || !existing.failure().absent()) return existing;
    if (attempt("mkdir", [&] { return ::mkdirat(descriptor_.number(), name.c_str(), 0700); }) < 0 && errno != EEXIST)
        return failed("create", name);
    return open_child(name);
}

IoResult<FileContents> Directory::read(const std::string& name, std::int64_t max_bytes) const {
    const FileDescriptor file(
        attempt("open", [&] { return ::openat(descriptor_.number(), name.c_str(), kReadFlags); }));
    if (file.number() >= 0) return contents_of(file, name, max_bytes);
    return errno == ELOOP ? refused(joined(path_, name), "it is a symbolic link") : failed("open", name);
}

IoResult<FileContents> Directory::read_below(const std::string& path, std::int64_t max_bytes) const {
    open_how how{};
    how.flags = kReadFlags;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
    const FileDescriptor file(attempt("open", [&] {
        return static_cast<int>(::syscall(SYS_openat2, descriptor_.number(), path.c_str(), &how, sizeof how));
    }));
    if (file.number() < 0) return failed("open", path);
    return contents_of(file, path, max_bytes);
}

IoResult<FileContents> Directory::contents_of(const FileDescriptor& file, const std::string& name,
                                              std::int64_t max_bytes) const {
    struct stat state{};
    if (attempt("stat", [&] { return ::fstat(file.number(), &state); }) < 0) return failed("stat", name);
    if (std::string reason = distrust(state, S_IFREG, "regular file"); !reason.empty())
        return refused(joined(path_, name), reason);
    if (state.st_size > max_bytes)
        return refused(joined(path_, name), fmt::format("it has {} bytes, more than {}", state.st_size, max_bytes));

    FileContents contents{std::string(static_cast<std::size_t>(state.st_size), '\0'), state.st_mtim.tv_sec};
    std::size_t filled = 0;
    while (filled < contents.bytes.size()) {
        const ssize_t count = attempt("read", contents.bytes.size() - filled, [&](std::size_t wanted) {
            return ::read(file.number(), contents.bytes.data() + filled, wanted);
        });
        if (count < 0) return failed("read", name);
        if (count == 0) break;  // cut short since it was opened
        filled += static_cast<std::size_t>(count);
    }
    contents.bytes.resize(filled);
    return contents;
}

IoResult<bool> Directory::link_into_place(const std::string& temporary_name, const Directory& temporary,
                                          const std::string& name, Publish how) const {
    const char* from = temporary_name.c_str();
    if (how == Publish::kKeepFirst) {
        if (attempt("link", [&] {
                return ::linkat(temporary.descriptor_.number(), from, descriptor_.number(), name.c_str(), 0);
            }) == 0)
            return true;
        if (errno == EEXIST) return false;
        if (!lacks_hard_links(errno)) return failed("link", name);
    }
    // Replacing is asked for, or is all that this file system offers; it is as atomic, only not the first to come.
    if (attempt("rename", [&] {
            return ::renameat(temporary.descriptor_.number(), from, descriptor_.number(), name.c_str());
        }) < 0)
        return failed("rename", name);
    return true;
}

IoResult<bool> Directory::publish(const std::string& name, std::string_view bytes, const Directory& temporary,
                                  Publish how) const {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const std::string written_name = temporary_name();
    const FileDescriptor file(attempt(
        "create", [&] { return ::openat(temporary.descriptor_.number(), written_name.c_str(), kFlags, 0600); }));
    if (file.number() < 0) return temporary.failed("create", written_name);
    const Temporary written(temporary.descriptor_.number(), written_name);

    if (IoStatus status = write_all(file.number(), bytes, joined(temporary.path_, written_name)); !status)
        return status.failure();
    if (attempt("sync", [&] { return ::fsync(file.number()); }) < 0) return temporary.failed("sync", written_name);
    IoResult<bool> first = link_into_place(written_name, temporary, name, how);
    if (!first || !*first) return first;
    // Without this a crash of the machine could forget the name, though not tear the file.
    if (attempt("sync", [&] { return ::fsync(descriptor_.number()); }) < 0) return failed("sync", ".");
    return true;
}

IoResult<std::vector<FileState>> Directory::list() const {
    // A descriptor of its own: reading a directory moves the descriptor's position, which threads would share.
    const int descriptor =
        attempt("list", [&] { return ::openat(descriptor_.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (descriptor < 0) return failed("list", ".");
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(descriptor), ::closedir);
    if (stream == nullptr) {
        const FileDescriptor closed(descriptor);
        return failed("list", ".");
    }
    std::vector<FileState> files;
    for (;;) {
        errno = 0;
        const dirent* entry = ::readdir(stream.get());
        if (entry == nullptr) break;
        const std::string name = entry->d_name;
        struct stat state{};
        if (name == "." || name == "..") continue;
        if (::fstatat(descriptor_.number(), name.c_str(), &state, AT_SYMLINK_NOFOLLOW) != 0) continue;  // gone since
        const bool plain = S_ISREG(state.st_mode) && state.st_uid == geteuid();
        files.push_back({name, plain, state.st_size, state.st_mtim.tv_sec});
    }
    if (errno != 0) return failed("list", ".");
    return files;
}

IoResult<FileDescriptor> Directory::open_shared(const std::string& name) const {
    constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    FileDescriptor file(attempt("open", [&] { return ::openat(descriptor_.number(), name.c_str(), kFlags, 0600); }));
    if (file.number() < 0) return failed("open", name);
    return file;
}

IoStatus Directory::remove(const std::string& name) const {
    if (attempt("unlink", [&] { return ::unlinkat(descriptor_.number(), name.c_str(), 0); }) < 0)
        return failed("unlink", name);
    return Done{};
}

IoStatus Directory::move(const std::string& name, const Directory& destination) const {
    if (attempt("rename", [&] {
            return ::renameat(descriptor_.number(), name.c_str(), destination.descriptor_.number(), name.c_str());
        }) < 0)
        return failed("rename", name);
    return Done{};
}

IoStatus Directory::touch(const std::string& name) const {
    const timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
    if (attempt("touch", [&] { return ::utimensat(descriptor_.number(), name.c_str(), now, AT_SYMLINK_NOFOLLOW); }) < 0)
        return failed("touch", name);
    return Done{};
}

IoResult<std::int64_t> Directory::now_s() const {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const std::string name = temporary_name();
    const FileDescriptor file(
        attempt("create", [&] { return ::openat(descriptor_.number(), name.c_str(), kFlags, 0600); }));
    if (file.number() < 0) return failed("create", name);
    const Temporary made(descriptor_.number(), name);
    struct stat state{};
    if (attempt("stat", [&] { return ::fstat(file.number(), &state); }) < 0) return failed("stat", name);
    return static_cast<std::int64_t>(state.st_mtim.tv_sec);
}

IoResult<MappedFile> MappedFile::open(const std::string& path) {
    const FileDescriptor file(attempt("open", [&] { return ::open(path.c_str(), kReadFlags); }));
    if (file.number() < 0)
        return errno == ELOOP ? refused(path, "it is a symbolic link") : IoFailure{"open", path, errno, ""};
    struct stat state{};
    if (attempt("stat", [&] { return ::fstat(file.number(), &state); }) < 0) return IoFailure{"stat", path, errno, ""};
    if (std::string reason = distrust(state, S_IFREG, "regular file", Owner::kThisUserOrRoot); !reason.empty())
        return refused(path, reason);
    const auto size = static_cast<std::size_t>(state.st_size);
    if (size == 0) return MappedFile(nullptr, 0);  // which cannot be mapped, and need not be
    void* address = nullptr;
    const int mapped = attempt("map", [&] {
        address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.number(), 0);
        return address == MAP_FAILED ? -1 : 0;
    });
    if (mapped < 0) return IoFailure{"map", path, errno, ""};
    return MappedFile(address, size);
}

MappedFile::~MappedFile() {
    if (address_ != nullptr) ::munmap(address_, size_);
}

}  // namespace rowjit
