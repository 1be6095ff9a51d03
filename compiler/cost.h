// What a kernel with its schedule is predicted to take on a GPU: terms that are counted in the loop IR, and constants
// that are fitted to measured candidates (benchmarks/fit_cost.py, docs/performance.md). The planner's predicted_us()
// knows no schedule; this is for comparing schedules, and for saying what limits one.
#pragma once

#include <cstdint>

#include "base/target.h"
#include "compiler/kernel.h"

namespace rowjit {

// Times in microseconds with everything else free of charge, and what happens one after the other in one of the places
// that blocks take turns in.
struct CostTerms {
    double memory_us = 0;   // every tensor once, and once more what no cache holds until then, at a large copy's rate
    double again_us = 0;    // what a cache does hold, likewise
    double issue_us = 0;    // instructions of every lane
    double special_us = 0;  // of them those that few lanes of a multiprocessor do: exp, divisions
    double turns = 0;       // blocks, or rows of blocks that stay, that a place has one after the other
    double loads = 0;       // in a turn, loads that nothing is in flight before
    double fetched = 0;     // 1 where the first are made a turn before
    double bare_turns = 0;  // 1 in a cluster that stays and whose rows have nothing of the next in flight
    double block_meetings = 0;        // in a turn, reductions over a block
    double cluster_meetings = 0;      // likewise over a cluster, in steps of doubling its blocks
    std::int64_t registers = 0;       // of a thread, estimated
    std::int64_t blocks_at_once = 0;  // on a multiprocessor, by those
};

// With every run-time row axis at `extent`. No turns where the model has nothing to say: on a CPU, and of a kernel that
// reduces over rows.
CostTerms cost_terms(const Kernel& kernel, const Target& target, std::int64_t extent);

// 0 where it has nothing to say.
double predicted_us(const CostTerms& terms);

}  // namespace rowjit
