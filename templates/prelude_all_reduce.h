// Where threads meet: those of a row, until all have one state, lanes by shuffles and warps in shared memory; rows of a
// warp, over whether all have ended their steps; and rows of a block, whose sums are added.

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
template <class State>
struct rj_greatest_origin {
    static constexpr bool kIsOne = true;
    rj_maximum<float> top;

    RJ_DEVICE void take(const State& state) { top.add_one(state.greatest); }
    template <int kLanes>
    RJ_DEVICE void meet() {
        rj_butterfly<kLanes>(top);
    }
    RJ_DEVICE void move(State& state) const { state.move_to(top.value); }
};
template <class Sum>
struct rj_origin<rj_rescaled<Sum>> : rj_greatest_origin<rj_rescaled<Sum>> {};
template <class Sum>
struct rj_origin<rj_entropies<Sum>> : rj_greatest_origin<rj_entropies<Sum>> {};
template <class Sum>
struct rj_origin<rj_weighings<Sum>> : rj_greatest_origin<rj_weighings<Sum>> {};
template <class Sum, bool kCross>
struct rj_origin<rj_divergences<Sum, kCross>> {
    static constexpr bool kIsOne = true;
    rj_maximum<float> top;
    rj_maximum<float> other_top;

    RJ_DEVICE void take(const rj_divergences<Sum, kCross>& state) {
        top.add_one(state.greatest);
        other_top.add_one(state.other_greatest);
    }
    template <int kLanes>
    RJ_DEVICE void meet() {
        rj_butterfly<kLanes>(top, other_top);
    }
    RJ_DEVICE void move(rj_divergences<Sum, kCross>& state) const { state.move_to(top.value, other_top.value); }
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
RJ_DEVICE typename rj_entropies<Sum>::Sums& rj_beyond_origin(rj_entropies<Sum>& state) {
    return state.sums;
}
template <class Sum>
RJ_DEVICE typename rj_weighings<Sum>::Sums& rj_beyond_origin(rj_weighings<Sum>& state) {
    return state.sums;
}
template <class Sum, bool kCross>
RJ_DEVICE typename rj_divergences<Sum, kCross>::Sums& rj_beyond_origin(rj_divergences<Sum, kCross>& state) {
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

// ---- what the rows of a block come to

// The largest power of two below the number of rows.
constexpr int rj_half_of_rows(int rows) {
    int half = 1;
    while (half * 2 < rows) half *= 2;
    return half;
}

template <class T, int kCount>
RJ_DEVICE void rj_fill(T (&values)[kCount], T value) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = value;
}

// Brings what the rows of a block carry together, half of the rows with the other half until row 0 holds all: an order
// that depends on their number alone. Uses shared memory from its start, so it stands after the last row, where nothing
// else does. As many values of a row at once as need no more of it than a row's own take (passes/barriers has the
// bytes).
template <int kRows, int kThreads, class T, int kCount, class Operation>
RJ_DEVICE void rj_join_rows(int row, int thread, T (&values)[kCount], Operation operation) {
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
                    if (first + k < kCount) rj_shared_store(place(row - half, k), values[first + k]);
            }
            rj_barrier();
            if (row < half && row + half < kRows) {
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k)
                    if (first + k < kCount)
                        values[first + k] = operation(values[first + k], rj_shared_load<T>(place(row, k)));
            }
        }
    }
}

// Likewise what each of a thread's columns' moments are.
template <int kRows, int kThreads, int kCount>
RJ_DEVICE void rj_join_moments(int row, int thread, rj_deviations_of_rows (&values)[kCount], rj_counted_rows& rows) {
    rj_moments_of_rows all[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) all[k] = {rows.count, values[k].total, values[k].squares};
    rj_join_rows<kRows, kThreads>(row, thread, all, [](auto a, auto b) {
        a.combine(b);
        return a;
    });
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = {all[k].total, all[k].squares};
    rows.count = all[0].count;
}
