// Statements of a row that are taken again and again: the steps of a fixpoint, until the row stands still, and rounds
// that a graph has written out (passes/rounds), as a loop.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "compiler/emit/gpu_columns.h"
#include "compiler/emit/gpu_emitter.h"
#include "compiler/passes/passes.h"
#include "compiler/passes/rounds.h"

namespace rowjit::gpu_emit {

// Rows take different numbers of steps, so those count their own turns.
void KernelEmitter::declare_turns_of_steps() {
    for (const Stmt& stmt : kernel_.body) {
        const auto* open = std::get_if<OpenSteps>(&stmt.node);
        if (open == nullptr) continue;
        turns_of_steps_[open->state] = scope_.names().fresh(open->label + "_turn");
        out_.line(fmt::format("int {} = 0;", turns_of_steps_[open->state]), "steps of this cluster that are done");
    }
}

// The number of times that a step's threads meet, where one is open.
int KernelEmitter::meetings_here(const OpenSteps& open) const { return meetings_of_steps(position_of(open)); }

Block::const_iterator KernelEmitter::position_of(const OpenSteps& open) const {
    return std::find_if(kernel_.body.begin(), kernel_.body.end(),
                        [&](const Stmt& stmt) { return std::get_if<OpenSteps>(&stmt.node) == &open; });
}

// A loop whose text is the last round, and variables for what a round reads of those before it.
void KernelEmitter::rounds(const Rounds& rounds) {
    const auto last = static_cast<std::ptrdiff_t>(rounds.count) - 1;
    const auto inst = [&](std::ptrdiff_t round, std::size_t place) {
        return std::get_if<Inst>(&kernel_.body[static_cast<std::size_t>(rounds.at(round, place))].node);
    };
    struct Past {
        std::size_t place;
        std::ptrdiff_t age;
        std::string name;
        std::string divisor;  // that it is prepared as, if several are divided by it
    };
    std::vector<Past> pasts;  // of a place the oldest first
    out_.blank();
    for (std::size_t place = 0; place < rounds.length; ++place) {
        const Inst& made = *inst(last, place);
        bool divides = false;
        for (auto age = static_cast<std::ptrdiff_t>(rounds.ages[place]); age > 0; --age)
            divides = divides || rows_.divides_several(inst(last - age, place)->id);
        for (auto age = static_cast<std::ptrdiff_t>(rounds.ages[place]); age > 0; --age) {
            const Inst* before = rounds.at(-age, place) < 0 ? nullptr : inst(-age, place);
            const bool known = before != nullptr && before->id >= 0 && before->dtype == made.dtype;
            pasts.push_back({place, age, scope_.names().fresh(made.label + "_before"), ""});
            Past& past = pasts.back();
            out_.line(fmt::format("{} {} = {};", gpu_value_type(made.dtype), past.name,
                                  known ? scope_.value(before->id) : gpu_literal(made.dtype, 0)));
            if (!divides) continue;
            past.divisor = scope_.names().fresh(past.name + "_divisor");
            out_.line(fmt::format("rj_divisor {} = {};", past.divisor, scope_.prepared(past.name)));
            scope_.set_divisor(past.name, past.divisor);
        }
    }
    const GpuScope::RowNames before_rounds = scope_.row_names();
    out_.line("RJ_ROLLED");
    out_.open(fmt::format("for (int round = 0; round < {}; ++round)", rounds.count));
    for (const Past& past : pasts) scope_.bind(inst(last - past.age, past.place)->id, past.name);
    // An axis of its own stands for the round in the places of loads and stores.
    const auto round = Axis{static_cast<AxisId>(kernel_.axes.size())};
    scope_.bind_axis(round.id, "round");
    for (std::size_t place = 0; place < rounds.length; ++place) {
        Inst moved = *inst(last, place);
        if (const RoundStep& step = rounds.steps[place]; step.by != 0)
            moved.coords[step.coord] = inst(0, place)->coords[step.coord] + Coord(round) * step.by;
        row_inst(moved);
    }
    for (std::size_t i = 0; i < pasts.size(); ++i) {
        const std::string& next = pasts[i].age > 1 ? pasts[i + 1].name : scope_.value(inst(last, pasts[i].place)->id);
        if (!pasts[i].divisor.empty()) {
            out_.line(fmt::format("{} = {};", pasts[i].divisor,
                                  pasts[i].age > 1 ? pasts[i + 1].divisor : scope_.divisor(next)));
        }
        out_.line(fmt::format("{} = {};", pasts[i].name, next));
    }
    out_.close();
    scope_.take_asked();
    scope_.set_row_names(before_rounds);
    for (const Past& past : pasts) scope_.bind(inst(last + 1 - past.age, past.place)->id, past.name);
}

void KernelEmitter::open_steps(const OpenSteps& steps) {
    out_.blank();
    const std::string state = scope_.names().fresh(steps.label);
    still_ = scope_.names().fresh(state + "_stands_still");
    out_.line(fmt::format("{} {} = {};", gpu_value_type(steps.dtype), state, scope_.value(steps.start)));
    out_.line(fmt::format("bool {} = false;", still_));
    scope_.bind(steps.state, state);
    auto stmt = position_of(steps);
    for (; !std::holds_alternative<CloseSteps>(stmt->node); ++stmt) {
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt->node)) emit_tested(*loop, scope_, kept_);
    }
    of_last_.clear();
    for (const CloseSteps::OfLast& last : std::get<CloseSteps>(stmt->node).of_last) {
        of_last_.push_back(scope_.names().fresh(last.label));
        out_.line(fmt::format("{} {} = 0;", gpu_value_type(last.dtype), of_last_.back()), "of the last step");
    }
    outside_steps_ = scope_.row_names();
    out_.line("RJ_ROLLED");
    out_.open(fmt::format("for (int step = 0; step <= {}; ++step)", steps.most_steps));
    for (const int index : steps.accumulators)
        out_.line(fmt::format("{} = {}();", scope_.state(index), scope_.state_type(index)));
    state_ = state;
    open_steps_ = &steps;
}

// A row that stands still waits for those it shares a warp with. What is wanted of the last state is this step's
// once that was its own: also of NaN, and of the state that no step is left to change.
void KernelEmitter::close_steps(const CloseSteps& steps) {
    const std::string& next = scope_.value(steps.next);
    if (kernel_.cluster_blocks() > 1) out_.line(fmt::format("++{};", turns_of_steps_.at(open_steps_->state)));
    for (std::size_t i = 0; i < of_last_.size(); ++i)
        out_.line(fmt::format("{} = {};", of_last_[i], scope_.value(steps.of_last[i].value)));
    out_.open(fmt::format("if (!{})", still_));
    out_.line(
        fmt::format("{0} = {1} == {2} || {2} != {2} || step == {3};", still_, next, state_, open_steps_->most_steps));
    out_.line(fmt::format("if (!{}) {} = {};", still_, state_, next));
    out_.close();
    open_steps_ = nullptr;
    const int lanes = std::min(scope_.target().warp_size, kernel_.block_threads());
    const bool alone = scope_.rows() == 1 || scope_.threads() >= lanes;
    out_.line(alone ? fmt::format("if ({}) break;", still_)
                    : fmt::format("if (rj_all_rows<{}, {}>({})) break;", scope_.threads(), lanes, still_));
    out_.close();
    scope_.take_asked();
    scope_.set_row_names(outside_steps_);
    scope_.bind(steps.result, state_);
    for (std::size_t i = 0; i < of_last_.size(); ++i) scope_.bind(steps.of_last[i].result, of_last_[i]);
}

}  // namespace rowjit::gpu_emit
