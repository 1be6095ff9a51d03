#include "runtime/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/fail.h"
#include "compiler/plan/partial_reductions.h"
#include "dsl/random_inputs.h"
#include "runtime/verify.h"

namespace rowjit {
namespace {

constexpr std::int64_t kCheckedElements = 16;  // of each output
constexpr std::int64_t kCheckedRows = 5;       // odd, and not a multiple of any rows-per-block

// The oracle's answers for one group on a few rows, over one launch or more.
class Answers {
  public:
    Answers(const GraphData& graph, std::uint64_t seed, std::uint64_t times) : graph_(graph) {
        const RowExtents rows = all_rows(graph, kCheckedRows);
        const std::uint64_t count = times * launch_count(graph, rows, kCheckedElements);
        for (std::uint64_t launch = 0; launch < count; ++launch) {
            launches_.push_back(random_inputs(graph, rows, {.seed = seed + launch}));
            append(interpret(graph, launches_.back(), Rounding::kExact), &exact_);
            append(interpret(graph, launches_.back(), Rounding::kEager), &eager_);
        }
    }

    // How far every output is from them.
    std::vector<ErrorReport> reports(const Device& device, const Executable& executable) const {
        Tensors got;
        for (const Bindings& bindings : launches_) append(run(device, executable, graph_, bindings), &got);
        std::vector<ErrorReport> reports;
        for (const OutputInfo& output : graph_.outputs()) {
            reports.push_back(compare(got.at(output.name), exact_.at(output.name), eager_.at(output.name),
                                      graph_.node(output.node).dtype));
        }
        return reports;
    }

  private:
    const GraphData& graph_;
    std::vector<Bindings> launches_;
    Tensors exact_;
    Tensors eager_;
};

// Answers are computed once for all candidates. Which elements of a few rows cancel is luck, as is how far eager is
// from a single number: what misses the bar is asked again over more launches, as `verify_several` does. Without, the
// tuner rejected every schedule of a layer norm's backward of 1280 columns that has 32 threads a row, the fastest.
//
// The bar is of what a graph's user sees. A number in f32 that another kernel rounds may miss it by itself, as the
// gradient of a softmax's row does with a sink (2.07 units where eager has 1): a candidate then is to be as exact as
// the kernel without tuning.
class GroupCheck {
  public:
    GroupCheck(const GraphData& graph, std::uint64_t seed, std::function<Executable()> untuned)
        : graph_(graph), seed_(seed), untuned_(std::move(untuned)), few_(graph, seed, 1) {}

    // "" when every output is within the bar, else what is wrong.
    std::string fault(const Device& device, const Executable& executable) {
        if (std::ranges::all_of(few_.reports(device, executable), &ErrorReport::within_bar)) return "";
        if (!more_) {
            more_.emplace(graph_, seed_, kMoreLaunches);
            of_untuned_ = more_->reports(device, untuned_());
        }
        const std::vector<ErrorReport> reports = more_->reports(device, executable);
        for (std::size_t i = 0; i < reports.size(); ++i) {
            if (reports[i].within_bar || is_as_exact(reports[i], of_untuned_[i])) continue;
            return fmt::format("output '{}' is wrong: {}", graph_.outputs()[i].name, describe(reports[i]));
        }
        return "";
    }

  private:
    const GraphData& graph_;
    const std::uint64_t seed_;
    const std::function<Executable()> untuned_;
    const Answers few_;
    std::optional<Answers> more_;
    std::vector<ErrorReport> of_untuned_;
};

// A group sees only the axes it uses. Of blocks of a column axis, as of a weight's gradient that is rounded some rows
// at a time, nobody gives the number: as many as the longest that is given.
RowExtents of_group(const RowExtents& rows, const GraphData& graph) {
    std::int64_t longest = 1;
    for (const auto& [name, extent] : rows) longest = std::max(longest, extent);
    RowExtents own;
    for (const AxisInfo& axis : graph.axes()) {
        if (const auto found = rows.find(axis.name); found != rows.end()) own.insert(*found);
        if (axis.blocks > 0) own.emplace(axis.name, std::min(axis.blocks, longest));
    }
    return own;
}

}  // namespace

Program alone(const Group& group, const Schedule& schedule, const Target& target) {
    const std::shared_ptr<const GraphData> graph = with_whole_sums(*group.graph);
    const ScheduleChoice choice = [&](const Group& part) {
        return adds_parts(*part.graph) ? std::nullopt : std::optional(schedule);
    };
    Program program = compile(*graph, target, choice);
    // Alone it may be cheaper in another way, as with a thread's own values for all heads: then as it stands.
    if (program.steps[0].kernel.schedule != schedule)
        program = compile_plan(*graph, make_plan(graph, target), target, choice);
    if (program.steps[0].kernel.schedule != schedule)
        fail(ErrorCode::kUnsupported, "planned alone, the kernel takes another schedule");
    return program;
}

std::vector<CandidateOutcome> time_candidates(Engine::Impl& engine, const Group& group,
                                              const std::vector<Schedule>& schedules, const CandidateTiming& timing,
                                              const CandidateWatch& watch) {
    const std::shared_ptr<const GraphData> graph = with_whole_sums(*group.graph);
    GroupCheck check(*graph, timing.seed, [&] { return engine.load(compile(*graph, engine.target())); });
    std::vector<CandidateOutcome> outcomes(schedules.size());
    std::vector<Executable> executables;
    std::vector<std::size_t> right;  // whose executables these are
    for (std::size_t i = 0; i < schedules.size(); ++i) {
        if (watch.starts) watch.starts(i);
        CandidateOutcome& outcome = outcomes[i];
        try {
            Executable executable = engine.load(alone(group, schedules[i], engine.target()));
            outcome.rejected = check.fault(engine.device(), executable);
            if (outcome.rejected.empty()) {
                executables.push_back(std::move(executable));
                right.push_back(i);
            }
        } catch (const Error& error) {
            outcome.rejected = error.what();
            outcome.code = error.code();
        } catch (const InternalError& error) {  // as where it wrote past an end
            outcome.rejected = error.what();
        }
        if (!outcome.rejected.empty() && watch.rejects) watch.rejects(i, outcome);
    }
    if (right.empty()) return outcomes;
    MeasureOptions options = timing.measure;
    if (watch.starts) options.before = [&](std::size_t timed) { watch.starts(right[timed]); };
    const Measurement measured =
        measure(engine.device(), executables, *graph, of_group(timing.rows, *group.graph), options);
    for (std::size_t timed = 0; timed < right.size(); ++timed)
        outcomes[right[timed]].timing = measured.candidates[timed];
    return outcomes;
}

}  // namespace rowjit
