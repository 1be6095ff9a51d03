#include "compiler/plan/canonicalize.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/fail.h"
#include "compiler/plan/axis_places.h"
#include "compiler/plan/cheaper.h"
#include "compiler/plan/differences.h"
#include "compiler/plan/folding.h"
#include "compiler/plan/logistic.h"
#include "compiler/plan/rewrite.h"
#include "compiler/plan/shared_sums.h"
#include "compiler/plan/sums_where.h"
#include "compiler/plan/swapped_sums.h"
#include "dsl/coordinate_value.h"
#include "rowjit/error.h"

namespace rowjit {
namespace {

class Canonicalizer {
  public:
    Canonicalizer(const GraphData& from, const std::set<AxisId>& unrolled)
        : from_(from),
          unrolled_(unrolled),
          to_(std::make_shared<GraphData>(axes(from, unrolled))),
          full_width_(!has_narrow_inputs(from)) {}

    std::shared_ptr<const GraphData> run(const std::set<NodeId>& kept) {
        for (const NodeId id : from_.live_nodes()) {
            mapped_[id] = convert(from_.node(id));
            if (kept.contains(id)) kept_.insert(mapped_[id]);
        }
        for (OutputInfo output : from_.outputs()) {
            output.node = mapped_.at(output.node);
            add_output(std::move(output));
        }
        return to_;
    }

  private:
    static std::vector<AxisInfo> axes(const GraphData& from, const std::set<AxisId>& unrolled) {
        std::vector<AxisInfo> axes = with_places(from);
        for (const AxisId axis : unrolled) axes[static_cast<std::size_t>(axis)].is_unrolled = true;
        return axes;
    }

    bool is_unrolled(AxisId axis) const { return unrolled_.contains(axis); }

    // Calls visit(coords, at) for each position along the unrolled ones of `over` among `axes`, in row-major order: the
    // coordinates there, and −1 or the position along each axis.
    template <class Visit>
    void each_place(const std::vector<AxisId>& axes, const std::vector<AxisId>& over, const Visit& visit) {
        std::vector<std::int64_t> at(axes.size(), -1);
        std::vector<std::size_t> varying;
        for (std::size_t i = 0; i < axes.size(); ++i) {
            if (!is_unrolled(axes[i]) || std::find(over.begin(), over.end(), axes[i]) == over.end()) continue;
            varying.push_back(i);
            at[i] = 0;
        }
        while (true) {
            std::vector<Coord> coords;
            for (std::size_t i = 0; i < axes.size(); ++i)
                coords.push_back(at[i] < 0 ? Coord(Axis{axes[i]}) : Coord(at[i]));
            visit(coords, at);
            std::size_t digit = varying.size();
            while (digit-- > 0) {
                if (++at[varying[digit]] < to_->axis(axes[varying[digit]]).extent) break;
                at[varying[digit]] = 0;
            }
            if (digit == static_cast<std::size_t>(-1)) return;
        }
    }

    // In their order, as eager arithmetic adds a few terms, to the same bits. Of more than a few f32 that nothing later
    // rounds, what each addition loses is added up too, as in the sums of whole rows; where it is no number, as beside
    // infinities, it is left out.
    NodeId fold(Monoid monoid, const std::vector<NodeId>& terms) {
        static constexpr Op kFolds[] = {Op::kAdd, Op::kMax, Op::kMin};
        constexpr std::size_t kFew = 4;
        const bool keeps_lost =
            monoid == Monoid::kSum && full_width_ && terms.size() > kFew && to_->node(terms[0]).dtype == Dtype::kF32;
        const Op op = kFolds[static_cast<std::size_t>(monoid)];
        std::vector<NodeId> lost;
        NodeId total = terms[0];
        for (std::size_t i = 1; i < terms.size(); ++i) {
            const NodeId next = to_->add_map(op, {total, terms[i]});
            if (keeps_lost) lost.push_back(lost_by_sum(*to_, next, total, terms[i]));
            total = next;
        }
        if (!keeps_lost) return total;
        NodeId rest = lost[0];
        for (std::size_t i = 1; i < lost.size(); ++i) rest = to_->add_map(Op::kAdd, {rest, lost[i]});
        const NodeId is_number = to_->add_map(Op::kEq, {rest, rest});
        return to_->add_map(Op::kSelect, {is_number, to_->add_map(Op::kAdd, {total, rest}), total});
    }

    static bool has_narrow_inputs(const GraphData& graph) {
        for (NodeId id = 0; id < graph.size(); ++id) {
            const Node& node = graph.node(id);
            const bool narrow = node.dtype == Dtype::kBf16 || node.dtype == Dtype::kF16;
            if (node.kind == NodeKind::kInput && narrow) return true;
        }
        return false;
    }

    // Narrow floats are summed in f32 and rounded once, as any sum is.
    NodeId unroll(const Node& reduce) {
        const NodeId over = mapped_.at(reduce.args[0]);
        const std::vector<AxisId> axes = to_->node(over).axes;  // a copy: adding nodes moves the originals
        std::vector<NodeId> terms;
        each_place(axes, reduce.reduced, [&](const std::vector<Coord>& coords, const auto&) {
            terms.push_back(to_->add_cast(push(over, coords), accumulator_dtype(reduce.dtype)));
        });
        const NodeId whole = fold(reduce.monoid, terms);
        std::vector<AxisId> rest;
        std::copy_if(reduce.reduced.begin(), reduce.reduced.end(), std::back_inserter(rest),
                     [&](AxisId axis) { return !is_unrolled(axis); });
        const NodeId folded = rest.empty() ? whole : to_->add_reduce(reduce.monoid, whole, rest);
        const NodeId result = to_->add_cast(folded, reduce.dtype);
        to_->set_label(result, reduce.label);
        return result;
    }

    void add_output(OutputInfo output) {
        const std::vector<AxisId> axes = to_->node(output.node).axes;
        if (std::none_of(axes.begin(), axes.end(), [&](AxisId axis) { return is_unrolled(axis); })) {
            to_->add_output(std::move(output));
            return;
        }
        RJ_CHECK(output.alias.empty(), "canonicalize: output '{}' in pieces overwrites '{}'", output.name,
                 output.alias);
        int pieces = 0;
        each_place(axes, axes, [&](const std::vector<Coord>& coords, const std::vector<std::int64_t>& at) {
            OutputInfo piece = output;
            piece.node = push(output.node, coords);
            piece.name = fmt::format("{}_{}", output.name, pieces++);
            while (taken(piece.name)) piece.name += "_";
            piece.piece = OutputPiece{output.name, axes, at};
            RJ_CHECK(to_->node(piece.node).axes.size() +
                             static_cast<std::size_t>(
                                 std::count_if(at.begin(), at.end(), [](std::int64_t place) { return place >= 0; })) ==
                         axes.size(),
                     "canonicalize: the piece {} of '{}'", to_->describe(piece.node), output.name);
            to_->add_output(std::move(piece));
        });
    }

    bool taken(const std::string& name) const {
        const auto named = [&](const OutputInfo& output) { return output.name == name; };
        return from_.find_input(name) || std::any_of(from_.outputs().begin(), from_.outputs().end(), named) ||
               std::any_of(to_->outputs().begin(), to_->outputs().end(), named);
    }

    NodeId convert(const Node& node) {
        if (node.kind == NodeKind::kIndex) return convert_index(node);
        if (std::any_of(node.reduced.begin(), node.reduced.end(), [&](AxisId axis) { return is_unrolled(axis); }))
            return unroll(node);
        if (const auto coords = only_place(node)) return push(mapped_.at(node.args[0]), *coords);
        if (const auto place = one_place(node)) return push(place->first, place->second);
        // The derivative is taken before planning; what is left is the identity.
        if (node.kind == NodeKind::kMap && node.op == Op::kDetach) return mapped_.at(node.args[0]);
        const NodeId copy = to_->add_copy(node, [&](NodeId id) { return mapped_.at(id); });
        return cheaper(*to_, distance_narrow(compare_narrow(folded(*to_, copy))));
    }

    // The coordinates of all that is reduced where that is one element, as a learned number is summed that is given as
    // a row of one: no row has to be met over for it.
    std::optional<std::vector<Coord>> only_place(const Node& reduce) const {
        const bool reduces =
            reduce.kind == NodeKind::kReduce && reduce.args.size() == 1 && reduce.state < 0 &&
            (reduce.monoid == Monoid::kSum || reduce.monoid == Monoid::kMax || reduce.monoid == Monoid::kMin);
        if (!reduces || to_->positions(reduce.reduced, 2) != 1) return std::nullopt;
        std::vector<Coord> coords;
        for (const AxisId axis : to_->node(mapped_.at(reduce.args[0])).axes)
            coords.push_back(contains(reduce.reduced, axis) ? Coord(0) : Coord(Axis{axis}));
        return coords;
    }

    // A sum of what is zero but at one position, as where a list's cotangent is taken apart, is what stands there: the
    // value, and its coordinates.
    std::optional<std::pair<NodeId, std::vector<Coord>>> one_place(const Node& sum) const {
        if (sum.kind != NodeKind::kReduce || sum.monoid != Monoid::kSum || sum.reduced.size() != 1) return std::nullopt;
        const Node& choice = to_->node(mapped_.at(sum.args[0]));
        const bool chooses = choice.kind == NodeKind::kMap && choice.op == Op::kSelect;
        if (!chooses || !is_const(choice.args[2], 0)) return std::nullopt;
        const Node& condition = to_->node(choice.args[0]);
        if (condition.kind != NodeKind::kMap || condition.op != Op::kEq) return std::nullopt;
        const AxisId axis = sum.reduced[0];
        for (const auto& [coordinate, number] :
             {std::pair(condition.args[0], condition.args[1]), {condition.args[1], condition.args[0]}}) {
            const Node& iota = to_->node(coordinate);
            const Node& at = to_->node(number);
            if (iota.kind != NodeKind::kIota || iota.axis != axis || at.kind != NodeKind::kConst) continue;
            const AxisInfo& along = to_->axis(axis);
            if (along.is_row || at.value < 0 || at.value >= static_cast<double>(along.extent)) continue;
            std::vector<AxisId> left;
            std::vector<Coord> coords;
            for (const AxisId each : to_->node(choice.args[1]).axes) {
                if (each != axis) left.push_back(each);
                coords.push_back(each == axis ? Coord(static_cast<std::int64_t>(at.value)) : Coord(Axis{each}));
            }
            if (left == sum.axes) return std::pair(choice.args[1], coords);
        }
        return std::nullopt;
    }

    bool is_const(NodeId id, double value) const {
        return to_->node(id).kind == NodeKind::kConst && to_->node(id).value == value;
    }

    // A comparison of a column's coordinate with an i64 of the row.
    struct Compared {
        Op op;
        AxisId axis;
        NodeId number;
    };

    bool has_columns(NodeId id) const { return !to_->column_axes(to_->node(id)).empty(); }

    // `side op other`, where only the first has columns, as such a comparison. What else its terms are goes to the
    // other side, where nothing of it can pass int64.
    std::optional<Compared> compared(Op op, NodeId side, NodeId other) {
        const Node node = to_->node(side);  // a copy: adding nodes moves the originals
        if (node.kind == NodeKind::kIota) return Compared{op, node.axis, other};
        const bool widens = node.kind == NodeKind::kCast && node.dtype == Dtype::kI64;  // to i32 it would saturate
        if (widens && is_integer(to_->node(node.args[0]).dtype)) return compared(op, node.args[0], other);
        const bool adds = node.kind == NodeKind::kMap && (node.op == Op::kAdd || node.op == Op::kSub);
        if (!adds || node.dtype != Dtype::kI64 || !places(*to_, other)) return std::nullopt;
        const NodeId left = node.args[0];
        const NodeId right = node.args[1];
        if (has_columns(left) == has_columns(right) || !places(*to_, has_columns(left) ? right : left))
            return std::nullopt;
        const auto moved = [&](Op moves, NodeId a, NodeId b) { return folded(*to_, to_->add_map(moves, {a, b})); };
        if (has_columns(left)) {
            const Op inverse = node.op == Op::kAdd ? Op::kSub : Op::kAdd;
            return compared(op, left, moved(inverse, other, right));
        }
        if (node.op == Op::kAdd) return compared(op, right, moved(Op::kSub, other, left));
        return compared(exchanged(op), right, moved(Op::kSub, left, other));
    }

    // A coordinate compared with an i64 of the row, as a class with the row's target or a key with the query that sees
    // those before it, is compared in i32: once a row the number becomes the coordinate that it is, or one beside all.
    // A column costs one instruction instead of three.
    NodeId compare_narrow(NodeId id) {
        const Node node = to_->node(id);  // a copy: adding nodes moves the originals
        const bool compares = node.kind == NodeKind::kMap && node.dtype == Dtype::kBool && node.args.size() == 2;
        if (!compares || to_->node(node.args[0]).dtype != Dtype::kI64) return id;
        if (has_columns(node.args[0]) == has_columns(node.args[1])) return id;
        const bool is_left = has_columns(node.args[0]);
        const auto found = is_left ? compared(node.op, node.args[0], node.args[1])
                                   : compared(exchanged(node.op), node.args[1], node.args[0]);
        if (!found) return id;
        const NodeId coordinate = to_->add_iota(found->axis, Dtype::kI32);
        const NodeId extent = to_->add_const(Dtype::kI64, static_cast<double>(to_->axis(found->axis).extent));
        const auto narrow = [&](NodeId number) { return folded(*to_, to_->add_cast(number, Dtype::kI32)); };
        const NodeId number = found->number;
        if (found->op != Op::kEq && found->op != Op::kNe) {
            const NodeId least = to_->add_const(Dtype::kI64, -1);
            const NodeId from = folded(*to_, to_->add_map(Op::kMax, {number, least}));
            const NodeId within = folded(*to_, to_->add_map(Op::kMin, {from, extent}));
            return to_->add_map(found->op, {coordinate, narrow(within)});
        }
        const NodeId from_zero = to_->add_map(Op::kGe, {number, to_->add_const(Dtype::kI64, 0)});
        const NodeId inside = to_->add_map(Op::kAnd, {from_zero, to_->add_map(Op::kLt, {number, extent})});
        return to_->add_map(
            found->op,
            {coordinate, to_->add_map(Op::kSelect, {inside, narrow(number), to_->add_const(Dtype::kI32, -1)})});
    }

    // A column's coordinate in i32, as a value of i64 is one.
    std::optional<NodeId> narrow_coordinate(NodeId id) {
        const Node node = to_->node(id);  // a copy: adding nodes moves the originals
        const bool widens = node.kind == NodeKind::kCast && to_->node(node.args[0]).dtype == Dtype::kI32;
        if (widens) return node.args[0];
        return node.kind == NodeKind::kIota ? std::optional(to_->add_iota(node.axis, Dtype::kI32)) : std::nullopt;
    }

    // How far a column lies from a number of the row, as a key from its query, in f32: the sum of two numbers of which
    // each is an f32, rounded once as the i64 would be, where the column's is of 32 bits. That number takes the row's
    // lowest 23 bits off the coordinate, and the rest is the row's.
    NodeId distance_narrow(NodeId id) {
        constexpr std::int64_t kPart = std::int64_t{1} << 23;
        const Node node = to_->node(id);  // a copy: adding nodes moves the originals
        if (node.kind != NodeKind::kCast || node.dtype != Dtype::kF32) return id;
        const Node sum = to_->node(node.args[0]);
        const bool adds = sum.kind == NodeKind::kMap && (sum.op == Op::kAdd || sum.op == Op::kSub);
        if (!adds || sum.dtype != Dtype::kI64 || has_columns(sum.args[0]) == has_columns(sum.args[1])) return id;
        const std::size_t of_column = has_columns(sum.args[0]) ? 0 : 1;
        const NodeId number = sum.args[1 - of_column];
        const auto column = places(*to_, sum.args[of_column]);
        const bool is_far = !column || column->least < -kPart / 2 || column->greatest > kPart / 2;
        if (is_far || to_->node(number).kind == NodeKind::kConst || !places(*to_, number)) return id;
        const auto coordinate = narrow_coordinate(sum.args[of_column]);
        if (!coordinate) return id;
        const NodeId part = to_->add_const(Dtype::kI64, static_cast<double>(kPart));
        const NodeId whole = to_->add_map(Op::kMul, {to_->add_map(Op::kFloorDiv, {number, part}), part});
        const NodeId low = to_->add_cast(to_->add_map(Op::kSub, {number, whole}), Dtype::kI32);
        const NodeId near =
            of_column == 0 ? to_->add_map(sum.op, {*coordinate, low}) : to_->add_map(sum.op, {low, *coordinate});
        const NodeId far = to_->add_cast(whole, Dtype::kF32);
        const Op joins = of_column == 0 ? sum.op : Op::kAdd;
        return to_->add_map(joins, {to_->add_cast(near, Dtype::kF32), far});
    }

    NodeId convert_index(const Node& node) {
        std::vector<Coord> coords;
        for (const Coord& coord : node.coords) {
            coords.push_back(coord.substitute([](Axis axis) { return Coord(axis); },
                                              [&](NodeId data) { return Coord::data_node(mapped_.at(data)); }));
        }
        decide(&coords);
        const NodeId source = mapped_.at(node.args[0]);
        if (is_at_fixed_row(source, coords) || reads_many_places(source)) return to_->add_index(source, coords);
        const NodeId pushed = push_from(node, source, coords);
        const Node& read = to_->node(pushed);
        const bool reads_source = read.kind == NodeKind::kIndex && read.args[0] == source;
        if (reads_source || to_->node(source).kind == NodeKind::kInput) return pushed;
        return guard_data(pushed, source, coords);
    }

    // Where the pushed computation cannot be, as data along two row axes may give its operands the axes in two orders
    // and no node exchanges them, the source is stored and read.
    NodeId push_from(const Node& index, NodeId source, const std::vector<Coord>& coords) {
        try {
            return push_with(index.axes, source, coords);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::kInvalidGraph) throw;
            return to_->add_index(source, coords);
        }
    }

    // `source` at `coords`, with the index pushed through every computation down to the inputs. Each value is pushed to
    // the same coordinates once: one that is used twice at each of n steps is met in 2ⁿ ways.
    NodeId push(NodeId source, const std::vector<Coord>& coords) {
        std::vector<Pushed>& known = pushed_[source];
        const auto is_this = [&](const Pushed& one) { return one.keeps_axes == keeps_axes_ && one.at == coords; };
        if (const auto found = std::ranges::find_if(known, is_this); found != known.end()) return found->result;
        const NodeId result = push_once(source, coords);
        pushed_[source].push_back({coords, keeps_axes_, result});
        return result;
    }

    // The same with all of `axes`, in the coordinates' order. What is one number for all columns of a group need not
    // have the columns, where what it is joined with has them: it is pushed without, unless that is all that there is,
    // or the axes that are left are in two orders.
    NodeId push_with(const std::vector<AxisId>& axes, NodeId source, const std::vector<Coord>& coords) {
        try {
            const NodeId result = push_keeping_axes(false, source, coords);
            if (to_->node(result).axes == axes) return result;
        } catch (const Error& error) {
            if (error.code() != ErrorCode::kInvalidGraph) throw;
        }
        return push_keeping_axes(true, source, coords);
    }

    NodeId push_keeping_axes(bool keeps_axes, NodeId source, const std::vector<Coord>& coords) {
        struct Restored {
            bool& flag;
            const bool before;
            ~Restored() { flag = before; }
        } const restored{keeps_axes_, std::exchange(keeps_axes_, keeps_axes)};
        return push(source, coords);
    }

    NodeId push_once(NodeId source, const std::vector<Coord>& coords) {
        const Node node = to_->node(source);  // a copy: adding nodes moves the originals
        if (identity(node, coords)) return source;
        switch (node.kind) {
            case NodeKind::kScalar:
            case NodeKind::kConst:
            case NodeKind::kExtent: return source;
            case NodeKind::kInput: return to_->add_index(source, coords);
            case NodeKind::kIota: return add_coordinate_value(*to_, coords[0], node.dtype);
            // Equal states are one, so the step that is pushed from the next state meets this one.
            case NodeKind::kState: return to_->add_state(push(node.args[0], coords));
            case NodeKind::kFix: {
                const NodeId start = push_keeping_axes(true, node.args[0], coords);
                return to_->add_fix(start, push_keeping_axes(true, node.args[1], coords), node.most_steps);
            }
            case NodeKind::kMap:
            case NodeKind::kCast: {
                if (is_of_another_row(node, coords) && joins_sums(source)) return to_->add_index(source, coords);
                if (kept_.contains(source) && !rows_stay(node, coords)) return to_->add_index(source, coords);
                const NodeId copy = to_->add_copy(
                    node, [&](NodeId arg) { return push(arg, select_coords(node, coords, to_->node(arg).axes)); });
                return folded(*to_, copy);
            }
            case NodeKind::kIndex: {
                const auto at = [&](Axis axis) { return coords[position(node, axis.id)]; };
                std::vector<Coord> composed;
                for (const Coord& coord : node.coords) {
                    composed.push_back(coord.substitute(at, [&](NodeId data) {
                        return Coord::data_node(push(data, select_coords(node, coords, to_->node(data).axes)));
                    }));
                }
                decide(&composed);
                return push(node.args[0], composed);
            }
            case NodeKind::kReduce:
                // What a sum over rows gives is read where its kernel leaves it: nobody adds those rows up again for
                // every row that wants it, nor for columns that are more than it has.
                if (to_->axis(node.reduced[0]).is_row && (!rows_stay(node, coords) || has_more_columns(node, coords)))
                    return to_->add_index(source, coords);
                // Nor a row's columns for a row that stands elsewhere in the batch, as where one is compared with all
                // or is found by a search.
                if (is_of_another_row(node, coords)) return to_->add_index(source, coords);
                if (kept_.contains(source)) return to_->add_index(source, coords);
                return push_reduce(node, coords);
            case NodeKind::kSearch: return to_->add_search(node.args[0], push(node.args[1], coords));
            case NodeKind::kMatmul:  // of what the library, or a kernel of its own, leaves in memory
            case NodeKind::kOrder: return to_->add_index(source, coords);
            case NodeKind::kDigitCounts:
            case NodeKind::kSumWhere:
            case NodeKind::kPartialReduce: break;  // the planner's
        }
        RJ_CHECK(false, "canonicalize: {}", to_->describe(source));
    }

    // Makes each coordinate what the extents make of it; where axes are kept not if that loses the only mention of one:
    // a position that is one wherever it is asked, as c / 2 of two columns, would leave the value without an axis that
    // what reads it may reduce, or index.
    void decide(std::vector<Coord>* coords) const {
        for (Coord& coord : *coords) {
            Coord simple = coord.decided([&](Axis axis) { return to_->axis(axis.id).extent; });
            if (!keeps_axes_) {
                coord = std::move(simple);
                continue;
            }
            const auto is_kept = [&](AxisId axis) {
                return mentions(simple, axis) || std::ranges::any_of(*coords, [&](const Coord& other) {
                           return &other != &coord && mentions(other, axis);
                       });
            };
            const bool keeps_axes = std::ranges::all_of(coord.axes(), [&](Axis axis) { return is_kept(axis.id); }) &&
                                    std::ranges::all_of(coord.data_nodes(), [&](NodeId data) {
                                        return std::ranges::all_of(to_->node(data).axes, is_kept);
                                    });
            if (keeps_axes) coord = std::move(simple);
        }
    }

    // The coordinates of what is reduced, and the axes that it is reduced along there.
    struct Inside {
        std::vector<Coord> coords = {};
        std::vector<AxisId> reduced = {};
    };

    // The reduced axes stay but those `renamed`.
    Inside inside(const Node& reduce, const std::vector<Coord>& coords, const std::map<AxisId, AxisId>& renamed) const {
        Inside inside;
        for (const AxisId axis : to_->node(reduce.args[0]).axes) {
            if (!contains(reduce.reduced, axis)) {
                inside.coords.push_back(coords[position(reduce, axis)]);
                continue;
            }
            const auto other = renamed.find(axis);
            inside.reduced.push_back(other == renamed.end() ? axis : other->second);
            inside.coords.emplace_back(Axis{inside.reduced.back()});
        }
        return inside;
    }

    // Where a coordinate mentions a reduced axis that axis is renamed inside the reduction, unless what is reduced is
    // the same all along the one that was mentioned, as the columns of a group are for each of them.
    NodeId push_reduce(const Node& node, const std::vector<Coord>& coords) {
        std::map<AxisId, AxisId> renamed;
        for (const AxisId axis : node.reduced) {
            if (std::ranges::any_of(coords, [&](const Coord& coord) { return mentions(coord, axis); }))
                renamed[axis] = fresh_axis(axis);
        }
        Inside at = inside(node, coords, renamed);
        const bool keeps_axes = keeps_axes_ || node.is_segmented();
        NodeId moved = push_keeping_axes(keeps_axes, node.args[0], at.coords);
        const auto varies_along = [&](AxisId axis) { return contains(to_->node(moved).axes, axis); };
        if (!std::ranges::all_of(at.reduced, varies_along)) {
            moved = push_keeping_axes(true, node.args[0], at.coords);
        } else if (!renamed.empty() &&
                   std::ranges::none_of(renamed, varies_along, &std::pair<const AxisId, AxisId>::first)) {
            at = inside(node, coords, {});
            moved = push_keeping_axes(keeps_axes, node.args[0], at.coords);
        }
        const NodeId result = node.is_segmented()
                                  ? to_->add_segment_reduce(node.monoid, moved, at.reduced[0], node.args[1], node.axis)
                                  : to_->add_reduce(node.monoid, moved, at.reduced, node.component);
        to_->set_label(result, node.label);
        return result;
    }

    // Whether the index of a number of each row is by data, or by another row axis alone; but not where it takes one of
    // many rows, as a sequence's last.
    bool is_of_another_row(const Node& node, const std::vector<Coord>& coords) const {
        if (!to_->column_axes(node).empty()) return false;
        bool is_elsewhere = false;
        std::set<AxisId> axes;
        for (std::size_t i = 0; i < coords.size(); ++i) {
            const std::vector<Axis> along = coords[i].axes();
            for (const Axis axis : along) axes.insert(axis.id);
            if (coords[i].is_axis(Axis{node.axes[i]})) continue;
            is_elsewhere = true;
            if (coords[i].kind() == Coord::Kind::kData) {
                const std::vector<AxisId>& of_data = to_->node(coords[i].data()).axes;
                axes.insert(of_data.begin(), of_data.end());
            } else if (along.size() != 1 || !coords[i].is_axis(along[0]) ||
                       !to_->same_rows(along[0].id, node.axes[i])) {
                return false;
            }
        }
        const bool takes_few = axes.size() < node.axes.size() &&
                               std::ranges::all_of(axes, [&](AxisId axis) { return contains(node.axes, axis); });
        return is_elsewhere && !takes_few;
    }

    // Whether it is a number that several of a row's reductions are made into: where another row asks for it, one is
    // stored in the place of several, with what their roundings lost (plan/differences).
    bool joins_sums(NodeId id) const {
        std::set<NodeId> reductions;
        std::set<NodeId> seen;
        std::vector<NodeId> work = {id};
        while (!work.empty() && reductions.size() < 2) {
            const NodeId next = work.back();
            work.pop_back();
            if (!seen.insert(next).second) continue;
            const Node& node = to_->node(next);
            if (node.kind == NodeKind::kReduce) reductions.insert(next);
            if (node.kind == NodeKind::kMap || node.kind == NodeKind::kCast)
                work.insert(work.end(), node.args.begin(), node.args.end());
        }
        return reductions.size() > 1;
    }

    // Whether it is numbers that wide rows come to, at one position of some row axes, as of a batch's halves, and at
    // all of the others. A kernel of all rows stores them: pushed, the index would have the rows read for each half
    // alone.
    bool is_at_fixed_row(NodeId source, const std::vector<Coord>& coords) {
        const Node& node = to_->node(source);
        if (!to_->column_axes(node).empty() || !comes_of_wide_row(source)) return false;
        for (std::size_t i = 0; i < coords.size(); ++i) {
            const bool is_fixed = coords[i].kind() == Coord::Kind::kConst && !is_unrolled(node.axes[i]);
            if (!is_fixed && !coords[i].is_axis(Axis{node.axes[i]})) return false;
        }
        return !identity(node, coords);
    }

    // Whether a value of columns is made of what is read at many other places already: each column of one that is made
    // of its columns elsewhere would be computed of twice as many, of a chain of such values in as many ways as there
    // are subsets of it. It is stored, and read at those places. What a thread has of some positions each is not.
    bool reads_many_places(NodeId source) {
        constexpr std::int64_t kMany = 32;
        const auto is_stored = [&](NodeId id) {
            const NodeKind kind = to_->node(id).kind;
            return (kind == NodeKind::kMap || kind == NodeKind::kCast) && to_->node(id).state < 0 &&
                   !to_->column_axes(to_->node(id)).empty() &&
                   std::ranges::none_of(to_->node(id).axes, [&](AxisId axis) { return is_unrolled(axis); });
        };
        if (!is_stored(source)) return false;
        std::int64_t places = 0;
        std::set<NodeId> seen;
        std::vector<NodeId> work = {source};
        while (!work.empty() && places < kMany) {
            const NodeId id = work.back();
            work.pop_back();
            const Node& node = to_->node(id);
            if (to_->column_axes(node).empty() || !seen.insert(id).second) continue;
            if (node.kind == NodeKind::kIndex) ++places;
            if (node.kind == NodeKind::kMap || node.kind == NodeKind::kCast)
                work.insert(work.end(), node.args.begin(), node.args.end());
        }
        return places >= kMany;
    }

    bool comes_of_wide_row(NodeId id) {
        constexpr std::int64_t kWideRowColumns = 8192;
        for (NodeId next = std::ssize(of_wide_row_); next <= id; ++next) {
            const Node& node = to_->node(next);
            const bool reduces_wide = node.kind == NodeKind::kReduce && !to_->axis(node.reduced[0]).is_row &&
                                      to_->column_count(to_->node(node.args[0])) > kWideRowColumns;
            of_wide_row_.push_back(reduces_wide || std::any_of(node.args.begin(), node.args.end(), [&](NodeId arg) {
                                       return of_wide_row_[static_cast<std::size_t>(arg)];
                                   }));
        }
        return of_wide_row_[static_cast<std::size_t>(id)];
    }

    // Whether an index of a reduction over rows leaves its rows where they are.
    bool rows_stay(const Node& node, const std::vector<Coord>& coords) const {
        for (std::size_t i = 0; i < coords.size(); ++i) {
            const bool stays = coords[i].is_axis(Axis{node.axes[i]}) || is_unrolled(node.axes[i]);
            if (to_->axis(node.axes[i]).is_row && !stays) return false;
            for (const AxisId axis : node.reduced) {
                if (mentions(coords[i], axis)) return false;
            }
        }
        return true;
    }

    // Whether an index has more columns than what it reads, as the gradients of a scale and a shift in the packed
    // tensor that both are parts of. H200, 123 images of 123 tokens whose six modulations of 1152 columns are one
    // tensor: 0.041 ms with sums of 1152 columns, 0.196 with sums of 6912.
    bool has_more_columns(const Node& node, const std::vector<Coord>& coords) const {
        std::set<AxisId> columns;
        for (const Coord& coord : coords) {
            for (const Axis axis : coord.axes()) {
                if (!to_->axis(axis.id).is_row) columns.insert(axis.id);
            }
        }
        return to_->positions({columns.begin(), columns.end()}, 1) > to_->column_count(node);
    }

    AxisId fresh_axis(AxisId axis) {
        const AxisInfo old = to_->axis(axis);
        const std::string stem = old.name.empty() ? "columns_" + std::to_string(old.extent) : old.name;
        for (int suffix = 1;; ++suffix) {
            const std::string name = fmt::format("{}_{}", stem, suffix);
            const auto taken = [&](const AxisInfo& info) { return info.name == name; };
            if (std::none_of(to_->axes().begin(), to_->axes().end(), taken))
                return to_->add_column_axis(name, old.extent);
        }
    }

    // A data coordinate outside the extent gives 0, but the pushed computation would give its value at 0.
    NodeId guard_data(NodeId pushed, NodeId source, const std::vector<Coord>& coords) {
        const Node node = to_->node(source);
        NodeId result = pushed;
        for (std::size_t i = 0; i < coords.size(); ++i) {
            if (coords[i].data_nodes().empty()) continue;
            const NodeId at = add_coordinate_value(*to_, coords[i], to_->node(coords[i].data_nodes()[0]).dtype);
            const std::optional<Places> known = places(*to_, at);
            if (known && known->least >= 0 && known->greatest < to_->axis(node.axes[i]).extent) continue;
            const Dtype dtype = to_->node(at).dtype;
            const NodeId inside =
                to_->add_map(Op::kAnd, {to_->add_map(Op::kGe, {at, to_->add_const(dtype, 0)}),
                                        to_->add_map(Op::kLt, {at, to_->add_extent(node.axes[i], dtype)})});
            require_one_order(*to_, "index", source, to_->node(inside).axes, to_->node(result).axes);
            if (node.dtype == Dtype::kBool) {
                result = to_->add_map(Op::kAnd, {inside, result});
            } else {
                result = to_->add_map(Op::kSelect, {inside, result, to_->add_const(node.dtype, 0)});
            }
        }
        return result;
    }

    static bool identity(const Node& node, const std::vector<Coord>& coords) {
        for (std::size_t i = 0; i < coords.size(); ++i) {
            if (!coords[i].is_axis(Axis{node.axes[i]})) return false;
        }
        return true;
    }

    static std::size_t position(const Node& node, AxisId axis) {
        const auto found = std::find(node.axes.begin(), node.axes.end(), axis);
        RJ_CHECK(found != node.axes.end(), "canonicalize: axis {} is not the node's", axis);
        return static_cast<std::size_t>(found - node.axes.begin());
    }

    static std::vector<Coord> select_coords(const Node& node, const std::vector<Coord>& coords,
                                            const std::vector<AxisId>& axes) {
        std::vector<Coord> selected;
        for (const AxisId axis : axes) selected.push_back(coords[position(node, axis)]);
        return selected;
    }

    bool mentions(const Coord& coord, AxisId axis) const {
        for (const Axis a : coord.axes()) {
            if (a.id == axis) return true;
        }
        for (const NodeId data : coord.data_nodes()) {
            const std::vector<AxisId>& axes = to_->node(data).axes;
            if (std::find(axes.begin(), axes.end(), axis) != axes.end()) return true;
        }
        return false;
    }

    const GraphData& from_;
    const std::set<AxisId>& unrolled_;
    std::set<NodeId> kept_;  // of to_
    std::shared_ptr<GraphData> to_;
    bool full_width_;                // whether all that is read is
    std::vector<bool> of_wide_row_;  // by node of to_, as far as was asked
    std::unordered_map<NodeId, NodeId> mapped_;
    bool keeps_axes_ = true;  // whether what is pushed shall have all axes of the coordinates (push_with)
    struct Pushed {
        std::vector<Coord> at;
        bool keeps_axes;
        NodeId result;
    };
    std::unordered_map<NodeId, std::vector<Pushed>> pushed_;  // by node of to_
};

// Folding and pushing leave nodes that nothing uses; a second copy keeps only what the outputs need.
std::shared_ptr<const GraphData> without_dead_nodes(const GraphData& graph) {
    return rewritten(
        graph, [&](GraphData& to, NodeId id, const ToHere& to_here) { return to.add_copy(graph.node(id), to_here); });
}

}  // namespace

std::shared_ptr<const GraphData> canonicalize(const GraphData& graph, const std::set<AxisId>& unrolled,
                                              const std::set<NodeId>& kept, SumOrder order) {
    const std::shared_ptr<const GraphData> canonical = write_logistic(Canonicalizer(graph, unrolled).run(kept));
    const bool swaps = order == SumOrder::kColumnsFirst;
    return without_dead_nodes(*sum_where_placed(share_sums(swaps ? sum_columns_first(canonical) : canonical)));
}

}  // namespace rowjit
