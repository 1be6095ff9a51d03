#include "dsl/reverse.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <numbers>
#include <optional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/fail.h"
#include "dsl/coordinate_value.h"
#include "dsl/cotangent_sum.h"
#include "dsl/gathered_rows.h"
#include "dsl/invariance.h"
#include "dsl/joined_gathers.h"
#include "dsl/library/operands.h"
#include "dsl/preimage.h"
#include "dsl/row_windows.h"
#include "dsl/support.h"
#include "dsl/with_axes.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

// Where one source element was read up to this many times, the reads are added one by one: cheaper than a reduction.
constexpr std::int64_t kMostUnrolled = 8;

// What flows back to the operands of an op: the derivative column of ops.def. An empty Value is none.
std::vector<Value> derivatives(Op op, [[maybe_unused]] const Value& a, [[maybe_unused]] const Value& b,
                               [[maybe_unused]] const Value& c, [[maybe_unused]] const Value& y, const Value& g) {
    const Value zero = Graph(g.graph()).constant(g.dtype(), 0.0);
    const Value none;
    switch (op) {
#define ROWJIT_OP(enumerator, name, arity, types, reference, gpu, packed, cpu, ...) \
    case Op::enumerator: return {__VA_ARGS__};
#include "dsl/ops.def"
#undef ROWJIT_OP
    }
    RJ_CHECK(false, "op {}", static_cast<int>(op));
}

class Reverse {
  public:
    Reverse(const GraphData& forward, const std::vector<std::string>& inputs, const std::vector<std::string>& of,
            bool unit_cotangent, const std::vector<std::string>& sorted)
        : graph_(std::make_shared<GraphData>(forward.axes())), sorted_(sorted) {
        std::vector<NodeId> mapped(static_cast<std::size_t>(forward.size()), -1);
        // Inputs that no output needs have a gradient too: zero.
        std::vector<NodeId> nodes = forward.live_nodes();
        for (const std::string& input : inputs) wanted_.push_back(find_named(forward, input));
        nodes.insert(nodes.end(), wanted_.begin(), wanted_.end());
        std::sort(nodes.begin(), nodes.end());
        for (const NodeId id : nodes) {
            NodeId& copy = mapped[static_cast<std::size_t>(id)];
            if (copy < 0)
                copy = graph_->add_copy(forward.node(id),
                                        [&](NodeId arg) { return mapped[static_cast<std::size_t>(arg)]; });
        }
        for (NodeId& id : wanted_) id = mapped[static_cast<std::size_t>(id)];
        joint_.graph = graph_;
        joint_.forward_size = graph_->size();
        for (OutputInfo output : forward.outputs()) {
            output.node = mapped[static_cast<std::size_t>(output.node)];
            joint_.forward.push_back(std::move(output));
        }
        cotangents_.resize(static_cast<std::size_t>(joint_.forward_size));
        supports_.resize(cotangents_.size());
        find_active(of);
        count_lists();
        seed(of, unit_cotangent);
    }

    Joint run(const std::vector<std::string>& inputs) {
        for (NodeId id = joint_.forward_size - 1; id >= 0; --id) {
            add_joined(id);
            const std::optional<Value>& g = cotangents_[static_cast<std::size_t>(id)];
            if (!g) continue;
            const std::string label = node(id).label;
            if (!label.empty()) g->named("d_" + label);
            propagate(id, *g);
        }
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            const NodeId id = wanted_[i];
            const std::optional<Value>& g = cotangents_[static_cast<std::size_t>(id)];
            const Value result = g ? *g : constant(node(id).dtype, 0.0);
            joint_.gradients.push_back(
                {"d_" + inputs[i], with_axes(result, axes(id)).id(), "", false, node(id).column_strides});
        }
        return std::move(joint_);
    }

  private:
    // Good until a node is added: what outlives that is copied, as axes are.
    const Node& node(NodeId id) const { return graph_->node(id); }
    std::vector<AxisId> axes(NodeId id) const { return node(id).axes; }
    std::vector<AxisId> axes(const Value& v) const { return axes(v.id()); }
    Value value(NodeId id) const { return {graph_, id}; }
    Value constant(Dtype dtype, double number) const { return {graph_, graph_->add_const(dtype, number)}; }
    bool is_active(NodeId id) const { return active_[static_cast<std::size_t>(id)]; }
    const Support& support(NodeId id) const { return supports_[static_cast<std::size_t>(id)]; }

    // Values through which one of those wanted reaches an output.
    void find_active(const std::vector<std::string>& of) {
        std::vector<NodeId> outputs;
        for (const OutputInfo& output : joint_.forward) {
            if (std::find(of.begin(), of.end(), output.name) != of.end()) outputs.push_back(output.node);
        }
        const std::vector<bool> invariant = find_invariant(*graph_, outputs);
        active_.assign(static_cast<std::size_t>(joint_.forward_size), false);
        for (const NodeId id : wanted_) active_[static_cast<std::size_t>(id)] = true;
        for (NodeId id = 0; id < joint_.forward_size; ++id) {
            if (!is_float(node(id).dtype) || node(id).kind == NodeKind::kFix) continue;
            if (invariant[static_cast<std::size_t>(id)] && !contains(wanted_, id)) continue;
            for (const NodeId arg : node(id).args) {
                if (is_active(arg)) active_[static_cast<std::size_t>(id)] = true;
            }
        }
    }

    void seed(const std::vector<std::string>& of, bool unit_cotangent) {
        for (const OutputInfo& output : joint_.forward) {
            if (std::find(of.begin(), of.end(), output.name) == of.end()) continue;
            const Node from = node(output.node);
            const Value g = unit_cotangent
                                ? constant(from.dtype, 1.0)
                                : Value(graph_, graph_->add_input("d_" + output.name, from.dtype, from.axes, {}));
            add(output.node, g);
        }
    }

    // ---- Cotangents ----------------------------------------------------------------------------------------------

    // Adds what is zero outside the support.
    void add(NodeId to, const Value& contribution, Support support = {}) {
        if (!is_active(to)) return;
        std::erase_if(support, [&](const auto& narrowed) { return !contains(node(to).axes, narrowed.first); });
        std::optional<Value>& sum = cotangents_[static_cast<std::size_t>(to)];
        Support& where_nonzero = supports_[static_cast<std::size_t>(to)];
        if (!sum) {
            sum = contribution;
            where_nonzero = std::move(support);
            return;
        }
        where_nonzero = either(where_nonzero, support);
        // Two that lack different axes of one space would meet in an order of their own.
        const std::vector<AxisId> all = axes(to);
        sum = have_order(all, {*sum, contribution}) ? *sum + contribution : with_axes(*sum, all) + contribution;
    }

    // Whether what such values are made into has the order of `all`: of each space that has several of those axes, one
    // value has them all.
    bool have_order(const std::vector<AxisId>& all, const std::vector<Value>& values) const {
        return std::ranges::all_of(std::array{true, false}, [&](bool rows) {
            std::vector<AxisId> of_space;
            std::ranges::copy_if(all, std::back_inserter(of_space),
                                 [&](AxisId id) { return graph_->axis(id).is_row == rows; });
            return of_space.size() <= 1 || std::ranges::any_of(values, [&](const Value& value) {
                       return std::ranges::all_of(of_space, [&](AxisId id) { return contains(axes(value), id); });
                   });
        });
    }

    // ---- Each kind of node ---------------------------------------------------------------------------------------

    void propagate(NodeId id, const Value& g) {
        switch (node(id).kind) {
            case NodeKind::kMap: return map(id, g);
            case NodeKind::kCast: return add(node(id).args[0], cast(g, node(node(id).args[0]).dtype), support(id));
            case NodeKind::kIndex: return index(id, g);
            case NodeKind::kReduce: return reduce(id, g);
            case NodeKind::kMatmul: return matmul(id, g);
            default: return;
        }
    }

    void map(NodeId id, const Value& g) {
        const Node y = node(id);  // a copy: adding nodes moves the original
        // An operand given twice gets one contribution: x·x gives 2·g·x at once, as a power's derivative does.
        for (std::size_t i = 0; i < y.args.size(); ++i) {
            const NodeId arg = y.args[i];
            if (!is_active(arg) || std::find(y.args.begin(), y.args.begin() + static_cast<std::ptrdiff_t>(i), arg) !=
                                       y.args.begin() + static_cast<std::ptrdiff_t>(i))
                continue;
            std::optional<Value> total;
            Support nonzero;
            for (std::size_t j = i; j < y.args.size(); ++j) {
                if (y.args[j] != arg) continue;
                const Value part = derivative(y, id, j, g);
                if (!part.graph()) continue;
                const Support of_part = support_of_operand(y, id, j);
                nonzero = total ? either(nonzero, of_part) : of_part;
                total = total ? *total + part : part;
            }
            if (total) add(arg, sum_to(*total, y.axes, axes(arg)), nonzero);
        }
    }

    // Where the cotangent that flows back to operand `which` can be anything but zero: where the result's can, and of a
    // choice where that operand is chosen.
    Support support_of_operand(const Node& y, NodeId id, std::size_t which) const {
        if (y.op != Op::kSelect) return support(id);
        return where(*graph_, support(id), y.args[0], which == 1);
    }

    // What flows back through an exponential e that divides as e + 1, as in a sigmoid: (t / (e + 1))·e is t − t / (e +
    // 1), which it still is where e overflows and the product is 0·∞.
    std::optional<Value> through_sigmoid(NodeId exponential, const Value& g) const {
        const Node& quotient = node(g.id());
        if (quotient.kind != NodeKind::kMap || quotient.op != Op::kDiv) return std::nullopt;
        const Node& divisor = node(quotient.args[1]);
        if (divisor.kind != NodeKind::kMap || divisor.op != Op::kAdd || divisor.args[0] != exponential)
            return std::nullopt;
        const Node& one = node(divisor.args[1]);
        if (one.kind != NodeKind::kConst || one.value != 1.0) return std::nullopt;
        return value(quotient.args[0]) - g;
    }

    // What flows back to operand `which`. Narrow floats: a formula of several roundings is computed wide and rounded
    // once, as the frameworks' kernels for derivatives do.
    Value derivative(const Node& y, NodeId id, std::size_t which, const Value& g) const {
        if (y.op == Op::kExp && wide(y.dtype) == y.dtype) {
            if (const std::optional<Value> of_sigmoid = through_sigmoid(id, g)) return *of_sigmoid;
        }
        const auto at = [&](bool wide) {
            std::vector<Value> operands(3);
            for (std::size_t i = 0; i < y.args.size(); ++i) {
                const Value operand = value(y.args[i]);
                operands[i] = wide && is_float(operand.dtype()) ? widen(operand) : operand;
            }
            const Value result = wide ? widen(value(id)) : value(id);
            return derivatives(y.op, operands[0], operands[1], operands[2], result, wide ? widen(g) : g)[which];
        };
        Value narrow = at(false);
        if (!narrow.graph() || wide(y.dtype) == y.dtype || roundings(narrow.id(), y, id, g.id()) <= 1) return narrow;
        return cast(at(true), y.dtype);
    }

    // The most roundings on a way from the operands of a derivative to it.
    int roundings(NodeId from, const Node& y, NodeId result, NodeId g) const {
        const Node& n = node(from);
        if (from == result || from == g || contains(y.args, from) || n.kind != NodeKind::kMap) return 0;
        int most = 0;
        for (const NodeId arg : n.args) most = std::max(most, roundings(arg, y, result, g));
        return most + (n.op == Op::kNeg || n.op == Op::kSelect || !is_float(n.dtype) ? 0 : 1);
    }

    void reduce(NodeId id, const Value& g) {
        const Node y = node(id);
        const NodeId arg = y.args[0];
        if (y.is_segmented()) return reduce_segments(y, id, g);
        if (y.monoid == Monoid::kSum) {
            // Constant along what was summed.
            return add(arg, have_order(axes(arg), {g}) ? g : with_axes(g, axes(arg)), support(id));
        }
        if (y.monoid != Monoid::kMax && y.monoid != Monoid::kMin) {
            fail(ErrorCode::kUnsupported, "gradient of {}({}): write it with max, exp and sum, or with mean",
                 name(y.monoid), graph_->describe(arg));
        }
        // Divided evenly among equal extrema, as torch.amax does.
        joint_.compared.push_back(id);
        const Value is_extremum = (value(arg) == value(id));
        const Value one = constant(wide(y.dtype), 1.0);
        const Value count = sum_to(select(is_extremum, one, one * 0.0), axes(arg), y.axes);
        const Value share = cast(widen(g) / count, y.dtype);
        // NaN, not 0, where the row has a NaN and so no extremum: the share is then infinite.
        add(arg, select(is_extremum, share, share * 0.0));
    }

    // Each operand's is the product of the cotangent with the other, contracted over what the other keeps; a matrix
    // each time, so the operand's axes come out in its own order if the operands stand in the right one.
    void matmul(NodeId id, const Value& g) {
        const Node y = node(id);
        const Value whole = with_axes(g, y.axes);
        for (const std::size_t which : {0, 1}) {
            const NodeId arg = y.args[which];
            if (!is_active(arg)) continue;
            const NodeId other = y.args[1 - which];
            std::vector<AxisId> contracted;
            for (const AxisId axis : axes(other)) {
                if (contains(y.axes, axis)) contracted.push_back(axis);
            }
            const Dtype dtype = node(arg).dtype;
            const NodeId product = graph_->add_matmul(whole.id(), other, contracted, dtype);
            const std::vector<AxisId> wanted = axes(arg);
            if (axes(product) == wanted) {
                add(arg, value(product));
                continue;
            }
            const NodeId turned = graph_->add_matmul(other, whole.id(), contracted, dtype);
            if (axes(turned) != wanted) {
                fail(ErrorCode::kUnsupported,
                     "gradient of {} in matmul: its kept and its contracted axes alternate; declare each together",
                     graph_->describe(arg));
            }
            add(arg, value(turned));
        }
    }

    void reduce_segments(const Node& y, NodeId id, const Value& g) {
        const NodeId arg = y.args[0];
        if (!is_active(arg)) return;
        const Axis over{y.reduced[0]};
        const Segments segments{Axis{y.axis}, value(y.args[1])};
        const Value whole = with_axes(g, y.axes);
        if (y.monoid == Monoid::kSum) return add(arg, rowjit::spread(whole, over, segments));
        joint_.compared.push_back(id);
        const Value one = constant(wide(y.dtype), 1.0);
        const Value is_extremum = value(arg) == rowjit::spread(value(id), over, segments);
        const Value count = sum(select(is_extremum, one, one * 0.0), over, segments);
        const Value share = rowjit::spread(cast(widen(whole) / count, y.dtype), over, segments);
        // What belongs to no segment may equal the 0 that is read there; its share is 0.
        add(arg, select(is_extremum, share, share * 0.0));
    }

    // ---- Index ---------------------------------------------------------------------------------------------------

    // An index that takes rows so many places further on along one row axis, the rest as they are: a row's neighbour,
    // as a token shift or a short convolution has it. What lies outside reads nothing, so it is a data coordinate.
    struct RowShift {
        Axis rows;
        std::int64_t places;
    };

    std::optional<RowShift> row_shift(const Node& y) const {
        const std::vector<AxisId>& source = node(y.args[0]).axes;
        std::optional<RowShift> found;
        for (std::size_t i = 0; i < source.size(); ++i) {
            if (y.coords[i].is_axis(Axis{source[i]})) continue;
            if (found || !graph_->axis(source[i]).is_row) return std::nullopt;
            const std::optional<std::int64_t> places = places_beyond(*graph_, source[i], y.coords[i]);
            if (!places) return std::nullopt;
            found = RowShift{{source[i]}, *places};
        }
        return found;
    }

    void shift_back(const Node& y, const RowShift& shift, const Value& g) {
        const Value at = Graph(graph_).iota(shift.rows, i64) - static_cast<double>(shift.places);
        add(y.args[0], rowjit::index(with_axes(g, y.axes), shift.rows, Coord(at)));
    }

    // The row axis by which an index reads a source's only one, which has as many positions.
    std::optional<Axis> renamed_rows(const Node& y) const {
        const std::vector<AxisId>& source = node(y.args[0]).axes;
        const auto is_row = [&](AxisId axis) { return graph_->axis(axis).is_row; };
        if (source.empty() || std::count_if(source.begin(), source.end(), is_row) != 1 || !is_row(source[0]))
            return std::nullopt;
        for (std::size_t i = 1; i < source.size(); ++i) {
            if (!y.coords[i].is_axis(Axis{source[i]})) return std::nullopt;
        }
        const std::vector<Axis> along = y.coords[0].axes();
        const bool renames = along.size() == 1 && along[0].id != source[0] && y.coords[0].is_axis(along[0]) &&
                             graph_->same_rows(along[0].id, source[0]);
        return renames ? std::optional(along[0]) : std::nullopt;
    }

    void rename_back(const Node& y, Axis renamed, const Value& g) {
        const Axis source{node(y.args[0]).axes[0]};
        add(y.args[0], rowjit::index(with_axes(g, y.axes), renamed, Coord(source)));
    }

    // A source, its rows and the axes that ids lie along.
    using ListOfRows = std::tuple<NodeId, AxisId, std::vector<AxisId>>;

    static ListOfRows list_of(NodeId source, const RowGather& gather) {
        std::vector<AxisId> positions;
        for (const Axis axis : gather.positions) positions.push_back(axis.id);
        return {source, gather.rows.id, std::move(positions)};
    }

    // Whether what flows back to a gather has the axes of its ids that it is read along: where those are put in order,
    // one is enough.
    bool lies_at_positions(const RowGather& gather, NodeId source, const Value& g) const {
        const std::vector<AxisId> along = axes(g);
        const auto has = [&](Axis axis) { return contains(along, axis.id); };
        return is_put_in_order(graph_, source, gather, sorted_) ? std::ranges::any_of(gather.positions, has)
                                                                : std::ranges::all_of(gather.positions, has);
    }

    // Gathers that are put in order: those by several lists of ids are put in one.
    void count_lists() {
        for (NodeId id = 0; id < joint_.forward_size; ++id) {
            if (node(id).kind != NodeKind::kIndex || !is_active(id) || !is_active(node(id).args[0])) continue;
            const Node y = node(id);
            if (row_shift(y) || !row_windows(graph_, y).empty()) continue;
            const auto gather = row_gather(graph_, y);
            if (gather && is_put_in_order(graph_, y.args[0], *gather, sorted_))
                ++lists_[list_of(y.args[0], *gather)].count;
        }
    }

    // What flows back to a source by several lists, all of which are users of it that come before.
    void add_joined(NodeId source) {
        for (auto& [list, several] : lists_) {
            if (std::get<0>(list) != source || several.taken.empty()) continue;
            TakenRows all = several.taken[0];
            if (several.taken.size() > 1) {
                const auto [axis, is_new] = axes_of_lists_.try_emplace(several.taken.size());
                if (is_new) {
                    axis->second = Graph(graph_).rows(graph_->unused_axis_name("lists"),
                                                      static_cast<std::int64_t>(several.taken.size()));
                }
                all = joined(graph_, several.taken, axis->second);
            }
            add(source, gathered_rows_gradient(graph_, source, all.gather, all.whole, sorted_, &orders_));
        }
    }

    void index(NodeId id, const Value& g) {
        const NodeId source = node(id).args[0];
        if (!is_active(source)) return;
        if (const auto shift = row_shift(node(id))) return shift_back(Node(node(id)), *shift, g);
        if (const auto windows = row_windows(graph_, Node(node(id))); !windows.empty()) {
            const bool has_positions = std::ranges::all_of(
                windows, [&](const RowWindows& along) { return contains(axes(g), along.positions.id); });
            return add(source, row_windows_gradient(graph_, windows, has_positions ? g : with_axes(g, axes(id))));
        }
        if (const auto gather = row_gather(graph_, node(id))) {
            const std::vector<AxisId> all = axes(id);
            const Value whole = lies_at_positions(*gather, source, g) ? g : with_axes(g, all);
            const auto lists = lists_.find(list_of(source, *gather));
            if (lists != lists_.end() && lists->second.count > 1)
                return lists->second.taken.push_back({*gather, whole});
            return add(source, gathered_rows_gradient(graph_, source, *gather, whole, sorted_, &orders_));
        }
        if (const auto other = renamed_rows(node(id))) return rename_back(Node(node(id)), *other, g);
        std::vector<Coord> coords;
        for (const Coord& coord : Node(node(id)).coords) coords.push_back(with_column_apart(*graph_, coord));
        const NodeId solvable = graph_->add_index(source, std::move(coords));
        const Preimage preimage = preimage_of(*graph_, Node(node(solvable)), support(id));
        if (preimage.empty) return;
        const Node y = node(solvable);
        std::int64_t reads = 1;  // of one source element; 0 is many
        for (const AxisId axis : preimage.summed) {
            const std::int64_t extent = graph_->axis(axis).extent;
            const bool few = extent > 0 && reads > 0 && reads * extent <= kMostUnrolled && !contains(y.axes, axis);
            reads = few ? reads * extent : 0;
        }
        std::vector<AxisId> over = axes(source);
        if (reads == 0) over.insert(over.end(), preimage.summed.begin(), preimage.summed.end());
        if (reads > 0) return add(source, unrolled_reads(preimage, y, g, over, reads));
        add(source, sum_to(read(preimage, y, g, over, {}), over, axes(source)));
    }

    using Assignment = std::vector<std::pair<AxisId, std::int64_t>>;

    // The cotangent of the element that read, 0 where none did.
    Value read(const Preimage& preimage, const Node& y, const Value& g, const std::vector<AxisId>& over,
               const Assignment& given) const {
        const auto at = [&](const Coord& coord) {
            return coord.substitute(
                [&](Axis axis) {
                    for (const auto& [id, position] : given) {
                        if (id == axis.id) return Coord(position);
                    }
                    return Coord(axis);
                },
                [](NodeId data) { return Coord::data_node(data); });
        };
        std::vector<Coord> coords;
        for (const AxisId axis : axes(g)) {
            const auto position = std::find(y.axes.begin(), y.axes.end(), axis) - y.axes.begin();
            coords.push_back(at(preimage.coords[static_cast<std::size_t>(position)]));
        }
        Value there = rowjit::index(g, std::move(coords));
        if (!preimage.conditions.empty() && !have_order(over, {there})) there = with_axes(there, over);
        std::optional<Value> holds;
        const auto also = [&](const Value& condition) { holds = holds ? *holds && condition : condition; };
        for (const Bounded& condition : preimage.conditions) {
            const Bounded here{at(condition.value), at(condition.low), at(condition.high)};
            const Dtype dtype = coordinate_dtype(here);
            const auto number = [&](const Coord& coord) {
                return Value(graph_, add_coordinate_value(*graph_, coord, dtype));
            };
            if (here.low == here.high) {
                also(in_order_of(there, number(here.value) == number(here.low)));
                continue;
            }
            if (!surely(here.value - here.low)) also(in_order_of(there, number(here.value) >= number(here.low)));
            if (!surely(here.high - here.value)) also(in_order_of(there, number(here.value) <= number(here.high)));
        }
        if (!holds) return there;
        require_one_order(*graph_, "gradient of index", y.args[0], axes(*holds), axes(there));
        return select(*holds, there, constant(g.dtype(), 0.0));
    }

    // A comparison with its axes in the order that a value has them in: of a class's place with what each token and
    // head asks for, the class would stand in front of the head.
    Value in_order_of(const Value& value, const Value& comparison) const {
        const Node met = node(comparison.id());
        std::vector<AxisId> along;
        std::ranges::copy_if(axes(value), std::back_inserter(along), [&](AxisId id) { return contains(met.axes, id); });
        const auto has = [&](AxisId id) { return contains(axes(met.args[0]), id); };
        std::vector<AxisId> of_first;
        std::ranges::copy_if(along, std::back_inserter(of_first), has);
        const bool can_have = along.size() == met.axes.size() && of_first == axes(met.args[0]);
        if (along == met.axes || !can_have) return comparison;
        return {graph_, graph_->add_map(met.op, {with_axes(Value(graph_, met.args[0]), along).id(), met.args[1]})};
    }

    // Whether the coordinate is nowhere negative.
    bool surely(const Coord& gap) const {
        std::int64_t low = 0;
        std::int64_t high = 0;
        return gap.bounds([&](Axis axis) { return graph_->axis(axis.id).extent; }, &low, &high) && low >= 0;
    }

    Dtype coordinate_dtype(const Bounded& condition) const {
        Dtype dtype = i32;
        for (const Coord& coord : {condition.value, condition.low, condition.high}) {
            for (const NodeId data : coord.data_nodes()) dtype = node(data).dtype == i64 ? i64 : dtype;
            for (const Axis axis : coord.axes()) dtype = graph_->axis(axis.id).is_row ? i64 : dtype;
        }
        return dtype;
    }

    Value unrolled_reads(const Preimage& preimage, const Node& y, const Value& g, const std::vector<AxisId>& over,
                         std::int64_t reads) const {
        std::optional<Value> total;
        for (std::int64_t i = 0; i < reads; ++i) {
            Assignment given;
            std::int64_t rest = i;
            for (const AxisId axis : preimage.summed) {
                given.emplace_back(axis, rest % graph_->axis(axis).extent);
                rest /= graph_->axis(axis).extent;
            }
            const Value one = read(preimage, y, g, over, given);
            const Value term = reads == 1 ? one : widen(one);
            total = total ? *total + term : term;
        }
        return cast(*total, g.dtype());
    }

    std::shared_ptr<GraphData> graph_;
    const std::vector<std::string>& sorted_;  // inputs whose stable order is given
    RowOrders orders_;
    struct Lists {
        int count = 0;                 // gathers by such
        std::vector<TakenRows> taken;  // what has flown back to them, where there are several
    };
    std::map<ListOfRows, Lists> lists_;
    std::map<std::size_t, Axis> axes_of_lists_;  // by how many stand along them
    Joint joint_;
    std::vector<NodeId> wanted_;                    // whose gradients are
    std::vector<bool> active_;                      // by forward node
    std::vector<std::optional<Value>> cotangents_;  // by forward node
    std::vector<Support> supports_;                 // theirs
};

}  // namespace

NodeId find_named(const GraphData& graph, std::string_view name) {
    if (const auto input = graph.find_input(name)) return *input;
    NodeId found = -1;
    for (NodeId id = 0; id < graph.size(); ++id) {
        if (graph.node(id).args.empty() || graph.node(id).label != name) continue;
        if (found >= 0) return -1;
        found = id;
    }
    return found;
}

Joint reverse_mode(const GraphData& graph, const std::vector<std::string>& inputs, const std::vector<std::string>& of,
                   bool unit_cotangent, const std::vector<std::string>& sorted) {
    return Reverse(graph, inputs, of, unit_cotangent, sorted).run(inputs);
}

}  // namespace rowjit
