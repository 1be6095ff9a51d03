// The greatest elements of a row and their places, in one pass: each warp keeps its own, and the warps meet once.

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

// The same of a row that a part of a warp has, or one thread: every thread keeps kCount keys. A vector's are put in
// order (Batcher's odd-even merge sort), and of two lists in order the greater half is half of a bitonic sort, as where
// threads meet. Keys of narrow floats are of 32 bits, an element's upper 19 and those of a place below 8192.
template <bool kNarrow>
struct rj_few_key {
    using Type = unsigned long long;
};
template <>
struct rj_few_key<true> {
    using Type = unsigned;
};
template <int kCount, bool kNarrow>
struct rj_few_greatest {
    using Key = typename rj_few_key<kNarrow>::Type;
    static constexpr unsigned kPlaces = 0x1fffu;
    static constexpr int kSorted = kCount > 4 ? 8 : kCount > 2 ? 4 : kCount;  // they are at most eight
    Key kept[kSorted] = {};                                                   // the greatest first; 0 is none

    template <int N>
    RJ_DEVICE void offer(bool has_any, const float (&elements)[N], const int (&places)[N]) {
        Key keys[N];
#pragma unroll
        for (int k = 0; k < N; ++k) keys[k] = has_any ? key(elements[k], places[k]) : 0;
        if (N < 4 || kSorted <= 2) {
#pragma unroll
            for (int k = 0; k < N; ++k) insert(keys[k]);
        } else {
            sort(keys);
            merge(keys);
        }
    }
    RJ_DEVICE void insert(Key added) {
#pragma unroll
        for (int r = 0; r < kSorted; ++r) order(kept[r], added);
    }
    // The greatest of both lists.
    template <int N>
    RJ_DEVICE void merge(const Key (&others)[N]) {
#pragma unroll
        for (int r = 0; r < kSorted; ++r) {
            if (r >= N) continue;
            Key& last = kept[kSorted - 1 - r];
            last = last < others[r % N] ? others[r % N] : last;
        }
#pragma unroll
        for (int apart = kSorted / 2; apart > 0; apart /= 2) {
#pragma unroll
            for (int r = 0; r < kSorted; ++r) {
                if ((r & apart) == 0) order(kept[r], kept[(r + apart) % kSorted]);
            }
        }
    }
    template <int kMask>
    RJ_DEVICE void meet() {
        Key others[kSorted];
#pragma unroll
        for (int r = 0; r < kSorted; ++r) others[r] = from_lane_xor<kMask>(kept[r]);
        merge(others);
    }
    template <int kRank>
    RJ_DEVICE int place() const {
        const unsigned below = ~static_cast<unsigned>(kept[kRank]);
        return static_cast<int>(kNarrow ? below & kPlaces : below);
    }

    template <int N>
    static RJ_DEVICE void sort(Key (&keys)[N]) {
#pragma unroll
        for (int sorted = 1; sorted < N; sorted *= 2) {
#pragma unroll
            for (int apart = sorted; apart > 0; apart /= 2) {
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    const int first = apart % sorted;  // of those that have another
                    const bool has_other = k >= first && (k - first) / apart % 2 == 0 && k + apart < N;
                    const bool in_one_list = k / (sorted * 2) == (k + apart) / (sorted * 2);
                    if (has_other && in_one_list) order(keys[k], keys[(k + apart) % N]);
                }
            }
        }
    }
    static RJ_DEVICE void order(unsigned& greater, unsigned& less) {
        const unsigned least = greater < less ? greater : less;
        greater = greater < less ? less : greater;
        less = least;
    }
    // Both halves of both by one comparison.
    static RJ_DEVICE void order(unsigned long long& greater, unsigned long long& less) {
        const bool swaps = rj_is_less(greater, less);
        const unsigned long long first = chosen(swaps, less, greater);
        less = chosen(swaps, greater, less);
        greater = first;
    }
    static RJ_DEVICE unsigned long long chosen(bool first, unsigned long long a, unsigned long long b) {
        const unsigned low = first ? static_cast<unsigned>(a) : static_cast<unsigned>(b);
        const unsigned high = first ? static_cast<unsigned>(a >> 32) : static_cast<unsigned>(b >> 32);
        return low | static_cast<unsigned long long>(high) << 32;
    }
    static RJ_DEVICE Key key(float element, int place) {
        const unsigned long long whole = rj_greatest<1>::key(element, place);
        if (!kNarrow) return static_cast<Key>(whole);
        return (static_cast<unsigned>(whole >> 32) & ~kPlaces) | (static_cast<unsigned>(whole) & kPlaces);
    }
    template <int kMask>
    static RJ_DEVICE Key from_lane_xor(Key key) {
        if (kNarrow) return rj_shuffle_xor_word<kMask>(static_cast<unsigned>(key));
        return static_cast<Key>(rj_shuffle_xor<kMask>(static_cast<long long>(key)));
    }
};

// Every thread of the row's gets the result, and has to call.
template <int kThreads, int kCount, bool kNarrow>
RJ_DEVICE void rj_meet_greatest(int thread, int offset_bytes, rj_few_greatest<kCount, kNarrow>& state) {
    if constexpr (kThreads > 1) {
        rj_meet_greatest<kThreads / 2>(thread, offset_bytes, state);
        state.template meet<kThreads / 2>();
    }
}

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
