// Loops over the columns of a row: whole vectors, several side by side where a reduction would wait for itself, then
// the powers of two that are left; and the fold at their end.
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/Support/SaveAndRestore.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "compiler/emit/llvm_emitter.h"
#include "compiler/emit/passing.h"
#include "compiler/passes/passes.h"

namespace rowjit::cpu_emit {
namespace {

// Accumulators need this many lanes in flight to hide the latency of an addition: four AVX-512 registers of f32, eight
// of AVX2; where little else is done, twice as many, which are added before they meet the state (layer_norm of 4096 f32
// columns: 34 GB/s, then 37). Other loops only need to amortise their counter.
constexpr int kAccumulatingLanes = 64;
constexpr int kLightlyAccumulatingLanes = 128;
constexpr int kPlainLanes = 32;
constexpr int kRoundingLanes = 64;  // of loops that rounds_often
constexpr int kMaxUnroll = 4;
constexpr std::int64_t kManyTerms = 1024;  // what their weights are off by cancels out
// Rows of no more vectors are taken without a loop where a column needs others', so that what two of them need is made
// once: of a head of 128 columns that is normed and rotated, what was rounded for the partner. On one core of Zen 4
// qk_norm_rope of bf16 took 4.3 ms and takes 3.3, rope 1.23 and 0.97; norms alone gained a twentieth and took two to
// three times as long to compile.
constexpr std::int64_t kVectorsAtOnce = 4;

bool needs_other_columns(const ColumnLoop& loop) {
    const auto differs = [](const Inst& one, const Inst& other) {
        return one.kind == InstKind::kLoad && other.kind == InstKind::kLoad && one.index == other.index &&
               one.coords != other.coords;
    };
    return std::any_of(loop.body.begin(), loop.body.end(), [&](const Inst& one) {
        return std::any_of(loop.body.begin(), loop.body.end(), [&](const Inst& other) { return differs(one, other); });
    });
}

bool keeps(const ColumnLoop& loop) {
    return std::any_of(loop.body.begin(), loop.body.end(),
                       [](const Inst& inst) { return inst.kind == InstKind::kKeep || inst.kind == InstKind::kKept; });
}

bool whole_row_at_once(const Value* from, const Value* to, const ColumnLoop& loop) {
    const bool whole = llvm::isa<llvm::ConstantInt>(from) && llvm::isa<llvm::ConstantInt>(to);
    return whole && loop.columns / loop.vector <= kVectorsAtOnce && needs_other_columns(loop);
}

bool are_periods(const Value* from, const Value* to, const ColumnLoop& loop) {
    const auto* first = llvm::dyn_cast<llvm::ConstantInt>(from);
    const auto* last = llvm::dyn_cast<llvm::ConstantInt>(to);
    if (loop.period == 0 || first == nullptr || last == nullptr) return false;
    if (loop.period == loop.columns) return first->isZero();  // the row, whose tail is not of [from, to)
    return first->getSExtValue() % loop.period == 0 && last->getSExtValue() % loop.period == 0;
}

}  // namespace

bool rounds_often(const ColumnLoop& loop) {
    constexpr std::ptrdiff_t kOften = 2;
    constexpr std::size_t kMostInsts = 48;  // of more the values of two vectors spill
    const auto rounds = [](const Inst& inst) {
        const bool makes = inst.kind == InstKind::kMap || inst.kind == InstKind::kCast;
        return makes && inst.dtype == Dtype::kBf16 && !is_exact_on_narrow(inst.op);
    };
    const bool draws = std::any_of(loop.body.begin(), loop.body.end(), [](const Inst& inst) {
        return inst.kind == InstKind::kMap && inst.op == Op::kUniform;
    });
    return !draws && loop.body.size() <= kMostInsts &&
           std::count_if(loop.body.begin(), loop.body.end(), rounds) >= kOften;
}

// Whether two vectors' instructions shall stand side by side: each rounding and function has a branch, over which the
// optimiser moves nothing, while a core looks a hundred instructions ahead and so finds more that wait for nothing. On
// Zen 4 in cache quick_gelu's backward 8.3 and 9.5 GB/s, softmax's 19.7 and 23.6. Without branches the optimiser does
// as much, and more vectors than it asks for only spill: dropout of f32 14.2 and 12.1.
bool KernelEmitter::branches_often(const ColumnLoop& loop) const {
    return rounds_often(loop) && (!b_.nans_are_narrow || special_functions(kernel_, loop) > 0);
}

int KernelEmitter::unroll_of(const ColumnLoop& loop) const {
    const bool accumulates = std::any_of(loop.body.begin(), loop.body.end(),
                                         [](const Inst& inst) { return inst.kind == InstKind::kAccumulate; });
    const int accumulating = loop.body.size() <= kLightInsts ? kLightlyAccumulatingLanes : kAccumulatingLanes;
    const int lanes = accumulates ? accumulating : branches_often(loop) ? kRoundingLanes : kPlainLanes;
    const auto vectors = static_cast<int>(std::max<std::int64_t>(1, loop.columns / loop.vector));
    return std::clamp(std::min(lanes / loop.vector, vectors), 1, kMaxUnroll);
}

void KernelEmitter::emit_block(const Block& block) {
    for (const Stmt& stmt : block) {
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) in_each_row([&] { emit_inst(*inst, {}); });
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) emit_column_loop(*loop);
        if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) in_each_row([&] { emit_all_reduce(*reduce); });
        if (const auto* open = std::get_if<OpenSteps>(&stmt.node)) open_steps(*open);
        if (const auto* close = std::get_if<CloseSteps>(&stmt.node)) close_steps(*close);
        // A barrier orders threads of a block; here there is one.
    }
}

// A row has one thread, so it takes its own number of steps.
void KernelEmitter::open_steps(const OpenSteps& steps) {
    steps_ = {steps.dtype, steps.most_steps, stack(carried(steps.dtype, 1), steps.label),
              stack(b_.getInt32Ty(), "step"), llvm::BasicBlock::Create(b_.getContext(), "step_head", function_)};
    b_.CreateStore(value(steps.start), steps_.state);
    b_.CreateStore(b_.getInt32(0), steps_.taken);
    b_.CreateBr(steps_.head);
    b_.SetInsertPoint(steps_.head);
    for (const int index : steps.accumulators) clear_running(static_cast<std::size_t>(index));
    define(steps.state, steps.dtype, b_.CreateLoad(steps_.state->getAllocatedType(), steps_.state), steps.label);
}

void KernelEmitter::close_steps(const CloseSteps& steps) {
    Value* next = value(steps.next);
    Value* before = b_.CreateLoad(steps_.state->getAllocatedType(), steps_.state);
    Value* still = b_.CreateOr(b_.CreateFCmpOEQ(next, before), b_.CreateFCmpUNO(before, before), "stands_still");
    b_.CreateStore(next, steps_.state);
    Value* taken = b_.CreateLoad(b_.getInt32Ty(), steps_.taken);
    b_.CreateStore(b_.CreateAdd(taken, b_.getInt32(1)), steps_.taken);
    Value* last = b_.CreateICmpEQ(taken, b_.getInt32(static_cast<std::uint32_t>(steps_.most)));
    auto* done = llvm::BasicBlock::Create(b_.getContext(), "steps_done", function_);
    b_.CreateCondBr(b_.CreateOr(still, last), done, steps_.head);
    b_.SetInsertPoint(done);
    define(steps.result, steps_.dtype, before);
    for (const CloseSteps::OfLast& of_last : steps.of_last) define(of_last.result, of_last.dtype, value(of_last.value));
}

// A loop that adds nothing to what all rows add to: one row after the other. Side by side its streams, of four rows
// each tensor, would lie on top of each other in the first-level cache where a row is some power of two long: of a
// norm's backward thirteen lines, for which eight places are there. In the second-level cache of Zen 3 the last loop of
// an RMS norm's of 4096 f32 columns took 1.37 us a row and takes 1.03; where rows begin at other lines, 0.8 and 0.9.
void KernelEmitter::emit_rows_apart(const ColumnLoop& loop) {
    const llvm::SaveAndRestore apart(abreast_, false);
    for (std::size_t row = 0; row < rows_.size(); ++row) in_row(row, [&] { emit_column_loop(loop); });
}

void KernelEmitter::emit_column_loop(const ColumnLoop& loop) {
    if (abreast_ && !adds_to_all_rows(loop)) return emit_rows_apart(loop);
    in_each_row([&] { hoist_uniform_loads(loop); });
    const std::int64_t block_columns = loop.iterations * loop.vector;
    const std::int64_t rest = loop.columns % loop.vector;
    RJ_CHECK(rest == 0 || loop.tail == ColumnLoop::Tail::kScalar,
             "emit/llvm: kernel {}: {} columns in vectors of {} need a scalar tail", kernel_.name, loop.columns,
             loop.vector);
    const std::int64_t whole = loop.columns - rest;
    if (column_block_ == nullptr) {
        emit_spans(loop, whole);
        if (rest > 0) emit_column_tail(loop, i64(whole), i64(0));
        return;
    }
    Value* first = b_.CreateMul(column_block_, i64(block_columns), "column_begin");
    Value* end = b_.CreateAdd(first, i64(block_columns));
    end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, i64(whole), {}, "column_end");
    emit_whole_columns(loop, first, end, first);
    if (rest == 0) return;
    // The one block that holds column `whole` takes the rest; the loop runs once there and not at all elsewhere.
    Value* mine = b_.CreateICmpEQ(column_block_, i64(whole / block_columns));
    count(i64(0), b_.CreateZExt(mine, b_.getInt64Ty()), i64(1), "tail",
          [&](Value*) { emit_column_tail(loop, i64(whole), first); });
}

// Each span of whole vectors with what is chosen there.
void KernelEmitter::emit_spans(const ColumnLoop& loop, std::int64_t whole) {
    const auto first = spans_.size();
    for (ColumnSpan& span : spans_of(kernel_, loop)) spans_.push_back(std::make_unique<ColumnSpan>(std::move(span)));
    if (first == spans_.size()) return emit_whole_columns(loop, i64(0), i64(whole), i64(0));
    for (std::size_t i = first; i < spans_.size(); ++i) {
        const ColumnSpan& span = *spans_[i];
        if (const auto found = fetches_.find(&loop); found != fetches_.end()) fetches_[&span.loop] = found->second;
        emit_whole_columns(span.loop, i64(span.begin), i64(std::min(span.end, whole)), i64(0));
    }
}

// Twice, where the loop has stores that a large launch lets pass the caches: not a span's without functions where the
// whole loop's, with them, do not.
void KernelEmitter::emit_whole_columns(const ColumnLoop& loop, Value* from, Value* to, Value* first_column) {
    const bool any = std::any_of(loop.body.begin(), loop.body.end(), [&](const Inst& i) { return streams(i, loop); });
    if (!any || stream_ == nullptr) return emit_columns(loop, from, to, first_column);
    auto* streamed = llvm::BasicBlock::Create(b_.getContext(), "streamed", function_);
    auto* cached = llvm::BasicBlock::Create(b_.getContext(), "cached", function_);
    auto* after = llvm::BasicBlock::Create(b_.getContext(), "stored", function_);
    b_.CreateCondBr(stream_, streamed, cached);
    b_.SetInsertPoint(streamed);
    streaming_loop_ = &loop;
    emit_columns(loop, from, to, first_column);
    streaming_loop_ = nullptr;
    b_.CreateBr(after);
    b_.SetInsertPoint(cached);
    emit_columns(loop, from, to, first_column);
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
}

// Whether nothing in a loop asks which column a lane is, and its vectors are all of bf16.
bool KernelEmitter::takes_pairs(const ColumnLoop& loop) const {
    if (!b_.cpu.avx2_alone) return false;
    return std::all_of(loop.body.begin(), loop.body.end(), [&](const Inst& inst) {
        switch (inst.kind) {
            case InstKind::kLoad:
            case InstKind::kStore: {
                const bool one = inst.kind == InstKind::kLoad && inst.access.kind != Access::Kind::kVector;
                if (one) return is_one_number(inst.access.kind);
                const bool in_order = inst.access.lanes.empty() && inst.access.anchor == 0;
                const Dtype dtype = kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype;
                return inst.access.kind == Access::Kind::kVector && in_order && dtype == Dtype::kBf16;
            }
            case InstKind::kAccumulate:
                return kernel_.accumulators[static_cast<std::size_t>(inst.index)].monoid != Monoid::kGreatest;
            case InstKind::kCoord:
            case InstKind::kSearch:
            case InstKind::kSumWhere: return false;
            default: return true;
        }
    });
}

// What one loop keeps another reads in the same order.
void KernelEmitter::find_pairs() {
    keeps_pairs_ = std::all_of(kernel_.body.begin(), kernel_.body.end(), [&](const Stmt& stmt) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        return loop == nullptr || !keeps(*loop) || takes_pairs(*loop);
    });
}

// Whole vectors of [from, to): several at a time, then one.
void KernelEmitter::emit_columns(const ColumnLoop& loop, Value* from, Value* to, Value* first_column) {
    const llvm::SaveAndRestore in_pairs(b_.in_pairs, takes_pairs(loop) && (keeps_pairs_ || !keeps(loop)));
    const int unroll = abreast_ ? 1 : unroll_of(loop);
    const std::vector<const Inst*> test = abreast_ ? std::vector<const Inst*>() : passing_test(kernel_, loop);
    const auto body = [&](Value* column, int copies, Period period = {}) {
        std::vector<Lanes> turn;
        for (int copy = 0; copy < copies; ++copy) {
            Value* mine = b_.CreateAdd(column, i64(std::int64_t{copy} * loop.vector));
            turn.push_back(
                {&loop.axes, loop.vector, mine, b_.CreateSub(mine, first_column), loop.vector, copy, period});
            period.place += loop.vector;
        }
        emit_where_some_pass(test, turn, [&] {
            if (!abreast_ && branches_often(loop)) {
                emit_side_by_side(loop, turn);
            } else {
                for (const Lanes& lanes : turn) emit_copy(loop, lanes);
            }
            in_each_row([&] { fold_terms(); });
        });
    };
    const auto turns = [&](Value* first, Value* last, int copies) {
        const char* name = copies == 1 ? "column" : "columns";
        count(first, last, i64(std::int64_t{loop.vector} * copies), name, [&](Value* column) { body(column, copies); });
    };
    const auto periods = [&](Value* first, Value* last) {
        count(first, last, i64(loop.period), "period", [&](Value* begin) {
            std::int64_t place = 0;
            while (place + loop.vector <= loop.period) {
                const auto copies =
                    static_cast<int>(std::min<std::int64_t>(unroll, (loop.period - place) / loop.vector));
                body(b_.CreateAdd(begin, i64(place)), copies, {begin, loop.period, place});
                place += std::int64_t{copies} * loop.vector;
            }
        });
    };
    const bool in_blocks =
        std::any_of(loop.body.begin(), loop.body.end(), [&](const Inst& i) { return sums_in_blocks(i, loop); });
    const auto in_sum_blocks = [&](Value* first, Value* last, std::int64_t columns, const auto& visit) {
        if (!in_blocks) return visit(first, last);
        count(first, last, i64(columns), "block", [&](Value* begin) {
            Value* end = b_.CreateAdd(begin, i64(columns));
            visit(begin, b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, last, {}, "block_end"));
            in_each_row([&] { end_block(loop); });
        });
    };
    const auto all_turns = [&](Value* first, Value* last) {
        in_sum_blocks(first, last, kSumBlock, [&](Value* begin, Value* end) { turns(begin, end, unroll); });
    };
    if (are_periods(from, to, loop)) {
        const std::int64_t block = std::max<std::int64_t>(1, kSumBlock / loop.period) * loop.period;
        return in_sum_blocks(from, to, block, periods);
    }
    if (!abreast_ && whole_row_at_once(from, to, loop)) {
        const std::int64_t end = llvm::cast<llvm::ConstantInt>(to)->getSExtValue();
        std::int64_t first = llvm::cast<llvm::ConstantInt>(from)->getSExtValue();
        while (first < end) {
            const auto copies = static_cast<int>(std::min<std::int64_t>(unroll, (end - first) / loop.vector));
            body(i64(first), copies);
            first += copies * loop.vector;
        }
        return;
    }
    if (unroll == 1) return all_turns(from, to);
    Value* step = i64(std::int64_t{loop.vector} * unroll);
    Value* span = b_.CreateSub(to, from);
    Value* split = b_.CreateAdd(from, b_.CreateSub(span, b_.CreateSRem(span, step)));
    all_turns(from, split);
    turns(split, to, 1);
}

// The body, behind a branch around it where there is a test: of a sparsemax of 128256 columns 40 pass the first step's,
// and fewer those of later ones.
void KernelEmitter::emit_where_some_pass(const std::vector<const Inst*>& test, const std::vector<Lanes>& turn,
                                         const std::function<void()>& body) {
    if (test.empty()) return body();
    Value* some = nullptr;
    for (const Lanes& lanes : turn) {
        for (const Inst* inst : test) {
            if (!can_hoist(*inst)) emit_inst(*inst, lanes);
        }
        Value* passes = value(test.back()->id);
        some = some == nullptr ? passes : b_.CreateOr(some, passes);
    }
    emit_where_any(some, "some_pass", body);
}

// The body, behind a branch that is seldom taken, where any lane's condition holds.
void KernelEmitter::emit_where_any(Value* condition, const char* name, const std::function<void()>& body) {
    if (condition->getType()->isVectorTy()) condition = b_.CreateOrReduce(condition);
    auto* inside = llvm::BasicBlock::Create(b_.getContext(), name, function_);
    auto* after = llvm::BasicBlock::Create(b_.getContext(), std::string("after_") + name, function_);
    b_.CreateCondBr(condition, inside, after, llvm::MDBuilder(b_.getContext()).createUnlikelyBranchWeights());
    b_.SetInsertPoint(inside);
    body();
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
}

bool KernelEmitter::sums_in_blocks(const Inst& inst, const ColumnLoop& loop) const {
    const std::int64_t most = lanes_are_rows_ ? kAcrossBlock : kSumBlock;
    if (inst.kind != InstKind::kAccumulate || loop.columns <= most) return false;
    const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(inst.index)];
    return accumulator.monoid == Monoid::kSum && accumulator.dtype == Dtype::kF32 && !accumulator.compensated;
}

void KernelEmitter::end_block(const ColumnLoop& loop) {
    for (const Inst& inst : loop.body) {
        if (!sums_in_blocks(inst, loop)) continue;
        const Running& running = running_[static_cast<std::size_t>(inst.index)];
        llvm::AllocaInst* part = running.parts[0][0];
        b_.CreateStore(sum_of_blocks(running), running.blocks);
        b_.CreateStore(llvm::Constant::getNullValue(part->getAllocatedType()), part);
    }
}

// This one's too.
Value* KernelEmitter::sum_of_blocks(const Running& running) {
    llvm::Type* type = running.blocks->getAllocatedType();
    Value* block = b_.CreateFPExt(read(running, 0)[0], type);
    return b_.CreateFAdd(b_.CreateLoad(type, running.blocks), block);
}

// One instruction for all vectors of a turn, then the next.
void KernelEmitter::emit_side_by_side(const ColumnLoop& loop, const std::vector<Lanes>& turn) {
    struct Copy {
        std::vector<Value*> values;
        std::vector<Dtype> dtypes;
    };
    std::vector<Copy> copies(turn.size(), Copy{values_, dtypes_});
    for (const Inst& inst : loop.body) {
        if (!lanes_are_rows_ && can_hoist(inst)) continue;
        for (std::size_t copy = 0; copy < turn.size(); ++copy) {
            values_.swap(copies[copy].values);
            dtypes_.swap(copies[copy].dtypes);
            emit_inst(inst, turn[copy]);
            values_.swap(copies[copy].values);
            dtypes_.swap(copies[copy].dtypes);
        }
    }
    for (const Lanes& lanes : turn) fetch(loop, lanes);
}

// The body for some lanes, of one row or of all that are abreast.
void KernelEmitter::emit_copy(const ColumnLoop& loop, const Lanes& lanes) {
    in_each_row([&] {
        emit_body(loop.body, lanes);
        if (abreast_) fold_terms();  // of one row, before those of the next fill the registers
        if (lanes.width == loop.vector) fetch(loop, lanes);
    });
    store_placed_sums();
}

// What rows abreast come to at one place of what they are reduced to.
Value* KernelEmitter::total_of(const PlacedSum& placed) {
    const Op op = placed.store->op;
    if (op == Op::kAdd) return sum_of(b_, placed.terms);
    Value* total = placed.terms.front().x;
    for (std::size_t i = 1; i < placed.terms.size(); ++i) total = apply(b_, op, total, placed.terms[i].x, nullptr);
    return total;
}

// The rows' terms are added to each other before they meet the sum: as f32 where they came from it, whose roundings
// are beside those of the terms what sums of four add to them, and an eighth of the conversions.
void KernelEmitter::store_placed_sums() {
    const bool was_abreast = std::exchange(abreast_, false);
    for (PlacedSum& sum : placed_) {
        const bool widened = std::all_of(sum.terms.begin(), sum.terms.end(),
                                         [&](const Term& term) { return widened_.contains(term.x); });
        for (Term& term : sum.terms) term.x = widened ? widened_.at(term.x) : term.x;
        Value* total = total_of(sum);
        const Dtype to = kernel_.tensors[static_cast<std::size_t>(sum.store->index)].dtype;
        if (widened) total = convert(b_, Dtype::kF32, to, total);
        store_memory(*sum.store, sum.address, total);
    }
    placed_.clear();
    abreast_ = was_abreast;
}

// Fewer columns than a vector: the powers of two they are made of, widest first, with no loop.
void KernelEmitter::emit_column_tail(const ColumnLoop& loop, Value* from, Value* first_column) {
    const std::int64_t rest = loop.columns % loop.vector;
    std::int64_t done = 0;
    for (int width = loop.vector / 2; width > 0; width /= 2) {
        if ((rest & width) == 0) continue;
        Value* column = b_.CreateAdd(from, i64(done));
        Lanes lanes{&loop.axes, loop.vector, column, b_.CreateSub(column, first_column), width, 0};
        if (loop.period == loop.columns) lanes.period = {i64(0), loop.period, loop.columns - rest + done};
        emit_copy(loop, lanes);
        in_each_row([&] { fold_terms(); });
        done += width;
    }
}

void KernelEmitter::emit_body(const std::vector<Inst>& body, const Lanes& lanes) {
    for (const Inst& inst : body) {
        if (!lanes_are_rows_ && can_hoist(inst)) continue;
        emit_inst(inst, lanes);
    }
}

// A load whose address no column takes part in is done once a row, unless a store of the kernel might change it.
bool KernelEmitter::can_hoist(const Inst& inst) const {
    if (inst.kind != InstKind::kLoad || inst.access.kind != Access::Kind::kUniform) return false;
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    return !tensor.written && !tensor.aliased;
}

void KernelEmitter::hoist_uniform_loads(const ColumnLoop& loop) {
    for (const Inst& inst : loop.body) {
        if (can_hoist(inst)) emit_inst(inst, {});
    }
}

void KernelEmitter::emit_accumulate(const Inst& inst, const Lanes& lanes) {
    const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(inst.index)];
    Value* x = convert(b_, dtype(inst.operands[0]), accumulator.dtype, value(inst.operands[0]));
    x = spread(x, lanes.width);
    if (reduces_rows_) {
        const RunningRows& rows = running_rows_[static_cast<std::size_t>(inst.index)];
        if (inst.operands.size() > 1) x = b_.CreateFMul(x, spread(value(inst.operands[1]), lanes.width));
        const std::vector<llvm::AllocaInst*>& level = rows.levels[static_cast<std::size_t>(row_level_)];
        const FoldState before = read_rows(level, lanes);
        return write_rows(level, lanes, fold_include(b_, accumulator, before, x));
    }
    const Running& running = running_[static_cast<std::size_t>(inst.index)];
    Value* factor = inst.operands.size() > 1 ? spread(value(inst.operands[1]), lanes.width) : nullptr;
    if (running.keys != nullptr) {
        terms_[inst.index].push_back({x, factor});
        return;
    }
    if (folds_together(accumulator.monoid) && lanes.width >= running.width) {
        std::vector<Term>& terms = terms_[inst.index];
        const auto part = [&](Value* v, int from) {
            if (v == nullptr || lanes.width == running.width) return v;
            std::vector<int> mask(static_cast<std::size_t>(running.width));
            std::iota(mask.begin(), mask.end(), from);
            return running.width > 1 ? b_.CreateShuffleVector(v, mask) : lane_of(v, from);
        };
        for (int from = 0; from < lanes.width; from += running.width)
            terms.push_back({part(x, from), part(factor, from)});
        return;
    }
    const bool of_two_rows = accumulator.monoid == Monoid::kDivergence;
    if (factor != nullptr && !of_two_rows) x = b_.CreateFMul(x, factor);
    const auto& parts = running.parts[static_cast<std::size_t>(lanes.chain)];
    const FoldState before = read(running, lanes.chain);
    FoldState after;
    if (lanes.width == running.width) {
        after = fold_include(b_, accumulator, before, x);
    } else {
        // Fewer lanes than the state has: lanes beyond them keep theirs.
        std::vector<int> widened;
        std::vector<int> blended;
        for (int lane = 0; lane < running.width; ++lane) {
            widened.push_back(std::min(lane, lanes.width - 1));
            blended.push_back(lane < lanes.width ? lane : running.width + lane);
        }
        const auto padded = [&](Value* v) {
            return lanes.width > 1 ? b_.CreateShuffleVector(v, widened) : spread(v, running.width);
        };
        after = of_two_rows ? fold_include_all(b_, accumulator, before, {{padded(x), padded(factor)}})
                            : fold_include(b_, accumulator, before, padded(x));
        for (std::size_t part = 0; part < after.size(); ++part) {
            after[part] = b_.CreateShuffleVector(after[part], before[part], blended);
        }
    }
    for (std::size_t part = 0; part < after.size(); ++part) b_.CreateStore(after[part], parts[part]);
}

// What the vectors of a turn have left, at its end.
void KernelEmitter::fold_terms() {
    for (const auto& [index, terms] : terms_) {
        const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
        const Running& running = running_[static_cast<std::size_t>(index)];
        if (running.keys != nullptr) {
            offer_terms(accumulator, running, terms);
            continue;
        }
        const FoldState after =
            fold_include_all(b_, accumulator, read(running, 0), terms, running.columns >= kManyTerms);
        for (std::size_t part = 0; part < after.size(); ++part) b_.CreateStore(after[part], running.parts[0][part]);
    }
    terms_.clear();
}

// A turn's elements, whose places are their factors: where none is as great as the last that is kept they are done
// with.
void KernelEmitter::offer_terms(const Accumulator& accumulator, const Running& running,
                                const std::vector<Term>& terms) {
    Value* last = b_.CreateLoad(b_.getFloatTy(), running.last);
    Value* passing = nullptr;
    for (const Term& term : terms) {
        const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(term.x->getType());
        Value* passes =
            b_.CreateFCmpUGE(term.x, spread(last, type != nullptr ? static_cast<int>(type->getNumElements()) : 1));
        passing = passing == nullptr ? passes : b_.CreateOr(passing, passes);
    }
    emit_where_any(passing, "offer", [&] {
        for (const Term& term : terms)
            b_.CreateStore(offer_elements(b_, running.keys, accumulator.greatest, term.x, term.factor), running.last);
    });
}

FoldState KernelEmitter::read(const Running& running, int chain) {
    FoldState state;
    for (llvm::AllocaInst* part : running.parts[static_cast<std::size_t>(chain)]) {
        state.push_back(b_.CreateLoad(part->getAllocatedType(), part));
    }
    return state;
}

// Chains pairwise, then halves of the lanes, down to one; lanes that are rows have a result each.
void KernelEmitter::emit_all_reduce(const AllReduce& reduce) {
    std::size_t result = 0;
    for (const int index : reduce.accumulators) {
        const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
        const Running& running = running_[static_cast<std::size_t>(index)];
        if (running.keys != nullptr) {
            for (int rank = 0; rank < accumulator.greatest; ++rank) {
                Value* place = place_of(b_, running.keys, accumulator.greatest, rank);
                define(reduce.results.at(result++), accumulator.result(), place, accumulator.label);
            }
            continue;
        }
        std::vector<FoldState> states;
        for (int chain = 0; chain < running.chains; ++chain) states.push_back(read(running, chain));
        if (running.blocks != nullptr) states = {{sum_of_blocks(running)}};
        fold_level(b_, accumulator, &states);
        while (states.size() > 1) {
            std::vector<FoldState> merged;
            for (std::size_t i = 0; i + 1 < states.size(); i += 2) {
                merged.push_back(fold_merge_level(b_, accumulator, states[i], states[i + 1]));
            }
            if (states.size() % 2 == 1) merged.push_back(states.back());
            states = std::move(merged);
        }
        FoldState state = states[0];
        const int results = lanes_are_rows_ ? running.width : 1;
        for (int width = running.width; width > results; width /= 2) {
            std::vector<int> low;
            std::vector<int> high;
            for (int lane = 0; lane < width / 2; ++lane) {
                low.push_back(lane);
                high.push_back(lane + width / 2);
            }
            FoldState left;
            FoldState right;
            for (Value* part : state) {
                left.push_back(width == 2 ? lane_of(part, 0) : b_.CreateShuffleVector(part, low));
                right.push_back(width == 2 ? lane_of(part, 1) : b_.CreateShuffleVector(part, high));
            }
            state = fold_merge_level(b_, accumulator, left, right);
        }
        if (running.blocks != nullptr) state = {b_.CreateFPTrunc(state[0], carried(Dtype::kF32, results))};
        for (Value* component : fold_finish(b_, accumulator, state)) {
            define(reduce.results.at(result++), accumulator.dtype, component, accumulator.label);
        }
    }
}

}  // namespace rowjit::cpu_emit
