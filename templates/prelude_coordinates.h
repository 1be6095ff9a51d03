// Coordinates of data, which may be negative or lie outside, and the place in a sorted tensor that a row looks for.

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
