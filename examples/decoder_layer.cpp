// The row operations of one decoder layer, queued on a stream between the matrix products and the attention of whoever
// runs the model: residual add and norm, rotation of queries and keys, the gated activation. On the best device there
// is; prints what each takes and checks the results by what must hold of them.
//
//     decoder_layer [TOKENS]
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "rowjit/engine.h"
#include "rowjit/library.h"

namespace {

using namespace rowjit;

// Llama-3.2-1B.
constexpr std::int64_t kHidden = 2048;
constexpr std::int64_t kHeads = 32;
constexpr std::int64_t kKvHeads = 8;
constexpr std::int64_t kHeadWidth = 64;
constexpr std::int64_t kIntermediate = 8192;

Graph residual_norm_graph() {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = g.input("x", bf16, {tokens, kHidden});
    const Value residual = g.input("residual", bf16, {tokens, kHidden});
    const AddRmsNorm result = add_rms_norm(x, residual, g.input("weight", bf16, {kHidden}), {.eps = 1e-5});
    g.output("stream", result.sum, {.alias = "residual"});  // the residual stream may be overwritten in place
    g.output("y", result.y);
    return g;
}

// Heads are declared as columns: queries and keys then have the same rows, and one kernel rotates both and reads cos
// and sin once. Declared as rows, 32 heads and 8 would be two row spaces, and two kernels.
Graph rotation_graph() {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value q = g.input("q", bf16, {tokens, g.columns("heads", kHeads), kHeadWidth});
    const Value k = g.input("k", bf16, {tokens, g.columns("kv_heads", kKvHeads), kHeadWidth});
    const Value cos = g.input("cos", bf16, {tokens, kHeadWidth});
    const Value sin = g.input("sin", bf16, {tokens, kHeadWidth});
    g.output("q_out", rope(q, cos, sin));
    g.output("k_out", rope(k, cos, sin));
    return g;
}

Graph gated_mlp_graph() {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value gate = g.input("gate", bf16, {tokens, kIntermediate});
    g.output("y", swiglu(gate, g.input("up", bf16, {tokens, kIntermediate})));
    return g;
}

// bf16 is the upper half of a float; truncation will do for inputs of one's own making.
using Bf16 = std::uint16_t;
Bf16 narrow(double value) { return static_cast<Bf16>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16); }
double widen(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }

// A tensor in the device's memory.
class Tensor {
  public:
    Tensor(const Device& device, std::int64_t count, const std::function<double(std::int64_t)>& value)
        : device_(device), count_(static_cast<std::size_t>(count)), data_(device.allocate(count_ * sizeof(Bf16))) {
        std::vector<Bf16> host(count_);
        for (std::size_t i = 0; i < count_; ++i) host[i] = narrow(value(static_cast<std::int64_t>(i)));
        device_.copy_to_device(data_, host.data(), count_ * sizeof(Bf16));
    }
    Tensor(const Tensor&) = delete;
    Tensor& operator=(const Tensor&) = delete;
    ~Tensor() { device_.release(data_); }

    void* data() const { return data_; }

    std::vector<double> values() const {
        std::vector<Bf16> host(count_);
        device_.copy_to_host(host.data(), data_, count_ * sizeof(Bf16));
        std::vector<double> wide;
        for (const Bf16 value : host) wide.push_back(widen(value));
        return wide;
    }

  private:
    const Device& device_;
    std::size_t count_;
    void* data_;
};

// One compiled graph with its arguments and, where it needs one, its workspace.
class Op {
  public:
    Op(std::string name, Engine& engine, const Graph& graph, std::int64_t tokens)
        : name_(std::move(name)),
          device_(engine.device()),
          executable_(engine.compile(graph)),
          arguments_(executable_.arguments()) {
        arguments_.rows("tokens", tokens);
        const std::size_t bytes = executable_.workspace_bytes(arguments_);
        workspace_ = device_.allocate(bytes);  // null for none
        arguments_.workspace(workspace_, bytes);
    }
    Op(const Op&) = delete;
    Op& operator=(const Op&) = delete;
    ~Op() { device_.release(workspace_); }

    Op& tensor(std::string_view name, const Tensor& tensor) {
        arguments_.tensor(name, tensor.data());
        return *this;
    }

    void launch(Stream stream) const { executable_.launch(stream, arguments_).or_throw(); }

    // The mean of some launches, queued back to back.
    void time(Stream stream) const {
        constexpr int kLaunches = 20;
        device_.synchronize(stream);
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kLaunches; ++i) launch(stream);
        device_.synchronize(stream);
        const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
        std::printf("%-14s %d kernel %9.1f us\n", name_.c_str(), executable_.kernel_count(),
                    elapsed.count() / kLaunches);
    }

  private:
    std::string name_;
    const Device& device_;
    Executable executable_;
    Arguments arguments_;
    void* workspace_ = nullptr;
};

double mean_square(const std::vector<double>& values, std::int64_t first, std::int64_t count) {
    double squares = 0;
    for (std::int64_t i = first; i < first + count; ++i) squares += values[i] * values[i];
    return squares / static_cast<double>(count);
}

bool close(const char* what, double got, double expected) {
    const bool good = std::abs(got - expected) <= 0.02 * std::abs(expected);
    if (!good) std::printf("%s is %g, and should be %g\n", what, got, expected);
    return good;
}

bool run_layer(std::int64_t tokens) {
    const Device device = Device::best();
    Engine engine(device);
    const Stream stream = device.create_stream();
    std::printf("%s, %lld tokens\n", device.description().c_str(), static_cast<long long>(tokens));

    const auto wave = [](std::int64_t i) { return std::sin(0.37 * static_cast<double>(i)); };
    const auto zero = [](std::int64_t) { return 0.0; };
    const auto angle = [](std::int64_t i) {  // of column i mod kHeadWidth, at position i / kHeadWidth
        const double pair = static_cast<double>(i % (kHeadWidth / 2));
        return static_cast<double>(i / kHeadWidth) * std::pow(500000.0, -2 * pair / kHeadWidth);
    };
    const Tensor x(device, tokens * kHidden, wave);
    const Tensor residual(device, tokens * kHidden, zero);
    const Tensor weight(device, kHidden, [](std::int64_t) { return 1.0; });
    const Tensor normed(device, tokens * kHidden, zero);
    const Tensor q(device, tokens * kHeads * kHeadWidth, wave);
    const Tensor k(device, tokens * kKvHeads * kHeadWidth, wave);
    const Tensor cos(device, tokens * kHeadWidth, [&](std::int64_t i) { return std::cos(angle(i)); });
    const Tensor sin(device, tokens * kHeadWidth, [&](std::int64_t i) { return std::sin(angle(i)); });
    const Tensor gate(device, tokens * kIntermediate, wave);
    const Tensor up(device, tokens * kIntermediate, [](std::int64_t) { return 2.0; });
    const Tensor product(device, tokens * kIntermediate, zero);

    const Tensor q_rotated(device, tokens * kHeads * kHeadWidth, zero);
    const Tensor k_rotated(device, tokens * kKvHeads * kHeadWidth, zero);
    Op norm("add_rms_norm", engine, residual_norm_graph(), tokens);
    norm.tensor("x", x).tensor("residual", residual).tensor("weight", weight);
    norm.tensor("stream", residual).tensor("y", normed);
    Op rotation("rope q, k", engine, rotation_graph(), tokens);
    rotation.tensor("q", q).tensor("k", k).tensor("cos", cos).tensor("sin", sin).tensor("q_out", q_rotated);
    rotation.tensor("k_out", k_rotated);
    Op mlp("swiglu", engine, gated_mlp_graph(), tokens);
    mlp.tensor("gate", gate).tensor("up", up).tensor("y", product);

    // In a model the projections stand between these, on the same stream.
    for (const Op* op : {&norm, &rotation, &mlp}) op->launch(stream);
    device.synchronize(stream);

    // A normed row has a mean square of 1; a rotation changes no head's length; silu(g)·2.
    const std::int64_t last = tokens - 1;
    const std::int64_t head = (last * kHeads + 3) * kHeadWidth;
    const double g = gate.values().back();
    bool good = close("the mean square of a normed row", mean_square(normed.values(), last * kHidden, kHidden), 1);
    good &= close("the length of a rotated head", mean_square(q_rotated.values(), head, kHeadWidth),
                  mean_square(q.values(), head, kHeadWidth));
    good &= close("a gated activation", product.values().back(), 2 * g / (1 + std::exp(-g)));

    for (const Op* op : {&norm, &rotation, &mlp}) op->time(stream);
    device.destroy_stream(stream);
    return good;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const std::int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 256;
        if (tokens < 1) {
            std::fprintf(stderr, "usage: decoder_layer [TOKENS]\n");
            return 2;
        }
        return run_layer(tokens) ? 0 : 1;
    } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
