// The GPU emitter's text: its names, and how tensors are read and written. Other themes are gpu_*_test.cpp's. What
// kernels compute is compared with the interpreter by the SIMT shim's tests and on devices.
#include "compiler/emit/gpu.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <regex>
#include <string>

#include "base/fail.h"
#include "compiler/compile.h"
#include "dsl/library/registry.h"
#include "rowjit/library.h"
#include "tests/compiler/gpu_kernel.h"

using namespace rowjit;

TEST_CASE("no kernel is called what a type of the prelude is") {
    const auto kernel_of = [](const std::string& output) {
        Graph g;
        g.output(output, sum(g.input("x", f32, {g.rows("tokens"), 100})));
        return plan_graph(*g.data(), find_target("sm_90a")).groups.at(0).name;
    };
    CHECK(kernel_of("y") == "rj_y");
    CHECK(kernel_of("sum") == "rj_sum_");
    const std::regex declared(R"((?:struct|using|constexpr \w+) rj_(\w+)[^(\w])");
    std::size_t found = 0;
    for (const char* target : {"sm_90a", "gfx942"}) {
        const std::string prelude = gpu_prelude(find_target(target));
        for (std::sregex_iterator it(prelude.begin(), prelude.end(), declared), end; it != end; ++it, ++found)
            CHECK_MESSAGE(kernel_of((*it)[1]) != "rj_" + (*it)[1].str(), (*it)[1].str());
    }
    CHECK(found > 60);
}

TEST_CASE("a product of which a row reads one column besides is stored, and not in tiles alone") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis width = g.columns("width", 64);
    const Axis classes = g.columns("classes", 5000);
    const Value logits =
        cast(linear(g.input("hidden", bf16, {tokens, width}), g.input("weight", bf16, {classes, width})), f32);
    const Value target = cast(g.input("target", i64, {tokens}), i32);
    g.output("margin", index(logits, {tokens, target}) - max(logits));
    const Program program = compile(*g.data(), find_target("sm_90a"));
    CHECK(std::ranges::none_of(program.tensors, [](const ProgramTensor& tensor) { return tensor.in_tiles; }));
}

TEST_CASE("emitted text names the kernel, its schedule, its target and the graph's values") {
    const std::string body = body_of(build_rms_norm, 4096);
    CHECK(body.starts_with("// rj_y: row_reduction"));
    CHECK(contains(body, "// for sm_90a; a row for each of [tokens]"));
    CHECK(contains(body, "const float mean_square = "));
    CHECK(contains(body, "float eps) {"));
    CHECK(contains(body, "// rsqrt("));
}

TEST_CASE("but for what is packed a kernel's own text is the same for both vendors and uses no name of either") {
    for (const auto build : {build_layer_norm, build_softmax, build_half_rope}) {
        const Schedule schedule{.family = kernels_of(build, 128, find_target("sm_90a"))[0].schedule.family,
                                .residency = Residency::kRegisters,
                                .threads_per_row = 16,
                                .rows_per_block = 8,
                                .vector = 8};
        Target cuda = find_target("sm_90a");
        Target hip = find_target("gfx942");
        const std::string text = emit_gpu_body(kernel_with(build, 128, schedule, cuda), cuda);
        std::string other = emit_gpu_body(kernel_with(build, 128, schedule, hip), hip);
        other.replace(other.find("gfx942"), 6, "sm_90a");
        CHECK(text == other);
        for (const char* word : {"threadIdx", "__", "asm", "amdgcn", "float4", "bfloat"}) CHECK(!contains(text, word));
    }
}

TEST_CASE("a random number that is only compared with a row's number stays a word") {
    // Of x, its random numbers and a scalar.
    const auto body = [](const auto& mask) {
        const auto build = [&](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Axis n = g.columns(columns);
            const Value position = g.iota(tokens, i64) * static_cast<double>(columns) + g.iota(n, i64);
            const Value u = uniform(g.scalar("seed", i64, 1), g.scalar("offset", i64, 0), position);
            const Value x = g.input("x", f32, {tokens, n});
            g.output("y", x * cast(mask(x, u, g.scalar("p", f32, 0.1)), f32));
        };
        return body_of(build, 1024);
    };
    const std::string kept = body([](const Value&, const Value& u, const Value& p) { return u >= p; });
    CHECK(count(kept, "rj_fractions_from(p") == 1);
    CHECK(contains(kept, "fractions.contain("));
    CHECK(contains(kept, ".ask(seed, offset, "));
    const std::string dropped = body([](const Value&, const Value& u, const Value&) { return u <= 0.25; });
    CHECK(contains(dropped, "rj_fractions_from(0.25f, true);"));
    CHECK(contains(dropped, "fractions.lack("));
    // One that is wanted itself is converted, and one that a lane's number is compared with.
    const std::string both =
        body([](const Value& x, const Value& u, const Value& p) { return (u >= p) && (x * u > 1.0); });
    CHECK(contains(both, ".at(seed, offset, "));
    const std::string lanes = body([](const Value& x, const Value& u, const Value&) { return u >= x; });
    CHECK_FALSE(contains(lanes, "rj_fractions"));
}

TEST_CASE("a number that is rounded to eight bits on its way to memory is bounded once, as a whole number") {
    const Target target = find_target("sm_90a");
    const std::string body =
        emit_gpu_body(compile(*make_graph("quantize", {4096, bf16, {}}).data(), target).steps.at(0).kernel, target);
    CHECK(contains(body, " = rj_max(rj_nearest("));  // and 127 by packing
    CHECK_FALSE(contains(body, "rj_to_i8("));
    CHECK(contains(body, "_packed.add(rj_sizes_of(x_vec[i]));"));
    const auto read_again = [](Graph& g, std::int64_t columns) {
        const Value x = g.input("x", f32, {g.rows("tokens"), columns});
        const Value codes = cast(minimum(round(x), 100.0), i8);
        g.output("codes", codes);
        g.output("values", cast(codes, f32));
    };
    CHECK(contains(body_of(read_again, 1024), " = rj_to_i8(rj_min(rj_nearest("));
}

TEST_CASE("a column is compared with an i64 of its row in i32") {
    const auto build = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = g.input("x", f32, {tokens, columns});
        const Value column = cast(g.iota(x.axes().back()), i64);
        g.output("y", select(column == g.input("target", i64, {tokens}), x, 2.0 * x));
    };
    const std::string body = body_of(build, 1024);
    CHECK(contains(body, "rj_to_i32(target_value)"));
    CHECK(!contains(body, "long long iota"));
}

TEST_CASE("an aliased tensor is neither restrict nor read-only") {
    const auto build = [](Graph& g, std::int64_t columns) {
        const Value x = g.input("x", bf16, {g.rows("tokens"), columns});
        g.output("y", silu(x), {.alias = "x"});
    };
    const std::string body = body_of(build, 1024);
    CHECK(contains(body, "const rj_bf16* x,"));
    CHECK(contains(body, "rj_bf16* y,"));
    CHECK(!contains(body, "_readonly"));
}

TEST_CASE("an accumulating output adds to what is there and rounds once") {
    const auto build = [](Graph& g, std::int64_t columns) {
        const Value x = g.input("x", bf16, {g.rows("tokens"), columns});
        g.output("total", x * 2.0, {.accumulate = true});
    };
    const std::string body = body_of(build, 1024);
    CHECK(contains(body, "total_old"));
    CHECK(contains(body, "] = rj_get(total_old[i], l) + "));
    CHECK(contains(body, "rj_pack<rj_bf16>(total_lanes)"));
}

TEST_CASE("a name that the emitter or the language uses is not given to a value") {
    const auto build = [](Graph& g, std::int64_t columns) {
        const Value x = g.input("row", f32, {g.rows("tokens"), columns});
        g.output("c", (x + x).named("float"));
    };
    const std::string body = body_of(build, 64);
    CHECK(contains(body, "const float float_ = "));
    CHECK(!contains(body, "const float* RJ_RESTRICT row,"));
}

TEST_CASE("f64 is refused with the value's name and the remedy") {
    Graph g;
    const Value x = g.input("x", f64, {g.rows("tokens"), 64});
    g.output("y", x * x);
    const Target target = find_target("sm_90a");
    try {
        emit_gpu(compile(*g.data(), target).steps.at(0).kernel, target);
        FAIL("f64 was emitted");
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kUnsupported);
        CHECK(contains(error.what(), "'x' is f64"));
        CHECK(contains(error.what(), "cast it to f32"));
    }
}
