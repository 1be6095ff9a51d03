#include "compiler/emit/llvm_greatest.h"

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/Module.h>

#include <string>

namespace rowjit {
namespace {

using Builder = LaneBuilder;
using llvm::Value;

constexpr std::uint32_t kSign = 0x80000000;

Value* key_at(Builder& b, Value* keys, int count, Value* rank) {
    return b.CreateInBoundsGEP(greatest_type(b, count), keys, {b.getInt64(0), rank});
}

// Both zeros are one number, and all NaN.
Value* key_of(Builder& b, Value* element, Value* place) {
    Value* bits = b.CreateBitCast(b.CreateFAdd(element, llvm::ConstantFP::get(element->getType(), 0)), b.getInt32Ty());
    Value* negative = b.CreateICmpSLT(bits, b.getInt32(0));
    Value* ordered = b.CreateXor(bits, b.CreateSelect(negative, b.getInt32(~0U), b.getInt32(kSign)));
    Value* above = b.CreateSelect(b.CreateFCmpUNO(element, element), b.getInt32(~0U), ordered);
    Value* high = b.CreateShl(b.CreateZExt(above, b.getInt64Ty()), 32);
    return b.CreateOr(high, b.CreateZExt(b.CreateNot(place), b.getInt64Ty()));
}

Value* element_of(Builder& b, Value* key) {
    Value* ordered = b.CreateTrunc(b.CreateLShr(key, 32), b.getInt32Ty());
    Value* positive = b.CreateICmpSLT(ordered, b.getInt32(0));
    Value* bits = b.CreateXor(ordered, b.CreateSelect(positive, b.getInt32(kSign), b.getInt32(~0U)));
    Value* element = b.CreateBitCast(bits, b.getFloatTy());
    return b.CreateSelect(b.CreateICmpEQ(key, b.getInt64(0)), lowest_element(b), element);
}

llvm::PHINode* index_from(Builder& b, llvm::Type* type, Value* start, llvm::BasicBlock* before, const char* name) {
    llvm::PHINode* index = b.CreatePHI(type, 2, name);
    index->addIncoming(start, before);
    return index;
}

// for (rank = count − 1; rank > 0 and keys[rank − 1] < key; --rank) keys[rank] = keys[rank − 1]; keys[rank] = key;
void insert(Builder& b, Value* keys, int count, Value* key) {
    llvm::LLVMContext& context = b.getContext();
    llvm::BasicBlock* before = b.GetInsertBlock();
    llvm::Function* function = before->getParent();
    auto* head = llvm::BasicBlock::Create(context, "rank", function);
    auto* compare = llvm::BasicBlock::Create(context, "compare", function);
    auto* shift = llvm::BasicBlock::Create(context, "shift", function);
    auto* found = llvm::BasicBlock::Create(context, "found", function);
    b.CreateBr(head);
    b.SetInsertPoint(head);
    llvm::PHINode* rank =
        index_from(b, b.getInt64Ty(), b.getInt64(static_cast<std::uint64_t>(count) - 1), before, "rank");
    b.CreateCondBr(b.CreateICmpEQ(rank, b.getInt64(0)), found, compare);
    b.SetInsertPoint(compare);
    Value* above = b.CreateSub(rank, b.getInt64(1));
    Value* greater = b.CreateLoad(b.getInt64Ty(), key_at(b, keys, count, above));
    b.CreateCondBr(b.CreateICmpULT(greater, key), shift, found);
    b.SetInsertPoint(shift);
    b.CreateStore(greater, key_at(b, keys, count, rank));
    rank->addIncoming(above, shift);
    b.CreateBr(head);
    b.SetInsertPoint(found);
    b.CreateStore(key, key_at(b, keys, count, rank));
}

// Of each lane that passes, lowest first, the key, where it still does.
Value* offer(Builder& b, llvm::Function* function, int count) {
    llvm::LLVMContext& context = b.getContext();
    Value* keys = function->getArg(0);
    Value* elements = function->getArg(1);
    const unsigned lanes = llvm::cast<llvm::FixedVectorType>(elements->getType())->getNumElements();
    llvm::Type* mask = b.getIntNTy(lanes);
    Value* last_key = key_at(b, keys, count, b.getInt64(static_cast<std::uint64_t>(count) - 1));
    const auto last = [&] { return b.CreateLoad(b.getInt64Ty(), last_key); };
    Value* passing = b.CreateFCmpUGE(elements, b.CreateVectorSplat(lanes, element_of(b, last())));
    passing = b.CreateBitCast(passing, mask);

    llvm::BasicBlock* before = b.GetInsertBlock();
    auto* head = llvm::BasicBlock::Create(context, "offered", function);
    auto* each = llvm::BasicBlock::Create(context, "each", function);
    auto* take = llvm::BasicBlock::Create(context, "take", function);
    auto* next = llvm::BasicBlock::Create(context, "next", function);
    auto* done = llvm::BasicBlock::Create(context, "done", function);
    b.CreateBr(head);
    b.SetInsertPoint(head);
    llvm::PHINode* left = index_from(b, mask, passing, before, "left");
    b.CreateCondBr(b.CreateICmpEQ(left, llvm::ConstantInt::get(mask, 0)), done, each);

    b.SetInsertPoint(each);
    Value* lane = b.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, left, b.getTrue());
    Value* key = key_of(b, b.CreateExtractElement(elements, lane), b.CreateExtractElement(function->getArg(2), lane));
    b.CreateCondBr(b.CreateICmpUGT(key, last()), take, next);
    b.SetInsertPoint(take);
    insert(b, keys, count, key);
    b.CreateBr(next);

    b.SetInsertPoint(next);
    left->addIncoming(b.CreateAnd(left, b.CreateSub(left, llvm::ConstantInt::get(mask, 1))), next);
    b.CreateBr(head);
    b.SetInsertPoint(done);
    return element_of(b, last());
}

Value* as_vector(Builder& b, Value* v) { return v->getType()->isVectorTy() ? v : b.CreateVectorSplat(1, v); }

}  // namespace

llvm::Type* greatest_type(Builder& b, int count) {
    return llvm::ArrayType::get(b.getInt64Ty(), static_cast<std::uint64_t>(count));
}

llvm::Constant* lowest_element(Builder& b) { return llvm::ConstantFP::getInfinity(b.getFloatTy(), true); }

Value* offer_elements(Builder& b, Value* keys, int count, Value* elements, Value* places) {
    elements = as_vector(b, elements);
    places = as_vector(b, places);
    llvm::Module& module = *b.GetInsertBlock()->getModule();
    const unsigned lanes = llvm::cast<llvm::FixedVectorType>(elements->getType())->getNumElements();
    const std::string symbol = "rj.offer_" + std::to_string(count) + "_x" + std::to_string(lanes);
    llvm::Function* function = module.getFunction(symbol);
    if (function == nullptr) {
        auto* type =
            llvm::FunctionType::get(b.getFloatTy(), {keys->getType(), elements->getType(), places->getType()}, false);
        function = llvm::Function::Create(type, llvm::Function::InternalLinkage, symbol, module);
        function->addFnAttr(llvm::Attribute::NoUnwind);
        function->addFnAttr(llvm::Attribute::NoInline);  // seldom called, and once for each vector of a turn
        Builder body(llvm::BasicBlock::Create(b.getContext(), "entry", function), b.cpu);
        body.CreateRet(offer(body, function, count));
    }
    return b.CreateCall(function, {keys, elements, places});
}

Value* place_of(Builder& b, Value* keys, int count, int rank) {
    Value* place = key_at(b, keys, count, b.getInt64(static_cast<std::uint64_t>(rank)));
    return b.CreateNot(b.CreateTrunc(b.CreateLoad(b.getInt64Ty(), place), b.getInt32Ty()));
}

}  // namespace rowjit
