// Global memory: N elements at an address aligned to them, in accesses of at most 16 bytes, and rows that begin at any
// element. "readonly" is for tensors that nothing writes while the kernel runs.

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
