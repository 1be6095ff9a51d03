// The stable order of ids by one digit of the row that each is of, for the kernels that make a pass of it. Follows
// prelude_all_reduce.h.
//
// Ids are dealt out in runs, one to each warp of each block, in their order. A kernel counts how many ids of each digit
// a block has; the next finds from the counts of all blocks where the first of its own go, and behind which others of
// the block each warp's. Nothing is added by two warps in one place, so that the order is stable, and the same in every
// launch whatever number of blocks it has, if both kernels have as many.
//
// A warp takes its run a step at a time, an id to each lane. Lanes whose ids have one digit find each other by a ballot
// for each of its bits: they stand in order, and the first of them keeps the count for the steps to come. 16384 ids are
// four steps for each warp of sixteen blocks, whose ids are all asked for before the first step.

// In the order that they stand in, or that passes before this one have come to.
struct rj_as_they_are {
    RJ_DEVICE long long position(long long place) const { return place; }
};
struct rj_ordered {
    const long long* positions;
    long long stride;
    RJ_DEVICE long long position(long long place) const { return rj_load_one(positions + place * stride); }
};

template <class Id, class Before>
struct rj_ids_of_rows {
    const Id* ids;
    long long stride;
    long long count;
    long long rows;
    Before before;

    // The row of the id at a position, from 1 on; 0 of what is before the first, the last number of what is past the
    // last.
    RJ_DEVICE long long kind(long long position) const {
        const long long id = rj_load_one(ids + position * stride);
        return (id < 0 ? -1 : id < rows ? id : rows) + 1;
    }
};

template <int kThreads, int kShift, int kBits>
struct rj_digit {
    static constexpr int kKinds = 1 << kBits;
    static constexpr int kWarps = kThreads / RJ_WARP_SIZE;
    static constexpr int kWarpBytes = kKinds * 4;  // of its counts, in shared memory one warp's behind the other's
    static constexpr int kSumsBytes = kWarps * kWarpBytes;  // behind them, a number for each warp
    static constexpr int kSharedBytes = kSumsBytes + kWarps * 4;
    static constexpr int kStepsAtOnce = 4;

    // Of the block's ids, beside those of the other blocks.
    template <class Ids>
    static RJ_DEVICE void count(const Ids& ids, int* counts) {
        count_by_warp(ids);
        rj_barrier();
        int* const of_block = counts + static_cast<long long>(rj_block()) * kKinds;
        for (int kind = rj_thread(); kind < kKinds; kind += kThreads) {
            unsigned all = 0;
#pragma unroll
            for (int warp = 0; warp < kWarps; ++warp) all += rj_shared_load<unsigned>(place_of(warp, kind));
            rj_store_one(of_block + kind, static_cast<int>(all));
        }
    }

    template <class Ids>
    static RJ_DEVICE void order(const Ids& ids, const int* counts, long long* result, long long stride) {
        count_by_warp(ids);
        find_starts(counts);
        each_step(ids, [&](const step& now) {
            unsigned start = 0;
            if (now.inside) start = rj_shared_load<unsigned>(place_of(warp(), now.digit));
            rj_meet_warp();
            if (now.is_first()) rj_shared_store(place_of(warp(), now.digit), start + rj_count_of(now.alike));
            rj_meet_warp();
            if (now.inside)
                rj_store_one(result + (start + static_cast<long long>(now.before())) * stride, now.position);
        });
    }

    static RJ_DEVICE int lane() { return rj_thread() % RJ_WARP_SIZE; }
    static RJ_DEVICE int warp() { return rj_thread() / RJ_WARP_SIZE; }
    static RJ_DEVICE int place_of(int warp, int kind) { return warp * kWarpBytes + kind * 4; }

    // One id, and the lanes of the warp whose ids have its digit.
    struct step {
        long long position;
        int digit;
        bool inside;  // there is such an id
        rj_lanes alike;

        RJ_DEVICE bool is_first() const { return inside && before() == 0; }
        RJ_DEVICE int before() const { return rj_count_of(alike & ((rj_lanes{1} << lane()) - 1)); }
        RJ_DEVICE void meet() {
            alike = rj_ballot(inside);
#pragma unroll
            for (int bit = 0; bit < kBits; ++bit) {
                const bool is_set = (digit >> bit & 1) != 0;
                const rj_lanes set = rj_ballot(is_set);
                alike &= is_set ? set : ~set;
            }
        }
    };

    // Calls use(step) for each id of the warp's run, with all lanes of the warp.
    template <class Ids, class Use>
    static RJ_DEVICE void each_step(const Ids& ids, const Use& use) {
        const long long warps = static_cast<long long>(rj_grid(kThreads)) * kWarps;
        const long long steps = rj_quotient(ids.count + warps * RJ_WARP_SIZE - 1, warps * RJ_WARP_SIZE);
        const long long begin = (static_cast<long long>(rj_block()) * kWarps + warp()) * steps * RJ_WARP_SIZE;
        const long long run_end = begin + steps * RJ_WARP_SIZE;
        const long long end = run_end < ids.count ? run_end : ids.count;
        RJ_ROLLED
        for (long long first = begin; first < end; first += kStepsAtOnce * RJ_WARP_SIZE) {
            step at[kStepsAtOnce];
#pragma unroll
            for (int i = 0; i < kStepsAtOnce; ++i) {
                const long long place = first + i * RJ_WARP_SIZE + lane();
                at[i].inside = place < end;
                at[i].position = at[i].inside ? ids.before.position(place) : 0;
            }
#pragma unroll
            for (int i = 0; i < kStepsAtOnce; ++i) {
                const long long kind = at[i].inside ? ids.kind(at[i].position) : 0;
                at[i].digit = static_cast<int>(kind >> kShift) & (kKinds - 1);
            }
#pragma unroll
            for (int i = 0; i < kStepsAtOnce; ++i) {
                if (first + i * RJ_WARP_SIZE >= end) break;
                at[i].meet();
                use(at[i]);
            }
        }
    }

    template <class Ids>
    static RJ_DEVICE void count_by_warp(const Ids& ids) {
        for (int kind = lane(); kind < kKinds; kind += RJ_WARP_SIZE) rj_shared_store(place_of(warp(), kind), 0u);
        rj_meet_warp();
        each_step(ids, [&](const step& now) {
            if (now.is_first()) {
                const int place = place_of(warp(), now.digit);
                rj_shared_store(place, rj_shared_load<unsigned>(place) + rj_count_of(now.alike));
            }
            rj_meet_warp();
        });
    }

    // Where the first id of each digit goes that each warp has, in the place of how many those are: behind all ids of
    // lesser digits, those of the digit in the blocks before and in the warps before. A thread has neighbouring digits.
    static RJ_DEVICE void find_starts(const int* counts) {
        constexpr int kOfThread = (kKinds + kThreads - 1) / kThreads;
        const int first = rj_thread() * kOfThread;
        unsigned all[kOfThread] = {};
        unsigned before[kOfThread] = {};
        unsigned of_thread = 0;
        if (first < kKinds) {
            const int blocks = rj_grid(kThreads);
#pragma unroll 4
            for (int block = 0; block < blocks; ++block) {
#pragma unroll
                for (int k = 0; k < kOfThread; ++k) {
                    const unsigned there = rj_load_one(counts + static_cast<long long>(block) * kKinds + first + k);
                    all[k] += there;
                    before[k] += block < rj_block() ? there : 0;
                }
            }
#pragma unroll
            for (int k = 0; k < kOfThread; ++k) of_thread += all[k];
        }
        unsigned lesser = of_thread;  // with the thread's own
#pragma unroll
        for (int distance = 1; distance < RJ_WARP_SIZE; distance *= 2) {
            const unsigned other =
                rj_shuffle_from_word<RJ_WARP_SIZE>(lesser, lane() < distance ? lane() : lane() - distance);
            lesser += lane() < distance ? 0 : other;
        }
        if (lane() == RJ_WARP_SIZE - 1) rj_shared_store(kSumsBytes + warp() * 4, lesser);
        rj_barrier();
        lesser -= of_thread;
        for (int other = 0; other < warp(); ++other) lesser += rj_shared_load<unsigned>(kSumsBytes + other * 4);
        if (first < kKinds) {
#pragma unroll
            for (int k = 0; k < kOfThread; ++k) {
                unsigned start = lesser + before[k];
#pragma unroll
                for (int warp = 0; warp < kWarps; ++warp) {
                    const int place = place_of(warp, first + k);
                    const unsigned own = rj_shared_load<unsigned>(place);
                    rj_shared_store(place, start);
                    start += own;
                }
                lesser += all[k];
            }
        }
        rj_barrier();
    }
};
