#include "tools/model_suite.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "dsl/graph.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

const std::vector<std::string> kModels = {"gemma-2-9b",      "llama-3-8b", "llama-3.2-1b",
                                          "mistral-7b-v0.3", "phi-3-mini", "qwen3-8b"};

std::string text_of(const std::string& model) {
    std::ifstream file(std::string(ROWJIT_SOURCE_DIR "/examples/models/") + model + ".json");
    REQUIRE(file);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string printed(const SuiteEntry& entry) {
    std::string text =
        fmt::format("{}: {} {} {}", entry.name, entry.op, entry.request.columns, name(entry.request.dtype));
    for (const auto& [option, value] : entry.request.options) text += fmt::format(" {}={}", option, value);
    text += fmt::format(" x{}", entry.count_per_step);
    if (entry.rows_per_token != 1) text += fmt::format(", {} rows a token", entry.rows_per_token);
    return text;
}

std::vector<std::string> suite_of(const std::string& model) {
    std::vector<std::string> lines;
    for (const SuiteEntry& entry : model_suite(text_of(model), model)) lines.push_back(printed(entry));
    return lines;
}

// Llama-3-8B's configuration with one field set, or taken out when `value` is null.
std::string changed(const std::string& field, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(text_of("llama-3-8b"));
    if (value.is_null()) {
        config.erase(field);
    } else {
        config[field] = value;
    }
    return config.dump();
}

std::string refused(ErrorCode code, const std::string& text) {
    return refusal(code, [&] { model_suite(text, "config.json"); });
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("Llama-3-8B: a fused residual norm twice a layer, grouped heads, SwiGLU") {
    CHECK(suite_of("llama-3-8b") == Lines{"norm: rms_norm 4096 bf16 eps=1e-05 x1",
                                          "residual_norm: add_rms_norm 4096 bf16 eps=1e-05 x64",
                                          "rope: rope_qk 128 bf16 heads=32 kv_heads=8 x32",
                                          "gated_mlp: swiglu 14336 bf16 x32", "loss: cross_entropy 128256 bf16 x1"});
}

TEST_CASE("Llama-3.2-1B: heads of 64") {
    CHECK(suite_of("llama-3.2-1b") == Lines{"norm: rms_norm 2048 bf16 eps=1e-05 x1",
                                            "residual_norm: add_rms_norm 2048 bf16 eps=1e-05 x32",
                                            "rope: rope_qk 64 bf16 heads=32 kv_heads=8 x16",
                                            "gated_mlp: swiglu 8192 bf16 x16", "loss: cross_entropy 128256 bf16 x1"});
}

TEST_CASE("Mistral-7B-v0.3: llama's kernels at its own vocabulary") {
    CHECK(suite_of("mistral-7b-v0.3") ==
          Lines{"norm: rms_norm 4096 bf16 eps=1e-05 x1", "residual_norm: add_rms_norm 4096 bf16 eps=1e-05 x64",
                "rope: rope_qk 128 bf16 heads=32 kv_heads=8 x32", "gated_mlp: swiglu 14336 bf16 x32",
                "loss: cross_entropy 32768 bf16 x1"});
}

TEST_CASE("Qwen3-8B: a norm of every query and key head") {
    CHECK(suite_of("qwen3-8b") == Lines{"norm: rms_norm 4096 bf16 eps=1e-06 x1",
                                        "residual_norm: add_rms_norm 4096 bf16 eps=1e-06 x72",
                                        "query_norm: rms_norm 128 bf16 eps=1e-06 x36, 32 rows a token",
                                        "key_norm: rms_norm 128 bf16 eps=1e-06 x36, 8 rows a token",
                                        "rope: rope_qk 128 bf16 heads=32 kv_heads=8 x36",
                                        "gated_mlp: swiglu 12288 bf16 x36", "loss: cross_entropy 151936 bf16 x1"});
}

TEST_CASE("Gemma-2-9B: gemma casting with offset 1, post norms, GeGLU, softcapped logits") {
    CHECK(suite_of("gemma-2-9b") == Lines{"norm: rms_norm 3584 bf16 casting=gemma eps=1e-06 offset=1 x85",
                                          "residual_norm: add_rms_norm 3584 bf16 casting=gemma eps=1e-06 offset=1 x84",
                                          "rope: rope_qk 256 bf16 heads=16 kv_heads=8 x42",
                                          "gated_mlp: geglu 14336 bf16 form=tanh x42",
                                          "loss: cross_entropy 256000 bf16 softcap=30 x1"});
}

TEST_CASE("Phi-3-mini: a packed gate and up") {
    CHECK(suite_of("phi-3-mini") ==
          Lines{"norm: rms_norm 3072 bf16 eps=1e-05 x1", "residual_norm: add_rms_norm 3072 bf16 eps=1e-05 x64",
                "rope: rope_qk 96 bf16 heads=32 kv_heads=32 x32", "gated_mlp: swiglu 8192 bf16 packed=true x32",
                "loss: cross_entropy 32064 bf16 x1"});
}

TEST_CASE("a mixture of experts has a router's softmax, and its MLP runs for every expert of a token") {
    const std::string config = R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "vocab_size": 151936, "rms_norm_eps": 1e-06,
        "hidden_act": "silu"})";
    Lines lines;
    for (const SuiteEntry& entry : model_suite(config, "moe")) lines.push_back(printed(entry));
    REQUIRE(lines.size() == 8);
    CHECK(lines[5] == "router: softmax 128 bf16 result=f32 x48");
    CHECK(lines[6] == "gated_mlp: swiglu 768 bf16 x48, 8 rows a token");
}

TEST_CASE("every entry of every shipped model makes a graph under a name of its own") {
    for (const std::string& model : kModels) {
        std::set<std::string> names;
        for (const SuiteEntry& entry : model_suite(text_of(model), model)) {
            CAPTURE(entry.name);
            CHECK(names.insert(entry.name).second);
            CHECK(make_graph(entry.op, entry.request).data()->outputs().size() >= 1);
        }
    }
}

TEST_CASE("a configuration without key-value heads or head width derives them as transformers does") {
    nlohmann::json config = nlohmann::json::parse(text_of("llama-3.2-1b"));
    config.erase("num_key_value_heads");
    config.erase("head_dim");
    const std::vector<SuiteEntry> suite = model_suite(config.dump(), "config.json");
    CHECK(printed(suite[2]) == "rope: rope_qk 64 bf16 heads=32 kv_heads=32 x16");
}

TEST_CASE("a partial rotary factor sets the rotary width") {
    const std::vector<SuiteEntry> suite = model_suite(changed("partial_rotary_factor", 0.75), "config.json");
    CHECK(suite[2].request.options.at("rotary") == "96");
}

TEST_CASE("each field that is needed is named when it is missing") {
    for (const char* field : {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
                              "num_attention_heads", "vocab_size", "rms_norm_eps", "hidden_act"}) {
        CHECK(refused(ErrorCode::kParse, changed(field, nullptr)) ==
              fmt::format("config.json: field '{}' is missing; take the model's whole config.json", field));
    }
}

TEST_CASE("a field of the wrong type or sign is refused with its value") {
    CHECK(refused(ErrorCode::kParse, changed("hidden_size", "4096")) ==
          "config.json: field 'hidden_size' is \"4096\"; it must be a positive integer up to 2^30");
    CHECK(refused(ErrorCode::kParse, changed("num_hidden_layers", -1)) ==
          "config.json: field 'num_hidden_layers' is -1; it must be a positive integer up to 2^30");
    CHECK(refused(ErrorCode::kParse, changed("vocab_size", std::int64_t{1} << 40)) ==
          "config.json: field 'vocab_size' is 1099511627776; it must be a positive integer up to 2^30");
    CHECK(refused(ErrorCode::kParse, changed("head_dim", 127)) ==
          "config.json: field 'head_dim' is 127; it must be such that an even part of a head's 127 elements rotates");
    CHECK(refused(ErrorCode::kParse, changed("rms_norm_eps", "small")) ==
          "config.json: field 'rms_norm_eps' is \"small\"; it must be a number");
    CHECK(refused(ErrorCode::kParse, changed("hidden_act", 7)) ==
          "config.json: field 'hidden_act' is 7; it must be a string");
    CHECK(refused(ErrorCode::kParse, changed("num_attention_heads", 30)) ==
          "config.json: field 'num_attention_heads' is 30; it must be a divisor of hidden_size 4096");
    CHECK(refused(ErrorCode::kParse, changed("partial_rotary_factor", 1.5)) ==
          "config.json: field 'partial_rotary_factor' is 1.5; it must be such that an even part of a head's 128 "
          "elements rotates");
}

TEST_CASE("what is not known is refused and the known ones are named") {
    CHECK(
        refused(ErrorCode::kUnsupported, changed("model_type", "mamba")) ==
        "config.json: model_type 'mamba' is not known; known: llama, mistral, qwen2, qwen3, qwen3_moe, gemma, gemma2, "
        "phi3");
    CHECK(refused(ErrorCode::kUnsupported, changed("hidden_act", "relu")) ==
          "config.json: hidden_act 'relu' is not known; known: silu, gelu_pytorch_tanh, gelu");
    CHECK(refused(ErrorCode::kUnsupported, changed("torch_dtype", "float8")) ==
          "config.json: torch_dtype 'float8' is not known; known: bfloat16, float16, float32");
}

TEST_CASE("text that is no JSON object is refused") {
    CHECK(refused(ErrorCode::kParse, "{\"model_type\": ").find("config.json: not JSON") == 0);
    CHECK(refused(ErrorCode::kParse, "").find("config.json: not JSON") == 0);
    CHECK(refused(ErrorCode::kParse, "[1]").find("config.json: not a JSON object") == 0);
}
