// Reductions over a row whose threads are a cluster of blocks (NVIDIA, from sm_90 on). Follows prelude_all_reduce.h for
// targets that have clusters; the vendor's half, or the tests' SIMT shim, supplies
//
//   rj_cluster_open<count>(mailboxes)             thread 0 makes transaction barriers there; all threads of the cluster
//   rj_cluster_wait                               call it, and wait, once, before the first of them sends
//   rj_mailbox_expect(mailbox, bytes)             one thread a block and turn: the turn ends when so many have come
//   rj_mailbox_wait(mailbox, parity)              until the turn of that parity has ended; orders what was sent
//   rj_cluster_send<T>(block, offset, value,
//                      mailbox)                   into the shared memory of the cluster's block of that rank

#ifndef RJ_MOST_MESSAGES
#define RJ_MOST_MESSAGES 32
#endif

// The states of all the cluster's warps, or of its blocks, `kStates` of them in this block's shared memory: each lane
// takes every 32nd, in order, and the lanes fold theirs.
template <int kStates, class State>
RJ_DEVICE State rj_gather_cluster(int lane, int offset_bytes) {
    constexpr int kLanes = rj_lanes_on(kStates, RJ_WARP_SIZE);
    const int first = lane % kLanes;
    rj_origin<State> origin;
#pragma unroll
    for (int k = 0; k < kStates; k += kLanes)
        origin.take(rj_load_state<kStates, kLanes, State>(offset_bytes, first + k));
    origin.template meet<kLanes>();
    State state = rj_load_state<kStates, kLanes, State>(offset_bytes, first);
    origin.move(state);
#pragma unroll
    for (int k = kLanes; k < kStates; k += kLanes) {
        State other = rj_load_state<kStates, kLanes, State>(offset_bytes, first + k);
        origin.move(other);
        rj_beyond_origin(state).combine(rj_beyond_origin(other));
    }
    rj_butterfly<kLanes>(rj_beyond_origin(state));
    return state;
}

// Whether a block's warps meet before one of them sends for all: a barrier more, and as many messages less as there are
// warps.
constexpr bool rj_meets_in_block(int warps, int blocks) { return warps * blocks > RJ_MOST_MESSAGES; }

// Folds the states over a block's warps' lanes and sends them, at `offset_bytes`, to all blocks of the cluster: a lane
// to each. `thread` is the thread within its block and `block` the block's rank. What a block's warps meet over lies
// behind what blocks send.
template <int kThreads, int kBlocks, class... States>
RJ_DEVICE void rj_send_to_cluster(int thread, int block, int offset_bytes, int mailbox, States&... states) {
    constexpr int kWarps = kThreads / RJ_WARP_SIZE;
    constexpr int kStates = kWarps * kBlocks;
    constexpr bool kMeets = rj_meets_in_block(kWarps, kBlocks);
    if (thread == 0) rj_mailbox_expect(mailbox, (int(sizeof(States)) + ...) * (kMeets ? kBlocks : kStates));
    rj_fold_lanes<RJ_WARP_SIZE>(states...);
    const int warp = thread / RJ_WARP_SIZE;
    const int lane = thread % RJ_WARP_SIZE;
    int at = offset_bytes;
    if constexpr (kMeets) {
        if (lane == 0) {
            ((rj_shared_store(at + (kBlocks + warp) * int(sizeof(States)), states),
              at += kStates * int(sizeof(States))),
             ...);
        }
        rj_barrier();
        if (warp > 0) return;
        at = offset_bytes;
        ((states = rj_gather_cluster<kWarps, States>(lane, at + kBlocks * int(sizeof(States))),
          at += kStates * int(sizeof(States))),
         ...);
        at = offset_bytes;
    }
    if (lane < kBlocks) {
        const int place = kMeets ? block : block * kWarps + warp;
        ((rj_cluster_send(lane, at + place * int(sizeof(States)), states, mailbox),
          at += kStates * int(sizeof(States))),
         ...);
    }
}

// Waits for the states of all the cluster's warps and folds them; every thread gets the result.
template <int kThreads, int kBlocks, class... States>
RJ_DEVICE void rj_take_from_cluster(int thread, int offset_bytes, int mailbox, int parity, States&... states) {
    constexpr int kWarps = kThreads / RJ_WARP_SIZE;
    constexpr int kStates = kWarps * kBlocks;
    constexpr int kSent = rj_meets_in_block(kWarps, kBlocks) ? kBlocks : kStates;
    const int lane = thread % RJ_WARP_SIZE;
    rj_mailbox_wait(mailbox, parity);
    int at = offset_bytes;
    ((states = rj_gather_cluster<kSent, States>(lane, at), at += kStates * int(sizeof(States))), ...);
}

// Folds the states over the kBlocks x kThreads threads of a row, whole warps in each block; every thread gets the
// result. Every thread of the cluster has to call; between two calls with one place there must be one with another.
template <int kThreads, int kBlocks, class... States>
RJ_DEVICE void rj_all_reduce_cluster(int thread, int block, int offset_bytes, int mailbox, int parity,
                                     States&... states) {
    rj_send_to_cluster<kThreads, kBlocks>(thread, block, offset_bytes, mailbox, states...);
    rj_take_from_cluster<kThreads, kBlocks>(thread, offset_bytes, mailbox, parity, states...);
}
