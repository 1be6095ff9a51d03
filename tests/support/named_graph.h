// A graph and what a test that fails calls it.
#pragma once

#include <string>

#include "rowjit/graph.h"

namespace rowjit {

struct NamedGraph {
    std::string what;
    Graph graph;
};

}  // namespace rowjit
