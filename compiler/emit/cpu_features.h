// What emitted LLVM IR depends on of the CPU it is for; everything else is code generation's.
#pragma once

#include <cstdint>

namespace rowjit {

struct CpuFeatures {
    bool f16_conversion = false;     // F16C: x86-64-v3 and up
    bool multiply_add = false;       // fused: x86-64-v3 and up
    bool avx2_alone = false;         // with fused multiplications, and nothing of AVX-512: x86-64-v3
    bool scalef = false;             // AVX-512's powers of two and fractions: x86-64-v4
    bool word_permutes = false;      // AVX-512BW's permutation of 16-bit lanes: x86-64-v4
    bool bf16_rounding = false;      // AVX-512-BF16's conversion, for which denormals are zeros: Zen 4, Cooper Lake
    bool divides_slowly = true;      // base/cpu_families.def has this …
    bool underflows_slowly = true;   // … this
    bool fetches_light_rows = true;  // … this
    bool streams_abreast = true;     // … this
    std::int64_t streamed_bytes = std::int64_t{32} << 20;  // … and this
    // Rows of no more than this are fetched while those before them are finished: a quarter of a second-level cache of
    // today's servers, of which as much has those rows, and half what is made of them.
    std::int64_t fetched_bytes = std::int64_t{256} << 10;
};

}  // namespace rowjit
