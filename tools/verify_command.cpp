// `rowjit verify`: kernels against the oracle, over row counts, padded rows and extreme values.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <set>

#include "runtime/device.h"
#include "runtime/verify.h"
#include "tools/commands.h"
#include "tools/engine_options.h"
#include "tools/interrupt.h"
#include "tools/random_jobs.h"
#include "tools/report.h"
#include "tools/version.h"

namespace rowjit {
namespace {

// The inputs a kernel is checked on.
struct Case {
    std::string_view name;
    std::int64_t rows;
    std::int64_t row_padding;
    bool extremes;
};

constexpr Case kCases[] = {
    {"5 rows", 5, 0, false},       {"1 row", 1, 0, false},         {"no rows", 0, 0, false},
    {"padded rows", 7, 64, false}, {"extreme values", 9, 0, true},
};

constexpr std::int64_t most_rows() {
    std::int64_t most = 0;
    for (const Case& c : kCases) most = std::max(most, c.rows);
    return most;
}

// What is verified, and how it is repeated alone.
struct Subject {
    Job job;
    std::uint64_t seed;
    std::string command;  // "" for a job that the command line names already
};

struct Outcome {
    std::string job;
    std::string schedule;
    std::string output;
    Dtype dtype = Dtype::kF32;  // the output's
    const Case* inputs = nullptr;
    ErrorReport report;
};

std::string inputs_of(const Outcome& outcome) { return fmt::format("{}, {}", outcome.inputs->name, outcome.output); }

// Outputs of which ordinary inputs gave no number to compare: a kernel that is NaN where the oracle is passes, and
// where all is, so does any kernel. Extreme inputs may well leave nothing else of a small graph.
std::set<std::string> never_compared(const std::vector<Outcome>& outcomes) {
    std::set<std::string> found;
    const auto ordinary = [](const Outcome& outcome) { return !outcome.inputs->extremes; };
    for (const Outcome& outcome : outcomes) {
        if (ordinary(outcome) && outcome.report.elements > 0) found.insert(outcome.output);
    }
    for (const Outcome& outcome : outcomes) {
        if (ordinary(outcome) && outcome.report.compared > 0) found.erase(outcome.output);
    }
    return found;
}

class Verifier {
  public:
    Verifier(Engine& engine, bool all_schedules, const ChunkOptions& chunks)
        : engine_(engine), all_schedules_(all_schedules), chunks_(chunks) {}

    std::vector<Outcome> run(const Job& job, std::uint64_t seed) {
        outcomes_.clear();
        seed_ = seed;
        const GraphData& graph = *job.graph.data();
        const Target& target = engine_.impl().target();
        if (!all_schedules_) {
            check(job, "chosen", engine_.compile(job.graph, nullptr, chunks_));
            return outcomes_;
        }
        // Every legal schedule of every kernel, the other kernels of the program as chosen.
        const Plan plan = plan_graph(graph, target, chunks_);
        for (const Group& varied : plan.groups) {
            for (const Schedule& schedule : legal_schedules(varied, target)) {
                const auto choice = [&](const Group& group) {
                    return group.name == varied.name ? std::optional(schedule) : std::nullopt;
                };
                Program program = compile(graph, target, choice, chunks_);
                check(job, fmt::format("{}: {}", varied.name, print(schedule)),
                      engine_.impl().load(std::move(program)));
            }
        }
        return outcomes_;
    }

  private:
    void check(const Job& job, const std::string& schedule, const Executable& executable) {
        const GraphData& graph = *job.graph.data();
        for (const Case& c : kCases) {
            const auto inputs = [&](std::uint64_t launch) {
                return job_inputs(job, c.rows, job.rows, {.seed = seed_ + launch, .extremes = c.extremes});
            };
            const std::vector<Verification> outputs =
                verify_several(engine_.device(), executable, graph, inputs, {.row_padding = c.row_padding});
            for (std::size_t i = 0; i < outputs.size(); ++i) {
                const Dtype dtype = graph.node(graph.outputs()[i].node).dtype;
                outcomes_.push_back({job.name, schedule, outputs[i].output, dtype, &c, outputs[i].report});
            }
        }
    }

    Engine& engine_;
    bool all_schedules_;
    const ChunkOptions& chunks_;
    std::uint64_t seed_ = 0;
    std::vector<Outcome> outcomes_;
};

// As a shell reads it as one word.
std::string quoted(const std::string& word) {
    constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
}

// What of this command line a drawn job's own has too: all that kernels or their inputs depend on.
std::string shared_words(const CommonOptions& common, const VerifyCommand& command) {
    std::string words;
    const auto add = [&](std::string_view option, const std::string& value) {
        if (!value.empty()) words += fmt::format(" --{} {}", option, quoted(value));
    };
    const auto add_count = [&](std::string_view option, std::int64_t value) {
        add(option, value > 0 ? std::to_string(value) : "");
    };
    const auto add_flag = [&](std::string_view option, bool given) {
        if (given) words += fmt::format(" --{}", option);
    };
    const ChunkOptions& chunks = common.jobs.chunks;
    add_flag("all-schedules", command.all_schedules);
    add_count("workspace-limit", chunks.workspace_limit_bytes);
    add_count("chunk-rows", chunks.chunk_rows);
    add_flag("low-memory", chunks.low_memory);
    add_count("part-columns", chunks.part_columns);
    add_flag("round-each-chunk", chunks.round_each_chunk);
    add("device", common.device);
    add("cache-dir", common.cache_directory);
    for (const std::string& bundle : common.bundles) add("bundle", bundle);
    return words;
}

std::vector<Subject> subjects_of(const CommonOptions& common, const VerifyCommand& command) {
    std::vector<Subject> subjects;
    if (command.random == 0) {
        for (Job& job : make_jobs(common.jobs)) subjects.push_back({std::move(job), command.seed, ""});
        return subjects;
    }
    const std::string shared = shared_words(common, command);
    for (RandomJob& drawn : draw_jobs(common.jobs, command.random, command.seed, most_rows()))
        subjects.push_back({std::move(drawn.job), drawn.seed, "rowjit verify " + drawn.words + shared});
    return subjects;
}

nlohmann::json to_json(const Outcome& outcome) {
    const ErrorReport& report = outcome.report;
    return {{"job", outcome.job},
            {"schedule", outcome.schedule},
            {"inputs", inputs_of(outcome)},
            {"dtype", name(outcome.dtype)},
            {"within_bar", report.within_bar},
            {"error", json_number(report.max_error)},
            {"eager_error", json_number(report.eager_max_error)},
            {"most_off", json_number(report.most_off)},
            {"eager_most_off", json_number(report.eager_most_off)},
            {"largest", json_number(report.largest)},
            {"elements", report.elements},
            {"compared", report.compared},
            {"detail", describe(report)}};
}

// What is said of all jobs: findings at once, the table or the document at the end.
class Report {
  public:
    explicit Report(const std::string& device) {
        document_ = {{"rowjit", kVersion}, {"device", device}, {"records", nlohmann::json::array()}};
        document_["not_compared"] = nlohmann::json::array();
    }

    // Returns the job's outcome in a few words.
    std::string add(const Subject& subject, const std::vector<Outcome>& outcomes) {
        int outside = 0;
        ErrorReport worst;
        for (const Outcome& outcome : outcomes) {
            const ErrorReport& report = outcome.report;
            add_record("records", subject, to_json(outcome));
            if (report.max_error >= worst.max_error) worst = report;
            if (report.within_bar) continue;
            ++outside;
            fmt::print(stderr, "rowjit: {} [{}] {}: {}\n", outcome.job, outcome.schedule, inputs_of(outcome),
                       describe(report));
        }
        const std::set<std::string> not_compared = never_compared(outcomes);
        for (const std::string& output : not_compared) {
            add_record("not_compared", subject, {{"job", subject.job.name}, {"output", output}});
            fmt::print(stderr,
                       "rowjit: {}: nothing of output '{}' was compared: all of it is NaN or infinite in the oracle "
                       "too, on random inputs of mean 0 and deviation 1; keep what roots, logarithms and quotients "
                       "are taken of in their domain, as by maximum(x, 1e-6)\n",
                       subject.job.name, output);
        }
        if (outside > 0 || !not_compared.empty()) print_command(subject);
        outside_ += outside;
        table_.add({subject.job.name, std::to_string(outcomes.size()), std::to_string(outside),
                    std::to_string(not_compared.size()), fmt::format("{:.2f}", worst.max_error),
                    fmt::format("{:.2f}", worst.eager_max_error)});
        return outside > 0            ? fmt::format("{} outside the bar", outside)
               : not_compared.empty() ? "within the bar"
                                      : fmt::format("{} outputs not compared", not_compared.size());
    }

    std::string add_failure(const Subject& subject, const std::string& why, int code) {
        if (failed_++ == 0) first_failure_ = code;
        add_record("failures", subject, {{"job", subject.job.name}, {"failure", why}});
        fmt::print(stderr, "rowjit: {}: {}\n", subject.job.name, one_line(why));
        print_command(subject);
        table_.add({subject.job.name, "failed", "", "", "", ""});
        return "failed";
    }

    // Returns the exit code.
    int print(bool json, std::size_t jobs, bool interrupted) {
        const std::size_t not_compared = document_["not_compared"].size();
        document_["summary"] = {
            {"checks", document_["records"].size()}, {"outside", outside_}, {"not_compared", not_compared}};
        if (failed_ > 0) document_["summary"]["failed"] = failed_;
        if (interrupted) document_["summary"]["interrupted"] = true;
        fmt::print("{}", json ? document_.dump(2) + "\n" : table_.text());
        if (interrupted) return kExitInterrupted;
        if (failed_ > 0) return failed_ == jobs ? first_failure_ : kExitPartial;
        return outside_ == 0 && not_compared == 0 ? kExitOk : kExitFindings;
    }

  private:
    void add_record(const char* list, const Subject& subject, nlohmann::json record) {
        if (!subject.command.empty()) record["command"] = subject.command;
        document_[list].push_back(std::move(record));
    }

    static void print_command(const Subject& subject) {
        if (!subject.command.empty()) fmt::print(stderr, "rowjit: alone: {}\n", subject.command);
    }

    nlohmann::json document_;
    Table table_{{"job", "checks", "outside", "not compared", "worst error", "eager"}};
    int outside_ = 0;
    std::size_t failed_ = 0;
    int first_failure_ = kExitOk;
};

// A search goes on behind a job that fails: that one is what it was looking for. What the command line names ends with
// its first failure.
std::string verify_one(const Subject& subject, Verifier* verifier, Report* report) {
    if (subject.command.empty()) return report->add(subject, verifier->run(subject.job, subject.seed));
    try {
        return report->add(subject, verifier->run(subject.job, subject.seed));
    } catch (const Error& error) {
        return report->add_failure(subject, error.what(), exit_code(error.code()));
    } catch (const std::bad_alloc&) {
        return report->add_failure(subject, "out of memory; give smaller --columns or --max-bytes", kExitEnvironment);
    } catch (const std::exception& error) {
        return report->add_failure(subject, error.what(), kExitInternal);
    }
}

}  // namespace

int verify_command(const CommonOptions& common, const VerifyCommand& command) {
    Engine engine = make_engine(common);
    const std::vector<Subject> subjects = subjects_of(common, command);
    Verifier verifier(engine, command.all_schedules, common.jobs.chunks);
    Report report(engine.device().description());
    const StopAfterJob stop;
    {
        Progress progress(subjects.size());
        for (const Subject& subject : subjects) {
            if (stop.is_asked()) break;
            progress.start(subject.job.name);
            progress.finish(verify_one(subject, &verifier, &report));
        }
    }
    return report.print(common.json, subjects.size(), stop.is_asked());
}

}  // namespace rowjit
