// Narrow rows, in strips. What a row has one of, its sums folded over their lanes, a root, a logarithm, is some fifty
// instructions that wait for each other, as many as a row of 128 columns has beside them. So sixteen rows take each of
// their column loops one row after the other, what those come to waits in memory, and the numbers of all sixteen are
// one vector. A strip of fewer rows has lanes that stand for none: what they hold is computed and never stored, so
// that a row comes out the same wherever its strip begins and ends.
#include <llvm/IR/Intrinsics.h>

#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "compiler/emit/llvm_emitter.h"

namespace rowjit::cpu_emit {
namespace {

// Of what a strip reads and keeps, which lies in the first-level cache until its last loop. On an Intel server
// layer_norm of 256 f32 columns, in cache, 30 GB/s alone and 50 so, logsumexp of 128 bf16 ones 5.1 and 12.9.
constexpr std::int64_t kStripBytes = std::int64_t{32} << 10;

bool is_uniform(const Stmt& stmt) {
    const auto* inst = std::get_if<Inst>(&stmt.node);
    return inst != nullptr &&
           (inst->kind == InstKind::kConst || inst->kind == InstKind::kScalar || inst->kind == InstKind::kExtent);
}

// Whether the statement is taken row by row: it loops over columns, or meets memory at an address of the row's own.
bool is_row_by_row(const Stmt& stmt) {
    const auto* inst = std::get_if<Inst>(&stmt.node);
    if (inst == nullptr) return std::holds_alternative<ColumnLoop>(stmt.node);
    return inst->kind != InstKind::kMap && inst->kind != InstKind::kCast;
}

// The accumulators that a loop of these statements adds to.
std::set<int> accumulators_of(const std::vector<const Stmt*>& statements) {
    std::set<int> found;
    for (const Stmt* stmt : statements) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt->node);
        if (loop == nullptr) continue;
        for (const Inst& inst : loop->body) {
            if (inst.kind == InstKind::kAccumulate) found.insert(inst.index);
        }
    }
    return found;
}

// Whose states are merged lane by lane, with no origin that all lanes of a row share.
bool merges_by_lane(Monoid monoid) {
    return monoid == Monoid::kSum || monoid == Monoid::kExactSum || monoid == Monoid::kMax || monoid == Monoid::kMin;
}

unsigned lanes_of(const Value* value) {
    const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(value->getType());
    return type != nullptr ? type->getNumElements() : 1;
}

// Of two vectors, or of one, of groups of `width` lanes: the lower or the upper half of each group, side by side.
Value* halves(LaneBuilder& b, Value* first, Value* second, unsigned width, bool upper) {
    const unsigned lanes = lanes_of(first) * (second != nullptr ? 2 : 1);
    std::vector<int> mask;
    for (unsigned group = 0; group < lanes; group += width) {
        for (unsigned lane = 0; lane < width / 2; ++lane) {
            mask.push_back(static_cast<int>(group + lane + (upper ? width / 2 : 0)));
        }
    }
    return second != nullptr ? b.CreateShuffleVector(first, second, mask) : b.CreateShuffleVector(first, mask);
}

Value* joined(LaneBuilder& b, Value* first, Value* second) {
    std::vector<int> mask(std::size_t{2} * lanes_of(first));
    std::iota(mask.begin(), mask.end(), 0);
    return b.CreateShuffleVector(first, second, mask);
}

}  // namespace

bool KernelEmitter::takes_strips() const {
    if (lanes_are_rows_ || kernel_.walk || kernel_.schedule.column_blocks != 1) return false;
    std::set<int> reduced;
    std::set<int> read;
    std::int64_t bytes = 0;
    bool stores_wide = false;
    int folds = 0;
    for (const Accumulator& accumulator : kernel_.accumulators) {
        if (!merges_by_lane(accumulator.monoid)) return false;
    }
    for (const Stmt& stmt : kernel_.body) {
        if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) {
            reduced.insert(reduce->accumulators.begin(), reduce->accumulators.end());
            ++folds;
        } else if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) {
            for (const Inst& inst : loop->body) {
                if (inst.kind == InstKind::kStore) {
                    if (inst.accumulate && (kernel_.slots_axis < 0 || adds_to_all_rows(inst))) return false;
                    stores_wide =
                        stores_wide || size_bytes(kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype) >= 4;
                }
                if (inst.kind == InstKind::kAccumulate && reduced.contains(inst.index)) return false;
                const bool own = inst.kind == InstKind::kLoad && kernel_.can_fetch(inst);
                const bool first = own && read.insert(inst.index).second;
                const bool kept = inst.kind == InstKind::kKeep;
                if (first || kept) bytes += loop->columns * static_cast<std::int64_t>(size_bytes(inst.dtype));
            }
        } else if (const auto* inst = std::get_if<Inst>(&stmt.node)) {
            // Rows add up one after the other in a strip too, but what a strip is depends on the threads.
            if (inst->kind == InstKind::kStore && inst->accumulate && kernel_.slots_axis < 0) return false;
        } else {
            return false;
        }
    }
    // Rows of f32 that are folded once wait for memory, which strips ask for in bursts: an Intel server, 96 MiB of 128
    // columns, gated_rms_norm 23.3 GB/s alone and 20.1 in strips, l2_norm 26.2 and 24.9.
    if (stores_wide && folds == 1) return false;
    return folds > 0 && bytes * kStripRows <= kStripBytes;
}

// Rows [first, last).
void KernelEmitter::emit_strips(Value* first, Value* last) {
    std::vector<std::vector<const Stmt*>> parts;  // row by row, and of all rows at once, in turn
    for (const Stmt& stmt : kernel_.body) {
        if (is_uniform(stmt)) {
            emit_inst(std::get<Inst>(stmt.node), {});
            continue;
        }
        if (parts.empty() || is_row_by_row(*parts.back().back()) != is_row_by_row(stmt)) parts.emplace_back();
        parts.back().push_back(&stmt);
    }
    loop_while_below(first, last, "strip", [&](Value* begin) {
        Value* rows = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateSub(last, begin), i64(kStripRows));
        place_rows(begin, rows);
        for (const std::vector<const Stmt*>& part : parts) {
            if (is_row_by_row(*part.front())) {
                emit_row_by_row(begin, rows, part);
            } else {
                emit_numbers(part);
            }
        }
        return b_.CreateNSWAdd(begin, rows);
    });
}

// Coordinates take divisions where rows have several axes: once for all loops.
void KernelEmitter::place_rows(Value* begin, Value* rows) {
    const std::vector<AxisId> axes = kernel_.inner_axes();
    if (axes.size() < 2) return;
    count(i64(0), rows, i64(1), "row", [&](Value* row) {
        set_mixed_radix(b_.CreateNSWAdd(begin, row), axes);
        for (const AxisId axis : axes) {
            Value* coordinate = axis_[static_cast<std::size_t>(axis)];
            llvm::AllocaInst*& place = strip_.axes[axis];
            if (place == nullptr) place = place_of_numbers(coordinate->getType(), kernel_.axis(axis).label());
            b_.CreateStore(coordinate, element_of(place, row));
        }
    });
}

// Each row's part of these statements, behind what earlier ones came to.
void KernelEmitter::emit_row_by_row(Value* begin, Value* rows, const std::vector<const Stmt*>& part) {
    const std::set<int> added = accumulators_of(part);
    count(i64(0), rows, i64(1), "row", [&](Value* row) {
        strip_.row = row;
        if (strip_.axes.empty()) set_mixed_radix(b_.CreateNSWAdd(begin, row), kernel_.inner_axes());
        for (const auto& [axis, place] : strip_.axes) {
            axis_[static_cast<std::size_t>(axis)] = b_.CreateLoad(b_.getInt64Ty(), element_of(place, row));
        }
        for (const auto& [id, place] : strip_.numbers) values_[static_cast<std::size_t>(id)] = number_at(id, row);
        for (const int index : added) clear_running(static_cast<std::size_t>(index));
        for (const Stmt* stmt : part) {
            if (const auto* loop = std::get_if<ColumnLoop>(&stmt->node)) {
                emit_column_loop(*loop);
                continue;
            }
            const Inst& inst = std::get<Inst>(stmt->node);
            emit_inst(inst, {});
            if (inst.id >= 0) place_number(inst.id, row);
        }
        for (const int index : added) place_states(index, row);
    });
    strip_.row = nullptr;
}

// Numbers of all rows, a lane each.
void KernelEmitter::emit_numbers(const std::vector<const Stmt*>& part) {
    for (const auto& [id, place] : strip_.numbers) values_[static_cast<std::size_t>(id)] = number_at(id, nullptr);
    strip_.of_numbers = true;
    for (const Stmt* stmt : part) {
        if (const auto* inst = std::get_if<Inst>(&stmt->node)) {
            emit_inst(*inst, {});
            if (value(inst->id)->getType()->isVectorTy()) place_number(inst->id);
            continue;
        }
        const AllReduce& reduce = std::get<AllReduce>(stmt->node);
        std::size_t result = 0;
        for (const int index : reduce.accumulators) {
            const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
            for (Value* component : fold_finish(b_, accumulator, folded_states(index))) {
                const ValueId id = reduce.results.at(result++);
                define(id, accumulator.dtype, component, accumulator.label);
                place_number(id);
            }
        }
    }
    strip_.of_numbers = false;
}

// A number of each row, zeros until a strip has that many.
llvm::AllocaInst* KernelEmitter::place_of_numbers(llvm::Type* type, const std::string& label) {
    if (type->isIntegerTy(1)) type = b_.getInt8Ty();
    llvm::AllocaInst* place = stack(llvm::FixedVectorType::get(type, kStripRows), label);
    llvm::IRBuilder<>(place->getNextNode()).CreateStore(llvm::Constant::getNullValue(place->getAllocatedType()), place);
    return place;
}

Value* KernelEmitter::element_of(llvm::AllocaInst* place, Value* row) {
    return b_.CreateInBoundsGEP(place->getAllocatedType()->getScalarType(), place, row);
}

// A value as a number of its row, or of all rows.
void KernelEmitter::place_number(ValueId id, Value* row) {
    Value* number = value(id);
    llvm::AllocaInst*& place = strip_.numbers[id];
    if (place == nullptr) place = place_of_numbers(number->getType()->getScalarType(), number->getName().str());
    if (number->getType()->isIntOrIntVectorTy(1)) {
        number = b_.CreateZExt(number, number->getType()->getWithNewBitWidth(8));
    }
    b_.CreateStore(number, row != nullptr ? element_of(place, row) : place);
}

Value* KernelEmitter::number_at(ValueId id, Value* row) {
    llvm::AllocaInst* place = strip_.numbers.at(id);
    llvm::Type* type = place->getAllocatedType();
    Value* number =
        row == nullptr ? b_.CreateLoad(type, place) : b_.CreateLoad(type->getScalarType(), element_of(place, row));
    return dtype(id) == Dtype::kBool ? b_.CreateIsNotNull(number) : number;
}

// What a row's loops have left of an accumulator.
void KernelEmitter::place_states(int index, Value* row) {
    const Running& running = running_[static_cast<std::size_t>(index)];
    std::vector<llvm::AllocaInst*>& places = strip_.states[index];
    std::size_t next = 0;
    for (int chain = 0; chain < running.chains; ++chain) {
        for (Value* part : running.blocks != nullptr ? FoldState{sum_of_blocks(running)} : read(running, chain)) {
            if (places.size() == next) {
                llvm::Type* type = llvm::ArrayType::get(part->getType(), kStripRows);
                llvm::AllocaInst* place = stack(type, kernel_.accumulators[static_cast<std::size_t>(index)].label);
                const llvm::TypeSize bytes = module_->getDataLayout().getTypeAllocSize(type);
                llvm::IRBuilder<>(place->getNextNode())
                    .CreateMemSet(place, b_.getInt8(0), bytes.getFixedValue(), place->getAlign());
                places.push_back(place);
            }
            b_.CreateStore(part, b_.CreateInBoundsGEP(part->getType(), places[next++], row));
        }
    }
}

// All rows' states of an accumulator, a lane each: chains pairwise and then halves of the lanes, as emit_all_reduce
// takes them, of two rows by one instruction.
FoldState KernelEmitter::folded_states(int index) {
    const Accumulator& accumulator = kernel_.accumulators[static_cast<std::size_t>(index)];
    const Running& running = running_[static_cast<std::size_t>(index)];
    const std::vector<llvm::AllocaInst*>& places = strip_.states.at(index);
    RJ_CHECK(running.chains == 1, "emit/llvm: kernel {}: a strip's states in {} chains", kernel_.name, running.chains);
    std::vector<FoldState> states;
    for (int row = 0; row < kStripRows; ++row) {
        FoldState& state = states.emplace_back();
        for (llvm::AllocaInst* place : places) {
            llvm::Type* type = place->getAllocatedType()->getArrayElementType();
            Value* part = b_.CreateLoad(type, b_.CreateInBoundsGEP(type, place, i64(row)));
            if (running.width > 1) {
                state.push_back(part);
            } else {
                state.push_back(b_.CreateVectorSplat(1, part));
            }
        }
    }
    const auto paired = [&](const auto& pair) {
        std::vector<FoldState> next;
        for (std::size_t i = 0; i < states.size(); i += 2) next.push_back(pair(i));
        states = std::move(next);
    };
    const auto half_of = [&](std::size_t first, unsigned width, bool upper) {
        FoldState half;
        for (std::size_t part = 0; part < places.size(); ++part) {
            Value* second = first + 1 < states.size() ? states[first + 1][part] : nullptr;
            half.push_back(halves(b_, states[first][part], second, width, upper));
        }
        return half;
    };
    for (auto width = static_cast<unsigned>(running.width); width > 1; width /= 2) {
        paired([&](std::size_t i) {
            return fold_merge_level(b_, accumulator, half_of(i, width, false), half_of(i, width, true));
        });
    }
    while (states.size() > 1) {
        paired([&](std::size_t i) {
            FoldState both;
            for (std::size_t part = 0; part < places.size(); ++part)
                both.push_back(joined(b_, states[i][part], states[i + 1][part]));
            return both;
        });
    }
    if (running.blocks != nullptr) {
        Value*& total = states[0].front();
        total = b_.CreateFPTrunc(total, total->getType()->getWithNewType(b_.getFloatTy()));
    }
    return states[0];
}

}  // namespace rowjit::cpu_emit
