#include "base/philox.h"

#include <doctest/doctest.h>

using namespace rowjit;

// Random123 1.14, tests/kat_vectors: philox4x32 of ten rounds.
TEST_CASE("Philox4x32-10 gives the published words") {
    using Words = std::array<std::uint32_t, 4>;
    CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    constexpr std::uint32_t kOnes = 0xffffffff;
    CHECK(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
          Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    CHECK(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
          Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE(
    "a uniform number is the upper bits of its position's word, the key the seed and the counter's end the offset") {
    for (const int word : {0, 1, 2, 3}) {
        constexpr std::array<std::uint32_t, 4> kZeros = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
        CHECK(philox_uniform(0, 0, word) == static_cast<float>(kZeros[static_cast<std::size_t>(word)] >> 8) * 0x1p-24F);
    }
    constexpr std::int64_t kSeed = 0x299f31d0a4093822;
    constexpr std::int64_t kOffset = 0x0370734413198a2e;
    constexpr auto kPosition = static_cast<std::int64_t>((0x05a308d3243f6a88ULL << 2) + 3);
    const std::array<std::uint32_t, 4> words =
        philox4x32_10({0x243f6a88, 0x05a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
    CHECK(philox_uniform(kSeed, kOffset, kPosition) == static_cast<float>(words[3] >> 8) * 0x1p-24F);
}
