#include "compiler/emit/llvm.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/dtype.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

using llvm::Value;

// Accumulators need this many lanes in flight to hide the latency of an addition: four AVX-512 registers of f32, eight
// of AVX2. Other loops only need to amortise their counter.
constexpr int kAccumulatingLanes = 64;
constexpr int kPlainLanes = 32;
constexpr int kMaxUnroll = 4;

// Where one copy of a column loop's body stands.
struct Lanes {
    const ColumnLoop* loop = nullptr;  // nullptr in per-row code and in rows loops
    Value* column = nullptr;           // of lane 0, i64
    Value* place = nullptr;            // of lane 0 within kept slots, i64
    int width = 1;
    int chain = 0;  // which accumulator chain this copy feeds
};

// An accumulator's running state: `chains` independent copies of `width` lanes, so that consecutive vectors do not wait
// for each other. Parts are stack slots, which the optimiser turns into registers.
struct Running {
    int width = 1;
    int chains = 1;
    std::vector<std::vector<llvm::AllocaInst*>> parts;  // [chain][part]
};

// Welford's third part counts the elements of each lane.
int parts_of(Monoid monoid) { return monoid == Monoid::kWelford ? 3 : components(monoid); }

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
    void check_shape() const;
    void load_arguments();
    void make_alias_scopes();
    void make_running();
    void make_slots();
    void emit_blocks();
    void emit_rows(Value* first, Value* last);
    void emit_row(Value* row);
    void set_mixed_radix(Value* position, const std::vector<AxisId>& axes);
    Value* positions_of(const std::vector<AxisId>& axes);
    void count(Value* from, Value* to, Value* step, const char* name, const std::function<void(Value*)>& body);

    // Statements.
    void emit_block(const Block& block);
    void emit_column_loop(const ColumnLoop& loop);
    void emit_columns(const ColumnLoop& loop, Value* from, Value* to, Value* first_column);
    void emit_column_tail(const ColumnLoop& loop, Value* from, Value* first_column);
    void emit_rows_loop(const RowsLoop& loop);
    void emit_all_reduce(const AllReduce& reduce);
    void emit_body(const std::vector<Inst>& body, const Lanes& lanes);
    void hoist_uniform_loads(const ColumnLoop& loop);

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
    bool is_contiguous(const Inst& inst, const Lanes& lanes) const;
    bool is_one_address(const Inst& inst, const Lanes& lanes) const;
    bool can_hoist(const Inst& inst) const;

    // Monoids.
    std::vector<Value*> identity(const Accumulator& accumulator, int width);
    std::vector<Value*> include(const Accumulator& accumulator, const std::vector<Value*>& state, Value* x);
    std::vector<Value*> merge(const Accumulator& accumulator, const std::vector<Value*>& left,
                              const std::vector<Value*>& right);
    Value* rescaling(Value* from, Value* to);
    std::vector<Value*> read(const Running& running, int chain);

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
    std::vector<llvm::AllocaInst*> slots_;              // by slot
    llvm::AllocaInst* outside_ = nullptr;               // what a load outside the extent reads: zeros
    llvm::AllocaInst* discarded_ = nullptr;             // where a store outside the extent goes
    Value* column_block_ = nullptr;                     // i64; null when rows are whole
    std::vector<Value*> values_;                        // by ValueId
    std::vector<Dtype> dtypes_;                         // by ValueId
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

void KernelEmitter::check_shape() const {
    RJ_CHECK(kernel_.schedule.threads_per_row == 1, "emit/llvm: kernel {} has {} threads on a row; the CPU has one",
             kernel_.name, kernel_.schedule.threads_per_row);
    for (const Stmt& stmt : kernel_.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        RJ_CHECK(std::has_single_bit(static_cast<unsigned>(loop->vector)), "emit/llvm: kernel {}: vector {}",
                 kernel_.name, loop->vector);
        RJ_CHECK(loop->iterations * loop->vector * kernel_.schedule.column_blocks >= loop->columns,
                 "emit/llvm: kernel {}: {} iterations of {} lanes in {} column blocks do not cover {} columns",
                 kernel_.name, loop->iterations, loop->vector, kernel_.schedule.column_blocks, loop->columns);
    }
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
            for (int part = 0; part < parts_of(accumulator.monoid); ++part) {
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
    count(first, last, i64(1), "row", [&](Value* row) { emit_row(row); });
}

void KernelEmitter::emit_row(Value* row) {
    set_mixed_radix(row, kernel_.row_axes);
    for (std::size_t i = 0; i < running_.size(); ++i) {
        const std::vector<Value*> start = identity(kernel_.accumulators[i], running_[i].width);
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

// for (i = from; i < to; i += step) body(i)
void KernelEmitter::count(Value* from, Value* to, Value* step, const char* name,
                          const std::function<void(Value*)>& body) {
    llvm::BasicBlock* before = b_.GetInsertBlock();
    auto* head = llvm::BasicBlock::Create(b_.getContext(), llvm::Twine(name) + "_head", function_);
    auto* inside = llvm::BasicBlock::Create(b_.getContext(), llvm::Twine(name) + "_body", function_);
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    llvm::PHINode* index = b_.CreatePHI(b_.getInt64Ty(), 2, name);
    index->addIncoming(from, before);
    Value* more = b_.CreateICmpSLT(index, to);

    b_.SetInsertPoint(inside);
    body(index);
    index->addIncoming(b_.CreateNSWAdd(index, step), b_.GetInsertBlock());
    b_.CreateBr(head);

    auto* after = llvm::BasicBlock::Create(b_.getContext(), llvm::Twine(name) + "_done", function_);
    b_.SetInsertPoint(head);
    b_.CreateCondBr(more, inside, after);
    b_.SetInsertPoint(after);
}

// ---- Statements

void KernelEmitter::emit_block(const Block& block) {
    for (const Stmt& stmt : block) {
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) emit_inst(*inst, {});
        if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) emit_column_loop(*loop);
        if (const auto* loop = std::get_if<RowsLoop>(&stmt.node)) emit_rows_loop(*loop);
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
            emit_body(loop.body, {&loop, mine, b_.CreateSub(mine, first_column), loop.vector, copy});
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
        emit_body(loop.body, {&loop, column, b_.CreateSub(column, first_column), width, 0});
        done += width;
    }
}

void KernelEmitter::emit_rows_loop(const RowsLoop& loop) {
    count(i64(0), positions_of(loop.axes), i64(1), "position", [&](Value* position) {
        set_mixed_radix(position, loop.axes);
        emit_body(loop.body, {});
    });
}

void KernelEmitter::emit_body(const std::vector<Inst>& body, const Lanes& lanes) {
    for (const Inst& inst : body) {
        if (lanes.loop != nullptr && can_hoist(inst)) continue;
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
    const auto& axes = lanes.loop->axes;
    const auto found = std::find(axes.begin(), axes.end(), axis);
    RJ_CHECK(found != axes.end(), "emit/llvm: axis {} is not of this loop", kernel_.axis(axis).label());
    std::int64_t inner = 1;
    for (auto it = found + 1; it != axes.end(); ++it) inner *= kernel_.axis(*it).extent;
    std::vector<std::uint32_t> offsets;
    for (int lane = 0; lane < lanes.width; ++lane) offsets.push_back(static_cast<std::uint32_t>(lane));
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
    if (is_one_address(inst, lanes)) {
        stored = load_memory(inst, address(inst, lanes, 0, outside_), 1);
    } else if (is_contiguous(inst, lanes)) {
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
    if (is_one_address(inst, lanes)) {
        return store_memory(inst, address(inst, lanes, 0, discarded_), lane_of(stored, 0));
    }
    stored = spread(stored, lanes.width);
    if (is_contiguous(inst, lanes)) {
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
    const Running& running = running_[static_cast<std::size_t>(inst.index)];
    Value* x = convert(b_, features_, dtype(inst.operands[0]), accumulator.dtype, value(inst.operands[0]));
    x = spread(x, lanes.width);
    const auto& parts = running.parts[static_cast<std::size_t>(lanes.chain)];
    const std::vector<Value*> before = read(running, lanes.chain);
    std::vector<Value*> after;
    if (lanes.width == running.width) {
        after = include(accumulator, before, x);
    } else {
        // Fewer lanes than the state has: lanes beyond them keep theirs.
        std::vector<int> widened;
        std::vector<int> blended;
        for (int lane = 0; lane < running.width; ++lane) {
            widened.push_back(std::min(lane, lanes.width - 1));
            blended.push_back(lane < lanes.width ? lane : running.width + lane);
        }
        Value* padded = lanes.width > 1 ? b_.CreateShuffleVector(x, widened) : spread(x, running.width);
        after = include(accumulator, before, padded);
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
    RJ_CHECK(lanes.loop != nullptr, "emit/llvm: kernel {}: column axis {} outside a column loop", kernel_.name,
             kernel_.axis(axis).label());
    const auto& axes = lanes.loop->axes;
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

bool KernelEmitter::is_one_address(const Inst& inst, const Lanes& lanes) const {
    return lanes.width == 1 || inst.access.kind == Access::Kind::kUniform || inst.access.kind == Access::Kind::kSplat;
}

// A permutation holds for whole vectors only; the narrower ones of a tail are read lane by lane.
bool KernelEmitter::is_contiguous(const Inst& inst, const Lanes& lanes) const {
    return inst.access.kind == Access::Kind::kVector &&
           (lanes.width == lanes.loop->vector || (inst.access.lanes.empty() && inst.access.anchor == 0));
}

// ---- Monoids

std::vector<Value*> KernelEmitter::identity(const Accumulator& accumulator, int width) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const auto of = [&](double v) { return number(accumulator.dtype, v, width); };
    const auto lowest = [&](bool low) -> Value* {
        if (is_float(accumulator.dtype)) return of(low ? -kInfinity : kInfinity);
        llvm::Type* type = carried(accumulator.dtype, width);
        const unsigned bits = type->getScalarSizeInBits();
        return llvm::ConstantInt::get(
            type, low ? llvm::APInt::getSignedMinValue(bits) : llvm::APInt::getSignedMaxValue(bits));
    };
    switch (accumulator.monoid) {
        case Monoid::kSum: return {of(0)};
        case Monoid::kMax: return {lowest(true)};
        case Monoid::kMin: return {lowest(false)};
        case Monoid::kMaxSumExp: return {of(-kInfinity), of(0)};
        case Monoid::kWelford: return {of(0), of(0), of(0)};
    }
    RJ_CHECK(false, "monoid {}", static_cast<int>(accumulator.monoid));
}

// e^(from − to), 1 where they are equal, be it at −∞.
Value* KernelEmitter::rescaling(Value* from, Value* to) {
    Value* zero = llvm::Constant::getNullValue(from->getType());
    Value* distance = b_.CreateSelect(b_.CreateFCmpOEQ(from, to), zero, b_.CreateFSub(from, to));
    return llvm_math::exp(b_, distance, nullptr, nullptr);
}

std::vector<Value*> KernelEmitter::include(const Accumulator& accumulator, const std::vector<Value*>& state, Value* x) {
    switch (accumulator.monoid) {
        case Monoid::kSum: return {llvm_math::add(b_, state[0], x, nullptr)};
        case Monoid::kMax: return {llvm_math::maximum(b_, x, state[0], nullptr)};
        case Monoid::kMin: return {llvm_math::minimum(b_, x, state[0], nullptr)};
        case Monoid::kMaxSumExp: {
            // One exponential either way: of the old sum's rescaling when x is the new maximum, else of x's own term.
            Value* one = llvm::ConstantFP::get(x->getType(), 1);
            Value* greater = b_.CreateFCmpOGT(x, state[0]);
            Value* low = b_.CreateSelect(greater, state[0], x);
            Value* high = b_.CreateSelect(greater, x, state[0]);
            Value* factor = rescaling(low, high);
            Value* scaled = b_.CreateSelect(greater, b_.CreateFMul(state[1], factor), state[1]);
            Value* term = b_.CreateSelect(greater, one, factor);
            return {llvm_math::maximum(b_, x, state[0], nullptr), b_.CreateFAdd(scaled, term)};
        }
        case Monoid::kWelford: {
            Value* seen = b_.CreateFAdd(state[2], llvm::ConstantFP::get(x->getType(), 1));
            Value* distance = b_.CreateFSub(x, state[0]);
            Value* mean = b_.CreateFAdd(state[0], b_.CreateFDiv(distance, seen));
            Value* spread = b_.CreateFAdd(state[1], b_.CreateFMul(distance, b_.CreateFSub(x, mean)));
            return {mean, spread, seen};
        }
    }
    RJ_CHECK(false, "monoid {}", static_cast<int>(accumulator.monoid));
}

std::vector<Value*> KernelEmitter::merge(const Accumulator& accumulator, const std::vector<Value*>& left,
                                         const std::vector<Value*>& right) {
    switch (accumulator.monoid) {
        case Monoid::kMaxSumExp: {
            Value* maximum = llvm_math::maximum(b_, left[0], right[0], nullptr);
            return {maximum, b_.CreateFAdd(b_.CreateFMul(left[1], rescaling(left[0], maximum)),
                                           b_.CreateFMul(right[1], rescaling(right[0], maximum)))};
        }
        case Monoid::kWelford: {
            // Chan, Golub, LeVeque; two lanes that saw nothing give 0 / 0, which the select drops.
            Value* total = b_.CreateFAdd(left[2], right[2]);
            Value* zero = llvm::Constant::getNullValue(total->getType());
            Value* share = b_.CreateSelect(b_.CreateFCmpOEQ(right[2], zero), zero, b_.CreateFDiv(right[2], total));
            Value* distance = b_.CreateFSub(right[0], left[0]);
            Value* mean = b_.CreateFAdd(left[0], b_.CreateFMul(distance, share));
            Value* between = b_.CreateFMul(b_.CreateFMul(distance, distance), b_.CreateFMul(left[2], share));
            return {mean, b_.CreateFAdd(b_.CreateFAdd(left[1], right[1]), between), total};
        }
        default: return include(accumulator, left, right[0]);
    }
}

std::vector<Value*> KernelEmitter::read(const Running& running, int chain) {
    std::vector<Value*> state;
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
        std::vector<std::vector<Value*>> states;
        for (int chain = 0; chain < running.chains; ++chain) states.push_back(read(running, chain));
        while (states.size() > 1) {
            std::vector<std::vector<Value*>> merged;
            for (std::size_t i = 0; i + 1 < states.size(); i += 2) {
                merged.push_back(merge(accumulator, states[i], states[i + 1]));
            }
            if (states.size() % 2 == 1) merged.push_back(states.back());
            states = std::move(merged);
        }
        std::vector<Value*> state = states[0];
        for (int width = running.width; width > 1; width /= 2) {
            std::vector<int> low;
            std::vector<int> high;
            for (int lane = 0; lane < width / 2; ++lane) {
                low.push_back(lane);
                high.push_back(lane + width / 2);
            }
            std::vector<Value*> left;
            std::vector<Value*> right;
            for (Value* part : state) {
                left.push_back(width == 2 ? lane_of(part, 0) : b_.CreateShuffleVector(part, low));
                right.push_back(width == 2 ? lane_of(part, 1) : b_.CreateShuffleVector(part, high));
            }
            state = merge(accumulator, left, right);
        }
        if (accumulator.monoid == Monoid::kMaxSumExp) {
            // Eager subtracts the maximum from itself, which no infinity survives.
            Value* size = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, state[0]);
            Value* finite = b_.CreateFCmpOLT(size, llvm::ConstantFP::getInfinity(size->getType()));
            state[1] = b_.CreateSelect(finite, state[1], llvm::ConstantFP::getNaN(state[1]->getType()));
        }
        for (int component = 0; component < components(accumulator.monoid); ++component) {
            define(reduce.results.at(result++), accumulator.dtype, state[static_cast<std::size_t>(component)],
                   accumulator.label);
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
