#include "tests/compiler/gpu_kernel.h"

#include <doctest/doctest.h>

#include <cstddef>

#include "compiler/emit/gpu.h"
#include "rowjit/library.h"

namespace rowjit {

void build_rms_norm(Graph& g, std::int64_t columns) {
    const Value x = g.input("x", bf16, {g.rows("tokens"), columns});
    const Value w = g.input("weight", bf16, {columns});
    g.output("y", rms_norm(x, w));
}

void build_layer_norm(Graph& g, std::int64_t columns) {
    const Value x = g.input("x", f16, {g.rows("tokens"), columns});
    const Value w = g.input("weight", f16, {columns});
    const Value b = g.input("bias", f16, {columns});
    g.output("y", layer_norm(x, w, b));
}

void build_add_rms_norm(Graph& g, std::int64_t columns) {
    const Axis tokens = g.rows("tokens");
    const Value x = g.input("x", bf16, {tokens, columns});
    const Value residual = g.input("residual", bf16, {tokens, columns});
    const AddRmsNorm out = add_rms_norm(x, residual, g.input("weight", bf16, {columns}));
    g.output("sum", out.sum);
    g.output("y", out.y);
}

void build_softmax(Graph& g, std::int64_t columns) {
    g.output("y", softmax(g.input("x", bf16, {g.rows("tokens"), columns})));
}

void build_cross_entropy(Graph& g, std::int64_t columns) {
    const Axis tokens = g.rows("tokens");
    const Value logits = g.input("logits", bf16, {tokens, columns});
    const CrossEntropy out = cross_entropy(logits, g.input("target", i64, {tokens}));
    g.output("loss", out.loss);
    g.output("lse", out.lse);
}

void build_swiglu(Graph& g, std::int64_t columns) {
    const Axis tokens = g.rows("tokens");
    g.output("y", swiglu(g.input("gate", bf16, {tokens, columns}), g.input("up", bf16, {tokens, columns})));
}

void build_weighted_difference(Graph& g, std::int64_t columns) {
    const Value x = cast(g.input("x", bf16, {g.rows("tokens"), columns}), f32);
    const Value weighted = x * cast(g.input("weight", bf16, {columns}), f32);
    g.output("y", cast(weighted - sum(weighted), bf16));
}

Schedule staged_schedule(Residency residency) {
    Schedule schedule;
    schedule.family = Family::kRowReduction;
    schedule.residency = residency;
    schedule.threads_per_row = 256;
    schedule.vector = 8;
    schedule.blocks_per_sm = 1;
    schedule.stages = 2;
    return schedule;
}

void build_rope(Graph& g, std::int64_t columns) {
    const Axis batch = g.rows("batch");
    const Axis tokens = g.rows("tokens");
    const Axis heads = g.rows("heads", 32);
    const Value x = g.input("x", bf16, {batch, tokens, heads, columns});
    const Value cos = g.input("cos", bf16, {batch, tokens, columns});
    const Value sin = g.input("sin", bf16, {batch, tokens, columns});
    g.output("half", rope(x, cos, sin));
    g.output("interleaved", rope(x, cos, sin, {.pairing = RopePairing::kInterleaved}));
}

void build_half_rope(Graph& g, std::int64_t columns) {
    const Value x = g.input("x", f16, {g.rows("tokens"), columns});
    g.output("y", rope(x, g.input("cos", f16, {columns}), g.input("sin", f16, {columns})));
}

std::vector<Kernel> kernels_of(const Build& build, std::int64_t columns, const Target& target) {
    Graph g;
    build(g, columns);
    std::vector<Kernel> kernels;
    for (const Step& step : compile(*g.data(), target).steps) kernels.push_back(step.kernel);
    return kernels;
}

std::string body_of(const Build& build, std::int64_t columns, const std::string& target_name) {
    const Target target = find_target(target_name);
    return emit_gpu_body(kernels_of(build, columns, target).at(0), target);
}

Kernel kernel_with(const Build& build, std::int64_t columns, const Schedule& schedule, const Target& target) {
    Graph g;
    build(g, columns);
    const Plan plan = plan_graph(*g.data(), target);
    const Offer<Kernel> kernel = build_kernel(plan.groups.at(0), schedule, target);
    REQUIRE_MESSAGE(kernel, kernel.reason());
    return *kernel;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
}

}  // namespace rowjit
