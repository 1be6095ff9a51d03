// Sums over positions for the processor: which of a row's terms lie at a vector's columns. Few do, so that a vector
// asks several positions at once, and goes through them one by one where any is its own.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "compiler/emit/llvm_emitter.h"

namespace rowjit::cpu_emit {
namespace {

constexpr int kAskedAtOnce = 8;  // positions, of 64 bits

Value* plus(LaneBuilder& b, Dtype dtype, Value* sum, Value* term) {
    return is_float(dtype) ? b.CreateFAdd(sum, term) : b.CreateAdd(sum, term);
}

}  // namespace

Value* KernelEmitter::emit_sum_where(const Inst& inst, const Lanes& lanes) {
    Value* place = convert(b_, dtype(inst.operands[0]), Dtype::kI64, value(inst.operands[0]));
    const auto differs = [&](int tensor) {
        const std::vector<AxisId>& axes = kernel_.tensors[static_cast<std::size_t>(tensor)].axes;
        return std::ranges::any_of(axes, [&](AxisId axis) {
            return axis != inst.axis && lanes.axes != nullptr &&
                   std::ranges::find(*lanes.axes, axis) != lanes.axes->end();
        });
    };
    if (lanes.width == 1 || (!differs(inst.index) && !differs(inst.places))) {
        const bool runs = place->getType()->isVectorTy() && lane_step(inst.operands[0], lanes) == 1;
        return runs ? sums_of_run(inst, lanes, place) : sum_where(inst, lanes, 0, place);
    }
    Value* sums = llvm::PoisonValue::get(carried(inst.dtype, lanes.width));
    for (int lane = 0; lane < lanes.width; ++lane) {
        Value* one = sum_where(inst, lanes, lane, lane_of(place, lane));
        sums = b_.CreateInsertElement(sums, one, static_cast<std::uint64_t>(lane));
    }
    return sums;
}

// Of lanes whose places follow one another: a number of each on the stack, to which those of the row's terms are added
// that lie there.
Value* KernelEmitter::sums_of_run(const Inst& inst, const Lanes& lanes, Value* places) {
    llvm::AllocaInst* sums = stack(carried(inst.dtype, lanes.width), inst.label);
    b_.CreateStore(number(inst.dtype, 0, lanes.width), sums);
    Value* first = lane_of(places, 0);
    const auto add_term = [&](Value* position) {
        Value* place = b_.CreateSub(position_of(inst, inst.places, lanes, 0, position, 1), first);
        emit_where_any(b_.CreateICmpULT(place, i64(lanes.width)), "here", [&] {
            Value* sum = b_.CreateInBoundsGEP(sums->getAllocatedType()->getScalarType(), sums, place);
            Value* before = b_.CreateLoad(sums->getAllocatedType()->getScalarType(), sum);
            Value* term = position_of(inst, inst.index, lanes, 0, position, 1);
            b_.CreateStore(plus(b_, inst.dtype, before, term), sum);
        });
    };
    const KernelTensor& asked = kernel_.tensors[static_cast<std::size_t>(inst.places)];
    const std::int64_t all = kernel_.axis(inst.axis).extent;
    const bool is_dense = !kernel_.axis(inst.axis).is_row && asked.column_strides == std::vector<std::int64_t>{1};
    const std::int64_t whole = is_dense ? all / kAskedAtOnce * kAskedAtOnce : 0;
    if (whole > 0) {
        count(i64(0), i64(whole), i64(kAskedAtOnce), "positions", [&](Value* begin) {
            Value* asked_places = position_of(inst, inst.places, lanes, 0, begin, kAskedAtOnce);
            Value* here = b_.CreateICmpULT(b_.CreateSub(asked_places, spread(first, kAskedAtOnce)),
                                           spread(i64(lanes.width), kAskedAtOnce));
            emit_where_any(b_.CreateOrReduce(here), "any_here",
                           [&] { count(begin, b_.CreateAdd(begin, i64(kAskedAtOnce)), i64(1), "position", add_term); });
        });
    }
    if (whole < all) count(i64(whole), i64(all), i64(1), "position", add_term);
    return b_.CreateLoad(sums->getAllocatedType(), sums);
}

// Of the row that a lane has, for one place or for one of each lane.
Value* KernelEmitter::sum_where(const Inst& inst, const Lanes& lanes, int lane, Value* place) {
    const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(place->getType());
    const int width = type == nullptr ? 1 : static_cast<int>(type->getNumElements());
    llvm::AllocaInst* sum = stack(carried(inst.dtype, width), inst.label);
    b_.CreateStore(number(inst.dtype, 0, width), sum);
    count(i64(0), i64(kernel_.axis(inst.axis).extent), i64(1), "position", [&](Value* position) {
        Value* here = b_.CreateICmpEQ(spread(position_of(inst, inst.places, lanes, lane, position, 1), width), place);
        Value* term = spread(position_of(inst, inst.index, lanes, lane, position, 1), width);
        Value* before = b_.CreateLoad(sum->getAllocatedType(), sum);
        b_.CreateStore(b_.CreateSelect(here, plus(b_, inst.dtype, before, term), before), sum);
    });
    return b_.CreateLoad(sum->getAllocatedType(), sum);
}

// What the row's tensor has at so many positions from one on: places as i64, terms as the sum is.
Value* KernelEmitter::position_of(const Inst& sum, int tensor, const Lanes& lanes, int lane, Value* position,
                                  int width) {
    const KernelTensor& of = kernel_.tensors[static_cast<std::size_t>(tensor)];
    Inst load{.kind = InstKind::kLoad, .dtype = of.dtype};
    load.index = tensor;
    for (const AxisId axis : of.axes) load.coords.push_back(axis == sum.axis ? Coord(0) : Coord(Axis{axis}));
    const auto along = static_cast<std::size_t>(std::ranges::find(of.axes, sum.axis) - of.axes.begin());
    Value* stride = kernel_.axis(sum.axis).is_row
                        ? strides_.at({tensor, sum.axis})
                        : i64(of.column_strides[along - (of.axes.size() - of.column_strides.size())]);
    Value* at =
        b_.CreateGEP(stored_type(b_, of.dtype), address(load, lanes, lane, outside_), b_.CreateMul(position, stride));
    Value* stored = widen(b_, of.dtype, load_memory(load, at, width));
    return convert(b_, of.dtype, tensor == sum.places ? Dtype::kI64 : sum.dtype, stored);
}

}  // namespace rowjit::cpu_emit
