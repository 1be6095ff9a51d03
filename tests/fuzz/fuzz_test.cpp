// Random graphs against the oracle: printed and parsed, on the CPU with every schedule, and as emitted GPU source on
// the SIMT machine; and their backwards, planned. A failure is made smaller and printed as text that `rowjit verify`
// reads.
//
// ROWJIT_FUZZ_SEEDS and ROWJIT_FUZZ_FIRST choose the seeds (./dev fuzz sets them).
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "compiler/compile.h"
#include "compiler/schedule/choose.h"
#include "dsl/random_inputs.h"
#include "rowjit/gradient.h"
#include "runtime/engine_impl.h"
#include "runtime/verify.h"
#include "tests/simt/simt_device.h"
#include "tests/support/random_graph.h"

using namespace rowjit;

namespace {

struct Seeds {
    std::uint64_t first;
    std::uint64_t count;
};

Seeds seeds(std::uint64_t usual_count) {
    const char* first = std::getenv("ROWJIT_FUZZ_FIRST");
    const char* count = std::getenv("ROWJIT_FUZZ_SEEDS");
    return {first == nullptr ? 1 : std::strtoull(first, nullptr, 10),
            count == nullptr ? usual_count : std::strtoull(count, nullptr, 10)};
}

// The bar of dsl/accuracy.h measures a kernel by eager's luck: where an output has one element and eager's roundings
// happened to cancel there, another order of summation, as right as eager's, is outside it. Composites are free of such
// cases by construction; random graphs, which amplify one bf16 rounding through a dozen operations, are not. What the
// bar refuses is therefore let through while it is finite exactly where eager is and within the roundings of the
// narrowest dtype on the way. A wrong element, mask, stride or barrier errs by about the values themselves.
double slack(const GraphData& graph, const Tensor& exact) {
    double unit = 0;
    for (const NodeId id : graph.live_nodes()) {
        const Dtype dtype = graph.node(id).dtype;
        // f32 sums cancel terms of up to 64 (random_graph.h) against each other, and exponentials magnify what is left.
        if (is_float(dtype)) unit = std::max(unit, dtype == f32 ? 1024 * ulp(f32, 1.0) : 16 * ulp(dtype, 1.0));
    }
    double largest = 1;
    for (const double value : exact.values)
        largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
    return unit * largest;
}

bool close_enough(const Tensor& got, const Tensor& exact, const Tensor& eager, double slack) {
    for (std::size_t i = 0; i < got.values.size(); ++i) {
        if (std::isfinite(got.values[i]) != std::isfinite(eager.values[i])) return false;
        if (std::isnan(got.values[i]) != std::isnan(eager.values[i])) return false;
        const double error =
            std::min(std::abs(got.values[i] - exact.values[i]), std::abs(got.values[i] - eager.values[i]));
        if (std::isfinite(error) && error > slack) return false;
    }
    return true;
}

// Inputs and what the oracle makes of them: once for all schedules of a graph.
struct Expectation {
    Bindings bindings;
    Tensors exact;
    Tensors eager;
};

Expectation expect(const GraphData& graph, std::int64_t rows, std::uint64_t seed) {
    Bindings bindings = random_inputs(graph, all_rows(graph, rows), {.seed = seed, .out_of_range = true});
    Tensors exact = interpret(graph, bindings, Rounding::kExact);
    Tensors eager = interpret(graph, bindings, Rounding::kEager);
    return {std::move(bindings), std::move(exact), std::move(eager)};
}

// What is wrong with a run, "" for nothing.
std::string outcome(const Device& device, const Executable& executable, const GraphData& graph,
                    const Expectation& expected, const RunOptions& options) {
    try {
        const Tensors got = run(device, executable, graph, expected.bindings, options);
        std::string wrong;
        for (const OutputInfo& output : graph.outputs()) {
            const Tensor& exact = expected.exact.at(output.name);
            const Tensor& eager = expected.eager.at(output.name);
            const ErrorReport report = compare(got.at(output.name), exact, eager, graph.node(output.node).dtype);
            if (!report.within_bar && !close_enough(got.at(output.name), exact, eager, slack(graph, exact)))
                wrong += fmt::format("{}: {}\n", output.name, describe(report));
        }
        return wrong;
    } catch (const std::exception& error) {
        return error.what();
    }
}

struct Variant {
    std::string name;
    Program program;
};

// The programs that differ from the static one in one group's schedule. At most `most` of each group's, spread over the
// family's list; 0 for all. Throws Error(kUnsupported) where no schedule runs a group.
std::vector<Variant> variants(const GraphData& graph, const Target& target, std::size_t most) {
    std::vector<Variant> found;
    const Plan plan = plan_graph(graph, target);
    for (const Group& varied : plan.groups) {
        const std::vector<Schedule> legal = legal_schedules(varied, target);
        const std::size_t step = most == 0 ? 1 : std::max<std::size_t>(1, (legal.size() + most - 1) / most);
        for (std::size_t i = 0; i < legal.size(); i += step) {
            Program program = compile(graph, target, [&](const Group& group) {
                return group.name == varied.name ? std::optional(legal[i]) : std::nullopt;
            });
            found.push_back(
                {fmt::format("{} on {}: {}", varied.name, target.name, print(legal[i])), std::move(program)});
        }
    }
    if (found.empty()) found.push_back({"static", compile(graph, target)});
    return found;
}

// What is wrong with a graph on one backend, "" for nothing. Unsupported graphs throw.
using Check = std::function<std::string(const Graph& graph, std::uint64_t seed)>;

std::string guarded(const Check& check, const Graph& graph, std::uint64_t seed) {
    try {
        return check(graph, seed);
    } catch (const Error& error) {
        return error.code() == ErrorCode::kUnsupported ? "" : error.what();
    } catch (const std::exception& error) {
        return error.what();
    }
}

// Greedy: the first simpler graph that still fails, until none does or the patience is gone.
std::string shrunk(Graph graph, std::uint64_t seed, std::string failure, const Check& check, int patience) {
    for (bool smaller = true; smaller;) {
        smaller = false;
        for (const Graph& candidate : simpler(*graph.data())) {
            if (--patience < 0) break;
            std::string why = guarded(check, candidate, seed);
            if (why.empty()) continue;
            graph = candidate;
            failure = std::move(why);
            smaller = true;
            break;
        }
    }
    return fmt::format("seed {}:\n{}\n{}", seed, graph.print(), failure);
}

std::string on_cpu(Engine& engine, const Graph& graph, std::uint64_t seed) {
    const GraphData& data = *graph.data();
    std::vector<Expectation> expected;
    for (const std::int64_t rows : {0, 1, 5}) expected.push_back(expect(data, rows, seed));
    for (Variant& variant : variants(data, engine.impl().target(), 0)) {
        const Executable executable = engine.impl().load(std::move(variant.program));
        for (std::size_t i = 0; i < expected.size(); ++i) {
            const RunOptions options{.row_padding = i == 2 ? 16 : 0};
            const std::string wrong = outcome(engine.device(), executable, data, expected[i], options);
            if (!wrong.empty()) return variant.name + "\n" + wrong;
        }
    }
    return "";
}

struct SimtCase {
    Graph graph;
    std::uint64_t seed;
    std::string name;
    Program program;
};

void add_simt_cases(const Graph& graph, std::uint64_t seed, const Target& target, std::vector<SimtCase>* cases) {
    for (Variant& variant : variants(*graph.data(), target, 2))
        cases->push_back({graph, seed, std::move(variant.name), std::move(variant.program)});
}

// What is wrong with each case, compiled together.
std::vector<std::string> on_simt(const std::vector<SimtCase>& cases, const Target& target) {
    const Device device = simt::device(target);
    std::vector<Program> programs;
    for (const SimtCase& one : cases) programs.push_back(one.program);
    const std::vector<Executable> executables = simt::build(std::move(programs), target, device);
    std::vector<std::string> wrong;
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const GraphData& data = *cases[i].graph.data();
        const Expectation expected = expect(data, i % 7 == 6 ? 0 : 5, cases[i].seed);
        const RunOptions options{.row_padding = i % 2 == 0 ? 0 : 16, .guard_bytes = 0};
        wrong.push_back(outcome(device, executables[i], data, expected, options));
        if (!wrong.back().empty()) wrong.back() = cases[i].name + "\n" + wrong.back();
    }
    return wrong;
}

std::string first_wrong_on_simt(const Graph& graph, std::uint64_t seed, const Target& target) {
    std::vector<SimtCase> cases;
    add_simt_cases(graph, seed, target, &cases);
    for (std::string& wrong : on_simt(cases, target)) {
        if (!wrong.empty()) return wrong;
    }
    return "";
}

constexpr std::size_t kKernelsAtOnce = 24;

void check_on_simt(const Target& target, Seeds range) {
    std::vector<SimtCase> cases;
    std::size_t ran = 0;
    const auto flush = [&] {
        if (cases.empty()) return;
        ran += cases.size();
        const std::vector<std::string> wrong = on_simt(cases, target);
        std::uint64_t reported = 0;
        for (std::size_t i = 0; i < cases.size(); ++i) {
            if (wrong[i].empty() || reported == cases[i].seed) continue;
            reported = cases[i].seed;
            const Check check = [&](const Graph& graph, std::uint64_t seed) {
                return first_wrong_on_simt(graph, seed, target);
            };
            FAIL_CHECK(shrunk(cases[i].graph, cases[i].seed, wrong[i], check, 24));
        }
        cases.clear();
    };
    for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
        const Graph graph = random_graph(seed);
        CAPTURE(seed);
        try {
            add_simt_cases(graph, seed, target, &cases);
        } catch (const Error& error) {
            CHECK_MESSAGE(error.code() == ErrorCode::kUnsupported, error.what());
        }
        if (cases.size() >= kKernelsAtOnce) flush();
    }
    flush();
    CHECK(ran >= range.count);
}

// What earlier seeds found, made small.
struct Found {
    std::string_view what;
    std::string_view text;
};

const std::vector<Found> kFound = {
    {"vectors of rows that are not there, in a reduction over rows",
     "rows t\ncolumns c = 64\ninput x: bf16[t, c]\ninput ids: i64[t]\nfar = ids + 1000000\nv = index(x, far, c)\n"
     "y = min(v, t)\noutput y\n"},
    {"a coordinate of a column axis that the planner promotes to a row axis",
     "rows t\ncolumns c = 7\ninput x: f32[t, c]\nwhich = iota(c) < 5\nv = select(which, x, 0.5)\ny = max(v, t)\n"
     "output y\n"},
    {"a reduction over columns of which the kernel's last reduction promotes one",
     "rows u\ncolumns g = 4\ncolumns c = 7\ninput x: f32[u, c]\ninput z: f32[u, c, g]\nv = sum(z)\n"
     "which = iota(g) < 3\nw = select(which, v, x)\ny = sum(w, g)\noutput y\n"},
    {"a promoted axis that is met before the declared row axes",
     "rows t\ncolumns c = 7\ninput z: f32[t, c]\ninput a: f32[t]\ninput b: f32[c]\nv = b - a\n"
     "w = minimum(z, v)\ny = sum(w, t)\noutput y\n"},
    {"a column vector, a value for each row and a matrix in one operation",
     "rows t\ncolumns c = 7\ninput z: f32[t, c]\ninput a: f32[t]\ninput b: f32[c]\n"
     "y = select(b < 0.5, z, a)\noutput y\nw = fma(b, a, z)\noutput w\n"},
    {"a sum over rows of what is reduced over other rows",
     "rows t\nrows u\ncolumns c = 7\ninput x: bf16[t, u, c]\nv = min(x, t)\ny = sum(v, u)\noutput y\n"},
    {"a coordinate that is 0 at every column, of what is reduced over rows and indexed by column again",
     "rows t\ncolumns c = 2\ninput x: f32[t]\ninput at: i32[t]\nv = select(x <= -0.5 || iota(c) < 1, x, 0)\n"
     "w = index(v, t, c / 2)\nleast = min(w, t)\ny = index(least, at)\noutput y\noutput least\n"},
    {"the same, in what is indexed twice",
     "rows t\ncolumns c = 2\ninput x: f32[t, c]\nv = x * 2\nw = index(v, t, c / 2)\nu = index(w, t, 1 - c)\n"
     "y = max(u)\nz = sum(w, t)\noutput y\noutput z\n"},
    {"a condition of some axes and a known choice of others, before what has all",
     "rows t\nrows h = 2\ncolumns c = 2\ninput x: f32[t, h, c]\ninput a: f32[t]\n"
     "v = select(iota(c) < 2, a, x * x)\noutput y = select(iota(h) != 1, v, x)\n"},
    {"a comparison of f16 behind a mask, of which LLVM swaps the operands alone",
     "rows t\nrows u\ncolumns c = 8\ninput x: f16[t, u, c]\nscalar scale: f32 = 0.75\ninput z: f32[t, u, c]\n"
     "first = iota(t) != 1\nlow = x <= -0.5\nboth = first && low\ny = select(both, z, scale)\noutput y\n"},
};

// Likewise of what is emitted for GPUs.
const std::vector<Found> kFoundOnGpus = {
    {"the greatest of narrow columns in reverse order",
     "rows t\ncolumns c = 300\ninput x: bf16[t, c]\nv = index(x, t, c * -1 + 299)\ny = max(v)\noutput y\n"},
    {"a part of rows of which the next does not begin at a multiple of its columns",
     "rows t\ncolumns c = 33\ncolumns half = 16\ninput x: bf16[t, c]\ninput z: bf16[t, c]\nv = index(z, t, half)\n"
     "low = x <= -0.5\ny = select(low, v, 0)\noutput y\n"},
    {"columns turned by half a row, each apart from the next in memory",
     "rows h = 4\ncolumns c = 16\ninput x: f16[h, c] strides(2)\nv = fma(x, x, x) * 0.03125\n"
     "output y = index(v, h, (c + 8) % 16)\n"},
    {"columns each read twice, of rows of every second element that follow each other without the last gap",
     "rows t\ncolumns c = 32\ninput x: bf16[t, c] strides(2)\noutput y = index(x, t, c / 2)\n"},
    {"every second column, and columns of which each is read twice",
     "rows t\ncolumns half = 40\ncolumns c = 80\ninput x: bf16[t, c]\ninput z: f32[t, half]\n"
     "g = cast(index(x, t, 2 * half), f32)\nu = cast(index(x, t, 2 * half + 1), f32)\noutput y = g * u\n"
     "h = cast(index(x, t, c), f32)\noutput w = h * index(z, t, c / 2)\n"},
    {"columns that the row turns",
     "rows t\ncolumns c = 64\ninput x: bf16[t, c]\noutput y = index(x, t, (c + t) % 64) * x\n"},
};

}  // namespace

TEST_CASE("a random graph is parsed from its print as it was") {
    const Seeds range = seeds(200);
    for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
        const Graph graph = random_graph(seed);
        const std::string text = graph.print();
        CAPTURE(seed);
        try {
            CHECK(Graph::parse(text).print() == text);
        } catch (const Error& error) {
            FAIL_CHECK(std::string(error.what()) << "\n" << text);
        }
    }
}

TEST_CASE("a random graph on the CPU is the oracle's with every schedule") {
    Engine engine(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
    const Seeds range = seeds(60);
    std::uint64_t unsupported = 0;
    const Check check = [&](const Graph& graph, std::uint64_t seed) { return on_cpu(engine, graph, seed); };
    for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
        const Graph graph = random_graph(seed);
        CAPTURE(seed);
        std::string wrong;
        try {
            wrong = check(graph, seed);
        } catch (const Error& error) {
            if (error.code() == ErrorCode::kUnsupported) {
                MESSAGE("seed ", seed, ": ", std::string(error.what()));
                ++unsupported;
            } else {
                wrong = error.what();
            }
        } catch (const std::exception& error) {
            wrong = error.what();
        }
        if (!wrong.empty()) FAIL_CHECK(shrunk(graph, seed, wrong, check, 200));
    }
    CHECK_MESSAGE(4 * unsupported <= range.count, unsupported, " graphs of ", range.count, " have no schedule");
}

TEST_CASE("what was once wrong on the CPU is right") {
    Engine engine(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
    for (const Found& found : kFound) CHECK_MESSAGE(on_cpu(engine, Graph::parse(found.text), 1) == "", found.what);
}

TEST_CASE("what was once wrong on a GPU is right") {
    for (const char* name : {"sm_90a", "gfx942"}) {
        for (const Found& found : kFoundOnGpus)
            CHECK_MESSAGE(first_wrong_on_simt(Graph::parse(found.text), 1, simt::target(name)) == "", found.what);
    }
}

// No kernel runs: graphs at which the planner or reverse mode fails are some of a hundred, and a graph takes a tenth of
// a second.
TEST_CASE("a random graph and its backward have a program for every backend, or say why there is none") {
    const Seeds range = seeds(100);
    for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
        CAPTURE(seed);
        const Graph graph = random_graph(seed);
        try {
            const Differentiated both = differentiate(graph);
            for (const char* target : {"sm_90a", "gfx942", "x86-64-v3"}) {
                for (const Graph& each : {graph, both.forward, both.backward})
                    compile(*each.data(), find_target(target));
            }
        } catch (const Error& error) {
            if (error.code() != ErrorCode::kUnsupported) FAIL_CHECK(std::string(error.what()) << "\n" << graph.print());
        }
    }
}

TEST_CASE("a random graph's emitted source on warps of 32 is the oracle's") {
    check_on_simt(simt::target("sm_90a"), seeds(12));
}

TEST_CASE("a random graph's emitted source on waves of 64 is the oracle's") {
    check_on_simt(simt::target("gfx942"), seeds(12));
}
