// The schedules that the static rule takes first, and those that are declined.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/floor_div.h"
#include "compiler/compile.h"
#include "compiler/plan/plan.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"

using namespace rowjit;

namespace {

// Each half of a head turns by itself, over vectors that do not divide it.
Graph turned_within_heads() {
    return Graph::parse(
        "rows tokens\ncolumns heads = 16\ncolumns d = 80\ninput x: bf16[tokens, heads, d]\n"
        "output y = x + index(x, tokens, heads, (d + 20) % 40 + (d / 40) * 40)\n");
}

Group norms_backward(std::string_view op, std::int64_t columns, Dtype dtype, const Target& target) {
    const Graph graph = make_graph(op, {columns, dtype, {}});
    return plan_graph(*differentiate(graph, trained_inputs(op, graph)).backward.data(), target).groups.at(0);
}

// The static choice for the first kernel of a graph, or of an operation's forward.
Schedule first_of(const Graph& graph) {
    const Target& target = find_target("sm_90a");
    return legal_schedules(plan_graph(*graph.data(), target).groups.at(0), target).at(0);
}

Schedule first_of(std::string_view op, std::int64_t columns, Dtype dtype) {
    return first_of(make_graph(op, {columns, dtype, {}}));
}

// What part of the lanes have columns in the rounds that a row takes.
double share_at_work(const Schedule& s, std::int64_t columns) {
    const std::int64_t lanes = s.column_blocks * s.threads_per_row * s.vector;
    const std::int64_t rounds = (columns + lanes - 1) / lanes;
    return static_cast<double>(columns) / static_cast<double>(rounds * lanes);
}

}  // namespace

TEST_CASE("vectors are as short as lie whole where a group of columns turns within itself") {
    const Graph g = turned_within_heads();
    CHECK(compile(*g.data(), find_target("sm_90a")).steps[0].kernel.schedule.vector == 4);
    // A table that heads share is not worth it.
    const Graph rope = make_graph("rope_complex", {.columns = 128, .dtype = f32});
    CHECK(compile(*rope.data(), find_target("sm_90a")).steps[0].kernel.schedule.vector == 4);
    // Nor are the ends of rows that begin anywhere, beside which vectors are whole.
    const Graph softmax = make_graph("softmax", {.columns = 30522, .dtype = bf16});
    CHECK(compile(*softmax.data(), find_target("sm_90a")).steps[0].kernel.schedule.peel);
}

TEST_CASE("a CPU's vectors are whole where groups of columns turn, a few of them at a time") {
    const auto kernel_of = [](const Graph& graph) {
        return compile(*graph.data(), find_target("x86-64-v4")).steps.at(0).kernel;
    };
    const auto period = [](const Kernel& kernel) { return std::get<ColumnLoop>(kernel.body.back().node).period; };
    CHECK(kernel_of(turned_within_heads()).schedule.vector == 64);
    for (const auto& [columns, at_once] : std::map<std::int64_t, std::int64_t>{{80, 160}, {96, 96}, {112, 224}}) {
        CAPTURE(columns);
        const Kernel heads = kernel_of(make_graph("rope_qk", {.columns = columns, .dtype = bf16}));
        CHECK(heads.schedule.vector == 32);
        CHECK(period(heads) == at_once);
    }
    // Halves that whole vectors lie in are two outputs.
    const Kernel whole = kernel_of(make_graph("rope_qk", {.columns = 128, .dtype = bf16}));
    CHECK(whole.schedule.vector == 32);
    CHECK(period(whole) == 0);
}

TEST_CASE("the first of a kernel's legal schedules is the one that compile takes") {
    for (const char* name : {"sm_90a", "gfx942", "x86-64-v3"}) {
        const Target target = find_target(name);
        for (const Graph& graph : {turned_within_heads(), make_graph("rope_complex", {.columns = 128, .dtype = f32}),
                                   make_graph("layer_norm", {.columns = 4096})}) {
            const Step step = compile(*graph.data(), target).steps.at(0);
            CAPTURE(name);
            CHECK(print(legal_schedules(step.group, target).at(0)) == print(step.kernel.schedule));
        }
    }
}

TEST_CASE(
    "in a fraction of a warp a row has few threads: of numbers with several vectors, none of them idle of others") {
    const auto threads = [](const char* op, std::int64_t columns, Dtype dtype) {
        const Graph g = make_graph(op, {.columns = columns, .dtype = dtype});
        return compile(*g.data(), find_target("sm_90a")).steps[0].kernel.schedule.threads_per_row;
    };
    CHECK(threads("logsumexp", 80, bf16) == 4);
    CHECK(threads("logsumexp", 256, bf16) == 16);
    CHECK(threads("cross_entropy", 80, bf16) == 2);
    CHECK(threads("cross_entropy", 40, bf16) == 1);
    CHECK(threads("cross_entropy", 4096, bf16) >= 32);
    CHECK(threads("kl_div", 80, bf16) == 4);
    CHECK(threads("softmax", 40, bf16) == 4);
    CHECK(threads("softmax", 64, bf16) == 8);
    CHECK(threads("softmax", 80, f32) == 16);
    CHECK(threads("add_rms_norm", 72, bf16) == 8);
}

TEST_CASE("where threads of a row never meet, and compute much or are few, none of them is idle") {
    const auto backward_of = [](const char* op, std::int64_t columns) {
        const Graph graph = make_graph(op, {.columns = columns, .dtype = bf16});
        return first_of(differentiate(graph, trained_inputs(op, graph)).backward);
    };
    for (const std::int64_t columns : {24, 40, 80, 192, 576}) {
        for (const char* op : {"dropout", "rope", "relu"}) {
            const Schedule first = first_of(op, columns, bf16);
            CHECK_MESSAGE((columns == 576 || first.threads_per_row * first.vector == columns), op, " ", columns, ": ",
                          print(first));
            CHECK(share_at_work(first, columns) > (op == std::string_view("relu") ? 0.7 : 0.99));
            CHECK(first.threads_per_row * first.rows_per_block > 200);
        }
        CHECK(share_at_work(backward_of("kl_div", columns), columns) > 0.8);
    }
    // Powers of two fill whole lines, as where a thread has several vectors or waits for numbers of its row.
    CHECK(first_of("silu", 1152, f32).threads_per_row == 128);
    CHECK(backward_of("cross_entropy", 80).threads_per_row == 4);
    CHECK(!parse_schedule("row_reduction keep=registers threads=40 rows=3 vector=8"));
    CHECK(parse_schedule("elementwise keep=registers threads=40 rows=3 vector=8"));
}

TEST_CASE("rows of many narrow tensors and functions have few columns of a thread, and the next row on its way") {
    const auto first = [](const char* stored) {
        return first_of(Graph::parse(
            fmt::format("rows t\ncolumns c = 16384\ninput x: bf16[t, c]\ninput y: bf16[t, c]\ninput l: f32[t]\n"
                        "a = exp(cast(x, f32) - l)\nb = exp(cast(y, f32) - l)\nd = sum(a * b)\n"
                        "output p = cast((a - d) / b, bf16)\n{}",
                        stored)));
    };
    const Schedule of_four = first("output q = cast((b - d) * a, bf16)\n");
    CHECK(of_four.column_blocks * of_four.threads_per_row * 16 == 16384);
    CHECK(of_four.prefetch);
    CHECK(!first("").prefetch);
}

TEST_CASE("for AMD no schedule unrolls more sines than clang does, which would leave a loop's vectors in memory") {
    const Graph graph = make_graph("rope_positions", {128, bf16, {}});
    const auto most_columns = [&](const char* name) {
        const Target target = find_target(name);
        const Plan plan = plan_graph(*graph.data(), target);
        std::int64_t most = 0;
        for (const Schedule& schedule : legal_schedules(plan.groups.at(0), target)) {
            const auto kernel = build_kernel(plan.groups.at(0), schedule, target);
            for (const Stmt& stmt : kernel->body) {
                const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
                if (loop != nullptr && loop->unrolled) most = std::max(most, loop->vector * loop->iterations);
            }
        }
        return most;
    };
    CHECK(most_columns("gfx942") == 16);  // of 32 the vectors were 272 bytes of memory a thread
    CHECK(most_columns("sm_90a") > 16);
}

TEST_CASE("beside sums of rows the static rule keeps lanes at work at the widths that models have") {
    const Target target = find_target("sm_90a");
    for (const char* op : {"rms_norm", "layer_norm"}) {
        for (const std::int64_t columns :
             {192,  384,  576,  768,  896,   1152,  1280,  1536,  2304,  2560,  2880,  3072, 3584,
              5120, 6144, 7168, 9216, 10240, 12288, 13824, 18432, 20480, 24576, 28672, 49152}) {
            const Group group = norms_backward(op, columns, bf16, target);
            const Schedule first = legal_schedules(group, target).at(0);
            CHECK_MESSAGE(share_at_work(first, columns) >= 0.875, op, " ", columns, ": ", print(first));
        }
    }
}

TEST_CASE("three tensors' narrow rows beside sums stay in the stages of sixteen warps, where those are the faster") {
    const Target target = find_target("sm_90a");
    const auto first_of_backward = [&](std::string_view op, std::int64_t columns, Dtype dtype) {
        return legal_schedules(norms_backward(op, columns, dtype, target), target).at(0);
    };
    const auto is_of_sixteen = [](const Schedule& s) {
        return s.residency == Residency::kStages && s.column_blocks == 1 && s.threads_per_row * s.blocks_per_sm == 512;
    };
    for (const std::int64_t columns : {2176, 2816, 3072, 4608, 5632, 6144}) {
        for (const char* op : {"add_rms_norm", "add_layer_norm"}) {
            CAPTURE(columns);
            CHECK_MESSAGE(is_of_sixteen(first_of_backward(op, columns, bf16)), op, ": ",
                          print(first_of_backward(op, columns, bf16)));
            CHECK(!is_of_sixteen(first_of_backward(op, columns, f32)));
        }
    }
    CHECK(is_of_sixteen(first_of_backward("gated_rms_norm", 2048, bf16)));
    for (const std::int64_t columns : {3328, 3840}) {
        CHECK(!is_of_sixteen(first_of_backward("add_layer_norm", columns, bf16)));
        CHECK(!is_of_sixteen(first_of_backward("gated_rms_norm", columns, bf16)));
    }
}

TEST_CASE("narrow rows of an odd number of columns are peeled from sixteen vectors on, but where they are compared") {
    for (const std::string_view op : {"softmax", "cross_entropy", "rms_norm", "gelu", "dropout"}) {
        CAPTURE(op);
        for (const std::int64_t columns : {129, 197, 257, 511}) {
            for (const Dtype dtype : {bf16, f32}) CHECK(first_of(op, columns, dtype).peel);
        }
        CHECK(!first_of(op, 127, bf16).peel);
        CHECK(!first_of(op, 258, bf16).peel);
    }
    for (const Dtype dtype : {bf16, f32}) CHECK(!first_of("kl_div", 257, dtype).peel);
    const Graph compared = make_graph("kl_div", {257, bf16, {}});
    CHECK(first_of(differentiate(compared, trained_inputs("kl_div", compared)).backward).peel);
}

TEST_CASE("rows of even widths are peeled, but in twos where two tensors' are stored as well") {
    const Target target = find_target("sm_90a");
    for (const std::int64_t columns : {1026, 5122, 30522}) {
        CAPTURE(columns);
        const Graph forward = make_graph("softmax", {columns, bf16, {}});
        CHECK(first_of(forward).peel);
        const Graph backward = differentiate(forward, trained_inputs("softmax", forward)).backward;
        const std::vector<Schedule> legal = legal_schedules(plan_graph(*backward.data(), target).groups.at(0), target);
        CHECK(!legal.at(0).peel);
        CHECK(legal.at(0).vector == 2);
        CHECK(std::ranges::any_of(legal, &Schedule::peel));
    }
    const Graph odd = make_graph("softmax", {50257, bf16, {}});
    const Graph backward = differentiate(odd, trained_inputs("softmax", odd)).backward;
    CHECK(first_of(backward).peel);
}

TEST_CASE("losses that are added up have several vectors of a row in each thread, and f32 rows read once") {
    for (const char* op : {"cross_entropy", "kl_div", "jsd", "tvd"}) {
        for (const std::int64_t columns : {1792, 1920, 3584, 3840}) {
            const Schedule first = first_of(op, columns, bf16);
            CAPTURE(op);
            CAPTURE(columns);
            CAPTURE(print(first));
            const bool is_of_warp = first.threads_per_row <= 32;
            CHECK((is_of_warp || columns > std::int64_t{first.threads_per_row} * first.vector));
            CHECK(share_at_work(first, columns) >= 0.75);
        }
    }
    for (const std::int64_t columns : {4608, 6144, 7680}) {
        CHECK(first_of("cross_entropy", columns, f32).residency == Residency::kReload);
        CHECK(first_of("orpo", columns, f32).residency == Residency::kReload);
        CHECK(first_of("kl_div", columns, f32).residency == Residency::kRegisters);
    }
    // Of a narrow row each thread keeps its own greatest, of a wide one whole warps.
    CHECK(first_of("top_k", 256, bf16).threads_per_row == 4);
    CHECK(first_of("top_k", 512, f32).threads_per_row >= 32);
}

TEST_CASE("rows that only numbers are summed of are copied ahead where threads share them evenly") {
    for (const std::int64_t columns : {56, 112, 3000, 6000}) {
        CHECK(first_of("kl_div", columns, bf16).stages == 0);
        CHECK(first_of("cosine_distance", columns, bf16).prefetch);
        CHECK(first_of("tvd", columns, bf16).stages == 0);
    }
    CHECK(first_of("kl_div", 4096, f32).stages == 2);
    CHECK(first_of("jsd", 1152, f32).stages == 2);
    // Or where the copies leave room, and lanes have banks of their own.
    CHECK(first_of("kl_div", 2304, bf16).stages == 2);
    CHECK(first_of("kl_div", 4608, f32).stages == 2);
    CHECK(first_of("dpo", 2304, bf16).stages == 0);
    // What meets thrice has up to five vectors of a thread.
    CHECK(first_of("jsd", 80, bf16).threads_per_row == 2);
    CHECK(first_of("tvd", 96, bf16).threads_per_row == 4);
    CHECK(first_of("tvd", 320, bf16).threads_per_row == 8);
}

TEST_CASE("a loss with its gradient has wide rows in the shared memory of few blocks, whose threads are at work") {
    const Target target = find_target("sm_90a");
    for (const std::int64_t columns :
         {24576, 30522, 32000, 50257, 64000, 100352, 119547, 128256, 151936, 201088, 256000}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Value logits = g.input("logits", bf16, {tokens, columns});
        g.output("loss", cross_entropy(logits, g.input("target", i64, {tokens}), {}).loss);
        const Graph step = gradient(g, {"logits"}, {.joint = true, .unit_cotangent = true});
        for (const Group& group : plan_graph(*step.data(), target).groups) {
            if (group.graph->find_input("logits") == std::nullopt) continue;
            const Schedule first = legal_schedules(group, target).at(0);
            CAPTURE(print(first));
            CHECK(first.residency == Residency::kShared);
            CHECK(first.column_blocks >= 2);
            CHECK(share_at_work(first, columns) >= 0.9);
        }
    }
}

TEST_CASE("rows beside weights that no block shares a multiprocessor with are in clusters that end or fetch ahead") {
    for (const Dtype dtype : {bf16, f32}) {
        for (const std::int64_t columns : {24576, 36864, 40960, 53248, 65536, 100352, 200064, 262144}) {
            for (const char* op : {"rms_norm", "add_rms_norm"}) {
                const Schedule first = first_of(op, columns, dtype);
                CAPTURE(op);
                CAPTURE(columns);
                CAPTURE(print(first));
                CHECK(first.residency == Residency::kRegisters);
                CHECK(first.column_blocks >= 2);
                CHECK(!first.skew);
                // Of two tensors' rows none stay; of one, those whose threads have the same whole vectors.
                const bool whole = columns % (first.column_blocks * first.threads_per_row * first.vector) == 0;
                if (first.blocks_per_sm > 0) CHECK((first.prefetch && whole && std::string_view(op) == "rms_norm"));
            }
        }
    }
    CHECK(first_of("rms_norm", 20480, bf16).column_blocks == 1);
    // A function of each column while rows are stored: as it was, where a block has the row.
    CHECK(first_of("gated_rms_norm", 26624, bf16).column_blocks == 1);
    CHECK(first_of("gated_rms_norm", 49152, bf16).column_blocks > 1);
}

TEST_CASE("a table beside rows gives them no more threads than their own columns want") {
    const Target target = find_target("sm_90a");
    const auto schedule_of = [&](std::int64_t columns, const char* weights, bool backward) {
        const Graph graph = Graph::parse(fmt::format(R"(
rows tokens
input x: bf16[tokens, {0}]
input w: {1}[{0}]
h = cast(x, f32)
output y = cast(h * rsqrt(mean(h * h) + 1e-6) * cast(w, f32), bf16)
)",
                                                     columns, weights));
        const Graph planned = backward ? differentiate(graph).backward : graph;
        return legal_schedules(plan_graph(*planned.data(), target).groups.at(0), target).at(0);
    };
    for (const std::int64_t columns : {128, 1024, 4096, 8192}) {
        CAPTURE(columns);
        const Schedule wide = schedule_of(columns, "f32", false);
        CHECK(wide == schedule_of(columns, "bf16", false));
        CHECK(wide.threads_per_row * wide.vector <= columns);
    }
    CHECK(schedule_of(8192, "f32", true).column_blocks == 1);
}

TEST_CASE("rows of many tensors are in stages, or beside sums in a cluster whose threads have a vector of each") {
    const Target& target = find_target("sm_90a");
    for (const Dtype dtype : {bf16, f32}) {
        for (const std::int64_t columns : {4096, 8192}) {
            CAPTURE(columns);
            const Schedule beside =
                legal_schedules(norms_backward("attention_residual", columns, dtype, target), target).at(0);
            CHECK(beside.residency == Residency::kRegisters);
            CHECK(beside.column_blocks * beside.threads_per_row * 8 == columns);
        }
    }
    // Two rows at once where a multiprocessor has room for them, or one; what is wider, and narrow columns of which two
    // have little room, in shared memory or read again.
    CHECK(first_of("attention_residual", 3072, bf16).stages == 2);
    for (const auto& [columns, dtype] : {std::pair<std::int64_t, Dtype>{8192, bf16}, {4096, f32}}) {
        const Schedule one = first_of("attention_residual", columns, dtype);
        CHECK(one.residency == Residency::kStages);
        CHECK(one.stages == 1);
        CHECK(one.blocks_per_sm == 1);
    }
    CHECK(first_of("attention_residual", 4096, bf16).residency == Residency::kShared);
    CHECK(first_of("attention_residual", 5120, f32).residency == Residency::kShared);
    CHECK(first_of("attention_residual", 8192, f32).residency == Residency::kReload);
    // Registers have room for fewer columns, and threads that have as many as others are not found for all.
    CHECK(first_of("attention_residual", 2048, f32).residency == Residency::kRegisters);
    const Schedule uneven = legal_schedules(norms_backward("attention_residual", 3072, bf16, target), target).at(0);
    CHECK(uneven.column_blocks == 1);
}

TEST_CASE("rows of many tensors that no power of two divides are in few warps") {
    // In registers, where two blocks have room or three of narrow columns, else two rows in stages of warps enough.
    CHECK(first_of("attention_residual", 2304, bf16).residency == Residency::kRegisters);
    CHECK(first_of("attention_residual", 2304, f32).threads_per_row == 192);
    const Schedule two = first_of("attention_residual", 3072, bf16);
    CHECK(two.residency == Residency::kStages);
    CHECK(two.threads_per_row * two.blocks_per_sm == 256);
    for (const std::int64_t columns : {2560, 3072}) {
        CAPTURE(columns);
        const Schedule s = first_of("attention_residual", columns, f32);
        CHECK(s.stages == 2);
        CHECK(s.threads_per_row * s.blocks_per_sm >= 224);
    }
    for (const std::int64_t columns : {3584, 4608, 6144})
        CHECK(first_of("attention_residual", columns, bf16).residency == Residency::kShared);
    // Beside sums they are copied once where a block has room, two rows in stages of nine warps and more or one in
    // shared memory, and never divided over blocks that are no power of two.
    const Target& target = find_target("sm_90a");
    for (const auto& [columns, residency] :
         {std::pair(2304, Residency::kStages), std::pair(3072, Residency::kStages), std::pair(3584, Residency::kShared),
          std::pair(7168, Residency::kReload)}) {
        CAPTURE(columns);
        const Schedule s = legal_schedules(norms_backward("attention_residual", columns, f32, target), target).at(0);
        CHECK(s.column_blocks == 1);
        CHECK(s.residency == residency);
        if (residency == Residency::kStages) CHECK(s.threads_per_row * s.blocks_per_sm >= 288);
    }
    // Of eight warps that a row of narrow columns would leave three of, nine are taken.
    const Schedule narrow = legal_schedules(norms_backward("attention_residual", 2304, bf16, target), target).at(0);
    CHECK(narrow.threads_per_row * narrow.blocks_per_sm == 288);
}

TEST_CASE("blocks that share a row have all of its vectors, in whole warps where instructions take long") {
    const auto backward_of = [](std::string_view op, std::int64_t columns, Dtype dtype) {
        const Graph graph = make_graph(op, {columns, dtype, {}});
        return first_of(differentiate(graph, trained_inputs(op, graph)).backward);
    };
    for (const std::int64_t columns : {4608, 5120, 5376, 9216}) {
        CAPTURE(columns);
        CHECK(share_at_work(backward_of("cosine_distance", columns, bf16), columns) == 1);
        for (const Schedule& s : {backward_of("kl_div", columns, bf16), first_of("dropout", columns, bf16)}) {
            CHECK(share_at_work(s, columns) == 1);
            CHECK(s.threads_per_row % 32 == 0);
        }
    }
    CHECK(first_of("dropout", 2304, bf16).threads_per_row == 96);
    // Where powers of two leave a fifth or less without a vector they stay.
    CHECK(std::has_single_bit(static_cast<unsigned>(backward_of("cosine_distance", 7168, bf16).threads_per_row)));
}

TEST_CASE("rows whose columns take long to compute stay in registers, and such as neighbours share have few threads") {
    const Graph penalties = Graph::parse(
        "rows tokens\ncolumns v = 128256\ninput x: bf16[tokens, v]\ninput seen: i8[tokens, v]\n"
        "input t: f32[tokens]\ninput p: f32[tokens]\nz = cast(x, f32)\n"
        "q = select(cast(seen, f32) > 0, z / p, z) / t\ne = exp(q - max(q))\nk = select(e >= 0.1, e, 0)\n"
        "output y = cast(k / sum(k), bf16)\n");
    CHECK(first_of(penalties).residency == Residency::kRegisters);
    CHECK(first_of("softmax", 131072, bf16).residency == Residency::kShared);
    const Graph pairs = Graph::parse(
        "rows tokens\ncolumns a = 32\ncolumns b = 32\ninput x: f32[tokens, a]\ninput g: f32[tokens]\n"
        "output y = sum(select(index(x, tokens, b) > x, g, -g), b)\n");
    CHECK(first_of(pairs).threads_per_row == 4);
}

TEST_CASE("what is computed behind a meeting and wanted again waits in registers, beside rows in their stage") {
    const auto with_gradient = [](std::int64_t columns, Dtype dtype) {
        const Graph loss = make_graph("jsd", {columns, dtype, {}});
        return gradient(loss, trained_inputs("jsd", loss), {.joint = true, .unit_cotangent = true});
    };
    for (const std::int64_t columns : {20480, 32000, 50304, 128256, 151936, 262144}) {
        CAPTURE(columns);
        const Schedule s = first_of(with_gradient(columns, bf16));
        CHECK(s.residency == Residency::kStages);
        const std::int64_t held =
            (columns + s.column_blocks * s.threads_per_row - 1) / (s.column_blocks * s.threads_per_row);
        CHECK(held <= 64);
        CHECK(2 * held * s.threads_per_row * s.blocks_per_sm <= find_target("sm_90a").registers_per_sm);
    }
    CHECK(first_of(with_gradient(4096, bf16)).residency != Residency::kStages);
}

TEST_CASE("a stored row of which several greatest are taken is read again, not taken one after the other") {
    const Graph graph = Graph::parse(R"(
        rows tokens
        input x: bf16[tokens, 32000]
        f = cast(x, f32)
        greatest, places = top_k(f, count=20)
        output y = select(f >= min(greatest), x, -inf))");
    CHECK(first_of(graph).residency == Residency::kReload);
    CHECK(first_of(graph).online);
}

TEST_CASE("threads of rows whose columns are read one or two at a time have eight such accesses at least") {
    for (const auto& [columns, threads] : {std::pair(5, 1), {9, 1}, {18, 1}, {33, 2}, {50, 2}, {65, 4}, {127, 8}}) {
        CAPTURE(columns);
        CHECK(first_of("logsumexp", columns, f32).threads_per_row == threads);
        CHECK(first_of("kl_div", columns, f32).threads_per_row <= threads);
    }
    for (const auto& [columns, threads] : {std::pair(9, 1), {33, 4}, {65, 8}})
        CHECK(first_of("logsumexp", columns, bf16).threads_per_row == threads);
}

TEST_CASE("rows that are stored column by column have four threads at least, of up to five columns each") {
    for (const auto& [columns, threads] : {std::pair(9, 4), {15, 4}, {21, 8}, {33, 8}}) {
        CAPTURE(columns);
        CHECK(first_of("softmax", columns, f32).threads_per_row == threads);
        CHECK(first_of("layer_norm", columns, bf16).threads_per_row == threads);
    }
}

TEST_CASE("rows of numbers and of functions of tables are those of blocks that stay") {
    const auto embedded = [](std::string_view columns) {
        return Graph::parse(fmt::format(R"(
            rows n
            columns d = {}
            input t: f32[n]
            output y = cast(sin(t * exp(cast(iota(d), f32) * -0.05)), bf16))",
                                        columns));
    };
    for (const std::string_view columns : {"128", "320", "768"}) {
        const Schedule s = first_of(embedded(columns));
        CAPTURE(print(s));
        CHECK(s.blocks_per_sm == 8);
        CHECK(s.threads_per_row * s.vector * 4 == std::stoi(std::string(columns)));
    }
}

TEST_CASE("rows of a function of a number and a table have three vectors a thread, of which all have some") {
    const auto bases = [](int columns) {
        return Graph::parse(
            fmt::format("rows t\ncolumns k = {}\ninput r: f32[t]\ninput mu: f32[k]\nd = r - mu\n"
                        "output y = cast(exp(-10 * d * d), bf16)\n",
                        columns));
    };
    for (const auto& [columns, threads] : {std::pair(300, 25), {480, 20}, {768, 32}}) {
        CAPTURE(columns);
        CHECK(first_of(bases(columns)).threads_per_row == threads);
    }
}

TEST_CASE("functions of tables are made again of rows that store much more than they read") {
    const auto steps = [](const char* stored) {
        return Graph::parse(
            fmt::format("rows t\ncolumns d = 2560\ninput x: bf16[t, d]\ninput a: f32[d]\n"
                        "z = cast(x, f32)\ns = log1p(exp(z))\noutput step = cast(s, {})\n"
                        "output decay = cast(exp(exp(a) * s), {})\n",
                        stored, stored));
    };
    CHECK(first_of(steps("bf16")).blocks_per_sm > 0);
    CHECK(first_of(steps("f32")).blocks_per_sm == 0);
}

TEST_CASE("wide rows that are reduced with a table end in clusters of small blocks, as rows without one") {
    const auto biased = [](int columns, const char* table) {
        return Graph::parse(
            fmt::format("rows t\ncolumns v = {}\ninput x: bf16[t, v]\ninput b: {}[v]\n"
                        "output y = cast(softmax(cast(x, f32) + cast(b, f32)), bf16)\n",
                        columns, table));
    };
    for (const char* table : {"f32", "bf16"}) {
        for (const auto& [columns, blocks] : {std::pair(16384, 1), {32000, 4}, {50304, 8}, {128256, 16}}) {
            const Schedule s = first_of(biased(columns, table));
            CAPTURE(print(s));
            CHECK(s.column_blocks == blocks);
            CHECK((blocks == 1 || (s.threads_per_row == 128 && s.blocks_per_sm == 0)));
        }
    }
}

TEST_CASE("exponentials beside a sum of them have 64 bytes of a row a thread") {
    struct Row {
        const char* dtype;
        int columns;
        int threads;
        int warps;
    };
    for (const auto& [dtype, columns, threads, warps] : {Row{"f32", 64, 4, 8},
                                                         {"f32", 128, 8, 12},
                                                         {"f32", 512, 32, 12},
                                                         {"f32", 4096, 256, 16},
                                                         {"bf16", 128, 4, 16},
                                                         {"bf16", 1024, 32, 16},
                                                         {"bf16", 4096, 128, 16}}) {
        const Schedule s =
            first_of(Graph::parse(fmt::format("rows t\ncolumns v = {}\ninput x: {}[t, v]\nh = cast(x, f32)\n"
                                              "e = exp(h - max(h))\noutput use = sum(e / sum(e), t)\n",
                                              columns, dtype)));
        CAPTURE(print(s));
        CHECK(s.threads_per_row == threads);
        CHECK(s.threads_per_row * s.rows_per_block * s.blocks_per_sm == 32 * warps);
        CHECK(s.stages == 2);
    }
}

TEST_CASE("rows over numbers of their columns stay, sixteen columns a thread, or more in stages beside sums") {
    const auto quantised = [](int columns) {
        return Graph::parse(
            fmt::format("rows t\ncolumns d = {}\ninput x: bf16[t, d]\ninput s: f32[d]\n"
                        "h = cast(x, f32) / s\na = maximum(max(abs(h)), 1e-8) / 127\n"
                        "output q = cast(round(h / a), i8)\noutput scale = a\n",
                        columns));
    };
    for (const auto& [columns, of_sums] : {std::pair(1024, 32), {4096, 128}, {5120, 224}, {8192, 256}}) {
        const Schedule s = first_of(quantised(columns));
        CAPTURE(print(s));
        const bool fills = columns != 5120;
        CHECK((s.blocks_per_sm > 0) == fills);
        if (fills) CHECK(s.threads_per_row * 16 == columns);
        const Schedule b = first_of(differentiate(quantised(columns), {"x", "s"}).backward);
        CAPTURE(print(b));
        CHECK(b.threads_per_row == of_sums);
        CHECK(b.residency == Residency::kStages);
    }
}

TEST_CASE("rows that meet in steps have few warps in few blocks") {
    const auto shape = [](std::int64_t columns, Dtype dtype) {
        const Schedule s = first_of("sparsemax", columns, dtype);
        CHECK(s.residency == Residency::kRegisters);
        return std::pair(s.column_blocks, s.threads_per_row);
    };
    CHECK(shape(32000, bf16) == std::pair<std::int64_t, int>(4, 128));
    CHECK(shape(50304, f32) == std::pair<std::int64_t, int>(4, 128));
    CHECK(shape(128256, f32) == std::pair<std::int64_t, int>(8, 128));
    CHECK(shape(151936, bf16) == std::pair<std::int64_t, int>(8, 128));
    CHECK(shape(200064, bf16) == std::pair<std::int64_t, int>(16, 128));
}

TEST_CASE("beside sums `tune` may try half of a multiprocessor's threads, which the static rule does not take") {
    const Target& target = find_target("sm_90a");
    const auto threads_per_sm = [](const Schedule& s) {
        return s.threads_per_row * s.rows_per_block * s.blocks_per_sm;
    };
    for (const std::string_view op : {"rms_norm", "layer_norm", "add_rms_norm"}) {
        CAPTURE(op);
        const std::vector<Schedule> all = legal_schedules(norms_backward(op, 4096, bf16, target), target);
        CHECK(threads_per_sm(all.at(0)) >= 512);
        CHECK(std::ranges::count(all, 256, threads_per_sm) >= 3);
    }
}

TEST_CASE("columns beside sums have blocks of whole rows where they take long to compute, else parts of several rows") {
    const auto backward_of = [](std::string_view text, std::int64_t columns) {
        const Graph graph = Graph::parse(fmt::format(fmt::runtime(text), columns));
        return first_of(differentiate(graph).backward);
    };
    constexpr std::string_view kGelu =
        "rows tokens\ncolumns d = {}\ninput x: bf16[tokens, d]\ninput b: bf16[d]\nh = cast(x, f32) + cast(b, f32)\n"
        "output y = cast(0.5 * h * (1 + tanh(0.7978845608 * (h + 0.044715 * h * h * h))), bf16)\n";
    for (const std::int64_t columns : {3072, 4096, 5120, 7168, 8192, 14336}) {
        CAPTURE(columns);
        const Schedule s = backward_of(kGelu, columns);
        CHECK(s.column_blocks * s.threads_per_row * s.vector == columns);
        CHECK(s.column_blocks == (columns > 8192 ? 2 : 1));
        CHECK(s.rows_per_block == 1);
    }
    // Of as many vectors as no number of blocks divides, the last threads of a row have none.
    const Schedule prime = backward_of(kGelu, 8 * 2053);
    CHECK(prime.column_blocks == 3);
    CHECK(prime.threads_per_row == 704);
    constexpr std::string_view kSlope =
        "rows tokens\ncolumns d = {}\ninput x: bf16[tokens, d]\ninput a: bf16[d]\nh = cast(x, f32)\n"
        "output y = cast(select(h > 0, h, h * cast(a, f32)), bf16)\n";
    const Schedule light = backward_of(kSlope, 4096);
    CHECK(light.rows_per_block == 4);
    CHECK(light.column_blocks * light.threads_per_row * light.vector == 4096);
}

TEST_CASE("sums over the positions of many batches have vectors, whether a launch says how many batches or the graph") {
    const auto sums_of = [](std::string_view batches) {
        return first_of(
            Graph::parse(fmt::format("rows batch{}\nrows positions\ncolumns d = 1024\n"
                                     "input x: bf16[batch, positions, d]\n"
                                     "output m = sum(cast(x, f32), positions)\n",
                                     batches)));
    };
    const Schedule given = sums_of(" = 64");
    CHECK(given.vector > 1);
    CHECK(given == sums_of(""));
    CHECK(sums_of(" = 4").vector == 1);  // of few, more threads add up each
}

TEST_CASE("vectors and threads are of what is loaded where that is wider, or narrower, than what is stored") {
    const auto of = [](const std::string& text) { return first_of(Graph::parse("rows t\n" + text)); };
    const Schedule joined =
        of("columns s = 8\ncolumns d = 128\ninput o: f32[t, s, d]\ninput l: f32[t, s]\nw = exp(l - max(l))\n"
           "output y = cast(sum(o * (w / sum(w)), s), bf16)\n");
    CHECK(joined.vector == 4);
    const Schedule probabilities =
        of("input x: bf16[t, 64]\ne = exp(cast(x, f32) - max(cast(x, f32)))\n"
           "output p = e / sum(e)\n");
    CHECK(probabilities.threads_per_row * probabilities.vector == 32);
}

TEST_CASE("rows that functions are computed of have all threads of a block at work") {
    const Schedule s = first_of(
        Graph::parse("rows t\ninput x: bf16[t, 5120]\ninput s: f32[5120]\ny = cast(x, f32) / s\n"
                     "a = maximum(max(abs(y)), 1e-8) / 127\noutput q = cast(round(y / a), i8)\noutput scale = a\n"));
    CHECK(share_at_work(s, 5120) == 1);
}

TEST_CASE("what is computed of tables alone is held by blocks that stay") {
    const auto decay = [](std::string_view of_table) {
        return first_of(Graph::parse(fmt::format(
            "rows tokens\ncolumns d = 4096\ninput x: f32[tokens, d]\ninput a: f32[d]\ninput n: f32[tokens]\n"
            "output y = exp(0 - {} * x)\n",
            of_table)));
    };
    CHECK(decay("exp(a)").blocks_per_sm > 0);
    CHECK(decay("exp(a)").threads_per_row == 256);
    CHECK(decay("exp(a)").stages == 2);
    CHECK(decay("a").blocks_per_sm == 0);
    // Beside a row's numbers, with which each thread computes, it has four vectors.
    CHECK(decay("exp(a) * n").threads_per_row == 256);
}

TEST_CASE("rows beside tables and sums that a block holds are copied one ahead") {
    const auto by_moments = [](int columns) {
        return first_of(Graph::parse(fmt::format(
            "rows t\ncolumns d = {}\ninput x: bf16[t, d]\ninput m: f32[d]\ninput v: f32[d]\n"
            "input w: bf16[d]\noutput y = cast((cast(x, f32) - m) * rsqrt(v + 1e-5) * cast(w, f32), bf16)\n",
            columns)));
    };
    CHECK(print(by_moments(1024)) ==
          "elementwise keep=registers threads=128 rows=2 vector=4 stages=2 blocks_per_sm=3 min_blocks=3");
    CHECK(by_moments(1536).threads_per_row == 192);
    const auto summed = [](int columns, std::string_view also) {
        return first_of(
            Graph::parse(fmt::format("rows t\ncolumns d = {}\ninput x: bf16[t, d]\ninput a: bf16[d]\n"
                                     "output s = sum(cast(x, f32) * cast(a, f32), t)\n{}\n",
                                     columns, also)));
    };
    CHECK(summed(256, "").threads_per_row == 16);
    CHECK(summed(256, "").stages == 2);
    const Schedule beside = summed(1024, "output y = x * a");
    CHECK(beside.threads_per_row * beside.vector == 1024);
    CHECK(beside.blocks_per_sm == 2);
    CHECK(beside.stages == 2);
    CHECK(summed(4096, "output y = x * a").stages == 0);
}

TEST_CASE("a thread has all of a row of a few columns that no vector divides") {
    const auto pixels = [](int channels) {
        return first_of(
            Graph::parse(fmt::format("rows t\ninput x: bf16[t, {0}]\ninput m: bf16[{0}]\n"
                                     "output y = x - m\n",
                                     channels)));
    };
    CHECK(pixels(3).threads_per_row == 1);
    CHECK(pixels(5).threads_per_row > 1);
}

TEST_CASE("a thread has many columns of a narrow row whose numbers take longer") {
    const auto policy = [](int actions) {
        return Graph::parse(
            fmt::format("rows n\ncolumns a = {}\ninput x: f32[n, a]\ninput act: i64[n]\ninput old: f32[n]\n"
                        "input adv: f32[n]\nm = max(x)\nz = x - m\ns = sum(exp(z))\nlp = z - log(s)\n"
                        "r = exp(index(x, n, act) - m - log(s) - old)\nc = minimum(maximum(r, 0.8), 1.2)\n"
                        "e = -sum(exp(lp) * lp)\noutput loss = -minimum(r * adv, c * adv) - 0.01 * e\n",
                        actions));
    };
    CHECK(first_of(policy(18)).threads_per_row == 1);
    CHECK(first_of(policy(64)).threads_per_row == 2);
    CHECK(first_of(policy(512)).threads_per_row == 32);
    CHECK(first_of(differentiate(policy(18)).backward).threads_per_row == 3);
}

TEST_CASE("rows of several tensors that meet twice end in blocks of four warps, not in sixteen of a row") {
    const auto surprise = [](int classes) {
        return differentiate(
                   Graph::parse(fmt::format("rows n\ninput x: f32[n, {}]\nm = max(x)\nz = x - m\ns = sum(exp(z))\n"
                                            "lp = z - log(s)\nh = -sum(exp(lp) * lp)\noutput y = abs(-lp - h)\n",
                                            classes)))
            .backward;
    };
    const Schedule s = first_of(surprise(32000));
    CHECK(s.column_blocks == 8);
    CHECK(s.threads_per_row == 128);
    CHECK(s.blocks_per_sm == 0);
    CHECK(first_of(surprise(65536)).blocks_per_sm > 0);
}

TEST_CASE("lanes that look through a list together are those of whole warps, beside the list's own gradient too") {
    const Graph distilled = Graph::parse(
        "rows t\ncolumns k = 64\ninput x: bf16[t, 32000]\ninput ids: i64[t, k]\ninput p: f32[t, k]\n"
        "h = cast(x, f32)\nm = max(h)\nlse = m + log(sum(exp(h - m)))\n"
        "output loss = sum(p * (lse - cast(index(x, t, ids), f32)))\n");
    const Target& target = find_target("sm_90a");
    const Plan plan = plan_graph(*differentiate(distilled).backward.data(), target);
    bool found = false;
    for (const Group& group : plan.groups) {
        const Schedule s = legal_schedules(group, target).at(0);
        if (s.column_blocks == 1) continue;
        found = true;
        CHECK(s.threads_per_row % 32 == 0);
        CHECK(s.vector == 8);
        CHECK(s.blocks_per_sm == 0);
    }
    CHECK(found);
}

TEST_CASE(
    "rows that a pair is carried of over all rows have four vectors a thread, in as many warps as have registers") {
    struct Row {
        Dtype dtype;
        std::int64_t columns;
        int threads;
        int warps;
    };
    for (const auto& [dtype, columns, threads, warps] :
         {Row{bf16, 1024, 32, 12}, {bf16, 4096, 128, 12}, {bf16, 256, 8, 12}, {f32, 1024, 64, 16}}) {
        CAPTURE(columns);
        const Schedule s = first_of(Graph::parse(
            fmt::format("rows r\ncolumns d = {}\ninput x: {}[r, d]\nz = cast(x, f32)\nn = max(z, r)\n"
                        "output of_rows = log(sum(exp(z - max(z))))\noutput of_columns = sum(exp(z - n), r)\n",
                        columns, name(dtype))));
        CHECK(s.threads_per_row == threads);
        CHECK(s.threads_per_row * s.rows_per_block * s.blocks_per_sm == 32 * warps);
    }
}

TEST_CASE("narrow rows that meet twice beside sums, or compute with numbers, have several vectors a thread") {
    const auto of_experts = [](int columns) {
        return Graph::parse(
            fmt::format("rows t\ninput x: bf16[t, {}]\nz = cast(x, f32)\nm = max(z)\ne = exp(z - m)\n"
                        "s = sum(e)\noutput load = mean(e / s, t)\noutput lse = m + log(s)\n",
                        columns));
    };
    CHECK(first_of(of_experts(64)).threads_per_row == 2);
    const auto derivative = [&](int columns) {
        const Target& target = find_target("sm_90a");
        const Differentiated made = differentiate(of_experts(columns));
        return legal_schedules(plan_graph(*made.backward.data(), target).groups.at(0), target).at(0);
    };
    CHECK(derivative(64).threads_per_row == 4);
    CHECK(derivative(128).threads_per_row == 8);
}

TEST_CASE("rows of a function of numbers have two or three vectors of narrow floats a thread") {
    for (const auto& [columns, threads] : {std::pair(128, 8), {192, 8}, {256, 16}, {320, 16}, {384, 16}, {512, 32}}) {
        CAPTURE(columns);
        const Graph graph = Graph::parse(
            fmt::format("rows t\ninput s: bf16[t, {}]\ninput u: f32[t]\nx = cast(s, f32) * u\ne = exp(x - max(x))\n"
                        "output p = cast(e / sum(e), bf16)\n",
                        columns));
        CHECK(first_of(graph).threads_per_row == threads);
    }
}

TEST_CASE("gated rows that are stored in bytes have one block") {
    for (const auto& [columns, threads] : {std::pair(8960, 288), {11008, 352}, {14336, 448}}) {
        CAPTURE(columns);
        const Graph graph = Graph::parse(fmt::format(
            "rows t\ninput a: bf16[t, {0}]\ninput b: bf16[t, {0}]\nx = cast(a, f32)\n"
            "h = x / (1 + exp(-x)) * cast(b, f32)\ns = max(abs(h)) / 127\noutput q = cast(round(h / s), i8)\n"
            "output scale = s\n",
            columns));
        CHECK(first_of(graph).threads_per_row == threads);
        CHECK(first_of(graph).column_blocks == 1);
    }
}

TEST_CASE("narrow rows of f32 that take logarithms of their numbers leave few threads' places without a vector") {
    const Graph graph = Graph::parse(R"(
        rows t
        input x: f32[t, 18]
        input z: f32[t]
        input a: f32[t]
        output y = exp(x - log(z)) * log(a))");
    CHECK(first_of(graph).threads_per_row == 3);
}

TEST_CASE("four tensors' rows and more stay in their stages beside sums, in threads that all have columns") {
    for (const std::int64_t columns : {1024, 2048, 2880, 4096, 5120}) {
        CAPTURE(columns);
        const Graph graph = Graph::parse(fmt::format(R"(
rows tokens
columns d = {}
input x: bf16[tokens, d]
input a: bf16[tokens, d]
input b: bf16[tokens, d]
input w: bf16[d]
h = cast(x, f32) + cast(a, f32) + cast(b, f32)
output s = cast(h, bf16)
output y = cast(h * rsqrt(mean(h * h) + 1e-5) * cast(w, f32), bf16)
)",
                                                     columns));
        const Schedule s = first_of(differentiate(graph).backward);
        CHECK(s.residency == Residency::kStages);
        CHECK(s.threads_per_row * s.rows_per_block * s.blocks_per_sm <= 512);
        CHECK(share_at_work(s, columns) > 0.9);
    }
}

TEST_CASE("rows whose threads never meet, or of which nothing is kept, wait for no cluster's blocks") {
    const Target& target = find_target("sm_90a");
    for (const std::int64_t columns : {5376, 8960, 12288, 18432}) {
        CAPTURE(columns);
        const Schedule mixed = legal_schedules(norms_backward("hyper_post", columns, bf16, target), target).at(0);
        CHECK(mixed.column_blocks == 1);
        const Schedule apart = legal_schedules(norms_backward("dynamic_tanh", columns, f32, target), target).at(0);
        CHECK(apart.column_blocks * 1536 * 4 < 2 * columns);
        CHECK(share_at_work(apart, columns) > 0.9);
    }
    CHECK(share_at_work(first_of("kl_div", 6656, f32), 6656) > 0.9);
}

TEST_CASE("threads of a row are a part of a warp, or any number of whole warps") {
    const auto schedule =
        parse_schedule("row_reduction keep=registers threads=96 vector=8 blocks_per_sm=4 min_blocks=4");
    REQUIRE(schedule);
    CHECK(!parse_schedule("row_reduction keep=registers threads=48 vector=8"));
    CHECK(!parse_schedule("row_reduction keep=registers threads=1056 vector=8"));
    const Target nvidia = find_target("sm_90a");
    CHECK(build_kernel(norms_backward("layer_norm", 2304, bf16, nvidia), *schedule, nvidia));
    const Target amd = find_target("gfx942");  // of waves of 64
    const auto declined = build_kernel(norms_backward("layer_norm", 2304, bf16, amd), *schedule, amd);
    REQUIRE(!declined);
    CHECK(declined.reason() == "96 threads on a row are no whole warps of 64");
}

TEST_CASE("every width has a schedule where the tensors of a row leave few registers") {
    const Target target = find_target("sm_90a");
    for (std::int64_t columns = 128; columns <= 8192; columns += 128) {
        const Group group = norms_backward("gated_rms_norm", columns, bf16, target);
        CHECK_MESSAGE(!legal_schedules(group, target).empty(), columns);
    }
}

// 18 warps are five on two of the schedulers, and registers are dealt out eight at a time.
TEST_CASE("a thread has the registers that its scheduler has for it") {
    const Target target = find_target("sm_90a");
    const Group group = norms_backward("layer_norm", 9216, bf16, target);
    const auto schedule =
        parse_schedule("row_reduction keep=registers threads=288 vector=8 stages=2 blocks_per_sm=2 min_blocks=2");
    const auto kernel = build_kernel(group, schedule.value(), target);
    REQUIRE(!kernel);
    CHECK(kernel.reason().find("blocks of 288 threads have 96") != std::string::npos);
}

TEST_CASE("rows of an odd number of columns beside sums are a thread's columns each, as many as it has registers for") {
    const Target target = find_target("sm_90a");
    for (const std::string_view op : {"rms_norm", "layer_norm", "dynamic_tanh"}) {
        for (const std::int64_t columns : {1537, 4097, 6001}) {
            CAPTURE(op);
            CAPTURE(columns);
            const std::vector<Schedule> legal = legal_schedules(norms_backward(op, columns, bf16, target), target);
            const auto one = std::ranges::find_if(legal, [](const Schedule& s) { return !s.peel; });
            REQUIRE(one != legal.end());
            CHECK(legal.at(0).peel == (op != "dynamic_tanh" || columns == 4097));
            CHECK(one->vector == 1);
            CHECK(one->column_blocks == 1);
            CHECK(one->threads_per_row * one->blocks_per_sm == 512);
        }
        const Schedule wide = legal_schedules(norms_backward(op, 50257, bf16, target), target).at(0);
        CHECK(wide.skew);
        CHECK(50257 / (wide.column_blocks * wide.threads_per_row) < 16);
    }
    // Beside several tables no vector lies together where the row's do; beside one, or with a residual, rows are
    // peeled.
    CHECK(!first_of("layer_norm", 4097, bf16).peel);
    CHECK(first_of("rms_norm", 4097, bf16).peel);
    CHECK(first_of("add_layer_norm", 4097, bf16).peel);
}

TEST_CASE("rows beside sums of their columns are peeled, whole vectors of them in each thread") {
    const Target target = find_target("sm_90a");
    const auto first = [&](std::string_view op, std::int64_t columns, Dtype dtype) {
        return legal_schedules(norms_backward(op, columns, dtype, target), target).at(0);
    };
    for (const std::string_view op : {"rms_norm", "layer_norm", "add_rms_norm"}) {
        for (const std::int64_t columns : {1537, 2049, 4097, 6001}) {
            CAPTURE(op);
            CAPTURE(columns);
            const Schedule s = first(op, columns, bf16);
            CHECK(s.peel);
            CHECK(s.vector == 8);
            CHECK(s.column_blocks == 1);
            const std::int64_t vectors = columns / 8;
            CHECK(ceil_div(vectors, s.threads_per_row) * s.threads_per_row <= 5 * vectors / 4);
        }
    }
    CHECK(first("rms_norm", 20003, bf16).peel);
    CHECK(first("layer_norm", 7002, bf16).peel);
    // Clusters would not come round evenly, threads would have no vector, and words are as good of three tensors.
    CHECK(!first("rms_norm", 50257, bf16).peel);
    CHECK(!first("dynamic_tanh", 5001, bf16).peel);
    CHECK(!first("layer_norm", 9001, f32).peel);
    CHECK(first("layer_norm", 20003, f32).peel);
    CHECK(!first("add_rms_norm", 6003, f32).peel);
    CHECK(!first("add_layer_norm", 7002, bf16).peel);
    for (const std::int64_t columns : {602, 12290}) CHECK(!first("rms_norm", columns, bf16).peel);
}

TEST_CASE("rows of words beside sums are divided over threads by their bytes, not by their accesses") {
    const Target target = find_target("sm_90a");
    for (const std::string_view op : {"rms_norm", "layer_norm", "add_rms_norm", "dynamic_tanh"}) {
        for (const auto& [columns, dtype] : std::vector<std::pair<std::int64_t, Dtype>>{{602, bf16},
                                                                                        {2050, bf16},
                                                                                        {4100, bf16},
                                                                                        {6002, bf16},
                                                                                        {12290, bf16},
                                                                                        {20004, bf16},
                                                                                        {3330, f32},
                                                                                        {12290, f32}}) {
            CAPTURE(op);
            CAPTURE(columns);
            const std::vector<Schedule> legal = legal_schedules(norms_backward(op, columns, dtype, target), target);
            const bool has_two_tensors = op == "rms_norm" || op == "layer_norm";
            CHECK(legal.at(0).peel == (has_two_tensors && (columns == 2050 || columns == 6002)));
            const Schedule s = *std::ranges::find_if(legal, [](const Schedule& one) { return !one.peel; });
            const std::int64_t element = dtype == bf16 ? 2 : 4;
            CHECK(s.vector * element == (columns % 4 == 0 || dtype == f32 ? 8 : 4));
            CHECK(s.threads_per_row * s.rows_per_block * s.blocks_per_sm == 512);
            const std::int64_t bytes = columns * element / (s.column_blocks * s.threads_per_row);
            CHECK(bytes > 12);
            CHECK(bytes <= 80);
        }
    }
    // Whole vectors have their own rules.
    CHECK(legal_schedules(norms_backward("rms_norm", 12288, bf16, target), target).at(0).vector == 8);
}

TEST_CASE("rows of f32 words are read once in registers, as long as 512 threads have them") {
    for (const std::string_view op : {"cross_entropy", "kl_div"}) {
        CAPTURE(op);
        const Schedule words = first_of(op, 12290, f32);
        CHECK(words.residency == Residency::kRegisters);
        CHECK(words.column_blocks * words.threads_per_row == 512);
        CHECK(first_of(op, 14002, f32).residency == Residency::kReload);
        CHECK(first_of(op, 12288, f32).residency == Residency::kReload);
    }
}

TEST_CASE("rows that no whole vector divides have as much in flight as whole ones") {
    const Target target = find_target("sm_90a");
    const auto backward = [&](std::string_view op, std::int64_t columns, Dtype dtype) {
        return legal_schedules(norms_backward(op, columns, dtype, target), target).at(0);
    };
    // Words of eight bytes, of which a thread has twice as many, and few threads none.
    for (const std::string_view op : {"gelu", "kl_div", "orpo"}) {
        CAPTURE(op);
        const Schedule s = backward(op, 2050, f32);
        CHECK(s.vector == 2);
        CHECK(s.column_blocks * s.threads_per_row == 320);
        CHECK(share_at_work(s, 2050) > 0.75);
    }
    CHECK(share_at_work(backward("gelu", 2052, f32), 2052) > 0.75);
    // Peeled rows, of which a thread has four vectors, each of two where many functions share a block's ends.
    const Schedule drops = first_of("dropout", 12290, bf16);
    CHECK(drops.peel);
    CHECK(drops.column_blocks == 2);
    CHECK(first_of("dropout", 2050, bf16).vector == 16);
    CHECK(first_of("silu", 2050, bf16).vector == 8);
    CHECK(first_of("embedding", 12290, bf16).vector == 4);
    // Four tensors that are reduced are peeled beside a table, which two are not.
    CHECK(first_of("add_rms_norm", 12290, bf16).peel);
    CHECK(!first_of("rms_norm", 8194, bf16).peel);
    // Copies of four bytes are too many: of eight states, and of the widest rows, which when peeled have no registers
    // for the next one either.
    CHECK(first_of("attention_residual", 2050, bf16).stages == 0);
    CHECK(backward("softmax", 151646, bf16).prefetch);
    CHECK(!backward("softmax", 151643, bf16).fetches_ahead());
    CHECK(backward("softmax", 100001, bf16).blocks_per_sm == 2);
}

TEST_CASE("of a few rows of each position a block of a warp or two takes one position's") {
    const Graph rotation = Graph::parse(R"(
        rows n
        rows heads = 32
        columns d = 128
        input x: bf16[n, heads, d]
        input cosine: bf16[n, d]
        input sine: bf16[n, d]
        p = index(x, n, heads, (d + 64) % 128)
        output z = x * cosine + select(iota(d) < 64, -p, p) * sine)");
    const Target target = find_target("sm_90a");
    const Program backward = compile(*differentiate(rotation).backward.data(), target);
    REQUIRE(!backward.steps[0].kernel.outer.empty());
    CHECK(backward.steps[0].kernel.block_threads() <= 64);
    CHECK(backward.steps[0].kernel.schedule.rows_per_block > 1);
}

TEST_CASE("many channels' rows fill a block's stage beside sums of numbers, a few vectors of each a thread") {
    const Target target = find_target("sm_90a");
    for (const auto& [columns, dtype, stages] :
         {std::tuple(5120, bf16, 2), std::tuple(7168, bf16, 1), std::tuple(4096, f32, 1), std::tuple(5120, f32, 1)}) {
        const Schedule first = legal_schedules(norms_backward("group_norm", columns, dtype, target), target).front();
        CAPTURE(print(first));
        CHECK(first.residency == Residency::kStages);
        CHECK(first.column_blocks == 1);
        CHECK(first.stages == stages);
        CHECK(share_at_work(first, columns) > 0.9);
    }
    // A row for which shared memory has no room is read again by one block of a multiprocessor, not two.
    const Group wide = norms_backward("group_norm", 8192, f32, target);
    const Schedule again = legal_schedules(wide, target).front();
    CHECK(again.residency == Residency::kReload);
    CHECK(again.blocks_per_sm == 1);
}

TEST_CASE("a stored row of which sixteen multiprocessors hold one stays in its stage, and is filled again") {
    const Target target = find_target("sm_90a");
    for (const char* op : {"softmax", "l2_norm"}) {
        const Graph graph = make_graph(op, {262144, f32, {}});
        const Program backward = compile(*differentiate(graph).backward.data(), target);
        const Kernel& kernel = backward.steps.at(0).kernel;
        CAPTURE(print(kernel.schedule));
        CHECK(kernel.schedule.residency == Residency::kStages);
        CHECK(kernel.schedule.stages == 1);
        CHECK(kernel.schedule.column_blocks == kMostClusterBlocks);
        CHECK(kernel.refills);
    }
}

TEST_CASE("columns that a row reads at places of its own are a thread's each, those of a table are vectors") {
    const auto gathered = [](int places, std::string_view source) {
        return Graph::parse(
            fmt::format("rows tokens\ncolumns d = 8192\ncolumns k = {}\ninput x: bf16[{}]\ninput ids: i64[tokens, k]\n"
                        "output y = index(x, {}ids)\n",
                        places, source, source == "d" ? "" : "tokens, "));
    };
    const Schedule few = first_of(gathered(128, "tokens, d"));
    CHECK(few.vector == 1);
    CHECK(few.threads_per_row == 128);
    CHECK(few.rows_per_block == 2);
    CHECK(first_of(gathered(512, "tokens, d")).threads_per_row == 256);
    CHECK(first_of(gathered(512, "d")).vector == 8);
}

TEST_CASE("distributions of f32 that are compared, and of which one is stored, wait in registers of blocks that end") {
    const auto joint_of = [](std::string_view op, std::int64_t columns, Dtype dtype) {
        return first_of(
            gradient(make_graph(op, {columns, dtype, {}}), {"student"}, {.joint = true, .unit_cotangent = true}));
    };
    for (const std::int64_t columns : {50257, 50304, 100277, 128256}) {
        CAPTURE(columns);
        for (const Schedule& s : {joint_of("kl_div", columns, f32), joint_of("tvd", columns, f32)}) {
            CHECK(s.residency == Residency::kRegisters);
            CHECK(s.threads_per_row == 256);
            CHECK(s.blocks_per_sm == 0);
            CHECK((columns + 255) / 256 <= 32 * s.column_blocks);
        }
    }
    // Of rows that begin anywhere, which no copies are made ahead of, those that registers have no room for are read
    // twice, and bf16 ones unless they take logarithms.
    for (const std::int64_t columns : {50257, 100277}) {
        CAPTURE(columns);
        CHECK(joint_of("jsd", columns, f32).residency == Residency::kReload);
        CHECK(joint_of("kl_div", columns, bf16).residency == Residency::kReload);
        CHECK(joint_of("tvd", columns, bf16).residency == Residency::kReload);
        CHECK(joint_of("jsd", columns, bf16).residency == Residency::kRegisters);
    }
}

TEST_CASE("rows in shared memory beside sums of numbers leave most of the first-level cache to others") {
    const Target& target = find_target("sm_90a");
    for (const auto& [columns, dtype] : {std::pair<std::int64_t, Dtype>{13824, bf16}, {16384, bf16}, {13824, f32}}) {
        CAPTURE(columns);
        const Schedule s = legal_schedules(norms_backward("poly_norm", columns, dtype, target), target).at(0);
        CHECK(s.residency == Residency::kShared);
        CHECK(s.threads_per_row * s.blocks_per_sm == 1024);
        CHECK(s.blocks_per_sm * columns * 2 * static_cast<std::int64_t>(size_bytes(dtype)) <= 128 * 1024);
    }
}

TEST_CASE("rows whose threads never meet have the fewest blocks, and as many threads of those as have whole vectors") {
    const Target& target = find_target("sm_90a");
    const auto tanh = [&](std::int64_t columns, Dtype dtype) {
        return legal_schedules(norms_backward("dynamic_tanh", columns, dtype, target), target).at(0);
    };
    CHECK(tanh(14336, bf16).column_blocks == 2);
    CHECK(tanh(14336, bf16).threads_per_row == 448);
    CHECK(tanh(14336, f32).column_blocks == 2);
    CHECK(tanh(7168, f32).column_blocks == 1);
    CHECK(tanh(6656, f32).column_blocks == 2);  // in one block of thirteen warps
}

TEST_CASE("where registers have no room for sums and many tensors in many warps, fewer copy ahead") {
    const Graph graph = Graph::parse(R"(rows b
rows s = 256
columns d = 1152
input x: bf16[b, s, d]
input attn: bf16[b, s, d]
input gate: bf16[b, d]
input shift: bf16[b, d]
input scale: bf16[b, d]
r = x + gate * attn
h = cast(r, f32)
c = h - mean(h)
output ro = r
output y = cast(c * rsqrt(mean(c * c) + 1e-6), bf16) * (1 + scale) + shift
)",
                                     "block");
    const Schedule s = first_of(differentiate(graph, {"x", "attn", "gate", "shift", "scale"}).backward);
    CHECK(s.stages == 2);
    CHECK(s.threads_per_row * s.blocks_per_sm == 384);
}
