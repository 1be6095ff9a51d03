// Candidates in processes of their own, so that a compiler that crashes or hangs, and a kernel that takes the device's
// context with it, cost one candidate and not the tuning. A process is told a WorkerJob on its standard input and
// answers on its standard output; it ends with the one that started it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/candidates.h"

namespace rowjit {

// One kernel, said so that another process makes the same one: a graph and which kernel of its plan.
struct KernelName {
    Target target;
    std::string graph;      // in text form
    std::size_t group = 0;  // of its plan
    std::string operation;  // tuning_operation() of that, by which a process that plans otherwise notices
};

// Where candidates run when they are timed.
struct TimingPlace {
    std::string device;                // "cuda:0"
    std::string cache_directory;       // where what was compiled lies; "off" for none
    std::vector<std::string> bundles;  // likewise
};

class TuneWorkers {
  public:
    // `command`: a program and its arguments that comes to answer_job(). A process that says nothing for `limit` is
    // killed.
    TuneWorkers(std::vector<std::string> command, std::chrono::seconds limit)
        : command_(std::move(command)), limit_(limit) {}

    // The kernel with this schedule, compiled. Throws Error: what the compiler threw, kCompile for one that died,
    // kTimeout for one that hangs, kEnvironment where no process can be started.
    Artifact compile(const KernelName& kernel, const Schedule& schedule) const;

    // As time_candidates(), but that a candidate of which the process dies is one more that is rejected. Throws
    // Error(kEnvironment) when a process ends before it comes to any candidate, or for want of memory for all.
    std::vector<CandidateOutcome> time(const KernelName& kernel, const std::vector<Schedule>& schedules,
                                       const CandidateTiming& timing, const TimingPlace& place,
                                       const CandidateWatch& watch) const;

  private:
    std::vector<std::string> command_;
    std::chrono::seconds limit_;
};

// The other side: does the job on standard input and answers on standard output. Returns the process's exit code.
int answer_job();

}  // namespace rowjit
