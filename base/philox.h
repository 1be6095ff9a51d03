// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the reference of
// the primitive `uniform`, which the GPU prelude and the LLVM emitter each spell again for their lanes. A counter-based
// generator has no state: whoever knows key and counter computes the same words, in any order and any number of times.
#pragma once

#include <array>
#include <cstdint>

namespace rowjit {

struct Philox {
    static constexpr int kRounds = 10;
    static constexpr std::array<std::uint32_t, 2> kMultipliers = {0xD2511F53U, 0xCD9E8D57U};
    static constexpr std::array<std::uint32_t, 2> kKeySteps = {0x9E3779B9U, 0xBB67AE85U};
};

constexpr std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                                     std::array<std::uint32_t, 2> key) {
    for (int round = 0; round < Philox::kRounds; ++round) {
        const std::uint64_t first = std::uint64_t{Philox::kMultipliers[0]} * counter[0];
        const std::uint64_t second = std::uint64_t{Philox::kMultipliers[1]} * counter[2];
        counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(second),
                   static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(first)};
        key = {key[0] + Philox::kKeySteps[0], key[1] + Philox::kKeySteps[1]};
    }
    return counter;
}

// A multiple of 2^-24 in [0, 1): the upper 24 bits of word `position` mod 4 of the block whose key is the seed and
// whose counter is {⌊position / 4⌋, offset}, both 64-bit, lower half first. Four neighbours share a block.
constexpr float philox_uniform(std::int64_t seed, std::int64_t offset, std::int64_t position) {
    const auto low = [](std::uint64_t bits) { return static_cast<std::uint32_t>(bits); };
    const auto high = [](std::uint64_t bits) { return static_cast<std::uint32_t>(bits >> 32); };
    const auto key = static_cast<std::uint64_t>(seed);
    const auto stream = static_cast<std::uint64_t>(offset);
    const std::uint64_t block = static_cast<std::uint64_t>(position) >> 2;
    const std::array<std::uint32_t, 4> words =
        philox4x32_10({low(block), high(block), low(stream), high(stream)}, {low(key), high(key)});
    return static_cast<float>(words[static_cast<std::size_t>(position & 3)] >> 8) * 0x1p-24F;
}

}  // namespace rowjit
