// Every toolchain accepts what the GPU emitter writes, for every target, without spilling.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/compile.h"
#include "compiler/emit/gpu.h"
#include "compiler/toolchain/toolchain.h"
#include "dsl/graph.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "tests/compiler/gpu_kernel.h"

using namespace rowjit;

namespace {

void build_gelu(Graph& g, std::int64_t columns) { g.output("y", gelu(g.input("x", f32, {g.rows("tokens"), columns}))); }

// Every primitive that takes `dtype`, and every conversion from it.
void build_all_ops(Graph& g, Dtype dtype) {
    const Axis tokens = g.rows("tokens");
    const Value a = g.input("a", dtype, {tokens, 64});
    const Value b = g.input("b", dtype, {tokens, 64});
    const Value condition = a < b || (!(a == b) && a != b);
    for (const OpInfo& op : all_ops()) {
        if (op.types == OpTypes::kCompare || op.types == OpTypes::kLogic) continue;
        if (op.types == OpTypes::kFloat && !is_float(dtype)) continue;
        if (op.types == OpTypes::kRandom && dtype != i64) continue;
        if (op.types == OpTypes::kWhole && !is_integer(dtype)) continue;
        std::vector<NodeId> args = {a.id()};
        if (op.types == OpTypes::kSelect) args.insert(args.begin(), condition.id());
        while (static_cast<int>(args.size()) < op.arity) args.push_back(b.id());
        g.output(fmt::format("{}_out", op.name), Value(g.data(), g.data()->add_map(op.op, args)));
    }
    for (const Dtype to : {boolean, i32, i64, bf16, f16, f32}) {
        if (to != dtype) g.output(fmt::format("to_{}", name(to)), cast(a, to));
    }
}

bool available(const Target& target) {
    const Offer<Toolchain> toolchain = find_toolchain(target);
    if (toolchain) return true;
    if (std::getenv("ROWJIT_TESTS_REQUIRE_TOOLCHAINS") != nullptr) {
        FAIL_CHECK(target.name << ": a toolchain is required here: " << toolchain.reason());
    } else {
        MESSAGE("SKIPPED for " << target.name << ": " << toolchain.reason());
    }
    return false;
}

std::vector<Target> gpu_targets() {
    std::vector<Target> targets;
    for (const Target& target : all_targets()) {
        if (target.is_gpu() && available(target)) targets.push_back(target);
    }
    return targets;
}

void check_compiles(const Kernel& kernel, const Target& target) {
    const Artifact artifact = compile_source(emit_gpu(kernel, target), target);
    const FunctionInfo& function = artifact.functions.at(0);
    INFO(kernel.name, " ", print(kernel.schedule), " on ", target.name, ": ", function.registers, " registers");
    CHECK(function.spill_bytes == 0);
    CHECK(function.max_threads == kernel.launched_threads());
}

}  // namespace

TEST_CASE("kernels that make a product themselves compile without spilling, and none is made for other targets") {
    const auto count_own = [](const Program& program) {
        return std::ranges::count_if(program.steps, [](const Step& step) { return step.product.has_value(); });
    };
    for (const Dtype dtype : {bf16, f16}) {
        for (const std::string_view op : {"fused_linear_cross_entropy", "fused_linear_jsd"}) {
            const Graph loss = make_graph(op, {.columns = 5000, .dtype = dtype, .options = {{"hidden", "64"}}});
            const Graph step = gradient(loss, trained_inputs(op, loss), {.joint = true, .unit_cotangent = true});
            const Program forward = compile(*loss.data(), find_target("sm_90a"));
            const Program low = compile(*step.data(), find_target("sm_90a"), {}, {.low_memory = true});
            CHECK(count_own(forward) == (op == "fused_linear_cross_entropy" ? 1 : 0));
            CHECK(count_own(low) == 1);
            CHECK(count_own(compile(*step.data(), find_target("sm_100a"), {}, {.low_memory = true})) == 0);
            if (!available(find_target("sm_90a"))) continue;
            for (const Program* program : {&forward, &low}) {
                for (const Step& each : program->steps) {
                    if (each.product) check_compiles(each.kernel, find_target("sm_90a"));
                }
            }
        }
    }
}

TEST_CASE("each template compiles alone for every target, needing only those before it") {
    for (const Target& target : gpu_targets()) {
        std::string text = fmt::format("#define RJ_WARP_SIZE {}\n", target.warp_size);
        for (const std::string_view part : gpu_prelude_parts(target)) {
            text.append(part);
            CHECK_NOTHROW(compile_source({text + "\nRJ_KERNEL(64) empty() {}\n", {"empty"}}, target));
        }
    }
}

TEST_CASE("kernels that put ids in order, or count them, compile for every target without spilling") {
    for (const Target& target : gpu_targets()) {
        for (const char* rows : {"", " = 9", " = 128256"}) {
            const Graph graph = Graph::parse(fmt::format(R"(
                rows tokens
                rows vocabulary{}
                rows places = tokens + 0
                input ids: i32[tokens, 2]
                output y = order(index(ids, tokens, 1), places, vocabulary))",
                                                         rows));
            for (const Step& step : compile(*graph.data(), target).steps) check_compiles(step.kernel, target);
        }
    }
}

TEST_CASE("every monoid reduces on every target, within a warp and across warps") {
    const auto build = [](Graph& g, std::int64_t columns) {
        const Value x = g.input("x", f32, {g.rows("tokens"), columns});
        const Value n = cast(x, i32);
        g.output("sum", sum(x));
        g.output("greatest", max(x));
        g.output("least", min(x));
        g.output("count", sum(cast(n, i64)));
        g.output("most", max(n));
    };
    for (const Target& target : gpu_targets()) {
        for (const int threads : {16, 64, 1024}) {
            const Schedule schedule{
                .family = Family::kRowReduction, .threads_per_row = threads, .rows_per_block = threads < 64 ? 4 : 1};
            check_compiles(kernel_with(build, 1024, schedule, target), target);
        }
    }
}

TEST_CASE("blocks wanted per multiprocessor cap the registers") {
    const Schedule schedule{.family = Family::kRowReduction,
                            .residency = Residency::kRegisters,
                            .threads_per_row = 256,
                            .vector = 8,
                            .min_blocks_per_sm = 4};
    for (const Target& target : gpu_targets()) {
        const Kernel kernel = kernel_with(build_softmax, 2048, schedule, target);
        const Artifact artifact = compile_source(emit_gpu(kernel, target), target);
        // Registers of a lane: an NVIDIA multiprocessor shares 65536 among its threads, a CDNA SIMD 512 among its waves
        // of 64, an RDNA one 1536 among its waves of 32.
        const int limit = target.backend == Backend::kCuda ? 65536 / (4 * 256)
                          : target.warp_size == 64         ? 512 / 4
                                                           : 1536 / 8;
        CAPTURE(target.name);
        CHECK(artifact.functions.at(0).registers <= limit);
    }
}

TEST_CASE("every primitive and every conversion compiles on every target") {
    for (const Target& target : gpu_targets()) {
        for (const Dtype dtype : {f32, bf16, f16, i64}) {
            const auto build = [&](Graph& g, std::int64_t) { build_all_ops(g, dtype); };
            const Schedule schedule{
                .family = Family::kElementwise, .threads_per_row = 32, .rows_per_block = 2, .vector = 2};
            check_compiles(kernel_with(build, 64, schedule, target), target);
        }
    }
}

TEST_CASE("the library's operations compile for every target without spilling") {
    struct Row {
        const char* name;
        Build build;
        std::vector<std::int64_t> columns;
    };
    const Row rows[] = {
        {"rms_norm", build_rms_norm, {4096, 123, 131072}},
        {"layer_norm", build_layer_norm, {4096, 64, 131072}},
        {"add_rms_norm", build_add_rms_norm, {8192}},
        {"softmax", build_softmax, {4096, 31, 131072}},
        {"cross_entropy", build_cross_entropy, {128256, 1000, 32000}},
        {"swiglu", build_swiglu, {14336, 123}},
        {"gelu", build_gelu, {4096}},
        {"rope", build_rope, {128}},
    };
    for (const Target& target : gpu_targets()) {
        // Every width for one target, the first for the others: an AMD compile takes half a second.
        const bool all = target.name == "sm_90a";
        for (const Row& row : rows) {
            for (const std::int64_t columns : row.columns) {
                CAPTURE(row.name);
                CAPTURE(columns);
                for (const Kernel& kernel : kernels_of(row.build, columns, target)) check_compiles(kernel, target);
                if (!all) break;
            }
        }
    }
}
