#include "runtime/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>

#include "base/fail.h"
#include "base/parallel.h"
#include "compiler/cost.h"
#include "compiler/plan/digit_orders.h"
#include "compiler/plan/partial_reductions.h"
#include "runtime/build.h"
#include "runtime/candidates.h"
#include "runtime/device.h"
#include "runtime/tune_worker.h"
#include "runtime/tuning.h"

namespace rowjit {
namespace {

// A winner must beat the holder by more than this, or by three times the spread when that is larger: below it, the
// choice would follow the noise of the day.
constexpr double kHysteresis = 0.02;

struct Candidate {
    Schedule schedule;
    CandidateOutcome outcome;  // rejected before it was timed, or what timing it came to
    FunctionInfo resources;    // of one that was compiled

    bool is_left() const { return outcome.rejected.empty(); }
};

// "cuda:0", as open_device takes it.
std::string device_name(const Device& device) {
    const std::string description = device.description();
    return description.substr(0, description.find(' '));
}

class GroupTuner {
  public:
    GroupTuner(Engine& engine, KernelName name, const Group& group, const RowExtents& rows, const TuneOptions& options,
               const TuneProgress& progress)
        : impl_(engine.impl()),
          name_(std::move(name)),
          group_(group),
          options_(options),
          progress_(progress),
          workers_(options.worker, options.limit),
          timing_{.rows = rows, .seed = options.seed, .measure = options.measure},
          key_(tuning_key(group, impl_.target())),
          stored_(impl_.tuning().get(key_)),
          toolchain_(toolchain_version(impl_.target())) {}

    TunedKernel run() {
        result_.kernel = group_.name;
        result_.operation = name_.operation;
        if (!options_.force && take_stored()) return result_;
        list_candidates();
        compile_candidates();
        // Without those that spill, which say what the engine takes: a tuning that goes on asks the cache for them.
        keep_rejected();
        put_static_choice_first();
        leave_spilling();
        time_candidates();
        keep_rejected();
        conclude();
        return result_;
    }

  private:
    bool take_stored() {
        if (!stored_) return false;
        const auto schedule = parse_schedule(stored_->choice);
        if (!schedule || !build_kernel(group_, *schedule, impl_.target())) return false;
        result_.schedule = *schedule;
        result_.ms = stored_->median_ms;
        result_.static_ms = stored_->baseline_ms;
        result_.from_database = true;
        return true;
    }

    // An earlier choice is among them. An interrupted tuning has said what is not worth trying again.
    void list_candidates() {
        legal_ = legal_schedules(group_, impl_.target());
        if (legal_.empty())
            fail(ErrorCode::kUnsupported, "no schedule runs kernel {} on {}", group_.name, impl_.target().name);
        if (const ScheduleChoice choice = impl_.choice()) holder_ = choice(group_);
        std::vector<Schedule> schedules = legal_;
        if (holder_ && *holder_ != schedules[0]) {
            std::erase(schedules, *holder_);
            schedules.insert(schedules.begin() + 1, *holder_);
        }
        schedules.resize(std::min(schedules.size(), static_cast<std::size_t>(options_.max_candidates)));
        for (const Schedule& schedule : schedules) candidates_.push_back({schedule, {}, {}});
        if (options_.force || !stored_ || stored_->toolchain != toolchain_) return;
        for (const RejectedChoice& rejected : stored_->rejected) {
            for (Candidate& candidate : candidates_) {
                if (print(candidate.schedule) == rejected.choice) candidate.outcome.rejected = rejected.why;
            }
        }
    }

    void compile_candidates() {
        std::mutex mutex;
        int done = 0;
        const auto total = static_cast<int>(candidates_.size());
        in_parallel(candidates_.size(), [&](std::size_t i) {
            Candidate& candidate = candidates_[i];
            if (candidate.is_left()) {
                try {
                    candidate.resources = built(candidate.schedule).artifact->functions.front();
                } catch (const Error& error) {
                    candidate.outcome = {error.what(), error.code(), {}};
                } catch (const std::exception& error) {  // out of memory, or a check of ours
                    candidate.outcome = {error.what(), ErrorCode::kEnvironment, {}};
                }
            }
            const std::scoped_lock lock(mutex);
            if (progress_) progress_(group_.name, ++done, total);
        });
    }

    BuiltKernel built(const Schedule& schedule) const {
        const Kernel kernel = alone(group_, schedule, impl_.target()).steps[0].kernel;
        KernelCache::Compile elsewhere;
        if (has_workers()) elsewhere = [&] { return workers_.compile(name_, schedule); };
        return build(kernel, impl_.target(), impl_.cache(), elsewhere);
    }

    bool spills(const Candidate& candidate) const {
        return impl_.target().is_gpu() && candidate.resources.spill_bytes > 0;
    }

    // What the engine takes where nobody has measured. It holds its place where there is no earlier choice.
    void put_static_choice_first() {
        const auto candidate_at = [&](std::size_t place) {
            return std::find_if(candidates_.begin(), candidates_.end(),
                                [&](const Candidate& candidate) { return candidate.schedule == legal_[place]; });
        };
        const auto taken = candidate_at(place_of_static_choice(legal_.size(), [&](std::size_t place) {
            const auto candidate = candidate_at(place);
            return candidate == candidates_.end() || spills(*candidate);
        }));
        std::rotate(candidates_.begin(), taken, taken + 1);
        if (!holder_) holder_ = candidates_[0].schedule;
    }

    // What spills is not timed, unless the engine takes it all the same.
    void leave_spilling() {
        for (Candidate& candidate : candidates_) {
            if (!candidate.is_left() || !spills(candidate) || &candidate == &candidates_[0]) continue;
            candidate.outcome = {
                fmt::format("spills {} bytes a thread", candidate.resources.spill_bytes), ErrorCode::kUnsupported, {}};
        }
    }

    void time_candidates() {
        std::vector<Candidate*> left;
        std::vector<Schedule> schedules;
        for (Candidate& candidate : candidates_) {
            if (!candidate.is_left()) continue;
            left.push_back(&candidate);
            schedules.push_back(candidate.schedule);
        }
        const std::vector<CandidateOutcome> outcomes =
            has_workers() ? workers_.time(name_, schedules, timing_, place(), {})
                          : rowjit::time_candidates(impl_, group_, schedules, timing_, {});
        for (std::size_t i = 0; i < left.size(); ++i) left[i]->outcome = outcomes[i];
    }

    // Stored with the choice there was, if any: an interruption then costs no candidate's time limit again. What the
    // machine lacked (memory, a toolchain) it may have the next time.
    void keep_rejected() {
        TuningRecord record = stored_.value_or(TuningRecord{.key = key_});
        record.rejected = lasting_rejections();
        record.toolchain = toolchain_;
        if (!record.rejected.empty() && record != stored_) impl_.tuning().put(record);
    }

    std::vector<RejectedChoice> lasting_rejections() const {
        std::vector<RejectedChoice> rejected;
        for (const Candidate& candidate : candidates_) {
            if (!candidate.is_left() && candidate.outcome.code != ErrorCode::kEnvironment)
                rejected.push_back({print(candidate.schedule), candidate.outcome.rejected});
        }
        return rejected;
    }

    void conclude() {
        for (const Candidate& candidate : candidates_) {
            const auto& [schedule, outcome, resources] = candidate;
            if (candidate.is_left()) {
                result_.timed.push_back({schedule, outcome.timing.median_ms, outcome.timing.spread, resources.registers,
                                         resources.spill_bytes, predicted_us(schedule)});
            } else {
                result_.rejected.push_back(fmt::format("{}: {}", print(schedule), outcome.rejected));
            }
        }
        if (result_.timed.empty()) {
            throw Error(candidates_[0].outcome.code,
                        fmt::format("kernel {}: no schedule is right and fast enough to time on {}; first: {}",
                                    group_.name, impl_.device().description(), result_.rejected.front()));
        }
        const Candidate& best = winner();
        result_.schedule = best.schedule;
        result_.ms = best.outcome.timing.median_ms;
        result_.static_ms = candidates_[0].outcome.timing.median_ms;
        store(best.outcome.timing);
    }

    double predicted_us(const Schedule& schedule) const {
        const std::optional<std::int64_t> extent = timing_.rows.empty() ? 1 : common_extent(timing_.rows);
        if (!extent) return 0;
        const auto kernel = build_kernel(group_, schedule, impl_.target());
        return rowjit::predicted_us(cost_terms(*kernel, impl_.target(), *extent));
    }

    const Candidate& winner() const {
        const Candidate* best = nullptr;
        const Candidate* holder = nullptr;
        for (const Candidate& candidate : candidates_) {
            if (!candidate.is_left()) continue;
            if (candidate.schedule == holder_) holder = &candidate;
            if (best == nullptr || candidate.outcome.timing.median_ms < best->outcome.timing.median_ms)
                best = &candidate;
        }
        if (holder == nullptr) return *best;
        const Timing& held = holder->outcome.timing;
        const Timing& won = best->outcome.timing;
        const double margin = std::max(kHysteresis, 3 * std::min(held.spread, won.spread));
        return won.median_ms < held.median_ms * (1 - margin) ? *best : *holder;
    }

    void store(const Timing& timing) {
        TuningRecord record{.key = key_, .choice = print(result_.schedule)};
        record.samples_ms = timing.samples_ms;
        record.median_ms = timing.median_ms;
        record.spread = timing.spread;
        record.baseline_ms = result_.static_ms;
        record.toolchain = toolchain_;
        record.rejected = lasting_rejections();
        impl_.tuning().put(record);
    }

    bool has_workers() const { return !options_.worker.empty(); }
    TimingPlace place() const {
        const EngineOptions& options = impl_.options();
        return {device_name(impl_.device()), options.cache_directory, options.bundles};
    }

    Engine::Impl& impl_;
    const KernelName name_;
    const Group& group_;
    const TuneOptions& options_;
    const TuneProgress& progress_;
    const TuneWorkers workers_;
    const CandidateTiming timing_;
    const TuningKey key_;
    const std::optional<TuningRecord> stored_;
    const std::string toolchain_;
    std::vector<Schedule> legal_;
    std::optional<Schedule> holder_;  // what the engine takes without this tuning
    std::vector<Candidate> candidates_;
    TunedKernel result_;
};

std::string text_of(const GraphData& graph) { return Graph(std::make_shared<GraphData>(graph)).print(); }

// Whether two groups are the same to the letter: with one schedule they are then one kernel.
bool are_same(const Group& a, const Group& b) { return a.name == b.name && text_of(*a.graph) == text_of(*b.graph); }

}  // namespace

// Adding up parts takes a hundredth of the time it takes to make them, and is measured with that. Of an order there is
// one schedule. Alone, a kernel has a tensor for each of a row's numbers that are parts of one where it stands, and the
// gradient of Sinkhorn's steps hands over eight hundred.
bool is_tuned(const Group& group) {
    const GraphData& graph = *group.graph;
    const std::vector<NodeId> live = graph.live_nodes();
    const auto inputs = std::ranges::count_if(live, [&](NodeId id) { return graph.node(id).kind == NodeKind::kInput; });
    const bool fits = graph.outputs().size() + static_cast<std::size_t>(inputs) <= kMostTensors;
    return fits && !adds_parts(graph) && !orders_ids(graph);
}

std::vector<TunedKernel> tune(Engine& engine, const GraphData& graph, const RowExtents& rows,
                              const TuneOptions& options, const TuneProgress& progress) {
    const Target& target = engine.impl().target();
    const std::string text = text_of(graph);
    const Plan plan = plan_graph(graph, target);
    std::vector<TunedKernel> tuned;
    for (std::size_t i = 0; i < plan.groups.size(); ++i) {
        const Group& group = plan.groups[i];
        if (!is_tuned(group)) continue;
        KernelName name{target, text, i, tuning_operation(group)};
        tuned.push_back(GroupTuner(engine, std::move(name), group, rows, options, progress).run());
    }
    return tuned;
}

CompiledCandidates compile_candidates(const GraphData& graph, const Target& target, const ScheduleChoice& choice,
                                      KernelCache& cache, int max_candidates) {
    CompiledCandidates compiled;
    std::set<Digest> seen;
    const auto add = [&](BuiltProgram built) {
        for (BuiltKernel& kernel : built.kernels) {
            if (seen.insert(kernel.key.digest()).second) compiled.kernels.push_back(std::move(kernel));
        }
    };
    add(build_without_spills(graph, target, choice, cache));
    const Plan plan = plan_graph(graph, target);
    for (const Group& group : plan.groups) {
        if (!is_tuned(group)) continue;
        std::vector<Schedule> schedules = legal_schedules(group, target);
        schedules.resize(std::min(schedules.size(), static_cast<std::size_t>(max_candidates)));
        const std::string operation = tuning_operation(group);
        for (const Schedule& schedule : schedules) {
            const ScheduleChoice with_it = [&](const Group& other) -> std::optional<Schedule> {
                if (tuning_operation(other) == operation) return schedule;
                return choice ? choice(other) : std::nullopt;
            };
            try {
                Program by_itself = alone(group, schedule, target);
                // A graph of one kernel is what that is alone, unless it is planned otherwise then, as unrolled.
                const bool is_all = plan.steps.size() == 1 && are_same(by_itself.steps[0].group, group);
                add(build_program(std::move(by_itself), target, cache));
                if (!is_all) add(build_program(compile_plan(graph, plan, target, with_it), target, cache));
            } catch (const Error& error) {
                if (error.code() == ErrorCode::kEnvironment) throw;
                compiled.refused.push_back(fmt::format("{}, {}: {}", group.name, print(schedule), error.what()));
            }
        }
    }
    return compiled;
}

}  // namespace rowjit
