#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "dsl/graph.h"
#include "dsl/library/registry.h"
#include "rowjit/coord.h"
#include "rowjit/graph.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

constexpr std::string_view kRmsNorm = R"(# RMS norm, Llama's rounding
rows tokens
rows heads = 32
columns d = 128
input x: bf16[tokens, 4096]
input w: bf16[4096] strides(2)
scalar eps: f32 = 1e-6
h = cast(x, f32)
y = cast(h * rsqrt(mean(h * h) + eps), bf16) * w
output y
)";

constexpr std::string_view kMixed = R"(rows tokens
rows heads = 4
columns d = 128
input q: bf16[tokens, heads, d]
input x: f32[tokens, 4096]
input target: i64[tokens]
input keep: bool[tokens]
partner = index(q, tokens, heads, (d + 64) % 128)
picked = select(keep && target != -100, index(x, tokens, target), 0)
masked = select(iota(4096) < 7, x, -inf)
e = exp(masked - max(masked))
output rotated = select(iota(d) < 64, -partner, partner) alias(q)
output loss = sum(picked, tokens) / extent(tokens, f32) accumulate
output p = e / max_sum_exp(masked, component=1) strides(2)
)";

std::string refused(std::string_view text, ErrorCode code = ErrorCode::kParse) {
    return refusal(code, [&] { Graph::parse(text, "file.rj"); });
}

// A text of one expression y over x, u: f32[n, 4], b: bool[n, 4] and t: i64[n].
std::string with_expression(std::string_view expression) {
    return "rows n\ninput x: f32[n, 4]\ninput u: f32[n, 4]\ninput b: bool[n, 4]\ninput t: i64[n]\noutput y = " +
           std::string(expression) + "\n";
}

std::string printed(std::string_view expression) { return Graph::parse(with_expression(expression)).print(); }

std::uint64_t next_random(std::uint64_t& state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

std::string mutated(std::string text, std::uint64_t& state) {
    static const std::vector<std::string> kPieces = {"(",
                                                     ")",
                                                     "[",
                                                     "]",
                                                     ",",
                                                     "=",
                                                     "-",
                                                     "*",
                                                     "\n",
                                                     "@",
                                                     "9223372036854775807",
                                                     "1e308",
                                                     "index",
                                                     "x",
                                                     "d",
                                                     "inf",
                                                     "nan",
                                                     "%",
                                                     "const(",
                                                     "cast(",
                                                     "max(",
                                                     "sum(",
                                                     "component=",
                                                     "\"",
                                                     "alias",
                                                     "rows",
                                                     "!",
                                                     "4096",
                                                     "/",
                                                     "0",
                                                     "output",
                                                     "strides(",
                                                     "input",
                                                     "rms_norm(",
                                                     "iota(",
                                                     "\xFF"};
    const std::uint64_t edits = 1 + next_random(state) % 4;
    for (std::uint64_t i = 0; i < edits; ++i) {
        const std::size_t where = next_random(state) % (text.size() + 1);
        const std::size_t length = std::min<std::size_t>(next_random(state) % 8, text.size() - where);
        const std::string& piece = kPieces[next_random(state) % kPieces.size()];
        switch (next_random(state) % 4) {
            case 0: text.erase(where, length); break;
            case 1: text.insert(where, piece); break;
            case 2: text.replace(where, length, piece); break;
            default: text.insert(next_random(state) % (text.size() + 1), std::string(text.substr(where, length)));
        }
    }
    return text;
}

}  // namespace

TEST_CASE("no operation is called what a reduction is") {
    for (const CompositeInfo& operation : composites())
        CHECK_MESSAGE(!find_monoid(operation.name).has_value(), operation.name);
}

TEST_CASE("a written graph is the graph that the expression functions build") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    g.rows("heads", 32);
    g.columns("d", 128);
    const Value x = g.input("x", bf16, {tokens, 4096});
    const Value w = g.input("w", bf16, {4096}, {{2}});
    const Value eps = g.scalar("eps", f32, 1e-6);
    const Value h = cast(x, f32).named("h");
    g.output("y", cast(h * rsqrt(mean(h * h) + eps), bf16) * w);
    CHECK(Graph::parse(kRmsNorm).print() == g.print());
}

TEST_CASE("a graph prints a node a line, named by its labels") {
    CHECK(Graph::parse(kRmsNorm).print() == R"(rows tokens
rows heads = 32
columns d = 128
input x: bf16[tokens, 4096]
input w: bf16[4096] strides(2)
scalar eps: f32 = 1e-06
h = cast(x, f32)
v1 = h * h
v2 = sum(v1)
v3 = v2 / 4096
v4 = v3 + eps
v5 = rsqrt(v4)
v6 = h * v5
v7 = cast(v6, bf16)
y = v7 * w
output y
)");
}

TEST_CASE("what is printed reads back as the same graph") {
    for (const std::string_view text : {kRmsNorm, kMixed}) {
        const std::string once = Graph::parse(text).print();
        CHECK(Graph::parse(once).print() == once);
    }
}

TEST_CASE("a number that printing gave a value is no label when it is read") {
    const Graph graph = Graph::parse("rows tokens\ninput x: f32[tokens, 8]\nv2 = x + 1\ny = v2 * v2\noutput y\n");
    CHECK(graph.print().find("v1 = x + 1\ny = v1 * v1") != std::string::npos);
}

TEST_CASE("every composite operation's graph survives its text form") {
    for (const CompositeInfo& row : composites()) {
        CAPTURE(row.name);
        const std::string once = make_graph(row.name, {.columns = 64}).print();
        CHECK(Graph::parse(once).print() == once);
    }
}

TEST_CASE("the documentation's examples are read") {
    std::ifstream file(std::string(ROWJIT_SOURCE_DIR) + "/docs/text-form.md");
    const std::string page{std::istreambuf_iterator<char>(file), {}};
    int examples = 0;
    for (std::size_t at = page.find("```rj\n"); at != std::string::npos; at = page.find("```rj\n", at + 1)) {
        const std::size_t begin = at + 6;
        const std::string example = page.substr(begin, page.find("```", begin) - begin);
        CHECK(Graph::parse(example, "docs/text-form.md").data()->outputs().size() > 0);
        ++examples;
    }
    CHECK(examples == 3);
}

TEST_CASE("operators bind as in C") {
    CHECK(printed("x + u * x - x / u") == printed("(x + (u * x)) - (x / u)"));
    CHECK(printed("x - u - x") == printed("(x - u) - x"));
    CHECK(printed("select(x < u + x && b || !b, x, u)") == printed("select(((x < (u + x)) && b) || (!b), x, u)"));
    CHECK(printed("-x * u") == printed("(-x) * u"));
    CHECK(printed("select(x < u == b, x, u)") == printed("select((x < u) == b, x, u)"));
}

TEST_CASE("a bare number takes the other operand's dtype and numbers alone are computed") {
    CHECK(printed("x * (1 / 128 + 2 * 3)") == printed("x * const(6.0078125, f32)"));
    CHECK(printed("maximum(0, x)") == printed("maximum(const(0, f32), x)"));
    CHECK(printed("x - -1.5") == printed("x - const(-1.5, f32)"));
    CHECK(printed("fma(x, 2, u)") == printed("fma(x, const(2, f32), u)"));
    CHECK(mentions(refused(with_expression("3")), "a number that stands alone has no dtype"));
    CHECK(mentions(refused(with_expression("exp(3)")), "exp of bare numbers has no dtype"));
    CHECK(mentions(refused(with_expression("select(1, x, u)"), ErrorCode::kInvalidGraph), "where a bool is needed"));
}

TEST_CASE("doubles survive printing exactly") {
    Graph g;
    const Value x = g.input("x", f64, {4});
    const double values[] = {0.1,
                             -0.0,
                             5e-324,
                             1.7976931348623157e308,
                             1.0 / 3,
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity()};
    Value y = x;
    for (const double value : values) y = y + value;
    y = y + std::numeric_limits<double>::quiet_NaN();
    g.output("y", y);
    const Graph parsed = Graph::parse(g.print());
    std::size_t found = 0;
    for (const NodeId id : parsed.data()->live_nodes()) {
        const Node& node = parsed.data()->node(id);
        if (node.kind != NodeKind::kConst) continue;
        if (found < std::size(values))
            CHECK(std::bit_cast<std::uint64_t>(node.value) == std::bit_cast<std::uint64_t>(values[found]));
        if (found == std::size(values)) CHECK(std::isnan(node.value));
        ++found;
    }
    CHECK(found == std::size(values) + 1);
}

TEST_CASE("names that collide are told apart") {
    Graph g;
    const Axis d = g.columns("d", 4);
    const Value data = g.input("d", i32, {g.rows("n")});  // a value named as an axis is
    const Value x = g.input("v1", f32, {g.rows("n"), d});
    const Value a = (x + 1.0).named("h");
    const Value b = (a + 1.0).named("h");
    const Value c = index(b, d, (Coord(d) + Coord(data)) % 4);
    g.output("h", c);
    const std::string once = g.print();
    CHECK(mentions(once, "h = v1 + 1\nv2 = h + 1\nv3 = index(v2, n, ((@d + d) % 4))\noutput h = v3\n"));
    CHECK(Graph::parse(once).print() == once);
    CHECK(Graph::parse(once).data()->live_nodes().size() == g.data()->live_nodes().size());
}

TEST_CASE("anonymous axes are written by their extent, with '@' in coordinates") {
    const std::string text = "rows n\ninput x: f32[n, 6]\noutput y = index(x, n, (@6 + 3) % 6) + sum(x, 6) * x\n";
    CHECK(mentions(Graph::parse(text).print(), "index(x, n, ((@6 + 3) % 6))"));
}

TEST_CASE("several results of a composite operation take several names") {
    const Graph g = Graph::parse(R"(
        rows tokens
        input x: bf16[tokens, 64]
        input r: bf16[tokens, 64]
        input w: bf16[64]
        total, y = add_rms_norm(x, r, w, eps=1e-5, casting="llama")
        z = rms_norm(y, w, casting=gemma, offset=1)
        output total
        output z)");
    CHECK(mentions(g.print(), "scalar eps: f32 = 1e-05\n"));
    CHECK(mentions(g.print(), "sum = x + r\n"));  // the operation's own label stands
    CHECK(mentions(g.print(), "output total = sum\n"));
    CHECK(mentions(refused(with_expression("rms_norm(x, color=3)"), ErrorCode::kInvalidArgument), "file.rj:6:12: "));
}

TEST_CASE("a refusal opens with its place and says what was expected") {
    CHECK(refused("rows\n") == "file.rj:1:5: found the end of the line; expected the axis's name: rows tokens");
    CHECK(refused("input x: bf17[4]\n") ==
          "file.rj:1:10: unknown dtype 'bf17'; use one of bool, i32, i64, bf16, f16, f32, f64, i8, e4m3, e5m2");
    CHECK(mentions(refused("input x: f32[tokens]"), "file.rj:1:14: found 'tokens'; no axis of that name"));
    CHECK(mentions(refused("x + 1"), "file.rj:1:1: found 'x'; a line is 'name = expression'"));
    CHECK(mentions(refused(with_expression("x u")), "file.rj:6:14: found 'u'; expected the end of the line"));
    CHECK(mentions(refused(with_expression("(x")), "expected ')'"));
    CHECK(mentions(refused(with_expression("missing + x")), "found 'missing'; no value of that name"));
    CHECK(mentions(refused(with_expression("gaussian(x)")), "found 'gaussian'; no primitive, reduction or composite"));
    CHECK(mentions(refused(with_expression("clamp(x, 0, 1)")), "; write minimum(maximum(x, low), high)"));
    for (const char* written :
         {"minimum(maximum(x, 0), 1)", "1 / (1 + exp(-x))", "maximum(x, 0) + log1p(exp(-abs(x)))"})
        CHECK_NOTHROW(Graph::parse(with_expression(written)));
    CHECK(mentions(refused(with_expression("x[n, 3]")), "found '['; an input is read at coordinates by index(x, …)"));
    CHECK(mentions(refused(with_expression("exp(x, u)")), "exp takes 1 operands, 2 given"));
    CHECK(mentions(refused(with_expression("max(x, u)")), "of two values write maximum"));
    CHECK(mentions(refused(with_expression("index(x, n, t * t)")), "one side must be a constant"));
    CHECK(mentions(refused("a = 1\na = 2"), "has no dtype"));
    CHECK(mentions(refused("input x: f32[4]\nx = x + 1"), "file.rj:2:1: found 'x'; a value of that name is defined"));
    CHECK(mentions(refused("input x: f32[4] strides(x)"), "expected a stride, a whole number"));
    CHECK(mentions(refused("scalar s: f32"), "expected '=' and the scalar's default"));
    CHECK(mentions(refused("rows n = 1.5"), "expected the axis's extent, a whole number"));
}

TEST_CASE("characters and numbers that cannot be read are refused by place") {
    CHECK(mentions(refused("rows n\n  $"), "file.rj:2:3: '$' is no part of the language"));
    CHECK(mentions(refused("rows \xC3\xA9"), "file.rj:1:6: byte 0xC3 stands outside a comment"));
    CHECK(mentions(refused("rows n = 1e999"), "outside the range of a double"));
    CHECK(mentions(refused("rows n = 12abc"), "a number runs into a letter"));
    CHECK(mentions(refused("rows n = .x"), "expected a digit"));
    CHECK(mentions(refused("rows n = \"x"), "no closing"));
}

TEST_CASE("the graph's own refusals get the place of the operator") {
    const std::string message = refused("input x: f32[4]\ninput u: bf16[4]\ny = x + u\n", ErrorCode::kInvalidGraph);
    CHECK(message == "file.rj:3:7: add(x: f32[4], u: bf16[4]): the dtypes differ; cast one operand");
    CHECK(mentions(refused(with_expression("index(x, n, @4 + 1)"), ErrorCode::kInvalidGraph), "file.rj:6:12: index("));
}

TEST_CASE("text nested beyond reason is refused, not recursed into") {
    const std::size_t deep = 100000;
    CHECK(mentions(refused(with_expression(std::string(deep, '('))), "levels deep"));
    CHECK(mentions(refused(with_expression(std::string(deep, '-') + "x")), "levels deep"));
    CHECK(mentions(refused(with_expression("index(x, n, " + std::string(deep, '('))), "levels deep"));
    CHECK(mentions(refused(with_expression("index(x, n, " + std::string(deep, '-'))), "levels deep"));
    std::string calls;
    std::string indices;
    std::string sum = "index(x, n, 0";
    for (std::size_t i = 0; i < 10000; ++i) {
        calls += "exp(";
        indices += "index(x, n, index(";
        sum += " + 1";
    }
    CHECK(mentions(refused(with_expression(calls)), "levels deep"));
    CHECK_FALSE(refused(with_expression(indices)).empty());
    CHECK(mentions(refused(with_expression(sum + ")")), "operators in one coordinate"));
}

TEST_CASE("a sum of many terms is no deep text") {
    std::string terms = "x";
    for (int i = 0; i < 20000; ++i) terms += " + u";
    CHECK(Graph::parse(with_expression(terms)).data()->live_nodes().size() == 20002);
}

TEST_CASE("random mutations of valid texts either parse and print stably or are refused") {
    std::uint64_t state = 0x243F6A8885A308D3U;
    int accepted = 0;
    for (int i = 0; i < 20000; ++i) {
        const std::string text = mutated(std::string(i % 2 == 0 ? kRmsNorm : kMixed), state);
        CAPTURE(text);
        try {
            const std::string once = Graph::parse(text).print();
            REQUIRE(Graph::parse(once).print() == once);
            ++accepted;
        } catch (const Error&) {
            continue;  // anything else fails the test
        }
    }
    CHECK(accepted > 500);
}

TEST_CASE("a fixpoint is a state, its step, and what closes it") {
    const std::string text =
        "rows n\ninput x: f32[n, 4]\nstart = max(x)\nt = state(start)\nv1 = t * 0.5\n"
        "next = maximum(v1, 1)\ny = fix(t, next, steps=12)\noutput y\n";
    CHECK(Graph::parse(text).print() == text);
    CHECK(mentions(refused("rows n\ninput x: f32[n, 4]\nt = state(max(x))\ny = fix(t, t * 0.5, 12)\n"),
                   "expected 'steps='"));
    CHECK(mentions(refused("rows n\ninput x: f32[n, 4]\ny = fix(max(x), max(x), steps=2)\n", ErrorCode::kInvalidGraph),
                   "the first operand is no state"));
}
