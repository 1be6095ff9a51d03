// Emitted GPU source against the oracle with no GPU: every schedule of every operation, on warps of 32 and of 64.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "base/dtype.h"
#include "base/philox.h"
#include "compiler/emit/gpu.h"
#include "compiler/plan/partial_sums.h"
#include "compiler/schedule/choose.h"
#include "compiler/schedule/lower.h"
#include "compiler/workspace.h"
#include "dsl/interpret.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "runtime/verify.h"
#include "tests/runtime/device_fixture.h"
#include "tests/simt/simt_device.h"
#include "tests/support/columns_apart.h"
#include "tests/support/coverage.h"
#include "tests/support/differences.h"
#include "tests/support/extrema.h"
#include "tests/support/far_rows.h"
#include "tests/support/fixpoints.h"

using namespace rowjit;

namespace {

// One program to run: an operation at a width, with one schedule for its row kernel. A backward that reads what its
// forward saved has that forward.
struct Case {
    std::string name;
    Graph graph;
    Program program;
    std::shared_ptr<const Differentiated> differentiated = nullptr;
};

// An RMS norm's backward from its saved statistic, rounded as eager rounds, with the gradients of its weight and bias.
Graph norm_backward(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = cast(g.input("x", dtype, {tokens, columns}), f32);
    const Value dy = g.input("dy", dtype, {tokens, columns});
    const Value weight = g.input("weight", dtype, {columns});
    const Value r = g.input("r", f32, {tokens});
    const Value normed = x * r;
    const Value d_normed = cast(dy * weight, f32);
    g.output("d_x", cast(r * (d_normed - normed * mean(d_normed * normed)), dtype));
    g.output("d_weight", sum(dy * cast(normed, dtype), tokens));
    g.output("d_bias", sum(dy, tokens));
    return g;
}

// A norm of each group of columns, with a weight for each column and a number for each group.
Graph weighted_groups(std::int64_t groups, std::int64_t width, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis group = g.columns("groups", groups);
    const Axis column = g.columns("width", width);
    const Value x = cast(g.input("x", dtype, {tokens, group, column}), f32);
    const Value gate = cast(g.input("gate", dtype, {tokens, group, column}), f32);
    const Value normed = cast(x * rsqrt(mean(x * x, column) + 1e-5), dtype) * g.input("weight", dtype, {group, column});
    g.output("y", cast(cast(normed, f32) * gate / (1 + exp(-gate)) * g.input("scale", f32, {group}), dtype));
    return g;
}

// Norms of groups of a head's columns, with weights of each: rows of two kinds, one of them declared.
Graph weighted_parts(std::int64_t heads, std::int64_t groups, std::int64_t width) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis head = g.rows("heads", heads);
    const Axis group = g.columns("groups", groups);
    const Axis column = g.columns("width", width);
    const Value x = g.input("x", bf16, {tokens, head, group, column});
    const Value h = cast(x, f32);
    const Value normed = cast(h * rsqrt(mean(h * h, column) + 1e-5), bf16);
    g.output("y", normed * g.input("weight", bf16, {head, group, column}));
    return g;
}

// A weight for each head, which are rows.
Graph weighted_heads(std::int64_t heads, std::int64_t width) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis head = g.rows("heads", heads);
    const Value x = g.input("x", bf16, {tokens, head, width});
    g.output("y", x * g.input("weight", bf16, {head, width}));
    return g;
}

// A norm with a scale and a shift of each batch, and of each frame of a batch where there are some.
Graph adaptive_norm(std::int64_t frames, std::int64_t columns, Dtype dtype) {
    Graph g;
    std::vector<Dim> outer = {g.rows("batch")};
    if (frames > 1) outer.emplace_back(g.rows("frames", frames));
    const Axis column = g.columns("c", columns);
    std::vector<Dim> rows = outer;
    rows.emplace_back(g.rows("tokens"));
    rows.emplace_back(column);
    outer.emplace_back(column);
    const Value x = cast(g.input("x", dtype, rows), f32);
    const Value normed = x * rsqrt(mean(x * x) + 1e-5);
    const Value scale = cast(g.input("scale", dtype, outer), f32);
    g.output("y", cast(normed * (1 + scale) + cast(g.input("shift", dtype, outer), f32), dtype));
    return g;
}

// A gate for each batch, and one for each head of a batch, beside no norm: of rows that nothing reduces.
Graph batch_gates(std::int64_t heads, std::int64_t width) {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis tokens = g.rows("tokens");
    const Axis column = g.columns("width", width);
    if (heads == 1) {
        g.output("y", g.input("x", bf16, {batch, tokens, column}) * g.input("gate", bf16, {batch, column}));
        return g;
    }
    const Axis head = g.rows("heads", heads);
    g.output("y", g.input("x", bf16, {batch, tokens, head, column}) * g.input("gate", bf16, {batch, head, column}));
    return g;
}

// The mean of each batch's normed rows, which nothing stores.
Graph pooled_norm(std::int64_t columns) {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis tokens = g.rows("tokens", 20);
    const Value x = cast(g.input("x", bf16, {batch, tokens, columns}), f32);
    g.output("y", cast(mean(x * rsqrt(mean(x * x) + 1e-5), tokens), bf16));
    return g;
}

// One number of all rows and columns, which takes several launches to judge. Of f32, whose sums are carried as pairs:
// a sum of narrow terms that cancel is as exact as its partial sums are, which the bar does not know.
Graph one_number(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    g.output("sum", sum(sum(cast(g.input("x", dtype, {tokens, columns}), f32)), tokens));
    return g;
}

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

// A convolution of each column over four rows, each sequence's own, and a logistic function of what comes of it.
Graph convolution(std::int64_t columns, Dtype dtype, bool batched) {
    const std::string sequence = batched ? "batch, " : "";
    return Graph::parse(fmt::format(R"({0}rows tokens
columns d = {1}
columns taps = 4
input x: {2}[{3}tokens, d]
input w: {2}[taps, d]
h0 = cast(x, f32) * cast(index(w, 3, d), f32)
h1 = cast(index(x, {3}iota(tokens, i64) - 1, d), f32) * cast(index(w, 2, d), f32)
h2 = cast(index(x, {3}iota(tokens, i64) - 2, d), f32) * cast(index(w, 1, d), f32)
h3 = cast(index(x, {3}iota(tokens, i64) - 3, d), f32) * cast(index(w, 0, d), f32)
h = h3 + h2 + h1 + h0
output y = cast(h / (1 + exp(-h)), {2})
)",
                                    batched ? "rows batch\n" : "", columns, name(dtype), sequence),
                        "convolution");
}

// Two tensors' rows before and behind, what a dear function makes of them, a number of each such row, whether there is
// one, and rows of a table that ids beside say.
Graph neighbours(std::int64_t columns, Dtype dtype) {
    return Graph::parse(fmt::format(R"(rows tokens
rows words
columns d = {0}
input x: {1}[tokens, d]
input z: f32[tokens, d]
input scale: f32[tokens]
input ids: i32[tokens]
input table: {1}[words, d]
two_back = iota(tokens, i64) - 2
one_back = iota(tokens, i64) - 1
one_on = iota(tokens, i64) + 1
before = exp(-abs(cast(index(x, two_back, d), f32))) * index(scale, two_back)
here = exp(-abs(cast(x, f32))) * scale
behind = exp(-abs(cast(index(x, one_on, d), f32))) * index(scale, one_on)
word = cast(index(table, index(ids, one_back), d), f32)
last = select(one_on < extent(tokens, i64), index(z, one_on, d), -1)
output y = cast(before + here - behind + word, {1})
output mixed = index(z, two_back + 1, d) * here - last
)",
                                    columns, name(dtype)),
                        "neighbours");
}

// Every legal schedule of every kernel of the graph, one program each.
void add_cases(const std::string& name, const Graph& graph, const Target& target, std::vector<Case>* cases) {
    const Plan plan = plan_graph(*graph.data(), target);
    for (const Group& varied : plan.groups) {
        for (const Schedule& schedule : legal_schedules(varied, target)) {
            Program program = compile_plan(*graph.data(), plan, target, [&](const Group& group) {
                return group.name == varied.name ? std::optional(schedule) : std::nullopt;
            });
            cases->push_back(
                {fmt::format("{} on {}: {}", name, target.name, print(schedule)), graph, std::move(program)});
        }
    }
}

// The same of a derived backward.
void add_backward_cases(const std::string& name, const Graph& graph, const std::vector<std::string>& trained,
                        const Target& target, std::vector<Case>* cases) {
    const auto both = std::make_shared<const Differentiated>(differentiate(graph, trained));
    const std::size_t first = cases->size();
    add_cases(name + " backward", both->backward, target, cases);
    for (std::size_t i = first; i < cases->size(); ++i) (*cases)[i].differentiated = both;
}

// Widths on both sides of what a vector, a sub-warp, a warp and a block hold, of operations of every structure; every
// operation besides at kCommonWidths.
struct Widths {
    std::string_view op;
    std::vector<std::int64_t> columns;
};
const std::vector<Widths> kWidths = {
    {"rms_norm", {1, 7, 128, 1000, 4096}},
    {"add_rms_norm", {3, 129, 2880}},
    {"layer_norm", {2, 1024}},
    {"softmax", {31, 127, 1500, 8192}},
    {"log_softmax", {1000}},
    {"logsumexp", {128}},
    {"swiglu", {7, 1000, 4096}},
    {"geglu", {128, 31}},
    {"cross_entropy", {1031, 4096}},
    {"sparsemax", {3, 1500, 4096}},
    {"dropout_add", {7, 128, 1000}},
};
constexpr std::array<std::int64_t, 2> kCommonWidths = {64, 100};
constexpr std::int64_t kWidestBackward = 1500;

// A graph whose every schedule is a case.
struct Request {
    std::string_view op;
    OpRequest made;
    bool backward = false;
};

std::vector<Request> all_requests(const Target& target) {
    std::vector<Request> requests;
    Coverage forwards("simt_test", "emitted source against the oracle's bar without a GPU, under every schedule",
                      target.name, "a sample");
    Coverage backwards("simt_test backward", "derived backwards likewise", target.name, "a sample");
    const auto add = [&](std::string_view op, std::int64_t columns) {
        for (const Dtype dtype : {bf16, f16, f32}) {
            const OpRequest made = {columns, dtype, {}};
            if (is_taken(op)) requests.push_back({op, made});
            forwards.add(op, made);
            if (columns > kWidestBackward || trained_inputs(op, make_graph(op, made)).empty()) continue;
            if (is_taken(op)) requests.push_back({op, made, true});
            backwards.add(op, made);
        }
    };
    for (const auto& [op, widths] : kWidths) {
        for (const std::int64_t columns : widths) add(op, columns);
    }
    for (const CompositeInfo& op : composites()) {
        for (const std::int64_t columns : kCommonWidths) add(op.name, columns);
    }
    CHECK(forwards.difference() == "");
    CHECK(backwards.difference() == "");
    return requests;
}

void add_request(const Request& request, const Target& target, std::vector<Case>* cases) {
    const Graph graph = make_graph(request.op, request.made);
    const std::string name =
        fmt::format("{} {} {}", request.op, request.made.columns, rowjit::name(request.made.dtype));
    if (request.backward) {
        add_backward_cases(name, graph, trained_inputs(request.op, graph), target, cases);
    } else {
        add_cases(name, graph, target, cases);
    }
}

// CI runs a sample with a fixed seed, a schedule of each graph that it takes; ./dev fuzz, which sets
// ROWJIT_FUZZ_SEEDS, runs everything.
std::vector<Case> sampled_cases(const Target& target, std::size_t count) {
    const bool everything = std::getenv("ROWJIT_FUZZ_SEEDS") != nullptr;
    std::vector<Request> requests = all_requests(target);
    std::mt19937 random(20241121);
    if (!everything) {
        std::shuffle(requests.begin(), requests.end(), random);
        requests.resize(std::min(count, requests.size()));
    }
    std::vector<Case> cases;
    for (const Request& request : requests) {
        std::vector<Case> found;
        add_request(request, target, &found);
        const std::size_t first = everything ? 0 : random() % found.size();
        const std::size_t last = everything ? found.size() : first + 1;
        std::move(found.begin() + static_cast<std::ptrdiff_t>(first), found.begin() + static_cast<std::ptrdiff_t>(last),
                  std::back_inserter(cases));
    }
    return cases;
}

constexpr std::size_t kKernelsAtOnce = 24;  // per run of the compiler: its start costs as much as a few kernels

Bindings inputs_of(const Case& one, const RowExtents& rows, const RandomOptions& options) {
    return one.differentiated ? random_inputs(*one.differentiated, rows, options)
                              : random_inputs(*one.graph.data(), rows, options);
}

RowExtents extents_of(const Case& one, std::int64_t rows) {
    RowExtents extents = all_rows(*one.graph.data(), rows);
    if (one.differentiated) extents.merge(all_rows(*one.differentiated->forward.data(), rows));
    return extents;
}

// Builds the cases, some at a time, and calls check(i, device, executable) for each.
template <typename Check>
void each_built(const std::vector<Case>& cases, const Target& target, const Check& check) {
    const Device device = simt::device(target);
    for (std::size_t first = 0; first < cases.size(); first += kKernelsAtOnce) {
        const std::size_t last = std::min(first + kKernelsAtOnce, cases.size());
        std::vector<Program> programs;
        for (std::size_t i = first; i < last; ++i) programs.push_back(cases[i].program);
        const std::vector<Executable> executables = simt::build(std::move(programs), target, device);
        for (std::size_t i = first; i < last; ++i) check(i, device, executables[i - first]);
    }
}

// `extremes`: huge values, infinities and NaN in every fourth case, of forwards. A sum over rows of both signs
// overflows, or not, by the order it is taken in.
void check_cases(const std::vector<Case>& cases, const Target& target, std::int64_t rows = 5, bool extremes = true) {
    each_built(cases, target, [&](std::size_t i, const Device& device, const Executable& executable) {
        const bool extreme = extremes && !cases[i].differentiated && i % 4 == 3;
        const auto inputs = [&](std::uint64_t launch) {
            return inputs_of(cases[i], extents_of(cases[i], rows),
                             {.seed = i + launch * cases.size(), .out_of_range = true, .extremes = extreme});
        };
        const auto outputs = verify_several(device, executable, *cases[i].graph.data(), inputs,
                                            {.row_padding = i % 2 == 0 ? 0 : 16, .guard_bytes = 0});
        CHECK_MESSAGE(within_bar(outputs), cases[i].name, "\n", describe(outputs));
    });
}

// Runs one program whose emitted text was changed; the first fault or wrong output, or "" when nothing was noticed.
std::string outcome_of(const Graph& graph, const Schedule& schedule, const Target& target,
                       const simt::Sabotage& sabotage, std::int64_t rows = 7) {
    const Device device = simt::device(target);
    std::vector<Program> programs;
    programs.push_back(compile(*graph.data(), target, [&](const Group&) { return std::optional(schedule); }));
    REQUIRE(programs[0].steps[0].kernel.schedule == schedule);
    const std::vector<Executable> executables = simt::build(std::move(programs), target, device, sabotage);
    const Bindings bindings = random_inputs(*graph.data(), all_rows(*graph.data(), rows), {.seed = 3});
    try {
        // Guards wide enough that a broken kernel spoils poison rather than ending the process through a sanitizer.
        const auto outputs =
            verify(device, executables[0], *graph.data(), bindings, {.guard_bytes = std::size_t{1} << 16});
        return within_bar(outputs) ? "" : describe(outputs);
    } catch (const std::exception& error) {
        return error.what();
    }
}

// Removes the last occurrence; the test is void when there is none.
std::string without(std::string text, std::string_view what) {
    const std::size_t at = text.rfind(what);
    REQUIRE(at != std::string::npos);
    return text.erase(at, what.size());
}

// Replaces the first occurrence likewise.
simt::Sabotage replacing(const std::string& what, const std::string& with) {
    return [=](std::string text) {
        const std::size_t at = text.find(what);
        REQUIRE(at != std::string::npos);
        return text.replace(at, what.size(), with);
    };
}

// Not so the kernels that add up parts, or compute with numbers of a row alone.
bool reduces_columns(const Group& group) { return phase_count(*group.graph) > 1; }

const Kernel& main_kernel(const Program& program) {
    const auto main = std::find_if(program.steps.begin(), program.steps.end(),
                                   [](const Step& step) { return reduces_columns(step.group); });
    REQUIRE(main != program.steps.end());
    return main->kernel;
}

Schedule block_schedule(int vector) {
    Schedule schedule;
    schedule.family = Family::kRowReduction;
    schedule.residency = Residency::kRegisters;
    schedule.threads_per_row = 256;
    schedule.vector = vector;
    return schedule;
}

}  // namespace

TEST_CASE("emitted kernels agree with the oracle on warps of 32") {
    const Target target = simt::target("sm_90a");
    check_cases(sampled_cases(target, 96), target);
}

TEST_CASE("emitted kernels agree with the oracle on waves of 64") {
    const Target target = simt::target("gfx942");
    check_cases(sampled_cases(target, 72), target);
}

TEST_CASE("sums over rows beside a row reduction agree with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const std::int64_t columns : {7, 96, 1000}) {
            add_cases(fmt::format("norm_backward {}", columns), norm_backward(columns, bf16), target, &cases);
        }
        add_cases("norm_backward 256 f16", norm_backward(256, f16), target, &cases);
        for (const std::int64_t columns : {96, 1000})
            add_cases(fmt::format("one_number {} f32", columns), one_number(columns, f32), target, &cases);
        check_cases(cases, target, 19, false);
    }
}

TEST_CASE("sums over rows of a weight for each group agree with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        const auto add = [&](const std::string& what, const Graph& graph, const std::vector<std::string>& trained) {
            const std::size_t first = cases.size();
            add_backward_cases(what, graph, trained, target, &cases);
            const std::vector<Step>& steps = cases.at(first).program.steps;
            return std::any_of(steps.begin(), steps.end(), [](const Step& step) { return !step.kernel.apart.empty(); });
        };
        const std::vector<std::string> trained = {"x", "gate", "weight", "scale"};
        CHECK(add("weighted_groups", weighted_groups(16, 64, bf16), trained));
        CHECK(add("weighted_heads", weighted_heads(16, 64), {"x", "weight"}));
        CHECK(add("weighted_parts", weighted_parts(3, 8, 64), {"x", "weight"}));
        // Rows of eight threads, twelve of which are no whole waves of 64; and rows of a warp or more.
        CHECK(add("weighted_groups of 12", weighted_groups(12, 64, bf16), trained) == (target.warp_size == 32));
        if (target.warp_size == 32) CHECK(add("weighted_groups f32", weighted_groups(3, 264, f32), trained));
        check_cases(cases, target, 7, false);
    }
}

TEST_CASE("sums over rows of each batch share a kernel with the rows and agree with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        const auto has_outer = [&](std::size_t first) {
            const std::vector<Step>& steps = cases.at(first).program.steps;
            return steps.size() == 2 && !steps[0].kernel.outer.empty();
        };
        const auto add = [&](const std::string& what, const Graph& graph) {
            const std::size_t first = cases.size();
            add_backward_cases(what, graph, {}, target, &cases);
            return has_outer(first);
        };
        CHECK(add("adaptive_norm", adaptive_norm(1, 96, bf16)));
        CHECK(add("adaptive_norm f16", adaptive_norm(1, 515, f16)));
        CHECK(add("adaptive_norm of frames", adaptive_norm(3, 264, bf16)));
        CHECK(add("batch_gates", batch_gates(1, 264)));
        CHECK(add("batch_gates of heads", batch_gates(16, 64)));
        const std::size_t pooled = cases.size();
        add_cases("pooled_norm", pooled_norm(264), target, &cases);
        CHECK(has_outer(pooled));
        for (const std::int64_t rows : {3, 11}) check_cases(cases, target, rows, false);
    }
}

TEST_CASE("the gradient of a packed row, stored a part at a time, agrees with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        const OptionMap packed = {{"packed", "true"}};
        for (const std::int64_t columns : {20, 264}) {
            add_backward_cases(fmt::format("packed swiglu {}", columns), make_graph("swiglu", {columns, bf16, packed}),
                               {"gate_up"}, target, &cases);
        }
        add_backward_cases("packed geglu f32", make_graph("geglu", {96, f32, packed}), {"gate_up"}, target, &cases);
        check_cases(cases, target, 5, false);
    }
}

TEST_CASE("peeled rows agree with the oracle wherever each tensor's begin") {
    constexpr std::array kPlacements = {RunOptions{.guard_bytes = 0}, RunOptions{.row_padding = 3, .guard_bytes = 0},
                                        RunOptions{.row_padding = 1, .padding_growth = 1, .guard_bytes = 0}};
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const auto& [op, columns, dtype] :
             std::initializer_list<std::tuple<std::string_view, int, Dtype>>{{"softmax", 1031, bf16},
                                                                             {"softmax", 4099, bf16},
                                                                             {"log_softmax", 515, f32},
                                                                             {"rms_norm", 1031, f16},
                                                                             {"layer_norm", 1031, bf16},
                                                                             {"cross_entropy", 2050, bf16},
                                                                             {"kl_div", 1031, f32},
                                                                             {"sparsemax", 515, bf16},
                                                                             {"top_k", 1031, bf16},
                                                                             {"swiglu", 1031, bf16},
                                                                             {"dropout_add", 1031, f32},
                                                                             {"embedding", 1031, bf16}}) {
            OpRequest request = {columns, dtype, {}};
            if (op == "top_k") request.options["count"] = "3";  // whose own rows may lie anywhere too
            const Graph graph = make_graph(op, request);
            const std::string called = fmt::format("{} {} on {}", op, columns, name);
            std::vector<Case> all;
            add_cases(called, graph, target, &all);
            if (op == "softmax") add_backward_cases(called, graph, {"x"}, target, &all);
            std::size_t peeled = 0;
            for (Case& one : all) {
                const std::vector<Step>& steps = one.program.steps;
                const bool peels =
                    std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.kernel.schedule.peel; });
                if (peels && peeled++ % 3 == 0) cases.push_back(std::move(one));
            }
            CHECK_MESSAGE(peeled > 0, called, " is not peeled");
        }
        each_built(cases, target, [&](std::size_t i, const Device& device, const Executable& executable) {
            for (const RunOptions& placed : kPlacements) {
                const auto inputs = [&](std::uint64_t launch) {
                    return inputs_of(cases[i], extents_of(cases[i], 9),
                                     {.seed = i + launch * cases.size(), .out_of_range = true});
                };
                const auto outputs = verify_several(device, executable, *cases[i].graph.data(), inputs, placed);
                CHECK_MESSAGE(within_bar(outputs), cases[i].name, ", rows ", placed.row_padding, " and ",
                              placed.padding_growth, " apart\n", describe(outputs));
            }
        });
    }
}

TEST_CASE("sums over segments, searches and gathered rows agree with the oracle under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("ragged 7", ragged(7, bf16), target, &cases);
        add_cases("ragged 64 f32", ragged(64, f32), target, &cases);
        add_cases("centered segments", centered_segments(0, f32, i32), target, &cases);
        add_cases("centered segments 24", centered_segments(24, bf16, i64), target, &cases);
        // A run, one and a place, three, which one merge orders, and so many that a second one does, of fewer runs
        // each.
        for (const std::int64_t tokens : {128, 129, 300, 2051}) {
            Graph rows;
            const Value table = rows.input("table", bf16, {rows.rows("vocabulary", 9), 12});
            rows.output("y", embedding(table, rows.input("ids", i64, {rows.rows("tokens", tokens)})));
            add_cases(fmt::format("embedding backward of {}", tokens), gradient(rows, {"table"}), target, &cases);
        }
        check_cases(cases, target, 13, false);
    }
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

// On a few multiprocessors, so that a block has many rows of some that are few, and none of others.
TEST_CASE("rows taken one after the other are the oracle's, wherever a sequence begins") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        Target target = simt::target(name);
        target.sm_count = 3;
        std::vector<Case> all;
        for (const bool batched : {false, true}) {
            for (const auto& [columns, dtype] : std::vector<std::pair<int, Dtype>>{{8, bf16}, {72, bf16}, {40, f32}}) {
                const Graph graph = convolution(columns, dtype, batched);
                const std::string called = fmt::format("convolution {}{}", columns, batched ? " batched" : "");
                add_cases(called, graph, target, &all);
                add_backward_cases(called, graph, {"x", "w"}, target, &all);
            }
        }
        add_cases("neighbours 1032", neighbours(1032, bf16), target, &all);
        add_cases("neighbours 30", neighbours(30, f32), target, &all);
        add_backward_cases("neighbours 24", neighbours(24, f16), {"x", "z", "scale"}, target, &all);
        std::vector<Case> cases;
        std::map<std::string, int> walked;
        for (Case& one : all) {
            const std::vector<Step>& steps = one.program.steps;
            const bool walks =
                std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.kernel.walk.has_value(); });
            const std::string graph = one.name.substr(0, one.name.find(':'));
            if (walks && walked[graph]++ % 11 == 0) cases.push_back(std::move(one));
        }
        CHECK(walked.size() >= 14);
        for (const std::int64_t rows : {1, 13}) check_cases(cases, target, rows, false);
    }
}

TEST_CASE("a window that stands still, or is not filled before its run, is caught") {
    Target target = simt::target("sm_90a");
    target.sm_count = 1;
    const Graph graph = convolution(64, bf16, false);
    const Plan plan = plan_graph(*graph.data(), target);
    const std::vector<Schedule> legal = legal_schedules(plan.groups[0], target);
    const auto schedule = std::find_if(legal.begin(), legal.end(), [](const Schedule& s) { return s.ahead > 0; });
    REQUIRE(schedule != legal.end());
    const auto outcome = [&](const simt::Sabotage& sabotage) {
        return outcome_of(graph, *schedule, target, sabotage, 40);
    };
    CHECK(outcome({}) == "");
    CHECK(outcome(replacing("[back] = cast_window[back - 1]", "[back] = cast_window[back]")) != "");
    CHECK(outcome(replacing("++walked;", "")) != "");
    CHECK(outcome(replacing("rj_wait_for_copies<2>();", "")) != "");
    CHECK(outcome(replacing("row = begin - ", "row = begin + 0 * ")) != "");
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
    Schedule schedule;
    schedule.family = Family::kRowsReduction;
    schedule.residency = Residency::kReload;
    schedule.rows_per_block = 256;
    schedule.shares = 8;
    schedule.vector = 4;
    constexpr std::int64_t kRows = 400;
    CHECK(outcome_of(graph, schedule, target, {}, kRows) == "");
    CHECK(outcome_of(graph, schedule, target, replacing("if (waiting == 0) break;", "break;"), kRows) != "");
    CHECK(outcome_of(graph, schedule, target, replacing("if (shared == part)", "if (part == 1)"), kRows) != "");
}

// The schedule for the kernel that reduces columns, which has to take it; the static rules' for others.
std::optional<Schedule> if_main(const Group& group, const Schedule& schedule, const Target& target,
                                const std::string& name) {
    if (!reduces_columns(group)) return std::nullopt;
    const Offer<Kernel> kernel = build_kernel(group, schedule, target);
    REQUIRE_MESSAGE(kernel, name, ": ", print(schedule), ": ", kernel.reason());
    return schedule;
}

template <class Add>
void each_reduction(const Add& add) {
    for (const std::int64_t columns : {100, 1000, 2048}) {
        for (const char* op : {"rms_norm", "layer_norm", "softmax", "cross_entropy"})
            add(fmt::format("{} {}", op, columns), make_graph(op, {columns, bf16, {}}));
        add(fmt::format("layer_norm {} f32", columns), make_graph("layer_norm", {columns, f32, {}}));
        add(fmt::format("norm_backward {}", columns), norm_backward(columns, bf16));
    }
}

// What pairs take at once of a row: whole vectors, as many as a thread has, beside one that only some threads have.
TEST_CASE("pairs take any number of a thread's vectors") {
    const Target target = simt::target("sm_90a");
    Schedule schedule = block_schedule(4);
    schedule.threads_per_row = 32;
    schedule.online = true;
    std::vector<Case> cases;
    for (const int vectors : {1, 2, 3, 5, 6, 7}) {
        for (const std::int64_t more : {0, 40}) {
            const std::int64_t columns = 32 * 4 * vectors + more;
            for (const char* op : {"softmax", "layer_norm"}) {
                const Graph graph = make_graph(op, {columns, bf16, {}});
                Program program = compile(*graph.data(), target, [&](const Group&) { return std::optional(schedule); });
                cases.push_back({fmt::format("{} {}", op, columns), graph, std::move(program)});
            }
        }
    }
    check_cases(cases, target);
}

TEST_CASE("a thread keeps one narrow column in shared memory and touches no other thread's beside it") {
    Schedule schedule;
    schedule.family = Family::kRowReduction;
    schedule.residency = Residency::kShared;
    schedule.threads_per_row = 128;
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const Dtype dtype : {bf16, f16}) {
            for (const char* op : {"softmax", "sparsemax", "layer_norm"}) {
                const Graph graph = make_graph(op, {1001, dtype, {}});
                Program program = compile(*graph.data(), target, [&](const Group&) { return std::optional(schedule); });
                cases.push_back({fmt::format("{} on {}", op, name), graph, std::move(program)});
            }
        }
        check_cases(cases, target);
    }
}

TEST_CASE("numbers of a row that are parted, being more than a thread holds, agree with the oracle") {
    const Target target = simt::target("sm_90a");
    const auto differentiated = [](const char* streams, const char* iterations) {
        const Graph graph = make_graph("hyper_pre", {64, f32, {{"streams", streams}, {"iterations", iterations}}});
        return std::make_shared<const Differentiated>(differentiate(graph, trained_inputs("hyper_pre", graph)));
    };
    const auto both = differentiated("4", "8");
    const auto six = differentiated("6", "1");
    Program program = compile(*both->backward.data(), target);
    const auto loads_in_rounds = [&](const Step& step) {
        return emit_gpu_body(step.kernel, target).find(" = rj_load_one(tmp_20 + ((round * -") != std::string::npos;
    };
    REQUIRE(std::ranges::any_of(program.steps, loads_in_rounds));
    check_cases({{"hyper_pre backward", both->backward, std::move(program), both},
                 {"hyper_pre of six streams, backward", six->backward, compile(*six->backward.data(), target), six}},
                target);
}

// Ninety steps from the row's greatest and its sum, each from the two before; the second and third last are stored too,
// and one of the first ones.
Graph written_out(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Value x = cast(g.input("x", dtype, {g.rows("tokens"), columns}), f32);
    std::vector<Value> steps = {max(x), sum(x * x)};
    const Value most = maximum(steps[0], 0.5);
    for (int i = 0; i < 90; ++i) {
        const Value& last = steps.back();
        steps.push_back(last * 0.5 + steps[steps.size() - 2] / (abs(last) + most));
    }
    g.output("y", cast(x * steps.back(), dtype));
    for (const std::size_t step : {5, 89, 90}) g.output(fmt::format("step_{}", step), steps[step]);
    return g;
}

TEST_CASE("derivatives that are too much for one kernel, and values that read many places, agree with the oracle") {
    std::string sums = "rows tokens\ninput x: bf16[tokens, 1024]\nh = cast(x, f32)\n";
    for (int i = 0; i < 24; ++i)
        sums += fmt::format("output o{0} = cast(h * {1}.5 + sum(h * {2}.25), bf16)\n", i, i + 1, i + 2);
    std::string shifts = "rows tokens\ncolumns d = 128\ninput x: f32[tokens, d]\nv0 = x\n";
    for (int i = 0; i < 7; ++i)
        shifts += fmt::format("v{} = (index(v{}, tokens, (d + {}) % 128) - v{}) * 0.7\n", i + 1, i, 1 << i, i);
    const Target& target = find_target("sm_90a");
    std::vector<Case> cases;
    for (const auto& [name, text] : {std::pair("sums", sums), {"shifts", shifts + "output y = v7\n"}}) {
        const Graph graph = Graph::parse(text, name);
        const auto both = std::make_shared<const Differentiated>(differentiate(graph));
        Program program = compile(*both->backward.data(), target);
        CHECK(program.steps.size() > 1);
        cases.push_back({fmt::format("{} backward", name), both->backward, std::move(program), both});
    }
    check_cases(cases, target, 3, false);
}

TEST_CASE("steps that a graph has written out agree with the oracle as the loop that they are emitted as") {
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("ninety steps", written_out(256, bf16), target, &cases);
        const Graph sinkhorn = make_graph("hyper_pre", {64, f32, {}});
        cases.push_back({"hyper_pre", sinkhorn, compile(*sinkhorn.data(), target)});
        for (const Case& one : cases) {
            const auto loops = [&](const Step& step) {
                return emit_gpu_body(step.kernel, target).find("for (int round = 0;") != std::string::npos;
            };
            CHECK_MESSAGE(std::any_of(one.program.steps.begin(), one.program.steps.end(), loops), one.name);
        }
        check_cases(cases, target);
    }
}

TEST_CASE("a group's sums made of its channels' agree with the oracle") {
    const Graph graph = make_graph("group_norm", {4096, bf16, {{"groups", "2"}, {"channels", "9"}}});
    const auto both = std::make_shared<const Differentiated>(differentiate(graph, trained_inputs("group_norm", graph)));
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        Program program = compile(*both->backward.data(), target);
        REQUIRE(program.steps.size() == 4);
        check_cases({{"group_norm backward", both->backward, std::move(program), both}}, target, 2);
    }
}

TEST_CASE("sums of two products overflow and cancel on GPUs as eager's do") {
    const Target target = simt::target("sm_90a");
    const Device device = simt::device(target);
    std::vector<Graph> graphs;
    for (const char* op : {"rope", "rope_complex", "mrope", "hyper_post"})
        graphs.push_back(make_graph(op, {64, bf16, {}}));
    graphs.push_back(differentiate(graphs[1], trained_inputs("rope_complex", graphs[1])).backward);
    graphs.push_back(differentiate(graphs[3], trained_inputs("hyper_post", graphs[3])).backward);
    std::vector<Program> programs;
    for (const Graph& graph : graphs) programs.push_back(compile(*graph.data(), target));
    const std::vector<Executable> executables = simt::build(std::move(programs), target, device);
    for (std::size_t i = 0; i < graphs.size(); ++i) {
        CAPTURE(i);
        for (const double huge : {3e38, -3e38, 1e30}) {
            Bindings bindings = random_inputs(*graphs[i].data(), all_rows(*graphs[i].data(), 6), {.seed = 5});
            for (auto& [name, tensor] : bindings.tensors) {
                if (!is_float(tensor.dtype)) continue;
                // Neighbours that are equal, opposite, and beside numbers of common size.
                for (std::size_t at = 0; at < tensor.values.size(); ++at) {
                    const double signs[] = {1, 1, -1, 1, 0};
                    const double value = huge * signs[at * 7 / 3 % std::size(signs)];
                    if (value != 0) tensor.values[at] = round_to(tensor.dtype, value);
                }
            }
            const auto outputs = verify(device, executables[i], *graphs[i].data(), bindings);
            CHECK_MESSAGE(within_bar(outputs), huge, describe(outputs));
        }
    }
}

TEST_CASE("weights of narrow rows are the oracle's wherever the greatest of a row lies, and whatever multiplies them") {
    const Target target = simt::target("sm_90a");
    constexpr std::int64_t kColumns = 264;
    // Where a greatest is multiplied, where it is no more, and where its product would overflow.
    const double greatest[] = {0,    -0.3,  88,     -700, 5000,  1.1e6,     1.3e8,    1.4e8,
                               1e12, -1e12, 1.6e38, 3e38, -3e38, -INFINITY, INFINITY, 20};
    const double factors[] = {1, -1e-6, 0, 1e-30, -1e-33, 1e-37, 1e30, 0.5};
    std::vector<Case> cases;
    for (const Dtype dtype : {bf16, f16}) {
        add_cases("softmax", make_graph("softmax", {kColumns, dtype, {}}), target, &cases);
        add_cases("logsumexp", make_graph("logsumexp", {8 * kColumns, dtype, {}}), target, &cases);  // in one pass too
    }
    add_cases("scaled",
              Graph::parse("rows t\ninput x: bf16[t, 264]\ninput k: f32[t]\nh = cast(x, f32)\n"
                           "output y = cast(k * exp(h - max(h)), bf16)\n"),
              target, &cases);
    each_built(cases, target, [&](std::size_t i, const Device& device, const Executable& executable) {
        CAPTURE(cases[i].name);
        const GraphData& graph = *cases[i].graph.data();
        const auto rows = static_cast<std::int64_t>(std::size(greatest));
        Bindings bindings = random_inputs(graph, all_rows(graph, rows), {.seed = i});
        for (auto& [name, tensor] : bindings.tensors) {
            const std::size_t each = tensor.values.size() / std::size(greatest);
            for (std::size_t at = 0; at < tensor.values.size(); ++at) {
                const std::size_t row = at / each;
                // From the greatest down to what weighs less than the least denormal, with a gap.
                const double below = at % 5 == 0 ? 0.0 : static_cast<double>(at % each) * 0.6;
                const double value = each == 1 ? factors[row % std::size(factors)] : greatest[row] - below;
                tensor.values[at] = round_to(tensor.dtype, value);
            }
        }
        const auto outputs = verify(device, executable, graph, bindings);
        CHECK_MESSAGE(within_bar(outputs), describe(outputs));
    });
}

TEST_CASE("what is left of sums that cancel is exact to the last unit under every schedule, and overflows as eager's") {
    const Target target = simt::target("sm_90a");
    std::vector<Case> cases;
    for (const Dtype dtype : {bf16, f32}) {
        for (const Graph& graph : differences_of_sums(1000, dtype)) add_cases("differences", graph, target, &cases);
    }
    each_built(cases, target, [&](std::size_t i, const Device& device, const Executable& executable) {
        CAPTURE(cases[i].name);
        const GraphData& graph = *cases[i].graph.data();
        const auto inputs = [&](bool extremes) {
            return random_inputs(graph, all_rows(graph, 5), {.seed = 9, .extremes = extremes});
        };
        check_differences(run(device, executable, graph, inputs(false)),
                          interpret(graph, inputs(false), Rounding::kExact));
        CHECK(within_bar(verify(device, executable, graph, inputs(true))));
    });
}

TEST_CASE("a divergence of mixtures errs to neither side") {
    const Target target = simt::target("sm_90a");
    const Device device = simt::device(target);
    for (const Dtype dtype : {bf16, f16}) {
        const Graph graph = make_graph("jsd", {4096, dtype, {}});
        std::vector<Program> programs;
        programs.push_back(compile(*graph.data(), target));
        const Executable executable = simt::build(std::move(programs), target, device)[0];
        double units = 0;
        constexpr int kLaunches = 6;
        for (std::uint64_t seed = 1; seed <= kLaunches; ++seed) {
            const Bindings bindings = random_inputs(*graph.data(), all_rows(*graph.data(), 4), {.seed = seed});
            const double got =
                run(device, executable, *graph.data(), bindings, {.guard_bytes = 0}).at("loss").values[0];
            const double exact = interpret(*graph.data(), bindings, Rounding::kExact).at("loss").values[0];
            units += (got - exact) / ulp(f32, exact) / kLaunches;
        }
        // The rounding of log2 e was 2.5 units of it.
        CHECK_MESSAGE(std::fabs(units) < 1, name(dtype), ": ", units);
    }
}

TEST_CASE("rows divided over clusters of blocks agree with the oracle") {
    const Target target = simt::target("sm_90a");
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, const Graph& graph) {
        for (const auto& [blocks, threads, residency, online, skew] :
             {std::tuple(2, 32, Residency::kRegisters, false, false),
              std::tuple(8, 128, Residency::kRegisters, true, false),
              std::tuple(4, 64, Residency::kRegisters, true, true), std::tuple(4, 64, Residency::kShared, false, false),
              std::tuple(8, 64, Residency::kShared, true, false),
              std::tuple(16, 32, Residency::kReload, true, false)}) {
            Schedule schedule = block_schedule(4);
            schedule.threads_per_row = threads;
            schedule.column_blocks = blocks;
            schedule.residency = residency;
            schedule.online = online;
            const auto choose = [&](const Group& group) {
                Schedule chosen = schedule;
                if (makes_parts(*group.graph) || skew) chosen.blocks_per_sm = 2 * blocks;
                chosen.skew = skew;
                if (chosen.blocks_per_sm > 0 && residency == Residency::kRegisters) chosen.prefetch = true;
                return if_main(group, chosen, target, name);
            };
            Program program = compile(*graph.data(), target, choose);
            const Kernel& kernel = main_kernel(program);
            REQUIRE_MESSAGE(kernel.cluster_blocks() == blocks, name, ": ", print(kernel));
            cases.push_back({fmt::format("{}: {}", name, print(schedule)), graph, std::move(program)});
        }
    };
    each_reduction(add);
    check_cases(cases, target, 5, false);
}

// As kernels that spill are compiled again: of three and five loads a group, which no half divides, and of four.
TEST_CASE("groups of fewer loads touch nothing past the row") {
    const Target target = simt::target("sm_90a");
    Schedule schedule = block_schedule(4);
    for (const Residency residency : {Residency::kShared, Residency::kReload}) {
        schedule.residency = residency;
        for (const int rounds : {3, 4, 5}) {
            const Graph graph = make_graph("rms_norm", {256 * 4 * rounds, f32, {}});
            const std::string outcome = outcome_of(graph, schedule, target, [&](std::string text) {
                REQUIRE(text.find("RJ_GROUP(") != std::string::npos);
                for (std::size_t at; (at = text.find("RJ_GROUP(")) != std::string::npos;)
                    text.replace(at, std::string_view("RJ_GROUP(").size(), "rj_half_group(");
                return text;
            });
            CHECK_MESSAGE(outcome == "", print(schedule), ", ", rounds, " rounds: ", outcome);
        }
    }
}

// Three, five and nine warps, whose states no halving folds; seven pass into shared memory what lanes fold of several
// states at once, and in clusters of four 20 states meet as messages of a block each, of two as messages of each warp.
TEST_CASE("rows on any number of whole warps agree with the oracle") {
    using enum Residency;
    for (const auto& [architecture, threads] :
         {std::pair("sm_90a", std::vector<int>{96, 160, 224, 288}), {"gfx942", {192, 320}}}) {
        const Target target = simt::target(architecture);
        std::vector<Case> cases;
        const auto add = [&, threads = threads](const std::string& name, const Graph& graph) {
            for (const int each : threads) {
                const int blocks = target.clusters && each <= 160 ? (each < 160 ? 2 : 4) : 1;
                for (const auto& [residency, rows, column_blocks, online, stages] :
                     {std::tuple(kRegisters, 1, 1, false, 0),
                      {kRegisters, each < 256 ? 2 : 1, 1, true, 0},
                      {kShared, 1, 1, false, 0},
                      {kRegisters, 1, blocks, false, target.clusters ? 2 : 0}}) {
                    Schedule schedule = block_schedule(4);
                    schedule.threads_per_row = each;
                    schedule.residency = residency;
                    schedule.rows_per_block = rows;
                    schedule.column_blocks = column_blocks;
                    schedule.online = online;
                    schedule.stages = stages;
                    const auto choose = [&](const Group& group) {
                        Schedule chosen = schedule;
                        if (makes_parts(*group.graph) || stages > 0) chosen.blocks_per_sm = 2 * blocks;
                        if (makes_parts(*group.graph) && residency == kShared) chosen.rows_per_block = 1;
                        return if_main(group, chosen, target, name);
                    };
                    cases.push_back({fmt::format("{}: {} on {}", name, print(schedule), architecture), graph,
                                     compile(*graph.data(), target, choose)});
                }
            }
        };
        for (const std::int64_t columns : {1000, 2304}) {
            for (const char* op : {"rms_norm", "layer_norm", "softmax", "kl_div", "poly_norm"})
                add(fmt::format("{} {}", op, columns), make_graph(op, {columns, bf16, {}}));
            add(fmt::format("layer_norm {} f32", columns), make_graph("layer_norm", {columns, f32, {}}));
            add(fmt::format("norm_backward {}", columns), norm_backward(columns, bf16));
        }
        check_cases(cases, target, 5, false);
    }
}

// Extreme rows among them: every fourth.
TEST_CASE("divergences of two tensors' rows, carried in one pass, agree with the oracle") {
    const Target target = simt::target("sm_90a");
    std::vector<Case> cases;
    for (const auto& [op, dtype] :
         {std::pair("kl_div", bf16), {"kl_div", f32}, {"reverse_kl", bf16}, {"reverse_kl", f32}}) {
        const Graph graph = make_graph(op, {1000, dtype, {{"reduction", "none"}}});
        for (const auto& [threads, blocks] : {std::pair(32, 1), {256, 1}, {64, 2}}) {
            Schedule schedule = block_schedule(8);
            schedule.residency = Residency::kReload;
            schedule.threads_per_row = threads;
            schedule.column_blocks = blocks;
            schedule.online = true;
            const std::string name = fmt::format("{}: {}", op, print(schedule));
            const auto choose = [&](const Group& group) { return if_main(group, schedule, target, name); };
            Program program = compile(*graph.data(), target, choose);
            REQUIRE_MESSAGE(main_kernel(program).accumulators[0].monoid == Monoid::kDivergence, name);
            cases.push_back({name, graph, std::move(program)});
        }
    }
    check_cases(cases, target);
}

// Extreme rows among them, of which many elements are equal, or NaN: every fourth.
TEST_CASE("the greatest of a row, taken in one pass by its warps, agree with the oracle") {
    for (const char* architecture : {"sm_90a", "gfx942", "gfx1100"}) {
        const Target target = simt::target(architecture);
        std::vector<Case> cases;
        for (const auto& [count, columns, dtype] :
             {std::tuple(4, 1000, bf16), {1, 1001, f32}, {40, 999, bf16}, {5, 3000, f16}, {40, 520, f32}}) {
            const Graph graph = make_graph("top_k", {columns, dtype, {{"count", fmt::format("{}", count)}}});
            // Forty numbers of the row, twice, leave no registers for it.
            const Residency kept = count < 40 ? Residency::kRegisters : Residency::kReload;
            for (const auto& [threads, rows, residency] :
                 {std::tuple(64, 1, Residency::kReload), {64, 2, Residency::kReload}, {256, 1, kept}}) {
                Schedule schedule = block_schedule(8);
                schedule.residency = residency;
                schedule.threads_per_row = threads;
                schedule.rows_per_block = rows;
                schedule.online = true;
                const std::string name =
                    fmt::format("{} of {} on {}: {}", count, columns, architecture, print(schedule));
                const auto choose = [&](const Group& group) { return if_main(group, schedule, target, name); };
                Program program = compile(*graph.data(), target, choose);
                REQUIRE_MESSAGE(main_kernel(program).accumulators[0].greatest == count, name);
                cases.push_back({name, graph, std::move(program)});
            }
        }
        check_cases(cases, target);
    }
}

TEST_CASE("rows copied ahead into shared memory agree with the oracle") {
    const Target target = simt::target("sm_90a");
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, const Graph& graph) {
        constexpr Residency kRegisters = Residency::kRegisters;
        constexpr Residency kStages = Residency::kStages;
        for (const auto& [residency, stages, threads, rows, blocks, skew] :
             {std::tuple(kRegisters, 1, 64, 2, 1, false), std::tuple(kRegisters, 2, 128, 1, 1, false),
              std::tuple(kRegisters, 3, 256, 1, 1, false), std::tuple(kRegisters, 2, 64, 1, 2, false),
              std::tuple(kRegisters, 2, 64, 1, 2, true), std::tuple(kStages, 1, 64, 1, 1, false),
              std::tuple(kStages, 3, 64, 2, 1, false), std::tuple(kStages, 2, 64, 1, 2, true),
              std::tuple(kStages, 3, 32, 1, 4, true)}) {
            Schedule schedule = block_schedule(4);
            schedule.residency = residency;
            schedule.threads_per_row = threads;
            schedule.rows_per_block = rows;
            schedule.column_blocks = blocks;
            schedule.stages = stages;
            schedule.blocks_per_sm = 2 * blocks;
            schedule.skew = skew;
            schedule.online = skew;
            const auto choose = [&](const Group& group) { return if_main(group, schedule, target, name); };
            Program program = compile(*graph.data(), target, choose);
            REQUIRE_MESSAGE(main_kernel(program).stage_bytes > 0, name);
            cases.push_back({fmt::format("{}: {}", name, print(schedule)), graph, std::move(program)});
        }
    };
    each_reduction(add);
    check_cases(cases, target, 7, false);
}

TEST_CASE("sums over rows that stay in the one stage of a cluster's blocks agree with the oracle") {
    const Target target = simt::target("sm_90a");
    std::vector<Case> cases;
    for (const auto& [op, columns] : {std::pair("rms_norm", 2048), std::pair("rms_norm", 1000),
                                      std::pair("layer_norm", 2048), std::pair("add_rms_norm", 1540)}) {
        const Graph forward = make_graph(op, {columns, f32, {}});
        const Graph graph = differentiate(forward, trained_inputs(op, forward)).backward;
        for (const auto& [blocks, threads] : {std::pair(2, 128), std::pair(4, 64)}) {
            Schedule schedule = block_schedule(4);
            schedule.residency = Residency::kStages;
            schedule.threads_per_row = threads;
            schedule.column_blocks = blocks;
            schedule.stages = 1;
            schedule.blocks_per_sm = 2 * blocks;
            const std::string name = fmt::format("{} {}: {}", op, columns, print(schedule));
            const auto choose = [&](const Group& group) { return if_main(group, schedule, target, name); };
            Program program = compile(*graph.data(), target, choose);
            REQUIRE_MESSAGE(main_kernel(program).stage_bytes > 0, name);
            cases.push_back({name, graph, std::move(program)});
        }
    }
    check_cases(cases, target, 7, false);
}

TEST_CASE("a kernel that does not wait for its copies is caught") {
    const Graph graph = make_graph("rms_norm", {2048, f32, {}});
    const Target target = simt::target("sm_90a");
    Schedule schedule = block_schedule(4);
    schedule.stages = 2;
    schedule.blocks_per_sm = 1;
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string outcome = outcome_of(
        graph, schedule, target, [](std::string text) { return without(std::move(text), "rj_wait_for_copies<1>();"); });
    CHECK_MESSAGE(outcome.find("before it is written") != std::string::npos, outcome);
}

TEST_CASE("a kernel whose cluster does not wait for its messages, or has one place for all of them, is caught") {
    const Graph graph = make_graph("rms_norm", {2048, f32, {}});
    const Target target = simt::target("sm_90a");
    Schedule schedule = block_schedule(4);
    schedule.column_blocks = 2;
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string one_place = outcome_of(graph, schedule, target, replacing("0 + (turn & 1) * ", "0 + 0 * "));
    CHECK_MESSAGE(one_place.find("race") != std::string::npos, one_place);
    const std::string other_turn = outcome_of(graph, schedule, target, replacing("turn >> 1 & 1", "~turn >> 1 & 1"));
    CHECK_MESSAGE(other_turn.find("never reach") != std::string::npos, other_turn);
    const std::string not_begun =
        outcome_of(graph, schedule, target, replacing("if (turn == 0) rj_cluster_wait();", ""));
    CHECK_MESSAGE(not_begun.find("have begun") != std::string::npos, not_begun);
    schedule.blocks_per_sm = 1;
    schedule.skew = true;
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string same_place =
        outcome_of(graph, schedule, target, replacing("((turn + 1) & 1) * ", "(turn & 1) * "));
    CHECK_MESSAGE(same_place != "", same_place);
}

TEST_CASE("a kernel whose closing barrier is deleted is caught") {
    const Graph graph = make_graph("rms_norm", {2048, f32, {}});
    const Target target = simt::target("sm_90a");
    const Schedule schedule = block_schedule(4);
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string outcome =
        outcome_of(graph, schedule, target, [](std::string text) { return without(std::move(text), "rj_barrier();"); });
    CHECK_MESSAGE(outcome.find("race") != std::string::npos, outcome);
}

TEST_CASE("a kernel whose column mask is deleted is caught") {
    const Graph graph = make_graph("rms_norm", {1000, f32, {}});
    const Target target = simt::target("sm_90a");
    const Schedule schedule = block_schedule(8);
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string outcome =
        outcome_of(graph, schedule, target, [](std::string text) { return without(std::move(text), "if (c < 1000)"); });
    CHECK_MESSAGE(outcome != "", "the columns past the row's end went unnoticed");
}

TEST_CASE("a kernel whose row mask is deleted is caught") {
    const Graph graph = make_graph("rms_norm", {128, f32, {}});
    const Target target = simt::target("sm_90a");
    Schedule schedule = block_schedule(4);
    schedule.threads_per_row = 32;
    schedule.rows_per_block = 4;
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string outcome = outcome_of(graph, schedule, target, [](std::string text) {
        // Rows past the end follow the last row: without that they read and write past the tensors.
        const std::string clamp = " ? row_block * 4 + row_in_block : rows - 1";
        const std::size_t at = text.find("live" + clamp);
        REQUIRE(at != std::string::npos);
        text.replace(at, 4 + clamp.size(), "true ? row_block * 4 + row_in_block : rows - 1");
        const std::string mask = "if (live) ";
        for (std::size_t store = text.find(mask); store != std::string::npos; store = text.find(mask))
            text.erase(store, mask.size());
        return text;
    });
    CHECK_MESSAGE(outcome != "", "the rows past the last went unnoticed");
}

// Rows of one block that take different numbers of steps, from one to a dozen, on a fraction of a warp, a warp,
// several.
TEST_CASE("fixpoints of rows that stand still at different times are the oracle's under every schedule") {
    Graph g;
    const Value x = g.input("x", f32, {g.rows("tokens"), 96});
    const Value limit = min(x);
    const auto halve = [&](const Value& state) {
        return maximum(state * 0.5, sum(select(x > state, x, x * 0.0)) * 0.0 + limit);
    };
    g.output("y", x - fixpoint(max(abs(x)) * 1000.0, halve, 40));
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("halving", g, target, &cases);
        add_cases("sparsemax 160 f32", make_graph("sparsemax", {160, f32, {}}), target, &cases);
        add_cases("sums of the last step", sums_of_last_step(), target, &cases);
        check_cases(cases, target, 37);
    }
}

TEST_CASE("extrema of what constants scale are the oracle's under every schedule") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        add_cases("extrema bf16", extrema_of_scaled(bf16), target, &cases);
        add_cases("extrema f32", extrema_of_scaled(f32), target, &cases);
        check_cases(cases, target, 13);
    }
}

TEST_CASE("fixpoints of rows that a cluster shares are the oracle's, and steps that meet in one place are caught") {
    const Target target = simt::target("sm_90a");
    const Graph graph = make_graph("sparsemax", {2048, f32, {}});
    std::vector<Case> cases;
    for (const auto& [residency, blocks, threads, stages] :
         {std::tuple(Residency::kRegisters, 2, 32, 0), std::tuple(Residency::kRegisters, 8, 128, 2),
          std::tuple(Residency::kShared, 4, 64, 0), std::tuple(Residency::kStages, 4, 64, 1),
          std::tuple(Residency::kReload, 16, 32, 0)}) {
        Schedule schedule = block_schedule(4);
        schedule.residency = residency;
        schedule.column_blocks = blocks;
        schedule.threads_per_row = threads;
        schedule.stages = stages;
        schedule.blocks_per_sm = stages > 0 ? 2 * blocks : 0;
        const auto choose = [&](const Group& group) { return if_main(group, schedule, target, "sparsemax"); };
        cases.push_back({print(schedule), graph, compile(*graph.data(), target, choose)});
    }
    check_cases(cases, target, 5, false);
    Schedule schedule = block_schedule(4);
    schedule.column_blocks = 2;
    const std::string one_place = outcome_of(graph, schedule, target, [](std::string text) {
        const std::string_view turns = " + (threshold_turn & 1) * ";
        const std::size_t at = text.find(turns);
        REQUIRE(at != std::string::npos);
        return text.replace(at, turns.size(), " + 0 * ");
    });
    CHECK_MESSAGE(one_place.find("race") != std::string::npos, one_place);
}

TEST_CASE("a step whose barrier is deleted is caught") {
    const Graph graph = make_graph("sparsemax", {2048, f32, {}});
    const Target target = simt::target("sm_90a");
    const Schedule schedule = block_schedule(4);
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string outcome = outcome_of(graph, schedule, target, [](std::string text) {
        const std::size_t end = text.find("_stands_still) {");  // the step's close
        REQUIRE(end != std::string::npos);
        const std::size_t at = text.rfind("rj_barrier();", end);
        REQUIRE(at != std::string::npos);
        return text.erase(at, std::string_view("rj_barrier();").size());
    });
    CHECK_MESSAGE(outcome.find("race") != std::string::npos, outcome);
}

TEST_CASE("rows of a warp that do not wait for each other's steps are caught") {
    const Graph graph = make_graph("sparsemax", {64, f32, {}});
    const Target target = simt::target("sm_90a");
    Schedule schedule = block_schedule(4);
    schedule.threads_per_row = 8;
    schedule.rows_per_block = 16;
    CHECK(outcome_of(graph, schedule, target, {}) == "");
    const std::string outcome = outcome_of(graph, schedule, target, [](std::string text) {
        const std::size_t at = text.find("rj_all_rows<8, 32>");
        REQUIRE(at != std::string::npos);
        return text.erase(at, std::string_view("rj_all_rows<8, 32>").size());
    });
    CHECK_MESSAGE(outcome != "", "a warp whose lanes left the steps at different times went unnoticed");
}

// Every exponent of f32, around each format's smallest numbers, its ties and its greatest.
Tensor numbers_around_eight_bits(std::int64_t rows, std::int64_t columns) {
    std::mt19937 random(5);
    Tensor x{f32, {rows, columns}, {}};
    const double infinity = std::numeric_limits<double>::infinity();
    x.values = {infinity,  -infinity, std::nan(""), 0,         -0.0,  448,   464,
                464.00003, -480,      57344,        61439.996, 61440, 127.9, -129};
    while (std::ssize(x.values) < rows * columns) {
        const double step = std::ldexp(1.0, static_cast<int>(random() % 40) - 20);
        const double near = (static_cast<int>(random() % 65) - 32) * 0.25;
        x.values.push_back(static_cast<float>(step * (near + (random() % 3 - 1.0) * 0x1p-20)));
    }
    return x;
}

// Launches the graph under every legal schedule, and visits what came of each.
void each_schedule(const Graph& g, std::string_view target_name, const Bindings& bindings,
                   const std::function<void(const Tensors&)>& visit) {
    const Target target = simt::target(target_name);
    std::vector<Case> cases;
    add_cases("graph", g, target, &cases);
    std::vector<Program> programs;
    for (Case& one : cases) programs.push_back(std::move(one.program));
    const Device device = simt::device(target);
    for (const Executable& executable : simt::build(std::move(programs), target, device))
        visit(run(device, executable, *g.data(), bindings));
}

TEST_CASE("formats of eight bits are packed and read as base/dtype.h does") {
    constexpr std::int64_t kRows = 40;
    for (const std::int64_t columns : {7, 96}) {
        Graph g;
        const Value x = g.input("x", f32, {g.rows("tokens"), columns});
        for (const Dtype dtype : {i8, e4m3, e5m2}) {
            g.output(fmt::format("{}_codes", name(dtype)), cast(x, dtype));
            g.output(fmt::format("{}_values", name(dtype)), cast(cast(x, dtype), f32));
        }
        g.output("nearest", cast(minimum(maximum(round(x), -127.0), 127.0), i8));
        g.output("bounded", cast(maximum(minimum(round(x), 100.0), -3.0), i8));
        g.output("above", cast(maximum(round(x), 2.0), i8));  // a NaN's bound is not its conversion's
        const Bindings bindings = {{{"x", numbers_around_eight_bits(kRows, columns)}}, {}, {{"tokens", kRows}}};
        const Tensors expected = interpret(*g.data(), bindings, Rounding::kEager);
        for (const std::string_view target_name : {"sm_90a", "gfx942"}) {
            each_schedule(g, target_name, bindings, [&](const Tensors& outputs) {
                for (const auto& [output, got] : outputs) {
                    const Tensor& wanted = expected.at(output);
                    for (std::size_t i = 0; i < got.values.size(); ++i) {
                        const bool none = std::isnan(got.values[i]) && std::isnan(wanted.values[i]);
                        REQUIRE_MESSAGE((none || got.values[i] == wanted.values[i]), output, " of ",
                                        bindings.tensors.at("x").values[i], ": ", got.values[i]);
                    }
                }
            });
        }
    }
}

// Everything that two lanes share words for, from and to lanes.
Graph pairs_of_lanes(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis n = g.columns(columns);
    const Value x = g.input("x", dtype, {tokens, n});
    const Value y = g.input("y", dtype, {tokens, n});
    const Value product = x * y;
    const Value column = g.iota(n);
    g.output("sum", x + y);
    g.output("difference", x - y);
    g.output("product", product);
    g.output("negated", -product);
    g.output("magnitude", abs(x - y));
    g.output("least", minimum(x, y));
    g.output("greatest", maximum(x, y));
    g.output("of_row", product * g.input("of_row_in", dtype, {tokens}) + g.scalar("scale", dtype, 1.5));
    g.output("halved", 0.5 * x);
    const auto half = columns / 2;
    g.output("first_half", select(column < half, product, x));
    g.output("every_second", select(floor_div(column, 2) * 2 == column, product, x));
    g.output("by_value", select(x < y, x + y, y));
    g.output("masked", select(g.input("mask", boolean, {tokens, n}), product, y));
    g.output("widened", cast(product, f32) * 2.0);
    g.output("rounded", cast(cast(x, f32) * 0.7, dtype) * y);
    return g;
}

// Two of every 16 bits are a number: of all magnitudes, infinities and NaN.
Tensor numbers_of_bits(std::int64_t rows, std::int64_t columns, Dtype dtype, unsigned seed) {
    std::mt19937 random(seed);
    Tensor numbers{dtype, {rows, columns}, {}};
    for (std::int64_t i = 0; i < rows * columns; ++i) {
        auto bits = static_cast<std::uint16_t>(random());
        // Every fourth near 1, so that sums round.
        if (i % 4 == 0) bits = static_cast<std::uint16_t>((dtype == bf16 ? 0x3f00 : 0x3a00) + (bits & 0x81ffU));
        numbers.values.push_back(load_element(dtype, &bits));
    }
    return numbers;
}

bool is_same_number(double a, double b) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && (a == 0 || std::signbit(a) == std::signbit(b)));
}

TEST_CASE("what is computed on words of two lanes is the oracle's bits, whatever the bits of its operands") {
    constexpr std::int64_t kRows = 60;
    const std::pair<std::string_view, Dtype> packing[] = {{"sm_90a", bf16}, {"sm_90a", f16}, {"gfx942", f16}};
    for (const auto& [target_name, dtype] : packing) {
        for (const std::int64_t columns : {7, 36, 192}) {
            const Graph g = pairs_of_lanes(columns, dtype);
            Bindings bindings = {{{"x", numbers_of_bits(kRows, columns, dtype, 1)},
                                  {"y", numbers_of_bits(kRows, columns, dtype, 2)},
                                  {"of_row_in", numbers_of_bits(kRows, 1, dtype, 3)},
                                  {"mask", numbers_of_bits(kRows, columns, dtype, 4)}},
                                 {},
                                 {{"tokens", kRows}}};
            bindings.tensors["of_row_in"].extents = {kRows};
            Tensor& mask = bindings.tensors["mask"];
            mask.dtype = boolean;
            for (double& value : mask.values) value = value > 0.5 ? 1 : 0;
            const Tensors expected = interpret(*g.data(), bindings, Rounding::kEager);
            each_schedule(g, target_name, bindings,
                          [&, dtype = dtype, target_name = target_name](const Tensors& outputs) {
                              for (const auto& [output, got] : outputs) {
                                  const Tensor& wanted = expected.at(output);
                                  for (std::size_t i = 0; i < got.values.size(); ++i) {
                                      REQUIRE_MESSAGE(is_same_number(got.values[i], wanted.values[i]), target_name, " ",
                                                      name(dtype), " ", columns, ": ", output, " ", i, ": ",
                                                      got.values[i], " for ", wanted.values[i]);
                                  }
                              }
                          });
        }
    }
}

// As if two lanes could not share a word.
Program unpacked(Program program) {
    for (Step& step : program.steps) {
        for (Block* block : {&step.kernel.before, &step.kernel.body, &step.kernel.after}) {
            for (Stmt& stmt : *block) {
                auto* loop = std::get_if<ColumnLoop>(&stmt.node);
                if (loop == nullptr) continue;
                for (Inst& inst : loop->body) inst.packing = Packing::kNone, inst.alike = false;
            }
        }
    }
    return program;
}

TEST_CASE("packed lanes change no bit of what operations give") {
    const Target target = simt::target("sm_90a");
    const Device device = simt::device(target);
    std::mt19937 random(7);
    for (const char* op : {"rope", "mrope", "rope_positions", "qk_norm_rope", "rms_norm", "add_rms_norm", "layer_norm",
                           "modulated_rms_norm", "swiglu", "geglu", "scale_add", "dropout_add", "relu2"}) {
        for (const bool backward : {false, true}) {
            std::vector<Case> cases;
            for (const Dtype dtype : {bf16, f16}) add_request({op, {96, dtype, {}}, backward}, target, &cases);
            std::shuffle(cases.begin(), cases.end(), random);
            cases.resize(std::min<std::size_t>(cases.size(), 6));
            std::vector<Program> programs;
            for (const Case& one : cases) {
                programs.push_back(one.program);
                programs.push_back(unpacked(one.program));
            }
            const std::vector<Executable> executables = simt::build(std::move(programs), target, device);
            for (std::size_t i = 0; i < cases.size(); ++i) {
                const GraphData& graph = *cases[i].graph.data();
                RowExtents extents = all_rows(graph, 5);
                if (cases[i].differentiated) extents.merge(all_rows(*cases[i].differentiated->forward.data(), 5));
                const Bindings bindings = inputs_of(cases[i], extents, {.seed = i});
                const Tensors packed = run(device, executables[2 * i], graph, bindings);
                for (const auto& [output, alone] : run(device, executables[2 * i + 1], graph, bindings)) {
                    const Tensor& got = packed.at(output);
                    for (std::size_t at = 0; at < got.values.size(); ++at) {
                        REQUIRE_MESSAGE(is_same_number(got.values[at], alone.values[at]), cases[i].name, ": ", output,
                                        " ", at, ": ", got.values[at], " for ", alone.values[at]);
                    }
                }
            }
        }
    }
}

TEST_CASE("random numbers are the reference's bits under every schedule, wherever rows begin") {
    for (const std::int64_t columns : {1, 7, 64, 130}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Axis n = g.columns(columns);
        const Value position = g.iota(tokens, i64) * static_cast<double>(columns) + g.iota(n, i64) + 8589934590.0;
        g.output("u", uniform(g.scalar("seed", i64, -5e15), g.scalar("offset", i64, 4294967299.0), position));
        for (const std::string_view name : {"sm_90a", "gfx942"}) {
            each_schedule(g, name, {{}, {}, {{"tokens", 5}}}, [](const Tensors& outputs) {
                const std::vector<double>& u = outputs.at("u").values;
                for (std::size_t i = 0; i < u.size(); ++i) {
                    REQUIRE(u[i] ==
                            philox_uniform(-5000000000000000, 4294967299, 8589934590 + static_cast<std::int64_t>(i)));
                }
            });
        }
    }
}

TEST_CASE("random numbers that stay words are what they would be as fractions, whatever they are compared with") {
    constexpr std::int64_t kColumns = 64;
    for (const double limit : {-1.0, 0.0, 0.1, 0.25, 0x1p-24, 0x1.8p-24, 1 - 0x1p-24, 1.0, 1e30,
                               std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Axis n = g.columns(kColumns);
        const Value position = g.iota(tokens, i64) * static_cast<double>(kColumns) + g.iota(n, i64);
        const Value u = uniform(g.scalar("seed", i64, 7), g.scalar("offset", i64, 0), position);
        const Value p = g.scalar("p", f32, limit);
        g.output("ge", cast(u >= p, i32));
        g.output("gt", cast(u > p, i32));
        g.output("le", cast(u <= p, i32));
        g.output("lt", cast(u < p, i32));
        g.output("turned", cast(p >= u, i32));
        each_schedule(g, "sm_90a", {{}, {}, {{"tokens", 5}}}, [&](const Tensors& outputs) {
            const auto bound = static_cast<float>(limit);
            for (std::size_t i = 0; i < outputs.at("ge").values.size(); ++i) {
                const float number = philox_uniform(7, 0, static_cast<std::int64_t>(i));
                REQUIRE(outputs.at("ge").values[i] == (number >= bound ? 1 : 0));
                REQUIRE(outputs.at("gt").values[i] == (number > bound ? 1 : 0));
                REQUIRE(outputs.at("le").values[i] == (number <= bound ? 1 : 0));
                REQUIRE(outputs.at("lt").values[i] == (number < bound ? 1 : 0));
                REQUIRE(outputs.at("turned").values[i] == (bound >= number ? 1 : 0));
            }
        });
    }
}

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

TEST_CASE("emitted kernels compute rows past 2^31 elements where they lie") {
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Program> programs;
        programs.push_back(compile(*make_graph("rms_norm", {96, f32, {}}).data(), target));
        const Device device = simt::device(target);
        const std::vector<Executable> executables = simt::build(std::move(programs), target, device);
        CHECK(norm_of_rows(executables[0], 96, kFarStride) == norm_of_rows(executables[0], 96, 96));
    }
}
