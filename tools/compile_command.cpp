// `rowjit compile`: kernels for targets that need not be on this machine, into the cache and, when asked, into files
// with everything that launching them elsewhere takes.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/fail.h"
#include "runtime/tuning.h"
#include "tools/commands.h"
#include "tools/engine_options.h"
#include "tools/file.h"
#include "tools/launch_description.h"
#include "tools/report.h"
#include "tools/version.h"

namespace rowjit {
namespace {

struct Compiled {
    const Job* job = nullptr;
    std::string target;
    std::string kernel;
    std::string schedule;
    FunctionInfo resources;
    double compile_ms = 0;
    bool from_cache = false;
    std::string failure;
    ErrorCode code = ErrorCode::kCompile;  // of the failure
};

bool wants(const CompileCommand& command, std::string_view what) {
    return command.emit.empty() || std::find(command.emit.begin(), command.emit.end(), what) != command.emit.end();
}

std::string extension(const Artifact& artifact) {
    if (artifact.format == "cubin") return ".cubin";
    return artifact.format == "object" ? ".o" : ".hsaco";
}

std::string source_extension(const Target& target) {
    if (!target.is_gpu()) return ".ll";
    return target.backend == Backend::kCuda ? ".cu" : ".hip";
}

std::string file_stem(const Job& job, const Target& target, const Kernel& kernel) {
    std::string stem = fmt::format("{}.{}.{}", job.name, kernel.name, target.name);
    for (char& c : stem) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                           c == '_' || c == '-';
        if (!plain) c = '_';
    }
    // A graph's path may begin with dots, and a file's name that does is hidden.
    return stem.erase(0, stem.find_first_not_of("._"));
}

void write_outputs(const CompileCommand& command, const Job& job, const Step& step, const Target& target,
                   const Program& program, const Artifact& artifact) {
    const std::filesystem::path stem = std::filesystem::path(command.output) / file_stem(job, target, step.kernel);
    if (wants(command, "code-object")) write_file(stem.string() + extension(artifact), artifact.binary);
    if (wants(command, "source")) {
        const std::string text =
            target.is_gpu() ? full_source(step.kernel, target) : readable_source(step.kernel, target);
        write_file(stem.string() + source_extension(target), text);
    }
    if (wants(command, "json")) {
        write_file(stem.string() + ".json", launch_description(program, step, target, artifact).dump(2) + "\n");
    }
}

// What compiling comes to.
struct Results {
    std::vector<Compiled> rows;
    BundleContents bundle;
};

// With the schedules that an engine would take there: a table that comes with rowjit has other choices than the rule.
void compile_job(const Job& job, const Target& target, const CompileCommand& command, const ChoiceSources& choices,
                 KernelCache& cache, Results* results) {
    try {
        const auto [program, built] =
            build_without_spills(*job.graph.data(), target, tuned_choice(choices, target), cache);
        for (std::size_t i = 0; i < built.size(); ++i) {
            const Step& step = program.steps[i];
            const Artifact& artifact = *built[i].artifact;
            Compiled done;
            done.job = &job;
            done.target = target.name;
            done.kernel = step.kernel.name;
            done.schedule = print(step.kernel.schedule);
            done.resources = artifact.functions.front();
            done.compile_ms = artifact.compile_ms;
            done.from_cache = built[i].from_cache;
            results->rows.push_back(std::move(done));
            results->bundle.kernels.push_back({built[i].key.digest(), built[i].key.text(), artifact});
            if (!command.output.empty()) write_outputs(command, job, step, target, program, artifact);
        }
    } catch (const Error& error) {
        if (error.code() == ErrorCode::kIo) throw;
        Compiled failed;
        failed.job = &job;
        failed.target = target.name;
        failed.failure = error.what();
        failed.code = error.code();
        results->rows.push_back(std::move(failed));
    }
}

nlohmann::json to_json(const Compiled& c) {
    if (!c.failure.empty()) return {{"job", c.job->name}, {"target", c.target}, {"failure", c.failure}};
    return {{"job", c.job->name},
            {"target", c.target},
            {"kernel", c.kernel},
            {"schedule", c.schedule},
            {"registers", c.resources.registers},
            {"spill_bytes", c.resources.spill_bytes},
            {"shared_bytes", c.resources.shared_bytes},
            {"load_waits", c.resources.load_waits},
            {"bytes_in_flight", c.resources.bytes_in_flight},
            {"compile_ms", c.compile_ms},
            {"from_cache", c.from_cache}};
}

}  // namespace

int compile_command(const CommonOptions& common, const CompileCommand& command) {
    const std::vector<Target> targets = chosen_targets(common);
    const std::vector<Job> jobs = make_jobs(common.jobs);
    if (!command.output.empty()) {
        std::error_code error;
        std::filesystem::create_directories(command.output, error);
        if (error)
            fail(ErrorCode::kIo, "--output '{}' cannot be made: {}; choose another directory", command.output,
                 error.message());
    }
    const std::string root = cache_root(common);
    const ChoiceSources choices = choice_sources(root, common.bundles);
    const std::unique_ptr<KernelCache> cache = make_cache(root, choices.bundles);
    Results made;
    for (const Target& target : targets) {
        for (const Job& job : jobs) compile_job(job, target, command, choices, *cache, &made);
    }
    const std::vector<Compiled>& results = made.rows;
    if (!command.bundle.empty()) write_bundle(command.bundle, std::move(made.bundle));
    const CacheStatistics kept = cache->statistics();
    if (command.output.empty() && command.bundle.empty() && kept.compiled > 0 && kept.store_failures > 0) {
        fail(ErrorCode::kIo,
             "what was compiled could not be kept in '{}'; mend it, or give --cache-dir, --output or --write-bundle",
             root);
    }
    int failed = 0;
    Table table({"job", "target", "kernel", "registers", "spills", "waits", "ms", "from", "schedule"});
    nlohmann::json document = {{"rowjit", kVersion}, {"records", nlohmann::json::array()}};
    for (const Compiled& c : results) {
        failed += c.failure.empty() ? 0 : 1;
        document["records"].push_back(to_json(c));
        if (c.failure.empty()) {
            table.add({c.job->name, c.target, c.kernel, std::to_string(c.resources.registers),
                       std::to_string(c.resources.spill_bytes), std::to_string(c.resources.load_waits),
                       fmt::format("{:.0f}", c.compile_ms), c.from_cache ? "cache" : "compiler", c.schedule});
        } else {
            fmt::print(stderr, "rowjit: {} for {}: {}\n", c.job->name, c.target, one_line(c.failure));
        }
    }
    document["summary"] = {
        {"compiled", kept.compiled}, {"from_cache", kept.disk_hits + kept.bundle_hits}, {"failed", failed}};
    const bool all_failed = failed == std::ssize(results);
    if (common.json) {
        fmt::print("{}\n", document.dump(2));
    } else if (!all_failed) {
        fmt::print("{}", table.text());
    }
    if (failed == 0) return kExitOk;
    return all_failed ? exit_code(results.front().code) : kExitPartial;
}

}  // namespace rowjit
