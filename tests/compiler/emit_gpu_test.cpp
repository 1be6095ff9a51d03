// The GPU emitter's text: its shape, and that every toolchain accepts it for every target without spilling. What the
// kernels compute is compared with the interpreter by the SIMT shim's tests and on devices.
#include "compiler/emit/gpu.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/fail.h"
#include "compiler/compile.h"
#include "compiler/toolchain/toolchain.h"
#include "dsl/graph.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"

using namespace rowjit;

namespace {

using Build = std::function<void(Graph&, std::int64_t columns)>;

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

// Weights that both phases of a row read.
void build_weighted_difference(Graph& g, std::int64_t columns) {
    const Value x = cast(g.input("x", bf16, {g.rows("tokens"), columns}), f32);
    const Value weighted = x * cast(g.input("weight", bf16, {columns}), f32);
    g.output("y", cast(weighted - sum(weighted), bf16));
}

// A block that stays for many rows and copies them ahead.
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

void build_gelu(Graph& g, std::int64_t columns) { g.output("y", gelu(g.input("x", f32, {g.rows("tokens"), columns}))); }

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

std::vector<Kernel> kernels_of(const Build& build, std::int64_t columns, const Target& target) {
    Graph g;
    build(g, columns);
    std::vector<Kernel> kernels;
    for (const Step& step : compile(*g.data(), target).steps) kernels.push_back(step.kernel);
    return kernels;
}

std::string body_of(const Build& build, std::int64_t columns, const std::string& target_name = "sm_90a") {
    const Target target = find_target(target_name);
    return emit_gpu_body(kernels_of(build, columns, target).at(0), target);
}

// One group of the graph under a schedule of the test's choice.
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

TEST_CASE("a resident row issues every load before it computes, and computes twice on one load") {
    const std::string body = body_of(build_rms_norm, 4096);
    // What an iteration adds to the address is a constant where it is unrolled.
    CHECK(count(body, "rj_load_readonly<8>(x_row + t * 8 + i * 1024)") == 1);
    CHECK(body.find("rj_load_readonly<8>(x_row + ") < body.find("rj_get(x_vec[i], l)"));
    CHECK(count(body, "rj_get(x_vec[i], l)") == 1);
    CHECK(count(body, "rj_kept(x_vec[i])") == 1);
    CHECK(contains(body, "// kept in registers"));
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

TEST_CASE("a condition of a column's place is one comparison where a bound decides it, and none where nothing does") {
    const auto wrapped = [](Graph& g, std::int64_t columns) {
        const Axis n = g.columns(columns);
        const Value x = g.input("x", bf16, {g.rows("tokens"), n});
        const std::int64_t half = columns / 2;
        const Value partner = g.iota(n) + static_cast<double>(half);
        const Value place = partner - floor_div(partner, columns) * static_cast<double>(columns);
        g.output("y", select(place < static_cast<double>(half), x, -x));
        g.output("z", select(place >= 0.0, x, -x));            // the planner knows
        g.output("twice", select(place * 2.0 >= 0.0, x, -x));  // looking at each column does
    };
    const std::string body = body_of(wrapped, 1024);
    CHECK(contains(body, ">= 512;  // lt("));
    CHECK(count(body, "rj_select_x2(") == 2);
    CHECK(count(body, "rj_select_x2(true, ") == 1);
    CHECK(!contains(body, "rj_floor_div("));
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

Schedule peeled_schedule(int vector) {
    Schedule schedule;
    schedule.family = Family::kRowReduction;
    schedule.residency = Residency::kRegisters;
    schedule.threads_per_row = 128;
    schedule.vector = vector;
    schedule.peel = true;
    return schedule;
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

TEST_CASE("what has whole vectors is not peeled, nor what a thread sums over rows or copies ahead") {
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
    CHECK(reason(summed, 4099, staying) == "sums over rows are of a thread's own columns");
}

TEST_CASE("a target outside the row reads nothing and gives zero") {
    const std::string body = body_of(build_cross_entropy, 1024);
    CHECK(contains(body, "rj_inside(target_value, 1024) ? rj_load_one_readonly("));
    CHECK(contains(body, "rj_clamp(target_value, 1024)) : 0.0f"));
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

TEST_CASE("a division by a value of the row is prepared once before the loop") {
    const auto wide = [](Graph& g, std::int64_t columns) {
        g.output("y", softmax(g.input("x", f32, {g.rows("tokens"), columns})));
    };
    const std::string body = body_of(wide, 1024);
    CHECK(contains(body, "const rj_divisor row_sum_divisor = rj_divisor_of(row_sum);"));
    CHECK(contains(body, ", row_sum_divisor);"));
}

TEST_CASE("a product added to itself is one of its number doubled, also of one that a condition spreads") {
    Graph g;
    const Axis rows = g.rows("rows");
    const Axis columns = g.columns("columns", 1024);
    const Value x = g.input("x", f32, {rows, columns});
    const Value number = select(g.iota(columns, i64) >= 0, g.input("a", f32, {rows}), g.constant(f32, 0.0));
    g.output("y", number * x + number * x);
    const Target target = find_target("sm_90a");
    const std::string body = emit_gpu_body(compile(*g.data(), target).steps[0].kernel, target);
    CHECK(contains(body, " = a_value + a_value;"));
}

TEST_CASE("what several of a row's numbers are divided by is prepared once, but where a row is in registers") {
    const auto body = [](bool holds_row) {
        Graph g;
        const Axis rows = g.rows("rows");
        const Axis columns = g.columns("columns", 1024);
        const Value a = g.input("a", f32, {rows});
        const Value b = g.input("b", f32, {rows});
        g.output("p", a / (a + b));
        g.output("q", b / (a + b));
        const Value x = g.input("x", f32, {rows, columns});
        if (holds_row) g.output("y", x * (a / (a + b) * rsqrt(mean(x * x, columns))));
        const Target target = find_target("sm_90a");
        return emit_gpu_body(compile(*g.data(), target).steps[0].kernel, target);
    };
    CHECK(count(body(false), "rj_divisor_of(") == 1);
    CHECK(count(body(false), "_divisor);") == 2);
    CHECK(!contains(body(true), "rj_divisor_of("));
    CHECK(contains(body(true), "rj_rsqrt("));
}

TEST_CASE("a narrow quotient by a sum of weights, of which one is 1, is a product with its reciprocal") {
    const auto scaled = [](bool weights) {
        return [=](Graph& g, std::int64_t columns) {
            const Value x = cast(g.input("x", bf16, {g.rows("tokens"), columns}), f32);
            const Value e = exp(x - max(x));
            g.output("y", cast(x / sum(weights ? e : e * 0.5), bf16));
        };
    };
    const std::string body = body_of(scaled(true), 1024);
    CHECK(count(body, "rj_div(1.0f, ") == 1);
    CHECK(!contains(body, "rj_divisor"));
    // Another sum may have no reciprocal.
    CHECK(contains(body_of(scaled(false), 1024), "rj_div_narrow("));
}

TEST_CASE("a quotient need not be exact where a rounding or the sum of a row loses its error") {
    const auto scaled = [](Dtype dtype) {
        return [=](Graph& g, std::int64_t columns) {
            const Value x = g.input("x", dtype, {g.rows("tokens"), columns});
            g.output("y", cast(cast(x, f32) / max(cast(abs(x), f32)), dtype));
        };
    };
    CHECK(contains(body_of(scaled(bf16), 1024), "rj_div_narrow("));
    const auto wide = scaled(f32);
    CHECK(!contains(body_of(wide, 1024), "rj_div_narrow("));
    // The sum hides an error of its terms; the difference would not.
    const auto difference = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
        const Value quotient = x / g.input("u", f32, {tokens});
        g.output("y", cast(quotient - sum(quotient), bf16));
    };
    CHECK(!contains(body_of(difference, 1024), "rj_div_narrow("));
}

TEST_CASE("a product is not rounded before it is added, where what becomes of it is rounded or summed") {
    const std::string norm = body_of(build_rms_norm, 1024);
    CHECK(contains(norm, ".add_products("));
    const auto affine = [](Dtype dtype) {
        return [dtype](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = cast(g.input("x", dtype, {tokens, columns}), f32);
            g.output("y", cast(x * g.input("scale", f32, {tokens}) + g.input("shift", f32, {tokens}), dtype));
        };
    };
    CHECK(contains(body_of(affine(bf16), 1024), "rj_fma("));
    CHECK(!contains(body_of(affine(f32), 1024), "rj_fma("));
}

TEST_CASE(
    "of two products of what is in memory none is added unrounded, which overflowing alone or cancelling would show") {
    const auto mixed = [](bool scaled) {
        return [scaled](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const auto row = [&](const char* name) { return cast(g.input(name, bf16, {tokens, columns}), f32); };
            const Value a = row("a");
            const Value b = row("b");
            const Value first = (scaled ? tanh(a) : a) * g.input("cos", f32, {tokens});
            g.output("y", cast(first + -b * g.input("sin", f32, {tokens}) + a * b, bf16));
        };
    };
    CHECK(!contains(body_of(mixed(false), 1024), "rj_fma("));
    CHECK(contains(body_of(mixed(true), 1024), "rj_fma("));
    // A row whose weight is all one column's: the two products are equal, and eager's difference zero.
    const auto of_row = [](bool bounded) {
        return [bounded](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const auto row = [&](const char* name) { return cast(g.input(name, bf16, {tokens, columns}), f32); };
            const auto number = [&](const char* name) { return g.input(name, f32, {tokens}); };
            const Value total = number("total");
            const Value weights = number("weights");
            const Value scale = total / weights;
            const Value difference = row("a") - row("b");
            const Value shift = -(total * number("saved")) / weights;
            g.output("y", cast((bounded ? tanh(difference) : difference) * scale + shift, bf16));
        };
    };
    CHECK(!contains(body_of(of_row(false), 1024), "rj_fma("));
    CHECK(contains(body_of(of_row(true), 1024), "rj_fma("));
}

TEST_CASE(
    "a product is rounded before what the row's weights make of its factor is taken away, which may be all of it") {
    const auto centred = [](bool of_others) {
        return [of_others](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
            const Value y = cast(g.input("y", bf16, {tokens, columns}), f32);
            const Value weight = exp(x - max(x));
            const Value value = tanh(y);
            const Value scale = g.input("scale", f32, {tokens}) / sum(weight);
            const Value total = sum(weight * (of_others ? x : value)) / sum(weight);
            g.output("z", cast((value * scale + -(scale * total)) * weight, bf16));
        };
    };
    CHECK(!contains(body_of(centred(false), 1024), "= rj_fma("));
    CHECK(contains(body_of(centred(true), 1024), "= rj_fma("));
    CHECK(!contains(body_of(centred(true), 1), "= rj_fma("));  // where every sum is its term
}

TEST_CASE("a product is rounded before a product of its factor is added, which may be its negative") {
    const auto scaled = [](const auto& term) {
        return [=](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
            const Value y = cast(g.input("y", bf16, {tokens, columns}), f32);
            const Value weight = exp(x);
            const Value scale = g.input("scale", f32, {tokens});
            g.output("z", cast((scale * (x - y)) * weight + term(x, weight, scale), bf16));
        };
    };
    const auto fuses = [](const Build& build) { return contains(body_of(build, 1024), "= rj_fma("); };
    CHECK(!fuses(scaled([](const Value&, const Value& weight, const Value& scale) { return scale * weight; })));
    CHECK(fuses(scaled([](const Value& x, const Value&, const Value& scale) { return scale * tanh(x); })));
    CHECK(fuses(scaled([](const Value&, const Value& weight, const Value&) { return -weight; })));
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

TEST_CASE("an exponential that is stored in f32 as it is has all of its bits") {
    const auto body = [](std::string_view outputs) {
        const Graph g = Graph::parse(fmt::format("rows t\ninput x: f32[t, 64]\ne = exp(x)\n{}\n", outputs));
        const Target& target = find_target("sm_90a");
        return emit_gpu_body(compile(*g.data(), target).steps[0].kernel, target);
    };
    CHECK(contains(body("output y = e"), "rj_exp_stored("));
    CHECK(!contains(body("output y = 1 / (1 + e)"), "rj_exp_stored("));
    CHECK(!contains(body("output y = cast(e, bf16)"), "rj_exp_stored("));
    CHECK(!contains(body("output y = e\noutput z = sum(e)"), "rj_exp_stored("));
}

TEST_CASE("an exponential is one instruction where a rounding or a logarithm of sums loses its error") {
    const std::string quotient = body_of(build_softmax, 1024);
    CHECK(contains(quotient, "rj_exp_narrow("));
    CHECK(!contains(quotient, "rj_exp("));
    CHECK(contains(body_of(build_cross_entropy, 1024), "rj_exp_weight("));
    const auto difference = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value student = softmax(g.input("student", bf16, {tokens, columns}));
        g.output("y", student - softmax(g.input("teacher", bf16, {tokens, columns})));
    };
    // Probabilities of bf16 are rounded before they are subtracted; those that are not would show the error.
    CHECK(contains(body_of(difference, 1024), "rj_exp2_fast("));
    CHECK(!contains(body_of(difference, 1024), "rj_exp("));
    const auto wide_difference = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value student = softmax(cast(g.input("student", bf16, {tokens, columns}), f32));
        g.output("y", cast(student - softmax(cast(g.input("teacher", bf16, {tokens, columns}), f32)), bf16));
    };
    CHECK(contains(body_of(wide_difference, 1024), "rj_exp("));
}

TEST_CASE("an exponential below a row's maximum that a number of the row multiplies is a power of a multiply-add") {
    const auto body = [](std::string_view output) {
        const Graph g =
            Graph::parse(fmt::format("rows t\ninput x: bf16[t, 1024]\ninput k: f32[t]\ninput b: f32[1024]\n"
                                     "h = cast(x, f32)\ne = exp(h - max(h))\noutput y = {}\n",
                                     output));
        const Target& target = find_target("sm_90a");
        return emit_gpu_body(compile(*g.data(), target).steps[0].kernel, target);
    };
    const std::string scaled = body("cast(k * e, bf16)");
    CHECK(contains(scaled, "= rj_exp2_fast("));
    CHECK(!contains(scaled, "rj_exp_narrow("));
    CHECK(contains(scaled, " < 134217730.0f"));  // past which a maximum is not multiplied
    // Each of its products has another factor, a column's, or two: what a row takes back is in none of those.
    CHECK(contains(body("cast(k * e * b, bf16)"), "= rj_exp2_fast("));
    CHECK(contains(body("cast(e * b, bf16)"), "rj_exp_narrow("));
    CHECK(contains(body("cast(k * e, bf16)\noutput z = cast(2.5 * k * e * e, bf16)"), "rj_exp_narrow("));
    CHECK(contains(body("k * e"), "rj_exp("));  // of f32 it is as exact as it is
}

TEST_CASE("an exponential that only weighs the terms of sums is one instruction where it is at most 1") {
    // Σ w·(x − y) of w = e^(x − bound): all that is stored is f32, and no logarithm follows.
    const auto weighted = [](const auto& bound) {
        return [bound](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
            const Value y = cast(g.input("y", bf16, {tokens, columns}), f32);
            const Value weight = exp(x - bound(x, y));
            const Value zero = g.constant(f32, 0.0);
            g.output("z", sum(select(weight == 0.0, zero, weight * (x - y))));
        };
    };
    const std::string below = body_of(weighted([](const Value& x, const Value&) { return max(x); }), 1024);
    CHECK(contains(below, "rj_exp_weight("));
    CHECK(!contains(below, "rj_exp("));
    const std::string above = body_of(weighted([](const Value&, const Value& y) { return max(y); }), 1024);
    CHECK(contains(above, "rj_exp("));
    // So where a softmax's f32 sum is stored for its backward.
    const auto saving = [](Graph& g, std::int64_t columns) {
        const Value x = cast(g.input("x", bf16, {g.rows("tokens"), columns}), f32);
        const Value weight = exp(x - max(x));
        const Value total = sum(weight);
        g.output("y", cast(weight / total, bf16));
        g.output("total", total);
    };
    CHECK(contains(body_of(saving, 1024), "rj_exp_narrow("));
    CHECK(!contains(body_of(saving, 1024), "rj_exp("));
}

TEST_CASE("of weights at most 1 a sum of differences and of logarithms of their mixtures loses nothing that it shows") {
    const auto divergence = [](Dtype dtype, bool logarithm_alone) {
        return [=](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = cast(g.input("x", dtype, {tokens, columns}), f32);
            const Value y = cast(g.input("y", dtype, {tokens, columns}), f32);
            const Value p = exp(x - max(x));
            const Value q = exp(y - max(y));
            const Value logarithm = log(p + 0.5 * q);
            g.output("distance", sum(abs(p / sum(p) - q / sum(q))));
            g.output("mixed", sum(logarithm_alone ? logarithm : p * (x - max(x) - logarithm)));
        };
    };
    const std::string narrow = body_of(divergence(bf16, false), 1024);
    CHECK(contains(narrow, "rj_exp_weight("));
    CHECK(contains(narrow, "rj_log_weight("));
    CHECK(contains(narrow, "rj_log_share("));  // of the weight as it came out, which is 2^t of a rounded t
    CHECK(!contains(narrow, "rj_divisor"));
    for (const char* exact : {"rj_exp(", "rj_log("}) CHECK(!contains(narrow, exact));
    // Of weights that are all 0 the logarithm is not what the narrow one says, and nothing takes that away.
    CHECK(contains(body_of(divergence(bf16, true), 1024), "rj_log("));
    const std::string wide = body_of(divergence(f32, false), 1024);
    for (const char* spent : {"rj_exp_weight(", "rj_log_weight(", "rj_log_share(", "rj_div_narrow("})
        CHECK(!contains(wide, spent));
}

TEST_CASE("the logarithm of a weight's share is bounded, not chosen, where it is only multiplied by the weight") {
    const auto mixed = [](Dtype dtype, bool alone) {
        return [=](Graph& g, std::int64_t columns) {
            const Axis tokens = g.rows("tokens");
            const Value x = cast(g.input("x", dtype, {tokens, columns}), f32);
            const Value y = cast(g.input("y", dtype, {tokens, columns}), f32);
            const Value p = exp(x - max(x));
            const Value q = exp(y - max(y));
            const Value share = select(p == 0.0, g.constant(f32, 0), x - max(x) - log(p * sum(q) + q * sum(p)));
            g.output("mixed", sum(p * share));
            if (alone) g.output("weighted", sum(q * share));
        };
    };
    const auto bounds = [](const std::string& body) { return count(body, ", (-3.4028235e+38f))"); };
    CHECK(bounds(body_of(mixed(bf16, false), 1024)) == 1);
    CHECK(bounds(body_of(mixed(bf16, true), 1024)) == 0);  // another weight is none where this one is
    CHECK(bounds(body_of(mixed(f32, false), 1024)) == 0);
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

TEST_CASE("a vector of which no column passes the row's number is left out of sums of those that do") {
    const auto build = [](Dtype dtype) {
        return [=](Graph& g, std::int64_t columns) {
            g.output("y", sparsemax(g.input("x", dtype, {g.rows("tokens"), columns})));
        };
    };
    const std::string narrow = body_of(build(bf16), 8192);
    CHECK(count(narrow, "_greatest = rj_greatest_of(") == 1);  // for all steps
    CHECK(narrow.find("tested[i] = ") < narrow.find("for (int step = 0;"));
    CHECK(count(narrow, "  // one of the vector's columns") == 1);
    CHECK(count(body_of(build(f32), 8192), "passes |= ") == 1);
    CHECK(count(body_of(build(bf16), 128), "of the vector's columns") == 0);  // several rows a block
}

TEST_CASE("what the last step of a fixpoint summed is not summed again, and what is not the same is") {
    const auto build = [](double weight) {
        return [=](Graph& g, std::int64_t columns) {
            const Value x = g.input("x", f32, {g.rows("tokens"), columns});
            const auto above = [&](const Value& state, double scale) {
                return sum(select(x > state, x * scale, x * 0.0));
            };
            const auto step = [&](const Value& state) { return maximum(state, above(state, 0.25)); };
            const Value last = fixpoint(max(x) * 0.5, step, 9);
            g.output("y", x * above(last, weight));
        };
    };
    const std::string same = body_of(build(0.25), 4096);
    CHECK(count(same, "rj_all_reduce<") == 2);
    CHECK(contains(same, "// of the last step"));
    CHECK(contains(same, "for (int step = 0; step <= 9; ++step)"));
    const std::string other = body_of(build(0.5), 4096);
    CHECK(count(other, "rj_all_reduce<") == 3);
    CHECK(!contains(other, "// of the last step"));
}

TEST_CASE("what does not rise with one element of a vector is asked of each lane") {
    const auto build = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
        const Value y = cast(g.input("y", bf16, {tokens, columns}), f32);
        const Value zero = g.constant(f32, 0);
        g.output("folded", sum(select(abs(x) > max(x), x, zero)));
        g.output("both", sum(select(x + y > max(y), x, zero)));
        g.output("least", sum(select(x - max(x) < min(x), x, zero)));
    };
    const std::string body = body_of(build, 8192);
    CHECK(!contains(body, "rj_greatest_of("));
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

TEST_CASE("a logistic function that is rounded is two instructions for its functions") {
    const auto gated = [](Graph& g, std::int64_t columns) {
        const Axis tokens = g.rows("tokens");
        g.output("y", swiglu(g.input("gate", bf16, {tokens, columns}), g.input("up", bf16, {tokens, columns})));
    };
    const std::string narrow = body_of(gated, 1024);
    CHECK(contains(narrow, "rj_exp_narrow("));
    CHECK(contains(narrow, "rj_div_narrow("));
    const auto small_divisor = [](Graph& g, std::int64_t columns) {
        const Value x = cast(g.input("x", bf16, {g.rows("tokens"), columns}), f32);
        g.output("y", cast(x / (exp(x) + 0.5), bf16));
    };
    CHECK(!contains(body_of(small_divisor, 1024), "rj_div_narrow("));
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

TEST_CASE("a division by a power of two is a product, by another constant two") {
    const auto divided = [](double by) {
        return [by](Graph& g, std::int64_t columns) {
            g.output("y", g.input("x", f32, {g.rows("tokens"), columns}) / by);
        };
    };
    CHECK(contains(body_of(divided(-8.0), 1024), "* (-0.125f)"));
    CHECK(contains(body_of(divided(3.0), 1024), "rj_fma("));
    CHECK_FALSE(contains(body_of(divided(3.0), 1024), "rj_div("));
    CHECK(contains(body_of(divided(1e30), 1024), "rj_div("));
}

TEST_CASE("steps that a graph has written out are a loop as far as nothing else reads them") {
    // Of three operations each, from `kept` of which everything is summed.
    const auto steps = [](int count, int kept) {
        return [=](Graph& g, std::int64_t columns) {
            const Value first = sum(g.input("x", f32, {g.rows("tokens"), columns}));
            Value step = first;
            Value total = first;
            for (int i = 0; i < count; ++i) {
                step = step * 0.5 + first / (step * step);
                if (i < kept) total = total + step;
            }
            g.output("y", step * total);
        };
    };
    const std::string all = body_of(steps(200, 0), 1024);
    CHECK(contains(all, "for (int round = 0; round < 199; ++round)"));
    CHECK(std::count(all.begin(), all.end(), '\n') < 60);
    CHECK(contains(body_of(steps(200, 20), 1024), "for (int round = 0; round < 179; ++round)"));
    CHECK(!contains(body_of(steps(50, 0), 1024), "int round"));  // too few to be worth it
}

TEST_CASE("steps whose numbers a kernel stores for the next are loops of both, each at its round's place") {
    const Graph graph = make_graph("hyper_pre", {64, f32, {}});
    const Graph backward = differentiate(graph, trained_inputs("hyper_pre", graph)).backward;
    const Target target = find_target("sm_90a");
    const Program program = compile(*backward.data(), target);
    const auto loop_of = [&](std::size_t step) {
        const std::string text = emit_gpu_body(program.steps[step].kernel, target);
        return text.substr(text.find("for (int round = 0; round < 3"));
    };
    CHECK(contains(loop_of(0), "if (live) rj_store_one(tmp_20 + ((round * 20) + "));
    CHECK(contains(loop_of(1), "= rj_load_one(tmp_20 + ((round * -20) + "));
}

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

TEST_CASE("erf is less exact where 1 is added to it and a rounding follows") {
    const auto activated = [](Dtype dtype, const auto& make) {
        return [dtype, make](Graph& g, std::int64_t columns) {
            g.output("y", make(g.input("x", dtype, {g.rows("tokens"), columns})));
        };
    };
    const auto gelu_erf = [](const Value& x) { return gelu(x, Gelu::kErf); };
    CHECK(contains(body_of(activated(bf16, gelu_erf), 1024), "rj_erf_narrow("));
    CHECK(contains(body_of(activated(f16, gelu_erf), 1024), "rj_erf_narrow("));
    CHECK(contains(body_of(activated(f32, gelu_erf), 1024), "rj_erf("));
    // By itself its relative error near 0 would show, and so would the sum's where another is taken from it.
    const auto alone = [](const Value& x) { return cast(erf(cast(x, f32)), bf16); };
    CHECK(contains(body_of(activated(bf16, alone), 1024), "rj_erf("));
    const auto difference = [](const Value& x) { return cast(erf(cast(x, f32)) + 1.0 - cast(x, f32), bf16); };
    CHECK(contains(body_of(activated(f16, difference), 1024), "rj_erf("));
}

TEST_CASE("a row's number over a power of two is a product where the row is loaded again behind it, or many are") {
    const auto quotient = [](bool again, std::int64_t columns) {
        Graph g;
        const auto x = g.input("x", f32, {g.rows("tokens"), columns});
        const auto other = g.input("other", f32, {x.axes()[0], columns});
        const auto scaled = x * mean(x);
        g.output("y", again ? scaled + other : scaled);
        return g;
    };
    const auto text = [&](bool again, std::int64_t columns) {
        return body_of([&](Graph& g, std::int64_t n) { g = quotient(again, n); }, columns);
    };
    CHECK(contains(text(true, 1024), "* 0.0009765625f"));
    CHECK(contains(text(false, 1024), "rj_div("));
    CHECK(contains(text(true, 1000), "rj_div("));
}

TEST_CASE("tanh is less exact where it is rounded, or added to what has nothing of its argument and then rounded") {
    const auto bent = [](Dtype dtype, const auto& make) {
        return [dtype, make](Graph& g, std::int64_t columns) {
            const auto h = cast(g.input("x", dtype, {g.rows("tokens"), columns}), f32);
            const auto bias = cast(g.input("bias", dtype, {columns}), f32);
            g.output("y", cast(make(h, bias), dtype));
        };
    };
    const auto alone = [](const Value& h, const Value& bias) { return tanh(h * bias); };
    CHECK(contains(body_of(bent(bf16, alone), 1024), "rj_tanh_narrow("));
    CHECK(contains(body_of(bent(f16, alone), 1024), "rj_tanh_narrow("));
    CHECK(contains(body_of(bent(f32, alone), 1024), "rj_tanh("));
    const auto shifted = [](const Value& h, const Value& bias) { return tanh(h) * 0.5 + bias; };
    CHECK(contains(body_of(bent(bf16, shifted), 1024), "rj_tanh_narrow("));
    CHECK(contains(body_of(bent(f16, shifted), 1024), "rj_tanh("));
    const auto difference = [](const Value& h, const Value& bias) { return tanh(h) * bias - h; };
    CHECK(contains(body_of(bent(bf16, difference), 1024), "rj_tanh("));
}

TEST_CASE("a softmax of capped scores, with a number of the row in its sum, is made of what is less exact") {
    const auto capped = [](double cap, Dtype result) {
        return [=](Graph& g, std::int64_t columns) {
            const auto tokens = g.rows("tokens");
            const auto h = cap * tanh(cast(g.input("x", bf16, {tokens, columns}), f32) / cap);
            const auto sink = g.input("sink", f32, {tokens});
            const auto m = maximum(max(h), sink);
            const auto e = exp(h - m);
            g.output("p", cast(e / (sum(e) + exp(sink - m)), result));
        };
    };
    const std::string narrow = body_of(capped(50, bf16), 1024);
    CHECK(contains(narrow, "rj_tanh_narrow("));
    CHECK(contains(narrow, "rj_exp_narrow("));
    CHECK(contains(narrow, "* 0.02f"));  // a quotient by the cap, likewise
    // As often as it is in the exponent an error of tanh is in the result.
    CHECK(contains(body_of(capped(500, bf16), 1024), "rj_tanh("));
    for (const char* exact : {"rj_tanh(", "= rj_exp(map"}) CHECK(contains(body_of(capped(50, f32), 1024), exact));
}

TEST_CASE("a logistic function's parts are less exact in a product with others, and in the derivative of one") {
    Graph g;
    const Value x = g.input("x", bf16, {g.rows("tokens"), 1024});
    const Value gate = g.input("gate", bf16, {x.axes()[0], 1024});
    const Value z = cast(gate, f32);
    const Value bent = 30 * tanh(cast(x, f32) * cast(g.input("w", bf16, {1024}), f32) / 30);
    g.output("y", cast(bent * z / (1 + exp(-z)), bf16));
    const Graph backward = differentiate(g, {"x", "gate", "w"}).backward;
    const auto text = [&] { return body_of([&](Graph& to, std::int64_t) { to = backward; }, 1024); };
    CHECK(contains(text(), "rj_exp_narrow("));
    CHECK(contains(text(), "rj_div_narrow("));
    CHECK(contains(text(), "rj_tanh_narrow("));
    CHECK(!contains(text(), "rj_exp("));
    CHECK(!contains(text(), "rj_div("));
    CHECK(contains(text(), "* 0.03333333f"));
    // 1 less a logistic function is small where e^x is, and shows what the quotient loses.
    const auto complement = [](Graph& to, std::int64_t columns) {
        const Value h = cast(to.input("x", bf16, {to.rows("tokens"), columns}), f32);
        to.output("y", cast(1 - 1 / (1 + exp(-h)), bf16));
    };
    CHECK(contains(body_of(complement, 1024), "rj_div_one_up("));
}

TEST_CASE("a gate's parts are less exact in a norm's backward, which adds what has nothing of the gate") {
    const auto backward = [](Dtype dtype, bool adds_gate) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Value x = cast(g.input("x", dtype, {tokens, 1024}), f32);
        const Value z = cast(g.input("gate", dtype, {tokens, 1024}), f32);
        const Value gated = x * rsqrt(mean(x * x) + 1e-5) / (1 + exp(-z));
        g.output("y", cast(adds_gate ? gated + x * z : gated, dtype));
        const Graph backward = differentiate(g, {"x"}).backward;
        return body_of([&](Graph& to, std::int64_t) { to = backward; }, 1024);
    };
    const std::string narrow = backward(bf16, false);
    CHECK(contains(narrow, "rj_exp_narrow("));
    CHECK(contains(narrow, "rj_div_narrow("));
    // What may cancel it has the gate as well; 11 bits show it sooner; f32 is as written.
    for (const std::string& exact : {backward(bf16, true), backward(f16, false), backward(f32, false)}) {
        CHECK(contains(exact, "rj_exp("));
        CHECK(contains(exact, "rj_div_one_up("));
    }
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

TEST_CASE("each template compiles alone for every target, needing only those before it") {
    for (const Target& target : gpu_targets()) {
        std::string text = fmt::format("#define RJ_WARP_SIZE {}\n", target.warp_size);
        for (const std::string_view part : gpu_prelude_parts(target)) {
            text.append(part);
            CHECK_NOTHROW(compile_source({text + "\nRJ_KERNEL(64) empty() {}\n", {"empty"}}, target));
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
