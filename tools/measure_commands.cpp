// `rowjit tune` and `rowjit bench`: each job checked against the oracle, timed beside a copy of the same bytes,
// reported as a record.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/digest.h"
#include "base/fail.h"
#include "compiler/cost.h"
#include "runtime/choice_table.h"
#include "runtime/device.h"
#include "runtime/tune_worker.h"
#include "runtime/tuner.h"
#include "runtime/verify.h"
#include "tools/commands.h"
#include "tools/engine_options.h"
#include "tools/file.h"
#include "tools/interrupt.h"
#include "tools/report.h"
#include "tools/version.h"

namespace rowjit {
namespace {

constexpr std::int64_t kCheckedRows = 3;

// What is said of one job.
struct Record {
    std::string kernel;
    std::string op;
    std::string shape;
    std::string dtype;
    std::string schedule;
    double ms = 0;
    double predicted_us = 0;  // 0 where no model says anything
    double copy_ms = 0;
    double share_of_copy = 0;
    std::int64_t bytes = 0;
    int kernels = 0;
    int per_step = 1;
    double error = 0;
    double eager_error = 0;
    bool within_bar = true;
    std::string failure;  // "" when the job succeeded
    std::vector<TunedKernel> tuned;
};

nlohmann::json to_json(const TunedKernel& kernel) {
    nlohmann::json json = {{"kernel", kernel.kernel},
                           {"schedule", print(kernel.schedule)},
                           {"ms", json_number(kernel.ms)},
                           {"static_ms", json_number(kernel.static_ms)},
                           {"from_database", kernel.from_database},
                           {"timed", nlohmann::json::array()},
                           {"rejected", kernel.rejected}};
    for (const TimedSchedule& timed : kernel.timed) {
        json["timed"].push_back({{"schedule", print(timed.schedule)},
                                 {"ms", json_number(timed.ms)},
                                 {"spread", json_number(timed.spread)},
                                 {"registers", timed.registers},
                                 {"spill_bytes", timed.spill_bytes}});
        if (timed.predicted_us > 0) json["timed"].back()["predicted_us"] = timed.predicted_us;
    }
    return json;
}

nlohmann::json to_json(const Record& record, const std::string& target) {
    nlohmann::json json = {{"kernel", record.kernel},    {"op", record.op},
                           {"shape", record.shape},      {"dtype", record.dtype},
                           {"target", target},           {"schedule", record.schedule},
                           {"launches", record.kernels}, {"per_step", record.per_step}};
    for (const TunedKernel& kernel : record.tuned) json["tuned"].push_back(to_json(kernel));
    if (!record.failure.empty()) {
        json["failure"] = record.failure;
        return json;
    }
    json["ms"] = json_number(record.ms);
    if (record.predicted_us > 0) json["predicted_us"] = record.predicted_us;
    json["copy_ms"] = json_number(record.copy_ms);
    json["bytes"] = record.bytes;
    json["percent_of_copy"] = json_number(100 * record.share_of_copy);
    json["error"] = json_number(record.error);
    json["eager_error"] = json_number(record.eager_error);
    json["within_bar"] = record.within_bar;
    return json;
}

// The worst output of the executable on a few rows.
void check(Engine& engine, const Executable& executable, const Job& job, Record* record) {
    const auto inputs = [&](std::uint64_t launch) { return job_inputs(job, kCheckedRows, {}, {.seed = 1 + launch}); };
    for (const Verification& output : verify_several(engine.device(), executable, *job.graph.data(), inputs)) {
        record->within_bar = record->within_bar && output.report.within_bar;
        record->error = std::max(record->error, output.report.max_error);
        record->eager_error = std::max(record->eager_error, output.report.eager_max_error);
    }
}

// Of the kernels one after the other; 0 on a CPU, whose schedules have no model.
double predicted_us(const Program& program, const Target& target, std::int64_t extent) {
    if (!target.is_gpu() || !program.products.empty()) return 0;
    double total_us = 0;
    for (const Step& step : program.steps) {
        const CostTerms terms = cost_terms(step.kernel, target, extent);
        const double of_graph = rowjit::predicted_us(*step.group.graph, target, static_cast<double>(extent));
        total_us += terms.turns > 0 ? rowjit::predicted_us(terms) : of_graph;
    }
    return total_us;
}

// How far predictions are from what was measured, as factors of 1 and more.
class ModelError {
  public:
    void add(double predicted_us, double ms) {
        if (predicted_us <= 0 || ms <= 0) return;
        const double log = std::abs(std::log(predicted_us / (1e3 * ms)));
        ++count_;
        sum_ += log;
        worst_ = std::max(worst_, log);
    }
    void add(const Record& record) {
        add(record.predicted_us, record.ms);
        for (const TunedKernel& kernel : record.tuned) {
            for (const TimedSchedule& timed : kernel.timed) add(timed.predicted_us, timed.ms);
        }
    }

    bool is_known() const { return count_ > 0; }
    std::int64_t count() const { return count_; }
    double mean() const { return std::exp(sum_ / static_cast<double>(count_)); }  // geometric
    double worst() const { return std::exp(worst_); }

  private:
    std::int64_t count_ = 0;
    double sum_ = 0;
    double worst_ = 0;
};

Record measure_job(Engine& engine, const Job& job, const RowExtents& rows, const ChunkOptions& chunks) {
    const GraphData& graph = *job.graph.data();
    Record record{job.name, job.op, shape_text(graph, rows), job.dtype};
    record.per_step = job.per_step;
    BuiltProgram built = engine.impl().build(graph, chunks);
    for (const Step& step : built.program.steps)
        record.schedule += (record.schedule.empty() ? "" : "; ") + print(step.kernel.schedule);
    record.kernels = static_cast<int>(built.program.steps.size());
    if (const std::optional<std::int64_t> extent = common_extent(rows))
        record.predicted_us = predicted_us(built.program, engine.impl().target(), *extent);
    const Executable executable = engine.impl().load(std::move(built));
    check(engine, executable, job, &record);
    const Measurement measured = measure(engine.device(), {executable}, graph, rows);
    record.ms = measured.candidates[0].median_ms;
    record.copy_ms = measured.copy.median_ms;
    record.share_of_copy = share_of_copy(measured, 0);
    record.bytes = measured.least_bytes;
    return record;
}

TuneOptions tune_options(const TuneCommand& command) {
    TuneOptions options{.max_candidates = command.max_candidates, .force = command.force};
    options.limit = std::chrono::seconds(command.time_limit_s);
    // This program, wherever it lies and whatever its name.
    if (!command.in_process) options.worker = {std::filesystem::read_symlink("/proc/self/exe"), kTuneWorker};
    return options;
}

std::string outcome(const Record& record) {
    if (!record.failure.empty()) return "failed: " + one_line(record.failure);
    return fmt::format("{:.4f} ms, {:.0f} % of copy", record.ms, 100 * record.share_of_copy);
}

void print_table(const std::vector<Record>& records) {
    Table table({"kernel", "shape", "dtype", "ms", "% of copy", "error", "eager", "schedule"});
    for (const Record& r : records) {
        if (!r.failure.empty()) {
            table.add({r.kernel, r.shape, r.dtype, "", "", "", "", "failed: " + one_line(r.failure)});
            continue;
        }
        table.add({r.kernel, r.shape, r.dtype, fmt::format("{:.4f}", r.ms),
                   fmt::format("{:.1f}", 100 * r.share_of_copy),
                   fmt::format("{:.2f}{}", r.error, r.within_bar ? "" : " OUTSIDE"),
                   fmt::format("{:.2f}", r.eager_error), r.schedule});
    }
    fmt::print("{}", table.text());
}

// Kernels for which the static rule's choice is as good are left to it, also where the table has said otherwise.
void add_choices(const Record& record, ChoiceTable* table) {
    for (const TunedKernel& kernel : record.tuned) {
        const std::string operation = sha256(kernel.operation).hex();
        if (kernel.ms < kernel.static_ms) {
            table->put({fmt::format("{}: {}", record.kernel, kernel.kernel), operation, print(kernel.schedule),
                        record.shape, kernel.ms, kernel.static_ms});
        } else {
            table->remove(operation);
        }
    }
}

// The one at `path`, else an empty one for this device. Refused before anything is measured.
ChoiceTable open_table(const std::string& path, const Target& target) {
    ChoiceTable table{target.name, {target.label}, "", {}};
    if (std::filesystem::exists(path)) table = read_choice_table(path);
    if (!table.covers(target)) {
        fail(ErrorCode::kInvalidArgument, "--export: '{}' is a table for {}, and this is {} ({}); give another file",
             path, table.architecture, target.name, target.label);
    }
    table.toolchain = toolchain_version(target);
    return table;
}

int run_jobs(const CommonOptions& common, const TuneCommand* tuning) {
    const auto started = std::chrono::steady_clock::now();
    Engine engine = make_engine(common);
    const WorkBounds bounds = work_bounds(common, engine.device());
    const std::vector<Job> jobs = make_jobs(common.jobs);
    std::optional<ChoiceTable> table;
    if (tuning != nullptr && !tuning->export_file.empty())
        table = open_table(tuning->export_file, engine.impl().target());
    std::vector<Record> records;
    int failed = 0;
    int first_failure = kExitOk;
    bool findings = false;
    // A job of tuning takes minutes, and has stored what it found so far.
    std::optional<StopAfterJob> stop;
    if (tuning == nullptr) stop.emplace();
    const auto interrupted = [&] { return stop && stop->is_asked(); };
    {
        Progress progress(jobs.size());
        for (const Job& job : jobs) {
            if (interrupted()) break;
            progress.start(job.name);
            const RowExtents rows = bounded_rows(job, bounds.tokens * job.rows_per_token, bounds.max_bytes);
            std::vector<TunedKernel> tuned;
            try {
                if (tuning != nullptr) {
                    const TuneOptions options = tune_options(*tuning);
                    tuned = tune(
                        engine, *job.graph.data(), rows, options,
                        [&](const std::string& kernel, int done, int total) { progress.step(kernel, done, total); });
                }
                records.push_back(measure_job(engine, job, rows, common.jobs.chunks));
                records.back().tuned = std::move(tuned);
                findings = findings || !records.back().within_bar;
            } catch (const Error& error) {
                Record record{job.name, job.op, shape_text(*job.graph.data(), rows), job.dtype};
                record.failure = error.what();
                records.push_back(std::move(record));
                if (++failed == 1) first_failure = exit_code(error.code());
            }
            progress.finish(outcome(records.back()));
        }
    }
    if (table) {
        for (const Record& record : records) add_choices(record, &*table);
        write_file(tuning->export_file, print(*table));
    }
    const EngineStatistics statistics = engine.statistics();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    ModelError model;
    for (const Record& record : records) model.add(record);
    if (common.json) {
        nlohmann::json document = {
            {"rowjit", kVersion}, {"device", engine.device().description()}, {"records", nlohmann::json::array()}};
        for (const Record& record : records) document["records"].push_back(to_json(record, engine.device().target()));
        document["summary"] = {{"compiled", statistics.compiled},
                               {"from_cache", statistics.disk_hits + statistics.memory_hits + statistics.bundle_hits},
                               {"failed", failed},
                               {"seconds", seconds}};
        if (interrupted()) document["summary"]["interrupted"] = true;
        if (model.is_known()) {
            document["summary"]["model"] = {
                {"predictions", model.count()}, {"mean_factor", model.mean()}, {"worst_factor", model.worst()}};
        }
        fmt::print("{}\n", document.dump(2));
    } else {
        print_table(records);
        fmt::print("{}: {} compiled, {} from cache, {} failed, {:.1f} s\n", engine.device().description(),
                   statistics.compiled, statistics.disk_hits + statistics.bundle_hits, failed, seconds);
        if (model.is_known()) {
            fmt::print("{} predictions off by a factor of {:.2f} in the geometric mean, {:.2f} at worst\n",
                       model.count(), model.mean(), model.worst());
        }
    }
    if (interrupted()) return kExitInterrupted;
    if (failed > 0) return failed == std::ssize(jobs) ? first_failure : kExitPartial;
    return findings ? kExitFindings : kExitOk;
}

}  // namespace

int tune_command(const CommonOptions& common, const TuneCommand& command) {
    if (command.action == "plan") return plan_tuning(common, command);
    if (command.action == "merge") return merge_tuning(common, command.bundles);
    CommonOptions with_plans = common;
    with_plans.bundles.insert(with_plans.bundles.end(), command.bundles.begin(), command.bundles.end());
    return run_jobs(with_plans, &command);
}
int tune_worker_command() { return answer_job(); }
int bench_command(const CommonOptions& common) { return run_jobs(common, nullptr); }

}  // namespace rowjit
