// How GPU text shares rows among threads: where a row is kept, how it comes, and where threads meet over it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "compiler/compile.h"
#include "compiler/emit/gpu.h"
#include "rowjit/library.h"
#include "tests/compiler/gpu_kernel.h"
#include "tests/support/extrema_of_rows.h"

using namespace rowjit;

TEST_CASE("a resident row issues every load before it computes, and computes twice on one load") {
    const std::string body = body_of(build_rms_norm, 4096);
    // What an iteration adds to the address is a constant where it is unrolled.
    CHECK(count(body, "rj_load_readonly<8>(x_row + t * 8 + i * 1024)") == 1);
    CHECK(body.find("rj_load_readonly<8>(x_row + ") < body.find("rj_get(x_vec[i], l)"));
    CHECK(count(body, "rj_get(x_vec[i], l)") == 1);
    CHECK(count(body, "rj_kept(x_vec[i])") == 1);
    CHECK(contains(body, "// kept in registers"));
}

TEST_CASE("threads past the last row load a row that exists, reach every barrier and store nothing") {
    const Schedule schedule{.family = Family::kRowReduction,
                            .residency = Residency::kRegisters,
                            .threads_per_row = 64,
                            .rows_per_block = 4,
                            .vector = 8};
    const Target target = find_target("sm_90a");
    const std::string body = emit_gpu_body(kernel_with(build_rms_norm, 4096, schedule, target), target);
    CHECK(contains(body, "const long long row = live ? row_block * 4 + row_in_block : rows - 1;"));
    CHECK(count(body, "if (live) rj_store(") == 1);
    CHECK(count(body, "rj_store(") == 1);
    CHECK(!contains(body, "return"));
    CHECK(!contains(body, "continue"));
}

TEST_CASE("rows in a block meet in disjoint parts of shared scratch") {
    const Schedule schedule{.family = Family::kRowReduction,
                            .residency = Residency::kRegisters,
                            .threads_per_row = 64,
                            .rows_per_block = 4,
                            .vector = 8};
    const Target target = find_target("sm_90a");
    const Kernel kernel = kernel_with(build_softmax, 1024, schedule, target);
    const std::string body = emit_gpu_body(kernel, target);
    const std::int64_t region = kernel.shared_bytes / kernel.scratch_regions;
    CHECK(contains(body, fmt::format("rj_all_reduce<64>(t, row_in_block * {}, ", region / 4)));
    CHECK(contains(body, fmt::format("rj_all_reduce<64>(t, {} + row_in_block * {}, ", region, region / 4)));
}

TEST_CASE("values kept in shared memory stay in the row's own part") {
    const Schedule schedule{.family = Family::kRowReduction,
                            .residency = Residency::kShared,
                            .threads_per_row = 32,
                            .rows_per_block = 4,
                            .vector = 8};
    const Target target = find_target("sm_90a");
    const std::string body = emit_gpu_body(kernel_with(build_rms_norm, 1024, schedule, target), target);
    CHECK(contains(body, "const int row_shared = row_in_block * 2048;"));
    CHECK(contains(body, "rj_shared_store_vec(row_shared + c * 2, x_vec"));
    CHECK(contains(body, "rj_shared_load_vec<rj_vec<rj_bf16, 8>>(row_shared + c * 2);"));
}

TEST_CASE("a row that does not fit on chip is read in groups of several loads") {
    const std::string body = body_of(build_cross_entropy, 131072);
    CHECK(contains(body, "rj_vec<rj_bf16, 8> logits_vec[RJ_GROUP(4)];"));
    CHECK(contains(body, "first += RJ_GROUP(4)"));
}

TEST_CASE("groups of loads are of the size that leaves the last one fullest") {
    const std::string body = body_of(build_cross_entropy, 131072 + 11 * 2048);
    CHECK(contains(body, "rj_vec<rj_bf16, 8> logits_vec[RJ_GROUP(5)];"));
}

TEST_CASE("blocks of a cluster share each round of columns, but where columns are loaded one by one") {
    Schedule schedule{.family = Family::kRowReduction,
                      .residency = Residency::kShared,
                      .threads_per_row = 256,
                      .vector = 8,
                      .column_blocks = 8};
    const Target target = find_target("sm_90a");
    const std::string body = emit_gpu_body(kernel_with(build_rms_norm, 151936, schedule, target), target);
    CHECK(contains(body, "const int c = (column_block * 256 + t) * 8 + (first + i) * 16384;"));
    CHECK(contains(body, "rj_shared_store_vec((((first + i) * 256 + t) * 8) * 2, x_vec[i]);"));
    schedule.vector = 1;
    const std::string odd = emit_gpu_body(kernel_with(build_rms_norm, 50257, schedule, target), target);
    CHECK(contains(odd, "const int c = column_block * 6400 + t + (first + i) * 256;"));
}

TEST_CASE("a serial loop that is one group can be told to take its vectors one by one") {
    const Schedule schedule{
        .family = Family::kRowReduction, .residency = Residency::kShared, .threads_per_row = 256, .vector = 8};
    const Target target = find_target("sm_90a");
    const std::string body = emit_gpu_body(kernel_with(build_rms_norm, 8192, schedule, target), target);
    CHECK(contains(body, "i < RJ_GROUP(4)"));
    CHECK(contains(body, "for (int first = 0; first < 4; first += RJ_GROUP(4))"));
    CHECK(contains(body, "for (int first = 3 / RJ_GROUP(4) * RJ_GROUP(4); first >= 0; first -= RJ_GROUP(4))"));
}

TEST_CASE("an online softmax carries one state, and its parts keep their names") {
    const std::string body = body_of(build_cross_entropy, 131072);
    CHECK(count(body, "rj_all_reduce<") == 1);
    CHECK(contains(body, "rj_max_sum_exp<float> "));
    CHECK(contains(body, ".max();"));
    CHECK(contains(body, ".sum();"));
}

TEST_CASE("a pair takes all that a thread has of a resident row at once") {
    Schedule schedule = staged_schedule(Residency::kRegisters);
    schedule.online = true;
    const Target target = find_target("sm_90a");
    const std::string whole = emit_gpu_body(kernel_with(build_softmax, 8192, schedule, target), target);
    CHECK(count(whole, "_part_terms);") == 1);
    CHECK(count(whole, "_part.add(") == 1);
    // Of the last of two vectors some threads have none: it is added by itself.
    const std::string tail = emit_gpu_body(kernel_with(build_softmax, 4000, schedule, target), target);
    CHECK(count(tail, "_part_terms);") == 0);
    CHECK(count(tail, "_part.add(") == 1);
}

TEST_CASE("a pair over rows takes a batch of positions at once, and one carried from row to row each row") {
    const Target target = find_target("sm_90a");
    const Program sequences = compile(*softmax_of_sequences(64).data(), target);
    const std::string reduced = emit_gpu_body(sequences.steps[0].kernel, target);
    CHECK(contains(reduced, "_part[l].add(tmp_1_part_terms[l]);"));
    CHECK(contains(reduced, "rj_fill(tmp_1_part_terms[l], rj_float(0xff800000u));"));
    const Graph rows = Graph::parse(
        "rows r\ninput x: bf16[r, 512]\nz = cast(x, f32)\ny = z - max(z)\noutput y\n"
        "output s = sum(exp(y - max(y, r)), r)\n");
    const std::string carried = emit_gpu_body(compile(*rows.data(), target).steps[0].kernel, target);
    CHECK(count(carried, "[i * 4 + l].add_one(") == 1);
    CHECK(contains(carried, "a.combine(b); return a;"));
}

TEST_CASE("what all rows read is held once for all loops that read it, and packed") {
    const Target target = find_target("sm_90a");
    const Kernel kernel = kernel_with(build_weighted_difference, 4096, staged_schedule(Residency::kRegisters), target);
    const std::string body = emit_gpu_body(kernel, target);
    CHECK(count(body, "rj_load_readonly<8>(weight") == 1);
    CHECK(count(body, "rj_get(weight_held") == 2);
    CHECK_FALSE(contains(body, "rj_vec<float, 8>"));
}

TEST_CASE(
    "a vector is stored as one integer where its words were stored one by one, and not where a row is in registers") {
    const Target target = find_target("sm_90a");
    const auto of = [&](Residency residency) {
        return emit_gpu_body(kernel_with(build_weighted_difference, 4096, staged_schedule(residency), target), target);
    };
    CHECK(count(of(Residency::kStages), "rj_store_whole(") == 1);
    CHECK(count(of(Residency::kRegisters), "rj_store_whole(") == 0);
    CHECK(count(of(Residency::kRegisters), "rj_store(") == 1);
    CHECK(count(body_of(build_rope, 128), "rj_store_whole(") == 2);
    CHECK(count(body_of(build_swiglu, 4096), "rj_store_whole(") == 0);
}

TEST_CASE("a row that stays in its stage is read there twice, and its place is free for another after it") {
    const Target target = find_target("sm_90a");
    const Kernel kernel = kernel_with(build_weighted_difference, 4096, staged_schedule(Residency::kStages), target);
    const std::string body = emit_gpu_body(kernel, target);
    CHECK(count(body, "rj_shared_load_vec<rj_vec<rj_bf16, 8>>(stage") == 2);
    CHECK_FALSE(contains(body, "kept in registers"));
    CHECK(body.rfind("fetch(row + ") > body.rfind("rj_store_whole("));
}

TEST_CASE("each vector of a row in its stage makes room for one to come where it is read last") {
    const Target target = find_target("sm_90a");
    Kernel kernel = kernel_with(build_weighted_difference, 8192, staged_schedule(Residency::kStages), target);
    REQUIRE(kernel.may_refill());
    CHECK_FALSE(kernel.refills);  // a block alone has its rows in time
    kernel.refills = true;
    const std::string body = emit_gpu_body(kernel, target);
    CHECK(count(body, "rj_copy_behind(") == 1);
    CHECK(body.find("if (comes) refill(coming, stage, ") > body.rfind("rj_store_whole("));
    CHECK(count(body, "fetch(row + ") == 0);
    CHECK(body.find("rj_copies_issued();", body.rfind("refill(")) != std::string::npos);
}

TEST_CASE("the stages of large parts of a row in a cluster are filled again while it is stored") {
    const Target target = find_target("sm_90a");
    const auto refills = [&](std::int64_t columns, std::int64_t blocks, std::int64_t per_sm) {
        Schedule schedule = staged_schedule(Residency::kStages);
        schedule.stages = 1;
        schedule.column_blocks = blocks;
        schedule.blocks_per_sm = per_sm;
        return kernel_with(build_weighted_difference, columns, schedule, target).refills;
    };
    CHECK(refills(81920, 2, 1));
    CHECK_FALSE(refills(32768, 2, 1));
    CHECK_FALSE(refills(81920, 2, 2));
    CHECK_FALSE(refills(81920, 1, 1));
}

TEST_CASE("a row stays in stages only where there are some, and two where rows are skewed") {
    const Target target = find_target("sm_90a");
    Graph g;
    build_weighted_difference(g, 4096);
    const Plan plan = plan_graph(*g.data(), target);
    for (const auto& [stages, skew] : {std::pair(0, false), std::pair(1, true)}) {
        Schedule schedule = staged_schedule(Residency::kStages);
        schedule.stages = stages;
        schedule.skew = skew;
        const auto kernel = build_kernel(plan.groups.at(0), schedule, target);
        REQUIRE_FALSE(kernel);
        CHECK(contains(kernel.reason(), "do not keep a row"));
    }
}

TEST_CASE("a row of two tensors' divergence is read once, with one meeting") {
    const auto build = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        g.output("loss",
                 kl_div(g.input("student", bf16, {tokens, columns}), g.input("teacher", bf16, {tokens, columns}),
                        std::nullopt, {.reduction = Reduction::kNone}));
    };
    const std::string body = body_of(build, 131072);
    CHECK(contains(body, "rj_divergence<float> "));
    CHECK(count(body, "rj_all_reduce") == 1);
    CHECK(count(body, "rj_load_readonly<8>(student_row + c)") == 1);
}

TEST_CASE("the greatest of a wide row, round after round, are taken in one pass with one meeting") {
    const auto build = [](Dtype dtype, std::int64_t count) {
        return [=](Graph& g, std::int64_t columns) {
            const TopK greatest = top_k(g.input("x", dtype, {g.rows("tokens"), columns}), count);
            g.output("values", greatest.values);
            g.output("indices", greatest.indices);
        };
    };
    for (const Dtype dtype : {bf16, f32}) {
        const std::string body = body_of(build(dtype, 8), 128256);
        CHECK(contains(body, "rj_greatest<8> greatest_part;"));
        CHECK(count(body, "rj_meet_greatest<") == 1);
        CHECK(count(body, "rj_all_reduce") == 0);
        CHECK(count(body, dtype == bf16 ? "rj_load_readonly<8>(x_row + c)" : "rj_load_readonly<4>(x_row + c)") == 1);
    }
    // One of them alone, and what is the greatest in another way, stay as they are written.
    const auto first = [](Graph& g, std::int64_t columns) {
        const Value x = g.input("x", f32, {g.rows("tokens"), columns});
        g.output("first", min(select(x == max(x), g.iota(x.axes().back()), g.constant(i32, 0))));
    };
    CHECK(!contains(body_of(first, 128256), "rj_greatest"));
}

TEST_CASE("the next row comes to its stage before threads meet over what its last loop summed") {
    Schedule schedule = staged_schedule(Residency::kStages);
    schedule.stages = 1;
    const auto build = [](Graph& g, std::int64_t columns) {
        const Value x = cast(g.input("x", bf16, {g.rows("tokens"), columns}), f32);
        const Value deviation = x - mean(x);
        g.output("variance", mean(deviation * deviation));
    };
    const Target target = find_target("sm_90a");
    const std::string body = emit_gpu_body(kernel_with(build, 4096, schedule, target), target);
    CHECK(body.rfind("fetch(row + ") < body.rfind("rj_all_reduce<"));
}

TEST_CASE("a sum over rows and columns that nothing else of a row wants is met over once a block") {
    const auto build = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
        g.output("y", cast(x * g.input("scale", f32, {}), bf16));
        g.output("d_scale", sum(sum(x * cast(g.input("d_y", bf16, {tokens, columns}), f32)), tokens));
    };
    const std::string body = body_of(build, 4096);
    CHECK(body.find("rj_all_reduce<") > body.find("rj_store(y_row"));
    CHECK(body.find("rj_all_reduce<") == body.rfind("rj_all_reduce<"));
    // Where the row's own sum is wanted as well, its threads meet over the row.
    const auto of_row = [&](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
        const Value of_row = sum(x);
        g.output("y", cast(x * of_row, bf16));
        g.output("total", sum(of_row, tokens));
    };
    const std::string row = body_of(of_row, 4096);
    CHECK(row.find("rj_all_reduce<") < row.find("rj_store(y_row"));
}
