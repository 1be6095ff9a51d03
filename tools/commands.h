// The commands of `rowjit`. Each takes its options parsed, prints its result, and returns an exit code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rowjit/error.h"
#include "tools/job.h"

namespace rowjit {

// Documented in docs/command-line.md; scripts depend on them.
enum ExitCode : int {
    kExitOk = 0,
    kExitFindings = 1,     // verify found a result outside the bar, cache verify a damaged entry
    kExitUsage = 2,        // unknown option, op or dtype; a file that does not parse; a graph that does not fit
    kExitMiss = 3,         // a strict look-up found nothing
    kExitPartial = 4,      // some jobs failed, the others are done
    kExitEnvironment = 5,  // a device, driver or toolchain is absent
    kExitTimeout = 6,
    kExitIo = 7,
    kExitInternal = 70,
    kExitInterrupted = 130,
};

int exit_code(ErrorCode code);

struct CommonOptions {
    bool json = false;
    std::string device;                // "" is the best one
    std::vector<std::string> targets;  // compile, explain
    std::string cache_directory;
    std::vector<std::string> bundles;  // asked before those of the environment
    JobOptions jobs;
};

struct TuneCommand {
    std::string action = "run";        // run, plan, merge
    std::vector<std::string> bundles;  // run: plans; merge: what to collect from
    std::string output;                // plan: the bundle of candidates
    bool force = false;
    int max_candidates = 32;
    int time_limit_s = 60;
    bool in_process = false;
    std::string export_file;  // a choice table (runtime/choice_table.h); "" writes none
};

struct CompileCommand {
    std::string output;             // a directory; "" compiles into the cache only
    std::vector<std::string> emit;  // code-object, source, json
    std::string bundle;             // a file to write what was compiled to as one bundle; "" writes none
};

struct VerifyCommand {
    bool all_schedules = false;
    std::uint64_t seed = 1;
    std::int64_t random = 0;  // jobs to draw; 0: those that are named
};

struct CacheCommand {
    std::string action;  // stats, ls, show, verify, gc, clear
    std::string digest;  // show
};

struct BundleCommand {
    std::string action;  // export, import, ls, verify
    std::vector<std::string> files;
};

int tune_command(const CommonOptions& common, const TuneCommand& command);
int plan_tuning(const CommonOptions& common, const TuneCommand& command);
inline constexpr const char* kTuneWorker = "tune-worker";  // the command that tune starts (runtime/tune_worker.h)
int tune_worker_command();
int bench_command(const CommonOptions& common);
int compile_command(const CommonOptions& common, const CompileCommand& command);
int verify_command(const CommonOptions& common, const VerifyCommand& command);
int explain_command(const CommonOptions& common);
int ops_command(const CommonOptions& common, const std::string& op);
int cache_command(const CommonOptions& common, const CacheCommand& command);
int bundle_command(const CommonOptions& common, const BundleCommand& command);
// Tuning results of bundles into the cache directory; of two of one kernel, the one that gained more.
int merge_tuning(const CommonOptions& common, const std::vector<std::string>& bundles);
int doctor_command(const CommonOptions& common);

}  // namespace rowjit
