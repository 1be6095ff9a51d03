#include "compiler/emit/llvm.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/emit/llvm_monoid.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

using llvm::Value;

// Accumulators need this many lanes in flight to hide the latency of an addition: four AVX-512 registers of f32, eight
// of AVX2. Other loops only need to amortise their counter.
constexpr int kAccumulatingLanes = 64;
constexpr int kPlainLanes = 32;
constexpr int kMaxUnroll = 4;

// A kernel that reduces rows takes this many of its results at a time: consecutive positions along its innermost row
// axis, a page's worth of each reduced row. Their accumulators stay in the first-level cache.
constexpr std::int64_t kResultLanes = 1024;
// Reduced rows are folded by sixteens, sixteens of those and so on, so that a sum is about as exact as a pairwise one:
// added row by row, the sum of 16,384 rows would be 30 units off where eager is 1.
constexpr std::int64_t kReducedBlock = 16;
constexpr int kReducedLevels = 4;

// What the lanes of one copy of a loop body stand for.
struct Lanes {
    const std::vector<AxisId>* axes = nullptr;  // the columns, outermost first; or the innermost row axis; null: none
    int vector = 1;                             // of the loop: what its accesses were classified for
    Value* column = nullptr;                    // of lane 0 along `axes`, i64
    Value* place = nullptr;                     // of lane 0 within kept slots or accumulators, i64
    int width = 1;
    int chain = 0;  // which accumulator chain this copy feeds
};

// How the lanes of an access meet memory.
enum class Reach { kOneAddress, kVector, kEachLane };

// An accumulator's state over the columns of a row: `chains` independent copies of `width` lanes, so that consecutive
// vectors do not wait for each other. Parts are stack slots, which the optimiser turns into registers.
struct Running {
    int width = 1;
    int chains = 1;
    std::vector<std::vector<llvm::AllocaInst*>> parts;  // [chain][part]
};

// An accumulator's state over reduced rows, an array of kResultLanes for each part. Level 0 is of the current block of
// rows, level l of the current block of 16^(l+1) rows, the last of all.
struct RunningRows {
    std::vector<std::vector<llvm::AllocaInst*>> levels;  // [level][part]
    const std::vector<llvm::AllocaInst*>& total() const { return levels.back(); }
};

int unroll_of(const ColumnLoop& loop) {
    const bool accumulates = std::any_of(loop.body.begin(), loop.body.end(),
                                         [](const Inst& inst) { return inst.kind == InstKind::kAccumulate; });
    const int lanes = accumulates ? kAccumulatingLanes : kPlainLanes;
    const auto vectors = static_cast<int>(std::max<std::int64_t>(1, loop.columns / loop.vector));
    return std::clamp(std::min(lanes / loop.vector, vectors), 1, kMaxUnroll);
}

class KernelEmitter {
  public:
    KernelEmitter(const Kernel& kernel, CpuFeatures features, llvm::LLVMContext& context)
        : kernel_(kernel),
          features_(features),
          module_(std::make_unique<llvm::Module>(kernel.name, context)),
          b_(context),
          axis_(kernel.axes.size(), nullptr),
          extent_(kernel.axes.size(), nullptr),
          values_(static_cast<std::size_t>(kernel.value_count), nullptr),
          dtypes_(static_cast<std::size_t>(kernel.value_count), Dtype::kF32) {}

    std::unique_ptr<llvm::Module> emit();

  private:
    // Frame.
    void check_shape();
    void load_arguments();
    void make_alias_scopes();
    void make_running();
    void make_slots();
    void emit_blocks();
    void emit_rows(Value* first, Value* last);
    void emit_row(Value* row);
    void set_mixed_radix(Value* position, const std::vector<AxisId>& axes);
    Value* positions_of(const std::vector<AxisId>& axes);
    void loop_while_below(Value* from, Value* to, const char* name, const std::function<Value*(Value*)>& body);
    void count(Value* from, Value* to, Value* step, const char* name, const std::function<void(Value*)>& body);

    // Statements.
    void emit_block(const Block& block);
    void emit_column_loop(const ColumnLoop& loop);
    void emit_columns(const ColumnLoop& loop, Value* from, Value* to, Value* first_column);
    void emit_column_tail(const ColumnLoop& loop, Value* from, Value* first_column);
    void emit_all_reduce(const AllReduce& reduce);
    void emit_body(const std::vector<Inst>& body, const Lanes& lanes);
    void hoist_uniform_loads(const ColumnLoop& loop);

    // Reductions over rows.
    void emit_row_reductions(Value* first, Value* last);
    void emit_result_chunk(Value* first, Value* lanes);
    void emit_rows_loop(std::size_t statement, const RowsLoop& loop, Value* lanes, Value* whole);
    void for_lanes(Value* lanes, Value* whole, const std::function<void(const Lanes&)>& body);
    void emit_row_values(std::size_t statements, const Lanes& lanes, bool stores);
    Value* unit_strides();
    int result_vector() const;
    Reach reach_of_rows(const Inst& inst);
    FoldState read_rows(const std::vector<llvm::AllocaInst*>& arrays, const Lanes& lanes);
    void write_rows(const std::vector<llvm::AllocaInst*>& arrays, const Lanes& lanes, const FoldState& state);

    // Instructions.
    void emit_inst(const Inst& inst, const Lanes& lanes);
    Value* emit_map(const Inst& inst);
    Value* emit_coord(AxisId axis, const Lanes& lanes, Dtype dtype);
    Value* emit_load(const Inst& inst, const Lanes& lanes);
    void emit_store(const Inst& inst, const Lanes& lanes);
    void emit_accumulate(const Inst& inst, const Lanes& lanes);

    // Coordinates and memory.
    Value* coordinate(const Coord& coord, const Lanes& lanes, int lane);
    Value* axis_coordinate(AxisId axis, const Lanes& lanes, int lane);
    Value* divide_floor(Value* value, std::int64_t divisor, bool remainder, bool nonnegative);
    Value* data_coordinate(ValueId id, int lane);
    bool never_negative(const Coord& coord) const;
    Value* address(const Inst& inst, const Lanes& lanes, int lane, Value* outside);
    Value* extent(AxisId axis);
    Value* load_memory(const Inst& inst, Value* address, int width);
    void store_memory(const Inst& inst, Value* address, Value* carried);
    void annotate(llvm::Instruction* access, int tensor);
    Reach reach(const Inst& inst, const Lanes& lanes);
    bool can_hoist(const Inst& inst) const;

    FoldState read(const Running& running, int chain);

    // Values.
    llvm::Type* carried(Dtype dtype, int width) {
        llvm::Type* type = carried_type(b_, dtype);
        return width > 1 ? llvm::FixedVectorType::get(type, static_cast<unsigned>(width)) : type;
    }
    Value* i64(std::int64_t value) { return b_.getInt64(static_cast<std::uint64_t>(value)); }
    Value* spread(Value* value, int width);
    Value* number(Dtype dtype, double value, int width = 1);
    Value* value(ValueId id) const;
    Dtype dtype(ValueId id) const { return dtypes_[static_cast<std::size_t>(id)]; }
    void define(ValueId id, Dtype dtype, Value* value, const std::string& label = {});
    llvm::AllocaInst* stack(llvm::Type* type, const llvm::Twine& name, std::uint64_t align = 64);
    Value* lane_of(Value* value, int lane) {
        return value->getType()->isVectorTy() ? b_.CreateExtractElement(value, static_cast<std::uint64_t>(lane))
                                              : value;
    }

    const Kernel& kernel_;
    const CpuFeatures features_;
    std::unique_ptr<llvm::Module> module_;
    llvm::IRBuilder<> b_;
    llvm::Function* function_ = nullptr;
    llvm::BasicBlock* entry_ = nullptr;

    std::vector<Value*> pointers_;                      // by tensor
    std::map<std::pair<int, AxisId>, Value*> strides_;  // by tensor and row axis, elements
    std::vector<Value*> scalars_;                       // by scalar
    std::vector<Value*> axis_;                          // the current row's coordinates, i64
    std::vector<Value*> extent_;                        // of run-time axes, i64
    std::vector<llvm::MDNode*> scopes_;                 // by tensor
    std::vector<llvm::MDNode*> other_scopes_;           // by tensor
    std::vector<Running> running_;                      // by accumulator
    bool reduces_rows_ = false;
    std::vector<RunningRows> running_rows_;  // by accumulator
    std::vector<AxisId> result_axis_;        // the innermost row axis, when rows are reduced
    Value* chunk_first_ = nullptr;           // of the lanes' results, i64 along result_axis_
    std::vector<llvm::AllocaInst*> slots_;   // by slot
    llvm::AllocaInst* outside_ = nullptr;    // what a load outside the extent reads: zeros
    llvm::AllocaInst* discarded_ = nullptr;  // where a store outside the extent goes
    Value* column_block_ = nullptr;          // i64; null when rows are whole
    std::vector<Value*> values_;             // by ValueId
    std::vector<Dtype> dtypes_;              // by ValueId
};

// ---- Frame

std::unique_ptr<llvm::Module> KernelEmitter::emit() {
    check_shape();
    llvm::Type* pointer = b_.getPtrTy();
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), {pointer, b_.getInt64Ty(), b_.getInt64Ty()}, false);
    function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, kernel_.name, *module_);
    function_->addFnAttr(llvm::Attribute::NoUnwind);
    function_->getArg(0)->setName("arguments");
    function_->getArg(1)->setName("block_begin");
    function_->getArg(2)->setName("block_end");
    entry_ = llvm::BasicBlock::Create(b_.getContext(), "entry", function_);
    b_.SetInsertPoint(entry_);

    load_arguments();
    make_alias_scopes();
    make_running();
    make_slots();
    emit_blocks();
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
    if (reduces_rows_ && !kernel_.row_axes.empty()) result_axis_ = {kernel_.row_axes.back()};
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
                    loaded = widen(b_, features_, dtype, b_.CreateLoad(b_.getInt8Ty(), place));
                } else {
                    loaded = b_.CreateLoad(carried(dtype, 1), place, argument.name);
                    loaded = round_carried(b_, features_, dtype, loaded);
                }
                scalars_[index] = loaded;
                break;
            }
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
            llvm::Type* lanes = llvm::ArrayType::get(carried(accumulator.dtype, 1), kResultLanes);
            for (int level = 0; level < kReducedLevels; ++level) {
                std::vector<llvm::AllocaInst*>& arrays = running.levels.emplace_back();
                for (int part = 0; part < fold_parts(accumulator.monoid); ++part) {
                    arrays.push_back(stack(lanes, accumulator.label));
                }
            }
        }
        return;
    }
    running_.resize(kernel_.accumulators.size());
    for (const Stmt& stmt : kernel_.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        for (const Inst& inst : loop->body) {
            if (inst.kind != InstKind::kAccumulate) continue;
            Running& running = running_[static_cast<std::size_t>(inst.index)];
            running.width = std::max(running.width, loop->vector);
            running.chains = std::max(running.chains, unroll_of(*loop));
        }
    }
    for (std::size_t i = 0; i < running_.size(); ++i) {
        const Accumulator& accumulator = kernel_.accumulators[i];
        for (int chain = 0; chain < running_[i].chains; ++chain) {
            std::vector<llvm::AllocaInst*>& parts = running_[i].parts.emplace_back();
            for (int part = 0; part < fold_parts(accumulator.monoid); ++part) {
                parts.push_back(stack(carried(accumulator.dtype, running_[i].width), accumulator.label));
            }
        }
    }
}

void KernelEmitter::make_slots() {
    // Slots hold one column block of the longest loop that keeps into them.
    std::int64_t places = 0;
    int widest = 1;
    for (const Stmt& stmt : kernel_.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        widest = std::max(widest, loop->vector);
        places = std::max(places, std::min(loop->columns, loop->iterations * loop->vector));
    }
    std::int64_t bytes = 0;
    for (const Slot& slot : kernel_.slots) {
        slots_.push_back(
            stack(llvm::ArrayType::get(stored_type(b_, slot.dtype), static_cast<std::uint64_t>(places)), slot.label));
        bytes += places * static_cast<std::int64_t>(size_bytes(slot.dtype));
    }
    RJ_CHECK(bytes <= kMaxKeptBytes, "emit/llvm: kernel {} keeps {} bytes of a row; at most {} fit the stack",
             kernel_.name, bytes, kMaxKeptBytes);
    const auto bytes_of_vector = static_cast<std::uint64_t>(widest) * 8;
    llvm::Type* vector = llvm::ArrayType::get(b_.getInt8Ty(), bytes_of_vector);
    outside_ = stack(vector, "outside");
    discarded_ = stack(vector, "discarded");
    b_.CreateStore(llvm::Constant::getNullValue(vector), outside_);
}

void KernelEmitter::emit_blocks() {
    Value* rows = positions_of(kernel_.row_axes);
    Value* per_block = i64(kernel_.schedule.rows_per_block);
    const auto rows_of = [&](Value* first_block, Value* last_block) {
        Value* end = b_.CreateMul(last_block, per_block);
        end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, rows, {}, "row_end");
        emit_rows(b_.CreateMul(first_block, per_block, "row_begin"), end);
    };
    Value* begin = function_->getArg(1);
    Value* end = function_->getArg(2);
    if (kernel_.schedule.column_blocks == 1) return rows_of(begin, end);
    count(begin, end, i64(1), "block", [&](Value* block) {
        Value* row_block = b_.CreateUDiv(block, i64(kernel_.schedule.column_blocks), "row_block");
        column_block_ = b_.CreateURem(block, i64(kernel_.schedule.column_blocks), "column_block");
        rows_of(row_block, b_.CreateAdd(row_block, i64(1)));
    });
}

void KernelEmitter::emit_rows(Value* first, Value* last) {
    if (reduces_rows_) return emit_row_reductions(first, last);
    count(first, last, i64(1), "row", [&](Value* row) { emit_row(row); });
}

void KernelEmitter::emit_row(Value* row) {
    set_mixed_radix(row, kernel_.row_axes);
    for (std::size_t i = 0; i < running_.size(); ++i) {
        const Accumulator& accumulator = kernel_.accumulators[i];
        const FoldState start = fold_identity(accumulator.monoid, carried(accumulator.dtype, running_[i].width));
        for (const auto& parts : running_[i].parts) {
            for (std::size_t part = 0; part < parts.size(); ++part) b_.CreateStore(start[part], parts[part]);
        }
    }
    emit_block(kernel_.body);
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

// ---- Statements

void KernelEmitter::emit_block(const Block& block) {
    for (const Stmt& stmt : block) {
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) emit_inst(*inst, {});
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) emit_column_loop(*loop);
        if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) emit_all_reduce(*reduce);
        // A barrier orders threads of a block; here there is one.
    }
}

void KernelEmitter::emit_column_loop(const ColumnLoop& loop) {
    hoist_uniform_loads(loop);
    const std::int64_t block_columns = loop.iterations * loop.vector;
    const std::int64_t rest = loop.columns % loop.vector;
    RJ_CHECK(rest == 0 || loop.tail == ColumnLoop::Tail::kScalar,
             "emit/llvm: kernel {}: {} columns in vectors of {} need a scalar tail", kernel_.name, loop.columns,
             loop.vector);
    const std::int64_t whole = loop.columns - rest;
    if (column_block_ == nullptr) {
        emit_columns(loop, i64(0), i64(whole), i64(0));
        if (rest > 0) emit_column_tail(loop, i64(whole), i64(0));
        return;
    }
    Value* first = b_.CreateMul(column_block_, i64(block_columns), "column_begin");
    Value* end = b_.CreateAdd(first, i64(block_columns));
    end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, i64(whole), {}, "column_end");
    emit_columns(loop, first, end, first);
    if (rest == 0) return;
    // The one block that holds column `whole` takes the rest; the loop runs once there and not at all elsewhere.
    Value* mine = b_.CreateICmpEQ(column_block_, i64(whole / block_columns));
    count(i64(0), b_.CreateZExt(mine, b_.getInt64Ty()), i64(1), "tail",
          [&](Value*) { emit_column_tail(loop, i64(whole), first); });
}

// Whole vectors of [from, to): several at a time, then one.
void KernelEmitter::emit_columns(const ColumnLoop& loop, Value* from, Value* to, Value* first_column) {
    const int unroll = unroll_of(loop);
    const auto body = [&](Value* column, int copies) {
        for (int copy = 0; copy < copies; ++copy) {
            Value* mine = b_.CreateAdd(column, i64(std::int64_t{copy} * loop.vector));
            emit_body(loop.body, {&loop.axes, loop.vector, mine, b_.CreateSub(mine, first_column), loop.vector, copy});
        }
    };
    if (unroll == 1) {
        count(from, to, i64(loop.vector), "column", [&](Value* column) { body(column, 1); });
        return;
    }
    Value* step = i64(std::int64_t{loop.vector} * unroll);
    Value* span = b_.CreateSub(to, from);
    Value* split = b_.CreateAdd(from, b_.CreateSub(span, b_.CreateSRem(span, step)));
    count(from, split, step, "columns", [&](Value* column) { body(column, unroll); });
    count(split, to, i64(loop.vector), "column", [&](Value* column) { body(column, 1); });
}

// Fewer columns than a vector: the powers of two they are made of, widest first, with no loop.
void KernelEmitter::emit_column_tail(const ColumnLoop& loop, Value* from, Value* first_column) {
    std::int64_t done = 0;
    for (int width = loop.vector / 2; width > 0; width /= 2) {
        if ((loop.columns % loop.vector & width) == 0) continue;
        Value* column = b_.CreateAdd(from, i64(done));
        emit_body(loop.body, {&loop.axes, loop.vector, column, b_.CreateSub(column, first_column), width, 0});
        done += width;
    }
}

void KernelEmitter::emit_body(const std::vector<Inst>& body, const Lanes& lanes) {
    for (const Inst& inst : body) {
        if (!reduces_rows_ && can_hoist(inst)) continue;
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

// ---- Reductions over rows
//
// The lanes are results: a chunk of consecutive positions along the innermost row axis. For every reduced row the whole
// chunk is taken before the next row, so that memory is read along the rows; one result at a time would use a few bytes
// of every cache line it fetches.

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
    // Rows [begin, end) into `level`, which starts empty.
    const std::function<void(std::size_t, Value*, Value*)> fold = [&](std::size_t level, Value* begin, Value* end) {
        for_accumulators([&](const Accumulator& accumulator, const RunningRows& running, const Lanes& group) {
            llvm::Type* type = carried(accumulator.dtype, group.width);
            write_rows(running.levels[level], group, fold_identity(accumulator.monoid, type));
        });
        if (level == 0) {
            count(begin, end, i64(1), "reduced", [&](Value* position) {
                set_mixed_radix(position, loop.axes);
                for_lanes(lanes, whole, [&](const Lanes& group) {
                    emit_row_values(statement, group, false);
                    emit_body(loop.body, group);
                });
            });
            return;
        }
        const auto step = static_cast<std::int64_t>(std::pow(kReducedBlock, level));
        count(begin, end, i64(step), "reduced_block", [&](Value* block) {
            Value* block_end = b_.CreateNSWAdd(block, i64(step));
            fold(level - 1, block, b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, block_end, end));
            for_accumulators([&](const Accumulator& accumulator, const RunningRows& running, const Lanes& group) {
                const FoldState before = read_rows(running.levels[level], group);
                const FoldState more = read_rows(running.levels[level - 1], group);
                write_rows(running.levels[level], group, fold_merge(b_, accumulator.monoid, before, more));
            });
        });
    };
    fold(kReducedLevels - 1, i64(0), positions_of(loop.axes));
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
            for (Value* component : fold_finish(b_, accumulator.monoid, state)) {
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
        if (const auto* loop = std::get_if<RowsLoop>(&stmt.node)) {
            for (const Inst& inst : loop->body) require(inst);
        }
    }
    return unit;
}

// Given unit strides along the lanes.
Reach KernelEmitter::reach_of_rows(const Inst& inst) {
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

// ---- Instructions

void KernelEmitter::emit_inst(const Inst& inst, const Lanes& lanes) {
    switch (inst.kind) {
        case InstKind::kConst: return define(inst.id, inst.dtype, number(inst.dtype, inst.value));
        case InstKind::kScalar:
            return define(inst.id, inst.dtype,
                          convert(b_, features_, kernel_.scalars[static_cast<std::size_t>(inst.index)].dtype,
                                  inst.dtype, scalars_[static_cast<std::size_t>(inst.index)]));
        case InstKind::kExtent:
            return define(inst.id, inst.dtype, convert(b_, features_, Dtype::kI64, inst.dtype, extent(inst.axis)),
                          inst.label);
        case InstKind::kCoord: return define(inst.id, inst.dtype, emit_coord(inst.axis, lanes, inst.dtype), inst.label);
        case InstKind::kMap: return define(inst.id, inst.dtype, emit_map(inst), inst.label);
        case InstKind::kCast:
            return define(inst.id, inst.dtype,
                          convert(b_, features_, dtype(inst.operands[0]), inst.dtype, value(inst.operands[0])),
                          inst.label);
        case InstKind::kLoad: return define(inst.id, inst.dtype, emit_load(inst, lanes), inst.label);
        case InstKind::kStore: return emit_store(inst, lanes);
        case InstKind::kAccumulate: return emit_accumulate(inst, lanes);
        case InstKind::kKeep: {
            const Slot& slot = kernel_.slots[static_cast<std::size_t>(inst.index)];
            Value* place = b_.CreateInBoundsGEP(stored_type(b_, slot.dtype),
                                                slots_[static_cast<std::size_t>(inst.index)], lanes.place);
            Value* kept = spread(value(inst.operands[0]), lanes.width);
            b_.CreateAlignedStore(narrow(b_, features_, slot.dtype, kept), place, llvm::Align(size_bytes(slot.dtype)));
            return;
        }
        case InstKind::kKept: {
            const Slot& slot = kernel_.slots[static_cast<std::size_t>(inst.index)];
            llvm::Type* element = stored_type(b_, slot.dtype);
            Value* place = b_.CreateInBoundsGEP(element, slots_[static_cast<std::size_t>(inst.index)], lanes.place);
            llvm::Type* type =
                lanes.width > 1 ? llvm::FixedVectorType::get(element, static_cast<unsigned>(lanes.width)) : element;
            Value* stored = b_.CreateAlignedLoad(type, place, llvm::Align(size_bytes(slot.dtype)));
            return define(inst.id, inst.dtype, widen(b_, features_, slot.dtype, stored), inst.label);
        }
    }
}

// Operations whose result is one of their operands, up to sign: nothing to round.
bool is_exact(Op op) {
    switch (op) {
        case Op::kNeg:
        case Op::kAbs:
        case Op::kMin:
        case Op::kMax:
        case Op::kFloor:
        case Op::kSelect: return true;
        default: return false;
    }
}

Value* KernelEmitter::emit_map(const Inst& inst) {
    int width = 1;
    for (const ValueId id : inst.operands) {
        const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(value(id)->getType());
        if (type != nullptr) width = static_cast<int>(type->getNumElements());
    }
    std::array<Value*, 3> operands = {};
    RJ_CHECK(inst.operands.size() <= operands.size(), "emit/llvm: {} operands of {}", inst.operands.size(),
             info(inst.op).name);
    for (std::size_t i = 0; i < inst.operands.size(); ++i) operands[i] = spread(value(inst.operands[i]), width);
    Value* result = apply(b_, inst.op, operands[0], operands[1], operands[2]);
    return is_exact(inst.op) ? result : round_carried(b_, features_, inst.dtype, result);
}

// i32 lanes: columns fit, and 64-bit vector division would be done lane by lane.
Value* KernelEmitter::emit_coord(AxisId axis, const Lanes& lanes, Dtype dtype) {
    if (axis_[static_cast<std::size_t>(axis)] != nullptr || lanes.width == 1) {
        return convert(b_, features_, Dtype::kI64, dtype, axis_coordinate(axis, lanes, 0));
    }
    const auto& axes = *lanes.axes;
    const auto found = std::find(axes.begin(), axes.end(), axis);
    RJ_CHECK(found != axes.end(), "emit/llvm: axis {} is not of this loop", kernel_.axis(axis).label());
    std::int64_t inner = 1;
    for (auto it = found + 1; it != axes.end(); ++it) inner *= kernel_.axis(*it).extent;
    if (reduces_rows_) {  // a row axis, the only one and 64 bits long
        std::vector<std::uint64_t> lane_numbers(static_cast<std::size_t>(lanes.width));
        std::iota(lane_numbers.begin(), lane_numbers.end(), 0);
        Value* positions = b_.CreateAdd(spread(lanes.column, lanes.width),
                                        llvm::ConstantDataVector::get(b_.getContext(), lane_numbers));
        return convert(b_, features_, Dtype::kI64, dtype, positions);
    }
    std::vector<std::uint32_t> offsets(static_cast<std::size_t>(lanes.width));
    std::iota(offsets.begin(), offsets.end(), 0);
    Value* columns = spread(b_.CreateTrunc(lanes.column, b_.getInt32Ty()), lanes.width);
    columns = b_.CreateAdd(columns, llvm::ConstantDataVector::get(b_.getContext(), offsets));
    const auto splat = [&](std::int64_t v) {
        return llvm::ConstantInt::get(columns->getType(), static_cast<std::uint64_t>(v));
    };
    if (inner > 1) columns = b_.CreateUDiv(columns, splat(inner));
    if (found != axes.begin()) columns = b_.CreateURem(columns, splat(kernel_.axis(axis).extent));
    return convert(b_, features_, Dtype::kI32, dtype, columns);
}

Value* KernelEmitter::emit_load(const Inst& inst, const Lanes& lanes) {
    const Dtype dtype = kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype;
    Value* stored = nullptr;
    const Reach reached = reach(inst, lanes);
    if (reached == Reach::kOneAddress) {
        stored = load_memory(inst, address(inst, lanes, 0, outside_), 1);
    } else if (reached == Reach::kVector) {
        stored = load_memory(inst, address(inst, lanes, inst.access.anchor, outside_), lanes.width);
        if (!inst.access.lanes.empty()) stored = b_.CreateShuffleVector(stored, inst.access.lanes);
    } else {
        for (int lane = 0; lane < lanes.width; ++lane) {
            Value* element = load_memory(inst, address(inst, lanes, lane, outside_), 1);
            if (stored == nullptr) {
                stored = llvm::PoisonValue::get(
                    llvm::FixedVectorType::get(element->getType(), static_cast<unsigned>(lanes.width)));
            }
            stored = b_.CreateInsertElement(stored, element, static_cast<std::uint64_t>(lane));
        }
    }
    return convert(b_, features_, dtype, inst.dtype, widen(b_, features_, dtype, stored));
}

void KernelEmitter::emit_store(const Inst& inst, const Lanes& lanes) {
    const Dtype to = kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype;
    Value* stored = convert(b_, features_, dtype(inst.operands[0]), to, value(inst.operands[0]));
    const Reach reached = reach(inst, lanes);
    if (reached == Reach::kOneAddress) {
        return store_memory(inst, address(inst, lanes, 0, discarded_), lane_of(stored, 0));
    }
    stored = spread(stored, lanes.width);
    if (reached == Reach::kVector) {
        if (!inst.access.lanes.empty()) {
            std::vector<int> inverse(inst.access.lanes.size());
            for (std::size_t lane = 0; lane < inverse.size(); ++lane) {
                inverse[static_cast<std::size_t>(inst.access.lanes[lane])] = static_cast<int>(lane);
            }
            stored = b_.CreateShuffleVector(stored, inverse);
        }
        return store_memory(inst, address(inst, lanes, inst.access.anchor, discarded_), stored);
    }
    for (int lane = 0; lane < lanes.width; ++lane) {
        store_memory(inst, address(inst, lanes, lane, discarded_), lane_of(stored, lane));
    }
}

void KernelEmitter::emit_accumulate(const Inst& inst, const Lanes& lanes) {
    const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(inst.index)];
    Value* x = convert(b_, features_, dtype(inst.operands[0]), accumulator.dtype, value(inst.operands[0]));
    x = spread(x, lanes.width);
    if (reduces_rows_) {
        const RunningRows& rows = running_rows_[static_cast<std::size_t>(inst.index)];
        const FoldState before = read_rows(rows.levels[0], lanes);
        return write_rows(rows.levels[0], lanes, fold_include(b_, accumulator.monoid, before, x));
    }
    const Running& running = running_[static_cast<std::size_t>(inst.index)];
    const auto& parts = running.parts[static_cast<std::size_t>(lanes.chain)];
    const FoldState before = read(running, lanes.chain);
    FoldState after;
    if (lanes.width == running.width) {
        after = fold_include(b_, accumulator.monoid, before, x);
    } else {
        // Fewer lanes than the state has: lanes beyond them keep theirs.
        std::vector<int> widened;
        std::vector<int> blended;
        for (int lane = 0; lane < running.width; ++lane) {
            widened.push_back(std::min(lane, lanes.width - 1));
            blended.push_back(lane < lanes.width ? lane : running.width + lane);
        }
        Value* padded = lanes.width > 1 ? b_.CreateShuffleVector(x, widened) : spread(x, running.width);
        after = fold_include(b_, accumulator.monoid, before, padded);
        for (std::size_t part = 0; part < after.size(); ++part) {
            after[part] = b_.CreateShuffleVector(after[part], before[part], blended);
        }
    }
    for (std::size_t part = 0; part < after.size(); ++part) b_.CreateStore(after[part], parts[part]);
}

// ---- Coordinates and memory

Value* KernelEmitter::extent(AxisId axis) {
    const std::int64_t known = kernel_.axis(axis).extent;
    if (known != kRuntimeExtent) return i64(known);
    Value* given = extent_[static_cast<std::size_t>(axis)];
    RJ_CHECK(given != nullptr, "emit/llvm: kernel {} needs the extent of {} and has no argument for it", kernel_.name,
             kernel_.axis(axis).label());
    return given;
}

Value* KernelEmitter::axis_coordinate(AxisId axis, const Lanes& lanes, int lane) {
    if (Value* row = axis_[static_cast<std::size_t>(axis)]) return row;
    RJ_CHECK(lanes.axes != nullptr, "emit/llvm: kernel {}: column axis {} outside a column loop", kernel_.name,
             kernel_.axis(axis).label());
    const auto& axes = *lanes.axes;
    const auto found = std::find(axes.begin(), axes.end(), axis);
    RJ_CHECK(found != axes.end(), "emit/llvm: axis {} is not of this loop", kernel_.axis(axis).label());
    std::int64_t inner = 1;
    for (auto it = found + 1; it != axes.end(); ++it) inner *= kernel_.axis(*it).extent;
    Value* column = b_.CreateNSWAdd(lanes.column, i64(lane));
    if (inner > 1) column = b_.CreateUDiv(column, i64(inner));
    if (found != axes.begin()) column = b_.CreateURem(column, i64(kernel_.axis(axis).extent));
    return column;
}

Value* KernelEmitter::data_coordinate(ValueId id, int lane) {
    Value* data = lane_of(value(id), lane);
    return data->getType()->isIntegerTy(64) ? data : b_.CreateSExt(data, b_.getInt64Ty());
}

bool KernelEmitter::never_negative(const Coord& coord) const {
    std::int64_t low = 0;
    std::int64_t high = 0;
    // A run-time extent bounds nothing above, and only the low end is asked for.
    const auto extent_of = [&](Axis axis) {
        const std::int64_t extent = kernel_.axis(axis.id).extent;
        return extent == kRuntimeExtent ? std::int64_t{1} << 40 : extent;
    };
    return coord.bounds(extent_of, &low, &high) && low >= 0;
}

Value* KernelEmitter::divide_floor(Value* value, std::int64_t divisor, bool remainder, bool nonnegative) {
    if (nonnegative) return remainder ? b_.CreateURem(value, i64(divisor)) : b_.CreateUDiv(value, i64(divisor));
    Value* rest = b_.CreateSRem(value, i64(divisor));
    Value* below = b_.CreateICmpSLT(rest, i64(0));
    if (remainder) return b_.CreateSelect(below, b_.CreateAdd(rest, i64(divisor)), rest);
    return b_.CreateSub(b_.CreateSDiv(value, i64(divisor)), b_.CreateZExt(below, b_.getInt64Ty()));
}

Value* KernelEmitter::coordinate(const Coord& coord, const Lanes& lanes, int lane) {
    switch (coord.kind()) {
        case Coord::Kind::kConst: return i64(coord.constant());
        case Coord::Kind::kAxis: return axis_coordinate(coord.axis().id, lanes, lane);
        case Coord::Kind::kData: return data_coordinate(coord.data(), lane);
        case Coord::Kind::kAdd:
            return b_.CreateAdd(coordinate(coord.left(), lanes, lane), coordinate(coord.right(), lanes, lane));
        case Coord::Kind::kMul: return b_.CreateMul(coordinate(coord.left(), lanes, lane), i64(coord.constant()));
        case Coord::Kind::kDiv:
        case Coord::Kind::kMod:
            return divide_floor(coordinate(coord.left(), lanes, lane), coord.constant(),
                                coord.kind() == Coord::Kind::kMod, never_negative(coord.left()));
    }
    RJ_CHECK(false, "coordinate kind {}", static_cast<int>(coord.kind()));
}

// The address a lane reads or writes; `outside` where a data coordinate leaves its extent.
Value* KernelEmitter::address(const Inst& inst, const Lanes& lanes, int lane, Value* outside) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    RJ_CHECK(inst.coords.size() == tensor.axes.size(), "emit/llvm: kernel {}: {} coordinates of {}", kernel_.name,
             inst.coords.size(), tensor.name);
    Value* offset = i64(0);
    Value* inside = nullptr;
    std::size_t column_axis = 0;
    for (std::size_t i = 0; i < tensor.axes.size(); ++i) {
        const AxisId axis = tensor.axes[i];
        Value* position = coordinate(inst.coords[i], lanes, lane);
        if (!inst.coords[i].data_nodes().empty()) {
            Value* within = b_.CreateICmpULT(position, extent(axis));
            inside = inside == nullptr ? within : b_.CreateAnd(inside, within);
        }
        Value* stride = nullptr;
        if (kernel_.axis(axis).is_row) {
            const auto found = strides_.find({inst.index, axis});
            RJ_CHECK(found != strides_.end(), "emit/llvm: kernel {}: no stride argument of {} along {}", kernel_.name,
                     tensor.name, kernel_.axis(axis).label());
            stride = found->second;
        } else {
            stride = i64(tensor.column_strides.at(column_axis++));
        }
        offset = b_.CreateAdd(offset, b_.CreateMul(position, stride));
    }
    Value* base = pointers_[static_cast<std::size_t>(inst.index)];
    Value* place = b_.CreateGEP(stored_type(b_, tensor.dtype), base, offset);
    return inside == nullptr ? place : b_.CreateSelect(inside, place, outside);
}

Value* KernelEmitter::load_memory(const Inst& inst, Value* address, int width) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    llvm::Type* type = stored_type(b_, tensor.dtype);
    if (width > 1) type = llvm::FixedVectorType::get(type, static_cast<unsigned>(width));
    llvm::LoadInst* load = b_.CreateAlignedLoad(type, address, llvm::Align(size_bytes(tensor.dtype)));
    annotate(load, inst.index);
    return load;
}

void KernelEmitter::store_memory(const Inst& inst, Value* address, Value* carried_value) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    if (inst.accumulate) {
        const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(carried_value->getType());
        Value* before = load_memory(inst, address, type == nullptr ? 1 : static_cast<int>(type->getNumElements()));
        before = widen(b_, features_, tensor.dtype, before);
        carried_value = round_carried(b_, features_, tensor.dtype, llvm_math::add(b_, before, carried_value, nullptr));
    }
    llvm::StoreInst* store = b_.CreateAlignedStore(narrow(b_, features_, tensor.dtype, carried_value), address,
                                                   llvm::Align(size_bytes(tensor.dtype)));
    annotate(store, inst.index);
}

void KernelEmitter::annotate(llvm::Instruction* access, int tensor) {
    access->setMetadata(llvm::LLVMContext::MD_alias_scope, scopes_[static_cast<std::size_t>(tensor)]);
    access->setMetadata(llvm::LLVMContext::MD_noalias, other_scopes_[static_cast<std::size_t>(tensor)]);
}

Reach KernelEmitter::reach(const Inst& inst, const Lanes& lanes) {
    if (lanes.width == 1) return Reach::kOneAddress;
    if (reduces_rows_) return reach_of_rows(inst);
    switch (inst.access.kind) {
        case Access::Kind::kUniform:
        case Access::Kind::kSplat: return Reach::kOneAddress;
        case Access::Kind::kVector:
            // A permutation holds for whole vectors only; the narrower ones of a tail are read lane by lane.
            if (lanes.width == lanes.vector) return Reach::kVector;
            return inst.access.lanes.empty() && inst.access.anchor == 0 ? Reach::kVector : Reach::kEachLane;
        case Access::Kind::kGather:
        case Access::Kind::kUnknown: return Reach::kEachLane;
    }
    RJ_CHECK(false, "access kind {}", static_cast<int>(inst.access.kind));
}

// ---- Reductions

FoldState KernelEmitter::read(const Running& running, int chain) {
    FoldState state;
    for (llvm::AllocaInst* part : running.parts[static_cast<std::size_t>(chain)]) {
        state.push_back(b_.CreateLoad(part->getAllocatedType(), part));
    }
    return state;
}

// Chains pairwise, then halves of the lanes, down to one.
void KernelEmitter::emit_all_reduce(const AllReduce& reduce) {
    std::size_t result = 0;
    for (const int index : reduce.accumulators) {
        const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
        const Running& running = running_[static_cast<std::size_t>(index)];
        std::vector<FoldState> states;
        for (int chain = 0; chain < running.chains; ++chain) states.push_back(read(running, chain));
        while (states.size() > 1) {
            std::vector<FoldState> merged;
            for (std::size_t i = 0; i + 1 < states.size(); i += 2) {
                merged.push_back(fold_merge(b_, accumulator.monoid, states[i], states[i + 1]));
            }
            if (states.size() % 2 == 1) merged.push_back(states.back());
            states = std::move(merged);
        }
        FoldState state = states[0];
        for (int width = running.width; width > 1; width /= 2) {
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
            state = fold_merge(b_, accumulator.monoid, left, right);
        }
        for (Value* component : fold_finish(b_, accumulator.monoid, state)) {
            define(reduce.results.at(result++), accumulator.dtype, component, accumulator.label);
        }
    }
}

// ---- Values

Value* KernelEmitter::spread(Value* value, int width) {
    return width > 1 && !value->getType()->isVectorTy() ? b_.CreateVectorSplat(static_cast<unsigned>(width), value)
                                                        : value;
}

Value* KernelEmitter::number(Dtype dtype, double value, int width) {
    llvm::Type* type = carried(dtype, width);
    if (is_float(dtype)) return llvm::ConstantFP::get(type, round_to(dtype, value));
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

}  // namespace

std::unique_ptr<llvm::Module> emit_llvm(const Kernel& kernel, CpuFeatures features, llvm::LLVMContext& context) {
    return KernelEmitter(kernel, features, context).emit();
}

}  // namespace rowjit
