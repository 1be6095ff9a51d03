// Finding the best schedule by measuring: candidates from the families, compiled in parallel, each checked against the
// oracle before it is timed, timed interleaved against the static choice, and the winner stored.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/engine_impl.h"
#include "runtime/measure.h"
#include "runtime/verify.h"

namespace rowjit {

struct TuneOptions {
    int max_candidates = 32;
    bool force = false;  // measure again what the database already answers
    MeasureOptions measure;
    std::uint64_t seed = 1;
};

struct TimedSchedule {
    Schedule schedule;
    double ms = 0;
};

// What became of one kernel of a graph.
struct TunedKernel {
    std::string kernel;
    Schedule schedule;
    double ms = 0;         // the winner's
    double static_ms = 0;  // the static choice's, measured alongside
    bool from_database = false;
    std::vector<TimedSchedule> timed;   // those that compiled and were right, the static choice first
    std::vector<std::string> rejected;  // "schedule: why": refused by a toolchain, spilling, or outside the bar
};

// Says what is being done, for a progress bar: kernel, candidate of candidates.
using TuneProgress = std::function<void(const std::string& kernel, int done, int total)>;

// Tunes every kernel of the graph for `rows`. A candidate that fails is dropped and named; when the static choice
// itself fails, its Error is thrown.
std::vector<TunedKernel> tune(Engine& engine, const GraphData& graph, const RowExtents& rows,
                              const TuneOptions& options = {}, const TuneProgress& progress = {});

}  // namespace rowjit
