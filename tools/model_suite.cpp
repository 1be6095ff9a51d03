#include "tools/model_suite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/fail.h"

namespace rowjit {
namespace {

// How what attention or the MLP gives joins the residual stream.
enum class Residual : std::uint8_t {
    kPreNorm,      // x + f(norm(x))
    kSandwich,     // x + norm(f(norm(x)))
    kPostNorm,     // x + norm(f(x))
    kScaledBranch  // x + s·f(norm(x)), s the configuration's residual_multiplier
};

enum class HeadNorms : std::uint8_t {
    kNone,
    kEachHead,  // a row for every head
    kAllHeads,  // one row of all the heads of a token
    kLatents,   // multi-head latent attention: of the low-rank queries and keys, before they are projected to heads
};

enum class Router : std::uint8_t {
    kNone,
    kAllExperts,     // softmax in f32, then the largest are taken
    kChosenExperts,  // the largest are taken, then softmax in the logits' dtype
    kSigmoid,        // no row of it depends on another element: not a kernel of the catalogue
};

// What an architecture's modelling code fixes, from the classes of that name in Hugging Face transformers.
struct Architecture {
    std::string_view model_type;
    std::string_view norm = "rms_norm";
    std::string_view eps = "rms_norm_eps";  // the field
    std::string_view casting = "llama";     // of an RMS norm
    int norm_offset = 0;                    // added to an RMS norm's weight
    bool f32_norm_weights = false;          // of the layers' norms, whatever the model's dtype
    HeadNorms head_norms = HeadNorms::kNone;
    Residual residual = Residual::kPreNorm;
    std::string_view rotary = "rope_qk";  // mrope turns queries and keys apart
    std::string_view pairing = "half";
    std::string_view table = "full";  // of cosines and sines
    bool skips_rotary = false;        // in the layers that no_rope_layers names
    bool gated = true;                // the MLP's activation
    bool packed_gate_up = false;      // one projection gives gate and up side by side
    // The gated activation, where hidden_act does not say it.
    std::string_view activation_op = "";
    // Where hidden_activation says it, what it is when that is absent. Gemma's published hidden_act says gelu, and
    // transformers runs the tanh form all the same.
    std::string_view activation = "";
    Router router = Router::kNone;
    std::string_view experts = "num_experts";                   // the field
    std::string_view expert_columns = "moe_intermediate_size";  // the field
    bool softcapped_logits = false;                             // by final_logit_softcapping, where it is given
    bool scaled_logits = false;                                 // by logits_scaling
    // Fields that published configurations leave to the configuration class.
    std::string_view defaults = "{}";
};

// With its vision tower, and as a language model alone.
constexpr Architecture gemma3(std::string_view model_type) {
    return {.model_type = model_type,
            .casting = "gemma",
            .norm_offset = 1,
            .head_norms = HeadNorms::kEachHead,
            .residual = Residual::kSandwich,
            .activation = "gelu_pytorch_tanh",
            .softcapped_logits = true,
            .defaults = R"({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                            "vocab_size": 262208, "rms_norm_eps": 1e-06})"};
}

constexpr std::array kArchitectures = {
    Architecture{.model_type = "llama"},
    Architecture{.model_type = "mistral"},
    Architecture{.model_type = "mixtral",
                 .router = Router::kAllExperts,
                 .experts = "num_local_experts",
                 .expert_columns = "intermediate_size"},
    Architecture{.model_type = "qwen2"},
    Architecture{.model_type = "qwen2_vl", .rotary = "mrope"},
    Architecture{.model_type = "qwen3", .head_norms = HeadNorms::kEachHead},
    Architecture{.model_type = "qwen3_moe", .head_norms = HeadNorms::kEachHead, .router = Router::kAllExperts},
    Architecture{.model_type = "gemma", .casting = "gemma", .norm_offset = 1, .activation = "gelu_pytorch_tanh"},
    Architecture{.model_type = "gemma2",
                 .casting = "gemma",
                 .norm_offset = 1,
                 .residual = Residual::kSandwich,
                 .activation = "gelu_pytorch_tanh",
                 .softcapped_logits = true},
    gemma3("gemma3"),
    gemma3("gemma3_text"),
    Architecture{.model_type = "phi3", .packed_gate_up = true},
    Architecture{.model_type = "granite", .residual = Residual::kScaledBranch, .scaled_logits = true},
    Architecture{
        .model_type = "olmo2", .casting = "gemma", .head_norms = HeadNorms::kAllHeads, .residual = Residual::kPostNorm},
    Architecture{.model_type = "glm4",
                 .residual = Residual::kSandwich,
                 .pairing = "interleaved",
                 .packed_gate_up = true,
                 .defaults = R"({"partial_rotary_factor": 0.5})"},
    Architecture{.model_type = "gpt_oss",
                 .casting = "gemma",
                 .f32_norm_weights = true,
                 .table = "half",
                 .packed_gate_up = true,
                 .activation_op = "clipped_swiglu",
                 .router = Router::kChosenExperts,
                 .experts = "num_local_experts",
                 .expert_columns = "intermediate_size"},
    // Its layer norm multiplies by weight + 1, which is a row of the weight's length, added before.
    Architecture{.model_type = "nemotron",
                 .norm = "layer_norm",
                 .eps = "norm_eps",
                 .gated = false,
                 .defaults = R"({"partial_rotary_factor": 0.5})"},
    Architecture{.model_type = "deepseek_v3",
                 .head_norms = HeadNorms::kLatents,
                 .pairing = "interleaved",
                 .router = Router::kSigmoid,
                 .experts = "n_routed_experts"},
    Architecture{.model_type = "smollm3", .skips_rotary = true, .defaults = R"({"no_rope_layer_interval": 4})"},
};

// An activation as transformers' ACT2FN names it, alone and as a gate; "" where the catalogue has none.
struct Activation {
    std::string_view name;
    std::string_view plain;
    std::string_view gated;
    std::string_view form;  // an option of both
};

constexpr std::array kActivations = {
    Activation{"silu", "silu", "swiglu", ""},   Activation{"gelu_pytorch_tanh", "gelu", "geglu", "tanh"},
    Activation{"gelu", "gelu", "geglu", "erf"}, Activation{"relu", "relu", "reglu", ""},
    Activation{"relu2", "relu2", "", ""},
};

struct TorchDtype {
    std::string_view name;
    Dtype dtype;
};

constexpr std::array kTorchDtypes = {
    TorchDtype{"bfloat16", Dtype::kBf16},
    TorchDtype{"float16", Dtype::kF16},
    TorchDtype{"float32", Dtype::kF32},
};

// Extents are 32-bit in emitted code, and a packed gate-up row has two of them.
constexpr std::int64_t kMost = std::int64_t{1} << 30;

// A configuration's fields; every failure names the file and the field. A language model inside another keeps its
// fields in text_config.
class Config {
  public:
    Config(std::string_view text, std::string_view source) : source_(source) {
        try {
            json_ = nlohmann::json::parse(text);
        } catch (const nlohmann::json::parse_error& error) {
            fail(ErrorCode::kParse, "{}: not JSON: {}; give a Hugging Face config.json", source_, error.what());
        }
        if (!json_.is_object()) {
            fail(ErrorCode::kParse, "{}: not a JSON object; give a Hugging Face config.json", source_);
        }
        if (!json_.contains("text_config") || !json_["text_config"].is_object()) return;
        nlohmann::json text_config = json_["text_config"];
        text_config.erase("model_type");
        json_.update(text_config);
    }

    const std::string& source() const { return source_; }

    // Fields for those that are absent, or null.
    void add_defaults(std::string_view object) {
        const nlohmann::json defaults = nlohmann::json::parse(object);
        for (const auto& [field, value] : defaults.items()) {
            if (!has(field)) json_[field] = value;
        }
    }

    // Present and not null.
    bool has(std::string_view field) const { return json_.contains(field) && !json_[field].is_null(); }

    std::int64_t positive(std::string_view field) const {
        const std::int64_t number = count(field);
        if (number == 0) refuse(field, "a positive integer up to 2^30");
        return number;
    }

    // Of a field that may be 0; where it is absent it is `otherwise`.
    std::int64_t count_or(std::string_view field, std::int64_t otherwise) const {
        return has(field) ? count(field) : otherwise;
    }

    double number(std::string_view field) const {
        const nlohmann::json& value = required(field);
        if (!value.is_number()) refuse(field, "a number");
        return value.get<double>();
    }

    std::string word(std::string_view field) const {
        const nlohmann::json& value = required(field);
        if (!value.is_string()) refuse(field, "a string");
        return value.get<std::string>();
    }

    bool flag_or(std::string_view field, bool otherwise) const {
        if (!has(field)) return otherwise;
        if (!json_[field].is_boolean()) refuse(field, "true or false");
        return json_[field].get<bool>();
    }

    // Empty where the field is absent.
    std::vector<std::int64_t> integers(std::string_view field) const {
        return has(field) ? integers_of(json_[field], field) : std::vector<std::int64_t>{};
    }

    // A field of how positions turn, which newer configurations keep in rope_parameters, and older ones in rope_scaling
    // or beside the others.
    const nlohmann::json* rotary_field(std::string_view field) const {
        for (const std::string_view place : {"rope_parameters", "rope_scaling"}) {
            if (!has(place) || !json_[place].is_object() || !json_[place].contains(field)) continue;
            return &json_[place][field];
        }
        return has(field) ? &json_[field] : nullptr;
    }

    std::vector<std::int64_t> integers_of(const nlohmann::json& value, std::string_view field) const {
        bool fits = value.is_array();
        for (const nlohmann::json& one : value) fits = fits && one.is_number_integer();
        if (!fits) wrong(value, field, "a list of integers");
        return value.get<std::vector<std::int64_t>>();
    }

    [[noreturn]] void refuse(std::string_view field, std::string_view expected) const {
        wrong(json_[field], field, expected);
    }

    [[noreturn]] void wrong(const nlohmann::json& value, std::string_view field, std::string_view expected) const {
        fail(ErrorCode::kParse, "{}: field '{}' is {}; it must be {}", source_, field, value.dump(), expected);
    }

    [[noreturn]] void missing(std::string_view field) const {
        fail(ErrorCode::kParse, "{}: field '{}' is missing; take the model's whole config.json", source_, field);
    }

  private:
    const nlohmann::json& required(std::string_view field) const {
        if (!has(field)) missing(field);
        return json_[field];
    }

    std::int64_t count(std::string_view field) const {
        const nlohmann::json& value = required(field);
        const std::int64_t number = value.is_number_integer() ? value.get<std::int64_t>() : -1;
        if (number < 0 || number > kMost) refuse(field, "a positive integer up to 2^30");
        return number;
    }

    nlohmann::json json_;
    std::string source_;
};

// The row whose `key` is `word`, else Error(kUnsupported) listing the column.
template <class Rows, class Key>
const auto& row_of(const Rows& rows, Key key, std::string_view what, const std::string& word, const Config& config) {
    std::vector<std::string_view> known;
    for (const auto& row : rows) {
        if (row.*key == word) return row;
        known.push_back(row.*key);
    }
    fail(ErrorCode::kUnsupported, "{}: {} '{}' is not known; known: {}", config.source(), what, word,
         fmt::join(known, ", "));
}

Dtype dtype_of(const Config& config) {
    const char* field = config.has("dtype") ? "dtype" : "torch_dtype";
    if (!config.has(field)) return Dtype::kBf16;
    return row_of(kTorchDtypes, &TorchDtype::name, field, config.word(field), config).dtype;
}

const Architecture& architecture_of(Config* config) {
    const std::string type = config->word("model_type");
    std::vector<std::string_view> known;
    for (const Architecture& row : kArchitectures) {
        known.push_back(row.model_type);
        if (row.model_type != type) continue;
        config->add_defaults(row.defaults);
        return row;
    }
    fail(
        ErrorCode::kUnsupported,
        "{}: model_type '{}' is not known: which norm, rotary embedding, activation and loss it has is missing; known: "
        "{}. Give its operations by name with --op",
        config->source(), type, fmt::join(known, ", "));
}

struct MlpActivation {
    std::string_view op;
    std::string_view form;
};

MlpActivation activation_of(const Architecture& architecture, const Config& config) {
    if (!architecture.activation_op.empty()) return {architecture.activation_op, ""};
    const bool own_field = !architecture.activation.empty();
    const char* field = own_field ? "hidden_activation" : "hidden_act";
    const bool fixed = own_field && !config.has(field);
    const std::string word = fixed ? std::string(architecture.activation) : config.word(field);
    const Activation& row = row_of(kActivations, &Activation::name, field, word, config);
    const std::string_view op = architecture.gated ? row.gated : row.plain;
    if (op.empty()) fail(ErrorCode::kUnsupported, "{}: {} '{}' is not known as a gate", config.source(), field, word);
    return {op, row.form};
}

struct Heads {
    std::int64_t queries;
    std::int64_t keys;
    std::int64_t width;
    std::int64_t rotary;  // elements of the width that turn
};

// Fields that transformers derives when a configuration leaves them out are derived the same way.
std::int64_t head_width(const Config& config, std::int64_t queries) {
    if (config.has("head_dim")) return config.positive("head_dim");
    const std::int64_t hidden = config.positive("hidden_size");
    if (hidden % queries != 0) {
        config.refuse("num_attention_heads", fmt::format("a divisor of hidden_size {}", hidden));
    }
    return hidden / queries;
}

Heads heads_of(const Architecture& architecture, const Config& config) {
    const std::int64_t queries = config.positive("num_attention_heads");
    if (architecture.head_norms == HeadNorms::kLatents) {
        // All heads share the part of the key that turns, and it alone turns.
        const std::int64_t width = config.positive("qk_rope_head_dim");
        if (width % 2 != 0) config.refuse("qk_rope_head_dim", "even");
        return {queries, 1, width, width};
    }
    const std::int64_t width = head_width(config, queries);
    Heads heads{queries, queries, width, width};
    if (config.has("num_key_value_heads")) heads.keys = config.positive("num_key_value_heads");
    constexpr std::string_view kFactor = "partial_rotary_factor";
    const nlohmann::json* factor = config.rotary_field(kFactor);
    if (factor != nullptr) {
        const double part = factor->is_number() ? factor->get<double>() : 0;
        heads.rotary = part > 0 && part <= 1 ? static_cast<std::int64_t>(static_cast<double>(width) * part) : 0;
    }
    if (heads.rotary == 0 || heads.rotary % 2 != 0) {
        const std::string expected = fmt::format("such that an even part of a head's {} elements rotates", width);
        if (factor != nullptr) config.wrong(*factor, kFactor, expected);
        config.refuse(config.has("head_dim") ? "head_dim" : "hidden_size", expected);
    }
    return heads;
}

std::string text_of(double number) { return fmt::format("{}", number); }

class Suite {
  public:
    Suite(const Architecture& architecture, const Config& config)
        : config_(config),
          architecture_(architecture),
          dtype_(dtype_of(config)),
          layers_(static_cast<int>(config.positive("num_hidden_layers"))),
          heads_(heads_of(architecture, config)) {}

    std::vector<SuiteEntry> entries() {
        add_norms();
        add_head_norms();
        add_rope();
        add_mlp();
        add_loss();
        return std::move(entries_);
    }

  private:
    // What no layer has is left out.
    void add(std::string name, std::string_view op, std::int64_t columns, OptionMap options, int count,
             std::int64_t rows_per_token = 1) {
        if (count == 0) return;
        entries_.push_back(
            {std::move(name), std::string(op), {columns, dtype_, std::move(options)}, count, rows_per_token});
    }

    OptionMap norm_options() const {
        OptionMap options = {{"eps", text_of(config_.number(architecture_.eps))}};
        if (architecture_.casting != "llama") options["casting"] = architecture_.casting;
        if (architecture_.norm_offset != 0) options["offset"] = std::to_string(architecture_.norm_offset);
        return options;
    }

    // Twice a layer something joins the residual stream. Where the stream is normed at once, the sum is in that norm's
    // kernel: before every attention and MLP but the first, which norms the embeddings, and at the model's end.
    void add_norms() {
        const std::int64_t hidden = config_.positive("hidden_size");
        OptionMap norm = norm_options();
        if (architecture_.f32_norm_weights) norm["weight"] = "f32";
        const int joins = 2 * layers_;
        const bool sandwich = architecture_.residual == Residual::kSandwich;
        const auto add_both = [&](int norms, int residual_norms) {
            add("norm", architecture_.norm, hidden, norm, norms);
            add("residual_norm", fmt::format("add_{}", architecture_.norm), hidden, norm, residual_norms);
        };
        switch (architecture_.residual) {
            case Residual::kPreNorm:
            case Residual::kSandwich: add_both(sandwich ? 1 + joins : 1, joins); break;
            case Residual::kPostNorm:
                add_both(joins, 1);
                add("residual", "scale_add", hidden, {}, joins - 1);
                break;
            case Residual::kScaledBranch:
                add_both(1 + joins, 0);
                add("residual", "scale_add", hidden, {{"scale", text_of(config_.number("residual_multiplier"))}},
                    joins);
                break;
        }
    }

    void add_head_norms() {
        const OptionMap norm = norm_options();
        switch (architecture_.head_norms) {
            case HeadNorms::kNone: break;
            case HeadNorms::kEachHead:
                add("query_norm", "rms_norm", heads_.width, norm, layers_, heads_.queries);
                add("key_norm", "rms_norm", heads_.width, norm, layers_, heads_.keys);
                break;
            case HeadNorms::kAllHeads:
                add("query_norm", "rms_norm", heads_.width * heads_.queries, norm, layers_);
                add("key_norm", "rms_norm", heads_.width * heads_.keys, norm, layers_);
                break;
            case HeadNorms::kLatents:
                // These are made without the configuration's eps, with their class's own.
                if (config_.has("q_lora_rank")) {
                    add("query_norm", "rms_norm", config_.positive("q_lora_rank"), {{"eps", "1e-06"}}, layers_);
                }
                add("key_norm", "rms_norm", config_.positive("kv_lora_rank"), {{"eps", "1e-06"}}, layers_);
                break;
        }
    }

    int rotary_layers() const {
        if (!architecture_.skips_rotary) return layers_;
        const std::vector<std::int64_t> turns = config_.integers("no_rope_layers");
        if (turns.empty()) return layers_ - layers_ / static_cast<int>(config_.positive("no_rope_layer_interval"));
        if (std::ssize(turns) < layers_) config_.refuse("no_rope_layers", "a list of every layer");
        return layers_ - static_cast<int>(std::count(turns.begin(), turns.begin() + layers_, 0));
    }

    void add_rope() {
        OptionMap options;
        if (architecture_.pairing != "half") options["pairing"] = architecture_.pairing;
        if (architecture_.table != "full") options["table"] = architecture_.table;
        if (architecture_.rotary == "mrope") return add_mrope(std::move(options));
        options["heads"] = std::to_string(heads_.queries);
        options["kv_heads"] = std::to_string(heads_.keys);
        if (heads_.rotary != heads_.width) options["rotary"] = std::to_string(heads_.rotary);
        if (config_.has("rope_interleave") && !config_.flag_or("rope_interleave", true)) options.erase("pairing");
        add("rope", architecture_.rotary, heads_.width, std::move(options), rotary_layers());
    }

    void add_mrope(OptionMap options) {
        constexpr std::string_view kSections = "mrope_section";
        const nlohmann::json* field = config_.rotary_field(kSections);
        if (field == nullptr) config_.missing(kSections);
        const std::vector<std::int64_t> sections = config_.integers_of(*field, kSections);
        if (sections.size() != 3 || sections[0] + sections[1] + sections[2] != heads_.width / 2) {
            config_.wrong(*field, kSections, fmt::format("three sections of a head's {} pairs", heads_.width / 2));
        }
        options["height"] = std::to_string(sections[1]);
        options["width"] = std::to_string(sections[2]);
        options["heads"] = std::to_string(heads_.queries);
        add("query_rope", "mrope", heads_.width, options, layers_);
        options["heads"] = std::to_string(heads_.keys);
        add("key_rope", "mrope", heads_.width, std::move(options), layers_);
    }

    // Layers whose MLP is one and not many experts.
    int dense_layers() const {
        if (architecture_.router == Router::kNone) return layers_;
        const std::int64_t first = config_.count_or("first_k_dense_replace", 0);
        const std::int64_t step = config_.has("decoder_sparse_step") ? config_.positive("decoder_sparse_step") : 1;
        const std::vector<std::int64_t> named = config_.integers("mlp_only_layers");
        int dense = 0;
        for (int layer = 0; layer < layers_; ++layer) {
            const bool is_named = std::find(named.begin(), named.end(), layer) != named.end();
            if (layer < first || (layer + 1) % step != 0 || is_named) ++dense;
        }
        return dense;
    }

    void add_mlp() {
        const MlpActivation activation = activation_of(architecture_, config_);
        OptionMap options;
        if (!activation.form.empty()) options["form"] = activation.form;
        if (architecture_.packed_gate_up) options["packed"] = "true";
        if (activation.op == "clipped_swiglu" && config_.has("swiglu_limit")) {
            options["limit"] = text_of(config_.number("swiglu_limit"));
        }
        const int dense = dense_layers();
        const int sparse = layers_ - dense;
        if (dense > 0) {
            add(architecture_.gated ? "gated_mlp" : "mlp", activation.op, config_.positive("intermediate_size"),
                options, dense);
        }
        if (sparse == 0) return;
        const std::int64_t chosen = config_.positive("num_experts_per_tok");
        const std::int64_t columns = config_.positive(architecture_.expert_columns);
        add_router(chosen, sparse);
        add("expert_mlp", activation.op, columns, options, sparse, chosen);
        if (const std::int64_t shared = config_.count_or("n_shared_experts", 0); shared > 0) {
            add("shared_mlp", activation.op, columns * shared, options, sparse);
        }
    }

    void add_router(std::int64_t chosen, int layers) {
        const std::int64_t experts = config_.positive(architecture_.experts);
        if (chosen > experts) {
            config_.refuse("num_experts_per_tok", fmt::format("at most {} {}", architecture_.experts, experts));
        }
        if (architecture_.router == Router::kAllExperts) add("router", "softmax", experts, {{"result", "f32"}}, layers);
        if (architecture_.router == Router::kChosenExperts) add("router", "softmax", chosen, {}, layers);
    }

    void add_loss() {
        OptionMap options;
        if (architecture_.softcapped_logits && config_.has("final_logit_softcapping")) {
            options["softcap"] = text_of(config_.number("final_logit_softcapping"));
        }
        if (architecture_.scaled_logits) options["temperature"] = text_of(config_.number("logits_scaling"));
        add("loss", "cross_entropy", config_.positive("vocab_size"), std::move(options), 1);
    }

    const Config& config_;
    const Architecture& architecture_;
    Dtype dtype_;
    int layers_;
    Heads heads_;
    std::vector<SuiteEntry> entries_;
};

}  // namespace

std::vector<SuiteEntry> model_suite(std::string_view config, std::string_view source) {
    Config parsed(config, source);
    const Architecture& architecture = architecture_of(&parsed);
    return Suite(architecture, parsed).entries();
}

}  // namespace rowjit
