// The two graphs of a derivative: names, what is saved, what is refused, and the derivatives where a function has none.
#include "rowjit/gradient.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "dsl/interpret.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"
#include "tests/support/random_graph.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

using Doubles = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

Graph op_graph(std::string_view op, const OptionMap& options = {}) {
    return make_graph(op, {.columns = 8, .dtype = bf16, .options = options});
}

std::vector<std::string> input_names(const Graph& graph) {
    std::vector<std::string> names;
    const GraphData& data = *graph.data();
    for (const NodeId id : data.live_nodes()) {
        if (data.node(id).kind == NodeKind::kInput) names.push_back(data.node(id).name);
    }
    return names;
}

std::vector<std::string> output_names(const Graph& graph) {
    std::vector<std::string> names;
    for (const OutputInfo& output : graph.data()->outputs()) names.push_back(output.name);
    return names;
}

std::vector<std::string> saved_names(const Differentiated& both) {
    std::vector<std::string> names;
    for (const SavedValue& saved : both.saved) names.push_back(saved.name);
    return names;
}

// d_x of y = f(x) for one row of f32, in eager rounding, the cotangent all 1.
Doubles d_x(const Doubles& x, const std::function<Value(Value)>& f) {
    Graph g;
    const auto columns = static_cast<std::int64_t>(x.size());
    g.output("y", f(g.input("x", f32, {columns})));
    const Graph backward = gradient(g, {"x"}, {.unit_cotangent = true});
    return interpret(*backward.data(), {{{"x", {f32, {columns}, x}}}, {}, {}}, Rounding::kEager).at("d_x").values;
}

// d_logits of the summed cross-entropy of {rows, 4} logits.
Doubles d_logits(const Doubles& logits, const Doubles& target) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = g.input("logits", f32, {tokens, 4});
    g.output("loss", cross_entropy(x, g.input("target", i64, {tokens}), {.reduction = Reduction::kSum}).loss);
    const auto rows = static_cast<std::int64_t>(target.size());
    const Bindings bindings = {
        {{"logits", {f32, {rows, 4}, logits}}, {"target", {i64, {rows}, target}}}, {}, {{"tokens", rows}}};
    const Graph backward = gradient(g, {}, {.unit_cotangent = true});
    return interpret(*backward.data(), bindings, Rounding::kEager).at("d_logits").values;
}

bool same(const Doubles& a, const Doubles& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (!(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])))) return false;
    }
    return true;
}

}  // namespace

TEST_CASE("a backward takes d_<output> and gives d_<input>, in the dtype and axes of each") {
    const Graph backward = gradient(op_graph("add_rms_norm"), {"x", "weight"});
    CHECK(output_names(backward) == std::vector<std::string>{"d_x", "d_weight"});
    const GraphData& data = *backward.data();
    CHECK(Value(backward.data(), *data.find_input("d_sum")).description() == "bf16[tokens, 8]");
    CHECK(Value(backward.data(), data.outputs()[1].node).description() == "bf16[8]");
}

TEST_CASE("an RMS norm saves its reciprocal root and reads its input again") {
    const Differentiated both = differentiate(op_graph("rms_norm"));
    CHECK(saved_names(both) == std::vector<std::string>{"saved_r"});
    CHECK(both.saved[0].bytes_per_row == 4);
    CHECK(output_names(both.forward) == std::vector<std::string>{"y", "saved_r"});
    CHECK(input_names(both.backward) == std::vector<std::string>{"x", "weight", "saved_r", "d_y"});
}

TEST_CASE("layer norm saves mean and rstd, softmax and cross-entropy the maximum and the sum") {
    CHECK(saved_names(differentiate(op_graph("layer_norm"))) == std::vector<std::string>{"saved_mean", "saved_rstd"});
    CHECK(saved_names(differentiate(op_graph("softmax"))) ==
          std::vector<std::string>{"saved_row_max", "saved_row_sum"});
    CHECK(saved_names(differentiate(op_graph("cross_entropy", {{"reduction", "sum"}}))) ==
          std::vector<std::string>{"saved_row_max", "saved_row_sum"});
}

TEST_CASE("a value that is an output already is not stored twice") {
    const Differentiated both = differentiate(op_graph("add_rms_norm"));
    CHECK(saved_names(both) == std::vector<std::string>{"sum", "saved_r"});
    CHECK(both.saved[0].is_output);
    CHECK(output_names(both.forward) == std::vector<std::string>{"sum", "y", "saved_r"});
}

TEST_CASE("gated activations and rotary embeddings save nothing") {
    for (const char* op : {"silu", "gelu", "relu2", "swiglu", "geglu", "rope", "rope_qk"}) {
        CAPTURE(op);
        CHECK(differentiate(op_graph(op)).saved.empty());
    }
    CHECK(input_names(differentiate(op_graph("rope"), {"x"}).backward) ==
          std::vector<std::string>{"cos", "sin", "d_y"});
}

TEST_CASE("the backward of rotary embeddings leaves the angles' tables without gradients unless they are asked for") {
    const Graph g = op_graph("rope_qk");
    CHECK(trained_inputs("rope_qk", g) == std::vector<std::string>{"q", "k"});
    CHECK(trained_inputs("swiglu", op_graph("swiglu", {{"packed", "true"}})) == std::vector<std::string>{"gate_up"});
    CHECK(output_names(gradient(g, {"cos"})) == std::vector<std::string>{"d_cos"});
}

TEST_CASE("what is saved and what is computed again can be forced by label") {
    CHECK(saved_names(differentiate(op_graph("swiglu"), {}, {.save = {"activated"}})) ==
          std::vector<std::string>{"saved_activated"});
    const Differentiated again = differentiate(op_graph("rms_norm"), {}, {.recompute = {"r", "mean_square"}});
    CHECK(again.saved.size() == 1);  // the sum of squares, which has no label
    CHECK(again.saved[0].name == "saved");
}

TEST_CASE("an unknown label, input or output is refused and those that are there are named") {
    const Graph g = op_graph("rms_norm");
    const auto code = ErrorCode::kInvalidArgument;
    CHECK(mentions(refusal(code, [&] { differentiate(g, {}, {.save = {"rstd"}}); }), "mean_square, normed, r"));
    CHECK(mentions(refusal(code, [&] { gradient(g, {"w"}); }), "x, weight"));
    CHECK(mentions(refusal(code, [&] { gradient(g, {}, {.of = {"z"}}); }), "those are y"));
    CHECK(mentions(refusal(code, [&] { gradient(op_graph("cross_entropy"), {"target"}); }), "only floats have"));
    CHECK(mentions(refusal(code, [&] { differentiate(g, {}, {.save = {"r"}, .recompute = {"r"}}); }), "both"));
}

TEST_CASE("an input that the forward overwrites cannot be read by the backward") {
    Graph g;
    const Value x = g.input("x", f32, {4});
    g.output("y", exp(x) * x, {.alias = "x"});
    CHECK(mentions(refusal(ErrorCode::kUnsupported, [&] { differentiate(g); }), "overwrites input 'x'"));
}

TEST_CASE("rows of two axes, or of each column, that are gathered by data have no gradient, and say so") {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis tokens = g.rows("tokens");
    const Axis columns = g.columns(8);
    const Axis taken = g.rows("taken");
    const auto at = [&](std::string_view name) { return Coord(g.input(name, i64, {taken})); };
    g.output("y", index(g.input("x", f32, {batch, tokens, columns}), {at("of"), at("where"), Coord(columns)}));
    CHECK(mentions(refusal(ErrorCode::kUnsupported, [&] { gradient(g); }), "along none of its columns"));
    const Graph apart = Graph::parse(
        "rows tokens\nrows slots\ncolumns d = 4\ninput h: f32[slots, d]\ninput ids: i64[tokens, d]\n"
        "output y = index(h, ids, d)\n");
    CHECK(mentions(refusal(ErrorCode::kUnsupported, [&] { gradient(apart); }), "along none of its columns"));
}

TEST_CASE("a window's axis that would stand behind the element's in what flows back is refused by the index's name") {
    const Graph g = Graph::parse(
        "rows tokens\ncolumns w = 50\ncolumns o = 2\ncolumns k = 40\ninput x: f32[tokens, w]\n"
        "output y = sum(exp(index(x, tokens, o * 4 + k)), k)\n");
    CHECK(mentions(refusal(ErrorCode::kUnsupported, [&] { gradient(g); }), "gradient of index(x: f32[tokens, w])"));
}

TEST_CASE("what is taken at the same ids is put in order once, also where the order is given") {
    const Graph g = Graph::parse(
        "rows edges\nrows nodes\ncolumns d = 4\ninput ids: i64[edges]\ninput w: f32[nodes]\ninput x: f32[nodes, d]\n"
        "output y = index(x, ids, d) * index(w, ids)\n");
    const auto orders = [](const Graph& graph) {
        return std::ranges::count_if(graph.data()->live_nodes(),
                                     [&](NodeId id) { return graph.data()->node(id).kind == NodeKind::kOrder; });
    };
    CHECK(orders(gradient(g)) == 1);
    const Graph given = gradient(g, {}, {.sorted = {"ids"}});
    CHECK(orders(given) == 0);
    CHECK(output_names(given) == std::vector<std::string>{"d_w", "d_x"});
    CHECK(given.data()->find_input("ids_order").has_value());
}

TEST_CASE("a backward with saved values has the bits of the one that computes everything again") {
    for (const CompositeInfo& row : composites()) {
        CAPTURE(row.name);
        const Graph g = make_graph(row.name, {.columns = 32, .dtype = bf16, .options = {}});
        const std::vector<std::string> trained = trained_inputs(row.name, g);
        if (trained.empty()) continue;
        const Differentiated both = differentiate(g, trained);
        const Bindings with_saved = random_inputs(both, {{"tokens", 3}});
        const Graph whole = gradient(g, trained);
        Bindings bindings = random_inputs(*whole.data(), {{"tokens", 3}});
        // What the backward alone does not bound, as an embedding's ids, has been drawn for the forward.
        for (auto& [name, tensor] : bindings.tensors) {
            const auto found = with_saved.tensors.find(name);
            if (found != with_saved.tensors.end()) tensor = found->second;
        }
        const Tensors expected = interpret(*whole.data(), bindings, Rounding::kEager);
        for (const auto& [name, tensor] : interpret(*both.backward.data(), with_saved, Rounding::kEager)) {
            CHECK(same(tensor.values, expected.at(name).values));
        }
    }
}

TEST_CASE("backwards are printed and parsed as they are") {
    for (const CompositeInfo& row : composites()) {
        const Graph graph = make_graph(row.name, {.columns = 32, .dtype = bf16, .options = {}});
        if (trained_inputs(row.name, graph).empty()) continue;
        const std::string text = gradient(graph).print();
        CHECK(Graph::parse(text).print() == text);
    }
    for (std::uint64_t seed = 1; seed < 100; ++seed) {
        CAPTURE(seed);
        try {
            const std::string text = gradient(random_graph(seed)).print();
            CHECK(Graph::parse(text).print() == text);
        } catch (const Error& error) {
            CHECK_MESSAGE(error.code() == ErrorCode::kUnsupported, std::string(error.what()));
        }
    }
}

TEST_CASE("a joint graph gives the loss and its gradient, with the cotangent given or 1") {
    const Graph loss = op_graph("cross_entropy");
    const Graph given = gradient(loss, {"logits"}, {.joint = true});
    CHECK(output_names(given) == std::vector<std::string>{"loss", "d_logits"});
    CHECK(given.data()->find_input("d_loss").has_value());
    const Graph unit = gradient(loss, {"logits"}, {.joint = true, .unit_cotangent = true});
    CHECK_FALSE(unit.data()->find_input("d_loss").has_value());
}

TEST_CASE("a gradient may overwrite its input, and only one that is asked for") {
    const Graph loss = op_graph("cross_entropy");
    const Graph joint = gradient(loss, {"logits"}, {.joint = true, .in_place = {"logits"}, .unit_cotangent = true});
    CHECK(joint.data()->outputs()[1].alias == "logits");
    CHECK(mentions(refusal(ErrorCode::kInvalidArgument, [&] { gradient(loss, {"logits"}, {.in_place = {"target"}}); }),
                   "'target' is to be overwritten"));
}

TEST_CASE("a gradient may overwrite a value that the forward saves, and only one that the backward is given") {
    const Graph loss = make_graph("fused_linear_cross_entropy", {.columns = 8, .dtype = bf16, .options = {}});
    const std::vector<std::string> wanted = {"weight", "logits"};
    const Differentiated both = differentiate(loss, wanted, {.save = {"logits"}, .in_place = {"logits"}});
    CHECK(output_names(both.backward) == std::vector<std::string>{"d_weight", "d_logits"});
    CHECK(both.backward.data()->outputs()[1].alias == "saved_logits");
    const auto code = ErrorCode::kInvalidArgument;
    CHECK(mentions(refusal(code, [&] { gradient(loss, wanted, {.in_place = {"logits"}}); }), "is not given it"));
    CHECK(mentions(refusal(code, [&] { gradient(loss, {"logit"}); }), "no value alone has it as its label"));
}

TEST_CASE("a gradient that is added to is that of a product or a sum before it was rounded") {
    for (const std::string_view op : {"fused_linear_cross_entropy", "rms_norm"}) {
        CAPTURE(op);
        const Graph graph = make_graph(op, {.columns = 8, .dtype = bf16, .options = {}});
        const Graph derived = gradient(graph, {"weight"}, {.accumulate = {"weight"}});
        const GraphData& backward = *derived.data();
        const OutputInfo& added = backward.outputs()[0];
        CHECK(added.accumulate);
        CHECK(backward.node(added.node).dtype == f32);
        CHECK(backward.node(added.node).kind != NodeKind::kCast);
    }
}

TEST_CASE("the gradient of a gradient is the second derivative") {
    Graph g;
    g.output("y", exp(g.input("x", f64, {1}) * 2.0));
    const Graph second = gradient(gradient(g, {}, {.unit_cotangent = true}), {}, {.unit_cotangent = true});
    const Tensors result = interpret(*second.data(), {{{"x", {f64, {1}, {0.5}}}}, {}, {}}, Rounding::kExact);
    CHECK(result.at("d_x").values[0] == doctest::Approx(4 * std::exp(1.0)));
}

TEST_CASE("where a function has no derivative, PyTorch's is taken") {
    CHECK(d_x({-2, 0, 3}, [](const Value& x) { return abs(x); }) == Doubles{-1, 0, 1});
    CHECK(d_x({-1, 0, 1}, [](const Value& x) { return maximum(x, 0.0); }) == Doubles{0, 0.5, 1});
    CHECK(d_x({0, 4}, [](const Value& x) { return sqrt(x); }) == Doubles{kInfinity, 0.25});
    CHECK(d_x({0, 2}, [](const Value& x) { return log(x); }) == Doubles{kInfinity, 0.5});
    CHECK(d_x({0, 4}, [](const Value& x) { return rsqrt(x); }) == Doubles{-kInfinity, -0.0625});
    CHECK(d_x({1.5, 2}, [](const Value& x) { return floor(x); }) == Doubles{0, 0});
    CHECK(d_x({3, 5, 5, 1}, [](const Value& x) { return max(x); }) == Doubles{0, 0.5, 0.5, 0});
    CHECK(same(d_x({3, kNan}, [](const Value& x) { return max(x); }), {kNan, kNan}));
}

TEST_CASE("gated activations have derivatives where their exponential overflows") {
    CHECK(d_x({-1e30, -200, -89, 200}, silu) == Doubles{0, 0, 0, 1});
    CHECK(d_x({-1e30, -200, -89, 200}, [](Value x) { return 1.0 / (exp(-x) + 1.0); }) == Doubles{0, 0, 0, 0});
}

TEST_CASE("nothing flows through detach") {
    CHECK(d_x({2, 3}, [](const Value& x) { return x * detach(x); }) == Doubles{2, 3});
}

TEST_CASE("nothing flows back to an extremum that outputs do not depend on, nor from a variance to its mean") {
    const auto reductions = [](const std::string& text) {
        const Graph backward = gradient(Graph::parse("rows tokens\ninput x: f32[tokens, 8]\n" + text), {"x"});
        const GraphData& data = *backward.data();
        const std::vector<NodeId> live = data.live_nodes();
        return std::count_if(live.begin(), live.end(),
                             [&](NodeId id) { return data.node(id).kind == NodeKind::kReduce; });
    };
    // The maximum and the sum, and the sum of the derivative.
    CHECK(reductions("e = exp(x - max(x))\noutput y = e / sum(e)\n") == 3);
    CHECK(reductions("m = max(x)\noutput y = m + log(sum(exp(x - m)))\n") == 2);
    // Beside the maximum, how many elements are equal to it and what their share is.
    CHECK(reductions("output y = exp(x - max(x))\n") == 3);
    CHECK(reductions("m = max(x)\ne = exp(x - m)\noutput y = e / detach(sum(e))\n") > 3);
    // Mean and variance, and one sum for each.
    CHECK(reductions("d = x - mean(x)\noutput y = d * rsqrt(mean(d * d) + 0.1)\n") == 4);
}

TEST_CASE("an extremum that computed elements are compared with is computed again, or they are saved with it") {
    const auto saved = [](const std::string& elements, const GradientOptions& options = {}) {
        const std::string head = "rows tokens\ninput x: bf16[tokens, 8]\ninput w: bf16[tokens, 8]\n";
        const std::string tail = "a = max(abs(h))\noutput y = cast(h / a, bf16)\n";
        return saved_names(differentiate(Graph::parse(head + elements + tail), {}, options));
    };
    CHECK(saved("h = cast(x, f32)\n") == std::vector<std::string>{"saved_a"});
    CHECK(saved("h = cast(x * w, f32)\n").empty());
    CHECK(saved("h = cast(x, f32) * cast(w, f32)\n", {.save = {"a"}}).size() == 2);
}

TEST_CASE("a masked value gets exactly 0, whatever it is") {
    const auto masked = [](const Value& x) {
        const Value keep = x < 100.0;
        return log(select(keep, x, Graph(x.graph()).constant(f32, 1.0)));
    };
    CHECK(d_x({2, kInfinity, kNan}, masked) == Doubles{0.5, 0, 0});
}

TEST_CASE("cross-entropy's gradient is softmax less the target, 0 for ignored rows and masked logits") {
    const Doubles d = d_logits({0, 0, -kInfinity, -kInfinity, 1, 2, 3, 4}, {1, -100});
    CHECK(d == Doubles{0.5, -0.5, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("a row of -inf has a NaN gradient, as in PyTorch") {
    const Doubles d = d_logits({-kInfinity, -kInfinity, -kInfinity, -kInfinity}, {1});
    CHECK(same(d, {kNan, kNan, kNan, kNan}));
}

TEST_CASE("nothing flows through a fixpoint, and a step of Newton's behind it gives the root's derivative") {
    // The square root of Σ x by Heron's step.
    const auto heron = [](const Value& total, const Value& root) { return (root + total / root) * 0.5; };
    const auto root_of = [&](const Value& x, bool once_more) {
        const Value total = sum(x);
        const Value root = fixpoint(total, [&](const Value& state) { return heron(total, state); }, 30);
        return x * (once_more ? heron(total, root) : root);
    };
    CHECK(d_x({1, 3, 5}, [&](const Value& x) { return root_of(x, false); }) == Doubles{3, 3, 3});
    // d Σ x·√(Σ x) = √(Σ x) + Σ x / (2 √(Σ x))
    CHECK(d_x({1, 3, 5}, [&](const Value& x) { return root_of(x, true); }) == Doubles{4.5, 4.5, 4.5});
}

TEST_CASE("sparsemax saves a number of each row, and its backward repeats no steps") {
    const Differentiated both = differentiate(make_graph("sparsemax", {.columns = 4096}));
    for (const SavedValue& saved : both.saved) CHECK(saved.bytes_per_row <= 4);
    CHECK(both.forward.print().find("fix(") != std::string::npos);
    CHECK(both.backward.print().find("fix(") == std::string::npos);
}

TEST_CASE("what flows back to the sums of a divergence's softmaxes is its value, and 1") {
    const Graph graph = Graph::parse(
        "rows n\ninput s: f32[n, 16]\ninput t: f32[n, 16]\nscalar weight: f32 = 2\nms = max(s)\nmt = max(t)\n"
        "ls = ms + log(sum(exp(s - ms)))\nlt = mt + log(sum(exp(t - mt)))\n"
        "output loss = weight * sum(exp(t - lt) * ((t - lt) - (s - ls)))\n");
    const std::string backward = differentiate(graph, {"s", "t"}).backward.print();
    CHECK_MESSAGE(backward.find("sum(") == std::string::npos, backward);
}

TEST_CASE("a table that is read at a column's place and a row's number is read back at each row's columns") {
    const Graph graph = Graph::parse(
        "rows heads = 2\nrows q\ncolumns k = 8\ninput s: f32[heads, q, k]\ninput table: f32[heads, 16]\n"
        "i = cast(iota(q), i64)\nj = cast(iota(k), i64)\noutput y = s * index(table, heads, j - i + 7)\n");
    const std::string backward = gradient(graph, {"table"}).print();
    CHECK_MESSAGE(backward.find("==") == std::string::npos, backward);  // no place is looked for
    CHECK_MESSAGE(backward.find("heads, q, @16 + i - 7)") != std::string::npos, backward);
    const Graph square = Graph::parse(
        "rows q\ncolumns k = 8\ninput s: f32[q, k]\ninput table: f32[64]\nj = iota(k)\n"
        "at = j * j + cast(iota(q), i32) * 0\noutput y = s * index(table, at)\n");
    CHECK_NOTHROW(gradient(square, {"table"}));
}
