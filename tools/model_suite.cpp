#include "tools/model_suite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/fail.h"

namespace rowjit {
namespace {

// What an architecture's modelling code fixes, from the classes of that name in Hugging Face transformers. All of them
// rotate in the half-split pairing.
struct Architecture {
    std::string_view model_type;
    std::string_view casting;     // of its RMS norm
    int norm_offset;              // added to the norm's weight
    bool head_norms = false;      // an RMS norm of every query and key head
    bool post_norms = false;      // attention's and the MLP's results are normed before they join the residual
    bool packed_gate_up = false;  // one projection gives gate and up side by side
    bool experts = false;         // a router's softmax, and an MLP for each expert that a token is sent to
    bool softcapped_logits = false;
    // The activation where the configuration has no hidden_activation; "" reads hidden_act instead. Gemma's published
    // hidden_act says gelu, and transformers runs the tanh form all the same.
    std::string_view activation = "";
};

constexpr std::array kArchitectures = {
    Architecture{.model_type = "llama", .casting = "llama", .norm_offset = 0},
    Architecture{.model_type = "mistral", .casting = "llama", .norm_offset = 0},
    Architecture{.model_type = "qwen2", .casting = "llama", .norm_offset = 0},
    Architecture{.model_type = "qwen3", .casting = "llama", .norm_offset = 0, .head_norms = true},
    Architecture{.model_type = "qwen3_moe", .casting = "llama", .norm_offset = 0, .head_norms = true, .experts = true},
    Architecture{.model_type = "gemma", .casting = "gemma", .norm_offset = 1, .activation = "gelu_pytorch_tanh"},
    Architecture{.model_type = "gemma2",
                 .casting = "gemma",
                 .norm_offset = 1,
                 .post_norms = true,
                 .softcapped_logits = true,
                 .activation = "gelu_pytorch_tanh"},
    Architecture{.model_type = "phi3", .casting = "llama", .norm_offset = 0, .packed_gate_up = true},
};

struct Activation {
    std::string_view name;  // as transformers' ACT2FN has it
    std::string_view op;
    std::string_view form;  // geglu's option
};

constexpr std::array kActivations = {
    Activation{"silu", "swiglu", ""},
    Activation{"gelu_pytorch_tanh", "geglu", "tanh"},
    Activation{"gelu", "geglu", "erf"},
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

// A configuration's fields; every failure names the file and the field.
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
    }

    const std::string& source() const { return source_; }

    // Present and not null.
    bool has(const char* field) const { return json_.contains(field) && !json_[field].is_null(); }

    std::int64_t positive(const char* field) const {
        const nlohmann::json& value = required(field);
        const std::int64_t number = value.is_number_integer() ? value.get<std::int64_t>() : 0;
        if (number <= 0 || number > kMost) refuse(field, "a positive integer up to 2^30");
        return number;
    }

    double number(const char* field) const {
        const nlohmann::json& value = required(field);
        if (!value.is_number()) refuse(field, "a number");
        return value.get<double>();
    }

    std::string word(const char* field) const {
        const nlohmann::json& value = required(field);
        if (!value.is_string()) refuse(field, "a string");
        return value.get<std::string>();
    }

    [[noreturn]] void refuse(const char* field, std::string_view expected) const {
        fail(ErrorCode::kParse, "{}: field '{}' is {}; it must be {}", source_, field, json_[field].dump(), expected);
    }

  private:
    const nlohmann::json& required(const char* field) const {
        if (!has(field)) {
            fail(ErrorCode::kParse, "{}: field '{}' is missing; take the model's whole config.json", source_, field);
        }
        return json_[field];
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

const Activation& activation_of(const Architecture& architecture, const Config& config) {
    const bool own_field = !architecture.activation.empty();
    const char* field = own_field ? "hidden_activation" : "hidden_act";
    const bool fixed = own_field && !config.has(field);
    const std::string word = fixed ? std::string(architecture.activation) : config.word(field);
    return row_of(kActivations, &Activation::name, field, word, config);
}

struct Heads {
    std::int64_t queries;
    std::int64_t keys;
    std::int64_t width;
    std::int64_t rotary;
};

// Fields that transformers derives when a configuration leaves them out are derived the same way.
Heads heads_of(const Config& config) {
    Heads heads{};
    heads.queries = config.positive("num_attention_heads");
    heads.keys = config.has("num_key_value_heads") ? config.positive("num_key_value_heads") : heads.queries;
    if (config.has("head_dim")) {
        heads.width = config.positive("head_dim");
    } else {
        const std::int64_t hidden = config.positive("hidden_size");
        if (hidden % heads.queries != 0) {
            config.refuse("num_attention_heads", fmt::format("a divisor of hidden_size {}", hidden));
        }
        heads.width = hidden / heads.queries;
    }
    const double factor = config.has("partial_rotary_factor") ? config.number("partial_rotary_factor") : 1;
    heads.rotary = factor > 0 && factor <= 1 ? static_cast<std::int64_t>(static_cast<double>(heads.width) * factor) : 0;
    if (heads.rotary == 0 || heads.rotary % 2 != 0) {
        const char* field = config.has("partial_rotary_factor") ? "partial_rotary_factor"
                            : config.has("head_dim")            ? "head_dim"
                                                                : "hidden_size";
        config.refuse(field, fmt::format("such that an even part of a head's {} elements rotates", heads.width));
    }
    return heads;
}

class Suite {
  public:
    explicit Suite(const Config& config)
        : config_(config),
          architecture_(
              row_of(kArchitectures, &Architecture::model_type, "model_type", config.word("model_type"), config)),
          dtype_(dtype_of(config)),
          layers_(static_cast<int>(config.positive("num_hidden_layers"))),
          heads_(heads_of(config)) {}

    std::vector<SuiteEntry> entries() {
        add_norms();
        add_rope();
        add_mlp();
        add_loss();
        return std::move(entries_);
    }

  private:
    void add(std::string name, std::string_view op, std::int64_t columns, OptionMap options, int count,
             std::int64_t rows_per_token = 1) {
        entries_.push_back(
            {std::move(name), std::string(op), {columns, dtype_, std::move(options)}, count, rows_per_token});
    }

    // The first layer norms the embeddings; every later norm of the residual stream follows an addition to it, twice a
    // layer, the last one being the model's final norm.
    void add_norms() {
        const std::int64_t hidden = config_.positive("hidden_size");
        OptionMap norm = {{"eps", fmt::format("{}", config_.number("rms_norm_eps"))}};
        if (architecture_.casting != "llama") norm["casting"] = architecture_.casting;
        if (architecture_.norm_offset != 0) norm["offset"] = std::to_string(architecture_.norm_offset);
        add("norm", "rms_norm", hidden, norm, architecture_.post_norms ? 1 + 2 * layers_ : 1);
        add("residual_norm", "add_rms_norm", hidden, norm, 2 * layers_);
        if (!architecture_.head_norms) return;
        add("query_norm", "rms_norm", heads_.width, norm, layers_, heads_.queries);
        add("key_norm", "rms_norm", heads_.width, norm, layers_, heads_.keys);
    }

    void add_rope() {
        OptionMap options = {{"heads", std::to_string(heads_.queries)}, {"kv_heads", std::to_string(heads_.keys)}};
        if (heads_.rotary != heads_.width) options["rotary"] = std::to_string(heads_.rotary);
        add("rope", "rope_qk", heads_.width, std::move(options), layers_);
    }

    void add_mlp() {
        const Activation& activation = activation_of(architecture_, config_);
        OptionMap options;
        if (!activation.form.empty()) options["form"] = activation.form;
        if (architecture_.packed_gate_up) options["packed"] = "true";
        if (!architecture_.experts) {
            add("gated_mlp", activation.op, config_.positive("intermediate_size"), std::move(options), layers_);
            return;
        }
        add("router", "softmax", config_.positive("num_experts"), {{"result", "f32"}}, layers_);
        add("gated_mlp", activation.op, config_.positive("moe_intermediate_size"), std::move(options), layers_,
            config_.positive("num_experts_per_tok"));
    }

    void add_loss() {
        OptionMap options;
        if (architecture_.softcapped_logits && config_.has("final_logit_softcapping")) {
            options["softcap"] = fmt::format("{}", config_.number("final_logit_softcapping"));
        }
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
    const Config parsed(config, source);
    return Suite(parsed).entries();
}

}  // namespace rowjit
