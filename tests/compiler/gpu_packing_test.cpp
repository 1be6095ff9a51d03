// What GPU text computes on words of two lanes, and which conditions of a column's place and which loads all lanes of a
// vector share.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "compiler/compile.h"
#include "compiler/emit/gpu.h"
#include "dsl/library/registry.h"
#include "rowjit/coord.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "tests/compiler/gpu_kernel.h"

using namespace rowjit;

TEST_CASE("a narrow value that is only stored is rounded by the store alone") {
    const std::string body = body_of(build_softmax, 1024);
    CHECK(!contains(body, "rj_round_bf16"));
    CHECK(contains(body, "rj_pack<rj_bf16>(y_lanes)"));
}

TEST_CASE("sums, products and what stands between them are computed two lanes a word where the target can") {
    const std::string packed = body_of(build_rope, 128);
    CHECK(contains(packed, "rj_mul_bf16x2(x_vec.words[pair], cos_vec.words[pair]);  // mul("));
    CHECK(contains(packed, "rj_neg_x2("));
    CHECK(contains(packed, "rj_add_bf16x2("));
    CHECK(!contains(packed, "rj_get("));
    CHECK(!contains(body_of(build_rope, 128, "gfx942"), "x2("));
    CHECK(contains(body_of(build_half_rope, 128, "gfx942"), "rj_mul_f16x2("));
}

TEST_CASE("two minima of f16 are one instruction where it keeps NaN") {
    const auto clipped = [](Graph& g, std::int64_t columns) {
        const Value x = g.input("x", f16, {g.rows("tokens"), columns});
        g.output("y", minimum(x * x, 3.0) + x);
    };
    CHECK(contains(body_of(clipped, 1024), "rj_min_f16x2("));
    const std::string amd = body_of(clipped, 1024, "gfx942");
    CHECK(!contains(amd, "rj_min_f16x2("));
    CHECK(contains(amd, "rj_pack_f16(map_2_pair[0], map_2_pair[1])"));
}

TEST_CASE("what lanes need of a word is taken out of it, and what two lanes round shares an instruction") {
    const std::string norm = body_of(build_add_rms_norm, 1024);
    CHECK(contains(norm, "const unsigned sum_2 = rj_add_bf16x2("));
    CHECK(contains(norm, "= rj_half<rj_bf16>(sum_2, l % 2);"));
    CHECK(contains(norm, "const unsigned normed = rj_pack_bf16(normed_pair[0], normed_pair[1]);"));
    const auto twice_rounded = [](Graph& g, std::int64_t columns) {
        g.output("y", tanh(exp(g.input("x", bf16, {g.rows("tokens"), columns}))));
    };
    const std::string body = body_of(twice_rounded, 1024);
    CHECK(count(body, "rj_pack_bf16(") == 1);
    CHECK(!contains(body, "rj_round_bf16("));
    CHECK(count(body_of(twice_rounded, 1024, "gfx942"), "rj_round_bf16(") == 1);
}

TEST_CASE("vectors of one column pack nothing") {
    const Target target = find_target("sm_90a");
    const Schedule schedule{
        .family = Family::kRowReduction, .residency = Residency::kRegisters, .threads_per_row = 128, .vector = 1};
    const std::string body = emit_gpu_body(kernel_with(build_rms_norm, 128, schedule, target), target);
    CHECK(contains(body, "rj_round_bf16("));
    CHECK(!contains(body, "pair"));
}

TEST_CASE("lanes that are loaded one by one are multiplied so, unless the other factor comes in words") {
    const auto product = [](bool both) {
        return [both](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = g.input("x", bf16, {tokens, columns}, {.column_strides = {2}});
            const Value z = g.input("z", bf16, {tokens, columns}, {.column_strides = {both ? 2 : 1}});
            g.output("y", x * z);
        };
    };
    CHECK(!contains(body_of(product(true), 1024), "x2("));
    CHECK(contains(body_of(product(false), 1024), "rj_mul_bf16x2(x_value, z_vec"));
}

TEST_CASE("what all rows read of one number is packed before the columns") {
    const auto scaled = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = g.input("x", bf16, {tokens, columns});
        g.output("y", 0.5 * x + g.input("shift", bf16, {tokens}) * g.scalar("scale", bf16, 1));
    };
    const std::string body = body_of(scaled, 1024);
    CHECK(contains(body, "rj_mul_bf16x2(0x3f003f00u, "));
    CHECK(body.find("const unsigned map_2_both = rj_pack_bf16(") < body.find("for (int pair"));
}

TEST_CASE("a condition that all lanes of a vector share is found once, and one that they do not for each") {
    const std::string body = body_of(build_half_rope, 128);
    CHECK(body.find("< 64") < body.find("for (int pair"));
    CHECK(count(body, "< 64") == 1);
    CHECK(!contains(body, "(c + l)"));
    const auto alternating = [](Graph& g, std::int64_t columns) {
        const Axis n = g.columns(columns);
        const Value x = g.input("x", bf16, {g.rows("tokens"), n});
        const Value column = g.iota(n);
        g.output("y", select(floor_div(column, 2) * 2 == column, x * x, x));
    };
    CHECK(contains(body_of(alternating, 128), "_pair[0], map_"));
}

TEST_CASE("of loads that a condition all lanes share chooses one of, each vector makes one") {
    const Target target = find_target("sm_90a");
    for (const Dtype dtype : {bf16, f32}) {
        const std::string body =
            emit_gpu_body(compile(*make_graph("mrope", {128, dtype, {}}).data(), target).steps.at(0).kernel, target);
        CHECK(count(body, "rj_load_readonly<") == 4);  // the row's vector, its partner, a cosine and a sine
        CHECK(count(body, "rj_chosen(") == 4);
    }
    const auto chosen = [](std::int64_t from) {
        return [=](Graph& g, std::int64_t columns) {
            const Axis n = g.columns(columns);
            const Axis tokens = g.rows("tokens");
            const Value a = g.input("a", f32, {tokens, n});
            g.output("y", select(g.iota(n) < static_cast<double>(from), a, g.input("b", f32, {tokens, n})));
        };
    };
    CHECK(count(body_of(chosen(64), 1024), "rj_load_readonly<") == 1);
    CHECK(count(body_of(chosen(65), 1024), "rj_load_readonly<") == 2);  // within a vector
}

TEST_CASE("a partner that lies in another vector of the thread is neither loaded nor computed again") {
    const auto rotated_norm = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = g.input("x", bf16, {tokens, columns});
        const Value normed = rms_norm(x, g.input("weight", bf16, {columns}));
        g.output("y", rope(normed, g.input("cos", bf16, {tokens, columns}), g.input("sin", bf16, {tokens, columns})));
    };
    const Target target = find_target("sm_90a");
    const auto body = [&](int threads, int vector) {
        const Schedule schedule{.family = Family::kRowReduction,
                                .residency = Residency::kRegisters,
                                .threads_per_row = threads,
                                .rows_per_block = 128 / threads,
                                .vector = vector};
        return emit_gpu_body(kernel_with(rotated_norm, 128, schedule, target), target);
    };
    const std::string two_vectors = body(8, 8);
    CHECK(contains(two_vectors, "[(i + 1) % 2]"));
    CHECK(count(two_vectors, "rj_load_readonly<8>(x_row") == 1);
    CHECK(count(two_vectors, "rj_load_readonly<8>(weight") == 1);
    CHECK(contains(body(4, 8), "[(i + 2) % 4]"));
    // A thread of one vector has none of its partners.
    CHECK(count(body(16, 8), "rj_load_readonly<8>(x_row") == 2);
}

TEST_CASE("a row that is fetched ahead is copied once where a thread has its partners") {
    const auto derivative = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Axis n = g.columns(columns);
        const Value dy = g.input("dy", bf16, {tokens, n});
        const Value partner = index(dy, {tokens, (Coord(n) + columns / 2) % columns});
        g.output("y", dy + partner * cast(sum(cast(dy, f32)), bf16));
    };
    const Target target = find_target("sm_90a");
    const Schedule schedule{.family = Family::kRowReduction,
                            .residency = Residency::kRegisters,
                            .threads_per_row = 8,
                            .rows_per_block = 16,
                            .vector = 8,
                            .blocks_per_sm = 4,
                            .stages = 2};
    const std::string body = emit_gpu_body(kernel_with(derivative, 128, schedule, target), target);
    CHECK(count(body, "rj_copy_ahead<") == 1);
    CHECK(contains(body, "[(i + 1) % 2]"));
}

TEST_CASE("what neighbouring columns are made of alike is computed once for both, and which of them is known by lane") {
    const Target& target = find_target("sm_90a");
    for (const Dtype dtype : {bf16, f32}) {
        const Graph graph = make_graph("clipped_swiglu", {512, dtype, {{"packed", "true"}}});
        const Program program = compile(*differentiate(graph).backward.data(), target);
        REQUIRE(program.steps.size() == 1);
        const std::string body = emit_gpu_body(program.steps[0].kernel, target);
        CAPTURE(body);
        CHECK(contains(body, "const int l = 2 * pair;"));
        const std::size_t first = body.find("for (int l = 2 * pair");
        REQUIRE(first != std::string::npos);
        const std::string of_each = body.substr(first, body.find('}', first) - first);
        CHECK(contains(of_each, "u >> l & 1u) != 0;"));
        CHECK(!contains(of_each, "rj_exp"));
        CHECK(count(body, "rj_exp") == 1);
    }
    // Nothing is where lanes differ, or where what they have alike is no function.
    CHECK(!contains(body_of(build_rope, 128), "const int l = 2 * pair;"));
    CHECK(!contains(body_of(build_swiglu, 1024), "const int l = 2 * pair;"));
}

TEST_CASE("a condition of a column's place is one comparison where a bound decides it, and none where nothing does") {
    const auto wrapped = [](Graph& g, std::int64_t columns) {
        const Axis n = g.columns(columns);
        const Value x = g.input("x", bf16, {g.rows("tokens"), n});
        const std::int64_t half = columns / 2;
        const Value partner = g.iota(n) + static_cast<double>(half);
        const Value place = partner - floor_div(partner, columns) * static_cast<double>(columns);
        g.output("y", select(place < static_cast<double>(half), x, -x));
        g.output("z", select(place * 2.0 >= 0.0, x, -x));         // the planner knows
        g.output("square", select(place * place >= 0.0, x, -x));  // looking at each column does
    };
    const std::string body = body_of(wrapped, 1024);
    CHECK(contains(body, ">= 512;  // lt("));
    CHECK(count(body, "rj_select_x2(") == 2);
    CHECK(count(body, "rj_select_x2(true, ") == 1);
    CHECK(!contains(body, "rj_floor_div("));
}

TEST_CASE("the greatest of packed elements is found two at a time, and the two of all vectors taken apart once") {
    const std::string body = body_of(build_softmax, 1024);
    CHECK(contains(body, "rj_packed_fold<rj_larger, rj_bf16> row_max_part_packed;"));
    CHECK(contains(body, "row_max_part_packed.add(x_vec[i]);"));
    CHECK(count(body, "row_max_part.add_one(row_max_part_packed.result());") == 1);
    CHECK(contains(body_of(build_softmax, 64), "row_max_part.add_packed(x_vec"));  // one vector a thread
    const auto scaled = [](const auto& scale) {
        return [=](Graph& g, std::int64_t columns) {
            const Value x = cast(g.input("x", bf16, {g.rows("tokens"), columns}), f32);
            g.output("y", max(scale(x)));
        };
    };
    // A constant above 0 keeps the order, so that the greatest is scaled once a row.
    const std::string twice = body_of(scaled([](const Value& x) { return 2.0 * x; }), 1024);
    CHECK(contains(twice, "_packed.add("));
    CHECK(count(twice, "* 2.0f") == 1);
    const std::string divided = body_of(scaled([](const Value& x) { return x / 0.7; }), 1024);
    CHECK(contains(divided, "_packed.add("));
    CHECK(count(divided, "rj_fma(") == 1);
    for (const auto& other : {body_of(scaled([](const Value& x) { return -2.0 * x; }), 1024),
                              body_of(scaled([](const Value& x) { return 2.0 * x * x; }), 1024)})
        CHECK(!contains(other, "packed"));
}
