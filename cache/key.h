// What makes two compilations the same. Every input that can change the compiled bytes is a field here, and nothing
// else: no path, time, device ordinal, host or row count, so that equal kernels meet wherever they were compiled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "compiler/toolchain/artifact.h"

namespace rowjit {

// The layout of keys and of stored entries. Raised when either changes; entries of other versions are other keys, so
// two versions of rowjit share a directory without meeting.
inline constexpr std::int64_t kCacheSchema = 2;

struct KeyFields {
    Source source;                     // the emitted text and its entry points, never what a compiler made of it
    std::vector<std::string> options;  // in the order the compiler gets them
    std::string architecture;          // in full: "sm_90a", "gfx942:xnack-", "x86-64-v3"
    std::string cpu_features;          // LLVM's feature string, CPU only
    std::string toolchain;             // "nvrtc"
    std::string toolchain_version;
    std::int64_t codegen_version = 0;  // how launch code and emitted source agree on arguments
};

// What of those a compiler is known by, and a kernel's source is not.
struct CompiledBy {
    std::vector<std::string> options;
    std::string architecture;
    std::string cpu_features;
    std::string toolchain;
    std::string toolchain_version;

    bool operator==(const CompiledBy&) const = default;
};

// The same kernel as this compiler compiles it.
KeyFields with_compiler(KeyFields fields, const CompiledBy& compiler);

// What a key's text says of its compiler; nullopt for any other text.
std::optional<CompiledBy> compiler_of(std::string_view key_text);

class CacheKey {
  public:
    // Refuses (a check) the architecture "native" without its features: it would be the same key on every machine.
    explicit CacheKey(const KeyFields& fields);

    const Digest& digest() const { return digest_; }
    // The fields as field_text (base/digest.h), in their fixed order; the source as its own SHA-256. digest() is the
    // SHA-256 of this text.
    const std::string& text() const { return text_; }

  private:
    std::string text_;
    Digest digest_;
};

}  // namespace rowjit
