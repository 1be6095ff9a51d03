#include "cache/directory.h"

#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "base/environment.h"
#include "base/log.h"

namespace rowjit {

namespace {

constexpr const char* kVersionFolder = "v1";

// The directory we hold open is no longer the one the path leads to: someone removed the cache (ENOENT when a name is
// made in it), or the file server did (ESTALE).
bool directory_is_gone(const IoFailure& failure) { return failure.absent() || failure.error == ESTALE; }

}  // namespace

std::string default_cache_directory() {
    if (const auto chosen = environment_text("ROWJIT_CACHE_DIR")) return *chosen == "off" ? "" : *chosen;
    // The XDG specification has relative paths ignored.
    if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg == '/')
        return std::string(xdg) + "/rowjit";
    if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
        return std::string(home) + "/.cache/rowjit";
    log_once("no cache directory", LogLevel::kWarning,
             "no directory to keep compiled kernels in: HOME is not set; set ROWJIT_CACHE_DIR");
    return "";
}

IoResult<std::shared_ptr<const Directory>> CacheDirectory::version(Missing missing) const {
    {
        const std::lock_guard lock(mutex_);
        if (version_ != nullptr) return version_;
    }
    IoResult<Directory> root = missing == Missing::kCreate ? Directory::create(root_) : Directory::open(root_);
    if (!root) return root.failure();
    IoResult<Directory> child =
        missing == Missing::kCreate ? root->create_child(kVersionFolder) : root->open_child(kVersionFolder);
    if (!child) return child.failure();
    const std::lock_guard lock(mutex_);
    version_ = std::make_shared<const Directory>(std::move(*child));
    return version_;
}

void CacheDirectory::forget_version() const {
    const std::lock_guard lock(mutex_);
    version_ = nullptr;
}

IoResult<Directory> CacheDirectory::walk(std::string_view folder, Missing missing) const {
    const IoResult<std::shared_ptr<const Directory>> top = version(missing);
    if (!top) return top.failure();
    std::optional<Directory> reached;
    while (!folder.empty()) {
        const std::size_t slash = folder.find('/');
        const std::string name(folder.substr(0, slash));
        folder = slash == std::string_view::npos ? "" : folder.substr(slash + 1);
        const Directory& parent = reached ? *reached : **top;
        IoResult<Directory> child = missing == Missing::kCreate ? parent.create_child(name) : parent.open_child(name);
        if (!child) return child.failure();
        reached = std::move(*child);
    }
    return std::move(*reached);
}

IoResult<Directory> CacheDirectory::open(std::string_view folder) const {
    IoResult<Directory> opened = walk(folder, Missing::kFail);
    if (opened || opened.failure().error != ESTALE) return opened;
    forget_version();
    return walk(folder, Missing::kFail);
}

std::optional<FileContents> CacheDirectory::fetch(std::string_view folder, const std::string& name,
                                                  std::int64_t max_bytes) const {
    // The one path that is short of time: two directories less to open and close are 5 of 24 us (cache_bench).
    if (const auto top = version(Missing::kFail)) {
        IoResult<FileContents> contents = (*top)->read_below(fmt::format("{}/{}", folder, name), max_bytes);
        if (contents) return std::move(*contents);
        if (contents.failure().absent()) return std::nullopt;
    }
    // Once more, name by name, to tell what is wrong.
    const IoResult<Directory> directory = open(folder);
    IoResult<FileContents> contents = directory ? directory->read(name, max_bytes) : directory.failure();
    if (contents) return std::move(*contents);
    if (directory && !contents.failure().reason.empty())
        quarantine(folder, name, contents.failure().reason);
    else if (!contents.failure().absent())
        warn(contents.failure());
    return std::nullopt;
}

IoResult<bool> CacheDirectory::publish_once(std::string_view folder, const std::string& name, std::string_view bytes,
                                            Publish how) const {
    const IoResult<Directory> directory = walk(folder, Missing::kCreate);
    if (!directory) return directory.failure();
    const IoResult<Directory> temporary = walk(kTemporaryFolder, Missing::kCreate);
    if (!temporary) return temporary.failure();
    return directory->publish(name, bytes, *temporary, how);
}

IoResult<bool> CacheDirectory::publish(std::string_view folder, const std::string& name, std::string_view bytes,
                                       Publish how) const {
    IoResult<bool> published = publish_once(folder, name, bytes, how);
    if (published || !directory_is_gone(published.failure())) return published;
    forget_version();
    return publish_once(folder, name, bytes, how);
}

void CacheDirectory::quarantine(std::string_view folder, const std::string& name, std::string_view reason) const {
    quarantined_.fetch_add(1, std::memory_order_relaxed);
    log(LogLevel::kWarning, "cache entry {}/{}/{}/{} is set aside: {}", root_, kVersionFolder, folder, name, reason);
    const IoResult<Directory> from = open(folder);
    const IoResult<Directory> to = walk(kQuarantineFolder, Missing::kCreate);
    if (!from) return warn(from.failure());
    if (!to) return warn(to.failure());
    // Another process may have set it aside first.
    if (const IoStatus moved = from->move(name, *to); !moved && !moved.failure().absent()) warn(moved.failure());
}

void CacheDirectory::warn(const IoFailure& failure) const {
    failures_.fetch_add(1, std::memory_order_relaxed);
    log_once("cache directory " + root_, LogLevel::kWarning,
             "{}; kernels stay in memory and will be compiled again by the next process (`rowjit doctor` checks {})",
             failure.message(), root_);
}

IoResult<std::int64_t> CacheDirectory::now_s() const {
    const IoResult<Directory> temporary = walk(kTemporaryFolder, Missing::kCreate);
    if (!temporary) return temporary.failure();
    return temporary->now_s();
}

IoResult<std::int64_t> CacheDirectory::sweep_temporaries(std::chrono::seconds age) const {
    const IoResult<Directory> temporary = open(kTemporaryFolder);
    if (!temporary) return temporary.failure();
    const IoResult<std::vector<FileState>> files = temporary->list();
    if (!files) return files.failure();
    if (files->empty()) return std::int64_t{0};
    const IoResult<std::int64_t> now_s = temporary->now_s();
    if (!now_s) return now_s.failure();
    std::int64_t swept = 0;
    for (const FileState& file : *files) {
        if (!file.plain || !is_temporary_name(file.name) || *now_s - file.modified_s < age.count()) continue;
        const IoStatus removed = temporary->remove(file.name);
        if (!removed && !removed.failure().absent()) return removed.failure();
        swept += removed ? 1 : 0;
    }
    return swept;
}

}  // namespace rowjit
