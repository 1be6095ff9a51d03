// Graphs, lowered and compiled for the CPU, against the oracle: every composite at even and odd widths, every schedule
// the CPU offers, and what the composites do not reach (reductions over rows, strided columns, extreme inputs).
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/philox.h"
#include "compiler/compile.h"
#include "compiler/emit/spans.h"
#include "compiler/plan/partial_reductions.h"
#include "compiler/schedule/lower.h"
#include "compiler/toolchain/orc.h"
#include "dsl/accuracy.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/coord.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "tests/compiler/cpu_kernel.h"
#include "tests/support/columns_apart.h"
#include "tests/support/compared_places.h"
#include "tests/support/coverage.h"
#include "tests/support/differences.h"
#include "tests/support/extrema.h"
#include "tests/support/extrema_of_rows.h"
#include "tests/support/fixpoints.h"
#include "tests/support/groups_of_columns.h"
#include "tests/support/refusal.h"
#include "tests/support/squares_of_rows.h"

namespace rowjit {
namespace {

const Target& host() {
    static const Target target = host_cpu_target();
    return target;
}

struct Buffer {
    Layout layout;
    std::vector<std::uint8_t> bytes;
};

Buffer make_buffer(Layout layout) {
    Buffer buffer{std::move(layout), {}};
    // An odd number of elements past the start: nothing may rely on alignment.
    buffer.bytes.resize((static_cast<std::size_t>(buffer_elements(buffer.layout)) + 1) *
                        size_bytes(buffer.layout.dtype));
    return buffer;
}

std::uint8_t* data(Buffer& buffer) { return buffer.bytes.data() + size_bytes(buffer.layout.dtype); }

// Runs a program's steps in order on buffers of its own, every kernel's blocks in three ranges or each by itself.
class ProgramRun {
  public:
    enum class Ranges : std::uint8_t { kThree, kOfOne };
    ProgramRun(const GraphData& graph, const Program& program, const Bindings& bindings, Ranges ranges = Ranges::kThree)
        : ranges_(ranges), graph_(graph), program_(program), bindings_(bindings) {
        for (const Step& step : program.steps) {
            if (step.kernel.slots_axis >= 0) slots_[step.kernel.slots_axis] = slots_of(step.kernel, rows(step.kernel));
        }
        for (const ProgramTensor& tensor : program.tensors) make(tensor);
        for (const Step& step : program.steps) run(step);
    }

    Tensor output(const std::string& name) {
        Buffer& buffer = buffers_.at("output " + name);
        return read_tensor(buffer.layout, data(buffer));
    }

  private:
    using Place = ProgramTensor::Place;

    static std::string key(const ProgramTensor& tensor) {
        return (tensor.place == Place::kOutput ? "output " : "") + tensor.name;
    }

    void make(const ProgramTensor& tensor) {
        Layout layout{tensor.dtype, {}, {}};
        for (const AxisId axis : tensor.axes) layout.extents.push_back(extent(axis));
        layout.strides = contiguous_strides(layout.extents);
        if (tensor.place == Place::kInput) layout = input_layout(graph_, tensor.name, bindings_.rows);
        if (tensor.place == Place::kOutput) layout = output_layout(graph_, tensor.name, bindings_.rows);
        Buffer& buffer = buffers_[key(tensor)] = make_buffer(layout);
        if (tensor.place == Place::kInput) {
            write_tensor(layout, bindings_.tensors.find(tensor.name)->second, data(buffer));
        }
        const auto held = bindings_.tensors.find(tensor.name);
        if (tensor.place == Place::kOutput && held != bindings_.tensors.end()) {
            write_tensor(layout, held->second, data(buffer));
        }
    }

    std::int64_t stride(const ProgramTensor& tensor, AxisId axis) {
        const Layout& layout = buffers_.at(key(tensor)).layout;
        for (std::size_t i = 0; i < tensor.axes.size(); ++i) {
            if (tensor.axes[i] == axis) return layout.strides[i];
        }
        return 0;
    }

    std::int64_t extent(AxisId axis) const {
        const auto slots = slots_.find(axis);
        return slots == slots_.end() ? extent_of(graph_, axis, bindings_.rows) : slots->second;
    }

    std::int64_t blocks(const Kernel& kernel) const { return grid_blocks(kernel, rows(kernel)); }

    RowCounts rows(const Kernel& kernel) const {
        return RowCounts::of(kernel, [&](AxisId axis) { return extent(axis); });
    }

    double scalar(const ProgramScalar& info) const {
        const auto found = bindings_.scalars.find(info.name);
        return found == bindings_.scalars.end() ? info.default_value : found->second;
    }

    void run(const Step& step) {
        const Kernel& kernel = step.kernel;
        CpuRun run(kernel, host());
        for (const KernelArgument& argument : kernel.arguments) {
            const auto index = static_cast<std::size_t>(argument.index);
            switch (argument.kind) {
                case KernelArgument::Kind::kPointer: {
                    const auto& tensor = program_.tensors[static_cast<std::size_t>(step.tensors[index])];
                    run.bind(argument.name, static_cast<void*>(data(buffers_.at(key(tensor)))));
                    break;
                }
                case KernelArgument::Kind::kStride: {
                    const auto& tensor = program_.tensors[static_cast<std::size_t>(step.tensors[index])];
                    const bool declares = contains(tensor.axes, argument.axis);
                    run.bind(argument.name, declares ? stride(tensor, argument.axis) : *kernel.known_stride(argument));
                    break;
                }
                case KernelArgument::Kind::kExtent: run.bind(argument.name, extent(argument.axis)); break;
                case KernelArgument::Kind::kScalar: {
                    const ProgramScalar& info = program_.scalars[static_cast<std::size_t>(step.scalars[index])];
                    std::int64_t bits = 0;
                    if (size_bytes(info.dtype) == 2) {
                        const auto wide = static_cast<float>(scalar(info));
                        std::memcpy(&bits, &wide, sizeof wide);
                    } else {
                        store_element(info.dtype, &bits, scalar(info));
                    }
                    run.bind(argument.name, bits);
                    break;
                }
                case KernelArgument::Kind::kMatrix:
                case KernelArgument::Kind::kSide: FAIL("no CPU kernel makes a product");
            }
        }
        const std::int64_t end = blocks(kernel);
        if (ranges_ == Ranges::kOfOne) {
            for (std::int64_t block = 0; block < end; ++block) run(block, block + 1);
            return;
        }
        run(0, end / 3);
        run(end / 3, end / 2);
        run(end / 2, end);
    }

    const Ranges ranges_;
    std::map<AxisId, std::int64_t> slots_;  // extents of the axes of parts of sums over rows
    const GraphData& graph_;
    const Program& program_;
    const Bindings& bindings_;
    std::map<std::string, Buffer> buffers_;
};

bool is_same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void check(const std::string& what, const GraphData& graph, const RowExtents& rows, const ScheduleChoice& choice = {},
           RandomOptions random = {.seed = 3, .out_of_range = true}, int launches = 1, const Target& target = host()) {
    const Program program = compile(graph, target, choice);
    Tensors got;
    Tensors exact;
    Tensors eager;
    for (int i = 0; i < launches; ++i, ++random.seed) {
        const Bindings bindings = random_inputs(graph, rows, random);
        ProgramRun run(graph, program, bindings);
        Tensors outputs;
        for (const OutputInfo& output : graph.outputs()) outputs[output.name] = run.output(output.name);
        append(std::move(outputs), &got);
        append(interpret(graph, bindings, Rounding::kExact), &exact);
        append(interpret(graph, bindings, Rounding::kEager), &eager);
    }
    for (const OutputInfo& output : graph.outputs()) {
        const ErrorReport report =
            compare(got.at(output.name), exact.at(output.name), eager.at(output.name), graph.node(output.node).dtype);
        // Where terms cancel, one unit beyond eager in each of them is two of what is left.
        const bool cancels = launches > 1 && report.max_error <= report.eager_max_error + 2 &&
                             report.mean_error <= report.eager_mean_error + mean_allowance(launches);
        CHECK_MESSAGE((report.within_bar || cancels), what, " ", output.name, ": ", describe(report));
    }
}

// That the blocks of a program's kernels, together and each by itself, give the same bits.
void check_ranges(const std::string& what, const GraphData& graph, const Program& program, const RowExtents& rows) {
    const Bindings bindings = random_inputs(graph, rows, {.seed = 3, .out_of_range = true});
    ProgramRun together(graph, program, bindings);
    ProgramRun alone(graph, program, bindings, ProgramRun::Ranges::kOfOne);
    for (const OutputInfo& output : graph.outputs()) {
        const std::vector<double> one = alone.output(output.name).values;
        const std::vector<double> all = together.output(output.name).values;
        CHECK_MESSAGE(std::equal(one.begin(), one.end(), all.begin(), all.end(), is_same), what, output.name);
    }
}

}  // namespace

// Where a loss is one number, or few of the results are what is left where terms cancel, eager's largest error in one
// launch is luck; in so many it is a measure.
constexpr int kLaunches = 16;
const std::set<std::string_view> kOneNumber = {"jsd", "kl_div", "policy_loss", "reverse_kl", "tvd"};
const std::set<std::string_view> kCancelling = {"attention_residual", "dynamic_tanh",
                                                "poly_norm"};  // at full width, f32's

bool multiplies(const GraphData& graph) {
    const std::vector<NodeId> live = graph.live_nodes();
    return std::any_of(live.begin(), live.end(), [&](NodeId id) { return graph.node(id).kind == NodeKind::kMatmul; });
}

TEST_CASE("the rows that a segment gathers are asked for ahead, those that lie in order are not") {
    const auto asks = [](const char* rows) {
        const Graph graph =
            Graph::parse(fmt::format("rows tokens\nrows ids = tokens\nrows ends = 9\nrows segments = 8\n"
                                     "columns c = 256\ninput x: bf16[tokens, c]\n"
                                     "input order: i64[ids]\ninput offsets: i64[ends]\n"
                                     "v = {}\n"
                                     "output y = sum(v, ids, into=segments, offsets=offsets)\n",
                                     rows));
        const Target& target = find_target("x86-64-v4");
        const Program program = compile(*graph.data(), target);
        return print_assembly(program.steps.back().kernel, target).find("prefetch") != std::string::npos;
    };
    CHECK(asks("index(x, order, @256)"));
    CHECK(!asks("index(x, ids, @256)"));
}

TEST_CASE("every composite is as exact as eager on the CPU, at even and odd widths") {
    Coverage coverage("cpu_test", "kernels against the oracle's bar", "cpu");
    for (const CompositeInfo& op : composites()) {
        for (const Dtype dtype : {bf16, f16, f32}) {
            for (const std::int64_t columns : {2, 64, 100, 130}) {
                const OpRequest request{.columns = columns, .dtype = dtype};
                const Graph graph = make_graph(op.name, request);
                if (multiplies(*graph.data())) continue;  // tests/runtime/linear_test.cpp: products need a library
                coverage.add(op.name, request);
                const bool few = kOneNumber.contains(op.name) || (dtype == f32 && kCancelling.contains(op.name));
                check(fmt::format("{} {} {}", op.name, name(dtype), columns), *graph.data(), {{"tokens", 7}}, {},
                      {.seed = 3, .out_of_range = true}, few ? kLaunches : 1);
            }
        }
    }
    CHECK(coverage.difference() == "");
}

TEST_CASE("every schedule of a group gives what the oracle gives") {
    for (const char* op : {"rms_norm", "layer_norm", "softmax", "cross_entropy", "swiglu", "sparsemax", "dropout"}) {
        const Graph graph = make_graph(op, {.columns = 200});
        const Plan plan = plan_graph(*graph.data(), host());
        for (const Schedule& schedule : legal_schedules(plan.groups[0], host())) {
            check(fmt::format("{} {}", op, print(schedule)), *graph.data(), {{"tokens", 5}}, [&](const Group& group) {
                return group.name == plan.groups[0].name ? std::optional(schedule) : std::nullopt;
            });
        }
    }
}

TEST_CASE("kept values serve a row reduction's later loops on the CPU too") {
    for (const Residency residency : {Residency::kRegisters, Residency::kShared}) {
        const Graph graph = make_graph("softmax", {.columns = 333});
        Schedule schedule;
        schedule.family = Family::kRowReduction;
        schedule.residency = residency;
        schedule.vector = 16;
        check("softmax", *graph.data(), {{"tokens", 4}}, [&](const Group&) { return std::optional(schedule); });
    }
}

TEST_CASE("bf16 of AVX2 alone is read in pairs where nothing asks for a column, and is as exact as eager") {
    const Target& avx2 = find_target("x86-64-v3");
    const auto widens_in_order = [&](const Graph& graph) {
        const Kernel kernel = compile(*graph.data(), avx2).steps[0].kernel;
        return print_llvm(kernel, avx2).find("zext <32 x i16>") != std::string::npos;
    };
    CHECK_FALSE(widens_in_order(make_graph("rms_norm", {.columns = 2048})));
    CHECK_FALSE(widens_in_order(make_graph("softmax", {.columns = 2048})));
    CHECK(widens_in_order(make_graph("dropout", {.columns = 2048})));

    // A weight of f32 lies in order, and so does all else of its loop.
    const Graph mixed = Graph::parse(R"(
        rows tokens
        input x: bf16[tokens, 2048]
        input weight: f32[2048]
        h = cast(x, f32)
        output y = cast(h * rsqrt(mean(h * h)) * weight, bf16))");
    CHECK(widens_in_order(mixed));
    check("mixed", *mixed.data(), {{"tokens", 5}}, {}, {.seed = 3}, 1, avx2);
    for (const char* op : {"relu", "add_rms_norm", "rms_norm", "layer_norm", "softmax", "cross_entropy", "kl_div",
                           "geglu", "quick_gelu", "dynamic_tanh", "dropout", "top_k", "sparsemax", "rope_qk"}) {
        for (const std::int64_t columns : {64, 130, 2048}) {
            const Graph graph = make_graph(op, {.columns = columns});
            const int launches = kOneNumber.contains(op) ? kLaunches : 4;
            check(fmt::format("{} {} x86-64-v3", op, columns), *graph.data(), {{"tokens", 5}}, {}, {.seed = 3},
                  launches, avx2);
        }
    }
}

// Those of f32 may have all their bits set, of which an addition that rounds makes 0.
TEST_CASE("a NaN is rounded to bf16's whatever its bits, loaded, chosen or bounded, a row's number or a scalar") {
    const Target& avx2 = find_target("x86-64-v3");
    const auto asks = [&](const Graph& graph) {
        return print_llvm(compile(*graph.data(), avx2).steps[0].kernel, avx2).find("no_number") != std::string::npos;
    };
    const auto graph_of = [](Dtype weight) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Axis hidden = g.columns("hidden", 256);
        const Value x = g.input("x", bf16, {tokens, hidden});
        const Value scale = g.input("scale", f32, {tokens});
        const Value w = g.input("w", weight, {hidden});
        const Value rounded = cast(cast(x, f32) * scale, bf16) * cast(w, bf16);
        g.output("y", rounded * maximum(x, cast(w, bf16)));
        g.output("z", cast(cast(x, f32) * g.scalar("factor", f32, 0.5) + max(cast(x, f32)), bf16) * x);
        return g;
    };
    CHECK_FALSE(asks(graph_of(bf16)));
    CHECK(asks(graph_of(f32)));  // vectors of f32, whose NaNs are not looked at when they are loaded

    const RowExtents rows = {{"tokens", 6}};
    for (const Dtype weight : {bf16, f32}) {
        const Graph g = graph_of(weight);
        const Program program = compile(*g.data(), host());
        for (const std::uint64_t bits : {0x7FFFFFFFFFFFFFFFU, 0xFFFFFFFFFFFFFFFFU, 0x7FF8000000000000U}) {
            const double nan = std::bit_cast<double>(bits);
            Bindings bindings = random_inputs(*g.data(), rows, {.seed = 5});
            bindings.tensors.at("x").values[3] = nan;
            bindings.tensors.at("scale").values[2] = nan;
            bindings.tensors.at("w").values[200] = nan;
            for (const double factor : {0.5, nan}) {
                bindings.scalars["factor"] = factor;
                ProgramRun run(*g.data(), program, bindings);
                const Tensors exact = interpret(*g.data(), bindings, Rounding::kExact);
                for (const char* output : {"y", "z"}) {
                    const std::vector<double> got = run.output(output).values;
                    const std::vector<double>& expected = exact.at(output).values;
                    const bool same = std::ranges::equal(
                        got, expected, {}, [](double v) { return std::isnan(v); },
                        [](double v) { return std::isnan(v); });
                    CHECK_MESSAGE(same, output, " with a weight of ", name(weight), " and NaN ", bits);
                }
            }
        }
    }
}

// A sum of huge numbers of both signs overflows, or not, by the order it is taken in: these have none that does so in
// one order alone.
TEST_CASE("infinities, NaN and subnormal inputs come out as eager gives them") {
    for (const char* op :
         {"softmax", "log_softmax", "logsumexp", "sparsemax", "rms_norm", "layer_norm", "gelu", "swiglu", "quantize"}) {
        for (const Dtype dtype : {bf16, f32}) {
            const Graph graph = make_graph(op, {.columns = 70, .dtype = dtype});
            check(fmt::format("{} {}", op, name(dtype)), *graph.data(), {{"tokens", 40}}, {},
                  {.seed = 6, .extremes = true});
        }
    }
}

TEST_CASE("the greatest of a row are the oracle's, equal ones and NaN among them, under every schedule") {
    for (const Dtype dtype : {bf16, f32}) {
        for (const auto& [columns, count] : {std::pair(70, "12"), {1031, "3"}}) {
            const Graph graph = make_graph("top_k", {columns, dtype, {{"count", count}}});
            const Plan plan = plan_graph(*graph.data(), host());
            const Program program = compile(*graph.data(), host());
            CHECK(program.steps[0].kernel.accumulators[0].monoid == Monoid::kGreatest);
            for (const Schedule& schedule : legal_schedules(plan.groups[0], host())) {
                for (const bool extremes : {false, true}) {
                    check(fmt::format("top {} of {} {}: {}", count, columns, name(dtype), print(schedule)),
                          *graph.data(), {{"tokens", 9}}, [&](const Group&) { return std::optional(schedule); },
                          {.seed = 11, .extremes = extremes});
                }
            }
        }
    }
}

TEST_CASE("a divergence of two tensors' rows is carried in one pass on every x86-64 level, infinities included") {
    for (const std::string_view dtype : {"bf16", "f32"}) {
        for (const int columns : {5, 100, 2048}) {
            const Graph graph = Graph::parse(fmt::format(R"(
                rows tokens
                input x: {0}[tokens, {1}]
                input y: {0}[tokens, {1}]
                h = cast(x, f32)
                g = cast(y, f32)
                a = h - max(h)
                b = g - max(g)
                p = exp(a)
                s = sum(p)
                output d = sum(p * select(p == 0, 0, a - b)) / s + log(sum(exp(b)) / s))",
                                                         dtype, columns));
            for (const char* level : {"x86-64-v2", "x86-64-v3", "native"}) {
                const Target& target = level == std::string_view("native") ? host() : find_target(level);
                const Plan plan = plan_graph(*graph.data(), target);
                const std::vector<Schedule> legal = legal_schedules(plan.groups[0], target);
                const auto online =
                    std::find_if(legal.begin(), legal.end(), [](const Schedule& s) { return s.online; });
                REQUIRE(online != legal.end());
                const ScheduleChoice choice = [&](const Group&) { return std::optional(*online); };
                const Program program = compile(*graph.data(), target, choice);
                CHECK(program.steps[0].kernel.accumulators[0].monoid == Monoid::kDivergence);
                const std::string what = fmt::format("divergence {} {} {}", dtype, columns, level);
                check(what, *graph.data(), {{"tokens", 9}}, choice, {.seed = 3}, kLaunches, target);
                check(what, *graph.data(), {{"tokens", 40}}, choice, {.seed = 5, .extremes = true}, 1, target);
            }
        }
    }
}

// What the kernel of one row axis writes into aligned memory, of its first rows, when it is told of so many.
std::vector<std::vector<std::uint8_t>> written_rows(const Kernel& kernel, std::int64_t rows_told) {
    constexpr std::int64_t kRows = 3;
    CpuRun run(kernel, host());
    run.bind(kernel.axis(kernel.row_axes[0]).name + "_extent", rows_told);
    std::vector<std::unique_ptr<void, decltype(&std::free)>> memory;
    std::vector<std::pair<const std::uint8_t*, std::size_t>> outputs;
    for (const KernelTensor& tensor : kernel.tensors) {
        std::int64_t columns = 1;
        for (const AxisId axis : tensor.axes) columns *= kernel.axis(axis).is_row ? 1 : kernel.axis(axis).extent;
        const std::size_t element = size_bytes(tensor.dtype);
        const std::size_t bytes = static_cast<std::size_t>(kRows * columns) * element;
        memory.emplace_back(std::aligned_alloc(64, (bytes + 63) / 64 * 64), &std::free);
        auto* first = static_cast<std::uint8_t*>(memory.back().get());
        for (std::size_t at = 0; at < bytes / element; ++at)
            store_element(tensor.dtype, first + at * element,
                          tensor.read ? static_cast<double>(at * 37 % 251) / 64 : 0);
        run.bind(tensor.name, first);
        run.bind(fmt::format("{}_stride_{}", tensor.name, kernel.axis(kernel.row_axes[0]).name), columns);
        if (tensor.written) outputs.emplace_back(first, bytes);
    }
    run(0, kRows);
    std::vector<std::vector<std::uint8_t>> written;
    for (const auto& [first, bytes] : outputs) written.emplace_back(first, first + bytes);
    return written;
}

TEST_CASE("what is stored past the caches, whole rows and spans of whole lines, is what is stored through them") {
    struct Case {
        const char* op;
        std::int64_t columns;
        bool streams;
    };
    for (const Case& c : {Case{"relu", 4096, true}, Case{"relu", 4100, true}, Case{"rope_qk", 128, true},
                          Case{"rope_qk", 24, false}, Case{"scale_add", 64, true}}) {
        const Graph graph = make_graph(c.op, {.columns = c.columns, .dtype = bf16});
        const Program program = compile(*graph.data(), host());
        REQUIRE(program.steps.size() == 1);
        const Kernel& kernel = program.steps[0].kernel;
        const bool streams = print_llvm(kernel, host()).find("!nontemporal") != std::string::npos;
        CHECK_MESSAGE(streams == c.streams, c.op << " of " << c.columns);
        constexpr std::int64_t kMany = std::int64_t{1} << 24;
        CHECK_MESSAGE(written_rows(kernel, kMany) == written_rows(kernel, 3), c.op << " of " << c.columns);
    }
}

TEST_CASE("what spills begins a cache line, whatever thread's stack it is on") {
    for (const char* op : {"rms_norm", "rope_qk"}) {
        const Graph graph = make_graph(op, {.columns = 128, .dtype = bf16});
        CHECK(print_llvm(compile(*graph.data(), host()).steps[0].kernel, host()).find("alignstack(64)") !=
              std::string::npos);
    }
}

TEST_CASE("rows pass the caches where a launch reads and writes as many as a family of processors cannot keep") {
    const auto threshold = [](const char* op, const char* family) {
        Target target = find_target("native");
        target.label = family;
        target.cpu_features = "+avx2,+fma,+f16c,+avx512f,+avx512vl,+avx512dq,+avx512bw";
        target.vector_lanes = 16;
        const Graph graph = make_graph(op, {.columns = 4096, .dtype = bf16});
        const std::string text = print_llvm(compile(*graph.data(), target).steps[0].kernel, target);
        const std::size_t at = text.find("icmp uge i64");
        REQUIRE(at != std::string::npos);
        return text.substr(at, text.find('\n', at) - at);
    };
    CHECK(threshold("relu", "znver4").ends_with(std::to_string(16 << 20)));
    CHECK(threshold("relu", "sapphirerapids").ends_with(std::to_string(32 << 20)));
    CHECK(threshold("rms_norm", "znver4").ends_with(std::to_string(16 << 20)));
}

TEST_CASE("what is chosen by a column's place is computed where it is chosen") {
    struct Case {
        const char* condition;
        int columns;
        std::vector<std::int64_t> ends;  // of the spans
    };
    for (const Case& c :
         {Case{"k < 64", 128, {64, 128}}, Case{"64 <= k", 300, {64, 300}}, Case{"k > 95", 130, {96, 130}},
          Case{"k + 64 >= 128", 128, {64, 128}}, Case{"31 >= k", 64, {32, 64}}, Case{"k < 60", 128, {}}}) {
        const Graph graph = Graph::parse(fmt::format(R"(
            rows tokens
            columns hidden = {1}
            input x: bf16[tokens, hidden]
            k = iota(hidden)
            h = cast(x, f32)
            output y = select({0}, x + 3, 0) + select({0}, 0, cast(exp(h), bf16))
            output s = sum(select({0}, h, 2 * h)))",
                                                     c.condition, c.columns));
        const Program program = compile(*graph.data(), host());
        std::vector<std::int64_t> ends;
        for (const Stmt& stmt : program.steps[0].kernel.body) {
            const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
            if (loop == nullptr || !ends.empty()) continue;
            for (const ColumnSpan& span : spans_of(program.steps[0].kernel, *loop)) {
                ends.push_back(span.end);
                CHECK(span.loop.body.size() < loop->body.size());
            }
        }
        CHECK_MESSAGE(ends == c.ends, c.condition);
        check(c.condition, *graph.data(), {{"tokens", 9}});
    }
}

TEST_CASE("quotients by what a sigmoid's derivative divides by twice are products with its reciprocal") {
    const Graph graph = make_graph("silu", {.columns = 256});
    const Graph backward = differentiate(graph, trained_inputs("silu", graph)).backward;
    const Target target = find_target("x86-64-v3");
    const std::string text = print_llvm(compile(*backward.data(), target).steps[0].kernel, target);
    int quotients = 0;
    for (std::size_t at = text.find("fdiv"); at != std::string::npos; at = text.find("fdiv", at + 1)) {
        const std::string line = text.substr(at, text.find('\n', at) - at);
        CHECK_MESSAGE(line.find("float 1.000000e+00>, %") != std::string::npos, line);
        ++quotients;
    }
    CHECK(quotients > 0);
}

TEST_CASE(
    "a sigmoid is of an estimate where division is slow, and rows are fetched where the core does it only within "
    "pages") {
    Target zen = find_target("native");
    zen.label = "znver4";
    zen.cpu_features = "+avx2,+fma,+f16c,+avx512f,+avx512vl,+avx512dq,+avx512bw,+avx512bf16";
    zen.vector_lanes = 16;
    Target intel = zen;
    intel.label = "sapphirerapids";
    const auto graph_has = [](const Graph& graph, const Target& target, const char* text) {
        const Kernel kernel = compile(*graph.data(), target).steps[0].kernel;
        return print_llvm(kernel, target).find(text) != std::string::npos;
    };
    const auto has = [&](const char* op, std::int64_t columns, const Target& target, const char* text) {
        return graph_has(make_graph(op, {.columns = columns, .dtype = bf16}), target, text);
    };
    const Graph silu = make_graph("silu", {.columns = 4096, .dtype = bf16});
    const Graph backward = differentiate(silu, trained_inputs("silu", silu)).backward;
    CHECK(graph_has(backward, intel, "rcp14.ps"));
    CHECK_FALSE(graph_has(backward, zen, "rcp14.ps"));
    struct Case {
        const char* op;
        std::int64_t columns;
        bool by_intel;
        bool by_zen;
    };
    for (const Case c :
         {Case{"silu", 4096, true, true}, Case{"softmax", 4096, true, true}, Case{"softmax", 262144, true, true},
          Case{"logsumexp", 4096, true, true}, Case{"cross_entropy", 128256, true, true},
          Case{"dropout", 4096, true, true}, Case{"rms_norm", 4096, true, false}, Case{"relu", 4096, true, false},
          Case{"poly_norm", 14336, true, false}, Case{"rope_qk", 128, true, true}}) {
        CHECK_MESSAGE(has(c.op, c.columns, intel, "llvm.prefetch") == c.by_intel, c.op);
        CHECK_MESSAGE(has(c.op, c.columns, zen, "llvm.prefetch") == c.by_zen, c.op);
    }
}

TEST_CASE("an exponential of which only a rounding to bf16 is left has half the bits") {
    struct Case {
        const char* op;
        Dtype dtype;
        bool backward;
        bool rough;
    };
    const Target target = find_target("x86-64-v4");
    for (const Case c :
         {Case{"silu", bf16, false, true}, Case{"quick_gelu", bf16, false, true}, Case{"geglu", bf16, false, true},
          Case{"softmax", bf16, false, true}, Case{"silu", f16, false, false}, Case{"silu", f32, false, false},
          Case{"silu", bf16, true, false}, Case{"softmax", f32, false, false}, Case{"log_softmax", bf16, false, false},
          Case{"logsumexp", bf16, false, false}, Case{"cross_entropy", bf16, false, false}}) {
        Graph graph = make_graph(c.op, {.columns = 4096, .dtype = c.dtype});
        if (c.backward) graph = differentiate(graph, trained_inputs(c.op, graph)).backward;
        const std::string text = print_llvm(compile(*graph.data(), target).steps[0].kernel, target);
        CHECK_MESSAGE((text.find("exp_rough") != std::string::npos) == c.rough, c.op << " " << name(c.dtype));
    }
}

TEST_CASE("a weight in a pair's sum of a thousand terms takes five multiply-adds, and of fewer it is exact") {
    const Target target = find_target("x86-64-v4");
    const auto weight = [&](std::int64_t columns) {
        const Graph graph = make_graph("logsumexp", {.columns = columns, .dtype = bf16});
        Kernel kernel = compile(*graph.data(), target).steps[0].kernel;
        const std::string text = print_llvm(kernel, target);
        const std::size_t begin = text.find("define internal <16 x float> @rj.exp_in_sum");
        return begin == std::string::npos ? std::string() : text.substr(begin, text.find("\n}", begin) - begin);
    };
    const std::string many = weight(4096);
    std::size_t fused = 0;
    for (std::size_t at = many.find("fmuladd"); at != std::string::npos; at = many.find("fmuladd", at + 1)) ++fused;
    CHECK(fused == 5);
    CHECK(weight(512).empty());
}

TEST_CASE("what is squared, subtracted or stored in f32 too has all of its bits") {
    const Target target = find_target("x86-64-v4");
    const auto is_rough = [&](const char* result) {
        const Graph graph = Graph::parse(fmt::format(R"(
            rows tokens
            columns hidden = 4096
            input x: bf16[tokens, hidden]
            h = cast(x, f32)
            e = exp(h)
            s = 1 / (1 + e)
            {0})",
                                                     result));
        const Kernel kernel = compile(*graph.data(), target).steps[0].kernel;
        return print_llvm(kernel, target).find("exp_rough") != std::string::npos;
    };
    CHECK(is_rough("output y = cast(h * s, bf16)"));
    CHECK(is_rough("output y = cast(h * (3 + s), bf16)"));
    CHECK_FALSE(is_rough("output y = cast(h * (1 - s), bf16)"));
    CHECK_FALSE(is_rough("output y = cast(s * s, bf16)"));
    CHECK_FALSE(is_rough("output y = cast(s, f16)"));
    CHECK_FALSE(is_rough("output y = cast(s, bf16)\n            output z = s"));
    CHECK_FALSE(is_rough("output y = cast(h * s, bf16)\n            output z = sum(h * s)"));
}

TEST_CASE("plain sums are of blocks, and so need no pair however wide the row is") {
    const Graph graph = make_graph("softmax", {.columns = 131072});
    const Graph backward = differentiate(graph, trained_inputs("softmax", graph)).backward;
    CHECK_FALSE(compile(*backward.data(), host()).steps[0].kernel.accumulators[0].compensated);
    CHECK(compile(*graph.data(), host()).steps[0].kernel.accumulators[0].compensated);  // of a pair there are none
}

TEST_CASE("what is left of sums that cancel is exact to the last unit, and what overflows is eager's") {
    std::vector<Graph> graphs;
    for (const Dtype dtype : {bf16, f32}) {
        for (const std::int64_t columns : {100, 4096}) {
            for (Graph& graph : differences_of_sums(columns, dtype)) graphs.push_back(std::move(graph));
        }
    }
    for (const Graph& graph : graphs) {
        const Program program = compile(*graph.data(), host());
        const Bindings bindings = random_inputs(*graph.data(), {{"tokens", 50}}, {.seed = 7});
        ProgramRun run(*graph.data(), program, bindings);
        Tensors got;
        for (const OutputInfo& output : graph.data()->outputs()) got[output.name] = run.output(output.name);
        check_differences(got, interpret(*graph.data(), bindings, Rounding::kExact));
        check("extreme", *graph.data(), {{"tokens", 50}}, {}, {.seed = 8, .extremes = true});
    }
}

TEST_CASE("sums in f32 of narrow rows are as exact as eager's at any width") {
    for (const std::int64_t columns : {512, 513, 1000, 4096, 16384, 32768, 50257}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Value x = cast(g.input("x", bf16, {tokens, columns}), f32);
        const Value factor = cast(g.input("factor", bf16, {tokens, columns}), f32);
        g.output("y", x - factor * mean(x * factor));
        // Of few columns the largest error is of the mean's and the product's own roundings, and luck.
        const int launches = columns < 16384 ? 3 : 1;
        for (const std::uint64_t seed : {1, 2, 3})
            check(fmt::format("mean of {}", columns), *g.data(), {{"tokens", 7}}, {}, {.seed = seed}, launches);
    }
}

TEST_CASE("reductions of columns that lie apart have neighbouring results in the lanes of a vector, and are exact") {
    for (const Dtype dtype : {bf16, f32}) {
        for (const auto& [steps, features] : {std::pair<std::int64_t, std::int64_t>(33, 40), {200, 9}, {1000, 64}}) {
            const Graph graph = pooled_steps(steps, features, dtype);
            CHECK(std::ranges::any_of(compile(*graph.data(), host()).steps, [](const Step& step) {
                return step.kernel.schedule.family == Family::kRowsReduction;
            }));
            check(fmt::format("{} steps of {}", steps, features), *graph.data(), {{"batch", 5}}, {}, {.seed = 3});
        }
    }
}

TEST_CASE("rows that lie side by side are the lanes of a vector, exact and the same in whichever range") {
    for (const Dtype dtype : {bf16, f32}) {
        for (const auto& [channels, lines, pixels] :
             {std::array{18, 3, 16}, {33, 2, 45}, {96, 2, 64}, {40, 9, 7}, {130, 2, 1100}, {1030, 2, 24}}) {
            const Graph graph = normed_channels(channels, lines, pixels, dtype);
            const std::string what = fmt::format("{} channels of {}x{} {}", channels, lines, pixels, name(dtype));
            const Program program = compile(*graph.data(), host());
            CHECK_MESSAGE(
                std::ranges::all_of(program.steps, [](const Step& step) { return step.kernel.schedule.across; }), what);
            const Plan plan = plan_graph(*graph.data(), host());
            for (const Schedule& schedule : legal_schedules(plan.groups[0], host())) {
                check(fmt::format("{} {}", what, print(schedule)), *graph.data(), {{"images", 3}},
                      [&](const Group& group) {
                          return group.name == plan.groups[0].name ? std::optional(schedule) : std::nullopt;
                      });
            }
            check_ranges(what, *graph.data(), program, {{"images", 3}});
        }
    }
}

// As many zeros are read there as there are lanes, whatever the columns' own vectors.
TEST_CASE("where rows are lanes, a column that reads a row outside reads zeros") {
    for (const std::string_view dtype : {"f32", "bf16"}) {
        const std::string x = "input x: " + std::string(dtype) + "[t, d]\n";
        const Graph graph =
            Graph::parse("rows t\ncolumns k = 12\ncolumns d = 32\ninput w: f32[t, k]\n" + x +
                         "at = iota(t, i64) - cast(iota(k), i64)\ne = w * cast(index(x, at, d), f32)\nm = max(e, k)\n"
                         "output y = sum(exp(e - m), k)\noutput z = m\n");
        REQUIRE(compile(*graph.data(), host()).steps[0].kernel.schedule.across);
        for (const std::int64_t rows : {1, 7, 70}) check("rows outside", *graph.data(), {{"t", rows}});
    }
}

TEST_CASE("rows that lie side by side are normed in place, none of them twice") {
    const Graph graph = Graph::parse(R"(rows images
columns c = 40
columns p = 77
input x: f32[images, c, p]
d = x - mean(x, c)
output y = d * rsqrt(mean(d * d, c) + 1e-5) alias(x)
)",
                                     "in place");
    REQUIRE(compile(*graph.data(), host()).steps[0].kernel.schedule.across);
    check("in place", *graph.data(), {{"images", 3}});
}

TEST_CASE("rows whose neighbours are too few to lie side by side, or whose blocks would part them, are not") {
    const auto taken = [](const Graph& graph) { return compile(*graph.data(), host()).steps[0].kernel.schedule; };
    CHECK(!taken(normed_channels(64, 2, 3, f32)).across);
    const Graph graph = normed_channels(64, 2, 48, f32);
    Schedule schedule = taken(graph);
    REQUIRE(schedule.across);
    schedule.rows_per_block = 40;
    const Offer<Kernel> kernel = lower(plan_graph(*graph.data(), host()).groups[0], schedule, host());
    REQUIRE(!kernel);
    CHECK(kernel.reason() == "a block of 40 rows is no number of runs of 48, nor a part of one in vectors");
}

// A vector is loaded past the last row nowhere, and a row that overwrites its input is computed once.
TEST_CASE("rows that are numbers alone are the lanes of a vector, whatever their axes") {
    struct Case {
        const char* what;
        const char* text;
        bool across = true;
    };
    const Case cases[] = {
        {"a clipped ratio",
         "rows t\ninput p: bf16[t]\ninput q: f32[t]\ninput a: f16[t]\nr = exp(cast(p, f32) - q)\n"
         "output y = cast(minimum(r * cast(a, f32), minimum(maximum(r, 0.8), 1.2) * cast(a, f32)), bf16)\n"},
        {"numbers of the outer axis beside",
         "rows b = 3\nrows t\ninput x: f32[b, t]\ninput m: f32[b]\n"
         "input n: f32[t]\noutput y = (x - m) / n\n"},
        {"neighbours that are no whole vectors",
         "rows t\nrows h = 12\ninput x: bf16[t, h]\ninput s: f32[h]\noutput y = cast(cast(x, f32) * s, bf16)\n"},
        {"neighbours that are no vector", "rows t\nrows h = 3\ninput x: f32[t, h]\noutput y = x * x\n", false},
        {"the row before, where there is one",
         "rows t\ninput x: f32[t]\nat = iota(t, i64) - 1\noutput y = x - index(x, at)\n"},
        {"random numbers",
         "rows t\ninput x: f32[t]\nscalar seed: i64 = 5\n"
         "output y = x * uniform(seed, const(0, i64), iota(t, i64))\n"},
        {"in place", "rows b = 2\nrows t\ninput x: f32[b, t]\noutput y = x * 2 + 1 alias(x)\n"},
    };
    for (const Case& c : cases) {
        const Graph graph = Graph::parse(c.text);
        const Program program = compile(*graph.data(), host());
        CHECK_MESSAGE(program.steps[0].kernel.schedule.across == c.across, c.what);
        const Plan plan = plan_graph(*graph.data(), host());
        for (const Schedule& schedule : legal_schedules(plan.groups[0], host())) {
            for (const std::int64_t rows : {1, 31, 70, 5000}) {
                check(fmt::format("{} {} {}", c.what, print(schedule), rows), *graph.data(), {{"t", rows}},
                      [&](const Group& group) {
                          return group.name == plan.groups[0].name ? std::optional(schedule) : std::nullopt;
                      });
            }
        }
    }
}

std::optional<Schedule> lanes_are_rows(const Group& group) {
    for (const Schedule& schedule : legal_schedules(group, host())) {
        if (schedule.across) return schedule;
    }
    return std::nullopt;
}

// Every legal schedule of the first kernel against the oracle, and the blocks of the one that is chosen, whose lanes
// are rows or not, together and each by itself.
void check_narrow(const std::string& what, const Graph& graph, const std::vector<std::int64_t>& counts,
                  const Target& target = host()) {
    const Plan plan = plan_graph(*graph.data(), target);
    int across = 0;
    for (const Schedule& schedule : legal_schedules(plan.groups[0], target)) {
        if (schedule.vector > 1 && schedule.vector != 16) continue;  // wider vectors have their own tests
        across += schedule.across ? 1 : 0;
        for (const std::int64_t rows : counts) {
            check(
                fmt::format("{} {} {}", what, print(schedule), rows), *graph.data(), {{"n", rows}},
                [&](const Group& group) {
                    return group.name == plan.groups[0].name ? std::optional(schedule) : std::nullopt;
                },
                {.seed = 3, .out_of_range = true}, 1, target);
        }
    }
    CHECK_MESSAGE(across == 1, what);
    const Program program = compile(*graph.data(), target, lanes_are_rows);
    check_ranges(what, *graph.data(), program, {{"n", counts.back()}});
}

// Of any number of columns, since each puts vectors together in its own way.
TEST_CASE("narrow rows that are the lanes of a vector have every column in its place") {
    for (const auto& [dtype, most] : {std::pair("f32", 40), {"bf16", 40}, {"f16", 5}, {"f64", 9}, {"i32", 5}}) {
        for (int columns = 1; columns <= most; ++columns) {
            const Graph graph = Graph::parse(fmt::format(
                "rows n\ncolumns c = {0}\ninput x: {1}[n, c]\noutput y = index(x, n, {2} - c) + x\noutput z = max(x)\n",
                columns, dtype, columns - 1));
            const std::string what = fmt::format("{} columns of {}", columns, dtype);
            CHECK_MESSAGE(compile(*graph.data(), host(), lanes_are_rows).steps[0].kernel.in_tiles, what);
            check(what, *graph.data(), {{"n", 75}}, lanes_are_rows);
        }
    }
}

TEST_CASE("narrow rows are the lanes of a vector, exact and the same in whichever range") {
    const std::pair<const char*, const char*> cases[] = {
        {"a softmax, its entropy and a value at a place that data say",
         "rows n\ncolumns c = 18\ninput x: f32[n, c]\ninput at: i64[n]\nz = x - max(x)\ne = exp(z)\ns = sum(e)\n"
         "output p = e / s\noutput h = log(s) - sum(e * z) / s\noutput l = index(x, n, at) - log(s)\n"},
        {"a norm of bf16 with its weights",
         "rows n\ncolumns c = 12\ninput x: bf16[n, c]\ninput w: bf16[c]\nh = cast(x, f32)\nd = h - mean(h)\n"
         "output y = cast(d * rsqrt(mean(d * d) + 1e-5), bf16) * w\n"},
        {"functions without a reduction",
         "rows n\ncolumns c = 7\ninput x: bf16[n, c]\ninput y: f32[n, c]\n"
         "output z = cast(x, f32) / (1 + exp(-y))\noutput b = x\n"},
        {"columns of two axes and tensors of one",
         "rows n\ncolumns h = 3\ncolumns c = 5\ninput x: f32[n, h, c]\ninput s: f32[n, h]\ninput t: f32[n, c]\n"
         "output y = x * s + t\noutput m = max(x, c)\n"},
        {"several row axes, and what lacks some",
         "rows n\nrows t = 3\ncolumns c = 6\ninput x: f32[n, t, c]\ninput a: f32[n, c]\ninput b: f32[t, c]\n"
         "input d: f32[n]\noutput y = (x - max(x)) * a + d * b + cast(iota(n, i64), f32) + cast(iota(t), f32)\n"},
        {"masks, bytes and half floats",
         "rows n\ncolumns c = 10\ninput x: f16[n, c]\ninput m: bool[n, c]\ninput i: i8[n, c]\n"
         "k = select(m, cast(x, f32), -1e30)\noutput y = cast(exp(k - max(k)), f16)\n"
         "output l = m\noutput j = i\n"},
        {"random numbers",
         "rows n\ncolumns c = 9\ninput x: f32[n, c]\nscalar seed: i64 = 5\n"
         "output y = x * uniform(seed, const(0, i64), iota(n, i64) * 9 + cast(iota(c), i64))\n"},
        {"the row before, where there is one",
         "rows n\ncolumns c = 4\ninput x: f32[n, c]\nat = iota(n, i64) - 1\n"
         "output y = x - index(x, at, c)\noutput m = max(x)\n"},
        {"a table's rows by ids",
         "rows n\nrows v = 50\ncolumns c = 8\ninput ids: i64[n]\ninput t: bf16[v, c]\ninput x: bf16[n, c]\n"
         "h = cast(index(t, ids, c), f32) + cast(x, f32)\noutput y = cast(h / (sum(h * h) + 1), bf16)\n"},
        {"every second column",
         "rows n\ncolumns c = 6\ninput x: f32[n, 12]\ninput w: f32[n, c] strides(2)\n"
         "output y = index(x, n, c * 2) * max(w) + index(x, n, c * 2 + 1) strides(2)\n"},
        {"in place", "rows n\ncolumns c = 5\ninput x: f32[n, c]\noutput y = x / sum(x * x) alias(x)\n"},
        {"added to",
         "rows n\ncolumns c = 5\ninput x: bf16[n, c]\noutput y = x * 2 accumulate\n"
         "output m = max(x)\n"},
        {"rows of a loop that is not written out",
         "rows n\ncolumns c = 30\ninput x: f32[n, c]\ninput y: f32[n, c]\n"
         "l = log(1 + exp(-abs(x))) + maximum(x, 0) - x * y\np = 1 / (1 + exp(-x))\n"
         "t = tanh(l) * erf(p) + sin(x) * cos(y) + sqrt(l) - exp(p) * log(1 + p)\noutput z = l * p / max(l)\n"
         "output s = sum(t)\noutput k = t - max(t)\n"},
    };
    for (const auto& [what, text] : cases) check_narrow(what, Graph::parse(text), {1, 16, 31, 70, 600});
}

TEST_CASE("narrow rows that are lanes add to the sums over them, of rows and not of lanes that stand for none") {
    const std::pair<const char*, const char*> cases[] = {
        {"sums of columns beside the rows",
         "rows n\ncolumns c = 6\ninput x: bf16[n, c]\nh = cast(x, f32)\ne = exp(h - max(h))\np = e / sum(e)\n"
         "output y = p\noutput load = mean(p, n)\noutput first = max(p, n)\n"},
        {"sums of numbers",
         "rows n\ncolumns c = 5\ninput x: f32[n, c]\ns = sum(exp(x))\n"
         "output l = log(s)\noutput t = sum(log(s), n)\n"},
    };
    for (const auto& [what, text] : cases) check_narrow(what, Graph::parse(text), {1, 31, 70, 6000});
    // Of a few channels' columns each, whatever its blocks are.
    const Graph channels = Graph::parse(
        "rows n\nrows g = 2\ncolumns c = 4\ncolumns d = 5\ninput x: f32[n, g, c, d]\ninput m: f32[n, g]\n"
        "input r: f32[n, g]\ninput dy: f32[n, g, c, d]\nh = (x - m) * r\n"
        "output dw = sum(sum(dy * h, d), n)\noutput db = sum(sum(dy, d), n)\n");
    const Plan plan = plan_graph(*channels.data(), host());
    for (const Schedule& schedule : legal_schedules(plan.groups[0], host())) {
        for (const std::int64_t rows : {1, 700}) {
            check(fmt::format("channels' weights {}", print(schedule)), *channels.data(), {{"n", rows}},
                  [&](const Group& group) {
                      return group.name == plan.groups[0].name ? std::optional(schedule) : std::nullopt;
                  });
        }
    }
    for (const char* op : {"rms_norm", "layer_norm", "softmax", "swiglu"}) {
        for (const Dtype dtype : {bf16, f32}) {
            for (const std::int64_t columns : {3, 16, 18}) {
                if (columns % 2 != 0 && op == std::string_view("swiglu")) continue;
                const Graph graph = make_graph(op, {.columns = columns, .dtype = dtype});
                const Graph backward = differentiate(graph, trained_inputs(op, graph)).backward;
                check(fmt::format("{} of {} {}", op, columns, name(dtype)), *backward.data(), {{"tokens", 700}});
            }
        }
    }
}

// What is no piece of memory, as a part of wider rows is, is copied side by side first.
TEST_CASE("narrow rows that do not follow each other in memory are lanes too") {
    const Graph graph = Graph::parse("rows n\ncolumns c = 5\ninput x: f32[n, c]\noutput y = x / sum(x * x)\n");
    const Program program = compile(*graph.data(), host(), lanes_are_rows);
    REQUIRE(program.steps[0].kernel.in_tiles);
    constexpr std::int64_t kRows = 70;
    constexpr std::int64_t kStride = 9;
    std::vector<float> x(kRows * kStride);
    std::vector<float> y(kRows * kStride, -1);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) + 1;
    CpuRun run(program.steps[0].kernel, host());
    run.bind("x", x.data());
    run.bind("y", y.data());
    run.bind_rows(kRows, kStride);
    run(0, 1);
    for (std::size_t row = 0; row < kRows; ++row) {
        float squares = 0;
        for (std::size_t c = 0; c < 5; ++c) squares += x[row * kStride + c] * x[row * kStride + c];
        for (std::size_t c = 0; c < 5; ++c)
            CHECK(y[row * kStride + c] == doctest::Approx(x[row * kStride + c] / squares));
        for (std::size_t c = 5; c < kStride; ++c) CHECK(y[row * kStride + c] == -1);
    }
}

TEST_CASE("narrow rows are lanes of narrower registers too") {
    for (const char* level : {"x86-64-v2", "x86-64-v3"}) {
        for (const std::string_view dtype : {"bf16", "f32"}) {
            const Graph graph = Graph::parse(
                fmt::format("rows n\ncolumns c = 10\ninput x: {0}[n, c]\nh = cast(x, f32)\ne = exp(h - max(h))\n"
                            "output y = cast(e / sum(e), {0})\noutput m = sum(h)\n",
                            dtype));
            check_narrow(fmt::format("{} {}", level, dtype), graph, {1, 33, 70}, find_target(level));
        }
    }
}

TEST_CASE("rows of few columns are the lanes of a vector by the static rule, those that fill vectors are not") {
    const std::pair<const char*, bool> cases[] = {
        {"columns c = 18\ninput x: f32[n, c]\ne = exp(x - max(x))\noutput y = e / sum(e)\n", true},
        {"columns c = 32\ninput x: f32[n, c]\ne = exp(x - max(x))\noutput y = e / sum(e)\n", false},
        {"columns c = 10\ninput x: f32[n, c]\noutput y = exp(x)\n", true},
        {"columns c = 16\ninput x: f32[n, c]\noutput y = exp(x)\n", false},
        {"columns c = 3\ninput x: bf16[n, c]\noutput y = x * 2\n", true},
        {"columns c = 3\ninput x: f32[n, c]\noutput y = x * 2\n", false},
        {"rows t = 4\ncolumns c = 3\ninput x: f32[n, t, c]\ninput m: f32[n]\noutput y = exp(x - m)\n", false},
        {"rows v = 9\ncolumns c = 3\ninput x: f32[v, c]\ninput i: i64[n]\noutput y = exp(index(x, i, c))\n", false},
    };
    for (const auto& [text, expected] : cases) {
        const Graph graph = Graph::parse(std::string("rows n\n") + text);
        const auto taken = [&](const char* level) {
            return compile(*graph.data(), find_target(level)).steps[0].kernel.in_tiles;
        };
        CHECK_MESSAGE(taken("x86-64-v4") == expected, text);
        CHECK_MESSAGE(!taken("x86-64-v3"), text);
    }
}

TEST_CASE("rows of many columns are not the lanes of a vector") {
    const auto reason = [](const char* text, Schedule schedule) {
        const Graph graph = Graph::parse(text);
        schedule.across = true;
        schedule.rows_per_block = 256;
        const Offer<Kernel> kernel = lower(plan_graph(*graph.data(), host()).groups[0], schedule, host());
        return kernel ? std::string() : kernel.reason();
    };
    const Schedule elementwise;
    Schedule reduced;
    reduced.family = Family::kRowReduction;
    CHECK(reason("rows n\ncolumns c = 65\ninput x: f32[n, c]\noutput y = x * 2\n", elementwise) ==
          "a row of 65 columns is longer than the 64 of a tile");
    CHECK(reason("rows n\ncolumns c = 64\ninput x: f32[n, c, 64]\noutput y = x * 2\n", elementwise) ==
          "a row of 4096 columns is longer than the 64 of a tile");
    CHECK(reason("rows n\ncolumns c = 60\ninput a: f32[n, c]\ninput b: f32[n, c]\ninput d: f32[n, c]\n"
                 "input e: f32[n, c]\ninput f: f32[n, c]\ninput g: f32[n, c]\noutput y = a + b + d + e + f + g\n",
                 elementwise) ==
          "16 rows of 420 columns side by side are 26880 bytes; the first-level cache has room for 24576");
    CHECK(reason("columns c = 5\ninput x: f32[c]\noutput y = x * 2\n", elementwise) == "one row has no neighbours");
    reduced.online = true;
    CHECK(reason("rows n\ncolumns c = 5\ninput x: f32[n, c]\noutput y = max(x)\n", reduced) ==
          "rows that are a vector's lanes carry no pairs");
}

// Where a picture's patches or a convolution's steps lie is the same for all lanes of a vector: it is one load.
TEST_CASE("vectors are loaded whole at rows that their columns choose") {
    const std::pair<const char*, const char*> cases[] = {
        {"patches",
         "rows b\nrows y = 3\nrows x = 2\nrows yi = 6\nrows xi = 4\ncolumns c = 256\n"
         "input t: bf16[b, yi, xi, 64]\n"
         "output o = index(t, b, 2 * y + c / 64 % 2, 2 * x + c / 128, c % 64)\n"},
        {"steps",
         "rows b\nrows t\ncolumns k = 4\ncolumns c = 64\ninput x: bf16[b, t, c]\ninput w: f32[k, c]\n"
         "at = iota(t, i64) + cast(iota(k), i64) - 3\noutput y = cast(index(x, b, at, c), f32) * w\n"},
    };
    const auto reads_rows = [](const Inst& inst) { return inst.kind == InstKind::kLoad && inst.coords.size() > 2; };
    for (const auto& [what, text] : cases) {
        const Graph graph = Graph::parse(text);
        for (const std::string_view name : {"x86-64-v3", "x86-64-v4", "sm_90a", "gfx942"}) {
            const Program program = compile(*graph.data(), find_target(name));
            for (const Stmt& stmt : program.steps[0].kernel.body) {
                const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
                if (loop == nullptr) continue;
                const auto load = std::ranges::find_if(loop->body, reads_rows);
                REQUIRE(load != loop->body.end());
                CHECK_MESSAGE(load->access.kind == Access::Kind::kVector, what, " ", name);
            }
        }
        const Plan plan = plan_graph(*graph.data(), host());
        for (const Schedule& schedule : legal_schedules(plan.groups[0], host())) {
            for (const std::int64_t rows : {1, 2, 9}) {
                check(fmt::format("{} {} {}", what, print(schedule), rows), *graph.data(), {{"b", 3}, {"t", rows}},
                      [&](const Group& group) {
                          return group.name == plan.groups[0].name ? std::optional(schedule) : std::nullopt;
                      });
            }
        }
    }
}

// Of a vector's lanes all, some, or none are inside: a table of fewer distances than a row has columns, and of more.
TEST_CASE("columns whose values say that they follow each other are one load, and zeros outside") {
    for (const std::string_view dtype : {"f32", "bf16"}) {
        for (const int distances : {40, 100, 1000}) {
            const Graph graph = Graph::parse(
                fmt::format("rows h = 2\nrows q\ncolumns k = 128\ninput s: bf16[h, q, k]\ninput t: {}[h, {}]\n"
                            "b = cast(index(t, h, cast(iota(k), i64) - iota(q, i64) + 50), f32)\n"
                            "z = cast(s, f32) + b\ne = exp(z - max(z))\noutput p = e / sum(e)\n",
                            dtype, distances));
            const Program program = compile(*graph.data(), find_target("x86-64-v4"));
            for (const Stmt& stmt : program.steps[0].kernel.body) {
                const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
                if (loop == nullptr) continue;
                for (const Inst& inst : loop->body) {
                    if (inst.kind == InstKind::kLoad && inst.coords.size() == 2) CHECK(inst.access.in_a_row);
                }
            }
            const Plan plan = plan_graph(*graph.data(), host());
            for (const Schedule& schedule : legal_schedules(plan.groups[0], host())) {
                for (const std::int64_t rows : {1, 9, 300}) {
                    check(fmt::format("{} of {} {} {}", dtype, distances, print(schedule), rows), *graph.data(),
                          {{"q", rows}}, [&](const Group& group) {
                              return group.name == plan.groups[0].name ? std::optional(schedule) : std::nullopt;
                          });
                }
            }
        }
    }
}

TEST_CASE("a residual add, its norm and the norm's codes are one kernel, and exact") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const auto rows = [&](const char* name) { return g.input(name, bf16, {tokens, 512}); };
    const AddRmsNorm norm = add_rms_norm(rows("x"), rows("residual"), g.input("weight", bf16, {512}));
    const Quantized quantized = quantize(norm.y);
    g.output("sum", norm.sum);
    g.output("codes", quantized.codes);
    g.output("scale", quantized.scale);
    CHECK(plan_graph(*g.data(), host()).groups.size() == 1);
    check("add_rms_norm and quantize", *g.data(), {{"tokens", 9}});
}

TEST_CASE("where one class has all of a row's weight, and where a row is one column, gradients are 0 as eager's are") {
    for (const char* op : {"reverse_kl", "jsd"}) {
        for (const Dtype dtype : {bf16, f16}) {
            const Graph loss = make_graph(op, {.columns = 32, .dtype = dtype});
            const Graph step = gradient(loss, {"student"}, {.joint = true, .unit_cotangent = true});
            const Program program = compile(*step.data(), host());
            for (const std::uint64_t seed : {1000, 3000, 5000, 7000}) {
                const Bindings bindings =
                    random_inputs(*step.data(), {{"tokens", 11}}, {.seed = seed, .extremes = true});
                const Tensor got = ProgramRun(*step.data(), program, bindings).output("d_student");
                const Tensor exact = interpret(*step.data(), bindings, Rounding::kExact).at("d_student");
                for (std::size_t i = 0; i < exact.values.size(); ++i)
                    if (exact.values[i] == 0) CHECK(got.values[i] == 0);
            }
        }
    }
    // A log-ratio of -1 takes away what flows through the logarithm, and equal rows all of a divergence from their
    // mean.
    for (const char* op : {"reverse_kl", "jsd"}) {
        for (const Dtype dtype : {bf16, f16}) {
            const Graph loss =
                make_graph(op, {.columns = 255, .dtype = dtype, .options = {{"of", "log_probabilities"}}});
            check(op, *gradient(loss, {"student"}).data(), {{"tokens", 60}}, {}, {.seed = 1000, .extremes = true});
        }
    }
    const Graph loss = make_graph("cosine_distance", {.columns = 1});
    for (const bool joint : {false, true}) {
        const GradientOptions options = {.joint = joint, .unit_cotangent = joint};
        const Graph step = gradient(loss, {"student"}, options);
        check("cosine_distance", *step.data(), {{"tokens", 200}}, {}, {.seed = 1000}, joint ? kLaunches : 1);
    }
}

TEST_CASE("a divergence from a mixture is as exact of distributions that are alike") {
    for (const Dtype dtype : {bf16, f32}) {
        for (const char* beta : {"0.5", "0.1"}) {
            const Graph loss =
                make_graph("jsd", {.columns = 1000, .dtype = dtype, .options = {{"temperature", "5"}, {"beta", beta}}});
            check("jsd", *loss.data(), {{"tokens", 40}}, {}, {.seed = 1000}, kLaunches);
            check("jsd backward", *gradient(loss, {"student"}).data(), {{"tokens", 40}}, {}, {.seed = 1000});
        }
    }
}

TEST_CASE("a loss that a kernel adds up over its rows is as exact as those of the rows") {
    const auto sum_of = [](std::string_view op, const OpRequest& request) {
        check(fmt::format("sum of {}", op), *make_graph(op, request).data(), {{"tokens", 5}}, {}, {.seed = 1000},
              kLaunches);
    };
    sum_of("jsd", {.columns = 4095,
                   .dtype = f32,
                   .options = {{"beta", "0.04"}, {"of", "log_probabilities"}, {"reduction", "sum"}}});
    sum_of("cross_entropy", {.columns = 1024, .options = {{"softcap", "15"}, {"temperature", "0.7"}}});
    const Graph step =
        gradient(make_graph("jsd", {.columns = 4096}), {"student"}, {.joint = true, .unit_cotangent = true});
    check("jsd with its gradient", *step.data(), {{"tokens", 5}}, {}, {.seed = 1000}, kLaunches);
}

TEST_CASE("a row's number that no logarithm makes leaves functions as exact as what is stored") {
    const auto text_of = [](const Graph& step) {
        return print_llvm(compile(*step.data(), find_target("x86-64-v4")).steps[0].kernel, find_target("x86-64-v4"));
    };
    const auto contains_narrow = [&](const Graph& step) {
        return text_of(step).find("tanh_narrow") != std::string::npos;
    };
    CHECK(contains_narrow(gradient(make_graph("dynamic_tanh", {}), {"x", "alpha"})));
    CHECK(!contains_narrow(make_graph("cross_entropy", {.options = {{"softcap", "15"}}})));
}

TEST_CASE("no rows are no work") {
    const Graph graph = make_graph("rms_norm", {.columns = 64});
    check("rms_norm", *graph.data(), {{"tokens", 0}});
}

TEST_CASE("a weight gradient sums over rows, column by column") {
    for (const std::int64_t columns : {3, 64, 100, 1500}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Axis hidden = g.columns("hidden", columns);
        const Value x = cast(g.input("x", bf16, {tokens, hidden}), f32);
        const Value dy = cast(g.input("dy", bf16, {tokens, hidden}), f32);
        const Value r = g.input("r", f32, {tokens});
        g.output("dw", cast(sum(dy * x * r, tokens), bf16));
        g.output("db", sum(dy, tokens));
        check(fmt::format("weight gradient {}", columns), *g.data(), {{"tokens", 301}});
    }
}

TEST_CASE("the gradients of a norm's input and of its weight come from one kernel, and a second adds its parts") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = cast(g.input("x", bf16, {tokens, 100}), f32);
    const Value dy = cast(g.input("dy", bf16, {tokens, 100}), f32);
    const Value weight = cast(g.input("weight", bf16, {100}), f32);
    const Value r = rsqrt(mean(x * x) + 1e-6);
    const Value d_normed = dy * weight;
    g.output("d_x", cast(r * (d_normed - x * r * mean(d_normed * x * r)), bf16));
    g.output("d_weight", cast(sum(dy * x * r, tokens), bf16));
    const Plan plan = plan_graph(*g.data(), host());
    REQUIRE(plan.groups.size() == 2);
    CHECK(makes_parts(*plan.groups[0].graph));
    CHECK(adds_parts(*plan.groups[1].graph));
    for (const std::int64_t rows : {0, 1, 63, 64, 301}) {
        check(fmt::format("{} rows", rows), *g.data(), {{"tokens", rows}});
    }
}

TEST_CASE("columns along one axis have what their groups come to, found once, and so have the gradients") {
    for (const auto& [groups, width] : {std::pair<std::int64_t, std::int64_t>{3, 40}, {4, 64}, {64, 4}}) {
        for (const NamedGraph& of : grouped_columns(groups, width)) {
            const std::string what = fmt::format("{}, {} of {}", of.what, groups, width);
            check(what, *of.graph.data(), {{"tokens", 9}});
            check(what + " backward", *differentiate(of.graph).backward.data(), {{"tokens", 9}});
        }
    }
}

TEST_CASE("columns are compared with numbers of their row, however far those lie") {
    for (const std::int64_t columns : {5, 64, 130}) {
        for (const std::int64_t rows : {1, 9, 200})
            check(fmt::format("{} columns", columns), *compared_places(columns).data(), {{"q", rows}});
    }
    const Graph saturated = Graph::parse(R"(
        rows q
        input x: f32[q, 64]
        far = cast(iota(@64), i64) + 2147483640
        output y = select(cast(cast(far, i32), i64) <= iota(q, i64) + 2147483647, x, 0))");
    check("a cast that saturates", *saturated.data(), {{"q", 9}});
}

TEST_CASE("extrema over rows are found in parts, and so have the gradients what is theirs") {
    for (const std::int64_t columns : {5, 40, 130}) {
        for (const NamedGraph& of : extrema_of_rows(columns)) {
            const std::string what = fmt::format("{} of {} columns", of.what, columns);
            CHECK(makes_parts(*plan_graph(*of.graph.data(), host()).groups[0].graph));
            for (const std::int64_t rows : {1, 63, 301}) check(what, *of.graph.data(), {{"r", rows}});
            check(what + " backward", *differentiate(of.graph).backward.data(), {{"r", 70}});
        }
    }
}

TEST_CASE("what is rounded to a byte and stored as one is rounded once") {
    for (const std::string_view dtype : {"e4m3", "e5m2"}) {
        const Graph graph =
            Graph::parse(fmt::format("rows t\ninput x: f32[t, 32]\noutput y = cast(x * 3, {})\n", dtype));
        const std::string text = print_llvm(compile(*graph.data(), host()).steps[0].kernel, host());
        const auto first = text.find("trunc <");
        REQUIRE(first != std::string::npos);
        CHECK(text.find("trunc <", first + 1) == std::string::npos);
        check(std::string(dtype), *graph.data(), {{"t", 9}});
    }
}

TEST_CASE("squared deviations of rows from their mean are as exact as those that are taken one by one") {
    for (const std::int64_t columns : {5, 130}) {
        for (const NamedGraph& of : squares_of_rows(columns)) {
            const std::string what = fmt::format("{} of {} columns", of.what, columns);
            const std::string rows = of.what == "a norm of channels" ? "images" : "r";
            for (const std::int64_t count : {0, 1, 63, 301}) check(what, *of.graph.data(), {{rows, count}});
        }
    }
}

// Each row of a block adds to its own place of the block's part.
TEST_CASE("gradients of a weight for each group and of a number for each head are parts of the rows' kernel") {
    for (const char* text : {"rows t\ncolumns g = 5\ncolumns d = {}\ninput x: bf16[t, g, d]\ninput w: bf16[g, d]\n"
                             "h = cast(x, f32)\nn = h * rsqrt(mean(h * h, d) + 1e-6)\n"
                             "output y = cast(n * cast(w, f32), bf16)\n",
                             "rows t\nrows g = 3\ncolumns d = {}\ninput x: bf16[t, g, d]\ninput w: f32[g, d]\n"
                             "input slope: f32[g]\nh = cast(x, f32)\nn = h * rsqrt(mean(h * h) + 1e-6)\n"
                             "output y = cast(n * w * slope, bf16)\n"}) {
        for (const std::int64_t width : {40, 64, 130}) {
            const Graph graph = Graph::parse(fmt::format(fmt::runtime(text), width));
            const Graph backward = differentiate(graph).backward;
            const Plan plan = plan_graph(*backward.data(), host());
            CHECK(std::ranges::any_of(plan.groups, [](const Group& group) {
                const std::vector<OutputInfo>& outputs = group.graph->outputs();
                return std::ranges::any_of(outputs, [](const OutputInfo& output) { return !output.apart.empty(); });
            }));
            for (const std::int64_t rows : {0, 1, 5, 64, 301})
                check(fmt::format("{} rows of {}", rows, width), *backward.data(), {{"t", rows}});
        }
    }
}

TEST_CASE("a norm's gradient and those of each batch's scale and shift come from one kernel, and a second adds parts") {
    const Graph forward = Graph::parse(R"(
        rows batch
        rows frames = 3
        rows tokens
        columns c = 100
        input x: bf16[batch, frames, tokens, c]
        input scale: bf16[batch, frames, c]
        input shift: bf16[batch, frames, c]
        h = cast(x, f32)
        output y = cast(h * rsqrt(mean(h * h) + 1e-6) * (1 + cast(scale, f32)) + cast(shift, f32), bf16))");
    const Graph backward = differentiate(forward).backward;
    const Plan plan = plan_graph(*backward.data(), host());
    REQUIRE(plan.groups.size() == 2);
    CHECK(makes_parts(*plan.groups[0].graph));
    CHECK(adds_parts(*plan.groups[1].graph));
    for (const std::int64_t batch : {0, 1, 40}) {
        for (const std::int64_t tokens : {0, 1, 9, 130}) {
            check(fmt::format("{} of {} tokens", batch, tokens), *backward.data(),
                  {{"batch", batch}, {"tokens", tokens}});
        }
    }
}

TEST_CASE("sums over one of several row axes keep the others") {
    Graph g;
    const Axis batch = g.rows("batch");
    const Axis sequence = g.rows("sequence");
    const Value x = g.input("x", f32, {batch, sequence, 48});
    g.output("by_batch", sum(x, sequence));
    g.output("largest", max(max(x), sequence));
    check("row axes", *g.data(), {{"batch", 3}, {"sequence", 130}});
}

TEST_CASE("strided columns, packed halves and gathered columns are read where they lie") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis half = g.columns("half", 75);
    const Value packed = g.input("packed", bf16, {tokens, 150});
    const Value strided = g.input("strided", bf16, {tokens, half}, {.column_strides = {2}});
    const Value order = g.input("order", i32, {half});
    const Axis all = g.columns(150);
    const Value gate = index(packed, all, Coord(half));
    const Value up = index(packed, all, Coord(half) + 75);
    const Value moved = index(packed, all, Coord(order));
    g.output("y", gate * up + strided);
    g.output("moved", moved, {.column_strides = {3}});
    check("packed", *g.data(), {{"tokens", 6}});
}

TEST_CASE("what turns within groups, lies some columns apart or in rows of its own is taken in periods, and exact") {
    struct Case {
        const char* what;
        const char* text;
        std::int64_t period;  // under the schedule that is taken; 0 for none
    };
    const Case cases[] = {
        {"partners within heads, and tables that heads share",
         "rows t\ncolumns h = 6\ncolumns d = 80\ninput x: bf16[t, h, d]\ninput cos: f32[t, d]\n"
         "p = index(x, t, h, (d + 20) % 40 + d / 40 * 40)\nk = iota(d)\n"
         "output y = cast(x, f32) * cos + cast(select(k - floor_div(k, 40) * 40 < 20, -p, p), f32)\n",
         160},
        {"a row and what is behind its last vector",
         "rows t\ncolumns c = 72\ninput x: bf16[t, c]\ninput w: f32[c]\n"
         "output y = index(x, t, c * -1 + 71) * cast(index(w, (c + 5) % 72), bf16)\n",
         72},
        {"every third column",
         "rows t\ncolumns c = 384\ncolumns d = 128\ninput x: bf16[t, c]\noutput y = index(x, t, 3 * d + 1)\n", 64},
        {"groups with gaps between them, which are read and stored",
         "rows t\ncolumns h = 8\ncolumns d = 40\ninput x: bf16[t, h, d] strides(48, 1)\n"
         "input z: f32[t, h, d] strides(41, 1)\noutput y = cast(x, f32) * z strides(44, 1)\n",
         320},
        {"a sum of blocks",
         "rows t\ncolumns h = 40\ncolumns d = 40\ninput x: bf16[t, h, d]\n"
         "output y = sum(cast(x, f32) * cast(index(x, t, h, 39 - d), f32))\n",
         160},
        {"a circulant", "rows t\ncolumns c = 64\ninput x: f32[t, c]\noutput y = index(x, t, (c + t) % 64) * x\n", 0},
        {"heads of a flat row, and partners in them",
         "rows t\nrows h = 3\ncolumns d = 40\ncolumns c = 120\ninput x: bf16[t, c]\n"
         "output y = index(x, t, h * 40 + d) * index(x, t, h * 40 + (d + 20) % 40)\n",
         0},
        {"every second column of a part of a flat row",
         "rows t\nrows h = 3\ncolumns d = 32\ncolumns c = 191\ninput x: bf16[t, c]\n"
         "output y = index(x, t, h * 64 + d * 2) * index(x, t, h * -64 + d * 2 + 128)\n",
         0},
        {"a maximum of four neighbours",
         "rows t\ncolumns d = 96\ncolumns k = 4\ninput x: bf16[t, d, k]\noutput y = max(x, k)\n", 0},
    };
    for (const Case& c : cases) {
        const Graph graph = Graph::parse(c.text);
        for (const Target& target : {find_target("x86-64-v2"), find_target("x86-64-v3"), host()}) {
            const Plan plan = plan_graph(*graph.data(), target);
            for (const Schedule& schedule : legal_schedules(plan.groups[0], target)) {
                const ScheduleChoice choice = [&](const Group& group) {
                    return group.name == plan.groups[0].name ? std::optional(schedule) : std::nullopt;
                };
                check(fmt::format("{} {} {}", c.what, target.name, print(schedule)), *graph.data(), {{"t", 5}}, choice,
                      {.seed = 3, .out_of_range = true}, 1, target);
            }
        }
        const Program program = compile(*graph.data(), find_target("x86-64-v4"));
        for (const Stmt& stmt : program.steps[0].kernel.body) {
            const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
            if (loop != nullptr) CHECK_MESSAGE(loop->period == c.period, c.what);
        }
    }
}

TEST_CASE("quotients of whole numbers are rounded down, by constants and by what is read") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis columns = g.columns(75);
    for (const Dtype dtype : {i32, i64}) {
        const std::string suffix(name(dtype));
        const Value a = g.input("a_" + suffix, dtype, {tokens, columns});
        const Value b = g.input("b_" + suffix, dtype, {tokens, columns});
        for (const std::int64_t divisor : {1, 3, 128})
            g.output(fmt::format("by_{}_{}", divisor, suffix), floor_div(a, divisor));
        g.output("by_read_" + suffix, Value(g.data(), g.data()->add_map(Op::kFloorDiv, {a.id(), b.id()})));
    }
    check("quotients", *g.data(), {{"tokens", 6}});
}

TEST_CASE("random numbers are the reference's bits on the CPU under every schedule, wherever rows begin") {
    for (const std::int64_t columns : {1, 7, 64, 130}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Value place = g.iota(tokens, i64) * static_cast<double>(columns) + g.iota(g.columns(columns), i64);
        const Value seed = g.scalar("seed", i64, -5e15);
        g.output("u", uniform(seed, g.scalar("offset", i64, 4294967299.0), place + 8589934590.0));
        const Plan plan = plan_graph(*g.data(), host());
        const Bindings bindings = {{}, {}, {{"tokens", 5}}};
        for (const Schedule& schedule : legal_schedules(plan.groups[0], host())) {
            const Program program = compile(*g.data(), host(), [&](const Group&) { return std::optional(schedule); });
            ProgramRun run(*g.data(), program, bindings);
            const std::vector<double> u = run.output("u").values;
            for (std::size_t i = 0; i < u.size(); ++i) {
                REQUIRE(u[i] ==
                        philox_uniform(-5000000000000000, 4294967299, 8589934590 + static_cast<std::int64_t>(i)));
            }
        }
    }
}

// The state's value differs from row to row, some rows have no step to take, and nothing is a column of the output.
TEST_CASE("fixpoints of a sum over rows, of two at once and of none but the state are the oracle's") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = g.input("x", f32, {tokens, 50});
    const Value greatest = max(x);
    const auto toward = [](const Value& limit) {
        return [=](const Value& state) { return maximum(state * 0.5, limit); };
    };
    const Value plain = fixpoint(greatest * 64.0, toward(abs(greatest)), 20);
    const auto summed = [&](const Value& state) { return maximum(state - sum(select(x > state, x, x * 0.0)), plain); };
    const Value both = fixpoint(plain + 3.0, summed, 9);
    g.output("plain", plain);
    g.output("y", x * both);
    g.output("total", sum(both * greatest, tokens));
    check("fixpoints", *g.data(), {{"tokens", 11}});
}

TEST_CASE("what a fixpoint's step sums is the oracle's of its last state, also of NaN and where no step is left") {
    check("sums of the last step", *sums_of_last_step().data(), {{"tokens", 13}});
}

TEST_CASE("extrema of what constants scale are the oracle's under every schedule") {
    for (const Dtype dtype : {bf16, f32}) check("extrema", *extrema_of_scaled(dtype).data(), {{"tokens", 9}});
}

TEST_CASE("a gather whose coordinate orders the rows otherwise than its result is refused with the remedy") {
    Graph g;
    const Axis t = g.rows("t");
    const Axis u = g.rows("u");
    const Axis h = g.rows("h");
    const Axis c = g.columns(8);
    const Value x = g.input("x", f32, {t, h, c});
    const Value place = g.input("place", i32, {t, u, h});
    g.output("y", index(x * x, {t, h, Coord(place)}));
    const std::string message = refusal(ErrorCode::kUnsupported, [&] { plan_graph(*g.data(), host()); });
    CHECK(mentions(message,
                   "the data coordinate has axes [t, u, h] and the result [t, h, u]; declare them in one order"));
}

TEST_CASE("rows that a kernel sums over are taken four at a time, and what is left of a part one by one") {
    for (const std::int64_t columns : {1, 7, 64, 130}) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Axis hidden = g.columns("hidden", columns);
        const Value x = g.input("x", f32, {tokens, hidden});
        const Value dy = g.input("dy", f32, {tokens, hidden});
        const Value normed = x * rsqrt(mean(x * x) + 1e-6);
        g.output("y", normed);
        g.output("d_weight", sum(dy * normed, tokens));
        g.output("d_bias", sum(dy, tokens));
        // Of 64 parts some have seven rows and some six.
        check("abreast", *g.data(), {{"tokens", 64 * 6 + 21}});
    }
}

// Numbers of every kind: loaded and gathered ones, coordinates, conditions, of f64 and of bf16, stored as they are and
// used again in a loop; columns that are kept, and a sum over rows.
Graph many_numbers(Dtype dtype, std::int64_t columns) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis heads = g.rows("heads");
    const Axis hidden = g.columns("hidden", columns);
    const Value x = cast(g.input("x", dtype, {tokens, heads, hidden}), f32);
    const Value scale = cast(g.input("scale", dtype, {heads}), f32);
    const Value target = g.input("target", i32, {tokens, heads});
    const Value greatest = max(x);
    const Value e = exp(x - greatest);
    const Value total = sum(e);
    const Value counted = target != 3;
    const Value loss = select(counted, log(total) - (index(x, hidden, Coord(target)) - greatest), scale * 0.0);
    const Value root = rsqrt(mean(x * x) + 1e-6);
    g.output("softmax", cast(e / total * scale, dtype));
    g.output("normed", cast(x * root, dtype));
    g.output("root", cast(root, dtype));
    g.output("counted", counted);
    g.output("least", min(x) + cast(g.iota(heads, i64), f32));
    g.output("loss", loss);
    return g;
}

TEST_CASE("narrow rows are the oracle's in strips of any length, and the same whichever rows share one") {
    for (const Dtype dtype : {bf16, f32}) {
        for (const std::int64_t columns : {5, 64, 130}) {
            const Graph g = many_numbers(dtype, columns);
            const Program program = compile(*g.data(), host());
            for (const std::int64_t tokens : {0, 1, 5, 15, 16, 17}) {
                const RowExtents rows = {{"tokens", tokens}, {"heads", 3}};
                check(fmt::format("strips of {} {} {}", name(dtype), columns, tokens), *g.data(), rows);
                const Bindings bindings = random_inputs(*g.data(), rows, {.seed = 3, .out_of_range = true});
                ProgramRun together(*g.data(), program, bindings);
                ProgramRun alone(*g.data(), program, bindings, ProgramRun::Ranges::kOfOne);
                for (const OutputInfo& output : g.data()->outputs()) {
                    const std::vector<double> one = alone.output(output.name).values;
                    const std::vector<double> all = together.output(output.name).values;
                    CHECK_MESSAGE(std::equal(one.begin(), one.end(), all.begin(), all.end(), is_same), output.name);
                }
            }
        }
    }
}

TEST_CASE("rows whose sums are of blocks are the oracle's in strips") {
    for (const char* op : {"rms_norm", "logsumexp", "layer_norm", "cross_entropy"}) {
        for (const std::int64_t columns : {600, 1024}) {
            const Graph g = make_graph(op, {.columns = columns});
            check(fmt::format("{} {}", op, columns), *g.data(), {{"tokens", 83}});
        }
    }
}

}  // namespace rowjit
