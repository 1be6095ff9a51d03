#include "base/digest.h"

#include <doctest/doctest.h>
#include <sys/types.h>

// libmd's header relies on sys/types.h.
#include <sha2.h>

#include "base/sha256_x86.h"

using namespace rowjit;

namespace {

std::string counting_bytes(std::size_t size) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 131 + (i >> 8));
    return bytes;
}

Digest libmd_sha256(const std::string& bytes) {
    SHA2_CTX context;
    SHA256Init(&context);
    SHA256Update(&context, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    Digest digest;
    SHA256Final(digest.bytes.data(), &context);
    return digest;
}

}  // namespace

TEST_CASE("SHA-256 gives the published digests") {
    CHECK(sha256("").hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(sha256("abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("SHA-256 agrees with libmd at every length around the block borders") {
    for (std::size_t size = 0; size <= 260; ++size)
        CHECK(sha256(counting_bytes(size)) == libmd_sha256(counting_bytes(size)));
    CHECK(sha256(counting_bytes(100'003)) == libmd_sha256(counting_bytes(100'003)));
}

TEST_CASE("hashing in pieces gives the digest of the whole") {
    const std::string bytes = counting_bytes(300);
    for (std::size_t piece = 1; piece <= 130; ++piece) {
        Sha256 hash;
        for (std::size_t at = 0; at < bytes.size(); at += piece) hash.update(std::string_view(bytes).substr(at, piece));
        CHECK(hash.finish() == sha256(bytes));
    }
}

TEST_CASE("the digest of halves is the digest of their digests") {
    for (const std::size_t size : {0, 1, 63, 64, 127, 128, 129, 200, 255, 256, 16'384, 16'400}) {
        const std::string bytes = counting_bytes(size);
        const std::size_t half = size / 64 / 2 * 64;
        std::string digests;
        for (const Digest& digest : {libmd_sha256(bytes.substr(0, half)), libmd_sha256(bytes.substr(half))})
            digests.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
        CHECK(sha256_of_halves(bytes) == libmd_sha256(digests));
    }
}

TEST_CASE("the processor's SHA instructions agree with libmd's compression function") {
    if (!sha256_x86_available()) return;
    const std::string blocks = counting_bytes(64 * 5);
    const auto* data = reinterpret_cast<const std::uint8_t*>(blocks.data());
    std::uint32_t ours[8] = {1, 2, 3, 4, 5, 6, 7, 8}, theirs[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    sha256_x86_compress(ours, data, 5);
    for (int block = 0; block < 5; ++block) SHA256Transform(theirs, data + 64 * block);
    for (int word = 0; word < 8; ++word) CHECK(ours[word] == theirs[word]);
}

TEST_CASE("a digest survives its hexadecimal form, and nothing else parses") {
    const Digest digest = sha256("abc");
    CHECK(parse_digest(digest.hex()) == digest);
    CHECK_FALSE(parse_digest(digest.hex().substr(1)));
    CHECK_FALSE(parse_digest("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD"));
    CHECK_FALSE(parse_digest(std::string(64, 'g')));
}

TEST_CASE("moving bytes between neighbouring fields changes the digest") {
    const Digest split = FieldHasher().add("a", "x").add("b", "yz").finish();
    CHECK(split != FieldHasher().add("a", "xy").add("b", "z").finish());
    CHECK(split != FieldHasher().add("a", "x\nb 2:yz").finish());
    CHECK(split == FieldHasher().add("a", "x").add("b", "yz").finish());
}

TEST_CASE("the field hasher hashes the fields' text") {
    CHECK(field_text("arch", "sm_90a") == "arch 6:sm_90a\n");
    CHECK(FieldHasher().add("arch", "sm_90a").add("n", 7).finish() ==
          sha256(field_text("arch", "sm_90a") + field_text("n", "7")));
}
