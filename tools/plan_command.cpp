// `rowjit tune plan`: the kernels that tuning elsewhere would compile, as one bundle. The machine with the GPU then
// only measures, and needs no compiler.
#include <fmt/format.h>

#include <algorithm>

#include "base/fail.h"
#include "cache/bundle.h"
#include "runtime/tuner.h"
#include "tools/commands.h"
#include "tools/engine_options.h"
#include "tools/file.h"
#include "tools/report.h"

namespace rowjit {

int plan_tuning(const CommonOptions& common, const TuneCommand& command) {
    if (command.output.empty())
        fail(ErrorCode::kInvalidArgument, "tune plan: give --output, the bundle to write the candidates to");
    if (!command.bundles.empty())
        fail(ErrorCode::kInvalidArgument, "tune plan: '{}' is one word too many; the bundle to write is --output's",
             command.bundles.front());
    const ChoiceSources choices = choice_sources(cache_root(common), common.bundles);
    const std::unique_ptr<KernelCache> cache = make_cache(cache_root(common), choices.bundles);
    const std::vector<Target> targets = chosen_targets(common);
    const std::vector<Job> jobs = make_jobs(common.jobs);
    BundleContents contents;
    nlohmann::json refused = nlohmann::json::array();
    {
        Progress progress(targets.size() * jobs.size());
        for (const Target& target : targets) {
            for (const Job& job : jobs) {
                progress.start(job.name);
                const CompiledCandidates compiled = compile_candidates(
                    *job.graph.data(), target, tuned_choice(choices, target), *cache, command.max_candidates);
                for (const BuiltKernel& kernel : compiled.kernels)
                    contents.kernels.push_back({kernel.key.digest(), kernel.key.text(), *kernel.artifact});
                for (const std::string& why : compiled.refused) refused.push_back(job.name + ": " + one_line(why));
                progress.finish(fmt::format("{} kernels", compiled.kernels.size()));
            }
        }
    }
    const auto [kernels, bytes] = write_bundle(command.output, std::move(contents));
    std::string text = fmt::format("{}: {} kernels, {:.1f} MB, {} refused\n", command.output, kernels,
                                   static_cast<double>(bytes) / 1e6, refused.size());
    for (const auto& why : refused) text += fmt::format("  {}\n", why.get<std::string>());
    print_either(common.json,
                 {{"bundle", command.output}, {"kernels", kernels}, {"bytes", bytes}, {"refused", refused}}, text);
    return kExitOk;
}

}  // namespace rowjit
