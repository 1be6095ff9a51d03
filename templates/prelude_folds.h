// Reductions whose state is one value folded by one operation: a sum, a maximum, a minimum. Other states are in the
// three files that follow; what threads do with the states of a row is in prelude_all_reduce.h.
//
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
    // Products that are not rounded before they are added, in two chains, so that one need not wait for the other. Both
    // are a vector's own: a square of an odd number is 1 modulo 8, so that of narrow numbers' squares what a long sum
    // rounds off is less than half more often than not (65536 squares of bf16, each added to the sum by itself: 2.5e-7
    // too little, four units of it). The sum of a vector's has no such bits.
    template <int N>
    RJ_DEVICE void add_products(const float (&a)[N], const float (&b)[N]) {
        if (N == 1) {
            value = rj_fma(a[0], b[0], value);
            return;
        }
        float even = a[0] * b[0];
        float odd = a[N > 1] * b[N > 1];
#pragma unroll
        for (int l = 2; l + 1 < N; l += 2) {
            even = rj_fma(a[l], b[l], even);
            odd = rj_fma(a[l + 1], b[l + 1], odd);
        }
        value += N % 2 == 0 ? even + odd : rj_fma(a[N - 1], b[N - 1], even + odd);
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
