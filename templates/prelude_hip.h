// AMD's half of the prelude: every intrinsic that emitted kernels use, as one small function each. Compiler builtins
// only, so the same source compiles by hipRTC 5.2 and by clang with neither ROCm's headers nor its device library
// (-nogpuinc -nogpulib). What a vendor's half must supply is listed in prelude.h, which follows it in the emitted
// source after prelude_math.h; RJ_WARP_SIZE, 32 or 64 by the target, is defined before.

#pragma clang fp contract(off)

// hipRTC defines these before the source begins; clang alone does not.
#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __device__
#define __device__ __attribute__((device))
#endif
#ifndef __shared__
#define __shared__ __attribute__((shared))
#endif

#define RJ_DEVICE __device__ inline __attribute__((always_inline))
#define RJ_RESTRICT __restrict__
// Before a loop over groups of loads, which are sized to be in flight together. clang unrolls such a loop whole, up to
// its 63 rounds, and then keeps every round's addresses and masks at once: 500 bytes of spills a thread.
#define RJ_ROLLED _Pragma("nounroll")
#define RJ_GROUP(vectors) vectors
#define RJ_NOT_NEGATIVE(value) __builtin_assume((value) >= 0)

// A compute unit has four SIMDs (two in each half of an RDNA workgroup processor), and registers are shared out by the
// waves wanted on each: blocks per compute unit become waves per SIMD, rounded up.
#define RJ_BOUNDS_1(threads) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#define RJ_BOUNDS_2(threads, blocks)                              \
    __attribute__((amdgpu_flat_work_group_size(threads, threads), \
                   amdgpu_waves_per_eu(((threads) * (blocks) + RJ_WARP_SIZE * 4 - 1) / (RJ_WARP_SIZE * 4))))
#define RJ_BOUNDS_OF(threads, blocks, bounds, ...) bounds
#define RJ_KERNEL(...) \
    extern "C" __global__ void RJ_BOUNDS_OF(__VA_ARGS__, RJ_BOUNDS_2(__VA_ARGS__), RJ_BOUNDS_1(__VA_ARGS__), )

// ---- threads and blocks -------------------------------------------------------------------------------------------

RJ_DEVICE int rj_thread() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
RJ_DEVICE int rj_block() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
// The launch packet counts threads, not blocks.
RJ_DEVICE int rj_grid(int block_threads) {
    return static_cast<int>(__builtin_amdgcn_grid_size_x() / static_cast<unsigned>(block_threads));
}
RJ_DEVICE void rj_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

RJ_DEVICE int rj_lane() { return static_cast<int>(__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u))); }

// Within four lanes and within sixteen the exchange is part of another instruction (DPP), within thirty-two it needs no
// address (swizzle), between the halves of a wave of 64 each lane names its source.
template <int kMask>
RJ_DEVICE unsigned rj_shuffle_xor_word(unsigned word) {
    const int from = static_cast<int>(word);
    int result;
    if constexpr (kMask == 1) {
        result = __builtin_amdgcn_update_dpp(0, from, 0xb1, 0xf, 0xf, true);  // quad_perm 1 0 3 2
    } else if constexpr (kMask == 2) {
        result = __builtin_amdgcn_update_dpp(0, from, 0x4e, 0xf, 0xf, true);  // quad_perm 2 3 0 1
    } else if constexpr (kMask == 8) {
        result = __builtin_amdgcn_update_dpp(0, from, 0x128, 0xf, 0xf, true);  // row_ror 8
    } else if constexpr (kMask < 32) {
        result = __builtin_amdgcn_ds_swizzle(from, kMask << 10 | 0x1f);
    } else {
        result = __builtin_amdgcn_ds_bpermute((rj_lane() ^ kMask) * 4, from);
    }
    return static_cast<unsigned>(result);
}
template <int kLanes>
RJ_DEVICE unsigned rj_shuffle_from_word(unsigned word, int lane) {
    const int place = (rj_lane() & -kLanes) + lane;
    return static_cast<unsigned>(__builtin_amdgcn_ds_bpermute(place * 4, static_cast<int>(word)));
}

// A comparison's result of all lanes, 33 being "not equal"; hipRTC 5 has no ballot.
typedef unsigned long long rj_lanes;
RJ_DEVICE rj_lanes rj_ballot(bool condition) { return __builtin_amdgcn_uicmp(condition ? 1u : 0u, 0u, 33); }
RJ_DEVICE int rj_first_of(rj_lanes lanes) { return __builtin_ctzll(lanes); }
RJ_DEVICE bool rj_is_less(unsigned long long a, unsigned long long b) { return a < b; }
RJ_DEVICE int rj_count_of(rj_lanes lanes) { return __builtin_popcountll(lanes); }
RJ_DEVICE void rj_meet_warp() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
}
RJ_DEVICE rj_lanes rj_here() { return rj_ballot(true); }
RJ_DEVICE rj_lanes rj_ballot_of(rj_lanes lanes, bool condition) { return rj_ballot(condition) & lanes; }
RJ_DEVICE void rj_meet_lanes(rj_lanes /*lanes*/) { rj_meet_warp(); }
RJ_DEVICE int rj_equals_before(rj_lanes lanes, int word) {
    int equals = 0;
    for (rj_lanes before = lanes & ((rj_lanes{1} << rj_lane()) - 1); lanes != 0; lanes &= lanes - 1) {
        const int lane = rj_first_of(lanes);
        const bool is_equal = __builtin_amdgcn_ds_bpermute(lane * 4, word) == word;
        equals += is_equal && (before >> lane & 1) != 0 ? 1 : 0;
    }
    return equals;
}

// ---- bits ---------------------------------------------------------------------------------------------------------

RJ_DEVICE unsigned rj_bits(float value) { return __builtin_bit_cast(unsigned, value); }
RJ_DEVICE float rj_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
RJ_DEVICE unsigned long long rj_wide_product(unsigned a, unsigned b) { return static_cast<unsigned long long>(a) * b; }
RJ_DEVICE unsigned rj_join_halves(unsigned lower, unsigned upper) {
    return __builtin_amdgcn_perm(upper, lower, 0x07060100u);
}
RJ_DEVICE unsigned rj_opaque(unsigned word) {
    asm("" : "+v"(word));
    return word;
}

// Its half of 64 bits that all lanes share is in scalar registers by itself.
template <class T>
RJ_DEVICE T* rj_address(T* address) {
    return address;
}
template <class T>
RJ_DEVICE T* rj_address_here(T* address) {
    return address;
}

RJ_DEVICE unsigned rj_known_here(unsigned word) {
    asm volatile("" : "+v"(word));
    return word;
}
RJ_DEVICE unsigned rj_zero() { return rj_known_here(0); }

// ---- memory -------------------------------------------------------------------------------------------------------

extern __shared__ __attribute__((aligned(16))) unsigned char rj_shared_memory[];

template <class T>
RJ_DEVICE T rj_shared_load(int offset_bytes) {
    return *reinterpret_cast<const T*>(rj_shared_memory + offset_bytes);
}
template <class T>
RJ_DEVICE void rj_shared_store(int offset_bytes, const T& value) {
    *reinterpret_cast<T*>(rj_shared_memory + offset_bytes) = value;
}

typedef unsigned rj_words2 __attribute__((ext_vector_type(2)));
typedef unsigned rj_words4 __attribute__((ext_vector_type(4)));

// One access of 1, 2, 4, 8 or 16 bytes, aligned to its size; narrower than a word, it fills the word's low bits.
// Tensors lie in global memory, which the address space says: a flat access would also wait for shared memory.
template <int kBytes>
struct rj_memory;

#define RJ_GLOBAL __attribute__((address_space(1)))

template <class T>
RJ_DEVICE T rj_global_load(const void* from) {
    return *(const RJ_GLOBAL T*)from;
}
template <class T>
RJ_DEVICE void rj_global_store(void* to, T value) {
    *(RJ_GLOBAL T*)to = value;
}

template <class Word>
struct rj_one_word {
    static RJ_DEVICE void load(const void* from, unsigned* words) { words[0] = rj_global_load<Word>(from); }
    static RJ_DEVICE void load_readonly(const void* from, unsigned* words) { load(from, words); }
    static RJ_DEVICE void store(void* to, const unsigned* words) {
        rj_global_store<Word>(to, static_cast<Word>(words[0]));
    }
};
template <>
struct rj_memory<1> : rj_one_word<unsigned char> {};
template <>
struct rj_memory<2> : rj_one_word<unsigned short> {};
template <>
struct rj_memory<4> : rj_one_word<unsigned> {};

template <>
struct rj_memory<8> {
    static RJ_DEVICE void load(const void* from, unsigned* words) {
        const rj_words2 loaded = rj_global_load<rj_words2>(from);
        words[0] = loaded.x, words[1] = loaded.y;
    }
    static RJ_DEVICE void load_readonly(const void* from, unsigned* words) { load(from, words); }
    static RJ_DEVICE void store(void* to, const unsigned* words) {
        rj_global_store<rj_words2>(to, rj_words2{words[0], words[1]});
    }
};

template <>
struct rj_memory<16> {
    static RJ_DEVICE void load(const void* from, unsigned* words) {
        const rj_words4 loaded = rj_global_load<rj_words4>(from);
        words[0] = loaded.x, words[1] = loaded.y, words[2] = loaded.z, words[3] = loaded.w;
    }
    static RJ_DEVICE void load_readonly(const void* from, unsigned* words) { load(from, words); }
    static RJ_DEVICE void store(void* to, const unsigned* words) {
        rj_global_store<rj_words4>(to, rj_words4{words[0], words[1], words[2], words[3]});
    }
};

// ---- conversions --------------------------------------------------------------------------------------------------

RJ_DEVICE unsigned rj_f16_bits(float value) { return __builtin_bit_cast(unsigned short, static_cast<_Float16>(value)); }
RJ_DEVICE unsigned rj_pack_f16(float low, float high) { return rj_f16_bits(low) | rj_f16_bits(high) << 16; }
RJ_DEVICE float rj_f16_value(unsigned short bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }

// Toward zero and saturating; NaN gives 0. C leaves conversions of what does not fit undefined, so they are not made.
RJ_DEVICE int rj_to_i32(float value) {
    if (value >= 2147483648.0f) return 2147483647;
    return value > -2147483648.0f ? static_cast<int>(value) : value == value ? -2147483647 - 1 : 0;
}
RJ_DEVICE long long rj_to_i64(float value) {
    if (value >= 9223372036854775808.0f) return 9223372036854775807ll;
    return value > -9223372036854775808.0f ? static_cast<long long>(value)
           : value == value                ? -9223372036854775807ll - 1
                                           : 0;
}

// ---- arithmetic ---------------------------------------------------------------------------------------------------

RJ_DEVICE float rj_max(float a, float b) { return a > b || a != a ? a : b; }
RJ_DEVICE float rj_min(float a, float b) { return a < b || a != a ? a : b; }
typedef _Float16 rj_halves __attribute__((ext_vector_type(2)));
#define RJ_PAIR(function, operation)                                                                            \
    RJ_DEVICE unsigned function(unsigned a, unsigned b) {                                                       \
        return __builtin_bit_cast(unsigned,                                                                     \
                                  __builtin_bit_cast(rj_halves, a) operation __builtin_bit_cast(rj_halves, b)); \
    }
RJ_PAIR(rj_mul_f16x2, *)
RJ_PAIR(rj_add_f16x2, +)
RJ_PAIR(rj_sub_f16x2, -)
#undef RJ_PAIR

RJ_DEVICE float rj_abs(float a) { return __builtin_fabsf(a); }
RJ_DEVICE float rj_floor(float a) { return __builtin_floorf(a); }
RJ_DEVICE float rj_round(float a) { return __builtin_rintf(a); }
RJ_DEVICE int rj_nearest(float value) { return rj_to_i32(rj_round(value)); }
template <class T>
RJ_DEVICE const T* rj_chosen(bool condition, const T* a, const T* b) {
    return condition ? a : b;
}
RJ_DEVICE float rj_either(bool condition, float a, float b) { return condition ? a : b; }
RJ_DEVICE float rj_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
RJ_DEVICE float rj_div(float a, float b) { return a / b; }

// Within one unit in the last place; takes denormals for zero.
RJ_DEVICE float rj_sqrt_fast(float a) { return __builtin_amdgcn_sqrtf(a); }

RJ_DEVICE float rj_rsqrt_fast(float a) { return __builtin_amdgcn_rsqf(a); }
RJ_DEVICE float rj_reciprocal_fast(float a) { return __builtin_amdgcn_rcpf(a); }

#if __has_builtin(__builtin_amdgcn_exp2f)
RJ_DEVICE float rj_exp2_fast(float a) { return __builtin_amdgcn_exp2f(a); }
#else  // before clang 17, where this is the instruction itself
RJ_DEVICE float rj_exp2_fast(float a) { return __builtin_exp2f(a); }
#endif
constexpr float rj_exp2_bias = 0.0f;  // not measured
#if __has_builtin(__builtin_amdgcn_logf)
RJ_DEVICE float rj_log2_fast(float a) { return __builtin_amdgcn_logf(a); }
#else
RJ_DEVICE float rj_log2_fast(float a) { return __builtin_log2f(a); }
#endif
