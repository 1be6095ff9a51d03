// `rowjit verify`: kernels against the oracle, over row counts, padded rows and extreme values.
#include <fmt/format.h>

#include <set>

#include "runtime/device.h"
#include "runtime/verify.h"
#include "tools/commands.h"
#include "tools/engine_options.h"
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
    Verifier(Engine& engine, const VerifyCommand& command, const ChunkOptions& chunks)
        : engine_(engine), command_(command), chunks_(chunks) {}

    std::vector<Outcome> run(const Job& job) {
        outcomes_.clear();
        const GraphData& graph = *job.graph.data();
        const Target& target = engine_.impl().target();
        if (!command_.all_schedules) {
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
                return job_inputs(job, c.rows, {.seed = command_.seed + launch, .extremes = c.extremes});
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
    const VerifyCommand& command_;
    const ChunkOptions& chunks_;
    std::vector<Outcome> outcomes_;
};

}  // namespace

int verify_command(const CommonOptions& common, const VerifyCommand& command) {
    Engine engine = make_engine(common);
    const std::vector<Job> jobs = make_jobs(common.jobs);
    Verifier verifier(engine, command, common.jobs.chunks);
    Progress progress(jobs.size());
    Table table({"job", "checks", "outside", "not compared", "worst error", "eager"});
    nlohmann::json document = {
        {"rowjit", kVersion}, {"device", engine.device().description()}, {"records", nlohmann::json::array()}};
    document["not_compared"] = nlohmann::json::array();
    int outside = 0;
    for (const Job& job : jobs) {
        progress.start(job.name);
        int job_outside = 0;
        ErrorReport worst;
        const std::vector<Outcome> outcomes = verifier.run(job);
        for (const Outcome& outcome : outcomes) {
            const ErrorReport& report = outcome.report;
            document["records"].push_back({{"job", outcome.job},
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
                                           {"detail", describe(report)}});
            if (report.max_error >= worst.max_error) worst = report;
            if (report.within_bar) continue;
            ++job_outside;
            fmt::print(stderr, "rowjit: {} [{}] {}: {}\n", outcome.job, outcome.schedule, inputs_of(outcome),
                       describe(report));
        }
        const std::set<std::string> not_compared = never_compared(outcomes);
        for (const std::string& output : not_compared) {
            document["not_compared"].push_back({{"job", job.name}, {"output", output}});
            fmt::print(stderr,
                       "rowjit: {}: nothing of output '{}' was compared: all of it is NaN or infinite in the oracle "
                       "too, on random inputs of mean 0 and deviation 1; keep what roots, logarithms and quotients "
                       "are taken of in their domain, as by maximum(x, 1e-6)\n",
                       job.name, output);
        }
        outside += job_outside;
        table.add({job.name, std::to_string(outcomes.size()), std::to_string(job_outside),
                   std::to_string(not_compared.size()), fmt::format("{:.2f}", worst.max_error),
                   fmt::format("{:.2f}", worst.eager_max_error)});
        progress.finish(job_outside > 0        ? fmt::format("{} outside the bar", job_outside)
                        : not_compared.empty() ? "within the bar"
                                               : fmt::format("{} outputs not compared", not_compared.size()));
    }
    const std::size_t not_compared = document["not_compared"].size();
    document["summary"] = {
        {"checks", document["records"].size()}, {"outside", outside}, {"not_compared", not_compared}};
    fmt::print("{}", common.json ? document.dump(2) + "\n" : table.text());
    return outside == 0 && not_compared == 0 ? kExitOk : kExitFindings;
}

}  // namespace rowjit
