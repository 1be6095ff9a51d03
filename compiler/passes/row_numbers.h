// Numbers of a row that a pass adds to a kernel: each stands behind those in `block` already.
#pragma once

#include <utility>
#include <variant>
#include <vector>

#include "compiler/kernel.h"

namespace rowjit {

inline ValueId add_constant(Kernel* kernel, Block* block, double value) {
    Inst number{.kind = InstKind::kConst, .id = kernel->value_count++};
    number.value = value;
    block->push_back({std::move(number)});
    return std::get<Inst>(block->back().node).id;
}

// The map that gives `id`. It stays where it is until something else is added.
inline Inst& add_map(Block* block, ValueId id, Op op, std::vector<ValueId> operands, Dtype dtype = Dtype::kF32) {
    block->push_back(
        {Inst{.kind = InstKind::kMap, .id = id, .dtype = dtype, .operands = std::move(operands), .op = op}});
    return std::get<Inst>(block->back().node);
}

// Calls `change` of each column loop with the block that it puts in front of the loop what that shall read.
template <class Change>
void change_loops(Kernel* kernel, const Change& change) {
    Block body;
    for (Stmt& stmt : kernel->body) {
        if (auto* loop = std::get_if<ColumnLoop>(&stmt.node)) change(loop, &body);
        body.push_back(std::move(stmt));
    }
    kernel->body = std::move(body);
}

}  // namespace rowjit
