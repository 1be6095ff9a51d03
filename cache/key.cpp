#include "cache/key.h"

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

}  // namespace

CacheKey::CacheKey(const KeyFields& fields) : text_(canonical_text(fields)), digest_(sha256(text_)) {}

}  // namespace rowjit
