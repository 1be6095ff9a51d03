#include "base/files.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cache/fixture.h"

using namespace rowjit;

namespace {

Directory opened(const std::string& path) {
    IoResult<Directory> directory = Directory::create(path);
    REQUIRE(directory);
    return std::move(*directory);
}

int one_byte_at_a_time(IoCall& call) {
    if (call.bytes > 1) call.bytes = 1;
    return 0;
}

}  // namespace

TEST_CASE("the first published file stays, unless replacing is asked for") {
    const TemporaryDirectory root;
    const Directory directory = opened(root.path());
    CHECK(*directory.publish("a", "one", directory, Publish::kKeepFirst));
    CHECK_FALSE(*directory.publish("a", "two", directory, Publish::kKeepFirst));
    CHECK(directory.read("a", 100)->bytes == "one");
    CHECK(*directory.publish("a", "three", directory, Publish::kReplace));
    CHECK(directory.read("a", 100)->bytes == "three");
    CHECK(names_in(root.path()) == std::vector<std::string>{"a"});
}

TEST_CASE("reads and writes that fall short are carried on") {
    const TemporaryDirectory root;
    const Directory directory = opened(root.path());
    const ScopedIoHook hook(one_byte_at_a_time);
    CHECK(directory.publish("a", "thirteen bytes", directory, Publish::kKeepFirst));
    CHECK(directory.read("a", 100)->bytes == "thirteen bytes");
}

TEST_CASE("a file larger than the reader allows is refused with its size") {
    const TemporaryDirectory root;
    const Directory directory = opened(root.path());
    write_file(root.path() + "/a", "12345");
    CHECK(directory.read("a", 4).failure().message().find("5 bytes") != std::string::npos);
}

TEST_CASE("a missing file is absent and says which it was") {
    const TemporaryDirectory root;
    const IoResult<FileContents> contents = opened(root.path()).read("none", 10);
    REQUIRE_FALSE(contents);
    CHECK(contents.failure().absent());
    CHECK(contents.failure().message() == "cannot open " + root.path() + "/none: No such file or directory");
}

TEST_CASE("a trailing slash does not make a link a directory") {
    const TemporaryDirectory root;
    opened(root.path() + "/real");
    REQUIRE(::symlink((root.path() + "/real").c_str(), (root.path() + "/link").c_str()) == 0);
    CHECK_FALSE(Directory::open(root.path() + "/link/"));
    CHECK(Directory::open(root.path() + "/real/"));
}

TEST_CASE("a file system without hard links still publishes") {
    const TemporaryDirectory root;
    const Directory directory = opened(root.path());
    const ScopedIoHook hook([](IoCall& call) { return std::string_view(call.operation) == "link" ? EOPNOTSUPP : 0; });
    CHECK(*directory.publish("a", "one", directory, Publish::kKeepFirst));
    CHECK(directory.read("a", 100)->bytes == "one");
    CHECK(names_in(root.path()) == std::vector<std::string>{"a"});
}

TEST_CASE("no descriptor of a directory or file stays open over exec") {
    const TemporaryDirectory root;
    const Directory directory = opened(root.path());
    const IoResult<FileDescriptor> shared = directory.open_shared("lock");
    REQUIRE(shared);
    int seen = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        if (!std::filesystem::read_symlink(entry.path(), gone).string().starts_with(root.path())) continue;
        ++seen;
        CHECK((::fcntl(std::stoi(entry.path().filename()), F_GETFD) & FD_CLOEXEC) != 0);
    }
    CHECK(seen == 2);
}

TEST_CASE("touch and now follow the file system's clock") {
    const TemporaryDirectory root;
    const Directory directory = opened(root.path());
    write_file(root.path() + "/a", "x");
    set_age(root.path() + "/a", 1000);
    const std::int64_t now_s = *directory.now_s();
    CHECK(directory.read("a", 10)->modified_s <= now_s - 999);
    CHECK(directory.touch("a"));
    CHECK(directory.read("a", 10)->modified_s >= now_s);
}
