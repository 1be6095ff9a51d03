// Files in directories that belong to this user alone. Every failure comes back as a value, because the cache goes on
// without its directory: an IoFailure is a warning there, and an Error only where the command line asked for the file.
//
// Nothing here follows a symbolic link below the directory that was opened: names are resolved one at a time against an
// open directory, never through a path. Descriptors are closed over exec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace rowjit {

struct IoFailure {
    std::string operation;  // "open", "write", "sync", …
    std::string path;
    int error = 0;       // an errno
    std::string reason;  // why a path was refused that the system would have given, else ""

    std::string message() const;  // "cannot write v1/tmp/x.tmp: No space left on device"
    bool absent() const;          // the file, or a directory on the way to it, does not exist
};

template <class T>
class [[nodiscard]] IoResult {
  public:
    IoResult(T value) : result_(std::move(value)) {}              // NOLINT(google-explicit-constructor): a return value
    IoResult(IoFailure failure) : result_(std::move(failure)) {}  // NOLINT(google-explicit-constructor): a return value

    explicit operator bool() const { return std::holds_alternative<T>(result_); }
    const T& operator*() const { return std::get<T>(result_); }
    T& operator*() { return std::get<T>(result_); }
    const T* operator->() const { return &std::get<T>(result_); }
    const IoFailure& failure() const { return std::get<IoFailure>(result_); }

  private:
    std::variant<T, IoFailure> result_;
};

struct Done {};  // the value of an operation that has none
using IoStatus = IoResult<Done>;

// Owns a descriptor.
class FileDescriptor {
  public:
    FileDescriptor() = default;
    explicit FileDescriptor(int number) : number_(number) {}
    FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~FileDescriptor();
    int number() const { return number_; }

  private:
    int number_ = -1;
};

struct FileContents {
    std::string bytes;
    std::int64_t modified_s = 0;  // seconds since 1970, by the file system's clock
};

// One name in a directory, links not followed.
struct FileState {
    std::string name;
    bool plain = false;  // a regular file of this user
    std::int64_t bytes = 0;
    std::int64_t modified_s = 0;
};

enum class Publish {
    kKeepFirst,  // a file already there stays
    kReplace,
};

// An open directory that this user owns and nobody else may write to.
class Directory {
  public:
    // The directory at `path`. Links above it are followed (a home directory may be one), the last name is not.
    static IoResult<Directory> open(const std::string& path);
    // The same; it and its missing parents are made, for this user alone (0700).
    static IoResult<Directory> create(const std::string& path);

    IoResult<Directory> open_child(const std::string& name) const;
    IoResult<Directory> create_child(const std::string& name) const;

    const std::string& path() const { return path_; }

    // A regular file that this user owns and nobody else may write to; anything else (a link, a FIFO, a device) is
    // refused with the reason and without waiting for a writer. A file larger than max_bytes is refused too.
    IoResult<FileContents> read(const std::string& name, std::int64_t max_bytes) const;

    // The same for a path of several names, none of them a link, in one system call where the kernel has openat2 (Linux
    // 5.6); the directories on the way are taken to be as private as this one. A failure need not name its cause: who
    // wants that opens the directories one by one.
    IoResult<FileContents> read_below(const std::string& path, std::int64_t max_bytes) const;

    // Makes `name` hold `bytes`, whole or not at all, and durable when this returns: a temporary file in `temporary`
    // (on the same file system) is written, synced and linked. False: another file was there first, and stays.
    IoResult<bool> publish(const std::string& name, std::string_view bytes, const Directory& temporary,
                           Publish how) const;

    IoResult<std::vector<FileState>> list() const;  // "." and ".." left out, in no order
    // A file that processes of this user hold locks on, made when missing, open for reading and writing.
    IoResult<FileDescriptor> open_shared(const std::string& name) const;
    IoStatus remove(const std::string& name) const;
    IoStatus move(const std::string& name, const Directory& destination) const;  // replaces a file of that name there
    IoStatus touch(const std::string& name) const;  // modified now, by the file system's clock
    IoResult<std::int64_t> now_s() const;           // the file system's clock: that of a file made here and removed

  private:
    Directory(FileDescriptor descriptor, std::string path)
        : descriptor_(std::move(descriptor)), path_(std::move(path)) {}
    static IoResult<Directory> open_at(int parent, const std::string& name, std::string path);
    IoResult<FileContents> contents_of(const FileDescriptor& file, const std::string& name,
                                       std::int64_t max_bytes) const;
    IoFailure failed(const char* operation, const std::string& name) const;
    IoResult<bool> link_into_place(const std::string& temporary_name, const Directory& temporary,
                                   const std::string& name, Publish how) const;

    FileDescriptor descriptor_;
    std::string path_;
};

// A file that is read where it lies in memory, its pages shared by all processes that map it. Whoever replaces such a
// file puts another in its place, as publish does: one that is written over or cut short under a process ends it
// (SIGBUS).
class MappedFile {
  public:
    // A regular file, the last name of its path no link, that this user or root owns and nobody else may write to.
    // Links above it are followed.
    static IoResult<MappedFile> open(const std::string& path);

    MappedFile(MappedFile&& other) noexcept
        : address_(std::exchange(other.address_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    MappedFile& operator=(MappedFile&& other) noexcept {
        std::swap(address_, other.address_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~MappedFile();

    std::string_view bytes() const { return {static_cast<const char*>(address_), size_}; }

  private:
    MappedFile(void* address, std::size_t size) : address_(address), size_(size) {}

    void* address_ = nullptr;
    std::size_t size_ = 0;
};

// How publish names its temporary files, so that those of killed processes can be told from other people's files.
bool is_temporary_name(std::string_view name);

// A system call about to be made. Tests use the hook to make any of them fail, fall short or be the process's last.
struct IoCall {
    const char* operation;  // as in IoFailure
    std::size_t bytes;      // of a read or write, which the hook may shorten; else 0
};
using IoHook = int (*)(IoCall& call);  // an errno the call shall fail with, 0 to go on

// Installs a hook for the whole process (nullptr: none) and returns the one before.
IoHook set_io_hook(IoHook hook);

}  // namespace rowjit
