// The candidates of one kernel in this process: each checked against the oracle, and those that are right timed in
// turn. Which candidates there are and which wins is the tuner's (tuner.h); a process for this alone is tune_worker's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/engine_impl.h"
#include "runtime/measure.h"

namespace rowjit {

// A group as a program of its own: its kernel, with this schedule, and where it stores parts of sums over rows the one
// that adds them. Throws Error(kUnsupported) where, planned alone, the kernel takes another schedule.
Program alone(const Group& group, const Schedule& schedule, const Target& target);

// What became of a candidate.
struct CandidateOutcome {
    std::string rejected = {};                 // why it is out; "" when it was timed
    ErrorCode code = ErrorCode::kUnsupported;  // likewise, of what kind that is
    Timing timing = {};
};

struct CandidateTiming {
    RowExtents rows;         // of the graph; the group takes those of its own axes
    std::uint64_t seed = 1;  // of the inputs that are checked
    MeasureOptions measure = {};
};

// Follows what is being done; either may be empty. What they throw ends the timing.
struct CandidateWatch {
    std::function<void(std::size_t candidate)> starts = {};
    std::function<void(std::size_t candidate, const CandidateOutcome&)> rejects = {};
};

// Kernel `group` of a plan for the engine's device, with each schedule. A candidate that does not load, does not launch
// or is wrong is rejected; one that fails later, while it is timed, ends everything with its Error.
std::vector<CandidateOutcome> time_candidates(Engine::Impl& engine, const Group& group,
                                              const std::vector<Schedule>& schedules, const CandidateTiming& timing,
                                              const CandidateWatch& watch);

}  // namespace rowjit
