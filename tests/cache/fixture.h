// What the cache's tests share: a directory of their own, a kernel, and the log as they see it.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "cache/key.h"

namespace rowjit {

// In memory where there is such a place: the tests sync thousands of files, which a disk takes milliseconds each for.
class TemporaryDirectory {
  public:
    TemporaryDirectory() {
        const std::filesystem::path memory = "/dev/shm";
        const std::filesystem::path parent = exists(memory) ? memory : std::filesystem::temp_directory_path();
        std::string name = (parent / "rowjit-test-XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr) std::abort();
        path_ = name;
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
    ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

// Sets a variable, or unsets it (nullptr), while it lives.
class ScopedVariable {
  public:
    ScopedVariable(const char* name, const char* value) : name_(name) {
        if (const char* before = std::getenv(name)) before_ = before;
        set(value);
    }
    ScopedVariable(const ScopedVariable&) = delete;
    ScopedVariable& operator=(const ScopedVariable&) = delete;
    ~ScopedVariable() { set(before_ ? before_->c_str() : nullptr); }

  private:
    void set(const char* value) {
        if (value == nullptr)
            ::unsetenv(name_);
        else
            ::setenv(name_, value, 1);
    }
    const char* name_;
    std::optional<std::string> before_;
};

// Installs a hook on system calls while it lives.
class ScopedIoHook {
  public:
    explicit ScopedIoHook(IoHook hook) { set_io_hook(hook); }
    ScopedIoHook(const ScopedIoHook&) = delete;
    ScopedIoHook& operator=(const ScopedIoHook&) = delete;
    ~ScopedIoHook() { set_io_hook(nullptr); }
};

// Takes over the log while it lives.
class CapturedLog {
  public:
    CapturedLog() {
        set_log_sink([this](LogLevel, std::string_view message) { messages_.emplace_back(message); });
    }
    CapturedLog(const CapturedLog&) = delete;
    CapturedLog& operator=(const CapturedLog&) = delete;
    ~CapturedLog() { set_log_sink(nullptr); }

    const std::vector<std::string>& messages() const { return messages_; }
    int count(std::string_view part) const {
        int found = 0;
        for (const std::string& message : messages_) found += message.find(part) != std::string::npos ? 1 : 0;
        return found;
    }

  private:
    std::vector<std::string> messages_;
};

inline KeyFields example_fields(int variant = 0) {
    KeyFields fields;
    fields.source = {fmt::format("extern \"C\" void fwd() {{ /* {} */ }}", variant), {"fwd", "bwd"}};
    fields.options = {"-a", "-b"};
    fields.architecture = "sm_90a";
    fields.toolchain = "nvrtc";
    fields.toolchain_version = "13.0";
    fields.codegen_version = 7;
    return fields;
}

inline Artifact example_artifact(std::string binary =
                                     "\x7f"
                                     "ELF binary") {
    FunctionInfo forward;
    forward.name = "fwd";
    forward.registers = 40;
    forward.shared_bytes = 128;
    forward.max_threads = 256;
    FunctionInfo backward;
    backward.name = "bwd";
    backward.registers = 64;
    backward.scalar_registers = 3;
    backward.spill_bytes = 8;
    backward.load_waits = 3;
    backward.bytes_in_flight = 136;
    backward.spilled_registers = 2;
    backward.wave_size = 64;
    backward.kernarg_bytes = 24;
    backward.arguments = {{0, 8, "global_buffer"}, {8, 4, "by_value"}};
    return {"sm_90a", "cubin", std::move(binary), "nvrtc 13.0", {forward, backward}, 12.5};
}

inline bool exists(const std::string& path) { return std::filesystem::exists(std::filesystem::symlink_status(path)); }
inline void remove_tree(const std::string& path) { std::filesystem::remove_all(path); }

// Makes the file look last used that long ago; a negative age is in the future.
inline void set_age(const std::string& path, std::int64_t age_s) {
    const timespec used = {std::time(nullptr) - age_s, 0};
    const timespec times[2] = {used, used};
    if (::utimensat(AT_FDCWD, path.c_str(), times, 0) != 0) std::abort();
}

inline int mode_of(const std::string& path) {
    struct stat state{};
    return ::stat(path.c_str(), &state) == 0 ? static_cast<int>(state.st_mode & 07777) : -1;
}

inline std::vector<std::string> names_in(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) names.push_back(entry.path().filename());
    return names;
}

inline void write_file(const std::string& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string entry_path(const std::string& root, const CacheKey& key) {
    const std::string hex = key.digest().hex();
    return root + "/v1/obj/" + hex.substr(0, 2) + "/" + hex + ".rjk";
}

}  // namespace rowjit
