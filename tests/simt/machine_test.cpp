// The SIMT machine itself: each fault it promises to see, it sees.
#include "tests/simt/machine.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

using namespace rowjit::simt;

TEST_CASE("a butterfly of shuffles gives every lane the warp's sum") {
    std::vector<unsigned> sums(128, 0);
    const Launch launch{.grid = 2, .block = 64, .warp = 32};
    const std::string fault = run(launch, [&] {
        unsigned sum = static_cast<unsigned>(rj_simt_thread());
        for (int mask = 16; mask > 0; mask /= 2) sum += rj_simt_shuffle_xor(sum, mask);
        sums[static_cast<std::size_t>(rj_simt_block() * 64 + rj_simt_thread())] = sum;
    });
    CHECK(fault == "");
    for (std::size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == (i % 64 < 32 ? 496U : 1520U));
}

TEST_CASE("shared memory written before a barrier is read after it") {
    const std::string fault = run({.grid = 1, .block = 32, .warp = 32, .shared_bytes = 128}, [] {
        *rj_simt_shared(rj_simt_thread() * 4, 4, true) = static_cast<unsigned char>(rj_simt_thread());
        rj_simt_barrier();
        const unsigned char neighbour = *rj_simt_shared((rj_simt_thread() + 1) % 32 * 4, 4, false);
        if (neighbour != (rj_simt_thread() + 1) % 32) rj_simt_fault("the neighbour's value did not arrive");
    });
    CHECK(fault == "");
}

TEST_CASE("a read with no barrier after another thread's write is a race") {
    const std::string fault = run({.grid = 1, .block = 2, .warp = 32, .shared_bytes = 8}, [] {
        if (rj_simt_thread() == 0) rj_simt_shared(0, 4, true);
        if (rj_simt_thread() == 1) rj_simt_shared(0, 4, false);
    });
    CHECK(fault.find("race") != std::string::npos);
}

TEST_CASE("a write with no barrier after another thread's read is a race") {
    const std::string fault = run({.grid = 1, .block = 2, .warp = 32, .shared_bytes = 8}, [] {
        if (rj_simt_thread() == 0) rj_simt_shared(0, 4, true);
        rj_simt_barrier();
        rj_simt_shared(0, 4, rj_simt_thread() == 1);
    });
    CHECK(fault.find("race") != std::string::npos);
}

TEST_CASE("a barrier that some threads never reach is a fault") {
    const std::string fault = run({.grid = 1, .block = 4, .warp = 32}, [] {
        if (rj_simt_thread() != 2) rj_simt_barrier();
    });
    CHECK(fault.find("never reach") != std::string::npos);
}

TEST_CASE("a shuffle that some lanes never reach is a fault") {
    const std::string fault = run({.grid = 1, .block = 32, .warp = 32}, [] {
        if (rj_simt_thread() < 16) rj_simt_shuffle_xor(1, 8);
    });
    CHECK(fault.find("never reach") != std::string::npos);
}

TEST_CASE("what a block of a cluster sends to another is there when its turn has ended, turn after turn") {
    const Launch launch{.grid = 4, .block = 32, .warp = 32, .shared_bytes = 32, .cluster = 2};
    const std::string fault = run(launch, [] {
        const int rank = rj_simt_block() % 2;
        rj_simt_cluster_open(16, 2);
        rj_simt_cluster_wait();
        for (int turn = 0; turn < 5; ++turn) {
            const int place = turn % 2 * 4;
            const int mailbox = 16 + turn % 2 * 8;
            if (rj_simt_thread() == 0) {
                rj_simt_mailbox_expect(mailbox, 4);
                *rj_simt_cluster_send(1 - rank, place, 4, mailbox) = static_cast<unsigned char>(7 * turn + rank);
            }
            rj_simt_mailbox_wait(mailbox, turn / 2 % 2);
            const unsigned char got = *rj_simt_shared(place, 4, false);
            if (got != 7 * turn + 1 - rank) rj_simt_fault("the other block's value did not arrive");
            rj_simt_shuffle_xor(0, 1);
        }
    });
    CHECK(fault == "");
}

TEST_CASE("what was sent and not waited for is a race to read, and to send again before the other has read") {
    const Launch launch{.grid = 2, .block = 1, .warp = 32, .shared_bytes = 16, .cluster = 2};
    const auto body = [](bool wait, int turns) {
        return [wait, turns] {
            rj_simt_cluster_open(8, 1);
            rj_simt_cluster_wait();
            for (int turn = 0; turn < turns; ++turn) {
                rj_simt_mailbox_expect(8, 4);
                rj_simt_cluster_send(1 - rj_simt_block(), 0, 4, 8);
                if (wait) rj_simt_mailbox_wait(8, turn % 2);
                if (!wait) rj_simt_barrier();
                rj_simt_shared(0, 4, false);
            }
            rj_simt_cluster_wait();
        };
    };
    CHECK(run(launch, body(true, 1)) == "");
    CHECK(run(launch, body(false, 1)).find("race") != std::string::npos);
    CHECK(run(launch, body(true, 2)).find("race") != std::string::npos);  // one place is not enough for turn after turn
}

TEST_CASE("a turn that never ends, a mailbox that is not there and a message to a block that has ended are faults") {
    const Launch launch{.grid = 2, .block = 2, .warp = 32, .shared_bytes = 16, .cluster = 2};
    const std::string waiting = run(launch, [] {
        rj_simt_cluster_open(8, 1);
        rj_simt_cluster_wait();
        if (rj_simt_thread() == 0) rj_simt_mailbox_expect(8, 4);
        rj_simt_mailbox_wait(8, 0);
    });
    CHECK(waiting.find("never reach") != std::string::npos);
    const std::string missing = run(launch, [] { rj_simt_mailbox_expect(8, 4); });
    CHECK(missing.find("no mailbox") != std::string::npos);
    const std::string ended = run(launch, [] {
        rj_simt_cluster_open(8, 1);
        rj_simt_cluster_wait();
        if (rj_simt_block() == 0) return;
        rj_simt_cluster_send(0, 0, 4, 8);
    });
    CHECK(ended.find("has ended") != std::string::npos);
}

TEST_CASE("shared memory past the block's, unwritten or unaligned is a fault") {
    const Launch launch{.grid = 1, .block = 1, .warp = 32, .shared_bytes = 16};
    CHECK(run(launch, [] { rj_simt_shared(16, 4, true); }).find("of 16") != std::string::npos);
    CHECK(run(launch, [] { rj_simt_shared(0, 4, false); }).find("before it is written") != std::string::npos);
    CHECK(run(launch, [] { rj_simt_shared(2, 4, true); }).find("not aligned") != std::string::npos);
}
