// How many launches a comparison with eager takes. Of a few results eager's largest error is luck: whether its
// roundings happened to cancel there. So there are as many launches as give every output a number of elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dsl/interpret.h"
#include "dsl/tensor.h"

namespace rowjit {

inline std::uint64_t launch_count(const GraphData& graph, const RowExtents& rows, std::int64_t elements) {
    std::int64_t fewest = elements;
    for (const OutputInfo& output : graph.outputs())
        fewest = std::min(fewest, element_count(output_layout(graph, output.name, rows).extents));
    return fewest == 0 ? 1 : static_cast<std::uint64_t>((elements + fewest - 1) / fewest);
}

// `inputs` makes the bindings of a launch by its number.
template <class Inputs>
std::vector<Bindings> launches(const GraphData& graph, const RowExtents& rows, std::int64_t elements,
                               const Inputs& inputs) {
    std::vector<Bindings> found;
    const std::uint64_t count = launch_count(graph, rows, elements);
    for (std::uint64_t launch = 0; launch < count; ++launch) found.push_back(inputs(launch));
    return found;
}

}  // namespace rowjit
