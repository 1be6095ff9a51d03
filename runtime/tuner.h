// Finding the best schedule by measuring: candidates from the families, compiled in parallel, each checked against the
// oracle before it is timed, timed in turn with what would be used without them, and the winner stored. A candidate
// that fails costs itself; a kernel that is done is stored at once, so that a tuning that is interrupted goes on from
// there.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "runtime/engine_impl.h"
#include "runtime/measure.h"

namespace rowjit {

struct TuneOptions {
    int max_candidates = 32;
    bool force = false;  // measure again what the database already answers, rejected candidates too
    MeasureOptions measure = {};
    std::uint64_t seed = 1;
    // A program and its arguments that comes to answer_job() (tune_worker.h). Candidates are then compiled and timed in
    // processes of their own; empty: in this one, where a compiler that crashes or hangs ends the tuning.
    std::vector<std::string> worker = {};
    std::chrono::seconds limit{60};  // of a candidate that is compiled or run, when there is a worker
};

struct TimedSchedule {
    Schedule schedule;
    double ms = 0;
    double spread = 0;
    int registers = 0;  // a thread
    int spill_bytes = 0;
    double predicted_us = 0;  // compiler/cost.h; 0 where that says nothing
};

// What became of one kernel of a graph.
struct TunedKernel {
    std::string kernel;
    std::string operation;  // tuning_operation()
    Schedule schedule;
    double ms = 0;         // the winner's
    double static_ms = 0;  // that of the static choice, measured alongside; 0 where that is rejected
    bool from_database = false;
    std::vector<TimedSchedule> timed;   // those that compiled and were right, the static choice first
    std::vector<std::string> rejected;  // "schedule: why": refused by a toolchain, spilling, or outside the bar
};

// Says what is being done, for a progress bar: kernel, candidate of candidates. From one thread at a time.
using TuneProgress = std::function<void(const std::string& kernel, int done, int total)>;

// Whether a kernel's schedules are timed at all; one whose are not has the static choice.
bool is_tuned(const Group& group);

// Tunes every such kernel of the graph for `rows`. What the engine would choose without it, an earlier tuning's or the
// static choice (place_of_static_choice), holds its place unless another is clearly faster. Throws the first
// candidate's Error when none can be timed.
std::vector<TunedKernel> tune(Engine& engine, const GraphData& graph, const RowExtents& rows,
                              const TuneOptions& options = {}, const TuneProgress& progress = {});

// What a tuning of the graph on such a device would compile, compiled for one that need not be here: of each kernel its
// first `max_candidates` schedules, alone, as they are timed, and among the graph's other kernels, as they are
// launched.
struct CompiledCandidates {
    std::vector<BuiltKernel> kernels;  // each once
    std::vector<std::string> refused;  // "kernel, schedule: why"
};
CompiledCandidates compile_candidates(const GraphData& graph, const Target& target, const ScheduleChoice& choice,
                                      KernelCache& cache, int max_candidates);

}  // namespace rowjit
