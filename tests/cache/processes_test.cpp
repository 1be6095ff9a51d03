// Several processes on one cache, and what is left when one is killed.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <thread>

#include "cache/kernel_cache.h"
#include "tests/cache/fixture.h"

using namespace rowjit;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A child that runs `work` and exits with its result; killed after 60 s, so that a hang is a failure.
template <class Work>
pid_t child(Work work) {
    const pid_t process = ::fork();
    if (process == 0) {
        ::alarm(60);
        ::_exit(work());
    }
    REQUIRE(process > 0);
    return process;
}

// The child's exit code; minus the signal that ended it.
int outcome(pid_t process) {
    int status = 0;
    while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Notes an event in a file that processes share.
void note(const std::string& path) {
    const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
    (void)!::write(file.number(), "x", 1);
}

bool wait_for(const std::string& path) {
    for (const auto end = Clock::now() + std::chrono::seconds(20); Clock::now() < end;) {
        if (exists(path)) return true;
        std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
}

std::shared_ptr<KernelStore> store_at(const TemporaryDirectory& directory) {
    return std::make_shared<KernelStore>(directory.path() + "/cache");
}

// A child that has begun to compile key 0 and will not end by itself.
pid_t endless_compiler(const TemporaryDirectory& directory) {
    const std::string begun = directory.path() + "/begun";
    const pid_t compiler = child([&] {
        KernelCache(store_at(directory)).get_or_compile(CacheKey(example_fields()), [&]() -> Artifact {
            note(begun);
            for (;;) ::pause();
        });
        return 1;
    });
    REQUIRE(wait_for(begun));
    return compiler;
}

int fatal_call = 0, calls = 0;

// The process dies before its fatal_call-th system call; writes are torn in two so that one can be between the halves.
int die_at_fatal_call(IoCall& call) {
    if (calls++ == fatal_call) ::kill(::getpid(), SIGKILL);
    if (call.bytes > 300) call.bytes = 300;
    return 0;
}

std::string content(int variant) { return std::string(2000 + 100 * variant, static_cast<char>('a' + variant)); }

// Stores, reads, rejects and collects the same few keys at random. 1 when anything but the right bytes is ever found.
int hammer(const TemporaryDirectory& directory, unsigned seed) {
    set_log_level(LogLevel::kOff);
    StoreLimits limits;
    limits.max_files = 4;
    limits.young = limits.temporary_age = std::chrono::seconds(0);
    KernelStore store(directory.path() + "/cache", limits);
    for (int step = 0; step < 400; ++step) {
        seed = seed * 1103515245 + 12345;
        const int variant = static_cast<int>(seed >> 16) % 8;
        const CacheKey key(example_fields(variant));
        const std::optional<Artifact> found = store.get(key);
        if (found && found->binary != content(variant)) return 1;
        if (!found) store.put(key, example_artifact(content(variant)));
        if (step % 50 == 49) store.reject(key, "hammered");
        if (step % 100 == 99) store.collect();
    }
    return 0;
}

}  // namespace

TEST_CASE("a process killed before any system call of a store leaves nothing torn, and its temporaries are swept") {
    const CacheKey key(example_fields());
    const Artifact artifact = example_artifact(std::string(1000, 'k'));
    bool survived = false;
    int left_behind = 0;
    for (fatal_call = 0; !survived; ++fatal_call) {
        const TemporaryDirectory directory;
        const int result = outcome(child([&] {
            calls = 0;
            set_io_hook(die_at_fatal_call);
            return store_at(directory)->put(key, artifact) ? 0 : 1;
        }));
        survived = result == 0;
        CHECK((survived || result == -SIGKILL));

        StoreLimits limits;
        limits.temporary_age = std::chrono::seconds(0);
        KernelStore next(directory.path() + "/cache", limits);
        const std::optional<Artifact> found = next.get(key);
        CHECK((!found || *found == artifact));
        left_behind += static_cast<int>(next.size().temporaries);
        CHECK(next.put(key, artifact));
        CHECK(*next.get(key) == artifact);
        CHECK(next.quarantined() == 0);
        CHECK(next.size().temporaries == 0);
        REQUIRE(fatal_call < 100);
    }
    CHECK(fatal_call > 15);
    CHECK(left_behind > 3);
}

TEST_CASE("64 processes that miss one key compile it once") {
    const TemporaryDirectory directory;
    std::vector<pid_t> children;
    for (int i = 0; i < 64; ++i)
        children.push_back(child([&] {
            if (!wait_for(directory.path() + "/start")) return 2;
            KernelCache cache(store_at(directory));
            const auto artifact = cache.get_or_compile(CacheKey(example_fields()), [&] {
                note(directory.path() + "/compilations");
                std::this_thread::sleep_for(milliseconds(50));
                return example_artifact();
            });
            return *artifact == example_artifact() ? 0 : 1;
        }));
    note(directory.path() + "/start");
    for (const pid_t process : children) CHECK(outcome(process) == 0);
    CHECK(read_file(directory.path() + "/compilations") == "x");
}

TEST_CASE("processes that miss different keys do not wait for each other") {
    const TemporaryDirectory directory;
    const pid_t compiler = endless_compiler(directory);
    KernelCache cache(store_at(directory));
    const auto begin = Clock::now();
    cache.get_or_compile(CacheKey(example_fields(1)), [] { return example_artifact(); });
    CHECK(Clock::now() - begin < std::chrono::seconds(5));
    ::kill(compiler, SIGKILL);
    CHECK(outcome(compiler) == -SIGKILL);
}

TEST_CASE("when the compiling process is killed, one that waits goes on within a second") {
    const TemporaryDirectory directory;
    const pid_t compiler = endless_compiler(directory);
    const pid_t waiter = child([&] {
        KernelCache cache(store_at(directory));
        const auto artifact = cache.get_or_compile(CacheKey(example_fields()), [] { return example_artifact(); });
        return *artifact == example_artifact() ? 0 : 1;
    });
    std::this_thread::sleep_for(milliseconds(100));
    CHECK(::waitpid(waiter, nullptr, WNOHANG) == 0);  // it waits
    const auto killed = Clock::now();
    ::kill(compiler, SIGKILL);
    CHECK(outcome(waiter) == 0);
    CHECK(Clock::now() - killed < std::chrono::seconds(1));
    CHECK(outcome(compiler) == -SIGKILL);
}

TEST_CASE("when the compiling process is stopped, one that waits compiles for itself after the bound") {
    const TemporaryDirectory directory;
    const pid_t compiler = endless_compiler(directory);
    ::kill(compiler, SIGSTOP);
    KernelCache cache(store_at(directory), {}, milliseconds(100));
    const auto begin = Clock::now();
    const auto artifact = cache.get_or_compile(CacheKey(example_fields()), [] { return example_artifact(); });
    CHECK(*artifact == example_artifact());
    CHECK(Clock::now() - begin >= milliseconds(100));
    CHECK(Clock::now() - begin < std::chrono::seconds(5));
    ::kill(compiler, SIGKILL);
    CHECK(outcome(compiler) == -SIGKILL);
}

TEST_CASE("a child forked while another thread compiles does the work itself") {
    const TemporaryDirectory directory;
    KernelCache cache(store_at(directory), {}, milliseconds(100));
    const CacheKey key(example_fields());
    std::latch compiling(1), forked(1);
    std::jthread compiler([&] {
        cache.get_or_compile(key, [&] {
            compiling.count_down();
            forked.wait();
            return example_artifact("parent's");
        });
    });
    compiling.wait();
    const int result = outcome(child([&] {
        const auto artifact = cache.get_or_compile(key, [] { return example_artifact("child's"); });
        return artifact->binary == "child's" ? 0 : 1;
    }));
    forked.count_down();
    CHECK(result == 0);
}

TEST_CASE("a child forked while threads use the cache and the log finds no lock held") {
    const TemporaryDirectory directory;
    KernelCache cache(store_at(directory));
    const CacheKey key(example_fields());
    cache.get_or_compile(key, [] { return example_artifact(); });
    first_time("busy");
    std::atomic<bool> stop{false};
    std::jthread busy([&] {
        while (!stop) {
            cache.find(key);
            first_time("busy");
        }
    });
    int failures = 0;
    for (int i = 0; i < 50; ++i)
        failures +=
            outcome(child([&] { return cache.find(key) != nullptr && !first_time("busy") ? 0 : 1; })) == 0 ? 0 : 1;
    stop = true;
    CHECK(failures == 0);
}

TEST_CASE("8 processes that store, read, reject and evict the same keys never see a wrong byte") {
    const TemporaryDirectory directory;
    std::vector<pid_t> children;
    for (unsigned i = 0; i < 8; ++i) children.push_back(child([&directory, i] { return hammer(directory, i); }));
    for (const pid_t process : children) CHECK(outcome(process) == 0);
    CHECK(KernelStore(directory.path() + "/cache").verify().bad.empty());
}
