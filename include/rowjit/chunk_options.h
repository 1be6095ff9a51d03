// How matrix products of too many rows are divided: the logits of a fused linear loss are made, used and gone a chunk
// of rows at a time, and a weight's gradient is added up over the chunks. A graph without such products has no use for
// these.
#pragma once

#include <cstdint>

namespace rowjit {

struct ChunkOptions {
    // What a launch's workspace shall stay below where that is possible; 0: about 600 MiB beside f32 accumulators of
    // gradients, and all rows at once where that takes no more.
    std::int64_t workspace_limit_bytes = 0;
    std::int64_t chunk_rows = 0;  // rows of the products in a chunk; 0: chosen by a model of the device
    // Gradients over the divided rows are made a part of their columns at a time, over all rows, from products that are
    // made once more: rounded once, without the f32 accumulator, in about 64 MiB where no limit is given. Done too
    // where a limit leaves no room for accumulators. What cannot be made so is rounded after each chunk.
    bool low_memory = false;
    std::int64_t part_columns = 0;  // columns of such a part; 0: chosen by the model
    // Gradients over the divided rows are added up in their own dtype, rounding after every chunk, so that no f32
    // accumulator is held.
    bool round_each_chunk = false;
};

}  // namespace rowjit
