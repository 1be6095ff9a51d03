// What the world does to a store: damaged files, foreign ones, failing system calls, a full cache, another's clock.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "cache/kernel_cache.h"
#include "rowjit/error.h"
#include "tests/cache/fixture.h"

using namespace rowjit;

namespace {

// The hook's state: which call fails, with what, and how many were made.
struct Injection {
    int failing_call = 0;
    int error = 0;
    bool lasting = false;  // every later call fails too
    int calls = 0;
};
Injection injection;

int inject(IoCall&) {
    const int call = injection.calls++;
    const bool fails = injection.lasting ? call >= injection.failing_call : call == injection.failing_call;
    return fails ? injection.error : 0;
}

// Expects the cache at `root` to go on without a hit, saying `complaint` and nothing else.
void expect_refused(const std::string& root, const std::string& complaint) {
    const CapturedLog log;
    KernelCache cache(std::make_shared<KernelStore>(root));
    const CacheKey key(example_fields());
    CHECK(*cache.get_or_compile(key, [] { return example_artifact("compiled"); }) == example_artifact("compiled"));
    CHECK(cache.statistics().compiled == 1);
    INFO(fmt::format("{}", fmt::join(log.messages(), "\n")));
    CHECK(log.messages().size() == 1);
    CHECK(log.count(complaint) == 1);
}

// A store of kernels 0 … count-1, each used `age_s` seconds ago.
void fill(const std::string& root, int count, std::int64_t age_s) {
    KernelStore store(root);
    for (int i = 0; i < count; ++i) {
        store.put(CacheKey(example_fields(i)), example_artifact());
        set_age(entry_path(root, CacheKey(example_fields(i))), age_s);
    }
}

constexpr std::int64_t kDay_s = 24 * 3600;

}  // namespace

TEST_CASE("a damaged entry is set aside, said once, counted, and compiled again") {
    const TemporaryDirectory directory;
    KernelStore store(directory.path());
    const CacheKey key(example_fields());
    const std::string path = entry_path(directory.path(), key);
    store.put(key, example_artifact());
    const std::string whole = read_file(path);
    int wrong_loads = 0;
    for (std::size_t size = 0; size < whole.size(); size += 7) {
        const CapturedLog log;
        write_file(path, whole.substr(0, size));
        wrong_loads += store.get(key) ? 1 : 0;
        CHECK(log.messages().size() == 1);
        CHECK_FALSE(exists(path));
        CHECK(store.put(key, example_artifact()));
        wrong_loads += *store.get(key) == example_artifact() ? 0 : 1;
    }
    CHECK(wrong_loads == 0);
    CHECK(store.quarantined() == static_cast<std::int64_t>((whole.size() + 6) / 7));
    CHECK(store.size().quarantined == 1);
}

TEST_CASE("a good entry under another key's name is set aside") {
    const TemporaryDirectory directory;
    const CapturedLog log;
    KernelStore store(directory.path());
    const CacheKey key(example_fields(0)), other(example_fields(1));
    store.put(key, example_artifact());
    store.put(other, example_artifact("other"));
    write_file(entry_path(directory.path(), key), read_file(entry_path(directory.path(), other)));
    CHECK_FALSE(store.get(key));
    CHECK(log.count("another key") == 1);
}

TEST_CASE("verify finds what is damaged and leaves what is good") {
    const TemporaryDirectory directory;
    const CapturedLog log;
    fill(directory.path(), 3, 0);
    write_file(entry_path(directory.path(), CacheKey(example_fields(1))), "damaged");
    KernelStore store(directory.path());
    const Verified verified = store.verify();
    CHECK(verified.good == 2);
    REQUIRE(verified.bad.size() == 1);
    CHECK(verified.bad.front().first == CacheKey(example_fields(1)).digest());
    CHECK(store.verify().bad.empty());
}

TEST_CASE("whatever system call fails, and whether once or for good, the kernel is there and one warning is said") {
    for (const int error : {ENOSPC, EDQUOT, EROFS, EACCES, ESTALE, EIO, EMFILE, ENOENT}) {
        for (const bool lasting : {false, true}) {
            for (int failing_call = 0;; ++failing_call) {
                const TemporaryDirectory directory;
                const CapturedLog log;
                injection = {failing_call, error, lasting, 0};
                {
                    const ScopedIoHook hook(inject);
                    KernelCache cache(std::make_shared<KernelStore>(directory.path()));
                    const auto artifact =
                        cache.get_or_compile(CacheKey(example_fields()), [] { return example_artifact(); });
                    CHECK(*artifact == example_artifact());
                    CHECK(cache.get_or_compile(CacheKey(example_fields()), [] { return Artifact(); }) == artifact);
                }
                CHECK(log.messages().size() <= 1);
                // What is on disk afterwards is whole or absent.
                KernelStore after(directory.path());
                const std::optional<Artifact> stored = after.get(CacheKey(example_fields()));
                CHECK((!stored || *stored == example_artifact()));
                CHECK(after.quarantined() == 0);
                if (injection.calls <= failing_call) break;
                REQUIRE(failing_call < 100);
            }
        }
    }
}

TEST_CASE("an entry that cannot be read is a miss that keeps the entry") {
    const TemporaryDirectory directory;
    const CapturedLog log;
    KernelStore store(directory.path());
    const CacheKey key(example_fields());
    store.put(key, example_artifact());
    {
        const ScopedIoHook hook([](IoCall& call) { return std::string_view(call.operation) == "read" ? EIO : 0; });
        CHECK_FALSE(store.get(key));
        CHECK_FALSE(store.get(key));
    }
    CHECK(store.failures() == 2);
    CHECK(log.count("Input/output error") == 1);
    CHECK(store.get(key));
}

TEST_CASE("the command line's functions report a failing disk instead of an empty store") {
    const TemporaryDirectory directory;
    fill(directory.path(), 1, 0);
    const ScopedIoHook hook([](IoCall& call) { return std::string_view(call.operation) == "list" ? EIO : 0; });
    KernelStore store(directory.path());
    CHECK_THROWS_WITH_AS(store.list(), doctest::Contains("Input/output error"), Error);
    CHECK_THROWS_AS(store.collect(), Error);
}

TEST_CASE("a cache directory that is a symbolic link is refused") {
    const TemporaryDirectory directory;
    std::filesystem::create_directory(directory.path() + "/real");
    std::filesystem::create_symlink(directory.path() + "/real", directory.path() + "/cache");
    expect_refused(directory.path() + "/cache", "it is a symbolic link");
    CHECK(names_in(directory.path() + "/real").empty());
}

TEST_CASE("a cache directory that is a file or a FIFO is refused") {
    const TemporaryDirectory directory;
    write_file(directory.path() + "/file", "x");
    expect_refused(directory.path() + "/file", "it is not a directory");
    REQUIRE(::mkfifo((directory.path() + "/fifo").c_str(), 0600) == 0);
    expect_refused(directory.path() + "/fifo", "it is not a directory");
}

TEST_CASE("a cache directory that others may write to is refused") {
    for (const mode_t mode : {0777, 0770, 0702}) {
        const TemporaryDirectory directory;
        REQUIRE(::chmod(directory.path().c_str(), mode) == 0);
        expect_refused(directory.path(), "others may write to it");
    }
}

TEST_CASE("a cache directory of another user is refused") {
    if (::geteuid() != 0) return;  // only root can make one
    const TemporaryDirectory directory;
    REQUIRE(::chown(directory.path().c_str(), 12345, 0) == 0);
    expect_refused(directory.path(), "owned by user 12345");
}

TEST_CASE("a folder inside the cache that is a symbolic link is refused") {
    const TemporaryDirectory directory, elsewhere;
    const std::string shard =
        std::filesystem::path(entry_path(directory.path(), CacheKey(example_fields()))).parent_path();
    for (const std::string& folder : {directory.path() + "/v1", directory.path() + "/v1/obj", shard}) {
        remove_tree(directory.path() + "/v1");
        std::filesystem::create_directories(shard);
        remove_tree(folder);
        std::filesystem::create_directory_symlink(elsewhere.path(), folder);
        const CapturedLog log;
        KernelStore store(directory.path());
        CHECK_FALSE(store.put(CacheKey(example_fields()), example_artifact()));
        CHECK_FALSE(store.get(CacheKey(example_fields())));
        CHECK(store.failures() == 2);
    }
    CHECK(names_in(elsewhere.path()).empty());
}

TEST_CASE("a link, a FIFO or a file that others may write to, in an entry's place, is set aside") {
    const CacheKey key(example_fields());
    using Plant = void (*)(const std::string& path, const std::string& good);
    const std::pair<Plant, std::string> cases[] = {
        {[](const std::string& path, const std::string& good) { std::filesystem::create_symlink(good, path); },
         "it is a symbolic link"},
        {[](const std::string& path, const std::string&) { (void)::mkfifo(path.c_str(), 0600); },
         "it is not a regular file"},
        {[](const std::string& path, const std::string&) { std::filesystem::create_directory(path); },
         "it is not a regular file"},
        {[](const std::string& path, const std::string& good) {
             write_file(path, read_file(good));
             (void)::chmod(path.c_str(), 0666);
         },
         "others may write to it"},
    };
    for (const auto& [plant, complaint] : cases) {
        const TemporaryDirectory directory;
        const std::string path = entry_path(directory.path(), key);
        KernelStore(directory.path()).put(key, example_artifact());
        std::filesystem::rename(path, directory.path() + "/good");
        plant(path, directory.path() + "/good");
        expect_refused(directory.path(), complaint);
        CHECK(*KernelStore(directory.path()).get(key) == example_artifact("compiled"));
        CHECK(exists(directory.path() + "/good"));
    }
}

TEST_CASE("a read-only cache serves its hits") {
    const TemporaryDirectory directory;
    const CacheKey key(example_fields());
    KernelStore(directory.path()).put(key, example_artifact());
    set_age(entry_path(directory.path(), key), kDay_s);
    const CapturedLog log;
    const ScopedIoHook hook([](IoCall& call) {
        const std::string_view operation = call.operation;
        return operation == "open" || operation == "stat" || operation == "read" ? 0 : EROFS;
    });
    KernelStore store(directory.path());
    CHECK(store.get(key));
    CHECK(log.messages().empty());
}

TEST_CASE("two versions of the code generator share a directory without meeting") {
    const TemporaryDirectory directory;
    KeyFields newer = example_fields();
    ++newer.codegen_version;
    KernelStore store(directory.path());
    store.put(CacheKey(example_fields()), example_artifact("old"));
    CHECK_FALSE(store.get(CacheKey(newer)));
    store.put(CacheKey(newer), example_artifact("new"));
    CHECK(store.get(CacheKey(example_fields()))->binary == "old");
    CHECK(store.get(CacheKey(newer))->binary == "new");
}

TEST_CASE("collecting evicts the least recently used until both limits are met") {
    const TemporaryDirectory directory;
    fill(directory.path(), 10, kDay_s);
    set_age(entry_path(directory.path(), CacheKey(example_fields(3))), kDay_s / 2);
    set_age(entry_path(directory.path(), CacheKey(example_fields(7))), kDay_s / 2);
    StoreLimits limits;
    limits.max_files = 2;
    KernelStore store(directory.path(), limits);
    CHECK(store.collect().files == 8);
    CHECK(store.get(CacheKey(example_fields(3))));
    CHECK(store.get(CacheKey(example_fields(7))));

    fill(directory.path(), 10, kDay_s);
    limits.max_files = 100;
    limits.max_bytes = store.size().bytes / 2;
    KernelStore by_bytes(directory.path(), limits);
    by_bytes.collect();
    CHECK(by_bytes.size().bytes <= limits.max_bytes);
    CHECK(by_bytes.size().files >= 4);
}

TEST_CASE("an entry used within the hour is never evicted") {
    const TemporaryDirectory directory;
    fill(directory.path(), 4, 0);
    StoreLimits limits;
    limits.max_files = 0;
    KernelStore store(directory.path(), limits);
    CHECK(store.collect().files == 0);
    set_age(entry_path(directory.path(), CacheKey(example_fields(2))), kDay_s);
    CHECK(store.collect().files == 1);
    CHECK(store.size().files == 3);
}

TEST_CASE("a hit makes an old entry young again") {
    const TemporaryDirectory directory;
    fill(directory.path(), 2, kDay_s);
    StoreLimits limits;
    limits.max_files = 0;
    KernelStore store(directory.path(), limits);
    CHECK(store.get(CacheKey(example_fields(0))));
    store.collect();
    CHECK(store.get(CacheKey(example_fields(0))));
    CHECK_FALSE(store.get(CacheKey(example_fields(1))));
}

TEST_CASE("entries written under a clock a day ahead or behind do not keep the limits from being met") {
    const TemporaryDirectory directory;
    fill(directory.path(), 3, -kDay_s);
    StoreLimits limits;
    limits.max_files = 1;
    KernelStore store(directory.path(), limits);
    store.collect();
    CHECK(store.size().files == 1);
}

TEST_CASE("storing keeps its shard within its share of the limits") {
    // Keys of one shard whose storing looks at the shard, which one in 16 does.
    std::map<int, std::vector<KeyFields>> shards;
    const std::vector<KeyFields>* full = nullptr;
    for (int i = 0; full == nullptr; ++i) {
        const CacheKey key(example_fields(i));
        if (key.digest().bytes.back() % 16 != 0) continue;
        std::vector<KeyFields>& fields = shards[key.digest().bytes.front()];
        fields.push_back(example_fields(i));
        if (fields.size() == 4) full = &fields;
    }
    const TemporaryDirectory directory;
    StoreLimits limits;
    limits.max_files = 2 * 256;
    KernelStore store(directory.path(), limits);
    for (const KeyFields& fields : *full) {
        store.put(CacheKey(fields), example_artifact());
        set_age(entry_path(directory.path(), CacheKey(fields)), kDay_s);
    }
    CHECK(store.size().files == 2);
    CHECK(store.get(CacheKey(full->back())));
}

TEST_CASE("temporaries of killed processes are swept, those of living ones are not") {
    const TemporaryDirectory directory;
    fill(directory.path(), 1, 0);
    const std::string tmp = directory.path() + "/v1/tmp/";
    write_file(tmp + "1-0-aa.tmp", "left");
    write_file(tmp + "2-0-bb.tmp", "being written");
    write_file(tmp + "notes", "not ours");
    set_age(tmp + "1-0-aa.tmp", 2 * 3600);
    set_age(tmp + "notes", 2 * 3600);
    KernelStore(directory.path()).put(CacheKey(example_fields(1)), example_artifact());
    CHECK_FALSE(exists(tmp + "1-0-aa.tmp"));
    CHECK(exists(tmp + "2-0-bb.tmp"));
    CHECK(exists(tmp + "notes"));
}

TEST_CASE("the cache directory is the one asked for, else XDG's, else the home's") {
    const ScopedVariable home("HOME", "/at-home");
    const ScopedVariable xdg("XDG_CACHE_HOME", "/xdg");
    const ScopedVariable asked("ROWJIT_CACHE_DIR", "/asked");
    CHECK(default_cache_directory() == "/asked");
    const ScopedVariable off("ROWJIT_CACHE_DIR", "off");
    CHECK(default_cache_directory().empty());
    const ScopedVariable unset("ROWJIT_CACHE_DIR", nullptr);
    CHECK(default_cache_directory() == "/xdg/rowjit");
    const ScopedVariable relative("XDG_CACHE_HOME", "relative");
    CHECK(default_cache_directory() == "/at-home/.cache/rowjit");
    const CapturedLog log;
    const ScopedVariable homeless("HOME", nullptr);
    CHECK(default_cache_directory().empty());
}
