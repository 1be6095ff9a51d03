// What a launch of a program takes of memory besides its tensors, said before there is a device: for `explain`. What a
// launch then takes is runtime/launch_plan's to say, and a test holds one against the other.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/compile.h"

namespace rowjit {

struct Workspace {
    struct Loop {
        std::int64_t positions = 1;  // of its axis
        ChunkBytes bytes;
        ChunkChoice chunks;
    };
    std::vector<Loop> loops;  // of Program::loops; their chunks lie in the same memory, one after the other
    std::int64_t accumulators = 0;
    std::int64_t accumulators_taken = 0;  // of them, of the workspace: none of one chunk, less where results hold some
    std::int64_t others = 0;
    std::int64_t total = 0;  // without what a library asks for and blocks' parts of sums

    // What is of chunks: of the loop that takes the most.
    std::int64_t chunk_bytes() const;
};

// Of a launch whose run-time row axes all have `rows` positions.
Workspace workspace_of(const Program& program, std::int64_t rows);

}  // namespace rowjit
