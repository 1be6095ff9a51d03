#include "runtime/tuning.h"

#include <fmt/format.h>

#include <array>
#include <map>

#include "base/digest.h"

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

TuningKey tuning_key(const Group& group, const Target& target) {
    // Row counts are launch arguments, and one compiled kernel serves them all, so the choice has no shape of its own.
    return {fmt::format("codegen {}\n{}", kCodegenVersion, tuning_operation(group)), device_fingerprint(target),
            "any rows"};
}

std::string_view name(ChoiceSource source) {
    constexpr std::array<std::string_view, 3> kNames = {"tuned here", "shipped with rowjit", "static rule"};
    return kNames[static_cast<std::size_t>(source)];
}

std::optional<MeasuredChoice> measured_choice(const TuningDb& database, const Target& target, const Group& group,
                                              const std::vector<ChoiceTable>& tables) {
    const auto buildable = [&](std::string_view text) {
        std::optional<Schedule> schedule = parse_schedule(text);
        return schedule && build_kernel(group, *schedule, target) ? schedule : std::nullopt;
    };
    if (const auto record = database.get(tuning_key(group, target))) {
        if (const auto schedule = buildable(record->choice)) return MeasuredChoice{*schedule, ChoiceSource::kTuned};
    }
    for (const ChoiceTable& table : tables) {
        if (!table.covers(target)) continue;
        const TabledChoice* choice = table.find(sha256(tuning_operation(group)).hex());
        if (choice == nullptr) continue;
        if (const auto schedule = buildable(choice->schedule)) return MeasuredChoice{*schedule, ChoiceSource::kShipped};
    }
    return std::nullopt;
}

ScheduleChoice tuned_choice(const TuningDb& database, const Target& target) {
    return [&database, &target](const Group& group) -> std::optional<Schedule> {
        const auto choice = measured_choice(database, target, group);
        return choice ? std::optional(choice->schedule) : std::nullopt;
    };
}

}  // namespace rowjit
