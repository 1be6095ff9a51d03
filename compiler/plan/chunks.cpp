#include "compiler/plan/chunks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/declined.h"
#include "base/dtype.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

// What a step reads and writes, by name.
struct StepTensors {
    std::set<std::string> reads;
    std::set<std::string> writes;
};

// Room that is worth having before anything is rounded more often than once: a chunk of this many rows.
constexpr std::int64_t kLeastRows = 256;

class Division {
  public:
    Division(Plan plan, const ChunkOptions& options) : plan_(std::move(plan)), options_(options) {}

    // What lies in blocks of columns first: to the rows' loop, its loop is one step.
    Plan run() {
        if (plan_.division.blocks >= 0) divide_large(true);
        divide_large(false);
        lend();
        return std::move(plan_);
    }

  private:
    void divide_large(bool in_blocks) {
        tensors_.clear();
        for (const PlanStep& step : plan_.steps) tensors_.push_back(tensors_of(step));
        find_large(in_blocks);
        if (large_.empty()) return;
        find_inside();
        std::string reasons;
        for (const AxisId axis : in_blocks ? std::vector{plan_.division.blocks} : candidates()) {
            const auto conflict = conflict_of(axis);
            if (!conflict) return divide(axis);
            reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", label(axis), *conflict);
        }
        if (!reasons.empty()) plan_.notes.push_back(fmt::format("products are not divided into chunks: {}", reasons));
    }

    const AxisInfo& info(AxisId axis) const { return plan_.graph->axis(axis); }
    std::string label(AxisId axis) const { return info(axis).label(); }

    StepTensors tensors_of(const PlanStep& step) const {
        StepTensors found;
        if (step.kind == PlanStep::Kind::kProduct) {
            const Product& product = plan_.products[step.index];
            found.reads = {product.left, product.right};
            found.writes = {product.result};
            return found;
        }
        const GraphData& graph = *plan_.groups[step.index].graph;
        for (const NodeId id : graph.live_nodes()) {
            if (graph.node(id).kind != NodeKind::kInput) continue;
            const Temporary* one = temporary(graph.node(id).name);
            found.reads.insert(graph.node(id).name);
            if (one != nullptr && !one->over.empty()) found.reads.insert(one->over);  // of a product in tiles, it
        }
        for (const OutputInfo& output : graph.outputs()) found.writes.insert(output.name);
        return found;
    }

    const Temporary* temporary(const std::string& name) const { return find_temporary(plan_, name); }

    // Of an input or an output.
    bool is_view(const Temporary& one) const { return !one.over.empty() && temporary(one.over) == nullptr; }

    std::vector<AxisId> axes_of(const std::string& tensor) const { return declared(tensor).axes; }

    // Temporaries of products that grow with the rows of a launch: those in blocks of columns, or the others.
    void find_large(bool in_blocks) {
        large_.clear();
        for (const Product& product : plan_.products) {
            for (const std::string& name : {product.left, product.right, product.result}) {
                const Temporary* one = temporary(name);
                if (one == nullptr || one->in_tiles || is_view(*one) ||
                    contains(one->axes, plan_.division.blocks) != in_blocks)
                    continue;
                const bool grows = std::any_of(one->axes.begin(), one->axes.end(), [&](AxisId axis) {
                    return info(axis).is_row && info(axis).extent == kRuntimeExtent;
                });
                if (grows) large_.insert(name);
            }
        }
    }

    // Steps that touch a large temporary, and all between them.
    void find_inside() {
        const auto touches = [&](const StepTensors& step) {
            return std::any_of(large_.begin(), large_.end(), [&](const std::string& name) {
                return step.reads.contains(name) || step.writes.contains(name);
            });
        };
        std::vector<bool> after(tensors_.size());  // depends on a step that touches, or does itself
        std::vector<bool> before(tensors_.size());
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            after[i] = touches(tensors_[i]);
            for (std::size_t j = 0; j < i; ++j) after[i] = after[i] || (after[j] && depends(i, j));
        }
        for (std::size_t i = tensors_.size(); i-- > 0;) {
            before[i] = touches(tensors_[i]);
            for (std::size_t j = i + 1; j < tensors_.size(); ++j) before[i] = before[i] || (before[j] && depends(j, i));
        }
        inside_.clear();
        for (std::size_t i = 0; i < tensors_.size(); ++i) inside_.push_back(after[i] && before[i]);
        for (const ChunkLoop& loop : plan_.loops) {
            const auto first = after.begin() + static_cast<std::ptrdiff_t>(loop.first);
            const auto end = after.begin() + static_cast<std::ptrdiff_t>(loop.end);
            if (std::find(first, end, true) != end) std::fill(first, end, true);
        }
        after_ = after;
    }

    bool depends(std::size_t later, std::size_t earlier) const {
        return std::any_of(tensors_[earlier].writes.begin(), tensors_[earlier].writes.end(),
                           [&](const std::string& name) { return tensors_[later].reads.contains(name); });
    }

    // Axes along which all large temporaries lie, outermost first.
    std::vector<AxisId> candidates() const {
        std::vector<AxisId> found;
        for (const AxisId axis : axes_of(*large_.begin())) {
            const bool everywhere = std::all_of(large_.begin(), large_.end(),
                                                [&](const std::string& name) { return contains(axes_of(name), axis); });
            if (everywhere && info(axis).is_given()) found.push_back(axis);
        }
        return found;
    }

    // Why the steps inside cannot see a block of positions of `axis` at a time; nothing where they can.
    std::optional<std::string> conflict_of(AxisId axis) const {
        std::set<std::string> summed;  // over the axis, by steps inside
        for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
            if (!inside_[i]) continue;
            const PlanStep& step = plan_.steps[i];
            for (const ChunkLoop& loop : plan_.loops) {
                if (i >= loop.first && i < loop.end) return step_name(step) + " is of chunks already";
            }
            for (const std::string& name : tensors_[i].reads) {
                if (summed.contains(name)) return fmt::format("{} needs all rows of {}", step_name(step), name);
            }
            if (step.kind == PlanStep::Kind::kProduct) {
                const Product& product = plan_.products[step.index];
                if (contains(product.contracted, axis)) {
                    summed.insert(product.result);
                } else if (!contains(axes_of(product.result), axis)) {
                    return fmt::format("{} does not lie along it", product.name);
                }
                continue;
            }
            const Group& group = plan_.groups[step.index];
            if (auto conflict = kernel_conflict(group, axis)) return conflict;
            for (const OutputInfo& output : group.graph->outputs()) {
                if (output.slots >= 0) summed.insert(output.name);
            }
        }
        return std::nullopt;
    }

    std::string step_name(const PlanStep& step) const {
        return step.kind == PlanStep::Kind::kProduct ? plan_.products[step.index].name
                                                     : "kernel " + plan_.groups[step.index].name;
    }

    // Whether all that is asked of an iota is that it is not below zero: by this a cotangent is given an axis, and it
    // holds at every position.
    static bool spreads(const GraphData& graph, NodeId iota) {
        const std::vector<NodeId> live = graph.live_nodes();
        return std::all_of(live.begin(), live.end(), [&](NodeId id) {
            const Node& user = graph.node(id);
            if (std::find(user.args.begin(), user.args.end(), iota) == user.args.end()) return true;
            if (user.kind != NodeKind::kMap || user.op != Op::kGe || user.args[0] != iota) return false;
            const Node& bound = graph.node(user.args[1]);
            return bound.kind == NodeKind::kConst && bound.value == 0;
        });
    }

    static std::optional<std::string> kernel_conflict(const Group& group, AxisId axis) {
        const GraphData& graph = *group.graph;
        const std::string name = "kernel " + group.name;
        if (!contains(group.row_axes, axis)) return name + " does not lie along it";
        for (const NodeId id : graph.live_nodes()) {
            const Node& node = graph.node(id);
            const bool counts = node.kind == NodeKind::kExtent || (node.kind == NodeKind::kIota && !spreads(graph, id));
            if (counts && node.axis == axis) return name + " computes with its positions";
            if (node.kind == NodeKind::kReduce && contains(node.reduced, axis)) return name + " reduces it";
            if (node.kind == NodeKind::kSearch && contains(graph.node(node.args[0]).axes, axis))
                return name + " searches along it";
            if (node.orders()) return name + " puts ids in order";
            for (const AxisId other : node.axes) {
                if (contains(graph.axis(other).follows, axis)) return name + " reads beyond it";
            }
            for (std::size_t i = 0; i < node.coords.size(); ++i) {
                const bool itself = node.coords[i].is_axis(Axis{axis});
                const bool along = graph.node(node.args[0]).axes[i] == axis;
                const std::vector<Axis> mentioned = node.coords[i].axes();
                const bool mentions =
                    std::any_of(mentioned.begin(), mentioned.end(), [&](Axis a) { return a.id == axis; });
                if (along != itself || (mentions && !itself)) return name + " reads other rows";
            }
        }
        return std::nullopt;
    }

    // ---- The divided plan ----------------------------------------------------------------------------------------

    void divide(AxisId axis) {
        ChunkLoop loop{.axis = axis};
        std::vector<PlanStep> before;
        std::vector<PlanStep> inside;
        std::vector<PlanStep> after;
        for (std::size_t i = 0; i < plan_.steps.size(); ++i)
            (inside_[i] ? inside : after_[i] ? after : before).push_back(plan_.steps[i]);
        for (const Temporary& one : plan_.temporaries) {
            if (contains(one.axes, axis) && !is_view(one) && only_inside(one.name)) loop.within.push_back(one.name);
        }
        for (const std::string& name : loop.within) {
            if (axis != plan_.division.blocks && is_of_numbers(name)) loop.beside.push_back(name);
        }
        gather_split_rows(&loop, &inside);
        std::vector<PlanStep> rounding = accumulate(axis, inside);
        std::vector<PlanStep> divided = std::move(before);
        loop.first = divided.size();
        loop.end = loop.first + inside.size();
        for (const auto* part : {&inside, &rounding, &after}) divided.insert(divided.end(), part->begin(), part->end());
        // An earlier loop's steps stay together.
        for (ChunkLoop& other : plan_.loops) {
            const PlanStep& step = plan_.steps[other.first];
            const auto moved = std::find_if(divided.begin(), divided.end(), [&](const PlanStep& one) {
                return one.kind == step.kind && one.index == step.index;
            });
            other.end -= other.first;
            other.first = static_cast<std::size_t>(moved - divided.begin());
            other.end += other.first;
        }
        plan_.steps = std::move(divided);
        const auto behind = std::find_if(plan_.loops.begin(), plan_.loops.end(),
                                         [&](const ChunkLoop& other) { return other.first > loop.first; });
        plan_.loops.insert(behind, std::move(loop));
    }

    bool is_of_numbers(const std::string& tensor) const { return columns_of(axes_of(tensor)) == 1; }

    // A chunk's rows of an argument lie apart where other rows stand outside the divided axis, as the halves of pairs
    // do. A product of them is several, and of one that is added up each reads and writes all of the accumulator. So
    // the rows, which are narrow beside the loop's large temporaries, are copied together, and for its other products
    // too.
    void gather_split_rows(ChunkLoop* loop, std::vector<PlanStep>* inside) {
        const auto is_product = [](const PlanStep& step) { return step.kind == PlanStep::Kind::kProduct; };
        const bool adds_several = std::any_of(inside->begin(), inside->end(), [&](const PlanStep& step) {
            if (!is_product(step)) return false;
            const Product& product = plan_.products[step.index];
            return contains(product.contracted, loop->axis) &&
                   (is_split_argument(product.left, loop->axis) || is_split_argument(product.right, loop->axis));
        });
        if (!adds_several) return;
        std::map<std::string, std::string> copies;
        std::vector<PlanStep> gathered;
        const auto copy_of = [&](const std::string& argument) {
            const auto [copy, first] = copies.try_emplace(argument, argument + "_of_chunk");
            if (first) {
                plan_.temporaries.push_back({copy->second, declared(argument).dtype, axes_of(argument)});
                loop->within.push_back(copy->second);
                loop->beside.push_back(copy->second);
            }
            return std::pair(copy->second, first);
        };
        for (const PlanStep& step : *inside) {
            if (!is_product(step)) {
                gathered.push_back(step);
                continue;
            }
            Product& product = plan_.products[step.index];
            for (std::string* operand : {&product.left, &product.right}) {
                if (!is_split_argument(*operand, loop->axis)) continue;
                const auto [copy, first] = copy_of(*operand);
                if (first) gathered.push_back(copying_step(*operand, copy));
                *operand = copy;
            }
            gathered.push_back(step);
            if (product.accumulate || !is_split_argument(product.result, loop->axis)) continue;
            const std::string result = std::exchange(product.result, copy_of(product.result).first);
            gathered.push_back(copying_step(product.result, result));
        }
        *inside = std::move(gathered);
    }

    bool is_split_argument(const std::string& tensor, AxisId axis) const {
        if (temporary(tensor) != nullptr) return false;
        const std::vector<AxisId> axes = axes_of(tensor);
        const auto divided = std::find(axes.begin(), axes.end(), axis);
        return divided != axes.end() &&
               std::any_of(axes.begin(), divided, [&](AxisId outer) { return info(outer).extent != 1; });
    }

    Node declared(const std::string& tensor) const { return declared_tensor(plan_, tensor); }

    PlanStep copying_step(const std::string& from, const std::string& to) {
        const Node source = declared(from);
        auto graph = std::make_shared<GraphData>(plan_.graph->axes());
        const NodeId value = graph->add_input(from, source.dtype, source.axes, source.column_strides);
        graph->add_output({to, value, "", false, declared(to).column_strides});
        plan_.groups.push_back({"rj_" + to, graph, graph->row_axes(source)});
        return {PlanStep::Kind::kKernel, plan_.groups.size() - 1};
    }

    // Of several outputs that can lend memory, the largest.
    void lend() {
        if (plan_.loops.size() == 1) lend_rounded();
        if (plan_.loops.size() == 2 && plan_.loops.back().axis == plan_.division.blocks) lend_unwritten();
    }

    // An output that an accumulator is rounded to, behind the loop.
    void lend_rounded() {
        double most = 0;
        ChunkLoop& loop = plan_.loops.front();
        for (const Product& product : plan_.products) {
            if (product.accumulator.empty() || !is_lendable(product.result)) continue;
            const double bytes =
                columns_of(axes_of(product.result)) * static_cast<double>(size_bytes(dtype_of(product)));
            if (bytes <= most) continue;
            most = bytes;
            loop.lender = product.result;
            loop.lender_is_rounded = true;
        }
    }

    // An output of known size without gaps, which nobody reads before it is written.
    bool is_lendable(const std::string& tensor) const {
        const auto& outputs = plan_.graph->outputs();
        const auto output =
            std::find_if(outputs.begin(), outputs.end(), [&](const OutputInfo& one) { return one.name == tensor; });
        if (output == outputs.end() || output->accumulate || !output->alias.empty()) return false;
        const std::vector<AxisId> axes = axes_of(tensor);
        return output->column_strides.empty() &&
               std::none_of(axes.begin(), axes.end(), [&](AxisId axis) { return info(axis).is_row; });
    }

    // An output that the last loop writes, a block of columns after the other: memory for an earlier loop, and what it
    // has not written yet for itself.
    void lend_unwritten() {
        double most = 0;
        const ChunkLoop& last = plan_.loops.back();
        for (std::size_t i = last.first; i < last.end; ++i) {
            if (plan_.steps[i].kind != PlanStep::Kind::kProduct) continue;
            const Product& product = plan_.products[plan_.steps[i].index];
            const Temporary* result = temporary(product.result);
            if (result == nullptr || !is_view(*result)) continue;
            double bytes = static_cast<double>(size_bytes(result->dtype));
            for (const AxisId axis : result->axes)
                bytes *= static_cast<double>(std::max(info(axis).extent, info(axis).blocks));
            if (bytes <= most) continue;
            most = bytes;
            plan_.loops.front().lender = result->over;
            plan_.loops.back().lender = result->over;
            plan_.loops.back().writes_lender = true;
        }
    }

    bool only_inside(const std::string& name) const {
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            if (!inside_[i] && (tensors_[i].reads.contains(name) || tensors_[i].writes.contains(name))) return false;
        }
        return true;
    }

    // Narrow results of products over the divided rows get an f32 accumulator, rounded by a kernel behind the loop.
    std::vector<PlanStep> accumulate(AxisId axis, const std::vector<PlanStep>& inside) {
        std::vector<PlanStep> rounding;
        const bool narrow = options_.round_each_chunk || !has_room(axis, inside);
        std::vector<std::string> accumulated;
        for (const PlanStep& step : inside) {
            if (step.kind != PlanStep::Kind::kProduct) continue;
            Product& product = plan_.products[step.index];
            const bool is_wide = dtype_of(product) == accumulator_dtype(dtype_of(product));
            if (!contains(product.contracted, axis)) continue;
            accumulated.push_back(fmt::format("{} in {}", product.name,
                                              narrow || is_wide ? name(dtype_of(product)) : std::string_view("f32")));
            if (narrow || is_wide) continue;
            product.accumulator = fmt::format("sum_{}", product.result);
            plan_.temporaries.push_back({product.accumulator, Dtype::kF32, axes_of(product.result)});
            if (can_share(product)) product.rounded_rows = add_rounded_rows(product);
            rounding.push_back({PlanStep::Kind::kKernel, plan_.groups.size(), step.index});
            plan_.groups.push_back(rounding_group(product));
        }
        plan_.lacks_room = !options_.round_each_chunk && narrow && !accumulated.empty();
        plan_.notes.push_back(fmt::format("chunks of {}: {} steps, so that {} are of one chunk{}{}", label(axis),
                                          inside.size(), fmt::join(large_, ", "),
                                          accumulated.empty() ? "" : "; added up: ", fmt::join(accumulated, ", ")));
        if (plan_.lacks_room) {
            plan_.notes.push_back(
                fmt::format("rounded after every chunk: {} bytes leave no room for f32 accumulators beside {} rows",
                            options_.workspace_limit_bytes, kLeastRows));
        }
        return rounding;
    }

    Dtype dtype_of(const Product& product) const { return declared(product.result).dtype; }

    double columns_of(const std::vector<AxisId>& axes) const {
        double count = 1;
        for (const AxisId id : axes) count *= info(id).is_row ? 1.0 : static_cast<double>(info(id).extent);
        return count;
    }

    // Whether the limit has room for what of f32 accumulators is in no result's memory, and some rows of what is
    // divided.
    bool has_room(AxisId axis, const std::vector<PlanStep>& inside) const {
        if (options_.workspace_limit_bytes == 0) return true;
        double bytes = 0;
        for (const PlanStep& step : inside) {
            if (step.kind != PlanStep::Kind::kProduct) continue;
            const Product& product = plan_.products[step.index];
            const bool is_wide = dtype_of(product) == accumulator_dtype(dtype_of(product));
            if (!contains(product.contracted, axis) || is_wide) continue;
            const double sums = 4 * columns_of(axes_of(product.result));
            bytes += can_share(product) ? sums / 2 : sums;
        }
        for (const std::string& name : large_) {
            const Temporary& one = *temporary(name);
            if (one.over.empty())
                bytes += kLeastRows * columns_of(one.axes) * static_cast<double>(size_bytes(one.dtype));
        }
        return bytes <= static_cast<double>(options_.workspace_limit_bytes);
    }

    // Rows of an accumulator are a product's m: what a part of them needs of the product is a product again. Where
    // gradients are made in parts of their columns, an output's memory is for those.
    bool can_share(const Product& product) const {
        const std::vector<AxisId> left = axes_of(product.left);
        const auto kept =
            std::count_if(left.begin(), left.end(), [&](AxisId id) { return !contains(product.contracted, id); });
        return plan_.division.blocks < 0 && kept == 1 && axes_of(product.result).size() > 1 &&
               is_lendable(product.result);
    }

    AxisId add_rounded_rows(const Product& product) {
        auto graph = std::make_shared<GraphData>(*plan_.graph);
        const AxisId rows = graph->add_blocks_axis(fmt::format("rj_rows_of_{}", product.result),
                                                   info(axes_of(product.result)[0]).extent);
        plan_.graph = std::move(graph);
        return rows;
    }

    // The first column axis becomes a row axis, so that threads find rows to divide.
    Group rounding_group(const Product& product) {
        std::vector<AxisInfo> axes = plan_.graph->axes();
        std::vector<AxisId> seen = axes_of(product.result);
        const bool has_rows = axes[static_cast<std::size_t>(seen[0])].is_row;
        std::string sum = product.accumulator;
        std::string result = product.result;
        if (product.rounded_rows >= 0) {
            seen[0] = product.rounded_rows;
            sum = see(sum, Dtype::kF32, seen);
            result = see(result, dtype_of(product), seen);
        } else if (!has_rows && seen.size() > 1) {
            axes[static_cast<std::size_t>(seen[0])].is_row = true;
            axes[static_cast<std::size_t>(seen[0])].is_promoted = true;
        }
        Group group;
        auto graph = std::make_shared<GraphData>(std::move(axes));
        const NodeId rounded = graph->add_cast(graph->add_input(sum, Dtype::kF32, seen, {}), dtype_of(product));
        graph->add_output({result, rounded, "", product.accumulate, {}});
        group.row_axes = graph->row_axes(graph->node(rounded));
        group.name = "rj_round_" + product.result;
        group.graph = std::move(graph);
        return group;
    }

    // A tensor with other axes.
    std::string see(const std::string& tensor, Dtype dtype, const std::vector<AxisId>& axes) {
        plan_.temporaries.push_back({tensor + "_in_rows", dtype, axes, tensor});
        return plan_.temporaries.back().name;
    }

    Plan plan_;
    const ChunkOptions& options_;
    std::vector<StepTensors> tensors_;  // by step
    std::set<std::string> large_;
    std::vector<bool> inside_;  // by step
    std::vector<bool> after_;   // by step: those inside and what depends on them
};

}  // namespace

Plan divide_into_chunks(Plan plan, const ChunkOptions& options) { return Division(std::move(plan), options).run(); }

}  // namespace rowjit
