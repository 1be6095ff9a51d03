#include "cache/entry.h"

#include <doctest/doctest.h>

#include "tests/cache/fixture.h"

using namespace rowjit;

namespace {

std::string example_entry() {
    const CacheKey key(example_fields());
    return encode_entry({key.digest(), key.text(), example_artifact()});
}

// As a bad writer would leave it: wrong inside, with a checksum that is right.
std::string resealed(std::string bytes) {
    bytes.resize(bytes.size() - sizeof(Digest::bytes));
    const Digest digest = sha256_of_halves(bytes);
    bytes.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
    return bytes;
}

}  // namespace

TEST_CASE("an entry decodes to what was encoded") {
    const Offer<Entry> entry = decode_entry(example_entry());
    REQUIRE(entry);
    CHECK(entry->digest == CacheKey(example_fields()).digest());
    CHECK(entry->key_text == CacheKey(example_fields()).text());
    CHECK(entry->artifact == example_artifact());
}

TEST_CASE("an entry cut short at any length is declined") {
    const std::string whole = example_entry();
    int accepted = 0;
    for (std::size_t size = 0; size < whole.size(); ++size) accepted += decode_entry(whole.substr(0, size)) ? 1 : 0;
    CHECK(accepted == 0);
}

TEST_CASE("an entry with any one bit flipped is declined") {
    std::string bytes = example_entry();
    int accepted = 0;
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
        accepted += decode_entry(bytes) ? 1 : 0;
        bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    }
    CHECK(accepted == 0);
}

TEST_CASE("bytes after the end are declined") {
    CHECK_FALSE(decode_entry(example_entry() + "x"));
    CHECK_FALSE(decode_entry(example_entry() + example_entry()));
}

TEST_CASE("a wrong entry under a right checksum never decodes to another key") {
    const std::string whole = example_entry();
    const Digest digest = CacheKey(example_fields()).digest();
    int wrong = 0, declined = 0;
    for (std::size_t byte = 0; byte < whole.size() - sizeof(Digest::bytes); ++byte) {
        for (const int flip : {0x01, 0x80, 0xff}) {
            std::string bytes = whole;
            bytes[byte] = static_cast<char>(bytes[byte] ^ flip);
            const Offer<Entry> entry = decode_entry(resealed(std::move(bytes)));
            wrong += entry && entry->digest != digest ? 1 : 0;
            declined += entry ? 0 : 1;
        }
    }
    CHECK(wrong == 0);
    CHECK(declined > 300);
}

TEST_CASE("an entry of another schema says so") {
    std::string bytes = example_entry();
    bytes[8] = 1;
    CHECK(decode_entry(resealed(bytes)).reason() == "its schema is 1, not 2");
}

TEST_CASE("a toolchain name that is not UTF-8 does not keep a kernel from being stored") {
    Artifact artifact = example_artifact();
    artifact.toolchain = "nvrtc \xff";
    const CacheKey key(example_fields());
    const Offer<Entry> entry = decode_entry(encode_entry({key.digest(), key.text(), artifact}));
    REQUIRE(entry);
    CHECK(entry->artifact.binary == artifact.binary);
}
