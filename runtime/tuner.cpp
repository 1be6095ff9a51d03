#include "runtime/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "compiler/plan/partial_sums.h"
#include "dsl/random_inputs.h"
#include "runtime/device.h"
#include "runtime/tuning.h"

namespace rowjit {
namespace {

// A winner must beat the holder by more than this, or by three times the spread when that is larger: below it, the
// choice would follow the noise of the day.
constexpr double kHysteresis = 0.02;
constexpr std::int64_t kCheckedRows = 5;  // odd, and not a multiple of any rows-per-block

struct Candidate {
    Schedule schedule;
    Executable executable;
};

// The oracle's answers for one group on a few rows, computed once for all candidates.
class GroupCheck {
  public:
    GroupCheck(const GraphData& graph, std::uint64_t seed) : graph_(graph) {
        bindings_ = random_inputs(graph, all_rows(graph, kCheckedRows), {.seed = seed});
        exact_ = interpret(graph, bindings_, Rounding::kExact);
        eager_ = interpret(graph, bindings_, Rounding::kEager);
    }

    // "" when every output is within the bar, else what is wrong.
    std::string fault(const Device& device, const Executable& executable) const {
        const Tensors got = run(device, executable, graph_, bindings_);
        for (const OutputInfo& output : graph_.outputs()) {
            const ErrorReport report = compare(got.at(output.name), exact_.at(output.name), eager_.at(output.name),
                                               graph_.node(output.node).dtype);
            if (!report.within_bar) return fmt::format("output '{}' is wrong: {}", output.name, describe(report));
        }
        return "";
    }

  private:
    const GraphData& graph_;
    Bindings bindings_;
    Tensors exact_;
    Tensors eager_;
};

class GroupTuner {
  public:
    GroupTuner(Engine& engine, const Group& group, const RowExtents& rows, const TuneOptions& options,
               const TuneProgress& progress)
        : impl_(engine.impl()),
          group_(group),
          graph_(with_whole_sums(*group.graph)),
          options_(options),
          progress_(progress) {
        // A group sees only the axes it uses.
        for (const auto& [axis, extent] : rows) {
            for (const AxisInfo& info : group.graph->axes()) {
                if (info.name == axis) rows_[axis] = extent;
            }
        }
    }

    TunedKernel run() {
        result_.kernel = group_.name;
        if (!options_.force && take_stored()) return result_;
        const std::vector<Candidate> candidates = checked_candidates();
        std::vector<Executable> executables;
        for (const Candidate& candidate : candidates) executables.push_back(candidate.executable);
        const Measurement measured = measure(impl_.device(), executables, *graph_, rows_, options_.measure);
        const std::size_t best = winner(measured);
        result_.schedule = candidates[best].schedule;
        result_.ms = measured.candidates[best].median_ms;
        result_.static_ms = measured.candidates[0].median_ms;
        for (std::size_t i = 0; i < candidates.size(); ++i)
            result_.timed.push_back({candidates[i].schedule, measured.candidates[i].median_ms});
        store(measured.candidates[best]);
        return result_;
    }

  private:
    bool take_stored() {
        const auto record = impl_.tuning().get(tuning_key(group_, impl_.target()));
        if (!record) return false;
        const auto schedule = parse_schedule(record->choice);
        if (!schedule || !build_kernel(group_, *schedule, impl_.target())) return false;
        result_.schedule = *schedule;
        result_.ms = record->median_ms;
        result_.static_ms = record->baseline_ms;
        result_.from_database = true;
        return true;
    }

    // The static choice first; it must work. The others are dropped, with the reason, when they do not, as is any that
    // spills while another does not.
    std::vector<Candidate> checked_candidates() {
        std::vector<Schedule> schedules = legal_schedules(group_, impl_.target());
        if (schedules.empty())
            fail(ErrorCode::kUnsupported, "no schedule runs kernel {} on {}", group_.name, impl_.target().name);
        if (std::ssize(schedules) > options_.max_candidates)
            schedules.resize(static_cast<std::size_t>(options_.max_candidates));
        build_ahead(schedules);
        const GroupCheck check(*graph_, options_.seed);
        std::vector<Candidate> candidates;
        for (std::size_t i = 0; i < schedules.size(); ++i) {
            if (progress_) progress_(group_.name, static_cast<int>(i), static_cast<int>(schedules.size()));
            const std::string fault = try_candidate(schedules[i], check, i == 0, false, &candidates);
            if (!fault.empty()) result_.rejected.push_back(fmt::format("{}: {}", print(schedules[i]), fault));
        }
        if (candidates.empty()) try_candidate(schedules[0], check, true, true, &candidates);
        if (candidates.empty()) {
            fail(ErrorCode::kUnsupported, "kernel {}: no schedule is right and fast enough to time on {}; first: {}",
                 group_.name, impl_.device().description(), result_.rejected.front());
        }
        return candidates;
    }

    // Compiles everything in parallel into the cache; failures show up again, one by one, when each is loaded.
    void build_ahead(const std::vector<Schedule>& schedules) {
        std::vector<Kernel> kernels;
        for (const Schedule& schedule : schedules) {
            auto kernel = build_kernel(group_, schedule, impl_.target());
            if (kernel) kernels.push_back(std::move(*kernel));
        }
        std::vector<const Kernel*> pointers;
        for (const Kernel& kernel : kernels) pointers.push_back(&kernel);
        try {
            build_all(pointers, impl_.target(), impl_.cache());
        } catch (const Error&) {  // NOLINT(bugprone-empty-catch): not lost, only later
            // The candidate that failed is compiled again below and named there.
        }
    }

    std::string try_candidate(const Schedule& schedule, const GroupCheck& check, bool is_static, bool may_spill,
                              std::vector<Candidate>* candidates) {
        try {
            Program program = compile(*graph_, impl_.target(), [&](const Group& group) {
                return adds_parts(*group.graph) ? std::nullopt : std::optional(schedule);
            });
            if (program.steps[0].kernel.schedule != schedule) return "planned alone, its kernel takes another schedule";
            BuiltProgram built = build_program(std::move(program), impl_.target(), impl_.cache());
            const BuiltKernel& kernel = built.kernels.front();
            if (!may_spill && spills(kernel, impl_.target()))
                return fmt::format("spills {} bytes a thread", kernel.artifact->functions.front().spill_bytes);
            const Executable executable = impl_.load(std::move(built));
            std::string fault = check.fault(impl_.device(), executable);
            if (fault.empty()) candidates->push_back({schedule, executable});
            return fault;
        } catch (const Error& error) {
            if (is_static) throw;
            return error.what();
        }
    }

    static std::size_t winner(const Measurement& measured) {
        std::size_t best = 0;
        for (std::size_t i = 1; i < measured.candidates.size(); ++i) {
            if (measured.candidates[i].median_ms < measured.candidates[best].median_ms) best = i;
        }
        const Timing& holder = measured.candidates[0];
        const double margin = std::max(kHysteresis, 3 * std::min(holder.spread, measured.candidates[best].spread));
        return measured.candidates[best].median_ms < holder.median_ms * (1 - margin) ? best : 0;
    }

    void store(const Timing& timing) {
        TuningRecord record;
        record.key = tuning_key(group_, impl_.target());
        record.choice = print(result_.schedule);
        record.samples_ms = timing.samples_ms;
        record.median_ms = timing.median_ms;
        record.spread = timing.spread;
        record.baseline_ms = result_.static_ms;
        record.toolchain = toolchain_version(impl_.target());
        impl_.tuning().put(record);
    }

    Engine::Impl& impl_;
    const Group& group_;
    const std::shared_ptr<const GraphData> graph_;  // the group's, to be run alone
    RowExtents rows_;
    const TuneOptions& options_;
    const TuneProgress& progress_;
    TunedKernel result_;
};

}  // namespace

std::vector<TunedKernel> tune(Engine& engine, const GraphData& graph, const RowExtents& rows,
                              const TuneOptions& options, const TuneProgress& progress) {
    const Plan plan = plan_graph(graph, engine.impl().target());
    std::vector<TunedKernel> tuned;
    for (const Group& group : plan.groups) {
        // Adding up parts takes a hundredth of the time it takes to make them, and is measured with that.
        if (adds_parts(*group.graph)) continue;
        tuned.push_back(GroupTuner(engine, group, rows, options, progress).run());
    }
    return tuned;
}

}  // namespace rowjit
