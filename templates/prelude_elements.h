// Elements: storage types, the type that a value of each has in a kernel, and vectors of them as words. bf16 and f16
// are computed on as f32.

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
