// `rowjit verify`: kernels against the oracle, over row counts, padded rows and extreme values.
#include <fmt/format.h>

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
    std::string inputs;
    bool within_bar = true;
    double error = 0;
    double eager_error = 0;
    std::string detail;
};

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
            for (const Verification& output :
                 verify_several(engine_.device(), executable, graph, inputs, {.row_padding = c.row_padding})) {
                const ErrorReport& report = output.report;
                outcomes_.push_back({job.name, schedule, fmt::format("{}, {}", c.name, output.output),
                                     report.within_bar, report.max_error, report.eager_max_error, describe(report)});
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
    Table table({"job", "checks", "outside", "worst error", "eager"});
    nlohmann::json document = {
        {"rowjit", kVersion}, {"device", engine.device().description()}, {"records", nlohmann::json::array()}};
    int outside = 0;
    for (const Job& job : jobs) {
        progress.start(job.name);
        int job_outside = 0;
        Outcome worst;
        const std::vector<Outcome> outcomes = verifier.run(job);
        for (const Outcome& outcome : outcomes) {
            document["records"].push_back({{"job", outcome.job},
                                           {"schedule", outcome.schedule},
                                           {"inputs", outcome.inputs},
                                           {"within_bar", outcome.within_bar},
                                           {"error", json_number(outcome.error)},
                                           {"eager_error", json_number(outcome.eager_error)},
                                           {"detail", outcome.detail}});
            if (outcome.error >= worst.error) worst = outcome;
            if (outcome.within_bar) continue;
            ++job_outside;
            fmt::print(stderr, "rowjit: {} [{}] {}: {}\n", outcome.job, outcome.schedule, outcome.inputs,
                       outcome.detail);
        }
        outside += job_outside;
        table.add({job.name, std::to_string(outcomes.size()), std::to_string(job_outside),
                   fmt::format("{:.2f}", worst.error), fmt::format("{:.2f}", worst.eager_error)});
        progress.finish(job_outside == 0 ? "within the bar" : fmt::format("{} outside the bar", job_outside));
    }
    document["summary"] = {{"checks", document["records"].size()}, {"outside", outside}};
    fmt::print("{}", common.json ? document.dump(2) + "\n" : table.text());
    return outside == 0 ? kExitOk : kExitFindings;
}

}  // namespace rowjit
