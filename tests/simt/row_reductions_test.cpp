// Reductions of rows against the oracle: wherever rows begin, on any number of threads, carried in one pass. And that
// kernels are caught whose barriers or masks are deleted.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/emit/gpu.h"
#include "compiler/plan/partial_reductions.h"
#include "dsl/library/registry.h"
#include "runtime/verify.h"
#include "tests/simt/cases.h"
#include "tests/simt/simt_device.h"
#include "tests/support/columns_apart.h"
#include "tests/support/extrema.h"
#include "tests/support/groups_of_columns.h"

using namespace rowjit;

namespace {

// Of a graph's cases every third that is peeled, which some must be.
void add_peeled(std::string_view called, std::vector<Case> of_graph, std::vector<Case>* cases) {
    std::size_t peeled = 0;
    for (Case& one : of_graph) {
        const bool peels =
            std::ranges::any_of(one.program.steps, [](const Step& step) { return step.kernel.schedule.peel; });
        if (peels && peeled++ % 3 == 0) cases->push_back(std::move(one));
    }
    CHECK_MESSAGE(peeled > 0, called, " is not peeled");
}

// Rows one behind the other, so many columns apart, and more of each tensor than of the one before.
void check_placed(const std::vector<Case>& cases, const Target& target, std::int64_t rows) {
    constexpr std::array kPlacements = {RunOptions{.guard_bytes = 0}, RunOptions{.row_padding = 3, .guard_bytes = 0},
                                        RunOptions{.row_padding = 1, .padding_growth = 1, .guard_bytes = 0}};
    each_built(cases, target, [&](std::size_t i, const Device& device, const Executable& executable) {
        for (const RunOptions& placed : kPlacements) {
            const auto inputs = [&](std::uint64_t launch) {
                return inputs_of(cases[i], extents_of(cases[i], rows),
                                 {.seed = i + launch * cases.size(), .out_of_range = true});
            };
            const auto outputs = verify_several(device, executable, *cases[i].graph.data(), inputs, placed);
            CHECK_MESSAGE(within_bar(outputs), cases[i].name, ", rows ", placed.row_padding, " and ",
                          placed.padding_growth, " apart\n", describe(outputs));
        }
    });
}

}  // namespace

TEST_CASE("peeled rows agree with the oracle wherever each tensor's begin") {
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const auto& [op, columns, dtype] :
             std::initializer_list<std::tuple<std::string_view, int, Dtype>>{{"softmax", 1031, bf16},
                                                                             {"softmax", 4099, bf16},
                                                                             {"softmax", 131, bf16},
                                                                             {"cross_entropy", 197, f16},
                                                                             {"gelu", 129, f32},
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
            add_peeled(called, std::move(all), &cases);
        }
        check_placed(cases, target, 9);
    }
}

TEST_CASE("peeled rows whose columns are summed over rows agree with the oracle wherever each tensor's begin") {
    constexpr std::int64_t kRows = 21;  // of which blocks have one, two and three
    for (const std::string_view name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        const auto add = [&](const std::string& called, const Graph& graph, const std::vector<std::string>& trained) {
            std::vector<Case> all;
            add_backward_cases(called, graph, trained, target, &all);
            add_peeled(called, std::move(all), &cases);
        };
        for (const auto& [op, columns, dtype] :
             std::initializer_list<std::tuple<std::string_view, int, Dtype>>{{"rms_norm", 1031, bf16},
                                                                             {"rms_norm", 8193, bf16},
                                                                             {"layer_norm", 515, f32},
                                                                             {"add_rms_norm", 1030, f16},
                                                                             {"dynamic_tanh", 1031, bf16}}) {
            const Graph graph = make_graph(op, {columns, dtype, {}});
            add(fmt::format("{} {} on {}", op, columns, name), graph, trained_inputs(op, graph));
        }
        for (const std::string_view dtype : {"bf16", "f32"}) {
            add(fmt::format("biased {} on {}", dtype, name),
                Graph::parse(fmt::format("rows t\ncolumns d = 1031\ninput x: {0}[t, d]\ninput b: {0}[d]\n"
                                         "output y = silu(x + b)",
                                         dtype)),
                {"x", "b"});
        }
        const std::size_t in_order = cases.size();
        for (std::size_t i = 0; i < in_order; i += 4) cases.push_back(turned(cases[i]));
        check_placed(cases, target, kRows);
    }
}

TEST_CASE("columns along one axis have what their groups come to, and so have their gradients") {
    for (const auto& [name, groups, width] :
         std::initializer_list<std::tuple<std::string_view, int, int>>{{"sm_90a", 4, 64}, {"gfx942", 3, 40}}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const NamedGraph& of : grouped_columns(groups, width)) {
            add_cases(of.what, of.graph, target, &cases);
            if (target.warp_size == 32) add_backward_cases(of.what, of.graph, {}, target, &cases);
        }
        check_cases(cases, target, 9, false);
    }
}

TEST_CASE("rows that lie side by side agree with the oracle under every schedule, and so have their gradients") {
    for (const auto& [name, channels, lines, pixels, dtype] :
         std::initializer_list<std::tuple<std::string_view, int, int, int, Dtype>>{
             {"sm_90a", 75, 3, 33, bf16}, {"sm_90a", 19, 7, 7, f32}, {"gfx942", 75, 3, 33, bf16}}) {
        const Target target = simt::target(name);
        const Graph graph = normed_channels(channels, lines, pixels, dtype);
        std::vector<Case> cases;
        add_cases(fmt::format("{} channels", channels), graph, target, &cases);
        const auto lies_across = [](const Case& one) { return one.program.steps[0].kernel.schedule.across; };
        CHECK(std::ranges::count_if(cases, lies_across) > 2);
        if (target.warp_size == 32) add_backward_cases("their gradients", graph, {"x"}, target, &cases);
        check_cases(cases, target, 5, false);
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

namespace {

// The graph's row in one pass, whose accumulator is such a monoid, by a warp, by several and by two blocks.
void add_carried(const Graph& graph, Monoid monoid, const std::string& what, std::vector<Case>* cases) {
    const Target target = simt::target("sm_90a");
    for (const auto& [threads, blocks] : {std::pair(32, 1), {256, 1}, {64, 2}}) {
        Schedule schedule = block_schedule(8);
        schedule.residency = Residency::kReload;
        schedule.threads_per_row = threads;
        schedule.column_blocks = blocks;
        schedule.online = true;
        const std::string name = fmt::format("{}: {}", what, print(schedule));
        const auto choose = [&](const Group& group) { return if_main(group, schedule, target, name); };
        Program program = compile(*graph.data(), target, choose);
        REQUIRE_MESSAGE(main_kernel(program).accumulators[0].monoid == monoid, name);
        cases->push_back({name, graph, std::move(program)});
    }
}

}  // namespace

// Extreme rows among them: every fourth.
TEST_CASE("divergences of two tensors' rows, carried in one pass, agree with the oracle") {
    std::vector<Case> cases;
    for (const auto& [op, dtype] :
         {std::pair("kl_div", bf16), {"kl_div", f32}, {"reverse_kl", bf16}, {"reverse_kl", f32}})
        add_carried(make_graph(op, {1000, dtype, {{"reduction", "none"}}}), Monoid::kDivergence, op, &cases);
    check_cases(cases, simt::target("sm_90a"));
}

// As people write them, from softmaxes or their logarithms, and as the library does beside a log-probability. Extreme
// rows among them: every fourth.
TEST_CASE("weighed logarithms of a row, carried in one pass, agree with the oracle") {
    const std::string logits =
        "rows n\ninput a: {0}[n, 1000]\ninput b: {0}[n, 1000]\nx = cast(a, f32)\ny = cast(b, f32)\n";
    const auto written = [&](Dtype dtype, const std::string& loss) {
        return Graph::parse(fmt::format(fmt::runtime(logits + "output loss = {1}\n"), name(dtype), loss));
    };
    std::vector<Case> cases;
    for (const Dtype dtype : {bf16, f32}) {
        for (const auto& [loss, monoid] : {std::pair("-sum(softmax(x) * log(softmax(x)))", Monoid::kEntropy),
                                           {"-sum(softmax(x) * log_softmax(x))", Monoid::kEntropy},
                                           {"-sum(softmax(x) * log_softmax(y))", Monoid::kCrossEntropy},
                                           {"-sum(x * log_softmax(y))", Monoid::kWeighted}})
            add_carried(written(dtype, loss), monoid, loss, &cases);
        add_carried(make_graph("selective_log_probability", {1000, dtype, {{"entropy", "true"}}}), Monoid::kEntropy,
                    "beside", &cases);
    }
    check_cases(cases, simt::target("sm_90a"));
}

// A cap that most logits lie below, and one that about as many lie beyond. Extreme rows among them: every fourth.
TEST_CASE("softly capped logits, whose lanes have their tanh together, agree with the oracle, and so do gradients") {
    const Target target = simt::target("sm_90a");
    std::vector<Case> cases;
    for (const auto& [op, dtype, cap] :
         {std::tuple("cross_entropy", bf16, "1"), {"softmax", bf16, "30"}, {"cross_entropy", f32, "30"}}) {
        const Graph graph = make_graph(op, {104, dtype, {{"softcap", cap}}});
        add_cases(op, graph, target, &cases);
        add_backward_cases(op, graph, trained_inputs(op, graph), target, &cases);
    }
    const auto emits = [&](const Step& step) {
        return emit_gpu_body(step.kernel, target).find("rj_mostly_near_zero<") != std::string::npos;
    };
    CHECK(std::ranges::all_of(cases, [&](const Case& c) { return std::ranges::any_of(c.program.steps, emits); }));
    check_cases(cases, target);
}

namespace {

// As many of a row's greatest in one pass.
Case greatest_case(int count, std::int64_t columns, Dtype dtype, Schedule schedule, const Target& target) {
    schedule.online = true;
    const Graph graph = make_graph("top_k", {columns, dtype, {{"count", fmt::format("{}", count)}}});
    const std::string name = fmt::format("{} of {} on {}: {}", count, columns, target.name, print(schedule));
    const auto choose = [&](const Group& group) { return if_main(group, schedule, target, name); };
    Program program = compile(*graph.data(), target, choose);
    REQUIRE_MESSAGE(main_kernel(program).accumulators[0].greatest == count, name);
    return {name, graph, std::move(program)};
}

}  // namespace

// Extreme rows among them, of which many elements are equal, or NaN: every fourth.
TEST_CASE("the greatest of a row, taken in one pass by its warps, agree with the oracle") {
    for (const char* architecture : {"sm_90a", "gfx942", "gfx1100"}) {
        const Target target = simt::target(architecture);
        std::vector<Case> cases;
        for (const auto& [count, columns, dtype] :
             {std::tuple(4, 1000, bf16), {1, 1001, f32}, {40, 999, bf16}, {5, 3000, f16}, {40, 520, f32}}) {
            // Forty numbers of the row, twice, leave no registers for it.
            const Residency kept = count < 40 ? Residency::kRegisters : Residency::kReload;
            for (const auto& [threads, rows, residency] :
                 {std::tuple(64, 1, Residency::kReload), {64, 2, Residency::kReload}, {256, 1, kept}}) {
                Schedule schedule = block_schedule(8);
                schedule.residency = residency;
                schedule.threads_per_row = threads;
                schedule.rows_per_block = rows;
                cases.push_back(greatest_case(count, columns, dtype, schedule, target));
            }
        }
        check_cases(cases, target);
    }
}

TEST_CASE("the greatest of a narrow row, of which each thread keeps its own, agree with the oracle") {
    for (const char* architecture : {"sm_90a", "gfx942", "gfx1100"}) {
        const Target target = simt::target(architecture);
        std::vector<Case> cases;
        // As many places as a key of 32 bits has, and lists that are no power of two long.
        for (const auto& [count, columns, threads, dtype] : {std::tuple(8, 64, 4, f32),
                                                             {8, 8192, 16, bf16},
                                                             {5, 100, 8, f16},
                                                             {3, 3, 1, f32},
                                                             {2, 250, 16, f16},
                                                             {7, 33, 2, bf16}}) {
            for (const Residency residency : {Residency::kReload, Residency::kRegisters}) {
                if (residency == Residency::kRegisters && columns > 100) continue;
                Schedule schedule = block_schedule(columns % 4 == 0 ? 4 : 1);
                schedule.residency = residency;
                schedule.threads_per_row = threads;
                schedule.rows_per_block = 64 / threads;
                cases.push_back(greatest_case(count, columns, dtype, schedule, target));
            }
        }
        check_cases(cases, target);
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
