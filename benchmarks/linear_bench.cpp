// Losses of a head's logits with their gradients beside the products that they cannot do without: logits of the policy
// and of a reference or teacher, the hidden states' gradient and the weight's, queued alone in chunks of several sizes,
// bf16, by the algorithms that the library takes by itself and by those that rowjit takes. All in one process, in turn,
// round by round; medians. JSON on standard output, a line for each.
//
//     linear_bench [DEVICE [[LOSS:]TOKENSxHIDDENxVOCABULARY …]]
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "base/fail.h"
#include "benchmarks/contenders.h"
#include "dsl/graph.h"
#include "dsl/library/registry.h"
#include "rowjit/engine.h"
#include "rowjit/gradient.h"
#include "runtime/device.h"
#include "runtime/gemm/gemm.h"

using namespace rowjit;

namespace {

constexpr int kRounds = 5;
constexpr std::int64_t kChunkRows[] = {2048, 4096};

// What is timed of the registry. A loss of sequences has rows of `kLength` tokens, one of pairs two halves of them.
struct Loss {
    std::string_view name;
    std::string_view op;
    std::string_view other;  // the input that a second head reads, whose products have no gradient
    std::int64_t tokens_of_row = 1;
    OptionMap options = {};
};

constexpr std::int64_t kLength = 1024;
const Loss kLosses[] = {
    {"cross_entropy", "fused_linear_cross_entropy", ""},
    {"kl_div", "fused_linear_kl_div", "teacher"},
    {"jsd", "fused_linear_jsd", "teacher"},
    {"dpo", "fused_linear_dpo", "reference", 2 * kLength},
    {"orpo", "fused_linear_orpo", "", 2 * kLength},
    {"simpo", "fused_linear_cpo", "", 2 * kLength, {{"loss", "simpo"}}},
    {"kto", "fused_linear_kto", "reference", kLength},
    {"grpo", "fused_linear_policy_loss", "reference", kLength},
};

const Loss& loss_of(const std::string& text) {
    const std::string name = text.substr(0, text.find(':'));
    for (const Loss& loss : kLosses) {
        if (loss.name == name) return loss;
    }
    fail(ErrorCode::kInvalidArgument, "no loss '{}' is timed; give one of {}", name,
         fmt::join(kLosses | std::views::transform(&Loss::name), ", "));
}

// Of one loss and shape, tensors and contenders.
class Bench {
  public:
    Bench(Engine& engine, const Loss& loss, const ProductShape& shape)
        : engine_(engine), device_(engine.device()), loss_(loss), shape_(shape) {
        if (shape.tokens % loss.tokens_of_row != 0)
            fail(ErrorCode::kInvalidArgument, "{} has rows of {} tokens; give a multiple of them", loss.name,
                 loss.tokens_of_row);
        OptionMap options = loss.options;
        options["hidden"] = std::to_string(shape.hidden);
        if (!loss.other.empty()) options[fmt::format("{}_width", loss.other)] = options["hidden"];
        if (loss.tokens_of_row > 1) options["length"] = std::to_string(kLength);
        const Graph graph = make_graph(loss.op, {.columns = shape.columns, .dtype = bf16, .options = options});
        step_ = gradient(graph, {"hidden", "weight"}, {.joint = true, .unit_cotangent = true});
        make_tensors();
    }

    nlohmann::json run() {
        add_plain();
        add_fused("default", {});
        for (const std::int64_t rows : kChunkRows) {
            if (rows < shape_.tokens) add_fused(fmt::format("chunks of {}", rows), {.chunk_rows = rows});
        }
        add_fused("rounded after each chunk", {.round_each_chunk = true});
        add_fused("low memory", {.low_memory = true});
        time_in_turn(device_, kRounds, &contenders_);
        return report();
    }

  private:
    static std::size_t bytes(std::int64_t rows, std::int64_t columns, std::int64_t each) {
        return static_cast<std::size_t>(rows * columns * each);
    }

    void make_tensors() {
        const RowExtents rows = {{"tokens", shape_.tokens / loss_.tokens_of_row}};
        const GraphData& graph = *step_.data();
        const auto add = [&](const std::string& name, const Layout& layout) -> Memory& {
            const auto count = buffer_elements(layout);
            return *(tensors_[name] =
                         std::make_unique<Memory>(device_, static_cast<std::size_t>(count) * size_bytes(layout.dtype)));
        };
        for (NodeId id = 0; id < graph.size(); ++id) {
            const Node& node = graph.node(id);
            if (node.kind != NodeKind::kInput) continue;
            const Layout layout = input_layout(graph, node.name, rows);
            const double scale = node.name.ends_with("weight") ? 0.02 : 0.5;
            const auto classes = static_cast<double>(shape_.columns);
            fill(device_, add(node.name, layout), layout.dtype, buffer_elements(layout), [&](double drawn) {
                return is_float(layout.dtype) ? scale * drawn : std::floor((drawn + 1) / 2 * classes);
            });
        }
        for (const OutputInfo& output : graph.outputs()) add(output.name, output_layout(graph, output.name, rows));
    }

    std::byte* tensor(const std::string& name) const { return static_cast<std::byte*>(tensors_.at(name)->data()); }

    // The products of every chunk, the weight's gradient in bf16 or added up in f32 as the fused form has it.
    void add_plain() {
        std::vector<std::int64_t> sizes(std::begin(kChunkRows), std::end(kChunkRows));
        sizes.push_back(shape_.tokens);
        std::sort(sizes.begin(), sizes.end());
        sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
        std::erase_if(sizes, [&](std::int64_t rows) { return rows > shape_.tokens; });
        logits_ = std::make_unique<Memory>(device_, bytes(shape_.tokens, shape_.columns, 2));
        // Numbers as a loss's gradient has them: how many bits differ from one to the next is power, and so clock.
        gradients_ = std::make_unique<Memory>(device_, bytes(shape_.tokens, shape_.columns, 2));
        const double mean = 1 / static_cast<double>(shape_.columns * shape_.tokens);
        fill(device_, *gradients_, bf16, shape_.tokens * shape_.columns,
             [&](double drawn) { return mean * std::exp(0.5 * drawn); });
        sums_ = std::make_unique<Memory>(device_, bytes(shape_.columns, shape_.hidden, 4));
        for (const bool first_proposal : {true, false}) {
            for (const Dtype sum : {bf16, f32}) {
                for (const std::int64_t rows : sizes) add_plain(rows, sum, first_proposal);
            }
        }
    }

    void add_plain(std::int64_t rows, Dtype sum, bool first_proposal) {
        const std::int64_t h = shape_.hidden;
        const std::int64_t v = shape_.columns;
        const std::int64_t alignment = h % 8 == 0 && v % 8 == 0 ? 16 : 2;
        const auto aligned = [&](GemmType type) {
            type.left_alignment_bytes = type.right_alignment_bytes = type.result_alignment_bytes = alignment;
            type.first_proposal = first_proposal;
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
            {fmt::format("products, {} sums{}", name(sum), first_proposal ? ", as the library has them" : ""), rows,
             workspace, std::make_unique<Work>([=, this, other = std::string(loss_.other), block = std::move(block)] {
                 for (std::int64_t first = 0; first < shape_.tokens; first += rows) {
                     const std::int64_t m = std::min(rows, shape_.tokens - first);
                     const std::int64_t at_row = first * h * 2;
                     void* logits = logits_->data();
                     if (!loss_.other.empty()) {
                         queue(*forward, {m, v, h, h, h, v},
                               {tensor(other + "_hidden") + at_row, tensor(other + "_weight"), logits, false, at});
                     }
                     queue(*forward, {m, v, h, h, h, v},
                           {tensor("hidden") + at_row, tensor("weight"), logits, false, at});
                     const auto* const gradients = static_cast<std::byte*>(gradients_->data()) + first * v * 2;
                     queue(*to_hidden, {m, h, v, v, h, h},
                           {gradients, tensor("weight"), tensor("d_hidden") + at_row, false, at});
                     queue(*to_weight, {v, h, m, v, h, h},
                           {gradients, tensor("hidden") + at_row, sums_->data(), first > 0, at});
                 }
             })});
    }

    static void queue(const Gemm& gemm, const GemmShape& shape, const GemmCall& call) {
        if (const char* refused = gemm.queue(shape, call, nullptr)) fail(ErrorCode::kLaunch, "{}", refused);
    }

    void add_fused(const std::string& what, const ChunkOptions& chunks) {
        auto executable = std::make_shared<Executable>(engine_.compile(step_, nullptr, chunks));
        Arguments arguments = executable->arguments();
        arguments.rows("tokens", shape_.tokens / loss_.tokens_of_row);
        for (const auto& [name, memory] : tensors_) arguments.tensor(name, memory->data());
        const std::size_t workspace = executable->workspace_bytes(arguments);
        auto block = std::make_shared<Memory>(device_, workspace);
        arguments.workspace(block->data(), workspace);
        contenders_.push_back(
            {fmt::format("fused, {}", what), 0, workspace, std::make_unique<Work>([executable, arguments, block] {
                 executable->launch(nullptr, arguments).or_throw();
             })});
    }

    nlohmann::json report() const {
        // Of plain products, the fastest of all chunk sizes.
        const auto best_ms = [&](std::string_view sums, bool first_proposal) {
            double best = 0;
            for (const Contender& one : contenders_) {
                const bool library = one.name.ends_with("has them");
                if (!one.name.starts_with(fmt::format("products, {}", sums)) || library != first_proposal) continue;
                if (best == 0 || one.median_ms() < best) best = one.median_ms();
            }
            return best;
        };
        nlohmann::json json = {{"device", device_.description()},
                               {"loss", loss_.name},
                               {"tokens", shape_.tokens},
                               {"hidden", shape_.hidden},
                               {"vocabulary", shape_.columns},
                               {"products", loss_.other.empty() ? 3 : 4},
                               {"rounds", kRounds},
                               {"contenders", nlohmann::json::array()}};
        for (const Contender& one : contenders_) {
            nlohmann::json record = {{"name", one.name},
                                     {"ms", one.median_ms()},
                                     {"samples_ms", one.samples_ms},
                                     {"workspace_bytes", one.workspace_bytes}};
            if (one.chunk_rows > 0) record["chunk_rows"] = one.chunk_rows;
            if (one.chunk_rows == 0) {
                for (const bool first_proposal : {true, false}) {
                    for (const std::string_view sums : {"bf16", "f32"}) {
                        const std::string over = first_proposal ? "over_library_products" : "over_products";
                        record[fmt::format("{}_with_{}_sums", over, sums)] =
                            one.median_ms() / best_ms(sums, first_proposal);
                    }
                }
            }
            json["contenders"].push_back(std::move(record));
        }
        return json;
    }

    Engine& engine_;
    const Device& device_;
    const Loss& loss_;
    const ProductShape shape_;
    Graph step_;
    std::map<std::string, std::unique_ptr<Memory>> tensors_;
    std::unique_ptr<Memory> logits_;     // of plain products, as what follows
    std::unique_ptr<Memory> gradients_;  // of the logits
    std::unique_ptr<Memory> sums_;       // the weight's gradient
    std::vector<Contender> contenders_;
};

}  // namespace

int main(int argc, char** argv) {
    try {
        Engine engine(argc > 1 ? Device(argv[1]) : Device::best(), {.cache_directory = "off"});
        std::vector<std::string> shapes(argv + std::min(argc, 2), argv + argc);
        if (shapes.empty()) {
            shapes = engine.device().impl().target().is_gpu()
                         ? std::vector<std::string>{"8192x4096x128256", "32768x4096x128256", "16384x2048x151936",
                                                    "dpo:16384x4096x128256"}
                         : std::vector<std::string>{"512x256x4096"};
        }
        for (const std::string& text : shapes) {
            const auto colon = text.find(':');
            const Loss& loss = colon == std::string::npos ? kLosses[0] : loss_of(text);
            const ProductShape shape = product_shape_of(colon == std::string::npos ? text : text.substr(colon + 1));
            fmt::print("{}\n", Bench(engine, loss, shape).run().dump());
            std::fflush(stdout);
        }
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "linear_bench: {}\n", error.what());
        return 1;
    }
}
