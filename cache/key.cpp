#include "cache/key.h"

#include <charconv>
#include <map>

#include "base/check.h"

namespace rowjit {

namespace {

std::string canonical_text(const KeyFields& fields) {
    RJ_CHECK(fields.architecture != "native" || !fields.cpu_features.empty(),
             "a cache key for the CPU 'native' needs the CPU's features");
    std::string text = field_text("schema", std::to_string(kCacheSchema));
    text += field_text("codegen", std::to_string(fields.codegen_version));
    text += field_text("architecture", fields.architecture);
    text += field_text("cpu_features", fields.cpu_features);
    text += field_text("toolchain", fields.toolchain);
    text += field_text("toolchain_version", fields.toolchain_version);
    for (const std::string& option : fields.options) text += field_text("option", option);
    for (const std::string& function : fields.source.functions) text += field_text("function", function);
    text += field_text("source_sha256", sha256(fields.source.text).hex());
    return text;
}

// The next "name length:value\n" off the front of `text` (base/digest.h); nullopt where there is none.
std::optional<std::pair<std::string_view, std::string_view>> take_field(std::string_view* text) {
    const std::size_t space = text->find(' ');
    const std::size_t colon = text->find(':', space);
    if (space == std::string_view::npos || colon == std::string_view::npos) return std::nullopt;
    std::size_t length = 0;
    const char* digits_end = text->data() + colon;
    const auto [end, error] = std::from_chars(text->data() + space + 1, digits_end, length);
    const std::string_view rest = text->substr(colon + 1);
    if (error != std::errc() || end != digits_end || length >= rest.size() || rest[length] != '\n') return std::nullopt;
    const std::string_view name = text->substr(0, space);
    text->remove_prefix(colon + 1 + length + 1);
    return std::pair(name, rest.substr(0, length));
}

}  // namespace

KeyFields with_compiler(KeyFields fields, const CompiledBy& compiler) {
    const auto& [options, architecture, cpu_features, toolchain, toolchain_version] = compiler;
    fields.options = options;
    fields.architecture = architecture;
    fields.cpu_features = cpu_features;
    fields.toolchain = toolchain;
    fields.toolchain_version = toolchain_version;
    return fields;
}

std::optional<CompiledBy> compiler_of(std::string_view key_text) {
    CompiledBy compiler;
    const std::map<std::string_view, std::string*> fields = {{"architecture", &compiler.architecture},
                                                             {"cpu_features", &compiler.cpu_features},
                                                             {"toolchain", &compiler.toolchain},
                                                             {"toolchain_version", &compiler.toolchain_version}};
    std::size_t found = 0;
    while (!key_text.empty()) {
        const auto field = take_field(&key_text);
        if (!field) return std::nullopt;
        const auto& [name, value] = *field;
        if (name == "option") compiler.options.emplace_back(value);
        const auto into = fields.find(name);
        if (into == fields.end()) continue;
        *into->second = value;
        ++found;
    }
    return found == fields.size() ? std::optional(std::move(compiler)) : std::nullopt;
}

CacheKey::CacheKey(const KeyFields& fields) : text_(canonical_text(fields)), digest_(sha256(text_)) {}

}  // namespace rowjit
