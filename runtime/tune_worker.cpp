#include "runtime/tune_worker.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fail.h"
#include "cache/entry.h"
#include "compiler/toolchain/child_program.h"
#include "runtime/tuning.h"

namespace rowjit {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Target, name, backend, warp_size, sm_count, shared_bytes_per_block,
                                   shared_bytes_per_sm, registers_per_sm, assembler_registers, max_threads_per_sm,
                                   l2_bytes, bandwidth_gbps, clusters, dependent_launch, packed_bf16,
                                   warpgroup_products, label, cpu_features)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(KernelName, target, graph, group, operation)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TimingPlace, device, cache_directory, bundles)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Timing, samples_ms, median_ms, spread)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CandidateOutcome, rejected, code, timing)

namespace {

// What a process is told. Without a place it compiles its one schedule and answers with an entry (cache/entry.h), or a
// CandidateOutcome as JSON where the compiler refuses it; with one it times all of them and answers in lines: the
// number of the candidate it is at, as often as that changes, an Answer as JSON for each candidate that it is done
// with, and under kLacks what the machine has too little of, where that ends it.
struct WorkerJob {
    KernelName kernel;
    std::vector<std::string> schedules;
    std::optional<TimingPlace> place;
    CandidateTiming timing;
};

constexpr const char* kLacks = "lacks";

struct Answer {
    std::size_t candidate = 0;
    CandidateOutcome outcome;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Answer, candidate, outcome)

std::string encode(const WorkerJob& job) {
    nlohmann::json json = {{"kernel", job.kernel}, {"schedules", job.schedules}};
    if (job.place) {
        const MeasureOptions& measure = job.timing.measure;
        json["place"] = *job.place;
        json["rows"] = job.timing.rows;
        json["seed"] = job.timing.seed;
        json["measure"] = {measure.rounds, measure.target_ms, measure.max_repetitions, measure.cold_bytes};
    }
    return json.dump();
}

WorkerJob decode(std::string_view text) {
    const nlohmann::json json = nlohmann::json::parse(text);
    WorkerJob job;
    json.at("kernel").get_to(job.kernel);
    json.at("schedules").get_to(job.schedules);
    if (!json.contains("place")) return job;
    job.place = json.at("place").get<TimingPlace>();
    json.at("rows").get_to(job.timing.rows);
    json.at("seed").get_to(job.timing.seed);
    const nlohmann::json& measure = json.at("measure");
    job.timing.measure = {.rounds = measure.at(0),
                          .target_ms = measure.at(1),
                          .max_repetitions = measure.at(2),
                          .cold_bytes = measure.at(3)};
    return job;
}

// ---- The process that was started ----------------------------------------------------------------------------------

Group find_group(const KernelName& name) {
    const Plan plan = plan_graph(*Graph::parse(name.graph, "<tuning>").data(), name.target);
    if (name.group >= plan.groups.size() || tuning_operation(plan.groups[name.group]) != name.operation)
        fail(ErrorCode::kEnvironment, "kernel {} is planned otherwise in another process; use one build of rowjit",
             name.group);
    return plan.groups[name.group];
}

std::vector<Schedule> read_schedules(const std::vector<std::string>& texts) {
    std::vector<Schedule> schedules;
    for (const std::string& text : texts) {
        const std::optional<Schedule> schedule = parse_schedule(text);
        if (!schedule) fail(ErrorCode::kParse, "'{}' is no schedule; use one build of rowjit", text);
        schedules.push_back(*schedule);
    }
    return schedules;
}

void say(std::string_view bytes) {
    std::cout << bytes << std::flush;
    if (!std::cout) fail(ErrorCode::kIo, "the tuner does not listen any more");
}

void say(std::size_t candidate, const CandidateOutcome& outcome) {
    say(nlohmann::json(Answer{candidate, outcome}).dump() + "\n");
}

void answer_compile(const WorkerJob& job, const Group& group) {
    const Target& target = job.kernel.target;
    const Program program = alone(group, read_schedules(job.schedules).at(0), target);
    // The entry's key is the cache's affair, which is the starting process's; here its checksum counts.
    const std::string& key = job.schedules[0];
    try {
        say(encode_entry({sha256(key), key, compile_kernel(program.steps[0].kernel, target)}));
    } catch (const Error& error) {
        say(nlohmann::json(CandidateOutcome{error.what(), error.code(), {}}).dump());
    }
}

void answer_timing(const WorkerJob& job, const Group& group) {
    Engine engine(Device(job.place->device),
                  {.cache_directory = job.place->cache_directory, .bundles = job.place->bundles});
    CandidateWatch watch;
    watch.starts = [](std::size_t candidate) { say(fmt::format("{}\n", candidate)); };
    watch.rejects = [](std::size_t candidate, const CandidateOutcome& outcome) {
        say(candidate, outcome);
        // A launch that failed may have taken the device's context with it: the rest is for another process.
        if (outcome.code == ErrorCode::kLaunch) fail(ErrorCode::kLaunch, "{}", outcome.rejected);
    };
    try {
        const std::vector<CandidateOutcome> outcomes =
            time_candidates(engine.impl(), group, read_schedules(job.schedules), job.timing, watch);
        for (std::size_t i = 0; i < outcomes.size(); ++i) {
            if (outcomes[i].rejected.empty()) say(i, outcomes[i]);
        }
    } catch (const Error& error) {
        if (error.code() == ErrorCode::kEnvironment) say(nlohmann::json{{kLacks, error.what()}}.dump() + "\n");
        throw;
    }
}

// ---- The process that starts them ----------------------------------------------------------------------------------

// The last thing a process said of why it ended, behind how it ended.
std::string last_words(const ProgramResult& result) {
    std::string_view errors = result.errors;
    while (errors.ends_with('\n')) errors.remove_suffix(1);
    const std::string_view line = errors.substr(errors.rfind('\n') + 1);
    return line.empty() || result.stopped ? result.how : fmt::format("{}: {}", result.how, line);
}

// What the processes that time one kernel's candidates have said so far.
class Listener {
  public:
    Listener(std::size_t candidates, const CandidateWatch& watch) : outcomes_(candidates), watch_(watch) {}

    // The candidates without an outcome, in the order a new process numbers them.
    std::vector<std::size_t> left() const {
        std::vector<std::size_t> rest;
        for (std::size_t i = 0; i < outcomes_.size(); ++i) {
            if (!outcomes_[i]) rest.push_back(i);
        }
        return rest;
    }

    void begin() {
        numbers_ = left();
        line_.clear();
        at_.reset();
    }

    void hear(std::string_view bytes) {
        for (const char byte : bytes) {
            if (byte != '\n') {
                line_ += byte;
            } else {
                take_line();
                line_.clear();
            }
        }
    }

    // Of the candidate it was at. False where it had come to none.
    bool blame(const std::string& why, ErrorCode code) {
        if (!at_) return false;
        if (!outcomes_[*at_]) settle(*at_, {why, code, {}});
        return true;
    }

    const std::string& lacks() const { return lacks_; }

    std::vector<CandidateOutcome> outcomes() const {
        std::vector<CandidateOutcome> all;
        for (const auto& outcome : outcomes_) all.push_back(*outcome);
        return all;
    }

  private:
    void take_line() try {
        if (!line_.starts_with('{')) {
            at_ = numbers_.at(std::stoul(line_));
            if (watch_.starts) watch_.starts(*at_);
            return;
        }
        const nlohmann::json json = nlohmann::json::parse(line_);
        if (json.contains(kLacks)) {
            json[kLacks].get_to(lacks_);
            return;
        }
        const auto answer = json.get<Answer>();
        settle(numbers_.at(answer.candidate), answer.outcome);
    } catch (const std::logic_error&) {  // NOLINT(bugprone-empty-catch): no number, or of no candidate
        // Something else that writes to the same output, as a driver does, is no answer.
    } catch (const nlohmann::json::exception&) {  // NOLINT(bugprone-empty-catch)
    }

    void settle(std::size_t candidate, const CandidateOutcome& outcome) {
        outcomes_[candidate] = outcome;
        if (!outcome.rejected.empty() && watch_.rejects) watch_.rejects(candidate, outcome);
    }

    std::vector<std::optional<CandidateOutcome>> outcomes_;
    const CandidateWatch& watch_;
    std::vector<std::size_t> numbers_;  // by the number in the running process
    std::string line_;                  // what has come of it
    std::string lacks_;
    std::optional<std::size_t> at_;
};

std::vector<std::string> texts_of(const std::vector<Schedule>& schedules, const std::vector<std::size_t>& chosen) {
    std::vector<std::string> texts;
    for (const std::size_t i : chosen) texts.push_back(print(schedules[i]));
    return texts;
}

// Of a process that gave no answer: because of what it was given, or for want of something here.
ErrorCode code_of(const ProgramResult& result, ErrorCode of_signal) {
    if (result.stopped) return ErrorCode::kTimeout;
    return result.died ? of_signal : ErrorCode::kEnvironment;
}

}  // namespace

Artifact TuneWorkers::compile(const KernelName& kernel, const Schedule& schedule) const {
    const std::string job = encode({kernel, {print(schedule)}, std::nullopt, {}});
    const ProgramResult result = converse(command_, {job, limit_, {}});
    if (!result.succeeded)
        fail(code_of(result, ErrorCode::kCompile), "the process that compiled it: {}", last_words(result));
    Offer<Entry> entry = decode_entry(result.output);
    if (entry) return entry->artifact;
    const nlohmann::json refusal = nlohmann::json::parse(result.output, nullptr, false);
    if (refusal.is_discarded())
        fail(ErrorCode::kEnvironment, "the process that compiled it gave no kernel: {}", entry.reason());
    const auto outcome = refusal.get<CandidateOutcome>();
    throw Error(outcome.code, outcome.rejected);
}

std::vector<CandidateOutcome> TuneWorkers::time(const KernelName& kernel, const std::vector<Schedule>& schedules,
                                                const CandidateTiming& timing, const TimingPlace& place,
                                                const CandidateWatch& watch) const {
    Listener listener(schedules.size(), watch);
    // Times of two processes are of two occasions: where one dies, those that are left are timed together once more.
    for (std::vector<std::size_t> left = listener.left(); !left.empty(); left = listener.left()) {
        listener.begin();
        const std::string job = encode({kernel, texts_of(schedules, left), place, timing});
        const ProgramResult result =
            converse(command_, {job, limit_, [&](std::string_view bytes) { listener.hear(bytes); }});
        if (listener.left().empty()) break;
        if (!listener.lacks().empty()) fail(ErrorCode::kEnvironment, "{}", listener.lacks());
        const std::string why = last_words(result);
        if (!listener.blame("the process that ran it: " + why, code_of(result, ErrorCode::kLaunch)))
            fail(ErrorCode::kEnvironment, "no candidate can be timed in a process of its own: {}; tune in one process",
                 why);
    }
    return listener.outcomes();
}

int answer_job() {
    // Whoever started this may be killed, and nobody would stop it then.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
    const WorkerJob job = decode(text);
    const Group group = find_group(job.kernel);
    if (job.place) {
        answer_timing(job, group);
    } else {
        answer_compile(job, group);
    }
    return 0;
}

}  // namespace rowjit
