#include "compiler/toolchain/orc.h"

#include <fmt/format.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <string_view>

#include "base/check.h"
#include "base/fail.h"
#include "compiler/emit/llvm.h"

namespace rowjit {
namespace {

constexpr const char* kTriple = "x86_64-unknown-linux-gnu";

void initialize_llvm() {
    static std::once_flag once;
    std::call_once(once, [] {
        LLVMInitializeX86TargetInfo();
        LLVMInitializeX86Target();
        LLVMInitializeX86TargetMC();
        LLVMInitializeX86AsmPrinter();
    });
}

// What LLVM is told of a target.
struct Processor {
    std::string name;
    std::string features;
};

Processor processor(const Target& target) {
    if (target.backend != Backend::kCpu) {
        fail(ErrorCode::kUnsupported, "the CPU toolchain cannot compile for '{}'; use native or an x86-64 level",
             target.name);
    }
    if (target.name != "native") return {target.name, target.cpu_features};
    if (target.cpu_features.empty()) return processor(host_cpu_target());
    return {target.label, target.cpu_features};
}

// Comparisons of f16 vectors that are masked and have their first operand in memory compare the wrong way round with
// AVX512-FP16, up to LLVM 21 (llvm-project issue 159723). Without it they are of f32, as all arithmetic is.
constexpr const char* kWithout = "-avx512fp16";

std::unique_ptr<llvm::TargetMachine> target_machine(const Processor& cpu) {
    initialize_llvm();
    std::string complaint;
    const llvm::Target* x86 = llvm::TargetRegistry::lookupTarget(kTriple, complaint);
    if (x86 == nullptr) fail(ErrorCode::kEnvironment, "LLVM was built without x86-64: {}", complaint);
    llvm::TargetOptions options;
    // Standard fuses llvm.fmuladd, which only the math functions use, and no other pair of operations.
    options.AllowFPOpFusion = llvm::FPOpFusion::Standard;
    const std::string features = cpu.features.empty() ? kWithout : fmt::format("{},{}", cpu.features, kWithout);
    return std::unique_ptr<llvm::TargetMachine>(x86->createTargetMachine(kTriple, cpu.name, features, options,
                                                                         llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                                                         llvm::CodeGenOptLevel::Aggressive));
}

struct Family {
    std::string_view name;
    bool divides_slowly;
    bool underflows_slowly;
    bool fetches_light_rows;
    bool streams_abreast;
    std::int64_t streamed_mib;
};

const Family& family(std::string_view cpu) {
    static constexpr std::array kFamilies = {
#define ROWJIT_CPU_FAMILY(...) Family{__VA_ARGS__},
#include "base/cpu_families.def"
#undef ROWJIT_CPU_FAMILY
    };
    return *std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& f) { return cpu.starts_with(f.name); });
}

CpuFeatures emitted_features(const llvm::TargetMachine& machine) {
    const llvm::MCSubtargetInfo& info = *machine.getMCSubtargetInfo();
    CpuFeatures features;
    features.f16_conversion = info.checkFeatures("+f16c");
    features.multiply_add = info.checkFeatures("+fma");
    features.scalef = info.checkFeatures("+avx512f,+avx512vl,+avx512dq");
    features.avx2_alone = !features.scalef && info.checkFeatures("+avx2,+fma");
    features.word_permutes = info.checkFeatures("+avx512bw");
    features.bf16_rounding = info.checkFeatures("+avx512bf16,+avx512bw,+avx512dq");
    const Family& known = family(machine.getTargetCPU().str());
    features.divides_slowly = known.divides_slowly;
    features.underflows_slowly = known.underflows_slowly;
    features.fetches_light_rows = known.fetches_light_rows;
    features.streams_abreast = known.streams_abreast;
    features.streamed_bytes = known.streamed_mib << 20;
    return features;
}

std::unique_ptr<llvm::Module> emit(const Kernel& kernel, const llvm::TargetMachine& machine,
                                   llvm::LLVMContext& context) {
    std::unique_ptr<llvm::Module> module = emit_llvm(kernel, emitted_features(machine), context);
    module->setTargetTriple(kTriple);
    module->setDataLayout(machine.createDataLayout());
    return module;
}

void optimize(llvm::Module& module, llvm::TargetMachine& machine) {
    // Loops come vectorised and unrolled as the schedule says.
    llvm::PipelineTuningOptions tuning;
    tuning.LoopVectorization = false;
    tuning.SLPVectorization = false;
    tuning.LoopUnrolling = false;
    tuning.LoopInterleaving = false;
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager call_graph;
    llvm::ModuleAnalysisManager modules;
    llvm::PassBuilder passes(&machine, tuning);
    passes.registerModuleAnalyses(modules);
    passes.registerCGSCCAnalyses(call_graph);
    passes.registerFunctionAnalyses(functions);
    passes.registerLoopAnalyses(loops);
    passes.crossRegisterProxies(loops, functions, call_graph, modules);
    passes.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O3).run(module, modules);
}

std::string generate(llvm::Module& module, llvm::TargetMachine& machine, llvm::CodeGenFileType type) {
    llvm::SmallVector<char, 0> bytes;
    llvm::raw_svector_ostream stream(bytes);
    llvm::legacy::PassManager passes;
    if (machine.addPassesToEmitFile(passes, stream, nullptr, type)) {
        fail(ErrorCode::kCompile, "kernel {}: LLVM cannot emit code for {}", module.getName().str(),
             machine.getTargetCPU().str());
    }
    passes.run(module);
    return {bytes.begin(), bytes.end()};
}

std::string print(const llvm::Module& module) {
    std::string text;
    llvm::raw_string_ostream stream(text);
    module.print(stream, nullptr);
    return text;
}

std::string message(llvm::Error error) { return llvm::toString(std::move(error)); }

}  // namespace

bool has_cpu_toolchain() { return true; }

std::string cpu_toolchain_version() { return "LLVM " LLVM_VERSION_STRING; }

Target host_cpu_target() {
    Target target = find_target("native");
    target.label = llvm::sys::getHostCPUName().str();
    // Sorted, so that the key text does not depend on a hash table's order.
    std::map<std::string, bool> features;
    for (const auto& feature : llvm::sys::getHostCPUFeatures()) features[feature.first().str()] = feature.second;
    for (const auto& [feature, present] : features) {
        target.cpu_features +=
            fmt::format("{}{}{}", target.cpu_features.empty() ? "" : ",", present ? '+' : '-', feature);
    }
    const auto has = [&](const char* feature) { return features.contains(feature) && features.at(feature); };
    target.vector_lanes = has("avx512f") ? 16 : has("avx2") ? 8 : 4;
    return target;
}

std::string cpu_key_text(const Kernel& kernel, const Target& target) {
    const Processor cpu = processor(target);
    return fmt::format("; {}\n; cpu {}\n; features {}\n{}", cpu_toolchain_version(), cpu.name, cpu.features,
                       print_llvm(kernel, target));
}

std::string print_llvm(const Kernel& kernel, const Target& target) {
    const auto machine = target_machine(processor(target));
    llvm::LLVMContext context;
    return print(*emit(kernel, *machine, context));
}

std::string print_assembly(const Kernel& kernel, const Target& target) {
    const auto machine = target_machine(processor(target));
    llvm::LLVMContext context;
    const auto module = emit(kernel, *machine, context);
    optimize(*module, *machine);
    return generate(*module, *machine, llvm::CodeGenFileType::AssemblyFile);
}

Artifact compile_cpu(const Kernel& kernel, const Target& target) {
    const auto start = std::chrono::steady_clock::now();
    const auto machine = target_machine(processor(target));
    llvm::LLVMContext context;
    const auto module = emit(kernel, *machine, context);
    optimize(*module, *machine);

    Artifact artifact;
    artifact.target = target.name;
    artifact.format = "object";
    artifact.binary = generate(*module, *machine, llvm::CodeGenFileType::ObjectFile);
    artifact.toolchain = cpu_toolchain_version();
    artifact.functions.push_back({.name = kernel.name, .max_threads = 1});
    artifact.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return artifact;
}

struct CpuCode::Linked {
    explicit Linked(std::unique_ptr<llvm::orc::LLJIT> made) : jit(std::move(made)) {}
    std::unique_ptr<llvm::orc::LLJIT> jit;
};

std::unique_ptr<CpuCode> load_cpu_object(const Artifact& artifact) {
    initialize_llvm();
    const auto refuse = [&](llvm::Error error) {
        fail(ErrorCode::kEnvironment, "the object compiled for {} cannot be loaded: {}; remove it from the cache",
             artifact.target, message(std::move(error)));
    };
    if (artifact.format != "object") {
        fail(ErrorCode::kEnvironment, "an artifact of format '{}' for {} is no CPU object", artifact.format,
             artifact.target);
    }
    auto jit = llvm::orc::LLJITBuilder().create();
    if (!jit) refuse(jit.takeError());
    auto bytes = llvm::MemoryBuffer::getMemBufferCopy(artifact.binary, artifact.target);
    if (llvm::Error error = (*jit)->addObjectFile(std::move(bytes))) refuse(std::move(error));
    // Linking happens at the first look-up, and its failures belong here.
    for (const FunctionInfo& function : artifact.functions) {
        if (auto found = (*jit)->lookup(function.name); !found) refuse(found.takeError());
    }
    return std::make_unique<CpuCode>(std::make_unique<CpuCode::Linked>(std::move(*jit)));
}

CpuCode::CpuCode(std::unique_ptr<Linked> linked) : linked_(std::move(linked)) {}
CpuCode::~CpuCode() = default;

void* CpuCode::symbol(const std::string& name) {
    auto found = linked_->jit->lookup(name);
    if (found) return found->toPtr<void*>();
    llvm::consumeError(found.takeError());
    return nullptr;
}

}  // namespace rowjit
