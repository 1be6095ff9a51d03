// Sums over segments of rows, searches and gathered rows against the oracle, and columns that are summed as rows are.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "tests/simt/cases.h"
#include "tests/simt/simt_device.h"
#include "tests/support/columns_apart.h"

using namespace rowjit;

namespace {

// Sums of ragged sequences, with columns and without, and each given back to the tokens.
Graph ragged(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis sequences = g.rows("sequences");
    const Segments segments = {sequences, g.input("offsets", i32, {g.rows("ends", sequences, 1)})};
    const Value x = g.input("x", dtype, {tokens, columns});
    const Value of_sequence = sum(x, tokens, segments);
    g.output("of_sequence", of_sequence);
    g.output("numbers", sum(sum(cast(x, f32)), tokens, segments));
    g.output("centered", x - spread(of_sequence, tokens, segments));
    return g;
}

// Sums over a few long segments and many short ones, of two tensors of other dtypes, of what differs by row, by column
// and by both, and read in another order of the columns; beside a maximum and numbers of the segments.
Graph weighted_segments(std::int64_t columns, std::int64_t sequences, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis sequence = g.rows("sequences", sequences);
    const Segments segments = {sequence, g.input("offsets", i64, {g.rows("ends", sequence, 1)})};
    const Axis column = g.columns("width", columns);
    const Value x = g.input("x", dtype, {tokens, column});
    const Value h = cast(x, f32);
    const Value turned = cast(index(x, column, columns - 1 - Coord(column)), f32);
    const Value of_row = g.input("of_row", f32, {tokens});
    const Value weight = g.input("weight", bf16, {column});
    const Value total = sum(h * of_row * cast(weight, f32), tokens, segments);
    g.output("total", total + g.input("bias", f32, {column}) * g.input("of_sequence", f32, {sequence}));
    g.output("turned", cast(sum(turned + cast(g.input("y", bf16, {tokens, column}), f32), tokens, segments), dtype));
    g.output("greatest", max(x, tokens, segments));
    return g;
}

// What a segment's rows are off its mean, their greatest and the exponentials below that, so that sums take what other
// sums have left for the segment of each row.
Graph centered_segments(std::int64_t columns, Dtype dtype, Dtype offsets) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis groups = g.rows("sequences");
    const Segments segments = {groups, g.input("offsets", offsets, {g.rows("ends", groups, 1)})};
    std::vector<Dim> dims = {tokens};
    if (columns > 0) dims.emplace_back(columns);
    const Value x = cast(g.input("x", dtype, dims), f32);
    const Value count = cast(segment_lengths(segments), f32);
    const Value off = x - spread(sum(x, tokens, segments) / count, tokens, segments);
    g.output("variance", sum(off * off, tokens, segments) / count);
    const Value weights = exp(x - spread(max(x, tokens, segments), tokens, segments));
    g.output("share", weights / spread(sum(weights, tokens, segments), tokens, segments));
    return g;
}

// Of blocks of so many threads, eight of which share a long segment.
Schedule shared_schedule(int threads) {
    Schedule schedule;
    schedule.family = Family::kRowsReduction;
    schedule.residency = Residency::kReload;
    schedule.rows_per_block = threads;
    schedule.shares = 8;
    return schedule;
}

// Sums over one of two row axes.
Graph uniform_segments(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis tokens = g.rows("tokens");
    const Value x = g.input("x", dtype, {batch, tokens, columns});
    g.output("y", sum(cast(x, f32) * g.input("of_row", f32, {batch, tokens}), tokens));
    g.output("least", min(x, tokens));
    return g;
}

}  // namespace

TEST_CASE("sums over segments, searches and gathered rows agree with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("ragged 7", ragged(7, bf16), target, &cases);
        add_cases("ragged 64 f32", ragged(64, f32), target, &cases);
        add_cases("centered segments", centered_segments(0, f32, i32), target, &cases);
        add_cases("centered segments 24", centered_segments(24, bf16, i64), target, &cases);
        Graph rows;
        const Value table = rows.input("table", bf16, {rows.rows("vocabulary", 9), 12});
        rows.output("y", embedding(table, rows.input("ids", i64, {rows.rows("tokens", 129)})));
        add_cases("embedding backward", gradient(rows, {"table"}), target, &cases);
        check_cases(cases, target, 13, false);
    }
}

TEST_CASE("ids come in their order, whatever their number and that of their rows, and without a race") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        const auto add = [&](std::string_view ids, std::string_view rows) {
            const Graph graph = Graph::parse(fmt::format(R"(
                rows tokens{}
                rows vocabulary{}
                rows places = tokens + 0
                input pairs: i32[tokens, 2]
                input ids: i64[tokens]
                output narrow = order(index(pairs, tokens, 1), places, vocabulary)
                output wide = order(ids, places, vocabulary))",
                                                         ids, rows));
            const std::size_t before = cases.size();
            add_cases(fmt::format("order of tokens{} of rows{}", ids, rows), graph, target, &cases);
            cases.resize(before + 1);  // there is one schedule
        };
        add("", "");
        add(" = 1", " = 6");
        add(" = 2500", " = 6");
        add(" = 2500", " = 1023");
        add(" = 1300", " = 128256");
        add(" = 3000", " = 3");
        check_cases(cases, target, 331, false);
    }
}

TEST_CASE("a kernel that orders ids by another digit than was counted is caught") {
    const Target target = simt::target("sm_90a");
    const Graph graph = Graph::parse(R"(
        rows tokens
        rows vocabulary = 30
        rows places = tokens + 0
        input ids: i64[tokens]
        output y = order(ids, places, vocabulary))");
    const auto outcome = [&](const simt::Sabotage& sabotage) {
        const Schedule schedule = legal_schedules(plan_graph(*graph.data(), target).groups.at(0), target).at(0);
        return outcome_of(graph, schedule, target, sabotage, 1700);
    };
    CHECK(outcome({}) == "");
    CHECK(outcome([](std::string text) {  // of another digit than is counted
              const std::size_t at = text.find("rj_digit<256, 0, 5>::order");
              return at == std::string::npos ? text : text.replace(at, 19, "rj_digit<256, 1, 5>");
          }) != "");
}

// A warp asks for 32 places at once: of 33 and 1200 in two steps and three.
TEST_CASE("threads that have a row's columns search for its place together, and find what the oracle finds") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const int places : {1, 31, 32, 33, 64, 1200}) {
            const Graph graph = Graph::parse(fmt::format(R"(
                rows tokens
                rows places = {}
                columns d = 256
                input begins: {}[places]
                input key: i64[tokens]
                input table: f32[places, d]
                output y = index(table, search(begins, key), d))",
                                                         places, places % 2 == 0 ? "i32" : "i64"));
            add_cases(fmt::format("search of {}", places), graph, target, &cases);
        }
        const auto together = std::ranges::count_if(cases, [&](const Case& one) {
            return one.program.steps.at(0).kernel.schedule.threads_per_row % target.warp_size == 0;
        });
        CHECK(together >= 12);
        check_cases(cases, target, 40, false);
    }
}

TEST_CASE("long segments are shared by a block's threads, and results side by side are lanes, under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const auto& [columns, sequences] : std::vector<std::pair<std::int64_t, std::int64_t>>{{24, 3}, {40, 60}}) {
            for (const Dtype dtype : {bf16, f32}) {
                add_cases(fmt::format("weighted segments {} {}", columns, sequences),
                          weighted_segments(columns, sequences, dtype), target, &cases);
            }
        }
        add_cases("weighted segments 9", weighted_segments(9, 2, bf16), target, &cases);
        add_cases("uniform segments 40", uniform_segments(40, bf16), target, &cases);
        std::size_t shared = 0;
        std::size_t in_lanes = 0;
        for (const Case& one : cases) {
            for (const Step& step : one.program.steps) {
                shared += step.kernel.schedule.shares > 0 ? 1 : 0;
                in_lanes += step.kernel.row_lanes() > 1 ? 1 : 0;
            }
        }
        CHECK(shared > 8);
        CHECK(in_lanes > 8);
        check_cases(cases, target, 331, false);
    }
}

TEST_CASE("reductions of columns that lie apart agree with the oracle, as sums over rows") {
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("33 steps of 24", pooled_steps(33, 24, bf16), target, &cases);
        add_cases("70 steps of 9", pooled_steps(70, 9, f32), target, &cases);
        for (const Case& one : cases) {
            CHECK_MESSAGE(std::ranges::any_of(
                              one.program.steps,
                              [](const Step& step) { return step.kernel.schedule.family == Family::kRowsReduction; }),
                          one.name);
        }
        check_cases(cases, target, 3, false);
    }
}

TEST_CASE("a kernel whose threads do not share a long segment, or keep another's, is caught") {
    const Target target = simt::target("sm_90a");
    Graph graph;
    const Axis tokens = graph.rows("tokens");
    const Axis sequences = graph.rows("sequences", 3);
    const Segments segments = {sequences, graph.input("offsets", i64, {graph.rows("ends", sequences, 1)})};
    graph.output("y", sum(graph.input("x", f32, {tokens, 40}), tokens, segments));
    Schedule schedule = shared_schedule(256);
    schedule.vector = 4;
    constexpr std::int64_t kRows = 400;
    CHECK(outcome_of(graph, schedule, target, {}, kRows) == "");
    CHECK(outcome_of(graph, schedule, target, replacing("waiting != 0;", "false;"), kRows) != "");
    CHECK(outcome_of(graph, schedule, target, replacing(" + part * ", " + 0 * "), kRows) != "");
}

// A launch of few rows has runs of one segment (Kernel::rows_for_run): here it has as many as the schedule lets it.
TEST_CASE("segments that a thread takes as a run of positions agree with the oracle, and a fault in that is caught") {
    Schedule schedule = shared_schedule(128);
    schedule.run = 8;
    const auto in_runs = [&](const std::string& text) {
        return replacing(fmt::format("rows / {}", Kernel{.schedule = schedule}.rows_for_run()), "rows / 1")(text);
    };
    const auto sums_of = [](std::string_view columns, std::string_view sequences, std::string_view term) {
        return Graph::parse(fmt::format(R"(
            rows tokens
            rows sequences = {}
            rows ends = sequences + 1
            columns d = {}
            input x: bf16[tokens, d]
            input of_row: f32[tokens]
            input bias: f32[sequences]
            input offsets: i64[ends]
            output y = {})",
                                        sequences, columns, term));
    };
    const std::string sum = "sum({}, tokens, into=sequences, offsets=offsets)";
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        for (const auto& [columns, vector] : {std::pair("40", 8), std::pair("64", 16), std::pair("9", 1)}) {
            schedule.vector = vector;
            for (const std::string_view sequences : {"1", "3", "90", "301"}) {
                const std::string term = "cast(x, f32) * of_row";
                const Graph weighted = sums_of(
                    columns, sequences, fmt::format("cast({} + bias, bf16)", fmt::format(fmt::runtime(sum), term)));
                CHECK(outcome_of(weighted, schedule, target, in_runs, 400) == "");
            }
            const Graph heads = Graph::parse(fmt::format(R"(
                rows tokens
                rows sequences = 90
                rows ends = sequences + 1
                columns h = 3
                columns d = {}
                input x: bf16[tokens, h, d]
                input scale: f32[h]
                input bias: f32[sequences, h]
                input offsets: i64[ends]
                output y = cast(sum(cast(x, f32) * scale, tokens, into=sequences, offsets=offsets) + bias, bf16))",
                                                         columns));
            CHECK(outcome_of(heads, schedule, target, in_runs, 400) == "");
            const Graph greatest = sums_of(columns, "90", "max(x, tokens, into=sequences, offsets=offsets)");
            CHECK(outcome_of(greatest, schedule, target, in_runs, 400) == "");
        }
    }
    schedule.vector = 8;
    const Graph graph = sums_of("40", "90", fmt::format(fmt::runtime(sum), "cast(x, f32)"));
    const auto broken = [&](const std::string& what, const std::string& with) {
        const auto sabotage = [&](const std::string& text) { return replacing(what, with)(in_runs(text)); };
        return outcome_of(graph, schedule, simt::target("sm_90a"), sabotage, 400);
    };
    CHECK(broken("p >= segment_stop", "p >= segment_stop") == "");
    CHECK(broken("p >= segment_stop", "p > segment_stop") != "");
    CHECK(broken("segment <= last_segment; ++", "segment < last_segment; ++") != "");
}
