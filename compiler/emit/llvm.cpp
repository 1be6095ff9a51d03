// The frame of a kernel's function: arguments, the range of blocks, rows, and what holds its values. The rest of
// KernelEmitter is in llvm_instructions.cpp, llvm_columns.cpp (loops over the columns of a row), llvm_streams.cpp
// (lines that pass the caches, and that are asked for ahead), llvm_strips.cpp (narrow rows), llvm_tiles.cpp (narrower
// ones), llvm_rows.cpp (reductions over rows), llvm_sums_where.cpp (sums over positions), llvm_order.cpp (orders of
// ids) and llvm_access.cpp (coordinates and memory).
#include "compiler/emit/llvm.h"

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/SaveAndRestore.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/emit/llvm_emitter.h"

namespace rowjit {
namespace cpu_emit {

// ---- Frame

std::unique_ptr<llvm::Module> KernelEmitter::emit() {
    check_shape();
    bool takes_logarithms = false;
    std::set<int> extremes;  // tensors of parts that no number of terms makes more exact
    each_inst(kernel_, [&](const Inst& inst) {
        if (inst.kind == InstKind::kStore && inst.accumulate && inst.op != Op::kAdd) extremes.insert(inst.index);
        if (inst.kind != InstKind::kMap) return;
        if (inst.op == Op::kDiv) ++quotients_[inst.operands[1]];
        takes_logarithms = takes_logarithms || inst.op == Op::kLog;
    });
    // Numbers of 11 bits come too near a zero of a sum: dynamic_tanh of f16 showed an error of 2^-24. Of the parts of a
    // sum over rows the terms are rounded as often as they are added up. Not so a loss, a row's number that a logarithm
    // makes of a whole row of exponentials: their errors lie to one side, and so do all rows'. A jsd of bf16, in one
    // pass with its gradient, was 3.6 units off where eager is 1.7. The exact tanh takes a softcapped cross-entropy of
    // 4096 columns 0.55 ms in place of 0.33, which was 5 units off.
    b_.full_width = std::any_of(kernel_.tensors.begin(), kernel_.tensors.end(), [&](const KernelTensor& tensor) {
        const bool is_loss = takes_logarithms && tensor.column_strides.empty();
        const bool is_extreme = extremes.contains(static_cast<int>(&tensor - kernel_.tensors.data()));
        const bool is_part = contains(tensor.axes, kernel_.slots_axis) && !is_loss && !is_extreme;
        return tensor.dtype == Dtype::kF16 || (tensor.written && !is_part && size_bytes(tensor.dtype) > 2);
    });
    find_nans();
    llvm::Type* pointer = b_.getPtrTy();
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), {pointer, b_.getInt64Ty(), b_.getInt64Ty()}, false);
    function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, kernel_.name, *module_);
    function_->addFnAttr(llvm::Attribute::NoUnwind);
    // What spills lies where a thread's stack happens to begin, modulo sixteen bytes: a vector on two lines is stored
    // and read back several times as slowly. On two threads of Zen 3, of which one had such a stack, a rotary
    // embedding's backward of bf16 took 8.9 ms in place of 3.3, mrope's 4.5 and 2.7, gelu's 8.9 and 5.0.
    function_->addFnAttr(llvm::Attribute::getWithStackAlignment(b_.getContext(), llvm::Align(kLineBytes)));
    function_->getArg(0)->setName("arguments");
    function_->getArg(1)->setName("block_begin");
    function_->getArg(2)->setName("block_end");
    entry_ = llvm::BasicBlock::Create(b_.getContext(), "entry", function_);
    b_.SetInsertPoint(entry_);

    load_arguments();
    make_alias_scopes();
    if (kernel_.order) {
        order_ids();
    } else {
        make_running();
        make_slots();
        make_rows_abreast();
        find_pairs();
        find_tiles();
        find_streams();
        find_fetches();
        emit_blocks();
    }
    // Streaming stores are ordered with nothing, not even with a later store that says the range is done.
    if (stream_ != nullptr) b_.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, {}, {});
    b_.CreateRetVoid();

    std::string complaint;
    llvm::raw_string_ostream stream(complaint);
    RJ_CHECK(!llvm::verifyModule(*module_, &stream), "emit/llvm: kernel {}: {}", kernel_.name, complaint);
    return std::move(module_);
}

void KernelEmitter::check_shape() {
    RJ_CHECK(kernel_.schedule.threads_per_row == 1, "emit/llvm: kernel {} has {} threads on a row; the CPU has one",
             kernel_.name, kernel_.schedule.threads_per_row);
    bool columns = false;
    for (const Stmt& stmt : kernel_.body) {
        reduces_rows_ = reduces_rows_ || std::holds_alternative<RowsLoop>(stmt.node);
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        columns = true;
        RJ_CHECK(std::has_single_bit(static_cast<unsigned>(loop->vector)), "emit/llvm: kernel {}: vector {}",
                 kernel_.name, loop->vector);
        RJ_CHECK(loop->iterations * loop->vector * kernel_.schedule.column_blocks >= loop->columns,
                 "emit/llvm: kernel {}: {} iterations of {} lanes in {} column blocks do not cover {} columns",
                 kernel_.name, loop->iterations, loop->vector, kernel_.schedule.column_blocks, loop->columns);
    }
    RJ_CHECK(!reduces_rows_ || (!columns && kernel_.schedule.column_blocks == 1),
             "emit/llvm: kernel {} reduces rows and loops over columns", kernel_.name);
    lanes_are_rows_ = reduces_rows_ || kernel_.schedule.across;
    if (lanes_are_rows_ && !kernel_.row_axes.empty()) result_axis_ = {kernel_.row_axes.back()};
    if (kernel_.in_tiles) tile_rows_ = kernel_.inner_axes();
}

// Arithmetic hands a NaN's bits on, so all NaNs are of bf16 where vectors of nothing else are loaded, and a row's other
// numbers are asked once a row. Without a branch in each rounding kernels of bf16 compile in two thirds of the time.
// Zen 3 in cache, GB/s (cpu_emit_bench 128 1): rope 12.9 and 16.1, rope_qk's backward 7.1 and 8.2, qk_norm_rope 7.2
// and 8.7.
void KernelEmitter::find_nans() {
    bool narrow = b_.cpu.avx2_alone && !lanes_are_rows_;
    each_inst(kernel_, [&](const Inst& inst) {
        if (inst.kind != InstKind::kLoad || is_one_number(inst.access.kind)) return;
        const Dtype dtype = kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype;
        narrow = narrow && (dtype == Dtype::kBf16 || !is_float(dtype));
    });
    b_.nans_are_narrow = narrow;
}

Value* KernelEmitter::with_narrow_nan(Dtype dtype, Value* number) {
    if (!b_.nans_are_narrow || !is_float(dtype) || dtype == Dtype::kBf16) return number;
    llvm::Constant* nan = llvm::ConstantFP::getNaN(number->getType());
    return b_.CreateSelect(b_.CreateFCmpUNO(number, number), nan, number);
}

void KernelEmitter::load_arguments() {
    pointers_.resize(kernel_.tensors.size());
    scalars_.resize(kernel_.scalars.size());
    for (std::size_t i = 0; i < kernel_.arguments.size(); ++i) {
        const KernelArgument& argument = kernel_.arguments[i];
        const auto index = static_cast<std::size_t>(argument.index);
        Value* place = b_.CreateConstInBoundsGEP1_64(b_.getPtrTy(), function_->getArg(0), i);
        place = b_.CreateLoad(b_.getPtrTy(), place);
        switch (argument.kind) {
            case KernelArgument::Kind::kPointer:
                pointers_[index] = b_.CreateLoad(b_.getPtrTy(), place, argument.name);
                break;
            case KernelArgument::Kind::kStride:
                strides_[{argument.index, argument.axis}] = b_.CreateLoad(b_.getInt64Ty(), place, argument.name);
                break;
            case KernelArgument::Kind::kExtent:
                extent_[static_cast<std::size_t>(argument.axis)] = b_.CreateLoad(b_.getInt64Ty(), place, argument.name);
                break;
            case KernelArgument::Kind::kScalar: {
                const Dtype dtype = kernel_.scalars[index].dtype;
                Value* loaded = nullptr;
                if (dtype == Dtype::kBool) {
                    loaded = widen(b_, dtype, b_.CreateLoad(b_.getInt8Ty(), place));
                } else {
                    loaded = b_.CreateLoad(carried(dtype, 1), place, argument.name);
                    loaded = with_narrow_nan(dtype, round_carried(b_, dtype, loaded));
                }
                scalars_[index] = loaded;
                break;
            }
            case KernelArgument::Kind::kMatrix:
            case KernelArgument::Kind::kSide: RJ_CHECK(false, "emit llvm: {}: a product of its own", kernel_.name);
        }
    }
}

// One scope per tensor that shares memory with none, and one for all that may share.
void KernelEmitter::make_alias_scopes() {
    llvm::MDBuilder metadata(b_.getContext());
    llvm::MDNode* domain = metadata.createAnonymousAliasScopeDomain(kernel_.name);
    llvm::MDNode* shared = nullptr;
    for (const KernelTensor& tensor : kernel_.tensors) {
        llvm::MDNode* scope = tensor.aliased ? shared : nullptr;
        if (scope == nullptr) scope = metadata.createAnonymousAliasScope(domain, tensor.name);
        if (tensor.aliased) shared = scope;
        scopes_.push_back(scope);
    }
    for (llvm::MDNode* own : scopes_) {
        std::vector<llvm::Metadata*> others;
        for (llvm::MDNode* scope : scopes_) {
            if (scope != own && std::find(others.begin(), others.end(), scope) == others.end()) others.push_back(scope);
        }
        other_scopes_.push_back(llvm::MDNode::get(b_.getContext(), others));
    }
    for (llvm::MDNode*& scope : scopes_) scope = llvm::MDNode::get(b_.getContext(), {scope});
}

void KernelEmitter::make_running() {
    if (reduces_rows_) {
        for (const Accumulator& accumulator : kernel_.accumulators) {
            RunningRows& running = running_rows_.emplace_back();
            llvm::Type* lanes =
                llvm::ArrayType::get(fold_type(accumulator, carried(accumulator.dtype, 1)), kResultLanes);
            for (int level = 0; level < kReducedLevels; ++level) {
                std::vector<llvm::AllocaInst*>& arrays = running.levels.emplace_back();
                for (int part = 0; part < fold_parts(accumulator); ++part) {
                    arrays.push_back(stack(lanes, accumulator.label));
                }
            }
        }
        return;
    }
    if (!lanes_are_rows_) {
        running_ = make_running(0);
        return;
    }
    running_ = make_running(lanes_across(kernel_));
    if (!kernel_.in_tiles) running_of_one_ = make_running(1);
}

// Of so many rows side by side, or of one whose columns are the lanes.
std::vector<Running> KernelEmitter::make_running(int rows) {
    std::vector<Running> all(kernel_.accumulators.size());
    for (const Stmt& stmt : kernel_.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        for (const Inst& inst : loop->body) {
            if (inst.kind != InstKind::kAccumulate) continue;
            const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(inst.index)];
            Running& running = all[static_cast<std::size_t>(inst.index)];
            running.columns = std::max(running.columns, loop->columns);
            const bool together = folds_together(accumulator.monoid);
            const int state_lanes = together ? std::min(loop->vector, lanes_of_state(accumulator)) : loop->vector;
            running.width = std::max(running.width, rows > 0 ? rows : state_lanes);
            running.chains = std::max(running.chains, together || rows > 0 ? 1 : unroll_of(*loop));
            if (sums_in_blocks(inst, *loop))
                running.blocks = stack(carried(Dtype::kF64, running.width), accumulator.label + "_blocks");
        }
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
        const Accumulator& accumulator = kernel_.accumulators[i];
        if (accumulator.monoid == Monoid::kGreatest) {
            all[i].keys = stack(greatest_type(b_, accumulator.greatest), accumulator.label);
            all[i].last = stack(b_.getFloatTy(), accumulator.label + "_last");
            continue;
        }
        for (int chain = 0; chain < all[i].chains; ++chain) {
            std::vector<llvm::AllocaInst*>& parts = all[i].parts.emplace_back();
            for (int part = 0; part < fold_parts(accumulator); ++part) {
                llvm::Type* type = fold_type(accumulator, carried(accumulator.dtype, all[i].width));
                parts.push_back(stack(type, accumulator.label));
            }
        }
    }
    return all;
}

int KernelEmitter::lanes_of_state(const Accumulator& accumulator) {
    const bool of_f64 = fold_type(accumulator, carried(accumulator.dtype, 1))->isDoubleTy();
    return b_.cpu.avx2_alone && of_f64 ? kStateLanesOfF64 : kStateLanes;
}

void KernelEmitter::make_slots() {
    // Slots hold one column block of the longest loop that keeps into them.
    std::int64_t places = 0;
    int widest = kernel_.schedule.vector;    // where lanes are positions of promoted columns no loop has them
    for (const Stmt& stmt : kernel_.body) {  // a loop before the rows is no wider than the one that adds to its places
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        widest = std::max(widest, loop->vector);
        places = std::max(places, std::min(loop->columns, loop->iterations * loop->vector));
    }
    kept_places_ = places;
    if (takes_strips()) places *= kStripRows;
    if (!reduces_rows_ && lanes_are_rows_) {
        places *= lanes_across(kernel_);
        widest = std::max(widest, lanes_across(kernel_));
    }
    std::int64_t bytes = 0;
    for (const Slot& slot : kernel_.slots) {
        slots_.push_back(
            stack(llvm::ArrayType::get(stored_type(b_, slot.dtype), static_cast<std::uint64_t>(places)), slot.label));
        bytes += places * static_cast<std::int64_t>(size_bytes(slot.dtype));
    }
    RJ_CHECK(bytes <= kMaxCpuKeptBytes, "emit/llvm: kernel {} keeps {} bytes of a row; at most {} fit the stack",
             kernel_.name, bytes, kMaxCpuKeptBytes);
    const auto bytes_of_vector = static_cast<std::uint64_t>(widest) * 8;
    llvm::Type* vector = llvm::ArrayType::get(b_.getInt8Ty(), bytes_of_vector);
    outside_ = stack(vector, "outside");
    discarded_ = stack(vector, "discarded");
    b_.CreateStore(llvm::Constant::getNullValue(vector), outside_);
}

void KernelEmitter::emit_blocks() {
    Value* rows = positions_of(kernel_.inner_axes());
    Value* per_block = i64(kernel_.schedule.rows_per_block);
    const auto rows_of = [&](Value* first_block, Value* last_block) {
        Value* end = b_.CreateMul(last_block, per_block);
        end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, rows, {}, "row_end");
        emit_rows(b_.CreateMul(first_block, per_block, "row_begin"), end);
    };
    Value* begin = function_->getArg(1);
    Value* end = function_->getArg(2);
    if (kernel_.slots_axis >= 0) return emit_summing_blocks(rows, begin, end);
    if (kernel_.schedule.column_blocks == 1) return rows_of(begin, end);
    count(begin, end, i64(1), "block", [&](Value* block) {
        Value* row_block = b_.CreateUDiv(block, i64(kernel_.schedule.column_blocks), "row_block");
        column_block_ = b_.CreateURem(block, i64(kernel_.schedule.column_blocks), "column_block");
        rows_of(row_block, b_.CreateAdd(row_block, i64(1)));
    });
}

// A kernel that sums over its rows divides them evenly among its blocks, which are few; or those of each position of
// the axes that sums are not over among as many blocks as have parts there.
void KernelEmitter::emit_summing_blocks(Value* rows, Value* begin, Value* end) {
    RJ_CHECK(kernel_.schedule.column_blocks == 1 && kernel_.schedule.rows_per_block == 1,
             "emit/llvm: kernel {} sums rows of divided rows", kernel_.name);
    Value* blocks = extent(kernel_.slots_axis);
    count(begin, end, i64(1), "block", [&](Value* block) {
        Value* part = block;
        if (!kernel_.outer.empty()) {
            part = b_.CreateURem(block, blocks, "part");
            set_mixed_radix(b_.CreateUDiv(block, blocks, "outer_row"), kernel_.outer);
        }
        axis_[static_cast<std::size_t>(kernel_.slots_axis)] = part;
        clear_part();
        Value* first = b_.CreateUDiv(b_.CreateMul(rows, part), blocks, "row_begin");
        Value* next = b_.CreateAdd(part, i64(1));
        Value* last = b_.CreateUDiv(b_.CreateMul(rows, next), blocks, "row_end");
        if (!rows_.empty()) {
            Value* rest = b_.CreateSRem(b_.CreateSub(last, first), i64(kRowsAbreast));
            Value* split = b_.CreateSub(last, rest);
            count(first, split, i64(kRowsAbreast), "rows", [&](Value* row) { emit_rows_abreast(row); });
            first = split;
        }
        emit_rows(first, last);
        emit_block(kernel_.after);
    });
}

// A block's part begins at zero, in each of its places where rows have places of their own there.
void KernelEmitter::clear_part() {
    std::vector<AxisId> places;
    const std::vector<AxisId> rows = kernel_.inner_axes();
    for (const KernelTensor& tensor : kernel_.tensors) {
        if (!contains(tensor.axes, kernel_.slots_axis)) continue;
        for (const AxisId axis : rows) {
            if (contains(tensor.axes, axis) && !contains(places, axis)) places.push_back(axis);
        }
    }
    if (places.empty()) return emit_block(kernel_.before);
    count(i64(0), positions_of(places), i64(1), "place", [&](Value* place) {
        set_mixed_radix(place, places);
        emit_block(kernel_.before);
    });
}

void KernelEmitter::emit_rows(Value* first, Value* last) {
    if (reduces_rows_) return emit_row_reductions(first, last);
    if (kernel_.in_tiles) return emit_tiles(first, last);
    if (lanes_are_rows_) return emit_rows_across(first, last);
    if (takes_strips()) return emit_strips(first, last);
    count(first, last, i64(1), "row", [&](Value* row) { emit_row(row); });
}

void KernelEmitter::emit_row(Value* row) {
    set_mixed_radix(row, kernel_.inner_axes());
    for (std::size_t i = 0; i < running_.size(); ++i) clear_running(i);
    emit_block(kernel_.body);
}

// Whether a loop adds to a place that all rows of a block add to.
bool KernelEmitter::adds_to_all_rows(const Inst& inst) const {
    if (inst.kind != InstKind::kStore || !inst.accumulate) return false;
    const std::vector<AxisId> rows = kernel_.inner_axes();
    return std::none_of(inst.coords.begin(), inst.coords.end(), [&](const Coord& coord) {
        const std::vector<Axis> axes = coord.axes();
        return !coord.data_nodes().empty() ||
               std::any_of(axes.begin(), axes.end(), [&](Axis axis) { return contains(rows, axis.id); });
    });
}

bool KernelEmitter::adds_to_all_rows(const ColumnLoop& loop) const {
    return std::any_of(loop.body.begin(), loop.body.end(), [&](const Inst& inst) { return adds_to_all_rows(inst); });
}

// Where rows are summed over in memory. A norm's backward of 4096 bf16 columns reads 16 KiB of its weight's gradient a
// row, 32 KiB of a layer norm's two in f64 each, and writes as much: twice to six times what the row itself is.
// A long loop's values fill the registers by themselves: on Zen 4 a gated norm's of 35 instructions gained a tenth to a
// quarter, one of 170, of heads that are normed and rotated, lost a quarter and took three times as long to compile.
void KernelEmitter::make_rows_abreast() {
    constexpr std::size_t kMostAbreast = 64;
    if (kernel_.slots_axis < 0 || reduces_rows_ || kernel_.in_tiles) return;
    bool adds = false;
    std::int64_t kept_bytes = 0;
    for (const Stmt& stmt : kernel_.body) {
        if (std::holds_alternative<OpenSteps>(stmt.node)) return;
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        if (loop->body.size() > kMostAbreast) return;
        adds = adds || adds_to_all_rows(*loop);
        for (const Slot& slot : kernel_.slots) {
            kept_bytes = std::max(kept_bytes, loop->columns * static_cast<std::int64_t>(size_bytes(slot.dtype)) *
                                                  static_cast<std::int64_t>(kernel_.slots.size()));
        }
    }
    if (!adds || kept_bytes * kRowsAbreast > kMaxCpuKeptBytes) return;
    rows_.resize(kRowsAbreast);
    for (std::size_t row = 1; row < rows_.size(); ++row) {
        in_row(row, [&] {
            make_running();
            make_slots();
        });
    }
}

void KernelEmitter::in_row(std::size_t row, const std::function<void()>& body) {
    if (row == 0) return body();
    const auto swap = [&] {
        RowState& state = rows_[row];
        std::swap(axis_, state.axis);
        std::swap(values_, state.values);
        std::swap(dtypes_, state.dtypes);
        std::swap(running_, state.running);
        std::swap(terms_, state.terms);
        std::swap(slots_, state.slots);
    };
    swap();
    body();
    swap();
}

void KernelEmitter::in_each_row(const std::function<void()>& body) {
    if (!abreast_) return body();
    for (std::size_t row = 0; row < rows_.size(); ++row) in_row(row, body);
}

void KernelEmitter::emit_rows_abreast(Value* first) {
    for (std::size_t row = 1; row < rows_.size(); ++row) {
        rows_[row].axis = axis_;
        rows_[row].values = values_;
        rows_[row].dtypes = dtypes_;
    }
    const llvm::SaveAndRestore abreast(abreast_, true);
    const llvm::SaveAndRestore grouped(grouped_, true);
    std::int64_t row = 0;
    in_each_row([&] {
        set_mixed_radix(b_.CreateAdd(first, i64(row++)), kernel_.inner_axes());
        for (std::size_t i = 0; i < running_.size(); ++i) clear_running(i);
    });
    emit_block(kernel_.body);
}

void KernelEmitter::clear_running(std::size_t index) {
    const Accumulator& accumulator = kernel_.accumulators[index];
    if (llvm::AllocaInst* keys = running_[index].keys; keys != nullptr) {
        b_.CreateStore(llvm::Constant::getNullValue(keys->getAllocatedType()), keys);
        b_.CreateStore(lowest_element(b_), running_[index].last);
        return;
    }
    const FoldState start = fold_identity(accumulator, carried(accumulator.dtype, running_[index].width));
    for (const auto& parts : running_[index].parts) {
        for (std::size_t part = 0; part < parts.size(); ++part) b_.CreateStore(start[part], parts[part]);
    }
    llvm::AllocaInst* blocks = running_[index].blocks;
    if (blocks != nullptr) b_.CreateStore(llvm::Constant::getNullValue(blocks->getAllocatedType()), blocks);
}

Value* KernelEmitter::positions_of(const std::vector<AxisId>& axes) {
    Value* positions = i64(1);
    for (const AxisId axis : axes) positions = b_.CreateMul(positions, extent(axis), "positions");
    return positions;
}

// Coordinates of a position among `axes`, outermost first.
void KernelEmitter::set_mixed_radix(Value* position, const std::vector<AxisId>& axes) {
    for (std::size_t i = axes.size(); i-- > 0;) {
        const AxisId axis = axes[i];
        Value*& coordinate = axis_[static_cast<std::size_t>(axis)];
        if (i == 0) {
            coordinate = position;
            continue;
        }
        coordinate = b_.CreateURem(position, extent(axis), kernel_.axis(axis).label());
        position = b_.CreateUDiv(position, extent(axis));
    }
}

// for (i = from; i < to; i = body(i))
void KernelEmitter::loop_while_below(Value* from, Value* to, const char* name,
                                     const std::function<Value*(Value*)>& body) {
    llvm::BasicBlock* before = b_.GetInsertBlock();
    auto* head = llvm::BasicBlock::Create(b_.getContext(), llvm::Twine(name) + "_head", function_);
    auto* inside = llvm::BasicBlock::Create(b_.getContext(), llvm::Twine(name) + "_body", function_);
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    llvm::PHINode* index = b_.CreatePHI(b_.getInt64Ty(), 2, name);
    index->addIncoming(from, before);
    Value* more = b_.CreateICmpSLT(index, to);

    b_.SetInsertPoint(inside);
    Value* next = body(index);
    index->addIncoming(next, b_.GetInsertBlock());
    b_.CreateBr(head);

    auto* after = llvm::BasicBlock::Create(b_.getContext(), llvm::Twine(name) + "_done", function_);
    b_.SetInsertPoint(head);
    b_.CreateCondBr(more, inside, after);
    b_.SetInsertPoint(after);
}

// for (i = from; i < to; i += step) body(i)
void KernelEmitter::count(Value* from, Value* to, Value* step, const char* name,
                          const std::function<void(Value*)>& body) {
    loop_while_below(from, to, name, [&](Value* index) {
        body(index);
        return b_.CreateNSWAdd(index, step);
    });
}

// ---- Values

Value* KernelEmitter::spread(Value* value, int width) {
    return width > 1 && !value->getType()->isVectorTy() ? b_.CreateVectorSplat(static_cast<unsigned>(width), value)
                                                        : value;
}

Value* KernelEmitter::number(Dtype dtype, double value, int width) {
    llvm::Type* type = carried(dtype, width);
    if (type->isFPOrFPVectorTy()) return llvm::ConstantFP::get(type, round_to(dtype, value));
    return llvm::ConstantInt::get(type, static_cast<std::uint64_t>(static_cast<std::int64_t>(value)), true);
}

Value* KernelEmitter::value(ValueId id) const {
    Value* found = values_.at(static_cast<std::size_t>(id));
    RJ_CHECK(found != nullptr, "emit/llvm: kernel {}: value {} is used before it is defined", kernel_.name, id);
    return found;
}

void KernelEmitter::define(ValueId id, Dtype dtype, Value* value, const std::string& label) {
    if (!label.empty() && !value->hasName() && llvm::isa<llvm::Instruction>(value)) value->setName(label);
    values_.at(static_cast<std::size_t>(id)) = value;
    dtypes_.at(static_cast<std::size_t>(id)) = dtype;
}

llvm::AllocaInst* KernelEmitter::stack(llvm::Type* type, const llvm::Twine& name, std::uint64_t align) {
    llvm::IRBuilder<> top(entry_, entry_->begin());
    llvm::AllocaInst* place = top.CreateAlloca(type, nullptr, name);
    place->setAlignment(llvm::Align(align));
    return place;
}

}  // namespace cpu_emit

std::unique_ptr<llvm::Module> emit_llvm(const Kernel& kernel, const CpuFeatures& features, llvm::LLVMContext& context) {
    return cpu_emit::KernelEmitter(kernel, features, context).emit();
}

}  // namespace rowjit
