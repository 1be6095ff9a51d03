#include "compiler/kernel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "base/floor_div.h"

namespace rowjit {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
    using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

class Printer {
  public:
    explicit Printer(const Kernel& kernel) : kernel_(kernel) {}

    std::string run() {
        line(0, fmt::format("kernel {}: {}{}{}", kernel_.name, print(kernel_.schedule),
                            kernel_.neighbours.beside  ? ", runs beside those before it"
                            : kernel_.neighbours.waits ? ", begins while the one before it ends"
                                                       : "",
                            kernel_.neighbours.leads ? ", lets the next begin" : ""));
        for (const KernelTensor& tensor : kernel_.tensors) {
            line(1, fmt::format("tensor {}: {}[{}]{}{}{}", tensor.name, name(tensor.dtype), axes(tensor.axes),
                                tensor.read ? " read" : "", tensor.written ? " written" : "",
                                tensor.aliased ? " aliased" : ""));
        }
        for (const KernelScalar& scalar : kernel_.scalars)
            line(1, fmt::format("scalar {}: {}", scalar.name, name(scalar.dtype)));
        if (kernel_.order) return order(*kernel_.order);
        block("before the rows", kernel_.before);
        const std::string lanes = kernel_.lanes_axis < 0 ? "" : fmt::format(" in {} lanes", kernel_.row_lanes());
        const std::string walk =
            kernel_.walk ? fmt::format(", one after the other from {} before", kernel_.walk->warm_rows) : "";
        const std::string outer = kernel_.outer.empty() ? "" : fmt::format(", of each [{}]", axes(kernel_.outer));
        const std::string order = kernel_.last_first ? ", the last first" : "";
        block(fmt::format("for each row [{}]{}{}{}{}", axes(kernel_.inner_axes()), lanes, walk, outer, order),
              kernel_.body);
        block("after the rows", kernel_.after);
        return std::move(text_);
    }

  private:
    std::string order(const OrderPass& pass) {
        const auto tensor = [&](int index) { return kernel_.tensors[static_cast<std::size_t>(index)].name; };
        line(1, fmt::format("{} {} from element {} by bits {} … {} of a row of {}{}",
                            pass.result < 0 ? "count" : "order", tensor(pass.ids), pass.offset, pass.digit.shift,
                            pass.digit.shift + pass.digit.bits - 1, kernel_.axis(pass.rows).label(),
                            pass.before < 0 ? "" : ", as they come in " + tensor(pass.before)));
        return std::move(text_);
    }

    void block(const std::string& title, const Block& block) {
        if (block.empty()) return;
        line(1, title);
        for (const Stmt& stmt : block) statement(stmt);
    }

    void statement(const Stmt& stmt) {
        std::visit(
            Overloaded{
                [&](const Inst& inst) { line(2, instruction(inst)); },
                [&](const ColumnLoop& loop) {
                    static constexpr std::array<std::string_view, 3> kParts = {"", " whole vectors", " ends"};
                    line(2, fmt::format("columns [{}] of {}{}: {} x {} threads x {} lanes{}{}{}{}", axes(loop.axes),
                                        loop.columns, kParts[static_cast<std::size_t>(loop.part)], loop.iterations,
                                        kernel_.schedule.threads_per_row, loop.vector,
                                        loop.unrolled ? ", unrolled" : "", loop.backward ? ", backward" : "",
                                        loop.tail == ColumnLoop::Tail::kNone ? "" : ", tail",
                                        kernel_.refills && !loop.refills.empty() ? ", refills its stage" : ""));
                    for (const Inst& inst : loop.body) line(3, instruction(inst));
                },
                [&](const RowsLoop& loop) {
                    const std::string range =
                        loop.begin < 0 ? "" : fmt::format(" from %{} to %{}", loop.begin, loop.end);
                    line(2, fmt::format("rows [{}]{}", axes(loop.axes), range));
                    for (const Inst& inst : loop.body) line(3, instruction(inst));
                },
                [&](const AllReduce& reduce) { line(2, all_reduce(reduce)); },
                [&](const JoinRows& join) { line(2, fmt::format("join rows of {}", labels(join.carried))); },
                [&](const Barrier&) { line(2, "barrier"); },
                [&](const OpenSteps& steps) {
                    line(2,
                         fmt::format("steps of %{} from %{}, at most {}", steps.state, steps.start, steps.most_steps));
                },
                [&](const CloseSteps& steps) {
                    line(2, fmt::format("%{} = close steps with %{}", steps.result, steps.next));
                    for (const CloseSteps::OfLast& last : steps.of_last)
                        line(3, fmt::format("%{} {}: {} = %{} of the last", last.result, last.label, name(last.dtype),
                                            last.value));
                },
            },
            stmt.node);
    }

    std::string labels(const std::vector<int>& carried) const {
        std::vector<std::string> names;
        for (const int index : carried) names.push_back(kernel_.carried[static_cast<std::size_t>(index)].label);
        return fmt::format("{}", fmt::join(names, ", "));
    }

    std::string all_reduce(const AllReduce& reduce) const {
        std::vector<std::string> parts;
        std::vector<std::string> results;
        for (const int index : reduce.accumulators) {
            const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
            parts.push_back(fmt::format("{}{} {}", accumulator.compensated ? "compensated " : "",
                                        name(accumulator.monoid), accumulator.label));
        }
        for (const ValueId result : reduce.results) results.push_back(fmt::format("%{}", result));
        return fmt::format("{} = all-reduce({})", fmt::join(results, ", "), fmt::join(parts, ", "));
    }

    std::string instruction(const Inst& inst) const {
        std::vector<std::string> operands;
        for (const ValueId operand : inst.operands) operands.push_back(fmt::format("%{}", operand));
        const std::string joined = fmt::format("{}", fmt::join(operands, ", "));
        std::string what = [&]() -> std::string {
            switch (inst.kind) {
                case InstKind::kConst: return fmt::format("{}", inst.value);
                case InstKind::kScalar:
                    return fmt::format("scalar {}", kernel_.scalars[static_cast<std::size_t>(inst.index)].name);
                case InstKind::kExtent: return fmt::format("extent {}", kernel_.axis(inst.axis).label());
                case InstKind::kCoord: return fmt::format("coordinate {}", kernel_.axis(inst.axis).label());
                case InstKind::kMap: return fmt::format("{}({})", info(inst.op).name, joined);
                case InstKind::kCast: return fmt::format("cast({})", joined);
                case InstKind::kLoad: return fmt::format("load {}{}", place(inst), turned(inst));
                case InstKind::kStore:
                    return fmt::format("store{} {} <- {}",
                                       inst.accumulate ? fmt::format("-{}", info(inst.op).name) : "", place(inst),
                                       joined);
                case InstKind::kAccumulate:
                    return fmt::format("{} += {}", kernel_.accumulators[static_cast<std::size_t>(inst.index)].label,
                                       joined);
                case InstKind::kKeep:
                    return fmt::format("keep {} <- {}", kernel_.slots[static_cast<std::size_t>(inst.index)].label,
                                       joined);
                case InstKind::kKept:
                    return fmt::format("kept {}{}{}", kernel_.slots[static_cast<std::size_t>(inst.index)].label,
                                       turned(inst),
                                       inst.rows_back > 0 ? fmt::format(" of {} rows back", inst.rows_back) : "");
                case InstKind::kSearch:
                    return fmt::format("search {} for {}", kernel_.tensors[static_cast<std::size_t>(inst.index)].name,
                                       joined);
                case InstKind::kSumWhere:
                    return fmt::format("sum of {} where {} is {}",
                                       kernel_.tensors[static_cast<std::size_t>(inst.index)].name,
                                       kernel_.tensors[static_cast<std::size_t>(inst.places)].name, joined);
                case InstKind::kCarry:
                    return fmt::format("carry-{} {} <- {}",
                                       name(kernel_.carried[static_cast<std::size_t>(inst.index)].monoid),
                                       labels({inst.index}), joined);
                case InstKind::kCarried:
                    return fmt::format("carried {}{}", labels({inst.index}),
                                       inst.component > 0 ? fmt::format(" component {}", inst.component) : "");
            }
            RJ_CHECK(false, "instruction kind {}", static_cast<int>(inst.kind));
        }();
        if (inst.id < 0) return what;
        static constexpr std::array<std::string_view, 3> kPacking = {"", " rounded", " packed"};
        return fmt::format("%{} {}: {}{} = {}", inst.id, inst.label, name(inst.dtype),
                           kPacking[static_cast<std::size_t>(inst.packing)], what);
    }

    static std::string turned(const Inst& inst) { return inst.turn > 0 ? fmt::format(" turned by {}", inst.turn) : ""; }

    std::string place(const Inst& inst) const {
        std::vector<std::string> coords;
        for (const Coord& coord : inst.coords) {
            coords.push_back(coord.print([&](Axis axis) { return kernel_.axis(axis.id).label(); },
                                         [](std::int32_t value) { return fmt::format("%{}", value); }));
        }
        static constexpr std::array<std::string_view, 5> kAccess = {"", " uniform", " splat", " vector", " gather"};
        return fmt::format("{}[{}]{}", kernel_.tensors[static_cast<std::size_t>(inst.index)].name,
                           fmt::join(coords, ", "),
                           inst.access.run > 0      ? fmt::format(" of a run of {}", inst.access.run)
                           : inst.access.in_periods ? " in periods"
                           : inst.access.in_a_row   ? " in a row"
                                                    : kAccess[static_cast<std::size_t>(inst.access.kind)]);
    }

    std::string axes(const std::vector<AxisId>& ids) const {
        std::vector<std::string> labels;
        for (const AxisId id : ids) labels.push_back(kernel_.axis(id).label());
        return fmt::format("{}", fmt::join(labels, ", "));
    }

    void line(int indent, const std::string& content) {
        text_ += std::string(static_cast<std::size_t>(indent) * 2, ' ') + content + "\n";
    }

    const Kernel& kernel_;
    std::string text_;
};

}  // namespace

bool Kernel::by_row(const Inst& access) const {
    return std::any_of(access.coords.begin(), access.coords.end(), [&](const Coord& coord) {
        const std::vector<Axis> axes = coord.axes();
        return !coord.data_nodes().empty() || std::any_of(axes.begin(), axes.end(), [&](Axis used) {
            return axis(used.id).is_row && !contains(apart, used.id) && !contains(outer, used.id);
        });
    });
}

namespace {

bool differs_along(const Inst& inst, AxisId along, const std::set<ValueId>& values) {
    bool differs = inst.kind == InstKind::kCoord && inst.axis == along;
    for (const Coord& coord : inst.coords) {
        const std::vector<Axis> used = coord.axes();
        differs = differs || std::any_of(used.begin(), used.end(), [&](Axis axis) { return axis.id == along; });
    }
    each_use(inst, [&](ValueId value) { differs = differs || values.contains(value); });
    return differs;
}

}  // namespace

bool Kernel::differs_by_lane(const Inst& inst, const std::set<ValueId>& lane_values) const {
    return differs_along(inst, lanes_axis, lane_values);
}

std::set<ValueId> Kernel::values_along(AxisId axis) const {
    std::set<ValueId> values;
    const auto note = [&](const Inst& inst) {
        if (inst.id >= 0 && differs_along(inst, axis, values)) values.insert(inst.id);
    };
    for (const Stmt& stmt : body) {
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) note(*inst);
        if (const auto* rows = std::get_if<RowsLoop>(&stmt.node)) std::ranges::for_each(rows->body, note);
        if (const auto* reduce = std::get_if<AllReduce>(&stmt.node))
            values.insert(reduce->results.begin(), reduce->results.end());
    }
    return values;
}

std::int64_t Kernel::rows_for_run() const {
    constexpr std::int64_t kBlocks = 1536;
    return kBlocks * schedule.rows_per_block;
}

std::optional<std::int64_t> Kernel::known_stride(const KernelArgument& stride) const {
    const KernelTensor& tensor = tensors[static_cast<std::size_t>(stride.index)];
    std::size_t promoted = 0;
    for (const AxisId id : tensor.axes) {
        if (!axis(id).is_promoted || promoted == tensor.promoted_strides.size()) continue;
        const std::int64_t elements = tensor.promoted_strides[promoted++];
        if (id == stride.axis) return elements;
    }
    return std::nullopt;
}

std::vector<AxisId> Kernel::inner_axes() const {
    std::vector<AxisId> inner = row_axes;
    std::erase_if(inner, [&](AxisId axis) { return contains(outer, axis); });
    return inner;
}

std::int64_t Kernel::positions_apart() const {
    std::int64_t positions = 1;
    for (const AxisId id : apart) positions *= axis(id).extent;
    return positions;
}

int lanes_across(const Kernel& kernel) {
    const AxisId innermost = kernel.row_axes.back();
    int narrowest = 4;
    for (const KernelTensor& tensor : kernel.tensors) {
        if (kernel.in_tiles && size_bytes(tensor.dtype) == 1) continue;  // whose lanes would be four registers' numbers
        if (contains(tensor.axes, innermost))
            narrowest = std::min(narrowest, static_cast<int>(size_bytes(tensor.dtype)));
    }
    if (kernel.in_tiles) return kMostLanesAcross / narrowest;
    const auto beside = static_cast<std::uint64_t>(kernel.axis(innermost).extent);
    return static_cast<int>(std::min<std::uint64_t>(std::bit_floor(beside), kMostLanesAcross / narrowest));
}

std::int64_t Kernel::blocks_of_part() const {
    return apart.empty() ? 1 : ceil_div(positions_apart(), schedule.rows_per_block);
}

std::int64_t Kernel::rows_of_place() const { return ceil_div(schedule.rows_per_block, positions_apart()); }

bool Kernel::can_fetch(const Inst& inst) const {
    if (inst.kind != InstKind::kLoad || inst.turn > 0) return false;
    const KernelTensor& tensor = tensors[static_cast<std::size_t>(inst.index)];
    if (tensor.written && !tensor.aliased) return false;
    const auto of_data = [](const Coord& coord) { return !coord.data_nodes().empty(); };
    return std::none_of(inst.coords.begin(), inst.coords.end(), of_data) && by_row(inst);
}

bool Kernel::may_refill() const {
    return std::ranges::any_of(body, [](const Stmt& stmt) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        return loop != nullptr && !loop->refills.empty();
    });
}

bool Kernel::shares_rounds(const ColumnLoop& loop) const { return cluster_blocks() > 1 && loop.vector > 1; }

std::int64_t Kernel::places(const ColumnLoop& loop) const {
    if (loop.part == ColumnLoop::Part::kEnds) return std::int64_t{2} * (schedule.vector - 1);
    return loop.columns / loop.vector * loop.vector;
}

std::int64_t Kernel::whole_iterations(const ColumnLoop& loop) const {
    if (loop.part == ColumnLoop::Part::kEnds) return 0;
    const bool peeled = loop.part == ColumnLoop::Part::kWhole;  // the head may be a column short of a vector
    const std::int64_t certain = peeled ? std::max<std::int64_t>(0, loop.columns - (loop.vector - 1)) : loop.columns;
    const std::int64_t of_row = certain / (std::int64_t{loop.vector} * schedule.threads_per_row);
    if (shares_rounds(loop)) return std::min(of_row / schedule.column_blocks, loop.iterations);
    return std::clamp(of_row - (schedule.column_blocks - 1) * loop.iterations, std::int64_t{0}, loop.iterations);
}

std::string print(const Kernel& kernel) { return Printer(kernel).run(); }

bool is_reserved_word(std::string_view text) {
    // Keywords that make plausible labels, and the emitters' own variables.
    static constexpr std::string_view kWords =
        " alignas and auto bool break case char class const continue default delete do double else enum "
        "export extern false float for friend goto if inline int long main new not or private public "
        "register return short signed sizeof static struct switch template this throw true try typedef "
        "typename union unsigned using virtual void while xor block c column grid i l lane pair row "
        "row_block rows step t thread turn warp ahead fetch first first_phase more stage place slot live "
        "column_block p part shared waits adds beside row_blocks waiting bits here walked unit units "
        "outer_row part_block part_blocks places run run_places run_index run_place first_position end_position "
        "back back_outer segment segment_stop first_segment last_segment begin_of end_of finish comes coming "
        "fetch_rest ";
    return kWords.find(fmt::format(" {} ", text)) != std::string_view::npos || text.starts_with("rj_");
}

}  // namespace rowjit
