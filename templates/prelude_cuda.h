// NVIDIA's half of the prelude: every intrinsic that emitted kernels use, as one small function each. It needs no CUDA
// header, so NVRTC compiles a kernel in well under 100 ms. What a vendor's half must supply is listed in prelude.h,
// which follows it and prelude_trig.h in the emitted source; RJ_WARP_SIZE is defined before.

#define RJ_DEVICE __device__ __forceinline__
#define RJ_RESTRICT __restrict__

// NVRTC unrolls a loop over groups of loads a few times, which keeps more in flight, and its assembler spills a value
// or two of a row where that fits one more block on a multiprocessor; and what one loop computed from a kept row it
// carries to the next in f32, which saves instructions (layer norm of 4096 columns: 92 % of copy instead of 88) while
// there are registers. A kernel that spills is compiled again with RJ_AVOID_SPILLS (compiler/toolchain/nvrtc.cpp): its
// loops stay rolled and load half as many vectors of a tensor at a time, or with RJ_ONE_VECTOR one, no more blocks
// share a multiprocessor than the schedule wants (with RJ_ONE_BLOCK, not even those), and kept rows are computed from
// again (16384 columns: 96 % instead of 92).
#ifdef RJ_AVOID_SPILLS
#define RJ_ROLLED _Pragma("unroll 1")
#ifdef RJ_ONE_VECTOR
#define RJ_GROUP(vectors) 1
#else
#define RJ_GROUP(vectors) rj_half_group(vectors)
#endif
#ifdef RJ_ONE_BLOCK
#define RJ_BOUNDS(threads, ...) __launch_bounds__(threads, 1)
#else
#define RJ_BOUNDS(threads, blocks, ...) __launch_bounds__(threads, blocks)
#endif
#define RJ_KERNEL(...) extern "C" __global__ void RJ_BOUNDS(__VA_ARGS__, 1)
#else
#define RJ_ROLLED
#define RJ_GROUP(vectors) vectors
#define RJ_KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#endif

// ---- threads and blocks -------------------------------------------------------------------------------------------

// Divided and taken the remainder of in one instruction, where the compiler would not know that it is none below zero.
#define RJ_NOT_NEGATIVE(value) __builtin_assume((value) >= 0)

RJ_DEVICE int rj_thread() { return threadIdx.x; }
RJ_DEVICE int rj_block() { return blockIdx.x; }
RJ_DEVICE int rj_grid(int /*block_threads*/) { return gridDim.x; }
RJ_DEVICE void rj_barrier() { __syncthreads(); }

// Every lane of the warp takes part, so the full mask is right whatever a lane will do with the result.
template <int kMask>
RJ_DEVICE unsigned rj_shuffle_xor_word(unsigned word) {
    return __shfl_xor_sync(0xffffffffu, word, kMask);
}
template <int kLanes>
RJ_DEVICE unsigned rj_shuffle_from_word(unsigned word, int lane) {
    return __shfl_sync(0xffffffffu, word, lane, kLanes);
}

typedef unsigned rj_lanes;
RJ_DEVICE rj_lanes rj_ballot(bool condition) { return __ballot_sync(0xffffffffu, condition); }
RJ_DEVICE int rj_first_of(rj_lanes lanes) { return __ffs(static_cast<int>(lanes)) - 1; }
RJ_DEVICE int rj_count_of(rj_lanes lanes) { return __popc(lanes); }
// Of a and b chosen by one comparison NVVM makes a maximum and a minimum, each with its own.
RJ_DEVICE bool rj_is_less(unsigned long long a, unsigned long long b) {
    unsigned less;
    asm("{ .reg .pred less; setp.lt.u64 less, %1, %2; selp.u32 %0, 1, 0, less; }" : "=r"(less) : "l"(a), "l"(b));
    return less != 0;
}
RJ_DEVICE void rj_meet_warp() { __syncwarp(); }
RJ_DEVICE rj_lanes rj_here() { return __activemask(); }
RJ_DEVICE rj_lanes rj_ballot_of(rj_lanes lanes, bool condition) { return __ballot_sync(lanes, condition); }
RJ_DEVICE void rj_meet_lanes(rj_lanes lanes) { __syncwarp(lanes); }
RJ_DEVICE int rj_equals_before(rj_lanes lanes, int word) {
    return __popc(__match_any_sync(lanes, word) & ((1u << (threadIdx.x & 31)) - 1));
}

// ---- bits ---------------------------------------------------------------------------------------------------------

RJ_DEVICE unsigned rj_bits(float value) { return __float_as_uint(value); }
RJ_DEVICE float rj_float(unsigned bits) { return __uint_as_float(bits); }
// Of a constant widened to 64 bits and a word NVRTC makes a product of 64 bits by 64, which ptxas takes for an addition
// of zero more: 72 of a dropout's 458 instructions for 16 columns.
RJ_DEVICE unsigned long long rj_wide_product(unsigned a, unsigned b) {
    unsigned long long product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
}
// In an instruction that the compiler does not see through: of masks it makes max(0, x) of an upper half, a float with
// zeros below it, that is selected against 0, and the bits of that one's NaN are in the lower half too.
RJ_DEVICE unsigned rj_join_halves(unsigned lower, unsigned upper) {
    unsigned word;
    asm("prmt.b32 %0, %1, %2, 0x7610;" : "=r"(word) : "r"(lower), "r"(upper));
    return word;
}

RJ_DEVICE unsigned rj_opaque(unsigned word) {
#ifdef RJ_AVOID_SPILLS
    asm("" : "+r"(word));
#endif
    return word;
}

// The address of a row that is only read, which stays one: NVRTC puts it together again of the tensor's, the row and
// the column for each load of a loop, eight instructions where one adds the column. That it is in global memory it
// knows no longer, as the loads that have it say.
template <class T>
RJ_DEVICE T* rj_address(T* address) {
    asm("" : "+l"(address));
    return address;
}
// What is read only NVRTC loads before a loop over rows where it is alike for all of them, if it stands behind a
// condition: behind a row's end, and whole vectors where none is aligned.
template <class T>
RJ_DEVICE T* rj_address_here(T* address) {
    asm volatile("" : "+l"(address));
    return address;
}

// All grids have one layer.
RJ_DEVICE unsigned rj_zero() {
    unsigned layer;
    asm("mov.u32 %0, %%ctaid.z;" : "=r"(layer));
    return layer;
}
RJ_DEVICE unsigned rj_known_here(unsigned word) {
    asm volatile("" : "+r"(word));
    return word;
}

// ---- memory -------------------------------------------------------------------------------------------------------

extern __shared__ __align__(16) unsigned char rj_shared_memory[];

template <class T>
RJ_DEVICE T rj_shared_load(int offset_bytes) {
    return *reinterpret_cast<const T*>(rj_shared_memory + offset_bytes);
}
template <class T>
RJ_DEVICE void rj_shared_store(int offset_bytes, const T& value) {
    *reinterpret_cast<T*>(rj_shared_memory + offset_bytes) = value;
}

// One access of 1, 2, 4, 8 or 16 bytes, aligned to its size; narrower than a word, it fills the word's low bits.
template <int kBytes>
struct rj_memory;

template <>
struct rj_memory<1> {
    static RJ_DEVICE void load(const void* from, unsigned* words) {
        words[0] = *static_cast<const unsigned char*>(from);
    }
    static RJ_DEVICE void load_readonly(const void* from, unsigned* words) {
        unsigned short low;
        asm("ld.global.nc.u8 %0, [%1];" : "=h"(low) : "l"(from));
        words[0] = low;
    }
    static RJ_DEVICE void store(void* to, const unsigned* words) {
        *static_cast<unsigned char*>(to) = static_cast<unsigned char>(words[0]);
    }
};

template <>
struct rj_memory<2> {
    static RJ_DEVICE void load(const void* from, unsigned* words) {
        words[0] = *static_cast<const unsigned short*>(from);
    }
    static RJ_DEVICE void load_readonly(const void* from, unsigned* words) {
        unsigned short low;
        asm("ld.global.nc.u16 %0, [%1];" : "=h"(low) : "l"(from));
        words[0] = low;
    }
    static RJ_DEVICE void store(void* to, const unsigned* words) {
        *static_cast<unsigned short*>(to) = static_cast<unsigned short>(words[0]);
    }
};

template <>
struct rj_memory<4> {
    static RJ_DEVICE void load(const void* from, unsigned* words) { words[0] = *static_cast<const unsigned*>(from); }
    static RJ_DEVICE void load_readonly(const void* from, unsigned* words) {
        asm("ld.global.nc.u32 %0, [%1];" : "=r"(words[0]) : "l"(from));
    }
    static RJ_DEVICE void store(void* to, const unsigned* words) { *static_cast<unsigned*>(to) = words[0]; }
};

template <>
struct rj_memory<8> {
    static RJ_DEVICE void load(const void* from, unsigned* words) {
        const uint2 loaded = *static_cast<const uint2*>(from);
        words[0] = loaded.x, words[1] = loaded.y;
    }
    static RJ_DEVICE void load_readonly(const void* from, unsigned* words) {
        asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(from));
    }
    static RJ_DEVICE void store(void* to, const unsigned* words) {
        *static_cast<uint2*>(to) = uint2{words[0], words[1]};
    }
};

#define RJ_STORES_WHOLE
template <>
struct rj_memory<16> {
    static RJ_DEVICE void load(const void* from, unsigned* words) {
        const uint4 loaded = *static_cast<const uint4*>(from);
        words[0] = loaded.x, words[1] = loaded.y, words[2] = loaded.z, words[3] = loaded.w;
    }
    static RJ_DEVICE void load_readonly(const void* from, unsigned* words) {
        asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
            : "l"(from));
    }
    static RJ_DEVICE void store(void* to, const unsigned* words) {
        *static_cast<uint4*>(to) = uint4{words[0], words[1], words[2], words[3]};
    }
    // What is assigned is taken apart first, and not always put together again; one integer is not taken apart. Not
    // everywhere: its words are copied to one place, which the next vector then waits for. A version that stored all
    // vectors so took a sparsemax's backward of 128256 columns, a row in registers, from 97 % of copy to 84.
    static RJ_DEVICE void store_whole(void* to, const unsigned* words) {
        const auto two = [&](int first) {
            return static_cast<unsigned long long>(words[first + 1]) << 32 | words[first];
        };
        *static_cast<unsigned __int128*>(to) = static_cast<unsigned __int128>(two(2)) << 64 | two(0);
    }
};

// Left to itself the compiler branches to the making of each address.
template <class T>
RJ_DEVICE const T* rj_chosen(bool condition, const T* a, const T* b) {
    const T* chosen;
    asm("{\n"
        ".reg .pred first;\n"
        "setp.ne.u32 first, %3, 0;\n"
        "selp.b64 %0, %1, %2, first;\n"
        "}"
        : "=l"(chosen)
        : "l"(a), "l"(b), "r"(condition ? 1u : 0u));
    return chosen;
}

// Likewise to the making of a number. A branch for each element keeps their arithmetic from being done side by side.
RJ_DEVICE float rj_either(bool condition, float a, float b) {
    float number;
    asm("{\n"
        ".reg .pred first;\n"
        "setp.ne.u32 first, %3, 0;\n"
        "selp.f32 %0, %1, %2, first;\n"
        "}"
        : "=f"(number)
        : "f"(a), "f"(b), "r"(condition ? 1u : 0u));
    return number;
}

// ---- copies into shared memory (sm_80 and newer) --------------------------------------------------------------------

// The offset is added in 32 bits: with it, each address was made in the generic space and was 64 bits wide until then.
RJ_DEVICE unsigned rj_shared_address(int offset_bytes) {
    unsigned address;
    asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
        : "=r"(address)
        : "l"(rj_shared_memory));
    return address + static_cast<unsigned>(offset_bytes);
}

// 16 bytes go past the first-level cache: a row is read once.
template <int kBytes>
RJ_DEVICE void rj_copy_ahead(int offset_bytes, const void* from) {
    if constexpr (kBytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(rj_shared_address(offset_bytes)), "l"(from)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(rj_shared_address(offset_bytes)), "l"(from),
                     "n"(kBytes)
                     : "memory");
    }
}
// To where a vector was read, which the copy takes to be behind that: other loads may stand before it and behind it.
template <class Vec>
RJ_DEVICE void rj_copy_behind(int offset_bytes, const void* from, const Vec& read) {
    const unsigned to = rj_shared_address(offset_bytes);
    if constexpr (Vec::kBytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;  // behind %2, %3, %4, %5" ::"r"(to), "l"(from),
                     "r"(read.words[0]), "r"(read.words[1]), "r"(read.words[2]), "r"(read.words[3]));
    } else if constexpr (Vec::kBytes == 8) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;  // behind %2, %3" ::"r"(to), "l"(from),
                     "r"(read.words[0]), "r"(read.words[1]));
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;  // behind %2" ::"r"(to), "l"(from), "r"(read.words[0]));
    }
}
RJ_DEVICE void rj_copies_issued() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kTurns>
RJ_DEVICE void rj_wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kTurns) : "memory");
}

// ---- kernels that follow each other (sm_90 and newer) ---------------------------------------------------------------

// Once every block of this kernel has said so or ended, blocks of the next one take what room there is.
RJ_DEVICE void rj_let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Until the kernel before has ended and what it wrote is to be seen. Nothing where the launch asked for no overlap.
RJ_DEVICE void rj_wait_for_last() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- clusters of blocks (sm_90 and newer) ---------------------------------------------------------------------------

// The blocks of a cluster need not start together, and none may send to one that has not.
template <int kCount>
RJ_DEVICE void rj_cluster_open(int mailboxes) {
    if (threadIdx.x == 0) {
#pragma unroll
        for (int k = 0; k < kCount; ++k)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(rj_shared_address(mailboxes + 8 * k))
                         : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
RJ_DEVICE void rj_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

RJ_DEVICE void rj_mailbox_expect(int mailbox, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(rj_shared_address(mailbox)), "r"(bytes)
                 : "memory");
}
RJ_DEVICE void rj_mailbox_wait(int mailbox, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n"
        "}" ::"r"(rj_shared_address(mailbox)),
        "r"(parity)
        : "memory");
}

// mapa maps an address of this block's shared memory to the same place in another's; st.async counts the bytes there.
template <class T>
RJ_DEVICE void rj_cluster_send(int block, int offset_bytes, const T& value, int mailbox) {
    constexpr int kWords = sizeof(T) / 4;
    static_assert(sizeof(T) == kWords * 4, "a word at a time");
    struct Words {
        unsigned word[kWords];
    };
    const Words words = __builtin_bit_cast(Words, value);
    unsigned there, counter;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(rj_shared_address(offset_bytes)), "r"(block));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counter) : "r"(rj_shared_address(mailbox)), "r"(block));
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(there + 4 * k),
                     "r"(words.word[k]), "r"(counter)
                     : "memory");
    }
}

// ---- conversions --------------------------------------------------------------------------------------------------

// Two f32 to packed bf16 or f16, to nearest even; `low` fills the low half. sm_80 and newer do it in one instruction.
RJ_DEVICE unsigned rj_pack_bf16(float low, float high) {
    unsigned packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
RJ_DEVICE unsigned rj_pack_f16(float low, float high) {
    unsigned packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
RJ_DEVICE float rj_f16_value(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

#if __CUDA_ARCH__ >= 890
#define RJ_PACKS_F8
RJ_DEVICE unsigned rj_pack_e4m3(float low, float high) {
    unsigned short packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
}
RJ_DEVICE unsigned rj_pack_e5m2(float low, float high) {
    unsigned short packed;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
}
#endif

#define RJ_PACKS_I8
RJ_DEVICE unsigned rj_pack_i8(int a, int b, int c, int d) {
    unsigned packed;
    asm("{\n"
        ".reg .b32 upper;\n"
        "cvt.pack.sat.s8.s32.b32 upper, %4, %3, 0;\n"
        "cvt.pack.sat.s8.s32.b32 %0, %2, %1, upper;\n"
        "}"
        : "=r"(packed)
        : "r"(a), "r"(b), "r"(c), "r"(d));
    return packed;
}

// Toward zero and saturating; NaN gives 0. The instruction saturates, but gives the least i64 for NaN.
RJ_DEVICE int rj_to_i32(float value) { return __float2int_rz(value); }
RJ_DEVICE int rj_nearest(float value) { return __float2int_rn(value); }
RJ_DEVICE long long rj_to_i64(float value) { return value != value ? 0 : __float2ll_rz(value); }

// ---- arithmetic ---------------------------------------------------------------------------------------------------
// The library functions are NVRTC's own (libdevice): at most 2 units in the last place.

RJ_DEVICE float rj_max(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}
RJ_DEVICE float rj_min(float a, float b) {
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}

// On two packed elements. Products and sums of bf16 are fused ones on every architecture (sm_80 has no others) that add
// -0 or multiply by 1.
#define RJ_PAIR(function, instruction, ...)                                \
    RJ_DEVICE unsigned function(unsigned a, unsigned b) {                  \
        unsigned pair;                                                     \
        asm(instruction ";" : "=r"(pair) : "r"(a), "r"(b), ##__VA_ARGS__); \
        return pair;                                                       \
    }
#define RJ_FOLDS_PAIRS
RJ_PAIR(rj_max_bf16x2, "max.NaN.bf16x2 %0, %1, %2")
RJ_PAIR(rj_min_bf16x2, "min.NaN.bf16x2 %0, %1, %2")
RJ_PAIR(rj_max_f16x2, "max.NaN.f16x2 %0, %1, %2")
RJ_PAIR(rj_min_f16x2, "min.NaN.f16x2 %0, %1, %2")
RJ_PAIR(rj_mul_bf16x2, "fma.rn.bf16x2 %0, %1, %2, %3", "r"(0x80008000u))
RJ_PAIR(rj_add_bf16x2, "fma.rn.bf16x2 %0, %1, %3, %2", "r"(0x3f803f80u))
RJ_PAIR(rj_sub_bf16x2, "fma.rn.bf16x2 %0, %2, %3, %1", "r"(0xbf80bf80u))
RJ_PAIR(rj_mul_f16x2, "mul.rn.f16x2 %0, %1, %2")
RJ_PAIR(rj_add_f16x2, "add.rn.f16x2 %0, %1, %2")
RJ_PAIR(rj_sub_f16x2, "sub.rn.f16x2 %0, %1, %2")
#undef RJ_PAIR

RJ_DEVICE float rj_abs(float a) { return fabsf(a); }
RJ_DEVICE float rj_floor(float a) { return floorf(a); }
RJ_DEVICE float rj_round(float a) { return rintf(a); }
RJ_DEVICE float rj_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
RJ_DEVICE float rj_div(float a, float b) { return __fdiv_rn(a, b); }
RJ_DEVICE float rj_sqrt(float a) { return __fsqrt_rn(a); }
// Once a row, and in f32 every later rounding inherits its error, so correctly rounded: a few instructions more.
RJ_DEVICE float rj_rsqrt(float a) { return __frsqrt_rn(a); }
// Within two units in the last place; takes denormals for zero.
RJ_DEVICE float rj_rsqrt_fast(float a) {
    float root;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(a));
    return root;
}
RJ_DEVICE float rj_exp(float a) { return expf(a); }
RJ_DEVICE float rj_log(float a) { return logf(a); }
RJ_DEVICE float rj_log1p(float a) { return log1pf(a); }
RJ_DEVICE float rj_erf(float a) { return erff(a); }

RJ_DEVICE float rj_sqrt_fast(float a) {
    float root;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(a));
    return root;
}

// Within a unit in the last place; denormals, given and made, are zero.
RJ_DEVICE float rj_reciprocal_fast(float a) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(a));
    return reciprocal;
}

// 2^a in one instruction: 2 units in the last place, results below 2^-126 flushed to zero.
RJ_DEVICE float rj_exp2_fast(float a) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(a));
    return power;
}
// It truncates: over the fractions of f32 it is off by 5.0 10^-8 in the mean, from 2 to 7 in each 64th of them (H200).
constexpr float rj_exp2_bias = -5.0e-8f;

RJ_DEVICE float rj_log2_fast(float a) {
    float logarithm;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(logarithm) : "f"(a));
    return logarithm;
}

// The square of e^(a/2), which is no denormal where e^a is one: without flushing, the instruction takes three more. The
// rounding of the product moves e^a by at most |a| 2^-24 of it, and |a| is below 104 where e^a is finite and not 0.
RJ_DEVICE float rj_exp_narrow(float a) {
    const float root = rj_exp2_fast(a * 0.72134752f);
    return root * root;
}
