// Lines of memory as the columns of a row pass by: stores that pass the caches, and what is asked for before it is
// read.
#include <llvm/IR/Intrinsics.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "compiler/emit/llvm_emitter.h"
#include "compiler/schedule/lower.h"

namespace rowjit::cpu_emit {
// Instructions that are many of the processor's: a function, random numbers, or a term of what carries exponentials.
std::ptrdiff_t special_functions(const Kernel& kernel, const ColumnLoop& loop) {
    return std::count_if(loop.body.begin(), loop.body.end(), [&](const Inst& inst) {
        if (inst.kind == InstKind::kMap) return is_special(inst.op) || inst.op == Op::kUniform;
        if (inst.kind != InstKind::kAccumulate) return false;
        return sums_exponentials(kernel.accumulators[static_cast<std::size_t>(inst.index)].monoid);
    });
}

// A store whose whole vectors fill cache lines of an output that nothing else of the kernel touches.
bool KernelEmitter::streams(const Inst& inst, const ColumnLoop& loop) const {
    if (inst.kind != InstKind::kStore || inst.accumulate) return false;
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    if (tensor.read || tensor.aliased) return false;
    if (!lanes_are_rows_ && (inst.access.kind != Access::Kind::kVector || !inst.access.lanes.empty())) return false;
    const bool narrow = size_bytes(tensor.dtype) < 4;
    // Measured on Zen 4, 150 MiB on one core (cpu_emit_bench): of bf16 relu 25 to 36 GB/s, softmax 11.7 to 14.7, its
    // backward 13.2 to 15.4, norms and gated activations the same; of f32 10 to 45 % more.
    if (narrow && !rows_.empty() && !b_.cpu.streams_abreast) return false;
    // AVX2, whose registers are half a line, keeps narrow floats beside functions in the caches: such a loop asks for
    // less than memory gives. Zen 3, two threads, 64 MiB, past the caches and through them: silu 3.1 and 3.4 ms, gelu's
    // backward 5.2 and 4.9, clipped_swiglu's 4.4 and 3.4, twenty kernels 4 % slower in the geometric mean.
    if (narrow && b_.cpu.avx2_alone && special_functions(kernel_, loop) > 0) return false;
    if (lanes_are_rows_) return stores_lines_across(inst);
    if (loop.vector * static_cast<std::int64_t>(size_bytes(tensor.dtype)) % kLineBytes != 0) return false;
    // The loop's columns are the tensor's, or a span of whole lines of them, as each half of a rotated head is.
    const std::size_t first_column = tensor.axes.size() - tensor.column_strides.size();
    std::size_t left = loop.axes.size();  // of the loop's axes, from the innermost
    std::int64_t stride = 1;
    bool whole_lines = true;
    for (std::size_t i = tensor.column_strides.size(); i-- > 0;) {
        if (tensor.column_strides[i] != stride) return false;
        const Coord& coord = inst.coords[first_column + i];
        if (coord.kind() == Coord::Kind::kConst) {
            whole_lines = whole_lines &&
                          stride * static_cast<std::int64_t>(size_bytes(tensor.dtype)) % kLineBytes == 0 &&
                          kernel_.axis(loop.axes.back()).extent % loop.vector == 0;
        } else {
            if (left == 0 || !coord.is_axis(Axis{loop.axes[left - 1]})) return false;
            --left;
        }
        stride *= kernel_.axis(tensor.axes[first_column + i]).extent;
    }
    return left == 0 && whole_lines;
}

// Likewise of rows side by side, of which every group begins a line at each column.
bool KernelEmitter::stores_lines_across(const Inst& store) const {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(store.index)];
    const auto element_bytes = static_cast<std::int64_t>(size_bytes(tensor.dtype));
    const int lanes = lanes_across(kernel_);
    const auto is_placed_by_data = [](const Coord& coord) { return !coord.data_nodes().empty(); };
    if (std::ranges::any_of(store.coords, is_placed_by_data)) return false;
    const auto is_whole = [&](std::int64_t stride) { return stride * element_bytes % kLineBytes == 0; };
    return reach_of_rows(store) == Reach::kVector && is_whole(lanes) &&
           std::ranges::all_of(tensor.column_strides, is_whole) && kernel_.schedule.rows_per_block % lanes == 0 &&
           kernel_.axis(result_axis_[0]).extent % lanes == 0;
}

// What a launch reads and writes of rows.
Value* KernelEmitter::bytes_of_rows() {
    Value* bytes = i64(0);
    for (const KernelTensor& tensor : kernel_.tensors) {
        std::vector<AxisId> rows;
        auto row_bytes = static_cast<std::int64_t>(size_bytes(tensor.dtype));
        for (const AxisId axis : tensor.axes) {
            if (kernel_.axis(axis).is_row) rows.push_back(axis);
            if (!kernel_.axis(axis).is_row) row_bytes *= kernel_.axis(axis).extent;
        }
        const auto is_walked = [&](AxisId axis) { return contains(kernel_.row_axes, axis); };
        if (rows.empty() || !std::all_of(rows.begin(), rows.end(), is_walked)) continue;
        bytes = b_.CreateAdd(bytes, b_.CreateMul(positions_of(rows), i64(row_bytes)));
    }
    return bytes;
}

// Decides once a launch: whether its rows are more than the caches hold until somebody reads them again, and each of
// those it stores begins a cache line.
void KernelEmitter::find_streams() {
    if (kernel_.in_tiles) return;  // whose tiles do by themselves
    for (const Stmt& stmt : kernel_.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        for (const Inst& inst : loop->body) {
            if (!streams(inst, *loop)) continue;
            if (stream_ == nullptr) stream_ = b_.getTrue();
            const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
            const auto element_bytes = static_cast<std::int64_t>(size_bytes(tensor.dtype));
            Value* starts = b_.CreatePtrToInt(pointers_[static_cast<std::size_t>(inst.index)], b_.getInt64Ty());
            for (const AxisId axis : tensor.axes) {
                const bool is_beside = lanes_are_rows_ && axis == result_axis_[0];  // a lane behind the other
                if (!kernel_.axis(axis).is_row || is_beside) continue;
                starts = b_.CreateOr(starts, b_.CreateMul(strides_.at({inst.index, axis}), i64(element_bytes)));
            }
            Value* aligned = b_.CreateICmpEQ(b_.CreateAnd(starts, i64(kLineBytes - 1)), i64(0));
            stream_ = b_.CreateAnd(stream_, aligned);
        }
    }
    if (stream_ == nullptr) return;
    stream_ = b_.CreateAnd(stream_, b_.CreateICmpUGE(bytes_of_rows(), i64(b_.cpu.streamed_bytes)), "stream");
}

// Where arithmetic takes longer than memory it leaves memory idle, as what it works on lies in the caches already, and
// a core by itself fetches no further than the end of a page. So the loop of a row with the most special functions asks
// for the lines that the next row begins with, or a loop between the first and the last; where there is no such loop,
// or a row is too long for that, each asks for what it reads itself further on. Zen 4, 4096 columns, one core: softmax
// f32 13.8 to 16.8 GB/s, its backward in bf16 13.9 to 14.8, in f32 15.7 to 17.6. There a norm of two light loops, whose
// rows the core itself fetches ahead, would lose a fifth; of rows abreast there are more streams than it follows, and
// their second loop, which finds all it reads in the caches, asks for the next ones: of 64 MiB rms_norm's backward of
// f32 16.1 to 17.3, layer_norm's 12.3 to 13.1, of bf16 11.4 to 11.8, rms_norm's, which waits for its roundings, none.
// An Intel server, 48 MiB, alone and beside others that use its memory: logsumexp of f32 16.7 to 22.7 and 3.8 to 15.6
// GB/s, rms_norm of bf16, which rounds twice, 19.7 to 23.8 and 10.5 to 17.9; of f32, 29.1, it would lose a tenth. 96
// MiB beside others: logsumexp of bf16 4.8 to 9.5, cross_entropy's 4.8 to 9.3; of light rows relu's 9 to 16, relu2's 9
// to 15 and gradient_norm's 5.4 to 8.9, which of 2 MiB, in its caches, are up to a tenth slower.
void KernelEmitter::find_fetches() {
    if (kernel_.row_axes.empty() || kernel_.in_tiles) return;
    std::vector<const ColumnLoop*> loops;
    for (const Stmt& stmt : kernel_.body) {
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) loops.push_back(loop);
    }
    if (loops.empty()) return;
    Fetches first = fetches_of(*loops.front());
    const bool stays = first.row_bytes <= b_.cpu.fetched_bytes && kernel_.schedule.column_blocks == 1;
    std::vector<const ColumnLoop*> alike;
    std::copy_if(loops.begin(), loops.end(), std::back_inserter(alike),
                 [&](const ColumnLoop* loop) { return loop->axes == loops.front()->axes; });
    if (stays && alike.size() > 1) {
        const ColumnLoop* fetching = loop_that_fetches(alike);
        if (fetching == nullptr) return;
        first.next_row = first.row_bytes >= kFetchedAheadBytes;
        fetches_[fetching] = std::move(first);
        return;
    }
    std::set<int> asked;  // tensors whose lines an earlier loop has asked for
    for (const ColumnLoop* loop : loops) {
        if (is_light(*loop) && !b_.cpu.fetches_light_rows) continue;
        Fetches fetches = fetches_of(*loop);
        std::erase_if(fetches.loads, [&](const Inst* load) { return stays && asked.contains(load->index); });
        for (const Inst* load : fetches.loads) asked.insert(load->index);
        fetches_[loop] = std::move(fetches);
    }
}

bool KernelEmitter::is_light(const ColumnLoop& loop) const {
    return special_functions(kernel_, loop) == 0 && !rounds_often(loop) && loop.body.size() <= kLightInsts;
}

// The next row's lines, of loops over the columns that the first one reads; null: the core finds them by itself.
const ColumnLoop* KernelEmitter::loop_that_fetches(const std::vector<const ColumnLoop*>& alike) const {
    const auto fewer = [&](const ColumnLoop* a, const ColumnLoop* b) {
        return special_functions(kernel_, *a) < special_functions(kernel_, *b);
    };
    const ColumnLoop* most = *std::max_element(alike.begin(), alike.end(), fewer);
    if (special_functions(kernel_, *most) > 0) return most;
    const bool works =
        std::any_of(alike.begin(), alike.end(), [&](const ColumnLoop* loop) { return !is_light(*loop); });
    const bool fetches = !rows_.empty() || alike.size() > 2 || (works && b_.cpu.fetches_light_rows);
    return fetches ? alike[1] : nullptr;
}

// What a loop reads in whole vectors of rows of its own.
Fetches KernelEmitter::fetches_of(const ColumnLoop& loop) const {
    Fetches fetches;
    for (const Inst& inst : loop.body) {
        if (!kernel_.can_fetch(inst) || inst.access.kind != Access::Kind::kVector) continue;
        if (!strides_.contains({inst.index, kernel_.row_axes.back()})) continue;
        fetches.loads.push_back(&inst);
        fetches.row_bytes +=
            loop.columns *
            static_cast<std::int64_t>(size_bytes(kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype));
    }
    return fetches;
}

void KernelEmitter::fetch(const ColumnLoop& loop, const Lanes& lanes) {
    const auto found = fetches_.find(&loop);
    if (found == fetches_.end()) return;
    for (const Inst* inst : found->second.loads) {
        const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst->index)];
        llvm::Type* element = stored_type(b_, tensor.dtype);
        const auto element_bytes = static_cast<std::int64_t>(size_bytes(tensor.dtype));
        Value* here = address(*inst, lanes, inst->access.anchor, outside_);
        Value* distance = i64(kFetchedAheadBytes / element_bytes);
        if (found->second.next_row) {
            distance = strides_.at({inst->index, kernel_.row_axes.back()});
            if (grouped_) distance = b_.CreateMul(distance, i64(kRowsAbreast));
        }
        fetch_lines(*inst, b_.CreateGEP(element, here, distance), lanes.width);
    }
}

// So many elements' lines of the load's tensor, from an address on.
void KernelEmitter::fetch_lines(const Inst& load, Value* from, int elements) {
    const Dtype dtype = kernel_.tensors[static_cast<std::size_t>(load.index)].dtype;
    for (int lane = 0; lane < elements; lane += static_cast<int>(kLineBytes / size_bytes(dtype))) {
        fetch_line(b_.CreateGEP(stored_type(b_, dtype), from, i64(lane)));
    }
}

void KernelEmitter::fetch_line(Value* place) {
    constexpr std::uint32_t kOfSecondLevel = 2;
    b_.CreateIntrinsic(llvm::Intrinsic::prefetch, {b_.getPtrTy()},
                       {place, b_.getInt32(0), b_.getInt32(kOfSecondLevel), b_.getInt32(1)});
}

}  // namespace rowjit::cpu_emit
