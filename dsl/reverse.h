// Reverse mode: the cotangents of a graph's values, as further nodes of one joint graph. What of it becomes the
// backward, and what the forward must save for it, is gradient.cpp's.
//
// A cotangent has its value's dtype. It may lack axes of its value, along which it is then constant. Contributions are
// added in the value's dtype, each addition rounding, those of later users first, as autograd adds them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/graph.h"

namespace rowjit {

struct Joint {
    std::shared_ptr<GraphData> graph;   // no outputs; the nodes of the forward first, then those of reverse mode
    NodeId forward_size = 0;            // nodes below are the forward's
    std::vector<OutputInfo> forward;    // its outputs
    std::vector<OutputInfo> gradients;  // "d_<name>", with the value's dtype and axes
    std::vector<NodeId> compared;       // minima and maxima of the forward that their own elements are compared with
};

// The input or scalar of that name, or the values that have it as their label; -1 for none, and for several.
NodeId find_named(const GraphData& graph, std::string_view name);

// The cotangents of `inputs`, names that find_named finds, from those of the outputs named in `of`: inputs
// "d_<output>", or the constant 1 with `unit_cotangent`. Names are checked by the caller, but those of `sorted`
// (GradientOptions).
Joint reverse_mode(const GraphData& graph, const std::vector<std::string>& inputs, const std::vector<std::string>& of,
                   bool unit_cotangent, const std::vector<std::string>& sorted = {});

}  // namespace rowjit
