// `rowjit explain`: why the kernels are what they are — the plan, what each group must move, which schedules were
// offered and which declined, the chosen loops and the source made of them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "compiler/cost.h"
#include "compiler/schedule/lower.h"
#include "compiler/workspace.h"
#include "runtime/device.h"
#include "runtime/tuning.h"
#include "tools/commands.h"
#include "tools/engine_options.h"
#include "tools/launch_description.h"
#include "tools/report.h"
#include "tools/version.h"

namespace rowjit {
namespace {

constexpr std::int64_t kExplainedRows = 8192;

struct OfferedSchedule {
    std::string text;
    std::string declined;  // "" when it lowers
    CostTerms cost;
};

struct GroupReport {
    const Group* group;
    std::int64_t rows = 0;
    double bytes = 0;
    double predicted_us = 0;
    ChoiceSource source = ChoiceSource::kRule;
    std::vector<std::pair<std::string, std::string>> families;  // name, why it offers nothing ("" when it does)
    std::vector<OfferedSchedule> schedules;
};

// Of each run-time row axis, where a kernel has so many rows in all.
std::int64_t extent_of_each(const Kernel& kernel, std::int64_t rows) {
    const auto axes = std::ranges::count_if(kernel.row_axes, [&](AxisId axis) {
        return kernel.axis(axis).extent == kRuntimeExtent && kernel.axis(axis).blocks == 0;
    });
    return axes < 2 ? rows : std::llround(std::pow(static_cast<double>(rows), 1.0 / static_cast<double>(axes)));
}

GroupReport report_on(const Step& step, const Target& target, const ChoiceSources& choices, std::int64_t rows) {
    const Group& group = step.group;
    const auto extent = static_cast<double>(rows);
    GroupReport report{&group, rows, group_bytes(*group.graph, extent)};
    const std::int64_t each = extent_of_each(step.kernel, rows);
    const CostTerms cost = cost_terms(step.kernel, target, each);
    report.predicted_us = cost.turns > 0 ? predicted_us(cost) : predicted_us(*group.graph, target, extent);
    if (const auto measured = measured_choice(choices, target, group)) report.source = measured->source;
    for (const FamilyOffer& offer : offers(group, target)) {
        report.families.emplace_back(name(offer.family), offer.declined);
        for (const Schedule& schedule : offer.schedules) {
            const auto lowered = build_kernel(group, schedule, target);
            report.schedules.push_back({print(schedule), lowered ? "" : lowered.reason(),
                                        lowered ? cost_terms(*lowered, target, each) : CostTerms{}});
        }
    }
    return report;
}

nlohmann::json to_json(const CostTerms& cost) {
    return {{"predicted_us", predicted_us(cost)},
            {"memory_us", cost.memory_us},
            {"again_us", cost.again_us},
            {"issue_us", cost.issue_us},
            {"special_us", cost.special_us},
            {"turns", cost.turns},
            {"loads", cost.loads},
            {"fetched", cost.fetched},
            {"bare_turns", cost.bare_turns},
            {"block_meetings", cost.block_meetings},
            {"cluster_meetings", cost.cluster_meetings},
            {"registers", cost.registers},
            {"blocks_at_once", cost.blocks_at_once}};
}

nlohmann::json to_json(const GroupReport& report, const Step& step, const Target& target) {
    nlohmann::json json = {{"kernel", report.group->name},
                           {"graph", Graph(std::const_pointer_cast<GraphData>(report.group->graph)).print()},
                           {"rows", report.rows},
                           {"bytes", report.bytes},
                           {"predicted_us", report.predicted_us},
                           {"schedule", print(step.kernel.schedule)},
                           {"schedule_from", name(report.source)},
                           {"loops", print(step.kernel)},
                           {"source", readable_source(step.kernel, target)}};
    if (step.needed) json["launched_above"] = step.needed->above;
    json["offers"] = nlohmann::json::array();
    for (const OfferedSchedule& schedule : report.schedules) {
        json["offers"].push_back({{"schedule", schedule.text}, {"declined", schedule.declined}});
        if (schedule.cost.turns > 0) json["offers"].back()["cost"] = to_json(schedule.cost);
    }
    json["families"] = nlohmann::json::array();
    for (const auto& [family, why] : report.families)
        json["families"].push_back({{"family", family}, {"declined", why}});
    return json;
}

void print_text(const GroupReport& report, const Step& step, const Target& target) {
    fmt::print("kernel {}: {:.3f} MB for {} rows, {:.1f} us predicted, {:.0f} GB/s\n\n", report.group->name,
               report.bytes / 1e6, report.rows, report.predicted_us, report.bytes / 1e3 / report.predicted_us);
    fmt::print("{}\n", Graph(std::const_pointer_cast<GraphData>(report.group->graph)).print());
    if (step.needed) {
        fmt::print("  launched where {} has more than {} positions\n",
                   report.group->graph->axis(step.needed->axis).name, step.needed->above);
    }
    for (const auto& [family, why] : report.families) {
        if (!why.empty()) fmt::print("  {} declined: {}\n", family, why);
    }
    for (const OfferedSchedule& schedule : report.schedules) {
        const bool chosen = schedule.text == print(step.kernel.schedule);
        const std::string why = chosen ? fmt::format(" ({})", name(report.source)) : "";
        fmt::print("  {} {}{}{}\n", chosen ? "*" : " ", schedule.text, why,
                   schedule.declined.empty() ? "" : " declined: " + schedule.declined);
    }
    fmt::print("\n{}\n{}\n", print(step.kernel), readable_source(step.kernel, target));
}

// What the forward keeps for its backward, and what the backward makes again.
void add_saving(const Differentiated& differentiated, nlohmann::json* record) {
    (*record)["saved"] = nlohmann::json::array();
    for (const SavedValue& saved : differentiated.saved) {
        (*record)["saved"].push_back({{"name", saved.name},
                                      {"value", saved.description},
                                      {"bytes_per_row", saved.bytes_per_row},
                                      {"is_output", saved.is_output},
                                      {"why", saved.why}});
    }
    (*record)["recomputed"] = nlohmann::json::array();
    for (const RecomputedValue& value : differentiated.recomputed)
        (*record)["recomputed"].push_back({{"label", value.label}, {"why", value.why}});
}

void print_saving(const Differentiated& differentiated) {
    for (const SavedValue& saved : differentiated.saved) {
        fmt::print("  saved: {}: {}, {} bytes a row; {}\n", saved.name, saved.description, saved.bytes_per_row,
                   saved.why);
    }
    for (const RecomputedValue& value : differentiated.recomputed)
        fmt::print("  computed again: {}, {}\n", value.label, value.why);
}

// ---- Products and their chunks -------------------------------------------------------------------------------------

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::string tensor_text(const Program& program, int index) {
    const ProgramTensor& tensor = program.tensors[static_cast<std::size_t>(index)];
    std::vector<std::string> axes;
    for (const AxisId axis : tensor.axes) axes.push_back(program.axes[static_cast<std::size_t>(axis)].label());
    return fmt::format("{}: {}[{}]", tensor.name, name(tensor.dtype), fmt::join(axes, ", "));
}

std::string product_text(const Program& program, const ProductStep& product) {
    std::vector<std::string> over;
    for (const AxisId axis : product.contracted) over.push_back(program.axes[static_cast<std::size_t>(axis)].label());
    return fmt::format(
        "product {} of {} and {}, over {}{}", tensor_text(program, product.result), tensor_text(program, product.left),
        tensor_text(program, product.right), fmt::join(over, ", "),
        product.accumulator < 0 ? "" : fmt::format(", added up in {}", tensor_text(program, product.accumulator)));
}

std::string step_text(const Program& program, const PlanStep& step) {
    if (step.kind == PlanStep::Kind::kKernel) {
        const Step& made = program.steps[step.index];
        return fmt::format("kernel {}{}{}", made.kernel.name,
                           made.product ? ", with its " + product_text(program, program.products[*made.product]) : "",
                           step.rounds ? ", where there are several chunks" : "");
    }
    return product_text(program, program.products[step.index]);
}

std::string loop_text(const Program& program, std::size_t index, const Workspace& workspace) {
    const Workspace::Loop& loop = workspace.loops[index];
    const std::string axis = program.axes[static_cast<std::size_t>(program.loops[index].axis)].label();
    std::string place;
    if (loop.chunks.lent) {
        const int lender = program.loops[index].lender;
        place = fmt::format(" in {}, which is written later", program.tensors[static_cast<std::size_t>(lender)].name);
    }
    if (loop.chunks.shared) place = ", beside sums that lie in their results' memory as far as they have room there";
    return fmt::format(
        "of {} {} {} chunk{} of {}: what is of a chunk takes {:.3f} MiB for each, all at once {:.1f} MiB where {:.1f} "
        "MiB are allowed{}",
        loop.positions, axis, loop.chunks.chunks, loop.chunks.chunks == 1 ? "" : "s", loop.chunks.positions,
        mebibytes(loop.bytes.of_position), mebibytes(loop.positions * loop.bytes.of_position),
        mebibytes(loop.chunks.allowed_bytes), place);
}

std::string workspace_text(const Workspace& workspace) {
    const std::int64_t chunk_bytes = workspace.chunk_bytes();
    return fmt::format(
        "workspace {:.1f} MiB: a chunk {:.1f}, accumulators {:.1f}, the rest {:.1f}; and what the "
        "products' library asks for",
        mebibytes(workspace.total), mebibytes(chunk_bytes), mebibytes(workspace.accumulators_taken),
        mebibytes(workspace.others));
}

// Of a step, the axis of which it sees a chunk at a time; "" for none.
std::string chunks_of(const Program& program, std::size_t step) {
    for (const ProgramLoop& loop : program.loops) {
        if (step >= loop.first && step < loop.end) return program.axes[static_cast<std::size_t>(loop.axis)].label();
    }
    return "";
}

void add_products(const Program& program, std::int64_t rows, nlohmann::json* record) {
    const Workspace workspace = workspace_of(program, rows);
    nlohmann::json steps = nlohmann::json::array();
    for (std::size_t i = 0; i < program.order.size(); ++i) {
        const std::string axis = chunks_of(program, i);
        steps.push_back({{"step", step_text(program, program.order[i])}, {"of_each_chunk", !axis.empty()}});
        if (!axis.empty()) steps.back()["chunks_of"] = axis;
    }
    nlohmann::json loops = nlohmann::json::array();
    for (std::size_t i = 0; i < program.loops.size(); ++i) {
        const Workspace::Loop& loop = workspace.loops[i];
        loops.push_back({{"axis", program.axes[static_cast<std::size_t>(program.loops[i].axis)].label()},
                         {"chunks", loop.chunks.chunks},
                         {"chunk_positions", loop.chunks.positions},
                         {"allowed_bytes", loop.chunks.allowed_bytes},
                         {"position_bytes", loop.bytes.of_position},
                         {"in_output", loop.chunks.lent},
                         {"sums_in_outputs", loop.chunks.shared}});
    }
    (*record)["steps"] = std::move(steps);
    (*record)["workspace"] = {{"rows", rows},
                              {"bytes", workspace.total},
                              {"loops", std::move(loops)},
                              {"accumulator_bytes", workspace.accumulators},
                              {"accumulator_bytes_taken", workspace.accumulators_taken},
                              {"other_bytes", workspace.others}};
}

void print_products(const Program& program, std::int64_t rows) {
    const Workspace workspace = workspace_of(program, rows);
    for (std::size_t i = 0; i < program.loops.size(); ++i) fmt::print("  {}\n", loop_text(program, i, workspace));
    fmt::print("  {}\n", workspace_text(workspace));
    for (std::size_t i = 0; i < program.order.size(); ++i) {
        const std::string axis = chunks_of(program, i);
        const std::string of_each = axis.empty() ? "" : fmt::format("each chunk of {}: ", axis);
        fmt::print("  {}{}. {}\n", of_each, i + 1, step_text(program, program.order[i]));
    }
}

}  // namespace

int explain_command(const CommonOptions& common) {
    const std::vector<Job> jobs = make_jobs(common.jobs);
    const ChoiceSources choices = choice_sources(cache_root(common), common.bundles);
    nlohmann::json document = {{"rowjit", kVersion}, {"records", nlohmann::json::array()}};
    for (const Target& target : chosen_targets(common)) {
        for (const Job& job : jobs) {
            const GraphData& graph = *job.graph.data();
            const Program program = compile(graph, target, tuned_choice(choices, target), common.jobs.chunks);
            nlohmann::json record = {{"job", job.name},
                                     {"target", target.name},
                                     {"notes", program.notes},
                                     {"kernels", nlohmann::json::array()}};
            if (job.differentiated) add_saving(*job.differentiated, &record);
            const std::int64_t rows = common.jobs.tokens > 0 ? common.jobs.tokens : kExplainedRows;
            if (!program.products.empty()) add_products(program, rows, &record);
            if (!common.json) {
                fmt::print("{} for {}: {} kernel{}\n", job.name, target.name, program.steps.size(),
                           program.steps.size() == 1 ? "" : "s");
                if (job.differentiated) print_saving(*job.differentiated);
                for (const std::string& note : program.notes) fmt::print("  {}\n", note);
                if (!program.products.empty()) print_products(program, rows);
                fmt::print("\n");
            }
            for (const Step& step : program.steps) {
                const GroupReport report = report_on(step, target, choices, rows);
                if (common.json) {
                    record["kernels"].push_back(to_json(report, step, target));
                } else {
                    print_text(report, step, target);
                }
            }
            document["records"].push_back(std::move(record));
        }
    }
    if (common.json) fmt::print("{}\n", document.dump(2));
    return kExitOk;
}

}  // namespace rowjit
