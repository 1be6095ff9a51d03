#include "runtime/build.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "base/fail.h"
#include "base/parallel.h"
#include "compiler/emit/gpu.h"
#include "compiler/passes/passes.h"
#include "compiler/toolchain/orc.h"
#include "compiler/toolchain/toolchain.h"

namespace rowjit {
namespace {

// In place of a schedule that spills. Each of these compiles a kernel; past them the rule's own is as good as any.
constexpr std::size_t kMostTried = 8;

constexpr std::int64_t kFullBlock = 128;  // threads; smaller blocks are as many as a multiprocessor has places for

// All of a kernel's key but its compiler.
KeyFields key_fields(const Kernel& kernel, const Target& target) {
    KeyFields fields;
    fields.source = target.is_gpu() ? emit_gpu(kernel, target) : Source{cpu_key_text(kernel, target), {kernel.name}};
    fields.architecture = target.name;
    // For "native": LLVM's CPU name and features.
    if (!target.is_gpu()) fields.cpu_features = target.label + " " + target.cpu_features;
    fields.codegen_version = kCodegenVersion;
    return fields;
}

// With that of this machine.
CacheKey own_key(KeyFields fields, const Target& target) {
    if (!target.is_gpu()) {
        fields.toolchain = "llvm";
        fields.toolchain_version = cpu_toolchain_version();
        return CacheKey(fields);
    }
    const auto toolchain = find_toolchain(target);
    if (!toolchain) fail(ErrorCode::kEnvironment, "cannot compile for {}: {}", target.name, toolchain.reason());
    fields.options = compile_options(*toolchain, target);
    fields.toolchain = toolchain->name;
    fields.toolchain_version = toolchain->version;
    return CacheKey(fields);
}

constexpr double kLeastShareOfRegisters = 0.75;
constexpr std::int64_t kFewThreads = 512;  // on a multiprocessor

std::int64_t blocks_beside(const Kernel& kernel, const Artifact& artifact, const Target& target) {
    return blocks_beside(kernel, target, artifact.functions.front().registers);
}

bool spills(const Artifact& artifact) { return artifact.functions.front().spill_bytes > 0; }

bool is_of_rows_in_registers(const Kernel& kernel) {
    const Schedule& s = kernel.schedule;
    return s.family != Family::kRowsReduction && s.residency == Residency::kRegisters;
}

// Blocks on a multiprocessor, one more than there is room for with the registers that the compiler took, where that
// needs a few of each thread only. Left alone it takes what there is, and moves loads up with it. H200, % of copy:
// rope_complex of bf16 in 40 registers 99, in 48 of five blocks 89; a token shift in 48 101, in 64 93; dynamic_tanh in
// 62 93, in 72 87; and no kernel without reductions is slower. Those with them need the loads that are in flight:
// softmax's backward of f32 runs at 94 in 80 registers, at 101 in 90, a causal softmax's at 54 in 128, at 67 in 149.
// But a block that is alone has nothing beside it while it meets: hyper_post's backward runs at 99 in 128, at 77 in
// 169. And loads that are issued together are in flight in any number of registers: that causal softmax then runs at 55
// in 147 registers, in 128 at 64; of more than 512 threads a rule was no better than none (softmax's backward of 65536
// columns 91 and 94, of 32768 100 and 97, a log-cosh 64 and 58).
std::optional<int> one_more_block(const Kernel& kernel, const Artifact& artifact, const Target& target) {
    const Schedule& s = kernel.schedule;
    const bool ends = s.blocks_per_sm == 0 && s.min_blocks_per_sm == 0;
    const std::int64_t threads = kernel.block_threads();
    if (target.backend != Backend::kCuda || !ends || !is_of_rows_in_registers(kernel) || threads < kFullBlock)
        return std::nullopt;
    const std::int64_t blocks = std::max<std::int64_t>(1, blocks_beside(kernel, artifact, target)) + 1;
    const bool gains = s.family == Family::kElementwise || blocks == 2 ||
                       (kernel.loads_together != LoadsTogether::kNot && (blocks - 1) * threads < kFewThreads);
    const auto left = static_cast<double>(registers_beside(kernel, target, blocks));
    const bool needs_few = left >= kLeastShareOfRegisters * artifact.functions.front().registers;
    if (!gains || !needs_few || blocks * threads > target.max_threads_per_sm) return std::nullopt;
    return static_cast<int>(blocks);
}

struct Compiled {
    Kernel kernel;
    Artifact artifact;
};

// Compiled, and once more for one more block where that is wanted and possible.
Compiled compile_bounded(Kernel kernel, const Target& target) {
    Artifact artifact = compile_source(emit_gpu(kernel, target), target);
    if (const std::optional<int> blocks = one_more_block(kernel, artifact, target)) {
        Kernel bounded = kernel;
        bounded.schedule.min_blocks_per_sm = *blocks;
        Artifact fewer = compile_source(emit_gpu(bounded, target), target);
        if (!spills(fewer) && fewer.functions.front().registers < artifact.functions.front().registers)
            return {std::move(bounded), std::move(fewer)};
    }
    return {std::move(kernel), std::move(artifact)};
}

// What spills may not where a row's stage is filled again, or is no more: of eight channels of 4096 bf16 columns a
// group norm's derivatives fit so, 0.196 ms, where the next schedule takes 0.340 (H200).
Compiled compile_either(Kernel kernel, const Target& target) {
    Compiled made = compile_bounded(kernel, target);
    if (!spills(made.artifact) || !kernel.may_refill()) return made;
    kernel.refills = !kernel.refills;
    Compiled other = compile_bounded(std::move(kernel), target);
    return spills(other.artifact) ? std::move(made) : std::move(other);
}

// Whether a kernel whose loads are issued together serves better: more of its blocks share a multiprocessor, or its
// threads wait for memory less often, or as often with more on its way.
bool serves_better(const Compiled& made, const Compiled& than, const Target& target) {
    const auto merits = [&](const Compiled& one) {
        const FunctionInfo& info = one.artifact.functions.front();
        return std::tuple(blocks_beside(one.kernel, one.artifact, target), -info.load_waits, info.bytes_in_flight);
    };
    const bool apart = than.kernel.loads_together == LoadsTogether::kNot;
    return !spills(made.artifact) && (merits(made) > merits(than) || (apart && merits(made) == merits(than)));
}

// Likewise of rows that are read in turns, whose threads have others beside them while they wait: only where clearly
// more is on its way, or, of narrow floats, where they wait less often. H200, ms without and with loads together:
// top_k of 50304 f32 columns 16 bytes in flight and 80, 0.108 and 0.058; log-probabilities of 262144 and 8192 f32
// columns 40 and 64, 0.069 and 0.063, 0.072 and 0.068; cross-entropy of 32000 and 128256 bf16 columns 3 waits and 2,
// 0.073 and 0.070, 0.071 and 0.068. But of f32 columns with 3 waits and 2 log-probabilities of 6144 0.057 and 0.061, of
// 32000 0.064 and 0.067; with neither more in flight nor fewer waits kl_div of 32000 f32 columns 0.083 and 0.087.
bool streams_better(const Compiled& made, const Compiled& than, const Target& target) {
    constexpr double kClearlyMore = 1.25;
    const FunctionInfo& info = made.artifact.functions.front();
    const FunctionInfo& other = than.artifact.functions.front();
    const auto blocks = static_cast<double>(blocks_beside(made.kernel, made.artifact, target));
    const auto others = static_cast<double>(blocks_beside(than.kernel, than.artifact, target));
    const bool has_more = std::min(1.0, blocks / others) * info.bytes_in_flight >= kClearlyMore * other.bytes_in_flight;
    const bool is_of_narrow = std::ranges::any_of(made.kernel.tensors, [](const KernelTensor& tensor) {
        return tensor.read && is_narrow(tensor.dtype) && !tensor.column_strides.empty();
    });
    return !spills(made.artifact) &&
           (has_more || (is_of_narrow && blocks >= others && info.load_waits < other.load_waits));
}

// Columns that each element of a loop is made of, as loads.
bool has_several_loads(const Kernel& kernel) {
    return std::ranges::any_of(kernel.body, [](const Stmt& stmt) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        return loop != nullptr && std::ranges::count(loop->body, InstKind::kLoad, &Inst::kind) > 1;
    });
}

// What has no reduction is left alone unless its code waits for some loads before it asks for others. Told how many
// blocks share a multiprocessor anyway, the assembler mostly spends what registers they leave on asking first: a rotary
// embedding's backward of f32 had its partner's vector behind the product with its own, in 32 registers as now, and ran
// at 88 % of copy where its forward does at 97, and at 97 since. Else the loads are issued together, which costs
// instructions (a dropout_add of bf16 ran at 98 so, at 101 without). What is made of one tensor computes a vector while
// it waits for the next: silu of f32 runs at 97 with two waits, at 95 with one, gelu at 98 and 95 (H200).
Compiled fewer_waits(Compiled best, const Target& target) {
    const Schedule& s = best.kernel.schedule;
    const auto waits = [](const Compiled& one) { return one.artifact.functions.front().load_waits; };
    if (target.backend != Backend::kCuda || s.family != Family::kElementwise || !is_of_rows_in_registers(best.kernel) ||
        best.kernel.block_threads() < kFullBlock || !has_several_loads(best.kernel))
        return best;
    const auto attempt = [&](const Kernel& kernel) {
        Compiled other{kernel, compile_source(emit_gpu(kernel, target), target)};
        if (waits(other) < waits(best) && serves_better(other, best, target)) best = std::move(other);
    };
    if (waits(best) > 1 && s.min_blocks_per_sm == 0) {
        Kernel bounded = best.kernel;
        bounded.schedule.min_blocks_per_sm = static_cast<int>(blocks_beside(bounded, best.artifact, target));
        if (bounded.schedule.min_blocks_per_sm > 0) attempt(bounded);
    }
    if (waits(best) > 1) {
        Kernel together = best.kernel;
        together.loads_together = LoadsTogether::kAll;
        attempt(together);
    }
    return best;
}

// A row's loads are issued together, unless the assembler needs the registers for more blocks (a log-softmax's 65536
// columns run at 95 % of copy in 83 registers, at 70 in 145), and of these as leaves the fewest waits in its code. On
// an H200 a sparsemax's backward of 128256 columns waits once with all its vectors, twice with those that all threads
// have, at 93 and 75; a softmax's of 131072 f32 columns once with the row's numbers, thrice without, at 97 and 75; but
// a tvd's three times without them, four times with them, at 81 and 65.
Artifact compile_gpu(const Kernel& kernel, const Target& target) {
    Compiled best = compile_either(kernel, target);
    if (!loads_may_wait(kernel, target)) return fewer_waits(std::move(best), target).artifact;
    std::set<std::string> tried = {emit_gpu_body(kernel, target)};
    for (const LoadsTogether which : {LoadsTogether::kAllAndNumbers, LoadsTogether::kAll, LoadsTogether::kWhole}) {
        Kernel waiting = kernel;
        waiting.loads_together = which;
        if (!tried.insert(emit_gpu_body(waiting, target)).second) continue;
        Compiled together = compile_bounded(std::move(waiting), target);
        const bool streams = kernel.schedule.residency == Residency::kReload;
        if (streams ? streams_better(together, best, target) : serves_better(together, best, target))
            best = std::move(together);
        const bool asks_once = best.artifact.functions.front().load_waits <= 1;
        if (asks_once && best.kernel.loads_together != LoadsTogether::kNot) break;
    }
    return std::move(best.artifact);
}

}  // namespace

std::unique_ptr<KernelCache> make_cache(const std::string& root, Bundles bundles) {
    return std::make_unique<KernelCache>(root.empty() ? nullptr : std::make_shared<KernelStore>(root),
                                         std::move(bundles));
}

Target resolve_target(const std::string& name) { return name == "native" ? host_cpu_target() : find_target(name); }

std::string toolchain_version(const Target& target) {
    if (!target.is_gpu()) return cpu_toolchain_version();
    const auto toolchain = find_toolchain(target);
    return toolchain ? toolchain->name + " " + toolchain->version : "";
}

std::string readable_source(const Kernel& kernel, const Target& target) {
    return target.is_gpu() ? emit_gpu_body(kernel, target) : print_llvm(kernel, target);
}

Artifact compile_kernel(const Kernel& kernel, const Target& target) {
    return target.is_gpu() ? compile_gpu(kernel, target) : compile_cpu(kernel, target);
}

BuiltKernel build(const Kernel& kernel, const Target& target, KernelCache& cache, const KernelCache::Compile& make) {
    const KeyFields fields = key_fields(kernel, target);
    if (std::optional<BundledKernel> bundled = cache.find_bundled(fields))
        return {std::move(bundled->key), std::move(bundled->artifact), true};
    bool compiled = false;
    CacheKey key = own_key(fields, target);
    auto artifact = cache.get_or_compile(key, [&] {
        compiled = true;
        return make ? make() : compile_kernel(kernel, target);
    });
    return {std::move(key), std::move(artifact), !compiled};
}

std::vector<BuiltKernel> build_all(const std::vector<const Kernel*>& kernels, const Target& target,
                                   KernelCache& cache) {
    std::vector<std::optional<BuiltKernel>> built(kernels.size());
    std::vector<std::exception_ptr> failures(kernels.size());
    in_parallel(kernels.size(), [&](std::size_t i) {
        try {
            built[i] = build(*kernels[i], target, cache);
        } catch (...) {
            failures[i] = std::current_exception();
        }
    });
    for (const std::exception_ptr& failure : failures) {
        if (failure) std::rethrow_exception(failure);
    }
    std::vector<BuiltKernel> result;
    for (auto& kernel : built) result.push_back(std::move(*kernel));
    return result;
}

bool spills(const BuiltKernel& kernel, const Target& target) { return target.is_gpu() && spills(*kernel.artifact); }

BuiltProgram build_program(Program program, const Target& target, KernelCache& cache) {
    std::vector<const Kernel*> kernels;
    for (const Step& step : program.steps) kernels.push_back(&step.kernel);
    std::vector<BuiltKernel> built = build_all(kernels, target, cache);
    return {std::move(program), std::move(built)};
}

std::size_t place_of_static_choice(std::size_t legal, const std::function<bool(std::size_t place)>& spills) {
    for (std::size_t place = 0; place < std::min(legal, kMostTried); ++place) {
        if (!spills(place)) return place;
    }
    return 0;
}

BuiltProgram build_without_spills(const GraphData& graph, const Target& target, const ScheduleChoice& choice,
                                  KernelCache& cache, const ChunkOptions& chunks) {
    BuiltProgram made = build_program(compile(graph, target, choice, chunks), target, cache);
    for (std::size_t i = 0; i < made.kernels.size(); ++i) {
        Step& step = made.program.steps[i];
        if (!spills(made.kernels[i], target) || step.product || (choice && choice(step.group))) continue;
        const std::vector<Schedule> legal = legal_schedules(step.group, target);
        Kernel kernel;
        BuiltKernel built = made.kernels[i];
        const auto spills_too = [&](std::size_t place) {
            if (place == 0) return true;
            kernel = *build_kernel(step.group, legal[place], target);
            kernel.neighbours = step.kernel.neighbours;
            built = build(kernel, target, cache);
            return spills(built, target);
        };
        if (place_of_static_choice(legal.size(), spills_too) == 0) continue;
        Step other = make_step(made.program, step.group, std::move(kernel));
        other.needed = step.needed;
        other.stays = step.stays;
        step = std::move(other);
        made.kernels[i] = std::move(built);
    }
    return made;
}

}  // namespace rowjit
