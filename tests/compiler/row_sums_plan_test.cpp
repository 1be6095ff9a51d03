// Where sums over rows are made: beside what else is made of the rows, in parts, for each batch, of rows read again.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "compiler/compile.h"
#include "compiler/plan/partial_reductions.h"
#include "compiler/plan/plan.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "tests/support/extrema_of_rows.h"
#include "tests/support/squares_of_rows.h"

using namespace rowjit;

namespace {

bool reads(const Step& step, std::string_view tensor) {
    const std::vector<KernelTensor>& tensors = step.kernel.tensors;
    return std::any_of(tensors.begin(), tensors.end(), [&](const KernelTensor& t) { return t.name == tensor; });
}

Program batch_norm(bool backward) {
    const Graph graph = Graph::parse(R"(
        rows tokens
        input x: bf16[tokens, 1536]
        input w: f32[1536]
        input b: f32[1536]
        h = cast(x, f32)
        n = extent(tokens, f32)
        mu = sum(h, tokens) / n
        d = h - mu
        v = sum(d * d, tokens) / n
        output y = cast(d * rsqrt(v + 1e-5) * w + b, bf16)
        output mean = mu
        output var = v)");
    return compile(backward ? *differentiate(graph).backward.data() : *graph.data(), find_target("sm_90a"));
}

}  // namespace

TEST_CASE("a kernel that stores pieces of a tensor is tuned as a graph of its own") {
    const Graph graph = make_graph("group_norm", {4096, bf16, {}});
    const Plan plan = plan_graph(*gradient(graph, {"x", "weight"}).data(), find_target("sm_90a"));
    const auto stores_pieces = [](const Group& group) {
        return std::any_of(group.graph->outputs().begin(), group.graph->outputs().end(),
                           [](const OutputInfo& output) { return output.piece.has_value(); });
    };
    REQUIRE(std::any_of(plan.groups.begin(), plan.groups.end(), stores_pieces));
    for (const Group& group : plan.groups) CHECK_NOTHROW(with_whole_sums(*group.graph));
}

TEST_CASE("a kernel that sums columns too many for parts is tuned as a graph of its own") {
    const Graph graph = make_graph("layer_norm", {262144, f32, {}});
    const Target& target = find_target("sm_90a");
    const Plan plan = plan_graph(*gradient(graph, {"x", "weight", "bias"}).data(), target);
    const auto sums = std::find_if(plan.groups.begin(), plan.groups.end(),
                                   [](const Group& group) { return group.reduces_rows && !adds_parts(*group.graph); });
    REQUIRE(sums != plan.groups.end());
    const Plan again = plan_graph(*with_whole_sums(*sums->graph), target);
    REQUIRE(again.groups.size() == 1);
    CHECK(again.groups[0].reduces_rows);
    CHECK(group_bytes(*again.groups[0].graph, 8192) == group_bytes(*sums->graph, 8192));
    CHECK(legal_schedules(again.groups[0], target) == legal_schedules(*sums, target));
}

TEST_CASE("results have the fewer threads the more of them there are, as parts of wide sums are few") {
    const auto threads_of = [](std::int64_t columns) {
        const Graph graph = make_graph("rms_norm", {columns, bf16, {}});
        const Plan plan = plan_graph(*gradient(graph, {"x", "weight"}).data(), find_target("sm_90a"));
        REQUIRE(adds_parts(*plan.groups.back().graph));
        return legal_schedules(plan.groups.back(), find_target("sm_90a"))[0].threads_per_row;
    };
    CHECK(threads_of(4096) == 32);
    CHECK(threads_of(32768) == 8);
    CHECK(threads_of(262144) == 1);
}

TEST_CASE("sums of a group that no block holds are sums of its channels' on a GPU, and its rows are read elementwise") {
    const auto backward_of = [](std::int64_t spatial) {
        const Graph graph = make_graph("group_norm", {spatial, bf16, {{"groups", "32"}, {"channels", "24"}}});
        return differentiate(graph, trained_inputs("group_norm", graph)).backward;
    };
    const auto waiting = [](const Graph& graph, const char* target) {
        const Plan plan = plan_graph(*graph.data(), find_target(target));
        return std::count_if(plan.groups.begin(), plan.groups.end(), [](const Group& group) {
            const std::vector<NodeId> live = group.graph->live_nodes();
            return std::any_of(live.begin(), live.end(), [&](NodeId id) {
                const Node& node = group.graph->node(id);
                return node.kind == NodeKind::kReduce && node.reduced.size() > 1;
            });
        });
    };
    CHECK(waiting(backward_of(4096), "sm_90a") == 0);
    CHECK(waiting(backward_of(4096), "gfx942") == 0);
    CHECK(waiting(backward_of(4096), "x86-64-v3") == 1);
    CHECK(waiting(backward_of(1024), "sm_90a") == 1);
}

TEST_CASE(
    "the channels of a group that a GPU's block has room for are read once, as are those with norms of their own") {
    const auto bytes_of = [](const Graph& graph, const char* target) {
        double bytes = 0;
        for (const Group& group : plan_graph(*graph.data(), find_target(target)).groups)
            bytes += group_bytes(*group.graph, 8192);
        return bytes;
    };
    constexpr double kOfNumbers = 1.01;
    constexpr double kThrice = 3 * 8192.0;  // x, its cotangent and what flows back to it, of as many rows
    for (const int channels : {8, 16, 20}) {
        for (const std::int64_t spatial : {64, 256, 1024, 4096}) {
            const Graph graph =
                make_graph("group_norm", {spatial, bf16, {{"groups", "2"}, {"channels", std::to_string(channels)}}});
            const Graph backward = differentiate(graph, trained_inputs("group_norm", graph)).backward;
            const double once = kThrice * 2 * channels * static_cast<double>(spatial) * 2;
            const double of_numbers = 8192.0 * 2 * 64;
            CHECK_MESSAGE(bytes_of(backward, "sm_90a") < kOfNumbers * once + of_numbers, channels, " of ", spatial);
        }
    }
    const Graph graph = Graph::parse(R"(
rows images
columns channels = 32
columns pixels = 1024
input x: bf16[images, channels, pixels]
input w: f32[channels]
input b: f32[channels]
h = cast(x, f32)
d = h - mean(h, pixels)
output y = cast(d * rsqrt(mean(d * d, pixels) + 1e-5) * w + b, bf16)
)");
    CHECK(bytes_of(differentiate(graph).backward, "sm_90a") < kOfNumbers * kThrice * 32 * 1024 * 2);
}

TEST_CASE("sums over rows of a row's numbers are pairs only where more is shown of them than a narrow float has") {
    const auto pairs_of = [](Dtype dtype) {
        const Graph graph = make_graph("group_norm", {1024, dtype, {{"groups", "2"}, {"channels", "10"}}});
        const Graph backward = differentiate(graph, trained_inputs("group_norm", graph)).backward;
        std::int64_t pairs = 0;
        for (const Accumulator& sum : compile(*backward.data(), find_target("sm_90a")).steps[0].kernel.accumulators)
            pairs += sum.of_block && sum.compensated ? 1 : 0;
        return pairs;
    };
    CHECK(pairs_of(bf16) == 0);
    CHECK(pairs_of(f32) == 20);
}

TEST_CASE("sums over rows of what other sums over rows are needed for read the rows again, and store no row") {
    const Graph graph = Graph::parse(R"(
rows tokens
input x: bf16[tokens, 1536]
input w: f32[1536]
input b: f32[1536]
n = extent(tokens, f32)
mean = sum(cast(x, f32), tokens) / n
d = cast(x, f32) - mean
var = sum(d * d, tokens) / n
output y = cast(d * rsqrt(var + 1e-5) * w + b, bf16)
output mean
output var
)");
    for (const Graph& one : {graph, differentiate(graph).backward}) {
        const Plan plan = plan_graph(*one.data(), find_target("sm_90a"));
        const auto is_of_rows = [&](AxisId axis) {
            return plan.graph->axis(axis).is_row && !plan.graph->axis(axis).is_slots;
        };
        for (const Temporary& stored : plan.temporaries)
            CHECK_FALSE(std::any_of(stored.axes.begin(), stored.axes.end(), is_of_rows));
        // Nor are parts of a sum added up for each row.
        for (const Group& group : plan.groups) {
            if (adds_parts(*group.graph)) CHECK(group_bytes(*group.graph, 8192) < 8192 * 1536);
        }
    }
}

TEST_CASE(
    "a sum over rows stores the last sum of a head's columns below it, and reads the head once with what is first") {
    const Graph graph = Graph::parse(R"(
        rows tokens
        columns heads = 8
        columns keys = 1024
        input scores: bf16[tokens, heads, keys]
        input temperature: f32[heads]
        h = cast(scores, f32) * temperature
        e = exp(h - max(h, keys))
        output p = cast(e / sum(e, keys), bf16))");
    const Graph backward = differentiate(graph).backward;
    const Program program = compile(*backward.data(), find_target("sm_90a"));
    CHECK(std::ranges::count_if(program.steps, [](const Step& step) { return reads(step, "scores"); }) == 1);
    CHECK(program.steps.size() == 3);
}

TEST_CASE("what columns make of a number of a head is summed over them first, in the kernel that has the row") {
    const auto plan_of = [](const std::string& terms) {
        const Graph graph = Graph::parse(R"(
            rows heads = 16
            rows tokens
            columns keys = 4096
            input x: bf16[heads, tokens, keys]
            input slope: f32[heads]
            )" + terms);
        return plan_graph(*differentiate(graph).backward.data(), find_target("sm_90a"));
    };
    const auto bytes = [](const Plan& plan) {
        double all = 0;
        for (const Group& group : plan.groups) all += group_bytes(*group.graph, 4096);
        return all;
    };
    const double row = 16.0 * 4096 * 4096 * 2;  // of each tensor of a head's rows
    const Plan linear = plan_of("output y = cast(cast(x, f32) + slope * cast(iota(keys), f32), bf16)");
    CHECK(bytes(linear) < 2.01 * row);
    const Plan softmax = plan_of(R"(s = cast(x, f32) + slope * cast(iota(keys), f32)
            e = exp(s - max(s))
            output p = cast(e / sum(e), bf16))");
    CHECK(softmax.groups.size() == 2);
    CHECK(bytes(softmax) < 3.01 * row);
}

TEST_CASE("sums over the rows of each batch are made where those rows are, if anything else is made of them") {
    const std::string rows = R"(
        rows batch
        rows tokens
        columns c = 1152
        input x: bf16[batch, tokens, c]
        h = cast(x, f32)
    )";
    const auto plan_of = [&](const std::string& rest, bool backward) {
        const Graph graph = Graph::parse(rows + rest);
        return plan_graph(backward ? *differentiate(graph).backward.data() : *graph.data(), find_target("sm_90a"));
    };
    const std::string norm = R"(input scale: bf16[batch, c]
        input shift: bf16[batch, c]
        d = h - mean(h)
        output y = cast(d * rsqrt(mean(d * d) + 1e-6) * (1 + cast(scale, f32)) + cast(shift, f32), bf16)
    )";
    const Plan adaptive = plan_of(norm, true);
    REQUIRE(adaptive.groups.size() == 2);
    CHECK(makes_parts(*adaptive.groups[0].graph));
    CHECK(adds_parts(*adaptive.groups[1].graph));
    // The group by itself, as the tuner has it, is planned as it was.
    const Plan again = plan_graph(*with_whole_sums(*adaptive.groups[0].graph), find_target("sm_90a"));
    REQUIRE(again.groups.size() == 2);
    CHECK(makes_parts(*again.groups[0].graph));
    CHECK(group_bytes(*again.groups[0].graph, 8192) == group_bytes(*adaptive.groups[0].graph, 8192));
    // Two inputs and a gradient of each row, of 8192; of a batch, of which there are as many as it has tokens, a scale;
    // and 256 parts of two gradients.
    const double row_bytes = 3 * 1152 * 2 + 2 * 4;
    const double other_bytes = std::sqrt(8192) * 1152 * 2 + 256 * 1152 * 2 * 4;
    CHECK(group_bytes(*adaptive.groups[0].graph, 8192) == doctest::Approx(8192 * row_bytes + other_bytes));
    // A sum by itself is one kernel's, unless that has a reduction's result to read the row again for.
    CHECK(plan_of("output total = cast(sum(h, tokens), bf16)", false).groups.size() == 1);
    const std::string pooled = "sum(h * rsqrt(mean(h * h) + 1e-6), tokens)";
    CHECK(makes_parts(*plan_of("output total = cast(" + pooled + ", bf16)", false).groups[0].graph));
    // What is seen in f32 is of few rows in each part.
    const Plan seen = plan_of("output total = " + pooled, false);
    REQUIRE(makes_parts(*seen.groups[0].graph));
    const Target& target = find_target("sm_90a");
    const Schedule schedule = legal_schedules(seen.groups[0], target).at(0);
    const Offer<Kernel> kernel = build_kernel(seen.groups[0], schedule, target);
    REQUIRE(kernel);
    const std::int64_t most = 64 * std::int64_t{schedule.rows_per_block};
    CHECK(slots_of(*kernel, {1000, 10 * most}) >= 10);
    CHECK(slots_of(*kernel, {1000, most}) == 1);
    // Rows of a batch's own, of which there are few, have their sums as they had.
    const Graph few = Graph::parse(R"(
        rows tokens
        rows group = 8
        columns c = 128
        input x: bf16[tokens, group, c]
        h = cast(x, f32)
        output y = cast(h * rsqrt(mean(h * h) + 1e-6), bf16)
        output total = cast(sum(h, group), bf16))");
    for (const Group& group : plan_graph(*few.data(), find_target("sm_90a")).groups) CHECK(!makes_parts(*group.graph));
}

TEST_CASE("what a table that sequences share is summed of is stored with what it is made of, or read where it lies") {
    const auto kernels_of = [](std::string_view target, const std::string& text) {
        const Graph backward = differentiate(Graph::parse(text)).backward;
        const Plan plan = plan_graph(*backward.data(), find_target(target));
        std::vector<std::string> stored;
        for (const Group& group : plan.groups) {
            std::string outputs;
            for (const OutputInfo& output : group.graph->outputs())
                outputs += output.slots >= 0 ? " parts" : " " + output.name;
            stored.push_back(outputs);
        }
        return stored;
    };
    const std::string norm = R"(
        input w: bf16[c]
        input b: bf16[c]
        d = h - mean(h, c)
        output y = cast(d * rsqrt(mean(d * d, c) + 1e-6) * cast(w, f32) + cast(b, f32), bf16))";
    for (const std::string_view target : {"sm_90a", "gfx942", "x86-64-v4"}) {
        CAPTURE(target);
        // Places of a sequence: the rows are read once, and what flows back to them once more.
        const std::vector<std::string> places = kernels_of(target, R"(
            rows batch
            rows s
            columns c = 768
            input x: bf16[batch, s, c]
            input places: bf16[s, c]
            h = cast(x + places, f32))" + norm);
        const std::vector<std::string> expected =
            find_target(target).is_gpu() ? std::vector<std::string>{" parts parts d_x parts", " tmp_6 tmp_14 d_places",
                                                                    " parts parts", " d_b d_w"}
                                         : std::vector<std::string>{" parts parts d_x", " d_b d_w", " d_places"};
        CHECK(places == expected);
        // With an embedding in the place of the input, of ids along both axes.
        const std::vector<std::string> tokens = kernels_of(target, R"(
            rows batch
            rows s
            rows vocabulary = 32000
            columns c = 768
            input ids: i32[batch, s]
            input table: bf16[vocabulary, c]
            input places: bf16[s, c]
            h = cast(index(table, ids, c) + places, f32))" + norm);
        CHECK(std::ranges::count_if(
                  tokens, [](const std::string& stored) { return stored.find(" parts") != std::string::npos; }) == 1);
        CHECK(tokens.back() == " d_table");
    }
    // Patches of an image, whose places are known: the sums of all of them are those of each, added up.
    const std::vector<std::string> patches = kernels_of("sm_90a", R"(
        rows batch
        rows p = 196
        columns c = 768
        input x: bf16[batch, p, c]
        input places: bf16[p, c]
        h = cast(x + places, f32))" + norm);
    REQUIRE(patches.size() == 3);
    CHECK(patches[0] == " parts parts d_x parts");
    CHECK(patches[2] == " d_b d_w");
    // Rotary embedding by a token's tables in f32, of heads that are few enough for parts of them in f32; behind a norm
    // in bf16, whose weight's sum is one of the heads' sums; and by tables of a sequence, which a batch shares as well.
    const std::string rotated = R"(
        p = index(y, n, heads, (c + 64) % 128)
        output z = cast(y, f32) * cosine + select(iota(c) < 64, -cast(p, f32), cast(p, f32)) * sine)";
    const std::string heads = R"(
        rows n
        rows heads = 40
        columns c = 128
        input x: bf16[n, heads, c]
        input cosine: f32[n, c]
        input sine: f32[n, c]
        )";
    CHECK(kernels_of("sm_90a", heads + "y = x" + rotated) ==
          std::vector<std::string>{" parts parts d_x", " d_sine d_cosine"});
    const std::vector<std::string> normed = kernels_of("sm_90a", heads + R"(
        input w: bf16[c]
        h = cast(x, f32)
        y = cast(h * rsqrt(mean(h * h) + 1e-6), bf16) * w)" + rotated);
    REQUIRE(!normed.empty());
    CHECK(normed[0] == " parts parts parts d_x");
    CHECK(std::ranges::count_if(
              normed, [](const std::string& stored) { return stored.find("d_x") != std::string::npos; }) == 1);
    const std::vector<std::string> sequences = kernels_of("sm_90a", R"(
        rows batch
        rows s
        rows heads = 32
        columns c = 128
        input x: bf16[batch, s, heads, c]
        input cosine: f32[s, c]
        output y = cast(cast(x, f32) * cosine, bf16))");
    CHECK(sequences == std::vector<std::string>{" parts d_x", " d_cosine"});
}

TEST_CASE("a sum of rows that another kernel's sums wait for is made where the rows are read anyway") {
    // A bias that the scores of all sequences of a batch share.
    const Graph bias = Graph::parse(R"(
        rows batch
        rows heads = 16
        rows q
        columns k = 1024
        input scores: bf16[batch, heads, q, k]
        input bias: bf16[heads, q, k]
        z = cast(scores, f32) + cast(bias, f32)
        e = exp(z - max(z, k))
        output p = cast(e / sum(e, k), bf16))");
    const Plan plan = plan_graph(*differentiate(bias).backward.data(), find_target("sm_90a"));
    REQUIRE(plan.groups.size() == 2);
    CHECK(plan.groups[0].graph->outputs().size() == 2);  // the gradient of the scores, and a number of each row
    CHECK(plan.groups[1].graph->outputs()[0].name == "d_bias");
    // Pooled by its tokens' scores: the second kernel reads the first one's number of each token, and sums nothing over
    // its columns.
    const Graph pool = Graph::parse(R"(
        rows batch
        rows s
        columns c = 1024
        input x: bf16[batch, s, c]
        input q: bf16[c]
        score = sum(cast(x, f32) * cast(q, f32), c)
        e = exp(score - max(score, s))
        output y = cast(sum(cast(x, f32) * (e / sum(e, s)), s), bf16))");
    const Plan pooled = plan_graph(*differentiate(pool).backward.data(), find_target("sm_90a"));
    std::size_t reducing = 0;
    for (const Group& group : pooled.groups) {
        const std::vector<NodeId> live = group.graph->live_nodes();
        reducing += std::ranges::any_of(live, [&](NodeId id) {
            const Node& node = group.graph->node(id);
            return node.kind == NodeKind::kReduce && !group.graph->axis(node.reduced[0]).is_row;
        });
    }
    CHECK(reducing == 1);
}

TEST_CASE("sums over sequences of sums over their tokens are one, and a mean of means is known in its gradient") {
    const auto groups = [](const std::string& text, bool backward) {
        const Graph graph = Graph::parse(text);
        const Graph planned = backward ? differentiate(graph).backward : graph;
        return plan_graph(*planned.data(), find_target("sm_90a")).groups.size();
    };
    const std::string loss = R"(
        rows batch
        rows s
        columns v = 32000
        input logits: bf16[batch, s, v]
        input target: i64[batch, s]
        input mask: f32[batch, s]
        z = cast(logits, f32)
        m = max(z, v)
        nll = log(sum(exp(z - m), v)) + m - index(z, batch, s, target)
        output loss = sum(sum(nll * mask, s), batch) / sum(sum(mask, s), batch))";
    CHECK(groups(loss, false) == 2);
    // Each sequence by its own count: the sums stay apart.
    const std::string by_sequence = R"(
        rows batch
        rows s
        input nll: f32[batch, s]
        input mask: f32[batch, s]
        output loss = sum(sum(nll * mask, s) / sum(mask, s), batch))";
    CHECK(groups(by_sequence, false) > 2);
    for (const std::string_view mean :
         {"mean(mean(h, s), batch)", "sum(sum(h, s), batch) / (extent(batch, f32) * extent(s, f32))"}) {
        const std::string norm = fmt::format(R"(
            rows batch
            rows s
            columns c = 512
            input x: bf16[batch, s, c]
            input w: f32[c]
            h = cast(x, f32)
            d = h - {}
            output y = cast(d * rsqrt(mean(mean(d * d, s), batch) + 1e-5) * w, bf16))",
                                             mean);
        CAPTURE(norm);
        CHECK(groups(norm, true) == 3);  // sums of both, added up, and what flows back to the rows
    }
}

TEST_CASE("one row of each sequence is normed by itself, not beside all others") {
    const Graph graph = Graph::parse(R"(
        rows batch
        rows s
        columns c = 1024
        input last: i64[batch]
        input x: bf16[batch, s, c]
        h = cast(x, f32)
        n = cast(h * rsqrt(mean(h * h, c) + 1e-6), bf16)
        output y = index(n, batch, last, c))");
    const Plan plan = plan_graph(*graph.data(), find_target("sm_90a"));
    REQUIRE(plan.groups.size() == 1);
    CHECK(plan.groups[0].row_axes.size() == 1);
}

TEST_CASE("as many blocks have parts of each batch as take the rows of all batches in the fewest turns") {
    const Graph graph = Graph::parse(R"(
        rows batch
        rows tokens
        columns c = 1152
        input x: bf16[batch, tokens, c]
        input scale: bf16[batch, c]
        h = cast(x, f32)
        output y = cast(h * rsqrt(mean(h * h) + 1e-6) * cast(scale, f32), bf16))");
    const Program program = compile(*differentiate(graph).backward.data(), find_target("sm_90a"));
    const Kernel& kernel = program.steps[0].kernel;
    REQUIRE(!kernel.outer.empty());
    const std::int64_t at_once = kernel.most_row_blocks;
    const std::int64_t together = kernel.schedule.rows_per_block;
    const auto slots = [&](std::int64_t batch, std::int64_t tokens) { return slots_of(kernel, {batch, tokens}); };
    CHECK(slots(1, 100000) == at_once);
    CHECK(slots(1, 3 * together) == 3);
    CHECK(slots(5, 0) == 0);
    CHECK(slots(0, 5) >= 0);
    CHECK(slots(20000, 16) == 1);
    CHECK(grid_blocks(kernel, {20000, 16}) == 20000);
    CHECK(grid_blocks(kernel, {5, 0}) == 0);
    CHECK(grid_blocks(kernel, {0, 5}) == 0);
    CHECK(grid_blocks(kernel, {std::int64_t{1} << 40, 1}) == (std::int64_t{1} << 31) - 1);
    for (const std::int64_t batch : {2, 8, 64, 100, 133, 265, 600}) {
        const std::int64_t each = slots(batch, 4096);
        const std::int64_t turns = (batch * each + at_once - 1) / at_once;
        const std::int64_t rows = (4096 + each * together - 1) / (each * together) * together;
        CAPTURE(batch);
        CHECK(static_cast<double>(turns * rows * at_once) < 1.25 * static_cast<double>(batch * 4096));
    }
}

TEST_CASE("a sum over rows of numbers of a row's parts leaves those with what else is made of the part") {
    const Graph graph = Graph::parse(R"(
        rows images
        columns channels = 32
        columns pixels = 1024
        input x: bf16[images, channels, pixels]
        input w: f32[channels]
        h = cast(x, f32)
        d = h - mean(h, pixels)
        output y = cast(d * rsqrt(mean(d * d, pixels) + 1e-5) * w, bf16))");
    const Program program = compile(*differentiate(graph).backward.data(), find_target("sm_90a"));
    CHECK(std::ranges::count_if(program.steps, [](const Step& step) { return reads(step, "x"); }) == 1);
}

TEST_CASE("sums over rows of what groups of columns come to have a place for each group, if its columns lie together") {
    const auto apart = [](const Program& program) {
        return std::ranges::count_if(program.steps, [](const Step& step) { return !step.kernel.apart.empty(); });
    };
    const auto readers = [](const Program& program) {
        return std::ranges::count_if(program.steps, [](const Step& step) { return reads(step, "x"); });
    };
    const auto backward = [](const Graph& graph) {
        return compile(*differentiate(graph).backward.data(), find_target("sm_90a"));
    };
    const Program codes = compile(*Graph::parse(R"(
        rows t
        columns g = 2
        columns v = 320
        input x: bf16[t, g, v]
        h = cast(x, f32)
        e = exp(h - max(h, v))
        output use = sum(e / sum(e, v), t))")
                                       .data(),
                                  find_target("sm_90a"));
    CHECK(readers(codes) == 1);
    CHECK(apart(codes) == 1);
    const Program heads = backward(Graph::parse(R"(
        rows t
        columns h = 16
        columns d = 32
        input x: bf16[t, h, d]
        input scale: f32[h]
        f = cast(x, f32)
        output y = cast(f * rsqrt(sum(f * f, d) + 1e-6) * exp(scale), bf16))"));
    CHECK(readers(heads) == 1);
    CHECK(apart(heads) == 1);
    // Channels that come last have the columns of none together.
    const Program last = backward(Graph::parse(R"(
        rows images
        columns pixels = 784
        columns channels = 256
        input x: bf16[images, pixels, channels]
        input w: f32[channels]
        h = cast(x, f32)
        d = h - mean(h, pixels)
        output y = cast(d * rsqrt(mean(d * d, pixels) + 1e-5) * w, bf16))"));
    CHECK(apart(last) == 0);
}

TEST_CASE("extrema over rows are made in parts where others read those rows") {
    const std::map<std::string, std::ptrdiff_t> readers = {{"log-sum-exps of columns", 1},
                                                           {"softmaxes of columns", 2},
                                                           {"ranges of columns", 1},
                                                           {"codes of a tensor", 2},
                                                           {"the least of heads", 1}};
    for (const NamedGraph& of : extrema_of_rows(1024)) {
        CAPTURE(of.what);
        const Program program = compile(*of.graph.data(), find_target("sm_90a"));
        CHECK(makes_parts(*program.steps.front().group.graph));
        CHECK(std::ranges::count_if(program.steps, [](const Step& step) { return reads(step, "x"); }) ==
              readers.at(of.what));
    }
}

TEST_CASE("a maximum over rows and the sum of exponentials below it are read off one pass") {
    const auto kernels = [](const Graph& graph, const char* target) {
        return compile(*graph.data(), find_target(target)).steps.size();
    };
    CHECK(kernels(softmax_of_sequences(64), "sm_90a") == 2);
    CHECK(kernels(softmax_of_sequences(64), "x86-64-v4") == 3);
    // A product's rows are seen a chunk at a time where no kernel waits for what all of them come to.
    const Graph of_product = Graph::parse(R"(
        rows images
        columns texts = 256
        columns d = 64
        input a: bf16[images, d]
        input w: bf16[texts, d]
        z = cast(matmul(a, w, d), f32)
        n = max(z, images)
        output y = n + log(sum(exp(z - n), images)))");
    CHECK_FALSE(compile(*of_product.data(), find_target("sm_90a")).loops.empty());
    // Of a sum below another maximum than its own there is no pair.
    const Graph of_blocks = Graph::parse(R"(
        rows r
        rows t = 24
        columns d = 64
        input x: f32[r, t, d]
        output y = sum(exp(x - max(x, t)), r))");
    const Program program = compile(*of_blocks.data(), find_target("sm_90a"));
    for (const Step& step : program.steps) {
        for (const NodeId id : step.group.graph->live_nodes())
            CHECK(step.group.graph->node(id).monoid != Monoid::kMaxSumExp);
    }
}

TEST_CASE("squared deviations of rows from their mean are read with those rows") {
    const auto readers = [](const NamedGraph& of, const char* target) {
        const Program program = compile(*of.graph.data(), find_target(target));
        return std::ranges::count_if(program.steps, [](const Step& step) { return reads(step, "x"); });
    };
    for (const NamedGraph& of : squares_of_rows(1024)) {
        CAPTURE(of.what);
        for (const char* target : {"x86-64-v4", "sm_90a", "gfx942"}) CHECK(readers(of, target) == 2);
        for (const Group& group : plan_graph(*of.graph.data(), find_target("sm_90a")).groups)
            CHECK_NOTHROW(with_whole_sums(*group.graph));
    }
    // No block of a GPU without clusters has registers for so wide a row's: the norm waits for them, and reads again.
    const NamedGraph wide = squares_of_rows(16384).front();
    CHECK(readers(wide, "sm_90a") == 2);
    CHECK(readers(wide, "gfx942") == 3);
}

TEST_CASE("a group norm of innermost channels sums each channel's rows first, and reads them twice") {
    for (const int each : {10, 16}) {
        const Graph norm = Graph::parse(fmt::format(
            "rows b\nrows p = 1024\ncolumns g = 32\ncolumns c = {}\ninput x: bf16[b, p, g, c]\nh = cast(x, f32)\n"
            "m = mean(mean(h, c), p)\nd = h - m\nv = mean(mean(d * d, c), p)\n"
            "output y = cast(d * rsqrt(v + 1e-5), bf16)\n",
            each));
        const Program program = compile(*norm.data(), find_target("sm_90a"));
        CHECK(std::ranges::count_if(program.steps, [](const Step& step) { return reads(step, "x"); }) == 2);
    }
}

TEST_CASE("what takes long to make of sums over some rows is made where they are, not for each of those rows") {
    const auto roots = [](std::string_view number) {
        const Graph norm = Graph::parse(
            fmt::format("rows images\nrows pixels = 196\ninput x: bf16[images, pixels, 384]\nh = cast(x, f32)\n"
                        "g = sum(h * h, pixels)\nn = {}\noutput y = cast(h * n, bf16)\n",
                        number));
        const Program program = compile(*norm.data(), find_target("sm_90a"));
        std::size_t of_pixels = 0;
        for (const Step& step : program.steps) {
            if (!reads(step, "x") || step.group.reduces_rows) continue;
            of_pixels += std::ranges::count_if(step.group.graph->live_nodes(), [&](NodeId id) {
                const Node& node = step.group.graph->node(id);
                return node.kind == NodeKind::kMap && (node.op == Op::kSqrt || node.op == Op::kDiv);
            });
        }
        return of_pixels;
    };
    CHECK(roots("sqrt(g) / (mean(sqrt(g)) + 1e-6)") == 0);
    CHECK(roots("1 / (g + 1)") == 1);  // a quotient alone is as cheap there
}

TEST_CASE("sums of many tensors' columns stay in the kernel of their rows, whatever their width") {
    for (const int columns : {1024, 1152, 1536, 2048, 3072, 3840, 4096, 6144}) {
        CAPTURE(columns);
        const Graph graph = Graph::parse(fmt::format(R"(
            rows batch
            rows tokens = 256
            columns d = {}
            input x: bf16[batch, tokens, d]
            input y: bf16[batch, tokens, d]
            input gate: bf16[batch, d]
            input scale: bf16[batch, d]
            input shift: bf16[batch, d]
            h = cast(x, f32) + cast(gate, f32) * cast(y, f32)
            c = h - mean(h)
            output res = cast(h, bf16)
            output out = cast(c * rsqrt(mean(c * c) + 1e-6) * (1 + cast(scale, f32)) + cast(shift, f32), bf16))",
                                                     columns));
        const Program program = compile(*differentiate(graph).backward.data(), find_target("sm_90a"));
        CHECK(program.steps.size() == 2);
        CHECK(std::ranges::count_if(program.steps, [](const Step& step) { return reads(step, "x"); }) == 1);
    }
}

TEST_CASE("a number that many rows share is found once") {
    const Graph graph = Graph::parse(R"(
        rows batch
        rows pixels = 196
        columns d = 768
        input x: bf16[batch, pixels, d]
        h = cast(x, f32)
        g = sqrt(sum(h * h, pixels))
        output y = cast(h * (g / (mean(g) + 1e-6)) + h, bf16))");
    for (const char* target : {"sm_90a", "x86-64-v4"}) {
        const Program program = compile(*graph.data(), find_target(target));
        CHECK(program.steps.size() == 3);
        for (const Step& step : program.steps) {
            if (!reads(step, "x") || step.group.reduces_rows) continue;
            for (const Stmt& stmt : step.kernel.body) CHECK(!std::holds_alternative<AllReduce>(stmt.node));
        }
    }
}

TEST_CASE("rows of several lists are summed by one kernel, and by one for each list whose order is given") {
    const Graph graph = Graph::parse(R"(
        rows tokens
        rows slots
        columns d = 2048
        input h: bf16[slots, d]
        input a: i64[tokens]
        input b: i64[tokens]
        input w: f32[tokens, 2]
        first = cast(index(h, a, d), f32) * index(w, tokens, 0)
        second = cast(index(h, b, d), f32) * index(w, tokens, 1)
        output y = cast(first + second, bf16))");
    const auto summing = [&](std::vector<std::string> sorted) {
        const GradientOptions options{.sorted = std::move(sorted)};
        int kernels = 0;
        for (const Step& step : compile(*gradient(graph, {"h"}, options).data(), find_target("sm_90a")).steps) {
            const GraphData& group = *step.group.graph;
            const std::vector<NodeId> live = group.live_nodes();
            const auto lists = std::ranges::count_if(live, [&](NodeId id) { return group.node(id).is_segmented(); });
            CHECK(lists <= 1);
            kernels += lists > 0 ? 1 : 0;
        }
        return kernels;
    };
    CHECK(summing({}) == 1);
    CHECK(summing({"a", "b"}) == 2);
}

TEST_CASE("gradients that are parts of a packed tensor are summed over rows before they are put in their places") {
    const Graph graph = Graph::parse(R"(
        rows batch
        rows s
        columns d = 1152
        input x: bf16[batch, s, d]
        input mod: bf16[batch, 6912]
        h = cast(x, f32)
        n = h * rsqrt(mean(h * h) + 1e-6)
        output y = cast(n * (1 + cast(index(mod, batch, d + 1152), f32)) + cast(index(mod, batch, d), f32), bf16))");
    for (const char* target : {"sm_90a", "x86-64-v4"}) {
        for (const Step& step : compile(*differentiate(graph).backward.data(), find_target(target)).steps) {
            if (!reads(step, "x")) continue;
            for (const Stmt& stmt : step.kernel.body) {
                if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) CHECK(loop->columns == 1152);
            }
        }
    }
}

TEST_CASE("sums over rows are made where others read those rows, not beside a row that is stored; roots apart, once") {
    const Program program = batch_norm(true);
    const auto readers =
        std::count_if(program.steps.begin(), program.steps.end(), [](const Step& step) { return reads(step, "x"); });
    CHECK(readers == 2);  // the sums, and the gradient of x, which does not add up the weight's
    CHECK(!makes_parts(*program.steps.back().group.graph));
    for (const Step& step : program.steps) {
        if (!reads(step, "x")) continue;
        each_inst(step.kernel, [](const Inst& inst) { CHECK(inst.op != Op::kRsqrt); });
    }
}

TEST_CASE("rows that read more of tables than of their own are a staying block's, whose threads have equal shares") {
    const Program program = batch_norm(false);
    for (const Step& step : program.steps) {
        if (!reads(step, "x")) continue;
        const Schedule& schedule = step.kernel.schedule;
        CHECK(schedule.blocks_per_sm > 0);
        CHECK(1536 % (schedule.threads_per_row * schedule.vector) == 0);
    }
    CHECK(compile(*make_graph("dynamic_tanh", {4096, bf16, {}}).data(), find_target("sm_90a"))
              .steps.back()
              .kernel.schedule.blocks_per_sm == 0);
}
