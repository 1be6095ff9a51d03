// What a row has one of lies in a register of each of its threads from where it is computed to where it is last used.
// A derivative of many steps uses last what the first step made: of twenty Sinkhorn steps a thread would hold seven
// hundred numbers, where it has at most 255 registers, and the toolchain takes a minute over it. Such a kernel is
// parted where it holds most: what it has made by then and uses later is stored, for one kernel that loads each number
// where it uses it. Steps that are alike both kernels have in a loop (passes/rounds), and the second loads a step's
// numbers in its turn; of a kernel without loops NVRTC 13 loads them all first.
//
// Computing steps again in place of loading what they made was slower: hyper_pre's backward of 4096 tokens, in six such
// kernels one after the other, took 0.222 ms (H100), and 0.174 with two.
#pragma once

#include <vector>

#include "dsl/graph.h"

namespace rowjit {

// The values to store so that neither what they are made of nor what is made of them has as many numbers live at once;
// none where all of `nodes`, which one kernel computes, have few enough, or no value parts them. `nodes` has operands
// before users.
std::vector<NodeId> values_that_part(const GraphData& graph, const std::vector<NodeId>& nodes);

}  // namespace rowjit
