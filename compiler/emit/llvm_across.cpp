// Rows that lie side by side in memory, and the columns of each apart (Schedule::across): the lanes are neighbouring
// rows, so that each line of memory is read whole, and a column is what all lanes have of one place. Every value of a
// row is a vector of as many, and nothing meets.
#include <llvm/IR/Intrinsics.h>
#include <llvm/Support/SaveAndRestore.h>

#include <algorithm>

#include "compiler/emit/llvm_emitter.h"

namespace rowjit::cpu_emit {
namespace {

// Columns whose terms are added to each other before they meet the rows' sums.
constexpr std::int64_t kColumnsTogether = 4;

}  // namespace

// Runs of rows that share all coordinates but the innermost: as many as there are lanes at a time, the last of them
// again beside the rest, or the rest one by one where a row must not be computed twice.
void KernelEmitter::emit_rows_across(Value* first, Value* last) {
    const int lanes = lanes_across(kernel_);
    const bool repeats =
        std::ranges::none_of(kernel_.tensors, [](const KernelTensor& t) { return t.aliased || (t.read && t.written); });
    Value* in_order = unit_strides();
    Value*& innermost = axis_[static_cast<std::size_t>(result_axis_[0])];
    loop_while_below(first, last, "rows", [&](Value* row) {
        set_mixed_radix(row, kernel_.row_axes);
        Value* position = innermost;
        innermost = nullptr;  // from here on it is the lanes' own
        Value* left = b_.CreateSub(extent(result_axis_[0]), position);
        left = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, left, b_.CreateSub(last, row), {}, "rows_left");
        Value* wide = b_.CreateAnd(in_order, b_.CreateICmpSGE(left, i64(lanes)), "wide");
        Value* most = repeats ? left : b_.CreateSub(left, b_.CreateURem(left, i64(lanes)));
        Value* whole = b_.CreateSelect(wide, most, i64(0), "whole");
        Value* greatest = b_.CreateSub(left, i64(lanes));
        const auto groups = [&](bool streams) {
            count(i64(0), whole, i64(lanes), "lane_group", [&](Value* place) {
                Value* begin = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, place, greatest);
                emit_lanes_across(b_.CreateAdd(position, begin), lanes, streams);
            });
        };
        stream_ == nullptr ? groups(false) : branch(stream_, [&] { groups(true); }, [&] { groups(false); });
        std::swap(running_, running_of_one_);
        count(whole, left, i64(1), "lane", [&](Value* place) { emit_lanes_across(b_.CreateAdd(position, place), 1); });
        std::swap(running_, running_of_one_);
        return b_.CreateAdd(row, left);
    });
}

// The rows from `position` on along the innermost row axis.
void KernelEmitter::emit_lanes_across(Value* position, int width, bool streams) {
    emit_statements_across({&result_axis_, width, position, i64(0), width}, streams);
}

void KernelEmitter::emit_statements_across(const Lanes& lanes, bool streams) {
    for (std::size_t i = 0; i < running_.size(); ++i) clear_running(i);
    bool is_first = true;
    for (const Stmt& stmt : kernel_.body) {
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) emit_inst(*inst, lanes);
        if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) emit_all_reduce(*reduce);
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        const llvm::SaveAndRestore streaming(streaming_loop_, streams ? loop : nullptr);
        emit_columns_across(*loop, lanes, is_first && !kernel_.in_tiles);
        is_first = false;
    }
}

// A row's first loop asks for the lines that the next rows have of each column: memory fetches none by itself that lie
// so far apart.
void KernelEmitter::emit_columns_across(const ColumnLoop& loop, const Lanes& lanes, bool fetches) {
    const auto at = [&](Value* column) {
        set_mixed_radix(column, loop.axes);
        Lanes here = lanes;
        here.place = b_.CreateMul(column, i64(lanes.width));
        emit_body(loop.body, here);
        if (!fetches || lanes.width == 1) return;
        here.column = b_.CreateAdd(lanes.column, i64(lanes.width));
        for (const Inst& inst : loop.body) {
            const bool in_order = inst.kind == InstKind::kLoad && reach(inst, here) == Reach::kVector;
            if (in_order) fetch_lines(inst, address(inst, here, 0, outside_), lanes.width);
        }
    };
    const auto turns = [&](Value* from, Value* to, std::int64_t columns) {
        count(from, to, i64(columns), "columns", [&](Value* first) {
            for (std::int64_t i = 0; i < columns; ++i) at(b_.CreateAdd(first, i64(i)));
            fold_terms();
        });
    };
    if (is_written_out(loop)) {
        for (std::int64_t column = 0; column < loop.columns; ++column) {
            at(i64(column));
            if ((column + 1) % kColumnsTogether == 0 || column + 1 == loop.columns) fold_terms();
        }
        for (const AxisId axis : loop.axes) axis_[static_cast<std::size_t>(axis)] = nullptr;
        return;
    }
    const std::int64_t whole = loop.columns / kColumnsTogether * kColumnsTogether;
    const bool in_blocks = std::ranges::any_of(loop.body, [&](const Inst& i) { return sums_in_blocks(i, loop); });
    if (in_blocks) {
        count(i64(0), i64(whole), i64(kAcrossBlock), "block", [&](Value* begin) {
            Value* end = b_.CreateAdd(begin, i64(kAcrossBlock));
            turns(begin, b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, i64(whole)), kColumnsTogether);
            end_block(loop);
        });
    } else {
        turns(i64(0), i64(whole), kColumnsTogether);
    }
    turns(i64(whole), i64(loop.columns), 1);
    for (const AxisId axis : loop.axes) axis_[static_cast<std::size_t>(axis)] = nullptr;
}

}  // namespace rowjit::cpu_emit
