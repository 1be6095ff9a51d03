// The store as one well-behaved process sees it. What the world may do to it is in store_faults_test.cpp.
#include "cache/store.h"

#include <doctest/doctest.h>

#include "rowjit/error.h"
#include "tests/cache/fixture.h"

using namespace rowjit;

TEST_CASE("a stored artifact comes back as it was, to another store object too") {
    const TemporaryDirectory directory;
    const CacheKey key(example_fields());
    CHECK_FALSE(KernelStore(directory.path()).get(key));
    CHECK(KernelStore(directory.path()).put(key, example_artifact()));
    const std::optional<Artifact> found = KernelStore(directory.path()).get(key);
    REQUIRE(found);
    CHECK(*found == example_artifact());
}

TEST_CASE("a binary with zero bytes and line ends is kept byte for byte") {
    const TemporaryDirectory directory;
    KernelStore store(directory.path());
    const CacheKey key(example_fields());
    Artifact artifact = example_artifact();
    artifact.binary.clear();
    for (int i = 0; i < 70'000; ++i) artifact.binary += static_cast<char>(i * 7);
    store.put(key, artifact);
    CHECK(store.get(key)->binary == artifact.binary);
}

TEST_CASE("a read changes nothing on disk when there is no cache yet") {
    const TemporaryDirectory directory;
    KernelStore store(directory.path() + "/none");
    CHECK_FALSE(store.get(CacheKey(example_fields())));
    CHECK_FALSE(exists(directory.path() + "/none"));
}

TEST_CASE("the first of two stores under one key stays") {
    const TemporaryDirectory directory;
    KernelStore store(directory.path());
    const CacheKey key(example_fields());
    Artifact second = example_artifact();
    second.compile_ms = 99;
    CHECK(store.put(key, example_artifact()));
    CHECK(store.put(key, second));
    CHECK(*store.get(key) == example_artifact());
}

TEST_CASE("directories are made for this user alone, at the documented place") {
    const TemporaryDirectory directory;
    const CacheKey key(example_fields());
    KernelStore(directory.path() + "/a/b").put(key, example_artifact());
    const std::string hex = key.digest().hex();
    CHECK(mode_of(directory.path() + "/a/b") == 0700);
    CHECK(mode_of(directory.path() + "/a/b/v1/obj/" + hex.substr(0, 2)) == 0700);
    CHECK(mode_of(directory.path() + "/a/b/v1/obj/" + hex.substr(0, 2) + "/" + hex + ".rjk") == 0600);
    CHECK(names_in(directory.path() + "/a/b/v1/tmp").empty());
}

TEST_CASE("an empty root keeps nothing and says nothing") {
    KernelStore store("");
    const CapturedLog log;
    CHECK_FALSE(store.put(CacheKey(example_fields()), example_artifact()));
    CHECK_FALSE(store.get(CacheKey(example_fields())));
    CHECK(log.messages().empty());
}

TEST_CASE("a cache removed under a running process is made anew by the next store") {
    const TemporaryDirectory directory;
    const std::string root = directory.path() + "/cache";
    KernelStore store(root);
    const CacheKey key(example_fields());
    store.put(key, example_artifact());
    remove_tree(root);
    CHECK_FALSE(store.get(key));
    CHECK(store.put(key, example_artifact()));
    CHECK(store.get(key));
}

TEST_CASE("list, size and show tell what is stored") {
    const TemporaryDirectory directory;
    KernelStore store(directory.path());
    for (int i = 0; i < 3; ++i) store.put(CacheKey(example_fields(i)), example_artifact());
    CHECK(store.list().size() == 3);
    CHECK(store.size().files == 3);
    CHECK(store.size().bytes == 3 * store.list().front().bytes);
    const CacheKey key(example_fields(1));
    CHECK(store.show(key.digest().hex().substr(0, 12)).key_text == key.text());
    CHECK_THROWS_WITH_AS(store.show(""), doctest::Contains("3 entries"), Error);
    CHECK_THROWS_WITH_AS(store.show("zz"), doctest::Contains("0 entries"), Error);
}

TEST_CASE("clear removes what the store wrote and nothing else") {
    const TemporaryDirectory directory;
    KernelStore store(directory.path());
    const CacheKey key(example_fields());
    store.put(key, example_artifact());
    const std::string shard = directory.path() + "/v1/obj/" + key.digest().hex().substr(0, 2);
    write_file(shard + "/notes.txt", "mine");
    CHECK(store.clear().files == 1);
    CHECK_FALSE(store.get(key));
    CHECK(names_in(shard) == std::vector<std::string>{"notes.txt"});
    CHECK(store.size().foreign == 1);
}

TEST_CASE("a rejected entry is set aside and may be stored again") {
    const TemporaryDirectory directory;
    KernelStore store(directory.path());
    const CapturedLog log;
    const CacheKey key(example_fields());
    store.put(key, example_artifact());
    store.reject(key, "the driver refuses it");
    CHECK_FALSE(store.get(key));
    CHECK(store.quarantined() == 1);
    CHECK(log.count("the driver refuses it") == 1);
    CHECK(store.put(key, example_artifact()));
    CHECK(store.get(key));
}
