// An operation that no library ships, from the formula to checked numbers: an RMS norm over groups of a row, weighted,
// capped softly by tanh and gated, as one kernel. Written with the expression language alone, compiled and launched on
// the CPU, and compared with the plain loop that says the same. Needs no GPU; Device::best() would use one.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "rowjit/engine.h"
#include "rowjit/graph.h"

namespace {

using namespace rowjit;

constexpr std::int64_t kGroups = 16;
constexpr std::int64_t kWidth = 96;  // any width will do, not only powers of two
constexpr std::int64_t kColumns = kGroups * kWidth;

// y = cap·tanh(n·weight / cap) · gate·σ(gate), n = x·rsqrt(mean of the group's x² + eps). eps and cap are scalars of
// the launch: other values need no other kernel.
Graph gated_group_norm() {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis groups = g.columns("groups", kGroups);
    const Axis width = g.columns("width", kWidth);
    const Value x = g.input("x", f32, {tokens, groups, width});
    const Value gate = g.input("gate", f32, {tokens, groups, width});
    const Value weight = g.input("weight", f32, {groups, width});
    const Value eps = g.scalar("eps", f32, 1e-5);
    const Value cap = g.scalar("cap", f32, 8);

    const Value normed = x * rsqrt(mean(x * x, width) + eps) * weight;  // mean over one axis: a number for each group
    const Value capped = cap * tanh(normed / cap);
    g.output("y", capped * gate / (1.0 + exp(-gate)));
    return g;
}

struct Tensors {
    std::vector<float> x;
    std::vector<float> gate;
    std::vector<float> weight;
};

// The same computation as anyone would first write it, in double.
std::vector<double> plain_loop(const Tensors& in, std::int64_t tokens, double cap) {
    std::vector<double> y(static_cast<std::size_t>(tokens * kColumns));
    for (std::int64_t first = 0; first < tokens * kColumns; first += kWidth) {
        double squares = 0;
        for (std::int64_t i = first; i < first + kWidth; ++i) squares += double{in.x[i]} * in.x[i];
        const double scale = 1 / std::sqrt(squares / kWidth + 1e-5);
        for (std::int64_t i = first; i < first + kWidth; ++i) {
            const double normed = in.x[i] * scale * in.weight[i % kColumns];
            y[i] = cap * std::tanh(normed / cap) * in.gate[i] / (1 + std::exp(-double{in.gate[i]}));
        }
    }
    return y;
}

// Values of both signs between -4 and 4, different in each place.
std::vector<float> wave(std::int64_t count, double step) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(4 * std::sin(step * double(i)));
    return values;
}

double largest_difference(const std::vector<float>& got, const std::vector<double>& expected) {
    double largest = 0;
    for (std::size_t i = 0; i < got.size(); ++i) largest = std::max(largest, std::abs(got[i] - expected[i]));
    return largest;
}

}  // namespace

int main() {
    try {
        Engine engine(Device("cpu"));
        const Executable f = engine.compile(gated_group_norm());
        std::printf("%s: %d kernel\n", engine.device().description().c_str(), f.kernel_count());

        // One compile serves every number of rows and every value of a scalar.
        struct Launch {
            std::int64_t tokens;
            double cap;
        };
        bool good = true;
        for (const Launch& launch : {Launch{1, 8}, Launch{37, 8}, Launch{256, 2}}) {
            const std::int64_t count = launch.tokens * kColumns;
            const Tensors in = {wave(count, 0.37), wave(count, 0.11), wave(kColumns, 0.05)};
            std::vector<float> y(static_cast<std::size_t>(count));
            Arguments args = f.arguments();
            args.rows("tokens", launch.tokens).scalar("cap", launch.cap).tensor("y", y.data());
            args.tensor("x", in.x.data()).tensor("gate", in.gate.data()).tensor("weight", in.weight.data());
            f.launch(nullptr, args).or_throw();

            const double difference = largest_difference(y, plain_loop(in, launch.tokens, launch.cap));
            std::printf("%4lld tokens, cap %g: largest difference from the plain loop %.2g\n",
                        static_cast<long long>(launch.tokens), launch.cap, difference);
            good = good && difference < 1e-4;
        }
        return good ? 0 : 1;
    } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
