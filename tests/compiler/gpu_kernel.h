// Kernels whose text the tests of the GPU emitter read: of a few graphs, under a schedule of the test's choice or the
// static rule's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "rowjit/graph.h"

namespace rowjit {

using Build = std::function<void(Graph&, std::int64_t columns)>;

void build_rms_norm(Graph& g, std::int64_t columns);
void build_layer_norm(Graph& g, std::int64_t columns);
void build_add_rms_norm(Graph& g, std::int64_t columns);
void build_softmax(Graph& g, std::int64_t columns);
void build_cross_entropy(Graph& g, std::int64_t columns);
void build_swiglu(Graph& g, std::int64_t columns);
// Weights that both phases of a row read.
void build_weighted_difference(Graph& g, std::int64_t columns);
void build_rope(Graph& g, std::int64_t columns);
void build_half_rope(Graph& g, std::int64_t columns);

// A block that stays for many rows and copies them ahead.
Schedule staged_schedule(Residency residency);

// Under the static rule's schedules.
std::vector<Kernel> kernels_of(const Build& build, std::int64_t columns, const Target& target);
std::string body_of(const Build& build, std::int64_t columns, const std::string& target_name = "sm_90a");

// One group of the graph under a schedule of the test's choice.
Kernel kernel_with(const Build& build, std::int64_t columns, const Schedule& schedule, const Target& target);

bool contains(const std::string& text, const std::string& part);
int count(const std::string& text, const std::string& part);

}  // namespace rowjit
