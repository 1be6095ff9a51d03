// How GPU text loads: what is asked for together and what before what, rows that begin anywhere, rows of several axes.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "compiler/compile.h"
#include "compiler/emit/gpu.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "tests/compiler/gpu_kernel.h"

using namespace rowjit;

namespace {

Schedule peeled_schedule(int vector) {
    Schedule schedule;
    schedule.family = Family::kRowReduction;
    schedule.residency = Residency::kRegisters;
    schedule.threads_per_row = 128;
    schedule.vector = vector;
    schedule.peel = true;
    return schedule;
}

// Of the gradient of a cross-entropy, whose rows are read by the kernel that meets over them.
std::string cross_entropy_step(std::int64_t columns, bool prefetch) {
    Graph g;
    build_cross_entropy(g, columns);
    const Graph step = gradient(g, {"logits"}, {.joint = true, .unit_cotangent = true});
    const Target target = find_target("sm_90a");
    Schedule schedule = staged_schedule(Residency::kRegisters);
    schedule.stages = 0;
    schedule.prefetch = prefetch;
    for (const Group& group : plan_graph(*step.data(), target).groups) {
        const Offer<Kernel> kernel = build_kernel(group, schedule, target);
        if (kernel && contains(emit_gpu_body(*kernel, target), "rj_all_reduce<")) return emit_gpu_body(*kernel, target);
    }
    FAIL("no kernel meets over a row");
    return {};
}

}  // namespace

TEST_CASE("every second column, and columns of which each is read twice, are loaded as the run that they lie in") {
    const Graph graph = Graph::parse(R"(
rows tokens
columns half = 2880
input x: bf16[tokens, 5760]
g = cast(index(x, tokens, 2 * half), f32)
u = cast(index(x, tokens, 2 * half + 1), f32)
output y = cast((u + 1) * g, bf16)
)");
    const Target target = find_target("sm_90a");
    const auto text = [&](const Graph& of) {
        return emit_gpu_body(compile(*of.data(), target).steps.at(0).kernel, target);
    };
    const std::string forward = text(graph);
    CHECK(count(forward, "rj_load_readonly<16>(x_row + ((c * 2) + 1) - 1)") == 1);
    CHECK(count(forward, "rj_load_readonly<16>(x_row + (c * 2))") == 1);
    const std::string backward = text(differentiate(graph).backward);
    CHECK(contains(backward, "rj_load_readonly<8>(x_row + "));
    CHECK(contains(backward, "rj_load_readonly<4>(d_y_row + (c / 2))"));
    CHECK_FALSE(contains(backward, "rj_load_one"));
}

TEST_CASE("loads that are issued together are asked together before anything is computed of one") {
    const Target target = find_target("sm_90a");
    const auto text = [&](const Schedule& schedule, std::int64_t columns, LoadsTogether which = LoadsTogether::kWhole) {
        Kernel kernel = kernel_with(build_softmax, columns, schedule, target);
        CHECK_FALSE(contains(emit_gpu_body(kernel, target), "rj_together<"));
        kernel.loads_together = which;
        return emit_gpu_body(kernel, target);
    };
    Schedule schedule = staged_schedule(Residency::kRegisters);
    schedule.blocks_per_sm = schedule.min_blocks_per_sm = schedule.stages = 0;
    const std::string whole = text(schedule, 8192);
    CHECK(count(whole, "rj_together<4>(0, x_vec);") == 1);
    CHECK(whole.find("rj_together<") > whole.find("rj_load_readonly<8>("));
    CHECK(whole.find("rj_together<") < whole.find("rj_get(x_vec"));
    CHECK(count(text(schedule, 8000), "rj_together<3>(0, x_vec);") == 1);  // of the fourth some threads have none
    CHECK_FALSE(contains(text(schedule, 2000), "rj_together<"));
    const std::string all = text(schedule, 8000, LoadsTogether::kAll);
    CHECK(count(all, "rj_together<4>(0, x_vec);") == 1);
    CHECK(count(all, "x_vec[4] = {};") == 1);
    // With the row's numbers, but for one whose place was loaded: the logit of a row's class.
    const auto of_row = [&](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Axis classes = g.columns("classes", columns);
        const Value x = g.input("x", bf16, {tokens, classes});
        const Value target = g.input("target", i64, {tokens});
        const Value scale = g.input("scale", f32, {tokens});
        const Value of_class = index(x, classes, target);
        g.output("y", sum(exp(cast(x, f32) * scale)) - cast(of_class, f32));
    };
    Kernel numbered = kernel_with(of_row, 8192, schedule, target);
    numbered.loads_together = LoadsTogether::kAllAndNumbers;
    const std::string numbers = emit_gpu_body(numbered, target);
    CHECK(count(numbers, "rj_together<4>(rj_number_words(scale_value), x_vec);") == 1);
    // Of a group of a serial loop, whose addresses are constants apart.
    schedule.residency = Residency::kShared;
    const std::string serial = text(schedule, 8192);
    CHECK(count(serial, "rj_together<RJ_GROUP(4)>(0, x_vec);") == 1);
    CHECK(contains(serial, " + i * "));
    // What was copied ahead has come.
    CHECK_FALSE(contains(text(staged_schedule(Residency::kRegisters), 8192), "rj_together<"));
    // Of a loop that has one vector of each tensor and no reduction.
    Kernel single = compile(*make_graph("rope", {128, f32, {}}).data(), target).steps.at(0).kernel;
    CHECK_FALSE(contains(emit_gpu_body(single, target), "rj_together<"));
    single.loads_together = LoadsTogether::kAll;
    CHECK(contains(emit_gpu_body(single, target), "rj_together<1>(0, x_vec, cos_vec, x_vec_2, sin_vec);"));
}

TEST_CASE(
    "the rows of a segment are read before a quotient is taken of one, and what its segment is with them is not") {
    const Graph graph = Graph::parse(R"(
        rows tokens
        rows groups
        rows ends = groups + 1
        input x: f32[tokens]
        input w: f32[tokens]
        input mean: f32[groups]
        input offsets: i32[ends]
        of_row = index(mean, search(offsets, iota(tokens, i64)))
        output y = sum((x - of_row) / w, tokens, into=groups, offsets=offsets)
    )");
    const Target target = find_target("sm_90a");
    const std::string text = emit_gpu_body(compile(*graph.data(), target).steps.at(0).kernel, target);
    const std::size_t reads = text.find("w_value[i] = rj_load");
    REQUIRE(reads != std::string::npos);
    CHECK(text.find("x_value[i] = rj_load") < text.find("rj_div("));
    CHECK(reads < text.find("rj_div("));
    CHECK(text.find("mean + ") < text.find("for (long long first"));
    CHECK(!contains(text, "rj_search(offsets"));
}

TEST_CASE("rows of an odd number of columns are whole vectors and ends, and may begin anywhere") {
    const Target target = find_target("sm_90a");
    const Kernel kernel = kernel_with(build_softmax, 4099, peeled_schedule(8), target);
    const std::string body = emit_gpu_body(kernel, target);
    CHECK(count(body, "rj_peeled_head<8>(x_row)") == 1);
    CHECK(count(body, "rj_load_readonly<8>(x_row + head + t * 8 + i * 1024)") == 1);
    // The ends are on their way before the whole vectors are waited for.
    CHECK(body.find("x_ends = rj_load_readonly<1>(x_row + c)") < body.find("rj_load_readonly<8>(x_row + "));
    CHECK(contains(body, "rj_store_peeled(y_row + head + t * 8 + i * 1024, rj_pack<rj_bf16>(y_lanes), y_aligned)"));
    for (const KernelTensor& tensor : kernel.tensors) CHECK_MESSAGE(tensor.alignment == 1, tensor.name);
}

TEST_CASE("where rows of a table are gathered, the rows that are written say where whole vectors begin") {
    const Target target = find_target("sm_90a");
    const Graph graph = make_graph("embedding", {1031, bf16, {}});
    const Program program = compile(*graph.data(), target);
    REQUIRE(program.steps.at(0).kernel.schedule.peel);
    const std::string body = emit_gpu_body(program.steps[0].kernel, target);
    CHECK(contains(body, "rj_peeled_head<8>(y_row)"));
    CHECK(contains(body, "rj_is_aligned<8>(table_row + head)"));
}

TEST_CASE("peeled rows whose columns are summed over rows begin alike in a block") {
    const Target target = find_target("sm_90a");
    const auto scaled_norm = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = g.input("x", bf16, {tokens, columns});
        const Value weight = g.input("weight", bf16, {columns});
        const Value h = cast(x, f32);
        const Value normed = cast(h * rsqrt(mean(h * h)), bf16);
        g.output("y", normed * weight);
        g.output("sums", sum(normed, tokens));
    };
    Schedule staying = peeled_schedule(8);
    staying.blocks_per_sm = 1;
    const Kernel kernel = kernel_with(scaled_norm, 1031, staying, target);
    CHECK(kernel.rows_alike == 8);
    for (const std::int64_t rows : {7, 8, 100}) CHECK(grid_blocks(kernel, {1, rows}) == rows);
    for (const std::int64_t rows : {132, 133, 100000}) CHECK(grid_blocks(kernel, {1, rows}) == 128);
    const std::string body = emit_gpu_body(kernel, target);
    const std::size_t rows = body.find("for (long long row");
    CHECK(count(body, "rj_peeled_head<8>(") == 1);
    CHECK(body.find("rj_peeled_head<8>(") < rows);
    CHECK(body.find("weight_held") < rows);
    // 1031 columns are 128 vectors and up to 14 ends.
    CHECK(contains(body, "_part[9] = {}"));
    CHECK(contains(body, "_part[8 + 0] +="));

    Target few = target;
    few.sm_count = 3;
    CHECK(grid_blocks(kernel_with(scaled_norm, 1031, staying, few), {1, 1000}) == 8);
}

TEST_CASE("what has whole vectors is not peeled, nor what several rows of a block sum or copies ahead") {
    const Target target = find_target("sm_90a");
    const auto reason = [&](const Build& build, std::int64_t columns, const Schedule& schedule) {
        Graph g;
        build(g, columns);
        const Plan plan = plan_graph(*g.data(), target);
        const auto kernel = build_kernel(plan.groups.at(0), schedule, target);
        REQUIRE_FALSE(kernel);
        return kernel.reason();
    };
    CHECK(reason(build_softmax, 4096, peeled_schedule(8)) == "4096 columns are whole vectors");
    CHECK(reason(build_softmax, 7, peeled_schedule(8)) == "7 columns are hardly a vector");
    Schedule staged = peeled_schedule(8);
    staged.blocks_per_sm = 1;
    staged.stages = 2;
    CHECK(reason(build_softmax, 4099, staged) == "rows that begin anywhere are not copied in 16 bytes");
    const auto summed = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = g.input("x", f32, {tokens, columns});
        g.output("sums", sum(x * rsqrt(mean(x * x)), tokens));
    };
    Schedule staying = peeled_schedule(4);
    staying.blocks_per_sm = 1;
    staying.threads_per_row /= 2;
    staying.rows_per_block = 2;
    CHECK(reason(summed, 4099, staying) ==
          "sums over rows are of a thread's own columns, which differ from row to row");
}

TEST_CASE("a target outside the row reads nothing and gives zero") {
    const std::string body = body_of(build_cross_entropy, 1024);
    CHECK(contains(body, "rj_inside(target_value, 1024) ? rj_load_one_readonly("));
    CHECK(contains(body, "rj_clamp(target_value, 1024)) : 0.0f"));
}

TEST_CASE("a row's own numbers are loaded before its columns, and what they point at before its threads meet") {
    const std::string body = cross_entropy_step(4096, false);
    const std::size_t target = body.find("target_value = ");
    const std::size_t columns = body.find("rj_load_readonly<8>(logits_row + ");
    const std::size_t pointed_at = body.find("logits_at = ");
    CHECK(target < columns);
    CHECK(columns < pointed_at);
    CHECK(pointed_at < body.find("rj_all_reduce<"));
    // With the next row's loads in flight it would wait for them.
    const std::string ahead = cross_entropy_step(4096, true);
    CHECK(ahead.find("target_next = ") < ahead.find("rj_load_readonly<8>(logits_row + "));
    CHECK(ahead.find("logits_at = ") > ahead.rfind("rj_all_reduce<"));
}

TEST_CASE("columns are loaded before the row's numbers where those take long, and a block has one row at once") {
    const auto ahead = [](int columns, const char* number) {
        const Graph graph =
            Graph::parse(fmt::format("rows t\ninput x: bf16[t, {}]\ninput a: f32[t]\ninput b: f32[t]\nn = {}\n"
                                     "output y = cast(cast(x, f32) * n, bf16)\n",
                                     columns, number));
        const Target target = find_target("sm_90a");
        const std::string body = emit_gpu_body(compile(*graph.data(), target).steps[0].kernel, target);
        const std::size_t loads = body.find("rj_load_readonly<8>(x_row");
        REQUIRE(loads != std::string::npos);
        return loads < body.find("a_value = ");
    };
    CHECK(ahead(8192, "exp(log(a) / b) / (exp(b) + a)"));
    CHECK_FALSE(ahead(8192, "exp(a) / b"));
    CHECK_FALSE(ahead(1024, "exp(log(a) / b) / (exp(b) + a)"));
}

TEST_CASE("a vector that has no column equal to the row's number is computed as if none were") {
    const std::string body = cross_entropy_step(4096, false);
    CHECK(count(body, "(auto one_matches)") == 1);
    CHECK(contains(body, "one_matches && iota == "));
    CHECK(contains(body, " < 8u ? lanes(rj_constant<true>()) : lanes(rj_constant<false>());"));
}

TEST_CASE("a vector adds to the sum of what lies at the row's column where that is one of its own") {
    Graph g;
    const Axis rows = g.rows("rows");
    const Axis columns = g.columns("columns", 4096);
    const Value x = cast(g.input("x", bf16, {rows, columns}), f32);
    const Value here = g.iota(columns, i64) == g.input("target", i64, {rows});
    g.output("y", sum(select(here, x, g.constant(f32, 0.0)), columns));
    g.output("z", sum(x, columns));
    const Target target = find_target("sm_90a");
    const Program program = compile(*g.data(), target);
    const std::string body = emit_gpu_body(program.steps[0].kernel, target);
    CHECK(count(body, "if (one_matches) ") == 1);
    CHECK(count(body, "_part.add(") == 2);
}

TEST_CASE("rows of several axes are taken apart in 64 bits, static extents as constants") {
    const std::string body = body_of(build_rope, 128);
    CHECK(contains(body, "const long long heads_outer = rj_quotient(row, 32);"));
    CHECK(contains(body, "const long long rows = batch_extent * tokens_extent * 32;"));
    CHECK(contains(body, "long long x_stride_tokens"));
}

TEST_CASE("rotary partners are vectors: another place of the row, or the same one with its lanes swapped") {
    const std::string body = body_of(build_rope, 128);
    CHECK(contains(body, "% 128)"));
    CHECK(contains(body, "rj_swapped(x_vec_"));
    CHECK(!contains(body, "rj_load_one"));
}
