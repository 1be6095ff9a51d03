// Sums over segments of rows, the search for a row's segment, and gradients of gathered rows: by hand in the oracle,
// and compiled for the CPU against it.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "compiler/compile.h"
#include "compiler/kernel.h"
#include "dsl/interpret.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/coord.h"
#include "rowjit/engine.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "runtime/verify.h"

using namespace rowjit;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Engine& engine() {
    static Engine instance(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
    return instance;
}

// x {tokens…} by sequences, whose offsets are an input.
struct Ragged {
    Graph g;
    Axis tokens = g.rows("tokens");
    Axis sequences = g.rows("sequences");
    Segments segments = {sequences, g.input("offsets", i64, {g.rows("ends", sequences, 1)})};
};

Tensor tensor(Dtype dtype, std::vector<double> values) {
    return {dtype, {static_cast<std::int64_t>(values.size())}, std::move(values)};
}

Tensor compiled(const Graph& graph, const Bindings& bindings, const std::string& output) {
    return run(engine().device(), engine().compile(graph), *graph.data(), bindings).at(output);
}

std::string faults(const Graph& graph, const Bindings& bindings, std::int64_t row_padding = 0) {
    const auto outputs =
        verify(engine().device(), engine().compile(graph), *graph.data(), bindings, {.row_padding = row_padding});
    return within_bar(outputs) ? "" : describe(outputs);
}

// The logarithm of the probability of one class a row.
Value class_log_probability(const Value& logits, const Value& target) {
    const Axis classes = logits.axes().back();
    return cast(index(log_softmax(logits), classes, Coord(target)), f32);
}

}  // namespace

TEST_CASE("a segment's reduction takes its rows, and an empty one is the identity") {
    Ragged r;
    const Value x = r.g.input("x", f32, {r.tokens});
    r.g.output("sum", sum(x, r.tokens, r.segments));
    r.g.output("max", max(x, r.tokens, r.segments));
    r.g.output("min", min(x, r.tokens, r.segments));
    r.g.output("length", segment_lengths(r.segments));
    const Bindings bindings{.tensors = {{"x", tensor(f32, {1, 2, 3, 4, 5, 6})}, {"offsets", tensor(i64, {1, 3, 3, 5})}},
                            .scalars = {},
                            .rows = {{"tokens", 6}, {"sequences", 3}}};
    const Tensors exact = interpret(*r.g.data(), bindings, Rounding::kExact);
    CHECK(exact.at("sum").values == std::vector<double>{5, 0, 9});
    CHECK(exact.at("max").values == std::vector<double>{3, -kInfinity, 5});
    CHECK(exact.at("min").values == std::vector<double>{2, kInfinity, 4});
    CHECK(exact.at("length").values == std::vector<double>{2, 0, 2});
    for (const std::string output : {"sum", "max", "min", "length"})
        CHECK(compiled(r.g, bindings, output).values == exact.at(output).values);
}

TEST_CASE("offsets beyond the rows are cut off") {
    Ragged r;
    r.g.output("y", sum(r.g.input("x", f32, {r.tokens}), r.tokens, r.segments));
    const Bindings bindings{.tensors = {{"x", tensor(f32, {1, 2, 3})}, {"offsets", tensor(i64, {-5, 2, 90, 200})}},
                            .scalars = {},
                            .rows = {{"tokens", 3}, {"sequences", 3}}};
    CHECK(interpret(*r.g.data(), bindings, Rounding::kExact).at("y").values == std::vector<double>{3, 3, 0});
    CHECK(compiled(r.g, bindings, "y").values == std::vector<double>{3, 3, 0});
}

TEST_CASE("a row's segment is found among empty ones, and rows outside belong to none") {
    Ragged r;
    r.g.output("segment", segment_of(r.tokens, r.segments));
    r.g.output("y", spread(r.g.input("a", f32, {r.sequences}), r.tokens, r.segments));
    const Bindings bindings{
        .tensors = {{"a", tensor(f32, {10, 20, 30, 40})}, {"offsets", tensor(i64, {1, 1, 3, 3, 4})}},
        .scalars = {},
        .rows = {{"tokens", 6}, {"sequences", 4}}};
    const Tensors exact = interpret(*r.g.data(), bindings, Rounding::kExact);
    CHECK(exact.at("segment").values == std::vector<double>{-1, 1, 1, 3, 4, 4});
    CHECK(exact.at("y").values == std::vector<double>{0, 20, 20, 40, 0, 0});
    CHECK(compiled(r.g, bindings, "segment").values == exact.at("segment").values);
    CHECK(compiled(r.g, bindings, "y").values == exact.at("y").values);
}

namespace {

// What positions know of the segment that they are summed to: its mean and length, its first row, and its number.
void add_outputs_of_own_segment(Ragged& r, const Value& x) {
    const Value segment = segment_of(r.tokens, r.segments);
    const Value lengths = cast(segment_lengths(r.segments), f32);
    const Value total = sum(x, r.tokens, r.segments);
    const Value off = x * spread(lengths, r.tokens, r.segments) - spread(total, r.tokens, r.segments);
    r.g.output("squares", sum(off * off, r.tokens, r.segments));
    const Value begins = index(r.segments.offsets, {Coord(segment)});
    r.g.output("from_first", max(x - index(x, r.tokens, Coord(begins)), r.tokens, r.segments));
    const Value after = index(r.segments.offsets, {Coord(segment) + 1});
    r.g.output("left", sum(cast(cast(after, i64) - r.g.iota(r.tokens, i64), f32), r.tokens, r.segments));
    r.g.output("numbers", min(cast(segment, f32), r.tokens, r.segments));
}

// In loops over rows.
std::ptrdiff_t searches(const Kernel& kernel) {
    std::ptrdiff_t found = 0;
    for (const Stmt& stmt : kernel.body) {
        const auto* rows = std::get_if<RowsLoop>(&stmt.node);
        if (rows == nullptr) continue;
        found += std::count_if(rows->body.begin(), rows->body.end(),
                               [](const Inst& inst) { return inst.kind == InstKind::kSearch; });
    }
    return found;
}

}  // namespace

TEST_CASE("what rows know of their segment is right where they are summed to it, whatever the offsets") {
    for (const std::vector<double>& offsets : std::vector<std::vector<double>>{{0, 0, 3, 3, 7, 7},
                                                                               {1, 2, 2, 5, 6},
                                                                               {-4, -1, 0, 2, 2, 9, 12},
                                                                               {0, 7},
                                                                               {3, 4},
                                                                               {7, 7},
                                                                               {0, 1, 2, 3, 4, 5, 6, 7}}) {
        for (const Dtype dtype : {i32, i64}) {
            Graph g;
            const Axis tokens = g.rows("tokens");
            const Axis sequences = g.rows("sequences");
            Ragged r{g, tokens, sequences, {sequences, g.input("offsets", dtype, {g.rows("ends", sequences, 1)})}};
            add_outputs_of_own_segment(r, r.g.input("x", f32, {r.tokens}));
            const Bindings bindings{
                .tensors = {{"x", tensor(f32, {3, 1, 4, 1, 5, 9, 2})}, {"offsets", tensor(dtype, offsets)}},
                .scalars = {},
                .rows = {{"tokens", 7}, {"sequences", static_cast<std::int64_t>(offsets.size()) - 1}}};
            const Tensors exact = interpret(*r.g.data(), bindings, Rounding::kExact);
            for (const std::string output : {"squares", "from_first", "left", "numbers"})
                CHECK_MESSAGE(compiled(r.g, bindings, output).values == exact.at(output).values, output, " of ",
                              fmt::format("{}", fmt::join(offsets, ", ")));
        }
    }
}

TEST_CASE("rows that are summed to segments are not searched for theirs, forward and backward") {
    Ragged r;
    const Value x = r.g.input("x", f32, {r.tokens});
    const Value off = x - spread(sum(x, r.tokens, r.segments), r.tokens, r.segments);
    const Value variance = sum(off * off, r.tokens, r.segments);
    r.g.output("y", off * rsqrt(1.0 + spread(variance, r.tokens, r.segments)));
    const Graph joint = gradient(r.g, {"x"}, {.joint = true});
    for (const Graph& graph : {r.g, joint}) {
        int sums = 0;
        for (const Step& step : compile(*graph.data(), find_target("sm_90a")).steps) {
            if (!step.group.reduces_rows) continue;
            ++sums;
            CHECK_MESSAGE(searches(step.kernel) == 0, print(step.kernel));
        }
        CHECK(sums >= 2);
    }
}

TEST_CASE("a segment of other offsets is searched for, and one of the same is known in each of two axes") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis a = g.rows("a");
    const Axis b = g.rows("b");
    const Segments of_a = {a, g.input("a_offsets", i64, {g.rows("a_ends", a, 1)})};
    const Segments of_b = {b, g.input("b_offsets", i64, {g.rows("b_ends", b, 1)})};
    const Value x = g.input("x", f32, {tokens});
    const Value of_both = x + cast(segment_of(tokens, of_a) * 10 + segment_of(tokens, of_b) * 100, f32);
    g.output("by_a", sum(of_both, tokens, of_a));
    g.output("by_b", sum(of_both, tokens, of_b));
    const Bindings bindings{.tensors = {{"x", tensor(f32, {1, 2, 3, 4, 5})},
                                        {"a_offsets", tensor(i64, {0, 2, 5})},
                                        {"b_offsets", tensor(i64, {0, 1, 1, 4})}},
                            .scalars = {},
                            .rows = {{"tokens", 5}, {"a", 2}, {"b", 3}}};
    const Tensors exact = interpret(*g.data(), bindings, Rounding::kExact);
    CHECK(exact.at("by_a").values == std::vector<double>{203, 742});
    for (const std::string output : {"by_a", "by_b"})
        CHECK(compiled(g, bindings, output).values == exact.at(output).values);
}

TEST_CASE("sums over segments are within the bar, of columns and of numbers, with no rows and one segment") {
    for (const std::int64_t columns : {0, 1, 7, 64}) {
        for (const auto& [tokens, sequences] : std::vector<std::pair<std::int64_t, std::int64_t>>{
                 {0, 3}, {5, 0}, {1, 1}, {300, 1}, {41, 9}, {300, 700}}) {
            for (const Dtype dtype : {f32, bf16}) {
                Ragged r;
                std::vector<Dim> dims = {r.tokens};
                if (columns > 0) dims.emplace_back(columns);
                const Value x = r.g.input("x", dtype, dims);
                r.g.output("y", sum(x, r.tokens, r.segments));
                r.g.output("scaled", cast(sum(cast(x, f32) * 0.5, r.tokens, r.segments), dtype) + 1.0);
                r.g.output("back", spread(sum(x, r.tokens, r.segments), r.tokens, r.segments) * x);
                CAPTURE(columns);
                CAPTURE(tokens);
                CAPTURE(sequences);
                const Bindings bindings = random_inputs(*r.g.data(), {{"tokens", tokens}, {"sequences", sequences}},
                                                        {.out_of_range = sequences == 9});
                CHECK(faults(r.g, bindings, tokens == 41 ? 3 : 0) == "");
            }
        }
    }
}

TEST_CASE("uniform segments are a sum over one of two row axes, forward and backward") {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis tokens = g.rows("tokens");
    const Value logits = g.input("logits", bf16, {batch, tokens, 300});
    const Value target = g.input("target", i64, {batch, tokens});
    const Value mask = g.input("mask", boolean, {batch, tokens});
    const Value logp = class_log_probability(logits, target);
    const Value kept = select(mask, logp, g.constant(f32, 0.0));
    g.output("y", tanh(sum(kept, tokens)));
    const RowExtents rows = {{"batch", 3}, {"tokens", 17}};
    CHECK(faults(g, random_inputs(*g.data(), rows)) == "");
    const Differentiated both = differentiate(g, {"logits"});
    CHECK(faults(both.forward, random_inputs(*both.forward.data(), rows)) == "");
    CHECK(faults(both.backward, random_inputs(both, rows)) == "");
}

TEST_CASE("a loss over ragged sequences and its gradient are one program, which reads the logits once for each") {
    Ragged r;
    const Value logits = r.g.input("logits", bf16, {r.tokens, 300});
    const Value logp = class_log_probability(logits, r.g.input("target", i64, {r.tokens})).named("logp");
    const Value of_sequence = sum(logp, r.tokens, r.segments).named("of_sequence");
    r.g.output("loss", sum(log1p(exp(-(of_sequence * 0.1))), r.sequences));
    const Graph joint = gradient(r.g, {"logits"}, {.joint = true, .unit_cotangent = true});
    const RowExtents rows = {{"tokens", 40}, {"sequences", 6}};
    CHECK(faults(joint, random_inputs(*joint.data(), rows, {.seed = 4})) == "");

    int over_the_logits = 0;
    for (const Step& step : compile(*joint.data(), find_target("sm_90a")).steps)
        over_the_logits += step.group.graph->find_input("logits") ? 1 : 0;
    CHECK(over_the_logits == 2);
}

TEST_CASE("a preference loss of ragged halves of one batch is one program, from logits to their gradient") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis pairs = g.rows("pairs");
    const Axis ends = g.rows("ends", pairs, 1);
    const Value logits = g.input("logits", bf16, {tokens, 200});
    const Value logp = selective_log_probability(logits, g.input("target", i64, {tokens})).logp;
    const Value mask = g.input("mask", boolean, {tokens});
    const auto of = [&](std::string_view name) {
        return sequence_log_probability(logp, mask, {pairs, g.input(name, i32, {ends})}, true);
    };
    g.output("loss", dpo({of("chosen_offsets"), of("rejected_offsets")}, std::nullopt).loss);
    const Graph joint = gradient(g, {"logits"}, {.joint = true, .unit_cotangent = true});
    Bindings bindings = random_inputs(*joint.data(), {{"tokens", 30}, {"pairs", 3}}, {.seed = 2});
    bindings.tensors["chosen_offsets"] = tensor(i32, {0, 5, 5, 14});
    bindings.tensors["rejected_offsets"] = tensor(i32, {14, 20, 21, 28});
    const auto outputs = verify(engine().device(), engine().compile(joint), *joint.data(), bindings, {});
    CHECK(outputs.size() == 2);
    // One number for the whole batch is measured by eager's luck with it.
    for (const Verification& output : outputs)
        CHECK_MESSAGE((output.report.within_bar || output.report.max_error < 8), describe(outputs));
}

TEST_CASE("the gradient of gathered rows is the sum over the positions that took them") {
    Graph g;
    const Axis vocabulary = g.rows("vocabulary", 5);
    const Axis tokens = g.rows("tokens");
    const Value table = g.input("table", f32, {vocabulary, 2});
    g.output("y", embedding(table, g.input("ids", i64, {tokens})));
    const Graph backward = gradient(g, {"table"});
    const Bindings bindings{.tensors = {{"ids", tensor(i64, {3, 0, 3, -1, 7, 3, 1})},
                                        {"d_y", {f32, {7, 2}, {1, 2, 3, 4, 5, 6, 70, 80, 90, 100, 11, 12, 13, 14}}}},
                            .scalars = {},
                            .rows = {{"tokens", 7}}};
    const std::vector<double> wanted = {3, 4, 13, 14, 0, 0, 17, 20, 0, 0};
    CHECK(interpret(*backward.data(), bindings, Rounding::kExact).at("d_table").values == wanted);
    CHECK(compiled(backward, bindings, "d_table").values == wanted);

    const Graph given = gradient(g, {"table"}, {.sorted = {"ids"}});
    const std::vector<std::int64_t> ids = {3, 0, 3, -1, 7, 3, 1};
    const RowOrder order = row_order(ids, 5);
    Bindings with_order = bindings;
    with_order.tensors.erase("ids");
    with_order.tensors["ids_order"] = tensor(i64, {order.order.begin(), order.order.end()});
    with_order.tensors["ids_offsets"] = tensor(i64, {order.offsets.begin(), order.offsets.end()});
    CHECK(order.order == std::vector<std::int64_t>{3, 1, 6, 0, 2, 5, 4});
    CHECK(order.offsets == std::vector<std::int64_t>{1, 2, 3, 3, 6, 6});
    CHECK(interpret(*given.data(), with_order, Rounding::kExact).at("d_table").values == wanted);
    CHECK(compiled(given, with_order, "d_table").values == wanted);
}

TEST_CASE("ids of two row axes are put in one order, and so are those of each sequence") {
    Graph table;
    const Axis batch = table.rows("batch");
    const Axis tokens = table.rows("tokens");
    table.output("y", embedding(table.input("table", f32, {table.rows("vocabulary", 4), 1}),
                                table.input("ids", i32, {batch, tokens})));
    Bindings bindings{
        .tensors = {{"ids", {i32, {2, 3}, {2, 0, 2, -1, 2, 9}}}, {"d_y", {f32, {2, 3, 1}, {1, 2, 4, 8, 16, 32}}}},
        .scalars = {},
        .rows = {{"batch", 2}, {"tokens", 3}}};
    const Graph backward = gradient(table, {"table"});
    const std::vector<double> wanted = {2, 0, 21, 0};
    CHECK(interpret(*backward.data(), bindings, Rounding::kExact).at("d_table").values == wanted);
    CHECK(compiled(backward, bindings, "d_table").values == wanted);

    // Places of its own sequence, of which one is none and one is taken twice.
    const Graph spans = Graph::parse(
        "rows batch\nrows tokens\nrows spans\ninput x: f32[batch, tokens, 1]\ninput at: i64[batch, spans]\n"
        "output y = index(x, batch, at, @1)\n");
    bindings = {
        .tensors = {{"at", {i64, {2, 3}, {1, 2, 1, 0, 3, -1}}}, {"d_y", {f32, {2, 3, 1}, {1, 2, 4, 8, 16, 32}}}},
        .scalars = {},
        .rows = {{"batch", 2}, {"tokens", 3}, {"spans", 3}}};
    const Graph of_spans = gradient(spans, {"x"});
    const std::vector<double> wanted_of_spans = {0, 5, 2, 8, 0, 0};
    CHECK(interpret(*of_spans.data(), bindings, Rounding::kExact).at("d_x").values == wanted_of_spans);
    CHECK(compiled(of_spans, bindings, "d_x").values == wanted_of_spans);
}

TEST_CASE("gradients of rows taken along several axes are within the bar, however the axes stand") {
    for (const std::string_view text : {
             // A token's embedding and its place's.
             "rows batch\nrows s\nrows vocabulary = 11\ninput ids: i32[batch, s]\ninput table: bf16[vocabulary, 40]\n"
             "input place: bf16[s, 40]\noutput y = index(table, ids, @40) + place\n",
             // One position of each sequence.
             "rows batch\nrows s\ninput last: i64[batch]\ninput x: bf16[batch, s, 40]\noutput y = index(x, batch, "
             "last, @40)\n",
             // Several, of other axes' order, of each head.
             "rows k\nrows batch\nrows h = 3\nrows s\ninput at: i32[k, batch]\ninput x: f32[batch, h, s, 40]\n"
             "output y = index(x, batch, h, at, @40)\n",
             // Kinds, of which there are few.
             "rows batch\nrows s\nrows kinds = 3\ninput ids: i32[batch, s]\ninput table: bf16[kinds, 40]\n"
             "input x: bf16[batch, s, 40]\noutput y = x + index(table, ids, @40)\n",
             // Places in their order, from the third on.
             "rows batch\nrows s\nrows vocabulary\ninput table: bf16[vocabulary, 40]\ninput x: bf16[batch, s, 40]\n"
             "at = iota(s, i64) + 2\noutput y = x + index(table, at, @40)\n",
             // Three axes of ids.
             "rows a = 2\nrows b\nrows c\nrows vocabulary\ninput ids: i32[a, b, c]\ninput table: f32[vocabulary, 7]\n"
             "output y = index(table, ids, @7)\n",
         }) {
        CAPTURE(text);
        const Differentiated both = differentiate(Graph::parse(text));
        for (const std::int64_t rows : {1, 9}) {
            RowExtents extents;
            for (const auto& [name, extent] : all_rows(*both.forward.data(), rows))
                extents[name] = name == "s" || name == "vocabulary" ? 5 : extent;
            const Bindings bindings = random_inputs(both, extents);
            CHECK(faults(both.backward, bindings) == "");
            CHECK(faults(both.backward, bindings, 3) == "");
        }
    }
}

TEST_CASE("an axis has as many positions as others together, and a launch gives none for it") {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis s = g.rows("s");
    const Axis heads = g.rows("heads", 2);
    const Axis all = g.rows("all", {batch, s, heads});
    const Axis again = g.rows("again", all, 0);
    const Segments segments = {again, g.input("offsets", i64, {g.rows("ends", {batch, s, heads}, 1)})};
    g.output("y", sum(g.input("x", f32, {all, 3}), all, segments));
    CHECK(Graph::parse(g.print()).print() == g.print());
    CHECK(doctest::String(g.print().c_str()) == doctest::Contains("rows ends = batch * s * heads + 1\n"));
    const Bindings bindings = random_inputs(*g.data(), {{"batch", 3}, {"s", 4}});
    CHECK(bindings.tensors.at("x").extents == std::vector<std::int64_t>{24, 3});
    CHECK(faults(g, bindings) == "");
    CHECK_THROWS_WITH_AS(Graph(g).rows("none", std::initializer_list<Axis>{}), doctest::Contains("follows no axis"),
                         Error);
    CHECK_THROWS_WITH_AS(g.rows("of_columns", {batch, g.columns(8)}), doctest::Contains("is a column axis"), Error);
    CHECK(g.extent(g.rows("known", {heads, heads}, 1)) == 5);
}

TEST_CASE("the gradient of an embedding is within the bar, and the same bits every time") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value table = g.input("table", bf16, {g.rows("vocabulary", 17), 100});
    g.output("y", embedding(table, g.input("ids", i32, {tokens})));
    const Graph backward = gradient(g, {"table"});
    const Bindings bindings = random_inputs(*backward.data(), {{"tokens", 500}}, {.out_of_range = true});
    CHECK(faults(backward, bindings) == "");
    const Tensor first = compiled(backward, bindings, "d_table");
    for (int again = 0; again < 3; ++again) CHECK(compiled(backward, bindings, "d_table").values == first.values);
}

TEST_CASE("an axis follows another, and a launch gives no extent for it") {
    Ragged r;
    r.g.output("y", sum(r.g.input("x", f32, {r.tokens}), r.tokens, r.segments));
    const Executable f = engine().compile(r.g);
    Arguments arguments = f.arguments();
    CHECK_THROWS_WITH_AS(arguments.rows("ends", 4), doctest::Contains("no row axis 'ends'"), Error);
    arguments.rows("tokens", 0).rows("sequences", 0);
    const std::int64_t offset = 0;
    arguments.tensor("offsets", &offset);
    CHECK(f.launch(nullptr, arguments).ok());
}

TEST_CASE("segments have a text form") {
    const std::string text =
        "rows tokens\n"
        "rows sequences\n"
        "rows ends = sequences + 1\n"
        "input x: bf16[tokens, 64]\n"
        "input offsets: i32[ends]\n"
        "total = sum(x, tokens, into=sequences, offsets=offsets)\n"
        "segment = search(offsets, iota(tokens))\n"
        "back = index(total, segment, @64)\n"
        "output total\n"
        "output back\n";
    CHECK(Graph::parse(text).print() == text);
}

TEST_CASE("segments that do not fit are refused") {
    Ragged r;
    const Value x = r.g.input("x", f32, {r.tokens, 8});
    const Value floats = r.g.input("floats", f32, {r.g.rows("ends", r.sequences, 1)});
    const Value short_ones = r.g.input("short_ones", i64, {r.sequences});
    const Axis columns = r.g.columns(8);
    CHECK_THROWS_AS(sum(x, r.tokens, {r.sequences, floats}), Error);
    CHECK_THROWS_AS(sum(x, r.tokens, {r.sequences, short_ones}), Error);
    CHECK_THROWS_AS(sum(x, columns, r.segments), Error);
    CHECK_THROWS_AS(sum(x, r.sequences, r.segments), Error);
    CHECK_THROWS_AS(search(r.segments.offsets, x), Error);
    CHECK_THROWS_AS(r.g.rows("tokens", r.sequences, 1), Error);
}
