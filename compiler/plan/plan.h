// Which operations share a kernel. A Plan is a list of groups in launch order; a group is a graph of its own, whose
// inputs are the program's inputs and the temporaries of earlier groups, and whose outputs are the program's and its
// own temporaries.
//
// Within a group all outputs have one row space. Later passes may assume, besides canonicalize's promises:
//   - row axes of the group's graph are its row space plus, under a reduction over rows, that reduction's axes; column
//   axes
//     that no reduction runs over, where one runs over the others, have become row axes (Node::axes are reordered to
//     match);
//   - every column reduction runs over all column axes of its operand;
//   - a group has column reductions or row reductions, never both; a row reduction's operand contains no reduction.
//
// A Matmul is no part of a group: a library computes it between kernels, of tensors in memory. It is a Product.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/target.h"
#include "compiler/schedule/schedule.h"
#include "dsl/graph.h"

namespace rowjit {

// A tensor that one group writes and later ones read. It lives in the launch's workspace, contiguous.
struct Temporary {
    std::string name;
    Dtype dtype = Dtype::kF32;
    std::vector<AxisId> axes;
    std::string over = {};  // a tensor of the same dtype, in whose memory it lies
    bool in_tiles = false;  // a product's result that nobody stores (plan/tile_sums.h)
};

struct Group {
    std::string name;                        // of its kernel, an identifier
    std::shared_ptr<const GraphData> graph;  // same AxisIds as the program's graph
    std::vector<AxisId> row_axes;            // of every output, outermost first
    bool reduces_rows = false;
};

// A matrix product of tensors in memory. The operands stand so that the result's axes are those that `left` keeps, then
// those that `right` keeps.
struct Product {
    std::string name;  // for messages
    std::string left;  // tensors of the program
    std::string right;
    std::string result;
    std::vector<AxisId> contracted;
    bool accumulate = false;  // add to what the result holds
    // Of a product that a chunk loop adds up: the f32 temporary to which it is added where there are several chunks; ""
    // where it is added to the result itself.
    std::string accumulator = {};
    // Of an accumulator that may lie partly in the result's memory, where nothing else is before it is rounded: the
    // axis along which the kernel that rounds it sees some rows at a time; -1 for others.
    AxisId rounded_rows = -1;
};

struct PlanStep {
    enum class Kind : std::uint8_t { kKernel, kProduct };
    Kind kind = Kind::kKernel;
    std::size_t index = 0;  // of a group or a product
    // The product whose accumulator it rounds to the product's result: nothing to do where all rows were one chunk of
    // the first loop.
    std::optional<std::size_t> rounds = {};
};

// Steps that run once for each run of positions along a row axis, a chunk, so that what only they share is of one
// chunk.
struct ChunkLoop {
    AxisId axis = -1;
    std::size_t first = 0;  // steps [first, end)
    std::size_t end = 0;
    std::vector<std::string> within;  // temporaries that no step outside reads or writes
    // Those of them that are small, numbers of rows and copies of a product's other operand: they are not what a lender
    // is for, and a chunk has as many rows as it has room for without them.
    std::vector<std::string> beside;
    // An output in whose memory what is of one chunk may lie, since nothing writes it before the loop has ended; or
    // where `writes_lender`, behind what the loop has written of it, from the front. "" for none.
    std::string lender = {};
    bool writes_lender = false;
    bool lender_is_rounded =
        false;  // to, from an accumulator behind the loop, so that one chunk alone writes it itself
};

// A column axis as a row axis of blocks and the columns of a block (compiler/plan/column_blocks.h).
struct ColumnDivision {
    AxisId whole = -1;
    AxisId blocks = -1;
    AxisId within = -1;
};

struct Plan {
    std::shared_ptr<const GraphData> graph;  // canonical
    std::vector<Group> groups;               // in launch order
    std::vector<Product> products;           // likewise
    std::vector<PlanStep> steps;             // both, in launch order
    std::vector<ChunkLoop> loops;            // in launch order; none within another
    ColumnDivision division = {};
    std::vector<Temporary> temporaries;
    bool lacks_room = false;         // for f32 accumulators, so that gradients are rounded after every chunk
    std::vector<std::string> notes;  // what was fused or kept apart, and the predicted times; for `explain`
};

// The temporary of that name; null for other tensors.
const Temporary* find_temporary(const Plan& plan, std::string_view name);

// A tensor of the plan as kernels see it: dtype, axes and, of an argument, column strides.
Node declared_tensor(const Plan& plan, const std::string& name);

// Where arithmetic is done that more threads than one would repeat: in the kernel of what needs it, or in one of its
// own. That is what the numbers that a row comes to are made into, if no column needs it, and dear values that are one
// for several columns or rows, as the cosines of an angle for all heads. Or with the rows, but what sums over rows add
// up is stored where it is made of what those rows' columns come to, as what flows back to a sum of an input and a
// table that sequences share: it is read once, where the numbers beside all that it is made of would be.
enum class Repeated : std::uint8_t { kWithRows, kApart, kNotInSums };

// Inputs, outputs and temporaries of a program: a launch has room for so many on its stack.
inline constexpr std::size_t kMostTensors = 256;

// What the names of a plan's temporaries begin with.
inline constexpr std::string_view kTemporaryStem = "tmp";

// Whether a schedule runs a group.
using Runs = std::function<bool(const Group&)>;

// Plans `graph` (already canonical) for `target`. Where `runs` is given, groups are joined as far as it says that what
// they are together runs, which takes a trial of each such group; else as if registers had no end, which nearly every
// graph's groups may. Throws Error(kUnsupported) for an aliasing that no order of kernels
// satisfies, naming the output, the input and the remedy.
Plan make_plan(const std::shared_ptr<const GraphData>& graph, const Target& target,
               Repeated repeated = Repeated::kWithRows, std::string_view stem = kTemporaryStem, const Runs& runs = {});

// Bytes a group must move for `rows` rows: every input read once (what is broadcast over rows, once in all), every
// output written once.
double group_bytes(const GraphData& group, double rows);

// Predicted microseconds of a group: launch overhead plus the larger of memory time and arithmetic time.
double predicted_us(const GraphData& group, const Target& target, double rows);

}  // namespace rowjit
