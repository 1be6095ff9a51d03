// What fused forms cost: how many kernels they are, and how many bytes those move beside the least that any could —
// each input of the graph read once, each output written once. A planner that parts what was one kernel fails here.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "compiler/compile.h"
#include "dsl/library/registry.h"
#include "dsl/traffic.h"
#include "rowjit/gradient.h"

using namespace rowjit;

namespace {

constexpr std::int64_t kTokens = 8192;

struct Cost {
    std::size_t kernels = 0;
    double bytes = 0;
    double least_bytes = 0;
};

Cost cost_of(const Graph& graph) {
    const Program program = compile(*graph.data(), find_target("sm_90a"));
    Cost cost{program.steps.size(), 0,
              static_cast<double>(least_bytes(*graph.data(), all_rows(*graph.data(), kTokens)))};
    for (const Step& step : program.steps) cost.bytes += group_bytes(*step.group.graph, kTokens);
    return cost;
}

// A model's width, by what the op's columns are.
std::int64_t width_of(std::string_view op) {
    const std::string_view columns = find_composite(op).columns;
    if (columns == "head width") return 128;
    return columns == "vocabulary" ? 128256 : 4096;
}

Graph forward(std::string_view op, const OptionMap& options = {}) {
    return make_graph(op, {width_of(op), bf16, options});
}

Graph backward(std::string_view op, const OptionMap& options = {}) {
    const Graph graph = forward(op, options);
    return differentiate(graph, trained_inputs(op, graph)).backward;
}

// The rows of `op`'s last result quantized, the others results as they are.
Graph quantized(std::string_view op, std::size_t operands, const std::string& codes_dtype = "i8") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < operands; ++i) {
        const std::string name = fmt::format("x{}", i);
        inputs.push_back(i < 2 ? g.input(name, bf16, {tokens, 4096}) : g.input(name, bf16, {4096}));
    }
    const std::vector<Value> results = call_composite(op, inputs, {});
    for (std::size_t i = 0; i + 1 < results.size(); ++i) g.output(fmt::format("y{}", i), results[i]);
    const std::vector<Value> codes = call_composite("quantize", std::vector{results.back()}, {{"codes", codes_dtype}});
    g.output("codes", codes[0]);
    g.output("scale", codes[1]);
    return g;
}

Graph loss_and_gradient(const OptionMap& options) {
    return gradient(forward("cross_entropy", options), {"logits"},
                    {.of = {"loss"}, .joint = true, .in_place = {"logits"}, .unit_cotangent = true});
}

struct Form {
    std::string name;
    Graph graph;
};

// The bytes of a few numbers a row, as the parts of a sum over all rows, are within this.
constexpr double kNumbersOfRows = 1.001;

void check_one_kernel(const std::vector<Form>& forms) {
    for (const Form& form : forms) {
        CAPTURE(form.name);
        const Cost cost = cost_of(form.graph);
        CHECK(cost.kernels == 1);
        CHECK(cost.bytes == doctest::Approx(cost.least_bytes).epsilon(1e-4));
    }
}

}  // namespace

TEST_CASE("norms with what stands before and behind them are one kernel that moves nothing twice") {
    check_one_kernel({{"add_rms_norm", forward("add_rms_norm")},
                      {"add_layer_norm", forward("add_layer_norm")},
                      {"add_rms_norm and quantize", quantized("add_rms_norm", 3)},
                      {"add_rms_norm and quantize to e4m3", quantized("add_rms_norm", 3, "e4m3")},
                      {"add_layer_norm and quantize", quantized("add_layer_norm", 4)},
                      {"rms_norm modulated by row", forward("modulated_rms_norm")},
                      {"rms_norm modulated by batch", forward("modulated_rms_norm", {{"modulation", "batch"}})},
                      {"rms_norm modulated by column", forward("modulated_rms_norm", {{"modulation", "column"}})},
                      {"layer_norm modulated by row", forward("modulated_layer_norm")},
                      {"gated_rms_norm", forward("gated_rms_norm")}});
}

TEST_CASE("activations are one kernel with quantization behind them, and so are their backwards") {
    check_one_kernel({{"swiglu and quantize", quantized("swiglu", 2)},
                      {"geglu and quantize", quantized("geglu", 2)},
                      {"swiglu and quantize to e5m2", quantized("swiglu", 2, "e5m2")},
                      {"swiglu backward", backward("swiglu")},
                      {"packed swiglu backward", backward("swiglu", {{"packed", "true"}})},
                      {"geglu backward", backward("geglu")},
                      {"clipped_swiglu backward", backward("clipped_swiglu")}});
}

TEST_CASE("the gradient of a packed row is stored a part at a time, with the columns that both parts are made of") {
    const auto pieces = [](const Graph& graph) {
        std::vector<OutputPiece> found;
        for (const Step& step : compile(*graph.data(), find_target("sm_90a")).steps) {
            for (const OutputInfo& output : step.group.graph->outputs()) {
                if (output.piece) found.push_back(*output.piece);
            }
        }
        return found;
    };
    const Graph activation = backward("swiglu", {{"packed", "true"}});
    REQUIRE(pieces(activation).size() == 2);
    CHECK(pieces(activation)[0].tensor == "d_gate_up");
    CHECK(pieces(activation)[0].at == std::vector<std::int64_t>{-1, 0, -1});
    CHECK(pieces(activation)[1].at == std::vector<std::int64_t>{-1, 1, -1});

    // Columns that are chosen by their place, the first `end` of them by another way, of a row in its own memory or
    // not.
    const auto chosen = [](std::int64_t end, bool in_place) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Axis columns = g.columns("columns", 256);
        const Value x = g.input("x", bf16, {tokens, columns});
        const Value part = g.input("part", bf16, {tokens, g.columns("part", 128)});
        const Value other = index(part, {tokens, Coord(columns) % 128});
        const Value y = select(g.iota(columns) < static_cast<double>(end), x + other, x * other);
        g.output("y", y, {.alias = in_place ? "x" : ""});
        return g;
    };
    CHECK(pieces(chosen(128, false)).size() == 2);
    CHECK(pieces(chosen(128, true)).empty());
    CHECK(pieces(chosen(96, false)).empty());
}

TEST_CASE("the backwards of softmax and of rotary embeddings are one kernel each") {
    check_one_kernel({{"softmax", backward("softmax")},
                      {"log_softmax", backward("log_softmax")},
                      {"rope", backward("rope")},
                      {"rope_qk", backward("rope_qk")},
                      {"mrope", backward("mrope")}});
}

// The sum over rows is of the numbers that the first kernel leaves, a few for each block.
TEST_CASE("the logits are read once for a loss with z-loss, entropy and accuracy") {
    const Cost cost =
        cost_of(forward("cross_entropy", {{"z_loss", "1e-4"}, {"entropy", "true"}, {"accuracy", "true"}}));
    CHECK(cost.kernels == 2);
    CHECK(cost.bytes < kNumbersOfRows * cost.least_bytes);
}

TEST_CASE("the logits are read once and written once for a loss and its gradient in their place") {
    check_one_kernel({{"of each row", loss_and_gradient({{"reduction", "none"}, {"in_place", "true"}})}});
    // The rows' losses are summed in two steps behind the kernel: a block that kept their sum would have to stay.
    const Cost sum = cost_of(loss_and_gradient({{"reduction", "sum"}, {"in_place", "true"}}));
    CHECK(sum.kernels == 3);
    CHECK(sum.bytes < kNumbersOfRows * sum.least_bytes);
    // The gradient of a mean needs the number of rows that count, which is in the targets, before the logits are read.
    const Cost mean = cost_of(loss_and_gradient({{"in_place", "true"}}));
    CHECK(mean.kernels == 5);
    CHECK(mean.bytes < kNumbersOfRows * mean.least_bytes);
}

TEST_CASE("a norm's backward with its weights' gradients is a kernel over the rows, and one that adds their parts") {
    for (const std::string_view op : {"rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm"}) {
        CAPTURE(op);
        const Graph graph = backward(op);
        const Cost cost = cost_of(graph);
        CHECK(cost.kernels == 2);
        // The planner expects 256 parts of each weight's gradient, in f32, written and read.
        const double parts = 2.0 * 4 * 4096 * 256 * (op.ends_with("layer_norm") ? 2 : 1);
        CHECK(cost.bytes <= kNumbersOfRows * (cost.least_bytes + parts));
    }
}

// Whose sums are in the registers of a cluster, and whose rows in its shared memory, up to two sums of 200064 columns.
TEST_CASE("so it is of the widest rows, which a cluster of sixteen blocks holds") {
    for (const auto& [op, columns] : {std::pair("rms_norm", 262144), std::pair("add_rms_norm", 262144),
                                      std::pair("layer_norm", 200064), std::pair("add_layer_norm", 200064)}) {
        CAPTURE(op);
        const Graph norm = make_graph(op, {columns, f32, {}});
        const Cost cost = cost_of(differentiate(norm, trained_inputs(op, norm)).backward);
        CHECK(cost.kernels == 2);
        const double parts =
            2.0 * 4 * static_cast<double>(columns) * 256 * (std::string_view(op).ends_with("layer_norm") ? 2 : 1);
        CHECK(cost.bytes <= kNumbersOfRows * (cost.least_bytes + parts));
    }
}

// A weight for each group of columns, which are rows where they are normed: a thread stays with one group.
TEST_CASE(
    "the backward of norms of groups with weights of their own is a kernel over the rows, and one that adds parts") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis groups = g.columns("groups", 80);
    const Axis width = g.columns("width", 64);
    const Value x = cast(g.input("x", bf16, {tokens, groups, width}), f32);
    const Value gate = cast(g.input("gate", bf16, {tokens, groups, width}), f32);
    const Value n = x * rsqrt(mean(x * x, width) + 1e-5) * cast(g.input("w", bf16, {groups, width}), f32);
    g.output("y", cast(n * gate / (1 + exp(-gate)), bf16));
    const Cost cost = cost_of(differentiate(g, {"x", "gate", "w"}).backward);
    CHECK(cost.kernels == 2);
    CHECK(cost.bytes <= kNumbersOfRows * (cost.least_bytes + 2.0 * 4 * 80 * 64 * 256));
}

// A kernel has one row space, and the heads of queries and of keys are two (docs/experiments/planning.md).
TEST_CASE("norms and rotary embeddings of queries and keys are two kernels, and three backwards") {
    const Cost rotated = cost_of(forward("qk_norm_rope"));
    CHECK(rotated.kernels == 2);
    CHECK(rotated.bytes < 1.03 * rotated.least_bytes);  // cosines and sines are read by both
    const Cost turned_back = cost_of(backward("qk_norm_rope"));
    CHECK(turned_back.kernels == 3);  // the third adds the parts of both weights' gradients
    CHECK(turned_back.bytes < 1.05 * turned_back.least_bytes);
}

TEST_CASE("the maximum of each of a token's heads and its sum of exponentials are one kernel, their loss another") {
    const Graph heads = Graph::parse(
        "rows tokens\ncolumns heads = 4\ncolumns v = 32000\ninput x: bf16[tokens, heads, v]\n"
        "input y: i64[tokens, heads]\nz = cast(x, f32)\nm = max(z, v)\nl = m + log(sum(exp(z - m), v))\n"
        "output loss = sum(l - cast(index(x, tokens, heads, y), f32), heads)\n");
    CHECK(cost_of(heads).bytes < 1.01 * cost_of(heads).least_bytes);
}

TEST_CASE("what takes functions to make of a token's heads is stored once, not made for each of their columns") {
    const Graph mixture = Graph::parse(
        "rows tokens\ncolumns k = 4\ncolumns v = 8192\ninput x: bf16[tokens, k, v]\ninput s: f32[tokens, k]\n"
        "input d: f32[tokens, k]\noutput y = cast(exp(cast(x, f32) - log(s)) * (exp(d) / s), bf16)\n");
    const Program program = compile(*mixture.data(), find_target("sm_90a"));
    REQUIRE(program.steps.size() == 2);
    const GraphData& later = *program.steps[1].group.graph;
    for (const NodeId id : later.live_nodes()) {
        const Node& node = later.node(id);
        CHECK_FALSE((node.kind == NodeKind::kMap && (node.op == Op::kLog || node.op == Op::kDiv)));
    }
    // A number that the kernel's own reduction comes to is its rows' already.
    const Graph softmax = Graph::parse(
        "rows batch\ncolumns t = 1024\ncolumns d = 64\ninput x: bf16[batch, t, d]\ne = exp(cast(x, f32))\n"
        "output y = cast(e * (1 / sum(e, t)), bf16)\n");
    CHECK(compile(*softmax.data(), find_target("sm_90a")).steps.size() == 1);
}

TEST_CASE("a convolution's steps, which read rows of their own, are a thread's, and so are their weights' gradients") {
    const Graph steps = Graph::parse(
        "rows batch\nrows t\ncolumns k = 4\ncolumns c = 512\ninput x: bf16[batch, t, c]\ninput w: bf16[k, c]\n"
        "at = iota(t, i64) + cast(iota(k), i64) - 3\n"
        "output y = cast(sum(cast(index(x, batch, at, c), f32) * cast(w, f32), k), bf16)\n");
    const Program program = compile(*differentiate(steps).backward.data(), find_target("sm_90a"));
    const GraphData& rows = *program.steps[0].group.graph;
    for (const NodeId id : rows.live_nodes()) {
        if (rows.node(id).kind != NodeKind::kInput) CHECK(rows.column_count(rows.node(id)) <= 512);
    }
}
