// The composites by name: options, the canonical graphs, calls, and the page made from the rows.
#include "dsl/library/registry.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "dsl/graph.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

std::string refused_option(std::string_view op, const std::string& name, const std::string& value) {
    return refusal(ErrorCode::kInvalidArgument, [&] { make_graph(op, {64, bf16, {{name, value}}}); });
}

std::string description(const Graph& g, std::string_view input) {
    const auto id = g.data()->find_input(input);
    return id ? Value(g.data(), *id).description() : "absent";
}

}  // namespace

TEST_CASE("every row makes a graph with its operands and results under their names") {
    for (const CompositeInfo& row : composites()) {
        CAPTURE(row.name);
        const Graph g = make_graph(row.name, {.columns = 64, .dtype = bf16, .options = {}});
        for (const OperandInfo& operand : row.operands) {
            if (operand.required) CHECK(description(g, operand.name) != "absent");
        }
        CHECK(g.data()->outputs().size() <= row.results.size());
        for (std::size_t i = 0; i < g.data()->outputs().size(); ++i) {
            CHECK(g.data()->outputs()[i].name == row.results[i]);
        }
    }
}

TEST_CASE("names of rows are unique, and every choice of every option makes a graph") {
    std::set<std::string_view> names;
    for (const CompositeInfo& row : composites()) {
        CHECK(names.insert(row.name).second);
        for (const OptionInfo& option : row.options) {
            std::string word;
            for (const char c : std::string(option.choices) + " ") {
                if (c != ' ') {
                    word += c;
                    continue;
                }
                if (word.empty()) continue;
                CAPTURE(row.name);
                CAPTURE(word);
                OptionMap options = {{std::string(option.name), word}};
                if (row.name.ends_with("layer_norm") && word == "none") options["bias"] = "false";
                CHECK(make_graph(row.name, {64, bf16, options}).data()->outputs().size() >= 1);
                word.clear();
            }
        }
    }
}

TEST_CASE("an unknown op is refused and the known ones are named") {
    const std::string message = refusal(ErrorCode::kInvalidArgument, [] { make_graph("rmsnorm", {64, bf16, {}}); });
    CHECK(mentions(message, "unknown op 'rmsnorm'"));
    CHECK(mentions(message, "rms_norm, add_rms_norm"));
}

TEST_CASE("an unknown option or value is refused and the known ones are named") {
    CHECK(refused_option("rms_norm", "epsilon", "1e-6") ==
          "rms_norm: unknown option 'epsilon'; known: eps, offset, casting, weight");
    CHECK(refused_option("rms_norm", "casting", "qwen") ==
          "rms_norm: option casting is 'qwen'; give one of: llama gemma none");
    CHECK(refused_option("rms_norm", "eps", "small") == "rms_norm: option eps is 'small'; give a number");
    CHECK(refused_option("swiglu", "packed", "1") == "swiglu: option packed is '1'; give true or false");
    CHECK(refused_option("rope", "heads", "8.5") == "rope: option heads is '8.5'; give a 64-bit integer");
    CHECK(refused_option("dynamic_tanh", "beta", "1") == "dynamic_tanh: unknown option 'beta'; it has none here");
}

TEST_CASE("a NaN eps in an option is refused by the op, with its value") {
    const std::string message =
        refusal(ErrorCode::kInvalidGraph, [] { make_graph("rms_norm", {64, bf16, {{"eps", "nan"}}}); });
    CHECK(mentions(message, "rms_norm: eps is nan"));
}

TEST_CASE("columns and dtypes that make no graph are refused") {
    CHECK(mentions(refusal(ErrorCode::kInvalidArgument, [] { make_graph("silu", {0, bf16, {}}); }), "0 columns"));
    CHECK(mentions(refusal(ErrorCode::kInvalidArgument, [] { make_graph("silu", {8, i32, {}}); }), "dtype i32"));
    CHECK(mentions(refused_option("rope", "heads", "0"), "heads is 0"));
}

TEST_CASE("options choose the canonical graph's operands") {
    const Graph no_weight = make_graph("rms_norm", {64, bf16, {{"weight", "none"}}});
    CHECK(description(no_weight, "weight") == "absent");
    CHECK(description(make_graph("rms_norm", {64, bf16, {{"weight", "f32"}}}), "weight") == "f32[64]");
    CHECK(description(make_graph("swiglu", {64, bf16, {{"packed", "true"}}}), "gate_up") == "bf16[tokens, 128]");
    const Graph rope = make_graph("rope_qk", {64, bf16, {{"rotary", "32"}, {"table", "half"}, {"kv_heads", "2"}}});
    CHECK(description(rope, "k") == "bf16[tokens, kv_heads, 64]");
    CHECK(description(rope, "cos") == "bf16[tokens, 16]");
    CHECK(make_graph("cross_entropy", {64, bf16, {{"lse", "true"}}}).data()->outputs().size() == 2);
}

TEST_CASE("a run-time number makes no other graph") {
    const Graph small = make_graph("rms_norm", {64, bf16, {{"eps", "1e-6"}}});
    const Graph large = make_graph("rms_norm", {64, bf16, {{"eps", "1e-5"}}});
    const GraphData& a = *small.data();
    const GraphData& b = *large.data();
    REQUIRE(a.size() == b.size());
    for (NodeId id = 0; id < a.size(); ++id) {
        if (a.node(id).kind != NodeKind::kScalar) CHECK(a.node(id).value == b.node(id).value);
    }
}

TEST_CASE("a call works on the values it is given") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value a = g.input("a", bf16, {tokens, 64});
    const Value b = g.input("b", bf16, {tokens, 64});
    const std::vector<Value> results = call_composite("add_rms_norm", std::vector{a, b}, {{"casting", "gemma"}});
    REQUIRE(results.size() == 2);
    CHECK(results[1].description() == "bf16[tokens, 64]");
}

TEST_CASE("a call refuses a wrong number of operands and options of the canonical graph") {
    Graph g;
    const Value a = g.input("a", bf16, {g.rows("tokens"), 64});
    CHECK(refusal(ErrorCode::kInvalidGraph, [&] { call_composite("add_rms_norm", std::vector{a}, {}); }) ==
          "add_rms_norm: 1 operands given; it takes x, residual, weight, the first 2 of them required");
    CHECK(mentions(
        refusal(ErrorCode::kInvalidArgument, [&] { call_composite("rms_norm", std::vector{a}, {{"weight", "none"}}); }),
        "unknown option 'weight'"));
}

// What the page should be is left beside the build, to be copied over it.
TEST_CASE("docs/ops.md is what the rows give") {
    std::ifstream file(ROWJIT_SOURCE_DIR "/docs/ops.md");
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const bool same = text == ops_markdown();
    if (!same) std::ofstream(ROWJIT_BINARY_DIR "/ops.md") << ops_markdown();
    CHECK_MESSAGE(same, "copy " ROWJIT_BINARY_DIR "/ops.md over docs/ops.md");
}
