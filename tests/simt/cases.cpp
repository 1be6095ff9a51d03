#include "tests/simt/cases.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "compiler/neighbours.h"
#include "compiler/schedule/choose.h"
#include "compiler/schedule/lower.h"
#include "runtime/verify.h"

namespace rowjit {
namespace {

// Those that add up parts do not, nor those that compute with numbers of a row alone.
bool reduces_columns(const Group& group) { return phase_count(*group.graph) > 1; }

}  // namespace

Graph norm_backward(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = cast(g.input("x", dtype, {tokens, columns}), f32);
    const Value dy = g.input("dy", dtype, {tokens, columns});
    const Value weight = g.input("weight", dtype, {columns});
    const Value r = g.input("r", f32, {tokens});
    const Value normed = x * r;
    const Value d_normed = cast(dy * weight, f32);
    g.output("d_x", cast(r * (d_normed - normed * mean(d_normed * normed)), dtype));
    g.output("d_weight", sum(dy * cast(normed, dtype), tokens));
    g.output("d_bias", sum(dy, tokens));
    return g;
}

void add_cases(const std::string& name, const Graph& graph, const Target& target, std::vector<Case>* cases) {
    const Plan plan = plan_graph(*graph.data(), target);
    for (const Group& varied : plan.groups) {
        for (const Schedule& schedule : legal_schedules(varied, target)) {
            Program program = compile_plan(*graph.data(), plan, target, [&](const Group& group) {
                return group.name == varied.name ? std::optional(schedule) : std::nullopt;
            });
            cases->push_back(
                {fmt::format("{} on {}: {}", name, target.name, print(schedule)), graph, std::move(program)});
        }
    }
}

void add_backward_cases(const std::string& name, const Graph& graph, const std::vector<std::string>& trained,
                        const Target& target, std::vector<Case>* cases) {
    const auto both = std::make_shared<const Differentiated>(differentiate(graph, trained));
    const std::size_t first = cases->size();
    add_cases(name + " backward", both->backward, target, cases);
    for (std::size_t i = first; i < cases->size(); ++i) (*cases)[i].differentiated = both;
}

void add_request(const Request& request, const Target& target, std::vector<Case>* cases) {
    const Graph graph = make_graph(request.op, request.made);
    const std::string name =
        fmt::format("{} {} {}", request.op, request.made.columns, rowjit::name(request.made.dtype));
    if (request.backward) {
        add_backward_cases(name, graph, trained_inputs(request.op, graph), target, cases);
    } else {
        add_cases(name, graph, target, cases);
    }
}

Bindings inputs_of(const Case& one, const RowExtents& rows, const RandomOptions& options) {
    return one.differentiated ? random_inputs(*one.differentiated, rows, options)
                              : random_inputs(*one.graph.data(), rows, options);
}

RowExtents extents_of(const Case& one, std::int64_t rows) {
    RowExtents extents = all_rows(*one.graph.data(), rows);
    if (one.differentiated) extents.merge(all_rows(*one.differentiated->forward.data(), rows));
    return extents;
}

void check_cases(const std::vector<Case>& cases, const Target& target, std::int64_t rows, bool extremes) {
    each_built(cases, target, [&](std::size_t i, const Device& device, const Executable& executable) {
        const bool extreme = extremes && !cases[i].differentiated && i % 4 == 3;
        const auto inputs = [&](std::uint64_t launch) {
            return inputs_of(cases[i], extents_of(cases[i], rows),
                             {.seed = i + launch * cases.size(), .out_of_range = true, .extremes = extreme});
        };
        const auto outputs = verify_several(device, executable, *cases[i].graph.data(), inputs,
                                            {.row_padding = i % 2 == 0 ? 0 : 16, .guard_bytes = 0});
        CHECK_MESSAGE(within_bar(outputs), cases[i].name, "\n", describe(outputs));
    });
}

Case refilled(Case of) {
    for (Step& step : of.program.steps) step.kernel.refills = step.kernel.refills != step.kernel.may_refill();
    of.name += ", refilled";
    return of;
}

Case turned(Case of) {
    for (Step& step : of.program.steps) step.kernel.last_first = step.kernel.last_first != may_go_back(step.kernel);
    of.name += ", in the other order";
    return of;
}

std::string outcome_of(const Graph& graph, const Schedule& schedule, const Target& target,
                       const simt::Sabotage& sabotage, std::int64_t rows) {
    const Device device = simt::device(target);
    std::vector<Program> programs;
    programs.push_back(compile(*graph.data(), target, [&](const Group&) { return std::optional(schedule); }));
    REQUIRE(programs[0].steps[0].kernel.schedule == schedule);
    const std::vector<Executable> executables = simt::build(std::move(programs), target, device, sabotage);
    const Bindings bindings = random_inputs(*graph.data(), all_rows(*graph.data(), rows), {.seed = 3});
    try {
        // Guards wide enough that a broken kernel spoils poison rather than ending the process through a sanitizer.
        const auto outputs =
            verify(device, executables[0], *graph.data(), bindings, {.guard_bytes = std::size_t{1} << 16});
        return within_bar(outputs) ? "" : describe(outputs);
    } catch (const std::exception& error) {
        return error.what();
    }
}

std::string without(std::string text, std::string_view what) {
    const std::size_t at = text.rfind(what);
    REQUIRE(at != std::string::npos);
    return text.erase(at, what.size());
}

simt::Sabotage replacing(const std::string& what, const std::string& with) {
    return [=](std::string text) {
        const std::size_t at = text.find(what);
        REQUIRE(at != std::string::npos);
        return text.replace(at, what.size(), with);
    };
}

const Kernel& main_kernel(const Program& program) {
    const auto main = std::find_if(program.steps.begin(), program.steps.end(),
                                   [](const Step& step) { return reduces_columns(step.group); });
    REQUIRE(main != program.steps.end());
    return main->kernel;
}

Schedule block_schedule(int vector) {
    Schedule schedule;
    schedule.family = Family::kRowReduction;
    schedule.residency = Residency::kRegisters;
    schedule.threads_per_row = 256;
    schedule.vector = vector;
    return schedule;
}

std::optional<Schedule> if_main(const Group& group, const Schedule& schedule, const Target& target,
                                const std::string& name) {
    if (!reduces_columns(group)) return std::nullopt;
    const Offer<Kernel> kernel = build_kernel(group, schedule, target);
    REQUIRE_MESSAGE(kernel, name, ": ", print(schedule), ": ", kernel.reason());
    return schedule;
}

}  // namespace rowjit
