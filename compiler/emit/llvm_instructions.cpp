// What an instruction of a kernel's text is in LLVM IR: its function, its search, its coordinate, load or store, of the
// lanes of a turn. Sums are their loops' (llvm_columns.cpp, llvm_rows.cpp), addresses llvm_access.cpp's.
#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/emit/llvm_emitter.h"
#include "compiler/passes/passes.h"

namespace rowjit::cpu_emit {

void KernelEmitter::emit_inst(const Inst& inst, const Lanes& lanes) {
    if (inst.id >= 0) makers_[static_cast<std::size_t>(inst.id)] = &inst;
    switch (inst.kind) {
        case InstKind::kConst: return define(inst.id, inst.dtype, number(inst.dtype, inst.value));
        case InstKind::kScalar:
            return define(inst.id, inst.dtype,
                          convert(b_, kernel_.scalars[static_cast<std::size_t>(inst.index)].dtype, inst.dtype,
                                  scalars_[static_cast<std::size_t>(inst.index)]));
        case InstKind::kExtent:
            return define(inst.id, inst.dtype, convert(b_, Dtype::kI64, inst.dtype, extent(inst.axis)), inst.label);
        case InstKind::kCoord: return define(inst.id, inst.dtype, emit_coord(inst.axis, lanes, inst.dtype), inst.label);
        case InstKind::kMap: return define(inst.id, inst.dtype, emit_map(inst, lanes), inst.label);
        case InstKind::kCast: {
            Value* from = value(inst.operands[0]);
            Value* to = convert(b_, dtype(inst.operands[0]), inst.dtype, from);
            if (inst.of_sum && from->getType()->getScalarType()->isFloatTy()) widened_[to] = from;
            return define(inst.id, inst.dtype, to, inst.label);
        }
        case InstKind::kLoad: return define(inst.id, inst.dtype, emit_load(inst, lanes), inst.label);
        case InstKind::kSearch: return define(inst.id, inst.dtype, emit_search(inst), inst.label);
        case InstKind::kSumWhere: return define(inst.id, inst.dtype, emit_sum_where(inst, lanes), inst.label);
        case InstKind::kStore: return emit_store(inst, lanes);
        case InstKind::kAccumulate: return emit_accumulate(inst, lanes);
        case InstKind::kKeep: {
            const Slot& slot = kernel_.slots[static_cast<std::size_t>(inst.index)];
            Value* place = kept_place(inst, lanes);
            Value* kept = spread(value(inst.operands[0]), lanes.width);
            b_.CreateAlignedStore(narrow(b_, slot.dtype, kept), place, llvm::Align(size_bytes(slot.dtype)));
            return;
        }
        case InstKind::kKept: {
            const Slot& slot = kernel_.slots[static_cast<std::size_t>(inst.index)];
            llvm::Type* element = stored_type(b_, slot.dtype);
            Value* place = kept_place(inst, lanes);
            llvm::Type* type =
                lanes.width > 1 ? llvm::FixedVectorType::get(element, static_cast<unsigned>(lanes.width)) : element;
            Value* stored = b_.CreateAlignedLoad(type, place, llvm::Align(size_bytes(slot.dtype)));
            return define(inst.id, inst.dtype, widen(b_, slot.dtype, stored), inst.label);
        }
        case InstKind::kCarry:
        case InstKind::kCarried: break;
    }
    RJ_CHECK(false, "emit/llvm: kernel {} carries sums in registers", kernel_.name);
}

Value* KernelEmitter::kept_place(const Inst& inst, const Lanes& lanes) {
    const auto slot = static_cast<std::size_t>(inst.index);
    Value* place = lanes.place;
    if (strip_.row != nullptr) place = b_.CreateAdd(place, b_.CreateMul(strip_.row, i64(kept_places_)));
    return b_.CreateInBoundsGEP(stored_type(b_, kernel_.slots[slot].dtype), slots_[slot], place);
}

// Operations whose result is one of their operands, up to sign: nothing to round.
bool is_exact(Op op) {
    switch (op) {
        case Op::kNeg:
        case Op::kAbs:
        case Op::kMin:
        case Op::kMax:
        case Op::kFloor:
        case Op::kRound:
        case Op::kSelect: return true;
        default: return false;
    }
}

// By how much an integer grows from lane to lane, where that is known.
std::optional<std::int64_t> KernelEmitter::lane_step(ValueId id, const Lanes& lanes) const {
    if (!value(id)->getType()->isVectorTy()) return 0;
    const Inst* inst = makers_[static_cast<std::size_t>(id)];
    if (inst == nullptr) return std::nullopt;
    if (inst->kind == InstKind::kCoord) {
        const bool innermost = lanes.axes != nullptr && lanes.axes->back() == inst->axis;
        const bool within_one = innermost && !lanes_are_rows_ && kernel_.axis(inst->axis).extent % lanes.width == 0;
        return innermost && (lanes.axes->size() == 1 || within_one) ? std::optional<std::int64_t>(1) : std::nullopt;
    }
    if (inst->kind == InstKind::kCast && !is_float(inst->dtype)) return lane_step(inst->operands[0], lanes);
    if (inst->kind != InstKind::kMap || inst->op != Op::kAdd) return std::nullopt;
    const auto left = lane_step(inst->operands[0], lanes);
    const auto right = lane_step(inst->operands[1], lanes);
    return left && right ? std::optional(*left + *right) : std::nullopt;
}

Value* KernelEmitter::emit_map(const Inst& inst, const Lanes& lanes) {
    if (inst.op == Op::kUniform && lanes.width >= 4 && lane_step(inst.operands[2], lanes) == 1 &&
        lane_step(inst.operands[0], lanes) == 0 && lane_step(inst.operands[1], lanes) == 0) {
        return uniform_run(b_, value(inst.operands[0]), value(inst.operands[1]), lane_of(value(inst.operands[2]), 0),
                           lanes.width);
    }
    int width = 1;
    for (const ValueId id : inst.operands) {
        const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(value(id)->getType());
        if (type != nullptr) width = static_cast<int>(type->getNumElements());
    }
    std::array<Value*, 3> operands = {};
    RJ_CHECK(inst.operands.size() <= operands.size(), "emit/llvm: {} operands of {}", inst.operands.size(),
             info(inst.op).name);
    for (std::size_t i = 0; i < inst.operands.size(); ++i) {
        // A row's condition chooses between whole vectors: a mask of it would be made of bytes for each of them.
        const bool chooses = inst.op == Op::kSelect && i == 0;
        operands[i] = chooses ? value(inst.operands[i]) : spread(value(inst.operands[i]), width);
    }
    Value* divisor = inst.op == Op::kDiv ? value(inst.operands[1]) : nullptr;
    const bool one_divisor = divisor != nullptr && width > 1 && !strip_.of_numbers && !divisor->getType()->isVectorTy();
    // Where others are divided by the same numbers, as in whatever has a sigmoid and its derivative, their reciprocals
    // are there already: a division takes as long as six multiplications.
    const bool narrow = inst.narrow && !strip_.of_numbers;  // a row's number is as exact as it is alone
    const bool by_reciprocal = narrow && divisor != nullptr && width > 1 && quotients_.at(inst.operands[1]) > 1;
    b_.narrow = narrow;
    b_.rough = narrow && inst.rough;
    Value* result = one_divisor                   ? divide_by_one(b_, operands[0], divisor)
                    : by_reciprocal               ? multiplied_by_reciprocal(b_, operands[0], operands[1])
                    : inst.weighs && !inst.narrow ? exp_weight(b_, operands[0])
                    : inst.bounded                ? exp_bounded(b_, operands[0])
                                                  : apply(b_, inst.op, operands[0], operands[1], operands[2]);
    b_.narrow = false;
    b_.rough = false;
    return is_exact(inst.op) || adds_zero(inst) ? result : round_carried(b_, inst.dtype, result);
}

// As what is chosen of a concatenation's parts adds to the others.
bool KernelEmitter::adds_zero(const Inst& inst) const {
    return inst.op == Op::kAdd && std::any_of(inst.operands.begin(), inst.operands.end(), [&](ValueId id) {
               const auto* constant = llvm::dyn_cast<llvm::Constant>(value(id));
               return constant != nullptr && constant->isZeroValue();
           });
}

// Lane by lane: each takes a way of its own.
Value* KernelEmitter::emit_search(const Inst& inst) {
    const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(value(inst.operands[0])->getType());
    if (type == nullptr) return search(inst, data_coordinate(inst.operands[0], 0));
    Value* found = llvm::PoisonValue::get(llvm::FixedVectorType::get(b_.getInt64Ty(), type->getNumElements()));
    for (unsigned lane = 0; lane < type->getNumElements(); ++lane) {
        Value* one = search(inst, data_coordinate(inst.operands[0], static_cast<int>(lane)));
        found = b_.CreateInsertElement(found, one, std::uint64_t{lane});
    }
    return found;
}

// low = 0; high = count; while (low < high): the part in which the first element above `key` lies, of the last element
// and those before it, then of halves. By the oracle's steps, so that both answer alike where the elements are not
// sorted.
Value* KernelEmitter::search(const Inst& inst, Value* key) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    Value* count = extent(tensor.axes[0]);
    Value* last = b_.CreateSub(count, i64(1));
    llvm::BasicBlock* before = b_.GetInsertBlock();
    auto* head = llvm::BasicBlock::Create(b_.getContext(), "search_head", function_);
    auto* inside = llvm::BasicBlock::Create(b_.getContext(), "search_body", function_);
    auto* after = llvm::BasicBlock::Create(b_.getContext(), "search_done", function_);
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    llvm::PHINode* low = b_.CreatePHI(b_.getInt64Ty(), 2, "low");
    llvm::PHINode* high = b_.CreatePHI(b_.getInt64Ty(), 2, "high");
    llvm::PHINode* middle = b_.CreatePHI(b_.getInt64Ty(), 2, "middle");
    b_.CreateCondBr(b_.CreateICmpSLT(low, high), inside, after);

    b_.SetInsertPoint(inside);
    Value* offset = b_.CreateMul(middle, strides_.at({inst.index, tensor.axes[0]}));
    Value* place = b_.CreateGEP(stored_type(b_, tensor.dtype), pointers_[static_cast<std::size_t>(inst.index)], offset);
    Value* element = widen(b_, tensor.dtype, load_memory(inst, place, 1));
    Value* at_most = b_.CreateICmpSLE(convert(b_, tensor.dtype, Dtype::kI64, element), key);
    Value* next_low = b_.CreateSelect(at_most, b_.CreateAdd(middle, i64(1)), low);
    Value* next_high = b_.CreateSelect(at_most, high, middle);
    Value* half = b_.CreateLShr(b_.CreateAdd(next_low, next_high), 1);
    b_.CreateBr(head);
    low->addIncoming(i64(0), before);
    low->addIncoming(next_low, inside);
    high->addIncoming(count, before);
    high->addIncoming(next_high, inside);
    middle->addIncoming(last, before);
    middle->addIncoming(half, inside);

    b_.SetInsertPoint(after);
    return b_.CreateSub(low, i64(1));
}

// i32 lanes: columns fit, and 64-bit vector division would be done lane by lane.
Value* KernelEmitter::emit_coord(AxisId axis, const Lanes& lanes, Dtype dtype) {
    if (axis_[static_cast<std::size_t>(axis)] != nullptr || lanes.width == 1) {
        return convert(b_, Dtype::kI64, dtype, axis_coordinate(axis, lanes, 0));
    }
    const auto& axes = *lanes.axes;
    const auto found = std::find(axes.begin(), axes.end(), axis);
    RJ_CHECK(found != axes.end(), "emit/llvm: axis {} is not of this loop", kernel_.axis(axis).label());
    if (lanes_are_rows_) {  // a row axis, 64 bits long
        std::vector<std::uint64_t> lane_numbers(static_cast<std::size_t>(lanes.width));
        std::iota(lane_numbers.begin(), lane_numbers.end(), 0);
        Value* positions = b_.CreateAdd(spread(lanes.column, lanes.width),
                                        llvm::ConstantDataVector::get(b_.getContext(), lane_numbers));
        Value* inner = i64(1);
        for (auto it = found + 1; it != axes.end(); ++it) inner = b_.CreateMul(inner, extent(*it));
        if (found + 1 != axes.end()) positions = b_.CreateUDiv(positions, spread(inner, lanes.width));
        if (found != axes.begin()) positions = b_.CreateURem(positions, spread(extent(axis), lanes.width));
        return convert(b_, Dtype::kI64, dtype, positions);
    }
    std::int64_t inner = 1;
    for (auto it = found + 1; it != axes.end(); ++it) inner *= kernel_.axis(*it).extent;
    std::vector<std::uint32_t> offsets(static_cast<std::size_t>(lanes.width));
    std::iota(offsets.begin(), offsets.end(), 0);
    const std::int64_t positions = kernel_.axis(axis).extent;
    if (lanes.period.columns > 0 && lanes.period.columns % (inner * positions) == 0) {  // known, the same in each
        for (std::uint32_t& lane : offsets)
            lane = static_cast<std::uint32_t>((lanes.period.place + lane) / inner % positions);
        return convert(b_, Dtype::kI32, dtype, llvm::ConstantDataVector::get(b_.getContext(), offsets));
    }
    Value* columns = spread(b_.CreateTrunc(lanes.column, b_.getInt32Ty()), lanes.width);
    columns = b_.CreateAdd(columns, llvm::ConstantDataVector::get(b_.getContext(), offsets));
    const auto splat = [&](std::int64_t v) {
        return llvm::ConstantInt::get(columns->getType(), static_cast<std::uint64_t>(v));
    };
    if (inner > 1) columns = b_.CreateUDiv(columns, splat(inner));
    if (found != axes.begin()) columns = b_.CreateURem(columns, splat(positions));
    return convert(b_, Dtype::kI32, dtype, columns);
}

Value* KernelEmitter::emit_load(const Inst& inst, const Lanes& lanes) {
    const Dtype dtype = kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype;
    if (const Tile* tile = tile_of(inst)) return convert(b_, dtype, inst.dtype, load_from_tile(*tile, inst, lanes));
    if (const Tile* tile = tile_to_choose_from(inst))
        return convert(b_, dtype, inst.dtype, choose_from_tile(*tile, inst, lanes));
    Value* stored = nullptr;
    const Reach reached = reach(inst, lanes);
    if (reached == Reach::kOneAddress) {
        stored = load_memory(inst, address(inst, lanes, 0, outside_), 1);
    } else if (reached == Reach::kVector) {
        Value* place = address(inst, lanes, inst.access.anchor, outside_);
        if (!inst.access.lanes.empty()) {
            const int before = inst.access.lanes[static_cast<std::size_t>(inst.access.anchor)];
            place = b_.CreateGEP(stored_type(b_, dtype), place, i64(-before));
        }
        stored = load_memory(inst, place, lanes.width);
        if (!inst.access.lanes.empty()) stored = b_.CreateShuffleVector(stored, inst.access.lanes);
    } else if (const PlacesOfLanes lie = places_of_lanes(inst, lanes, outside_); !lie.places.empty()) {
        stored = load_places(inst, lie);
    } else if (inst.access.in_a_row && lanes.width == lanes.vector) {
        stored = load_in_a_row(inst, lanes);
    } else {
        stored = load_each_lane(inst, lanes);
    }
    Value* loaded = widen(b_, dtype, stored);
    if (is_one_number(inst.access.kind)) loaded = with_narrow_nan(dtype, loaded);
    return convert(b_, dtype, inst.dtype, loaded);
}

Value* KernelEmitter::load_each_lane(const Inst& inst, const Lanes& lanes) {
    Value* stored = nullptr;
    for (int lane = 0; lane < lanes.width; ++lane) {
        Value* element = load_memory(inst, address(inst, lanes, lane, outside_), 1);
        if (stored == nullptr) {
            stored = llvm::PoisonValue::get(
                llvm::FixedVectorType::get(element->getType(), static_cast<unsigned>(lanes.width)));
        }
        stored = b_.CreateInsertElement(stored, element, static_cast<std::uint64_t>(lane));
    }
    return stored;
}

// As one vector where all lanes are inside or none is, else one by one.
Value* KernelEmitter::load_in_a_row(const Inst& inst, const Lanes& lanes) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    Value* together = b_.getTrue();
    for (std::size_t i = 0; i < inst.coords.size(); ++i) {
        if (inst.coords[i].data_nodes().empty()) continue;
        Value* first = coordinate(inst.coords[i], lanes, 0);
        Value* last = coordinate(inst.coords[i], lanes, lanes.width - 1);
        Value* positions = extent(tensor.axes[i]);
        Value* inside = b_.CreateAnd(b_.CreateICmpULT(first, positions), b_.CreateICmpULT(last, positions));
        Value* outside = b_.CreateOr(b_.CreateICmpSLT(last, i64(0)), b_.CreateICmpSGE(first, positions));
        together = b_.CreateAnd(together, b_.CreateOr(inside, outside));
    }
    Value* vector = nullptr;
    Value* gathered = nullptr;
    llvm::BasicBlock* from_vector = nullptr;
    llvm::BasicBlock* from_gathered = nullptr;
    branch(
        together,
        [&] {
            vector = load_memory(inst, address(inst, lanes, 0, outside_), lanes.width);
            from_vector = b_.GetInsertBlock();
        },
        [&] {
            gathered = load_each_lane(inst, lanes);
            from_gathered = b_.GetInsertBlock();
        });
    llvm::PHINode* either = b_.CreatePHI(vector->getType(), 2);
    either->addIncoming(vector, from_vector);
    either->addIncoming(gathered, from_gathered);
    return either;
}

PlacesOfLanes KernelEmitter::places_of_lanes(const Inst& inst, const Lanes& lanes, Value* outside) {
    const Access& access = inst.access;
    llvm::Type* element = stored_type(b_, kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype);
    const auto before = [&](Value* first, std::int64_t place) { return b_.CreateGEP(element, first, i64(-place)); };
    if (access.run > 0 && lanes.width == lanes.vector) {
        return {before(address(inst, lanes, 0, outside), access.lanes[0]),
                {access.lanes.begin(), access.lanes.end()},
                0,
                access.run - 1};
    }
    if (!access.in_periods || lanes.period.columns == 0) return {};
    const auto place = [&](std::int64_t column) { return place_in_row(kernel_, inst, *lanes.axes, column); };
    PlacesOfLanes lie;
    for (int lane = 0; lane < lanes.width; ++lane) lie.places.push_back(place(lanes.period.place + lane));
    lie.least = lie.greatest = place(0);
    for (std::int64_t column = 1; column < lanes.period.columns; ++column) {
        lie.least = std::min(lie.least, place(column));
        lie.greatest = std::max(lie.greatest, place(column));
    }
    Lanes first = lanes;
    first.column = lanes.period.begin;
    lie.zero = before(address(inst, first, 0, outside), place(0));
    return lie;
}

// As one vector where lanes follow each other, or else as vectors that begin a multiple of their width behind the first
// element, so that other loads share them, of which shuffles take the lanes.
Value* KernelEmitter::load_places(const Inst& inst, const PlacesOfLanes& lie) {
    const std::vector<std::int64_t>& places = lie.places;
    const auto width = static_cast<int>(places.size());
    llvm::Type* element = stored_type(b_, kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype);
    const auto load_from = [&](std::int64_t place) {
        return load_memory(inst, b_.CreateGEP(element, lie.zero, i64(place)), width);
    };
    const auto breaks = [](std::int64_t one, std::int64_t next) { return next != one + 1; };
    if (std::ranges::adjacent_find(places, breaks) == places.end()) return load_from(places[0]);

    Value* taken = nullptr;
    std::vector<int> from(places.size(), -1);  // of `taken`, by lane
    for (auto next = from.begin(); next != from.end(); next = std::ranges::find(from, -1)) {
        const std::int64_t behind_first = places[static_cast<std::size_t>(next - from.begin())] - lie.least;
        const std::int64_t begin = std::min(lie.least + behind_first / width * width, lie.greatest + 1 - width);
        Value* vector = load_from(begin);
        // Two vectors are brought together by one shuffle, and what comes behind them meets lanes.
        const int behind = taken == nullptr ? 0 : width;
        for (std::size_t lane = 0; lane < places.size(); ++lane) {
            const std::int64_t within = places[lane] - begin;
            if (from[lane] < 0 && within >= 0 && within < width) from[lane] = behind + static_cast<int>(within);
        }
        if (taken == nullptr) {
            taken = vector;
            continue;
        }
        taken = b_.CreateShuffleVector(taken, vector, from);
        for (std::size_t lane = 0; lane < from.size(); ++lane)
            from[lane] = from[lane] < 0 ? -1 : static_cast<int>(lane);
    }
    return b_.CreateShuffleVector(taken, from);
}

// A run of lanes that follow each other at a time.
void KernelEmitter::store_places(const Inst& inst, const PlacesOfLanes& lie, Value* stored) {
    llvm::Type* element = stored_type(b_, kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype);
    for (std::size_t first = 0; first < lie.places.size();) {
        std::vector<int> lanes;
        do {
            lanes.push_back(static_cast<int>(first + lanes.size()));
        } while (first + lanes.size() < lie.places.size() &&
                 lie.places[first + lanes.size()] == lie.places[first] + std::ssize(lanes));
        Value* to = b_.CreateGEP(element, lie.zero, i64(lie.places[first]));
        store_memory(inst, to, lanes.size() == 1 ? lane_of(stored, lanes[0]) : b_.CreateShuffleVector(stored, lanes));
        first += lanes.size();
    }
}

void KernelEmitter::emit_store(const Inst& inst, const Lanes& lanes) {
    const Dtype to = kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype;
    Value* stored = convert(b_, dtype(inst.operands[0]), to, value(inst.operands[0]));
    if (const Tile* tile = tile_of(inst)) return store_to_tile(*tile, inst, spread(stored, lanes.width), lanes);
    const Reach reached = reach(inst, lanes);
    if (reached == Reach::kOneAddress && inst.accumulate && lanes.last != nullptr)
        stored = sum_of_lanes(inst, spread(stored, lanes.width), lanes);
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
    const PlacesOfLanes lie = places_of_lanes(inst, lanes, discarded_);
    if (!lie.places.empty()) return store_places(inst, lie, stored);
    for (int lane = 0; lane < lanes.width; ++lane) {
        Value* place = address(inst, lanes, lane, discarded_);
        if (lanes.last != nullptr) place = b_.CreateSelect(is_row(lanes, lane), place, discarded_);
        store_memory(inst, place, lane_of(stored, lane));
    }
}

}  // namespace rowjit::cpu_emit
