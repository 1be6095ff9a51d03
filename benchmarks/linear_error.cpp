// How far the weight's gradient of a head's loss is from exact, by the way it is added up over chunks of rows: in f32
// and rounded once, as the default does, in parts without an accumulator, or rounded after every chunk. Errors are in
// units in the last place of bf16 (dsl/accuracy.h), beside those of the unfused computation, whose one product over all
// rows is rounded once. On the CPU. JSON on standard output, a line for each loss.
//
//     linear_error
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "dsl/accuracy.h"
#include "dsl/interpret.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/engine.h"
#include "rowjit/gradient.h"
#include "runtime/verify.h"

using namespace rowjit;

namespace {

constexpr std::int64_t kTokens = 2048;
constexpr std::int64_t kVocabulary = 1000;
constexpr std::int64_t kLength = 16;
constexpr std::int64_t kChunkRows[] = {512, 128, 32};
constexpr std::string_view kGradient = "d_weight";

struct Loss {
    std::string_view op;
    std::int64_t tokens_of_row = 1;
};

constexpr Loss kLosses[] = {{"fused_linear_cross_entropy"},
                            {"fused_linear_jsd"},
                            {"fused_linear_dpo", 2 * kLength},
                            {"fused_linear_kto", kLength}};

struct Way {
    std::string_view name;
    ChunkOptions chunks;
};

constexpr Way kWays[] = {
    {"f32, rounded once", {}},
    {"low memory", {.low_memory = true, .part_columns = 256}},
    {"rounded after each chunk", {.round_each_chunk = true}},
};

nlohmann::json errors_of(Engine& engine, const Loss& loss) {
    OptionMap options = {{"hidden", "64"}};
    if (loss.tokens_of_row > 1) options["length"] = std::to_string(kLength);
    const Graph graph = make_graph(loss.op, {.columns = kVocabulary, .dtype = bf16, .options = options});
    const Graph step = gradient(graph, {"hidden", "weight"}, {.joint = true, .unit_cotangent = true});
    const Bindings bindings =
        random_inputs(*step.data(), {{"tokens", kTokens / loss.tokens_of_row}}, {.seed = 1, .scale = 0.5});
    const Tensor exact = interpret(*step.data(), bindings, Rounding::kExact).at(std::string(kGradient));
    const Tensor eager = interpret(*step.data(), bindings, Rounding::kEager).at(std::string(kGradient));
    nlohmann::json json = {{"loss", loss.op}, {"tokens", kTokens}, {"hidden", 64}, {"vocabulary", kVocabulary}};
    for (const Way& way : kWays) {
        for (const std::int64_t rows : kChunkRows) {
            ChunkOptions chunks = way.chunks;
            chunks.chunk_rows = rows;
            const Tensors got = run(engine.device(), engine.compile(step, nullptr, chunks), *step.data(), bindings);
            const ErrorReport report = compare(got.at(std::string(kGradient)), exact, eager, Dtype::kBf16);
            json["unfused"] = {{"mean", report.eager_mean_error}, {"max", report.eager_max_error}};
            json["ways"].push_back(
                {{"name", way.name}, {"chunk_rows", rows}, {"mean", report.mean_error}, {"max", report.max_error}});
        }
    }
    return json;
}

}  // namespace

int main() {
    try {
        Engine engine(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
        for (const Loss& loss : kLosses) {
            fmt::print("{}\n", errors_of(engine, loss).dump());
            std::fflush(stdout);
        }
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "linear_error: {}\n", error.what());
        return 1;
    }
}
