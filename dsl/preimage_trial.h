// A solution of coordinates, tried at every position where there are few enough: the solver's rules are many, and what
// they give together is decided and checked by counting.
#pragma once

#include <cstdint>
#include <optional>

#include "dsl/preimage.h"

namespace rowjit {

inline constexpr std::int64_t kMostTried = std::int64_t{1} << 20;  // positions

// Whether the condition, over axes of the graph, holds everywhere or nowhere; nothing where it varies or cannot be
// told.
std::optional<bool> decide(const GraphData& graph, const Bounded& condition);

// Checks that every element of the Index's result within the support is found from the source element that it reads,
// and from no other, and none outside. Where coordinates hold data, or there are too many positions, nothing is tried.
void check_preimage(const GraphData& graph, const Node& index, const Support& support, const Preimage& preimage);

}  // namespace rowjit
