// Timing executables fairly: random inputs, several buffer sets in rotation so that the cache is cold, all candidates
// and a plain copy of the same bytes interleaved round by round, medians over rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dsl/graph.h"
#include "dsl/tensor.h"
#include "rowjit/engine.h"

namespace rowjit {

struct MeasureOptions {
    int rounds = 7;        // interleaved passes over all candidates
    double target_ms = 3;  // repetitions in a round are chosen to take about this long for one candidate
    int max_repetitions = 50;
    std::int64_t cold_bytes = 0;  // buffers rotate over at least this much; 0: four times the last cache
    std::function<void(std::size_t candidate)> before = {};  // called before each candidate's turn
};

struct Timing {
    std::vector<double> samples_ms;  // one median per round
    double median_ms = 0;
    double spread = 0;  // (upper quartile − lower quartile) / median
};

struct Measurement {
    std::vector<Timing> candidates;  // in the order given
    Timing copy;                     // a copy that moves as many bytes as the graph must, read plus written
    std::int64_t least_bytes = 0;
};

// All executables compute `graph`. Device memory: the tensors, rotated; throws Error(kEnvironment) when it does not
// fit.
Measurement measure(const Device& device, const std::vector<Executable>& executables, const GraphData& graph,
                    const RowExtents& rows, const MeasureOptions& options = {});

// least time over measured time, as a share of the copy's rate: 1 is a perfect kernel.
double share_of_copy(const Measurement& measurement, std::size_t candidate);

}  // namespace rowjit
