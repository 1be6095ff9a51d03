// What a launch of a program takes of memory besides its tensors, said before there is a device: for `explain`. What a
// launch then takes is runtime/launch_plan's to say, and a test holds one against the other.
#pragma once

#include <cstdint>

#include "compiler/compile.h"

namespace rowjit {

struct Workspace {
    ChunkBytes bytes;
    ChunkChoice chunks;      // of a program without a loop: one, of all rows
    std::int64_t total = 0;  // without what a library asks for and a few blocks' parts of sums
};

// Of a launch whose run-time row axes all have `rows` positions.
Workspace workspace_of(const Program& program, std::int64_t rows);

}  // namespace rowjit
