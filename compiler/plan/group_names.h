// What a kernel is called: after what it computes, not after its place, so that equal groups of different graphs are
// the same kernel.
#pragma once

#include <string>

#include "dsl/graph.h"

namespace rowjit {

std::string group_name(const GraphData& group);

}  // namespace rowjit
