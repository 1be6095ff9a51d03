#include "dsl/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/dtype.h"
#include "base/fail.h"
#include "dsl/preimage_trial.h"

namespace rowjit {
namespace {

std::size_t mix(std::size_t seed, std::size_t value) {
    return seed ^ (value + 0x9E3779B97F4A7C15U + (seed << 6) + (seed >> 2));
}

// Over what most nodes differ in; strides are left to the comparison. Coordinates are in it: one input may be read at
// hundreds of places.
std::size_t hash(const Node& node) {
    std::size_t h = mix(static_cast<std::size_t>(node.kind), static_cast<std::size_t>(node.dtype));
    for (const NodeId arg : node.args) h = mix(h, static_cast<std::size_t>(arg));
    for (const AxisId axis : node.axes) h = mix(h, static_cast<std::size_t>(axis));
    h = mix(h, static_cast<std::size_t>(node.op));
    h = mix(h, static_cast<std::size_t>(node.monoid));
    h = mix(h, std::bit_cast<std::uint64_t>(node.value));
    h = mix(h, static_cast<std::size_t>(node.digit.shift));
    for (const Coord& coord : node.coords) h = mix(h, coord.hash());
    return mix(h, std::hash<std::string>()(node.name));
}

bool same(const Node& a, const Node& b) {
    return a.kind == b.kind && a.dtype == b.dtype && a.axes == b.axes && a.args == b.args && a.op == b.op &&
           a.monoid == b.monoid && a.component == b.component && a.reduced == b.reduced &&
           std::bit_cast<std::uint64_t>(a.value) == std::bit_cast<std::uint64_t>(b.value) && a.axis == b.axis &&
           a.coords == b.coords && a.name == b.name && a.column_strides == b.column_strides &&
           a.most_steps == b.most_steps && a.digit == b.digit;
}

}  // namespace

bool contains(const std::vector<std::int32_t>& ids, std::int32_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool is_identifier(std::string_view text) {
    const auto word = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    if (text.empty() || !word(text[0]) || text == "inf" || text == "nan") return false;
    return std::all_of(text.begin(), text.end(), [&](char c) { return word(c) || digit(c); });
}

std::string_view name(NodeKind kind) {
    static constexpr std::array<std::string_view, 17> kNames = {
        "input", "scalar", "const",          "iota",   "extent", "map",       "cast",  "index",       "reduce",
        "state", "fix",    "partial_reduce", "search", "matmul", "sum_where", "order", "digit_counts"};
    return kNames[static_cast<std::size_t>(kind)];
}

void GraphData::require_unused_name(std::string_view what, std::string_view name) const {
    if (!is_identifier(name)) fail(ErrorCode::kInvalidGraph, "{} '{}': the name must be an identifier", what, name);
    if (find_input(name))
        fail(ErrorCode::kInvalidGraph, "{} '{}': an input of that name exists; give it another name", what, name);
    for (const OutputInfo& output : outputs_) {
        if (output.name == name) {
            fail(ErrorCode::kInvalidGraph, "{} '{}': an output of that name exists; give it another name", what, name);
        }
    }
}

NodeId GraphData::add_input(std::string_view name, Dtype dtype, std::vector<AxisId> axes,
                            std::vector<std::int64_t> column_strides) {
    require_unused_name("input", name);
    for (std::size_t i = 0; i < axes.size(); ++i) {
        if (std::count(axes.begin(), axes.end(), axes[i]) > 1) {
            fail(ErrorCode::kInvalidGraph, "input '{}': axis {} appears twice; name the two apart with Graph::columns",
                 name, axis(axes[i]).label());
        }
        if (i > 0 && axis(axes[i]).is_row && !axis(axes[i - 1]).is_row) {
            fail(ErrorCode::kInvalidGraph, "input '{}': row axis {} stands after a column axis; row axes come first",
                 name, axis(axes[i]).label());
        }
    }
    Node node{.kind = NodeKind::kInput, .dtype = dtype, .axes = std::move(axes)};
    require_few_columns("input", node.axes);
    require_column_strides("input", name, column_strides, node, 0);  // 0 repeats one element along the axis
    node.name = name;
    node.label = name;
    node.column_strides = std::move(column_strides);
    return intern(std::move(node));
}

NodeId GraphData::add_scalar(std::string_view name, Dtype dtype, double default_value) {
    require_unused_name("scalar", name);
    if (!is_float(dtype) && !is_integer(dtype)) {
        fail(ErrorCode::kInvalidGraph, "scalar '{}': {} scalars are not supported; use i32 or f32", name,
             rowjit::name(dtype));
    }
    Node node{.kind = NodeKind::kScalar, .dtype = dtype};
    node.value = default_value;
    node.name = name;
    node.label = name;
    return intern(std::move(node));
}

NodeId GraphData::add_const(Dtype dtype, double value) {
    if (is_storage(dtype)) {
        fail(ErrorCode::kInvalidGraph, "constant {}: {} is only stored; cast a constant to it", value,
             rowjit::name(dtype));
    }
    if (!is_float(dtype) && value != round_to(dtype, value)) {
        fail(ErrorCode::kInvalidGraph, "constant {}: not a value of {}; cast the other operand", value,
             rowjit::name(dtype));
    }
    Node node{.kind = NodeKind::kConst, .dtype = dtype};
    node.value = value;
    return intern(std::move(node));
}

NodeId GraphData::add_iota(AxisId axis_id, Dtype dtype) {
    if (!is_integer(dtype))
        fail(ErrorCode::kInvalidGraph, "iota: the dtype must be i32 or i64, not {}", rowjit::name(dtype));
    if (axis(axis_id).is_row && dtype != Dtype::kI64) {
        fail(ErrorCode::kInvalidGraph, "iota over row axis {}: row coordinates are 64-bit; use i64",
             axis(axis_id).label());
    }
    Node node{.kind = NodeKind::kIota, .dtype = dtype, .axes = {axis_id}};
    node.axis = axis_id;
    return intern(std::move(node));
}

NodeId GraphData::add_extent(AxisId axis_id, Dtype dtype) {
    if (axis(axis_id).extent != kRuntimeExtent) return add_const(dtype, static_cast<double>(axis(axis_id).extent));
    if (!is_float(dtype) && !is_integer(dtype)) {
        fail(ErrorCode::kInvalidGraph, "extent of {}: {} cannot hold it", axis(axis_id).label(), rowjit::name(dtype));
    }
    Node node{.kind = NodeKind::kExtent, .dtype = dtype};
    node.axis = axis_id;
    return intern(std::move(node));
}

NodeId GraphData::add_map(Op op, std::vector<NodeId> args) {
    const OpInfo& row = info(op);
    RJ_CHECK(static_cast<int>(args.size()) == row.arity, "{} takes {} operands, {} given", row.name, row.arity,
             args.size());
    const auto refuse = [&](std::string_view why) {
        std::vector<std::string> operands;
        for (const NodeId arg : args) operands.push_back(describe(arg));
        fail(ErrorCode::kInvalidGraph, "{}({}): {}", row.name, fmt::join(operands, ", "), why);
    };
    const std::size_t first_data = row.types == OpTypes::kSelect ? 1 : 0;
    if (first_data == 1 && node(args[0]).dtype != Dtype::kBool) refuse("the condition must be bool; compare it");
    const Dtype dtype = node(args[first_data]).dtype;
    if (is_storage(dtype)) refuse("a dtype of storage is only cast; cast the operand to one to compute in");
    for (std::size_t i = first_data; i < args.size(); ++i) {
        if (node(args[i]).dtype != dtype) refuse("the dtypes differ; cast one operand");
    }
    if (row.types == OpTypes::kFloat && !is_float(dtype)) refuse("a float dtype is needed; cast the operand");
    if (row.types == OpTypes::kNumber && dtype == Dtype::kBool) refuse("numbers are needed, not bool; use select");
    if (row.types == OpTypes::kWhole && !is_integer(dtype)) refuse("integers are needed; cast the operands");
    if (row.types == OpTypes::kLogic && dtype != Dtype::kBool) refuse("bools are needed; compare the operand");
    if (row.types == OpTypes::kRandom && dtype != Dtype::kI64) refuse("i64 is needed; cast the operands");
    Node result{.kind = NodeKind::kMap,
                .dtype = row.types == OpTypes::kCompare  ? Dtype::kBool
                         : row.types == OpTypes::kRandom ? Dtype::kF32
                                                         : dtype,
                .axes = merge_axes(row.name, args),
                .args = std::move(args)};
    result.op = op;
    return intern(std::move(result));
}

NodeId GraphData::add_cast(NodeId arg, Dtype dtype) {
    if (node(arg).dtype == dtype) return arg;
    return intern({.kind = NodeKind::kCast, .dtype = dtype, .axes = node(arg).axes, .args = {arg}});
}

// The places of rows along an axis that always has more of them, `more` further on, as a sequence's first and last
// offset are in rows ends = sequences + 1: read as at any whole numbers. Another coordinate is returned as it is.
Coord GraphData::place_along_longer(const Coord& coord, AxisId into) {
    const bool shifts = coord.kind() == Coord::Kind::kAdd && coord.left().kind() == Coord::Kind::kAxis &&
                        coord.right().kind() == Coord::Kind::kConst;
    const Coord rows = shifts ? coord.left() : coord;
    const std::int64_t shift = shifts ? coord.right().constant() : 0;
    if (rows.kind() != Coord::Kind::kAxis || shift < 0) return coord;
    const std::int64_t more = axis(into).more - axis(rows.axis().id).more;
    if (more < 1 || shift > more || !is_longer(into, rows.axis().id, more)) return coord;
    const NodeId place = add_iota(rows.axis().id, Dtype::kI64);
    if (shift == 0) return Coord::data_node(place);
    return Coord::data_node(add_map(Op::kAdd, {place, add_const(Dtype::kI64, static_cast<double>(shift))}));
}

namespace {

// Whether the axis, which a coordinate has behind another, comes first in one of the coordinates from `next` on.
bool leads_later(const std::vector<Coord>& coords, std::size_t next, AxisId id) {
    return std::any_of(coords.begin() + static_cast<std::ptrdiff_t>(next), coords.end(), [&](const Coord& coord) {
        const std::vector<Axis> axes = coord.axes();
        return !axes.empty() && axes.front().id == id;
    });
}

}  // namespace

// Axes stand as the coordinates have them, but one that is an offset in one coordinate and leads another stands there:
// a patch's columns c in 2 * y + c / 128, 2 * x + c / 64 % 2, c % 64 come behind y and x, as c does in the source.
NodeId GraphData::add_index(NodeId source, std::vector<Coord> coords) {
    const std::vector<AxisId> into_axes = node(source).axes;
    if (coords.size() != into_axes.size()) {
        fail(ErrorCode::kInvalidGraph, "index({}): {} coordinates for {} axes", describe(source), coords.size(),
             into_axes.size());
    }
    for (std::size_t i = 0; i < coords.size(); ++i) coords[i] = place_along_longer(coords[i], into_axes[i]);
    const Node& from = node(source);
    bool identity = true;
    std::vector<NodeId> args = {source};
    Node result{.kind = NodeKind::kIndex, .dtype = from.dtype};
    std::vector<AxisId> mentioned;
    for (std::size_t i = 0; i < coords.size(); ++i) {
        const AxisInfo& into = axis(from.axes[i]);
        identity = identity && coords[i].is_axis(Axis{from.axes[i]});
        for (const NodeId data : coords[i].data_nodes()) {
            args.push_back(data);
            for (const AxisId id : node(data).axes) {
                if (!contains(mentioned, id)) mentioned.push_back(id);
            }
        }
        const std::vector<Axis> axes = coords[i].axes();
        for (const Axis a : axes) {
            const bool is_offset = a.id != axes.front().id && leads_later(coords, i + 1, a.id);
            if (!is_offset && !contains(mentioned, a.id)) mentioned.push_back(a.id);
        }
        if (coords[i].is_axis(Axis{from.axes[i]}) || !coords[i].data_nodes().empty()) continue;
        if (axes.size() == 1 && coords[i].is_axis(axes[0]) && same_rows(axes[0].id, from.axes[i])) continue;
        std::int64_t low = 0;
        std::int64_t high = 0;
        const bool known = coords[i].bounds([&](Axis a) { return axis(a.id).extent; }, &low, &high);
        const bool inside = known && into.extent != kRuntimeExtent && low >= 0 && high < into.extent;
        // Bounds of parts may be further apart than those of the whole: d + 1 - d % 2 * 2 is tried place by place.
        if (!inside && !decide(*this, {coords[i], 0, into.extent - 1}).value_or(false)) {
            const auto axis_name = [&](Axis a) { return axis(a.id).label(); };
            fail(ErrorCode::kInvalidGraph, "index({}): coordinate {} along axis {} {}", describe(source),
                 coords[i].print(axis_name, [&](NodeId id) { return describe(id); }), into.label(),
                 known && into.extent != kRuntimeExtent
                     ? fmt::format("reaches {} … {}, outside 0 … {}", low, high, into.extent - 1)
                     : std::string("cannot be proven to stay inside; index a row axis by itself, by one declared like "
                                   "it or by a data "
                                   "coordinate"));
        }
    }
    if (identity) return source;
    order_by_space(&mentioned);
    require_few_columns("index", mentioned);
    result.axes = std::move(mentioned);
    result.args = std::move(args);
    result.coords = std::move(coords);
    return intern(std::move(result));
}

// `id` is integers along one row axis, which a kernel can find in memory.
void GraphData::require_places(std::string_view what, NodeId id) const {
    const Node& n = node(id);
    if (n.state >= 0) fail(ErrorCode::kInvalidGraph, "{}: {} is part of a fixpoint's step", what, describe(id));
    if (is_integer(n.dtype) && n.axes.size() == 1 && axis(n.axes[0]).is_row) return;
    fail(ErrorCode::kInvalidGraph, "{}: {} must be i32 or i64 along one row axis", what, describe(id));
}

NodeId GraphData::add_search(NodeId sorted, NodeId key) {
    require_places("search", sorted);
    if (!is_integer(node(key).dtype))
        fail(ErrorCode::kInvalidGraph, "search: the key {} must be i32 or i64; cast it", describe(key));
    return intern({.kind = NodeKind::kSearch, .dtype = Dtype::kI64, .axes = node(key).axes, .args = {sorted, key}});
}

NodeId GraphData::add_order(NodeId ids, AxisId places, AxisId rows) {
    require_places("order", ids);
    const AxisId along = node(ids).axes[0];
    const std::int64_t known = axis(along).extent;
    const bool as_many =
        axis(places).is_row && (known == kRuntimeExtent ? same_rows(along, places) : axis(places).extent == known);
    if (!axis(rows).is_row || !as_many) {
        fail(ErrorCode::kInvalidGraph, "order({}): {} must be a row axis of as many positions, and {} a row axis",
             describe(ids), axis(places).label(), axis(rows).label());
    }
    return intern({.kind = NodeKind::kOrder, .dtype = Dtype::kI64, .axes = {places}, .args = {ids}, .axis = rows});
}

NodeId GraphData::add_order_by_digit(std::vector<NodeId> operands, AxisId places, AxisId rows, Digit digit) {
    return intern({.kind = NodeKind::kOrder,
                   .dtype = Dtype::kI64,
                   .axes = {places},
                   .args = std::move(operands),
                   .axis = rows,
                   .digit = digit});
}

NodeId GraphData::add_digit_counts(std::vector<NodeId> operands, AxisId blocks, AxisId kinds, AxisId rows,
                                   Digit digit) {
    return intern({.kind = NodeKind::kDigitCounts,
                   .dtype = Dtype::kI32,
                   .axes = {blocks, kinds},
                   .args = std::move(operands),
                   .axis = rows,
                   .digit = digit});
}

NodeId GraphData::add_matmul(NodeId left, NodeId right, std::vector<AxisId> contracted, Dtype dtype) {
    const Node& a = node(left);
    const Node& b = node(right);
    const auto refuse = [&](std::string_view why) {
        fail(ErrorCode::kInvalidGraph, "matmul({}, {}): {}", describe(left), describe(right), why);
    };
    if (!is_float(a.dtype) || !is_float(b.dtype) || !is_float(dtype))
        refuse("operands and result are of float dtypes; cast what is not");
    const bool is_double = a.dtype == Dtype::kF64;
    if (is_double != (b.dtype == Dtype::kF64) || is_double != (dtype == Dtype::kF64))
        refuse(fmt::format("f64 goes with f64 only, not to {}; cast the operands", rowjit::name(dtype)));
    if (a.state >= 0 || b.state >= 0) refuse("it is part of a fixpoint's step");
    if (contracted.empty()) refuse("no axis is contracted; name those that both have and the result lacks");
    for (const AxisId id : contracted) {
        if (std::count(contracted.begin(), contracted.end(), id) > 1)
            refuse(fmt::format("axis {} is named twice", axis(id).label()));
        if (!contains(a.axes, id) || !contains(b.axes, id))
            refuse(fmt::format("the contracted axis {} is not an axis of both", axis(id).label()));
    }
    Node result{.kind = NodeKind::kMatmul, .dtype = dtype, .args = {left, right}};
    for (const NodeId arg : result.args) {
        for (const AxisId id : node(arg).axes) {
            if (contains(contracted, id)) continue;
            if (contains(result.axes, id))
                refuse(fmt::format("both have axis {}; contract it, or name one of the two apart", axis(id).label()));
            result.axes.push_back(id);
        }
    }
    // In the order that the left operand has them, so that equal contractions are one node.
    for (const AxisId id : a.axes) {
        if (contains(contracted, id)) result.reduced.push_back(id);
    }
    order_by_space(&result.axes);
    require_few_columns("matmul", result.axes);
    return intern(std::move(result));
}

NodeId GraphData::add_state(NodeId start) {
    const Node& from = node(start);
    const auto refuse = [&](std::string_view why) {
        fail(ErrorCode::kInvalidGraph, "state({}): {}", describe(start), why);
    };
    if (!is_float(from.dtype)) refuse("a float dtype is needed; cast the start");
    if (from.state >= 0) refuse("it is part of a step; a fixpoint has no other inside");
    if (!column_axes(from).empty()) refuse("a state is one number for each row; reduce the columns");
    return intern({.kind = NodeKind::kState, .dtype = from.dtype, .axes = from.axes, .args = {start}});
}

NodeId GraphData::add_fix(NodeId state, NodeId next, int most_steps) {
    const Node& from = node(state);
    const Node& to = node(next);
    const auto refuse = [&](std::string_view why) {
        fail(ErrorCode::kInvalidGraph, "fix({}, {}): {}", describe(state), describe(next), why);
    };
    if (from.kind != NodeKind::kState) refuse("the first operand is no state");
    if (to.dtype != from.dtype || to.axes != from.axes) refuse("the next state has another dtype or other axes");
    if (to.state != state) refuse("the next state does not depend on the state");
    if (most_steps < 1) refuse(fmt::format("{} steps; allow one at least", most_steps));
    Node result{.kind = NodeKind::kFix, .dtype = from.dtype, .axes = from.axes, .args = {state, next}};
    result.most_steps = most_steps;
    return intern(std::move(result));
}

void GraphData::add_output(OutputInfo output) {
    require_unused_name("output", output.name);
    const Node& value = node(output.node);
    if (value.state >= 0) {
        fail(ErrorCode::kInvalidGraph, "output '{}': {} is part of a step; take the fixpoint", output.name,
             describe(output.node));
    }
    const Node whole = output.piece ? Node{.axes = output.piece->axes} : value;
    require_column_strides("output", output.name, output.column_strides, whole, 1);
    if (!output.alias.empty()) require_alias(output);
    if (output.accumulate && !is_float(value.dtype)) {
        fail(ErrorCode::kInvalidGraph, "output '{}': only floats accumulate, not {}", output.name,
             describe(output.node));
    }
    set_label(output.node, output.name);
    outputs_.push_back(std::move(output));
}

void GraphData::require_alias(const OutputInfo& output) const {
    const Node& value = node(output.node);
    const auto input = find_input(output.alias);
    if (!input || node(*input).kind != NodeKind::kInput) {
        fail(ErrorCode::kInvalidGraph, "output '{}': alias '{}' is not an input tensor", output.name, output.alias);
    }
    if (node(*input).dtype != value.dtype || node(*input).axes != value.axes) {
        fail(ErrorCode::kInvalidGraph, "output '{}': {} cannot overwrite {} in place; dtype and axes must be equal",
             output.name, describe(output.node), describe(*input));
    }
    if (node(*input).column_strides != output.column_strides) {
        fail(ErrorCode::kInvalidGraph,
             "output '{}': it overwrites '{}' in place, so give it that input's column strides, [{}]", output.name,
             output.alias, fmt::join(node(*input).column_strides, ", "));
    }
    for (const OutputInfo& other : outputs_) {
        if (other.alias != output.alias) continue;
        fail(ErrorCode::kInvalidGraph, "output '{}': output '{}' overwrites '{}' already", output.name, other.name,
             output.alias);
    }
}

NodeId GraphData::add_copy(const Node& node, const std::function<NodeId(NodeId)>& to_here) {
    std::vector<NodeId> args;
    for (const NodeId arg : node.args) args.push_back(to_here(arg));
    const auto copy = [&]() -> NodeId {
        switch (node.kind) {
            case NodeKind::kInput: {
                const NodeId input = add_input(node.name, node.dtype, node.axes, node.column_strides);
                set_promoted_strides(input, node.promoted_strides);
                return input;
            }
            case NodeKind::kScalar: return add_scalar(node.name, node.dtype, node.value);
            case NodeKind::kConst: return add_const(node.dtype, node.value);
            case NodeKind::kIota: return add_iota(node.axis, node.dtype);
            case NodeKind::kExtent: return add_extent(node.axis, node.dtype);
            case NodeKind::kMap: return add_map(node.op, std::move(args));
            case NodeKind::kCast: return add_cast(args[0], node.dtype);
            case NodeKind::kReduce:
                if (node.monoid == Monoid::kExactSum) {
                    Node sum = node;
                    sum.monoid = Monoid::kSum;
                    sum.component = 0;
                    return add_exact_sum(add_copy(sum, to_here), node.component);
                }
                if (node.monoid == Monoid::kMoments) return add_moments(args[0], node.reduced, node.component);
                if (node.is_segmented())
                    return add_segment_reduce(node.monoid, args[0], node.reduced[0], args[1], node.axis);
                if (sums_exponentials(node.monoid))
                    return add_carried(node.monoid, std::move(args), node.reduced, node.component);
                if (node.monoid == Monoid::kGreatest)
                    return add_greatest(args[0], args[1], node.reduced, node.component);
                return add_reduce(node.monoid, args[0], node.reduced, node.component);
            case NodeKind::kSearch: return add_search(args[0], args[1]);
            case NodeKind::kPartialReduce:
                return add_partial_reduce(node.monoid, args[0],
                                          {node.axes.begin(), std::ranges::find(node.axes, node.axis)}, node.axis,
                                          node.dtype, node.reduced, node.component);
            case NodeKind::kMatmul: return add_matmul(args[0], args[1], node.reduced, node.dtype);
            case NodeKind::kSumWhere: return add_sum_where(args[0], args[1], args[2], node.reduced[0]);
            case NodeKind::kOrder:
                if (node.digit == Digit{}) return add_order(args[0], node.axes[0], node.axis);
                return add_order_by_digit(std::move(args), node.axes[0], node.axis, node.digit);
            case NodeKind::kDigitCounts:
                return add_digit_counts(std::move(args), node.axes[0], node.axes[1], node.axis, node.digit);
            case NodeKind::kState: return add_state(args[0]);
            case NodeKind::kFix: return add_fix(args[0], args[1], node.most_steps);
            case NodeKind::kIndex: break;
        }
        std::vector<Coord> coords;
        for (const Coord& coord : node.coords) {
            coords.push_back(coord.substitute([](Axis axis) { return Coord(axis); },
                                              [&](NodeId data) { return Coord::data_node(to_here(data)); }));
        }
        return add_index(args[0], std::move(coords));
    };
    const NodeId id = copy();
    set_label(id, node.label);
    return id;
}

NodeId GraphData::intern(Node node) {
    const std::size_t key = hash(node);
    const auto [first, last] = by_hash_.equal_range(key);
    for (auto it = first; it != last; ++it) {
        if (same(nodes_[static_cast<std::size_t>(it->second)], node)) return it->second;
    }
    const NodeId id = size();
    node.state = node.kind == NodeKind::kState ? id : node.kind == NodeKind::kFix ? -1 : state_of(node);
    if (node.kind == NodeKind::kInput || node.kind == NodeKind::kScalar) inputs_.push_back(id);
    nodes_.push_back(std::move(node));
    by_hash_.emplace(key, id);
    return id;
}

NodeId GraphData::state_of(const Node& node) const {
    NodeId state = -1;
    for (const NodeId arg : node.args) {
        const NodeId of_arg = this->node(arg).state;
        if (of_arg < 0 || of_arg == state) continue;
        if (state >= 0) {
            fail(ErrorCode::kInvalidGraph, "{}: it is part of the steps of two states, {} and {}", describe(arg),
                 describe(state), describe(of_arg));
        }
        state = of_arg;
    }
    return state;
}

std::optional<NodeId> GraphData::find_input(std::string_view name) const {
    const auto found = std::find_if(inputs_.begin(), inputs_.end(), [&](NodeId id) { return node(id).name == name; });
    return found == inputs_.end() ? std::nullopt : std::optional(*found);
}

void GraphData::set_promoted_strides(NodeId input, std::vector<std::int64_t> strides) {
    nodes_[static_cast<std::size_t>(input)].promoted_strides = std::move(strides);
}

void GraphData::set_label(NodeId id, std::string_view label) {
    std::string& current = nodes_[static_cast<std::size_t>(id)].label;
    if (current.empty() && is_identifier(label)) current = label;
}

std::string GraphData::describe(NodeId id) const {
    const Node& n = node(id);
    const std::string what = n.kind == NodeKind::kConst ? fmt::format("{}", n.value)
                             : n.label.empty()          ? fmt::format("%{}", id)
                                                        : n.label;
    return fmt::format("{}: {}[{}]", what, rowjit::name(n.dtype), describe_axes(n.axes));
}

std::vector<NodeId> GraphData::live_nodes() const {
    std::vector<bool> live(nodes_.size(), false);
    for (const OutputInfo& output : outputs_) {
        live[static_cast<std::size_t>(output.node)] = true;
        // What is overwritten has to be there, whether or not anything reads it.
        if (!output.alias.empty()) live[static_cast<std::size_t>(find_input(output.alias).value())] = true;
    }
    // Operands have smaller ids than their users, so one sweep from the end finds everything.
    for (NodeId id = size() - 1; id >= 0; --id) {
        if (!live[static_cast<std::size_t>(id)]) continue;
        for (const NodeId arg : node(id).args) live[static_cast<std::size_t>(arg)] = true;
    }
    std::vector<NodeId> order;
    for (NodeId id = 0; id < size(); ++id) {
        if (live[static_cast<std::size_t>(id)]) order.push_back(id);
    }
    return order;
}

}  // namespace rowjit
