// How kernels follow each other: what begins while the one before ends, where it waits, and what runs beside it.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "compiler/compile.h"
#include "compiler/emit/gpu.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "tests/compiler/gpu_kernel.h"

using namespace rowjit;

TEST_CASE("rows run beside long arithmetic that they need nothing of, and do not end before it") {
    const Target target = find_target("sm_90a");
    const auto steps = [&](const Graph& graph) { return compile(*graph.data(), target).steps; };
    const Graph graph = make_graph("hyper_pre", {4096, bf16, {}});
    const std::vector<Step> beside = steps(differentiate(graph, trained_inputs("hyper_pre", graph)).backward);
    REQUIRE(beside.size() == 5);
    for (std::size_t i = 0; i < beside.size(); ++i) CHECK(beside[i].kernel.neighbours.beside == (i == 2));
    const std::string rows = emit_gpu_body(beside[2].kernel, target);
    CHECK(contains(rows, "    if (rj_block() == rj_grid(128) - 1) rj_wait_for_last();"));
    CHECK(rows.find("rj_wait_for_last();") == rows.rfind("rj_wait_for_last();"));
    // What it waits for it has read, and so have the kernels behind.
    CHECK(contains(emit_gpu_body(beside[3].kernel, target), "        rj_wait_for_last();"));
    // Rows that need a number of such a kernel, or give one, wait with every block.
    const std::vector<Step> behind = steps(Graph::parse(R"(
        rows tokens
        input x: f32[tokens, 4096]
        output y = x * sum(cast(sum(x * x), f32), tokens))"));
    REQUIRE(behind.size() == 3);
    CHECK(behind[2].kernel.neighbours.waits);
    CHECK(!behind[2].kernel.neighbours.beside);
}

TEST_CASE("a kernel behind a kernel begins while that one ends, and reads nothing past its wait") {
    Graph g;
    const Value x = g.input("x", bf16, {g.rows("tokens"), 4096});
    g.output("y", rms_norm(x, g.input("weight", bf16, {4096})));
    const Graph backward = differentiate(g, {"x", "weight"}).backward;
    const auto texts = [&](const char* name) {
        const Target target = find_target(name);
        std::vector<std::string> texts;
        for (const Step& step : compile(*backward.data(), target).steps)
            texts.push_back(emit_gpu_body(step.kernel, target));
        return texts;
    };
    const std::vector<std::string> hopper = texts("sm_90a");
    REQUIRE(hopper.size() == 2);
    CHECK(contains(hopper[0], "    rj_let_next_begin();"));
    CHECK(!contains(hopper[0], "    rj_wait_for_last();"));
    CHECK(!contains(hopper[1], "    rj_let_next_begin();"));
    CHECK(contains(hopper[1], "    rj_wait_for_last();"));
    CHECK(contains(hopper[0], "const rj_bf16* RJ_RESTRICT weight"));
    CHECK(contains(hopper[1], "const float* tmp_"));
    CHECK(!contains(hopper[1].substr(hopper[1].find("    rj_wait_for_last();")), "_readonly"));
    for (const std::string& text : texts("sm_80")) CHECK(!contains(text, "    rj_wait_for_last();"));
    // What the caller gave was there before the first kernel.
    Graph h;
    const Value v = h.input("v", bf16, {h.rows("tokens"), 4096});
    const Value total = sum(cast(v, f32), Axis(v.axes().front()));
    h.output("shifted", cast(v, f32) - total);
    const Target target = find_target("sm_90a");
    const Program program = compile(*h.data(), target);
    const Kernel& last = program.steps.back().kernel;
    REQUIRE(last.neighbours.waits);
    CHECK(contains(emit_gpu_body(last, target), "const rj_bf16* RJ_RESTRICT v"));
    // Blocks that stay come to all multiprocessors alike.
    const Graph heads = make_graph("qk_norm_rope", {128, bf16, {}});
    const Program both = compile(*differentiate(heads, trained_inputs("qk_norm_rope", heads)).backward.data(), target);
    for (const Step& step : both.steps)
        CHECK(step.kernel.neighbours.waits == (step.kernel.schedule.blocks_per_sm == 0));
}

TEST_CASE("a kernel behind a product or another chunk waits as launches do") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value hidden = g.input("hidden", bf16, {tokens, 512});
    const Value weight = g.input("weight", bf16, {32000, 512});
    g.output("loss", fused_linear_cross_entropy(hidden, weight, g.input("target", i64, {tokens})).loss);
    const Graph step = gradient(g, {"hidden", "weight"}, {.joint = true, .unit_cotangent = true});
    const Program program = compile(*step.data(), find_target("sm_90a"), {}, {.chunk_rows = 64});
    REQUIRE(program.loops.size() == 1);
    for (std::size_t place = 0; place < program.order.size(); ++place) {
        if (program.order[place].kind != PlanStep::Kind::kKernel) continue;
        const bool behind_kernel = place > 0 && program.order[place - 1].kind == PlanStep::Kind::kKernel;
        const bool at_loop = place == program.loops[0].first || place == program.loops[0].end;
        const Kernel& kernel = program.steps[program.order[place].index].kernel;
        CHECK(kernel.neighbours.waits == (behind_kernel && !at_loop));  // those of blocks that stay are of numbers
    }
}

TEST_CASE("a kernel waits for the one before where it first needs what that wrote, and numbers of it come late") {
    Graph g;
    build_cross_entropy(g, 100352);
    const Graph step = gradient(g, {"logits"}, {.joint = true, .unit_cotangent = true});
    const Target target = find_target("sm_90a");
    const Program program = compile(*step.data(), target);
    REQUIRE(program.steps.size() == 5);
    const std::string rows = emit_gpu_body(program.steps[2].kernel, target);
    const std::size_t wait = rows.find("        rj_wait_for_last();");
    CHECK(rows.find("rj_load_readonly<8>(logits_row + ") < wait);
    CHECK(wait < rows.find("rj_load_one(tmp_"));
    CHECK(wait < rows.find("rj_store_whole(d_logits"));
    // Kernels of numbers begin while the rows end, though their blocks stay.
    REQUIRE(program.steps[3].kernel.schedule.blocks_per_sm > 0);
    CHECK(contains(rows, "rj_let_next_begin();"));
    CHECK(contains(emit_gpu_body(program.steps[3].kernel, target), "rj_wait_for_last();"));
}
