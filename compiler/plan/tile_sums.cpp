#include "compiler/plan/tile_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/declined.h"
#include "compiler/plan/choose_plan.h"
#include "compiler/plan/tile_product.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

// Of fewer columns few tiles would share a few rows, where a library divides the contracted axis too.
constexpr std::int64_t kFewestTiles = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A kernel behind a product, as two graphs.
struct Parted {
    std::shared_ptr<GraphData> tiles;    // of the row of each tile
    std::shared_ptr<GraphData> numbers;  // of a row, made of those of its tiles
    std::vector<Temporary> stored;       // outputs of the one that are inputs of the other
    Temporary in_tiles;                  // the product's result, as `tiles` sees it
};

class Parting {
  public:
    // `axes` are the plan's and two more: `part`, of the tiles along the columns, and `within`, of a tile's columns.
    Parting(const Group& group, const Temporary& result, const std::vector<AxisInfo>& axes, AxisId part, AxisId within)
        : from_(*group.graph),
          result_(result),
          columns_(result.axes.back()),
          part_(part),
          within_(within),
          tiles_(std::make_shared<GraphData>(axes)),
          numbers_(std::make_shared<GraphData>(axes)) {
        for (NodeId id = 0; id < from_.size(); ++id) {
            const Node& node = from_.node(id);
            const bool is_result = node.kind == NodeKind::kInput && node.name == result.name;
            of_result_.push_back(is_result || std::any_of(node.args.begin(), node.args.end(), [&](NodeId arg) {
                                     return of_result_[static_cast<std::size_t>(arg)];
                                 }));
        }
    }

    Offer<Parted> run() {
        for (const OutputInfo& output : from_.outputs()) {
            if (output.piece) return Declined{fmt::format("{} is stored in pieces", output.name)};
            if (is_along(output.node)) return Declined{fmt::format("{} has a value for each column", output.name)};
        }
        const auto is_promoted = [](const AxisInfo& axis) { return axis.is_promoted; };
        if (std::ranges::any_of(from_.axes(), is_promoted)) return Declined{"some of its columns are rows"};
        add_column();
        for (const NodeId id : from_.live_nodes()) {
            if (is_along(id)) continue;
            const Node& node = from_.node(id);
            const bool reduces = node.kind == NodeKind::kReduce && contains(node.reduced, columns_);
            if (!reduces && std::ranges::any_of(node.args, [&](NodeId arg) { return is_along(arg); }))
                return Declined{fmt::format("{} reads one of its columns", from_.describe(id))};
            const NodeId made =
                reduces ? reduce(id) : numbers_->add_copy(node, [&](NodeId arg) { return made_numbers_.at(arg); });
            if (made < 0) return Declined{std::move(reason_)};
            numbers_->set_label(made, node.label);
            made_numbers_[id] = made;
        }
        if (stored_.empty()) return Declined{"nothing reduces its columns"};
        for (OutputInfo output : from_.outputs()) {
            output.node = made_numbers_.at(output.node);
            numbers_->add_output(std::move(output));
        }
        return Parted{std::move(tiles_), std::move(numbers_), std::move(stored_), std::move(in_tiles_)};
    }

  private:
    struct Greatest {
        NodeId over;     // in tiles
        NodeId of_tile;  // likewise
        Value parts;     // that, as the numbers' graph reads it
    };

    bool is_of_result(NodeId id) const { return of_result_[static_cast<std::size_t>(id)]; }
    bool is_along(NodeId id) const { return contains(from_.node(id).axes, columns_); }
    bool is_map(NodeId id, Op op) const { return from_.node(id).kind == NodeKind::kMap && from_.node(id).op == op; }

    NodeId refuse(std::string why) {
        if (reason_.empty()) reason_ = std::move(why);
        return -1;
    }

    // The column of each place of a tile, and whether the row has it: the last tile may reach beyond.
    void add_column() {
        const std::int64_t all = from_.axis(columns_).extent;
        first_ = Graph(tiles_).iota(Axis{part_}) * static_cast<double>(kProductTileColumns);
        column_ = first_ + Graph(tiles_).iota(Axis{within_});
        if (all % kProductTileColumns != 0) inside_ = column_ < static_cast<double>(all);
    }

    // ---- Reductions ----------------------------------------------------------------------------------------------

    // max x, where `id` is exp(x − max x).
    std::optional<NodeId> greatest_of_weight(NodeId id) const {
        if (!is_map(id, Op::kExp) || !is_map(from_.node(id).args[0], Op::kSub)) return std::nullopt;
        const std::vector<NodeId>& args = from_.node(from_.node(id).args[0]).args;
        const Node& greatest = from_.node(args[1]);
        const bool is_max = greatest.kind == NodeKind::kReduce && greatest.monoid == Monoid::kMax &&
                            greatest.args[0] == args[0] && greatest.reduced == std::vector{columns_};
        return is_max ? std::optional(args[1]) : std::nullopt;
    }

    // The max that the weights are of by which a sum's terms are multiplied, if they are.
    std::optional<NodeId> greatest_of_terms(NodeId id) const {
        if (const auto greatest = greatest_of_weight(id)) return greatest;
        if (!is_map(id, Op::kMul)) return std::nullopt;
        const std::vector<NodeId>& factors = from_.node(id).args;
        const auto first = greatest_of_terms(factors[0]);
        const auto second = greatest_of_terms(factors[1]);
        return first && second ? std::nullopt : first ? first : second;
    }

    // Adds the parts to `tiles`, and what puts them together to the numbers; -1 where that cannot be, for reason_.
    NodeId reduce(NodeId id) {
        const Node& node = from_.node(id);
        const NodeId over = node.args[0];
        const bool known = (node.monoid == Monoid::kMax || node.monoid == Monoid::kSum) && node.dtype == Dtype::kF32 &&
                           node.reduced == std::vector{columns_} && node.state < 0 && !node.is_segmented();
        if (!known) return refuse(fmt::format("{} is no sum or maximum of f32", from_.describe(id)));
        if (!is_of_result(over)) return refuse(fmt::format("{} is of other columns", from_.describe(id)));
        const bool is_sum = node.monoid == Monoid::kSum;
        const std::optional<NodeId> greatest = is_sum ? greatest_of_terms(over) : std::nullopt;
        NodeId terms = in_tiles(over);
        if (terms < 0) return -1;
        // Weights are 0 beyond the row, as what they are of is −inf there.
        if (inside_ && !greatest) {
            const double nothing = is_sum ? 0.0 : -kInfinity;
            terms = select(*inside_, Value(tiles_, terms), Graph(tiles_).constant(node.dtype, nothing)).id();
        }
        const NodeId part = tiles_->add_reduce(node.monoid, terms, {within_});
        const Value parts = store(part, node.label.empty() ? "number" : node.label);
        if (!is_sum) greatest_.emplace(id, Greatest{terms, part, parts});
        return numbers_->add_reduce(node.monoid, greatest ? weighed(parts, *greatest).id() : parts.id(), {part_});
    }

    // Sums of a tile by weights below its own greatest, by those below the row's. Of a tile of −inf they are NaN.
    Value weighed(const Value& parts, NodeId greatest) {
        const Value& of_tiles = greatest_.at(greatest).parts;
        const Value weight = exp(of_tiles - Value(numbers_, made_numbers_.at(greatest)));
        return select(of_tiles == -kInfinity, Graph(numbers_).constant(parts.dtype(), 0.0), parts) * weight;
    }

    // A number of each row and tile, as the numbers' graph reads it.
    Value store(NodeId id, const std::string& label) {
        std::string name = fmt::format("{}_{}_of_tile", result_.name, label);
        const auto taken = [&] {
            return std::ranges::any_of(stored_, [&](const Temporary& one) { return one.name == name; });
        };
        while (taken()) name += "_";
        const Node node = tiles_->node(id);
        tiles_->add_output({.name = name, .node = id});
        stored_.push_back({name, node.dtype, node.axes});
        return {numbers_, numbers_->add_input(name, node.dtype, node.axes, {})};
    }

    // ---- Values along the columns, in tiles ----------------------------------------------------------------------

    NodeId in_tiles(NodeId id) {
        if (const auto known = made_.find(id); known != made_.end()) return known->second;
        const NodeId result = convert(id);
        if (result >= 0) made_[id] = result;
        return result;
    }

    NodeId convert(NodeId id) {
        const Node& node = from_.node(id);
        if (const auto greatest = greatest_of_weight(id)) return weight(id, *greatest);
        if (node.kind == NodeKind::kReduce && is_of_result(id))
            return refuse(fmt::format("a reduction needs {} first", from_.describe(id)));
        switch (node.kind) {
            case NodeKind::kInput: return input(node);
            case NodeKind::kScalar:
            case NodeKind::kConst:
            case NodeKind::kExtent: return tiles_->add_copy(node, [](NodeId arg) { return arg; });
            case NodeKind::kIota:
                if (node.axis == columns_) return cast(column_, node.dtype).id();
                return tiles_->add_copy(node, [](NodeId arg) { return arg; });
            case NodeKind::kMap:
                if (const NodeId place = place_comparison(node); place >= 0) return place;
                [[fallthrough]];
            case NodeKind::kCast:
                for (const NodeId arg : node.args) {
                    if (in_tiles(arg) < 0) return -1;
                }
                return tiles_->add_copy(node, [&](NodeId arg) { return in_tiles(arg); });
            default: return refuse(fmt::format("{} is not elementwise", from_.describe(id)));
        }
    }

    // Below the greatest of its tile.
    NodeId weight(NodeId id, NodeId greatest) {
        const auto known = greatest_.find(greatest);
        if (known == greatest_.end()) return refuse(fmt::format("{} comes later", from_.describe(id)));
        return exp(Value(tiles_, known->second.over) - Value(tiles_, known->second.of_tile)).id();
    }

    NodeId input(const Node& node) {
        if (node.name == result_.name) {
            std::vector<AxisId> axes(result_.axes.begin(), std::prev(result_.axes.end()));
            axes.insert(axes.end(), {part_, within_});
            in_tiles_ = {result_.name + "_in_tiles", result_.dtype, axes, result_.name};
            return tiles_->add_input(in_tiles_.name, in_tiles_.dtype, axes, {});
        }
        const NodeId tensor = tiles_->add_copy(node, [](NodeId arg) { return arg; });
        if (!contains(node.axes, columns_)) return tensor;
        std::vector<Coord> coords;
        for (const AxisId axis : node.axes) coords.push_back(axis == columns_ ? Coord(column_) : Coord(Axis{axis}));
        return tiles_->add_index(tensor, std::move(coords));
    }

    // A column compared with a number of the row, as a class with its target: the place in the tile is, with what the
    // number is beyond the tile's first column, so that what is known of a coordinate's comparisons holds
    // (canonicalize, gpu_columns). −1 for anything else.
    NodeId place_comparison(const Node& node) {
        if (node.op != Op::kEq) return -1;
        for (const std::size_t which : {0, 1}) {
            const Node& compared = from_.node(node.args[which]);
            const NodeId number = node.args[1 - which];
            if (compared.kind != NodeKind::kIota || compared.axis != columns_ || is_along(number)) continue;
            if (is_of_result(number)) continue;
            const NodeId here = in_tiles(number);
            if (here < 0) return -1;
            const Value beyond = Value(tiles_, here) - cast(first_, compared.dtype);
            return (beyond == Graph(tiles_).iota(Axis{within_}, compared.dtype)).id();
        }
        return -1;
    }

    const GraphData& from_;
    const Temporary& result_;
    const AxisId columns_;
    const AxisId part_;
    const AxisId within_;
    std::shared_ptr<GraphData> tiles_;
    std::shared_ptr<GraphData> numbers_;
    std::vector<bool> of_result_;  // by node: whether it is computed from the product
    Value first_;                  // column of a tile
    Value column_;
    std::optional<Value> inside_;
    std::map<NodeId, NodeId> made_;  // in tiles
    std::map<NodeId, NodeId> made_numbers_;
    std::map<NodeId, Greatest> greatest_;  // by maximum
    std::vector<Temporary> stored_;
    Temporary in_tiles_;
    std::string reason_;
};

class TileSums {
  public:
    TileSums(Plan plan, const Target& target, const Runs& runs, const RunsInTiles& runs_in_tiles)
        : plan_(std::move(plan)), target_(target), runs_(runs), runs_in_tiles_(runs_in_tiles) {}

    Plan run() {
        for (std::size_t i = 0; i < plan_.products.size(); ++i) {
            const Product& product = plan_.products[i];
            if (!is_of_tiles(product)) continue;
            const auto reader = reader_of(product.result);
            if (!reader || *reader != place_of(i) + 1) continue;
            const std::string name = plan_.groups[plan_.steps[*reader].index].name;
            if (const std::string reason = part(*reader, product); !reason.empty())
                plan_.notes.push_back(fmt::format("{} reduces rows of {} itself: {}", name, product.result, reason));
        }
        return std::move(plan_);
    }

  private:
    TileOperand operand(const std::string& name) const {
        const Node tensor = declared_tensor(plan_, name);
        const Temporary* temporary = find_temporary(plan_, name);
        return {name, tensor.dtype, tensor.axes, temporary != nullptr && temporary->over.empty()};
    }

    bool is_of_tiles(const Product& product) const {
        const TileProduct tiles = {operand(product.left), operand(product.right), operand(product.result),
                                   product.contracted};
        if (product.accumulate || !no_tiles_reason(tiles, plan_.graph->axes(), plan_.division).empty()) return false;
        const std::int64_t columns = plan_.graph->axis(tiles.result.axes.back()).extent;
        return !contains(tiles.result.axes, plan_.division.blocks) && columns >= kFewestTiles * kProductTileColumns &&
               columns % kTileAccess == 0;
    }

    std::size_t place_of(std::size_t product) const {
        const auto found = std::ranges::find_if(plan_.steps, [&](const PlanStep& step) {
            return step.kind == PlanStep::Kind::kProduct && step.index == product;
        });
        return static_cast<std::size_t>(found - plan_.steps.begin());
    }

    // The kernel that reads the tensor, if it is the only step that does and reduces its columns.
    std::optional<std::size_t> reader_of(const std::string& tensor) const {
        std::optional<std::size_t> reader;
        for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
            const PlanStep& step = plan_.steps[i];
            if (step.kind == PlanStep::Kind::kProduct) {
                const Product& product = plan_.products[step.index];
                if (product.left == tensor || product.right == tensor) return std::nullopt;
            } else if (plan_.groups[step.index].graph->find_input(tensor)) {
                if (reader) return std::nullopt;
                reader = i;
            }
        }
        if (!reader) return std::nullopt;
        const GraphData& graph = *plan_.groups[plan_.steps[*reader].index].graph;
        const AxisId columns = find_temporary(plan_, tensor)->axes.back();
        const std::vector<NodeId> live = graph.live_nodes();
        const bool reduces = std::ranges::any_of(live, [&](NodeId id) {
            return graph.node(id).kind == NodeKind::kReduce && contains(graph.node(id).reduced, columns);
        });
        return reduces ? reader : std::nullopt;
    }

    // Parts the kernel at that step; "" where it did, else why not.
    std::string part(std::size_t place, const Product& product) {
        const std::size_t index = plan_.steps[place].index;
        const Group group = plan_.groups[index];
        const Temporary result = *find_temporary(plan_, product.result);
        const std::int64_t columns = plan_.graph->axis(result.axes.back()).extent;
        auto axes = std::make_shared<GraphData>(*plan_.graph);
        const std::int64_t tiles = (columns + kProductTileColumns - 1) / kProductTileColumns;
        const AxisId part = axes->add_column_axis(axes->unused_axis_name(result.name + "_tiles"), tiles);
        const AxisId within = axes->add_column_axis(axes->unused_axis_name(result.name + "_tile"), kProductTileColumns);
        Offer<Parted> parted = Parting(group, result, axes->axes(), part, within).run();
        if (!parted) return parted.reason();
        const Plan of_tiles = cheapest_plan(*parted->tiles, target_, runs_, fmt::format("{}_tile", result.name));
        if (of_tiles.steps.size() != 1) return "what is of tiles takes several kernels";
        if (!runs_in_tiles_(of_tiles.groups[0], parted->in_tiles.name))
            return "its tiles' rows do not run beside a product";
        Group numbers{group.name, parted->numbers, group.row_axes};
        if (!runs_(numbers)) return "no schedule puts its parts together";
        if (of_tiles.graph->axes().size() != axes->axes().size()) return "what is of tiles needs axes of its own";
        plan_.notes.push_back(fmt::format("{} reduces each row of {} in parts, of the columns of tiles",
                                          of_tiles.groups[0].name, result.name));
        plan_.graph = axes;
        const auto append = [](auto* to, const auto& from) { to->insert(to->end(), from.begin(), from.end()); };
        for (Temporary& one : plan_.temporaries) one.in_tiles = one.in_tiles || one.name == result.name;
        append(&plan_.temporaries, parted->stored);
        plan_.temporaries.push_back(parted->in_tiles);
        append(&plan_.temporaries, of_tiles.temporaries);
        plan_.groups[index] = of_tiles.groups[0];
        plan_.groups.push_back(std::move(numbers));
        plan_.steps.insert(plan_.steps.begin() + static_cast<std::ptrdiff_t>(place) + 1,
                           {PlanStep::Kind::kKernel, plan_.groups.size() - 1});
        return "";
    }

    Plan plan_;
    const Target& target_;
    const Runs& runs_;
    const RunsInTiles& runs_in_tiles_;
};

}  // namespace

Plan part_row_sums(Plan plan, const Target& target, const Runs& runs, const RunsInTiles& runs_in_tiles) {
    if (!target.warpgroup_products) return plan;
    return TileSums(std::move(plan), target, runs, runs_in_tiles).run();
}

bool tiles_are_read_at_once(const Plan& plan) {
    const auto name_of_tiles = [&](const std::string& result) {
        return std::ranges::find_if(plan.temporaries, [&](const Temporary& one) { return one.over == result; })->name;
    };
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
        if (plan.steps[i].kind != PlanStep::Kind::kProduct) continue;
        const std::string& result = plan.products[plan.steps[i].index].result;
        const Temporary* temporary = find_temporary(plan, result);
        if (temporary == nullptr || !temporary->in_tiles) continue;
        const bool parts_loops = std::ranges::any_of(
            plan.loops, [&](const ChunkLoop& loop) { return loop.first == i + 1 || loop.end == i + 1; });
        const bool is_read = i + 1 < plan.steps.size() && plan.steps[i + 1].kind == PlanStep::Kind::kKernel &&
                             plan.groups[plan.steps[i + 1].index].graph->find_input(name_of_tiles(result));
        if (parts_loops || !is_read) return false;
    }
    return true;
}

}  // namespace rowjit
