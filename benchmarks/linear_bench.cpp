// A fused linear cross-entropy with its gradients beside the products that it cannot do without: logits, the hidden
// states' gradient and the weight's, queued alone in chunks of several sizes, bf16. All in one process, in turn, round
// by round; medians. JSON on standard output, a line for each shape.
//
//     linear_bench [DEVICE [TOKENSxHIDDENxVOCABULARY …]]
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/fail.h"
#include "dsl/library/registry.h"
#include "rowjit/engine.h"
#include "rowjit/gradient.h"
#include "runtime/device.h"
#include "runtime/gemm/gemm.h"

using namespace rowjit;

namespace {

constexpr int kRounds = 7;
constexpr std::int64_t kChunkRows[] = {512, 1024, 2048, 4096};
constexpr std::int64_t kPartColumns[] = {1024, 2048, 4096};
constexpr std::int64_t kLowBytes = std::int64_t{64} << 20;

struct Shape {
    std::int64_t tokens;
    std::int64_t hidden;
    std::int64_t vocabulary;
};

Shape shape_of(const std::string& text) {
    std::int64_t sides[3] = {};
    const char* at = text.data();
    for (std::int64_t& side : sides) {
        const auto [end, error] = std::from_chars(at, text.data() + text.size(), side);
        if (error != std::errc() || side < 1)
            fail(ErrorCode::kInvalidArgument, "'{}' is no shape; give TOKENSxHIDDENxVOCABULARY", text);
        at = end + (end < text.data() + text.size() ? 1 : 0);
    }
    return {sides[0], sides[1], sides[2]};
}

class Memory {
  public:
    Memory(const Device& device, std::size_t bytes) : device_(device), data_(device.allocate(bytes)) {}
    ~Memory() { device_.release(data_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    void* data() const { return data_; }

  private:
    const Device& device_;
    void* data_;
};

// Random bf16 of this size, by doubling a block of them.
void fill(const Device& device, const Memory& memory, std::int64_t elements, float scale) {
    const std::int64_t drawn = std::min<std::int64_t>(elements, 1 << 20);
    std::vector<std::uint16_t> block(static_cast<std::size_t>(drawn));
    std::uint64_t state = 88172645463325252ULL;
    for (std::uint16_t& value : block) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        value = f32_to_bf16(scale * (static_cast<float>(state >> 40) / static_cast<float>(1 << 23) - 1));
    }
    device.copy_to_device(memory.data(), block.data(), block.size() * 2);
    auto* bytes = static_cast<std::byte*>(memory.data());
    for (std::int64_t done = drawn; done < elements;) {
        const std::int64_t next = std::min(done, elements - done);
        device.impl().copy_on_device(bytes + done * 2, bytes, static_cast<std::size_t>(next) * 2, nullptr);
        done += next;
    }
}

class Work : public TimedWork {
  public:
    explicit Work(std::function<void()> queue) : queue_(std::move(queue)) {}
    void queue(int /*repetition*/) const override { queue_(); }

  private:
    std::function<void()> queue_;
};

struct Contender {
    std::string name;
    std::int64_t chunk_rows = 0;  // of plain products
    std::size_t workspace_bytes = 0;
    std::unique_ptr<Work> work;
    std::vector<double> samples_ms = {};

    double median_ms() const {
        std::vector<double> sorted = samples_ms;
        std::sort(sorted.begin(), sorted.end());
        return sorted[sorted.size() / 2];
    }
};

// Of one shape, tensors and contenders.
class Bench {
  public:
    Bench(Engine& engine, const Shape& shape)
        : engine_(engine),
          device_(engine.device()),
          shape_(shape),
          hidden_(device_, bytes(shape.tokens, shape.hidden, 2)),
          weight_(device_, bytes(shape.vocabulary, shape.hidden, 2)),
          target_(device_, bytes(shape.tokens, 1, 8)),
          loss_(device_, 4),
          d_hidden_(device_, bytes(shape.tokens, shape.hidden, 2)),
          d_weight_(device_, bytes(shape.vocabulary, shape.hidden, 4)) {
        fill(device_, hidden_, shape.tokens * shape.hidden, 0.5F);
        fill(device_, weight_, shape.vocabulary * shape.hidden, 0.02F);
        std::vector<std::int64_t> targets(static_cast<std::size_t>(shape.tokens));
        for (std::size_t i = 0; i < targets.size(); ++i)
            targets[i] = static_cast<std::int64_t>(i) * 7919 % shape.vocabulary;
        device_.copy_to_device(target_.data(), targets.data(), targets.size() * 8);
    }

    nlohmann::json run() {
        add_plain();
        add_fused("default", {});
        add_fused("rounded after each chunk", {.round_each_chunk = true});
        add_fused("low memory", {.low_memory = true});
        for (const std::int64_t columns : kPartColumns)
            add_fused(fmt::format("low memory, parts of {}", columns),
                      {.workspace_limit_bytes = kLowBytes, .low_memory = true, .part_columns = columns});
        for (Contender& contender : contenders_) device_.impl().time_ms(nullptr, 1, *contender.work);
        for (int round = 0; round < kRounds; ++round) {
            for (Contender& contender : contenders_)
                contender.samples_ms.push_back(device_.impl().time_ms(nullptr, 1, *contender.work)[0]);
        }
        return report();
    }

  private:
    static std::size_t bytes(std::int64_t rows, std::int64_t columns, std::int64_t each) {
        return static_cast<std::size_t>(rows * columns * each);
    }

    // The three products of every chunk, the weight's gradient in bf16 or added up in f32 as the fused form has it.
    void add_plain() {
        std::vector<std::int64_t> sizes(std::begin(kChunkRows), std::end(kChunkRows));
        sizes.push_back(shape_.tokens);
        std::sort(sizes.begin(), sizes.end());
        sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
        std::erase_if(sizes, [&](std::int64_t rows) { return rows > shape_.tokens; });
        logits_ = std::make_unique<Memory>(device_, bytes(shape_.tokens, shape_.vocabulary, 2));
        fill(device_, *logits_, std::min<std::int64_t>(shape_.tokens, 512) * shape_.vocabulary, 0.01F);
        for (const Dtype sum : {bf16, f32}) {
            for (const std::int64_t rows : sizes) add_plain(rows, sum);
        }
    }

    void add_plain(std::int64_t rows, Dtype sum) {
        const std::int64_t h = shape_.hidden;
        const std::int64_t v = shape_.vocabulary;
        const std::int64_t alignment = h % 8 == 0 && v % 8 == 0 ? 16 : 2;
        const auto aligned = [&](GemmType type) {
            type.left_alignment_bytes = type.right_alignment_bytes = type.result_alignment_bytes = alignment;
            return type;
        };
        const auto make = [&](const GemmType& type, const GemmShape& shape) {
            return device_.impl().make_gemm(aligned(type), shape, nullptr);
        };
        const auto forward = make({bf16, bf16, bf16, false, true}, {0, v, h});
        const auto to_hidden = make({bf16, bf16, bf16, false, false}, {0, h, v});
        const auto to_weight = make({bf16, bf16, sum, true, false}, {v, h, 0});
        const GemmShape of_logits = {rows, v, h, h, h, v};
        const GemmShape of_hidden = {rows, h, v, v, h, h};
        const GemmShape of_weight = {v, h, rows, v, h, h};
        const std::size_t workspace =
            std::max({forward->workspace_bytes(of_logits), to_hidden->workspace_bytes(of_hidden),
                      to_weight->workspace_bytes(of_weight)});
        auto block = std::make_shared<Memory>(device_, workspace + kGemmWorkspaceAlignment);
        auto* at = static_cast<std::byte*>(block->data());
        at += (0 - reinterpret_cast<std::uintptr_t>(at)) % kGemmWorkspaceAlignment;
        contenders_.push_back(
            {fmt::format("products, {} sums", name(sum)), rows, workspace,
             std::make_unique<Work>([=, this, block = std::move(block)] {
                 for (std::int64_t first = 0; first < shape_.tokens; first += rows) {
                     const std::int64_t m = std::min(rows, shape_.tokens - first);
                     auto* hidden = static_cast<std::byte*>(hidden_.data()) + first * h * 2;
                     auto* d_hidden = static_cast<std::byte*>(d_hidden_.data()) + first * h * 2;
                     queue(*forward, {m, v, h, h, h, v}, {hidden, weight_.data(), logits_->data(), false, at});
                     queue(*to_hidden, {m, h, v, v, h, h}, {logits_->data(), weight_.data(), d_hidden, false, at});
                     queue(*to_weight, {v, h, m, v, h, h}, {logits_->data(), hidden, d_weight_.data(), first > 0, at});
                 }
             })});
    }

    static void queue(const Gemm& gemm, const GemmShape& shape, const GemmCall& call) {
        if (const char* refused = gemm.queue(shape, call, nullptr)) fail(ErrorCode::kLaunch, "{}", refused);
    }

    void add_fused(const std::string& what, const ChunkOptions& chunks) {
        const Graph loss = make_graph(
            "fused_linear_cross_entropy",
            {.columns = shape_.vocabulary, .dtype = bf16, .options = {{"hidden", std::to_string(shape_.hidden)}}});
        const Graph step = gradient(loss, {"hidden", "weight"}, {.joint = true, .unit_cotangent = true});
        auto executable = std::make_shared<Executable>(engine_.compile(step, nullptr, chunks));
        Arguments arguments = executable->arguments();
        arguments.rows("tokens", shape_.tokens)
            .tensor("hidden", hidden_.data())
            .tensor("weight", weight_.data())
            .tensor("target", target_.data())
            .tensor("loss", loss_.data())
            .tensor("d_hidden", d_hidden_.data())
            .tensor("d_weight", d_weight_.data());
        const std::size_t workspace = executable->workspace_bytes(arguments);
        auto block = std::make_shared<Memory>(device_, workspace);
        arguments.workspace(block->data(), workspace);
        contenders_.push_back(
            {fmt::format("fused, {}", what), 0, workspace, std::make_unique<Work>([executable, arguments, block] {
                 executable->launch(nullptr, arguments).or_throw();
             })});
    }

    nlohmann::json report() const {
        double best_ms[2] = {0, 0};  // of plain products with bf16 and f32 sums
        const auto kind = [](const Contender& one) { return one.name.find("f32") != std::string::npos ? 1 : 0; };
        for (const Contender& one : contenders_) {
            double& best = best_ms[kind(one)];
            if (one.chunk_rows > 0 && (best == 0 || one.median_ms() < best)) best = one.median_ms();
        }
        nlohmann::json json = {
            {"device", device_.description()}, {"tokens", shape_.tokens}, {"hidden", shape_.hidden},
            {"vocabulary", shape_.vocabulary}, {"rounds", kRounds},       {"contenders", nlohmann::json::array()}};
        for (const Contender& one : contenders_) {
            nlohmann::json record = {{"name", one.name},
                                     {"ms", one.median_ms()},
                                     {"samples_ms", one.samples_ms},
                                     {"workspace_bytes", one.workspace_bytes}};
            if (one.chunk_rows > 0) record["chunk_rows"] = one.chunk_rows;
            if (one.chunk_rows == 0) {
                record["over_products_with_bf16_sums"] = one.median_ms() / best_ms[0];
                record["over_products_with_f32_sums"] = one.median_ms() / best_ms[1];
            }
            json["contenders"].push_back(std::move(record));
        }
        return json;
    }

    Engine& engine_;
    const Device& device_;
    const Shape shape_;
    Memory hidden_;
    Memory weight_;
    Memory target_;
    Memory loss_;
    Memory d_hidden_;
    Memory d_weight_;
    std::unique_ptr<Memory> logits_;
    std::vector<Contender> contenders_;
};

}  // namespace

int main(int argc, char** argv) {
    try {
        Engine engine(argc > 1 ? Device(argv[1]) : Device::best(), {.cache_directory = "off"});
        std::vector<std::string> shapes(argv + std::min(argc, 2), argv + argc);
        if (shapes.empty()) {
            shapes = engine.device().impl().target().is_gpu()
                         ? std::vector<std::string>{"8192x4096x128256", "32768x4096x128256", "16384x2048x151936"}
                         : std::vector<std::string>{"512x256x4096"};
        }
        for (const std::string& text : shapes) fmt::print("{}\n", Bench(engine, shape_of(text)).run().dump());
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "linear_bench: {}\n", error.what());
        return 1;
    }
}
