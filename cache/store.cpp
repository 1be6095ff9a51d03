#include "cache/store.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/fail.h"
#include "base/log.h"

namespace rowjit {

namespace {

constexpr std::string_view kSuffix = ".rjk";
constexpr std::int64_t kMaxEntryBytes = std::int64_t{1} << 30;
constexpr int kShards = 256;  // the first byte of the digest: 100,000 files stay below 400 a directory

// How stale the time of last use may be. A training job of thousands of ranks reads the same entries at once; each
// writing its access time to a shared file system would cost more than the read.
constexpr std::int64_t kTouchAfter_s = 3600;

std::string shard_folder(int shard) { return fmt::format("obj/{:02x}", shard); }
std::string folder_of(const Digest& digest) { return shard_folder(digest.bytes[0]); }
std::string file_name(const Digest& digest) { return digest.hex() + std::string(kSuffix); }

// The digest of an entry's file name; nullopt for a name the store does not give.
std::optional<Digest> digest_of_name(std::string_view name) {
    if (!name.ends_with(kSuffix)) return std::nullopt;
    return parse_digest(name.substr(0, name.size() - kSuffix.size()));
}

std::int64_t wall_clock_s() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

// For the command line: the value, nullopt when it does not exist, any other failure thrown.
template <class T>
std::optional<T> present(IoResult<T> result) {
    if (result) return std::move(*result);
    if (result.failure().absent()) return std::nullopt;
    fail(ErrorCode::kIo, "{}", result.failure().message());
}

struct Shard {
    std::vector<StoredFile> files;
    std::int64_t foreign = 0;
};

Shard sorted_out(const std::vector<FileState>& listed, int shard) {
    Shard result;
    for (const FileState& file : listed) {
        const std::optional<Digest> digest = digest_of_name(file.name);
        if (file.plain && digest && digest->bytes[0] == shard)
            result.files.push_back({*digest, file.bytes, file.modified_s});
        else
            ++result.foreign;
    }
    return result;
}

std::optional<std::vector<FileState>> listing(const CacheDirectory& directory, const std::string& folder) {
    const std::optional<Directory> opened = present(directory.open(folder));
    return opened ? present(opened->list()) : std::nullopt;
}

// Every entry of every shard.
Shard all_shards(const CacheDirectory& directory) {
    Shard all;
    for (int shard = 0; shard < kShards; ++shard) {
        const auto listed = listing(directory, shard_folder(shard));
        if (!listed) continue;
        const Shard one = sorted_out(*listed, shard);
        all.files.insert(all.files.end(), one.files.begin(), one.files.end());
        all.foreign += one.foreign;
    }
    return all;
}

// What has to go so that the rest is within the limits: least recently used first, none that is young. A time of use
// far in the future was written under another clock, and does not make an entry young.
std::vector<StoredFile> surplus(std::vector<StoredFile> files, std::int64_t max_files, std::int64_t max_bytes,
                                std::int64_t young_s, std::int64_t now_s) {
    std::sort(files.begin(), files.end(), [](const StoredFile& a, const StoredFile& b) {
        return std::pair(a.used_s, a.digest) < std::pair(b.used_s, b.digest);
    });
    auto count = static_cast<std::int64_t>(files.size());
    std::int64_t bytes = 0;
    for (const StoredFile& file : files) bytes += file.bytes;
    std::vector<StoredFile> evicted;
    for (const StoredFile& file : files) {
        if (count <= max_files && bytes <= max_bytes) break;
        if (std::abs(now_s - file.used_s) < young_s) continue;
        evicted.push_back(file);
        --count;
        bytes -= file.bytes;
    }
    return evicted;
}

}  // namespace

KernelStore::KernelStore(std::string root, StoreLimits limits) : directory_(std::move(root)), limits_(limits) {}

std::optional<Artifact> KernelStore::get(const CacheKey& key) {
    if (!directory_.enabled()) return std::nullopt;
    const std::string folder = folder_of(key.digest());
    const std::string name = file_name(key.digest());
    const std::optional<FileContents> contents = directory_.fetch(folder, name, kMaxEntryBytes);
    if (!contents) return std::nullopt;
    Offer<Entry> entry = decode_entry(contents->bytes);
    if (!entry || entry->key_text != key.text()) {
        set_aside(key.digest(), entry ? "it was stored under another key" : entry.reason());
        return std::nullopt;
    }
    // Failing to note the use spoils the order of eviction a little, nothing else.
    if (std::abs(wall_clock_s() - contents->modified_s) > kTouchAfter_s)
        if (const IoResult<Directory> shard = directory_.open(folder)) (void)shard->touch(name);
    return std::move((*entry).artifact);
}

bool KernelStore::put(const CacheKey& key, const Artifact& artifact) {
    return put(Entry{key.digest(), key.text(), artifact});
}

bool KernelStore::put(const Entry& entry) {
    if (!directory_.enabled()) return false;
    const IoResult<bool> published =
        directory_.publish(folder_of(entry.digest), file_name(entry.digest), encode_entry(entry), Publish::kKeepFirst);
    if (!published) {
        directory_.warn(published.failure());
        return false;
    }
    tidy(entry.digest);
    return true;
}

void KernelStore::reject(const CacheKey& key, std::string_view reason) {
    if (directory_.enabled()) set_aside(key.digest(), reason);
}

void KernelStore::set_aside(const Digest& digest, std::string_view reason) {
    directory_.quarantine(folder_of(digest), file_name(digest), reason);
}

// Upkeep by the way: leftovers of killed processes once per store, and for one store in 16 the stored entry's own
// shard, held to its share of the limits. Digests are uniform, so the shards' shares add up, and no process ever reads
// the whole store.
void KernelStore::tidy(const Digest& stored) {
    constexpr int kStoresPerCheck = 16;
    if (!swept_.exchange(true)) {
        const IoResult<std::int64_t> swept = directory_.sweep_temporaries(limits_.temporary_age);
        if (!swept && !swept.failure().absent()) directory_.warn(swept.failure());
    }
    if (stored.bytes.back() % kStoresPerCheck != 0) return;
    if (const IoResult<Removed> evicted = evict_from_shard(stored.bytes[0]); !evicted && !evicted.failure().absent())
        directory_.warn(evicted.failure());
}

IoResult<Removed> KernelStore::evict_from_shard(int shard) const {
    const IoResult<Directory> opened = directory_.open(shard_folder(shard));
    if (!opened) return opened.failure();
    const IoResult<std::vector<FileState>> listed = opened->list();
    if (!listed) return listed.failure();
    return evict(sorted_out(*listed, shard).files, limits_.max_files / kShards, limits_.max_bytes / kShards);
}

IoResult<Removed> KernelStore::evict(const std::vector<StoredFile>& files, std::int64_t max_files,
                                     std::int64_t max_bytes) const {
    // Nothing is young by an unset clock: only whether something has to go is asked here.
    if (surplus(files, max_files, max_bytes, 0, 0).empty()) return Removed{};
    const IoResult<std::int64_t> now_s = directory_.now_s();
    if (!now_s) return now_s.failure();
    Removed removed;
    for (const StoredFile& file : surplus(files, max_files, max_bytes, limits_.young.count(), *now_s)) {
        const IoStatus gone = remove(file);
        if (!gone) return gone.failure();
        ++removed.files;
        removed.bytes += file.bytes;
    }
    return removed;
}

// Gone already, by another process's eviction, is as good.
IoStatus KernelStore::remove(const StoredFile& file) const {
    const IoResult<Directory> shard = directory_.open(folder_of(file.digest));
    if (!shard) return shard.failure();
    IoStatus removed = shard->remove(file_name(file.digest));
    return removed || removed.failure().absent() ? IoStatus(Done{}) : removed;
}

std::vector<StoredFile> KernelStore::list() const {
    std::vector<StoredFile> files = all_shards(directory_).files;
    std::sort(files.begin(), files.end(), [](const StoredFile& a, const StoredFile& b) {
        return std::pair(b.used_s, a.digest) < std::pair(a.used_s, b.digest);
    });
    return files;
}

StoreSize KernelStore::size() const {
    const Shard all = all_shards(directory_);
    StoreSize size;
    size.files = static_cast<std::int64_t>(all.files.size());
    size.foreign = all.foreign;
    for (const StoredFile& file : all.files) size.bytes += file.bytes;
    if (const auto files = listing(directory_, kQuarantineFolder))
        size.quarantined = static_cast<std::int64_t>(files->size());
    if (const auto files = listing(directory_, kTemporaryFolder))
        size.temporaries = static_cast<std::int64_t>(files->size());
    return size;
}

Entry KernelStore::show(std::string_view digest_prefix) const {
    std::vector<Digest> matches;
    for (const StoredFile& file : list())
        if (file.digest.hex().starts_with(digest_prefix)) matches.push_back(file.digest);
    if (matches.size() != 1)
        fail(ErrorCode::kMiss, "{} entries of {} begin with '{}'; `rowjit cache ls` lists them", matches.size(), root(),
             digest_prefix);
    Offer<Entry> entry = load(matches.front());
    if (!entry) fail(ErrorCode::kMiss, "{} in {} cannot be read: {}", matches.front().hex(), root(), entry.reason());
    return std::move(*entry);
}

Offer<Entry> KernelStore::load(const Digest& digest) const {
    const IoResult<Directory> shard = directory_.open(folder_of(digest));
    const IoResult<FileContents> contents =
        shard ? shard->read(file_name(digest), kMaxEntryBytes) : IoResult<FileContents>(shard.failure());
    if (!contents) return Declined{contents.failure().message()};
    Offer<Entry> entry = decode_entry(contents->bytes);
    if (entry && entry->digest != digest) return Declined{"it is stored under another entry's name"};
    return entry;
}

Verified KernelStore::verify() {
    Verified verified;
    for (const StoredFile& file : list()) {
        const Offer<Entry> entry = load(file.digest);
        if (entry) {
            ++verified.good;
            continue;
        }
        verified.bad.emplace_back(file.digest, entry.reason());
        set_aside(file.digest, entry.reason());
    }
    return verified;
}

Removed KernelStore::collect() {
    Removed removed =
        present(evict(all_shards(directory_).files, limits_.max_files, limits_.max_bytes)).value_or(Removed{});
    removed.temporaries = present(directory_.sweep_temporaries(limits_.temporary_age)).value_or(0);
    removed.quarantined = remove_quarantined(limits_.quarantine_age);
    return removed;
}

Removed KernelStore::clear() {
    Removed removed;
    for (const StoredFile& file : list()) {
        present(remove(file));
        ++removed.files;
        removed.bytes += file.bytes;
    }
    removed.temporaries = present(directory_.sweep_temporaries(std::chrono::seconds{0})).value_or(0);
    removed.quarantined = remove_quarantined(std::chrono::seconds{0});
    return removed;
}

std::int64_t KernelStore::remove_quarantined(std::chrono::seconds age) const {
    const std::optional<Directory> quarantine = present(directory_.open(kQuarantineFolder));
    const std::optional<std::vector<FileState>> files = quarantine ? present(quarantine->list()) : std::nullopt;
    if (!files || files->empty()) return 0;
    const std::int64_t now_s = present(directory_.now_s()).value_or(0);
    std::int64_t removed = 0;
    for (const FileState& file : *files) {
        if (!file.plain || !digest_of_name(file.name) || now_s - file.modified_s < age.count()) continue;
        present(quarantine->remove(file.name));
        ++removed;
    }
    return removed;
}

}  // namespace rowjit
