// The launches of a comparison with eager that is stricter than verify_several's.
#pragma once

#include <cstdint>
#include <vector>

#include "dsl/interpret.h"
#include "dsl/tensor.h"
#include "runtime/verify.h"

namespace rowjit {

// `inputs` makes the bindings of a launch by its number.
template <class Inputs>
std::vector<Bindings> launches(const GraphData& graph, const RowExtents& rows, std::int64_t elements,
                               const Inputs& inputs) {
    std::vector<Bindings> found;
    const std::uint64_t count = launch_count(graph, rows, elements);
    for (std::uint64_t launch = 0; launch < count; ++launch) found.push_back(inputs(launch));
    return found;
}

// Over those, and where an output is outside the bar over kMoreLaunches times as many: a library adds up products in an
// order of its own for each processor, and of what cancels the largest error of either order is luck. With Zen 3's a
// gradient of one row was 2.6 times as far off as with eager's, of several 1.04 times.
template <class Inputs>
std::vector<Verification> verify_launches(const Device& device, const Executable& executable, const GraphData& graph,
                                          const RowExtents& rows, std::int64_t elements, const Inputs& inputs,
                                          const RunOptions& options = {}) {
    const auto over = [&](std::int64_t fewest) {
        return verify(device, executable, graph, launches(graph, rows, fewest, inputs), options);
    };
    const std::vector<Verification> outputs = over(elements);
    return within_bar(outputs) ? outputs : over(elements * static_cast<std::int64_t>(kMoreLaunches));
}

}  // namespace rowjit
