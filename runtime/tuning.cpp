#include "runtime/tuning.h"

#include <fmt/format.h>

#include <array>
#include <map>

#include "base/digest.h"
#include "base/environment.h"
#include "compiler/toolchain/toolchain.h"

namespace rowjit {

std::string tuning_operation(const Group& group) {
    const GraphData& graph = *group.graph;
    auto plain = std::make_shared<GraphData>(graph.axes());
    std::map<NodeId, NodeId> mapped;
    for (const NodeId id : graph.live_nodes()) {
        Node node = graph.node(id);
        if (node.kind == NodeKind::kScalar) node.value = 0;
        node.label.clear();
        mapped[id] = plain->add_copy(node, [&](NodeId arg) { return mapped.at(arg); });
    }
    for (OutputInfo output : graph.outputs()) {
        output.node = mapped.at(output.node);
        plain->add_output(std::move(output));
    }
    return Graph(plain).print();
}

std::string device_fingerprint(const Target& target) {
    return fmt::format("{} {} x{} {}", target.name, target.label, target.sm_count, target.cpu_features);
}

namespace {

TuningKey key_of(std::string_view operation, const Target& target) {
    // Row counts are launch arguments, and one compiled kernel serves them all, so the choice has no shape of its own.
    return {fmt::format("codegen {}\n{}", kCodegenVersion, operation), device_fingerprint(target), "any rows"};
}

}  // namespace

TuningKey tuning_key(const Group& group, const Target& target) { return key_of(tuning_operation(group), target); }

std::string_view name(ChoiceSource source) {
    constexpr std::array<std::string_view, 5> kNames = {"pinned", "tuned here", "tuned elsewhere, in a bundle",
                                                        "shipped with rowjit", "static rule"};
    return kNames[static_cast<std::size_t>(source)];
}

std::vector<std::string> bundle_paths(std::vector<std::string> more) {
    for (std::string& path : environment_paths("ROWJIT_BUNDLE_PATH")) more.push_back(std::move(path));
    return more;
}

ChoiceSources choice_sources(const std::string& cache_root, const std::vector<std::string>& more_bundles) {
    ChoiceSources sources{std::make_shared<const TuningDb>(cache_root)};
    sources.bundles = open_bundles(bundle_paths(more_bundles));
    if (const std::optional<std::string> path = environment_text("ROWJIT_PINNED_CHOICES"))
        sources.pinned = read_choice_table(*path);
    return sources;
}

std::optional<MeasuredChoice> measured_choice(const ChoiceSources& sources, const Target& target, const Group& group) {
    const std::string operation = tuning_operation(group);
    const auto buildable = [&](std::string_view text, ChoiceSource source) -> std::optional<MeasuredChoice> {
        const std::optional<Schedule> schedule = parse_schedule(text);
        if (!schedule || !build_kernel(group, *schedule, target)) return std::nullopt;
        return MeasuredChoice{*schedule, source};
    };
    const auto tabled = [&](const ChoiceTable& table, ChoiceSource source) -> std::optional<MeasuredChoice> {
        if (!table.covers(target)) return std::nullopt;
        const TabledChoice* choice = table.find(sha256(operation).hex());
        return choice == nullptr ? std::nullopt : buildable(choice->schedule, source);
    };
    if (sources.pinned) {
        if (auto choice = tabled(*sources.pinned, ChoiceSource::kPinned)) return choice;
    } else {
        const TuningKey key = key_of(operation, target);
        if (const auto record = sources.database->get(key)) {
            if (auto choice = buildable(record->choice, ChoiceSource::kTuned)) return choice;
        }
        for (const std::shared_ptr<const Bundle>& bundle : sources.bundles) {
            const auto record = bundle->record(key);
            if (!record) continue;
            if (auto choice = buildable(record->choice, ChoiceSource::kBundle)) return choice;
        }
    }
    for (const ChoiceTable& table : *sources.shipped) {
        // What is asked for by a device alone is not in what was compiled for its architecture.
        const bool of_device = table.covers(target) && !table.covers(find_target(target.name));
        if (of_device && !find_toolchain(target)) continue;
        if (auto choice = tabled(table, ChoiceSource::kShipped)) return choice;
    }
    return std::nullopt;
}

ScheduleChoice tuned_choice(const ChoiceSources& sources, const Target& target) {
    return [&sources, &target](const Group& group) -> std::optional<Schedule> {
        const auto choice = measured_choice(sources, target, group);
        return choice ? std::optional(choice->schedule) : std::nullopt;
    };
}

}  // namespace rowjit
