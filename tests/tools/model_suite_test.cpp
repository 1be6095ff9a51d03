#include "tools/model_suite.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "dsl/graph.h"
#include "rowjit/gradient.h"
#include "tests/support/refusal.h"
#include "tools/job.h"

using namespace rowjit;

namespace {

const std::vector<std::string> kModels = {"deepseek-v3", "gemma-2-9b",    "gpt-oss-20b",
                                          "llama-3-8b",  "llama-3.2-1b",  "mistral-7b-v0.3",
                                          "phi-3-mini",  "qwen3-30b-a3b", "qwen3-8b"};

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

std::vector<std::string> suite_of_text(const std::string& text) {
    std::vector<std::string> lines;
    for (const SuiteEntry& entry : model_suite(text, "config.json")) lines.push_back(printed(entry));
    return lines;
}

std::vector<std::string> suite_of(const std::string& model) { return suite_of_text(text_of(model)); }

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

TEST_CASE("Qwen3-30B-A3B: a router's softmax, and an MLP of the experts' width for every expert of a token") {
    const Lines lines = suite_of("qwen3-30b-a3b");
    REQUIRE(lines.size() == 8);
    CHECK(lines[5] == "router: softmax 128 bf16 result=f32 x48");
    CHECK(lines[6] == "expert_mlp: swiglu 768 bf16 x48, 8 rows a token");
}

TEST_CASE("gpt-oss-20b: f32 norm weights, half tables, interleaved clipped SwiGLU, a softmax of the chosen experts") {
    CHECK(suite_of("gpt-oss-20b") ==
          Lines{"norm: rms_norm 2880 bf16 casting=gemma eps=1e-05 weight=f32 x1",
                "residual_norm: add_rms_norm 2880 bf16 casting=gemma eps=1e-05 weight=f32 x48",
                "rope: rope_qk 64 bf16 heads=64 kv_heads=8 table=half x24", "router: softmax 4 bf16 x24",
                "expert_mlp: clipped_swiglu 2880 bf16 limit=7 packed=true x24, 4 rows a token",
                "loss: cross_entropy 201088 bf16 x1"});
}

TEST_CASE("DeepSeek-V3: norms of the latents, one rotary key for all heads, dense, expert and shared MLPs") {
    CHECK(suite_of("deepseek-v3") ==
          Lines{"norm: rms_norm 7168 bf16 eps=1e-06 x1", "residual_norm: add_rms_norm 7168 bf16 eps=1e-06 x122",
                "query_norm: rms_norm 1536 bf16 eps=1e-06 x61", "key_norm: rms_norm 512 bf16 eps=1e-06 x61",
                "rope: rope_qk 64 bf16 heads=128 kv_heads=1 pairing=interleaved x61", "gated_mlp: swiglu 18432 bf16 x3",
                "expert_mlp: swiglu 2048 bf16 x58, 8 rows a token", "shared_mlp: swiglu 2048 bf16 x58",
                "loss: cross_entropy 129280 bf16 x1"});
}

TEST_CASE("Mixtral: intermediate_size is an expert's") {
    const Lines lines = suite_of_text(R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "num_experts_per_tok": 2, "vocab_size": 32000, "rms_norm_eps": 1e-05, "hidden_act": "silu"})");
    REQUIRE(lines.size() == 6);
    CHECK(lines[3] == "router: softmax 8 bf16 result=f32 x32");
    CHECK(lines[4] == "expert_mlp: swiglu 14336 bf16 x32, 2 rows a token");
}

TEST_CASE("Qwen2-VL: queries and keys turn by three streams of positions") {
    const std::string config = R"({"model_type": "qwen2_vl", "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
        "rms_norm_eps": 1e-06, "hidden_act": "silu", "rope_scaling": {"type": "mrope", "mrope_section": SECTIONS}})";
    const auto with_sections = [&](const std::string& sections) {
        std::string text = config;
        return text.replace(text.find("SECTIONS"), 8, sections);
    };
    const Lines lines = suite_of_text(with_sections("[16, 24, 24]"));
    REQUIRE(lines.size() == 6);
    CHECK(lines[2] == "query_rope: mrope 128 bf16 heads=28 height=24 width=24 x28");
    CHECK(lines[3] == "key_rope: mrope 128 bf16 heads=4 height=24 width=24 x28");
    CHECK(refused(ErrorCode::kParse, with_sections("[16, 24]")) ==
          "config.json: field 'mrope_section' is [16,24]; it must be three sections of a head's 64 pairs");
    CHECK(refused(ErrorCode::kParse, with_sections("\"16\"")) ==
          "config.json: field 'mrope_section' is \"16\"; it must be a list of integers");
}

TEST_CASE("Gemma: the tanh form whatever hidden_act says, and no post norms") {
    CHECK(suite_of_text(R"({"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
        "vocab_size": 256000, "rms_norm_eps": 1e-06, "hidden_act": "gelu"})") ==
          Lines{"norm: rms_norm 3072 bf16 casting=gemma eps=1e-06 offset=1 x1",
                "residual_norm: add_rms_norm 3072 bf16 casting=gemma eps=1e-06 offset=1 x56",
                "rope: rope_qk 256 bf16 heads=16 kv_heads=16 x28", "gated_mlp: geglu 24576 bf16 form=tanh x28",
                "loss: cross_entropy 256000 bf16 x1"});
}

// As published: what the text's class has by default is not in the file.
TEST_CASE("Gemma 3 with its vision tower: the text's fields, and its class's where they are absent") {
    const Lines lines = suite_of_text(R"({"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27}})");
    CHECK(lines == Lines{"norm: rms_norm 2560 bf16 casting=gemma eps=1e-06 offset=1 x69",
                         "residual_norm: add_rms_norm 2560 bf16 casting=gemma eps=1e-06 offset=1 x68",
                         "query_norm: rms_norm 256 bf16 casting=gemma eps=1e-06 offset=1 x34, 8 rows a token",
                         "key_norm: rms_norm 256 bf16 casting=gemma eps=1e-06 offset=1 x34, 4 rows a token",
                         "rope: rope_qk 256 bf16 heads=8 kv_heads=4 x34", "gated_mlp: geglu 10240 bf16 form=tanh x34",
                         "loss: cross_entropy 262208 bf16 x1"});
}

TEST_CASE("Granite: branches join the stream scaled, and the logits are divided") {
    CHECK(suite_of_text(R"({"model_type": "granite", "hidden_size": 4096, "intermediate_size": 12800,
        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 49155,
        "rms_norm_eps": 1e-05, "hidden_act": "silu", "residual_multiplier": 0.22, "logits_scaling": 16.0})") ==
          Lines{"norm: rms_norm 4096 bf16 eps=1e-05 x81", "residual: scale_add 4096 bf16 scale=0.22 x80",
                "rope: rope_qk 128 bf16 heads=32 kv_heads=8 x40", "gated_mlp: swiglu 12800 bf16 x40",
                "loss: cross_entropy 49155 bf16 temperature=16 x1"});
}

TEST_CASE("OLMo 2: norms behind attention and MLP, and one norm of all heads") {
    CHECK(suite_of_text(R"({"model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100352,
        "rms_norm_eps": 1e-06, "hidden_act": "silu"})") ==
          Lines{"norm: rms_norm 4096 bf16 casting=gemma eps=1e-06 x64",
                "residual_norm: add_rms_norm 4096 bf16 casting=gemma eps=1e-06 x1", "residual: scale_add 4096 bf16 x63",
                "query_norm: rms_norm 4096 bf16 casting=gemma eps=1e-06 x32",
                "key_norm: rms_norm 4096 bf16 casting=gemma eps=1e-06 x32",
                "rope: rope_qk 128 bf16 heads=32 kv_heads=32 x32", "gated_mlp: swiglu 11008 bf16 x32",
                "loss: cross_entropy 100352 bf16 x1"});
}

TEST_CASE("GLM-4: half of each head turns in pairs of neighbours, wherever the configuration says so") {
    nlohmann::json config = nlohmann::json::parse(R"({"model_type": "glm4", "hidden_size": 4096,
        "intermediate_size": 13696, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2,
        "head_dim": 128, "vocab_size": 151552, "rms_norm_eps": 1e-05, "hidden_act": "silu",
        "partial_rotary_factor": 0.5})");
    const Lines lines = suite_of_text(config.dump());
    CHECK(lines == Lines{"norm: rms_norm 4096 bf16 eps=1e-05 x81",
                         "residual_norm: add_rms_norm 4096 bf16 eps=1e-05 x80",
                         "rope: rope_qk 128 bf16 heads=32 kv_heads=2 pairing=interleaved rotary=64 x40",
                         "gated_mlp: swiglu 13696 bf16 packed=true x40", "loss: cross_entropy 151552 bf16 x1"});
    config.erase("partial_rotary_factor");
    CHECK(suite_of_text(config.dump()) == lines);
    config["rope_parameters"] = {{"partial_rotary_factor", 0.25}};
    CHECK(suite_of_text(config.dump())[2] ==
          "rope: rope_qk 128 bf16 heads=32 kv_heads=2 pairing=interleaved rotary=32 x40");
}

TEST_CASE("Nemotron: layer norms, and a squared ReLU without a gate") {
    CHECK(suite_of_text(R"({"model_type": "nemotron", "hidden_size": 3072, "intermediate_size": 9216,
        "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 256000, "norm_eps": 1e-05, "hidden_act": "relu2", "partial_rotary_factor": 0.5})") ==
          Lines{"norm: layer_norm 3072 bf16 eps=1e-05 x1", "residual_norm: add_layer_norm 3072 bf16 eps=1e-05 x64",
                "rope: rope_qk 128 bf16 heads=24 kv_heads=8 rotary=64 x32", "mlp: relu2 9216 bf16 x32",
                "loss: cross_entropy 256000 bf16 x1"});
}

TEST_CASE("SmolLM3: no rotary embedding in every fourth layer, or in those that are listed") {
    nlohmann::json config = nlohmann::json::parse(R"({"model_type": "smollm3", "hidden_size": 2048,
        "intermediate_size": 11008, "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 4,
        "vocab_size": 128256, "rms_norm_eps": 1e-06, "hidden_act": "silu"})");
    CHECK(suite_of_text(config.dump())[2] == "rope: rope_qk 128 bf16 heads=16 kv_heads=4 x5");
    config["no_rope_layers"] = {1, 1, 0, 1, 1, 0};
    CHECK(suite_of_text(config.dump())[2] == "rope: rope_qk 128 bf16 heads=16 kv_heads=4 x4");
    config["no_rope_layers"] = {1, 1};
    CHECK(refused(ErrorCode::kParse, config.dump()) ==
          "config.json: field 'no_rope_layers' is [1,1]; it must be a list of every layer");
}

TEST_CASE("layers of a mixture that have no experts have an MLP of their own width") {
    nlohmann::json config = nlohmann::json::parse(text_of("qwen3-30b-a3b"));
    config["mlp_only_layers"] = {0, 1};
    config["decoder_sparse_step"] = 2;
    const Lines lines = suite_of_text(config.dump());
    REQUIRE(lines.size() == 9);
    CHECK(lines[5] == "gated_mlp: swiglu 6144 bf16 x25");  // the even ones, and layer 1
    CHECK(lines[7] == "expert_mlp: swiglu 768 bf16 x23, 8 rows a token");
    config["num_experts_per_tok"] = 129;
    CHECK(refused(ErrorCode::kParse, config.dump()) ==
          "config.json: field 'num_experts_per_tok' is 129; it must be at most num_experts 128");
}

TEST_CASE("every entry of every shipped model makes a graph and a backward, under a name of its own") {
    for (const std::string& model : kModels) {
        std::set<std::string> names;
        for (const SuiteEntry& entry : model_suite(text_of(model), model)) {
            CAPTURE(entry.name);
            CHECK(names.insert(entry.name).second);
            const Graph graph = make_graph(entry.op, entry.request);
            CHECK(graph.data()->outputs().size() >= 1);
            const std::vector<std::string> trained = trained_inputs(entry.op, graph);
            REQUIRE(!trained.empty());
            CHECK(differentiate(graph, trained).backward.data()->outputs().size() == trained.size());
        }
    }
}

TEST_CASE("--backward of a model is the backward of every kernel of its suite, as often and as large") {
    JobOptions options;
    options.model = ROWJIT_SOURCE_DIR "/examples/models/qwen3-30b-a3b.json";
    const std::vector<Job> forward = make_jobs(options);
    options.backward = true;
    const std::vector<Job> backward = make_jobs(options);
    REQUIRE(backward.size() == forward.size());
    for (std::size_t i = 0; i < forward.size(); ++i) {
        CHECK(backward[i].name == forward[i].name + " backward");
        CHECK(backward[i].per_step == forward[i].per_step);
        CHECK(backward[i].rows_per_token == forward[i].rows_per_token);
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
    CHECK(refused(ErrorCode::kUnsupported, changed("model_type", "mamba")) ==
          "config.json: model_type 'mamba' is not known: which norm, rotary embedding, activation and loss it has is "
          "missing; known: llama, mistral, mixtral, qwen2, qwen2_vl, qwen3, qwen3_moe, gemma, gemma2, gemma3, "
          "gemma3_text, phi3, granite, olmo2, glm4, gpt_oss, nemotron, deepseek_v3, smollm3. Give its operations by "
          "name with --op");
    CHECK(refused(ErrorCode::kUnsupported, changed("hidden_act", "mish")) ==
          "config.json: hidden_act 'mish' is not known; known: silu, gelu_pytorch_tanh, gelu, relu, relu2");
    CHECK(refused(ErrorCode::kUnsupported, changed("hidden_act", "relu2")) ==
          "config.json: hidden_act 'relu2' is not known as a gate");
    CHECK(refused(ErrorCode::kUnsupported, changed("torch_dtype", "float8")) ==
          "config.json: torch_dtype 'float8' is not known; known: bfloat16, float16, float32");
}

TEST_CASE("text that is no JSON object is refused") {
    CHECK(refused(ErrorCode::kParse, "{\"model_type\": ").find("config.json: not JSON") == 0);
    CHECK(refused(ErrorCode::kParse, "").find("config.json: not JSON") == 0);
    CHECK(refused(ErrorCode::kParse, "[1]").find("config.json: not a JSON object") == 0);
}
