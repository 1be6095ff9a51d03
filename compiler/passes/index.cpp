// How loads and stores meet memory. Columns are static and finite, so the pass does not prove that a coordinate is
// contiguous: it evaluates the offset of every lane and looks. A row of 262,144 columns costs a few milliseconds, once
// per compile, and any quasi-affine coordinate (rotary partner, packed halves, groups) is judged exactly.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/check.h"
#include "compiler/passes/passes.h"

namespace rowjit {
namespace {

constexpr int kAccessBytes = 16;

// Where a coordinate is at a column along `axes`, of the first row and where data are 0: what those add is the same for
// all lanes.
std::int64_t position_at(const Kernel& kernel, const Coord& coord, const std::vector<AxisId>& axes,
                         std::int64_t column) {
    const auto at = [&](Axis axis) -> std::int64_t {
        std::int64_t rest = column;
        for (std::size_t i = axes.size(); i-- > 0;) {
            const std::int64_t extent = kernel.axis(axes[i]).extent;
            if (axes[i] == axis.id) return rest % extent;
            rest /= extent;
        }
        return 0;
    };
    return coord.evaluate(at, [](std::int32_t) -> std::int64_t { return 0; });
}

class Indexer {
  public:
    Indexer(Kernel* kernel, bool aligned) : kernel_(*kernel), aligned_(aligned) {
        if (kernel_.lanes_axis >= 0) lane_values_ = kernel_.lane_values();
    }

    void run() {
        for (Block* block : {&kernel_.before, &kernel_.body, &kernel_.after}) index_block(block);
    }

  private:
    void index_block(Block* block) {
        for (Stmt& stmt : *block) {
            if (auto* inst = std::get_if<Inst>(&stmt.node)) {
                if (touches_memory(*inst)) index_by_lane(inst, Access::Kind::kUniform);
            } else if (auto* loop = std::get_if<ColumnLoop>(&stmt.node)) {
                index_loop(loop);
            } else if (auto* rows = std::get_if<RowsLoop>(&stmt.node)) {
                for (Inst& inst : rows->body) {
                    if (touches_memory(inst)) index_by_lane(&inst, Access::Kind::kGather);
                }
            }
        }
    }

    static bool touches_memory(const Inst& inst) {
        return inst.kind == InstKind::kLoad || inst.kind == InstKind::kStore;
    }

    // Outside column loops lanes are neighbouring results, where a thread has several; `alone` is what an access is
    // that they have in common, or make one by one.
    void index_by_lane(Inst* inst, Access::Kind alone) {
        inst->access.kind = alone;
        if (kernel_.lanes_axis < 0) return;
        if (!kernel_.differs_by_lane(*inst, lane_values_)) {
            inst->access.kind = Access::Kind::kUniform;
            return;
        }
        KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst->index)];
        const bool vector = takes_results_in_order(*inst, tensor);
        inst->access.kind = vector ? Access::Kind::kVector : Access::Kind::kGather;
        if (vector) tensor.alignment = std::max(tensor.alignment, kernel_.row_lanes());
    }

    // Whether a thread's results are neighbours there, from a place on that is a multiple of their number.
    bool takes_results_in_order(const Inst& inst, const KernelTensor& tensor) const {
        for (std::size_t i = 0; i < tensor.axes.size(); ++i) {
            const std::vector<Axis> used = inst.coords[i].axes();
            const bool here =
                std::any_of(used.begin(), used.end(), [&](Axis axis) { return axis.id == kernel_.lanes_axis; });
            const bool in_order =
                tensor.axes[i] == kernel_.lanes_axis && inst.coords[i].is_axis(Axis{kernel_.lanes_axis});
            if (here && !in_order) return false;
            for (const ValueId data : inst.coords[i].data_nodes()) {
                if (lane_values_.contains(data)) return false;
            }
            std::int64_t stride = 0;  // of what is declared a row a launch sees to it
            if (kernel_.axis(tensor.axes[i]).is_promoted) {
                const auto known =
                    kernel_.known_stride({KernelArgument::Kind::kStride, inst.index, tensor.axes[i], {}});
                if (!known) return false;
                stride = *known;
            } else if (i >= tensor.axes.size() - tensor.column_strides.size()) {
                stride = column_stride(tensor, i);
            }
            if (in_order ? stride != 1 : stride % kernel_.row_lanes() != 0) return false;
        }
        return true;
    }

    // Values of a loop's lanes, those of them that are the same for the lanes of each vector, where a vector is loaded
    // at its first lane's, and those that are one more for each. A GPU's vectors are loaded before anything of their
    // lanes is computed.
    struct LaneValues {
        std::set<ValueId> all;
        std::set<ValueId> alike;
        std::set<ValueId> in_a_row;

        bool differ(ValueId value) const { return all.contains(value) && !alike.contains(value); }
    };

    void index_loop(ColumnLoop* loop) {
        LaneValues values;
        for (Inst& inst : loop->body) {
            if (touches_memory(inst)) index_access(&inst, *loop, values);
            if (inst.id < 0) continue;
            values.all.insert(inst.id);
            if (aligned_) continue;
            if (is_alike(inst, *loop, values)) values.alike.insert(inst.id);
            if (is_in_a_row(inst, *loop, values)) values.in_a_row.insert(inst.id);
        }
        if (!aligned_) find_period(loop);
    }

    void index_access(Inst* inst, const ColumnLoop& loop, const LaneValues& values) {
        KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst->index)];
        inst->access = classify(*inst, tensor, loop, values);
        // A peeled row's vectors are aligned wherever it begins.
        if (inst->access.kind == Access::Kind::kVector && !loop.is_peeled())
            tensor.alignment = std::max(tensor.alignment, loop.vector);
        if (inst->access.run > 0 && aligned_)
            tensor.alignment = std::max(tensor.alignment, elements_of_access(inst->access.run, inst->dtype));
    }

    bool is_alike(const Inst& inst, const ColumnLoop& loop, const LaneValues& values) const {
        switch (inst.kind) {
            case InstKind::kCoord: return is_one_of_vector(Coord(Axis{inst.axis}), loop);
            case InstKind::kLoad:
                return inst.access.kind == Access::Kind::kUniform || inst.access.kind == Access::Kind::kSplat;
            case InstKind::kMap:
            case InstKind::kCast:
                return std::ranges::none_of(inst.operands, [&](ValueId operand) { return values.differ(operand); });
            default: return false;
        }
    }

    bool is_in_a_row(const Inst& inst, const ColumnLoop& loop, const LaneValues& values) const {
        const auto rises = [&](std::size_t operand) { return values.in_a_row.contains(inst.operands[operand]); };
        const auto stays = [&](std::size_t operand) { return !values.differ(inst.operands[operand]); };
        const bool is_integer = inst.dtype == Dtype::kI32 || inst.dtype == Dtype::kI64;
        switch (inst.kind) {
            case InstKind::kCoord:
                return loop.axes.back() == inst.axis && kernel_.axis(inst.axis).extent % loop.vector == 0;
            case InstKind::kCast: return is_integer && rises(0);
            case InstKind::kMap:
                if (inst.op == Op::kAdd) return (rises(0) && stays(1)) || (stays(0) && rises(1));
                return inst.op == Op::kSub && rises(0) && stays(1);
            default: return false;
        }
    }

    // Whether a coordinate is the same for the lanes of each vector, or one more for each by what values say.
    bool is_same(const Coord& coord, const ColumnLoop& loop, const LaneValues& values) const {
        const auto differs = [&](ValueId data) { return values.differ(data); };
        return std::ranges::none_of(coord.data_nodes(), differs) && is_one_of_vector(coord, loop);
    }
    bool follows(const Coord& coord, const ColumnLoop& loop, const LaneValues& values) const {
        if (coord.kind() == Coord::Kind::kData) return values.in_a_row.contains(coord.data());
        if (coord.kind() != Coord::Kind::kAdd) return false;
        const auto either = [&](const Coord& one, const Coord& other) {
            return follows(one, loop, values) && is_same(other, loop, values);
        };
        return either(coord.left(), coord.right()) || either(coord.right(), coord.left());
    }

    // Whether values say that a vector's lanes lie one behind the other in a row.
    bool lie_in_a_row(const Inst& inst, const KernelTensor& tensor, const ColumnLoop& loop,
                      const LaneValues& values) const {
        if (aligned_ || inst.kind != InstKind::kLoad || loop.columns % loop.vector != 0) return false;
        bool found = false;
        for (std::size_t i = 0; i < inst.coords.size(); ++i) {
            if (is_same(inst.coords[i], loop, values)) continue;
            const bool side_by_side = !kernel_.axis(tensor.axes[i]).is_row && column_stride(tensor, i) == 1;
            if (found || !side_by_side || !follows(inst.coords[i], loop, values)) return false;
            found = true;
        }
        return found;
    }

    // The fewest vectors after which most of what is gathered lies alike, further on: those of a whole number of
    // groups, or the row.
    void find_period(ColumnLoop* loop) const {
        constexpr std::int64_t kMostVectors = 8;
        if (loop->vector == 1 || kernel_.schedule.column_blocks > 1) return;
        std::vector<Inst*> best;
        for (std::int64_t vectors = 1; vectors <= kMostVectors; ++vectors) {
            const std::int64_t period = std::min(vectors * loop->vector, loop->columns);
            if (loop->columns % period != 0) continue;
            std::vector<Inst*> alike;
            for (Inst& inst : loop->body) {
                if (is_gathered_by_columns(inst) && lies_in_periods(inst, *loop, period)) alike.push_back(&inst);
            }
            if (alike.size() > best.size()) loop->period = period, best = std::move(alike);
            if (period == loop->columns) break;
        }
        for (Inst* inst : best) inst->access.in_periods = true;
    }

    bool is_gathered_by_columns(const Inst& inst) const {
        if (!touches_memory(inst) || inst.access.kind != Access::Kind::kGather || inst.access.run > 0) return false;
        const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
        for (std::size_t i = 0; i < inst.coords.size(); ++i) {
            const bool by_row = kernel_.axis(tensor.axes[i]).is_row;
            for (const Axis axis : inst.coords[i].axes()) {
                if (kernel_.axis(axis.id).is_row != by_row) return false;
            }
        }
        return !takes_data(inst);
    }

    bool lies_in_periods(const Inst& inst, const ColumnLoop& loop, std::int64_t period) const {
        const auto place = [&](std::int64_t column) { return place_in_row(kernel_, inst, loop.axes, column); };
        std::vector<std::int64_t> first;
        for (std::int64_t column = 0; column < period; ++column) first.push_back(place(column));
        for (std::int64_t begin = period; begin < loop.columns; begin += period) {
            const std::int64_t further = place(begin) - first[0];
            for (std::int64_t column = 0; column < period; ++column) {
                if (place(begin + column) != first[static_cast<std::size_t>(column)] + further) return false;
            }
        }
        const auto [least, greatest] = std::ranges::minmax(first);
        if (greatest - least + 1 < loop.vector) return false;
        for (std::int64_t column = 0; column + loop.vector <= period; column += loop.vector) {
            const auto lanes =
                std::span(first).subspan(static_cast<std::size_t>(column), static_cast<std::size_t>(loop.vector));
            std::set<std::int64_t> parts;  // vectors of the row that are loaded, runs of lanes that are stored
            for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
                const auto run = lanes[lane] - static_cast<std::int64_t>(lane);
                parts.insert(inst.kind == InstKind::kLoad ? (lanes[lane] - least) / loop.vector : run);
            }
            if (std::ssize(parts) > Access::kMostVectors) return false;
        }
        return true;
    }

    Access classify(const Inst& inst, const KernelTensor& tensor, const ColumnLoop& loop,
                    const LaneValues& values) const {
        bool by_column = false;
        bool by_vector = false;
        for (std::size_t i = 0; i < inst.coords.size(); ++i) {
            for (const ValueId data : inst.coords[i].data_nodes()) {
                if (values.differ(data))
                    return {.kind = Access::Kind::kGather, .in_a_row = lie_in_a_row(inst, tensor, loop, values)};
                by_vector = by_vector || values.all.contains(data);
            }
            const std::vector<Axis> axes = inst.coords[i].axes();
            const auto is_row = [&](Axis axis) { return kernel_.axis(axis.id).is_row; };
            const bool mentions_column = !std::ranges::all_of(axes, is_row);
            const bool along_row = kernel_.axis(tensor.axes[i]).is_row;
            const bool shifted = mentions_column && std::ranges::any_of(axes, is_row);
            if (mentions_column && !inst.coords[i].data_nodes().empty()) return {Access::Kind::kGather};
            if (mentions_column && along_row) {
                if (!is_one_of_vector(inst.coords[i], loop)) return {Access::Kind::kGather};
            } else if (shifted && !lie_alike(inst.coords[i], column_stride(tensor, i), loop)) {
                return {Access::Kind::kGather};
            }
            by_column = by_column || mentions_column;
        }
        if (!by_column) return {by_vector ? Access::Kind::kSplat : Access::Kind::kUniform};
        if (loop.part == ColumnLoop::Part::kWhole) {
            const bool apart = !kernel_.by_row(inst) && kernel_.rows_alike == 1;
            const bool shifts = !apart && takes_columns_in_order(kernel_, inst, loop);
            return {shifts ? Access::Kind::kVector : Access::Kind::kGather};
        }
        if (in_order(inst, loop)) return {loop.vector == 1 ? Access::Kind::kGather : Access::Kind::kVector};
        return evaluate(inst, tensor, loop);
    }

    // Whether rows and columns are in a coordinate's sums apart from each other.
    bool is_sum_of_both(const Coord& coord) const {
        const auto is_row = [&](Axis axis) { return kernel_.axis(axis.id).is_row; };
        const std::vector<Axis> axes = coord.axes();
        switch (coord.kind()) {
            case Coord::Kind::kAdd: return is_sum_of_both(coord.left()) && is_sum_of_both(coord.right());
            case Coord::Kind::kMul: return is_sum_of_both(coord.left());
            default: return std::ranges::all_of(axes, is_row) || std::ranges::none_of(axes, is_row);
        }
    }

    // Whether a row that columns stand at, as those of a picture's patches do, is the same for the lanes of each
    // vector.
    bool is_one_of_vector(const Coord& coord, const ColumnLoop& loop) const {
        if (!is_sum_of_both(coord) || loop.is_peeled() || loop.columns % loop.vector != 0) return false;
        const auto row = [&](std::int64_t column) { return position_at(kernel_, coord, loop.axes, column); };
        for (std::int64_t column = 0; column < loop.columns; ++column) {
            if (column % loop.vector != 0 && row(column) != row(column - 1)) return false;
        }
        return true;
    }

    static std::int64_t column_stride(const KernelTensor& tensor, std::size_t axis) {
        return tensor.column_strides[axis - (tensor.axes.size() - tensor.column_strides.size())];
    }

    // Whether the rows that take part in a coordinate of columns shift all of them by as much, as the place of a head
    // in a row of heads does, and by whole vectors where those are aligned. Rows that turn it, as where a circulant's
    // column is taken modulo the width, have other places each.
    bool lie_alike(const Coord& coord, std::int64_t stride, const ColumnLoop& loop) const {
        const auto is_row = [&](Axis axis) { return kernel_.axis(axis.id).is_row; };
        const std::vector<Axis> axes = coord.axes();
        if (std::ranges::none_of(axes, is_row)) return true;
        switch (coord.kind()) {
            case Coord::Kind::kAdd:
                return lie_alike(coord.left(), stride, loop) && lie_alike(coord.right(), stride, loop);
            case Coord::Kind::kMul: return lie_alike(coord.left(), stride * coord.constant(), loop);
            default: return std::ranges::all_of(axes, is_row) && (!aligned_ || stride % loop.vector == 0);
        }
    }

    // The least and greatest element that rows add to the places in a tensor's row (lie_alike); nothing where they may
    // add any number.
    std::optional<std::pair<std::int64_t, std::int64_t>> shifts(const Inst& inst, const KernelTensor& tensor) const {
        const auto extent = [&](Axis axis) { return kernel_.axis(axis.id).extent; };
        const std::int64_t first = place_in_row(kernel_, inst, {}, 0);
        std::pair<std::int64_t, std::int64_t> shifts = {-first, -first};
        for (std::size_t i = tensor.axes.size() - tensor.column_strides.size(); i < tensor.axes.size(); ++i) {
            const Coord of_rows = inst.coords[i].substitute(
                [&](Axis axis) { return kernel_.axis(axis.id).is_row ? Coord(axis) : Coord(0); },
                [](std::int32_t) { return Coord(0); });
            std::int64_t low = 0;
            std::int64_t high = 0;
            if (!of_rows.bounds(extent, &low, &high)) return std::nullopt;
            shifts.first += low * column_stride(tensor, i);
            shifts.second += high * column_stride(tensor, i);
        }
        return shifts;
    }

    // Of a run, in one access of the most bytes that it may have.
    static int elements_of_access(int run, Dtype dtype) {
        return std::min(run, kAccessBytes / static_cast<int>(size_bytes(dtype)));
    }

    // The common case, seen without evaluating.
    bool in_order(const Inst& inst, const ColumnLoop& loop) const {
        return takes_columns_in_order(kernel_, inst, loop) &&
               (loop.columns % loop.vector == 0 || loop.tail == ColumnLoop::Tail::kScalar);
    }

    Access evaluate(const Inst& inst, const KernelTensor& tensor, const ColumnLoop& loop) const {
        const std::int64_t rest = loop.columns % loop.vector;
        if (loop.vector == 1 || (rest != 0 && loop.tail != ColumnLoop::Tail::kScalar)) return {Access::Kind::kGather};
        const std::int64_t whole = loop.columns - rest;
        bool splat = true;
        bool vector = !aligned_ || rows_are_aligned(tensor, loop.vector);
        std::vector<int> lanes(static_cast<std::size_t>(loop.vector));
        for (std::int64_t column = 0; column < whole && (splat || vector); column += loop.vector) {
            std::vector<std::int64_t> offsets;
            for (int lane = 0; lane < loop.vector; ++lane)
                offsets.push_back(place_in_row(kernel_, inst, loop.axes, column + lane));
            const std::int64_t base = *std::min_element(offsets.begin(), offsets.end());
            vector = vector && (!aligned_ || base % loop.vector == 0);
            for (std::size_t lane = 0; lane < offsets.size(); ++lane) {
                const std::int64_t place = offsets[lane] - base;
                splat = splat && place == 0;
                if (place >= loop.vector || (column > 0 && lanes[lane] != place)) vector = false;
                if (column == 0) lanes[lane] = static_cast<int>(std::min<std::int64_t>(place, loop.vector));
            }
        }
        // A tail takes these columns in narrower vectors: they go on as the whole ones do, or one by one if permuted.
        const bool ordered = std::is_sorted(lanes.begin(), lanes.end());
        for (std::int64_t column = whole + 1; column < loop.columns; ++column) {
            const std::int64_t step =
                place_in_row(kernel_, inst, loop.axes, column) - place_in_row(kernel_, inst, loop.axes, column - 1);
            splat = splat && step == 0;
            vector = vector && (step == 1 || !ordered);
        }
        if (splat) return {Access::Kind::kSplat};
        std::vector<int> sorted = lanes;
        std::sort(sorted.begin(), sorted.end());
        for (std::size_t lane = 0; lane < sorted.size(); ++lane)
            vector = vector && sorted[lane] == static_cast<int>(lane);
        if (!vector) {
            if (inst.kind != InstKind::kLoad) return {Access::Kind::kGather};
            return aligned_ ? run_of_elements(inst, tensor, loop) : parts_of_vector(inst, tensor, loop);
        }
        Access access{Access::Kind::kVector};
        access.anchor = static_cast<int>(std::find(lanes.begin(), lanes.end(), 0) - lanes.begin());
        if (!ordered) access.lanes = std::move(lanes);
        return access;
    }

    // Whether rows that follow each other all begin at multiples of so many elements, where the first does: a part of a
    // row of 33 columns does not, though it has 16 of them.
    bool rows_are_aligned(const KernelTensor& tensor, std::int64_t elements) const {
        const std::size_t first_column = tensor.axes.size() - tensor.column_strides.size();
        if (first_column == 0 || first_column == tensor.axes.size()) return true;
        return kernel_.axis(tensor.axes[first_column]).extent * tensor.column_strides[0] % elements == 0;
    }

    // Where all vectors read alike from their own part of the row, some elements in several lanes and others in none:
    // that part, of one vector as both halves of complex numbers take the real one, or of a few as every fourth column
    // does, and what each lane takes of it.
    Access parts_of_vector(const Inst& inst, const KernelTensor& tensor, const ColumnLoop& loop) const {
        for (int run = loop.vector; run <= Access::kMostVectors * loop.vector; run *= 2) {
            std::vector<int> lanes = lanes_in_parts(inst, tensor, loop, run);
            if (lanes.empty()) continue;
            if (run == loop.vector) return {.kind = Access::Kind::kVector, .lanes = std::move(lanes)};
            return {.kind = Access::Kind::kGather, .lanes = std::move(lanes), .run = run};
        }
        return {Access::Kind::kGather};
    }

    // Likewise on a GPU, of the fewest elements that all lanes are in: twice a vector's, of which every second is read,
    // or half of them, each in two lanes.
    Access run_of_elements(const Inst& inst, const KernelTensor& tensor, const ColumnLoop& loop) const {
        constexpr int kMost = 16;
        const auto element = static_cast<int>(size_bytes(tensor.dtype));
        if (loop.columns % loop.vector != 0 || inst.dtype != tensor.dtype) return {Access::Kind::kGather};
        for (int run = 2; run <= std::min(2 * loop.vector, kMost) && run * element <= 2 * kAccessBytes; run *= 2) {
            // Rows of every second element may follow each other without the last gap.
            const int together = elements_of_access(run, tensor.dtype);
            if (!rows_are_aligned(tensor, together) || elements_of_row(kernel_, tensor) % together != 0) break;
            std::vector<int> lanes = lanes_in_parts(inst, tensor, loop, run);
            if (!lanes.empty()) return {.kind = Access::Kind::kGather, .lanes = std::move(lanes), .run = run};
        }
        return {Access::Kind::kGather};
    }

    // Data may lie outside the row, and the part of it that lanes are in with them.
    static bool takes_data(const Inst& inst) {
        return std::ranges::any_of(inst.coords, [](const Coord& coord) { return !coord.data_nodes().empty(); });
    }

    // Which element of its part of the row each lane reads, the same for all vectors, where parts are aligned to so
    // many elements and have no others; none where they do not.
    std::vector<int> lanes_in_parts(const Inst& inst, const KernelTensor& tensor, const ColumnLoop& loop,
                                    std::int64_t part) const {
        const auto shifted = takes_data(inst) ? std::nullopt : shifts(inst, tensor);
        if (!shifted || shifted->first < 0 || (aligned_ && shifted->second > 0)) return {};
        const std::int64_t elements = elements_of_row(kernel_, tensor) - shifted->second;
        std::vector<int> found;
        for (std::int64_t column = 0; column + loop.vector <= loop.columns; column += loop.vector) {
            std::vector<std::int64_t> offsets;
            for (int lane = 0; lane < loop.vector; ++lane)
                offsets.push_back(place_in_row(kernel_, inst, loop.axes, column + lane));
            const std::int64_t begin = *std::min_element(offsets.begin(), offsets.end()) / part * part;
            const std::int64_t last = *std::max_element(offsets.begin(), offsets.end());
            if (last >= begin + part || begin + part > elements) return {};
            std::vector<int> lanes;
            for (const std::int64_t place : offsets) lanes.push_back(static_cast<int>(place - begin));
            if (column > 0 && lanes != found) return {};
            found = std::move(lanes);
        }
        return found;
    }

    Kernel& kernel_;
    std::set<ValueId> lane_values_;  // of a row of several results
    const bool aligned_;             // a vector access needs an address that is a multiple of its size
};

}  // namespace

bool takes_columns_in_order(const Kernel& kernel, const Inst& inst, const ColumnLoop& loop) {
    const KernelTensor& tensor = kernel.tensors[static_cast<std::size_t>(inst.index)];
    const std::size_t first_column = tensor.axes.size() - tensor.column_strides.size();
    if (tensor.column_strides.size() != loop.axes.size()) return false;
    std::int64_t stride = 1;
    for (std::size_t i = loop.axes.size(); i-- > 0;) {
        if (tensor.axes[first_column + i] != loop.axes[i] || tensor.column_strides[i] != stride) return false;
        if (!inst.coords[first_column + i].is_axis(Axis{loop.axes[i]})) return false;
        stride *= kernel.axis(loop.axes[i]).extent;
    }
    return true;
}

std::int64_t place_in_row(const Kernel& kernel, const Inst& inst, const std::vector<AxisId>& axes,
                          std::int64_t column) {
    const KernelTensor& tensor = kernel.tensors[static_cast<std::size_t>(inst.index)];
    const std::size_t first_column = tensor.axes.size() - tensor.column_strides.size();
    std::int64_t place = 0;
    for (std::size_t i = first_column; i < tensor.axes.size(); ++i)
        place += position_at(kernel, inst.coords[i], axes, column) * tensor.column_strides[i - first_column];
    return place;
}

std::int64_t elements_of_row(const Kernel& kernel, const KernelTensor& tensor) {
    std::int64_t elements = 1;
    const std::size_t first_column = tensor.axes.size() - tensor.column_strides.size();
    for (std::size_t i = first_column; i < tensor.axes.size(); ++i)
        elements += (kernel.axis(tensor.axes[i]).extent - 1) * tensor.column_strides[i - first_column];
    return elements;
}

Kernel index_accesses(Kernel kernel, const Target& target) {
    Indexer(&kernel, target.is_gpu()).run();
    return kernel;
}

}  // namespace rowjit
