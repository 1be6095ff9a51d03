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

}  // namespace rowjit
