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

TEST_CASE("shared memory past the block's, unwritten or unaligned is a fault") {
    const Launch launch{.grid = 1, .block = 1, .warp = 32, .shared_bytes = 16};
    CHECK(run(launch, [] { rj_simt_shared(16, 4, true); }).find("of 16") != std::string::npos);
    CHECK(run(launch, [] { rj_simt_shared(0, 4, false); }).find("before it is written") != std::string::npos);
    CHECK(run(launch, [] { rj_simt_shared(2, 4, true); }).find("not aligned") != std::string::npos);
}
