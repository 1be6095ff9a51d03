#include "cache/key.h"

#include <doctest/doctest.h>

#include "base/check.h"
#include "tests/cache/fixture.h"

using namespace rowjit;

TEST_CASE("equal fields give equal keys, wherever and whenever they are made") {
    CHECK(CacheKey(example_fields()).text() == CacheKey(example_fields()).text());
    CHECK(CacheKey(example_fields()).digest() == sha256(CacheKey(example_fields()).text()));
}

TEST_CASE("the key's encoding does not drift") {
    // A changed encoding makes every cache in the world cold: it must come with a new kCacheSchema, never unnoticed.
    CHECK(kCacheSchema == 2);
    CHECK(CacheKey(example_fields()).text() ==
          "schema 1:2\ncodegen 1:7\narchitecture 6:sm_90a\ncpu_features 0:\ntoolchain 5:nvrtc\n"
          "toolchain_version 4:13.0\noption 2:-a\noption 2:-b\nfunction 3:fwd\nfunction 3:bwd\nsource_sha256 64:" +
              sha256(example_fields().source.text).hex() + "\n");
}

TEST_CASE("every field that can change the binary changes the key") {
    using Change = void (*)(KeyFields&);
    const Change changes[] = {
        [](KeyFields& f) { f.source.text += ' '; },
        [](KeyFields& f) { f.source.functions = {"bwd", "fwd"}; },
        [](KeyFields& f) { f.source.functions = {"fwd"}; },
        [](KeyFields& f) { f.options = {"-b", "-a"}; },
        [](KeyFields& f) { f.options = {"-a"}; },
        [](KeyFields& f) { f.options = {"-a-b"}; },
        [](KeyFields& f) { f.options = {"-a\noption 2:-b"}; },
        [](KeyFields& f) { f.architecture = "sm_90"; },
        [](KeyFields& f) { f.cpu_features = "+avx2"; },
        [](KeyFields& f) { f.toolchain = "clang"; },
        [](KeyFields& f) { f.toolchain_version = "13.1"; },
        [](KeyFields& f) { f.codegen_version = 8; },
    };
    const CacheKey before(example_fields());
    for (const Change change : changes) {
        KeyFields fields = example_fields();
        change(fields);
        CHECK(CacheKey(fields).digest() != before.digest());
        CHECK(CacheKey(fields).text() != before.text());
    }
}

TEST_CASE("the native CPU without its features is no key") {
    KeyFields fields = example_fields();
    fields.architecture = "native";
    CHECK_THROWS_AS(CacheKey{fields}, InternalError);
    fields.cpu_features = "+avx2";
    CHECK_NOTHROW(CacheKey{fields});
}
