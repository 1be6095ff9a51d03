#include "runtime/tuning.h"

#include <fmt/format.h>

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
    return fmt::format("codegen {}\n{}", kCodegenVersion, Graph(plain).print());
}

std::string device_fingerprint(const Target& target) {
    return fmt::format("{} {} x{} {}", target.name, target.label, target.sm_count, target.cpu_features);
}

TuningKey tuning_key(const Group& group, const Target& target) {
    // Row counts are launch arguments, and one compiled kernel serves them all, so the choice has no shape of its own.
    return {tuning_operation(group), device_fingerprint(target), "any rows"};
}

ScheduleChoice tuned_choice(const TuningDb& database, const Target& target) {
    return [&database, &target](const Group& group) -> std::optional<Schedule> {
        const auto record = database.get(tuning_key(group, target));
        return record ? parse_schedule(record->choice) : std::nullopt;
    };
}

}  // namespace rowjit
