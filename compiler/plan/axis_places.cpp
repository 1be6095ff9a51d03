#include "compiler/plan/axis_places.h"

#include <algorithm>
#include <cstddef>
#include <set>

namespace rowjit {
namespace {

void count_beside(const GraphData& graph, std::vector<AxisInfo>* axes) {
    for (const NodeId id : graph.live_nodes()) {
        std::vector<AxisId> given = graph.node(id).axes;
        std::erase_if(given, [&](AxisId axis) { return !graph.axis(axis).is_given(); });
        for (const AxisId axis : given) {
            int& beside = (*axes)[static_cast<std::size_t>(axis)].beside;
            beside = std::max(beside, static_cast<int>(given.size()));
        }
    }
}

}  // namespace

std::vector<AxisInfo> with_places(const GraphData& graph) {
    std::vector<std::set<AxisId>> before(graph.axes().size());  // by axis: those that some value has in front of it
    for (const NodeId id : graph.live_nodes()) {
        const std::vector<AxisId>& axes = graph.node(id).axes;
        for (std::size_t i = 1; i < axes.size(); ++i) before[static_cast<std::size_t>(axes[i])].insert(axes[i - 1]);
    }
    std::vector<AxisInfo> counted = graph.axes();
    count_beside(graph, &counted);
    std::vector<AxisInfo> placed = counted;
    for (AxisInfo& axis : placed) axis.place = 0;
    const auto is_placed = [&](AxisId id) { return placed[static_cast<std::size_t>(id)].place > 0; };
    for (int place = 1; place <= static_cast<int>(placed.size()); ++place) {
        std::size_t next = 0;
        while (next < placed.size() && (placed[next].place > 0 || !std::ranges::all_of(before[next], is_placed)))
            ++next;
        if (next == placed.size()) return counted;
        placed[next].place = place;
    }
    return placed;
}

}  // namespace rowjit
