// A pass of the order of ids (Kernel::order): they are counted by their digit, and then each is placed behind those of
// lesser digits and those that came before it. One thread does it all, twice through ids that lie in its caches: dealt
// out to several they would have to meet between the two, and a pass over 4096 ids is some ten microseconds.
#include <llvm/IR/Intrinsics.h>

#include "compiler/emit/llvm_emitter.h"

namespace rowjit::cpu_emit {

void KernelEmitter::order_ids() {
    const OrderPass& pass = *kernel_.order;
    const std::int64_t kinds = pass.digit.kinds();
    const auto element = [&](int tensor, Value* at, std::int64_t offset = 0) {
        const KernelTensor& facts = kernel_.tensors[static_cast<std::size_t>(tensor)];
        Value* place = b_.CreateAdd(b_.CreateMul(at, strides_.at({tensor, facts.axes[0]})), i64(offset));
        return b_.CreateGEP(stored_type(b_, facts.dtype), pointers_[static_cast<std::size_t>(tensor)], place);
    };
    const auto load = [&](int tensor, Value* address) {
        const Dtype dtype = kernel_.tensors[static_cast<std::size_t>(tensor)].dtype;
        llvm::LoadInst* loaded = b_.CreateLoad(stored_type(b_, dtype), address);
        annotate(loaded, tensor);
        return b_.CreateSExt(loaded, b_.getInt64Ty());
    };
    Value* ids = extent(kernel_.row_axes[0]);
    Value* rows = extent(pass.rows);
    llvm::AllocaInst* counts =
        stack(llvm::ArrayType::get(b_.getInt64Ty(), static_cast<std::uint64_t>(kinds)), "counts");
    llvm::AllocaInst* start = stack(b_.getInt64Ty(), "start");
    const auto count_of = [&](Value* digit) { return b_.CreateGEP(b_.getInt64Ty(), counts, digit); };
    const auto position_at = [&](Value* place) {
        return pass.before < 0 ? place : load(pass.before, element(pass.before, place));
    };
    const auto digit_of = [&](Value* position) {
        Value* id = load(pass.ids, element(pass.ids, position, pass.offset));
        id = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, id, i64(-1));
        id = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, id, rows);
        Value* kind = b_.CreateLShr(b_.CreateAdd(id, i64(1)), i64(pass.digit.shift), "kind");
        return b_.CreateAnd(kind, i64(kinds - 1), "digit");
    };
    // How many there were, plus as many.
    const auto add = [&](Value* place, Value* more) {
        Value* old = b_.CreateLoad(b_.getInt64Ty(), place);
        b_.CreateStore(b_.CreateAdd(old, more), place);
        return old;
    };
    count(function_->getArg(1), function_->getArg(2), i64(1), "block", [&](Value*) {
        count(i64(0), i64(kinds), i64(1), "cleared", [&](Value* digit) { b_.CreateStore(i64(0), count_of(digit)); });
        count(i64(0), ids, i64(1), "counted",
              [&](Value* place) { add(count_of(digit_of(position_at(place))), i64(1)); });
        b_.CreateStore(i64(0), start);
        count(i64(0), i64(kinds), i64(1), "begun", [&](Value* digit) {
            Value* of_digit = b_.CreateLoad(b_.getInt64Ty(), count_of(digit));
            b_.CreateStore(add(start, of_digit), count_of(digit));
        });
        count(i64(0), ids, i64(1), "placed", [&](Value* place) {
            Value* position = position_at(place);
            Value* at = add(count_of(digit_of(position)), i64(1));
            annotate(b_.CreateStore(position, element(pass.result, at)), pass.result);
        });
    });
}

}  // namespace rowjit::cpu_emit
