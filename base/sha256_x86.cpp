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

}  // namespace

bool sha256_x86_available() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned kShaBit = 1U << 29;  // leaf 7, EBX
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & kShaBit) != 0 &&
           __builtin_cpu_supports("sse4.1");
}

// The instructions want the eight words as (a b e f) and (c d g h), high word first, and do two rounds at a time on the
// sum of message words and round constants. Four message words live in a register; `words` is the ring of the last 16.
__attribute__((target("sha,sse4.1"))) void sha256_x86_compress(std::uint32_t state[8], const std::uint8_t* blocks,
                                                               std::size_t count) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state)), 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(badc, efgh, 8);
    __m128i cdgh = _mm_blend_epi16(efgh, badc, 0xf0);

    for (; count > 0; --count, blocks += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i words[4];
#pragma GCC unroll 16
        for (int group = 0; group < 16; ++group) {
            __m128i& now = words[group % 4];
            if (group < 4) {
                const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks + 16 * group));
                now = _mm_shuffle_epi8(raw, big_endian);
            } else {
                // `now` still holds the words 16 back: add sigma0 of those 15 back, those 7 back, and sigma1 of 2 back.
                const __m128i& back12 = words[(group + 1) % 4];
                const __m128i& back8 = words[(group + 2) % 4];
                const __m128i& back4 = words[(group + 3) % 4];
                const __m128i back7 = _mm_alignr_epi8(back4, back8, 4);
                now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, back12), back7), back4);
            }
            const __m128i constants = _mm_load_si128(reinterpret_cast<const __m128i*>(kRoundConstants + 4 * group));
            const __m128i sums = _mm_add_epi32(now, constants);
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sums);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sums, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }

    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

}  // namespace rowjit

#else

namespace rowjit {

bool sha256_x86_available() { return false; }

void sha256_x86_compress(std::uint32_t*, const std::uint8_t*, std::size_t) {
    RJ_CHECK(false, "the x86 SHA-256 was chosen on another processor");
}

}  // namespace rowjit

#endif
