#include "compiler/emit/llvm_lanes.h"

#include <llvm/IR/Module.h>

#include <cstddef>
#include <numeric>
#include <vector>

namespace rowjit::cpu_lanes {

unsigned width(const Value* v) {
    const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
    return type != nullptr ? type->getNumElements() : 1;
}

llvm::Type* shaped(llvm::Type* element, const Value* like) {
    return is_vector(like) ? llvm::FixedVectorType::get(element, width(like)) : element;
}

Value* integer(const Value* like, std::int64_t value) {
    return llvm::ConstantInt::get(like->getType(), static_cast<std::uint64_t>(value), true);
}

Value* bits_of(Builder& b, Value* v) {
    return b.CreateBitCast(v, shaped(b.getIntNTy(v->getType()->getScalarSizeInBits()), v));
}

Value* with_sign(Builder& b, Value* magnitude, Value* sign) {
    return b.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, magnitude, sign);
}

Value* at_least(Builder& b, Value* v, double low) {
    Value* bound = constant(v, low);
    return b.CreateSelect(b.CreateFCmpOGT(bound, v), bound, v);
}

Value* at_most(Builder& b, Value* v, double high) {
    Value* bound = constant(v, high);
    return b.CreateSelect(b.CreateFCmpOLT(bound, v), bound, v);
}

Value* opaque(Builder& b, llvm::Constant* constant) {
    llvm::BasicBlock& entry = b.GetInsertBlock()->getParent()->getEntryBlock();
    Value*& known = b.opaque[{&entry, constant}];
    if (known == nullptr) {
        auto* place = new llvm::GlobalVariable(*b.GetInsertBlock()->getModule(), constant->getType(), true,
                                               llvm::GlobalValue::PrivateLinkage, constant);
        known = llvm::IRBuilder<>(&entry, entry.begin()).CreateLoad(constant->getType(), place, true);
    }
    return known;
}

std::optional<double> known_number(const Value* v) {
    const auto* constant = llvm::dyn_cast<llvm::Constant>(v);
    if (constant != nullptr && v->getType()->isVectorTy()) constant = constant->getSplatValue();
    const auto* number = llvm::dyn_cast_or_null<llvm::ConstantFP>(constant);
    if (number == nullptr || number->isZero() || number->isNaN()) return std::nullopt;
    return number->getType()->isDoubleTy() ? number->getValueAPF().convertToDouble()
                                           : static_cast<double>(number->getValueAPF().convertToFloat());
}

Value* multiply_add(Builder& b, Value* a, Value* m, Value* c) {
    return b.CreateIntrinsic(llvm::Intrinsic::fmuladd, {a->getType()}, {a, m, c});
}

Value* horner(Builder& b, Value* x, std::span<const double> coefficients) {
    Value* sum = constant(x, coefficients.back());
    for (std::size_t i = coefficients.size() - 1; i-- > 0;) {
        sum = multiply_add(b, sum, x, constant(x, coefficients[i]));
    }
    return sum;
}

Value* call_shared(Builder& b, const std::string& name, llvm::Type* type, llvm::ArrayRef<Value*> arguments,
                   const std::function<Value*(Builder&, llvm::Function*)>& define) {
    llvm::Module& module = *b.GetInsertBlock()->getModule();
    const std::string element = is_f64(arguments[0]) ? ".f64x" : is_fp(arguments[0]) ? ".f32x" : ".i64x";
    const std::string symbol = "rj." + name + element + std::to_string(width(arguments[0]));
    llvm::Function* function = module.getFunction(symbol);
    if (function == nullptr) {
        std::vector<llvm::Type*> parameters;
        for (Value* argument : arguments) parameters.push_back(argument->getType());
        function = llvm::Function::Create(llvm::FunctionType::get(type, parameters, false),
                                          llvm::Function::InternalLinkage, symbol, module);
        function->addFnAttr(llvm::Attribute::AlwaysInline);
        function->addFnAttr(llvm::Attribute::NoUnwind);
        function->addFnAttr(llvm::Attribute::WillReturn);
        function->setMemoryEffects(llvm::MemoryEffects::none());  // so that of two calls alike one is left
        Builder body(llvm::BasicBlock::Create(b.getContext(), "entry", function), b.cpu);
        Value* result = define(body, function);
        body.CreateRet(result);
    }
    return b.CreateCall(function, arguments);
}

Value* call_shared(Builder& b, const std::string& name, Value* x, Lanewise define) {
    return call_shared(b, name, x->getType(), {x},
                       [&](Builder& body, llvm::Function* f) { return define(body, f->getArg(0)); });
}

Value* call_libm(Builder& b, const std::string& name, Value* x) {
    llvm::Module& module = *b.GetInsertBlock()->getModule();
    llvm::FunctionCallee callee = module.getOrInsertFunction(name, b.getDoubleTy(), b.getDoubleTy());
    auto* function = llvm::cast<llvm::Function>(callee.getCallee());
    function->addFnAttr(llvm::Attribute::NoUnwind);
    function->setMemoryEffects(llvm::MemoryEffects::none());
    if (!is_vector(x)) return b.CreateCall(callee, {x});
    Value* result = llvm::PoisonValue::get(x->getType());
    for (unsigned lane = 0; lane < width(x); ++lane) {
        result = b.CreateInsertElement(result, b.CreateCall(callee, {b.CreateExtractElement(x, lane)}), lane);
    }
    return result;
}

Value* lanes_of(Builder& b, Value* v, unsigned from, unsigned count) {
    std::vector<int> mask(count);
    std::iota(mask.begin(), mask.end(), static_cast<int>(from));
    return b.CreateShuffleVector(v, mask);
}

Value* joined(Builder& b, Value* low, Value* high) {
    std::vector<int> mask(std::size_t{2} * width(low));
    std::iota(mask.begin(), mask.end(), 0);
    return b.CreateShuffleVector(low, high, mask);
}

Value* by_instruction(Builder& b, const Masked& instruction, Value* x, Value* second, Value* where) {
    constexpr std::uint64_t kCurrentRounding = 4;
    const unsigned lanes = width(x);
    if (lanes > kZmmLanes) {
        const auto half = [&](unsigned from) {
            const auto part = [&](Value* v) {
                return v != nullptr && is_vector(v) ? lanes_of(b, v, from, lanes / 2) : v;
            };
            return by_instruction(b, instruction, part(x), part(second), part(where));
        };
        return joined(b, half(0), half(lanes / 2));
    }
    const auto id = lanes == 16 ? instruction.of_512 : lanes == 8 ? instruction.of_256 : instruction.of_128;
    llvm::Type* mask_type = lanes == 16 ? b.getInt16Ty() : b.getInt8Ty();
    Value* mask = llvm::Constant::getAllOnesValue(mask_type);
    if (where != nullptr) mask = b.CreateZExt(b.CreateBitCast(where, b.getIntNTy(lanes)), mask_type);
    std::vector<Value*> arguments = {x};
    if (second != nullptr) arguments.push_back(second);
    arguments.push_back(where != nullptr ? constant(x, 0) : llvm::PoisonValue::get(x->getType()));
    arguments.push_back(mask);
    if (lanes == 16) arguments.push_back(b.getInt32(kCurrentRounding));
    return b.CreateIntrinsic(id, {}, arguments);
}

Value* scale_by_instruction(Builder& b, Value* x, Value* k, double least) {
    Value* large = b.cpu.underflows_slowly && least > -kInfinity ? b.CreateFCmpUGE(k, constant(k, least)) : nullptr;
    return by_instruction(b, kScale, x, k, large);
}

Value* look_up(Builder& b, std::span<const double> table, Value* indices) {
    const unsigned lanes = width(indices);
    if (lanes > table.size()) {
        return joined(b, look_up(b, table, lanes_of(b, indices, 0, lanes / 2)),
                      look_up(b, table, lanes_of(b, indices, lanes / 2, lanes / 2)));
    }
    const std::vector<float> entries(table.begin(), table.end());
    llvm::Constant* all = llvm::ConstantDataVector::get(b.getContext(), entries);
    const auto permutation =
        lanes == kZmmLanes ? llvm::Intrinsic::x86_avx512_permvar_sf_512 : llvm::Intrinsic::x86_avx2_permps;
    return b.CreateIntrinsic(permutation, {}, {all, indices});
}

Value* any_lane(Builder& b, Value* mask) {
    Value* lanes = b.CreateSExt(mask, shaped(b.getInt32Ty(), mask));
    while (width(lanes) > kYmmLanes) {
        const unsigned half = width(lanes) / 2;
        lanes = b.CreateOr(lanes_of(b, lanes, 0, half), lanes_of(b, lanes, half, half));
    }
    return b.CreateOrReduce(b.CreateICmpSLT(lanes, integer(lanes, 0)));
}

}  // namespace rowjit::cpu_lanes
