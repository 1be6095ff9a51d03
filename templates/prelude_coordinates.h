// Coordinates of data, which may be negative or lie outside, the place in a sorted tensor that a row looks for, and
// sums of what its positions have for one place.

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

// Of a vector's neighbouring places what terms of the row's positions are for each, in the positions' order. The lanes
// of a team have one row, and their vectors lie side by side: those that are here look through the positions together,
// each at one of them, and add it where its place is kept, in shared memory from `offset_bytes` on, which has room for
// a vector of each thread. Several positions of one place take turns.
template <class Sum, int kTeam, int kLanes>
struct rj_sums_where {
    Sum sums[kLanes];

    // Of lane 0 first, which looks for all.
    template <class Place, class Term>
    RJ_DEVICE Sum at(int lane, long long place, int offset_bytes, const Place* places, long long places_stride,
                     const Term* terms, long long terms_stride, int count) {
        if (lane == 0) {
#pragma unroll
            for (int l = 0; l < kLanes; ++l) sums[l] = 0;
            if constexpr (kTeam == 1) {
                look(place, places, places_stride, terms, terms_stride, count);
            } else {
                look_together(place, offset_bytes, places, places_stride, terms, terms_stride, count);
            }
        }
        return sums[lane];
    }
    template <class Place, class Term>
    RJ_DEVICE void look(long long first, const Place* places, long long places_stride, const Term* terms,
                        long long terms_stride, int count) {
        RJ_ROLLED
        for (int k = 0; k < count; ++k) {
            const long long from_first = static_cast<long long>(rj_load_one(places + k * places_stride)) - first;
            if (!rj_inside(from_first, kLanes)) continue;
            const int lane = static_cast<int>(from_first);
            const Sum term = rj_load_one(terms + k * terms_stride);
#pragma unroll
            for (int l = 0; l < kLanes; ++l) {
                if (l == lane) sums[l] += term;
            }
        }
    }
    template <class Place, class Term>
    RJ_DEVICE void look_together(long long first, int offset_bytes, const Place* places, long long places_stride,
                                 const Term* terms, long long terms_stride, int count) {
        const int lane = rj_thread() % RJ_WARP_SIZE;
        const int first_lane = lane / kTeam * kTeam;
        const rj_lanes all = ~rj_lanes{0} >> (static_cast<int>(sizeof(rj_lanes)) * 8 - kTeam) << first_lane;
        const rj_lanes team = rj_here() & all;
        const int rank = rj_count_of(team & ((rj_lanes{1} << lane) - 1));
        const int size = rj_count_of(team);
        const int own_offset = offset_bytes + rj_thread() * kLanes * static_cast<int>(sizeof(Sum));
        const int team_offset = own_offset - (lane - first_lane) * kLanes * static_cast<int>(sizeof(Sum));
        const long long of_team = first - (lane - first_lane) * kLanes;
        // Most vectors have none of the positions: several are asked about at once.
        constexpr int kTurns = 4;
        bool any = false;
        RJ_ROLLED
        for (int k = rank; k < count + rank; k += kTurns * size) {
            int at[kTurns];  // the places', of the team's; -1 elsewhere
            bool is_near = false;
#pragma unroll
            for (int turn = 0; turn < kTurns; ++turn) {
                const int own = k + turn * size;
                at[turn] = -1;
                if (own >= count) continue;
                const long long from = static_cast<long long>(rj_load_one(places + own * places_stride)) - of_team;
                if (rj_inside(from, kTeam * kLanes)) at[turn] = static_cast<int>(from);
                is_near = is_near || at[turn] >= 0;
            }
            if (rj_ballot_of(team, is_near) == 0) continue;
            if (!any) rj_shared_store(own_offset, *this);
            any = true;
            rj_meet_lanes(team);
#pragma unroll
            for (int turn = 0; turn < kTurns; ++turn) {
                const bool is_here = at[turn] >= 0 && (team >> (first_lane + at[turn] / kLanes) & 1) != 0;
                add_together(team, is_here, team_offset + at[turn] * static_cast<int>(sizeof(Sum)),
                             terms + (k + turn * size) * terms_stride);
            }
        }
        if (any) *this = rj_shared_load<rj_sums_where>(own_offset);
        rj_meet_lanes(team);  // before another vector's sums lie there
    }
    // A lane's term to what lies at its offset; those of one offset in the lanes' order.
    template <class Term>
    static RJ_DEVICE void add_together(rj_lanes team, bool is_here, int offset, const Term* term) {
        const rj_lanes found = rj_ballot_of(team, is_here);
        if (found == 0) return;
        int before = -1;
        Sum added = 0;
        if (is_here) {
            before = rj_equals_before(found, offset);
            added = rj_load_one(term);
        }
        int now = 0;
        do {
            if (before == now) rj_shared_store(offset, rj_shared_load<Sum>(offset) + added);
            rj_meet_lanes(team);
        } while (rj_ballot_of(team, before > now++) != 0);
    }
};
// Likewise of one place, for a lane alone.
template <class Sum, class Place, class Term>
RJ_DEVICE Sum rj_sum_where(long long place, const Place* places, long long places_stride, const Term* terms,
                           long long terms_stride, int count) {
    rj_sums_where<Sum, 1, 1> sums;
    return sums.at(0, place, 0, places, places_stride, terms, terms_stride, count);
}
