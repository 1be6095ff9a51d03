// Reductions over rows.
//
// The lanes are results: a chunk of consecutive positions along the innermost row axis. For every reduced row the whole
// chunk is taken before the next row, so that memory is read along the rows; one result at a time would use a few bytes
// of every cache line it fetches.
#include <llvm/IR/Intrinsics.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <set>
#include <vector>

#include "base/check.h"
#include "compiler/emit/llvm_emitter.h"

namespace rowjit::cpu_emit {
namespace {

// The instructions of a body that make these values, and what they are made of.
std::vector<const Inst*> makers_in(const std::vector<Inst>& body, std::set<ValueId> values) {
    std::vector<const Inst*> makers;
    for (const Inst& inst : std::views::reverse(body)) {
        if (!values.contains(inst.id)) continue;
        makers.push_back(&inst);
        each_use(inst, [&](ValueId used) { values.insert(used); });
    }
    std::reverse(makers.begin(), makers.end());
    return makers;
}

}  // namespace

void KernelEmitter::emit_row_reductions(Value* first, Value* last) {
    loop_while_below(first, last, "result", [&](Value* result) {
        set_mixed_radix(result, kernel_.row_axes);
        Value* lanes = b_.CreateSub(last, result);
        Value* position = i64(0);
        if (!result_axis_.empty()) {
            Value*& innermost = axis_[static_cast<std::size_t>(result_axis_[0])];
            position = innermost;
            innermost = nullptr;  // from here on it is the lanes' own
            Value* left = b_.CreateSub(extent(result_axis_[0]), position);
            lanes = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, lanes, left);
        }
        lanes = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, lanes, i64(kResultLanes), {}, "lanes");
        if (bounds_differ_by_lane()) lanes = i64(1);
        emit_result_chunk(position, lanes);
        return b_.CreateNSWAdd(result, lanes);
    });
}

// Results [first, first + lanes) along the innermost row axis.
void KernelEmitter::emit_result_chunk(Value* first, Value* lanes) {
    chunk_first_ = first;
    // Whole vectors where memory is contiguous along the lanes; otherwise they are taken one by one.
    Value* rest = b_.CreateURem(lanes, i64(result_vector()));
    Value* whole = b_.CreateSelect(unit_strides(), b_.CreateSub(lanes, rest), i64(0), "whole");
    for (std::size_t i = 0; i < kernel_.body.size(); ++i) {
        if (const auto* loop = std::get_if<RowsLoop>(&kernel_.body[i].node)) emit_rows_loop(i, *loop, lanes, whole);
    }
    for_lanes(lanes, whole, [&](const Lanes& group) { emit_row_values(kernel_.body.size(), group, true); });
}

void KernelEmitter::emit_rows_loop(std::size_t statement, const RowsLoop& loop, Value* lanes, Value* whole) {
    std::vector<int> accumulators;
    for (const Inst& inst : loop.body) {
        if (inst.kind == InstKind::kAccumulate) accumulators.push_back(inst.index);
    }
    using Update = std::function<void(const Accumulator&, const RunningRows&, const Lanes&)>;
    const auto for_accumulators = [&](const Update& update) {
        for_lanes(lanes, whole, [&](const Lanes& group) {
            for (const int index : accumulators) {
                const auto i = static_cast<std::size_t>(index);
                update(kernel_.accumulators[i], running_rows_[i], group);
            }
        });
    };
    const auto each_row = [&](Value* begin, Value* end) {
        count(begin, end, i64(1), "reduced", [&](Value* position) {
            set_mixed_radix(position, loop.axes);
            for_lanes(lanes, whole, [&](const Lanes& group) {
                emit_row_values(statement, group, false);
                fetch_next_row(loop, position, end, group);
                emit_body(loop.body, group);
            });
        });
    };
    const auto empty = [&](std::size_t level) {
        for_accumulators([&](const Accumulator& accumulator, const RunningRows& running, const Lanes& group) {
            llvm::Type* type = carried(accumulator.dtype, group.width);
            write_rows(running.levels[level], group, fold_identity(accumulator, type));
        });
    };
    // Rows [begin, end) into `level`, which starts empty.
    const std::function<void(std::size_t, Value*, Value*)> fold = [&](std::size_t level, Value* begin, Value* end) {
        empty(level);
        if (level == 0) return each_row(begin, end);
        const auto step = static_cast<std::int64_t>(std::pow(kReducedBlock, level));
        count(begin, end, i64(step), "reduced_block", [&](Value* block) {
            Value* block_end = b_.CreateNSWAdd(block, i64(step));
            fold(level - 1, block, b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, block_end, end));
            for_accumulators([&](const Accumulator& accumulator, const RunningRows& running, const Lanes& group) {
                const FoldState before = read_rows(running.levels[level], group);
                const FoldState more = read_rows(running.levels[level - 1], group);
                write_rows(running.levels[level], group, fold_merge(b_, accumulator, before, more));
            });
        });
    };
    if (loop.begin < 0) return fold(kReducedLevels - 1, i64(0), positions_of(loop.axes));
    emit_row_values(statement, {&result_axis_, 1, chunk_first_, i64(0), 1, 0}, false);
    // A segment of few rows is one block, which needs no levels: of four rows those were three of four passes over the
    // lanes.
    Value* begin = value(loop.begin);
    Value* end = value(loop.end);
    Value* few = b_.CreateICmpSLE(b_.CreateSub(end, begin), i64(kReducedBlock), "few");
    branch(
        few,
        [&] {
            row_level_ = kReducedLevels - 1;
            empty(kReducedLevels - 1);
            each_row(begin, end);
            row_level_ = 0;
        },
        [&] { fold(kReducedLevels - 1, begin, end); });
}

// Rows that are read at places from memory lie anywhere, so that a core fetches none of them by itself: each asks for
// the next one's lines, the last for its own. Places that are searched for would be twice.
void KernelEmitter::fetch_next_row(const RowsLoop& loop, Value* position, Value* end, const Lanes& lanes) {
    if (lanes.width == 1) return;
    Value* next = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateNSWAdd(position, i64(1)),
                                           b_.CreateNSWSub(end, i64(1)));
    for (const Inst& load : loop.body) {
        if (load.kind != InstKind::kLoad) continue;
        std::set<ValueId> places;
        each_use(load, [&](ValueId used) { places.insert(used); });
        const std::vector<const Inst*> makers = makers_in(loop.body, places);
        const bool searched = std::ranges::any_of(makers, [](const Inst* maker) {
            return maker->kind == InstKind::kSearch || maker->kind == InstKind::kSumWhere;
        });
        if (makers.empty() || searched) continue;
        set_mixed_radix(next, loop.axes);
        for (const Inst* maker : makers) emit_inst(*maker, lanes);
        if (reach_of_rows(load) == Reach::kVector) fetch_lines(load, address(load, lanes, 0, outside_), lanes.width);
        set_mixed_radix(position, loop.axes);
    }
}

void KernelEmitter::branch(Value* condition, const std::function<void()>& taken, const std::function<void()>& other) {
    auto* first = llvm::BasicBlock::Create(b_.getContext(), "taken", function_);
    auto* second = llvm::BasicBlock::Create(b_.getContext(), "other", function_);
    auto* after = llvm::BasicBlock::Create(b_.getContext(), "either", function_);
    b_.CreateCondBr(condition, first, second);
    b_.SetInsertPoint(first);
    taken();
    b_.CreateBr(after);
    b_.SetInsertPoint(second);
    other();
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
}

// Whether neighbouring results are of segments of their own; else a chunk has one.
bool KernelEmitter::bounds_differ_by_lane() const {
    return std::any_of(kernel_.body.begin(), kernel_.body.end(), [&](const Stmt& stmt) {
        const auto* loop = std::get_if<RowsLoop>(&stmt.node);
        return loop != nullptr && loop->segments >= 0 && !result_axis_.empty() && result_axis_[0] == loop->segments;
    });
}

// The chunk's lanes in vectors, then the rest one by one.
void KernelEmitter::for_lanes(Value* lanes, Value* whole, const std::function<void(const Lanes&)>& body) {
    const auto group = [&](int width) {
        return [&, width](Value* place) {
            Value* position = b_.CreateNSWAdd(chunk_first_, place);
            body({&result_axis_, width, position, place, width, 0});
        };
    };
    if (result_vector() == 1) return count(i64(0), lanes, i64(1), "lane", group(1));
    count(i64(0), whole, i64(result_vector()), "lane_group", group(result_vector()));
    count(whole, lanes, i64(1), "lane", group(1));
}

// The per-row statements before `statements`, for these lanes: values that a loop after them uses are computed in it
// again, where the optimiser takes out what does not vary.
void KernelEmitter::emit_row_values(std::size_t statements, const Lanes& lanes, bool stores) {
    for (std::size_t i = 0; i < statements; ++i) {
        if (const auto* inst = std::get_if<Inst>(&kernel_.body[i].node)) {
            if (stores || inst->kind != InstKind::kStore) emit_inst(*inst, lanes);
        }
        const auto* reduce = std::get_if<AllReduce>(&kernel_.body[i].node);
        if (reduce == nullptr) continue;
        std::size_t result = 0;
        for (const int index : reduce->accumulators) {
            const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
            const FoldState state = read_rows(running_rows_[static_cast<std::size_t>(index)].total(), lanes);
            for (Value* component : fold_finish(b_, accumulator, state)) {
                define(reduce->results.at(result++), accumulator.dtype, component, accumulator.label);
            }
        }
    }
}

int KernelEmitter::result_vector() const { return result_axis_.empty() ? 1 : kernel_.schedule.vector; }

// Whether every tensor that is read or written along the lanes has its elements side by side there.
Value* KernelEmitter::unit_strides() {
    Value* unit = b_.getTrue();
    if (result_axis_.empty()) return unit;
    const auto require = [&](const Inst& inst) {
        if (inst.kind != InstKind::kLoad && inst.kind != InstKind::kStore) return;
        const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
        for (std::size_t i = 0; i < tensor.axes.size(); ++i) {
            if (!inst.coords[i].is_axis(Axis{result_axis_[0]}) || !kernel_.axis(tensor.axes[i]).is_row) continue;
            Value* stride = strides_.at({inst.index, tensor.axes[i]});
            unit = b_.CreateAnd(unit, b_.CreateICmpEQ(stride, i64(1)));
        }
    };
    for (const Stmt& stmt : kernel_.body) {
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) require(*inst);
        if (const auto* loop = std::get_if<RowsLoop>(&stmt.node)) std::ranges::for_each(loop->body, require);
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) std::ranges::for_each(loop->body, require);
    }
    return unit;
}

// Given unit strides along the lanes.
Reach KernelEmitter::reach_of_rows(const Inst& inst) const {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    const std::size_t first_column = tensor.axes.size() - tensor.column_strides.size();
    const AxisId lane_axis = result_axis_.empty() ? -1 : result_axis_[0];
    Reach reach = Reach::kOneAddress;
    for (std::size_t i = 0; i < inst.coords.size(); ++i) {
        for (const ValueId data : inst.coords[i].data_nodes()) {
            if (value(data)->getType()->isVectorTy()) return Reach::kEachLane;
        }
        const std::vector<Axis> axes = inst.coords[i].axes();
        if (std::none_of(axes.begin(), axes.end(), [&](Axis axis) { return axis.id == lane_axis; })) continue;
        if (reach != Reach::kOneAddress || !inst.coords[i].is_axis(Axis{lane_axis})) return Reach::kEachLane;
        if (i >= first_column && tensor.column_strides[i - first_column] != 1) return Reach::kEachLane;
        reach = Reach::kVector;
    }
    return reach;
}

FoldState KernelEmitter::read_rows(const std::vector<llvm::AllocaInst*>& arrays, const Lanes& lanes) {
    FoldState state;
    for (llvm::AllocaInst* array : arrays) {
        llvm::Type* type = array->getAllocatedType()->getArrayElementType();
        Value* place = b_.CreateInBoundsGEP(type, array, lanes.place);
        if (lanes.width > 1) type = llvm::FixedVectorType::get(type, static_cast<unsigned>(lanes.width));
        state.push_back(b_.CreateAlignedLoad(type, place, llvm::Align(4)));
    }
    return state;
}

void KernelEmitter::write_rows(const std::vector<llvm::AllocaInst*>& arrays, const Lanes& lanes,
                               const FoldState& state) {
    for (std::size_t part = 0; part < arrays.size(); ++part) {
        llvm::Type* element = arrays[part]->getAllocatedType()->getArrayElementType();
        b_.CreateAlignedStore(state[part], b_.CreateInBoundsGEP(element, arrays[part], lanes.place), llvm::Align(4));
    }
}

}  // namespace rowjit::cpu_emit
