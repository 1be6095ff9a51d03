// What every emitted GPU kernel shares: elements and vectors of them, coordinates, and reductions over a row's threads.
//
// Emitted source is: RJ_WARP_SIZE, the vendor's half of the prelude, prelude_exp.h, prelude_math.h for vendors without
// a device library, prelude_trig.h, prelude_narrow.h, prelude_weights.h, prelude_divide.h, this file, the kernel.
// Nothing here or in a kernel names an intrinsic; a vendor's half (prelude_cuda.h, prelude_hip.h, or the tests' SIMT
// shim) supplies
//
//   RJ_DEVICE, RJ_KERNEL(threads[, blocks_per_sm]), RJ_RESTRICT
//   RJ_ROLLED                                     before a loop that must not be unrolled whole
//   RJ_GROUP(vectors)                             vectors that a serial loop loads at once, or a divisor of them
//   rj_thread, rj_block, rj_grid(block_threads)   indices along x, and the number of blocks
//   rj_barrier                                    of the block, ordering shared memory
//   rj_shuffle_xor_word<mask>(word)               lane's word from lane ^ mask; every lane of the warp takes part
//   rj_shuffle_from_word<lanes>(word, lane)       likewise from that lane of each group of so many neighbours
//   rj_lanes, rj_ballot(condition)                a warp's lanes as bits: where it holds; every lane takes part
//   rj_first_of(lanes)                            the first of some lanes
//   rj_shared_load<T>, rj_shared_store<T>         dynamic shared memory by byte offset, aligned to T
//   rj_copy_ahead<bytes>(offset, from)            from memory into this thread's own part of shared memory, in its time
//   rj_copies_issued, rj_wait_for_copies<n>       what was issued up to here is a turn; until all but the last n turns
//                                                 of this thread have come. Only where a schedule has stages or takes
//                                                 rows as they follow each other (CUDA)
//   rj_memory<bytes>::load, load_readonly, store  one global access
//   rj_bits, rj_float                             an f32's bits and back
//   rj_wide_product(a, b)                         the 64 bits of two words' product
//   rj_opaque(word)                               the word, of which the compiler may know nothing more
//   rj_zero()                                     0, of which the compiler does not know that it is
//   rj_known_here(word)                           likewise, nor compute with it anywhere but behind this place
//   rj_join_halves(lower, upper)                  the lower half of one word and the upper half of another
//   rj_pack_f16, rj_f16_value                     to and from f16, to nearest even
//   rj_pack_e4m3, rj_pack_e5m2                    two f32 within the format's range to packed e4m3 or e5m2, likewise;
//                                                 only with RJ_PACKS_F8
//   rj_to_i32, rj_to_i64                          f32 toward zero, saturating, NaN to 0
//   rj_nearest                                    f32 to the nearest i32, half to even, likewise
//   rj_pack_i8(a, b, c, d)                        four i32 to packed i8, saturating; only with RJ_PACKS_I8
//   rj_chosen(condition, a, b)                    one of two addresses, without a branch
//   rj_either(condition, a, b)                    one of two f32, likewise
//   rj_max, rj_min                                NaN if either is
//   rj_max_bf16x2, rj_min_f16x2, …                likewise of two packed elements; only with RJ_FOLDS_PAIRS
//   rj_add_bf16x2, rj_sub_bf16x2, rj_mul_bf16x2   of two packed elements, each rounded once; where targets.def says so
//   rj_add_f16x2, rj_sub_f16x2, rj_mul_f16x2      likewise, everywhere
//   rj_abs, rj_floor, rj_round, rj_fma, rj_div    correctly rounded; rj_round: to a whole number, half to even
//   rj_exp2_fast                                  2^a, within 2^-22 of it; may flush below 2^-126
//   rj_exp2_bias                                  what it is off by in the mean, of 1
//   rj_reciprocal_fast                            1 / a, within a unit in the last place; may flush denormals to 0
//   rj_rsqrt_fast                                 a^-1/2, within two units in the last place; may take denormals for 0
//   rj_sqrt_fast                                  a^1/2, within a unit in the last place; likewise
//   rj_log2_fast                                  within 2^-22 from 1/2 to 2, elsewhere within 2^-22 of it; likewise
//
// and, unless prelude_math.h follows it,
//
//   rj_pack_bf16                                  two f32 to packed bf16, to nearest even
//   rj_sqrt, rj_rsqrt                             correctly rounded
//   rj_exp, rj_log, rj_log1p, rj_erf              within 2 units in the last place
//   rj_exp_narrow                                 e^a, within 2^-17 of it or 2^-149: for what is rounded to bf16 or f16

// ---- elements -----------------------------------------------------------------------------------------------------
// Storage types and the type a value of it has in a kernel: bf16 and f16 are computed on as f32.

struct rj_bf16 {
    unsigned short bits;
};
struct rj_f16 {
    unsigned short bits;
};
struct rj_bool {
    unsigned char byte;
};
struct rj_i8 {
    unsigned char bits;
};
struct rj_e4m3 {
    unsigned char bits;
};
struct rj_e5m2 {
    unsigned char bits;
};

// A condition that the compiler knows.
template <bool kHolds>
struct rj_constant {
    RJ_DEVICE operator bool() const { return kHolds; }
};

template <class A, class B>
constexpr bool rj_is_same = false;
template <class A>
constexpr bool rj_is_same<A, A> = true;

template <class T>
struct rj_value {
    typedef T type;
};
template <>
struct rj_value<rj_bf16> {
    typedef float type;
};
template <>
struct rj_value<rj_f16> {
    typedef float type;
};
template <>
struct rj_value<rj_bool> {
    typedef bool type;
};
template <>
struct rj_value<rj_i8> {
    typedef int type;
};
template <>
struct rj_value<rj_e4m3> {
    typedef float type;
};
template <>
struct rj_value<rj_e5m2> {
    typedef float type;
};

// N elements as the words they come from memory in. Elements stay packed until rj_get: widening bf16 is a shift.
template <class T, int N>
struct alignas(sizeof(T) * N >= 16  ? 16
               : sizeof(T) * N >= 4 ? sizeof(T) * N
                                    : 4) rj_vec {
    static constexpr int kBytes = int(sizeof(T)) * N;
    static constexpr int kWords = (kBytes + 3) / 4;
    unsigned words[kWords];
};

// A vector in shared memory. One of less than a word has no more than its own bytes there: beside them lie other
// threads'.
template <class Vec>
RJ_DEVICE Vec rj_shared_load_vec(int offset_bytes) {
    if constexpr (Vec::kBytes >= 4) {
        return rj_shared_load<Vec>(offset_bytes);
    } else if constexpr (Vec::kBytes == 2) {
        return {rj_shared_load<unsigned short>(offset_bytes)};
    } else {
        return {rj_shared_load<unsigned char>(offset_bytes)};
    }
}
template <class Vec>
RJ_DEVICE void rj_shared_store_vec(int offset_bytes, const Vec& vec) {
    if constexpr (Vec::kBytes >= 4) {
        rj_shared_store(offset_bytes, vec);
    } else if constexpr (Vec::kBytes == 2) {
        rj_shared_store(offset_bytes, static_cast<unsigned short>(vec.words[0]));
    } else {
        rj_shared_store(offset_bytes, static_cast<unsigned char>(vec.words[0]));
    }
}

template <int N>
RJ_DEVICE float rj_get(const rj_vec<rj_bf16, N>& vec, int lane) {
    const unsigned word = vec.words[lane / 2];
    return rj_float(lane % 2 == 0 ? word << 16 : word & 0xffff0000u);
}
template <int N>
RJ_DEVICE float rj_get(const rj_vec<rj_f16, N>& vec, int lane) {
    return rj_f16_value(static_cast<unsigned short>(vec.words[lane / 2] >> (lane % 2 * 16)));
}
template <int N>
RJ_DEVICE float rj_get(const rj_vec<float, N>& vec, int lane) {
    return rj_float(vec.words[lane]);
}
template <int N>
RJ_DEVICE int rj_get(const rj_vec<int, N>& vec, int lane) {
    return static_cast<int>(vec.words[lane]);
}
template <int N>
RJ_DEVICE long long rj_get(const rj_vec<long long, N>& vec, int lane) {
    return static_cast<long long>(vec.words[2 * lane] | static_cast<unsigned long long>(vec.words[2 * lane + 1]) << 32);
}
template <int N>
RJ_DEVICE bool rj_get(const rj_vec<rj_bool, N>& vec, int lane) {
    return (vec.words[lane / 4] >> (lane % 4 * 8) & 0xffu) != 0;
}

// Formats of eight bits. What rounds to no finite number becomes NaN in e4m3 and infinity in e5m2, as torch converts.

RJ_DEVICE unsigned rj_byte(const unsigned* words, int lane) { return words[lane / 4] >> (lane % 4 * 8) & 0xffu; }

template <int N>
RJ_DEVICE int rj_get(const rj_vec<rj_i8, N>& vec, int lane) {
    return static_cast<int>(rj_byte(vec.words, lane) ^ 0x80u) - 0x80;
}
template <int N>
RJ_DEVICE float rj_get(const rj_vec<rj_e4m3, N>& vec, int lane) {
    const unsigned byte = rj_byte(vec.words, lane);
    const unsigned magnitude = byte & 0x7fu;
    // Its exponents are 120 less than f32's, and the smallest numbers are multiples of 2^-9.
    float value = magnitude < 8 ? static_cast<float>(static_cast<int>(magnitude)) * 0.001953125f
                                : rj_float((magnitude << 20) + (120u << 23));
    if (magnitude == 0x7fu) value = rj_float(0x7fc00000u);
    return (byte & 0x80u) != 0 ? -value : value;
}
template <int N>
RJ_DEVICE float rj_get(const rj_vec<rj_e5m2, N>& vec, int lane) {
    return rj_f16_value(static_cast<unsigned short>(rj_byte(vec.words, lane) << 8));  // the upper half of an f16
}

// The magnitude's bits rounded to a mantissa of kBits and the format's bias: normal numbers as integers, below
// `smallest` by adding a number of which the format's step is the last place, so that the addition rounds.
template <int kBits, int kBias>
RJ_DEVICE unsigned rj_rounded_f8(unsigned magnitude, float smallest) {
    constexpr int kDropped = 23 - kBits;
    const float aligning = smallest * static_cast<float>(1 << kDropped);
    if (rj_float(magnitude) < smallest) return rj_bits(rj_float(magnitude) + aligning) - rj_bits(aligning);
    const unsigned half = (1u << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1u);
    return ((magnitude + half) >> kDropped) - (static_cast<unsigned>(127 - kBias) << kBits);
}
RJ_DEVICE unsigned rj_e4m3_bits(float value) {
    const unsigned bits = rj_bits(value);
    const unsigned magnitude = bits & 0x7fffffffu;
    const unsigned rounded = magnitude > 0x43e80000u ? 0x7fu : rj_rounded_f8<3, 7>(magnitude, 0.015625f);  // 464
    return rounded | (bits >> 24 & 0x80u);
}
RJ_DEVICE unsigned rj_e5m2_bits(float value) {
    const unsigned bits = rj_bits(value);
    const unsigned magnitude = bits & 0x7fffffffu;
    unsigned rounded = rj_rounded_f8<2, 15>(magnitude, 6.103515625e-5f);
    if (magnitude >= 0x47700000u) rounded = magnitude > 0x7f800000u ? 0x7fu : 0x7cu;  // 61440
    return rounded | (bits >> 24 & 0x80u);
}
#ifdef RJ_PACKS_F8
// The instruction takes what lies beyond for the greatest finite number.
RJ_DEVICE unsigned rj_two_e4m3(float low, float high) {
    const unsigned packed = rj_pack_e4m3(low, high);
    return packed | (rj_abs(low) > 464.0f ? 0x7fu : 0u) | (rj_abs(high) > 464.0f ? 0x7f00u : 0u);
}
RJ_DEVICE unsigned rj_two_e5m2(float low, float high) {
    const unsigned packed = rj_pack_e5m2(low, high);
    const unsigned first = rj_abs(low) >= 61440.0f ? (packed & 0x80u) | 0x7cu : packed & 0xffu;
    return first | (rj_abs(high) >= 61440.0f ? (packed & 0x8000u) | 0x7c00u : packed & 0xff00u);
}
#else
RJ_DEVICE unsigned rj_two_e4m3(float low, float high) { return rj_e4m3_bits(low) | rj_e4m3_bits(high) << 8; }
RJ_DEVICE unsigned rj_two_e5m2(float low, float high) { return rj_e5m2_bits(low) | rj_e5m2_bits(high) << 8; }
#endif

// Values to packed elements; narrow formats round here, once.
template <int N>
RJ_DEVICE void rj_pack_into(rj_vec<rj_bf16, N>& vec, const float (&values)[N]) {
#pragma unroll
    for (int k = 0; k < N; k += 2) vec.words[k / 2] = rj_pack_bf16(values[k], k + 1 < N ? values[k + 1] : 0.0f);
}
template <int N>
RJ_DEVICE void rj_pack_into(rj_vec<rj_f16, N>& vec, const float (&values)[N]) {
#pragma unroll
    for (int k = 0; k < N; k += 2) vec.words[k / 2] = rj_pack_f16(values[k], k + 1 < N ? values[k + 1] : 0.0f);
}
template <int N>
RJ_DEVICE void rj_pack_into(rj_vec<float, N>& vec, const float (&values)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) vec.words[k] = rj_bits(values[k]);
}
template <int N>
RJ_DEVICE void rj_pack_into(rj_vec<int, N>& vec, const int (&values)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) vec.words[k] = static_cast<unsigned>(values[k]);
}
template <int N>
RJ_DEVICE void rj_pack_into(rj_vec<long long, N>& vec, const long long (&values)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
        vec.words[2 * k] = static_cast<unsigned>(values[k]);
        vec.words[2 * k + 1] = static_cast<unsigned>(static_cast<unsigned long long>(values[k]) >> 32);
    }
}
template <int N>
RJ_DEVICE void rj_pack_into(rj_vec<rj_bool, N>& vec, const bool (&values)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const unsigned byte = values[k] ? 1u << (k % 4 * 8) : 0u;
        vec.words[k / 4] = k % 4 == 0 ? byte : vec.words[k / 4] | byte;
    }
}

// Two bytes into their place among words, which are filled in order.
RJ_DEVICE void rj_put_half(unsigned* words, int half, unsigned bits) {
    words[half / 2] = half % 2 == 0 ? bits : words[half / 2] | bits << 16;
}
// Saturating, so that what rounds to eight bits and leaves at once need not.
RJ_DEVICE int rj_to_i8(int a) { return a < -128 ? -128 : a > 127 ? 127 : a; }
template <int N>
RJ_DEVICE void rj_pack_into(rj_vec<rj_i8, N>& vec, const int (&values)[N]) {
#ifdef RJ_PACKS_I8
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int k = 0; k < N; k += 4)
            vec.words[k / 4] = rj_pack_i8(values[k], values[k + 1], values[k + 2], values[k + 3]);
        return;
    }
#endif
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const unsigned byte = (static_cast<unsigned>(rj_to_i8(values[k])) & 0xffu) << (k % 4 * 8);
        vec.words[k / 4] = k % 4 == 0 ? byte : vec.words[k / 4] | byte;
    }
}
template <int N>
RJ_DEVICE void rj_pack_into(rj_vec<rj_e4m3, N>& vec, const float (&values)[N]) {
#pragma unroll
    for (int k = 0; k < N; k += 2)
        rj_put_half(vec.words, k / 2, rj_two_e4m3(values[k], k + 1 < N ? values[k + 1] : 0.0f));
}
template <int N>
RJ_DEVICE void rj_pack_into(rj_vec<rj_e5m2, N>& vec, const float (&values)[N]) {
#pragma unroll
    for (int k = 0; k < N; k += 2)
        rj_put_half(vec.words, k / 2, rj_two_e5m2(values[k], k + 1 < N ? values[k + 1] : 0.0f));
}

template <class T, int N>
RJ_DEVICE rj_vec<T, N> rj_pack(const typename rj_value<T>::type (&values)[N]) {
    rj_vec<T, N> vec;
    rj_pack_into(vec, values);
    return vec;
}
template <class T>
RJ_DEVICE rj_vec<T, 1> rj_pack_one(typename rj_value<T>::type value) {
    const typename rj_value<T>::type values[1] = {value};
    return rj_pack<T, 1>(values);
}
// What a load of nothing gives.
template <class T, int N>
RJ_DEVICE rj_vec<T, N> rj_zeros() {
    rj_vec<T, N> vec;
#pragma unroll
    for (int k = 0; k < rj_vec<T, N>::kWords; ++k) vec.words[k] = 0;
    return vec;
}

// Arrays of loaded vectors, none of whose first kFirst is used before all of these are asked for, and before the
// numbers of the row whose words `numbers` are: a word of each depends on one of every other. Assemblers move a load
// down to its first use where registers are few, and a row then waits for memory as many times as it has vectors: a
// causal softmax's backward of 4096 columns waited five times, at 44 % of copy; now 54. A softmax's backward of 65536
// columns went from 78 to 91, a sparsemax's from 76 to 93 (H200). One instruction and a half a vector.
template <int kFirst, int kVectors, class V>
RJ_DEVICE unsigned rj_first_words(const V (&vectors)[kVectors]) {
    unsigned words = 0;
#pragma unroll
    for (int i = 0; i < kFirst; ++i) words ^= vectors[i].words[0];
    return words;
}
template <int kFirst, int kVectors, class V>
RJ_DEVICE void rj_add_bits(V (&vectors)[kVectors], unsigned bits) {
#pragma unroll
    for (int i = 0; i < kFirst; ++i) vectors[i].words[0] ^= bits;
}
// Likewise vectors that are none of an array, as of a loop of one iteration.
template <int kFirst, class T, int N>
RJ_DEVICE unsigned rj_first_words(const rj_vec<T, N>& vec) {
    return vec.words[0];
}
template <int kFirst, class T, int N>
RJ_DEVICE void rj_add_bits(rj_vec<T, N>& vec, unsigned bits) {
    vec.words[0] ^= bits;
}
template <int kFirst, class... Arrays>
RJ_DEVICE void rj_together(unsigned numbers, Arrays&... arrays) {
    const unsigned none = (numbers ^ ... ^ rj_first_words<kFirst>(arrays)) & rj_zero();
    (rj_add_bits<kFirst>(arrays, none), ...);
}
RJ_DEVICE unsigned rj_number_word(float number) { return rj_bits(number); }
template <class Integer>
RJ_DEVICE unsigned rj_number_word(Integer number) {
    return static_cast<unsigned>(number);
}
template <class... Numbers>
RJ_DEVICE unsigned rj_number_words(Numbers... numbers) {
    return (rj_number_word(numbers) ^ ... ^ 0u);
}

// A vector that an earlier loop left in registers. Behind rj_opaque what was computed from it there is computed from it
// again, where compilers would carry a row of f32 through the barrier: twice the registers.
template <class T, int N>
RJ_DEVICE rj_vec<T, N> rj_kept(rj_vec<T, N> vec) {
#pragma unroll
    for (int k = 0; k < rj_vec<T, N>::kWords; ++k) vec.words[k] = rj_opaque(vec.words[k]);
    return vec;
}

// A vector of which few need more than what is asked of it first. Compilers would do the rest before the steps that
// ask, for all: a row in f32, of which a sparsemax of 64 columns a thread took 168 registers in place of 96.
template <class T, int N>
RJ_DEVICE rj_vec<T, N> rj_looked_into(rj_vec<T, N> vec) {
#pragma unroll
    for (int k = 0; k < rj_vec<T, N>::kWords; ++k) vec.words[k] = rj_known_here(vec.words[k]);
    return vec;
}

// `value` rounded to the narrow format, as f32 again.
RJ_DEVICE float rj_round_bf16(float value) { return rj_get(rj_pack_one<rj_bf16>(value), 0); }
RJ_DEVICE float rj_round_f16(float value) { return rj_get(rj_pack_one<rj_f16>(value), 0); }
RJ_DEVICE float rj_round_e4m3(float value) { return rj_get(rj_pack_one<rj_e4m3>(value), 0); }
RJ_DEVICE float rj_round_e5m2(float value) { return rj_get(rj_pack_one<rj_e5m2>(value), 0); }

// ---- pairs ---------------------------------------------------------------------------------------------------------
// Two bf16 or f16 in a word, the first in its lower half; what rounds is the vendor's.

template <class T>
RJ_DEVICE float rj_half(unsigned word, int half) {
    const rj_vec<T, 2> pair = {{word}};
    return rj_get(pair, half);
}
RJ_DEVICE unsigned rj_both(unsigned first) { return (first & 0xffffu) * 0x10001u; }
RJ_DEVICE unsigned rj_swapped(unsigned word) { return word >> 16 | word << 16; }
// Any two elements of a vector.
template <class T, int N>
RJ_DEVICE unsigned rj_two(const rj_vec<T, N>& vec, int first, int second) {
    return (vec.words[first / 2] >> (first % 2 * 16) & 0xffffu) | vec.words[second / 2] >> (second % 2 * 16) << 16;
}
RJ_DEVICE unsigned rj_neg_x2(unsigned a) { return a ^ 0x80008000u; }
RJ_DEVICE unsigned rj_abs_x2(unsigned a) { return a & 0x7fff7fffu; }
template <class T, int N>
RJ_DEVICE rj_vec<T, N> rj_sizes_of(rj_vec<T, N> vec) {
#pragma unroll
    for (int k = 0; k < rj_vec<T, N>::kWords; ++k) vec.words[k] = rj_abs_x2(vec.words[k]);
    return vec;
}
RJ_DEVICE unsigned rj_select_x2(bool both, unsigned a, unsigned b) { return both ? a : b; }
RJ_DEVICE unsigned rj_select_x2(bool first, bool second, unsigned a, unsigned b) {
    return rj_join_halves(first ? a : b, second ? a : b);
}

// ---- global memory ------------------------------------------------------------------------------------------------
// N elements at an address aligned to them, in accesses of at most 16 bytes. "readonly" is for tensors that nothing
// writes while the kernel runs.

template <class T, int N, bool kReadonly>
RJ_DEVICE rj_vec<T, N> rj_load_vec(const T* from) {
    constexpr int kBytes = rj_vec<T, N>::kBytes;
    constexpr int kChunk = kBytes < 16 ? kBytes : 16;
    rj_vec<T, N> vec;
#pragma unroll
    for (int at = 0; at < kBytes; at += kChunk) {
        const void* address = reinterpret_cast<const unsigned char*>(from) + at;
        if constexpr (kReadonly) {
            rj_memory<kChunk>::load_readonly(address, vec.words + at / 4);
        } else {
            rj_memory<kChunk>::load(address, vec.words + at / 4);
        }
    }
    return vec;
}
template <int N, class T>
RJ_DEVICE rj_vec<T, N> rj_load(const T* from) {
    return rj_load_vec<T, N, false>(from);
}
template <int N, class T>
RJ_DEVICE rj_vec<T, N> rj_load_readonly(const T* from) {
    return rj_load_vec<T, N, true>(from);
}
template <class T>
RJ_DEVICE typename rj_value<T>::type rj_load_one(const T* from) {
    return rj_get(rj_load<1>(from), 0);
}
template <class T>
RJ_DEVICE typename rj_value<T>::type rj_load_one_readonly(const T* from) {
    return rj_get(rj_load_readonly<1>(from), 0);
}

template <class T, int N>
RJ_DEVICE void rj_store(T* to, const rj_vec<T, N>& vec) {
    constexpr int kBytes = rj_vec<T, N>::kBytes;
    constexpr int kChunk = kBytes < 16 ? kBytes : 16;
#pragma unroll
    for (int at = 0; at < kBytes; at += kChunk) {
        rj_memory<kChunk>::store(reinterpret_cast<unsigned char*>(to) + at, vec.words + at / 4);
    }
}
// The same, in one access wherever it may stand (emit/gpu_columns says where that is in doubt).
template <class T, int N>
RJ_DEVICE void rj_store_whole(T* to, const rj_vec<T, N>& vec) {
#ifdef RJ_STORES_WHOLE
    if constexpr (rj_vec<T, N>::kBytes == 16) {
        rj_memory<16>::store_whole(to, vec.words);
        return;
    }
#endif
    rj_store(to, vec);
}
// ---- peeled rows --------------------------------------------------------------------------------------------------
// A row begins at any element. From its column rj_peeled_head on, N columns at a time lie in aligned accesses; what is
// before and behind them are its ends. Of a tensor whose rows begin otherwise, vectors are taken apart.

template <int N, class T>
RJ_DEVICE int rj_peeled_head(const T* row) {
    return static_cast<int>((0ull - reinterpret_cast<unsigned long long>(row) / sizeof(T)) % N);
}
// The column of a place among the ends; at least `columns` where there is none.
template <int N>
RJ_DEVICE int rj_peeled_end(int place, int head, int columns) {
    return place < head ? place : place + (columns - head) / N * N;
}
template <int N, class T>
RJ_DEVICE bool rj_is_aligned(const T* first) {
    constexpr int kBytes = rj_vec<T, N>::kBytes < 16 ? rj_vec<T, N>::kBytes : 16;
    return reinterpret_cast<unsigned long long>(first) % kBytes == 0;
}
template <class T, int N, bool kReadonly>
RJ_DEVICE rj_vec<T, N> rj_load_peeled_vec(const T* from, bool aligned) {
    if (aligned) return rj_load_vec<T, N, kReadonly>(from);
    constexpr int kWords = (rj_vec<T, N>::kBytes + 3) / 4;
    constexpr int kBits = 8 * static_cast<int>(sizeof(T));
    rj_vec<T, N> vec;
#pragma unroll
    for (int w = 0; w < kWords; ++w) vec.words[w] = 0;
#pragma unroll
    for (int l = 0; l < N; ++l) {
        const rj_vec<T, 1> one = rj_load_vec<T, 1, kReadonly>(from + l);
        if constexpr (kBits < 32) {
            vec.words[l * kBits / 32] |= one.words[0] << l * kBits % 32;
        } else {
#pragma unroll
            for (int w = 0; w < kBits / 32; ++w) vec.words[l * kBits / 32 + w] = one.words[w];
        }
    }
    return vec;
}
template <int N, class T>
RJ_DEVICE rj_vec<T, N> rj_load_peeled(const T* from, bool aligned) {
    return rj_load_peeled_vec<T, N, false>(from, aligned);
}
template <int N, class T>
RJ_DEVICE rj_vec<T, N> rj_load_peeled_readonly(const T* from, bool aligned) {
    return rj_load_peeled_vec<T, N, true>(from, aligned);
}
template <class T, int N>
RJ_DEVICE void rj_store_peeled(T* to, const rj_vec<T, N>& vec, bool aligned) {
    if (aligned) return rj_store_whole(to, vec);
    constexpr int kBits = 8 * static_cast<int>(sizeof(T));
#pragma unroll
    for (int l = 0; l < N; ++l) {
        rj_vec<T, 1> one;
        if constexpr (kBits < 32) {
            one.words[0] = vec.words[l * kBits / 32] >> l * kBits % 32;
        } else {
#pragma unroll
            for (int w = 0; w < kBits / 32; ++w) one.words[w] = vec.words[l * kBits / 32 + w];
        }
        rj_store(to + l, one);
    }
}

template <class T>
RJ_DEVICE void rj_store_one(T* to, typename rj_value<T>::type value) {
    rj_store(to, rj_pack_one<T>(value));
}

// ---- integers and coordinates -------------------------------------------------------------------------------------

RJ_DEVICE int rj_abs(int a) { return a < 0 ? -a : a; }
RJ_DEVICE long long rj_abs(long long a) { return a < 0 ? -a : a; }
RJ_DEVICE int rj_max(int a, int b) { return a > b ? a : b; }
RJ_DEVICE long long rj_max(long long a, long long b) { return a > b ? a : b; }
RJ_DEVICE int rj_min(int a, int b) { return a < b ? a : b; }
RJ_DEVICE long long rj_min(long long a, long long b) { return a < b ? a : b; }

RJ_DEVICE int rj_to_i32(int a) { return a; }
RJ_DEVICE int rj_to_i32(long long a) { return static_cast<int>(rj_max(-2147483648ll, rj_min(2147483647ll, a))); }

// Quotient of a row index by an extent, both non-negative. A 64-bit division costs about 70 instructions and is needed
// only past 2^32 rows.
RJ_DEVICE long long rj_quotient(long long row, long long extent) {
    if (((row | extent) >> 32) == 0) return static_cast<unsigned>(row) / static_cast<unsigned>(extent);
    return row / extent;
}

// Random numbers of one seed and offset by Philox4x32-10 (Salmon et al. 2011). That of a position is the upper 24 bits
// of word position mod 4 of the block of {floor(position / 4), offset}, as a multiple of 2^-24 in [0, 1).
struct rj_philox {
    unsigned words[4];

    RJ_DEVICE void compute(long long seed, long long offset, unsigned long long block) {
        unsigned key_low = static_cast<unsigned>(seed);
        unsigned key_high = static_cast<unsigned>(static_cast<unsigned long long>(seed) >> 32);
        words[0] = static_cast<unsigned>(block);
        words[1] = static_cast<unsigned>(block >> 32);
        words[2] = static_cast<unsigned>(offset);
        words[3] = static_cast<unsigned>(static_cast<unsigned long long>(offset) >> 32);
#pragma unroll
        for (int round = 0; round < 10; ++round) {
            const unsigned long long first = rj_wide_product(0xd2511f53u, words[0]);
            const unsigned long long second = rj_wide_product(0xcd9e8d57u, words[2]);
            words[0] = static_cast<unsigned>(second >> 32) ^ words[1] ^ key_low;
            words[1] = static_cast<unsigned>(second);
            words[2] = static_cast<unsigned>(first >> 32) ^ words[3] ^ key_high;
            words[3] = static_cast<unsigned>(first);
            key_low += 0x9e3779b9u;
            key_high += 0xbb67ae85u;
        }
    }
    RJ_DEVICE unsigned word(int k) const {
        const bool odd = (k & 1) != 0;
        return (k & 2) != 0 ? (odd ? words[3] : words[2]) : (odd ? words[1] : words[0]);
    }
};
RJ_DEVICE float rj_fraction(unsigned word) {
    return static_cast<float>(static_cast<int>(word >> 8)) * 5.9604644775390625e-8f;
}
// Which words give a fraction that is at least `limit`, or with `beyond` greater than it: those from a word on, if any.
// A comparison of a row's number with a lane's fraction is one instruction so, where shift, conversion, product and
// comparison were four.
struct rj_fractions {
    unsigned first = 0;
    bool some = false;
    bool is_number;  // the limit

    RJ_DEVICE bool contain(unsigned word) const { return some & (word >= first); }
    RJ_DEVICE bool lack(unsigned word) const { return is_number & !contain(word); }
};
RJ_DEVICE rj_fractions rj_fractions_from(float limit, bool beyond) {
    const float scaled = limit * 16777216.0f;  // a whole number is a fraction itself
    const float least = beyond ? rj_floor(scaled) + 1.0f : -rj_floor(-scaled);
    rj_fractions fractions;
    fractions.some = least <= 16777215.0f;
    if (fractions.some && least > 0.0f) fractions.first = static_cast<unsigned>(rj_to_i32(least)) << 8;
    fractions.is_number = limit == limit;
    return fractions;
}
RJ_DEVICE float rj_uniform(long long seed, long long offset, long long position) {
    rj_philox block;
    block.compute(seed, offset, static_cast<unsigned long long>(position) >> 2);
    return rj_fraction(block.word(static_cast<int>(position & 3)));
}

// Of any positions, lane by lane: a block is kept until another is asked for. (Left to the compiler, clang sees that
// neighbours share it and NVRTC 13 does not.)
struct rj_uniforms {
    rj_philox kept;
    unsigned long long block;
    bool is_first = true;

    RJ_DEVICE float at(long long seed, long long offset, long long position) {
        const unsigned long long wanted = static_cast<unsigned long long>(position) >> 2;
        if (is_first || block != wanted) {
            kept.compute(seed, offset, wanted);
            block = wanted;
            is_first = false;
        }
        return rj_fraction(kept.word(static_cast<int>(position & 3)));
    }
};

// Of positions one after the other, a multiple of four of them, all made at lane 0: where they begin at a block, which
// a row of such vectors does, without a branch for each.
template <int lanes>
struct rj_uniform_run {
    unsigned words[lanes];

    RJ_DEVICE float at(long long seed, long long offset, long long position, int lane) {
        ask(seed, offset, position, lane);
        return rj_fraction(words[lane]);
    }
    RJ_DEVICE void ask(long long seed, long long offset, long long position, int lane) {
        if (lane == 0) make(seed, offset, position);
    }
    RJ_DEVICE void make(long long seed, long long offset, long long position) {
        const unsigned long long first = static_cast<unsigned long long>(position) >> 2;
        const int skipped = static_cast<int>(position & 3);
        rj_philox block;
        if (skipped == 0) {
#pragma unroll
            for (int b = 0; b < lanes / 4; ++b) {
                block.compute(seed, offset, first + b);
#pragma unroll
                for (int k = 0; k < 4; ++k) words[4 * b + k] = block.words[k];
            }
            return;
        }
        block.compute(seed, offset, first);
#pragma unroll
        for (int b = 0; b < lanes / 4; ++b) {
            rj_philox next;
            next.compute(seed, offset, first + b + 1);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const int place = k + skipped;
                words[4 * b + k] = place < 4 ? block.word(place) : next.word(place - 4);
            }
            block = next;
        }
    }
};

// Floor division and its remainder in [0, divisor), for coordinates that may be negative.
template <class T>
RJ_DEVICE T rj_floor_div(T a, long long divisor) {
    const T d = static_cast<T>(divisor);
    return a / d - (a % d < 0 ? 1 : 0);
}
template <class T>
RJ_DEVICE T rj_floor_mod(T a, long long divisor) {
    const T d = static_cast<T>(divisor);
    return a % d + (a % d < 0 ? d : 0);
}

// Data coordinates: whether one lies inside the extent, and a place that is safe to form an address of when it does
// not.
// One comparison: a negative number is greater than any extent without its sign.
RJ_DEVICE bool rj_inside(long long coordinate, long long extent) {
    return static_cast<unsigned long long>(coordinate) < static_cast<unsigned long long>(extent);
}
RJ_DEVICE long long rj_clamp(long long coordinate, long long extent) {
    return rj_inside(coordinate, extent) ? coordinate : 0;
}

// The last of `count` elements, sorted, that is at most `key`; -1 where there is none. The last element is asked first:
// a key beyond all of them is one step.
template <class Place, class T>
RJ_DEVICE long long rj_search_among(const T* sorted, long long stride, Place count, long long key) {
    Place low = 0;
    Place high = count;
    Place middle = count - 1;
    RJ_ROLLED
    while (low < high) {
        const bool after = static_cast<long long>(rj_load_one(sorted + static_cast<long long>(middle) * stride)) <= key;
        low = after ? middle + 1 : low;
        high = after ? high : middle;
        middle = low + (high - low) / 2;
    }
    return static_cast<long long>(low) - 1;
}
// Likewise by all lanes of a warp that have one key: each asks for an element, so that a step leaves a 32nd.
template <class Place, class T>
RJ_DEVICE long long rj_search_by_warp(const T* sorted, long long stride, Place count, long long key) {
    const Place lane = static_cast<Place>(rj_thread() % RJ_WARP_SIZE);
    Place low = 0;  // so many are known to be at most the key, and of so many behind them it is not known
    Place unknown = count;
    RJ_ROLLED
    while (unknown > 0) {
        const Place each = (unknown + RJ_WARP_SIZE - 1) / RJ_WARP_SIZE;
        const Place last = (lane + 1) * each - 1;
        bool after = false;
        if (last < unknown) {
            const long long place = static_cast<long long>(low + last) * stride;
            after = static_cast<long long>(rj_load_one(sorted + place)) <= key;
        }
        const rj_lanes beyond = rj_ballot(!after);
        const Place parts = beyond == 0 ? Place(RJ_WARP_SIZE) : static_cast<Place>(rj_first_of(beyond));
        low += parts * each;
        unknown -= parts * each;
        if (unknown >= each) unknown = each - 1;
    }
    return static_cast<long long>(low) - 1;
}
// Places of 32 bits take half the instructions of a step. `kThreads` have the same key, side by side.
template <int kThreads, class T>
RJ_DEVICE long long rj_search(const T* sorted, long long stride, long long count, long long key) {
    const auto among = [&](auto places) {
        if constexpr (kThreads % RJ_WARP_SIZE == 0) return rj_search_by_warp(sorted, stride, places, key);
        return rj_search_among(sorted, stride, places, key);
    };
    return count <= 0x7fffffffll ? among(static_cast<unsigned>(count)) : among(static_cast<unsigned long long>(count));
}

// ---- reductions ---------------------------------------------------------------------------------------------------
// A monoid's state: constructed as its identity; add() takes the values of one vector access, combine() another
// thread's state. combine(a, b) and combine(b, a) give the same bits, so that after a butterfly all lanes agree.

template <int kMask>
RJ_DEVICE float rj_shuffle_xor(float value) {
    return rj_float(rj_shuffle_xor_word<kMask>(rj_bits(value)));
}
template <int kMask>
RJ_DEVICE int rj_shuffle_xor(int value) {
    return static_cast<int>(rj_shuffle_xor_word<kMask>(static_cast<unsigned>(value)));
}
template <int kMask>
RJ_DEVICE long long rj_shuffle_xor(long long value) {
    const unsigned long long bits = static_cast<unsigned long long>(value);
    const unsigned long long low = rj_shuffle_xor_word<kMask>(static_cast<unsigned>(bits));
    const unsigned long long high = rj_shuffle_xor_word<kMask>(static_cast<unsigned>(bits >> 32));
    return static_cast<long long>(low | high << 32);
}

// The values of a vector folded pairwise: a short chain of dependent instructions, and a smaller error in sums. Halving
// is a recursion of templates because NVRTC does not unroll a loop of five halvings, and then the lanes of a vector of
// 16 lie in local memory.
template <class Operation, int kCount, class T>
RJ_DEVICE T rj_fold_halves(T* part) {
    if constexpr (kCount == 1) {
        return part[0];
    } else {
        constexpr int kFolded = kCount / 2;  // of an odd number the middle one waits
#pragma unroll
        for (int k = 0; k < kFolded; ++k) part[k] = Operation::fold(part[k], part[k + kCount - kFolded]);
        return rj_fold_halves<Operation, kCount - kFolded>(part);
    }
}
template <class Operation, class T, int N>
RJ_DEVICE T rj_fold(const T (&values)[N]) {
    T part[N];
#pragma unroll
    for (int k = 0; k < N; ++k) part[k] = values[k];
    return rj_fold_halves<Operation, N>(part);
}

// The least and the greatest value of a type.
template <class T>
struct rj_limits;
template <>
struct rj_limits<float> {
    static RJ_DEVICE float least() { return rj_float(0xff800000u); }
    static RJ_DEVICE float greatest() { return rj_float(0x7f800000u); }
};
template <>
struct rj_limits<int> {
    static RJ_DEVICE int least() { return -2147483647 - 1; }
    static RJ_DEVICE int greatest() { return 2147483647; }
};
template <>
struct rj_limits<long long> {
    static RJ_DEVICE long long least() { return -9223372036854775807ll - 1; }
    static RJ_DEVICE long long greatest() { return 9223372036854775807ll; }
};

// One value folded by one operation.
struct rj_adding {
    template <class T>
    static RJ_DEVICE T identity() {
        return 0;
    }
    template <class T>
    static RJ_DEVICE T fold(T a, T b) {
        return a + b;
    }
};
struct rj_larger {
    template <class T>
    static RJ_DEVICE T identity() {
        return rj_limits<T>::least();
    }
    template <class T>
    static RJ_DEVICE T fold(T a, T b) {
        return rj_max(a, b);
    }
#ifdef RJ_FOLDS_PAIRS
    static RJ_DEVICE unsigned identity_pair(rj_bf16) { return 0xff80ff80u; }
    static RJ_DEVICE unsigned identity_pair(rj_f16) { return 0xfc00fc00u; }
    static RJ_DEVICE unsigned fold_pairs(rj_bf16, unsigned a, unsigned b) { return rj_max_bf16x2(a, b); }
    static RJ_DEVICE unsigned fold_pairs(rj_f16, unsigned a, unsigned b) { return rj_max_f16x2(a, b); }
#endif
};
struct rj_smaller {
    template <class T>
    static RJ_DEVICE T identity() {
        return rj_limits<T>::greatest();
    }
    template <class T>
    static RJ_DEVICE T fold(T a, T b) {
        return rj_min(a, b);
    }
#ifdef RJ_FOLDS_PAIRS
    static RJ_DEVICE unsigned identity_pair(rj_bf16) { return 0x7f807f80u; }
    static RJ_DEVICE unsigned identity_pair(rj_f16) { return 0x7c007c00u; }
    static RJ_DEVICE unsigned fold_pairs(rj_bf16, unsigned a, unsigned b) { return rj_min_bf16x2(a, b); }
    static RJ_DEVICE unsigned fold_pairs(rj_f16, unsigned a, unsigned b) { return rj_min_f16x2(a, b); }
#endif
};

template <class T, class Operation>
struct rj_folded {
    T value = Operation::template identity<T>();

    template <int N>
    RJ_DEVICE void add(const T (&values)[N]) {
        value = Operation::fold(value, rj_fold<Operation>(values));
    }
    RJ_DEVICE void add_one(T added) { value = Operation::fold(value, added); }
    // Of f32, elements of two bytes as they lie in memory.
    template <class E, int N>
    RJ_DEVICE void add_packed(const rj_vec<E, N>& packed) {
#ifdef RJ_FOLDS_PAIRS
        rj_vec<E, 2> pair = {{packed.words[0]}};
#pragma unroll
        for (int w = 1; w < N / 2; ++w) pair.words[0] = Operation::fold_pairs(E(), pair.words[0], packed.words[w]);
        add_one(Operation::fold(rj_get(pair, 0), rj_get(pair, 1)));
#else
        float values[N];
#pragma unroll
        for (int l = 0; l < N; ++l) values[l] = rj_get(packed, l);
        add(values);
#endif
    }
    // Products that are not rounded before they are added, in two chains, so that one need not wait for the other.
    template <int N>
    RJ_DEVICE void add_products(const float (&a)[N], const float (&b)[N]) {
        float even = value;
        float odd = 0.0f;
#pragma unroll
        for (int l = 0; l + 1 < N; l += 2) {
            even = rj_fma(a[l], b[l], even);
            odd = rj_fma(a[l + 1], b[l + 1], odd);
        }
        value = N % 2 == 0 ? even + odd : rj_fma(a[N - 1], b[N - 1], even + odd);
    }
    RJ_DEVICE void combine(const rj_folded& other) { value = Operation::fold(value, other.value); }
    template <int kMask>
    RJ_DEVICE rj_folded from_lane_xor() const {
        rj_folded other;
        other.value = rj_shuffle_xor<kMask>(value);
        return other;
    }
    RJ_DEVICE T result() const { return value; }
};
template <class T>
using rj_sum = rj_folded<T, rj_adding>;
template <class T>
using rj_maximum = rj_folded<T, rj_larger>;
template <class T>
using rj_minimum = rj_folded<T, rj_smaller>;

// Of a thread's vectors, one after the other, of elements of two bytes as they lie in memory: two are taken apart once,
// not of each vector.
template <class Operation, class E>
struct rj_packed_fold {
#ifdef RJ_FOLDS_PAIRS
    rj_vec<E, 2> pair = {{Operation::identity_pair(E())}};

    template <int N>
    RJ_DEVICE void add(const rj_vec<E, N>& packed) {
#pragma unroll
        for (int w = 0; w < N / 2; ++w) pair.words[0] = Operation::fold_pairs(E(), pair.words[0], packed.words[w]);
    }
    RJ_DEVICE float result() const { return Operation::fold(rj_get(pair, 0), rj_get(pair, 1)); }
#else
    rj_folded<float, Operation> folded;

    template <int N>
    RJ_DEVICE void add(const rj_vec<E, N>& packed) {
        folded.add_packed(packed);
    }
    RJ_DEVICE float result() const { return folded.result(); }
#endif
};

// The greatest element of a vector and the least, NaN if any is.
template <class Fold, class E, int N>
RJ_DEVICE float rj_extreme_of(const rj_vec<E, N>& vec) {
    rj_folded<float, Fold> extreme;
    if constexpr (sizeof(E) == 2 && N % 2 == 0) {
        extreme.add_packed(vec);
    } else {
        float values[N];
#pragma unroll
        for (int l = 0; l < N; ++l) values[l] = rj_get(vec, l);
        extreme.add(values);
    }
    return extreme.result();
}
template <class E, int N>
RJ_DEVICE float rj_greatest_of(const rj_vec<E, N>& vec) {
    return rj_extreme_of<rj_larger>(vec);
}
template <class E, int N>
RJ_DEVICE float rj_least_of(const rj_vec<E, N>& vec) {
    return rj_extreme_of<rj_smaller>(vec);
}

// What exponentials of a row are relative to that has `greatest`. Of f32 rows that itself: they are e^(x - greatest).
struct rj_origin_itself {
    float from;

    // 0 while only -inf was seen, of which terms are 0, not exp(-inf + inf).
    explicit RJ_DEVICE rj_origin_itself(float greatest) : from(greatest == rj_float(0xff800000u) ? 0.0f : greatest) {}
    RJ_DEVICE float term(float x) const { return rj_exp(x - from); }
    // What terms move by that were relative to an earlier greatest, in a thread and where threads meet.
    RJ_DEVICE float step(float earlier) const { return rj_exp(earlier - from); }
    RJ_DEVICE float step_of_all(float earlier) const { return step(earlier); }
    // A sum of terms, of e^(x - greatest).
    RJ_DEVICE float sum(float terms, float) const { return terms; }
};

// Of narrow rows the greatest times log2 e, rounded: a term is a multiply-add and 2^t where it was a difference, a
// product and 2^t. The rounding is in no term, as all are relative to what came of it; their sum takes it back once.
// A term is off by at most |t| 2^t 2^-24. A greatest past 2^27, whose product would be off by 2^3 and more or past all
// numbers, is taken as it is: what is not equal to it is then 16 and more below.
struct rj_origin_in_powers {
    float scale;
    float from;

    explicit RJ_DEVICE rj_origin_in_powers(float greatest) {
        const float least = rj_max(greatest, rj_float(0xff7fffffu));  // while only -inf was seen
        scale = rj_abs(least) < 134217728.0f ? 1.44269504f : 1.0f;
        from = least * scale;
    }
    RJ_DEVICE float term(float x) const { return rj_exp2_fast(rj_fma(x, scale, -from)); }
    RJ_DEVICE float step(float earlier) const { return rj_exp2_fast(earlier * scale - from); }
    // All of a thread's terms are multiplied by it: of a bias they have their own, and no other's.
    RJ_DEVICE float step_of_all(float earlier) const {
        const float factor = step(earlier);
        return rj_fma(factor, -rj_exp2_bias, factor);
    }
    RJ_DEVICE float sum(float terms, float greatest) const {
        const float lost = rj_fma(greatest, scale, -from);
        const float a = lost * -0.693147181f;
        const float near = rj_fma(terms, rj_fma(a, a * 0.5f, a), terms);  // e^a - 1 within 2^-24
        return rj_abs(a) < 0.0078125f ? near : terms * rj_exp2_fast(-lost);
    }
};

// A running sum. The compensated one carries what its roundings lost (Knuth's two-sum, exact whichever term is larger)
// and is right to the last unit in whatever order threads take a row: at full width nothing later rounds an error of
// the sum away. Rows of f32 pay five additions more a vector for it. Beyond the finite numbers what was lost is NaN and
// the plain sum is the result.
struct rj_plain {
    float total = 0.0f;

    RJ_DEVICE void add(float added) { total += added; }
    RJ_DEVICE void combine(const rj_plain& other) { total += other.total; }
    template <int N>
    RJ_DEVICE void add_squares(const float (&values)[N]) {
        rj_sum<float> sum;
        sum.add_products(values, values);
        total += sum.value;
    }
    RJ_DEVICE void scale(float factor) { total *= factor; }
    RJ_DEVICE float result() const { return total; }
    template <int kMask>
    RJ_DEVICE rj_plain from_lane_xor() const {
        rj_plain other;
        other.total = rj_shuffle_xor<kMask>(total);
        return other;
    }
    using Origin = rj_origin_in_powers;
    static RJ_DEVICE float exp(float x) { return rj_exp_weight(x); }
};
struct rj_compensated {
    float total = 0.0f;
    float lost = 0.0f;

    RJ_DEVICE void add(float added) {
        const float sum = total + added;
        const float part = sum - total;
        lost += (total - (sum - part)) + (added - part);
        total = sum;
    }
    // What both lost is added first, so that the order of the two does not matter.
    RJ_DEVICE void combine(const rj_compensated& other) {
        const float both = lost + other.lost;
        lost = 0.0f;
        add(other.total);
        lost += both;
    }
    template <int N>
    RJ_DEVICE void add_squares(const float (&values)[N]) {
        float squares[N];
#pragma unroll
        for (int k = 0; k < N; ++k) squares[k] = values[k] * values[k];
        add(rj_fold<rj_adding>(squares));
    }
    RJ_DEVICE void scale(float factor) {
        const float product = total * factor;
        lost = rj_fma(lost, factor, rj_fma(total, factor, -product));
        total = product;
    }
    RJ_DEVICE float result() const { return rj_abs(total) < rj_float(0x7f800000u) ? total + lost : total; }
    template <int kMask>
    RJ_DEVICE rj_compensated from_lane_xor() const {
        rj_compensated other;
        other.total = rj_shuffle_xor<kMask>(total);
        other.lost = rj_shuffle_xor<kMask>(lost);
        return other;
    }
    using Origin = rj_origin_itself;
    static RJ_DEVICE float exp(float x) { return rj_exp(x); }
};

template <class T>
struct rj_compensated_sum {
    rj_compensated sum;

    template <int N>
    RJ_DEVICE void add(const float (&values)[N]) {
        sum.add(rj_fold<rj_adding>(values));
    }
    RJ_DEVICE void add_one(float added) { sum.add(added); }
    RJ_DEVICE void combine(const rj_compensated_sum& other) { sum.combine(other.sum); }
    template <int kMask>
    RJ_DEVICE rj_compensated_sum from_lane_xor() const {
        return {sum.from_lane_xor<kMask>()};
    }
    RJ_DEVICE float result() const { return sum.result(); }
};

// With what rounding the result lost beside it, and each term added by itself: for sums whose difference is taken, of
// which what a vector's own sum loses is many units in the last place. Narrow floats, of 8 or 11 bits, lose next to
// nothing in one, and six additions each took them from 104 % of copy to 95 (H200, kto of 4096 bf16 columns).
template <bool kByLane>
struct rj_exact_sums {
    rj_compensated sum;

    template <int N>
    RJ_DEVICE void add(const float (&values)[N]) {
        if (!kByLane) return sum.add(rj_fold<rj_adding>(values));
#pragma unroll
        for (int k = 0; k < N; ++k) sum.add(values[k]);
    }
    RJ_DEVICE void add_one(float added) { sum.add(added); }
    RJ_DEVICE void combine(const rj_exact_sums& other) { sum.combine(other.sum); }
    template <int kMask>
    RJ_DEVICE rj_exact_sums from_lane_xor() const {
        return {sum.from_lane_xor<kMask>()};
    }
    RJ_DEVICE float result() const { return sum.result(); }
    RJ_DEVICE float rest() const { return sum.lost - (sum.result() - sum.total); }
};
template <class T>
using rj_exact_sum = rj_exact_sums<true>;
template <class T>
using rj_exact_narrow_sum = rj_exact_sums<false>;

// The greatest x and the sum of exp(x - greatest), in one pass (Milakov and Gimelshein, arXiv:1805.02867). A vector
// costs one exponential an element and one to rescale the sum. In a row of narrow floats the fast exponential loses
// nothing that matters.
template <class Sum>
struct rj_rescaled {
    using Origin = typename Sum::Origin;
    float greatest = rj_float(0xff800000u);
    Sum terms;

    template <int N>
    RJ_DEVICE void add(const float (&values)[N]) {
        const float raised = rj_max(greatest, rj_fold<rj_larger>(values));
        const Origin origin(raised);
        terms.scale(origin.step(greatest));
        greatest = raised;
        float powers[N];
#pragma unroll
        for (int k = 0; k < N; ++k) powers[k] = origin.term(values[k]);
        terms.add(rj_fold<rj_adding>(powers));
    }
    RJ_DEVICE void combine(const rj_rescaled& other) {
        const float raised = rj_max(greatest, other.greatest);
        rj_rescaled moved = other;
        if (raised != greatest || raised != other.greatest) {
            move_to(raised);
            moved.move_to(raised);
        }
        terms.combine(moved.terms);
    }
    RJ_DEVICE void add_one(float added) {
        const float values[1] = {added};
        add(values);
    }
    RJ_DEVICE void move_to(float raised) {
        terms.scale(Origin(raised).step_of_all(greatest));
        greatest = raised;
    }
    template <int kMask>
    RJ_DEVICE rj_rescaled from_lane_xor() const {
        return {rj_shuffle_xor<kMask>(greatest), terms.template from_lane_xor<kMask>()};
    }
    RJ_DEVICE float max() const { return greatest; }
    // NaN for a row whose maximum is not finite: there exp(x - max) meets inf - inf.
    RJ_DEVICE float sum() const {
        return greatest - greatest == 0.0f ? Origin(greatest).sum(terms.result(), greatest) : rj_float(0x7fc00000u);
    }
};
template <class T>
using rj_max_sum_exp = rj_rescaled<rj_plain>;
template <class T>
using rj_compensated_max_sum_exp = rj_rescaled<rj_compensated>;

// Of x beside y the greatest of each, the sum of p = exp(x - greatest x) and of exp(y - greatest y), and that of
// p ((x - greatest x) - (y - greatest y)), to which what has no weight adds nothing. When a maximum rises the terms of
// the last sum all move by as much, and then weigh less.
template <class Sum>
struct rj_divergences {
    struct Sums {
        Sum terms;
        Sum other_terms;
        Sum differences;

        RJ_DEVICE void combine(const Sums& other) {
            terms.combine(other.terms);
            other_terms.combine(other.other_terms);
            differences.combine(other.differences);
        }
        template <int kMask>
        RJ_DEVICE Sums from_lane_xor() const {
            return {terms.template from_lane_xor<kMask>(), other_terms.template from_lane_xor<kMask>(),
                    differences.template from_lane_xor<kMask>()};
        }
    };
    float greatest = rj_float(0xff800000u);
    float other_greatest = rj_float(0xff800000u);
    Sums sums;

    template <int N>
    RJ_DEVICE void add_products(const float (&x)[N], const float (&y)[N]) {
        move_to(rj_max(greatest, rj_fold<rj_larger>(x)), rj_max(other_greatest, rj_fold<rj_larger>(y)));
        const float from = origin(greatest);
        const float other_from = origin(other_greatest);
        float weights[N];
        float other_weights[N];
        float ratios[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float logarithm = x[k] - from;
            const float other_logarithm = y[k] - other_from;
            weights[k] = Sum::exp(logarithm);
            other_weights[k] = Sum::exp(other_logarithm);
            ratios[k] = weights[k] == 0.0f ? 0.0f : logarithm - other_logarithm;
        }
        sums.terms.add(rj_fold<rj_adding>(weights));
        sums.other_terms.add(rj_fold<rj_adding>(other_weights));
        rj_sum<float> products;
        products.add_products(weights, ratios);
        sums.differences.add(products.result());
    }
    RJ_DEVICE void combine(const rj_divergences& other) {
        const float raised = rj_max(greatest, other.greatest);
        const float other_raised = rj_max(other_greatest, other.other_greatest);
        rj_divergences moved = other;
        move_to(raised, other_raised);
        moved.move_to(raised, other_raised);
        sums.combine(moved.sums);
    }
    RJ_DEVICE void move_to(float raised, float other_raised) {
        if (raised == greatest && other_raised == other_greatest) return;
        const float factor = Sum::exp(greatest - origin(raised));
        const float step = origin(raised) - origin(greatest);
        const float other_step = origin(other_raised) - origin(other_greatest);
        sums.differences.add(sums.terms.result() * (other_step - step));
        // Of what weighs nothing any more an infinite difference is nothing too.
        if (factor == 0.0f) sums.differences = Sum();
        sums.differences.scale(factor);
        sums.terms.scale(factor);
        sums.other_terms.scale(Sum::exp(other_greatest - origin(other_raised)));
        greatest = raised;
        other_greatest = other_raised;
    }
    template <int kMask>
    RJ_DEVICE rj_divergences from_lane_xor() const {
        return {rj_shuffle_xor<kMask>(greatest), rj_shuffle_xor<kMask>(other_greatest),
                sums.template from_lane_xor<kMask>()};
    }
    RJ_DEVICE float max() const { return greatest; }
    RJ_DEVICE float sum() const { return of_finite(greatest, sums.terms.result()); }
    RJ_DEVICE float other_max() const { return other_greatest; }
    RJ_DEVICE float other_sum() const { return of_finite(other_greatest, sums.other_terms.result()); }
    RJ_DEVICE float between() const {
        return of_finite(greatest, of_finite(other_greatest, sums.differences.result()));
    }

    static RJ_DEVICE float origin(float raised) { return rj_origin_itself(raised).from; }
    // As of rj_rescaled: NaN of rows whose maximum is not finite.
    static RJ_DEVICE float of_finite(float maximum, float value) {
        return maximum - maximum == 0.0f ? value : rj_float(0x7fc00000u);
    }
};
template <class T>
using rj_divergence = rj_divergences<rj_plain>;
template <class T>
using rj_compensated_divergence = rj_divergences<rj_compensated>;

// Count, sum and sum of squared deviations (Chan, Golub and LeVeque 1979). Deviations are from an average that each
// step rounds, which squares forgive; the mean is made of the sum, and as exact as a sum's.
template <class Sum>
struct rj_moments {
    float count = 0.0f;
    float average = 0.0f;
    Sum total;
    Sum squares;

    template <int N>
    RJ_DEVICE void add(const float (&values)[N]) {
        rj_moments vec;
        vec.count = N;
        const float total_of_vec = rj_fold<rj_adding>(values);
        vec.total.add(total_of_vec);
        vec.average = total_of_vec * (1.0f / N);
        float deviations[N];
#pragma unroll
        for (int k = 0; k < N; ++k) deviations[k] = values[k] - vec.average;
        vec.squares.add_squares(deviations);
        combine(vec);
    }
    // The smaller mean is moved toward the larger one, so that the order of the two does not matter.
    RJ_DEVICE void combine(const rj_moments& other) {
        if (count == 0.0f) {
            *this = other;
            return;
        }
        const bool below = average < other.average;
        const float low = below ? average : other.average;
        const float high = below ? other.average : average;
        const float high_count = below ? other.count : count;
        const float sum = count + other.count;
        const float weight = rj_div(high_count, sum);
        const float apart = high - low;
        total.combine(other.total);
        squares.combine(other.squares);
        squares.add(apart * apart * weight * (sum - high_count));
        average = low + apart * weight;
        count = sum;
    }
    RJ_DEVICE void add_one(float added) {
        const float values[1] = {added};
        add(values);
    }
    template <int kMask>
    RJ_DEVICE rj_moments from_lane_xor() const {
        return {rj_shuffle_xor<kMask>(count), rj_shuffle_xor<kMask>(average), total.template from_lane_xor<kMask>(),
                squares.template from_lane_xor<kMask>()};
    }
    RJ_DEVICE float mean() const { return rj_div(total.result(), count); }
    RJ_DEVICE float squared_deviations() const { return squares.result(); }
};
template <class T>
using rj_welford = rj_moments<rj_plain>;
template <class T>
using rj_compensated_welford = rj_moments<rj_compensated>;

// The kCount greatest elements that a warp was offered and their places, in order: NaN before all numbers, and equal
// ones by their places. An element and its place are one key, no two of which are equal, so that the order in which
// they come changes nothing. Lanes keep a key each, or two; all know the last. Of a row in no order few
// elements pass the last, so that most cost a comparison: of n a warp takes kCount (1 + ln(n / kCount)).
template <int kCount>
struct rj_greatest {
    static constexpr int kEntries = (kCount + RJ_WARP_SIZE - 1) / RJ_WARP_SIZE;
    unsigned long long kept[kEntries] = {};  // of lane l those that come l-th, l + RJ_WARP_SIZE-th, …; 0 is none
    unsigned long long last = 0;
    float last_element = rj_float(0xff800000u);  // -inf while there is none

    // Every lane of the warp has to call; what is offered are `elements` at `places` if the lane has any.
    template <int N>
    RJ_DEVICE void offer(bool has_any, const float (&elements)[N], const int (&places)[N]) {
        if (rj_ballot(has_any && !(rj_fold<rj_larger>(elements) < last_element)) == 0) return;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const bool may_pass = has_any && !(elements[k] < last_element);
            if (rj_ballot(may_pass) != 0) take(may_pass ? key(elements[k], places[k]) : 0);
        }
    }
    // Each lane's key, if it passes the last.
    RJ_DEVICE void take(unsigned long long offered) {
        rj_lanes passing = rj_ballot(offered > last);
        while (passing != 0) {
            insert(from_lane(offered, rj_first_of(passing)));
            passing &= passing - 1;
            passing &= rj_ballot(offered > last);
        }
    }
    // A key that all lanes know.
    RJ_DEVICE void insert(unsigned long long added) {
        const int lane = rj_thread() % RJ_WARP_SIZE;
        unsigned long long greater = ~0ull;  // of the lane before, or of the last lane's entry before
#pragma unroll
        for (int e = 0; e < kEntries; ++e) {
            const unsigned long long before = from_lane(kept[e], (lane + RJ_WARP_SIZE - 1) % RJ_WARP_SIZE);
            const unsigned long long next = lane == 0 ? greater : before;
            kept[e] = added > next ? next : added > kept[e] ? added : kept[e];
            greater = before;
        }
        last = from_lane(kept[kEntries - 1], (kCount - 1) % RJ_WARP_SIZE);
        last_element = element(last);
    }
    template <int kRank>
    RJ_DEVICE int place() const {
        return static_cast<int>(~static_cast<unsigned>(from_lane(kept[kRank / RJ_WARP_SIZE], kRank % RJ_WARP_SIZE)));
    }

    static RJ_DEVICE unsigned long long from_lane(unsigned long long key, int lane) {
        const unsigned low = rj_shuffle_from_word<RJ_WARP_SIZE>(static_cast<unsigned>(key), lane);
        const unsigned high = rj_shuffle_from_word<RJ_WARP_SIZE>(static_cast<unsigned>(key >> 32), lane);
        return low | static_cast<unsigned long long>(high) << 32;
    }
    // An element's bits in the order of numbers, above those of its place from behind; both zeros are one number, and
    // all NaN.
    static RJ_DEVICE unsigned long long key(float element, int place) {
        const unsigned bits = rj_bits(element + 0.0f);
        const unsigned ordered = bits ^ ((bits & 0x80000000u) != 0 ? ~0u : 0x80000000u);
        const unsigned above = element != element ? ~0u : ordered;
        return static_cast<unsigned long long>(above) << 32 | ~static_cast<unsigned>(place);
    }
    // Below which nothing passes the key.
    static RJ_DEVICE float element(unsigned long long key) {
        const unsigned ordered = static_cast<unsigned>(key >> 32);
        if (key == 0) return rj_float(0xff800000u);
        return rj_float(ordered ^ ((ordered & 0x80000000u) != 0 ? 0x80000000u : ~0u));
    }
};

// Folds the states of a row's warps; every thread gets the result, and has to call. What they meet in has room for all
// warps' keys at `offset_bytes`.
template <int kThreads, int kCount>
RJ_DEVICE void rj_meet_greatest(int thread, int offset_bytes, rj_greatest<kCount>& state) {
    constexpr int kWarps = kThreads / RJ_WARP_SIZE;
    if constexpr (kWarps > 1) {
        const int warp = thread / RJ_WARP_SIZE;
        const int lane = thread % RJ_WARP_SIZE;
#pragma unroll
        for (int e = 0; e < rj_greatest<kCount>::kEntries; ++e) {
            const int rank = e * RJ_WARP_SIZE + lane;
            if (rank < kCount) rj_shared_store(offset_bytes + (warp * kCount + rank) * 8, state.kept[e]);
        }
        rj_barrier();
        state = rj_greatest<kCount>();
#pragma unroll 1
        for (int first = 0; first < kWarps * kCount; first += RJ_WARP_SIZE) {
            const int k = first + lane;
            state.take(k < kWarps * kCount ? rj_shared_load<unsigned long long>(offset_bytes + k * 8) : 0);
        }
    }
}

// Combines the states of groups of kLanes neighbouring lanes; every lane gets the result.
template <int kLanes, class... States>
RJ_DEVICE void rj_butterfly(States&... states) {
    if constexpr (kLanes > 1) {
        rj_butterfly<kLanes / 2>(states...);
        (states.combine(states.template from_lane_xor<kLanes / 2>()), ...);
    }
}

// The words that a state is made of.
template <class State>
struct rj_state_words {
    unsigned word[sizeof(State) / 4];
};
template <class State>
RJ_DEVICE rj_state_words<State> rj_words_of(const State& state) {
    static_assert(sizeof(State) % 4 == 0, "a word at a time");
    return __builtin_bit_cast(rj_state_words<State>, state);
}
template <class State>
RJ_DEVICE State rj_chosen(bool condition, const State& a, const State& b) {
    const rj_state_words<State> first = rj_words_of(a);
    rj_state_words<State> chosen = rj_words_of(b);
#pragma unroll
    for (int k = 0; k < int(sizeof(State) / 4); ++k) chosen.word[k] = condition ? first.word[k] : chosen.word[k];
    return __builtin_bit_cast(State, chosen);
}
template <int kLanes, class State>
RJ_DEVICE State rj_state_from_lane(const State& state, int lane) {
    rj_state_words<State> words = rj_words_of(state);
#pragma unroll
    for (unsigned& word : words.word) word = rj_shuffle_from_word<kLanes>(word, lane);
    return __builtin_bit_cast(State, words);
}

// Half of a group of a serial loop's loads, or one: the whole number of them, as loops of which every group is whole
// guard none (RJ_GROUP).
constexpr int rj_half_group(int vectors) { return vectors % 2 == 0 ? vectors / 2 : 1; }

constexpr int rj_power_at_least(int count) {
    int power = 1;
    while (power < count) power *= 2;
    return power;
}
constexpr int rj_larger_of(int a, int b) { return a > b ? a : b; }

// Several states of one kind, kCount a power of two, folded over groups of kLanes neighbouring lanes, each of which
// goes on with half of the states at every step: those of a group's first half fold the first states, for both halves,
// and the others the rest. Of n states that is n - 1 combinations and one for each halving that is left, where a
// butterfly takes n for each: 5 in place of 10 for two sums over a warp, 9 in place of 40 for eight. `mine` are then
// what the lane has, in the order of lanes.
template <int kLanes, class State, int kCount, int kMine>
RJ_DEVICE void rj_fold_apart(State (&states)[kCount], State (&mine)[kMine]) {
    if constexpr (kLanes == 1 || kCount == 1) {
        static_assert(kMine == kCount, "what is left is the lane's own");
#pragma unroll
        for (int k = 0; k < kMine; ++k) mine[k] = states[k];
        if constexpr (kCount == 1) rj_butterfly<kLanes>(mine[0]);
    } else {
        const bool is_first = (rj_thread() & kLanes / 2) == 0;
        State half[kCount / 2];
#pragma unroll
        for (int k = 0; k < kCount / 2; ++k) {
            half[k] = rj_chosen(is_first, states[k], states[k + kCount / 2]);
            const State given = rj_chosen(is_first, states[k + kCount / 2], states[k]);
            half[k].combine(given.template from_lane_xor<kLanes / 2>());
        }
        rj_fold_apart<kLanes / 2>(half, mine);
    }
}
// What lies so, to all lanes.
template <int kLanes, int kCount, class State, int kMine, class... States>
RJ_DEVICE void rj_spread(const State (&mine)[kMine], States&... states) {
    int k = 0;
    ((states = rj_state_from_lane<kLanes>(mine[k % kMine], k / kMine * rj_larger_of(kLanes / kCount, 1)), ++k), ...);
}

// Of two sums of one word a butterfly each takes one shuffle less in a row: H200, a layer norm's backward of bf16 0.108
// ms in place of 0.111. Of f32, whose sums carry what they lost, instructions count.
template <class State, class... More>
constexpr bool rj_are_several =
    (sizeof...(More) > 1 || (sizeof...(More) == 1 && sizeof(State) > 4)) && (rj_is_same<State, More> && ...);

template <int kLanes, class State, class... More>
RJ_DEVICE void rj_fold_all(State& state, More&... more) {
    if constexpr (kLanes > 1 && rj_are_several<State, More...>) {
        constexpr int kCount = rj_power_at_least(1 + int(sizeof...(More)));
        constexpr int kMine = rj_larger_of(kCount / kLanes, 1);
        State states[kCount] = {state, more...};
        State mine[kMine];
        rj_fold_apart<kLanes>(states, mine);
        rj_spread<kLanes, kCount>(mine, state, more...);
    } else {
        rj_butterfly<kLanes>(state, more...);
    }
}

// Pairs take a common origin before they are folded, the greatest of all or the average, which costs an exponential or
// a multiplication for each where folding two costs two or a division; then all that they differ in is a sum.
template <class State>
struct rj_origin {
    static constexpr bool kIsOne = false;
    RJ_DEVICE void take(const State&) {}
    template <int kLanes>
    RJ_DEVICE void meet() {}
    RJ_DEVICE void move(State&) const {}
};
template <class Sum>
struct rj_origin<rj_rescaled<Sum>> {
    static constexpr bool kIsOne = true;
    rj_maximum<float> top;

    RJ_DEVICE void take(const rj_rescaled<Sum>& state) { top.add_one(state.greatest); }
    template <int kLanes>
    RJ_DEVICE void meet() {
        rj_butterfly<kLanes>(top);
    }
    RJ_DEVICE void move(rj_rescaled<Sum>& state) const { state.move_to(top.value); }
};
template <class Sum>
struct rj_origin<rj_divergences<Sum>> {
    static constexpr bool kIsOne = true;
    rj_maximum<float> top;
    rj_maximum<float> other_top;

    RJ_DEVICE void take(const rj_divergences<Sum>& state) {
        top.add_one(state.greatest);
        other_top.add_one(state.other_greatest);
    }
    template <int kLanes>
    RJ_DEVICE void meet() {
        rj_butterfly<kLanes>(top, other_top);
    }
    RJ_DEVICE void move(rj_divergences<Sum>& state) const { state.move_to(top.value, other_top.value); }
};
template <class Sum>
struct rj_origin<rj_moments<Sum>> {
    static constexpr bool kIsOne = true;
    rj_moments<Sum> all;

    RJ_DEVICE void take(const rj_moments<Sum>& state) {
        all.count += state.count;
        all.total.combine(state.total);
    }
    template <int kLanes>
    RJ_DEVICE void meet() {
        rj_sum<float> count = {all.count};
        rj_butterfly<kLanes>(count, all.total);
        all.count = count.value;
        all.average = count.value == 0.0f ? 0.0f : all.mean();
    }
    RJ_DEVICE void move(rj_moments<Sum>& state) const {
        const float apart = state.average - all.average;
        rj_moments<Sum> moved = all;
        moved.squares = state.squares;
        moved.squares.add(apart * apart * state.count);
        state = moved;
    }
};

// What differs of states that have one origin.
template <class State>
RJ_DEVICE State& rj_beyond_origin(State& state) {
    return state;
}
template <class Sum>
RJ_DEVICE Sum& rj_beyond_origin(rj_rescaled<Sum>& state) {
    return state.terms;
}
template <class Sum>
RJ_DEVICE typename rj_divergences<Sum>::Sums& rj_beyond_origin(rj_divergences<Sum>& state) {
    return state.sums;
}
template <class Sum>
RJ_DEVICE Sum& rj_beyond_origin(rj_moments<Sum>& state) {
    return state.squares;
}

template <int kLanes, class State>
RJ_DEVICE void rj_take_origin(State& state) {
    rj_origin<State> origin;
    origin.take(state);
    origin.template meet<kLanes>();
    origin.move(state);
}

// Folds the states over groups of kLanes neighbouring lanes; every lane gets the result.
template <int kLanes, class... States>
RJ_DEVICE void rj_fold_lanes(States&... states) {
    (rj_take_origin<kLanes>(states), ...);
    rj_fold_all<kLanes>(rj_beyond_origin(states)...);
}

// The states of a row's warps, pairwise: a chain would lose a rounding of the whole with every warp.
template <int kWarps, class State>
RJ_DEVICE State rj_gather_warps(int offset_bytes) {
    State state;
    if constexpr (kWarps == 1) {
        state = rj_shared_load<State>(offset_bytes);
    } else {
        constexpr int kFirst = rj_power_at_least(kWarps) / 2;
        state = rj_gather_warps<kFirst, State>(offset_bytes);
        state.combine(rj_gather_warps<kWarps - kFirst, State>(offset_bytes + kFirst * int(sizeof(State))));
    }
    return state;
}

// Lanes that fold kStates states together, each its own and those so many further on.
constexpr int rj_lanes_on(int states, int most) { return states < most ? rj_power_at_least(states) : most; }

// Of kStates states that lie one behind the other the k-th, which kLanes lanes take in turns; where no more are left,
// one that changes nothing.
template <int kStates, int kLanes, class State>
RJ_DEVICE State rj_load_state(int offset_bytes, int k) {
    if constexpr (kStates % kLanes != 0) {
        if (k >= kStates) return State();
    }
    return rj_shared_load<State>(offset_bytes + k * int(sizeof(State)));
}

// Whether the states of kWarps warps are several of one kind that need no common origin, and more than each lane may
// well read.
template <int kWarps, class State, class... More>
constexpr bool rj_meet_apart =
    rj_are_several<State, More...> && !rj_origin<State>::kIsOne && 1 + int(sizeof...(More)) <= RJ_WARP_SIZE &&
    kWarps * int(sizeof(State)) * (1 + int(sizeof...(More))) > 32;

// Folds such states over the warps of a row. Lanes store those that they have, each folds some warps' states of one,
// and all lanes get the results.
template <int kWarps, class State, class... More>
RJ_DEVICE void rj_all_reduce_apart(int thread, int offset_bytes, State& state, More&... more) {
    constexpr int kGiven = 1 + int(sizeof...(More));
    constexpr int kCount = rj_power_at_least(kGiven);
    const int lane = thread % RJ_WARP_SIZE;
    {
        State states[kCount] = {state, more...};
        State mine[1];
        rj_fold_apart<RJ_WARP_SIZE>(states, mine);
        const int of = lane / (RJ_WARP_SIZE / kCount);
        if (lane % (RJ_WARP_SIZE / kCount) == 0 && of < kGiven)
            rj_shared_store(offset_bytes + (of * kWarps + thread / RJ_WARP_SIZE) * int(sizeof(State)), mine[0]);
    }
    rj_barrier();
    constexpr int kLanes = rj_lanes_on(kWarps, RJ_WARP_SIZE / kCount);
    const int of = lane / kLanes % kCount;
    const int from = offset_bytes + (of < kGiven ? of : 0) * kWarps * int(sizeof(State));
    State mine[1] = {rj_load_state<kWarps, kLanes, State>(from, lane % kLanes)};
#pragma unroll
    for (int warp = kLanes; warp < kWarps; warp += kLanes)
        mine[0].combine(rj_load_state<kWarps, kLanes, State>(from, warp + lane % kLanes));
    rj_butterfly<kLanes>(mine[0]);
    rj_spread<kLanes * kCount, kCount>(mine, state, more...);
}

// Folds the states over the kThreads threads of a row (a power of two, or whole warps); every thread gets the result.
// `thread` is the thread within the row. Rows of more than a warp meet in shared memory at `offset_bytes`: every thread
// of the block has to call, and a second call must use another place or come after a barrier. Every warp folds the
// states of all of them: a few are read by each lane; many, one a lane, since together they would take more registers
// than a row leaves.
template <int kThreads, class... States>
RJ_DEVICE void rj_all_reduce(int thread, int offset_bytes, States&... states) {
    constexpr int kLanes = kThreads < RJ_WARP_SIZE ? kThreads : RJ_WARP_SIZE;
    constexpr int kWarps = kThreads / kLanes;
    if constexpr (kWarps == 1) {
        rj_fold_lanes<kLanes>(states...);
    } else if constexpr (rj_meet_apart<kWarps, States...>) {
        rj_all_reduce_apart<kWarps>(thread, offset_bytes, states...);
    } else {
        rj_fold_lanes<kLanes>(states...);
        int at = offset_bytes;
        if (thread % RJ_WARP_SIZE == 0) {
            const int warp = thread / RJ_WARP_SIZE;
            ((rj_shared_store(at + warp * int(sizeof(States)), states), at += kWarps * int(sizeof(States))), ...);
        }
        rj_barrier();
        at = offset_bytes;
        if constexpr (kWarps <= 4) {
            ((states = rj_gather_warps<kWarps, States>(at), at += kWarps * int(sizeof(States))), ...);
        } else {
            constexpr int kReaders = rj_lanes_on(kWarps, RJ_WARP_SIZE);
            ((states = rj_load_state<kWarps, kReaders, States>(at, thread % kReaders),
              at += kWarps * int(sizeof(States))),
             ...);
            rj_fold_lanes<kReaders>(states...);
        }
    }
}

// Places between the states of two threads that lie across kRows rows: an odd number, so that the lanes that read the
// states of one row meet in no bank.
constexpr int rj_across_stride(int rows) { return rows | 1; }

// Likewise for threads that lie across rows: kRows neighbours are at kRows rows, and a row's threads kRows apart. Their
// states change places in shared memory, so that those of a row are neighbours, fold in a warp, and come back. H200: of
// 32 threads, each adding up the states of all, a layer_norm's two sums took 760 instructions a warp, and now 190.
template <int kThreads, int kRows, class... States>
RJ_DEVICE void rj_all_reduce_across(int thread, int row, int offset_bytes, States&... states) {
    static_assert(kThreads <= RJ_WARP_SIZE, "the threads of a row fold in one warp");
    constexpr int kStride = rj_across_stride(kRows);
    constexpr int kPlaces = kThreads * kStride + kRows;  // the last are for what the rows come to
    const int turned_row = (thread * kRows + row) / kThreads;
    const int turned_thread = (thread * kRows + row) % kThreads;
    int at = offset_bytes;
    ((rj_shared_store(at + (thread * kStride + row) * int(sizeof(States)), states),
      at += kPlaces * int(sizeof(States))),
     ...);
    rj_barrier();
    at = offset_bytes;
    ((states = rj_shared_load<States>(at + (turned_thread * kStride + turned_row) * int(sizeof(States))),
      at += kPlaces * int(sizeof(States))),
     ...);
    (rj_take_origin<kThreads>(states), ...);
    rj_butterfly<kThreads>(rj_beyond_origin(states)...);  // not together: blocks of 1024 threads have 64 registers
    at = offset_bytes;
    if (turned_thread == 0) {
        ((rj_shared_store(at + (kThreads * kStride + turned_row) * int(sizeof(States)), states),
          at += kPlaces * int(sizeof(States))),
         ...);
    }
    rj_barrier();
    at = offset_bytes;
    ((states = rj_shared_load<States>(at + (kThreads * kStride + row) * int(sizeof(States))),
      at += kPlaces * int(sizeof(States))),
     ...);
}

// ---- steps

// Whether a condition, equal on the kThreads lanes of a row, holds for all rows of these kLanes lanes of a warp.
template <int kThreads, int kLanes>
RJ_DEVICE bool rj_all_rows(bool condition) {
    if constexpr (kThreads >= kLanes) {
        return condition;
    } else {
        const unsigned other = rj_shuffle_xor_word<kThreads>(condition ? 1u : 0u);
        return rj_all_rows<kThreads * 2, kLanes>(condition && other != 0u);
    }
}

// ---- sums over the rows of a block

// The largest power of two below the number of rows.
constexpr int rj_half_of_rows(int rows) {
    int half = 1;
    while (half * 2 < rows) half *= 2;
    return half;
}

// Adds the sums that the rows of a block carry, half of the rows to the other half until row 0 holds them: an order
// that depends on their number alone. Uses shared memory from its start, so it stands after the last row, where nothing
// else does. As many sums of a row at once as need no more of it than a row's own take (passes/barriers has the bytes).
template <int kRows, int kThreads, class T, int kCount>
RJ_DEVICE void rj_join_rows(int row, int thread, T (&sums)[kCount]) {
    constexpr int kHalf = rj_half_of_rows(kRows);
    constexpr int kAtOnce = kCount > kHalf ? kCount / kHalf : 1;
    const auto place = [&](int of, int k) { return ((of * kAtOnce + k) * kThreads + thread) * int(sizeof(T)); };
#pragma unroll
    for (int first = 0; first < kCount; first += kAtOnce) {
        for (int half = kHalf; half > 0; half /= 2) {
            rj_barrier();
            if (row >= half && row < 2 * half) {
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k)
                    if (first + k < kCount) rj_shared_store(place(row - half, k), sums[first + k]);
            }
            rj_barrier();
            if (row < half && row + half < kRows) {
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k)
                    if (first + k < kCount) sums[first + k] += rj_shared_load<T>(place(row, k));
            }
        }
    }
}
