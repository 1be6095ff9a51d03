// Where a lane reads and writes: coordinates, addresses, and the loads and stores themselves.
#include <llvm/IR/Intrinsics.h>

#include <algorithm>

#include "base/check.h"
#include "compiler/emit/llvm_emitter.h"

namespace rowjit::cpu_emit {

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
    Value* column = b_.CreateNSWAdd(lanes.column, i64(lane));
    if (lanes.last != nullptr) column = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, column, lanes.last);
    Value* inner = i64(1);
    for (auto it = found + 1; it != axes.end(); ++it) inner = b_.CreateMul(inner, extent(*it));
    if (found + 1 != axes.end()) column = b_.CreateUDiv(column, inner);
    if (found != axes.begin()) column = b_.CreateURem(column, extent(axis));
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
    if (abreast_ && carried_value->getType()->isVectorTy() && adds_to_all_rows(inst)) {
        const auto same = [&](const PlacedSum& sum) { return sum.store == &inst; };
        auto sum = std::find_if(placed_.begin(), placed_.end(), same);
        if (sum == placed_.end()) sum = placed_.insert(sum, {&inst, address, {}});
        sum->terms.push_back({carried_value});
        return;
    }
    if (inst.accumulate) {
        const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(carried_value->getType());
        Value* before = load_memory(inst, address, type == nullptr ? 1 : static_cast<int>(type->getNumElements()));
        before = widen(b_, tensor.dtype, before);
        carried_value = round_carried(b_, tensor.dtype, apply(b_, inst.op, before, carried_value, nullptr));
    }
    llvm::StoreInst* store =
        b_.CreateAlignedStore(narrow(b_, tensor.dtype, carried_value), address, llvm::Align(size_bytes(tensor.dtype)));
    annotate(store, inst.index);
    if (streaming_loop_ != nullptr && streams(inst, *streaming_loop_)) {
        store->setAlignment(llvm::Align(kLineBytes));
        llvm::Metadata* one = llvm::ConstantAsMetadata::get(b_.getInt32(1));
        store->setMetadata(llvm::LLVMContext::MD_nontemporal, llvm::MDNode::get(b_.getContext(), {one}));
    }
}

void KernelEmitter::annotate(llvm::Instruction* access, int tensor) {
    access->setMetadata(llvm::LLVMContext::MD_alias_scope, scopes_[static_cast<std::size_t>(tensor)]);
    access->setMetadata(llvm::LLVMContext::MD_noalias, other_scopes_[static_cast<std::size_t>(tensor)]);
}

// Whether lanes that are rows have addresses of their own.
bool KernelEmitter::differs_by_row(const Inst& inst) const {
    return std::ranges::any_of(inst.coords, [&](const Coord& coord) {
        const auto is_lanes = [&](Axis axis) { return contains(tile_rows_, axis.id); };
        const auto is_vector = [&](ValueId data) { return value(data)->getType()->isVectorTy(); };
        return std::ranges::any_of(coord.axes(), is_lanes) || std::ranges::any_of(coord.data_nodes(), is_vector);
    });
}

Reach KernelEmitter::reach(const Inst& inst, const Lanes& lanes) {
    if (lanes.width == 1) return Reach::kOneAddress;
    if (kernel_.in_tiles) return differs_by_row(inst) ? Reach::kEachLane : Reach::kOneAddress;
    if (lanes_are_rows_) return reach_of_rows(inst);
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

}  // namespace rowjit::cpu_emit
