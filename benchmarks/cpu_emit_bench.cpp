// What the CPU emitter's code reaches, as JSON: compile and load time of each kernel, and the memory traffic of its
// fewest bytes on one core against memcpy and a copy with streaming stores (STREAM's) of as many bytes, in the same
// process.
//
//     cpu_emit_bench [columns] [MiB] [op …]     4096 columns, 256 MiB of traffic and the ops below unless given
//
// An operation's name with "_backward" behind it is its backward.
// With half a MiB everything lies in the second-level cache, and what is measured is the code itself.
#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "base/dtype.h"
#include "compiler/compile.h"
#include "compiler/toolchain/orc.h"
#include "dsl/library/registry.h"
#include "dsl/traffic.h"
#include "rowjit/gradient.h"

namespace rowjit {
namespace {

// Not the calling thread's own time, of which some hypervisors take off stolen time that another thread lost: the least
// of many repetitions then came out at up to a third of what the work takes.
using Clock = std::chrono::steady_clock;
using Memory = std::unique_ptr<std::uint8_t, decltype(&std::free)>;
using CpuFunction = void (*)(void* const*, std::int64_t, std::int64_t);

// Repeated for so long, and the least is taken, so that a machine shared with other work still gives steady figures:
// where a hypervisor lends cores of which it takes shares, the median of fifteen repetitions of what takes 50 us
// differed by a third from one run to the next.
constexpr double kMeasuredMs = 200;
constexpr int kLeastRepetitions = 15;
constexpr std::string_view kBackward = "_backward";

double milliseconds(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

double least_ms(const std::function<void()>& body) {
    double least = std::numeric_limits<double>::infinity();
    double total = 0;
    for (int i = 0; i < kLeastRepetitions || total < kMeasuredMs; ++i) {
        const auto start = Clock::now();
        body();
        const double took = milliseconds(start);
        least = std::min(least, took);
        total += took;
    }
    return least;
}

Memory allocate(std::size_t bytes) {
    return {static_cast<std::uint8_t*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)), &std::free};
}

// Random elements: of integers, targets inside any vocabulary.
Memory random_tensor(Dtype dtype, std::size_t elements) {
    Memory memory = allocate(elements * size_bytes(dtype));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<std::uint8_t> pattern(4096 * size_bytes(dtype));
    for (std::size_t i = 0; i < 4096; ++i) {
        const double value = is_float(dtype) ? normal(random) : static_cast<double>(random() % 64);
        store_element(dtype, pattern.data() + i * size_bytes(dtype), value);
    }
    for (std::size_t done = 0; done < elements * size_bytes(dtype); done += pattern.size()) {
        std::memcpy(memory.get() + done, pattern.data(), std::min(pattern.size(), elements * size_bytes(dtype) - done));
    }
    return memory;
}

void streaming_copy(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += sizeof(__m128i)) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
    _mm_sfence();
}

double gbps(double bytes, double ms) { return bytes / ms / 1e6; }

// Traffic of `copy` moving `bytes` in all.
double copy_gbps(double bytes, const std::function<void(std::uint8_t*, const std::uint8_t*, std::size_t)>& copy) {
    const auto half = static_cast<std::size_t>(bytes / 2) / 64 * 64;
    const Memory from = random_tensor(Dtype::kF32, half / 4);
    const Memory to = random_tensor(Dtype::kF32, half / 4);
    return gbps(2 * static_cast<double>(half), least_ms([&] { copy(to.get(), from.get(), half); }));
}

// A program on buffers of its own, on the calling thread.
class Bound {
  public:
    Bound(const Program& program, const Target& target, std::int64_t rows) : rows_(rows) {
        // Parts of sums over rows: as many as the kernel has blocks.
        for (const Step& step : program.steps) {
            if (step.kernel.slots_axis >= 0) slots_ = slots_of(step.kernel, rows_of(program, step));
        }
        for (const ProgramTensor& tensor : program.tensors) {
            std::vector<std::int64_t> extents;
            for (const AxisId axis : tensor.axes) extents.push_back(extent(program, axis));
            std::size_t elements = 1;
            for (const std::int64_t e : extents) elements *= static_cast<std::size_t>(e);
            strides_.push_back(contiguous_strides(extents));
            memory_.push_back(random_tensor(tensor.dtype, elements));
        }
        for (const Step& step : program.steps) bind(program, step, target);
    }

    void run() const {
        for (const Launch& launch : launches_) launch.function(launch.arguments.data(), 0, launch.blocks);
    }
    double compile_ms = 0;
    double load_ms = 0;

  private:
    struct Launch {
        std::unique_ptr<CpuCode> code;
        CpuFunction function = nullptr;
        std::vector<std::uint64_t> values;
        std::vector<void*> arguments;
        std::int64_t blocks = 0;
    };

    std::int64_t extent(const Program& program, AxisId axis) const {
        const AxisInfo& info = program.axes[static_cast<std::size_t>(axis)];
        if (info.is_slots) return slots_;
        return info.extent == kRuntimeExtent ? rows_ : info.extent;
    }

    RowCounts rows_of(const Program& program, const Step& step) const {
        return RowCounts::of(step.kernel, [&](AxisId axis) { return extent(program, axis); });
    }

    std::uint64_t argument(const Program& program, const Step& step, const KernelArgument& argument) const {
        const auto index = static_cast<std::size_t>(argument.index);
        std::uint64_t value = 0;
        switch (argument.kind) {
            case KernelArgument::Kind::kPointer:
                return reinterpret_cast<std::uint64_t>(memory_[static_cast<std::size_t>(step.tensors[index])].get());
            case KernelArgument::Kind::kExtent: return static_cast<std::uint64_t>(extent(program, argument.axis));
            case KernelArgument::Kind::kStride: {
                const auto tensor = static_cast<std::size_t>(step.tensors[index]);
                const std::vector<AxisId>& axes = program.tensors[tensor].axes;
                const auto place = std::find(axes.begin(), axes.end(), argument.axis) - axes.begin();
                return static_cast<std::uint64_t>(strides_[tensor][static_cast<std::size_t>(place)]);
            }
            case KernelArgument::Kind::kScalar: {
                const ProgramScalar& scalar = program.scalars[static_cast<std::size_t>(step.scalars[index])];
                const Dtype dtype = size_bytes(scalar.dtype) == 2 ? Dtype::kF32 : scalar.dtype;
                store_element(dtype, &value, scalar.default_value);
                return value;
            }
            case KernelArgument::Kind::kMatrix:
            case KernelArgument::Kind::kSide: break;  // of products that kernels make, none of them a CPU's
        }
        return value;
    }

    void bind(const Program& program, const Step& step, const Target& target) {
        Launch launch;
        std::vector<double> compile;
        Artifact artifact;
        for (int i = 0; i < 5; ++i) {
            const auto begin = Clock::now();
            artifact = compile_cpu(step.kernel, target);
            compile.push_back(milliseconds(begin));
        }
        compile_ms += median(compile);
        const auto start = Clock::now();
        launch.code = load_cpu_object(artifact);
        load_ms += milliseconds(start);
        launch.function = reinterpret_cast<CpuFunction>(launch.code->symbol(step.kernel.name));
        for (const KernelArgument& a : step.kernel.arguments) launch.values.push_back(argument(program, step, a));
        for (std::uint64_t& value : launch.values) launch.arguments.push_back(&value);
        launch.blocks = grid_blocks(step.kernel, rows_of(program, step));
        launches_.push_back(std::move(launch));
    }

    std::int64_t rows_;
    std::int64_t slots_ = 1;
    std::vector<Memory> memory_;
    std::vector<std::vector<std::int64_t>> strides_;
    std::vector<Launch> launches_;
};

Graph copy_graph(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    g.output("y", g.input("x", dtype, {tokens, columns}) + 1);
    return g;
}

Graph weight_gradient_graph(std::int64_t columns, Dtype dtype) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis hidden = g.columns("hidden", columns);
    const Value x = cast(g.input("x", dtype, {tokens, hidden}), f32);
    const Value dy = cast(g.input("dy", dtype, {tokens, hidden}), f32);
    g.output("dw", cast(sum(dy * x * g.input("r", f32, {tokens}), tokens), dtype));
    return g;
}

Graph make(const std::string& op, std::int64_t columns, Dtype dtype) {
    if (op == "add_one") return copy_graph(columns, dtype);
    if (op == "weight_gradient") return weight_gradient_graph(columns, dtype);
    if (!op.ends_with(kBackward)) return make_graph(op, {.columns = columns, .dtype = dtype});
    const std::string forward = op.substr(0, op.size() - kBackward.size());
    const Graph graph = make_graph(forward, {.columns = columns, .dtype = dtype});
    return differentiate(graph, trained_inputs(forward, graph)).backward;
}

}  // namespace
}  // namespace rowjit

int main(int argc, char** argv) {
    using namespace rowjit;
    const std::int64_t columns = argc > 1 ? std::atoll(argv[1]) : 4096;
    const double traffic = (argc > 2 ? std::atof(argv[2]) : 256) * 1048576;
    const Target target = host_cpu_target();
    nlohmann::json report;
    report["cpu"] = target.label;
    report["columns"] = columns;
    report["memcpy_gbps"] =
        copy_gbps(traffic, [](auto* to, const auto* from, std::size_t n) { std::memcpy(to, from, n); });
    const double stream = copy_gbps(traffic, streaming_copy);
    report["stream_copy_gbps"] = stream;
    std::vector<std::string> ops = {"add_one", "rms_norm", "add_rms_norm",  "layer_norm",     "softmax",
                                    "swiglu",  "gelu",     "cross_entropy", "weight_gradient"};
    if (argc > 3) ops.assign(argv + 3, argv + argc);
    for (const std::string& op : ops) {
        for (const Dtype dtype : {bf16, f32}) {
            const Graph graph = make(op, columns, dtype);
            const double row_bytes = static_cast<double>(least_bytes(*graph.data(), {{"tokens", 1000}})) / 1000;
            const auto rows = static_cast<std::int64_t>(traffic / row_bytes);
            Bound bound(compile(*graph.data(), target), target, rows);
            bound.run();
            const double reached = gbps(row_bytes * static_cast<double>(rows), least_ms([&] { bound.run(); }));
            report["kernels"].push_back({{"op", op},
                                         {"dtype", name(dtype)},
                                         {"rows", rows},
                                         {"compile_ms", bound.compile_ms},
                                         {"load_ms", bound.load_ms},
                                         {"gbps", reached},
                                         {"of_stream_copy", reached / stream}});
            fmt::print(stderr, "{:16} {:4} {:6.1f} GB/s {:5.2f} of stream, compile {:5.1f} ms, load {:4.1f} ms\n", op,
                       name(dtype), reached, reached / stream, bound.compile_ms, bound.load_ms);
        }
    }
    fmt::print("{}\n", report.dump(2));
}
