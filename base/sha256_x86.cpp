#include "base/sha256_x86.h"

#include "base/check.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

namespace rowjit {

namespace {

// FIPS 180-4, section 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr std::uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// One message's state as the instructions want it: (a b e f) and (c d g h), high word first.
struct Lane {
    __m128i abef, cdgh;
    __m128i words[4];  // the ring of the last 16 message words
};

__attribute__((target("sha,sse4.1"))) inline Lane load_state(const std::uint32_t* state) {
    const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state)), 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4)), 0x1b);
    return {_mm_alignr_epi8(badc, efgh, 8), _mm_blend_epi16(efgh, badc, 0xf0), {}};
}

__attribute__((target("sha,sse4.1"))) inline void store_state(const Lane& lane, std::uint32_t* state) {
    const __m128i feba = _mm_shuffle_epi32(lane.abef, 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(lane.cdgh, 0xb1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

// The next four message words: the block's own for the first 16, then each the word 16 back, which the ring still
// holds, plus sigma0 of the one 15 back, the one 7 back, and sigma1 of the one 2 back.
__attribute__((target("sha,sse4.1"))) inline __m128i next_words(const Lane& lane, int group,
                                                                const std::uint8_t* block) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    if (group < 4)
        return _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 16 * group)), big_endian);
    const __m128i back16 = lane.words[group % 4];
    const __m128i back12 = lane.words[(group + 1) % 4];
    const __m128i back8 = lane.words[(group + 2) % 4];
    const __m128i back4 = lane.words[(group + 3) % 4];
    const __m128i back7 = _mm_alignr_epi8(back4, back8, 4);
    return _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(back16, back12), back7), back4);
}

template <int kLanes>
__attribute__((target("sha,sse4.1"))) void compress_lanes(std::uint32_t* const* states,
                                                          const std::uint8_t* const* messages, std::size_t count) {
    Lane lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = load_state(states[i]);
    for (std::size_t block = 0; block < count; ++block) {
        Lane before[kLanes];
        for (int i = 0; i < kLanes; ++i) before[i] = lanes[i];
        // Unrolled, so that the rings are registers and not memory. Four rounds a group, two an instruction.
#pragma GCC unroll 16
        for (int group = 0; group < 16; ++group) {
            const __m128i constants = _mm_load_si128(reinterpret_cast<const __m128i*>(kRoundConstants + 4 * group));
#pragma GCC unroll 2
            for (int i = 0; i < kLanes; ++i) {
                Lane& lane = lanes[i];
                lane.words[group % 4] = next_words(lane, group, messages[i] + 64 * block);
                const __m128i sums = _mm_add_epi32(lane.words[group % 4], constants);
                lane.cdgh = _mm_sha256rnds2_epu32(lane.cdgh, lane.abef, sums);
                lane.abef = _mm_sha256rnds2_epu32(lane.abef, lane.cdgh, _mm_shuffle_epi32(sums, 0x0e));
            }
        }
        for (int i = 0; i < kLanes; ++i) {
            lanes[i].abef = _mm_add_epi32(lanes[i].abef, before[i].abef);
            lanes[i].cdgh = _mm_add_epi32(lanes[i].cdgh, before[i].cdgh);
        }
    }
    for (int i = 0; i < kLanes; ++i) store_state(lanes[i], states[i]);
}

}  // namespace

bool sha256_x86_available() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned kShaBit = 1U << 29;  // leaf 7, EBX
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & kShaBit) != 0 &&
           __builtin_cpu_supports("sse4.1");
}

void sha256_x86_compress(std::uint32_t state[8], const std::uint8_t* blocks, std::size_t count) {
    std::uint32_t* const states[] = {state};
    const std::uint8_t* const messages[] = {blocks};
    compress_lanes<1>(states, messages, count);
}

void sha256_x86_compress_two(std::uint32_t* const states[2], const std::uint8_t* const blocks[2], std::size_t count) {
    compress_lanes<2>(states, blocks, count);
}

}  // namespace rowjit

#else

namespace rowjit {

bool sha256_x86_available() { return false; }

void sha256_x86_compress(std::uint32_t*, const std::uint8_t*, std::size_t) {
    RJ_CHECK(false, "the x86 SHA-256 was chosen on another processor");
}

void sha256_x86_compress_two(std::uint32_t* const*, const std::uint8_t* const*, std::size_t) {
    RJ_CHECK(false, "the x86 SHA-256 was chosen on another processor");
}

}  // namespace rowjit

#endif
