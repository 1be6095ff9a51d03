// How many rows a chunk should have: a model of how well a chunk's products fill the multiprocessors with tiles, and of
// what adding a weight's gradient once more costs. Neither the row count of a launch nor how many rows a position of
// the divided axis has is known when a program is compiled, so what is kept is a table that a launch looks into.
#pragma once

#include <cstdint>
#include <vector>

#include "base/target.h"
#include "compiler/plan/chunks.h"

namespace rowjit {

// What a launch's workspace is made of, besides a few blocks' parts of sums and what a library asks for.
struct ChunkBytes {
    std::int64_t of_position = 0;      // of the divided axis, in what is of one chunk
    std::int64_t beside_position = 0;  // likewise, but never in an output's memory
    std::int64_t position_rows = 1;    // rows of the products for each position
    std::int64_t accumulators = 0;     // where there are several chunks
    std::int64_t shared = 0;           // of them, what may lie in the memory of their results
    std::int64_t others = 0;
    std::int64_t lent = 0;         // of an output in whose memory a chunk may lie
    bool lent_to_several = false;  // chunks, not to one
};

struct ChunkChoice {
    std::int64_t positions = 1;      // of a chunk; the last may have fewer
    std::int64_t chunks = 1;         // one for no rows, too: sums over them are then zero
    std::int64_t allowed_bytes = 0;  // for all positions at once; more made them several chunks
    bool lent = false;               // a chunk lies in the memory that an output lends
    bool shared = false;             // accumulators lie partly in their results' memory, and no chunk does
};

struct ChunkCosts {
    static constexpr std::int64_t kStepRows = 256;  // a tile's; chunks of more rows than this are multiples of it

    std::int64_t forced_rows = 0;           // ChunkOptions::chunk_rows, or part_columns
    std::int64_t limit_bytes = 0;           // ChunkOptions::workspace_limit_bytes
    bool adds_up = true;                    // over chunks, into one result
    std::vector<double> predicted_us = {};  // of a chunk of kStepRows · (i + 1) rows

    // How many of the positions, each of `position_rows` rows, a chunk has where `fitting` have room: as many as make
    // all chunks together shortest; at least 1, at most `fitting` unless forced.
    std::int64_t choose_positions(std::int64_t fitting, std::int64_t positions, std::int64_t position_rows) const;

    // The blocks of columns of a part that lies in an output's memory, where `fitting` of `blocks` have room.
    std::int64_t choose_blocks(std::int64_t fitting, std::int64_t blocks, std::int64_t block_columns,
                               std::int64_t block_bytes) const;

    // All positions are one chunk where that takes no more memory than a chunk and the accumulators that several need.
    ChunkChoice divide(std::int64_t positions, const ChunkBytes& bytes) const noexcept;

  private:
    double chunk_us(std::int64_t rows) const;
    double total_us(std::int64_t each, std::int64_t positions, std::int64_t position_rows) const;
};

// Where the loop goes through blocks of columns, its rows are columns.
ChunkCosts chunk_costs(const Plan& plan, const ChunkLoop& loop, const Target& target, const ChunkOptions& options);

}  // namespace rowjit
