// Where along columns a cotangent can be anything at all. A choice by a column's place passes nothing back to what it
// does not choose there, as past the rotated part of a head, so reverse mode need not look there for who read an
// element: of a rotary embedding of 64 of 128 columns it would find each element read twice, of 4 of 4096 a sum over
// a thousand places of which one adds something.
#pragma once

#include <cstdint>
#include <map>

#include "dsl/graph.h"

namespace rowjit {

// low ≤ column < high.
struct ColumnRange {
    std::int64_t low;
    std::int64_t high;

    bool operator==(const ColumnRange&) const = default;
};

// By column axis; a cotangent is zero outside. An axis that is not among them may matter everywhere.
using Support = std::map<AxisId, ColumnRange>;

// Where either may be.
Support either(const Support& a, const Support& b);

// The part of the support where the condition, a node of `graph`, can come to `holds`: comparisons of a column's place
// with a constant narrow it, as do and, or and not of them; others leave it as it is.
Support where(const GraphData& graph, Support support, NodeId condition, bool holds);

}  // namespace rowjit
