// The graph's nodes, as the passes see them. Public building goes through rowjit/graph.h; both end in the
// GraphData::add_… functions here, which infer shapes, refuse what does not fit, and share equal nodes, so that a graph
// is hash-consed and its nodes never change. Axes are graph_axes.cpp's, reductions graph_reductions.cpp's, the rest
// graph.cpp's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsl/ops.h"
#include "rowjit/coord.h"
#include "rowjit/graph.h"

namespace rowjit {

using NodeId = std::int32_t;
using AxisId = std::int32_t;

inline constexpr std::int64_t kRuntimeExtent = -1;

struct AxisInfo {
    std::string name;  // "" for the anonymous column axis of an extent
    std::int64_t extent = kRuntimeExtent;
    bool is_row = false;
    bool is_promoted = false;  // a column axis that the planner made a row axis; it stands behind the declared ones
    int place = 0;             // > 0: among axes whose order no value gives (compiler/plan/axis_places.h)
    int beside = 1;            // the planner's: how many axes whose extents a launch gives stand together, with it
    bool is_slots = false;     // the planner's: a position for each block of a kernel that sums over its rows
    bool is_unrolled = false;  // the planner's: a thread holds a value for each of its few positions
    std::int64_t blocks = 0;   // > 0: the planner's: the row axis of so many blocks of a column axis, of which a kernel
                               // sees some at a time (compiler/plan/column_blocks.h, Product::rounded_rows)
    std::vector<AxisId> follows = {};  // where there are any: the extent is these axes' product and `more`
    std::int64_t more = 0;

    std::string label() const { return name.empty() ? std::to_string(extent) : name; }
    // Its extent is, at launch.
    bool is_given() const { return is_row && extent == kRuntimeExtent && follows.empty() && blocks == 0; }
};

enum class NodeKind : std::uint8_t {
    kInput,   // a tensor argument
    kScalar,  // a run-time scalar argument; `value` is its default
    kConst,   // `value`
    kIota,    // the coordinate along `axis`
    kExtent,  // the number of positions along `axis`
    kMap,     // `op` on args, elementwise
    kCast,    // args[0] rounded to dtype
    kIndex,   // args[0] read at `coords`; further args are the data nodes the coordinates mention
    // `monoid` over `reduced` axes of args[0]. Where there is an args[1], the offsets, over the segments of the one
    // reduced row axis; `axis` then takes its place.
    kReduce,
    kState,  // what a kFix of it has come to; args[0] is what it starts from
    kFix,    // args[0], a kState, when args[1], which depends on it, gives it again; after most_steps in any case
    // args[0] reduced over its row axes, `reduced`, in parts: one for each position of `axis`, each a sum, a maximum or
    // a minimum. Only the planner makes it (compiler/plan/partial_reductions.h).
    kPartialReduce,
    kSearch,  // the last position of args[0], sorted along its one row axis, whose element is at most args[1]
    // Σ args[0]·args[1] over the axes `reduced`, which both have: of floats of one or two dtypes, accumulated in f32
    // (f64 of f64) and rounded once to dtype.
    kMatmul,
    // The sum over the column axis `reduced` of args[0] where args[1] is args[2], which has no such axis: f32 of narrow
    // floats. Only the planner makes it (compiler/plan/sums_where.h).
    kSumWhere,
    // The positions of args[0], ids along one row axis, in the stable order of the ids clamped to [-1, positions along
    // `axis`]. The planner makes it of passes, each by one `digit` of what they are clamped to: args[1] is then the
    // order by the digits below, if there are any, and the last operand on a GPU how many ids of each digit each block
    // has, a kDigitCounts (compiler/plan/digit_orders.h).
    kOrder,
    // How many ids args[0] of each digit each block of a kernel has, in the order args[1] or, of the lowest digit, as
    // they are. Only the planner makes it.
    kDigitCounts,
};

// Some bits of an id that is clamped to [-1, rows], counted from -1.
struct Digit {
    int shift = 0;
    int bits = 0;  // 0: all of them, of no digit
    bool operator==(const Digit&) const = default;
    // Numbers that the digit can be.
    std::int64_t kinds() const { return std::int64_t{1} << bits; }
};

std::string_view name(NodeKind kind);

struct Node {
    NodeKind kind = NodeKind::kConst;
    Dtype dtype = Dtype::kF32;
    std::vector<AxisId> axes = {};  // of the result: row axes first, then column axes, outermost first
    std::vector<NodeId> args = {};

    Op op = Op::kAdd;                               // kMap
    Monoid monoid = Monoid::kSum;                   // kReduce, kPartialReduce
    int component = 0;                              // kReduce: which of the monoid's values
    std::vector<AxisId> reduced = {};               // kReduce, kPartialReduce, kMatmul, kSumWhere
    double value = 0;                               // kConst, kScalar
    AxisId axis = -1;                               // kIota, kExtent, kPartialReduce, kReduce, kOrder, kDigitCounts
    Digit digit = {};                               // kOrder, kDigitCounts
    std::vector<Coord> coords = {};                 // kIndex: one per axis of args[0]
    std::string name = {};                          // kInput, kScalar
    std::vector<std::int64_t> column_strides = {};  // kInput: one per column axis; empty is contiguous
    int most_steps = 0;                             // kFix
    // kInput, of a planner's group: elements, one per promoted axis, which has no column stride there; empty where
    // they are not known. No part of its identity.
    std::vector<std::int64_t> promoted_strides = {};

    // The kState that this node is computed from, itself for that; -1 for none. Such a node is part of a step, and its
    // value one of many: only nodes of the step and the kFix use it. Follows from the operands.
    NodeId state = -1;
    std::string label = {};  // what emitted code and messages call it; no part of its identity

    bool is_segmented() const { return kind == NodeKind::kReduce && axis >= 0; }
    // Whether it is made by a kernel of its own, which computes nothing else and reads its operands in memory.
    bool orders() const { return kind == NodeKind::kOrder || kind == NodeKind::kDigitCounts; }
    // Whether args[i] is read at places that the node finds itself, so that it must be a tensor in memory.
    bool reads_from_memory(std::size_t i) const {
        const bool first = kind == NodeKind::kIndex || kind == NodeKind::kSearch || kind == NodeKind::kSumWhere;
        return orders() || (first && i == 0) || ((kind == NodeKind::kReduce || kind == NodeKind::kSumWhere) && i == 1);
    }
};

// Where a thread holds the positions of an axis, an output is stored a piece at a time.
struct OutputPiece {
    std::string tensor;            // the output that it is a piece of
    std::vector<AxisId> axes;      // that output's
    std::vector<std::int64_t> at;  // along each of them; −1 along the piece's own
};

struct OutputInfo {
    std::string name = {};
    NodeId node = -1;
    std::string alias = {};
    bool accumulate = false;
    std::vector<std::int64_t> column_strides = {};
    // ≥ 0 in the planner's groups: what is stored is `node` reduced over all its row axes by parts_monoid, in parts:
    // one for each position of this axis, of dtype parts_dtype. Not over the row axes `outer`, the outermost: there are
    // so many parts for each of their positions. Nor over the row axes `apart`, the innermost: a part has a place for
    // each of theirs.
    AxisId slots = -1;
    Dtype parts_dtype = Dtype::kF32;
    Monoid parts_monoid = Monoid::kSum;
    int parts_component = 0;
    // Whether nothing shows what the parts come to in f32. Not in the group's text: a schedule that was measured of one
    // that is shown serves one that is rounded.
    bool parts_rounded = false;
    std::vector<AxisId> outer = {};
    std::vector<AxisId> apart = {};
    std::optional<OutputPiece> piece = {};            // likewise
    std::vector<std::int64_t> promoted_strides = {};  // as a node's

    const std::string& tensor() const { return piece ? piece->tensor : name; }
};

class GraphData {
  public:
    GraphData() = default;
    explicit GraphData(std::vector<AxisInfo> axes) : axes_(std::move(axes)) {}  // same ids, no nodes yet

    // Axes. A name names one axis; declaring it again with the same extent gives the same axis.
    AxisId add_row_axis(std::string_view name, std::int64_t extent);
    AxisId add_column_axis(std::string_view name, std::int64_t extent);  // name "" is the anonymous axis of that extent
    AxisId add_row_axis_like(std::string_view name, std::vector<AxisId> like, std::int64_t more);
    AxisId add_slots_axis(std::string_view name);
    AxisId add_blocks_axis(std::string_view name, std::int64_t blocks);
    std::string unused_axis_name(std::string wanted) const;  // it, with as many "_" behind it as no axis has
    const AxisInfo& axis(AxisId id) const { return axes_[static_cast<std::size_t>(id)]; }
    const std::vector<AxisInfo>& axes() const { return axes_; }
    // Row axes first, promoted ones by their places, then column axes; otherwise as they are.
    void order_by_space(std::vector<AxisId>* axes) const;

    // Nodes. Each validates, infers dtype and axes, and returns the existing node when an equal one is there.
    NodeId add_input(std::string_view name, Dtype dtype, std::vector<AxisId> axes,
                     std::vector<std::int64_t> column_strides);
    NodeId add_scalar(std::string_view name, Dtype dtype, double default_value);
    NodeId add_const(Dtype dtype, double value);
    NodeId add_iota(AxisId axis, Dtype dtype);
    NodeId add_extent(AxisId axis, Dtype dtype);
    NodeId add_map(Op op, std::vector<NodeId> args);
    NodeId add_cast(NodeId arg, Dtype dtype);
    NodeId add_index(NodeId source, std::vector<Coord> coords);
    NodeId add_reduce(Monoid monoid, NodeId arg, std::vector<AxisId> reduced, int component = 0);
    // A component of what one pass carries of x, or of two values of the same axes (Monoid::kDivergence and below it).
    NodeId add_carried(Monoid monoid, std::vector<NodeId> args, std::vector<AxisId> reduced, int component);
    // The place, of `places` over the same axes, of the element of x that comes r-th (Monoid::kGreatest).
    NodeId add_greatest(NodeId x, NodeId places, std::vector<AxisId> reduced, int r);
    // A component of the moments of f32 over rows (Monoid::kMoments).
    NodeId add_moments(NodeId x, std::vector<AxisId> rows, int component);
    // A component of the sum, taken exactly.
    NodeId add_exact_sum(NodeId sum, int component);
    NodeId add_segment_reduce(Monoid monoid, NodeId arg, AxisId reduced, NodeId offsets, AxisId segments);
    NodeId add_search(NodeId sorted, NodeId key);
    // The order of `ids` along `places`, which has as many positions as they.
    NodeId add_order(NodeId ids, AxisId places, AxisId rows);
    // A pass of it: `operands` are the ids, of a digit with others below it the order by those, and the counts if there
    // are any.
    NodeId add_order_by_digit(std::vector<NodeId> operands, AxisId places, AxisId rows, Digit digit);
    // Those counts, {blocks, kinds of the digit}, both column axes; operands likewise.
    NodeId add_digit_counts(std::vector<NodeId> operands, AxisId blocks, AxisId kinds, AxisId rows, Digit digit);
    // Over the axes `reduced` of `arg`: its rows, or all but the `outer` or the innermost, and those of its columns
    // that become rows. The result's axes are the outer, the slots and what else is left.
    NodeId add_partial_reduce(Monoid monoid, NodeId arg, const std::vector<AxisId>& outer, AxisId slots, Dtype dtype,
                              std::vector<AxisId> reduced, int component = 0);
    NodeId add_matmul(NodeId left, NodeId right, std::vector<AxisId> contracted, Dtype dtype);
    // The sum of `terms` over the column axis `reduced` at those positions where `places` is `place`.
    NodeId add_sum_where(NodeId terms, NodeId places, NodeId place, AxisId reduced);
    NodeId add_state(NodeId start);
    NodeId add_fix(NodeId state, NodeId next, int most_steps);
    void add_output(OutputInfo output);

    // The same operation as `node` of another graph with the same axis ids, over operands mapped by `to_here`. For
    // passes: they rebuild a graph operand by operand and change what they are about.
    NodeId add_copy(const Node& node, const std::function<NodeId(NodeId)>& to_here);

    const Node& node(NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }
    NodeId size() const { return static_cast<NodeId>(nodes_.size()); }
    const std::vector<OutputInfo>& outputs() const { return outputs_; }
    std::optional<NodeId> find_input(std::string_view name) const;  // inputs and scalars

    void set_label(NodeId id, std::string_view label);  // keeps the first one given
    void set_promoted_strides(NodeId input, std::vector<std::int64_t> strides);

    std::vector<AxisId> row_axes(const Node& node) const;
    std::vector<AxisId> column_axes(const Node& node) const;
    std::int64_t column_count(const Node& node) const;  // the product of the column extents, 1 for none
    // The product of the axes' extents, each that a launch gives counted as `at_run_time`.
    std::int64_t positions(const std::vector<AxisId>& axes, std::int64_t at_run_time) const;

    std::string label_of_product(const std::vector<AxisId>& axes) const;  // "batch * heads"
    // Two row axes that have equal extents in every launch, as one declared like the other has.
    bool same_rows(AxisId a, AxisId b) const;
    bool is_longer(AxisId axis, AxisId than, std::int64_t more) const;  // by so many positions, in every launch

    // A reduction of a few positions of a small axis, for each position along others of static extent: one thread can
    // have all its terms.
    bool reduces_few(const Node& node) const;

    std::string describe(NodeId id) const;  // "h: f32[tokens, 4096]" for messages
    std::string describe_axes(const std::vector<AxisId>& axes) const;

    // Nodes that some output needs, operands before users.
    std::vector<NodeId> live_nodes() const;

  private:
    NodeId intern(Node node);
    NodeId state_of(const Node& node) const;
    std::vector<AxisId> merge_axes(std::string_view what, const std::vector<NodeId>& args) const;
    void require_unused_name(std::string_view what, std::string_view name) const;
    void require_alias(const OutputInfo& output) const;
    std::vector<AxisId> roots(const std::vector<AxisId>& like) const;
    void require_places(std::string_view what, NodeId id) const;
    Coord place_along_longer(const Coord& coord, AxisId into);
    void require_few_columns(std::string_view what, const std::vector<AxisId>& axes) const;
    void require_column_strides(std::string_view what, std::string_view name, const std::vector<std::int64_t>& strides,
                                const Node& node, std::int64_t least) const;

    std::vector<AxisInfo> axes_;
    std::vector<Node> nodes_;
    std::vector<NodeId> inputs_;  // and scalars, of which a graph has few
    std::vector<OutputInfo> outputs_;
    std::unordered_multimap<std::size_t, NodeId> by_hash_;
};

// Of axes, nodes or tensors, which all go by number.
bool contains(const std::vector<std::int32_t>& ids, std::int32_t id);

// `text` as an identifier of emitted code and of the text form: letters, digits and underscores, not starting with a
// digit, and neither "inf" nor "nan", which are numbers there.
bool is_identifier(std::string_view text);

}  // namespace rowjit
