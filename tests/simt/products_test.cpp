// Products that kernels make themselves, and rows of products that a library makes in chunks, against the oracle.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/workspace.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "runtime/verify.h"
#include "tests/runtime/device_fixture.h"
#include "tests/simt/simt_device.h"

using namespace rowjit;

namespace {

void check_tokens(const Device& device, const Executable& executable, const Graph& graph, std::int64_t tokens) {
    const Bindings inputs = random_inputs(*graph.data(), {{"tokens", tokens}}, {.seed = 7, .scale = 0.5});
    const auto outputs = verify(device, executable, *graph.data(), inputs, {});
    CHECK_MESSAGE(within_bar(outputs), tokens, " tokens\n", describe(outputs));
}

// Kernels of a program that make a product themselves.
int own_products(const Program& program) {
    return static_cast<int>(
        std::ranges::count_if(program.steps, [](const Step& step) { return step.product.has_value(); }));
}

}  // namespace

TEST_CASE(
    "a head's loss and gradients are the oracle's in chunks of rows and parts of columns, through matrix libraries") {
    const Graph loss =
        make_graph("fused_linear_cross_entropy", {.columns = 72, .dtype = bf16, .options = {{"hidden", "24"}}});
    const Graph step =
        gradient(loss, trained_inputs("fused_linear_cross_entropy", loss), {.joint = true, .unit_cotangent = true});
    const ChunkOptions ways[] = {{.chunk_rows = 5},
                                 {.low_memory = true, .part_columns = 16},
                                 {.workspace_limit_bytes = 1, .chunk_rows = 30, .low_memory = true}};
    const ScopedVariable cublaslt("ROWJIT_CUBLASLT", ROWJIT_STUB_CUBLASLT);
    const ScopedVariable hipblaslt("ROWJIT_HIPBLASLT", ROWJIT_STUB_HIPBLASLT);
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        const Device device = simt::device(target, *open_lt(target.backend));
        std::vector<Program> programs;
        for (const ChunkOptions& chunks : ways) programs.push_back(compile(*step.data(), target, {}, chunks));
        CHECK(programs[0].loops.size() == 1);
        CHECK(programs[1].loops.size() == 2);
        for (const Executable& executable : simt::build(std::move(programs), target, device)) {
            INFO(name);
            for (const std::int64_t rows : {1, 13, 40}) check_tokens(device, executable, step, rows);
        }
    }
}

TEST_CASE("rows of a product that a kernel makes itself are the oracle's, at the edges of tiles and with none") {
    const ScopedVariable cublaslt("ROWJIT_CUBLASLT", ROWJIT_STUB_CUBLASLT);
    const Target target = simt::target("sm_90a");
    const Device device = simt::device(target, *open_lt(target.backend));
    for (const Dtype dtype : {bf16, f16}) {
        for (const std::string_view op : {"fused_linear_cross_entropy", "fused_linear_kl_div"}) {
            const Graph loss = make_graph(op, {.columns = 600, .dtype = dtype, .options = {{"hidden", "16"}}});
            const Graph step = gradient(loss, {"weight"}, {.joint = true, .unit_cotangent = true});
            std::vector<Program> programs;
            programs.push_back(compile(*step.data(), target, {}, {.low_memory = true}));
            CHECK(own_products(programs[0]) == 1);
            const Executable executable = simt::build(std::move(programs), target, device)[0];
            INFO(op);
            for (const std::int64_t rows : {0, 1, 63, 130, 300}) check_tokens(device, executable, step, rows);
        }
    }
}

TEST_CASE("an activation between two products is computed on the first one's tiles, whatever columns it has") {
    const ScopedVariable cublaslt("ROWJIT_CUBLASLT", ROWJIT_STUB_CUBLASLT);
    const Target target = simt::target("sm_90a");
    const Device device = simt::device(target, *open_lt(target.backend));
    // Of 520 and 602 columns tiles are not whole accesses of eight threads, and a library makes the product.
    for (const auto& [columns, own] : {std::pair(256, 1), {600, 1}, {512, 1}, {520, 0}, {602, 0}}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Axis width = g.columns("width", 16);
        const Axis wide = g.columns("wide", columns);
        const Axis out = g.columns("out", 24);
        const Value up = linear(g.input("x", bf16, {tokens, width}), g.input("up", bf16, {wide, width}));
        g.output("y", linear(relu(up), g.input("down", bf16, {out, wide})));
        std::vector<Program> programs;
        programs.push_back(compile(*g.data(), target, {}, {.chunk_rows = 70}));
        CHECK_MESSAGE(own_products(programs[0]) == own, columns, "\n",
                      fmt::format("{}", fmt::join(programs[0].notes, "\n")));
        const Executable executable = simt::build(std::move(programs), target, device)[0];
        INFO(columns);
        for (const std::int64_t rows : {1, 170}) check_tokens(device, executable, g, rows);
    }
}

TEST_CASE("numbers of rows are put together of tiles' parts, and no logits take memory") {
    const Target target = simt::target("sm_90a");
    const Device device = simt::device(target);
    const std::pair<std::string_view, OptionMap> cases[] = {
        {"fused_linear_cross_entropy", {}},
        {"fused_linear_cross_entropy", {{"label_smoothing", "0.1"}, {"softcap", "30"}, {"bias", "true"}}},
        {"fused_linear_log_probability", {}}};
    for (const auto& [op, more] : cases) {
        OptionMap options = more;
        options["hidden"] = "8";
        const Graph graph = make_graph(op, {.columns = 4104, .dtype = bf16, .options = options});
        std::vector<Program> programs;
        programs.push_back(compile(*graph.data(), target));
        CHECK_MESSAGE(own_products(programs[0]) == 1, op, "\n", fmt::format("{}", fmt::join(programs[0].notes, "\n")));
        CHECK(workspace_of(programs[0], 130).total < std::int64_t{130} * 4104 * 2);
        const Executable executable = simt::build(std::move(programs), target, device)[0];
        INFO(op);
        for (const std::int64_t rows : {0, 1, 130}) check_tokens(device, executable, graph, rows);
    }
}

TEST_CASE("a tile all of whose logits are -inf leaves a row's sum as it is") {
    const Target target = simt::target("sm_90a");
    const Device device = simt::device(target);
    const Graph graph = make_graph("fused_linear_cross_entropy",
                                   {.columns = 4104, .dtype = bf16, .options = {{"hidden", "8"}, {"bias", "true"}}});
    std::vector<Program> programs;
    programs.push_back(compile(*graph.data(), target));
    REQUIRE(own_products(programs[0]) == 1);
    const Executable executable = simt::build(std::move(programs), target, device)[0];
    Bindings inputs = random_inputs(*graph.data(), {{"tokens", 3}}, {.seed = 7, .scale = 0.5});
    std::vector<double>& bias = inputs.tensors.at("bias").values;
    std::fill(bias.begin(), bias.begin() + 300, -std::numeric_limits<double>::infinity());
    std::vector<double>& target_class = inputs.tensors.at("target").values;
    std::fill(target_class.begin(), target_class.end(), 4000.0);
    const auto outputs = verify(device, executable, *graph.data(), inputs, {});
    CHECK_MESSAGE(within_bar(outputs), describe(outputs));
}

TEST_CASE("sums that lie partly in their gradient's memory are rounded there by emitted kernels, some rows at a time") {
    const ScopedVariable cublaslt("ROWJIT_CUBLASLT", ROWJIT_STUB_CUBLASLT);
    const Target target = simt::target("sm_90a");
    const Device device = simt::device(target, *open_lt(target.backend));
    for (const std::int64_t hidden : {8, 33}) {
        const OptionMap options = {{"hidden", std::to_string(hidden)}};
        const Graph loss =
            make_graph("fused_linear_cross_entropy", {.columns = 1100, .dtype = bf16, .options = options});
        const Graph step = gradient(loss, {"weight"}, {.joint = true, .unit_cotangent = true});
        // More rows than the gradient's memory holds the logits of.
        std::vector<Program> programs;
        programs.push_back(compile(*step.data(), target, {}, {.chunk_rows = hidden + 2}));
        const std::int64_t rows = 2 * hidden + 9;
        CHECK(workspace_of(programs[0], rows).loops[0].chunks.shared);
        const Executable executable = simt::build(std::move(programs), target, device)[0];
        const Bindings inputs = random_inputs(*step.data(), {{"tokens", rows}}, {.seed = 7, .scale = 0.5});
        const auto outputs = verify(device, executable, *step.data(), inputs, {});
        CHECK_MESSAGE(within_bar(outputs), describe(outputs));
    }
}
